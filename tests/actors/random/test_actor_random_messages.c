/* Valid messages of every kind that the link of a role lets through, in any order, with values that
 * are mostly small enough to mean something: no core aborts, breaks an invariant of its own, or
 * sends more than it said it would.  A peer is hostile; the own shell is not, so what it says
 * (links that open and end, timers, the device's readiness) is true.
 *
 * ONEPATH_SEED repeats a run; ONEPATH_LONG makes it a million messages for each core. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "actor_executor_core.h"
#include "actor_gateway_core.h"
#include "actor_roles.h"
#include "actor_scheduler_core.h"
#include "message_maker.h"

enum {
    PEERS = 6, /* 1..PEERS-1 may be up */
    ROUNDS = 50000,
    ROUNDS_LONG = 1000000,
    CONTENT_MAX = 24,
    LOCAL_COUNT_MAX = 1 << 20,
};

typedef struct {
    const char *name;
    const actor_core_ops_t *ops;
    void *core;
    actor_outbox_t *outbox;
    maker_t *maker;
    const proto_role_t *roles; /* of peers that this actor has links to */
    uint32_t role_count;
    proto_role_t up[PEERS]; /* NONE: down */
    uint64_t epochs[PEERS];
    uint64_t epoch;
    uint64_t now_ns;
    uint64_t sequence;
    uint64_t given_count;
    uint64_t sent_count;
    uint64_t sent_kinds[256];
    uint8_t sampling[256]; /* an encoded SAMPLING: greedy */
    uint32_t sampling_size;
} world_t;

static uint64_t
below(world_t *world, uint64_t limit)
{
    return maker_random(world->maker) % limit;
}

static void
give(world_t *world, uint32_t from, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = from != ACTOR_PEER_LOCAL ? world->epochs[from] : 0,
                             .sequence = world->sequence + 1,
                             .request = request};
    actor_input_t input = {.now_ns = world->now_ns,
                           .sequence = ++world->sequence,
                           .from = {from},
                           .header = &header,
                           .body = body};
    world->ops->step(world->core, &input, world->outbox);
    world->given_count++;
    world->sent_count += actor_outbox_count(world->outbox);
    for (uint32_t index = 0; index < actor_outbox_count(world->outbox); index++) {
        world->sent_kinds[actor_outbox_at(world->outbox, index)->kind % 256]++;
    }
    actor_outbox_clear(world->outbox);
}

/* What every number is, once in a while: near the limits, and otherwise such as may be an index, a
 * slot, a step or a request that exists. */
static void
make_plausible(world_t *world, const proto_message_t *message, proto_body_t *body)
{
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        void *at = (uint8_t *)body + field->offset_bytes;
        if (below(world, 8) == 0) {
            continue;
        }
        uint64_t small = below(world, 12);
        if (field->type == PROTO_FIELD_U32 && small <= field->limit) {
            *(uint32_t *)at = (uint32_t)small;
        } else if (field->type == PROTO_FIELD_U64 && small <= field->limit) {
            *(uint64_t *)at = small;
        }
    }
    if (message->kind == PROTO_KIND_SUBMIT && below(world, 2) == 0) {
        body->submit.prompt_length = body->submit.tokens.count;
        body->submit.page_hashes = (proto_bytes_t){NULL, 0};
        body->submit.emitted = 0;
        body->submit.transfer =
            below(world, 4) == 0; /* a node without transfers refuses the rest */
    } else if (message->kind == PROTO_KIND_ADMIT && below(world, 2) == 0) {
        static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7};
        body->admit = (proto_admit_t){.slot = 1 + (uint32_t)below(world, 8),
                                      .prompt_length = 7,
                                      .length_max = 7 + 1 + (uint32_t)below(world, 20),
                                      .tokens = {tokens, 7},
                                      .sampling = {world->sampling, world->sampling_size}};
    }
}

static void
give_message(world_t *world, uint32_t from, const proto_message_t *message)
{
    static proto_body_t body;
    maker_fill(world->maker, message, &body);
    if (below(world, 4) != 0) {
        make_plausible(world, message, &body);
    }
    /* What comes over a link was encoded and decoded, so that columns lie as they do there. */
    static encoded_t bytes;
    static proto_body_t decoded;
    maker_encode(message, &body, &bytes);
    proto_error_t error = {""};
    ck_assert_int_eq(
        proto_body_decode(message->kind, (proto_bytes_t){bytes.body, bytes.body_size_bytes},
                          (proto_bytes_t){bytes.blob_size_bytes > 0 ? bytes.blob : NULL,
                                          bytes.blob_size_bytes},
                          &decoded, &error),
        STATUS_OK);
    give(world, from, message->kind,
         below(world, 3) == 0 ? maker_random(world->maker) : below(world, 20), &decoded);
}

