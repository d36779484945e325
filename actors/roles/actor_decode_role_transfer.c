/* Transfers: reservation, offer, lease, landing, closing. */
#include "actor_decode_role_state.h"

static decode_role_transfer_t *
find(const actor_decode_role_core_t *self, uint64_t key)
{
    for (uint32_t i = 0; i < self->transfer_max; i++) {
        decode_role_transfer_t *transfer = &self->transfers[i];
        if (transfer->state != DECODE_ROLE_TRANSFER_FREE && transfer->key == key) {
            return transfer;
        }
    }
    return NULL;
}

static void
set_state(actor_decode_role_core_t *self, decode_role_transfer_t *transfer,
          decode_role_transfer_state_t state)
{
    self->transfer_count += transfer->state == DECODE_ROLE_TRANSFER_FREE ? 1 : 0;
    self->transfer_count -= state == DECODE_ROLE_TRANSFER_FREE ? 1 : 0;
    if (state == DECODE_ROLE_TRANSFER_FREE && transfer->peer != ACTOR_PEER_NONE) {
        self->peers[transfer->peer].transfer_count--;
    }
    transfer->state = (uint8_t)state;
    decode_role_fold(self, transfer->key ^ (uint64_t)state << 60);
}

bool
actor_decode_role_has_prefill(const actor_decode_role_core_t *self)
{
    if (self->kv_transfer.index == ACTOR_PEER_NONE) {
        return false;
    }
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->peers[peer].role == PROTO_ROLE_PREFILL_ROLE && self->peers[peer].can_serve) {
            return true;
        }
    }
    return false;
}

/* The prefill node with the fewest open transfers, in turn where several have as few. */
static uint32_t
choose_peer(const actor_decode_role_core_t *self)
{
    uint32_t chosen = ACTOR_PEER_NONE;
    for (uint32_t k = 1; k <= ACTOR_PEER_COUNT_MAX; k++) {
        uint32_t peer = (self->last_peer + k) % ACTOR_PEER_COUNT_MAX;
        const decode_role_peer_t *known = &self->peers[peer];
        bool serves = known->role == PROTO_ROLE_PREFILL_ROLE && known->can_serve;
        if (serves && (chosen == ACTOR_PEER_NONE ||
                       known->transfer_count < self->peers[chosen].transfer_count)) {
            chosen = peer;
        }
    }
    return chosen;
}

/* Until when blocks are waited for: this wait is the request's queue. */
static uint64_t
queue_deadline(const actor_decode_role_core_t *self, const decode_role_request_t *request,
               uint64_t now_ns)
{
    uint64_t timeout_ns =
        request->timeout_ns != 0 ? request->timeout_ns : self->options.queue_timeout_ns;
    return timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : UINT64_MAX;
}

bool
actor_decode_role_transfer_begin(actor_decode_role_core_t *self, uint64_t now_ns,
                                 decode_role_request_t *request, actor_outbox_t *outbox)
{
    uint32_t at = 0;
    while (at < self->transfer_max && self->transfers[at].state != DECODE_ROLE_TRANSFER_FREE) {
        at++;
    }
    uint32_t peer = choose_peer(self);
    if (at == self->transfer_max || peer == ACTOR_PEER_NONE ||
        self->kv_transfer.index == ACTOR_PEER_NONE) {
        return false;
    }
    decode_role_transfer_t *transfer = &self->transfers[at];
    *transfer = (decode_role_transfer_t){.key = self->key_base + ++self->key_count,
                                         .deadline_ns = queue_deadline(self, request, now_ns),
                                         .request = (uint32_t)(request - self->requests),
                                         .peer = peer};
    set_state(self, transfer, DECODE_ROLE_TRANSFER_RESERVING);
    self->last_peer = peer;
    self->peers[peer].transfer_count++;
    request->transfer = at;
    request->attempt_count++;
    /* The first token comes with the prefill, and is no page's before it is known. */
    proto_bytes_t hashes = actor_scheduler_store_get(self->store, request->parcel).page_hashes;
    proto_body_t body = {.reserve = {.transfer = transfer->key,
                                     .prompt_length = request->prompt_length + 1,
                                     .generation_max = request->generation_max - 1,
                                     .emitted = request->emitted + 1,
                                     .priority = request->priority,
                                     .queue_timeout_ns = request->timeout_ns,
                                     .page_hashes = hashes}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_RESERVE, request->request, &body);
    return true;
}

