/* Verification of candidates: which rows of a window count, what they give, and that both rules
 * leave the target's distribution as it is. */
#include <check.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kern_expect.h"
#include "kern_philox.h"
#include "kern_reference.h"
#include "kern_sample_bench.h"

/* Accept while candidate[i] equals target[i - 1]; a missing candidate (-1) ends it; tokens up to
 * the accepted length are what one-token steps would give. */
START_TEST(candidates_are_verified)
{
    enum { WIDTH = 4, VOCABULARY = 50 };
    static const struct {
        int32_t candidates[WIDTH];
        int32_t accepted;
    } cases[] = {
        {{9, 10, 20, 30}, 4}, {{9, 10, 20, 31}, 3}, {{9, 10, -1, 30}, 2},
        {{9, 11, 20, 30}, 1}, {{9, -1, -1, -1}, 1},
    };
    sample_bench_t *bench = sample_bench_new(VOCABULARY);
    bench->args.bs = 5;
    bench->args.rows_per_request = WIDTH;
    bench->args.candidates = bench->candidates;
    for (uint32_t b = 0; b < 5; b++) {
        bench->slots[b] = (int32_t)b;
        bench->seq_lens[b] = 20;
        bench->top_k[b] = 1;
        for (uint32_t i = 0; i < WIDTH; i++) {
            bench->candidates[b * WIDTH + i] = cases[b].candidates[i];
            bench->logits[(b * WIDTH + i) * VOCABULARY + 10 * (i + 1)] = 5.0f;
        }
    }
    for (uint32_t threads = 1; threads <= 3; threads++) {
        sample_bench_run(bench, kern_path_best(), threads);
        for (uint32_t b = 0; b < 5; b++) {
            ck_assert_int_eq(bench->accept_lengths[b], cases[b].accepted);
            for (int32_t i = 0; i < cases[b].accepted; i++) {
                ck_assert_int_eq(bench->tokens[b * WIDTH + (uint32_t)i], 10 * (i + 1));
            }
        }
    }
    free(bench);
}
END_TEST

/* With penalties and seeded draws, a verified window gives the tokens and counts of single steps.
 */
START_TEST(a_window_equals_single_steps)
{
    enum { WIDTH = 5, VOCABULARY = 60 };
    reference_random_t random = reference_seed("a_window_equals_single_steps");
    for (int round = 0; round < 50; round++) {
        sample_bench_t *window = sample_bench_new(VOCABULARY);
        sample_bench_t *single = sample_bench_new(VOCABULARY);
        for (uint32_t i = 0; i < WIDTH * VOCABULARY; i++) {
            window->logits[i] = 2.0f * reference_normal(&random);
        }
        for (sample_bench_t *bench = window; bench != NULL;
             bench = bench == window ? single : NULL) {
            bench->frequency[1] = 0.8f;
            bench->repetition[1] = 1.2f;
            bench->top_p[1] = 0.9f;
            bench->seed[1] = (uint64_t)round;
        }
        int32_t wanted[WIDTH];
        uint16_t counts[WIDTH][VOCABULARY];
        for (int32_t i = 0; i < WIDTH; i++) {
            memcpy(single->logits, window->logits + i * VOCABULARY, VOCABULARY * sizeof(float));
            single->seq_lens[0] = 100 + i;
            sample_bench_run(single, kern_path_best(), 1);
            wanted[i] = single->tokens[0];
            memcpy(counts[i], single->counts + VOCABULARY, sizeof counts[i]);
        }
        int32_t good = (int32_t)(reference_u32(&random) % WIDTH);
        window->candidates[0] = 7;
        for (int32_t i = 1; i < WIDTH; i++) {
            window->candidates[i] = i <= good ? wanted[i - 1] : (wanted[i - 1] + 1) % VOCABULARY;
        }
        window->args.rows_per_request = WIDTH;
        window->args.candidates = window->candidates;
        window->seq_lens[0] = 100 + WIDTH - 1;
        sample_bench_run(window, kern_path_best(), 2);
        ck_assert_int_eq(window->accept_lengths[0], good + 1);
        ck_assert_mem_eq(window->tokens, wanted, (size_t)(good + 1) * sizeof *wanted);
        ck_assert_mem_eq(window->counts + VOCABULARY, counts[good], sizeof counts[good]);
        free(window);
        free(single);
    }
}
END_TEST

