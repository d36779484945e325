/* A folder in BF16, as checkpoints are published, against the same values in F32: the logits must
 * be the same, bit for bit, and both kinds of cache must work.  The tiny folders are F32, so that
 * other tests never see what is copied, turned over and put together in two-byte elements. */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_model.h"
#include "gpu_driver.h"

enum { VOCABULARY = 320, PROMPT = 60, GENERATED = 12 };

static const char *const fixtures[] = {"tiny-deepseek", "tiny-deepseek-plain"};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };

typedef struct {
    uint8_t *data;
    size_t size_bytes;
} bytes_t;

static bytes_t
read_file(const char *fixture, const char *name)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", driver_fixture(fixture), name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    bytes_t bytes = {.size_bytes = (size_t)ftell(file)};
    rewind(file);
    bytes.data = malloc(bytes.size_bytes + 1);
    ck_assert_ptr_nonnull(bytes.data);
    ck_assert_uint_eq(fread(bytes.data, 1, bytes.size_bytes, file), bytes.size_bytes);
    (void)fclose(file);
    return bytes;
}

static void
write_parts(const char *folder, const char *name, const bytes_t *parts, size_t count)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(fwrite(parts[i].data, 1, parts[i].size_bytes, file), parts[i].size_bytes);
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* The upper halves of the values, and a header that says so. */
static void
write_bf16(const char *folder, const char *head, size_t head_bytes, const bytes_t *values)
{
    json_t *header = json_loadb(head, head_bytes, 0, NULL);
    ck_assert_ptr_nonnull(header);
    const char *key;
    json_t *entry;
    json_object_foreach(header, key, entry)
    {
        json_t *offsets = json_object_get(entry, "data_offsets");
        if (offsets != NULL) {
            json_object_set_new(entry, "dtype", json_string("BF16"));
            for (size_t i = 0; i < 2; i++) {
                json_int_t offset = json_integer_value(json_array_get(offsets, i));
                json_array_set_new(offsets, i, json_integer(offset / 2));
            }
        }
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t padded = (strlen(text) + 7) / 8 * 8;
    char *spaced = malloc(padded);
    uint8_t *halves = malloc(values->size_bytes / 2);
    ck_assert(spaced != NULL && halves != NULL);
    memset(spaced, ' ', padded);
    memcpy(spaced, text, strlen(text));
    for (size_t i = 0; i < values->size_bytes / 4; i++) {
        memcpy(halves + 2 * i, values->data + 4 * i + 2, 2);
    }
    const bytes_t parts[] = {{(uint8_t *)&padded, sizeof padded},
                             {(uint8_t *)spaced, padded},
                             {halves, values->size_bytes / 2}};
    write_parts(folder, "model.safetensors", parts, 3);
    free(halves);
    free(spaced);
    free(text);
    json_decref(header);
}

/* Both folders: values cut to what BF16 holds, in four bytes and in two. */
static void
write_folders(const char *fixture, const char *f32, const char *bf16)
{
    bytes_t config = read_file(fixture, "config.json");
    bytes_t weights = read_file(fixture, "model.safetensors");
    uint64_t head_bytes = 0;
    memcpy(&head_bytes, weights.data, sizeof head_bytes);
    bytes_t values = {weights.data + 8 + head_bytes, weights.size_bytes - 8 - head_bytes};
    for (size_t i = 0; i < values.size_bytes; i += 4) {
        memset(values.data + i, 0, 2);
    }
    write_parts(f32, "config.json", &config, 1);
    write_parts(f32, "model.safetensors", &weights, 1);
    write_parts(bf16, "config.json", &config, 1);
    write_bf16(bf16, (char *)weights.data + 8, head_bytes, &values);
    free(config.data);
    free(weights.data);
}

static void
remove_folder(const char *folder)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        char path[700];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

typedef struct {
    float prefill[VOCABULARY];
    float decode[VOCABULARY];
    int32_t tokens[GENERATED];
} answer_t;

static void
answer(const char *folder, const char *cache_dtype, answer_t *out)
{
    run_executor_options_t options = {
        .model_path = folder,
        .slot_count = 2,
        .model_len_max = 128,
        .step_tokens_max = 64,
        .block_granularity = 16,
        .cache_dtype = cache_dtype,
    };
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[PROMPT];
    driver_random_tokens(12, VOCABULARY, prompt, PROMPT);
    driver_setup(&driver, 1, prompt, PROMPT, NULL);
    out->tokens[0] = driver_prefill(&driver, 1, prompt, PROMPT, 25);
    driver_logits(&driver, out->prefill, VOCABULARY, 1);
    for (uint32_t i = 1; i < GENERATED; i++) {
        out->tokens[i] = driver_decode_one(&driver, 1);
    }
    driver_logits(&driver, out->decode, VOCABULARY, 1);
    driver_close(&driver);
}

START_TEST(two_bytes_hold_what_four_do)
{
    static answer_t wanted;
    static answer_t got;
    static answer_t again;
    char f32[] = "/tmp/onepath-f32-XXXXXX";
    char bf16[] = "/tmp/onepath-bf16-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(f32));
    ck_assert_ptr_nonnull(mkdtemp(bf16));
    write_folders(fixtures[_i], f32, bf16);
    char error[FILE_ERROR_SIZE_BYTES];
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(bf16, error, sizeof error, &model), STATUS_OK);
    ck_assert_int_eq(file_model_config(model)->linear_dtype, FILE_DTYPE_BF16);
    file_model_close(&model);
    static const char *const caches[] = {"f32", "f16"};
    for (size_t i = 0; i < 2; i++) {
        answer(f32, caches[i], &wanted);
        answer(bf16, caches[i], &got);
        ck_assert_mem_eq(&wanted, &got, sizeof wanted);
        if (i == 0) {
            again = got;
        }
    }
    /* A cache in half precision is another one, not a broken one. */
    ck_assert_mem_ne(again.prefill, got.prefill, sizeof got.prefill);
    double difference = 0.0;
    double sum = 0.0;
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        double d = (double)again.prefill[i] - (double)got.prefill[i];
        difference += d * d;
        sum += (double)got.prefill[i] * (double)got.prefill[i];
    }
    (void)printf("%s: half precision moves logits by %.1e\n", fixtures[_i], sqrt(difference / sum));
    ck_assert(sqrt(difference / sum) < 0.1); /* a choice of experts may fall the other way */
    remove_folder(f32);
    remove_folder(bf16);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.bf16");
    TCase *tests = tcase_create("bf16");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, two_bytes_hold_what_four_do, 0, FIXTURE_COUNT);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
