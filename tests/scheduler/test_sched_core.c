/* The planning core, one behaviour a test.  Blocks are of 4 tokens, pools of 8 to 16 blocks. */
#include <stdlib.h>
#include <string.h>

#include "core_fixture.h"

/* ---- a whole life ---------------------------------------------------------------------------- */

START_TEST(a_request_is_prefilled_decoded_and_ended_by_length)
{
    start();
    sched_fake_request_t *request = submit(10, 5);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 5);
}
END_TEST

/* Prompts around the size of a block, where off-by-one faults live. */
START_TEST(every_short_prompt_and_answer_works)
{
    options.overlap_depth_max = (uint32_t)_i & 1;
    executor.overlap_depth_max = 1;
    start();
    for (uint32_t prompt = 1; prompt <= 9; prompt++) {
        for (uint32_t generation = 1; generation <= 9; generation++) {
            sched_fake_request_t *request = submit(prompt, generation);
            sched_world_run(&world);
            sched_world_expect(&world, request, PROTO_FINISH_LENGTH, generation);
        }
    }
    finish();
}
END_TEST

START_TEST(a_stop_token_ends_a_request_and_counts)
{
    start();
    sched_fake_request_t *request = sched_world_request(&world, 6, 20, 0, 0);
    request->stop_at = 3;
    ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_STOP, 3);
}
END_TEST

/* With overlap the step after the stop token runs already: its token is dropped. */
START_TEST(overlap_drops_what_comes_after_the_stop_token)
{
    options.overlap_depth_max = 1;
    executor.overlap_depth_max = 1;
    start();
    sched_fake_request_t *request = sched_world_request(&world, 6, 20, 0, 0);
    request->stop_at = 3;
    ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_STOP, 3);
    ck_assert_uint_eq(request->received, 3);
    ck_assert_uint_ge(sched_world_figures(&world).zombie_rows, 1);
}
END_TEST

START_TEST(overlap_keeps_two_plans_in_flight)
{
    options.overlap_depth_max = 1;
    executor.overlap_depth_max = 1;
    start();
    submit(6, 8);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_plan.decode_slots.count, 1);
    ck_assert(!sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    ck_assert(sched_world_plan(&world));
    finish();
}
END_TEST

START_TEST(without_overlap_a_result_comes_before_the_next_plan)
{
    start();
    submit(6, 8);
    ck_assert(sched_world_plan(&world));
    ck_assert(!sched_world_plan(&world));
    finish();
}
END_TEST

/* A NaN means that nothing the request wrote may be read again: not found, and cleared. */
START_TEST(a_nan_ends_the_request_and_its_pages)
{
    start();
    sched_fake_request_t *bad = sched_world_request(&world, 12, 8, 1, 12);
    bad->nan_at = 2;
    ck_assert_int_eq(sched_world_submit(&world, bad, 0, NULL), STATUS_OK);
    sched_world_run(&world);
    ck_assert_int_eq(bad->end.reason, PROTO_FINISH_ERROR);
    ck_assert_str_eq(bad->end.code, "nan_logits");
    ck_assert_uint_eq(sched_world_figures(&world).cached_count, 0);
    sched_fake_request_t *next = sched_world_request(&world, 12, 8, 1, 12);
    ck_assert_int_eq(sched_world_submit(&world, next, 0, NULL), STATUS_OK);
    finish();
    sched_world_expect(&world, next, PROTO_FINISH_LENGTH, 8);
    ck_assert_uint_eq(next->end.cached_count, 0);
}
END_TEST

/* ---- batches --------------------------------------------------------------------------------- */

START_TEST(a_long_prompt_runs_in_chunks_beside_decoding_rows)
{
    executor.step_tokens_max = 16;
    executor.parent_count = 65;
    start();
    sched_fake_request_t *first = submit(4, 30);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    sched_fake_request_t *second = submit(100, 4);
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_plan.extend_slots.count, 1);
    ck_assert_uint_eq(world.last_plan.decode_slots.count, 1);
    finish();
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 30);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 4);
}
END_TEST

