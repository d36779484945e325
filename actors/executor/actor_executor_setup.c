#include <stdio.h>
#include <stdlib.h>

#include "actor_executor_state.h"

static proto_text_t
keep_text(char *room, proto_text_t text)
{
    uint32_t size = text.size_bytes < PROTO_TEXT_LEN_MAX ? text.size_bytes : PROTO_TEXT_LEN_MAX;
    if (size > 0) {
        memcpy(room, text.data, size);
    }
    return (proto_text_t){room, size};
}

static proto_column_u32_t
keep_column(uint32_t *room, proto_column_u32_t column)
{
    for (uint32_t i = 0; i < column.count; i++) {
        room[i] = column.data[i];
    }
    return (proto_column_u32_t){room, column.count};
}

/* DEVICE_READY is EXECUTOR_INFO with another number. */
static void
keep_info(actor_executor_core_t *self, const proto_device_ready_t *ready)
{
    proto_executor_info_t *info = &self->info;
    _Static_assert(sizeof *info == sizeof *ready, "one field list");
    memcpy(info, ready, sizeof *info);
    info->model_name = keep_text(self->info_text[0], ready->model_name);
    info->fingerprint = keep_text(self->info_text[1], ready->fingerprint);
    info->group_kinds = keep_column(self->info_columns[0], ready->group_kinds);
    info->group_granularities = keep_column(self->info_columns[1], ready->group_granularities);
    info->group_windows = keep_column(self->info_columns[2], ready->group_windows);
    info->group_packings = keep_column(self->info_columns[3], ready->group_packings);
    if (ready->page_hash_key.size_bytes == PROTO_HASH_SIZE_BYTES) {
        memcpy(self->page_hash_key, ready->page_hash_key.data, PROTO_HASH_SIZE_BYTES);
    }
    info->page_hash_key = (proto_bytes_t){self->page_hash_key, PROTO_HASH_SIZE_BYTES};
}

/* Checks the device's sizes against what was set aside for them. */
static bool
info_fits(actor_executor_core_t *self, char *detail, size_t size_bytes)
{
    const proto_executor_info_t *info = &self->info;
    uint32_t groups = info->group_kinds.count;
    const char *what = NULL;
    uint64_t value = 0;
    uint64_t limit = 0;
    if (info->slot_count == 0 || info->slot_count > self->limits.slot_count_max) {
        what = "slots", value = info->slot_count, limit = self->limits.slot_count_max;
    } else if (info->model_len_max == 0 || info->model_len_max > self->limits.model_len_max) {
        what = "tokens of a request", value = info->model_len_max;
        limit = self->limits.model_len_max;
    } else if (info->step_tokens_max == 0 || info->step_tokens_max > self->limits.step_tokens_max) {
        what = "tokens of a step", value = info->step_tokens_max;
        limit = self->limits.step_tokens_max;
    } else if (info->decode_width == 0 || info->decode_width > 16 ||
               info->prefix_granularity == 0 || info->parent_count < 2 || info->vocab_size == 0) {
        what = "decode width, page, parent or vocabulary size", value = 0, limit = 1;
    } else if (groups == 0 || groups > PROTO_GROUPS_MAX ||
               info->group_granularities.count != groups || info->group_windows.count != groups ||
               info->group_packings.count != groups) {
        what = "cache groups", value = groups, limit = PROTO_GROUPS_MAX;
    }
    if (what != NULL) {
        (void)snprintf(detail, size_bytes,
                       "the device has %llu %s; the executor was started for at most %llu",
                       (unsigned long long)value, what, (unsigned long long)limit);
    }
    return what == NULL;
}

/* Derives the groups' tables; STATUS_ERR_TOO_LARGE if they cannot be described by one plan. */
static proto_status_t
make_groups(actor_executor_core_t *self)
{
    const proto_executor_info_t *info = &self->info;
    uint64_t cells = 0;
    self->group_count = info->group_kinds.count;
    for (uint32_t g = 0; g < self->group_count; g++) {
        actor_executor_group_t *group = &self->groups[g];
        uint32_t kind = info->group_kinds.data[g];
        group->granularity = info->group_granularities.data[g];
        group->window = info->group_windows.data[g];
        group->packing = info->group_packings.data[g];
        if (kind > ACTOR_EXECUTOR_GROUP_STATE || group->granularity == 0 ||
            group->granularity > PROTO_TOKENS_MAX || group->packing == 0 ||
            (kind == ACTOR_EXECUTOR_GROUP_SLIDING && group->window == 0)) {
            return STATUS_ERR_CONFIG;
        }
        group->kind = (actor_executor_group_kind_t)kind;
        /* The last decode of a wide row may reach beyond the longest request. */
        uint32_t positions = info->model_len_max + info->decode_width - 1;
        group->column_count = (positions + group->granularity - 1) / group->granularity;
        uint64_t blocks = 1 + (uint64_t)(info->parent_count - 1) * group->packing;
        if (blocks > PROTO_BLOCKS_MAX) {
            return STATUS_ERR_TOO_LARGE;
        }
        group->block_count = (uint32_t)blocks;
        cells += group->column_count;
    }
    /* A launch with the drops of a full plan, its patches and its clears must fit a blob. */
    return cells * (info->slot_count + 1) <= CELLS_MAX ? STATUS_OK : STATUS_ERR_TOO_LARGE;
}

