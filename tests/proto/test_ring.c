/* The record ring: whole records only, whatever the producer did last. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "message_maker.h"
#include "proto_clock.h"
#include "proto_ring.h"

enum { RING_SIZE = PROTO_RING_SIZE_MIN };

static int ring_fd = -1;
static uint8_t content[RING_SIZE];

static void
set_up(void)
{
    const proto_ring_owner_t owner = {"executor-0", PROTO_ROLE_EXECUTOR, 9, 0};
    ck_assert_int_eq(proto_ring_create(&owner, RING_SIZE, &ring_fd), STATUS_OK);
}

static void
tear_down(void)
{
    (void)close(ring_fd);
}

/* A record whose parts and sizes follow from `number`, so that a reader can check every byte. */
static void
make_record(uint64_t number, proto_log_record_t *out)
{
    uint64_t mixed = number * UINT64_C(0x9e3779b97f4a7c15);
    size_t size_bytes = (size_t)(mixed >> 40) % 700;
    memset(content, (int)(mixed >> 56), size_bytes);
    memset(out, 0, sizeof *out);
    out->kind = PROTO_LOG_IN;
    out->channel = (uint16_t)number;
    out->time_ns = number;
    out->link_sequence = ~number;
    out->part_count = 2;
    out->parts[0] = (proto_bytes_t){(const uint8_t *)&out->time_ns, sizeof out->time_ns};
    out->parts[1] = (proto_bytes_t){content, size_bytes};
}

static void
append_number(proto_ring_writer_t *writer, uint64_t number)
{
    proto_log_record_t record;
    make_record(number, &record);
    proto_ring_append(writer, &record);
}

/* Record number and sequence are the same in these tests. */
static void
check_record(const proto_log_record_t *got)
{
    proto_log_record_t wanted;
    uint64_t number = got->sequence;
    make_record(number, &wanted);
    ck_assert_uint_eq(got->time_ns, number);
    ck_assert_uint_eq(got->link_sequence, ~number);
    ck_assert_uint_eq(got->channel, (uint16_t)number);
    ck_assert_uint_eq(got->part_count, 2);
    ck_assert_uint_eq(got->parts[0].size_bytes, 8);
    ck_assert_mem_eq(got->parts[0].data, &number, 8);
    ck_assert_uint_eq(got->parts[1].size_bytes, wanted.parts[1].size_bytes);
    if (wanted.parts[1].size_bytes > 0) {
        ck_assert_mem_eq(got->parts[1].data, content, wanted.parts[1].size_bytes);
    }
}

static proto_ring_writer_t *
open_writer(void)
{
    proto_ring_writer_t *writer = NULL;
    ck_assert_int_eq(proto_ring_writer_open(ring_fd, &writer), STATUS_OK);
    return writer;
}

static proto_ring_reader_t *
open_reader(void)
{
    proto_ring_reader_t *reader = NULL;
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    return reader;
}

START_TEST(records_come_out_in_order)
{
    proto_ring_writer_t *writer = open_writer();
    proto_ring_reader_t *reader = open_reader();
    proto_log_record_t got;
    ck_assert_str_eq(proto_ring_reader_owner(reader)->name, "executor-0");
    ck_assert_uint_eq(proto_ring_reader_owner(reader)->epoch, 9);
    ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_AGAIN);
    uint64_t read_count = 0;
    for (uint64_t number = 1; number <= 5000; number++) {
        append_number(writer, number);
        /* The reader lags by up to seven records, over many turns of the ring. */
        while (read_count + number % 8 < number) {
            ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_OK);
            read_count++;
            ck_assert_uint_eq(got.sequence, read_count);
            check_record(&got);
        }
    }
    while (proto_ring_reader_next(reader, &got) == STATUS_OK) {
        read_count++;
    }
    ck_assert_uint_eq(read_count, 5000);
    ck_assert_uint_eq(proto_ring_reader_lost(reader), 0);
    ck_assert_uint_eq(proto_ring_reader_backlog_bytes(reader), 0);
    ck_assert_uint_eq(proto_ring_record_count(writer), 5000);
    proto_ring_reader_close(&reader);
    proto_ring_writer_close(&writer);
    ck_assert_ptr_null(reader);
    ck_assert_ptr_null(writer);
}
END_TEST

