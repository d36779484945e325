/* kern_draft.h - the small integer operations between a drafter and the target.
 *
 * They do little work: thread 0 does it and the others pass by, except for kern_draft_argmax.
 * Arrays are read at execution; scalars are frozen by a capture. */
#ifndef KERN_DRAFT_H
#define KERN_DRAFT_H

#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"

/* Candidates into the next inputs, behind the last verified token: future_inputs[slot][1 + i] =
 * candidates[b][i].  One outside the vocabulary ends the row: it and those behind it become -1,
 * and *dropped counts rows in which something other than -1 ended it. */
typedef struct {
    const int32_t *write_slots; /* [bs] */
    const int32_t *candidates;  /* [bs][stride] */
    size_t stride;
    uint32_t count; /* candidates of a request; at most width - 1, the rest becomes -1 */
    uint32_t bs;
    uint32_t width; /* of future_inputs */
    uint32_t vocabulary;
    int32_t *future_inputs; /* [slots + 2][width] */
    uint32_t *dropped;      /* NULL = not wanted */
} kern_draft_commit_args_t;
void kern_draft_commit_host(const void *args, kern_share_t *share);

/* to[b * repeat + t] = max(from[b] + add, floor) for t below `repeat`. */
typedef struct {
    const int32_t *from; /* [bs] */
    uint32_t bs;
    int32_t add;
    uint32_t repeat; /* at least 1 */
    int32_t floor;
    int32_t *to; /* [bs * repeat]; may be `from` if repeat is 1 */
} kern_draft_lens_args_t;
void kern_draft_lens_host(const void *args, kern_share_t *share);

/* What a drafter's round begins with: ids and positions of the target's rows moved to what the
 * draft reads, the live row and the accepted frontier of each request.
 *
 * Shifted (EAGLE, MTP): the row of position p reads the token of position p + 1: for an extend the
 * prompt's, and for its last row next_ids[i], or what was sampled if that is -1; for a decode
 * request what was drawn.  Not shifted: ids are the target's own.  An id below 0 becomes 0.
 * Live row: the last one that counts.  Frontier: positions up to the live row, which is the
 * position of the token verified last; next[b] is that token, 0 where there is none.
 * has_next[b] = 1 where a token was sampled or verified.
 * Requests from `bs` to padded_bs get frontier 1, length `width`, and the rows behind `rows` id 0
 * and position 0. */
typedef struct {
    uint32_t bs;
    uint32_t padded_bs;
    uint32_t num_extends;
    uint32_t width;       /* rows of a decode request in the round */
    uint32_t padded_rows; /* rows that get ids and positions; 0 = as many as there are */
    uint8_t shifts;
    const int32_t *extend_cu_lens;    /* [num_extends + 1] */
    const int32_t *extend_next_ids;   /* [num_extends] */
    const int32_t *extend_token_rows; /* [num_extends] */
    const int32_t *input_ids;         /* [rows] */
    const int32_t *positions;         /* [rows] */
    const int32_t *seq_lens;          /* [bs] */
    const int32_t *tokens;
    const int32_t *accept_lengths; /* [bs - num_extends] */
    uint32_t sampled_extends;      /* rows of `tokens` before the first decode request's */
    int32_t *ids;                  /* [padded rows] */
    int32_t *row_positions;        /* [padded rows] */
    int32_t *lens;                 /* [padded_bs] seq_lens */
    int32_t *live_rows;            /* [padded_bs] */
    int32_t *live_positions;       /* [padded_bs] */
    int32_t *frontier;             /* [padded_bs] */
    int32_t *next;                 /* [padded_bs] */
    int32_t *has_next;             /* [padded_bs] */
} kern_draft_begin_args_t;
void kern_draft_begin_host(const void *args, kern_share_t *share);

/* The largest logit of each row, the lowest id among equals, as a token of the target:
 * id + offsets[id].  A row with a NaN gives 0. */
typedef struct {
    const float *logits; /* [rows][stride] */
    size_t stride;
    uint32_t rows;
    uint32_t vocabulary;
    const int32_t *offsets; /* [vocabulary]: the reduced vocabulary's map (d2t); NULL = none */
    int32_t *ids;           /* [rows]: row r at r * id_stride */
    size_t id_stride;
    int32_t *copies; /* the same at r * copy_stride; NULL = not wanted */
    size_t copy_stride;
} kern_draft_argmax_args_t;
void kern_draft_argmax_host(const void *args, kern_share_t *share);

