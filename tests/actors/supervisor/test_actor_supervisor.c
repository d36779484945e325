/* Real child processes: how a node begins, survives and ends. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_core.h"
#include "actor_crash.h"
#include "actor_log.h"
#include "actor_supervisor.h"
#include "proto_clock.h"
#include "proto_log.h"

enum { CHILD_COUNT_MAX = 4 };

static char directory[64];
static char run_dir[96];
static char crash_dir[96];
static char log_path[96];
static actor_supervisor_report_t report[CHILD_COUNT_MAX];

/* What the callbacks saw. */
static struct {
    uint32_t ready_count; /* calls of on_ready */
    pid_t pids[CHILD_COUNT_MAX][8];
    uint32_t pid_counts[CHILD_COUNT_MAX]; /* incarnations that got ready */
    const actor_supervisor_child_t *children;
    uint32_t child_count;
    int kill_first_with; /* signal for the first child when it gets ready for the first time */
    uint32_t stop_after; /* incarnations of the first child after which to stop; 0 = on_ready */
} seen;

static uint64_t
now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static void
setup(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/onepath-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(run_dir, sizeof run_dir, "%s/run", directory);
    (void)snprintf(crash_dir, sizeof crash_dir, "%s/crash", directory);
    (void)snprintf(log_path, sizeof log_path, "%s/log", directory);
    int fd = open(log_path, O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_gt(fd, 2);
    actor_log_options_t options = {.actor = "supervisor", .fd = fd};
    actor_log_configure(&options);
}

static void
teardown(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
}

static bool
process_exists(pid_t pid)
{
    return kill(pid, 0) == 0 || errno != ESRCH;
}

static void
on_ready(void *context)
{
    (void)context;
    seen.ready_count++;
    if (seen.stop_after == 0 && seen.kill_first_with == 0) {
        actor_supervisor_ask_stop();
    }
}

static void
on_state(void *context, const char *name, uint32_t state, const char *detail)
{
    (void)context;
    if (state != ACTOR_STATE_READY || strncmp(detail, "pid=", 4) != 0) {
        return;
    }
    for (uint32_t index = 0; index < seen.child_count; index++) {
        if (strcmp(seen.children[index].name, name) == 0) {
            ck_assert_uint_lt(seen.pid_counts[index], 8);
            seen.pids[index][seen.pid_counts[index]++] = (pid_t)atoi(detail + 4);
        }
    }
    bool others = true; /* everybody was ready once */
    for (uint32_t index = 0; index < seen.child_count; index++) {
        others = others && seen.pid_counts[index] > 0;
    }
    if (seen.stop_after != 0 && seen.pid_counts[0] == seen.stop_after && others) {
        actor_supervisor_ask_stop();
    }
    if (strcmp(name, seen.children[0].name) != 0) {
        return;
    }
    if (seen.kill_first_with != 0 && seen.pid_counts[0] == 1) {
        (void)kill(seen.pids[0][0], seen.kill_first_with);
    }
}

static actor_supervisor_options_t
make_options(const actor_supervisor_child_t *children, uint32_t count)
{
    seen.children = children;
    seen.child_count = count;
    return (actor_supervisor_options_t){.children = children,
                                        .child_count = count,
                                        .run_dir = run_dir,
                                        .crash_dir = crash_dir,
                                        .grace_ns = UINT64_C(5000000000),
                                        .ring_size_bytes = 1024 * 1024,
                                        .on_ready = on_ready,
                                        .on_state = on_state};
}

/* Whatever happened: no process and no file of the node is left. */
static void
check_nothing_left(void)
{
    for (uint32_t index = 0; index < seen.child_count; index++) {
        for (uint32_t number = 0; number < seen.pid_counts[index]; number++) {
            ck_assert(!process_exists(seen.pids[index][number]));
        }
        ck_assert(report[index].pid == 0 || !process_exists(report[index].pid));
    }
    ck_assert_int_ne(access(run_dir, F_OK), 0);
}

/* The line of the log with this event, parsed; NULL if there is none. */
static json_t *
find_event(const char *event)
{
    char line[65536];
    FILE *file = fopen(log_path, "r");
    ck_assert_ptr_nonnull(file);
    json_t *found = NULL;
    while (found == NULL && fgets(line, sizeof line, file) != NULL) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        const char *name = json_string_value(json_object_get(object, "event"));
        if (name != NULL && strcmp(name, event) == 0) {
            found = json_incref(object);
        }
        json_decref(object);
    }
    (void)fclose(file);
    return found;
}

