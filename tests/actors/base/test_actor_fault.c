/* Fault points: nothing unless armed, then exactly at the hit that was asked for. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>

#include "actor_fault.h"
#include "proto_clock.h"

START_TEST(unarmed_points_do_nothing)
{
    ck_assert(!ACTOR_FAULT("test.point"));
    ck_assert(!ACTOR_FAULT_KIND("test.before_send", PROTO_KIND_PLAN));
}
END_TEST

START_TEST(the_nth_hit_fires_once)
{
    ck_assert_int_eq(actor_fault_arm("test.point:drop:3,test.before_send.PLAN:drop:0"), STATUS_OK);
    for (uint32_t hit = 1; hit <= 6; hit++) {
        ck_assert(ACTOR_FAULT("test.point") == (hit == 3));
        ck_assert(!ACTOR_FAULT("test.other"));
        ck_assert(ACTOR_FAULT_KIND("test.before_send", PROTO_KIND_PLAN));
        ck_assert(!ACTOR_FAULT_KIND("test.before_send", PROTO_KIND_TOKENS));
    }
    actor_fault_clear();
    ck_assert(!ACTOR_FAULT_KIND("test.before_send", PROTO_KIND_PLAN));
}
END_TEST

START_TEST(delay_takes_its_time)
{
    ck_assert_int_eq(actor_fault_arm("test.point:delay:1:30"), STATUS_OK);
    const proto_clock_t *clock = proto_clock_system();
    uint64_t begin_ns = proto_clock_monotonic_ns(clock);
    ck_assert(!ACTOR_FAULT("test.point"));
    ck_assert_uint_ge(proto_clock_monotonic_ns(clock) - begin_ns, 30000000);
}
END_TEST

START_TEST(mistakes_arm_nothing)
{
    static const char *const wrong[] = {
        "test.point",        "test.point:explode",    ":kill",
        "test.point:kill:x", "test.point:drop:1:2:3", "test.point:drop,:"};
    for (uint32_t index = 0; index < sizeof wrong / sizeof wrong[0]; index++) {
        ck_assert_int_eq(actor_fault_arm(wrong[index]), STATUS_ERR_CONFIG);
        ck_assert(!ACTOR_FAULT("test.point"));
    }
}
END_TEST

START_TEST(kill_is_sudden)
{
    ck_assert_int_eq(actor_fault_arm("test.point:kill"), STATUS_OK);
    (void)ACTOR_FAULT("test.point");
}
END_TEST

START_TEST(exit_has_its_code)
{
    ck_assert_int_eq(actor_fault_arm("test.point:exit:1:75"), STATUS_OK);
    (void)ACTOR_FAULT("test.point");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.fault");
    TCase *test = tcase_create("fault");
    tcase_add_test(test, unarmed_points_do_nothing);
    tcase_add_test(test, the_nth_hit_fires_once);
    tcase_add_test(test, delay_takes_its_time);
    tcase_add_test(test, mistakes_arm_nothing);
    tcase_add_test_raise_signal(test, kill_is_sudden, SIGKILL);
    tcase_add_exit_test(test, exit_has_its_code, 75);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
