/* actor_gateway_core.c - one small state machine for each choice: open, stopping, ended.
 *
 * A choice leaves the table in end_choice() only, which gives its HTTP_END: so "exactly one" holds
 * by construction, and everything that comes later finds nothing and is counted as ignored.
 *
 * Long because it is one state machine: its inputs and exits are to be read side by side. */
#include "actor_gateway_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_gateway_table.h"
#include "proto_require.h"

enum {
    RETRY_AFTER_MS = 1000,
    /* What one TOKENS may carry; more is a broken peer, and the bound sizes the outbox. */
    TOKENS_PER_MESSAGE_MAX = 1 << 16,
    LOGPROBS_PER_MESSAGE_MAX = 1 << 20,
    /* Largest answer to one input: every choice gets tokens, a FINISH and an end; or a SUBMIT. */
    EMISSION_COUNT_MAX = 3 * ACTOR_GATEWAY_CHOICE_COUNT_MAX + 8,
    EMISSION_SIZE_BYTES = 512 + PROTO_TEXT_LEN_MAX,
};

#define OUTBOX_SIZE_BYTES                                                                          \
    ((size_t)EMISSION_COUNT_MAX * EMISSION_SIZE_BYTES + 4u * PROTO_TOKENS_MAX +                    \
     32u * PROTO_PAGES_MAX + 8u * LOGPROBS_PER_MESSAGE_MAX + 65536u)
#define FINISH_TIMEOUT_NS UINT64_C(10000000000)

struct actor_gateway_core {
    actor_gateway_table_t *choices;
    uint64_t request_base;  /* high half of every request id of this epoch */
    uint64_t request_count; /* ids minted */
    uint64_t finish_timeout_ns;
    actor_peer_t scheduler; /* ACTOR_PEER_NONE while there is none */
    bool has_model;         /* model is what the scheduler said, with an executor behind it */
    bool draining;
    bool told_ready; /* the last HTTP_STATE */
    bool told_any;
    proto_model_info_t model; /* its texts point to the arrays below */
    char model_name[PROTO_TEXT_LEN_MAX];
    char fingerprint[PROTO_TEXT_LEN_MAX];
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
    proto_load_t load;
    uint64_t submitted_count;
    uint64_t ended_count;
    uint64_t gap_count;
    uint64_t ignored_count;
    uint64_t prompt_tokens;     /* of ended choices, without the cached ones */
    uint64_t generation_tokens; /* given to clients */
};

proto_status_t
actor_gateway_core_new(const actor_gateway_core_options_t *options, actor_gateway_core_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    require(options->choice_count_max > 0);
    require(options->choice_count_max <= ACTOR_GATEWAY_CHOICE_COUNT_MAX);

    actor_gateway_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = actor_gateway_table_new(options->choice_count_max, &self->choices);
    if (status != STATUS_OK) {
        free(self);
        return status;
    }
    /* 2^32 ids for each epoch, at a place that the epoch alone decides. */
    self->request_base = actor_gateway_mix(options->epoch) & ~UINT64_C(0xffffffff);
    self->finish_timeout_ns =
        options->finish_timeout_ns == 0 ? FINISH_TIMEOUT_NS : options->finish_timeout_ns;
    self->scheduler.index = ACTOR_PEER_NONE;
    *out_p = self;
    return STATUS_OK;
}

void
actor_gateway_core_destroy(actor_gateway_core_t **self_p)
{
    require(self_p != NULL);
    actor_gateway_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    actor_gateway_table_destroy(&self->choices);
    free(self);
    *self_p = NULL;
}

/* ---- what is attached ------------------------------------------------------------------------ */

static bool
has_scheduler(const actor_gateway_core_t *self)
{
    return self->scheduler.index != ACTOR_PEER_NONE;
}

static const char *
missing_text(const actor_gateway_core_t *self)
{
    if (self->draining) {
        return "the server is shutting down";
    }
    if (!has_scheduler(self)) {
        return "no scheduler is attached";
    }
    return self->has_model ? "" : "no executor is attached";
}

static const char *
missing_code(const actor_gateway_core_t *self)
{
    if (self->draining) {
        return "shutting_down";
    }
    return has_scheduler(self) ? "no_executor" : "worker_lost";
}

static bool
is_ready(const actor_gateway_core_t *self)
{
    return has_scheduler(self) && self->has_model && !self->draining;
}

