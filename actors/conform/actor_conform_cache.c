#include "actor_conform_cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

proto_status_t
actor_conform_cache_init(conform_cache_t *self, const proto_executor_info_t *info,
                         conform_report_t *report)
{
    memset(self, 0, sizeof *self);
    require(info->slot_count <= CONFORM_SLOTS_MAX);
    require(info->group_kinds.count <= CONFORM_GROUPS_MAX);
    self->report = report;
    self->slot_count = info->slot_count;
    self->group_count = info->group_kinds.count;
    self->page_tokens = info->prefix_granularity;
    for (uint32_t g = 0; g < self->group_count; g++) {
        conform_group_t *group = &self->groups[g];
        group->kind = info->group_kinds.data[g];
        group->granularity = info->group_granularities.data[g];
        group->window = info->group_windows.data[g];
        group->block_count = 1 + (info->parent_count - 1) * info->group_packings.data[g];
        require((info->model_len_max + group->granularity - 1) / group->granularity <=
                CONFORM_COLUMNS_MAX);
        group->content = calloc((size_t)group->block_count * group->granularity, sizeof(uint64_t));
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is meant */
        group->spoilers = calloc(group->block_count, sizeof *group->spoilers);
        if (group->content == NULL || group->spoilers == NULL) {
            actor_conform_cache_fini(self);
            return STATUS_ERR_NO_MEMORY;
        }
    }
    return STATUS_OK;
}

void
actor_conform_cache_fini(conform_cache_t *self)
{
    for (uint32_t g = 0; g < CONFORM_GROUPS_MAX; g++) {
        free(self->groups[g].content);
        free(self->groups[g].spoilers);
        self->groups[g].spoilers = NULL;
        self->groups[g].content = NULL;
    }
}

void
actor_conform_cache_clear(conform_cache_t *self)
{
    memset(self->tables, 0, sizeof self->tables);
    memset(self->rows, 0, sizeof self->rows);
    for (uint32_t g = 0; g < self->group_count; g++) {
        conform_group_t *group = &self->groups[g];
        memset(group->content, 0,
               (size_t)group->block_count * group->granularity * sizeof *group->content);
    }
}

static uint64_t *
content_at(conform_cache_t *self, uint32_t g, uint32_t block)
{
    conform_group_t *group = &self->groups[g];
    return group->content + (size_t)block * group->granularity;
}

/* What a state group keeps of the state after `length` tokens. */
static uint64_t
state_after(const conform_request_t *request, uint32_t length)
{
    return actor_conform_mix(request->chains[length - 1]) | 2; /* neither empty nor spoilt */
}

/* ---- patches --------------------------------------------------------------------------------- */

/* Another request whose table holds the block; NULL if there is none. */
static const conform_row_t *
sharer_of(const conform_cache_t *self, uint32_t slot, uint32_t g, uint32_t block)
{
    for (uint32_t other = 1; other <= self->slot_count; other++) {
        for (uint32_t c = 0; other != slot && c < CONFORM_COLUMNS_MAX; c++) {
            if (self->tables[other][g][c] == block) {
                return &self->rows[other];
            }
        }
    }
    return NULL;
}

/* True if the block may be in the tables of others too: all of it is this request's, computed, and
 * in a state group it is the state after a whole page.  *position: what is not. */
static bool
is_shareable(conform_cache_t *self, uint32_t slot, uint32_t g, uint32_t column, uint32_t *position)
{
    const conform_request_t *request = self->rows[slot].request;
    const conform_group_t *group = &self->groups[g];
    const uint64_t *content = content_at(self, g, self->tables[slot][g][column]);
    uint32_t begin = column * group->granularity;
    uint32_t end = begin + group->granularity;
    uint32_t known = request->ask.prompt_length + request->ask.generation_max;
    *position = end - 1;
    if (end > known) {
        return false;
    }
    if (group->kind == 2) {
        return end % self->page_tokens == 0 && content[0] == state_after(request, end);
    }
    for (*position = begin; *position < end; (*position)++) {
        if (content[*position - begin] != request->chains[*position]) {
            return false;
        }
    }
    return true;
}

/* A block that two tables hold is a whole page that both requests have. */
static void
check_owner(conform_cache_t *self, uint32_t slot, uint32_t g, uint32_t column,
            const conform_where_t *where)
{
    uint32_t block = self->tables[slot][g][column];
    const conform_row_t *row = &self->rows[slot];
    if (block == 0 || row->request == NULL) {
        return;
    }
    const conform_row_t *sharer = sharer_of(self, slot, g, block);
    if (sharer == NULL) {
        return;
    }
    conform_where_t at = *where;
    at.request = row->request->id;
    uint32_t position;
    if (!is_shareable(self, slot, g, column, &position)) {
        actor_conform_broke(self->report, CONFORM_BLOCK_OWNER, &at,
                            "a block of its own, or a whole computed page of the same tokens",
                            "block %u of group %u in column %u of slot %u is also in the table "
                            "of request %" PRIu64 "; token %u of it is not this request's",
                            block, g, column, slot,
                            sharer->request != NULL ? sharer->request->id : 0, position);
        return;
    }
    actor_conform_held(self->report, CONFORM_BLOCK_OWNER);
}

static void
apply_clears(conform_cache_t *self, const proto_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->clear_blocks.count; i++) {
        uint32_t g = plan->clear_groups.data[i];
        uint64_t *content = content_at(self, g, plan->clear_blocks.data[i]);
        memset(content, 0, self->groups[g].granularity * sizeof *content);
    }
}

