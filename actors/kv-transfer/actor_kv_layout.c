#include "actor_kv_layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

#include "proto_require.h"

static proto_status_t
wrong(proto_error_t *error, const char *what, uint64_t index, uint64_t value)
{
    if (error != NULL) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "%s, at %" PRIu64 ": the value is %" PRIu64, what, index, value);
    }
    return STATUS_ERR_INVALID;
}

uint64_t
actor_kv_row_bytes(const actor_kv_field_t *field)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < field->part_count; i++) {
        bytes += (uint64_t)field->parts[i].count * field->parts[i].unit_bytes;
    }
    return bytes;
}

uint64_t
actor_kv_page_bytes(const actor_kv_field_t *field)
{
    return field->rows * actor_kv_row_bytes(field);
}

/* Limits of a single number: their products then fit 64 bits. */
enum {
    ROWS_MAX = 1 << 20,
    EXTENT_MAX = 1 << 20,
    UNIT_BYTES_MAX = 1 << 20,
};
static const uint64_t BYTES_MAX = UINT64_C(1) << 50;

static proto_status_t
check_part(const actor_kv_part_t *part, uint64_t index, proto_error_t *error)
{
    if (part->extent == 0 || part->extent > EXTENT_MAX) {
        return wrong(error, "a part of a field has no extent, or one too large", index,
                     part->extent);
    }
    if (part->count == 0 || part->count > part->extent ||
        part->begin > part->extent - part->count) {
        return wrong(error, "an interval is not inside its extent", index, part->count);
    }
    if (part->unit_bytes == 0 || part->unit_bytes > UNIT_BYTES_MAX) {
        return wrong(error, "a unit has no bytes, or too many", index, part->unit_bytes);
    }
    return STATUS_OK;
}

static proto_status_t
check_place(const actor_kv_layout_t *self, const actor_kv_field_t *field, uint64_t index,
            proto_error_t *error)
{
    uint64_t page_bytes = actor_kv_page_bytes(field);
    if (page_bytes > BYTES_MAX || field->stride_bytes > BYTES_MAX ||
        field->stride_bytes < page_bytes) {
        return wrong(error, "pages of a field overlap", index, field->stride_bytes);
    }
    uint64_t pages = self->groups[field->group].page_count;
    /* Both below 2^50 and 2^22. */
    if (pages > PROTO_BLOCKS_MAX || field->stride_bytes > BYTES_MAX / pages) {
        return wrong(error, "a field is larger than any memory", index, field->stride_bytes);
    }
    uint64_t last = (pages - 1) * field->stride_bytes + page_bytes;
    if (field->page0_offset_bytes > self->arena_bytes ||
        last > self->arena_bytes - field->page0_offset_bytes) {
        return wrong(error, "a field ends outside its arena", index,
                     field->page0_offset_bytes + last);
    }
    return STATUS_OK;
}

