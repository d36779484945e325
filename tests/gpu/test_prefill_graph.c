/* The prefill graph: buckets, scrub, the same bits as eager steps in any round, pools apart, faults
 * that must be found, and every graph setting.  Seeds are printed. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_host.h"
#include "gpu_driver.h"
#include "random_rounds.h"
#include "run_inspect.h"
#include "run_prefill_graph.h"
#include "run_segments.h"

enum {
    VOCABULARY = RANDOM_VOCABULARY,
    SLOTS = RANDOM_SLOTS,
    STEP_TOKENS = RANDOM_STEP_TOKENS,
    TOP = 96,
};

static const char *const fixtures[] = {"tiny-llama",   "tiny-qwen3",    "tiny-gemma3",
                                       "tiny-gpt-oss", "tiny-deepseek", "tiny-qwen35"};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };
static char model_path[600];

static run_executor_options_t
tiny_options(const char *fixture)
{
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture(fixture));
    run_executor_options_t options = {
        .model_path = model_path,
        .slot_count = SLOTS,
        .model_len_max = 256,
        .step_tokens_max = STEP_TOKENS,
        .block_granularity = strcmp(fixture, "tiny-qwen35") == 0 ? 64 : 16,
        .capture_bs_max = 8,
        .prefill_graph_tokens_max = TOP,
        .graph_debug = true,
        /* The driver keeps whole tables in sliding groups too, which need more than a window. */
        .cache_size_bytes = 64 << 20,
    };
    return options;
}

/* ---- buckets --------------------------------------------------------------------------------- */

START_TEST(buckets_grow_with_their_size)
{
    uint32_t ladder[RUN_PREFILL_LADDER_LEN_MAX];
    static const uint32_t small[] = {16, 32, 48, 64, 80, 96, 100};
    ck_assert_uint_eq(run_prefill_graph_ladder(100, ladder), 7);
    ck_assert_mem_eq(ladder, small, sizeof small);
    ck_assert_uint_eq(run_prefill_graph_ladder(7, ladder), 1);
    ck_assert_uint_eq(ladder[0], 7);
    ck_assert_uint_eq(run_prefill_graph_ladder(16, ladder), 1);
    /* 16 to 256 by 16, to 512 by 32, to 1024 by 64, to 2048 by 128. */
    ck_assert_uint_eq(run_prefill_graph_ladder(2048, ladder), 16 + 8 + 8 + 8);
    ck_assert_uint_eq(ladder[15], 256);
    ck_assert_uint_eq(ladder[16], 288);
    ck_assert_uint_eq(ladder[24], 576);
    ck_assert_uint_eq(ladder[39], 2048);
    uint32_t count = run_prefill_graph_ladder(65536, ladder);
    ck_assert_uint_eq(ladder[count - 1] - ladder[count - 2], 512);
    ck_assert_uint_lt(count, RUN_PREFILL_LADDER_LEN_MAX);
}
END_TEST

START_TEST(the_smallest_bucket_that_holds_the_tokens_is_chosen)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_open(&driver, &options);
    ck_assert_uint_eq(run_inspect_bucket_count(driver.executor), 6);
    static const uint32_t expected[][2] = {{1, 16},  {15, 16}, {16, 16}, {17, 32}, {80, 80},
                                           {81, 96}, {96, 96}, {97, 0},  {128, 0}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        uint32_t rows = expected[i][0];
        ck_assert_uint_eq(run_inspect_bucket(driver.executor, rows), expected[i][1]);
        int32_t prompt[STEP_TOKENS];
        driver_random_tokens(rows, VOCABULARY, prompt, rows);
        driver_setup(&driver, 1, prompt, rows, NULL);
        driver_extend_t extend = {.slot = 1, .length = rows, .sample = true, .tokens = prompt};
        driver_result_t result;
        driver_step(&driver, &extend, 1, NULL, 0, &result);
        ck_assert_int_eq(result.mode,
                         expected[i][1] == 0 ? PROTO_STEP_EXTEND : PROTO_STEP_EXTEND_GRAPH);
    }
    driver_close(&driver);
}
END_TEST

