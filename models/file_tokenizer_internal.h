/* file_tokenizer_internal.h - the inside of a tokenizer, for the files of models/ only. */
#ifndef FILE_TOKENIZER_INTERNAL_H
#define FILE_TOKENIZER_INTERNAL_H

#include "file_added.h"
#include "file_bpe.h"
#include "file_model_internal.h"
#include "file_split.h"
#include "file_spm.h"
#include "file_tokenizer.h"
#include "file_vocab.h"

enum { FILE_AROUND_COUNT_MAX = 8 }; /* tokens that add_special puts before, or after, a text */

struct file_tokenizer {
    file_vocab_t vocab;
    file_bpe_t bpe;
    file_split_t split;
    file_added_t added;            /* matched in the text as it comes */
    file_added_t added_normalised; /* matched after normalisation */
    bool is_spm;                   /* spm takes the place of split and bpe */
    file_spm_t spm;
    bool is_nfc;
    bool ignore_merges; /* a piece that is a token is that token */
    bool fuse_unknown;
    int32_t unknown_id; /* FILE_ID_NONE: bytes without a token are left out */
    int32_t bos_id;
    int32_t eos_id;
    uint32_t before_count;
    uint32_t after_count;
    int32_t before[FILE_AROUND_COUNT_MAX];
    int32_t after[FILE_AROUND_COUNT_MAX];
    char kind[48]; /* "gpt2/smollm", "tokenizer.json" */
    char summary[128];
};

/* Fill an empty tokenizer; on failure the caller frees what is there. */
MUST_CHECK proto_status_t file_tokenizer_read_gguf(file_tokenizer_t *self, const file_gguf_t *gguf,
                                                   file_error_t error);
MUST_CHECK proto_status_t file_tokenizer_read_json(file_tokenizer_t *self, const json_t *root,
                                                   file_error_t error);

/* Adds the vocabulary's ADDED and SPECIAL tokens to the trie `where`. */
MUST_CHECK proto_status_t file_tokenizer_add_token(file_tokenizer_t *self, file_added_t *where,
                                                   int32_t id, file_error_t error);

#endif
