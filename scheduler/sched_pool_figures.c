/* What can be asked of the pool. */
#include "proto_require.h"
#include "sched_pool_internal.h"

uint32_t
sched_pool_base(const sched_pool_t *self, uint32_t group)
{
    require(group < self->group_count);
    return self->groups[group].base;
}

uint32_t
sched_pool_group_of(const sched_pool_t *self, sched_block_t block)
{
    require(block.index < self->block_count);
    return self->blocks[block.index].group;
}

sched_block_state_t
sched_pool_state(const sched_pool_t *self, sched_block_t block)
{
    require(block.index < self->block_count);
    return (sched_block_state_t)self->blocks[block.index].state;
}

uint32_t
sched_pool_generation(const sched_pool_t *self, sched_block_t block)
{
    require(block.index < self->block_count);
    return self->blocks[block.index].generation;
}

uint32_t
sched_pool_holder_count(const sched_pool_t *self, sched_block_t block)
{
    require(block.index < self->block_count);
    return self->blocks[block.index].holder_count;
}

uint32_t
sched_pool_available(const sched_pool_t *self, uint32_t group_index)
{
    require(group_index < self->group_count);
    const group_t *group = &self->groups[group_index];
    uint32_t parents = self->empty_count;
    for (uint32_t g = 0; self->group_count > 1 && g < self->group_count; g++) {
        parents += g == group_index ? 0 : self->groups[g].idle.count;
    }
    return parents * group->packing + group->partial_free + group->counts[SCHED_BLOCK_CACHED];
}

uint32_t
sched_pool_count(const sched_pool_t *self, uint32_t group, sched_block_state_t state)
{
    require(group < self->group_count);
    require((unsigned)state < SCHED_BLOCK_STATE_COUNT);
    return self->groups[group].counts[state];
}

uint32_t
sched_pool_capacity(const sched_pool_t *self, uint32_t group)
{
    require(group < self->group_count);
    return (self->parent_count - 1) * self->groups[group].packing;
}

uint32_t
sched_pool_empty_parent_count(const sched_pool_t *self)
{
    return self->empty_count;
}

uint64_t
sched_pool_evicted_count(const sched_pool_t *self)
{
    return self->evicted_count;
}

uint64_t
sched_pool_version(const sched_pool_t *self)
{
    return self->version;
}
