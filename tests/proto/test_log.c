/* Log segments: what was written is read back, and no damage does more than end the reading. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "message_maker.h"
#include "proto_log.h"

enum { PATH_SIZE = 512 };

static char directory[PATH_SIZE];
static char first_path[PATH_SIZE + 64];

static void
remove_files(void)
{
    DIR *listing = opendir(directory);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    if (listing != NULL) {
        (void)closedir(listing);
    }
}

static void
set_up(void)
{
    const char *temporary = getenv("TMPDIR");
    (void)snprintf(directory, sizeof directory, "%s/onepath-log-XXXXXX",
                   temporary != NULL ? temporary : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(first_path, sizeof first_path, "%s/scheduler.0000000000000007.000000.alog",
                   directory);
}

static void
tear_down(void)
{
    remove_files();
    (void)rmdir(directory);
}

static proto_log_writer_t *
open_writer(uint64_t segment_size_max, uint32_t segment_count_max)
{
    proto_log_options_t options = {
        .directory = directory,
        .name = "scheduler",
        .role = PROTO_ROLE_SCHEDULER,
        .epoch = 7,
        .build = "test build",
        .model = "digest=1;dtype=q4",
        .config_digest = 99,
        .segment_size_max = segment_size_max,
        .segment_count_max = segment_count_max,
    };
    proto_log_writer_t *writer = NULL;
    ck_assert_int_eq(proto_log_writer_open(&options, &writer), STATUS_OK);
    return writer;
}

/* Record number `sequence`: its parts follow from the number. */
static void
make_record(uint64_t sequence, uint8_t *content, size_t content_size, proto_log_record_t *out)
{
    uint64_t mixed = sequence * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t at = 0; at < content_size; at++) {
        content[at] = (uint8_t)(mixed >> 32 ^ at * 197);
    }
    size_t first = (size_t)(mixed >> 40) % (content_size + 1);
    memset(out, 0, sizeof *out);
    out->kind = (proto_log_kind_t)(1 + sequence % 11);
    out->flags = (uint8_t)(sequence % 3);
    out->channel = (uint16_t)(sequence * 7);
    out->sequence = sequence;
    out->time_ns = 1000 + sequence;
    out->link_sequence = sequence * 3;
    out->part_count = (uint32_t)(sequence % 4 == 0 ? 0 : 2);
    if (out->part_count > 0) {
        out->parts[0] = (proto_bytes_t){content, first};
        out->parts[1] = (proto_bytes_t){content + first, content_size - first};
    }
}

static void
check_same(const proto_log_record_t *a, const proto_log_record_t *b)
{
    ck_assert_int_eq(a->kind, b->kind);
    ck_assert_uint_eq(a->flags, b->flags);
    ck_assert_uint_eq(a->channel, b->channel);
    ck_assert_uint_eq(a->sequence, b->sequence);
    ck_assert_uint_eq(a->time_ns, b->time_ns);
    ck_assert_uint_eq(a->link_sequence, b->link_sequence);
    ck_assert_uint_eq(a->part_count, b->part_count);
    for (uint32_t index = 0; index < a->part_count; index++) {
        ck_assert_uint_eq(a->parts[index].size_bytes, b->parts[index].size_bytes);
        if (a->parts[index].size_bytes > 0) {
            ck_assert_mem_eq(a->parts[index].data, b->parts[index].data,
                             a->parts[index].size_bytes);
        }
    }
}

static uint8_t content[1 << 20];

static void
write_records(proto_log_writer_t *writer, uint64_t count, size_t content_size)
{
    for (uint64_t sequence = 1; sequence <= count; sequence++) {
        proto_log_record_t record;
        make_record(sequence, content, content_size, &record);
        ck_assert_int_eq(proto_log_append(writer, &record, sequence), STATUS_OK);
    }
}

