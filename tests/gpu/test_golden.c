/* Forward code against the reference implementation's logits, in float32: prefill, chunked prefill
 * and decode; and mutants that must fail the same bound. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_model.h"
#include "gpu_driver.h"

enum { PROMPTS_MAX = 16, VOCABULARY_MAX = 512, LENGTH_MAX = 160, STEP_TOKENS = 160 };

/* What rounding may do: to float32 on the host; on a GPU weights and operands are bfloat16. */
static double
bound_of(void)
{
    return driver_device_is_cuda() ? 3e-2 : 1e-5;
}

/* What a wrong model must miss it by. */
static double
mutant_bound_of(void)
{
    return driver_device_is_cuda() ? 1.5e-1 : 1e-2;
}

/* A GPU has no kernels yet of experts, latent attention and recurrent layers: it refuses these. */
static bool
is_left_out(const char *fixture)
{
    return driver_device_is_cuda() && strcmp(fixture, "tiny-llama") != 0 &&
           strcmp(fixture, "tiny-qwen3") != 0 && strcmp(fixture, "tiny-gemma3") != 0;
}

typedef struct {
    uint32_t count;
    uint32_t vocabulary;
    uint32_t lengths[PROMPTS_MAX];
    int32_t tokens[PROMPTS_MAX][LENGTH_MAX];
    float *logits[PROMPTS_MAX]; /* [length][vocabulary] */
} reference_t;

static void
read_exactly(FILE *file, void *out, size_t size_bytes)
{
    ck_assert_uint_eq(fread(out, 1, size_bytes, file), size_bytes);
}

static void
reference_read_file(reference_t *self, const char *fixture, const char *name)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", driver_fixture(fixture), name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    char magic[4];
    uint32_t version;
    read_exactly(file, magic, 4);
    ck_assert_mem_eq(magic, "OPRL", 4);
    read_exactly(file, &version, 4);
    read_exactly(file, &self->count, 4);
    read_exactly(file, &self->vocabulary, 4);
    ck_assert_uint_le(self->count, PROMPTS_MAX);
    ck_assert_uint_le(self->vocabulary, VOCABULARY_MAX);
    for (uint32_t i = 0; i < self->count; i++) {
        read_exactly(file, &self->lengths[i], 4);
        ck_assert_uint_le(self->lengths[i], LENGTH_MAX);
        read_exactly(file, self->tokens[i], self->lengths[i] * sizeof(int32_t));
        size_t size_bytes = (size_t)self->lengths[i] * self->vocabulary * sizeof(float);
        self->logits[i] = malloc(size_bytes);
        read_exactly(file, self->logits[i], size_bytes);
    }
    (void)fclose(file);
}

static void
reference_read(reference_t *self, const char *fixture)
{
    reference_read_file(self, fixture, "reference.bin");
}

static void
reference_free(reference_t *self)
{
    for (uint32_t i = 0; i < self->count; i++) {
        free(self->logits[i]);
    }
}

/* Square sums of the difference and of the reference. */
typedef struct {
    double difference;
    double reference;
} distance_t;

static void
add_row(distance_t *self, const float *got, const float *wanted, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        double d = (double)got[i] - (double)wanted[i];
        self->difference += d * d;
        self->reference += (double)wanted[i] * (double)wanted[i];
    }
}

static double
distance_of(const distance_t *self)
{
    return sqrt(self->difference / self->reference);
}

/* States have blocks on a grid of 64 tokens; prompts then are cut there and nowhere else. */
static bool
has_states(const char *fixture)
{
    return strncmp(fixture, "tiny-qwen35", strlen("tiny-qwen35")) == 0;
}

static void
open_model(driver_t *driver, const char *path, bool with_states)
{
    run_executor_options_t options = {
        .model_path = path,
        .slot_count = 4,
        .model_len_max = 256,
        .step_tokens_max = STEP_TOKENS,
        .block_granularity = with_states ? 64 : 16,
        .cache_size_bytes = with_states ? 32 << 20 : 0, /* a state for each column of each slot */
        .graph_debug = true,
    };
    driver_open(driver, &options);
}

