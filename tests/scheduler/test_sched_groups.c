/* State groups: where a state lies, where prompts are cut, what is found again, what is given back.
 * The fake executor aborts when a row reads anything but the state after exactly its first token,
 * or may not write where it can end. */
#include <stdlib.h>
#include <string.h>

#include "core_fixture.h"

enum { FULL = 0, SLIDING = 1, STATE = 2, PAGE = 4 };

/* A full group and a state group with a block for `granularity` tokens; pages of 4 tokens. */
static void
use_states(uint32_t granularity)
{
    executor.group_count = 2;
    executor.kinds[1] = STATE;
    executor.granularities[1] = granularity;
    executor.packings[1] = 1;
    executor.parent_count = 129;
}

/* The same and a sliding group, as third. */
static void
use_three(uint32_t granularity, uint32_t width, uint32_t overlap)
{
    use_states(granularity);
    executor.group_count = 3;
    executor.kinds[2] = SLIDING;
    executor.granularities[2] = 2;
    executor.windows[2] = 6;
    executor.packings[2] = 2;
    executor.width = width;
    executor.overlap_depth_max = overlap;
    options.overlap_depth_max = overlap;
}

static sched_fake_request_t *
submit_shared(uint32_t prompt, uint32_t generation, uint32_t shared)
{
    sched_fake_request_t *request = sched_world_request(&world, prompt, generation, 1, shared);
    ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
    return request;
}

/* Blocks of the slot's table in the state group, as a row of '1' and '0'. */
static const char *
columns_of(uint32_t slot, uint32_t count)
{
    static char text[65];
    ck_assert_uint_lt(count, sizeof text);
    for (uint32_t c = 0; c < count; c++) {
        text[c] = sched_fake_block(world.fake, slot, 1, c) != 0 ? '1' : '0';
    }
    text[count] = '\0';
    return text;
}

/* ---- where a state lies ---------------------------------------------------------------------- */

/* The state after n tokens is in column (n - 1) / granularity: after a multiple it is the column
 * before, and the row that reads it writes the next one. */
START_TEST(a_state_after_whole_blocks_lies_in_the_column_before)
{
    use_states(2);
    options.no_prefix_cache = true;
    start();
    submit(8, 9);
    ck_assert(sched_world_plan(&world));          /* tokens 0 to 7: one chunk */
    ck_assert_str_eq(columns_of(1, 6), "000110"); /* its end, and the first decode row */
    ck_assert(sched_world_result(&world));
    ck_assert(sched_world_plan(&world)); /* token 8: reads column 3, writes column 4 */
    ck_assert_str_eq(columns_of(1, 6), "000110");
    ck_assert(sched_world_result(&world)); /* 9 tokens: column 3 is behind */
    ck_assert(sched_world_plan(&world));   /* token 9 */
    ck_assert_str_eq(columns_of(1, 6), "000010");
    ck_assert(sched_world_result(&world)); /* 10 tokens: the next row reads column 4 */
    ck_assert(sched_world_plan(&world));
    ck_assert_str_eq(columns_of(1, 6), "000011");
    finish();
}
END_TEST

/* Whatever the lengths, the fake finds the right state before each row. */
START_TEST(every_length_finds_its_state)
{
    for (uint32_t granularity = 1; granularity <= PAGE; granularity *= 2) {
        for (uint32_t prompt = 1; prompt <= 13; prompt++) {
            set_defaults();
            use_three(granularity, 1 + prompt % 3, prompt % 2);
            executor.step_tokens_max = 4 + prompt % 4;
            start();
            sched_fake_request_t *request = submit(prompt, 11);
            finish();
            sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 11);
            sched_world_fini(&world);
        }
    }
    set_defaults();
    start();
}
END_TEST

/* ---- where prompts are cut ------------------------------------------------------------------- */

/* Plans until the prompt is prefilled; checks where its chunks end. */
static uint32_t
expect_cuts(uint32_t total, uint32_t body)
{
    uint32_t chunks = 0;
    for (uint32_t end = 0; end < total; chunks++) {
        ck_assert(sched_world_plan(&world));
        ck_assert_uint_eq(world.last_plan.extend_slots.count, 1);
        ck_assert_uint_eq(world.last_begin, end);
        ck_assert_uint_gt(world.last_length, 0);
        ck_assert_uint_le(world.last_length, executor.step_tokens_max);
        end += world.last_length;
        ck_assert(end % PAGE == 0 || end == total);
        ck_assert(end <= body || end == total);
        ck_assert(sched_world_result(&world));
    }
    return chunks;
}

