/* The scheduler's core, message by message: what comes in, what goes out, and to whom. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "actor_scheduler_core.h"

enum {
    GATEWAY = 3,
    GATEWAY_2 = 4,
    EXECUTOR = 7,
    EXECUTOR_2 = 8,
    PAGE = 4,
    PROMPT = 10,
    MESSAGES_MAX = 256,
    PLANS_MAX = 4,
    ROWS_MAX = 16,
};

/* What the tests look at in a message that the core sent. */
typedef struct {
    uint32_t to;
    proto_kind_t kind;
    uint64_t request;
    proto_body_t body; /* its views live until the next input */
} message_t;

/* What is needed to answer a plan. */
typedef struct {
    uint64_t step;
    uint32_t row_count;
    uint8_t samples[ROWS_MAX];
} sent_plan_t;

static actor_scheduler_core_t *core;
static const actor_core_ops_t *ops;
static actor_outbox_t *outbox;
static actor_scheduler_core_options_t options;
static uint64_t now_ns;
static uint64_t sequence;
static message_t messages[MESSAGES_MAX];
static uint32_t message_count;
static sent_plan_t plans[PLANS_MAX];
static uint32_t plan_count;
static int32_t next_token;

static void
set_defaults(void)
{
    options = (actor_scheduler_core_options_t){.slot_count_max = 4,
                                               .queue_len_max = 4,
                                               .store_size_bytes = 1 << 20};
    core = NULL;
    outbox = NULL;
    now_ns = 1000000;
    sequence = 0;
    plan_count = 0;
    next_token = 100;
}

static void
start(void)
{
    ck_assert_int_eq(actor_scheduler_core_new(&options, &core), STATUS_OK);
    ops = actor_scheduler_core_ops(core);
    ck_assert_int_eq(actor_outbox_new(ops, &outbox), STATUS_OK);
}

static void
clean_up(void)
{
    actor_scheduler_core_destroy(&core);
    actor_outbox_destroy(&outbox);
}

static void
note_plan(const proto_plan_t *plan)
{
    ck_assert_uint_lt(plan_count, PLANS_MAX);
    sent_plan_t *sent = &plans[plan_count++];
    *sent = (sent_plan_t){.step = plan->step};
    for (uint32_t i = 0; i < plan->extend_slots.count; i++) {
        sent->samples[sent->row_count++] = plan->extend_samples.data[i];
    }
    for (uint32_t i = 0; i < plan->decode_slots.count; i++) {
        sent->samples[sent->row_count++] = 1;
    }
}

/* One input, and everything that it caused. */
static void
give(uint32_t from, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .sequence = ++sequence,
                             .request = request};
    actor_input_t input = {
        .now_ns = now_ns, .sequence = sequence, .from = {from}, .header = &header, .body = body};
    actor_outbox_clear(outbox);
    ops->step(core, &input, outbox);
    ops->check(core);
    message_count = actor_outbox_count(outbox);
    ck_assert_uint_le(message_count, MESSAGES_MAX);
    for (uint32_t i = 0; i < message_count; i++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, i);
        messages[i] = (message_t){.to = emission->to.index,
                                  .kind = emission->kind,
                                  .request = emission->request};
        ck_assert_int_eq(proto_body_decode(emission->kind, emission->body, emission->blob,
                                           &messages[i].body, NULL),
                         STATUS_OK);
        if (emission->kind == PROTO_KIND_PLAN) {
            note_plan(&messages[i].body.plan);
        }
    }
}

static uint32_t
count_of(proto_kind_t kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < message_count; i++) {
        count += messages[i].kind == kind ? 1 : 0;
    }
    return count;
}

/* The only message of its kind. */
static const message_t *
only(proto_kind_t kind)
{
    ck_assert_uint_eq(count_of(kind), 1);
    for (uint32_t i = 0; i < message_count; i++) {
        if (messages[i].kind == kind) {
            return &messages[i];
        }
    }
    return NULL;
}

static bool
text_is(proto_text_t text, const char *expected)
{
    return text.size_bytes == strlen(expected) && memcmp(text.data, expected, text.size_bytes) == 0;
}

static void
peer_up(uint32_t peer, proto_role_t role, uint64_t epoch)
{
    proto_body_t body = {
        .peer_up = {.peer = peer, .role = role, .name = proto_text("peer"), .epoch = epoch}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, 0, &body);
}

static void
peer_down(uint32_t peer, proto_role_t role, uint64_t epoch)
{
    proto_body_t body = {
        .peer_down = {.peer = peer, .role = role, .epoch = epoch, .detail = proto_text("gone")}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, 0, &body);
}

