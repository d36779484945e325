/* draft_ngram.h - the drafter without weights: prompt lookup.
 *
 * It looks for the last few tokens of a request earlier in the same request and proposes what
 * followed there last time: the longest of 4, 3 and 2 tokens that occurs.  A host drafter
 * (draft_base.h); keyed by slot, and draft_begin() forgets what an earlier request left. */
#ifndef DRAFT_NGRAM_H
#define DRAFT_NGRAM_H

#include "draft_base.h"

typedef struct {
    uint32_t width;         /* N: it proposes N - 1 candidates */
    uint32_t vocabulary;    /* tokens */
    uint32_t slot_count;    /* slots are 1..slot_count */
    uint32_t model_len_max; /* tokens of a request */
    uint32_t rows_max;      /* rows of a round */
} draft_ngram_options_t;

/* Allocates all of it: for each slot its tokens, and three tables of about 8 bytes a token.
 * STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t draft_ngram_new(const draft_ngram_options_t *options, draft_t **out_p);

#endif
