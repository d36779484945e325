/* actor_scheduler_state.h - the insides of the scheduler's core, shared by its own files only, on
 * its thread.
 *
 * actor_scheduler_core.c      links, time, which message goes where
 * actor_scheduler_gateway.c   submits, finishes, ends, MODEL_INFO, LOAD
 * actor_scheduler_executor.c  the executor comes, goes, gets plans, refuses some
 * actor_scheduler_result.c    results of steps
 * actor_scheduler_transfer.c  blocks for and from other nodes
 * actor_scheduler_save.c      the state as bytes, and back */
#ifndef ACTOR_SCHEDULER_STATE_H
#define ACTOR_SCHEDULER_STATE_H

#include "actor_scheduler_core.h"
#include "actor_scheduler_store.h"
#include "proto_require.h"
#include "sched_loan.h"

enum {
    SCHEDULER_FINISHED_MAX = 128, /* ends passed on in one step; the rest follows at once */
    SCHEDULER_FAULTS_MAX = 3,     /* faults of an executor without a good step between */
    SCHEDULER_RETRY_AFTER_MS = 1000,
    SCHEDULER_RESERVED_MAX = 4, /* reservations told of in one step */
};

typedef struct {
    proto_role_t role; /* NONE: not there */
    uint64_t epoch;
    uint32_t incarnation; /* counts links; part of the owner of a request */
} scheduler_peer_t;

/* The rows of one TOKENS message. */
typedef struct {
    uint64_t *requests;
    uint32_t *token_indices;
    uint8_t *token_counts;
    uint8_t *logprob_widths;
    int32_t *tokens;
    int32_t *logprob_ids;
    float *logprob_values;
} scheduler_rows_t;

struct actor_scheduler_core {
    actor_core_ops_t ops;
    actor_scheduler_core_options_t options;
    sched_core_t *library;
    actor_scheduler_store_t *store;
    scheduler_peer_t peers[ACTOR_PEER_COUNT_MAX];
    scheduler_rows_t rows;

    /* The executor in charge. */
    actor_peer_t executor;
    uint64_t executor_epoch;
    uint32_t fault_count;
    proto_executor_info_t info; /* views into the room below */
    char info_text[2][PROTO_TEXT_LEN_MAX];
    uint32_t info_columns[4][PROTO_GROUPS_MAX];
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];

    char refusal[PROTO_TEXT_LEN_MAX]; /* why the executor that is linked was not taken; "" */

    /* LOAD. */
    uint64_t load_next_ns;
    uint64_t load_digest; /* the library's, when the last LOAD was sent */
    bool load_is_due;

    /* Transfers. */
    actor_peer_t kv_transfer; /* ACTOR_PEER_NONE: none is there */
    uint64_t fence_count;
    bool has_more_reserved;

    bool has_more_finished;
    uint64_t busy_since_ns; /* 0 = nothing runs */
    uint64_t finished_count;
    uint64_t refused_count;
    uint64_t ignored_count;
    proto_stats_t stats;
};

/* ---- actor_scheduler_gateway.c --------------------------------------------------------------- */

/* A gateway, or a role that stands before it. */
static inline bool
actor_scheduler_may_submit(proto_role_t role)
{
    return role == PROTO_ROLE_GATEWAY || role == PROTO_ROLE_PREFILL_ROLE ||
           role == PROTO_ROLE_DECODE_ROLE;
}

/* The owner of a request is a peer and which of its incarnations. */
uint32_t actor_scheduler_owner(const actor_scheduler_core_t *self, uint32_t peer);
bool actor_scheduler_owner_is_there(const actor_scheduler_core_t *self, uint32_t owner);
/* MODEL_INFO to one gateway, or to all. */
void actor_scheduler_tell_gateway(actor_scheduler_core_t *self, uint32_t peer,
                                  actor_outbox_t *outbox);
void actor_scheduler_tell_gateways(actor_scheduler_core_t *self, actor_outbox_t *outbox);
/* At most one LOAD in an interval, and none when nothing happened. */
void actor_scheduler_send_load(actor_scheduler_core_t *self, uint64_t now_ns,
                               actor_outbox_t *outbox);
