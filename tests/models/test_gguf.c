/* Hostile GGUF files: each class of damage gets a clear error, none a crash. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_chat_template.h"
#include "file_model.h"
#include "file_tokenizer.h"
#include "support.h"

enum {
    FILE_MAX = 1 << 16,
    HIDDEN = 32,
    VOCAB = 12,
    TENSORS = 11,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    BOOL = 7,
    STRING = 8,
    ARRAY = 9,
};

/* A file under construction. */
typedef struct {
    uint8_t bytes[FILE_MAX];
    size_t size_bytes;
    uint64_t value_count;
    size_t value_count_at;
} builder_t;

static builder_t builder;
static char path[600];
static char *folder;
static char error[FILE_ERROR_SIZE_BYTES];

static void
put(const void *bytes, size_t size_bytes)
{
    ck_assert_uint_le(size_bytes, sizeof builder.bytes - builder.size_bytes);
    memcpy(builder.bytes + builder.size_bytes, bytes, size_bytes);
    builder.size_bytes += size_bytes;
}

static void
put_u32(uint32_t value)
{
    put(&value, sizeof value);
}

static void
put_u64(uint64_t value)
{
    put(&value, sizeof value);
}

static void
put_string(const char *text)
{
    put_u64(strlen(text));
    put(text, strlen(text));
}

static void
key(const char *name, uint32_t type)
{
    put_string(name);
    put_u32(type);
    builder.value_count++;
}

static void
key_u32(const char *name, uint32_t value)
{
    key(name, U32);
    put_u32(value);
}

static void
key_f32(const char *name, float value)
{
    key(name, F32);
    put(&value, sizeof value);
}

static void
key_string(const char *name, const char *text)
{
    key(name, STRING);
    put_string(text);
}

static void
key_array(const char *name, uint32_t type, uint64_t count)
{
    key(name, ARRAY);
    put_u32(type);
    put_u64(count);
}

/* One change to the valid file; zero fields change nothing. */
typedef struct {
    const char *magic;
    uint32_t version;
    uint64_t tensor_count; /* written instead of the real one */
    uint64_t value_count;
    const char *skip;   /* this key is left out */
    void (*more)(void); /* adds keys */
    const char *arch;
    uint32_t head_count;
    uint32_t kv_head_count;
    const char *tensor; /* the tensor that the rest is about */
    const char *name;
    uint32_t rank;
    uint64_t shape[4];
    uint32_t type_plus_one;
    int64_t offset_plus;
    int64_t data_size_plus; /* bytes of the file after the last tensor */
    uint32_t token_type;    /* of the token array's elements */
    uint64_t type_count;    /* length of token_type */
    bool has_alignment;
    uint32_t alignment;
    bool is_scored;         /* a tokenizer of pieces with scores */
    uint32_t score_count;   /* instead of one for each token */
    const char *byte_token; /* instead of <0x62> */
} change_t;

static bool
skips(const change_t *change, const char *name)
{
    return change->skip != NULL && strcmp(change->skip, name) == 0;
}

static void
put_tokenizer(const change_t *change)
{
    static const char *const TOKENS[VOCAB] = {"<|im_start|>",
                                              "<|im_end|>",
                                              "a",
                                              "b",
                                              "c",
                                              "ab",
                                              "abc",
                                              "\xc4\xa0",
                                              ("\xc4\xa0"
                                               "a"),
                                              "x",
                                              "1",
                                              "."};
    key_string("tokenizer.ggml.model", "gpt2");
    key_string("tokenizer.ggml.pre", "smollm");
    key_array("tokenizer.ggml.tokens", change->token_type != 0 ? change->token_type : STRING,
              VOCAB);
    for (int i = 0; i < VOCAB; i++) {
        if (change->token_type == 0) {
            put_string(TOKENS[i]);
        } else {
            put_u32((uint32_t)i);
        }
    }
    uint64_t type_count = change->type_count != 0 ? change->type_count : VOCAB;
    key_array("tokenizer.ggml.token_type", I32, type_count);
    for (uint64_t i = 0; i < type_count; i++) {
        put_u32(i < 2 ? 3 : 1);
    }
    key_array("tokenizer.ggml.merges", STRING, 3);
    put_string("a b");
    put_string("ab c");
    put_string("\xc4\xa0 a");
    key_u32("tokenizer.ggml.eos_token_id", 1);
    key_string("tokenizer.chat_template", "{{ messages }}");
}

