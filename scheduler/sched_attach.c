/* An executor comes and goes: everything that is sized by what it has. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched_internal.h"

static proto_status_t __attribute__((format(printf, 3, 4)))
refuse_info(proto_error_t *error, proto_status_t status, const char *format, ...)
{
    if (error == NULL) {
        return status;
    }
    va_list list;
    va_start(list, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is one line above */
    (void)vsnprintf(error->detail, sizeof error->detail, format, list);
    va_end(list);
    return status;
}

static proto_status_t
set_group(sched_core_t *self, const proto_executor_info_t *info, uint32_t g, proto_error_t *error)
{
    sched_group_t *group = &self->groups[g];
    group->kind = info->group_kinds.data[g];
    group->granularity = info->group_granularities.data[g];
    group->window = info->group_windows.data[g];
    group->packing = info->group_packings.data[g];
    if (group->kind > SCHED_GROUP_STATE) {
        return refuse_info(error, STATUS_ERR_UNSUPPORTED,
                           "cache group %u is of kind %u; full (0), sliding (1) and state (2) are "
                           "supported",
                           g, group->kind);
    }
    if (group->granularity == 0 || self->page_tokens % group->granularity != 0) {
        return refuse_info(error, STATUS_ERR_CONFIG,
                           "cache group %u: granularity %u does not divide the page of %u tokens",
                           g, group->granularity, self->page_tokens);
    }
    if (group->packing == 0 || group->packing > SCHED_PACKING_MAX) {
        return refuse_info(error, STATUS_ERR_CONFIG, "cache group %u: packing %u is not 1..%d", g,
                           group->packing, SCHED_PACKING_MAX);
    }
    uint64_t blocks = 1 + (uint64_t)(self->parent_count - 1) * group->packing;
    if (blocks > PROTO_BLOCKS_MAX) {
        return refuse_info(error, STATUS_ERR_UNSUPPORTED,
                           "cache group %u: %llu blocks, the limit is %d", g,
                           (unsigned long long)blocks, PROTO_BLOCKS_MAX);
    }
    if (group->kind == SCHED_GROUP_SLIDING && group->window == 0) {
        return refuse_info(error, STATUS_ERR_CONFIG, "cache group %u: a window of 0 tokens", g);
    }
    if (group->kind == SCHED_GROUP_STATE && self->step_tokens_max < self->page_tokens) {
        return refuse_info(error, STATUS_ERR_CONFIG,
                           "cache group %u holds states, which are kept after whole pages: a step "
                           "of %u tokens must hold a page of %u",
                           g, self->step_tokens_max, self->page_tokens);
    }
    if (group->kind == SCHED_GROUP_STATE) {
        group->window = SCHED_STATE_WINDOW;
    }
    self->has_full = self->has_full || group->kind == SCHED_GROUP_FULL;
    self->has_windows = self->has_windows || group->kind != SCHED_GROUP_FULL;
    self->has_state = self->has_state || group->kind == SCHED_GROUP_STATE;
    group->page_blocks = self->page_tokens / group->granularity;
    /* The last row of a wide executor may reach beyond the longest request. */
    group->columns_max = sched_divide_up(self->model_len_max + self->width - 1, group->granularity);
    group->column_offset = self->table_stride;
    self->table_stride += group->columns_max;
    return STATUS_OK;
}

