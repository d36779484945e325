/* Scenes in which something goes wrong on this side: refusals, results, executors, gateways. */
#include <inttypes.h>

#include "actor_conform_scenes.h"

#define MS_NS UINT64_C(1000000)

/* ---- refusals -------------------------------------------------------------------------------- */

static bool
is_refused(conform_stage_t *stage, const void *context)
{
    (void)context;
    return stage->executor.refuse.is_done || stage->book.open_count == 0;
}

/* Who was in the refused plan starts over; the rule says which requests are to blame for what. */
static void
mark_refused(conform_stage_t *stage)
{
    const conform_refuse_t *refuse = &stage->executor.refuse;
    for (uint32_t i = 0; i < refuse->request_count; i++) {
        conform_request_t *request = actor_conform_book_find(&stage->book, refuse->requests[i]);
        if (request != NULL) {
            request->ask.rule = CONFORM_REFUSAL_RECOVERS;
        }
    }
}

/* One refusal, made up, while more requests run than a step has rows. */
static void
refuse_once(conform_stage_t *stage, proto_plan_rule_t rule)
{
    conform_executor_t *executor = &stage->executor;
    conform_request_t *target = NULL;
    for (uint32_t i = 0; i < 5; i++) {
        conform_ask_t ask = {.prompt_length = 3 + i,
                             .generation_max = 9,
                             .rule = CONFORM_REFUSAL_UNHARMED};
        conform_request_t *request = actor_conform_ask(stage, &ask);
        target = i == rule % 4 ? request : target;
    }
    if (!actor_conform_wait_tokens(stage, target, 1 + rule % 3)) {
        return;
    }
    executor->refuse = (conform_refuse_t){.is_armed = true, .rule = rule};
    (void)actor_conform_wait(stage, stage->patience_ns, is_refused, NULL);
    executor->refuse.is_armed = false;
    if (executor->refuse.is_done) {
        mark_refused(stage);
    }
    if (actor_conform_wait_ends(stage, (conform_rule_t)0)) {
        actor_conform_held(stage->report, CONFORM_REFUSAL_UNHARMED);
        actor_conform_held(stage->report, CONFORM_REFUSAL_RECOVERS);
    }
}

/* The same request again and again: it ends with plan_refused, or gets through; the other one is
 * unharmed. */
