/* model_gpt_oss.h - gpt-oss: sliding and full layers by turns, biases on every projection, a sink
 * for each query head, YaRN rotations, a mixture of experts with a clamped gate. */
#ifndef MODEL_GPT_OSS_H
#define MODEL_GPT_OSS_H

#include "model_base.h"

/* As model_new(). */
MUST_CHECK proto_status_t model_gpt_oss_new(device_t *device, const file_model_t *file,
                                            model_progress_fn progress, void *progress_context,
                                            model_t **out_p);

#endif
