/* Offers, leases and ends of transfers, from the side that serves.  Long because it is one table of
 * small handlers, one for each message, over one state that nobody else sees. */
#include "actor_prefill_role_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    TRANSFERS_DEFAULT = 256,
    TRANSFERS_MAX = PROTO_ROWS_MAX,
    LOGPROBS_MAX = PROTO_LOGPROBS_MAX + 1,
    RETRY_AFTER_MS = 1000,
};
static const uint64_t LEASE_DEFAULT_NS = 5000000000u;

typedef enum {
    STATE_FREE = 0,
    STATE_QUEUED,    /* its scheduler has it */
    STATE_HELD,      /* prefilled; its blocks wait for the peer */
    STATE_RELEASING, /* RELEASE is out */
} state_t;

typedef struct {
    uint64_t transfer;
    uint64_t lease_until_ns; /* while QUEUED or HELD */
    uint32_t peer;           /* decode-role; ACTOR_PEER_NONE: it is gone */
    uint8_t state;
    bool has_cache;  /* a kv-transfer sends its cache */
    bool is_sent;    /* all of it */
    bool has_token;  /* `token` and its log-probabilities are known */
    bool was_told;   /* PREFILLED or TRANSFER_FAILED went out */
    bool was_closed; /* TRANSFER_CLOSED is owed */
    bool is_stop;    /* the token ends the request */
    uint32_t cached_tokens;
    uint64_t queue_ns;
    int32_t token;
    uint32_t logprob_width;
    int32_t logprob_ids[LOGPROBS_MAX];
    float logprob_values[LOGPROBS_MAX];
} transfer_t;

typedef struct {
    proto_role_t role;
    uint64_t epoch;
    char name[PROTO_NAME_SIZE_BYTES];
} peer_t;

struct actor_prefill_role_core {
    actor_core_ops_t ops;
    actor_prefill_role_options_t options;
    peer_t peers[ACTOR_PEER_COUNT_MAX];
    actor_peer_t scheduler;   /* ACTOR_PEER_NONE: not there */
    actor_peer_t kv_transfer; /* the same */
    bool has_model;
    bool is_draining;
    proto_model_info_t model; /* texts and key in the room below */
    char model_name[PROTO_TEXT_LEN_MAX];
    char fingerprint[PROTO_TEXT_LEN_MAX];
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
    transfer_t *transfers; /* [transfer_count_max] */
    uint32_t open_count;
    uint64_t ignored_count;
    uint64_t digest;
};

static void
fold(actor_prefill_role_core_t *self, uint64_t value)
{
    uint64_t x = (self->digest ^ value) * 0x9e3779b97f4a7c15u;
    self->digest = x ^ (x >> 29);
}

static void
set_state(actor_prefill_role_core_t *self, transfer_t *transfer, state_t state)
{
    self->open_count += transfer->state == STATE_FREE ? 1 : 0;
    self->open_count -= state == STATE_FREE ? 1 : 0;
    transfer->state = (uint8_t)state;
    fold(self, transfer->transfer ^ (uint64_t)state << 60);
}

static transfer_t *
find(const actor_prefill_role_core_t *self, uint64_t key)
{
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        transfer_t *transfer = &self->transfers[i];
        if (transfer->state != STATE_FREE && transfer->transfer == key) {
            return transfer;
        }
    }
    return NULL;
}

static transfer_t *
take(const actor_prefill_role_core_t *self)
{
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        if (self->transfers[i].state == STATE_FREE) {
            return &self->transfers[i];
        }
    }
    return NULL;
}

/* ---- what the peer is told ------------------------------------------------------------------- */

typedef struct {
    proto_finish_reason_t reason;
    proto_status_t status;
    proto_text_t code;
    proto_text_t detail;
    uint32_t retry_after_ms;
} failure_t;

static failure_t
lost(const char *code, const char *detail)
{
    return (failure_t){.reason = PROTO_FINISH_ERROR,
                       .status = STATUS_ERR_PEER_LOST,
                       .code = proto_text(code),
                       .detail = proto_text(detail),
                       .retry_after_ms = RETRY_AFTER_MS};
}

static void
send_failed(uint32_t peer, uint64_t key, const failure_t *failure, actor_outbox_t *outbox)
{
    if (peer == ACTOR_PEER_NONE) {
        return;
    }
    proto_body_t body = {.transfer_failed = {.transfer = key,
                                             .reason = failure->reason,
                                             .status = failure->status,
                                             .code = failure->code,
                                             .detail = failure->detail,
                                             .retry_after_ms = failure->retry_after_ms}};
    actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_TRANSFER_FAILED, 0, &body);
}

