/* sched_internal.h - the insides of sched_core, shared by its own files only.
 *
 *   sched_core.c     making, submit, the ends of requests, figures
 *   sched_attach.c   what depends on the executor
 *   sched_batch.c    NextPlan: which rows, and the columns of the plan
 *   sched_admit.c    blocks of a request: lookup, admission    sched_grow.c    growth, patches
 *   sched_chunk.c    where a prompt is cut
 *   sched_retract.c  blocks given back, victims
 *   sched_pages.c    publication, windows
 *   sched_loan.c     blocks that a transfer reads or writes
 *   sched_advance.c  what results, refusals and the time change
 *   sched_check.c    invariants, and "why is it waiting?"
 *   sched_save.c     the state as bytes    sched_restore*.c  and back
 *
 * Long because it is the one picture of the core's state.
 *
 * A request is an entry from submit to its end.  With a slot it also has a row of `slots` (what a
 * step touches: one cache line) and a table of blocks.  A slot's `serial` changes when its request
 * leaves it or is retracted, so that a row of a step in flight knows whether it still counts. */
#ifndef SCHED_INTERNAL_H
#define SCHED_INTERNAL_H

#include "proto_require.h"
#include "sched_audit.h"
#include "sched_core.h"
#include "sched_heap.h"
#include "sched_ids.h"
#include "sched_loan.h"
#include "sched_pool.h"

#define SCHED_NONE UINT32_MAX /* no entry, no place */

/* Known-bad variants of the cores, for the simulator, which has to catch each of them: built from
 * the same sources with -DONEPATH_MUTANT=k.  Undefined in everything that is shipped.
 *   1  blocks are freed while a step in flight still writes them     sched_batch.c
 *   2  a result is applied twice                                     sched_advance.c
 *   3  an actor accepts what an old epoch says                       actors/base
 *   4  a plan is applied by half: a refused one leaves its patches,
 *      a good one releases half of its slots                         actors/executor
 *   5  a state checkpoint is published that a wide row went past     sched_pages.c
 *   6  a state column is given back one token too early               sched_pages.c
 *   9  a prompt that does not fit a step is cut one token early      sched_batch.c
 *      (for `log replay` and `log bisect`: valid plans, but not the recorded ones) */

enum {
    SCHED_OWNED_MAX = 64, /* pieces of memory of an executor */
    SCHED_RETRY_AFTER_MS = 1000,
    SCHED_STEPS_MAX = 2,              /* 1 + the largest overlap depth */
    SCHED_ENDED_MEMORY = 4096,        /* ended requests that are remembered */
    SCHED_SCAN_MAX = 8,               /* blocked heads that one plan looks behind */
    SCHED_REFUSAL_RUN_MAX = 16,       /* refusals without a result between them: give up */
    SCHED_TICK_NS = 10 * 1000 * 1000, /* between two looks at work that cannot be planned */
};

/* What decides about a request, whether it has a slot or not. */
typedef struct {
    uint64_t request;
    uint64_t tag;
    uint64_t arrival;
    uint64_t submit_ns;
    uint64_t deadline_ns;   /* in the queue */
    uint64_t queue_ns;      /* from submit to the first plan */
    const uint8_t *hashes;  /* lent; until admitted */
    uint64_t tried_version; /* the pool's, when it last did not fit */
    uint64_t needed;        /* numbers of the last refusal */
    uint64_t limit;
    int64_t priority;
    uint32_t owner;
    uint32_t prompt_length;
    uint32_t generation_max;
    uint32_t emitted;
    uint32_t page_count;      /* whole pages of the prompt */
    uint32_t slot;            /* 0 = none */
    uint32_t cached_count;    /* prompt tokens found when it was admitted */
    uint32_t generated_count; /* at its end */
    uint32_t passed_count;    /* admissions that passed it while it was blocked */
    uint32_t refusal_count;   /* plans of it refused in a row */
    uint32_t next;            /* in the list of free or ended entries */
    uint64_t transfer;        /* as in sched_submit_t */
    bool is_activated;
    uint32_t suspects; /* requests in the steps that its executor died in; 0 = not in one */
    proto_status_t status;
    const char *code;
    uint32_t retry_after_ms;
    uint8_t reason; /* proto_finish_reason_t */
    uint8_t state;  /* sched_state_t */
    bool in_use;
    bool admitted;
} sched_entry_t;

