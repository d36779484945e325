/* model_capture.h - what a target gives to a drafter during its forward, and what a drafter's own
 * forward is given.
 *
 * Target capture is configured once, during setup, before caches and graphs exist: it fixes the
 * taps and their layout.  Per-forward work travels on the context and never on the model: a fresh
 * context for each forward means that nothing outlives it, and a forward that sees no attachment
 * does nothing.  The device thread. */
#ifndef MODEL_CAPTURE_H
#define MODEL_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend_draft.h"
#include "proto_status.h"

struct model;
struct model_context;

enum { MODEL_TAP_COUNT_MAX = 8 };

/* In place of a layer: the hidden behind the final norm. */
#define MODEL_TAP_FINAL UINT32_MAX

/* Tap L is the residual stream after layer L (zero based, layer L completed). */
typedef struct {
    uint32_t count; /* 0 = not configured */
    uint32_t layers[MODEL_TAP_COUNT_MAX];
} model_taps_t;

/* TargetCaptureConfigurator.  Once for each target: a second call is STATUS_ERR_INVALID, as is a
 * layer that the model does not have or an order that does not ascend (MODEL_TAP_FINAL is last).
 * STATUS_ERR_UNSUPPORTED: the architecture's forward code gives no taps. */
MUST_CHECK proto_status_t model_configure_capture(struct model *self, const model_taps_t *taps);

/* Wants to know of each tap as soon as its rows are launched, while later layers are still to
 * come: the incremental projection of a block drafter. */
typedef struct model_capture_sink {
    /* `tap` counts from 0 in concat order; rows [context rows][stride]. */
    void (*on_target_capture)(void *owner, const struct model_context *context, uint32_t tap,
                              const float *rows, size_t stride);
    void *owner;
} model_capture_sink_t;

/* CapturedRows: which rows of the forward the taps hold, where they are not all of them. */
typedef struct {
    const int32_t *positions; /* device: of each captured row */
    const int32_t
        *extend_lens; /* [num_extends] host: captured rows of each extend, its last ones */
    uint32_t rows;
} model_captured_rows_t;

/* Of a target's forward. */
typedef struct {
    float *taps;                      /* [rows][stride]: device memory at one address for ever */
    size_t stride;                    /* floats, at least taps.count * hidden_size */
    const model_capture_sink_t *sink; /* NULL = nobody waits for single taps */
    model_captured_rows_t *rows; /* out: set by a target that captures a subset; NULL pointers and
                                  * rows 0 = one captured row for each input row */
} model_capture_t;

/* Of a draft's forward. */
typedef struct {
    const float *hidden; /* [rows][hidden_stride]: taps, or the chained hidden */
    size_t hidden_stride;
    bool is_taps; /* hidden holds what the target captured: the draft's fc comes first */
    /* Step 0 goes on with these rows only; NULL = all. */
    const int32_t *live_rows; /* [live_count] device */
    uint32_t live_count;
    const backend_accepted_prefix_t *narrowing; /* NULL = no step 0 over a verify window */
    float *hidden_out;                          /* [live_count or rows][hidden_size]: chained on */
    bool wants_logits;
    bool is_projected;        /* hidden holds what fc would make of the taps */
    const int32_t *locations; /* [rows] slots of a context injection: backend_draft.h */
    uint32_t depth;           /* multi-depth MTP: which layer runs */
} model_draft_io_t;

#endif
