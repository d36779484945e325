/* A scheduler that is wrong in every way it can be: each wrong is refused by the rule that names
 * it, and the requests that run notice nothing.  A second executor, which is spared the wrong, is
 * the measure: from then on both must say the same bytes.  And when it goes on being wrong, the
 * supervisor hears of it. */
#include <string.h>

#include "executor_fixture.h"

enum { FIRST = 1, SECOND = 2, EMPTY = 3, VOCAB = FIXTURE_VOCAB };
#define MINUS_ONE UINT32_MAX /* what a negative number is on the wire */

static fixture_t fixture;
static fixture_t spared;
static plan_t plan;

/* ---- wrongs ---------------------------------------------------------------------------------- */

static void
unknown_request(void)
{
    plan_decode(&plan, EMPTY);
}

static void
patch_of_an_unknown_request(void)
{
    plan_patch(&plan, EMPTY, 0, 0, 1, 40);
}

static void
request_that_this_plan_releases(void)
{
    plan_release(&plan, FIRST);
    plan_decode(&plan, FIRST);
}

/* Column 1 of the first request is written next; block 12 is the second one's. */
static void
block_of_another_request(void)
{
    plan_patch(&plan, FIRST, 0, 1, 1, 12);
    plan_decode(&plan, FIRST);
}

static void
one_block_for_two_requests(void)
{
    plan_patch(&plan, FIRST, 0, 2, 1, 30);
    plan_patch(&plan, SECOND, 0, 2, 1, 30);
    plan_clear(&plan, 0, 30);
}

static void
one_block_in_two_columns(void)
{
    plan_patch(&plan, FIRST, 0, 2, 1, 2); /* its column 1 */
    plan_decode(&plan, FIRST);
}

static void
one_request_in_two_rows(void)
{
    plan_decode(&plan, FIRST);
    plan_decode(&plan, FIRST);
}

static void
the_last_plan_again(void)
{
    plan.plan.step = 2;
    plan.plan.base_step = 0;
    plan_decode(&plan, FIRST);
}

static void
base_of_an_older_step(void)
{
    plan.plan.base_step = 1;
    plan_decode(&plan, FIRST);
}

static void
base_that_never_was(void)
{
    plan.plan.base_step = 77;
    plan_decode(&plan, FIRST);
}

static void
more_rows_than_slots(void)
{
    for (uint32_t i = 0; i <= FIXTURE_SLOTS; i++) {
        plan_decode(&plan, FIRST);
    }
}

static void
more_tokens_than_a_step(void)
{
    plan_extend(&plan, FIRST, 0, FIXTURE_STEP_MAX + 1, false);
}

static void
negative_length(void)
{
    plan_extend(&plan, FIRST, 0, MINUS_ONE, false);
}

static void
negative_begin(void)
{
    plan_extend(&plan, FIRST, MINUS_ONE, 1, false);
}

static void
no_length(void)
{
    plan_extend(&plan, FIRST, 0, 0, false);
}

static void
range_beyond_the_tokens(void)
{
    plan_extend(&plan, FIRST, 0, 20, false);
}

static void
negative_column(void)
{
    plan_patch(&plan, FIRST, 0, MINUS_ONE, 1, 40);
}

static void
negative_count(void)
{
    plan_patch(&plan, FIRST, 0, 0, 1, 40);
    plan.patch_counts[0] = MINUS_ONE;
}

static void
negative_block(void)
{
    plan_patch(&plan, FIRST, 0, 2, 1, MINUS_ONE);
}

static void
block_beyond_the_pool(void)
{
    plan_patch(&plan, FIRST, 0, 2, 1, FIXTURE_PARENTS);
}

static void
clear_beyond_the_pool(void)
{
    plan_clear(&plan, 0, MINUS_ONE);
}

static void
group_that_is_not_there(void)
{
    plan_patch(&plan, FIRST, 1, 0, 1, 1);
}

static void
negative_slot(void)
{
    plan_decode(&plan, MINUS_ONE);
}

static void
release_of_no_slot(void)
{
    plan_release(&plan, 0);
}

static void
hole_where_a_token_goes(void)
{
    plan_patch(&plan, FIRST, 0, 1, 1, 0);
    plan_decode(&plan, FIRST);
}

static void
another_width(void)
{
    plan.plan.width = 4;
    plan_decode(&plan, FIRST);
}

static void
no_width(void)
{
    plan.plan.width = 0;
}

static void
columns_of_two_lengths(void)
{
    plan_extend(&plan, FIRST, 0, 1, false);
    plan.plan.extend_samples.count = 0;
}

