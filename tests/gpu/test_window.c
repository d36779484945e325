/* One window of candidates: where it lies in the batch and in the cache, what ends it, and which
 * widths there are. */
#include <check.h>
#include <string.h>

#include "gpu_width.h"
#include "run_inspect.h"

static bool
is_mixed(proto_step_mode_t mode)
{
    return mode == PROTO_STEP_MIXED || mode == PROTO_STEP_MIXED_GRAPH;
}

/* The next window begins where the accepted tokens end, not where the last window did: it writes
 * the slots of those positions, in its first row the first of them. */
START_TEST(the_next_window_begins_behind_what_was_accepted)
{
    enum { WIDTH = 4, SLOT = 3, COLUMNS = 18 };
    width_make_answers(&width_fixtures[_i]);
    run_executor_options_t options = width_options(&width_fixtures[_i], WIDTH);
    options.block_granularity = 4;
    options.model_len_max = 64;
    const answer_t *answer = &width_answers[SLOT];
    driver_t driver;
    driver_open(&driver, &options);
    driver_setup(&driver, SLOT, answer->tokens, answer->prompt_length, &answer->sampling);
    (void)driver_prefill(&driver, SLOT, answer->tokens, answer->prompt_length, 64);
    uint32_t valid = answer->prompt_length;
    for (uint32_t round = 0; round < 8; round++) {
        uint64_t before[COLUMNS];
        for (uint32_t column = 0; column < COLUMNS; column++) {
            before[column] = width_block_digest(&driver, SLOT, column, false);
        }
        uint32_t right = (round * 3 + 1) % WIDTH;
        int32_t candidates[WIDTH - 1];
        for (uint32_t i = 0; i < WIDTH - 1; i++) {
            int32_t next = answer->tokens[valid + 1 + i];
            candidates[i] = i == right ? (next + 1) % VOCABULARY : next;
        }
        ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, SLOT, candidates, WIDTH - 1),
                         STATUS_OK);
        uint32_t slot = SLOT;
        driver_result_t result;
        driver_step(&driver, NULL, 0, &slot, 1, &result);
        ck_assert_uint_eq(result.counts[0], right + 1);
        for (uint32_t column = 0; column < COLUMNS; column++) {
            bool is_written = (column + 1) * 4 > valid && column * 4 < valid + WIDTH;
            bool changed = before[column] != width_block_digest(&driver, SLOT, column, false);
            ck_assert_msg(changed == is_written, "round %u, %u tokens, block %u", round, valid,
                          column);
        }
        valid += right + 1;
    }
    driver_close(&driver);
}
END_TEST

/* In a mixed round the extends come first in every array, and the rows of a decode lie side by side
 * behind them: the logits are those of each request alone. */
START_TEST(mixed_rounds_order_extends_before_decodes)
{
    enum { WIDTH = 3, EXTENDS = 3, DECODES = 2 };
    static float mixed[(EXTENDS + DECODES * WIDTH) * VOCABULARY];
    static float alone[WIDTH * VOCABULARY];
    width_make_answers(&width_fixtures[_i]);
    run_executor_options_t options = width_options(&width_fixtures[_i], WIDTH);
    driver_t drivers[2];
    const uint32_t decodes[DECODES] = {9, 4};
    const uint32_t extend_slots[EXTENDS] = {7, 2, 12};
    for (int i = 0; i < 2; i++) {
        driver_open(&drivers[i], &options);
        for (uint32_t d = 0; d < DECODES; d++) {
            const answer_t *answer = &width_answers[decodes[d]];
            driver_setup(&drivers[i], decodes[d], answer->tokens, answer->prompt_length,
                         &answer->sampling);
            (void)driver_prefill(&drivers[i], decodes[d], answer->tokens, answer->prompt_length,
                                 64);
            const int32_t *next = answer->tokens + answer->prompt_length + 1;
            ck_assert_int_eq(run_inspect_plant_candidates(drivers[i].executor, decodes[d], next,
                                                          WIDTH - 1),
                             STATUS_OK);
        }
    }
    driver_extend_t extends[EXTENDS];
    for (uint32_t e = 0; e < EXTENDS; e++) {
        const answer_t *answer = &width_answers[extend_slots[e]];
        for (int i = 0; i < 2; i++) {
            driver_setup(&drivers[i], extend_slots[e], answer->tokens, answer->prompt_length,
                         &answer->sampling);
        }
        extends[e] = (driver_extend_t){.slot = extend_slots[e],
                                       .length = answer->prompt_length,
                                       .sample = true,
                                       .tokens = answer->tokens};
    }
    driver_result_t result;
    driver_step(&drivers[0], extends, EXTENDS, decodes, DECODES, &result);
    ck_assert(is_mixed(result.mode));
    driver_logits(&drivers[0], mixed, sizeof mixed / sizeof *mixed, EXTENDS + DECODES * WIDTH);
    driver_result_t one;
    for (uint32_t e = 0; e < EXTENDS; e++) {
        driver_step(&drivers[1], &extends[e], 1, NULL, 0, &one);
        driver_logits(&drivers[1], alone, sizeof alone / sizeof *alone, 1);
        ck_assert_mem_eq(mixed + e * VOCABULARY, alone, VOCABULARY * sizeof(float));
        ck_assert_int_eq(result.tokens[e], one.tokens[0]);
    }
    for (uint32_t d = 0; d < DECODES; d++) {
        driver_step(&drivers[1], NULL, 0, &decodes[d], 1, &one);
        driver_logits(&drivers[1], alone, sizeof alone / sizeof *alone, WIDTH);
        ck_assert_mem_eq(mixed + (EXTENDS + d * WIDTH) * VOCABULARY, alone, sizeof alone);
        ck_assert_uint_eq(result.counts[EXTENDS + d], WIDTH);
        ck_assert_mem_eq(result.windows[EXTENDS + d], one.windows[0], WIDTH * sizeof(int32_t));
    }
    driver_close(&drivers[0]);
    driver_close(&drivers[1]);
}
END_TEST

