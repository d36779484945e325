/* The config of a hybrid of recurrent and attention layers: what it says, what is refused, and the
 * same text model within a larger one. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_model.h"
#include "support.h"

enum { CONFIG_MAX = 4096 };

static const char *fixture = "tiny-qwen35";
static char *folder;
static char error[FILE_ERROR_SIZE_BYTES];

typedef struct {
    char *data; /* a zero behind it */
    size_t size_bytes;
} bytes_t;

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

static bytes_t
read_fixture(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", fixture, name);
    FILE *file = fopen(support_fixture(path), "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    bytes_t bytes = {.size_bytes = (size_t)ftell(file)};
    rewind(file);
    bytes.data = calloc(1, bytes.size_bytes + 1);
    ck_assert_ptr_nonnull(bytes.data);
    ck_assert_uint_eq(fread(bytes.data, 1, bytes.size_bytes, file), bytes.size_bytes);
    (void)fclose(file);
    return bytes;
}

static void
write_config(const char *from, const char *to)
{
    char changed[CONFIG_MAX];
    bytes_t config = read_fixture("config.json");
    const char *at = strstr(config.data, from);
    ck_assert_msg(at != NULL, "'%s' is not in the config", from);
    int written = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - config.data),
                           config.data, to, at + strlen(from));
    ck_assert_int_lt(written, CONFIG_MAX);
    support_write(folder, "config.json", changed, (size_t)written);
    free(config.data);
}

/* The text from the layers' kinds to the last size of recurrent layers is replaced. */
static void
write_layers(const char *to)
{
    char changed[CONFIG_MAX];
    bytes_t config = read_fixture("config.json");
    const char *first = strstr(config.data, "\"layer_types\"");
    const char *end = strstr(config.data, "\"max_position_embeddings\"");
    ck_assert(first != NULL && end != NULL && first < end);
    int written = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(first - config.data),
                           config.data, to, end);
    ck_assert_int_lt(written, CONFIG_MAX);
    support_write(folder, "config.json", changed, (size_t)written);
    free(config.data);
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
check_model(const file_model_t *model)
{
    const file_config_t *config = file_model_config(model);
    ck_assert_int_eq(config->arch, FILE_ARCH_QWEN35);
    ck_assert_str_eq(file_arch_name(config->arch), "qwen3.5");
    ck_assert(config->has_attn_gate && config->has_offset_norms && config->has_qk_norm);
    ck_assert(!config->tied_embeddings);
    ck_assert_uint_eq(config->rope_dim, 8);
    ck_assert_int_eq(config->eos_id, 319);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(config->layer_kinds[i], i == 3 ? FILE_LAYER_FULL : FILE_LAYER_LINEAR);
    }
    ck_assert_uint_eq(file_config_linear_channels(config), 320);
    expect_shape(model, FILE_ROLE_LINEAR_QKV, 0, 320, 64);
    expect_shape(model, FILE_ROLE_LINEAR_Z, 1, 192, 64);
    expect_shape(model, FILE_ROLE_LINEAR_A, 2, 4, 64);
    expect_shape(model, FILE_ROLE_LINEAR_B, 2, 4, 64);
    expect_shape(model, FILE_ROLE_LINEAR_CONV, 0, 320, 4);
    expect_shape(model, FILE_ROLE_LINEAR_DT_BIAS, 0, 1, 4);
    expect_shape(model, FILE_ROLE_LINEAR_A_LOG, 0, 1, 4);
    expect_shape(model, FILE_ROLE_LINEAR_NORM, 0, 1, 48);
    expect_shape(model, FILE_ROLE_LINEAR_OUT, 0, 64, 192);
    expect_shape(model, FILE_ROLE_ATTN_Q, 3, 256, 64);
    expect_shape(model, FILE_ROLE_ATTN_O, 3, 64, 128);
    file_tensor_t none;
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_ATTN_Q, 0, &none), STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_ATTN_Q_NORM, 0, &none),
                     STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_LINEAR_QKV, 3, &none),
                     STATUS_ERR_NOT_FOUND);
}

