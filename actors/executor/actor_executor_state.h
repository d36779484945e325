/* actor_executor_state.h - the insides of the executor core, shared by its own files only.
 *
 * actor_executor_core.c   inputs, links, ADMIT, RESET   actor_executor_setup.c  DEVICE_READY
 * actor_executor_plan.c   PLAN: the rules
 * actor_executor_launch.c what follows a plan that breaks none
 * actor_executor_result.c STEP_DONE: tokens, page hashes, the result that follows
 * actor_executor_draft.c  the drafter
 * actor_executor_save.c   the state as bytes               actor_executor_restore.c  and back
 * Long because it is the one picture of the core's state. */
#ifndef ACTOR_EXECUTOR_STATE_H
#define ACTOR_EXECUTOR_STATE_H

#include <string.h>

#include "actor_executor_core.h"
#include "actor_executor_tables.h"
#include "proto_require.h"

enum {
    EXECUTOR_SAVE_VERSION = 3, /* of the layout of a snapshot; another one is refused */
    SAMPLING_SIZE_MAX = 16384, /* bytes; the limit of ADMIT.sampling */
    SALT_SIZE_MAX = 64,        /* bytes; the limit of SAMPLING.page_salt */
    FLIGHTS_MAX = 2,           /* steps at the device: one runs, one waits */
    RESETS_MAX = 2,            /* DEVICE_RESETs under way; beyond it plans are refused */
    LOGPROB_WIDTH_MAX = PROTO_LOGPROBS_MAX + 1,
    CELLS_MAX = PROTO_BLOCKS_MAX / 4, /* of all tables: a launch must fit a blob */
    DRAFT_ROUNDS_MAX = 4,             /* ring slots: DRAFT_RING_SLOT_COUNT of draft_ring.h */
    DRAFT_TARGET_SIZE_MAX = 128,      /* of a drafter's target that can be right */
};

/* A request in its slot.  "Upper" figures count what steps in flight may still add. */
typedef struct {
    uint64_t request;       /* 0 = the slot is empty */
    uint32_t generation;    /* changes when the slot is taken and when it is left */
    uint32_t prompt_length; /* tokens at ADMIT */
    uint32_t length_max;    /* prompt + generated tokens at most */
    uint32_t known;         /* tokens in the store */
    uint32_t pending;       /* upper: tokens that steps in flight will add, beyond length_max too */
    uint32_t pending_rows;  /* rows in flight that sample: each adds a token at least */
    uint32_t computed;      /* upper: tokens whose cache entries planned steps have written */
    uint32_t done;          /* the same for ended steps */
    uint32_t chain_pages;   /* pages that `chain` covers */
    uint32_t row_stamp;     /* the plan whose batch holds this slot */
    uint32_t release_stamp; /* the plan that ends this slot */
    uint32_t setup_stamp;   /* the plan that set it up at the device */
    bool is_set_up;         /* the device has its sampling parameters */
    bool is_decodable;      /* the device holds, or will hold, its next token */
    bool is_hashed;         /* pages of the answer are hashed and reported */
    uint8_t salt_size;      /* bytes of salt */
    uint32_t sampling_size; /* bytes in the sampling store */
    uint64_t content;       /* digest of the tokens in the store */
    uint64_t digest;        /* this slot's part of the core's digest */
    uint8_t chain[PROTO_HASH_SIZE_BYTES];
    uint8_t salt[SALT_SIZE_MAX];
} executor_slot_t;

/* A row of a step at the device. */
typedef struct {
    uint32_t slot;
    uint32_t generation; /* of the slot when the step was launched */
    uint32_t end;        /* extends: tokens in the cache afterwards; decodes: 0 */
    uint32_t token_max;  /* tokens that the row may give */
    uint32_t pending;    /* of these, counted in the slot's pending */
} executor_row_t;

