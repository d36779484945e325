#include "actor_conform_gateway.h"

#include <inttypes.h>
#include <string.h>

#include "proto_require.h"

enum {
    OUTBOX_SIZE_BYTES = 1 << 20,
    OUTBOX_COUNT_MAX = 4,
};

static conform_where_t
where_of(const actor_input_t *input, uint64_t request)
{
    return (conform_where_t){.link = "gateway",
                             .kind = input->header->kind,
                             .sequence = input->header->sequence,
                             .request = request};
}

/* A request of this gateway, which it still waits for or got the answer of. */
static bool
is_ours(const conform_gateway_t *self, const conform_request_t *request)
{
    return request != NULL && request->ask.gateway == self->index && request->submit_count > 0 &&
           (request->excuses & CONFORM_EXCUSE_GONE) == 0;
}

static void
copy_text(char *out, size_t size_bytes, proto_text_t text)
{
    (void)snprintf(out, size_bytes, "%.*s", (int)text.size_bytes,
                   text.data != NULL ? text.data : "");
}

/* ---- MODEL_INFO, LOAD ------------------------------------------------------------------------ */

static void
on_model_info(conform_gateway_t *self, const actor_input_t *input)
{
    const proto_model_info_t *in = &input->body->model_info;
    conform_model_info_t *info = &self->info;
    copy_text(info->model_name, sizeof info->model_name, in->model_name);
    copy_text(info->fingerprint, sizeof info->fingerprint, in->fingerprint);
    info->vocab_size = in->vocab_size;
    info->model_len_max = in->model_len_max;
    info->prompt_len_max = in->prompt_len_max;
    info->slot_count = in->slot_count;
    info->queue_len_max = in->queue_len_max;
    info->prefix_granularity = in->prefix_granularity;
    memset(info->page_hash_key, 0, sizeof info->page_hash_key);
    if (in->page_hash_key.size_bytes <= sizeof info->page_hash_key &&
        in->page_hash_key.size_bytes > 0) {
        memcpy(info->page_hash_key, in->page_hash_key.data, in->page_hash_key.size_bytes);
    }
    self->info_count++;
}

/* ---- TOKENS ---------------------------------------------------------------------------------- */

/* True if the columns can be walked. */
static bool
check_tokens_shape(conform_gateway_t *self, const actor_input_t *input)
{
    const proto_tokens_t *tokens = &input->body->tokens;
    uint32_t rows = tokens->requests.count;
    bool has_widths = tokens->logprob_widths.count > 0;
    uint64_t count = 0;
    uint64_t logprobs = 0;
    bool fits = tokens->token_indices.count == rows && tokens->token_counts.count == rows &&
                (!has_widths || tokens->logprob_widths.count == rows);
    for (uint32_t r = 0; fits && r < rows; r++) {
        count += tokens->token_counts.data[r];
        logprobs += (uint64_t)tokens->token_counts.data[r] *
                    (has_widths ? tokens->logprob_widths.data[r] : 0);
    }
    fits = fits && count == tokens->tokens.count && logprobs == tokens->logprob_ids.count &&
           logprobs == tokens->logprob_values.count;
    if (fits) {
        actor_conform_held(self->report, CONFORM_TOKENS_SHAPE);
        return true;
    }
    conform_where_t where = where_of(input, 0);
    actor_conform_broke(self->report, CONFORM_TOKENS_SHAPE, &where,
                        "columns of one length, sums that match",
                        "%u requests, %u indices, %u counts, %u tokens (the counts say %" PRIu64
                        "), %u log probabilities (the counts say %" PRIu64 ")",
                        rows, tokens->token_indices.count, tokens->token_counts.count,
                        tokens->tokens.count, count, tokens->logprob_ids.count, logprobs);
    return false;
}

/* A row that does not go on where the last one ended: what is wrong, the index or the tokens? */
static void
blame_row(conform_gateway_t *self, const actor_input_t *input, conform_request_t *request,
          uint32_t index, int32_t token)
{
    conform_where_t where = where_of(input, request->id);
    uint32_t next = request->next_index;
    uint32_t end = request->ask.emitted + request->ask.generation_max;
    bool is_next = next < end && token == actor_conform_answer_token(request, next);
    bool is_named = index < end && token == actor_conform_answer_token(request, index);
    conform_rule_t rule = CONFORM_TOKENS_VALUE;
    if (index != next && is_named && !is_next) {
        rule = CONFORM_TOKENS_COMPLETE;
    } else if (index != next) {
        rule = CONFORM_TOKENS_INDEX;
    }
    char expected[128];
    (void)snprintf(expected, sizeof expected, "token_index %u with token %d", next,
                   next < end ? actor_conform_answer_token(request, next) : -1);
    actor_conform_broke(self->report, rule, &where, expected, "token_index %u with token %d%s",
                        index, token,
                        rule == CONFORM_TOKENS_COMPLETE
                            ? (index > next ? ": tokens before it never came" : ": it came before")
                            : "");
}

