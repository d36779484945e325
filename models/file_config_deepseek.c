/* What a deepseek_v3 has in common, and the bounds of its numbers. */
#include <inttypes.h>
#include <math.h>

#include "file_model_internal.h"

enum {
    LATENT_DIM_MAX = 1024, /* with the rotated part */
    HEAD_DIM_MAX = 1024,
    Q_LATENT_DIM_MAX = 1 << 16,
    EXPERT_COUNT_MAX = 1024,
    IGNORED_LAYER_COUNT_MAX = 64,
};

void
file_config_set_deepseek(file_config_t *config, double mscale_all_dim)
{
    config->kv_head_count = 1;
    config->has_sigmoid_router = true;
    config->has_apart_experts = true;
    double scale = 1.0;
    if (config->rope_scaling != FILE_ROPE_SCALING_NONE && mscale_all_dim != 0 &&
        config->rope_scaling_factor > 1.0) {
        scale = 0.1 * mscale_all_dim * log(config->rope_scaling_factor) + 1.0;
    }
    if (config->head_dim > 0) {
        config->query_scale = scale * scale / sqrt((double)config->head_dim);
    }
}

typedef struct {
    const char *what;
    uint32_t value;
    uint32_t min;
    uint32_t max;
} range_t;

static proto_status_t
check_ranges(const range_t *ranges, size_t count, file_error_t error)
{
    for (size_t i = 0; i < count; i++) {
        const range_t *range = &ranges[i];
        if (range->value < range->min || range->value > range->max) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "config: %s is %" PRIu32 "; %" PRIu32 " to %" PRIu32
                                  " are allowed",
                                  range->what, range->value, range->min, range->max);
        }
    }
    return STATUS_OK;
}

static proto_status_t
check_groups(const file_config_t *c, file_error_t error)
{
    uint32_t size = c->expert_count / c->expert_group_count;
    if (c->expert_count % c->expert_group_count != 0 || (c->expert_group_count > 1 && size < 2)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: %" PRIu32 " experts do not form %" PRIu32
                              " groups (n_group) of one size, of two or more",
                              c->expert_count, c->expert_group_count);
    }
    if (c->expert_used_count > c->expert_group_used_count * size) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: %" PRIu32 " experts of a token (num_experts_per_tok) are "
                              "more than %" PRIu32 " groups (topk_group) of %" PRIu32 " have",
                              c->expert_used_count, c->expert_group_used_count, size);
    }
    if (!isfinite(c->expert_scale) || c->expert_scale <= 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: routed_scaling_factor is %g; it must be over 0",
                              c->expert_scale);
    }
    return STATUS_OK;
}

proto_status_t
file_config_check_deepseek(const file_config_t *c, file_error_t error)
{
    const range_t ranges[] = {
        {"kv_lora_rank", c->latent_dim, 16, LATENT_DIM_MAX},
        {"q_lora_rank", c->q_latent_dim, 0, Q_LATENT_DIM_MAX},
        {"qk_nope_head_dim", c->nope_dim, 1, HEAD_DIM_MAX},
        {"qk_rope_head_dim", c->rope_dim, 2, HEAD_DIM_MAX},
        {"v_head_dim", c->v_head_dim, 1, HEAD_DIM_MAX},
        {"n_routed_experts", c->expert_count, 1, EXPERT_COUNT_MAX},
        {"n_group", c->expert_group_count, 1, c->expert_count},
        {"topk_group", c->expert_group_used_count, 1, c->expert_group_count},
        {"first_k_dense_replace", c->dense_layer_count, 0, c->layer_count},
        {"num_nextn_predict_layers", c->ignored_layer_count, 0, IGNORED_LAYER_COUNT_MAX},
    };
    proto_status_t status = check_ranges(ranges, sizeof ranges / sizeof ranges[0], error);
    if (status != STATUS_OK) {
        return status;
    }
    if (c->latent_dim % 16 != 0) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "config: kv_lora_rank is %" PRIu32
                              "; only multiples of 16 can be run",
                              c->latent_dim);
    }
    if (c->latent_dim + c->rope_dim > LATENT_DIM_MAX) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "config: kv_lora_rank %" PRIu32 " with qk_rope_head_dim %" PRIu32
                              " is over %d, which cannot be run",
                              c->latent_dim, c->rope_dim, LATENT_DIM_MAX);
    }
    if (!isfinite(c->query_scale) || c->query_scale <= 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: mscale_all_dim or factor makes the scale of the scores %g",
                              c->query_scale);
    }
    return check_groups(c, error);
}
