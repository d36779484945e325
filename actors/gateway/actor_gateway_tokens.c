#include <stdio.h>
#include <string.h>

#include "actor_gateway_state.h"

enum {
    RETRY_NS = 200000000, /* after a full queue, or a scheduler's fault */
};

static void
break_choice(actor_gateway_core_t *self, actor_outbox_t *outbox, actor_gateway_choice_t *choice,
             const char *detail)
{
    self->gap_count++;
    actor_gateway_send_finish(self, outbox, choice, choice->next_index, PROTO_FINISH_CANCELLED);
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        actor_gateway_end_as_stopped(self, outbox, choice, NULL);
        return;
    }
    actor_gateway_end_with_error(self, outbox, choice, STATUS_ERR_INTERNAL, "token_stream_broken",
                                 detail);
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

/* [known, known + count) of the row are new. */
static void
pass_on(actor_gateway_core_t *self, actor_outbox_t *outbox, actor_gateway_choice_t *choice,
        const token_row_t *row, uint32_t known, uint32_t count)
{
    proto_body_t body = {
        .http_tokens =
            {
                .exchange = choice->exchange,
                .choice_index = choice->choice_index,
                .token_index = choice->next_index,
                .tokens = {row->tokens + known, count},
                .logprob_width = row->width,
            },
    };
    if (row->width > 0) {
        size_t skipped = (size_t)known * row->width;
        body.http_tokens.logprob_ids =
            (proto_column_i32_t){row->logprob_ids + skipped, count * row->width};
        body.http_tokens.logprob_values =
            (proto_column_f32_t){row->logprob_values + skipped, count * row->width};
    }
    actor_gateway_keep_tokens(self, choice, row->tokens + known, count);
    actor_gateway_table_begin(self->choices, choice);
    choice->next_index += count;
    choice->attempt_count = 0;
    actor_gateway_table_end(self->choices, choice);
    actor_gateway_acquit(self, choice);
    self->generation_tokens += count;
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_TOKENS,
                      choice->request, &body);
}