/* Reads all records from `next` on; returns the number after the last one. */
static uint64_t
check_records(const char *path, uint64_t next, size_t content_size, proto_status_t *end)
{
    proto_log_reader_t *reader = NULL;
    proto_error_t error = {""};
    ck_assert_msg(proto_log_reader_open(path, &reader, &error) == STATUS_OK, "%s", error.detail);
    proto_log_record_t got;
    while ((*end = proto_log_reader_next(reader, &got)) == STATUS_OK) {
        proto_log_record_t wanted;
        make_record(next, content, content_size, &wanted);
        check_same(&got, &wanted);
        next++;
    }
    ck_assert(*end != STATUS_END ||
              proto_log_reader_offset(reader) == proto_log_reader_size(reader));
    proto_log_reader_close(&reader);
    return next;
}

START_TEST(records_survive_a_round_trip)
{
    proto_log_writer_t *writer = open_writer(0, 0);
    write_records(writer, 1000, 300);
    proto_log_writer_close(&writer);
    ck_assert_ptr_null(writer);
    proto_status_t end = STATUS_OK;
    ck_assert_uint_eq(check_records(first_path, 1, 300, &end), 1001);
    ck_assert_int_eq(end, STATUS_END);

    proto_log_reader_t *reader = NULL;
    ck_assert_int_eq(proto_log_reader_open(first_path, &reader, NULL), STATUS_OK);
    const proto_log_header_t *header = proto_log_reader_header(reader);
    ck_assert_str_eq(header->name, "scheduler");
    ck_assert_str_eq(header->build, "test build");
    ck_assert_str_eq(header->model, "digest=1;dtype=q4");
    ck_assert_uint_gt(strlen(header->boot), 10);
    ck_assert_uint_eq(header->epoch, 7);
    ck_assert_int_eq(header->role, PROTO_ROLE_SCHEDULER);
    ck_assert_uint_eq(header->first_sequence, 1);
    ck_assert_uint_eq(header->config_digest, 99);
    ck_assert_uint_eq(header->schema_version, PROTO_SCHEMA_VERSION);
    ck_assert_uint_eq(header->schema_hash, proto_schema_hash());
    ck_assert_uint_gt(header->realtime_ns, header->time_ns);
    proto_log_reader_close(&reader);

    struct stat stat_result;
    ck_assert_int_eq(stat(first_path, &stat_result), 0);
    ck_assert_uint_eq(stat_result.st_mode & 0777, 0600); /* prompts are in it */
}
END_TEST

/* Larger than the write buffer and the reader's window. */
START_TEST(large_records_survive_a_round_trip)
{
    proto_log_writer_t *writer = open_writer(0, 0);
    write_records(writer, 7, sizeof content);
    proto_log_writer_close(&writer);
    proto_status_t end = STATUS_OK;
    ck_assert_uint_eq(check_records(first_path, 1, sizeof content, &end), 8);
    ck_assert_int_eq(end, STATUS_END);
}
END_TEST

START_TEST(segments_roll_and_old_ones_go)
{
    proto_log_writer_t *writer = open_writer(20000, 3);
    write_records(writer, 400, 200);
    proto_log_counts_t counts;
    proto_log_writer_counts(writer, &counts);
    ck_assert_uint_eq(counts.records, 400);
    ck_assert_uint_gt(counts.segments, 3);
    proto_log_writer_close(&writer);
    int files = 0;
    uint64_t next = 0;
    proto_status_t end = STATUS_OK;
    for (int index = 0; index < 100; index++) {
        char path[PATH_SIZE + 64];
        (void)snprintf(path, sizeof path, "%s/scheduler.0000000000000007.%06d.alog", directory,
                       index);
        proto_log_reader_t *reader = NULL;
        if (proto_log_reader_open(path, &reader, NULL) != STATUS_OK) {
            continue;
        }
        ck_assert_uint_le(proto_log_reader_size(reader), 20000);
        ck_assert_uint_eq(proto_log_reader_header(reader)->segment_index, (uint32_t)index);
        uint64_t begin = proto_log_reader_header(reader)->first_sequence;
        ck_assert(next == 0 || begin == next);
        proto_log_reader_close(&reader);
        next = check_records(path, begin, 200, &end);
        ck_assert_int_eq(end, STATUS_END);
        files++;
    }
    ck_assert_int_eq(files, 3);
    ck_assert_uint_eq(next, 401);
}
END_TEST

