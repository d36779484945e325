/* Prefill on one node, decode on another: right tokens, one end for each request, and every block
 * back on both sides, whatever dies, is lost, said twice or cancelled. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "pd_world.h"

/* A sanitizer makes a world in a tenth of a second: there, fewer moments. */
enum { COARSE = SEED_COUNT < 100 ? 10 : 1 };

static void
expect_all(const pd_world_t *world, bool complete)
{
    for (uint32_t i = 0; i < world->request_count; i++) {
        const pd_request_t *request = &world->requests[i];
        ck_assert_msg(request->end_count == 1, "request %u has %u ends", i, request->end_count);
        ck_assert_msg(pd_world_is_right(world, i), "request %u has wrong tokens", i);
        ck_assert_msg(!complete || request->is_complete, "request %u ended with %s", i,
                      request->code);
        ck_assert(!request->is_complete || request->received == request->generation_max);
    }
}

/* Lengths around a block, prefixes that the decode node has already, more than a step. */
START_TEST(a_prompt_is_computed_elsewhere)
{
    static const uint32_t lengths[] = {1, 3, 4, 5, 15, 16, 17, 33, 40, 16, 5};
    pd_config_t config = {.shape = (uint32_t)_i, .no_local_prefill = true};
    pd_world_t *world = pd_world_new(7, &config);
    ck_assert(pd_world_settle(world, 1000 * PD_MS));
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        (void)pd_world_ask(world, lengths[i], 2 + i, 3);
        ck_assert_msg(pd_world_settle(world, 3000 * PD_MS), "length %u", lengths[i]);
    }
    expect_all(world, true);
    ck_assert_uint_eq(actor_decode_role_core_local_count(world->actors[PD_ROLE].core), 0);
    ck_assert_uint_eq(actor_decode_role_core_failed_count(world->actors[PD_ROLE].core), 0);
    /* A decode node computes no prompt. */
    ck_assert_uint_eq(pd_world_figures(world, 0).prompt_tokens, 0);
    ck_assert_uint_gt(pd_world_figures(world, 1).prompt_tokens, 0);
    ck_assert_uint_gt(pd_world_figures(world, 2).prompt_tokens, 0);
    pd_world_destroy(&world);
}
END_TEST

/* Many at once, more than there are slots. */
START_TEST(many_at_once)
{
    pd_config_t config = {.shape = (uint32_t)_i, .no_local_prefill = true, .copy_max_us = 3000};
    pd_world_t *world = pd_world_new(8, &config);
    ck_assert(pd_world_settle(world, 1000 * PD_MS));
    for (uint32_t i = 0; i < 40; i++) {
        (void)pd_world_ask(world, 1 + i % 37, 2 + i % 13, i % 5);
    }
    ck_assert(pd_world_settle(world, 20000 * PD_MS));
    expect_all(world, true);
    /* What was retracted there is computed there again. */
    sched_figures_t figures = pd_world_figures(world, 0);
    ck_assert(figures.retractions > 0 || figures.prompt_tokens == 0);
    ck_assert(figures.retractions == 0 || _i > 0); /* the pool of one group holds all of them */
    pd_world_destroy(&world);
}
END_TEST

/* Each actor dies in the middle of everything: nothing is lost, nothing is left behind. */
START_TEST(each_actor_dies)
{
    for (uint32_t victim = 0; victim < PD_GATEWAY; victim++) {
        for (uint32_t after_ms = 1; after_ms < 30; after_ms += 4 * COARSE) {
            pd_config_t config = {.shape = (uint32_t)_i, .copy_max_us = 2000};
            pd_world_t *world = pd_world_new(victim * 100 + after_ms, &config);
            ck_assert(pd_world_settle(world, 1000 * PD_MS));
            for (uint32_t i = 0; i < 10; i++) {
                (void)pd_world_ask(world, 5 + 3 * i, 8, i % 3);
            }
            uint64_t until_ns = world->now_ns + after_ms * PD_MS;
            while (world->now_ns < until_ns) {
                ck_assert(pd_world_advance(world));
            }
            pd_world_kill(world, victim, 50 * PD_MS);
            ck_assert_msg(pd_world_settle(world, 20000 * PD_MS), "victim %u after %u ms", victim,
                          after_ms);
            expect_all(world, true);
            uint32_t next = pd_world_ask(world, 20, 6, 1);
            ck_assert(pd_world_settle(world, 3000 * PD_MS));
            ck_assert(world->requests[next].is_complete && pd_world_is_right(world, next));
            pd_world_destroy(&world);
        }
    }
}
END_TEST

/* Cancelled at each moment of its way. */
START_TEST(cancel_at_any_moment)
{
    for (uint32_t after_us = 50; after_us < 15000; after_us += 150 * COARSE) {
        pd_config_t config = {.shape = (uint32_t)_i, .no_local_prefill = true, .copy_max_us = 2000};
        pd_world_t *world = pd_world_new(after_us, &config);
        ck_assert(pd_world_settle(world, 1000 * PD_MS));
        uint32_t victim = pd_world_ask(world, 30, 9, 1);
        uint32_t other = pd_world_ask(world, 21, 9, 2);
        uint64_t until_ns = world->now_ns + after_us * UINT64_C(1000);
        while (world->now_ns < until_ns) {
            ck_assert(pd_world_advance(world));
        }
        pd_world_cancel(world, victim);
        uint32_t next = pd_world_ask(world, 30, 9, 1);
        ck_assert_msg(pd_world_settle(world, 7000 * PD_MS), "after %u us", after_us);
        expect_all(world, false);
        ck_assert(world->requests[other].is_complete && world->requests[next].is_complete);
        pd_world_destroy(&world);
    }
}
END_TEST

