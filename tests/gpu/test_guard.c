/* The pointer guard: whatever moves, in whichever node of whichever tree, is named by its path; and
 * what a capture memoised is not handed to an eager step. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_host.h"
#include "router_cache_group.h"
#include "run_guard.h"

enum { BS_MAX = 8, COLUMNS = 8, ADDRESSES = 3, NODES = 5 };

/* A node of the tests: addresses to report, and a helper that memoises. */
typedef struct {
    backend_t base; /* first */
    const void *addresses[ADDRESSES];
    uint32_t count;
    device_pool_t *capture_pool; /* what a capture in progress allocates from */
    const void *memo;            /* of the helper */
    bool leaks;                  /* the helper hands its memo to eager callers as well */
    int32_t own[4];
} fake_t;

static uint8_t memory[NODES * ADDRESSES][64];

static void
fake_destroy(backend_t *self)
{
    free(self);
}

static proto_status_t
fake_validate(const backend_t *self, const cache_pool_t *pool)
{
    (void)self;
    (void)pool;
    return STATUS_OK;
}

static proto_status_t
fake_publish(backend_t *self, const cache_pool_t *pool)
{
    (void)self;
    (void)pool;
    return STATUS_OK;
}

static proto_status_t
fake_init(backend_t *self)
{
    (void)self;
    return STATUS_OK;
}

/* A helper that makes index vectors once for each capture, in the memory of the graphs' pool. */
static proto_status_t
fake_refresh(backend_t *base, const backend_refresh_t *refresh)
{
    fake_t *self = (fake_t *)base;
    if (self->capture_pool == NULL) {
        return STATUS_OK;
    }
    if (refresh->for_graph_replay) {
        size_t size_bytes = 0;
        self->memo = (uint8_t *)device_pool_memory(self->capture_pool, &size_bytes) + 128;
        self->addresses[0] = self->memo;
    } else {
        self->addresses[0] = self->leaks ? self->memo : self->own;
    }
    return STATUS_OK;
}

static void
fake_visit(const backend_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    const fake_t *self = (const fake_t *)base;
    static const char *const names[ADDRESSES] = {"fake.indices", "fake.lengths", "fake.table"};
    for (uint32_t i = 0; i < self->count; i++) {
        visit(context, names[i], self->addresses[i], bs * sizeof(int32_t));
    }
}

static const backend_vtable_t fake_vtable = {
    .destroy = fake_destroy,
    .validate_cache_pool = fake_validate,
    .publish_cache_pool = fake_publish,
    .init_cuda_graph_state = fake_init,
    .refresh_decode_metadata = fake_refresh,
    .visit_decode_slot = fake_visit,
};

static fake_t *
new_fake(const char *name, uint32_t index)
{
    fake_t *self = calloc(1, sizeof *self);
    ck_assert_ptr_nonnull(self);
    self->base = (backend_t){.vtable = &fake_vtable,
                             .name = name,
                             .options = {.bs_max = BS_MAX},
                             .has_graph_state = true};
    for (uint32_t i = 0; i < ADDRESSES; i++) {
        self->addresses[i] = memory[index * ADDRESSES + i];
    }
    self->count = ADDRESSES;
    return self;
}

static void
add_child(fake_t *parent, fake_t *child)
{
    parent->base.children[parent->base.child_count++] = &child->base;
}

/* root { left { leaf, leaf }, right } */
static void
make_tree(fake_t *nodes[NODES])
{
    static const char *const names[NODES] = {"root", "left", "right", "leaf", "leaf"};
    for (uint32_t i = 0; i < NODES; i++) {
        nodes[i] = new_fake(names[i], i);
    }
    add_child(nodes[0], nodes[1]);
    add_child(nodes[0], nodes[2]);
    add_child(nodes[1], nodes[3]);
    add_child(nodes[1], nodes[4]);
}

