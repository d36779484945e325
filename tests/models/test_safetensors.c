/* Hostile Hugging Face folders: headers, ranges, shards, links, configs. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_model.h"
#include "file_safetensors.h"
#include "support.h"

enum { TEXT_MAX = 1 << 21 };

static char *folder;
static char error[FILE_ERROR_SIZE_BYTES];
static char text[TEXT_MAX];

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

static size_t
read_fixture(const char *name)
{
    FILE *file = fopen(support_fixture(name), "rb");
    ck_assert_msg(file != NULL, "%s", name);
    size_t size_bytes = fread(text, 1, sizeof text - 1, file);
    text[size_bytes] = '\0';
    (void)fclose(file);
    return size_bytes;
}

static void
copy_fixture(const char *from, const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", from, name);
    support_write(folder, name, text, read_fixture(path));
}

/* Copies a fixture's config.json with one replacement; `from` must be there. */
static void
change_config_of(const char *fixture, const char *from, const char *to)
{
    static char changed[TEXT_MAX];
    char path[256];
    (void)snprintf(path, sizeof path, "%s/config.json", fixture);
    (void)read_fixture(path);
    char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "'%s' is not in the config", from);
    int written = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                           at + strlen(from));
    support_write(folder, "config.json", changed, (size_t)written);
}

static void
change_config(const char *from, const char *to)
{
    change_config_of("tiny-llama3", from, to);
}

static proto_status_t
open_folder(void)
{
    file_model_t *model = NULL;
    proto_status_t status = file_model_open(folder, error, sizeof error, &model);
    ck_assert((status == STATUS_OK) == (model != NULL));
    ck_assert((status == STATUS_OK) == (error[0] == '\0'));
    if (model != NULL) {
        file_model_prefetch(model, NULL, NULL);
    }
    file_model_close(&model);
    return status;
}

static void
expect(proto_status_t status, const char *wanted)
{
    proto_status_t found = open_folder();
    ck_assert_msg(found == status, "expected %s with '%s', got %s: %s", proto_status_name(status),
                  wanted, proto_status_name(found), error);
    ck_assert_msg(strstr(error, wanted) != NULL, "'%s' lacks '%s'", error, wanted);
}

/* Reads one file's structure from memory: 8 bytes of length, the header, `data_size_bytes` zeros.
 */
static proto_status_t
read_header(const char *header, uint64_t header_size_bytes, size_t data_size_bytes)
{
    size_t size_bytes = 8 + strlen(header) + data_size_bytes;
    uint8_t *bytes = calloc(1, size_bytes);
    memcpy(bytes, &header_size_bytes, 8);
    memcpy(bytes + 8, header, strlen(header));
    file_tensors_t tensors = {0};
    json_t *root = NULL;
    file_error_t sink = file_error_init(error, sizeof error);
    proto_status_t status = file_safetensors_read((file_view_t){bytes, size_bytes}, "x.safetensors",
                                                  0, &tensors, &root, sink);
    json_decref(root);
    file_tensors_fini(&tensors);
    free(bytes);
    return status;
}

