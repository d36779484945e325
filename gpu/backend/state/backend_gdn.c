/* The state backend: what it owns, and which pools it takes. */
#include <stdlib.h>
#include <string.h>

#include "backend_gdn_private.h"
#include "proto_require.h"

/* ---- buffers ----------------------------------------------------------------------------------
 */

static void
drop_verify(gdn_t *self)
{
    device_release(self->base.options.device, DEVICE_MEMORY_DEVICE, &self->verify_memory);
    free(self->verify_layers);
    self->verify_layers = NULL;
    self->verify_bytes = 0;
}

static void
drop_index(gdn_t *self)
{
    device_t *device = self->base.options.device;
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->memory);
    device_release(device, DEVICE_MEMORY_PINNED, (void **)&self->tables);
    device_release(device, DEVICE_MEMORY_PINNED, (void **)&self->layer_groups);
    free(self->decode_views_by_bs);
    self->decode_views_by_bs = NULL;
}

static void
drop_fields(gdn_t *self)
{
    device_t *device = self->base.options.device;
    device_release(device, DEVICE_MEMORY_PINNED, (void **)&self->stage_fields);
    device_release(device, DEVICE_MEMORY_PINNED, (void **)&self->seed_fields);
    device_release(device, DEVICE_MEMORY_PINNED, (void **)&self->commit_fields);
    free(self->layers);
    free(self->state_of_layer);
    self->layers = NULL;
    self->state_of_layer = NULL;
}

static void
gdn_destroy(backend_t *base)
{
    gdn_t *self = (gdn_t *)base;
    drop_verify(self);
    drop_index(self);
    drop_fields(self);
    free(self);
}

/* One allocation; what each array is for stands in the header. */
static proto_status_t
gdn_init_graph_state(backend_t *base)
{
    gdn_t *self = (gdn_t *)base;
    const backend_options_t *options = &base->options;
    if (self->memory != NULL) {
        return STATUS_OK; /* nothing in them came from the pool */
    }
    size_t bs = options->bs_max;
    size_t programs = kern_conv_program_count(options->step_tokens_max, options->bs_max);
    size_t layers = self->geometry.layer_count;
    struct {
        int32_t **array_p;
        size_t count;
    } parts[] = {
        {&self->decode.in_blocks, bs},
        {&self->decode.out_blocks, bs},
        {&self->decode.began_lens, bs},
        {&self->decode.seeds, bs},
        {&self->prefill.in_blocks, bs},
        {&self->prefill.out_blocks, bs},
        {&self->prefill.began_lens, bs},
        {&self->prefill.seeds, bs},
        {&self->resumed, bs},
        {&self->requests, programs},
        {&self->chunks, programs},
        {&self->accepted, bs},
        {&self->pages, bs},
        {&self->from_rows, layers * bs},
        {&self->to_rows, layers * bs},
    };
    size_t total = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        total += parts[i].count;
    }
    self->decode_views_by_bs = calloc(bs + 1, sizeof *self->decode_views_by_bs);
    if (self->decode_views_by_bs == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = device_alloc(options->device, DEVICE_MEMORY_DEVICE,
                                         total * sizeof(int32_t), (void **)&self->memory);
    if (status == STATUS_OK) {
        status =
            device_alloc(options->device, DEVICE_MEMORY_PINNED,
                         GDN_TABLES_IN_FLIGHT_MAX * sizeof *self->tables, (void **)&self->tables);
    }
    if (status == STATUS_OK) {
        status = device_alloc(options->device, DEVICE_MEMORY_PINNED,
                              layers * sizeof *self->layer_groups, (void **)&self->layer_groups);
    }
    if (status != STATUS_OK) {
        drop_index(self);
        return status;
    }
    memset(self->layer_groups, 0, layers * sizeof *self->layer_groups);
    int32_t *at = self->memory;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].array_p = at;
        at += parts[i].count;
    }
    return STATUS_OK;
}

/* ---- pools ------------------------------------------------------------------------------------
 */

static bool
is_shape(const cache_field_view_t *view, size_t rows, size_t heads, size_t head_dim)
{
    return view->rows == rows && view->heads == heads && view->head_dim == head_dim &&
           view->dtype == CACHE_DTYPE_F32;
}

/* What the pool has for this node: one state group with a window and a state in every layer of it.
 * STATUS_ERR_INVALID if there is none, or if its shapes are not those of the kernels. */