START_TEST(separate_batches_never_mix)
{
    options.separate_batches = true;
    executor.step_tokens_max = 16;
    executor.parent_count = 65;
    start();
    submit(4, 30);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    submit(100, 4);
    while (sched_world_figures(&world).running_count + sched_world_figures(&world).waiting_count >
           0) {
        (void)sched_world_plan(&world);
        ck_assert(world.last_plan.extend_slots.count == 0 ||
                  world.last_plan.decode_slots.count == 0);
        (void)sched_world_result(&world);
    }
    finish();
}
END_TEST

/* One incomplete prefill in a batch: the second prompt waits for what the first leaves. */
START_TEST(at_most_one_prefill_of_a_batch_is_incomplete)
{
    executor.step_tokens_max = 16;
    executor.parent_count = 65;
    start();
    submit(40, 2);
    submit(40, 2);
    submit(40, 2);
    while (sched_world_plan(&world)) {
        ck_assert_uint_le(world.last_plan.extend_slots.count, 2);
        ck_assert(sched_world_result(&world));
    }
    finish();
}
END_TEST

START_TEST(all_rows_get_turns_when_a_step_is_too_small)
{
    executor.step_tokens_max = 3;
    start();
    sched_fake_request_t *requests[4];
    for (int i = 0; i < 4; i++) {
        requests[i] = submit(2, 12);
    }
    for (int i = 0; i < 12; i++) {
        ck_assert(sched_world_plan(&world));
        ck_assert(sched_world_result(&world));
    }
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_ge(requests[i]->received, 3);
    }
    finish();
}
END_TEST

/* ---- prefix cache ---------------------------------------------------------------------------- */

START_TEST(a_second_prompt_finds_the_first_ones_pages)
{
    start();
    sched_fake_request_t *first = sched_world_request(&world, 14, 4, 1, 12);
    ck_assert_int_eq(sched_world_submit(&world, first, 0, NULL), STATUS_OK);
    sched_world_run(&world);
    sched_fake_request_t *second = sched_world_request(&world, 14, 4, 1, 12);
    ck_assert_int_eq(sched_world_submit(&world, second, 0, NULL), STATUS_OK);
    finish();
    ck_assert_uint_eq(first->end.cached_count, 0);
    ck_assert_uint_eq(second->end.cached_count, 12);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 4);
}
END_TEST

/* Something must be computed, or there would be no logits to sample from. */
START_TEST(a_hit_never_covers_the_whole_prompt)
{
    start();
    sched_fake_request_t *first = sched_world_request(&world, 12, 4, 1, 12);
    ck_assert_int_eq(sched_world_submit(&world, first, 0, NULL), STATUS_OK);
    sched_world_run(&world);
    sched_fake_request_t *second = sched_world_request(&world, 12, 4, 1, 12);
    ck_assert_int_eq(sched_world_submit(&world, second, 0, NULL), STATUS_OK);
    finish();
    ck_assert_uint_eq(second->end.cached_count, 8);
}
END_TEST

/* The next turn of a conversation finds the pages of the answer too. */
START_TEST(pages_of_an_answer_are_found)
{
    start();
    sched_fake_request_t *first = sched_world_request(&world, 6, 12, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, first, 0, NULL), STATUS_OK);
    sched_world_run(&world);
    sched_fake_request_t *second = sched_world_request(&world, 20, 4, 0, 0);
    memcpy(second->tokens, first->tokens, 18 * sizeof *second->tokens);
    static const uint8_t key[PROTO_HASH_SIZE_BYTES];
    for (uint32_t p = 0; p < 5; p++) {
        proto_page_hash(key, p == 0 ? NULL : second->hashes + (p - 1) * PROTO_HASH_SIZE_BYTES,
                        (proto_bytes_t){0}, second->tokens + p * 4, 4,
                        second->hashes + p * PROTO_HASH_SIZE_BYTES);
    }
    ck_assert_int_eq(sched_world_submit(&world, second, 0, NULL), STATUS_OK);
    finish();
    ck_assert_uint_eq(second->end.cached_count, 16);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 4);
}
END_TEST

