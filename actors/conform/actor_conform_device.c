#include <string.h>

#include "actor_conform_executor.h"
#include "proto_require.h"

/* What a row gives: nothing, a token, or a NaN. */
static void
sample(conform_executor_t *self, conform_flight_t *flight, uint32_t row, uint32_t slot)
{
    conform_row_t *state = &self->cache.rows[slot];
    conform_request_t *request = state->request;
    const conform_ask_t *ask = &request->ask;
    uint32_t index = state->known - ask->prompt_length + ask->emitted;
    flight->samples[row] = true;
    self->slots[slot].samples_in_flight++;
    if (request->had_nan || (ask->nan_at > 0 && index + 1 == ask->nan_at)) {
        request->had_nan = true;
        flight->flags[row] = PROTO_ROW_NAN;
        return;
    }
    /* A scheduler that admitted a longer answer than was asked for gets something to deliver. */
    bool is_beyond = index > ask->emitted + ask->generation_max;
    int32_t token = is_beyond ? 0 : actor_conform_answer_token(request, index);
    flight->tokens[flight->token_count++] = token;
    flight->counts[row] = 1;
    flight->flags[row] = ask->stop_at > 0 && index + 1 == ask->stop_at ? PROTO_ROW_STOP_TOKEN : 0;
    if (ask->logprobs) {
        flight->widths[row] = CONFORM_LOGPROB_WIDTH;
        for (uint32_t i = 0; i < CONFORM_LOGPROB_WIDTH; i++) {
            flight->logprob_ids[flight->logprob_count] = token + (int32_t)i;
            flight->logprob_values[flight->logprob_count] = -0.5f * (float)i - 0.25f;
            flight->logprob_count++;
        }
    }
    state->known++;
}

static bool
gives_nan(const conform_executor_t *self, uint32_t slot, bool samples)
{
    const conform_row_t *state = &self->cache.rows[slot];
    const conform_ask_t *ask = &state->request->ask;
    uint32_t index = state->known - ask->prompt_length + ask->emitted;
    return samples && (state->request->had_nan || (ask->nan_at > 0 && index + 1 == ask->nan_at));
}

static void
compute(conform_executor_t *self, conform_flight_t *flight, uint32_t slot, uint32_t begin,
        uint32_t end, bool samples, const conform_where_t *where)
{
    conform_row_t *state = &self->cache.rows[slot];
    uint32_t row = flight->row_count++;
    flight->slots[row] = slot;
    if (state->request == NULL) {
        return; /* a request that nobody submitted: said already */
    }
    state->request->row_count++;
    bool is_within = end <= state->request->ask.prompt_length + state->request->ask.generation_max;
    if (!state->request->had_nan && is_within) {
        actor_conform_cache_row(&self->cache, slot, begin, end, gives_nan(self, slot, samples),
                                where);
    }
    if (samples) {
        sample(self, flight, row, slot);
    }
}

static uint32_t
mode_of(const proto_plan_t *plan)
{
    if (plan->extend_slots.count == 0) {
        return plan->decode_slots.count == 0 ? PROTO_STEP_IDLE : PROTO_STEP_DECODE_EAGER;
    }
    return plan->decode_slots.count == 0 ? PROTO_STEP_EXTEND : PROTO_STEP_MIXED;
}

void
actor_conform_device_launch(conform_executor_t *self, const actor_input_t *input)
{
    const proto_plan_t *plan = &input->body->plan;
    conform_where_t where = {.link = "executor",
                             .kind = PROTO_KIND_PLAN,
                             .sequence = input->header->sequence};
    require(self->flight_count < CONFORM_FLIGHTS_MAX);
    actor_conform_cache_patch(&self->cache, plan, &where);
    conform_flight_t *flight =
        &self->flights[(self->flight_first + self->flight_count++) % CONFORM_FLIGHTS_MAX];
    memset(flight, 0, sizeof *flight);
    flight->step = plan->step;
    flight->mode = mode_of(plan);
    flight->launched_ns = input->now_ns;
    for (uint32_t i = 0; i < plan->release_slots.count; i++) {
        if (flight->release_count <= CONFORM_SLOTS_MAX) {
            flight->releases[flight->release_count++] = plan->release_slots.data[i];
        }
    }
    for (uint32_t i = 0; i < plan->extend_slots.count; i++) {
        uint32_t begin = plan->extend_begins.data[i];
        compute(self, flight, plan->extend_slots.data[i], begin,
                begin + plan->extend_lengths.data[i], plan->extend_samples.data[i] != 0, &where);
    }
    for (uint32_t i = 0; i < plan->decode_slots.count; i++) {
        uint32_t slot = plan->decode_slots.data[i];
        uint32_t known = self->cache.rows[slot].known;
        compute(self, flight, slot, known > 0 ? known - 1 : 0, known, true, &where);
    }
}

void
actor_conform_device_done(const conform_flight_t *flight, proto_body_t *out)
{
    uint32_t rows = flight->row_count;
    bool has_logprobs = flight->logprob_count > 0;
    *out = (proto_body_t){
        .step_done = {.step = flight->step,
                      .mode = flight->mode,
                      .duration_ns = 1000000,
                      .token_counts = {flight->counts, rows},
                      .row_flags = {flight->flags, rows},
                      .tokens = {flight->tokens, flight->token_count},
                      .logprob_widths = {flight->widths, has_logprobs ? rows : 0},
                      .logprob_ids = {flight->logprob_ids, flight->logprob_count},
                      .logprob_values = {flight->logprob_values, flight->logprob_count}}};
}