static proto_status_t
find_geometry(const gdn_t *self, const cache_pool_t *pool, gdn_geometry_t *out)
{
    const backend_gdn_options_t *o = &self->options;
    *out = (gdn_geometry_t){0};
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        cache_field_view_t window;
        cache_field_view_t state;
        bool has_window = cache_pool_field(pool, layer, CACHE_FIELD_CONV, &window) == STATUS_OK;
        bool has_state = cache_pool_field(pool, layer, CACHE_FIELD_STATE, &state) == STATUS_OK;
        if (!has_window && !has_state) {
            continue;
        }
        if (!has_window || !has_state || window.group != state.group ||
            (out->layer_count > 0 && state.group != out->group) ||
            !is_shape(&window, o->conv_width - 1, 1, gdn_channels(o)) ||
            !is_shape(&state, o->v_heads, o->k_dim, o->v_dim)) {
            return STATUS_ERR_INVALID;
        }
        out->group = state.group;
        out->layer_count++;
    }
    if (out->layer_count == 0) {
        return STATUS_ERR_INVALID;
    }
    const cache_group_t *group = cache_plan_group(pool->plan, out->group);
    if (group->kind != CACHE_KIND_STATE || group->granularity % KERN_GDN_GRID != 0 ||
        strlen(group->id) >= sizeof out->group_id) {
        return STATUS_ERR_INVALID;
    }
    out->granularity = group->granularity;
    memcpy(out->group_id, group->id, strlen(group->id) + 1);
    return STATUS_OK;
}

/* Another pool may have other page counts; not another group, grain or other layers. */
static proto_status_t
gdn_validate(const backend_t *base, const cache_pool_t *pool)
{
    const gdn_t *self = (const gdn_t *)base;
    gdn_geometry_t found;
    proto_status_t status = find_geometry(self, pool, &found);
    if (status != STATUS_OK || !base->is_bound) {
        return status;
    }
    const gdn_geometry_t *known = &self->geometry;
    if (strcmp(found.group_id, known->group_id) != 0 || found.group != known->group ||
        found.granularity != known->granularity || found.layer_count != known->layer_count) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t i = 0; i < known->layer_count; i++) {
        cache_field_view_t state;
        uint32_t layer = self->layers[i].layer;
        if (layer >= pool->layer_count ||
            cache_pool_field(pool, layer, CACHE_FIELD_STATE, &state) != STATUS_OK) {
            return STATUS_ERR_INVALID;
        }
    }
    return STATUS_OK;
}

static void
fill_layer(gdn_t *self, const cache_pool_t *pool, uint32_t layer, uint32_t index)
{
    cache_field_view_t window;
    cache_field_view_t state;
    proto_status_t status = cache_pool_field(pool, layer, CACHE_FIELD_CONV, &window);
    require(status == STATUS_OK);
    status = cache_pool_field(pool, layer, CACHE_FIELD_STATE, &state);
    require(status == STATUS_OK);
    uint32_t blocks = cache_plan_page_count(pool->plan, self->geometry.group);
    self->state_of_layer[layer] = index;
    self->layers[index] = (gdn_layer_t){
        .layer = layer,
        .windows = {.windows = (float *)(void *)window.pages,
                    .block_stride = window.stride_bytes / sizeof(float),
                    .block_count = blocks},
        .states = {.states = (float *)(void *)state.pages,
                   .block_stride = state.stride_bytes / sizeof(float),
                   .block_count = blocks},
    };
    self->stage_fields[index] = (kern_state_field_t){
        .windows = window.pages,
        .window_stride_bytes = window.stride_bytes,
        .window_bytes = gdn_window_floats(&self->options) * sizeof(float),
        .states = state.pages,
        .state_stride_bytes = state.stride_bytes,
        .state_bytes = gdn_state_floats(&self->options) * sizeof(float),
        .group = 0,
    };
}

static proto_status_t
gdn_publish(backend_t *base, const cache_pool_t *pool)
{
    gdn_t *self = (gdn_t *)base;
    device_t *device = base->options.device;
    gdn_geometry_t geometry;
    proto_status_t status = find_geometry(self, pool, &geometry);
    require(status == STATUS_OK);
    drop_verify(self);
    drop_fields(self);
    self->geometry = geometry;
    self->forward_decode_metadata = NULL;
    self->decode_table = NULL;
    self->forward_prefill_metadata = (gdn_prefill_metadata_t){0};
    for (uint32_t i = 0; self->decode_views_by_bs != NULL && i <= base->options.bs_max; i++) {
        self->decode_views_by_bs[i].bs = 0;
    }
    self->layers = calloc(geometry.layer_count, sizeof *self->layers);
    self->state_of_layer = calloc(pool->layer_count, sizeof *self->state_of_layer);
    if (self->layers == NULL || self->state_of_layer == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    status = device_alloc(device, DEVICE_MEMORY_PINNED,
                          geometry.layer_count * sizeof *self->stage_fields,
                          (void **)&self->stage_fields);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t index = 0;
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        cache_field_view_t state;
        self->state_of_layer[layer] = UINT32_MAX;
        if (cache_pool_field(pool, layer, CACHE_FIELD_STATE, &state) == STATUS_OK) {
            fill_layer(self, pool, layer, index++);
        }
    }
    return STATUS_OK;
}