static void
executor_info(uint32_t peer, uint32_t parent_count)
{
    static const uint32_t zero = 0;
    static const uint32_t one = 1;
    static const uint32_t granularity = PAGE;
    static const uint8_t key[PROTO_HASH_SIZE_BYTES] = {9};
    proto_body_t body = {
        .executor_info =
            {
                .model_name = proto_text("toy"),
                .fingerprint = proto_text("model=1"),
                .vocab_size = 1000,
                .model_len_max = 128,
                .slot_count = 8,
                .step_tokens_max = 64,
                .decode_width = 1,
                .overlap_depth_max = 1,
                .prefix_granularity = PAGE,
                .parent_count = parent_count,
                .group_kinds = {&zero, 1},
                .group_granularities = {&granularity, 1},
                .group_windows = {&zero, 1},
                .group_packings = {&one, 1},
                .page_hash_key = {key, sizeof key},
            },
    };
    give(peer, PROTO_KIND_EXECUTOR_INFO, 0, &body);
}

static void
start_node(void)
{
    start();
    peer_up(GATEWAY, PROTO_ROLE_GATEWAY, 11);
    peer_up(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    executor_info(EXECUTOR, 33);
}

/* The same prompt each time, of which the last `emitted` tokens are of its answer. */
static void
submit_again(uint64_t request, uint32_t emitted, uint32_t generation_max)
{
    static const int32_t tokens[PROMPT] = {1, 2, 3};
    static uint8_t hashes[PROMPT / PAGE * PROTO_HASH_SIZE_BYTES] = {7};
    static const uint8_t sampling[] = {1, 2, 3};
    hashes[PROTO_HASH_SIZE_BYTES] = 8;
    proto_body_t body = {
        .submit =
            {
                .prompt_length = PROMPT,
                .generation_max = generation_max,
                .emitted = emitted,
                .page_hashes = {hashes, sizeof hashes},
                .tokens = {tokens, PROMPT},
                .sampling = {sampling, sizeof sampling},
            },
    };
    give(GATEWAY, PROTO_KIND_SUBMIT, request, &body);
}

static void
submit_as(uint32_t gateway, uint64_t request, uint32_t generation_max)
{
    static int32_t tokens[PROMPT];
    static uint8_t hashes[PROMPT / PAGE * PROTO_HASH_SIZE_BYTES];
    static const uint8_t sampling[] = {1, 2, 3};
    for (uint32_t i = 0; i < PROMPT; i++) {
        tokens[i] = (int32_t)(request * 10 + i) % 1000;
    }
    memset(hashes, (int)request, sizeof hashes);
    hashes[PROTO_HASH_SIZE_BYTES] ^= 0x80;
    proto_body_t body = {
        .submit =
            {
                .prompt_length = PROMPT,
                .generation_max = generation_max,
                .page_hashes = {hashes, sizeof hashes},
                .tokens = {tokens, PROMPT},
                .sampling = {sampling, sizeof sampling},
            },
    };
    give(gateway, PROTO_KIND_SUBMIT, request, &body);
}

static void
submit(uint64_t request, uint32_t generation_max)
{
    submit_as(GATEWAY, request, generation_max);
}

/* The result of the oldest plan.  Row `flagged` carries `flags`. */
static void
answer_with(uint32_t flagged, uint8_t flags)
{
    ck_assert_uint_gt(plan_count, 0);
    sent_plan_t plan = plans[0];
    plan_count--;
    memmove(plans, plans + 1, plan_count * sizeof plan);
    static uint8_t row_flags[ROWS_MAX];
    static int32_t tokens[ROWS_MAX];
    uint8_t counts[ROWS_MAX];
    uint32_t token_count = 0;
    for (uint32_t r = 0; r < plan.row_count; r++) {
        row_flags[r] = r == flagged ? flags : 0;
        counts[r] = (row_flags[r] & PROTO_ROW_NAN) != 0 ? 0 : plan.samples[r];
        if (counts[r] > 0) {
            tokens[token_count++] = next_token++;
        }
    }
    proto_body_t body = {
        .step_result =
            {
                .step = plan.step,
                .mode = PROTO_STEP_DECODE_GRAPH,
                .duration_ns = 1000000,
                .computed_tokens = plan.row_count,
                .token_counts = {counts, plan.row_count},
                .row_flags = {row_flags, plan.row_count},
                .tokens = {tokens, token_count},
            },
    };
    give(EXECUTOR, PROTO_KIND_STEP_RESULT, 0, &body);
}

static void
answer(void)
{
    answer_with(ROWS_MAX, 0);
}

static void
end_request(uint64_t request, uint32_t token_index, proto_finish_reason_t reason)
{
    proto_body_t body = {.finish = {.token_index = token_index, .reason = reason}};
    give(GATEWAY, PROTO_KIND_FINISH, request, &body);
}

static void
timer(void)
{
    proto_body_t body = {.timer = {.deadline_ns = now_ns}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &body);
}

/* ---- links ----------------------------------------------------------------------------------- */

/* A gateway is told at once that there is no executor, and again when there is one. */
START_TEST(gateways_learn_what_can_be_served)
{
    start();
    peer_up(GATEWAY, PROTO_ROLE_GATEWAY, 11);
    const message_t *info = only(PROTO_KIND_MODEL_INFO);
    ck_assert_uint_eq(info->to, GATEWAY);
    ck_assert_uint_eq(info->body.model_info.slot_count, 0);
    peer_up(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    executor_info(EXECUTOR, 33);
    info = only(PROTO_KIND_MODEL_INFO);
    ck_assert_uint_eq(info->body.model_info.slot_count, 4);
    ck_assert_uint_eq(info->body.model_info.model_len_max, 128);
    ck_assert_uint_eq(info->body.model_info.prompt_len_max, 127);
    ck_assert_uint_eq(info->body.model_info.token_capacity, 128);
    ck_assert_uint_eq(info->body.model_info.queue_len_max, 4);
    ck_assert_uint_eq(info->body.model_info.page_hash_key.size_bytes, 32);
    ck_assert_uint_eq(info->body.model_info.page_hash_key.data[0], 9);
    ck_assert(text_is(info->body.model_info.model_name, "toy"));
    ck_assert_uint_eq(only(PROTO_KIND_RESET)->to, EXECUTOR);
    peer_up(GATEWAY_2, PROTO_ROLE_GATEWAY, 12);
    ck_assert_uint_eq(only(PROTO_KIND_MODEL_INFO)->to, GATEWAY_2);
    peer_down(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    ck_assert_uint_eq(count_of(PROTO_KIND_MODEL_INFO), 2);
    ck_assert_uint_eq(messages[0].body.model_info.slot_count, 0);
}
END_TEST

START_TEST(an_executor_that_cannot_be_served_is_told_why)
{
    start();
    peer_up(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    executor_info(EXECUTOR, 1);
    ck_assert_uint_eq(count_of(PROTO_KIND_NAK), 2);
    ck_assert_uint_eq(messages[0].to, EXECUTOR);
    ck_assert_uint_eq(messages[1].to, ACTOR_PEER_LOCAL);
    ck_assert_uint_eq(messages[0].body.nak.kind, PROTO_KIND_EXECUTOR_INFO);
    ck_assert(!sched_core_is_attached(actor_scheduler_core_library(core)));
}
END_TEST

/* What another scheduler began: its tokens count as the answer's, not as the prompt's, and the next
 * one has the index that follows them. */
START_TEST(a_request_that_began_elsewhere_counts_from_there)
{
    start_node();
    submit_again(1, 0, 2);
    while (count_of(PROTO_KIND_FINISHED) == 0) {
        answer();
    }
    ck_assert_uint_eq(only(PROTO_KIND_FINISHED)->body.finished.prompt_tokens, PROMPT);
    while (plan_count > 0) {
        answer();
    }
    submit_again(2, PROMPT - 2, 2);
    answer();
    const proto_tokens_t *given = &only(PROTO_KIND_TOKENS)->body.tokens;
    ck_assert_uint_eq(given->token_indices.data[0], PROMPT - 2);
    while (count_of(PROTO_KIND_FINISHED) == 0) {
        answer();
    }
    const proto_finished_t *end = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert_uint_eq(end->reason, PROTO_FINISH_LENGTH);
    ck_assert_uint_eq(end->prompt_tokens, 2);
    ck_assert_uint_eq(end->cached_tokens,
                      2); /* a whole page was found, of which these are prompt */
    ck_assert_uint_eq(end->generated_tokens, PROMPT);
    submit_again(3, PROMPT - 2, 1000);
    end = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert_uint_eq(end->reason, PROTO_FINISH_REFUSED);
    ck_assert_uint_eq(end->prompt_tokens, 2);
}
END_TEST

START_TEST(a_lost_executor_ends_its_requests_with_worker_lost)
{
    start_node();
    submit(1, 20);
    submit(2, 20);
    answer();
    peer_down(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 2);
    for (uint32_t i = 0; i < message_count; i++) {
        if (messages[i].kind == PROTO_KIND_FINISHED) {
            const proto_finished_t *end = &messages[i].body.finished;
            ck_assert_uint_eq(end->reason, PROTO_FINISH_ERROR);
            ck_assert_int_eq(end->status, STATUS_ERR_PEER_LOST);
            ck_assert(text_is(end->code, "worker_lost"));
            ck_assert_uint_eq(end->retry_after_ms, 1000);
        }
    }
    plan_count = 0;
    submit(3, 5);
    const proto_finished_t *refused = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert_uint_eq(refused->reason, PROTO_FINISH_REFUSED);
    ck_assert(text_is(refused->code, "no_executor"));
    ck_assert_uint_gt(refused->retry_after_ms, 0);
    /* The next one serves. */
    peer_up(EXECUTOR_2, PROTO_ROLE_EXECUTOR, 22);
    executor_info(EXECUTOR_2, 33);
    submit(4, 5);
    ck_assert_uint_eq(only(PROTO_KIND_ADMIT)->to, EXECUTOR_2);
    /* With overlap the second plan is there as well; both go to the new executor. */
    ck_assert_uint_eq(count_of(PROTO_KIND_PLAN), 2);
    for (uint32_t i = 0; i < message_count; i++) {
        if (messages[i].kind == PROTO_KIND_PLAN) {
            ck_assert_uint_eq(messages[i].to, EXECUTOR_2);
        }
    }
}
END_TEST

/* A restarted executor may be here before the loss of the old one was noticed. */
START_TEST(a_newer_executor_takes_over)
{
    start_node();
    submit(1, 20);
    plan_count = 0;
    peer_up(EXECUTOR_2, PROTO_ROLE_EXECUTOR, 22);
    executor_info(EXECUTOR_2, 33);
    ck_assert(text_is(only(PROTO_KIND_FINISHED)->body.finished.code, "worker_lost"));
    peer_down(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 0);
    submit(2, 20);
    ck_assert_uint_eq(only(PROTO_KIND_ADMIT)->to, EXECUTOR_2);
}
END_TEST

START_TEST(a_gateway_that_leaves_takes_its_requests_along)
{
    start_node();
    peer_up(GATEWAY_2, PROTO_ROLE_GATEWAY, 12);
    submit(1, 20);
    submit_as(GATEWAY_2, 2, 20);
    peer_down(GATEWAY, PROTO_ROLE_GATEWAY, 11);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 0);
    sched_figures_t figures;
    sched_core_figures(actor_scheduler_core_library(core), &figures);
    ck_assert_uint_eq(figures.running_count + figures.waiting_count, 1);
    answer(); /* two steps of the lost one, then the first of the other */
    ck_assert_uint_eq(count_of(PROTO_KIND_TOKENS), 0);
    answer();
    ck_assert_uint_eq(count_of(PROTO_KIND_TOKENS), 0);
    answer();
    ck_assert_uint_eq(only(PROTO_KIND_TOKENS)->to, GATEWAY_2);
}
END_TEST

/* ---- requests -------------------------------------------------------------------------------- */

/* Submit, admit, plan, tokens, end: the whole way with every number. */
START_TEST(a_request_goes_its_whole_way)
{
    options.no_overlap = true;
    start_node();
    submit(5, 2);
    const message_t *admit = only(PROTO_KIND_ADMIT);
    ck_assert_uint_eq(admit->to, EXECUTOR);
    ck_assert_uint_eq(admit->request, 5);
    ck_assert_uint_eq(admit->body.admit.slot, 1);
    ck_assert_uint_eq(admit->body.admit.prompt_length, PROMPT);
    ck_assert_uint_eq(admit->body.admit.length_max, PROMPT + 2);
    ck_assert_uint_eq(admit->body.admit.tokens.count, PROMPT);
    ck_assert_int_eq(admit->body.admit.tokens.data[1], 51);
    ck_assert_uint_eq(admit->body.admit.sampling.count, 3);
    ck_assert_uint_eq(admit->body.admit.page_hashes.size_bytes, 64);
    const message_t *plan = only(PROTO_KIND_PLAN);
    ck_assert(plan > admit); /* ADMIT comes first */
    ck_assert_uint_eq(plan->body.plan.base_step, 0);
    ck_assert_uint_eq(plan->body.plan.extend_lengths.data[0], PROMPT);
    ck_assert_uint_eq(plan->body.plan.extend_samples.data[0], 1);
    answer();
    const message_t *tokens = only(PROTO_KIND_TOKENS);
    ck_assert_uint_eq(tokens->to, GATEWAY);
    ck_assert_uint_eq(tokens->body.tokens.requests.data[0], 5);
    ck_assert_uint_eq(tokens->body.tokens.token_indices.data[0], 0);
    ck_assert_int_eq(tokens->body.tokens.tokens.data[0], 100);
    ck_assert_uint_eq(only(PROTO_KIND_PLAN)->body.plan.decode_slots.count, 1);
    now_ns += 5000;
    answer();
    tokens = only(PROTO_KIND_TOKENS);
    ck_assert_uint_eq(tokens->body.tokens.token_indices.data[0], 1);
    const message_t *end = only(PROTO_KIND_FINISHED);
    ck_assert(end > tokens);
    ck_assert_uint_eq(end->request, 5);
    ck_assert_uint_eq(end->body.finished.reason, PROTO_FINISH_LENGTH);
    ck_assert_uint_eq(end->body.finished.prompt_tokens, PROMPT);
    ck_assert_uint_eq(end->body.finished.generated_tokens, 2);
    ck_assert_int_eq(end->body.finished.status, STATUS_OK);
    /* The slot is released by a plan of its own, for there is no other work. */
    plan = only(PROTO_KIND_PLAN);
    ck_assert_uint_eq(plan->body.plan.release_slots.count, 1);
    ck_assert_uint_eq(plan->body.plan.release_slots.data[0], 1);
    answer();
    ck_assert_uint_eq(count_of(PROTO_KIND_PLAN), 0);
    ck_assert(ops->idle(core));
}
END_TEST

START_TEST(a_stop_token_is_delivered_and_ends_the_request)
{
    options.no_overlap = true;
    start_node();
    submit(5, 20);
    answer();
    answer_with(0, PROTO_ROW_STOP_TOKEN);
    ck_assert_uint_eq(only(PROTO_KIND_TOKENS)->body.tokens.tokens.count, 1);
    const proto_finished_t *end = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert_uint_eq(end->reason, PROTO_FINISH_STOP);
    ck_assert_uint_eq(end->generated_tokens, 2);
}
END_TEST

START_TEST(a_nan_is_an_error_with_its_own_code)
{
    start_node();
    submit(5, 20);
    answer_with(0, PROTO_ROW_NAN);
    ck_assert_uint_eq(count_of(PROTO_KIND_TOKENS), 0);
    const proto_finished_t *end = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert_uint_eq(end->reason, PROTO_FINISH_ERROR);
    ck_assert(text_is(end->code, "nan_logits"));
    ck_assert_uint_gt(end->detail.size_bytes, 0);
}
END_TEST

/* After a cancel the step in flight still gives a token: nobody is told of it. */
START_TEST(tokens_of_a_cancelled_request_are_dropped)
{
    start_node();
    submit(5, 20);
    answer();
    end_request(5, 1, PROTO_FINISH_CANCELLED);
    const message_t *end = only(PROTO_KIND_FINISHED);
    ck_assert_uint_eq(end->body.finished.reason, PROTO_FINISH_CANCELLED);
    ck_assert_uint_eq(end->body.finished.generated_tokens, 1);
    answer();
    ck_assert_uint_eq(count_of(PROTO_KIND_TOKENS), 0);
    end_request(5, 1, PROTO_FINISH_CANCELLED);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 0);
}
END_TEST

START_TEST(each_gateway_gets_its_own_rows)
{
    options.no_overlap = true;
    start_node();
    peer_up(GATEWAY_2, PROTO_ROLE_GATEWAY, 12);
    submit(5, 20);
    submit_as(GATEWAY_2, 5, 20); /* the same number: another request */
    answer();
    ck_assert_uint_eq(count_of(PROTO_KIND_TOKENS), 1);
    answer();
    ck_assert_uint_eq(count_of(PROTO_KIND_TOKENS), 2);
    bool seen[2] = {false, false};
    for (uint32_t i = 0; i < message_count; i++) {
        if (messages[i].kind == PROTO_KIND_TOKENS) {
            ck_assert_uint_eq(messages[i].body.tokens.requests.count, 1);
            seen[messages[i].to == GATEWAY_2 ? 1 : 0] = true;
        }
    }
    ck_assert(seen[0] && seen[1]);
}
END_TEST

START_TEST(log_probabilities_follow_their_tokens)
{
    options.no_overlap = true;
    start_node();
    submit(5, 20);
    uint8_t count = 1;
    uint8_t flags = 0;
    uint8_t width = 2;
    int32_t token = 42;
    int32_t ids[2] = {42, 43};
    float values[2] = {-0.5f, -1.5f};
    proto_body_t body = {
        .step_result = {.step = 1,
                        .mode = PROTO_STEP_EXTEND,
                        .token_counts = {&count, 1},
                        .row_flags = {&flags, 1},
                        .tokens = {&token, 1},
                        .logprob_widths = {&width, 1},
                        .logprob_ids = {ids, 2},
                        .logprob_values = {values, 2}},
    };
    give(EXECUTOR, PROTO_KIND_STEP_RESULT, 0, &body);
    const proto_tokens_t *tokens = &only(PROTO_KIND_TOKENS)->body.tokens;
    ck_assert_uint_eq(tokens->logprob_widths.data[0], 2);
    ck_assert_int_eq(tokens->logprob_ids.data[1], 43);
    ck_assert(tokens->logprob_values.data[1] == -1.5f);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(a_submit_that_contradicts_itself_is_refused)
{
    start_node();
    static const int32_t tokens[PROMPT];
    proto_body_t body = {
        .submit = {.prompt_length = PROMPT + 1, .generation_max = 4, .tokens = {tokens, PROMPT}}};
    give(GATEWAY, PROTO_KIND_SUBMIT, 5, &body);
    const proto_finished_t *end = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert_uint_eq(end->reason, PROTO_FINISH_REFUSED);
    ck_assert(text_is(end->code, "invalid"));
    body.submit.prompt_length = PROMPT;
    body.submit.page_hashes = (proto_bytes_t){(const uint8_t *)"hash", 4};
    give(GATEWAY, PROTO_KIND_SUBMIT, 6, &body);
    ck_assert(text_is(only(PROTO_KIND_FINISHED)->body.finished.code, "invalid"));
    /* No hashes at all is a request without the prefix cache. */
    body.submit.page_hashes = (proto_bytes_t){NULL, 0};
    give(GATEWAY, PROTO_KIND_SUBMIT, 7, &body);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 0);
    ck_assert_uint_eq(only(PROTO_KIND_ADMIT)->body.admit.page_hashes.size_bytes, 0);
}
END_TEST

START_TEST(what_never_fits_is_refused_with_the_numbers)
{
    start_node();
    submit(5, 200);
    const proto_finished_t *end = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert_uint_eq(end->reason, PROTO_FINISH_REFUSED);
    ck_assert(text_is(end->code, "never_fits"));
    char detail[128] = "";
    memcpy(detail, end->detail.data, end->detail.size_bytes < 127 ? end->detail.size_bytes : 127);
    ck_assert_ptr_nonnull(strstr(detail, "210"));
    ck_assert_ptr_nonnull(strstr(detail, "128"));
    ck_assert_uint_eq(end->retry_after_ms, 0);
}
END_TEST

START_TEST(a_full_queue_answers_with_retry_after)
{
    start_node();
    /* The first one runs, two steps of it are in flight; four more may wait. */
    for (uint64_t id = 1; id <= 5; id++) {
        submit(id, 60);
        ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 0);
    }
    submit(6, 60);
    const proto_finished_t *end = &only(PROTO_KIND_FINISHED)->body.finished;
    ck_assert(text_is(end->code, "overloaded"));
    ck_assert_int_eq(end->status, STATUS_ERR_OVERLOADED);
    ck_assert_uint_gt(end->retry_after_ms, 0);
}
END_TEST

START_TEST(a_duplicate_submit_gets_no_second_answer)
{
    start_node();
    submit(5, 1);
    submit(5, 1);
    ck_assert_uint_eq(message_count - count_of(PROTO_KIND_LOAD), 0);
    answer();
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 1);
    submit(5, 1);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 0);
    ck_assert_uint_eq(count_of(PROTO_KIND_ADMIT), 0);
}
END_TEST