static const char *const normal[] = {TEST_CHILD, "normal", NULL};
static const char *const busy[] = {TEST_CHILD, "busy", NULL};
static const char *const stuck[] = {TEST_CHILD, "stuck", NULL};
static const char *const aborts[] = {TEST_CHILD, "abort", NULL};
static const char *const silent[] = {TEST_CHILD, "silent", NULL};
static const char *const exit_3[] = {TEST_CHILD, "exit", "3", NULL};
static const char *const exit_75[] = {TEST_CHILD, "exit", "75", NULL};
static const char *const exit_78[] = {TEST_CHILD, "exit", "78", NULL};
static const char *const no_program[] = {"/nowhere/onepath", NULL};

/* Everybody gets ready, the caller is told once, and an asked end is a success. */
START_TEST(asked_end_is_a_success)
{
    actor_supervisor_child_t children[] = {
        {.name = "gateway", .role = PROTO_ROLE_GATEWAY, .argv = normal},
        {.name = "scheduler", .role = PROTO_ROLE_SCHEDULER, .argv = normal},
        {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR, .argv = normal, .has_ring = true}};
    actor_supervisor_options_t options = make_options(children, 3);
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    ck_assert_uint_eq(seen.ready_count, 1);
    for (uint32_t index = 0; index < 3; index++) {
        ck_assert_uint_eq(seen.pid_counts[index], 1);
        ck_assert_uint_eq(report[index].restart_count, 0);
        ck_assert_int_eq(report[index].pid, seen.pids[index][0]);
        ck_assert_uint_gt(report[index].stats.messages_out, 0);
        ck_assert_uint_gt(report[index].stats.resident_bytes, 0);
    }
    check_nothing_left();
    ck_assert_int_ne(access(crash_dir, F_OK), 0); /* an orderly end leaves no crash record */
}
END_TEST

static void
signal_on_ready(void *context)
{
    (void)context;
    seen.ready_count++;
    (void)kill(getpid(), SIGTERM);
}

/* SIGTERM asks for the end too, and does not kill the supervisor itself. */
START_TEST(sigterm_is_an_asked_end)
{
    actor_supervisor_child_t children[] = {{.name = "gateway", .argv = normal},
                                           {.name = "scheduler", .argv = normal}};
    actor_supervisor_options_t options = make_options(children, 2);
    options.on_ready = signal_on_ready;
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    ck_assert_uint_eq(seen.ready_count, 1);
    check_nothing_left();
}
END_TEST

/* A killed child comes back with a higher epoch; its last messages are kept. */
START_TEST(killed_child_comes_back)
{
    actor_supervisor_child_t children[] = {
        {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR, .argv = normal, .has_ring = true},
        {.name = "scheduler", .role = PROTO_ROLE_SCHEDULER, .argv = normal}};
    actor_supervisor_options_t options = make_options(children, 2);
    seen.kill_first_with = SIGKILL;
    seen.stop_after = 2;
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    ck_assert_uint_eq(seen.pid_counts[0], 2);
    ck_assert_uint_eq(seen.pid_counts[1], 1);
    ck_assert_uint_eq(report[0].restart_count, 1);
    check_nothing_left();

    json_t *line = find_event("supervisor.ended");
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "signal")), SIGKILL);
    json_decref(line);
    line = find_event("supervisor.crash_record");
    ck_assert_ptr_nonnull(line);
    const char *path = json_string_value(json_object_get(line, "path"));
    proto_log_reader_t *reader = NULL;
    ck_assert_int_eq(proto_log_reader_open(path, &reader, NULL), STATUS_OK);
    ck_assert_str_eq(proto_log_reader_header(reader)->name, "executor-0");
    proto_log_record_t record;
    ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_OK);
    ck_assert_int_eq(record.kind, PROTO_LOG_CLOCK);
    proto_log_reader_close(&reader);
    json_decref(line);
}
END_TEST

