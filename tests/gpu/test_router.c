/* The cache group router and its leaf: slot math, padding, delivery, views, rebinding. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "device_host.h"
#include "router_cache_group.h"
#include "run_guard.h"

enum {
    GRANULARITY = 64,
    PARENTS = 40,
    BS_MAX = 6,
    MODEL_LEN = 500,
    STEP_TOKENS = 300,
    COLUMNS = 8,
    LAYERS = 2,
};

static device_t *device;
static device_stream_t *stream;
static cache_plan_t *plan;
static cache_arena_t *arena;

typedef struct {
    int32_t blocks[BS_MAX * COLUMNS];
    int32_t slots[BS_MAX];
    int32_t seq_lens[BS_MAX];
    int32_t extend_lens[BS_MAX];
    int32_t prefix_lens[BS_MAX];
    int32_t cu_lens[BS_MAX + 1];
    int32_t zeros[BS_MAX + 1];
} inputs_t;

static void
make_plan(cache_plan_t **out_p, uint32_t parents, uint32_t heads)
{
    cache_group_t group = {.id = "full",
                           .kind = CACHE_KIND_FULL,
                           .granularity = GRANULARITY,
                           .packing = 1};
    cache_field_t fields[2 * LAYERS];
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        fields[i] = (cache_field_t){.layer = i / 2,
                                    .name = i % 2 == 0 ? CACHE_FIELD_K : CACHE_FIELD_V,
                                    .plane = i,
                                    .rows = GRANULARITY,
                                    .heads = heads,
                                    .head_dim = 16,
                                    .dtype = CACHE_DTYPE_F32};
    }
    cache_plan_options_t options = {.groups = &group,
                                    .group_count = 1,
                                    .fields = fields,
                                    .field_count = 2 * LAYERS,
                                    .prefix_granularity = GRANULARITY};
    ck_assert_int_eq(cache_plan_new(&options, out_p), STATUS_OK);
    ck_assert_int_eq(cache_plan_bind(*out_p, parents), STATUS_OK);
}

static void
open_all(void)
{
    device_host_options_t options = {.thread_count = 2, .path = KERN_PATH_PORTABLE};
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
    make_plan(&plan, PARENTS, 1);
    ck_assert_int_eq(cache_arena_new(device, plan, &arena), STATUS_OK);
}

static void
close_all(void)
{
    cache_arena_destroy(&arena);
    cache_plan_destroy(&plan);
    device_stream_destroy(&stream);
    device_destroy(&device);
}

static backend_t *
new_router(uint32_t page_size, uint32_t width)
{
    router_cache_group_options_t options = {
        .backend = {.device = device,
                    .stream = stream,
                    .bs_max = BS_MAX,
                    .width = width,
                    .step_tokens_max = STEP_TOKENS,
                    .model_len_max = MODEL_LEN,
                    .q_heads = 2,
                    .kv_heads = 1,
                    .head_dim = 16},
        .page_size = page_size,
    };
    backend_t *router = NULL;
    cache_pool_t pool;
    ck_assert_int_eq(router_cache_group_new(&options, &router), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&pool, plan, arena, 0, LAYERS), STATUS_OK);
    ck_assert_int_eq(backend_set_cache_pool(router, &pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(router), STATUS_OK);
    return router;
}

/* Scattered blocks, a hole, lengths on both sides of block ends. */
static void
fill_inputs(inputs_t *in)
{
    memset(in, 0, sizeof *in);
    static const int32_t lengths[BS_MAX] = {1, 64, 65, 300, 128, 500};
    for (uint32_t b = 0; b < BS_MAX; b++) {
        in->slots[b] = (int32_t)b + 1;
        in->seq_lens[b] = lengths[b];
        for (uint32_t c = 0; c < COLUMNS; c++) {
            in->blocks[b * COLUMNS + c] = (int32_t)(1 + (b * 7 + c * 11) % PARENTS);
        }
    }
    in->blocks[3 * COLUMNS + 1] = 0;  /* an expired column */
    in->blocks[4 * COLUMNS + 5] = -1; /* right pad */
}

static backend_tables_t
tables_of(const inputs_t *in)
{
    backend_tables_t tables = {.group_count = 1};
    tables.groups[0] =
        (backend_table_t){.blocks = in->blocks, .stride = COLUMNS, .columns = COLUMNS};
    return tables;
}

