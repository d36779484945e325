/* Opening, encoding and looking up; file_tokenizer_gguf.c and _json.c read the two containers. */
#include "file_tokenizer.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#include "file_nfc.h"
#include "file_tokenizer_internal.h"
#include "proto_require.h"

#define NO_SYMBOL UINT32_MAX

static const file_json_limits_t TOKENIZER_LIMITS = {"tokenizer.json", 128 << 20, 16, 12u << 20};

struct file_tokenizer_scratch {
    size_t text_size_bytes_max;
    file_bpe_work_t bpe;
    file_split_work_t split;
    uint8_t *normalised; /* [text_size_bytes_max] */
};

/* One call of encode on its way down to the merges. */
typedef struct {
    const file_tokenizer_t *tokenizer;
    file_tokenizer_scratch_t *scratch;
    const file_encode_t *call;
    size_t id_count;
} encoder_t;

void
file_tokenizer_close(file_tokenizer_t **self_p)
{
    file_tokenizer_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    file_vocab_fini(&self->vocab);
    file_bpe_fini(&self->bpe);
    file_spm_fini(&self->spm);
    file_split_fini(&self->split);
    file_added_fini(&self->added);
    file_added_fini(&self->added_normalised);
    free(self);
    *self_p = NULL;
}

static proto_status_t
new_tokenizer(file_error_t error, file_tokenizer_t **out_p)
{
    file_tokenizer_t *self = sodium_init() >= 0 ? calloc(1, sizeof *self) : NULL;
    if (self == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the tokenizer");
    }
    self->unknown_id = FILE_ID_NONE;
    self->bos_id = FILE_ID_NONE;
    self->eos_id = FILE_ID_NONE;
    *out_p = self;
    return STATUS_OK;
}

/* What both containers leave to do.  Takes the tokenizer over if something is wrong. */
static proto_status_t
finish(file_tokenizer_t *self, proto_status_t status, file_tokenizer_t **out_p)
{
    if (status != STATUS_OK) {
        file_tokenizer_close(&self);
        return status;
    }
    require(self->is_spm || self->split.step_count > 0);
    if (self->is_spm) {
        (void)snprintf(self->summary, sizeof self->summary, "%s, %" PRIu32 " tokens with scores",
                       self->kind, self->vocab.count);
    } else {
        (void)snprintf(self->summary, sizeof self->summary,
                       "%s, %" PRIu32 " tokens, %" PRIu32 " merges", self->kind, self->vocab.count,
                       self->bpe.count);
    }
    *out_p = self;
    return STATUS_OK;
}

/* A tokenizer that can make ids without an embedding is another model's. */
static proto_status_t
check_against_model(const file_tokenizer_t *self, const file_config_t *config, file_error_t error)
{
    if (self->vocab.count > config->vocab_size) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "wrong tokenizer: it has %" PRIu32 " tokens, the model only %" PRIu32
                              " embeddings",
                              self->vocab.count, config->vocab_size);
    }
    return STATUS_OK;
}

proto_status_t
file_tokenizer_open(const file_model_t *model, char *error, size_t error_size_bytes,
                    file_tokenizer_t **out_p)
{
    require(model != NULL);
    require(out_p != NULL);
    file_error_t sink = file_error_init(error, error_size_bytes);
    file_tokenizer_t *self = NULL;
    json_t *root = NULL;
    proto_status_t status = new_tokenizer(sink, &self);
    if (status != STATUS_OK) {
        return status;
    }
    require(self != NULL);
    if (model->is_gguf) {
        status = file_tokenizer_read_gguf(self, &model->gguf, sink);
    } else {
        status = file_model_read_json(model, &TOKENIZER_LIMITS, sink, &root);
        if (status == STATUS_ERR_NOT_FOUND) {
            status = file_error_set(sink, status, "the folder has no tokenizer.json");
        }
        if (status == STATUS_OK) {
            status = file_tokenizer_read_json(self, root, sink);
        }
        json_decref(root);
        self->bos_id = model->config.bos_id;
        self->eos_id = model->config.eos_id;
    }
    if (status == STATUS_OK) {
        status = check_against_model(self, &model->config, sink);
    }
    return finish(self, status, out_p);
}

