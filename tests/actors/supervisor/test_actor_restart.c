/* How often and how soon a child may come back. */
#include <check.h>
#include <stdlib.h>

#include "actor_restart.h"

#define MS UINT64_C(1000000)

/* Three restarts in a period, each after a longer wait; the fourth end is too much. */
START_TEST(fourth_end_in_a_period_is_too_much)
{
    actor_restart_t restart;
    uint64_t wait_ns = 0;
    actor_restart_init(&restart, 0, 0);
    ck_assert(actor_restart_allow(&restart, 1000 * MS, &wait_ns));
    ck_assert_uint_eq(wait_ns, 100 * MS);
    ck_assert(actor_restart_allow(&restart, 2000 * MS, &wait_ns));
    ck_assert_uint_eq(wait_ns, 200 * MS);
    ck_assert(actor_restart_allow(&restart, 3000 * MS, &wait_ns));
    ck_assert_uint_eq(wait_ns, 400 * MS);
    ck_assert(!actor_restart_allow(&restart, 4000 * MS, &wait_ns));
}
END_TEST

/* A child that ends once a minute may do so for ever. */
START_TEST(old_ends_are_forgotten)
{
    actor_restart_t restart;
    uint64_t wait_ns = 0;
    actor_restart_init(&restart, 3, 60000 * MS);
    for (uint64_t index = 0; index < 1000; index++) {
        ck_assert(actor_restart_allow(&restart, index * 30000 * MS, &wait_ns));
        ck_assert_uint_le(wait_ns, 200 * MS);
    }
}
END_TEST

/* The wait doubles up to ten seconds. */
START_TEST(wait_has_a_limit)
{
    actor_restart_t restart;
    uint64_t wait_ns = 0;
    actor_restart_init(&restart, 20, 60000 * MS);
    for (uint64_t index = 0; index < 20; index++) {
        ck_assert(actor_restart_allow(&restart, index * MS, &wait_ns));
    }
    ck_assert_uint_eq(wait_ns, 10000 * MS);
    ck_assert(!actor_restart_allow(&restart, 20 * MS, &wait_ns));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.restart");
    TCase *test = tcase_create("restart");
    tcase_add_test(test, fourth_end_in_a_period_is_too_much);
    tcase_add_test(test, old_ends_are_forgotten);
    tcase_add_test(test, wait_has_a_limit);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