static const kern_sample_verify_t rules[] = {KERN_SAMPLE_VERIFY_CHAIN,
                                             KERN_SAMPLE_VERIFY_REJECTION};

/* A bench whose rows have their largest logit at 10, 20, 30, ..., greedy. */
static sample_bench_t *
window_new(uint32_t width, uint32_t vocabulary, kern_sample_verify_t rule)
{
    sample_bench_t *bench = sample_bench_new(vocabulary);
    bench->args.rows_per_request = width;
    bench->args.candidates = bench->candidates;
    bench->args.verify = rule;
    bench->seq_lens[0] = 20;
    bench->top_k[1] = 1;
    for (uint32_t i = 0; i < width; i++) {
        bench->logits[i * vocabulary + 10 * (i + 1)] = 5.0f;
        bench->candidates[i] = (int32_t)(10 * i);
    }
    return bench;
}

/* A stop token is the last one of its window, also where the next candidate is right; before its
 * position it is neither drawn nor an end. */
START_TEST(a_stop_token_ends_the_window)
{
    enum { WIDTH = 4, VOCABULARY = 60 };
    sample_bench_t *bench = window_new(WIDTH, VOCABULARY, rules[_i]);
    bench->banned_counts[1] = 2;
    bench->banned_ids[KERN_SAMPLE_BANNED_MAX] = 3;
    bench->banned_ids[KERN_SAMPLE_BANNED_MAX + 1] = 20;
    sample_bench_run(bench, kern_path_best(), 2);
    ck_assert_int_eq(bench->accept_lengths[0], 2);
    const int32_t ended[WIDTH] = {10, 20, -1, -1};
    ck_assert_mem_eq(bench->tokens, ended, sizeof ended);

    /* The rows draw positions 17, 18, 19, 20: 20 is an end from 18 on, and not yet with 19. */
    bench->banned_until[1] = 18;
    sample_bench_run(bench, kern_path_best(), 2);
    ck_assert_int_eq(bench->accept_lengths[0], 2);
    bench->banned_until[1] = 19;
    sample_bench_run(bench, kern_path_best(), 2);
    ck_assert_int_eq(bench->accept_lengths[0], 2);
    ck_assert_int_eq(bench->tokens[1], 0);
    free(bench);
}
END_TEST

/* A NaN ends the window with a flag if its row counts; rows that do not count are not looked at. */
START_TEST(only_rows_that_count_see_a_nan)
{
    enum { WIDTH = 4, VOCABULARY = 60 };
    for (uint32_t bad = 0; bad < WIDTH; bad++) {
        for (int32_t right = 0; right < WIDTH; right++) {
            sample_bench_t *bench = window_new(WIDTH, VOCABULARY, rules[_i]);
            for (uint32_t i = bad; i < WIDTH; i++) {
                bench->logits[i * VOCABULARY + 7] = NAN;
            }
            if (right + 1 < WIDTH) {
                bench->candidates[right + 1] = 1;
            }
            sample_bench_run(bench, kern_path_best(), 1);
            bool seen = (int32_t)bad <= right;
            int32_t accepted = seen ? (int32_t)bad + 1 : right + 1;
            ck_assert_int_eq(bench->accept_lengths[0], accepted);
            for (int32_t i = 0; i < WIDTH; i++) {
                bool is_bad = seen && i == (int32_t)bad;
                ck_assert_uint_eq(bench->flags[i], is_bad ? KERN_SAMPLE_FLAG_NAN : 0);
                int32_t token = i < accepted ? 10 * (i + 1) : -1;
                ck_assert_int_eq(bench->tokens[i], is_bad ? 0 : token);
            }
            free(bench);
        }
    }
}
END_TEST