/* ---- scrub ----------------------------------------------------------------------------------- */

enum { ROWS = 16, COLS = 8 };

/* A test double: not a model, but one segment's worth of launches around a break. */
typedef struct {
    model_t base;  /* first */
    float *broken; /* [ROWS][COLS] what the break puts out */
    float *summed; /* [ROWS][COLS] what the segment makes of it */
} tiny_t;

typedef struct {
    float *output;
} tiny_args_t;

static void
tiny_break(const model_t *base, const model_context_t *context, const void *args)
{
    const tiny_args_t *a = args;
    for (uint32_t row = 0; row < context->rows; row++) {
        kern_fill_args_t fill = {.to = a->output + (size_t)row * COLS,
                                 .size_bytes = COLS * sizeof(float),
                                 .value = 0x40}; /* 3.0039 */
        device_ops(base->device)->fill(context->stream, &fill);
    }
}

static void
tiny_record(void *owner, const model_context_t *context)
{
    tiny_t *self = owner;
    tiny_args_t args = {.output = self->broken};
    model_break_t part = {.run = tiny_break,
                          .args = &args,
                          .args_size_bytes = sizeof args,
                          .output = self->broken,
                          .output_stride = COLS};
    model_break(&self->base, context, &part);
    kern_add_args_t add = {.a = self->broken,
                           .a_stride = COLS,
                           .b = self->broken,
                           .b_stride = COLS,
                           .output = self->summed,
                           .output_stride = COLS,
                           .rows = context->rows,
                           .cols = COLS};
    device_ops(self->base.device)->add(context->stream, &add);
}

/* What a break puts out past the live rows is zero in the segment that reads it, whatever lay
 * there: poison, or the rows of a longer forward before. */
