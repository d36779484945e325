/* Each rule of proto_plan_rule_t from both sides of its limit; and that a refused plan leaves no
 * trace.  Rows are refused before the device hears of them: the outbox holds nothing else. */
#include "executor_fixture.h"

static fixture_t fixture;
static plan_t plan;

/* Slot 1: request 11 with 6 tokens of prompt, computed and sampled; 7 tokens known; blocks 1, 2. */
static void
start_one(uint32_t group_count, uint32_t overlap_depth)
{
    static const uint8_t counts[1] = {1};
    static const int32_t tokens[1] = {500};
    fixture_start(&fixture, group_count, overlap_depth);
    fixture_admit(&fixture, 1, 11, 6, 20);
    plan_begin(&plan, 1, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    if (group_count > 1) {
        plan_patch(&plan, 1, 1, 0, 2, 5); /* parents 3 and 3: blocks 5, 6 */
    }
    if (group_count > 2) {
        plan_patch(&plan, 1, 2, 0, 1, 9);
    }
    plan_extend(&plan, 1, 0, 6, true);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 1, 1, counts, tokens, NULL);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_STEP_RESULT), 1);
    plan_begin(&plan, 2, 1);
}

/* After the refusal of `plan`, whatever it was, the same decode works as a full plan. */
static void
check_recovers(void)
{
    plan_begin(&plan, 3, 1);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_STALE, 0);
    plan_begin(&plan, 4, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}

static void
refuse(proto_plan_rule_t rule, uint32_t slot)
{
    uint64_t before = 0;
    plan_t probe = plan;
    /* A refusal marks the core as awaiting a full plan; apart from that the digest is the same. */
    plan_begin(&probe, 2, 999);
    plan_refuse(&probe, &fixture, PROTO_RULE_STALE, 0);
    before = fixture_digest(&fixture);
    plan.plan.base_step = 0;
    plan_refuse(&plan, &fixture, rule, slot);
    ck_assert_uint_eq(fixture_digest(&fixture), before);
}

START_TEST(a_plan_builds_on_the_last_applied_step)
{
    start_one(1, 1);
    plan_begin(&plan, 2, 2);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_STALE, 0);
    check_recovers();
}
END_TEST

START_TEST(a_step_comes_after_the_last_one)
{
    start_one(1, 1);
    plan_begin(&plan, 1, 0);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_STALE, 0);
    const proto_plan_refused_t *refused =
        &fixture_find(&fixture, PROTO_KIND_PLAN_REFUSED, 0)->plan_refused;
    ck_assert_uint_eq(refused->applied_step, 1);
    check_recovers();
}
END_TEST

START_TEST(slots_of_rows_are_in_range)
{
    start_one(1, 0);
    plan_decode(&plan, FIXTURE_SLOTS + 1);
    refuse(PROTO_RULE_SLOT_RANGE, FIXTURE_SLOTS + 1);
    plan_begin(&plan, 2, 0);
    plan_decode(&plan, 0);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_RANGE, 0);
    plan_begin(&plan, 2, 0);
    plan_release(&plan, FIXTURE_SLOTS + 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_RANGE, FIXTURE_SLOTS + 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, FIXTURE_SLOTS + 1, 0, 0, 1, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_RANGE, FIXTURE_SLOTS + 1);
    /* The highest slot is one. */
    fixture_admit(&fixture, FIXTURE_SLOTS, 12, 3, 8);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, FIXTURE_SLOTS, 0, 0, 1, 24);
    plan_extend(&plan, FIXTURE_SLOTS, 0, 3, true);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(rows_and_patches_need_a_request)
{
    start_one(1, 0);
    plan_decode(&plan, 2);
    refuse(PROTO_RULE_SLOT_EMPTY, 2);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 2, 0, 0, 1, 9);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_EMPTY, 2);
    /* Released by the same plan. */
    plan_begin(&plan, 2, 0);
    plan_release(&plan, 1);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_EMPTY, 1);
    plan_begin(&plan, 2, 0);
    plan_release(&plan, 1);
    plan_patch(&plan, 1, 0, 0, 1, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_EMPTY, 1);
    check_recovers();
}
END_TEST

