/* run_drafter.h - the executor's half of a drafter: the target's configuration, the buffer that
 * taps go to, the round that a drafter is given, and its candidates on their way to the next
 * window.
 *
 * Here the drafter itself lives in the same process and on the executor's stream too, so that a
 * round's proposal is there before the next step is launched.  The device thread. */
#ifndef RUN_DRAFTER_H
#define RUN_DRAFTER_H

#include "draft_base.h"
#include "model_capture.h"
#include "proto_status.h"
#include "run_forward_step.h"

struct run_executor;

/* What a step tested, from its launch to its collect. */
typedef struct {
    uint32_t extends;
    uint32_t rows;
    uint32_t width;
    uint32_t *slots;  /* [bs_max] by row */
    int32_t *future;  /* pinned, [slot_count + 2][N]: next inputs of every slot as it began */
    uint8_t *drafted; /* [bs_max] by row */
    uint8_t *hits;    /* [bs_max] */
} run_drafter_step_t;

typedef struct {
    draft_t *draft; /* NULL = none */
    run_drafter_step_t steps[RUN_STAGE_COUNT];
    model_capture_t capture;
    model_capture_t decode_capture; /* the same, with what the drafter attached */
    uint32_t *dropped;              /* device, [1]: rows with a candidate that was no token */
    draft_round_t round;            /* the last one */
    uint32_t slots_host[PROTO_ROWS_MAX];
    bool is_on; /* false: rounds are taken, candidates are not */
} run_drafter_t;

/* Opens the drafter that the options name, configures the target's taps and allocates their buffer;
 * nothing without one.  After the model, before the cache is laid out. */
MUST_CHECK proto_status_t run_drafter_open(struct run_executor *self);
/* Its layers over the cache that is bound now, and its decode buffers. */
MUST_CHECK proto_status_t run_drafter_bind(struct run_executor *self);
void run_drafter_close(struct run_executor *self);

/* What a forward is given: NULL without taps. */
const model_capture_t *run_drafter_capture(const run_drafter_t *self);

/* Of decode forwards of the drafter's width: with its sink. */
const model_capture_t *run_drafter_decode_capture(const run_drafter_t *self);

/* The round of a step that was launched just now; its views live until the next launch. */
void run_drafter_fill_round(const struct run_executor *self, const run_batch_t *batch,
                            const run_launched_t *launched, uint32_t *slots_host,
                            draft_round_t *out);

/* Before the step in stage `index` is launched: notes what it will test. */
MUST_CHECK proto_status_t run_drafter_note(struct run_executor *self, uint32_t index,
                                           const proto_step_launch_t *launch);
/* Adds to a collected step what it tested: of a step of width 1 the first candidates, which cost
 * nothing and tell what a wide step would have given.  Views until the stage is used again. */
void run_drafter_collect(struct run_executor *self, uint32_t index, proto_step_done_t *out);

/* Launches the proposal of the step that was launched just now, and its way into the future inputs.
 * Nothing without a drafter. */
MUST_CHECK proto_status_t run_drafter_step(struct run_executor *self, const run_batch_t *batch,
                                           const run_launched_t *launched);

#endif