static void
tell_state(actor_gateway_core_t *self, actor_outbox_t *outbox)
{
    bool ready = is_ready(self);
    if (self->told_any && self->told_ready == ready) {
        return;
    }
    self->told_any = true;
    self->told_ready = ready;
    proto_body_t body = {
        .http_state = {.ready = ready, .detail = proto_text(missing_text(self))},
    };
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_STATE, 0, &body);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void
push_end(actor_gateway_core_t *self, actor_outbox_t *outbox, uint64_t request,
         const proto_http_end_t *end)
{
    proto_body_t body = {.http_end = *end};
    self->ended_count++;
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_END, request,
                      &body);
}

/* The one way out of the table.  Fills in whom the end is for. */
static void
end_choice(actor_gateway_core_t *self, actor_outbox_t *outbox, actor_gateway_choice_t *choice,
           proto_http_end_t end)
{
    end.exchange = choice->exchange;
    end.choice_index = choice->choice_index;
    if (end.prompt_tokens == 0) {
        end.prompt_tokens = choice->prompt_tokens;
    }
    uint64_t request = choice->request;
    actor_gateway_table_release(self->choices, choice);
    push_end(self, outbox, request, &end);
}

static void
end_with_error(actor_gateway_core_t *self, actor_outbox_t *outbox, actor_gateway_choice_t *choice,
               proto_status_t status, const char *code, const char *detail)
{
    proto_http_end_t end = {
        .reason = PROTO_FINISH_ERROR,
        .generated_tokens = choice->next_index,
        .status = status,
        .code = proto_text(code),
        .detail = proto_text(detail),
        .retry_after_ms = status == STATUS_ERR_PEER_LOST ? RETRY_AFTER_MS : 0,
    };
    end_choice(self, outbox, choice, end);
}

/* The end of a choice whose stop was recorded: the stop decides, not what came after it. */
static void
end_as_stopped(actor_gateway_core_t *self, actor_outbox_t *outbox, actor_gateway_choice_t *choice,
               const proto_finished_t *finished)
{
    proto_http_end_t end = {.reason = choice->stop_reason};
    uint32_t generated = choice->next_index;
    if (finished != NULL) {
        end.prompt_tokens = finished->prompt_tokens;
        end.cached_tokens = finished->cached_tokens;
        end.queue_ns = finished->queue_ns;
    }
    end.generated_tokens = generated < choice->stop_index ? generated : choice->stop_index;
    end_choice(self, outbox, choice, end);
}

static void
send_finish(actor_gateway_core_t *self, actor_outbox_t *outbox,
            const actor_gateway_choice_t *choice, uint32_t token_index,
            proto_finish_reason_t reason)
{
    if (!has_scheduler(self)) {
        return;
    }
    proto_body_t body = {.finish = {.token_index = token_index, .reason = reason}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_FINISH, choice->request, &body);
}

/* ---- the HTTP side --------------------------------------------------------------------------- */

static void
refuse(actor_gateway_core_t *self, actor_outbox_t *outbox, const proto_http_request_t *request,
       proto_status_t status, const char *code, const char *detail)
{
    bool retry = status == STATUS_ERR_PEER_LOST || status == STATUS_ERR_OVERLOADED;
    proto_http_end_t end = {
        .exchange = request->exchange,
        .choice_index = request->choice_index,
        .reason = PROTO_FINISH_REFUSED,
        .prompt_tokens = request->tokens.count,
        .status = status,
        .code = proto_text(code),
        .detail = proto_text(detail),
        .retry_after_ms = retry ? RETRY_AFTER_MS : 0,
    };
    push_end(self, outbox, 0, &end);
}

/* True if prompt and generation fit; else refuses with the numbers. */
static bool
check_length(actor_gateway_core_t *self, actor_outbox_t *outbox,
             const proto_http_request_t *request, uint32_t *generation_max)
{
    uint32_t prompt = request->tokens.count;
    uint32_t limit = self->model.model_len_max;
    uint32_t longest = self->model.prompt_len_max;
    char detail[256];
    if (prompt >= limit) {
        (void)snprintf(detail, sizeof detail,
                       "This model's maximum context length is %u tokens, but the prompt has %u "
                       "tokens and at least 1 must be left to generate.",
                       limit, prompt);
    } else if (longest > 0 && prompt > longest) {
        (void)snprintf(detail, sizeof detail,
                       "The prompt has %u tokens; the cache of this server fits prompts of at "
                       "most %u.",
                       prompt, longest);
    } else if (request->generation_max > limit - prompt) {
        (void)snprintf(detail, sizeof detail,
                       "This model's maximum context length is %u tokens, but %u were asked for "
                       "(%u in the prompt, %u to generate).",
                       limit, prompt + request->generation_max, prompt, request->generation_max);
    } else {
        *generation_max = request->generation_max == 0 ? limit - prompt : request->generation_max;
        return true;
    }
    refuse(self, outbox, request, STATUS_ERR_NEVER_FITS, "context_length_exceeded", detail);
    return false;
}

