/* file_tokenizer.h - text to tokens and back: byte-level BPE from a GGUF's tokenizer keys or from
 * a folder's tokenizer.json.
 *
 * A tokenizer owns the vocabulary, the merge table, the special tokens and the compiled
 * pre-tokenizer pattern; it does not change after open and any thread may use it.  What a call
 * needs to work is in a scratch object, one for each thread.  Encoding time is O(n log n) in the
 * text, whatever the text is; callers still check their byte limits first, and encode off the
 * thread that serves sockets.  The model must outlive its tokenizer. */
#ifndef FILE_TOKENIZER_H
#define FILE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "file_model.h"
#include "proto_status.h"

typedef struct file_tokenizer file_tokenizer_t;                 /* opaque */
typedef struct file_tokenizer_scratch file_tokenizer_scratch_t; /* opaque; one thread's */

enum {
    FILE_TEXT_SIZE_BYTES_MAX = 16 << 20, /* one text to encode */
};

/* Reads the model's tokenizer.  STATUS_ERR_NOT_FOUND: the checkpoint has none;
 * STATUS_ERR_MALFORMED: broken, or more tokens than the model has embeddings ("wrong tokenizer");
 * STATUS_ERR_UNSUPPORTED: a kind that cannot be run (the text says which are).
 * The caller owns *out_p. */
MUST_CHECK proto_status_t file_tokenizer_open(const file_model_t *model, char *error,
                                              size_t error_size_bytes, file_tokenizer_t **out_p);

/* Reads a tokenizer.json by itself (tests and tools). */
MUST_CHECK proto_status_t file_tokenizer_open_json(const char *path, char *error,
                                                   size_t error_size_bytes,
                                                   file_tokenizer_t **out_p);

/* The same from `size_bytes` bytes in memory. */
MUST_CHECK proto_status_t file_tokenizer_open_json_bytes(const void *bytes, size_t size_bytes,
                                                         char *error, size_t error_size_bytes,
                                                         file_tokenizer_t **out_p);

void file_tokenizer_close(file_tokenizer_t **self_p);

/* Working memory for texts of up to `text_size_bytes_max` bytes (about 30 bytes for each byte of
 * the longest piece, allocated here and never again).  A longer text is STATUS_ERR_TOO_LARGE. */
MUST_CHECK proto_status_t file_tokenizer_scratch_new(size_t text_size_bytes_max,
                                                     file_tokenizer_scratch_t **out_p);
void file_tokenizer_scratch_destroy(file_tokenizer_scratch_t **self_p);

typedef struct {
    const char *text; /* UTF-8, not necessarily terminated */
    size_t size_bytes;
    bool parse_special; /* special tokens in the text become their ids; else they are plain text */
    bool add_special;   /* add what the tokenizer puts around a text (usually bos, or nothing) */
    int32_t *ids;       /* out: [id_count_max] */
    size_t id_count_max;
} file_encode_t;

/* Encodes without allocating.  Added tokens that are not special are always matched.
 * *id_count is written only on STATUS_OK.  STATUS_ERR_INVALID: not UTF-8;
 * STATUS_ERR_TOO_LARGE: more than id_count_max tokens, or a text over the scratch's limit (stops
 * at once; the ids are then unspecified). */
MUST_CHECK proto_status_t file_tokenizer_encode(const file_tokenizer_t *self,
                                                file_tokenizer_scratch_t *scratch,
                                                const file_encode_t *call, size_t *id_count);

typedef struct {
    const char *bytes; /* lent until the tokenizer is closed; may hold a part of a character */
    uint32_t size_bytes;
} file_bytes_t;

/* The bytes a token stands for, special tokens as their text.  STATUS_ERR_NOT_FOUND for an id
 * that the vocabulary lacks (a model may have more embeddings than tokens). */
MUST_CHECK proto_status_t file_tokenizer_token_bytes(const file_tokenizer_t *self, int32_t id,
                                                     file_bytes_t *out);

/* True for control tokens, which a detokenizer leaves out of an answer. */
bool file_tokenizer_is_special(const file_tokenizer_t *self, int32_t id);

/* The id of the token that has exactly this text, special ones included; FILE_ID_NONE if none. */
int32_t file_tokenizer_find(const file_tokenizer_t *self, const char *text, size_t size_bytes);

uint32_t file_tokenizer_vocab_size(const file_tokenizer_t *self); /* highest id + 1 */
int32_t file_tokenizer_bos_id(const file_tokenizer_t *self);      /* FILE_ID_NONE: none */
int32_t file_tokenizer_eos_id(const file_tokenizer_t *self);
uint32_t file_tokenizer_token_size_bytes_max(const file_tokenizer_t *self); /* of one token */

/* For the start log: "gpt2/smollm, 49152 tokens, 48900 merges". */
const char *file_tokenizer_summary(const file_tokenizer_t *self);

/* Streaming detokenizer of one request: holds back the bytes of an incomplete character.  Embed
 * it; it owns nothing. */
typedef struct {
    const file_tokenizer_t *tokenizer;
    bool skip_special;
    uint8_t held_count; /* bytes of an unfinished character, 0..3 */
    char held[4];
} file_detokenizer_t;

void file_detokenizer_init(file_detokenizer_t *self, const file_tokenizer_t *tokenizer,
                           bool skip_special);

/* Adds one token and writes the text that is complete now, valid UTF-8: bytes that can never
 * become a character are replaced by U+FFFD.  `out` needs room for
 * FILE_DETOKENIZER_ROOM(token_size_bytes_max) bytes (STATUS_ERR_TOO_LARGE otherwise, nothing
 * consumed).  STATUS_ERR_NOT_FOUND for an unknown id, which adds nothing. */
#define FILE_DETOKENIZER_ROOM(token_size_bytes) (3 * ((size_t)(token_size_bytes) + 4))
MUST_CHECK proto_status_t file_detokenizer_push(file_detokenizer_t *self, int32_t id, char *out,
                                                size_t out_size_bytes, size_t *written_bytes);

/* The end of the stream: an unfinished character comes out as one U+FFFD (at most 3 bytes).
 * Returns the bytes written; `out` has room for 3 or more. */
size_t file_detokenizer_flush(file_detokenizer_t *self, char *out);

#endif
