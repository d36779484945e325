/* Random schedulers, honest and hostile, against the core: it launches exactly the plans that a
 * naive second reading of the rules allows, and a refusal changes nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "executor_oracle.h"

enum { PLAN_COUNT = 100000, BODY_MAX = 1 << 16 };

static fixture_t fixture;
static oracle_t oracle;
static plan_t plan;
static uint64_t random_state;
static uint64_t request_last;
static uint32_t resets;
static uint32_t accepted_count;
static uint32_t row_count;
static uint32_t rule_counts[32];

static uint32_t
below(uint32_t limit)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t value = random_state;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((value ^ (value >> 31)) % limit);
}

static uint32_t
odd_number(void)
{
    static const uint32_t numbers[] = {0, 1, 2, 3, 7, 8, 9, 96, 97, 192, 193, 4096};
    return numbers[below(sizeof numbers / sizeof numbers[0])];
}

/* A block that no table holds, its parent used by no other group; mostly. */
static uint32_t
any_block(const oracle_t *state, uint32_t g)
{
    static const uint32_t packing[ORACLE_GROUPS] = {1, 2, 1};
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t block = 1 + below(oracle_block_count(g));
        /* Each group keeps to its own third of the parents, so that most plans are good. */
        bool is_own = (block - 1) / packing[g] % ORACLE_GROUPS == g;
        if (is_own && oracle_references(state, g, block) == 0) {
            return block;
        }
    }
    return 1 + below(oracle_block_count(g));
}

/* Gives a row what it needs to reach `end`, as an honest scheduler would. */
static void
cover(oracle_t *state, uint32_t slot, uint32_t end)
{
    static const uint32_t granularity[ORACLE_GROUPS] = {4, 4, 8};
    for (uint32_t g = 0; g < ORACLE_GROUPS; g++) {
        for (uint32_t c = 0; c * granularity[g] < end; c++) {
            if (state->slots[slot].table[g][c] == 0) {
                uint32_t block = any_block(state, g);
                state->slots[slot].table[g][c] = block;
                plan_patch(&plan, slot, g, c, 1, block);
            }
        }
    }
}

static void
add_row(oracle_t *state, uint32_t slot, uint32_t *budget)
{
    const oracle_slot_t *s = &state->slots[slot];
    uint32_t length = s->known + s->pending;
    if (s->is_decodable && below(12) != 0) {
        /* At its end a request is sometimes asked for one token too many. */
        bool has_room = s->length_max > length;
        bool goes_on = has_room || (length < FIXTURE_LEN_MAX && below(2) == 0);
        if (goes_on && *budget != 0) {
            cover(state, slot, length);
            plan_decode(&plan, slot);
            (*budget)--;
        }
        return;
    }
    if (s->pending > 0 || *budget == 0 || s->known >= s->length_max) {
        return;
    }
    uint32_t begin = below(3) == 0 ? below(s->known) : 0;
    uint32_t count = s->known - begin;
    if (below(4) == 0 || count > *budget) {
        count = 1 + below(count < *budget ? count : *budget);
    }
    if (below(8) != 0) { /* states are on pages, or where the last row ended */
        begin = begin / FIXTURE_PAGE * FIXTURE_PAGE;
        uint32_t end = begin + count < s->known ? begin + count : s->known;
        end = end < s->known ? end / FIXTURE_PAGE * FIXTURE_PAGE : end;
        if (end <= begin || end - begin > *budget) {
            return;
        }
        count = end - begin;
    }
    cover(state, slot, begin + count);
    plan_extend(&plan, slot, begin, count, begin + count == s->known && below(8) != 0);
    *budget -= count;
}

/* One random byte, number or length somewhere in the plan. */
static void
spoil(void)
{
    proto_plan_t *p = &plan.plan;
    uint32_t *columns[] = {plan.release,      plan.patch_slots,  plan.patch_columns,
                           plan.patch_counts, plan.patch_blocks, plan.clear_blocks,
                           plan.extend_slots, plan.begins,       plan.lengths,
                           plan.decode_slots};
    uint32_t *counts[] = {&p->release_slots.count,  &p->patch_slots.count,
                          &p->patch_columns.count,  &p->patch_counts.count,
                          &p->patch_blocks.count,   &p->clear_blocks.count,
                          &p->extend_slots.count,   &p->extend_begins.count,
                          &p->extend_lengths.count, &p->decode_slots.count};
    uint32_t i = below(10);
    switch (below(8)) {
    case 0:
        p->step = below(2) == 0 ? oracle.applied : odd_number();
        break;
    case 1:
        p->base_step = odd_number();
        break;
    case 2:
        p->width = odd_number() % 17;
        break;
    case 3:
        *counts[i] = *counts[i] > 0 && below(2) == 0 ? *counts[i] - 1 : *counts[i] + 1;
        break;
    case 4:
        plan.patch_groups[below(4)] = (uint8_t)odd_number();
        break;
    default:
        if (*counts[i] > 0) {
            columns[i][below(*counts[i])] = odd_number();
        }
        break;
    }
}

