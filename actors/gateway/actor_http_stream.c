/* actor_http_stream.c - what an exchange has for its client, written.
 *
 * The core's messages only change an exchange and mark it; what a client gets is written in
 * flush(), once for each round of the loop.  So several tokens that arrive together leave in one
 * write, and nothing is freed while somebody is inside it. */
#include <stdio.h>
#include <string.h>

#include "actor_http_server.h"
#include "actor_log.h"
#include "proto_require.h"

#define NS_PER_MS UINT64_C(1000000)

void
actor_http_exchange_mark(actor_http_exchange_t *self)
{
    if (self->is_dirty) {
        return;
    }
    self->is_dirty = true;
    self->next_dirty = self->server->first_dirty;
    self->server->first_dirty = self;
    event_active(self->server->service, EV_TIMEOUT, 0);
}

/* ---- to the core ----------------------------------------------------------------------------- */

static void
tell_stop(actor_http_exchange_t *self, uint32_t index, proto_finish_reason_t reason)
{
    actor_http_open_choice_t *choice = &self->choices[index];
    uint32_t token_index =
        choice->text.stopped ? choice->text.stop_index : choice->text.token_count;
    proto_body_t body = {
        .http_stop =
            {
                .exchange = self->id,
                .choice_index = index,
                .token_index = token_index,
                .reason = reason,
            },
    };
    choice->stop_told = true;
    actor_shell_inject(self->server->shell, PROTO_KIND_HTTP_STOP, 0, &body);
    /* What was sent may have swallowed the edge of a descriptor: look once more. */
    event_active(self->server->service, EV_TIMEOUT, 0);
}

static void
tell_matches(actor_http_exchange_t *self)
{
    for (uint32_t at = 0; at < self->choice_count; at++) {
        actor_http_open_choice_t *choice = &self->choices[at];
        if (choice->text.stopped && !choice->ended && !choice->stop_told) {
            tell_stop(self, at, PROTO_FINISH_STOP);
        }
        if (choice->text.failed && self->error.status == 0) {
            actor_http_error_set(&self->error, "", "out_of_memory", "The server is out of memory.");
            self->error.status = 503;
            self->error.type = "server_error";
            self->error.retry_after_ms = 1000;
        }
    }
}

static void
cancel_open(actor_http_exchange_t *self)
{
    if (self->cancel_told) {
        return;
    }
    self->cancel_told = true;
    for (uint32_t at = 0; at < self->choice_count; at++) {
        if (!self->choices[at].ended && !self->choices[at].stop_told) {
            tell_stop(self, at, PROTO_FINISH_CANCELLED);
        }
    }
}

/* ---- to the client --------------------------------------------------------------------------- */

static actor_http_reply_t
reply_of(const actor_http_exchange_t *self)
{
    return (actor_http_reply_t){
        .params = &self->params,
        .tokenizer = self->server->text,
        .id = self->public_id,
        .model = self->server->model_name,
        .fingerprint = self->server->fingerprint,
        .created = self->created_s,
    };
}

static bool
keeps_alive(const actor_http_exchange_t *self)
{
    return self->keep_alive && !actor_gateway_core_state(self->server->core).draining;
}

static actor_http_usage_t
usage_of(const actor_http_exchange_t *self)
{
    actor_http_usage_t usage = {0};
    for (uint32_t at = 0; at < self->choice_count; at++) {
        const actor_http_open_choice_t *choice = &self->choices[at];
        usage.completion_tokens += choice->generated_tokens;
        if (at % (uint32_t)self->params.n == 0) { /* a prompt counts once, whatever n is */
            usage.prompt_tokens += self->params.prompts[choice->prompt_at].id_count;
            usage.cached_tokens += choice->cached_tokens;
        }
    }
    return usage;
}

static const char *
reason_text(const actor_http_open_choice_t *choice)
{
    return choice->text.stopped || choice->reason != PROTO_FINISH_LENGTH ? "stop" : "length";
}