static void
refuse_again(conform_stage_t *stage)
{
    conform_executor_t *executor = &stage->executor;
    conform_ask_t ask = {.prompt_length = 5, .generation_max = 8, .rule = CONFORM_REFUSAL_RECOVERS};
    conform_ask_t beside = {.prompt_length = 5,
                            .generation_max = 40,
                            .rule = CONFORM_REFUSAL_UNHARMED};
    conform_request_t *request = actor_conform_ask(stage, &ask);
    conform_request_t *other = actor_conform_ask(stage, &beside);
    if (request == NULL || other == NULL) {
        return;
    }
    for (uint32_t i = 0; i < 4 && request->end_count == 0 && !stage->is_aborted; i++) {
        executor->refuse = (conform_refuse_t){.is_armed = true,
                                              .rule = PROTO_RULE_TOKEN_RANGE,
                                              .request = request->id};
        (void)actor_conform_wait(stage, 200 * MS_NS, is_refused, NULL);
    }
    executor->refuse.is_armed = false;
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

void
actor_conform_scene_refusals(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.step_tokens_max = 3;
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    for (uint32_t rule = PROTO_RULE_STALE; rule <= PROTO_RULE_WIDTH && !stage->is_aborted; rule++) {
        refuse_once(stage, (proto_plan_rule_t)rule);
    }
    if (!stage->is_aborted) {
        refuse_again(stage);
    }
    actor_conform_settle(stage);
}

/* ---- results --------------------------------------------------------------------------------- */

static void
late_results(conform_stage_t *stage)
{
    stage->executor.repeats_results = true;
    for (uint32_t i = 0; i < 8; i++) {
        conform_ask_t ask = {.prompt_length = 10 + 11 * i,
                             .generation_max = 10,
                             .rule = CONFORM_RESULT_LATE};
        (void)actor_conform_ask(stage, &ask);
    }
    (void)actor_conform_wait_ends(stage, CONFORM_RESULT_LATE);
    stage->executor.repeats_results = false;
}

static bool
has_more_resets(conform_stage_t *stage, const void *context)
{
    const uint32_t *count = context;
    return stage->executor.reset_count > *count;
}

/* A result that cannot be: 1 lacks a row, 2 is of a step that nobody planned. */
static void
impossible_result(conform_stage_t *stage, uint32_t how)
{
    conform_executor_t *executor = &stage->executor;
    conform_request_t *request = NULL;
    for (uint32_t i = 0; i < 3; i++) {
        conform_ask_t ask = {.prompt_length = 12,
                             .generation_max = 30,
                             .rule = CONFORM_RESULT_FAULT};
        request = actor_conform_ask(stage, &ask);
    }
    if (!actor_conform_wait_tokens(stage, request, 2)) {
        return;
    }
    uint32_t resets = executor->reset_count;
    actor_conform_excuse(stage, CONFORM_EXCUSE_FAULT);
    executor->breaks_result = how;
    if (!actor_conform_wait(stage, stage->patience_ns, has_more_resets, &resets)) {
        if (!stage->is_aborted) {
            actor_conform_broke(stage->report, CONFORM_RESULT_FAULT, NULL, "RESET",
                                "no RESET after a result %s",
                                how == 1 ? "with a row less than its plan"
                                         : "of a step that nobody planned");
        }
        stage->is_aborted = true;
        return;
    }
    if (!actor_conform_wait_ends(stage, CONFORM_RESULT_FAULT)) {
        return;
    }
    conform_ask_t next = {.prompt_length = 20, .generation_max = 5, .rule = CONFORM_RESULT_FAULT};
    if (actor_conform_wait_end(stage, actor_conform_ask(stage, &next))) {
        actor_conform_held(stage->report, CONFORM_RESULT_FAULT);
    }
}

void
actor_conform_scene_results(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    late_results(stage);
    if (!stage->is_aborted) {
        impossible_result(stage, 1);
    }
    if (!stage->is_aborted) {
        impossible_result(stage, 2);
    }
    actor_conform_settle(stage);
}

/* ---- two gateways ---------------------------------------------------------------------------- */

static bool
is_computed(conform_stage_t *stage, const void *context)
{
    (void)stage;
    const conform_request_t *request = context;
    return request->next_index >= 2;
}

/* Its requests must not be computed on. */
static void
judge_gone(conform_stage_t *stage, const conform_request_t *left, uint32_t rows)
{
    conform_where_t where = {.link = "executor", .request = left->id};
    if (left->row_count > rows + 8) {
        actor_conform_broke(stage->report, CONFORM_END_GATEWAY_GONE, &where,
                            "requests of a gateway that left end",
                            "one was computed on: %u rows after BYE", left->row_count - rows);
    } else {
        actor_conform_held(stage->report, CONFORM_END_GATEWAY_GONE);
    }
}

/* The gateway comes back as another incarnation and submits what is open again: same id, what it
 * has of the answer is part of the prompt. */
static void
come_back(conform_stage_t *stage, conform_request_t *left)
{
    if (!actor_conform_open_gateway(stage, 1) || !actor_conform_wait_info(stage, 1)) {
        return;
    }
    actor_conform_book_resume(&stage->book, left);
    left->ask.rule = CONFORM_END_RESUBMIT;
    actor_conform_submit(&stage->gateways[1], left, stage->now_ns);
    if (actor_conform_wait_end(stage, left)) {
        actor_conform_held(stage->report, CONFORM_END_RESUBMIT);
    }
    actor_conform_settle(stage);
}

void
actor_conform_scene_gateways(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open(stage, &machine) || !actor_conform_open_gateway(stage, 1) ||
        !actor_conform_wait_info(stage, 1)) {
        return;
    }
    for (uint32_t i = 0; i < 16; i++) {
        conform_ask_t ask = {.gateway = i % 2,
                             .prompt_length = 8 + 5 * i,
                             .generation_max = 12,
                             .logprobs = i % 3 == 0};
        (void)actor_conform_ask(stage, &ask);
    }
    if (!actor_conform_wait_ends(stage, (conform_rule_t)0)) {
        return;
    }
    stage->executor.is_holding = true;
    conform_ask_t stays = {.prompt_length = 10,
                           .generation_max = 100,
                           .rule = CONFORM_END_GATEWAY_GONE};
    conform_ask_t leaves = {.gateway = 1, .prompt_length = 10, .generation_max = 200};
    (void)actor_conform_ask(stage, &stays);
    conform_request_t *left = actor_conform_ask(stage, &leaves);
    for (uint32_t i = 0; i < 6; i++) {
        (void)actor_conform_ask(stage, &leaves); /* more than there are slots: some only wait */
    }
    while (left != NULL && left->next_index < 2 && !stage->is_aborted) {
        if (!actor_conform_wait_flights(stage, 1)) {
            break;
        }
        stage->executor.let_count = 1;
        (void)actor_conform_wait(stage, 5 * MS_NS, is_computed, left);
    }
    if (left == NULL || stage->is_aborted) {
        return;
    }
    actor_conform_close_gateway(stage, 1);
    actor_conform_play(stage, 100 * MS_NS);
    uint32_t rows = left->row_count;
    actor_conform_settle(stage);
    if (stage->is_aborted) {
        return;
    }
    judge_gone(stage, left, rows);
    come_back(stage, left);
}

