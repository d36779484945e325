/* The executor's core with rows of several tokens: what it keeps, passes on, cuts and refuses. */
#include <string.h>

#include "executor_fixture.h"

enum { WIDTH = 4, PROMPT = 6, REQUEST = 11 };

static fixture_t fixture;
static plan_t plan;

static void
start_wide(uint32_t overlap)
{
    fixture_open(&fixture, 1, overlap);
    fixture.info.decode_width = WIDTH;
    fixture_ready(&fixture);
    fixture_peer_up(&fixture, 7);
}

static void
close_wide(void)
{
    fixture_close(&fixture);
}

static void
begin(uint64_t step)
{
    plan_begin(&plan, step, step - 1);
    plan.plan.width = WIDTH;
}

static void
decode(uint64_t step)
{
    begin(step);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}

static void
done(uint64_t step, uint8_t count, const int32_t *tokens)
{
    fixture_done(&fixture, step, 1, &count, tokens, NULL);
}

static const proto_step_result_t *
result(void)
{
    return &fixture_find(&fixture, PROTO_KIND_STEP_RESULT, 0)->step_result;
}

/* Slot 1 holds a request with its prompt in the cache and token 500 behind it. */
static void
start_request(uint32_t length_max)
{
    static const int32_t token = 500;
    fixture_admit(&fixture, 1, REQUEST, PROMPT, length_max);
    plan_begin(&plan, 1, 0);
    plan.plan.width = WIDTH;
    plan_patch(&plan, 1, 0, 0, 9, 1);
    plan_extend(&plan, 1, 0, PROMPT, true);
    plan_accept(&plan, &fixture);
    done(1, 1, &token);
}

/* What the core keeps of a request: the device computes it again from a retraction's first step. */
static void
check_kept(uint64_t step, const int32_t *answer, uint32_t count)
{
    begin(step);
    plan_extend(&plan, 1, 0, PROMPT + count, true);
    plan_accept(&plan, &fixture);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    ck_assert_uint_eq(launch->extend_tokens.count, PROMPT + count);
    for (uint32_t i = 0; i < PROMPT; i++) {
        ck_assert_int_eq(launch->extend_tokens.data[i], fixture_token(REQUEST, i));
    }
    ck_assert_mem_eq(launch->extend_tokens.data + PROMPT, answer, count * sizeof *answer);
}

static const int32_t tokens[] = {500, 501, 502, 503, 504, 505, 506, 507, 508, 509};

/* Any number from one to the width, two steps ahead: all are passed on and kept, and pages that
 * became complete are hashed, more than one in a step. */
START_TEST(accepted_tokens_are_kept_in_order)
{
    start_wide(1);
    start_request(FIXTURE_LEN_MAX);
    decode(2);
    decode(3);
    done(2, 3, tokens + 1);
    ck_assert_uint_eq(result()->token_counts.data[0], 3);
    ck_assert_mem_eq(result()->tokens.data, tokens + 1, 3 * sizeof *tokens);
    /* Ten tokens are known, nine of them in the cache: pages 0 and 1 are complete. */
    ck_assert_uint_eq(result()->hash_pages.count, 1);
    ck_assert_uint_eq(result()->hash_pages.data[0], 1);
    done(3, 4, tokens + 4);
    ck_assert_uint_eq(result()->tokens.count, 4);
    ck_assert_uint_eq(result()->hash_pages.count, 1);
    ck_assert_uint_eq(result()->hash_pages.data[0], 2);
    decode(4);
    done(4, 1, tokens + 8);
    check_kept(5, tokens, 9);
}
END_TEST

/* Rows launched ahead of a result may give fewer tokens than was planned for: the next plan counts
 * from what is known, not from what might have been. */
START_TEST(the_next_row_begins_behind_what_was_accepted)
{
    start_wide(1);
    start_request(FIXTURE_LEN_MAX);
    for (uint64_t step = 2; step < 10; step++) {
        decode(step);
        done(step, 1, tokens + step - 1);
    }
    check_kept(10, tokens, 9);
}
END_TEST

/* Overlap: a step that was launched before a request ended still gives tokens for it.  They are
 * passed on with their step and touch neither the request nor the one that has its slot now. */
START_TEST(tokens_of_a_request_that_ended_are_ignored)
{
    start_wide(1);
    start_request(FIXTURE_LEN_MAX);
    decode(2);
    done(2, 2, tokens + 1);
    decode(3);
    begin(4);
    plan_release(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_admit(&fixture, 1, REQUEST + 1, PROMPT, FIXTURE_LEN_MAX);
    done(3, 4, tokens + 3);
    ck_assert_uint_eq(result()->tokens.count, 4);
    ck_assert_uint_eq(result()->hash_pages.count, 0);
    uint8_t none = 0;
    fixture_done(&fixture, 4, 0, &none, NULL, NULL);
    begin(5);
    plan_patch(&plan, 1, 0, 0, 9, 1);
    plan_extend(&plan, 1, 0, PROMPT, true);
    plan_accept(&plan, &fixture);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    for (uint32_t i = 0; i < PROMPT; i++) {
        ck_assert_int_eq(launch->extend_tokens.data[i], fixture_token(REQUEST + 1, i));
    }
}
END_TEST

/* The last row of a request may accept more than its limit has room for: the rest is not kept. */
START_TEST(tokens_beyond_the_limit_are_not_kept)
{
    start_wide(0);
    start_request(PROMPT + 3);
    decode(2);
    done(2, 4, tokens + 1);
    ck_assert_uint_eq(result()->tokens.count, 4);
    begin(3);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_LENGTH_LIMIT, 1);
}
END_TEST

START_TEST(more_tokens_than_the_width_are_a_device_failure)
{
    start_wide(0);
    start_request(FIXTURE_LEN_MAX);
    decode(2);
    done(2, WIDTH + 1, tokens);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_STEP_RESULT), 0);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DEVICE_FAILED), 1);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.executor_wide");
    TCase *wide = tcase_create("wide");
    tcase_add_checked_fixture(wide, NULL, close_wide);
    tcase_add_test(wide, accepted_tokens_are_kept_in_order);
    tcase_add_test(wide, the_next_row_begins_behind_what_was_accepted);
    tcase_add_test(wide, tokens_of_a_request_that_ended_are_ignored);
    tcase_add_test(wide, tokens_beyond_the_limit_are_not_kept);
    tcase_add_test(wide, more_tokens_than_the_width_are_a_device_failure);
    suite_add_tcase(suite, wide);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
