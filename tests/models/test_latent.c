/* The config of a model with latent attention and grouped experts: what it says, which tensors its
 * layers have, and what is refused. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_model.h"
#include "support.h"

enum { CONFIG_MAX = 4096 };

static const char fixture[] = "tiny-deepseek";
static char *folder;
static char error[FILE_ERROR_SIZE_BYTES];

static void
set_up(void)
{
    folder = support_temp_folder();
}

static void
tear_down(void)
{
    support_remove_folder(folder);
}

static char *
read_fixture(const char *name, size_t *size_bytes)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", fixture, name);
    FILE *file = fopen(support_fixture(path), "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *size_bytes = (size_t)ftell(file);
    rewind(file);
    char *data = calloc(1, *size_bytes + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_uint_eq(fread(data, 1, *size_bytes, file), *size_bytes);
    (void)fclose(file);
    return data;
}

static void
write_config(const char *from, const char *to)
{
    char changed[CONFIG_MAX];
    size_t size_bytes;
    char *config = read_fixture("config.json", &size_bytes);
    const char *at = strstr(config, from);
    ck_assert_msg(at != NULL, "'%s' is not in the config", from);
    int written = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - config), config, to,
                           at + strlen(from));
    ck_assert_int_lt(written, CONFIG_MAX);
    support_write(folder, "config.json", changed, (size_t)written);
    free(config);
}

static void
write_weights(void)
{
    size_t size_bytes;
    char *weights = read_fixture("model.safetensors", &size_bytes);
    support_write(folder, "model.safetensors", weights, size_bytes);
    free(weights);
}

static void
expect_shape(const file_model_t *model, file_role_t role, uint32_t layer, uint32_t rows,
             uint32_t cols)
{
    file_tensor_t tensor;
    ck_assert_int_eq(file_model_tensor(model, role, layer, &tensor), STATUS_OK);
    ck_assert_uint_eq(tensor.rows, rows);
    ck_assert_uint_eq(tensor.cols, cols);
}

static void
expect_none(const file_model_t *model, file_role_t role, uint32_t layer)
{
    file_tensor_t tensor;
    ck_assert_int_eq(file_model_tensor(model, role, layer, &tensor), STATUS_ERR_NOT_FOUND);
}

START_TEST(the_config_is_understood)
{
    file_model_t *model = NULL;
    proto_status_t status = file_model_open(support_fixture(fixture), error, sizeof error, &model);
    ck_assert_msg(status == STATUS_OK, "%s", error);
    const file_config_t *c = file_model_config(model);
    ck_assert_int_eq(c->arch, FILE_ARCH_DEEPSEEK_V3);
    ck_assert_str_eq(file_arch_name(c->arch), "deepseek_v3");
    ck_assert_uint_eq(c->latent_dim, 64);
    ck_assert_uint_eq(c->q_latent_dim, 96);
    ck_assert_uint_eq(c->nope_dim, 16);
    ck_assert_uint_eq(c->rope_dim, 32);
    ck_assert_uint_eq(c->head_dim, 48);
    ck_assert_uint_eq(c->v_head_dim, 24);
    ck_assert_uint_eq(c->kv_head_count, 1);
    ck_assert_int_eq(c->rope_style, FILE_ROPE_INTERLEAVED);
    ck_assert_int_eq(c->rope_scaling, FILE_ROPE_SCALING_YARN);
    double mscale = 0.1 * 0.8 * log(8.0) + 1.0;
    ck_assert_double_eq_tol(c->query_scale, mscale * mscale / sqrt(48.0), 1e-12);
    ck_assert_double_eq_tol(c->rope_attention_factor, (0.1 * log(8.0) + 1.0) / mscale, 1e-12);
    ck_assert_uint_eq(c->expert_count, 8);
    ck_assert_uint_eq(c->expert_used_count, 2);
    ck_assert_uint_eq(c->expert_ffn_size, 32);
    ck_assert_uint_eq(c->shared_ffn_size, 32);
    ck_assert_uint_eq(c->ffn_size, 96);
    ck_assert_uint_eq(c->dense_layer_count, 1);
    ck_assert_uint_eq(c->expert_group_count, 2);
    ck_assert_uint_eq(c->expert_group_used_count, 1);
    ck_assert_double_eq(c->expert_scale, 2.5);
    ck_assert(c->has_sigmoid_router && c->has_normed_weights && c->has_apart_experts);
    ck_assert_int_eq(c->linear_dtype, FILE_DTYPE_F32);
    file_model_close(&model);
}
END_TEST

START_TEST(layers_have_the_tensors_of_their_kind)
{
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(support_fixture(fixture), error, sizeof error, &model),
                     STATUS_OK);
    for (uint32_t layer = 0; layer < 3; layer++) {
        expect_shape(model, FILE_ROLE_ATTN_Q_A, layer, 96, 64);
        expect_shape(model, FILE_ROLE_ATTN_Q_A_NORM, layer, 1, 96);
        expect_shape(model, FILE_ROLE_ATTN_Q_B, layer, 8 * 48, 96);
        expect_shape(model, FILE_ROLE_ATTN_KV_A, layer, 96, 64);
        expect_shape(model, FILE_ROLE_ATTN_KV_A_NORM, layer, 1, 64);
        expect_shape(model, FILE_ROLE_ATTN_KV_B, layer, 8 * 40, 64);
        expect_shape(model, FILE_ROLE_ATTN_O, layer, 64, 8 * 24);
        expect_none(model, FILE_ROLE_ATTN_Q, layer);
        expect_none(model, FILE_ROLE_ATTN_K, layer);
        expect_none(model, FILE_ROLE_ROUTER_BIAS, layer);
        expect_none(model, FILE_ROLE_EXPERT_DOWN, layer);
    }
    expect_shape(model, FILE_ROLE_FFN_GATE, 0, 96, 64);
    expect_none(model, FILE_ROLE_ROUTER, 0);
    expect_none(model, FILE_ROLE_SHARED_UP, 0);
    expect_none(model, FILE_ROLE_FFN_GATE, 1);
    expect_shape(model, FILE_ROLE_ROUTER, 1, 8, 64);
    expect_shape(model, FILE_ROLE_ROUTER_SELECT_BIAS, 2, 1, 8);
    expect_shape(model, FILE_ROLE_SHARED_UP, 2, 32, 64);
    expect_shape(model, FILE_ROLE_SHARED_DOWN, 2, 64, 32);
    file_tensor_t expert;
    ck_assert_int_eq(file_model_expert(model, FILE_ROLE_EXPERT_GATE, 0, 0, &expert),
                     STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_model_expert(model, FILE_ROLE_ATTN_O, 1, 0, &expert),
                     STATUS_ERR_NOT_FOUND);
    const void *before = NULL;
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_int_eq(file_model_expert(model, FILE_ROLE_EXPERT_GATE, 2, i, &expert), STATUS_OK);
        ck_assert_uint_eq(expert.rows, 32);
        ck_assert_uint_eq(expert.cols, 64);
        ck_assert_ptr_ne(expert.data, before);
        before = expert.data;
        ck_assert_int_eq(file_model_expert(model, FILE_ROLE_EXPERT_DOWN, 2, i, &expert), STATUS_OK);
        ck_assert_uint_eq(expert.rows, 64);
        ck_assert_uint_eq(expert.cols, 32);
    }
    file_model_close(&model);
}
END_TEST

START_TEST(a_config_that_cannot_be_run_is_refused)
{
    static const struct {
        const char *from;
        const char *to;
        proto_status_t status;
        const char *wanted;
    } cases[] = {
        {"\"n_group\": 2", "\"n_group\": 2", STATUS_OK, ""},
        {"\"rope_interleave\": true", "\"rope_interleave\": false", STATUS_OK, ""},
        {"\"kv_lora_rank\": 64", "\"kv_lora_rank\": 72", STATUS_ERR_UNSUPPORTED,
         "kv_lora_rank is 72"},
        {"\"kv_lora_rank\": 64", "\"kv_lora_rank\": 0", STATUS_ERR_MALFORMED, "kv_lora_rank is 0"},
        {"\"kv_lora_rank\": 64", "\"kv_lora_rank\": 4294967295", STATUS_ERR_MALFORMED,
         "kv_lora_rank is 4294967295"},
        {"\"kv_lora_rank\": 64", "\"kv_lora_rank\": 1024", STATUS_ERR_UNSUPPORTED,
         "kv_lora_rank 1024"},
        {"\"kv_lora_rank\": 64", "\"kv_lora_rank\": 80", STATUS_ERR_MALFORMED,
         "the config needs shape"},
        {"\"q_lora_rank\": 96", "\"q_lora_rank\": 4000000000", STATUS_ERR_MALFORMED,
         "q_lora_rank is 4000000000"},
        {"\"q_lora_rank\": 96", "\"q_lora_rank\": null", STATUS_ERR_MALFORMED,
         "self_attn.q_proj.weight"},
        {"\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 0", STATUS_ERR_MALFORMED,
         "qk_nope_head_dim is 0"},
        {"\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 4294967280", STATUS_ERR_MALFORMED,
         "qk_nope_head_dim is 4294967280"},
        {"\"qk_rope_head_dim\": 32", "\"qk_rope_head_dim\": 31", STATUS_ERR_MALFORMED,
         "rope dimension 31"},
        {"\"qk_rope_head_dim\": 32", "\"qk_rope_head_dim\": 0", STATUS_ERR_MALFORMED,
         "qk_rope_head_dim is 0"},
        {"\"v_head_dim\": 24", "\"v_head_dim\": 1025", STATUS_ERR_MALFORMED, "v_head_dim is 1025"},
        {"\"v_head_dim\": 24", "\"v_head_dim\": -1", STATUS_ERR_MALFORMED, "v_head_dim"},
        {"\"n_group\": 2", "\"n_group\": 3", STATUS_ERR_MALFORMED, "8 experts do not form 3"},
        {"\"n_group\": 2", "\"n_group\": 8", STATUS_ERR_MALFORMED, "8 experts do not form 8"},
        {"\"n_group\": 2", "\"n_group\": 0", STATUS_ERR_MALFORMED, "n_group is 0"},
        {"\"n_group\": 2", "\"n_group\": 1000000", STATUS_ERR_MALFORMED, "n_group is 1000000"},
        {"\"topk_group\": 1", "\"topk_group\": 3", STATUS_ERR_MALFORMED, "topk_group is 3"},
        {"\"topk_group\": 1", "\"topk_group\": 0", STATUS_ERR_MALFORMED, "topk_group is 0"},
        {"\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5", STATUS_ERR_MALFORMED,
         "5 experts of a token"},
        {"\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 0", STATUS_ERR_MALFORMED,
         "experts of a token is 0"},
        {"\"n_routed_experts\": 8", "\"n_routed_experts\": 0", STATUS_ERR_MALFORMED,
         "n_routed_experts"},
        {"\"n_routed_experts\": 8", "\"n_routed_experts\": 2000", STATUS_ERR_MALFORMED,
         "n_routed_experts is 2000"},
        {"\"n_routed_experts\": 8", "\"n_routed_experts\": 10", STATUS_ERR_MALFORMED,
         "the config needs shape"},
        {"\"n_routed_experts\": 8", "\"n_routed_experts\": 4", STATUS_ERR_MALFORMED,
         "the config needs shape"},
        {"\"n_shared_experts\": 1", "\"n_shared_experts\": 0", STATUS_ERR_MALFORMED,
         "shared experts is 0"},
        {"\"n_shared_experts\": 1", "\"n_shared_experts\": 4294967295", STATUS_ERR_MALFORMED,
         "shared experts is 4294967295"},
        {"\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 99999999",
         STATUS_ERR_MALFORMED, "99999999"},
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 4", STATUS_ERR_MALFORMED,
         "first_k_dense_replace is 4"},
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 0", STATUS_ERR_MALFORMED,
         "model.layers.0.mlp"},
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2", STATUS_ERR_MALFORMED,
         "model.layers.1.mlp"},
        {"\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 0", STATUS_ERR_MALFORMED,
         "routed_scaling_factor is 0"},
        {"\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": -1.5", STATUS_ERR_MALFORMED,
         "routed_scaling_factor is -1.5"},
        {"\"routed_scaling_factor\": 2.5",
         "\"routed_scaling_factor\": 2.5, \"topk_method\": "
         "\"greedy\"",
         STATUS_ERR_UNSUPPORTED, "topk_method"},
        {"\"routed_scaling_factor\": 2.5",
         "\"routed_scaling_factor\": 2.5, \"scoring_func\": "
         "\"softmax\"",
         STATUS_ERR_UNSUPPORTED, "scoring_func"},
        {"\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 2.5, \"moe_layer_freq\": 2",
         STATUS_ERR_UNSUPPORTED, "moe_layer_freq"},
        {"\"mscale_all_dim\": 0.8", "\"mscale_all_dim\": 1e200", STATUS_ERR_MALFORMED,
         "mscale_all_dim"},
        {"\"attention_bias\": false", "\"attention_bias\": true", STATUS_ERR_UNSUPPORTED,
         "attention_bias"},
        {"\"num_key_value_heads\": 8", "\"num_key_value_heads\": 4", STATUS_ERR_UNSUPPORTED,
         "num_key_value_heads"},
        {"\"use_cache\": true", "\"partial_rotary_factor\": 0.5", STATUS_ERR_UNSUPPORTED,
         "partial_rotary_factor"},
        {"\"use_cache\": true",
         "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}",
         STATUS_ERR_UNSUPPORTED, "weight_scale_inv"},
        {"\"use_cache\": true", "\"quantization_config\": {\"quant_method\": \"awq\"}",
         STATUS_ERR_UNSUPPORTED, "quantization_config"},
        {"\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1000",
         STATUS_ERR_MALFORMED, "num_nextn_predict_layers is 1000"},
        {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2", STATUS_ERR_UNSUPPORTED,
         "model.layers.2."},
        {"\"DeepseekV3ForCausalLM\"", "\"DeepseekV2ForCausalLM\"", STATUS_ERR_UNSUPPORTED,
         "DeepseekV3ForCausalLM"},
    };
    write_weights();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        file_model_t *model = NULL;
        write_config(cases[i].from, cases[i].to);
        proto_status_t status = file_model_open(folder, error, sizeof error, &model);
        ck_assert_msg(status == cases[i].status, "case %zu, '%s': %s: %s", i, cases[i].to,
                      proto_status_name(status), error);
        ck_assert_msg(strstr(error, cases[i].wanted) != NULL, "'%s' lacks '%s'", error,
                      cases[i].wanted);
        file_model_close(&model);
    }
}
END_TEST

/* Layers for drafting stand behind the last one; the config says how many. */
START_TEST(layers_for_drafting_are_left_out)
{
    write_weights();
    char changed[CONFIG_MAX];
    size_t size_bytes;
    char *config = read_fixture("config.json", &size_bytes);
    char *layers = strstr(config, "\"num_hidden_layers\": 3");
    char *drafts = strstr(config, "\"num_nextn_predict_layers\": 0");
    ck_assert(layers != NULL && drafts != NULL);
    layers[strlen("\"num_hidden_layers\": ")] = '2';
    drafts[strlen("\"num_nextn_predict_layers\": ")] = '1';
    (void)snprintf(changed, sizeof changed, "%s", config);
    support_write(folder, "config.json", changed, strlen(changed));
    file_model_t *model = NULL;
    proto_status_t status = file_model_open(folder, error, sizeof error, &model);
    ck_assert_msg(status == STATUS_OK, "%s", error);
    ck_assert_uint_eq(file_model_config(model)->layer_count, 2);
    file_model_close(&model);
    free(config);
}
END_TEST

