/* The tokenizer from a GGUF's tokenizer.ggml.* keys. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "file_tokenizer_internal.h"
#include "proto_require.h"

/* Token types, as the format numbers them. */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_BYTE = 6,
};

typedef struct {
    const char *name;
    file_split_step_t steps[4];
    uint32_t step_count;
    bool is_nfc; /* the original tokenizer normalises, which no key says */
    bool ignore_merges;
    bool add_bos; /* unless a key says otherwise */
} pre_t;

static const pre_t PRES[] = {
    {"smollm", {FILE_SPLIT_DIGIT, FILE_SPLIT_GPT2}, 2, false, false, false},
    {"gpt-2", {FILE_SPLIT_GPT2}, 1, false, false, false},
    {"gpt2", {FILE_SPLIT_GPT2}, 1, false, false, false},
    {"qwen2", {FILE_SPLIT_QWEN2}, 1, true, false, false},
    {"llama-bpe", {FILE_SPLIT_LLAMA3}, 1, false, true, true},
    {"llama3", {FILE_SPLIT_LLAMA3}, 1, false, true, true},
    {"llama-v3", {FILE_SPLIT_LLAMA3}, 1, false, true, true},
    {"default",
     {FILE_SPLIT_PUNCTUATION, FILE_SPLIT_GPT2, FILE_SPLIT_DIGITS, FILE_SPLIT_THREE_DIGITS},
     4,
     false,
     false,
     false},
};

/* Pieces with scores.  A space put before every text is what older models of this kind want. */
static proto_status_t
read_spm(file_tokenizer_t *self, const file_gguf_t *gguf, bool *add_bos, file_error_t error)
{
    bool space_prefix = true;
    proto_status_t status =
        file_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", &space_prefix, error);
    if (status != STATUS_OK && status != STATUS_ERR_NOT_FOUND) {
        return status;
    }
    if (space_prefix) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "tokenizer.ggml.add_space_prefix is on, which is not supported");
    }
    self->is_spm = true;
    *add_bos = true;
    (void)snprintf(self->kind, sizeof self->kind, "llama/scores");
    return STATUS_OK;
}

/* "<0x0A>" to 10; -1 if it is not spelled so. */
static int
byte_of(file_view_t text)
{
    static const char digits[16] = "0123456789ABCDEF"; /* no text: no zero behind it */
    if (text.size_bytes != 6 || memcmp(text.bytes, "<0x", 3) != 0 || text.bytes[5] != '>') {
        return -1;
    }
    const char *high = memchr(digits, text.bytes[3], sizeof digits);
    const char *low = memchr(digits, text.bytes[4], sizeof digits);
    return high == NULL || low == NULL ? -1 : (int)(16 * (high - digits) + (low - digits));
}

static proto_status_t
read_scores(file_tokenizer_t *self, const file_gguf_t *gguf, file_error_t error)
{
    const file_gguf_value_t *scores = NULL;
    proto_status_t status =
        file_gguf_array(gguf, "tokenizer.ggml.scores", FILE_GGUF_F32, &scores, error);
    if (status == STATUS_ERR_NOT_FOUND ||
        (status == STATUS_OK && scores->count != self->vocab.count_max)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key 'tokenizer.ggml.scores' must have one score for each "
                              "token");
    }
    if (status != STATUS_OK) {
        return status;
    }
    float *values = malloc(scores->count * sizeof *values);
    if (values == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the scores");
    }
    memcpy(values, scores->value.bytes, scores->count * sizeof *values);
    status = file_spm_init(&self->spm, values, (uint32_t)scores->count, error);
    free(values);
    return status;
}