static proto_status_t
refresh(backend_t *router, const inputs_t *in, uint32_t bs, uint32_t actual_bs, bool is_replay)
{
    backend_tables_t tables = tables_of(in);
    backend_refresh_t what = {.bs = bs,
                              .actual_bs = actual_bs,
                              .request_slots = in->slots,
                              .seq_lens = in->seq_lens,
                              .mode = BACKEND_MODE_DECODE,
                              .tables = &tables,
                              .num_extends = 0,
                              .for_graph_replay = is_replay};
    proto_status_t status = backend_refresh_decode_metadata(router, &what);
    if (status == STATUS_OK) {
        ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    }
    return status;
}

static backend_extend_t
extend_of(const inputs_t *in, const backend_tables_t *tables, uint32_t bs, uint32_t num_extends)
{
    backend_extend_t extend = {.bs = bs,
                               .num_extends = num_extends,
                               .request_slots = in->slots,
                               .seq_lens = in->seq_lens,
                               .mode = num_extends == bs ? BACKEND_MODE_EXTEND : BACKEND_MODE_MIXED,
                               .tables = tables,
                               .extend_seq_lens = in->extend_lens,
                               .extend_prefix_lens = in->prefix_lens,
                               .extend_cu_lens = in->cu_lens,
                               .extend_seq_lens_host = in->extend_lens,
                               .extend_prefix_lens_host = in->prefix_lens,
                               .extend_replay_lens_host = in->zeros,
                               .extend_prompt_lens_host = in->zeros,
                               .extend_with_prefix = true};
    return extend;
}

/* The slot as defined, from the raw table. */
static int32_t
slot_of(const inputs_t *in, uint32_t request, int32_t position)
{
    if (position < 0 || position / GRANULARITY >= COLUMNS) {
        return 0;
    }
    int32_t block = in->blocks[request * COLUMNS + (uint32_t)position / GRANULARITY];
    return block <= 0 ? 0 : block * GRANULARITY + position % GRANULARITY;
}

/* A slot must not depend on how a kernel cuts the cache into pages. */
START_TEST(slots_do_not_depend_on_the_page_size)
{
    static const uint32_t page_sizes[] = {64, 32, 16, 4, 1};
    static const uint32_t widths[] = {1, 3};
    static inputs_t in;
    fill_inputs(&in);
    for (size_t i = 0; i < 5; i++) {
        for (size_t w = 0; w < 2; w++) {
            uint32_t width = widths[w];
            backend_t *router = new_router(page_sizes[i], width);
            ck_assert_int_eq(refresh(router, &in, BS_MAX, BS_MAX, false), STATUS_OK);
            const int32_t *locations = backend_write_locations(router, 1, BACKEND_MODE_DECODE);
            for (uint32_t b = 0; b < BS_MAX; b++) {
                for (uint32_t t = 0; t < width; t++) {
                    int32_t position = in.seq_lens[b] - (int32_t)width + (int32_t)t;
                    ck_assert_int_eq(locations[b * width + t], slot_of(&in, b, position));
                }
            }
            backend_destroy(&router);
        }
    }
}
END_TEST

START_TEST(extend_spans_follow_the_table)
{
    static inputs_t in;
    fill_inputs(&in);
    static const int32_t prefixes[] = {0, 60, 10};
    static const int32_t lengths[] = {64, 9, 200};
    for (uint32_t i = 0; i < 3; i++) {
        in.prefix_lens[i] = prefixes[i];
        in.extend_lens[i] = lengths[i];
        in.cu_lens[i + 1] = in.cu_lens[i] + lengths[i];
        in.seq_lens[i] = prefixes[i] + lengths[i];
    }
    backend_t *router = new_router(16, 1);
    backend_tables_t tables = tables_of(&in);
    backend_extend_t extend = extend_of(&in, &tables, 5, 3); /* two decodes behind them */
    ck_assert_int_eq(backend_init_forward_metadata(router, &extend), STATUS_OK);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    const int32_t *locations = backend_write_locations(router, 0, BACKEND_MODE_MIXED);
    uint32_t at = 0;
    for (uint32_t b = 0; b < 3; b++) {
        for (int32_t j = 0; j < lengths[b]; j++) {
            ck_assert_int_eq(locations[at++], slot_of(&in, b, prefixes[b] + j));
        }
    }
    for (uint32_t b = 3; b < 5; b++) {
        ck_assert_int_eq(locations[at++], slot_of(&in, b, in.seq_lens[b] - 1));
    }
    backend_destroy(&router);
}
END_TEST