/* The producer never waits: a reader that sleeps loses the oldest and knows how many. */
START_TEST(a_slow_reader_loses_the_oldest_records_and_counts_them)
{
    proto_ring_writer_t *writer = open_writer();
    proto_ring_reader_t *reader = open_reader();
    proto_log_record_t got;
    for (uint64_t number = 1; number <= 3000; number++) {
        append_number(writer, number);
    }
    ck_assert_uint_gt(proto_ring_reader_backlog_bytes(reader), RING_SIZE);
    uint64_t expected = 0;
    uint64_t read_count = 0;
    while (proto_ring_reader_next(reader, &got) == STATUS_OK) {
        ck_assert(expected == 0 || got.sequence == expected);
        check_record(&got);
        expected = got.sequence + 1;
        read_count++;
    }
    ck_assert_uint_eq(expected, 3001);
    ck_assert_uint_gt(read_count, 100);
    ck_assert_uint_eq(proto_ring_reader_lost(reader), 3000 - read_count);
    proto_ring_reader_close(&reader);
    proto_ring_writer_close(&writer);
}
END_TEST

/* After it was consumed, the ring still holds the last records: the crash record. */
START_TEST(a_late_reader_finds_the_last_records)
{
    proto_ring_writer_t *writer = open_writer();
    proto_ring_reader_t *recorder = open_reader();
    proto_log_record_t got;
    for (uint64_t number = 1; number <= 1000; number++) {
        append_number(writer, number);
        ck_assert_int_eq(proto_ring_reader_next(recorder, &got), STATUS_OK);
    }
    proto_ring_reader_close(&recorder);
    proto_ring_writer_close(&writer);
    proto_ring_reader_t *reader = open_reader();
    uint64_t read_count = 0;
    while (proto_ring_reader_next(reader, &got) == STATUS_OK) {
        check_record(&got);
        read_count++;
    }
    ck_assert_uint_eq(got.sequence, 1000);
    ck_assert_uint_eq(proto_ring_reader_lost(reader) + read_count, 1000);
    ck_assert_uint_gt(read_count, 100);
    proto_ring_reader_close(&reader);
}
END_TEST

START_TEST(a_record_larger_than_half_the_ring_is_cut)
{
    static uint8_t large[RING_SIZE];
    proto_ring_writer_t *writer = open_writer();
    proto_ring_reader_t *reader = open_reader();
    proto_log_record_t got;
    proto_log_record_t record = {
        .kind = PROTO_LOG_OUT,
        .part_count = 3,
        .parts = {{(const uint8_t *)"head", 4}, {(const uint8_t *)"body", 4}, {large, RING_SIZE}},
    };
    proto_ring_append(writer, &record);
    record.parts[2].size_bytes = RING_SIZE / 2 - 64;
    proto_ring_append(writer, &record);
    ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_OK);
    ck_assert_uint_eq(got.part_count, 2);
    ck_assert_uint_eq(got.flags, PROTO_LOG_FLAG_CUT);
    ck_assert_mem_eq(got.parts[1].data, "body", 4);
    ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_OK);
    ck_assert_uint_eq(got.part_count, 3);
    ck_assert_uint_eq(got.flags, 0);
    ck_assert_uint_eq(proto_ring_cut_count(writer), 1);
    proto_ring_reader_close(&reader);
    proto_ring_writer_close(&writer);
}
END_TEST

/* ---- two processes -------------------------------------------------------------------------- */

static pid_t
start_producer(uint64_t first, uint64_t count)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        proto_ring_writer_t *writer = NULL;
        if (proto_ring_writer_open(ring_fd, &writer) != STATUS_OK) {
            _exit(1);
        }
        for (uint64_t number = first; number - first < count; number++) {
            append_number(writer, number);
        }
        _exit(0);
    }
    return child;
}