static void
finish_closing(actor_decode_role_core_t *self, decode_role_transfer_t *transfer)
{
    if (!transfer->awaits_closed && !transfer->awaits_returned) {
        set_state(self, transfer, DECODE_ROLE_TRANSFER_FREE);
    }
}

static void
send_close(const actor_decode_role_core_t *self, const decode_role_transfer_t *transfer,
           proto_status_t status, actor_outbox_t *outbox)
{
    (void)self;
    proto_body_t body = {.transfer_close = {.transfer = transfer->key, .status = status}};
    actor_outbox_push(outbox, (actor_peer_t){transfer->peer}, PROTO_KIND_TRANSFER_CLOSE, 0, &body);
}

static void
send_release(const actor_decode_role_core_t *self, const decode_role_transfer_t *transfer,
             proto_status_t status, actor_outbox_t *outbox)
{
    proto_body_t body = {.release = {.transfer = transfer->key, .status = status}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_RELEASE, 0, &body);
}

void
actor_decode_role_transfer_close(actor_decode_role_core_t *self, decode_role_transfer_t *transfer,
                                 uint64_t now_ns, proto_status_t status, bool keeps_blocks,
                                 actor_outbox_t *outbox)
{
    require(transfer->state != DECODE_ROLE_TRANSFER_FREE);
    require(transfer->state != DECODE_ROLE_TRANSFER_CLOSING);
    transfer->request = DECODE_ROLE_NONE;
    transfer->awaits_closed = transfer->is_offered && transfer->peer != ACTOR_PEER_NONE;
    transfer->awaits_returned = !keeps_blocks && self->scheduler.index != ACTOR_PEER_NONE;
    transfer->deadline_ns = now_ns + self->options.offer_timeout_ns;
    if (transfer->is_offered && !transfer->is_landed &&
        self->kv_transfer.index != ACTOR_PEER_NONE) {
        proto_body_t body = {.transfer_cancel = {.transfer = transfer->key}};
        actor_outbox_push(outbox, self->kv_transfer, PROTO_KIND_TRANSFER_CANCEL, 0, &body);
    }
    if (transfer->awaits_closed) {
        send_close(self, transfer, status, outbox);
    }
    if (transfer->awaits_returned) {
        send_release(self, transfer, status, outbox);
    }
    set_state(self, transfer, DECODE_ROLE_TRANSFER_CLOSING);
    finish_closing(self, transfer);
}

/* It failed before its request had a token. */
static void
fail(actor_decode_role_core_t *self, decode_role_transfer_t *transfer, uint64_t now_ns,
     const decode_role_failure_t *failure, actor_outbox_t *outbox)
{
    decode_role_request_t *request = &self->requests[transfer->request];
    self->failed_count++;
    actor_decode_role_transfer_close(self, transfer, now_ns, failure->status, false, outbox);
    actor_decode_role_try_again(self, now_ns, request, failure, outbox);
}

static bool
is_open(const decode_role_transfer_t *transfer)
{
    return transfer != NULL && transfer->state != DECODE_ROLE_TRANSFER_CLOSING;
}

/* ---- the way there --------------------------------------------------------------------------- */

static void
send_expect(const actor_decode_role_core_t *self, const proto_reserved_t *reserved,
            actor_outbox_t *outbox)
{
    proto_body_t body = {.transfer_expect = {.transfer = reserved->transfer,
                                             .computed = reserved->computed,
                                             .wanted = reserved->wanted,
                                             .fingerprint = reserved->fingerprint,
                                             .run_groups = reserved->run_groups,
                                             .run_columns = reserved->run_columns,
                                             .run_counts = reserved->run_counts,
                                             .run_blocks = reserved->run_blocks,
                                             .run_generations = reserved->run_generations}};
    actor_outbox_push(outbox, self->kv_transfer, PROTO_KIND_TRANSFER_EXPECT, 0, &body);
}

static void
send_offer(const actor_decode_role_core_t *self, const decode_role_transfer_t *transfer,
           const proto_reserved_t *reserved, actor_outbox_t *outbox)
{
    const decode_role_request_t *request = &self->requests[transfer->request];
    const decode_role_peer_t *kv = &self->peers[self->kv_transfer.index];
    actor_scheduler_content_t content = actor_scheduler_store_get(self->store, request->parcel);
    proto_body_t body = {.transfer_offer = {.transfer = transfer->key,
                                            .prompt_length = request->prompt_length,
                                            .computed = reserved->computed,
                                            .emitted = request->emitted,
                                            .generation_max = request->generation_max,
                                            .priority = request->priority,
                                            .queue_timeout_ns = request->timeout_ns,
                                            .kv_name = proto_text(kv->name),
                                            .kv_epoch = kv->epoch,
                                            .fingerprint = reserved->fingerprint,
                                            .page_hashes = content.page_hashes,
                                            .run_groups = reserved->run_groups,
                                            .run_columns = reserved->run_columns,
                                            .run_counts = reserved->run_counts,
                                            .run_blocks = reserved->run_blocks,
                                            .run_generations = reserved->run_generations,
                                            .tokens = content.tokens,
                                            .sampling = content.sampling}};
    actor_outbox_push(outbox, (actor_peer_t){transfer->peer}, PROTO_KIND_TRANSFER_OFFER, 0, &body);
}

