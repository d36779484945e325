#include "actor_gateway_state.h"

static void
push_end(actor_gateway_core_t *self, actor_outbox_t *outbox, uint64_t request,
         const proto_http_end_t *end)
{
    proto_body_t body = {.http_end = *end};
    self->ended_count++;
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_END, request,
                      &body);
}

void
actor_gateway_end_choice(actor_gateway_core_t *self, actor_outbox_t *outbox,
                         actor_gateway_choice_t *choice, proto_http_end_t end)
{
    end.exchange = choice->exchange;
    end.choice_index = choice->choice_index;
    /* To a scheduler that resumed it, tokens of the answer were part of the prompt. */
    end.prompt_tokens = choice->prompt_tokens;
    if (end.cached_tokens > end.prompt_tokens) {
        end.cached_tokens = end.prompt_tokens;
    }
    uint64_t request = choice->request;
    actor_gateway_leave_trial(self, choice);
    if (choice->is_waiting) {
        require(self->waiting_count > 0);
        self->waiting_count--;
    }
    actor_gateway_record_t record = choice->record;
    actor_gateway_table_release(self->choices, choice);
    actor_gateway_history_drop(self->history, &record);
    push_end(self, outbox, request, &end);
}

void
actor_gateway_end_with_error(actor_gateway_core_t *self, actor_outbox_t *outbox,
                             actor_gateway_choice_t *choice, proto_status_t status,
                             const char *code, const char *detail)
{
    proto_http_end_t end = {
        .reason = PROTO_FINISH_ERROR,
        .generated_tokens = choice->next_index,
        .status = status,
        .code = proto_text(code),
        .detail = proto_text(detail),
        .retry_after_ms = status == STATUS_ERR_PEER_LOST ? GATEWAY_RETRY_AFTER_MS : 0,
    };
    actor_gateway_end_choice(self, outbox, choice, end);
}

void
actor_gateway_end_as_stopped(actor_gateway_core_t *self, actor_outbox_t *outbox,
                             actor_gateway_choice_t *choice, const proto_finished_t *finished)
{
    proto_http_end_t end = {.reason = choice->stop_reason};
    uint32_t generated = choice->next_index;
    if (finished != NULL) {
        end.cached_tokens = finished->cached_tokens;
        end.queue_ns = finished->queue_ns;
    }
    end.generated_tokens = generated < choice->stop_index ? generated : choice->stop_index;
    actor_gateway_end_choice(self, outbox, choice, end);
}

void
actor_gateway_send_finish(actor_gateway_core_t *self, actor_outbox_t *outbox,
                          const actor_gateway_choice_t *choice, uint32_t token_index,
                          proto_finish_reason_t reason)
{
    if (!actor_gateway_has_scheduler(self) || choice->is_waiting) {
        return; /* nobody has it */
    }
    proto_body_t body = {.finish = {.token_index = token_index, .reason = reason}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_FINISH, choice->request, &body);
}

void
actor_gateway_refuse(actor_gateway_core_t *self, actor_outbox_t *outbox,
                     const proto_http_request_t *request, proto_status_t status, const char *code,
                     const char *detail)
{
    bool retry = status == STATUS_ERR_PEER_LOST || status == STATUS_ERR_OVERLOADED;
    proto_http_end_t end = {
        .exchange = request->exchange,
        .choice_index = request->choice_index,
        .reason = PROTO_FINISH_REFUSED,
        .prompt_tokens = request->tokens.count,
        .status = status,
        .code = proto_text(code),
        .detail = proto_text(detail),
        .retry_after_ms = retry ? GATEWAY_RETRY_AFTER_MS : 0,
    };
    push_end(self, outbox, 0, &end);
}