START_TEST(hostile_headers_are_refused)
{
    static const struct {
        const char *header;
        size_t data_size_bytes;
        const char *wanted; /* NULL: this one is right */
    } CASES[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NULL},
        {"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],"
         "\"data_offsets\":[0,4]}}  ",
         4, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[8,11]}}",
         11, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "after the last"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", 8, "does not need"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "does not need"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4194305,4194305,211106198978564],"
         "\"data_offsets\":[0,8]}}",
         8, "does not need"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         "does not need"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}", 0,
         "JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0.0,8]}}", 8, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":\"08\"}}", 8, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}}", 0, "over 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "over 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
         "at most 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,8]}}", 8, "shape"},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "F99"},
        {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "no more"},
        {"{\"a\":[]}", 0, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         12, "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         8, "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9,13]}}",
         13, "unused bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[[[2]]]],\"data_offsets\":[0,8]}}", 8, "nested"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}} x", 8, "JSON"},
        {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "JSON"},
        {"[]", 0, "no safetensors"},
        {" {}", 0, "no safetensors"},
        {"{", 0, "no safetensors"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        proto_status_t status =
            read_header(CASES[i].header, strlen(CASES[i].header), CASES[i].data_size_bytes);
        ck_assert_msg((status == STATUS_OK) == (CASES[i].wanted == NULL), "case %zu: %s", i, error);
        if (CASES[i].wanted != NULL) {
            ck_assert_msg(strstr(error, CASES[i].wanted) != NULL, "case %zu: '%s' lacks '%s'", i,
                          error, CASES[i].wanted);
        }
    }
    static const uint64_t LENGTHS[] = {0, 1, 3, 100, 1 << 30, 1ull << 40, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof LENGTHS[0]; i++) {
        ck_assert_int_eq(read_header("{}", LENGTHS[i], 8), STATUS_ERR_MALFORMED);
    }
}
END_TEST

