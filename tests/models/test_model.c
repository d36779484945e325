/* Good checkpoints: what the config says, where the tensors are, what the digest tells apart. */
#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_model.h"
#include "support.h"

static file_model_t *model;
static char error[FILE_ERROR_SIZE_BYTES];

static const file_config_t *
open_model(const char *path)
{
    ck_assert_msg(file_model_open(path, error, sizeof error, &model) == STATUS_OK, "%s", error);
    ck_assert_str_eq(error, "");
    return file_model_config(model);
}

static file_tensor_t
tensor_of(file_role_t role, uint32_t layer)
{
    file_tensor_t tensor;
    ck_assert_int_eq(file_model_tensor(model, role, layer, &tensor), STATUS_OK);
    ck_assert_ptr_nonnull(tensor.data);
    ck_assert_uint_eq(tensor.size_bytes,
                      tensor.rows * file_dtype_row_size_bytes(tensor.dtype, tensor.cols));
    return tensor;
}

static void
expect_shape(file_role_t role, uint32_t layer, file_dtype_t dtype, uint32_t rows, uint32_t cols)
{
    file_tensor_t tensor = tensor_of(role, layer);
    ck_assert_int_eq(tensor.dtype, dtype);
    ck_assert_uint_eq(tensor.rows, rows);
    ck_assert_uint_eq(tensor.cols, cols);
}

START_TEST(smollm2_is_what_its_card_says)
{
    const file_config_t *config = open_model(support_smollm2());
    ck_assert_int_eq(config->arch, FILE_ARCH_LLAMA);
    ck_assert_str_eq(file_arch_name(config->arch), "llama");
    ck_assert_uint_eq(config->layer_count, 30);
    ck_assert_uint_eq(config->hidden_size, 576);
    ck_assert_uint_eq(config->ffn_size, 1536);
    ck_assert_uint_eq(config->head_count, 9);
    ck_assert_uint_eq(config->kv_head_count, 3);
    ck_assert_uint_eq(config->head_dim, 64);
    ck_assert_uint_eq(config->vocab_size, 49152);
    ck_assert_uint_eq(config->context_len, 8192);
    ck_assert_double_eq(config->rope_theta, 100000.0);
    ck_assert_int_eq(config->rope_style, FILE_ROPE_INTERLEAVED);
    ck_assert_int_eq(config->rope_scaling, FILE_ROPE_SCALING_NONE);
    ck_assert(fabsf(config->rms_eps - 1e-5f) < 1e-9f);
    ck_assert(config->tied_embeddings);
    ck_assert(!config->has_qk_norm && !config->has_qkv_bias && !config->has_o_bias);
    ck_assert_int_eq(config->bos_id, 1);
    ck_assert_int_eq(config->eos_id, 2);
    ck_assert_uint_eq(config->stop_id_count, 2);
    ck_assert_int_eq(config->stop_ids[0], 2);
    ck_assert_int_eq(config->stop_ids[1], 0); /* <|endoftext|> */
    ck_assert_int_eq(config->linear_dtype, FILE_DTYPE_Q4_1);
    ck_assert_str_eq(config->dtype_summary, "Q4_1 (210), F32 (61), Q8_0 (1)");
    expect_shape(FILE_ROLE_TOKEN_EMBED, 0, FILE_DTYPE_Q8_0, 49152, 576);
    expect_shape(FILE_ROLE_OUTPUT, 0, FILE_DTYPE_Q8_0, 49152, 576);
    expect_shape(FILE_ROLE_ATTN_K, 29, FILE_DTYPE_Q4_1, 192, 576);
    expect_shape(FILE_ROLE_FFN_DOWN, 29, FILE_DTYPE_Q4_1, 576, 1536);
    expect_shape(FILE_ROLE_FFN_NORM, 0, FILE_DTYPE_F32, 1, 576);
    ck_assert_ptr_eq(tensor_of(FILE_ROLE_OUTPUT, 0).data, tensor_of(FILE_ROLE_TOKEN_EMBED, 0).data);
    file_model_close(&model);
    ck_assert_ptr_null(model);
    file_model_close(&model);
}
END_TEST