/* Pieces with scores: "b" is missing and falls back to its byte. */
static void
put_scored_tokenizer(const change_t *change)
{
    static const char *const TOKENS[VOCAB] = {
        "<pad>",
        "<eos>",
        "a",
        "<0x62>",
        "c",
        "\xe2\x96\x81",
        "ca",
        "aa",
        ("\xe2\x96\x81"
         "a"),
        "1",
        ".",
        "  ",
    };
    static const uint32_t TYPES[VOCAB] = {3, 3, 1, 6, 1, 1, 1, 1, 1, 1, 1, 4};
    key_string("tokenizer.ggml.model", "llama");
    key_array("tokenizer.ggml.tokens", STRING, VOCAB);
    for (int i = 0; i < VOCAB; i++) {
        put_string(i == 3 && change->byte_token != NULL ? change->byte_token : TOKENS[i]);
    }
    key_array("tokenizer.ggml.token_type", I32, VOCAB);
    for (int i = 0; i < VOCAB; i++) {
        put_u32(TYPES[i]);
    }
    uint32_t score_count = change->score_count != 0 ? change->score_count : VOCAB;
    key_array("tokenizer.ggml.scores", F32, score_count);
    for (uint32_t i = 0; i < score_count; i++) {
        float score = -(float)i;
        put(&score, sizeof score);
    }
    key_u32("tokenizer.ggml.eos_token_id", 1);
    key("tokenizer.ggml.add_space_prefix", BOOL);
    put("\0", 1);
}

static void
put_keys(const change_t *change)
{
    const char *arch = change->arch != NULL ? change->arch : "llama";
    if (!skips(change, "general.architecture")) {
        key_string("general.architecture", arch);
    }
    if (change->has_alignment) {
        key_u32("general.alignment", change->alignment);
    }
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        {"block_count", 1},
        {"context_length", 64},
        {"embedding_length", HIDDEN},
        {"feed_forward_length", 64},
        {"attention.head_count", change->head_count != 0 ? change->head_count : 4},
        {"attention.head_count_kv", change->kv_head_count != 0 ? change->kv_head_count : 2},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "llama.%s", numbers[i].name);
        if (!skips(change, name)) {
            key_u32(name, numbers[i].value);
        }
    }
    key_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (change->is_scored) {
        put_scored_tokenizer(change);
    } else {
        put_tokenizer(change);
    }
    if (change->more != NULL) {
        change->more();
    }
}

typedef struct {
    const char *name;
    uint32_t rank;
    uint64_t shape[2]; /* innermost first, as the file has it */
    uint32_t type;
    uint64_t size_bytes;
} tensor_t;

static const tensor_t TABLE[TENSORS] = {
    {"token_embd.weight", 2, {HIDDEN, VOCAB}, 8, VOCAB * 34},
    {"output_norm.weight", 1, {HIDDEN}, 0, HIDDEN * 4},
    {"blk.0.attn_norm.weight", 1, {HIDDEN}, 0, HIDDEN * 4},
    {"blk.0.attn_q.weight", 2, {HIDDEN, 32}, 3, 32 * 20},
    {"blk.0.attn_k.weight", 2, {HIDDEN, 16}, 2, 16 * 18},
    {"blk.0.attn_v.weight", 2, {HIDDEN, 16}, 6, 16 * 22},
    {"blk.0.attn_output.weight", 2, {32, HIDDEN}, 1, HIDDEN * 64},
    {"blk.0.ffn_norm.weight", 1, {HIDDEN}, 0, HIDDEN * 4},
    {"blk.0.ffn_gate.weight", 2, {HIDDEN, 64}, 30, 64 * 64},
    {"blk.0.ffn_up.weight", 2, {HIDDEN, 64}, 0, 64 * 128},
    {"blk.0.ffn_down.weight", 2, {64, HIDDEN}, 8, HIDDEN * 68},
};

static uint64_t
padded(uint64_t size_bytes)
{
    return (size_bytes + 31) / 32 * 32;
}

