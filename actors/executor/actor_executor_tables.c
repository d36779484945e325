#include "actor_executor_tables.h"

#include <stdlib.h>

#include "proto_require.h"

/* A stretch of columns that all hold blocks: what decides the usual row in O(1).  It is a hint in
 * one direction only: inside it nothing is missing; outside it the cells are looked at. */
typedef struct {
    uint32_t begin;
    uint32_t end;
    uint32_t used; /* no column at or beyond it holds a block */
} run_t;

struct actor_executor_tables {
    uint32_t slot_count;
    uint32_t group_count;
    uint32_t parent_count;
    uint32_t stride; /* cells of a slot */
    actor_executor_group_t groups[PROTO_GROUPS_MAX];
    uint32_t cell_at[PROTO_GROUPS_MAX];      /* first cell of a group within its slot */
    uint64_t reference_at[PROTO_GROUPS_MAX]; /* first counter of a group */
    uint64_t reference_count;
    uint32_t *cells;                  /* [slot_count + 1][stride] */
    run_t *runs;                      /* [slot_count + 1][group_count] */
    uint32_t *references;             /* [sum of block_count] cells that hold the block */
    uint32_t *parent_cells;           /* [group_count][parent_count]; NULL with one group */
    uint8_t *parent_groups;           /* [parent_count] groups that use it; NULL with one group */
    actor_executor_change_t *changes; /* undo log, [change_max] */
    uint32_t change_count;
    uint32_t change_max;
    uint64_t digest;
};

static uint64_t
mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9u;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t
cell_index(const actor_executor_tables_t *self, uint32_t slot, uint32_t group, uint32_t column)
{
    return (uint64_t)slot * self->stride + self->cell_at[group] + column;
}

static uint32_t
parent_of(const actor_executor_tables_t *self, uint32_t group, uint32_t block)
{
    return 1 + (block - 1) / self->groups[group].packing;
}

proto_status_t
actor_executor_tables_new(const actor_executor_tables_options_t *options,
                          actor_executor_tables_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    require(options->group_count >= 1 && options->group_count <= PROTO_GROUPS_MAX);
    require(options->slot_count >= 1 && options->slot_count <= PROTO_ROWS_MAX);

    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_executor_tables_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->slot_count = options->slot_count;
    self->group_count = options->group_count;
    self->parent_count = options->parent_count;
    for (uint32_t g = 0; g < options->group_count; g++) {
        require(options->groups[g].packing >= 1);
        self->groups[g] = options->groups[g];
        self->cell_at[g] = self->stride;
        self->stride += options->groups[g].column_count;
        self->reference_at[g] = self->reference_count;
        self->reference_count += options->groups[g].block_count;
    }
    size_t rows = (size_t)self->slot_count + 1;
    require(rows * self->stride <= PROTO_BLOCKS_MAX);
    /* A plan can empty every cell (release, full plan) and then set each one again. */
    self->change_max = 2 * (uint32_t)(rows * self->stride);
    self->cells = calloc(rows * self->stride, sizeof *self->cells);
    self->runs = calloc(rows * self->group_count, sizeof *self->runs);
    self->references = calloc(self->reference_count, sizeof *self->references);
    self->changes = calloc(self->change_max, sizeof *self->changes);
    if (self->cells == NULL || self->runs == NULL || self->references == NULL ||
        self->changes == NULL) {
        goto err_destroy;
    }
    if (self->group_count > 1) {
        size_t cells = (size_t)self->group_count * self->parent_count;
        self->parent_cells = calloc(cells, sizeof *self->parent_cells);
        self->parent_groups = calloc(self->parent_count, sizeof *self->parent_groups);
        if (self->parent_cells == NULL || self->parent_groups == NULL) {
            goto err_destroy;
        }
    }
    *out_p = self;
    return STATUS_OK;

err_destroy:
    actor_executor_tables_destroy(&self);
err:
    return status;
}

void
actor_executor_tables_destroy(actor_executor_tables_t **self_p)
{
    require(self_p != NULL);
    actor_executor_tables_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->parent_groups);
    free(self->parent_cells);
    free(self->changes);
    free(self->references);
    free(self->runs);
    free(self->cells);
    free(self);
    *self_p = NULL;
}

uint32_t
actor_executor_tables_cell_count(const actor_executor_tables_t *self)
{
    return (self->slot_count + 1) * self->stride;
}