/* Two equal prompts at the same time compute the same pages; one copy stays. */
START_TEST(duplicate_pages_are_swapped_for_the_canonical_one)
{
    executor.step_tokens_max = 8;
    start();
    for (int i = 0; i < 3; i++) {
        sched_fake_request_t *request = sched_world_request(&world, 16, 8, 1, 16);
        ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
    }
    sched_world_run(&world);
    for (int i = 0; i < 3; i++) {
        sched_world_expect(&world, &world.requests[i], PROTO_FINISH_LENGTH, 8);
    }
    finish();
}
END_TEST

START_TEST(equal_prompts_in_one_batch_end_with_one_copy)
{
    start();
    for (int i = 0; i < 3; i++) {
        sched_fake_request_t *request = sched_world_request(&world, 16, 8, 1, 16);
        ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
    }
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_plan.extend_slots.count, 3);
    ck_assert(sched_world_result(&world));
    ck_assert_uint_eq(sched_world_figures(&world).swapped_blocks, 8);
    finish();
    for (int i = 0; i < 3; i++) {
        sched_world_expect(&world, &world.requests[i], PROTO_FINISH_LENGTH, 8);
    }
}
END_TEST

/* Old pages give way to new work, and what was evicted is computed again. */
START_TEST(cached_pages_are_evicted_for_new_work)
{
    executor.parent_count = 9;
    start();
    for (uint32_t family = 1; family <= 4; family++) {
        sched_fake_request_t *request = sched_world_request(&world, 20, 4, family, 20);
        ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
        sched_world_run(&world);
        sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 4);
    }
    ck_assert_uint_gt(sched_world_figures(&world).evicted_blocks, 0);
    finish();
}
END_TEST

START_TEST(without_the_cache_nothing_is_found)
{
    options.no_prefix_cache = true;
    start();
    for (int i = 0; i < 2; i++) {
        sched_fake_request_t *request = sched_world_request(&world, 14, 4, 1, 12);
        ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
        sched_world_run(&world);
        ck_assert_uint_eq(request->end.cached_count, 0);
    }
    ck_assert_uint_eq(sched_world_figures(&world).cached_count, 0);
    finish();
}
END_TEST

/* ---- admission and retraction ---------------------------------------------------------------- */

/* Refused at submit with the numbers, not after a wait that cannot end. */
START_TEST(a_request_that_never_fits_is_refused_with_the_numbers)
{
    executor.parent_count = 9;
    start();
    sched_refusal_t refusal;
    sched_fake_request_t *request = sched_world_request(&world, 30, 4, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, request, 0, &refusal), STATUS_ERR_NEVER_FITS);
    ck_assert_str_eq(refusal.code, "never_fits");
    ck_assert_str_eq(refusal.what, "blocks");
    ck_assert_uint_eq(refusal.needed, 9);
    ck_assert_uint_eq(refusal.limit, 8);
    request = sched_world_request(&world, 250, 7, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, request, 0, &refusal), STATUS_ERR_NEVER_FITS);
    ck_assert_str_eq(refusal.what, "tokens");
    ck_assert_uint_eq(refusal.needed, 257);
    ck_assert_uint_eq(refusal.limit, 256);
    /* Its last token is never written, so this one fits to the last block. */
    request = submit(30, 3);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 3);
}
END_TEST

/* The largest prompt that MODEL_INFO promises is really served. */
START_TEST(the_longest_prompt_is_served)
{
    executor.parent_count = 9;
    start();
    uint32_t longest = sched_world_figures(&world).prompt_length_max;
    ck_assert_uint_eq(longest, 32);
    sched_fake_request_t *request = submit(longest, 1);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 1);
}
END_TEST

START_TEST(a_retracted_request_resumes_with_the_same_tokens)
{
    executor.parent_count = 11;
    start();
    sched_fake_request_t *first = submit(12, 26);
    sched_fake_request_t *second = submit(8, 20);
    finish();
    sched_world_expect(&world, first, PROTO_FINISH_LENGTH, 26);
    sched_world_expect(&world, second, PROTO_FINISH_LENGTH, 20);
    ck_assert_uint_ge(sched_world_figures(&world).retractions, 1);
}
END_TEST