START_TEST(chunks_end_on_pages_and_the_last_page_has_its_own)
{
    use_states(2);
    executor.step_tokens_max = 11;
    start();
    submit(30, 2);
    ck_assert_uint_eq(expect_cuts(30, 28), 5); /* 8, 16, 24, 28, 30 */
    finish();
    submit(32, 2);
    ck_assert_uint_eq(expect_cuts(32, 28), 5); /* 28: an equal prompt finds that much */
    finish();
    submit(3, 2);
    ck_assert_uint_eq(expect_cuts(3, 3), 1);
    finish();
}
END_TEST

/* Nothing of it will ever be found again: no chunk of its own. */
START_TEST(without_the_cache_the_last_page_is_not_cut_off)
{
    use_states(2);
    options.no_prefix_cache = true;
    start();
    submit(30, 2);
    ck_assert_uint_eq(expect_cuts(30, 30), 1);
    finish();
}
END_TEST

START_TEST(the_tail_has_its_blocks_with_the_body)
{
    use_states(2);
    start();
    submit(11, 9);
    ck_assert(sched_world_plan(&world)); /* tokens 0 to 7 */
    ck_assert_uint_eq(world.last_length, 8);
    ck_assert_str_eq(columns_of(1, 8), "00010100"); /* 8 tokens; 11 tokens and the first row */
    ck_assert(sched_world_result(&world));
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_length, 3);
    ck_assert_str_eq(columns_of(1, 8), "00010100");
    finish();
}
END_TEST

/* Several short prompts share a step: that a body ends before its tail is not for want of room. */
START_TEST(bodies_of_several_prompts_share_a_step)
{
    use_states(4);
    start();
    for (uint32_t i = 0; i < 4; i++) {
        submit(9 + i, 2);
    }
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_plan.extend_slots.count, 4);
    finish();
}
END_TEST

/* A step that holds no page beside a decoding row serves them in turn. */
START_TEST(prompts_and_rows_take_turns_in_a_step_of_one_page)
{
    use_states(4);
    executor.step_tokens_max = PAGE;
    start();
    sched_fake_request_t *first = submit(4, 60);
    for (uint32_t i = 0; i < 12; i++) {
        ck_assert(sched_world_plan(&world));
        ck_assert(sched_world_result(&world));
    }
    ck_assert_uint_gt(first->received, 5);
    sched_fake_request_t *second = submit(40, 4);
    uint32_t before = first->received;
    for (uint32_t i = 0; i < 30 && second->received == 0; i++) {
        ck_assert(sched_world_plan(&world));
        ck_assert(sched_world_result(&world));
    }
    ck_assert_uint_gt(second->received, 0);
    ck_assert_uint_ge(first->received, before + 8);
    finish();
}
END_TEST

/* ---- what is found again --------------------------------------------------------------------- */

START_TEST(a_hit_needs_the_one_state_at_its_end)
{
    use_three(2, 1, 1);
    start();
    submit_shared(30, 2, 30);
    finish();
    sched_fake_request_t *equal = submit_shared(30, 2, 30);
    finish();
    ck_assert_uint_eq(equal->end.cached_count, 28);
    /* Its first 20 tokens are there in the full group, but no row ended behind them. */
    sched_fake_request_t *shorter = submit_shared(26, 2, 20);
    finish();
    ck_assert_uint_eq(shorter->end.cached_count, 0);
    sched_world_expect(&world, shorter, PROTO_FINISH_LENGTH, 2);
}
END_TEST

START_TEST(a_hit_never_covers_the_whole_prompt_with_states)
{
    use_states(2);
    start();
    submit_shared(16, 5, 16);
    finish();
    sched_fake_request_t *equal = submit_shared(16, 5, 16);
    finish();
    ck_assert_uint_eq(equal->end.cached_count, 12);
    sched_world_expect(&world, equal, PROTO_FINISH_LENGTH, 5);
}
END_TEST

/* Full groups match further than states do: the prefill stops there, so that the next one hits. */
START_TEST(a_further_match_of_the_full_group_makes_a_checkpoint)
{
    use_states(4);
    start();
    submit_shared(40, 2, 40);
    finish();
    submit_shared(37, 2, 20);
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_length, 20);
    finish();
    sched_fake_request_t *third = submit_shared(33, 2, 20);
    finish();
    ck_assert_uint_eq(third->end.cached_count, 20);
    sched_world_expect(&world, third, PROTO_FINISH_LENGTH, 2);
}
END_TEST

