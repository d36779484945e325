/* run_stage.h - a checked batch, written into the host staging of its step.  The device thread. */
#ifndef RUN_STAGE_H
#define RUN_STAGE_H

#include "proto_codec.h"
#include "run_buffers.h"

/* Fills the stage's header and token ids from the launch, slots included.  STATUS_ERR_INVALID: the
 * batch does not fit `sizes`. */
MUST_CHECK proto_status_t run_stage_fill(const run_buffers_options_t *sizes,
                                         const proto_step_launch_t *launch, run_stage_t *stage);

#endif
