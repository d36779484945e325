/* Recurrent layers beside attention: the same bits whatever the chunks, the prefix, the batch and
 * the padding; a request that resumes; what the state backend refuses.  Planes are poisoned with
 * NaN, so that a state that was never written is never read. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_gdn_private.h"
#include "cache_pool.h"
#include "device_host.h"
#include "gpu_driver.h"
#include "run_guard.h"
#include "run_inspect.h"

enum { VOCABULARY = 320, GRAIN = 64, LONG = 210, SLOTS = 9 };

static int32_t tokens[SLOTS + 1][LONG + 64];

static void
open_hybrid(driver_t *driver, bool enforce_eager)
{
    static char path[600];
    (void)snprintf(path, sizeof path, "%s", driver_fixture("tiny-qwen35"));
    run_executor_options_t options = {
        .model_path = path,
        .slot_count = SLOTS,
        .model_len_max = 320,
        .step_tokens_max = 512,
        .block_granularity = GRAIN,
        .cache_size_bytes = 32 << 20,
        .capture_bs_max = 8,
        .graph_debug = true,
        .enforce_eager = enforce_eager,
    };
    driver_open(driver, &options);
    ck_assert_uint_eq(driver->info.group_kinds.count, 2);
    ck_assert_uint_eq(driver->info.group_kinds.data[1], CACHE_KIND_STATE);
    ck_assert_uint_eq(driver->info.group_granularities.data[1], GRAIN);
    ck_assert_uint_eq(driver->info.prefix_granularity, GRAIN);
    ck_assert_int_eq(run_inspect_poison_cache(driver->executor), STATUS_OK);
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        driver_random_tokens(slot, VOCABULARY, tokens[slot], LONG + 64);
    }
}

/* Prefills from `begin` on and leaves the logits of the last token. */
static int32_t
prefill_from(driver_t *driver, uint32_t slot, const int32_t *prompt, uint32_t begin, uint32_t count,
             uint32_t chunk, float *logits)
{
    driver_result_t result = {0};
    driver_setup(driver, slot, prompt, count, NULL);
    for (uint32_t at = begin; at < count;) {
        uint32_t rest = count - at;
        driver_extend_t extend = {.slot = slot,
                                  .begin = at,
                                  .length = rest < chunk ? rest : chunk,
                                  .sample = rest <= chunk,
                                  .tokens = prompt + at};
        driver_step(driver, &extend, 1, NULL, 0, &result);
        at += extend.length;
    }
    driver_logits(driver, logits, VOCABULARY, 1);
    return result.tokens[0];
}

static void
decode_logits(driver_t *driver, uint32_t slot, float *logits)
{
    (void)driver_decode_one(driver, slot);
    driver_logits(driver, logits, VOCABULARY, 1);
}

static const uint32_t lengths[] = {1, 2, 3, 63, 64, 65, 128, 129, LONG};
enum { LENGTH_COUNT = sizeof lengths / sizeof *lengths };

/* The grid counts from position 0, so a chunk that ends on it changes nothing. */
START_TEST(chunks_and_prefix_hits_give_the_bits_of_the_whole)
{
    float whole[2][VOCABULARY];
    float other[2][VOCABULARY];
    driver_t driver;
    open_hybrid(&driver, false);
    for (uint32_t i = 0; i < LENGTH_COUNT; i++) {
        uint32_t count = lengths[i];
        prefill_from(&driver, 1, tokens[1], 0, count, 512, whole[0]);
        decode_logits(&driver, 1, whole[1]);
        ck_assert(isfinite(whole[0][0]) && isfinite(whole[1][0]));
        for (uint32_t chunk = GRAIN; chunk <= 2 * GRAIN; chunk += GRAIN) {
            prefill_from(&driver, 2, tokens[1], 0, count, chunk, other[0]);
            decode_logits(&driver, 2, other[1]);
            ck_assert_mem_eq(whole, other, sizeof whole);
        }
        /* A second request goes on from the first one's checkpoints: slot 2 was chunked. */
        for (uint32_t hit = GRAIN; hit < count; hit += GRAIN) {
            uint32_t own[DRIVER_COLUMNS_MAX];
            memcpy(own, driver.blocks[3], sizeof own);
            memcpy(driver.blocks[3], driver.blocks[2], hit / GRAIN * sizeof *own);
            uint64_t before;
            uint64_t after;
            uint32_t shared = driver.blocks[2][hit / GRAIN - 1] + driver.offsets[1];
            prefill_from(&driver, 2, tokens[1], 0, hit, GRAIN, other[0]);
            ck_assert_int_eq(run_inspect_block_digest(driver.executor, 1, shared, &before),
                             STATUS_OK);
            prefill_from(&driver, 3, tokens[1], hit, count, GRAIN, other[0]);
            decode_logits(&driver, 3, other[1]);
            ck_assert_mem_eq(whole, other, sizeof whole);
            ck_assert_int_eq(run_inspect_block_digest(driver.executor, 1, shared, &after),
                             STATUS_OK);
            ck_assert_uint_eq(before, after); /* read only */
            memcpy(driver.blocks[3], own, sizeof own);
        }
    }
    driver_close(&driver);
}
END_TEST