/* Rows of one token leave a state after each page of the answer. */
START_TEST(states_of_an_answer_are_found)
{
    use_states(2);
    start();
    sched_fake_request_t *first = submit_shared(10, 21, 10);
    finish();
    sched_fake_request_t *next = sched_world_request(&world, 30, 3, 1, 30);
    memcpy(next->tokens, first->tokens, 30 * sizeof first->tokens[0]);
    static const uint8_t key[PROTO_HASH_SIZE_BYTES];
    for (uint32_t p = 0; p < 30 / PAGE; p++) {
        proto_page_hash(key, p == 0 ? NULL : next->hashes + (p - 1) * PROTO_HASH_SIZE_BYTES,
                        (proto_bytes_t){0}, next->tokens + p * PAGE, PAGE,
                        next->hashes + p * PROTO_HASH_SIZE_BYTES);
    }
    ck_assert_int_eq(sched_world_submit(&world, next, 0, NULL), STATUS_OK);
    finish();
    ck_assert_uint_eq(next->end.cached_count, 28);
    sched_world_expect(&world, next, PROTO_FINISH_LENGTH, 3);
}
END_TEST

/* The last page behind which a row of the request ended: there, and only there, a state is. */
static uint32_t
last_checkpoint(const sched_fake_request_t *request, uint32_t width, uint32_t limit)
{
    uint32_t found = 0;
    uint32_t computed = request->prompt_length;
    found = (request->prompt_length - 1) / PAGE * PAGE;
    while (computed <= limit) {
        found = computed % PAGE == 0 ? computed : found;
        computed += sched_fake_accepted(request->tokens, computed + 1, width);
    }
    return found;
}

START_TEST(a_wide_row_that_goes_past_a_page_publishes_no_state)
{
    uint32_t passed = 0;
    for (uint32_t prompt = 5; prompt < 17; prompt++) {
        set_defaults();
        use_three(2, 4, prompt % 2);
        start();
        sched_fake_request_t *first = sched_world_request(&world, prompt, 40, prompt, prompt);
        ck_assert_int_eq(sched_world_submit(&world, first, 0, NULL), STATUS_OK);
        finish();
        uint32_t length = prompt + 32;
        sched_fake_request_t *next = sched_world_request(&world, length, 3, 0, 0);
        memcpy(next->tokens, first->tokens, length * sizeof first->tokens[0]);
        static const uint8_t key[PROTO_HASH_SIZE_BYTES];
        for (uint32_t p = 0; p < length / PAGE; p++) {
            proto_page_hash(key, p == 0 ? NULL : next->hashes + (p - 1) * PROTO_HASH_SIZE_BYTES,
                            (proto_bytes_t){0}, next->tokens + p * PAGE, PAGE,
                            next->hashes + p * PROTO_HASH_SIZE_BYTES);
        }
        uint32_t expected = last_checkpoint(first, 4, length - 1);
        passed += expected < (length - 1) / PAGE * PAGE ? 1 : 0;
        ck_assert_int_eq(sched_world_submit(&world, next, 0, NULL), STATUS_OK);
        finish();
        ck_assert_uint_eq(next->end.cached_count, expected);
        sched_world_expect(&world, next, PROTO_FINISH_LENGTH, 3);
        sched_world_fini(&world);
    }
    ck_assert_uint_gt(passed, 2);
    set_defaults();
    start();
}
END_TEST

/* Two that compute the same prompt at once end with one checkpoint: the table is swapped to it. */
START_TEST(equal_states_are_swapped_for_the_canonical_one)
{
    use_states(4);
    start();
    sched_fake_request_t *first = submit_shared(17, 6, 17);
    sched_fake_request_t *second = submit_shared(17, 6, 17);
    finish();
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 6);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 6);
    /* 16 tokens in both groups: 4 pages and 1 state; and the page of 20, which both reach. */
    ck_assert_uint_eq(sched_world_figures(&world).swapped_blocks, 4 + 1 + 2);
}
END_TEST

/* ---- what is given back ---------------------------------------------------------------------- */