static void
observe_end(actor_http_exchange_t *self)
{
    actor_http_metrics_t *metrics = &self->server->metrics;
    double now = (double)actor_http_now_ns() / 1e9;
    double planned = (double)(self->submitted_ns + self->queue_ns) / 1e9;
    double first = (double)self->first_token_ns / 1e9;
    actor_http_metrics_observe(metrics, ACTOR_METRICS_E2E, now - (double)self->arrived_ns / 1e9);
    actor_http_metrics_observe(metrics, ACTOR_METRICS_INFERENCE,
                               now > planned ? now - planned : 0.0);
    if (self->first_token_ns != 0) {
        actor_http_metrics_observe(metrics, ACTOR_METRICS_PREFILL,
                                   first > planned ? first - planned : 0.0);
        actor_http_metrics_observe(metrics, ACTOR_METRICS_DECODE, now - first);
    }
    uint32_t most = 0;
    for (uint32_t at = 0; at < self->choice_count; at++) {
        uint32_t count = self->choices[at].generated_tokens;
        most = count > most ? count : most;
    }
    actor_http_metrics_observe(metrics, ACTOR_METRICS_MAX_GENERATION, most);
}

/* The client has its answer, or none will come. */
static void
leave_client(actor_http_exchange_t *self, int status, bool keep_alive)
{
    actor_http_conn_t *conn = self->conn;
    self->conn = NULL;
    if (!self->logged) {
        self->logged = true;
        actor_http_access_log(self->server, self->route, status, self->request_id, self);
    }
    if (conn != NULL) {
        actor_http_conn_finish(conn, keep_alive);
    }
}

/* One HTTP chunk with what is in scratch, and the end of the body if it is the last. */
static void
send_events(actor_http_exchange_t *self, bool is_last)
{
    actor_http_server_t *server = self->server;
    actor_http_text_t *out = &server->framed;
    actor_http_text_clear(out);
    if (!self->head_sent) {
        self->head_sent = true;
        actor_http_reply_head_t head = {
            .status = 200,
            .request_id = self->request_id,
            .is_stream = true,
            .http10 = self->http10,
            .close = self->http10 || !keeps_alive(self),
        };
        actor_http_reply_head(out, &head);
    }
    if (self->http10) {
        actor_http_text_add(out, server->scratch.data, server->scratch.size_bytes);
    } else {
        if (server->scratch.size_bytes > 0) {
            actor_http_text_printf(out, "%zx\r\n", server->scratch.size_bytes);
            actor_http_text_add(out, server->scratch.data, server->scratch.size_bytes);
            actor_http_text_puts(out, "\r\n");
        }
        if (is_last) {
            actor_http_text_puts(out, "0\r\n\r\n");
        }
    }
    self->last_write_ns = actor_http_now_ns();
    actor_http_conn_write(self->conn, out->data, out->size_bytes);
    if (actor_http_conn_backlog(self->conn) > server->options->backlog_size_bytes_max) {
        actor_http_conn_t *conn = self->conn;
        self->conn = NULL;
        actor_log(ACTOR_LOG_WARN, "http.slow_reader", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("request_id", self->request_id),
                                   actor_log_u64("backlog_bytes", actor_http_conn_backlog(conn))),
                  "a client does not read its stream; it is cut");
        actor_http_conn_cut(conn);
        server->metrics.clients_cut++;
    }
}

static void
stream_choice(actor_http_exchange_t *self, const actor_http_reply_t *reply, uint32_t index,
              actor_http_text_t *out)
{
    actor_http_open_choice_t *choice = &self->choices[index];
    if (choice->finish_shown || (choice->text.token_count == 0 && !choice->ended)) {
        return;
    }
    if (!choice->begun) {
        choice->begun = true;
        if (self->params.kind == ACTOR_HTTP_CHAT) {
            actor_http_reply_role_event(out, reply, index);
        } else if (self->params.echo) {
            actor_http_reply_text_event(out, reply, index, "", 0, NULL);
        }
    }
    size_t size = 0;
    const char *text = actor_http_choice_visible(&choice->text, &size);
    if (size > 0 || actor_http_choice_logprobs_ready(&choice->text) > 0) {
        actor_http_reply_text_event(out, reply, index, text, size, &choice->text);
        actor_http_choice_take(&choice->text);
    }
    if (choice->ended) {
        choice->finish_shown = true;
        actor_http_reply_finish_event(out, reply, index, reason_text(choice));
    }
}

