/* The cache: plans, arena, pools. */
#include <check.h>
#include <string.h>

#include "cache_pool.h"
#include "device_host.h"

enum { LAYERS = 3 };

/* Two groups with different packings that share a plane, as sliding and full layers do. */
static void
make_plan(cache_plan_t **out_p, uint32_t rows, uint32_t full_packing, uint32_t sliding_packing)
{
    cache_group_t groups[] = {
        {.id = "full", .kind = CACHE_KIND_FULL, .granularity = rows, .packing = full_packing},
        {.id = "sliding",
         .kind = CACHE_KIND_SLIDING,
         .granularity = rows,
         .window = 100,
         .packing = sliding_packing},
    };
    cache_field_t fields[2 * LAYERS];
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        uint32_t layer = i / 2;
        fields[i] = (cache_field_t){
            .layer = layer,
            .name = i % 2 == 0 ? CACHE_FIELD_K : CACHE_FIELD_V,
            .group = layer == 2 ? 1 : 0,
            .plane = layer == 2 ? i % 2 : i,
            .rows = rows,
            .heads = 2,
            .head_dim = 16,
            .dtype = CACHE_DTYPE_F16,
        };
    }
    cache_plan_options_t options = {.groups = groups,
                                    .group_count = 2,
                                    .fields = fields,
                                    .field_count = 2 * LAYERS,
                                    .prefix_granularity = rows};
    ck_assert_int_eq(cache_plan_new(&options, out_p), STATUS_OK);
}

START_TEST(pages_of_a_parent_do_not_overlap)
{
    static const uint32_t packings[][2] = {{1, 1}, {1, 3}, {4, 3}, {5, 7}};
    for (size_t i = 0; i < sizeof packings / sizeof *packings; i++) {
        cache_plan_t *plan = NULL;
        make_plan(&plan, 16, packings[i][0], packings[i][1]);
        cache_plan_check(plan);
        ck_assert_int_eq(cache_plan_bind(plan, 5), STATUS_OK);
        ck_assert_uint_eq(cache_plan_page_count(plan, 0), 1 + 5 * packings[i][0]);
        ck_assert_uint_eq(cache_plan_page_count(plan, 1), 1 + 5 * packings[i][1]);
        ck_assert_uint_eq(cache_plan_arena_bytes(plan), 6 * cache_plan_parent_bytes(plan));
        /* Page 0 ends where parent 1 begins, and every page stays inside the arena. */
        for (uint32_t f = 0; f < cache_plan_field_count(plan); f++) {
            cache_place_t place = cache_plan_place(plan, f);
            uint32_t pages = cache_plan_page_count(plan, cache_plan_field(plan, f)->group);
            ck_assert_uint_le(place.page_bytes, place.stride_bytes);
            ck_assert_uint_le(place.page0_offset_bytes + (pages - 1) * place.stride_bytes +
                                  place.page_bytes,
                              cache_plan_arena_bytes(plan));
            ck_assert_uint_eq(place.page0_offset_bytes % CACHE_FIELD_ALIGN, 0);
        }
        cache_plan_destroy(&plan);
    }
}
END_TEST

/* Bytes written through one field's pages must come back from it and from no other of its group. */
START_TEST(fields_are_apart_in_memory)
{
    device_host_options_t host = {.thread_count = 1, .path = KERN_PATH_PORTABLE};
    device_t *device = NULL;
    ck_assert_int_eq(device_host_new(&host, &device), STATUS_OK);
    cache_plan_t *plan = NULL;
    cache_arena_t *arena = NULL;
    cache_pool_t pool;
    make_plan(&plan, 16, 1, 2);
    ck_assert_int_eq(cache_plan_bind(plan, 4), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, plan, &arena), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&pool, plan, arena, 0, LAYERS), STATUS_OK);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t layer = 0; layer < 2; layer++) {
            for (uint32_t name = 0; name < 2; name++) {
                cache_field_view_t view;
                ck_assert_int_eq(cache_pool_field(&pool, layer, (cache_field_name_t)name, &view),
                                 STATUS_OK);
                size_t bytes = (size_t)view.rows * view.heads * view.head_dim * 2;
                for (uint32_t page = 0; page < cache_plan_page_count(plan, 0); page++) {
                    uint8_t mark = (uint8_t)(1 + layer * 64 + name * 32 + page);
                    uint8_t *at = view.pages + page * view.stride_bytes;
                    if (pass == 0) {
                        memset(at, mark, bytes);
                    } else {
                        ck_assert_uint_eq(at[0], mark);
                        ck_assert_uint_eq(at[bytes - 1], mark);
                    }
                }
            }
        }
    }
    cache_arena_destroy(&arena);
    cache_plan_destroy(&plan);
    device_destroy(&device);
}
END_TEST