/* Published states that are behind stay in the cache, the others are free. */
START_TEST(states_behind_the_window_are_cached_or_free)
{
    use_states(2);
    executor.kinds[0] = STATE; /* figures are those of group 0 */
    executor.granularities[0] = 2;
    executor.kinds[1] = FULL;
    executor.granularities[1] = 4;
    start();
    submit(10, 21);
    uint32_t most = 0;
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert(sched_world_plan(&world));
        ck_assert(sched_world_result(&world));
        sched_figures_t figures = sched_world_figures(&world);
        uint32_t held = figures.block_count - figures.free_count - figures.cached_count;
        most = held > most ? held : most;
    }
    ck_assert_uint_le(most, 4);
    finish();
    /* After 8 tokens, the body; after 12, 16, ... 28, one for each page of the answer. */
    ck_assert_uint_eq(sched_world_figures(&world).cached_count, 1 + 5);
}
END_TEST

START_TEST(a_retracted_request_resumes_from_its_states)
{
    use_three(2, 2, 1);
    executor.step_tokens_max = 16;
    executor.parent_count = 1 + 38;
    start();
    sched_fake_request_t *first = submit(20, 36);
    sched_fake_request_t *second = submit(21, 36);
    sched_fake_request_t *third = submit(22, 36);
    finish();
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 36);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 36);
    sched_world_expect(&world, third, PROTO_FINISH_LENGTH, 36);
    ck_assert_uint_gt(sched_world_figures(&world).retractions, 0);
}
END_TEST

/* What is resumed is longer than the pages whose hashes are known, and longer than a step: each of
 * its chunks needs a column for the state that it ends with. */
START_TEST(a_retracted_request_resumes_without_hashes_of_its_answer)
{
    for (uint32_t granularity = 1; granularity <= PAGE; granularity *= 2) {
        for (uint32_t overlap = 0; overlap <= 1; overlap++) {
            set_defaults();
            use_states(granularity);
            executor.step_tokens_max = 11;
            executor.overlap_depth_max = overlap;
            options.overlap_depth_max = overlap;
            executor.withhold_hashes = true;
            executor.parent_count = 1 + 34;
            start();
            sched_fake_request_t *requests[4];
            for (uint32_t i = 0; i < 4; i++) {
                requests[i] = submit(9 + i, 44);
            }
            finish();
            for (uint32_t i = 0; i < 4; i++) {
                sched_world_expect(&world, requests[i], PROTO_FINISH_LENGTH, 44);
            }
            ck_assert_uint_gt(sched_world_figures(&world).retractions, 0);
            ck_assert_uint_eq(sched_world_figures(&world).plans_refused, 0);
            sched_world_fini(&world);
        }
    }
    set_defaults();
    start();
}
END_TEST

/* Rows of ended requests are still in flight when their blocks go to others. */
START_TEST(overlap_with_ended_requests_harms_nobody)
{
    for (uint32_t width = 1; width <= 4; width++) {
        set_defaults();
        use_three(1, width, 1);
        executor.parent_count = 1 + 60;
        start();
        for (uint32_t i = 0; i < 12; i++) {
            sched_fake_request_t *request = sched_world_request(&world, 6 + i, 20, 1, 6);
            request->stop_at = 3 + i;
            ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
        }
        finish();
        for (uint32_t i = 0; i < 12; i++) {
            sched_world_expect(&world, &world.requests[i], PROTO_FINISH_STOP, 3 + i);
        }
        sched_world_fini(&world);
    }
    set_defaults();
    start();
}
END_TEST

/* How many tokens the row in flight gives is not known when the next one is planned: all columns
 * that it may begin or end in are there. */
START_TEST(a_wide_row_has_every_column_that_it_may_end_in)
{
    use_states(1);
    executor.width = 4;
    executor.overlap_depth_max = 1;
    options.overlap_depth_max = 1;
    options.no_prefix_cache = true;
    start();
    submit(5, 30);
    ck_assert(sched_world_plan(&world)); /* the prompt */
    ck_assert(sched_world_plan(&world)); /* tokens 5 to 8 */
    ck_assert_str_eq(columns_of(1, 14), "00001111111110");
    ck_assert(sched_world_result(&world));
    ck_assert(sched_world_plan(&world)); /* from 6 to 9 on, up to 13 tokens */
    ck_assert_str_eq(columns_of(1, 14), "00001111111110");
    finish();
}
END_TEST