/* ---- verify workspace ---------------------------------------------------------------------------
 */

static size_t
round_up(size_t size_bytes)
{
    return (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
}

/* The workspace of one layer at `memory` (NULL: only counts): the states after every row, with the
 * one before them, or what a commit needs to run the rows again. */
static size_t
lay_out_verify(const backend_gdn_options_t *o, uint8_t *memory, gdn_verify_layer_t *out)
{
    size_t rows = (size_t)o->backend.bs_max * o->backend.width;
    size_t states = (size_t)o->backend.bs_max * (o->backend.width + 1);
    size_t channels = gdn_channels(o);
    *out = (gdn_verify_layer_t){0};
    struct {
        float **array_p;
        size_t count;
    } parts[] = {
        {&out->windows, o->keeps_states ? states * gdn_window_floats(o) : 0},
        {&out->states, o->keeps_states ? states * gdn_state_floats(o) : 0},
        {&out->inputs, o->keeps_states ? 0 : rows * channels},
        {&out->mixed, o->keeps_states ? 0 : rows * channels},
        {&out->a, o->keeps_states ? 0 : rows * o->v_heads},
        {&out->b, o->keeps_states ? 0 : rows * o->v_heads},
    };
    size_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (memory != NULL && parts[i].count > 0) {
            *parts[i].array_p = (float *)(void *)(memory + at);
        }
        at += round_up(parts[i].count * sizeof(float));
    }
    return at;
}

size_t
backend_gdn_verify_size_bytes(const backend_gdn_options_t *options, uint32_t layer_count)
{
    gdn_verify_layer_t layer;
    return options->backend.width > 1 ? layer_count * lay_out_verify(options, NULL, &layer) : 0;
}

/* Both directions of the copies between blocks and scratch. */
static void
fill_copies(gdn_t *self, uint32_t index)
{
    const gdn_layer_t *layer = &self->layers[index];
    const gdn_verify_layer_t *verify = &self->verify_layers[index];
    const struct {
        float *blocks;
        size_t block_stride;
        float *scratch;
        size_t floats;
    } kinds[2] = {
        {layer->windows.windows, layer->windows.block_stride, verify->windows,
         gdn_window_floats(&self->options)},
        {layer->states.states, layer->states.block_stride, verify->states,
         gdn_state_floats(&self->options)},
    };
    for (uint32_t i = 0; i < 2; i++) {
        size_t row_bytes = kinds[i].floats * sizeof(float);
        size_t block_bytes = kinds[i].block_stride * sizeof(float);
        self->seed_fields[2 * index + i] = (kern_state_copy_field_t){
            .from = (const uint8_t *)kinds[i].blocks,
            .from_stride_bytes = block_bytes,
            .to = (uint8_t *)kinds[i].scratch,
            .to_stride_bytes = row_bytes,
            .row_bytes = row_bytes,
        };
        self->commit_fields[2 * index + i] = (kern_state_copy_field_t){
            .from = (const uint8_t *)kinds[i].scratch,
            .from_stride_bytes = row_bytes,
            .to = (uint8_t *)kinds[i].blocks,
            .to_stride_bytes = block_bytes,
            .row_bytes = row_bytes,
            .from_index = index,
            .to_index = index,
        };
    }
}

