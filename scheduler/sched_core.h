/* sched_core.h - decides what an executor computes next: Submit, NextPlan, Advance.
 *
 * It owns the state of every request, the blocks of one executor, the prefix index and every plan.
 * Pure bookkeeping: no clock, socket, thread or device; time comes in as an argument, and nothing
 * is allocated except in sched_core_new() and sched_core_attach().  It never sees a token: lengths,
 * counts and page hashes are enough.  What a call costs follows what changed in it, never how many
 * blocks, cached pages or prompt tokens exist.  One thread at a time.
 *
 * How it is driven:
 *   sched_core_submit()      a request arrives
 *   sched_core_next_plan()   while it gives plans: take the admissions, then send the plan
 *   sched_core_advance()     a result, a refusal, a FINISH, the time
 *   sched_core_take_finished()   after each of these, until there is none
 * docs/scheduler-protocol.md describes the states and the rules of plans.
 * Long because it is the library's whole contract in one place. */
#ifndef SCHED_CORE_H
#define SCHED_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_ids.h"
#include "proto_pack.h"
#include "proto_status.h"
#include "sched_state.h"

typedef struct sched_core sched_core_t; /* opaque */

/* Bounds of one plan and of what has to reach the executor before it; for outboxes. */
enum {
    SCHED_PLAN_ADMISSIONS_MAX = 64,        /* new requests */
    SCHED_PLAN_ADMIT_TOKENS_MAX = 1 << 18, /* their prompt tokens, beyond the first request's */
    SCHED_PLAN_BLOCKS_MAX = 1 << 20,       /* block ids */
    SCHED_PLAN_PATCHES_MAX = 1 << 19,      /* patches */
    SCHED_PLAN_SIZE_BYTES_MAX = 24 << 20,  /* all columns together, encoded */
};

/* A request that could lose its blocks. */
typedef struct {
    uint64_t request;
    int64_t priority;         /* lower is more important */
    uint32_t computed_count;  /* tokens in the cache: the work that would be lost */
    uint32_t generated_count; /* tokens given so far */
    uint32_t block_count;     /* blocks that it alone holds */
    uint64_t arrival;         /* order of submission */
} sched_victim_t;

/* True if `a` should lose its blocks rather than `b`.  Must be an order. */
typedef bool (*sched_victim_fn)(void *context, const sched_victim_t *a, const sched_victim_t *b);

typedef struct {
    uint32_t slot_count_max;    /* requests with a slot at most; 1..PROTO_ROWS_MAX */
    uint32_t queue_len_max;     /* requests without a slot at most; 0 = 1024 */
    uint32_t overlap_depth_max; /* plans behind the running one: 0 or 1 */
    bool separate_batches;      /* never decode and prefill in one batch */
    bool no_prefix_cache;       /* never look pages up, never publish them */
    bool full_plans;            /* send every table with every plan, one at a time: for benches */
    bool clear_blocks;          /* ask for zeroed blocks always, not only where it matters */
    uint32_t skip_count_max;    /* times that others may pass a blocked head; 0 = 64 */
    uint32_t refusal_count_max; /* refused plans that end a request; 0 = 3 */
    uint32_t stall_ticks_max;   /* idle ticks with work waiting that count as a fault; 0 = 8 */
    uint64_t queue_timeout_ns;  /* wait for a slot unless SUBMIT says otherwise; 0 = 600 s */
    uint32_t loan_count_max;    /* transfers that blocks may be lent to at once; 0: no transfers */
    sched_victim_fn victim;     /* NULL: least important, then least work done, then newest */
    void *victim_context;
} sched_core_options_t;

/* STATUS_ERR_CONFIG if an option is out of range.  The caller owns *out_p. */
MUST_CHECK proto_status_t sched_core_new(const sched_core_options_t *options, sched_core_t **out_p);
void sched_core_destroy(sched_core_t **self_p);

/* An executor is there: sizes and allocates everything that depends on it.  STATUS_ERR_CONFIG or
 * STATUS_ERR_UNSUPPORTED with a sentence in *error (may be NULL).  No executor may be attached. */
