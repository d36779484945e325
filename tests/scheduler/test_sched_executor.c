/* The planning core and its executor: refusals, loss, wrong results, cache groups. */
#include <stdlib.h>
#include <string.h>

#include "core_fixture.h"

/* ---- the executor ---------------------------------------------------------------------------- */

START_TEST(a_refused_plan_is_followed_by_a_full_one)
{
    options.overlap_depth_max = 1;
    executor.overlap_depth_max = 1;
    start();
    sched_fake_request_t *first = submit(10, 12);
    sched_fake_request_t *second = submit(10, 12);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    sched_fake_refuse_next(world.fake);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_plan(&world)); /* stale: it builds on the refused one */
    ck_assert(sched_world_refusal(&world));
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_plan.base_step, 0);
    finish();
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 12);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 12);
    sched_figures_t figures = sched_world_figures(&world);
    ck_assert_uint_eq(figures.plans_refused, 1);
    ck_assert_uint_eq(figures.retractions, 2);
}
END_TEST

/* The refused plan was to clear what a NaN left behind; the blocks go to others all the same. */
START_TEST(what_a_refused_plan_was_to_clear_is_cleared_later)
{
    start();
    sched_fake_request_t *bad = sched_world_request(&world, 12, 8, 1, 12);
    bad->nan_at = 1;
    ck_assert_int_eq(sched_world_submit(&world, bad, 0, NULL), STATUS_OK);
    sched_world_run(&world);
    ck_assert_str_eq(bad->end.code, "nan_logits");
    sched_fake_request_t *next = sched_world_request(&world, 12, 8, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, next, 0, NULL), STATUS_OK);
    sched_fake_refuse_next(world.fake);
    ck_assert(sched_world_plan(&world));
    uint32_t planned = world.last_plan.clear_blocks.count;
    ck_assert_uint_ge(planned, 1);
    ck_assert_uint_eq(sched_fake_clear_count(world.fake), 0);
    finish();
    sched_world_expect(&world, next, PROTO_FINISH_LENGTH, 8);
    ck_assert_uint_ge(sched_fake_clear_count(world.fake), planned);
}
END_TEST

/* The step before the refused one is good: its tokens count, and only then the blocks go. */
START_TEST(a_refusal_waits_for_the_good_step_before_it)
{
    options.overlap_depth_max = 1;
    executor.overlap_depth_max = 1;
    start();
    sched_fake_request_t *request = submit(10, 12);
    ck_assert(sched_world_plan(&world));
    sched_fake_refuse_next(world.fake);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_refusal(&world));
    ck_assert_uint_eq(sched_world_figures(&world).retractions, 0);
    ck_assert(!sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    ck_assert_uint_eq(request->received, 1);
    ck_assert_int_eq(why(request).state, SCHED_STATE_RETRACTED);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 12);
}
END_TEST

/* Without a bound the same plan would be refused for ever. */
START_TEST(a_request_whose_plans_are_always_refused_ends)
{
    start();
    sched_fake_request_t *request = submit(10, 12);
    for (int i = 0; i < 3; i++) {
        sched_fake_refuse_next(world.fake);
        ck_assert(sched_world_plan(&world));
        ck_assert(sched_world_refusal(&world));
    }
    ck_assert_uint_eq(request->end_count, 1);
    ck_assert_int_eq(request->end.reason, PROTO_FINISH_ERROR);
    ck_assert_str_eq(request->end.code, "plan_refused");
    finish();
}
END_TEST

START_TEST(every_plan_can_be_a_full_one)
{
    options.full_plans = true;
    start();
    sched_fake_request_t *first = submit(10, 12);
    sched_fake_request_t *second = submit(4, 12);
    finish();
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 12);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 12);
    sched_figures_t figures = sched_world_figures(&world);
    ck_assert_uint_eq(figures.full_plans, figures.steps);
}
END_TEST

/* A full plan depends on nothing: behind a refused one it would be applied, and the executor would
 * go on with rows that the core has taken back. */
START_TEST(full_plans_wait_for_each_other)
{
    options.full_plans = true;
    options.overlap_depth_max = 1;
    executor.overlap_depth_max = 1;
    start();
    sched_fake_request_t *request = submit(10, 12);
    sched_fake_refuse_next(world.fake);
    ck_assert(sched_world_plan(&world));
    ck_assert(!sched_world_plan(&world));
    ck_assert(sched_world_refusal(&world));
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 12);
}
END_TEST

