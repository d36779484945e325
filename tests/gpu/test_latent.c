/* The MLA leaf behind its router: which pools it takes, what it keeps for decode, and that a window
 * of four rows, a mixed batch and four single steps give the same bits over planes full of NaN. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device_host.h"
#include "router_cache_group.h"

enum {
    GRANULARITY = 16,
    PARENTS = 20,
    COLUMNS = 5,
    BS = 3,
    HEADS = 3,
    LATENT = 32,
    ROPE = 6,
    KEY = LATENT + ROPE,
    LAYERS = 2,
    LENGTH = 70,
    WINDOW = 4,
};

static device_t *device;
static device_stream_t *stream;

/* What a pool's layout may get wrong. */
typedef struct {
    cache_kind_t kind;
    uint32_t heads;
    uint32_t head_dim;
    cache_dtype_t dtype;
} layout_t;

static const layout_t right = {CACHE_KIND_FULL, 1, KEY, CACHE_DTYPE_F32};

typedef struct {
    cache_plan_t *plan;
    cache_arena_t *arena;
    cache_pool_t pool;
} cache_t;

static void
set_up(void)
{
    device_host_options_t options = {.thread_count = 2, .path = kern_path_best()};
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
}

static void
tear_down(void)
{
    device_stream_destroy(&stream);
    device_destroy(&device);
}

static void
cache_open(cache_t *self, const layout_t *layout)
{
    cache_group_t group = {.id = "g",
                           .kind = layout->kind,
                           .granularity = GRANULARITY,
                           .window = layout->kind == CACHE_KIND_SLIDING ? 8 : 0,
                           .packing = 1};
    cache_field_t fields[LAYERS];
    for (uint32_t i = 0; i < LAYERS; i++) {
        fields[i] = (cache_field_t){.layer = i,
                                    .name = CACHE_FIELD_LATENT,
                                    .plane = i,
                                    .rows = GRANULARITY,
                                    .heads = layout->heads,
                                    .head_dim = layout->head_dim,
                                    .dtype = layout->dtype};
    }
    cache_plan_options_t options = {.groups = &group,
                                    .group_count = 1,
                                    .fields = fields,
                                    .field_count = LAYERS,
                                    .prefix_granularity = GRANULARITY};
    ck_assert_int_eq(cache_plan_new(&options, &self->plan), STATUS_OK);
    ck_assert_int_eq(cache_plan_bind(self->plan, PARENTS), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, self->plan, &self->arena), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&self->pool, self->plan, self->arena, 0, LAYERS), STATUS_OK);
}

static void
cache_close(cache_t *self)
{
    cache_arena_destroy(&self->arena);
    cache_plan_destroy(&self->plan);
}

static backend_t *
router_new(uint32_t width, uint32_t latent_dim)
{
    router_cache_group_options_t options = {.backend = {.device = device,
                                                        .stream = stream,
                                                        .bs_max = BS,
                                                        .width = width,
                                                        .step_tokens_max = BS * LENGTH,
                                                        .model_len_max = LENGTH,
                                                        .q_heads = HEADS,
                                                        .kv_heads = 1,
                                                        .head_dim = 16,
                                                        .latent_dim = latent_dim,
                                                        .rope_dim = ROPE}};
    backend_t *router = NULL;
    ck_assert_int_eq(router_cache_group_new(&options, &router), STATUS_OK);
    return router;
}

/* Rows that its kernels cannot read are refused before anything is bound. */
START_TEST(other_layouts_are_refused)
{
    static const struct {
        layout_t layout;
        uint32_t latent_dim;
        proto_status_t status;
    } cases[] = {
        {{CACHE_KIND_FULL, 1, KEY, CACHE_DTYPE_F32}, LATENT, STATUS_OK},
        {{CACHE_KIND_FULL, 1, KEY, CACHE_DTYPE_F16}, LATENT, STATUS_OK},
        {{CACHE_KIND_FULL, 2, KEY, CACHE_DTYPE_F32}, LATENT, STATUS_ERR_INVALID},
        {{CACHE_KIND_FULL, 1, LATENT, CACHE_DTYPE_F32}, LATENT, STATUS_ERR_INVALID},
        {{CACHE_KIND_SLIDING, 1, KEY, CACHE_DTYPE_F32}, LATENT, STATUS_ERR_INVALID},
        {{CACHE_KIND_FULL, 1, 24 + ROPE, CACHE_DTYPE_F32}, 24, STATUS_ERR_INVALID},
        {{CACHE_KIND_FULL, 1, ROPE, CACHE_DTYPE_F32}, 0, STATUS_ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cache_t cache;
        cache_open(&cache, &cases[i].layout);
        backend_t *router = router_new(1, cases[i].latent_dim);
        ck_assert_int_eq(backend_set_cache_pool(router, &cache.pool), cases[i].status);
        if (cases[i].status == STATUS_OK) {
            backend_support_t support = backend_resolve_support(router, NULL, NULL);
            ck_assert(support.decode_graph && support.prefill_graph);
        }
        backend_destroy(&router);
        cache_close(&cache);
    }
}
END_TEST

/* ---- one batch three ways -------------------------------------------------------------------- */

static int32_t blocks[BS * COLUMNS];
static int32_t slots[BS] = {1, 2, 3};
static const int32_t lengths[BS] = {LENGTH, 17, 33}; /* with the window */
static float queries[BS][LENGTH][HEADS * KEY];
static float keys[BS][LENGTH][KEY];

static float
noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1.0p-22f - 2.0f;
}