/* Without candidates a window of one is plain sampling, bit for bit, under both rules: so is the
 * last row of any window, and a row whose candidate is -1. */
START_TEST(a_window_of_one_is_plain_sampling)
{
    enum { VOCABULARY = 500 };
    reference_random_t random = reference_seed("a_window_of_one_is_plain_sampling");
    for (int round = 0; round < 100; round++) {
        sample_bench_t *plain = sample_bench_new(VOCABULARY);
        for (uint32_t i = 0; i < VOCABULARY; i++) {
            plain->logits[i] = 3.0f * reference_normal(&random);
        }
        plain->temperature[1] = 1.1f;
        plain->top_k[1] = round % 4 * 10;
        plain->top_p[1] = round % 3 == 0 ? 0.9f : 1.0f;
        plain->frequency[1] = round % 2 == 0 ? 0.5f : 0.0f;
        plain->logprobs[1] = 5;
        plain->seed[1] = reference_u32(&random);
        sample_bench_t *window = sample_bench_new(VOCABULARY);
        uint32_t width = 1 + (uint32_t)round % 3;
        memcpy(window, plain, offsetof(sample_bench_t, args));
        window->args.verify = rules[_i];
        window->args.rows_per_request = width;
        window->args.candidates = window->candidates;
        window->seq_lens[0] = plain->seq_lens[0] - 1 + (int32_t)width;
        for (uint32_t i = 0; i < width; i++) {
            window->candidates[i] = i == 0 ? 17 : -1;
        }
        sample_bench_run(plain, kern_path_best(), 1);
        sample_bench_run(window, kern_path_best(), 2);
        ck_assert_int_eq(window->accept_lengths[0], 1);
        ck_assert_int_eq(window->tokens[0], plain->tokens[0]);
        ck_assert_mem_eq(window->counts, plain->counts, sizeof plain->counts);
        ck_assert_mem_eq(window->logprob_ids, plain->logprob_ids, 5 * sizeof(int32_t));
        ck_assert_mem_eq(window->logprob_values, plain->logprob_values, 5 * sizeof(float));
        free(plain);
        free(window);
    }
}
END_TEST

/* Greedy windows are the same under both rules, ties and penalties included. */
START_TEST(rules_agree_where_nothing_is_drawn)
{
    enum { WIDTH = 5, VOCABULARY = 50 };
    reference_random_t random = reference_seed("rules_agree_where_nothing_is_drawn");
    for (int round = 0; round < 200; round++) {
        sample_bench_t *chain = window_new(WIDTH, VOCABULARY, KERN_SAMPLE_VERIFY_CHAIN);
        sample_bench_t *rejection = window_new(WIDTH, VOCABULARY, KERN_SAMPLE_VERIFY_REJECTION);
        for (uint32_t i = 0; i < WIDTH * VOCABULARY; i++) {
            chain->logits[i] = (float)(reference_u32(&random) % 9);
        }
        memcpy(rejection->logits, chain->logits, sizeof chain->logits);
        chain->presence[1] = rejection->presence[1] = 2.0f;
        for (uint32_t i = 1; i < WIDTH; i++) {
            chain->candidates[i] = (int32_t)(reference_u32(&random) % VOCABULARY);
            rejection->candidates[i] = chain->candidates[i];
        }
        for (uint32_t i = 1; i < WIDTH && round % 2 == 0; i++) {
            /* Right ones as far as the round goes. */
            sample_bench_run(chain, kern_path_best(), 1);
            memset(chain->counts, 0, sizeof chain->counts);
            int32_t token = chain->tokens[i - 1];
            chain->candidates[i] = token >= 0 ? token : 0;
            rejection->candidates[i] = chain->candidates[i];
        }
        sample_bench_run(chain, kern_path_best(), 1);
        sample_bench_run(rejection, kern_path_best(), 2);
        ck_assert_int_eq(chain->accept_lengths[0], rejection->accept_lengths[0]);
        ck_assert(round % 2 != 0 || chain->accept_lengths[0] == WIDTH);
        ck_assert_mem_eq(chain->tokens, rejection->tokens, WIDTH * sizeof(int32_t));
        ck_assert_mem_eq(chain->counts, rejection->counts, sizeof chain->counts);
        free(chain);
        free(rejection);
    }
}
END_TEST

