/* narrowing_double.h - a test double: a llama whose last layers run on the last rows of each prompt
 * only (model_narrowing.h).
 *
 * Its decoder layers write no cache: they ask the keys and values of the last encoder layer, at all
 * positions.  So what a row gives does not depend on which other rows went on, and logits must be
 * the same bits whatever the window.  Weights of tests/models/fixtures/tiny-llama. */
#ifndef NARROWING_DOUBLE_H
#define NARROWING_DOUBLE_H

#include "model_base.h"

/* Rows of a completed prompt that go on; before the next model is made. */
void narrowing_double_set_window(uint32_t rows);

/* For run_plants_t.make_model. */
MUST_CHECK proto_status_t narrowing_double_new(device_t *device, const file_model_t *file,
                                               model_progress_fn progress, void *progress_context,
                                               model_t **out_p);

#endif