MUST_CHECK proto_status_t sched_core_attach(sched_core_t *self, const proto_executor_info_t *info,
                                            proto_error_t *error);
/* The executor is gone: every request ends with PROTO_FINISH_ERROR, `status` and `code`, which is
 * "worker_lost" or "executor_fault".  Does nothing if none is attached. */
void sched_core_detach(sched_core_t *self, proto_status_t status, const char *code);
bool sched_core_is_attached(const sched_core_t *self);

/* ---- submit ---------------------------------------------------------------------------------- */

typedef struct {
    uint64_t request;          /* minted by the owner */
    uint32_t owner;            /* who sent it and gets the answer */
    uint64_t tag;              /* the caller's own; comes back with admission and end */
    uint32_t prompt_length;    /* tokens */
    uint32_t generation_max;   /* tokens to generate at most, from here on */
    uint32_t emitted;          /* tokens at the prompt's end that were generated elsewhere */
    int64_t priority;          /* lower goes first */
    uint64_t queue_timeout_ns; /* 0 = the option's */
    uint64_t transfer;         /* at its end its blocks are kept for this transfer; or, with
                                  is_activated, its blocks are those of this one; 0 = none */
    bool is_activated;         /* everything but its last token is in the cache (sched_loan.h) */
    proto_bytes_t page_hashes; /* lent until the request is admitted or ends; may
                                  be empty: then nothing of it is looked up or published */
} sched_submit_t;

/* Why a submit was not taken. */
typedef struct {
    const char *code;        /* stable: overloaded, never_fits, no_executor, invalid, duplicate */
    uint64_t needed;         /* the number that is too large, in the unit of `what` */
    uint64_t limit;          /* what there is */
    const char *what;        /* "tokens", "blocks", "requests", "page hashes" */
    uint32_t retry_after_ms; /* 0 = do not retry */
} sched_refusal_t;

/* Queues a request.  STATUS_ERR_NEVER_FITS, STATUS_ERR_OVERLOADED, STATUS_ERR_INVALID,
 * STATUS_ERR_REFUSED (no executor, or draining) with *refusal filled: the caller answers.
 * STATUS_ERR_STALE for the id of a request that is known or ended a short while ago: a duplicate
 * needs no answer. */
MUST_CHECK proto_status_t sched_core_submit(sched_core_t *self, uint64_t now_ns,
                                            const sched_submit_t *submit, sched_refusal_t *refusal);

/* ---- plan ------------------------------------------------------------------------------------ */

/* A request that the coming plan takes a slot for. */
typedef struct {
    uint64_t request;
    uint32_t owner;
    uint64_t tag;
    uint32_t slot;
    uint32_t prompt_length;
    uint32_t length_max; /* prompt + generated tokens at most */
    uint32_t computed;   /* tokens that the cache holds already; 0 unless it was activated */
} sched_admission_t;

/* Makes the next plan; its columns are views that live until the next call of any function of the
 * core.  STATUS_AGAIN if there is nothing to plan or 1 + overlap depth plans are in flight. */
MUST_CHECK proto_status_t sched_core_next_plan(sched_core_t *self, uint64_t now_ns,
                                               proto_plan_t *out);
/* Admissions of the plan just made, in order; false when there are no more.  They must reach the
 * executor before that plan. */
bool sched_core_take_admission(sched_core_t *self, sched_admission_t *out);

/* ---- advance --------------------------------------------------------------------------------- */

typedef enum {
    SCHED_EVENT_RESULT = 1, /* `result`: the oldest step in flight ended */
    SCHED_EVENT_REFUSED,    /* `refused`: a plan was not applied */
    SCHED_EVENT_FINISH,     /* `finish`: the owner ends a request */
    SCHED_EVENT_OWNER_GONE, /* `owner`: nobody wants its answers any more */
    SCHED_EVENT_TIME,       /* deadlines */
    SCHED_EVENT_DRAIN,      /* refuse what comes from now on */
} sched_event_kind_t;

typedef struct {
    uint32_t owner;
    uint64_t request;
    uint32_t token_index;         /* keep generated tokens [0, token_index) */
    proto_finish_reason_t reason; /* STOP, LENGTH or CANCELLED */
} sched_finish_t;