static void
flush_stream(actor_http_exchange_t *self)
{
    actor_http_reply_t reply = reply_of(self);
    actor_http_text_t *out = &self->server->scratch;
    actor_http_text_clear(out);
    for (uint32_t at = 0; at < self->choice_count; at++) {
        stream_choice(self, &reply, at, out);
    }
    bool is_last = self->open_count == 0;
    if (is_last) {
        if (self->params.include_usage) {
            actor_http_usage_t usage = usage_of(self);
            actor_http_reply_usage_event(out, &reply, &usage);
        }
        actor_http_text_puts(out, "data: [DONE]\n\n");
    }
    if (out->size_bytes == 0) {
        return;
    }
    send_events(self, is_last);
    if (is_last && self->conn != NULL) {
        observe_end(self);
        leave_client(self, 200, keeps_alive(self) && !self->http10);
    }
}

static void
flush_answer(actor_http_exchange_t *self)
{
    if (self->open_count > 0) {
        return;
    }
    actor_http_choice_t *choices[ACTOR_HTTP_CHOICE_COUNT_MAX];
    const char *reasons[ACTOR_HTTP_CHOICE_COUNT_MAX];
    require(self->choice_count <= ACTOR_HTTP_CHOICE_COUNT_MAX);
    for (uint32_t at = 0; at < self->choice_count; at++) {
        choices[at] = &self->choices[at].text;
        reasons[at] = reason_text(&self->choices[at]);
    }
    actor_http_server_t *server = self->server;
    actor_http_reply_t reply = reply_of(self);
    actor_http_usage_t usage = usage_of(self);
    actor_http_text_clear(&server->scratch);
    actor_http_reply_answer(&server->scratch, &reply, choices, reasons, self->choice_count, &usage);
    actor_http_reply_head_t head = {
        .status = server->scratch.failed ? 500 : 200,
        .request_id = self->request_id,
        .content_type = "application/json",
        .http10 = self->http10,
        .close = server->scratch.failed || !keeps_alive(self),
    };
    observe_end(self);
    actor_http_conn_t *conn = self->conn;
    self->conn = NULL;
    self->logged = true;
    actor_http_access_log(server, self->route, head.status, self->request_id, self);
    actor_http_routes_reply(server, conn, &head, &server->scratch);
}