START_TEST(a_slot_is_in_one_row)
{
    start_one(1, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_decode(&plan, 1);
    plan_decode(&plan, 1);
    refuse(PROTO_RULE_SLOT_TWICE, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_extend(&plan, 1, 0, 7, true);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_TWICE, 1);
    check_recovers();
}
END_TEST

START_TEST(groups_are_in_range)
{
    start_one(1, 0);
    plan_patch(&plan, 1, 1, 0, 1, 1);
    refuse(PROTO_RULE_GROUP_RANGE, 1);
    plan_begin(&plan, 2, 0);
    plan_clear(&plan, 1, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_GROUP_RANGE, 0);
    check_recovers();
}
END_TEST

START_TEST(columns_are_in_range)
{
    enum { COLUMNS = FIXTURE_LEN_MAX / FIXTURE_PAGE };
    start_one(1, 0);
    plan_patch(&plan, 1, 0, COLUMNS, 1, 3);
    refuse(PROTO_RULE_COLUMN_RANGE, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, COLUMNS - 1, 2, 3);
    plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_RANGE, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, UINT32_MAX, 1, 3);
    plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_RANGE, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 0, COLUMNS - 1, 1, 3);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(blocks_are_in_range)
{
    start_one(2, 0);
    plan_patch(&plan, 1, 0, 2, 1, FIXTURE_PARENTS);
    refuse(PROTO_RULE_BLOCK_RANGE, 1);
    plan_begin(&plan, 2, 0);
    plan_clear(&plan, 0, FIXTURE_PARENTS);
    plan_refuse(&plan, &fixture, PROTO_RULE_BLOCK_RANGE, 0);
    plan_begin(&plan, 2, 0);
    plan_clear(&plan, 0, 0);
    plan_refuse(&plan, &fixture, PROTO_RULE_BLOCK_RANGE, 0);
    /* The sliding group has two blocks in a parent. */
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 1, 2, 1, 2 * (FIXTURE_PARENTS - 1) + 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_BLOCK_RANGE, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 0, 2, 1, FIXTURE_PARENTS - 1 - 1);
    plan_patch(&plan, 1, 1, 0, 2, 5);
    plan_patch(&plan, 1, 1, 2, 1, 2 * (FIXTURE_PARENTS - 1));
    plan_clear(&plan, 0, FIXTURE_PARENTS - 1 - 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(every_token_that_is_read_or_written_has_a_block)
{
    start_one(1, 0);
    /* Token 6 lies in column 1; drop it, then column 0, then put both back. */
    plan_patch(&plan, 1, 0, 0, 1, 1);
    plan_decode(&plan, 1);
    refuse(PROTO_RULE_COLUMN_MISSING, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 1, 1, 2);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_MISSING, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 0, 0, 1, 0);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_MISSING, 1);
    check_recovers();
}
END_TEST

