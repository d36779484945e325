/* sched_loan.h - blocks that a transfer between two nodes reads or writes: the part of sched_core.h
 * that disaggregation adds.  The core's thread only.
 *
 * A loan belongs to one transfer and holds one table of blocks outside of any slot.
 *   prefill node  a request that was submitted with `transfer` leaves its blocks to a loan when it
 *                 ends, however it ends: HELD.  sched_core_take_part() tells what each plan of its
 *                 prefill completes.
 *   decode node   sched_core_reserve() waits for blocks, sched_core_take_reserved() tells which
 *                 (INCOMING), a submit with is_activated makes a request of them that decodes.
 *   both          sched_core_release() asks the blocks back (FENCING), sched_core_fenced() says
 *                 that no copy touches them any more: only then another owner gets them.
 * proto_messages_pd.h has the conversation. */
#ifndef SCHED_LOAN_H
#define SCHED_LOAN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_status.h"

struct sched_core;

typedef enum {
    SCHED_LOAN_FREE = 0,
    SCHED_LOAN_WAITING,   /* a reservation without blocks */
    SCHED_LOAN_RESERVING, /* has blocks that a step in flight may still clear or write */
    SCHED_LOAN_INCOMING,  /* a transfer may write them */
    SCHED_LOAN_ACTIVE,    /* written; the request that they are for waits for a slot */
    SCHED_LOAN_HELD,      /* a transfer may read them */
    SCHED_LOAN_FENCING,   /* asked back */
    SCHED_LOAN_STATE_COUNT,
} sched_loan_state_t;

/* Runs of columns, as in proto_messages_pd.h; views until the next call of the core. */
typedef struct {
    const uint8_t *groups;       /* [run_count] */
    const uint32_t *columns;     /* [run_count] first column */
    const uint32_t *counts;      /* [run_count] */
    const uint32_t *blocks;      /* [block_count] within the group */
    const uint32_t *generations; /* [block_count] */
    uint32_t run_count;
    uint32_t block_count;
} sched_runs_t;

typedef struct {
    uint64_t transfer;
    uint32_t owner;
    uint32_t prompt_length; /* tokens, the first generated one included: at least 2 */
    uint32_t generation_max;
    int64_t priority;          /* lower goes first, equal ones in order */
    proto_bytes_t page_hashes; /* of whole pages of the first prompt_length - 1 tokens, or empty */
} sched_reserve_t;

/* Asks for the blocks of a request whose first prompt_length - 1 tokens come from elsewhere.
 * STATUS_ERR_NEVER_FITS, STATUS_ERR_OVERLOADED (every loan is taken), STATUS_ERR_INVALID,
 * STATUS_ERR_REFUSED (no executor); STATUS_ERR_STALE: this transfer has a loan already. */
MUST_CHECK proto_status_t sched_core_reserve(struct sched_core *self,
                                             const sched_reserve_t *reserve);

typedef struct {
    uint64_t transfer;
    uint32_t owner;
    uint32_t computed; /* tokens found in the prefix cache: their columns are not in `runs` */
    uint32_t wanted;   /* tokens that the cache must hold */
    sched_runs_t runs; /* what is to be written */
} sched_reserved_t;

/* The next reservation that is ready to be written; false when there is none. */
bool sched_core_take_reserved(struct sched_core *self, sched_reserved_t *out);

typedef struct {
    uint64_t transfer;
    uint32_t owner;
    uint32_t part; /* from 0 */
    uint64_t step;
    uint32_t begin; /* tokens [begin, end) are complete with this part */
    uint32_t end;
    bool is_last;
    sched_runs_t runs; /* columns that are complete now, as far as a later row reads them */
} sched_part_t;

/* What the plan that was just made completes for transfers; false when there is no more. */
bool sched_core_take_part(struct sched_core *self, sched_part_t *out);

typedef struct {
    uint64_t transfer;
    uint32_t owner;
    uint32_t block_count; /* that were lent */
    bool is_back;         /* nobody could have touched them: they are back already */
} sched_release_t;

/* Asks a loan back.  STATUS_OK: with is_back it is over, else sched_core_fenced() ends it.
 * STATUS_AGAIN: it was asked back before.  STATUS_ERR_NOT_FOUND, also for one that is active. */
MUST_CHECK proto_status_t sched_core_release(struct sched_core *self, uint64_t transfer,
                                             sched_release_t *out);
/* No copy touches the blocks of this transfer any more.  STATUS_ERR_NOT_FOUND if nothing was asked
 * back. */
MUST_CHECK proto_status_t sched_core_fenced(struct sched_core *self, uint64_t transfer,
                                            sched_release_t *out);

/* A loan of this owner that was not asked back; 0 = none. */
uint64_t sched_core_loan_of(const struct sched_core *self, uint32_t owner);
/* A loan that was asked back, after `transfer` in order; 0 = none. */
uint64_t sched_core_next_fencing(const struct sched_core *self, uint64_t transfer);
/* Loans in use. */
uint32_t sched_core_loan_count(const struct sched_core *self);

#endif