static void
reference_drop(actor_executor_tables_t *self, uint32_t group, uint32_t block)
{
    uint32_t *references = &self->references[self->reference_at[group] + block];
    require(*references > 0);
    (*references)--;
    if (self->parent_cells != NULL) {
        uint32_t parent = parent_of(self, group, block);
        uint32_t *cells = &self->parent_cells[(size_t)group * self->parent_count + parent];
        if (--(*cells) == 0) {
            self->parent_groups[parent]--;
        }
    }
}

static void
reference_take(actor_executor_tables_t *self, uint32_t group, uint32_t block)
{
    self->references[self->reference_at[group] + block]++;
    if (self->parent_cells != NULL) {
        uint32_t parent = parent_of(self, group, block);
        uint32_t *cells = &self->parent_cells[(size_t)group * self->parent_count + parent];
        if ((*cells)++ == 0) {
            self->parent_groups[parent]++;
        }
    }
}

/* Keeps the run a run.  Columns leave mostly at its begin (a window slides) and come at its end. */
static void
run_update(run_t *run, const uint32_t *cells, uint32_t column_count, uint32_t column)
{
    if (cells[column] == 0) {
        if (column < run->begin || column >= run->end) {
            return;
        }
        if (column == run->begin) {
            run->begin++;
        } else {
            run->end = column;
        }
        if (run->begin >= run->end) {
            run->begin = run->end = 0;
        }
        return;
    }
    if (column >= run->used) {
        run->used = column + 1;
    }
    if (run->begin == run->end) {
        run->begin = column;
        run->end = column + 1;
    } else if (column + 1 == run->begin) {
        run->begin = column;
    } else if (column == run->end) {
        run->end = column + 1;
    } else {
        return;
    }
    while (run->end < column_count && cells[run->end] != 0) {
        run->end++;
    }
}

static void
cell_write(actor_executor_tables_t *self, uint32_t slot, uint32_t group, uint32_t column,
           uint32_t block)
{
    uint64_t index = cell_index(self, slot, group, column);
    uint32_t before = self->cells[index];
    if (before != 0) {
        reference_drop(self, group, before);
        self->digest ^= mix((index << 32) | before);
    }
    if (block != 0) {
        reference_take(self, group, block);
        self->digest ^= mix((index << 32) | block);
    }
    self->cells[index] = block;
    run_update(&self->runs[(size_t)slot * self->group_count + group],
               &self->cells[cell_index(self, slot, group, 0)], self->groups[group].column_count,
               column);
}

void
actor_executor_tables_begin(actor_executor_tables_t *self)
{
    self->change_count = 0;
}

void
actor_executor_tables_set(actor_executor_tables_t *self, uint32_t slot, uint32_t group,
                          uint32_t column, uint32_t block)
{
    require(slot >= 1 && slot <= self->slot_count);
    require(group < self->group_count);
    require(column < self->groups[group].column_count);
    require(block < self->groups[group].block_count);
    uint32_t before = self->cells[cell_index(self, slot, group, column)];
    if (before == block) {
        return;
    }
    require(self->change_count < self->change_max);
    actor_executor_change_t *change = &self->changes[self->change_count++];
    change->slot = slot;
    change->group = group;
    change->column = column;
    change->before = before;
    cell_write(self, slot, group, column, block);
}

void
actor_executor_tables_drop(actor_executor_tables_t *self, uint32_t slot)
{
    require(slot >= 1 && slot <= self->slot_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        run_t *run = &self->runs[(size_t)slot * self->group_count + g];
        uint32_t used = run->used;
        for (uint32_t c = 0; c < used; c++) {
            actor_executor_tables_set(self, slot, g, c, 0);
        }
        run->used = 0;
    }
}

void
actor_executor_tables_rollback(actor_executor_tables_t *self)
{
    while (self->change_count > 0) {
        const actor_executor_change_t *change = &self->changes[--self->change_count];
        cell_write(self, change->slot, change->group, change->column, change->before);
    }
}

const actor_executor_change_t *
actor_executor_tables_changes(const actor_executor_tables_t *self, uint32_t *count_p)
{
    *count_p = self->change_count;
    return self->changes;
}

uint32_t
actor_executor_tables_get(const actor_executor_tables_t *self, uint32_t slot, uint32_t group,
                          uint32_t column)
{
    require(slot >= 1 && slot <= self->slot_count);
    require(group < self->group_count);
    require(column < self->groups[group].column_count);
    return self->cells[cell_index(self, slot, group, column)];
}

