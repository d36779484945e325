/* Pages that are complete, and windows that have moved on. */
#include "sched_internal.h"

void
sched_set_publish_at(sched_core_t *self, uint32_t slot)
{
    const sched_span_t *span = &self->spans[slot];
    bool more = span->page_published < span->page_known && !self->options.no_prefix_cache;
    self->slots[slot].publish_at =
        more ? (span->page_published + 1) * self->page_tokens : UINT32_MAX;
}

static void
publish_block(sched_core_t *self, uint32_t slot, const sched_page_t *page, uint32_t column)
{
    const sched_group_t *group = &self->groups[page->group];
    uint32_t *table = sched_table(self, slot, page->group);
    if (table[column] == 0) {
        return; /* slid out before its page was complete */
    }
    sched_block_t block = sched_block(self, page->group, table[column]);
    sched_block_t canonical = sched_pool_publish(self->pool, page, block);
    const sched_entry_t *entry = &self->entries[self->slots[slot].entry];
    bool is_read = entry->transfer != 0 && !entry->is_activated; /* by a transfer, by this number */
    if (canonical.index == block.index || is_read ||
        !sched_mark_dirty(self, slot, page->group, column)) {
        return;
    }
    /* Somebody computed the same page before: read that one, and give ours back. */
    sched_pool_share(self->pool, canonical);
    sched_pool_release(self->pool, block);
    table[column] = sched_pool_child(group->base, canonical);
    self->figures.swapped_blocks++;
}

/* Of a state group the one checkpoint after the page, and only if the last row ended there: what a
 * row went past was never written. */
static void
publish_state(sched_core_t *self, uint32_t slot, const sched_page_t *page, uint32_t number)
{
    uint32_t count = self->groups[page->group].page_blocks;
    sched_page_t last = *page;
    last.offset = count - 1;
#if ONEPATH_MUTANT == 5
    bool is_there = true;
#else
    bool is_there = self->slots[slot].computed == (number + 1) * self->page_tokens;
#endif
    if (is_there) {
        publish_block(self, slot, &last, number * count + last.offset);
    }
}

void
sched_publish(sched_core_t *self, uint32_t slot)
{
    sched_span_t *span = &self->spans[slot];
    uint32_t complete = self->slots[slot].computed / self->page_tokens;
    while (span->page_published < span->page_known && span->page_published < complete) {
        uint32_t number = span->page_published++;
        sched_page_t page = {.hash = sched_hash(self, slot, number)};
        for (page.group = 0; page.group < self->group_count; page.group++) {
            if (self->groups[page.group].kind == SCHED_GROUP_STATE) {
                publish_state(self, slot, &page, number);
                continue;
            }
            uint32_t count = self->groups[page.group].page_blocks;
            for (page.offset = 0; page.offset < count; page.offset++) {
                publish_block(self, slot, &page, number * count + page.offset);
            }
            page.offset = 0;
        }
    }
    sched_set_publish_at(self, slot);
}

void
sched_set_expire_at(sched_core_t *self, uint32_t slot)
{
    uint64_t at = UINT32_MAX;
    for (uint32_t g = 0; self->has_windows && g < self->group_count; g++) {
        const sched_group_t *group = &self->groups[g];
        if (group->kind != SCHED_GROUP_FULL) {
            uint64_t next =
                ((uint64_t)sched_extent(self, slot, g)->expired_count + 1) * group->granularity +
                group->window - 1;
            at = next < at ? next : at;
        }
    }
    self->slots[slot].expire_at = (uint32_t)at;
}

void
sched_expire(sched_core_t *self, uint32_t slot)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (self->groups[g].kind == SCHED_GROUP_FULL) {
            continue;
        }
        sched_extent_t *extent = sched_extent(self, slot, g);
        uint32_t *table = sched_table(self, slot, g);
        uint32_t computed = self->slots[slot].computed;
#if ONEPATH_MUTANT == 6
        computed += self->groups[g].kind == SCHED_GROUP_STATE ? 1 : 0;
#endif
        uint32_t end = sched_first_column(&self->groups[g], computed);
        end = end < extent->column_count ? end : extent->column_count;
        while (extent->expired_count < end) {
            uint32_t column = extent->expired_count;
            if (table[column] != 0) {
                if (!sched_mark_dirty(self, slot, g, column)) {
                    break;
                }
                sched_pool_release(self->pool, sched_block(self, g, table[column]));
                table[column] = 0;
            }
            extent->expired_count++;
        }
    }
    sched_set_expire_at(self, slot);
}