/* Pages as the kernels see them: expanded, pads and holes and tails null. */
START_TEST(tables_are_expanded_and_padded_with_the_null_page)
{
    static inputs_t in;
    fill_inputs(&in);
    backend_t *router = new_router(16, 1);
    size_t stride = 0;
    uint32_t page_size = 0;
    ck_assert_int_eq(refresh(router, &in, BS_MAX, BS_MAX, false), STATUS_OK);
    ck_assert_int_eq(refresh(router, &in, BS_MAX, 4, true), STATUS_OK);
    const int32_t *pages = router_cache_group_table(router, 0, &stride, &page_size);
    ck_assert_uint_eq(page_size, 16);
    ck_assert_uint_ge(stride, (MODEL_LEN + 15) / 16);
    const int32_t *locations = backend_write_locations(router, 0, BACKEND_MODE_DECODE);
    for (uint32_t b = 0; b < BS_MAX; b++) {
        for (uint32_t c = 0; c < stride; c++) {
            int32_t block = b < 4 && c / 4 < COLUMNS ? in.blocks[b * COLUMNS + c / 4] : 0;
            int32_t wanted = block <= 0 ? 0 : block * 4 + (int32_t)(c % 4);
            ck_assert_int_eq(pages[b * stride + c], wanted);
        }
        if (b >= 4) {
            ck_assert_int_eq(locations[b], 0);
        }
    }
    backend_destroy(&router);
}
END_TEST

typedef struct {
    uint32_t count;
    char paths[16][BACKEND_PATH_SIZE_BYTES];
    const void *addresses[16];
    size_t sizes[16];
    int32_t contents[16][64];
} visit_t;

static void
visit_one(void *context, const char *path, const void *address, size_t size_bytes)
{
    visit_t *visit = context;
    ck_assert_uint_lt(visit->count, 16);
    (void)snprintf(visit->paths[visit->count], BACKEND_PATH_SIZE_BYTES, "%s", path);
    visit->addresses[visit->count] = address;
    visit->sizes[visit->count] = size_bytes;
    size_t bytes = size_bytes < sizeof *visit->contents ? size_bytes : sizeof *visit->contents;
    memcpy(visit->contents[visit->count], address, bytes);
    visit->count++;
}

/* Live requests see the same metadata whether the step is eager or padded for a replay. */
START_TEST(eager_and_padded_refresh_agree_on_live_requests)
{
    static inputs_t in;
    static visit_t eager;
    static visit_t replay;
    fill_inputs(&in);
    for (uint32_t live = 1; live <= BS_MAX; live++) {
        memset(&eager, 0, sizeof eager);
        memset(&replay, 0, sizeof replay);
        backend_t *router = new_router(64, 1);
        ck_assert_int_eq(refresh(router, &in, live, live, false), STATUS_OK);
        backend_visit_decode_slot(router, live, visit_one, &eager);
        ck_assert_int_eq(refresh(router, &in, BS_MAX, live, true), STATUS_OK);
        backend_visit_decode_slot(router, BS_MAX, visit_one, &replay);
        ck_assert_uint_gt(eager.count, 2);
        ck_assert_uint_eq(eager.count, replay.count);
        for (uint32_t i = 0; i < eager.count; i++) {
            ck_assert_ptr_eq(eager.addresses[i], replay.addresses[i]);
            if (strstr(eager.paths[i], "workspace") == NULL) {
                size_t bytes = eager.sizes[i] < 256 ? eager.sizes[i] : 256;
                ck_assert_mem_eq(eager.contents[i], replay.contents[i], bytes);
            }
            if (strstr(replay.paths[i], "seq_lens") != NULL) {
                for (uint32_t b = live; b < BS_MAX; b++) {
                    ck_assert_int_eq(replay.contents[i][b], 1);
                }
            }
        }
        backend_destroy(&router);
    }
}
END_TEST

/* Idle: a batch without live requests is legal, over placeholder tables, and all null. */
START_TEST(capture_is_the_idle_refresh)
{
    static inputs_t in;
    static int32_t zeros[BS_MAX * COLUMNS];
    fill_inputs(&in);
    backend_t *router = new_router(64, 2);
    ck_assert_int_eq(refresh(router, &in, BS_MAX, BS_MAX, false), STATUS_OK);
    backend_tables_t placeholder = {.group_count = 1};
    placeholder.groups[0] =
        (backend_table_t){.blocks = zeros, .stride = COLUMNS, .columns = COLUMNS};
    ck_assert_int_eq(backend_capture_forward_metadata(router, BS_MAX, in.slots, in.seq_lens,
                                                      &placeholder),
                     STATUS_OK);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    static visit_t visit;
    memset(&visit, 0, sizeof visit);
    backend_visit_decode_slot(router, BS_MAX, visit_one, &visit);
    for (uint32_t i = 0; i < visit.count; i++) {
        bool is_lens = strstr(visit.paths[i], "seq_lens") != NULL;
        bool is_workspace = strstr(visit.paths[i], "workspace") != NULL;
        for (uint32_t b = 0; !is_workspace && b < BS_MAX; b++) {
            ck_assert_int_eq(visit.contents[i][b], is_lens ? 2 : 0); /* the floor N */
        }
    }
    backend_destroy(&router);
}
END_TEST

