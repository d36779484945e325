/* What the executor's core does beside refusing: links and resets, launches, tokens, hashes. */
#include <string.h>

#include "executor_fixture.h"

static fixture_t fixture;
static plan_t plan;

static const uint8_t ONE[FIXTURE_SLOTS] = {1, 1, 1, 1};

/* Blocks for slot 1 in columns 0..7 are 1..8, for slot 2 9..16, and so on. */
static void
patch_all(uint32_t slot, uint32_t count)
{
    plan_patch(&plan, slot, 0, 0, count, 1 + (slot - 1) * 8);
}

/* Admits a request and computes its prompt in step 1; `token` is the sampled one. */
static void
start_request(uint32_t slot, uint64_t request, uint32_t prompt_length, int32_t token)
{
    fixture_admit(&fixture, slot, request, prompt_length, FIXTURE_LEN_MAX);
    plan_begin(&plan, 1, 0);
    patch_all(slot, 8);
    plan_extend(&plan, slot, 0, prompt_length, true);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 1, 1, ONE, &token, NULL);
}

static const proto_step_result_t *
result(void)
{
    return &fixture_find(&fixture, PROTO_KIND_STEP_RESULT, 0)->step_result;
}

/* ---- links ----------------------------------------------------------------------------------- */

START_TEST(info_goes_out_when_device_and_scheduler_are_there)
{
    for (uint32_t scheduler_first = 0; scheduler_first < 2; scheduler_first++) {
        fixture_open(&fixture, 2, 1);
        if (scheduler_first == 1) {
            fixture_peer_up(&fixture, 7);
            ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0);
            fixture_ready(&fixture);
        } else {
            fixture_ready(&fixture);
            ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0);
            fixture_peer_up(&fixture, 7);
        }
        const proto_executor_info_t *info =
            &fixture_find(&fixture, PROTO_KIND_EXECUTOR_INFO, 0)->executor_info;
        ck_assert_uint_eq(info->slot_count, FIXTURE_SLOTS);
        ck_assert_uint_eq(info->group_packings.count, 2);
        ck_assert_uint_eq(info->group_packings.data[1], 2);
        ck_assert_mem_eq(info->page_hash_key.data, fixture.key, sizeof fixture.key);
        ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 1);
        if (scheduler_first == 0) {
            fixture_close(&fixture);
        }
    }
}
END_TEST

START_TEST(a_new_scheduler_finds_no_rows)
{
    fixture_start(&fixture, 1, 1);
    start_request(1, 11, 6, 500);
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_peer_down(&fixture);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0);
    fixture_peer_up(&fixture, 8);
    /* The device is told first; until it has answered, nobody is told what we have. */
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DEVICE_RESET), 1);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 1);
    plan_begin(&plan, 1, 0);
    plan_refuse(&plan, &fixture, PROTO_RULE_STALE, 0);
    /* What the device still says about the old step concerns nobody. */
    static const int32_t token[1] = {501};
    fixture_done(&fixture, 2, 1, ONE, token, NULL);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0);
    fixture_ready(&fixture);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_EXECUTOR_INFO), 1);
    plan_begin(&plan, 1, 0);
    plan_decode(&plan, 1);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_EMPTY, 1);
    fixture_admit(&fixture, 1, 21, 3, 10);
    plan_begin(&plan, 1, 0);
    plan_patch(&plan, 1, 0, 0, 1, 1);
    plan_extend(&plan, 1, 0, 3, true);
    plan_accept(&plan, &fixture);
}
END_TEST

START_TEST(a_scheduler_of_an_old_epoch_is_fenced)
{
    fixture_start(&fixture, 1, 1);
    start_request(1, 11, 6, 500);
    uint64_t before = fixture_digest(&fixture);
    fixture_peer_up(&fixture, 6);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_NAK), 1);
    /* Nor does a peer that is not the scheduler in charge get anything done. */
    proto_body_t body = {.reset = {.detail = proto_text("impostor")}};
    fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER + 1}, PROTO_KIND_RESET, 0, &body);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_NAK), 1);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 1);
    ck_assert_uint_eq(fixture_digest(&fixture), before);
}
END_TEST

