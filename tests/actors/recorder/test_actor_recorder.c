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
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor_recorder.h"
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

static pid_t
start(const char *folder)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
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
    bool in_order;
    uint32_t files;
} content_t;

static content_t
read_folder(void)
{
    content_t content = {.in_order = true};
    DIR *folder = opendir(log_dir);
    for (struct dirent *entry = folder != NULL ? readdir(folder) : NULL; entry != NULL;
         entry = readdir(folder)) {
        char path[512];
        proto_log_reader_t *reader = NULL;
        (void)snprintf(path, sizeof path, "%s/%s", log_dir, entry->d_name);
        if (entry->d_name[0] == '.' || proto_log_reader_open(path, &reader, NULL) != STATUS_OK) {
            continue;
        }
        content.files++;
        ck_assert_str_eq(proto_log_reader_header(reader)->name, "scheduler");
        ck_assert_uint_eq(proto_log_reader_header(reader)->epoch, 11);
        proto_log_record_t record;
        while (proto_log_reader_next(reader, &record) == STATUS_OK) {
            uint64_t number = 0;
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
        proto_log_reader_close(&reader);
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
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

int
main(void)
{
    Suite *suite = suite_create("actors.recorder");
    TCase *test = tcase_create("recorder");
    tcase_set_timeout(test, 30);
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, everything_is_written);
    tcase_add_test(test, the_last_records_are_written);
    tcase_add_test(test, overwritten_records_are_counted);
    tcase_add_test(test, a_killed_recorder_leaves_a_readable_log);
    tcase_add_test(test, unsafe_folders_are_refused);
    tcase_add_test(test, ring_mode_writes_nothing);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