typedef struct {
    const char *name;
    void (*make)(void);
    proto_plan_rule_t rule;
    uint32_t slot; /* that the refusal names */
} wrong_t;

static const wrong_t wrongs[] = {
    {"unknown request", unknown_request, PROTO_RULE_SLOT_EMPTY, EMPTY},
    {"patch of an unknown request", patch_of_an_unknown_request, PROTO_RULE_SLOT_EMPTY, EMPTY},
    {"stale generation: released", request_that_this_plan_releases, PROTO_RULE_SLOT_EMPTY, FIRST},
    {"block of another request", block_of_another_request, PROTO_RULE_WRITE_SHARED, FIRST},
    {"double use: two requests", one_block_for_two_requests, PROTO_RULE_WRITE_SHARED, 0},
    {"double use: two columns", one_block_in_two_columns, PROTO_RULE_WRITE_SHARED, FIRST},
    {"double use: two rows", one_request_in_two_rows, PROTO_RULE_SLOT_TWICE, FIRST},
    {"answering twice", the_last_plan_again, PROTO_RULE_STALE, 0},
    {"stale generation: base", base_of_an_older_step, PROTO_RULE_STALE, 0},
    {"unknown base", base_that_never_was, PROTO_RULE_STALE, 0},
    {"batch above limits: rows", more_rows_than_slots, PROTO_RULE_BUDGET, 0},
    {"batch above limits: tokens", more_tokens_than_a_step, PROTO_RULE_BUDGET, 0},
    {"negative length", negative_length, PROTO_RULE_BUDGET, 0},
    {"negative begin", negative_begin, PROTO_RULE_TOKEN_RANGE, FIRST},
    {"no length", no_length, PROTO_RULE_TOKEN_RANGE, FIRST},
    {"range beyond the tokens", range_beyond_the_tokens, PROTO_RULE_TOKEN_RANGE, FIRST},
    {"negative column", negative_column, PROTO_RULE_COLUMN_RANGE, FIRST},
    {"negative count", negative_count, PROTO_RULE_SHAPE, 0},
    {"negative block", negative_block, PROTO_RULE_BLOCK_RANGE, FIRST},
    {"block beyond the pool", block_beyond_the_pool, PROTO_RULE_BLOCK_RANGE, FIRST},
    {"clear beyond the pool", clear_beyond_the_pool, PROTO_RULE_BLOCK_RANGE, 0},
    {"group that is not there", group_that_is_not_there, PROTO_RULE_GROUP_RANGE, FIRST},
    {"negative slot", negative_slot, PROTO_RULE_SLOT_RANGE, 0},
    {"release of no slot", release_of_no_slot, PROTO_RULE_SLOT_RANGE, 0},
    {"hole where a token goes", hole_where_a_token_goes, PROTO_RULE_COLUMN_MISSING, FIRST},
    {"another width", another_width, PROTO_RULE_WIDTH, 0},
    {"no width", no_width, PROTO_RULE_WIDTH, 0},
    {"columns of two lengths", columns_of_two_lengths, PROTO_RULE_SHAPE, 0},
};

/* ---- the running requests -------------------------------------------------------------------- */

static void
end_step(fixture_t *of, uint64_t step)
{
    static const uint8_t counts[2] = {1, 1};
    const int32_t tokens[2] = {(int32_t)(300 + step), (int32_t)(400 + step)};
    fixture_done(of, step, 2, counts, tokens, NULL);
    ck_assert_uint_eq(fixture_count(of, PROTO_KIND_STEP_RESULT), 1);
}

/* Two requests of 6 tokens that have decoded once: blocks 1, 2 and 11, 12. */
static void
start_two(fixture_t *of, uint32_t bad_plans_max)
{
    fixture_open_patient(of, 1, 1, bad_plans_max);
    fixture_ready(of);
    fixture_peer_up(of, of->epoch);
    fixture_admit(of, FIRST, 11, 6, 20);
    fixture_admit(of, SECOND, 12, 6, 20);
    plan_begin(&plan, 1, 0);
    plan_patch(&plan, FIRST, 0, 0, 2, 1);
    plan_patch(&plan, SECOND, 0, 0, 2, 11);
    plan_extend(&plan, FIRST, 0, 6, true);
    plan_extend(&plan, SECOND, 0, 6, true);
    plan_accept(&plan, of);
    end_step(of, 1);
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, FIRST);
    plan_decode(&plan, SECOND);
    plan_accept(&plan, of);
    end_step(of, 2);
}

