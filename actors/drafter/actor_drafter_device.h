/* actor_drafter_device.h - the device thread of a drafter: maps the ring, waits for rounds, drafts,
 * answers.
 *
 * It owns the drafter (draft_base.h), this side of the ring, and what it knows of each slot: when
 * that does not fit a round, because the drafter is new or a round was missed, the state of the
 * row is made anew from all the tokens of the request, which lie in the ring's store. */
#ifndef ACTOR_DRAFTER_DEVICE_H
#define ACTOR_DRAFTER_DEVICE_H

#include "actor_shell.h"

typedef struct actor_drafter_device actor_drafter_device_t;

typedef struct {
    const char *kind; /* "ngram" */
    uint64_t epoch;   /* our own incarnation: answers carry it */
} actor_drafter_device_options_t;

/* The caller owns *out_p. */
MUST_CHECK proto_status_t actor_drafter_device_new(const actor_drafter_device_options_t *options,
                                                   actor_drafter_device_t **out_p);
/* Starts the thread.  It posts DRAFT_DONE and DEVICE_FAILED to the shell, which outlives it. */
MUST_CHECK proto_status_t actor_drafter_device_start(actor_drafter_device_t *self,
                                                     actor_shell_t *shell);
/* DRAFT_OPEN and DRAFT_LAUNCH of the core; the core bounds what is under way.  The shell's thread.
 * A DRAFT_OPEN ends the round that is waited for. */
void actor_drafter_device_push(actor_drafter_device_t *self, const actor_emission_t *command);
/* Stops the thread and joins it; the shell must be stopping. */
void actor_drafter_device_destroy(actor_drafter_device_t **self_p);

#endif
