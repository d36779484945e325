/* Sampling: the generator's published numbers, exact selections against a sort in doubles,
 * distributions, penalties, logprobs. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_expect.h"
#include "kern_philox.h"
#include "kern_reference.h"
#include "kern_sample_bench.h"
#include "kern_team.h"

/* The known answers published with the algorithm. */
START_TEST(philox_gives_the_published_numbers)
{
    static const struct {
        uint32_t counter[4];
        uint32_t key[2];
        uint32_t out[4];
    } answers[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        uint32_t out[4];
        kern_philox4x32_10(answers[i].key, answers[i].counter, out);
        ck_assert_mem_eq(out, answers[i].out, sizeof out);
    }
    ck_assert(kern_philox_uniform(1, 2, KERN_PHILOX_SAMPLE, 0) !=
              kern_philox_uniform(1, 2, KERN_PHILOX_VERIFY, 0));
}
END_TEST

/* Greedy is top_k 1: the largest, the lowest id among equals, whatever the vocabulary's length. */
START_TEST(greedy_takes_the_first_of_the_largest)
{
    reference_random_t random = reference_seed("greedy_takes_the_first_of_the_largest");
    static const uint32_t vocabularies[] = {1, 2, 15, 16, 31, 33, 64, 100, 1000, VOCABULARY_MAX};
    for (int path = -1; reference_next_path(&path);) {
        for (int round = 0; round < 100; round++) {
            uint32_t vocabulary = vocabularies[round % 10];
            sample_bench_t *bench = sample_bench_new(vocabulary);
            uint32_t best = 0;
            for (uint32_t i = 0; i < vocabulary; i++) {
                /* Few different values, so that there are ties. */
                bench->logits[i] = (float)(reference_u32(&random) % 50) - 25.0f;
                best = bench->logits[i] > bench->logits[best] ? i : best;
            }
            bench->top_k[1] = round & 1;
            bench->temperature[1] = (round & 1) != 0 ? 0.7f : 0.0f;
            sample_bench_run(bench, (kern_path_t)path, 1);
            ck_assert_int_eq(bench->tokens[0], (int32_t)best);
            ck_assert_int_eq(bench->accept_lengths[0], 1);
            ck_assert_uint_eq(bench->flags[0], 0);
            free(bench);
        }
    }
}
END_TEST

/* Every combination of filters draws exactly the token that a full sort in doubles gives. */
START_TEST(draws_agree_with_a_sort_in_doubles)
{
    reference_random_t random = reference_seed("draws_agree_with_a_sort_in_doubles");
    static const int32_t top_ks[] = {0, 2, 5, 50, 1000};
    static const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.01f};
    static const float min_ps[] = {0.0f, 0.05f};
    static const uint32_t vocabularies[] = {7, 130, 1024, VOCABULARY_MAX};
    double *probabilities = malloc(VOCABULARY_MAX * sizeof *probabilities);
    ck_assert(probabilities != NULL);
    uint32_t compared = 0;
    uint32_t skipped = 0;
    for (int path = -1; reference_next_path(&path);) {
        for (int round = 0; round < 320; round++) {
            uint32_t vocabulary = vocabularies[round % 4];
            sample_bench_t *bench = sample_bench_new(vocabulary);
            bool ties = round % 5 == 0;
            float sharpness = 0.2f + 4.0f * (float)reference_uniform(&random);
            for (uint32_t i = 0; i < vocabulary; i++) {
                float z = sharpness * reference_normal(&random);
                bench->logits[i] = ties ? roundf(z) : z;
            }
            bench->temperature[1] = 0.5f + (float)reference_uniform(&random);
            bench->top_k[1] = top_ks[round / 4 % 5];
            bench->top_p[1] = top_ps[round / 20 % 4];
            bench->min_p[1] = min_ps[round / 80 % 2];
            bench->seed[1] = reference_u32(&random);
            bench->seq_lens[0] = 1 + (int32_t)(reference_u32(&random) % 8192);
            sample_bench_run(bench, (kern_path_t)path, 1);
            sample_distribution(bench->logits, vocabulary, (double)bench->temperature[1],
                                bench->top_k[1], (double)bench->top_p[1], (double)bench->min_p[1],
                                probabilities);
            double coin = kern_philox_uniform(bench->seed[1], (uint64_t)bench->seq_lens[0],
                                              KERN_PHILOX_SAMPLE, 0);
            double margin;
            uint32_t wanted = sample_draw(probabilities, vocabulary, coin, &margin);
            /* Sums in float may fall on the other side of a boundary that is this near; a token on
             * the edge of top_p or min_p may be in or out. */
            if (margin < 2e-5) {
                skipped++;
                free(bench);
                continue;
            }
            compared++;
            expect_msg(bench->tokens[0] == (int32_t)wanted,
                       "round %d, vocabulary %u, top_k %d, top_p %g, min_p %g: %d, not %u", round,
                       vocabulary, bench->top_k[1], (double)bench->top_p[1],
                       (double)bench->min_p[1], bench->tokens[0], wanted);
            free(bench);
        }
    }
    /* Most must have been compared, or the test says nothing. */
    ck_assert_uint_gt(compared, 4 * skipped);
    free(probabilities);
}
END_TEST