static void
take_row(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox,
         token_row_t row)
{
    actor_gateway_choice_t *choice = actor_gateway_table_find(self->choices, row.request);
    if (choice == NULL || choice->is_waiting || row.count == 0) {
        self->ignored_count++;
        return;
    }
    if (choice->stop_reason != PROTO_FINISH_NONE && row.token_index >= choice->stop_index) {
        /* They were under way when the stop was sent: no hole, since none of them counts. */
        self->progress_ns = input->now_ns;
        return;
    }
    if (row.token_index > choice->next_index) {
        char detail[96];
        (void)snprintf(detail, sizeof detail, "Tokens %u to %u of the answer were lost.",
                       choice->next_index, row.token_index - 1);
        break_choice(self, outbox, choice, detail);
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
    if (count > choice->generation_max - choice->next_index) {
        break_choice(self, outbox, choice, "More tokens came than were asked for.");
        return;
    }
    for (uint32_t at = 0; at < count; at++) {
        int32_t token = row.tokens[known + at];
        if (token < 0 || (uint32_t)token >= self->model.info.vocab_size) {
            break_choice(self, outbox, choice, "The model gave a token outside its vocabulary.");
            return;
        }
    }
    self->progress_ns = input->now_ns;
    if (count > 0) {
        pass_on(self, outbox, choice, &row, known, count);
    }
}

/* True if the columns agree with each other and with the bounds of the outbox. */
static bool
tokens_shape_ok(const proto_tokens_t *tokens)
{
    uint32_t rows = tokens->requests.count;
    bool has_logprobs = tokens->logprob_widths.count > 0;
    if (rows > ACTOR_GATEWAY_CHOICE_COUNT_MAX || tokens->token_indices.count != rows ||
        tokens->token_counts.count != rows ||
        tokens->tokens.count > GATEWAY_TOKENS_PER_MESSAGE_MAX ||
        tokens->logprob_ids.count > GATEWAY_LOGPROBS_PER_MESSAGE_MAX ||
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

void
actor_gateway_on_tokens(actor_gateway_core_t *self, const actor_input_t *input,
                        actor_outbox_t *outbox)
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
        take_row(self, input, outbox, row);
    }
}

/* A queue that is full for the moment, to a choice that was promised an answer already.  One that
 * ran since it was submitted cannot be refused any more. */
static bool
is_to_be_tried_again(const actor_gateway_choice_t *choice, const proto_finished_t *finished,
                     uint64_t now_ns)
{
    return finished->reason == PROTO_FINISH_REFUSED && finished->retry_after_ms > 0 &&
           finished->status != STATUS_ERR_DEADLINE && choice->was_waiting && choice->is_kept &&
           choice->attempt_count > 0 && now_ns < choice->wait_until_ns;
}

static bool
is_text(proto_text_t text, const char *wanted)
{
    return text.size_bytes == strlen(wanted) && memcmp(text.data, wanted, text.size_bytes) == 0;
}

/* Ends that say nothing of the request: its scheduler or what that planned was no good.  The next
 * attempt, or the next scheduler, may do better. */
static bool
is_schedulers_fault(const proto_finished_t *finished)
{
    return finished->reason == PROTO_FINISH_ERROR &&
           (is_text(finished->code, "plan_refused") || is_text(finished->code, "executor_fault") ||
            is_text(finished->code, "stalled"));
}

/* Its executor died.  The scheduler that lives goes on with the next one, and so does the choice,
 * unless it is the one that executors die of. */
static void
on_executor_lost(actor_gateway_core_t *self, const actor_input_t *input,
                 actor_gateway_choice_t *choice, actor_outbox_t *outbox)
{
    uint32_t suspects = input->body->finished.suspects;
    if (suspects > 0 && choice->stop_reason == PROTO_FINISH_NONE &&
        actor_gateway_blame(self, choice, suspects)) {
        self->poisoned_count++;
        actor_gateway_end_with_error(self, outbox, choice, STATUS_ERR_INTERNAL,
                                     "request_killed_worker",
                                     "Executors died again and again while they ran this request; "
                                     "it is not tried again.");
        return;
    }
    /* The next executor may be there already: then nothing else would wake it. */
    uint64_t retry_ns = actor_gateway_can_submit(self) ? input->now_ns + RETRY_NS : 0;
    actor_gateway_lose(self, outbox, choice, input->now_ns, retry_ns,
                       "The executor was lost while the request ran.");
}

void
actor_gateway_on_finished(actor_gateway_core_t *self, const actor_input_t *input,
                          actor_outbox_t *outbox)
{
    const proto_finished_t *finished = &input->body->finished;
    actor_gateway_choice_t *choice =
        actor_gateway_table_find(self->choices, input->header->request);
    if (choice == NULL || choice->is_waiting) {
        self->ignored_count++;
        return;
    }
    self->progress_ns = input->now_ns;
    if (choice->stop_reason == PROTO_FINISH_NONE &&
        is_to_be_tried_again(choice, finished, input->now_ns)) {
        actor_gateway_table_begin(self->choices, choice);
        choice->attempt_count--; /* that scheduler lives */
        actor_gateway_table_end(self->choices, choice);
        actor_gateway_wait(self, choice, choice->wait_until_ns, input->now_ns + RETRY_NS);
        return;
    }
    if (choice->is_kept && finished->reason == PROTO_FINISH_ERROR &&
        is_text(finished->code, "worker_lost")) {
        on_executor_lost(self, input, choice, outbox);
        return;
    }
    if (choice->is_kept && self->is_replacing && finished->reason == PROTO_FINISH_REFUSED &&
        is_text(finished->code, "no_executor")) {
        /* It was under way while the executor went. */
        actor_gateway_lose(self, outbox, choice, input->now_ns, 0, "No executor is attached.");
        return;
    }
    if (choice->is_kept && is_schedulers_fault(finished)) {
        actor_gateway_lose(self, outbox, choice, input->now_ns, input->now_ns + RETRY_NS,
                           "Its plans were refused, or its steps failed, again and again.");
        return;
    }
    if (finished->prompt_tokens >= finished->cached_tokens) {
        self->prompt_tokens += finished->prompt_tokens - finished->cached_tokens;
    }
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        actor_gateway_end_as_stopped(self, outbox, choice, finished);
        return;
    }
    bool is_complete =
        finished->reason == PROTO_FINISH_STOP || finished->reason == PROTO_FINISH_LENGTH;
    if (is_complete && finished->generated_tokens > choice->next_index) {
        /* Never a clean end over a hole. */
        break_choice(self, outbox, choice, "The last tokens of the answer were lost.");
        return;
    }
    proto_http_end_t end = {
        .reason = finished->reason,
        .cached_tokens = finished->cached_tokens,
        .generated_tokens = finished->generated_tokens,
        .status = finished->status,
        .code = finished->code,
        .detail = finished->detail,
        .retry_after_ms = finished->retry_after_ms,
        .queue_ns = finished->queue_ns,
    };
    bool never_ran = finished->reason == PROTO_FINISH_REFUSED && choice->next_index == 0;
    if (!is_complete && !never_ran) {
        end.reason = PROTO_FINISH_ERROR; /* nobody here asked for a cancel */
        if (end.status == STATUS_OK) {
            end.status = STATUS_ERR_INTERNAL;
        }
    }
    actor_gateway_end_choice(self, outbox, choice, end);
}