/* After a move to another scheduler and back, epochs of two names say nothing of each other. */
START_TEST(a_successor_with_a_lower_epoch_is_welcome)
{
    fixture_start(&fixture, 1, 1);
    fixture_peer_down(&fixture);
    fixture_peer_up(&fixture, 6);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_NAK), 0);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_EXECUTOR_INFO), 1);
}
END_TEST

START_TEST(reset_drops_every_row_and_answers_nothing)
{
    fixture_start(&fixture, 1, 1);
    uint64_t pristine = fixture_digest(&fixture);
    fixture_reset(&fixture);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0); /* nothing to forget */
    start_request(1, 11, 6, 500);
    fixture_reset(&fixture);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DEVICE_RESET), 1);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 1);
    fixture_ready(&fixture);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0);
    ck_assert_uint_eq(fixture_digest(&fixture), pristine);
    /* Work goes on at once, without waiting for the device; a second reset too, not a third. */
    for (uint32_t i = 0; i < 2; i++) {
        fixture_admit(&fixture, 2, 12, 3, 10);
        plan_begin(&plan, 1, 0);
        plan_patch(&plan, 2, 0, 0, 1, 1);
        plan_extend(&plan, 2, 0, 3, true);
        plan_accept(&plan, &fixture);
        fixture_reset(&fixture);
        ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DEVICE_RESET), 1);
    }
    fixture_admit(&fixture, 2, 12, 3, 10);
    plan_begin(&plan, 1, 0);
    plan_patch(&plan, 2, 0, 0, 1, 1);
    plan_extend(&plan, 2, 0, 3, true);
    plan_refuse(&plan, &fixture, PROTO_RULE_STALE, 0);
    fixture_ready(&fixture);
    plan_accept(&plan, &fixture);
    fixture_ready(&fixture); /* of the second reset; the step behind it then ends as usual */
    static const int32_t token[1] = {77};
    fixture_done(&fixture, 1, 1, ONE, token, NULL);
    ck_assert_int_eq(result()->tokens.data[0], 77);
}
END_TEST

START_TEST(a_failed_device_ends_the_actor)
{
    fixture_start(&fixture, 1, 1);
    start_request(1, 11, 6, 500);
    proto_body_t body = {
        .device_failed = {.status = STATUS_ERR_DEVICE, .detail = proto_text("sticky error 700")}};
    fixture_local(&fixture, PROTO_KIND_DEVICE_FAILED, &body);
    const proto_device_failed_t *failed =
        &fixture_find(&fixture, PROTO_KIND_DEVICE_FAILED, 0)->device_failed;
    ck_assert_int_eq(failed->status, STATUS_ERR_DEVICE);
    ck_assert_int_eq(strncmp(failed->detail.data, "sticky error 700", 16), 0);
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_send(&plan, &fixture);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0);
}
END_TEST

START_TEST(a_device_beyond_the_limits_is_a_configuration_error)
{
    fixture_open(&fixture, 1, 1);
    fixture.info.model_len_max = FIXTURE_LEN_MAX + 1;
    fixture_ready(&fixture);
    const proto_device_failed_t *failed =
        &fixture_find(&fixture, PROTO_KIND_DEVICE_FAILED, 0)->device_failed;
    ck_assert_int_eq(failed->status, STATUS_ERR_CONFIG);
}
END_TEST

START_TEST(outputs_that_do_not_fit_are_a_device_failure)
{
    static const int32_t tokens[2] = {1, FIXTURE_VOCAB};
    static const uint8_t two[1] = {2};
    for (uint32_t i = 0; i < 4; i++) {
        fixture_start(&fixture, 1, 1);
        start_request(1, 11, 6, 500);
        plan_begin(&plan, 2, 1);
        plan_decode(&plan, 1);
        plan_accept(&plan, &fixture);
        if (i == 0) {
            fixture_done(&fixture, 3, 1, ONE, tokens, NULL); /* another step */
        } else if (i == 1) {
            fixture_done(&fixture, 2, 2, ONE, tokens, NULL); /* another number of rows */
        } else if (i == 2) {
            fixture_done(&fixture, 2, 1, two, tokens, NULL); /* two tokens from width 1 */
        } else {
            fixture_done(&fixture, 2, 1, ONE, tokens + 1, NULL); /* no such token */
        }
        ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_DEVICE_FAILED), 1);
        ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_STEP_RESULT), 0);
        if (i < 3) {
            fixture_close(&fixture);
        }
    }
}
END_TEST