static void
on_http_request(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_http_request_t *request = &input->body->http_request;
    if (actor_gateway_table_find_choice(self->choices, request->exchange, request->choice_index) !=
        NULL) {
        self->ignored_count++; /* the open one still gets its end */
        return;
    }
    if (!is_ready(self)) {
        refuse(self, outbox, request, STATUS_ERR_PEER_LOST, missing_code(self), missing_text(self));
        return;
    }
    if (request->tokens.count == 0) {
        refuse(self, outbox, request, STATUS_ERR_INVALID, "invalid_prompt",
               "The prompt has no tokens.");
        return;
    }
    uint32_t generation_max = 0;
    if (!check_length(self, outbox, request, &generation_max)) {
        return;
    }
    uint64_t id = self->request_base + ++self->request_count;
    actor_gateway_choice_t *choice =
        actor_gateway_table_acquire(self->choices, id, request->exchange, request->choice_index);
    if (choice == NULL) {
        refuse(self, outbox, request, STATUS_ERR_OVERLOADED, "overloaded",
               "Too many requests are in flight; try again.");
        return;
    }
    actor_gateway_table_fold(self->choices, choice);
    choice->prompt_tokens = request->tokens.count;
    actor_gateway_table_fold(self->choices, choice);
    if (request->timeout_ns != 0 && request->timeout_ns < UINT64_MAX - input->now_ns) {
        actor_gateway_table_set_deadline(self->choices, choice,
                                         input->now_ns + request->timeout_ns);
    }
    proto_body_t body = {
        .submit =
            {
                .prompt_length = request->tokens.count,
                .generation_max = generation_max,
                .priority = request->priority,
                .queue_timeout_ns = request->timeout_ns,
                .page_hashes = request->page_hashes,
                .tokens = request->tokens,
                .sampling = request->sampling,
            },
    };
    self->submitted_count++;
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_SUBMIT, id, &body);
}

static void
on_http_stop(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_http_stop_t *stop = &input->body->http_stop;
    actor_gateway_choice_t *choice =
        actor_gateway_table_find_choice(self->choices, stop->exchange, stop->choice_index);
    bool is_reason = stop->reason == PROTO_FINISH_STOP || stop->reason == PROTO_FINISH_CANCELLED;
    if (choice == NULL || !is_reason) {
        self->ignored_count++; /* it ended in the meantime: its end was its answer */
        return;
    }
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        self->ignored_count++; /* the first stop was recorded and is being answered */
        return;
    }
    /* Recorded before anything else is looked at: a FINISHED that crosses it changes nothing. */
    actor_gateway_table_fold(self->choices, choice);
    choice->stop_reason = (proto_finish_reason_t)stop->reason;
    choice->stop_index = stop->token_index;
    actor_gateway_table_fold(self->choices, choice);
    actor_gateway_table_set_deadline(self->choices, choice,
                                     input->now_ns + self->finish_timeout_ns);
    send_finish(self, outbox, choice, stop->token_index, choice->stop_reason);
}

/* ---- the scheduler's side -------------------------------------------------------------------- */

static void
lose_choice(actor_gateway_core_t *self, actor_outbox_t *outbox, actor_gateway_choice_t *choice,
            const char *detail)
{
    self->gap_count++;
    send_finish(self, outbox, choice, choice->next_index, PROTO_FINISH_CANCELLED);
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        end_as_stopped(self, outbox, choice, NULL);
        return;
    }
    end_with_error(self, outbox, choice, STATUS_ERR_INTERNAL, "token_stream_broken", detail);
}

/* One row of TOKENS, as the cursor found it. */
typedef struct {
    uint64_t request;
    uint32_t token_index;
    uint32_t count;
    const int32_t *tokens;
    uint32_t width;
    const int32_t *logprob_ids;
    const float *logprob_values;
} token_row_t;

