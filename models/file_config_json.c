/* The config from config.json and generation_config.json of a Hugging Face folder. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "file_model_internal.h"
#include "proto_require.h"

typedef struct {
    const json_t *root;
    file_error_t error;
    proto_status_t status; /* sticky */
} reader_t;

static void
fail(reader_t *self, proto_status_t status, const char *key, const char *text)
{
    if (self->status == STATUS_OK) {
        self->status = file_error_set(self->error, status, "config.json: '%s' %s", key, text);
    }
}

/* A key that is missing or null is the fallback; UINT64_MAX makes it mandatory. */
static uint32_t
read_u32(reader_t *self, const json_t *object, const char *key, uint64_t fallback)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        if (fallback == UINT64_MAX) {
            fail(self, STATUS_ERR_MALFORMED, key, "is missing");
            return 0;
        }
        return (uint32_t)fallback;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > UINT32_MAX) {
        fail(self, STATUS_ERR_MALFORMED, key, "must be a whole number");
        return 0;
    }
    return (uint32_t)json_integer_value(value);
}

static double
read_f64(reader_t *self, const json_t *object, const char *key, double fallback)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        return fallback;
    }
    if (!json_is_number(value)) {
        fail(self, STATUS_ERR_MALFORMED, key, "must be a number");
        return fallback;
    }
    return json_number_value(value);
}

static bool
read_bool(reader_t *self, const char *key, bool fallback)
{
    const json_t *value = json_object_get(self->root, key);
    if (value == NULL || json_is_null(value)) {
        return fallback;
    }
    if (!json_is_boolean(value)) {
        fail(self, STATUS_ERR_MALFORMED, key, "must be true or false");
    }
    return json_is_true(value);
}

static proto_status_t
read_arch(const json_t *root, file_config_t *out, file_error_t error)
{
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    if (name == NULL) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config.json: 'architectures' must be a list with a name");
    }
    out->rope_style = FILE_ROPE_NEOX;
    if (strcmp(name, "LlamaForCausalLM") == 0) {
        out->arch = FILE_ARCH_LLAMA;
    } else if (strcmp(name, "Qwen3ForCausalLM") == 0) {
        out->arch = FILE_ARCH_QWEN3;
    } else if (strcmp(name, "Gemma3ForCausalLM") == 0) {
        out->arch = FILE_ARCH_GEMMA3;
    } else if (strcmp(name, "GptOssForCausalLM") == 0) {
        out->arch = FILE_ARCH_GPT_OSS;
    } else if (strcmp(name, "Qwen3_5ForCausalLM") == 0) {
        out->arch = FILE_ARCH_QWEN35;
    } else if (strcmp(name, "Qwen3_5ForConditionalGeneration") == 0) {
        out->arch = FILE_ARCH_QWEN35;
        out->is_nested = true;
    } else if (strcmp(name, "Qwen3_5MoeForCausalLM") == 0) {
        out->arch = FILE_ARCH_QWEN35;
        out->has_apart_experts = true;
    } else if (strcmp(name, "Qwen3_5MoeForConditionalGeneration") == 0) {
        out->arch = FILE_ARCH_QWEN35;
        out->is_nested = true;
        out->has_apart_experts = true;
    } else if (strcmp(name, "DeepseekV3ForCausalLM") == 0) {
        out->arch = FILE_ARCH_DEEPSEEK_V3;
    } else {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "architecture '%s' is not supported; supported are "
                              "LlamaForCausalLM (llama), Qwen3ForCausalLM (qwen3), "
                              "Gemma3ForCausalLM (gemma3), GptOssForCausalLM (gpt-oss), "
                              "Qwen3_5ForCausalLM and Qwen3_5ForConditionalGeneration (qwen3.5), "
                              "DeepseekV3ForCausalLM (deepseek_v3)",
                              file_printable(name, strlen(name)).text);
    }
    return STATUS_OK;
}

