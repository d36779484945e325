/* Drafters that propose token after token: what they propose, and that nothing they propose shows
 * in an answer.  A draft that is the target itself must be right every time: whatever goes wrong
 * with its cache, its positions or its lengths costs acceptance, and shows here. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "draft_scene.h"
#include "run_inspect.h"

static scene_request_t requests[SCENE_SLOTS + 1];

static void
start_all(driver_t *driver, scene_request_t *live[SCENE_SLOTS], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        scene_start(driver, i + 1, 64, &requests[i]);
        live[i] = &requests[i];
    }
}

/* Draft and target identical: every candidate stands, at every width, replayed (batches up to 4)
 * and eagerly; and the tokens are those without speculation. */
START_TEST(a_draft_that_is_the_target_is_always_right)
{
    scene_make_answers("tiny-llama", true);
    for (uint32_t width = 1; width <= 8; width++) {
        run_executor_options_t options =
            scene_options("tiny-llama", width == 1 ? NULL : "tiny-llama", width);
        driver_t driver;
        driver_open(&driver, &options);
        scene_request_t *live[SCENE_SLOTS];
        for (int again = 0; again < 2; again++) { /* eager; replayed, in the same slots */
            uint32_t count = again == 0 ? 5 : 2;
            start_all(&driver, live, count);
            scene_run(&driver, live, count, NULL);
            for (uint32_t i = 0; i < count; i++) {
                ck_assert_uint_eq(live[i]->accepted, live[i]->offered);
                ck_assert_uint_eq(live[i]->offered, live[i]->rounds * (width - 1));
            }
        }
        driver_close(&driver);
    }
}
END_TEST

static int reject_at;

/* Every second round rejects, the others are the drafter's own. */
static int
reject_sometimes(const scene_request_t *request, uint32_t width)
{
    (void)width;
    return request->rounds % 2 == 0 ? reject_at : -1;
}

/* A reject forced at every index leaves the tokens alone, and the drafter is right again in the
 * round after it: nothing of what was rejected is attended to. */
START_TEST(a_forced_reject_costs_its_round_and_nothing_else)
{
    enum { WIDTH = 6 };
    scene_make_answers("tiny-llama", true);
    run_executor_options_t options = scene_options("tiny-llama", "tiny-llama", WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    for (reject_at = 0; reject_at < WIDTH; reject_at++) {
        scene_request_t *live[SCENE_SLOTS];
        uint32_t count = reject_at % 2 == 0 ? 2 : 5; /* replayed, eager */
        start_all(&driver, live, count);
        scene_run(&driver, live, count, reject_sometimes);
        for (uint32_t i = 0; i < count; i++) {
            const scene_request_t *request = live[i];
            uint32_t round = 0;
            for (uint32_t at = request->answer->prompt_length + 1; round < request->rounds;) {
                uint32_t wanted = round % 2 == 0 ? (uint32_t)reject_at + 1 : WIDTH;
                ck_assert_uint_eq(request->counts[at], wanted);
                at += request->counts[at];
                round++;
            }
        }
    }
    driver_close(&driver);
}
END_TEST

/* Drawn tokens: candidates count only where the draw agrees, so the answer is that of width 1. */
START_TEST(seeded_draws_do_not_depend_on_the_drafter)
{
    scene_make_answers("tiny-llama", false);
    run_executor_options_t options = scene_options("tiny-llama", "tiny-llama", 4);
    driver_t driver;
    driver_open(&driver, &options);
    scene_request_t *live[SCENE_SLOTS];
    start_all(&driver, live, SCENE_SLOTS);
    scene_run(&driver, live, SCENE_SLOTS, NULL);
    uint32_t accepted = 0;
    uint32_t offered = 0;
    for (uint32_t i = 0; i < SCENE_SLOTS; i++) {
        if (live[i]->answer->sampling.temperature > 0) {
            accepted += live[i]->accepted;
            offered += live[i]->offered;
        }
    }
    ck_assert_uint_gt(accepted, 0);
    ck_assert_uint_lt(accepted, offered);
    driver_close(&driver);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.draft");
    TCase *tests = tcase_create("chain");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_draft_that_is_the_target_is_always_right);
    tcase_add_test(tests, a_forced_reject_costs_its_round_and_nothing_else);
    tcase_add_test(tests, seeded_draws_do_not_depend_on_the_drafter);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
