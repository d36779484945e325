/* Long because it is every message of one actor, each handler short. */
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

/* ---- what gateways are told ------------------------------------------------------------------ */

static bool
is_gateway(const actor_scheduler_core_t *self, uint32_t peer)
{
    return peer < ACTOR_PEER_COUNT_MAX && self->peers[peer].role == PROTO_ROLE_GATEWAY;
}

/* The owner of a request is a peer and which of its incarnations. */
static uint32_t
owner_of(const actor_scheduler_core_t *self, uint32_t peer)
{
    return self->peers[peer].incarnation << 8 | peer;
}

static bool
owner_is_there(const actor_scheduler_core_t *self, uint32_t owner)
{
    uint32_t peer = owner & 255;
    return is_gateway(self, peer) && owner_of(self, peer) == owner;
}

static void
send_model_info(actor_scheduler_core_t *self, uint32_t peer, actor_outbox_t *outbox)
{
    proto_body_t body = {.model_info = {.queue_len_max = self->options.queue_len_max}};
    if (sched_core_is_attached(self->library)) {
        const proto_executor_info_t *info = &self->info;
        sched_figures_t figures;
        sched_core_figures(self->library, &figures);
        body.model_info.model_name = info->model_name;
        body.model_info.fingerprint = info->fingerprint;
        body.model_info.vocab_size = info->vocab_size;
        body.model_info.model_len_max = info->model_len_max;
        body.model_info.prompt_len_max = figures.prompt_length_max;
        body.model_info.slot_count = info->slot_count < self->options.slot_count_max
                                         ? info->slot_count
                                         : self->options.slot_count_max;
        body.model_info.prefix_granularity = info->prefix_granularity;
        body.model_info.token_capacity = figures.token_capacity;
        body.model_info.page_hash_key = info->page_hash_key;
    }
    actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_MODEL_INFO, 0, &body);
}

static void
tell_all_gateways(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (is_gateway(self, peer)) {
            send_model_info(self, peer, outbox);
        }
    }
}

static void
fill_load(const actor_scheduler_core_t *self, proto_load_t *load)
{
    sched_figures_t figures;
    sched_core_figures(self->library, &figures);
    *load = (proto_load_t){
        .running = figures.running_count,
        .waiting = figures.waiting_count,
        .blocks_total = figures.block_count,
        .blocks_free = figures.free_count,
        .blocks_cached = figures.cached_count,
        .prefix_queries = figures.prefix_queries,
        .prefix_hits = figures.prefix_hits,
        .preemptions = figures.retractions,
        .steps = figures.steps,
        .plans_refused = figures.plans_refused,
        .graph_steps = figures.graph_steps,
        .eager_steps = figures.eager_steps,
        .prompt_tokens = figures.prompt_tokens,
        .generation_tokens = figures.generation_tokens,
    };
}

/* At most one LOAD in an interval, and none when nothing happened. */
static void
send_load(actor_scheduler_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    uint64_t digest = sched_core_digest(self->library);
    self->load_is_due = digest != self->load_digest;
    if (!self->load_is_due || now_ns < self->load_next_ns) {
        return;
    }
    self->load_is_due = false;
    self->load_digest = digest;
    self->load_next_ns = now_ns + self->options.load_interval_ns;
    proto_body_t body = {0};
    fill_load(self, &body.load);
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (is_gateway(self, peer)) {
            actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_LOAD, 0, &body);
        }
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* The sentence that goes with a code. */
static void
describe_end(const sched_finished_t *end, char *out, size_t capacity_bytes)
{
    unsigned long long needed = end->needed;
    unsigned long long limit = end->limit;
    if (strcmp(end->code, "worker_lost") == 0) {
        (void)snprintf(out, capacity_bytes, "the executor was lost after %u tokens",
                       end->generated_count);
    } else if (strcmp(end->code, "nan_logits") == 0) {
        (void)snprintf(out, capacity_bytes, "the model's logits held a NaN at token %u",
                       end->generated_count);
    } else if (strcmp(end->code, "queue_timeout") == 0) {
        (void)snprintf(out, capacity_bytes,
                       "no slot within %.1f s; needed %llu blocks of %llu when last tried",
                       (double)end->queue_ns / 1e9, needed, limit);
    } else if (strcmp(end->code, "plan_refused") == 0) {
        (void)snprintf(out, capacity_bytes, "the executor refused its plans");
    } else if (strcmp(end->code, "stalled") == 0) {
        (void)snprintf(out, capacity_bytes,
                       "nothing could run: needed %llu blocks, %llu were available", needed, limit);
    } else {
        (void)snprintf(out, capacity_bytes, "%s", proto_status_text(end->status));
    }
}

