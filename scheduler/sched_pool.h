/* sched_pool.h - who holds which cache block of one executor.
 *
 * Parents 1..M are the unit of memory.  A parent belongs to no group while it is empty; the first
 * block taken from it binds it to one group, which then gets `packing` blocks out of it.  The pool
 * owns every counter, list and the prefix index; it must never know about requests.  Each
 * operation costs the same whatever the size of the pool.  Scheduler's thread only; allocates only
 * in sched_pool_new(). */
#ifndef SCHED_POOL_H
#define SCHED_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_messages.h"
#include "proto_pack.h"
#include "proto_status.h"
#include "sched_audit.h"
#include "sched_prefix.h"

typedef struct sched_pool sched_pool_t; /* opaque */

/* A block of the pool, all groups counted through; 0 = none.  The executor knows it by its group
 * and its number within that group. */
typedef struct {
    uint32_t index;
} sched_block_t;

typedef enum {
    SCHED_BLOCK_FREE = 0, /* content is nothing */
    SCHED_BLOCK_OWNED,    /* one request may write it */
    SCHED_BLOCK_SHARED,   /* in the prefix index and read by at least one request */
    SCHED_BLOCK_CACHED,   /* in the prefix index only; may be taken away */
    SCHED_BLOCK_HELD,     /* promised to a transfer under a lease */
    SCHED_BLOCK_INCOMING, /* a transfer of this generation writes it */
    SCHED_BLOCK_FENCING,  /* waits until no copy can reach it */
    SCHED_BLOCK_STATE_COUNT,
} sched_block_state_t;

typedef struct {
    uint32_t granularity; /* tokens of a block */
    uint32_t packing;     /* blocks in a parent, 1..64 */
} sched_pool_group_t;

enum {
    SCHED_PACKING_MAX = 64,
    SCHED_POOL_BLOCKS_MAX = 1 << 24, /* all groups together */
};

/* `parent_count` includes the null parent 0.  STATUS_ERR_CONFIG beyond the limits above.  The
 * caller owns *out_p. */
MUST_CHECK proto_status_t sched_pool_new(uint32_t parent_count, const sched_pool_group_t *groups,
                                         uint32_t group_count, sched_pool_t **out_p);
void sched_pool_destroy(sched_pool_t **self_p);

/* Takes a block with one holder: free ones first, then the cached block of this group that is
 * least worth keeping, then a whole parent of another group that nobody reads.  STATUS_FULL if
 * there is none; *out is written only on STATUS_OK. */
MUST_CHECK proto_status_t sched_pool_acquire(sched_pool_t *self, uint32_t group,
                                             sched_block_t *out);
/* One more holder of a block that is shared or cached. */
void sched_pool_share(sched_pool_t *self, sched_block_t block);
/* One holder less.  The last one leaves it cached if it is in the index, free otherwise. */
void sched_pool_release(sched_pool_t *self, sched_block_t block);

/* The block that holds this page, or index 0.  Takes no reference. */
sched_block_t sched_pool_find(const sched_pool_t *self, const sched_page_t *page);
void sched_pool_prefetch(const sched_pool_t *self, const sched_page_t *page);
/* Puts an owned block into the index.  If the page is there already, nothing changes and the
 * canonical block is returned: the caller shares that one and releases its own. */
sched_block_t sched_pool_publish(sched_pool_t *self, const sched_page_t *page, sched_block_t block);
/* Takes a block that has one holder out of the index, if it is in: it becomes owned. */
void sched_pool_unpublish(sched_pool_t *self, sched_block_t block);
/* Lends a block that is owned to a transfer (HELD, INCOMING), or asks it back (FENCING); OWNED: it
 * is its owner's again.  A block that is shared stays what it is: its holder keeps it. */
void sched_pool_lend(sched_pool_t *self, sched_block_t block, sched_block_state_t state);
/* Marks content that must not be read by the next owner, whichever group's it is; cleared by
 * sched_pool_take_dirty(), which tells whether it was marked. */
void sched_pool_mark_dirty(sched_pool_t *self, sched_block_t block);
bool sched_pool_take_dirty(sched_pool_t *self, sched_block_t block);
/* Marks the blocks that other groups would have in the same memory. */
void sched_pool_mark_others_dirty(sched_pool_t *self, sched_block_t block);

/* Between a block and the number that the executor knows within its group. */
static inline uint32_t
sched_pool_child(uint32_t base, sched_block_t block)
{
    return block.index - base;
}
/* Index of child 0 of the group, the null block. */
uint32_t sched_pool_base(const sched_pool_t *self, uint32_t group);
uint32_t sched_pool_group_of(const sched_pool_t *self, sched_block_t block);

sched_block_state_t sched_pool_state(const sched_pool_t *self, sched_block_t block);
uint32_t sched_pool_generation(const sched_pool_t *self, sched_block_t block);
uint32_t sched_pool_holder_count(const sched_pool_t *self, sched_block_t block);

/* Blocks of the group that sched_pool_acquire() can give now, counting what it would evict. */
uint32_t sched_pool_available(const sched_pool_t *self, uint32_t group);
/* Blocks of the group in one state. */
uint32_t sched_pool_count(const sched_pool_t *self, uint32_t group, sched_block_state_t state);
/* Blocks of the group if every parent were its own. */
uint32_t sched_pool_capacity(const sched_pool_t *self, uint32_t group);
/* True if nobody holds a block. */
bool sched_pool_is_idle(const sched_pool_t *self);
/* Forgets every page of an idle pool: all parents are empty then. */
void sched_pool_forget(sched_pool_t *self);
/* Parents that no group holds. */
uint32_t sched_pool_empty_parent_count(const sched_pool_t *self);
/* Counts what was evicted, since the start. */
uint64_t sched_pool_evicted_count(const sched_pool_t *self);
/* Changes whenever a block becomes available or a page becomes known. */
uint64_t sched_pool_version(const sched_pool_t *self);

/* Packs what is in use and what was ever used: canonical, and exact to the order of every list. */
void sched_pool_save(const sched_pool_t *self, proto_pack_t *out);
/* Takes a pool that was just made, of the same shape, to what sched_pool_save() packed.  Anything
 * else marks *in as failed: the pool may only be destroyed then. */
void sched_pool_load(sched_pool_t *self, proto_unpack_t *in);

/* Walks the whole pool and notes the first broken invariant: O(n). */
void sched_pool_audit(const sched_pool_t *self, sched_audit_t *audit);
/* The same, and aborts. */
void sched_pool_check(const sched_pool_t *self);

#endif