/* Chunks are many steps; no divisor of a chunk, so that last chunks of every length are there. */
enum { CHUNKED_EVERY = 3 };

/* Every position: prompt prefixes as one extend each, cut into chunks.  `every` over 1: only the
 * whole prompt and each prefix that is `every` tokens shorter. */
static double
prefill_distance_of(driver_t *driver, const reference_t *reference, uint32_t chunk, uint32_t every)
{
    static float row[VOCABULARY_MAX];
    distance_t distance = {0};
    for (uint32_t i = 0; i < reference->count; i++) {
        uint32_t first = (reference->lengths[i] - 1) % every + 1;
        for (uint32_t length = first; length <= reference->lengths[i]; length += every) {
            driver_setup(driver, 1, reference->tokens[i], length, NULL);
            (void)driver_prefill(driver, 1, reference->tokens[i], length, chunk);
            driver_logits(driver, row, VOCABULARY_MAX, 1);
            add_row(&distance, row,
                    reference->logits[i] + (size_t)(length - 1) * reference->vocabulary,
                    reference->vocabulary);
        }
    }
    return distance_of(&distance);
}

static double
prefill_distance(driver_t *driver, const reference_t *reference, uint32_t chunk)
{
    return prefill_distance_of(driver, reference, chunk, 1);
}

/* Each prompt after its first token by decode steps, which are made to take the prompt's tokens by
 * a bias: raw logits do not see it. */
static double
decode_distance(driver_t *driver, const reference_t *reference)
{
    static float row[VOCABULARY_MAX];
    distance_t distance = {0};
    for (uint32_t i = 0; i < reference->count; i++) {
        for (uint32_t at = 0; at < reference->lengths[i]; at++) {
            bool has_next = at + 1 < reference->lengths[i];
            int32_t next = has_next ? reference->tokens[i][at + 1] : 0;
            float push = 1e6f;
            proto_sampling_t sampling = {
                .ignore_eos = true,
                .bias_ids = {(const uint8_t *)&next, sizeof next},
                .bias_values = {(const uint8_t *)&push, sizeof push},
            };
            bool was_patched = driver->is_patched[1];
            driver_setup(driver, 1, reference->tokens[i], at + 1, &sampling);
            int32_t token;
            if (at == 0) {
                token = driver_prefill(driver, 1, reference->tokens[i], 1, 1);
            } else {
                /* The setup emptied the table, so this step brings it again. */
                ck_assert(was_patched);
                uint32_t slot = 1;
                static driver_patches_t patches;
                patches.count = 0;
                patches.block_count = 0;
                driver_patch_slot(driver, slot, &patches);
                proto_step_launch_t launch = {
                    .step = ++driver->step,
                    .width = 1,
                    .decode_slots = {&slot, 1},
                };
                driver_patch_launch(&patches, &launch);
                ck_assert_int_eq(run_executor_launch(driver->executor, &launch), STATUS_OK);
                driver_result_t result;
                driver_collect(driver, &result);
                ck_assert_int_eq(result.mode, PROTO_STEP_DECODE_GRAPH);
                token = result.tokens[0];
                driver->is_patched[1] = true;
            }
            if (has_next) {
                ck_assert_int_eq(token, next);
            }
            driver_logits(driver, row, VOCABULARY_MAX, 1);
            add_row(&distance, row, reference->logits[i] + (size_t)at * reference->vocabulary,
                    reference->vocabulary);
        }
    }
    return distance_of(&distance);
}

static const char *const fixtures[] = {"tiny-llama",   "tiny-qwen3",     "tiny-gemma3",
                                       "tiny-gpt-oss", "tiny-deepseek",  "tiny-deepseek-plain",
                                       "tiny-qwen35",  "tiny-qwen35-moe"};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };

