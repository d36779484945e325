/* actor_scheduler_state.h - the insides of the scheduler's core, shared by its own files only. */
#ifndef ACTOR_SCHEDULER_STATE_H
#define ACTOR_SCHEDULER_STATE_H

#include "actor_scheduler_core.h"
#include "actor_scheduler_store.h"

enum {
    SCHEDULER_FINISHED_MAX = 128, /* ends passed on in one step; the rest follows at once */
    SCHEDULER_FAULTS_MAX = 3,     /* faults of an executor without a good step between */
    SCHEDULER_RETRY_AFTER_MS = 1000,
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

    /* LOAD. */
    uint64_t load_next_ns;
    uint64_t load_digest; /* the library's, when the last LOAD was sent */
    bool load_is_due;

    bool has_more_finished;
    uint64_t busy_since_ns; /* 0 = nothing runs */
    uint64_t finished_count;
    uint64_t refused_count;
    uint64_t ignored_count;
    proto_stats_t stats;
};

#endif
