#include "sched_pool.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"
#include "sched_pool_internal.h"

/* ---- making ---------------------------------------------------------------------------------- */

static proto_status_t
set_groups(sched_pool_t *self, const sched_pool_group_t *groups)
{
    uint64_t total = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t packing = groups[g].packing;
        if (packing == 0 || packing > SCHED_PACKING_MAX) {
            return STATUS_ERR_CONFIG;
        }
        uint64_t count = 1 + (uint64_t)(self->parent_count - 1) * packing;
        if (total + count > SCHED_POOL_BLOCKS_MAX) {
            return STATUS_ERR_CONFIG;
        }
        self->groups[g].base = (uint32_t)total;
        self->groups[g].packing = packing;
        self->groups[g].established_max = (uint32_t)((count - 1) / 2);
        total += count;
    }
    self->block_count = (uint32_t)total;
    return STATUS_OK;
}

static void
set_free(sched_pool_t *self)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        group_t *group = &self->groups[g];
        for (uint32_t child = 1; child <= (self->parent_count - 1) * group->packing; child++) {
            block_t *block = &self->blocks[group->base + child];
            block->group = (uint8_t)g;
            block->parent = 1 + (child - 1) / group->packing;
        }
        group->touched_end = 1;
        group->counts[SCHED_BLOCK_FREE] = (self->parent_count - 1) * group->packing;
    }
    for (uint32_t p = self->parent_count - 1; p > 0; p--) {
        self->parents[p].group = NO_GROUP;
        self->parents[p].next = self->empty_head;
        self->empty_head = p;
        self->empty_count++;
    }
    self->pristine = 1;
}

proto_status_t
sched_pool_new(uint32_t parent_count, const sched_pool_group_t *groups, uint32_t group_count,
               sched_pool_t **out_p)
{
    require(out_p != NULL);
    if (parent_count < 2 || group_count == 0 || group_count > PROTO_GROUPS_MAX) {
        return STATUS_ERR_CONFIG;
    }
    sched_pool_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->parent_count = parent_count;
    self->group_count = group_count;
    proto_status_t status = set_groups(self, groups);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    status = STATUS_ERR_NO_MEMORY;
    self->blocks = calloc(self->block_count, sizeof *self->blocks);
    self->parents = calloc(parent_count, sizeof *self->parents);
    if (self->blocks == NULL || self->parents == NULL) {
        goto err_destroy;
    }
    status = sched_prefix_init(&self->prefix, self->block_count);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    set_free(self);
    *out_p = self;
    return STATUS_OK;

err_destroy:
    sched_pool_destroy(&self);
    return status;
}

