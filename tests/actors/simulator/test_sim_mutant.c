/* A simulator that finds nothing proves nothing: a core that is known to be wrong must be caught,
 * and soon.  ONEPATH_MUTANT says how it is wrong (scheduler/sched_internal.h). */
#include <check.h>
#include <stdlib.h>

#include "actor_sim.h"

/* The first seed that finds it. */
static uint64_t
hunt(uint32_t check_interval, actor_sim_result_t *result)
{
    /* Not destroyed: a core that broke its own rules may not be able to end in good order.  Static,
     * so that it is no leak. */
    static actor_sim_t *sim;
    actor_sim_options_t options = {.faults = ACTOR_SIM_FAULTS_ALL,
                                   .check_interval = check_interval};
    ck_assert_int_eq(actor_sim_new(&options, &sim), STATUS_OK);
    uint64_t seed = 0;
    result->failed = false;
    while (!result->failed && seed < SEED_COUNT) {
        actor_sim_run(sim, ++seed, result);
    }
    ck_assert_msg(result->failed, "mutant %d lived through %d seeds", ONEPATH_MUTANT, SEED_COUNT);
    printf("mutant %d: caught at seed %llu, input %llu: %s: %s\n", ONEPATH_MUTANT,
           (unsigned long long)seed, (unsigned long long)result->step_count, result->rule,
           result->detail);
    return seed;
}

START_TEST(the_wrong_core_is_caught)
{
    actor_sim_result_t result;
    (void)hunt(0, &result);
}
END_TEST

/* Without the walks over the insides of the cores: what clients, device and peers see is enough. */
START_TEST(the_wrong_core_is_caught_from_outside)
{
    actor_sim_result_t result;
    (void)hunt(UINT32_MAX, &result);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sim");
    TCase *mutant = tcase_create("mutant");
    tcase_set_timeout(mutant, 110);
    tcase_add_test(mutant, the_wrong_core_is_caught);
    tcase_add_test(mutant, the_wrong_core_is_caught_from_outside);
    suite_add_tcase(suite, mutant);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