START_TEST(a_lost_executor_ends_every_request_once)
{
    start();
    sched_fake_request_t *running = submit(4, 20);
    ck_assert(sched_world_plan(&world));
    sched_fake_request_t *waiting = submit(4, 20);
    sched_core_detach(world.core, STATUS_ERR_PEER_LOST, "worker_lost");
    sched_finished_t end;
    uint32_t count = 0;
    while (sched_core_take_finished(world.core, &end)) {
        ck_assert_int_eq(end.reason, PROTO_FINISH_ERROR);
        ck_assert_int_eq(end.status, STATUS_ERR_PEER_LOST);
        ck_assert_str_eq(end.code, "worker_lost");
        ck_assert_uint_gt(end.retry_after_ms, 0);
        count++;
    }
    ck_assert_uint_eq(count, 2);
    (void)running;
    (void)waiting;
    sched_core_check(world.core);
    sched_refusal_t refusal;
    sched_fake_request_t *late = sched_world_request(&world, 4, 2, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, late, 0, &refusal), STATUS_ERR_REFUSED);
    ck_assert_str_eq(refusal.code, "no_executor");
    ck_assert_uint_gt(refusal.retry_after_ms, 0);
    /* The next one starts from nothing: a full plan, and step numbers that go on. */
    sched_fake_destroy(&world.fake);
    world.fake = sched_fake_new(&executor);
    ck_assert_int_eq(sched_core_attach(world.core, sched_fake_info(world.fake), NULL), STATUS_OK);
    ck_assert_int_eq(sched_world_submit(&world, late, 0, &refusal), STATUS_OK);
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_plan.base_step, 0);
    ck_assert_uint_eq(world.last_plan.step, 2);
    finish();
    sched_world_expect(&world, late, PROTO_FINISH_LENGTH, 2);
}
END_TEST

/* A result of another shape than its plan is a fault of the executor, and changes nothing. */
START_TEST(a_result_that_does_not_fit_its_plan_is_refused)
{
    start();
    submit(4, 20);
    ck_assert(sched_world_plan(&world));
    uint8_t counts[2] = {1, 1};
    uint8_t flags[2] = {0};
    proto_step_result_t result = {.step = 1, .token_counts = {counts, 2}, .row_flags = {flags, 2}};
    sched_event_t event = {.kind = SCHED_EVENT_RESULT, .result = &result};
    ck_assert_int_eq(sched_core_advance(world.core, 1, &event, NULL), STATUS_ERR_MALFORMED);
    result.token_counts.count = 1;
    result.row_flags.count = 1;
    counts[0] = 2;
    ck_assert_int_eq(sched_core_advance(world.core, 1, &event, NULL), STATUS_ERR_MALFORMED);
    counts[0] = 0;
    ck_assert_int_eq(sched_core_advance(world.core, 1, &event, NULL), STATUS_ERR_MALFORMED);
    counts[0] = 1;
    result.step = 2;
    ck_assert_int_eq(sched_core_advance(world.core, 1, &event, NULL), STATUS_ERR_MALFORMED);
    uint32_t row = 1;
    result.step = 1;
    result.hash_rows = (proto_column_u32_t){&row, 1};
    result.hash_pages = (proto_column_u32_t){&row, 1};
    result.hash_bytes = (proto_column_u8_t){(const uint8_t *)"", 31};
    ck_assert_int_eq(sched_core_advance(world.core, 1, &event, NULL), STATUS_ERR_MALFORMED);
    result.step = 0;
    ck_assert_int_eq(sched_core_advance(world.core, 1, &event, NULL), STATUS_ERR_STALE);
    sched_core_check(world.core);
    finish();
}
END_TEST

static proto_status_t
attach_with(uint32_t kind, uint32_t granularity, proto_error_t *error)
{
    set_defaults();
    executor.group_count = 2;
    executor.kinds[1] = kind;
    executor.granularities[1] = 4;
    executor.packings[1] = 1;
    executor.windows[1] = 8;
    sched_fake_t *fake = sched_fake_new(&executor);
    proto_executor_info_t info = *sched_fake_info(fake);
    uint32_t granularities[2] = {4, granularity};
    info.group_granularities.data = granularities;
    sched_core_t *core = NULL;
    ck_assert_int_eq(sched_core_new(&options, &core), STATUS_OK);
    proto_status_t status = sched_core_attach(core, &info, error);
    sched_core_destroy(&core);
    sched_fake_destroy(&fake);
    return status;
}

