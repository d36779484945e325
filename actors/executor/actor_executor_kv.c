#include "actor_executor_kv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto_require.h"
#include "run_share.h"

enum { FIELDS_MAX = 1024, PARTS_MAX = FIELDS_MAX * RUN_SHARE_PART_COUNT_MAX, HANDLE_MAX = 96 };

struct actor_executor_kv {
    char handle[HANDLE_MAX];
    char ready_handle[HANDLE_MAX];
    uint32_t pages[PROTO_GROUPS_MAX];
    uint32_t layers[FIELDS_MAX];
    uint32_t rows[FIELDS_MAX];
    uint64_t offsets[FIELDS_MAX];
    uint64_t strides[FIELDS_MAX];
    uint8_t names[FIELDS_MAX];
    uint8_t dtypes[FIELDS_MAX];
    uint8_t groups[FIELDS_MAX];
    uint8_t part_counts[FIELDS_MAX];
    uint32_t extents[PARTS_MAX];
    uint32_t begins[PARTS_MAX];
    uint32_t counts[PARTS_MAX];
    uint32_t units[PARTS_MAX];
};

proto_status_t
actor_executor_kv_new(actor_executor_kv_t **out_p)
{
    actor_executor_kv_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_executor_kv_destroy(actor_executor_kv_t **self_p)
{
    require(self_p != NULL);
    free(*self_p);
    *self_p = NULL;
}

/* The form of actor_kv_map.h. */
static proto_bytes_t
write_handle(const device_share_t *share, char out[HANDLE_MAX])
{
    int length = snprintf(out, HANDLE_MAX, "%d:%d:%" PRIu64 ":%" PRIu64, (int)getpid(), share->fd,
                          share->inode, share->offset_bytes);
    require(length > 0);
    require(length < HANDLE_MAX);
    return (proto_bytes_t){(const uint8_t *)out, (size_t)length};
}

static void
put_field(actor_executor_kv_t *self, uint32_t index, const run_share_field_t *field,
          uint32_t *part_count_p)
{
    self->layers[index] = field->layer;
    self->names[index] = (uint8_t)field->name;
    self->dtypes[index] = (uint8_t)field->dtype;
    self->groups[index] = (uint8_t)field->group;
    self->rows[index] = field->rows;
    self->offsets[index] = field->page0_offset_bytes;
    self->strides[index] = field->stride_bytes;
    self->part_counts[index] = (uint8_t)field->part_count;
    for (uint32_t p = 0; p < field->part_count; p++) {
        uint32_t at = (*part_count_p)++;
        self->extents[at] = field->parts[p].extent;
        self->begins[at] = field->parts[p].begin;
        self->counts[at] = field->parts[p].count;
        self->units[at] = field->parts[p].unit_bytes;
    }
}

/* Fields by ascending layer, as a registration wants them; a plan's are few and nearly so. */
static uint32_t
put_fields(actor_executor_kv_t *self, const run_executor_t *run, const run_share_t *share)
{
    uint32_t parts = 0;
    uint32_t index = 0;
    for (uint32_t layer = 0; layer < share->layer_count; layer++) {
        for (uint32_t f = 0; f < share->field_count; f++) {
            run_share_field_t field;
            run_share_field(run, f, &field);
            if (field.layer == layer) {
                put_field(self, index++, &field, &parts);
            }
        }
    }
    require(index == share->field_count);
    return parts;
}

proto_status_t
actor_executor_kv_describe(actor_executor_kv_t *self, const run_executor_t *run,
                           proto_kv_arena_t *out)
{
    run_share_t share;
    proto_status_t status = run_share_describe(run, &share);
    if (status != STATUS_OK) {
        return status;
    }
    if (share.field_count > FIELDS_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    proto_executor_info_t info;
    run_executor_info(run, &info);
    uint32_t parts = put_fields(self, run, &share);
    uint32_t groups = info.group_kinds.count;
    for (uint32_t g = 0; g < groups; g++) {
        self->pages[g] = 1 + (info.parent_count - 1) * info.group_packings.data[g];
    }
    uint32_t fields = share.field_count;
    *out = (proto_kv_arena_t){
        .region = 1 + share.rank,
        .handle = write_handle(&share.arena, self->handle),
        .size_bytes = share.arena.size_bytes,
        .rank = share.rank,
        .rank_count = share.rank_count,
        .layer_count = share.layer_count,
        .fingerprint = info.fingerprint,
        .group_kinds = info.group_kinds,
        .group_granularities = info.group_granularities,
        .group_windows = info.group_windows,
        .group_pages = {self->pages, groups},
        .field_layers = {self->layers, fields},
        .field_names = {self->names, fields},
        .field_dtypes = {self->dtypes, fields},
        .field_groups = {self->groups, fields},
        .field_rows = {self->rows, fields},
        .field_offsets = {self->offsets, fields},
        .field_strides = {self->strides, fields},
        .field_parts = {self->part_counts, fields},
        .part_extents = {self->extents, parts},
        .part_begins = {self->begins, parts},
        .part_counts = {self->counts, parts},
        .part_units = {self->units, parts},
        .ready_kind = 1,
        .ready_handle = write_handle(&share.ready, self->ready_handle),
    };
    return STATUS_OK;
}
