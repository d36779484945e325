/* model_rope.h - the rotation frequencies of a checkpoint, with its scaling applied.  Pure. */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include "file_model.h"

/* Writes rope_dim / 2 frequencies.  `factors` are the entries of FILE_ROPE_SCALING_TABLE, else
 * NULL. */
void model_rope_frequencies(const file_config_t *config, const float *factors, float *out);

#endif
