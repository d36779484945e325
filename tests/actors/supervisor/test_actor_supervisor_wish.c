/* Operators' commands for an executor, at the supervisor's core: everybody who waits gets one
 * answer, their own.  The clock and the members are the test's. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_supervisor_core.h"

#define SECOND UINT64_C(1000000000)

enum { GATEWAY = 0, EXECUTOR = 1, MEMBER_COUNT = 2 };
enum { GATEWAY_PEER = 1, EXECUTOR_PEER = 2, ALICE = 10, BOB = 11 };

static actor_supervisor_core_t core;
static actor_outbox_t *outbox;
static uint64_t now_ns;
static proto_body_t got;

/* One input; what it gave stays in the outbox. */
static void
feed(uint32_t from, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = 1,
                             .request = request};
    actor_input_t input = {.now_ns = now_ns, .from = {from}, .header = &header, .body = body};
    actor_outbox_clear(outbox);
    actor_supervisor_core_ops.step(&core, &input, outbox);
}

static void
say_state(uint32_t peer, actor_state_t state)
{
    proto_body_t body = {.actor_state = {.state = state}};
    feed(peer, PROTO_KIND_ACTOR_STATE, 0, &body);
}

static void
link_up(uint32_t peer, const char *name)
{
    proto_body_t body = {.peer_up = {.peer = peer, .name = proto_text(name), .epoch = 1}};
    feed(ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, 0, &body);
}

static void
link_down(uint32_t peer)
{
    proto_body_t body = {.peer_down = {.peer = peer}};
    feed(ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, 0, &body);
}

static void
command(uint32_t client, const char *verb, const char *argument)
{
    proto_body_t body = {.command = {.verb = proto_text(verb), .argument = proto_text(argument)}};
    feed(client, PROTO_KIND_COMMAND, 0, &body);
}

static void
done(uint32_t peer, uint64_t number, proto_status_t status, const char *detail)
{
    proto_body_t body = {.command_done = {.status = status, .detail = proto_text(detail)}};
    feed(peer, PROTO_KIND_COMMAND_DONE, number, &body);
}

static void
timer(void)
{
    proto_body_t body = {.timer = {.deadline_ns = now_ns}};
    feed(ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &body);
}

/* The message at that place of the outbox, decoded into `got`. */
static const actor_emission_t *
sent(uint32_t index, uint32_t to, proto_kind_t kind)
{
    ck_assert_uint_lt(index, actor_outbox_count(outbox));
    const actor_emission_t *emission = actor_outbox_at(outbox, index);
    ck_assert_uint_eq(emission->to.index, to);
    ck_assert_int_eq(emission->kind, kind);
    ck_assert_int_eq(proto_body_decode(kind, emission->body, emission->blob, &got, NULL),
                     STATUS_OK);
    return emission;
}

static bool
text_has(proto_text_t text, const char *word)
{
    char copy[PROTO_TEXT_LEN_MAX + 1];
    (void)snprintf(copy, sizeof copy, "%.*s", (int)text.size_bytes, text.data);
    return strstr(copy, word) != NULL;
}

static void
expect_answer(uint32_t index, uint32_t client, proto_status_t status, const char *word)
{
    (void)sent(index, client, PROTO_KIND_COMMAND_DONE);
    ck_assert_int_eq(got.command_done.status, status);
    ck_assert_msg(text_has(got.command_done.detail, word), "'%.*s' does not say '%s'",
                  (int)got.command_done.detail.size_bytes, got.command_done.detail.data, word);
}

/* The number under which the executor was asked. */
static uint64_t
expect_asked(uint32_t index, const char *verb)
{
    uint64_t number = sent(index, EXECUTOR_PEER, PROTO_KIND_COMMAND)->request;
    ck_assert(text_has(got.command.verb, verb));
    ck_assert_uint_ne(number, 0);
    return number;
}

static uint64_t
ask(uint32_t client, const char *verb, const char *argument)
{
    command(client, verb, argument);
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    return expect_asked(0, verb);
}