/* A header with very many tensors costs a bounded amount, and is refused before it is built. */
START_TEST(a_header_with_too_many_tensors_is_refused)
{
    size_t room = 16 << 20;
    char *header = malloc(room);
    size_t at = (size_t)snprintf(header, room, "{");
    for (int i = 0; i < 140000; i++) {
        at +=
            (size_t)snprintf(header + at, room - at,
                             "%s\"t%d\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                             i > 0 ? "," : "", i, i, i + 1);
    }
    (void)snprintf(header + at, room - at, "}");
    ck_assert_int_eq(read_header(header, strlen(header), 140000), STATUS_ERR_MALFORMED);
    ck_assert_msg(strstr(error, "more than 131072 tensors") != NULL, "%s", error);
    memset(header, '[', room - 1);
    header[0] = '{';
    header[room - 1] = '\0';
    ck_assert_int_eq(read_header(header, room - 1, 0), STATUS_ERR_MALFORMED);
    memset(header + 1, ',', room - 2);
    ck_assert_int_eq(read_header(header, room - 1, 0), STATUS_ERR_MALFORMED);
    ck_assert_msg(strstr(error, "values") != NULL, "%s", error);
    free(header);
}
END_TEST

START_TEST(a_weights_file_cut_anywhere_is_refused)
{
    copy_fixture("tiny-llama3", "config.json");
    size_t size_bytes = read_fixture("tiny-llama3/model.safetensors");
    for (size_t cut = 0; cut < size_bytes; cut += cut < 3000 ? 1 : 997) {
        support_write(folder, "model.safetensors", text, cut);
        ck_assert_msg(open_folder() != STATUS_OK, "cut at %zu opened", cut);
    }
    support_write(folder, "model.safetensors", text, size_bytes);
    expect(STATUS_OK, "");
}
END_TEST

START_TEST(flipped_bits_in_a_header_never_crash)
{
    uint64_t state = support_seed();
    copy_fixture("tiny-llama3", "config.json");
    size_t size_bytes = read_fixture("tiny-llama3/model.safetensors");
    uint64_t header = 0;
    memcpy(&header, text, 8);
    int opened = 0;
    for (int round = 0; round < 3000; round++) {
        size_t place = support_random(&state) % (header + 8);
        char kept = text[place];
        text[place] = (char)(text[place] ^ (1 << support_random(&state) % 8));
        support_write(folder, "model.safetensors", text, size_bytes);
        opened += open_folder() == STATUS_OK;
        text[place] = kept;
    }
    printf("%d of 3000 damaged files still open\n", opened);
}
END_TEST

START_TEST(a_config_that_cannot_be_run_is_refused)
{
    copy_fixture("tiny-llama3", "model.safetensors");
    static const struct {
        const char *from;
        const char *to;
        proto_status_t status;
        const char *wanted;
    } CASES[] = {
        {"\"LlamaForCausalLM\"", "\"LlamaForCausalLM\"", STATUS_OK, ""},
        {"LlamaForCausalLM", "GPT2LMHeadModel", STATUS_ERR_UNSUPPORTED, "Qwen3ForCausalLM"},
        {"\"architectures\"", "\"x\"", STATUS_ERR_MALFORMED, "architectures"},
        {"\"hidden_size\": 32", "\"hidden_size\": 64", STATUS_ERR_MALFORMED,
         "'model.embed_tokens.weight': the config needs shape [320, 64], the file has [320, 32]"},
        {"\"hidden_size\": 32", "\"hidden_size\": -32", STATUS_ERR_MALFORMED, "hidden_size"},
        {"\"hidden_size\": 32", "\"hidden_size\": 32.5", STATUS_ERR_MALFORMED, "hidden_size"},
        {"\"hidden_size\": 32", "\"hidden_size\": 99999999999", STATUS_ERR_MALFORMED,
         "hidden_size"},
        {"\"hidden_size\": 32,", "", STATUS_ERR_MALFORMED, "'hidden_size' is missing"},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", STATUS_ERR_MALFORMED,
         "model.layers.2."},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", STATUS_ERR_UNSUPPORTED,
         "model.layers.1."},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000", STATUS_ERR_MALFORMED,
         "layer count"},
        {"\"num_attention_heads\": 4", "\"num_attention_heads\": 0", STATUS_ERR_MALFORMED,
         "head count"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", STATUS_ERR_MALFORMED, "share"},
        {"\"head_dim\": 8", "\"head_dim\": 9", STATUS_ERR_MALFORMED, "even"},
        {"\"attention_bias\": true", "\"attention_bias\": false", STATUS_ERR_UNSUPPORTED, "bias"},
        {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", STATUS_ERR_MALFORMED,
         "lm_head.weight"},
        {"\"mlp_bias\": false", "\"mlp_bias\": true", STATUS_ERR_UNSUPPORTED, "mlp_bias"},
        {"\"silu\"", "\"gelu\"", STATUS_ERR_UNSUPPORTED, "hidden_act"},
        {"\"rope_type\": \"llama3\"", "\"rope_type\": \"longrope\"", STATUS_ERR_UNSUPPORTED,
         "llama3"},
        {"\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\"", STATUS_OK, ""},
        {"\"factor\": 8.0", "\"factor\": 0", STATUS_ERR_MALFORMED, "scaling factor"},
        {"\"high_freq_factor\": 4.0", "\"high_freq_factor\": 1.0", STATUS_ERR_MALFORMED, "factor"},
        {"\"original_max_position_embeddings\": 64", "\"x\": 64", STATUS_ERR_MALFORMED, "missing"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": \"a\"", STATUS_ERR_MALFORMED, "number"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0", STATUS_ERR_MALFORMED, "epsilon"},
        {"\"eos_token_id\": 318", "\"eos_token_id\": 320", STATUS_ERR_MALFORMED, "over the vocab"},
        {"\"eos_token_id\": 318", "\"eos_token_id\": [318, \"a\"]", STATUS_ERR_MALFORMED, "eos"},
        {"\"eos_token_id\": 318", "\"quantization_config\": {}, \"eos_token_id\": 318",
         STATUS_ERR_UNSUPPORTED, "quantization_config"},
        {"{", "[", STATUS_ERR_MALFORMED, "JSON"},
        {"\"mlp_bias\"", "\"hidden_size\": 32, \"mlp_bias\"", STATUS_ERR_MALFORMED, "duplicate"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        change_config(CASES[i].from, CASES[i].to);
        expect(CASES[i].status, CASES[i].wanted);
    }
}
END_TEST

START_TEST(experts_that_cannot_be_run_are_refused)
{
    copy_fixture("tiny-gpt-oss", "model.safetensors");
    static const struct {
        const char *from;
        const char *to;
        proto_status_t status;
        const char *wanted;
    } CASES[] = {
        {"\"GptOssForCausalLM\"", "\"GptOssForCausalLM\"", STATUS_OK, ""},
        {"\"num_local_experts\": 6", "\"num_local_experts\": 0", STATUS_ERR_MALFORMED,
         "at least 1"},
        {"\"num_local_experts\": 6", "\"num_local_experts\": 5", STATUS_ERR_MALFORMED,
         "the config needs shape [5"},
        {"\"num_local_experts\": 6", "\"num_local_experts\": 4000000000", STATUS_ERR_MALFORMED,
         "expert count"},
        {"\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 7", STATUS_ERR_MALFORMED,
         "experts of a token"},
        {"\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 0", STATUS_ERR_MALFORMED,
         "experts of a token"},
        {"\"intermediate_size\": 32", "\"intermediate_size\": 48", STATUS_ERR_MALFORMED,
         "the config needs shape [6, 64, 96], the file has [6, 64, 64]"},
        {"\"intermediate_size\": 32", "\"intermediate_size\": 1000000", STATUS_ERR_MALFORMED,
         "width of an expert"},
        {"\"swiglu_limit\": 1.5", "\"swiglu_limit\": 0", STATUS_ERR_MALFORMED, "activation"},
        {"\"swiglu_alpha\": 1.702", "\"swiglu_alpha\": -1e999", STATUS_ERR_MALFORMED, ""},
        {"\"sliding_window\": 12", "\"sliding_window\": 0", STATUS_ERR_MALFORMED, "window"},
        {"\"full_attention\",", "", STATUS_ERR_MALFORMED, "layer_types"},
        {"\"full_attention\",", "\"linear_attention\",", STATUS_ERR_UNSUPPORTED, "layer_types"},
        {"\"attention_bias\": true", "\"attention_bias\": false", STATUS_ERR_UNSUPPORTED, "bias"},
        {"\"rope_type\": \"yarn\"", "\"rope_type\": \"dynamic\"", STATUS_ERR_UNSUPPORTED, "yarn"},
        {"\"truncate\": false", "\"truncate\": 0", STATUS_ERR_MALFORMED, "truncate"},
        {"\"beta_fast\": 4.0", "\"beta_fast\": -4.0", STATUS_ERR_MALFORMED, "scaling factor"},
        {"\"rope_theta\": 500.0", "\"rope_theta\": 1.0", STATUS_ERR_MALFORMED, "RoPE base"},
        {"\"rope_parameters\"", "\"rope_other\"", STATUS_ERR_MALFORMED, "rope_parameters"},
        {"\"original_max_position_embeddings\": 64", "\"x\": 64", STATUS_ERR_MALFORMED, "missing"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        change_config_of("tiny-gpt-oss", CASES[i].from, CASES[i].to);
        expect(CASES[i].status, CASES[i].wanted);
    }
}
END_TEST

START_TEST(missing_files_are_named)
{
    expect(STATUS_ERR_IO, "config.json");
    copy_fixture("tiny-llama3", "config.json");
    expect(STATUS_ERR_IO, "model.safetensors");
    support_write(folder, "config.json", "", 0);
    expect(STATUS_ERR_MALFORMED, "config.json: empty file");
}
END_TEST

static void
write_index(const char *map)
{
    char index[2048];
    int written = snprintf(index, sizeof index, "{\"metadata\": {}, \"weight_map\": %s}", map);
    support_write(folder, "model.safetensors.index.json", index, (size_t)written);
}

static void
link_to(const char *target, const char *name)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
    ck_assert_int_eq(symlink(target, path), 0);
}

/* Splits the tiny checkpoint into two files, as large checkpoints come. */
static void
write_shards(void)
{
    size_t size_bytes = read_fixture("tiny-llama3/model.safetensors");
    uint64_t header_size_bytes = 0;
    memcpy(&header_size_bytes, text, 8);
    json_t *header = json_loadb(text + 8, header_size_bytes, 0, NULL);
    ck_assert_ptr_nonnull(header);
    const char *data = text + 8 + header_size_bytes;
    json_t *map = json_object();
    const char *const names[2] = {"model-00001-of-00002.safetensors",
                                  "model-00002-of-00002.safetensors"};
    for (int shard = 0; shard < 2; shard++) {
        static char out[TEXT_MAX];
        static char bytes[TEXT_MAX];
        json_t *part = json_object();
        size_t at = 0;
        int index = 0;
        const char *key;
        json_t *entry;
        json_object_foreach(header, key, entry)
        {
            if (strcmp(key, "__metadata__") == 0 || index++ % 2 != shard) {
                continue;
            }
            json_t *range = json_object_get(entry, "data_offsets");
            size_t begin = (size_t)json_integer_value(json_array_get(range, 0));
            size_t end = (size_t)json_integer_value(json_array_get(range, 1));
            memcpy(bytes + at, data + begin, end - begin);
            json_t *moved = json_copy(entry);
            json_object_set_new(moved, "data_offsets",
                                json_pack("[II]", (json_int_t)at, (json_int_t)(at + end - begin)));
            json_object_set_new(part, key, moved);
            json_object_set_new(map, key, json_string(names[shard]));
            at += end - begin;
        }
        char *part_text = json_dumps(part, 0);
        uint64_t length = (strlen(part_text) + 7) / 8 * 8;
        memset(out, ' ', 8 + length);
        memcpy(out, &length, 8);
        memcpy(out + 8, part_text, strlen(part_text));
        memcpy(out + 8 + length, bytes, at);
        support_write(folder, names[shard], out, 8 + length + at);
        free(part_text);
        json_decref(part);
    }
    char *map_text = json_dumps(map, 0);
    size_t room = strlen(map_text) + 64;
    char *index = malloc(room);
    int written = snprintf(index, room, "{\"weight_map\": %s}", map_text);
    support_write(folder, "model.safetensors.index.json", index, (size_t)written);
    free(index);
    free(map_text);
    json_decref(map);
    json_decref(header);
    ck_assert_uint_gt(size_bytes, 0);
}

/* The digest names the content, not the way it is cut into files. */
START_TEST(shards_are_one_model)
{
    copy_fixture("tiny-llama3", "config.json");
    write_shards();
    file_model_t *whole = NULL;
    file_model_t *parts = NULL;
    ck_assert_int_eq(file_model_open(support_fixture("tiny-llama3"), error, sizeof error, &whole),
                     STATUS_OK);
    ck_assert_msg(file_model_open(folder, error, sizeof error, &parts) == STATUS_OK, "%s", error);
    ck_assert_mem_eq(file_model_config(whole)->digest, file_model_config(parts)->digest,
                     FILE_DIGEST_SIZE_BYTES);
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (int role = 0; role < FILE_ROLE_COUNT; role++) {
            file_tensor_t a;
            file_tensor_t b;
            proto_status_t status = file_model_tensor(whole, (file_role_t)role, layer, &a);
            ck_assert_int_eq(file_model_tensor(parts, (file_role_t)role, layer, &b), status);
            if (status == STATUS_OK) {
                ck_assert_uint_eq(a.size_bytes, b.size_bytes);
                ck_assert_mem_eq(a.data, b.data, a.size_bytes);
            }
        }
    }
    file_model_close(&whole);
    file_model_close(&parts);
}
END_TEST

