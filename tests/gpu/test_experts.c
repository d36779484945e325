/* A gpt-oss as a GGUF file, made here from the tiny folder: experts apart and turned over, as F32
 * and as MXFP4.  The logits must be the folder's, bit for bit: another container stores the same
 * model. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_model.h"
#include "gpu_driver.h"

enum {
    ALIGNMENT = 32,
    VOCABULARY = 320,
    PROMPT = 40,
    GGUF_U32 = 4,
    GGUF_F32 = 6,
    GGUF_STRING = 8,
    TYPE_F32 = 0,
    TYPE_MXFP4 = 39,
    BLOCK = 32,
    BLOCK_SIZE_BYTES = 17,
};

/* ---- writing a GGUF -------------------------------------------------------------------------- */

typedef struct {
    uint8_t *bytes;
    size_t size_bytes;
    size_t capacity;
} buffer_t;

typedef struct {
    buffer_t keys;
    buffer_t infos;
    buffer_t data;
    uint64_t key_count;
    uint64_t tensor_count;
} gguf_t;

static void
put(buffer_t *self, const void *bytes, size_t size_bytes)
{
    if (self->size_bytes + size_bytes > self->capacity) {
        self->capacity = 2 * (self->size_bytes + size_bytes);
        self->bytes = realloc(self->bytes, self->capacity);
        ck_assert_ptr_nonnull(self->bytes);
    }
    if (bytes == NULL) {
        memset(self->bytes + self->size_bytes, 0, size_bytes);
    } else {
        memcpy(self->bytes + self->size_bytes, bytes, size_bytes);
    }
    self->size_bytes += size_bytes;
}

static void
put_u32(buffer_t *self, uint32_t value)
{
    put(self, &value, sizeof value);
}

static void
put_u64(buffer_t *self, uint64_t value)
{
    put(self, &value, sizeof value);
}

static void
put_string(buffer_t *self, const char *text)
{
    put_u64(self, strlen(text));
    put(self, text, strlen(text));
}

static void
key(gguf_t *self, const char *name, uint32_t type)
{
    put_string(&self->keys, name);
    put_u32(&self->keys, type);
    self->key_count++;
}

static void
key_u32(gguf_t *self, const char *name, uint32_t value)
{
    key(self, name, GGUF_U32);
    put_u32(&self->keys, value);
}

static void
key_f32(gguf_t *self, const char *name, float value)
{
    key(self, name, GGUF_F32);
    put(&self->keys, &value, sizeof value);
}

static void
key_string(gguf_t *self, const char *name, const char *text)
{
    key(self, name, GGUF_STRING);
    put_string(&self->keys, text);
}

/* `shape` outermost first; the file has it the other way round. */
static void
add_tensor(gguf_t *self, const char *name, uint32_t rank, const uint32_t *shape, uint32_t type,
           const void *data, size_t size_bytes)
{
    put_string(&self->infos, name);
    put_u32(&self->infos, rank);
    for (uint32_t i = rank; i > 0; i--) {
        put_u64(&self->infos, shape[i - 1]);
    }
    put_u32(&self->infos, type);
    put_u64(&self->infos, self->data.size_bytes);
    put(&self->data, data, size_bytes);
    put(&self->data, NULL, (ALIGNMENT - self->data.size_bytes % ALIGNMENT) % ALIGNMENT);
    self->tensor_count++;
}

static void
write_gguf(gguf_t *self, const char *path)
{
    buffer_t head = {0};
    put(&head, "GGUF", 4);
    put_u32(&head, 3);
    put_u64(&head, self->tensor_count);
    put_u64(&head, self->key_count);
    put(&head, self->keys.bytes, self->keys.size_bytes);
    put(&head, self->infos.bytes, self->infos.size_bytes);
    put(&head, NULL, (ALIGNMENT - head.size_bytes % ALIGNMENT) % ALIGNMENT);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(head.bytes, 1, head.size_bytes, file), head.size_bytes);
    ck_assert_uint_eq(fwrite(self->data.bytes, 1, self->data.size_bytes, file),
                      self->data.size_bytes);
    ck_assert_int_eq(fclose(file), 0);
    free(head.bytes);
    free(self->keys.bytes);
    free(self->infos.bytes);
    free(self->data.bytes);
}

/* ---- MXFP4 ----------------------------------------------------------------------------------- */

static const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