typedef struct {
    uint32_t index;
    uint32_t count;
    uint32_t width;
    const int32_t *tokens;
    const int32_t *logprob_ids;
    const float *logprob_values;
} row_t;

static void
check_logprobs(conform_gateway_t *self, const actor_input_t *input,
               const conform_request_t *request, const row_t *row)
{
    conform_where_t where = where_of(input, request->id);
    uint32_t width = request->ask.logprobs ? CONFORM_LOGPROB_WIDTH : 0;
    if (row->width != width) {
        actor_conform_broke(self->report, CONFORM_TOKENS_VALUE, &where,
                            "log probabilities exactly as in the result",
                            "log probabilities of width %u in a row of width %u", row->width,
                            width);
        return;
    }
    for (uint32_t i = 0; i < row->count * width; i++) {
        int32_t id = row->tokens[i / width] + (int32_t)(i % width);
        float value = -0.5f * (float)(i % width) - 0.25f;
        if (row->logprob_ids[i] != id || row->logprob_values[i] < value - 0.001f ||
            row->logprob_values[i] > value + 0.001f) {
            actor_conform_broke(self->report, CONFORM_TOKENS_VALUE, &where,
                                "log probabilities exactly as in the result",
                                "log probability %u is of token %d with %.3f, not %d with %.3f", i,
                                row->logprob_ids[i], (double)row->logprob_values[i], id,
                                (double)value);
            return;
        }
    }
}

static void
take_row(conform_gateway_t *self, const actor_input_t *input, conform_request_t *request,
         const row_t *row)
{
    conform_where_t where = where_of(input, request->id);
    if (request->end_count > 0) {
        conform_rule_t rule =
            request->is_short ? CONFORM_END_AFTER_TOKENS : CONFORM_TOKENS_AFTER_END;
        actor_conform_broke(self->report, rule, &where, "FINISHED after the last TOKENS",
                            "token_index %u after FINISHED, which counted %u tokens", row->index,
                            request->end_generated);
        request->is_short = false;
        return;
    }
    uint32_t end = request->ask.emitted + request->ask.generation_max;
    uint32_t most = actor_conform_answer_length(request);
    for (uint32_t i = 0; i < row->count; i++) {
        uint32_t index = row->index + i;
        if (request->next_index >= most && index >= most) {
            actor_conform_broke(self->report, CONFORM_TOKENS_LENGTH, &where,
                                "no token beyond the last one that counts",
                                "token_index %u; the last one was %u", index, most - 1);
            return;
        }
        if (index != request->next_index || index >= end ||
            row->tokens[i] != actor_conform_answer_token(request, index)) {
            blame_row(self, input, request, index, row->tokens[i]);
            request->next_index = index < end ? index + 1 : request->next_index;
            continue;
        }
        request->next_index++;
        actor_conform_held(self->report, CONFORM_TOKENS_INDEX);
        actor_conform_held(self->report, CONFORM_TOKENS_VALUE);
        actor_conform_held(self->report, CONFORM_TOKENS_LENGTH);
    }
    check_logprobs(self, input, request, row);
}

static void
on_tokens(conform_gateway_t *self, const actor_input_t *input)
{
    const proto_tokens_t *tokens = &input->body->tokens;
    if (!check_tokens_shape(self, input)) {
        return;
    }
    uint32_t token_at = 0;
    uint32_t logprob_at = 0;
    for (uint32_t r = 0; r < tokens->requests.count; r++) {
        uint64_t id = tokens->requests.data[r];
        row_t row = {.index = tokens->token_indices.data[r],
                     .count = tokens->token_counts.data[r],
                     .width = tokens->logprob_widths.count > 0 ? tokens->logprob_widths.data[r] : 0,
                     .tokens = tokens->tokens.data + token_at,
                     .logprob_ids = tokens->logprob_ids.data + logprob_at,
                     .logprob_values = tokens->logprob_values.data + logprob_at};
        token_at += row.count;
        logprob_at += row.count * row.width;
        conform_request_t *request = actor_conform_book_find(self->book, id);
        if (!is_ours(self, request)) {
            conform_where_t where = where_of(input, id);
            actor_conform_broke(self->report, CONFORM_TOKENS_OWNER, &where,
                                "rows of this gateway's own requests",
                                "a row of request %" PRIu64 ", which is %s", id,
                                request == NULL ? "unknown"
                                                : "another gateway's or of an earlier link");
            continue;
        }
        actor_conform_held(self->report, CONFORM_TOKENS_OWNER);
        take_row(self, input, request, &row);
    }
}