/* ---- the executor is lost -------------------------------------------------------------------- */

static bool
any_has_tokens(conform_request_t *const *requests, uint64_t count)
{
    for (uint32_t i = 0; i < 3; i++) {
        if (requests[i] != NULL && requests[i]->next_index >= count) {
            return true;
        }
    }
    return false;
}

/* Which of the three goes first is the scheduler's choice. */
static void
start_three(conform_stage_t *stage)
{
    conform_request_t *requests[3];
    for (uint32_t i = 0; i < 3; i++) {
        conform_ask_t ask = {.prompt_length = 20 + 16 * i,
                             .generation_max = 60,
                             .rule = CONFORM_END_EXECUTOR_LOST};
        requests[i] = actor_conform_ask(stage, &ask);
    }
    for (uint32_t i = 0; i < 4; i++) {
        conform_ask_t ask = {.prompt_length = 9,
                             .generation_max = 3,
                             .rule = CONFORM_END_EXECUTOR_LOST};
        (void)actor_conform_ask(stage, &ask);
    }
    for (uint32_t ms = 0; ms < 1000 && !any_has_tokens(requests, 2) && !stage->is_aborted; ms++) {
        actor_conform_play(stage, MS_NS);
    }
    if (!any_has_tokens(requests, 2)) {
        (void)actor_conform_wait_tokens(stage, requests[0], 2);
    }
}

/* It leaves with BYE in the middle of its work and comes back as another incarnation. */
static void
leave_and_return(conform_stage_t *stage, const conform_machine_t *machine)
{
    start_three(stage);
    if (stage->is_aborted) {
        return;
    }
    stage->executor.is_holding = true;
    actor_conform_excuse(stage, CONFORM_EXCUSE_LOST);
    actor_conform_close_executor(stage);
    actor_conform_play(stage, 100 * MS_NS);
    if (!actor_conform_open_executor(stage, machine) ||
        !actor_conform_attach(stage, CONFORM_RESTART_RESET) || !actor_conform_wait_info(stage, 0)) {
        return;
    }
    if (!actor_conform_wait_ends(stage, CONFORM_END_EXECUTOR_LOST)) {
        return;
    }
    actor_conform_held(stage->report, CONFORM_END_EXECUTOR_LOST);
    for (uint32_t i = 0; i < 5; i++) {
        conform_ask_t ask = {.prompt_length = 20 + 16 * i,
                             .generation_max = 9,
                             .rule = CONFORM_RESTART_SERVES};
        (void)actor_conform_ask(stage, &ask);
    }
    if (actor_conform_wait_ends(stage, CONFORM_RESTART_SERVES)) {
        actor_conform_held(stage->report, CONFORM_RESTART_SERVES);
    }
}