START_TEST(tiny_llama_has_separate_output_and_no_extras)
{
    const file_config_t *config = open_model(support_fixture("tiny-llama"));
    ck_assert_int_eq(config->rope_style, FILE_ROPE_NEOX);
    ck_assert_str_eq(config->name, "tiny-llama");
    ck_assert(!config->tied_embeddings);
    ck_assert_int_eq(config->bos_id, 317);
    ck_assert_int_eq(config->pad_id, FILE_ID_NONE);
    expect_shape(FILE_ROLE_OUTPUT, 0, FILE_DTYPE_F32, 320, 64);
    ck_assert_ptr_ne(tensor_of(FILE_ROLE_OUTPUT, 0).data, tensor_of(FILE_ROLE_TOKEN_EMBED, 0).data);
    static const file_role_t MISSING[] = {FILE_ROLE_ROPE_FREQS,  FILE_ROLE_ATTN_Q_NORM,
                                          FILE_ROLE_ATTN_K_NORM, FILE_ROLE_ATTN_Q_BIAS,
                                          FILE_ROLE_ATTN_K_BIAS, FILE_ROLE_ATTN_V_BIAS,
                                          FILE_ROLE_ATTN_O_BIAS};
    for (size_t i = 0; i < sizeof MISSING / sizeof MISSING[0]; i++) {
        file_tensor_t tensor = {.rows = 77};
        ck_assert_int_eq(file_model_tensor(model, MISSING[i], 2, &tensor), STATUS_ERR_NOT_FOUND);
        ck_assert_uint_eq(tensor.rows, 77);
    }
    file_model_close(&model);
}
END_TEST

START_TEST(tiny_llama3_has_scaled_rope_and_biases)
{
    const file_config_t *config = open_model(support_fixture("tiny-llama3"));
    ck_assert_int_eq(config->rope_scaling, FILE_ROPE_SCALING_LLAMA3);
    ck_assert_double_eq(config->rope_theta, 500.0);
    ck_assert_double_eq(config->rope_scaling_factor, 8.0);
    ck_assert_double_eq(config->rope_low_freq_factor, 1.0);
    ck_assert_double_eq(config->rope_high_freq_factor, 4.0);
    ck_assert_uint_eq(config->rope_original_context_len, 64);
    ck_assert(config->has_qkv_bias && config->has_o_bias);
    expect_shape(FILE_ROLE_ATTN_K_BIAS, 1, FILE_DTYPE_F32, 1, 8);
    expect_shape(FILE_ROLE_ATTN_O_BIAS, 1, FILE_DTYPE_F32, 1, 32);
    file_model_close(&model);
}
END_TEST

START_TEST(tiny_qwen3_has_norms_and_wide_heads)
{
    const file_config_t *config = open_model(support_fixture("tiny-qwen3"));
    ck_assert_int_eq(config->arch, FILE_ARCH_QWEN3);
    ck_assert(config->has_qk_norm);
    ck_assert_uint_eq(config->head_dim, 16);
    ck_assert_uint_eq(config->head_count, 6);
    ck_assert_int_eq(config->bos_id, FILE_ID_NONE);
    expect_shape(FILE_ROLE_ATTN_Q, 0, FILE_DTYPE_F32, 96, 64);
    expect_shape(FILE_ROLE_ATTN_O, 0, FILE_DTYPE_F32, 64, 96);
    expect_shape(FILE_ROLE_ATTN_K_NORM, 2, FILE_DTYPE_F32, 1, 16);
    file_model_close(&model);
}
END_TEST

START_TEST(tiny_gpt_oss_has_experts_sinks_and_yarn)
{
    const file_config_t *config = open_model(support_fixture("tiny-gpt-oss"));
    ck_assert_int_eq(config->arch, FILE_ARCH_GPT_OSS);
    ck_assert_str_eq(file_arch_name(config->arch), "gpt-oss");
    ck_assert(config->has_sinks && config->has_qkv_bias && config->has_o_bias);
    ck_assert(!config->has_qk_norm && !config->has_post_norms && !config->tied_embeddings);
    ck_assert_uint_eq(config->sliding_window, 12);
    ck_assert_int_eq(config->layer_kinds[0], FILE_LAYER_SLIDING);
    ck_assert_int_eq(config->layer_kinds[1], FILE_LAYER_FULL);
    ck_assert_uint_eq(config->expert_count, 6);
    ck_assert_uint_eq(config->expert_used_count, 3);
    ck_assert_double_eq(config->expert_alpha, 1.702);
    ck_assert_double_eq(config->expert_limit, 1.5);
    ck_assert_int_eq(config->rope_scaling, FILE_ROPE_SCALING_YARN);
    ck_assert(!config->rope_truncates);
    ck_assert_double_eq(config->rope_scaling_factor, 8.0);
    ck_assert_double_eq(config->rope_beta_fast, 4.0);
    ck_assert_double_eq(config->rope_beta_slow, 1.0);
    ck_assert_double_eq_tol(config->rope_attention_factor, 0.1 * log(8.0) + 1.0, 1e-12);
    expect_shape(FILE_ROLE_ATTN_SINKS, 3, FILE_DTYPE_F32, 1, 8);
    expect_shape(FILE_ROLE_ROUTER, 3, FILE_DTYPE_F32, 6, 64);
    expect_shape(FILE_ROLE_EXPERT_GATE_UP, 0, FILE_DTYPE_F32, 6 * 64, 2 * 32);
    expect_shape(FILE_ROLE_EXPERT_GATE_UP_BIAS, 0, FILE_DTYPE_F32, 6, 2 * 32);
    expect_shape(FILE_ROLE_EXPERT_DOWN, 0, FILE_DTYPE_F32, 6 * 32, 64);
    file_tensor_t none;
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_FFN_GATE, 0, &none), STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_EXPERT_GATE, 0, &none),
                     STATUS_ERR_NOT_FOUND);
    file_model_close(&model);
}
END_TEST

