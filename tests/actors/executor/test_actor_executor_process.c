/* The executor as a process of its own, with the null device, against a scheduler in this process:
 * answers, restarts of either side, hostile plans, exit codes. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_executor.h"
#include "actor_shell.h"
#include "proto_clock.h"

enum {
    PROMPT = 5,
    ANSWER = 20,
    PATIENCE_MS = 20000,
    VOCAB = 49152, /* of the null device */
};

/* A scheduler whose every message is written by the test. */
typedef struct {
    actor_core_ops_t ops;
    actor_shell_t *shell;
    uint32_t peer; /* the executor; ACTOR_PEER_NONE: none */
    uint32_t info_count;
    uint32_t down_count;
    uint32_t result_count;
    uint32_t refused_count;
    uint32_t rule;
    uint64_t result_step;
    int32_t tokens[64];
    uint32_t token_count;
    /* What the next TIMER sends. */
    proto_kind_t send_kind;
    uint64_t send_request;
    const proto_body_t *send_body;
} scheduler_t;

static char folder[64];
static char endpoint[96];
static scheduler_t scheduler;
static pid_t child;

static void
on_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    scheduler_t *self = core;
    const proto_body_t *body = input->body;
    switch ((int)input->header->kind) {
    case PROTO_KIND_PEER_UP:
        self->peer = body->peer_up.peer;
        break;
    case PROTO_KIND_PEER_DOWN:
        self->peer = ACTOR_PEER_NONE;
        self->down_count++;
        break;
    case PROTO_KIND_EXECUTOR_INFO:
        self->info_count++;
        break;
    case PROTO_KIND_STEP_RESULT:
        self->result_count++;
        self->result_step = body->step_result.step;
        for (uint32_t i = 0; i < body->step_result.tokens.count && self->token_count < 64; i++) {
            self->tokens[self->token_count++] = body->step_result.tokens.data[i];
        }
        break;
    case PROTO_KIND_PLAN_REFUSED:
        self->refused_count++;
        self->rule = body->plan_refused.rule;
        break;
    case PROTO_KIND_TIMER:
        if (self->peer != ACTOR_PEER_NONE) {
            actor_outbox_push(outbox, (actor_peer_t){self->peer}, self->send_kind,
                              self->send_request, self->send_body);
        }
        break;
    default:
        break;
    }
}

static uint64_t
on_deadline(const void *core)
{
    (void)core;
    return UINT64_MAX;
}

static uint64_t
on_digest(const void *core)
{
    (void)core;
    return 0;
}

static void
on_stats(const void *core, proto_stats_t *out)
{
    (void)core;
    (void)out;
}

static void
on_check(const void *core)
{
    (void)core;
}

static void
scheduler_open(uint64_t epoch)
{
    memset(&scheduler, 0, sizeof scheduler);
    scheduler.peer = ACTOR_PEER_NONE;
    scheduler.ops = (actor_core_ops_t){.name = "scheduler",
                                       .role = PROTO_ROLE_SCHEDULER,
                                       .outbox_size_bytes = 1 << 20,
                                       .outbox_count_max = 4,
                                       .step = on_step,
                                       .deadline_ns = on_deadline,
                                       .digest = on_digest,
                                       .stats = on_stats,
                                       .check = on_check};
    actor_link_options_t link = {.peer_role = PROTO_ROLE_EXECUTOR,
                                 .endpoint = endpoint,
                                 .bind = true};
    actor_shell_options_t options = {.name = "scheduler",
                                     .epoch = epoch,
                                     .ops = &scheduler.ops,
                                     .core = &scheduler,
                                     .links = &link,
                                     .link_count = 1,
                                     .ring_fd = -1};
    ck_assert_int_eq(actor_shell_new(&options, &scheduler.shell), STATUS_OK);
}