START_TEST(rows_past_the_live_ones_are_scrubbed)
{
    device_host_options_t host = {.thread_count = 1, .debug = true};
    ck_assert(kern_path_find("auto", &host.path));
    device_t *device = NULL;
    device_stream_t *stream = NULL;
    device_pool_t *pool = NULL;
    ck_assert_int_eq(device_host_new(&host, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
    ck_assert_int_eq(device_pool_new(device, 2 * ROWS * COLS * sizeof(float), &pool), STATUS_OK);
    device_pool_keep(pool);
    size_t pool_bytes = 0;
    tiny_t tiny = {.base = {.device = device}};
    tiny.broken = device_pool_memory(pool, &pool_bytes);
    tiny.summed = tiny.broken + ROWS * COLS;
    model_context_t context = {.stream = stream, .rows = ROWS};
    run_segments_options_t options = {.model = &tiny.base,
                                      .pool = pool,
                                      .rows = ROWS,
                                      .pool_name = "tiny.pool"};
    run_segments_t *segments = NULL;
    ck_assert_int_eq(run_segments_capture(&options, &context, tiny_record, &tiny, &segments),
                     STATUS_OK);
    ck_assert_uint_eq(run_segments_break_count(segments), 1);
    ck_assert_uint_eq(run_segments_graph_count(segments), 1); /* nothing stands before the break */
    static const uint32_t live_rows[] = {16, 3, 15, 1, 16, 8};
    for (size_t i = 0; i < sizeof live_rows / sizeof *live_rows; i++) {
        if (i % 2 == 1) {
            memset(tiny.broken, 0xff, pool_bytes); /* the stream is idle */
        }
        context.rows = live_rows[i];
        ck_assert_int_eq(run_segments_replay(segments, &context), STATUS_OK);
        ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
        for (uint32_t at = 0; at < ROWS * COLS; at++) {
            bool is_live = at / COLS < live_rows[i];
            ck_assert(is_live ? tiny.summed[at] > 6.0f && tiny.summed[at] < 6.1f
                              : tiny.summed[at] == 0.0f);
        }
    }
    const char *path = NULL;
    ck_assert_int_eq(run_segments_verify(segments, pool, &path), STATUS_OK);
    run_segments_destroy(&segments);
    device_pool_destroy(&pool);
    device_stream_destroy(&stream);
    device_destroy(&device);
}
END_TEST

/* ---- the same bits --------------------------------------------------------------------------- */

/* Chunks, prefix hits, mixed rounds, retractions, rounds above the top bucket: the same logits, the
 * same tokens, the same cache, byte for byte. */
START_TEST(eager_and_replayed_prefill_are_identical)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    static random_rounds_t run;
    static driver_t drivers[2];
    driver_open(&drivers[0], &options);
    options.prefill_graph_tokens_max = 0;
    options.disable_prefill_graph = true;
    driver_open(&drivers[1], &options);
    ck_assert_uint_eq(run_inspect_bucket_count(drivers[1].executor), 0);
    random_rounds_begin(&run, drivers, TOP, fixtures[_i]);
    while (run.graph_rounds < 60 || run.mixed_rounds < 20 || run.eager_rounds < 2 ||
           run.prefix_hits < 2) {
        random_rounds_step(&run);
    }
    random_rounds_end(&run);
    driver_close(&drivers[0]);
    driver_close(&drivers[1]);
}
END_TEST

/* ---- pools and faults ------------------------------------------------------------------------ */

/* Neither kind of graph keeps anything in the other's pool, nor anything between two replays. */
START_TEST(prefill_and_decode_graphs_share_no_memory)
{
    static float logits[4][VOCABULARY];
    run_executor_options_t options = tiny_options(fixtures[_i]);
    options.graph_debug = false; /* no poison but ours */
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[40];
    driver_random_tokens(11, VOCABULARY, prompt, 40);
    for (int way = 0; way < 2; way++) {
        if (way == 1) {
            ck_assert_int_eq(run_inspect_poison_pool(driver.executor, false), STATUS_OK);
            ck_assert_int_eq(run_inspect_poison_pool(driver.executor, true), STATUS_OK);
        }
        driver_setup(&driver, 1, prompt, 40, NULL);
        driver_extend_t extend = {.slot = 1, .length = 40, .sample = true, .tokens = prompt};
        driver_result_t result;
        driver_step(&driver, &extend, 1, NULL, 0, &result);
        ck_assert_int_eq(result.mode, PROTO_STEP_EXTEND_GRAPH);
        driver_logits(&driver, logits[2 * way], VOCABULARY, 1);
        if (way == 1) {
            ck_assert_int_eq(run_inspect_poison_pool(driver.executor, true), STATUS_OK);
        }
        uint32_t slot = 1;
        driver_step(&driver, NULL, 0, &slot, 1, &result);
        ck_assert_int_eq(result.mode, PROTO_STEP_DECODE_GRAPH);
        driver_logits(&driver, logits[2 * way + 1], VOCABULARY, 1);
    }
    ck_assert_mem_eq(logits[0], logits[2], sizeof logits[0]);
    ck_assert_mem_eq(logits[1], logits[3], sizeof logits[1]);
    driver_close(&driver);
}
END_TEST

START_TEST(a_moved_pool_is_caught_by_the_guard)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[9];
    driver_random_tokens(3, VOCABULARY, prompt, 9);
    driver_setup(&driver, 1, prompt, 9, NULL);
    (void)driver_prefill(&driver, 1, prompt, 9, 9);
    ck_assert_int_eq(run_inspect_plant_pool(driver.executor), STATUS_OK);
    driver_extend_t extend = {.slot = 1, .length = 9, .sample = true, .tokens = prompt};
    ck_assert_int_eq(driver_try_launch(&driver, &extend, 1, NULL, 0), STATUS_ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(run_executor_fault(driver.executor), "prefill.pool"));
    driver_close(&driver);
}
END_TEST

/* A test double: the real model, but what is recorded of it for a prefill graph allocates. */
static model_vtable_t spoiling_vtable;
static const model_vtable_t *real_vtable;

