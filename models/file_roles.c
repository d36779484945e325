/* Which stored tensor is what: names of both containers, and shapes.
 *
 * Long because the name, the shape and the presence of every role stand side by side. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "file_dtype.h"
#include "file_model_internal.h"
#include "proto_require.h"

enum { NAME_SIZE_BYTES = 96 };

typedef struct {
    const char *gguf;
    const char *folder;
    file_form_t form;
} role_info_t;

#define VECTOR FILE_FORM_VECTOR
#define MATRIX FILE_FORM_MATRIX
#define STACK FILE_FORM_STACK
#define TAPS FILE_FORM_TAPS
#define HF "model.layers.%" PRIu32 "."
#define GG "blk.%" PRIu32 "."

static const role_info_t ROLES[FILE_ROLE_COUNT] = {
    [FILE_ROLE_LINEAR_QKV] = {NULL, HF "linear_attn.in_proj_qkv.weight", MATRIX},
    [FILE_ROLE_LINEAR_Z] = {NULL, HF "linear_attn.in_proj_z.weight", MATRIX},
    [FILE_ROLE_LINEAR_A] = {NULL, HF "linear_attn.in_proj_a.weight", MATRIX},
    [FILE_ROLE_LINEAR_B] = {NULL, HF "linear_attn.in_proj_b.weight", MATRIX},
    [FILE_ROLE_LINEAR_CONV] = {NULL, HF "linear_attn.conv1d.weight", TAPS},
    [FILE_ROLE_LINEAR_DT_BIAS] = {NULL, HF "linear_attn.dt_bias", VECTOR},
    [FILE_ROLE_LINEAR_A_LOG] = {NULL, HF "linear_attn.A_log", VECTOR},
    [FILE_ROLE_LINEAR_NORM] = {NULL, HF "linear_attn.norm.weight", VECTOR},
    [FILE_ROLE_LINEAR_OUT] = {NULL, HF "linear_attn.out_proj.weight", MATRIX},
    [FILE_ROLE_TOKEN_EMBED] = {"token_embd.weight", "model.embed_tokens.weight", MATRIX},
    [FILE_ROLE_OUTPUT_NORM] = {"output_norm.weight", "model.norm.weight", VECTOR},
    [FILE_ROLE_OUTPUT] = {"output.weight", "lm_head.weight", MATRIX},
    [FILE_ROLE_ROPE_FREQS] = {"rope_freqs.weight", NULL, VECTOR},
    [FILE_ROLE_ATTN_NORM] = {GG "attn_norm.weight", HF "input_layernorm.weight", VECTOR},
    [FILE_ROLE_ATTN_Q] = {GG "attn_q.weight", HF "self_attn.q_proj.weight", MATRIX},
    [FILE_ROLE_ATTN_K] = {GG "attn_k.weight", HF "self_attn.k_proj.weight", MATRIX},
    [FILE_ROLE_ATTN_V] = {GG "attn_v.weight", HF "self_attn.v_proj.weight", MATRIX},
    [FILE_ROLE_ATTN_O] = {GG "attn_output.weight", HF "self_attn.o_proj.weight", MATRIX},
    [FILE_ROLE_ATTN_Q_NORM] = {GG "attn_q_norm.weight", HF "self_attn.q_norm.weight", VECTOR},
    [FILE_ROLE_ATTN_K_NORM] = {GG "attn_k_norm.weight", HF "self_attn.k_norm.weight", VECTOR},
    [FILE_ROLE_ATTN_Q_BIAS] = {GG "attn_q.bias", HF "self_attn.q_proj.bias", VECTOR},
    [FILE_ROLE_ATTN_K_BIAS] = {GG "attn_k.bias", HF "self_attn.k_proj.bias", VECTOR},
    [FILE_ROLE_ATTN_V_BIAS] = {GG "attn_v.bias", HF "self_attn.v_proj.bias", VECTOR},
    [FILE_ROLE_ATTN_O_BIAS] = {GG "attn_output.bias", HF "self_attn.o_proj.bias", VECTOR},
    [FILE_ROLE_FFN_NORM] = {GG "ffn_norm.weight", HF "post_attention_layernorm.weight", VECTOR},
    [FILE_ROLE_FFN_GATE] = {GG "ffn_gate.weight", HF "mlp.gate_proj.weight", MATRIX},
    [FILE_ROLE_FFN_UP] = {GG "ffn_up.weight", HF "mlp.up_proj.weight", MATRIX},
    [FILE_ROLE_FFN_DOWN] = {GG "ffn_down.weight", HF "mlp.down_proj.weight", MATRIX},
    [FILE_ROLE_ATTN_POST_NORM] = {GG "post_attention_norm.weight",
                                  HF "post_attention_layernorm.weight", VECTOR},
    [FILE_ROLE_FFN_POST_NORM] = {GG "post_ffw_norm.weight", HF "post_feedforward_layernorm.weight",
                                 VECTOR},
    [FILE_ROLE_ATTN_SINKS] = {GG "attn_sinks.weight", HF "self_attn.sinks", VECTOR},
    [FILE_ROLE_ROUTER] = {GG "ffn_gate_inp.weight", HF "mlp.router.weight", MATRIX},
    [FILE_ROLE_ROUTER_BIAS] = {GG "ffn_gate_inp.bias", HF "mlp.router.bias", VECTOR},
    [FILE_ROLE_EXPERT_GATE_UP] = {NULL, HF "mlp.experts.gate_up_proj", STACK},
    [FILE_ROLE_EXPERT_GATE_UP_BIAS] = {NULL, HF "mlp.experts.gate_up_proj_bias", MATRIX},
    [FILE_ROLE_EXPERT_GATE] = {GG "ffn_gate_exps.weight", NULL, STACK},
    [FILE_ROLE_EXPERT_GATE_BIAS] = {GG "ffn_gate_exps.bias", NULL, MATRIX},
    [FILE_ROLE_EXPERT_UP] = {GG "ffn_up_exps.weight", NULL, STACK},
    [FILE_ROLE_EXPERT_UP_BIAS] = {GG "ffn_up_exps.bias", NULL, MATRIX},
    [FILE_ROLE_EXPERT_DOWN] = {GG "ffn_down_exps.weight", HF "mlp.experts.down_proj", STACK},
    [FILE_ROLE_EXPERT_DOWN_BIAS] = {GG "ffn_down_exps.bias", HF "mlp.experts.down_proj_bias",
                                    MATRIX},
    [FILE_ROLE_ROUTER_SELECT_BIAS] = {NULL, HF "mlp.gate.e_score_correction_bias", VECTOR},
    [FILE_ROLE_SHARED_GATE] = {NULL, HF "mlp.shared_experts.gate_proj.weight", MATRIX},
    [FILE_ROLE_SHARED_UP] = {NULL, HF "mlp.shared_experts.up_proj.weight", MATRIX},
    [FILE_ROLE_SHARED_DOWN] = {NULL, HF "mlp.shared_experts.down_proj.weight", MATRIX},
    [FILE_ROLE_SHARED_SCALE] = {NULL, HF "mlp.shared_expert_gate.weight", MATRIX},
    [FILE_ROLE_ATTN_Q_A] = {NULL, HF "self_attn.q_a_proj.weight", MATRIX},
    [FILE_ROLE_ATTN_Q_A_NORM] = {NULL, HF "self_attn.q_a_layernorm.weight", VECTOR},
    [FILE_ROLE_ATTN_Q_B] = {NULL, HF "self_attn.q_b_proj.weight", MATRIX},
    [FILE_ROLE_ATTN_KV_A] = {NULL, HF "self_attn.kv_a_proj_with_mqa.weight", MATRIX},
    [FILE_ROLE_ATTN_KV_A_NORM] = {NULL, HF "self_attn.kv_a_layernorm.weight", VECTOR},
    [FILE_ROLE_ATTN_KV_B] = {NULL, HF "self_attn.kv_b_proj.weight", MATRIX},
};

#undef VECTOR
#undef MATRIX
#undef STACK
#undef TAPS

/* Where norms stand on both sides of a block, folders call the one before it by another name. */
static const char FFN_NORM_BETWEEN[] = HF "pre_feedforward_layernorm.weight";

