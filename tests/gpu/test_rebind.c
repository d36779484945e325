/* Rebinding a cache pool: a rejected pool moves nothing, a rebound tree is as good as a new one,
 * and the memory probe that start-up is made of adds up. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_host.h"
#include "gpu_driver.h"
#include "router_cache_group.h"
#include "run_executor_private.h"
#include "run_inspect.h"
#include "run_workspace.h"

enum {
    BS_MAX = 6,
    COLUMNS = 16,
    LAYERS = 3,
    MODEL_LEN = 250,
    STEP_TOKENS = 64,
    VOCABULARY = 320,
    SLOTS = 6,
};

static device_t *device;
static device_stream_t *stream;

/* ---- a cache of two groups, every property of which can be changed ----------------------------
 */

typedef struct {
    cache_group_t groups[3];
    uint32_t group_count;
    cache_field_t fields[2 * (LAYERS + 1)];
    uint32_t layers;
    uint32_t prefix_granularity;
    uint32_t parents;
} layout_t;

typedef struct {
    cache_plan_t *plan;
    cache_arena_t *arena;
    cache_pool_t pool;
} cache_t;

/* Layers 0 and 2 full, layer 1 sliding. */
static layout_t
usual_layout(uint32_t parents)
{
    layout_t layout = {
        .groups = {{.id = "full", .kind = CACHE_KIND_FULL, .granularity = 16, .packing = 1},
                   {.id = "sliding",
                    .kind = CACHE_KIND_SLIDING,
                    .granularity = 16,
                    .window = 40,
                    .packing = 2}},
        .group_count = 2,
        .layers = LAYERS,
        .prefix_granularity = 16,
        .parents = parents,
    };
    uint32_t used[2] = {0, 0};
    for (uint32_t i = 0; i < 2 * (LAYERS + 1); i++) {
        uint32_t group = i / 2 == 1 ? 1 : 0;
        layout.fields[i] = (cache_field_t){.layer = i / 2,
                                           .name = i % 2 == 0 ? CACHE_FIELD_K : CACHE_FIELD_V,
                                           .group = group,
                                           .plane = used[group]++ % 2,
                                           .rows = 16,
                                           .heads = 2,
                                           .head_dim = 16,
                                           .dtype = CACHE_DTYPE_F32};
    }
    return layout;
}

static proto_status_t
try_cache(const layout_t *layout, cache_t *out)
{
    cache_plan_options_t options = {.groups = layout->groups,
                                    .group_count = layout->group_count,
                                    .fields = layout->fields,
                                    .field_count = 2 * layout->layers,
                                    .prefix_granularity = layout->prefix_granularity};
    *out = (cache_t){.plan = NULL};
    proto_status_t status = cache_plan_new(&options, &out->plan);
    if (status != STATUS_OK) {
        return status;
    }
    ck_assert_int_eq(cache_plan_bind(out->plan, layout->parents), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, out->plan, &out->arena), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&out->pool, out->plan, out->arena, 0, layout->layers),
                     STATUS_OK);
    return STATUS_OK;
}

static cache_t
new_cache(const layout_t *layout)
{
    cache_t cache;
    ck_assert_int_eq(try_cache(layout, &cache), STATUS_OK);
    return cache;
}

static void
close_cache(cache_t *cache)
{
    cache_arena_destroy(&cache->arena);
    cache_plan_destroy(&cache->plan);
}

static void
open_device(void)
{
    device_host_options_t options = {.thread_count = 2, .path = KERN_PATH_PORTABLE};
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
}

static void
close_device(void)
{
    device_stream_destroy(&stream);
    ck_assert_uint_eq(device_memory_used_bytes(device), 0);
    device_destroy(&device);
}

static backend_options_t
backend_options(void)
{
    return (backend_options_t){.device = device,
                               .stream = stream,
                               .bs_max = BS_MAX,
                               .width = 1,
                               .step_tokens_max = STEP_TOKENS,
                               .model_len_max = MODEL_LEN,
                               .q_heads = 4,
                               .kv_heads = 2,
                               .head_dim = 16};
}