/* A role must be the tensor of its name: compared with the bytes that the file's header points at.
 */
START_TEST(roles_are_the_tensors_of_their_names)
{
    static const struct {
        file_role_t role;
        uint32_t layer;
        const char *name;
    } CASES[] = {
        {FILE_ROLE_TOKEN_EMBED, 0, "model.embed_tokens.weight"},
        {FILE_ROLE_OUTPUT_NORM, 0, "model.norm.weight"},
        {FILE_ROLE_ATTN_NORM, 2, "model.layers.2.input_layernorm.weight"},
        {FILE_ROLE_ATTN_Q, 1, "model.layers.1.self_attn.q_proj.weight"},
        {FILE_ROLE_ATTN_K, 1, "model.layers.1.self_attn.k_proj.weight"},
        {FILE_ROLE_ATTN_V, 1, "model.layers.1.self_attn.v_proj.weight"},
        {FILE_ROLE_ATTN_O, 0, "model.layers.0.self_attn.o_proj.weight"},
        {FILE_ROLE_ATTN_Q_NORM, 2, "model.layers.2.self_attn.q_norm.weight"},
        {FILE_ROLE_ATTN_K_NORM, 2, "model.layers.2.self_attn.k_norm.weight"},
        {FILE_ROLE_FFN_NORM, 2, "model.layers.2.post_attention_layernorm.weight"},
        {FILE_ROLE_FFN_GATE, 0, "model.layers.0.mlp.gate_proj.weight"},
        {FILE_ROLE_FFN_UP, 0, "model.layers.0.mlp.up_proj.weight"},
        {FILE_ROLE_FFN_DOWN, 2, "model.layers.2.mlp.down_proj.weight"},
    };
    static char text[1 << 20];
    FILE *file = fopen(support_fixture("tiny-qwen3/model.safetensors"), "rb");
    ck_assert_ptr_nonnull(file);
    (void)!fread(text, 1, sizeof text, file);
    (void)fclose(file);
    uint64_t header_size_bytes = 0;
    memcpy(&header_size_bytes, text, 8);
    json_t *header = json_loadb(text + 8, header_size_bytes, 0, NULL);
    (void)open_model(support_fixture("tiny-qwen3"));
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const json_t *range =
            json_object_get(json_object_get(header, CASES[i].name), "data_offsets");
        uint64_t begin = (uint64_t)json_integer_value(json_array_get(range, 0));
        uint64_t end = (uint64_t)json_integer_value(json_array_get(range, 1));
        file_tensor_t tensor = tensor_of(CASES[i].role, CASES[i].layer);
        ck_assert_uint_eq(tensor.size_bytes, end - begin);
        ck_assert_mem_eq(tensor.data, text + 8 + header_size_bytes + begin, tensor.size_bytes);
    }
    json_decref(header);
    file_model_close(&model);
}
END_TEST

static void
digest_of(const char *folder, uint8_t out[FILE_DIGEST_SIZE_BYTES])
{
    const file_config_t *config = open_model(folder);
    memcpy(out, config->digest, FILE_DIGEST_SIZE_BYTES);
    file_model_close(&model);
}

/* Executors of one group compare digests: equal for equal files, and another one for a changed
 * weight or a changed constant. */