/* A GGUF of a gpt-oss names the norm before the experts after the block that it follows. */
static const char FFN_NORM_AFTER[] = GG "post_attention_norm.weight";

/* The router of a deepseek_v3. */
static const char ROUTER_GATE[] = HF "mlp.gate.weight";

/* One expert that every token meets, by itself. */
static const char ONE_SHARED_GATE[] = HF "mlp.shared_expert.gate_proj.weight";
static const char ONE_SHARED_UP[] = HF "mlp.shared_expert.up_proj.weight";
static const char ONE_SHARED_DOWN[] = HF "mlp.shared_expert.down_proj.weight";

#undef HF
#undef GG

/* A text model within a larger one has its names one deeper; the rest of the larger one is not
 * run. */
static const char OUTER[] = "model.";
static const char NESTED[] = "model.language_model.";
static const char *const NOT_RUN[] = {"model.visual.", "mtp."};

typedef struct {
    uint32_t rows;
    uint32_t cols;
} shape_t;

/* The name of a role in this checkpoint; false if its container has none. */
static bool
role_name(const file_model_t *self, file_role_t role, uint32_t layer, char out[NAME_SIZE_BYTES])
{
    const char *pattern = self->is_gguf ? ROLES[role].gguf : ROLES[role].folder;
    if (role == FILE_ROLE_FFN_NORM && !self->is_gguf && self->config.has_post_norms) {
        pattern = FFN_NORM_BETWEEN;
    } else if (role == FILE_ROLE_FFN_NORM && self->is_gguf &&
               self->config.arch == FILE_ARCH_GPT_OSS) {
        pattern = FFN_NORM_AFTER;
    } else if (role == FILE_ROLE_ROUTER && self->config.has_apart_experts) {
        pattern = ROUTER_GATE;
    }
    if (self->config.has_shared_scale && role == FILE_ROLE_SHARED_GATE) {
        pattern = ONE_SHARED_GATE;
    } else if (self->config.has_shared_scale && role == FILE_ROLE_SHARED_UP) {
        pattern = ONE_SHARED_UP;
    } else if (self->config.has_shared_scale && role == FILE_ROLE_SHARED_DOWN) {
        pattern = ONE_SHARED_DOWN;
    }
    if (pattern == NULL) {
        return false;
    }
    const char *within = "";
    if (self->config.is_nested && strncmp(pattern, OUTER, sizeof OUTER - 1) == 0) {
        within = NESTED;
        pattern += sizeof OUTER - 1;
    }
    const char *number = strchr(pattern, '%');
    if (number == NULL) {
        (void)snprintf(out, NAME_SIZE_BYTES, "%s%s", within, pattern);
    } else {
        const char *rest = number + 1 + strlen(PRIu32);
        (void)snprintf(out, NAME_SIZE_BYTES, "%s%.*s%" PRIu32 "%s", within, (int)(number - pattern),
                       pattern, layer, rest);
    }
    return true;
}

