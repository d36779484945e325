/* The executor's core and a drafter: who is accepted, who is refused and with which words, what is
 * asked of it, and that nothing waits for it. */
#include <stdio.h>
#include <string.h>

#include "executor_fixture.h"

enum { WIDTH = 4, PROMPT = 6, DRAFTER = FIXTURE_DRAFTER };

static fixture_t fixture;
static plan_t plan;

static void
open_with_ring(const char *ring, uint32_t width)
{
    fixture_open(&fixture, 1, 1);
    actor_executor_core_destroy(&fixture.core);
    actor_outbox_destroy(&fixture.outbox);
    const actor_executor_core_options_t limits = {.slot_count_max = FIXTURE_SLOTS,
                                                  .model_len_max = FIXTURE_LEN_MAX,
                                                  .step_tokens_max = FIXTURE_STEP_MAX,
                                                  .draft_ring = ring,
                                                  .draft_ring_id = 44};
    ck_assert_int_eq(actor_executor_core_new(&limits, &fixture.core), STATUS_OK);
    fixture.ops = actor_executor_core_ops(fixture.core);
    ck_assert_int_eq(actor_outbox_new(fixture.ops, &fixture.outbox), STATUS_OK);
    fixture.info.fingerprint = proto_text("arch=x;model=abc;kv=f16");
    fixture.info.decode_width = width;
    fixture.info.hidden_size = 64;
}

static void
open_drafting(void)
{
    open_with_ring("/run/ring", WIDTH);
}

static void
close_drafting(void)
{
    fixture_close(&fixture);
}

static void
drafter_up(uint64_t epoch)
{
    proto_body_t body = {.peer_up = {.peer = DRAFTER,
                                     .role = PROTO_ROLE_DRAFTER,
                                     .name = proto_text("drafter"),
                                     .epoch = epoch}};
    fixture_local(&fixture, PROTO_KIND_PEER_UP, &body);
}

static void
drafter_down(void)
{
    proto_body_t body = {.peer_down = {.peer = DRAFTER, .role = PROTO_ROLE_DRAFTER, .epoch = 5}};
    fixture_local(&fixture, PROTO_KIND_PEER_DOWN, &body);
}

static void
says(const proto_drafter_info_t *info)
{
    proto_body_t body = {.drafter_info = *info};
    fixture_feed(&fixture, (actor_peer_t){DRAFTER}, PROTO_KIND_DRAFTER_INFO, 0, &body);
}

static const proto_drafter_info_t any = {.width_max = 16};

static void
start(void)
{
    fixture_ready(&fixture);
    fixture_peer_up(&fixture, 7);
    drafter_up(5);
    says(&any);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFTER_ACCEPT), 1);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFT_OPEN), 1);
    ck_assert_uint_eq(fixture_find(&fixture, PROTO_KIND_DRAFT_OPEN, 0)->draft_open.epoch, 5);
}

/* A drafter that is there before the model is answered when that is loaded. */
START_TEST(it_is_accepted_when_the_model_is_there)
{
    drafter_up(5);
    says(&any);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFTER_ACCEPT), 0);
    fixture_ready(&fixture);
    const proto_drafter_accept_t *accept =
        &fixture_find(&fixture, PROTO_KIND_DRAFTER_ACCEPT, 0)->drafter_accept;
    ck_assert_uint_eq(accept->ring_id, 44);
    ck_assert_uint_eq(accept->width, WIDTH);
    ck_assert_uint_eq(accept->slot_count, FIXTURE_SLOTS);
    ck_assert_mem_eq(accept->ring.data, "/run/ring", accept->ring.size_bytes);
}
END_TEST

static const struct {
    proto_drafter_info_t info;
    const char *target;
    const char *expected;
    const char *got;
} misfits[] = {
    {{.width_max = 16}, "abd", "abc", "abd"},
    {{.width_max = 16}, "abcd", "abc", "abcd"},
    {{.width_max = 16, .vocab_size = FIXTURE_VOCAB + 1}, "", "1000", "1001"},
    {{.width_max = 16, .hidden_size = 65}, "abc", "64", "65"},
    {{.width_max = 3}, "", "4", "3"},
    {{.width_max = 16, .parent_count_max = 2}, "", NULL, "2"},
};

