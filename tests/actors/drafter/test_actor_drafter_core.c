/* The drafter's core: it asks to be used, passes rounds on in their order, forgets with its link,
 * and goes on from its bytes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "actor_drafter_core.h"

static actor_drafter_core_t *core;
static const actor_core_ops_t *ops;
static actor_outbox_t *outbox;
static uint64_t sequence;

static const actor_peer_t LOCAL = {ACTOR_PEER_LOCAL};
static const actor_peer_t EXECUTOR = {3};

static void
open_core(void)
{
    const actor_drafter_core_options_t options = {
        .name = "ngram", .target = "aa", .vocab_size = 50, .hidden_size = 8, .width_max = 4};
    ck_assert_int_eq(actor_drafter_core_new(&options, &core), STATUS_OK);
    ops = actor_drafter_core_ops(core);
    ck_assert_int_eq(actor_outbox_new(ops, &outbox), STATUS_OK);
}

static void
close_core(void)
{
    actor_outbox_destroy(&outbox);
    actor_drafter_core_destroy(&core);
}

static void
feed(actor_peer_t from, proto_kind_t kind, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION, .kind = kind, .epoch = 1};
    sequence++;
    actor_input_t input = {.now_ns = sequence * 1000,
                           .sequence = sequence,
                           .from = from,
                           .header = &header,
                           .body = body};
    actor_outbox_clear(outbox);
    ops->step(core, &input, outbox);
    ops->check(core);
}

/* The one message that the last input gave. */
static proto_body_t
said(proto_kind_t kind, actor_peer_t to)
{
    proto_body_t body;
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    const actor_emission_t *emission = actor_outbox_at(outbox, 0);
    ck_assert_int_eq(emission->kind, kind);
    ck_assert_uint_eq(emission->to.index, to.index);
    ck_assert_int_eq(proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL),
                     STATUS_OK);
    return body;
}

static void
link_up(void)
{
    proto_body_t up = {.peer_up = {.peer = EXECUTOR.index,
                                   .role = PROTO_ROLE_EXECUTOR,
                                   .name = proto_text("e"),
                                   .epoch = 9}};
    feed(LOCAL, PROTO_KIND_PEER_UP, &up);
}

static void
link_down(void)
{
    proto_body_t down = {
        .peer_down = {.peer = EXECUTOR.index, .role = PROTO_ROLE_EXECUTOR, .epoch = 9}};
    feed(LOCAL, PROTO_KIND_PEER_DOWN, &down);
}

static void
accept(void)
{
    proto_body_t body = {.drafter_accept = {.ring = proto_text("/r"),
                                            .ring_id = 12,
                                            .width = 4,
                                            .vocab_size = 50,
                                            .slot_count = 2,
                                            .model_len_max = 64}};
    feed(EXECUTOR, PROTO_KIND_DRAFTER_ACCEPT, &body);
}

static void
ask(uint64_t step, uint32_t slot)
{
    proto_body_t body = {.draft_propose = {.step = step, .slot = slot}};
    feed(EXECUTOR, PROTO_KIND_DRAFT_PROPOSE, &body);
}

static void
done(uint64_t step, uint32_t slot)
{
    proto_body_t body = {.draft_done = {.step = step, .slot = slot}};
    feed(LOCAL, PROTO_KIND_DRAFT_DONE, &body);
}

START_TEST(a_link_begins_with_what_it_is)
{
    link_up();
    proto_body_t body = said(PROTO_KIND_DRAFTER_INFO, EXECUTOR);
    ck_assert_uint_eq(body.drafter_info.vocab_size, 50);
    ck_assert_uint_eq(body.drafter_info.hidden_size, 8);
    ck_assert_uint_eq(body.drafter_info.width_max, 4);
    ck_assert_uint_eq(body.drafter_info.target.size_bytes, 2);
    accept();
    body = said(PROTO_KIND_DRAFT_OPEN, LOCAL);
    ck_assert_uint_eq(body.draft_open.ring_id, 12);
    ck_assert_uint_eq(body.draft_open.model_len_max, 64);
}
END_TEST