/* Of a layer with experts. */
static shape_t
expert_shape(const file_config_t *config, file_role_t role)
{
    uint32_t hidden = config->hidden_size;
    uint32_t ffn = config->expert_ffn_size;
    uint32_t count = config->expert_count;
    bool is_fused = config->has_fused_experts;
    if (role == FILE_ROLE_ROUTER) {
        return (shape_t){count, hidden};
    } else if (role == FILE_ROLE_ROUTER_BIAS || role == FILE_ROLE_ROUTER_SELECT_BIAS) {
        return (shape_t){1, count};
    } else if (role == FILE_ROLE_SHARED_GATE || role == FILE_ROLE_SHARED_UP) {
        return (shape_t){config->shared_ffn_size, hidden};
    } else if (role == FILE_ROLE_SHARED_DOWN) {
        return (shape_t){hidden, config->shared_ffn_size};
    } else if (role == FILE_ROLE_SHARED_SCALE) {
        return (shape_t){1, hidden};
    } else if (role == FILE_ROLE_EXPERT_GATE_UP) {
        return (shape_t){count * hidden, 2 * ffn};
    } else if (role == FILE_ROLE_EXPERT_GATE_UP_BIAS) {
        return (shape_t){count, 2 * ffn};
    } else if (role == FILE_ROLE_EXPERT_GATE || role == FILE_ROLE_EXPERT_UP) {
        return (shape_t){count * ffn, hidden};
    } else if (role == FILE_ROLE_EXPERT_GATE_BIAS || role == FILE_ROLE_EXPERT_UP_BIAS) {
        return (shape_t){count, ffn};
    } else if (role == FILE_ROLE_EXPERT_DOWN) {
        return is_fused ? (shape_t){count * ffn, hidden} : (shape_t){count * hidden, ffn};
    }
    require(role == FILE_ROLE_EXPERT_DOWN_BIAS);
    return (shape_t){count, hidden};
}

