/* Block tables by slot. */
#include "run_tables.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

typedef struct {
    uint32_t columns_max;
    uint32_t block_count;
    int32_t *blocks;  /* [slot_count + 1][columns_max] */
    uint32_t *filled; /* [slot_count + 1]: columns up to the last one that was patched */
} group_t;

struct run_tables {
    uint32_t slot_count;
    uint32_t group_count;
    group_t groups[CACHE_GROUP_COUNT_MAX];
};

proto_status_t
run_tables_new(const cache_plan_t *plan, uint32_t slot_count, uint32_t token_count_max,
               run_tables_t **out_p)
{
    run_tables_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->slot_count = slot_count;
    self->group_count = cache_plan_group_count(plan);
    for (uint32_t g = 0; g < self->group_count; g++) {
        group_t *group = &self->groups[g];
        uint32_t granularity = cache_plan_group(plan, g)->granularity;
        group->columns_max = (token_count_max + granularity - 1) / granularity;
        group->block_count = cache_plan_page_count(plan, g);
        group->blocks =
            calloc(((size_t)slot_count + 1) * group->columns_max, sizeof *group->blocks);
        group->filled = calloc((size_t)slot_count + 1, sizeof *group->filled);
        if (group->blocks == NULL || group->filled == NULL) {
            run_tables_destroy(&self);
            return STATUS_ERR_NO_MEMORY;
        }
    }
    *out_p = self;
    return STATUS_OK;
}

void
run_tables_destroy(run_tables_t **self_p)
{
    require(self_p != NULL);
    run_tables_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        free(self->groups[g].blocks);
        free(self->groups[g].filled);
    }
    free(self);
    *self_p = NULL;
}

void
run_tables_bind(run_tables_t *self, const cache_plan_t *plan)
{
    require(cache_plan_group_count(plan) == self->group_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        self->groups[g].block_count = cache_plan_page_count(plan, g);
    }
    run_tables_clear_all(self);
}

uint32_t
run_tables_columns_max(const run_tables_t *self, uint32_t group)
{
    require(group < self->group_count);
    return self->groups[group].columns_max;
}

void
run_tables_clear(run_tables_t *self, uint32_t slot)
{
    require(slot <= self->slot_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        group_t *group = &self->groups[g];
        memset(group->blocks + (size_t)slot * group->columns_max, 0,
               group->filled[slot] * sizeof *group->blocks);
        group->filled[slot] = 0;
    }
}

void
run_tables_clear_all(run_tables_t *self)
{
    for (uint32_t slot = 0; slot <= self->slot_count; slot++) {
        run_tables_clear(self, slot);
    }
}

proto_status_t
run_tables_patch(run_tables_t *self, uint32_t slot, uint32_t group_index, uint32_t first_column,
                 const uint32_t *blocks, uint32_t count)
{
    if (slot == 0 || slot > self->slot_count || group_index >= self->group_count) {
        return STATUS_ERR_INVALID;
    }
    group_t *group = &self->groups[group_index];
    if (count > group->columns_max || first_column > group->columns_max - count) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (blocks[i] >= group->block_count) {
            return STATUS_ERR_INVALID;
        }
    }
    int32_t *row = group->blocks + (size_t)slot * group->columns_max;
    for (uint32_t i = 0; i < count; i++) {
        row[first_column + i] = (int32_t)blocks[i];
    }
    if (first_column + count > group->filled[slot]) {
        group->filled[slot] = first_column + count;
    }
    return STATUS_OK;
}

int32_t
run_tables_get(const run_tables_t *self, uint32_t slot, uint32_t group_index, uint32_t column)
{
    require(slot <= self->slot_count);
    require(group_index < self->group_count);
    const group_t *group = &self->groups[group_index];
    return column < group->columns_max ? group->blocks[(size_t)slot * group->columns_max + column]
                                       : 0;
}

uint32_t
run_tables_columns(const run_tables_t *self, uint32_t group_index, const int32_t *slots,
                   uint32_t count)
{
    require(group_index < self->group_count);
    const group_t *group = &self->groups[group_index];
    uint32_t columns = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t filled = group->filled[slots[i]];
        columns = filled > columns ? filled : columns;
    }
    return columns;
}

void
run_tables_pack(const run_tables_t *self, uint32_t group_index, const int32_t *slots,
                uint32_t count, uint32_t columns, int32_t *out)
{
    require(group_index < self->group_count);
    const group_t *group = &self->groups[group_index];
    require(columns <= group->columns_max);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(out + (size_t)i * columns, group->blocks + (size_t)slots[i] * group->columns_max,
               columns * sizeof *out);
    }
}
