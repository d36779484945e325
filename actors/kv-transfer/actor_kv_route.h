/* actor_kv_route.h - the bytes of a piece, in one order on both sides.
 *
 * A route is the plan between all ranks of a source and all ranks of a destination.  The bytes of a
 * piece are: for each destination rank, for each fragment of its plan in the layers of the piece,
 * for each block of the fragment's group, the fragment's rows.  Both sides walk them the same way:
 * the source to send, the destination to place them, a copy on one host to do both at once.
 *
 * The data thread. */
#ifndef ACTOR_KV_ROUTE_H
#define ACTOR_KV_ROUTE_H

#include "actor_kv_plan.h"

/* One side's cache, as far as it is mapped here. */
typedef struct {
    uint32_t rank_count; /* 0 = nothing is known */
    const actor_kv_layout_t *layouts[ACTOR_KV_RANK_COUNT_MAX];
    uint8_t *arenas[ACTOR_KV_RANK_COUNT_MAX]; /* NULL = not mapped here */
} actor_kv_side_t;

typedef struct actor_kv_route actor_kv_route_t; /* opaque */

/* What a piece is about; views lent. */
typedef struct {
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t count;
    const uint8_t *groups;
    const uint32_t *from_blocks; /* NULL where only our own side matters */
    const uint32_t *to_blocks;
} actor_kv_piece_t;

/* Plans.  As actor_kv_plan_make(); STATUS_ERR_NO_MEMORY.  Layouts are lent and outlive it; the
 * caller owns *out_p. */
MUST_CHECK proto_status_t actor_kv_route_new(const actor_kv_side_t *from, const actor_kv_side_t *to,
                                             actor_kv_route_t **out_p);
void actor_kv_route_destroy(actor_kv_route_t **self_p);

/* Bytes of a piece. */
uint64_t actor_kv_route_bytes(const actor_kv_route_t *self, const actor_kv_piece_t *piece);

/* A run of bytes that lie behind each other: block `index` of the piece.  `from` and `to` are NULL
 * where that side's arena is not mapped.  false: stop. */
typedef bool (*actor_kv_run_fn)(void *context, uint32_t index, const uint8_t *from, uint8_t *to,
                                size_t size_bytes);

/* Walks the bytes of a piece in order; false if `visit` stopped. */
bool actor_kv_route_walk(const actor_kv_route_t *self, const actor_kv_piece_t *piece,
                         const actor_kv_side_t *from, const actor_kv_side_t *to,
                         actor_kv_run_fn visit, void *context);

#endif
