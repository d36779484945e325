/* Blocks of a request: where they come from. */
#include <string.h>

#include "sched_internal.h"

enum { PREFETCH_PAGES = 6 };

/* ---- columns of the plan --------------------------------------------------------------------- */

static bool
has_room(const sched_core_t *self, uint32_t patches, uint32_t blocks)
{
    const sched_builder_t *plan = &self->plan;
    return plan->patch_max - plan->patch_count >= patches &&
           plan->block_max - plan->block_count >= blocks &&
           plan->clear_max - plan->clear_count >= blocks;
}

bool
sched_patch(sched_core_t *self, uint32_t slot, uint32_t group, uint32_t begin, uint32_t end)
{
    sched_builder_t *plan = &self->plan;
    require(begin < end);
    if (!has_room(self, 1, end - begin)) {
        return false;
    }
    sched_extent_t *extent = sched_extent(self, slot, group);
    if (extent->executor_count < end) {
        extent->executor_count = end;
    }
    uint32_t at = plan->block_count;
    plan->block_count += end - begin;
    if (plan->full) {
        return true; /* every table goes out as a whole when the plan is complete */
    }
    uint32_t patch = plan->patch_count++;
    plan->patch_slots[patch] = slot;
    plan->patch_groups[patch] = (uint8_t)group;
    plan->patch_columns[patch] = begin;
    plan->patch_counts[patch] = end - begin;
    memcpy(plan->patch_blocks + at, sched_table(self, slot, group) + begin,
           (end - begin) * sizeof *plan->patch_blocks);
    return true;
}

bool
sched_mark_dirty(sched_core_t *self, uint32_t slot, uint32_t group, uint32_t column)
{
    if (self->dirty_count == self->dirty_max) {
        return false;
    }
    self->dirty[self->dirty_count++] = (sched_dirty_t){.slot = slot,
                                                       .serial = self->slots[slot].serial,
                                                       .group = group,
                                                       .column = column};
    return true;
}

/* ---- growing --------------------------------------------------------------------------------- */

void
sched_set_covered(sched_core_t *self, uint32_t slot)
{
    uint64_t covered = UINT32_MAX;
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint64_t tokens =
            (uint64_t)sched_extent(self, slot, g)->column_count * self->groups[g].granularity;
        covered = tokens < covered ? tokens : covered;
    }
    self->slots[slot].covered = (uint32_t)covered;
}

/* Takes fresh blocks for columns [column_count, end). */
static proto_status_t
take_columns(sched_core_t *self, uint32_t slot, uint32_t g, uint32_t end)
{
    sched_extent_t *extent = sched_extent(self, slot, g);
    uint32_t *table = sched_table(self, slot, g);
    sched_builder_t *plan = &self->plan;
    require(end <= self->groups[g].columns_max);
    while (extent->column_count < end) {
        sched_block_t block;
        if (sched_pool_acquire(self->pool, g, &block) != STATUS_OK) {
            return STATUS_FULL;
        }
        uint32_t child = sched_pool_child(self->groups[g].base, block);
        table[extent->column_count++] = child;
        if (sched_pool_take_dirty(self->pool, block) || self->options.clear_blocks) {
            plan->clear_groups[plan->clear_count] = (uint8_t)g;
            plan->clear_blocks[plan->clear_count++] = child;
        }
    }
    return STATUS_OK;
}

/* Gives back what take_columns() took for columns [begin, column_count). */
static void
return_columns(sched_core_t *self, uint32_t slot, uint32_t g, uint32_t begin)
{
    sched_extent_t *extent = sched_extent(self, slot, g);
    const uint32_t *table = sched_table(self, slot, g);
    while (extent->column_count > begin) {
        sched_pool_release(self->pool, sched_block(self, g, table[--extent->column_count]));
    }
}

/* The clears from `from` on are not going to happen: the blocks stay marked. */
static void
return_clears(sched_core_t *self, uint32_t from)
{
    sched_builder_t *plan = &self->plan;
    while (plan->clear_count > from) {
        plan->clear_count--;
        uint32_t g = plan->clear_groups[plan->clear_count];
        sched_pool_mark_dirty(self->pool,
                              sched_block(self, g, plan->clear_blocks[plan->clear_count]));
    }
}

proto_status_t
sched_grow(sched_core_t *self, uint32_t slot, uint32_t token_count)
{
    uint32_t begins[PROTO_GROUPS_MAX] = {0};
    uint32_t clears = self->plan.clear_count;
    uint32_t wanted = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        begins[g] = sched_extent(self, slot, g)->column_count;
        uint32_t end = sched_divide_up(token_count, self->groups[g].granularity);
        wanted += end > begins[g] ? end - begins[g] : 0;
    }
    if (!has_room(self, self->group_count, wanted)) {
        return STATUS_FULL;
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t end = sched_divide_up(token_count, self->groups[g].granularity);
        if (take_columns(self, slot, g, end) == STATUS_OK) {
            continue;
        }
        for (uint32_t h = 0; h <= g; h++) {
            return_columns(self, slot, h, begins[h]);
        }
        return_clears(self, clears);
        return STATUS_FULL;
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t end = sched_extent(self, slot, g)->column_count;
        if (end > begins[g]) {
            bool patched = sched_patch(self, slot, g, begins[g], end);
            require(patched);
        }
    }
    sched_set_covered(self, slot);
    return STATUS_OK;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