typedef struct {
    uint64_t step;
    uint32_t row_count;
    uint32_t token_count; /* in the forward, without padding */
    uint32_t prompt_token_count;
    uint32_t width;       /* of its decode rows */
    executor_row_t *rows; /* [slot_count] */
} executor_flight_t;

typedef enum {
    EXECUTOR_LOADING = 0, /* the model is not there yet */
    EXECUTOR_READY = 1,
    EXECUTOR_FAILED = 2, /* for good: the process ends */
} executor_phase_t;

/* Why a plan is refused. */
typedef struct {
    proto_plan_rule_t rule; /* PROTO_RULE_NONE: it is not */
    uint32_t slot;
    char detail[128];
} executor_refusal_t;

/* The drafter: who it is, and what is out to it. */
typedef struct {
    bool is_linked;
    bool has_info; /* it said what it is; answered once the device is ready */
    bool is_used;  /* accepted: it gets rounds */
    actor_peer_t peer;
    uint64_t epoch;
    uint32_t asked_count; /* rounds out, at most DRAFT_ROUNDS_MAX */
    uint32_t ring_next;   /* ring slot of the next round */
    uint32_t vocab_size;  /* of its DRAFTER_INFO, as the rest */
    uint32_t hidden_size;
    uint32_t width_max;
    uint32_t parent_count_max;
    uint32_t name_size;
    uint32_t target_size;
    char name[PROTO_NAME_SIZE_BYTES];
    char target[DRAFT_TARGET_SIZE_MAX];
} executor_drafter_t;

/* Room for the launch of one plan. */
typedef struct {
    int32_t *tokens;       /* [step_tokens_max] extend tokens */
    int32_t *next_ids;     /* [slot_count] the tokens behind the extends' ranges */
    uint32_t *patch_slots; /* [3 * cells] all five: what a full plan drops, the plan's own patches,
                              the tables of slots that are set up */
    uint32_t patch_count;
    uint32_t block_count;
    uint8_t *patch_groups;
    uint32_t *patch_columns;
    uint32_t *patch_counts;
    uint32_t *patch_blocks;
} executor_launch_room_t;

/* Room for the page hashes of one result. */
typedef struct {
    uint32_t *rows;
    uint32_t *pages;
    uint8_t *bytes;
    uint32_t count;
    uint32_t count_max;
} executor_hash_room_t;

struct actor_executor_core {
    actor_core_ops_t ops;
    actor_executor_core_options_t limits;

    /* Links. */
    executor_phase_t phase;
    bool is_linked;    /* a scheduler is there */
    bool is_info_sent; /* and knows what we have: its plans count */
    actor_peer_t scheduler;
    uint64_t scheduler_epoch;
    uint32_t reset_count;    /* DEVICE_RESETs that the device has not carried out yet */
    bool is_device_pristine; /* the device got nothing since its start or the last reset */
    bool is_draining;
    executor_drafter_t drafter;
    char draft_ring[256]; /* what limits.draft_ring points to */

    /* What the device has; views into `info_text` and `info_columns`. */
    proto_executor_info_t info;
    char info_text[2][PROTO_TEXT_LEN_MAX];
    uint32_t info_columns[4][PROTO_GROUPS_MAX];
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
    actor_executor_group_t groups[PROTO_GROUPS_MAX];
    uint32_t group_count;

    /* Made at DEVICE_READY. */
    bool has_stores;        /* all of them */
    executor_slot_t *slots; /* [slot_count + 1]; 0 is unused */
    int32_t *tokens;        /* [slot_count + 1][model_len_max] */
    uint8_t *sampling;      /* [slot_count + 1][SAMPLING_SIZE_MAX] */
    actor_executor_tables_t *tables;
    executor_launch_room_t launch;
    executor_hash_room_t hashes;

    /* Plans. */
    uint64_t applied_step; /* the last plan applied; 0 = none since the last reset */
    bool is_awaiting_full; /* after a refusal */
    uint32_t bad_plans;    /* refused in a row for a rule that is no matter of timing */
    uint32_t stamp;        /* of the plan in work */
    executor_flight_t flights[FLIGHTS_MAX]; /* a ring */
    uint32_t flight_first;
    uint32_t flight_count;
    uint64_t slots_digest;