enum {
    SLOT_RETRACT = 1, /* retract when its rows in flight have ended */
    SLOT_HOLES = 2,   /* the executor's table has columns that are to be emptied */
    SLOT_REFUSED = 4, /* its entry counts refusals: a result takes them back */
};

/* What a step touches. */
typedef struct {
    uint32_t planned;   /* tokens in the cache when all planned steps ended; upper bound */
    uint32_t covered;   /* tokens that its table has blocks for, all groups */
    uint32_t computed;  /* tokens in the cache, by results */
    uint32_t generated; /* tokens generated, by results */
    uint32_t generation_max;
    uint32_t samples_in_flight; /* rows in flight that give tokens */
    uint32_t publish_at;        /* `computed` that completes the next page; UINT32_MAX = none */
    uint32_t expire_at;         /* `computed` that expires the next sliding column */
    uint32_t serial;
    uint32_t entry; /* SCHED_NONE = empty */
    uint32_t place; /* index in its list (decode, prefill, retracted) */
    uint32_t owner;
    uint64_t request;
    uint16_t rows_in_flight;
    uint8_t state; /* mirrors the entry's */
    uint8_t flags;
} sched_slot_t;

_Static_assert(sizeof(sched_slot_t) == 64, "a slot is one cache line");

/* The rest of a slot. */
typedef struct {
    uint32_t prompt_length;
    uint32_t prefill_end;    /* tokens to prefill in all */
    uint32_t body_end;       /* with a state group: a chunk ends here, so that the state after the
                                last page is published; else prefill_end */
    uint32_t promote_at;     /* the same behind pages that full groups have and states lack; 0 */
    uint32_t page_known;     /* pages whose hash is known */
    uint32_t page_published; /* pages published or found, from the first */
    uint32_t cover_max;      /* tokens that it can ever need blocks for */
    uint32_t lost;           /* computed tokens that a retraction took */
    uint32_t draft_hit;      /* share of its last candidates that were right, in 1/1024 */
    uint32_t part_count;     /* of its transfer */
    uint32_t part_end;       /* tokens that these parts are about */
} sched_span_t;

enum { SCHED_COST_BUCKETS = 13 }; /* of rows: 1, 2, 4 .. 4096 and up to twice as many */

/* What is known of candidates (sched_width.c). */
typedef struct {
    bool is_told;                            /* results tell of candidates: the width is chosen */
    bool is_wide;                            /* the last plan with decode rows was */
    uint64_t cost_ns[2][SCHED_COST_BUCKETS]; /* of a step without extends: narrow, wide; 0 = none */
} sched_drafts_t;

typedef struct {
    uint32_t column_count;   /* columns taken, holes included */
    uint32_t expired_count;  /* leading columns that are holes */
    uint32_t executor_count; /* columns that the executor's table has */
} sched_extent_t;

/* The numbers of EXECUTOR_INFO.group_kinds. */
typedef enum {
    SCHED_GROUP_FULL = 0,
    SCHED_GROUP_SLIDING = 1,
    SCHED_GROUP_STATE = 2, /* a block is a checkpoint: the state after the last token in it */
} sched_group_kind_t;

enum { SCHED_STATE_WINDOW = 2 }; /* tokens: a row reads the state before it, and no other */

/* Columns [begin, end) of a table. */
typedef struct {
    uint32_t begin;
    uint32_t end;
} sched_run_t;

/* A chunk of a prefill, as state groups see it. */
typedef struct {
    uint32_t end;         /* its last token + 1 */
    uint32_t total;       /* of the whole prefill */
    uint32_t reserve_end; /* columns from that of the prefill's end to here come along; 0 = none */
} sched_chunk_t;

typedef struct {
    uint32_t kind; /* sched_group_kind_t */
    uint32_t granularity;
    uint32_t window;
    uint32_t packing;
    uint32_t base;          /* of its blocks in the pool */
    uint32_t columns_max;   /* of a table */
    uint32_t column_offset; /* of its columns within a slot's table */
    uint32_t page_blocks;   /* blocks of one identity page */
} sched_group_t;