static proto_status_t
set_limits(sched_core_t *self, const proto_executor_info_t *info, proto_error_t *error)
{
    self->slot_count = info->slot_count < self->options.slot_count_max
                           ? info->slot_count
                           : self->options.slot_count_max;
    self->step_tokens_max = info->step_tokens_max;
    self->width = info->decode_width;
    self->drafts = (sched_drafts_t){.is_told = false};
    self->step_count_max = 1 + (info->overlap_depth_max < self->options.overlap_depth_max
                                    ? info->overlap_depth_max
                                    : self->options.overlap_depth_max);
    if (self->options.full_plans) {
        /* If the plan before it is refused, a full plan is applied all the same. */
        self->step_count_max = 1;
    }
    self->page_tokens = info->prefix_granularity;
    self->model_len_max = info->model_len_max;
    self->parent_count = info->parent_count;
    self->group_count = info->group_kinds.count;
    self->table_stride = 0;
    self->has_windows = false;
    self->has_full = false;
    self->has_state = false;
    if (self->slot_count == 0 || self->step_tokens_max == 0 || self->width == 0 ||
        self->page_tokens == 0 || self->model_len_max < 2 || self->parent_count < 2) {
        return refuse_info(error, STATUS_ERR_CONFIG,
                           "slots %u, step tokens %u, width %u, page %u, length %u, parents %u: "
                           "each must be positive, the last two at least 2",
                           info->slot_count, info->step_tokens_max, info->decode_width,
                           info->prefix_granularity, info->model_len_max, info->parent_count);
    }
    if (self->step_tokens_max < self->width) {
        return refuse_info(error, STATUS_ERR_CONFIG, "a step of %u tokens holds no row of %u",
                           self->step_tokens_max, self->width);
    }
    if (self->group_count == 0 || self->group_count > PROTO_GROUPS_MAX ||
        info->group_granularities.count != self->group_count ||
        info->group_windows.count != self->group_count ||
        info->group_packings.count != self->group_count) {
        return refuse_info(error, STATUS_ERR_CONFIG, "cache groups: columns of %u, %u, %u and %u",
                           info->group_kinds.count, info->group_granularities.count,
                           info->group_windows.count, info->group_packings.count);
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        proto_status_t status = set_group(self, info, g, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (self->table_stride > SCHED_PLAN_BLOCKS_MAX / 2) {
        return refuse_info(error, STATUS_ERR_CONFIG, "tables of %u columns are too wide",
                           self->table_stride);
    }
    return STATUS_OK;
}

/* Zeroed memory of the attached executor; NULL if there is none, which sched_free_executor() then
 * cleans up after. */
static void *
take_memory(sched_core_t *self, size_t count, size_t size_bytes)
{
    if (self->owned_failed) {
        return NULL;
    }
    require(self->owned_count < SCHED_OWNED_MAX);
    size_t bytes = (count * size_bytes + 63) / 64 * 64;
    void *memory = calloc(1, bytes + 64);
    if (memory == NULL) {
        self->owned_failed = true;
        return NULL;
    }
    self->owned[self->owned_count++] = memory;
    return (void *)(((uintptr_t)memory + 63) / 64 * 64); /* a slot is one cache line */
}

static void
allocate_plan(sched_core_t *self)
{
    sched_builder_t *plan = &self->plan;
    size_t rows = self->slot_count;
    self->dirty_max = 4 * self->slot_count * self->group_count + 256;
    self->dirty = take_memory(self, self->dirty_max, sizeof *self->dirty);
    uint32_t patches = 4 * self->slot_count * self->group_count + self->dirty_max + 64;
    plan->patch_max = patches < SCHED_PLAN_PATCHES_MAX ? patches : SCHED_PLAN_PATCHES_MAX;
    uint64_t blocks = 2 * (uint64_t)rows * self->table_stride + self->dirty_max + 64;
    plan->block_max = blocks < SCHED_PLAN_BLOCKS_MAX ? (uint32_t)blocks : SCHED_PLAN_BLOCKS_MAX;
    plan->clear_max = plan->block_max;
    plan->release_slots = take_memory(self, rows, sizeof *plan->release_slots);
    plan->patch_slots = take_memory(self, plan->patch_max, sizeof *plan->patch_slots);
    plan->patch_groups = take_memory(self, plan->patch_max, sizeof *plan->patch_groups);
    plan->patch_columns = take_memory(self, plan->patch_max, sizeof *plan->patch_columns);
    plan->patch_counts = take_memory(self, plan->patch_max, sizeof *plan->patch_counts);
    plan->patch_blocks = take_memory(self, plan->block_max, sizeof *plan->patch_blocks);
    plan->clear_groups = take_memory(self, plan->clear_max, sizeof *plan->clear_groups);
    plan->clear_blocks = take_memory(self, plan->clear_max, sizeof *plan->clear_blocks);
    plan->extend_slots = take_memory(self, rows, sizeof *plan->extend_slots);
    plan->extend_begins = take_memory(self, rows, sizeof *plan->extend_begins);
    plan->extend_lengths = take_memory(self, rows, sizeof *plan->extend_lengths);
    plan->extend_samples = take_memory(self, rows, sizeof *plan->extend_samples);
    plan->decode_slots = take_memory(self, rows, sizeof *plan->decode_slots);
    for (uint32_t i = 0; i < SCHED_STEPS_MAX; i++) {
        self->steps[i].rows = take_memory(self, rows, sizeof *self->steps[i].rows);
        self->steps[i].releases = take_memory(self, rows, sizeof *self->steps[i].releases);
    }
}

static void
allocate_slots(sched_core_t *self)
{
    size_t rows = (size_t)self->slot_count + 1;
    self->pages_max = self->model_len_max / self->page_tokens + 1;
    self->slots = take_memory(self, rows, sizeof *self->slots);
    self->spans = take_memory(self, rows, sizeof *self->spans);
    self->extents = take_memory(self, rows * self->group_count, sizeof *self->extents);
    self->tables = take_memory(self, rows * self->table_stride, sizeof *self->tables);
    self->hashes = take_memory(self, rows * self->pages_max, PROTO_HASH_SIZE_BYTES);
    self->scratch = take_memory(self, self->table_stride, sizeof *self->scratch);
    self->leaving = take_memory(self, rows, sizeof *self->leaving);
    self->row_requests = take_memory(self, rows, sizeof *self->row_requests);
    self->row_owners = take_memory(self, rows, sizeof *self->row_owners);
    self->row_indices = take_memory(self, rows, sizeof *self->row_indices);
    self->row_counts = take_memory(self, rows, sizeof *self->row_counts);
    self->check_holders = take_memory(self, self->block_count, sizeof *self->check_holders);
    self->loan_max = self->options.loan_count_max;
    if (self->loan_max > 0) {
        size_t loans = self->loan_max;
        self->loans = take_memory(self, loans, sizeof *self->loans);
        self->loan_extents =
            take_memory(self, loans * self->group_count, sizeof *self->loan_extents);
        self->loan_tables = take_memory(self, loans * self->table_stride, sizeof(uint32_t));
        self->loan_hashes = take_memory(self, loans * self->pages_max, PROTO_HASH_SIZE_BYTES);
    }
    self->run_groups = take_memory(self, self->table_stride, sizeof *self->run_groups);
    self->run_columns = take_memory(self, self->table_stride, sizeof *self->run_columns);
    self->run_counts = take_memory(self, self->table_stride, sizeof *self->run_counts);
    self->run_blocks = take_memory(self, self->table_stride, sizeof *self->run_blocks);
    self->run_generations = take_memory(self, self->table_stride, sizeof *self->run_generations);
    sched_list_t *lists[] = {&self->free_slots, &self->decoding,  &self->prefilling,
                             &self->retracted,  &self->releasing, &self->holed};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        lists[i]->items = take_memory(self, rows, sizeof *lists[i]->items);
        lists[i]->count = 0;
    }
}

void
sched_free_executor(sched_core_t *self)
{
    for (uint32_t i = 0; i < self->owned_count; i++) {
        free(self->owned[i]);
    }
    self->owned_count = 0;
    self->owned_failed = false;
    sched_pool_destroy(&self->pool);
    memset(&self->plan, 0, sizeof self->plan);
    memset(self->steps, 0, sizeof self->steps);
    sched_list_t none = {0};
    self->free_slots = self->decoding = self->prefilling = none;
    self->retracted = self->releasing = self->holed = none;
    self->slots = NULL;
    self->loans = NULL;
    self->loan_max = 0;
    self->loan_count = 0;
    self->reserve_count = 0;
    self->dirty_count = 0;
    self->running_count = 0;
    self->step_in_flight = 0;
    self->step_first = 0;
    self->step_base = 0;
    self->admission_count = 0;
    self->admission_at = 0;
    self->stall_ticks = 0;
    self->refusal_run = 0;
    self->tick_ns = UINT64_MAX;
}

proto_status_t
sched_core_attach(sched_core_t *self, const proto_executor_info_t *info, proto_error_t *error)
{
    require(!self->attached);
    proto_status_t status = set_limits(self, info, error);
    if (status != STATUS_OK) {
        return status;
    }
    sched_pool_group_t groups[PROTO_GROUPS_MAX];
    self->block_count = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        groups[g] = (sched_pool_group_t){.granularity = self->groups[g].granularity,
                                         .packing = self->groups[g].packing};
        self->block_count += 1 + (self->parent_count - 1) * groups[g].packing;
    }
    status = sched_pool_new(self->parent_count, groups, self->group_count, &self->pool);
    if (status != STATUS_OK) {
        return refuse_info(error, status, "no pool of %u parents: %s", self->parent_count,
                           proto_status_text(status));
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        self->groups[g].base = sched_pool_base(self->pool, g);
    }
    allocate_slots(self);
    allocate_plan(self);
    if (self->owned_failed) {
        sched_free_executor(self);
        return refuse_info(error, STATUS_ERR_NO_MEMORY, "no memory for %u slots of %u columns",
                           self->slot_count, self->table_stride);
    }
    for (uint32_t slot = self->slot_count; slot > 0; slot--) {
        self->slots[slot].entry = SCHED_NONE;
        sched_list_add(self, &self->free_slots, slot);
    }
    self->attached = true;
    sched_fold(self, self->parent_count);
    return STATUS_OK;
}