/* Every slot alone, then all of them in batches of every size, padded and above the ladder, and
 * eagerly. */
START_TEST(any_batch_gives_the_bits_of_one_request)
{
    enum { STEPS = 70 };
    static float alone[SLOTS + 1][STEPS][VOCABULARY];
    static float logits[SLOTS * VOCABULARY];
    for (uint32_t round = 0; round < 2; round++) {
        driver_t driver;
        open_hybrid(&driver, round == 1);
        driver_result_t result;
        uint32_t slots[SLOTS];
        for (uint32_t slot = 1; slot <= SLOTS; slot++) {
            (void)prefill_from(&driver, slot, tokens[slot], 0, slot * 7, 512, logits);
            for (uint32_t step = 0; round == 0 && step < STEPS; step++) {
                decode_logits(&driver, slot, alone[slot][step]);
            }
        }
        for (uint32_t slot = 1; slot <= SLOTS; slot++) {
            slots[slot - 1] = slot;
            (void)prefill_from(&driver, slot, tokens[slot], 0, slot * 7, 512, logits);
        }
        uint32_t done[SLOTS + 1] = {0};
        for (uint32_t step = 0; step < STEPS; step++) {
            uint32_t bs = 1 + step % SLOTS;
            driver_step(&driver, NULL, 0, slots, bs, &result);
            bool has_graph = round == 0 && bs <= 8;
            ck_assert_int_eq(result.mode, has_graph    ? PROTO_STEP_DECODE_GRAPH
                                          : round == 0 ? PROTO_STEP_DECODE_ABOVE
                                                       : PROTO_STEP_DECODE_EAGER);
            driver_logits(&driver, logits, sizeof logits / sizeof *logits, bs);
            for (uint32_t row = 0; row < bs; row++) {
                uint32_t slot = slots[row];
                ck_assert_mem_eq(logits + row * VOCABULARY, alone[slot][done[slot]++],
                                 VOCABULARY * sizeof(float));
            }
        }
        driver_close(&driver);
    }
}
END_TEST

/* Prompts and decodes in one forward. */
START_TEST(mixed_rounds_give_the_bits_of_one_request)
{
    static float logits[3 * VOCABULARY];
    static float alone[2][VOCABULARY];
    driver_t driver;
    driver_result_t result;
    open_hybrid(&driver, false);
    (void)prefill_from(&driver, 1, tokens[1], 0, 100, 512, alone[0]);
    decode_logits(&driver, 1, alone[0]);
    (void)prefill_from(&driver, 2, tokens[2], 0, 130, 512, alone[1]);
    (void)prefill_from(&driver, 1, tokens[1], 0, 100, 512, logits);
    driver_setup(&driver, 3, tokens[2], 130, NULL);
    driver_setup(&driver, 4, tokens[4], 128, NULL);
    const uint32_t decode = 1;
    const driver_extend_t extends[] = {
        {.slot = 4, .length = GRAIN, .tokens = tokens[4]},
        {.slot = 3, .length = 130, .sample = true, .tokens = tokens[2]},
    };
    driver_step(&driver, extends, 2, &decode, 1, &result);
    driver_logits(&driver, logits, sizeof logits / sizeof *logits, 2);
    ck_assert_mem_eq(logits, alone[1], sizeof alone[1]);
    ck_assert_mem_eq(logits + VOCABULARY, alone[0], sizeof alone[0]);
    driver_close(&driver);
}
END_TEST