/* A wrong rotation, norm, head order or mask shows in the logits long before it shows in words. */
START_TEST(logits_match_the_reference)
{
    static reference_t reference;
    driver_t driver;
    if (is_left_out(fixtures[_i])) {
        return;
    }
    reference_read(&reference, fixtures[_i]);
    char path[600];
    (void)snprintf(path, sizeof path, "%s", driver_fixture(fixtures[_i]));
    open_model(&driver, path, has_states(fixtures[_i]));
    uint32_t chunk = has_states(fixtures[_i]) ? 64 : 5;
    double whole = prefill_distance(&driver, &reference, STEP_TOKENS);
    double chunked = prefill_distance_of(&driver, &reference, chunk, CHUNKED_EVERY);
    double decoded = decode_distance(&driver, &reference);
    driver.drop_expired = true;
    double expired = prefill_distance_of(&driver, &reference, chunk, CHUNKED_EVERY);
    (void)printf("%s: prefill %.2e, chunked %.2e, decode %.2e, with holes %.2e\n", fixtures[_i],
                 whole, chunked, decoded, expired);
    ck_assert(whole <= bound_of());
    ck_assert(chunked <= bound_of());
    ck_assert(decoded <= bound_of());
    ck_assert(expired <= bound_of());
    driver_close(&driver);
    reference_free(&reference);
}
END_TEST

/* ---- mutants: a copy of the checkpoint with one thing wrong ---------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size_bytes;
} bytes_t;

static bytes_t
read_file(const char *folder, const char *name)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    bytes_t bytes = {.size_bytes = (size_t)ftell(file)};
    rewind(file);
    bytes.data = malloc(bytes.size_bytes + 1);
    read_exactly(file, bytes.data, bytes.size_bytes);
    bytes.data[bytes.size_bytes] = 0;
    (void)fclose(file);
    return bytes;
}

static void
write_file(const char *folder, const char *name, const void *data, size_t size_bytes)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size_bytes, file), size_bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* Where the bytes of the first layer's tensor lie in the safetensors file. */
static uint8_t *
find_tensor(const bytes_t *file, const file_model_t *model, file_role_t role, file_tensor_t *out)
{
    proto_status_t status = STATUS_ERR_NOT_FOUND;
    uint32_t layer_count = file_model_config(model)->layer_count;
    for (uint32_t layer = 0; status != STATUS_OK && layer < layer_count; layer++) {
        status = file_model_tensor(model, role, layer, out);
    }
    ck_assert_int_eq(status, STATUS_OK);
    uint8_t *at = memmem(file->data, file->size_bytes, out->data, out->size_bytes);
    ck_assert_ptr_nonnull(at);
    return at;
}

static void
replace_text(bytes_t *file, const char *from, const char *to)
{
    char *at = strstr((char *)file->data, from);
    ck_assert_ptr_nonnull(at);
    size_t before = (size_t)(at - (char *)file->data);
    size_t from_size = strlen(from);
    size_t to_size = strlen(to);
    size_t rest = file->size_bytes - before - from_size;
    uint8_t *changed = malloc(before + to_size + rest + 1);
    ck_assert_ptr_nonnull(changed);
    memcpy(changed, file->data, before);
    memcpy(changed + before, to, to_size);
    memcpy(changed + before + to_size, at + from_size, rest + 1);
    file->size_bytes = before + to_size + rest;
    free(file->data);
    file->data = changed;
}

/* So slow that no position matters; where two kinds of layers rotate, one is enough. */
static void
mutate_no_rope(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)weights;
    if (file_model_config(model)->rope_scaling == FILE_ROPE_SCALING_YARN) {
        /* YaRN keeps the fastest wave whatever its factor. */
        replace_text(config, "\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"");
        replace_text(config, "\"factor\": 8.0", "\"factor\": 1e30");
    } else if (file_model_config(model)->arch == FILE_ARCH_GEMMA3) {
        replace_text(config, "\"factor\": 2.0", "\"factor\": 1e30");
    } else {
        replace_text(config, "\"rope_type\": \"default\"",
                     "\"rope_type\": \"linear\", \"factor\": 1e30");
    }
}