/* Rounds 32 values to what a block can hold, and writes the block. */
static void
round_block(float *values, uint8_t *block)
{
    float top = 0.0f;
    for (uint32_t i = 0; i < BLOCK; i++) {
        top = fmaxf(top, fabsf(values[i]));
    }
    int exponent = top > 0.0f ? (int)floorf(log2f(top)) - 2 : 0;
    memset(block, 0, BLOCK_SIZE_BYTES);
    block[0] = (uint8_t)(exponent + 127);
    for (uint32_t i = 0; i < BLOCK; i++) {
        float scaled = ldexpf(fabsf(values[i]), -exponent);
        uint32_t best = 0;
        for (uint32_t code = 1; code < 8; code++) {
            if (fabsf(magnitudes[code] - scaled) < fabsf(magnitudes[best] - scaled)) {
                best = code;
            }
        }
        uint32_t code = best | (values[i] < 0.0f ? 8u : 0u);
        block[1 + i % 16] |= (uint8_t)(i < 16 ? code : code << 4);
        values[i] = copysignf(ldexpf(magnitudes[best], exponent), values[i]);
    }
}

/* ---- the same model twice -------------------------------------------------------------------- */

/* One matrix of every expert, [experts][rows][cols], out of the folder's [experts][cols][stride].
 */
typedef struct {
    uint32_t rows;
    uint32_t cols;
    uint32_t stride;
    uint32_t first;
    uint32_t step;
} part_t;

static size_t
place_in_folder(const part_t *part, uint32_t expert, uint32_t row, uint32_t col)
{
    return ((size_t)expert * part->cols + col) * part->stride + part->first +
           (size_t)row * part->step;
}

/* Adds a part; rounded first if asked, and then the folder's weights too. */
static void
add_experts(gguf_t *gguf, const char *name, const part_t *part, uint32_t experts, float *folder,
            bool is_mxfp4)
{
    size_t count = (size_t)experts * part->rows * part->cols;
    float *values = malloc(count * sizeof *values);
    uint8_t *blocks = malloc(count / BLOCK * BLOCK_SIZE_BYTES);
    ck_assert(values != NULL && blocks != NULL);
    for (uint32_t e = 0; e < experts; e++) {
        for (uint32_t row = 0; row < part->rows; row++) {
            float *to = values + ((size_t)e * part->rows + row) * part->cols;
            for (uint32_t col = 0; col < part->cols; col++) {
                to[col] = folder[place_in_folder(part, e, row, col)];
            }
            for (uint32_t col = 0; is_mxfp4 && col < part->cols; col += BLOCK) {
                size_t block = (size_t)(to + col - values) / BLOCK;
                round_block(to + col, blocks + block * BLOCK_SIZE_BYTES);
            }
            for (uint32_t col = 0; col < part->cols; col++) {
                folder[place_in_folder(part, e, row, col)] = to[col];
            }
        }
    }
    const uint32_t shape[3] = {experts, part->rows, part->cols};
    add_tensor(gguf, name, 3, shape, is_mxfp4 ? TYPE_MXFP4 : TYPE_F32,
               is_mxfp4 ? (const void *)blocks : values,
               is_mxfp4 ? count / BLOCK * BLOCK_SIZE_BYTES : count * sizeof *values);
    free(values);
    free(blocks);
}

/* The folder's file, whose experts may change. */
typedef struct {
    uint8_t *bytes;
    size_t size_bytes;
    const file_model_t *model;
} folder_t;

static float *
find_in_folder(const folder_t *folder, file_role_t role, uint32_t layer, file_tensor_t *tensor)
{
    ck_assert_int_eq(file_model_tensor(folder->model, role, layer, tensor), STATUS_OK);
    uint8_t *at = memmem(folder->bytes, folder->size_bytes, tensor->data, tensor->size_bytes);
    ck_assert_ptr_nonnull(at);
    return (float *)(void *)at;
}

static void
copy_role(gguf_t *gguf, const folder_t *folder, file_role_t role, uint32_t layer, const char *name)
{
    file_tensor_t tensor;
    ck_assert_int_eq(file_model_tensor(folder->model, role, layer, &tensor), STATUS_OK);
    char full[96];
    (void)snprintf(full, sizeof full, name, layer);
    const uint32_t shape[2] = {tensor.rows, tensor.cols};
    bool is_vector = tensor.rows == 1;
    add_tensor(gguf, full, is_vector ? 1 : 2, is_vector ? shape + 1 : shape, TYPE_F32, tensor.data,
               tensor.size_bytes);
}

/* Every second bias of an expert's row. */
static void
add_biases(gguf_t *gguf, const folder_t *folder, uint32_t layer, uint32_t first, const char *name)
{
    file_tensor_t tensor;
    float values[1024];
    ck_assert_int_eq(file_model_tensor(folder->model, FILE_ROLE_EXPERT_GATE_UP_BIAS, layer,
                                       &tensor),
                     STATUS_OK);
    uint32_t count = tensor.rows * tensor.cols / 2;
    ck_assert_uint_le(count, 1024);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = ((const float *)tensor.data)[2 * i + first];
    }
    const uint32_t shape[2] = {tensor.rows, tensor.cols / 2};
    char full[96];
    (void)snprintf(full, sizeof full, name, layer);
    add_tensor(gguf, full, 2, shape, TYPE_F32, values, count * sizeof *values);
}

