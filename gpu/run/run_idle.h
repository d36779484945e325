/* run_idle.h - the idle forward: the model runs on padding alone.
 *
 * It goes past the runner's wrapper: no launch, no padding to a ladder, no graph, no sampling and
 * no commit, only metadata in mode IDLE over the placeholder tables and the model's forward.  Every
 * request resolves to the null page, so no block, no slot and no output changes.  Nobody needs it
 * to serve on one device; it is there for whoever must run a forward although nothing is live.  The
 * device thread. */
#ifndef RUN_IDLE_H
#define RUN_IDLE_H

#include "run_forward_step.h"

/* Launches it for `bs` padded requests, 1 to bs_max.  STATUS_ERR_INVALID: bs is out of range. */
MUST_CHECK proto_status_t run_idle_forward(const run_forward_step_options_t *options, uint32_t bs);

#endif