/* Builds the valid file with one change in it. */
static void
build(const change_t *change)
{
    builder.size_bytes = 0;
    builder.value_count = 0;
    put(change->magic != NULL ? change->magic : "GGUF", 4);
    put_u32(change->version != 0 ? change->version : 3);
    put_u64(change->tensor_count != 0 ? change->tensor_count : TENSORS);
    builder.value_count_at = builder.size_bytes;
    put_u64(0);
    put_keys(change);
    uint64_t count = change->value_count != 0 ? change->value_count : builder.value_count;
    memcpy(builder.bytes + builder.value_count_at, &count, sizeof count);
    uint64_t offset = 0;
    for (int i = 0; i < TENSORS; i++) {
        const tensor_t *tensor = &TABLE[i];
        bool is_it = change->tensor != NULL && strcmp(change->tensor, tensor->name) == 0;
        uint32_t rank = is_it && change->rank != 0 ? change->rank : tensor->rank;
        put_string(is_it && change->name != NULL ? change->name : tensor->name);
        put_u32(rank == UINT32_MAX ? 0 : rank);
        for (uint32_t k = 0; k < rank && k < 8; k++) {
            bool is_changed = is_it && change->rank != 0;
            put_u64(is_changed ? change->shape[k % 4] : tensor->shape[k % 2]);
        }
        put_u32(is_it && change->type_plus_one != 0 ? change->type_plus_one - 1 : tensor->type);
        put_u64(offset + (uint64_t)(is_it ? change->offset_plus : 0));
        offset += padded(tensor->size_bytes);
    }
    while (builder.size_bytes % 32 != 0) {
        put("", 1);
    }
    uint64_t data_size_bytes = offset + (uint64_t)change->data_size_plus;
    for (uint64_t i = 0; i < data_size_bytes; i++) {
        uint8_t byte = (uint8_t)(i * 37 % 251 & 0x3f);
        put(&byte, 1);
    }
}

static void
write_file(size_t size_bytes)
{
    support_write(folder, "x.gguf", builder.bytes, size_bytes);
}

/* Opens the file and everything in it, reads every byte of it. */
static proto_status_t
open_all(void)
{
    file_model_t *model = NULL;
    proto_status_t status = file_model_open(path, error, sizeof error, &model);
    ck_assert((status == STATUS_OK) == (model != NULL));
    if (status != STATUS_OK) {
        ck_assert_msg(error[0] != '\0', "status %s without a text", proto_status_name(status));
        return status;
    }
    file_model_prefetch(model, NULL, NULL);
    file_tokenizer_t *tokenizer = NULL;
    file_chat_template_t *template = NULL;
    char other[FILE_ERROR_SIZE_BYTES];
    status = file_tokenizer_open(model, error, sizeof error, &tokenizer);
    if (status == STATUS_OK) {
        file_tokenizer_scratch_t *scratch = NULL;
        int32_t ids[64];
        size_t count = 0;
        ck_assert_int_eq(file_tokenizer_scratch_new(64, &scratch), STATUS_OK);
        file_encode_t call = {"abc a<|im_end|>1.", 17, true, true, ids, 64};
        ck_assert_int_eq(file_tokenizer_encode(tokenizer, scratch, &call, &count), STATUS_OK);
        file_tokenizer_scratch_destroy(&scratch);
    }
    (void)!file_chat_template_open(model, other, sizeof other, &template);
    file_chat_template_close(&template);
    file_tokenizer_close(&tokenizer);
    file_model_close(&model);
    return status;
}

static void
set_up(void)
{
    folder = support_temp_folder();
    (void)snprintf(path, sizeof path, "%s/x.gguf", folder);
}

static void
tear_down(void)
{
    support_remove_folder(folder);
}

static void
expect(const change_t *change, proto_status_t status, const char *text)
{
    build(change);
    write_file(builder.size_bytes);
    proto_status_t found = open_all();
    ck_assert_msg(found == status, "expected %s with '%s', got %s: %s", proto_status_name(status),
                  text, proto_status_name(found), error);
    ck_assert_msg(strstr(error, text) != NULL, "'%s' lacks '%s'", error, text);
}