/* Both executors say the same. */
static void
compare(void)
{
    uint32_t count = actor_outbox_count(fixture.outbox);
    ck_assert_uint_eq(count, actor_outbox_count(spared.outbox));
    for (uint32_t i = 0; i < count; i++) {
        const actor_emission_t *a = actor_outbox_at(fixture.outbox, i);
        const actor_emission_t *b = actor_outbox_at(spared.outbox, i);
        ck_assert_int_eq(a->kind, b->kind);
        ck_assert_uint_eq(a->body.size_bytes, b->body.size_bytes);
        ck_assert_uint_eq(a->blob.size_bytes, b->blob.size_bytes);
        ck_assert_int_eq(memcmp(a->body.data, b->body.data, a->body.size_bytes), 0);
        ck_assert(a->blob.size_bytes == 0 ||
                  memcmp(a->blob.data, b->blob.data, a->blob.size_bytes) == 0);
    }
    ck_assert_uint_eq(fixture_digest(&fixture), fixture_digest(&spared));
}

/* A full plan, then two that build on it; pages of the answers are completed on the way. */
static void
go_on_alike(void)
{
    for (uint64_t step = 5; step < 9; step++) {
        plan_begin(&plan, step, step == 5 ? 0 : step - 1);
        if (step == 5) {
            plan_patch(&plan, FIRST, 0, 0, 3, 1);
            plan_patch(&plan, SECOND, 0, 0, 3, 11);
        }
        plan_decode(&plan, FIRST);
        plan_decode(&plan, SECOND);
        plan_accept(&plan, &fixture);
        plan_accept(&plan, &spared);
        compare();
        end_step(&fixture, step);
        end_step(&spared, step);
        compare();
    }
}

START_TEST(a_wrong_plan_is_refused_and_harms_nobody)
{
    const wrong_t *wrong = &wrongs[_i];
    start_two(&fixture, UINT32_MAX);
    start_two(&spared, UINT32_MAX);
    plan_begin(&plan, 3, 2);
    wrong->make();
    plan_send(&plan, &fixture);
    ck_assert_msg(actor_outbox_count(fixture.outbox) == 1, "%s: nothing but a refusal",
                  wrong->name);
    const proto_plan_refused_t *refused =
        &fixture_find(&fixture, PROTO_KIND_PLAN_REFUSED, 0)->plan_refused;
    ck_assert_msg(refused->rule == (uint32_t)wrong->rule, "%s: rule %u (%.*s), expected %u",
                  wrong->name, refused->rule, (int)refused->detail.size_bytes, refused->detail.data,
                  (unsigned)wrong->rule);
    ck_assert_msg(refused->slot == wrong->slot, "%s: slot %u", wrong->name, refused->slot);
    ck_assert_uint_eq(refused->applied_step, 2);
    ck_assert_uint_gt(refused->detail.size_bytes, 0);
    go_on_alike();
    fixture_close(&fixture);
    fixture_close(&spared);
}
END_TEST

/* ---- ADMIT ----------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    uint32_t slot;
    uint64_t request;
    uint32_t prompt_length;
    uint32_t token_count;
    uint32_t length_max;
    int32_t token; /* the last one */
} admit_t;

static const admit_t admits[] = {
    {"token out of range", EMPTY, 13, 4, 4, 12, VOCAB},
    {"negative token", EMPTY, 13, 4, 4, 12, -1},
    {"slot that is taken", FIRST, 13, 4, 4, 12, 1},
    {"request again", SECOND, 12, 4, 4, 12, 1},
    {"slot beyond", FIXTURE_SLOTS + 1, 13, 4, 4, 12, 1},
    {"no slot", 0, 13, 4, 4, 12, 1},
    {"no request", EMPTY, 0, 4, 4, 12, 1},
    {"fewer tokens than it says", EMPTY, 13, 4, 3, 12, 1},
    {"no tokens", EMPTY, 13, 0, 0, 12, 1},
    {"length below the prompt", EMPTY, 13, 4, 4, 3, 1},
    {"length beyond the model", EMPTY, 13, 4, 4, FIXTURE_LEN_MAX + 1, 1},
};

