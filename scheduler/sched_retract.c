/* Blocks of a request: how they are given back, and who has to. */
#include "sched_internal.h"

void
sched_drop_blocks(sched_core_t *self, uint32_t slot)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        sched_extent_t *extent = sched_extent(self, slot, g);
        const uint32_t *table = sched_table(self, slot, g);
        /* From the end: of two cached pages the one nearer to the root is the younger one. */
        for (uint32_t c = extent->column_count; c > extent->expired_count; c--) {
            if (c >= 2 && table[c - 2] != 0) {
                __builtin_prefetch(&table[c - 2]);
            }
            if (table[c - 1] != 0) {
                sched_pool_release(self->pool, sched_block(self, g, table[c - 1]));
            }
        }
        extent->column_count = 0;
        extent->expired_count = 0;
    }
}

void
sched_retract(sched_core_t *self, uint32_t slot)
{
    sched_slot_t *row = &self->slots[slot];
    require(row->entry != SCHED_NONE);
    require(row->rows_in_flight == 0);
    if (row->place != SCHED_NONE) {
        if (row->state == SCHED_STATE_PREFILLING) {
            sched_list_remove(self, &self->prefilling, slot);
        } else {
            sched_list_swap_remove(self, &self->decoding, slot);
        }
    }
    sched_move(self, row->entry, SCHED_MOVE_RETRACT);
    sched_drop_blocks(self, slot);
    self->end_count++;
    self->figures.retractions++;
    self->figures.recomputed_tokens += row->computed;
    self->spans[slot].lost += row->computed;
    row->serial++;
    row->planned = 0;
    row->covered = 0;
    row->computed = 0;
    row->samples_in_flight = 0;
    row->publish_at = UINT32_MAX;
    row->expire_at = UINT32_MAX;
    row->flags &= (uint8_t)~SLOT_RETRACT;
    self->entries[row->entry].tried_version = UINT64_MAX;
    if ((row->flags & SLOT_HOLES) == 0) {
        row->flags |= SLOT_HOLES;
        self->holed.items[self->holed.count++] = slot;
    }
    sched_list_add(self, &self->retracted, slot);
    sched_fold(self, row->request);
}

static bool
default_victim(const sched_victim_t *a, const sched_victim_t *b)
{
    if (a->priority != b->priority) {
        return a->priority > b->priority;
    }
    if (a->computed_count != b->computed_count) {
        return a->computed_count < b->computed_count;
    }
    return a->arrival > b->arrival;
}

static uint32_t
own_block_count(const sched_core_t *self, uint32_t slot)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        const uint32_t *table = sched_table(self, slot, g);
        const sched_extent_t *extent = sched_extent(self, slot, g);
        for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
            count += table[c] != 0 && sched_pool_holder_count(self->pool,
                                                              sched_block(self, g, table[c])) == 1
                         ? 1
                         : 0;
        }
    }
    return count;
}

bool
sched_retract_victim(sched_core_t *self)
{
    uint32_t chosen = 0;
    sched_victim_t worst = {0};
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        const sched_slot_t *row = &self->slots[slot];
        if (row->entry == SCHED_NONE || row->state == SCHED_STATE_RETRACTED ||
            row->rows_in_flight > 0) {
            continue;
        }
        const sched_entry_t *entry = &self->entries[row->entry];
        if (entry->transfer != 0 && !entry->is_activated) {
            continue; /* a transfer may be reading its blocks */
        }
        sched_victim_t candidate = {
            .request = row->request,
            .priority = entry->priority,
            .computed_count = row->computed,
            .generated_count = row->generated,
            .block_count = own_block_count(self, slot),
            .arrival = entry->arrival,
        };
        bool rather = chosen == 0;
        if (!rather && self->options.victim != NULL) {
            rather = self->options.victim(self->options.victim_context, &candidate, &worst);
        } else if (!rather) {
            rather = default_victim(&candidate, &worst);
        }
        if (rather) {
            chosen = slot;
            worst = candidate;
        }
    }
    if (chosen == 0) {
        return false;
    }
    sched_retract(self, chosen);
    return true;
}
