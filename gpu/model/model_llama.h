/* model_llama.h - the llama family: pre-norm RMSNorm, grouped-query attention with rotary
 * positions, gated SiLU feed-forward.  What differs between llama and qwen3 (rotation style, norms
 * of query and key heads, biases, tied output) comes from the config. */
#ifndef MODEL_LLAMA_H
#define MODEL_LLAMA_H

#include "model_base.h"

/* As model_new(). */
MUST_CHECK proto_status_t model_llama_new(device_t *device, const file_model_t *file,
                                          model_progress_fn progress, void *progress_context,
                                          model_t **out_p);

#endif