static backend_t *
new_router(void)
{
    router_cache_group_options_t options = {.backend = backend_options()};
    backend_t *router = NULL;
    ck_assert_int_eq(router_cache_group_new(&options, &router), STATUS_OK);
    return router;
}

/* ---- a composite and a child that refuse, as test doubles -------------------------------------
 */

typedef struct {
    backend_t base; /* first */
    bool refuses;
    uint32_t publish_count;
} fake_t;

static void
double_destroy(backend_t *self)
{
    free(self);
}

static proto_status_t
double_validate(const backend_t *self, const cache_pool_t *pool)
{
    (void)pool;
    return ((const fake_t *)self)->refuses ? STATUS_ERR_INVALID : STATUS_OK;
}

static proto_status_t
double_publish(backend_t *self, const cache_pool_t *pool)
{
    (void)pool;
    ((fake_t *)self)->publish_count++;
    return STATUS_OK;
}

static proto_status_t
double_init(backend_t *self)
{
    (void)self;
    return STATUS_OK;
}

static proto_status_t
double_refresh(backend_t *self, const backend_refresh_t *refresh)
{
    for (uint32_t i = 0; i < self->child_count; i++) {
        proto_status_t status = backend_refresh_decode_metadata(self->children[i], refresh);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static void
double_visit(const backend_t *self, uint32_t bs, backend_visit_fn visit, void *context)
{
    (void)bs;
    visit(context, "double.count", &((const fake_t *)self)->publish_count, sizeof(uint32_t));
}

static const backend_vtable_t double_vtable = {
    .destroy = double_destroy,
    .validate_cache_pool = double_validate,
    .publish_cache_pool = double_publish,
    .init_cuda_graph_state = double_init,
    .refresh_decode_metadata = double_refresh,
    .visit_decode_slot = double_visit,
};

static fake_t *
new_double(const char *name)
{
    fake_t *self = calloc(1, sizeof *self);
    ck_assert_ptr_nonnull(self);
    self->base = (backend_t){.vtable = &double_vtable,
                             .name = name,
                             .support = {true, true},
                             .options = backend_options()};
    return self;
}

/* composite { router, last } */
static fake_t *
new_composite(fake_t **last_p)
{
    fake_t *root = new_double("composite");
    *last_p = new_double("last");
    root->base.children[0] = new_router();
    root->base.children[1] = &(*last_p)->base;
    root->base.child_count = 2;
    return root;
}

/* ---- what a tree reaches ----------------------------------------------------------------------
 */

static const uint64_t fnv_offset = UINT64_C(14695981039346656037);

static uint64_t
mix(uint64_t digest, const void *data, size_t size_bytes)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size_bytes; i++) {
        digest = (digest ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return digest;
}

typedef struct {
    uint64_t addresses; /* of paths, addresses and sizes */
    uint64_t contents;  /* of paths, sizes and what stands there; workspaces apart */
    uint32_t count;
} view_t;

static void
view_one(void *context, const char *path, const void *address, size_t size_bytes)
{
    view_t *view = context;
    view->count++;
    view->addresses = mix(view->addresses, path, strlen(path));
    view->addresses = mix(view->addresses, &address, sizeof address);
    view->addresses = mix(view->addresses, &size_bytes, sizeof size_bytes);
    view->contents = mix(view->contents, path, strlen(path));
    view->contents = mix(view->contents, &size_bytes, sizeof size_bytes);
    if (strstr(path, "workspace") == NULL) {
        view->contents = mix(view->contents, address, size_bytes);
    }
}

static view_t
view_of(const backend_t *tree, uint32_t bs)
{
    view_t view = {.addresses = fnv_offset, .contents = fnv_offset};
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    backend_visit_decode_slot(tree, bs, view_one, &view);
    return view;
}

typedef struct {
    int32_t blocks[2][BS_MAX * COLUMNS];
    int32_t slots[BS_MAX];
    int32_t seq_lens[BS_MAX];
} inputs_t;

static proto_status_t
refresh(backend_t *tree, inputs_t *in, uint32_t block_count, uint32_t bs)
{
    static const int32_t lengths[BS_MAX] = {1, 16, 17, 100, 33, 250};
    for (uint32_t b = 0; b < BS_MAX; b++) {
        in->slots[b] = (int32_t)b + 1;
        in->seq_lens[b] = lengths[b];
        for (uint32_t c = 0; c < COLUMNS; c++) {
            for (uint32_t g = 0; g < 2; g++) {
                in->blocks[g][b * COLUMNS + c] =
                    (int32_t)(1 + (b * 7 + c * 5 + g * 3) % (block_count - 1));
            }
        }
    }
    backend_tables_t tables = {.group_count = 2};
    for (uint32_t g = 0; g < 2; g++) {
        tables.groups[g] = (backend_table_t){in->blocks[g], COLUMNS, COLUMNS};
    }
    backend_refresh_t what = {.bs = bs,
                              .actual_bs = bs,
                              .request_slots = in->slots,
                              .seq_lens = in->seq_lens,
                              .mode = BACKEND_MODE_DECODE,
                              .tables = &tables};
    proto_status_t status = backend_refresh_decode_metadata(tree, &what);
    if (status == STATUS_OK) {
        ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    }
    return status;
}

static void
bind(backend_t *tree, const cache_t *cache)
{
    ck_assert_int_eq(backend_set_cache_pool(tree, &cache->pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(tree), STATUS_OK);
}

/* Attention of every layer over a cache that holds known values. */
static void
attend(backend_t *tree, const cache_t *cache, float out[LAYERS][BS_MAX * 64])
{
    float *memory = (float *)(void *)cache_arena_memory(cache->arena);
    size_t count = cache_plan_arena_bytes(cache->plan) / sizeof(float);
    for (size_t i = 0; i < count; i++) {
        memory[i] = (float)((i * 2654435761u) >> 8 & 1023) / 512.0f - 1.0f;
    }
    static float q[BS_MAX * 64];
    for (uint32_t i = 0; i < BS_MAX * 64; i++) {
        q[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        backend_forward_t forward = {.layer = layer,
                                     .mode = BACKEND_MODE_DECODE,
                                     .q = q,
                                     .q_stride = 64,
                                     .rows = BS_MAX,
                                     .output = out[layer],
                                     .output_stride = 64,
                                     .scale = 0.25f};
        backend_forward(tree, &forward);
    }
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
}

/* ---- tests of the tree ------------------------------------------------------------------------
 */

/* The last child says no: the first one, which said yes before, has not moved. */
START_TEST(a_rejected_rebind_moves_nothing)
{
    static inputs_t in;
    layout_t layout = usual_layout(20);
    cache_t first = new_cache(&layout);
    layout.parents = 40;
    cache_t second = new_cache(&layout);
    fake_t *last = NULL;
    fake_t *root = new_composite(&last);
    bind(&root->base, &first);
    ck_assert_int_eq(refresh(&root->base, &in, 21, BS_MAX), STATUS_OK);
    static float before_out[LAYERS][BS_MAX * 64];
    static float after_out[LAYERS][BS_MAX * 64];
    backend_t *router = root->base.children[0];
    attend(router, &first, before_out);
    view_t before = view_of(&root->base, BS_MAX);
    ck_assert_uint_gt(before.count, 6);
    const int32_t *locations = backend_write_locations(router, 1, BACKEND_MODE_DECODE);
    uint64_t used_bytes = device_memory_used_bytes(device);

    last->refuses = true;
    ck_assert_int_eq(backend_validate_cache_pool(&root->base, &second.pool), STATUS_ERR_INVALID);
    ck_assert_int_eq(backend_set_cache_pool(&root->base, &second.pool), STATUS_ERR_INVALID);
    view_t after = view_of(&root->base, BS_MAX);
    ck_assert_uint_eq(after.addresses, before.addresses);
    ck_assert_uint_eq(after.contents, before.contents);
    ck_assert_uint_eq(device_memory_used_bytes(device), used_bytes);
    ck_assert_uint_eq(last->publish_count, 1);
    ck_assert_uint_eq(root->publish_count, 1);
    ck_assert_ptr_eq(router->pool.memory, first.pool.memory);
    ck_assert_ptr_eq(root->base.pool.memory, first.pool.memory);
    ck_assert_ptr_eq(backend_write_locations(router, 1, BACKEND_MODE_DECODE), locations);
    attend(router, &first, after_out); /* and it still works on the old one, without a refresh */
    ck_assert_mem_eq(before_out, after_out, sizeof before_out);

    last->refuses = false;
    bind(&root->base, &second);
    ck_assert_ptr_eq(router->pool.memory, second.pool.memory);
    ck_assert_uint_eq(last->publish_count, 2);
    backend_t *tree = &root->base;
    backend_destroy(&tree);
    close_cache(&first);
    close_cache(&second);
}
END_TEST

/* A node that could be bound to one pool only by accident of order would show here: bound small,
 * used, bound large is the same as bound large. */
START_TEST(a_rebound_tree_is_as_one_first_bound_to_that_pool)
{
    static inputs_t in;
    static float outputs[2][LAYERS][BS_MAX * 64];
    layout_t layout = usual_layout(8);
    cache_t small = new_cache(&layout);
    layout.parents = 40;
    cache_t large = new_cache(&layout);
    backend_t *rebound = new_router();
    backend_t *fresh = new_router();
    bind(rebound, &small);
    ck_assert_int_eq(refresh(rebound, &in, 9, BS_MAX), STATUS_OK);
    attend(rebound, &small, outputs[0]);
    bind(rebound, &large);
    bind(fresh, &large);
    backend_t *both[] = {rebound, fresh};
    view_t views[2];
    for (int i = 0; i < 2; i++) {
        for (uint32_t bs = 1; bs < BS_MAX; bs++) {
            views[i] = view_of(both[i], bs);
            ck_assert_uint_eq(views[i].count, 0); /* no view of the old pool is left */
        }
        ck_assert_int_eq(refresh(both[i], &in, 41, BS_MAX), STATUS_OK);
        attend(both[i], &large, outputs[i]);
        views[i] = view_of(both[i], BS_MAX);
        ck_assert_ptr_eq(both[i]->pool.memory, large.pool.memory);
    }
    ck_assert_uint_eq(views[0].count, views[1].count);
    ck_assert_uint_eq(views[0].contents, views[1].contents);
    ck_assert_mem_eq(outputs[0], outputs[1], sizeof outputs[0]);
    backend_destroy(&rebound);
    backend_destroy(&fresh);
    close_cache(&small);
    close_cache(&large);
}
END_TEST

/* One property of the geometry at a time; whatever else agrees, it is refused. */
START_TEST(every_changed_geometry_property_is_refused)
{
    static const char *const names[] = {
        "granularity", "kind",  "window",      "packing", "identity", "rows",        "heads",
        "head dim",    "dtype", "field group", "plane",   "layers",   "first layer", "prefix",
    };
    enum { PROPERTIES = sizeof names / sizeof *names };
    static inputs_t in;
    /* The plan has a layer more than the pool, so that the pool's range can change alone. */
    layout_t usual = usual_layout(20);
    usual.layers = LAYERS + 1;
    usual.groups[1].packing = 3;
    cache_t first = new_cache(&usual);
    ck_assert_int_eq(cache_pool_init(&first.pool, first.plan, first.arena, 0, LAYERS), STATUS_OK);
    fake_t *last = NULL;
    fake_t *root = new_composite(&last);
    bind(&root->base, &first);
    ck_assert_int_eq(refresh(&root->base, &in, 21, BS_MAX), STATUS_OK);
    view_t before = view_of(&root->base, BS_MAX);
    uint32_t refused = 0;
    for (uint32_t p = 0; p < PROPERTIES; p++) {
        layout_t layout = usual;
        cache_t other;
        uint32_t first_layer = 0;
        uint32_t layer_count = LAYERS;
        switch (p) {
        case 0:
            layout.groups[0].granularity = 8;
            for (uint32_t i = 0; i < 2 * (LAYERS + 1); i++) {
                layout.fields[i].rows = layout.fields[i].group == 0 ? 8 : 16;
            }
            break;
        case 1:
            layout.groups[1].kind = CACHE_KIND_FULL;
            layout.groups[1].window = 0;
            break;
        case 2:
            layout.groups[1].window = 41;
            break;
        case 3:
            layout.groups[1].packing = 1;
            break;
        case 4:
            layout.groups[0].id = "another";
            break;
        case 5:
            layout.fields[2].rows = 32;
            break;
        case 6:
            layout.fields[0].heads = 1;
            break;
        case 7:
            layout.fields[1].head_dim = 32;
            break;
        case 8:
            layout.fields[4].dtype = CACHE_DTYPE_F16;
            break;
        case 9:
            layout.fields[4].group = 1;
            layout.fields[5].group = 1;
            break;
        case 10:
            layout.fields[0].plane = 1;
            layout.fields[1].plane = 0;
            break;
        case 11:
            layer_count = LAYERS + 1;
            break;
        case 12:
            first_layer = 1;
            break;
        default:
            layout.prefix_granularity = 32;
            break;
        }
        if (try_cache(&layout, &other) != STATUS_OK) {
            ck_abort_msg("%s: no such cache to offer", names[p]);
        }
        ck_assert_int_eq(cache_pool_init(&other.pool, other.plan, other.arena, first_layer,
                                         layer_count),
                         STATUS_OK);
        proto_status_t status = backend_set_cache_pool(&root->base, &other.pool);
        ck_assert_msg(status == STATUS_ERR_INVALID, "%s: %s", names[p], proto_status_name(status));
        view_t after = view_of(&root->base, BS_MAX);
        ck_assert_msg(after.addresses == before.addresses && after.contents == before.contents,
                      "%s: something moved", names[p]);
        ck_assert_uint_eq(last->publish_count, 1);
        close_cache(&other);
        refused++;
    }
    ck_assert_uint_eq(refused, PROPERTIES);
    /* Page counts may change, both ways. */
    static const uint32_t parents[] = {21, 4, 300};
    for (uint32_t i = 0; i < 3; i++) {
        layout_t layout = usual;
        layout.parents = parents[i];
        cache_t other = new_cache(&layout);
        ck_assert_int_eq(cache_pool_init(&other.pool, other.plan, other.arena, 0, LAYERS),
                         STATUS_OK);
        bind(&root->base, &other);
        ck_assert_int_eq(refresh(&root->base, &in, parents[i] + 1, BS_MAX), STATUS_OK);
        bind(&root->base, &first);
        close_cache(&other);
    }
    backend_t *tree = &root->base;
    backend_destroy(&tree);
    close_cache(&first);
}
END_TEST

/* Metadata made for the old pool is gone with it: a refresh is refused until the decode buffers
 * were made again. */
START_TEST(a_publish_drops_what_was_derived_from_the_pool)
{
    static inputs_t in;
    layout_t layout = usual_layout(20);
    cache_t first = new_cache(&layout);
    backend_t *router = new_router();
    bind(router, &first);
    ck_assert_int_eq(refresh(router, &in, 21, BS_MAX), STATUS_OK);
    uint64_t with_buffers = device_memory_used_bytes(device);
    ck_assert_int_eq(backend_set_cache_pool(router, &first.pool), STATUS_OK);
    ck_assert_uint_lt(device_memory_used_bytes(device), with_buffers);
    ck_assert(!router->has_graph_state);
    if (_i == 0) {
        (void)refresh(router, &in, 21, BS_MAX); /* aborts */
    } else {
        (void)backend_write_locations(router, 0, BACKEND_MODE_DECODE); /* aborts */
    }
}
END_TEST

/* ---- the workspace ----------------------------------------------------------------------------
 */

START_TEST(a_frozen_workspace_grows_for_nobody)
{
    open_device();
    run_workspace_t workspace;
    run_workspace_init(&workspace, device);
    ck_assert_int_eq(run_workspace_reserve(&workspace, "first", 1000), STATUS_OK);
    ck_assert_int_eq(run_workspace_reserve(&workspace, "second", 5000), STATUS_OK);
    void *memory = workspace.memory;
    run_workspace_freeze(&workspace);
    ck_assert_int_eq(run_workspace_reserve(&workspace, "third", 5000), STATUS_OK);
    ck_assert_int_eq(run_workspace_reserve(&workspace, "fourth", 5001), STATUS_ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(workspace.fault, "fourth"));
    ck_assert_ptr_nonnull(strstr(workspace.fault, "5001"));
    ck_assert_ptr_eq(workspace.memory, memory);
    run_workspace_unfreeze(&workspace);
    ck_assert_int_eq(run_workspace_reserve(&workspace, "fourth", 5001), STATUS_OK);
    ck_assert_uint_eq(workspace.size_bytes, 5001);
    run_workspace_fini(&workspace);
    close_device();
}
END_TEST

/* ---- the executor -----------------------------------------------------------------------------
 */

static char model_path[600];

static run_executor_options_t
tiny_options(const char *fixture)
{
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture(fixture));
    return (run_executor_options_t){
        .model_path = model_path,
        .slot_count = SLOTS,
        .model_len_max = 256,
        .step_tokens_max = 128,
        .block_granularity = strcmp(fixture, "tiny-qwen35") == 0 ? 64 : 16, /* of states */
        .capture_bs_max = 4,
        .graph_debug = true,
    };
}

/* A test double: the real tree, with a helper that hands out `leaked`, and whose decode buffers are
 * made with the executor's workspace frozen and lost. */
static backend_vtable_t bad_vtable;
static const backend_vtable_t *good_vtable;
static const void *leaked;
static run_workspace_t *spoilt;

static void
bad_visit(const backend_t *self, uint32_t bs, backend_visit_fn visit, void *context)
{
    good_vtable->visit_decode_slot(self, bs, visit, context);
    if (leaked != NULL) {
        visit(context, "a helper's memo", leaked, 64);
    }
}

static proto_status_t
bad_init(backend_t *self)
{
    if (spoilt != NULL) {
        run_workspace_freeze(spoilt);
        spoilt->size_bytes = 0;
    }
    return good_vtable->init_cuda_graph_state(self);
}

static void
make_bad(backend_t *root)
{
    good_vtable = root->vtable;
    bad_vtable = *root->vtable;
    bad_vtable.visit_decode_slot = bad_visit;
    bad_vtable.init_cuda_graph_state = bad_init;
    root->vtable = &bad_vtable;
}

/* Each with its own sentence: not every internal error is a graph's metadata that moved. */
START_TEST(faults_of_a_rebind_and_of_a_leak_are_told)
{
    const run_plants_t plants = {.adjust_backend = make_bad};
    run_executor_options_t options = tiny_options("tiny-llama");
    options.plants = &plants;
    leaked = NULL;
    spoilt = NULL;
    driver_t driver;
    driver_open(&driver, &options);
    run_executor_t *executor = driver.executor;
    int32_t prompt[5];
    float logits[VOCABULARY];
    uint32_t rows = 0;
    driver_random_tokens(3, VOCABULARY, prompt, 5);
    driver_setup(&driver, 1, prompt, 5, NULL);
    (void)driver_prefill(&driver, 1, prompt, 5, 5);
    ck_assert_int_eq(run_inspect_logits(executor, logits, VOCABULARY, &rows), STATUS_OK);
    ck_assert_uint_eq(rows, 1);
    spoilt = &executor->workspace;
    ck_assert_int_eq(run_executor_rebind(executor, cache_plan_parent_count(executor->plan)),
                     STATUS_ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(run_executor_fault(executor), "the eager forward asks for"));
    ck_assert_int_eq(run_inspect_logits(executor, logits, VOCABULARY, &rows), STATUS_OK);
    ck_assert_uint_eq(rows, 0); /* those of the old cache are gone */
    driver_close(&driver);
    spoilt = NULL;
    driver_open(&driver, &options);
    executor = driver.executor;
    driver_setup(&driver, 1, prompt, 5, NULL);
    (void)driver_prefill(&driver, 1, prompt, 5, 5);
    run_executor_set_graphs(executor, false);
    size_t pool_bytes = 0;
    leaked = device_pool_memory(run_forward_step_pool(executor->runner), &pool_bytes);
    uint32_t slot = 1;
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(run_executor_fault(executor), "leaked from a capture"));
    ck_assert_ptr_nonnull(strstr(run_executor_fault(executor), "a helper's memo"));
    driver_close(&driver);
    leaked = NULL;
}
END_TEST

/* Prefills every slot, decodes 12 rounds of every batch size, and digests tokens and logits. */
static uint64_t
transcript(driver_t *driver)
{
    static int32_t prompts[SLOTS + 1][40];
    static float logits[SLOTS * VOCABULARY];
    uint64_t digest = fnv_offset;
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        uint32_t length = 5 + 5 * slot;
        driver_random_tokens(slot, VOCABULARY, prompts[slot], length);
        driver_setup(driver, slot, prompts[slot], length, NULL);
        int32_t token = driver_prefill(driver, slot, prompts[slot], length, 64);
        digest = mix(digest, &token, sizeof token);
    }
    for (uint32_t round = 0; round < 2 * SLOTS; round++) {
        uint32_t bs = 1 + round % SLOTS;
        uint32_t slots[SLOTS];
        for (uint32_t i = 0; i < bs; i++) {
            slots[i] = 1 + (round + i) % SLOTS;
        }
        driver_result_t result;
        driver_step(driver, NULL, 0, slots, bs, &result);
        driver_logits(driver, logits, SLOTS * VOCABULARY, bs);
        ck_assert_int_eq(result.mode, bs <= 4 ? PROTO_STEP_DECODE_GRAPH : PROTO_STEP_DECODE_ABOVE);
        digest = mix(digest, result.tokens, bs * sizeof(int32_t));
        digest = mix(digest, logits, bs * VOCABULARY * sizeof(float));
    }
    for (uint32_t block = 1; block <= SLOTS * driver->columns; block++) {
        uint64_t part = 0;
        ck_assert_int_eq(run_inspect_block_digest(driver->executor, 0, block, &part), STATUS_OK);
        digest = mix(digest, &part, sizeof part);
    }
    return digest;
}

static const char *const fixtures[] = {"tiny-llama", "tiny-qwen3", "tiny-qwen35"};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };

