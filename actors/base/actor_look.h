/* actor_look.h - rows of REQUESTS: filled by an actor that is asked what it sees, read by who
 * asked.
 *
 * No input of a core and no state: a look changes nothing.  Any thread; nothing is allocated. */
#ifndef ACTOR_LOOK_H
#define ACTOR_LOOK_H

#include <stdint.h>

#include "actor_shell.h"
#include "proto_codec.h"

enum { ACTOR_LOOK_NAME_SIZE_BYTES = 65 }; /* an x-request-id with its zero */

/* One open request. */
typedef struct {
    uint64_t request;
    proto_request_state_t state;
    proto_wait_t wait; /* the resource */
    uint64_t holder;   /* request that has it, or the step; 0 = nobody in particular */
    uint32_t needed;
    uint32_t available;
    uint32_t age_ms;
    uint32_t prompt_tokens;
    uint32_t computed_tokens;
    uint32_t generated_tokens;
    uint32_t generation_max;
    uint32_t block_count;
    uint32_t slot;
    int32_t priority;
    char name[ACTOR_LOOK_NAME_SIZE_BYTES]; /* "" = not known here */
} actor_look_row_t;

/* Sends rows as the answer to the LOOK `number`. */
typedef struct {
    uint64_t number;
    uint64_t next; /* 0 = that was all */
    uint32_t total;
    uint32_t count;
    const actor_look_row_t *rows; /* [count], at most PROTO_LOOK_ROWS_MAX */
} actor_look_answer_t;

void actor_look_show(actor_shell_t *shell, const actor_look_answer_t *answer);

/* Row `index` of a decoded REQUESTS; false if there is none, or if its columns do not agree. */
bool actor_look_row(const proto_requests_t *requests, uint32_t index, actor_look_row_t *out);

/* `duration_ns` in milliseconds, at most UINT32_MAX. */
uint32_t actor_look_milliseconds(uint64_t duration_ns);

/* For people: "decode", "blocks". */
const char *actor_look_state_name(proto_request_state_t state);
const char *actor_look_wait_name(proto_wait_t wait);

#endif
