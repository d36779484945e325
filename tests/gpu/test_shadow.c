/* The shadow check and the switch of the graphs, on a running executor: they find what differs and
 * change nothing. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_driver.h"
#include "run_inspect.h"

enum { SLOTS = 10, ROUNDS = 60, VOCABULARY = 320, LADDER_TOP = 8 };

static const char *const fixtures[] = {"tiny-llama", "tiny-qwen3", "tiny-gemma3", "tiny-gpt-oss",
                                       "tiny-qwen35"};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };
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
        .cache_size_bytes = 64 << 20, /* the driver keeps whole tables in sliding groups, too */
        .capture_bs_max = LADDER_TOP,
        .graph_debug = true,
    };
}

static void
join(driver_t *driver, uint32_t slot)
{
    static int32_t prompts[SLOTS + 1][40];
    uint32_t length = 3 + 3 * slot;
    proto_sampling_t sampling = {.temperature = 0.9,
                                 .top_k = 40,
                                 .repetition_penalty = 1.1,
                                 .frequency_penalty = 0.3,
                                 .seed = slot,
                                 .logprobs = slot % 3,
                                 .ignore_eos = true,
                                 .prompt_length = length};
    driver_random_tokens(slot, VOCABULARY, prompts[slot], length);
    driver_setup(driver, slot, prompts[slot], length, slot % 2 == 0 ? &sampling : NULL);
    (void)driver_prefill(driver, slot, prompts[slot], length, 64);
}

typedef enum { WAY_PLAIN, WAY_CHECKED, WAY_PLANTED, WAY_SWITCHED } way_t;

/* Sixty decode steps of changing batches; every third one is checked, or every fifth one changes
 * the way that steps run. */
static void
run_rounds(driver_t *driver, way_t way, int32_t tokens[ROUNDS][SLOTS])
{
    bool has_states = strstr(model_path, "qwen35") != NULL;
    bool graphs_on = true;
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        join(driver, slot);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t bs = 1 + round % LADDER_TOP;
        uint32_t slots[SLOTS];
        for (uint32_t i = 0; i < bs; i++) {
            slots[i] = 1 + (round + 3 * i) % SLOTS;
        }
        bool is_checked = (way == WAY_CHECKED || way == WAY_PLANTED) && round % 3 == 1;
        if (is_checked) {
            ck_assert_int_eq(run_executor_want_check(driver->executor, way == WAY_PLANTED),
                             STATUS_OK);
        }
        if (way == WAY_SWITCHED && round % 5 == 0) {
            graphs_on = !graphs_on;
            run_executor_set_graphs(driver->executor, graphs_on);
        }
        driver_result_t result;
        driver_step(driver, NULL, 0, slots, bs, &result);
        ck_assert_int_eq(result.mode,
                         graphs_on ? PROTO_STEP_DECODE_GRAPH : PROTO_STEP_DECODE_EAGER);
        memcpy(tokens[round], result.tokens, bs * sizeof(int32_t));
        proto_status_t verdict = STATUS_OK;
        const char *text = "";
        proto_status_t status = run_executor_take_check(driver->executor, &verdict, &text);
        ck_assert_int_eq(status, is_checked ? STATUS_OK : STATUS_END);
        if (is_checked && way == WAY_CHECKED) {
            ck_assert_msg(verdict == STATUS_OK, "round %u: %s", round, text);
            ck_assert_ptr_nonnull(strstr(text, "agree in every bit"));
        }
        if (is_checked && way == WAY_PLANTED) {
            /* Layer 0's key of the token before was changed: layer 1 is the first to show it.  A
             * changed state shows there or in its own layer. */
            ck_assert_int_eq(verdict, STATUS_ERR_INTERNAL);
            const char *first =
                has_states ? "first in 'cache layer " : "first in 'cache layer 1 field 0";
            ck_assert_msg(strstr(text, first) != NULL, "%s", text);
        }
    }
}

static uint64_t
cache_digest(driver_t *driver)
{
    uint64_t digest = 0;
    for (uint32_t block = 1; block < 1 + SLOTS * driver->columns; block++) {
        uint64_t part = 0;
        ck_assert_int_eq(run_inspect_block_digest(driver->executor, 0, block, &part), STATUS_OK);
        digest = digest * 31 + part;
    }
    return digest;
}

START_TEST(checks_and_switches_change_no_answer)
{
    static int32_t tokens[2][ROUNDS][SLOTS];
    static const way_t ways[] = {WAY_CHECKED, WAY_PLANTED, WAY_SWITCHED};
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    run_rounds(&driver, WAY_PLAIN, tokens[0]);
    uint64_t expected = cache_digest(&driver);
    driver_close(&driver);
    for (uint32_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        driver_open(&driver, &options);
        uint64_t used_bytes = run_inspect_used_bytes(driver.executor);
        memset(tokens[1], 0, sizeof tokens[1]);
        run_rounds(&driver, ways[w], tokens[1]);
        ck_assert_mem_eq(tokens[0], tokens[1], sizeof tokens[0]);
        ck_assert_uint_eq(cache_digest(&driver), expected);
        ck_assert_uint_eq(run_inspect_used_bytes(driver.executor), used_bytes);
        driver_close(&driver);
    }
}
END_TEST

/* A window, of which the commit takes a part behind the replay, and a step of one token in a tree
 * of its own: checked, whatever was proposed. */
