/* Faults in how requests end, and in what a scheduler makes of losses and refusals. */
#include <string.h>

#include "wrong_faults.h"

static bool
is_kind(const actor_input_t *input, proto_kind_t kind)
{
    return input->header->kind == kind;
}

static bool
is_finished(const wrong_message_t *message)
{
    return message->kind == PROTO_KIND_FINISHED;
}

static bool
code_is(const wrong_message_t *message, const char *code)
{
    const proto_finished_t *end = &message->body.finished;
    return is_finished(message) && end->code.size_bytes == strlen(code) &&
           memcmp(end->code.data, code, strlen(code)) == 0;
}

static void
say_finished(actor_outbox_t *outbox, actor_peer_t to, uint64_t request, uint32_t prompt_length,
             const char *code)
{
    bool cancelled = strcmp(code, "cancelled") == 0;
    proto_body_t end = {
        .finished = {.reason = cancelled ? PROTO_FINISH_CANCELLED : PROTO_FINISH_ERROR,
                     .status = cancelled ? STATUS_ERR_CANCELLED : STATUS_ERR_REFUSED,
                     .prompt_tokens = prompt_length,
                     .code = proto_text(code),
                     .detail = proto_text(code)}};
    actor_outbox_push(outbox, to, PROTO_KIND_FINISHED, request, &end);
}

/* ---- other ends than those that are right ---------------------------------------------------- */

bool
wrong_good_status(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_finished(message) && message->body.finished.reason == PROTO_FINISH_LENGTH) {
        message->body.finished.status = STATUS_ERR_INTERNAL;
    }
    return true;
}

bool
wrong_stop_is_length(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_finished(message) && message->body.finished.reason == PROTO_FINISH_STOP) {
        message->body.finished.reason = PROTO_FINISH_LENGTH;
    }
    return true;
}

bool
wrong_never_is_invalid(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (code_is(message, "never_fits")) {
        message->body.finished.code = proto_text("invalid");
    }
    return true;
}

bool
wrong_no_executor_is_length(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (code_is(message, "no_executor")) {
        message->body.finished.reason = PROTO_FINISH_LENGTH;
        message->body.finished.status = 0;
        message->body.finished.code.size_bytes = 0;
    }
    return true;
}

/* One token less than was asked for; the executor is told the right number. */
bool
wrong_short(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_SUBMIT) && body->submit.generation_max > 1) {
        body->submit.generation_max--;
    }
    return true;
}

bool
wrong_short_hidden(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_ADMIT) {
        message->body.admit.length_max++;
    }
    return true;
}

bool
wrong_invalid_is_never(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (code_is(message, "invalid")) {
        message->body.finished.code = proto_text("never_fits");
    }
    return true;
}

/* FINISHED counts from here on, not from where the request began. */
bool
wrong_note_emitted(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                   actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_kind(input, PROTO_KIND_SUBMIT) && body->submit.emitted > 0 &&
        self->seen_count < WRONG_KEPT_MAX) {
        self->u32[0][self->seen_count] = body->submit.emitted;
        self->seen[self->seen_count++] = input->header->request;
    }
    return true;
}

bool
wrong_resume_count(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    for (uint32_t i = 0; is_finished(message) && i < self->seen_count; i++) {
        if (self->seen[i] == message->request) {
            message->body.finished.generated_tokens -= self->u32[0][i];
        }
    }
    return true;
}

bool
wrong_ends_elsewhere(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; is_finished(message) && i < self->gateway_count; i++) {
        if (self->gateways[i].index != message->to.index) {
            wrong_message_t copy = *message;
            copy.to = self->gateways[i];
            wrong_send(outbox, &copy);
        }
    }
    return true;
}

/* ---- FINISH ---------------------------------------------------------------------------------- */

/* Every FINISH is answered, also that of a request which nobody knows any more. */
bool
wrong_answers_finish(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                     actor_outbox_t *outbox)
{
    (void)body;
    for (uint32_t i = 0; is_kind(input, PROTO_KIND_FINISH) && i < self->seen_count; i++) {
        if (self->seen[i] == input->header->request) {
            say_finished(outbox, input->from, input->header->request, 0, "cancelled");
        }
    }
    return true;
}

bool
wrong_note_end(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_finished(message) && self->seen_count < WRONG_KEPT_MAX) {
        self->seen[self->seen_count++] = message->request;
    }
    return true;
}

/* FINISH is answered, but the request is computed to its end. */
bool
wrong_computes_on(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                  actor_outbox_t *outbox)
{
    uint64_t request = input->header->request;
    if (is_kind(input, PROTO_KIND_SUBMIT) && self->hash_count < WRONG_KEPT_MAX) {
        self->u32[1][self->hash_count] = body->submit.prompt_length;
        self->hash_requests[self->hash_count++] = request;
    }
    if (!is_kind(input, PROTO_KIND_FINISH) || self->seen_count == WRONG_KEPT_MAX) {
        return true;
    }
    for (uint32_t i = 0; i < self->seen_count; i++) {
        if (self->seen[i] == request) {
            return false;
        }
    }
    self->seen[self->seen_count++] = request;
    for (uint32_t i = 0; i < self->hash_count; i++) {
        if (self->hash_requests[i] == request) {
            say_finished(outbox, input->from, request, self->u32[1][i], "cancelled");
        }
    }
    return false;
}

