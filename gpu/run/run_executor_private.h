/* run_executor_private.h - the executor's parts; for the files of run/ that build and drive it. */
#ifndef RUN_EXECUTOR_PRIVATE_H
#define RUN_EXECUTOR_PRIVATE_H

#include <stdatomic.h>

#include "cache_pool.h"
#include "device_comm.h"
#include "file_model.h"
#include "proto_layers.h"
#include "run_draft.h"
#include "run_drafter.h"
#include "run_executor.h"
#include "run_forward_step.h"
#include "run_ledger.h"
#include "run_memory.h"
#include "run_shadow.h"
#include "run_tables.h"
#include "run_workspace.h"

enum { RUN_SUMMARY_SIZE_BYTES = 4096 };

/* A step that was launched and not yet collected. */
typedef struct {
    uint64_t step;
    run_launched_t launched;
    uint32_t extend_count;
    uint32_t row_count;
    uint32_t width;          /* of its decode rows */
    int32_t *requests;       /* [bs_max] row to index in the outputs; -1 = no token */
    uint8_t *logprob_widths; /* [bs_max] */
    bool has_logprobs;
    device_event_t *started;
    device_event_t *ended;
} run_flight_t;

/* What collect hands out; lives until the next collect. */
typedef struct {
    uint8_t *token_counts;   /* [bs_max] */
    uint8_t *row_flags;      /* [bs_max] */
    int32_t *tokens;         /* [bs_max * width] */
    uint8_t *logprob_widths; /* [bs_max] */
    int32_t *logprob_ids;    /* [bs_max * width * KERN_SAMPLE_LOGPROBS_WIDTH] */
    float *logprob_values;
} run_results_t;

struct run_executor {
    run_executor_options_t options; /* defaults filled in */
    cache_dtype_t cache_dtype;
    file_model_t *file;
    bool is_cuda; /* the device has memory of its own and kernels of some architectures */
    device_t *device;
    device_stream_t *stream;
    device_comm_t *comm; /* of the ranks; NULL = alone */
    uint64_t mirror;     /* with ranks: digest of all that was told so far */
    model_t *model;
    cache_plan_t *plan;
    cache_arena_t *arena;
    run_ledger_t ledger;          /* what start-up allocated, weights apart */
    uint64_t available_bytes;     /* before any of it */
    uint64_t rebound_fixed_bytes; /* all but cache and weights, after the last rebind */
    bool is_probing;              /* the cache bound now is the probe's */
    backend_t *backend;
    backend_t *planted_backend; /* the tree that a planted fault put aside; else NULL */
    sample_pool_t *sample;
    run_tables_t *tables;
    run_buffers_t buffers;
    run_workspace_t workspace; /* of eager forwards */
    run_forward_step_t *runner;
    /* With a width above 1: the tree and the graphs of steps of width 1, over the same cache,
     * buffers and prefill graph.  NULL otherwise. */
    backend_t *single_backend;
    run_forward_step_t *single;
    kern_page_field_t *zero_fields; /* device, [zero_field_count] */
    uint32_t zero_field_count;
    run_flight_t flights[RUN_STAGE_COUNT]; /* index = stage */
    uint64_t launched_count;
    uint64_t collected_count;
    run_results_t results;
    run_draft_t *draft; /* the drafter's half that is ours; NULL = no drafter */
    run_shadow_t shadow;
    run_drafter_t drafter; /* the one of this process, and what it is given */
    bool graphs_off;
    const float *last_logits;
    run_launched_t last_launched;
    _Atomic uint32_t *layer; /* pinned: the device writes which layer is in work */
    proto_layers_t *ready; /* shared: what steps have behind them; NULL = the cache is not shared */
    proto_status_t sticky;
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
    uint32_t group_kinds[CACHE_GROUP_COUNT_MAX];
    uint32_t group_granularities[CACHE_GROUP_COUNT_MAX];
    uint32_t group_windows[CACHE_GROUP_COUNT_MAX];
    uint32_t group_packings[CACHE_GROUP_COUNT_MAX];
    char fingerprint[512];
    char summary[RUN_SUMMARY_SIZE_BYTES];
    char fault[256];
};

/* Opens the device that the options name and its stream. */
MUST_CHECK proto_status_t run_executor_open_device(run_executor_t *self);
/* STATUS_ERR_CONFIG with the error filled: the opened checkpoint cannot run on the device, or does
 * not fit it. */
