/* actor_scheduler_look.h - why each request waits, for people who ask through the supervisor.
 *
 * Reads the planning core and changes nothing; the scheduler's thread. */
#ifndef ACTOR_SCHEDULER_LOOK_H
#define ACTOR_SCHEDULER_LOOK_H

#include "actor_scheduler_core.h"
#include "actor_shell.h"

typedef struct {
    const actor_scheduler_core_t *core; /* lent */
    actor_shell_t *shell;               /* set once it is there */
} actor_scheduler_look_t;

/* The `told` of actor_shell_options_t; `context` is an actor_scheduler_look_t. */
void actor_scheduler_look_told(void *context, const proto_header_t *header,
                               const proto_body_t *body);

#endif
