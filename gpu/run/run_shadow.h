/* run_shadow.h - the shadow check: one decode step of a running executor, both ways.
 *
 * It drains what is in flight, saves every span that the step changes (the input buffers, what the
 * backend nodes and the sampling pool declare, the cache rows that it writes), runs it eagerly,
 * keeps what came of it, puts everything back, replays the captured graph and compares.  The
 * replay's results stay, so the answers of the server do not change; the padding of the two
 * differs and is not compared.  Memory is taken for the check alone and given back.
 * The device thread. */
#ifndef RUN_SHADOW_H
#define RUN_SHADOW_H

#include "run_forward_step.h"

enum { RUN_SHADOW_TEXT_SIZE_BYTES = 400 };

typedef struct {
    bool is_wanted;        /* the next decode step that has a graph is checked */
    bool is_planted;       /* ... with a byte of its cache changed for the eager run: a fault */
    bool is_done;          /* status and text wait to be taken */
    proto_status_t status; /* STATUS_OK: not one bit differs; STATUS_ERR_INTERNAL: one does */
    char text[RUN_SHADOW_TEXT_SIZE_BYTES];
} run_shadow_t;

struct run_executor;

/* In place of run_forward_step_launch() while a check is wanted.  A step without a graph is
 * launched as ever and the check stays wanted. */
MUST_CHECK proto_status_t run_shadow_launch(struct run_executor *self, const run_batch_t *batch,
                                            run_launched_t *out);

#endif
