/* model_rope.h - the rotation frequencies of a checkpoint, with its scaling applied. */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include "file_model.h"
#include "model_weights.h"

/* Pure.  Writes rope_dim / 2 frequencies.  `factors` are the entries of FILE_ROPE_SCALING_TABLE,
 * else NULL. */
void model_rope_frequencies(const file_config_t *config, const float *factors, float *out);

/* The same, on the device; the factors are read from the checkpoint if the config asks for them. */
MUST_CHECK proto_status_t model_rope_load(model_weights_t *weights, const file_config_t *config,
                                          const float **out);

#endif
