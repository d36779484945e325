/* The recorder as a process of its own, with a ring that the test writes. */
#include <check.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor_recorder.h"
#include "actor_recorder_tap.h"
#include "proto_clock.h"
#include "proto_log.h"
#include "proto_ring.h"

static char directory[64];
static char log_dir[96];
static int ring_fd;
static proto_ring_writer_t *ring;
static atomic_int stop;

static void
on_term(int signal_number)
{
    (void)signal_number;
    atomic_store(&stop, 1);
}

static void
setup(void)
{
    proto_ring_owner_t owner = {.name = "scheduler", .role = PROTO_ROLE_SCHEDULER, .epoch = 11};
    (void)snprintf(directory, sizeof directory, "/tmp/onepath-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(log_dir, sizeof log_dir, "%s/log", directory);
    ck_assert_int_eq(proto_ring_create(&owner, PROTO_RING_SIZE_MIN, &ring_fd), STATUS_OK);
    ck_assert_int_eq(proto_ring_writer_open(ring_fd, &ring), STATUS_OK);
}

static void
teardown(void)
{
    proto_ring_writer_close(&ring);
    (void)close(ring_fd);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
}

/* Another ring in place of the small one of setup(). */
static void
remake_ring(size_t size_bytes, bool is_strict)
{
    proto_ring_owner_t owner = {.name = "scheduler",
                                .role = PROTO_ROLE_SCHEDULER,
                                .epoch = 11,
                                .is_strict = is_strict ? 1 : 0};
    proto_ring_writer_close(&ring);
    (void)close(ring_fd);
    ck_assert_int_eq(proto_ring_create(&owner, size_bytes, &ring_fd), STATUS_OK);
    ck_assert_int_eq(proto_ring_writer_open(ring_fd, &ring), STATUS_OK);
}

/* Its log lines go to error_fd if that is not 0. */
static int error_fd;

static pid_t
start(const char *folder)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGXFSZ, SIG_IGN);
        if (error_fd != 0) {
            (void)dup2(error_fd, STDERR_FILENO);
        }
        (void)signal(SIGTERM, on_term);
        actor_recorder_ring_t rings[] = {{"scheduler", ring_fd}};
        actor_recorder_options_t options = {.name = "recorder",
                                            .epoch = 1,
                                            .rings = rings,
                                            .ring_count = 1,
                                            .log_dir = folder,
                                            .stop = &stop};
        _exit(actor_recorder_run(&options));
    }
    return pid;
}

static int
end(pid_t pid)
{
    int status = 0;
    (void)kill(pid, SIGTERM);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void
append(uint64_t number)
{
    uint8_t bytes[200];
    memset(bytes, (int)(number & 0xff), sizeof bytes);
    memcpy(bytes, &number, sizeof number);
    proto_log_record_t record = {.kind = PROTO_LOG_NOTE,
                                 .time_ns = number,
                                 .part_count = 1,
                                 .parts = {{bytes, sizeof bytes}}};
    proto_ring_append(ring, &record);
}

typedef struct {
    uint64_t notes;
    uint64_t dropped; /* what DROP records say */
    uint64_t last;    /* number of the last note */
    uint64_t faults;
    bool in_order;
    uint32_t files;
    uint32_t unreadable;
} content_t;

/* All segments, in the order in which they were begun. */
static content_t
read_folder(void)
{
    content_t content = {.in_order = true};
    struct dirent **entries = NULL;
    int count = scandir(log_dir, &entries, NULL, alphasort);
    for (int index = 0; index < count; index++) {
        char path[512];
        proto_log_reader_t *reader = NULL;
        (void)snprintf(path, sizeof path, "%s/%s", log_dir, entries[index]->d_name);
        bool is_segment = strstr(entries[index]->d_name, ".alog") != NULL;
        free(entries[index]);
        if (!is_segment || proto_log_reader_open(path, &reader, NULL) != STATUS_OK) {
            /* A recorder that was killed while it made the file leaves less than its header. */
            content.unreadable += is_segment ? 1 : 0;
            continue;
        }
        content.files++;
        ck_assert_str_eq(proto_log_reader_header(reader)->name, "scheduler");
        ck_assert_uint_eq(proto_log_reader_header(reader)->epoch, 11);
        proto_log_record_t record;
        proto_status_t status;
        while ((status = proto_log_reader_next(reader, &record)) == STATUS_OK) {
            uint64_t number = 0;
            if (record.kind == PROTO_LOG_FAULT) {
                content.faults++;
                continue;
            }
            ck_assert_uint_ge(record.part_count, 1);
            memcpy(&number, record.parts[0].data, sizeof number);
            if (record.kind == PROTO_LOG_DROP) {
                content.dropped += number;
                content.last += number;
            } else {
                content.in_order = content.in_order && number == content.last + 1;
                content.last = number;
                content.notes++;
            }
        }
        ck_assert_int_ne(status, STATUS_ERR_MALFORMED);
        proto_log_reader_close(&reader);
    }
    free(entries);
    return content;
}

/* Waits until the folder holds `count` notes. */
static void
wait_for_notes(uint64_t count)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t until_ns = proto_clock_monotonic_ns(clock) + UINT64_C(5000000000);
    while (read_folder().notes < count) {
        ck_assert_uint_lt(proto_clock_monotonic_ns(clock), until_ns);
        (void)poll(NULL, 0, 2);
    }
}