/* ---- ADMIT ----------------------------------------------------------------------------------- */

/* An ADMIT that cannot be used says so in the log; the plan that needs it is refused. */
START_TEST(an_unusable_admit_leaves_the_slot_empty)
{
    int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t room[512];
    fixture_start(&fixture, 1, 1);
    uint64_t before = fixture_digest(&fixture);
    proto_body_t good = {
        .admit = {.slot = 1,
                  .prompt_length = 8,
                  .length_max = 12,
                  .tokens = {tokens, 8},
                  .sampling = fixture_sampling(8, (proto_bytes_t){NULL, 0}, room)}};
    for (uint32_t i = 0; i < 8; i++) {
        proto_body_t bad = good;
        uint64_t request = 11;
        tokens[3] = 4;
        switch (i) {
        case 0:
            bad.admit.slot = 0;
            break;
        case 1:
            bad.admit.slot = FIXTURE_SLOTS + 1;
            break;
        case 2:
            bad.admit.prompt_length = 7;
            break;
        case 3:
            bad.admit.length_max = FIXTURE_LEN_MAX + 1;
            break;
        case 4:
            bad.admit.length_max = 7;
            break;
        case 5:
            bad.admit.sampling.count--;
            break;
        case 6:
            tokens[3] = -1;
            break;
        default:
            request = 0;
            break;
        }
        fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER}, PROTO_KIND_ADMIT, request, &bad);
        ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 1);
        ck_assert_uint_eq(actor_outbox_at(fixture.outbox, 0)->kind, PROTO_KIND_NAK);
        ck_assert_uint_eq(actor_outbox_at(fixture.outbox, 0)->to.index, ACTOR_PEER_LOCAL);
        ck_assert_uint_eq(fixture_digest(&fixture), before);
    }
    plan_begin(&plan, 1, 0);
    patch_all(1, 2);
    plan_refuse(&plan, &fixture, PROTO_RULE_SLOT_EMPTY, 1);
    /* The scheduler ends that request: releasing the empty slot is no error. */
    plan_begin(&plan, 1, 0);
    plan_release(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 1, 0, ONE, NULL, NULL);
    tokens[3] = 4;
    fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER}, PROTO_KIND_ADMIT, 12, &good);
    ck_assert_uint_eq(actor_outbox_count(fixture.outbox), 0);
    /* A slot that is taken stays with its request. */
    fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER}, PROTO_KIND_ADMIT, 13, &good);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_NAK), 1);
}
END_TEST

/* ---- launches -------------------------------------------------------------------------------- */

START_TEST(chunks_carry_their_tokens_and_one_setup)
{
    fixture_start(&fixture, 1, 1);
    fixture_admit(&fixture, 2, 12, 10, 20);
    plan_begin(&plan, 1, 0);
    patch_all(2, 3);
    plan_extend(&plan, 2, 0, 7, false);
    plan_accept(&plan, &fixture);
    const proto_slot_setup_t *setup = &fixture_find(&fixture, PROTO_KIND_SLOT_SETUP, 0)->slot_setup;
    ck_assert_uint_eq(setup->slot, 2);
    ck_assert_uint_eq(setup->tokens.count, 10);
    ck_assert_int_eq(setup->tokens.data[9], fixture_token(12, 9));
    proto_sampling_t sampling;
    ck_assert_int_eq(proto_sampling_decode(setup->sampling, &sampling, NULL), STATUS_OK);
    ck_assert_uint_eq(sampling.seed, 5);
    ck_assert_uint_eq(actor_outbox_at(fixture.outbox, 0)->kind, PROTO_KIND_SLOT_SETUP);
    ck_assert_uint_eq(actor_outbox_at(fixture.outbox, 0)->request, 12);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    ck_assert_uint_eq(launch->extend_tokens.count, 7);
    ck_assert_int_eq(launch->extend_tokens.data[6], fixture_token(12, 6));
    ck_assert_uint_eq(launch->extend_next_ids.count, 1); /* a drafter reads one token ahead */
    ck_assert_int_eq(launch->extend_next_ids.data[0], fixture_token(12, 7));
    /* Patched by the plan; and once more with the set-up, which makes a device forget. */
    ck_assert_uint_eq(launch->patch_blocks.count, 6);
    /* The second chunk is planned while the first runs. */
    plan_begin(&plan, 2, 1);
    plan_extend(&plan, 2, 7, 3, true);
    plan_accept(&plan, &fixture);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_SLOT_SETUP), 0);
    launch = &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    ck_assert_uint_eq(launch->extend_tokens.count, 3);
    ck_assert_int_eq(launch->extend_tokens.data[0], fixture_token(12, 7));
    ck_assert_int_eq(launch->extend_next_ids.data[0], -1); /* the one that it will sample */
}
END_TEST