START_TEST(messages_from_the_wrong_side_are_ignored)
{
    start_node();
    submit_as(EXECUTOR, 5, 5);
    ck_assert_uint_eq(count_of(PROTO_KIND_ADMIT) + count_of(PROTO_KIND_FINISHED), 0);
    submit_as(60, 5, 5); /* nobody is there */
    ck_assert_uint_eq(count_of(PROTO_KIND_ADMIT) + count_of(PROTO_KIND_FINISHED), 0);
    executor_info(GATEWAY, 33);
    ck_assert_uint_eq(count_of(PROTO_KIND_MODEL_INFO), 0);
    proto_stats_t stats = {0};
    ops->stats(core, &stats);
    ck_assert_uint_eq(stats.refused_in, 3);
}
END_TEST

/* ---- the executor's answers ------------------------------------------------------------------ */

START_TEST(a_refused_plan_is_followed_by_a_full_plan)
{
    start_node();
    submit(5, 20);
    answer();
    ck_assert_uint_ge(plan_count, 1);
    proto_body_t body = {.plan_refused = {.step = plans[0].step,
                                          .rule = PROTO_RULE_BUDGET,
                                          .detail = proto_text("too many")}};
    plan_count = 0;
    give(EXECUTOR, PROTO_KIND_PLAN_REFUSED, 0, &body);
    ck_assert_uint_ge(count_of(PROTO_KIND_PLAN), 1);
    for (uint32_t i = 0; i < message_count; i++) {
        if (messages[i].kind == PROTO_KIND_PLAN) {
            ck_assert_uint_eq(messages[i].body.plan.base_step, 0);
            break;
        }
    }
    ck_assert_uint_eq(only(PROTO_KIND_NAK)->to, ACTOR_PEER_LOCAL); /* for the log */
    ck_assert_uint_eq(count_of(PROTO_KIND_ADMIT), 0);              /* it has the request */
    answer();
    ck_assert_uint_eq(only(PROTO_KIND_TOKENS)->body.tokens.token_indices.data[0], 1);
}
END_TEST