START_TEST(rounds_go_through_in_their_order)
{
    link_up();
    ask(1, 0); /* not accepted yet */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    accept();
    for (uint32_t i = 0; i < ACTOR_DRAFTER_ROUNDS_MAX; i++) {
        ask(10 + i, i);
        ck_assert_uint_eq(said(PROTO_KIND_DRAFT_LAUNCH, LOCAL).draft_launch.step, 10 + i);
    }
    ask(20, 0); /* all are out */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(11, 1); /* not the oldest */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(10, 0);
    ck_assert_uint_eq(said(PROTO_KIND_DRAFT_PROPOSED, EXECUTOR).draft_proposed.step, 10);
    ask(21, 1); /* that ring slot is in work */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ask(21, 0);
    ck_assert_uint_eq(said(PROTO_KIND_DRAFT_LAUNCH, LOCAL).draft_launch.slot, 0);
    ask(22, 9);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
}
END_TEST

START_TEST(a_lost_executor_takes_its_rounds_along)
{
    link_up();
    accept();
    ask(10, 0);
    link_down();
    ck_assert_uint_eq(said(PROTO_KIND_DRAFT_OPEN, LOCAL).draft_open.ring.size_bytes, 0);
    done(10, 0);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    link_up();
    (void)said(PROTO_KIND_DRAFTER_INFO, EXECUTOR);
    accept();
    (void)said(PROTO_KIND_DRAFT_OPEN, LOCAL);
}
END_TEST

START_TEST(a_refusal_shows_both_values)
{
    link_up();
    proto_body_t body = {.drafter_refuse = {.status = STATUS_ERR_CONFIG,
                                            .detail = proto_text("it has another vocabulary"),
                                            .expected = proto_text("49152"),
                                            .got = proto_text("50")}};
    feed(EXECUTOR, PROTO_KIND_DRAFTER_REFUSE, &body);
    proto_body_t failed = said(PROTO_KIND_DEVICE_FAILED, LOCAL);
    proto_text_t detail = failed.device_failed.detail;
    ck_assert_ptr_nonnull(memmem(detail.data, detail.size_bytes, "'49152'", 7));
    ck_assert_ptr_nonnull(memmem(detail.data, detail.size_bytes, "'50'", 4));
    ck_assert_int_eq(failed.device_failed.status, STATUS_ERR_CONFIG);
}
END_TEST

/* Saved in the middle and restored, it answers as before; every cut of the bytes is refused. */
START_TEST(its_bytes_are_the_whole_of_it)
{
    static uint8_t room[4096];
    link_up();
    accept();
    ask(10, 2);
    ask(11, 3);
    proto_pack_t state = {room, sizeof room, 0};
    proto_pack_t secret = {NULL, 0, 0};
    ops->save(core, &state, &secret);
    ck_assert_uint_eq(secret.size_bytes, 0);
    uint64_t digest = ops->digest(core);
    proto_error_t error;
    actor_drafter_core_t *again = NULL;
    for (size_t size = 0; size < state.size_bytes; size++) {
        /* A copy of exactly that size, so that a read beyond it shows. */
        uint8_t *cut = malloc(size + 1);
        ck_assert_ptr_nonnull(cut);
        memcpy(cut, room, size);
        ck_assert_int_lt(actor_drafter_core_restore((proto_bytes_t){cut, size},
                                                    (proto_bytes_t){NULL, 0}, &again, &error),
                         0);
        free(cut);
    }
    ck_assert_int_eq(actor_drafter_core_restore((proto_bytes_t){room, state.size_bytes},
                                                (proto_bytes_t){NULL, 0}, &again, &error),
                     STATUS_OK);
    actor_drafter_core_destroy(&core);
    core = again;
    ops = actor_drafter_core_ops(core);
    ops->check(core);
    ck_assert_uint_eq(ops->digest(core), digest);
    done(10, 2);
    ck_assert_uint_eq(said(PROTO_KIND_DRAFT_PROPOSED, EXECUTOR).draft_proposed.step, 10);
    ck_assert_uint_ne(ops->digest(core), digest);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.drafter_core");
    TCase *tests = tcase_create("core");
    tcase_add_checked_fixture(tests, open_core, close_core);
    tcase_add_test(tests, a_link_begins_with_what_it_is);
    tcase_add_test(tests, rounds_go_through_in_their_order);
    tcase_add_test(tests, a_lost_executor_takes_its_rounds_along);
    tcase_add_test(tests, a_refusal_shows_both_values);
    tcase_add_test(tests, its_bytes_are_the_whole_of_it);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