/* Everything that goes through the ring is in the folder, in order, without waiting for the end;
 * the folder and its files are for their owner only. */
START_TEST(everything_is_written)
{
    pid_t pid = start(log_dir);
    for (uint64_t number = 1; number <= 2000; number++) {
        append(number);
        if (number % 100 == 0) {
            wait_for_notes(number);
        }
    }
    ck_assert_int_eq(end(pid), 0);
    content_t content = read_folder();
    ck_assert_uint_eq(content.notes, 2000);
    ck_assert_uint_eq(content.dropped, 0);
    ck_assert(content.in_order);
    struct stat info;
    ck_assert_int_eq(stat(log_dir, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
}
END_TEST

/* What comes just before the end is written by the last look. */
START_TEST(the_last_records_are_written)
{
    pid_t pid = start(log_dir);
    append(1);
    wait_for_notes(1);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    for (uint64_t number = 2; number <= 100; number++) {
        append(number);
    }
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    ck_assert_int_eq(end(pid), 0);
    ck_assert_uint_eq(read_folder().notes, 100);
}
END_TEST

/* A recorder that stood still for longer than a ring says how many records are missing. */
START_TEST(overwritten_records_are_counted)
{
    pid_t pid = start(log_dir);
    append(1);
    wait_for_notes(1);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    for (uint64_t number = 2; number <= 5000; number++) {
        append(number);
    }
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    ck_assert_int_eq(end(pid), 0);
    content_t content = read_folder();
    ck_assert_uint_gt(content.dropped, 4000);
    ck_assert_uint_eq(content.notes + content.dropped, 5000);
    ck_assert(content.in_order);
    ck_assert_uint_eq(content.last, 5000);
}
END_TEST

/* A killed recorder leaves a readable log, and its successor goes on. */
START_TEST(a_killed_recorder_leaves_a_readable_log)
{
    pid_t pid = start(log_dir);
    for (uint64_t number = 1; number <= 100; number++) {
        append(number);
    }
    wait_for_notes(100);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    content_t content = read_folder();
    ck_assert_uint_eq(content.notes, 100);
    ck_assert(content.in_order);
    pid = start(log_dir);
    append(101);
    wait_for_notes(101); /* the ring still holds the first hundred: they do not come twice */
    ck_assert_int_eq(end(pid), 0);
    content = read_folder();
    ck_assert_uint_eq(content.notes, 101);
    ck_assert_uint_eq(content.dropped, 0);
    ck_assert(content.in_order);
    ck_assert_uint_ge(content.files, 2);
}
END_TEST

static uint64_t
now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* Number of the last record in the newest segment, without a look at all the others. */
static uint64_t
newest_number(void)
{
    struct dirent **entries = NULL;
    uint64_t number = 0;
    int count = scandir(log_dir, &entries, NULL, alphasort);
    for (int index = count - 1; index >= 0; index--) {
        char path[512];
        proto_log_reader_t *reader = NULL;
        proto_log_record_t record;
        (void)snprintf(path, sizeof path, "%s/%s", log_dir, entries[index]->d_name);
        if (number == 0 && strstr(path, ".alog") != NULL &&
            proto_log_reader_open(path, &reader, NULL) == STATUS_OK) {
            while (proto_log_reader_next(reader, &record) == STATUS_OK) {
                memcpy(&number, record.parts[0].data, sizeof number);
            }
            proto_log_reader_close(&reader);
        }
        free(entries[index]);
    }
    free(entries);
    return number;
}

static void
wait_for_number(uint64_t number)
{
    uint64_t until_ns = now_ns() + UINT64_C(20000000000);
    while (newest_number() < number) {
        ck_assert_uint_lt(now_ns(), until_ns);
        (void)poll(NULL, 0, 1);
    }
}

/* Lets a random time pass, with records coming, and kills the recorder; `rounds` times.  The ring
 * is large enough to hold what comes while nobody reads, so nothing at all may be missing: what a
 * killed one had not written, the next one finds in the ring. */
static void
kill_at_random(uint32_t rounds)
{
    remake_ring(4 * 1024 * 1024, false);
    uint64_t seed = now_ns();
    const char *given = getenv("ONEPATH_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : seed;
    printf("recorder kills: ONEPATH_SEED=%llu\n", (unsigned long long)seed);
    uint64_t number = 0;
    uint64_t seen = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        pid_t pid = start(log_dir);
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t until_ns = now_ns() + (seed >> 33) % 25000000;
        uint64_t appended = 0;
        while (now_ns() < until_ns) {
            if (appended < 2000 && now_ns() % 3 == 0) {
                append(++number);
                appended++;
            }
        }
        if (round % 4 == 3) { /* where others use the machine, it may not have run at all */
            wait_for_number(number);
        }
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        if (round % 100 == 99 || round + 1 == rounds) {
            content_t content = read_folder();
            ck_assert_uint_eq(content.unreadable, 0);
            ck_assert(content.in_order);
            ck_assert_uint_eq(content.dropped, 0);
            ck_assert_uint_ge(content.last, seen); /* what was in a file stays in it */
            seen = content.last;
        }
    }
    pid_t pid = start(log_dir);
    append(++number);
    wait_for_number(number);
    ck_assert_int_eq(end(pid), 0);
    content_t content = read_folder();
    ck_assert_uint_eq(content.notes, number);
    ck_assert_uint_eq(content.last, number);
    ck_assert_uint_eq(content.dropped, 0);
    ck_assert_uint_gt(number, rounds);
    ck_assert(content.in_order);
}

START_TEST(killed_at_random_points_nothing_is_lost_or_written_twice)
{
    kill_at_random(50);
}
END_TEST

START_TEST(killed_at_a_thousand_points)
{
    kill_at_random(1000);
}
END_TEST

/* Strict: a recorder that stands still again and again holds the actor up, and loses nothing. */
START_TEST(a_strict_ring_loses_nothing)
{
    remake_ring(PROTO_RING_SIZE_MIN, true);
    pid_t pid = start(log_dir);
    (void)fflush(NULL);
    pid_t pauser = fork();
    if (pauser == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            (void)kill(pid, SIGSTOP);
            (void)poll(NULL, 0, 30);
            (void)kill(pid, SIGCONT);
            (void)poll(NULL, 0, 10);
        }
    }
    for (uint64_t number = 1; number <= 20000; number++) { /* 80 rings */
        append(number);
    }
    ck_assert_int_eq(kill(pauser, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pauser, NULL, 0), pauser);
    (void)kill(pid, SIGCONT);
    ck_assert_int_eq(end(pid), 0);
    content_t content = read_folder();
    ck_assert_uint_eq(content.notes, 20000);
    ck_assert_uint_eq(content.dropped, 0);
    ck_assert(content.in_order);
    ck_assert_uint_eq(proto_ring_strict_count(ring), 0);
}
END_TEST

/* Waits for a word in the recorder's log lines. */
static void
wait_for_line(int fd, const char *word)
{
    static char text[65536];
    size_t size_bytes = 0;
    uint64_t until_ns = now_ns() + UINT64_C(10000000000);
    memset(text, 0, sizeof text);
    while (strstr(text, word) == NULL) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        ck_assert_msg(now_ns() < until_ns, "no line with %s", word);
        if (poll(&item, 1, 100) == 1) {
            ssize_t got = read(fd, text + size_bytes, sizeof text - 1 - size_bytes);
            ck_assert_int_gt(got, 0);
            size_bytes += (size_t)got;
        }
    }
}

