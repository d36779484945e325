/* actor_drafter_shared.h - a drafter that shares a process with its executor: a thread of its own,
 * the same messages over inproc://, the same ring.
 *
 * For machines where a second process costs more than it is worth: one GPU without MPS. */
#ifndef ACTOR_DRAFTER_SHARED_H
#define ACTOR_DRAFTER_SHARED_H

#include "actor_drafter.h"
#include "proto_status.h"

typedef struct actor_drafter_shared actor_drafter_shared_t;

/* Makes the messaging context that both use; start the drafter when the executor's options have
 * it.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_drafter_shared_new(const actor_drafter_options_t *options,
                                                   actor_drafter_shared_t **out_p);
void *actor_drafter_shared_context(const actor_drafter_shared_t *self);
/* Where executor and drafter meet; lent. */
const char *actor_drafter_shared_endpoint(void);
/* Starts the drafter's thread.  STATUS_ERR_IO. */
MUST_CHECK proto_status_t actor_drafter_shared_start(actor_drafter_shared_t *self);
/* Ends the drafter and the context; the executor must have ended. */
void actor_drafter_shared_destroy(actor_drafter_shared_t **self_p);

#endif
