/* The prefill graph: buckets, scrub, the same bits as eager steps in any round, pools apart, faults
 * that must be found, and every graph setting.  Seeds are printed. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_host.h"
#include "gpu_driver.h"
#include "run_inspect.h"
#include "run_prefill_graph.h"
#include "run_segments.h"

enum { VOCABULARY = 320, SLOTS = 12, STEP_TOKENS = 128, TOP = 96, LEN_MAX = 224, BLOCK = 16 };

static const char *const fixtures[] = {"tiny-llama", "tiny-qwen3", "tiny-gemma3", "tiny-gpt-oss",
                                       "tiny-deepseek"};
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
        .block_granularity = BLOCK,
        .capture_bs_max = 8,
        .prefill_graph_tokens_max = TOP,
        .graph_debug = true,
        /* The driver keeps whole tables in sliding groups too, which need more than a window. */
        .cache_size_bytes = 64 << 20,
    };
    return options;
}

static uint64_t random_state;

static uint32_t
random_below(uint32_t end)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % end);
}

/* A new seed for each run, unless ONEPATH_SEED has one. */
static uint32_t
seed_of(const char *test)
{
    const char *text = getenv("ONEPATH_SEED");
    uint32_t seed = text == NULL ? (uint32_t)time(NULL) : (uint32_t)strtoul(text, NULL, 10);
    (void)printf("%s: ONEPATH_SEED=%u\n", test, seed);
    (void)fflush(stdout);
    return seed;
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

/* What one slot of a random run is at. */
typedef struct {
    int32_t tokens[LEN_MAX];
    uint32_t length; /* of the prompt; 0 = the slot is free */
    uint32_t at;     /* prompt tokens computed */
    uint32_t drawn;  /* decode steps */
} request_t;

typedef struct {
    driver_t *drivers[2]; /* with the prefill graph, and without */
    request_t requests[SLOTS + 1];
    uint32_t graph_rounds;
    uint32_t eager_rounds;
    uint32_t mixed_rounds;
    uint32_t prefix_hits;
    uint32_t round;
} run_t;

/* A prompt of its own, or one that begins with whole blocks of a neighbour's and borrows them. */
static void
start_request(run_t *run, uint32_t slot)
{
    request_t *request = &run->requests[slot];
    request->length = 1 + random_below(LEN_MAX - 60);
    request->at = 0;
    request->drawn = 0;
    driver_random_tokens(run->round * 100 + slot, VOCABULARY, request->tokens, request->length);
    uint32_t other = 1 + random_below(SLOTS);
    const request_t *neighbour = &run->requests[other];
    uint32_t shared = neighbour->at / BLOCK;
    for (int i = 0; i < 2; i++) {
        driver_t *driver = run->drivers[i];
        for (uint32_t column = 0; column < driver->columns; column++) {
            driver->blocks[slot][column] = 1 + (slot - 1) * driver->columns + column;
        }
    }
    if (other != slot && shared > 0 && random_below(2) == 0) {
        shared = 1 + random_below(shared);
        request->at = shared * BLOCK;
        request->length = request->at + 1 + random_below(40);
        memcpy(request->tokens, neighbour->tokens, request->at * sizeof *request->tokens);
        for (int i = 0; i < 2; i++) {
            memcpy(run->drivers[i]->blocks[slot], run->drivers[i]->blocks[other],
                   shared * sizeof(uint32_t));
        }
        run->prefix_hits++;
    }
    proto_sampling_t sampling = {.prompt_length = request->length,
                                 .temperature = slot % 2 == 0 ? 0.9 : 0.0,
                                 .top_p = 1.0,
                                 .repetition_penalty = 1.0,
                                 .seed = run->round,
                                 .ignore_eos = true};
    for (int i = 0; i < 2; i++) {
        driver_setup(run->drivers[i], slot, request->tokens, request->length, &sampling);
    }
}

/* One round of some extends and some decodes in both executors; every bit of them compared. */
static void
random_round(run_t *run)
{
    static float logits[2][SLOTS * VOCABULARY];
    driver_extend_t extends[SLOTS];
    uint32_t decodes[SLOTS];
    uint32_t extend_count = 0;
    uint32_t decode_count = 0;
    uint32_t rows = 0;
    uint32_t token_rows = 0;
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        request_t *request = &run->requests[slot];
        if (request->length == 0 || request->drawn > 20 || random_below(40) == 0) {
            if (random_below(3) != 0) {
                continue;
            }
            start_request(run, slot);
        }
        if (request->at < request->length && random_below(3) == 0) {
            uint32_t left = request->length - request->at;
            uint32_t chunk = 1 + random_below(random_below(2) == 0 ? 8 : left);
            chunk = chunk > left ? left : chunk;
            if (chunk + SLOTS > STEP_TOKENS - rows) {
                continue;
            }
            extends[extend_count++] = (driver_extend_t){.slot = slot,
                                                        .begin = request->at,
                                                        .length = chunk,
                                                        .sample = chunk == left,
                                                        .tokens = request->tokens + request->at};
            token_rows += chunk == left;
            request->at += chunk;
            rows += chunk;
        } else if (request->at == request->length && random_below(4) != 0) {
            decodes[decode_count++] = slot;
            request->drawn++;
        }
    }
    rows += decode_count;
    token_rows += decode_count;
    if (extend_count == 0) {
        for (uint32_t i = 0; i < decode_count; i++) {
            run->requests[decodes[i]].drawn--;
        }
        return; /* pure decode is gpu.runner's */
    }
    driver_result_t results[2];
    for (int i = 0; i < 2; i++) {
        driver_step(run->drivers[i], extends, extend_count, decodes, decode_count, &results[i]);
        driver_logits(run->drivers[i], logits[i], SLOTS * VOCABULARY, token_rows);
    }
    bool is_mixed = decode_count > 0;
    bool is_graph = rows <= TOP;
    proto_step_mode_t eager = is_mixed ? PROTO_STEP_MIXED : PROTO_STEP_EXTEND;
    proto_step_mode_t graph = is_mixed ? PROTO_STEP_MIXED_GRAPH : PROTO_STEP_EXTEND_GRAPH;
    ck_assert_int_eq(results[0].mode, is_graph ? graph : eager);
    ck_assert_int_eq(results[1].mode, eager);
    for (uint32_t row = 0; row < extend_count + decode_count; row++) {
        ck_assert_uint_eq(results[0].flags[row], 0); /* no NaN */
        ck_assert_int_eq(results[0].tokens[row], results[1].tokens[row]);
    }
    ck_assert_mem_eq(logits[0], logits[1], (size_t)token_rows * VOCABULARY * sizeof(float));
    run->graph_rounds += is_graph;
    run->eager_rounds += !is_graph;
    run->mixed_rounds += is_mixed;
}