/* Filters of a slot: none, each alone, together. */
static const struct {
    int32_t top_k;
    float top_p;
    float min_p;
} filters[] = {
    {0, 1.0f, 0.0f}, {12, 1.0f, 0.0f}, {0, 0.8f, 0.0f}, {0, 1.0f, 0.05f}, {25, 0.9f, 0.02f}};
enum { FILTER_COUNT = sizeof filters / sizeof *filters };

static void
set_filter(sample_bench_t *bench, int which)
{
    bench->top_k[1] = filters[which].top_k;
    bench->top_p[1] = filters[which].top_p;
    bench->min_p[1] = filters[which].min_p;
    bench->temperature[1] = 1.3f;
}

static void
distribution_of(const sample_bench_t *bench, uint32_t row, double *out)
{
    uint32_t vocabulary = bench->args.vocabulary;
    sample_distribution(bench->logits + row * vocabulary, vocabulary, (double)bench->temperature[1],
                        bench->top_k[1], (double)bench->top_p[1], (double)bench->min_p[1], out);
}

/* The rule in doubles, coin by coin: accepted below the probability, else the residual's draw. */
START_TEST(rejection_agrees_with_doubles)
{
    enum { VOCABULARY = 700 };
    reference_random_t random = reference_seed("rejection_agrees_with_doubles");
    static double probabilities[VOCABULARY];
    uint32_t compared = 0;
    uint32_t skipped = 0;
    uint32_t accepted = 0;
    for (int path = -1; reference_next_path(&path);) {
        for (int round = 0; round < 400; round++) {
            sample_bench_t *bench = window_new(2, VOCABULARY, KERN_SAMPLE_VERIFY_REJECTION);
            set_filter(bench, round % FILTER_COUNT);
            for (uint32_t i = 0; i < 2 * VOCABULARY; i++) {
                bench->logits[i] = 3.0f * reference_normal(&random);
            }
            bench->seed[1] = reference_u32(&random);
            distribution_of(bench, 0, probabilities);
            double margin;
            uint32_t likely =
                sample_draw(probabilities, VOCABULARY, reference_uniform(&random), &margin);
            uint32_t candidate = round % 3 == 0 ? reference_u32(&random) % VOCABULARY : likely;
            bench->candidates[1] = (int32_t)candidate;
            sample_bench_run(bench, (kern_path_t)path, 1);

            /* Row 0 of two draws position 20 - 1. */
            double coin = kern_philox_uniform(bench->seed[1], 19, KERN_PHILOX_VERIFY, 0);
            uint32_t wanted = candidate;
            margin = fabs(coin - probabilities[candidate]);
            if (coin >= probabilities[candidate]) {
                double rest = 1.0 - probabilities[candidate];
                probabilities[candidate] = 0.0;
                for (uint32_t i = 0; i < VOCABULARY; i++) {
                    probabilities[i] /= rest;
                }
                double near;
                coin = kern_philox_uniform(bench->seed[1], 19, KERN_PHILOX_RESIDUAL, 0);
                wanted = sample_draw(probabilities, VOCABULARY, coin, &near);
                margin = near < margin ? near : margin;
            }
            if (margin < 2e-5) {
                skipped++; /* a sum in float may fall on the other side */
            } else {
                compared++;
                expect_msg(bench->tokens[0] == (int32_t)wanted, "round %d: %d, not %u", round,
                           bench->tokens[0], wanted);
                expect(bench->accept_lengths[0] == (wanted == candidate ? 2 : 1));
                accepted += wanted == candidate;
            }
            free(bench);
        }
    }
    ck_assert_uint_gt(compared, 4 * skipped);
    ck_assert_uint_gt(accepted, compared / 20);
    ck_assert_uint_lt(accepted, compared / 2);
}
END_TEST

