/* actor_http_local.c - the core's messages to its HTTP side.  They change an exchange and mark it;
 * nothing is written and nothing is freed here. */
#include <stdio.h>
#include <string.h>

#include "actor_gateway_table.h"
#include "actor_http_server.h"
#include "actor_log.h"
#include "proto_require.h"

enum { SLOTS = 1 << 16 };

static actor_http_exchange_t *
find(actor_http_server_t *server, uint64_t id, uint32_t index)
{
    uint32_t slot = (uint32_t)(id % SLOTS);
    if (slot >= server->slot_count) {
        return NULL;
    }
    actor_http_exchange_t *self = server->slots[slot];
    return self != NULL && self->id == id && index < self->choice_count ? self : NULL;
}

/* ---- from the core --------------------------------------------------------------------------- */

static void
on_tokens(actor_http_server_t *server, const proto_http_tokens_t *tokens)
{
    actor_http_exchange_t *self = find(server, tokens->exchange, tokens->choice_index);
    if (self == NULL) {
        return;
    }
    server->metrics.generation_tokens += tokens->tokens.count;
    actor_http_open_choice_t *choice = &self->choices[tokens->choice_index];
    if (self->conn == NULL || self->error.status != 0 || choice->ended) {
        return;
    }
    uint64_t now = actor_http_now_ns();
    if (self->first_token_ns == 0) {
        self->first_token_ns = now;
        actor_http_metrics_observe(&server->metrics, ACTOR_METRICS_TTFT,
                                   (double)(now - self->arrived_ns) / 1e9);
    }
    if (choice->last_token_ns != 0) {
        double each = (double)(now - choice->last_token_ns) / 1e9 / (double)tokens->tokens.count;
        for (uint32_t at = 0; at < tokens->tokens.count; at++) {
            actor_http_metrics_observe(&server->metrics, ACTOR_METRICS_ITL, each);
        }
    }
    choice->last_token_ns = now;
    uint32_t width = tokens->logprob_width;
    for (uint32_t at = 0; at < tokens->tokens.count; at++) {
        size_t entry = (size_t)at * width;
        actor_http_choice_push(&choice->text, tokens->tokens.data[at], width,
                               width == 0 ? NULL : tokens->logprob_ids.data + entry,
                               width == 0 ? NULL : tokens->logprob_values.data + entry);
    }
    actor_http_exchange_mark(self);
}

/* The error that a failed choice means to the client. */
static void
take_error(actor_http_exchange_t *self, const proto_http_end_t *end)
{
    actor_http_error_t *error = &self->error;
    char code[48];
    (void)snprintf(code, sizeof code, "%.*s", (int)end->code.size_bytes,
                   end->code.size_bytes == 0 ? "" : end->code.data);
    proto_text_t detail = end->detail;
    if (detail.size_bytes == 0) {
        detail = proto_text("The request has failed.");
    }
    actor_http_error_set(error, "", code[0] == '\0' ? "internal_error" : code, "%.*s",
                         (int)detail.size_bytes, detail.data);
    error->retry_after_ms = end->retry_after_ms;
    error->type = "server_error";
    proto_status_t status = (proto_status_t)end->status;
    if (status == STATUS_ERR_OVERLOADED || status == STATUS_FULL) {
        error->status = 429;
        error->type = "rate_limit_error";
    } else if (status == STATUS_ERR_DEADLINE) {
        error->status = 504;
    } else if (status == STATUS_ERR_NEVER_FITS || status == STATUS_ERR_INVALID ||
               status == STATUS_ERR_TOO_LARGE || status == STATUS_ERR_UNSUPPORTED) {
        error->status = 400;
        error->type = "invalid_request_error";
        (void)snprintf(error->param, sizeof error->param, "%s",
                       self->params.kind == ACTOR_HTTP_CHAT ? "messages" : "prompt");
        if (strcmp(code, "never_fits") == 0) {
            (void)snprintf(error->code, sizeof error->code, "context_length_exceeded");
        }
    } else if ((status <= -200 && status > -400) || status == STATUS_ERR_NO_MEMORY) {
        error->status = 503;
    } else {
        error->status = 500;
    }
    if ((error->status == 429 || error->status == 503) && error->retry_after_ms == 0) {
        error->retry_after_ms = 1000;
    }
}

