/* Scenes in which everybody behaves: requests come, are computed and end. */
#include "actor_conform_scenes.h"

#define MS_NS UINT64_C(1000000)

/* ---- an executor comes and goes -------------------------------------------------------------- */

static bool
says_none(conform_stage_t *stage, const void *context)
{
    const uint32_t *count = context;
    return stage->gateways[0].info_count > *count && stage->gateways[0].info.slot_count == 0;
}

/* An executor that nobody can use: its pool is empty. */
static void
offer_useless(conform_stage_t *stage)
{
    uint64_t epoch = ++stage->epoch;
    if (!actor_conform_open_raw(stage, 0, "conform-executor-x", epoch, 1) ||
        !actor_conform_greet_raw(stage, 0, CONFORM_LINK_HANDSHAKE)) {
        return;
    }
    uint32_t zero = 0;
    uint32_t sixteen = 16;
    uint32_t one = 1;
    proto_body_t body = {.executor_info = {.model_name = proto_text("useless"),
                                           .vocab_size = 100,
                                           .model_len_max = 256,
                                           .slot_count = 4,
                                           .step_tokens_max = 64,
                                           .decode_width = 1,
                                           .prefix_granularity = 16,
                                           .parent_count = 1,
                                           .group_kinds = {&zero, 1},
                                           .group_granularities = {&sixteen, 1},
                                           .group_windows = {&zero, 1},
                                           .group_packings = {&one, 1},
                                           .page_hash_key = {stage->book.page_key, 32}}};
    conform_raw_t *raw = &stage->raws[0];
    (void)actor_conform_raw_send(raw, PROTO_KIND_EXECUTOR_INFO, 0, &body);
    bool came = actor_conform_wait_raw(stage, 0, PROTO_KIND_NONE, stage->patience_ns);
    conform_where_t where = {.link = "executor",
                             .kind = raw->header.kind,
                             .sequence = raw->header.sequence};
    if (came && raw->header.kind == PROTO_KIND_NAK && raw->is_readable &&
        raw->body.nak.kind == PROTO_KIND_EXECUTOR_INFO) {
        actor_conform_held(stage->report, CONFORM_ATTACH_REFUSAL);
    } else if (!stage->is_aborted) {
        actor_conform_broke(stage->report, CONFORM_ATTACH_REFUSAL, came ? &where : NULL,
                            "NAK of kind 30 (EXECUTOR_INFO) with the reason",
                            "EXECUTOR_INFO with parent_count 1 (no block at all) was answered "
                            "with %s",
                            came ? proto_kind_name(raw->header.kind) : "nothing");
    }
    proto_body_t bye = {.bye = {.detail = proto_text("the scene goes on")}};
    (void)actor_conform_raw_send(raw, PROTO_KIND_BYE, 0, &bye);
    actor_conform_close_raw(stage, 0);
}

static bool
has_ended(conform_stage_t *stage, const void *context)
{
    (void)stage;
    const conform_request_t *request = context;
    return request->end_count > 0;
}

/* Nobody can compute it: refused, or kept until an executor comes. */
static conform_request_t *
ask_without_executor(conform_stage_t *stage)
{
    conform_ask_t ask = {.prompt_length = 5,
                         .generation_max = 3,
                         .expect = CONFORM_EXPECT_ANY,
                         .rule = CONFORM_END_NO_EXECUTOR};
    conform_request_t *request = actor_conform_ask(stage, &ask);
    if (request == NULL || !actor_conform_wait(stage, 300 * MS_NS, has_ended, request)) {
        return request;
    }
    if (request->end_reason != PROTO_FINISH_REFUSED) {
        actor_conform_broke(stage->report, CONFORM_END_NO_EXECUTOR, &request->end_where,
                            "reason REFUSED, code no_executor", "reason %u, code '%s'",
                            request->end_reason, request->end_code);
    }
    return request;
}