/* A full disk: said, counted, and over when there is room again; the log is whole and tells how
 * many records are missing. */
START_TEST(a_full_disk_is_counted_and_heals)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    error_fd = ends[1];
    remake_ring(4 * 1024 * 1024, false);
    pid_t pid = start(log_dir);
    uint64_t number = 0;
    while (number < 100) {
        append(++number);
    }
    wait_for_notes(number);
    struct rlimit before;
    ck_assert_int_eq(prlimit(pid, RLIMIT_FSIZE, NULL, &before), 0);
    struct rlimit small = {40000, before.rlim_max};
    ck_assert_int_eq(prlimit(pid, RLIMIT_FSIZE, &small, NULL), 0);
    while (number < 1000) {
        append(++number);
    }
    wait_for_line(ends[0], "recorder.write");
    ck_assert_int_eq(prlimit(pid, RLIMIT_FSIZE, &before, NULL), 0);
    while (number < 1100) {
        append(++number);
    }
    wait_for_line(ends[0], "recorder.healed");
    ck_assert_int_eq(end(pid), 0);
    content_t content = read_folder();
    ck_assert_uint_gt(content.dropped, 0);
    ck_assert_uint_eq(content.notes + content.dropped, number);
    ck_assert_uint_eq(content.last, number);
    ck_assert(content.in_order);
    ck_assert_uint_eq(content.unreadable, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
    error_fd = 0;
}
END_TEST