static void
count_end(actor_http_exchange_t *self, const proto_http_end_t *end)
{
    actor_http_metrics_t *metrics = &self->server->metrics;
    actor_metrics_finish_t finish = ACTOR_METRICS_ERROR;
    if (end->reason == PROTO_FINISH_STOP) {
        finish = ACTOR_METRICS_STOP;
    } else if (end->reason == PROTO_FINISH_LENGTH) {
        finish = ACTOR_METRICS_LENGTH;
    } else if (end->reason == PROTO_FINISH_CANCELLED) {
        finish = ACTOR_METRICS_ABORT;
    } else if (end->reason == PROTO_FINISH_REFUSED) {
        return; /* never ran */
    }
    metrics->finished[finish]++;
    metrics->prompt_tokens += end->prompt_tokens;
    if (finish == ACTOR_METRICS_STOP || finish == ACTOR_METRICS_LENGTH) {
        actor_http_metrics_observe(metrics, ACTOR_METRICS_PROMPT_TOKENS, end->prompt_tokens);
        actor_http_metrics_observe(metrics, ACTOR_METRICS_GENERATION_TOKENS, end->generated_tokens);
        actor_http_metrics_observe(metrics, ACTOR_METRICS_QUEUE, (double)end->queue_ns / 1e9);
    }
}

static void
on_end(actor_http_server_t *server, const proto_http_end_t *end)
{
    actor_http_exchange_t *self = find(server, end->exchange, end->choice_index);
    if (self == NULL) {
        return;
    }
    actor_http_open_choice_t *choice = &self->choices[end->choice_index];
    require(!choice->ended); /* the core's promise */
    choice->ended = true;
    choice->reason = end->reason;
    choice->generated_tokens = end->generated_tokens;
    choice->cached_tokens = end->cached_tokens;
    require(self->open_count > 0);
    self->open_count--;
    if (self->queue_ns == 0) {
        self->queue_ns = end->queue_ns;
    }
    count_end(self, end);
    bool failed = end->reason == PROTO_FINISH_ERROR || end->reason == PROTO_FINISH_REFUSED;
    /* A stop string that was seen makes the choice whole, whatever became of the scheduler. */
    if (failed && !choice->text.stopped && self->error.status == 0) {
        take_error(self, end);
    }
    if (!failed || choice->text.stopped) {
        actor_http_choice_finish(&choice->text);
    }
    actor_http_exchange_mark(self);
}

/* Names the model behind the answers, as clients compare it: another checkpoint, another name. */
static void
name_fingerprint(actor_http_server_t *server)
{
    const proto_model_info_t *model = actor_gateway_core_model(server->core);
    uint64_t hash = 0;
    for (uint32_t at = 0; model != NULL && at < model->fingerprint.size_bytes; at++) {
        hash = actor_gateway_mix(hash ^ (unsigned char)model->fingerprint.data[at]);
    }
    (void)snprintf(server->fingerprint, sizeof server->fingerprint, "fp_%010llx",
                   (unsigned long long)(hash & 0xffffffffffu));
}

static void
on_state(actor_http_server_t *server, const proto_http_state_t *state)
{
    /* Not ready yet, or not any more because that was asked for: nothing to warn of. */
    bool expected = state->ready || !server->was_ready || actor_shell_is_draining(server->shell);
    if (state->ready) {
        name_fingerprint(server);
        if (!server->was_ready) {
            actor_shell_report(server->shell, ACTOR_STATE_READY, 0, 0, server->url);
        }
        server->was_ready = true;
    }
    actor_log(expected ? ACTOR_LOG_INFO : ACTOR_LOG_WARN,
              state->ready ? "gateway.ready" : "gateway.not_ready", 0, NULL, "%s%.*s",
              state->ready ? "requests are served" : "", (int)state->detail.size_bytes,
              state->detail.size_bytes == 0 ? "" : state->detail.data);
}

void
actor_http_exchange_local(void *server, const actor_emission_t *emission)
{
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK); /* it was encoded a moment ago, in this process */
    if (emission->kind == PROTO_KIND_HTTP_TOKENS) {
        on_tokens(server, &body.http_tokens);
    } else if (emission->kind == PROTO_KIND_HTTP_END) {
        on_end(server, &body.http_end);
    } else if (emission->kind == PROTO_KIND_HTTP_STATE) {
        on_state(server, &body.http_state);
    }
}