void
sched_pool_destroy(sched_pool_t **self_p)
{
    sched_pool_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    sched_prefix_fini(&self->prefix);
    free(self->blocks);
    free(self->parents);
    free(self);
    *self_p = NULL;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void
cached_push(sched_pool_t *self, list_t *list, uint32_t index)
{
    block_t *block = &self->blocks[index];
    block->previous = list->tail;
    block->next = 0;
    if (list->tail != 0) {
        self->blocks[list->tail].next = index;
    } else {
        list->head = index;
    }
    list->tail = index;
    list->count++;
}

static void
cached_remove(sched_pool_t *self, list_t *list, uint32_t index)
{
    block_t *block = &self->blocks[index];
    if (block->previous != 0) {
        self->blocks[block->previous].next = block->next;
    } else {
        list->head = block->next;
    }
    if (block->next != 0) {
        self->blocks[block->next].previous = block->previous;
    } else {
        list->tail = block->previous;
    }
    list->count--;
}

static void
idle_push(sched_pool_t *self, group_t *group, uint32_t index)
{
    parent_t *parent = &self->parents[index];
    parent->idle_previous = group->idle.tail;
    parent->idle_next = 0;
    if (group->idle.tail != 0) {
        self->parents[group->idle.tail].idle_next = index;
    } else {
        group->idle.head = index;
    }
    group->idle.tail = index;
    group->idle.count++;
}

static void
idle_remove(sched_pool_t *self, group_t *group, uint32_t index)
{
    parent_t *parent = &self->parents[index];
    if (parent->idle_previous != 0) {
        self->parents[parent->idle_previous].idle_next = parent->idle_next;
    } else {
        group->idle.head = parent->idle_next;
    }
    if (parent->idle_next != 0) {
        self->parents[parent->idle_next].idle_previous = parent->idle_previous;
    } else {
        group->idle.tail = parent->idle_previous;
    }
    group->idle.count--;
}

static void
partial_add(sched_pool_t *self, group_t *group, uint32_t index)
{
    parent_t *parent = &self->parents[index];
    uint32_t used = parent->used_count;
    parent->previous = 0;
    parent->next = group->partial[used];
    if (parent->next != 0) {
        self->parents[parent->next].previous = index;
    }
    group->partial[used] = index;
    group->partial_mask |= UINT64_C(1) << used;
}

static void
partial_remove(sched_pool_t *self, group_t *group, uint32_t index)
{
    parent_t *parent = &self->parents[index];
    uint32_t used = parent->used_count;
    if (parent->previous != 0) {
        self->parents[parent->previous].next = parent->next;
    } else {
        group->partial[used] = parent->next;
        if (parent->next == 0) {
            group->partial_mask &= ~(UINT64_C(1) << used);
        }
    }
    if (parent->next != 0) {
        self->parents[parent->next].previous = parent->previous;
    }
}

/* Blocks before child `end` have a history now. */
static void
touch(group_t *group, uint32_t end)
{
    group->touched_end = end > group->touched_end ? end : group->touched_end;
}

/* ---- parents --------------------------------------------------------------------------------- */

static void
set_state(group_t *group, block_t *block, sched_block_state_t state)
{
    group->counts[block->state]--;
    group->counts[state]++;
    block->state = (uint8_t)state;
}

/* Somebody holds a block of this parent again. */
static void
parent_hold(sched_pool_t *self, group_t *group, uint32_t index)
{
    parent_t *parent = &self->parents[index];
    if (parent->held_count == 0 && parent->used_count > 0) {
        idle_remove(self, group, index);
    }
    parent->held_count++;
}

/* A free slot of the fullest parent that has one, or of an empty one; 0 if there is none. */
static uint32_t
take_slot(sched_pool_t *self, group_t *group, uint32_t group_index)
{
    uint32_t index;
    parent_t *parent;
    if (group->partial_mask != 0) {
        index = group->partial[63 - __builtin_clzll(group->partial_mask)];
        parent = &self->parents[index];
        partial_remove(self, group, index);
        group->partial_free--;
    } else if (self->empty_head != 0) {
        index = self->empty_head;
        parent = &self->parents[index];
        self->empty_head = parent->next;
        self->empty_count--;
        self->pristine = index >= self->pristine ? index + 1 : self->pristine;
        parent->group = (uint8_t)group_index;
        parent->free_mask = group->packing == 64 ? UINT64_MAX : (UINT64_C(1) << group->packing) - 1;
        group->partial_free += group->packing - 1;
    } else {
        return 0;
    }
    uint32_t slot = (uint32_t)__builtin_ctzll(parent->free_mask);
    parent->free_mask &= parent->free_mask - 1;
    parent_hold(self, group, index);
    parent->used_count++;
    if (parent->free_mask != 0) {
        partial_add(self, group, index);
    }
    return group->base + 1 + (index - 1) * group->packing + slot;
}

/* The block of a held or idle parent becomes free. */
static void
give_slot(sched_pool_t *self, group_t *group, uint32_t block_index)
{
    uint32_t index = self->blocks[block_index].parent;
    parent_t *parent = &self->parents[index];
    uint32_t slot = block_index - group->base - 1 - (index - 1) * group->packing;
    if (parent->free_mask != 0) {
        partial_remove(self, group, index);
    }
    parent->free_mask |= UINT64_C(1) << slot;
    parent->used_count--;
    group->partial_free++;
    if (parent->used_count > 0) {
        partial_add(self, group, index);
        return;
    }
    group->partial_free -= group->packing;
    parent->group = NO_GROUP;
    parent->free_mask = 0;
    parent->next = self->empty_head;
    self->empty_head = index;
    self->empty_count++;
}

/* ---- eviction -------------------------------------------------------------------------------- */

/* Forgets the page of a cached block.  The block is nowhere then: neither cached nor free. */
static void
forget(sched_pool_t *self, group_t *group, uint32_t index)
{
    block_t *block = &self->blocks[index];
    require(block->state == SCHED_BLOCK_CACHED);
    cached_remove(self, &group->cached[block->tier], index);
    sched_prefix_remove(&self->prefix, index);
    block->tier = TIER_PROBATION;
    self->evicted_count++;
}

static uint32_t
evict_own(sched_pool_t *self, group_t *group)
{
    uint32_t index = group->cached[TIER_PROBATION].head;
    if (index == 0) {
        index = group->cached[TIER_ESTABLISHED].head;
    }
    if (index == 0) {
        return 0;
    }
    /* The next victim's lines are far away in a large pool: ask for them early. */
    uint32_t next = self->blocks[index].next;
    __builtin_prefetch(&self->blocks[next]);
    __builtin_prefetch(&self->prefix.hashes[next]);
    forget(self, group, index);
    parent_hold(self, group, self->blocks[index].parent);
    return index;
}

/* Empties the parent of the group that is idle longest; false if none is. */
static bool
empty_parent(sched_pool_t *self, group_t *group)
{
    uint32_t index = group->idle.head;
    if (index == 0) {
        return false;
    }
    idle_remove(self, group, index);
    uint32_t first = group->base + 1 + (index - 1) * group->packing;
    for (uint32_t slot = 0; slot < group->packing; slot++) {
        block_t *block = &self->blocks[first + slot];
        if (block->state == SCHED_BLOCK_CACHED) {
            forget(self, group, first + slot);
            set_state(group, block, SCHED_BLOCK_FREE);
            give_slot(self, group, first + slot);
        }
    }
    require(self->parents[index].group == NO_GROUP);
    return true;
}

/* The same of some other group. */
static bool
evict_parent(sched_pool_t *self, const group_t *not_this)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (&self->groups[g] != not_this && empty_parent(self, &self->groups[g])) {
            return true;
        }
    }
    return false;
}

