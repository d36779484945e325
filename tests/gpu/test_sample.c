/* Pool-indexed sampling through the executor: stop tokens, limits on them, logprobs, bias,
 * normalisation, a broken model. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_model.h"
#include "gpu_driver.h"
#include "run_inspect.h"
#include "sample_pool.h"

enum { VOCABULARY = 320, PROMPT = 12, EOS = 318 };

static driver_t driver;
static int32_t prompt[PROMPT];

static void
open_path(const char *path)
{
    run_executor_options_t options = {
        .model_path = path,
        .slot_count = 4,
        .model_len_max = 256,
        .step_tokens_max = 64,
        .block_granularity = 16,
        .graph_debug = true,
    };
    driver_open(&driver, &options);
    driver_random_tokens(11, VOCABULARY, prompt, PROMPT);
}

static void
open_tiny(void)
{
    static char path[600];
    (void)snprintf(path, sizeof path, "%s", driver_fixture("tiny-llama"));
    open_path(path);
}

static void
close_tiny(void)
{
    driver_close(&driver);
}

static driver_result_t
first_token(const proto_sampling_t *sampling)
{
    driver_result_t result;
    driver_setup(&driver, 1, prompt, PROMPT, sampling);
    driver_extend_t extend = {.slot = 1, .length = PROMPT, .sample = true, .tokens = prompt};
    driver_step(&driver, &extend, 1, NULL, 0, &result);
    return result;
}

static proto_sampling_t
pushing(const int32_t *id, const float *value)
{
    proto_sampling_t sampling = {
        .bias_ids = {(const uint8_t *)id, sizeof *id},
        .bias_values = {(const uint8_t *)value, sizeof *value},
    };
    return sampling;
}

/* The executor sees stop tokens; who asked for more text gets it. */
START_TEST(stop_tokens_are_flagged)
{
    int32_t eos = EOS;
    int32_t other = 17;
    float push = 1e6f;
    proto_sampling_t sampling = pushing(&eos, &push);
    driver_result_t result = first_token(&sampling);
    ck_assert_int_eq(result.tokens[0], EOS);
    ck_assert_uint_eq(result.flags[0], PROTO_ROW_STOP_TOKEN);

    sampling.ignore_eos = true;
    result = first_token(&sampling);
    ck_assert_int_eq(result.tokens[0], EOS);
    ck_assert_uint_eq(result.flags[0], 0);

    sampling = pushing(&other, &push);
    result = first_token(&sampling);
    ck_assert_int_eq(result.tokens[0], other);
    ck_assert_uint_eq(result.flags[0], 0);
    sampling.stop_ids = (proto_bytes_t){(const uint8_t *)&other, sizeof other};
    sampling.ignore_eos = true; /* of the model's own only */
    result = first_token(&sampling);
    ck_assert_int_eq(result.tokens[0], other);
    ck_assert_uint_eq(result.flags[0], PROTO_ROW_STOP_TOKEN);
}
END_TEST

/* generation_min: a stop token is neither drawn nor counted before that many tokens. */
START_TEST(no_stop_token_before_the_minimum)
{
    int32_t eos = EOS;
    float push = 1e6f;
    proto_sampling_t sampling = pushing(&eos, &push);
    sampling.generation_min = 3;
    sampling.prompt_length = PROMPT;
    driver_result_t result = first_token(&sampling);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_ne(result.tokens[0], EOS);
        ck_assert_uint_eq(result.flags[0], 0);
        uint32_t slot = 1;
        driver_step(&driver, NULL, 0, &slot, 1, &result);
    }
    ck_assert_int_eq(result.tokens[0], EOS);
    ck_assert_uint_eq(result.flags[0], PROTO_ROW_STOP_TOKEN);
}
END_TEST

/* Greedy is top_k 1 on the one route: the first of the largest raw logits, whatever else was asked
 * for, for the row of a prompt and for decode rows. */
START_TEST(the_greedy_route_is_argmax)
{
    static float logits[VOCABULARY];
    proto_sampling_t ways[3] = {
        {.temperature = 0.0},
        {.temperature = 1e-9, .top_p = 0.1, .seed = 3},
        {.temperature = 1.3, .top_k = 1, .seed = 9},
    };
    for (int i = 0; i < 3; i++) {
        driver_result_t result = first_token(&ways[i]);
        for (int step = 0; step < 8; step++) {
            driver_logits(&driver, logits, VOCABULARY, 1);
            int32_t first = 0;
            for (int32_t id = 1; id < VOCABULARY; id++) {
                first = logits[id] > logits[first] ? id : first;
            }
            ck_assert_int_eq(result.tokens[0], first);
            uint32_t slot = 1;
            driver_step(&driver, NULL, 0, &slot, 1, &result); /* the same, verified */
        }
    }
}
END_TEST

/* A window of one column, as decode steps verify it, gives what a prompt's last row samples: token
 * and log probabilities, bit for bit. */