START_TEST(a_moved_address_of_any_node_is_named_by_its_path)
{
    static const char *const prefixes[NODES] = {"", "0 left/", "1 right/", "0 left/0 leaf/",
                                                "0 left/1 leaf/"};
    static const char *const names[ADDRESSES] = {"fake.indices", "fake.lengths", "fake.table"};
    static uint8_t elsewhere[64];
    fake_t *nodes[NODES];
    make_tree(nodes);
    backend_t *tree = &nodes[0]->base;
    run_guard_t *guard = NULL;
    ck_assert_int_eq(run_guard_new(tree, 4, &guard), STATUS_OK);
    const char *path = NULL;
    ck_assert_int_eq(run_guard_verify(guard, tree, &path), STATUS_OK);
    for (uint32_t n = 0; n < NODES; n++) {
        for (uint32_t i = 0; i < ADDRESSES; i++) {
            const void *before = nodes[n]->addresses[i];
            char expected[BACKEND_PATH_SIZE_BYTES];
            (void)snprintf(expected, sizeof expected, "%s%s", prefixes[n], names[i]);
            nodes[n]->addresses[i] = elsewhere;
            path = NULL;
            ck_assert_int_eq(run_guard_verify(guard, tree, &path), STATUS_ERR_INTERNAL);
            ck_assert_str_eq(path, expected);
            nodes[n]->addresses[i] = before;
            ck_assert_int_eq(run_guard_verify(guard, tree, &path), STATUS_OK);
        }
        nodes[n]->count--; /* a tensor that is gone is a difference, too */
        ck_assert_int_eq(run_guard_verify(guard, tree, &path), STATUS_ERR_INTERNAL);
        nodes[n]->count++;
    }
    run_guard_destroy(&guard);
    backend_destroy(&tree);
}
END_TEST

/* ---- what a capture memoised ------------------------------------------------------------------
 */

static device_t *device;
static device_stream_t *stream;

static void
open_device(void)
{
    device_host_options_t options = {.thread_count = 1, .path = KERN_PATH_PORTABLE};
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
}

static void
close_device(void)
{
    device_stream_destroy(&stream);
    device_destroy(&device);
}

static proto_status_t
refresh(backend_t *tree, uint32_t bs, bool for_graph_replay)
{
    static int32_t zeros[BS_MAX * COLUMNS];
    static int32_t lengths[BS_MAX] = {1, 2, 3, 4, 5, 6, 7, 8};
    backend_tables_t tables = {.group_count = 1, .groups = {{zeros, COLUMNS, COLUMNS}}};
    backend_refresh_t what = {.bs = bs,
                              .actual_bs = bs,
                              .request_slots = zeros,
                              .seq_lens = lengths,
                              .mode = BACKEND_MODE_DECODE,
                              .tables = &tables,
                              .for_graph_replay = for_graph_replay};
    return backend_refresh_decode_metadata(tree, &what);
}

START_TEST(a_helper_that_leaks_what_a_capture_made_is_caught)
{
    device_pool_t *pool = NULL;
    ck_assert_int_eq(device_pool_new(device, 4096, &pool), STATUS_OK);
    char path[BACKEND_PATH_SIZE_BYTES];
    for (int leaks = 0; leaks < 2; leaks++) {
        fake_t *nodes[NODES];
        make_tree(nodes);
        backend_t *tree = &nodes[0]->base;
        fake_t *helper = nodes[4];
        helper->capture_pool = pool;
        helper->leaks = leaks == 1;
        ck_assert_int_eq(refresh(&helper->base, 4, true), STATUS_OK); /* the capture */
        ck_assert_int_eq(refresh(&helper->base, 4, false), STATUS_OK);
        proto_status_t status = run_guard_check_eager(tree, 4, pool, path);
        if (leaks == 0) {
            ck_assert_int_eq(status, STATUS_OK);
            ck_assert_str_eq(path, "");
        } else {
            ck_assert_int_eq(status, STATUS_ERR_INTERNAL);
            ck_assert_str_eq(path, "0 left/1 leaf/fake.indices");
        }
        backend_destroy(&tree);
    }
    device_pool_destroy(&pool);
}
END_TEST

