/* Requests: what gateways and the scheduler say of them. */
#include <string.h>

#include "actor_decode_role_state.h"

static decode_role_request_t *
find(const actor_decode_role_core_t *self, uint64_t id)
{
    for (uint32_t i = 0; i < self->options.request_count_max; i++) {
        decode_role_request_t *request = &self->requests[i];
        if (request->state != DECODE_ROLE_REQUEST_FREE && request->request == id) {
            return request;
        }
    }
    return NULL;
}

static void
set_state(actor_decode_role_core_t *self, decode_role_request_t *request,
          decode_role_request_state_t state)
{
    self->request_count += request->state == DECODE_ROLE_REQUEST_FREE ? 1 : 0;
    self->request_count -= state == DECODE_ROLE_REQUEST_FREE ? 1 : 0;
    request->state = (uint8_t)state;
    decode_role_fold(self, request->request ^ (uint64_t)state << 61);
}

static void
drop_parcel(actor_decode_role_core_t *self, decode_role_request_t *request)
{
    if (request->parcel.value != 0) {
        actor_scheduler_store_drop(self->store, request->parcel);
        request->parcel.value = 0;
    }
}

void
actor_decode_role_forget(actor_decode_role_core_t *self, decode_role_request_t *request)
{
    drop_parcel(self, request);
    set_state(self, request, DECODE_ROLE_REQUEST_FREE);
}

void
actor_decode_role_end(actor_decode_role_core_t *self, decode_role_request_t *request,
                      const proto_finished_t *finished, actor_outbox_t *outbox)
{
    if (request->gateway != ACTOR_PEER_NONE) {
        proto_body_t body = {.finished = *finished};
        actor_outbox_push(outbox, (actor_peer_t){request->gateway}, PROTO_KIND_FINISHED,
                          request->request, &body);
    }
    actor_decode_role_forget(self, request);
}

void
actor_decode_role_end_with(actor_decode_role_core_t *self, decode_role_request_t *request,
                           const decode_role_failure_t *failure, actor_outbox_t *outbox)
{
    proto_finished_t finished = {.reason = failure->reason,
                                 .prompt_tokens = request->prompt_length - request->emitted,
                                 .generated_tokens = request->emitted,
                                 .status = failure->status,
                                 .code = failure->code,
                                 .detail = failure->detail,
                                 .retry_after_ms = failure->retry_after_ms};
    actor_decode_role_end(self, request, &finished, outbox);
}

/* ---- the way in ------------------------------------------------------------------------------ */

/* The scheduler gets it as it came: this node computes the prompt. */
static void
submit_here(actor_decode_role_core_t *self, decode_role_request_t *request, actor_outbox_t *outbox)
{
    actor_scheduler_content_t content = actor_scheduler_store_get(self->store, request->parcel);
    proto_body_t body = {.submit = {.prompt_length = request->prompt_length,
                                    .generation_max = request->generation_max,
                                    .priority = request->priority,
                                    .queue_timeout_ns = request->timeout_ns,
                                    .emitted = request->emitted,
                                    .page_hashes = content.page_hashes,
                                    .tokens = content.tokens,
                                    .sampling = content.sampling}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_SUBMIT, request->request, &body);
    self->local_count++;
    request->is_remote = false;
    drop_parcel(self, request);
    set_state(self, request, DECODE_ROLE_REQUEST_ACTIVE);
}

void
actor_decode_role_begin(actor_decode_role_core_t *self, uint64_t now_ns,
                        decode_role_request_t *request, actor_outbox_t *outbox)
{
    set_state(self, request, DECODE_ROLE_REQUEST_MOVING);
    /* A reservation is for a request that decodes: one token alone is as soon computed here. */
    bool moves = request->generation_max > 1 || self->options.no_local_prefill;
    if (moves && request->generation_max > 1 &&
        actor_decode_role_transfer_begin(self, now_ns, request, outbox)) {
        return;
    }
    if (!self->options.no_local_prefill || request->generation_max == 1) {
        submit_here(self, request, outbox);
        return;
    }
    decode_role_failure_t failure = {.reason = PROTO_FINISH_REFUSED,
                                     .status = STATUS_ERR_REFUSED,
                                     .code = proto_text("no_prefill"),
                                     .detail = proto_text("no prefill node can serve now"),
                                     .retry_after_ms = DECODE_ROLE_RETRY_AFTER_MS};
    actor_decode_role_end_with(self, request, &failure, outbox);
}