/* The reader is overtaken again and again here, and must never give out a record that is half one
 * and half the other. */
START_TEST(a_racing_producer_never_tears_a_record)
{
    proto_ring_reader_t *reader = open_reader();
    proto_log_record_t got;
    const uint64_t count = 300000;
    pid_t child = start_producer(1, count);
    uint64_t read_count = 0;
    uint64_t last = 0;
    bool ended = false;
    while (last < count) {
        proto_status_t status = proto_ring_reader_next(reader, &got);
        ck_assert_int_ne(status, STATUS_ERR_MALFORMED);
        if (status == STATUS_OK) {
            check_record(&got);
            ck_assert_uint_gt(got.sequence, last);
            last = got.sequence;
            read_count++;
        } else if (ended) {
            break;
        } else {
            int exit_status = 0;
            ended = waitpid(child, &exit_status, WNOHANG) == child;
        }
    }
    if (!ended) {
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
    }
    ck_assert_uint_eq(last, count);
    ck_assert_uint_eq(read_count + proto_ring_reader_lost(reader), count);
    proto_ring_reader_close(&reader);
}
END_TEST

/* Killed at any instruction: the ring opens, all that it holds is whole and without a gap, and the
 * next incarnation goes on with the next number. */
START_TEST(a_killed_producer_leaves_a_whole_ring)
{
    maker_t *maker = maker_new(maker_seed("killed producer"), 0);
    uint64_t next = 1;
    proto_ring_reader_t *follower = open_reader();
    for (int round = 0; round < 200; round++) {
        proto_log_record_t got;
        pid_t child = start_producer(next, UINT64_MAX);
        /* It runs when its first record is there; then it may do some more work. */
        while (proto_ring_reader_next(follower, &got) != STATUS_OK || got.sequence < next) {
        }
        uint64_t spins = maker_random(maker) % 200000;
        for (volatile uint64_t spin = 0; spin < spins; spin++) {
        }
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        int exit_status = 0;
        ck_assert_int_eq(waitpid(child, &exit_status, 0), child);
        ck_assert_int_eq(WTERMSIG(exit_status), SIGKILL);

        proto_ring_reader_t *reader = open_reader();
        uint64_t expected = 0;
        proto_status_t status;
        while ((status = proto_ring_reader_next(reader, &got)) == STATUS_OK) {
            ck_assert(expected == 0 || got.sequence == expected);
            check_record(&got);
            expected = got.sequence + 1;
        }
        ck_assert_int_eq(status, STATUS_AGAIN);
        ck_assert_uint_gt(expected, next);
        next = expected;
        proto_ring_reader_close(&reader);
        while (proto_ring_reader_next(follower, &got) == STATUS_OK) {
        }
    }
    proto_ring_reader_close(&follower);
    free(maker);
}
END_TEST

/* ---- strict rings and successors ------------------------------------------------------------- */

static uint64_t
now_ms(void)
{
    return proto_clock_monotonic_ns(proto_clock_system()) / 1000000;
}

static void
make_strict(void)
{
    const proto_ring_owner_t owner = {"executor-0", PROTO_ROLE_EXECUTOR, 9, 1};
    (void)close(ring_fd);
    ck_assert_int_eq(proto_ring_create(&owner, RING_SIZE, &ring_fd), STATUS_OK);
}

