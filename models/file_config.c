/* What both kinds of config share: the list of architectures, bounds, names, stop ids. */
#include <inttypes.h>
#include <math.h>

#include "file_model_internal.h"
#include "proto_require.h"

enum {
    HIDDEN_SIZE_MAX = 1 << 16,
    FFN_SIZE_MAX = 1 << 20,
    HEAD_COUNT_MAX = 1024,
    HEAD_DIM_MAX = 1024,
    EXPERT_COUNT_MAX = 1024,
    EXPERT_USED_COUNT_MAX = 64,
    SHARED_FFN_SIZE_MAX = 1 << 20,
    CONTEXT_LEN_MAX = 1 << 24,
    LINEAR_HEAD_COUNT_MAX = 256,
    LINEAR_HEAD_DIM_MAX = 256,
    LINEAR_CONV_WIDTH_MAX = 8,
};

const char *
file_arch_name(file_arch_t arch)
{
    switch (arch) {
    case FILE_ARCH_LLAMA:
        return "llama";
    case FILE_ARCH_QWEN3:
        return "qwen3";
    case FILE_ARCH_GEMMA3:
        return "gemma3";
    case FILE_ARCH_GPT_OSS:
        return "gpt-oss";
    case FILE_ARCH_QWEN35:
        return "qwen3.5";
    case FILE_ARCH_DEEPSEEK_V3:
        return "deepseek_v3";
    }
    return "?";
}

static proto_status_t
check_range(const char *what, uint32_t value, uint32_t max, file_error_t error)
{
    if (value >= 1 && value <= max) {
        return STATUS_OK;
    }
    return file_error_set(error, STATUS_ERR_MALFORMED,
                          "config: %s is %" PRIu32 "; 1 to %" PRIu32 " are allowed", what, value,
                          max);
}

static proto_status_t
check_sizes(const file_config_t *config, file_error_t error)
{
    const struct {
        const char *what;
        uint32_t value;
        uint32_t max;
    } checks[] = {
        {"layer count", config->layer_count, FILE_LAYER_COUNT_MAX},
        {"hidden size", config->hidden_size, HIDDEN_SIZE_MAX},
        {"ffn size", config->ffn_size, FFN_SIZE_MAX},
        {"head count", config->head_count, HEAD_COUNT_MAX},
        {"kv head count", config->kv_head_count, HEAD_COUNT_MAX},
        {"head size", config->head_dim, HEAD_DIM_MAX},
        {"vocabulary size", config->vocab_size, FILE_VOCAB_SIZE_MAX},
        {"context length", config->context_len, CONTEXT_LEN_MAX},
        {"rope dimension", config->rope_dim, HEAD_DIM_MAX},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        proto_status_t status = check_range(checks[i].what, checks[i].value, checks[i].max, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static bool
is_positive(double value)
{
    return isfinite(value) && value > 0;
}

static bool
is_zero_or_positive(double value)
{
    return isfinite(value) && value >= 0;
}

/* Kinds are few and fixed by code; the window and the factors are a file's. */
static proto_status_t
check_layers(const file_config_t *config, file_error_t error)
{
    bool slides = false;
    for (uint32_t i = 0; i < config->layer_count; i++) {
        slides = slides || config->layer_kinds[i] == FILE_LAYER_SLIDING;
    }
    if (slides && (config->sliding_window < 1 || config->sliding_window > CONTEXT_LEN_MAX)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: a sliding window of %" PRIu32 " tokens is out of range",
                              config->sliding_window);
    }
    bool rotates_alike = config->arch == FILE_ARCH_GPT_OSS;
    if ((slides && !rotates_alike && !is_positive(config->rope_theta_sliding)) ||
        !is_zero_or_positive(config->query_scale) || !is_zero_or_positive(config->embed_scale)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: the RoPE base of sliding layers, the scale of queries or "
                              "that of embeddings is out of range");
    }
    return STATUS_OK;
}

static proto_status_t
check_rope(const file_config_t *config, file_error_t error)
{
    if (config->rope_dim % 2 != 0 || config->rope_dim > config->head_dim) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: rope dimension %" PRIu32
                              " must be even and at most the head size %" PRIu32,
                              config->rope_dim, config->head_dim);
    }
    bool fine = is_positive(config->rope_theta) && is_positive(config->rope_scaling_factor);
    if (config->rope_scaling == FILE_ROPE_SCALING_LLAMA3) {
        fine = fine && is_positive(config->rope_low_freq_factor) &&
               is_positive(config->rope_high_freq_factor) &&
               config->rope_high_freq_factor > config->rope_low_freq_factor &&
               config->rope_original_context_len >= 1 &&
               config->rope_original_context_len <= CONTEXT_LEN_MAX;
    }
    if (config->rope_scaling == FILE_ROPE_SCALING_YARN) {
        fine = fine && config->rope_theta > 1.0 && is_positive(config->rope_beta_fast) &&
               is_positive(config->rope_beta_slow) && config->rope_original_context_len >= 1 &&
               config->rope_original_context_len <= CONTEXT_LEN_MAX &&
               is_positive(config->rope_attention_factor);
    }
    if (!fine) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: the RoPE base or a scaling factor is out of range");
    }
    return STATUS_OK;
}

