/* actor_http_server.h - inside the gateway: what routes, exchanges and the loop share.
 *
 * An exchange is one HTTP request that generates (or is being parsed elsewhere): its choices, its
 * place in the table, its way to the client.  It outlives its connection when the client leaves
 * first, until the core has ended every choice.  The loop's thread, except prepare(). */
#ifndef ACTOR_HTTP_SERVER_H
#define ACTOR_HTTP_SERVER_H

#include "actor_gateway.h"
#include "actor_gateway_core.h"
#include "actor_http_choice.h"
#include "actor_http_conn.h"
#include "actor_http_keys.h"
#include "actor_http_metrics.h"
#include "actor_http_params.h"
#include "actor_http_reply.h"
#include "actor_http_told.h"
#include "actor_http_trace.h"
#include "actor_http_worker.h"
#include "actor_shell.h"

typedef struct actor_http_server actor_http_server_t;
typedef struct actor_http_exchange actor_http_exchange_t;

typedef struct {
    actor_http_choice_t text;
    bool submitted;    /* the core was given it */
    bool ended;        /* its HTTP_END came, or it was never submitted */
    bool stop_told;    /* an HTTP_STOP was injected */
    bool begun;        /* stream: its first event is written */
    bool finish_shown; /* stream: its finish event is written */
    uint32_t prompt_at;
    uint32_t reason; /* proto_finish_reason_t, once ended */
    uint32_t generated_tokens;
    uint32_t cached_tokens;
    uint64_t last_token_ns;
} actor_http_open_choice_t;

struct actor_http_exchange {
    actor_http_server_t *server;
    actor_http_conn_t *conn; /* NULL: the client is gone or has its answer */
    uint64_t id;             /* generation and slot; names it to the core */
    actor_http_exchange_t *next_dirty;
    bool is_dirty;
    bool in_worker;   /* being prepared: hands off */
    bool cancel_told; /* HTTP_STOPs for all that is open were injected */
    bool head_sent;   /* stream: status and headers are written */
    bool logged;
    bool http10;
    bool keep_alive;
    const char *route; /* static */

    actor_http_text_t body; /* until it is parsed */
    actor_http_params_t params;
    actor_http_error_t error; /* status 0: none */

    actor_http_open_choice_t *choices; /* [choice_count], owned */
    uint32_t choice_count;
    uint32_t open_count;

    actor_http_trace_context_t trace;
    uint64_t arrived_ns;
    uint64_t submitted_ns;
    uint64_t first_token_ns; /* 0: none yet */
    uint64_t queue_ns;       /* of the first choice that ended */
    uint64_t last_write_ns;
    uint64_t created_s;
    char request_id[ACTOR_HTTP_ID_SIZE_MAX + 1];
    char public_id[48]; /* "chatcmpl-..." */
};

struct actor_http_server {
    const actor_gateway_options_t *options; /* defaults filled in */
    const actor_gateway_text_t *text;
    const char *model_name; /* the served one */
    char fingerprint[24];
    char url[80]; /* "http://127.0.0.1:8000" */
    uint64_t started_s;
    uint64_t id_key; /* makes public ids and default seeds of this epoch */
    bool was_ready;
    actor_gateway_core_t *core;
    actor_shell_t *shell;
    actor_http_port_t *port;
    actor_http_keys_t *keys; /* NULL: nobody is asked for one */
    actor_http_worker_t *worker;
    struct event *service; /* made active when the shell has something to do */
    actor_http_metrics_t metrics;
    actor_http_actors_t actors;
    actor_http_hold_t hold;
    actor_http_trace_t *trace; /* NULL = no traces are sent */

    actor_http_exchange_t **slots; /* [slot_count] */
    uint32_t *generations;         /* [slot_count] */
    uint32_t *free_slots;          /* [slot_count], free_count of them valid */
    uint32_t slot_count;
    uint32_t free_count;
    actor_http_exchange_t *first_dirty;
    uint64_t exchange_count;   /* ever */
    actor_http_text_t scratch; /* one reply or round of events */
    actor_http_text_t framed;  /* the same with its head or chunk framing */
};

/* ---- actor_http_exchange.c ------------------------------------------------------------------- */

MUST_CHECK proto_status_t actor_http_server_init(actor_http_server_t *self);
/* Frees every exchange; the port and the worker must be gone already. */
void actor_http_server_fini(actor_http_server_t *self);

/* Takes a whole generating request; `body` is emptied.  The reply comes by itself. */
void actor_http_exchange_begin(actor_http_server_t *self, actor_http_conn_t *conn,
                               actor_http_kind_t kind, const char *route,
                               const actor_http_head_t *head, actor_http_text_t *body);
/* Parses and tokenises; the worker's function, or called inline. */
void actor_http_exchange_prepare(actor_http_exchange_t *self, uint32_t lane);
/* The client went away. */
void actor_http_exchange_gone(actor_http_exchange_t *self);
/* Takes jobs back from the worker. */
void actor_http_exchange_collect(actor_http_server_t *self);

/* ---- actor_http_stream.c --------------------------------------------------------------------- */

/* The core's messages to its HTTP side. */
void actor_http_exchange_local(void *server, const actor_emission_t *emission);
void actor_http_exchange_mark(actor_http_exchange_t *self);
/* Writes what all changed exchanges have for their clients: once for each, whatever came. */
void actor_http_exchange_flush(actor_http_server_t *self);
/* Comment lines for streams that wait. */
void actor_http_exchange_tick(actor_http_server_t *self, uint64_t now_ns);
/* Fails what is still open, with an error event where a stream runs: the last act of a drain. */
void actor_http_exchange_fail_all(actor_http_server_t *self);
/* Takes it out of its slot and frees it. */
void actor_http_exchange_free(actor_http_exchange_t *self);

/* ---- actor_http_routes.c --------------------------------------------------------------------- */

const actor_http_conn_ops_t *actor_http_routes_ops(void);
/* A whole short reply, then finish. `body` may be NULL. */
void actor_http_routes_reply(actor_http_server_t *self, actor_http_conn_t *conn,
                             actor_http_reply_head_t *head, const actor_http_text_t *body);
/* An error object as the reply.  `exchange_head` NULL: the connection closes. */
void actor_http_routes_fail(actor_http_server_t *self, actor_http_conn_t *conn, const char *route,
                            const char *request_id, bool http10, bool keep_alive,
                            const actor_http_error_t *error);
/* Writes the client's x-request-id if it is valid, else a fresh one. */
void actor_http_routes_request_id(actor_http_server_t *self, const actor_http_head_t *head,
                                  char out[ACTOR_HTTP_ID_SIZE_MAX + 1]);

/* ---- actor_http_access.c --------------------------------------------------------------------- */

/* One access line, the counters, the trace. */
void actor_http_access_log(actor_http_server_t *self, const char *route, int status,
                           const char *request_id, const actor_http_exchange_t *exchange);

uint64_t actor_http_now_ns(void);

#endif
