/* Links, time, and which message goes to which part of the core. */
#include "actor_scheduler_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_scheduler_state.h"
#include "proto_require.h"

enum {
    SLOT_COUNT_DEFAULT = 1024,
    STORE_SIZE_DEFAULT_BYTES = 64 << 20,
};
static const uint64_t LOAD_INTERVAL_DEFAULT_NS = 250000000u;
/* How long a result may take is for the executor to say, in its own heartbeats: it knows the
 * device. A long step must not end the scheduler, so this only catches a result that never comes.
 */
static const uint64_t BUDGET_MIN_NS = 600000000000u;

/* ---- links and time -------------------------------------------------------------------------- */

static void
on_peer_up(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    if (up->peer == ACTOR_PEER_LOCAL || up->peer >= ACTOR_PEER_COUNT_MAX) {
        self->ignored_count++;
        return;
    }
    scheduler_peer_t *peer = &self->peers[up->peer];
    peer->role = (proto_role_t)up->role;
    peer->epoch = up->epoch;
    peer->incarnation = (peer->incarnation + 1) & 0xffffff;
    if (peer->role == PROTO_ROLE_KV_TRANSFER) {
        actor_scheduler_lose_kv_transfer(self, outbox); /* an older one has nothing in work */
        self->kv_transfer.index = up->peer;
    }
    if (actor_scheduler_may_submit(peer->role)) {
        actor_scheduler_tell_gateway(self, up->peer, outbox);
        self->load_digest = ~sched_core_digest(self->library); /* it has seen no LOAD yet */
    }
}

static void
on_peer_down(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_down_t *down = &input->body->peer_down;
    if (down->peer >= ACTOR_PEER_COUNT_MAX || self->peers[down->peer].role == PROTO_ROLE_NONE ||
        self->peers[down->peer].epoch != down->epoch) {
        self->ignored_count++;
        return;
    }
    proto_role_t role = self->peers[down->peer].role;
    if (actor_scheduler_may_submit(role)) {
        sched_event_t event = {.kind = SCHED_EVENT_OWNER_GONE,
                               .owner = actor_scheduler_owner(self, down->peer)};
        proto_status_t status = sched_core_advance(self->library, input->now_ns, &event, NULL);
        require(status == STATUS_OK);
        actor_scheduler_lose_role(self, event.owner, outbox);
    } else if (role == PROTO_ROLE_KV_TRANSFER && down->peer == self->kv_transfer.index) {
        actor_scheduler_lose_kv_transfer(self, outbox);
    } else if (actor_scheduler_is_executor(self, (actor_peer_t){down->peer})) {
        actor_scheduler_lose_executor(self, "worker_lost", outbox);
    } else if (role == PROTO_ROLE_EXECUTOR && self->refusal[0] != '\0') {
        self->refusal[0] = '\0'; /* it was not taken, and is gone */
        actor_scheduler_tell_gateways(self, outbox);
    }
    self->peers[down->peer].role = PROTO_ROLE_NONE;
}

static void
on_time(actor_scheduler_core_t *self, uint64_t now_ns)
{
    sched_event_t event = {.kind = SCHED_EVENT_TIME};
    proto_status_t status = sched_core_advance(self->library, now_ns, &event, NULL);
    require(status == STATUS_OK);
}

/* ---- the core interface ---------------------------------------------------------------------- */

static void
handle_local(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((int)input->header->kind) {
    case PROTO_KIND_PEER_UP:
        on_peer_up(self, input, outbox);
        break;
    case PROTO_KIND_PEER_DOWN:
        on_peer_down(self, input, outbox);
        break;
    case PROTO_KIND_TIMER:
        on_time(self, input->now_ns);
        break;
    case PROTO_KIND_DRAIN: {
        sched_event_t event = {.kind = SCHED_EVENT_DRAIN};
        proto_status_t status = sched_core_advance(self->library, input->now_ns, &event, NULL);
        require(status == STATUS_OK);
        break;
    }
    default:
        self->ignored_count++;
        break;
    }
}