static void
take_row(actor_gateway_core_t *self, actor_outbox_t *outbox, token_row_t row)
{
    actor_gateway_choice_t *choice = actor_gateway_table_find(self->choices, row.request);
    if (choice == NULL || row.count == 0) {
        self->ignored_count++;
        return;
    }
    if (row.token_index > choice->next_index) {
        char detail[96];
        (void)snprintf(detail, sizeof detail, "Tokens %u to %u of the answer were lost.",
                       choice->next_index, row.token_index - 1);
        lose_choice(self, outbox, choice, detail);
        return;
    }
    uint32_t known = choice->next_index - row.token_index;
    if (known >= row.count) {
        self->ignored_count++; /* a duplicate */
        return;
    }
    uint32_t count = row.count - known;
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        uint32_t room =
            choice->stop_index > choice->next_index ? choice->stop_index - choice->next_index : 0;
        count = count < room ? count : room;
    }
    for (uint32_t at = 0; at < count; at++) {
        int32_t token = row.tokens[known + at];
        if (token < 0 || (uint32_t)token >= self->model.vocab_size) {
            lose_choice(self, outbox, choice, "The model gave a token outside its vocabulary.");
            return;
        }
    }
    if (count == 0) {
        return;
    }
    proto_body_t body = {
        .http_tokens =
            {
                .exchange = choice->exchange,
                .choice_index = choice->choice_index,
                .token_index = choice->next_index,
                .tokens = {row.tokens + known, count},
                .logprob_width = row.width,
            },
    };
    if (row.width > 0) {
        size_t skipped = (size_t)known * row.width;
        body.http_tokens.logprob_ids =
            (proto_column_i32_t){row.logprob_ids + skipped, count * row.width};
        body.http_tokens.logprob_values =
            (proto_column_f32_t){row.logprob_values + skipped, count * row.width};
    }
    actor_gateway_table_fold(self->choices, choice);
    choice->next_index += count;
    actor_gateway_table_fold(self->choices, choice);
    self->generation_tokens += count;
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_TOKENS,
                      choice->request, &body);
}

/* True if the columns agree with each other and with the bounds of the outbox. */
static bool
tokens_shape_ok(const proto_tokens_t *tokens)
{
    uint32_t rows = tokens->requests.count;
    bool has_logprobs = tokens->logprob_widths.count > 0;
    if (rows > ACTOR_GATEWAY_CHOICE_COUNT_MAX || tokens->token_indices.count != rows ||
        tokens->token_counts.count != rows || tokens->tokens.count > TOKENS_PER_MESSAGE_MAX ||
        tokens->logprob_ids.count > LOGPROBS_PER_MESSAGE_MAX ||
        tokens->logprob_values.count != tokens->logprob_ids.count ||
        (has_logprobs && tokens->logprob_widths.count != rows)) {
        return false;
    }
    uint64_t token_sum = 0;
    uint64_t logprob_sum = 0;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t width = has_logprobs ? tokens->logprob_widths.data[row] : 0;
        token_sum += tokens->token_counts.data[row];
        logprob_sum += (uint64_t)tokens->token_counts.data[row] * width;
        if (tokens->token_indices.data[row] > PROTO_TOKENS_MAX - 256) {
            return false;
        }
    }
    return token_sum == tokens->tokens.count && logprob_sum == tokens->logprob_ids.count;
}

static void
on_tokens(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_tokens_t *tokens = &input->body->tokens;
    if (!tokens_shape_ok(tokens)) {
        self->ignored_count++; /* the hole it leaves ends its choices at their next tokens */
        return;
    }
    size_t token_at = 0;
    size_t logprob_at = 0;
    for (uint32_t at = 0; at < tokens->requests.count; at++) {
        token_row_t row = {
            .request = tokens->requests.data[at],
            .token_index = tokens->token_indices.data[at],
            .count = tokens->token_counts.data[at],
            .tokens = tokens->tokens.data + token_at,
        };
        if (tokens->logprob_widths.count > 0 && tokens->logprob_ids.count > 0) {
            row.width = tokens->logprob_widths.data[at];
            row.logprob_ids = tokens->logprob_ids.data + logprob_at;
            row.logprob_values = tokens->logprob_values.data + logprob_at;
        }
        token_at += row.count;
        logprob_at += (size_t)row.count * row.width;
        take_row(self, outbox, row);
    }
}

