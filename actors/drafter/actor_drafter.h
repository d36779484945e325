/* actor_drafter.h - the drafter actor: proposes candidates for an executor's next steps.
 *
 * Two threads.  The caller's thread runs the shell and the core (actor_drafter_core.h); the device
 * thread owns the drafter itself (draft_base.h) and this side of the ring (draft_ring.h).  It may
 * be killed, frozen or restarted at any time: nothing that it does decides a token. */
#ifndef ACTOR_DRAFTER_H
#define ACTOR_DRAFTER_H

#include <stdatomic.h>
#include <stdint.h>

/* A zero means the value in the comment. */
typedef struct {
    const char *name;                /* "drafter" */
    uint64_t epoch;                  /* from the supervisor; made from the time */
    const char *executor_endpoint;   /* required: where the executor listens for drafters */
    const char *supervisor_endpoint; /* none: runs alone */
    int ring_fd;                     /* record ring; -1 = record nothing */
    const atomic_int *stop;          /* 1 = end in good order, 2 = now; none */
    const char *kind;                /* "ngram" */
    uint32_t width_max;              /* the widest window that it fills: 16 */
    void *zmq_context;               /* for an executor in the same process; its own */
} actor_drafter_options_t;

/* Runs until the supervisor's STOP, *options->stop or a failure.  Returns the exit code of the
 * process: 0 asked shutdown; 70 internal failure; 75 temporary; 78 configuration (no such drafter,
 * or the executor refused it: both values are logged). */
int actor_drafter_run(const actor_drafter_options_t *options);

#endif