START_TEST(wide_steps_are_checked)
{
    enum { WIDTH = 4, ALL = 40 };
    for (uint32_t keeps = 0; keeps < 2; keeps++) {
        run_executor_options_t options = tiny_options(_i == 0 ? "tiny-llama" : "tiny-qwen35");
        int32_t tokens[ALL + 1];
        driver_t driver;
        uint32_t slots[] = {1, 2, 3};
        options.width = WIDTH;
        options.keeps_states = keeps == 1;
        for (int way = 0; way < 2; way++) { /* to learn the tokens of slot 1; then checked */
            driver_open(&driver, &options);
            for (uint32_t slot = 1; slot <= 3; slot++) {
                join(&driver, slot);
            }
            uint32_t done = 0;
            for (uint32_t round = 0; done + (way == 0 ? 0 : WIDTH) < ALL; round++) {
                uint32_t right = way == 0 ? 0 : round % WIDTH;
                int32_t candidates[WIDTH - 1] = {-1, -1, -1};
                for (uint32_t i = 0; i < right; i++) {
                    candidates[i] = tokens[done + i];
                }
                ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, 1, candidates,
                                                              WIDTH - 1),
                                 STATUS_OK);
                bool is_single = way == 1 && round % 5 == 4;
                driver.width = is_single ? 1 : WIDTH;
                if (way == 1) {
                    ck_assert_int_eq(run_executor_want_check(driver.executor, false), STATUS_OK);
                }
                driver_result_t result;
                driver_step(&driver, NULL, 0, slots, 3, &result);
                uint32_t wanted = is_single ? 1 : right + 1;
                ck_assert_uint_eq(result.counts[0], wanted);
                if (way == 0) {
                    tokens[done] = result.tokens[0];
                } else {
                    proto_status_t verdict = STATUS_ERR_INTERNAL;
                    const char *text = "";
                    ck_assert_int_eq(run_executor_take_check(driver.executor, &verdict, &text),
                                     STATUS_OK);
                    ck_assert_msg(verdict == STATUS_OK, "round %u: %s", round, text);
                    ck_assert_mem_eq(result.windows[0], tokens + done, wanted * sizeof *tokens);
                }
                done += wanted;
            }
            driver_close(&driver);
        }
    }
}
END_TEST

/* The step before may still run when the check begins: it is drained first. */
START_TEST(a_check_drains_the_step_before)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_t plain;
    driver_open(&driver, &options);
    driver_open(&plain, &options);
    uint32_t slots[] = {1, 2, 3};
    driver_t *both[] = {&driver, &plain};
    for (int i = 0; i < 2; i++) {
        for (uint32_t slot = 1; slot <= 3; slot++) {
            join(both[i], slot);
        }
    }
    for (uint32_t round = 0; round < 20; round++) {
        driver_result_t results[2][2];
        for (int i = 0; i < 2; i++) {
            driver_launch(both[i], NULL, 0, slots, 3);
            if (i == 0) {
                ck_assert_int_eq(run_executor_want_check(driver.executor, false), STATUS_OK);
            }
            driver_launch(both[i], NULL, 0, slots, 3);
            driver_collect(both[i], &results[i][0]);
            driver_collect(both[i], &results[i][1]);
        }
        proto_status_t verdict = STATUS_ERR_INTERNAL;
        const char *text = "";
        ck_assert_int_eq(run_executor_take_check(driver.executor, &verdict, &text), STATUS_OK);
        ck_assert_int_eq(verdict, STATUS_OK);
        for (int s = 0; s < 2; s++) {
            ck_assert_mem_eq(results[0][s].tokens, results[1][s].tokens, 3 * sizeof(int32_t));
        }
    }
    driver_close(&driver);
    driver_close(&plain);
}
END_TEST

/* What cannot be checked says so, or waits for a step that can. */
START_TEST(a_step_without_a_graph_is_not_checked)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_open(&driver, &options);
    proto_status_t verdict = STATUS_OK;
    const char *text = NULL;
    ck_assert_int_eq(run_executor_take_check(driver.executor, &verdict, &text), STATUS_END);
    run_executor_set_graphs(driver.executor, false);
    ck_assert_int_eq(run_executor_want_check(driver.executor, false), STATUS_ERR_REFUSED);
    run_executor_set_graphs(driver.executor, true);
    ck_assert_int_eq(run_executor_want_check(driver.executor, false), STATUS_OK);
    uint32_t slots[SLOTS];
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        join(&driver, slot); /* extends */
        slots[slot - 1] = slot;
    }
    driver_result_t result;
    driver_step(&driver, NULL, 0, slots, SLOTS, &result);
    ck_assert_int_eq(result.mode, PROTO_STEP_DECODE_ABOVE);
    ck_assert_int_eq(run_executor_take_check(driver.executor, &verdict, &text), STATUS_AGAIN);
    driver_step(&driver, NULL, 0, slots, 3, &result);
    ck_assert_int_eq(run_executor_take_check(driver.executor, &verdict, &text), STATUS_OK);
    ck_assert_int_eq(verdict, STATUS_OK);
    ck_assert_ptr_nonnull(strstr(text, "3 requests, padded to 4"));
    driver_close(&driver);
    options.enforce_eager = true;
    driver_open(&driver, &options);
    ck_assert_int_eq(run_executor_want_check(driver.executor, false), STATUS_ERR_REFUSED);
    driver_close(&driver);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.shadow");
    TCase *tests = tcase_create("shadow");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, checks_and_switches_change_no_answer, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, wide_steps_are_checked, 0, 2);
    tcase_add_test(tests, a_check_drains_the_step_before);
    tcase_add_test(tests, a_step_without_a_graph_is_not_checked);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