void
actor_decode_role_on_reserved(actor_decode_role_core_t *self, const actor_input_t *input,
                              actor_outbox_t *outbox)
{
    const proto_reserved_t *reserved = &input->body->reserved;
    decode_role_transfer_t *transfer = find(self, reserved->transfer);
    if (!is_open(transfer) || transfer->state != DECODE_ROLE_TRANSFER_RESERVING) {
        self->ignored_count++; /* given up meanwhile: its RELEASE is on the way */
        return;
    }
    /* A peer or a kv-transfer that went while the blocks were waited for. */
    if (transfer->peer == ACTOR_PEER_NONE || self->kv_transfer.index == ACTOR_PEER_NONE) {
        decode_role_failure_t failure = decode_role_lost("kv_transfer_failed", "its peer is gone");
        fail(self, transfer, input->now_ns, &failure, outbox);
        return;
    }
    transfer->is_offered = true;
    transfer->deadline_ns = input->now_ns + self->options.offer_timeout_ns;
    set_state(self, transfer, DECODE_ROLE_TRANSFER_OFFERED);
    send_expect(self, reserved, outbox);
    send_offer(self, transfer, reserved, outbox);
}

void
actor_decode_role_on_taken(actor_decode_role_core_t *self, const actor_input_t *input)
{
    decode_role_transfer_t *transfer = find(self, input->body->offer_taken.transfer);
    if (!is_open(transfer) || transfer->state != DECODE_ROLE_TRANSFER_OFFERED ||
        transfer->peer != input->from.index) {
        self->ignored_count++;
        return;
    }
    transfer->deadline_ns = UINT64_MAX; /* its queue has a timeout of its own */
    set_state(self, transfer, DECODE_ROLE_TRANSFER_RUNNING);
}

/* Both halves are here, in whatever order. */
static void
arrive(actor_decode_role_core_t *self, decode_role_transfer_t *transfer, uint64_t now_ns,
       actor_outbox_t *outbox)
{
    decode_role_request_t *request = &self->requests[transfer->request];
    bool is_whole = (transfer->row_flags & PROTO_ROW_STOP_TOKEN) != 0;
    if (transfer->is_prefilled && (transfer->is_landed || is_whole)) {
        decode_role_transfer_t copy = *transfer;
        actor_decode_role_transfer_close(self, transfer, now_ns, STATUS_OK, !is_whole, outbox);
        actor_decode_role_go_on(self, request, &copy, outbox);
    } else if (transfer->is_prefilled) {
        transfer->deadline_ns = now_ns + self->options.landing_timeout_ns;
    }
}

void
actor_decode_role_on_prefilled(actor_decode_role_core_t *self, const actor_input_t *input,
                               actor_outbox_t *outbox)
{
    const proto_prefilled_t *prefilled = &input->body->prefilled;
    decode_role_transfer_t *transfer = find(self, prefilled->transfer);
    bool expected = is_open(transfer) && transfer->is_offered &&
                    transfer->peer == input->from.index && !transfer->is_prefilled;
    if (!expected || prefilled->tokens.count != 1 ||
        prefilled->logprob_width > DECODE_ROLE_LOGPROBS_MAX ||
        prefilled->logprob_ids.count != prefilled->logprob_width ||
        prefilled->logprob_values.count != prefilled->logprob_width) {
        self->ignored_count++;
        return;
    }
    transfer->is_prefilled = true;
    transfer->token = prefilled->tokens.data[0];
    transfer->row_flags = prefilled->row_flags;
    transfer->logprob_width = prefilled->logprob_width;
    for (uint32_t i = 0; i < prefilled->logprob_width; i++) {
        transfer->logprob_ids[i] = prefilled->logprob_ids.data[i];
        transfer->logprob_values[i] = prefilled->logprob_values.data[i];
    }
    decode_role_request_t *request = &self->requests[transfer->request];
    request->cached_tokens = prefilled->cached_tokens;
    request->queue_ns = prefilled->queue_ns;
    arrive(self, transfer, input->now_ns, outbox);
}

