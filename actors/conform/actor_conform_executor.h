/* actor_conform_executor.h - the executor that the tool plays: the real executor core, which
 * judges every plan, around it what the scheduler owes beyond that, and a device that answers when
 * it is told to.
 *
 * It owns its shell, the inner core and the cache; book and report are lent.  One thread.
 *
 * actor_conform_executor.c  the core around the core    actor_conform_audit.c  rules of the
 * scheduler's own side    actor_conform_device.c  rows and results */
#ifndef ACTOR_CONFORM_EXECUTOR_H
#define ACTOR_CONFORM_EXECUTOR_H

#include "actor_conform_cache.h"
#include "actor_executor_core.h"
#include "actor_shell.h"

/* What this executor has. */
typedef struct {
    uint32_t slot_count;
    uint32_t model_len_max;
    uint32_t step_tokens_max;
    uint32_t overlap_depth_max;
    uint32_t page_tokens;
    uint32_t parent_count; /* the null parent included */
    uint32_t group_count;
    uint32_t kinds[CONFORM_GROUPS_MAX];
    uint32_t granularities[CONFORM_GROUPS_MAX];
    uint32_t windows[CONFORM_GROUPS_MAX];
    uint32_t packings[CONFORM_GROUPS_MAX];
} conform_machine_t;

enum {
    CONFORM_FLIGHTS_MAX = 4,
};

/* A step that was launched; its outputs are known at once. */
typedef struct {
    uint64_t step;
    uint32_t row_count;
    uint32_t token_count;
    uint32_t mode;
    uint32_t slots[CONFORM_SLOTS_MAX];
    bool samples[CONFORM_SLOTS_MAX];
    uint8_t counts[CONFORM_SLOTS_MAX];
    uint8_t flags[CONFORM_SLOTS_MAX];
    uint8_t widths[CONFORM_SLOTS_MAX];
    int32_t tokens[CONFORM_SLOTS_MAX];
    int32_t logprob_ids[CONFORM_SLOTS_MAX * CONFORM_LOGPROB_WIDTH];
    float logprob_values[CONFORM_SLOTS_MAX * CONFORM_LOGPROB_WIDTH];
    uint32_t logprob_count;
    uint32_t releases[CONFORM_SLOTS_MAX + 1]; /* slots that its plan released */
    uint32_t release_count;
    uint64_t launched_ns;
} conform_flight_t;

/* How a slot stands between scheduler and executor. */
typedef enum {
    CONFORM_SLOT_FREE = 0,
    CONFORM_SLOT_TAKEN,
    CONFORM_SLOT_RELEASING, /* a plan released it; its result is not out */
} conform_slot_state_t;

typedef struct {
    conform_slot_state_t state;
    conform_request_t *request; /* NULL: unknown to the book */
    uint32_t samples_in_flight;
} conform_slot_t;

/* Next refusal that is made up, whatever the plan. */
typedef struct {
    bool is_armed;
    proto_plan_rule_t rule;
    uint64_t request; /* only a plan with a row of it; 0 = any with a row */
    /* What was refused. */
    bool is_done;
    uint64_t step;
    uint32_t slot; /* named in the refusal */
    uint64_t requests[CONFORM_SLOTS_MAX];
    uint32_t request_count;
} conform_refuse_t;

typedef struct {
    actor_core_ops_t ops;
    conform_machine_t machine;
    proto_executor_info_t info;
    uint8_t page_key[PROTO_HASH_SIZE_BYTES];
    conform_book_t *book;
    conform_report_t *report;
    actor_shell_t *shell; /* set by the stage */
    int ring_fd;          /* of its record; -1 = none */
    actor_executor_core_t *inner;
    actor_outbox_t *inner_outbox;
    proto_body_t body; /* of the inner emission in work */
    conform_cache_t cache;

    actor_peer_t scheduler;
    bool is_up;
    bool was_up;
    bool is_leaving; /* the tool ends the link: its loss is no fault */
    char down_detail[160];

    bool has_reset;       /* RESET came after the last EXECUTOR_INFO */
    uint32_t reset_count; /* RESETs in all */
    bool is_info_sent;
    uint64_t plan_count; /* on this link; since the last reset for the first-full rule */
    uint64_t plans_since_reset;
    uint64_t row_plan_count; /* plans with rows */
    uint64_t *step_last;     /* of the scheduler's whole life */
    uint32_t in_flight;      /* plans applied or held, without a result */
    bool awaits_full;        /* after a refusal */
    uint32_t stale_allowed;  /* plans that may still be on their way from before it */
    uint64_t changed_ns;     /* when something last happened that may make work possible */
    conform_slot_t slots[CONFORM_SLOTS_MAX + 1];

    conform_flight_t flights[CONFORM_FLIGHTS_MAX]; /* a ring */
    uint32_t flight_first;
    uint32_t flight_count;
    conform_flight_t sent; /* the last one whose result went out */

    /* What the tool wants. */
    bool is_holding;    /* results wait */
    uint32_t let_count; /* while holding: results that may go */
    conform_refuse_t refuse;
    bool repeats_results;   /* every result goes out twice, and an old one in between */
    uint32_t breaks_result; /* 1: the next result lacks a row; 2: it is of a step never planned */
    uint64_t broken_step;   /* of the result that was broken so; 0 = none yet */
} conform_executor_t;

MUST_CHECK proto_status_t actor_conform_executor_init(conform_executor_t *self,
                                                      const conform_machine_t *machine,
                                                      conform_book_t *book,
                                                      conform_report_t *report);
void actor_conform_executor_fini(conform_executor_t *self);

/* The device is ready: from now on EXECUTOR_INFO goes out when a link is up. */
void actor_conform_executor_start(conform_executor_t *self);
/* Lets results go that may; true if one went. */
bool actor_conform_executor_service(conform_executor_t *self, uint64_t now_ns);

/* ---- actor_conform_audit.c ------------------------------------------------------------------- */

void actor_conform_audit_admit(conform_executor_t *self, const actor_input_t *input);
/* Before the executor's own checks. */
void actor_conform_audit_plan(conform_executor_t *self, const actor_input_t *input);
/* A plan that passed them: the slots that it releases. */
void actor_conform_audit_applied(conform_executor_t *self, const proto_plan_t *plan);
/* The result of a flight goes out. */
void actor_conform_audit_result(conform_executor_t *self, const conform_flight_t *flight);
void actor_conform_audit_reset(conform_executor_t *self);

/* ---- actor_conform_device.c ------------------------------------------------------------------ */

/* Computes the rows of a plan and queues their outputs. */
void actor_conform_device_launch(conform_executor_t *self, const actor_input_t *input);
/* The outputs of the oldest step; views into the flight. */
void actor_conform_device_done(const conform_flight_t *flight, proto_body_t *out);

#endif
