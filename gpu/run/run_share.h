/* run_share.h - what an executor shows to the process that carries its cache elsewhere: the arena
 * by handle, where the pages of each field lie in it, and how far the steps in flight are.
 *
 * Only with run_executor_options_t.share_cache; a fused node keeps its cache to itself.  The device
 * thread. */
#ifndef RUN_SHARE_H
#define RUN_SHARE_H

#include "cache_plan.h"
#include "device_base.h"
#include "proto_layers.h"
#include "run_executor.h"

enum { RUN_SHARE_PART_COUNT_MAX = 3 };

/* The interval of units [begin, begin + count) that this rank has of `extent` in all. */
typedef struct {
    uint32_t extent;
    uint32_t begin;
    uint32_t count;
    uint32_t unit_bytes; /* of one unit in one row */
} run_share_part_t;

/* One field: a page is `rows` rows, a row its parts behind each other. */
typedef struct {
    uint32_t layer;
    cache_field_name_t name;
    cache_dtype_t dtype;
    uint32_t group;
    uint32_t rows;
    uint32_t part_count;
    run_share_part_t parts[RUN_SHARE_PART_COUNT_MAX];
    uint64_t page0_offset_bytes; /* from the arena's beginning */
    uint64_t stride_bytes;
} run_share_field_t;

typedef struct {
    device_share_t arena;
    device_share_t ready; /* a proto_layers_t */
    uint32_t rank;
    uint32_t rank_count;
    uint32_t layer_count; /* of the plan: a drafter's behind the target's */
    uint32_t field_count;
} run_share_t;

/* STATUS_ERR_UNSUPPORTED: the cache is not shared.  Handles live as long as the executor and its
 * cache's size. */
MUST_CHECK proto_status_t run_share_describe(const run_executor_t *self, run_share_t *out);
void run_share_field(const run_executor_t *self, uint32_t index, run_share_field_t *out);

/* ---- for run/ -------------------------------------------------------------------------------- */

/* Makes the memory of readiness.  STATUS_ERR_CONFIG with the error filled: this device cannot share
 * its memory. */
MUST_CHECK proto_status_t run_share_open(run_executor_t *self);
void run_share_close(run_executor_t *self);
/* Around the launches of a step: forwards in between say which layers are done. */
void run_share_begin_step(run_executor_t *self, uint64_t step);
void run_share_end_step(run_executor_t *self, uint64_t step);
void run_share_forget_steps(run_executor_t *self);

#endif