static void
send_closed(uint32_t peer, uint64_t key, uint32_t block_count, actor_outbox_t *outbox)
{
    if (peer != ACTOR_PEER_NONE) {
        proto_body_t body = {.transfer_closed = {.transfer = key, .block_count = block_count}};
        actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_TRANSFER_CLOSED, 0, &body);
    }
}

/* The end of it here: nothing is lent any more. */
static void
finish(actor_prefill_role_core_t *self, transfer_t *transfer, uint32_t block_count,
       actor_outbox_t *outbox)
{
    if (transfer->was_closed) {
        send_closed(transfer->peer, transfer->transfer, block_count, outbox);
    }
    set_state(self, transfer, STATE_FREE);
}

/* Lets go: the scheduler's request ends if it has not, the blocks are asked back. */
static void
let_go(actor_prefill_role_core_t *self, transfer_t *transfer, proto_status_t status,
       actor_outbox_t *outbox)
{
    if (transfer->state == STATE_RELEASING) {
        return;
    }
    if (transfer->has_cache && self->kv_transfer.index != ACTOR_PEER_NONE) {
        proto_body_t cancel = {.transfer_cancel = {.transfer = transfer->transfer}};
        actor_outbox_push(outbox, self->kv_transfer, PROTO_KIND_TRANSFER_CANCEL, 0, &cancel);
    }
    if (self->scheduler.index == ACTOR_PEER_NONE) {
        finish(self, transfer, 0, outbox); /* it took everything with it */
        return;
    }
    if (transfer->state == STATE_QUEUED) {
        proto_body_t body = {.finish = {.reason = PROTO_FINISH_CANCELLED}};
        actor_outbox_push(outbox, self->scheduler, PROTO_KIND_FINISH, transfer->transfer, &body);
    }
    proto_body_t body = {.release = {.transfer = transfer->transfer, .status = status}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_RELEASE, 0, &body);
    set_state(self, transfer, STATE_RELEASING);
}

/* Says once that it will not come, and lets go. */
static void
fail(actor_prefill_role_core_t *self, transfer_t *transfer, const failure_t *failure,
     actor_outbox_t *outbox)
{
    if (transfer->state == STATE_RELEASING) {
        return;
    }
    send_failed(transfer->peer, transfer->transfer, failure, outbox);
    transfer->was_told = true;
    let_go(self, transfer, failure->status, outbox);
}

/* ---- decode-roles ---------------------------------------------------------------------------- */

static bool
is_text(proto_text_t a, proto_text_t b)
{
    return a.size_bytes == b.size_bytes &&
           (a.size_bytes == 0 || memcmp(a.data, b.data, a.size_bytes) == 0);
}

/* False, and the peer is told, for an offer that cannot be taken. */
static bool
can_take(const actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_transfer_offer_t *offer = &input->body->transfer_offer;
    failure_t failure = {.reason = PROTO_FINISH_REFUSED, .status = STATUS_ERR_REFUSED};
    char detail[PROTO_TEXT_LEN_MAX];
    if (!self->has_model || self->is_draining) {
        failure.code = proto_text(self->is_draining ? "draining" : "no_executor");
        failure.detail = proto_text("this prefill node takes nothing now");
        failure.retry_after_ms = RETRY_AFTER_MS;
    } else if (!is_text(offer->fingerprint, self->model.fingerprint)) {
        failure.status = STATUS_ERR_FINGERPRINT;
        failure.code = proto_text("layout");
        (void)snprintf(detail, sizeof detail, "here '%.*s', there '%.*s'",
                       (int)(self->model.fingerprint.size_bytes & 255),
                       self->model.fingerprint.data, (int)(offer->fingerprint.size_bytes & 255),
                       offer->fingerprint.data);
        failure.detail = proto_text(detail);
    } else if (offer->kv_name.size_bytes > 0 && self->kv_transfer.index == ACTOR_PEER_NONE) {
        failure.code = proto_text("kv_transfer_failed");
        failure.detail = proto_text("this prefill node has no kv-transfer now");
        failure.retry_after_ms = RETRY_AFTER_MS;
    } else if (offer->transfer == 0 || offer->tokens.count != offer->prompt_length ||
               offer->prompt_length == 0) {
        failure.status = STATUS_ERR_INVALID;
        failure.code = proto_text("invalid");
        failure.detail = proto_text("tokens and prompt_length differ");
    } else {
        return true;
    }
    send_failed(input->from.index, offer->transfer, &failure, outbox);
    return false;
}