/* A stop token inside a window is its last token and flagged; what comes after it is not given. */
START_TEST(a_stop_token_ends_the_row)
{
    enum { WIDTH = 4 };
    width_make_answers(&width_fixtures[_i]);
    run_executor_options_t options = width_options(&width_fixtures[_i], WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    const answer_t *answer = &width_answers[2];
    const int32_t *tokens = answer->tokens + answer->prompt_length;
    for (uint32_t at = 1; at < 1 + WIDTH; at++) {
        int32_t stop = tokens[at];
        uint32_t first = 1;
        while (tokens[first] != stop) {
            first++;
        }
        for (int way = 0; way < 2; way++) {
            proto_sampling_t sampling = answer->sampling;
            sampling.stop_ids = (proto_bytes_t){(const uint8_t *)&stop, sizeof stop};
            driver_setup(&driver, 1, answer->tokens, answer->prompt_length, &sampling);
            ck_assert_int_eq(driver_prefill(&driver, 1, answer->tokens, answer->prompt_length, 64),
                             tokens[0]);
            uint32_t slot = 1;
            driver_result_t result;
            int32_t nothing[WIDTH - 1] = {-1, -1, -1};
            ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, 1,
                                                          way == 0 ? tokens + 1 : nothing,
                                                          WIDTH - 1),
                             STATUS_OK);
            driver_step(&driver, NULL, 0, &slot, 1, &result);
            uint32_t wanted = way == 0 ? first : 1;
            ck_assert_uint_eq(result.counts[0], wanted);
            ck_assert_mem_eq(result.windows[0], tokens + 1, wanted * sizeof *tokens);
            ck_assert_uint_eq(result.flags[0], tokens[wanted] == stop ? PROTO_ROW_STOP_TOKEN : 0);
        }
    }
    driver_close(&driver);
}
END_TEST