/* The victim is the one with the least work done, so little is computed twice. */
START_TEST(the_victim_is_the_request_with_the_least_work_done)
{
    executor.parent_count = 13;
    start();
    sched_fake_request_t *longest = submit(28, 18);
    sched_fake_request_t *shortest = submit(4, 30);
    finish();
    sched_figures_t figures = sched_world_figures(&world);
    ck_assert_uint_ge(figures.retractions, 1);
    ck_assert_uint_lt(figures.recomputed_tokens, 28);
    sched_world_expect(&world, longest, PROTO_FINISH_LENGTH, 18);
    sched_world_expect(&world, shortest, PROTO_FINISH_LENGTH, 30);
}
END_TEST

static bool
prefer_oldest(void *context, const sched_victim_t *a, const sched_victim_t *b)
{
    uint32_t *count = context;
    (*count)++;
    ck_assert_uint_gt(a->block_count, 0);
    return a->arrival < b->arrival;
}

START_TEST(the_choice_of_the_victim_can_be_replaced)
{
    uint32_t count = 0;
    executor.parent_count = 13;
    options.victim = prefer_oldest;
    options.victim_context = &count;
    start();
    sched_fake_request_t *longest = submit(28, 18);
    submit(4, 30);
    bool lost = false;
    while (!lost && sched_world_plan(&world)) {
        lost = why(longest).state == SCHED_STATE_RETRACTED;
        ck_assert(sched_world_result(&world));
    }
    ck_assert(lost);
    ck_assert_uint_ge(count, 1);
    finish();
}
END_TEST

/* Retracted requests keep their slot and go first; new ones wait behind them. */
START_TEST(retracted_requests_hold_back_new_ones)
{
    executor.parent_count = 11;
    start();
    submit(12, 26);
    sched_fake_request_t *victim = submit(8, 20);
    while (why(victim).state != SCHED_STATE_RETRACTED) {
        (void)sched_world_plan(&world);
        ck_assert(sched_world_result(&world));
    }
    ck_assert_int_eq(why(victim).resource, SCHED_WAIT_BLOCKS);
    ck_assert_uint_eq(why(victim).holder, 1);
    sched_fake_request_t *late = submit(1, 1);
    ck_assert(sched_world_plan(&world));
    ck_assert_int_eq(why(late).state, SCHED_STATE_SUBMITTED);
    ck_assert_int_eq(why(late).resource, SCHED_WAIT_RETRACTED);
    ck_assert_uint_eq(why(late).holder, victim->id);
    finish();
    sched_world_expect(&world, late, PROTO_FINISH_LENGTH, 1);
}
END_TEST

/* The reporter's numbers: the head needs 100 blocks, two others 5 and 10, 20 are free. */
START_TEST(a_blocked_head_is_passed_by_what_fits)
{
    executor.parent_count = 121;
    executor.model_len_max = 512;
    executor.step_tokens_max = 512;
    start();
    sched_fake_request_t *holder = submit(388, 16);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    sched_fake_request_t *head = submit(400, 1);
    sched_fake_request_t *low = submit(20, 1);
    sched_fake_request_t *wide = submit(40, 1);
    ck_assert(sched_world_plan(&world));
    ck_assert_uint_eq(world.last_plan.extend_slots.count, 2);
    sched_why_t head_why = why(head);
    ck_assert_int_eq(head_why.resource, SCHED_WAIT_BLOCKS);
    ck_assert_uint_eq(head_why.holder, holder->id);
    ck_assert_uint_ge(head_why.needed, 100);
    finish();
    sched_world_expect(&world, head, PROTO_FINISH_LENGTH, 1);
    sched_world_expect(&world, low, PROTO_FINISH_LENGTH, 1);
    sched_world_expect(&world, wide, PROTO_FINISH_LENGTH, 1);
}
END_TEST