START_TEST(a_wrong_admit_is_dropped_and_harms_nobody)
{
    const admit_t *admit = &admits[_i];
    start_two(&fixture, UINT32_MAX);
    start_two(&spared, UINT32_MAX);
    int32_t tokens[4] = {1, 2, 3, 4};
    if (admit->token_count > 0) {
        tokens[admit->token_count - 1] = admit->token;
    }
    uint8_t sampling[512];
    proto_body_t body = {.admit = {.slot = admit->slot,
                                   .prompt_length = admit->prompt_length,
                                   .length_max = admit->length_max,
                                   .tokens = {tokens, admit->token_count},
                                   .sampling = fixture_sampling(admit->prompt_length,
                                                                (proto_bytes_t){0}, sampling)}};
    fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER}, PROTO_KIND_ADMIT, admit->request, &body);
    ck_assert_msg(actor_outbox_count(fixture.outbox) == 1, "%s", admit->name);
    const proto_nak_t *nak = &fixture_find(&fixture, PROTO_KIND_NAK, 0)->nak;
    ck_assert_int_eq(nak->status, STATUS_ERR_INVALID);
    ck_assert_uint_gt(nak->detail.size_bytes, 0);
    go_on_alike();
    fixture_close(&fixture);
    fixture_close(&spared);
}
END_TEST

/* ---- the complaint --------------------------------------------------------------------------- */

static void
send_wrong(uint64_t step)
{
    plan_begin(&plan, step, 0);
    plan_decode(&plan, FIXTURE_SLOTS + 5);
    plan_send(&plan, &fixture);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_PLAN_REFUSED), 1);
}

static void
send_stale(void)
{
    plan_begin(&plan, 1, 0);
    plan_send(&plan, &fixture);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_PLAN_REFUSED), 1);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_COMPLAINT), 0);
}

static uint32_t
complaints(void)
{
    return fixture_count(&fixture, PROTO_KIND_COMPLAINT);
}

/* Being late is no offence; being wrong is, when it goes on.  It is told once. */
START_TEST(bad_plans_in_a_row_are_told_once)
{
    start_two(&fixture, 3);
    send_wrong(3);
    send_stale();
    send_wrong(4);
    ck_assert_uint_eq(complaints(), 0);
    send_stale();
    send_wrong(5);
    ck_assert_uint_eq(complaints(), 1);
    const proto_complaint_t *told = &fixture_find(&fixture, PROTO_KIND_COMPLAINT, 0)->complaint;
    ck_assert_uint_eq(told->role, PROTO_ROLE_SCHEDULER);
    ck_assert_uint_eq(told->reason, PROTO_COMPLAINT_BAD_PLANS);
    ck_assert_uint_eq(told->epoch, fixture.epoch);
    char detail[PROTO_TEXT_LEN_MAX + 1] = "";
    memcpy(detail, told->detail.data, told->detail.size_bytes);
    ck_assert_str_eq(detail, "3 bad plans in a row, the last: SLOT_RANGE, slot 9: slot 9, limit 4");
    for (uint64_t step = 6; step < 20; step++) {
        send_wrong(step);
        ck_assert_uint_eq(complaints(), 0);
    }
    fixture_close(&fixture);
}
END_TEST

START_TEST(a_good_plan_begins_the_count_anew)
{
    start_two(&fixture, 3);
    send_wrong(3);
    send_wrong(4);
    plan_begin(&plan, 5, 0);
    plan_patch(&plan, FIRST, 0, 0, 2, 1);
    plan_decode(&plan, FIRST);
    plan_accept(&plan, &fixture);
    send_wrong(6);
    send_wrong(7);
    ck_assert_uint_eq(complaints(), 0);
    send_wrong(8);
    ck_assert_uint_eq(complaints(), 1);
    fixture_close(&fixture);
}
END_TEST

START_TEST(another_scheduler_begins_with_a_clean_slate)
{
    start_two(&fixture, 2);
    send_wrong(3);
    fixture_peer_down(&fixture);
    fixture_peer_up(&fixture, ++fixture.epoch);
    fixture_ready(&fixture); /* its rows were dropped: the device is empty again */
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_EXECUTOR_INFO), 1);
    send_wrong(1);
    ck_assert_uint_eq(complaints(), 0);
    send_wrong(2);
    ck_assert_uint_eq(complaints(), 1);
    fixture_close(&fixture);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.executor_wrong");
    TCase *tcase = tcase_create("wrong");
    tcase_add_loop_test(tcase, a_wrong_plan_is_refused_and_harms_nobody, 0,
                        sizeof wrongs / sizeof wrongs[0]);
    tcase_add_loop_test(tcase, a_wrong_admit_is_dropped_and_harms_nobody, 0,
                        sizeof admits / sizeof admits[0]);
    tcase_add_test(tcase, bad_plans_in_a_row_are_told_once);
    tcase_add_test(tcase, a_good_plan_begins_the_count_anew);
    tcase_add_test(tcase, another_scheduler_begins_with_a_clean_slate);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