static float *
spoiling_forward(model_t *self, const model_context_t *context)
{
    float *logits = real_vtable->forward(self, context);
    if (context->breaker != NULL && context->rows == 48) {
        void *memory = NULL;
        ck_assert_int_eq(device_alloc(self->device, DEVICE_MEMORY_DEVICE, 64, &memory),
                         STATUS_ERR_CAPTURE);
    }
    return logits;
}

static proto_status_t
make_spoiling(device_t *device, const file_model_t *file, model_progress_fn progress,
              void *progress_context, model_t **out_p)
{
    proto_status_t status = model_new(device, file, progress, progress_context, out_p);
    if (status == STATUS_OK) {
        real_vtable = (*out_p)->vtable;
        spoiling_vtable = *real_vtable;
        spoiling_vtable.forward = spoiling_forward;
        (*out_p)->vtable = &spoiling_vtable;
    }
    return status;
}

/* No silent fall to eager: who cannot be captured says so beforehand, or the start dies. */
START_TEST(a_capture_that_fails_is_fatal)
{
    char error[1024];
    const run_plants_t plants = {.make_model = make_spoiling};
    run_executor_options_t options = tiny_options("tiny-llama");
    options.thread_count = 1;
    options.error = error;
    options.error_size_bytes = sizeof error;
    options.plants = &plants;
    run_executor_t *executor = NULL;
    ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_ERR_CAPTURE);
    ck_assert_ptr_nonnull(strstr(error, "prefill graph of 48 tokens"));
    ck_assert_ptr_null(executor);
    options.prefill_graph_tokens_max = 0;
    options.disable_prefill_graph = true; /* nothing to fail then */
    ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_OK);
    run_executor_destroy(&executor);
}
END_TEST

/* ---- support and settings -------------------------------------------------------------------- */

static void
lack_prefill(backend_t *root)
{
    root->support.prefill_graph = false;
}

static void
lack_decode(backend_t *root)
{
    root->support.decode_graph = false;
}

/* What a node declares takes its subsystem away, and only that; the start log names the node. */
START_TEST(a_declared_lack_downgrades_its_subsystem)
{
    const run_plants_t plants[] = {{.adjust_backend = lack_prefill},
                                   {.adjust_backend = lack_decode}};
    int32_t prompt[30];
    driver_random_tokens(5, VOCABULARY, prompt, 30);
    for (uint32_t i = 0; i < 2; i++) {
        run_executor_options_t options = tiny_options("tiny-llama");
        options.plants = &plants[i];
        driver_t driver;
        driver_open(&driver, &options);
        const char *summary = run_executor_summary(driver.executor);
        ck_assert_ptr_nonnull(strstr(summary, i == 0 ? "no prefill graph for cache group router"
                                                     : "no decode graph for cache group router"));
        ck_assert_uint_eq(run_inspect_bucket_count(driver.executor), i == 0 ? 0 : 6);
        ck_assert_uint_eq(run_inspect_graph_count(driver.executor), i == 0 ? 4 : 0);
        driver_setup(&driver, 1, prompt, 30, NULL);
        (void)driver_prefill(&driver, 1, prompt, 30, 30);
        uint32_t slot = 1;
        driver_result_t result;
        driver_step(&driver, NULL, 0, &slot, 1, &result);
        ck_assert_int_eq(result.mode, i == 0 ? PROTO_STEP_DECODE_GRAPH : PROTO_STEP_DECODE_EAGER);
        driver_close(&driver);
    }
}
END_TEST

static const uint32_t listed_sizes[] = {2, 3, 7};

/* Every setting, and what it must lead to with 5 decoding requests and prompts of 20 tokens. */
typedef struct {
    const char *name;
    bool enforce_eager;
    bool disable_prefill;
    bool no_padding;
    bool list;
    uint32_t capture_bs_max;
    uint32_t prefill_tokens_max;
    proto_step_mode_t extend;
    proto_step_mode_t decode;
    uint32_t graphs;
    uint32_t buckets;
} setting_t;