/* Notes for each request of the steps in flight how many they are. */
static void
note_suspects(sched_core_t *self)
{
    uint32_t count = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < self->step_in_flight; i++) {
            const sched_step_t *step = sched_step_at(self, i);
            for (uint32_t r = 0; r < step->row_count; r++) {
                const sched_slot_t *slot = &self->slots[step->rows[r].slot];
                if (slot->serial != step->rows[r].serial) {
                    continue; /* its request ended before */
                }
                sched_entry_t *entry = &self->entries[slot->entry];
                count += pass == 0 && entry->suspects == 0 ? 1 : 0;
                entry->suspects = pass == 0 ? 1 : count;
            }
        }
    }
}

void
sched_core_detach(sched_core_t *self, proto_status_t status, const char *code)
{
    if (!self->attached) {
        return;
    }
    const char *constant = sched_code_find(code, strlen(code));
    require(constant != NULL);
    if (strcmp(code, "worker_lost") == 0) {
        note_suspects(self);
    }
    for (uint32_t i = 0; i < self->entry_count; i++) {
        sched_entry_t *entry = &self->entries[i];
        if (entry->in_use && entry->state != SCHED_STATE_FINISHED) {
            entry->retry_after_ms = SCHED_RETRY_AFTER_MS;
            sched_end(self, i, PROTO_FINISH_ERROR, status, constant);
        }
    }
    sched_free_executor(self);
    self->attached = false;
    sched_fold(self, 0);
}