/* The published spelling: "rope_scaling" with "type" beside "rope_theta". */
START_TEST(both_spellings_of_yarn_agree)
{
    write_weights();
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(support_fixture(fixture), error, sizeof error, &model),
                     STATUS_OK);
    file_config_t wanted = *file_model_config(model);
    file_model_close(&model);
    char changed[CONFIG_MAX];
    size_t size_bytes;
    char *config = read_fixture("config.json", &size_bytes);
    char *rope = strstr(config, "\"rope_parameters\"");
    ck_assert_ptr_nonnull(rope);
    char *end = strchr(rope, '}');
    ck_assert_ptr_nonnull(end);
    (void)snprintf(changed, sizeof changed,
                   "%.*s\"rope_theta\": 500, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 8, "
                   "\"beta_fast\": 4, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 0.8, "
                   "\"original_max_position_embeddings\": 64}%s",
                   (int)(rope - config), config, end + 1);
    support_write(folder, "config.json", changed, strlen(changed));
    proto_status_t status = file_model_open(folder, error, sizeof error, &model);
    ck_assert_msg(status == STATUS_OK, "%s", error);
    const file_config_t *c = file_model_config(model);
    ck_assert_mem_eq(c->digest, wanted.digest, sizeof c->digest);
    ck_assert_double_eq(c->query_scale, wanted.query_scale);
    file_model_close(&model);
    free(config);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.latent");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, the_config_is_understood);
    tcase_add_test(cases, layers_have_the_tensors_of_their_kind);
    tcase_add_test(cases, a_config_that_cannot_be_run_is_refused);
    tcase_add_test(cases, layers_for_drafting_are_left_out);
    tcase_add_test(cases, both_spellings_of_yarn_agree);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