static void
make_plan(void)
{
    oracle_t state = oracle;
    uint32_t budget = FIXTURE_STEP_MAX;
    bool is_full = oracle.is_awaiting_full || oracle.applied == 0 || below(20) == 0;
    plan_begin(&plan, oracle.applied + 1 + below(2), is_full ? 0 : oracle.applied);
    for (uint32_t slot = 1; slot <= FIXTURE_SLOTS; slot++) {
        oracle_slot_t *s = &state.slots[slot];
        if (s->request != 0 &&
            (below(40) == 0 || (s->known + s->pending >= s->length_max && below(3) > 0))) {
            plan_release(&plan, slot);
            memset(s, 0, sizeof *s);
        } else if (s->request != 0 && (is_full || below(60) == 0)) {
            for (uint32_t g = 0; !is_full && g < ORACLE_GROUPS; g++) {
                plan_patch(&plan, slot, g, 0, g == 2 ? 4 : 8, 0); /* retracted */
            }
            memset(s->table, 0, sizeof s->table);
        }
    }
    for (uint32_t slot = 1; slot <= FIXTURE_SLOTS; slot++) {
        if (state.slots[slot].request != 0 && below(5) != 0) {
            add_row(&state, slot, &budget);
        }
    }
    if (below(10) == 0) {
        plan_clear(&plan, below(3), any_block(&oracle, 0));
    }
    while (below(4) == 0) {
        spoil();
    }
}

/* Through the codec, as from a peer; false if it does not even decode. */
static bool
send_plan(proto_plan_t *decoded)
{
    static uint8_t body_bytes[BODY_MAX];
    static uint8_t blob_bytes[BODY_MAX] __attribute__((aligned(64)));
    static proto_body_t body;
    size_t body_size = 0;
    size_t blob_size = 0;
    body.plan = plan.plan;
    if (proto_body_encode(PROTO_KIND_PLAN, &body, body_bytes, BODY_MAX, &body_size, blob_bytes,
                          BODY_MAX, &blob_size) != STATUS_OK) {
        return false;
    }
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_PLAN, (proto_bytes_t){body_bytes, body_size},
                                       (proto_bytes_t){blob_bytes, blob_size}, &body, NULL),
                     STATUS_OK);
    *decoded = body.plan;
    fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER}, PROTO_KIND_PLAN, 0, &body);
    return true;
}

static void
step_plan(void)
{
    static oracle_t after;
    proto_plan_t decoded;
    make_plan();
    bool was_awaiting = oracle.is_awaiting_full;
    uint64_t before = fixture_digest(&fixture);
    if (!send_plan(&decoded)) {
        return;
    }
    bool is_good = oracle_judge(&oracle, &decoded, &after);
    bool is_launched = fixture_count(&fixture, PROTO_KIND_STEP_LAUNCH) > 0;
    if (!is_launched) {
        const proto_plan_refused_t *refused =
            &fixture_find(&fixture, PROTO_KIND_PLAN_REFUSED, 0)->plan_refused;
        ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 1);
        ck_assert_msg(!is_good, "a good plan is refused by rule %u: %.*s", refused->rule,
                      (int)refused->detail.size_bytes, refused->detail.data);
        ck_assert_uint_ge(refused->rule, PROTO_RULE_STALE);
        ck_assert_uint_le(refused->rule, PROTO_RULE_WIDTH);
        rule_counts[refused->rule]++;
        oracle.is_awaiting_full = true;
        if (was_awaiting) {
            ck_assert_uint_eq(fixture_digest(&fixture), before);
        }
        return;
    }
    ck_assert_msg(is_good, "a plan that breaks a rule is launched");
    oracle = after;
    oracle_device(&oracle, &fixture, &decoded);
    accepted_count++;
    row_count += decoded.extend_slots.count + decoded.decode_slots.count;
}