/* Start-up probes, so every executor is a rebound one, unless it was told its cache's size. */
START_TEST(a_probed_executor_is_as_one_of_that_size)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    uint32_t parents = driver.info.parent_count - 1;
    uint64_t probed = transcript(&driver);
    uint64_t used_bytes = run_inspect_used_bytes(driver.executor);
    driver_close(&driver);
    uint64_t bytes = 0;
    for (uint64_t size = 4 << 20; bytes == 0; size += 1 << 10) {
        options.cache_size_bytes = size;
        driver_open(&driver, &options);
        bytes = driver.info.parent_count - 1 == parents ? size : 0;
        if (bytes == 0) {
            size = size / driver.info.parent_count * (parents + 1);
            driver_close(&driver);
        }
    }
    ck_assert_uint_eq(transcript(&driver), probed);
    ck_assert_uint_eq(run_inspect_used_bytes(driver.executor), used_bytes);
    driver_close(&driver);
}
END_TEST

/* The same at run time, to a larger cache and to a smaller one, and no memory is lost. */
START_TEST(an_executor_can_be_rebound_while_it_runs)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    uint32_t parents = driver.info.parent_count - 1;
    uint64_t expected = transcript(&driver);
    uint64_t used_bytes = run_inspect_used_bytes(driver.executor);
    static const uint32_t more[] = {50, 0, 400, 0};
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(run_inspect_rebind(driver.executor, parents + more[i]), STATUS_OK);
        memset(driver.is_patched, 0, sizeof driver.is_patched);
        ck_assert_uint_eq(run_inspect_graph_count(driver.executor), 3);
        ck_assert_uint_eq(transcript(&driver), expected);
    }
    ck_assert_uint_eq(run_inspect_used_bytes(driver.executor), used_bytes);
    ck_assert_int_eq(run_inspect_plant_rebind(driver.executor), STATUS_OK);
    ck_assert_int_eq(run_inspect_rebind(driver.executor, parents), STATUS_ERR_INVALID);
    driver_close(&driver);
}
END_TEST