/* Over many positions tokens come as often as their probabilities say, and never others. */
START_TEST(draws_follow_the_distribution)
{
    enum { VOCABULARY = 40, DRAWS = 20000 };
    reference_random_t random = reference_seed("draws_follow_the_distribution");
    sample_bench_t *bench = sample_bench_new(VOCABULARY);
    double probabilities[VOCABULARY];
    uint32_t drawn[VOCABULARY] = {0};
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        bench->logits[i] = 1.5f * reference_normal(&random);
    }
    bench->top_k[1] = 25;
    bench->top_p[1] = 0.9f;
    bench->temperature[1] = 1.3f;
    sample_distribution(bench->logits, VOCABULARY, (double)bench->temperature[1], 25,
                        (double)bench->top_p[1], 0.0, probabilities);
    for (int i = 0; i < DRAWS; i++) {
        bench->seq_lens[0] = i + 1;
        sample_bench_run(bench, kern_path_best(), 1);
        drawn[bench->tokens[0]]++;
    }
    double chi_square = 0.0;
    int kinds = 0;
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        double expected = probabilities[i] * DRAWS;
        expect(expected > 0.0 || drawn[i] == 0);
        if (expected > 0.0) {
            chi_square += ((double)drawn[i] - expected) * ((double)drawn[i] - expected) / expected;
            kinds++;
        }
    }
    /* Mean `kinds`, deviation sqrt(2 kinds): six deviations. */
    ck_assert_double_lt(chi_square, kinds + 6.0 * sqrt(2.0 * kinds));
    free(bench);
}
END_TEST

/* A request's draw depends on its seed and position, not on its row, its batch or the threads. */
START_TEST(draws_do_not_depend_on_the_batch)
{
    reference_random_t random = reference_seed("draws_do_not_depend_on_the_batch");
    sample_bench_t *bench = sample_bench_new(1000);
    for (uint32_t i = 0; i < ROWS_MAX * 1000; i++) {
        bench->logits[i] = 2.0f * reference_normal(&random);
    }
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        bench->slots[i] = (int32_t)(i % SLOTS);
        bench->seq_lens[i] = (int32_t)(5 + i);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        bench->top_k[i] = (int32_t)(i % 3 * 20);
        bench->top_p[i] = i % 2 != 0 ? 0.9f : 1.0f;
    }
    int32_t alone[ROWS_MAX];
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        sample_bench_t *one = sample_bench_new(1000);
        memcpy(one->top_k, bench->top_k, sizeof one->top_k);
        memcpy(one->top_p, bench->top_p, sizeof one->top_p);
        memcpy(one->logits, bench->logits + i * 1000, 1000 * sizeof(float));
        one->slots[0] = bench->slots[i];
        one->seq_lens[0] = bench->seq_lens[i];
        sample_bench_run(one, kern_path_best(), 1);
        alone[i] = one->tokens[0];
        free(one);
    }
    bench->args.bs = ROWS_MAX;
    for (uint32_t threads = 1; threads <= 3; threads++) {
        sample_bench_run(bench, kern_path_best(), threads);
        ck_assert_mem_eq(bench->tokens, alone, sizeof alone);
    }
    free(bench);
}
END_TEST

