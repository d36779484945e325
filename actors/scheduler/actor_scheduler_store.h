/* actor_scheduler_store.h - what waiting requests carry: prompts, sampling parameters, page hashes.
 *
 * It owns one piece of memory, made at the start, and deals out stretches of it (a buddy
 * allocator): a request's bytes lie in one stretch until the executor got them.  It never looks at
 * the bytes.  The core's thread only. */
#ifndef ACTOR_SCHEDULER_STORE_H
#define ACTOR_SCHEDULER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_pack.h"
#include "proto_status.h"

typedef struct actor_scheduler_store actor_scheduler_store_t; /* opaque */

/* A stretch; 0 = none. */
typedef struct {
    uint32_t value;
} actor_scheduler_parcel_t;

/* What a stretch holds; views into the store or, to be put in, into the caller's memory. */
typedef struct {
    proto_column_i32_t tokens;
    proto_column_u8_t sampling;
    proto_bytes_t page_hashes;
} actor_scheduler_content_t;

/* `size_bytes` is rounded up to a power of two, 64 KiB at least.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_scheduler_store_new(size_t size_bytes,
                                                    actor_scheduler_store_t **out_p);
void actor_scheduler_store_destroy(actor_scheduler_store_t **self_p);

/* Copies `content` in.  STATUS_FULL if there is no room now, STATUS_ERR_TOO_LARGE if there never
 * will be. */
MUST_CHECK proto_status_t actor_scheduler_store_put(actor_scheduler_store_t *self,
                                                    const actor_scheduler_content_t *content,
                                                    actor_scheduler_parcel_t *out);
/* The views live until the parcel is dropped. */
actor_scheduler_content_t actor_scheduler_store_get(const actor_scheduler_store_t *self,
                                                    actor_scheduler_parcel_t parcel);
void actor_scheduler_store_drop(actor_scheduler_store_t *self, actor_scheduler_parcel_t parcel);

/* Packs what is in it: where each stretch lies and its page hashes to `state`, tokens and sampling
 * parameters to `secret`. */
void actor_scheduler_store_save(const actor_scheduler_store_t *self, proto_pack_t *state,
                                proto_pack_t *secret);
/* Takes a store that was just made, of the same size, to what was packed; anything else marks one
 * of the two as failed: the store may only be destroyed then. */
void actor_scheduler_store_load(actor_scheduler_store_t *self, proto_unpack_t *state,
                                proto_unpack_t *secret);
/* After a load: gives what a parcel holds, once each; false for a second time or no such parcel. */
bool actor_scheduler_store_claim(actor_scheduler_store_t *self, uint64_t parcel,
                                 actor_scheduler_content_t *out);
/* True if every parcel was claimed. */
bool actor_scheduler_store_is_claimed(const actor_scheduler_store_t *self);

size_t actor_scheduler_store_size_bytes(const actor_scheduler_store_t *self);
size_t actor_scheduler_store_used_bytes(const actor_scheduler_store_t *self);
/* Walks everything and aborts at the first broken invariant. */
void actor_scheduler_store_check(const actor_scheduler_store_t *self);

#endif