/* Reads "memory: A bytes ... = N name + N name ...": A and the sum must agree. */
static void
check_sum(const char *line, uint32_t terms_min)
{
    char *end = NULL;
    line += strlen("memory: ");
    uint64_t total = strtoull(line, &end, 10);
    const char *at = strstr(end, " = ");
    ck_assert_ptr_nonnull(at);
    uint64_t sum = 0;
    uint32_t terms = 0;
    for (at += 3; at != NULL; at = strstr(at, " + ")) {
        at += terms > 0 ? 3 : 0;
        uint64_t value = strtoull(at, &end, 10);
        ck_assert_ptr_ne(end, at);
        ck_assert(*end == ' ' && end[1] >= 'a' && end[1] <= 'z'); /* each is named */
        sum += value;
        terms++;
    }
    ck_assert_uint_ge(terms, terms_min);
    ck_assert_uint_eq(sum, total);
}

START_TEST(the_logged_memory_sum_adds_up)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    const char *line = strstr(run_executor_summary(driver.executor), "memory: ");
    ck_assert_ptr_nonnull(line);
    check_sum(line, 9);
    /* What the real capture took beside the cache is what the probe's took. */
    uint64_t fixed = 0;
    for (const char *at = strstr(line, " = ") + 3; strstr(at, "reserve") != NULL;) {
        uint64_t value = strtoull(at, NULL, 10);
        const char *name = strchr(at, ' ') + 1;
        if (strncmp(name, "reserve", 7) == 0) {
            break;
        }
        fixed += value;
        at = strstr(at, " + ") + 3;
    }
    const char *after = strstr(line, "after the rebind ");
    ck_assert_ptr_nonnull(after);
    ck_assert_uint_eq(strtoull(after + strlen("after the rebind "), NULL, 10), fixed);
    driver_close(&driver);

    options.cache_size_bytes = 8 << 20;
    driver_open(&driver, &options);
    line = strstr(run_executor_summary(driver.executor), "memory: ");
    ck_assert_ptr_nonnull(line);
    check_sum(line, 9);
    driver_close(&driver);
}
END_TEST

