/* The config from a GGUF's keys. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "file_model_internal.h"
#include "proto_require.h"

typedef struct {
    const file_gguf_t *gguf;
    const char *arch; /* the prefix of its keys */
    file_error_t error;
    proto_status_t status; /* sticky */
} reader_t;

static const char *
arch_key(const reader_t *self, const char *name, char buffer[96])
{
    (void)snprintf(buffer, 96, "%s.%s", self->arch, name);
    return buffer;
}

/* A number of the architecture; `fallback` UINT64_MAX makes the key mandatory. */
static uint32_t
arch_u32(reader_t *self, const char *name, uint64_t fallback)
{
    char buffer[96];
    const char *key = arch_key(self, name, buffer);
    uint64_t value = fallback;
    proto_status_t status = file_gguf_u64(self->gguf, key, &value, self->error);
    if (status == STATUS_ERR_NOT_FOUND && fallback != UINT64_MAX) {
        status = STATUS_OK;
    } else if (status == STATUS_ERR_NOT_FOUND) {
        status = file_error_set(self->error, STATUS_ERR_MALFORMED, "GGUF key '%s' is missing", key);
    }
    if (status == STATUS_OK && value > UINT32_MAX) {
        status = file_error_set(self->error, STATUS_ERR_MALFORMED,
                                "GGUF key '%s': %" PRIu64 " is out of range", key, value);
    }
    if (status != STATUS_OK) {
        self->status = self->status == STATUS_OK ? status : self->status;
        return 0;
    }
    return (uint32_t)value;
}

static double
arch_f64(reader_t *self, const char *name, bool is_mandatory, double fallback)
{
    char buffer[96];
    const char *key = arch_key(self, name, buffer);
    double value = fallback;
    proto_status_t status = file_gguf_f64(self->gguf, key, &value, self->error);
    if (status == STATUS_ERR_NOT_FOUND) {
        status = !is_mandatory ? STATUS_OK
                               : file_error_set(self->error, STATUS_ERR_MALFORMED,
                                                "GGUF key '%s' is missing", key);
    }
    if (status != STATUS_OK && self->status == STATUS_OK) {
        self->status = status;
    }
    return value;
}

static proto_status_t
read_arch(const file_gguf_t *gguf, file_config_t *out, file_error_t error)
{
    file_view_t name = {0};
    proto_status_t status = file_gguf_string(gguf, "general.architecture", &name, error);
    if (status == STATUS_ERR_NOT_FOUND) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key 'general.architecture' is missing");
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (file_view_equals(name, "llama")) {
        out->arch = FILE_ARCH_LLAMA;
        out->rope_style = FILE_ROPE_INTERLEAVED;
    } else if (file_view_equals(name, "qwen3")) {
        out->arch = FILE_ARCH_QWEN3;
        out->rope_style = FILE_ROPE_NEOX;
    } else if (file_view_equals(name, "gemma3")) {
        out->arch = FILE_ARCH_GEMMA3;
        out->rope_style = FILE_ROPE_NEOX;
    } else if (file_view_equals(name, "gpt-oss")) {
        out->arch = FILE_ARCH_GPT_OSS;
        out->rope_style = FILE_ROPE_NEOX;
    } else if (file_view_equals(name, "deepseek2")) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "architecture 'deepseek2' is not supported as a GGUF; supported is a "
                              "folder of DeepseekV3ForCausalLM in BF16, F16 or F32");
    } else {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "architecture '%s' is not supported; supported are llama, qwen3, "
                              "gemma3, gpt-oss",
                              file_printable(name.bytes, name.size_bytes).text);
    }
    uint64_t split_count = 1;
    status = file_gguf_u64(gguf, "split.count", &split_count, error);
    if (status == STATUS_OK && split_count > 1) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "the GGUF is split into %" PRIu64 " files; merge it first",
                              split_count);
    }
    return status == STATUS_ERR_NOT_FOUND ? STATUS_OK : status;
}