static proto_status_t
read_pre(file_tokenizer_t *self, const file_gguf_t *gguf, bool *add_bos, file_error_t error)
{
    file_view_t model = {0};
    file_view_t name = {(const uint8_t *)"default", 7};
    proto_status_t status = file_gguf_string(gguf, "tokenizer.ggml.model", &model, error);
    if (status == STATUS_ERR_NOT_FOUND) {
        return file_error_set(error, status, "the GGUF has no tokenizer");
    }
    if (status == STATUS_OK && file_view_equals(model, "llama")) {
        return read_spm(self, gguf, add_bos, error);
    }
    if (status == STATUS_OK && !file_view_equals(model, "gpt2")) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "tokenizer model '%s' is not supported; supported are gpt2 "
                              "(byte-level BPE) and llama (pieces with scores)",
                              file_printable(model.bytes, model.size_bytes).text);
    }
    if (status == STATUS_OK) {
        status = file_gguf_string(gguf, "tokenizer.ggml.pre", &name, error);
        status = status == STATUS_ERR_NOT_FOUND ? STATUS_OK : status;
    }
    if (status != STATUS_OK) {
        return status;
    }
    for (size_t i = 0; i < sizeof PRES / sizeof PRES[0]; i++) {
        if (!file_view_equals(name, PRES[i].name)) {
            continue;
        }
        for (uint32_t step = 0; status == STATUS_OK && step < PRES[i].step_count; step++) {
            status = file_split_add(&self->split, PRES[i].steps[step], error);
        }
        self->is_nfc = PRES[i].is_nfc;
        self->ignore_merges = PRES[i].ignore_merges;
        *add_bos = PRES[i].add_bos;
        (void)snprintf(self->kind, sizeof self->kind, "gpt2/%s", PRES[i].name);
        return status;
    }
    return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                          "pre-tokenizer '%s' is not supported; supported are smollm, gpt-2, "
                          "qwen2, llama-bpe, default",
                          file_printable(name.bytes, name.size_bytes).text);
}

static file_token_kind_t
kind_of(uint32_t type)
{
    switch (type) {
    case TYPE_NORMAL:
        return FILE_TOKEN_NORMAL;
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
        return FILE_TOKEN_SPECIAL;
    case TYPE_USER_DEFINED:
        return FILE_TOKEN_ADDED;
    default:
        return FILE_TOKEN_OPAQUE;
    }
}

static proto_status_t
read_tokens(file_tokenizer_t *self, const file_gguf_t *gguf, file_error_t error)
{
    const file_gguf_value_t *tokens = NULL;
    const file_gguf_value_t *types = NULL;
    proto_status_t status =
        file_gguf_array(gguf, "tokenizer.ggml.tokens", FILE_GGUF_STRING, &tokens, error);
    if (status == STATUS_OK) {
        status = file_gguf_array(gguf, "tokenizer.ggml.token_type", FILE_GGUF_I32, &types, error);
    }
    if (status == STATUS_ERR_NOT_FOUND || (status == STATUS_OK && types->count != tokens->count)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF keys 'tokenizer.ggml.tokens' and 'tokenizer.ggml.token_type' "
                              "must be there and have the same length");
    }
    if (status == STATUS_OK) {
        status = file_vocab_init(&self->vocab, tokens->count, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    self->vocab.is_plain = self->is_spm;
    file_cursor_t strings = file_gguf_strings(tokens);
    file_cursor_t kinds = {types->value.bytes, types->value.bytes + types->value.size_bytes, false};
    for (uint64_t id = 0; status == STATUS_OK && id < tokens->count; id++) {
        file_view_t text = file_gguf_next_string(&strings);
        uint32_t type = file_cursor_u32(&kinds);
        file_token_kind_t kind = kind_of(type);
        bool is_byte = self->is_spm && type == TYPE_BYTE;
        int byte = is_byte ? byte_of(text) : -1;
        if (is_byte && byte < 0) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tokenizer: the byte token '%s' is not spelled like <0x0A>",
                                  file_printable(text.bytes, text.size_bytes).text);
        }
        status = byte >= 0 ? file_vocab_set_byte(&self->vocab, id, (uint8_t)byte, error)
                           : file_vocab_set(&self->vocab, id, kind, text, error);
        if (status == STATUS_OK && kind >= FILE_TOKEN_ADDED) {
            status = file_tokenizer_add_token(self, &self->added, (int32_t)id, error);
        }
    }
    file_vocab_finish(&self->vocab);
    return status;
}