static void
send_finished(actor_scheduler_core_t *self, const sched_finished_t *end, actor_outbox_t *outbox)
{
    char detail[256] = "";
    if (end->status != STATUS_OK) {
        describe_end(end, detail, sizeof detail);
    }
    proto_body_t body = {
        .finished =
            {
                .reason = end->reason,
                .prompt_tokens = end->prompt_count,
                .cached_tokens = end->cached_count,
                .generated_tokens = end->generated_count,
                .status = end->status,
                .code = proto_text(end->code),
                .detail = proto_text(detail),
                .retry_after_ms = end->retry_after_ms,
                .queue_ns = end->queue_ns,
            },
    };
    actor_outbox_push(outbox, (actor_peer_t){end->owner & 255}, PROTO_KIND_FINISHED, end->request,
                      &body);
    self->finished_count++;
}

/* Passes ends on; when there are many, the rest follows with a TIMER input of its own. */
static void
pass_finished(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    sched_finished_t end;
    uint32_t count = 0;
    self->has_more_finished = false;
    while (count < SCHEDULER_FINISHED_MAX) {
        if (!sched_core_take_finished(self->library, &end)) {
            return;
        }
        count++;
        if (!end.admitted && end.tag != 0) {
            actor_scheduler_store_drop(self->store, (actor_scheduler_parcel_t){(uint32_t)end.tag});
        }
        if (owner_is_there(self, end.owner)) {
            send_finished(self, &end, outbox);
        }
    }
    self->has_more_finished = true;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void
send_admissions(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    sched_admission_t admission;
    while (sched_core_take_admission(self->library, &admission)) {
        actor_scheduler_parcel_t parcel = {(uint32_t)admission.tag};
        actor_scheduler_content_t content = actor_scheduler_store_get(self->store, parcel);
        proto_body_t body = {
            .admit =
                {
                    .slot = admission.slot,
                    .prompt_length = admission.prompt_length,
                    .length_max = admission.length_max,
                    .tokens = content.tokens,
                    .sampling = content.sampling,
                    .page_hashes = content.page_hashes,
                },
        };
        actor_outbox_push(outbox, self->executor, PROTO_KIND_ADMIT, admission.request, &body);
        actor_scheduler_store_drop(self->store, parcel);
    }
}

static void
send_plans(actor_scheduler_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    proto_body_t body;
    while (sched_core_next_plan(self->library, now_ns, &body.plan) == STATUS_OK) {
        send_admissions(self, outbox);
        actor_outbox_push(outbox, self->executor, PROTO_KIND_PLAN, 0, &body);
        if (self->busy_since_ns == 0) {
            self->busy_since_ns = now_ns;
        }
    }
}

static void
count_busy(actor_scheduler_core_t *self, uint64_t now_ns)
{
    uint64_t step;
    uint64_t planned;
    uint64_t predicted;
    if (self->busy_since_ns == 0) {
        return;
    }
    self->stats.busy_ns += now_ns - self->busy_since_ns;
    bool runs = sched_core_step_in_work(self->library, &step, &planned, &predicted);
    self->busy_since_ns = runs ? now_ns : 0;
}

/* ---- the executor ---------------------------------------------------------------------------- */

static bool
is_executor(const actor_scheduler_core_t *self, actor_peer_t peer)
{
    return self->executor.index != ACTOR_PEER_NONE && peer.index == self->executor.index;
}

static void
lose_executor(actor_scheduler_core_t *self, const char *code, actor_outbox_t *outbox)
{
    sched_core_detach(self->library, STATUS_ERR_PEER_LOST, code);
    self->executor.index = ACTOR_PEER_NONE;
    self->busy_since_ns = 0;
    tell_all_gateways(self, outbox);
}

static proto_text_t
keep_text(proto_text_t text, char *room)
{
    uint32_t size = text.size_bytes < PROTO_TEXT_LEN_MAX ? text.size_bytes : PROTO_TEXT_LEN_MAX;
    if (size > 0) {
        memcpy(room, text.data, size);
    }
    return (proto_text_t){room, size};
}

static void
keep_info(actor_scheduler_core_t *self, const proto_executor_info_t *info)
{
    self->info = *info;
    self->info.model_name = keep_text(info->model_name, self->info_text[0]);
    self->info.fingerprint = keep_text(info->fingerprint, self->info_text[1]);
    proto_column_u32_t *columns[] = {&self->info.group_kinds, &self->info.group_granularities,
                                     &self->info.group_windows, &self->info.group_packings};
    for (uint32_t i = 0; i < 4; i++) {
        require(columns[i]->count <= PROTO_GROUPS_MAX);
        if (columns[i]->count > 0) {
            memcpy(self->info_columns[i], columns[i]->data, columns[i]->count * sizeof(uint32_t));
        }
        columns[i]->data = self->info_columns[i];
    }
    size_t size = info->page_hash_key.size_bytes;
    require(size <= sizeof self->page_hash_key);
    if (size > 0) {
        memcpy(self->page_hash_key, info->page_hash_key.data, size);
    }
    self->info.page_hash_key = (proto_bytes_t){self->page_hash_key, size};
}

static void
attach(actor_scheduler_core_t *self, actor_peer_t peer, const actor_input_t *input,
       actor_outbox_t *outbox)
{
    proto_error_t error = {{0}};
    proto_status_t status = sched_core_attach(self->library, &self->info, &error);
    if (status != STATUS_OK) {
        proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                     .kind = PROTO_KIND_EXECUTOR_INFO,
                                     .status = status,
                                     .detail = proto_text(error.detail)}};
        actor_outbox_push(outbox, peer, PROTO_KIND_NAK, 0, &body);
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
        return;
    }
    self->executor = peer;
    self->executor_epoch = self->peers[peer.index].epoch;
    /* Whatever it holds is not ours: rows of an earlier scheduler, or of a step that broke. */
    proto_body_t body = {.reset = {.detail = proto_text("a scheduler attaches")}};
    actor_outbox_push(outbox, peer, PROTO_KIND_RESET, 0, &body);
    tell_all_gateways(self, outbox);
}