/* ---- the router -------------------------------------------------------------------------------
 */

typedef struct {
    const void *addresses[32];
    uint32_t count;
    bool saw_group;
} seen_t;

static void
see(void *context, const char *path, const void *address, size_t size_bytes)
{
    seen_t *seen = context;
    (void)size_bytes;
    ck_assert_uint_lt(seen->count, 32);
    seen->addresses[seen->count++] = address;
    seen->saw_group = seen->saw_group || strncmp(path, "group 0/", 8) == 0;
}

static backend_t *
new_router(const cache_pool_t *pool)
{
    router_cache_group_options_t options = {.backend = {.device = device,
                                                        .stream = stream,
                                                        .bs_max = BS_MAX,
                                                        .width = 1,
                                                        .step_tokens_max = 64,
                                                        .model_len_max = 100,
                                                        .q_heads = 1,
                                                        .kv_heads = 1,
                                                        .head_dim = 16}};
    backend_t *router = NULL;
    ck_assert_int_eq(router_cache_group_new(&options, &router), STATUS_OK);
    ck_assert_int_eq(backend_set_cache_pool(router, pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(router), STATUS_OK);
    return router;
}

/* Sizes above the ladder get their views at the first refresh; they must stay as those of a
 * capture do, and other sizes must not disturb them. */
START_TEST(lazy_views_above_the_ladder_are_pointer_stable)
{
    cache_group_t group = {.id = "g", .kind = CACHE_KIND_FULL, .granularity = 16, .packing = 1};
    cache_field_t fields[2] = {
        {.name = CACHE_FIELD_K, .rows = 16, .heads = 1, .head_dim = 16},
        {.name = CACHE_FIELD_V, .plane = 1, .rows = 16, .heads = 1, .head_dim = 16}};
    cache_plan_options_t options = {&group, 1, fields, 2, 16};
    cache_plan_t *plan = NULL;
    cache_arena_t *arena = NULL;
    cache_pool_t pool;
    ck_assert_int_eq(cache_plan_new(&options, &plan), STATUS_OK);
    ck_assert_int_eq(cache_plan_bind(plan, 4), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, plan, &arena), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&pool, plan, arena, 0, 1), STATUS_OK);
    backend_t *router = new_router(&pool);
    static seen_t first[BS_MAX + 1];
    memset(first, 0, sizeof first);
    uint64_t used_bytes = device_memory_used_bytes(device);
    for (uint32_t bs = BS_MAX; bs >= 1; bs--) {
        ck_assert_int_eq(refresh(router, bs, false), STATUS_OK);
        backend_visit_decode_slot(router, bs, see, &first[bs]);
        ck_assert_uint_ge(first[bs].count, 4);
        ck_assert(first[bs].saw_group);
    }
    for (uint32_t round = 0; round < 3 * BS_MAX; round++) {
        uint32_t bs = 1 + round * 5 % BS_MAX;
        ck_assert_int_eq(refresh(router, bs, round % 2 == 0), STATUS_OK);
        for (uint32_t other = 1; other <= BS_MAX; other++) {
            seen_t again = {.count = 0};
            backend_visit_decode_slot(router, other, see, &again);
            ck_assert_uint_eq(again.count, first[other].count);
            ck_assert_mem_eq(again.addresses, first[other].addresses, sizeof again.addresses);
        }
    }
    ck_assert_uint_eq(device_memory_used_bytes(device), used_bytes); /* no new storage */
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    backend_destroy(&router);
    cache_arena_destroy(&arena);
    cache_plan_destroy(&plan);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.guard");
    TCase *tests = tcase_create("guard");
    tcase_add_checked_fixture(tests, open_device, close_device);
    tcase_add_test(tests, a_moved_address_of_any_node_is_named_by_its_path);
    tcase_add_test(tests, a_helper_that_leaks_what_a_capture_made_is_caught);
    tcase_add_test(tests, lazy_views_above_the_ladder_are_pointer_stable);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