proto_status_t
file_tokenizer_open_json_bytes(const void *bytes, size_t size_bytes, char *error,
                               size_t error_size_bytes, file_tokenizer_t **out_p)
{
    require(bytes != NULL || size_bytes == 0);
    require(out_p != NULL);
    file_error_t sink = file_error_init(error, error_size_bytes);
    file_tokenizer_t *self = NULL;
    json_t *root = NULL;
    proto_status_t status = file_json_parse(bytes, size_bytes, &TOKENIZER_LIMITS, sink, &root);
    if (status == STATUS_OK) {
        status = new_tokenizer(sink, &self);
    }
    if (status == STATUS_OK) {
        status = file_tokenizer_read_json(self, root, sink);
    }
    json_decref(root);
    return finish(self, status, out_p);
}

proto_status_t
file_tokenizer_open_json(const char *path, char *error, size_t error_size_bytes,
                         file_tokenizer_t **out_p)
{
    require(path != NULL);
    file_error_t sink = file_error_init(error, error_size_bytes);
    file_map_t map = {0};
    proto_status_t status = file_map_open(path, sink, &map);
    if (status != STATUS_OK) {
        return status;
    }
    status =
        file_tokenizer_open_json_bytes(map.bytes, map.size_bytes, error, error_size_bytes, out_p);
    file_map_close(&map);
    return status;
}

proto_status_t
file_tokenizer_add_token(file_tokenizer_t *self, file_added_t *where, int32_t id,
                         file_error_t error)
{
    const file_token_t *token = &self->vocab.tokens[id];
    proto_status_t status =
        file_added_insert(where, file_vocab_bytes(&self->vocab, (uint32_t)id), token->size_bytes,
                          id, token->kind == FILE_TOKEN_SPECIAL);
    if (status == STATUS_ERR_TOO_LARGE) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "tokenizer: too many added tokens");
    }
    return status == STATUS_OK ? status : file_error_set(error, status, "out of memory");
}

