/* The layout of the cache.
 *
 * In each plane a group's fields lie behind each other; that sum is the group's page in the plane.
 * A plane is as wide as its widest tenant (packing x page), rounded up so that every tenant's
 * packing divides it in aligned parts.  Page p of a field then stands at
 *     plane start + plane width - stride + p * stride + offset of the field in the page
 * so that page 0, the null page, is the tail of the null parent and page 1 starts parent 1. */
#include "cache_plan.h"

#include <stdlib.h>
#include <string.h>

#include "proto_messages.h"
#include "proto_require.h"

enum { FIELD_COLS_MAX = 1 << 20 };

typedef struct {
    size_t field_offset; /* within the group's page of the plane */
    size_t page_bytes;
} field_layout_t;

struct cache_plan {
    cache_group_t groups[CACHE_GROUP_COUNT_MAX];
    uint32_t group_count;
    cache_field_t *fields;   /* [field_count] */
    field_layout_t *layouts; /* [field_count] */
    uint32_t field_count;
    size_t *plane_bytes; /* [plane_count] of one parent */
    uint32_t plane_count;
    size_t parent_bytes;
    uint32_t parent_count; /* 0 = not bound */
    uint32_t prefix_granularity;
};

size_t
cache_dtype_size_bytes(cache_dtype_t dtype)
{
    return dtype == CACHE_DTYPE_F32 ? 4 : 2;
}

static size_t
round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static proto_status_t
check_options(const cache_plan_options_t *options)
{
    if (options->group_count == 0 || options->group_count > CACHE_GROUP_COUNT_MAX ||
        options->field_count == 0 || options->field_count > CACHE_FIELD_COUNT_MAX ||
        options->prefix_granularity == 0) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t i = 0; i < options->group_count; i++) {
        const cache_group_t *group = &options->groups[i];
        if (group->granularity == 0 || options->prefix_granularity % group->granularity != 0 ||
            group->packing == 0 || group->packing > 4096 ||
            (group->kind == CACHE_KIND_SLIDING) != (group->window > 0)) {
            return STATUS_ERR_INVALID;
        }
    }
    for (uint32_t i = 0; i < options->field_count; i++) {
        const cache_field_t *field = &options->fields[i];
        if (field->group >= options->group_count || field->plane >= CACHE_PLANE_COUNT_MAX ||
            field->rows == 0 || field->rows > 65536 || field->heads == 0 || field->heads > 4096 ||
            field->head_dim == 0 || field->head_dim > FIELD_COLS_MAX) {
            return STATUS_ERR_INVALID;
        }
    }
    return STATUS_OK;
}

/* Width of a plane: the smallest multiple of every tenant's packing x alignment that holds the
 * widest.  Packings are small, so stepping through candidates ends soon. */
static proto_status_t
solve_plane(cache_plan_t *self, uint32_t plane, const size_t *page_bytes)
{
    size_t width = 0;
    size_t step = CACHE_FIELD_ALIGN;
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (page_bytes[g] == 0) {
            continue;
        }
        size_t packed = page_bytes[g] * self->groups[g].packing;
        width = packed > width ? packed : width;
        size_t unit = (size_t)self->groups[g].packing * CACHE_FIELD_ALIGN;
        size_t common = step;
        while (common % unit != 0) {
            common += step;
        }
        step = common;
    }
    if (width == 0) {
        return STATUS_ERR_INVALID; /* plane indices have a gap */
    }
    self->plane_bytes[plane] = round_up(width, step);
    return STATUS_OK;
}

static proto_status_t
solve(cache_plan_t *self)
{
    self->parent_bytes = 0;
    for (uint32_t plane = 0; plane < self->plane_count; plane++) {
        size_t page_bytes[CACHE_GROUP_COUNT_MAX] = {0};
        for (uint32_t i = 0; i < self->field_count; i++) {
            const cache_field_t *field = &self->fields[i];
            if (field->plane != plane) {
                continue;
            }
            size_t bytes = (size_t)field->rows * field->heads * field->head_dim *
                           cache_dtype_size_bytes(field->dtype);
            self->layouts[i].field_offset = page_bytes[field->group];
            self->layouts[i].page_bytes = bytes;
            page_bytes[field->group] += round_up(bytes, CACHE_FIELD_ALIGN);
        }
        proto_status_t status = solve_plane(self, plane, page_bytes);
        if (status != STATUS_OK) {
            return status;
        }
        self->parent_bytes += self->plane_bytes[plane];
    }
    return STATUS_OK;
}