static void
on_executor_info(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    if (sched_core_is_attached(self->library)) {
        bool is_newer = self->peers[input->from.index].epoch > self->executor_epoch;
        if (is_executor(self, input->from) || !is_newer) {
            self->ignored_count++;
            return;
        }
        lose_executor(self, "worker_lost", outbox);
    }
    self->fault_count = 0;
    keep_info(self, &input->body->executor_info);
    attach(self, input->from, input, outbox);
}

/* The executor broke the protocol: its requests end, it starts over with nothing.  When that
 * happens again and again without a good step between, it is left alone. */
static void
on_executor_fault(actor_scheduler_core_t *self, const actor_input_t *input, const char *detail,
                  actor_outbox_t *outbox)
{
    actor_peer_t peer = self->executor;
    proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                 .kind = (uint32_t)input->header->kind & 65535,
                                 .status = STATUS_ERR_MALFORMED,
                                 .detail = proto_text(detail)}};
    actor_outbox_push(outbox, peer, PROTO_KIND_NAK, 0, &body);
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
    lose_executor(self, "executor_fault", outbox);
    if (++self->fault_count <= SCHEDULER_FAULTS_MAX) {
        attach(self, peer, input, outbox);
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* True if the opaque columns have the length that the counts say. */
static bool
columns_agree(const proto_step_result_t *result)
{
    uint64_t tokens = 0;
    uint64_t logprobs = 0;
    uint32_t rows = result->token_counts.count;
    bool has_widths = result->logprob_widths.count > 0;
    if (has_widths && result->logprob_widths.count != rows) {
        return false;
    }
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t count = result->token_counts.data[r];
        uint32_t width = has_widths ? result->logprob_widths.data[r] : 0;
        if (width > PROTO_LOGPROBS_MAX + 1) {
            return false;
        }
        tokens += count;
        logprobs += (uint64_t)count * width;
    }
    return tokens == result->tokens.count && logprobs == result->logprob_ids.count &&
           logprobs == result->logprob_values.count;
}

