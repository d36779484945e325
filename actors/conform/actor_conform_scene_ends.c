/* Scenes about how requests end. */
#include <inttypes.h>
#include <string.h>

#include "actor_conform_scenes.h"

#define MS_NS UINT64_C(1000000)

enum { QUEUE_TRIED_MAX = 4096 }; /* longer queues are not filled */

/* ---- by themselves --------------------------------------------------------------------------- */

static void
stop_tokens(conform_stage_t *stage)
{
    static const uint32_t at[] = {1, 2, 7, 16, 20};
    for (uint32_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        conform_ask_t ask = {.prompt_length = 10 + 9 * i,
                             .generation_max = 20,
                             .stop_at = at[i],
                             .rule = CONFORM_END_STOP_TOKEN};
        (void)actor_conform_ask(stage, &ask);
    }
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

/* A NaN in the first token, in a later one; then requests that need every block of the pool. */
static void
spoilt_rows(conform_stage_t *stage)
{
    for (uint32_t i = 0; i < 3; i++) {
        conform_ask_t ask = {.prompt_length = 40,
                             .generation_max = 12,
                             .nan_at = 1 + 3 * i,
                             .rule = CONFORM_END_NAN};
        (void)actor_conform_ask(stage, &ask);
    }
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
    for (uint32_t i = 0; i < 6; i++) {
        conform_ask_t ask = {.prompt_length = 200, .generation_max = 30};
        (void)actor_conform_ask(stage, &ask);
    }
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

static void
resumed(conform_stage_t *stage)
{
    static const uint32_t emitted[] = {1, 5, 17};
    for (uint32_t i = 0; i < 3; i++) {
        conform_ask_t ask = {.prompt_length = 20 + emitted[i],
                             .generation_max = 6,
                             .emitted = emitted[i],
                             .rule = CONFORM_END_RESUME};
        (void)actor_conform_ask(stage, &ask);
    }
    conform_ask_t stops = {.prompt_length = 30,
                           .generation_max = 9,
                           .emitted = 4,
                           .stop_at = 7,
                           .rule = CONFORM_END_RESUME};
    (void)actor_conform_ask(stage, &stops);
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

/* SUBMIT again while it waits or runs, and after its end. */
static void
repeated(conform_stage_t *stage)
{
    conform_ask_t ask = {.prompt_length = 12, .generation_max = 8};
    conform_request_t *request = actor_conform_ask(stage, &ask);
    if (request == NULL) {
        return;
    }
    conform_gateway_t *gateway = &stage->gateways[0];
    actor_conform_submit(gateway, request, stage->now_ns);
    if (!actor_conform_wait_tokens(stage, request, 2)) {
        return;
    }
    actor_conform_submit(gateway, request, stage->now_ns);
    if (!actor_conform_wait_end(stage, request)) {
        return;
    }
    actor_conform_submit(gateway, request, stage->now_ns);
    actor_conform_play(stage, 60 * MS_NS);
    if (request->end_count == 1) {
        actor_conform_held(stage->report, CONFORM_END_DUPLICATE);
    }
}

/* ---- refused at once ------------------------------------------------------------------------- */

static void
contradictions(conform_stage_t *stage)
{
    conform_ask_t base = {.prompt_length = 20,
                          .generation_max = 5,
                          .expect = CONFORM_EXPECT_REFUSED,
                          .code = "invalid",
                          .rule = CONFORM_END_INVALID};
    conform_ask_t asks[5] = {base, base, base, base, base};
    asks[0].wrong_length = 13;
    asks[1].wrong_hashes = 32;
    asks[1].expect = CONFORM_EXPECT_ANY; /* nobody has to look at hashes that he does not use */
    asks[2].generation_max = 0;
    asks[3].prompt_length = 0;
    asks[4].emitted = 20;
    for (uint32_t i = 0; i < 5; i++) {
        (void)actor_conform_ask(stage, &asks[i]);
    }
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

static void
too_large(conform_stage_t *stage)
{
    conform_ask_t ask = {.prompt_length = 200,
                         .generation_max = 100,
                         .expect = CONFORM_EXPECT_REFUSED,
                         .code = "never_fits",
                         .rule = CONFORM_END_NEVER_FITS};
    (void)actor_conform_ask(stage, &ask);
    ask.prompt_length = 300;
    ask.generation_max = 1;
    (void)actor_conform_ask(stage, &ask);
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

/* Within the model's length, but not within the pool. */
static void
too_large_for_the_pool(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    machine.parent_count = 5;
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    conform_ask_t ask = {.prompt_length = 60,
                         .generation_max = 30,
                         .expect = CONFORM_EXPECT_REFUSED,
                         .code = "never_fits",
                         .rule = CONFORM_END_NEVER_FITS};
    (void)actor_conform_ask(stage, &ask);
    conform_ask_t fits = {.prompt_length = 40, .generation_max = 20};
    (void)actor_conform_ask(stage, &fits);
    actor_conform_settle(stage);
}

void
actor_conform_scene_ends(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    stop_tokens(stage);
    spoilt_rows(stage);
    resumed(stage);
    contradictions(stage);
    too_large(stage);
    repeated(stage);
    actor_conform_settle(stage);
    if (stage->is_aborted) {
        return;
    }
    actor_conform_close_all(stage);
    too_large_for_the_pool(stage);
}

/* ---- FINISH ---------------------------------------------------------------------------------- */

static void
cancel_queued(conform_stage_t *stage)
{
    conform_gateway_t *gateway = &stage->gateways[0];
    conform_executor_t *executor = &stage->executor;
    executor->is_holding = true;
    conform_ask_t runs = {.prompt_length = 30, .generation_max = 6};
    for (uint32_t i = 0; i < executor->machine.slot_count; i++) {
        (void)actor_conform_ask(stage, &runs);
    }
    conform_ask_t ask = {.prompt_length = 30, .generation_max = 6, .rule = CONFORM_END_CANCEL};
    conform_request_t *at_once = actor_conform_ask(stage, &ask);
    conform_request_t *later = actor_conform_ask(stage, &ask);
    if (at_once == NULL || later == NULL) {
        return;
    }
    actor_conform_finish(gateway, at_once, 0, PROTO_FINISH_CANCELLED);
    if (!actor_conform_wait_end(stage, at_once)) {
        return;
    }
    actor_conform_play(stage, 20 * MS_NS);
    actor_conform_finish(gateway, later, 0, PROTO_FINISH_CANCELLED);
    actor_conform_finish(gateway, later, 0, PROTO_FINISH_CANCELLED);
    if (!actor_conform_wait_end(stage, later)) {
        return;
    }
    executor->is_holding = false;
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

/* FINISH while steps are in flight, after `tokens` tokens came; `keep` of them count.  The end must
 * not wait for the steps. */
static void
cancel_in_flight(conform_stage_t *stage, uint32_t tokens, uint32_t keep,
                 proto_finish_reason_t reason)
{
    conform_executor_t *executor = &stage->executor;
    conform_ask_t ask = {.prompt_length = 100, .generation_max = 60, .rule = CONFORM_END_CANCEL};
    conform_ask_t beside = {.prompt_length = 20, .generation_max = 30};
    executor->is_holding = true;
    executor->let_count = 0;
    conform_request_t *request = actor_conform_ask(stage, &ask);
    conform_request_t *other = actor_conform_ask(stage, &beside);
    while (request != NULL && request->next_index < tokens && request->end_count == 0) {
        if (!actor_conform_wait_flights(stage, 1)) {
            break; /* it waits for something: idleness is judged elsewhere */
        }
        executor->let_count = 1;
        actor_conform_play(stage, MS_NS);
    }
    if (request == NULL || other == NULL || !actor_conform_wait_flights(stage, 1)) {
        executor->is_holding = false;
        return;
    }
    actor_conform_finish(&stage->gateways[0], request, keep, reason);
    if (!actor_conform_wait_end(stage, request)) {
        return;
    }
    executor->is_holding = false;
    (void)actor_conform_wait_end(stage, other);
}

/* At any moment, while everything runs. */
static void
cancel_running(conform_stage_t *stage)
{
    conform_gateway_t *gateway = &stage->gateways[0];
    for (uint32_t i = 0; i < 24 && !stage->is_aborted; i++) {
        conform_ask_t ask = {.prompt_length = 1 + actor_conform_random(stage, 90),
                             .generation_max = 1 + actor_conform_random(stage, 60),
                             .rule = CONFORM_END_CANCEL};
        conform_request_t *request = actor_conform_ask(stage, &ask);
        actor_conform_play(stage, actor_conform_random(stage, 3000) * 1000);
        if (request == NULL) {
            return;
        }
        actor_conform_finish(gateway, request, actor_conform_random(stage, 30),
                             i % 5 == 4 ? PROTO_FINISH_STOP : PROTO_FINISH_CANCELLED);
    }
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

static void
cancel_nothing(conform_stage_t *stage)
{
    conform_gateway_t *gateway = &stage->gateways[0];
    conform_ask_t ask = {.prompt_length = 9, .generation_max = 4, .rule = CONFORM_END_CANCEL_TWICE};
    conform_request_t *request = actor_conform_ask(stage, &ask);
    actor_conform_finish_unknown(gateway, stage->book.id_base + CONFORM_REQUEST_COUNT_MAX + 1);
    if (!actor_conform_wait_end(stage, request)) {
        return;
    }
    actor_conform_finish(gateway, request, 0, PROTO_FINISH_CANCELLED);
    request = actor_conform_ask(stage, &ask);
    if (actor_conform_wait_end(stage, request)) {
        actor_conform_held(stage->report, CONFORM_END_CANCEL_TWICE);
    }
}

void
actor_conform_scene_cancel(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    static const struct {
        uint32_t tokens;
        uint32_t keep;
        proto_finish_reason_t reason;
    } moments[] = {
        {0, 0, PROTO_FINISH_CANCELLED}, {1, 1, PROTO_FINISH_CANCELLED},  {3, 2, PROTO_FINISH_STOP},
        {4, 4, PROTO_FINISH_STOP},      {5, 90, PROTO_FINISH_CANCELLED}, {6, 0, PROTO_FINISH_STOP},
    };
    cancel_queued(stage);
    for (uint32_t i = 0; i < sizeof moments / sizeof moments[0] && !stage->is_aborted; i++) {
        cancel_in_flight(stage, moments[i].tokens, moments[i].keep, moments[i].reason);
    }
    cancel_running(stage);
    cancel_nothing(stage);
    actor_conform_settle(stage);
}

/* ---- the queue ------------------------------------------------------------------------------- */

static void
wait_too_long(conform_stage_t *stage)
{
    conform_executor_t *executor = &stage->executor;
    executor->is_holding = true;
    conform_ask_t runs = {.prompt_length = 10, .generation_max = 5};
    for (uint32_t i = 0; i < executor->machine.slot_count; i++) {
        (void)actor_conform_ask(stage, &runs);
    }
    if (!actor_conform_wait_flights(stage, 1)) {
        return;
    }
    conform_ask_t ask = {.prompt_length = 10,
                         .generation_max = 5,
                         .queue_timeout_ns = 150 * MS_NS,
                         .expect = CONFORM_EXPECT_REFUSED,
                         .code = "queue_timeout",
                         .rule = CONFORM_END_QUEUE_TIMEOUT};
    conform_request_t *request = actor_conform_ask(stage, &ask);
    (void)actor_conform_wait_end(stage, request);
    executor->is_holding = false;
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

static bool
some_refused(conform_stage_t *stage, const void *context)
{
    const uint32_t *first = context;
    for (uint32_t i = *first; i < stage->book.count; i++) {
        if (stage->book.items[i].end_count > 0) {
            return true;
        }
    }
    return false;
}

/* Those that were refused must be so because the queue is full, and not before it is. */
static void
check_overload(conform_stage_t *stage, uint32_t first, uint32_t queue_len)
{
    for (uint32_t i = first; i < stage->book.count; i++) {
        const conform_request_t *request = &stage->book.items[i];
        if (request->end_count == 0) {
            continue;
        }
        bool fits = request->end_reason == PROTO_FINISH_REFUSED &&
                    strcmp(request->end_code, "overloaded") == 0 && request->end_retry_ms > 0 &&
                    i - first >= queue_len;
        if (!fits) {
            actor_conform_broke(stage->report, CONFORM_END_OVERLOADED, &request->end_where,
                                "REFUSED, overloaded, retry_after_ms above 0, from the first "
                                "request beyond queue_len_max on",
                                "request %u of a queue of %u ended with reason %u, code '%s', "
                                "retry_after_ms %u",
                                i - first + 1, queue_len, request->end_reason, request->end_code,
                                request->end_retry_ms);
            return;
        }
        actor_conform_held(stage->report, CONFORM_END_OVERLOADED);
    }
}

static void
fill_queue(conform_stage_t *stage)
{
    conform_gateway_t *gateway = &stage->gateways[0];
    conform_executor_t *executor = &stage->executor;
    uint32_t queue_len = gateway->info.queue_len_max;
    if (queue_len == 0 || queue_len > QUEUE_TRIED_MAX) {
        actor_conform_skip(stage->report, CONFORM_END_OVERLOADED,
                           "MODEL_INFO says queue_len_max %u; only queues of 1 to %d are filled",
                           queue_len, QUEUE_TRIED_MAX);
        return;
    }
    executor->is_holding = true;
    executor->let_count = 0;
    conform_ask_t ask = {.prompt_length = 4, .generation_max = 2, .expect = CONFORM_EXPECT_ANY};
    uint32_t first = stage->book.count;
    uint32_t count = queue_len + 2 * executor->machine.slot_count + 8;
    for (uint32_t i = 0; i < count && !stage->is_aborted; i++) {
        (void)actor_conform_ask(stage, &ask);
        if (i % 32 == 31) {
            actor_conform_poll(stage, 0);
        }
    }
    bool refused = actor_conform_wait(stage, stage->patience_ns, some_refused, &first);
    actor_conform_play(stage, 50 * MS_NS);
    if (!refused && !stage->is_aborted) {
        actor_conform_broke(stage->report, CONFORM_END_OVERLOADED, NULL,
                            "FINISHED with reason REFUSED, code overloaded",
                            "%u requests were taken, queue_len_max is %u", count, queue_len);
    }
    check_overload(stage, first, queue_len);
    for (uint32_t i = first; i < stage->book.count; i++) {
        conform_request_t *request = &stage->book.items[i];
        if (request->end_count == 0 && i % 3 != 0) {
            actor_conform_finish(gateway, request, 0, PROTO_FINISH_CANCELLED);
        }
    }
    executor->is_holding = false;
    (void)actor_conform_wait_ends(stage, (conform_rule_t)0);
}

void
actor_conform_scene_queue(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    if (!actor_conform_open(stage, &machine)) {
        return;
    }
    wait_too_long(stage);
    if (!stage->is_aborted) {
        fill_queue(stage);
    }
    actor_conform_settle(stage);
}