/* Another target, vocabulary, hidden size, width or cache: refused, with both values. */
START_TEST(a_drafter_that_does_not_fit_is_refused_with_both_values)
{
    fixture_ready(&fixture);
    drafter_up(5);
    proto_drafter_info_t info = misfits[_i].info;
    info.target = proto_text(misfits[_i].target);
    says(&info);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFTER_ACCEPT), 0);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFT_OPEN), 0);
    const proto_drafter_refuse_t *refuse =
        &fixture_find(&fixture, PROTO_KIND_DRAFTER_REFUSE, 0)->drafter_refuse;
    char text[64];
    (void)snprintf(text, sizeof text, "%.*s", (int)refuse->got.size_bytes, refuse->got.data);
    ck_assert_str_eq(text, misfits[_i].got);
    (void)snprintf(text, sizeof text, "%.*s", (int)refuse->expected.size_bytes,
                   refuse->expected.data);
    if (misfits[_i].expected != NULL) {
        ck_assert_str_eq(text, misfits[_i].expected);
    }
    ck_assert_str_ne(text, "");
    ck_assert_int_eq(refuse->status, STATUS_ERR_CONFIG);
}
END_TEST

/* What fits in every value is accepted, the target's name included. */
START_TEST(a_drafter_that_fits_is_accepted)
{
    fixture_ready(&fixture);
    drafter_up(5);
    const proto_drafter_info_t info = {.target = proto_text("abc"),
                                       .vocab_size = FIXTURE_VOCAB,
                                       .hidden_size = 64,
                                       .width_max = WIDTH,
                                       .parent_count_max = FIXTURE_PARENTS};
    says(&info);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFTER_ACCEPT), 1);
}
END_TEST

START_TEST(without_room_for_candidates_it_is_refused)
{
    fixture_close(&fixture);
    open_with_ring(_i == 0 ? NULL : "/run/ring", _i == 0 ? WIDTH : 1);
    fixture_ready(&fixture);
    drafter_up(5);
    says(&any);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFTER_REFUSE), 1);
}
END_TEST

static void
begin(uint64_t step)
{
    plan_begin(&plan, step, step - 1);
    plan.plan.width = WIDTH;
}

static uint32_t
launched_slot(void)
{
    return fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch.draft_slot;
}

/* The first plan: the prompt of request 11 in slot 1. */
static void
start_request(void)
{
    fixture_admit(&fixture, 1, 11, PROMPT, 30);
    plan_begin(&plan, 1, 0);
    plan.plan.width = WIDTH;
    plan_patch(&plan, 1, 0, 0, 8, 1);
    plan_extend(&plan, 1, 0, PROMPT, true);
    plan_accept(&plan, &fixture);
}

static void
step_done(uint64_t step, uint8_t count)
{
    static const int32_t tokens[] = {5, 6, 7, 8};
    fixture_done(&fixture, step, 1, &count, tokens, NULL);
}

static void
proposed(void)
{
    proto_body_t body = {.draft_proposed = {.step = 1, .slot = 0}};
    fixture_feed(&fixture, (actor_peer_t){DRAFTER}, PROTO_KIND_DRAFT_PROPOSED, 0, &body);
}

