/* Faults in what a gateway gets, and in what the scheduler takes in. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wrong_faults.h"

/* ---- FINISHED -------------------------------------------------------------------------------- */

bool
wrong_finished_twice(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    if (message->kind == PROTO_KIND_FINISHED) {
        wrong_send(outbox, message);
    }
    return true;
}

bool
wrong_counts(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_FINISHED && message->body.finished.generated_tokens > 0) {
        message->body.finished.generated_tokens--;
    }
    return true;
}

bool
wrong_nan_is_length(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    proto_finished_t *end = &message->body.finished;
    if (message->kind == PROTO_KIND_FINISHED && end->reason == PROTO_FINISH_ERROR) {
        end->reason = PROTO_FINISH_LENGTH;
        end->status = 0;
        end->code.size_bytes = 0;
    }
    return true;
}

bool
wrong_no_retry(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_FINISHED) {
        message->body.finished.retry_after_ms = 0;
    }
    return true;
}

bool
wrong_no_lost(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    const proto_finished_t *end = &message->body.finished;
    return message->kind != PROTO_KIND_FINISHED || end->code.size_bytes != 11 ||
           memcmp(end->code.data, "worker_lost", 11) != 0;
}

/* The TOKENS of a step wait until its FINISHEDs are out. */
bool
wrong_finished_early(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    const proto_tokens_t *tokens = &message->body.tokens;
    if (message->kind != PROTO_KIND_TOKENS || tokens->requests.count != 1 ||
        tokens->tokens.count != 1 || tokens->logprob_ids.count > 0) {
        return true;
    }
    self->has_tokens = true;
    self->tokens_request = tokens->requests.data[0];
    self->tokens_index = tokens->token_indices.data[0];
    self->tokens_value = tokens->tokens.data[0];
    self->block = message->to.index;
    return false;
}

void
wrong_send_tokens(wrong_t *self, actor_outbox_t *outbox)
{
    if (!self->has_tokens) {
        return;
    }
    self->has_tokens = false;
    uint8_t one = 1;
    proto_body_t body = {.tokens = {.step = 1,
                                    .requests = {&self->tokens_request, 1},
                                    .token_indices = {&self->tokens_index, 1},
                                    .token_counts = {&one, 1},
                                    .tokens = {&self->tokens_value, 1}}};
    actor_outbox_push(outbox, (actor_peer_t){self->block}, PROTO_KIND_TOKENS, 0, &body);
}

/* A token more, after the end. */
bool
wrong_after_end(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (message->kind == PROTO_KIND_FINISHED &&
        message->body.finished.reason == PROTO_FINISH_LENGTH) {
        self->has_tokens = true;
        self->tokens_request = message->request;
        self->tokens_index = message->body.finished.generated_tokens;
        self->tokens_value = 5;
        self->block = message->to.index;
    }
    return true;
}

/* ---- TOKENS ---------------------------------------------------------------------------------- */

bool
wrong_lost_row(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    return message->kind != PROTO_KIND_TOKENS || ++self->count != 4;
}

bool
wrong_index(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    proto_tokens_t *tokens = &message->body.tokens;
    if (message->kind == PROTO_KIND_TOKENS && tokens->requests.count > 0) {
        memcpy(self->u32[0], tokens->token_indices.data,
               tokens->token_indices.count * sizeof(uint32_t));
        self->u32[0][0]++;
        tokens->token_indices.data = self->u32[0];
    }
    return true;
}

bool
wrong_value(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    proto_tokens_t *tokens = &message->body.tokens;
    if (message->kind == PROTO_KIND_TOKENS && tokens->tokens.count > 0 && ++self->count == 7) {
        memcpy(self->i32, tokens->tokens.data, tokens->tokens.count * sizeof(int32_t));
        self->i32[0] = (self->i32[0] + 1) % 1000;
        tokens->tokens.data = self->i32;
    }
    return true;
}

bool
wrong_no_logprobs(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_TOKENS) {
        message->body.tokens.logprob_widths.count = 0;
        message->body.tokens.logprob_ids.count = 0;
        message->body.tokens.logprob_values.count = 0;
    }
    return true;
}

bool
wrong_tokens_shape(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_TOKENS && message->body.tokens.tokens.count > 0) {
        message->body.tokens.tokens.count--;
    }
    return true;
}

/* Every gateway hears everything. */
bool
wrong_gateway(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; message->kind == PROTO_KIND_TOKENS && i < self->gateway_count; i++) {
        if (self->gateways[i].index != message->to.index) {
            wrong_message_t copy = *message;
            copy.to = self->gateways[i];
            wrong_send(outbox, &copy);
        }
    }
    return true;
}

/* ---- MODEL_INFO, NAK ------------------------------------------------------------------------- */

bool
wrong_no_model_info(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    return message->kind != PROTO_KIND_MODEL_INFO || message->body.model_info.slot_count == 0;
}

bool
wrong_stays_ready(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    return message->kind != PROTO_KIND_MODEL_INFO || message->body.model_info.slot_count > 0;
}