/* A result that does not fit: its requests end, the executor starts over, and is left alone when
 * it does that again and again. */
START_TEST(an_executor_that_breaks_the_protocol_is_reset_and_then_left)
{
    start_node();
    for (uint64_t id = 1; id <= 4; id++) {
        submit(id, 20);
        ck_assert_uint_eq(count_of(PROTO_KIND_ADMIT), 1);
        uint8_t counts[3] = {1, 1, 1};
        uint8_t flags[3] = {0};
        int32_t tokens[3] = {1, 2, 3};
        proto_body_t body = {.step_result = {.step = plans[0].step,
                                             .token_counts = {counts, 3},
                                             .row_flags = {flags, 3},
                                             .tokens = {tokens, 3}}};
        plan_count = 0;
        give(EXECUTOR, PROTO_KIND_STEP_RESULT, 0, &body);
        ck_assert(text_is(only(PROTO_KIND_FINISHED)->body.finished.code, "executor_fault"));
        ck_assert_uint_eq(count_of(PROTO_KIND_RESET), id <= 3 ? 1 : 0);
        ck_assert_uint_eq(count_of(PROTO_KIND_NAK), 2);
    }
    submit(9, 20);
    ck_assert(text_is(only(PROTO_KIND_FINISHED)->body.finished.code, "no_executor"));
}
END_TEST