typedef struct {
    uint32_t slot;
    uint32_t serial;
    uint32_t length;  /* extend: tokens; decode: the width */
    uint32_t samples; /* 1: gives tokens */
} sched_row_t;

typedef struct {
    uint64_t step;
    uint64_t planned_ns;
    uint32_t extend_count;
    uint32_t row_count;
    uint32_t token_count;
    uint32_t release_count;
    sched_row_t *rows;  /* [slot_count] */
    uint32_t *releases; /* [slot_count] */
} sched_step_t;

typedef struct {
    uint32_t slot;
    uint32_t serial;
    uint32_t group;
    uint32_t column;
} sched_dirty_t;

typedef struct {
    uint32_t *items;
    uint32_t count;
} sched_list_t;

/* Blocks lent to a transfer: one table, as a slot has. */
typedef struct {
    uint64_t transfer;
    uint64_t ready_step; /* RESERVING: the last step that can still touch its blocks */
    uint64_t arrival;    /* WAITING: order among those of one priority */
    int64_t priority;    /* WAITING: lower goes first */
    uint32_t owner;
    uint8_t state; /* sched_loan_state_t */
    bool has_step; /* ready_step is one in flight */
    uint32_t prompt_length;
    uint32_t generation_max;
    uint32_t page_count;
    uint32_t computed; /* tokens found in the cache */
    uint32_t block_count;
} sched_loan_t;

/* The plan in the making; the columns that go out. */
typedef struct {
    uint32_t *release_slots;
    uint32_t *patch_slots;
    uint8_t *patch_groups;
    uint32_t *patch_columns;
    uint32_t *patch_counts;
    uint32_t *patch_blocks;
    uint8_t *clear_groups;
    uint32_t *clear_blocks;
    uint32_t *extend_slots;
    uint32_t *extend_begins;
    uint32_t *extend_lengths;
    uint8_t *extend_samples;
    uint32_t *decode_slots;
    uint32_t patch_count;
    uint32_t patch_max;
    uint32_t block_count;
    uint32_t block_max;
    uint32_t clear_count;
    uint32_t clear_max;
    uint32_t extend_count;
    uint32_t decode_count;
    uint32_t token_count;
    uint32_t width; /* of its decode rows */
    bool full;
} sched_builder_t;

struct sched_core {
    sched_core_options_t options;
    bool attached;
    bool owned_failed;
    uint32_t owned_count;
    void *owned[SCHED_OWNED_MAX]; /* memory of the attached executor */
    bool draining;

    /* Requests. */
    sched_entry_t *entries;
    uint32_t entry_count;
    uint32_t entry_free;    /* list of unused entries */
    uint32_t finished_head; /* list of ended requests, oldest first */
    uint32_t finished_tail;
    sched_ids_t ids;
    sched_heap_t waiting;   /* entries by priority and arrival */
    sched_heap_t deadlines; /* the same entries by deadline */
    uint64_t arrival_count;

    /* The executor. */
    uint32_t slot_count;
    uint32_t step_tokens_max;
    uint32_t width;
    uint32_t step_count_max; /* in flight */
    uint32_t page_tokens;    /* prefix_granularity */
    uint32_t model_len_max;
    uint32_t group_count;
    uint32_t table_stride; /* columns of all groups */
    uint32_t parent_count;
    bool has_windows; /* groups that are not full */
    bool has_full;
    bool has_state;
    sched_group_t groups[PROTO_GROUPS_MAX];
    sched_pool_t *pool;
    sched_slot_t *slots;     /* [slot_count + 1] */
    sched_span_t *spans;     /* [slot_count + 1] */
    sched_extent_t *extents; /* [slot_count + 1][group_count] */
    uint32_t *tables;        /* [slot_count + 1][table_stride] block numbers within the group */
    uint8_t *hashes;         /* [slot_count + 1][pages_max][32] */
    uint32_t pages_max;
    uint32_t *scratch;       /* [table_stride] blocks found by a lookup */
    uint32_t block_count;    /* of the pool, all groups and null blocks */
    sched_list_t free_slots; /* a stack: the last one's lines are warm */
    sched_list_t decoding;   /* slots that may get a decode row */
    sched_list_t prefilling; /* slots with tokens left to prefill, oldest first */
    sched_list_t retracted;  /* slots without blocks, oldest first */
    sched_list_t releasing;  /* slots whose end the executor has not been told */
    sched_list_t holed;      /* slots with SLOT_HOLES */
    uint32_t running_count;
    uint32_t decode_cursor;
    uint32_t *leaving; /* [slot_count] decode rows that were their last */
    sched_dirty_t *dirty;
    uint32_t dirty_count;
    uint32_t dirty_max;