/* repetition, presence, frequency; the prompt counts for the first only; the drawn token is
 * counted. */
START_TEST(penalties_see_what_was_generated)
{
    sample_bench_t *bench = sample_bench_new(8);
    const float logits[8] = {2.0f, 1.9f, 1.0f, 0.5f, -1.0f, -1.0f, -2.0f, -3.0f};
    memcpy(bench->logits, logits, sizeof logits);
    const int32_t history[5] = {0, 4, 1, 1, 99};
    kern_sample_counts_args_t counts = {bench->counts + 8, 8, history, 5, 2};
    kern_team_run(reference_team(kern_path_best(), 2), kern_sample_counts_host, &counts);
    ck_assert_uint_eq(bench->counts[8], KERN_SAMPLE_COUNT_PROMPT);
    ck_assert_uint_eq(bench->counts[9], 2);
    ck_assert_uint_eq(bench->counts[12], KERN_SAMPLE_COUNT_PROMPT);
    bench->top_k[1] = 1;
    /* Token 0 is only in the prompt: presence and frequency leave it. */
    bench->presence[1] = 0.5f;
    bench->frequency[1] = 0.6f;
    sample_bench_run(bench, kern_path_best(), 1);
    ck_assert_int_eq(bench->tokens[0], 0);
    ck_assert_uint_eq(bench->counts[8], KERN_SAMPLE_COUNT_PROMPT + 1);
    /* Generated once: 2 - 0.5 - 0.6 = 0.9, behind token 2. */
    sample_bench_run(bench, kern_path_best(), 1);
    ck_assert_int_eq(bench->tokens[0], 2);
    ck_assert_uint_eq(bench->counts[10], 1);
    /* Token 2 falls to 1 - 1.1, token 0 is the first again. */
    sample_bench_run(bench, kern_path_best(), 1);
    ck_assert_int_eq(bench->tokens[0], 0);
    /* Repetition divides what is positive: 2 / 4, 1.9 / 4, 1 / 4, and 3 is new with 0.5: the lowest
     * id among equals. */
    bench->presence[1] = 0.0f;
    bench->frequency[1] = 0.0f;
    bench->repetition[1] = 4.5f;
    sample_bench_run(bench, kern_path_best(), 1);
    ck_assert_int_eq(bench->tokens[0], 3);
    /* ... and multiplies what is negative: 4 (in the prompt) falls behind 5. */
    for (int i = 0; i < 4; i++) {
        bench->logits[i] = -30.0f;
    }
    sample_bench_run(bench, kern_path_best(), 1);
    ck_assert_int_eq(bench->tokens[0], 5);
    free(bench);
}
END_TEST

/* logit_bias moves, banned ids never come before their position; the raw logits stay. */
START_TEST(bias_and_bans_apply)
{
    sample_bench_t *bench = sample_bench_new(100);
    for (int i = 0; i < 100; i++) {
        bench->logits[i] = (float)-i;
    }
    bench->top_k[1] = 1;
    bench->bias_counts[1] = 2;
    bench->bias_ids[KERN_SAMPLE_BIAS_MAX] = 70;
    bench->bias_values[KERN_SAMPLE_BIAS_MAX] = 80.0f;
    bench->bias_ids[KERN_SAMPLE_BIAS_MAX + 1] = 200; /* outside: ignored */
    bench->bias_values[KERN_SAMPLE_BIAS_MAX + 1] = 1000.0f;
    sample_bench_run(bench, kern_path_best(), 1);
    ck_assert_int_eq(bench->tokens[0], 70);
    bench->banned_counts[1] = 1;
    bench->banned_ids[KERN_SAMPLE_BANNED_MAX] = 70;
    bench->banned_until[1] = 11;
    sample_bench_run(bench, kern_path_best(), 1); /* draws position 10 */
    ck_assert_int_eq(bench->tokens[0], 0);
    bench->seq_lens[0] = 11;
    sample_bench_run(bench, kern_path_best(), 1);
    ck_assert_int_eq(bench->tokens[0], 70);
    for (int i = 0; i < 100; i++) {
        ck_assert(bench->logits[i] == (float)-i);
    }
    free(bench);
}
END_TEST

