/* sched_pool_internal.h - the insides of sched_pool, shared by sched_pool*.c. */
#ifndef SCHED_POOL_INTERNAL_H
#define SCHED_POOL_INTERNAL_H

#include "sched_pool.h"

enum {
    TIER_PROBATION = 0,   /* published, never found again: goes first */
    TIER_ESTABLISHED = 1, /* found by a later request at least once */
    TIER_COUNT = 2,
    NO_GROUP = 255,
};

typedef struct {
    uint32_t holder_count;
    uint32_t generation; /* counts owners */
    uint32_t previous;   /* list of its tier, while cached */
    uint32_t next;
    uint32_t parent;
    uint8_t state; /* sched_block_state_t */
    uint8_t group;
    uint8_t tier;
    bool dirty;
} block_t;

typedef struct {
    uint64_t free_mask; /* bit s: slot s is free; only while bound */
    uint32_t previous;  /* list of empty parents, or of partly used ones */
    uint32_t next;
    uint32_t idle_previous; /* list of parents whose blocks are all cached or free */
    uint32_t idle_next;
    uint8_t group;      /* NO_GROUP while empty */
    uint8_t used_count; /* blocks that are not free */
    uint8_t held_count; /* blocks that somebody holds */
} parent_t;

typedef struct {
    uint32_t head;
    uint32_t tail;
    uint32_t count;
} list_t;

typedef struct {
    uint32_t base;
    uint32_t packing;
    uint32_t touched_end;     /* blocks from this number on never held or were to lose anything */
    uint32_t established_max; /* cached blocks that may stay in the upper tier */
    uint32_t partial_free;    /* free blocks in parents bound to this group */
    uint64_t partial_mask;    /* bit u: some parent has u used blocks and a free one */
    uint32_t partial[SCHED_PACKING_MAX];
    list_t cached[TIER_COUNT];
    list_t idle; /* oldest first */
    uint32_t counts[SCHED_BLOCK_STATE_COUNT];
} group_t;

static inline bool
sched_block_is_lent(const block_t *block)
{
    return block->state == SCHED_BLOCK_HELD || block->state == SCHED_BLOCK_INCOMING ||
           block->state == SCHED_BLOCK_FENCING;
}

/* True if anything ever happened to it. */
static inline bool
sched_block_is_touched(const block_t *block)
{
    return block->state != SCHED_BLOCK_FREE || block->generation != 0 || block->dirty;
}

struct sched_pool {
    uint32_t parent_count;
    uint32_t group_count;
    uint32_t block_count;
    uint32_t empty_head;
    uint32_t empty_count;
    uint32_t pristine; /* parents from here on were never taken: they end the list of empty ones */
    uint64_t evicted_count;
    uint64_t version;
    block_t *blocks;
    parent_t *parents;
    sched_prefix_t prefix;
    group_t groups[PROTO_GROUPS_MAX];
};

#endif