static void
step_done(void)
{
    const oracle_step_t *step = &oracle.steps[0];
    uint8_t counts[FIXTURE_SLOTS] = {0};
    uint8_t flags[FIXTURE_SLOTS] = {0};
    int32_t tokens[FIXTURE_SLOTS];
    uint32_t token_count = 0;
    if (oracle.step_count == 0) {
        return;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        flags[i] = below(100) == 0 ? PROTO_ROW_NAN : 0;
        counts[i] = step->samples[i] && flags[i] == 0;
        if (counts[i] > 0) {
            tokens[token_count++] = (int32_t)below(FIXTURE_VOCAB);
        }
    }
    fixture_done(&fixture, step->step, step->row_count, counts, tokens, flags);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_STEP_RESULT), 1);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 1);
    oracle_done(&oracle, counts, tokens);
}

static void
step_admit(void)
{
    uint32_t slot = below(20) == 0 ? odd_number() % (PROTO_ROWS_MAX + 1) : 1 + below(FIXTURE_SLOTS);
    uint32_t prompt_length = 1 + below(20);
    uint32_t length_max = prompt_length + below(14);
    uint64_t request = ++request_last;
    fixture_admit(&fixture, slot, request, prompt_length, length_max);
    bool is_good = slot >= 1 && slot <= FIXTURE_SLOTS && oracle.slots[slot].request == 0 &&
                   length_max <= FIXTURE_LEN_MAX;
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), is_good ? 0 : 1);
    if (is_good) {
        oracle_slot_t *s = &oracle.slots[slot];
        memset(s, 0, sizeof *s);
        s->request = request;
        s->known = prompt_length;
        s->length_max = length_max;
        for (uint32_t i = 0; i < prompt_length; i++) {
            s->tokens[i] = fixture_token(request, i);
        }
    }
}

static void
step_other(void)
{
    if (below(3) > 0) {
        if (resets > 0) {
            fixture_ready(&fixture);
            resets--;
        }
    } else if (below(2) == 0) {
        fixture_reset(&fixture);
        resets += fixture_count(&fixture, PROTO_KIND_DEVICE_RESET);
        oracle_drop(&oracle);
    } else {
        fixture_peer_up(&fixture, fixture.epoch + 1);
        resets += fixture_count(&fixture, PROTO_KIND_DEVICE_RESET);
        oracle_drop(&oracle);
        while (resets > 0) {
            fixture_ready(&fixture);
            resets--;
        }
        ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_EXECUTOR_INFO), 1);
    }
    oracle.is_ready = resets < 2;
}

START_TEST(only_plans_that_keep_the_rules_are_launched)
{
    memset(&oracle, 0, sizeof oracle);
    accepted_count = row_count = resets = 0;
    memset(rule_counts, 0, sizeof rule_counts);
    uint32_t overlap = (uint32_t)_i;
    fixture_start(&fixture, ORACLE_GROUPS, overlap);
    oracle.is_ready = true;
    oracle.flight_max = 1 + overlap;
    for (uint32_t i = 0; i < PLAN_COUNT / 2; i++) {
        step_plan();
        if (below(3) != 0 && resets == 0) {
            step_done();
        }
        if (below(3) == 0) {
            step_admit();
        }
        if (below(500) == 0 || resets > 0) {
            step_other();
        }
    }
    fixture_close(&fixture);
    /* The figures say whether this test still tests something. */
    printf("overlap %u: %u of %u plans accepted with %u rows; refused by rule:", overlap,
           accepted_count, PLAN_COUNT / 2, row_count);
    for (uint32_t rule = PROTO_RULE_STALE; rule <= PROTO_RULE_WIDTH; rule++) {
        printf(" %u", rule_counts[rule]);
    }
    printf("\n");
    (void)fflush(stdout);
    for (uint32_t rule = PROTO_RULE_STALE; rule <= PROTO_RULE_WIDTH; rule++) {
        ck_assert_msg(rule_counts[rule] > 0, "rule %u was never broken", rule);
    }
    ck_assert_uint_gt(accepted_count, PLAN_COUNT / 10);
    ck_assert_uint_gt(row_count, PLAN_COUNT / 10);
}
END_TEST

int
main(void)
{
    const char *seed = getenv("ONEPATH_TEST_SEED");
    random_state = seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu (ONEPATH_TEST_SEED)\n", (unsigned long long)random_state);
    (void)fflush(stdout);
    Suite *suite = suite_create("actors.executor_hostile");
    TCase *hostile = tcase_create("hostile");
    tcase_set_timeout(hostile, 120);
    tcase_add_loop_test(hostile, only_plans_that_keep_the_rules_are_launched, 0, 2);
    suite_add_tcase(suite, hostile);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