static proto_status_t
check_field(const actor_kv_layout_t *self, uint32_t index, proto_error_t *error)
{
    const actor_kv_field_t *field = &self->fields[index];
    if (field->layer >= self->layer_count ||
        (index > 0 && field->layer < self->fields[index - 1].layer)) {
        return wrong(error, "a field's layer is out of range or order", index, field->layer);
    }
    if (field->group >= self->group_count) {
        return wrong(error, "a field names no group", index, field->group);
    }
    if (field->rows == 0 || field->rows > ROWS_MAX) {
        return wrong(error, "a page has no rows, or too many", index, field->rows);
    }
    if (field->part_count == 0 || field->part_count > ACTOR_KV_PART_COUNT_MAX) {
        return wrong(error, "a row has no parts, or too many", index, field->part_count);
    }
    for (uint32_t i = 0; i < field->part_count; i++) {
        proto_status_t status = check_part(&field->parts[i], index, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return check_place(self, field, index, error);
}

proto_status_t
actor_kv_layout_check(const actor_kv_layout_t *self, proto_error_t *error)
{
    if (self->rank_count == 0 || self->rank_count > ACTOR_KV_RANK_COUNT_MAX ||
        self->rank >= self->rank_count) {
        return wrong(error, "a rank is outside its group", self->rank, self->rank_count);
    }
    if (self->layer_count == 0 || self->layer_count > ACTOR_KV_LAYER_COUNT_MAX) {
        return wrong(error, "no layers, or too many", 0, self->layer_count);
    }
    if (self->group_count == 0 || self->group_count > ACTOR_KV_GROUP_COUNT_MAX) {
        return wrong(error, "no cache groups, or too many", 0, self->group_count);
    }
    if (self->field_count == 0 || self->field_count > ACTOR_KV_FIELD_COUNT_MAX) {
        return wrong(error, "no fields, or too many", 0, self->field_count);
    }
    if (self->arena_bytes > BYTES_MAX) {
        return wrong(error, "an arena is larger than any memory", 0, self->arena_bytes);
    }
    for (uint32_t i = 0; i < self->group_count; i++) {
        const actor_kv_group_t *group = &self->groups[i];
        if (group->kind > ACTOR_KV_KIND_STATE || group->granularity == 0 || group->page_count < 1 ||
            group->page_count > PROTO_BLOCKS_MAX) {
            return wrong(error, "a cache group of an unknown kind or without blocks", i,
                         group->kind);
        }
    }
    for (uint32_t i = 0; i < self->field_count; i++) {
        proto_status_t status = check_field(self, i, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static void
mix(uint64_t *digest, uint64_t value)
{
    *digest = XXH3_64bits_withSeed(&value, sizeof value, *digest);
}

uint64_t
actor_kv_layout_fingerprint(const actor_kv_layout_t *self)
{
    uint64_t digest = 1;
    mix(&digest, self->layer_count);
    mix(&digest, self->group_count);
    mix(&digest, self->field_count);
    for (uint32_t i = 0; i < self->group_count; i++) {
        mix(&digest, self->groups[i].kind);
        mix(&digest, self->groups[i].granularity);
        mix(&digest, self->groups[i].window);
    }
    for (uint32_t i = 0; i < self->field_count; i++) {
        const actor_kv_field_t *field = &self->fields[i];
        mix(&digest, field->layer);
        mix(&digest, field->name);
        mix(&digest, field->dtype);
        mix(&digest, field->group);
        mix(&digest, field->rows);
        mix(&digest, field->part_count);
        for (uint32_t p = 0; p < field->part_count; p++) {
            mix(&digest, field->parts[p].extent);
            mix(&digest, field->parts[p].unit_bytes);
        }
    }
    return digest == 0 ? 1 : digest;
}

/* ---- registrations ---- */

/* Every column of the fields has one entry for each, and the parts add up. */
static const char *
check_shape(const proto_kv_arena_t *arena)
{
    uint32_t fields = arena->field_layers.count;
    if (arena->field_names.count != fields || arena->field_dtypes.count != fields ||
        arena->field_groups.count != fields || arena->field_rows.count != fields ||
        arena->field_offsets.count != fields || arena->field_strides.count != fields ||
        arena->field_parts.count != fields || fields > ACTOR_KV_FIELD_COUNT_MAX) {
        return "columns of the fields differ in length, or are too many";
    }
    uint32_t groups = arena->group_kinds.count;
    if (arena->group_granularities.count != groups || arena->group_windows.count != groups ||
        arena->group_pages.count != groups || groups > ACTOR_KV_GROUP_COUNT_MAX) {
        return "columns of the groups differ in length, or are too many";
    }
    uint64_t parts = 0;
    for (uint32_t f = 0; f < fields; f++) {
        if (arena->field_parts.data[f] > ACTOR_KV_PART_COUNT_MAX) {
            return "a row of too many parts";
        }
        parts += arena->field_parts.data[f];
    }
    if (arena->part_extents.count != parts || arena->part_begins.count != parts ||
        arena->part_counts.count != parts || arena->part_units.count != parts) {
        return "columns of the parts differ in length";
    }
    return NULL;
}

static void
read_fields(const proto_kv_arena_t *arena, actor_kv_layout_t *layout, actor_kv_field_t *fields)
{
    *layout = (actor_kv_layout_t){.arena_bytes = arena->size_bytes,
                                  .rank = arena->rank,
                                  .rank_count = arena->rank_count,
                                  .layer_count = arena->layer_count,
                                  .group_count = arena->group_kinds.count,
                                  .field_count = arena->field_layers.count,
                                  .fields = fields};
    for (uint32_t g = 0; g < layout->group_count; g++) {
        layout->groups[g] = (actor_kv_group_t){.kind = arena->group_kinds.data[g],
                                               .granularity = arena->group_granularities.data[g],
                                               .window = arena->group_windows.data[g],
                                               .page_count = arena->group_pages.data[g]};
    }
    uint32_t part = 0;
    for (uint32_t f = 0; f < layout->field_count; f++) {
        fields[f] = (actor_kv_field_t){.layer = arena->field_layers.data[f],
                                       .name = arena->field_names.data[f],
                                       .dtype = arena->field_dtypes.data[f],
                                       .group = arena->field_groups.data[f],
                                       .rows = arena->field_rows.data[f],
                                       .part_count = arena->field_parts.data[f],
                                       .page0_offset_bytes = arena->field_offsets.data[f],
                                       .stride_bytes = arena->field_strides.data[f]};
        for (uint32_t p = 0; p < fields[f].part_count; p++, part++) {
            fields[f].parts[p] = (actor_kv_part_t){.extent = arena->part_extents.data[part],
                                                   .begin = arena->part_begins.data[part],
                                                   .count = arena->part_counts.data[part],
                                                   .unit_bytes = arena->part_units.data[part]};
        }
    }
}

proto_status_t
actor_kv_layout_read(const proto_kv_arena_t *arena, actor_kv_field_t *fields,
                     actor_kv_layout_t *out, proto_error_t *error)
{
    const char *why = check_shape(arena);
    if (why != NULL) {
        if (error != NULL) {
            (void)snprintf(error->detail, sizeof error->detail, "%s", why);
        }
        return STATUS_ERR_INVALID;
    }
    read_fields(arena, out, fields);
    return actor_kv_layout_check(out, error);
}

void
actor_kv_layout_write(const actor_kv_layout_t *self, actor_kv_layout_columns_t *columns,
                      proto_kv_arena_t *out)
{
    uint32_t parts = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        columns->kinds[g] = self->groups[g].kind;
        columns->granularities[g] = self->groups[g].granularity;
        columns->windows[g] = self->groups[g].window;
        columns->pages[g] = self->groups[g].page_count;
    }
    for (uint32_t f = 0; f < self->field_count; f++) {
        const actor_kv_field_t *field = &self->fields[f];
        columns->layers[f] = field->layer;
        columns->names[f] = (uint8_t)field->name;
        columns->dtypes[f] = (uint8_t)field->dtype;
        columns->groups[f] = (uint8_t)field->group;
        columns->rows[f] = field->rows;
        columns->offsets[f] = field->page0_offset_bytes;
        columns->strides[f] = field->stride_bytes;
        columns->part_counts[f] = (uint8_t)field->part_count;
        for (uint32_t p = 0; p < field->part_count; p++, parts++) {
            columns->extents[parts] = field->parts[p].extent;
            columns->begins[parts] = field->parts[p].begin;
            columns->counts[parts] = field->parts[p].count;
            columns->units[parts] = field->parts[p].unit_bytes;
        }
    }
    out->size_bytes = self->arena_bytes;
    out->rank = self->rank;
    out->rank_count = self->rank_count;
    out->layer_count = self->layer_count;
    out->group_kinds = (proto_column_u32_t){columns->kinds, self->group_count};
    out->group_granularities = (proto_column_u32_t){columns->granularities, self->group_count};
    out->group_windows = (proto_column_u32_t){columns->windows, self->group_count};
    out->group_pages = (proto_column_u32_t){columns->pages, self->group_count};
    out->field_layers = (proto_column_u32_t){columns->layers, self->field_count};
    out->field_names = (proto_column_u8_t){columns->names, self->field_count};
    out->field_dtypes = (proto_column_u8_t){columns->dtypes, self->field_count};
    out->field_groups = (proto_column_u8_t){columns->groups, self->field_count};
    out->field_rows = (proto_column_u32_t){columns->rows, self->field_count};
    out->field_offsets = (proto_column_u64_t){columns->offsets, self->field_count};
    out->field_strides = (proto_column_u64_t){columns->strides, self->field_count};
    out->field_parts = (proto_column_u8_t){columns->part_counts, self->field_count};
    out->part_extents = (proto_column_u32_t){columns->extents, parts};
    out->part_begins = (proto_column_u32_t){columns->begins, parts};
    out->part_counts = (proto_column_u32_t){columns->counts, parts};
    out->part_units = (proto_column_u32_t){columns->units, parts};
}
