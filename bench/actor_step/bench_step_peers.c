#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <zmq.h>

#include "actor_executor.h"
#include "actor_log.h"
#include "actor_scheduler_core.h"
#include "actor_shell.h"
#include "bench_actor_step.h"

enum { BARE_SIZE = 64, FDS_MAX = 64 };

void
pin(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        die("cannot pin a process");
    }
}

/* The child of a fork: pinned, quiet, and gone with its parent. */
static pid_t
fork_child(int cpu, const char *name)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        die("cannot fork");
    }
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(cpu);
        const actor_log_options_t log = {.actor = name, .level_min = ACTOR_LOG_WARN};
        actor_log_configure(&log);
    }
    return pid;
}

/* ---- executor -------------------------------------------------------------------------------- */

static void
on_executor_input(void *context, const actor_input_t *input, uint64_t duration_ns)
{
    shared_t *shared = context;
    if (input->header->kind == PROTO_KIND_PLAN) {
        step_record_t *record = &shared->steps[input->body->plan.step % STEP_RING];
        record->executor_ns = (uint32_t)duration_ns;
        record->executor_begin_ns = now_ns() - duration_ns;
    } else if (input->header->kind == PROTO_KIND_STEP_DONE) {
        step_record_t *record = &shared->steps[input->body->step_done.step % STEP_RING];
        record->executor_ns += (uint32_t)duration_ns;
        record->executor_end_ns = now_ns();
    }
}

pid_t
start_executor(const node_t *node, shared_t *shared)
{
    pid_t pid = fork_child(node->executor_cpu, "executor");
    if (pid > 0) {
        return pid;
    }
    keys_use(node, "executor");
    actor_executor_options_t options = {.scheduler_endpoint = node->executor_endpoint,
                                        .ring_fd = -1,
                                        .stop = &shared->stop,
                                        .null_device = true,
                                        .null = {.slot_count = BATCH_MAX,
                                                 .model_len_max = 512,
                                                 .step_tokens_max = 16384,
                                                 .no_overlap = !node->overlap,
                                                 .is_inline = !node->device_thread},
                                        .on_input = on_executor_input,
                                        .on_input_context = shared};
    _exit(actor_executor_run(&options));
}

/* ---- scheduler: the shell and core of the actor, with a clock around the core ---------------- */

typedef struct {
    actor_scheduler_core_t *core;
    const actor_core_ops_t *core_ops;
    shared_t *shared;
} scheduler_t;

static void
note_plan(shared_t *shared, const actor_emission_t *emission)
{
    proto_body_t body;
    if (proto_body_decode(PROTO_KIND_PLAN, emission->body, emission->blob, &body, NULL) !=
        STATUS_OK) {
        die("the scheduler's plan does not decode");
    }
    step_record_t *record = &shared->steps[body.plan.step % STEP_RING];
    record->decode_rows = body.plan.decode_slots.count;
    record->extend_rows = body.plan.extend_slots.count;
    record->plan_bytes = (uint32_t)(emission->body.size_bytes + emission->blob.size_bytes);
    record->is_full = body.plan.base_step == 0;
    record->result_begin_ns = 0;
    atomic_store_explicit(&shared->step_last, body.plan.step, memory_order_relaxed);
    bool counts = record->extend_rows == 0 && record->decode_rows == atomic_load(&shared->batch);
    atomic_store(&shared->is_window, counts);
    if (counts) {
        (void)atomic_fetch_add(&shared->full_step_count, 1);
    }
    record->plan_end_ns = now_ns();
}

static void
on_scheduler_step(void *context, const actor_input_t *input, actor_outbox_t *outbox)
{
    scheduler_t *self = context;
    uint64_t begin_ns = now_ns();
    self->core_ops->step(self->core, input, outbox);
    uint64_t end_ns = now_ns();
    if (input->header->kind == PROTO_KIND_STEP_RESULT) {
        step_record_t *record = &self->shared->steps[input->body->step_result.step % STEP_RING];
        record->result_begin_ns = begin_ns;
        record->scheduler_ns = (uint32_t)(end_ns - begin_ns);
    }
    for (uint32_t i = 0; i < actor_outbox_count(outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, i);
        if (emission->kind == PROTO_KIND_PLAN) {
            note_plan(self->shared, emission);
        }
    }
}

static uint64_t
on_deadline(const void *context)
{
    const scheduler_t *self = context;
    return self->core_ops->deadline_ns(self->core);
}

static uint64_t
on_digest(const void *context)
{
    const scheduler_t *self = context;
    return self->core_ops->digest(self->core);
}

static void
on_stats(const void *context, proto_stats_t *out)
{
    const scheduler_t *self = context;
    self->core_ops->stats(self->core, out);
}

static void
on_check(const void *context)
{
    const scheduler_t *self = context;
    self->core_ops->check(self->core);
}