const uint32_t *
actor_executor_tables_row(const actor_executor_tables_t *self, uint32_t slot, uint32_t group,
                          uint32_t *count_p)
{
    require(slot >= 1 && slot <= self->slot_count);
    require(group < self->group_count);
    *count_p = self->runs[(size_t)slot * self->group_count + group].used;
    return &self->cells[cell_index(self, slot, group, 0)];
}

uint32_t
actor_executor_tables_missing(actor_executor_tables_t *self, uint32_t slot, uint32_t group,
                              uint32_t begin, uint32_t end)
{
    require(end <= self->groups[group].column_count);
    run_t *run = &self->runs[(size_t)slot * self->group_count + group];
    if (begin >= end || (begin >= run->begin && end <= run->end)) {
        return UINT32_MAX;
    }
    const uint32_t *cells = &self->cells[cell_index(self, slot, group, 0)];
    for (uint32_t c = begin; c < end; c++) {
        if (cells[c] == 0) {
            return c;
        }
    }
    run->begin = begin;
    run->end = end;
    return UINT32_MAX;
}

uint32_t
actor_executor_tables_references(const actor_executor_tables_t *self, uint32_t group,
                                 uint32_t block)
{
    require(group < self->group_count);
    require(block < self->groups[group].block_count);
    return self->references[self->reference_at[group] + block];
}

bool
actor_executor_tables_exclusive(const actor_executor_tables_t *self, uint32_t group, uint32_t block)
{
    require(block != 0);
    if (actor_executor_tables_references(self, group, block) != 1) {
        return false;
    }
    return self->parent_groups == NULL || self->parent_groups[parent_of(self, group, block)] == 1;
}

uint64_t
actor_executor_tables_digest(const actor_executor_tables_t *self)
{
    return self->digest;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* `used` is packed, though cells below it may be empty: the device is sent so many. */
void
actor_executor_tables_save(const actor_executor_tables_t *self, uint32_t slot, proto_pack_t *out)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t used = 0;
        const uint32_t *row = actor_executor_tables_row(self, slot, g, &used);
        proto_pack_u32(out, used);
        proto_pack_u32_array(out, row, used);
    }
}

void
actor_executor_tables_load(actor_executor_tables_t *self, uint32_t slot, proto_unpack_t *in)
{
    require(slot >= 1 && slot <= self->slot_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t used = proto_unpack_u32_max(in, self->groups[g].column_count);
        for (uint32_t c = 0; c < used && !in->failed; c++) {
            uint32_t block = proto_unpack_u32_max(in, self->groups[g].block_count - 1);
            if (block != 0) {
                cell_write(self, slot, g, c, block);
            }
        }
        self->runs[(size_t)slot * self->group_count + g].used = used;
    }
}

static void
check_slot(const actor_executor_tables_t *self, uint32_t slot, uint64_t *digest, uint64_t *held)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        const run_t *run = &self->runs[(size_t)slot * self->group_count + g];
        require(run->begin <= run->end);
        require(run->end <= self->groups[g].column_count);
        for (uint32_t c = 0; c < self->groups[g].column_count; c++) {
            uint64_t index = cell_index(self, slot, g, c);
            uint32_t block = self->cells[index];
            require(block < self->groups[g].block_count);
            require(block == 0 || slot != 0);
            require(block == 0 || c < run->used);
            require(block != 0 || c < run->begin || c >= run->end);
            *digest ^= block != 0 ? mix((index << 32) | block) : 0;
            /* A sum in which every block weighs differently stands for its counter. */
            *held += block != 0 ? mix(self->reference_at[g] + block + 1) : 0;
        }
    }
}

void
actor_executor_tables_check(const actor_executor_tables_t *self)
{
    uint64_t digest = 0;
    uint64_t held = 0;
    uint64_t counted = 0;
    for (uint32_t slot = 0; slot <= self->slot_count; slot++) {
        check_slot(self, slot, &digest, &held);
    }
    require(digest == self->digest);
    for (uint64_t i = 0; i < self->reference_count; i++) {
        counted += self->references[i] * mix(i + 1);
    }
    require(counted == held);
    for (uint32_t g = 0; g < self->group_count; g++) {
        require(self->references[self->reference_at[g]] == 0);
    }
    if (self->parent_groups == NULL) {
        return;
    }
    for (uint32_t p = 0; p < self->parent_count; p++) {
        uint32_t groups = 0;
        for (uint32_t g = 0; g < self->group_count; g++) {
            groups += self->parent_cells[(size_t)g * self->parent_count + p] != 0;
        }
        require(groups == self->parent_groups[p]);
    }
}