static proto_status_t
make_stores(actor_executor_core_t *self)
{
    const proto_executor_info_t *info = &self->info;
    actor_executor_tables_options_t options = {.slot_count = info->slot_count,
                                               .group_count = self->group_count,
                                               .groups = self->groups,
                                               .parent_count = info->parent_count};
    proto_status_t status = actor_executor_tables_new(&options, &self->tables);
    if (status != STATUS_OK) {
        return status;
    }
    size_t rows = (size_t)info->slot_count + 1;
    size_t patches = 3 * (size_t)actor_executor_tables_cell_count(self->tables);
    executor_launch_room_t *launch = &self->launch;
    executor_hash_room_t *hashes = &self->hashes;
    hashes->count_max = 2 * info->slot_count + info->step_tokens_max / info->prefix_granularity;
    self->slots = calloc(rows, sizeof *self->slots);
    self->tokens = calloc(rows * info->model_len_max, sizeof *self->tokens);
    self->sampling = calloc(rows, SAMPLING_SIZE_MAX);
    launch->tokens = calloc(info->step_tokens_max, sizeof *launch->tokens);
    launch->next_ids = calloc(info->slot_count, sizeof *launch->next_ids);
    launch->patch_slots = calloc(patches, sizeof *launch->patch_slots);
    launch->patch_groups = calloc(patches, sizeof *launch->patch_groups);
    launch->patch_columns = calloc(patches, sizeof *launch->patch_columns);
    launch->patch_counts = calloc(patches, sizeof *launch->patch_counts);
    launch->patch_blocks = calloc(patches, sizeof *launch->patch_blocks);
    hashes->rows = calloc(hashes->count_max, sizeof *hashes->rows);
    hashes->pages = calloc(hashes->count_max, sizeof *hashes->pages);
    hashes->bytes = calloc(hashes->count_max, PROTO_HASH_SIZE_BYTES);
    bool complete = self->slots != NULL && self->tokens != NULL && self->sampling != NULL &&
                    launch->tokens != NULL && launch->next_ids != NULL &&
                    launch->patch_slots != NULL && launch->patch_groups != NULL &&
                    launch->patch_columns != NULL && launch->patch_counts != NULL &&
                    launch->patch_blocks != NULL && hashes->rows != NULL && hashes->pages != NULL &&
                    hashes->bytes != NULL;
    for (uint32_t i = 0; i < FLIGHTS_MAX; i++) {
        self->flights[i].rows = calloc(rows, sizeof *self->flights[i].rows);
        complete = complete && self->flights[i].rows != NULL;
    }
    return complete ? STATUS_OK : STATUS_ERR_NO_MEMORY;
}

proto_status_t
actor_executor_stores_make(actor_executor_core_t *self, const proto_device_ready_t *ready,
                           char *detail, size_t size_bytes)
{
    keep_info(self, ready);
    if (!info_fits(self, detail, size_bytes)) {
        return STATUS_ERR_CONFIG;
    }
    proto_status_t status = make_groups(self);
    if (status == STATUS_OK) {
        status = make_stores(self);
    }
    if (status != STATUS_OK) {
        (void)snprintf(detail, size_bytes, "no room for the tables of %u requests of %u tokens: %s",
                       self->info.slot_count, self->info.model_len_max, proto_status_text(status));
    }
    return status == STATUS_ERR_TOO_LARGE ? STATUS_ERR_CONFIG : status;
}

void
actor_executor_stores_free(actor_executor_core_t *self)
{
    for (uint32_t i = 0; i < FLIGHTS_MAX; i++) {
        free(self->flights[i].rows);
    }
    free(self->hashes.bytes);
    free(self->hashes.pages);
    free(self->hashes.rows);
    free(self->launch.patch_blocks);
    free(self->launch.patch_counts);
    free(self->launch.patch_columns);
    free(self->launch.patch_groups);
    free(self->launch.patch_slots);
    free(self->launch.tokens);
    free(self->launch.next_ids);
    free(self->sampling);
    free(self->tokens);
    free(self->slots);
    actor_executor_tables_destroy(&self->tables);
}