/* Whole pages from the first that every full group holds; their blocks go to `scratch`. */
static uint32_t
find_full(sched_core_t *self, const uint8_t *hashes, uint32_t page_max)
{
    for (uint32_t page = 0; page < page_max; page++) {
        if (page + PREFETCH_PAGES < page_max) {
            sched_page_t ahead = {.hash = hashes +
                                          (size_t)(page + PREFETCH_PAGES) * PROTO_HASH_SIZE_BYTES};
            sched_pool_prefetch(self->pool, &ahead);
        }
        for (uint32_t g = 0; g < self->group_count; g++) {
            const sched_group_t *group = &self->groups[g];
            for (uint32_t o = 0; group->kind == 0 && o < group->page_blocks; o++) {
                sched_page_t wanted = {.group = g,
                                       .offset = o,
                                       .hash = hashes + (size_t)page * PROTO_HASH_SIZE_BYTES};
                sched_block_t block = sched_pool_find(self->pool, &wanted);
                if (block.index == 0) {
                    return page;
                }
                self->scratch[group->column_offset + page * group->page_blocks + o] =
                    sched_pool_child(group->base, block);
            }
        }
    }
    return page_max;
}

/* Lowers the hit until each sliding group holds the window before its end. */
static uint32_t
find_sliding(sched_core_t *self, const uint8_t *hashes, uint32_t page_count)
{
    uint32_t g = 0;
    while (g < self->group_count && page_count > 0) {
        const sched_group_t *group = &self->groups[g];
        uint32_t end = page_count * group->page_blocks;
        uint32_t begin =
            group->kind == 1 ? sched_first_column(group, page_count * self->page_tokens) : end;
        uint32_t column = end;
        while (column > begin) {
            uint32_t page = (column - 1) / group->page_blocks;
            sched_page_t wanted = {.group = g,
                                   .offset = (column - 1) % group->page_blocks,
                                   .hash = hashes + (size_t)page * PROTO_HASH_SIZE_BYTES};
            sched_block_t block = sched_pool_find(self->pool, &wanted);
            if (block.index == 0) {
                page_count = page;
                break;
            }
            column--;
            self->scratch[group->column_offset + column] = sched_pool_child(group->base, block);
        }
        g = column > begin ? 0 : g + 1; /* lowered: all groups again */
    }
    return page_count;
}

/* ---- admission ------------------------------------------------------------------------------- */

typedef struct {
    uint32_t total;     /* tokens to have in the cache before the next one is sampled */
    uint32_t cover;     /* tokens to hold blocks for from the start */
    uint32_t chunk_end; /* the same for groups that slide */
    uint32_t hit_pages;
} demand_t;

static uint32_t
columns_wanted(const sched_core_t *self, uint32_t g, const demand_t *demand)
{
    const sched_group_t *group = &self->groups[g];
    return sched_divide_up(group->kind == 0 ? demand->cover : demand->chunk_end,
                           group->granularity);
}

/* A few blocks stay back for the rows that run, or the newcomer would soon be their victim. */
static uint32_t
lookahead_blocks(const sched_core_t *self, uint32_t g)
{
    if (self->running_count == self->retracted.count) {
        return 0;
    }
    uint32_t percent = sched_pool_capacity(self->pool, g) / 100;
    return percent > 1 ? percent : 1;
}

static bool
is_available(sched_core_t *self, sched_entry_t *entry, const demand_t *demand)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_group_t *group = &self->groups[g];
        uint32_t hit_end = demand->hit_pages * group->page_blocks;
        uint32_t hit_begin = sched_first_column(group, demand->hit_pages * self->page_tokens);
        uint32_t pinned = 0;
        for (uint32_t c = hit_begin; c < hit_end; c++) {
            sched_block_t block = sched_block(self, g, self->scratch[group->column_offset + c]);
            pinned += sched_pool_state(self->pool, block) == SCHED_BLOCK_CACHED ? 1 : 0;
        }
        /* A sliding group takes less at first than it will hold later. */
        uint32_t hits = hit_end - hit_begin;
        uint32_t held = sched_columns_needed(self, g, demand->cover);
        uint32_t wanted = columns_wanted(self, g, demand) - hit_end;
        wanted = held > hits && held - hits > wanted ? held - hits : wanted;
        uint32_t needed = wanted + lookahead_blocks(self, g);
        uint32_t available = sched_pool_available(self->pool, g) - pinned;
        if (needed > available) {
            entry->needed = needed;
            entry->limit = available;
            return false;
        }
    }
    return true;
}