void
actor_decode_role_on_done(actor_decode_role_core_t *self, const actor_input_t *input,
                          actor_outbox_t *outbox)
{
    const proto_transfer_done_t *done = &input->body->transfer_done;
    decode_role_transfer_t *transfer = find(self, done->transfer);
    if (!is_open(transfer) || !transfer->is_offered || transfer->is_landed) {
        self->ignored_count++; /* the answer to a cancel */
        return;
    }
    if (done->status != STATUS_OK) {
        decode_role_failure_t failure = {.reason = PROTO_FINISH_ERROR,
                                         .status = (proto_status_t)done->status,
                                         .code = proto_text("kv_transfer_failed"),
                                         .detail = done->detail,
                                         .retry_after_ms = DECODE_ROLE_RETRY_AFTER_MS};
        fail(self, transfer, input->now_ns, &failure, outbox);
        return;
    }
    transfer->is_landed = true;
    arrive(self, transfer, input->now_ns, outbox);
}

void
actor_decode_role_on_failed(actor_decode_role_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox)
{
    const proto_transfer_failed_t *failed = &input->body->transfer_failed;
    decode_role_transfer_t *transfer = find(self, failed->transfer);
    if (!is_open(transfer) || !transfer->is_offered || transfer->peer != input->from.index) {
        self->ignored_count++;
        return;
    }
    if (transfer->is_prefilled && transfer->is_landed) {
        self->ignored_count++;
        return;
    }
    decode_role_failure_t failure = {.reason = failed->reason == PROTO_FINISH_REFUSED
                                                   ? PROTO_FINISH_REFUSED
                                                   : PROTO_FINISH_ERROR,
                                     .status = (proto_status_t)failed->status,
                                     .code = failed->code,
                                     .detail = failed->detail,
                                     .retry_after_ms = failed->retry_after_ms};
    fail(self, transfer, input->now_ns, &failure, outbox);
}

/* ---- closing --------------------------------------------------------------------------------- */

void
actor_decode_role_on_closed(actor_decode_role_core_t *self, const actor_input_t *input)
{
    decode_role_transfer_t *transfer = find(self, input->body->transfer_closed.transfer);
    if (transfer == NULL || !transfer->awaits_closed || transfer->peer != input->from.index) {
        self->ignored_count++;
        return;
    }
    transfer->awaits_closed = false;
    finish_closing(self, transfer);
}

void
actor_decode_role_on_returned(actor_decode_role_core_t *self, const actor_input_t *input)
{
    decode_role_transfer_t *transfer = find(self, input->body->returned.transfer);
    if (transfer == NULL || !transfer->awaits_returned) {
        self->ignored_count++;
        return;
    }
    transfer->awaits_returned = false;
    finish_closing(self, transfer);
}

/* ---- losses ---------------------------------------------------------------------------------- */

void
actor_decode_role_lose_prefill(actor_decode_role_core_t *self, uint64_t now_ns, uint32_t peer,
                               actor_outbox_t *outbox)
{
    decode_role_failure_t failure = decode_role_lost("worker_lost", "the prefill node is gone");
    for (uint32_t i = 0; i < self->transfer_max; i++) {
        decode_role_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == DECODE_ROLE_TRANSFER_FREE || transfer->peer != peer) {
            continue;
        }
        transfer->peer = ACTOR_PEER_NONE;
        self->peers[peer].transfer_count--;
        if (transfer->state == DECODE_ROLE_TRANSFER_CLOSING) {
            transfer->awaits_closed = false; /* what it held went with it */
            finish_closing(self, transfer);
        } else if (transfer->is_offered) {
            fail(self, transfer, now_ns, &failure, outbox);
        }
    }
}

void
actor_decode_role_lose_kv_transfer(actor_decode_role_core_t *self, uint64_t now_ns,
                                   actor_outbox_t *outbox)
{
    decode_role_failure_t failure =
        decode_role_lost("kv_transfer_failed", "the kv-transfer of the decode node is gone");
    for (uint32_t i = 0; i < self->transfer_max; i++) {
        decode_role_transfer_t *transfer = &self->transfers[i];
        bool runs = transfer->state == DECODE_ROLE_TRANSFER_OFFERED ||
                    transfer->state == DECODE_ROLE_TRANSFER_RUNNING;
        if (runs && !transfer->is_landed) {
            fail(self, transfer, now_ns, &failure, outbox);
        }
    }
}

