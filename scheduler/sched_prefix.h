/* sched_prefix.h - finds the block that holds a page of some prefix.
 *
 * Key: cache group, the page's 32-byte chained hash, the block's ordinal within the page.  It owns
 * the cells and a copy of each hash, allocated once; it holds no reference to a block, the pool
 * does.  Hashes are keyed by the cluster, so their first bytes spread evenly.  Scheduler's thread
 * only. */
#ifndef SCHED_PREFIX_H
#define SCHED_PREFIX_H

#include <stdint.h>

#include "proto_ids.h"
#include "proto_status.h"

typedef struct {
    uint32_t tag;   /* low bits choose the home cell, the rest spares most full comparisons */
    uint32_t block; /* index in the pool; 0 = empty */
} sched_prefix_cell_t;

typedef struct {
    uint8_t hash[PROTO_HASH_SIZE_BYTES];
} sched_hash_t;

typedef struct {
    uint32_t group;
    uint32_t offset; /* block's ordinal within the page */
    const uint8_t *hash;
} sched_page_t;

typedef struct {
    sched_prefix_cell_t *cells;
    sched_hash_t *hashes; /* by block */
    uint32_t *places;     /* by block: group and offset, packed */
    uint32_t mask;
    uint32_t count;
    uint32_t block_count;
} sched_prefix_t;

MUST_CHECK proto_status_t sched_prefix_init(sched_prefix_t *self, uint32_t block_count);
void sched_prefix_fini(sched_prefix_t *self);

/* The block of the page, or 0. */
uint32_t sched_prefix_find(const sched_prefix_t *self, const sched_page_t *page);
/* Asks the memory for the cell that a search will read first. */
void sched_prefix_prefetch(const sched_prefix_t *self, const sched_page_t *page);
/* Adds a block that is not in, for a page that is not in. */
void sched_prefix_add(sched_prefix_t *self, const sched_page_t *page, uint32_t block);
/* Takes a block out that is in. */
void sched_prefix_remove(sched_prefix_t *self, uint32_t block);
/* The hash of a block that is in; lent until it is removed. */
const uint8_t *sched_prefix_hash(const sched_prefix_t *self, uint32_t block);
/* The ordinal within its page of a block that is in. */
uint32_t sched_prefix_offset(const sched_prefix_t *self, uint32_t block);

#endif
