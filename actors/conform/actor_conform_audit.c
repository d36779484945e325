/* What a scheduler owes an executor beyond the rules that the executor itself checks. */
#include <inttypes.h>
#include <string.h>

#include "actor_conform_executor.h"
#include "proto_require.h"

static conform_where_t
where_of(const actor_input_t *input, uint64_t request)
{
    return (conform_where_t){.link = "executor",
                             .kind = input->header->kind,
                             .sequence = input->header->sequence,
                             .request = request};
}

/* ---- ADMIT ----------------------------------------------------------------------------------- */

static void
check_slot(conform_executor_t *self, const actor_input_t *input, uint32_t slot)
{
    conform_where_t where = where_of(input, input->header->request);
    if (slot == 0 || slot > self->machine.slot_count) {
        actor_conform_broke(self->report, CONFORM_ADMIT_SLOT, &where, "a slot of 1..slot_count",
                            "slot %u of %u", slot, self->machine.slot_count);
        return;
    }
    const conform_slot_t *held = &self->slots[slot];
    uint64_t holder = held->request != NULL ? held->request->id : 0;
    if (held->state == CONFORM_SLOT_TAKEN) {
        actor_conform_broke(self->report, CONFORM_ADMIT_SLOT, &where,
                            "a slot that no other request has",
                            "slot %u, which request %" PRIu64 " has and no plan released", slot,
                            holder);
    } else if (held->state == CONFORM_SLOT_RELEASING) {
        actor_conform_broke(self->report, CONFORM_ADMIT_REUSE, &where,
                            "ADMIT after the result of the plan that releases the slot",
                            "slot %u, whose release is in a plan without a result", slot);
    } else {
        actor_conform_held(self->report, CONFORM_ADMIT_SLOT);
        actor_conform_held(self->report, CONFORM_ADMIT_REUSE);
    }
}

/* True if the request may be admitted. */
static bool
check_request(conform_executor_t *self, const actor_input_t *input,
              const conform_request_t *request)
{
    conform_where_t where = where_of(input, input->header->request);
    const char *what = NULL;
    if (request == NULL || request->submit_count == 0) {
        what = "was never submitted";
    } else if (request->admit_count > 0) {
        what = "is admitted already";
    } else if (request->end_count > 0 && request->end_reason == PROTO_FINISH_REFUSED) {
        what = "was refused";
    }
    if (what != NULL) {
        actor_conform_broke(self->report, CONFORM_ADMIT_REQUEST, &where,
                            "a request that waits, once for each executor",
                            "ADMIT of request %" PRIu64 ", which %s", input->header->request, what);
        return false;
    }
    actor_conform_held(self->report, CONFORM_ADMIT_REQUEST);
    return true;
}

static bool
equal(const void *a, size_t a_size, const void *b, size_t b_size)
{
    return a_size == b_size && (a_size == 0 || memcmp(a, b, a_size) == 0);
}

/* True if the request's content is what was submitted. */
static bool
check_content(conform_executor_t *self, const actor_input_t *input,
              const conform_request_t *request)
{
    const proto_admit_t *admit = &input->body->admit;
    const conform_ask_t *ask = &request->ask;
    conform_where_t where = where_of(input, request->id);
    const char *what = NULL;
    if (admit->prompt_length != ask->prompt_length ||
        !equal(admit->tokens.data, admit->tokens.count * sizeof(int32_t), request->tokens,
               ask->prompt_length * sizeof(int32_t))) {
        what = "tokens";
    } else if (!equal(admit->sampling.data, admit->sampling.count, request->sampling,
                      request->sampling_size)) {
        what = "sampling";
    } else if (!equal(admit->page_hashes.data, admit->page_hashes.size_bytes, request->hashes,
                      request->hashes_size)) {
        what = "page_hashes";
    }
    if (what != NULL) {
        actor_conform_broke(self->report, CONFORM_ADMIT_CONTENT, &where,
                            "tokens, sampling and page_hashes of the SUBMIT, byte for byte",
                            "%s differ: prompt_length %u, %u tokens, %u bytes of sampling, %zu of "
                            "hashes",
                            what, admit->prompt_length, admit->tokens.count, admit->sampling.count,
                            admit->page_hashes.size_bytes);
        return false;
    }
    actor_conform_held(self->report, CONFORM_ADMIT_CONTENT);
    uint32_t length_max = ask->prompt_length + ask->generation_max;
    if (admit->length_max != length_max) {
        char expected[64];
        (void)snprintf(expected, sizeof expected, "length_max %u", length_max);
        actor_conform_broke(self->report, CONFORM_ADMIT_LENGTH, &where, expected, "length_max %u",
                            admit->length_max);
    } else {
        actor_conform_held(self->report, CONFORM_ADMIT_LENGTH);
    }
    return true;
}

