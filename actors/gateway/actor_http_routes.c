/* actor_http_routes.c - paths and methods, and the replies that need no scheduler. */
#include <stdio.h>
#include <string.h>

#include "actor_gateway_table.h"
#include "actor_http_server.h"
#include "proto_require.h"

enum {
    METHOD_GET = 1,
    METHOD_HEAD = 2,
    METHOD_POST = 4,
    METHOD_OPTIONS = 8,
    READS = METHOD_GET | METHOD_HEAD | METHOD_OPTIONS,
    WRITES = METHOD_POST | METHOD_OPTIONS,
};

typedef struct call call_t;
typedef void (*route_fn)(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);

typedef struct {
    const char *path;
    unsigned methods;
    bool is_prefix; /* the rest of the path is a name */
    route_fn serve; /* NULL: an exchange of `kind` */
    actor_http_kind_t kind;
} route_t;

struct call {
    const route_t *route;
    const actor_http_head_t *head;
    unsigned method;
    char request_id[ACTOR_HTTP_ID_SIZE_MAX + 1];
};

static void serve_models(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);
static void serve_model(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);
static void serve_version(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);
static void serve_health(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);
static void serve_ready(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);
static void serve_startup(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);
static void serve_metrics(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);
static void serve_absent(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call);

static const route_t routes[] = {
    {"/v1/completions", WRITES, false, NULL, ACTOR_HTTP_COMPLETION},
    {"/v1/chat/completions", WRITES, false, NULL, ACTOR_HTTP_CHAT},
    {"/tokenize", WRITES, false, NULL, ACTOR_HTTP_TOKENIZE},
    {"/detokenize", WRITES, false, NULL, ACTOR_HTTP_DETOKENIZE},
    {"/v1/models", READS, false, serve_models, 0},
    {"/v1/models/", READS, true, serve_model, 0},
    {"/version", READS, false, serve_version, 0},
    {"/health", READS, false, serve_health, 0},
    {"/ping", READS, false, serve_health, 0},
    {"/health/ready", READS, false, serve_ready, 0},
    {"/health/startup", READS, false, serve_startup, 0},
    {"/metrics", READS, false, serve_metrics, 0},
    {"/v1/embeddings", WRITES, false, serve_absent, 0},
};

_Static_assert(sizeof routes / sizeof routes[0] <= ACTOR_METRICS_ROUTE_COUNT,
               "every route has its counters");

/* ---- replies --------------------------------------------------------------------------------- */

void
actor_http_routes_request_id(actor_http_server_t *self, const actor_http_head_t *head,
                             char out[ACTOR_HTTP_ID_SIZE_MAX + 1])
{
    if (head != NULL && head->request_id != NULL) {
        memcpy(out, head->request_id, head->request_id_size_bytes);
        out[head->request_id_size_bytes] = '\0';
        return;
    }
    uint64_t id = actor_gateway_mix(self->id_key + 0x100000000u + ++self->exchange_count);
    (void)snprintf(out, ACTOR_HTTP_ID_SIZE_MAX + 1, "req-%016llx", (unsigned long long)id);
}

void
actor_http_routes_reply(actor_http_server_t *self, actor_http_conn_t *conn,
                        actor_http_reply_head_t *head, const actor_http_text_t *body)
{
    require(self != NULL);
    actor_http_text_t *out = &self->framed;
    actor_http_text_clear(out);
    head->content_length = body == NULL ? 0 : body->size_bytes;
    actor_http_reply_head(out, head);
    if (body != NULL) {
        actor_http_text_add(out, body->data, body->size_bytes);
    }
    if (!out->failed) {
        actor_http_conn_write(conn, out->data, out->size_bytes);
    }
    actor_http_conn_finish(conn, !head->close && !out->failed);
}

void
actor_http_routes_fail(actor_http_server_t *self, actor_http_conn_t *conn, const char *route,
                       const char *request_id, bool http10, bool keep_alive,
                       const actor_http_error_t *error)
{
    if (route != NULL) {
        actor_http_access_log(self, route, error->status, request_id, NULL);
    }
    actor_http_text_t *body = &self->scratch;
    actor_http_text_clear(body);
    actor_http_reply_error(body, error);
    actor_http_reply_head_t head = {
        .status = error->status,
        .request_id = request_id,
        .content_type = "application/json",
        .http10 = http10,
        .close = !keep_alive,
        .retry_after_s = (error->retry_after_ms + 999) / 1000,
    };
    actor_http_routes_reply(self, conn, &head, body);
}