START_TEST(layers_have_the_tensors_of_their_kind)
{
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(support_fixture(fixture), error, sizeof error, &model),
                     STATUS_OK);
    check_model(model);
    file_model_close(&model);
}
END_TEST

/* What a text model lacks in the larger one is named there; what is not text is not run. */
static void
write_nested_weights(const char *extra_name)
{
    bytes_t file = read_fixture("model.safetensors");
    uint64_t header_bytes = 0;
    memcpy(&header_bytes, file.data, 8);
    json_t *header = json_loadb(file.data + 8, header_bytes, 0, NULL);
    ck_assert_ptr_nonnull(header);
    json_t *nested = json_object();
    const char *key;
    json_t *value;
    json_object_foreach(header, key, value)
    {
        char name[128];
        bool is_inner = strncmp(key, "model.", 6) == 0;
        (void)snprintf(name, sizeof name, "%s%s", is_inner ? "model.language_model." : "",
                       is_inner ? key + 6 : key);
        json_object_set(nested, name, value);
    }
    size_t data_bytes = file.size_bytes - 8 - header_bytes;
    json_object_set_new(nested, extra_name,
                        json_pack("{s:s, s:[i], s:[I,I]}", "dtype", "F32", "shape", 4,
                                  "data_offsets", (json_int_t)data_bytes,
                                  (json_int_t)data_bytes + 16));
    char *text = json_dumps(nested, JSON_COMPACT);
    uint64_t text_bytes = (strlen(text) + 7) / 8 * 8;
    size_t size_bytes = 8 + text_bytes + data_bytes + 16;
    char *out = calloc(1, size_bytes);
    ck_assert_ptr_nonnull(out);
    memset(out, ' ', 8 + text_bytes);
    memcpy(out, &text_bytes, 8);
    memcpy(out + 8, text, strlen(text));
    memcpy(out + 8 + text_bytes, file.data + 8 + header_bytes, data_bytes);
    support_write(folder, "model.safetensors", out, size_bytes);
    free(out);
    free(text);
    json_decref(nested);
    json_decref(header);
    free(file.data);
}

static void
write_nested_config(void)
{
    bytes_t config = read_fixture("config.json");
    json_t *text = json_loadb(config.data, config.size_bytes, 0, NULL);
    json_t *root =
        json_pack("{s:[s], s:b, s:O}", "architectures", "Qwen3_5ForConditionalGeneration",
                  "tie_word_embeddings", 0, "text_config", text);
    char *written = json_dumps(root, 0);
    support_write(folder, "config.json", written, strlen(written));
    free(written);
    json_decref(root);
    json_decref(text);
    free(config.data);
}

START_TEST(a_text_model_within_a_larger_one_is_the_same)
{
    static const char *const extras[] = {"model.visual.blocks.0.weight", "mtp.norm.weight"};
    for (size_t i = 0; i < 2; i++) {
        write_nested_config();
        write_nested_weights(extras[i]);
        file_model_t *model = NULL;
        proto_status_t status = file_model_open(folder, error, sizeof error, &model);
        ck_assert_msg(status == STATUS_OK, "%s", error);
        check_model(model);
        file_model_close(&model);
    }
}
END_TEST

/* Only what is known not to be text may be left out. */
START_TEST(a_tensor_that_nobody_knows_is_refused)
{
    file_model_t *model = NULL;
    write_nested_config();
    write_nested_weights("model.language_model.layers.0.linear_attn.other");
    ck_assert_int_eq(file_model_open(folder, error, sizeof error, &model), STATUS_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error, "linear_attn.other"));
    write_nested_weights("mtp.norm.weight");
    write_config("\"Qwen3_5ForCausalLM\"", "\"Qwen3_5ForConditionalGeneration\"");
    ck_assert_int_eq(file_model_open(folder, error, sizeof error, &model), STATUS_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(error, "text_config"));
}
END_TEST

