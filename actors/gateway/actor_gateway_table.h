/* actor_gateway_table.h - the core's open choices: found by request id or by (exchange, choice),
 * ordered by deadline and by age, with a digest kept as they change.  Owned by the core, used by it
 * alone, on its thread; allocates only in new. */
#ifndef ACTOR_GATEWAY_TABLE_H
#define ACTOR_GATEWAY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "actor_gateway_history.h"
#include "proto_messages.h"
#include "proto_status.h"

typedef struct actor_gateway_table actor_gateway_table_t; /* opaque */

typedef struct {
    uint64_t exchange;           /* names one HTTP exchange */
    uint64_t request;            /* names this choice to the scheduler; another after each loss */
    uint64_t deadline_ns;        /* the earliest of those below that hold; UINT64_MAX = none */
    uint64_t client_deadline_ns; /* UINT64_MAX = none */
    uint64_t finish_deadline_ns; /* with stop_reason: when its answer is not waited for any more */
    uint64_t wait_until_ns;      /* while it waits for a scheduler: for how long */
    uint64_t retry_ns;           /* while it waits: not before; 0 = at once */
    int64_t priority;
    uint32_t choice_index;             /* which choice of the exchange */
    uint32_t next_index;               /* of the next token expected */
    uint32_t prompt_tokens;            /* tokens of the prompt */
    uint32_t generation_max;           /* tokens to generate at most, those that came included */
    uint32_t stop_index;               /* with stop_reason: tokens [0, stop_index) count */
    uint32_t attempt_count;            /* times that it was submitted without a token since */
    uint32_t kill_count;               /* executors that died with it in their step, lately */
    uint32_t kill_index;               /* next_index when the last of them died */
    proto_finish_reason_t stop_reason; /* NONE until a FINISH was sent */
    bool is_waiting;                   /* for a scheduler: nobody has it */
    bool is_lost;                      /* a scheduler that had it is gone */
    bool was_waiting;                  /* has waited before: a full queue is no answer to it */
    bool is_kept;                      /* `record` has all that a new submission needs */
    bool is_trial;                     /* it runs, and no other suspect beside it */
    uint32_t sampling_size;            /* bytes at the begin of the record; tokens follow */
    actor_gateway_record_t record;

    uint64_t arrival;   /* the table's own: order of acquire, decides between equal deadlines */
    uint32_t heap_at;   /* the table's own: place in the deadline heap */
    uint32_t next_free; /* the table's own */
    uint32_t older;     /* the table's own: neighbours in the order of acquire */
    uint32_t newer;
} actor_gateway_choice_t;

MUST_CHECK proto_status_t actor_gateway_table_new(uint32_t count_max,
                                                  actor_gateway_table_t **out_p);
void actor_gateway_table_destroy(actor_gateway_table_t **self_p);

/* Takes a free entry, with no deadline.  NULL when the table is full.  Neither the request nor the
 * pair may be in it already. */
actor_gateway_choice_t *actor_gateway_table_acquire(actor_gateway_table_t *self, uint64_t request,
                                                    uint64_t exchange, uint32_t choice_index);
void actor_gateway_table_release(actor_gateway_table_t *self, actor_gateway_choice_t *choice);

/* NULL if there is none. */
actor_gateway_choice_t *actor_gateway_table_find(actor_gateway_table_t *self, uint64_t request);
actor_gateway_choice_t *actor_gateway_table_find_choice(actor_gateway_table_t *self,
                                                        uint64_t exchange, uint32_t choice_index);

/* Gives it another request id, which must not be in the table. */
void actor_gateway_table_rename(actor_gateway_table_t *self, actor_gateway_choice_t *choice,
                                uint64_t request);

/* Call before and after every direct change of fields: the digest and the order of deadlines
 * follow.  Nothing else of the table may be called between the two. */
void actor_gateway_table_begin(actor_gateway_table_t *self, const actor_gateway_choice_t *choice);
void actor_gateway_table_end(actor_gateway_table_t *self, actor_gateway_choice_t *choice);

/* The entry whose deadline comes first, the older one of two; NULL when the table is empty. */
actor_gateway_choice_t *actor_gateway_table_first(const actor_gateway_table_t *self);

/* In the order in which they came; NULL at the end.  The order is a promise: what a core says about
 * several choices follows it. */
actor_gateway_choice_t *actor_gateway_table_oldest(const actor_gateway_table_t *self);
actor_gateway_choice_t *actor_gateway_table_newer(const actor_gateway_table_t *self,
                                                  const actor_gateway_choice_t *choice);

uint32_t actor_gateway_table_count(const actor_gateway_table_t *self);
uint64_t actor_gateway_table_digest(const actor_gateway_table_t *self);

/* Walks everything and aborts at the first broken invariant; O(n). */
void actor_gateway_table_check(const actor_gateway_table_t *self);

/* A well-mixed 64-bit function, one to one. */
uint64_t actor_gateway_mix(uint64_t value);

#endif
