/* file_bpe.h - byte-pair merging of one piece in O(n log n).  Internal to models/.
 *
 * The table is built once and then constant; the working memory is one thread's. */
#ifndef FILE_BPE_H
#define FILE_BPE_H

#include "file_support.h"
#include "file_vocab.h"

typedef struct {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX = free */
    uint32_t rank;
    uint32_t id; /* what the pair becomes */
} file_merge_t;

typedef struct {
    file_merge_t *slots;
    uint64_t mask;
    uint64_t seed;
    uint32_t count;
} file_bpe_t;

enum { FILE_MERGE_COUNT_MAX = 1 << 21 };

MUST_CHECK proto_status_t file_bpe_init(file_bpe_t *self, uint64_t count_max, file_error_t error);
void file_bpe_fini(file_bpe_t *self);

/* Adds the next merge, in order of rank, of two tokens in byte-level spelling.  The tokens and
 * their union must be in the vocabulary, and the pair must be new: else STATUS_ERR_MALFORMED. */
MUST_CHECK proto_status_t file_bpe_add(file_bpe_t *self, const file_vocab_t *vocab,
                                       file_view_t left, file_view_t right, file_error_t error);

/* A run of symbols under merging, as a doubly linked list in an array. */
typedef struct {
    int32_t id; /* FILE_ID_NONE: merged into its left neighbour */
    uint32_t previous;
    uint32_t next;
} file_symbol_t;

typedef struct {
    file_symbol_t *symbols; /* [piece_size_bytes_max] */
    uint64_t *heap;         /* [2 * piece_size_bytes_max]: rank << 32 | position */
    uint32_t piece_size_bytes_max;
} file_bpe_work_t;

/* Merges symbols[0..count), whose links are set, in place: afterwards the list from 0 holds the
 * tokens.  Allocates nothing. */
void file_bpe_merge(const file_bpe_t *self, file_bpe_work_t *work, uint32_t count);

#endif