/* A child that keeps dying ends the node, which says which child it was and its last words. */
START_TEST(restarts_run_out)
{
    actor_supervisor_child_t children[] = {{.name = "scheduler", .argv = normal},
                                           {.name = "executor-0", .argv = exit_3}};
    actor_supervisor_options_t options = make_options(children, 2);
    options.restart_count_max = 2;
    ck_assert_int_eq(actor_supervisor_run(&options, report), 70);
    ck_assert_uint_eq(seen.ready_count, 0);
    ck_assert_uint_eq(report[1].restart_count, 2);
    check_nothing_left();

    json_t *line = find_event("supervisor.escalation");
    ck_assert_ptr_nonnull(line);
    ck_assert_str_eq(json_string_value(json_object_get(line, "child")), "executor-0");
    ck_assert_int_eq(json_integer_value(json_object_get(line, "exit_code")), 3);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "restarts")), 2);
    json_t *lines = json_object_get(line, "last_lines");
    ck_assert_uint_eq(json_array_size(lines), 2);
    ck_assert_str_eq(json_string_value(json_array_get(lines, 0)), "the last words of a child");
    ck_assert_str_eq(json_string_value(json_array_get(lines, 1)), "with a \"quote\"");
    json_decref(line);
}
END_TEST

/* An abort is no ordinary exit: it is counted and reported as the signal that it is. */
START_TEST(aborts_are_reported_with_their_signal)
{
    actor_supervisor_child_t children[] = {
        {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR, .argv = aborts, .has_ring = true}};
    actor_supervisor_options_t options = make_options(children, 1);
    options.on_ready = NULL;
    options.restart_count_max = 1;
    ck_assert_int_eq(actor_supervisor_run(&options, report), 70);
    json_t *line = find_event("supervisor.escalation");
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "signal")), SIGABRT);
    const char *path = json_string_value(json_object_get(line, "crash_record"));
    proto_log_reader_t *reader = NULL;
    ck_assert_int_eq(proto_log_reader_open(path, &reader, NULL), STATUS_OK);
    uint32_t timers = 0;
    proto_log_record_t record;
    while (proto_log_reader_next(reader, &record) == STATUS_OK) {
        timers += record.kind == PROTO_LOG_TIMER ? 1 : 0;
    }
    ck_assert_uint_gt(timers, 10);
    proto_log_reader_close(&reader);
    json_decref(line);
    check_nothing_left();
}
END_TEST

/* A wrong setting does not get better by trying again; the code says what to do. */
START_TEST(bad_configuration_is_passed_on)
{
    actor_supervisor_child_t children[] = {
        {.name = "scheduler", .argv = normal},
        {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR, .argv = exit_78, .has_ring = true}};
    actor_supervisor_options_t options = make_options(children, 2);
    ck_assert_int_eq(actor_supervisor_run(&options, report), 78);
    ck_assert_int_ne(access(crash_dir, F_OK), 0); /* it told why: no crash record */
    ck_assert_uint_eq(report[1].restart_count, 0);
    check_nothing_left();
}
END_TEST

START_TEST(busy_port_at_the_start_is_passed_on)
{
    actor_supervisor_child_t children[] = {{.name = "gateway", .argv = exit_75},
                                           {.name = "scheduler", .argv = normal}};
    actor_supervisor_options_t options = make_options(children, 2);
    ck_assert_int_eq(actor_supervisor_run(&options, report), 75);
    ck_assert_uint_eq(report[0].restart_count, 0);
    check_nothing_left();
}
END_TEST

START_TEST(missing_program_is_bad_configuration)
{
    actor_supervisor_child_t children[] = {{.name = "gateway", .argv = no_program}};
    actor_supervisor_options_t options = make_options(children, 1);
    ck_assert_int_eq(actor_supervisor_run(&options, report), 78);
    check_nothing_left();
}
END_TEST

/* A run folder that others can enter is refused, and not touched. */
START_TEST(open_run_dir_is_refused)
{
    ck_assert_int_eq(mkdir(run_dir, 0755), 0);
    actor_supervisor_child_t children[] = {{.name = "gateway", .argv = normal}};
    actor_supervisor_options_t options = make_options(children, 1);
    ck_assert_int_eq(actor_supervisor_run(&options, report), 78);
    ck_assert_int_eq(access(run_dir, F_OK), 0);
}
END_TEST

/* A child that does not end within its grace is killed; the end was asked for all the same. */
START_TEST(grace_ends_a_busy_child)
{
    actor_supervisor_child_t children[] = {{.name = "executor-0", .argv = busy}};
    actor_supervisor_options_t options = make_options(children, 1);
    options.grace_ns = 300000000;
    uint64_t begin_ns = now_ns();
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    ck_assert_uint_lt(now_ns() - begin_ns, UINT64_C(4000000000));
    check_nothing_left();
}
END_TEST

static void
signal_twice(void *context)
{
    (void)context;
    pid_t pid = fork();
    if (pid == 0) {
        (void)kill(getppid(), SIGINT);
        (void)poll(NULL, 0, 100);
        (void)kill(getppid(), SIGINT);
        _exit(0);
    }
}

