#include <stdio.h>

#include "actor_gateway_state.h"

/* True if prompt and generation fit; else refuses with the numbers. */
static bool
check_length(actor_gateway_core_t *self, actor_outbox_t *outbox,
             const proto_http_request_t *request, uint32_t *generation_max)
{
    uint32_t prompt = request->tokens.count;
    uint32_t limit = self->model.info.model_len_max;
    uint32_t longest = self->model.info.prompt_len_max;
    char detail[256];
    if (prompt >= limit) {
        (void)snprintf(detail, sizeof detail,
                       "This model's maximum context length is %u tokens, but the prompt has %u "
                       "tokens and at least 1 must be left to generate.",
                       limit, prompt);
    } else if (longest > 0 && prompt > longest) {
        (void)snprintf(detail, sizeof detail,
                       "The prompt has %u tokens; the cache of this server fits prompts of at "
                       "most %u.",
                       prompt, longest);
    } else if (request->generation_max > limit - prompt) {
        (void)snprintf(detail, sizeof detail,
                       "This model's maximum context length is %u tokens, but %u were asked for "
                       "(%u in the prompt, %u to generate).",
                       limit, prompt + request->generation_max, prompt, request->generation_max);
    } else {
        *generation_max = request->generation_max == 0 ? limit - prompt : request->generation_max;
        return true;
    }
    actor_gateway_refuse(self, outbox, request, STATUS_ERR_NEVER_FITS, "context_length_exceeded",
                         detail);
    return false;
}

static void
submit(actor_gateway_core_t *self, const actor_input_t *input, actor_gateway_choice_t *choice,
       actor_outbox_t *outbox)
{
    const proto_http_request_t *request = &input->body->http_request;
    proto_body_t body = {
        .submit =
            {
                .prompt_length = request->tokens.count,
                .generation_max = choice->generation_max,
                .priority = request->priority,
                .queue_timeout_ns = request->timeout_ns,
                .page_hashes = request->page_hashes,
                .tokens = request->tokens,
                .sampling = request->sampling,
            },
    };
    self->submitted_count++;
    if (actor_gateway_table_count(self->choices) == self->waiting_count + 1) {
        self->progress_ns = input->now_ns; /* the first that anything is expected for */
    }
    actor_gateway_table_begin(self->choices, choice);
    choice->attempt_count = 1;
    actor_gateway_table_end(self->choices, choice);
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_SUBMIT, choice->request, &body);
}

/* Fills a new entry; it waits if nobody can take it now.  False if it would have to wait and
 * there is no room to keep it. */
static bool
begin_choice(actor_gateway_core_t *self, const actor_input_t *input, actor_gateway_choice_t *choice,
             uint32_t generation_max)
{
    const proto_http_request_t *request = &input->body->http_request;
    actor_gateway_table_begin(self->choices, choice);
    choice->prompt_tokens = request->tokens.count;
    choice->generation_max = generation_max;
    choice->priority = request->priority;
    choice->client_deadline_ns = request->timeout_ns == 0
                                     ? UINT64_MAX
                                     : actor_gateway_after(input->now_ns, request->timeout_ns);
    actor_gateway_table_end(self->choices, choice);
    bool is_kept = actor_gateway_keep(self, choice, request);
    if (actor_gateway_can_submit(self) && !self->sweep_is_due) {
        self->unkept_count += is_kept ? 0 : 1;
        return true;
    }
    if (is_kept) {
        uint64_t until_ns =
            self->is_replacing
                ? self->replacing_until_ns
                : actor_gateway_after(input->now_ns, self->options.resume_timeout_ns);
        actor_gateway_wait(self, choice, until_ns, 0);
    }
    return is_kept;
}

void
actor_gateway_on_http_request(actor_gateway_core_t *self, const actor_input_t *input,
                              actor_outbox_t *outbox)
{
    const proto_http_request_t *request = &input->body->http_request;
    if (actor_gateway_table_find_choice(self->choices, request->exchange, request->choice_index) !=
        NULL) {
        self->ignored_count++; /* the open one still gets its end */
        return;
    }
    if (self->draining || (!actor_gateway_can_submit(self) && !self->is_replacing)) {
        actor_gateway_refuse(self, outbox, request, STATUS_ERR_PEER_LOST,
                             actor_gateway_missing_code(self), actor_gateway_missing_text(self));
        return;
    }
    if (request->tokens.count == 0) {
        actor_gateway_refuse(self, outbox, request, STATUS_ERR_INVALID, "invalid_prompt",
                             "The prompt has no tokens.");
        return;
    }
    uint32_t generation_max = 0;
    if (!check_length(self, outbox, request, &generation_max)) {
        return;
    }
    actor_gateway_choice_t *choice =
        actor_gateway_table_acquire(self->choices, actor_gateway_mint(self), request->exchange,
                                    request->choice_index);
    if (choice == NULL) {
        actor_gateway_refuse(self, outbox, request, STATUS_ERR_OVERLOADED, "overloaded",
                             "Too many requests are in flight; try again.");
        return;
    }
    if (!begin_choice(self, input, choice, generation_max)) {
        actor_gateway_end_with_error(self, outbox, choice, STATUS_ERR_PEER_LOST,
                                     actor_gateway_missing_code(self),
                                     actor_gateway_missing_text(self));
    } else if (!choice->is_waiting) {
        submit(self, input, choice, outbox);
    }
}

void
actor_gateway_on_http_stop(actor_gateway_core_t *self, const actor_input_t *input,
                           actor_outbox_t *outbox)
{
    const proto_http_stop_t *stop = &input->body->http_stop;
    actor_gateway_choice_t *choice =
        actor_gateway_table_find_choice(self->choices, stop->exchange, stop->choice_index);
    bool is_reason = stop->reason == PROTO_FINISH_STOP || stop->reason == PROTO_FINISH_CANCELLED;
    if (choice == NULL || !is_reason) {
        self->ignored_count++; /* it ended in the meantime: its end was its answer */
        return;
    }
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        self->ignored_count++; /* the first stop was recorded and is being answered */
        return;
    }
    if (choice->is_waiting) {
        /* Nobody has it, so nobody is to be told. */
        uint32_t kept = choice->next_index;
        proto_http_end_t end = {
            .reason = stop->reason,
            .generated_tokens = kept < stop->token_index ? kept : stop->token_index,
        };
        actor_gateway_end_choice(self, outbox, choice, end);
        return;
    }
    /* Recorded before anything else is looked at: a FINISHED that crosses it changes nothing. */
    actor_gateway_table_begin(self->choices, choice);
    choice->stop_reason = (proto_finish_reason_t)stop->reason;
    choice->stop_index = stop->token_index;
    choice->finish_deadline_ns =
        actor_gateway_after(input->now_ns, self->options.finish_timeout_ns);
    actor_gateway_table_end(self->choices, choice);
    actor_gateway_send_finish(self, outbox, choice, stop->token_index, choice->stop_reason);
}