static void
compare_blocks(run_t *run)
{
    const proto_executor_info_t *info = &run->drivers[0]->info;
    for (uint32_t group = 0; group < info->group_kinds.count; group++) {
        uint32_t blocks = (info->parent_count - 1) * info->group_packings.data[group];
        for (uint32_t block = 1; block <= blocks; block++) {
            uint64_t digests[2];
            for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(run_inspect_block_digest(run->drivers[i]->executor, group, block,
                                                          &digests[i]),
                                 STATUS_OK);
            }
            ck_assert_uint_eq(digests[0], digests[1]);
        }
    }
}

/* Chunks, prefix hits, mixed rounds, retractions, rounds above the top bucket: the same logits, the
 * same tokens, the same cache, byte for byte. */
START_TEST(eager_and_replayed_prefill_are_identical)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    options.cache_size_bytes = 16 << 20;
    static run_t run;
    static driver_t drivers[2];
    memset(&run, 0, sizeof run);
    driver_open(&drivers[0], &options);
    options.prefill_graph_tokens_max = 0;
    options.disable_prefill_graph = true;
    driver_open(&drivers[1], &options);
    ck_assert_uint_eq(run_inspect_bucket_count(drivers[1].executor), 0);
    run.drivers[0] = &drivers[0];
    run.drivers[1] = &drivers[1];
    random_state = seed_of(fixtures[_i]);
    for (run.round = 1; run.graph_rounds < 60 || run.mixed_rounds < 20 || run.eager_rounds < 2;
         run.round++) {
        ck_assert_uint_lt(run.round, 5000);
        random_round(&run);
    }
    (void)printf("%s: %u replayed, %u above the buckets, %u of them mixed, %u prefix hits\n",
                 fixtures[_i], run.graph_rounds, run.eager_rounds, run.mixed_rounds,
                 run.prefix_hits);
    ck_assert_uint_gt(run.prefix_hits, 0);
    compare_blocks(&run);
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
    {"ladder to 4", 0, 0, 0, 0, 4, 0, PROTO_STEP_EXTEND_GRAPH, PROTO_STEP_DECODE_EAGER, 3, 8},
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