/* Passes ends on; when there are many, the rest follows with a TIMER input of its own. */
void actor_scheduler_pass_finished(actor_scheduler_core_t *self, actor_outbox_t *outbox);
/* Handles a SUBMIT, a FINISH. */
void actor_scheduler_submit(actor_scheduler_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox);
void actor_scheduler_finish(actor_scheduler_core_t *self, const actor_input_t *input);
/* The same SUBMIT, of a request whose cache is there already. */
void actor_scheduler_submit_as(actor_scheduler_core_t *self, const actor_input_t *input,
                               bool is_activated, actor_outbox_t *outbox);

/* ---- actor_scheduler_transfer.c -------------------------------------------------------------- */

/* Handles a RESERVE, an ACTIVATE, a RELEASE, a FENCED. */
void actor_scheduler_reserve(actor_scheduler_core_t *self, const actor_input_t *input,
                             actor_outbox_t *outbox);
void actor_scheduler_activate(actor_scheduler_core_t *self, const actor_input_t *input,
                              actor_outbox_t *outbox);
void actor_scheduler_release(actor_scheduler_core_t *self, const actor_input_t *input,
                             actor_outbox_t *outbox);
void actor_scheduler_fenced(actor_scheduler_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox);
/* Everything lent for this owner is asked back. */
void actor_scheduler_lose_role(actor_scheduler_core_t *self, uint32_t owner,
                               actor_outbox_t *outbox);
/* The blocks that were asked back are back, or are nobody's any more. */
void actor_scheduler_end_fences(actor_scheduler_core_t *self, actor_outbox_t *outbox);
/* Every fence holds: nothing copies any more. */
void actor_scheduler_lose_kv_transfer(actor_scheduler_core_t *self, actor_outbox_t *outbox);
/* TRANSFER_PARTs of the plan just made. */
void actor_scheduler_send_parts(actor_scheduler_core_t *self, actor_outbox_t *outbox);
/* RESERVED for what is ready. */
void actor_scheduler_send_reserved(actor_scheduler_core_t *self, actor_outbox_t *outbox);

/* ---- actor_scheduler_executor.c -------------------------------------------------------------- */

bool actor_scheduler_is_executor(const actor_scheduler_core_t *self, actor_peer_t peer);
/* Every plan that can be made now, with its admissions. */
void actor_scheduler_send_plans(actor_scheduler_core_t *self, uint64_t now_ns,
                                actor_outbox_t *outbox);
void actor_scheduler_count_busy(actor_scheduler_core_t *self, uint64_t now_ns);
/* Every request ends with `code`. */
void actor_scheduler_lose_executor(actor_scheduler_core_t *self, const char *code,
                                   actor_outbox_t *outbox);
/* The executor broke the protocol: its requests end, it starts over with nothing.  When that
 * happens again and again without a good step between, it is left alone. */
void actor_scheduler_executor_fault(actor_scheduler_core_t *self, const actor_input_t *input,
                                    const char *detail, actor_outbox_t *outbox);
/* Handles an EXECUTOR_INFO, a PLAN_REFUSED, a NAK. */
void actor_scheduler_executor_info(actor_scheduler_core_t *self, const actor_input_t *input,
                                   actor_outbox_t *outbox);
void actor_scheduler_plan_refused(actor_scheduler_core_t *self, const actor_input_t *input,
                                  actor_outbox_t *outbox);
void actor_scheduler_nak(actor_scheduler_core_t *self, const actor_input_t *input,
                         actor_outbox_t *outbox);

/* ---- actor_scheduler_result.c ---------------------------------------------------------------- */

/* Handles a STEP_RESULT. */
void actor_scheduler_step_result(actor_scheduler_core_t *self, const actor_input_t *input,
                                 actor_outbox_t *outbox);

/* ---- actor_scheduler_save.c ------------------------------------------------------------------ */

void actor_scheduler_save(const void *core, proto_pack_t *state, proto_pack_t *secret);

/* ---- actor_scheduler_core.c ------------------------------------------------------------------ */

/* What the library is made with. */
sched_core_options_t actor_scheduler_library_options(const actor_scheduler_core_options_t *options);

#endif