static void
swap_bytes(uint8_t *a, uint8_t *b, size_t size_bytes)
{
    uint8_t *spare = malloc(size_bytes);
    ck_assert_ptr_nonnull(spare);
    memcpy(spare, a, size_bytes);
    memcpy(a, b, size_bytes);
    memcpy(b, spare, size_bytes);
    free(spare);
}

static void
mutate_swapped_heads(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    file_tensor_t tensor;
    const file_config_t *c = file_model_config(model);
    file_role_t role = c->q_latent_dim > 0 ? FILE_ROLE_ATTN_Q_B : FILE_ROLE_ATTN_Q;
    uint8_t *data = find_tensor(weights, model, role, &tensor);
    size_t head_bytes = (size_t)c->head_dim * tensor.cols * sizeof(float);
    uint8_t *next = data + (c->has_attn_gate ? 2 * head_bytes : head_bytes);
    swap_bytes(data, next, head_bytes);
}

static void
mutate_norm_left_out(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    file_tensor_t tensor;
    uint8_t *data = find_tensor(weights, model, FILE_ROLE_ATTN_NORM, &tensor);
    for (uint32_t i = 0; i < tensor.cols; i++) {
        float one = file_model_config(model)->has_offset_norms ? 0.0f : 1.0f;
        memcpy(data + i * sizeof one, &one, sizeof one);
    }
}

/* So low that they take no part. */
static void
mutate_no_sinks(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    file_tensor_t tensor;
    uint8_t *data = find_tensor(weights, model, FILE_ROLE_ATTN_SINKS, &tensor);
    for (uint32_t i = 0; i < tensor.cols; i++) {
        float none = -1e30f;
        memcpy(data + i * sizeof none, &none, sizeof none);
    }
}

static void
mutate_expert_order(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    file_tensor_t tensor;
    uint8_t *data = find_tensor(weights, model, FILE_ROLE_EXPERT_GATE_UP, &tensor);
    size_t expert_bytes = tensor.size_bytes / file_model_config(model)->expert_count;
    swap_bytes(data, data + expert_bytes, expert_bytes);
}

/* Every float of the first tensor of a role. */
static void
fill_tensor(bytes_t *weights, const file_model_t *model, file_role_t role, float value)
{
    file_tensor_t tensor;
    uint8_t *data = find_tensor(weights, model, role, &tensor);
    for (size_t at = 0; at < tensor.size_bytes; at += sizeof value) {
        memcpy(data + at, &value, sizeof value);
    }
}

static void
mutate_no_decay(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    fill_tensor(weights, model, FILE_ROLE_LINEAR_A_LOG, -30.0f);
}

static void
mutate_no_step_bias(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    fill_tensor(weights, model, FILE_ROLE_LINEAR_DT_BIAS, 0.0f);
}

static void
mutate_no_output_gate(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    fill_tensor(weights, model, FILE_ROLE_LINEAR_Z, 0.0f);
}

static void
mutate_no_shared_scale(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    fill_tensor(weights, model, FILE_ROLE_SHARED_SCALE, 0.0f);
}

static void
mutate_taps(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    file_tensor_t tensor;
    uint8_t *data = find_tensor(weights, model, FILE_ROLE_LINEAR_CONV, &tensor);
    for (uint32_t row = 0; row < tensor.rows; row++) {
        uint8_t *taps = data + (size_t)row * tensor.cols * sizeof(float);
        for (uint32_t i = 0; i < tensor.cols / 2; i++) {
            swap_bytes(taps + i * sizeof(float), taps + (tensor.cols - 1 - i) * sizeof(float),
                       sizeof(float));
        }
    }
}