    sched_drafts_t drafts;
    /* Loans. */
    sched_loan_t *loans; /* [loan_max] */
    uint32_t loan_max;
    uint32_t loan_count;          /* in use */
    uint32_t reserve_count;       /* of these, WAITING or RESERVING */
    sched_extent_t *loan_extents; /* [loan_max][group_count] */
    uint32_t *loan_tables;        /* [loan_max][table_stride] */
    uint8_t *loan_hashes;         /* [loan_max][pages_max][32], while WAITING */
    uint64_t loan_arrivals;
    uint8_t *run_groups;       /* [table_stride] room for what is told of a loan or a part, */
    uint32_t *run_columns;     /* [table_stride] all five */
    uint32_t *run_counts;      /* [table_stride] */
    uint32_t *run_blocks;      /* [table_stride] */
    uint32_t *run_generations; /* [table_stride] */
    uint32_t part_at;          /* extend row of the plan whose part is next */

    /* Plans. */
    sched_builder_t plan;
    sched_step_t steps[SCHED_STEPS_MAX]; /* ring */
    uint32_t step_first;
    uint32_t step_in_flight;
    uint64_t step_last; /* number of the last plan, over all executors */
    uint64_t step_base; /* what the next plan patches; 0 = full */
    sched_admission_t admissions[SCHED_PLAN_ADMISSIONS_MAX];
    uint32_t admission_count;
    uint32_t admission_at;
    uint64_t end_count; /* requests that left their blocks; part of what `tried_version` says */
    bool growth_failed; /* a running row found no block in this plan */
    bool only_running;  /* after a retraction: what still runs goes before what was retracted */
    uint32_t retraction_run; /* retractions since a token was generated */
    uint32_t refusal_run;    /* refusals since the last result */
    uint32_t stall_ticks;
    uint64_t tick_ns; /* next look at work that could not be planned; UINT64_MAX = none */

    /* Results. */
    uint64_t *row_requests;
    uint32_t *row_owners;
    uint32_t *row_indices;
    uint8_t *row_counts;

    /* Feedback: what a token of a prefill, and a decode step, cost lately. */
    uint64_t extend_token_ns;
    uint64_t decode_step_ns;

    sched_figures_t figures;
    uint64_t digest;
    uint32_t *check_holders; /* [blocks] room for sched_core_check() */
};

static inline void
sched_fold(sched_core_t *self, uint64_t value)
{
    uint64_t x = (self->digest ^ value) * 0x9e3779b97f4a7c15u;
    self->digest = x ^ (x >> 29);
}

/* What has its blocks already goes first. */
static inline sched_key_t
sched_queue_key(const sched_entry_t *entry)
{
    return (sched_key_t){.major = entry->is_activated ? INT64_MIN : entry->priority,
                         .minor = entry->arrival};
}

static inline uint32_t
sched_divide_up(uint32_t a, uint32_t b)
{
    return (uint32_t)(((uint64_t)a + b - 1) / b);
}

static inline uint32_t *
sched_table(const sched_core_t *self, uint32_t slot, uint32_t group)
{
    return self->tables + (size_t)slot * self->table_stride + self->groups[group].column_offset;
}

static inline sched_extent_t *
sched_extent(const sched_core_t *self, uint32_t slot, uint32_t group)
{
    return self->extents + (size_t)slot * self->group_count + group;
}

static inline uint8_t *
sched_hash(const sched_core_t *self, uint32_t slot, uint32_t page)
{
    return self->hashes + ((size_t)slot * self->pages_max + page) * PROTO_HASH_SIZE_BYTES;
}

static inline sched_block_t
sched_block(const sched_core_t *self, uint32_t group, uint32_t child)
{
    return (sched_block_t){self->groups[group].base + child};
}

/* The first column that a row at position `tokens` still reads. */
static inline uint32_t
sched_first_column(const sched_group_t *group, uint32_t tokens)
{
    if (group->kind == SCHED_GROUP_FULL || tokens < group->window) {
        return 0;
    }
    return (tokens - group->window + 1) / group->granularity;
}