/* A retracted request computes its generated tokens again as a prompt, from its last checkpoint. */
START_TEST(a_retracted_request_resumes_within_the_bound)
{
    enum { PROMPT = 50, STEPS = 100 };
    static float undisturbed[STEPS][VOCABULARY];
    float resumed[VOCABULARY];
    driver_t driver;
    open_hybrid(&driver, false);
    int32_t all[PROMPT + STEPS + 1];
    memcpy(all, tokens[5], PROMPT * sizeof *all);
    all[PROMPT] = prefill_from(&driver, 1, all, 0, PROMPT, 512, undisturbed[0]);
    for (uint32_t i = 1; i < STEPS; i++) {
        all[PROMPT + i] = driver_decode_one(&driver, 1);
        driver_logits(&driver, undisturbed[i], VOCABULARY, 1);
    }
    double worst = 0;
    for (uint32_t at = 3; at < STEPS; at += 16) {
        (void)prefill_from(&driver, 2, all, 0, PROMPT + at, GRAIN, resumed);
        double difference = 0;
        double norm = 0;
        for (uint32_t i = 0; i < VOCABULARY; i++) {
            double d = (double)resumed[i] - (double)undisturbed[at][i];
            difference += d * d;
            norm += (double)undisturbed[at][i] * (double)undisturbed[at][i];
        }
        worst = fmax(worst, sqrt(difference / norm));
    }
    (void)printf("resumed after a retraction: %.2e of at most 1e-4\n", worst);
    ck_assert(worst <= 1e-4);
    driver_close(&driver);
}
END_TEST

/* Blocks must end where checkpoints can stand. */
START_TEST(blocks_off_the_grid_are_refused)
{
    char error[512];
    char path[600];
    (void)snprintf(path, sizeof path, "%s", driver_fixture("tiny-qwen35"));
    run_executor_options_t options = {
        .model_path = path,
        .block_granularity = 48,
        .error = error,
        .error_size_bytes = sizeof error,
    };
    run_executor_t *executor = NULL;
    ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "48"));
    options.block_granularity = 128;
    options.slot_count = 2;
    options.step_tokens_max = 100;
    ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "--max-num-batched-tokens is 100;"));
}
END_TEST

/* ---- the state backend by itself --------------------------------------------------------------
 */

enum { K_HEADS = 1, V_HEADS = 2, K_DIM = 8, V_DIM = 4, TAPS = 3, CHANNELS = 24 };

static device_t *device;
static device_stream_t *stream;

typedef struct {
    cache_plan_t *plan;
    cache_arena_t *arena;
    cache_pool_t pool;
} pool_t;

static void
set_up(void)
{
    device_host_options_t options = {.thread_count = 1, .debug = true};
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
}

static void
tear_down(void)
{
    device_stream_destroy(&stream);
    device_destroy(&device);
}

/* What a pool may differ in. */
typedef struct {
    const char *id;
    uint32_t granularity;
    uint32_t first_layer; /* of two recurrent ones */
    uint32_t v_dim;
    uint32_t parents;
} shape_t;

static const shape_t good = {"states", GRAIN, 0, V_DIM, 6};

