/* Links, phases, ADMIT and the core's operations.  Long because what is wrong with an ADMIT is
 * listed beside what it sets. */
#include "actor_executor_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_executor_state.h"

enum {
    SLOT_COUNT_DEFAULT = 32,
    MODEL_LEN_DEFAULT = 131072,
    STEP_TOKENS_DEFAULT = 512,
    BAD_PLANS_DEFAULT = 8,
    BODY_SIZE_MAX = 8192, /* of every message that we emit; columns are apart */
};

/* Before the first step has been measured: a slow processor with a large model. */
static const uint64_t STEP_NS_START = 1000000000u;
static const uint64_t TOKEN_NS_START = 50000000u;
static const uint64_t BUDGET_MIN_NS = 5000000000u;
static const uint64_t BUDGET_FACTOR = 20;

void
actor_executor_slot_touch(actor_executor_core_t *self, uint32_t slot)
{
    executor_slot_t *s = &self->slots[slot];
    self->slots_digest ^= s->digest;
    uint64_t flags = (uint64_t)s->is_set_up | (uint64_t)s->is_decodable << 1;
    uint64_t digest = s->request ^ (uint64_t)slot << 48;
    digest = executor_mix(digest + ((uint64_t)s->known << 32 | s->pending));
    digest = executor_mix(digest + ((uint64_t)s->computed << 32 | s->done));
    digest ^= s->content + (s->chain_pages ^ flags << 32);
    s->digest = s->request != 0 ? executor_mix(digest) : 0;
    self->slots_digest ^= s->digest;
}

void
actor_executor_slot_append(actor_executor_core_t *self, uint32_t slot, const int32_t *tokens,
                           uint32_t count)
{
    executor_slot_t *s = &self->slots[slot];
    require(count <= self->info.model_len_max - s->known);
    int32_t *store = executor_tokens(self, slot) + s->known;
    uint64_t content = s->content;
    for (uint32_t i = 0; i < count; i++) {
        store[i] = tokens[i];
        content = (content ^ (uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u;
        content ^= content >> 32;
    }
    s->content = content;
    s->known += count;
}

void
actor_executor_slot_leave(actor_executor_core_t *self, uint32_t slot)
{
    executor_slot_t *s = &self->slots[slot];
    uint32_t generation = s->generation + 1;
    self->slots_digest ^= s->digest;
    memset(s, 0, sizeof *s);
    s->generation = generation;
}

void
actor_executor_fail(actor_executor_core_t *self, proto_status_t status, const char *detail,
                    actor_outbox_t *outbox)
{
    if (self->phase == EXECUTOR_FAILED) {
        return;
    }
    self->phase = EXECUTOR_FAILED;
    self->is_info_sent = false;
    proto_body_t body = {.device_failed = {.status = status, .detail = proto_text(detail)}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_DEVICE_FAILED, 0, &body);
}

/* ---- what cannot be used --------------------------------------------------------------------- */

static void
answer_nak(const actor_input_t *input, proto_status_t status, const char *detail, actor_peer_t to,
           actor_outbox_t *outbox)
{
    proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                 .kind = (uint32_t)input->header->kind & 65535,
                                 .status = status,
                                 .detail = proto_text(detail)}};
    actor_outbox_push(outbox, to, PROTO_KIND_NAK, input->header->request, &body);
}

/* ---- the device's life ----------------------------------------------------------------------- */

static void
drop_rows(actor_executor_core_t *self)
{
    for (uint32_t slot = 1; self->slots != NULL && slot <= self->info.slot_count; slot++) {
        if (self->slots[slot].request != 0) {
            actor_executor_tables_begin(self->tables);
            actor_executor_tables_drop(self->tables, slot);
            actor_executor_slot_leave(self, slot);
        }
    }
    self->flight_count = 0;
    self->applied_step = 0;
    self->is_awaiting_full = false;
}

/* Every row goes; the device is told unless it holds nothing anyway. */
static void
reset(actor_executor_core_t *self, proto_text_t why, actor_outbox_t *outbox)
{
    drop_rows(self);
    if (self->is_device_pristine || self->phase != EXECUTOR_READY) {
        return;
    }
    self->is_device_pristine = true;
    self->reset_count++;
    proto_body_t body = {.device_reset = {.detail = why}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_DEVICE_RESET, 0, &body);
}

static void
send_info(actor_executor_core_t *self, actor_outbox_t *outbox)
{
    if (self->phase != EXECUTOR_READY || !self->is_linked || self->is_info_sent ||
        self->reset_count > 0) {
        return;
    }
    proto_body_t body = {.executor_info = self->info};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_EXECUTOR_INFO, 0, &body);
    self->is_info_sent = true;
}

