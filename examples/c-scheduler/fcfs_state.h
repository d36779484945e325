/* fcfs_state.h - what the scheduler knows, shared by its own files. */
#ifndef FCFS_STATE_H
#define FCFS_STATE_H

#include "fcfs.h"

enum {
    FCFS_FLIGHT_COUNT = 2,             /* plans without a result: one runs, one waits behind it */
    FCFS_ADMIT_BYTES_MAX = 4 << 20,    /* of prompts admitted for one input, beyond the first */
    FCFS_OUTBOX_SIZE_BYTES = 64 << 20, /* ADMITs, two plans, TOKENS, ends */
    FCFS_ENDS_MAX = 128,               /* ends passed on for one input; TIMERs bring the rest */
    FCFS_REFUSALS_MAX = 3,             /* refused plans in a row that end a request */
    FCFS_REFUSALS_IN_ALL_MAX = 16,     /* without a result between: the executor is at fault */
    FCFS_FAULTS_MAX = 3,               /* of an executor; then it is left alone */
    FCFS_ENDED_KEPT = 1024,            /* ids that a late SUBMIT is recognised by */
};

typedef enum {
    FCFS_FREE = 0,
    FCFS_WAITING,
    FCFS_PREFILLING,
    FCFS_DECODING,
    FCFS_ENDED
} fcfs_phase_t;

typedef struct {
    fcfs_phase_t phase;
    uint32_t next;    /* in its list; 0 = the last */
    uint64_t serial;  /* names this use of the entry */
    uint64_t id;      /* as the gateway calls it */
    uint32_t gateway; /* peer */
    uint32_t prompt_length, generation_max, emitted;
    uint32_t slot;      /* 0 = none yet */
    uint32_t computed;  /* of its known tokens, those whose computation is planned */
    uint32_t sampled;   /* tokens given or in flight */
    uint32_t generated; /* tokens given */
    bool is_broken;     /* a plan with a row of it was refused */
    uint32_t refusals;
    uint64_t arrived_ns, deadline_ns, queue_ns;
    /* Kept until ADMIT, passed on unread. */
    int32_t *tokens;
    uint8_t *sampling, *hashes;
    uint32_t sampling_size, hashes_size;
    uint32_t *blocks; /* all that it can ever need */
    uint32_t block_count;
    /* How it ended, until FINISHED is sent. */
    proto_finish_reason_t reason;
    proto_status_t status;
    const char *code;
} fcfs_request_t;

typedef struct {
    uint32_t entry;
    uint64_t serial;
    bool samples;
} fcfs_row_t;

/* A plan without a result. */
typedef struct {
    uint64_t step;
    uint32_t row_count;
    fcfs_row_t *rows;   /* [slot_count] */
    uint32_t *releases; /* [slot_count] slots that are free when its result is here */
    uint32_t release_count;
} fcfs_flight_t;

typedef struct {
    uint32_t first, last, count;
} fcfs_list_t;

struct fcfs {
    fcfs_request_t *requests; /* [request_count + 1]; entry 0 is not used */
    uint32_t request_count, queue_len_max;
    uint64_t serial;
    fcfs_list_t free, waiting, running, ended; /* running: in order of admission */
    struct {
        uint64_t id;
        uint32_t gateway;
    } gone[FCFS_ENDED_KEPT]; /* the last that ended */
    uint32_t gone_next;
    proto_role_t roles[ACTOR_PEER_COUNT_MAX];
    uint64_t epochs[ACTOR_PEER_COUNT_MAX];
    bool draining;
    /* The executor. */
    uint32_t executor; /* ACTOR_PEER_NONE = none */
    uint32_t fault_count;
    proto_executor_info_t info; /* of the last one; views into what follows */
    char texts[2][PROTO_TEXT_LEN_MAX];
    uint8_t hash_key[PROTO_HASH_SIZE_BYTES];
    uint32_t granularity;
    uint32_t *free_blocks, free_block_count, block_count;
    uint32_t *dirty, dirty_count; /* blocks that a NaN may be in: cleared, then free */
    uint32_t clearing_count;      /* the first ones: a plan in flight clears them */
    uint64_t clearing_step;       /* which */
    uint8_t *zeros;               /* for columns of groups: all are 0 */
    uint32_t *free_slots, free_slot_count;
    uint32_t *releases, release_count; /* slots for the next plan to release */
    fcfs_flight_t flights[FCFS_FLIGHT_COUNT];
    uint32_t flight_count, refusal_count;
    bool is_recovering; /* a plan was refused: nothing is planned until all flights are over */
    uint64_t step, base;
    uint32_t *columns; /* room for the columns of one plan */
};

/* Takes a request out of everything; its FINISHED follows. */
void fcfs_end(fcfs_t *self, uint32_t entry, proto_finish_reason_t reason, proto_status_t status,
              const char *code);
/* The request of a row, or NULL if it has ended since the row was planned. */
fcfs_request_t *fcfs_request_of(const fcfs_t *self, const fcfs_row_t *row);
/* Moves an entry from one list to the end of another. */
void fcfs_move(fcfs_t *self, uint32_t entry, fcfs_list_t *from, fcfs_list_t *to);
/* Frees what is passed on with ADMIT. */
void fcfs_free_content(fcfs_request_t *request);
/* A NAK to a peer, and to our own side, which logs it. */
void fcfs_complain(const actor_input_t *input, proto_status_t status, const char *detail,
                   actor_outbox_t *outbox);

/* fcfs_executor.c: who computes. */
void fcfs_on_executor_info(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox);
/* Frees what its sizes decided. */
void fcfs_free_executor(fcfs_t *self);
void fcfs_lose_executor(fcfs_t *self, const char *code, actor_outbox_t *outbox);
/* It broke the protocol: its requests end, it starts over with nothing. */
void fcfs_on_fault(fcfs_t *self, const actor_input_t *input, const char *detail,
                   actor_outbox_t *outbox);
void fcfs_send_model_info(const fcfs_t *self, uint32_t peer, actor_outbox_t *outbox);

/* fcfs_plan.c: makes and sends plans while there is something to plan and room in flight. */
void fcfs_plan(fcfs_t *self, uint64_t now_ns, actor_outbox_t *outbox);

/* fcfs_result.c: what became of them. */
void fcfs_on_step_result(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox);
void fcfs_on_plan_refused(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox);

#endif
