/* Start-up autotuning: the dummy batch, the ladder it leads to, and that no answer depends on it.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "gpu_driver.h"
#include "run_autotune.h"
#include "run_inspect.h"

enum { SLOTS = 12, ROUNDS = 36, VOCABULARY = 320 };

/* Enough requests that none is longer than the context, and never more tokens than they hold. */
START_TEST(the_dummy_batch_keeps_its_limits)
{
    static const uint32_t tokens[] = {1, 2, 31, 32, 33, 100, 512, 4096};
    static const uint32_t contexts[] = {1, 7, 32, 100, 1000};
    static const uint32_t requests[] = {1, 2, 5, 300};
    for (uint32_t t = 0; t < 8; t++) {
        for (uint32_t c = 0; c < 5; c++) {
            for (uint32_t r = 0; r < 4; r++) {
                run_dummy_batch_t batch = run_dummy_batch(tokens[t], contexts[c], requests[r]);
                uint32_t room = contexts[c] * requests[r];
                uint32_t wanted = tokens[t] < room ? tokens[t] : room;
                ck_assert_uint_eq(batch.token_count, wanted);
                ck_assert_uint_eq(batch.request_count, (wanted + contexts[c] - 1) / contexts[c]);
                ck_assert_uint_le(batch.request_count, requests[r]);
                uint32_t sum = 0;
                for (uint32_t i = 0; i < batch.request_count; i++) {
                    uint32_t length = run_dummy_batch_length(&batch, i);
                    ck_assert_uint_ge(length, 1);
                    ck_assert_uint_le(length, contexts[c]);
                    sum += length;
                }
                ck_assert_uint_eq(sum, wanted);
            }
        }
    }
}
END_TEST

START_TEST(a_dense_interval_gets_every_size)
{
    static const uint32_t ladder[] = {1, 2, 4, 8, 16, 20};
    uint32_t out[64];
    static const bool none[6] = {false};
    ck_assert_uint_eq(run_autotune_refine(ladder, 6, none, out, 64), 6);
    ck_assert_mem_eq(out, ladder, sizeof ladder);
    static const bool some[6] = {true, false, true, false, false, true};
    static const uint32_t expected[] = {1, 2, 3, 4, 8, 16, 17, 18, 19, 20};
    ck_assert_uint_eq(run_autotune_refine(ladder, 6, some, out, 64), 10);
    ck_assert_mem_eq(out, expected, sizeof expected);
    static const bool all[6] = {true, true, true, true, true, true};
    ck_assert_uint_eq(run_autotune_refine(ladder, 6, all, out, 64), 20);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_uint_eq(out[i], i + 1);
    }
    /* What does not fit stays as it is, and the top stays the top. */
    for (uint32_t capacity = 6; capacity < 20; capacity++) {
        uint32_t count = run_autotune_refine(ladder, 6, all, out, capacity);
        ck_assert_uint_le(count, capacity);
        ck_assert_uint_eq(out[count - 1], 20);
        for (uint32_t i = 1; i < count; i++) {
            ck_assert_uint_gt(out[i], out[i - 1]);
        }
    }
}
END_TEST

static void
transcribe(driver_t *driver, int32_t tokens[ROUNDS][SLOTS], float *logits)
{
    static int32_t prompts[SLOTS + 1][40];
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        uint32_t length = 3 + 2 * slot;
        driver_random_tokens(slot, VOCABULARY, prompts[slot], length);
        driver_setup(driver, slot, prompts[slot], length, NULL);
        (void)driver_prefill(driver, slot, prompts[slot], length, 64);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t bs = 1 + round % SLOTS;
        uint32_t slots[SLOTS];
        for (uint32_t i = 0; i < bs; i++) {
            slots[i] = 1 + (round + i) % SLOTS;
        }
        driver_result_t result;
        driver_step(driver, NULL, 0, slots, bs, &result);
        ck_assert_int_eq(result.mode, PROTO_STEP_DECODE_GRAPH);
        memcpy(tokens[round], result.tokens, bs * sizeof(int32_t));
        driver_logits(driver, logits, SLOTS * VOCABULARY, bs);
        logits += SLOTS * VOCABULARY;
    }
}

/* Untuned, tuned by the clock, and with a graph for each size: the same bits. */
START_TEST(no_bit_depends_on_what_was_tuned)
{
    static int32_t tokens[2][ROUNDS][SLOTS];
    static float logits[2][ROUNDS * SLOTS * VOCABULARY];
    static const uint32_t every[SLOTS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    char path[600];
    (void)snprintf(path, sizeof path, "%s", driver_fixture("tiny-llama"));
    run_executor_options_t options = {
        .model_path = path,
        .slot_count = SLOTS,
        .model_len_max = 128,
        .step_tokens_max = 64,
        .block_granularity = 16,
        .capture_bs_max = SLOTS,
        .graph_debug = true,
    };
    for (int way = 0; way < 3; way++) {
        options.autotune = way > 0;
        options.capture_sizes = way == 2 ? every : NULL;
        options.capture_size_count = way == 2 ? SLOTS : 0;
        driver_t driver;
        driver_open(&driver, &options);
        uint32_t graphs = run_inspect_graph_count(driver.executor);
        const char *line = strstr(run_executor_summary(driver.executor), "capture sizes up to 12");
        ck_assert_int_eq(line != NULL, way == 1); /* off, and with sizes given, nothing is tuned */
        ck_assert_uint_ge(graphs, 5);             /* 1 2 4 8 12 */
        ck_assert_uint_le(graphs, SLOTS);
        transcribe(&driver, tokens[way > 0], logits[way > 0]);
        if (way > 0) {
            ck_assert_mem_eq(tokens[0], tokens[1], sizeof tokens[0]);
            ck_assert_mem_eq(logits[0], logits[1], sizeof logits[0]);
        }
        driver_close(&driver);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.autotune");
    TCase *tests = tcase_create("autotune");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, the_dummy_batch_keeps_its_limits);
    tcase_add_test(tests, a_dense_interval_gets_every_size);
    tcase_add_test(tests, no_bit_depends_on_what_was_tuned);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
