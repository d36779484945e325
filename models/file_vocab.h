/* file_vocab.h - the tokens of a byte-level vocabulary: id to bytes, bytes to id.
 * Internal to models/.
 *
 * It owns copies of all texts.  Ordinary tokens are stored as the bytes they stand for, not in the
 * printable spelling of vocabulary files, and can be found by those bytes; added tokens are a
 * second name space.  Filled once, then constant; any thread. */
#ifndef FILE_VOCAB_H
#define FILE_VOCAB_H

#include "file_model.h"
#include "file_support.h"

typedef enum {
    FILE_TOKEN_NONE,    /* a hole in the numbering */
    FILE_TOKEN_NORMAL,  /* a result of merging */
    FILE_TOKEN_OPAQUE,  /* has a text, but no input becomes it */
    FILE_TOKEN_ADDED,   /* matched in every text */
    FILE_TOKEN_SPECIAL, /* added, and left out of answers; matched where special ones are parsed */
} file_token_kind_t;

enum { FILE_TOKEN_SIZE_BYTES_MAX = 1024 };

typedef struct {
    uint64_t offset;
    uint32_t size_bytes;
    uint8_t kind; /* file_token_kind_t */
} file_token_t;

typedef struct {
    uint32_t *slots; /* id + 1; 0 = free */
    uint32_t mask;
} file_vocab_index_t;

typedef struct {
    file_token_t *tokens; /* [count_max] */
    uint32_t count_max;
    uint32_t count; /* highest id + 1 */
    uint8_t *arena;
    uint64_t arena_used_bytes;
    uint64_t arena_size_bytes;
    file_vocab_index_t normal;
    file_vocab_index_t added;
    bool is_plain;         /* NORMAL texts are spelled as they are, U+2581 for a space; set before
                              the first token */
    int32_t byte_ids[256]; /* the token of one byte; FILE_ID_NONE if there is none */
    uint32_t token_size_bytes_max;
    uint8_t hash_key[16]; /* random, so that no file can aim at collisions */
} file_vocab_t;

/* Room for ids below `count_max`. */
MUST_CHECK proto_status_t file_vocab_init(file_vocab_t *self, uint64_t count_max,
                                          file_error_t error);
void file_vocab_fini(file_vocab_t *self);

/* Gives `id` its text as the file spells it (NORMAL: byte-level spelling, decoded here, or plain
 * text; a NORMAL token that is not in that spelling becomes OPAQUE).  STATUS_ERR_MALFORMED: id out
 * of range, empty or too long, not UTF-8, or a text of the same name space that is there already.
 */
MUST_CHECK proto_status_t file_vocab_set(file_vocab_t *self, uint64_t id, file_token_kind_t kind,
                                         file_view_t text, file_error_t error);

/* Makes `id`, which is not set yet, the token of one byte that nothing else stands for: OPAQUE. */
MUST_CHECK proto_status_t file_vocab_set_byte(file_vocab_t *self, uint64_t id, uint8_t byte,
                                              file_error_t error);

/* After the last set: fills byte_ids; of a plain vocabulary it leaves those of set_byte. */
void file_vocab_finish(file_vocab_t *self);

int32_t file_vocab_find_normal(const file_vocab_t *self, const void *bytes, uint32_t size_bytes);
int32_t file_vocab_find_added(const file_vocab_t *self, const void *bytes, uint32_t size_bytes);

/* Decodes byte-level spelling; false if a character is not part of it or `out` is too small. */
bool file_vocab_decode_spelling(file_view_t text, uint8_t *out, size_t out_size_bytes,
                                uint32_t *size_bytes);

static inline const uint8_t *
file_vocab_bytes(const file_vocab_t *self, uint32_t id)
{
    return self->arena + self->tokens[id].offset;
}

#endif
