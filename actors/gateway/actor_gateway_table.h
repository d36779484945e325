/* actor_gateway_table.h - the core's open choices: found by request id or by (exchange, choice),
 * ordered by deadline, with a digest kept as they change.  Owned by the core, used by it alone;
 * allocates only in new. */
#ifndef ACTOR_GATEWAY_TABLE_H
#define ACTOR_GATEWAY_TABLE_H

#include <stdint.h>

#include "proto_messages.h"
#include "proto_status.h"

typedef struct actor_gateway_table actor_gateway_table_t; /* opaque */

typedef struct {
    uint64_t exchange;      /* names one HTTP exchange */
    uint64_t request;       /* names this choice to the scheduler */
    uint64_t deadline_ns;   /* UINT64_MAX = none; change with actor_gateway_table_set_deadline */
    uint32_t choice_index;  /* which choice of the exchange */
    uint32_t next_index;    /* of the next token expected */
    uint32_t prompt_tokens; /* tokens of the prompt */
    uint32_t stop_index;    /* with stop_reason: tokens [0, stop_index) count */
    proto_finish_reason_t stop_reason; /* NONE until a FINISH was sent */
    uint32_t heap_at;                  /* the table's own: place in the deadline heap */
    uint32_t next_free;                /* the table's own */
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

void actor_gateway_table_set_deadline(actor_gateway_table_t *self, actor_gateway_choice_t *choice,
                                      uint64_t deadline_ns);

/* The entry whose deadline comes first; NULL when the table is empty. */
actor_gateway_choice_t *actor_gateway_table_first(const actor_gateway_table_t *self);

/* Call before and after every direct change of a field, so that the digest follows. */
void actor_gateway_table_fold(actor_gateway_table_t *self, const actor_gateway_choice_t *choice);

uint32_t actor_gateway_table_count(const actor_gateway_table_t *self);
uint64_t actor_gateway_table_digest(const actor_gateway_table_t *self);

/* Walks everything and aborts at the first broken invariant; O(n). */
void actor_gateway_table_check(const actor_gateway_table_t *self);

/* A well-mixed 64-bit function, one to one. */
uint64_t actor_gateway_mix(uint64_t value);

#endif