START_TEST(an_executor_that_cannot_be_served_is_told_why)
{
    proto_error_t error;
    ck_assert_int_eq(attach_with(3, 4, &error), STATUS_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.detail, "kind 3"));
    ck_assert_int_eq(attach_with(0, 3, &error), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.detail, "granularity 3"));
    ck_assert_int_eq(attach_with(1, 4, &error), STATUS_OK);
}
END_TEST

/* Same inputs, same decisions: what replay stands on. */
START_TEST(equal_inputs_give_equal_digests)
{
    uint64_t digests[2];
    for (int run = 0; run < 2; run++) {
        set_defaults();
        executor.parent_count = 11;
        start();
        submit(12, 26);
        submit(8, 20);
        sched_world_run(&world);
        digests[run] = sched_core_digest(world.core);
        sched_world_fini(&world);
    }
    ck_assert_uint_eq(digests[0], digests[1]);
    start();
    submit(12, 25);
    submit(8, 20);
    sched_world_run(&world);
    ck_assert_uint_ne(sched_core_digest(world.core), digests[0]);
}
END_TEST

START_TEST(a_draining_core_takes_nothing_new_and_ends_what_it_has)
{
    start();
    sched_fake_request_t *request = submit(4, 6);
    sched_event_t event = {.kind = SCHED_EVENT_DRAIN};
    ck_assert_int_eq(sched_core_advance(world.core, 1, &event, NULL), STATUS_OK);
    sched_refusal_t refusal;
    sched_fake_request_t *late = sched_world_request(&world, 4, 2, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, late, 0, &refusal), STATUS_ERR_REFUSED);
    ck_assert_str_eq(refusal.code, "draining");
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 6);
}
END_TEST

/* ---- groups ---------------------------------------------------------------------------------- */

/* A sliding group holds no more than its window, however long the answer is. */
START_TEST(a_sliding_group_gives_back_what_left_its_window)
{
    executor.group_count = 2;
    executor.kinds[1] = 1;
    executor.granularities[1] = 2;
    executor.windows[1] = 6;
    executor.packings[1] = 2;
    executor.parent_count = 25 + 12;
    executor.step_tokens_max = 8;
    options.no_prefix_cache = true;
    start();
    sched_fake_request_t *request = submit(20, 80);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 80);
    ck_assert_uint_eq(sched_world_figures(&world).retractions, 0);
}
END_TEST

START_TEST(a_hit_needs_the_window_of_every_sliding_group)
{
    executor.group_count = 2;
    executor.kinds[1] = 1;
    executor.granularities[1] = 4;
    executor.windows[1] = 5;
    executor.packings[1] = 1;
    executor.parent_count = 65;
    start();
    sched_fake_request_t *first = sched_world_request(&world, 30, 4, 1, 28);
    ck_assert_int_eq(sched_world_submit(&world, first, 0, NULL), STATUS_OK);
    sched_world_run(&world);
    sched_fake_request_t *second = sched_world_request(&world, 30, 4, 1, 28);
    ck_assert_int_eq(sched_world_submit(&world, second, 0, NULL), STATUS_OK);
    finish();
    ck_assert_uint_eq(second->end.cached_count, 28);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 4);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("scheduler.executor");
    TCase *peer = add_case(suite, "executor");
    tcase_add_test(peer, a_refused_plan_is_followed_by_a_full_one);
    tcase_add_test(peer, what_a_refused_plan_was_to_clear_is_cleared_later);
    tcase_add_test(peer, a_refusal_waits_for_the_good_step_before_it);
    tcase_add_test(peer, a_request_whose_plans_are_always_refused_ends);
    tcase_add_test(peer, every_plan_can_be_a_full_one);
    tcase_add_test(peer, full_plans_wait_for_each_other);
    tcase_add_test(peer, a_lost_executor_ends_every_request_once);
    tcase_add_test(peer, a_result_that_does_not_fit_its_plan_is_refused);
    tcase_add_test(peer, an_executor_that_cannot_be_served_is_told_why);
    tcase_add_test(peer, equal_inputs_give_equal_digests);
    tcase_add_test(peer, a_draining_core_takes_nothing_new_and_ends_what_it_has);
    TCase *groups = add_case(suite, "groups");
    tcase_add_test(groups, a_sliding_group_gives_back_what_left_its_window);
    tcase_add_test(groups, a_hit_needs_the_window_of_every_sliding_group);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
