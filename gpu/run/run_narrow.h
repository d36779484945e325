/* run_narrow.h - the row plan of a narrowing model's extends: which rows of a step go on.
 *
 * Made on the host from the launch, before the forward; it owns its staging, one part for each step
 * in flight and one more (as run_buffers.h), and the device copy.  The device thread. */
#ifndef RUN_NARROW_H
#define RUN_NARROW_H

#include "model_narrowing.h"
#include "proto_codec.h"
#include "run_buffers.h"

typedef struct run_narrow run_narrow_t; /* opaque */

/* STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_narrow_new(const run_buffers_options_t *sizes,
                                         uint32_t rows_per_request_max, run_narrow_t **out_p);
void run_narrow_destroy(run_narrow_t **self_p);

/* Plans a checked launch with extends and launches the upload.  A prompt that the step completes
 * goes on with its last rows, another one with one row, a decode with all.  The view lives until
 * the next call. */
const model_view_t *run_narrow_plan(run_narrow_t *self, const proto_step_launch_t *launch);

/* Rows that go on at most. */
uint32_t run_narrow_rows_max(const run_narrow_t *self);

#endif