/* Passed often enough, the head holds the queue until it fits. */
START_TEST(a_blocked_head_is_not_passed_for_ever)
{
    executor.parent_count = 33;
    options.skip_count_max = 3;
    start();
    submit(60, 40);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    sched_fake_request_t *head = submit(100, 4);
    uint32_t passed = 0;
    for (int i = 0; i < 10; i++) {
        sched_fake_request_t *small = submit(2, 1);
        ck_assert(sched_world_plan(&world));
        ck_assert(sched_world_result(&world));
        passed += small->end_count;
    }
    ck_assert_uint_eq(passed, 3);
    sched_fake_request_t *last = &world.requests[world.request_count - 1];
    ck_assert_int_eq(why(last).state, SCHED_STATE_SUBMITTED);
    finish();
    sched_world_expect(&world, head, PROTO_FINISH_LENGTH, 4);
}
END_TEST

/* A walk shows every open request once, with the words of sched_core_why(), and no ended one. */
START_TEST(a_walk_shows_each_open_request_once)
{
    executor.slot_count = 1;
    start();
    sched_fake_request_t *requests[3] = {submit(4, 2), submit(5, 3), submit(6, 4)};
    ck_assert(sched_world_plan(&world));
    uint64_t digest = sched_core_digest(world.core);
    for (uint32_t ended = 0; ended < 2; ended++) {
        uint32_t seen[3] = {0};
        uint64_t at = 0;
        sched_seen_t one;
        while (sched_core_look(world.core, world.now_ns, &at, &one)) {
            for (uint32_t i = 0; i < 3; i++) {
                if (requests[i]->id != one.request) {
                    continue;
                }
                sched_why_t expected = why(requests[i]);
                ck_assert_int_eq(one.why.resource, expected.resource);
                ck_assert_uint_eq(one.why.holder, expected.holder);
                ck_assert((one.slot != 0) == (one.why.state != SCHED_STATE_SUBMITTED));
                ck_assert((one.block_count > 0) == (one.slot != 0));
                seen[i]++;
            }
        }
        ck_assert_uint_eq(seen[0], 1 - ended);
        ck_assert_uint_eq(seen[1], 1);
        ck_assert_uint_eq(seen[2], 1);
        ck_assert(ended == 1 || sched_core_digest(world.core) == digest);
        while (requests[0]->end_count == 0) {
            (void)sched_world_plan(&world);
            (void)sched_world_result(&world);
        }
    }
    finish();
}
END_TEST

START_TEST(lower_priority_numbers_go_first)
{
    executor.slot_count = 1;
    start();
    sched_fake_request_t *running = submit(4, 4);
    ck_assert(sched_world_plan(&world));
    sched_fake_request_t *usual = sched_world_request(&world, 4, 2, 0, 0);
    sched_fake_request_t *urgent = sched_world_request(&world, 4, 2, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, usual, 0, NULL), STATUS_OK);
    ck_assert_int_eq(sched_world_submit(&world, urgent, -1, NULL), STATUS_OK);
    ck_assert_int_eq(why(urgent).resource, SCHED_WAIT_SLOT);
    ck_assert_uint_eq(why(urgent).holder, running->id);
    while (urgent->end_count == 0) {
        (void)sched_world_plan(&world);
        (void)sched_world_result(&world);
    }
    ck_assert_uint_eq(usual->received, 0);
    finish();
    sched_world_expect(&world, usual, PROTO_FINISH_LENGTH, 2);
}
END_TEST

START_TEST(a_full_queue_refuses_and_says_when_to_come_again)
{
    options.queue_len_max = 3;
    start();
    for (int i = 0; i < 3; i++) {
        submit(4, 2);
    }
    sched_refusal_t refusal;
    sched_fake_request_t *request = sched_world_request(&world, 4, 2, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, request, 0, &refusal), STATUS_ERR_OVERLOADED);
    ck_assert_str_eq(refusal.code, "overloaded");
    ck_assert_uint_gt(refusal.retry_after_ms, 0);
    ck_assert(sched_world_plan(&world));
    ck_assert_int_eq(sched_world_submit(&world, request, 0, &refusal), STATUS_OK);
    finish();
}
END_TEST