/* A recorder that is started again must not write over what the first one wrote. */
START_TEST(a_second_writer_takes_the_next_name)
{
    proto_log_writer_t *writer = open_writer(0, 0);
    write_records(writer, 5, 10);
    proto_log_writer_close(&writer);
    writer = open_writer(0, 0);
    write_records(writer, 6, 10);
    proto_log_writer_close(&writer);
    proto_status_t end = STATUS_OK;
    ck_assert_uint_eq(check_records(first_path, 1, 10, &end), 6);
    first_path[strlen(first_path) - strlen("0.alog")] = '1';
    ck_assert_uint_eq(check_records(first_path, 1, 10, &end), 7);
}
END_TEST

/* 64 KiB or 10 ms: what is older is in the file, whatever then happens to the writer. */
START_TEST(records_reach_the_file_by_age_and_by_size)
{
    const uint64_t ms = 1000000;
    proto_log_writer_t *writer = open_writer(0, 0);
    proto_log_record_t record;
    proto_status_t end = STATUS_OK;
    make_record(1, content, 100, &record);
    ck_assert_int_eq(proto_log_append(writer, &record, 5 * ms), STATUS_OK);
    ck_assert_int_eq(proto_log_writer_poll(writer, 14 * ms), STATUS_OK);
    ck_assert_uint_eq(check_records(first_path, 1, 100, &end), 1);
    ck_assert_int_eq(proto_log_writer_poll(writer, 15 * ms), STATUS_OK);
    ck_assert_uint_eq(check_records(first_path, 1, 100, &end), 2);
    for (uint64_t sequence = 2; sequence < 1000; sequence++) {
        make_record(sequence, content, 100, &record);
        ck_assert_int_eq(proto_log_append(writer, &record, 15 * ms), STATUS_OK);
    }
    ck_assert_uint_gt(check_records(first_path, 1, 100, &end), 500);
    ck_assert_int_eq(proto_log_writer_sync(writer), STATUS_OK);
    ck_assert_uint_eq(check_records(first_path, 1, 100, &end), 1000);
    proto_log_writer_close(&writer);
}
END_TEST

/* `show -f`: a reader at the end sees what comes later. */
START_TEST(a_reader_follows_a_growing_file)
{
    proto_log_writer_t *writer = open_writer(0, 0);
    proto_log_record_t record;
    proto_log_record_t got;
    proto_log_reader_t *reader = NULL;
    for (uint64_t sequence = 1; sequence < 200; sequence++) {
        make_record(sequence, content, 500, &record);
        ck_assert_int_eq(proto_log_append(writer, &record, 0), STATUS_OK);
        ck_assert_int_eq(proto_log_writer_flush(writer), STATUS_OK);
        if (reader == NULL) {
            ck_assert_int_eq(proto_log_reader_open(first_path, &reader, NULL), STATUS_OK);
        }
        ck_assert_int_eq(proto_log_reader_next(reader, &got), STATUS_OK);
        check_same(&got, &record);
        ck_assert_int_eq(proto_log_reader_next(reader, &got), STATUS_END);
    }
    proto_log_reader_close(&reader);
    proto_log_writer_close(&writer);
}
END_TEST