/* The body is in scratch. */
static void
answer(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call, int status,
       const char *content_type)
{
    actor_http_access_log(self, call->route == NULL ? NULL : call->route->path, status,
                          call->request_id, NULL);
    actor_http_reply_head_t head = {
        .status = self->scratch.failed ? 500 : status,
        .request_id = call->request_id,
        .content_type = content_type,
        .http10 = call->head->http10,
        .close = !call->head->keep_alive || actor_gateway_core_state(self->core).draining,
        .retry_after_s = status == 503 ? 1 : 0,
    };
    if (call->method != METHOD_HEAD) {
        actor_http_routes_reply(self, conn, &head, &self->scratch);
        return;
    }
    actor_http_text_clear(&self->framed);
    head.content_length = self->scratch.size_bytes;
    actor_http_reply_head(&self->framed, &head);
    actor_http_conn_write(conn, self->framed.data, self->framed.size_bytes);
    actor_http_conn_finish(conn, !head.close);
}

/* ---- the short routes ------------------------------------------------------------------------ */

static void
add_model(actor_http_server_t *self)
{
    actor_http_text_t *out = &self->scratch;
    const proto_model_info_t *model = actor_gateway_core_model(self->core);
    actor_http_text_puts(out, "{\"id\":");
    actor_http_text_json(out, self->model_name, strlen(self->model_name));
    actor_http_text_printf(out,
                           ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"onepath\","
                           "\"max_model_len\":%u}",
                           (unsigned long long)self->started_s,
                           model != NULL ? model->model_len_max : self->text->context_len);
}

static void
serve_models(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    actor_http_text_clear(&self->scratch);
    actor_http_text_puts(&self->scratch, "{\"object\":\"list\",\"data\":[");
    add_model(self);
    actor_http_text_puts(&self->scratch, "]}");
    answer(self, conn, call, 200, "application/json");
}

static int
hex_value(char byte)
{
    const char *digits = "0123456789abcdef";
    const char *found =
        byte == '\0' ? NULL : strchr(digits, byte >= 'A' && byte <= 'F' ? byte + 32 : byte);
    return found == NULL ? -1 : (int)(found - digits);
}

/* True if the percent-encoded bytes spell `name`. */
static bool
path_spells(const char *bytes, size_t size_bytes, const char *name)
{
    size_t at = 0;
    while (at < size_bytes) {
        char byte = bytes[at];
        if (byte == '%' && size_bytes - at >= 3 && hex_value(bytes[at + 1]) >= 0 &&
            hex_value(bytes[at + 2]) >= 0) {
            byte = (char)(hex_value(bytes[at + 1]) * 16 + hex_value(bytes[at + 2]));
            at += 2;
        }
        at++;
        if (*name == '\0' || byte != *name) {
            return false;
        }
        name++;
    }
    return *name == '\0';
}

static void
fail(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call,
     const actor_http_error_t *error)
{
    actor_http_routes_fail(self, conn, call->route == NULL ? "other" : call->route->path,
                           call->request_id, call->head->http10, call->head->keep_alive, error);
}

static void
serve_model(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    size_t prefix = strlen(call->route->path);
    if (!path_spells(call->head->target + prefix, call->head->target_size_bytes - prefix,
                     self->model_name)) {
        actor_http_error_t error = {0};
        actor_http_error_set(&error, "model", "model_not_found",
                             "No such model here; `%s` is served.", self->model_name);
        error.status = 404;
        fail(self, conn, call, &error);
        return;
    }
    actor_http_text_clear(&self->scratch);
    add_model(self);
    answer(self, conn, call, 200, "application/json");
}

static void
serve_version(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    actor_http_text_clear(&self->scratch);
    actor_http_text_printf(&self->scratch, "{\"version\":\"%s\",\"protocol\":%d}", ONEPATH_VERSION,
                           PROTO_SCHEMA_VERSION);
    answer(self, conn, call, 200, "application/json");
}

static void
serve_health(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    actor_http_text_clear(&self->scratch);
    actor_http_text_puts(&self->scratch, "{\"status\":\"ok\"}");
    answer(self, conn, call, 200, "application/json");
}

/* Ready, or what is missing; the detail is lent until the next call. */
static bool
is_ready(const actor_http_server_t *self, const char **detail)
{
    static char held[128];
    actor_gateway_core_state_t state = actor_gateway_core_state(self->core);
    *detail = state.detail;
    if (state.ready && self->hold.is_held) {
        (void)snprintf(held, sizeof held, "drained: %s asked for it", self->hold.owner);
        *detail = held;
    }
    return state.ready && !self->hold.is_held;
}

static void
serve_ready(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    const char *detail = "";
    bool ready = is_ready(self, &detail);
    actor_http_text_clear(&self->scratch);
    actor_http_text_printf(&self->scratch,
                           "{\"status\":\"%s\",\"detail\":", ready ? "ready" : "not_ready");
    actor_http_text_json(&self->scratch, detail, strlen(detail));
    actor_http_text_puts(&self->scratch, "}");
    answer(self, conn, call, ready ? 200 : 503, "application/json");
}