static void
send_taken(const actor_prefill_role_core_t *self, const transfer_t *transfer,
           actor_outbox_t *outbox)
{
    proto_body_t body = {
        .offer_taken = {.transfer = transfer->transfer, .lease_ns = self->options.lease_ns}};
    if (transfer->has_cache) {
        const peer_t *kv = &self->peers[self->kv_transfer.index];
        body.offer_taken.kv_name = proto_text(kv->name);
        body.offer_taken.kv_epoch = kv->epoch;
    }
    actor_outbox_push(outbox, (actor_peer_t){transfer->peer}, PROTO_KIND_OFFER_TAKEN, 0, &body);
}

static void
send_serve(const actor_prefill_role_core_t *self, const proto_transfer_offer_t *offer,
           actor_outbox_t *outbox)
{
    proto_body_t body = {.transfer_serve = {.transfer = offer->transfer,
                                            .computed = offer->computed,
                                            .wanted = offer->prompt_length,
                                            .kv_name = offer->kv_name,
                                            .kv_epoch = offer->kv_epoch,
                                            .fingerprint = offer->fingerprint,
                                            .run_groups = offer->run_groups,
                                            .run_columns = offer->run_columns,
                                            .run_counts = offer->run_counts,
                                            .run_blocks = offer->run_blocks,
                                            .run_generations = offer->run_generations}};
    actor_outbox_push(outbox, self->kv_transfer, PROTO_KIND_TRANSFER_SERVE, 0, &body);
}

static void
on_offer(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_transfer_offer_t *offer = &input->body->transfer_offer;
    transfer_t *transfer = find(self, offer->transfer);
    if (transfer != NULL) {
        self->ignored_count++; /* said twice */
        if (transfer->peer == input->from.index && transfer->state != STATE_RELEASING) {
            send_taken(self, transfer, outbox);
        }
        return;
    }
    if (!can_take(self, input, outbox)) {
        return;
    }
    transfer = take(self);
    if (transfer == NULL) {
        failure_t failure = {.reason = PROTO_FINISH_REFUSED,
                             .status = STATUS_ERR_OVERLOADED,
                             .code = proto_text("overloaded"),
                             .detail = proto_text("every transfer of this prefill node is taken"),
                             .retry_after_ms = RETRY_AFTER_MS};
        send_failed(input->from.index, offer->transfer, &failure, outbox);
        return;
    }
    *transfer = (transfer_t){.transfer = offer->transfer,
                             .lease_until_ns = input->now_ns + self->options.lease_ns,
                             .peer = input->from.index,
                             .has_cache = offer->kv_name.size_bytes > 0};
    set_state(self, transfer, STATE_QUEUED);
    if (transfer->has_cache) {
        send_serve(self, offer, outbox);
    }
    proto_body_t body = {.submit = {.prompt_length = offer->prompt_length,
                                    .generation_max = 1,
                                    .priority = offer->priority,
                                    .queue_timeout_ns = offer->queue_timeout_ns,
                                    .emitted = offer->emitted,
                                    .page_hashes = offer->page_hashes,
                                    .tokens = offer->tokens,
                                    .sampling = offer->sampling,
                                    .transfer = offer->transfer}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_SUBMIT, offer->transfer, &body);
    send_taken(self, transfer, outbox);
}

static void
send_prefilled(const transfer_t *transfer, actor_outbox_t *outbox)
{
    proto_body_t body = {
        .prefilled = {.transfer = transfer->transfer,
                      .row_flags = transfer->is_stop ? (uint32_t)PROTO_ROW_STOP_TOKEN : 0,
                      .cached_tokens = transfer->cached_tokens,
                      .queue_ns = transfer->queue_ns,
                      .tokens = {&transfer->token, 1},
                      .logprob_width = transfer->logprob_width,
                      .logprob_ids = {transfer->logprob_ids, transfer->logprob_width},
                      .logprob_values = {transfer->logprob_values, transfer->logprob_width}}};
    actor_outbox_push(outbox, (actor_peer_t){transfer->peer}, PROTO_KIND_PREFILLED, 0, &body);
}