static inline sched_step_t *
sched_step_at(const sched_core_t *self, uint32_t index)
{
    return (sched_step_t *)&self->steps[(self->step_first + index) % SCHED_STEPS_MAX];
}

/* sched_attach.c */
void sched_free_executor(sched_core_t *self);

/* sched_core.c */
void sched_move(sched_core_t *self, uint32_t entry, sched_move_t move);
/* Ends a request from any state: blocks back, slot to be released, one answer queued. */
void sched_end(sched_core_t *self, uint32_t entry, proto_finish_reason_t reason,
               proto_status_t status, const char *code);
/* Tokens that a request can ever have in the cache. */
uint32_t sched_cover_max(const sched_core_t *self, uint32_t prompt_length, uint32_t generation_max);
/* Blocks of a group, or parents of all groups, that a request of so many tokens holds at most. */
uint32_t sched_columns_needed(const sched_core_t *self, uint32_t g, uint32_t token_count);
uint64_t sched_parents_needed(const sched_core_t *self, uint32_t token_count);
void sched_list_add(sched_core_t *self, sched_list_t *list, uint32_t slot);
/* Keeps the order of the others. */
void sched_list_remove(sched_core_t *self, sched_list_t *list, uint32_t slot);
/* Moves the last one into the gap. */
void sched_list_swap_remove(sched_core_t *self, sched_list_t *list, uint32_t slot);
void sched_leave_queue(sched_core_t *self, uint32_t entry);

/* sched_chunk.c */
/* Where the chunk that begins at `begin` ends if it may have `budget` tokens; 0: nowhere, the step
 * has no room for it.  With a state group it ends on a multiple of the page, or with the prefill.
 */
uint32_t sched_chunk_end(const sched_core_t *self, const sched_span_t *span, uint32_t begin,
                         uint32_t budget);
/* Tokens of a step that decoding rows may have, beside prefills or not. */
uint32_t sched_decode_share(const sched_core_t *self, bool prefills);
/* True if a step holds no page beside a decoding row, and this one is for prefills. */
bool sched_prefill_turn(const sched_core_t *self);

/* sched_admit.c */
/* Gives a request (queued, or retracted in `slot`) its blocks.  STATUS_FULL: the pool has too few,
 * and the entry's `needed` and `limit` tell why, or the plan has no room for its table.
 * STATUS_AGAIN: this plan has no tokens left for it.  Neither changes the slot or what others hold;
 * an idle pool of several groups may have forgotten its cached pages. */
proto_status_t sched_admit(sched_core_t *self, uint32_t entry, uint32_t slot);

/* Looks up and takes the blocks of a reservation, into the table of slot 0: those of a request that
 * decodes behind `prompt_length` - 1 tokens.  STATUS_FULL: there are too few, nothing changed. */
proto_status_t sched_take_incoming(sched_core_t *self, const sched_loan_t *loan,
                                   const uint8_t *hashes, uint32_t *hit_tokens);
/* Patches for the whole table of a slot. */
bool sched_patch_table(sched_core_t *self, uint32_t slot);

/* sched_loan.c */
/* Takes what reservations wait for, as far as this plan and the pool allow. */
void sched_serve_reservations(sched_core_t *self);
/* The plan was made, or not: what was reserved with it is ready after the steps in flight. */
void sched_note_reservations(sched_core_t *self);
/* A plan was refused: reservations whose clears it had begin anew. */
void sched_redo_reservations(sched_core_t *self);
/* The table of a slot that its request leaves goes to its transfer; true if it did. */
bool sched_hold(sched_core_t *self, uint32_t slot);
/* A reservation becomes that of a request that waits for a slot; false if there is none like it. */
bool sched_activate(sched_core_t *self, const sched_submit_t *submit);
/* A loan's table becomes the slot's. */
void sched_adopt(sched_core_t *self, const sched_entry_t *entry, uint32_t slot);
/* The loan of an activated request that ended before it had a slot. */
void sched_drop_loan_of(sched_core_t *self, const sched_entry_t *entry);
void sched_audit_loans(sched_core_t *self, sched_audit_t *audit);
void sched_save_loans(const sched_core_t *self, proto_pack_t *out);
void sched_load_loans(sched_core_t *self, proto_unpack_t *in);