void
actor_decode_role_lose_executor(actor_decode_role_core_t *self, uint64_t now_ns,
                                actor_outbox_t *outbox)
{
    decode_role_failure_t failure =
        decode_role_lost("worker_lost", "the decode node lost its executor or its scheduler");
    for (uint32_t i = 0; i < self->transfer_max; i++) {
        decode_role_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == DECODE_ROLE_TRANSFER_FREE) {
            continue;
        }
        if (transfer->state != DECODE_ROLE_TRANSFER_CLOSING) {
            decode_role_request_t *request = &self->requests[transfer->request];
            actor_decode_role_transfer_close(self, transfer, now_ns, failure.status, false, outbox);
            actor_decode_role_end_with(self, request, &failure, outbox);
        }
        if (transfer->state != DECODE_ROLE_TRANSFER_FREE &&
            self->scheduler.index == ACTOR_PEER_NONE) {
            transfer->awaits_returned = false;
            finish_closing(self, transfer);
        }
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

/* As if the scheduler's own queue had refused it; the blocks go back should they come yet. */
static void
end_wait(actor_decode_role_core_t *self, decode_role_transfer_t *transfer, uint64_t now_ns,
         actor_outbox_t *outbox)
{
    decode_role_request_t *request = &self->requests[transfer->request];
    const decode_role_failure_t failure = {.reason = PROTO_FINISH_REFUSED,
                                           .status = STATUS_ERR_DEADLINE,
                                           .code = proto_text("queue_timeout"),
                                           .detail = proto_text("no blocks were free in time"),
                                           .retry_after_ms = DECODE_ROLE_RETRY_AFTER_MS};
    actor_decode_role_transfer_close(self, transfer, now_ns, failure.status, false, outbox);
    actor_decode_role_end_with(self, request, &failure, outbox);
}

static void
send_renewals(actor_decode_role_core_t *self, actor_outbox_t *outbox)
{
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->peers[peer].role != PROTO_ROLE_PREFILL_ROLE) {
            continue;
        }
        uint32_t count = 0;
        for (uint32_t i = 0; i < self->transfer_max; i++) {
            const decode_role_transfer_t *transfer = &self->transfers[i];
            if (transfer->peer == peer && transfer->state == DECODE_ROLE_TRANSFER_RUNNING) {
                self->keys[count++] = transfer->key;
            }
        }
        if (count > 0) {
            proto_body_t body = {.lease_renew = {.transfers = {self->keys, count}}};
            actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_LEASE_RENEW, 0, &body);
        }
    }
}

void
actor_decode_role_transfer_timer(actor_decode_role_core_t *self, uint64_t now_ns,
                                 actor_outbox_t *outbox)
{
    decode_role_failure_t failure =
        decode_role_lost("kv_transfer_failed", "the prefill node did not answer in time");
    for (uint32_t i = 0; i < self->transfer_max; i++) {
        decode_role_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == DECODE_ROLE_TRANSFER_FREE || transfer->deadline_ns > now_ns) {
            continue;
        }
        if (transfer->state == DECODE_ROLE_TRANSFER_RESERVING) {
            end_wait(self, transfer, now_ns, outbox);
            continue;
        }
        if (transfer->state != DECODE_ROLE_TRANSFER_CLOSING) {
            fail(self, transfer, now_ns, &failure, outbox);
            continue;
        }
        /* Said again: an answer may have been lost. */
        transfer->deadline_ns = now_ns + self->options.offer_timeout_ns;
        if (transfer->awaits_closed) {
            send_close(self, transfer, STATUS_ERR_CANCELLED, outbox);
        }
        if (transfer->awaits_returned) {
            send_release(self, transfer, STATUS_ERR_CANCELLED, outbox);
        }
    }
    if (now_ns >= self->renew_next_ns) {
        self->renew_next_ns = now_ns + self->options.renew_ns;
        send_renewals(self, outbox);
    }
}

uint64_t
actor_decode_role_transfer_deadline(const actor_decode_role_core_t *self)
{
    uint64_t deadline = UINT64_MAX;
    for (uint32_t i = 0; self->transfer_count > 0 && i < self->transfer_max; i++) {
        const decode_role_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == DECODE_ROLE_TRANSFER_FREE) {
            continue;
        }
        deadline = transfer->deadline_ns < deadline ? transfer->deadline_ns : deadline;
        if (transfer->state == DECODE_ROLE_TRANSFER_RUNNING && self->renew_next_ns < deadline) {
            deadline = self->renew_next_ns;
        }
    }
    return deadline;
}
