/* run_plan.h - the cache plan of a model: which layers share a group, and how groups share parent
 * blocks.  Pure arithmetic; any thread. */
#ifndef RUN_PLAN_H
#define RUN_PLAN_H

#include "cache_plan.h"
#include "draft_base.h"
#include "file_model.h"

typedef struct {
    const file_config_t *config;
    uint32_t granularity; /* tokens of a block, in every group */
    cache_dtype_t dtype;
    const draft_info_t *draft; /* whose layers follow the model's; NULL = none */
} run_plan_options_t;

/* One group for full layers, one for sliding or for recurrent ones (run_plan_state.h).  Where there
 * are both, a parent block holds one block of the group with more layers, or several of the other:
 * the planes are as many as the smaller group has fields, the larger group's fields lie behind each
 * other in them.  The layers of a draft are continuation layers in the full group, over its block
 * ids, in planes of their own.  STATUS_ERR_UNSUPPORTED: a draft beside recurrent layers, or without
 * a full layer.  STATUS_ERR_INVALID, STATUS_ERR_NO_MEMORY as cache_plan_new().  The caller owns
 * *out_p. */
MUST_CHECK proto_status_t run_plan_new(const run_plan_options_t *options, cache_plan_t **out_p);

#endif
