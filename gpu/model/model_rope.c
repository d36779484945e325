/* Rotation frequencies. */
#include "model_rope.h"

#include <math.h>
#include <stddef.h>

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
        case FILE_ROPE_SCALING_TABLE:
            frequency /= factors[i];
            break;
        }
        out[i] = (float)frequency;
    }
}
