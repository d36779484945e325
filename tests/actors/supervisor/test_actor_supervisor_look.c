/* Looks, drains and log levels at the supervisor's core.  The clock and the members are the
 * test's. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_supervisor_core.h"

#define SECOND UINT64_C(1000000000)

enum { GATEWAY = 0, SCHEDULER = 1, EXECUTOR = 2, MEMBER_COUNT = 3 };
enum { GATEWAY_PEER = 1, SCHEDULER_PEER = 2, EXECUTOR_PEER = 3, ALICE = 10, BOB = 11 };

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

static void
look(uint32_t client, proto_look_target_t target)
{
    proto_body_t body = {.look = {.target = target, .after = 7}};
    feed(client, PROTO_KIND_LOOK, 0, &body);
}

static void
show(uint32_t peer, uint64_t number, uint32_t total)
{
    proto_body_t body = {.requests = {.total = total}};
    feed(peer, PROTO_KIND_REQUESTS, number, &body);
}

static void
timer(void)
{
    proto_body_t body = {.timer = {.deadline_ns = now_ns}};
    feed(ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &body);
}

static void
expect_refusal(uint32_t client, proto_status_t status)
{
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    (void)sent(0, client, PROTO_KIND_REQUESTS);
    ck_assert_int_eq(got.requests.status, status);
    ck_assert_uint_gt(got.requests.detail.size_bytes, 0);
}

static void
expect_done(uint32_t index, uint32_t client, proto_status_t status)
{
    (void)sent(index, client, PROTO_KIND_COMMAND_DONE);
    ck_assert_int_eq(got.command_done.status, status);
}

static void
expect_hold(uint32_t index, bool on, const char *owner)
{
    (void)sent(index, GATEWAY_PEER, PROTO_KIND_HOLD);
    ck_assert(got.hold.on == on);
    ck_assert_uint_eq(got.hold.owner.size_bytes, strlen(owner));
    ck_assert(strlen(owner) == 0 || memcmp(got.hold.owner.data, owner, strlen(owner)) == 0);
}

static void
setup(void)
{
    static const actor_supervisor_child_t children[MEMBER_COUNT] = {
        [GATEWAY] = {.name = "gateway", .role = PROTO_ROLE_GATEWAY},
        [SCHEDULER] = {.name = "scheduler", .role = PROTO_ROLE_SCHEDULER},
        [EXECUTOR] = {.name = "executor-0", .role = PROTO_ROLE_EXECUTOR}};
    now_ns = 100 * SECOND;
    ck_assert_int_eq(actor_outbox_new(&actor_supervisor_core_ops, &outbox), STATUS_OK);
    actor_supervisor_core_init(&core, children, MEMBER_COUNT);
    for (uint32_t index = 0; index < MEMBER_COUNT; index++) {
        actor_supervisor_core_begin(&core, index, 1);
        link_up(index + 1, children[index].name);
        say_state(index + 1, ACTOR_STATE_READY);
    }
}

static void
teardown(void)
{
    actor_outbox_destroy(&outbox);
}

/* Each answer finds who asked; the same number a second time finds nobody. */
START_TEST(looks_are_passed_on_and_back)
{
    look(ALICE, PROTO_LOOK_GATEWAY);
    uint64_t first = sent(0, GATEWAY_PEER, PROTO_KIND_LOOK)->request;
    ck_assert_uint_eq(got.look.after, 7);
    look(BOB, PROTO_LOOK_SCHEDULER);
    uint64_t second = sent(0, SCHEDULER_PEER, PROTO_KIND_LOOK)->request;
    look(BOB, PROTO_LOOK_LOAD);
    uint64_t third = sent(0, GATEWAY_PEER, PROTO_KIND_LOOK)->request;
    show(GATEWAY_PEER, second, 1); /* not its own */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    show(SCHEDULER_PEER, second, 2);
    (void)sent(0, BOB, PROTO_KIND_REQUESTS);
    ck_assert_uint_eq(got.requests.total, 2);
    show(GATEWAY_PEER, first, 3);
    (void)sent(0, ALICE, PROTO_KIND_REQUESTS);
    proto_body_t load = {.load = {.running = 4}};
    feed(GATEWAY_PEER, PROTO_KIND_LOAD, third, &load);
    (void)sent(0, BOB, PROTO_KIND_LOAD);
    ck_assert_uint_eq(got.load.running, 4);
    show(GATEWAY_PEER, first, 3);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ck_assert_uint_eq(actor_supervisor_core_ops.deadline_ns(&core), UINT64_MAX);
}
END_TEST