/* The longest request: a wide row reaches beyond it, and the table does. */
START_TEST(a_wide_row_ends_with_the_longest_request)
{
    for (uint32_t generation = 1; generation <= 12; generation++) {
        set_defaults();
        use_three(1, 4, generation % 2);
        executor.model_len_max = 32;
        start();
        sched_fake_request_t *request = submit(32 - generation, generation);
        finish();
        sched_world_expect(&world, request, PROTO_FINISH_LENGTH, generation);
        sched_world_fini(&world);
    }
    set_defaults();
    start();
}
END_TEST

/* A parent that held states goes to another group: its bytes are no keys and values, and a kernel
 * may read a block whole. */
START_TEST(a_block_in_which_a_state_lay_is_cleared)
{
    use_states(4);
    executor.parent_count = 1 + 24;
    start();
    sched_fake_request_t *first = submit(20, 30);
    finish();
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 30);
    uint64_t before = sched_fake_clear_count(world.fake);
    sched_fake_request_t *second = submit(56, 20); /* needs parents of both groups */
    finish();
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 20);
    ck_assert_uint_gt(sched_fake_clear_count(world.fake), before);
}
END_TEST

/* ---- executors ------------------------------------------------------------------------------- */

START_TEST(a_step_that_holds_no_page_is_refused_with_the_numbers)
{
    use_states(4);
    executor.page_tokens = 16;
    executor.step_tokens_max = 12;
    sched_fake_t *fake = sched_fake_new(&executor);
    sched_core_t *core = NULL;
    proto_error_t error;
    ck_assert_int_eq(sched_core_new(&options, &core), STATUS_OK);
    ck_assert_int_eq(sched_core_attach(core, sched_fake_info(fake), &error), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.detail, "group 1"));
    ck_assert_ptr_nonnull(strstr(error.detail, "12 tokens"));
    ck_assert_ptr_nonnull(strstr(error.detail, "16"));
    sched_core_destroy(&core);
    sched_fake_destroy(&fake);
    set_defaults();
    start();
}
END_TEST

/* A model without attention has states only. */
START_TEST(a_state_group_can_be_the_only_one)
{
    executor.kinds[0] = STATE;
    executor.granularities[0] = 4;
    executor.parent_count = 33;
    start();
    sched_fake_request_t *first = submit_shared(30, 8, 30);
    finish();
    sched_fake_request_t *second = submit_shared(30, 8, 30);
    finish();
    ck_assert_uint_eq(second->end.cached_count, 28);
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 8);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 8);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("scheduler.groups");
    TCase *place = add_case(suite, "place");
    tcase_add_test(place, a_state_after_whole_blocks_lies_in_the_column_before);
    tcase_add_test(place, every_length_finds_its_state);
    TCase *cuts = add_case(suite, "cuts");
    tcase_add_test(cuts, chunks_end_on_pages_and_the_last_page_has_its_own);
    tcase_add_test(cuts, without_the_cache_the_last_page_is_not_cut_off);
    tcase_add_test(cuts, the_tail_has_its_blocks_with_the_body);
    tcase_add_test(cuts, bodies_of_several_prompts_share_a_step);
    tcase_add_test(cuts, prompts_and_rows_take_turns_in_a_step_of_one_page);
    TCase *prefix = add_case(suite, "prefix");
    tcase_add_test(prefix, a_hit_needs_the_one_state_at_its_end);
    tcase_add_test(prefix, a_hit_never_covers_the_whole_prompt_with_states);
    tcase_add_test(prefix, a_further_match_of_the_full_group_makes_a_checkpoint);
    tcase_add_test(prefix, states_of_an_answer_are_found);
    tcase_add_test(prefix, a_wide_row_that_goes_past_a_page_publishes_no_state);
    tcase_add_test(prefix, equal_states_are_swapped_for_the_canonical_one);
    TCase *back = add_case(suite, "back");
    tcase_add_test(back, states_behind_the_window_are_cached_or_free);
    tcase_add_test(back, a_retracted_request_resumes_from_its_states);
    tcase_add_test(back, a_retracted_request_resumes_without_hashes_of_its_answer);
    tcase_add_test(back, overlap_with_ended_requests_harms_nobody);
    tcase_add_test(back, a_wide_row_has_every_column_that_it_may_end_in);
    tcase_add_test(back, a_wide_row_ends_with_the_longest_request);
    tcase_add_test(back, a_block_in_which_a_state_lay_is_cleared);
    TCase *peer = add_case(suite, "executor");
    tcase_add_test(peer, a_step_that_holds_no_page_is_refused_with_the_numbers);
    tcase_add_test(peer, a_state_group_can_be_the_only_one);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