static void
add_layer(gguf_t *gguf, const folder_t *folder, uint32_t layer, bool is_mxfp4)
{
    static const struct {
        file_role_t role;
        const char *name;
    } roles[] = {
        {FILE_ROLE_ATTN_NORM, "blk.%u.attn_norm.weight"},
        {FILE_ROLE_FFN_NORM, "blk.%u.post_attention_norm.weight"},
        {FILE_ROLE_ATTN_Q, "blk.%u.attn_q.weight"},
        {FILE_ROLE_ATTN_K, "blk.%u.attn_k.weight"},
        {FILE_ROLE_ATTN_V, "blk.%u.attn_v.weight"},
        {FILE_ROLE_ATTN_O, "blk.%u.attn_output.weight"},
        {FILE_ROLE_ATTN_Q_BIAS, "blk.%u.attn_q.bias"},
        {FILE_ROLE_ATTN_K_BIAS, "blk.%u.attn_k.bias"},
        {FILE_ROLE_ATTN_V_BIAS, "blk.%u.attn_v.bias"},
        {FILE_ROLE_ATTN_O_BIAS, "blk.%u.attn_output.bias"},
        {FILE_ROLE_ATTN_SINKS, "blk.%u.attn_sinks.weight"},
        {FILE_ROLE_ROUTER, "blk.%u.ffn_gate_inp.weight"},
        {FILE_ROLE_ROUTER_BIAS, "blk.%u.ffn_gate_inp.bias"},
        {FILE_ROLE_EXPERT_DOWN_BIAS, "blk.%u.ffn_down_exps.bias"},
    };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        copy_role(gguf, folder, roles[i].role, layer, roles[i].name);
    }
    add_biases(gguf, folder, layer, 0, "blk.%u.ffn_gate_exps.bias");
    add_biases(gguf, folder, layer, 1, "blk.%u.ffn_up_exps.bias");
    const file_config_t *c = file_model_config(folder->model);
    file_tensor_t tensor;
    char name[96];
    float *both = find_in_folder(folder, FILE_ROLE_EXPERT_GATE_UP, layer, &tensor);
    for (uint32_t i = 0; i < 2; i++) {
        part_t part = {c->ffn_size, c->hidden_size, 2 * c->ffn_size, i, 2};
        (void)snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer,
                       i == 0 ? "gate" : "up");
        add_experts(gguf, name, &part, c->expert_count, both, is_mxfp4);
    }
    float *down = find_in_folder(folder, FILE_ROLE_EXPERT_DOWN, layer, &tensor);
    part_t part = {c->hidden_size, c->ffn_size, c->hidden_size, 0, 1};
    (void)snprintf(name, sizeof name, "blk.%u.ffn_down_exps.weight", layer);
    add_experts(gguf, name, &part, c->expert_count, down, is_mxfp4);
}

static void
make_gguf(const folder_t *folder, bool is_mxfp4, const char *path)
{
    const file_config_t *c = file_model_config(folder->model);
    gguf_t gguf = {0};
    key_string(&gguf, "general.architecture", "gpt-oss");
    key_u32(&gguf, "gpt-oss.block_count", c->layer_count);
    key_u32(&gguf, "gpt-oss.embedding_length", c->hidden_size);
    key_u32(&gguf, "gpt-oss.feed_forward_length", c->ffn_size);
    key_u32(&gguf, "gpt-oss.expert_feed_forward_length", c->ffn_size);
    key_u32(&gguf, "gpt-oss.expert_count", c->expert_count);
    key_u32(&gguf, "gpt-oss.expert_used_count", c->expert_used_count);
    key_u32(&gguf, "gpt-oss.attention.head_count", c->head_count);
    key_u32(&gguf, "gpt-oss.attention.head_count_kv", c->kv_head_count);
    key_u32(&gguf, "gpt-oss.attention.key_length", c->head_dim);
    key_u32(&gguf, "gpt-oss.attention.value_length", c->head_dim);
    key_u32(&gguf, "gpt-oss.attention.sliding_window", c->sliding_window);
    key_f32(&gguf, "gpt-oss.attention.layer_norm_rms_epsilon", c->rms_eps);
    key_u32(&gguf, "gpt-oss.context_length", c->context_len);
    key_f32(&gguf, "gpt-oss.rope.freq_base", (float)c->rope_theta);
    key_string(&gguf, "gpt-oss.rope.scaling.type", "yarn");
    key_f32(&gguf, "gpt-oss.rope.scaling.factor", (float)c->rope_scaling_factor);
    key_u32(&gguf, "gpt-oss.rope.scaling.original_context_length", c->rope_original_context_len);
    key_f32(&gguf, "gpt-oss.rope.scaling.yarn_beta_fast", (float)c->rope_beta_fast);
    key_f32(&gguf, "gpt-oss.rope.scaling.yarn_beta_slow", (float)c->rope_beta_slow);
    copy_role(&gguf, folder, FILE_ROLE_TOKEN_EMBED, 0, "token_embd.weight");
    copy_role(&gguf, folder, FILE_ROLE_OUTPUT_NORM, 0, "output_norm.weight");
    copy_role(&gguf, folder, FILE_ROLE_OUTPUT, 0, "output.weight");
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        add_layer(&gguf, folder, layer, is_mxfp4);
    }
    write_gguf(&gguf, path);
}

