/* actor_gateway_core.h - the gateway's logic: every choice that is open, and how it ends.
 *
 * Owns the table of open choices, the ids that name them to the scheduler, the clients' deadlines,
 * and the history that each choice would need to go on with another scheduler: when one dies or is
 * replaced, what is open waits for the next and is submitted again, behind the tokens that came. It
 * starts after parsing: HTTP, JSON, templates and tokens' text are the shell's.  A pure core
 * (actor_core.h): no clock, socket, thread or allocation after new.
 *
 * Each HTTP_REQUEST gets exactly one HTTP_END, whatever happens and in whatever order; HTTP_TOKENS
 * come before it, without gap or double.  One request id names one choice of one exchange. */
#ifndef ACTOR_GATEWAY_CORE_H
#define ACTOR_GATEWAY_CORE_H

#include <stdbool.h>

#include "actor_core.h"

typedef struct actor_gateway_core actor_gateway_core_t; /* opaque */

enum {
    ACTOR_GATEWAY_CHOICE_COUNT_MAX = 4096, /* no core may be asked for more */
    ACTOR_GATEWAY_STOP_ID_COUNT_MAX = 64,
};

typedef struct {
    uint64_t epoch;              /* of this gateway: request ids of two epochs never meet */
    uint32_t choice_count_max;   /* open at once, 1..ACTOR_GATEWAY_CHOICE_COUNT_MAX */
    uint64_t finish_timeout_ns;  /* how long a FINISH may stay unanswered; 0 = 10 s */
    uint64_t resume_timeout_ns;  /* how long choices wait for the next scheduler; 0 = 30 s */
    uint64_t answer_timeout_ns;  /* how long a scheduler with open choices may be silent before it
                                    is complained of; 0 = 120 s */
    uint64_t history_size_bytes; /* for what choices need to be submitted again; 0 = 64 MiB */
    uint32_t stop_id_count;      /* tokens that end an answer, unless it ignores them */
    int32_t stop_ids[ACTOR_GATEWAY_STOP_ID_COUNT_MAX];
} actor_gateway_core_options_t;

/* Allocates everything the core will ever need.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_gateway_core_new(const actor_gateway_core_options_t *options,
                                                 actor_gateway_core_t **out_p);
/* Makes the core that actor_core_ops_t.save() wrote: it goes on exactly as that one would have.
 * Both parts are hostile; zeros of the same size in place of `secret` restore too.
 * STATUS_ERR_MALFORMED or _VERSION with what is wrong in *error, STATUS_ERR_NO_MEMORY; nothing is
 * left behind then. */
MUST_CHECK proto_status_t actor_gateway_core_restore(proto_bytes_t state, proto_bytes_t secret,
                                                     actor_gateway_core_t **out_p,
                                                     proto_error_t *error);
/* Frees the core and sets *self_p to NULL; does nothing if it is NULL already. */
void actor_gateway_core_destroy(actor_gateway_core_t **self_p);

/* How a harness runs it.  Never NULL, never freed. */
const actor_core_ops_t *actor_gateway_core_ops(void);

/* What the scheduler last said of the model; its texts and key are copies that live as long as
 * the core.  While a scheduler is being replaced: what the last one said.  NULL if there is none,
 * or if it has no executor. */
const proto_model_info_t *actor_gateway_core_model(const actor_gateway_core_t *self);

/* The last LOAD; zeroes if none came from the scheduler that is attached. */
const proto_load_t *actor_gateway_core_load(const actor_gateway_core_t *self);

typedef struct {
    bool ready;               /* a scheduler and an executor are attached, and no drain */
    bool draining;            /* nothing new is admitted */
    uint32_t open_count;      /* choices without their HTTP_END */
    uint32_t waiting_count;   /* of these, waiting for a scheduler */
    uint64_t submitted_count; /* SUBMITs sent */
    uint64_t ended_count;     /* HTTP_ENDs given */
    uint64_t gap_count;       /* choices lost to a hole in their tokens */
    uint64_t ignored_count;   /* late, double or misshapen inputs */
    uint64_t resumed_count;   /* choices that another scheduler went on with */
    uint64_t poisoned_count;  /* ended because executors died of them */
    uint64_t unkept_count;    /* choices that could not have been: the history was full */
    uint64_t history_used_bytes;
    uint64_t history_size_bytes;
    const char *detail; /* what is missing; "" when ready */
} actor_gateway_core_state_t;

/* One open choice, as people see it. */
typedef struct {
    uint64_t exchange;
    uint64_t request; /* as the scheduler knows it */
    int64_t priority;
    uint32_t choice_index;
    uint32_t prompt_tokens;
    uint32_t generated_tokens;
    uint32_t generation_max;
    bool is_waiting;  /* for a scheduler */
    bool is_stopping; /* told to end, without an answer yet */
} actor_gateway_seen_t;

/* The oldest open choice that came after *after (0 at first), which is set to it; false when there
 * is none.  O(open); a walk may go on where it was, whatever changed meanwhile. */
bool actor_gateway_core_look(const actor_gateway_core_t *self, uint64_t *after,
                             actor_gateway_seen_t *out);

actor_gateway_core_state_t actor_gateway_core_state(const actor_gateway_core_t *self);

#endif