START_TEST(a_wait_in_the_queue_has_an_end)
{
    executor.slot_count = 1;
    options.queue_timeout_ns = 1000 * 1000;
    start();
    submit(4, 20);
    ck_assert(sched_world_plan(&world));
    sched_fake_request_t *late = submit(4, 2);
    sched_world_time(&world, 999 * 1000);
    ck_assert_uint_eq(late->end_count, 0);
    ck_assert_uint_eq(sched_core_deadline_ns(world.core), world.now_ns + 1000);
    sched_world_time(&world, 1000);
    ck_assert_int_eq(late->end.reason, PROTO_FINISH_REFUSED);
    ck_assert_int_eq(late->end.status, STATUS_ERR_DEADLINE);
    ck_assert_str_eq(late->end.code, "queue_timeout");
    finish();
}
END_TEST

/* ---- aborts ---------------------------------------------------------------------------------- */

/* At every step, with a plan in flight or without: one answer, all blocks back, and the next
 * request runs as if nothing had been. */
START_TEST(an_abort_at_any_step_gives_everything_back)
{
    options.overlap_depth_max = 1;
    executor.overlap_depth_max = 1;
    executor.step_tokens_max = 8;
    start();
    for (int step = 0; step < 14; step++) {
        for (int with_result = 0; with_result < 2; with_result++) {
            sched_fake_request_t *request = submit(20, 10);
            for (int i = 0; i < step; i++) {
                (void)sched_world_plan(&world);
                (void)sched_world_result(&world);
            }
            if (with_result == 0) {
                (void)sched_world_plan(&world);
            }
            sched_world_finish(&world, request, request->received, PROTO_FINISH_CANCELLED);
            sched_world_run(&world);
            ck_assert_uint_eq(request->end_count, 1);
            sched_world_expect_idle(&world);
            sched_fake_request_t *next = submit(7, 3);
            sched_world_run(&world);
            sched_world_expect(&world, next, PROTO_FINISH_LENGTH, 3);
        }
    }
    finish();
}
END_TEST

START_TEST(an_abort_of_an_ended_or_unknown_request_is_harmless)
{
    start();
    sched_fake_request_t *request = submit(4, 2);
    sched_world_run(&world);
    sched_world_finish(&world, request, 0, PROTO_FINISH_CANCELLED);
    sched_fake_request_t *never = sched_world_request(&world, 4, 2, 0, 0);
    sched_world_finish(&world, never, 0, PROTO_FINISH_CANCELLED);
    ck_assert_uint_eq(request->end_count, 1);
    ck_assert_uint_eq(never->end_count, 0);
    ck_assert_uint_eq(sched_world_figures(&world).late_events, 2);
    finish();
}
END_TEST

START_TEST(a_duplicate_submit_is_ignored_while_it_runs_and_after)
{
    start();
    sched_fake_request_t *request = submit(4, 2);
    sched_refusal_t refusal;
    ck_assert_int_eq(sched_world_submit(&world, request, 0, &refusal), STATUS_ERR_STALE);
    sched_world_run(&world);
    ck_assert_int_eq(sched_world_submit(&world, request, 0, &refusal), STATUS_ERR_STALE);
    finish();
    sched_world_expect(&world, request, PROTO_FINISH_LENGTH, 2);
}
END_TEST

START_TEST(tokens_past_the_index_of_a_finish_do_not_count)
{
    start();
    sched_fake_request_t *request = submit(4, 20);
    for (int i = 0; i < 8; i++) {
        ck_assert(sched_world_plan(&world));
        ck_assert(sched_world_result(&world));
    }
    sched_world_finish(&world, request, 5, PROTO_FINISH_STOP);
    ck_assert_int_eq(request->end.reason, PROTO_FINISH_STOP);
    ck_assert_uint_eq(request->end.generated_count, 5);
    finish();
}
END_TEST

/* Sixteen long prompts are cancelled; a short one then starts at once. */
START_TEST(cancelled_prompts_do_not_hold_back_the_next_one)
{
    executor.step_tokens_max = 8;
    executor.parent_count = 65;
    start();
    for (int i = 0; i < 16; i++) {
        submit(200, 4);
    }
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    for (int i = 0; i < 16; i++) {
        sched_world_finish(&world, &world.requests[i], 0, PROTO_FINISH_CANCELLED);
    }
    sched_fake_request_t *next = submit(4, 1);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    ck_assert_uint_eq(next->received, 1);
    finish();
}
END_TEST

