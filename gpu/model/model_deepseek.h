/* model_deepseek.h - DeepSeek-V3 and what is built like it: latent attention in its absorbed form,
 * dense layers first, then experts behind a sigmoid router with a shared expert beside them. */
#ifndef MODEL_DEEPSEEK_H
#define MODEL_DEEPSEEK_H

#include "model_base.h"

/* As model_new(). */
MUST_CHECK proto_status_t model_deepseek_new(device_t *device, const file_model_t *file,
                                             model_progress_fn progress, void *progress_context,
                                             model_t **out_p);

#endif