static void
renew(actor_prefill_role_core_t *self, const actor_input_t *input, uint64_t key,
      actor_outbox_t *outbox)
{
    transfer_t *transfer = find(self, key);
    if (transfer == NULL || transfer->peer != input->from.index) {
        failure_t failure = lost("lease_expired", "this prefill node knows nothing of it");
        send_failed(input->from.index, key, &failure, outbox);
    } else if (transfer->state != STATE_RELEASING) {
        transfer->lease_until_ns = input->now_ns + self->options.lease_ns;
        if (transfer->state == STATE_HELD && transfer->was_told) {
            send_prefilled(transfer, outbox); /* it may have been lost; twice is harmless */
        }
    }
}

static void
on_renew(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_lease_renew_t *body = &input->body->lease_renew;
    if (body->transfer != 0) {
        renew(self, input, body->transfer, outbox);
    }
    for (uint32_t i = 0; i < body->transfers.count; i++) {
        renew(self, input, body->transfers.data[i], outbox);
    }
}

static void
on_close(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_transfer_close_t *close = &input->body->transfer_close;
    transfer_t *transfer = find(self, close->transfer);
    if (transfer == NULL) {
        send_closed(input->from.index, close->transfer, 0, outbox);
        return;
    }
    if (transfer->peer != input->from.index) {
        self->ignored_count++;
        return;
    }
    transfer->was_closed = true;
    let_go(self, transfer, (proto_status_t)close->status, outbox);
}

/* ---- the scheduler --------------------------------------------------------------------------- */

static void
on_tokens(actor_prefill_role_core_t *self, const actor_input_t *input)
{
    const proto_tokens_t *tokens = &input->body->tokens;
    uint32_t rows = tokens->requests.count;
    if (tokens->token_counts.count != rows ||
        (tokens->logprob_widths.count != 0 && tokens->logprob_widths.count != rows)) {
        self->ignored_count++;
        return;
    }
    size_t token_at = 0;
    size_t logprob_at = 0;
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t count = tokens->token_counts.data[r];
        uint32_t width = tokens->logprob_widths.count > 0 ? tokens->logprob_widths.data[r] : 0;
        transfer_t *transfer = find(self, tokens->requests.data[r]);
        bool fits = token_at + count <= tokens->tokens.count &&
                    logprob_at + (size_t)count * width <= tokens->logprob_ids.count &&
                    logprob_at + (size_t)count * width <= tokens->logprob_values.count;
        if (!fits) {
            self->ignored_count++;
            return;
        }
        if (transfer != NULL && count == 1 && width <= LOGPROBS_MAX) {
            transfer->has_token = true;
            transfer->token = tokens->tokens.data[token_at];
            transfer->logprob_width = width;
            for (uint32_t i = 0; i < width; i++) {
                transfer->logprob_ids[i] = tokens->logprob_ids.data[logprob_at + i];
                transfer->logprob_values[i] = tokens->logprob_values.data[logprob_at + i];
            }
        }
        token_at += count;
        logprob_at += (size_t)count * width;
    }
}

static void
on_finished(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_finished_t *finished = &input->body->finished;
    transfer_t *transfer = find(self, input->header->request);
    if (transfer == NULL || transfer->state != STATE_QUEUED) {
        self->ignored_count++; /* it was let go before */
        return;
    }
    bool well = finished->reason == PROTO_FINISH_STOP || finished->reason == PROTO_FINISH_LENGTH;
    set_state(self, transfer, STATE_HELD);
    if (!well || !transfer->has_token) {
        failure_t failure = {.reason = well ? PROTO_FINISH_ERROR : finished->reason,
                             .status =
                                 well ? STATUS_ERR_INTERNAL : (proto_status_t)finished->status,
                             .code = well ? proto_text("internal_error") : finished->code,
                             .detail = finished->detail,
                             .retry_after_ms = finished->retry_after_ms};
        fail(self, transfer, &failure, outbox);
        return;
    }
    transfer->is_stop = finished->reason == PROTO_FINISH_STOP;
    transfer->cached_tokens = finished->cached_tokens;
    transfer->queue_ns = finished->queue_ns;
    send_prefilled(transfer, outbox);
    transfer->was_told = true;
}

static void
on_returned(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_returned_t *returned = &input->body->returned;
    transfer_t *transfer = find(self, returned->transfer);
    if (transfer == NULL || transfer->state != STATE_RELEASING) {
        self->ignored_count++;
        return;
    }
    finish(self, transfer, returned->block_count, outbox);
}