static void
read_yarn(reader_t *self, const json_t *rope, file_config_t *out)
{
    const json_t *truncate = json_object_get(rope, "truncate");
    if (truncate != NULL && !json_is_boolean(truncate)) {
        fail(self, STATUS_ERR_MALFORMED, "truncate", "must be true or false");
    }
    out->rope_truncates = truncate == NULL || json_is_true(truncate);
    out->rope_original_context_len =
        read_u32(self, rope, "original_max_position_embeddings", UINT64_MAX);
    if (json_object_get(rope, "factor") == NULL && out->rope_original_context_len > 0) {
        out->rope_scaling_factor = (double)out->context_len / out->rope_original_context_len;
    }
    out->rope_beta_fast = read_f64(self, rope, "beta_fast", 32.0);
    out->rope_beta_slow = read_f64(self, rope, "beta_slow", 1.0);
    file_config_set_yarn(out, read_f64(self, rope, "attention_factor", 0.0),
                         read_f64(self, rope, "mscale", 0.0),
                         read_f64(self, rope, "mscale_all_dim", 0.0));
}

/* Two spellings: "rope_theta" with "rope_scaling", or all in "rope_parameters". */
static void
read_rope(reader_t *self, file_config_t *out)
{
    const json_t *parameters = json_object_get(self->root, "rope_parameters");
    if (out->arch == FILE_ARCH_GEMMA3 && json_is_object(parameters)) {
        /* One set for each kind of layer. */
        parameters = json_object_get(parameters, "full_attention");
    }
    const json_t *scaling = json_object_get(self->root, "rope_scaling");
    const json_t *rope = json_is_object(parameters) ? parameters : scaling;
    bool is_gpt_oss = out->arch == FILE_ARCH_GPT_OSS;
    out->rope_theta = read_f64(self, self->root, "rope_theta", is_gpt_oss ? 150000.0 : 10000.0);
    out->rope_theta = read_f64(self, parameters, "rope_theta", out->rope_theta);
    double partial = read_f64(self, self->root, "partial_rotary_factor",
                              out->arch == FILE_ARCH_QWEN35 ? 0.25 : 1.0);
    partial = read_f64(self, parameters, "partial_rotary_factor", partial);
    out->rope_scaling_factor = 1.0;
    if (!(partial > 0 && partial <= 1)) {
        fail(self, STATUS_ERR_MALFORMED, "partial_rotary_factor", "must be over 0 and at most 1");
        return;
    }
    out->rope_dim = (uint32_t)(partial * (double)out->head_dim);
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    type = type != NULL ? type : json_string_value(json_object_get(rope, "type"));
    if (is_gpt_oss && !json_is_object(rope)) {
        fail(self, STATUS_ERR_MALFORMED, "rope_parameters", "is missing");
        return;
    }
    if (rope == NULL || json_is_null(rope) || type == NULL || strcmp(type, "default") == 0) {
        return;
    }
    out->rope_scaling_factor = read_f64(self, rope, "factor", 1.0);
    if (strcmp(type, "linear") == 0) {
        out->rope_scaling = FILE_ROPE_SCALING_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        out->rope_scaling = FILE_ROPE_SCALING_LLAMA3;
        out->rope_low_freq_factor = read_f64(self, rope, "low_freq_factor", 1.0);
        out->rope_high_freq_factor = read_f64(self, rope, "high_freq_factor", 4.0);
        out->rope_original_context_len =
            read_u32(self, rope, "original_max_position_embeddings", UINT64_MAX);
    } else if (out->arch != FILE_ARCH_GEMMA3 && strcmp(type, "yarn") == 0) {
        read_yarn(self, rope, out);
    } else {
        fail(self, STATUS_ERR_UNSUPPORTED, "rope_type",
             "is not supported; supported are default, linear, llama3, and, but for gemma3, yarn");
    }
}

/* What would change the arithmetic silently must be refused, not overlooked. */
static void
refuse_unsupported(reader_t *self, const file_config_t *out)
{
    const char *act = json_string_value(json_object_get(self->root, "hidden_act"));
    const json_t *layer_types = json_object_get(self->root, "layer_types");
    const json_t *quantization = json_object_get(self->root, "quantization_config");
    if (out->arch != FILE_ARCH_GEMMA3 && act != NULL && strcmp(act, "silu") != 0) {
        fail(self, STATUS_ERR_UNSUPPORTED, "hidden_act", "is not supported; supported is silu");
    }
    if (read_bool(self, "use_sliding_window", false)) {
        fail(self, STATUS_ERR_UNSUPPORTED, "use_sliding_window", "is not supported");
    }
    if (read_bool(self, "mlp_bias", false)) {
        fail(self, STATUS_ERR_UNSUPPORTED, "mlp_bias", "is not supported");
    }
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    if (out->arch == FILE_ARCH_DEEPSEEK_V3 && method != NULL && strcmp(method, "fp8") == 0) {
        fail(self, STATUS_ERR_UNSUPPORTED, "quantization_config",
             "is fp8: weights with a scale for each block (weight_scale_inv) are not supported; "
             "use a folder that was converted to BF16");
    }
    if (quantization != NULL && !json_is_null(quantization)) {
        fail(self, STATUS_ERR_UNSUPPORTED, "quantization_config",
             "is not supported; use a GGUF for quantised weights");
    }
    bool has_kinds = out->arch == FILE_ARCH_GEMMA3 || out->arch == FILE_ARCH_GPT_OSS ||
                     out->arch == FILE_ARCH_QWEN35;
    for (size_t i = 0; !has_kinds && i < json_array_size(layer_types); i++) {
        const char *type = json_string_value(json_array_get(layer_types, i));
        if (type == NULL || strcmp(type, "full_attention") != 0) {
            fail(self, STATUS_ERR_UNSUPPORTED, "layer_types",
                 "has a kind that is not supported; supported is full_attention");
        }
    }
}