/* sched_grow.c */
/* What its columns say. */
void sched_set_covered(sched_core_t *self, uint32_t slot);
/* Tokens to have blocks for when `total` tokens are prefilled: what the steps that may be in flight
 * then can add. */
uint32_t sched_horizon(const sched_core_t *self, uint32_t prompt_length, uint32_t generation_max,
                       uint32_t total);
/* The chunk of a prefill that ends at `end`. */
sched_chunk_t sched_chunk(const sched_core_t *self, const sched_span_t *span,
                          uint32_t generation_max, uint32_t end);
/* Columns of a state group that a chunk needs, in order; gives how many runs: 1 or 2. */
uint32_t sched_state_runs(const sched_core_t *self, uint32_t g, const sched_chunk_t *chunk,
                          sched_run_t runs[2]);
/* Fresh blocks for columns [begin, end) that are not there yet, what lies before them being holes,
 * or for those that a chunk needs of a state group. STATUS_FULL: some were taken, the caller gives
 * them back. */
proto_status_t sched_take_columns(sched_core_t *self, uint32_t slot, uint32_t g, uint32_t begin,
                                  uint32_t end);
proto_status_t sched_take_states(sched_core_t *self, uint32_t slot, uint32_t g,
                                 const sched_chunk_t *chunk);
/* The clears from `from` on are not going to happen: the blocks stay marked. */
void sched_return_clears(sched_core_t *self, uint32_t from);
/* Blocks up to `token_count`, and their patches.  STATUS_FULL if some group has too few: nothing
 * changed. */
proto_status_t sched_grow(sched_core_t *self, uint32_t slot, uint32_t token_count);
/* The same for a chunk of a prefill that ends at `end`: a state group takes what that needs. */
proto_status_t sched_grow_chunk(sched_core_t *self, uint32_t slot, uint32_t end);
/* True if the plan holds so many more patches and blocks. */
bool sched_has_room(const sched_core_t *self, uint32_t patches, uint32_t blocks);
/* Appends columns [begin, end) of a table to the plan; false if there is no room. */
bool sched_patch(sched_core_t *self, uint32_t slot, uint32_t group, uint32_t begin, uint32_t end);
/* Appends one column that the executor does not know yet; false if the list is full. */
bool sched_mark_dirty(sched_core_t *self, uint32_t slot, uint32_t group, uint32_t column);

/* sched_retract.c */
/* Gives every block back; the table is empty afterwards. */
void sched_drop_blocks(sched_core_t *self, uint32_t slot);
/* Takes the blocks away; the request starts over from its tokens. */
void sched_retract(sched_core_t *self, uint32_t slot);
/* Retracts the victim; false if nobody holds blocks. */
bool sched_retract_victim(sched_core_t *self);

/* sched_pages.c */
/* Publishes pages that are complete. */
void sched_publish(sched_core_t *self, uint32_t slot);
/* Empties columns that have slid out of their window. */
void sched_expire(sched_core_t *self, uint32_t slot);
void sched_set_expire_at(sched_core_t *self, uint32_t slot);
void sched_set_publish_at(sched_core_t *self, uint32_t slot);

/* sched_restore.c */
/* The constant with this text, or NULL: `code` of an ended request outlives what it is read from.
 */
const char *sched_code_find(const char *text, size_t size_bytes);

/* sched_check.c */
/* Walks all invariants and notes the first broken one; writes only the room for counting. */
void sched_core_audit(sched_core_t *self, sched_audit_t *audit);

/* ---- sched_width.c --------------------------------------------------------------------------- */

/* The width of the next plan. */
uint32_t sched_width_choose(sched_core_t *self);
/* True if what a result says of candidates has the step's shape. */
bool sched_width_fits(const sched_core_t *self, const sched_step_t *step,
                      const proto_step_result_t *result);
/* Takes in what a result says of candidates and cost; before its rows are applied. */
void sched_width_learn(sched_core_t *self, const sched_step_t *step,
                       const proto_step_result_t *result);
void sched_width_save(const sched_core_t *self, proto_pack_t *out);
void sched_width_load(sched_core_t *self, proto_unpack_t *in);

#endif
