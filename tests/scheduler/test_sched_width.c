/* The width of a plan follows what candidates gain and what a wide step costs. */
#include "core_fixture.h"

enum { WIDTH = 4 };

static void
begin(bool tells)
{
    executor.width = WIDTH;
    executor.tells_drafts = tells;
    executor.slot_count = 2;
    executor.model_len_max = 512;
    executor.parent_count = 1 + 300;
    start();
}

/* Steps until the request has so many tokens; how many of the plans were wide. */
static uint32_t
run_until(const sched_fake_request_t *request, uint32_t received)
{
    uint32_t wide = 0;
    while (request->received < received && request->end_count == 0) {
        if (sched_world_plan(&world)) {
            wide += world.last_plan.width > 1 ? 1 : 0;
        }
        (void)sched_world_result(&world);
    }
    return wide;
}

START_TEST(without_word_of_candidates_every_plan_is_wide)
{
    begin(false);
    const sched_fake_request_t *request = submit(8, 100);
    uint64_t steps = world.steps_sent;
    uint32_t wide = run_until(request, 60);
    ck_assert_uint_ge(wide + 2, world.steps_sent - steps);
    finish();
}
END_TEST

/* Right candidates and a cheap wide step: wide, after a few narrow steps that cost nothing. */
START_TEST(plans_become_wide_when_that_gains)
{
    begin(true);
    sched_fake_set_drafts(world.fake, true, 1000, 1200);
    const sched_fake_request_t *request = submit(8, 300);
    (void)run_until(request, 100);
    uint32_t wide = run_until(request, 200);
    ck_assert_uint_ge(wide, 20);
    finish();
    sched_figures_t figures = sched_world_figures(&world);
    ck_assert_uint_gt(figures.drafts_accepted, 0);
    ck_assert_uint_ge(figures.drafts_proposed, figures.drafts_accepted);
}
END_TEST

/* A wide step that costs more than it can give is tried, and then rarely. */
START_TEST(plans_stay_narrow_when_that_is_cheaper)
{
    begin(true);
    sched_fake_set_drafts(world.fake, true, 1000, 5000);
    const sched_fake_request_t *request = submit(8, 400);
    (void)run_until(request, 50);
    uint32_t wide = run_until(request, 350);
    ck_assert_uint_le(wide, 12);
    finish();
}
END_TEST

/* Narrow steps were measured while the machine was busy: a wide step that looks cheaper is no
 * reason to go on without candidates. */
START_TEST(a_wide_step_is_never_taken_for_cheaper)
{
    begin(true);
    sched_fake_set_drafts(world.fake, true, 3000, 1000);
    const sched_fake_request_t *request = submit(8, 450);
    (void)run_until(request, 150);
    sched_fake_set_drafts(world.fake, false, 3000, 1000);
    (void)run_until(request, 180);
    ck_assert_uint_eq(run_until(request, 300), 0);
    finish();
}
END_TEST

/* The drafter is lost: narrow after a while; it comes back: wide again, in the same request. */
START_TEST(a_lost_drafter_makes_plans_narrow_until_it_is_back)
{
    begin(true);
    sched_fake_set_drafts(world.fake, true, 1000, 1100);
    const sched_fake_request_t *request = submit(8, 450);
    (void)run_until(request, 150);
    sched_fake_set_drafts(world.fake, false, 1000, 1100);
    (void)run_until(request, 180);
    ck_assert_uint_eq(run_until(request, 240), 0);
    ck_assert_uint_gt(sched_world_figures(&world).drafts_missing, 0);
    sched_fake_set_drafts(world.fake, true, 1000, 1100);
    (void)run_until(request, 260);
    ck_assert_uint_gt(run_until(request, 400), 10);
    finish();
}
END_TEST

/* Words that do not fit the step are the executor's fault, and nothing of it is taken. */
START_TEST(miscounted_candidates_are_malformed)
{
    begin(true);
    const sched_fake_request_t *request = submit(8, 50);
    (void)run_until(request, 10);
    ck_assert(sched_world_plan(&world) || world.steps_sent > 0);
    proto_step_result_t result;
    ck_assert(sched_fake_result(world.fake, &result));
    uint8_t *drafted = (uint8_t *)(uintptr_t)result.drafted.data;
    uint8_t before = drafted[0];
    drafted[0] = WIDTH;
    sched_event_t event = {.kind = SCHED_EVENT_RESULT, .result = &result};
    ck_assert_int_eq(sched_core_advance(world.core, world.now_ns, &event, NULL),
                     STATUS_ERR_MALFORMED);
    drafted[0] = before;
    result.draft_hits.count = 0;
    ck_assert_int_eq(sched_core_advance(world.core, world.now_ns, &event, NULL),
                     STATUS_ERR_MALFORMED);
    sched_world_lose(&world, &executor); /* the result is lost to the world */
    finish();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("scheduler.width");
    TCase *tests = add_case(suite, "width");
    tcase_add_test(tests, without_word_of_candidates_every_plan_is_wide);
    tcase_add_test(tests, plans_become_wide_when_that_gains);
    tcase_add_test(tests, plans_stay_narrow_when_that_is_cheaper);
    tcase_add_test(tests, a_wide_step_is_never_taken_for_cheaper);
    tcase_add_test(tests, a_lost_drafter_makes_plans_narrow_until_it_is_back);
    tcase_add_test(tests, miscounted_candidates_are_malformed);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
