/* What gateways ask and are told: submits, finishes, ends, MODEL_INFO, LOAD. */
#include <stdio.h>
#include <string.h>

#include "actor_scheduler_state.h"

static bool
is_gateway(const actor_scheduler_core_t *self, uint32_t peer)
{
    return peer < ACTOR_PEER_COUNT_MAX && actor_scheduler_may_submit(self->peers[peer].role);
}

uint32_t
actor_scheduler_owner(const actor_scheduler_core_t *self, uint32_t peer)
{
    return self->peers[peer].incarnation << 8 | peer;
}

bool
actor_scheduler_owner_is_there(const actor_scheduler_core_t *self, uint32_t owner)
{
    uint32_t peer = owner & 255;
    return is_gateway(self, peer) && actor_scheduler_owner(self, peer) == owner;
}

void
actor_scheduler_tell_gateway(actor_scheduler_core_t *self, uint32_t peer, actor_outbox_t *outbox)
{
    proto_body_t body = {.model_info = {.queue_len_max = self->options.queue_len_max,
                                        .detail = proto_text(self->refusal)}};
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

void
actor_scheduler_tell_gateways(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (is_gateway(self, peer)) {
            actor_scheduler_tell_gateway(self, peer, outbox);
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
        .above_ladder_steps = figures.above_ladder_steps,
        .blocks_held = figures.held_count,
        .blocks_incoming = figures.incoming_count,
        .blocks_fencing = figures.fencing_count,
        .prefill_graph_steps = figures.prefill_graph_steps,
        .prefill_eager_steps = figures.prefill_eager_steps,
        .recomputed_tokens = figures.recomputed_tokens,
        .evicted_blocks = figures.evicted_blocks,
        .stalls = figures.stalls,
        .wide_steps = figures.wide_steps,
        .drafts_proposed = figures.drafts_proposed,
        .drafts_accepted = figures.drafts_accepted,
        .drafts_missing = figures.drafts_missing,
        .drafts_ignored = figures.drafts_ignored,
    };
}

void
actor_scheduler_send_load(actor_scheduler_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
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
                .suspects = end->suspects,
            },
    };
    actor_outbox_push(outbox, (actor_peer_t){end->owner & 255}, PROTO_KIND_FINISHED, end->request,
                      &body);
    self->finished_count++;
}

void
actor_scheduler_pass_finished(actor_scheduler_core_t *self, actor_outbox_t *outbox)
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
        if (actor_scheduler_owner_is_there(self, end.owner)) {
            send_finished(self, &end, outbox);
        }
    }
    self->has_more_finished = true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void
refuse_submit(actor_scheduler_core_t *self, const actor_input_t *input, proto_status_t status,
              const sched_refusal_t *refusal, actor_outbox_t *outbox)
{
    char detail[256];
    (void)snprintf(detail, sizeof detail, "%s: %llu %s, the limit is %llu",
                   proto_status_text(status), (unsigned long long)refusal->needed, refusal->what,
                   (unsigned long long)refusal->limit);
    const proto_submit_t *submit = &input->body->submit;
    bool is_sound = submit->emitted <= submit->prompt_length;
    proto_body_t body = {
        .finished =
            {
                .reason = PROTO_FINISH_REFUSED,
                .prompt_tokens = submit->prompt_length - (is_sound ? submit->emitted : 0),
                .status = status,
                .code = proto_text(refusal->code),
                .detail = proto_text(detail),
                .retry_after_ms = refusal->retry_after_ms,
            },
    };
    actor_outbox_push(outbox, input->from, PROTO_KIND_FINISHED, input->header->request, &body);
    self->refused_count++;
}

void
actor_scheduler_submit(actor_scheduler_core_t *self, const actor_input_t *input,
                       actor_outbox_t *outbox)
{
    actor_scheduler_submit_as(self, input, false, outbox);
}

void
actor_scheduler_submit_as(actor_scheduler_core_t *self, const actor_input_t *input,
                          bool is_activated, actor_outbox_t *outbox)
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
        .owner = actor_scheduler_owner(self, input->from.index),
        .tag = parcel.value,
        .prompt_length = submit->prompt_length,
        .generation_max = submit->generation_max,
        .emitted = submit->emitted,
        .priority = submit->priority,
        .queue_timeout_ns = submit->queue_timeout_ns,
        .transfer = submit->transfer,
        .is_activated = is_activated,
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

void
actor_scheduler_finish(actor_scheduler_core_t *self, const actor_input_t *input)
{
    sched_event_t event = {
        .kind = SCHED_EVENT_FINISH,
        .finish = {.owner = actor_scheduler_owner(self, input->from.index),
                   .request = input->header->request,
                   .token_index = input->body->finish.token_index,
                   .reason = (proto_finish_reason_t)input->body->finish.reason},
    };
    proto_status_t status = sched_core_advance(self->library, input->now_ns, &event, NULL);
    self->ignored_count += status == STATUS_OK ? 0 : 1;
}