START_TEST(a_look_that_nobody_answers_ends)
{
    look(ALICE, PROTO_LOOK_GATEWAY);
    ck_assert_uint_eq(actor_supervisor_core_ops.deadline_ns(&core), now_ns + 2 * SECOND);
    now_ns += 2 * SECOND;
    timer();
    expect_refusal(ALICE, STATUS_ERR_DEADLINE);
    look(ALICE, PROTO_LOOK_SCHEDULER);
    link_down(SCHEDULER_PEER);
    expect_refusal(ALICE, STATUS_ERR_PEER_LOST);
    look(ALICE, PROTO_LOOK_SCHEDULER);
    expect_refusal(ALICE, STATUS_ERR_NOT_FOUND);
    look(ALICE, PROTO_LOOK_GATEWAY);
    link_down(ALICE); /* who left is answered no more */
    now_ns += 2 * SECOND;
    timer();
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
}
END_TEST

START_TEST(looks_are_limited_and_come_back)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        look(ALICE, PROTO_LOOK_GATEWAY);
        (void)sent(0, GATEWAY_PEER, PROTO_KIND_LOOK);
    }
    look(BOB, PROTO_LOOK_ACTORS);
    expect_refusal(BOB, STATUS_ERR_OVERLOADED);
    now_ns += 2 * SECOND;
    timer();
    ck_assert_uint_eq(actor_outbox_count(outbox), ACTOR_SUPERVISOR_LOOK_COUNT_MAX);
    look(BOB, PROTO_LOOK_ACTORS);
    actor_supervisor_look_t *wanted = actor_supervisor_look_next(&core);
    ck_assert_ptr_nonnull(wanted);
    proto_body_t actors = {.actors = {.node_state = PROTO_NODE_READY}};
    feed(ACTOR_PEER_LOCAL, PROTO_KIND_ACTORS, wanted->number, &actors);
    (void)sent(0, BOB, PROTO_KIND_ACTORS);
    feed(ACTOR_PEER_LOCAL, PROTO_KIND_ACTORS, 0, &actors); /* of its own accord */
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    (void)sent(0, GATEWAY_PEER, PROTO_KIND_ACTORS);
}
END_TEST

/* Who plans elsewhere is not asked in vain. */
START_TEST(an_attached_scheduler_is_not_asked)
{
    proto_body_t linked = {.linked = {.role = PROTO_ROLE_SCHEDULER,
                                      .name = proto_text("theirs"),
                                      .epoch = 1,
                                      .endpoint = proto_text("ipc:///run/theirs")}};
    feed(GATEWAY_PEER, PROTO_KIND_LINKED, 0, &linked);
    look(ALICE, PROTO_LOOK_SCHEDULER);
    expect_refusal(ALICE, STATUS_ERR_UNSUPPORTED);
}
END_TEST

START_TEST(a_drain_has_an_owner_and_outlives_the_gateway)
{
    command(ALICE, "drain", "alice");
    expect_hold(0, true, "alice");
    expect_done(1, ALICE, STATUS_OK);
    command(BOB, "drain", "bob");
    expect_done(0, BOB, STATUS_ERR_REFUSED);
    command(BOB, "undrain", "bob");
    expect_done(0, BOB, STATUS_ERR_REFUSED);
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    command(ALICE, "drain", "alice"); /* again: the same */
    expect_done(1, ALICE, STATUS_OK);
    link_down(GATEWAY_PEER);
    actor_supervisor_core_begin(&core, GATEWAY, 1);
    link_up(GATEWAY_PEER, "gateway");
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    expect_hold(0, true, "alice");
    command(ALICE, "undrain", "alice");
    expect_hold(0, false, "");
    expect_done(1, ALICE, STATUS_OK);
    command(BOB, "drain", "bob");
    command(ALICE, "undrain", "*");
    expect_hold(0, false, "");
    command(ALICE, "undrain", "alice"); /* nothing to do is done */
    expect_done(1, ALICE, STATUS_OK);
    char long_name[80];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    command(ALICE, "drain", long_name);
    expect_done(0, ALICE, STATUS_ERR_INVALID);
    command(ALICE, "drain", "");
    expect_done(0, ALICE, STATUS_ERR_INVALID);
    link_up(GATEWAY_PEER, "gateway");
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
}
END_TEST