static void
claim_hits(sched_core_t *self, uint32_t slot, uint32_t hit_pages)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_group_t *group = &self->groups[g];
        uint32_t end = hit_pages * group->page_blocks;
        uint32_t begin = sched_first_column(group, hit_pages * self->page_tokens);
        uint32_t *table = sched_table(self, slot, g);
        memset(table, 0, begin * sizeof *table);
        for (uint32_t c = begin; c < end; c++) {
            table[c] = self->scratch[group->column_offset + c];
            sched_pool_share(self->pool, sched_block(self, g, table[c]));
        }
        sched_extent_t *extent = sched_extent(self, slot, g);
        extent->column_count = end;
        extent->expired_count = begin;
    }
}

static demand_t
demand_of(sched_core_t *self, const sched_entry_t *entry, uint32_t generated, const uint8_t *hashes,
          uint32_t page_known)
{
    demand_t demand = {.total = entry->prompt_length + generated};
    uint32_t page_max = (demand.total - 1) / self->page_tokens; /* one token is always computed */
    page_max = page_known < page_max ? page_known : page_max;
    if (!self->options.no_prefix_cache) {
        demand.hit_pages = find_full(self, hashes, page_max);
        if (self->has_sliding) {
            demand.hit_pages = find_sliding(self, hashes, demand.hit_pages);
        }
    }
    uint64_t horizon = (uint64_t)demand.total + (uint64_t)self->width * self->step_count_max;
    uint64_t most = (uint64_t)entry->prompt_length + entry->generation_max - 1;
    if (self->width > 1) {
        most = horizon < self->model_len_max ? horizon : self->model_len_max;
    }
    demand.cover = (uint32_t)(horizon < most ? horizon : most);
    demand.cover = demand.cover < demand.total ? demand.total : demand.cover;
    uint64_t chunk = (uint64_t)demand.hit_pages * self->page_tokens + self->step_tokens_max;
    demand.chunk_end = chunk < demand.total ? (uint32_t)chunk : demand.cover;
    return demand;
}

static bool
patch_table(sched_core_t *self, uint32_t slot)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_extent_t *extent = sched_extent(self, slot, g);
        uint32_t begin = extent->executor_count > 0 ? 0 : extent->expired_count;
        if (extent->column_count > begin &&
            !sched_patch(self, slot, g, begin, extent->column_count)) {
            return false;
        }
    }
    return true;
}

proto_status_t
sched_admit(sched_core_t *self, uint32_t index, uint32_t slot)
{
    sched_entry_t *entry = &self->entries[index];
    sched_slot_t *row = &self->slots[slot];
    sched_span_t *span = &self->spans[slot];
    bool resumes = entry->slot != 0;
    uint64_t version = sched_pool_version(self->pool) + self->end_count;
    if (entry->tried_version == version) {
        return STATUS_FULL; /* nothing was freed or published since it did not fit */
    }
    const uint8_t *hashes = resumes ? sched_hash(self, slot, 0) : entry->hashes;
    demand_t demand = demand_of(self, entry, resumes ? row->generated : 0, hashes,
                                resumes ? span->page_known : entry->page_count);
    /* Room in the plan for the table, and for the holes it may leave. */
    if (!has_room(self, 2 * self->group_count, self->table_stride)) {
        return STATUS_FULL;
    }
    if (!is_available(self, entry, &demand)) {
        entry->tried_version = version;
        return STATUS_FULL;
    }
    uint32_t clears = self->plan.clear_count;
    claim_hits(self, slot, demand.hit_pages);
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (take_columns(self, slot, g, columns_wanted(self, g, &demand)) != STATUS_OK) {
            require(self->group_count > 1); /* groups compete for parents: not known beforehand */
            sched_drop_blocks(self, slot);
            return_clears(self, clears);
            return STATUS_FULL;
        }
    }
    entry->tried_version = UINT64_MAX;
    if (!resumes) {
        memcpy(sched_hash(self, slot, 0),
               entry->hashes == NULL ? (const uint8_t *)"" : entry->hashes,
               (size_t)entry->page_count * PROTO_HASH_SIZE_BYTES);
        entry->hashes = NULL;
        entry->cached_count = demand.hit_pages * self->page_tokens;
        span->page_known = entry->page_count;
        span->prompt_length = entry->prompt_length;
        span->lost = 0;
    }
    row->computed = demand.hit_pages * self->page_tokens;
    row->planned = row->computed;
    span->prefill_end = demand.total;
    span->page_published = demand.hit_pages;
    span->cover_max = sched_cover_max(self, entry->prompt_length, entry->generation_max);
    sched_set_covered(self, slot);
    sched_set_publish_at(self, slot);
    sched_set_expire_at(self, slot);
    self->figures.prefix_queries += demand.total;
    self->figures.prefix_hits += row->computed;
    bool patched = patch_table(self, slot);
    require(patched);
    sched_fold(self, (uint64_t)slot << 32 | demand.hit_pages);
    return STATUS_OK;
}
