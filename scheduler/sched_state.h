/* sched_state.h - the states of a request and what moves it from one to another.  A table and
 * nothing else: no memory, no side effects; any thread. */
#ifndef SCHED_STATE_H
#define SCHED_STATE_H

#include "proto_status.h"

typedef enum {
    SCHED_STATE_SUBMITTED = 0, /* waits in the queue; holds no slot and no block */
    SCHED_STATE_PREFILLING,    /* some of its tokens are still to be computed */
    SCHED_STATE_PREFILL_DONE,  /* the chunk that completes the prefill is planned */
    SCHED_STATE_DECODING,      /* at least one decode step is planned */
    SCHED_STATE_RETRACTED,     /* keeps its slot, lost its blocks; goes before new requests */
    SCHED_STATE_FINISHED,      /* terminal: absorbs everything late */
    SCHED_STATE_COUNT,
} sched_state_t;

typedef enum {
    SCHED_MOVE_PREFILL = 0,  /* a chunk that leaves something to prefill is planned */
    SCHED_MOVE_PREFILL_LAST, /* the chunk that completes the prefill is planned */
    SCHED_MOVE_DECODE,       /* a decode row is planned */
    SCHED_MOVE_RESULT,       /* a step with a row of this request ended */
    SCHED_MOVE_RETRACT,      /* its blocks are taken away; it starts over from its tokens */
    SCHED_MOVE_FINISH,       /* it ended as it should: stop, length, refused late */
    SCHED_MOVE_ABORT,        /* the client left, or something was lost */
    SCHED_MOVE_COUNT,
} sched_move_t;

/* Writes the state that follows to *next (which is `state` itself where nothing changes).
 * STATUS_ERR_INVALID, *next untouched, for a pair that must not happen. */
MUST_CHECK proto_status_t sched_state_next(sched_state_t state, sched_move_t move,
                                           sched_state_t *next);

/* Lower-case names, for people; "unknown" outside the list. */
const char *sched_state_name(sched_state_t state);
const char *sched_move_name(sched_move_t move);

#endif
