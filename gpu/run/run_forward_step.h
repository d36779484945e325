/* run_forward_step.h - the ForwardStepRunner: one forward of a batch, replayed or eager.
 *
 * It owns the graphs, their pool and their pointer guards; it borrows the model, the backend tree,
 * the sampling pool, the input buffers and the eager workspace.  The device thread.
 *
 * max_capture_bs is the last of the capture sizes; max_decode_bs, the size of all persistent decode
 * buffers, is the slot count.  A decode above the ladder, or with capture off, is the same refresh
 * and the same body without a graph. */
#ifndef RUN_FORWARD_STEP_H
#define RUN_FORWARD_STEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "model_base.h"
#include "proto_codec.h"
#include "run_buffers.h"
#include "run_prefill_graph.h"
#include "run_workspace.h"
#include "sample_pool.h"

typedef struct run_forward_step run_forward_step_t; /* opaque */

enum { RUN_LADDER_LEN_MAX = 128 };

typedef enum {
    RUN_SAMPLER_POOL = 0, /* the pool-indexed route, which serves every parameter */
} run_sampler_variant_t;

/* What a captured decode graph is found by: the smallest bs that holds the batch, with the same
 * variant and width. */
typedef struct {
    run_sampler_variant_t sampler_variant;
    uint32_t width; /* tokens that a request computes */
    uint32_t bs;    /* requests, padding included */
} run_graph_key_t;

typedef struct {
    device_t *device;
    device_stream_t *stream;
    model_t *model;
    backend_t *backend;
    sample_pool_t *sample;
    run_buffers_t *buffers;
    const uint32_t *capture_sizes; /* ascending, at most bs_max; lent for the call */
    uint32_t capture_size_count;   /* at most RUN_LADDER_LEN_MAX; 0 = no decode graphs */
    bool graph_debug;              /* verify addresses before each replay, poison tails */
    uint32_t prefill_tokens_max;   /* top bucket of the prefill graph; 0 = none */
    bool no_padding;               /* a decode replays only at exactly a captured size */
    _Atomic uint32_t *progress;
    run_workspace_t *workspace;     /* lent: of eager forwards */
    uint32_t width;                 /* tokens that a decode request computes here: the tree's own */
    run_prefill_graph_t *prefill;   /* lent: another runner's; NULL = one of its own, if any */
    const model_capture_t *capture; /* lent: where taps go; NULL = nobody drafts */
    const model_capture_t *decode_capture; /* the same of decode forwards of this width */
} run_forward_step_options_t;

/* A checked batch: views, lent for the call. */
typedef struct {
    run_stage_t *stage; /* this step's own */
    backend_tables_t tables;
    const proto_step_launch_t *launch;
} run_batch_t;

/* What a launch did. */
typedef struct {
    proto_step_mode_t mode;
    uint32_t sampled_extends; /* requests in the outputs before the decodes */
    uint32_t request_count;   /* requests in the outputs */
    uint32_t logit_rows;      /* one for each sampled extend, then `width` for each decode */
    const float *logits;      /* device, [logit_rows][vocabulary] */
} run_launched_t;

/* STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_forward_step_new(const run_forward_step_options_t *options,
                                               run_forward_step_t **out_p);
void run_forward_step_destroy(run_forward_step_t **self_p);

/* The sizes that a capture makes; lent. */
const uint32_t *run_forward_step_ladder(const run_forward_step_t *self, uint32_t *len_p);
/* Others with the same top; before a capture. */
void run_forward_step_set_ladder(run_forward_step_t *self, const uint32_t *sizes, uint32_t count);

/* Captures the decode sizes, largest first, into one pool, and the prefill graph into another. */
MUST_CHECK proto_status_t run_forward_step_capture(run_forward_step_t *self);

/* Makes sure of the eager forwards' workspace: at start, and after a rebind. */
MUST_CHECK proto_status_t run_forward_step_reserve(run_forward_step_t *self);

/* Gives back every graph, for a rebind of the cache; capture may follow. */
void run_forward_step_release(run_forward_step_t *self);

/* Another tree for the same cache.  Graphs that exist keep the old one's addresses: release them
 * first, capture again afterwards. */
void run_forward_step_set_backend(run_forward_step_t *self, backend_t *backend);

/* Fills the stage from the launch (slots first, so that tables can be packed for them).
 * STATUS_ERR_INVALID: the batch does not fit. */
MUST_CHECK proto_status_t run_forward_step_stage(const run_forward_step_t *self,
                                                 const proto_step_launch_t *launch,
                                                 run_stage_t *stage);

/* Launches the forward, its sampling and the commit of the state; STATUS_ERR_INTERNAL when the
 * pointer guard found an address that moved or leaked (run_forward_step_fault() names it). */
MUST_CHECK proto_status_t run_forward_step_launch(run_forward_step_t *self,
                                                  const run_batch_t *batch, run_launched_t *out);

/* Off: every step runs eagerly, the captured graphs are kept; on: they are used again.  Between two
 * launches, at any time. */
void run_forward_step_set_graphs(run_forward_step_t *self, bool on);

/* Why a launch gave STATUS_ERR_INTERNAL: a sentence with the path of the address that moved or
 * leaked; "" if none did. */
const char *run_forward_step_fault(const run_forward_step_t *self);

/* What it was made with. */
const run_forward_step_options_t *run_forward_step_options(const run_forward_step_t *self);
/* The decode graphs' pool; NULL while there are none. */
device_pool_t *run_forward_step_pool(const run_forward_step_t *self);
/* The prefill graph; NULL without one. */
run_prefill_graph_t *run_forward_step_prefill(const run_forward_step_t *self);
/* The prefill bucket that could not be captured; 0 = none. */
uint32_t run_forward_step_failed_bucket(const run_forward_step_t *self);

/* The smallest captured size that holds bs (without padding: bs itself); 0 = none, or graphs
 * are off. */
uint32_t run_forward_step_padded_bs(const run_forward_step_t *self, uint32_t bs);
/* Requests of the largest captured batch; 0 = nothing is captured. */
uint32_t run_forward_step_ladder_top(const run_forward_step_t *self);
uint32_t run_forward_step_graph_count(const run_forward_step_t *self);
size_t run_forward_step_size_bytes(const run_forward_step_t *self);

#endif
