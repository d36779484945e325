/* actor_queue.h - a bounded first-in-first-out queue of encoded messages in one byte ring.
 *
 * No locks: whoever shares it guards it.  A message lies whole and aligned in the ring, so that it
 * is decoded in place: producers only write free space, so the front may be read outside the
 * guard until it is popped. */
#ifndef ACTOR_QUEUE_H
#define ACTOR_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_status.h"

typedef struct actor_queue actor_queue_t;

/* One message; views into the ring, until it is popped. */
typedef struct {
    proto_kind_t kind;
    uint64_t request;
    proto_bytes_t body;
    proto_bytes_t blob; /* 64-byte aligned */
} actor_queued_t;

/* `size_bytes` is rounded up to a multiple of 64.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_queue_new(size_t size_bytes, actor_queue_t **out_p);
void actor_queue_destroy(actor_queue_t **self_p);

/* Encodes a message to the end.  STATUS_FULL if there is no room now, STATUS_ERR_TOO_LARGE if it
 * could never fit, STATUS_ERR_INVALID if a value is beyond its limit. */
MUST_CHECK proto_status_t actor_queue_push(actor_queue_t *self, proto_kind_t kind, uint64_t request,
                                           const proto_body_t *body);

/* The oldest message; STATUS_AGAIN if there is none. */
MUST_CHECK proto_status_t actor_queue_front(const actor_queue_t *self, actor_queued_t *out);

/* Drops the oldest message, which exists. */
void actor_queue_pop(actor_queue_t *self);

uint32_t actor_queue_len(const actor_queue_t *self);

/* Doubles the size; what is queued stays.  The front moves: nobody may hold a view. */
MUST_CHECK proto_status_t actor_queue_grow(actor_queue_t *self);

#endif