/* Whoever asks twice does not want to wait. */
START_TEST(second_signal_does_not_wait)
{
    actor_supervisor_child_t children[] = {{.name = "executor-0", .argv = busy},
                                           {.name = "scheduler", .argv = busy}};
    actor_supervisor_options_t options = make_options(children, 2);
    options.grace_ns = UINT64_C(60000000000);
    options.on_ready = signal_twice;
    uint64_t begin_ns = now_ns();
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    ck_assert_uint_lt(now_ns() - begin_ns, UINT64_C(5000000000));
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    check_nothing_left();
}
END_TEST

/* A worker that says that its step runs beyond its budget is killed and started again. */
START_TEST(stuck_child_is_killed)
{
    actor_supervisor_child_t children[] = {
        {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR, .argv = stuck}};
    actor_supervisor_options_t options = make_options(children, 1);
    seen.stop_after = 2;
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    ck_assert_uint_eq(report[0].restart_count, 1);
    json_t *line = find_event("supervisor.killed");
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "step")), 42);
    json_decref(line);
    check_nothing_left();
}
END_TEST

static void
do_nothing(void *context)
{
    (void)context;
    seen.ready_count++;
}

/* An optional child that cannot live does not take the node with it. */
START_TEST(optional_child_is_given_up)
{
    actor_supervisor_child_t children[] = {{.name = "scheduler", .argv = normal},
                                           {.name = "recorder", .argv = exit_3, .optional = true}};
    actor_supervisor_options_t options = make_options(children, 2);
    options.restart_count_max = 1;
    options.on_ready = do_nothing;
    pid_t self = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        json_t *line = NULL;
        for (int count = 0; line == NULL && count < 500; count++) {
            (void)poll(NULL, 0, 10);
            line = find_event("supervisor.given_up");
        }
        (void)kill(self, SIGTERM);
        _exit(line != NULL ? 0 : 1);
    }
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(seen.ready_count, 1);
    check_nothing_left();
}
END_TEST

/* A child that never links can still be ended. */
START_TEST(unlinked_child_is_ended_by_signal)
{
    actor_supervisor_child_t children[] = {{.name = "scheduler", .argv = silent}};
    actor_supervisor_options_t options = make_options(children, 1);
    pid_t self = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        (void)poll(NULL, 0, 200);
        (void)kill(self, SIGTERM);
        _exit(0);
    }
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    check_nothing_left();
}
END_TEST

static void
tell_pid(void *context, const char *name, uint32_t state, const char *detail)
{
    int fd = *(const int *)context;
    (void)name;
    if (state == ACTOR_STATE_READY) {
        pid_t pid = (pid_t)atoi(detail + 4);
        ck_assert_int_eq(write(fd, &pid, sizeof pid), sizeof pid);
    }
}

/* When the supervisor itself is killed, nobody stays behind. */
START_TEST(children_end_with_their_supervisor)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid_t supervisor = fork();
    ck_assert_int_ge(supervisor, 0);
    if (supervisor == 0) {
        actor_supervisor_child_t children[] = {{.name = "scheduler", .argv = normal},
                                               {.name = "executor-0", .argv = busy}};
        actor_supervisor_options_t options = make_options(children, 2);
        options.on_ready = NULL;
        options.on_state = tell_pid;
        options.context = &fds[1];
        _exit(actor_supervisor_run(&options, NULL));
    }
    pid_t pids[2];
    for (uint32_t index = 0; index < 2; index++) {
        ck_assert_int_eq(read(fds[0], &pids[index], sizeof pids[index]), sizeof pids[index]);
        ck_assert(process_exists(pids[index]));
    }
    ck_assert_int_eq(kill(supervisor, SIGKILL), 0);
    ck_assert_int_eq(waitpid(supervisor, NULL, 0), supervisor);
    uint64_t until_ns = now_ns() + UINT64_C(3000000000);
    while (process_exists(pids[0]) || process_exists(pids[1])) {
        ck_assert_uint_lt(now_ns(), until_ns);
        (void)poll(NULL, 0, 1);
        /* Orphans go to whoever adopts them; in a container without an init that may be us. */
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}
END_TEST