START_TEST(pieces_with_scores_are_read)
{
    expect(&(change_t){.is_scored = true}, STATUS_OK, "");
    file_model_t *model = NULL;
    file_tokenizer_t *tokenizer = NULL;
    file_tokenizer_scratch_t *scratch = NULL;
    ck_assert_int_eq(file_model_open(path, error, sizeof error, &model), STATUS_OK);
    ck_assert_int_eq(file_tokenizer_open(model, error, sizeof error, &tokenizer), STATUS_OK);
    ck_assert_int_eq(file_tokenizer_scratch_new(64, &scratch), STATUS_OK);
    /* "ca" scores better than "aa"; two spaces are a token of the user's; "b" is a byte. */
    static const char TEXT[] = "caa a  b\xe2\x96\x81"
                               "a1";
    static const int32_t WANTED[] = {6, 2, 8, 11, 3, 8, 9};
    int32_t ids[32];
    size_t count = 0;
    file_encode_t call = {TEXT, sizeof TEXT - 1, false, false, ids, 32};
    ck_assert_int_eq(file_tokenizer_encode(tokenizer, scratch, &call, &count), STATUS_OK);
    ck_assert_uint_eq(count, sizeof WANTED / sizeof WANTED[0]);
    ck_assert_mem_eq(ids, WANTED, sizeof WANTED);
    file_bytes_t bytes;
    ck_assert_int_eq(file_tokenizer_token_bytes(tokenizer, 3, &bytes), STATUS_OK);
    ck_assert_uint_eq(bytes.size_bytes, 1);
    ck_assert_int_eq(bytes.bytes[0], 'b');
    ck_assert_int_eq(file_tokenizer_token_bytes(tokenizer, 8, &bytes), STATUS_OK);
    ck_assert_mem_eq(bytes.bytes, " a", 2);
    file_tokenizer_scratch_destroy(&scratch);
    file_tokenizer_close(&tokenizer);
    file_model_close(&model);

    expect(&(change_t){.is_scored = true, .score_count = 5}, STATUS_ERR_MALFORMED, "scores");
    expect(&(change_t){.is_scored = true, .byte_token = "<0x6b>"}, STATUS_ERR_MALFORMED, "spelled");
}
END_TEST

/* The file that all others are changed from is right: it opens, with every type in it. */
START_TEST(the_unchanged_file_opens)
{
    expect(&(change_t){0}, STATUS_OK, "");
    expect(&(change_t){.version = 2}, STATUS_OK, "");
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(path, error, sizeof error, &model), STATUS_OK);
    const file_config_t *config = file_model_config(model);
    ck_assert_int_eq(config->arch, FILE_ARCH_LLAMA);
    ck_assert_int_eq(config->rope_style, FILE_ROPE_INTERLEAVED);
    ck_assert_uint_eq(config->head_dim, 8);
    ck_assert_uint_eq(config->rope_dim, 8);
    ck_assert_uint_eq(config->vocab_size, VOCAB);
    ck_assert(config->tied_embeddings);
    ck_assert_int_eq(config->eos_id, 1);
    ck_assert_int_eq(config->bos_id, FILE_ID_NONE);
    ck_assert_uint_eq(config->stop_id_count, 1);
    ck_assert_str_eq(config->name, "x.gguf");
    file_tensor_t tensor;
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_ATTN_K, 0, &tensor), STATUS_OK);
    ck_assert_int_eq(tensor.dtype, FILE_DTYPE_Q4_0);
    ck_assert_uint_eq(tensor.rows, 16);
    ck_assert_uint_eq(tensor.cols, HIDDEN);
    ck_assert_uint_eq(tensor.size_bytes, 16 * 18);
    uint64_t sum = padded(VOCAB * 34) + 2 * HIDDEN * 4 + 32 * 20;
    uint64_t start = builder.size_bytes;
    for (int i = 0; i < TENSORS; i++) {
        start -= padded(TABLE[i].size_bytes);
    }
    ck_assert_mem_eq(tensor.data, builder.bytes + start + sum, tensor.size_bytes);
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_ATTN_Q_NORM, 0, &tensor),
                     STATUS_ERR_NOT_FOUND);
    file_model_close(&model);
}
END_TEST

START_TEST(a_wrong_header_is_refused)
{
    expect(&(change_t){.magic = "GGML"}, STATUS_ERR_MALFORMED, "not a GGUF");
    expect(&(change_t){.version = 1}, STATUS_ERR_UNSUPPORTED, "version 1");
    expect(&(change_t){.version = 4}, STATUS_ERR_UNSUPPORTED, "version 4");
    expect(&(change_t){.version = 0x03000000}, STATUS_ERR_UNSUPPORTED, "big-endian");
    expect(&(change_t){.value_count = UINT64_MAX}, STATUS_ERR_MALFORMED, "keys");
    expect(&(change_t){.value_count = 65537}, STATUS_ERR_MALFORMED, "keys");
    /* The keys after the first are then read as tensors. */
    expect(&(change_t){.value_count = 1}, STATUS_ERR_UNSUPPORTED, "tensor 'llama.");
    expect(&(change_t){.tensor_count = UINT64_MAX}, STATUS_ERR_MALFORMED, "tensors");
    expect(&(change_t){.tensor_count = 1ull << 61}, STATUS_ERR_MALFORMED, "tensors");
    expect(&(change_t){.tensor_count = TENSORS + 1}, STATUS_ERR_MALFORMED, "");
    expect(&(change_t){.tensor_count = TENSORS - 1}, STATUS_ERR_MALFORMED, "");
}
END_TEST

