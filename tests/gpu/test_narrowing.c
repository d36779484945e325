/* A model whose rows narrow once: eager and replayed prefill give the same bits, whichever of the
 * two decoder paths a round takes, and the window changes nothing but the work. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_driver.h"
#include "narrowing_double.h"
#include "random_rounds.h"
#include "run_inspect.h"

enum { TOP = 96 };

static const run_plants_t plants = {.make_model = narrowing_double_new};
static char model_path[600];

static run_executor_options_t
double_options(uint32_t window)
{
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture("tiny-llama"));
    narrowing_double_set_window(window);
    run_executor_options_t options = {
        .model_path = model_path,
        .slot_count = RANDOM_SLOTS,
        .model_len_max = 256,
        .step_tokens_max = RANDOM_STEP_TOKENS,
        .block_granularity = 16,
        .capture_bs_max = 8,
        .prefill_graph_tokens_max = TOP,
        .graph_debug = true,
        .cache_size_bytes = 16 << 20,
        .plants = &plants,
    };
    return options;
}

/* The decoder's ladder is the token ladder, clipped to window x slots. */
START_TEST(the_decoder_has_buckets_of_its_own)
{
    static const struct {
        uint32_t window;
        uint32_t count;
        uint32_t bucket_of_9;
        uint32_t bucket_of_49;
    } expected[] = {{1, 0, 0, 0}, {3, 2, 16, 0}, {4, 3, 16, 0}, {100, 6, 16, 64}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        run_executor_options_t options = double_options(expected[i].window);
        driver_t driver;
        driver_open(&driver, &options);
        ck_assert_uint_eq(run_inspect_bucket_count(driver.executor), 6);
        ck_assert_uint_eq(run_inspect_decoder_count(driver.executor), expected[i].count);
        ck_assert_uint_eq(run_inspect_decoder_bucket(driver.executor, 9), expected[i].bucket_of_9);
        ck_assert_uint_eq(run_inspect_decoder_bucket(driver.executor, 49),
                          expected[i].bucket_of_49);
        driver_close(&driver);
    }
}
END_TEST

static const uint32_t windows[] = {1, 3, 5, 200}; /* 1: the decoder always runs eagerly */
enum { WINDOW_COUNT = sizeof windows / sizeof *windows };

START_TEST(eager_and_replayed_narrowing_are_identical)
{
    run_executor_options_t options = double_options(windows[_i]);
    static random_rounds_t run;
    static driver_t drivers[2];
    char name[32];
    (void)snprintf(name, sizeof name, "window %u", windows[_i]);
    driver_open(&drivers[0], &options);
    options.prefill_graph_tokens_max = 0;
    options.disable_prefill_graph = true;
    driver_open(&drivers[1], &options);
    random_rounds_begin(&run, drivers, TOP, name);
    while (run.graph_rounds < 60 || run.mixed_rounds < 20 || run.eager_rounds < 1) {
        random_rounds_step(&run);
    }
    random_rounds_end(&run);
    driver_close(&drivers[0]);
    driver_close(&drivers[1]);
}
END_TEST

/* Rows that do not go on are not missed: the logits of a prompt in chunks, alone or beside others,
 * and of the tokens after it, are the same with any window - also with one that keeps every row. */
START_TEST(the_window_changes_no_logits)
{
    enum { STEPS = 6, PROMPT = 70 };
    static float logits[2][STEPS * RANDOM_VOCABULARY];
    int32_t prompt[PROMPT];
    int32_t other[PROMPT];
    driver_random_tokens(17, RANDOM_VOCABULARY, prompt, PROMPT);
    driver_random_tokens(18, RANDOM_VOCABULARY, other, PROMPT);
    for (uint32_t i = 0; i < WINDOW_COUNT; i++) {
        run_executor_options_t options = double_options(windows[i]);
        driver_t driver;
        driver_open(&driver, &options);
        driver_result_t result;
        float *out = logits[i == 0 ? 0 : 1];
        driver_setup(&driver, 2, prompt, PROMPT, NULL);
        driver_setup(&driver, 5, other, PROMPT, NULL);
        uint32_t first = 10 + 7 * i; /* another chunk, with another neighbour */
        driver_extend_t chunks[] = {
            {.slot = 5, .length = 30, .tokens = other},
            {.slot = 2, .length = first, .tokens = prompt},
        };
        driver_step(&driver, chunks, i % 2 == 0 ? 2 : 1, NULL, 0, &result);
        if (i % 2 != 0) {
            driver_step(&driver, chunks + 1, 1, NULL, 0, &result);
        }
        driver_extend_t rest = {.slot = 2,
                                .begin = first,
                                .length = PROMPT - first,
                                .sample = true,
                                .tokens = prompt + first};
        driver_step(&driver, &rest, 1, NULL, 0, &result);
        driver_logits(&driver, out, RANDOM_VOCABULARY, 1);
        uint32_t slot = 2;
        for (uint32_t step = 1; step < STEPS; step++) {
            driver_step(&driver, NULL, 0, &slot, 1, &result);
            driver_logits(&driver, out + step * RANDOM_VOCABULARY, RANDOM_VOCABULARY, 1);
        }
        if (i > 0) {
            ck_assert_mem_eq(logits[0], logits[1], sizeof logits[0]);
        }
        driver_close(&driver);
    }
}
END_TEST

/* Planning, staging and both decoder paths allocate nothing. */
START_TEST(narrowed_steps_allocate_nothing)
{
    run_executor_options_t options = double_options(3);
    options.graph_debug = false;
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[40];
    driver_random_tokens(7, RANDOM_VOCABULARY, prompt, 40);
    uint64_t before = driver_allocation_count();
    ck_assert_uint_gt(before, 0);
    for (uint32_t slot = 1; slot <= RANDOM_SLOTS; slot++) {
        driver_setup(&driver, slot, prompt, 40, NULL);
        (void)driver_prefill(&driver, slot, prompt, 40, 3 + slot);
        (void)driver_decode_one(&driver, slot);
    }
    ck_assert_uint_eq(driver_allocation_count(), before);
    driver_close(&driver);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.narrowing");
    TCase *tests = tcase_create("narrowing");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, the_decoder_has_buckets_of_its_own);
    tcase_add_loop_test(tests, eager_and_replayed_narrowing_are_identical, 0, WINDOW_COUNT);
    tcase_add_test(tests, the_window_changes_no_logits);
    tcase_add_test(tests, narrowed_steps_allocate_nothing);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
