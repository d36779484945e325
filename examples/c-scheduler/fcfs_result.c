/* fcfs_result.c - what became of a plan: tokens, ends, refusals. */
#include <string.h>

#include "fcfs_state.h"

static bool
result_fits(const fcfs_flight_t *flight, const proto_step_result_t *result)
{
    uint64_t tokens = 0;
    uint64_t logprobs = 0;
    bool has_widths = result->logprob_widths.count > 0;
    if (result->step != flight->step || result->token_counts.count != flight->row_count ||
        result->row_flags.count != flight->row_count ||
        (has_widths && result->logprob_widths.count != flight->row_count)) {
        return false;
    }
    for (uint32_t r = 0; r < flight->row_count; r++) {
        uint32_t count = result->token_counts.data[r];
        uint32_t width = has_widths ? result->logprob_widths.data[r] : 0;
        bool is_nan = (result->row_flags.data[r] & PROTO_ROW_NAN) != 0;
        if ((count != (flight->rows[r].samples ? 1U : 0U) && !is_nan) ||
            width > PROTO_LOGPROBS_MAX + 1) {
            return false;
        }
        tokens += count;
        logprobs += (uint64_t)count * width;
    }
    return tokens == result->tokens.count && logprobs == result->logprob_ids.count &&
           logprobs == result->logprob_values.count;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The tokens of one gateway's requests, passed on unread. */
static void
send_tokens(const fcfs_t *self, const fcfs_flight_t *flight, const proto_step_result_t *result,
            uint32_t gateway, actor_outbox_t *outbox)
{
    static uint64_t ids[PROTO_ROWS_MAX];
    static uint32_t indices[PROTO_ROWS_MAX];
    static uint8_t counts[PROTO_ROWS_MAX], widths[PROTO_ROWS_MAX];
    static int32_t tokens[PROTO_ROWS_MAX];
    static int32_t logprob_ids[PROTO_ROWS_MAX * (PROTO_LOGPROBS_MAX + 1)];
    static float logprob_values[PROTO_ROWS_MAX * (PROTO_LOGPROBS_MAX + 1)];
    uint32_t rows = 0;
    uint32_t logprobs = 0;
    uint32_t token_at = 0;
    uint32_t logprob_at = 0;
    for (uint32_t r = 0; r < flight->row_count; r++) {
        const fcfs_request_t *request = fcfs_request_of(self, &flight->rows[r]);
        uint32_t count = result->token_counts.data[r];
        uint32_t width = result->logprob_widths.count > 0 ? result->logprob_widths.data[r] : 0;
        bool is_nan = (result->row_flags.data[r] & PROTO_ROW_NAN) != 0;
        if (request != NULL && request->gateway == gateway && count == 1 && !is_nan) {
            ids[rows] = request->id;
            indices[rows] = request->emitted + request->generated;
            counts[rows] = 1;
            widths[rows] = (uint8_t)width;
            tokens[rows++] = result->tokens.data[token_at];
            if (width > 0) {
                memcpy(logprob_ids + logprobs, result->logprob_ids.data + logprob_at,
                       width * sizeof(int32_t));
                memcpy(logprob_values + logprobs, result->logprob_values.data + logprob_at,
                       width * sizeof(float));
                logprobs += width;
            }
        }
        token_at += count;
        logprob_at += count * width;
    }
    if (rows == 0) {
        return;
    }
    proto_body_t body = {.tokens = {.step = result->step,
                                    .requests = {ids, rows},
                                    .token_indices = {indices, rows},
                                    .token_counts = {counts, rows},
                                    .tokens = {tokens, rows},
                                    .logprob_widths = {widths, logprobs > 0 ? rows : 0},
                                    .logprob_ids = {logprob_ids, logprobs},
                                    .logprob_values = {logprob_values, logprobs}}};
    actor_outbox_push(outbox, (actor_peer_t){gateway}, PROTO_KIND_TOKENS, 0, &body);
}

static void
take_rows(fcfs_t *self, const fcfs_flight_t *flight, const proto_step_result_t *result)
{
    for (uint32_t r = 0; r < flight->row_count; r++) {
        fcfs_request_t *request = fcfs_request_of(self, &flight->rows[r]);
        if (request == NULL) {
            continue;
        }
        uint32_t flags = result->row_flags.data[r];
        if ((flags & PROTO_ROW_NAN) != 0) {
            fcfs_end(self, flight->rows[r].entry, PROTO_FINISH_ERROR, STATUS_ERR_INTERNAL,
                     "nan_logits");
            continue;
        }
        request->generated += result->token_counts.data[r];
        request->refusals = request->is_broken ? request->refusals : 0;
        if ((flags & PROTO_ROW_STOP_TOKEN) != 0) {
            fcfs_end(self, flight->rows[r].entry, PROTO_FINISH_STOP, STATUS_OK, "");
        } else if (request->generated >= request->generation_max) {
            fcfs_end(self, flight->rows[r].entry, PROTO_FINISH_LENGTH, STATUS_OK, "");
        }
    }
}

/* ---- flights --------------------------------------------------------------------------------- */

/* A flight is over; its room goes to the end of the row. */
static void
pop_flight(fcfs_t *self, uint32_t index)
{
    fcfs_flight_t over = self->flights[index];
    for (uint32_t i = index; i + 1 < FCFS_FLIGHT_COUNT; i++) {
        self->flights[i] = self->flights[i + 1];
    }
    self->flights[FCFS_FLIGHT_COUNT - 1] = over;
    self->flight_count--;
}

/* What a step has cleared is free now. */
static void
free_cleared(fcfs_t *self, uint64_t step)
{
    uint32_t count = self->clearing_count;
    if (count == 0 || self->clearing_step != step) {
        return;
    }
    memcpy(self->free_blocks + self->free_block_count, self->dirty, count * sizeof(uint32_t));
    self->free_block_count += count;
    self->dirty_count -= count;
    memmove(self->dirty, self->dirty + count, self->dirty_count * sizeof(uint32_t));
    self->clearing_count = 0;
}

void
fcfs_on_step_result(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_step_result_t *result = &input->body->step_result;
    const fcfs_flight_t *flight = &self->flights[0];
    if (self->flight_count == 0 || result->step < flight->step) {
        return; /* of before a reset */
    }
    if (!result_fits(flight, result)) {
        fcfs_on_fault(self, input, "a step result that does not fit its plan", outbox);
        return;
    }
    self->refusal_count = self->fault_count = 0;
    for (uint32_t peer = 1; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->roles[peer] == PROTO_ROLE_GATEWAY) {
            send_tokens(self, flight, result, peer, outbox);
        }
    }
    take_rows(self, flight, result);
    memcpy(self->free_slots + self->free_slot_count, flight->releases,
           flight->release_count * sizeof(uint32_t));
    self->free_slot_count += flight->release_count;
    free_cleared(self, flight->step);
    pop_flight(self, 0);
}