/* Each launch asks for a round; when four are out nobody is asked, and launches go on. */
START_TEST(a_silent_drafter_is_asked_four_times_and_never_waited_for)
{
    start();
    start_request();
    ck_assert_uint_eq(launched_slot(), 1);
    const proto_body_t *asked = fixture_find(&fixture, PROTO_KIND_DRAFT_PROPOSE, 0);
    ck_assert_uint_eq(asked->draft_propose.step, 1);
    ck_assert_uint_eq(asked->draft_propose.slot, 0);
    step_done(1, 1);
    for (uint64_t step = 2; step <= 7; step++) {
        begin(step);
        plan_decode(&plan, 1);
        plan_accept(&plan, &fixture);
        ck_assert_uint_eq(launched_slot(), step <= 4 ? step : 0);
        ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DRAFT_PROPOSE), step <= 4 ? 1 : 0);
        step_done(step, 1);
    }
    proposed();
    begin(8);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    ck_assert_uint_eq(launched_slot(), 1);
    step_done(8, 1);
}
END_TEST

/* It is lost: the device hears at once, launches ask nobody, and the next one starts afresh. */
START_TEST(a_lost_drafter_is_told_to_the_device)
{
    start();
    start_request();
    step_done(1, 1);
    drafter_down();
    ck_assert_uint_eq(fixture_find(&fixture, PROTO_KIND_DRAFT_OPEN, 0)->draft_open.epoch, 0);
    begin(2);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    ck_assert_uint_eq(launched_slot(), 0);
    step_done(2, 1);
    proposed(); /* of the one that left: of a stranger now */
    drafter_up(6);
    says(&any);
    ck_assert_uint_eq(fixture_find(&fixture, PROTO_KIND_DRAFT_OPEN, 0)->draft_open.epoch, 6);
    begin(3);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    ck_assert_uint_ne(launched_slot(), 0);
    step_done(3, 1);
}
END_TEST

/* The width is the plan's to choose, step by step. */
START_TEST(narrow_and_wide_plans_follow_each_other)
{
    start();
    start_request();
    step_done(1, 1);
    begin(2);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    begin(3);
    plan.plan.width = 1;
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    ck_assert_uint_eq(fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch.width, 1);
    step_done(2, 3);
    step_done(3, 1);
    begin(4);
    plan.plan.width = 2;
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_WIDTH, 0);
}
END_TEST

/* Saved with a drafter and a round out, it goes on as before. */
START_TEST(its_bytes_hold_the_drafter)
{
    static uint8_t room[2][1 << 20];
    start();
    start_request();
    proto_pack_t state = {room[0], sizeof room[0], 0};
    proto_pack_t secret = {room[1], sizeof room[1], 0};
    fixture.ops->save(fixture.core, &state, &secret);
    ck_assert(proto_pack_is_complete(&state) && proto_pack_is_complete(&secret));
    uint64_t digest = fixture.ops->digest(fixture.core);
    actor_executor_core_t *again = NULL;
    proto_error_t error;
    ck_assert_int_eq(actor_executor_core_restore((proto_bytes_t){room[0], state.size_bytes},
                                                 (proto_bytes_t){room[1], secret.size_bytes},
                                                 &again, &error),
                     STATUS_OK);
    actor_executor_core_destroy(&fixture.core);
    fixture.core = again;
    fixture.ops = actor_executor_core_ops(again);
    ck_assert_uint_eq(fixture.ops->digest(fixture.core), digest);
    step_done(1, 1);
    begin(2);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    ck_assert_uint_eq(launched_slot(), 2);
    step_done(2, 1);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.executor_draft");
    TCase *tests = tcase_create("draft");
    tcase_add_checked_fixture(tests, open_drafting, close_drafting);
    tcase_add_test(tests, it_is_accepted_when_the_model_is_there);
    tcase_add_loop_test(tests, a_drafter_that_does_not_fit_is_refused_with_both_values, 0,
                        (int)(sizeof misfits / sizeof misfits[0]));
    tcase_add_test(tests, a_drafter_that_fits_is_accepted);
    tcase_add_loop_test(tests, without_room_for_candidates_it_is_refused, 0, 2);
    tcase_add_test(tests, a_silent_drafter_is_asked_four_times_and_never_waited_for);
    tcase_add_test(tests, a_lost_drafter_is_told_to_the_device);
    tcase_add_test(tests, narrow_and_wide_plans_follow_each_other);
    tcase_add_test(tests, its_bytes_hold_the_drafter);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
