/* The invariants of the pool. */
#include "proto_require.h"
#include "sched_pool_internal.h"

static void
check_group(const sched_pool_t *self, uint32_t group_index)
{
    const group_t *group = &self->groups[group_index];
    uint32_t counts[SCHED_BLOCK_STATE_COUNT] = {0};
    for (uint32_t child = 1; child <= sched_pool_capacity(self, group_index); child++) {
        const block_t *block = &self->blocks[group->base + child];
        require(block->group == group_index);
        require(block->state < SCHED_BLOCK_STATE_COUNT);
        counts[block->state]++;
        bool held = block->state == SCHED_BLOCK_OWNED || block->state == SCHED_BLOCK_SHARED;
        require(held == (block->holder_count > 0));
        require(block->state != SCHED_BLOCK_OWNED || block->holder_count == 1);
        const parent_t *parent = &self->parents[block->parent];
        bool bound = parent->group == group_index;
        require(bound || block->state == SCHED_BLOCK_FREE);
    }
    uint32_t sum = 0;
    for (uint32_t s = 0; s < SCHED_BLOCK_STATE_COUNT; s++) {
        require(counts[s] == group->counts[s]);
        sum += counts[s];
    }
    require(sum == sched_pool_capacity(self, group_index));
    uint32_t listed = 0;
    for (uint32_t tier = 0; tier < TIER_COUNT; tier++) {
        uint32_t previous = 0;
        uint32_t length = 0;
        for (uint32_t at = group->cached[tier].head; at != 0; at = self->blocks[at].next) {
            require(self->blocks[at].state == SCHED_BLOCK_CACHED);
            require(self->blocks[at].tier == tier);
            require(self->blocks[at].previous == previous);
            previous = at;
            length++;
        }
        require(group->cached[tier].tail == previous);
        require(group->cached[tier].count == length);
        listed += length;
    }
    require(listed == counts[SCHED_BLOCK_CACHED]);
}

static void
check_parents(const sched_pool_t *self)
{
    uint32_t empty = 0;
    uint32_t free_in_bound[PROTO_GROUPS_MAX] = {0};
    uint32_t idle[PROTO_GROUPS_MAX] = {0};
    for (uint32_t p = 1; p < self->parent_count; p++) {
        const parent_t *parent = &self->parents[p];
        if (parent->group == NO_GROUP) {
            require(parent->used_count == 0 && parent->held_count == 0);
            empty++;
            continue;
        }
        const group_t *group = &self->groups[parent->group];
        uint32_t used = 0;
        uint32_t held = 0;
        for (uint32_t slot = 0; slot < group->packing; slot++) {
            const block_t *block = &self->blocks[group->base + 1 + (p - 1) * group->packing + slot];
            bool is_free = (parent->free_mask >> slot & 1) != 0;
            require(is_free == (block->state == SCHED_BLOCK_FREE));
            used += is_free ? 0 : 1;
            held += block->holder_count > 0 ? 1 : 0;
        }
        require(used == parent->used_count && used > 0);
        require(held == parent->held_count);
        free_in_bound[parent->group] += group->packing - used;
        idle[parent->group] += held == 0 ? 1 : 0;
    }
    require(empty == self->empty_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        require(free_in_bound[g] == self->groups[g].partial_free);
        require(idle[g] == self->groups[g].idle.count);
    }
}

void
sched_pool_check(const sched_pool_t *self)
{
    uint32_t indexed = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        check_group(self, g);
        indexed +=
            self->groups[g].counts[SCHED_BLOCK_SHARED] + self->groups[g].counts[SCHED_BLOCK_CACHED];
    }
    check_parents(self);
    require(indexed == self->prefix.count);
}
