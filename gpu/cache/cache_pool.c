/* Arena and pools. */
#include "cache_pool.h"

#include <stdlib.h>

#include "proto_require.h"

struct cache_arena {
    device_t *device;
    device_memory_t kind;
    void *memory;
};

static proto_status_t
make_arena(device_t *device, const cache_plan_t *plan, device_memory_t kind, cache_arena_t **out_p)
{
    require(cache_plan_arena_bytes(plan) > 0);
    cache_arena_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->device = device;
    self->kind = kind;
    proto_status_t status = device_alloc(device, kind, cache_plan_arena_bytes(plan), &self->memory);
    if (status != STATUS_OK) {
        free(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
cache_arena_new(device_t *device, const cache_plan_t *plan, cache_arena_t **out_p)
{
    return make_arena(device, plan, DEVICE_MEMORY_DEVICE, out_p);
}

proto_status_t
cache_arena_new_shared(device_t *device, const cache_plan_t *plan, cache_arena_t **out_p)
{
    return make_arena(device, plan, DEVICE_MEMORY_SHARED, out_p);
}

proto_status_t
cache_arena_share(const cache_arena_t *self, device_share_t *out)
{
    if (self->kind != DEVICE_MEMORY_SHARED) {
        return STATUS_ERR_INVALID;
    }
    return device_share(self->device, self->memory, out);
}

void
cache_arena_destroy(cache_arena_t **self_p)
{
    require(self_p != NULL);
    if (*self_p == NULL) {
        return;
    }
    device_release((*self_p)->device, (*self_p)->kind, &(*self_p)->memory);
    free(*self_p);
    *self_p = NULL;
}

uint8_t *
cache_arena_memory(const cache_arena_t *self)
{
    return self->memory;
}

proto_status_t
cache_pool_init(cache_pool_t *self, const cache_plan_t *plan, const cache_arena_t *arena,
                uint32_t first_layer, uint32_t layer_count)
{
    uint32_t layers_seen = 0;
    for (uint32_t i = 0; i < cache_plan_field_count(plan); i++) {
        uint32_t count = cache_plan_field(plan, i)->layer + 1;
        layers_seen = count > layers_seen ? count : layers_seen;
    }
    if (layer_count == 0 || first_layer > layers_seen || layer_count > layers_seen - first_layer) {
        return STATUS_ERR_INVALID;
    }
    self->plan = plan;
    self->memory = arena->memory;
    self->first_layer = first_layer;
    self->layer_count = layer_count;
    return STATUS_OK;
}

proto_status_t
cache_pool_field(const cache_pool_t *self, uint32_t layer, cache_field_name_t name,
                 cache_field_view_t *out)
{
    require(layer < self->layer_count);
    uint32_t index = 0;
    proto_status_t status = cache_plan_find(self->plan, self->first_layer + layer, name, &index);
    if (status != STATUS_OK) {
        return status;
    }
    const cache_field_t *field = cache_plan_field(self->plan, index);
    cache_place_t place = cache_plan_place(self->plan, index);
    out->pages = self->memory + place.page0_offset_bytes;
    out->stride_bytes = place.stride_bytes;
    out->rows = field->rows;
    out->heads = field->heads;
    out->head_dim = field->head_dim;
    out->dtype = field->dtype;
    out->group = field->group;
    return STATUS_OK;
}

uint32_t
cache_pool_slot_count(const cache_pool_t *self, const cache_field_view_t *field)
{
    size_t row_bytes =
        (size_t)field->heads * field->head_dim * cache_dtype_size_bytes(field->dtype);
    size_t slots =
        cache_plan_page_count(self->plan, field->group) * (field->stride_bytes / row_bytes);
    require(slots <= INT32_MAX);
    return (uint32_t)slots;
}

bool
cache_pool_same_geometry(const cache_pool_t *a, const cache_pool_t *b)
{
    return a->first_layer == b->first_layer && a->layer_count == b->layer_count &&
           cache_plan_same_geometry(a->plan, b->plan);
}
