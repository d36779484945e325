#include "executor_oracle.h"

#include <string.h>

static const uint32_t GRANULARITY[ORACLE_GROUPS] = {4, 4, 8};
static const uint32_t PACKING[ORACLE_GROUPS] = {1, 2, 1};
enum { WINDOW = 8 };

uint32_t
oracle_block_count(uint32_t group)
{
    return (FIXTURE_PARENTS - 1) * PACKING[group];
}

uint32_t
oracle_references(const oracle_t *self, uint32_t group, uint32_t block)
{
    uint32_t count = 0;
    for (uint32_t slot = 1; slot <= FIXTURE_SLOTS; slot++) {
        for (uint32_t c = 0; c < ORACLE_COLUMNS; c++) {
            count += self->slots[slot].table[group][c] == block;
        }
    }
    return count;
}

static bool
parent_is_foreign(const oracle_t *self, uint32_t group, uint32_t block)
{
    uint32_t parent = (block - 1) / PACKING[group];
    for (uint32_t g = 0; g < ORACLE_GROUPS; g++) {
        for (uint32_t k = 0; g != group && k < PACKING[g]; k++) {
            if (oracle_references(self, g, parent * PACKING[g] + k + 1) > 0) {
                return true;
            }
        }
    }
    return false;
}

static uint32_t
column_count(uint32_t group)
{
    return (FIXTURE_LEN_MAX + GRANULARITY[group] - 1) / GRANULARITY[group];
}

/* Token by token: is what the row at `position` reads and writes there? */
static bool
row_is_covered(const oracle_t *self, uint32_t slot, uint32_t begin, uint32_t end, bool is_extend)
{
    const oracle_slot_t *s = &self->slots[slot];
    for (uint32_t position = 0; position < end; position++) {
        bool is_in_window = position + WINDOW > begin;
        if (s->table[0][position / GRANULARITY[0]] == 0) {
            return false;
        }
        if (is_in_window && s->table[1][position / GRANULARITY[1]] == 0) {
            return false;
        }
    }
    if (begin > 0 && s->table[2][(begin - 1) / GRANULARITY[2]] == 0) {
        return false;
    }
    for (uint32_t position = begin; position < end; position++) {
        for (uint32_t g = 0; g < ORACLE_GROUPS; g++) {
            if (g == 2 && is_extend && position / GRANULARITY[2] != (end - 1) / GRANULARITY[2]) {
                continue; /* an extend leaves one state, at its end */
            }
            uint32_t block = s->table[g][position / GRANULARITY[g]];
            if (block == 0 || oracle_references(self, g, block) != 1 ||
                parent_is_foreign(self, g, block)) {
                return false;
            }
        }
    }
    return true;
}

static bool
judge_whole(const oracle_t *self, const proto_plan_t *plan)
{
    uint64_t blocks = 0;
    uint64_t tokens = plan->decode_slots.count;
    uint32_t patches = plan->patch_slots.count;
    uint32_t extends = plan->extend_slots.count;
    if (!self->is_ready || plan->step <= self->applied || plan->width != 1 ||
        self->step_count >= self->flight_max || plan->patch_groups.count != patches ||
        plan->patch_columns.count != patches || plan->patch_counts.count != patches ||
        plan->extend_begins.count != extends || plan->extend_lengths.count != extends ||
        plan->extend_samples.count != extends ||
        plan->clear_groups.count != plan->clear_blocks.count) {
        return false;
    }
    if (plan->base_step != 0 && (self->is_awaiting_full || plan->base_step != self->applied)) {
        return false;
    }
    for (uint32_t i = 0; i < patches; i++) {
        blocks += plan->patch_counts.data[i];
    }
    for (uint32_t i = 0; i < extends; i++) {
        tokens += plan->extend_lengths.data[i];
    }
    return blocks == plan->patch_blocks.count && tokens <= FIXTURE_STEP_MAX &&
           extends + plan->decode_slots.count <= FIXTURE_SLOTS;
}

