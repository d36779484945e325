/* run_draft.h - the executor's half of speculation: rounds out, candidates in.
 *
 * It owns the ring (draft_ring.h) and the token store in it, and knows for each slot the candidates
 * that wait for its next step.  Work runs in three places:
 *   run_draft_take   enqueued before a step: waits (bounded) for the answer to the step before it,
 *                    checks what came and puts it behind the last verified tokens
 *   run_draft_post   enqueued behind a step: its tokens into the store, its rows into a ring slot,
 *                    and which candidates were right
 *   the rest         on the device thread
 * A drafter that is late, lost or wrong costs candidates, never a step: a row without candidates is
 * a single-token row of the same graph.  After a wait that was in vain nothing is waited for until
 * the drafter has caught up.
 *
 * Steps of width 1 have no place for candidates; what was proposed for them is compared with the
 * token that came, which costs nothing and tells what a wide step would have given. */
#ifndef RUN_DRAFT_H
#define RUN_DRAFT_H

#include "draft_ring.h"
#include "proto_codec.h"
#include "run_buffers.h"

typedef struct run_draft run_draft_t; /* opaque */

typedef struct {
    const char *ring_path;
    uint64_t ring_id;
    device_t *device;
    device_stream_t *stream;
    run_buffers_t *buffers; /* lent */
    size_t lengths_at;      /* of the accepted lengths in a stage's outputs, bytes */
    size_t flags_at;        /* of the row flags */
    uint32_t slot_count;
    uint32_t width; /* N, at least 2 */
    uint32_t vocabulary;
    uint32_t model_len_max;
    uint64_t wait_ns; /* the longest that a step waits for candidates */
} run_draft_options_t;

/* Makes the ring's file, too.  STATUS_ERR_CONFIG, STATUS_ERR_IO, STATUS_ERR_NO_MEMORY.  The caller
 * owns *out_p. */
MUST_CHECK proto_status_t run_draft_new(const run_draft_options_t *options, run_draft_t **out_p);
/* The stream must be idle. */
void run_draft_destroy(run_draft_t **self_p);

/* Answers of this incarnation count from now on; 0 = nobody's, and who waits goes on at once.  Any
 * thread. */
void run_draft_admit(run_draft_t *self, uint64_t epoch);

/* A request takes a slot: what was known of it is replaced by these tokens. */
void run_draft_begin(run_draft_t *self, uint32_t slot, const int32_t *tokens, uint32_t count);

/* Enqueues what comes before the step in `stage`, number `index`. */
MUST_CHECK proto_status_t run_draft_take(run_draft_t *self, uint32_t index,
                                         const proto_step_launch_t *launch,
                                         const run_stage_t *stage);

/* Enqueues what comes behind it, when its outputs are in the stage.  requests[rows]: each row's
 * place among the outputs, -1 = none; lent until the step is collected. */
MUST_CHECK proto_status_t run_draft_post(run_draft_t *self, uint32_t index, const int32_t *requests,
                                         uint32_t sampled_extends);

/* Adds what the step says of candidates; the views live until its stage is used again. */
void run_draft_collect(run_draft_t *self, uint32_t index, proto_step_done_t *out);

size_t run_draft_size_bytes(const run_draft_t *self);

#endif