START_TEST(an_owner_that_leaves_takes_its_requests_along)
{
    start();
    sched_fake_request_t *running = submit(4, 20);
    ck_assert(sched_world_plan(&world));
    sched_fake_request_t *waiting = submit(4, 20);
    sched_event_t event = {.kind = SCHED_EVENT_OWNER_GONE, .owner = WORLD_OWNER};
    ck_assert_int_eq(sched_core_advance(world.core, world.now_ns, &event, NULL), STATUS_OK);
    finish();
    ck_assert_int_eq(running->end.reason, PROTO_FINISH_CANCELLED);
    ck_assert_int_eq(waiting->end.reason, PROTO_FINISH_CANCELLED);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("scheduler.core");
    TCase *life = add_case(suite, "life");
    tcase_add_test(life, a_request_is_prefilled_decoded_and_ended_by_length);
    tcase_add_loop_test(life, every_short_prompt_and_answer_works, 0, 2);
    tcase_add_test(life, a_stop_token_ends_a_request_and_counts);
    tcase_add_test(life, overlap_drops_what_comes_after_the_stop_token);
    tcase_add_test(life, overlap_keeps_two_plans_in_flight);
    tcase_add_test(life, without_overlap_a_result_comes_before_the_next_plan);
    tcase_add_test(life, a_nan_ends_the_request_and_its_pages);
    TCase *batch = add_case(suite, "batch");
    tcase_add_test(batch, a_long_prompt_runs_in_chunks_beside_decoding_rows);
    tcase_add_test(batch, separate_batches_never_mix);
    tcase_add_test(batch, at_most_one_prefill_of_a_batch_is_incomplete);
    tcase_add_test(batch, all_rows_get_turns_when_a_step_is_too_small);
    TCase *prefix = add_case(suite, "prefix");
    tcase_add_test(prefix, a_second_prompt_finds_the_first_ones_pages);
    tcase_add_test(prefix, a_hit_never_covers_the_whole_prompt);
    tcase_add_test(prefix, pages_of_an_answer_are_found);
    tcase_add_test(prefix, duplicate_pages_are_swapped_for_the_canonical_one);
    tcase_add_test(prefix, equal_prompts_in_one_batch_end_with_one_copy);
    tcase_add_test(prefix, cached_pages_are_evicted_for_new_work);
    tcase_add_test(prefix, without_the_cache_nothing_is_found);
    TCase *admission = add_case(suite, "admission");
    tcase_add_test(admission, a_request_that_never_fits_is_refused_with_the_numbers);
    tcase_add_test(admission, the_longest_prompt_is_served);
    tcase_add_test(admission, a_retracted_request_resumes_with_the_same_tokens);
    tcase_add_test(admission, the_victim_is_the_request_with_the_least_work_done);
    tcase_add_test(admission, the_choice_of_the_victim_can_be_replaced);
    tcase_add_test(admission, retracted_requests_hold_back_new_ones);
    tcase_add_test(admission, a_blocked_head_is_passed_by_what_fits);
    tcase_add_test(admission, a_blocked_head_is_not_passed_for_ever);
    tcase_add_test(admission, a_walk_shows_each_open_request_once);
    tcase_add_test(admission, lower_priority_numbers_go_first);
    tcase_add_test(admission, a_full_queue_refuses_and_says_when_to_come_again);
    tcase_add_test(admission, a_wait_in_the_queue_has_an_end);
    TCase *aborts = add_case(suite, "abort");
    tcase_add_test(aborts, an_abort_at_any_step_gives_everything_back);
    tcase_add_test(aborts, an_abort_of_an_ended_or_unknown_request_is_harmless);
    tcase_add_test(aborts, a_duplicate_submit_is_ignored_while_it_runs_and_after);
    tcase_add_test(aborts, tokens_past_the_index_of_a_finish_do_not_count);
    tcase_add_test(aborts, cancelled_prompts_do_not_hold_back_the_next_one);
    tcase_add_test(aborts, an_owner_that_leaves_takes_its_requests_along);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
