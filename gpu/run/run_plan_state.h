/* run_plan_state.h - the cache plan of a model with recurrent layers: a group of keys and values
 * and a group of states, which share parent blocks.  Pure arithmetic; any thread. */
#ifndef RUN_PLAN_STATE_H
#define RUN_PLAN_STATE_H

#include "run_plan.h"

/* As run_plan_new(), for a config with layers of kind FILE_LAYER_LINEAR and of kind
 * FILE_LAYER_FULL.  A state group's block is one checkpoint; its granularity is the prefix
 * granularity, so that every publishable state has a column of its own. */
MUST_CHECK proto_status_t run_plan_state_new(const run_plan_options_t *options,
                                             cache_plan_t **out_p);

#endif