static void
pool_open(pool_t *self, const shape_t *shape)
{
    cache_group_t groups[] = {
        {.id = shape->id,
         .kind = CACHE_KIND_STATE,
         .granularity = shape->granularity,
         .packing = 1},
    };
    cache_field_t fields[4];
    for (uint32_t i = 0; i < 4; i++) {
        bool is_window = i % 2 == 0;
        fields[i] = (cache_field_t){
            .layer = shape->first_layer + i / 2,
            .name = is_window ? CACHE_FIELD_CONV : CACHE_FIELD_STATE,
            .rows = is_window ? TAPS - 1 : V_HEADS,
            .heads = is_window ? 1 : K_DIM,
            .head_dim = is_window ? CHANNELS : shape->v_dim,
            .dtype = CACHE_DTYPE_F32,
        };
    }
    cache_plan_options_t options = {.groups = groups,
                                    .group_count = 1,
                                    .fields = fields,
                                    .field_count = 4,
                                    .prefix_granularity = shape->granularity};
    ck_assert_int_eq(cache_plan_new(&options, &self->plan), STATUS_OK);
    ck_assert_int_eq(cache_plan_bind(self->plan, shape->parents), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, self->plan, &self->arena), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&self->pool, self->plan, self->arena, 0,
                                     shape->first_layer + 2),
                     STATUS_OK);
}

static void
pool_close(pool_t *self)
{
    cache_arena_destroy(&self->arena);
    cache_plan_destroy(&self->plan);
}

static backend_t *
new_backend(uint32_t width)
{
    backend_gdn_options_t options = {
        .backend = {.device = device,
                    .stream = stream,
                    .bs_max = 4,
                    .width = width,
                    .step_tokens_max = 256,
                    .model_len_max = 256},
        .k_heads = K_HEADS,
        .v_heads = V_HEADS,
        .k_dim = K_DIM,
        .v_dim = V_DIM,
        .conv_width = TAPS,
        .keeps_states = true,
    };
    backend_t *backend = NULL;
    ck_assert_int_eq(backend_gdn_new(&options, &backend), STATUS_OK);
    return backend;
}