bool
sched_pool_is_idle(const sched_pool_t *self)
{
    uint32_t held = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        const uint32_t *counts = self->groups[g].counts;
        held += counts[SCHED_BLOCK_OWNED] + counts[SCHED_BLOCK_SHARED] + counts[SCHED_BLOCK_HELD] +
                counts[SCHED_BLOCK_INCOMING] + counts[SCHED_BLOCK_FENCING];
    }
    return held == 0;
}

void
sched_pool_forget(sched_pool_t *self)
{
    require(sched_pool_is_idle(self));
    for (uint32_t g = 0; g < self->group_count; g++) {
        while (empty_parent(self, &self->groups[g])) {
        }
    }
    require(self->empty_count == self->parent_count - 1);
    self->version++;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

proto_status_t
sched_pool_acquire(sched_pool_t *self, uint32_t group_index, sched_block_t *out)
{
    require(group_index < self->group_count);
    group_t *group = &self->groups[group_index];
    uint32_t index = take_slot(self, group, group_index);
    if (index == 0) {
        index = evict_own(self, group);
    }
    if (index == 0 && self->group_count > 1 && evict_parent(self, group)) {
        index = take_slot(self, group, group_index);
    }
    if (index == 0) {
        return STATUS_FULL;
    }
    block_t *block = &self->blocks[index];
    block->holder_count = 1;
    block->generation++;
    touch(group, index - group->base + 1);
    set_state(group, block, SCHED_BLOCK_OWNED);
    *out = (sched_block_t){index};
    return STATUS_OK;
}

void
sched_pool_share(sched_pool_t *self, sched_block_t handle)
{
    block_t *block = &self->blocks[handle.index];
    group_t *group = &self->groups[block->group];
    require(block->state == SCHED_BLOCK_CACHED || block->state == SCHED_BLOCK_SHARED);
    if (block->state == SCHED_BLOCK_CACHED) {
        cached_remove(self, &group->cached[block->tier], handle.index);
        parent_hold(self, group, block->parent);
        set_state(group, block, SCHED_BLOCK_SHARED);
    }
    block->tier = TIER_ESTABLISHED;
    block->holder_count++;
}

static void
keep_cached(sched_pool_t *self, group_t *group, uint32_t index)
{
    block_t *block = &self->blocks[index];
    list_t *established = &group->cached[TIER_ESTABLISHED];
    cached_push(self, &group->cached[block->tier], index);
    if (established->count > group->established_max) {
        uint32_t oldest = established->head;
        cached_remove(self, established, oldest);
        self->blocks[oldest].tier = TIER_PROBATION;
        cached_push(self, &group->cached[TIER_PROBATION], oldest);
    }
}

void
sched_pool_release(sched_pool_t *self, sched_block_t handle)
{
    block_t *block = &self->blocks[handle.index];
    group_t *group = &self->groups[block->group];
    require(block->holder_count > 0);
    block->holder_count--;
    if (block->holder_count > 0) {
        return;
    }
    self->version++;
    parent_t *parent = &self->parents[block->parent];
    parent->held_count--;
    if (block->state == SCHED_BLOCK_SHARED) {
        set_state(group, block, SCHED_BLOCK_CACHED);
        keep_cached(self, group, handle.index);
    } else {
        require(block->state == SCHED_BLOCK_OWNED);
        set_state(group, block, SCHED_BLOCK_FREE);
        give_slot(self, group, handle.index);
    }
    if (parent->held_count == 0 && parent->used_count > 0) {
        idle_push(self, group, block->parent);
    }
}

void
sched_pool_lend(sched_pool_t *self, sched_block_t handle, sched_block_state_t state)
{
    block_t *block = &self->blocks[handle.index];
    require(block->holder_count > 0);
    require(state == SCHED_BLOCK_OWNED || state >= SCHED_BLOCK_HELD);
    if (block->state != SCHED_BLOCK_SHARED) {
        require(block->holder_count == 1);
        set_state(&self->groups[block->group], block, state);
    }
}

sched_block_t
sched_pool_find(const sched_pool_t *self, const sched_page_t *page)
{
    return (sched_block_t){sched_prefix_find(&self->prefix, page)};
}

void
sched_pool_prefetch(const sched_pool_t *self, const sched_page_t *page)
{
    sched_prefix_prefetch(&self->prefix, page);
}

sched_block_t
sched_pool_publish(sched_pool_t *self, const sched_page_t *page, sched_block_t handle)
{
    block_t *block = &self->blocks[handle.index];
    require(block->state == SCHED_BLOCK_OWNED);
    require(block->holder_count == 1);
    require(block->group == page->group);
    uint32_t canonical = sched_prefix_find(&self->prefix, page);
    if (canonical != 0) {
        return (sched_block_t){canonical};
    }
    sched_prefix_add(&self->prefix, page, handle.index);
    set_state(&self->groups[block->group], block, SCHED_BLOCK_SHARED);
    self->version++;
    return handle;
}

void
sched_pool_unpublish(sched_pool_t *self, sched_block_t handle)
{
    block_t *block = &self->blocks[handle.index];
    require(block->holder_count == 1);
    if (block->state == SCHED_BLOCK_SHARED) {
        sched_prefix_remove(&self->prefix, handle.index);
        block->tier = TIER_PROBATION;
        set_state(&self->groups[block->group], block, SCHED_BLOCK_OWNED);
    }
}

void
sched_pool_mark_others_dirty(sched_pool_t *self, sched_block_t handle)
{
    const block_t *block = &self->blocks[handle.index];
    /* The memory is the parent's: under another group its bytes belong to other blocks. */
    for (uint32_t g = 0; g < self->group_count; g++) {
        group_t *group = &self->groups[g];
        uint32_t first = 1 + (block->parent - 1) * group->packing;
        touch(group, first + group->packing);
        for (uint32_t slot = 0; g != block->group && slot < group->packing; slot++) {
            self->blocks[group->base + first + slot].dirty = true;
        }
    }
}

void
sched_pool_mark_dirty(sched_pool_t *self, sched_block_t handle)
{
    self->blocks[handle.index].dirty = true;
    sched_pool_mark_others_dirty(self, handle);
}

bool
sched_pool_take_dirty(sched_pool_t *self, sched_block_t handle)
{
    bool dirty = self->blocks[handle.index].dirty;
    if (dirty) {
        self->blocks[handle.index].dirty = false;
    }
    return dirty;
}