START_TEST(a_late_result_is_ignored)
{
    start_node();
    submit(5, 3);
    sent_plan_t old = plans[0];
    answer();
    uint8_t count = 1;
    uint8_t flags = 0;
    int32_t token = 1;
    proto_body_t body = {.step_result = {.step = old.step,
                                         .token_counts = {&count, 1},
                                         .row_flags = {&flags, 1},
                                         .tokens = {&token, 1}}};
    give(EXECUTOR, PROTO_KIND_STEP_RESULT, 0, &body);
    ck_assert_uint_eq(count_of(PROTO_KIND_TOKENS), 0);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 0);
    ck_assert_uint_eq(count_of(PROTO_KIND_RESET), 0);
}
END_TEST

/* ---- time ------------------------------------------------------------------------------------ */

START_TEST(load_is_told_at_most_once_in_an_interval)
{
    start();
    peer_up(GATEWAY, PROTO_ROLE_GATEWAY, 11);
    ck_assert_uint_eq(count_of(PROTO_KIND_LOAD), 1);
    peer_up(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    executor_info(EXECUTOR, 33);
    submit(5, 20);
    ck_assert_uint_eq(count_of(PROTO_KIND_LOAD), 0);
    uint64_t deadline = ops->deadline_ns(core);
    ck_assert_uint_eq(deadline, 1000000 + 250000000);
    now_ns = deadline;
    timer();
    const proto_load_t *load = &only(PROTO_KIND_LOAD)->body.load;
    ck_assert_uint_eq(load->running, 1);
    ck_assert_uint_eq(load->blocks_total, 32);
    ck_assert_uint_lt(load->blocks_free, 32);
    ck_assert_uint_eq(load->steps, 2);
    /* Nothing changed: no LOAD, and no timer for one. */
    ck_assert_uint_gt(ops->deadline_ns(core), now_ns + 250000000);
    now_ns += 300000000;
    timer();
    ck_assert_uint_eq(count_of(PROTO_KIND_LOAD), 0);
}
END_TEST

START_TEST(a_wait_in_the_queue_ends_on_time)
{
    options.queue_timeout_ns = 1000000;
    start_node();
    for (uint64_t id = 1; id <= 5; id++) {
        submit(id, 60);
    }
    ck_assert_uint_eq(ops->deadline_ns(core), now_ns + 1000000);
    now_ns += 1000000;
    timer();
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISHED), 4); /* all but the one that runs */
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(messages[i].request, i + 2);
        ck_assert_uint_eq(messages[i].body.finished.reason, PROTO_FINISH_REFUSED);
        ck_assert(text_is(messages[i].body.finished.code, "queue_timeout"));
    }
}
END_TEST