static void
add_duplicate(void)
{
    key_u32("llama.block_count", 1);
}
static void
add_long_key(void)
{
    put_u64(UINT64_MAX - 3);
    put_u32(U32);
    builder.value_count++;
}
static void
add_empty_key(void)
{
    key_u32("", 1);
}
static void
add_long_string(void)
{
    key("x", STRING);
    put_u64(UINT64_MAX);
}
static void
add_long_array(void)
{
    key_array("x", U32, 1ull << 62);
}
static void
add_array_past_end(void)
{
    key_array("x", U32, 1 << 23);
}
static void
add_string_array_past_end(void)
{
    key_array("x", STRING, 1 << 24);
    put_u64(1ull << 40);
}
static void
add_nested_array(void)
{
    key_array("x", ARRAY, 1);
    put_u32(U32);
    put_u64(1);
    put_u32(7);
}
static void
add_unknown_type(void)
{
    key("x", 13);
    put_u32(7);
}
static void
add_bad_bool(void)
{
    key("x", BOOL);
    put("\x02", 1);
}
static void
add_bad_alignment(void)
{
    key_string("general.alignment", "32");
}
static void
add_split(void)
{
    key_u32("split.count", 3);
}
static void
add_scaling(void)
{
    key_string("llama.rope.scaling.type", "yarn");
}
static void
add_nan(void)
{
    uint32_t bits = 0x7fc00000;
    key("llama.rope.freq_base", F32);
    put(&bits, 4);
}
static void
add_negative(void)
{
    key("llama.rope.dimension_count", I32);
    put_u32(0xfffffff8);
}
static void
add_odd_rope(void)
{
    key_u32("llama.rope.dimension_count", 7);
}
static void
add_large_id(void)
{
    key_u32("tokenizer.ggml.bos_token_id", VOCAB);
}
static void
add_experts(void)
{
    key_u32("llama.expert_count", 8);
}