/* A full disk: the file stays readable, nothing blocks, and the gap is in the log. */
START_TEST(a_full_disk_loses_records_and_says_how_many)
{
    (void)signal(SIGXFSZ, SIG_IGN);
    struct rlimit before;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    proto_log_writer_t *writer = open_writer(0, 0);
    write_records(writer, 10, 100);
    ck_assert_int_eq(proto_log_writer_flush(writer), STATUS_OK);
    proto_log_counts_t counts;
    proto_log_writer_counts(writer, &counts);
    rlim_t size_now =
        (rlim_t)(counts.bytes + (_i % 2 == 0 ? 0u : 64u)); /* with or without room for a DROP */
    struct rlimit small = {size_now, before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    proto_log_record_t record;
    for (uint64_t sequence = 11; sequence <= 30; sequence++) {
        make_record(sequence, content, 100, &record);
        ck_assert_int_eq(proto_log_append(writer, &record, sequence), STATUS_OK);
    }
    ck_assert_int_eq(proto_log_writer_flush(writer), STATUS_ERR_IO);
    make_record(31, content, 100000, &record); /* past the buffer */
    record.part_count = 2;
    ck_assert_int_eq(proto_log_append(writer, &record, 31), STATUS_ERR_IO);
    proto_log_writer_counts(writer, &counts);
    ck_assert_uint_eq(counts.dropped, 21);
    ck_assert_int_eq(counts.last_errno, EFBIG);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    make_record(32, content, 100, &record);
    ck_assert_int_eq(proto_log_append(writer, &record, 32), STATUS_OK);
    proto_log_writer_close(&writer);

    proto_log_reader_t *reader = NULL;
    proto_log_record_t got;
    ck_assert_int_eq(proto_log_reader_open(first_path, &reader, NULL), STATUS_OK);
    for (uint64_t sequence = 1; sequence <= 10; sequence++) {
        ck_assert_int_eq(proto_log_reader_next(reader, &got), STATUS_OK);
        ck_assert_uint_eq(got.sequence, sequence);
    }
    uint64_t dropped_sum = 0;
    while (proto_log_reader_next(reader, &got) == STATUS_OK && got.kind == PROTO_LOG_DROP) {
        uint64_t dropped = 0;
        ck_assert_uint_eq(got.parts[0].size_bytes, sizeof dropped);
        memcpy(&dropped, got.parts[0].data, sizeof dropped);
        dropped_sum += dropped;
    }
    ck_assert_uint_eq(dropped_sum, 21);
    ck_assert_uint_eq(got.sequence, 32);
    ck_assert_int_eq(proto_log_reader_next(reader, &got), STATUS_END);
    proto_log_reader_close(&reader);
}
END_TEST

static size_t
read_file(const char *path, uint8_t *out, size_t capacity_bytes)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t size_bytes = fread(out, 1, capacity_bytes, file);
    ck_assert_uint_lt(size_bytes, capacity_bytes);
    (void)fclose(file);
    return size_bytes;
}

static void
write_file(const char *path, const uint8_t *data, size_t size_bytes)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size_bytes, file), size_bytes);
    (void)fclose(file);
}

/* A recorder killed within a write leaves any prefix of the file: all whole records of the prefix
 * are read, and the rest is a torn tail. */
START_TEST(a_file_cut_at_any_byte_gives_its_whole_records)
{
    static uint8_t file[1 << 16];
    char cut_path[PATH_SIZE + 64];
    (void)snprintf(cut_path, sizeof cut_path, "%s/cut.alog", directory);
    proto_log_writer_t *writer = open_writer(0, 0);
    write_records(writer, 12, 90);
    proto_log_writer_close(&writer);
    size_t size_bytes = read_file(first_path, file, sizeof file);
    uint64_t last = 1;
    for (size_t size = 0; size < PROTO_LOG_HEADER_SIZE_BYTES; size += 273) {
        proto_log_reader_t *reader = NULL;
        write_file(cut_path, file, size);
        ck_assert_int_eq(proto_log_reader_open(cut_path, &reader, NULL), STATUS_ERR_MALFORMED);
    }
    for (size_t size = PROTO_LOG_HEADER_SIZE_BYTES; size <= size_bytes; size++) {
        write_file(cut_path, file, size);
        proto_status_t end = STATUS_OK;
        uint64_t next = check_records(cut_path, 1, 90, &end);
        ck_assert_uint_ge(next, last);
        ck_assert_uint_le(next, last + 1);
        ck_assert_int_eq(end, next > last || size == PROTO_LOG_HEADER_SIZE_BYTES ? STATUS_END
                                                                                 : STATUS_AGAIN);
        last = next;
    }
    ck_assert_uint_eq(last, 13);
}
END_TEST