/* An index is a list of names inside the folder, whatever it says. */
START_TEST(shards_never_leave_the_folder)
{
    copy_fixture("tiny-llama3", "config.json");
    copy_fixture("tiny-llama3", "model.safetensors");
    expect(STATUS_OK, "");
    static const struct {
        const char *map;
        proto_status_t status;
        const char *wanted;
    } CASES[] = {
        {"{\"a\": \"../model.safetensors\"}", STATUS_ERR_MALFORMED, "plain name"},
        {"{\"a\": \"/etc/passwd\"}", STATUS_ERR_MALFORMED, "plain name"},
        {"{\"a\": \"x/y.safetensors\"}", STATUS_ERR_MALFORMED, "plain name"},
        {"{\"a\": \"..\"}", STATUS_ERR_MALFORMED, "plain name"},
        {"{\"a\": \"\"}", STATUS_ERR_MALFORMED, "plain name"},
        {"{\"a\": \"x y\"}", STATUS_ERR_MALFORMED, "plain name"},
        {"{\"a\": 7}", STATUS_ERR_MALFORMED, "string"},
        {"[]", STATUS_ERR_MALFORMED, "weight_map"},
        {"{\"a\": \"missing.safetensors\"}", STATUS_ERR_IO, "missing.safetensors"},
        {"{\"a\": \"model.safetensors\"}", STATUS_ERR_MALFORMED, "'a' is not in the file"},
        {"{\"a\": \"model.safetensors\", \"a\": \"x\"}", STATUS_ERR_MALFORMED, "duplicate"},
        {"{\"a\": \"config.json\"}", STATUS_ERR_MALFORMED, "no safetensors"},
        {"{\"model.norm.weight\": \"model.safetensors\"}", STATUS_OK, ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        write_index(CASES[i].map);
        expect(CASES[i].status, CASES[i].wanted);
    }
    /* The same tensors in two files. */
    (void)read_fixture("tiny-llama3/model.safetensors");
    copy_fixture("tiny-llama3", "model.safetensors");
    support_write(folder, "again.safetensors", text, read_fixture("tiny-llama3/model.safetensors"));
    write_index("{\"model.norm.weight\": \"model.safetensors\", \"x\": \"again.safetensors\"}");
    expect(STATUS_ERR_MALFORMED, "stands twice");
    /* Symbolic links, also to a file inside the folder. */
    write_index("{\"model.norm.weight\": \"linked.safetensors\"}");
    link_to("/etc/passwd", "linked.safetensors");
    expect(STATUS_ERR_MALFORMED, "symbolic link");
    link_to("../../etc/passwd", "linked.safetensors");
    expect(STATUS_ERR_MALFORMED, "symbolic link");
    link_to("../../blobs/../x", "linked.safetensors");
    expect(STATUS_ERR_MALFORMED, "symbolic link");
    link_to("model.safetensors", "linked.safetensors");
    expect(STATUS_ERR_MALFORMED, "symbolic link");
    link_to("/etc/passwd", "config.json");
    expect(STATUS_ERR_MALFORMED, "symbolic link");
}
END_TEST

/* Hugging Face's cache keeps files as blobs and links to them; only this layout is followed. */
START_TEST(the_cache_layout_is_followed)
{
    char path[1024];
    char *top = folder;
    static const char *const FOLDERS[] = {"blobs", "snapshots", "snapshots/rev"};
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", top, FOLDERS[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    (void)snprintf(path, sizeof path, "%s/blobs", top);
    folder = path;
    support_write(folder, "abc123", text, read_fixture("tiny-llama3/model.safetensors"));
    support_write(folder, "def456", text, read_fixture("tiny-llama3/config.json"));
    char snapshot[1024];
    (void)snprintf(snapshot, sizeof snapshot, "%s/snapshots/rev", top);
    folder = snapshot;
    link_to("../../blobs/abc123", "model.safetensors");
    link_to("../../blobs/def456", "config.json");
    expect(STATUS_OK, "");
    folder = top;
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.safetensors");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, hostile_headers_are_refused);
    tcase_add_test(cases, a_header_with_too_many_tensors_is_refused);
    tcase_add_test(cases, a_weights_file_cut_anywhere_is_refused);
    tcase_add_test(cases, flipped_bits_in_a_header_never_crash);
    tcase_add_test(cases, a_config_that_cannot_be_run_is_refused);
    tcase_add_test(cases, experts_that_cannot_be_run_are_refused);
    tcase_add_test(cases, missing_files_are_named);
    tcase_add_test(cases, shards_are_one_model);
    tcase_add_test(cases, shards_never_leave_the_folder);
    tcase_add_test(cases, the_cache_layout_is_followed);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