proto_status_t
file_tokenizer_scratch_new(size_t text_size_bytes_max, file_tokenizer_scratch_t **out_p)
{
    require(text_size_bytes_max > 0);
    require(text_size_bytes_max <= FILE_TEXT_SIZE_BYTES_MAX);
    file_tokenizer_scratch_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->text_size_bytes_max = text_size_bytes_max;
    self->bpe.piece_size_bytes_max = (uint32_t)text_size_bytes_max;
    self->bpe.symbols = malloc(text_size_bytes_max * sizeof *self->bpe.symbols);
    self->bpe.heap = malloc(2 * text_size_bytes_max * sizeof *self->bpe.heap);
    self->normalised = malloc(text_size_bytes_max);
    if (self->bpe.symbols == NULL || self->bpe.heap == NULL || self->normalised == NULL ||
        file_split_work_init(&self->split) != STATUS_OK) {
        file_tokenizer_scratch_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = self;
    return STATUS_OK;
}

void
file_tokenizer_scratch_destroy(file_tokenizer_scratch_t **self_p)
{
    file_tokenizer_scratch_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    file_split_work_fini(&self->split);
    free(self->bpe.symbols);
    free(self->bpe.heap);
    free(self->normalised);
    free(self);
    *self_p = NULL;
}

static inline proto_status_t
put_id(encoder_t *self, int32_t id)
{
    if (self->id_count == self->call->id_count_max) {
        return STATUS_ERR_TOO_LARGE;
    }
    self->call->ids[self->id_count++] = id;
    return STATUS_OK;
}

/* The bytes of a piece as linked symbols.  A byte that the vocabulary lacks becomes the unknown
 * token if there is one (runs of them fused if so asked) and is left out otherwise. */
static uint32_t
set_symbols(const file_tokenizer_t *tokenizer, file_symbol_t *symbols, const uint8_t *bytes,
            uint32_t size_bytes)
{
    uint32_t count = 0;
    bool was_unknown = false;
    for (uint32_t i = 0; i < size_bytes; i++) {
        int32_t id = tokenizer->vocab.byte_ids[bytes[i]];
        bool is_unknown = id < 0;
        id = is_unknown ? tokenizer->unknown_id : id;
        if (id >= 0 && !(is_unknown && was_unknown && tokenizer->fuse_unknown)) {
            symbols[count] = (file_symbol_t){id, count - 1, count + 1};
            count++;
        }
        was_unknown = is_unknown;
    }
    if (count > 0) {
        symbols[0].previous = NO_SYMBOL;
        symbols[count - 1].next = NO_SYMBOL;
    }
    return count;
}

static proto_status_t
encode_piece(void *context, const uint8_t *bytes, uint32_t size_bytes)
{
    encoder_t *self = context;
    const file_tokenizer_t *tokenizer = self->tokenizer;
    if (tokenizer->ignore_merges) {
        int32_t id = file_vocab_find_normal(&tokenizer->vocab, bytes, size_bytes);
        if (id >= 0) {
            return put_id(self, id);
        }
    }
    file_symbol_t *symbols = self->scratch->bpe.symbols;
    uint32_t count = set_symbols(tokenizer, symbols, bytes, size_bytes);
    file_bpe_merge(&tokenizer->bpe, &self->scratch->bpe, count);
    proto_status_t status = STATUS_OK;
    uint32_t at = count > 0 ? 0 : NO_SYMBOL;
    for (; status == STATUS_OK && at != NO_SYMBOL; at = symbols[at].next) {
        status = put_id(self, symbols[at].id);
    }
    return status;
}

typedef proto_status_t (*segment_fn)(encoder_t *self, const uint8_t *text, size_t size_bytes);

/* Puts the added tokens of a trie and hands on what is between them. */
static proto_status_t
walk_added(encoder_t *self, const file_added_t *added, const uint8_t *text, size_t size_bytes,
           segment_fn rest)
{
    size_t done = 0;
    while (done < size_bytes) {
        size_t begin = size_bytes;
        size_t end = size_bytes;
        int32_t id =
            file_added_find(added, text, size_bytes, done, self->call->parse_special, &begin, &end);
        proto_status_t status = begin > done ? rest(self, text + done, begin - done) : STATUS_OK;
        if (status == STATUS_OK && id >= 0) {
            status = put_id(self, id);
        }
        if (status != STATUS_OK) {
            return status;
        }
        done = end;
    }
    return STATUS_OK;
}

/* A piece without a token: its bytes have tokens, or it is unknown. */
static proto_status_t
put_bytes(encoder_t *self, const uint8_t *bytes, uint32_t size_bytes)
{
    const file_tokenizer_t *tokenizer = self->tokenizer;
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < size_bytes; i++) {
        int32_t id = tokenizer->vocab.byte_ids[bytes[i]];
        if (id < 0) {
            /* One unknown token for the whole piece. */
            return tokenizer->unknown_id >= 0 ? put_id(self, tokenizer->unknown_id) : STATUS_OK;
        }
        status = put_id(self, id);
    }
    return status;
}

/* U+2581 stands for a space in these vocabularies, also where a text holds it itself. */
static size_t
spell_spaces(const uint8_t *text, size_t size_bytes, uint8_t *out)
{
    size_t written = 0;
    for (size_t at = 0; at < size_bytes;) {
        if (size_bytes - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0) {
            out[written++] = ' ';
            at += 3;
        } else {
            out[written++] = text[at++];
        }
    }
    return written;
}

static proto_status_t
encode_scored(encoder_t *self, const uint8_t *text, size_t size_bytes)
{
    const file_tokenizer_t *tokenizer = self->tokenizer;
    file_bpe_work_t *work = &self->scratch->bpe;
    uint8_t *spelled = self->scratch->normalised;
    uint32_t size = (uint32_t)spell_spaces(text, size_bytes, spelled);
    file_spm_merge(&tokenizer->spm, &tokenizer->vocab, work, spelled, size);
    proto_status_t status = STATUS_OK;
    for (uint32_t at = 0; status == STATUS_OK && at != NO_SYMBOL; at = work->symbols[at].next) {
        const file_symbol_t *symbol = &work->symbols[at];
        uint32_t end = symbol->next == NO_SYMBOL ? size : symbol->next;
        status =
            symbol->id >= 0 ? put_id(self, symbol->id) : put_bytes(self, spelled + at, end - at);
    }
    return status;
}

static proto_status_t
encode_plain(encoder_t *self, const uint8_t *text, size_t size_bytes)
{
    if (self->tokenizer->is_spm) {
        return encode_scored(self, text, size_bytes);
    }
    return file_split_run(&self->tokenizer->split, &self->scratch->split, text,
                          (uint32_t)size_bytes, encode_piece, self);
}