START_TEST(a_decode_is_planned_before_its_token_is_known)
{
    static const int32_t tokens[3] = {501, 502, 503};
    fixture_start(&fixture, 1, 1);
    fixture_admit(&fixture, 1, 11, 6, 20);
    plan_begin(&plan, 1, 0);
    patch_all(1, 3);
    plan_extend(&plan, 1, 0, 6, true);
    plan_accept(&plan, &fixture);
    for (uint64_t step = 2; step < 4; step++) {
        plan_begin(&plan, step, step - 1);
        plan_decode(&plan, 1);
        plan_accept(&plan, &fixture);
        fixture_done(&fixture, step - 1, 1, ONE, tokens + step - 2, NULL);
        ck_assert_uint_eq(result()->step, step - 1);
        ck_assert_int_eq(result()->tokens.data[0], tokens[step - 2]);
        ck_assert_uint_eq(result()->computed_tokens, step == 2 ? 6 : 1);
    }
    fixture_done(&fixture, 3, 1, ONE, tokens + 2, NULL);
    ck_assert_uint_eq(result()->step, 3);
    /* The store holds all three: a restart sends them. */
    plan_begin(&plan, 4, 3);
    plan_extend(&plan, 1, 0, 9, true);
    plan_accept(&plan, &fixture);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    ck_assert_mem_eq(launch->extend_tokens.data + 6, tokens, sizeof tokens);
}
END_TEST

/* Tables that came before the first chunk are the device's all the same. */
START_TEST(a_set_up_slot_gets_its_whole_table)
{
    fixture_start(&fixture, 1, 1);
    fixture_admit(&fixture, 2, 12, 10, 20);
    plan_begin(&plan, 1, 0);
    patch_all(2, 3);
    plan_accept(&plan, &fixture);
    plan_begin(&plan, 2, 1);
    plan_extend(&plan, 2, 0, 10, true);
    plan_accept(&plan, &fixture);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    static const uint32_t expected[3] = {9, 10, 11};
    ck_assert_uint_eq(launch->patch_slots.count, 1);
    ck_assert_uint_eq(launch->patch_columns.data[0], 0);
    ck_assert_uint_eq(launch->patch_blocks.count, 3);
    ck_assert_mem_eq(launch->patch_blocks.data, expected, sizeof expected);
}
END_TEST

/* Retracted: its blocks went, its slot and tokens stayed; it starts again with all of them. */
START_TEST(a_retracted_request_computes_its_answer_again)
{
    static const int32_t token[1] = {501};
    fixture_start(&fixture, 1, 1);
    start_request(1, 11, 6, 500);
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    /* While a token is in flight its ranges are not known. */
    plan_begin(&plan, 3, 2);
    plan_extend(&plan, 1, 0, 7, false);
    plan_refuse(&plan, &fixture, PROTO_RULE_TOKEN_RANGE, 1);
    fixture_done(&fixture, 2, 1, ONE, token, NULL);
    plan_begin(&plan, 3, 0);
    plan_accept(&plan, &fixture); /* full, empty: all its columns are dropped */
    fixture_done(&fixture, 3, 0, ONE, NULL, NULL);
    plan_begin(&plan, 4, 3);
    plan_patch(&plan, 1, 0, 0, 2, 20);
    plan_extend(&plan, 1, 0, 5, false);
    plan_accept(&plan, &fixture);
    const proto_slot_setup_t *setup = &fixture_find(&fixture, PROTO_KIND_SLOT_SETUP, 0)->slot_setup;
    ck_assert_uint_eq(setup->tokens.count, 8);
    ck_assert_int_eq(setup->tokens.data[7], 501);
    proto_sampling_t sampling;
    ck_assert_int_eq(proto_sampling_decode(setup->sampling, &sampling, NULL), STATUS_OK);
    ck_assert_uint_eq(sampling.prompt_length, 6);
    plan_begin(&plan, 5, 4);
    plan_extend(&plan, 1, 5, 3, true);
    plan_accept(&plan, &fixture);
    ck_assert_uint_eq(fixture_count(&fixture, PROTO_KIND_SLOT_SETUP), 0);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    static const int32_t expected[3] = {0, 500, 501};
    ck_assert_int_eq(launch->extend_tokens.data[0], fixture_token(11, 5));
    ck_assert_mem_eq(launch->extend_tokens.data + 1, expected + 1, 2 * sizeof(int32_t));
}
END_TEST