static void
device_ready(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    if (self->phase == EXECUTOR_READY) {
        if (self->reset_count > 0) {
            self->reset_count--;
        }
        send_info(self, outbox);
        return;
    }
    char detail[256] = "";
    proto_status_t status =
        actor_executor_stores_make(self, &input->body->device_ready, detail, sizeof detail);
    if (status != STATUS_OK) {
        actor_executor_fail(self, status, detail, outbox);
        return;
    }
    self->has_stores = true;
    self->phase = EXECUTOR_READY;
    self->is_device_pristine = true;
    send_info(self, outbox);
    actor_executor_drafter_answer(self, outbox);
}

static void
device_failed(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    char detail[PROTO_TEXT_LEN_MAX + 1];
    proto_text_t text = input->body->device_failed.detail;
    (void)snprintf(detail, sizeof detail, "%.*s", (int)text.size_bytes, text.data);
    int64_t status = input->body->device_failed.status;
    actor_executor_fail(self, status < 0 ? (proto_status_t)status : STATUS_ERR_DEVICE, detail,
                        outbox);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void
peer_up(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    if (up->role == PROTO_ROLE_DRAFTER && up->peer < ACTOR_PEER_COUNT_MAX) {
        actor_executor_drafter_up(self, input);
        return;
    }
    if (up->role != PROTO_ROLE_SCHEDULER || up->peer >= ACTOR_PEER_COUNT_MAX) {
        return;
    }
    /* Only beside a newer one: the links fence old incarnations by name, and after a move to
     * another scheduler and back the epochs of two names say nothing. */
    if (self->is_linked && up->epoch < self->scheduler_epoch) {
        answer_nak(input, STATUS_ERR_STALE, "a scheduler of an old epoch", input->from, outbox);
        return;
    }
    self->is_linked = true;
    self->is_info_sent = false;
    self->scheduler = (actor_peer_t){up->peer};
    self->scheduler_epoch = up->epoch;
    self->bad_plans = 0;
    reset(self, proto_text("a new scheduler"), outbox);
    send_info(self, outbox);
}

static void
peer_down(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_down_t *down = &input->body->peer_down;
    if (self->drafter.is_linked && down->peer == self->drafter.peer.index) {
        actor_executor_drafter_down(self, outbox);
        return;
    }
    if (self->is_linked && down->peer == self->scheduler.index) {
        /* The rows stay until a scheduler comes: what is in flight ends by itself. */
        self->is_linked = false;
        self->is_info_sent = false;
    }
}

/* ---- ADMIT ----------------------------------------------------------------------------------- */

static bool
ids_in_range(proto_bytes_t ids, uint32_t vocab_size)
{
    for (size_t i = 0; i + 4 <= ids.size_bytes; i += 4) {
        uint32_t id = 0;
        memcpy(&id, ids.data + i, sizeof id);
        if (id >= vocab_size) {
            return false;
        }
    }
    return ids.size_bytes % 4 == 0;
}

static bool
sampling_is_usable(const actor_executor_core_t *self, const proto_admit_t *admit,
                   const proto_sampling_t *sampling)
{
    return sampling->prompt_length <= admit->prompt_length &&
           sampling->stop_ids.size_bytes % 4 == 0 &&
           sampling->bias_ids.size_bytes == sampling->bias_values.size_bytes &&
           ids_in_range(sampling->bias_ids, self->info.vocab_size);
}

/* What is wrong with an ADMIT, or NULL. */
static const char *
admit_refusal(const actor_executor_core_t *self, const actor_input_t *input,
              proto_sampling_t *sampling)
{
    const proto_admit_t *admit = &input->body->admit;
    if (self->phase != EXECUTOR_READY) {
        return "ADMIT before EXECUTOR_INFO";
    }
    if (admit->slot == 0 || admit->slot > self->info.slot_count) {
        return "ADMIT: no such slot";
    }
    if (self->slots[admit->slot].request != 0) {
        return "ADMIT: the slot is taken";
    }
    if (input->header->request == 0) {
        return "ADMIT: no request id";
    }
    if (admit->prompt_length == 0 || admit->tokens.count != admit->prompt_length) {
        return "ADMIT: prompt_length and tokens differ";
    }
    if (admit->computed != 0 && admit->computed != admit->prompt_length - 1) {
        return "ADMIT: the cache must hold all tokens but the last, or none";
    }
    if (admit->length_max < admit->prompt_length || admit->length_max > self->info.model_len_max) {
        return "ADMIT: length_max is beyond the model's";
    }
    for (uint32_t i = 0; i < admit->tokens.count; i++) {
        if ((uint32_t)admit->tokens.data[i] >= self->info.vocab_size) {
            return "ADMIT: a token is outside the vocabulary";
        }
    }
    if (proto_sampling_decode(admit->sampling, sampling, NULL) != STATUS_OK ||
        !sampling_is_usable(self, admit, sampling)) {
        return "ADMIT: the sampling parameters are not usable";
    }
    return NULL;
}

/* A request whose prompt pages carry no hashes (caching is off) gets none for its answer. */
static void
start_chain(const actor_executor_core_t *self, executor_slot_t *s, const proto_admit_t *admit,
            const proto_sampling_t *sampling)
{
    /* Of a prompt that came from elsewhere the last token was generated there. */
    uint32_t hashed = admit->computed != 0 ? admit->computed : admit->prompt_length;
    uint32_t pages = hashed / self->info.prefix_granularity;
    size_t size = (size_t)pages * PROTO_HASH_SIZE_BYTES;
    s->is_hashed = admit->page_hashes.size_bytes == size;
    if (s->is_hashed && pages > 0) {
        memcpy(s->chain, admit->page_hashes.data + size - PROTO_HASH_SIZE_BYTES,
               PROTO_HASH_SIZE_BYTES);
    }
    s->chain_pages = pages;
    s->salt_size = (uint8_t)sampling->page_salt.size_bytes;
    if (s->salt_size > 0) {
        memcpy(s->salt, sampling->page_salt.data, s->salt_size);
    }
}

static void
admit(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_admit_t *admit = &input->body->admit;
    proto_sampling_t sampling;
    const char *refusal = admit_refusal(self, input, &sampling);
    if (refusal != NULL) {
        /* The slot stays empty, so the first plan that uses it is refused with SLOT_EMPTY. */
        answer_nak(input, STATUS_ERR_INVALID, refusal, (actor_peer_t){ACTOR_PEER_LOCAL}, outbox);
        return;
    }
    executor_slot_t *s = &self->slots[admit->slot];
    s->request = input->header->request;
    s->generation++;
    s->prompt_length = admit->prompt_length;
    s->length_max = admit->length_max;
    s->sampling_size = admit->sampling.count;
    memcpy(executor_sampling(self, admit->slot), admit->sampling.data, admit->sampling.count);
    start_chain(self, s, admit, &sampling);
    actor_executor_slot_append(self, admit->slot, admit->tokens.data, admit->tokens.count);
    s->computed = admit->computed;
    s->done = admit->computed;
    s->is_decodable = admit->computed != 0; /* the first decode row sets it up */
    actor_executor_slot_touch(self, admit->slot);
}

/* ---- the core's operations ------------------------------------------------------------------- */

static void
step_peer(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    if (self->drafter.is_linked && input->from.index == self->drafter.peer.index) {
        actor_executor_drafter_says(self, input, outbox);
        return;
    }
    bool is_scheduler = self->is_linked && input->from.index == self->scheduler.index;
    if (!is_scheduler && input->header->kind == PROTO_KIND_NAK) {
        return; /* of a kv-transfer: its shell has logged it */
    }
    if (!is_scheduler) {
        answer_nak(input, STATUS_ERR_STALE, "not the scheduler in charge", input->from, outbox);
        return;
    }
    if (input->header->kind == PROTO_KIND_ADMIT) {
        admit(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_PLAN) {
        actor_executor_plan(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_RESET) {
        reset(self, input->body->reset.detail, outbox);
    } else if (input->header->kind != PROTO_KIND_NAK) {
        answer_nak(input, STATUS_ERR_UNSUPPORTED, "not for an executor", input->from, outbox);
    }
}

/* The shell knows when the model is loaded and a kv-transfer is linked: its link is the number of
 * the request. */
static void
register_arena(const actor_input_t *input, actor_outbox_t *outbox)
{
    uint64_t peer = input->header->request;
    if (peer > ACTOR_PEER_LOCAL && peer < ACTOR_PEER_COUNT_MAX) {
        actor_outbox_push(outbox, (actor_peer_t){(uint32_t)peer}, PROTO_KIND_KV_ARENA, 0,
                          input->body);
    }
}

static void
step_local(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    if (input->header->kind == PROTO_KIND_PEER_UP) {
        peer_up(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_PEER_DOWN) {
        peer_down(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_DRAIN) {
        self->is_draining = true;
    } else if (input->header->kind == PROTO_KIND_DEVICE_READY) {
        device_ready(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_DEVICE_FAILED) {
        device_failed(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_KV_ARENA) {
        register_arena(input, outbox);
    } else if (input->header->kind == PROTO_KIND_STEP_DONE) {
        actor_executor_step_done(self, input, outbox);
    }
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_executor_core_t *self = core;
    if (self->phase == EXECUTOR_FAILED) {
        return;
    }
    if (input->from.index == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
    } else {
        step_peer(self, input, outbox);
    }
}

static uint64_t
core_deadline_ns(const void *core)
{
    (void)core;
    return UINT64_MAX; /* an executor owns no timer */
}

static uint64_t
core_digest(const void *core)
{
    const actor_executor_core_t *self = core;
    uint64_t digest = self->slots_digest;
    if (self->tables != NULL) {
        digest ^= actor_executor_tables_digest(self->tables);
    }
    digest = executor_mix(digest + self->applied_step);
    digest = executor_mix(digest + self->scheduler_epoch + ((uint64_t)self->reset_count << 32));
    uint64_t flags = (uint64_t)self->phase | (uint64_t)self->is_linked << 8 |
                     (uint64_t)self->is_info_sent << 9 | (uint64_t)self->is_awaiting_full << 10 |
                     (uint64_t)self->is_device_pristine << 11 | (uint64_t)self->is_draining << 12 |
                     (uint64_t)self->flight_count << 16;
    flags |= (uint64_t)self->drafter.is_used << 24 | (uint64_t)self->drafter.has_info << 25 |
             (uint64_t)self->drafter.asked_count << 32 | (uint64_t)self->drafter.ring_next << 40;
    digest = executor_mix(digest + flags);
    digest = executor_mix(digest + self->drafter.epoch);
    for (uint32_t i = 0; i < self->flight_count; i++) {
        const executor_flight_t *flight = &self->flights[(self->flight_first + i) % FLIGHTS_MAX];
        digest = executor_mix(digest + flight->step);
    }
    return digest;
}

static void
core_stats(const void *core, proto_stats_t *out)
{
    const actor_executor_core_t *self = core;
    out->steps = self->stats.steps;
    out->prompt_tokens = self->stats.prompt_tokens;
    out->generation_tokens = self->stats.generation_tokens;
    out->graph_steps = self->stats.graph_steps;
    out->eager_steps = self->stats.eager_steps;
    out->busy_ns = self->stats.busy_ns;
    out->wide_steps = self->stats.wide_steps;
    out->drafts_proposed = self->stats.drafts_proposed;
    out->drafts_accepted = self->stats.drafts_accepted;
    out->drafts_missing = self->stats.drafts_missing;
    out->drafts_ignored = self->stats.drafts_ignored;
}

static void
core_progress(const void *core, uint64_t now_ns, proto_heartbeat_t *out)
{
    const actor_executor_core_t *self = core;
    if (self->flight_count == 0) {
        return;
    }
    const executor_flight_t *oldest = &self->flights[self->flight_first];
    uint64_t predicted = self->step_ns + oldest->token_count * self->token_ns;
    uint64_t budget = BUDGET_FACTOR * predicted;
    out->step = oldest->step;
    out->step_age_ns = now_ns > self->oldest_begin_ns ? now_ns - self->oldest_begin_ns : 0;
    out->step_budget_ns = budget > BUDGET_MIN_NS ? budget : BUDGET_MIN_NS;
}

static bool
core_idle(const void *core)
{
    const actor_executor_core_t *self = core;
    if (self->phase != EXECUTOR_READY) {
        return true;
    }
    if (self->flight_count > 0) {
        return false;
    }
    for (uint32_t slot = 1; self->is_linked && slot <= self->info.slot_count; slot++) {
        if (self->slots[slot].request != 0) {
            return false;
        }
    }
    return true;
}

static void
check_flights(const actor_executor_core_t *self)
{
    require(self->flight_count <= FLIGHTS_MAX);
    uint64_t before = 0;
    for (uint32_t i = 0; i < self->flight_count; i++) {
        const executor_flight_t *flight = &self->flights[(self->flight_first + i) % FLIGHTS_MAX];
        require(flight->step > before);
        require(flight->step <= self->applied_step);
        require(flight->row_count <= self->info.slot_count);
        before = flight->step;
    }
}

static void
core_check(const void *core)
{
    const actor_executor_core_t *self = core;
    if (self->phase != EXECUTOR_READY) {
        return;
    }
    actor_executor_tables_check(self->tables);
    check_flights(self);
    uint64_t digest = 0;
    for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
        const executor_slot_t *s = &self->slots[slot];
        digest ^= s->digest;
        if (s->request == 0) {
            require(s->digest == 0);
            for (uint32_t g = 0; g < self->group_count; g++) {
                for (uint32_t c = 0; c < self->groups[g].column_count; c++) {
                    require(actor_executor_tables_get(self->tables, slot, g, c) == 0);
                }
            }
            continue;
        }
        require(s->known >= s->prompt_length);
        require(executor_slot_is_bounded(self, s));
        require(s->length_max <= self->info.model_len_max);
        require(s->done <= s->known);
        require(s->pending == 0 || self->flight_count > 0);
        require(s->sampling_size <= SAMPLING_SIZE_MAX);
    }
    require(digest == self->slots_digest);
}

/* The written sum of what one step can emit: the setups of every slot, one launch, one result or
 * refusal, what is said to the drafter and about it. */
static size_t
outbox_size(const actor_executor_core_options_t *limits)
{
    size_t slots = limits->slot_count_max;
    size_t setups = slots * ((size_t)limits->model_len_max * 4 + SAMPLING_SIZE_MAX);
    /* Cells of all tables: at most one column a token in each group. */
    size_t cells = (slots + 1) * ((size_t)limits->model_len_max + 15) * PROTO_GROUPS_MAX;
    cells = cells < CELLS_MAX ? cells : CELLS_MAX;
    size_t patches = 3 * cells * (4 + 1 + 4 + 4 + 4);
    size_t clears = cells * (4 + 1);
    size_t rows = slots * (5 * 4 + 1) + (size_t)limits->step_tokens_max * 4;
    size_t result = slots * (size_t)(5 + 16 * 4 + 16 * LOGPROB_WIDTH_MAX * 8);
    result += (2 * slots + limits->step_tokens_max) * (size_t)(PROTO_HASH_SIZE_BYTES + 8);
    size_t columns = 20 * PROTO_COLUMN_ALIGN * (slots + 4);
    enum { ARENA_SIZE_MAX = 256 << 10 }; /* a registration at a kv-transfer, in a step of its own */
    return setups + patches + clears + rows + result + columns + (slots + 6) * BODY_SIZE_MAX +
           ARENA_SIZE_MAX;
}

proto_status_t
actor_executor_core_new(const actor_executor_core_options_t *options, actor_executor_core_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    if (options->slot_count_max > PROTO_ROWS_MAX || options->model_len_max > PROTO_TOKENS_MAX ||
        options->step_tokens_max > PROTO_TOKENS_MAX ||
        (options->draft_ring != NULL &&
         strlen(options->draft_ring) >= sizeof((actor_executor_core_t *)0)->draft_ring)) {
        return STATUS_ERR_CONFIG;
    }
    actor_executor_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    actor_executor_core_options_t *limits = &self->limits;
    *limits = *options;
    limits->slot_count_max = options->slot_count_max ? options->slot_count_max : SLOT_COUNT_DEFAULT;
    limits->model_len_max = options->model_len_max ? options->model_len_max : MODEL_LEN_DEFAULT;
    limits->step_tokens_max =
        options->step_tokens_max ? options->step_tokens_max : STEP_TOKENS_DEFAULT;
    if (options->draft_ring != NULL) {
        memcpy(self->draft_ring, options->draft_ring, strlen(options->draft_ring) + 1);
    }
    limits->draft_ring = self->draft_ring;
    limits->bad_plans_max = options->bad_plans_max ? options->bad_plans_max : BAD_PLANS_DEFAULT;
    self->step_ns = STEP_NS_START;
    self->token_ns = TOKEN_NS_START;
    self->ops = (actor_core_ops_t){.name = "executor",
                                   .role = PROTO_ROLE_EXECUTOR,
                                   .outbox_size_bytes = outbox_size(limits),
                                   .outbox_count_max = limits->slot_count_max + 6,
                                   .step = core_step,
                                   .deadline_ns = core_deadline_ns,
                                   .digest = core_digest,
                                   .stats = core_stats,
                                   .progress = core_progress,
                                   .check = core_check,
                                   .idle = core_idle,
                                   .save = actor_executor_save};
    *out_p = self;
    return STATUS_OK;
}

void
actor_executor_core_destroy(actor_executor_core_t **self_p)
{
    require(self_p != NULL);
    actor_executor_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    actor_executor_stores_free(self);
    free(self);
    *self_p = NULL;
}

const actor_core_ops_t *
actor_executor_core_ops(const actor_executor_core_t *self)
{
    return &self->ops;
}
