/* actor_http_conn.h - the listening socket and its connections: bytes to whole requests, replies
 * to bytes, and every deadline in between.
 *
 * A connection works on one request at a time; what a client sends ahead waits in the kernel.  A
 * request is shown to the owner when it is whole and checked (actor_http_guard.h), and the owner
 * answers with write and finish, now or later.  A client that goes away is reported at once.  All
 * calls from the loop's thread. */
#ifndef ACTOR_HTTP_CONN_H
#define ACTOR_HTTP_CONN_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "actor_http_guard.h"
#include "actor_http_text.h"
#include "proto_status.h"

typedef struct actor_http_port actor_http_port_t; /* opaque */
typedef struct actor_http_conn actor_http_conn_t; /* opaque */

/* The owner's side.  No function may keep `head` or `body` beyond its call. */
typedef struct {
    /* The head is whole.  Returns 0, or a status with which the request is refused before its
     * body is read (the owner's refuse is called with it); may lower *body_size_max. */
    int (*check)(void *context, const actor_http_head_t *head, size_t *body_size_max);
    /* The request is whole.  The connection is the owner's until actor_http_conn_finish(). */
    void (*request)(void *context, actor_http_conn_t *conn, const actor_http_head_t *head,
                    actor_http_text_t *body);
    /* Must write a whole reply that announces the close of the connection; it is closed after it.
     * `head` is NULL if it could not be read; `reason` a sentence, or NULL if check refused. */
    void (*refuse)(void *context, actor_http_conn_t *conn, const actor_http_head_t *head,
                   int status, const char *reason);
    /* The client of a request went away, or was cut.  The connection ends with this call. */
    void (*gone)(void *context, actor_http_conn_t *conn, void *exchange);
} actor_http_conn_ops_t;

typedef struct {
    struct event_base *base;
    const char *address;
    uint16_t port; /* 0: chosen */
    uint32_t connection_count_max;
    uint32_t connection_per_ip_max;
    uint32_t body_size_bytes_max;
    uint32_t head_timeout_ms;
    uint32_t body_timeout_ms;
    uint32_t idle_timeout_ms;
    uint32_t stall_timeout_ms;
    uint32_t send_buffer_bytes; /* 0: the system's */
    const actor_http_conn_ops_t *ops;
    void *context;
} actor_http_port_options_t;

/* Binds and listens.  STATUS_ERR_REFUSED: the port is in use; STATUS_ERR_CONFIG: no such address
 * on this machine; both are logged.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_http_port_new(const actor_http_port_options_t *options,
                                              actor_http_port_t **out_p);
/* Ends every connection without a word (gone is called for those at work) and the listener. */
void actor_http_port_destroy(actor_http_port_t **self_p);
/* Accepts nothing more; connections between two requests are closed, others after their reply. */
void actor_http_port_close(actor_http_port_t *self);
uint16_t actor_http_port_number(const actor_http_port_t *self);

typedef struct {
    uint32_t open_count;
    uint64_t accepted_count;
    uint64_t refused_count; /* over a limit */
    uint64_t cut_count;     /* stalled clients */
} actor_http_port_counts_t;

actor_http_port_counts_t actor_http_port_counts(const actor_http_port_t *self);

/* What the owner keeps with a request; given to gone.  NULL until set. */
void actor_http_conn_set_exchange(actor_http_conn_t *self, void *exchange);
/* "127.0.0.1"; lent. */
const char *actor_http_conn_peer(const actor_http_conn_t *self);

/* Sends, in one system call if the client keeps up; the rest waits in memory.  A failing socket is
 * reported through gone, later. */
void actor_http_conn_write(actor_http_conn_t *self, const char *bytes, size_t size_bytes);
/* Bytes that the client has not taken yet. */
size_t actor_http_conn_backlog(const actor_http_conn_t *self);
/* The reply is whole.  Goes on with the next request, or closes after what was written is sent. */
void actor_http_conn_finish(actor_http_conn_t *self, bool keep_alive);
/* Cuts the connection now, without calling gone. */
void actor_http_conn_cut(actor_http_conn_t *self);

#endif