START_TEST(another_geometry_is_refused_and_another_size_is_not)
{
    static const shape_t bad[] = {
        {"others", GRAIN, 0, V_DIM, 6},
        {"states", 2 * GRAIN, 0, V_DIM, 6},
        {"states", GRAIN, 1, V_DIM, 6},
        {"states", GRAIN, 0, V_DIM + 4, 6},
    };
    pool_t first;
    pool_t larger;
    const shape_t large = {"states", GRAIN, 0, V_DIM, 9};
    pool_open(&first, &good);
    pool_open(&larger, &large);
    backend_t *backend = new_backend(1);
    ck_assert_int_eq(backend_set_cache_pool(backend, &first.pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(backend), STATUS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pool_t other;
        pool_open(&other, &bad[i]);
        ck_assert_int_eq(backend_set_cache_pool(backend, &other.pool), STATUS_ERR_INVALID);
        ck_assert_ptr_eq(backend->pool.plan, first.plan); /* nothing moved */
        pool_close(&other);
    }
    /* Index buffers do not come from the pool: they serve on. */
    ck_assert_int_eq(backend_set_cache_pool(backend, &larger.pool), STATUS_OK);
    ck_assert(backend->has_graph_state);
    backend_destroy(&backend);
    /* A grid that the kernels do not have, from the first bind on. */
    pool_t off;
    const shape_t off_grid = {"states", 48, 0, V_DIM, 6};
    pool_open(&off, &off_grid);
    backend = new_backend(1);
    ck_assert_int_eq(backend_set_cache_pool(backend, &off.pool), STATUS_ERR_INVALID);
    backend_destroy(&backend);
    pool_close(&off);
    pool_close(&first);
    pool_close(&larger);
}
END_TEST

START_TEST(a_batch_without_its_table_is_refused)
{
    pool_t pool;
    pool_open(&pool, &good);
    backend_t *backend = new_backend(3);
    size_t verify_bytes = 0;
    ck_assert_int_eq(backend_set_cache_pool(backend, &pool.pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(backend), STATUS_OK);
    ck_assert_int_eq(backend_preallocate_verify_workspace(backend, &verify_bytes), STATUS_OK);
    /* Two layers, (N + 1) rows for each request, windows and states. */
    size_t floats = 2 * 4 * 4 * ((TAPS - 1) * CHANNELS + V_HEADS * K_DIM * V_DIM);
    ck_assert_uint_ge(verify_bytes, floats * sizeof(float));
    static const int32_t numbers[4] = {1, 1, 1, 1};
    static const int32_t zeros[4];
    static const int32_t blocks[4] = {1, 2, 3, 4};
    backend_tables_t none = {.group_count = 1};
    backend_tables_t tables = {.groups = {{blocks, 1, 1}}, .group_count = 1};
    backend_refresh_t refresh = {
        .bs = 2,
        .actual_bs = 1,
        .request_slots = numbers,
        .seq_lens = numbers,
        .mode = BACKEND_MODE_DECODE,
        .tables = &none,
    };
    ck_assert_int_eq(backend_refresh_decode_metadata(backend, &refresh), STATUS_ERR_INVALID);
    refresh.actual_bs = 0; /* idle needs none */
    ck_assert_int_eq(backend_refresh_decode_metadata(backend, &refresh), STATUS_OK);
    refresh.actual_bs = 2;
    refresh.tables = &tables;
    ck_assert_int_eq(backend_refresh_decode_metadata(backend, &refresh), STATUS_OK);
    backend_extend_t extend = {
        .bs = 1,
        .num_extends = 1,
        .request_slots = numbers,
        .seq_lens = numbers,
        .mode = BACKEND_MODE_EXTEND,
        .tables = &none,
        .extend_seq_lens = numbers,
        .extend_prefix_lens = zeros,
        .extend_cu_lens = zeros,
        .extend_seq_lens_host = numbers,
        .extend_prefix_lens_host = zeros,
        .extend_replay_lens_host = zeros,
        .extend_prompt_lens_host = zeros,
    };
    ck_assert_int_eq(backend_init_forward_metadata(backend, &extend), STATUS_ERR_INVALID);
    extend.tables = &tables;
    extend.extend_replay_lens_host = numbers;
    ck_assert_int_eq(backend_init_forward_metadata(backend, &extend), STATUS_ERR_INVALID);
    extend.extend_replay_lens_host = zeros;
    extend.mode = BACKEND_MODE_DECODE;
    ck_assert_int_eq(backend_init_forward_metadata(backend, &extend), STATUS_ERR_INVALID);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    backend_destroy(&backend);
    pool_close(&pool);
}
END_TEST

/* The history of the first request is a hole, so nothing filled its scratch: the commit leaves its
 * live output column alone.  The second one's state is committed. */
START_TEST(a_hole_for_history_commits_nothing)
{
    pool_t pool;
    pool_open(&pool, &good);
    backend_t *backend = new_backend(3);
    size_t verify_bytes = 0;
    ck_assert_int_eq(backend_set_cache_pool(backend, &pool.pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(backend), STATUS_OK);
    ck_assert_int_eq(backend_preallocate_verify_workspace(backend, &verify_bytes), STATUS_OK);
    static const int32_t slots[2] = {1, 2};
    static const int32_t seq_lens[2] = {GRAIN + 3, GRAIN + 3};
    static const int32_t accepts[2] = {2, 2};
    static const int32_t blocks[4] = {0, 2, 3, 4};
    backend_tables_t tables = {.groups = {{blocks, 2, 2}}, .group_count = 1};
    backend_refresh_t refresh = {
        .bs = 2,
        .actual_bs = 2,
        .request_slots = slots,
        .seq_lens = seq_lens,
        .mode = BACKEND_MODE_DECODE,
        .tables = &tables,
    };
    cache_field_view_t state;
    ck_assert_int_eq(cache_pool_field(&pool.pool, 0, CACHE_FIELD_STATE, &state), STATUS_OK);
    size_t state_bytes = V_HEADS * K_DIM * V_DIM * sizeof(float);
    uint8_t kept[V_HEADS * K_DIM * V_DIM * sizeof(float)];
    memset(kept, 0x5A, sizeof kept);
    memcpy(state.pages + 2 * state.stride_bytes, kept, state_bytes);
    memcpy(state.pages + 4 * state.stride_bytes, kept, state_bytes);
    /* What an earlier request left. */
    memset(((gdn_t *)backend)->verify_memory, 0x33, verify_bytes);
    ck_assert_int_eq(backend_refresh_decode_metadata(backend, &refresh), STATUS_OK);
    backend_commit_speculative_state_after_verify(backend, accepts, 2, 0);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    ck_assert_mem_eq(state.pages + 2 * state.stride_bytes, kept, state_bytes);
    memset(kept, 0x33, sizeof kept);
    ck_assert_mem_eq(state.pages + 4 * state.stride_bytes, kept, state_bytes);
    backend_destroy(&backend);
    pool_close(&pool);
}
END_TEST

/* Whatever decode graphs record of the verify workspace is in the guard's snapshot. */
START_TEST(a_moved_verify_workspace_is_named)
{
    static const int32_t numbers[4] = {1, 1, 1, 1};
    static const int32_t blocks[4] = {1, 2, 3, 4};
    for (int keeps = 0; keeps < 2; keeps++) {
        pool_t pool;
        pool_open(&pool, &good);
        backend_t *backend = new_backend(3);
        gdn_t *gdn = (gdn_t *)backend;
        gdn->options.keeps_states = keeps == 1;
        size_t verify_bytes = 0;
        ck_assert_int_eq(backend_set_cache_pool(backend, &pool.pool), STATUS_OK);
        ck_assert_int_eq(backend_init_cuda_graph_state(backend), STATUS_OK);
        ck_assert_int_eq(backend_preallocate_verify_workspace(backend, &verify_bytes), STATUS_OK);
        backend_tables_t tables = {.groups = {{blocks, 1, 1}}, .group_count = 1};
        backend_refresh_t refresh = {
            .bs = 2,
            .actual_bs = 0,
            .request_slots = numbers,
            .seq_lens = numbers,
            .mode = BACKEND_MODE_DECODE,
            .tables = &tables,
        };
        ck_assert_int_eq(backend_refresh_decode_metadata(backend, &refresh), STATUS_OK);
        ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
        gdn_verify_layer_t *first = &gdn->verify_layers[0];
        const struct {
            const char *path;
            void **address_p;
        } moved[] = {
            {"gdn.decode.began_lens", (void **)&gdn->decode_views_by_bs[2].index.began_lens},
            {"gdn.verify", &gdn->verify_memory},
            {keeps ? "gdn.verify.windows" : "gdn.verify.inputs",
             (void **)(keeps ? &first->windows : &first->inputs)},
            {keeps ? "gdn.verify.states" : "gdn.verify.mixed",
             (void **)(keeps ? &first->states : &first->mixed)},
            {keeps ? NULL : "gdn.verify.a", (void **)&first->a},
            {keeps ? NULL : "gdn.verify.b", (void **)&first->b},
        };
        run_guard_t *guard = NULL;
        ck_assert_int_eq(run_guard_new(backend, 2, &guard), STATUS_OK);
        for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
            const char *path = NULL;
            static float elsewhere[1];
            void *before = *moved[i].address_p;
            if (moved[i].path == NULL) {
                continue;
            }
            *moved[i].address_p = elsewhere;
            ck_assert_int_eq(run_guard_verify(guard, backend, &path), STATUS_ERR_INTERNAL);
            ck_assert_str_eq(path, moved[i].path);
            *moved[i].address_p = before;
            ck_assert_int_eq(run_guard_verify(guard, backend, &path), STATUS_OK);
        }
        run_guard_destroy(&guard);
        backend_destroy(&backend);
        pool_close(&pool);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.hybrid");
    TCase *runs = tcase_create("runs");
    tcase_set_timeout(runs, 120);
    tcase_add_test(runs, chunks_and_prefix_hits_give_the_bits_of_the_whole);
    tcase_add_test(runs, any_batch_gives_the_bits_of_one_request);
    tcase_add_test(runs, mixed_rounds_give_the_bits_of_one_request);
    tcase_add_test(runs, a_retracted_request_resumes_within_the_bound);
    tcase_add_test(runs, blocks_off_the_grid_are_refused);
    suite_add_tcase(suite, runs);
    TCase *backends = tcase_create("backend");
    tcase_add_checked_fixture(backends, set_up, tear_down);
    tcase_add_test(backends, another_geometry_is_refused_and_another_size_is_not);
    tcase_add_test(backends, a_batch_without_its_table_is_refused);
    tcase_add_test(backends, a_hole_for_history_commits_nothing);
    tcase_add_test(backends, a_moved_verify_workspace_is_named);
    suite_add_tcase(suite, backends);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