/* The producer is far faster than the reader, and yet nothing is missing. */
START_TEST(a_strict_producer_waits_for_what_is_kept)
{
    make_strict();
    proto_ring_reader_t *reader = open_reader();
    const uint64_t count = 20000;
    pid_t child = start_producer(1, count);
    proto_log_record_t got;
    uint64_t last = 0;
    uint64_t until_ms = now_ms() + 20000;
    while (last < count) {
        ck_assert_uint_lt(now_ms(), until_ms);
        proto_status_t status = proto_ring_reader_next(reader, &got);
        if (status == STATUS_OK) {
            check_record(&got);
            ck_assert_uint_eq(got.sequence, last + 1);
            last = got.sequence;
        }
        if (status != STATUS_OK || last % 50 == 0) {
            proto_ring_reader_keep(reader);
        }
    }
    ck_assert_uint_eq(proto_ring_reader_lost(reader), 0);
    int exit_status = 1;
    ck_assert_int_eq(waitpid(child, &exit_status, 0), child);
    ck_assert_int_eq(exit_status, 0);
    proto_ring_writer_t *writer = open_writer();
    ck_assert_uint_eq(proto_ring_strict_count(writer), 0);
    proto_ring_writer_close(&writer);
    proto_ring_reader_close(&reader);
}
END_TEST

/* Nobody reads: one bounded wait, then the actor goes on, until the reader is there again. */
START_TEST(a_strict_producer_gives_up_after_its_time)
{
    make_strict();
    proto_ring_writer_t *writer = open_writer();
    proto_ring_reader_t *reader = open_reader();
    uint64_t number = 0;
    while (proto_ring_written_bytes(writer) + 2000 < proto_ring_capacity_bytes(writer)) {
        append_number(writer, ++number);
    }
    uint64_t begin_ms = now_ms();
    while (proto_ring_strict_count(writer) == 0) {
        append_number(writer, ++number);
    }
    uint64_t waited_ms = now_ms() - begin_ms;
    ck_assert_uint_ge(waited_ms, PROTO_RING_STRICT_WAIT_MS);
    ck_assert_uint_lt(waited_ms, 2 * PROTO_RING_STRICT_WAIT_MS);
    begin_ms = now_ms();
    for (int count = 0; count < 1000; count++) {
        append_number(writer, ++number);
    }
    ck_assert_uint_lt(now_ms() - begin_ms, PROTO_RING_STRICT_WAIT_MS);
    ck_assert_uint_eq(proto_ring_strict_count(writer), 1);
    proto_log_record_t got;
    while (proto_ring_reader_next(reader, &got) == STATUS_OK) {
    }
    ck_assert_uint_eq(got.sequence, number);
    ck_assert_uint_gt(proto_ring_reader_lost(reader), 0);
    proto_ring_reader_keep(reader);
    while (proto_ring_strict_count(writer) == 1) { /* it has hope again, and waits again */
        append_number(writer, ++number);
    }
    ck_assert_uint_eq(proto_ring_strict_count(writer), 2);
    proto_ring_reader_close(&reader);
    proto_ring_writer_close(&writer);
}
END_TEST

/* A reader that goes on where another one stopped: nothing twice, and the loss since is counted. */
START_TEST(a_successor_goes_on_behind_what_was_read)
{
    proto_ring_writer_t *writer = open_writer();
    proto_log_record_t got;
    uint64_t number = 0;
    while (number < 100) {
        append_number(writer, ++number);
    }
    proto_ring_reader_t *reader = open_reader();
    proto_ring_reader_resume(reader, 60);
    ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_OK);
    ck_assert_uint_eq(got.sequence, 61);
    check_record(&got);
    ck_assert_uint_eq(proto_ring_reader_lost(reader), 0);
    proto_ring_reader_close(&reader);
    reader = open_reader();
    proto_ring_reader_resume(reader, 100);
    ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_AGAIN);
    append_number(writer, ++number);
    ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_OK);
    ck_assert_uint_eq(got.sequence, 101);
    proto_ring_reader_close(&reader);
    while (number < 3000) {
        append_number(writer, ++number);
    }
    reader = open_reader();
    proto_ring_reader_resume(reader, 101);
    ck_assert_int_eq(proto_ring_reader_next(reader, &got), STATUS_OK);
    ck_assert_uint_gt(got.sequence, 1000);
    ck_assert_uint_eq(proto_ring_reader_lost(reader), got.sequence - 102);
    proto_ring_reader_close(&reader);
    proto_ring_writer_close(&writer);
}
END_TEST