/* /tokenize and /detokenize: nothing was submitted. */
static void
flush_tokens(actor_http_exchange_t *self)
{
    actor_http_server_t *server = self->server;
    const actor_http_prompt_t *prompt = &self->params.prompts[0];
    actor_http_text_t *out = &server->scratch;
    actor_http_text_clear(out);
    if (self->params.kind == ACTOR_HTTP_TOKENIZE) {
        const proto_model_info_t *model = actor_gateway_core_model(server->core);
        actor_http_text_printf(out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[",
                               prompt->id_count,
                               model != NULL ? model->model_len_max : server->text->context_len);
        for (uint32_t at = 0; at < prompt->id_count; at++) {
            actor_http_text_printf(out, "%s%d", at == 0 ? "" : ",", prompt->ids[at]);
        }
        actor_http_text_puts(out, "]}");
    } else {
        actor_http_text_t text = {0};
        for (uint32_t at = 0; at < prompt->id_count; at++) {
            const char *bytes = NULL;
            size_t size = 0;
            if (server->text->token_bytes(server->text->context, prompt->ids[at], &bytes, &size) ==
                STATUS_OK) {
                actor_http_text_add(&text, bytes, size);
            }
        }
        actor_http_text_puts(out, "{\"prompt\":");
        actor_http_text_json(out, text.size_bytes == 0 ? "" : text.data, text.size_bytes);
        actor_http_text_puts(out, "}");
        out->failed = out->failed || text.failed;
        actor_http_text_fini(&text);
    }
    actor_http_reply_head_t head = {
        .status = 200,
        .request_id = self->request_id,
        .content_type = "application/json",
        .http10 = self->http10,
        .close = !keeps_alive(self),
    };
    actor_http_conn_t *conn = self->conn;
    self->conn = NULL;
    self->logged = true;
    actor_http_access_log(server, self->route, 200, self->request_id, self);
    actor_http_routes_reply(server, conn, &head, out);
}

static void
flush_error(actor_http_exchange_t *self)
{
    cancel_open(self);
    if (!self->head_sent) {
        actor_http_conn_t *conn = self->conn;
        self->conn = NULL;
        self->logged = true;
        actor_http_access_log(self->server, self->route, self->error.status, self->request_id,
                              self);
        actor_http_routes_fail(self->server, conn, NULL, self->request_id, self->http10,
                               keeps_alive(self), &self->error);
        return;
    }
    /* The client must not take what it has for the whole answer: an error event, then the end of
     * the connection, without [DONE] and without the last chunk. */
    actor_http_text_clear(&self->server->scratch);
    actor_http_reply_error_event(&self->server->scratch, &self->error);
    send_events(self, false);
    leave_client(self, self->error.status, false);
}

static void
flush_one(actor_http_exchange_t *self)
{
    tell_matches(self);
    if (self->conn == NULL) {
        cancel_open(self);
        if (!self->logged) {
            self->logged = true;
            actor_http_access_log(self->server, self->route, 499, self->request_id, self);
        }
    } else if (self->error.status != 0) {
        flush_error(self);
    } else if (self->choice_count == 0) {
        flush_tokens(self);
    } else if (self->params.stream) {
        flush_stream(self);
    } else {
        flush_answer(self);
    }
    /* The client's end may have come in the lines above: then what is open is cancelled in the
     * next round, by the mark that the core's answers or this one make. */
    if (self->conn == NULL && self->open_count > 0 && !self->cancel_told) {
        cancel_open(self);
    }
    if (self->conn == NULL && self->open_count == 0 && !self->is_dirty) {
        actor_http_exchange_free(self);
    }
}

void
actor_http_exchange_flush(actor_http_server_t *self)
{
    while (self->first_dirty != NULL) {
        actor_http_exchange_t *exchange = self->first_dirty;
        self->first_dirty = exchange->next_dirty;
        exchange->next_dirty = NULL;
        exchange->is_dirty = false;
        flush_one(exchange);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

void
actor_http_exchange_tick(actor_http_server_t *self, uint64_t now_ns)
{
    uint64_t every_ns = self->options->keep_alive_ms * NS_PER_MS;
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        actor_http_exchange_t *exchange = self->slots[slot];
        if (exchange == NULL || exchange->conn == NULL || exchange->in_worker ||
            !exchange->params.stream || exchange->open_count == 0 || exchange->is_dirty ||
            exchange->error.status != 0 || now_ns - exchange->last_write_ns < every_ns) {
            continue;
        }
        actor_http_text_clear(&self->scratch);
        actor_http_text_puts(&self->scratch, ": keep-alive\n\n");
        send_events(exchange, false);
        if (exchange->conn == NULL) {
            actor_http_exchange_mark(exchange);
        }
    }
}

void
actor_http_exchange_fail_all(actor_http_server_t *self)
{
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        actor_http_exchange_t *exchange = self->slots[slot];
        if (exchange == NULL || exchange->conn == NULL || exchange->in_worker ||
            exchange->error.status != 0) {
            continue;
        }
        actor_http_error_set(&exchange->error, "", "shutting_down",
                             "The server shuts down; the answer is not complete.");
        exchange->error.status = 503;
        exchange->error.type = "server_error";
        exchange->error.retry_after_ms = 1000;
        actor_http_exchange_mark(exchange);
    }
    actor_http_exchange_flush(self);
}