static void
on_finished(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_finished_t *finished = &input->body->finished;
    actor_gateway_choice_t *choice =
        actor_gateway_table_find(self->choices, input->header->request);
    if (choice == NULL) {
        self->ignored_count++;
        return;
    }
    if (finished->prompt_tokens >= finished->cached_tokens) {
        self->prompt_tokens += finished->prompt_tokens - finished->cached_tokens;
    }
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        end_as_stopped(self, outbox, choice, finished);
        return;
    }
    bool is_complete =
        finished->reason == PROTO_FINISH_STOP || finished->reason == PROTO_FINISH_LENGTH;
    if (is_complete && finished->generated_tokens > choice->next_index) {
        /* Never a clean end over a hole. */
        lose_choice(self, outbox, choice, "The last tokens of the answer were lost.");
        return;
    }
    proto_http_end_t end = {
        .reason = finished->reason,
        .prompt_tokens = finished->prompt_tokens,
        .cached_tokens = finished->cached_tokens,
        .generated_tokens = finished->generated_tokens,
        .status = finished->status,
        .code = finished->code,
        .detail = finished->detail,
        .retry_after_ms = finished->retry_after_ms,
        .queue_ns = finished->queue_ns,
    };
    if (!is_complete && finished->reason != PROTO_FINISH_REFUSED) {
        end.reason = PROTO_FINISH_ERROR; /* nobody here asked for a cancel */
        if (end.status == STATUS_OK) {
            end.status = STATUS_ERR_INTERNAL;
        }
    }
    end_choice(self, outbox, choice, end);
}

/* Without an executor the texts are empty, and an empty text has no address. */
static void
copy_text(char *out, proto_text_t text)
{
    if (text.size_bytes > 0) {
        memcpy(out, text.data, text.size_bytes);
    }
}

static void
on_model_info(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_model_info_t *info = &input->body->model_info;
    self->model = *info;
    copy_text(self->model_name, info->model_name);
    self->model.model_name.data = self->model_name;
    copy_text(self->fingerprint, info->fingerprint);
    self->model.fingerprint.data = self->fingerprint;
    memset(self->page_hash_key, 0, sizeof self->page_hash_key);
    if (info->page_hash_key.size_bytes > 0) {
        memcpy(self->page_hash_key, info->page_hash_key.data, info->page_hash_key.size_bytes);
    }
    self->model.page_hash_key.data = self->page_hash_key;
    /* No slots: the scheduler lives, its executor does not. */
    self->has_model = info->slot_count > 0 && info->model_len_max > 1;
    tell_state(self, outbox);
}

static void
on_peer_up(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_up_t *peer = &input->body->peer_up;
    if (peer->role != PROTO_ROLE_SCHEDULER && peer->role != PROTO_ROLE_DECODE_ROLE) {
        return;
    }
    self->scheduler.index = peer->peer;
    self->has_model = false;
    memset(&self->load, 0, sizeof self->load);
    tell_state(self, outbox);
}

static void
on_peer_down(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_down_t *peer = &input->body->peer_down;
    if (!has_scheduler(self) || peer->peer != self->scheduler.index) {
        return;
    }
    self->scheduler.index = ACTOR_PEER_NONE;
    self->has_model = false;
    memset(&self->load, 0, sizeof self->load);
    actor_gateway_choice_t *choice = actor_gateway_table_first(self->choices);
    while (choice != NULL) {
        if (choice->stop_reason != PROTO_FINISH_NONE) {
            end_as_stopped(self, outbox, choice, NULL);
        } else {
            end_with_error(self, outbox, choice, STATUS_ERR_PEER_LOST, "worker_lost",
                           "The scheduler was lost while the request ran.");
        }
        choice = actor_gateway_table_first(self->choices);
    }
    tell_state(self, outbox);
}

static void
on_timer(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_gateway_choice_t *choice = actor_gateway_table_first(self->choices);
    while (choice != NULL && choice->deadline_ns <= input->now_ns) {
        if (choice->stop_reason != PROTO_FINISH_NONE) {
            end_as_stopped(self, outbox, choice, NULL); /* the FINISH was never answered */
        } else {
            send_finish(self, outbox, choice, choice->next_index, PROTO_FINISH_CANCELLED);
            end_with_error(self, outbox, choice, STATUS_ERR_DEADLINE, "deadline_exceeded",
                           "The request's deadline passed.");
        }
        choice = actor_gateway_table_first(self->choices);
    }
}

/* ---- the core interface ---------------------------------------------------------------------- */