/* The device knows patches only: what a full plan leaves out reaches it as holes. */
START_TEST(a_full_plan_tells_the_device_what_it_drops)
{
    fixture_start(&fixture, 1, 1);
    start_request(1, 11, 6, 500);
    plan_begin(&plan, 2, 0);
    plan_patch(&plan, 1, 0, 0, 1, 1);
    plan_patch(&plan, 1, 0, 1, 1, 20);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    uint32_t table[8];
    for (uint32_t i = 0; i < 8; i++) {
        table[i] = 1 + i; /* as start_request() left the device */
    }
    const uint32_t *blocks = launch->patch_blocks.data;
    for (uint32_t i = 0; i < launch->patch_slots.count; i++) {
        ck_assert_uint_eq(launch->patch_slots.data[i], 1);
        for (uint32_t k = 0; k < launch->patch_counts.data[i]; k++) {
            table[launch->patch_columns.data[i] + k] = *blocks++;
        }
    }
    static const uint32_t expected[8] = {1, 20, 0, 0, 0, 0, 0, 0};
    ck_assert_mem_eq(table, expected, sizeof expected);
}
END_TEST

START_TEST(a_released_row_is_delivered_but_not_kept)
{
    static const int32_t token[1] = {501};
    fixture_start(&fixture, 1, 1);
    start_request(1, 11, 6, 500);
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    plan_begin(&plan, 3, 2);
    plan_release(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_admit(&fixture, 1, 12, 4, 20);
    uint64_t before = fixture_digest(&fixture);
    fixture_done(&fixture, 2, 1, ONE, token, NULL);
    ck_assert_uint_eq(result()->tokens.count, 1);
    ck_assert_uint_ne(fixture_digest(&fixture), before); /* one step less in flight */
    fixture_done(&fixture, 3, 0, ONE, NULL, NULL);
    plan_begin(&plan, 4, 3);
    patch_all(1, 2);
    plan_extend(&plan, 1, 0, 4, true);
    plan_accept(&plan, &fixture);
    const proto_step_launch_t *launch =
        &fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    ck_assert_int_eq(launch->extend_tokens.data[3], fixture_token(12, 3));
}
END_TEST

START_TEST(a_row_with_nan_gives_no_token_and_no_hash)
{
    static const uint8_t none[1] = {0};
    static const uint8_t nan[1] = {PROTO_ROW_NAN};
    static const int32_t token[1] = {502};
    fixture_start(&fixture, 1, 0);
    start_request(1, 11, 7, 500);
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 2, 1, none, NULL, nan);
    ck_assert_uint_eq(result()->row_flags.data[0], PROTO_ROW_NAN);
    ck_assert_uint_eq(result()->tokens.count, 0);
    /* It may still be in a plan that was on its way; page 1 is complete then, but not good. */
    plan_begin(&plan, 3, 2);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_done(&fixture, 3, 1, ONE, token, NULL);
    ck_assert_uint_eq(result()->hash_rows.count, 0);
}
END_TEST

/* ---- page hashes ----------------------------------------------------------------------------- */

/* The chain that a gateway computes over prompt and answer, page by page. */
static void
expected_hash(const int32_t *tokens, uint32_t page, proto_bytes_t salt, uint8_t *out)
{
    for (uint32_t i = 0; i <= page; i++) {
        proto_page_hash(fixture.key, i > 0 ? out : NULL, salt, tokens + i * FIXTURE_PAGE,
                        FIXTURE_PAGE, out);
    }
}

/* Decodes until the request is full; each page of the answer is reported once, when its last
 * token is in the cache, with the gateway's hash. */