/* An actor that runs alone: its own process writes the folder, and an end leaves nothing out. */
START_TEST(an_actor_alone_records_itself)
{
    actor_recorder_tap_options_t options = {.name = "scheduler",
                                            .role = PROTO_ROLE_SCHEDULER,
                                            .epoch = 11,
                                            .log_dir = log_dir,
                                            .ring_size_bytes = 4 * 1024 * 1024};
    actor_recorder_tap_t *tap = NULL;
    ck_assert_int_eq(actor_recorder_tap_open(&options, &tap), STATUS_OK);
    proto_ring_writer_close(&ring);
    ck_assert_int_eq(proto_ring_writer_open(actor_recorder_tap_ring_fd(tap), &ring), STATUS_OK);
    for (uint64_t number = 1; number <= 1000; number++) {
        append(number);
    }
    wait_for_notes(1000);
    for (uint64_t number = 1001; number <= 2000; number++) {
        append(number);
    }
    actor_recorder_tap_close(&tap);
    ck_assert_ptr_null(tap);
    content_t content = read_folder();
    ck_assert_uint_eq(content.notes, 2000);
    ck_assert(content.in_order);
    options.log_dir = "/nowhere/at/all";
    ck_assert_int_eq(actor_recorder_tap_open(&options, &tap), STATUS_ERR_CONFIG);
}
END_TEST

/* A FAULT record is on the disk before the next second: what follows it may be the end. */
START_TEST(a_fault_is_written_at_once)
{
    pid_t pid = start(log_dir);
    append(1);
    proto_log_record_t fault = {.kind = PROTO_LOG_FAULT, .time_ns = 2};
    proto_ring_append(ring, &fault);
    wait_for_notes(1);
    uint64_t until_ns = now_ns() + UINT64_C(5000000000);
    while (read_folder().faults == 0) {
        ck_assert_uint_lt(now_ns(), until_ns);
        (void)poll(NULL, 0, 2);
    }
    ck_assert_int_eq(end(pid), 0);
}
END_TEST

/* Prompts are in the log: a folder that others can enter is refused, as is one that cannot be. */
START_TEST(unsafe_folders_are_refused)
{
    int status = 0;
    ck_assert_int_eq(mkdir(log_dir, 0755), 0);
    pid_t pid = start(log_dir);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 78);
    pid = start("/nowhere/at/all");
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 78);
}
END_TEST

/* Without a folder nothing is written, and the ring keeps what it has. */
START_TEST(ring_mode_writes_nothing)
{
    pid_t pid = start(NULL);
    for (uint64_t number = 1; number <= 50; number++) {
        append(number);
    }
    (void)poll(NULL, 0, 50);
    ck_assert_int_eq(end(pid), 0);
    ck_assert_int_ne(access(log_dir, F_OK), 0);
    proto_ring_reader_t *reader = NULL;
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    proto_log_record_t record;
    uint64_t count = 0;
    while (proto_ring_reader_next(reader, &record) == STATUS_OK) {
        count++;
    }
    ck_assert_uint_eq(count, 50);
    proto_ring_reader_close(&reader);
}
END_TEST

static TCase *
usual_tests(void)
{
    TCase *test = tcase_create("recorder");
    tcase_set_timeout(test, 60);
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, everything_is_written);
    tcase_add_test(test, the_last_records_are_written);
    tcase_add_test(test, overwritten_records_are_counted);
    tcase_add_test(test, a_killed_recorder_leaves_a_readable_log);
    tcase_add_test(test, unsafe_folders_are_refused);
    tcase_add_test(test, ring_mode_writes_nothing);
    tcase_add_test(test, killed_at_random_points_nothing_is_lost_or_written_twice);
    tcase_add_test(test, a_strict_ring_loses_nothing);
    tcase_add_test(test, a_full_disk_is_counted_and_heals);
    tcase_add_test(test, an_actor_alone_records_itself);
    tcase_add_test(test, a_fault_is_written_at_once);
    return test;
}

static TCase *
slow_tests(void)
{
    TCase *test = tcase_create("slow");
    tcase_set_timeout(test, 500);
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, killed_at_a_thousand_points);
    return test;
}

int
main(void)
{
    Suite *suite = suite_create("actors.recorder");
    suite_add_tcase(suite, getenv("ONEPATH_SLOW") != NULL ? slow_tests() : usual_tests());
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