static void
serve_startup(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    const char *detail = "";
    bool ready = is_ready(self, &detail);
    actor_http_text_clear(&self->scratch);
    actor_http_text_printf(&self->scratch, "{\"status\":\"%s\",\"ready\":%s,\"detail\":",
                           self->was_ready ? "started" : "starting", ready ? "true" : "false");
    actor_http_text_json(&self->scratch, detail, strlen(detail));
    actor_http_text_puts(&self->scratch, "}");
    answer(self, conn, call, self->was_ready ? 200 : 503, "application/json");
}

static void
serve_metrics(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    actor_http_port_counts_t counts = actor_http_port_counts(self->port);
    const proto_load_t *load = actor_gateway_core_load(self->core);
    self->metrics.connections_accepted = counts.accepted_count;
    self->metrics.connections_refused = counts.refused_count;
    self->metrics.clients_cut = counts.cut_count;
    actor_http_metrics_load(&self->metrics, load);
    proto_stats_t stats;
    actor_shell_stats(self->shell, &stats);
    actor_http_metrics_view_t view = {
        .model_name = self->model_name,
        .model = actor_gateway_core_model(self->core),
        .load = load,
        .state = actor_gateway_core_state(self->core),
        .connection_count = counts.open_count,
        .epoch = self->options->epoch,
        .stats = &stats,
        .actors = &self->actors,
        .is_held = self->hold.is_held,
        .traces = actor_http_trace_counts(self->trace),
        .vllm_names = !self->options->no_vllm_names,
    };
    actor_http_text_clear(&self->scratch);
    actor_http_metrics_write(&self->metrics, &view, &self->scratch);
    answer(self, conn, call, 200, "text/plain; version=0.0.4; charset=utf-8");
}