static void
step_from_scheduler(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((uint32_t)input->header->kind) {
    case PROTO_KIND_TOKENS:
        on_tokens(self, input, outbox);
        break;
    case PROTO_KIND_FINISHED:
        on_finished(self, input, outbox);
        break;
    case PROTO_KIND_MODEL_INFO:
        on_model_info(self, input, outbox);
        break;
    case PROTO_KIND_LOAD:
        self->load = input->body->load;
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_gateway_core_t *self = core;
    proto_require_set_request(input->header->request);
    if (input->from.index != ACTOR_PEER_LOCAL) {
        if (input->from.index == self->scheduler.index) {
            step_from_scheduler(self, input, outbox);
        } else {
            self->ignored_count++;
        }
        proto_require_set_request(0);
        return;
    }
    switch ((uint32_t)input->header->kind) {
    case PROTO_KIND_HTTP_REQUEST:
        on_http_request(self, input, outbox);
        break;
    case PROTO_KIND_HTTP_STOP:
        on_http_stop(self, input, outbox);
        break;
    case PROTO_KIND_PEER_UP:
        on_peer_up(self, input, outbox);
        break;
    case PROTO_KIND_PEER_DOWN:
        on_peer_down(self, input, outbox);
        break;
    case PROTO_KIND_TIMER:
        on_timer(self, input, outbox);
        break;
    case PROTO_KIND_DRAIN:
        self->draining = true;
        tell_state(self, outbox);
        break;
    default:
        self->ignored_count++;
        break;
    }
    proto_require_set_request(0);
}

static uint64_t
deadline_ns(const void *core)
{
    const actor_gateway_core_t *self = core;
    const actor_gateway_choice_t *choice = actor_gateway_table_first(self->choices);
    return choice == NULL ? UINT64_MAX : choice->deadline_ns;
}

static uint64_t
digest(const void *core)
{
    const actor_gateway_core_t *self = core;
    uint64_t value = actor_gateway_table_digest(self->choices);
    value = actor_gateway_mix(value ^ (self->request_base + self->request_count));
    value = actor_gateway_mix(value ^ ((uint64_t)self->scheduler.index << 8) ^
                              (self->has_model ? 1u : 0u) ^ (self->draining ? 2u : 0u) ^
                              (self->told_ready ? 4u : 0u) ^ (self->told_any ? 8u : 0u));
    value = actor_gateway_mix(value ^ ((uint64_t)self->model.model_len_max << 32) ^
                              self->model.prompt_len_max);
    return actor_gateway_mix(value ^ self->model.vocab_size);
}

static void
stats(const void *core, proto_stats_t *out)
{
    const actor_gateway_core_t *self = core;
    out->prompt_tokens = self->prompt_tokens;
    out->generation_tokens = self->generation_tokens;
}

static void
check(const void *core)
{
    const actor_gateway_core_t *self = core;
    actor_gateway_table_check(self->choices);
    require(!self->has_model || has_scheduler(self));
}

static bool
idle(const void *core)
{
    const actor_gateway_core_t *self = core;
    return actor_gateway_table_count(self->choices) == 0;
}

const actor_core_ops_t *
actor_gateway_core_ops(void)
{
    static const actor_core_ops_t ops = {
        .name = "gateway",
        .role = PROTO_ROLE_GATEWAY,
        .outbox_size_bytes = OUTBOX_SIZE_BYTES,
        .outbox_count_max = EMISSION_COUNT_MAX,
        .step = step,
        .deadline_ns = deadline_ns,
        .digest = digest,
        .stats = stats,
        .progress = NULL,
        .check = check,
        .idle = idle,
    };
    return &ops;
}

const proto_model_info_t *
actor_gateway_core_model(const actor_gateway_core_t *self)
{
    return self->has_model ? &self->model : NULL;
}

const proto_load_t *
actor_gateway_core_load(const actor_gateway_core_t *self)
{
    return &self->load;
}

actor_gateway_core_state_t
actor_gateway_core_state(const actor_gateway_core_t *self)
{
    return (actor_gateway_core_state_t){
        .ready = is_ready(self),
        .draining = self->draining,
        .open_count = actor_gateway_table_count(self->choices),
        .submitted_count = self->submitted_count,
        .ended_count = self->ended_count,
        .gap_count = self->gap_count,
        .ignored_count = self->ignored_count,
        .detail = missing_text(self),
    };
}