START_TEST(geometry_is_compared_without_page_counts)
{
    cache_plan_t *a = NULL;
    cache_plan_t *b = NULL;
    cache_plan_t *c = NULL;
    make_plan(&a, 16, 1, 1);
    make_plan(&b, 16, 1, 1);
    make_plan(&c, 32, 1, 1);
    ck_assert_int_eq(cache_plan_bind(a, 3), STATUS_OK);
    ck_assert_int_eq(cache_plan_bind(b, 9), STATUS_OK);
    ck_assert(cache_plan_same_geometry(a, b));
    ck_assert(!cache_plan_same_geometry(a, c));
    cache_plan_destroy(&a);
    cache_plan_destroy(&b);
    cache_plan_destroy(&c);
}
END_TEST

START_TEST(wrong_plans_are_refused)
{
    cache_group_t group = {.id = "g", .kind = CACHE_KIND_FULL, .granularity = 16, .packing = 1};
    cache_field_t field = {.rows = 16, .heads = 1, .head_dim = 16};
    cache_plan_options_t good = {.groups = &group,
                                 .group_count = 1,
                                 .fields = &field,
                                 .field_count = 1,
                                 .prefix_granularity = 16};
    cache_plan_t *plan = NULL;
    cache_plan_options_t bad = good;
    bad.prefix_granularity = 24; /* 16 does not divide it */
    ck_assert_int_eq(cache_plan_new(&bad, &plan), STATUS_ERR_INVALID);
    bad = good;
    bad.group_count = 0;
    ck_assert_int_eq(cache_plan_new(&bad, &plan), STATUS_ERR_INVALID);
    field.group = 1;
    ck_assert_int_eq(cache_plan_new(&good, &plan), STATUS_ERR_INVALID);
    field.group = 0;
    field.plane = 2; /* planes 0 and 1 are nobody's */
    ck_assert_int_eq(cache_plan_new(&good, &plan), STATUS_ERR_INVALID);
    field.plane = 0;
    group.window = 5; /* of a group that keeps everything */
    ck_assert_int_eq(cache_plan_new(&good, &plan), STATUS_ERR_INVALID);
    group.window = 0;
    ck_assert_int_eq(cache_plan_new(&good, &plan), STATUS_OK);
    ck_assert_int_eq(cache_plan_bind(plan, 1u << 22), STATUS_ERR_TOO_LARGE);
    cache_plan_destroy(&plan);
}
END_TEST

START_TEST(pools_are_views_of_layer_ranges)
{
    device_host_options_t host = {.thread_count = 1, .path = KERN_PATH_PORTABLE};
    device_t *device = NULL;
    ck_assert_int_eq(device_host_new(&host, &device), STATUS_OK);
    cache_plan_t *plan = NULL;
    cache_arena_t *arena = NULL;
    make_plan(&plan, 16, 1, 1);
    ck_assert_int_eq(cache_plan_bind(plan, 2), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, plan, &arena), STATUS_OK);
    cache_pool_t whole;
    cache_pool_t tail;
    ck_assert_int_eq(cache_pool_init(&whole, plan, arena, 0, LAYERS), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&tail, plan, arena, 1, 2), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&tail, plan, arena, 2, 2), STATUS_ERR_INVALID);
    ck_assert_int_eq(cache_pool_init(&tail, plan, arena, 1, 2), STATUS_OK);
    cache_field_view_t a;
    cache_field_view_t b;
    ck_assert_int_eq(cache_pool_field(&whole, 1, CACHE_FIELD_V, &a), STATUS_OK);
    ck_assert_int_eq(cache_pool_field(&tail, 0, CACHE_FIELD_V, &b), STATUS_OK);
    ck_assert_ptr_eq(a.pages, b.pages);
    ck_assert(!cache_pool_same_geometry(&whole, &tail));
    cache_arena_destroy(&arena);
    cache_plan_destroy(&plan);
    device_destroy(&device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.cache");
    TCase *tests = tcase_create("cache");
    tcase_add_test(tests, pages_of_a_parent_do_not_overlap);
    tcase_add_test(tests, fields_are_apart_in_memory);
    tcase_add_test(tests, geometry_is_compared_without_page_counts);
    tcase_add_test(tests, wrong_plans_are_refused);
    tcase_add_test(tests, pools_are_views_of_layer_ranges);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