/* Kinds of layers: a list of names, or the distance of full ones.  The others are `other`. */
static void
read_layer_kinds(reader_t *self, file_config_t *out, file_layer_kind_t other)
{
    const char *other_name = other == FILE_LAYER_LINEAR ? "linear_attention" : "sliding_attention";
    const json_t *types = json_object_get(self->root, "layer_types");
    if (!json_is_array(types)) {
        return;
    }
    if (json_array_size(types) != out->layer_count) {
        fail(self, STATUS_ERR_MALFORMED, "layer_types", "must name every layer");
        return;
    }
    for (uint32_t i = 0; i < out->layer_count && i < FILE_LAYER_COUNT_MAX; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type != NULL && strcmp(type, "full_attention") == 0) {
            out->layer_kinds[i] = FILE_LAYER_FULL;
        } else if (type != NULL && strcmp(type, other_name) == 0) {
            out->layer_kinds[i] = (uint8_t)other;
        } else {
            fail(self, STATUS_ERR_UNSUPPORTED, "layer_types",
                 other == FILE_LAYER_LINEAR ? "has a kind that is not supported; supported are "
                                              "full_attention and linear_attention"
                                            : "has a kind that is not supported; supported are "
                                              "full_attention and sliding_attention");
        }
    }
}

static void
read_gemma3(reader_t *self, file_config_t *out)
{
    const json_t *root = self->root;
    const char *act = json_string_value(json_object_get(root, "hidden_activation"));
    const json_t *sliding =
        json_object_get(json_object_get(root, "rope_parameters"), "sliding_attention");
    file_config_set_gemma3(out, read_u32(self, root, "sliding_window", 4096),
                           read_u32(self, root, "sliding_window_pattern", 6));
    read_layer_kinds(self, out, FILE_LAYER_SLIDING);
    out->has_offset_norms = true;
    out->rope_theta_sliding = read_f64(self, root, "rope_local_base_freq", 10000.0);
    out->rope_theta_sliding = read_f64(self, sliding, "rope_theta", out->rope_theta_sliding);
    const char *type = json_string_value(json_object_get(sliding, "rope_type"));
    if (type != NULL && strcmp(type, "default") != 0) {
        fail(self, STATUS_ERR_UNSUPPORTED, "rope_parameters",
             "scales the RoPE of sliding layers, which is not supported");
    }
    double scalar = read_f64(self, root, "query_pre_attn_scalar", 256.0);
    out->query_scale = scalar > 0 ? 1.0 / sqrt(scalar) : 0.0;
    if (act != NULL && strcmp(act, "gelu_pytorch_tanh") != 0) {
        fail(self, STATUS_ERR_UNSUPPORTED, "hidden_activation",
             "is not supported; supported is gelu_pytorch_tanh");
    }
    static const char *const CAPS[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    for (size_t i = 0; i < sizeof CAPS / sizeof CAPS[0]; i++) {
        const json_t *cap = json_object_get(root, CAPS[i]);
        if (cap != NULL && !json_is_null(cap)) {
            fail(self, STATUS_ERR_UNSUPPORTED, CAPS[i], "is not supported");
        }
    }
    if (read_bool(self, "use_bidirectional_attention", false)) {
        fail(self, STATUS_ERR_UNSUPPORTED, "use_bidirectional_attention", "is not supported");
    }
}

/* Two spellings of the number of experts that a token chooses. */
static void
read_gpt_oss(reader_t *self, file_config_t *out)
{
    const json_t *root = self->root;
    file_config_set_gpt_oss(out);
    out->sliding_window = read_u32(self, root, "sliding_window", 128);
    read_layer_kinds(self, out, FILE_LAYER_SLIDING);
    out->has_fused_experts = true;
    out->expert_ffn_size = out->ffn_size;
    out->expert_count = read_u32(self, root, "num_local_experts", 128);
    out->expert_used_count = read_u32(self, root, "experts_per_token", 4);
    out->expert_used_count = read_u32(self, root, "num_experts_per_tok", out->expert_used_count);
    out->expert_alpha = read_f64(self, root, "swiglu_alpha", out->expert_alpha);
    out->expert_limit = read_f64(self, root, "swiglu_limit", out->expert_limit);
    if (out->expert_count == 0) {
        fail(self, STATUS_ERR_MALFORMED, "num_local_experts", "must be at least 1");
    }
}

/* In every layer, with one that every token meets. */
static void
read_qwen35_experts(reader_t *self, file_config_t *out)
{
    const json_t *root = self->root;
    out->expert_ffn_size = out->ffn_size;
    out->expert_count = read_u32(self, root, "num_experts", 256);
    out->expert_used_count = read_u32(self, root, "num_experts_per_tok", 8);
    out->shared_ffn_size = read_u32(self, root, "shared_expert_intermediate_size", 512);
    out->has_shared_scale = true;
    if (out->expert_count == 0) {
        fail(self, STATUS_ERR_MALFORMED, "num_experts", "must be at least 1");
    }
    if (out->shared_ffn_size == 0) {
        fail(self, STATUS_ERR_UNSUPPORTED, "shared_expert_intermediate_size", "must be over 0");
    }
    if (json_array_size(json_object_get(root, "mlp_only_layers")) > 0) {
        fail(self, STATUS_ERR_UNSUPPORTED, "mlp_only_layers", "is not supported");
    }
}

/* Linear layers, and a full one at every `full_attention_interval`.  The defaults are those of the
 * configuration's class. */
static void
read_qwen35(reader_t *self, file_config_t *out)
{
    const json_t *root = self->root;
    const json_t *gate = json_object_get(root, "attn_output_gate");
    uint32_t period = read_u32(self, root, "full_attention_interval", 4);
    for (uint32_t i = 0; i < out->layer_count && i < FILE_LAYER_COUNT_MAX; i++) {
        bool is_full = period > 0 && (i + 1) % period == 0;
        out->layer_kinds[i] = is_full ? FILE_LAYER_FULL : FILE_LAYER_LINEAR;
    }
    read_layer_kinds(self, out, FILE_LAYER_LINEAR);
    out->has_offset_norms = true;
    out->has_attn_gate = true;
    out->linear_key_head_count = read_u32(self, root, "linear_num_key_heads", 16);
    out->linear_key_head_dim = read_u32(self, root, "linear_key_head_dim", 128);
    out->linear_value_head_count = read_u32(self, root, "linear_num_value_heads", 32);
    out->linear_value_head_dim = read_u32(self, root, "linear_value_head_dim", 128);
    out->linear_conv_width = read_u32(self, root, "linear_conv_kernel_dim", 4);
    if (out->has_apart_experts) {
        read_qwen35_experts(self, out);
    }
    if (gate != NULL && !json_is_true(gate)) {
        fail(self, STATUS_ERR_UNSUPPORTED, "attn_output_gate", "must be true");
    }
    if (out->has_qkv_bias) {
        fail(self, STATUS_ERR_UNSUPPORTED, "attention_bias", "is not supported with a gate");
    }
}

/* A key whose other values would be another computation. */
static void
expect_text(reader_t *self, const char *key, const char *wanted)
{
    const json_t *value = json_object_get(self->root, key);
    if (value == NULL || json_is_null(value)) {
        return;
    }
    const char *text = json_string_value(value);
    if (text == NULL || strcmp(text, wanted) != 0) {
        char needed[64];
        (void)snprintf(needed, sizeof needed, "is not supported; supported is %s", wanted);
        fail(self, STATUS_ERR_UNSUPPORTED, key, needed);
    }
}

static void
read_deepseek_experts(reader_t *self, file_config_t *out)
{
    const json_t *root = self->root;
    out->expert_ffn_size = read_u32(self, root, "moe_intermediate_size", UINT64_MAX);
    out->expert_count = read_u32(self, root, "n_routed_experts", UINT64_MAX);
    out->expert_used_count = read_u32(self, root, "num_experts_per_tok", 8);
    out->dense_layer_count = read_u32(self, root, "first_k_dense_replace", 3);
    out->expert_group_count = read_u32(self, root, "n_group", 8);
    out->expert_group_used_count = read_u32(self, root, "topk_group", 4);
    out->expert_scale = read_f64(self, root, "routed_scaling_factor", 2.5);
    out->has_normed_weights = read_bool(self, "norm_topk_prob", true);
    uint64_t shared = read_u32(self, root, "n_shared_experts", 1);
    shared *= out->expert_ffn_size;
    out->shared_ffn_size = shared < UINT32_MAX ? (uint32_t)shared : UINT32_MAX;
    if (out->expert_count == 0) {
        fail(self, STATUS_ERR_MALFORMED, "n_routed_experts", "must be at least 1");
    }
    if (read_u32(self, root, "moe_layer_freq", 1) != 1) {
        fail(self, STATUS_ERR_UNSUPPORTED, "moe_layer_freq", "is not supported; supported is 1");
    }
    expect_text(self, "scoring_func", "sigmoid");
    expect_text(self, "topk_method", "noaux_tc");
}

/* After the sizes; the scaling of RoPE is read afterwards, with the rotated part as the head. */
static void
read_deepseek(reader_t *self, file_config_t *out)
{
    const json_t *root = self->root;
    uint32_t rope_dim = read_u32(self, root, "qk_rope_head_dim", 64);
    out->latent_dim = read_u32(self, root, "kv_lora_rank", 512);
    out->q_latent_dim = read_u32(self, root, "q_lora_rank", 0);
    out->nope_dim = read_u32(self, root, "qk_nope_head_dim", 128);
    out->v_head_dim = read_u32(self, root, "v_head_dim", 128);
    out->head_dim = rope_dim;
    out->ignored_layer_count = read_u32(self, root, "num_nextn_predict_layers", 0);
    out->rope_style =
        read_bool(self, "rope_interleave", true) ? FILE_ROPE_INTERLEAVED : FILE_ROPE_NEOX;
    if (out->kv_head_count != out->head_count) {
        fail(self, STATUS_ERR_UNSUPPORTED, "num_key_value_heads",
             "must be num_attention_heads: all heads share one latent");
    }
    if (out->has_qkv_bias) {
        fail(self, STATUS_ERR_UNSUPPORTED, "attention_bias", "is not supported in a deepseek_v3");
    }
    read_deepseek_experts(self, out);
}

/* The rotated part is known: the whole head and the scale of the scores follow. */
static void
finish_deepseek(reader_t *self, file_config_t *out)
{
    const json_t *rope = json_object_get(self->root, "rope_parameters");
    rope = json_is_object(rope) ? rope : json_object_get(self->root, "rope_scaling");
    if (out->rope_dim != out->head_dim) {
        fail(self, STATUS_ERR_UNSUPPORTED, "partial_rotary_factor",
             "is not supported in a deepseek_v3");
    }
    uint64_t head_dim = (uint64_t)out->nope_dim + out->rope_dim;
    out->head_dim = head_dim < UINT32_MAX ? (uint32_t)head_dim : UINT32_MAX;
    file_config_set_deepseek(out, read_f64(self, rope, "mscale_all_dim", 0.0));
}

static int32_t
read_one_id(reader_t *self, const json_t *value, const char *key)
{
    if (!json_is_integer(value) || json_integer_value(value) < -1 ||
        json_integer_value(value) >= FILE_VOCAB_SIZE_MAX) {
        fail(self, STATUS_ERR_MALFORMED, key, "must be a token id or a list of them");
        return FILE_ID_NONE;
    }
    return (int32_t)json_integer_value(value);
}

/* Returns the first id of a number or list; every one of `eos_token_id` becomes a stop id. */
static int32_t
read_id(reader_t *self, const json_t *object, const char *key, file_config_t *stops)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        return FILE_ID_NONE;
    }
    if (!json_is_array(value)) {
        int32_t id = read_one_id(self, value, key);
        if (stops != NULL) {
            file_config_add_stop_id(stops, id);
        }
        return id;
    }
    int32_t first = FILE_ID_NONE;
    for (size_t i = 0; i < json_array_size(value); i++) {
        int32_t id = read_one_id(self, json_array_get(value, i), key);
        first = i == 0 ? id : first;
        if (stops != NULL) {
            file_config_add_stop_id(stops, id);
        }
    }
    return first;
}