START_TEST(hostile_keys_are_refused)
{
    const struct {
        void (*more)(void);
        proto_status_t status;
        const char *text;
    } cases[] = {
        {add_duplicate, STATUS_ERR_MALFORMED, "'llama.block_count' stands twice"},
        {add_long_key, STATUS_ERR_MALFORMED, "key"},
        {add_empty_key, STATUS_ERR_MALFORMED, "key"},
        {add_long_string, STATUS_ERR_MALFORMED, "'x'"},
        {add_long_array, STATUS_ERR_MALFORMED, "elements"},
        {add_array_past_end, STATUS_ERR_MALFORMED, "cut off"},
        {add_string_array_past_end, STATUS_ERR_MALFORMED, "cut off"},
        {add_nested_array, STATUS_ERR_MALFORMED, "type 9"},
        {add_unknown_type, STATUS_ERR_MALFORMED, "type 13"},
        {add_bad_bool, STATUS_ERR_MALFORMED, "out of range"},
        {add_bad_alignment, STATUS_ERR_MALFORMED, "general.alignment"},
        {add_split, STATUS_ERR_UNSUPPORTED, "split into 3"},
        {add_scaling, STATUS_ERR_UNSUPPORTED, "yarn"},
        {add_nan, STATUS_ERR_MALFORMED, "not finite"},
        {add_negative, STATUS_ERR_MALFORMED, "negative"},
        {add_odd_rope, STATUS_ERR_MALFORMED, "must be even"},
        {add_large_id, STATUS_ERR_MALFORMED, "over the vocabulary"},
        {add_experts, STATUS_ERR_UNSUPPORTED, "experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect(&(change_t){.more = cases[i].more}, cases[i].status, cases[i].text);
    }
    static const uint32_t ALIGNMENTS[] = {0, 1, 4, 24, 33, 8192, 0x80000000};
    for (size_t i = 0; i < sizeof ALIGNMENTS / sizeof ALIGNMENTS[0]; i++) {
        expect(&(change_t){.has_alignment = true, .alignment = ALIGNMENTS[i]}, STATUS_ERR_MALFORMED,
               "general.alignment");
    }
    expect(&(change_t){.has_alignment = true, .alignment = 32}, STATUS_OK, "");
    expect(&(change_t){.has_alignment = true, .alignment = 4096}, STATUS_ERR_MALFORMED, "aligned");
}
END_TEST

START_TEST(a_config_that_cannot_be_run_is_refused)
{
    expect(&(change_t){.arch = "falcon"}, STATUS_ERR_UNSUPPORTED, "llama, qwen3");
    expect(&(change_t){.arch = "deepseek2"}, STATUS_ERR_UNSUPPORTED, "folder");
    expect(&(change_t){.arch = "qwen3"}, STATUS_ERR_MALFORMED, "qwen3.block_count");
    expect(&(change_t){.skip = "general.architecture"}, STATUS_ERR_MALFORMED, "missing");
    expect(&(change_t){.skip = "llama.block_count"}, STATUS_ERR_MALFORMED, "missing");
    expect(&(change_t){.skip = "llama.context_length"}, STATUS_ERR_MALFORMED, "missing");
    expect(&(change_t){.skip = "llama.embedding_length"}, STATUS_ERR_MALFORMED, "missing");
    expect(&(change_t){.kv_head_count = 3}, STATUS_ERR_MALFORMED, "cannot share");
    expect(&(change_t){.head_count = 2}, STATUS_ERR_MALFORMED, "attn_k.weight");
    expect(&(change_t){.head_count = 1u << 31}, STATUS_ERR_MALFORMED, "head count");
}
END_TEST

START_TEST(hostile_tensors_are_refused)
{
    const char *down = "blk.0.ffn_down.weight";
    const char *gate = "blk.0.ffn_gate.weight";
    const change_t malformed[] = {
        {.tensor = gate, .name = "blk.0.ffn_up.weight"},
        {.tensor = gate, .name = ""},
        {.tensor = gate, .rank = UINT32_MAX},
        {.tensor = gate, .rank = 5, .shape = {32, 64, 1, 1}},
        {.tensor = gate, .rank = 2, .shape = {32, 0}},
        {.tensor = gate, .rank = 3, .shape = {4194305, 4194305, 211106198978564}},
        {.tensor = gate, .rank = 4, .shape = {1ull << 32, 1ull << 32, 1ull << 32, 1ull << 32}},
        {.tensor = gate, .rank = 2, .shape = {1ull << 62, 4}},
        {.tensor = gate, .rank = 2, .shape = {UINT64_MAX, 1}},
        {.tensor = gate, .rank = 2, .shape = {64, 32}},
        {.tensor = gate, .rank = 1, .shape = {2048}},
        {.tensor = down, .rank = 2, .shape = {48, 32}},
        {.tensor = gate, .offset_plus = 1},
        {.tensor = gate, .offset_plus = -32},
        {.tensor = gate, .offset_plus = 32},
        {.tensor = gate, .offset_plus = 1ll << 40},
        {.tensor = gate, .offset_plus = INT64_MIN},
        {.tensor = down, .offset_plus = 32},
        {.tensor = down, .rank = 2, .shape = {64, 64}},
        {.data_size_plus = -32},
        {.data_size_plus = 64},
    };
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        expect(&malformed[i], STATUS_ERR_MALFORMED, "");
    }
    expect(&(change_t){.tensor = gate, .type_plus_one = 8}, STATUS_ERR_UNSUPPORTED, "Q5_1");
    /* This one's rows are as long in MXFP4, padding included. */
    expect(&(change_t){.tensor = "blk.0.attn_k.weight", .type_plus_one = 40},
           STATUS_ERR_UNSUPPORTED, "MXFP4 is for experts");
    expect(&(change_t){.tensor = gate, .type_plus_one = 8}, STATUS_ERR_UNSUPPORTED, "Q6_K");
    expect(&(change_t){.tensor = gate, .type_plus_one = 1000}, STATUS_ERR_UNSUPPORTED, "999");
    expect(&(change_t){.tensor = gate, .type_plus_one = 13}, STATUS_ERR_MALFORMED, "whole blocks");
    expect(&(change_t){.tensor = "blk.0.ffn_norm.weight", .type_plus_one = 9}, STATUS_ERR_MALFORMED,
           "");
    /* The text names tensor, expected and found. */
    expect(&(change_t){.tensor = gate, .rank = 2, .shape = {32, 63}}, STATUS_ERR_MALFORMED, "");
    expect(&(change_t){.tensor = gate, .rank = 2, .shape = {64, 32}}, STATUS_ERR_MALFORMED,
           "'blk.0.ffn_gate.weight': the config needs shape [64, 32], the file has [32, 64]");
    expect(&(change_t){.tensor = gate, .name = "blk.0.ffn_gate_exps.weight"}, STATUS_ERR_MALFORMED,
           "'blk.0.ffn_gate.weight' is missing");
}
END_TEST

