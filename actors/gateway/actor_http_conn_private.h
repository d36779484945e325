/* actor_http_conn_private.h - what actor_http_port.c and actor_http_conn.c share. */
#ifndef ACTOR_HTTP_CONN_PRIVATE_H
#define ACTOR_HTTP_CONN_PRIVATE_H

#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <http_parser.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "actor_http_conn.h"

typedef enum {
    ACTOR_HTTP_HEAD,   /* waits for a request's first or next bytes */
    ACTOR_HTTP_BODY,   /* the head is whole, the body is not */
    ACTOR_HTTP_BUSY,   /* the owner works on the request */
    ACTOR_HTTP_LINGER, /* all is written; waits for the client to take it and to close */
} actor_http_conn_state_t;

struct actor_http_conn {
    actor_http_port_t *port;
    actor_http_conn_t *next; /* in the port's list */
    actor_http_conn_t *previous;
    struct bufferevent *buffers; /* NULL: the connection is dead, its memory not free yet */
    struct event *timer;
    void *exchange;
    actor_http_conn_state_t state;
    uint64_t deadline_ns;       /* of the state; UINT64_MAX = none */
    uint64_t stall_deadline_ns; /* UINT64_MAX while nothing waits to be read by the client */
    size_t stall_backlog_bytes; /* what waited when the stall deadline was set */
    uint64_t write_count_bytes; /* written since then */
    http_parser parser;
    actor_http_head_t head;
    char *head_bytes; /* copy of the head: texts of `head` point into it */
    size_t head_size_bytes;
    size_t head_scanned;
    actor_http_chunks_t chunks;
    actor_http_text_t body;
    size_t body_size_max;
    bool message_complete; /* the parser says so */
    bool head_begun;       /* the first byte of a request has come: the head's deadline runs */
    bool processing;       /* inside process(): frees and restarts wait for its end */
    bool send_failed;
    bool shut; /* our side is shut */
    uint32_t ip_hash;
    char peer[INET6_ADDRSTRLEN];
};

struct actor_http_port {
    actor_http_port_options_t options;
    struct evconnlistener *listener;
    actor_http_conn_t *first;
    actor_http_port_counts_t counts;
    uint16_t number;
    bool closed;
    http_parser_settings settings;
};

/* Makes a connection of an accepted descriptor, which it takes in any case. */
void actor_http_conn_accept(actor_http_port_t *port, evutil_socket_t descriptor,
                            const struct sockaddr *address);
/* Ends it and reports it gone if it was at work. */
void actor_http_conn_drop(actor_http_conn_t *self);

void actor_http_parser_init(http_parser_settings *settings);

#endif