/* ---- FINISHED -------------------------------------------------------------------------------- */

void
actor_conform_describe_end(const conform_request_t *request, char *out, size_t size_bytes)
{
    const conform_ask_t *ask = &request->ask;
    uint32_t length = actor_conform_answer_length(request);
    if (ask->expect == CONFORM_EXPECT_REFUSED) {
        (void)snprintf(out, size_bytes, "FINISHED, reason REFUSED, code %s", ask->code);
    } else if (request->is_finishing) {
        (void)snprintf(out, size_bytes,
                       "FINISHED after FINISH: reason %u, tokens before index %u count",
                       request->finish_reason, request->finish_index);
    } else if (ask->nan_at > 0 && request->had_nan) {
        (void)snprintf(out, size_bytes, "FINISHED, reason ERROR, code nan_logits, %u tokens",
                       length);
    } else if (ask->stop_at > 0 && length == ask->stop_at) {
        (void)snprintf(out, size_bytes, "FINISHED, reason STOP, %u tokens, the last a stop token",
                       length);
    } else {
        (void)snprintf(out, size_bytes, "FINISHED, reason LENGTH, %u tokens", length);
    }
}

static bool
code_is(const conform_request_t *request, const char *code)
{
    return strcmp(request->end_code, code) == 0;
}

/* Tokens that count once FINISH was heeded. */
static uint32_t
kept_count(const conform_request_t *request)
{
    uint32_t kept =
        request->next_index < request->finish_index ? request->next_index : request->finish_index;
    return kept > request->ask.emitted ? kept : request->ask.emitted;
}

/* True if the request may end for this reason. */
static bool
reason_fits(const conform_request_t *request, bool *by_finish)
{
    const conform_ask_t *ask = &request->ask;
    uint32_t length = actor_conform_answer_length(request);
    uint32_t reason = request->end_reason;
    *by_finish = request->is_finishing && reason == request->finish_reason &&
                 request->end_generated == kept_count(request);
    if (ask->expect == CONFORM_EXPECT_ANY || *by_finish) {
        return true;
    }
    if (reason == PROTO_FINISH_REFUSED) {
        return ask->expect == CONFORM_EXPECT_REFUSED && code_is(request, ask->code);
    }
    if (ask->expect == CONFORM_EXPECT_REFUSED) {
        return false;
    }
    if (reason == PROTO_FINISH_ERROR) {
        return (code_is(request, "nan_logits") && request->had_nan) ||
               (code_is(request, "worker_lost") && (request->excuses & CONFORM_EXCUSE_LOST) != 0) ||
               (code_is(request, "executor_fault") &&
                (request->excuses & CONFORM_EXCUSE_FAULT) != 0) ||
               (code_is(request, "plan_refused") &&
                (request->excuses & CONFORM_EXCUSE_REFUSED) != 0);
    }
    bool stops = ask->stop_at > 0 && length == ask->stop_at;
    bool has_nan = ask->nan_at > 0 && length == ask->nan_at - 1;
    /* A count that is wrong is another matter. */
    bool is_complete = request->end_generated == length || request->next_index == length;
    if (reason == PROTO_FINISH_STOP) {
        return stops && is_complete;
    }
    return reason == PROTO_FINISH_LENGTH && !stops && !has_nan && is_complete;
}

static void
check_counts(conform_gateway_t *self, const actor_input_t *input, conform_request_t *request,
             bool by_finish)
{
    const proto_finished_t *end = &input->body->finished;
    const conform_ask_t *ask = &request->ask;
    conform_where_t where = where_of(input, request->id);
    uint32_t prompt = ask->prompt_length - ask->emitted;
    char expected[160];
    if (end->prompt_tokens != prompt || end->cached_tokens > ask->prompt_length) {
        (void)snprintf(expected, sizeof expected, "prompt_tokens %u, cached_tokens at most %u",
                       prompt, ask->prompt_length);
        actor_conform_broke(self->report, CONFORM_END_COUNTS, &where, expected,
                            "prompt_tokens %u, cached_tokens %u", end->prompt_tokens,
                            end->cached_tokens);
        return;
    }
    uint32_t counted = by_finish ? kept_count(request) : request->next_index;
    bool is_possible = end->generated_tokens <= actor_conform_answer_length(request);
    if (end->generated_tokens > counted && is_possible) {
        request->is_short = true; /* late, or lost: what comes next tells */
        return;
    }
    if (end->generated_tokens != counted) {
        (void)snprintf(expected, sizeof expected, "generated_tokens %u, as came in TOKENS",
                       counted);
        actor_conform_broke(self->report,
                            ask->emitted > 0 ? CONFORM_END_RESUME : CONFORM_END_COUNTS, &where,
                            expected, "generated_tokens %u", end->generated_tokens);
        return;
    }
    actor_conform_held(self->report, CONFORM_END_COUNTS);
    actor_conform_held(self->report, CONFORM_END_AFTER_TOKENS);
    actor_conform_held(self->report, CONFORM_TOKENS_COMPLETE);
}