START_TEST(progress_names_the_step_and_its_budget)
{
    start_node();
    proto_heartbeat_t beat = {0};
    ops->progress(core, now_ns, &beat);
    ck_assert_uint_eq(beat.step, 0);
    submit(5, 20);
    ops->progress(core, now_ns + 7, &beat);
    ck_assert_uint_eq(beat.step, 1);
    ck_assert_uint_eq(beat.step_age_ns, 7);
    /* Nothing is measured yet, and the first prompt of a slow device takes far more than seconds:
     * that is the executor's to judge, and must not count as a stuck scheduler. */
    ck_assert_uint_eq(beat.step_budget_ns, 600000000000u);
    ops->progress(core, now_ns + 300000000000u, &beat);
    ck_assert_uint_lt(beat.step_age_ns, beat.step_budget_ns);
    /* Steps that are known to be slow get more time. */
    for (uint64_t step = plans[0].step; step < plans[0].step + 2; step++) {
        uint8_t count = 1;
        uint8_t flags = 0;
        int32_t token = 1;
        proto_body_t body = {.step_result = {.step = step,
                                             .mode = step == plans[0].step
                                                         ? PROTO_STEP_EXTEND
                                                         : PROTO_STEP_DECODE_EAGER,
                                             .duration_ns = 90000000000u,
                                             .token_counts = {&count, 1},
                                             .row_flags = {&flags, 1},
                                             .tokens = {&token, 1}}};
        give(EXECUTOR, PROTO_KIND_STEP_RESULT, 0, &body);
    }
    ops->progress(core, now_ns, &beat);
    ck_assert_uint_eq(beat.step, 3);
    ck_assert_uint_gt(beat.step_budget_ns, 600000000000u);
}
END_TEST