void
actor_decode_role_try_again(actor_decode_role_core_t *self, uint64_t now_ns,
                            decode_role_request_t *request, const decode_role_failure_t *failure,
                            actor_outbox_t *outbox)
{
    bool is_refused = failure->reason == PROTO_FINISH_REFUSED && failure->retry_after_ms == 0 &&
                      failure->status != STATUS_ERR_FINGERPRINT;
    bool again = !is_refused && request->attempt_count < DECODE_ROLE_ATTEMPTS_MAX;
    if (again) {
        actor_decode_role_begin(self, now_ns, request, outbox);
    } else if (!is_refused && !self->options.no_local_prefill) {
        submit_here(self, request, outbox);
    } else {
        actor_decode_role_end_with(self, request, failure, outbox);
    }
}

static void
refuse(const actor_input_t *input, proto_status_t status, const char *code, const char *detail,
       actor_outbox_t *outbox)
{
    const proto_submit_t *submit = &input->body->submit;
    bool is_sound = submit->emitted <= submit->prompt_length;
    proto_body_t body = {
        .finished = {.reason = PROTO_FINISH_REFUSED,
                     .prompt_tokens = submit->prompt_length - (is_sound ? submit->emitted : 0),
                     .status = status,
                     .code = proto_text(code),
                     .detail = proto_text(detail),
                     .retry_after_ms =
                         status == STATUS_ERR_INVALID ? 0 : DECODE_ROLE_RETRY_AFTER_MS}};
    actor_outbox_push(outbox, input->from, PROTO_KIND_FINISHED, input->header->request, &body);
}

void
actor_decode_role_on_submit(actor_decode_role_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox)
{
    const proto_submit_t *submit = &input->body->submit;
    uint64_t id = input->header->request;
    if (id == 0 || find(self, id) != NULL) {
        self->ignored_count++; /* a duplicate: its first copy gets the answer */
        return;
    }
    if (!self->has_model) {
        refuse(input, STATUS_ERR_REFUSED, "no_executor", "the decode node has no executor", outbox);
        return;
    }
    /* What is wrong for good is said before anything is asked of anybody. */
    if (submit->prompt_length == 0 || submit->tokens.count != submit->prompt_length ||
        submit->generation_max == 0 || submit->emitted >= submit->prompt_length) {
        refuse(input, STATUS_ERR_INVALID, "invalid", "lengths and tokens differ", outbox);
        return;
    }
    uint32_t at = 0;
    while (at < self->options.request_count_max &&
           self->requests[at].state != DECODE_ROLE_REQUEST_FREE) {
        at++;
    }
    actor_scheduler_content_t content = {.tokens = submit->tokens,
                                         .sampling = submit->sampling,
                                         .page_hashes = submit->page_hashes};
    actor_scheduler_parcel_t parcel = {0};
    if (at == self->options.request_count_max ||
        actor_scheduler_store_put(self->store, &content, &parcel) != STATUS_OK) {
        refuse(input, STATUS_ERR_OVERLOADED, "overloaded", "the decode node is full", outbox);
        return;
    }
    decode_role_request_t *request = &self->requests[at];
    *request = (decode_role_request_t){.request = id,
                                       .timeout_ns = submit->queue_timeout_ns,
                                       .priority = submit->priority,
                                       .gateway = input->from.index,
                                       .prompt_length = submit->prompt_length,
                                       .generation_max = submit->generation_max,
                                       .emitted = submit->emitted,
                                       .parcel = parcel};
    actor_decode_role_begin(self, input->now_ns, request, outbox);
}

void
actor_decode_role_on_finish(actor_decode_role_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox)
{
    decode_role_request_t *request = find(self, input->header->request);
    if (request == NULL || request->gateway != input->from.index) {
        self->ignored_count++;
        return;
    }
    if (request->state == DECODE_ROLE_REQUEST_ACTIVE) {
        actor_outbox_push(outbox, self->scheduler, PROTO_KIND_FINISH, request->request,
                          input->body);
        return;
    }
    const proto_finish_t *finish = &input->body->finish;
    bool well = finish->reason == PROTO_FINISH_STOP || finish->reason == PROTO_FINISH_LENGTH;
    decode_role_failure_t end = {.reason = well ? (proto_finish_reason_t)finish->reason
                                                : PROTO_FINISH_CANCELLED,
                                 .status = well ? STATUS_OK : STATUS_ERR_CANCELLED,
                                 .code = proto_text(well ? "" : "cancelled"),
                                 .detail = proto_text("")};
    actor_decode_role_transfer_close(self, &self->transfers[request->transfer], input->now_ns,
                                     STATUS_ERR_CANCELLED, false, outbox);
    actor_decode_role_end_with(self, request, &end, outbox);
}