/* A workspace stays with the pool it was made for. */
static proto_status_t
gdn_preallocate(backend_t *base, size_t *size_bytes_p)
{
    gdn_t *self = (gdn_t *)base;
    device_t *device = base->options.device;
    uint32_t layers = self->geometry.layer_count;
    if (self->verify_layers != NULL) {
        return STATUS_OK;
    }
    size_t size_bytes = backend_gdn_verify_size_bytes(&self->options, layers);
    size_t copies_bytes = (size_t)layers * 2 * sizeof *self->seed_fields;
    self->verify_layers = calloc(layers, sizeof *self->verify_layers);
    if (self->verify_layers == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status =
        device_alloc(device, DEVICE_MEMORY_DEVICE, size_bytes, &self->verify_memory);
    if (status == STATUS_OK) {
        status =
            device_alloc(device, DEVICE_MEMORY_PINNED, copies_bytes, (void **)&self->seed_fields);
    }
    if (status == STATUS_OK) {
        status =
            device_alloc(device, DEVICE_MEMORY_PINNED, copies_bytes, (void **)&self->commit_fields);
    }
    if (status != STATUS_OK) {
        drop_verify(self);
        return status;
    }
    size_t stride = size_bytes / layers;
    for (uint32_t i = 0; i < layers; i++) {
        uint8_t *memory = (uint8_t *)self->verify_memory + i * stride;
        (void)lay_out_verify(&self->options, memory, &self->verify_layers[i]);
        fill_copies(self, i);
    }
    self->verify_bytes = size_bytes;
    *size_bytes_p += size_bytes;
    return STATUS_OK;
}

/* ---- the rest of the contract -------------------------------------------------------------------
 */

/* A recurrent layer has no keys and values: its composite never asks. */
static void
gdn_forward(backend_t *base, const backend_forward_t *forward)
{
    (void)base;
    (void)forward;
    bool has_attention = false;
    require(has_attention);
}

static const int32_t *
gdn_write_locations(const backend_t *base, uint32_t layer, backend_mode_t mode)
{
    (void)base;
    (void)layer;
    (void)mode;
    bool has_write_locations = false;
    require(has_write_locations);
    return NULL;
}

/* The arrays of the other layers lie behind those of the first, at one stride. */
static void
visit_verify(const gdn_t *self, uint32_t bs, backend_visit_fn visit, void *context)
{
    const backend_gdn_options_t *o = &self->options;
    const gdn_verify_layer_t *first = &self->verify_layers[0];
    size_t rows = (size_t)bs * o->backend.width;
    size_t states = (size_t)bs * (o->backend.width + 1);
    const struct {
        const char *name;
        const float *array;
        size_t count;
    } parts[] = {
        {"gdn.verify.windows", first->windows, states * gdn_window_floats(o)},
        {"gdn.verify.states", first->states, states * gdn_state_floats(o)},
        {"gdn.verify.inputs", first->inputs, rows * gdn_channels(o)},
        {"gdn.verify.mixed", first->mixed, rows * gdn_channels(o)},
        {"gdn.verify.a", first->a, rows * o->v_heads},
        {"gdn.verify.b", first->b, rows * o->v_heads},
    };
    visit(context, "gdn.verify", self->verify_memory, self->verify_bytes);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].array != NULL) {
            visit(context, parts[i].name, parts[i].array, parts[i].count * sizeof(float));
        }
    }
}

static void
gdn_visit(const backend_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    const gdn_t *self = (const gdn_t *)base;
    const gdn_decode_view_t *view = &self->decode_views_by_bs[bs];
    if (view->bs == 0) {
        return;
    }
    size_t size_bytes = bs * sizeof(int32_t);
    visit(context, "gdn.decode.in_blocks", view->index.in_blocks, size_bytes);
    visit(context, "gdn.decode.out_blocks", view->index.out_blocks, size_bytes);
    visit(context, "gdn.decode.began_lens", view->index.began_lens, size_bytes);
    visit(context, "gdn.decode.seeds", view->index.seeds, size_bytes);
    if (self->verify_layers != NULL) {
        visit_verify(self, bs, visit, context);
    }
}

/* What a step leaves in the decode slot; the states themselves are pages of the cache. */
static void
gdn_visit_step(const backend_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    const gdn_t *self = (const gdn_t *)base;
    size_t size_bytes = bs * sizeof(int32_t);
    visit(context, "gdn.decode.in_blocks", self->decode.in_blocks, size_bytes);
    visit(context, "gdn.decode.out_blocks", self->decode.out_blocks, size_bytes);
    visit(context, "gdn.decode.began_lens", self->decode.began_lens, size_bytes);
    visit(context, "gdn.decode.seeds", self->decode.seeds, size_bytes);
}

static const backend_vtable_t gdn_vtable = {
    .destroy = gdn_destroy,
    .validate_cache_pool = gdn_validate,
    .publish_cache_pool = gdn_publish,
    .init_cuda_graph_state = gdn_init_graph_state,
    .init_forward_metadata = backend_gdn_init_forward,
    .refresh_decode_metadata = backend_gdn_refresh,
    .forward = gdn_forward,
    .write_locations = gdn_write_locations,
    .visit_decode_slot = gdn_visit,
    .visit_step_spans = gdn_visit_step,
    .forward_recurrent = backend_gdn_forward,
    .preallocate_verify_workspace = gdn_preallocate,
    .commit_speculative_state = backend_gdn_commit,
};

proto_status_t
backend_gdn_new(const backend_gdn_options_t *options, backend_t **out_p)
{
    require(options->backend.bs_max > 0);
    require(options->k_heads > 0 && options->v_heads % options->k_heads == 0);
    require(options->k_dim <= KERN_GDN_DIM_MAX && options->v_dim <= KERN_GDN_DIM_MAX);
    require(options->conv_width >= 2 && options->conv_width <= KERN_CONV_WIDTH_MAX);
    gdn_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.vtable = &gdn_vtable;
    self->base.name = "gdn state backend";
    self->base.support = (backend_support_t){.decode_graph = true, .prefill_graph = true};
    self->base.options = options->backend;
    self->base.keeps_graph_state = true;
    self->options = *options;
    *out_p = &self->base;
    return STATUS_OK;
}