/* An explicit size is checked against all that is needed, not against the cache alone. */
START_TEST(a_size_that_leaves_no_room_for_the_rest_is_refused)
{
    char error[1024] = "";
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    options.cache_size_bytes = 8 << 20;
    driver_open(&driver, &options);
    const char *line = strstr(run_executor_summary(driver.executor), "memory: ");
    ck_assert_ptr_nonnull(line);
    uint64_t total = strtoull(line + strlen("memory: "), NULL, 10);
    driver_close(&driver);
    options.error = error;
    options.error_size_bytes = sizeof error;
    options.cache_size_bytes = total - 4096;
    run_executor_t *executor = NULL;
    ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "beside the cache"));
    ck_assert_ptr_nonnull(strstr(error, "decode metadata"));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.rebind");
    TCase *trees = tcase_create("trees");
    tcase_add_checked_fixture(trees, open_device, close_device);
    tcase_add_test(trees, a_rejected_rebind_moves_nothing);
    tcase_add_test(trees, a_rebound_tree_is_as_one_first_bound_to_that_pool);
    tcase_add_test(trees, every_changed_geometry_property_is_refused);
    suite_add_tcase(suite, trees);
    TCase *aborts = tcase_create("aborts");
    tcase_add_checked_fixture(aborts, open_device, NULL);
    tcase_add_loop_test_raise_signal(aborts, a_publish_drops_what_was_derived_from_the_pool, 6, 0,
                                     2);
    suite_add_tcase(suite, aborts);
    TCase *executors = tcase_create("executors");
    tcase_set_timeout(executors, 120);
    tcase_add_test(executors, a_frozen_workspace_grows_for_nobody);
    tcase_add_test(executors, faults_of_a_rebind_and_of_a_leak_are_told);
    tcase_add_loop_test(executors, a_probed_executor_is_as_one_of_that_size, 0, FIXTURE_COUNT);
    tcase_add_loop_test(executors, an_executor_can_be_rebound_while_it_runs, 0, FIXTURE_COUNT);
    tcase_add_loop_test(executors, the_logged_memory_sum_adds_up, 0, FIXTURE_COUNT);
    tcase_add_test(executors, a_size_that_leaves_no_room_for_the_rest_is_refused);
    suite_add_tcase(suite, executors);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