MUST_CHECK proto_status_t run_executor_check_model(run_executor_t *self);
/* The same of the options, once defaults are filled in. */
MUST_CHECK proto_status_t run_executor_check_options(run_executor_t *self);

/* A tree of that width bound to the executor's cache, with its decode buffers.  The caller owns
 * *out_p. */
MUST_CHECK proto_status_t run_executor_make_backend(run_executor_t *self, uint32_t width,
                                                    backend_t **out_p);

/* Who runs steps of that width. */
static inline run_forward_step_t *
run_executor_runner(const run_executor_t *self, uint32_t width)
{
    return width == 1 && self->single != NULL ? self->single : self->runner;
}

/* For the parts of start-up: what went wrong, and a line of the summary. */
proto_status_t run_executor_fail(run_executor_t *self, proto_status_t status, const char *format,
                                 ...) __attribute__((format(printf, 3, 4)));
void run_executor_add_summary(run_executor_t *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- run_ranks.c ----------------------------------------------------------------------------- */

/* How many ranks share the model; 1 = alone. */
uint32_t run_ranks_count(const run_executor_t *self);
/* The collectives of the open device.  STATUS_ERR_CONFIG: it has none. */
MUST_CHECK proto_status_t run_ranks_open(run_executor_t *self);
/* This rank's share of the open checkpoint. */
MUST_CHECK proto_status_t run_ranks_slice(run_executor_t *self);
/* The smallest of what the ranks have room for. */
MUST_CHECK proto_status_t run_ranks_agree_blocks(run_executor_t *self, uint32_t *parent_count);
/* At the end of the start: all ranks have the same model, cache and graphs. */
MUST_CHECK proto_status_t run_ranks_meet(run_executor_t *self);
/* A group that failed while nothing ran fails the device. */
void run_ranks_look(run_executor_t *self);
/* What this rank was told goes into its mirror's digest. */
void run_ranks_note_setup(run_executor_t *self, const proto_slot_setup_t *setup);
void run_ranks_note_launch(run_executor_t *self, const proto_step_launch_t *launch);
/* Before the first collective of a step: mirrors are compared. */
void run_ranks_launch_begin(run_executor_t *self, run_stage_t *stage);
/* Candidates are those of rank 0, which alone may have a drafter. */
void run_ranks_share_candidates(run_executor_t *self);
/* Behind the last: the step has ended when it has on all ranks, with the same tokens. */
void run_ranks_launch_end(run_executor_t *self, const run_stage_t *stage,
                          const run_launched_t *launched);

/* ---- run_cache.c, run_rebind.c --------------------------------------------------------------- */

/* What the device allocated since the last note is this term of the memory sum. */
void run_executor_note_memory(run_executor_t *self, const char *name);
/* A plan that is not bound yet.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_executor_new_plan(const run_executor_t *self, cache_plan_t **out_p);
/* The arena of a bound plan, shared if it is to be.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_executor_new_arena(const run_executor_t *self,
                                                 const cache_plan_t *plan, cache_arena_t **out_p);
/* Plan and arena: the size that was asked for, or a probe's. */
MUST_CHECK proto_status_t run_executor_open_cache(run_executor_t *self);
/* The executor's own references to plan and arena, anew. */
MUST_CHECK proto_status_t run_executor_publish_cache(run_executor_t *self);
/* After the first capture: sizes the cache from what was measured, and moves to it. */
MUST_CHECK proto_status_t run_executor_settle_cache(run_executor_t *self);
/* Moves the executor to a new, empty cache; nothing may be in flight, and what the slots held is
 * gone.  Graphs are captured again.  STATUS_ERR_INVALID: the tree rejects the pool, nothing moved;
 * after another failure the executor can only be destroyed. */
MUST_CHECK proto_status_t run_executor_rebind(run_executor_t *self, uint32_t parent_count);
/* What is due after a bind, in the written order: decode buffers, verify workspace. */
MUST_CHECK proto_status_t run_executor_init_tree(backend_t *backend);
/* Freezes the workspace and captures. */
MUST_CHECK proto_status_t run_executor_capture(run_executor_t *self);

/* Allocates what launches and collects need: flights, results. */
MUST_CHECK proto_status_t run_executor_init_flights(run_executor_t *self);
void run_executor_fini_flights(run_executor_t *self);

#endif
