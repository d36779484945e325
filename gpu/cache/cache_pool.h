/* cache_pool.h - the arena (one device allocation laid out by a plan) and pools, which are views of
 * it for a range of layers.
 *
 * The arena owns the memory; a pool borrows plan and arena and must not outlive them.  Contents are
 * touched by launches only.  One thread. */
#ifndef CACHE_POOL_H
#define CACHE_POOL_H

#include "cache_plan.h"
#include "device_base.h"

typedef struct cache_arena cache_arena_t; /* opaque */

typedef struct {
    const cache_plan_t *plan; /* lent */
    uint8_t *memory;          /* lent: the arena's */
    uint32_t first_layer;     /* of the plan; layer 0 of the pool */
    uint32_t layer_count;
} cache_pool_t;

/* A field as kernels see it: page p starts at pages + p * stride_bytes. */
typedef struct {
    uint8_t *pages;
    size_t stride_bytes;
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
    cache_dtype_t dtype;
    uint32_t group;
} cache_field_view_t;

/* Allocates plan's arena, zeroed.  The plan must be bound and must outlive the arena. */
MUST_CHECK proto_status_t cache_arena_new(device_t *device, const cache_plan_t *plan,
                                          cache_arena_t **out_p);
/* The same in memory that other processes may map.  STATUS_ERR_NO_MEMORY; the device may not be
 * able to hand it out: cache_arena_share() says so. */
MUST_CHECK proto_status_t cache_arena_new_shared(device_t *device, const cache_plan_t *plan,
                                                 cache_arena_t **out_p);
void cache_arena_destroy(cache_arena_t **self_p);
/* Its handle, as device_share().  STATUS_ERR_INVALID: it was not made shared. */
MUST_CHECK proto_status_t cache_arena_share(const cache_arena_t *self, device_share_t *out);
uint8_t *cache_arena_memory(const cache_arena_t *self);

/* STATUS_ERR_INVALID if the layers are not in the plan. */
MUST_CHECK proto_status_t cache_pool_init(cache_pool_t *self, const cache_plan_t *plan,
                                          const cache_arena_t *arena, uint32_t first_layer,
                                          uint32_t layer_count);

/* The field of a layer of this pool.  STATUS_ERR_NOT_FOUND. */
MUST_CHECK proto_status_t cache_pool_field(const cache_pool_t *self, uint32_t layer,
                                           cache_field_name_t name, cache_field_view_t *out);

/* Slots that locations may name: a slot is a row of the field, counted from page 0 on, the rows of
 * other fields between its pages included. */
uint32_t cache_pool_slot_count(const cache_pool_t *self, const cache_field_view_t *field);

/* True if a backend bound to `a` could be bound to `b`: everything but page counts agrees. */
bool cache_pool_same_geometry(const cache_pool_t *a, const cache_pool_t *b);

#endif