static void
read_rope_scaling(reader_t *self, file_config_t *out)
{
    char buffer[96];
    const char *key = arch_key(self, "rope.scaling.type", buffer);
    file_view_t type = {0};
    proto_status_t status = file_gguf_string(self->gguf, key, &type, self->error);
    out->rope_scaling_factor = 1.0;
    if (status == STATUS_ERR_NOT_FOUND || (status == STATUS_OK && file_view_equals(type, "none"))) {
        return;
    }
    if (status == STATUS_OK && file_view_equals(type, "linear")) {
        out->rope_scaling = FILE_ROPE_SCALING_LINEAR;
        out->rope_scaling_factor = arch_f64(self, "rope.scaling.factor", true, 1.0);
        return;
    }
    if (status == STATUS_OK && out->arch == FILE_ARCH_GPT_OSS && file_view_equals(type, "yarn")) {
        /* The model's own limits are not whole dimensions, which no key says. */
        out->rope_truncates = false;
        out->rope_scaling_factor = arch_f64(self, "rope.scaling.factor", true, 1.0);
        out->rope_original_context_len =
            arch_u32(self, "rope.scaling.original_context_length", UINT64_MAX);
        out->rope_beta_fast = arch_f64(self, "rope.scaling.yarn_beta_fast", false, 32.0);
        out->rope_beta_slow = arch_f64(self, "rope.scaling.yarn_beta_slow", false, 1.0);
        file_config_set_yarn(out, 0.0, 0.0, 0.0);
        return;
    }
    if (status == STATUS_OK) {
        status = file_error_set(self->error, STATUS_ERR_UNSUPPORTED,
                                "RoPE scaling '%s' is not supported; supported are none, linear, "
                                "and yarn for gpt-oss",
                                file_printable(type.bytes, type.size_bytes).text);
    }
    self->status = self->status == STATUS_OK ? status : self->status;
}

/* What the name of the architecture alone says of a gemma3.  Its files give the window, not which
 * layers slide: five of six do. */
static void
read_gemma3(reader_t *self, file_config_t *out)
{
    file_config_set_gemma3(out, arch_u32(self, "attention.sliding_window", UINT64_MAX),
                           arch_u32(self, "attention.sliding_window_pattern", 6));
    out->rope_theta_sliding = arch_f64(self, "rope.freq_base_swa", false, 10000.0);
    /* The 27B model alone divides by the width of a head as if heads filled the hidden size. */
    if (out->layer_count == 62 && out->head_count > 0) {
        out->query_scale = 1.0 / sqrt((double)out->hidden_size / out->head_count);
    }
}

static void
read_gpt_oss(reader_t *self, file_config_t *out)
{
    file_config_set_gpt_oss(out);
    out->sliding_window = arch_u32(self, "attention.sliding_window", UINT64_MAX);
    out->ffn_size = arch_u32(self, "expert_feed_forward_length", out->ffn_size);
    out->expert_ffn_size = out->ffn_size;
    out->expert_count = arch_u32(self, "expert_count", UINT64_MAX);
    out->expert_used_count = arch_u32(self, "expert_used_count", UINT64_MAX);
    if (self->status == STATUS_OK && out->expert_count == 0) {
        self->status = file_error_set(self->error, STATUS_ERR_MALFORMED,
                                      "GGUF key 'gpt-oss.expert_count': must be at least 1");
    }
}

static void
read_sizes(reader_t *self, file_config_t *out)
{
    out->layer_count = arch_u32(self, "block_count", UINT64_MAX);
    out->hidden_size = arch_u32(self, "embedding_length", UINT64_MAX);
    out->ffn_size = arch_u32(self, "feed_forward_length", UINT64_MAX);
    out->head_count = arch_u32(self, "attention.head_count", UINT64_MAX);
    out->kv_head_count = arch_u32(self, "attention.head_count_kv", out->head_count);
    out->context_len = arch_u32(self, "context_length", UINT64_MAX);
    uint32_t head_dim = out->head_count > 0 ? out->hidden_size / out->head_count : 0;
    out->head_dim = arch_u32(self, "attention.key_length", head_dim);
    uint32_t value_dim = arch_u32(self, "attention.value_length", out->head_dim);
    out->rope_dim = arch_u32(self, "rope.dimension_count", out->head_dim);
    out->rope_theta = arch_f64(self, "rope.freq_base", false, 10000.0);
    out->rms_eps = (float)arch_f64(self, "attention.layer_norm_rms_epsilon", true, 0);
    read_rope_scaling(self, out);
    bool slides = out->arch == FILE_ARCH_GEMMA3 || out->arch == FILE_ARCH_GPT_OSS;
    bool mixes = out->arch == FILE_ARCH_GPT_OSS;
    uint32_t expert_count = mixes ? 0 : arch_u32(self, "expert_count", 0);
    uint32_t window = slides ? 0 : arch_u32(self, "attention.sliding_window", 0);
    if (out->arch == FILE_ARCH_GEMMA3) {
        read_gemma3(self, out);
    } else if (mixes) {
        read_gpt_oss(self, out);
    }
    if (self->status == STATUS_OK &&
        (value_dim != out->head_dim || expert_count > 0 || window > 0)) {
        self->status = file_error_set(self->error, STATUS_ERR_UNSUPPORTED,
                                      "experts, sliding windows and values of another size than "
                                      "keys are not supported");
    }
}