void
actor_conform_audit_admit(conform_executor_t *self, const actor_input_t *input)
{
    uint32_t slot = input->body->admit.slot;
    conform_request_t *request = actor_conform_book_find(self->book, input->header->request);
    check_slot(self, input, slot);
    bool is_known = check_request(self, input, request);
    bool fits = is_known && check_content(self, input, request);
    if (slot == 0 || slot > self->machine.slot_count ||
        self->slots[slot].state == CONFORM_SLOT_TAKEN) {
        return;
    }
    self->slots[slot] =
        (conform_slot_t){.state = CONFORM_SLOT_TAKEN, .request = fits ? request : NULL};
    self->cache.rows[slot] = (conform_row_t){0};
    memset(self->cache.tables[slot], 0, sizeof self->cache.tables[slot]);
    if (fits) {
        request->admit_count++;
        self->cache.rows[slot] =
            (conform_row_t){.request = request, .known = request->ask.prompt_length};
    }
}

/* ---- PLAN ------------------------------------------------------------------------------------ */

static void
check_order(conform_executor_t *self, const actor_input_t *input)
{
    const proto_plan_t *plan = &input->body->plan;
    conform_where_t where = where_of(input, 0);
    char expected[80];
    if (plan->step <= *self->step_last) {
        (void)snprintf(expected, sizeof expected, "a step above %" PRIu64, *self->step_last);
        actor_conform_broke(self->report, CONFORM_PLAN_STEP, &where, expected, "step %" PRIu64,
                            plan->step);
    } else {
        *self->step_last = plan->step;
        actor_conform_held(self->report, CONFORM_PLAN_STEP);
    }
    if (self->plans_since_reset == 0 && plan->base_step != 0) {
        actor_conform_broke(self->report, CONFORM_PLAN_FIRST_FULL, &where, "base_step 0",
                            "base_step %" PRIu64 " in the first plan", plan->base_step);
    } else if (self->plans_since_reset == 0) {
        actor_conform_held(self->report, CONFORM_PLAN_FIRST_FULL);
    }
    /* Behind a refusal those in flight are known to be good. */
    if (plan->base_step == 0 && self->in_flight > 0 && !self->awaits_full) {
        actor_conform_broke(self->report, CONFORM_PLAN_FULL_ALONE, &where,
                            "a full plan when no plan is in flight",
                            "step %" PRIu64
                            " with base_step 0 while %u plans wait for their results",
                            plan->step, self->in_flight);
    } else if (plan->base_step == 0) {
        actor_conform_held(self->report, CONFORM_PLAN_FULL_ALONE);
    }
    uint32_t most = 1 + self->machine.overlap_depth_max;
    if (self->in_flight >= most) {
        (void)snprintf(expected, sizeof expected, "at most %u plans without a result", most);
        actor_conform_broke(self->report, CONFORM_PLAN_IN_FLIGHT, &where, expected,
                            "step %" PRIu64 " while %u plans wait for their results", plan->step,
                            self->in_flight);
    } else {
        actor_conform_held(self->report, CONFORM_PLAN_IN_FLIGHT);
    }
}

static bool
has_request(const conform_executor_t *self, uint32_t slot)
{
    return slot >= 1 && slot <= self->machine.slot_count &&
           self->slots[slot].state == CONFORM_SLOT_TAKEN && self->slots[slot].request != NULL;
}

static void
check_extend(conform_executor_t *self, const actor_input_t *input, uint32_t row)
{
    const proto_plan_t *plan = &input->body->plan;
    uint32_t slot = plan->extend_slots.data[row];
    if (!has_request(self, slot)) {
        return;
    }
    uint32_t end = plan->extend_begins.data[row] + plan->extend_lengths.data[row];
    bool samples = plan->extend_samples.data[row] != 0;
    uint32_t known = self->cache.rows[slot].known;
    conform_where_t where = where_of(input, self->slots[slot].request->id);
    if (self->slots[slot].samples_in_flight > 0) {
        actor_conform_broke(self->report, CONFORM_EXTEND_IN_FLIGHT, &where,
                            "an extend after the results of all rows that sample",
                            "extend of slot %u with %u rows that sample in flight", slot,
                            self->slots[slot].samples_in_flight);
        return;
    }
    actor_conform_held(self->report, CONFORM_EXTEND_IN_FLIGHT);
    if (end <= known && samples != (end == known)) {
        actor_conform_broke(self->report, CONFORM_EXTEND_SAMPLES, &where,
                            samples ? "samples 0" : "samples 1",
                            "samples %d of an extend that ends at token %u of %u", samples, end,
                            known);
        return;
    }
    actor_conform_held(self->report, CONFORM_EXTEND_SAMPLES);
}