/* Over many seeds both rules give each token of a window as often as its probability says: the
 * first, and the second where the first was accepted.  Candidates: the likeliest token, an unlikely
 * one, one that the filters drop. */
START_TEST(windows_follow_the_distribution)
{
    enum { WIDTH = 3, VOCABULARY = 40, DRAWS = 20000 };
    reference_random_t random = reference_seed("windows_follow_the_distribution");
    kern_sample_verify_t rule = rules[_i % 2];
    int filter = _i / 2 % FILTER_COUNT;
    sample_bench_t *bench = window_new(WIDTH, VOCABULARY, rule);
    set_filter(bench, filter);
    for (uint32_t i = 0; i < WIDTH * VOCABULARY; i++) {
        bench->logits[i] = 1.5f * reference_normal(&random);
    }
    static double probabilities[WIDTH][VOCABULARY];
    static sample_entry_t order[WIDTH][VOCABULARY];
    for (uint32_t row = 0; row < WIDTH; row++) {
        distribution_of(bench, row, probabilities[row]);
        for (uint32_t i = 0; i < VOCABULARY; i++) {
            order[row][i] = (sample_entry_t){i, probabilities[row][i]};
        }
        qsort(order[row], VOCABULARY, sizeof order[row][0], sample_by_value);
    }
    static const uint32_t places[] = {0, 5, VOCABULARY - 1};
    for (uint32_t which = 0; which < 3; which++) {
        uint32_t drawn[WIDTH][VOCABULARY] = {{0}};
        uint32_t totals[WIDTH] = {0};
        for (uint32_t row = 0; row + 1 < WIDTH; row++) {
            bench->candidates[row + 1] = (int32_t)order[row][row == 0 ? places[which] : 0].id;
        }
        for (uint32_t seed = 0; seed < DRAWS; seed++) {
            bench->seed[1] = seed * UINT64_C(0x9E3779B97F4A7C15) + which;
            sample_bench_run(bench, kern_path_best(), 1);
            for (int32_t row = 0; row < bench->accept_lengths[0]; row++) {
                drawn[row][bench->tokens[row]]++;
                totals[row]++;
            }
        }
        double accept = probabilities[0][bench->candidates[1]];
        double deviation = sqrt(DRAWS * accept * (1.0 - accept));
        expect(fabs(totals[1] - DRAWS * accept) <= 6.0 * deviation);
        for (uint32_t row = 0; row < 2 && totals[row] > 0; row++) {
            double off = sample_chi_square(drawn[row], probabilities[row], VOCABULARY, totals[row]);
            expect_msg(off < 6.0, "rule %d, filter %d, candidate %u, row %u: %g deviations",
                       (int)rule, filter, which, row, off);
        }
    }
    free(bench);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.verify");
    TCase *tests = tcase_create("verify");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, candidates_are_verified);
    tcase_add_test(tests, a_window_equals_single_steps);
    tcase_add_loop_test(tests, a_stop_token_ends_the_window, 0, 2);
    tcase_add_loop_test(tests, only_rows_that_count_see_a_nan, 0, 2);
    tcase_add_loop_test(tests, a_window_of_one_is_plain_sampling, 0, 2);
    tcase_add_test(tests, rules_agree_where_nothing_is_drawn);
    tcase_add_test(tests, rejection_agrees_with_doubles);
    tcase_add_loop_test(tests, windows_follow_the_distribution, 0, 2 * FILTER_COUNT);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
