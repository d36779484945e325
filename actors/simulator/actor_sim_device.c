#include "actor_sim_device.h"

#include <stdlib.h>
#include <string.h>

#include "actor_sim_model.h"
#include "proto_require.h"

static const uint64_t SPOILED = 0xbadbadbadbadbadu; /* a cell that holds NaN */
static const uint64_t REJECTED = 0x5e1ec7ed5e1ec7u; /* what a rejected draft leaves */

typedef struct {
    uint32_t length; /* tokens behind the next decode, its input included */
    int32_t input;   /* the token that the next decode computes */
    int32_t stop_ids[ACTOR_SIM_STOP_ID_COUNT_MAX];
    uint32_t stop_id_count;
} slot_t;

typedef struct {
    proto_step_done_t done;
    uint8_t counts[ACTOR_SIM_SLOT_COUNT_MAX];
    uint8_t flags[ACTOR_SIM_SLOT_COUNT_MAX];
    uint8_t widths[ACTOR_SIM_SLOT_COUNT_MAX];
    int32_t tokens[ACTOR_SIM_SLOT_COUNT_MAX * ACTOR_SIM_WIDTH_MAX];
} step_t;

struct actor_sim_device {
    actor_sim_model_t model;
    slot_t slots[ACTOR_SIM_SLOT_COUNT_MAX + 1];
    step_t steps[ACTOR_SIM_STEP_COUNT_MAX];
    uint32_t step_first;
    uint32_t step_count;
    uint32_t column_count; /* of each group's table */
    uint32_t parent_cells;
    bool has_spoiled; /* since the last reset */
    uint32_t *tables; /* [slot_count + 1][group_count][column_count] */
    uint64_t *cells;  /* [parent_count][parent_cells] */
};

/* ---- the device ------------------------------------------------------------------------------ */