static proto_text_t
keep_text(proto_text_t text, char *room)
{
    if (text.size_bytes > 0) {
        memcpy(room, text.data, text.size_bytes);
    }
    return (proto_text_t){room, text.size_bytes};
}

static void
tell_model(const actor_prefill_role_core_t *self, uint32_t peer, actor_outbox_t *outbox)
{
    proto_body_t body = {.model_info = self->model};
    if (!self->has_model || self->is_draining || self->kv_transfer.index == ACTOR_PEER_NONE) {
        body.model_info = (proto_model_info_t){0};
        body.model_info.detail = proto_text(self->is_draining  ? "the prefill node is draining"
                                            : !self->has_model ? "it has no executor"
                                                               : "it has no kv-transfer");
    }
    actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_MODEL_INFO, 0, &body);
}

static void
tell_models(const actor_prefill_role_core_t *self, actor_outbox_t *outbox)
{
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->peers[peer].role == PROTO_ROLE_DECODE_ROLE) {
            tell_model(self, peer, outbox);
        }
    }
}

/* The executor is gone: nothing that was not sent yet will come. */
static void
lose_cache(actor_prefill_role_core_t *self, const char *code, const char *detail,
           actor_outbox_t *outbox)
{
    failure_t failure = lost(code, detail);
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        transfer_t *transfer = &self->transfers[i];
        if (transfer->state == STATE_HELD && transfer->has_cache && !transfer->is_sent) {
            fail(self, transfer, &failure, outbox);
        }
    }
}

static void
on_model_info(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_model_info_t *info = &input->body->model_info;
    bool had_model = self->has_model;
    self->has_model = info->slot_count > 0;
    self->model = *info;
    self->model.model_name = keep_text(info->model_name, self->model_name);
    self->model.fingerprint = keep_text(info->fingerprint, self->fingerprint);
    self->model.detail = proto_text("");
    if (info->page_hash_key.size_bytes > 0) {
        memcpy(self->page_hash_key, info->page_hash_key.data, info->page_hash_key.size_bytes);
    }
    self->model.page_hash_key.data = self->page_hash_key;
    fold(self, self->has_model ? 1 : 2);
    if (had_model) {
        lose_cache(self, "worker_lost", "the prefill node lost its executor", outbox);
    }
    tell_models(self, outbox);
}

static void
on_load(const actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->peers[peer].role == PROTO_ROLE_DECODE_ROLE) {
            actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_LOAD, 0, input->body);
        }
    }
}

/* ---- kv-transfer ----------------------------------------------------------------------------- */

static void
on_done(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_transfer_done_t *done = &input->body->transfer_done;
    transfer_t *transfer = find(self, done->transfer);
    if (transfer == NULL || transfer->state == STATE_RELEASING) {
        self->ignored_count++; /* the answer to our cancel */
        return;
    }
    if (done->status == STATUS_OK) {
        transfer->is_sent = true;
        return;
    }
    failure_t failure = {.reason = PROTO_FINISH_ERROR,
                         .status = (proto_status_t)done->status,
                         .code = done->code,
                         .detail = done->detail,
                         .retry_after_ms = RETRY_AFTER_MS};
    fail(self, transfer, &failure, outbox);
}

/* ---- links and time -------------------------------------------------------------------------- */

static void
on_peer_up(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    if (up->peer == ACTOR_PEER_LOCAL || up->peer >= ACTOR_PEER_COUNT_MAX) {
        self->ignored_count++;
        return;
    }
    peer_t *peer = &self->peers[up->peer];
    *peer = (peer_t){.role = (proto_role_t)up->role, .epoch = up->epoch};
    size_t size =
        up->name.size_bytes < sizeof peer->name - 1 ? up->name.size_bytes : sizeof peer->name - 1;
    memcpy(peer->name, up->name.data, size);
    fold(self, up->epoch);
    if (peer->role == PROTO_ROLE_SCHEDULER) {
        self->scheduler.index = up->peer;
    } else if (peer->role == PROTO_ROLE_KV_TRANSFER) {
        self->kv_transfer.index = up->peer;
        tell_models(self, outbox);
    } else if (peer->role == PROTO_ROLE_DECODE_ROLE) {
        tell_model(self, up->peer, outbox);
    }
}

