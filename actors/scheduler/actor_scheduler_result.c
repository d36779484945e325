/* Results of steps: to the library, and their tokens to the gateways. */
#include <string.h>

#include "actor_scheduler_state.h"

/* True if the opaque columns have the length that the counts say. */
static bool
columns_agree(const proto_step_result_t *result)
{
    uint64_t tokens = 0;
    uint64_t logprobs = 0;
    uint32_t rows = result->token_counts.count;
    bool has_widths = result->logprob_widths.count > 0;
    if (has_widths && result->logprob_widths.count != rows) {
        return false;
    }
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t count = result->token_counts.data[r];
        uint32_t width = has_widths ? result->logprob_widths.data[r] : 0;
        if (width > PROTO_LOGPROBS_MAX + 1) {
            return false;
        }
        tokens += count;
        logprobs += (uint64_t)count * width;
    }
    return tokens == result->tokens.count && logprobs == result->logprob_ids.count &&
           logprobs == result->logprob_values.count;
}

/* The rows of one gateway. */
static void
send_tokens(actor_scheduler_core_t *self, uint32_t owner, const proto_step_result_t *result,
            const sched_rows_t *rows, actor_outbox_t *outbox)
{
    scheduler_rows_t *out = &self->rows;
    uint32_t count = 0;
    uint32_t tokens = 0;
    uint32_t logprobs = 0;
    size_t token_at = 0;
    size_t logprob_at = 0;
    bool has_logprobs = false;
    for (uint32_t r = 0; r < rows->count; r++) {
        uint32_t given = result->token_counts.data[r];
        uint32_t kept = rows->token_counts[r];
        uint32_t width = result->logprob_widths.count > 0 ? result->logprob_widths.data[r] : 0;
        if (kept > 0 && rows->owners[r] == owner && rows->requests[r] != 0) {
            out->requests[count] = rows->requests[r];
            out->token_indices[count] = rows->token_indices[r];
            out->token_counts[count] = (uint8_t)kept;
            out->logprob_widths[count] = (uint8_t)width;
            memcpy(out->tokens + tokens, result->tokens.data + token_at, kept * sizeof(int32_t));
            if (width > 0) {
                memcpy(out->logprob_ids + logprobs, result->logprob_ids.data + logprob_at,
                       (size_t)kept * width * sizeof(int32_t));
                memcpy(out->logprob_values + logprobs, result->logprob_values.data + logprob_at,
                       (size_t)kept * width * sizeof(float));
                has_logprobs = true;
            }
            count++;
            tokens += kept;
            logprobs += kept * width;
        }
        token_at += given;
        logprob_at += (size_t)given * width;
    }
    proto_body_t body = {
        .tokens =
            {
                .step = result->step,
                .requests = {out->requests, count},
                .token_indices = {out->token_indices, count},
                .token_counts = {out->token_counts, count},
                .tokens = {out->tokens, tokens},
                .logprob_widths = {out->logprob_widths, has_logprobs ? count : 0},
                .logprob_ids = {out->logprob_ids, logprobs},
                .logprob_values = {out->logprob_values, logprobs},
            },
    };
    actor_outbox_push(outbox, (actor_peer_t){owner & 255}, PROTO_KIND_TOKENS, 0, &body);
}

void
actor_scheduler_step_result(actor_scheduler_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox)
{
    const proto_step_result_t *result = &input->body->step_result;
    if (!actor_scheduler_is_executor(self, input->from)) {
        self->ignored_count++;
        return;
    }
    sched_event_t event = {.kind = SCHED_EVENT_RESULT, .result = result};
    sched_rows_t rows;
    proto_status_t status = columns_agree(result) ? STATUS_OK : STATUS_ERR_MALFORMED;
    if (status == STATUS_OK) {
        status = sched_core_advance(self->library, input->now_ns, &event, &rows);
    }
    if (status == STATUS_ERR_MALFORMED) {
        actor_scheduler_executor_fault(self, input, "a step result that does not fit its plan",
                                       outbox);
        return;
    }
    if (status != STATUS_OK) {
        self->ignored_count++; /* of before a reset */
        return;
    }
    self->fault_count = 0;
    actor_scheduler_count_busy(self, input->now_ns);
    /* The next plan first: the executor computes while the tokens are on their way. */
    actor_scheduler_send_plans(self, input->now_ns, outbox);
    bool sent[ACTOR_PEER_COUNT_MAX] = {false};
    for (uint32_t r = 0; r < rows.count; r++) {
        uint32_t peer = rows.owners[r] & 255;
        bool is_new = rows.token_counts[r] > 0 && rows.requests[r] != 0 && !sent[peer];
        if (is_new && actor_scheduler_owner_is_there(self, rows.owners[r])) {
            sent[peer] = true;
            send_tokens(self, rows.owners[r], result, &rows, outbox);
        }
    }
}
