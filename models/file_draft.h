/* file_draft.h - a drafter's weights on disk: a folder with config.json and safetensors that names
 * a draft architecture, checked against the target that it was made for.
 *
 * Opened like a model (file_model.h), with the same distrust; its tensors are read by role.  Same
 * threads. */
#ifndef FILE_DRAFT_H
#define FILE_DRAFT_H

#include "file_model.h"

enum {
    FILE_DRAFT_TAP_COUNT_MAX = 8,
    FILE_DRAFT_BLOCK_SIZE_MAX = 16,
};

#define FILE_DRAFT_TAP_FINAL UINT32_MAX

/* By the first of config.json's `architectures`. */
typedef enum {
    FILE_DRAFT_EAGLE3, /* "LlamaForCausalLMEagle3": the form in which heads are published */
    FILE_DRAFT_MTP,    /* "LlamaForCausalLMMTP": depth d is layer d */
    FILE_DRAFT_DFLASH, /* "DFlashDraftModel" */
    FILE_DRAFT_DSPARK, /* "DSparkDraftModel": DFLASH with a Markov head */
} file_draft_kind_t;

/* What the draft's own config (file_model_config()) does not say.  Its vocab_size is the draft's
 * vocabulary, that is, the rows of its head. */
typedef struct {
    file_draft_kind_t kind;
    uint32_t target_vocab_size;
    uint32_t target_hidden_size;
    uint32_t tap_count;
    uint32_t tap_layers[FILE_DRAFT_TAP_COUNT_MAX]; /* zero based, layer completed; ascending */
    uint32_t block_size;                           /* DFLASH, DSPARK: trained for, at least 2 */
    int32_t mask_token_id;                         /* DFLASH, DSPARK */
    uint32_t markov_rank;                          /* DSPARK */
    bool has_embed;                                /* its own; else the target's is lent */
    bool has_output;                               /* its own head, as above */
    int32_t
        *offsets; /* [vocab_size] d2t: id of the target minus the draft's; NULL = one vocabulary */
} file_draft_t;

/* Opens a draft folder for a target.  STATUS_ERR_CONFIG with the error filled: it was made for
 * another target (`onepath_target_digests` in its config.json, where there is one), for another
 * vocabulary or hidden size, or taps layers that the target does not have; both values are named.
 * Otherwise as file_model_open().  The caller owns *out_p and what file_draft_fini() frees. */
MUST_CHECK proto_status_t file_draft_open(const char *path, const file_config_t *target,
                                          char *error, size_t error_size_bytes, file_draft_t *out,
                                          file_model_t **out_p);
void file_draft_fini(file_draft_t *self);

const char *file_draft_kind_name(file_draft_kind_t kind);

/* Whether the folder's config.json names a draft architecture; false if it cannot be read. */
bool file_draft_is_draft(const char *path);

#endif