/* Any flipped bit after the header is seen: what is read before it is right, and nothing after. */
START_TEST(a_flipped_bit_ends_the_reading)
{
    static uint8_t file[1 << 16];
    char bad_path[PATH_SIZE + 64];
    (void)snprintf(bad_path, sizeof bad_path, "%s/bad.alog", directory);
    proto_log_writer_t *writer = open_writer(0, 0);
    write_records(writer, 12, 90);
    proto_log_writer_close(&writer);
    size_t size_bytes = read_file(first_path, file, sizeof file);
    maker_t *maker = maker_new(maker_seed("log flips"), 0);
    for (int round = 0; round < 800; round++) {
        size_t at = maker_random(maker) % size_bytes;
        uint8_t bit = (uint8_t)(1u << maker_random(maker) % 8);
        file[at] ^= bit;
        write_file(bad_path, file, size_bytes);
        file[at] ^= bit;
        proto_log_reader_t *reader = NULL;
        proto_error_t error = {""};
        if (at < PROTO_LOG_HEADER_SIZE_BYTES) {
            ck_assert_int_eq(proto_log_reader_open(bad_path, &reader, &error),
                             STATUS_ERR_MALFORMED);
            ck_assert_uint_gt(strlen(error.detail), 0);
            continue;
        }
        proto_status_t end = STATUS_OK;
        ck_assert_uint_lt(check_records(bad_path, 1, 90, &end), 13);
        ck_assert(end == STATUS_ERR_MALFORMED || end == STATUS_AGAIN);
    }
    free(maker);
}
END_TEST

START_TEST(what_is_no_segment_is_refused_with_a_reason)
{
    proto_log_reader_t *reader = NULL;
    proto_error_t error = {""};
    ck_assert_int_eq(proto_log_reader_open("/nonexistent/x.alog", &reader, &error), STATUS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.detail, "/nonexistent/x.alog"));
    ck_assert_int_eq(proto_log_reader_open("/dev/zero", &reader, &error), STATUS_ERR_IO);
    ck_assert_int_eq(proto_log_reader_open(directory, &reader, &error), STATUS_ERR_IO);
    memset(content, 'x', 5000);
    write_file(first_path, content, 5000);
    ck_assert_int_eq(proto_log_reader_open(first_path, &reader, &error), STATUS_ERR_MALFORMED);
    ck_assert_ptr_null(reader);
}
END_TEST

START_TEST(a_name_that_would_leave_the_directory_is_refused)
{
    proto_log_writer_t *writer = NULL;
    proto_log_options_t options = {.directory = directory, .name = "../evil"};
    ck_assert_int_eq(proto_log_writer_open(&options, &writer), STATUS_ERR_INVALID);
    options.name = "";
    ck_assert_int_eq(proto_log_writer_open(&options, &writer), STATUS_ERR_INVALID);
    options.name = "good-1";
    options.directory = "/nonexistent";
    ck_assert_int_eq(proto_log_writer_open(&options, &writer), STATUS_ERR_IO);
}
END_TEST