bool
wrong_queue_len(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_MODEL_INFO) {
        message->body.model_info.queue_len_max = 8;
    }
    return true;
}

bool
wrong_no_nak(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    return message->kind != PROTO_KIND_NAK;
}

/* ---- what comes in --------------------------------------------------------------------------- */

static bool
is_kind(const actor_input_t *input, proto_kind_t kind)
{
    return input->header->kind == kind;
}

bool
wrong_never_answers(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                    actor_outbox_t *outbox)
{
    (void)body;
    (void)outbox;
    return !is_kind(input, PROTO_KIND_SUBMIT) || ++self->count < 5;
}

bool
wrong_ignores_cancel(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                     actor_outbox_t *outbox)
{
    (void)self;
    (void)body;
    (void)outbox;
    return !is_kind(input, PROTO_KIND_FINISH);
}

bool
wrong_cancel_index(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                   actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_FINISH)) {
        body->finish.token_index = 1000;
    }
    return true;
}

bool
wrong_ignores_refusal(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                      actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_PLAN_REFUSED)) {
        body->plan_refused.step = 0; /* of no step in flight: it is not heeded */
    }
    return true;
}

/* The thread that should send heartbeats sleeps. */
bool
wrong_no_heartbeats(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                    actor_outbox_t *outbox)
{
    (void)body;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_SUBMIT) && ++self->count == 6) {
        struct timespec pause = {3, 0};
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

bool
wrong_dies(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    (void)body;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_SUBMIT) && ++self->count == 6) {
        abort();
    }
    return true;
}

bool
wrong_starves(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    return !is_kind(input, PROTO_KIND_SUBMIT) || body->submit.priority < 100;
}

bool
wrong_overrun(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_SUBMIT) && body->submit.generation_max > 0) {
        body->submit.generation_max += 2;
    }
    return true;
}

/* The executor is told the right length, so it refuses the row beyond it. */
bool
wrong_overrun_hidden(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_ADMIT) {
        message->body.admit.length_max -= 2;
    }
    return true;
}

bool
wrong_no_stop(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_kind(input, PROTO_KIND_STEP_RESULT)) {
        memset(self->u8[1], 0, sizeof self->u8[1]);
        body->step_result.row_flags.data = self->u8[1];
    }
    return true;
}

bool
wrong_no_emitted(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                 actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_SUBMIT) && body->submit.emitted < body->submit.prompt_length) {
        body->submit.emitted = 0;
    }
    return true;
}

bool
wrong_no_timeout(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                 actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_SUBMIT)) {
        body->submit.queue_timeout_ns = 0;
    }
    return true;
}

/* It believes that every executor takes a plan behind the running one. */
bool
wrong_depth(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_EXECUTOR_INFO)) {
        body->executor_info.overlap_depth_max = 1;
    }
    return true;
}

/* Every SUBMIT is answered, also the second one of a request. */
bool
wrong_answers_again(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                    actor_outbox_t *outbox)
{
    (void)body;
    if (!is_kind(input, PROTO_KIND_SUBMIT)) {
        return true;
    }
    uint64_t request = input->header->request;
    for (uint32_t i = 0; i < self->seen_count; i++) {
        if (self->seen[i] == request) {
            proto_body_t end = {.finished = {.reason = PROTO_FINISH_REFUSED,
                                             .status = STATUS_ERR_STALE,
                                             .code = proto_text("duplicate")}};
            actor_outbox_push(outbox, input->from, PROTO_KIND_FINISHED, request, &end);
            return false;
        }
    }
    if (self->seen_count < WRONG_KEPT_MAX) {
        self->seen[self->seen_count++] = request;
    }
    return true;
}

/* Takes prompts of one length for equal: the pages of one are read for the other. */
bool
wrong_prefix(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    (void)outbox;
    size_t size = body->submit.page_hashes.size_bytes;
    if (!is_kind(input, PROTO_KIND_SUBMIT) || size < 32 || size > sizeof self->bytes ||
        self->hash_count == WRONG_KEPT_MAX) {
        return true;
    }
    memcpy(self->hashes[self->hash_count], body->submit.page_hashes.data, 32);
    self->hash_requests[self->hash_count++] = input->header->request;
    memcpy(self->bytes, body->submit.page_hashes.data, size);
    memset(self->bytes, 0x55, 32);
    body->submit.page_hashes.data = self->bytes;
    return true;
}

/* ADMIT carries the hash that was submitted. */
bool
wrong_prefix_hidden(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    size_t size = message->body.admit.page_hashes.size_bytes;
    if (message->kind != PROTO_KIND_ADMIT || size < 32 || size > sizeof self->bytes) {
        return true;
    }
    for (uint32_t i = 0; i < self->hash_count; i++) {
        if (self->hash_requests[i] == message->request) {
            memcpy(self->bytes, message->body.admit.page_hashes.data, size);
            memcpy(self->bytes, self->hashes[i], 32);
            message->body.admit.page_hashes.data = self->bytes;
        }
    }
    return true;
}