static void
read_sizes(reader_t *self, file_config_t *out)
{
    const json_t *root = self->root;
    out->layer_count = read_u32(self, root, "num_hidden_layers", UINT64_MAX);
    out->hidden_size = read_u32(self, root, "hidden_size", UINT64_MAX);
    bool is_moe = out->arch == FILE_ARCH_QWEN35 && out->has_apart_experts;
    const char *ffn = is_moe ? "moe_intermediate_size" : "intermediate_size";
    out->ffn_size = read_u32(self, root, ffn, UINT64_MAX);
    out->head_count = read_u32(self, root, "num_attention_heads", UINT64_MAX);
    out->kv_head_count = read_u32(self, root, "num_key_value_heads", out->head_count);
    out->vocab_size = read_u32(self, root, "vocab_size", UINT64_MAX);
    out->context_len = read_u32(self, root, "max_position_embeddings", UINT64_MAX);
    uint32_t head_dim = out->head_count > 0 ? out->hidden_size / out->head_count : 0;
    head_dim = out->arch == FILE_ARCH_QWEN3 ? 128 : head_dim; /* the class's own default */
    head_dim = out->arch == FILE_ARCH_GEMMA3 ? 256 : head_dim;
    head_dim = out->arch == FILE_ARCH_GPT_OSS ? 64 : head_dim;
    head_dim = out->arch == FILE_ARCH_QWEN35 ? 256 : head_dim;
    out->head_dim = read_u32(self, root, "head_dim", head_dim);
    out->rms_eps = (float)read_f64(self, root, "rms_norm_eps", 1e-6);
    out->tied_embeddings = read_bool(self, "tie_word_embeddings", out->arch == FILE_ARCH_GEMMA3);
    out->has_qk_norm = out->arch == FILE_ARCH_QWEN3 || out->arch == FILE_ARCH_GEMMA3 ||
                       out->arch == FILE_ARCH_QWEN35;
    out->has_qkv_bias = read_bool(self, "attention_bias", out->arch == FILE_ARCH_GPT_OSS);
    out->has_o_bias = out->has_qkv_bias;
}