static void
pump(void)
{
    uint64_t wait_ns = 0;
    int fds[16];
    struct pollfd polls[16];
    ck_assert_int_eq(actor_shell_service(scheduler.shell, &wait_ns), STATUS_OK);
    if (wait_ns == 0) {
        return;
    }
    uint32_t count = actor_shell_fds(scheduler.shell, fds, 16);
    for (uint32_t i = 0; i < count; i++) {
        polls[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    (void)poll(polls, count, 5);
}

#define PUMP_UNTIL(condition)                                                                      \
    do {                                                                                           \
        uint64_t until_ns =                                                                        \
            proto_clock_monotonic_ns(proto_clock_system()) + (uint64_t)PATIENCE_MS * 1000000u;     \
        while (!(condition)) {                                                                     \
            ck_assert_msg(proto_clock_monotonic_ns(proto_clock_system()) < until_ns,               \
                          "not in time: %s", #condition);                                          \
            pump();                                                                                \
        }                                                                                          \
    } while (0)

static void
send(proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    proto_body_t timer = {.timer = {.deadline_ns = 0}};
    scheduler.send_kind = kind;
    scheduler.send_request = request;
    scheduler.send_body = body;
    actor_shell_inject(scheduler.shell, PROTO_KIND_TIMER, 0, &timer);
}

static atomic_int stop_flag;

static void
on_signal(int number)
{
    (void)number;
    atomic_store(&stop_flag, ACTOR_EXECUTOR_QUIT);
}

/* Before any socket of this process exists, or after all are closed: fork copies none. */
static pid_t
start_executor(uint64_t epoch, const char *model_path, uint64_t step_ns)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0) {
        return pid;
    }
    (void)signal(SIGTERM, on_signal);
    actor_executor_options_t options = {.name = "executor",
                                        .epoch = epoch,
                                        .scheduler_endpoint = endpoint,
                                        .ring_fd = -1,
                                        .stop = &stop_flag,
                                        .null_device = model_path == NULL,
                                        .null = {.slot_count = 8,
                                                 .model_len_max = 256,
                                                 .block_granularity = 16,
                                                 .step_ns = step_ns},
                                        .run = {.model_path = model_path}};
    _exit(actor_executor_run(&options));
}

static int
exit_code(pid_t pid)
{
    int status = 0;
    uint64_t until_ns = proto_clock_monotonic_ns(proto_clock_system()) + 20000000000u;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        ck_assert_uint_lt(proto_clock_monotonic_ns(proto_clock_system()), until_ns);
        (void)poll(NULL, 0, 2);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- what the scheduler says ----------------------------------------------------------------- */

static int32_t prompt[PROMPT] = {3, 1, 4, 1, 5};

static void
send_admit(uint32_t slot, uint64_t request)
{
    uint8_t bytes[512];
    size_t size = 0;
    size_t blob_size = 0;
    proto_body_t sampling = {.sampling = {.temperature = 1, .top_p = 1, .prompt_length = PROMPT}};
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &sampling, bytes, sizeof bytes, &size,
                                       NULL, 0, &blob_size),
                     STATUS_OK);
    proto_body_t body = {.admit = {.slot = slot,
                                   .prompt_length = PROMPT,
                                   .length_max = PROMPT + ANSWER,
                                   .tokens = {prompt, PROMPT},
                                   .sampling = {bytes, (uint32_t)size}}};
    send(PROTO_KIND_ADMIT, request, &body);
}

static void
send_plan(uint64_t step, uint64_t base_step, bool is_extend)
{
    static const uint32_t slot = 1;
    static const uint8_t group = 0;
    static const uint32_t column = 0;
    static const uint32_t count = 2;
    static const uint32_t blocks[2] = {1, 2};
    static const uint32_t begin = 0;
    static const uint32_t length = PROMPT;
    static const uint8_t samples = 1;
    uint32_t n = is_extend ? 1 : 0;
    proto_body_t body = {.plan = {.step = step,
                                  .base_step = base_step,
                                  .width = 1,
                                  .patch_slots = {&slot, n},
                                  .patch_groups = {&group, n},
                                  .patch_columns = {&column, n},
                                  .patch_counts = {&count, n},
                                  .patch_blocks = {blocks, 2 * n},
                                  .extend_slots = {&slot, n},
                                  .extend_begins = {&begin, n},
                                  .extend_lengths = {&length, n},
                                  .extend_samples = {&samples, n},
                                  .decode_slots = {&slot, 1 - n}}};
    send(PROTO_KIND_PLAN, 0, &body);
}

