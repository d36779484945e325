/* An operator's commands to a running node: real processes, real clients, a scripted executor
 * (child.c, "commands"), and a real one with the null device. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_command.h"
#include "actor_supervisor.h"
#include "proto_clock.h"

static char directory[64];
static char run_dir[96];

typedef struct {
    const char *verb;
    const char *argument;
    proto_status_t status;
    char answer[ACTOR_COMMAND_ANSWER_SIZE_BYTES];
} call_t;

static void *
call(void *context)
{
    call_t *self = context;
    const actor_command_t command = {.run_dir = run_dir,
                                     .verb = self->verb,
                                     .argument = self->argument,
                                     .timeout_ns = UINT64_C(25000000000)};
    self->status = actor_command_send(&command, self->answer);
    return NULL;
}

static call_t
call_now(const char *verb, const char *argument)
{
    call_t result = {.verb = verb, .argument = argument};
    (void)call(&result);
    return result;
}

/* What the operators' thread saw; looked at when the node has ended. */
static struct {
    pthread_t thread;
    call_t check;
    call_t attach;
    call_t second_check;
    call_t off;
    call_t show;
    bool was_pending;
} seen;

/* A check waits; meanwhile a move fails, a second check comes, and graphs go off. */
static void *
operate(void *context)
{
    (void)context;
    seen.check = (call_t){.verb = "executor-check", .argument = ""};
    pthread_t waiting;
    ck_assert_int_eq(pthread_create(&waiting, NULL, call, &seen.check), 0);
    uint64_t until_ns = proto_clock_monotonic_ns(proto_clock_system()) + UINT64_C(10000000000);
    while (!seen.was_pending && proto_clock_monotonic_ns(proto_clock_system()) < until_ns) {
        seen.show = call_now("executor-show", "");
        seen.was_pending = strcmp(seen.show.answer, "a check is pending") == 0;
    }
    seen.attach = call_now("scheduler-attach", "ipc:///nowhere/at/all");
    seen.second_check = call_now("executor-check", "");
    seen.off = call_now("executor-graphs", "off");
    (void)pthread_join(waiting, NULL);
    actor_supervisor_ask_stop();
    return NULL;
}

static void *
operate_null(void *context)
{
    (void)context;
    seen.check = call_now("executor-check", "");
    seen.off = call_now("executor-graphs", "off");
    seen.show = call_now("executor-show", "");
    actor_supervisor_ask_stop();
    return NULL;
}

static void
on_ready(void *context)
{
    void *(*operators)(void *) = *(void *(**)(void *))context;
    ck_assert_int_eq(pthread_create(&seen.thread, NULL, operators, NULL), 0);
}

static void
run_node(const char *mode, void *(*operators)(void *))
{
    const char *const argv[] = {TEST_CHILD, mode, NULL};
    char scheduler[128];
    (void)snprintf(scheduler, sizeof scheduler, "ipc://%s/scheduler-executor", run_dir);
    actor_supervisor_child_t children[] = {{.name = "executor-0",
                                            .role = PROTO_ROLE_EXECUTOR,
                                            .argv = argv,
                                            .scheduler_endpoint = scheduler}};
    actor_supervisor_options_t options = {.children = children,
                                          .child_count = 1,
                                          .run_dir = run_dir,
                                          .crash_dir = directory,
                                          .grace_ns = UINT64_C(5000000000),
                                          .on_ready = on_ready,
                                          .context = &operators};
    ck_assert_int_eq(actor_supervisor_run(&options, NULL), 0);
    ck_assert_int_eq(pthread_join(seen.thread, NULL), 0);
}

static void
setup(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/onepath-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(run_dir, sizeof run_dir, "%s/run", directory);
}

static void
teardown(void)
{
    char line[128];
    (void)snprintf(line, sizeof line, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(line), 0);
}

START_TEST(pending_check_holds_nobody_up_and_gets_its_own_answer)
{
    run_node("commands", operate);
    ck_assert(seen.was_pending);
    ck_assert_int_eq(seen.show.status, STATUS_OK);
    ck_assert_int_eq(seen.attach.status, STATUS_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(seen.attach.answer, "the scheduler at ipc:///nowhere/at/all"));
    ck_assert_int_eq(seen.second_check.status, STATUS_ERR_OVERLOADED);
    ck_assert_int_eq(seen.off.status, STATUS_OK);
    ck_assert_str_eq(seen.off.answer, "graphs are off");
    ck_assert_int_eq(seen.check.status, STATUS_ERR_REFUSED);
    ck_assert_str_eq(seen.check.answer, "graphs went off");
}
END_TEST

START_TEST(null_device_takes_no_wish)
{
    run_node("null", operate_null);
    const call_t *calls[] = {&seen.check, &seen.off, &seen.show};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        ck_assert_int_eq(calls[i]->status, STATUS_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(calls[i]->answer, "null device"));
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.supervisor_commands");
    TCase *test = tcase_create("commands");
    tcase_set_timeout(test, 50);
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, pending_check_holds_nobody_up_and_gets_its_own_answer);
    tcase_add_test(test, null_device_takes_no_wish);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