static void
check_status(conform_gateway_t *self, const actor_input_t *input, const conform_request_t *request)
{
    const proto_finished_t *end = &input->body->finished;
    bool is_good = end->reason == PROTO_FINISH_STOP || end->reason == PROTO_FINISH_LENGTH;
    bool fits = is_good ? end->status == 0 && end->code.size_bytes == 0
                        : end->status < 0 && end->code.size_bytes > 0;
    conform_where_t where = where_of(input, request->id);
    if (!fits) {
        actor_conform_broke(self->report, CONFORM_END_STATUS, &where,
                            is_good ? "status 0 and no code" : "a negative status and a code",
                            "reason %u with status %" PRId64 " and code '%s'", end->reason,
                            end->status, request->end_code);
    } else if (code_is(request, "overloaded") && end->retry_after_ms == 0) {
        actor_conform_broke(self->report, CONFORM_END_OVERLOADED, &where, "retry_after_ms above 0",
                            "code overloaded with retry_after_ms 0");
    } else {
        actor_conform_held(self->report, CONFORM_END_STATUS);
    }
}

/* The rule that a wrong reason breaks: that of FINISH, if there was one. */
static conform_rule_t
rule_of(const conform_request_t *request)
{
    if (request->is_finishing && request->end_reason == request->finish_reason) {
        return CONFORM_END_INDEX;
    }
    if (request->submit_count > 1) {
        return CONFORM_END_DUPLICATE;
    }
    return request->ask.rule;
}

static void
on_finished(conform_gateway_t *self, const actor_input_t *input)
{
    const proto_finished_t *end = &input->body->finished;
    uint64_t id = input->header->request;
    conform_where_t where = where_of(input, id);
    conform_request_t *request = actor_conform_book_find(self->book, id);
    if (!is_ours(self, request)) {
        actor_conform_broke(self->report, CONFORM_END_OWNER, &where, "a request of this gateway",
                            "FINISHED of request %" PRIu64 ", which is %s", id,
                            request == NULL || request->submit_count == 0
                                ? "unknown"
                                : "another gateway's or of an earlier link");
        return;
    }
    actor_conform_held(self->report, CONFORM_END_OWNER);
    if (request->end_count++ > 0) {
        conform_rule_t rule = request->submit_count > 1 ? CONFORM_END_DUPLICATE : CONFORM_END_ONCE;
        rule = request->is_finished_twice ? CONFORM_END_CANCEL_TWICE : rule;
        actor_conform_broke(self->report, rule, &where, "one FINISHED",
                            "FINISHED number %u: reason %u after reason %u", request->end_count,
                            end->reason, request->end_reason);
        return;
    }
    actor_conform_held(self->report, CONFORM_END_ONCE);
    self->book->open_count--;
    request->end_ns = input->now_ns;
    request->end_where = where;
    request->end_reason = end->reason;
    request->end_generated = end->generated_tokens;
    request->end_retry_ms = end->retry_after_ms;
    copy_text(request->end_code, sizeof request->end_code, end->code);
    bool by_finish = false;
    if (!reason_fits(request, &by_finish)) {
        char expected[200];
        actor_conform_describe_end(request, expected, sizeof expected);
        actor_conform_broke(self->report, rule_of(request), &where, expected,
                            "FINISHED, reason %u, code '%s', %u tokens counted, %u received",
                            end->reason, request->end_code, end->generated_tokens,
                            request->next_index);
        return;
    }
    actor_conform_held(self->report, request->ask.rule);
    if (by_finish) {
        actor_conform_held(self->report, CONFORM_END_INDEX);
    }
    check_status(self, input, request);
    if (end->reason != PROTO_FINISH_REFUSED) {
        check_counts(self, input, request, by_finish);
    }
}

/* ---- the core -------------------------------------------------------------------------------- */

