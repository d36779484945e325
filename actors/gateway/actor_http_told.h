/* actor_http_told.h - what the supervisor tells the gateway beside its core: a drain that can be
 * taken back, the actors of the node for /metrics, and questions of people.
 *
 * None of it is an input of the core.  The HTTP loop's thread. */
#ifndef ACTOR_HTTP_TOLD_H
#define ACTOR_HTTP_TOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"

/* An actor of the node, as the supervisor said last. */
typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    uint32_t state; /* actor_state_t */
    uint64_t epoch;
    uint64_t uptime_ms;
    uint32_t beat_age_ms;
    uint32_t exits;
    uint32_t signals;
    uint32_t hangs;
    uint32_t detection_us;
    uint64_t cpu_ns;
    uint64_t resident_bytes;
    uint64_t refused_in;
    uint64_t record_dropped;
} actor_http_actor_t;

/* All of them; zeroed = nothing said yet. */
typedef struct {
    uint32_t count;
    uint32_t node_state; /* proto_node_health_t */
    actor_http_actor_t actors[PROTO_LOOK_ACTORS_MAX];
} actor_http_actors_t;

/* `onepath drain`: nothing that generates is admitted. */
typedef struct {
    bool is_held;
    char owner[65];
} actor_http_hold_t;

/* The `told` of actor_shell_options_t; `context` is the actor_http_server_t. */
void actor_http_told(void *context, const proto_header_t *header, const proto_body_t *body);

#endif