/* Planes full of NaN but for what the requests wrote. */
static void
fill(const cache_t *cache)
{
    uint32_t state = 20261130;
    (void)printf("seed %u\n", state);
    memset(cache_arena_memory(cache->arena), 0xff, cache_plan_arena_bytes(cache->plan));
    for (uint32_t b = 0; b < BS; b++) {
        for (uint32_t c = 0; c < COLUMNS; c++) {
            blocks[b * COLUMNS + c] = (int32_t)(1 + (b + c * BS) % PARENTS);
        }
        for (uint32_t p = 0; p < LENGTH; p++) {
            for (uint32_t d = 0; d < HEADS * KEY; d++) {
                queries[b][p][d] = noise(&state);
            }
            for (uint32_t d = 0; d < KEY; d++) {
                keys[b][p][d] = noise(&state);
            }
        }
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            cache_field_view_t view;
            ck_assert_int_eq(cache_pool_field(&cache->pool, layer, CACHE_FIELD_LATENT, &view),
                             STATUS_OK);
            for (int32_t p = 0; p < lengths[b]; p++) {
                int32_t block = blocks[b * COLUMNS + (uint32_t)p / GRANULARITY];
                uint8_t *page = view.pages + (size_t)block * view.stride_bytes;
                memcpy(page + (size_t)(p % GRANULARITY) * sizeof keys[b][p], keys[b][p],
                       sizeof keys[b][p]);
            }
        }
    }
}

static backend_tables_t
tables_now(void)
{
    backend_tables_t tables = {.group_count = 1};
    tables.groups[0] = (backend_table_t){.blocks = blocks, .stride = COLUMNS, .columns = COLUMNS};
    return tables;
}

/* The last `width` rows of each request, whose lengths end `back` positions early. */
static void
run_decode(backend_t *router, uint32_t width, int32_t back, float *out)
{
    static float q[BS * WINDOW][HEADS * KEY];
    int32_t seq_lens[BS];
    for (uint32_t b = 0; b < BS; b++) {
        seq_lens[b] = lengths[b] - back;
        for (uint32_t t = 0; t < width; t++) {
            uint32_t position = (uint32_t)(seq_lens[b] - (int32_t)width) + t;
            memcpy(q[b * width + t], queries[b][position], sizeof *q);
        }
    }
    backend_tables_t tables = tables_now();
    backend_refresh_t refresh = {.bs = BS,
                                 .actual_bs = BS,
                                 .request_slots = slots,
                                 .seq_lens = seq_lens,
                                 .mode = BACKEND_MODE_DECODE,
                                 .tables = &tables,
                                 .num_extends = 0,
                                 .for_graph_replay = false};
    ck_assert_int_eq(backend_refresh_decode_metadata(router, &refresh), STATUS_OK);
    backend_forward_t forward = {.layer = 1,
                                 .mode = BACKEND_MODE_DECODE,
                                 .q = *q,
                                 .q_stride = HEADS * KEY,
                                 .rows = BS * width,
                                 .output = out,
                                 .output_stride = HEADS * LATENT,
                                 .scale = 0.2f};
    backend_forward(router, &forward);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
}

/* Request 0 extends by `count` rows, the others decode a window behind it. */
static void
run_mixed(backend_t *router, uint32_t count, float *out)
{
    static float q[LENGTH + BS * WINDOW][HEADS * KEY];
    int32_t extend[1] = {(int32_t)count};
    int32_t prefix[1] = {lengths[0] - (int32_t)count};
    int32_t cu_lens[2] = {0, (int32_t)count};
    int32_t zero[1] = {0};
    memcpy(q, queries[0][prefix[0]], count * sizeof *q);
    for (uint32_t b = 1; b < BS; b++) {
        memcpy(q[count + (b - 1) * WINDOW], queries[b][lengths[b] - WINDOW], WINDOW * sizeof *q);
    }
    backend_tables_t tables = tables_now();
    backend_extend_t what = {.bs = BS,
                             .num_extends = 1,
                             .request_slots = slots,
                             .seq_lens = lengths,
                             .mode = BACKEND_MODE_MIXED,
                             .tables = &tables,
                             .extend_seq_lens = extend,
                             .extend_prefix_lens = prefix,
                             .extend_cu_lens = cu_lens,
                             .extend_seq_lens_host = extend,
                             .extend_prefix_lens_host = prefix,
                             .extend_replay_lens_host = zero,
                             .extend_prompt_lens_host = zero,
                             .extend_with_prefix = prefix[0] > 0};
    ck_assert_int_eq(backend_init_forward_metadata(router, &what), STATUS_OK);
    backend_forward_t forward = {.layer = 1,
                                 .mode = BACKEND_MODE_MIXED,
                                 .q = *q,
                                 .q_stride = HEADS * KEY,
                                 .rows = count + (BS - 1) * WINDOW,
                                 .output = out,
                                 .output_stride = HEADS * LATENT,
                                 .scale = 0.2f};
    backend_forward(router, &forward);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
}