static void
serve_absent(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call)
{
    actor_http_error_t error = {0};
    actor_http_error_set(&error, "", "not_supported",
                         "Embeddings are not supported by this server.");
    error.status = 501;
    fail(self, conn, call, &error);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static unsigned
method_of(const actor_http_head_t *head)
{
    static const struct {
        const char *name;
        unsigned method;
    } methods[] = {
        {"GET", METHOD_GET},
        {"HEAD", METHOD_HEAD},
        {"POST", METHOD_POST},
        {"OPTIONS", METHOD_OPTIONS},
    };
    for (size_t at = 0; at < sizeof methods / sizeof methods[0]; at++) {
        if (head->method_size_bytes == strlen(methods[at].name) &&
            memcmp(head->method, methods[at].name, head->method_size_bytes) == 0) {
            return methods[at].method;
        }
    }
    return 0;
}

static const route_t *
find_route(const actor_http_head_t *head)
{
    for (size_t at = 0; at < sizeof routes / sizeof routes[0]; at++) {
        size_t size = strlen(routes[at].path);
        bool fits =
            routes[at].is_prefix ? head->target_size_bytes > size : head->target_size_bytes == size;
        if (fits && memcmp(head->target, routes[at].path, size) == 0) {
            return &routes[at];
        }
    }
    return NULL;
}

static bool
is_asterisk(const actor_http_head_t *head)
{
    return head->target_size_bytes == 1 && head->target[0] == '*';
}

static const char *
allow_text(unsigned methods)
{
    return (methods & METHOD_POST) != 0 ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

/* Whether the client may ask for this.  Probes have no keys: what begins with /health, and only
 * that, is free, so that a new route is guarded before anybody thinks of it. */
static bool
may_ask(const actor_http_server_t *self, const actor_http_head_t *head, const route_t *route)
{
    static const char open[] = "/health";
    return self->keys == NULL ||
           (route != NULL && !route->is_prefix &&
            strncmp(route->path, open, sizeof open - 1) == 0) ||
           actor_http_keys_accept(self->keys, head->bearer, head->bearer_size_bytes);
}

/* 0 if the route serves the method; else the status that says why not. */
static int
refusal(const actor_http_server_t *self, const actor_http_head_t *head, const route_t *route,
        unsigned method)
{
    if (!may_ask(self, head, route)) {
        return 401;
    }
    if (is_asterisk(head)) {
        return method == METHOD_OPTIONS ? 0 : 400;
    }
    if (route == NULL) {
        return 404;
    }
    return (route->methods & method) != 0 ? 0 : 405;
}

static int
check(void *context, const actor_http_head_t *head, size_t *body_size_max)
{
    const route_t *route = find_route(head);
    unsigned method = method_of(head);
    bool has_body = head->chunked || head->content_length > 0;
    int status = refusal(context, head, route, method);
    if (status != 0) {
        return has_body ? status : 0; /* without a body the connection can go on */
    }
    if (method != METHOD_POST) {
        *body_size_max = 0;
        return 0;
    }
    if (!head->chunked && !head->has_length) {
        return 411;
    }
    return head->json_body ? 0 : 415;
}

static void
describe_refusal(const actor_http_head_t *head, int status, const char *reason,
                 actor_http_error_t *error)
{
    const char *text = reason;
    if (status == 401) {
        text = "This server asks for an API key: send Authorization: Bearer KEY.";
    } else if (status == 404) {
        text = "There is nothing at this path; see /v1/models and docs/http-api.md.";
    } else if (status == 405) {
        text = "This path does not take this method.";
    } else if (status == 411) {
        text = "A request with a body needs a Content-Length.";
    } else if (status == 415 && reason == NULL) {
        text = "The body must be JSON: send Content-Type: application/json.";
    } else if (text == NULL) {
        text = "The request was refused.";
    }
    (void)head;
    actor_http_error_set(error, "", status == 401 ? "invalid_api_key" : "", "%s", text);
    error->status = status;
    if (status == 503) {
        error->type = "server_error";
        error->retry_after_ms = 1000;
    }
}

static void
reply_refusal(actor_http_server_t *self, actor_http_conn_t *conn, const call_t *call, int status,
              const char *reason, bool close)
{
    actor_http_error_t error = {0};
    describe_refusal(call->head, status, reason, &error);
    actor_http_access_log(self, call->route == NULL ? NULL : call->route->path, status,
                          call->request_id, NULL);
    actor_http_text_clear(&self->scratch);
    actor_http_reply_error(&self->scratch, &error);
    actor_http_reply_head_t head = {
        .status = status,
        .request_id = call->request_id,
        .content_type = "application/json",
        .close = close,
        .retry_after_s = error.retry_after_ms / 1000,
        .wants_key = status == 401,
        .allow = status == 405 && call->route != NULL ? allow_text(call->route->methods) : NULL,
    };
    if (call->head != NULL) {
        head.http10 = call->head->http10;
    }
    actor_http_text_clear(&self->framed);
    head.content_length = self->scratch.size_bytes;
    actor_http_reply_head(&self->framed, &head);
    if (call->method != METHOD_HEAD) {
        actor_http_text_add(&self->framed, self->scratch.data, self->scratch.size_bytes);
    }
    actor_http_conn_write(conn, self->framed.data, self->framed.size_bytes);
}

static void
on_refuse(void *context, actor_http_conn_t *conn, const actor_http_head_t *head, int status,
          const char *reason)
{
    actor_http_server_t *self = context;
    call_t call = {.head = head};
    if (head != NULL) {
        call.route = find_route(head);
        call.method = method_of(head);
    }
    actor_http_routes_request_id(self, head, call.request_id);
    reply_refusal(self, conn, &call, status, reason, true);
}

static void
on_request(void *context, actor_http_conn_t *conn, const actor_http_head_t *head,
           actor_http_text_t *body)
{
    actor_http_server_t *self = context;
    call_t call = {.head = head, .route = find_route(head), .method = method_of(head)};
    int status = refusal(self, head, call.route, call.method);
    if (status == 0 && call.method == METHOD_POST && call.route->serve == NULL) {
        actor_http_exchange_begin(self, conn, call.route->kind, call.route->path, head, body);
        return;
    }
    actor_http_routes_request_id(self, head, call.request_id);
    if (status != 0) {
        reply_refusal(self, conn, &call, status, NULL, !head->keep_alive);
        actor_http_conn_finish(conn, head->keep_alive);
        return;
    }
    if (call.method == METHOD_OPTIONS) {
        actor_http_access_log(self, call.route == NULL ? NULL : call.route->path, 204,
                              call.request_id, NULL);
        actor_http_reply_head_t reply = {
            .status = 204,
            .request_id = call.request_id,
            .http10 = head->http10,
            .close = !head->keep_alive,
            .allow =
                call.route == NULL ? "GET, HEAD, POST, OPTIONS" : allow_text(call.route->methods),
        };
        actor_http_routes_reply(self, conn, &reply, NULL);
        return;
    }
    call.route->serve(self, conn, &call);
}

static void
on_gone(void *context, actor_http_conn_t *conn, void *exchange)
{
    (void)context;
    (void)conn;
    actor_http_exchange_gone(exchange);
}

const actor_http_conn_ops_t *
actor_http_routes_ops(void)
{
    static const actor_http_conn_ops_t ops = {
        .check = check,
        .request = on_request,
        .refuse = on_refuse,
        .gone = on_gone,
    };
    return &ops;
}