/* More ends than fit one step come in several, and none is lost. */
START_TEST(many_ends_are_passed_on_in_portions)
{
    options.slot_count_max = 8;
    options.queue_len_max = 300;
    options.store_size_bytes = 4 << 20;
    start_node();
    for (uint64_t id = 1; id <= 300; id++) {
        submit(id, 60);
    }
    plan_count = 0;
    peer_down(EXECUTOR, PROTO_ROLE_EXECUTOR, 21);
    uint32_t ended = count_of(PROTO_KIND_FINISHED);
    ck_assert_uint_lt(ended, 300);
    while (ops->deadline_ns(core) == 0) {
        timer();
        ended += count_of(PROTO_KIND_FINISHED);
    }
    ck_assert_uint_eq(ended, 300);
}
END_TEST

START_TEST(a_draining_scheduler_refuses_and_becomes_idle)
{
    options.no_overlap = true;
    start_node();
    submit(5, 1);
    proto_body_t body = {.drain = {.grace_ns = 1}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_DRAIN, 0, &body);
    ck_assert(!ops->idle(core));
    submit(6, 1);
    ck_assert(text_is(only(PROTO_KIND_FINISHED)->body.finished.code, "draining"));
    answer();
    ck_assert(ops->idle(core));
}
END_TEST