/* Of a layer with a recurrent state. */
static shape_t
linear_shape(const file_config_t *config, file_role_t role)
{
    uint32_t hidden = config->hidden_size;
    uint32_t heads = config->linear_value_head_count;
    uint32_t channels = file_config_linear_channels(config);
    if (role == FILE_ROLE_LINEAR_QKV) {
        return (shape_t){channels, hidden};
    } else if (role == FILE_ROLE_LINEAR_Z) {
        return (shape_t){heads * config->linear_value_head_dim, hidden};
    } else if (role == FILE_ROLE_LINEAR_A || role == FILE_ROLE_LINEAR_B) {
        return (shape_t){heads, hidden};
    } else if (role == FILE_ROLE_LINEAR_CONV) {
        return (shape_t){channels, config->linear_conv_width};
    } else if (role == FILE_ROLE_LINEAR_DT_BIAS || role == FILE_ROLE_LINEAR_A_LOG) {
        return (shape_t){1, heads};
    } else if (role == FILE_ROLE_LINEAR_NORM) {
        return (shape_t){1, config->linear_value_head_dim};
    }
    require(role == FILE_ROLE_LINEAR_OUT);
    return (shape_t){hidden, heads * config->linear_value_head_dim};
}

/* Of latent attention. */
static shape_t
latent_shape(const file_config_t *config, file_role_t role)
{
    uint32_t heads = config->head_count;
    if (role == FILE_ROLE_ATTN_Q_A) {
        return (shape_t){config->q_latent_dim, config->hidden_size};
    } else if (role == FILE_ROLE_ATTN_Q_A_NORM) {
        return (shape_t){1, config->q_latent_dim};
    } else if (role == FILE_ROLE_ATTN_Q_B) {
        return (shape_t){heads * config->head_dim, config->q_latent_dim};
    } else if (role == FILE_ROLE_ATTN_KV_A) {
        return (shape_t){config->latent_dim + config->rope_dim, config->hidden_size};
    } else if (role == FILE_ROLE_ATTN_KV_A_NORM) {
        return (shape_t){1, config->latent_dim};
    }
    require(role == FILE_ROLE_ATTN_KV_B);
    return (shape_t){heads * (config->nope_dim + config->v_head_dim), config->latent_dim};
}