static bool
judge_tables(oracle_t *self, const proto_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->release_slots.count; i++) {
        uint32_t slot = plan->release_slots.data[i];
        if (slot < 1 || slot > FIXTURE_SLOTS) {
            return false;
        }
        memset(&self->slots[slot], 0, sizeof self->slots[slot]);
    }
    for (uint32_t slot = 1; plan->base_step == 0 && slot <= FIXTURE_SLOTS; slot++) {
        memset(self->slots[slot].table, 0, sizeof self->slots[slot].table);
    }
    const uint32_t *blocks = plan->patch_blocks.data;
    for (uint32_t i = 0; i < plan->patch_slots.count; i++) {
        uint32_t slot = plan->patch_slots.data[i];
        uint32_t g = plan->patch_groups.data[i];
        uint64_t end = (uint64_t)plan->patch_columns.data[i] + plan->patch_counts.data[i];
        if (slot < 1 || slot > FIXTURE_SLOTS || self->slots[slot].request == 0 ||
            g >= ORACLE_GROUPS || end > column_count(g)) {
            return false;
        }
        for (uint32_t c = plan->patch_columns.data[i]; c < end; c++) {
            if (*blocks > oracle_block_count(g)) {
                return false;
            }
            self->slots[slot].table[g][c] = *blocks++;
        }
    }
    for (uint32_t i = 0; i < plan->clear_blocks.count; i++) {
        uint32_t g = plan->clear_groups.data[i];
        uint32_t block = plan->clear_blocks.data[i];
        if (g >= ORACLE_GROUPS || block < 1 || block > oracle_block_count(g) ||
            oracle_references(self, g, block) > 1) {
            return false;
        }
    }
    return true;
}

static bool
judge_rows(const oracle_t *self, const proto_plan_t *plan)
{
    bool seen[FIXTURE_SLOTS + 1] = {false};
    uint32_t extends = plan->extend_slots.count;
    for (uint32_t i = 0; i < extends + plan->decode_slots.count; i++) {
        bool is_extend = i < extends;
        uint32_t slot =
            is_extend ? plan->extend_slots.data[i] : plan->decode_slots.data[i - extends];
        if (slot < 1 || slot > FIXTURE_SLOTS || self->slots[slot].request == 0 || seen[slot]) {
            return false;
        }
        seen[slot] = true;
        const oracle_slot_t *s = &self->slots[slot];
        if (is_extend) {
            uint64_t begin = plan->extend_begins.data[i];
            uint64_t end = begin + plan->extend_lengths.data[i];
            bool samples = plan->extend_samples.data[i] != 0;
            if (s->pending > 0 || end == begin || end > s->known ||
                (samples && (end != s->known || end >= s->length_max)) ||
                (begin % FIXTURE_PAGE != 0 && begin != s->computed) ||
                (end % FIXTURE_PAGE != 0 && end != s->known) ||
                !row_is_covered(self, slot, (uint32_t)begin, (uint32_t)end, true)) {
                return false;
            }
        } else {
            uint32_t length = s->known + s->pending;
            if (!s->is_decodable || length >= s->length_max ||
                !row_is_covered(self, slot, length - 1, length, false)) {
                return false;
            }
        }
    }
    return true;
}

bool
oracle_judge(const oracle_t *self, const proto_plan_t *plan, oracle_t *after)
{
    *after = *self;
    if (!judge_whole(self, plan) || !judge_tables(after, plan) || !judge_rows(after, plan)) {
        return false;
    }
    oracle_step_t *step = &after->steps[after->step_count++];
    memset(step, 0, sizeof *step);
    step->step = plan->step;
    for (uint32_t i = 0; i < plan->extend_slots.count; i++) {
        oracle_slot_t *s = &after->slots[plan->extend_slots.data[i]];
        s->is_decodable = plan->extend_samples.data[i] != 0;
        s->pending = s->is_decodable ? 1 : 0;
        s->computed = plan->extend_begins.data[i] + plan->extend_lengths.data[i];
        step->slots[step->row_count] = plan->extend_slots.data[i];
        step->requests[step->row_count] = s->request;
        step->samples[step->row_count++] = s->is_decodable;
    }
    for (uint32_t i = 0; i < plan->decode_slots.count; i++) {
        oracle_slot_t *s = &after->slots[plan->decode_slots.data[i]];
        s->computed = s->known + s->pending;
        s->pending++;
        step->slots[step->row_count] = plan->decode_slots.data[i];
        step->requests[step->row_count] = s->request;
        step->samples[step->row_count++] = true;
    }
    after->applied = plan->step;
    after->is_awaiting_full = false;
    return true;
}