/* A kill at any moment costs what was not flushed and nothing else. */
START_TEST(a_killed_writer_leaves_a_readable_file)
{
    maker_t *maker = maker_new(maker_seed("killed writer"), 0);
    for (int round = 0; round < 20; round++) {
        remove_files();
        int ends[2];
        ck_assert_int_eq(pipe(ends), 0);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            proto_log_writer_t *writer = open_writer(0, 0);
            for (uint64_t sequence = 1;; sequence++) {
                proto_log_record_t record;
                make_record(sequence, content, 3000, &record);
                if (proto_log_append(writer, &record, sequence) != STATUS_OK ||
                    write(ends[1], "x", 1) != 1) {
                    _exit(1);
                }
            }
        }
        (void)close(ends[1]);
        char byte;
        uint64_t wait_for = 1 + maker_random(maker) % 200;
        for (uint64_t seen = 0; seen < wait_for; seen++) {
            ck_assert_int_eq(read(ends[0], &byte, 1), 1);
        }
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        int status = 0;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(WTERMSIG(status), SIGKILL);
        (void)close(ends[0]);
        proto_status_t end = STATUS_OK;
        uint64_t next = check_records(first_path, 1, 3000, &end);
        ck_assert(end == STATUS_END || end == STATUS_AGAIN);
        ck_assert_uint_ge(next + 32, wait_for); /* 64 KiB of waiting records at most */
    }
    free(maker);
}
END_TEST

/* Known answers of CRC-32C (RFC 3720, B.4), and both ways of computing it agree. */
START_TEST(crc32c_gives_the_known_answers)
{
    uint8_t bytes[32];
    memset(bytes, 0, sizeof bytes);
    ck_assert_uint_eq(proto_crc32c(0, bytes, sizeof bytes), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    ck_assert_uint_eq(proto_crc32c(0, bytes, sizeof bytes), 0x62a8ab43u);
    for (size_t at = 0; at < sizeof bytes; at++) {
        bytes[at] = (uint8_t)at;
    }
    ck_assert_uint_eq(proto_crc32c(0, bytes, sizeof bytes), 0x46dd794eu);
    ck_assert_uint_eq(proto_crc32c(0, "123456789", 9), 0xe3069283u);
    maker_t *maker = maker_new(maker_seed("crc"), 0);
    for (int round = 0; round < 2000; round++) {
        size_t size_bytes = maker_random(maker) % 400;
        size_t split = maker_random(maker) % (size_bytes + 1);
        for (size_t at = 0; at < size_bytes; at++) {
            content[at] = (uint8_t)maker_random(maker);
        }
        uint32_t whole = proto_crc32c(0, content, size_bytes);
        ck_assert_uint_eq(proto_crc32c_portable(0, content, size_bytes), whole);
        uint32_t parts = proto_crc32c(0, content, split);
        ck_assert_uint_eq(proto_crc32c(parts, content + split, size_bytes - split), whole);
    }
    free(maker);
}
END_TEST

START_TEST(record_kinds_have_names)
{
    ck_assert_str_eq(proto_log_kind_name(PROTO_LOG_STATE_DIGEST), "STATE_DIGEST");
    ck_assert_str_eq(proto_log_kind_name((proto_log_kind_t)99), "UNKNOWN");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.log");
    TCase *tcase = tcase_create("log");
    tcase_set_timeout(tcase, 110);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, records_survive_a_round_trip);
    tcase_add_test(tcase, large_records_survive_a_round_trip);
    tcase_add_test(tcase, segments_roll_and_old_ones_go);
    tcase_add_test(tcase, a_second_writer_takes_the_next_name);
    tcase_add_test(tcase, records_reach_the_file_by_age_and_by_size);
    tcase_add_test(tcase, a_reader_follows_a_growing_file);
    tcase_add_loop_test(tcase, a_full_disk_loses_records_and_says_how_many, 0, 2);
    tcase_add_test(tcase, a_file_cut_at_any_byte_gives_its_whole_records);
    tcase_add_test(tcase, a_flipped_bit_ends_the_reading);
    tcase_add_test(tcase, what_is_no_segment_is_refused_with_a_reason);
    tcase_add_test(tcase, a_name_that_would_leave_the_directory_is_refused);
    tcase_add_test(tcase, a_killed_writer_leaves_a_readable_file);
    tcase_add_test(tcase, crc32c_gives_the_known_answers);
    tcase_add_test(tcase, record_kinds_have_names);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
