/* kern_sample.h - pool-indexed sampling and the verification of candidates, in one route.
 *
 * Parameters lie in per-slot arrays that are read when the operation runs, so one captured command
 * serves every batch.  Greedy is top_k 1 (or a temperature below 1e-6): the largest logit, the
 * lowest id among equals.
 *
 * One rule for every batch: row i of a request gives a token, and row i + 1 counts if that token is
 * the candidate that row i + 1 computed.  Without a drafter the candidate window has one column,
 * accepts nothing and resolves to the one sampled token.  A window also ends behind a stop token,
 * at a row without a candidate, and at a row with a NaN.  Penalties see the tokens before a row,
 * those of the window included.  Rows that do not count give token -1 and no flags; their logits
 * are not read.
 *
 * Two ways to get a row's token.  Chain: it is the token that this row draws, so any window gives
 * exactly the tokens of one row after the other.  Target-only rejection: the candidate stands with
 * its probability p under the row's filtered distribution, coin (position, KERN_PHILOX_VERIFY, 0)
 * below p; otherwise the token is drawn from that distribution without the candidate, by the coin
 * (position, KERN_PHILOX_RESIDUAL, 0).  The tokens then follow the same distribution, and greedy
 * ones are the same.
 *
 * Order for a row: raw logits -> logprobs; bias, banned ids, penalties, temperature, top_k, top_p
 * (of what top_k left), min_p, one draw.  The draw is Philox(seed of the slot, position of the new
 * token, KERN_PHILOX_SAMPLE, 0) over the kept tokens in the order of their ids. */
#ifndef KERN_SAMPLE_H
#define KERN_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"

enum {
    KERN_SAMPLE_BIAS_MAX = 300,
    KERN_SAMPLE_BANNED_MAX = 96,
    KERN_SAMPLE_LOGPROBS_WIDTH = 21,      /* the sampled token, then the top 20 */
    KERN_SAMPLE_FLAG_NAN = 1,             /* a logit of the row is NaN; its token is 0 */
    KERN_SAMPLE_COUNT_PROMPT = 0x8000,    /* bit of a count: the token is in the prompt */
    KERN_SAMPLE_COUNT_GENERATED = 0x7FFF, /* bits: how often it was generated; saturates */
};

typedef enum {
    KERN_SAMPLE_VERIFY_CHAIN = 0,
    KERN_SAMPLE_VERIFY_REJECTION = 1,
} kern_sample_verify_t;

/* The sampling pool: arrays over slots.  Slot 0 is the dummy of padded rows: leave it greedy. */
typedef struct {
    const float *temperature;
    const int32_t *top_k; /* <= 0: all */
    const float *top_p;   /* >= 1: all */
    const float *min_p;   /* <= 0: none */
    const uint64_t *seed;
    const float *repetition_penalty; /* 1 = none; of tokens in prompt or output */
    const float *presence_penalty;   /* 0 = none; of tokens in the output */
    const float *frequency_penalty;  /* 0 = none; of tokens in the output */
    uint16_t *counts;                /* [slots][vocabulary]; used by slots with a penalty */
    const uint32_t *bias_counts;     /* entries of each slot */
    const int32_t *bias_ids;         /* [slots][KERN_SAMPLE_BIAS_MAX] */
    const float *bias_values;        /* [slots][KERN_SAMPLE_BIAS_MAX] */
    const uint32_t *banned_counts;   /* entries of each slot */
    const int32_t *banned_ids;       /* [slots][KERN_SAMPLE_BANNED_MAX] stop ids: never drawn ... */
    const int32_t *banned_until;     /* ... at positions below this (generation_min), and the end
                                        of a window from there on */
    const uint32_t *logprobs;        /* 0 none, 1 sampled token, 1 + n also the top n */
    uint32_t slot_count;
} kern_sample_pool_t;

typedef struct {
    kern_sample_pool_t pool;
    const float *logits; /* [bs * N][logits_stride]; not changed */
    size_t logits_stride;
    uint32_t vocabulary;
    uint32_t bs;
    uint32_t rows_per_request;   /* N >= 1 */
    const int32_t *slots;        /* [bs], read at execution */
    const int32_t *seq_lens;     /* [bs]: with the N tokens of this step.  Row i draws the
                                    token of position seq_len - N + i + 1 */
    const int32_t *candidates;   /* [bs][N]: column 0 the last verified token, then drafts;
                                    -1 = no candidate.  NULL only if N is 1 */
    int32_t *tokens;             /* [bs * N] */
    kern_sample_verify_t verify; /* how the token of a row with a candidate is found */
    int32_t *accept_lengths;     /* [bs]: 1..N rows of the request count; where the last one has a
                                    NaN it has no token */
    uint8_t *flags;              /* [bs * N] KERN_SAMPLE_FLAG_* */
    int32_t *logprob_ids;        /* [bs * N][KERN_SAMPLE_LOGPROBS_WIDTH], or NULL */
    float *logprob_values;       /* the same; only the entries asked for are written */
    void *workspace;             /* 64-byte aligned; shared by the team */
    size_t workspace_size_bytes; /* kern_sample_workspace_size_bytes() */
} kern_sample_args_t;

void kern_sample_host(const void *args, kern_share_t *share);

size_t kern_sample_workspace_size_bytes(uint32_t vocabulary, uint32_t thread_count);

/* Starts the count state of one slot: all zero, then the prompt's tokens marked, then the tokens
 * generated so far counted. */
typedef struct {
    uint16_t *counts; /* [vocabulary]: this slot's row */
    uint32_t vocabulary;
    const int32_t *tokens; /* [token_count]; ids outside the vocabulary are skipped */
    uint32_t token_count;
    uint32_t prompt_count; /* the first so many are the prompt */
} kern_sample_counts_args_t;

void kern_sample_counts_host(const void *args, kern_share_t *share);

#endif