static void
peer_up(world_t *world, uint32_t peer)
{
    world->up[peer] = world->roles[below(world, world->role_count)];
    world->epochs[peer] = ++world->epoch;
    proto_body_t body = {.peer_up = {.peer = peer,
                                     .role = world->up[peer],
                                     .name = proto_text("peer"),
                                     .epoch = world->epochs[peer]}};
    give(world, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, 0, &body);
}

static void
peer_down(world_t *world, uint32_t peer)
{
    proto_body_t body = {.peer_down = {.peer = peer,
                                       .role = world->up[peer],
                                       .epoch = world->epochs[peer],
                                       .detail = proto_text("gone")}};
    world->up[peer] = PROTO_ROLE_NONE;
    give(world, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, 0, &body);
}

/* The messages that peers of a role may send, by index in the list. */
static uint32_t
choose(world_t *world, proto_role_t role)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (;;) {
        uint32_t index = (uint32_t)below(world, count);
        if (messages[index].is_wire && !messages[index].is_map &&
            messages[index].kind != PROTO_KIND_HEARTBEAT &&
            messages[index].kind != PROTO_KIND_BYE && messages[index].kind != PROTO_KIND_NAK &&
            actor_roles_may_send(role, messages[index].kind)) {
            return index;
        }
    }
}

static void
round_once(world_t *world, void (*welcome)(world_t *world, uint32_t peer))
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    uint32_t peer = 1 + (uint32_t)below(world, PEERS - 1);
    world->now_ns += below(world, 16) == 0 ? below(world, 2000000000) : below(world, 1000000);
    if (world->up[peer] == PROTO_ROLE_NONE) {
        peer_up(world, peer);
        if (below(world, 4) != 0) {
            welcome(world, peer);
        }
    } else if (below(world, 200) == 0) {
        peer_down(world, peer);
    } else {
        give_message(world, peer, &messages[choose(world, world->up[peer])]);
    }
    uint64_t deadline_ns = world->ops->deadline_ns(world->core);
    if (world->now_ns >= deadline_ns) {
        proto_body_t body = {.timer = {.deadline_ns = deadline_ns}};
        give(world, ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &body);
    }
}

static void
run(world_t *world, void (*welcome)(world_t *world, uint32_t peer))
{
    uint64_t rounds = getenv("ONEPATH_LONG") != NULL ? ROUNDS_LONG : ROUNDS;
    world->maker = maker_new(maker_seed(world->name), CONTENT_MAX);
    world->now_ns = 1000000000;
    proto_body_t sampling = {.sampling = {.top_p = 1, .repetition_penalty = 1}};
    size_t size = 0;
    size_t blob_size = 0;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &sampling, world->sampling,
                                       sizeof world->sampling, &size, NULL, 0, &blob_size),
                     STATUS_OK);
    world->sampling_size = (uint32_t)size;
    ck_assert_int_eq(actor_outbox_new(world->ops, &world->outbox), STATUS_OK);
    for (uint64_t round = 0; round < rounds; round++) {
        round_once(world, welcome);
        if (round % 64 == 0 && world->ops->check != NULL) {
            world->ops->check(world->core);
        }
        (void)world->ops->digest(world->core);
    }
    proto_stats_t stats = {0};
    world->ops->stats(world->core, &stats);
    ck_assert_uint_ge(world->given_count, rounds);
    ck_assert_msg(world->sent_count > rounds / 200, "only %llu answers: the messages meant nothing",
                  (unsigned long long)world->sent_count);
    actor_outbox_destroy(&world->outbox);
    free(world->maker);
}

/* ---- scheduler ------------------------------------------------------------------------------- */

/* An executor says what it has, as a real one would: then its further messages mean something. */
static void
welcome_scheduler(world_t *world, uint32_t peer)
{
    static const uint32_t zero = 0;
    static const uint32_t one = 1;
    static const uint32_t granularity = 4;
    static const uint8_t key[PROTO_HASH_SIZE_BYTES] = {9};
    if (world->up[peer] != PROTO_ROLE_EXECUTOR) {
        return;
    }
    proto_body_t body = {.executor_info = {.model_name = proto_text("toy"),
                                           .fingerprint = proto_text("model=1"),
                                           .vocab_size = 1000,
                                           .model_len_max = 128,
                                           .slot_count = 8,
                                           .step_tokens_max = 64,
                                           .decode_width = 1,
                                           .overlap_depth_max = 1,
                                           .prefix_granularity = granularity,
                                           .parent_count = 33,
                                           .group_kinds = {&zero, 1},
                                           .group_granularities = {&granularity, 1},
                                           .group_windows = {&zero, 1},
                                           .group_packings = {&one, 1},
                                           .page_hash_key = {key, sizeof key}}};
    give(world, peer, PROTO_KIND_EXECUTOR_INFO, 0, &body);
}