static proto_status_t
check_experts(const file_config_t *config, file_error_t error)
{
    if (config->expert_count == 0) {
        return STATUS_OK;
    }
    uint32_t used_max =
        config->expert_count < EXPERT_USED_COUNT_MAX ? config->expert_count : EXPERT_USED_COUNT_MAX;
    proto_status_t status =
        check_range("expert count", config->expert_count, EXPERT_COUNT_MAX, error);
    if (status == STATUS_OK) {
        status = check_range("experts of a token", config->expert_used_count, used_max, error);
    }
    if (status == STATUS_OK) {
        /* Experts are read some rows at a time, and all of a layer are one matrix. */
        status = check_range("width of an expert", config->expert_ffn_size, HIDDEN_SIZE_MAX, error);
    }
    if (status == STATUS_OK &&
        (config->shared_ffn_size > 0 || config->arch == FILE_ARCH_DEEPSEEK_V3)) {
        status = check_range("width of the shared experts", config->shared_ffn_size,
                             SHARED_FFN_SIZE_MAX, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (config->activation == FILE_ACTIVATION_SWIGLU_OAI &&
        (!is_positive(config->expert_alpha) || !is_positive(config->expert_limit))) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: a factor of the experts' activation is out of range");
    }
    return STATUS_OK;
}

uint32_t
file_config_linear_channels(const file_config_t *config)
{
    return 2 * config->linear_key_head_count * config->linear_key_head_dim +
           config->linear_value_head_count * config->linear_value_head_dim;
}

/* Of layers with a recurrent state; in a family that may have them even if there is none, since
 * sizes are computed from these numbers. */
static proto_status_t
check_linear(const file_config_t *config, file_error_t error)
{
    uint32_t kinds[3] = {0};
    for (uint32_t i = 0; i < config->layer_count; i++) {
        kinds[config->layer_kinds[i]]++;
    }
    if (config->arch != FILE_ARCH_QWEN35 && kinds[FILE_LAYER_LINEAR] == 0) {
        return STATUS_OK;
    }
    const struct {
        const char *what;
        uint32_t value;
        uint32_t max;
    } checks[] = {
        {"linear key head count", config->linear_key_head_count, LINEAR_HEAD_COUNT_MAX},
        {"linear key head size", config->linear_key_head_dim, LINEAR_HEAD_DIM_MAX},
        {"linear value head count", config->linear_value_head_count, LINEAR_HEAD_COUNT_MAX},
        {"linear value head size", config->linear_value_head_dim, LINEAR_HEAD_DIM_MAX},
        {"linear convolution width", config->linear_conv_width, LINEAR_CONV_WIDTH_MAX},
        {"count of full layers beside linear ones", kinds[FILE_LAYER_FULL], FILE_LAYER_COUNT_MAX},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        proto_status_t status = check_range(checks[i].what, checks[i].value, checks[i].max, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (config->linear_conv_width < 2) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: linear convolution width is 1; 2 to %d are allowed",
                              LINEAR_CONV_WIDTH_MAX);
    }
    if (config->linear_value_head_count % config->linear_key_head_count != 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: %" PRIu32 " linear value heads cannot share %" PRIu32
                              " key heads",
                              config->linear_value_head_count, config->linear_key_head_count);
    }
    return STATUS_OK;
}