bool
wrong_hides_tokens(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    for (uint32_t i = 0; i < self->seen_count; i++) {
        bool is_its = message->kind == PROTO_KIND_TOKENS &&
                      message->body.tokens.requests.count > 0 &&
                      message->body.tokens.requests.data[0] == self->seen[i];
        if (is_its || (is_finished(message) && message->request == self->seen[i])) {
            return false;
        }
    }
    return true;
}

bool
wrong_keeps_gateway(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                    actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    return !is_kind(input, PROTO_KIND_PEER_DOWN) || body->peer_down.role != PROTO_ROLE_GATEWAY;
}

/* Ids are remembered for ever, whoever the gateway is now. */
bool
wrong_remembers_ids(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                    actor_outbox_t *outbox)
{
    if (!is_kind(input, PROTO_KIND_SUBMIT) || body->submit.emitted == 0) {
        if (is_kind(input, PROTO_KIND_SUBMIT) && self->seen_count < WRONG_KEPT_MAX) {
            self->seen[self->seen_count++] = input->header->request;
        }
        return true;
    }
    for (uint32_t i = 0; i < self->seen_count; i++) {
        if (self->seen[i] == input->header->request) {
            say_finished(outbox, input->from, input->header->request, 0, "duplicate");
            return false;
        }
    }
    return true;
}

/* ---- refusals and results -------------------------------------------------------------------- */

/* One refusal is enough. */
bool
wrong_gives_up(wrong_t *self, const actor_input_t *input, proto_body_t *body,
               actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_kind(input, PROTO_KIND_PLAN_REFUSED)) {
        body->plan_refused.rule = PROTO_RULE_SLOT_EMPTY;
    }
    return true;
}

/* Who only waits pays for the refusal of others. */
bool
wrong_blames_waiting(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                     actor_outbox_t *outbox)
{
    (void)body;
    if (is_kind(input, PROTO_KIND_SUBMIT)) {
        self->tokens_request = input->header->request;
        self->block = input->from.index;
    } else if (is_kind(input, PROTO_KIND_PLAN_REFUSED) && self->tokens_request != 0) {
        say_finished(outbox, (actor_peer_t){self->block}, self->tokens_request, 0, "plan_refused");
        self->tokens_request = 0;
    }
    return true;
}

/* A result that comes twice is taken for nonsense. */
bool
wrong_hates_repeats(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                    actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_kind(input, PROTO_KIND_STEP_RESULT)) {
        uint64_t step = body->step_result.step;
        body->step_result.step += step == self->last ? 1000 : 0;
        self->last = step;
    }
    return true;
}

/* After nonsense the executor is not reset. */
bool
wrong_no_reset_after_fault(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    self->has_tokens =
        self->has_tokens || code_is(message, "executor_fault") ||
        (message->kind == PROTO_KIND_NAK && message->body.nak.kind == PROTO_KIND_STEP_RESULT);
    return !self->has_tokens || message->kind != PROTO_KIND_RESET;
}

/* ---- a lost executor ------------------------------------------------------------------------- */

bool
wrong_no_reset_after_loss(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    self->has_tokens = self->has_tokens || code_is(message, "worker_lost");
    return !self->has_tokens || message->kind != PROTO_KIND_RESET;
}

bool
wrong_note_loss(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    self->has_tokens = self->has_tokens || code_is(message, "worker_lost");
    return true;
}

bool
wrong_serves_no_more(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                     actor_outbox_t *outbox)
{
    (void)body;
    (void)outbox;
    return !self->has_tokens || !is_kind(input, PROTO_KIND_SUBMIT);
}

/* ---- busy with nothing ----------------------------------------------------------------------- */

static void
spin(wrong_t *self, actor_peer_t executor, actor_outbox_t *outbox)
{
    proto_body_t body = {.plan = {.step = 1000000 + self->last++, .width = 1}};
    actor_outbox_push(outbox, executor, PROTO_KIND_PLAN, 0, &body);
}

bool
wrong_count_plans(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    self->seen_count += message->kind == PROTO_KIND_PLAN ? 1 : 0;
    return true;
}

/* From the sixth request on: plans without rows, one after the other. */
bool
wrong_spins(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)
{
    if (is_kind(input, PROTO_KIND_PEER_UP) && body->peer_up.role == PROTO_ROLE_EXECUTOR) {
        self->block = body->peer_up.peer;
        self->seen_count = 0;
    } else if (is_kind(input, PROTO_KIND_STEP_RESULT) && body->step_result.step < 1000000) {
        self->seen_count -= self->seen_count > 0 ? 1 : 0;
        if (self->count >= 6 && self->seen_count == 0) {
            spin(self, input->from, outbox);
        }
    } else if (is_kind(input, PROTO_KIND_STEP_RESULT)) {
        spin(self, input->from, outbox);
        return false;
    } else if (is_kind(input, PROTO_KIND_SUBMIT) && ++self->count >= 6) {
        if (self->seen_count == 0) {
            spin(self, (actor_peer_t){self->block}, outbox);
        }
        return false;
    }
    return true;
}