/* Long because it names every role. */
static shape_t
role_shape(const file_config_t *config, file_role_t role)
{
    uint32_t hidden = config->hidden_size;
    uint32_t q_size = config->head_count * config->head_dim;
    uint32_t kv_size = config->kv_head_count * config->head_dim;
    switch (role) {
    case FILE_ROLE_TOKEN_EMBED:
    case FILE_ROLE_OUTPUT:
        return (shape_t){config->vocab_size, hidden};
    case FILE_ROLE_ROPE_FREQS:
        return (shape_t){1, config->rope_dim / 2};
    case FILE_ROLE_ATTN_Q:
        return (shape_t){config->has_attn_gate ? 2 * q_size : q_size, hidden};
    case FILE_ROLE_ATTN_K:
    case FILE_ROLE_ATTN_V:
        return (shape_t){kv_size, hidden};
    case FILE_ROLE_ATTN_O:
        return (shape_t){hidden,
                         config->latent_dim > 0 ? config->head_count * config->v_head_dim : q_size};
    case FILE_ROLE_ATTN_Q_NORM:
    case FILE_ROLE_ATTN_K_NORM:
        return (shape_t){1, config->head_dim};
    case FILE_ROLE_ATTN_Q_BIAS:
        return (shape_t){1, q_size};
    case FILE_ROLE_ATTN_K_BIAS:
    case FILE_ROLE_ATTN_V_BIAS:
        return (shape_t){1, kv_size};
    case FILE_ROLE_FFN_GATE:
    case FILE_ROLE_FFN_UP:
        return (shape_t){config->ffn_size, hidden};
    case FILE_ROLE_FFN_DOWN:
        return (shape_t){hidden, config->ffn_size};
    case FILE_ROLE_OUTPUT_NORM:
    case FILE_ROLE_ATTN_NORM:
    case FILE_ROLE_ATTN_O_BIAS:
    case FILE_ROLE_ATTN_POST_NORM:
    case FILE_ROLE_FFN_NORM:
    case FILE_ROLE_FFN_POST_NORM:
        return (shape_t){1, hidden};
    case FILE_ROLE_ATTN_SINKS:
        return (shape_t){1, config->head_count};
    case FILE_ROLE_ROUTER:
    case FILE_ROLE_ROUTER_BIAS:
    case FILE_ROLE_EXPERT_GATE_UP:
    case FILE_ROLE_EXPERT_GATE_UP_BIAS:
    case FILE_ROLE_EXPERT_GATE:
    case FILE_ROLE_EXPERT_GATE_BIAS:
    case FILE_ROLE_EXPERT_UP:
    case FILE_ROLE_EXPERT_UP_BIAS:
    case FILE_ROLE_EXPERT_DOWN:
    case FILE_ROLE_EXPERT_DOWN_BIAS:
    case FILE_ROLE_ROUTER_SELECT_BIAS:
    case FILE_ROLE_SHARED_GATE:
    case FILE_ROLE_SHARED_UP:
    case FILE_ROLE_SHARED_DOWN:
    case FILE_ROLE_SHARED_SCALE:
        return expert_shape(config, role);
    case FILE_ROLE_ATTN_Q_A:
    case FILE_ROLE_ATTN_Q_A_NORM:
    case FILE_ROLE_ATTN_Q_B:
    case FILE_ROLE_ATTN_KV_A:
    case FILE_ROLE_ATTN_KV_A_NORM:
    case FILE_ROLE_ATTN_KV_B:
        return latent_shape(config, role);
    case FILE_ROLE_LINEAR_QKV:
    case FILE_ROLE_LINEAR_Z:
    case FILE_ROLE_LINEAR_A:
    case FILE_ROLE_LINEAR_B:
    case FILE_ROLE_LINEAR_CONV:
    case FILE_ROLE_LINEAR_DT_BIAS:
    case FILE_ROLE_LINEAR_A_LOG:
    case FILE_ROLE_LINEAR_NORM:
    case FILE_ROLE_LINEAR_OUT:
        return linear_shape(config, role);
    case FILE_ROLE_DRAFT_FC:
    case FILE_ROLE_DRAFT_CONTEXT_NORM:
    case FILE_ROLE_DRAFT_MARKOV_IN:
    case FILE_ROLE_DRAFT_MARKOV_OUT:
    case FILE_ROLE_DRAFT_HIDDEN_NORM:
    case FILE_ROLE_DRAFT_EMBED_NORM:
    case FILE_ROLE_DRAFT_EH_PROJ:
    case FILE_ROLE_DRAFT_HEAD_NORM:
    case FILE_ROLE_COUNT:
        break;
    }
    require(role < FILE_ROLE_COUNT);
    return (shape_t){0, 0};
}

/* Of a layer with experts. */
static bool
expert_is_wanted(const file_config_t *config, file_role_t role)
{
    switch ((unsigned)role) {
    case FILE_ROLE_ROUTER_BIAS:
    case FILE_ROLE_EXPERT_DOWN_BIAS:
        return config->has_router_bias;
    case FILE_ROLE_ROUTER_SELECT_BIAS:
        return config->has_sigmoid_router;
    case FILE_ROLE_SHARED_GATE:
    case FILE_ROLE_SHARED_UP:
    case FILE_ROLE_SHARED_DOWN:
        return config->shared_ffn_size > 0;
    case FILE_ROLE_SHARED_SCALE:
        return config->has_shared_scale;
    case FILE_ROLE_EXPERT_DOWN:
        return !config->has_apart_experts;
    case FILE_ROLE_EXPERT_GATE_UP:
    case FILE_ROLE_EXPERT_GATE_UP_BIAS:
        return config->has_fused_experts;
    case FILE_ROLE_EXPERT_GATE:
    case FILE_ROLE_EXPERT_GATE_BIAS:
    case FILE_ROLE_EXPERT_UP:
    case FILE_ROLE_EXPERT_UP_BIAS:
        return !config->has_fused_experts && !config->has_apart_experts;
    default:
        return true;
    }
}