static void
mutate_queries_for_keys(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    file_tensor_t tensor;
    const file_config_t *c = file_model_config(model);
    uint8_t *data = find_tensor(weights, model, FILE_ROLE_LINEAR_QKV, &tensor);
    size_t bytes =
        (size_t)c->linear_key_head_count * c->linear_key_head_dim * tensor.cols * sizeof(float);
    swap_bytes(data, data + bytes, bytes);
}

/* The attention factor of YaRN is not 1. */
static void
mutate_attention_factor(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)weights;
    (void)model;
    replace_text(config, "\"factor\": 8.0", "\"factor\": 8.0, \"attention_factor\": 1.0");
}

/* The choice goes by the scores alone. */
static void
mutate_no_selection_bias(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    for (uint32_t layer = 1; layer < file_model_config(model)->layer_count; layer++) {
        file_tensor_t tensor;
        ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_ROUTER_SELECT_BIAS, layer, &tensor),
                         STATUS_OK);
        uint8_t *at = memmem(weights->data, weights->size_bytes, tensor.data, tensor.size_bytes);
        ck_assert_ptr_nonnull(at);
        memset(at, 0, tensor.size_bytes);
    }
}

static void
mutate_no_groups(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)weights;
    (void)model;
    replace_text(config, "\"n_group\": 2", "\"n_group\": 1");
}

/* YaRN's part in the scale of the scores; its factor on cos and sin stays. */
static void
mutate_no_score_scale(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)weights;
    char kept[128];
    (void)snprintf(kept, sizeof kept, "\"attention_factor\": %.17g, \"mscale_all_dim\": 0.0",
                   file_model_config(model)->rope_attention_factor);
    replace_text(config, "\"mscale_all_dim\": 0.8", kept);
}

/* The cached row without its norm's weights. */
static void
mutate_latent_norm(bytes_t *config, bytes_t *weights, const file_model_t *model)
{
    (void)config;
    file_tensor_t tensor;
    uint8_t *data = find_tensor(weights, model, FILE_ROLE_ATTN_KV_A_NORM, &tensor);
    for (uint32_t i = 0; i < tensor.cols; i++) {
        float one = 1.0f;
        memcpy(data + i * sizeof one, &one, sizeof one);
    }
}

typedef void (*mutate_fn)(bytes_t *config, bytes_t *weights, const file_model_t *model);

static const struct {
    const char *name;
    mutate_fn mutate;
    const char *fixture; /* NULL = every one */
} mutants[] = {
    {"no rope", mutate_no_rope, NULL},
    {"swapped heads", mutate_swapped_heads, NULL},
    {"a norm left out", mutate_norm_left_out, NULL},
    {"sinks left out", mutate_no_sinks, "tiny-gpt-oss"},
    {"two experts exchanged", mutate_expert_order, "tiny-gpt-oss"},
    {"no attention factor", mutate_attention_factor, "tiny-gpt-oss"},
    {"no selection bias", mutate_no_selection_bias, "tiny-deepseek"},
    {"no groups", mutate_no_groups, "tiny-deepseek"},
    {"no part of YaRN in the scores", mutate_no_score_scale, "tiny-deepseek"},
    {"the latent's norm left out", mutate_latent_norm, "tiny-deepseek"},
    {"no decay", mutate_no_decay, "tiny-qwen35"},
    {"no step bias", mutate_no_step_bias, "tiny-qwen35"},
    {"no output gate", mutate_no_output_gate, "tiny-qwen35"},
    {"taps turned round", mutate_taps, "tiny-qwen35"},
    {"queries for keys", mutate_queries_for_keys, "tiny-qwen35"},
    {"no scale of the shared expert", mutate_no_shared_scale, "tiny-qwen35-moe"},
};
/* A mutant shows in every row, so some of them are enough. */
enum { MUTANT_COUNT = sizeof mutants / sizeof *mutants, MUTANT_EVERY = 29 };

/* The two files that write_file() put there. */
static void
remove_folder(const char *folder)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