START_TEST(the_next_column_is_missed_exactly_when_it_is_needed)
{
    static const uint8_t counts[1] = {1};
    static const int32_t tokens[1] = {501};
    start_one(1, 0);
    /* Seven tokens: decodes compute positions 6 and 7 in column 1, position 8 in column 2. */
    for (uint64_t step = 2; step < 4; step++) {
        plan_begin(&plan, step, step - 1);
        plan_decode(&plan, 1);
        plan_accept(&plan, &fixture);
        fixture_done(&fixture, step, 1, counts, tokens, NULL);
    }
    plan_begin(&plan, 4, 3);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_MISSING, 1);
    plan_begin(&plan, 5, 0);
    plan_patch(&plan, 1, 0, 0, 3, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(a_sliding_group_needs_only_its_window)
{
    static const uint8_t counts[1] = {1};
    static const int32_t tokens[1] = {501};
    start_one(2, 0);
    uint64_t step = 2;
    /* Position 10 reads 3..10 (window 8): columns 0..2; position 11 reads 4..11: columns 1..2. */
    for (; step < 6; step++) {
        plan_begin(&plan, step, step - 1);
        if (step == 2) {
            plan_patch(&plan, 1, 0, 2, 1, 4);
            plan_patch(&plan, 1, 1, 2, 1, 9);
        }
        plan_decode(&plan, 1);
        plan_accept(&plan, &fixture);
        fixture_done(&fixture, step, 1, counts, tokens, NULL);
    }
    plan_begin(&plan, step, step - 1);
    plan_patch(&plan, 1, 1, 0, 1, 0);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_MISSING, 1);
    plan_begin(&plan, ++step, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 0, 2, 1, 4);
    plan_patch(&plan, 1, 1, 0, 2, 5);
    plan_patch(&plan, 1, 1, 2, 1, 9);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, step, 1, counts, tokens, NULL);
    plan_begin(&plan, step + 1, step);
    plan_patch(&plan, 1, 1, 0, 1, 0);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(a_state_group_needs_the_state_before_and_a_place_after)
{
    static const uint8_t counts[1] = {1};
    static const int32_t tokens[1] = {501};
    start_one(3, 0);
    /* Granularity 8: positions 6 and 7 stay in column 0, position 8 goes to column 1. */
    uint64_t step = 2;
    for (; step < 4; step++) {
        plan_begin(&plan, step, step - 1);
        if (step == 2) {
            plan_patch(&plan, 1, 0, 2, 1, 4);
            plan_patch(&plan, 1, 1, 2, 1, 11);
        }
        plan_decode(&plan, 1);
        plan_accept(&plan, &fixture);
        fixture_done(&fixture, step, 1, counts, tokens, NULL);
    }
    plan_begin(&plan, step, step - 1);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_MISSING, 1);
    for (uint32_t hole = 0; hole < 2; hole++) {
        plan_begin(&plan, ++step, 0);
        plan_patch(&plan, 1, 0, 0, 2, 1);
        plan_patch(&plan, 1, 0, 2, 1, 4);
        plan_patch(&plan, 1, 1, 0, 2, 5);
        plan_patch(&plan, 1, 1, 2, 1, 11);
        plan_patch(&plan, 1, 2, 0, 1, hole == 0 ? 0 : 9);
        plan_patch(&plan, 1, 2, 1, 1, 10);
        plan_decode(&plan, 1);
        if (hole == 0) {
            plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_MISSING, 1);
        } else {
            plan_accept(&plan, &fixture);
        }
    }
}
END_TEST

/* A chunk begins where a state is, and leaves one where others can find it. */
START_TEST(a_state_is_on_a_page_or_where_the_last_row_ended)
{
    fixture_start(&fixture, 3, 0);
    fixture_admit(&fixture, 1, 11, 15, 20);
    static const struct {
        uint32_t begin;
        uint32_t length;
        bool good;
    } chunks[] = {{0, 6, false}, {0, 8, true}, {8, 3, false},  {9, 6, false},
                  {7, 8, false}, {4, 8, true}, {13, 2, false}, {12, 3, true}};
    static const uint8_t counts[1] = {0};
    bool full = true;
    for (uint64_t step = 1; step <= sizeof chunks / sizeof chunks[0]; step++) {
        bool good = chunks[step - 1].good;
        uint32_t begin = chunks[step - 1].begin;
        uint32_t length = chunks[step - 1].length;
        plan_begin(&plan, step, full ? 0 : step - 1);
        if (full) {
            plan_patch(&plan, 1, 0, 0, 4, 1);
            plan_patch(&plan, 1, 1, 0, 4, 11);
            plan_patch(&plan, 1, 2, 0, 2, 15);
        }
        plan_extend(&plan, 1, begin, length, false);
        full = !good;
        if (good) {
            plan_accept(&plan, &fixture);
            fixture_done(&fixture, step, 1, counts, NULL, NULL);
        } else {
            plan_refuse(&plan, &fixture, PROTO_RULE_TOKEN_RANGE, 1);
        }
    }
}
END_TEST