static void
check_chain(uint32_t prompt_length, proto_bytes_t salt, bool is_hashed)
{
    int32_t tokens[FIXTURE_LEN_MAX];
    uint8_t expected[PROTO_HASH_SIZE_BYTES];
    uint32_t known = prompt_length + 1;
    uint32_t page = prompt_length / FIXTURE_PAGE;
    for (uint32_t i = 0; i < FIXTURE_LEN_MAX; i++) {
        tokens[i] = i < prompt_length ? fixture_token(11, i) : (int32_t)(500 + i);
    }
    for (uint64_t step = 2; known < FIXTURE_LEN_MAX; step++) {
        plan_begin(&plan, step, step - 1);
        plan_decode(&plan, 1);
        plan_accept(&plan, &fixture);
        fixture_done(&fixture, step, 1, ONE, tokens + known, NULL);
        known++;
        bool completes = is_hashed && (known - 1) / FIXTURE_PAGE > page;
        ck_assert_uint_eq(result()->hash_rows.count, completes ? 1 : 0);
        if (completes) {
            expected_hash(tokens, page, salt, expected);
            ck_assert_uint_eq(result()->hash_pages.data[0], page);
            ck_assert_uint_eq(result()->hash_rows.data[0], 0);
            ck_assert_uint_eq(result()->hash_bytes.count, PROTO_HASH_SIZE_BYTES);
            ck_assert_mem_eq(result()->hash_bytes.data, expected, sizeof expected);
            page++;
        }
    }
    ck_assert_uint_eq(page, is_hashed ? (FIXTURE_LEN_MAX - 1) / FIXTURE_PAGE
                                      : prompt_length / FIXTURE_PAGE);
}

START_TEST(answer_pages_go_on_with_the_gateways_chain)
{
    uint32_t prompt_length = (uint32_t)_i;
    fixture_start(&fixture, 1, 0);
    start_request(1, 11, prompt_length, (int32_t)(500 + prompt_length));
    check_chain(prompt_length, (proto_bytes_t){NULL, 0}, true);
}
END_TEST

/* A salted prompt that is shorter than a page has no hash yet; its answer is salted too. */
START_TEST(salted_answers_are_not_shared)
{
    static const uint8_t salt[5] = {'a', 'l', 'i', 'c', 'e'};
    proto_bytes_t bytes = {salt, sizeof salt};
    uint32_t prompt_length = (uint32_t)_i;
    int32_t tokens[FIXTURE_LEN_MAX];
    uint8_t hashes[2][PROTO_HASH_SIZE_BYTES];
    uint8_t room[512];
    uint32_t pages = prompt_length / FIXTURE_PAGE;
    fixture_start(&fixture, 1, 0);
    for (uint32_t i = 0; i < prompt_length; i++) {
        tokens[i] = fixture_token(11, i);
    }
    for (uint32_t i = 0; i < pages; i++) {
        expected_hash(tokens, i, bytes, hashes[i]);
    }
    proto_body_t body = {.admit = {.slot = 1,
                                   .prompt_length = prompt_length,
                                   .length_max = FIXTURE_LEN_MAX,
                                   .tokens = {tokens, prompt_length},
                                   .sampling = fixture_sampling(prompt_length, bytes, room),
                                   .page_hashes = {pages > 0 ? hashes[0] : NULL,
                                                   (size_t)pages * PROTO_HASH_SIZE_BYTES}}};
    fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER}, PROTO_KIND_ADMIT, 11, &body);
    plan_begin(&plan, 1, 0);
    patch_all(1, 8);
    plan_extend(&plan, 1, 0, prompt_length, true);
    plan_accept(&plan, &fixture);
    int32_t token = (int32_t)(500 + prompt_length);
    fixture_done(&fixture, 1, 1, ONE, &token, NULL);
    check_chain(prompt_length, bytes, true);
}
END_TEST

/* Prompt pages without hashes: caching is off for this request, and no page is reported. */
START_TEST(a_request_without_prompt_hashes_reports_none)
{
    int32_t tokens[6] = {0};
    uint8_t room[512];
    fixture_start(&fixture, 1, 0);
    proto_body_t body = {
        .admit = {.slot = 1,
                  .prompt_length = 6,
                  .length_max = FIXTURE_LEN_MAX,
                  .tokens = {tokens, 6},
                  .sampling = fixture_sampling(6, (proto_bytes_t){NULL, 0}, room)}};
    fixture_feed(&fixture, (actor_peer_t){FIXTURE_PEER}, PROTO_KIND_ADMIT, 11, &body);
    plan_begin(&plan, 1, 0);
    patch_all(1, 8);
    plan_extend(&plan, 1, 0, 6, true);
    plan_accept(&plan, &fixture);
    int32_t token = 506;
    fixture_done(&fixture, 1, 1, ONE, &token, NULL);
    check_chain(6, (proto_bytes_t){NULL, 0}, false);
}
END_TEST