/* A comparison that a wrong model passes proves nothing. */
START_TEST(mutants_fail_the_bound)
{
    const char *fixture = fixtures[_i / MUTANT_COUNT];
    const char *only = mutants[_i % MUTANT_COUNT].fixture;
    if ((only != NULL && strcmp(only, fixture) != 0) || is_left_out(fixture)) {
        return;
    }
    static reference_t reference;
    reference_read(&reference, fixture);
    char source[600];
    (void)snprintf(source, sizeof source, "%s", driver_fixture(fixture));
    char folder[] = "/tmp/onepath-mutant-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char error[FILE_ERROR_SIZE_BYTES];
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(source, error, sizeof error, &model), STATUS_OK);
    bytes_t config = read_file(source, "config.json");
    bytes_t weights = read_file(source, "model.safetensors");
    mutants[_i % MUTANT_COUNT].mutate(&config, &weights, model);
    write_file(folder, "config.json", config.data, config.size_bytes);
    write_file(folder, "model.safetensors", weights.data, weights.size_bytes);

    driver_t driver;
    open_model(&driver, folder, has_states(fixture));
    double distance = prefill_distance_of(&driver, &reference, STEP_TOKENS, MUTANT_EVERY);
    (void)printf("%s, %s: %.2e\n", fixture, mutants[_i % MUTANT_COUNT].name, distance);
    ck_assert(distance > bound_of());
    ck_assert(distance > mutant_bound_of());

    driver_close(&driver);
    file_model_close(&model);
    free(config.data);
    free(weights.data);
    remove_folder(folder);
    reference_free(&reference);
}
END_TEST

/* A config may ask for YaRN in any family: a qwen3's own scale of the scores, the attention factor
 * on cos and sin, logits from transformers. */
START_TEST(yarn_serves_other_families)
{
    static reference_t plain;
    static reference_t scaled;
    reference_read(&plain, "tiny-qwen3");
    reference_read_file(&scaled, "tiny-qwen3", "reference-yarn.bin");
    char source[600];
    (void)snprintf(source, sizeof source, "%s", driver_fixture("tiny-qwen3"));
    char folder[] = "/tmp/onepath-yarn-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    bytes_t config = read_file(source, "config.json");
    bytes_t weights = read_file(source, "model.safetensors");
    replace_text(&config, "\"rope_type\": \"default\"",
                 "\"rope_type\": \"yarn\", \"factor\": 8.0, \"beta_fast\": 2.0, "
                 "\"beta_slow\": 0.25, \"original_max_position_embeddings\": 64");
    write_file(folder, "config.json", config.data, config.size_bytes);
    write_file(folder, "model.safetensors", weights.data, weights.size_bytes);
    driver_t driver;
    open_model(&driver, folder, false);
    double distance = prefill_distance(&driver, &scaled, 128);
    double decoded = decode_distance(&driver, &scaled);
    double other = prefill_distance(&driver, &plain, 128);
    (void)printf("tiny-qwen3 with YaRN: prefill %.2e, decode %.2e; without %.2e\n", distance,
                 decoded, other);
    ck_assert(distance <= bound_of());
    ck_assert(decoded <= bound_of());
    ck_assert(other > mutant_bound_of());
    driver_close(&driver);
    free(config.data);
    free(weights.data);
    remove_folder(folder);
    reference_free(&plain);
    reference_free(&scaled);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.golden");
    TCase *tests = tcase_create("logits");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, logits_match_the_reference, 0, FIXTURE_COUNT);
    tcase_add_test(tests, yarn_serves_other_families);
    suite_add_tcase(suite, tests);
    TCase *wrong = tcase_create("mutants"); /* a ctest of its own: gpu.mutants */
    tcase_set_timeout(wrong, 120);
    tcase_add_loop_test(wrong, mutants_fail_the_bound, 0, FIXTURE_COUNT * MUTANT_COUNT);
    suite_add_tcase(suite, wrong);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