static void
handle_peer(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    uint32_t peer = input->from.index;
    proto_role_t role = peer < ACTOR_PEER_COUNT_MAX ? self->peers[peer].role : PROTO_ROLE_NONE;
    int kind = (int)input->header->kind;
    bool is_role = role == PROTO_ROLE_PREFILL_ROLE || role == PROTO_ROLE_DECODE_ROLE;
    if (kind == PROTO_KIND_SUBMIT && actor_scheduler_may_submit(role)) {
        actor_scheduler_submit(self, input, outbox);
    } else if (kind == PROTO_KIND_FINISH && actor_scheduler_may_submit(role)) {
        actor_scheduler_finish(self, input);
    } else if (kind == PROTO_KIND_RESERVE && is_role) {
        actor_scheduler_reserve(self, input, outbox);
    } else if (kind == PROTO_KIND_ACTIVATE && is_role) {
        actor_scheduler_activate(self, input, outbox);
    } else if (kind == PROTO_KIND_RELEASE && is_role) {
        actor_scheduler_release(self, input, outbox);
    } else if (kind == PROTO_KIND_FENCED && role == PROTO_ROLE_KV_TRANSFER) {
        actor_scheduler_fenced(self, input, outbox);
    } else if (kind == PROTO_KIND_EXECUTOR_INFO && role == PROTO_ROLE_EXECUTOR) {
        actor_scheduler_executor_info(self, input, outbox);
    } else if (kind == PROTO_KIND_STEP_RESULT && role == PROTO_ROLE_EXECUTOR) {
        actor_scheduler_step_result(self, input, outbox);
    } else if (kind == PROTO_KIND_PLAN_REFUSED && role == PROTO_ROLE_EXECUTOR) {
        actor_scheduler_plan_refused(self, input, outbox);
    } else if (kind == PROTO_KIND_NAK) {
        actor_scheduler_nak(self, input, outbox);
    } else {
        self->ignored_count++;
    }
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_scheduler_core_t *self = core;
    proto_require_set_request(input->header->request);
    if (input->from.index == ACTOR_PEER_LOCAL) {
        handle_local(self, input, outbox);
    } else {
        handle_peer(self, input, outbox);
    }
    actor_scheduler_send_plans(self, input->now_ns, outbox);
    actor_scheduler_send_reserved(self, outbox);
    actor_scheduler_pass_finished(self, outbox);
    actor_scheduler_send_load(self, input->now_ns, outbox);
    proto_require_set_request(0);
}

static uint64_t
core_deadline_ns(const void *core)
{
    const actor_scheduler_core_t *self = core;
    if (self->has_more_finished || self->has_more_reserved) {
        return 0;
    }
    uint64_t deadline = sched_core_deadline_ns(self->library);
    if (self->load_is_due && self->load_next_ns < deadline) {
        deadline = self->load_next_ns;
    }
    return deadline;
}

static uint64_t
core_digest(const void *core)
{
    const actor_scheduler_core_t *self = core;
    uint64_t counts = self->finished_count << 32 ^ self->refused_count;
    return sched_core_digest(self->library) ^ counts * 0x9e3779b97f4a7c15u;
}

static void
core_stats(const void *core, proto_stats_t *out)
{
    const actor_scheduler_core_t *self = core;
    sched_figures_t figures;
    sched_core_figures(self->library, &figures);
    out->steps += figures.steps;
    out->prompt_tokens += figures.prompt_tokens;
    out->generation_tokens += figures.generation_tokens;
    out->graph_steps += figures.graph_steps;
    out->eager_steps += figures.eager_steps;
    out->busy_ns += self->stats.busy_ns;
    out->refused_in += self->ignored_count;
}

static void
core_progress(const void *core, uint64_t now_ns, proto_heartbeat_t *out)
{
    const actor_scheduler_core_t *self = core;
    uint64_t step;
    uint64_t planned_ns;
    uint64_t predicted_ns;
    if (!sched_core_step_in_work(self->library, &step, &planned_ns, &predicted_ns)) {
        return;
    }
    uint64_t budget = predicted_ns < UINT64_MAX / 20 ? 20 * predicted_ns : UINT64_MAX;
    out->step = step;
    out->step_age_ns = now_ns > planned_ns ? now_ns - planned_ns : 0;
    out->step_budget_ns = budget > BUDGET_MIN_NS ? budget : BUDGET_MIN_NS;
}

static void
core_check(const void *core)
{
    const actor_scheduler_core_t *self = core;
    sched_core_check(self->library);
    actor_scheduler_store_check(self->store);
}