void
actor_conform_scene_attach(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open_gateway(stage, 0)) {
        return;
    }
    uint32_t none = 0;
    conform_gateway_t *gateway = &stage->gateways[0];
    if (!actor_conform_wait(stage, stage->patience_ns, says_none, &none) && !stage->is_aborted) {
        actor_conform_broke(stage->report, CONFORM_ATTACH_LOST, NULL,
                            "MODEL_INFO with slot_count 0 when a gateway's link opens",
                            "%u MODEL_INFO, the last with slot_count %u, without an executor",
                            gateway->info_count, gateway->info.slot_count);
    }
    conform_request_t *early = ask_without_executor(stage);
    offer_useless(stage);
    if (early == NULL || !actor_conform_open_executor(stage, &machine) ||
        !actor_conform_attach(stage, CONFORM_ATTACH_RESET) || !actor_conform_wait_info(stage, 0)) {
        return;
    }
    conform_ask_t ask = {.prompt_length = 5, .generation_max = 3};
    (void)actor_conform_ask(stage, &ask);
    actor_conform_settle(stage);
    if (stage->is_aborted) {
        return;
    }
    uint32_t count = gateway->info_count;
    actor_conform_close_executor(stage);
    if (actor_conform_wait(stage, stage->patience_ns, says_none, &count)) {
        actor_conform_held(stage->report, CONFORM_ATTACH_LOST);
    } else if (!stage->is_aborted) {
        actor_conform_broke(stage->report, CONFORM_ATTACH_LOST, NULL,
                            "MODEL_INFO with slot_count 0",
                            "none after the executor said BYE; the last MODEL_INFO says %u slots",
                            gateway->info.slot_count);
    }
}

/* ---- requests of many lengths ---------------------------------------------------------------- */

/* One after the other: lengths around pages and steps. */
static void
serve_singly(conform_stage_t *stage)
{
    static const uint32_t prompts[] = {1, 5, 15, 16, 17, 33, 64, 65, 130};
    static const uint32_t answers[] = {1, 4, 2, 1, 17, 3, 16, 2, 5};
    for (uint32_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        conform_ask_t ask = {.prompt_length = prompts[i],
                             .generation_max = answers[i],
                             .logprobs = i % 3 == 2};
        if (!actor_conform_wait_end(stage, actor_conform_ask(stage, &ask))) {
            return;
        }
    }
}