/* ---- files ----------------------------------------------------------------------------------- */

static uint8_t *
read_file(const char *folder, const char *name, size_t *size_bytes)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *size_bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = calloc(1, *size_bytes + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, *size_bytes, file), *size_bytes);
    (void)fclose(file);
    return bytes;
}

static void
write_file(const char *folder, const char *name, const void *bytes, size_t size_bytes)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size_bytes, file), size_bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* A GGUF has no key for the clamp: the model's own, 7, is meant. */
static void
copy_config(const char *from, const char *to)
{
    size_t size_bytes;
    uint8_t *config = read_file(from, "config.json", &size_bytes);
    char *at = strstr((char *)config, "\"swiglu_limit\": 1.5");
    ck_assert_ptr_nonnull(at);
    memcpy(at, "\"swiglu_limit\": 7.0", strlen("\"swiglu_limit\": 7.0"));
    write_file(to, "config.json", config, size_bytes);
    free(config);
}

static void
logits_of(const char *path, const int32_t *prompt, float *out)
{
    run_executor_options_t options = {
        .model_path = path,
        .slot_count = 2,
        .model_len_max = 128,
        .step_tokens_max = 64,
        .block_granularity = 16,
        .cache_dtype = "f32", /* the weights of both count otherwise */
    };
    driver_t driver;
    driver_open(&driver, &options);
    for (uint32_t i = 0; i < PROMPT; i++) {
        driver_setup(&driver, 1, prompt, i + 1, NULL);
        (void)driver_prefill(&driver, 1, prompt, i + 1, 64);
        driver_logits(&driver, out + (size_t)i * VOCABULARY, VOCABULARY, 1);
    }
    driver_close(&driver);
}

START_TEST(a_gguf_gives_the_folders_bits)
{
    bool is_mxfp4 = _i == 1;
    char source[600];
    (void)snprintf(source, sizeof source, "%s", driver_fixture("tiny-gpt-oss"));
    char place[] = "/tmp/onepath-experts-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(place));
    char gguf[700];
    (void)snprintf(gguf, sizeof gguf, "%s/model.gguf", place);
    char error[FILE_ERROR_SIZE_BYTES];
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(source, error, sizeof error, &model), STATUS_OK);
    folder_t folder = {.model = model};
    folder.bytes = read_file(source, "model.safetensors", &folder.size_bytes);
    make_gguf(&folder, is_mxfp4, gguf);
    copy_config(source, place);
    write_file(place, "model.safetensors", folder.bytes, folder.size_bytes);
    file_model_close(&model);

    ck_assert_msg(file_model_open(gguf, error, sizeof error, &model) == STATUS_OK, "%s", error);
    file_tensor_t down;
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_EXPERT_DOWN, 3, &down), STATUS_OK);
    ck_assert_int_eq(down.dtype, is_mxfp4 ? FILE_DTYPE_MXFP4 : FILE_DTYPE_F32);
    ck_assert_int_eq(file_model_config(model)->layer_kinds[0], FILE_LAYER_SLIDING);
    ck_assert_int_eq(file_model_config(model)->layer_kinds[3], FILE_LAYER_FULL);
    file_model_close(&model);

    static float wanted[PROMPT * VOCABULARY];
    static float got[PROMPT * VOCABULARY];
    int32_t prompt[PROMPT];
    driver_random_tokens(7, VOCABULARY, prompt, PROMPT);
    logits_of(place, prompt, wanted);
    logits_of(gguf, prompt, got);
    ck_assert(wanted[0] != 0.0f && isfinite(wanted[0]));
    ck_assert(memcmp(wanted, got, sizeof wanted) == 0);

    free(folder.bytes);
    (void)unlink(gguf);
    char path[700];
    (void)snprintf(path, sizeof path, "%s/config.json", place);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", place);
    (void)unlink(path);
    (void)rmdir(place);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.experts");
    TCase *tests = tcase_create("experts");
    tcase_set_timeout(tests, 100);
    tcase_add_loop_test(tests, a_gguf_gives_the_folders_bits, 0, 2);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