/* With a recorder and a folder, what a child was given is in the folder after the end. */
START_TEST(recorder_writes_what_the_rings_hold)
{
    char log_dir[96];
    (void)snprintf(log_dir, sizeof log_dir, "%s/record", directory);
    const char *const recorder[] = {TEST_CHILD, "recorder", "--log-dir", log_dir, NULL};
    actor_supervisor_child_t children[] = {
        {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR, .argv = normal, .has_ring = true},
        {.name = "recorder", .role = PROTO_ROLE_RECORDER, .argv = recorder, .is_recorder = true}};
    actor_supervisor_options_t options = make_options(children, 2);
    ck_assert_int_eq(actor_supervisor_run(&options, report), 0);
    struct stat info;
    ck_assert_int_eq(stat(log_dir, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
    DIR *folder = opendir(log_dir);
    ck_assert_ptr_nonnull(folder);
    uint32_t drains = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", log_dir, entry->d_name);
        proto_log_reader_t *reader = NULL;
        if (entry->d_name[0] == '.' || proto_log_reader_open(path, &reader, NULL) != STATUS_OK) {
            continue;
        }
        ck_assert_int_eq(stat(path, &info), 0);
        ck_assert_uint_eq(info.st_mode & 0777, 0600);
        proto_log_record_t record;
        while (proto_log_reader_next(reader, &record) == STATUS_OK) {
            proto_header_t header = {.version = 0};
            if (record.kind == PROTO_LOG_IN) {
                ck_assert_int_eq(proto_header_decode(record.parts[0], &header), STATUS_OK);
                drains += header.kind == PROTO_KIND_DRAIN ? 1 : 0;
            }
        }
        proto_log_reader_close(&reader);
    }
    (void)closedir(folder);
    ck_assert_uint_eq(drains, 1); /* the very last input of the executor is there */
    check_nothing_left();
}
END_TEST

/* Records of nodes long gone must not fill the disk; nothing else in the folder is touched. */
START_TEST(old_crash_records_are_removed)
{
    char path[256];
    ck_assert_int_eq(mkdir(crash_dir, 0700), 0);
    for (int i = 0; i < 6; i++) {
        static const char *const endings[] = {"alog", "aidx"};
        for (int k = 0; k < 2; k++) {
            (void)snprintf(path, sizeof path, "%s/x.%d.%s", crash_dir, i, endings[k]);
            int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
            ck_assert_int_ge(fd, 0);
            /* The higher the number the older. */
            const struct timespec times[2] = {{1000 - i, 0}, {1000 - i, 0}};
            ck_assert_int_eq(futimens(fd, times), 0);
            ck_assert_int_eq(close(fd), 0);
        }
    }
    (void)snprintf(path, sizeof path, "%s/notes.txt", crash_dir);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const struct timespec ancient[2] = {{1, 0}, {1, 0}};
    ck_assert_int_eq(futimens(fd, ancient), 0);
    ck_assert_int_eq(close(fd), 0);
    actor_crash_prune(crash_dir, 4);
    ck_assert_int_eq(access(path, F_OK), 0);
    for (int i = 0; i < 6; i++) {
        (void)snprintf(path, sizeof path, "%s/x.%d.alog", crash_dir, i);
        ck_assert_int_eq(access(path, F_OK), i < 4 ? 0 : -1);
        (void)snprintf(path, sizeof path, "%s/x.%d.aidx", crash_dir, i);
        ck_assert_int_eq(access(path, F_OK), i < 4 ? 0 : -1);
    }
    actor_crash_prune("/nowhere", 4);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.supervisor");
    TCase *test = tcase_create("processes");
    tcase_set_timeout(test, 30);
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, asked_end_is_a_success);
    tcase_add_test(test, sigterm_is_an_asked_end);
    tcase_add_test(test, killed_child_comes_back);
    tcase_add_test(test, restarts_run_out);
    tcase_add_test(test, aborts_are_reported_with_their_signal);
    tcase_add_test(test, bad_configuration_is_passed_on);
    tcase_add_test(test, old_crash_records_are_removed);
    tcase_add_test(test, busy_port_at_the_start_is_passed_on);
    tcase_add_test(test, missing_program_is_bad_configuration);
    tcase_add_test(test, open_run_dir_is_refused);
    tcase_add_test(test, grace_ends_a_busy_child);
    tcase_add_test(test, second_signal_does_not_wait);
    tcase_add_test(test, stuck_child_is_killed);
    tcase_add_test(test, optional_child_is_given_up);
    tcase_add_test(test, unlinked_child_is_ended_by_signal);
    tcase_add_test(test, children_end_with_their_supervisor);
    tcase_add_test(test, recorder_writes_what_the_rings_hold);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
