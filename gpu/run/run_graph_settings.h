/* run_graph_settings.h - which graphs an executor captures: what was asked for, and what every node
 * of its backend trees and the device can do, composed once.
 *
 * Settings carry the user's wish, declarations (backend_support.h) what never works.  A failing
 * capture is neither: it ends the start.  Nothing is owned here. */
#ifndef RUN_GRAPH_SETTINGS_H
#define RUN_GRAPH_SETTINGS_H

#include "backend_base.h"
#include "run_executor.h"
#include "run_forward_step.h"

enum { RUN_CULPRITS_SIZE_BYTES = 512 };

/* Checks the settings against each other and against slots and tokens; fills in the defaults of
 * capture_bs_max and prefill_tokens_max.  STATUS_ERR_CONFIG with `error` filled. */
MUST_CHECK proto_status_t run_graph_settings_check(run_executor_options_t *options, char *error,
                                                   size_t error_size_bytes);

/* The AND over the device and `trees` (target, then drafts; NULL = none there).  `culprits` gets a
 * line for the device and each node that lacks something, and ends with "..." if not all have room;
 * "" if none does. */
backend_support_t run_graph_settings_support(const device_t *device, const backend_t *const *trees,
                                             uint32_t tree_count,
                                             char culprits[RUN_CULPRITS_SIZE_BYTES]);

/* What is captured in the end. */
typedef struct {
    uint32_t capture_sizes[RUN_LADDER_LEN_MAX]; /* ascending */
    uint32_t capture_size_count;
    uint32_t prefill_tokens_max; /* 0 = no prefill graph */
} run_graph_settings_t;

/* Both graph subsystems as asked for, and as far as they are supported. */
void run_graph_settings_resolve(const run_executor_options_t *options, backend_support_t support,
                                run_graph_settings_t *out);

/* Writes the default ladder: 1, 2, 4, 8, then steps of 8, and the top (at least 1) itself.  Where
 * that were too many, the steps double at each power of two from some size on, so that padding
 * stays the same small part of a batch up to the top.  Returns its length; at most
 * RUN_LADDER_LEN_MAX. */
uint32_t run_graph_settings_ladder(uint32_t capture_bs_max, uint32_t *out);

#endif