static void
lose_scheduler(actor_prefill_role_core_t *self, actor_outbox_t *outbox)
{
    self->scheduler.index = ACTOR_PEER_NONE;
    self->has_model = false;
    failure_t failure = lost("worker_lost", "the prefill node lost its scheduler");
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        transfer_t *transfer = &self->transfers[i];
        if (transfer->state == STATE_RELEASING) {
            finish(self, transfer, 0, outbox);
        } else if (transfer->state != STATE_FREE) {
            fail(self, transfer, &failure, outbox);
        }
    }
    tell_models(self, outbox);
}

static void
lose_decode_role(actor_prefill_role_core_t *self, uint32_t peer, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        transfer_t *transfer = &self->transfers[i];
        if (transfer->state != STATE_FREE && transfer->peer == peer) {
            transfer->peer = ACTOR_PEER_NONE; /* its successor asks under other keys */
            let_go(self, transfer, STATUS_ERR_PEER_LOST, outbox);
        }
    }
}

static void
on_peer_down(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_down_t *down = &input->body->peer_down;
    if (down->peer >= ACTOR_PEER_COUNT_MAX || self->peers[down->peer].role == PROTO_ROLE_NONE ||
        self->peers[down->peer].epoch != down->epoch) {
        self->ignored_count++;
        return;
    }
    proto_role_t role = self->peers[down->peer].role;
    self->peers[down->peer].role = PROTO_ROLE_NONE;
    if (role == PROTO_ROLE_SCHEDULER && down->peer == self->scheduler.index) {
        lose_scheduler(self, outbox);
    } else if (role == PROTO_ROLE_KV_TRANSFER && down->peer == self->kv_transfer.index) {
        self->kv_transfer.index = ACTOR_PEER_NONE;
        failure_t failure = lost("kv_transfer_failed", "the prefill node lost its kv-transfer");
        for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
            transfer_t *transfer = &self->transfers[i];
            bool hangs = transfer->state == STATE_QUEUED || transfer->state == STATE_HELD;
            if (hangs && transfer->has_cache && !transfer->is_sent) {
                fail(self, transfer, &failure, outbox);
            }
        }
        tell_models(self, outbox);
    } else if (role == PROTO_ROLE_DECODE_ROLE) {
        lose_decode_role(self, down->peer, outbox);
    }
}

static void
on_timer(actor_prefill_role_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    failure_t failure = lost("lease_expired", "nobody renewed the lease of this transfer");
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        transfer_t *transfer = &self->transfers[i];
        bool leased = transfer->state == STATE_QUEUED || transfer->state == STATE_HELD;
        if (leased && transfer->lease_until_ns <= now_ns) {
            fail(self, transfer, &failure, outbox);
        }
    }
}

/* ---- the core interface ---------------------------------------------------------------------- */

