/* model_qwen35.h - Qwen3.5, text only: recurrent layers with a full attention layer at every fourth
 * place or as the config says, norms of query and key heads, gates between the query heads, some of
 * a head's values rotated, norm weights stored without their 1.  The device thread. */
#ifndef MODEL_QWEN35_H
#define MODEL_QWEN35_H

#include "model_base.h"

/* As model_new(). */
MUST_CHECK proto_status_t model_qwen35_new(device_t *device, const file_model_t *file,
                                           model_progress_fn progress, void *progress_context,
                                           model_t **out_p);

#endif