static const setting_t settings[] = {
    {"defaults", 0, 0, 0, 0, 0, 0, PROTO_STEP_EXTEND_GRAPH, PROTO_STEP_DECODE_GRAPH, 5, 8},
    {"enforce eager", 1, 0, 0, 0, 0, 0, PROTO_STEP_EXTEND, PROTO_STEP_DECODE_EAGER, 0, 0},
    {"no prefill graph", 0, 1, 0, 0, 0, 0, PROTO_STEP_EXTEND, PROTO_STEP_DECODE_GRAPH, 5, 0},
    {"top bucket 16", 0, 0, 0, 0, 0, 16, PROTO_STEP_EXTEND, PROTO_STEP_DECODE_GRAPH, 5, 1},
    {"top bucket 20", 0, 0, 0, 0, 0, 20, PROTO_STEP_EXTEND_GRAPH, PROTO_STEP_DECODE_GRAPH, 5, 2},
    {"ladder to 4", 0, 0, 0, 0, 4, 0, PROTO_STEP_EXTEND_GRAPH, PROTO_STEP_DECODE_ABOVE, 3, 8},
    {"listed sizes", 0, 0, 0, 1, 0, 0, PROTO_STEP_EXTEND_GRAPH, PROTO_STEP_DECODE_GRAPH, 3, 8},
    {"no padding", 0, 0, 1, 0, 0, 0, PROTO_STEP_EXTEND_GRAPH, PROTO_STEP_DECODE_EAGER, 5, 8},
    {"listed, no padding", 0, 1, 1, 1, 0, 0, PROTO_STEP_EXTEND, PROTO_STEP_DECODE_EAGER, 3, 0},
    {"eager beats a list", 1, 0, 0, 1, 0, 0, PROTO_STEP_EXTEND, PROTO_STEP_DECODE_EAGER, 0, 0},
};
enum { SETTING_COUNT = sizeof settings / sizeof *settings, REQUESTS = 5, STEPS = 12, PROMPT = 20 };

static void
run_setting(const setting_t *setting, const char *fixture, int32_t out[REQUESTS][STEPS])
{
    run_executor_options_t options = tiny_options(fixture);
    options.enforce_eager = setting->enforce_eager;
    options.disable_prefill_graph = setting->disable_prefill;
    options.no_padding = setting->no_padding;
    options.capture_sizes = setting->list ? listed_sizes : NULL;
    options.capture_size_count = setting->list ? 3 : 0;
    options.capture_bs_max = setting->capture_bs_max;
    options.prefill_graph_tokens_max = setting->prefill_tokens_max;
    driver_t driver;
    driver_open(&driver, &options);
    ck_assert_uint_eq(run_inspect_graph_count(driver.executor), setting->graphs);
    ck_assert_uint_eq(run_inspect_bucket_count(driver.executor), setting->buckets);
    uint32_t slots[REQUESTS];
    driver_result_t result;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        int32_t prompt[PROMPT];
        driver_random_tokens(70 + i, VOCABULARY, prompt, PROMPT);
        slots[i] = 2 + i;
        proto_sampling_t sampling = {.prompt_length = PROMPT,
                                     .temperature = i % 2 == 0 ? 0.0 : 0.8,
                                     .top_p = 1.0,
                                     .repetition_penalty = 1.0,
                                     .seed = i,
                                     .ignore_eos = true};
        driver_setup(&driver, slots[i], prompt, PROMPT, &sampling);
        driver_extend_t extend = {.slot = slots[i],
                                  .length = PROMPT,
                                  .sample = true,
                                  .tokens = prompt};
        driver_step(&driver, &extend, 1, NULL, 0, &result);
        ck_assert_msg(result.mode == setting->extend, "%s: extend ran as %d", setting->name,
                      (int)result.mode);
        out[i][0] = result.tokens[0];
    }
    for (uint32_t step = 1; step < STEPS; step++) {
        driver_step(&driver, NULL, 0, slots, REQUESTS, &result);
        ck_assert_msg(result.mode == setting->decode, "%s: decode ran as %d", setting->name,
                      (int)result.mode);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            out[i][step] = result.tokens[i];
        }
    }
    if (setting->no_padding) { /* a size that was captured is replayed all the same */
        uint32_t size = setting->list ? 3 : 4;
        driver_step(&driver, NULL, 0, slots, size, &result);
        ck_assert_int_eq(result.mode, PROTO_STEP_DECODE_GRAPH);
    }
    driver_close(&driver);
}