/* The working memory of the merges is free while a segment is normalised. */
static proto_status_t
encode_segment(encoder_t *self, const uint8_t *text, size_t size_bytes)
{
    _Static_assert(sizeof(file_symbol_t) >= FILE_NFC_CODES_PER_BYTE * sizeof(uint32_t),
                   "the symbols of a text hold its code points");
    if (self->tokenizer->is_nfc && !file_nfc_is_normal(text, size_bytes)) {
        file_nfc_t call = {
            .text = text,
            .size_bytes = size_bytes,
            .codes = (uint32_t *)(void *)self->scratch->bpe.heap,
            .sorted = (uint32_t *)(void *)self->scratch->bpe.symbols,
            .out = self->scratch->normalised,
            .out_size_bytes = self->scratch->text_size_bytes_max,
        };
        proto_status_t status = file_nfc_normalise(&call, &size_bytes);
        if (status != STATUS_OK) {
            return status;
        }
        text = self->scratch->normalised;
    }
    return walk_added(self, &self->tokenizer->added_normalised, text, size_bytes, encode_plain);
}

proto_status_t
file_tokenizer_encode(const file_tokenizer_t *self, file_tokenizer_scratch_t *scratch,
                      const file_encode_t *call, size_t *id_count)
{
    require(call->text != NULL || call->size_bytes == 0);
    require(call->ids != NULL || call->id_count_max == 0);
    if (call->size_bytes > scratch->text_size_bytes_max) {
        return STATUS_ERR_TOO_LARGE;
    }
    const uint8_t *text = (const uint8_t *)call->text;
    if (!file_utf8_valid(text, call->size_bytes)) {
        return STATUS_ERR_INVALID;
    }
    encoder_t encoder = {.tokenizer = self, .scratch = scratch, .call = call};
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; call->add_special && status == STATUS_OK && i < self->before_count; i++) {
        status = put_id(&encoder, self->before[i]);
    }
    if (status == STATUS_OK) {
        status = walk_added(&encoder, &self->added, text, call->size_bytes, encode_segment);
    }
    for (uint32_t i = 0; call->add_special && status == STATUS_OK && i < self->after_count; i++) {
        status = put_id(&encoder, self->after[i]);
    }
    if (status == STATUS_OK) {
        *id_count = encoder.id_count;
    }
    return status;
}

proto_status_t
file_tokenizer_token_bytes(const file_tokenizer_t *self, int32_t id, file_bytes_t *out)
{
    if (id < 0 || (uint32_t)id >= self->vocab.count ||
        self->vocab.tokens[id].kind == FILE_TOKEN_NONE) {
        return STATUS_ERR_NOT_FOUND;
    }
    out->bytes = (const char *)file_vocab_bytes(&self->vocab, (uint32_t)id);
    out->size_bytes = self->vocab.tokens[id].size_bytes;
    return STATUS_OK;
}

bool
file_tokenizer_is_special(const file_tokenizer_t *self, int32_t id)
{
    return id >= 0 && (uint32_t)id < self->vocab.count &&
           self->vocab.tokens[id].kind == FILE_TOKEN_SPECIAL;
}

int32_t
file_tokenizer_find(const file_tokenizer_t *self, const char *text, size_t size_bytes)
{
    if (size_bytes == 0 || size_bytes > FILE_TOKEN_SIZE_BYTES_MAX) {
        return FILE_ID_NONE;
    }
    int32_t id = file_vocab_find_added(&self->vocab, text, (uint32_t)size_bytes);
    return id >= 0 ? id : file_vocab_find_normal(&self->vocab, text, (uint32_t)size_bytes);
}

uint32_t
file_tokenizer_vocab_size(const file_tokenizer_t *self)
{
    return self->vocab.count;
}

int32_t
file_tokenizer_bos_id(const file_tokenizer_t *self)
{
    return self->bos_id;
}

int32_t
file_tokenizer_eos_id(const file_tokenizer_t *self)
{
    return self->eos_id;
}

uint32_t
file_tokenizer_token_size_bytes_max(const file_tokenizer_t *self)
{
    return self->vocab.token_size_bytes_max;
}

const char *
file_tokenizer_summary(const file_tokenizer_t *self)
{
    return self->summary;
}