/* The state that is read may be somebody else's too, until the row would write over it. */
START_TEST(a_state_that_others_read_is_not_written)
{
    fixture_start(&fixture, 3, 0);
    for (uint32_t slot = 1; slot <= 2; slot++) {
        fixture_admit(&fixture, slot, 10 + slot, 13, 20);
    }
    static const uint8_t counts[2] = {0, 0};
    plan_begin(&plan, 1, 0);
    plan_patch(&plan, 1, 0, 0, 4, 1);
    plan_patch(&plan, 1, 1, 0, 4, 11);
    plan_patch(&plan, 1, 2, 0, 2, 15);
    plan_extend(&plan, 1, 0, 8, false);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 1, 1, counts, NULL, NULL);
    /* Slot 2 begins behind the same 8 tokens: block 15 is read by both. */
    plan_begin(&plan, 2, 1);
    plan_patch(&plan, 2, 0, 0, 2, 1);
    plan_patch(&plan, 2, 0, 2, 2, 21);
    plan_patch(&plan, 2, 1, 0, 2, 11);
    plan_patch(&plan, 2, 1, 2, 2, 51);
    plan_patch(&plan, 2, 2, 0, 1, 15);
    plan_patch(&plan, 2, 2, 1, 1, 31);
    plan_extend(&plan, 2, 8, 4, false);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 2, 1, counts, NULL, NULL);
    /* Now it begins behind 4 tokens, in the column that it would leave its state in. */
    plan_begin(&plan, 3, 2);
    plan_patch(&plan, 2, 0, 1, 1, 25);
    plan_patch(&plan, 2, 1, 1, 1, 61);
    plan_extend(&plan, 2, 4, 4, false);
    plan_refuse(&plan, &fixture, PROTO_RULE_WRITE_SHARED, 2);
}
END_TEST

/* A decode of slot 1 by an executor whose rows are 4 tokens wide. */
static void
wide_decode(uint64_t step, uint64_t base)
{
    plan_begin(&plan, step, base);
    plan.plan.width = 4;
    if (base == 0) {
        plan_patch(&plan, 1, 0, 0, 4, 1);
        plan_patch(&plan, 1, 1, 0, 4, 11);
        plan_patch(&plan, 1, 2, 0, 2, 15);
    }
    plan_decode(&plan, 1);
}

static void
start_wide(void)
{
    fixture_open(&fixture, 3, 1);
    fixture.info.decode_width = 4;
    fixture_ready(&fixture);
    fixture_peer_up(&fixture, fixture.epoch);
    fixture_admit(&fixture, 1, 11, 6, 12);
    plan_begin(&plan, 1, 0);
    plan.plan.width = 4;
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 1, 0, 2, 11);
    plan_patch(&plan, 1, 2, 0, 1, 15);
    plan_extend(&plan, 1, 0, 6, true);
    plan_accept(&plan, &fixture);
}

/* Behind the prompt, which is still being computed, it begins at token 6 and may end behind any of
 * the tokens 6 to 9: in each group all their columns have to be there. */
START_TEST(a_wide_row_may_end_in_each_of_its_columns)
{
    start_wide();
    for (uint32_t missing = 0; missing < 4; missing++) {
        wide_decode(2 + missing, missing == 0 ? 1 : 0);
        if (missing == 1) {
            plan_patch(&plan, 1, 0, 2, 1, 0);
        } else if (missing == 2) {
            plan_patch(&plan, 1, 2, 1, 1, 0); /* the state after 9 and 10 tokens */
        } else if (missing == 3) {
            plan_patch(&plan, 1, 2, 0, 1, 0); /* the state after 6 */
        }
        plan_refuse(&plan, &fixture, PROTO_RULE_COLUMN_MISSING, 1);
    }
    wide_decode(6, 0);
    plan_accept(&plan, &fixture);
}
END_TEST

/* What the rows in flight give is not known when the next one is planned: it may turn out to be one
 * too many, but not by more than could be thought. */
START_TEST(a_wide_row_is_judged_by_what_its_scheduler_knew)
{
    static const uint8_t counts[2] = {1, 4};
    static const int32_t tokens[4] = {501, 502, 503, 504};
    start_wide();
    wide_decode(2, 0);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 1, 1, &counts[0], tokens, NULL);
    wide_decode(3, 2); /* 7 tokens are known, step 2 gives one at least */
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 2, 1, &counts[1], tokens, NULL);
    wide_decode(4, 3); /* 11 are known, and step 3 in flight: nothing is left */
    plan_refuse(&plan, &fixture, PROTO_RULE_LENGTH_LIMIT, 1);
    fixture_done(&fixture, 3, 1, &counts[1], tokens, NULL);
    wide_decode(5, 0); /* all 12 are known, but perhaps not to the scheduler */
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 5, 1, &counts[1], tokens, NULL);
}
END_TEST

