/* Rotation frequencies. */
#include "model_rope.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

/* The smooth interpolation of llama 3: long waves are slowed by the factor, short ones kept, those
 * between blended. */
static double
scale_llama3(const file_config_t *config, double frequency)
{
    double context = config->rope_original_context_len;
    double wavelength = 2.0 * M_PI / frequency;
    double low = context / config->rope_low_freq_factor;
    double high = context / config->rope_high_freq_factor;
    if (wavelength < high) {
        return frequency;
    }
    if (wavelength > low) {
        return frequency / config->rope_scaling_factor;
    }
    double smooth = (context / wavelength - config->rope_low_freq_factor) /
                    (config->rope_high_freq_factor - config->rope_low_freq_factor);
    return (1.0 - smooth) * frequency / config->rope_scaling_factor + smooth * frequency;
}

/* The dimension whose wave turns so many times within the context that was trained. */
static double
dimension_of_turns(const file_config_t *config, double turns)
{
    double context = config->rope_original_context_len;
    return config->rope_dim * log(context / (turns * 2.0 * M_PI)) / (2.0 * log(config->rope_theta));
}

/* YaRN: waves of many turns are kept, those of few slowed by the factor, and between both limits
 * there is a straight line over the dimensions. */
static double
scale_yarn(const file_config_t *config, double frequency, uint32_t index)
{
    double low = dimension_of_turns(config, config->rope_beta_fast);
    double high = dimension_of_turns(config, config->rope_beta_slow);
    if (config->rope_truncates) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, config->rope_dim - 1.0);
    high += low == high ? 0.001 : 0.0;
    double slowed = fmin(fmax((index - low) / (high - low), 0.0), 1.0);
    return frequency / config->rope_scaling_factor * slowed + frequency * (1.0 - slowed);
}

void
model_rope_frequencies(const file_config_t *config, const float *factors, float *out)
{
    for (uint32_t i = 0; i < config->rope_dim / 2; i++) {
        double frequency = pow(config->rope_theta, -2.0 * i / config->rope_dim);
        switch (config->rope_scaling) {
        case FILE_ROPE_SCALING_NONE:
            break;
        case FILE_ROPE_SCALING_LINEAR:
            frequency /= config->rope_scaling_factor;
            break;
        case FILE_ROPE_SCALING_LLAMA3:
            frequency = scale_llama3(config, frequency);
            break;
        case FILE_ROPE_SCALING_YARN:
            frequency = scale_yarn(config, frequency, i);
            break;
        case FILE_ROPE_SCALING_TABLE:
            frequency /= factors[i];
            break;
        }
        out[i] = (float)frequency;
    }
}

proto_status_t
model_rope_load(model_weights_t *weights, const file_config_t *config, const float **out)
{
    uint32_t count = config->rope_dim / 2;
    float *values = calloc(2 * ((size_t)count + 1), sizeof *values);
    if (values == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    float *factors = values + count + 1;
    proto_status_t status = STATUS_OK;
    if (config->rope_scaling == FILE_ROPE_SCALING_TABLE) {
        status = model_weights_values(weights, FILE_ROLE_ROPE_FREQS, 0, count, factors);
    }
    if (status == STATUS_OK) {
        model_rope_frequencies(config, factors, values);
        status = model_weights_floats(weights, values, count + 1, out);
    }
    free(values);
    return status;
}