START_TEST(graphs_that_are_off_stay_off)
{
    command(ALICE, "executor-graphs", "off");
    uint64_t number = sent(0, EXECUTOR_PEER, PROTO_KIND_COMMAND)->request;
    proto_body_t answer = {.command_done = {.status = STATUS_OK}};
    feed(EXECUTOR_PEER, PROTO_KIND_COMMAND_DONE, number, &answer);
    link_down(EXECUTOR_PEER);
    actor_supervisor_core_begin(&core, EXECUTOR, 1);
    link_up(EXECUTOR_PEER, "executor-0");
    say_state(EXECUTOR_PEER, ACTOR_STATE_LOADING);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    say_state(EXECUTOR_PEER, ACTOR_STATE_READY);
    uint64_t own = sent(0, EXECUTOR_PEER, PROTO_KIND_COMMAND)->request;
    ck_assert_uint_eq(got.command.argument.size_bytes, 3); /* off */
    feed(EXECUTOR_PEER, PROTO_KIND_COMMAND_DONE, own, &answer);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ck_assert_uint_eq(core.refused_count, 0);
    say_state(EXECUTOR_PEER, ACTOR_STATE_READY); /* said again: told once */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    command(ALICE, "executor-graphs", "on");
    number = sent(0, EXECUTOR_PEER, PROTO_KIND_COMMAND)->request;
    feed(EXECUTOR_PEER, PROTO_KIND_COMMAND_DONE, number, &answer);
    say_state(EXECUTOR_PEER, ACTOR_STATE_LOADING);
    say_state(EXECUTOR_PEER, ACTOR_STATE_READY);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
}
END_TEST

START_TEST(a_level_goes_to_its_actor)
{
    command(ALICE, "log-level", "scheduler debug");
    uint64_t number = sent(0, SCHEDULER_PEER, PROTO_KIND_COMMAND)->request;
    ck_assert_uint_eq(got.command.argument.size_bytes, 5);
    proto_body_t answer = {.command_done = {.status = STATUS_OK}};
    feed(SCHEDULER_PEER, PROTO_KIND_COMMAND_DONE, number, &answer);
    expect_done(0, ALICE, STATUS_OK);
    command(ALICE, "log-level", "supervisor debug"); /* the process side's */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    ck_assert_ptr_nonnull(actor_supervisor_core_next(&core));
    command(BOB, "log-level", "gateway debug");
    now_ns += 10 * SECOND;
    timer();
    ck_assert_uint_eq(actor_outbox_count(outbox), 1); /* nothing is withdrawn from a gateway */
    expect_done(0, BOB, STATUS_ERR_DEADLINE);
}
END_TEST

/* What a member says of its links is bounded, and misshapen words change nothing. */
START_TEST(links_are_kept_bounded)
{
    char names[PROTO_TEXT_LEN_MAX];
    uint32_t ages[PROTO_LOOK_ACTORS_MAX] = {5};
    uint64_t counts[PROTO_LOOK_ACTORS_MAX] = {6};
    uint32_t size = 0;
    for (uint32_t i = 0; i < PROTO_LOOK_ACTORS_MAX; i++) {
        size += (uint32_t)snprintf(names + size, sizeof names - size, "peer-%u\n", i);
    }
    proto_body_t body = {
        .links = {.names = {.data = names, .size_bytes = size},
                  .ages_ms = {.data = ages, .count = PROTO_LOOK_ACTORS_MAX},
                  .messages_in = {.data = counts, .count = PROTO_LOOK_ACTORS_MAX},
                  .messages_out = {.data = counts, .count = PROTO_LOOK_ACTORS_MAX}}};
    feed(GATEWAY_PEER, PROTO_KIND_LINKS, 0, &body);
    const actor_supervisor_member_t *member = &core.members[GATEWAY];
    ck_assert_uint_eq(member->link_count, ACTOR_SUPERVISOR_LINK_COUNT_MAX);
    ck_assert_str_eq(member->links[1].peer, "peer-1");
    ck_assert_uint_eq(member->links[0].age_ms, 5);
    body.links.messages_in.count = 1;
    feed(GATEWAY_PEER, PROTO_KIND_LINKS, 0, &body);
    ck_assert_uint_eq(member->link_count, ACTOR_SUPERVISOR_LINK_COUNT_MAX);
    body.links.messages_in.count = PROTO_LOOK_ACTORS_MAX;
    body.links.names.size_bytes = 3; /* not one whole name */
    feed(GATEWAY_PEER, PROTO_KIND_LINKS, 0, &body);
    ck_assert_uint_eq(member->link_count, 0);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.supervisor_look");
    TCase *test = tcase_create("look");
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, looks_are_passed_on_and_back);
    tcase_add_test(test, a_look_that_nobody_answers_ends);
    tcase_add_test(test, looks_are_limited_and_come_back);
    tcase_add_test(test, an_attached_scheduler_is_not_asked);
    tcase_add_test(test, a_drain_has_an_owner_and_outlives_the_gateway);
    tcase_add_test(test, graphs_that_are_off_stay_off);
    tcase_add_test(test, a_level_goes_to_its_actor);
    tcase_add_test(test, links_are_kept_bounded);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