proto_status_t
actor_sim_device_new(const actor_sim_model_t *model, actor_sim_device_t **out_p)
{
    require(model->slot_count <= ACTOR_SIM_SLOT_COUNT_MAX);
    require(model->group_count >= 1 && model->group_count <= ACTOR_SIM_GROUP_COUNT_MAX);
    require(model->kinds[0] == ACTOR_SIM_FULL && model->width <= ACTOR_SIM_WIDTH_MAX);
    actor_sim_device_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->model = *model;
    for (uint32_t g = 0; g < model->group_count; g++) {
        /* Rows in flight of a request that has ended may reach beyond the longest one: what the
         * tables do not have is block 0, which nobody reads. */
        uint32_t positions = model->model_len_max + 3 * ACTOR_SIM_WIDTH_MAX;
        uint32_t columns = positions / model->granularities[g] + 2;
        uint32_t cells = model->granularities[g] * model->packings[g];
        self->column_count = columns > self->column_count ? columns : self->column_count;
        self->parent_cells = cells > self->parent_cells ? cells : self->parent_cells;
    }
    require(self->parent_cells > 0 && model->parent_count > 0);
    size_t rows = (size_t)model->slot_count + 1;
    self->tables = calloc(rows * model->group_count * self->column_count, sizeof *self->tables);
    self->cells = calloc((size_t)model->parent_count * self->parent_cells, sizeof *self->cells);
    if (self->tables == NULL || self->cells == NULL) {
        actor_sim_device_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_sim_device_destroy(actor_sim_device_t **self_p)
{
    actor_sim_device_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->tables);
    free(self->cells);
    free(self);
    *self_p = NULL;
}

static uint32_t *
table_of(actor_sim_device_t *self, uint32_t slot, uint32_t g)
{
    return self->tables + ((size_t)slot * self->model.group_count + g) * self->column_count;
}

/* The first cell of a block. */
static uint64_t *
block_cells(actor_sim_device_t *self, uint32_t g, uint32_t block)
{
    uint32_t packing = self->model.packings[g];
    uint32_t parent = block == 0 ? 0 : 1 + (block - 1) / packing;
    uint32_t within = block == 0 ? 0 : (block - 1) % packing;
    require(parent < self->model.parent_count);
    return self->cells + (size_t)parent * self->parent_cells +
           (size_t)within * self->model.granularities[g];
}

static uint64_t *
cell_at(actor_sim_device_t *self, uint32_t slot, uint32_t g, uint32_t position)
{
    uint32_t granularity = self->model.granularities[g];
    uint32_t block = table_of(self, slot, g)[position / granularity];
    return block_cells(self, g, block) + position % granularity;
}

void
actor_sim_device_setup(actor_sim_device_t *self, const proto_slot_setup_t *setup)
{
    require(setup->slot >= 1 && setup->slot <= self->model.slot_count);
    slot_t *slot = &self->slots[setup->slot];
    memset(slot, 0, sizeof *slot);
    memset(table_of(self, setup->slot, 0), 0,
           (size_t)self->model.group_count * self->column_count * sizeof(uint32_t));
    proto_sampling_t sampling;
    if (proto_sampling_decode(setup->sampling, &sampling, NULL) == STATUS_OK) {
        slot->stop_id_count = (uint32_t)(sampling.stop_ids.size_bytes / sizeof(int32_t));
        require(slot->stop_id_count <= ACTOR_SIM_STOP_ID_COUNT_MAX);
        if (slot->stop_id_count > 0) {
            memcpy(slot->stop_ids, sampling.stop_ids.data, sampling.stop_ids.size_bytes);
        }
    }
    slot->length = setup->tokens.count;
    if (setup->computed > 0) {
        require(setup->computed + 1 == setup->tokens.count);
        slot->input = setup->tokens.data[setup->computed];
    }
}

static void
patch_tables(actor_sim_device_t *self, const proto_step_launch_t *launch)
{
    const uint32_t *blocks = launch->patch_blocks.data;
    for (uint32_t i = 0; i < launch->patch_slots.count; i++) {
        uint32_t g = launch->patch_groups.data[i];
        uint32_t column = launch->patch_columns.data[i];
        uint32_t count = launch->patch_counts.data[i];
        require(launch->patch_slots.data[i] <= self->model.slot_count);
        require(g < self->model.group_count && column + count <= self->column_count);
        uint32_t *table = table_of(self, launch->patch_slots.data[i], g);
        memcpy(table + column, blocks, count * sizeof *table);
        blocks += count;
    }
    for (uint32_t i = 0; i < launch->clear_blocks.count; i++) {
        uint32_t g = launch->clear_groups.data[i];
        memset(block_cells(self, g, launch->clear_blocks.data[i]), 0,
               self->model.granularities[g] * sizeof(uint64_t));
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

/* The states that a row of this slot goes on from; those of other groups are not used. */
static void
read_states(actor_sim_device_t *self, uint32_t slot, uint32_t begin, uint64_t *states)
{
    for (uint32_t g = 0; g < self->model.group_count; g++) {
        states[g] = actor_sim_state_start(g);
        if (self->model.kinds[g] == ACTOR_SIM_STATE && begin > 0) {
            uint32_t column = (begin - 1) / self->model.granularities[g];
            states[g] = *block_cells(self, g, table_of(self, slot, g)[column]);
        }
    }
}

/* Leaves the states after `end` tokens; of a decoding row, garbage in the columns up to the one of
 * its last draft. */
static void
write_states(actor_sim_device_t *self, uint32_t slot, uint32_t end, uint32_t draft_end,
             const uint64_t *states)
{
    for (uint32_t g = 0; g < self->model.group_count; g++) {
        if (self->model.kinds[g] != ACTOR_SIM_STATE) {
            continue;
        }
        uint32_t granularity = self->model.granularities[g];
        uint32_t column = (end - 1) / granularity;
        for (uint32_t c = column; c <= (draft_end - 1) / granularity; c++) {
            uint64_t *cells = block_cells(self, g, table_of(self, slot, g)[c]);
            cells[0] = c == column ? states[g] : REJECTED;
            for (uint32_t i = 1; i < granularity; i++) {
                cells[i] = SPOILED; /* as keys and values it would be no number */
            }
            self->has_spoiled = true;
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Computes one position: reads the one before, writes its own; the states go on. */
static void
write_position(actor_sim_device_t *self, uint32_t slot, uint32_t position, int32_t token,
               uint64_t *states)
{
    uint64_t before = position > 0 ? *cell_at(self, slot, 0, position - 1) : ACTOR_SIM_CHAIN_START;
    uint64_t chain = actor_sim_chain_next(before, token);
    for (uint32_t g = 0; g < self->model.group_count; g++) {
        if (self->model.kinds[g] == ACTOR_SIM_STATE) {
            states[g] = actor_sim_state_next(states[g], token);
        } else {
            *cell_at(self, slot, g, position) = actor_sim_cell(chain, g);
        }
    }
}

/* The token that follows position `last`, from everything that its layers read. */
static int32_t
sample(actor_sim_device_t *self, uint32_t slot, uint32_t last, const uint64_t *states)
{
    uint64_t sums[ACTOR_SIM_GROUP_COUNT_MAX] = {0};
    for (uint32_t g = 0; g < self->model.group_count; g++) {
        if (self->model.kinds[g] == ACTOR_SIM_STATE) {
            sums[g] = states[g];
            continue;
        }
        uint32_t granularity = self->model.granularities[g];
        uint32_t first = actor_sim_first_read(&self->model, g, last);
        uint32_t end = (last / granularity + 1) * granularity;
        for (uint32_t position = first / granularity * granularity; position < end; position++) {
            uint64_t cell = *cell_at(self, slot, g, position);
            if (position >= first && position <= last) {
                sums[g] += actor_sim_weight(cell, position);
            } else if (cell == SPOILED && self->model.reads_whole_blocks) {
                sums[g] += cell;
            }
        }
    }
    return actor_sim_token(sums, &self->model);
}

/* A token of a row's output. */
static void
give(actor_sim_device_t *self, step_t *step, uint32_t row, uint32_t slot_index, int32_t token)
{
    slot_t *slot = &self->slots[slot_index];
    slot->input = token;
    step->tokens[step->done.tokens.count++] = token;
    step->counts[row]++;
    for (uint32_t i = 0; i < slot->stop_id_count; i++) {
        if (slot->stop_ids[i] == token) {
            step->flags[row] |= PROTO_ROW_STOP_TOKEN;
        }
    }
}

/* A forward that went wrong: what it computed last is garbage. */
static void
spoil(actor_sim_device_t *self, uint32_t slot, uint32_t position, uint64_t *states)
{
    for (uint32_t g = 0; g < self->model.group_count; g++) {
        if (self->model.kinds[g] == ACTOR_SIM_STATE) {
            states[g] = SPOILED;
        } else {
            *cell_at(self, slot, g, position) = SPOILED;
        }
    }
    self->has_spoiled = true;
}

static void
run_extends(actor_sim_device_t *self, step_t *step, const proto_step_launch_t *launch,
            uint32_t nan_permille, actor_sim_random_t *random)
{
    const int32_t *tokens = launch->extend_tokens.data;
    for (uint32_t row = 0; row < launch->extend_slots.count; row++) {
        uint32_t slot = launch->extend_slots.data[row];
        uint32_t begin = launch->extend_begins.data[row];
        uint32_t end = begin + launch->extend_lengths.data[row];
        uint64_t states[ACTOR_SIM_GROUP_COUNT_MAX] = {0};
        read_states(self, slot, begin, states);
        for (uint32_t position = begin; position < end; position++) {
            write_position(self, slot, position, *tokens++, states);
        }
        if (nan_permille > 0 && actor_sim_random_chance(random, nan_permille)) {
            spoil(self, slot, end - 1, states);
            step->flags[row] |= PROTO_ROW_NAN;
        }
        write_states(self, slot, end, end, states);
        if (launch->extend_samples.data[row] != 0) {
            self->slots[slot].length = end + 1;
            give(self, step, row, slot, sample(self, slot, end - 1, states));
        }
    }
}

/* What drafts that were not accepted leave at positions [begin, end). */
static void
reject(actor_sim_device_t *self, uint32_t slot, uint32_t begin, uint32_t end)
{
    for (uint32_t g = 0; g < self->model.group_count; g++) {
        for (uint32_t p = begin; self->model.kinds[g] != ACTOR_SIM_STATE && p < end; p++) {
            *cell_at(self, slot, g, p) = REJECTED;
        }
    }
}

static void
run_decode(actor_sim_device_t *self, step_t *step, uint32_t row, uint32_t slot_index, bool is_nan)
{
    slot_t *slot = &self->slots[slot_index];
    uint32_t begin = slot->length - 1;
    uint32_t end = begin + actor_sim_width(&self->model);
    uint64_t states[ACTOR_SIM_GROUP_COUNT_MAX] = {0};
    read_states(self, slot_index, begin, states);
    write_position(self, slot_index, begin, slot->input, states);
    uint32_t kept = begin + actor_sim_accepted(*cell_at(self, slot_index, 0, begin), &self->model);
    if (is_nan) {
        spoil(self, slot_index, begin, states);
        step->flags[row] |= PROTO_ROW_NAN;
    }
    slot->length++;
    give(self, step, row, slot_index, sample(self, slot_index, begin, states));
    uint32_t position = begin + 1;
    for (; position < kept && step->flags[row] == 0; position++) {
        write_position(self, slot_index, position, slot->input, states);
        slot->length++;
        give(self, step, row, slot_index, sample(self, slot_index, position, states));
    }
    reject(self, slot_index, position, end);
    write_states(self, slot_index, position, end, states);
}

static void
run_decodes(actor_sim_device_t *self, step_t *step, const proto_step_launch_t *launch,
            uint32_t nan_permille, actor_sim_random_t *random)
{
    for (uint32_t i = 0; i < launch->decode_slots.count; i++) {
        bool is_nan = nan_permille > 0 && actor_sim_random_chance(random, nan_permille);
        run_decode(self, step, launch->extend_slots.count + i, launch->decode_slots.data[i],
                   is_nan);
    }
}

bool
actor_sim_device_launch(actor_sim_device_t *self, const proto_step_launch_t *launch,
                        uint32_t nan_permille, actor_sim_random_t *random)
{
    if (self->step_count == ACTOR_SIM_STEP_COUNT_MAX) {
        return false;
    }
    step_t *step = &self->steps[(self->step_first + self->step_count) % ACTOR_SIM_STEP_COUNT_MAX];
    uint32_t extends = launch->extend_slots.count;
    uint32_t rows = extends + launch->decode_slots.count;
    require(rows <= self->model.slot_count);
    memset(step->counts, 0, sizeof step->counts);
    memset(step->flags, 0, sizeof step->flags);
    uint32_t mode = rows == 0                         ? PROTO_STEP_IDLE
                    : launch->decode_slots.count == 0 ? PROTO_STEP_EXTEND
                    : extends == 0                    ? PROTO_STEP_DECODE_EAGER
                                                      : PROTO_STEP_MIXED;
    step->done = (proto_step_done_t){.step = launch->step,
                                     .mode = mode,
                                     .token_counts = {step->counts, rows},
                                     .row_flags = {step->flags, rows},
                                     .tokens = {step->tokens, 0},
                                     .logprob_widths = {step->widths, rows}};
    patch_tables(self, launch);
    run_extends(self, step, launch, nan_permille, random);
    run_decodes(self, step, launch, nan_permille, random);
    self->step_count++;
    return true;
}

void
actor_sim_device_copy_block(actor_sim_device_t *self, uint32_t group, uint32_t block,
                            const actor_sim_device_t *from, uint32_t from_block)
{
    require(group < self->model.group_count);
    const uint64_t *source = block_cells((actor_sim_device_t *)(uintptr_t)from, group, from_block);
    uint64_t *cells = block_cells(self, group, block);
    memcpy(cells, source, self->model.granularities[group] * sizeof *cells);
}

bool
actor_sim_device_collect(actor_sim_device_t *self, proto_step_done_t *out)
{
    if (self->step_count == 0) {
        return false;
    }
    *out = self->steps[self->step_first].done;
    self->step_first = (self->step_first + 1) % ACTOR_SIM_STEP_COUNT_MAX;
    self->step_count--;
    return true;
}

void
actor_sim_device_reset(actor_sim_device_t *self)
{
    self->step_count = 0;
    memset(self->slots, 0, sizeof self->slots);
    /* Kinder than the real one: a new scheduler cannot know which blocks a NaN has spoiled under
     * the last one (docs/debugging.md, Simulation). */
    size_t cells = (size_t)self->model.parent_count * self->parent_cells;
    for (size_t i = 0; i < cells && self->has_spoiled; i++) {
        self->cells[i] = self->cells[i] == SPOILED ? 0 : self->cells[i];
    }
    self->has_spoiled = false;
}
