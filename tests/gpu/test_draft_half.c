/* The executor's half of speculation with a drafter played by the test: right candidates count,
 * wrong ones are ignored and counted, and none is ever waited for in vain twice. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "draft_ring.h"
#include "gpu_width.h"

enum { WIDTH = 4, SLOT = 2, EPOCH = 5, STRIDE = WIDTH - 1 };

static char ring_path[128];
static driver_t driver;
static draft_ring_t *ring;
static const answer_t *answer;
static uint32_t known; /* tokens of the request */
static driver_result_t result;

static void
open_all(void)
{
    width_make_answers(&width_fixtures[0]);
    answer = &width_answers[SLOT - 1]; /* greedy and seeded ones alternate; any will do */
    (void)snprintf(ring_path, sizeof ring_path, "/tmp/onepath-half-%ld", (long)getpid());
    run_executor_options_t options = width_options(&width_fixtures[0], WIDTH);
    options.draft_ring_path = ring_path;
    options.draft_ring_id = 7;
    options.draft_wait_ns = 2000000;
    options.drafter = "test";
    driver_open(&driver, &options);
    const draft_ring_options_t wanted = {.ring_id = 7,
                                         .slot_count = driver.info.slot_count,
                                         .width = WIDTH,
                                         .vocabulary = driver.info.vocab_size,
                                         .model_len_max = driver.info.model_len_max};
    ck_assert_int_eq(draft_ring_open(ring_path, &wanted, &ring), STATUS_OK);
    run_executor_draft_admit(driver.executor, EPOCH);
    driver.draft_slot = 1;
    known = answer->prompt_length;
    driver_setup(&driver, SLOT, answer->tokens, known, &answer->sampling);
    (void)driver_prefill(&driver, SLOT, answer->tokens, known, 256);
    known++;
}

static void
close_all(void)
{
    draft_ring_destroy(&ring);
    driver_close(&driver);
    ck_assert_int_ne(access(ring_path, F_OK), 0);
}

/* The view of the round of the last step; it must be there. */
static draft_ring_view_t
round_of(uint32_t index)
{
    ck_assert_int_eq(draft_ring_wait_round(ring, index, driver.step, EPOCH, 0), STATUS_OK);
    return draft_ring_view(ring, index);
}

/* Answers the last round with `count` candidates, of which the first `right` are. */
static void
propose(uint32_t index, uint32_t count, uint32_t right)
{
    draft_ring_view_t view = round_of(index);
    view.counts[0] = (int32_t)count;
    for (uint32_t i = 0; i < count && i < STRIDE; i++) {
        int32_t next = answer->tokens[known + i];
        view.candidates[i] = i < right ? next : (next + 1) % VOCABULARY;
    }
    draft_ring_answer(ring, index, driver.step, EPOCH);
}

/* One decode step of this width; its tokens must be those of the undisturbed run. */
static void
step(uint32_t width, uint32_t draft_slot, uint32_t count)
{
    uint32_t slot = SLOT;
    driver.width = width;
    driver.draft_slot = draft_slot;
    driver_step(&driver, NULL, 0, &slot, 1, &result);
    ck_assert_uint_eq(result.counts[0], count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(result.windows[0][i], answer->tokens[known + i]);
    }
    known += count;
}

START_TEST(a_round_tells_what_came)
{
    draft_ring_view_t view = round_of(0);
    int32_t tokens[256];
    ck_assert_uint_eq(view.head->bs, 1);
    ck_assert_uint_eq(view.head->num_extends, 1);
    ck_assert_uint_eq(view.slots[0], SLOT);
    ck_assert_uint_eq(view.lengths[0], known);
    ck_assert_uint_eq(view.samples[0], 1);
    ck_assert_int_eq(view.tokens[0], answer->tokens[known - 1]);
    ck_assert(draft_ring_store_read(ring, SLOT, view.generations[0], tokens, known));
    ck_assert_mem_eq(tokens, answer->tokens, known * sizeof *tokens);
    propose(0, 3, 2);
    step(WIDTH, 2, 3);
    view = round_of(1);
    ck_assert_uint_eq(view.head->num_extends, 0);
    ck_assert_uint_eq(view.head->width, WIDTH);
    ck_assert_int_eq(view.accept_lengths[0], 3);
    ck_assert_uint_eq(view.lengths[0], known);
    ck_assert(draft_ring_store_read(ring, SLOT, view.generations[0], tokens, known));
    ck_assert_mem_eq(tokens, answer->tokens, known * sizeof *tokens);
}
END_TEST

START_TEST(candidates_count_for_what_they_are)
{
    for (uint32_t right = 0; right <= STRIDE; right++) {
        uint32_t index = right % DRAFT_RING_SLOT_COUNT;
        propose(index, STRIDE, right);
        step(WIDTH, (index + 1) % DRAFT_RING_SLOT_COUNT + 1, right + 1);
        ck_assert_uint_eq(result.drafted[0], STRIDE);
        ck_assert_uint_eq(result.hits[0], right);
        ck_assert_uint_eq(result.draft_ignored, 0);
    }
}
END_TEST