/* The rows of one gateway. */
static void
send_tokens(actor_scheduler_core_t *self, uint32_t owner, const proto_step_result_t *result,
            const sched_rows_t *rows, actor_outbox_t *outbox)
{
    scheduler_rows_t *out = &self->rows;
    uint32_t count = 0;
    uint32_t tokens = 0;
    uint32_t logprobs = 0;
    size_t token_at = 0;
    size_t logprob_at = 0;
    bool has_logprobs = false;
    for (uint32_t r = 0; r < rows->count; r++) {
        uint32_t given = result->token_counts.data[r];
        uint32_t kept = rows->token_counts[r];
        uint32_t width = result->logprob_widths.count > 0 ? result->logprob_widths.data[r] : 0;
        if (kept > 0 && rows->owners[r] == owner && rows->requests[r] != 0) {
            out->requests[count] = rows->requests[r];
            out->token_indices[count] = rows->token_indices[r];
            out->token_counts[count] = (uint8_t)kept;
            out->logprob_widths[count] = (uint8_t)width;
            memcpy(out->tokens + tokens, result->tokens.data + token_at, kept * sizeof(int32_t));
            if (width > 0) {
                memcpy(out->logprob_ids + logprobs, result->logprob_ids.data + logprob_at,
                       (size_t)kept * width * sizeof(int32_t));
                memcpy(out->logprob_values + logprobs, result->logprob_values.data + logprob_at,
                       (size_t)kept * width * sizeof(float));
                has_logprobs = true;
            }
            count++;
            tokens += kept;
            logprobs += kept * width;
        }
        token_at += given;
        logprob_at += (size_t)given * width;
    }
    proto_body_t body = {
        .tokens =
            {
                .step = result->step,
                .requests = {out->requests, count},
                .token_indices = {out->token_indices, count},
                .token_counts = {out->token_counts, count},
                .tokens = {out->tokens, tokens},
                .logprob_widths = {out->logprob_widths, has_logprobs ? count : 0},
                .logprob_ids = {out->logprob_ids, logprobs},
                .logprob_values = {out->logprob_values, logprobs},
            },
    };
    actor_outbox_push(outbox, (actor_peer_t){owner & 255}, PROTO_KIND_TOKENS, 0, &body);
}

static void
on_step_result(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_step_result_t *result = &input->body->step_result;
    if (!is_executor(self, input->from)) {
        self->ignored_count++;
        return;
    }
    sched_event_t event = {.kind = SCHED_EVENT_RESULT, .result = result};
    sched_rows_t rows;
    proto_status_t status = columns_agree(result) ? STATUS_OK : STATUS_ERR_MALFORMED;
    if (status == STATUS_OK) {
        status = sched_core_advance(self->library, input->now_ns, &event, &rows);
    }
    if (status == STATUS_ERR_MALFORMED) {
        on_executor_fault(self, input, "a step result that does not fit its plan", outbox);
        return;
    }
    if (status != STATUS_OK) {
        self->ignored_count++; /* of before a reset */
        return;
    }
    self->fault_count = 0;
    count_busy(self, input->now_ns);
    /* The next plan first: the executor computes while the tokens are on their way. */
    send_plans(self, input->now_ns, outbox);
    bool sent[ACTOR_PEER_COUNT_MAX] = {false};
    for (uint32_t r = 0; r < rows.count; r++) {
        uint32_t peer = rows.owners[r] & 255;
        bool is_new = rows.token_counts[r] > 0 && rows.requests[r] != 0 && !sent[peer];
        if (is_new && owner_is_there(self, rows.owners[r])) {
            sent[peer] = true;
            send_tokens(self, rows.owners[r], result, &rows, outbox);
        }
    }
}