START_TEST(the_digest_follows_weights_and_config)
{
    static char weights[1 << 20];
    static char config[1 << 16];
    FILE *file = fopen(support_fixture("tiny-llama/model.safetensors"), "rb");
    ck_assert_ptr_nonnull(file);
    size_t weights_size = fread(weights, 1, sizeof weights, file);
    (void)fclose(file);
    file = fopen(support_fixture("tiny-llama/config.json"), "rb");
    ck_assert_ptr_nonnull(file);
    size_t config_size = fread(config, 1, sizeof config - 1, file);
    (void)fclose(file);
    config[config_size] = '\0';
    uint8_t original[FILE_DIGEST_SIZE_BYTES];
    uint8_t again[FILE_DIGEST_SIZE_BYTES];
    uint8_t changed[FILE_DIGEST_SIZE_BYTES];
    char *folder = support_temp_folder();
    support_write(folder, "config.json", config, config_size);
    support_write(folder, "model.safetensors", weights, weights_size);
    digest_of(support_fixture("tiny-llama"), original);
    digest_of(folder, again);
    ck_assert_mem_eq(original, again, sizeof original);
    weights[weights_size - 1] ^= 1;
    support_write(folder, "model.safetensors", weights, weights_size);
    digest_of(folder, changed);
    ck_assert_mem_ne(original, changed, sizeof original);
    weights[weights_size - 1] ^= 1;
    support_write(folder, "model.safetensors", weights, weights_size);
    char *theta = strstr(config, "10000.0");
    ck_assert_ptr_nonnull(theta);
    theta[0] = '2';
    support_write(folder, "config.json", config, config_size);
    digest_of(folder, changed);
    ck_assert_mem_ne(original, changed, sizeof original);
    support_remove_folder(folder);
}
END_TEST

typedef struct {
    int calls;
    uint64_t last;
    uint64_t total;
} progress_t;

static void
on_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    progress_t *progress = context;
    ck_assert_uint_ge(done_bytes, progress->last);
    ck_assert_uint_le(done_bytes, total_bytes);
    progress->calls++;
    progress->last = done_bytes;
    progress->total = total_bytes;
}

START_TEST(prefetch_reports_its_progress)
{
    const file_config_t *config = open_model(support_smollm2());
    progress_t progress = {0};
    file_model_prefetch(model, on_progress, &progress);
    ck_assert_int_ge(progress.calls, 30);
    ck_assert_int_le(progress.calls, 70);
    ck_assert_uint_eq(progress.last, progress.total);
    ck_assert_uint_eq(progress.total, config->weight_size_bytes);
    file_model_prefetch(model, NULL, NULL);
    file_model_close(&model);
}
END_TEST

START_TEST(types_have_their_sizes)
{
    static const struct {
        file_dtype_t dtype;
        const char *name;
        uint32_t block_length;
        uint64_t size_bytes; /* of 512 values */
    } CASES[] = {
        {FILE_DTYPE_F32, "F32", 1, 2048},     {FILE_DTYPE_F16, "F16", 1, 1024},
        {FILE_DTYPE_BF16, "BF16", 1, 1024},   {FILE_DTYPE_Q8_0, "Q8_0", 32, 544},
        {FILE_DTYPE_Q4_0, "Q4_0", 32, 288},   {FILE_DTYPE_Q4_1, "Q4_1", 32, 320},
        {FILE_DTYPE_Q5_0, "Q5_0", 32, 352},   {FILE_DTYPE_Q4_K, "Q4_K", 256, 288},
        {FILE_DTYPE_Q5_K, "Q5_K", 256, 352},  {FILE_DTYPE_Q6_K, "Q6_K", 256, 420},
        {FILE_DTYPE_MXFP4, "MXFP4", 32, 272},
    };
    ck_assert_uint_eq(sizeof CASES / sizeof CASES[0], FILE_DTYPE_COUNT);
    for (size_t i = 0; i < FILE_DTYPE_COUNT; i++) {
        ck_assert_str_eq(file_dtype_name(CASES[i].dtype), CASES[i].name);
        ck_assert_uint_eq(file_dtype_block_length(CASES[i].dtype), CASES[i].block_length);
        ck_assert_uint_eq(file_dtype_row_size_bytes(CASES[i].dtype, 512), CASES[i].size_bytes);
    }
    ck_assert_str_eq(file_dtype_name((file_dtype_t)99), "?");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.model");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, smollm2_is_what_its_card_says);
    tcase_add_test(cases, tiny_llama_has_separate_output_and_no_extras);
    tcase_add_test(cases, tiny_llama3_has_scaled_rope_and_biases);
    tcase_add_test(cases, tiny_qwen3_has_norms_and_wide_heads);
    tcase_add_test(cases, tiny_gpt_oss_has_experts_sinks_and_yarn);
    tcase_add_test(cases, roles_are_the_tensors_of_their_names);
    tcase_add_test(cases, the_digest_follows_weights_and_config);
    tcase_add_test(cases, prefetch_reports_its_progress);
    tcase_add_test(cases, types_have_their_sizes);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
