/* Between a drafter and the target: what its answers may and may not do. */
#include <check.h>
#include <stdint.h>
#include <string.h>

#include "kern_draft.h"

enum { SLOTS = 5, WIDTH = 4, VOCABULARY = 50 };

static int32_t future[SLOTS * WIDTH];
static uint32_t dropped;

static void
commit(const int32_t *slots, const int32_t *candidates, uint32_t bs, uint32_t count)
{
    for (uint32_t i = 0; i < SLOTS * WIDTH; i++) {
        future[i] = i % WIDTH == 0 ? (int32_t)i : 40; /* what an earlier round left */
    }
    kern_draft_commit_args_t args = {
        .write_slots = slots,
        .candidates = candidates,
        .stride = 3,
        .count = count,
        .bs = bs,
        .width = WIDTH,
        .vocabulary = VOCABULARY,
        .future_inputs = future,
        .dropped = &dropped,
    };
    kern_share_t alone = {.thread_count = 1};
    kern_draft_commit_host(&args, &alone);
}

/* The last verified token is the sampler's; slots that are not named keep what they have. */
START_TEST(candidates_go_behind_the_verified_token)
{
    const int32_t slots[] = {3, 1};
    const int32_t candidates[] = {7, 8, 9, 0, 49, 1};
    commit(slots, candidates, 2, 3);
    const int32_t wanted[SLOTS * WIDTH] = {0,  40, 40, 40, 4, 0, 49, 1,  8,  40,
                                           40, 40, 12, 7,  8, 9, 16, 40, 40, 40};
    ck_assert_mem_eq(future, wanted, sizeof wanted);
    ck_assert_uint_eq(dropped, 0);
}
END_TEST

/* Whatever a drafter says, no id that is not a token reaches the target's embedding. */
START_TEST(what_is_no_token_ends_the_row_and_is_counted)
{
    const int32_t slots[] = {1, 2, 3, 4};
    const int32_t candidates[] = {7, VOCABULARY, 9, -1, 5, 6, INT32_MAX, 1, 2, 3, 4, -2};
    commit(slots, candidates, 4, 3);
    const int32_t wanted[SLOTS * WIDTH] = {0,  40, 40, 40, 4,  7,  -1, -1, 8, -1,
                                           -1, -1, 12, -1, -1, -1, 16, 3,  4, -1};
    ck_assert_mem_eq(future, wanted, sizeof wanted);
    ck_assert_uint_eq(dropped, 3); /* -1 is an answer, the other three are not */
}
END_TEST

/* Fewer than the window takes: what an earlier round left there is not verified again. */
START_TEST(fewer_candidates_leave_none_of_an_earlier_round)
{
    const int32_t slots[] = {2};
    const int32_t candidates[] = {7, 8, 9};
    commit(slots, candidates, 1, 1);
    const int32_t wanted[] = {8, 7, -1, -1};
    ck_assert_mem_eq(future + 2 * WIDTH, wanted, sizeof wanted);
}
END_TEST

static void
forget(void)
{
    dropped = 0;
}

int
main(void)
{
    Suite *suite = suite_create("kernels.draft");
    TCase *tests = tcase_create("all");
    tcase_add_checked_fixture(tests, forget, NULL);
    tcase_add_test(tests, candidates_go_behind_the_verified_token);
    tcase_add_test(tests, what_is_no_token_ends_the_row_and_is_counted);
    tcase_add_test(tests, fewer_candidates_leave_none_of_an_earlier_round);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
