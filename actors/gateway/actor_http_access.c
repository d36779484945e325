/* actor_http_access.c - one line, the counters and the trace of each request that was answered. */
#include <stdio.h>

#include "actor_http_server.h"
#include "actor_log.h"

static void
count_tokens(const actor_http_exchange_t *exchange, uint32_t *prompt, uint32_t *generated)
{
    *prompt = 0;
    *generated = 0;
    for (uint32_t at = 0; at < exchange->choice_count; at++) {
        const actor_http_open_choice_t *choice = &exchange->choices[at];
        *prompt += exchange->params.prompts[choice->prompt_at].id_count;
        *generated += choice->ended ? choice->generated_tokens : choice->text.token_count;
    }
}

/* What one exchange was, for a trace. */
static void
push_trace(actor_http_server_t *self, const char *route, int status,
           const actor_http_exchange_t *exchange, uint64_t now_ns)
{
    actor_http_trace_request_t request = {
        .context = exchange->trace,
        .route = route,
        .status = status,
        .choice_count = exchange->choice_count,
        .stream = exchange->params.stream,
        .arrived_ns = exchange->arrived_ns,
        .submitted_ns = exchange->submitted_ns,
        .first_token_ns = exchange->first_token_ns,
        .ended_ns = now_ns,
    };
    count_tokens(exchange, &request.prompt_tokens, &request.generated_tokens);
    bool was_planned = exchange->submitted_ns != 0 && exchange->first_token_ns != 0;
    request.planned_ns = was_planned ? exchange->submitted_ns + exchange->queue_ns : 0;
    (void)snprintf(request.request_id, sizeof request.request_id, "%s", exchange->request_id);
    (void)snprintf(request.code, sizeof request.code, "%s", exchange->error.code);
    actor_http_trace_push(self->trace, &request);
}

void
actor_http_access_log(actor_http_server_t *self, const char *route, int status,
                      const char *request_id, const actor_http_exchange_t *exchange)
{
    actor_http_metrics_reply(&self->metrics, route == NULL ? "other" : route, status);
    if (exchange != NULL) {
        push_trace(self, route, status, exchange, actor_http_now_ns());
    }
    if (!actor_log_enabled(ACTOR_LOG_INFO)) {
        return;
    }
    if (exchange == NULL) {
        actor_log_each(ACTOR_LOG_INFO, "http.request", 0,
                       ACTOR_LOG_FIELDS(actor_log_str("request_id", request_id),
                                        actor_log_str("route", route == NULL ? "other" : route),
                                        actor_log_i64("status", status)),
                       "%s %d", route == NULL ? "other" : route, status);
        return;
    }
    uint64_t now = actor_http_now_ns();
    uint32_t prompt = 0;
    uint32_t generated = 0;
    count_tokens(exchange, &prompt, &generated);
    char trace_id[2 * ACTOR_HTTP_TRACE_ID_BYTES + 1] = "";
    bool has_trace = exchange->trace.is_given || exchange->trace.is_sampled;
    for (size_t at = 0; has_trace && at < ACTOR_HTTP_TRACE_ID_BYTES; at++) {
        (void)snprintf(trace_id + 2 * at, 3, "%02x", exchange->trace.trace[at]);
    }
    uint64_t first =
        exchange->first_token_ns == 0 ? 0 : exchange->first_token_ns - exchange->arrived_ns;
    actor_log_each(ACTOR_LOG_INFO, "http.request", 0,
                   ACTOR_LOG_FIELDS(actor_log_str("request_id", request_id),
                                    actor_log_str("route", route), actor_log_i64("status", status),
                                    actor_log_u64("choices", exchange->choice_count),
                                    actor_log_u64("stream", exchange->params.stream ? 1 : 0),
                                    actor_log_u64("prompt_tokens", prompt),
                                    actor_log_u64("generated_tokens", generated),
                                    actor_log_f64("queue_ms", (double)exchange->queue_ns / 1e6),
                                    actor_log_f64("first_token_ms", (double)first / 1e6),
                                    actor_log_f64("duration_ms",
                                                  (double)(now - exchange->arrived_ns) / 1e6),
                                    actor_log_str("code", exchange->error.code),
                                    actor_log_str("trace_id", trace_id)),
                   "%s %d", route, status);
}
