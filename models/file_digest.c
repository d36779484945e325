/* The fingerprint of a checkpoint: everything that shapes the computation, and samples of the
 * weights. */
#include <sodium.h>

#include "file_model_internal.h"
#include "proto_require.h"

enum { SAMPLE_SIZE_BYTES = 4096 };

static void
hash_u64(crypto_generichash_state *state, uint64_t value)
{
    uint8_t bytes[8];
    for (uint32_t i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    (void)crypto_generichash_update(state, bytes, sizeof bytes);
}

static void
hash_f64(crypto_generichash_state *state, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    hash_u64(state, bits);
}

static void
hash_config(crypto_generichash_state *state, const file_config_t *config)
{
    const uint64_t numbers[] = {
        config->arch,
        config->layer_count,
        config->hidden_size,
        config->ffn_size,
        config->head_count,
        config->kv_head_count,
        config->head_dim,
        config->vocab_size,
        config->context_len,
        config->rope_dim,
        config->rope_style,
        config->rope_scaling,
        config->rope_original_context_len,
        config->tied_embeddings,
        config->has_qk_norm,
        config->has_qkv_bias,
        config->has_o_bias,
        config->activation,
        config->sliding_window,
        config->has_post_norms,
        config->has_offset_norms,
        config->rope_truncates,
        config->expert_count,
        config->expert_used_count,
        config->has_fused_experts,
        config->has_sinks,
        config->latent_dim,
        config->q_latent_dim,
        config->nope_dim,
        config->v_head_dim,
        config->expert_ffn_size,
        config->shared_ffn_size,
        config->dense_layer_count,
        config->has_sigmoid_router,
        config->has_normed_weights,
        config->expert_group_count,
        config->expert_group_used_count,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        hash_u64(state, numbers[i]);
    }
    hash_f64(state, config->rope_theta);
    hash_f64(state, config->rope_scaling_factor);
    hash_f64(state, config->rope_low_freq_factor);
    hash_f64(state, config->rope_high_freq_factor);
    hash_f64(state, (double)config->rms_eps);
    hash_f64(state, config->rope_theta_sliding);
    hash_f64(state, config->query_scale);
    hash_f64(state, config->embed_scale);
    hash_f64(state, config->rope_beta_fast);
    hash_f64(state, config->rope_beta_slow);
    hash_f64(state, config->rope_attention_factor);
    hash_f64(state, config->expert_alpha);
    hash_f64(state, config->expert_limit);
    hash_f64(state, config->expert_scale);
    (void)crypto_generichash_update(state, config->layer_kinds, config->layer_count);
    if (config->arch == FILE_ARCH_QWEN35) {
        hash_u64(state, config->has_attn_gate);
        hash_u64(state, config->linear_key_head_count);
        hash_u64(state, config->linear_key_head_dim);
        hash_u64(state, config->linear_value_head_count);
        hash_u64(state, config->linear_value_head_dim);
        hash_u64(state, config->linear_conv_width);
        hash_u64(state, config->has_shared_scale);
    }
}

static void
hash_tensor(crypto_generichash_state *state, const file_tensor_t *tensor)
{
    hash_u64(state, tensor->dtype);
    hash_u64(state, tensor->rows);
    hash_u64(state, tensor->cols);
    hash_u64(state, tensor->size_bytes);
    const uint8_t *bytes = tensor->data;
    uint64_t size_bytes = tensor->size_bytes;
    if (size_bytes <= 3 * SAMPLE_SIZE_BYTES) {
        (void)crypto_generichash_update(state, bytes, size_bytes);
        return;
    }
    (void)crypto_generichash_update(state, bytes, SAMPLE_SIZE_BYTES);
    (void)crypto_generichash_update(state, bytes + size_bytes / 2, SAMPLE_SIZE_BYTES);
    (void)crypto_generichash_update(state, bytes + size_bytes - SAMPLE_SIZE_BYTES,
                                    SAMPLE_SIZE_BYTES);
}

static bool
is_draft_role(size_t slot)
{
    size_t role =
        slot < FILE_ROLE_FIRST_OF_LAYER
            ? slot
            : FILE_ROLE_FIRST_OF_LAYER + (slot - FILE_ROLE_FIRST_OF_LAYER) % FILE_ROLES_PER_LAYER;
    return (role >= FILE_ROLE_DRAFT_FC && role <= FILE_ROLE_DRAFT_MARKOV_OUT) ||
           (role >= FILE_ROLE_DRAFT_HIDDEN_NORM && role <= FILE_ROLE_DRAFT_HEAD_NORM);
}

void
file_model_compute_digest(file_model_t *self)
{
    static const char VERSION[] = "onepath model digest 3";
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, NULL, 0, FILE_DIGEST_SIZE_BYTES);
    (void)crypto_generichash_update(&state, (const uint8_t *)VERSION, sizeof VERSION);
    hash_config(&state, &self->config);
    size_t slot_count =
        FILE_ROLE_FIRST_OF_LAYER + (size_t)self->config.layer_count * FILE_ROLES_PER_LAYER;
    uint64_t number = 0; /* roles of drafts have none, so that they change no model's digest */
    for (size_t i = 0; i < slot_count; i++) {
        if (!is_draft_role(i)) {
            hash_u64(&state, number++);
        }
        if (self->roles[i].data != NULL) {
            hash_tensor(&state, &self->roles[i]);
        }
    }
    for (size_t i = 0; i < self->expert_slot_count; i++) {
        if (self->experts[i].data != NULL) {
            hash_tensor(&state, &self->experts[i]);
        }
    }
    (void)crypto_generichash_final(&state, self->config.digest, FILE_DIGEST_SIZE_BYTES);
}
