/* Blocks that a running request takes, and the columns of the plan that tell of them. */
#include <string.h>

#include "sched_internal.h"

/* ---- columns of the plan --------------------------------------------------------------------- */

bool
sched_has_room(const sched_core_t *self, uint32_t patches, uint32_t blocks)
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
    if (!sched_has_room(self, 1, end - begin)) {
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

/* ---- what a group needs ------------------------------------------------------------------------
 */

uint32_t
sched_horizon(const sched_core_t *self, uint32_t prompt_length, uint32_t generation_max,
              uint32_t total)
{
    uint64_t horizon = (uint64_t)total + (uint64_t)self->width * self->step_count_max;
    uint64_t most = sched_cover_max(self, prompt_length, generation_max);
    uint64_t cover = horizon < most ? horizon : most;
    return cover < total ? total : (uint32_t)cover;
}

uint32_t
sched_state_runs(const sched_core_t *self, uint32_t g, const sched_chunk_t *chunk,
                 sched_run_t runs[2])
{
    uint32_t granularity = self->groups[g].granularity;
    uint32_t last = (chunk->end - 1) / granularity;
    runs[0] = (sched_run_t){.begin = last, .end = last + 1};
    if (chunk->reserve_end == 0) {
        return 1;
    }
    runs[1] = (sched_run_t){.begin = (chunk->total - 1) / granularity,
                            .end = sched_divide_up(chunk->reserve_end, granularity)};
    return 2;
}

sched_chunk_t
sched_chunk(const sched_core_t *self, const sched_span_t *span, uint32_t generation_max,
            uint32_t end)
{
    sched_chunk_t chunk = {.end = end, .total = span->prefill_end};
    if (end >= span->body_end) {
        chunk.reserve_end =
            sched_horizon(self, span->prompt_length, generation_max, span->prefill_end);
    }
    return chunk;
}

/* ---- taking ------------------------------------------------------------------------------------
 */

/* Takes fresh blocks for columns [run.begin, run.end) that the table does not have yet; what lies
 * before them becomes holes. */
static proto_status_t
take_run(sched_core_t *self, uint32_t slot, uint32_t g, sched_run_t run)
{
    sched_extent_t *extent = sched_extent(self, slot, g);
    uint32_t *table = sched_table(self, slot, g);
    sched_builder_t *plan = &self->plan;
    require(run.end <= self->groups[g].columns_max);
    while (extent->column_count < run.begin) {
        table[extent->column_count++] = 0;
    }
    while (extent->column_count < run.end) {
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
        if (self->groups[g].kind == SCHED_GROUP_STATE && self->group_count > 1) {
            /* What it leaves in the parent is no number to a kernel that reads a block of another
             * group whole: that one is cleared when it is taken. */
            sched_pool_mark_others_dirty(self->pool, block);
        }
    }
    return STATUS_OK;
}

proto_status_t
sched_take_columns(sched_core_t *self, uint32_t slot, uint32_t g, uint32_t begin, uint32_t end)
{
    sched_extent_t *extent = sched_extent(self, slot, g);
    proto_status_t status = take_run(self, slot, g, (sched_run_t){.begin = begin, .end = end});
    if (extent->expired_count < begin && extent->expired_count < extent->column_count) {
        /* Columns that slid out before they were ever taken. */
        const uint32_t *table = sched_table(self, slot, g);
        while (extent->expired_count < begin && table[extent->expired_count] == 0) {
            extent->expired_count++;
        }
    }
    return status;
}

proto_status_t
sched_take_states(sched_core_t *self, uint32_t slot, uint32_t g, const sched_chunk_t *chunk)
{
    sched_run_t runs[2];
    uint32_t count = sched_state_runs(self, g, chunk, runs);
    proto_status_t status = STATUS_OK;
    for (uint32_t r = 0; r < count && status == STATUS_OK; r++) {
        status = take_run(self, slot, g, runs[r]);
    }
    return status;
}

/* Gives back what was taken for columns [begin, column_count). */
static void
return_columns(sched_core_t *self, uint32_t slot, uint32_t g, uint32_t begin)
{
    sched_extent_t *extent = sched_extent(self, slot, g);
    const uint32_t *table = sched_table(self, slot, g);
    while (extent->column_count > begin) {
        uint32_t child = table[--extent->column_count];
        if (child != 0) {
            sched_pool_release(self->pool, sched_block(self, g, child));
        }
    }
}

void
sched_return_clears(sched_core_t *self, uint32_t from)
{
    sched_builder_t *plan = &self->plan;
    while (plan->clear_count > from) {
        plan->clear_count--;
        uint32_t g = plan->clear_groups[plan->clear_count];
        sched_pool_mark_dirty(self->pool,
                              sched_block(self, g, plan->clear_blocks[plan->clear_count]));
    }
}

/* ---- growing -----------------------------------------------------------------------------------
 */

/* Columns for `token_count` tokens; of state groups those of the chunk, if there is one. */
static proto_status_t
grow(sched_core_t *self, uint32_t slot, uint32_t token_count, const sched_chunk_t *chunk)
{
    uint32_t begins[PROTO_GROUPS_MAX] = {0};
    uint32_t clears = self->plan.clear_count;
    uint32_t wanted = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        begins[g] = sched_extent(self, slot, g)->column_count;
        uint32_t tokens = token_count;
        if (chunk != NULL && self->groups[g].kind == SCHED_GROUP_STATE) {
            tokens = chunk->reserve_end > chunk->end ? chunk->reserve_end : chunk->end;
        }
        uint32_t end = sched_divide_up(tokens, self->groups[g].granularity);
        wanted += end > begins[g] ? end - begins[g] : 0;
    }
    if (!sched_has_room(self, self->group_count, wanted)) {
        return STATUS_FULL;
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        bool sparse = chunk != NULL && self->groups[g].kind == SCHED_GROUP_STATE;
        uint32_t end = sched_divide_up(token_count, self->groups[g].granularity);
        proto_status_t status = sparse ? sched_take_states(self, slot, g, chunk)
                                       : sched_take_columns(self, slot, g, 0, end);
        if (status == STATUS_OK) {
            continue;
        }
        for (uint32_t h = 0; h <= g; h++) {
            return_columns(self, slot, h, begins[h]);
        }
        sched_return_clears(self, clears);
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

proto_status_t
sched_grow(sched_core_t *self, uint32_t slot, uint32_t token_count)
{
    return grow(self, slot, token_count, NULL);
}

proto_status_t
sched_grow_chunk(sched_core_t *self, uint32_t slot, uint32_t end)
{
    sched_chunk_t chunk =
        sched_chunk(self, &self->spans[slot], self->slots[slot].generation_max, end);
    return grow(self, slot, end, &chunk);
}
