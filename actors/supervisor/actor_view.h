/* actor_view.h - a running node as people see it: its actors, their links, its requests and why
 * each one waits.
 *
 * Owns a link to the supervisor's socket, which only its own user can open, and everything that it
 * shows.  A look changes nothing in the node.  Blocks until the answer is there or its deadline is
 * over; one thread. */
#ifndef ACTOR_VIEW_H
#define ACTOR_VIEW_H

#include <stdbool.h>

#include "actor_look.h"
#include "proto_status.h"

enum {
    ACTOR_VIEW_DETAIL_SIZE_BYTES = 256,
    ACTOR_VIEW_TIMEOUT_S = 3, /* longer than the supervisor waits for an actor */
};

typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    char detail[ACTOR_VIEW_DETAIL_SIZE_BYTES]; /* what it said last */
    proto_role_t role;
    uint32_t state; /* actor_state_t */
    uint32_t pid;   /* 0 = it does not run */
    uint64_t epoch;
    uint64_t uptime_ms;
    uint32_t beat_age_ms; /* since its last heartbeat */
    uint32_t exits;       /* ends that were not asked for: by an exit, a signal, for being stuck */
    uint32_t signals;
    uint32_t hangs;
    uint64_t cpu_ns;
    uint64_t resident_bytes;
    uint64_t step; /* in work; 0 = none */
    uint32_t step_age_ms;
    uint64_t refused_in;
    uint64_t record_dropped;
} actor_view_actor_t;

typedef struct {
    uint32_t actor; /* index of the one whose link this is */
    char peer[PROTO_NAME_SIZE_BYTES];
    uint32_t age_ms; /* since the peer was heard */
    uint64_t messages_in;
    uint64_t messages_out;
} actor_view_link_t;

/* The requests of one actor. */
typedef struct {
    proto_status_t status; /* not OK: there are none, and why */
    char detail[ACTOR_VIEW_DETAIL_SIZE_BYTES];
    uint32_t total; /* open there, also those beyond `count` */
    uint32_t count;
    actor_look_row_t *rows; /* [count], owned by the view */
} actor_view_requests_t;

typedef struct actor_view actor_view_t; /* opaque */

typedef struct {
    proto_node_health_t state;
    char owner[65];      /* who asked for the drain; "" = nobody */
    char scheduler[256]; /* endpoint of an attached one; "" = the built-in one */
    uint32_t actor_count;
    actor_view_actor_t actors[PROTO_LOOK_ACTORS_MAX];
    uint32_t link_count;
    actor_view_link_t links[PROTO_LOOK_LINKS_MAX];
    bool has_load;
    proto_load_t load;
    actor_view_requests_t gateway;            /* every open choice */
    actor_view_requests_t scheduler_requests; /* those that it has, and why they wait */
} actor_node_t;

/* Links to the node with its sockets in `run_dir`.  STATUS_ERR_NOT_FOUND: there is none;
 * STATUS_ERR_PEER_LOST: it is not alive any more; both with a sentence in `error`. */
MUST_CHECK proto_status_t actor_view_open(const char *run_dir, actor_view_t **out_p,
                                          char error[ACTOR_VIEW_DETAIL_SIZE_BYTES]);
void actor_view_close(actor_view_t **self_p);

/* Looks at the actors; with `row_count_max` above 0 also at the load and at that many requests of
 * gateway and scheduler each.  *out_p is lent until the next call.  STATUS_ERR_PEER_LOST,
 * STATUS_ERR_DEADLINE: the node ended or does not answer. */
MUST_CHECK proto_status_t actor_view_look(actor_view_t *self, uint32_t row_count_max,
                                          const actor_node_t **out_p);

/* For who looks seldom: keeps the link alive, which the supervisor gives up when it hears nothing
 * for seconds.  Wanted several times a second; does not block.  STATUS_ERR_PEER_LOST: the node
 * ended. */
MUST_CHECK proto_status_t actor_view_service(actor_view_t *self);

/* For people: "ready". */
const char *actor_view_node_state_name(proto_node_health_t state);
const char *actor_view_actor_state_name(uint32_t state);

#endif