typedef struct {
    sched_event_kind_t kind;
    const proto_step_result_t *result;
    const proto_plan_refused_t *refused;
    sched_finish_t finish;
    uint32_t owner;
} sched_event_t;

/* What a result means for its rows, in their order. */
typedef struct {
    uint32_t count;
    const uint64_t *requests; /* 0 = the row's request ended before: drop its tokens */
    const uint32_t *owners;
    const uint32_t *token_indices; /* of the first token kept */
    const uint8_t *token_counts;   /* tokens kept */
} sched_rows_t;

/* Applies an event.  *rows (may be NULL) is filled by a RESULT and lives until the next event.
 * STATUS_ERR_STALE: late or unknown, ignored.  STATUS_ERR_MALFORMED: the executor breaks the
 * protocol; nothing was applied, the caller detaches it. */
MUST_CHECK proto_status_t sched_core_advance(sched_core_t *self, uint64_t now_ns,
                                             const sched_event_t *event, sched_rows_t *rows);

/* The one end of a request. */
typedef struct {
    uint64_t request;
    uint32_t owner;
    uint64_t tag;
    bool admitted; /* it was given to sched_core_take_admission() */
    proto_finish_reason_t reason;
    proto_status_t status;
    const char *code; /* "" when all is well */
    uint32_t prompt_count;
    uint32_t cached_count;
    uint32_t generated_count;
    uint64_t queue_ns;
    uint64_t needed; /* the numbers behind a refusal: what it waited for, and what there was */
    uint64_t limit;
    uint32_t retry_after_ms;
    uint32_t suspects; /* the executor died in steps of so many requests, this one among them */
} sched_finished_t;

/* The next ended request; false when there is none. */
bool sched_core_take_finished(sched_core_t *self, sched_finished_t *out);

/* When SCHED_EVENT_TIME is wanted; UINT64_MAX = never. */
uint64_t sched_core_deadline_ns(const sched_core_t *self);

/* ---- questions ------------------------------------------------------------------------------- */

typedef enum {
    SCHED_WAIT_NOTHING = 0, /* it runs */
    SCHED_WAIT_EXECUTOR,    /* none is attached */
    SCHED_WAIT_SLOT,        /* every slot is taken */
    SCHED_WAIT_BLOCKS,      /* needs `needed`, `available` are there */
    SCHED_WAIT_RETRACTED,   /* a request that lost its blocks goes first */
    SCHED_WAIT_HEAD,        /* a head that was passed too often holds the queue */
    SCHED_WAIT_TURN,        /* others are before it */
    SCHED_WAIT_STEP,        /* the step in flight */
} sched_wait_t;

typedef struct {
    sched_state_t state;
    sched_wait_t resource;
    uint64_t holder; /* request (or step) that has what it needs; 0 = nobody in particular */
    uint64_t needed;
    uint64_t available;
    uint64_t waited_ns;
} sched_why_t;

/* Why is it waiting?  STATUS_ERR_NOT_FOUND for an unknown request.  O(slots). */
MUST_CHECK proto_status_t sched_core_why(const sched_core_t *self, uint64_t now_ns, uint32_t owner,
                                         uint64_t request, sched_why_t *out);

/* One open request, as people see it. */
typedef struct {
    uint64_t request;
    uint32_t owner;
    int64_t priority;
    uint32_t prompt_length;
    uint32_t computed_count;  /* tokens in the cache */
    uint32_t generated_count; /* with those that were generated elsewhere */
    uint32_t generation_max;
    uint32_t block_count; /* in its tables, all groups */
    uint32_t slot;        /* 0 = none */
    sched_why_t why;
} sched_seen_t;

/* The next open request from place *at on (0 at first), which is moved behind it; false when there
 * is none.  O(slots) for each, and places without a request cost next to nothing. */
bool sched_core_look(const sched_core_t *self, uint64_t now_ns, uint64_t *at, sched_seen_t *out);