START_TEST(a_window_a_mixed_batch_and_single_steps_agree)
{
    static float window[BS * WINDOW][HEADS * LATENT];
    static float single[BS][HEADS * LATENT];
    static float mixed[LENGTH + BS * WINDOW][HEADS * LATENT];
    cache_t cache;
    cache_open(&cache, &right);
    fill(&cache);
    backend_t *wide = router_new(WINDOW, LATENT);
    backend_t *narrow = router_new(1, LATENT);
    backend_t *routers[] = {wide, narrow};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(backend_set_cache_pool(routers[i], &cache.pool), STATUS_OK);
        ck_assert_int_eq(backend_init_cuda_graph_state(routers[i]), STATUS_OK);
    }
    run_decode(wide, WINDOW, 0, *window);
    for (uint32_t row = 0; row < BS * WINDOW; row++) {
        for (uint32_t d = 0; d < HEADS * LATENT; d++) {
            ck_assert(isfinite(window[row][d]));
        }
    }
    for (uint32_t t = 0; t < WINDOW; t++) {
        run_decode(narrow, 1, (int32_t)(WINDOW - 1 - t), *single);
        for (uint32_t b = 0; b < BS; b++) {
            ck_assert_mem_eq(single[b], window[b * WINDOW + t], sizeof single[b]);
        }
    }
    static const uint32_t counts[] = {WINDOW, 7, LENGTH};
    for (size_t i = 0; i < 3; i++) {
        run_mixed(wide, counts[i], *mixed);
        ck_assert_mem_eq(mixed[counts[i] - WINDOW], window[0], WINDOW * sizeof *window);
        ck_assert_mem_eq(mixed[counts[i]], window[WINDOW], (BS - 1) * WINDOW * sizeof *window);
    }
    backend_destroy(&wide);
    backend_destroy(&narrow);
    cache_close(&cache);
}
END_TEST

typedef struct {
    uint32_t count;
    const void *addresses[16];
} visit_t;

static void
visit_one(void *context, const char *path, const void *address, size_t size_bytes)
{
    visit_t *visit = context;
    ck_assert_uint_lt(visit->count, 16);
    ck_assert_uint_gt(size_bytes, 0);
    ck_assert(strstr(path, "mla.decode") != NULL || strstr(path, "write_locations") != NULL);
    visit->addresses[visit->count++] = address;
}

/* Capture is the idle refresh, and what it reaches stays where it is. */
START_TEST(capture_is_inherited_and_addresses_stay)
{
    static float out[BS][HEADS * LATENT];
    visit_t before = {0};
    visit_t after = {0};
    cache_t cache;
    cache_open(&cache, &right);
    fill(&cache);
    backend_t *router = router_new(1, LATENT);
    ck_assert_int_eq(backend_set_cache_pool(router, &cache.pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(router), STATUS_OK);
    static int32_t none[BS * COLUMNS];
    backend_tables_t placeholder = {.group_count = 1};
    placeholder.groups[0] =
        (backend_table_t){.blocks = none, .stride = COLUMNS, .columns = COLUMNS};
    ck_assert_int_eq(backend_capture_forward_metadata(router, BS, slots, lengths, &placeholder),
                     STATUS_OK);
    backend_visit_decode_slot(router, BS, visit_one, &before);
    run_decode(router, 1, 0, *out);
    backend_visit_decode_slot(router, BS, visit_one, &after);
    ck_assert_uint_eq(before.count, 4);
    ck_assert_uint_eq(after.count, before.count);
    ck_assert_mem_eq(before.addresses, after.addresses, sizeof before.addresses);
    backend_destroy(&router);
    cache_close(&cache);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.latent");
    TCase *tests = tcase_create("latent");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, other_layouts_are_refused);
    tcase_add_test(tests, a_window_a_mixed_batch_and_single_steps_agree);
    tcase_add_test(tests, capture_is_inherited_and_addresses_stay);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