void
fcfs_on_plan_refused(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_plan_refused_t *refused = &input->body->plan_refused;
    uint32_t index = 0;
    while (index < self->flight_count && self->flights[index].step != refused->step) {
        index++;
    }
    if (index == self->flight_count) {
        return;
    }
    proto_body_t nak = {.nak = {.sequence = input->header->sequence,
                                .kind = PROTO_KIND_PLAN,
                                .status = STATUS_ERR_REFUSED,
                                .detail = refused->detail}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &nak);
    const fcfs_flight_t *flight = &self->flights[index];
    for (uint32_t r = 0; r < flight->row_count; r++) {
        fcfs_request_t *request = fcfs_request_of(self, &flight->rows[r]);
        if (request == NULL) {
            continue;
        }
        request->is_broken = true;
        if (refused->rule == PROTO_RULE_SLOT_EMPTY && refused->slot == request->slot) {
            fcfs_end(self, flight->rows[r].entry, PROTO_FINISH_ERROR, STATUS_ERR_REFUSED,
                     "plan_refused");
        } else if (refused->rule != PROTO_RULE_STALE) {
            request->refusals++; /* what follows a refused plan is stale: no fault of its own */
        }
    }
    memcpy(self->releases + self->release_count, flight->releases,
           flight->release_count * sizeof(uint32_t));
    self->release_count += flight->release_count;
    self->is_recovering = true;
    if (self->clearing_step == flight->step) {
        self->clearing_count = 0; /* to be asked for again */
    }
    pop_flight(self, index);
    if (++self->refusal_count > FCFS_REFUSALS_IN_ALL_MAX) {
        fcfs_on_fault(self, input, "it refuses every plan", outbox);
    }
}
