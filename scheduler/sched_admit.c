/* Blocks of a request that begins or resumes: what the cache has, and what it takes anew. */
#include <string.h>

#include "sched_internal.h"

enum { PREFETCH_PAGES = 6 };

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
            for (uint32_t o = 0; group->kind == SCHED_GROUP_FULL && o < group->page_blocks; o++) {
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

/* Lowers the hit until each other group holds the window before its end: of a state group that is
 * the one checkpoint there. */
static uint32_t
find_windows(sched_core_t *self, const uint8_t *hashes, uint32_t page_count)
{
    uint32_t g = 0;
    while (g < self->group_count && page_count > 0) {
        const sched_group_t *group = &self->groups[g];
        uint32_t end = page_count * group->page_blocks;
        uint32_t begin = group->kind != SCHED_GROUP_FULL
                             ? sched_first_column(group, page_count * self->page_tokens)
                             : end;
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
    uint32_t total;      /* tokens to have in the cache before the next one is sampled */
    uint32_t cover;      /* tokens to hold blocks for from the start */
    uint32_t window_end; /* the same for groups that slide */
    uint32_t hit_pages;
    uint32_t body_end;   /* as in sched_span_t */
    uint32_t promote_at; /* as in sched_span_t */
    sched_chunk_t chunk; /* the first one; state groups get blocks for it */
    uint32_t incoming;   /* tokens that a transfer brings; 0: they are computed here */
    bool is_plan_full;   /* it is the plan that has no room, not the pool */
} demand_t;

/* Blocks that a group takes at first, beyond the hit. */
static uint32_t
fresh_wanted(const sched_core_t *self, uint32_t g, const demand_t *demand)
{
    const sched_group_t *group = &self->groups[g];
    uint32_t at = demand->hit_pages * group->page_blocks;
    if (group->kind == SCHED_GROUP_SLIDING && demand->incoming > 0) {
        uint32_t first = sched_first_column(group, demand->incoming);
        return sched_divide_up(demand->cover, group->granularity) - (first > at ? first : at);
    }
    if (group->kind != SCHED_GROUP_STATE) {
        uint32_t tokens = group->kind == SCHED_GROUP_FULL ? demand->cover : demand->window_end;
        return sched_divide_up(tokens, group->granularity) - at;
    }
    sched_run_t runs[2];
    uint32_t count = sched_state_runs(self, g, &demand->chunk, runs);
    uint32_t wanted = 0;
    for (uint32_t r = 0; r < count; r++) {
        at = runs[r].begin > at ? runs[r].begin : at;
        wanted += runs[r].end > at ? runs[r].end - at : 0;
        at = runs[r].end > at ? runs[r].end : at;
    }
    return wanted;
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
        /* A group with a window takes less at first than it will hold later. */
        uint32_t hits = hit_end - hit_begin;
        uint32_t held = sched_columns_needed(self, g, demand->cover);
        uint32_t wanted = fresh_wanted(self, g, demand);
        bool grows = demand->incoming == 0;
        wanted = grows && held > hits && held - hits > wanted ? held - hits : wanted;
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

/* Where the prefill stops on its way: behind a match of the full groups that no state came up to,
 * and at the last page that can be published.  The tail behind a body has its state columns with
 * the body, so it must be one chunk: with hashes of fewer pages than there are it could be cut, and
 * there is no body then. */
static void
set_stops(const sched_core_t *self, uint32_t page_known, uint32_t full_pages, demand_t *demand)
{
    uint32_t pages = (demand->total - 1) / self->page_tokens;
    demand->body_end = demand->total;
    if (!self->has_state || self->options.no_prefix_cache) {
        return;
    }
    if (pages > demand->hit_pages && page_known >= pages) {
        demand->body_end = pages * self->page_tokens;
    }
    if (self->has_full && full_pages > demand->hit_pages) {
        demand->promote_at = full_pages * self->page_tokens;
    }
}

static demand_t
demand_of(sched_core_t *self, const sched_entry_t *entry, uint32_t generated, const uint8_t *hashes,
          uint32_t page_known)
{
    demand_t demand = {.total = entry->prompt_length + generated};
    uint32_t page_max = (demand.total - 1) / self->page_tokens; /* one token is always computed */
    page_max = page_known < page_max ? page_known : page_max;
    uint32_t full_pages = 0;
    if (!self->options.no_prefix_cache) {
        full_pages = find_full(self, hashes, page_max);
        demand.hit_pages = self->has_windows ? find_windows(self, hashes, full_pages) : full_pages;
    }
    set_stops(self, page_known, full_pages, &demand);
    demand.cover = sched_horizon(self, entry->prompt_length, entry->generation_max, demand.total);
    uint64_t chunk = (uint64_t)demand.hit_pages * self->page_tokens + self->step_tokens_max;
    demand.window_end = chunk < demand.total ? (uint32_t)chunk : demand.cover;
    return demand;
}

/* What the request's prefill is to be; the first chunk follows from it. */
static void
set_span(sched_core_t *self, const sched_entry_t *entry, demand_t *demand, sched_span_t *span)
{
    span->prompt_length = entry->prompt_length;
    span->prefill_end = demand->total;
    span->body_end = demand->body_end;
    span->promote_at = demand->promote_at;
    span->page_published = demand->hit_pages;
    span->cover_max = sched_cover_max(self, entry->prompt_length, entry->generation_max);
    uint32_t begin = demand->hit_pages * self->page_tokens;
    uint32_t end =
        sched_chunk_end(self, span, begin, self->step_tokens_max - self->plan.token_count);
    demand->chunk = sched_chunk(self, span, entry->generation_max, end);
}

bool
sched_patch_table(sched_core_t *self, uint32_t slot)
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

/* Blocks for the hit and what comes behind it.  STATUS_FULL: nothing changed. */
static proto_status_t
take_blocks(sched_core_t *self, uint32_t slot, const demand_t *demand)
{
    uint32_t clears = self->plan.clear_count;
    claim_hits(self, slot, demand->hit_pages);
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_group_t *group = &self->groups[g];
        uint32_t tokens = group->kind == SCHED_GROUP_FULL ? demand->cover : demand->window_end;
        uint32_t end = sched_divide_up(tokens, group->granularity);
        uint32_t first = group->kind == SCHED_GROUP_SLIDING && demand->incoming > 0
                             ? sched_first_column(group, demand->incoming)
                             : 0;
        proto_status_t status = group->kind == SCHED_GROUP_STATE
                                    ? sched_take_states(self, slot, g, &demand->chunk)
                                    : sched_take_columns(self, slot, g, first, end);
        if (status != STATUS_OK) {
            require(self->group_count > 1); /* groups compete for parents: not known beforehand */
            sched_drop_blocks(self, slot);
            sched_return_clears(self, clears);
            return status;
        }
    }
    return STATUS_OK;
}

proto_status_t
sched_take_incoming(sched_core_t *self, const sched_loan_t *loan, const uint8_t *hashes,
                    uint32_t *hit_tokens)
{
    require(loan->prompt_length > 1);
    sched_entry_t entry = {.prompt_length = loan->prompt_length,
                           .generation_max = loan->generation_max};
    demand_t demand = demand_of(self, &entry, 0, hashes, loan->page_count);
    demand.incoming = loan->prompt_length - 1;
    demand.window_end = demand.cover;
    demand.chunk = (sched_chunk_t){.end = demand.incoming,
                                   .total = loan->prompt_length,
                                   .reserve_end = demand.cover};
    *hit_tokens = demand.hit_pages * self->page_tokens;
    if (!sched_has_room(self, 2 * self->group_count, self->table_stride) ||
        !is_available(self, &entry, &demand)) {
        return STATUS_FULL;
    }
    return take_blocks(self, 0, &demand);
}

/* Looks up what the cache has and takes the rest; *demand says what that was, *span what the
 * prefill is to be. */
static proto_status_t
find_and_take(sched_core_t *self, uint32_t index, uint32_t slot, demand_t *demand,
              sched_span_t *span)
{
    sched_entry_t *entry = &self->entries[index];
    bool resumes = entry->slot != 0;
    const uint8_t *hashes = resumes ? sched_hash(self, slot, 0) : entry->hashes;
    *demand = demand_of(self, entry, resumes ? self->slots[slot].generated : 0, hashes,
                        resumes ? span->page_known : entry->page_count);
    /* Room in the plan for the table, and for the holes it may leave. */
    if (!sched_has_room(self, 2 * self->group_count, self->table_stride)) {
        demand->is_plan_full = true;
        return STATUS_FULL;
    }
    set_span(self, entry, demand, span);
    if (demand->chunk.end == 0) {
        return STATUS_AGAIN; /* what is left of the step holds no whole page */
    }
    if (!is_available(self, entry, demand)) {
        entry->tried_version = sched_pool_version(self->pool) + self->end_count;
        return STATUS_FULL;
    }
    return take_blocks(self, slot, demand);
}

proto_status_t
sched_admit(sched_core_t *self, uint32_t index, uint32_t slot)
{
    sched_entry_t *entry = &self->entries[index];
    sched_slot_t *row = &self->slots[slot];
    sched_span_t span = self->spans[slot];
    bool resumes = entry->slot != 0;
    if (entry->tried_version == sched_pool_version(self->pool) + self->end_count) {
        return STATUS_FULL; /* nothing was freed or published since it did not fit */
    }
    demand_t demand;
    proto_status_t status = find_and_take(self, index, slot, &demand, &span);
    if (status == STATUS_FULL && !demand.is_plan_full && self->group_count > 1 &&
        sched_pool_is_idle(self->pool)) {
        /* Pages that lie scattered over the parents are all that is in the way. */
        sched_pool_forget(self->pool);
        status = find_and_take(self, index, slot, &demand, &span);
    }
    if (status != STATUS_OK) {
        return status;
    }
    entry->tried_version = UINT64_MAX;
    if (!resumes) {
        memcpy(sched_hash(self, slot, 0),
               entry->hashes == NULL ? (const uint8_t *)"" : entry->hashes,
               (size_t)entry->page_count * PROTO_HASH_SIZE_BYTES);
        entry->hashes = NULL;
        entry->cached_count = demand.hit_pages * self->page_tokens;
        span.page_known = entry->page_count;
        span.lost = 0;
        span.draft_hit = 0;
        span.part_count = 0;
        span.part_end = 0;
    }
    self->spans[slot] = span;
    row->computed = demand.hit_pages * self->page_tokens;
    row->planned = row->computed;
    sched_set_covered(self, slot);
    sched_set_publish_at(self, slot);
    sched_set_expire_at(self, slot);
    self->figures.prefix_queries += demand.total;
    self->figures.prefix_hits += row->computed;
    bool patched = sched_patch_table(self, slot);
    require(patched);
    sched_fold(self, (uint64_t)slot << 32 | demand.hit_pages);
    return STATUS_OK;
}