    /* Figures. */
    proto_stats_t stats;
    uint64_t busy_since_ns;   /* when the device last had a step begin after none */
    uint64_t step_ns;         /* estimate: what a step costs beside its tokens */
    uint64_t token_ns;        /* estimate: what a token of an extend costs */
    uint64_t oldest_begin_ns; /* when the oldest step in flight could begin */
};

static inline uint64_t
executor_mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9u;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static inline int32_t *
executor_tokens(const actor_executor_core_t *self, uint32_t slot)
{
    return self->tokens + (size_t)slot * self->info.model_len_max;
}

static inline uint8_t *
executor_sampling(const actor_executor_core_t *self, uint32_t slot)
{
    return self->sampling + (size_t)slot * SAMPLING_SIZE_MAX;
}

/* True if the figures of a request agree: each row in flight has a token to add, but for one that a
 * wide row before it left nothing. */
static inline bool
executor_slot_is_bounded(const actor_executor_core_t *self, const executor_slot_t *slot)
{
    uint32_t width = self->info.decode_width;
    return slot->known <= slot->length_max && slot->pending <= FLIGHTS_MAX * width &&
           (width > 1 || slot->pending <= slot->length_max - slot->known);
}

/* Refreshes a slot's part of the digest; after each change of its fields. */
void actor_executor_slot_touch(actor_executor_core_t *self, uint32_t slot);
/* Appends tokens to the slot's store. */
void actor_executor_slot_append(actor_executor_core_t *self, uint32_t slot, const int32_t *tokens,
                                uint32_t count);
/* Empties a slot; its tables are the caller's. */
void actor_executor_slot_leave(actor_executor_core_t *self, uint32_t slot);

/* Takes over what the device has and makes the stores.  On a failure detail[size_bytes] says why;
 * actor_executor_stores_free() frees what was made. */
MUST_CHECK proto_status_t actor_executor_stores_make(actor_executor_core_t *self,
                                                     const proto_device_ready_t *ready,
                                                     char *detail, size_t size_bytes);
void actor_executor_stores_free(actor_executor_core_t *self);

/* Handles a PLAN of the scheduler: launches it or refuses it. */
void actor_executor_plan(actor_executor_core_t *self, const actor_input_t *input,
                         actor_outbox_t *outbox);
/* Carries out a plan that passed every check: its releases, and the launch. */
void actor_executor_launch(actor_executor_core_t *self, const actor_input_t *input,
                           actor_outbox_t *outbox);
void actor_executor_save(const void *core, proto_pack_t *state, proto_pack_t *secret);
/* Handles a STEP_DONE of the device. */
void actor_executor_step_done(actor_executor_core_t *self, const actor_input_t *input,
                              actor_outbox_t *outbox);
/* A link to a drafter opened or ended; what it says. */
void actor_executor_drafter_up(actor_executor_core_t *self, const actor_input_t *input);
void actor_executor_drafter_down(actor_executor_core_t *self, actor_outbox_t *outbox);
void actor_executor_drafter_says(actor_executor_core_t *self, const actor_input_t *input,
                                 actor_outbox_t *outbox);
/* Answers a drafter that asked to be used, if the device is ready. */
void actor_executor_drafter_answer(actor_executor_core_t *self, actor_outbox_t *outbox);
/* Asks for a round after `step`; returns 1 + its ring slot, 0 = nobody is asked. */
uint32_t actor_executor_draft_ask(actor_executor_core_t *self, uint64_t step,
                                  actor_outbox_t *outbox);
/* Ends the actor's work for good and tells the shell. */
void actor_executor_fail(actor_executor_core_t *self, proto_status_t status, const char *detail,
                         actor_outbox_t *outbox);

#endif