static uint64_t
refused(void)
{
    proto_stats_t stats = {.refused_in = 0};
    actor_supervisor_core_ops.stats(&core, &stats);
    return stats.refused_in;
}

static void
setup(void)
{
    static const actor_supervisor_child_t children[MEMBER_COUNT] = {
        [GATEWAY] = {.name = "gateway", .role = PROTO_ROLE_GATEWAY},
        [EXECUTOR] = {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR}};
    now_ns = 100 * SECOND;
    ck_assert_int_eq(actor_outbox_new(&actor_supervisor_core_ops, &outbox), STATUS_OK);
    actor_supervisor_core_init(&core, children, MEMBER_COUNT);
    for (uint32_t index = 0; index < MEMBER_COUNT; index++) {
        actor_supervisor_core_begin(&core, index, 1);
        link_up(index + 1, children[index].name);
        say_state(index + 1, ACTOR_STATE_READY);
    }
    ck_assert_uint_eq(actor_supervisor_core_ops.deadline_ns(&core), UINT64_MAX);
}

static void
teardown(void)
{
    actor_outbox_destroy(&outbox);
}

START_TEST(answer_goes_to_who_asked)
{
    uint64_t number = ask(ALICE, "executor-show", "");
    done(EXECUTOR_PEER, number, STATUS_OK, "graphs are on");
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    expect_answer(0, ALICE, STATUS_OK, "graphs are on");
    ck_assert_uint_eq(actor_supervisor_core_ops.deadline_ns(&core), UINT64_MAX);
    ck_assert_uint_eq(refused(), 0);
}
END_TEST

START_TEST(no_executor_is_ready)
{
    static const actor_state_t states[] = {ACTOR_STATE_STARTING, ACTOR_STATE_LOADING,
                                           ACTOR_STATE_DRAINING, ACTOR_STATE_FAILING};
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        say_state(EXECUTOR_PEER, states[i]);
        command(ALICE, "executor-show", "");
        ck_assert_uint_eq(actor_outbox_count(outbox), 1);
        expect_answer(0, ALICE, STATUS_ERR_OVERLOADED, "no executor is ready");
    }
    say_state(EXECUTOR_PEER, ACTOR_STATE_READY);
    link_down(EXECUTOR_PEER);
    command(ALICE, "executor-show", "");
    expect_answer(0, ALICE, STATUS_ERR_OVERLOADED, "no executor is ready");
}
END_TEST

/* Its link ends, or only its process does (the link of a killed one is noticed later). */
START_TEST(executor_dies_during_a_wish)
{
    uint64_t number = ask(ALICE, "executor-check", "");
    if (_i == 0) {
        link_down(EXECUTOR_PEER);
        ck_assert_uint_eq(actor_outbox_count(outbox), 1);
        expect_answer(0, ALICE, STATUS_ERR_PEER_LOST, "ended");
    } else {
        proto_body_t body = {.down = {.role = PROTO_ROLE_EXECUTOR,
                                      .name = proto_text("executor-0"),
                                      .epoch = 1,
                                      .detail = proto_text("signal 9")}};
        feed(ACTOR_PEER_LOCAL, PROTO_KIND_DOWN, 0, &body);
        ck_assert_uint_eq(actor_outbox_count(outbox), 2);
        (void)sent(0, GATEWAY_PEER, PROTO_KIND_DOWN);
        expect_answer(1, ALICE, STATUS_ERR_PEER_LOST, "ended");
    }
    /* Its successor may be asked at once, and says nothing about what the old one was asked. */
    actor_supervisor_core_begin(&core, EXECUTOR, 1);
    link_up(EXECUTOR_PEER, "executor-0");
    say_state(EXECUTOR_PEER, ACTOR_STATE_READY);
    uint64_t next = ask(BOB, "executor-check", "");
    ck_assert_uint_ne(next, number);
    done(EXECUTOR_PEER, number, STATUS_OK, "old");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(EXECUTOR_PEER, next, STATUS_OK, "new");
    expect_answer(0, BOB, STATUS_OK, "new");
}
END_TEST

