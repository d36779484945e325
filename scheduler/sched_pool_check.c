/* The invariants of the pool. */
#include "sched_pool_internal.h"

static void
audit_block(const sched_pool_t *self, uint32_t group_index, const block_t *block,
            sched_audit_t *audit)
{
    bool held = block->state == SCHED_BLOCK_OWNED || block->state == SCHED_BLOCK_SHARED ||
                sched_block_is_lent(block);
    sched_holds(audit, block->group == group_index);
    sched_holds(audit, held == (block->holder_count > 0));
    bool alone = block->state == SCHED_BLOCK_OWNED || sched_block_is_lent(block);
    sched_holds(audit, !alone || block->holder_count == 1);
    sched_holds(audit, block->tier == TIER_PROBATION || block->state == SCHED_BLOCK_SHARED ||
                           block->state == SCHED_BLOCK_CACHED);
    bool bound = self->parents[block->parent].group == group_index;
    sched_holds(audit, bound || block->state == SCHED_BLOCK_FREE);
}

/* Walks the cached blocks of one tier; gives how many there are. */
static uint32_t
audit_cached(const sched_pool_t *self, const group_t *group, uint32_t tier, sched_audit_t *audit)
{
    const list_t *list = &group->cached[tier];
    uint32_t previous = 0;
    uint32_t length = 0;
    for (uint32_t at = list->head; at != 0; at = self->blocks[at].next) {
        bool fits = self->blocks[at].state == SCHED_BLOCK_CACHED && self->blocks[at].tier == tier &&
                    self->blocks[at].previous == previous && length < list->count;
        if (!sched_holds(audit, fits)) {
            return length;
        }
        previous = at;
        length++;
    }
    sched_holds(audit, list->tail == previous);
    sched_holds(audit, list->count == length);
    return length;
}

static void
audit_group(const sched_pool_t *self, uint32_t group_index, sched_audit_t *audit)
{
    const group_t *group = &self->groups[group_index];
    uint32_t counts[SCHED_BLOCK_STATE_COUNT] = {0};
    uint32_t capacity = sched_pool_capacity(self, group_index);
    for (uint32_t child = 1; child <= capacity; child++) {
        const block_t *block = &self->blocks[group->base + child];
        if (!sched_holds(audit, block->state < SCHED_BLOCK_STATE_COUNT)) {
            return;
        }
        counts[block->state]++;
        sched_holds(audit, child < group->touched_end || !sched_block_is_touched(block));
        audit_block(self, group_index, block, audit);
    }
    uint32_t sum = 0;
    for (uint32_t s = 0; s < SCHED_BLOCK_STATE_COUNT; s++) {
        sched_holds(audit, counts[s] == group->counts[s]);
        sum += counts[s];
    }
    sched_holds(audit, sum == capacity);
    uint32_t listed = 0;
    for (uint32_t tier = 0; tier < TIER_COUNT; tier++) {
        listed += audit_cached(self, group, tier, audit);
    }
    sched_holds(audit, listed == counts[SCHED_BLOCK_CACHED]);
    sched_holds(audit, group->cached[TIER_ESTABLISHED].count <= group->established_max);
}

static void
audit_parents(const sched_pool_t *self, sched_audit_t *audit)
{
    uint32_t empty = 0;
    uint32_t free_in_bound[PROTO_GROUPS_MAX] = {0};
    uint32_t idle[PROTO_GROUPS_MAX] = {0};
    for (uint32_t p = 1; p < self->parent_count; p++) {
        const parent_t *parent = &self->parents[p];
        if (parent->group == NO_GROUP) {
            sched_holds(audit, parent->used_count == 0 && parent->held_count == 0);
            empty++;
            continue;
        }
        const group_t *group = &self->groups[parent->group];
        uint32_t used = 0;
        uint32_t held = 0;
        for (uint32_t slot = 0; slot < group->packing; slot++) {
            const block_t *block = &self->blocks[group->base + 1 + (p - 1) * group->packing + slot];
            bool is_free = (parent->free_mask >> slot & 1) != 0;
            sched_holds(audit, is_free == (block->state == SCHED_BLOCK_FREE));
            used += is_free ? 0 : 1;
            held += block->holder_count > 0 ? 1 : 0;
        }
        sched_holds(audit, used == parent->used_count && used > 0);
        sched_holds(audit, held == parent->held_count);
        free_in_bound[parent->group] += group->packing - used;
        idle[parent->group] += held == 0 ? 1 : 0;
    }
    sched_holds(audit, empty == self->empty_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        sched_holds(audit, free_in_bound[g] == self->groups[g].partial_free);
        sched_holds(audit, idle[g] == self->groups[g].idle.count);
    }
}

void
sched_pool_audit(const sched_pool_t *self, sched_audit_t *audit)
{
    uint32_t indexed = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        audit_group(self, g, audit);
        indexed +=
            self->groups[g].counts[SCHED_BLOCK_SHARED] + self->groups[g].counts[SCHED_BLOCK_CACHED];
    }
    audit_parents(self, audit);
    sched_holds(audit, indexed == self->prefix.count);
}

void
sched_pool_check(const sched_pool_t *self)
{
    sched_audit_t audit = {0};
    sched_pool_audit(self, &audit);
    sched_audit_require(&audit);
}
