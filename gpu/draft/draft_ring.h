/* draft_ring.h - what executor and drafter hand over to each other, in memory that both map.
 *
 * A file of three parts: a header with the sizes; a few ring slots, each with the rows of one step
 * (a round), the answer to them and a sequence word for either; and the token store: every token of
 * the request in each pool slot, so that a drafter which knows nothing yet can catch up.  Messages
 * carry the number of a ring slot and a step, never content.
 *
 * The executor owns the file, writes rounds and the store and decides whose answers count (the
 * admitted epoch); the drafter writes answers.  A word is the step's low 32 bits; it is written
 * last, read first, and who waits for it sleeps on it (futex).  What the other process wrote is
 * hostile: sizes are taken from the reader's own options, every count and token is checked by who
 * reads it, and a torn read costs a candidate at most.
 *
 * draft_ring_admit() may be called while another thread waits; all else of one ring comes from one
 * thread at a time. */
#ifndef DRAFT_RING_H
#define DRAFT_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct draft_ring draft_ring_t;

enum { DRAFT_RING_SLOT_COUNT = 4 };

typedef struct {
    uint64_t ring_id;       /* chosen by who creates it; another one is another ring */
    uint32_t slot_count;    /* pool slots 1..slot_count; a round has at most so many requests */
    uint32_t width;         /* N, 2..16 */
    uint32_t vocabulary;    /* tokens */
    uint32_t model_len_max; /* tokens of a request */
    uint32_t rows_max;      /* rows of a forward */
    uint32_t hidden_stride; /* floats of a row; 0 = no hidden rows */
} draft_ring_options_t;

/* The rows of a step, extends first, as in draft_round_t (draft_base.h), and what identifies them.
 * Addresses are this process's own. */
typedef struct {
    uint32_t mode; /* backend_mode_t */
    uint32_t bs;
    uint32_t num_extends;
    uint32_t rows;
    uint32_t width; /* of its decode rows: 1 or N */
} draft_ring_head_t;

typedef struct {
    draft_ring_head_t *head;
    uint32_t *slots;         /* [bs] pool slots */
    uint32_t *generations;   /* [bs] of the store's entry */
    uint32_t *lengths;       /* [bs] tokens that the request has after this step */
    int32_t *prefix_lens;    /* [num_extends] */
    int32_t *extend_lens;    /* [num_extends] */
    int32_t *next_ids;       /* [num_extends] */
    int32_t *token_rows;     /* [num_extends] row of `tokens`; -1 = it sampled nothing */
    int32_t *cu_lens;        /* [num_extends + 1] */
    int32_t *seq_lens;       /* [bs] */
    int32_t *accept_lengths; /* [decodes] tokens that count, 0..width (0: a NaN) */
    int32_t *tokens;         /* [sampled extends + decodes * width] */
    int32_t *input_ids;      /* [rows]; with hidden rows only */
    int32_t *positions;      /* [rows]; with hidden rows only */
    float *hidden;           /* [rows][hidden_stride]; NULL without */
    uint8_t *samples;        /* [num_extends] */
    /* The answer. */
    int32_t *counts;     /* [bs] candidates of each request */
    int32_t *candidates; /* [bs][N - 1] */
} draft_ring_view_t;

/* Makes the file anew (one that is there is unlinked first) and maps it.  STATUS_ERR_CONFIG: sizes
 * beyond what a ring may have; STATUS_ERR_IO: errno says why.  The caller owns *out_p. */
MUST_CHECK proto_status_t draft_ring_create(const char *path, const draft_ring_options_t *options,
                                            draft_ring_t **out_p);
/* Maps a ring that an executor made.  rows_max and hidden_stride come from its header, the rest
 * must be as in *options: STATUS_ERR_MALFORMED otherwise, or if it is no ring; STATUS_ERR_IO.  The
 * caller owns *out_p. */
MUST_CHECK proto_status_t draft_ring_open(const char *path, const draft_ring_options_t *options,
                                          draft_ring_t **out_p);
/* Unmaps it, and unlinks the file if we created it.  Nulls *self_p. */
void draft_ring_destroy(draft_ring_t **self_p);

const draft_ring_options_t *draft_ring_options(const draft_ring_t *self);
size_t draft_ring_size_bytes(const draft_ring_t *self);
draft_ring_view_t draft_ring_view(const draft_ring_t *self, uint32_t index);

/* ---- the executor's side --------------------------------------------------------------------- */

/* From now on the answers of this epoch count, and no others; 0 = nobody's.  Wakes whoever waits:
 * the survivor's way to mark every slot of a peer that is down. */
void draft_ring_admit(draft_ring_t *self, uint64_t epoch);

/* The round in `index` is whole. */
void draft_ring_post(draft_ring_t *self, uint32_t index, uint64_t step);

/* STATUS_OK: the answer to `step` is there, from the admitted epoch.  STATUS_AGAIN: not until
 * `deadline_ns` (monotonic; 0 = do not wait).  STATUS_ERR_CANCELLED: nobody is admitted.
 * STATUS_ERR_STALE: an answer is there, and it is to another step or of another epoch. */
MUST_CHECK proto_status_t draft_ring_wait_answer(draft_ring_t *self, uint32_t index, uint64_t step,
                                                 uint64_t deadline_ns);

/* A request takes a pool slot: its tokens so far; returns the generation of the entry. */
uint32_t draft_ring_store_begin(draft_ring_t *self, uint32_t slot, const int32_t *tokens,
                                uint32_t count);
/* More tokens behind the `known` that the executor put there itself; returns how many it has then.
 * Those beyond model_len_max are dropped. */
uint32_t draft_ring_store_append(draft_ring_t *self, uint32_t slot, uint32_t known,
                                 const int32_t *tokens, uint32_t count);
uint32_t draft_ring_store_generation(const draft_ring_t *self, uint32_t slot);

/* ---- the drafter's side ---------------------------------------------------------------------- */

/* STATUS_OK: the round of `step` is there.  STATUS_AGAIN: not until `deadline_ns`.
 * STATUS_ERR_STALE: a later one has taken its place.  STATUS_ERR_CANCELLED: `epoch` is not admitted
 * (any more). */
MUST_CHECK proto_status_t draft_ring_wait_round(draft_ring_t *self, uint32_t index, uint64_t step,
                                                uint64_t epoch, uint64_t deadline_ns);

/* The answer in `index` is whole. */
void draft_ring_answer(draft_ring_t *self, uint32_t index, uint64_t step, uint64_t epoch);

/* Copies the first `count` tokens of a pool slot.  False if the entry is of another generation or
 * has fewer, also if that became so meanwhile. */
bool draft_ring_store_read(const draft_ring_t *self, uint32_t slot, uint32_t generation,
                           int32_t *out, uint32_t count);

#endif