START_TEST(experts_beside_recurrent_layers_have_their_tensors)
{
    file_model_t *model = NULL;
    proto_status_t status =
        file_model_open(support_fixture("tiny-qwen35-moe"), error, sizeof error, &model);
    ck_assert_msg(status == STATUS_OK, "%s", error);
    const file_config_t *config = file_model_config(model);
    ck_assert_uint_eq(config->expert_count, 6);
    ck_assert_uint_eq(config->expert_used_count, 2);
    ck_assert_uint_eq(config->expert_ffn_size, 16);
    ck_assert_uint_eq(config->shared_ffn_size, 48);
    ck_assert(config->has_shared_scale && config->tied_embeddings && !config->has_router_bias);
    expect_shape(model, FILE_ROLE_ROUTER, 0, 6, 64);
    expect_shape(model, FILE_ROLE_SHARED_GATE, 1, 48, 64);
    expect_shape(model, FILE_ROLE_SHARED_DOWN, 3, 64, 48);
    expect_shape(model, FILE_ROLE_SHARED_SCALE, 3, 1, 64);
    file_tensor_t tensor;
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_FFN_GATE, 0, &tensor),
                     STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_model_expert(model, FILE_ROLE_EXPERT_DOWN, 2, 5, &tensor), STATUS_OK);
    ck_assert_uint_eq(tensor.rows, 64);
    ck_assert_uint_eq(tensor.cols, 16);
    file_model_close(&model);
}
END_TEST

START_TEST(a_hybrid_that_cannot_be_run_is_refused)
{
    static const struct {
        const char *from;
        const char *to;
        proto_status_t status;
        const char *wanted;
    } cases[] = {
        {"\"Qwen3_5ForCausalLM\"", "\"Qwen3_5ForCausalLM\"", STATUS_OK, ""},
        {"\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 0", STATUS_ERR_MALFORMED,
         "linear key head count is 0"},
        {"\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 3", STATUS_ERR_MALFORMED,
         "4 linear value heads cannot share 3"},
        {"\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 4000000000",
         STATUS_ERR_MALFORMED, "linear value head count is 4000000000"},
        {"\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": -4", STATUS_ERR_MALFORMED,
         "linear_num_value_heads"},
        {"\"linear_key_head_dim\": 32", "\"linear_key_head_dim\": 1000000", STATUS_ERR_MALFORMED,
         "linear key head size is 1000000"},
        {"\"linear_key_head_dim\": 32", "\"linear_key_head_dim\": 48", STATUS_ERR_MALFORMED,
         "the config needs shape [384, 64]"},
        {"\"linear_value_head_dim\": 48", "\"linear_value_head_dim\": 257", STATUS_ERR_MALFORMED,
         "linear value head size is 257"},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 1", STATUS_ERR_MALFORMED,
         "convolution width is 1"},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 9", STATUS_ERR_MALFORMED,
         "convolution width is 9"},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 3", STATUS_ERR_MALFORMED,
         "the config needs shape [320, 1, 3]"},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": \"4\"", STATUS_ERR_MALFORMED,
         "linear_conv_kernel_dim"},
        {"\"full_attention\"", "\"linear_attention\"", STATUS_ERR_MALFORMED, "full layers"},
        {"\"full_attention\"", "\"sliding_attention\"", STATUS_ERR_UNSUPPORTED,
         "full_attention and linear_attention"},
        {"\"linear_attention\",", "", STATUS_ERR_MALFORMED, "must name every layer"},
        {"\"layer_types\"", "\"full_attention_interval\": 2, \"x\"", STATUS_ERR_MALFORMED,
         "model.layers.1.self_attn"},
        {"\"layer_types\"", "\"full_attention_interval\": 0, \"x\"", STATUS_ERR_MALFORMED,
         "full layers"},
        {"\"layer_types\"", "\"full_attention_interval\": 4, \"x\"", STATUS_OK, ""},
        {"\"layer_types\"", "\"x\"", STATUS_OK, ""},
        {"\"attention_bias\": false", "\"attention_bias\": true", STATUS_ERR_UNSUPPORTED,
         "attention_bias"},
        {"\"attention_bias\": false", "\"attn_output_gate\": false", STATUS_ERR_UNSUPPORTED,
         "attn_output_gate"},
        {"\"silu\"", "\"gelu\"", STATUS_ERR_UNSUPPORTED, "hidden_act"},
        {"\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0", STATUS_ERR_MALFORMED,
         "partial_rotary_factor"},
        {"\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.04", STATUS_ERR_MALFORMED,
         "rope dimension"},
        {"\"head_dim\": 32", "\"head_dim\": 16", STATUS_ERR_MALFORMED, "the config needs shape"},
    };
    bytes_t weights = read_fixture("model.safetensors");
    support_write(folder, "model.safetensors", weights.data, weights.size_bytes);
    free(weights.data);
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