START_TEST(verifying_one_column_is_sampling)
{
    enum { GENERATED = 10, LOGPROBS = 4 };
    for (uint64_t seed = 0; seed < 6; seed++) {
        int32_t tokens[PROMPT + GENERATED];
        memcpy(tokens, prompt, sizeof prompt);
        proto_sampling_t sampling = {.temperature = seed == 0 ? 0.0 : 1.2,
                                     .top_k = seed % 2 == 0 ? 50 : 0,
                                     .top_p = seed % 3 == 0 ? 0.0 : 0.9,
                                     .frequency_penalty = 0.4,
                                     .repetition_penalty = 1.1,
                                     .seed = seed,
                                     .logprobs = LOGPROBS,
                                     .prompt_length = PROMPT,
                                     .ignore_eos = true};
        driver_result_t verified = first_token(&sampling);
        for (uint32_t at = 0; at < GENERATED; at++) {
            driver_result_t sampled;
            driver_setup(&driver, 2, tokens, PROMPT + at, &sampling);
            driver_extend_t extend = {.slot = 2,
                                      .length = PROMPT + at,
                                      .sample = true,
                                      .tokens = tokens};
            driver_step(&driver, &extend, 1, NULL, 0, &sampled);
            ck_assert_int_eq(sampled.tokens[0], verified.tokens[0]);
            ck_assert_mem_eq(sampled.logprob_ids, verified.logprob_ids, LOGPROBS * sizeof(int32_t));
            ck_assert_mem_eq(sampled.logprob_values, verified.logprob_values,
                             LOGPROBS * sizeof(float));
            tokens[PROMPT + at] = verified.tokens[0];
            uint32_t slot = 1;
            driver_step(&driver, NULL, 0, &slot, 1, &verified);
        }
    }
}
END_TEST

/* Seeds give other draws, the same seed the same. */
START_TEST(seeds_name_the_draws)
{
    int32_t tokens[40];
    uint32_t different = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        proto_sampling_t sampling = {.temperature = 3.0, .seed = seed};
        tokens[seed] = first_token(&sampling).tokens[0];
        ck_assert_int_eq(first_token(&sampling).tokens[0], tokens[seed]);
        different += seed > 0 && tokens[seed] != tokens[0];
    }
    ck_assert_uint_gt(different, 20);
}
END_TEST

/* Logprobs are of the raw logits: the sampled token first, then the best in order. */
START_TEST(logprobs_come_from_the_raw_logits)
{
    static float logits[VOCABULARY];
    int32_t pushed = 7;
    float push = 1e6f;
    proto_sampling_t sampling = pushing(&pushed, &push);
    sampling.logprobs = 6;
    driver_result_t result = first_token(&sampling);
    driver_logits(&driver, logits, VOCABULARY, 1);
    double largest = -INFINITY;
    for (int i = 0; i < VOCABULARY; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
    }
    double sum = 0.0;
    for (int i = 0; i < VOCABULARY; i++) {
        sum += exp(logits[i] - largest);
    }
    ck_assert_uint_eq(result.logprob_widths[0], 6);
    ck_assert_int_eq(result.logprob_ids[0], pushed);
    for (int i = 0; i < 6; i++) {
        double wanted = logits[result.logprob_ids[i]] - largest - log(sum);
        ck_assert(fabs(wanted - (double)result.logprob_values[i]) < 1e-4);
        ck_assert(i < 2 || result.logprob_values[i] <= result.logprob_values[i - 1]);
    }
    ck_assert(logits[result.logprob_ids[1]] >= largest);

    /* Only the rows that asked have entries. */
    sampling.logprobs = 0;
    driver_setup(&driver, 2, prompt, PROMPT, &sampling);
    driver_extend_t extend = {.slot = 2, .length = PROMPT, .sample = true, .tokens = prompt};
    uint32_t slot = 1;
    driver_step(&driver, &extend, 1, &slot, 1, &result);
    ck_assert_uint_eq(result.logprob_widths[0], 0);
    ck_assert_uint_eq(result.logprob_widths[1], 6);
}
END_TEST

/* A frequency penalty counts what was generated and nothing else. */
START_TEST(penalties_see_generated_tokens)
{
    proto_sampling_t sampling = {.frequency_penalty = 1e4, .ignore_eos = true};
    bool seen[VOCABULARY] = {false};
    driver_result_t result = first_token(&sampling);
    for (int i = 0; i < 60; i++) {
        ck_assert(!seen[result.tokens[0]]);
        seen[result.tokens[0]] = true;
        uint32_t slot = 1;
        driver_step(&driver, NULL, 0, &slot, 1, &result);
    }
}
END_TEST