/* Rows of a request that ended: what was planned before the end was known may still come. */
static void
check_zombie(conform_executor_t *self, const actor_input_t *input, uint32_t slot)
{
    if (!has_request(self, slot) || self->slots[slot].request->end_count == 0) {
        return;
    }
    conform_request_t *request = self->slots[slot].request;
    conform_where_t where = where_of(input, request->id);
    uint32_t most = 2 * (1 + self->machine.overlap_depth_max);
    if (++request->zombie_count > most) {
        actor_conform_broke(self->report, CONFORM_ROW_ENDED, &where,
                            "no row of a request that ended",
                            "slot %u is in %u plans after FINISHED", slot, request->zombie_count);
    } else {
        actor_conform_held(self->report, CONFORM_ROW_ENDED);
    }
}

void
actor_conform_audit_plan(conform_executor_t *self, const actor_input_t *input)
{
    const proto_plan_t *plan = &input->body->plan;
    check_order(self, input);
    uint32_t extends = plan->extend_slots.count;
    bool fits = plan->extend_begins.count == extends && plan->extend_lengths.count == extends &&
                plan->extend_samples.count == extends;
    /* A patch behind a refused plan will be refused too, whatever is in it. */
    bool is_stale = self->awaits_full && plan->base_step != 0;
    for (uint32_t i = 0; fits && !is_stale && i < extends; i++) {
        check_extend(self, input, i);
        check_zombie(self, input, plan->extend_slots.data[i]);
    }
    for (uint32_t i = 0; !is_stale && i < plan->decode_slots.count; i++) {
        check_zombie(self, input, plan->decode_slots.data[i]);
    }
    self->plan_count++;
    self->plans_since_reset++;
    self->row_plan_count += extends + plan->decode_slots.count > 0 ? 1 : 0;
    self->changed_ns = input->now_ns;
}

void
actor_conform_audit_applied(conform_executor_t *self, const proto_plan_t *plan)
{
    /* A plan that passed all checks holds each of the executor's rules. */
    for (uint32_t rule = PROTO_RULE_STALE; rule <= PROTO_RULE_WIDTH; rule++) {
        actor_conform_held(self->report, actor_conform_rule_of_plan((proto_plan_rule_t)rule));
    }
    for (uint32_t i = 0; i < plan->release_slots.count; i++) {
        conform_slot_t *slot = &self->slots[plan->release_slots.data[i]];
        if (slot->state == CONFORM_SLOT_TAKEN) {
            *slot = (conform_slot_t){.state = CONFORM_SLOT_RELEASING};
            actor_conform_held(self->report, CONFORM_SLOT_RELEASE);
        }
    }
}

void
actor_conform_audit_result(conform_executor_t *self, const conform_flight_t *flight)
{
    for (uint32_t i = 0; i < flight->release_count; i++) {
        conform_slot_t *slot = &self->slots[flight->releases[i]];
        if (slot->state == CONFORM_SLOT_RELEASING) {
            slot->state = CONFORM_SLOT_FREE;
        }
    }
    for (uint32_t r = 0; r < flight->row_count; r++) {
        conform_slot_t *slot = &self->slots[flight->slots[r]];
        if (flight->samples[r] && slot->samples_in_flight > 0) {
            slot->samples_in_flight--;
        }
    }
}

/* Everything that this executor had is gone; what waits may be admitted again. */
void
actor_conform_audit_reset(conform_executor_t *self)
{
    for (uint32_t slot = 1; slot <= CONFORM_SLOTS_MAX; slot++) {
        if (self->slots[slot].request != NULL) {
            self->slots[slot].request->admit_count = 0;
        }
        self->slots[slot] = (conform_slot_t){0};
    }
    self->plans_since_reset = 0;
    self->in_flight = 0;
    self->awaits_full = false;
    self->stale_allowed = 0;
    self->flight_count = 0;
    actor_conform_cache_clear(&self->cache);
}