/* The end of another member is no business of this wish; nor is its word, nor a client's. */
START_TEST(only_the_one_asked_answers)
{
    uint64_t number = ask(ALICE, "executor-check", "");
    done(GATEWAY_PEER, number, STATUS_OK, "a lie");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(BOB, number, STATUS_OK, "a lie");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(EXECUTOR_PEER, 0, STATUS_OK, "for nobody");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(EXECUTOR_PEER, number + 1, STATUS_OK, "for nobody");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ck_assert_uint_eq(refused(), 4);
    link_down(GATEWAY_PEER);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(EXECUTOR_PEER, number, STATUS_OK, "the truth");
    expect_answer(0, ALICE, STATUS_OK, "the truth");
}
END_TEST

/* A check that is overdue is withdrawn, and its late verdict answers nobody. */
START_TEST(late_answer_is_dropped)
{
    uint64_t number = ask(ALICE, "executor-check", "");
    uint64_t deadline_ns = actor_supervisor_core_ops.deadline_ns(&core);
    ck_assert_uint_eq(deadline_ns, now_ns + ACTOR_SUPERVISOR_CHECK_S * SECOND);
    now_ns = deadline_ns - 1;
    timer();
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    now_ns = deadline_ns;
    timer();
    ck_assert_uint_eq(actor_outbox_count(outbox), 2);
    ck_assert_uint_eq(expect_asked(0, "executor-cancel"), number);
    expect_answer(1, ALICE, STATUS_ERR_DEADLINE, "no step came");
    ck_assert_uint_eq(actor_supervisor_core_ops.deadline_ns(&core), UINT64_MAX);

    uint64_t next = ask(BOB, "executor-check", "");
    done(EXECUTOR_PEER, number, STATUS_ERR_INTERNAL, "late");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ck_assert_uint_eq(refused(), 1);
    done(EXECUTOR_PEER, next, STATUS_OK, "in time");
    expect_answer(0, BOB, STATUS_OK, "in time");
}
END_TEST

/* What is done between two steps does not wait for a step, and does not speak of one. */
START_TEST(each_verb_has_its_deadline)
{
    uint64_t number = ask(ALICE, "executor-graphs", "off");
    ck_assert_uint_eq(actor_supervisor_core_ops.deadline_ns(&core),
                      now_ns + ACTOR_SUPERVISOR_WISH_S * SECOND);
    uint64_t check = ask(BOB, "executor-check", "");
    now_ns += ACTOR_SUPERVISOR_WISH_S * SECOND;
    timer();
    ck_assert_uint_eq(actor_outbox_count(outbox), 2);
    ck_assert_uint_eq(expect_asked(0, "executor-cancel"), number);
    expect_answer(1, ALICE, STATUS_ERR_DEADLINE, "too busy");
    done(EXECUTOR_PEER, check, STATUS_OK, "agree");
    expect_answer(0, BOB, STATUS_OK, "agree");
}
END_TEST

/* The end of a move is the answer to who asked for the move, or to nobody. */
START_TEST(move_ends_meanwhile)
{
    uint64_t check = ask(ALICE, "executor-check", "");
    done(ACTOR_PEER_LOCAL, 0, STATUS_OK, "a complaint's move has ended");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    command(BOB, "scheduler-attach", "ipc:///nowhere");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    actor_supervisor_command_t *move = actor_supervisor_core_next(&core);
    ck_assert_ptr_nonnull(move);
    move->is_new = false;
    ck_assert_ptr_null(actor_supervisor_core_next(&core));
    done(ACTOR_PEER_LOCAL, move->number, STATUS_OK, "it plans for this node");
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    expect_answer(0, BOB, STATUS_OK, "it plans");
    done(EXECUTOR_PEER, check, STATUS_OK, "agree");
    expect_answer(0, ALICE, STATUS_OK, "agree");
}
END_TEST