/* An array of numbers read as an array of strings was a real hole elsewhere. */
START_TEST(arrays_of_another_type_are_refused)
{
    expect(&(change_t){.token_type = U32}, STATUS_ERR_MALFORMED, "array of u32");
    expect(&(change_t){.token_type = I32}, STATUS_ERR_MALFORMED, "array of i32");
    expect(&(change_t){.type_count = VOCAB - 1}, STATUS_ERR_MALFORMED, "same length");
    expect(&(change_t){.type_count = VOCAB + 1}, STATUS_ERR_MALFORMED, "same length");
}
END_TEST

/* A download that stopped must never look like a model, wherever it stopped. */
START_TEST(a_file_cut_anywhere_is_refused)
{
    build(&(change_t){0});
    size_t size_bytes = builder.size_bytes;
    for (size_t cut = 0; cut < size_bytes; cut += cut < 4096 ? 1 : 7) {
        write_file(cut);
        ck_assert_msg(open_all() != STATUS_OK || cut + 32 > size_bytes, "cut at %zu opened", cut);
    }
    write_file(size_bytes);
    ck_assert_int_eq(open_all(), STATUS_OK);
}
END_TEST

/* Flipped bits, seeded: an error or a model that can be read, never a crash (run with ASan). */
START_TEST(flipped_bits_never_crash)
{
    uint64_t state = support_seed();
    build(&(change_t){0});
    size_t header = 0;
    for (int i = 0; i < TENSORS; i++) {
        header += padded(TABLE[i].size_bytes);
    }
    header = builder.size_bytes - header;
    int opened = 0;
    for (int round = 0; round < 6000; round++) {
        size_t places[3];
        uint8_t kept[3];
        int count = 1 + round % 3;
        for (int i = 0; i < count; i++) {
            places[i] = support_random(&state) % header;
            kept[i] = builder.bytes[places[i]];
            builder.bytes[places[i]] ^= (uint8_t)(1u << support_random(&state) % 8);
        }
        write_file(builder.size_bytes);
        opened += open_all() == STATUS_OK;
        for (int i = count; i-- > 0;) {
            builder.bytes[places[i]] = kept[i];
        }
    }
    printf("%d of 6000 damaged files still open\n", opened);
}
END_TEST

START_TEST(paths_that_are_no_files_are_refused)
{
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open("/nope/x.gguf", error, sizeof error, &model), STATUS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error, "/nope/x.gguf"));
    ck_assert_int_eq(file_model_open("/dev/zero", error, sizeof error, &model),
                     STATUS_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(error, "no regular file"));
    ck_assert_int_eq(file_model_open("", error, sizeof error, &model), STATUS_ERR_IO);
    write_file(0);
    ck_assert_int_eq(file_model_open(path, error, sizeof error, &model), STATUS_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(error, "empty"));
    ck_assert_ptr_null(model);
    char tiny[8];
    ck_assert_int_eq(file_model_open("/nope/x.gguf", tiny, sizeof tiny, &model), STATUS_ERR_IO);
    ck_assert_uint_eq(strlen(tiny), 7);
    ck_assert_int_eq(file_model_open("/nope/x.gguf", NULL, 0, &model), STATUS_ERR_IO);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.gguf");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, the_unchanged_file_opens);
    tcase_add_test(cases, pieces_with_scores_are_read);
    tcase_add_test(cases, a_wrong_header_is_refused);
    tcase_add_test(cases, hostile_keys_are_refused);
    tcase_add_test(cases, a_config_that_cannot_be_run_is_refused);
    tcase_add_test(cases, hostile_tensors_are_refused);
    tcase_add_test(cases, arrays_of_another_type_are_refused);
    tcase_add_test(cases, a_file_cut_anywhere_is_refused);
    tcase_add_test(cases, flipped_bits_never_crash);
    tcase_add_test(cases, paths_that_are_no_files_are_refused);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