proto_status_t
cache_plan_new(const cache_plan_options_t *options, cache_plan_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    proto_status_t status = check_options(options);
    if (status != STATUS_OK) {
        return status;
    }
    cache_plan_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->group_count = options->group_count;
    memcpy(self->groups, options->groups, options->group_count * sizeof *options->groups);
    self->field_count = options->field_count;
    self->prefix_granularity = options->prefix_granularity;
    for (uint32_t i = 0; i < options->field_count; i++) {
        uint32_t count = options->fields[i].plane + 1;
        self->plane_count = count > self->plane_count ? count : self->plane_count;
    }
    require(options->field_count > 0);
    self->fields = calloc(options->field_count, sizeof *self->fields);
    self->layouts = calloc(options->field_count, sizeof *self->layouts);
    self->plane_bytes = calloc(self->plane_count, sizeof *self->plane_bytes);
    if (self->fields == NULL || self->layouts == NULL || self->plane_bytes == NULL) {
        cache_plan_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    memcpy(self->fields, options->fields, options->field_count * sizeof *self->fields);
    status = solve(self);
    if (status != STATUS_OK) {
        cache_plan_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
cache_plan_destroy(cache_plan_t **self_p)
{
    require(self_p != NULL);
    cache_plan_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->plane_bytes);
    free(self->layouts);
    free(self->fields);
    free(self);
    *self_p = NULL;
}

proto_status_t
cache_plan_bind(cache_plan_t *self, uint32_t parent_count)
{
    require(self != NULL);
    require(parent_count >= 1);
    if (((size_t)parent_count + 1) > SIZE_MAX / 2 / self->parent_bytes) {
        return STATUS_ERR_TOO_LARGE;
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        if ((uint64_t)parent_count * self->groups[g].packing + 1 > PROTO_BLOCKS_MAX) {
            return STATUS_ERR_TOO_LARGE;
        }
    }
    self->parent_count = parent_count;
    return STATUS_OK;
}

size_t
cache_plan_parent_bytes(const cache_plan_t *self)
{
    return self->parent_bytes;
}

size_t
cache_plan_arena_bytes(const cache_plan_t *self)
{
    return self->parent_count == 0 ? 0 : ((size_t)self->parent_count + 1) * self->parent_bytes;
}

uint32_t
cache_plan_parent_count(const cache_plan_t *self)
{
    return self->parent_count;
}

uint32_t
cache_plan_prefix_granularity(const cache_plan_t *self)
{
    return self->prefix_granularity;
}

uint32_t
cache_plan_group_count(const cache_plan_t *self)
{
    return self->group_count;
}

const cache_group_t *
cache_plan_group(const cache_plan_t *self, uint32_t group)
{
    require(group < self->group_count);
    return &self->groups[group];
}

uint32_t
cache_plan_page_count(const cache_plan_t *self, uint32_t group)
{
    require(group < self->group_count);
    return 1 + self->parent_count * self->groups[group].packing;
}

uint32_t
cache_plan_field_count(const cache_plan_t *self)
{
    return self->field_count;
}

const cache_field_t *
cache_plan_field(const cache_plan_t *self, uint32_t field)
{
    require(field < self->field_count);
    return &self->fields[field];
}

proto_status_t
cache_plan_find(const cache_plan_t *self, uint32_t layer, cache_field_name_t name,
                uint32_t *field_p)
{
    require(field_p != NULL);
    for (uint32_t i = 0; i < self->field_count; i++) {
        if (self->fields[i].layer == layer && self->fields[i].name == name) {
            *field_p = i;
            return STATUS_OK;
        }
    }
    return STATUS_ERR_NOT_FOUND;
}

cache_place_t
cache_plan_place(const cache_plan_t *self, uint32_t field)
{
    require(field < self->field_count);
    require(self->parent_count > 0);
    const cache_field_t *what = &self->fields[field];
    size_t plane_offset = 0;
    for (uint32_t i = 0; i < what->plane; i++) {
        plane_offset += self->plane_bytes[i] * ((size_t)self->parent_count + 1);
    }
    size_t width = self->plane_bytes[what->plane];
    size_t stride = width / self->groups[what->group].packing;
    cache_place_t place = {
        .page0_offset_bytes = plane_offset + width - stride + self->layouts[field].field_offset,
        .stride_bytes = stride,
        .page_bytes = self->layouts[field].page_bytes,
    };
    return place;
}

bool
cache_plan_same_geometry(const cache_plan_t *a, const cache_plan_t *b)
{
    if (a->group_count != b->group_count || a->field_count != b->field_count ||
        a->plane_count != b->plane_count || a->prefix_granularity != b->prefix_granularity) {
        return false;
    }
    for (uint32_t i = 0; i < a->group_count; i++) {
        const cache_group_t *x = &a->groups[i];
        const cache_group_t *y = &b->groups[i];
        if (strcmp(x->id, y->id) != 0 || x->kind != y->kind || x->granularity != y->granularity ||
            x->window != y->window || x->packing != y->packing) {
            return false;
        }
    }
    for (uint32_t i = 0; i < a->field_count; i++) {
        const cache_field_t *x = &a->fields[i];
        const cache_field_t *y = &b->fields[i];
        if (x->layer != y->layer || x->name != y->name || x->group != y->group ||
            x->plane != y->plane || x->rows != y->rows || x->heads != y->heads ||
            x->head_dim != y->head_dim || x->dtype != y->dtype) {
            return false;
        }
    }
    return true;
}

void
cache_plan_check(const cache_plan_t *self)
{
    for (uint32_t i = 0; i < self->field_count; i++) {
        const cache_field_t *a = &self->fields[i];
        size_t stride = self->plane_bytes[a->plane] / self->groups[a->group].packing;
        require(self->plane_bytes[a->plane] % self->groups[a->group].packing == 0);
        require(stride % CACHE_FIELD_ALIGN == 0);
        require(self->layouts[i].field_offset + self->layouts[i].page_bytes <= stride);
        for (uint32_t j = 0; j < i; j++) {
            const cache_field_t *b = &self->fields[j];
            if (a->plane != b->plane || a->group != b->group) {
                continue;
            }
            bool apart = self->layouts[i].field_offset >=
                             self->layouts[j].field_offset + self->layouts[j].page_bytes ||
                         self->layouts[j].field_offset >=
                             self->layouts[i].field_offset + self->layouts[i].page_bytes;
            require(apart);
        }
    }
}