/* `layer` counts only for roles of a layer.  Long because it names every role. */
static bool
role_is_wanted(const file_config_t *config, file_role_t role, uint32_t layer)
{
    bool is_linear =
        role >= FILE_ROLE_FIRST_OF_LAYER && config->layer_kinds[layer] == FILE_LAYER_LINEAR;
    bool is_latent = config->latent_dim > 0;
    switch (role) {
    case FILE_ROLE_OUTPUT:
        return !config->tied_embeddings;
    case FILE_ROLE_ROPE_FREQS:
        return config->rope_scaling == FILE_ROPE_SCALING_TABLE;
    case FILE_ROLE_ATTN_Q_NORM:
    case FILE_ROLE_ATTN_K_NORM:
        return config->has_qk_norm && !is_linear;
    case FILE_ROLE_ATTN_Q:
        return !is_linear && !(is_latent && config->q_latent_dim > 0);
    case FILE_ROLE_ATTN_K:
    case FILE_ROLE_ATTN_V:
        return !is_linear && !is_latent;
    case FILE_ROLE_ATTN_O:
        return !is_linear;
    case FILE_ROLE_ATTN_Q_BIAS:
    case FILE_ROLE_ATTN_K_BIAS:
    case FILE_ROLE_ATTN_V_BIAS:
        return config->has_qkv_bias && !is_linear;
    case FILE_ROLE_ATTN_O_BIAS:
        return config->has_o_bias && !is_linear;
    case FILE_ROLE_ATTN_POST_NORM:
    case FILE_ROLE_FFN_POST_NORM:
        return config->has_post_norms;
    case FILE_ROLE_ATTN_SINKS:
        return config->has_sinks;
    case FILE_ROLE_FFN_GATE:
    case FILE_ROLE_FFN_UP:
    case FILE_ROLE_FFN_DOWN:
        return !file_config_has_experts(config, layer);
    case FILE_ROLE_ROUTER:
    case FILE_ROLE_ROUTER_BIAS:
    case FILE_ROLE_EXPERT_DOWN:
    case FILE_ROLE_EXPERT_DOWN_BIAS:
    case FILE_ROLE_EXPERT_GATE_UP:
    case FILE_ROLE_EXPERT_GATE_UP_BIAS:
    case FILE_ROLE_EXPERT_GATE:
    case FILE_ROLE_EXPERT_GATE_BIAS:
    case FILE_ROLE_EXPERT_UP:
    case FILE_ROLE_EXPERT_UP_BIAS:
    case FILE_ROLE_ROUTER_SELECT_BIAS:
    case FILE_ROLE_SHARED_GATE:
    case FILE_ROLE_SHARED_UP:
    case FILE_ROLE_SHARED_DOWN:
    case FILE_ROLE_SHARED_SCALE:
        return file_config_has_experts(config, layer) && expert_is_wanted(config, role);
    case FILE_ROLE_ATTN_Q_A:
    case FILE_ROLE_ATTN_Q_A_NORM:
    case FILE_ROLE_ATTN_Q_B:
        return is_latent && config->q_latent_dim > 0;
    case FILE_ROLE_ATTN_KV_A:
    case FILE_ROLE_ATTN_KV_A_NORM:
    case FILE_ROLE_ATTN_KV_B:
        return is_latent;
    case FILE_ROLE_LINEAR_QKV:
    case FILE_ROLE_LINEAR_Z:
    case FILE_ROLE_LINEAR_A:
    case FILE_ROLE_LINEAR_B:
    case FILE_ROLE_LINEAR_CONV:
    case FILE_ROLE_LINEAR_DT_BIAS:
    case FILE_ROLE_LINEAR_A_LOG:
    case FILE_ROLE_LINEAR_NORM:
    case FILE_ROLE_LINEAR_OUT:
        return is_linear;
    case FILE_ROLE_DRAFT_FC:
    case FILE_ROLE_DRAFT_CONTEXT_NORM:
    case FILE_ROLE_DRAFT_MARKOV_IN:
    case FILE_ROLE_DRAFT_MARKOV_OUT:
    case FILE_ROLE_DRAFT_HIDDEN_NORM:
    case FILE_ROLE_DRAFT_EMBED_NORM:
    case FILE_ROLE_DRAFT_EH_PROJ:
    case FILE_ROLE_DRAFT_HEAD_NORM:
        return false; /* file_draft.c */
    case FILE_ROLE_TOKEN_EMBED:
    case FILE_ROLE_OUTPUT_NORM:
    case FILE_ROLE_ATTN_NORM:
    case FILE_ROLE_FFN_NORM:
    case FILE_ROLE_COUNT:
        break;
    }
    return true;
}