static void
step_local(conform_gateway_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    int kind = (int)input->header->kind;
    if (kind == PROTO_KIND_PEER_UP) {
        self->scheduler.index = input->body->peer_up.peer;
        self->scheduler_epoch = input->body->peer_up.epoch;
        self->is_up = true;
        self->was_up = true;
    } else if (kind == PROTO_KIND_PEER_DOWN) {
        self->is_up = false;
        copy_text(self->down_detail, sizeof self->down_detail, input->body->peer_down.detail);
    } else if (self->is_up && (kind == PROTO_KIND_SUBMIT || kind == PROTO_KIND_FINISH)) {
        actor_outbox_push(outbox, self->scheduler, input->header->kind, input->header->request,
                          input->body);
    }
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    conform_gateway_t *self = core;
    if (input->from.index == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
        return;
    }
    actor_conform_held(self->report, CONFORM_LINK_SEQUENCE);
    int kind = (int)input->header->kind;
    if (kind == PROTO_KIND_TOKENS) {
        on_tokens(self, input);
    } else if (kind == PROTO_KIND_FINISHED) {
        on_finished(self, input);
    } else if (kind == PROTO_KIND_MODEL_INFO) {
        on_model_info(self, input);
    } else if (kind == PROTO_KIND_LOAD) {
        self->load_count++;
    } else {
        conform_where_t where = where_of(input, input->header->request);
        actor_conform_broke(self->report, CONFORM_LINK_KIND, &where,
                            "MODEL_INFO, TOKENS, FINISHED or LOAD", "%s to a gateway",
                            proto_kind_name(input->header->kind));
        return;
    }
    actor_conform_held(self->report, CONFORM_LINK_KIND);
}

static uint64_t
core_deadline_ns(const void *core)
{
    (void)core;
    return UINT64_MAX;
}

static uint64_t
core_digest(const void *core)
{
    const conform_gateway_t *self = core;
    return self->book->open_count;
}

void
actor_conform_gateway_init(conform_gateway_t *self, uint32_t index, conform_book_t *book,
                           conform_report_t *report)
{
    *self = (conform_gateway_t){.ops = {.name = "gateway",
                                        .role = PROTO_ROLE_GATEWAY,
                                        .outbox_size_bytes = OUTBOX_SIZE_BYTES,
                                        .outbox_count_max = OUTBOX_COUNT_MAX,
                                        .step = core_step,
                                        .deadline_ns = core_deadline_ns,
                                        .digest = core_digest},
                                .index = index,
                                .book = book,
                                .report = report,
                                .ring_fd = -1,
                                .scheduler = {ACTOR_PEER_NONE}};
}

/* ---- what it is told to do ------------------------------------------------------------------- */

void
actor_conform_submit_body(const conform_request_t *request, proto_body_t *out)
{
    const conform_ask_t *ask = &request->ask;
    uint32_t length = ask->wrong_length > 0 ? ask->wrong_length : ask->prompt_length;
    *out = (proto_body_t){.submit = {.prompt_length = ask->prompt_length,
                                     .generation_max = ask->generation_max,
                                     .priority = ask->priority,
                                     .queue_timeout_ns = ask->queue_timeout_ns,
                                     .emitted = ask->emitted,
                                     .page_hashes = {request->hashes, request->hashes_size},
                                     .tokens = {request->tokens, length},
                                     .sampling = {request->sampling, request->sampling_size}}};
}

void
actor_conform_submit(conform_gateway_t *self, conform_request_t *request, uint64_t now_ns)
{
    require(request->ask.gateway == self->index);
    proto_body_t body;
    actor_conform_submit_body(request, &body);
    if (request->submit_count++ == 0) {
        request->submit_ns = now_ns;
        self->book->open_count++;
    }
    actor_shell_inject(self->shell, PROTO_KIND_SUBMIT, request->id, &body);
}

void
actor_conform_finish(conform_gateway_t *self, conform_request_t *request, uint32_t token_index,
                     proto_finish_reason_t reason)
{
    request->is_finished_twice = request->is_finishing || request->end_count > 0;
    if (!request->is_finishing) {
        request->is_finishing = true;
        request->finish_index = token_index;
        request->finish_reason = reason;
    }
    proto_body_t body = {.finish = {.token_index = token_index, .reason = reason}};
    actor_shell_inject(self->shell, PROTO_KIND_FINISH, request->id, &body);
}

void
actor_conform_finish_unknown(conform_gateway_t *self, uint64_t id)
{
    proto_body_t body = {.finish = {.token_index = 0, .reason = PROTO_FINISH_CANCELLED}};
    actor_shell_inject(self->shell, PROTO_KIND_FINISH, id, &body);
}