START_TEST(every_setting_gives_the_same_tokens)
{
    int32_t expected[REQUESTS][STEPS];
    int32_t tokens[REQUESTS][STEPS];
    run_setting(&settings[0], fixtures[_i], expected);
    for (uint32_t i = 1; i < SETTING_COUNT; i++) {
        run_setting(&settings[i], fixtures[_i], tokens);
        ck_assert_msg(memcmp(expected, tokens, sizeof tokens) == 0, "%s: other tokens",
                      settings[i].name);
    }
}
END_TEST

static void
expect_refusal(const run_executor_options_t *options, const char *words)
{
    char error[1024];
    run_executor_options_t wrong = *options;
    wrong.error = error;
    wrong.error_size_bytes = sizeof error;
    run_executor_t *executor = NULL;
    ck_assert_int_eq(run_executor_new(&wrong, &executor), STATUS_ERR_CONFIG);
    ck_assert_msg(strstr(error, words) != NULL, "'%s' lacks '%s'", error, words);
}

START_TEST(wrong_settings_are_clear_errors)
{
    static const uint32_t zero[] = {0};
    static const uint32_t large[] = {1, SLOTS + 1};
    static const uint32_t twice[] = {4, 4};
    static uint32_t many[129];
    for (uint32_t i = 0; i < 129; i++) {
        many[i] = i + 1;
    }
    run_executor_options_t good = tiny_options("tiny-llama");
    good.capture_bs_max = 0;
    run_executor_options_t bad = good;
    bad.prefill_graph_tokens_max = STEP_TOKENS + 1;
    expect_refusal(&bad, "prefill graphs of 129 tokens; a step has at most 128");
    bad.prefill_graph_tokens_max = 64;
    bad.disable_prefill_graph = true;
    expect_refusal(&bad, "prefill graphs of 64 tokens asked for, and none at all");
    bad = good;
    bad.capture_sizes = zero;
    bad.capture_size_count = 1;
    expect_refusal(&bad, "a capture size of 0; they are 1 to 12");
    bad.capture_sizes = large;
    bad.capture_size_count = 2;
    expect_refusal(&bad, "a capture size of 13; they are 1 to 12");
    bad.capture_sizes = twice;
    expect_refusal(&bad, "capture size 4 after 4; they must ascend");
    bad.capture_bs_max = 3;
    expect_refusal(&bad, "a capture size of 4 above the largest asked for, 3");
    bad.capture_sizes = many;
    bad.capture_size_count = 129;
    expect_refusal(&bad, "129 capture sizes; at most 128");
    bad.capture_size_count = 0;
    expect_refusal(&bad, "an empty list of capture sizes");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.prefill_graph");
    TCase *tests = tcase_create("prefill graph");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, buckets_grow_with_their_size);
    tcase_add_test(tests, the_smallest_bucket_that_holds_the_tokens_is_chosen);
    tcase_add_test(tests, rows_past_the_live_ones_are_scrubbed);
    tcase_add_loop_test(tests, eager_and_replayed_prefill_are_identical, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, prefill_and_decode_graphs_share_no_memory, 0, FIXTURE_COUNT);
    tcase_add_test(tests, a_moved_pool_is_caught_by_the_guard);
    tcase_add_test(tests, a_capture_that_fails_is_fatal);
    tcase_add_test(tests, a_declared_lack_downgrades_its_subsystem);
    tcase_add_loop_test(tests, every_setting_gives_the_same_tokens, 0, FIXTURE_COUNT);
    tcase_add_test(tests, wrong_settings_are_clear_errors);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