proto_status_t
file_config_check(const file_config_t *config, file_error_t error)
{
    proto_status_t status = STATUS_OK;
    if (config->arch == FILE_ARCH_DEEPSEEK_V3) { /* first, so that the part of a sum is named */
        status = file_config_check_deepseek(config, error);
    }
    if (status == STATUS_OK) {
        status = check_sizes(config, error);
    }
    if (status == STATUS_OK) {
        status = check_rope(config, error);
    }
    if (status == STATUS_OK) {
        status = check_layers(config, error);
    }
    if (status == STATUS_OK) {
        status = check_experts(config, error);
    }
    if (status == STATUS_OK) {
        status = check_linear(config, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (config->head_count % config->kv_head_count != 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: %" PRIu32 " heads cannot share %" PRIu32 " kv heads",
                              config->head_count, config->kv_head_count);
    }
    if (!is_positive((double)config->rms_eps) || config->rms_eps > 0.1f) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: the RMS norm's epsilon is out of range");
    }
    return STATUS_OK;
}

void
file_config_set_gemma3(file_config_t *config, uint32_t sliding_window, uint32_t period)
{
    config->sliding_window = sliding_window;
    config->rope_theta_sliding = 10000.0;
    config->activation = FILE_ACTIVATION_GELU_TANH;
    config->embed_scale = sqrt((double)config->hidden_size);
    config->has_qk_norm = true;
    config->has_post_norms = true;
    for (uint32_t i = 0; i < config->layer_count && i < FILE_LAYER_COUNT_MAX; i++) {
        bool is_full = period == 0 || (i + 1) % period == 0;
        config->layer_kinds[i] = is_full ? FILE_LAYER_FULL : FILE_LAYER_SLIDING;
    }
}

void
file_config_set_gpt_oss(file_config_t *config)
{
    config->activation = FILE_ACTIVATION_SWIGLU_OAI;
    config->expert_alpha = 1.702;
    config->expert_limit = 7.0;
    config->has_sinks = true;
    config->has_router_bias = true;
    for (uint32_t i = 0; i < config->layer_count && i < FILE_LAYER_COUNT_MAX; i++) {
        config->layer_kinds[i] = i % 2 == 0 ? FILE_LAYER_SLIDING : FILE_LAYER_FULL;
    }
}

void
file_config_set_yarn(file_config_t *config, double attention_factor, double mscale,
                     double mscale_all_dim)
{
    double factor = config->rope_scaling_factor;
    double grown = factor > 1.0 ? 0.1 * log(factor) : 0.0;
    config->rope_scaling = FILE_ROPE_SCALING_YARN;
    config->rope_attention_factor = attention_factor;
    if (attention_factor == 0 && mscale != 0 && mscale_all_dim != 0) {
        config->rope_attention_factor = (1.0 + mscale * grown) / (1.0 + mscale_all_dim * grown);
    } else if (attention_factor == 0) {
        config->rope_attention_factor = 1.0 + grown;
    }
}

void
file_config_add_stop_id(file_config_t *config, int32_t id)
{
    if (id < 0 || config->stop_id_count == FILE_STOP_ID_COUNT_MAX) {
        return;
    }
    for (uint32_t i = 0; i < config->stop_id_count; i++) {
        if (config->stop_ids[i] == id) {
            return;
        }
    }
    config->stop_ids[config->stop_id_count++] = id;
}

void
file_config_set_name(file_config_t *config, const void *name, size_t size_bytes)
{
    const uint8_t *bytes = name;
    size_t written = 0;
    for (size_t at = 0; at < size_bytes;) {
        size_t start = at;
        int32_t code = file_utf8_next(bytes, size_bytes, &at);
        bool shown = code >= 0x20 && code != 0x7f && !(code >= 0x80 && code < 0xa0);
        at = code < 0 ? start + 1 : at;
        size_t count = shown ? at - start : 1;
        if (written + count >= FILE_NAME_SIZE_BYTES) {
            break;
        }
        memcpy(config->name + written, shown ? (const char *)bytes + start : "?", count);
        written += count;
    }
    config->name[written] = '\0';
}