/* Together, with prompts that begin alike. */
static void
serve_together(conform_stage_t *stage)
{
    for (uint32_t i = 0; i < 24 && !stage->is_aborted; i++) {
        conform_ask_t ask = {.prompt_length = 40 + actor_conform_random(stage, 60),
                             .generation_max = 1 + actor_conform_random(stage, 40),
                             .shared_seed = 1 + i % 3,
                             .shared_length = 32,
                             .logprobs = i % 4 == 0,
                             .no_hashes = i % 7 == 6,
                             .priority = (int64_t)(i % 2)};
        (void)actor_conform_ask(stage, &ask);
    }
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

void
actor_conform_scene_serve(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    serve_singly(stage);
    serve_together(stage);
    actor_conform_settle(stage);
}

/* The only slot is released by a plan whose result is held back: nobody may have it yet. */
static void
hold_release(conform_stage_t *stage)
{
    conform_executor_t *executor = &stage->executor;
    executor->is_holding = true;
    executor->let_count = 0;
    conform_ask_t ask = {.prompt_length = 8, .generation_max = 2};
    conform_request_t *first = actor_conform_ask(stage, &ask);
    while (first != NULL && first->end_count == 0 && actor_conform_wait_flights(stage, 1)) {
        executor->let_count = 1;
        (void)actor_conform_wait(stage, 20 * MS_NS, has_ended, first);
    }
    executor->let_count = 0;
    (void)actor_conform_ask(stage, &ask);
    actor_conform_play(stage, 30 * MS_NS);
    executor->is_holding = false;
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

void
actor_conform_scene_plain(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.slot_count = 1;
    machine.overlap_depth_max = 0;
    machine.step_tokens_max = 16;
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    hold_release(stage);
    for (uint32_t i = 0; i < 6; i++) {
        conform_ask_t ask = {.prompt_length = 1 + actor_conform_random(stage, 50),
                             .generation_max = 1 + actor_conform_random(stage, 12)};
        (void)actor_conform_ask(stage, &ask);
    }
    actor_conform_settle(stage);
}

/* ---- blocks are short ------------------------------------------------------------------------ */

void
actor_conform_scene_pressure(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.parent_count = 13; /* 192 tokens for 4 requests of up to 140 */
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    for (uint32_t i = 0; i < 10 && !stage->is_aborted; i++) {
        conform_ask_t ask = {.prompt_length = 20 + actor_conform_random(stage, 50),
                             .generation_max = 30 + actor_conform_random(stage, 40),
                             .shared_seed = 7,
                             .shared_length = i % 2 == 0 ? 16 : 0};
        (void)actor_conform_ask(stage, &ask);
    }
    actor_conform_settle(stage);
}

static bool
is_reset(conform_stage_t *stage, const void *context)
{
    (void)context;
    return stage->executor.has_reset;
}

void
actor_conform_scene_sliding(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.group_count = 2;
    machine.kinds[1] = 1;
    machine.windows[1] = 32;
    machine.parent_count = 60;
    if (!actor_conform_open_gateway(stage, 0) || !actor_conform_open_executor(stage, &machine)) {
        return;
    }
    if (!actor_conform_wait(stage, 500 * MS_NS, is_reset, NULL)) {
        return; /* it does not take such executors, which it may do */
    }
    for (uint32_t i = 0; i < 12 && !stage->is_aborted; i++) {
        conform_ask_t ask = {.prompt_length = 20 + actor_conform_random(stage, 100),
                             .generation_max = 20 + actor_conform_random(stage, 60),
                             .shared_seed = 9,
                             .shared_length = 48};
        (void)actor_conform_ask(stage, &ask);
    }
    actor_conform_settle(stage);
}

/* Prompts begin alike: the first ones leave checkpoints that the others find. */
void
actor_conform_scene_states(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.group_count = 3;
    machine.kinds[1] = 1;
    machine.windows[1] = 32;
    machine.kinds[2] = 2;
    machine.parent_count = 100;
    if (!actor_conform_open_gateway(stage, 0) || !actor_conform_open_executor(stage, &machine)) {
        return;
    }
    if (!actor_conform_wait(stage, 500 * MS_NS, is_reset, NULL)) {
        return; /* it does not take such executors, which it may do */
    }
    for (uint32_t i = 0; i < 14 && !stage->is_aborted; i++) {
        conform_ask_t ask = {.prompt_length = 60 + actor_conform_random(stage, 80),
                             .generation_max = 10 + actor_conform_random(stage, 40),
                             .shared_seed = 11,
                             .shared_length = 48};
        conform_request_t *request = actor_conform_ask(stage, &ask);
        if (i < 3 && !actor_conform_wait_end(stage, request)) {
            return;
        }
    }
    actor_conform_settle(stage);
}

/* ---- nobody starves -------------------------------------------------------------------------- */

/* More rows than a step has tokens: they take turns. */
static void
take_turns(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.slot_count = 8;
    machine.step_tokens_max = 5;
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    for (uint32_t i = 0; i < 8; i++) {
        conform_ask_t ask = {.prompt_length = 6 + i,
                             .generation_max = 40,
                             .rule = CONFORM_PROGRESS_STARVE};
        (void)actor_conform_ask(stage, &ask);
    }
    (void)actor_conform_wait_ends(stage, CONFORM_PROGRESS_STARVE);
    actor_conform_settle(stage);
    actor_conform_close_all(stage);
}

/* A stream of important requests runs beside an unimportant one, a long one and a big one; it is
 * bounded, so all must end. */
static void
run_beside(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.slot_count = 2;
    machine.parent_count = 33;
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    conform_ask_t low = {.prompt_length = 9,
                         .generation_max = 5,
                         .priority = 1000,
                         .rule = CONFORM_PROGRESS_STARVE};
    conform_ask_t lengthy = {.prompt_length = 8,
                             .generation_max = 200,
                             .priority = 10,
                             .rule = CONFORM_PROGRESS_STARVE};
    conform_ask_t big = {.prompt_length = 240,
                         .generation_max = 4,
                         .priority = 5,
                         .rule = CONFORM_PROGRESS_STARVE};
    (void)actor_conform_ask(stage, &low);
    (void)actor_conform_ask(stage, &lengthy);
    (void)actor_conform_ask(stage, &big);
    conform_ask_t high = {.prompt_length = 6, .generation_max = 3, .priority = -5};
    for (uint32_t i = 0; i < 40 && !stage->is_aborted; i++) {
        (void)actor_conform_ask(stage, &high);
        if (i % 4 == 3) {
            actor_conform_play(stage, 2 * MS_NS);
        }
    }
    (void)actor_conform_wait_ends(stage, CONFORM_PROGRESS_STARVE);
    actor_conform_settle(stage);
}

void
actor_conform_scene_starve(conform_stage_t *stage)
{
    take_turns(stage);
    if (!stage->is_aborted) {
        run_beside(stage);
    }
}