/* Workspaces are summed from these numbers, whatever kinds of layers there are. */
START_TEST(sizes_of_recurrent_layers_are_bounded_without_any)
{
    static const struct {
        const char *to;
        const char *wanted;
    } cases[] = {
        {"", "model.layers.0.self_attn"}, /* fine but for the tensors, which are not these */
        {"\"linear_num_key_heads\": 0,", "linear key head count is 0"},
        {"\"linear_num_key_heads\": 4294967295,", "linear key head count is 4294967295"},
        {"\"linear_key_head_dim\": 2147483648,", "linear key head size is 2147483648"},
        {"\"linear_num_value_heads\": 65536, \"linear_value_head_dim\": 65536,",
         "linear value head count is 65536"},
        {"\"linear_value_head_dim\": 4294967295,", "linear value head size is 4294967295"},
        {"\"linear_conv_kernel_dim\": 4294967295,", "convolution width is 4294967295"},
    };
    bytes_t weights = read_fixture("model.safetensors");
    support_write(folder, "model.safetensors", weights.data, weights.size_bytes);
    free(weights.data);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        file_model_t *model = NULL;
        (void)snprintf(text, sizeof text, "\"full_attention_interval\": 1, %s", cases[i].to);
        write_layers(text);
        ck_assert_int_eq(file_model_open(folder, error, sizeof error, &model),
                         STATUS_ERR_MALFORMED);
        ck_assert_msg(strstr(error, cases[i].wanted) != NULL, "'%s' lacks '%s'", error,
                      cases[i].wanted);
    }
}
END_TEST

START_TEST(the_shared_expert_is_bounded)
{
    static const char *const sizes[] = {"1048577", "4294967295"};
    fixture = "tiny-qwen35-moe";
    bytes_t weights = read_fixture("model.safetensors");
    support_write(folder, "model.safetensors", weights.data, weights.size_bytes);
    free(weights.data);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char to[128];
        char wanted[128];
        file_model_t *model = NULL;
        (void)snprintf(to, sizeof to, "\"shared_expert_intermediate_size\": %s", sizes[i]);
        (void)snprintf(wanted, sizeof wanted, "width of the shared experts is %s", sizes[i]);
        write_config("\"shared_expert_intermediate_size\": 48", to);
        ck_assert_int_eq(file_model_open(folder, error, sizeof error, &model),
                         STATUS_ERR_MALFORMED);
        ck_assert_msg(strstr(error, wanted) != NULL, "'%s' lacks '%s'", error, wanted);
    }
    fixture = "tiny-qwen35";
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.hybrid");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, layers_have_the_tensors_of_their_kind);
    tcase_add_test(cases, a_text_model_within_a_larger_one_is_the_same);
    tcase_add_test(cases, a_tensor_that_nobody_knows_is_refused);
    tcase_add_test(cases, experts_beside_recurrent_layers_have_their_tensors);
    tcase_add_test(cases, a_hybrid_that_cannot_be_run_is_refused);
    tcase_add_test(cases, sizes_of_recurrent_layers_are_bounded_without_any);
    tcase_add_test(cases, the_shared_expert_is_bounded);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