static void
on_plan_refused(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    if (!is_executor(self, input->from)) {
        self->ignored_count++;
        return;
    }
    sched_event_t event = {.kind = SCHED_EVENT_REFUSED, .refused = &input->body->plan_refused};
    proto_status_t status = sched_core_advance(self->library, input->now_ns, &event, NULL);
    if (status == STATUS_ERR_MALFORMED) {
        on_executor_fault(self, input, "it refuses every plan", outbox);
    } else if (status == STATUS_OK) {
        count_busy(self, input->now_ns);
        /* For the log: a plan of ours broke a rule, which is a fault of ours. */
        proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                     .kind = PROTO_KIND_PLAN,
                                     .status = STATUS_ERR_REFUSED,
                                     .detail = input->body->plan_refused.detail}};
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
    }
}

/* ---- gateways -------------------------------------------------------------------------------- */

static void
refuse_submit(actor_scheduler_core_t *self, const actor_input_t *input, proto_status_t status,
              const sched_refusal_t *refusal, actor_outbox_t *outbox)
{
    char detail[256];
    (void)snprintf(detail, sizeof detail, "%s: %llu %s, the limit is %llu",
                   proto_status_text(status), (unsigned long long)refusal->needed, refusal->what,
                   (unsigned long long)refusal->limit);
    proto_body_t body = {
        .finished =
            {
                .reason = PROTO_FINISH_REFUSED,
                .prompt_tokens = input->body->submit.prompt_length,
                .status = status,
                .code = proto_text(refusal->code),
                .detail = proto_text(detail),
                .retry_after_ms = refusal->retry_after_ms,
            },
    };
    actor_outbox_push(outbox, input->from, PROTO_KIND_FINISHED, input->header->request, &body);
    self->refused_count++;
}

static void
on_submit(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_submit_t *submit = &input->body->submit;
    sched_refusal_t refusal = {.code = "invalid", .what = "tokens"};
    if (submit->tokens.count != submit->prompt_length || input->header->request == 0) {
        refusal.needed = submit->tokens.count;
        refusal.limit = submit->prompt_length;
        refuse_submit(self, input, STATUS_ERR_INVALID, &refusal, outbox);
        return;
    }
    actor_scheduler_content_t content = {
        .tokens = submit->tokens,
        .sampling = submit->sampling,
        .page_hashes = submit->page_hashes,
    };
    actor_scheduler_parcel_t parcel = {0};
    proto_status_t status = actor_scheduler_store_put(self->store, &content, &parcel);
    if (status != STATUS_OK) {
        bool later = status == STATUS_FULL;
        refusal = (sched_refusal_t){
            .code = later ? "overloaded" : "never_fits",
            .what = "bytes of waiting prompts",
            .needed = actor_scheduler_store_used_bytes(self->store) +
                      submit->tokens.count * sizeof(int32_t),
            .limit = actor_scheduler_store_size_bytes(self->store),
            .retry_after_ms = later ? SCHEDULER_RETRY_AFTER_MS : 0,
        };
        status = later ? STATUS_ERR_OVERLOADED : STATUS_ERR_NEVER_FITS;
        refuse_submit(self, input, status, &refusal, outbox);
        return;
    }
    sched_submit_t request = {
        .request = input->header->request,
        .owner = owner_of(self, input->from.index),
        .tag = parcel.value,
        .prompt_length = submit->prompt_length,
        .generation_max = submit->generation_max,
        .emitted = submit->emitted,
        .priority = submit->priority,
        .queue_timeout_ns = submit->queue_timeout_ns,
        .page_hashes = actor_scheduler_store_get(self->store, parcel).page_hashes,
    };
    status = sched_core_submit(self->library, input->now_ns, &request, &refusal);
    if (status != STATUS_OK) {
        actor_scheduler_store_drop(self->store, parcel);
    }
    if (status == STATUS_ERR_STALE) {
        self->ignored_count++; /* a duplicate: its first copy gets the answer */
    } else if (status != STATUS_OK) {
        refuse_submit(self, input, status, &refusal, outbox);
    }
}