static void
step_local(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((int)input->header->kind) {
    case PROTO_KIND_PEER_UP:
        on_peer_up(self, input, outbox);
        break;
    case PROTO_KIND_PEER_DOWN:
        on_peer_down(self, input, outbox);
        break;
    case PROTO_KIND_TIMER:
        on_timer(self, input->now_ns, outbox);
        break;
    case PROTO_KIND_DRAIN:
        self->is_draining = true;
        tell_models(self, outbox);
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step_decode_role(actor_prefill_role_core_t *self, const actor_input_t *input,
                 actor_outbox_t *outbox)
{
    switch ((int)input->header->kind) {
    case PROTO_KIND_TRANSFER_OFFER:
        on_offer(self, input, outbox);
        break;
    case PROTO_KIND_LEASE_RENEW:
        on_renew(self, input, outbox);
        break;
    case PROTO_KIND_TRANSFER_CLOSE:
        on_close(self, input, outbox);
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step_scheduler(actor_prefill_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((int)input->header->kind) {
    case PROTO_KIND_MODEL_INFO:
        on_model_info(self, input, outbox);
        break;
    case PROTO_KIND_LOAD:
        on_load(self, input, outbox);
        break;
    case PROTO_KIND_TOKENS:
        on_tokens(self, input);
        break;
    case PROTO_KIND_FINISHED:
        on_finished(self, input, outbox);
        break;
    case PROTO_KIND_RETURNED:
        on_returned(self, input, outbox);
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_prefill_role_core_t *self = core;
    proto_require_set_request(input->header->request);
    uint32_t from = input->from.index;
    if (from == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
    } else if (from == self->scheduler.index) {
        step_scheduler(self, input, outbox);
    } else if (from == self->kv_transfer.index) {
        if (input->header->kind == PROTO_KIND_TRANSFER_DONE) {
            on_done(self, input, outbox);
        }
    } else if (from < ACTOR_PEER_COUNT_MAX && self->peers[from].role == PROTO_ROLE_DECODE_ROLE) {
        step_decode_role(self, input, outbox);
    } else {
        self->ignored_count++;
    }
    proto_require_set_request(0);
}

static uint64_t
deadline_ns(const void *core)
{
    const actor_prefill_role_core_t *self = core;
    uint64_t deadline = UINT64_MAX;
    for (uint32_t i = 0; self->open_count > 0 && i < self->options.transfer_count_max; i++) {
        const transfer_t *transfer = &self->transfers[i];
        bool leased = transfer->state == STATE_QUEUED || transfer->state == STATE_HELD;
        if (leased && transfer->lease_until_ns < deadline) {
            deadline = transfer->lease_until_ns;
        }
    }
    return deadline;
}

static uint64_t
digest(const void *core)
{
    return ((const actor_prefill_role_core_t *)core)->digest;
}

static void
stats(const void *core, proto_stats_t *out)
{
    out->refused_in += ((const actor_prefill_role_core_t *)core)->ignored_count;
}

static void
check(const void *core)
{
    const actor_prefill_role_core_t *self = core;
    uint32_t open = 0;
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        const transfer_t *transfer = &self->transfers[i];
        open += transfer->state != STATE_FREE ? 1 : 0;
        require(transfer->state != STATE_QUEUED || self->scheduler.index != ACTOR_PEER_NONE);
        require(transfer->state == STATE_FREE || transfer->transfer != 0);
    }
    require(open == self->open_count);
}

static bool
idle(const void *core)
{
    return ((const actor_prefill_role_core_t *)core)->open_count == 0;
}

/* The most that one input can make it say: an offer's columns, passed on twice; or a word to and
 * about each transfer. */
static size_t
outbox_size_bytes(const actor_prefill_role_options_t *options)
{
    size_t offer = 2 * ((size_t)PROTO_TOKENS_MAX * sizeof(int32_t) + 16384 +
                        (size_t)PROTO_PAGES_MAX * PROTO_HASH_SIZE_BYTES + (size_t)(24 << 20));
    size_t words = (size_t)options->transfer_count_max * 4 * 2048;
    size_t models = (size_t)ACTOR_PEER_COUNT_MAX * 8192;
    return offer + words + models + 65536;
}

proto_status_t
actor_prefill_role_core_new(const actor_prefill_role_options_t *options,
                            actor_prefill_role_core_t **out_p)
{
    require(options != NULL);
    require(options->transfer_count_max <= TRANSFERS_MAX);
    actor_prefill_role_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    if (self->options.transfer_count_max == 0) {
        self->options.transfer_count_max = TRANSFERS_DEFAULT;
    }
    if (self->options.lease_ns == 0) {
        self->options.lease_ns = LEASE_DEFAULT_NS;
    }
    self->scheduler.index = ACTOR_PEER_NONE;
    self->kv_transfer.index = ACTOR_PEER_NONE;
    self->transfers = calloc(self->options.transfer_count_max, sizeof *self->transfers);
    if (self->transfers == NULL) {
        actor_prefill_role_core_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    self->ops = (actor_core_ops_t){
        .name = "prefill-role",
        .role = PROTO_ROLE_PREFILL_ROLE,
        .outbox_size_bytes = outbox_size_bytes(&self->options),
        .outbox_count_max = 4 * self->options.transfer_count_max + 2 * ACTOR_PEER_COUNT_MAX + 8,
        .step = step,
        .deadline_ns = deadline_ns,
        .digest = digest,
        .stats = stats,
        .check = check,
        .idle = idle,
    };
    *out_p = self;
    return STATUS_OK;
}

void
actor_prefill_role_core_destroy(actor_prefill_role_core_t **self_p)
{
    actor_prefill_role_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->transfers);
    free(self);
    *self_p = NULL;
}

const actor_core_ops_t *
actor_prefill_role_core_ops(const actor_prefill_role_core_t *self)
{
    return &self->ops;
}

uint32_t
actor_prefill_role_core_count(const actor_prefill_role_core_t *self)
{
    return self->open_count;
}