START_TEST(what_is_written_belongs_to_one_row)
{
    start_one(1, 0);
    fixture_admit(&fixture, 2, 12, 9, 20);
    /* Request 12 shares block 1 as its first page and reads it: fine. */
    plan_patch(&plan, 2, 0, 0, 1, 1);
    plan_patch(&plan, 2, 0, 1, 2, 5);
    plan_extend(&plan, 2, 4, 5, true);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    static const uint8_t counts[2] = {1, 1};
    static const int32_t tokens[2] = {600, 601};
    fixture_done(&fixture, 2, 2, counts, tokens, NULL);
    /* It writes into block 2, which request 11 holds: refused, whoever writes. */
    plan_begin(&plan, 3, 2);
    plan_patch(&plan, 2, 0, 3, 1, 2);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_WRITE_SHARED, 1);
    plan_begin(&plan, 3, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 2, 0, 0, 1, 1);
    plan_patch(&plan, 2, 0, 1, 2, 5);
    plan_extend(&plan, 2, 0, 10, true);
    plan_refuse(&plan, &fixture, PROTO_RULE_WRITE_SHARED, 2);
    /* Twice within one row is no better. */
    plan_begin(&plan, 3, 0);
    plan_patch(&plan, 1, 0, 0, 1, 2);
    plan_patch(&plan, 1, 0, 1, 1, 2);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_WRITE_SHARED, 1);
    /* Nor is clearing what two rows read. */
    plan_begin(&plan, 3, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 2, 0, 0, 1, 1);
    plan_clear(&plan, 0, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_WRITE_SHARED, 0);
    /* Released by the same plan: then the block is free. */
    plan_begin(&plan, 3, 0);
    plan_release(&plan, 1);
    plan_patch(&plan, 2, 0, 0, 1, 1);
    plan_patch(&plan, 2, 0, 1, 2, 5);
    plan_clear(&plan, 0, 2);
    plan_decode(&plan, 2);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(a_parent_is_written_by_one_group)
{
    start_one(2, 0);
    /* Block 2 of the full group is parent 2; blocks 3 and 4 of the sliding group lie in it. */
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 1, 0, 2, 3);
    plan_decode(&plan, 1);
    refuse(PROTO_RULE_WRITE_SHARED, 1);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 1, 0, 2, 5);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(extends_stay_within_the_tokens)
{
    start_one(1, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_extend(&plan, 1, 0, 8, true);
    refuse(PROTO_RULE_TOKEN_RANGE, 1);
    static const struct {
        uint32_t begin, length;
        bool samples;
    } bad[] = {{7, 1, true},
               {0, 0, false},
               {UINT32_MAX, 2, false},
               {2, UINT32_MAX - 4096, false},
               {0, 6, true}};
    for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        plan_begin(&plan, 2, 0);
        plan_patch(&plan, 1, 0, 0, 2, 1);
        plan_extend(&plan, 1, bad[i].begin, bad[i].length, bad[i].samples);
        bool is_over = bad[i].length > FIXTURE_STEP_MAX;
        plan_refuse(&plan, &fixture, is_over ? PROTO_RULE_BUDGET : PROTO_RULE_TOKEN_RANGE,
                    is_over ? 0 : 1);
    }
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_extend(&plan, 1, 0, 7, true);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(a_decode_follows_a_sampled_token)
{
    start_one(1, 1);
    fixture_admit(&fixture, 2, 12, 8, 20);
    plan_patch(&plan, 2, 0, 0, 2, 5);
    plan_decode(&plan, 2);
    refuse(PROTO_RULE_TOKEN_RANGE, 2);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 2, 0, 0, 2, 5);
    plan_extend(&plan, 2, 0, 4, false);
    plan_accept(&plan, &fixture);
    plan_begin(&plan, 3, 2);
    plan_decode(&plan, 2);
    plan_refuse(&plan, &fixture, PROTO_RULE_TOKEN_RANGE, 2);
}
END_TEST