/* ---- gateway --------------------------------------------------------------------------------- */

static void
welcome_gateway(world_t *world, uint32_t peer)
{
    static const uint8_t key[PROTO_HASH_SIZE_BYTES] = {9};
    proto_body_t body = {.model_info = {.model_name = proto_text("m"),
                                        .fingerprint = proto_text("f"),
                                        .vocab_size = 1000,
                                        .model_len_max = 128,
                                        .prompt_len_max = 100,
                                        .slot_count = 8,
                                        .queue_len_max = 16,
                                        .prefix_granularity = 4,
                                        .token_capacity = 4096,
                                        .page_hash_key = {key, sizeof key}}};
    give(world, peer, PROTO_KIND_MODEL_INFO, 0, &body);
}

/* ---- executor -------------------------------------------------------------------------------- */

static void
welcome_executor(world_t *world, uint32_t peer)
{
    (void)world;
    (void)peer;
}

static void
ready_executor(world_t *world)
{
    static const uint32_t zero = 0;
    static const uint32_t one = 1;
    static const uint32_t granularity = 4;
    static const uint8_t key[PROTO_HASH_SIZE_BYTES] = {9};
    proto_body_t body = {.device_ready = {.model_name = proto_text("toy"),
                                          .fingerprint = proto_text("model=1"),
                                          .vocab_size = 1000,
                                          .model_len_max = 128,
                                          .slot_count = 8,
                                          .step_tokens_max = 64,
                                          .decode_width = 1,
                                          .overlap_depth_max = 1,
                                          .prefix_granularity = granularity,
                                          .parent_count = 33,
                                          .group_kinds = {&zero, 1},
                                          .group_granularities = {&granularity, 1},
                                          .group_windows = {&zero, 1},
                                          .group_packings = {&one, 1},
                                          .page_hash_key = {key, sizeof key}}};
    give(world, ACTOR_PEER_LOCAL, PROTO_KIND_DEVICE_READY, 0, &body);
}

/* Loops 0, 1, 2: scheduler, gateway, executor. */
START_TEST(any_message_in_any_order_harms_no_core)
{
    static const proto_role_t of_scheduler[] = {PROTO_ROLE_GATEWAY, PROTO_ROLE_EXECUTOR};
    static const proto_role_t of_others[] = {PROTO_ROLE_SCHEDULER};
    world_t world = {.roles = _i == 0 ? of_scheduler : of_others, .role_count = _i == 0 ? 2 : 1};
    if (_i == 0) {
        actor_scheduler_core_options_t options = {.queue_len_max = 16, .store_size_bytes = 1 << 20};
        actor_scheduler_core_t *core = NULL;
        ck_assert_int_eq(actor_scheduler_core_new(&options, &core), STATUS_OK);
        world.name = "scheduler";
        world.core = core;
        world.ops = actor_scheduler_core_ops(core);
        run(&world, welcome_scheduler);
        ck_assert_uint_gt(world.sent_kinds[PROTO_KIND_PLAN], 100); /* requests did run */
        ck_assert_uint_gt(world.sent_kinds[PROTO_KIND_FINISHED], 100);
        actor_scheduler_core_destroy(&core);
    } else if (_i == 1) {
        actor_gateway_core_options_t options = {.epoch = 5, .choice_count_max = 64};
        actor_gateway_core_t *core = NULL;
        ck_assert_int_eq(actor_gateway_core_new(&options, &core), STATUS_OK);
        world.name = "gateway";
        world.core = core;
        world.ops = actor_gateway_core_ops();
        run(&world, welcome_gateway);
        ck_assert_uint_gt(world.sent_kinds[PROTO_KIND_HTTP_STATE], 100);
        actor_gateway_core_destroy(&core);
    } else {
        actor_executor_core_options_t options = {.slot_count_max = 8, .model_len_max = 128};
        actor_executor_core_t *core = NULL;
        ck_assert_int_eq(actor_executor_core_new(&options, &core), STATUS_OK);
        world.name = "executor";
        world.core = core;
        world.ops = actor_executor_core_ops(core);
        ck_assert_int_eq(actor_outbox_new(world.ops, &world.outbox), STATUS_OK);
        ready_executor(&world);
        actor_outbox_destroy(&world.outbox);
        run(&world, welcome_executor);
        /* Plans that are right but for one thing are test_actor_executor_hostile.c's. */
        ck_assert_uint_gt(world.sent_kinds[PROTO_KIND_PLAN_REFUSED], 100);
        actor_executor_core_destroy(&core);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.random_messages");
    TCase *test = tcase_create("random");
    tcase_set_timeout(test, 600);
    tcase_add_loop_test(test, any_message_in_any_order_harms_no_core, 0, 3);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