/* A whole answer, one step behind the other; its tokens are the null device's. */
static void
check_answer(uint64_t first_step)
{
    int32_t tokens[PROMPT + ANSWER];
    memcpy(tokens, prompt, sizeof prompt);
    scheduler.token_count = 0;
    uint32_t results = scheduler.result_count;
    send_admit(1, 77);
    for (uint32_t i = 0; i < ANSWER; i++) {
        uint64_t step = first_step + i;
        send_plan(step, i == 0 ? 0 : step - 1, i == 0);
        /* One plan waits behind the running one. */
        PUMP_UNTIL(scheduler.result_count + 1 >= results + i + 1);
    }
    PUMP_UNTIL(scheduler.result_count == results + ANSWER);
    ck_assert_uint_eq(scheduler.refused_count, 0);
    ck_assert_uint_eq(scheduler.token_count, ANSWER);
    for (uint32_t i = 0; i < ANSWER; i++) {
        tokens[PROMPT + i] = scheduler.tokens[i];
        ck_assert_int_eq(scheduler.tokens[i], actor_executor_null_token(tokens, PROMPT + i, VOCAB));
    }
}

START_TEST(an_answer_comes_through_processes)
{
    child = start_executor(1, NULL, 0);
    scheduler_open(10);
    PUMP_UNTIL(scheduler.info_count == 1);
    check_answer(1);
    ck_assert_int_eq(kill(child, SIGTERM), 0);
    ck_assert_int_eq(exit_code(child), 0);
    child = 0;
}
END_TEST

START_TEST(a_step_takes_its_time_and_overlaps)
{
    child = start_executor(1, NULL, 2000000);
    scheduler_open(10);
    PUMP_UNTIL(scheduler.info_count == 1);
    uint64_t begin_ns = proto_clock_monotonic_ns(proto_clock_system());
    check_answer(1);
    ck_assert_uint_ge(proto_clock_monotonic_ns(proto_clock_system()) - begin_ns,
                      (uint64_t)ANSWER * 2000000u);
}
END_TEST

/* The answer goes on from a new scheduler's point of view: nothing of the old one is left. */
START_TEST(a_new_scheduler_starts_clean)
{
    child = start_executor(1, NULL, 0);
    for (uint64_t epoch = 10; epoch < 13; epoch++) {
        scheduler_open(epoch);
        PUMP_UNTIL(scheduler.info_count == 1);
        send_plan(1, 0, false);
        PUMP_UNTIL(scheduler.refused_count == 1);
        ck_assert_uint_eq(scheduler.rule, PROTO_RULE_SLOT_EMPTY);
        scheduler.refused_count = 0;
        check_answer(1);
        actor_shell_destroy(&scheduler.shell, 100000000u);
    }
}
END_TEST

START_TEST(a_killed_executor_is_seen_and_replaced)
{
    child = start_executor(1, NULL, 50000000);
    pid_t next = start_executor(2, NULL, 0);
    ck_assert_int_eq(kill(next, SIGSTOP), 0);
    scheduler_open(10);
    PUMP_UNTIL(scheduler.info_count == 1);
    send_admit(1, 77);
    send_plan(1, 0, true);
    for (uint32_t i = 0; i < 3; i++) {
        pump();
    }
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(exit_code(child), 128 + SIGKILL);
    child = next;
    PUMP_UNTIL(scheduler.down_count == 1);
    ck_assert_int_eq(kill(next, SIGCONT), 0);
    PUMP_UNTIL(scheduler.info_count == 2);
    check_answer(1);
}
END_TEST