/* ---- the way on ------------------------------------------------------------------------------ */

static void
send_first_token(const decode_role_request_t *request, const decode_role_transfer_t *transfer,
                 actor_outbox_t *outbox)
{
    uint32_t index = request->emitted;
    uint8_t count = 1;
    uint8_t width = (uint8_t)transfer->logprob_width;
    proto_body_t body = {
        .tokens = {.requests = {&request->request, 1},
                   .token_indices = {&index, 1},
                   .token_counts = {&count, 1},
                   .tokens = {&transfer->token, 1},
                   .logprob_widths = {&width, 1},
                   .logprob_ids = {transfer->logprob_ids, transfer->logprob_width},
                   .logprob_values = {transfer->logprob_values, transfer->logprob_width}}};
    actor_outbox_push(outbox, (actor_peer_t){request->gateway}, PROTO_KIND_TOKENS, 0, &body);
}

void
actor_decode_role_go_on(actor_decode_role_core_t *self, decode_role_request_t *request,
                        const decode_role_transfer_t *transfer, actor_outbox_t *outbox)
{
    send_first_token(request, transfer, outbox);
    if ((transfer->row_flags & PROTO_ROW_STOP_TOKEN) != 0) {
        proto_finished_t finished = {.reason = PROTO_FINISH_STOP,
                                     .prompt_tokens = request->prompt_length - request->emitted,
                                     .cached_tokens = request->cached_tokens,
                                     .generated_tokens = request->emitted + 1,
                                     .queue_ns = request->queue_ns};
        actor_decode_role_end(self, request, &finished, outbox);
        return;
    }
    actor_scheduler_content_t content = actor_scheduler_store_get(self->store, request->parcel);
    memcpy(self->tokens, content.tokens.data, content.tokens.count * sizeof *self->tokens);
    self->tokens[content.tokens.count] = transfer->token;
    proto_body_t body = {.activate = {.transfer = transfer->key,
                                      .tokens = {self->tokens, content.tokens.count + 1},
                                      .sampling = content.sampling,
                                      .generation_max = request->generation_max - 1,
                                      .emitted = request->emitted + 1,
                                      .priority = request->priority,
                                      .queue_timeout_ns = request->timeout_ns,
                                      .page_hashes = content.page_hashes}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_ACTIVATE, request->request, &body);
    request->is_remote = true;
    drop_parcel(self, request);
    set_state(self, request, DECODE_ROLE_REQUEST_ACTIVE);
}

/* Rows of requests of one gateway go on as they are; usually all of them. */
void
actor_decode_role_on_tokens(actor_decode_role_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox)
{
    const proto_tokens_t *tokens = &input->body->tokens;
    uint64_t told = 0; /* bit of each gateway that got them */
    for (uint32_t r = 0; r < tokens->requests.count; r++) {
        const decode_role_request_t *request = find(self, tokens->requests.data[r]);
        if (request == NULL || request->gateway == ACTOR_PEER_NONE ||
            (told & UINT64_C(1) << request->gateway) != 0) {
            continue;
        }
        /* A gateway finds nothing under ids that are not its own, and passes over them. */
        told |= UINT64_C(1) << request->gateway;
        actor_outbox_push(outbox, (actor_peer_t){request->gateway}, PROTO_KIND_TOKENS, 0,
                          input->body);
    }
}

void
actor_decode_role_on_finished(actor_decode_role_core_t *self, const actor_input_t *input,
                              actor_outbox_t *outbox)
{
    decode_role_request_t *request = find(self, input->header->request);
    if (request == NULL) {
        self->ignored_count++;
        return;
    }
    proto_finished_t finished = input->body->finished;
    if (request->state == DECODE_ROLE_REQUEST_MOVING) {
        /* Its reservation was refused. */
        decode_role_transfer_t *transfer = &self->transfers[request->transfer];
        decode_role_failure_t failure = {.reason = PROTO_FINISH_REFUSED,
                                         .status = (proto_status_t)finished.status,
                                         .code = finished.code,
                                         .detail = finished.detail,
                                         .retry_after_ms = finished.retry_after_ms};
        actor_decode_role_transfer_close(self, transfer, input->now_ns, STATUS_ERR_REFUSED, true,
                                         outbox);
        actor_decode_role_end_with(self, request, &failure, outbox);
        return;
    }
    if (request->is_remote) {
        finished.cached_tokens = request->cached_tokens;
        finished.queue_ns += request->queue_ns;
    }
    actor_decode_role_end(self, request, &finished, outbox);
}