/* Who waits for blocks waits by priority; longer than it said, it is refused, and nothing is left
 * of its reservation. */
START_TEST(a_wait_for_blocks_ends)
{
    pd_config_t config = {.no_local_prefill = true,
                          .parent_count = 16,
                          .queue_timeout_ns = _i == 0 ? 0 : 2 * PD_MS};
    pd_world_t *world = pd_world_new(9, &config);
    ck_assert(pd_world_settle(world, 1000 * PD_MS));
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t at = pd_world_ask(world, 30, 20, i);
        world->requests[at].priority = i < 11 ? 5 : -5; /* lower goes first */
    }
    ck_assert(pd_world_settle(world, 20000 * PD_MS));
    expect_all(world, _i == 0);
    for (uint32_t i = 4; _i == 0 && i < 11; i++) {
        ck_assert_uint_lt(world->requests[11].end_ns, world->requests[i].end_ns);
    }
    ck_assert_int_eq(world->queue_timeouts > 0, _i != 0);
    ck_assert_uint_eq(actor_decode_role_core_transfer_count(world->actors[PD_ROLE].core), 0);
    uint32_t next = pd_world_ask(world, 20, 6, 1);
    ck_assert(pd_world_settle(world, 3000 * PD_MS));
    ck_assert(world->requests[next].is_complete);
    pd_world_destroy(&world);
}
END_TEST

/* Without a prefill node the decode node computes prompts itself, if it may. */
START_TEST(policy_without_a_prefill_node)
{
    pd_config_t config = {.no_local_prefill = _i == 1};
    pd_world_t *world = pd_world_new(5, &config);
    ck_assert(pd_world_settle(world, 1000 * PD_MS));
    ck_assert(world->has_model);
    pd_world_kill(world, 1 * PD_MEMBERS + PD_ROLE, 2000 * PD_MS);
    pd_world_kill(world, 2 * PD_MEMBERS + PD_ROLE, 2000 * PD_MS);
    uint64_t until_ns = world->now_ns + 20 * PD_MS;
    while (world->now_ns < until_ns && pd_world_advance(world)) {
    }
    ck_assert(world->has_model == (_i == 0)); /* readiness tells the truth */
    (void)pd_world_ask(world, 20, 6, 1);
    ck_assert(pd_world_settle(world, 5000 * PD_MS));
    expect_all(world, true);
    ck_assert_uint_eq(actor_decode_role_core_local_count(world->actors[PD_ROLE].core),
                      _i == 0 ? 1 : 0);
    pd_world_destroy(&world);
}
END_TEST

/* Everything at once, from seeds: first faults, then none, and then all must end. */
START_TEST(seeds)
{
    const char *given = getenv("ONEPATH_SEED");
    uint64_t first = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000;
    uint32_t count = given != NULL ? 1 : SEED_COUNT;
    uint32_t deaths = 0;
    uint32_t complete = 0;
    for (uint64_t seed = first; seed < first + count; seed++) {
        printf("seed %" PRIu64 "\n", seed);
        (void)fflush(stdout);
        pd_config_t config = {.shape = (uint32_t)(seed % 3),
                              .fault_permille = 3,
                              .cancel_permille = 3,
                              .drop_permille = 30,
                              .double_permille = 50,
                              .no_local_prefill = seed % 2 == 0,
                              .copy_max_us = 3000};
        pd_world_t *world = pd_world_new(seed, &config);
        for (uint32_t i = 0; i < 30; i++) {
            (void)pd_world_ask(world, 1 + (uint32_t)(seed * 7 + i * 11) % 40, 2 + i % 11, i % 4);
        }
        uint64_t until_ns = world->now_ns + 800 * PD_MS;
        while (world->now_ns < until_ns && pd_world_advance(world)) {
        }
        world->is_quiet_bus = true;
        ck_assert_msg(pd_world_settle(world, 40000 * PD_MS), "seed %" PRIu64 ": not settled", seed);
        expect_all(world, false);
        deaths += world->deaths;
        for (uint32_t i = 0; i < world->request_count; i++) {
            complete += world->requests[i].is_complete ? 1 : 0;
        }
        pd_world_destroy(&world);
    }
    printf("%u deaths, %u whole answers\n", deaths, complete);
    ck_assert(given != NULL || (deaths > count && complete > 20 * count));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.roles");
    TCase *plain = tcase_create("plain");
    tcase_set_timeout(plain, 100);
    tcase_add_loop_test(plain, a_prompt_is_computed_elsewhere, 0, 3);
    tcase_add_loop_test(plain, many_at_once, 0, 3);
    tcase_add_loop_test(plain, each_actor_dies, 0, 3);
    tcase_add_loop_test(plain, cancel_at_any_moment, 0, 3);
    tcase_add_loop_test(plain, a_wait_for_blocks_ends, 0, 2);
    tcase_add_loop_test(plain, policy_without_a_prefill_node, 0, 2);
    tcase_add_test(plain, seeds);
    suite_add_tcase(suite, plain);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