/* Plans that decode but make no sense are refused one by one; the process lives and serves. */
START_TEST(garbage_is_refused_and_costs_nothing)
{
    static uint32_t numbers[64];
    static uint8_t bytes[64];
    unsigned seed = (unsigned)proto_clock_realtime_ns(proto_clock_system());
    printf("seed %u\n", seed);
    srand(seed);
    child = start_executor(1, NULL, 0);
    scheduler_open(10);
    PUMP_UNTIL(scheduler.info_count == 1);
    for (uint32_t i = 0; i < 300; i++) {
        for (uint32_t k = 0; k < 64; k++) {
            numbers[k] = rand() % 4 == 0 ? (uint32_t)rand() % PROTO_ROWS_MAX : (uint32_t)rand() % 9;
            bytes[k] = (uint8_t)rand();
        }
        uint32_t rows = (uint32_t)rand() % 9;
        proto_body_t plan = {.plan = {.step = 1 + i,
                                      .base_step = i % 2,
                                      .width = (uint32_t)rand() % 3,
                                      .release_slots = {numbers, (uint32_t)rand() % 9},
                                      .patch_slots = {numbers, rows},
                                      .patch_groups = {bytes, rows},
                                      .patch_columns = {numbers + 7, rows},
                                      .patch_counts = {numbers + 9, rows},
                                      .patch_blocks = {numbers, (uint32_t)rand() % 64},
                                      .extend_slots = {numbers + 3, rows},
                                      .extend_begins = {numbers + 4, rows},
                                      .extend_lengths = {numbers + 5, rows},
                                      .extend_samples = {bytes, rows},
                                      .decode_slots = {numbers + 1, (uint32_t)rand() % 64}}};
        uint32_t before = scheduler.refused_count + scheduler.result_count;
        send(PROTO_KIND_PLAN, 0, &plan);
        PUMP_UNTIL(scheduler.refused_count + scheduler.result_count > before);
    }
    ck_assert_uint_gt(scheduler.refused_count, 200);
    /* Not for an executor: it gets a NAK, which this side's shell logs, and the link goes on. */
    proto_body_t finish = {.finish = {.token_index = 1, .reason = PROTO_FINISH_STOP}};
    send(PROTO_KIND_FINISH, 5, &finish);
    scheduler.refused_count = 0;
    proto_body_t reset = {.reset = {.detail = proto_text("test")}};
    send(PROTO_KIND_RESET, 0, &reset);
    check_answer(1);
}
END_TEST

START_TEST(exit_codes_say_what_went_wrong)
{
    ck_assert_int_eq(exit_code(start_executor(1, "/does/not/exist.gguf", 0)), 78);
    (void)snprintf(endpoint, sizeof endpoint, "nonsense");
    ck_assert_int_eq(exit_code(start_executor(1, NULL, 0)), 78);
}
END_TEST

static void
open_folder(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/onepath-executor-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(endpoint, sizeof endpoint, "ipc://%s/link", folder);
    child = 0;
}

static void
close_all(void)
{
    if (child > 0) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
    }
    if (scheduler.shell != NULL) {
        actor_shell_destroy(&scheduler.shell, 0);
    }
    char path[96];
    (void)snprintf(path, sizeof path, "%s/link", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

int
main(void)
{
    Suite *suite = suite_create("actors.executor_process");
    TCase *process = tcase_create("process");
    tcase_set_timeout(process, 60);
    tcase_add_checked_fixture(process, open_folder, close_all);
    tcase_add_test(process, an_answer_comes_through_processes);
    tcase_add_test(process, a_step_takes_its_time_and_overlaps);
    tcase_add_test(process, a_new_scheduler_starts_clean);
    tcase_add_test(process, a_killed_executor_is_seen_and_replaced);
    tcase_add_test(process, garbage_is_refused_and_costs_nothing);
    tcase_add_test(process, exit_codes_say_what_went_wrong);
    suite_add_tcase(suite, process);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