/* ---- hostile rings -------------------------------------------------------------------------- */

/* A producer that went mad may have written anything anywhere. */
START_TEST(a_damaged_ring_never_harms_its_reader)
{
    maker_t *maker = maker_new(maker_seed("damaged ring"), 0);
    size_t whole = RING_SIZE + 4096;
    uint8_t *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    proto_ring_writer_t *writer = open_writer();
    for (uint64_t number = 1; number <= 1000; number++) {
        append_number(writer, number);
    }
    proto_ring_writer_close(&writer);
    uint8_t *saved = malloc(whole);
    ck_assert_ptr_nonnull(saved);
    memcpy(saved, memory, whole);
    for (int round = 0; round < 3000; round++) {
        memcpy(memory, saved, 4096);
        for (int change = 0; change < 8; change++) {
            /* Half of the changes go to the first page, where the positions are. */
            size_t at = maker_random(maker) % (change % 2 == 0 ? 512 : whole);
            memory[at] ^= (uint8_t)(1u << maker_random(maker) % 8);
        }
        proto_ring_reader_t *reader = NULL;
        if (proto_ring_reader_open(ring_fd, &reader) != STATUS_OK) {
            continue;
        }
        proto_log_record_t got;
        int read_count = 0;
        while (proto_ring_reader_next(reader, &got) == STATUS_OK) {
            for (uint32_t part = 0; part < got.part_count; part++) {
                ck_assert_uint_le(got.parts[part].size_bytes, RING_SIZE / 2);
            }
            read_count++;
            ck_assert_int_le(read_count, RING_SIZE / 40);
        }
        proto_ring_reader_close(&reader);
        /* A writer opens it, or says no; if it opens it, it works. */
        if (proto_ring_writer_open(ring_fd, &writer) == STATUS_OK) {
            for (uint64_t number = 1; number <= 300; number++) {
                append_number(writer, number);
            }
            proto_ring_writer_close(&writer);
        }
        if (round % 16 == 0) {
            memcpy(memory, saved, whole);
        }
    }
    free(saved);
    (void)munmap(memory, whole);
    free(maker);
}
END_TEST

START_TEST(what_is_no_ring_is_refused)
{
    proto_ring_reader_t *reader = NULL;
    proto_ring_writer_t *writer = NULL;
    ck_assert_int_eq(proto_ring_reader_open(-1, &reader), STATUS_ERR_IO);
    int fd = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, RING_SIZE + 4096), 0);
    /* Not sealed: it could shrink under its reader. */
    ck_assert_int_eq(proto_ring_reader_open(fd, &reader), STATUS_ERR_MALFORMED);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    /* Sealed, but without a ring in it. */
    ck_assert_int_eq(proto_ring_reader_open(fd, &reader), STATUS_ERR_MALFORMED);
    ck_assert_int_eq(proto_ring_writer_open(fd, &writer), STATUS_ERR_MALFORMED);
    (void)close(fd);
    ck_assert_int_eq(ftruncate(ring_fd, 4096), -1);
    ck_assert_int_eq(errno, EPERM);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.ring");
    TCase *tcase = tcase_create("ring");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, records_come_out_in_order);
    tcase_add_test(tcase, a_slow_reader_loses_the_oldest_records_and_counts_them);
    tcase_add_test(tcase, a_late_reader_finds_the_last_records);
    tcase_add_test(tcase, a_record_larger_than_half_the_ring_is_cut);
    tcase_add_test(tcase, a_racing_producer_never_tears_a_record);
    tcase_add_test(tcase, a_killed_producer_leaves_a_whole_ring);
    tcase_add_test(tcase, a_strict_producer_waits_for_what_is_kept);
    tcase_add_test(tcase, a_strict_producer_gives_up_after_its_time);
    tcase_add_test(tcase, a_successor_goes_on_behind_what_was_read);
    tcase_add_test(tcase, a_damaged_ring_never_harms_its_reader);
    tcase_add_test(tcase, what_is_no_ring_is_refused);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