/* Candidates of requests without a verified token become -1. */
typedef struct {
    const int32_t *has_next; /* [bs] */
    uint32_t bs;
    uint32_t count;
    int32_t *candidates; /* [bs][count] */
} kern_draft_mask_args_t;
void kern_draft_mask_host(const void *args, kern_share_t *share);

/* Of a published window [bs][n] only the last counts[b] rows of a request are written: the others
 * go to the null page. */
typedef struct {
    const int32_t *counts; /* [bs] */
    uint32_t n;
    uint32_t bs;
    int32_t *locations; /* [bs * n] */
} kern_draft_limit_args_t;
void kern_draft_limit_host(const void *args, kern_share_t *share);

/* The stash of multi-depth MTP: for each slot the last rows in front of its frontier, a row of
 * position p being the target's hidden of p and the token of p + 1.  `width` rows, of which the
 * last valid[slot] hold something; end[slot] = the frontier they belong to. */
typedef struct {
    uint32_t width;
    uint32_t cols;
    int32_t *valid;  /* [slots + 2] */
    int32_t *end;    /* [slots + 2] */
    int32_t *tokens; /* [slots + 2][width] */
    float *hidden;   /* [slots + 2][width][cols] */
} kern_draft_stash_t;

/* Decode requests: the rows that were accepted enter the stash, which becomes the window: rows of
 * positions frontier - width .. frontier - 1.  A stash of another frontier than this round began at
 * is forgotten first.  Padded requests (from `bs` on) get rows without anything. */
typedef struct {
    kern_draft_stash_t stash;
    const int32_t *slots; /* [bs] */
    uint32_t bs;
    uint32_t padded_bs;
    uint32_t round_width;     /* rows of a request in the round */
    const int32_t *row_ids;   /* [bs * round_width] the token behind each row */
    const int32_t *live_rows; /* [bs] of the round: the last row that counts */
    const int32_t *frontier;  /* [bs] */
    uint32_t first_row;       /* of the first request, in the round */
    const float *hidden;      /* [round rows][cols] */
    int32_t *ids;             /* [padded_bs * width] */
    int32_t *positions;       /* [padded_bs * width]; at least 0 */
    int32_t *counts;          /* [padded_bs]: rows that hold something */
    float *rows;              /* [padded_bs * width][cols] */
} kern_draft_window_args_t;
void kern_draft_window_host(const void *args, kern_share_t *share);

/* Extends: up to width - 1 rows of the stash lead in front of each chunk if it goes on where the
 * stash ends, so that rows that were computed with proposals are computed again with the prompt.
 * Then the chunk's rows enter the stash. */
typedef struct {
    kern_draft_stash_t stash;
    const int32_t *slots;       /* [count] */
    const int32_t *prefix_lens; /* [count] */
    const int32_t *cu_lens;     /* [count + 1] of the round's rows */
    uint32_t count;
    const int32_t *row_ids; /* [round rows] the token behind each row */
    const float *hidden;    /* [round rows][cols] */
    int32_t *lead_cu_lens;  /* [count + 1] with the leading rows */
    int32_t *lead_prefix_lens;
    int32_t *lead_lens;
    int32_t *last_rows; /* [count] */
    int32_t *ids;
    int32_t *positions;
    float *rows;
} kern_draft_lead_args_t;
void kern_draft_lead_host(const void *args, kern_share_t *share);

/* One depth further: each request's ids move one row up, and its proposal becomes the last. */
typedef struct {
    const int32_t *cu_lens; /* [bs + 1]; NULL = width rows for each */
    uint32_t width;
    uint32_t bs;
    const int32_t *next; /* [bs] */
    int32_t *ids;
} kern_draft_roll_args_t;
void kern_draft_roll_host(const void *args, kern_share_t *share);

/* What a block drafter reads: the verified token and masks behind it, at positions from the
 * frontier on. */
typedef struct {
    const int32_t *next;     /* [bs] */
    const int32_t *frontier; /* [bs] */
    uint32_t bs;
    uint32_t width;
    int32_t mask_id;
    int32_t *ids;       /* [bs * width] */
    int32_t *positions; /* [bs * width] */
} kern_draft_block_args_t;
void kern_draft_block_host(const void *args, kern_share_t *share);

#endif