static void
on_local(void *context, const actor_emission_t *emission)
{
    (void)context;
    proto_body_t body;
    if (emission->kind == PROTO_KIND_NAK &&
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL) ==
            STATUS_OK) {
        (void)fprintf(stderr, "scheduler: %.*s\n", (int)body.nak.detail.size_bytes,
                      body.nak.detail.data);
    }
}

pid_t
start_scheduler(const node_t *node, shared_t *shared)
{
    pid_t pid = fork_child(node->scheduler_cpu, "scheduler");
    if (pid > 0) {
        return pid;
    }
    keys_use(node, "scheduler");
    scheduler_t self = {.shared = shared};
    const actor_scheduler_core_options_t limits = {.queue_len_max = 2 * BATCH_MAX,
                                                   .no_overlap = !node->overlap,
                                                   .full_plans = node->full_plans};
    if (actor_scheduler_core_new(&limits, &self.core) != STATUS_OK) {
        die("cannot make the scheduler's core");
    }
    self.core_ops = actor_scheduler_core_ops(self.core);
    actor_core_ops_t ops = *self.core_ops;
    ops.step = on_scheduler_step;
    ops.deadline_ns = on_deadline;
    ops.digest = on_digest;
    ops.stats = on_stats;
    ops.check = on_check;
    ops.progress = NULL;
    ops.idle = NULL;
    const actor_link_options_t links[2] = {
        {.peer_role = PROTO_ROLE_GATEWAY, .endpoint = node->gateway_endpoint, .bind = true},
        {.peer_role = PROTO_ROLE_EXECUTOR, .endpoint = node->executor_endpoint, .bind = true},
    };
    const actor_shell_options_t options = {.name = "scheduler",
                                           .epoch = now_ns(),
                                           .ops = &ops,
                                           .core = &self,
                                           .links = links,
                                           .link_count = 2,
                                           .ring_fd = -1,
                                           /* A process that a tracer holds is not dead. */
                                           .heartbeat_ns = 1000000000u,
                                           .local = on_local,
                                           .stop = &shared->stop};
    actor_shell_t *shell = NULL;
    if (actor_shell_new(&options, &shell) != STATUS_OK) {
        die("cannot open the scheduler's shell");
    }
    if (actor_shell_run(shell) != STATUS_OK) {
        die("the scheduler's shell failed");
    }
    actor_shell_destroy(&shell, 0);
    _exit(0);
}

/* ---- the yardstick --------------------------------------------------------------------------- */

/* The same socket options as the shell's where they matter for speed: none do. */
static void *
bare_socket(int type, void **context_p)
{
    int linger = 0;
    *context_p = zmq_ctx_new();
    void *socket = *context_p == NULL ? NULL : zmq_socket(*context_p, type);
    if (socket == NULL || zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) != 0) {
        die("cannot make a bare socket");
    }
    return socket;
}

pid_t
start_bare_server(const node_t *node, shared_t *shared)
{
    pid_t pid = fork_child(node->executor_cpu, "bare");
    if (pid > 0) {
        return pid;
    }
    void *context = NULL;
    void *socket = bare_socket(ZMQ_ROUTER, &context);
    int timeout_ms = 200;
    uint8_t id[256];
    uint8_t bytes[BARE_SIZE];
    if (zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms) != 0 ||
        zmq_bind(socket, node->bare_endpoint) != 0) {
        die("cannot bind the bare socket");
    }
    while (atomic_load(&shared->stop) == 0) {
        int id_size = zmq_recv(socket, id, sizeof id, 0);
        if (id_size < 0) {
            continue;
        }
        int size = zmq_recv(socket, bytes, sizeof bytes, 0);
        if (size != BARE_SIZE || zmq_send(socket, id, (size_t)id_size, ZMQ_SNDMORE) < 0 ||
            zmq_send(socket, bytes, sizeof bytes, 0) < 0) {
            die("the bare server failed");
        }
    }
    _exit(0);
}

pid_t
start_bare_client(const node_t *node, shared_t *shared, int commands, int answers)
{
    pid_t pid = fork_child(node->scheduler_cpu, "bare");
    if (pid > 0) {
        return pid;
    }
    void *context = NULL;
    void *socket = bare_socket(ZMQ_DEALER, &context);
    uint8_t bytes[BARE_SIZE] = {0};
    uint32_t count = 0;
    if (zmq_connect(socket, node->bare_endpoint) != 0) {
        die("cannot connect the bare socket");
    }
    while (read(commands, &count, sizeof count) == (ssize_t)sizeof count) {
        for (uint32_t i = 0; i < count && i < BARE_MAX; i++) {
            uint64_t begin_ns = now_ns();
            if (zmq_send(socket, bytes, sizeof bytes, 0) != BARE_SIZE ||
                zmq_recv(socket, bytes, sizeof bytes, 0) != BARE_SIZE) {
                die("the bare client failed");
            }
            shared->bare_ns[i] = (uint32_t)(now_ns() - begin_ns);
        }
        if (write(answers, &count, sizeof count) != (ssize_t)sizeof count) {
            break;
        }
    }
    _exit(0);
}
