/* actor_gateway_history.h - what open choices need to be submitted again: their sampling bytes, the
 * prompt, and the tokens that came since.
 *
 * It owns one piece of memory, made at the start, and deals out small chunks of it; a record is a
 * chain of them that grows at its end, so nothing is ever moved.  It never looks at the bytes.
 * Owned by the core, used by it alone, on its thread; allocates only in new. */
#ifndef ACTOR_GATEWAY_HISTORY_H
#define ACTOR_GATEWAY_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct actor_gateway_history actor_gateway_history_t; /* opaque */

#define ACTOR_GATEWAY_HISTORY_SIZE_MAX (UINT64_C(1) << 32)

/* A record; zeroes: nothing in it.  Embed it; only the history writes it. */
typedef struct {
    uint32_t first; /* chunk number + 1; 0 = none */
    uint32_t last;
    uint64_t size_bytes;
} actor_gateway_record_t;

/* `size_bytes` is rounded up to whole chunks; at most ACTOR_GATEWAY_HISTORY_SIZE_MAX.  The caller
 * owns *out_p. */
MUST_CHECK proto_status_t actor_gateway_history_new(uint64_t size_bytes,
                                                    actor_gateway_history_t **out_p);
void actor_gateway_history_destroy(actor_gateway_history_t **self_p);

/* Adds bytes to the end.  STATUS_FULL, and nothing was added, if they do not fit. */
MUST_CHECK proto_status_t actor_gateway_history_append(actor_gateway_history_t *self,
                                                       actor_gateway_record_t *record,
                                                       const void *data, size_t size_bytes);
/* Copies [begin_bytes, begin_bytes + size_bytes) of a record, which must have them. */
void actor_gateway_history_read(const actor_gateway_history_t *self,
                                const actor_gateway_record_t *record, uint64_t begin_bytes,
                                void *out, size_t size_bytes);
/* Gives its chunks back; the record is empty then. */
void actor_gateway_history_drop(actor_gateway_history_t *self, actor_gateway_record_t *record);

uint64_t actor_gateway_history_size_bytes(const actor_gateway_history_t *self);
/* Whole chunks in use. */
uint64_t actor_gateway_history_used_bytes(const actor_gateway_history_t *self);
/* Whole chunks of one record; walks it and aborts if its chain is broken. */
uint64_t actor_gateway_history_check(const actor_gateway_history_t *self,
                                     const actor_gateway_record_t *record);

#endif