static file_tensor_t *
role_slot(const file_model_t *self, file_role_t role, uint32_t layer)
{
    if (role < FILE_ROLE_FIRST_OF_LAYER) {
        return &self->roles[role];
    }
    return &self->roles[FILE_ROLE_FIRST_OF_LAYER + (size_t)layer * FILE_ROLES_PER_LAYER +
                        (size_t)(role - FILE_ROLE_FIRST_OF_LAYER)];
}

static proto_status_t
assign_role(file_model_t *self, file_role_t role, uint32_t layer, file_error_t error)
{
    char name[NAME_SIZE_BYTES];
    if (!role_is_wanted(&self->config, role, layer) || !role_name(self, role, layer, name)) {
        return STATUS_OK;
    }
    shape_t shape = role_shape(&self->config, role);
    file_tensor_t *slot = role_slot(self, role, layer);
    proto_status_t status =
        file_model_bind(self, name, ROLES[role].form, shape.rows, shape.cols, error, slot);
    if (status == STATUS_OK && role == FILE_ROLE_ROPE_FREQS && slot->dtype != FILE_DTYPE_F32) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED, "tensor '%s': must be F32", name);
    }
    return status;
}

/* Layers behind the last one serve for drafting alone. */
static bool
is_ignored_layer(const file_config_t *config, file_view_t name)
{
    static const char PREFIX[] = "model.layers.";
    size_t at = sizeof PREFIX - 1;
    if (name.size_bytes <= at || memcmp(name.bytes, PREFIX, at) != 0) {
        return false;
    }
    uint32_t layer = 0;
    for (; at < name.size_bytes && name.bytes[at] >= '0' && name.bytes[at] <= '9'; at++) {
        if (layer > FILE_LAYER_COUNT_MAX) {
            return false;
        }
        layer = 10 * layer + (uint32_t)(name.bytes[at] - '0');
    }
    return layer >= config->layer_count &&
           layer - config->layer_count < config->ignored_layer_count;
}

static bool
is_not_run(const file_model_t *self, file_view_t name)
{
    for (size_t i = 0; self->config.is_nested && i < sizeof NOT_RUN / sizeof *NOT_RUN; i++) {
        size_t size_bytes = strlen(NOT_RUN[i]);
        if (name.size_bytes > size_bytes && memcmp(name.bytes, NOT_RUN[i], size_bytes) == 0) {
            return true;
        }
    }
    return is_ignored_layer(&self->config, name);
}

/* A tensor without a role would be left out of the computation in silence. */
static proto_status_t
check_all_used(const file_model_t *self, file_error_t error)
{
    static const char INV_FREQ[] = ".rotary_emb.inv_freq"; /* old folders store a constant */
    for (uint32_t i = 0; i < self->tensors.count; i++) {
        const file_stored_t *stored = &self->tensors.items[i];
        file_view_t name = stored->name;
        bool is_tied_head =
            self->config.tied_embeddings && file_view_equals(name, "lm_head.weight");
        bool is_inv_freq = name.size_bytes >= sizeof INV_FREQ - 1 &&
                           memcmp(name.bytes + name.size_bytes - (sizeof INV_FREQ - 1), INV_FREQ,
                                  sizeof INV_FREQ - 1) == 0;
        if (!stored->is_used && !is_tied_head && !is_inv_freq && !is_not_run(self, name)) {
            return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                                  "tensor '%s' is no part of a %s with %" PRIu32 " layers",
                                  file_printable(name.bytes, name.size_bytes).text,
                                  file_arch_name(self->config.arch), self->config.layer_count);
        }
    }
    return STATUS_OK;
}