/* A pending check holds nobody up but a second one; answers may come in any order. */
START_TEST(two_clients_at_once)
{
    uint64_t check = ask(ALICE, "executor-check", "");
    command(BOB, "executor-check", "");
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    expect_answer(0, BOB, STATUS_ERR_OVERLOADED, "another check");
    uint64_t show = ask(BOB, "executor-show", "");
    done(EXECUTOR_PEER, show, STATUS_OK, "graphs are on");
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    expect_answer(0, BOB, STATUS_OK, "graphs are on");
    uint64_t off = ask(BOB, "executor-graphs", "off");
    done(EXECUTOR_PEER, check, STATUS_ERR_REFUSED, "switched off");
    expect_answer(0, ALICE, STATUS_ERR_REFUSED, "switched off");
    done(EXECUTOR_PEER, off, STATUS_OK, "graphs are off");
    expect_answer(0, BOB, STATUS_OK, "graphs are off");
}
END_TEST

START_TEST(places_are_limited_and_come_back)
{
    uint64_t numbers[ACTOR_SUPERVISOR_COMMAND_COUNT_MAX];
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        numbers[i] = ask(ALICE, "executor-show", "");
    }
    command(BOB, "executor-show", "");
    expect_answer(0, BOB, STATUS_ERR_OVERLOADED, "too many");
    done(EXECUTOR_PEER, numbers[3], STATUS_OK, "one");
    expect_answer(0, ALICE, STATUS_OK, "one");
    (void)ask(BOB, "executor-show", "");
    now_ns += ACTOR_SUPERVISOR_WISH_S * SECOND;
    timer(); /* every one of them at once */
    ck_assert_uint_eq(actor_outbox_count(outbox), 2 * ACTOR_SUPERVISOR_COMMAND_COUNT_MAX);
}
END_TEST

/* Who left keeps no place: the check is withdrawn, and a newcomer with the same peer number is not
 * taken for it. */
START_TEST(client_gone)
{
    uint64_t number = ask(ALICE, "executor-check", "");
    link_down(ALICE);
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    ck_assert_uint_eq(expect_asked(0, "executor-cancel"), number);
    ck_assert_uint_eq(actor_supervisor_core_ops.deadline_ns(&core), UINT64_MAX);
    uint64_t next = ask(ALICE, "executor-check", "");
    done(EXECUTOR_PEER, number, STATUS_OK, "for the one who left");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    done(EXECUTOR_PEER, next, STATUS_OK, "for the newcomer");
    expect_answer(0, ALICE, STATUS_OK, "for the newcomer");
    /* One of the process side, read or not. */
    command(BOB, "scheduler-show", "");
    link_down(BOB);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ck_assert_ptr_null(actor_supervisor_core_next(&core));
}
END_TEST

/* Only the supervisor withdraws. */
START_TEST(operator_cannot_cancel)
{
    (void)ask(ALICE, "executor-check", "");
    command(BOB, "executor-cancel", "");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ck_assert_ptr_nonnull(actor_supervisor_core_next(&core)); /* "no such command" */
}
END_TEST

/* What the null device answers (UNSUPPORTED) passes as any other. */
START_TEST(unsupported_is_passed_on)
{
    uint64_t number = ask(ALICE, "executor-check", "");
    done(EXECUTOR_PEER, number, STATUS_ERR_UNSUPPORTED, "the null device");
    expect_answer(0, ALICE, STATUS_ERR_UNSUPPORTED, "the null device");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.supervisor_wish");
    TCase *test = tcase_create("wish");
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, answer_goes_to_who_asked);
    tcase_add_test(test, no_executor_is_ready);
    tcase_add_loop_test(test, executor_dies_during_a_wish, 0, 2);
    tcase_add_test(test, only_the_one_asked_answers);
    tcase_add_test(test, late_answer_is_dropped);
    tcase_add_test(test, each_verb_has_its_deadline);
    tcase_add_test(test, move_ends_meanwhile);
    tcase_add_test(test, two_clients_at_once);
    tcase_add_test(test, places_are_limited_and_come_back);
    tcase_add_test(test, client_gone);
    tcase_add_test(test, operator_cannot_cancel);
    tcase_add_test(test, unsupported_is_passed_on);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