static TCase *
add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, set_defaults, clean_up);
    tcase_set_timeout(tcase, 30);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int
main(void)
{
    Suite *suite = suite_create("actors.scheduler_core");
    TCase *links = add_case(suite, "links");
    tcase_add_test(links, gateways_learn_what_can_be_served);
    tcase_add_test(links, an_executor_that_cannot_be_served_is_told_why);
    tcase_add_test(links, a_request_that_began_elsewhere_counts_from_there);
    tcase_add_test(links, a_lost_executor_ends_its_requests_with_worker_lost);
    tcase_add_test(links, a_newer_executor_takes_over);
    tcase_add_test(links, a_gateway_that_leaves_takes_its_requests_along);
    TCase *requests = add_case(suite, "requests");
    tcase_add_test(requests, a_request_goes_its_whole_way);
    tcase_add_test(requests, a_stop_token_is_delivered_and_ends_the_request);
    tcase_add_test(requests, a_nan_is_an_error_with_its_own_code);
    tcase_add_test(requests, tokens_of_a_cancelled_request_are_dropped);
    tcase_add_test(requests, each_gateway_gets_its_own_rows);
    tcase_add_test(requests, log_probabilities_follow_their_tokens);
    TCase *refusals = add_case(suite, "refusals");
    tcase_add_test(refusals, a_submit_that_contradicts_itself_is_refused);
    tcase_add_test(refusals, what_never_fits_is_refused_with_the_numbers);
    tcase_add_test(refusals, a_full_queue_answers_with_retry_after);
    tcase_add_test(refusals, a_duplicate_submit_gets_no_second_answer);
    tcase_add_test(refusals, messages_from_the_wrong_side_are_ignored);
    TCase *answers = add_case(suite, "answers");
    tcase_add_test(answers, a_refused_plan_is_followed_by_a_full_plan);
    tcase_add_test(answers, an_executor_that_breaks_the_protocol_is_reset_and_then_left);
    tcase_add_test(answers, a_late_result_is_ignored);
    TCase *time = add_case(suite, "time");
    tcase_add_test(time, load_is_told_at_most_once_in_an_interval);
    tcase_add_test(time, a_wait_in_the_queue_ends_on_time);
    tcase_add_test(time, progress_names_the_step_and_its_budget);
    tcase_add_test(time, many_ends_are_passed_on_in_portions);
    tcase_add_test(time, a_draining_scheduler_refuses_and_becomes_idle);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
