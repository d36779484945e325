/* actor_executor_tables.h - the executor's mirror of every request's block tables.
 *
 * It owns the cells [slot][group][column], the number of rows that reference each block, and the
 * undo log of the plan in work.  Pure bookkeeping, the core's thread only; allocates only in
 * actor_executor_tables_new().  Its callers check ranges: an index out of range is a bug. */
#ifndef ACTOR_EXECUTOR_TABLES_H
#define ACTOR_EXECUTOR_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_pack.h"
#include "proto_status.h"

typedef struct actor_executor_tables actor_executor_tables_t;

typedef enum {
    ACTOR_EXECUTOR_GROUP_FULL = 0, /* numbers as in EXECUTOR_INFO.group_kinds */
    ACTOR_EXECUTOR_GROUP_SLIDING = 1,
    ACTOR_EXECUTOR_GROUP_STATE = 2,
} actor_executor_group_kind_t;

typedef struct {
    actor_executor_group_kind_t kind;
    uint32_t granularity;  /* raw tokens of a block, at least 1 */
    uint32_t window;       /* tokens that a sliding group keeps */
    uint32_t packing;      /* blocks in a parent, at least 1 */
    uint32_t column_count; /* of a table */
    uint32_t block_count;  /* ids 1..block_count-1; 0 is the hole */
} actor_executor_group_t;

typedef struct {
    uint32_t slot_count;  /* slots 1..slot_count */
    uint32_t group_count; /* at least 1 */
    const actor_executor_group_t *groups;
    uint32_t parent_count; /* the null parent 0 included */
} actor_executor_tables_options_t;

/* One changed cell of the plan in work. */
typedef struct {
    uint32_t slot;
    uint32_t group;
    uint32_t column;
    uint32_t before; /* the block that it held */
} actor_executor_change_t;

MUST_CHECK proto_status_t actor_executor_tables_new(const actor_executor_tables_options_t *options,
                                                    actor_executor_tables_t **out_p);
void actor_executor_tables_destroy(actor_executor_tables_t **self_p);

/* Cells of all slots: the most that one plan may patch. */
uint32_t actor_executor_tables_cell_count(const actor_executor_tables_t *self);

/* Begins a plan: the undo log is empty. */
void actor_executor_tables_begin(actor_executor_tables_t *self);
/* Writes one cell.  At most cell_count sets between begin and the plan's end. */
void actor_executor_tables_set(actor_executor_tables_t *self, uint32_t slot, uint32_t group,
                               uint32_t column, uint32_t block);
/* Empties the tables of a slot. */
void actor_executor_tables_drop(actor_executor_tables_t *self, uint32_t slot);
/* Puts everything back as it was at the last begin. */
void actor_executor_tables_rollback(actor_executor_tables_t *self);
/* What changed since the last begin, oldest first. */
const actor_executor_change_t *actor_executor_tables_changes(const actor_executor_tables_t *self,
                                                             uint32_t *count_p);

uint32_t actor_executor_tables_get(const actor_executor_tables_t *self, uint32_t slot,
                                   uint32_t group, uint32_t column);
/* The slot's table in one group; columns at and beyond *count_p hold nothing. */
const uint32_t *actor_executor_tables_row(const actor_executor_tables_t *self, uint32_t slot,
                                          uint32_t group, uint32_t *count_p);
/* The first column of [begin, end) without a block; UINT32_MAX if all have one.  O(1) for the
 * usual case. */
uint32_t actor_executor_tables_missing(actor_executor_tables_t *self, uint32_t slot, uint32_t group,
                                       uint32_t begin, uint32_t end);
/* Cells that hold the block. */
uint32_t actor_executor_tables_references(const actor_executor_tables_t *self, uint32_t group,
                                          uint32_t block);
/* True if exactly one cell holds the block and no other group uses its parent. */
bool actor_executor_tables_exclusive(const actor_executor_tables_t *self, uint32_t group,
                                     uint32_t block);

/* Packs the tables of one slot. */
void actor_executor_tables_save(const actor_executor_tables_t *self, uint32_t slot,
                                proto_pack_t *out);
/* Fills the empty tables of one slot; anything that actor_executor_tables_save() did not pack marks
 * *in as failed. */
void actor_executor_tables_load(actor_executor_tables_t *self, uint32_t slot, proto_unpack_t *in);

/* Digest of all cells; kept incrementally. */
uint64_t actor_executor_tables_digest(const actor_executor_tables_t *self);
/* Recounts everything and aborts at the first difference: O(cells + blocks). */
void actor_executor_tables_check(const actor_executor_tables_t *self);

#endif