/* Everything that is counted; also LOAD and MODEL_INFO are made of it. */
typedef struct {
    uint32_t running_count;   /* requests with a slot */
    uint32_t waiting_count;   /* requests without */
    uint32_t retracted_count; /* of the running ones */
    uint32_t in_flight_count; /* steps */
    uint32_t block_count;     /* usable blocks of group 0 */
    uint32_t free_count;
    uint32_t cached_count;
    uint32_t held_count;        /* blocks of all groups that wait for a peer to fetch them */
    uint32_t incoming_count;    /* that wait for their content */
    uint32_t fencing_count;     /* that wait until no copy runs */
    uint32_t prompt_length_max; /* longest prompt that can ever fit */
    uint64_t token_capacity;
    uint64_t prefix_queries; /* prompt tokens looked up */
    uint64_t prefix_hits;    /* prompt tokens found */
    uint64_t retractions;
    uint64_t recomputed_tokens; /* computed before, lost by a retraction */
    uint64_t steps;
    uint64_t full_plans;
    uint64_t plans_refused;
    uint64_t stalls;
    uint64_t zombie_rows;
    uint64_t late_events;
    uint64_t swapped_blocks;
    uint64_t evicted_blocks;
    uint64_t graph_steps;
    uint64_t eager_steps;
    uint64_t above_ladder_steps; /* of these, above the executor's capture ladder */
    uint64_t prompt_tokens;
    uint64_t generation_tokens;
    uint64_t prefill_graph_steps; /* steps with extend rows, by how they ran */
    uint64_t prefill_eager_steps;
    uint64_t wide_steps;      /* steps whose decode rows had room for candidates */
    uint64_t drafts_proposed; /* candidates in them */
    uint64_t drafts_accepted;
    uint64_t drafts_missing; /* rows of them without candidates */
    uint64_t drafts_ignored; /* candidates that were not fit to be tested */
} sched_figures_t;

/* The options in use, defaults filled in; lent. */
const sched_core_options_t *sched_core_options(const sched_core_t *self);

void sched_core_figures(const sched_core_t *self, sched_figures_t *out);

/* The oldest step in flight: its number, when it was planned, and the time that its tokens should
 * take.  False if none is in flight. */
bool sched_core_step_in_work(const sched_core_t *self, uint64_t *step, uint64_t *planned_ns,
                             uint64_t *predicted_ns);

/* ---- save and restore ------------------------------------------------------------------------ */

/* Packs the whole state, options included, except `victim`, a function: a core that has one cannot
 * be restored to go on the same way.  Canonical: it depends on what happened, not on addresses,
 * capacities or the layout of hash tables; its size follows what is in use.  Every admission must
 * have been taken.  The page hashes of waiting requests are lent, so they are the caller's to save.
 */
void sched_core_save(const sched_core_t *self, proto_pack_t *out);

/* A request of the core that is being restored. */
typedef struct {
    uint64_t request;
    uint64_t tag;
    uint32_t owner;
    uint32_t prompt_length;
    bool admitted;            /* false: its admission, or its end, will name the tag */
    bool waits;               /* its page hashes are to be lent as at submit */
    size_t hashes_size_bytes; /* how many of them; 0 = none */
} sched_restored_t;

/* Says whether the caller knows this request, and lends its page hashes in *hashes if it waits. */
typedef bool (*sched_restored_fn)(void *context, const sched_restored_t *request,
                                  const uint8_t **hashes);

/* Makes a core out of what sched_core_save() packed; it goes on exactly as the saved one.  Reads
 * its part of *in and asks `restored` about each request, in the order of their entries.  The bytes
 * may be hostile: STATUS_ERR_MALFORMED, STATUS_ERR_VERSION or STATUS_ERR_NO_MEMORY, with a sentence
 * in *error (may be NULL).  The caller owns *out_p. */
MUST_CHECK proto_status_t sched_core_restore(proto_unpack_t *in, sched_restored_fn restored,
                                             void *context, sched_core_t **out_p,
                                             proto_error_t *error);

/* Digest of everything that was decided; costs nothing to ask. */
uint64_t sched_core_digest(const sched_core_t *self);
/* Walks all invariants and aborts at the first broken one: O(everything). */
void sched_core_check(const sched_core_t *self);

#endif
