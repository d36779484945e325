/* Thousands of short lives of a node: whatever goes wrong in them, every rule holds. */
#include <check.h>
#include <stdlib.h>

#include "actor_sim.h"

enum { STEP_COUNT = 2000 };

/* Seeds by how their executors are: a full, a sliding and a state group, rows of 4 tokens; without
 * and with a plan behind the running one. */
static uint32_t wide_counts[2];
static uint32_t state_count;

static void
run_seeds(const actor_sim_options_t *options, uint64_t first, uint64_t count,
          actor_sim_result_t *sum)
{
    actor_sim_t *sim = NULL;
    ck_assert_int_eq(actor_sim_new(options, &sim), STATUS_OK);
    *sum = (actor_sim_result_t){.failed = false};
    for (uint64_t seed = first; seed < first + count; seed++) {
        actor_sim_result_t result;
        actor_sim_run(sim, seed, &result);
        if (result.failed) {
            actor_sim_print_events(sim, stderr);
        }
        ck_assert_msg(!result.failed, "seed %llu: %s: %s (onepath sim --seed %llu --trace)",
                      (unsigned long long)seed, result.rule, result.detail,
                      (unsigned long long)seed);
        state_count += result.has_states ? 1 : 0;
        if (result.has_states && result.group_count == 3 && result.width == 4) {
            wide_counts[result.overlap]++;
        }
        sum->step_count += result.step_count;
        sum->request_count += result.request_count;
        sum->complete_count += result.complete_count;
        sum->error_count += result.error_count;
        sum->token_count += result.token_count;
        sum->retraction_count += result.retraction_count;
        sum->refused_plan_count += result.refused_plan_count;
        sum->restart_count += result.restart_count;
        sum->fault_count += result.fault_count;
        sum->resumed_count += result.resumed_count;
    }
    actor_sim_destroy(&sim);
}

START_TEST(every_rule_holds_whatever_goes_wrong)
{
    actor_sim_options_t options = {.step_count = STEP_COUNT, .faults = ACTOR_SIM_FAULTS_ALL};
    actor_sim_result_t sum;
    const char *seed = getenv("ONEPATH_SEED");
    if (seed != NULL) {
        run_seeds(&options, strtoull(seed, NULL, 10), 1, &sum);
        return;
    }
    run_seeds(&options, 1, SEED_COUNT, &sum);
    printf("%d seeds, %llu inputs, %llu requests, %llu tokens, %llu faults\n", SEED_COUNT,
           (unsigned long long)sum.step_count, (unsigned long long)sum.request_count,
           (unsigned long long)sum.token_count, (unsigned long long)sum.fault_count);
    printf("%u with states, %u and %u of three groups and width 4 without and with overlap\n",
           state_count, wide_counts[0], wide_counts[1]);
    ck_assert_uint_gt(state_count, SEED_COUNT / 4);
    ck_assert_uint_ge(wide_counts[0], SEED_COUNT / 50);
    ck_assert_uint_ge(wide_counts[1], SEED_COUNT / 50);
    /* A run in which nothing happens would pass as well. */
    ck_assert_uint_ge(sum.step_count, (uint64_t)SEED_COUNT * STEP_COUNT);
    ck_assert_uint_gt(sum.complete_count, (uint64_t)SEED_COUNT * 10);
    ck_assert_uint_gt(sum.token_count, (uint64_t)SEED_COUNT * 100);
    ck_assert_uint_gt(sum.fault_count, (uint64_t)SEED_COUNT * 10);
    ck_assert_uint_gt(sum.restart_count, SEED_COUNT / 4);
    ck_assert_uint_gt(sum.retraction_count, SEED_COUNT / 4);
    ck_assert_uint_gt(sum.refused_plan_count, SEED_COUNT / 10);
    ck_assert_uint_gt(sum.resumed_count, SEED_COUNT / 10);
}
END_TEST

/* In peace nothing may end with an error but what was too much or too long. */
START_TEST(without_faults_nothing_is_lost)
{
    actor_sim_options_t options = {.step_count = STEP_COUNT, .faults = 0};
    actor_sim_result_t sum;
    run_seeds(&options, 100001, SEED_COUNT / 20, &sum);
    ck_assert_uint_eq(sum.restart_count, 0);
    ck_assert_uint_gt(sum.complete_count, 2 * sum.error_count);
}
END_TEST

/* All kinds of faults in one life: rare meetings of two of them. */
START_TEST(every_rule_holds_when_everything_goes_wrong)
{
    actor_sim_options_t options = {.step_count = STEP_COUNT,
                                   .faults = ACTOR_SIM_FAULTS_ALL,
                                   .every_fault = true};
    actor_sim_result_t sum;
    run_seeds(&options, 200001, SEED_COUNT / 10, &sum);
    run_seeds(&options, 50511, 1, &sum); /* an old NAK took the number of a plan */
    ck_assert_uint_gt(sum.complete_count, 0);
}
END_TEST

/* Where rows give NaN, plans are refused and blocks change hands often: nobody reads what a NaN
 * left behind, not even behind its own last token. */
START_TEST(a_nan_reaches_nobody_else)
{
    actor_sim_options_t options = {.step_count = STEP_COUNT,
                                   .faults = ACTOR_SIM_DEVICE | ACTOR_SIM_POOL | ACTOR_SIM_REFUSE |
                                             ACTOR_SIM_BURST,
                                   .every_fault = true};
    actor_sim_result_t sum;
    run_seeds(&options, 1, SEED_COUNT / 5, &sum);
    ck_assert_uint_gt(sum.refused_plan_count, SEED_COUNT / 5);
    ck_assert_uint_gt(sum.retraction_count, SEED_COUNT / 5);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sim");
    TCase *seeds = tcase_create("seeds");
    tcase_set_timeout(seeds, 280);
    tcase_add_test(seeds, every_rule_holds_whatever_goes_wrong);
    tcase_add_test(seeds, without_faults_nothing_is_lost);
    tcase_add_test(seeds, every_rule_holds_when_everything_goes_wrong);
    tcase_add_test(seeds, a_nan_reaches_nobody_else);
    suite_add_tcase(suite, seeds);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