static proto_status_t
read_id(const file_gguf_t *gguf, const char *key, int32_t *out, file_error_t error)
{
    uint64_t value = 0;
    *out = FILE_ID_NONE;
    proto_status_t status = file_gguf_u64(gguf, key, &value, error);
    if (status == STATUS_ERR_NOT_FOUND) {
        return STATUS_OK;
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (value == UINT32_MAX) { /* how some writers say "none" */
        return STATUS_OK;
    }
    if (value >= FILE_VOCAB_SIZE_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key '%s': %" PRIu64 " is no token id", key, value);
    }
    *out = (int32_t)value;
    return STATUS_OK;
}

/* Chat models end their turns with tokens that no key names; their texts are well known. */
static proto_status_t
add_turn_ends(const file_gguf_t *gguf, file_config_t *out, file_error_t error)
{
    static const char *const ENDS[] = {"<|im_end|>",     "<|eot_id|>",    "<|eom_id|>",
                                       "<|end|>",        "<end_of_turn>", "<|endoftext|>",
                                       "<|end_of_text|>"};
    const file_gguf_value_t *tokens = NULL;
    const file_gguf_value_t *types = NULL;
    proto_status_t status =
        file_gguf_array(gguf, "tokenizer.ggml.tokens", FILE_GGUF_STRING, &tokens, error);
    if (status == STATUS_OK) {
        status = file_gguf_array(gguf, "tokenizer.ggml.token_type", FILE_GGUF_I32, &types, error);
    }
    if (status != STATUS_OK) {
        return status == STATUS_ERR_NOT_FOUND ? STATUS_OK : status;
    }
    file_cursor_t strings = file_gguf_strings(tokens);
    file_cursor_t kinds = {types->value.bytes, types->value.bytes + types->value.size_bytes, false};
    for (uint64_t i = 0; i < tokens->count && i < types->count; i++) {
        file_view_t text = file_gguf_next_string(&strings);
        bool is_control = file_cursor_u32(&kinds) == 3;
        for (size_t k = 0; is_control && k < sizeof ENDS / sizeof ENDS[0]; k++) {
            if (file_view_equals(text, ENDS[k]) && i < FILE_VOCAB_SIZE_MAX) {
                file_config_add_stop_id(out, (int32_t)i);
            }
        }
    }
    return STATUS_OK;
}

static proto_status_t
read_ids(const file_gguf_t *gguf, file_config_t *out, file_error_t error)
{
    int32_t turn_end = FILE_ID_NONE;
    int32_t message_end = FILE_ID_NONE;
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &out->bos_id},
        {"tokenizer.ggml.eos_token_id", &out->eos_id},
        {"tokenizer.ggml.padding_token_id", &out->pad_id},
        {"tokenizer.ggml.eot_token_id", &turn_end},
        {"tokenizer.ggml.eom_token_id", &message_end},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        proto_status_t status = read_id(gguf, ids[i].key, ids[i].id, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    file_config_add_stop_id(out, out->eos_id);
    file_config_add_stop_id(out, turn_end);
    file_config_add_stop_id(out, message_end);
    return add_turn_ends(gguf, out, error);
}

proto_status_t
file_config_from_gguf(const file_gguf_t *gguf, file_config_t *out, file_error_t error)
{
    proto_status_t status = read_arch(gguf, out, error);
    if (status != STATUS_OK) {
        return status;
    }
    reader_t reader = {gguf, file_arch_name(out->arch), error, STATUS_OK};
    read_sizes(&reader, out);
    if (reader.status != STATUS_OK) {
        return reader.status;
    }
    file_view_t name = {0};
    status = file_gguf_string(gguf, "general.name", &name, error);
    if (status == STATUS_OK && name.size_bytes > 0) {
        file_config_set_name(out, name.bytes, name.size_bytes);
    } else if (status != STATUS_OK && status != STATUS_ERR_NOT_FOUND) {
        return status;
    }
    return read_ids(gguf, out, error);
}