/* More setups than the staging holds, between two steps: none is lost. */
START_TEST(many_setups_in_a_row_are_kept)
{
    int32_t wanted = 0;
    float push = 1e6f;
    for (int i = 0; i < 500; i++) {
        wanted = i % 300;
        proto_sampling_t sampling = pushing(&wanted, &push);
        sampling.frequency_penalty = 0.5;
        driver_setup(&driver, 1 + (uint32_t)i % 4, prompt, PROMPT, &sampling);
    }
    for (uint32_t slot = 1; slot <= 4; slot++) {
        int32_t token = driver_prefill(&driver, slot, prompt, PROMPT, PROMPT);
        ck_assert_int_eq(token, (496 + (int)slot - 1) % 300);
    }
}
END_TEST

START_TEST(broken_sampling_bytes_are_refused)
{
    uint8_t bytes[] = {0xc1, 0x00, 0x17};
    proto_slot_setup_t setup = {.slot = 1,
                                .tokens = {prompt, PROMPT},
                                .sampling = {bytes, sizeof bytes}};
    ck_assert_int_eq(run_executor_slot_setup(driver.executor, &setup), STATUS_ERR_MALFORMED);
}
END_TEST

/* What is missing in a SAMPLING body means "none". */
START_TEST(records_are_normalised)
{
    static kern_slot_record_t record;
    proto_sampling_t empty = {0};
    int32_t own[] = {5, 6, 5};
    sample_record_make(&empty, own, 3, 10, &record);
    ck_assert_int_eq(record.top_k, 1);
    ck_assert(record.temperature == 1.0f);
    ck_assert(record.top_p == 1.0f);
    ck_assert(record.repetition_penalty == 1.0f);
    ck_assert_uint_eq(record.stop_count, 2);
    ck_assert_int_eq(record.stop_from, 0);
    proto_sampling_t full = {.temperature = 0.5,
                             .top_k = 0,
                             .top_p = 0.5,
                             .min_p = 0.1,
                             .generation_min = 4,
                             .prompt_length = 7,
                             .ignore_eos = true};
    sample_record_make(&full, own, 3, 10, &record);
    ck_assert_int_eq(record.top_k, 0);
    ck_assert_uint_eq(record.stop_count, 0);
    ck_assert_int_eq(record.stop_from, 11);
}
END_TEST

/* A model that gives NaN is reported by row, and no token of it counts. */
START_TEST(nan_logits_are_flagged)
{
    char folder[] = "/tmp/onepath-nan-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    static char source[600];
    (void)snprintf(source, sizeof source, "%s", driver_fixture("tiny-llama"));
    char error[FILE_ERROR_SIZE_BYTES];
    file_model_t *model = NULL;
    ck_assert_int_eq(file_model_open(source, error, sizeof error, &model), STATUS_OK);
    file_tensor_t norm;
    ck_assert_int_eq(file_model_tensor(model, FILE_ROLE_OUTPUT_NORM, 0, &norm), STATUS_OK);
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[700];
        (void)snprintf(path, sizeof path, "%s/%s", source, names[i]);
        FILE *file = fopen(path, "rb");
        ck_assert_ptr_nonnull(file);
        static uint8_t bytes[8 << 20];
        size_t size = fread(bytes, 1, sizeof bytes, file);
        ck_assert_uint_lt(size, sizeof bytes);
        (void)fclose(file);
        uint8_t *at = memmem(bytes, size, norm.data, norm.size_bytes);
        ck_assert_int_eq(at != NULL, i == 1);
        if (at != NULL) {
            float nan = NAN;
            memcpy(at, &nan, sizeof nan);
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        file = fopen(path, "wb");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
        ck_assert_int_eq(fclose(file), 0);
    }
    file_model_close(&model);
    open_path(folder);
    driver_result_t result = first_token(NULL);
    ck_assert_uint_eq(result.flags[0], PROTO_ROW_NAN);
    ck_assert_uint_eq(result.counts[0], 0);
    uint32_t slot = 1;
    driver_step(&driver, NULL, 0, &slot, 1, &result);
    ck_assert_uint_eq(result.flags[0], PROTO_ROW_NAN);
    driver_close(&driver);
    for (int i = 0; i < 2; i++) {
        char path[700];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.sample");
    TCase *tests = tcase_create("sample");
    tcase_add_checked_fixture(tests, open_tiny, close_tiny);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, stop_tokens_are_flagged);
    tcase_add_test(tests, no_stop_token_before_the_minimum);
    tcase_add_test(tests, the_greedy_route_is_argmax);
    tcase_add_test(tests, verifying_one_column_is_sampling);
    tcase_add_test(tests, seeds_name_the_draws);
    tcase_add_test(tests, logprobs_come_from_the_raw_logits);
    tcase_add_test(tests, penalties_see_generated_tokens);
    tcase_add_test(tests, many_setups_in_a_row_are_kept);
    tcase_add_test(tests, broken_sampling_bytes_are_refused);
    suite_add_tcase(suite, tests);
    TCase *others = tcase_create("others");
    tcase_set_timeout(others, 60);
    tcase_add_test(others, records_are_normalised);
    tcase_add_test(others, nan_logits_are_flagged);
    suite_add_tcase(suite, others);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