static bool
core_idle(const void *core)
{
    const actor_scheduler_core_t *self = core;
    sched_figures_t figures;
    sched_core_figures(self->library, &figures);
    return figures.running_count == 0 && figures.waiting_count == 0 && !self->has_more_finished;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* The most that one input can make the core say, one named term for each kind of message. */
static size_t
outbox_size_bytes(const actor_scheduler_core_options_t *options)
{
    size_t slots = options->slot_count_max;
    size_t plans = options->no_overlap ? 1 : 2;
    size_t admitted_tokens = PROTO_TOKENS_MAX + SCHED_PLAN_ADMIT_TOKENS_MAX;
    size_t admits = plans * (admitted_tokens * sizeof(int32_t) +
                             (size_t)SCHED_PLAN_ADMISSIONS_MAX * (16384 + 512) +
                             admitted_tokens * PROTO_HASH_SIZE_BYTES / 4);
    size_t plan = plans * (SCHED_PLAN_SIZE_BYTES_MAX + 4096);
    size_t row = 8 + 4 + 1 + 1 + 16 * (4 + (PROTO_LOGPROBS_MAX + 1) * 8);
    size_t tokens = slots * row + ACTOR_PEER_COUNT_MAX * 1024;
    size_t finished = (size_t)(SCHEDULER_FINISHED_MAX + 1) * 1024;
    size_t infos = 2 * (size_t)ACTOR_PEER_COUNT_MAX * 3072;
    size_t loads = (size_t)ACTOR_PEER_COUNT_MAX * 512;
    size_t loans = options->loan_count_max;
    size_t fences = loans * 1024;
    /* A part names what its row was given; a reservation has a table. */
    size_t parts = loans == 0 ? 0 : plan + slots * 1024;
    size_t reserved = loans == 0 ? 0 : SCHEDULER_RESERVED_MAX * (SCHED_PLAN_SIZE_BYTES_MAX / 4);
    return admits + plan + tokens + finished + infos + loads + fences + parts + reserved + 65536;
}

static bool
allocate_rows(actor_scheduler_core_t *self)
{
    size_t rows = self->options.slot_count_max;
    size_t tokens = rows * 16;
    size_t logprobs = tokens * (PROTO_LOGPROBS_MAX + 1);
    scheduler_rows_t *out = &self->rows;
    out->requests = calloc(rows, sizeof *out->requests);
    out->token_indices = calloc(rows, sizeof *out->token_indices);
    out->token_counts = calloc(rows, sizeof *out->token_counts);
    out->logprob_widths = calloc(rows, sizeof *out->logprob_widths);
    out->tokens = calloc(tokens, sizeof *out->tokens);
    out->logprob_ids = calloc(logprobs, sizeof *out->logprob_ids);
    out->logprob_values = calloc(logprobs, sizeof *out->logprob_values);
    return out->requests != NULL && out->token_indices != NULL && out->token_counts != NULL &&
           out->logprob_widths != NULL && out->tokens != NULL && out->logprob_ids != NULL &&
           out->logprob_values != NULL;
}

static void
set_ops(actor_scheduler_core_t *self)
{
    self->ops = (actor_core_ops_t){
        .name = "scheduler",
        .role = PROTO_ROLE_SCHEDULER,
        .outbox_size_bytes = outbox_size_bytes(&self->options),
        .outbox_count_max = 2 * (SCHED_PLAN_ADMISSIONS_MAX + 1) + SCHEDULER_FINISHED_MAX +
                            5 * ACTOR_PEER_COUNT_MAX +
                            (self->options.loan_count_max > 0
                                 ? 2 * self->options.loan_count_max +
                                       2 * self->options.slot_count_max + SCHEDULER_RESERVED_MAX
                                 : 0),
        .step = core_step,
        .deadline_ns = core_deadline_ns,
        .digest = core_digest,
        .stats = core_stats,
        .progress = core_progress,
        .check = core_check,
        .idle = core_idle,
        .save = actor_scheduler_save,
    };
}

sched_core_options_t
actor_scheduler_library_options(const actor_scheduler_core_options_t *options)
{
    return (sched_core_options_t){
        .slot_count_max = options->slot_count_max,
        .queue_len_max = options->queue_len_max,
        .overlap_depth_max = options->no_overlap ? 0 : 1,
        .no_prefix_cache = options->no_prefix_cache,
        .full_plans = options->full_plans,
        .loan_count_max = options->loan_count_max,
        .queue_timeout_ns = options->queue_timeout_ns,
    };
}

proto_status_t
actor_scheduler_core_new(const actor_scheduler_core_options_t *options,
                         actor_scheduler_core_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_scheduler_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->options = *options;
    actor_scheduler_core_options_t *set = &self->options;
    set->slot_count_max = set->slot_count_max != 0 ? set->slot_count_max : SLOT_COUNT_DEFAULT;
    set->queue_len_max = set->queue_len_max != 0 ? set->queue_len_max : 1024;
    set->load_interval_ns =
        set->load_interval_ns != 0 ? set->load_interval_ns : LOAD_INTERVAL_DEFAULT_NS;
    set->store_size_bytes =
        set->store_size_bytes != 0 ? set->store_size_bytes : STORE_SIZE_DEFAULT_BYTES;
    self->executor.index = ACTOR_PEER_NONE;
    self->kv_transfer.index = ACTOR_PEER_NONE;
    sched_core_options_t library = actor_scheduler_library_options(set);
    status = sched_core_new(&library, &self->library);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    status = actor_scheduler_store_new(set->store_size_bytes, &self->store);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    status = STATUS_ERR_NO_MEMORY;
    if (!allocate_rows(self)) {
        goto err_destroy;
    }
    set_ops(self);
    self->load_digest = sched_core_digest(self->library);
    *out_p = self;
    return STATUS_OK;

err_destroy:
    actor_scheduler_core_destroy(&self);
    return status;
}

void
actor_scheduler_core_destroy(actor_scheduler_core_t **self_p)
{
    actor_scheduler_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->rows.requests);
    free(self->rows.token_indices);
    free(self->rows.token_counts);
    free(self->rows.logprob_widths);
    free(self->rows.tokens);
    free(self->rows.logprob_ids);
    free(self->rows.logprob_values);
    actor_scheduler_store_destroy(&self->store);
    sched_core_destroy(&self->library);
    free(self);
    *self_p = NULL;
}

const actor_core_ops_t *
actor_scheduler_core_ops(const actor_scheduler_core_t *self)
{
    return &self->ops;
}

const sched_core_t *
actor_scheduler_core_library(const actor_scheduler_core_t *self)
{
    return self->library;
}