/* Logprobs are the log softmax of the raw logits, sampled token first, then the top in order. */
START_TEST(logprobs_are_of_the_raw_logits)
{
    reference_random_t random = reference_seed("logprobs_are_of_the_raw_logits");
    enum { VOCABULARY = 3000 };
    for (int path = -1; reference_next_path(&path);) {
        sample_bench_t *bench = sample_bench_new(VOCABULARY);
        sample_entry_t *entries = malloc(VOCABULARY * sizeof *entries);
        ck_assert(entries != NULL);
        double total = 0.0;
        for (uint32_t i = 0; i < VOCABULARY; i++) {
            bench->logits[i] = roundf(20.0f * reference_normal(&random)) / 10.0f;
            entries[i] = (sample_entry_t){i, (double)bench->logits[i]};
            total += exp((double)bench->logits[i]);
        }
        qsort(entries, VOCABULARY, sizeof *entries, sample_by_value);
        bench->temperature[1] = 0.3f;
        bench->bias_counts[1] = 1;
        bench->bias_ids[KERN_SAMPLE_BIAS_MAX] = (int32_t)entries[1500].id;
        bench->bias_values[KERN_SAMPLE_BIAS_MAX] = 100.0f;
        for (uint32_t wanted = 0; wanted <= 21; wanted += 7) {
            memset(bench->logprob_ids, 0x77, sizeof bench->logprob_ids);
            bench->logprobs[1] = wanted;
            sample_bench_run(bench, (kern_path_t)path, 1);
            ck_assert_int_eq(bench->tokens[0], (int32_t)entries[1500].id);
            for (uint32_t i = 0; i < KERN_SAMPLE_LOGPROBS_WIDTH; i++) {
                if (i >= wanted) {
                    ck_assert_int_eq(bench->logprob_ids[i], 0x77777777);
                    continue;
                }
                const sample_entry_t *entry = i == 0 ? &entries[1500] : &entries[i - 1];
                ck_assert_int_eq(bench->logprob_ids[i], (int32_t)entry->id);
                double value = (double)bench->logprob_values[i];
                ck_assert_double_le(fabs(value - (entry->z - log(total))), 1e-5);
            }
        }
        free(entries);
        free(bench);
    }
}
END_TEST

/* A NaN anywhere in a row is flagged, and the row still ends; infinities are no NaN. */
START_TEST(nan_is_flagged)
{
    for (int path = -1; reference_next_path(&path);) {
        for (uint32_t place = 0; place < 77; place++) {
            sample_bench_t *bench = sample_bench_new(77);
            bench->logits[place] = NAN;
            sample_bench_run(bench, (kern_path_t)path, 1);
            ck_assert_uint_eq(bench->flags[0], KERN_SAMPLE_FLAG_NAN);
            ck_assert_int_eq(bench->tokens[0], 0);
            ck_assert_int_eq(bench->accept_lengths[0], 1);
            bench->logits[place] = INFINITY;
            bench->logits[(place + 16) % 77] = -INFINITY;
            sample_bench_run(bench, (kern_path_t)path, 1);
            ck_assert_uint_eq(bench->flags[0], 0);
            ck_assert_int_eq(bench->tokens[0], (int32_t)place);
            free(bench);
        }
        sample_bench_t *bench = sample_bench_new(77);
        for (int i = 0; i < 77; i++) {
            bench->logits[i] = -INFINITY;
        }
        sample_bench_run(bench, (kern_path_t)path, 1);
        ck_assert_int_eq(bench->tokens[0], 0);
        free(bench);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.sample");
    TCase *tests = tcase_create("sample");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, philox_gives_the_published_numbers);
    tcase_add_test(tests, greedy_takes_the_first_of_the_largest);
    tcase_add_test(tests, draws_agree_with_a_sort_in_doubles);
    tcase_add_test(tests, draws_follow_the_distribution);
    tcase_add_test(tests, draws_do_not_depend_on_the_batch);
    tcase_add_test(tests, penalties_see_what_was_generated);
    tcase_add_test(tests, bias_and_bans_apply);
    tcase_add_test(tests, logprobs_are_of_the_raw_logits);
    tcase_add_test(tests, nan_is_flagged);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