static void
on_finish(actor_scheduler_core_t *self, const actor_input_t *input)
{
    sched_event_t event = {
        .kind = SCHED_EVENT_FINISH,
        .finish = {.owner = owner_of(self, input->from.index),
                   .request = input->header->request,
                   .token_index = input->body->finish.token_index,
                   .reason = (proto_finish_reason_t)input->body->finish.reason},
    };
    proto_status_t status = sched_core_advance(self->library, input->now_ns, &event, NULL);
    self->ignored_count += status == STATUS_OK ? 0 : 1;
}

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
    if (peer->role == PROTO_ROLE_GATEWAY) {
        send_model_info(self, up->peer, outbox);
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
    if (role == PROTO_ROLE_GATEWAY) {
        sched_event_t event = {.kind = SCHED_EVENT_OWNER_GONE, .owner = owner_of(self, down->peer)};
        proto_status_t status = sched_core_advance(self->library, input->now_ns, &event, NULL);
        require(status == STATUS_OK);
    } else if (is_executor(self, (actor_peer_t){down->peer})) {
        lose_executor(self, "worker_lost", outbox);
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

static void
on_nak(actor_scheduler_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_nak_t *nak = &input->body->nak;
    bool lost = is_executor(self, input->from) &&
                (nak->kind == PROTO_KIND_PLAN || nak->kind == PROTO_KIND_RESET);
    if (lost) {
        /* No result will ever come for it. */
        on_executor_fault(self, input, "it could not read a plan", outbox);
    } else {
        self->ignored_count++;
    }
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
    if (kind == PROTO_KIND_SUBMIT && role == PROTO_ROLE_GATEWAY) {
        on_submit(self, input, outbox);
    } else if (kind == PROTO_KIND_FINISH && role == PROTO_ROLE_GATEWAY) {
        on_finish(self, input);
    } else if (kind == PROTO_KIND_EXECUTOR_INFO && role == PROTO_ROLE_EXECUTOR) {
        on_executor_info(self, input, outbox);
    } else if (kind == PROTO_KIND_STEP_RESULT && role == PROTO_ROLE_EXECUTOR) {
        on_step_result(self, input, outbox);
    } else if (kind == PROTO_KIND_PLAN_REFUSED && role == PROTO_ROLE_EXECUTOR) {
        on_plan_refused(self, input, outbox);
    } else if (kind == PROTO_KIND_NAK) {
        on_nak(self, input, outbox);
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
    send_plans(self, input->now_ns, outbox);
    pass_finished(self, outbox);
    send_load(self, input->now_ns, outbox);
    proto_require_set_request(0);
}

static uint64_t
core_deadline_ns(const void *core)
{
    const actor_scheduler_core_t *self = core;
    if (self->has_more_finished) {
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
    return admits + plan + tokens + finished + infos + loads + 65536;
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
        .outbox_count_max =
            2 * (SCHED_PLAN_ADMISSIONS_MAX + 1) + SCHEDULER_FINISHED_MAX + 5 * ACTOR_PEER_COUNT_MAX,
        .step = core_step,
        .deadline_ns = core_deadline_ns,
        .digest = core_digest,
        .stats = core_stats,
        .progress = core_progress,
        .check = core_check,
        .idle = core_idle,
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
    sched_core_options_t library = {
        .slot_count_max = set->slot_count_max,
        .queue_len_max = set->queue_len_max,
        .overlap_depth_max = set->no_overlap ? 0 : 1,
        .no_prefix_cache = set->no_prefix_cache,
        .full_plans = set->full_plans,
        .queue_timeout_ns = set->queue_timeout_ns,
    };
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
