/* actor_replay_role.h - how to make the core of each role again from a snapshot.
 *
 * One entry for each kind of actor that this build can replay: a new actor is one line in
 * actor_replay_role.c.  Any thread. */
#ifndef ACTOR_REPLAY_ROLE_H
#define ACTOR_REPLAY_ROLE_H

#include <stdbool.h>

#include "actor_core.h"

typedef struct {
    const char *name; /* "scheduler" */
    proto_role_t role;
    bool reads_private; /* its decisions depend on what redaction removes */
    /* As ACTOR_core_restore(); *ops_p is lent for the life of the core. */
    proto_status_t (*restore)(proto_bytes_t state, proto_bytes_t secret, void **core_p,
                              const actor_core_ops_t **ops_p, proto_error_t *error);
    void (*destroy)(void *core);
    /* Figures for people, lines of "name: value"; NULL: none. */
    void (*describe)(const void *core, char *out, size_t capacity_bytes);
} actor_replay_role_t;

/* NULL if this build has no core for the role. */
const actor_replay_role_t *actor_replay_role_find(proto_role_t role);

/* The names of all that it has, separated by commas. */
const char *actor_replay_role_names(void);

#endif
