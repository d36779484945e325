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
    CONTEXT_LEN_MAX = 1 << 24,
};

const char *
file_arch_name(file_arch_t arch)
{
    return arch == FILE_ARCH_LLAMA ? "llama" : arch == FILE_ARCH_QWEN3 ? "qwen3" : "?";
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
    if (!fine) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: the RoPE base or a scaling factor is out of range");
    }
    return STATUS_OK;
}

proto_status_t
file_config_check(const file_config_t *config, file_error_t error)
{
    proto_status_t status = check_sizes(config, error);
    if (status == STATUS_OK) {
        status = check_rope(config, error);
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