/* The keys of a GGUF say nothing about optional parts: the tensors do. */
static proto_status_t
read_gguf_parts(file_model_t *self, file_error_t error)
{
    file_config_t *config = &self->config;
    const file_stored_t *embed = file_tensors_find(&self->tensors, "token_embd.weight");
    if (embed == NULL || embed->rank != 2 || embed->shape[0] > FILE_VOCAB_SIZE_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor 'token_embd.weight' is missing, no matrix, or larger than %d "
                              "tokens",
                              FILE_VOCAB_SIZE_MAX);
    }
    config->vocab_size = (uint32_t)embed->shape[0];
    config->tied_embeddings = file_tensors_find(&self->tensors, "output.weight") == NULL;
    config->has_qk_norm = config->arch == FILE_ARCH_QWEN3 || config->arch == FILE_ARCH_GEMMA3;
    config->has_qkv_bias = file_tensors_find(&self->tensors, "blk.0.attn_q.bias") != NULL;
    config->has_o_bias = file_tensors_find(&self->tensors, "blk.0.attn_output.bias") != NULL;
    if (file_tensors_find(&self->tensors, "rope_freqs.weight") != NULL) {
        if (config->rope_scaling != FILE_ROPE_SCALING_NONE) {
            return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                                  "RoPE is scaled by a key and by rope_freqs.weight");
        }
        config->rope_scaling = FILE_ROPE_SCALING_TABLE;
    }
    return STATUS_OK;
}

/* Stop ids that no token has would be checked for ever; an eos that none has is a broken file. */
static proto_status_t
check_ids(const file_config_t *config, file_error_t error)
{
    int64_t highest = config->eos_id > config->bos_id ? config->eos_id : config->bos_id;
    for (uint32_t i = 0; i < config->stop_id_count; i++) {
        highest = config->stop_ids[i] > highest ? config->stop_ids[i] : highest;
    }
    if (highest >= (int64_t)config->vocab_size) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config: token id %" PRId64 " is over the vocabulary of %" PRIu32,
                              highest, config->vocab_size);
    }
    return STATUS_OK;
}

proto_status_t
file_model_assign_roles(file_model_t *self, file_error_t error)
{
    file_config_t *config = &self->config;
    proto_status_t status = self->is_gguf ? read_gguf_parts(self, error) : STATUS_OK;
    if (status == STATUS_OK) {
        status = file_config_check(config, error);
    }
    if (status == STATUS_OK) {
        status = check_ids(config, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    self->roles =
        calloc(FILE_ROLE_FIRST_OF_LAYER + (size_t)config->layer_count * FILE_ROLES_PER_LAYER,
               sizeof *self->roles);
    if (self->roles == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the tensor roles");
    }
    for (uint32_t role = 0; status == STATUS_OK && role < FILE_ROLE_COUNT; role++) {
        uint32_t times = role < FILE_ROLE_FIRST_OF_LAYER ? 1 : config->layer_count;
        for (uint32_t layer = 0; status == STATUS_OK && layer < times; layer++) {
            status = assign_role(self, (file_role_t)role, layer, error);
        }
    }
    if (status == STATUS_OK) {
        status = file_model_assign_experts(self, error);
    }
    if (status == STATUS_OK) {
        status = check_all_used(self, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (config->tied_embeddings) {
        self->roles[FILE_ROLE_OUTPUT] = self->roles[FILE_ROLE_TOKEN_EMBED];
    }
    file_model_summarise_types(self);
    return STATUS_OK;
}

proto_status_t
file_model_tensor(const file_model_t *self, file_role_t role, uint32_t layer, file_tensor_t *out)
{
    require((unsigned)role < FILE_ROLE_COUNT);
    require(role < FILE_ROLE_FIRST_OF_LAYER || layer < self->config.layer_count);
    const file_tensor_t *slot = role_slot(self, role, layer);
    if (slot->data == NULL) {
        return STATUS_ERR_NOT_FOUND;
    }
    *out = *slot;
    return STATUS_OK;
}