static void
device_patch(oracle_t *self, const proto_step_launch_t *launch)
{
    const uint32_t *blocks = launch->patch_blocks.data;
    for (uint32_t i = 0; i < launch->patch_slots.count; i++) {
        for (uint32_t k = 0; k < launch->patch_counts.data[i]; k++) {
            self->device_table[launch->patch_slots.data[i]][launch->patch_groups.data[i]]
                              [launch->patch_columns.data[i] + k] = *blocks++;
        }
    }
}

void
oracle_device(oracle_t *self, fixture_t *fixture, const proto_plan_t *plan)
{
    uint32_t setups = fixture_count(fixture, PROTO_KIND_SLOT_SETUP);
    ck_assert_uint_eq(actor_outbox_count(fixture->outbox), setups + 1);
    for (uint32_t i = 0; i < setups; i++) {
        const proto_slot_setup_t *setup =
            &fixture_find(fixture, PROTO_KIND_SLOT_SETUP, i)->slot_setup;
        const oracle_slot_t *s = &self->slots[setup->slot];
        ck_assert_uint_eq(setup->tokens.count, s->known);
        ck_assert_mem_eq(setup->tokens.data, s->tokens, s->known * sizeof(int32_t));
        self->device_request[setup->slot] = s->request;
        /* A device may forget the table of a slot that is set up; this one does. */
        memset(self->device_table[setup->slot], 0, sizeof self->device_table[0]);
    }
    const proto_step_launch_t *launch =
        &fixture_find(fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    ck_assert_uint_eq(launch->step, plan->step);
    ck_assert_uint_eq(launch->extend_slots.count, plan->extend_slots.count);
    ck_assert_uint_eq(launch->decode_slots.count, plan->decode_slots.count);
    ck_assert_uint_eq(launch->clear_blocks.count, plan->clear_blocks.count);
    device_patch(self, launch);
    /* The device holds the very tables of every request that it was told about. */
    for (uint32_t slot = 1; slot <= FIXTURE_SLOTS; slot++) {
        const oracle_slot_t *s = &self->slots[slot];
        if (s->request != 0 && self->device_request[slot] == s->request) {
            ck_assert_mem_eq(s->table, self->device_table[slot], sizeof s->table);
        }
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < launch->extend_slots.count; i++) {
        uint32_t slot = launch->extend_slots.data[i];
        uint32_t length = launch->extend_lengths.data[i];
        ck_assert_uint_eq(self->device_request[slot], self->slots[slot].request);
        ck_assert_uint_le(at + length, launch->extend_tokens.count);
        ck_assert_mem_eq(launch->extend_tokens.data + at,
                         self->slots[slot].tokens + launch->extend_begins.data[i],
                         length * sizeof(int32_t));
        at += length;
    }
    ck_assert_uint_eq(at, launch->extend_tokens.count);
    for (uint32_t i = 0; i < launch->decode_slots.count; i++) {
        uint32_t slot = launch->decode_slots.data[i];
        ck_assert_uint_eq(self->device_request[slot], self->slots[slot].request);
    }
}

void
oracle_done(oracle_t *self, const uint8_t *counts, const int32_t *tokens)
{
    const oracle_step_t *step = &self->steps[0];
    for (uint32_t i = 0; i < step->row_count; i++) {
        oracle_slot_t *s = &self->slots[step->slots[i]];
        if (s->request == step->requests[i] && step->samples[i]) {
            s->pending--;
            for (uint32_t k = 0; k < counts[i]; k++) {
                s->tokens[s->known++] = tokens[k];
            }
        }
        tokens += counts[i];
    }
    self->step_count--;
    self->steps[0] = self->steps[1];
}

void
oracle_drop(oracle_t *self)
{
    memset(self->slots, 0, sizeof self->slots);
    self->step_count = 0;
    self->applied = 0;
    self->is_awaiting_full = false;
}
