/* file_spm.h - SentencePiece-style merging with scores: of all neighbouring pieces whose union is a
 * token, the one with the best score is merged, the leftmost of equal ones.  Internal to models/.
 *
 * It owns the ranks of the tokens' scores, made once; the working memory is one thread's.  O(n log
 * n) in the text. */
#ifndef FILE_SPM_H
#define FILE_SPM_H

#include "file_bpe.h"
#include "file_vocab.h"

typedef struct {
    uint32_t *ranks; /* [count] by id; equal scores have equal ranks, 0 is the best */
    uint32_t count;
} file_spm_t;

/* `scores` has `count` values.  STATUS_ERR_MALFORMED for a NaN. */
MUST_CHECK proto_status_t file_spm_init(file_spm_t *self, const float *scores, uint32_t count,
                                        file_error_t error);
void file_spm_fini(file_spm_t *self);

/* Cuts `text`, which is UTF-8 with spaces as they are, into symbols and merges them: afterwards the
 * list from symbol 0 holds the pieces.  Symbol i begins at byte i of the text and reaches to the
 * next one in the list; its id is FILE_ID_NONE if no token has its text.  `size_bytes` is at least
 * 1 and at most the working memory's.  Allocates nothing. */
void file_spm_merge(const file_spm_t *self, const file_vocab_t *vocab, file_bpe_work_t *work,
                    const uint8_t *text, uint32_t size_bytes);

#endif