START_TEST(lengths_end_at_length_max)
{
    static const uint8_t counts[1] = {1};
    static const int32_t tokens[1] = {501};
    fixture_start(&fixture, 1, 1);
    fixture_admit(&fixture, 1, 11, 4, 6);
    plan_begin(&plan, 1, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_extend(&plan, 1, 0, 4, true);
    plan_accept(&plan, &fixture);
    /* One token more is allowed while the first is in flight, a second one is not. */
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 1, 1, counts, tokens, NULL);
    plan_begin(&plan, 3, 2);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_LENGTH_LIMIT, 1);
    /* A prompt that fills the request may be computed but not sampled. */
    fixture_admit(&fixture, 2, 12, 4, 4);
    plan_begin(&plan, 3, 0);
    plan_patch(&plan, 2, 0, 0, 1, 8);
    plan_extend(&plan, 2, 0, 4, true);
    plan_refuse(&plan, &fixture, PROTO_RULE_LENGTH_LIMIT, 2);
}
END_TEST

START_TEST(a_step_has_a_budget_of_tokens_and_rows)
{
    start_one(1, 0);
    fixture_admit(&fixture, 2, 12, 24, 30);
    fixture_admit(&fixture, 3, 13, 8, 30);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 2, 0, 0, 6, 5);
    plan_extend(&plan, 2, 0, 24, true);
    plan_decode(&plan, 1);
    refuse(PROTO_RULE_BUDGET, 0);
    plan_begin(&plan, 2, 0);
    for (uint32_t i = 0; i < FIXTURE_SLOTS + 1; i++) {
        plan_decode(&plan, 1);
    }
    plan_refuse(&plan, &fixture, PROTO_RULE_BUDGET, 0);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 2, 0, 0, 6, 5);
    plan_extend(&plan, 2, 0, 23, false);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(patches_and_clears_are_bounded)
{
    enum { CELLS = (FIXTURE_SLOTS + 1) * FIXTURE_LEN_MAX / FIXTURE_PAGE };
    static uint32_t many[4096];
    static uint8_t groups[4096];
    start_one(1, 0);
    plan.plan.clear_groups = (proto_column_u8_t){groups, CELLS + 1};
    plan.plan.clear_blocks = (proto_column_u32_t){many, CELLS + 1};
    refuse(PROTO_RULE_BUDGET, 0);
    uint32_t cells = CELLS;
    plan_begin(&plan, 2, 0);
    plan.plan.patch_slots = (proto_column_u32_t){many, cells + 1};
    plan.plan.patch_groups = (proto_column_u8_t){groups, cells + 1};
    plan.plan.patch_columns = (proto_column_u32_t){many, cells + 1};
    plan.plan.patch_counts = (proto_column_u32_t){many, cells + 1};
    plan_refuse(&plan, &fixture, PROTO_RULE_BUDGET, 0);
    plan_begin(&plan, 2, 0);
    for (uint32_t i = 0; i < cells / 2; i++) {
        plan_patch(&plan, 1, 0, 0, 2, 1);
    }
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(steps_in_flight_are_bounded)
{
    for (uint32_t overlap = 0; overlap < 2; overlap++) {
        start_one(1, overlap);
        uint64_t step = 2;
        for (; step < 3 + overlap; step++) {
            plan_begin(&plan, step, step - 1);
            plan_decode(&plan, 1);
            plan_accept(&plan, &fixture);
        }
        plan_begin(&plan, step, step - 1);
        plan_patch(&plan, 1, 0, 2, 1, 3);
        plan_decode(&plan, 1);
        plan_refuse(&plan, &fixture, PROTO_RULE_BUDGET, 0);
        fixture_close(&fixture);
    }
    start_one(1, 0);
}
END_TEST

START_TEST(columns_of_one_table_have_one_length)
{
    start_one(1, 0);
    plan_patch(&plan, 1, 0, 2, 1, 3);
    plan.plan.patch_groups.count = 0;
    refuse(PROTO_RULE_SHAPE, 0);
    for (uint32_t i = 0; i < 8; i++) {
        plan_begin(&plan, 2, 0);
        plan_patch(&plan, 1, 0, 0, 2, 1);
        plan_extend(&plan, 1, 0, 7, true);
        plan_clear(&plan, 0, 9);
        uint32_t *counts[8] = {
            &plan.plan.patch_columns.count,  &plan.plan.patch_counts.count,
            &plan.plan.patch_blocks.count,   &plan.plan.clear_groups.count,
            &plan.plan.extend_slots.count,   &plan.plan.extend_begins.count,
            &plan.plan.extend_lengths.count, &plan.plan.extend_samples.count,
        };
        (*counts[i])--;
        plan_refuse(&plan, &fixture, PROTO_RULE_SHAPE, 0);
    }
    /* Counts whose sum wraps around. */
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 0, 0, 0, 1);
    plan.patch_counts[0] = UINT32_MAX;
    plan.patch_counts[1] = 3;
    plan_refuse(&plan, &fixture, PROTO_RULE_SHAPE, 0);
    check_recovers();
}
END_TEST