/* Steps that run ahead know no candidates: one token each, the tokens of width 1. */
START_TEST(two_steps_in_flight_give_one_token_each)
{
    enum { WIDTH = 4, STEPS = 20 };
    width_make_answers(&width_fixtures[_i]);
    run_executor_options_t options = width_options(&width_fixtures[_i], WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    const answer_t *answer = &width_answers[4];
    driver_setup(&driver, 4, answer->tokens, answer->prompt_length, &answer->sampling);
    (void)driver_prefill(&driver, 4, answer->tokens, answer->prompt_length, 64);
    uint32_t slot = 4;
    driver_launch(&driver, NULL, 0, &slot, 1);
    for (uint32_t i = 1; i <= STEPS; i++) {
        driver_result_t result;
        driver_launch(&driver, NULL, 0, &slot, 1);
        driver_collect(&driver, &result);
        ck_assert_uint_eq(result.counts[0], 1);
        ck_assert_int_eq(result.tokens[0], answer->tokens[answer->prompt_length + i]);
    }
    driver_result_t result;
    driver_collect(&driver, &result);
    driver_close(&driver);
}
END_TEST

/* A plan chooses between the executor's width and 1: whatever it chooses, step by step, the tokens
 * are those of width 1, and a candidate that a narrow step had no place for is never taken for one
 * of a later step. */
START_TEST(narrow_steps_between_wide_ones_change_nothing)
{
    enum { WIDTH = 4, ROUNDS = 9 };
    width_make_answers(&width_fixtures[_i]);
    run_executor_options_t options = width_options(&width_fixtures[_i], WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    uint32_t slots[SLOTS];
    uint32_t valid[SLOTS];
    for (uint32_t s = 0; s < SLOTS; s++) {
        const answer_t *answer = &width_answers[s + 1];
        slots[s] = s + 1;
        valid[s] = answer->prompt_length;
        driver_setup(&driver, s + 1, answer->tokens, valid[s], &answer->sampling);
        (void)driver_prefill(&driver, s + 1, answer->tokens, valid[s], 64);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        driver.width = round % 3 == 1 ? 1 : WIDTH;
        uint32_t right[SLOTS];
        for (uint32_t s = 0; s < SLOTS; s++) {
            const answer_t *answer = &width_answers[s + 1];
            int32_t candidates[WIDTH - 1];
            right[s] = (round + s) % WIDTH;
            for (uint32_t i = 0; i < WIDTH - 1; i++) {
                int32_t next = answer->tokens[valid[s] + 1 + i];
                candidates[i] = i == right[s] ? (next + 1) % VOCABULARY : next;
            }
            ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, s + 1, candidates,
                                                          WIDTH - 1),
                             STATUS_OK);
        }
        driver_result_t result;
        driver_step(&driver, NULL, 0, slots, SLOTS, &result);
        for (uint32_t s = 0; s < SLOTS; s++) {
            uint32_t count = driver.width == 1 ? 1 : right[s] + 1;
            ck_assert_uint_eq(result.counts[s], count);
            for (uint32_t i = 0; i < count; i++) {
                ck_assert_int_eq(result.windows[s][i],
                                 width_answers[s + 1].tokens[valid[s] + 1 + i]);
            }
            valid[s] += count;
        }
    }
    driver_close(&driver);
}
END_TEST

/* A width is the executor's, or 1; another one, or too much of it, is refused. */
START_TEST(widths_out_of_range_are_refused)
{
    char error[512];
    run_executor_options_t options = width_options(&width_fixtures[0], RUN_WIDTH_MAX + 1);
    options.error = error;
    options.error_size_bytes = sizeof error;
    run_executor_t *executor = NULL;
    ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "width of 17"));
    driver_t driver;
    options = width_options(&width_fixtures[0], RUN_WIDTH_MAX);
    driver_open(&driver, &options);
    /* Room for every slot to decode at once, whatever was asked for. */
    ck_assert_uint_eq(driver.info.step_tokens_max, SLOTS * RUN_WIDTH_MAX);
    ck_assert_ptr_nonnull(
        memmem(driver.info.fingerprint.data, driver.info.fingerprint.size_bytes, ";width=16;", 10));
    int32_t prompt[5] = {1, 2, 3, 4, 5};
    driver_setup(&driver, 1, prompt, 5, NULL);
    (void)driver_prefill(&driver, 1, prompt, 5, 5);
    uint32_t slot = 1;
    const uint32_t wrong[] = {0, 2, RUN_WIDTH_MAX - 1, RUN_WIDTH_MAX + 1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        driver.width = wrong[i];
        ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_ERR_INVALID);
    }
    driver.width = RUN_WIDTH_MAX;
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_OK);
    driver_result_t result;
    driver_collect(&driver, &result);
    ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, 1, prompt, RUN_WIDTH_MAX),
                     STATUS_ERR_INVALID);
    ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, SLOTS + 1, prompt, 1),
                     STATUS_ERR_INVALID);
    driver_close(&driver);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.window");
    TCase *tests = tcase_create("window");
    tcase_set_timeout(tests, 200);
    tcase_add_loop_test(tests, the_next_window_begins_behind_what_was_accepted, 0, ATTENTION_COUNT);
    tcase_add_loop_test(tests, mixed_rounds_order_extends_before_decodes, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, a_stop_token_ends_the_row, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, two_steps_in_flight_give_one_token_each, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, narrow_steps_between_wide_ones_change_nothing, 0, FIXTURE_COUNT);
    tcase_add_test(tests, widths_out_of_range_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