void
actor_conform_cache_patch(conform_cache_t *self, const proto_plan_t *plan,
                          const conform_where_t *where)
{
    for (uint32_t i = 0; i < plan->release_slots.count; i++) {
        uint32_t slot = plan->release_slots.data[i];
        memset(self->tables[slot], 0, sizeof self->tables[slot]);
        self->rows[slot] = (conform_row_t){0};
    }
    if (plan->base_step == 0) {
        memset(self->tables, 0, sizeof self->tables);
    }
    const uint32_t *blocks = plan->patch_blocks.data;
    for (uint32_t i = 0; i < plan->patch_slots.count; i++) {
        uint32_t *table = self->tables[plan->patch_slots.data[i]][plan->patch_groups.data[i]];
        for (uint32_t k = 0; k < plan->patch_counts.data[i]; k++) {
            table[plan->patch_columns.data[i] + k] = *blocks++;
        }
    }
    /* Only now: a block may leave one table in the same plan in which it comes into another. */
    for (uint32_t i = 0; i < plan->patch_slots.count; i++) {
        for (uint32_t k = 0; k < plan->patch_counts.data[i]; k++) {
            check_owner(self, plan->patch_slots.data[i], plan->patch_groups.data[i],
                        plan->patch_columns.data[i] + k, where);
        }
    }
    apply_clears(self, plan);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* True if the scheduler must know of this request's NaN: it did not end for another reason before
 * the result was there. */
static bool
is_known(const conform_request_t *spoiler)
{
    return !spoiler->is_finishing && spoiler->excuses == 0;
}

/* Kernels read blocks whole and mask what is beyond the length: a NaN shines through. */
static void
check_clear(conform_cache_t *self, uint32_t slot, uint32_t g, uint32_t column,
            const conform_where_t *where)
{
    uint32_t block = self->tables[slot][g][column];
    const uint64_t *content = content_at(self, g, block);
    for (uint32_t i = 0; i < self->groups[g].granularity; i++) {
        if (content[i] == CONFORM_SPOILT && is_known(self->groups[g].spoilers[block])) {
            actor_conform_broke(self->report, CONFORM_BLOCK_CLEAR, where,
                                "a clear of the block before another request uses it",
                                "block %u of group %u, in column %u of slot %u, holds a NaN of "
                                "request %" PRIu64,
                                block, g, column, slot, self->groups[g].spoilers[block]->id);
            return;
        }
    }
    actor_conform_held(self->report, CONFORM_BLOCK_CLEAR);
}

static void
check_reads(conform_cache_t *self, uint32_t slot, uint32_t g, uint32_t begin,
            const conform_where_t *where)
{
    const conform_group_t *group = &self->groups[g];
    const conform_request_t *request = self->rows[slot].request;
    uint32_t first = group->kind == 1 && begin + 1 > group->window ? begin + 1 - group->window : 0;
    for (uint32_t position = first; position < begin; position++) {
        uint32_t block = self->tables[slot][g][position / group->granularity];
        uint64_t found = content_at(self, g, block)[position % group->granularity];
        if (block == 0 || found != request->chains[position]) {
            actor_conform_broke(
                self->report, CONFORM_BLOCK_CONTENT, where,
                "what was computed for this request's tokens",
                "token %u of slot %u is read from block %u of group %u, which holds %s there",
                position, slot, block, g,
                found == CONFORM_EMPTY ? "nothing" : "what was computed for other tokens");
            return;
        }
    }
    actor_conform_held(self->report, CONFORM_BLOCK_CONTENT);
}

/* The state before the row, and the one that it leaves; a NaN spoils it. */
static void
go_on_with_state(conform_cache_t *self, uint32_t slot, uint32_t g, const uint32_t range[2],
                 bool is_nan, const conform_where_t *where)
{
    const conform_request_t *request = self->rows[slot].request;
    const uint32_t *table = self->tables[slot][g];
    uint32_t granularity = self->groups[g].granularity;
    if (range[0] > 0) {
        uint32_t column = (range[0] - 1) / granularity;
        uint64_t found = *content_at(self, g, table[column]);
        if (table[column] == 0 || found != state_after(request, range[0])) {
            actor_conform_broke(self->report, CONFORM_BLOCK_STATE, where,
                                "the state after exactly the tokens before the row",
                                "slot %u goes on after %u tokens from block %u of group %u, in "
                                "column %u, which holds %s",
                                slot, range[0], table[column], g, column,
                                found == CONFORM_EMPTY ? "nothing" : "another state");
        } else {
            actor_conform_held(self->report, CONFORM_BLOCK_STATE);
        }
    }
    uint64_t after = is_nan ? (uint64_t)CONFORM_SPOILT : state_after(request, range[1]);
    *content_at(self, g, table[(range[1] - 1) / granularity]) = after;
}

void
actor_conform_cache_row(conform_cache_t *self, uint32_t slot, uint32_t begin, uint32_t end,
                        bool is_nan, const conform_where_t *where)
{
    const conform_request_t *request = self->rows[slot].request;
    require(request != NULL);
    conform_where_t at = *where;
    at.request = request->id;
    for (uint32_t g = 0; g < self->group_count; g++) {
        const conform_group_t *group = &self->groups[g];
        if (group->kind == 2) {
            go_on_with_state(self, slot, g, (const uint32_t[2]){begin, end}, is_nan, &at);
            continue;
        }
        check_reads(self, slot, g, begin, &at);
        for (uint32_t position = begin; position < end; position++) {
            uint32_t column = position / group->granularity;
            uint32_t block = self->tables[slot][g][column];
            if (position == begin || position % group->granularity == 0) {
                check_clear(self, slot, g, column, &at);
            }
            content_at(self, g, block)[position % group->granularity] =
                is_nan ? CONFORM_SPOILT : request->chains[position];
            if (is_nan) {
                self->groups[g].spoilers[block] = request;
            }
        }
    }
}