/* ---- figures --------------------------------------------------------------------------------- */

START_TEST(progress_names_the_oldest_step_and_its_budget)
{
    fixture_start(&fixture, 1, 1);
    proto_heartbeat_t beat = {.progress = 3};
    fixture.ops->progress(fixture.core, fixture.now_ns, &beat);
    ck_assert_uint_eq(beat.step, 0);
    start_request(1, 11, 6, 500);
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture.ops->progress(fixture.core, fixture.now_ns + 700, &beat);
    ck_assert_uint_eq(beat.step, 2);
    ck_assert_uint_eq(beat.step_age_ns, 700);
    ck_assert_uint_ge(beat.step_budget_ns, 5000000000u);
    ck_assert_uint_eq(beat.progress, 3);
}
END_TEST

START_TEST(stats_count_what_was_done)
{
    fixture_start(&fixture, 1, 1);
    start_request(1, 11, 6, 500);
    proto_stats_t stats = {.messages_in = 9};
    fixture.ops->stats(fixture.core, &stats);
    ck_assert_uint_eq(stats.steps, 1);
    ck_assert_uint_eq(stats.prompt_tokens, 6);
    ck_assert_uint_eq(stats.generation_tokens, 1);
    ck_assert_uint_eq(stats.messages_in, 9);
    ck_assert_uint_gt(stats.busy_ns, 0);
}
END_TEST

START_TEST(a_draining_executor_is_idle_when_nobody_needs_it)
{
    fixture_start(&fixture, 1, 1);
    ck_assert(fixture.ops->idle(fixture.core));
    start_request(1, 11, 6, 500);
    ck_assert(!fixture.ops->idle(fixture.core));
    plan_begin(&plan, 2, 1);
    plan_decode(&plan, 1);
    plan_accept(&plan, &fixture);
    fixture_peer_down(&fixture);
    ck_assert(!fixture.ops->idle(fixture.core)); /* a step runs */
    static const int32_t token[1] = {501};
    fixture_done(&fixture, 2, 1, ONE, token, NULL);
    ck_assert(fixture.ops->idle(fixture.core));
}
END_TEST

static void
close_fixture(void)
{
    fixture_close(&fixture);
}

static Suite *
core_suite(void)
{
    const TTest *const tests[] = {
        info_goes_out_when_device_and_scheduler_are_there,
        a_new_scheduler_finds_no_rows,
        a_scheduler_of_an_old_epoch_is_fenced,
        a_successor_with_a_lower_epoch_is_welcome,
        reset_drops_every_row_and_answers_nothing,
        a_failed_device_ends_the_actor,
        a_device_beyond_the_limits_is_a_configuration_error,
        outputs_that_do_not_fit_are_a_device_failure,
        an_unusable_admit_leaves_the_slot_empty,
        chunks_carry_their_tokens_and_one_setup,
        a_decode_is_planned_before_its_token_is_known,
        a_set_up_slot_gets_its_whole_table,
        a_retracted_request_computes_its_answer_again,
        a_full_plan_tells_the_device_what_it_drops,
        a_released_row_is_delivered_but_not_kept,
        a_row_with_nan_gives_no_token_and_no_hash,
        a_request_without_prompt_hashes_reports_none,
        progress_names_the_oldest_step_and_its_budget,
        stats_count_what_was_done,
        a_draining_executor_is_idle_when_nobody_needs_it,
    };
    Suite *suite = suite_create("actors.executor_core");
    TCase *core = tcase_create("core");
    tcase_add_checked_fixture(core, NULL, close_fixture);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tcase_add_test(core, tests[i]);
    }
    tcase_add_loop_test(core, answer_pages_go_on_with_the_gateways_chain, 1, 10);
    tcase_add_loop_test(core, salted_answers_are_not_shared, 2, 10);
    suite_add_tcase(suite, core);
    return suite;
}

int
main(void)
{
    SRunner *runner = srunner_create(core_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