/* An executor that took a request and dies without a word. */
static void
die_silently(conform_stage_t *stage)
{
    uint64_t epoch = ++stage->epoch;
    if (!actor_conform_open_raw(stage, 0, "conform-executor-z", epoch, 1) ||
        !actor_conform_greet_raw(stage, 0, CONFORM_LINK_HANDSHAKE)) {
        return;
    }
    uint32_t figures[3] = {0, 16, 1};
    proto_body_t body = {.executor_info = {.model_name = proto_text("conformance"),
                                           .fingerprint = proto_text("model=conformance"),
                                           .vocab_size = CONFORM_VOCAB_SIZE,
                                           .model_len_max = 256,
                                           .slot_count = 4,
                                           .step_tokens_max = 64,
                                           .decode_width = 1,
                                           .overlap_depth_max = 1,
                                           .prefix_granularity = 16,
                                           .parent_count = 65,
                                           .group_kinds = {&figures[0], 1},
                                           .group_granularities = {&figures[1], 1},
                                           .group_windows = {&figures[0], 1},
                                           .group_packings = {&figures[2], 1},
                                           .page_hash_key = {stage->book.page_key, 32}}};
    conform_raw_t *raw = &stage->raws[0];
    (void)actor_conform_raw_send(raw, PROTO_KIND_EXECUTOR_INFO, 0, &body);
    if (!actor_conform_wait_raw(stage, 0, PROTO_KIND_RESET, stage->patience_ns)) {
        return; /* judged elsewhere */
    }
    conform_ask_t ask = {.prompt_length = 20,
                         .generation_max = 9,
                         .rule = CONFORM_END_EXECUTOR_LOST};
    conform_request_t *request = actor_conform_ask(stage, &ask);
    if (request == NULL || !actor_conform_wait_raw(stage, 0, PROTO_KIND_PLAN, stage->patience_ns)) {
        return;
    }
    request->excuses |= CONFORM_EXCUSE_LOST;
    actor_conform_close_raw(stage, 0);
}

void
actor_conform_scene_restart(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    leave_and_return(stage, &machine);
    if (stage->is_aborted) {
        return;
    }
    actor_conform_settle(stage);
    actor_conform_close_executor(stage);
    actor_conform_play(stage, 50 * MS_NS);
    die_silently(stage);
    if (!actor_conform_open_executor(stage, &machine) ||
        !actor_conform_attach(stage, CONFORM_RESTART_RESET)) {
        return;
    }
    (void)actor_conform_wait_ends(stage, CONFORM_END_EXECUTOR_LOST);
    actor_conform_settle(stage);
}

/* ---- everything at once ---------------------------------------------------------------------- */

static void
disturb(conform_stage_t *stage)
{
    conform_executor_t *executor = &stage->executor;
    switch (actor_conform_random(stage, 12)) {
    case 0:
        executor->is_holding = true;
        actor_conform_play(stage, (1 + actor_conform_random(stage, 4)) * MS_NS);
        executor->is_holding = false;
        break;
    case 1:
        executor->refuse =
            (conform_refuse_t){.is_armed = true,
                               .rule = (proto_plan_rule_t)(1 + actor_conform_random(stage, 14))};
        break;
    case 2:
        executor->repeats_results = !executor->repeats_results;
        break;
    default:
        actor_conform_play(stage, actor_conform_random(stage, 1500) * 1000);
        break;
    }
}

void
actor_conform_scene_mixture(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.slot_count = 6;
    machine.parent_count = 40;
    machine.step_tokens_max = 32;
    if (!actor_conform_open(stage, &machine) || !actor_conform_open_gateway(stage, 1)) {
        return;
    }
    for (uint32_t i = 0; i < 150 && !stage->is_aborted; i++) {
        conform_ask_t ask = {.gateway = actor_conform_random(stage, 2),
                             .prompt_length = 1 + actor_conform_random(stage, 120),
                             .generation_max = 1 + actor_conform_random(stage, 50),
                             .priority = (int64_t)actor_conform_random(stage, 5) - 2,
                             .shared_seed = 1 + actor_conform_random(stage, 4),
                             .shared_length = 16 * actor_conform_random(stage, 4),
                             .no_hashes = actor_conform_random(stage, 10) == 0,
                             .logprobs = actor_conform_random(stage, 4) == 0};
        if (actor_conform_random(stage, 3) == 0) {
            ask.stop_at = 1 + actor_conform_random(stage, ask.generation_max);
        } else if (actor_conform_random(stage, 15) == 0) {
            ask.nan_at = 1 + actor_conform_random(stage, ask.generation_max);
        }
        conform_request_t *request = actor_conform_ask(stage, &ask);
        if (request == NULL) {
            return;
        }
        disturb(stage);
        if (actor_conform_random(stage, 4) == 0) {
            actor_conform_finish(&stage->gateways[ask.gateway], request,
                                 actor_conform_random(stage, 40), PROTO_FINISH_CANCELLED);
        }
    }
    stage->executor.refuse.is_armed = false;
    stage->executor.repeats_results = false;
    actor_conform_settle(stage);
}