START_TEST(the_width_is_the_one_that_was_built)
{
    start_one(1, 0);
    plan.plan.width = 2;
    plan_decode(&plan, 1);
    refuse(PROTO_RULE_WIDTH, 0);
    plan.plan.width = 0;
    plan_refuse(&plan, &fixture, PROTO_RULE_WIDTH, 0);
    check_recovers();
}
END_TEST

/* A plan that fails at its last row has released, patched and shared before: all undone. */
START_TEST(a_refused_plan_leaves_no_trace)
{
    start_one(2, 1);
    fixture_admit(&fixture, 2, 12, 9, 20);
    fixture_admit(&fixture, 3, 13, 4, 20);
    plan_release(&plan, 1);
    plan_patch(&plan, 2, 0, 0, 3, 1);
    plan_patch(&plan, 2, 1, 0, 3, 11);
    plan_patch(&plan, 3, 0, 0, 1, 8);
    plan_extend(&plan, 2, 0, 9, true);
    plan_extend(&plan, 3, 0, 4, true); /* its sliding column is missing */
    refuse(PROTO_RULE_COLUMN_MISSING, 3);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 2, 1);
    plan_patch(&plan, 1, 1, 0, 2, 5);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
}
END_TEST

static void
close_fixture(void)
{
    fixture_close(&fixture);
}

static Suite *
rules_suite(void)
{
    const TTest *const tests[] = {
        a_plan_builds_on_the_last_applied_step,
        a_step_comes_after_the_last_one,
        slots_of_rows_are_in_range,
        rows_and_patches_need_a_request,
        a_slot_is_in_one_row,
        groups_are_in_range,
        columns_are_in_range,
        blocks_are_in_range,
        every_token_that_is_read_or_written_has_a_block,
        the_next_column_is_missed_exactly_when_it_is_needed,
        a_sliding_group_needs_only_its_window,
        a_state_group_needs_the_state_before_and_a_place_after,
        a_state_is_on_a_page_or_where_the_last_row_ended,
        a_state_that_others_read_is_not_written,
        a_wide_row_may_end_in_each_of_its_columns,
        a_wide_row_is_judged_by_what_its_scheduler_knew,
        what_is_written_belongs_to_one_row,
        a_parent_is_written_by_one_group,
        extends_stay_within_the_tokens,
        a_decode_follows_a_sampled_token,
        lengths_end_at_length_max,
        a_step_has_a_budget_of_tokens_and_rows,
        patches_and_clears_are_bounded,
        steps_in_flight_are_bounded,
        columns_of_one_table_have_one_length,
        the_width_is_the_one_that_was_built,
        a_refused_plan_leaves_no_trace,
    };
    Suite *suite = suite_create("actors.executor_rules");
    TCase *rules = tcase_create("rules");
    tcase_add_checked_fixture(rules, NULL, close_fixture);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tcase_add_test(rules, tests[i]);
    }
    suite_add_tcase(suite, rules);
    return suite;
}

int
main(void)
{
    SRunner *runner = srunner_create(rules_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