static proto_status_t
read_merges(file_tokenizer_t *self, const file_gguf_t *gguf, file_error_t error)
{
    const file_gguf_value_t *merges = NULL;
    proto_status_t status =
        file_gguf_array(gguf, "tokenizer.ggml.merges", FILE_GGUF_STRING, &merges, error);
    if (status == STATUS_ERR_NOT_FOUND) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key 'tokenizer.ggml.merges' is missing");
    }
    if (status == STATUS_OK) {
        status = file_bpe_init(&self->bpe, merges->count, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    file_cursor_t strings = file_gguf_strings(merges);
    for (uint64_t i = 0; status == STATUS_OK && i < merges->count; i++) {
        file_view_t text = file_gguf_next_string(&strings);
        const uint8_t *space = memchr(text.bytes, ' ', text.size_bytes);
        uint64_t left = space != NULL ? (uint64_t)(space - text.bytes) : text.size_bytes;
        uint64_t right = space != NULL ? text.size_bytes - left - 1 : 0;
        status = file_bpe_add(&self->bpe, &self->vocab, (file_view_t){text.bytes, left},
                              (file_view_t){text.bytes + (text.size_bytes - right), right}, error);
    }
    return status;
}

static proto_status_t
read_id(const file_tokenizer_t *self, const file_gguf_t *gguf, const char *key, int32_t *out,
        file_error_t error)
{
    uint64_t value = 0;
    proto_status_t status = file_gguf_u64(gguf, key, &value, error);
    if (status == STATUS_ERR_NOT_FOUND || (status == STATUS_OK && value == UINT32_MAX)) {
        return STATUS_OK;
    }
    if (status == STATUS_OK && value >= self->vocab.count) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key '%s': %" PRIu64 " is over the %" PRIu32 " tokens", key,
                              value, self->vocab.count);
    }
    *out = (int32_t)value;
    return status;
}

static proto_status_t
read_around(file_tokenizer_t *self, const file_gguf_t *gguf, bool add_bos, file_error_t error)
{
    bool add_eos = false;
    proto_status_t status =
        read_id(self, gguf, "tokenizer.ggml.bos_token_id", &self->bos_id, error);
    if (status == STATUS_OK) {
        status = read_id(self, gguf, "tokenizer.ggml.eos_token_id", &self->eos_id, error);
    }
    if (status == STATUS_OK) {
        status = file_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &add_bos, error);
        status = status == STATUS_ERR_NOT_FOUND ? STATUS_OK : status;
    }
    if (status == STATUS_OK) {
        status = file_gguf_bool(gguf, "tokenizer.ggml.add_eos_token", &add_eos, error);
        status = status == STATUS_ERR_NOT_FOUND ? STATUS_OK : status;
    }
    if (add_bos && self->bos_id >= 0) {
        self->before[self->before_count++] = self->bos_id;
    }
    if (add_eos && self->eos_id >= 0) {
        self->after[self->after_count++] = self->eos_id;
    }
    return status;
}

proto_status_t
file_tokenizer_read_gguf(file_tokenizer_t *self, const file_gguf_t *gguf, file_error_t error)
{
    bool add_bos = false;
    proto_status_t status = read_pre(self, gguf, &add_bos, error);
    if (status == STATUS_OK) {
        status = read_tokens(self, gguf, error);
    }
    if (status == STATUS_OK) {
        status = self->is_spm ? read_scores(self, gguf, error) : read_merges(self, gguf, error);
    }
    if (status == STATUS_OK) {
        status = read_around(self, gguf, add_bos, error);
    }
    return status;
}