/* Stale pages would be served otherwise. */
START_TEST(a_live_batch_without_a_group_is_refused)
{
    static inputs_t in;
    fill_inputs(&in);
    backend_t *router = new_router(64, 1);
    backend_tables_t missing = {.group_count = 1};
    backend_refresh_t what = {.bs = 2,
                              .actual_bs = 2,
                              .request_slots = in.slots,
                              .seq_lens = in.seq_lens,
                              .mode = BACKEND_MODE_DECODE,
                              .tables = &missing};
    ck_assert_int_eq(backend_refresh_decode_metadata(router, &what), STATUS_ERR_INVALID);
    missing.group_count = 0;
    ck_assert_int_eq(backend_refresh_decode_metadata(router, &what), STATUS_ERR_INVALID);
    what.actual_bs = 0; /* idle: nothing is read */
    ck_assert_int_eq(backend_refresh_decode_metadata(router, &what), STATUS_OK);
    in.extend_lens[0] = 4;
    in.cu_lens[1] = 4;
    backend_extend_t extend = extend_of(&in, &missing, 1, 1);
    ck_assert_int_eq(backend_init_forward_metadata(router, &extend), STATUS_ERR_INVALID);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    backend_destroy(&router);
}
END_TEST

/* There is one decode path, and no default hides a forgotten input. */
START_TEST(init_refuses_decode_an_incomplete_bundle_and_replay)
{
    static inputs_t in;
    fill_inputs(&in);
    in.extend_lens[0] = 4;
    in.cu_lens[1] = 4;
    backend_t *router = new_router(64, 1);
    backend_tables_t tables = tables_of(&in);
    backend_extend_t good = extend_of(&in, &tables, 1, 1);
    backend_extend_t bad = good;
    bad.mode = BACKEND_MODE_DECODE;
    ck_assert_int_eq(backend_init_forward_metadata(router, &bad), STATUS_ERR_INVALID);
    size_t offsets[] = {
        offsetof(backend_extend_t, extend_seq_lens),
        offsetof(backend_extend_t, extend_prefix_lens),
        offsetof(backend_extend_t, extend_cu_lens),
        offsetof(backend_extend_t, extend_seq_lens_host),
        offsetof(backend_extend_t, extend_prefix_lens_host),
        offsetof(backend_extend_t, extend_replay_lens_host),
        offsetof(backend_extend_t, extend_prompt_lens_host),
    };
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        bad = good;
        memset((uint8_t *)&bad + offsets[i], 0, sizeof(void *));
        ck_assert_int_eq(backend_init_forward_metadata(router, &bad), STATUS_ERR_INVALID);
    }
    int32_t replay[BS_MAX] = {1};
    bad = good;
    bad.extend_replay_lens_host = replay;
    ck_assert_int_eq(backend_init_forward_metadata(router, &bad), STATUS_ERR_INVALID);
    in.extend_lens[0] = STEP_TOKENS + 1;
    ck_assert_int_eq(backend_init_forward_metadata(router, &good), STATUS_ERR_INVALID);
    in.extend_lens[0] = 4;
    ck_assert_int_eq(backend_init_forward_metadata(router, &good), STATUS_OK);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    backend_destroy(&router);
}
END_TEST

/* A size that was never captured builds its views at its first refresh and keeps them. */
START_TEST(lazily_built_views_are_pointer_stable)
{
    static inputs_t in;
    fill_inputs(&in);
    backend_t *router = new_router(64, 1);
    run_guard_t *guards[BS_MAX + 1] = {NULL};
    for (uint32_t bs = 1; bs <= BS_MAX; bs++) {
        ck_assert_int_eq(refresh(router, &in, bs, bs, false), STATUS_OK);
        ck_assert_int_eq(run_guard_new(router, bs, &guards[bs]), STATUS_OK);
    }
    const char *path = NULL;
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t bs = 1 + (round * 5) % BS_MAX;
        ck_assert_int_eq(refresh(router, &in, bs, 1 + round % bs, round % 2 == 0), STATUS_OK);
        for (uint32_t i = 1; i <= BS_MAX; i++) {
            ck_assert_int_eq(run_guard_verify(guards[i], router, &path), STATUS_OK);
        }
    }
    /* New storage behind the same views: the guard names what moved. */
    void *wedge = NULL;
    ck_assert_int_eq(backend_init_cuda_graph_state(router), STATUS_OK);
    ck_assert_int_eq(device_alloc(device, DEVICE_MEMORY_DEVICE, 1, &wedge), STATUS_OK);
    ck_assert_int_eq(run_guard_verify(guards[2], router, &path), STATUS_ERR_INTERNAL);
    ck_assert_ptr_nonnull(path);
    device_release(device, DEVICE_MEMORY_DEVICE, &wedge);
    for (uint32_t bs = 1; bs <= BS_MAX; bs++) {
        run_guard_destroy(&guards[bs]);
    }
    backend_destroy(&router);
}
END_TEST

