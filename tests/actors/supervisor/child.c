/* child.c - an actor of the supervisor's tests.  First argument: how it behaves. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_executor.h"
#include "actor_log.h"
#include "actor_recorder.h"
#include "actor_shell.h"
#include "proto_clock.h"

typedef struct {
    bool busy;  /* never idle: does not end when asked */
    bool stuck; /* says that its step takes too long */
    uint64_t deadline_ns;
    uint64_t timer_count;
} child_core_t;

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    child_core_t *self = core;
    (void)outbox;
    if (input->header->kind == PROTO_KIND_TIMER) {
        self->timer_count++;
        self->deadline_ns = input->now_ns + 1000000;
    }
}

static uint64_t
core_deadline(const void *core)
{
    return ((const child_core_t *)core)->deadline_ns;
}

static bool
core_idle(const void *core)
{
    return !((const child_core_t *)core)->busy;
}

static void
core_stats(const void *core, proto_stats_t *out)
{
    out->steps = ((const child_core_t *)core)->timer_count;
}

static void
core_progress(const void *core, uint64_t now_ns, proto_heartbeat_t *out)
{
    (void)now_ns;
    if (((const child_core_t *)core)->stuck) {
        out->step = 42;
        out->step_age_ns = 2000000;
        out->step_budget_ns = 1000000;
    }
}

static const actor_core_ops_t ops = {.name = "child",
                                     .role = PROTO_ROLE_EXECUTOR,
                                     .outbox_size_bytes = 1024,
                                     .outbox_count_max = 1,
                                     .step = core_step,
                                     .deadline_ns = core_deadline,
                                     .stats = core_stats,
                                     .progress = core_progress,
                                     .idle = core_idle};

static const char *
option(int argc, char **argv, const char *name)
{
    for (int index = 1; index + 1 < argc; index++) {
        if (strcmp(argv[index], name) == 0) {
            return argv[index + 1];
        }
    }
    return NULL;
}

static int
run_recorder(int argc, char **argv, uint64_t epoch)
{
    actor_recorder_ring_t rings[ACTOR_RECORDER_RING_COUNT_MAX];
    uint32_t count = 0;
    for (int index = 1; index + 1 < argc; index++) {
        char *equals = strchr(argv[index + 1], '=');
        if (strcmp(argv[index], "--ring") == 0 && equals != NULL) {
            *equals = '\0';
            rings[count++] = (actor_recorder_ring_t){argv[index + 1], atoi(equals + 1)};
        }
    }
    actor_recorder_options_t options = {.name = option(argc, argv, "--name"),
                                        .epoch = epoch,
                                        .supervisor_endpoint = option(argc, argv, "--supervisor"),
                                        .rings = rings,
                                        .ring_count = count,
                                        .log_dir = option(argc, argv, "--log-dir")};
    return actor_recorder_run(&options);
}

/* An executor with the null device; no scheduler is there. */
static int
run_null(int argc, char **argv, uint64_t epoch)
{
    actor_executor_options_t options = {.name = option(argc, argv, "--name"),
                                        .epoch = epoch,
                                        .scheduler_endpoint = option(argc, argv, "--scheduler-at"),
                                        .supervisor_endpoint = option(argc, argv, "--supervisor"),
                                        .ring_fd = -1,
                                        .null_device = true};
    return actor_executor_run(&options);
}

/* The scripted executor: a check stays pending until graphs go off; `show` tells of it. */
typedef struct {
    actor_shell_t *shell;
    uint64_t check; /* its number; 0 = none is pending */
} script_t;

static bool
is_verb(const proto_command_t *wish, const char *verb)
{
    return wish->verb.size_bytes == strlen(verb) &&
           memcmp(wish->verb.data, verb, wish->verb.size_bytes) == 0;
}

static void
on_command(void *context, uint64_t number, const proto_command_t *wish)
{
    script_t *self = context;
    if (is_verb(wish, "executor-check")) {
        self->check = number;
    } else if (is_verb(wish, "executor-show")) {
        actor_shell_answer(self->shell, number, STATUS_OK,
                           self->check != 0 ? "a check is pending" : "no check is pending");
    } else if (is_verb(wish, "executor-graphs")) {
        actor_shell_answer(self->shell, self->check, STATUS_ERR_REFUSED, "graphs went off");
        actor_shell_answer(self->shell, number, STATUS_OK, "graphs are off");
        self->check = 0;
    }
}

int
main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    sigset_t mask; /* the supervisor holds SIGTERM back until its child is ready for it */
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTERM);
    (void)sigprocmask(SIG_UNBLOCK, &mask, NULL);
    const char *epoch_text = option(argc, argv, "--epoch");
    const char *ring_text = option(argc, argv, "--ring-fd");
    uint64_t epoch = epoch_text != NULL ? strtoull(epoch_text, NULL, 10) : 1;
    actor_log_options_t log = {.actor = option(argc, argv, "--name"),
                               .epoch = epoch,
                               .level_min = ACTOR_LOG_INFO};
    actor_log_configure(&log);
    if (strcmp(mode, "exit") == 0) {
        (void)fprintf(stderr, "the last words of a child\nwith a \"quote\"\n");
        return atoi(argv[2]);
    }
    if (strcmp(mode, "silent") == 0) {
        for (;;) {
            (void)pause();
        }
    }
    if (strcmp(mode, "recorder") == 0) {
        return run_recorder(argc, argv, epoch);
    }
    if (strcmp(mode, "null") == 0) {
        return run_null(argc, argv, epoch);
    }
    script_t script = {.check = 0};
    child_core_t core = {.busy = strcmp(mode, "busy") == 0,
                         .stuck = strcmp(mode, "stuck") == 0,
                         .deadline_ns = 0};
    actor_shell_options_t options = {.name = option(argc, argv, "--name"),
                                     .epoch = epoch,
                                     .ops = &ops,
                                     .core = &core,
                                     .supervisor_endpoint = option(argc, argv, "--supervisor"),
                                     .command = strcmp(mode, "commands") == 0 ? on_command : NULL,
                                     .command_context = &script,
                                     .ring_fd = ring_text != NULL ? atoi(ring_text) : -1};
    actor_shell_t *shell = NULL;
    if (actor_shell_new(&options, &shell) != STATUS_OK) {
        return 70;
    }
    script.shell = shell;
    char detail[64];
    (void)snprintf(detail, sizeof detail, "pid=%d", (int)getpid());
    actor_shell_report(shell, ACTOR_STATE_LOADING, 50, 100, "half way");
    actor_shell_report(shell, ACTOR_STATE_READY, 100, 100, detail);
    if (strcmp(mode, "abort") == 0) {
        /* Works for a moment, so that there is something in its ring. */
        uint64_t until_ns = proto_clock_monotonic_ns(proto_clock_system()) + 150000000;
        while (proto_clock_monotonic_ns(proto_clock_system()) < until_ns) {
            uint64_t wait_ns = 0;
            if (actor_shell_service(shell, &wait_ns) != STATUS_OK) {
                break;
            }
        }
        (void)signal(SIGABRT, SIG_DFL);
        abort();
    }
    proto_status_t status = actor_shell_run(shell);
    actor_shell_destroy(&shell, 100000000);
    return status == STATUS_OK ? 0 : 70;
}