proto_status_t
file_config_from_json(const json_t *config, const json_t *generation, file_config_t *out,
                      file_error_t error)
{
    if (!json_is_object(config) || (generation != NULL && !json_is_object(generation))) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config.json and generation_config.json must be JSON objects");
    }
    proto_status_t status = read_arch(config, out, error);
    if (status != STATUS_OK) {
        return status;
    }
    reader_t reader = {config, error, STATUS_OK};
    if (out->is_nested) {
        reader.root = json_object_get(config, "text_config");
        if (!json_is_object(reader.root)) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "config.json: 'text_config' must be an object");
        }
    }
    read_sizes(&reader, out);
    if (out->arch == FILE_ARCH_GEMMA3) {
        read_gemma3(&reader, out);
    } else if (out->arch == FILE_ARCH_GPT_OSS) {
        read_gpt_oss(&reader, out);
    } else if (out->arch == FILE_ARCH_QWEN35) {
        read_qwen35(&reader, out);
    } else if (out->arch == FILE_ARCH_DEEPSEEK_V3) {
        read_deepseek(&reader, out);
    }
    read_rope(&reader, out);
    if (out->arch == FILE_ARCH_DEEPSEEK_V3) {
        finish_deepseek(&reader, out);
    }
    refuse_unsupported(&reader, out);
    out->bos_id = read_id(&reader, reader.root, "bos_token_id", NULL);
    out->pad_id = read_id(&reader, reader.root, "pad_token_id", NULL);
    out->eos_id = read_id(&reader, reader.root, "eos_token_id", out);
    if (out->is_nested) {
        /* The outer model decides on the head, and says how everything is stored. */
        reader.root = config;
        out->tied_embeddings = read_bool(&reader, "tie_word_embeddings", out->tied_embeddings);
        refuse_unsupported(&reader, out);
    }
    int32_t eos_id = read_id(&reader, generation, "eos_token_id", out);
    out->eos_id = eos_id != FILE_ID_NONE ? eos_id : out->eos_id;
    return reader.status;
}