/* A narrow step has no place for candidates, and says what would have become of the first. */
START_TEST(a_narrow_step_compares)
{
    propose(0, STRIDE, STRIDE);
    step(1, 2, 1);
    ck_assert_uint_eq(result.drafted[0], 1);
    ck_assert_uint_eq(result.hits[0], 1);
    propose(1, STRIDE, 0);
    step(1, 3, 1);
    ck_assert_uint_eq(result.drafted[0], 1);
    ck_assert_uint_eq(result.hits[0], 0);
    step(1, 4, 1); /* nothing was proposed */
    ck_assert_uint_eq(result.drafted[0], 0);
    propose(3, STRIDE, STRIDE);
    step(WIDTH, 1, WIDTH);
}
END_TEST

/* Wrong count, no token, another step, another incarnation: nothing of it is verified. */
START_TEST(what_is_not_fit_is_ignored_with_a_counter)
{
    const int32_t counts[] = {WIDTH, -1, 1000000};
    uint32_t index = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        draft_ring_view_t view = round_of(index);
        view.counts[0] = counts[i];
        draft_ring_answer(ring, index, driver.step, EPOCH);
        index = (index + 1) % DRAFT_RING_SLOT_COUNT;
        step(WIDTH, index + 1, 1);
        ck_assert_uint_eq(result.drafted[0], 0);
        ck_assert_uint_eq(result.draft_ignored, 1);
    }
    const int32_t tokens[] = {VOCABULARY, -1, -2, INT32_MAX};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        propose(index, STRIDE, STRIDE);
        draft_ring_view(ring, index).candidates[1] = tokens[i];
        index = (index + 1) % DRAFT_RING_SLOT_COUNT;
        step(WIDTH, index + 1, 1);
        ck_assert_uint_eq(result.drafted[0], 0);
        ck_assert_uint_eq(result.draft_ignored, 1);
    }
    propose(index, STRIDE, STRIDE);
    draft_ring_answer(ring, index, driver.step, EPOCH - 1);
    index = (index + 1) % DRAFT_RING_SLOT_COUNT;
    step(WIDTH, index + 1, 1);
    ck_assert_uint_eq(result.draft_ignored, 1);
    propose(index, STRIDE, STRIDE);
    draft_ring_answer(ring, index, driver.step + (UINT64_C(1) << 32), EPOCH);
    index = (index + 1) % DRAFT_RING_SLOT_COUNT;
    step(WIDTH, index + 1, 1);
    ck_assert_uint_eq(result.draft_ignored, 1);
    propose(index, STRIDE, STRIDE);
    step(WIDTH, 0, WIDTH); /* and one that is fit still counts */
}
END_TEST

/* Silence costs a wait once, then nothing, until it is there again; nobody admitted costs none. */
START_TEST(a_silent_drafter_is_waited_for_once)
{
    step(WIDTH, 2, 1);
    step(WIDTH, 3, 1);
    step(WIDTH, 4, 1);
    ck_assert_uint_eq(result.drafted[0], 0);
    propose(3, STRIDE, STRIDE);
    step(WIDTH, 1, WIDTH);
    propose(0, STRIDE, STRIDE);
    run_executor_draft_admit(driver.executor, 0);
    step(WIDTH, 2, 1);
    run_executor_draft_admit(driver.executor, EPOCH + 1);
    step(WIDTH, 3, 1);
    ck_assert_int_eq(draft_ring_wait_round(ring, 2, driver.step, EPOCH, 0), STATUS_ERR_CANCELLED);
    draft_ring_view_t view = draft_ring_view(ring, 2);
    view.counts[0] = STRIDE;
    memcpy(view.candidates, answer->tokens + known, STRIDE * sizeof *view.candidates);
    draft_ring_answer(ring, 2, driver.step, EPOCH + 1);
    step(WIDTH, 4, WIDTH);
}
END_TEST

/* Candidates belong to a request, not to its slot. */
START_TEST(another_request_in_the_slot_gets_none_of_them)
{
    propose(0, STRIDE, STRIDE);
    uint32_t length = answer->prompt_length;
    driver_setup(&driver, SLOT, answer->tokens, length, &answer->sampling);
    driver.draft_slot = 0;
    driver.width = WIDTH;
    (void)driver_prefill(&driver, SLOT, answer->tokens, length, 256);
    known = length + 1;
    step(WIDTH, 0, 1);
    ck_assert_uint_eq(result.drafted[0], 0);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.draft_half");
    TCase *tests = tcase_create("half");
    tcase_add_checked_fixture(tests, open_all, close_all);
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, a_round_tells_what_came);
    tcase_add_test(tests, candidates_count_for_what_they_are);
    tcase_add_test(tests, a_narrow_step_compares);
    tcase_add_test(tests, what_is_not_fit_is_ignored_with_a_counter);
    tcase_add_test(tests, a_silent_drafter_is_waited_for_once);
    tcase_add_test(tests, another_request_in_the_slot_gets_none_of_them);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
