/* model_gemma3.h - Gemma 3, text only: RMSNorms on both sides of attention and feed-forward, norms
 * of query and key heads, five sliding layers to a full one with rotations of their own, GELU
 * gates, embeddings scaled by the root of the hidden size.  The device thread. */
#ifndef MODEL_GEMMA3_H
#define MODEL_GEMMA3_H

#include "model_base.h"

/* As model_new(). */
MUST_CHECK proto_status_t model_gemma3_new(device_t *device, const file_model_t *file,
                                           model_progress_fn progress, void *progress_context,
                                           model_t **out_p);

#endif