/* A probe pool and then the real one: another page count is fine, another geometry moves nothing.
 */
START_TEST(a_rebind_takes_the_same_geometry_only)
{
    static inputs_t in;
    fill_inputs(&in);
    backend_t *router = new_router(64, 1);
    cache_plan_t *larger = NULL;
    cache_plan_t *wider = NULL;
    cache_arena_t *larger_arena = NULL;
    cache_arena_t *wider_arena = NULL;
    cache_pool_t pool;
    make_plan(&larger, 2 * PARENTS, 1);
    make_plan(&wider, PARENTS, 2);
    ck_assert_int_eq(cache_arena_new(device, larger, &larger_arena), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, wider, &wider_arena), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&pool, wider, wider_arena, 0, LAYERS), STATUS_OK);
    ck_assert_int_eq(backend_set_cache_pool(router, &pool), STATUS_ERR_INVALID);
    ck_assert_int_eq(refresh(router, &in, 2, 2, false), STATUS_OK); /* as if nothing had been */
    ck_assert_int_eq(cache_pool_init(&pool, larger, larger_arena, 0, LAYERS), STATUS_OK);
    ck_assert_int_eq(backend_set_cache_pool(router, &pool), STATUS_OK);
    ck_assert(!router->has_graph_state);
    ck_assert_int_eq(backend_init_cuda_graph_state(router), STATUS_OK);
    in.blocks[0] = 2 * PARENTS; /* exists only in the larger pool */
    ck_assert_int_eq(refresh(router, &in, 1, 1, false), STATUS_OK);
    const int32_t *locations = backend_write_locations(router, 0, BACKEND_MODE_DECODE);
    ck_assert_int_eq(locations[0], 2 * PARENTS * GRANULARITY);
    backend_destroy(&router);
    cache_arena_destroy(&larger_arena);
    cache_arena_destroy(&wider_arena);
    cache_plan_destroy(&larger);
    cache_plan_destroy(&wider);
}
END_TEST

static void
note_culprit(void *context, const char *name, backend_support_t support)
{
    (void)support;
    *(const char **)context = name;
}

/* What one node of a tree cannot do, the tree cannot do. */
START_TEST(graph_support_is_composed_with_and)
{
    backend_t child = {.name = "child", .support = {.decode_graph = true, .prefill_graph = false}};
    backend_t root = {.name = "root", .support = {.decode_graph = true, .prefill_graph = true}};
    root.children[0] = &child;
    root.child_count = 1;
    const char *culprit = NULL;
    backend_support_t support = backend_resolve_support(&root, note_culprit, &culprit);
    ck_assert(support.decode_graph);
    ck_assert(!support.prefill_graph);
    ck_assert_str_eq(culprit, "child");
    child.support.decode_graph = false;
    ck_assert(!backend_resolve_support(&root, NULL, NULL).decode_graph);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.router");
    TCase *tests = tcase_create("router");
    tcase_add_checked_fixture(tests, open_all, close_all);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, slots_do_not_depend_on_the_page_size);
    tcase_add_test(tests, extend_spans_follow_the_table);
    tcase_add_test(tests, tables_are_expanded_and_padded_with_the_null_page);
    tcase_add_test(tests, eager_and_padded_refresh_agree_on_live_requests);
    tcase_add_test(tests, capture_is_the_idle_refresh);
    tcase_add_test(tests, a_live_batch_without_a_group_is_refused);
    tcase_add_test(tests, init_refuses_decode_an_incomplete_bundle_and_replay);
    tcase_add_test(tests, lazily_built_views_are_pointer_stable);
    tcase_add_test(tests, a_rebind_takes_the_same_geometry_only);
    tcase_add_test(tests, graph_support_is_composed_with_and);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
