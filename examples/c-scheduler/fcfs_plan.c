/* fcfs_plan.c - the policy: who is admitted, and what the next step computes. */
#include <string.h>

#include "fcfs_state.h"

/* The columns of a plan are cut from one piece of memory: seven of at most slot_count entries, and
 * the blocks of all tables. */
static uint32_t *
cut(uint32_t **room, uint32_t count)
{
    uint32_t *column = *room;
    *room += count;
    return column;
}

static void
add_row(const fcfs_t *self, fcfs_flight_t *flight, uint32_t entry, bool samples)
{
    flight->rows[flight->row_count++] =
        (fcfs_row_t){.entry = entry, .serial = self->requests[entry].serial, .samples = samples};
}

/* Gives the first waiting request a slot and all its blocks, if they are there.  If not, it holds
 * the queue: then it is not passed for ever by smaller ones. */
static bool
admit(fcfs_t *self, uint64_t now_ns, size_t *bytes, actor_outbox_t *outbox)
{
    uint32_t entry = self->waiting.first;
    fcfs_request_t *request = &self->requests[entry];
    if (entry == 0 || self->free_slot_count == 0 || *bytes > FCFS_ADMIT_BYTES_MAX ||
        request->block_count > self->free_block_count) {
        return false;
    }
    fcfs_move(self, entry, &self->waiting, &self->running);
    request->phase = FCFS_PREFILLING;
    request->slot = self->free_slots[--self->free_slot_count];
    request->queue_ns = now_ns - request->arrived_ns;
    self->free_block_count -= request->block_count;
    memcpy(request->blocks, self->free_blocks + self->free_block_count,
           request->block_count * sizeof(uint32_t));
    proto_body_t body = {.admit = {.slot = request->slot,
                                   .prompt_length = request->prompt_length,
                                   .length_max = request->prompt_length + request->generation_max,
                                   .tokens = {request->tokens, request->prompt_length},
                                   .sampling = {request->sampling, request->sampling_size},
                                   .page_hashes = {request->hashes, request->hashes_size}}};
    actor_outbox_push(outbox, (actor_peer_t){self->executor}, PROTO_KIND_ADMIT, request->id, &body);
    *bytes += request->prompt_length * sizeof(int32_t) + request->hashes_size;
    fcfs_free_content(request);
    return true;
}

/* Tables: of the last `admitted` requests, or of all when the plan is a full one. */
static void
add_patches(const fcfs_t *self, proto_plan_t *plan, uint32_t admitted, uint32_t **room)
{
    uint32_t skipped = plan->base_step == 0 ? 0 : self->running.count - admitted;
    uint32_t *slots = cut(room, self->info.slot_count);
    uint32_t *columns = cut(room, self->info.slot_count);
    uint32_t *counts = cut(room, self->info.slot_count);
    uint32_t *blocks = *room;
    uint32_t count = 0;
    for (uint32_t at = self->running.first; at != 0; at = self->requests[at].next) {
        const fcfs_request_t *request = &self->requests[at];
        if (skipped > 0) {
            skipped--;
            continue;
        }
        slots[count] = request->slot;
        columns[count] = 0;
        counts[count++] = request->block_count;
        memcpy(cut(room, request->block_count), request->blocks,
               request->block_count * sizeof(uint32_t));
    }
    plan->patch_slots = (proto_column_u32_t){slots, count};
    plan->patch_groups = (proto_column_u8_t){self->zeros, count}; /* the one group there is */
    plan->patch_columns = (proto_column_u32_t){columns, count};
    plan->patch_counts = (proto_column_u32_t){counts, count};
    plan->patch_blocks = (proto_column_u32_t){blocks, (uint32_t)(*room - blocks)};
}

/* Chunks of prompts, first come first.  The last chunk samples a token. */
static void
add_extends(fcfs_t *self, proto_plan_t *plan, fcfs_flight_t *flight, uint32_t budget,
            uint32_t **room)
{
    static uint8_t samples[PROTO_ROWS_MAX];
    uint32_t *slots = cut(room, self->info.slot_count);
    uint32_t *begins = cut(room, self->info.slot_count);
    uint32_t *lengths = cut(room, self->info.slot_count);
    uint32_t count = 0;
    for (uint32_t at = self->running.first; at != 0 && budget > 0; at = self->requests[at].next) {
        fcfs_request_t *request = &self->requests[at];
        if (request->phase != FCFS_PREFILLING) {
            continue;
        }
        /* After a refused plan the answer so far is computed again too. */
        uint32_t left = request->prompt_length + request->generated - request->computed;
        uint32_t length = left < budget ? left : budget;
        slots[count] = request->slot;
        begins[count] = request->computed;
        lengths[count] = length;
        samples[count++] = length == left;
        add_row(self, flight, at, length == left);
        request->computed += length;
        budget -= length;
        if (length == left) {
            request->phase = FCFS_DECODING;
            request->sampled = request->generated + 1;
        }
    }
    plan->extend_slots = (proto_column_u32_t){slots, count};
    plan->extend_begins = (proto_column_u32_t){begins, count};
    plan->extend_lengths = (proto_column_u32_t){lengths, count};
    plan->extend_samples = (proto_column_u8_t){samples, count};
}

/* Everybody whose prompt is planned and whose answer is not: at most `budget` of them. */
static uint32_t
choose_decodes(const fcfs_t *self, uint32_t budget, uint32_t *entries)
{
    uint32_t count = 0;
    for (uint32_t at = self->running.first; at != 0 && count < budget;
         at = self->requests[at].next) {
        const fcfs_request_t *request = &self->requests[at];
        if (request->phase == FCFS_DECODING && request->sampled < request->generation_max) {
            entries[count++] = at;
        }
    }
    return count;
}

/* Nothing is in flight any more after a refusal: the requests of refused plans start over. */
static void
recover(fcfs_t *self)
{
    self->is_recovering = false;
    self->base = 0; /* the next plan is a full one */
    for (uint32_t at = self->running.first; at != 0;) {
        fcfs_request_t *request = &self->requests[at];
        uint32_t next = request->next;
        if (request->is_broken && request->refusals >= FCFS_REFUSALS_MAX) {
            fcfs_end(self, at, PROTO_FINISH_ERROR, STATUS_ERR_REFUSED, "plan_refused");
        } else if (request->is_broken) {
            request->is_broken = false;
            request->phase = FCFS_PREFILLING;
            request->computed = 0;
        }
        at = next;
    }
}

/* Makes and sends one plan; false if there is nothing to plan, or no room for it in flight. */
static bool
plan_one(fcfs_t *self, uint64_t now_ns, size_t *admit_bytes, actor_outbox_t *outbox)
{
    if (self->executor == ACTOR_PEER_NONE || self->flight_count > self->info.overlap_depth_max) {
        return false;
    }
    if (self->is_recovering) {
        if (self->flight_count > 0) {
            return false; /* only then it is known where each request stands */
        }
        recover(self);
    }
    uint32_t *room = self->columns;
    uint32_t *decodes = cut(&room, self->info.slot_count);
    uint32_t decode_count = choose_decodes(self, self->info.step_tokens_max, decodes);
    uint32_t budget = self->info.step_tokens_max - decode_count;
    uint32_t admitted = 0;
    while (admitted < budget && admit(self, now_ns, admit_bytes, outbox)) {
        admitted++;
    }
    fcfs_flight_t *flight = &self->flights[self->flight_count];
    flight->row_count = 0;
    flight->step = self->step + 1;
    proto_body_t body = {.plan = {.step = flight->step, .base_step = self->base, .width = 1}};
    add_patches(self, &body.plan, admitted, &room);
    add_extends(self, &body.plan, flight, budget, &room);
    for (uint32_t i = 0; i < decode_count; i++) {
        fcfs_request_t *request = &self->requests[decodes[i]];
        request->sampled++;
        add_row(self, flight, decodes[i], true);
        decodes[i] = request->slot; /* from here on it is the plan's column */
    }
    bool has_work = flight->row_count > 0 || admitted > 0;
    bool has_debts = self->release_count > 0 || self->dirty_count > 0;
    if (!has_work && (!has_debts || self->flight_count > 0)) {
        return false; /* debts alone can wait for the next result */
    }
    body.plan.decode_slots = (proto_column_u32_t){decodes, decode_count};
    if (self->clearing_count == 0 && self->dirty_count > 0) {
        body.plan.clear_groups = (proto_column_u8_t){self->zeros, self->dirty_count};
        body.plan.clear_blocks = (proto_column_u32_t){self->dirty, self->dirty_count};
        self->clearing_count = self->dirty_count;
        self->clearing_step = flight->step;
    }
    body.plan.release_slots = (proto_column_u32_t){self->releases, self->release_count};
    memcpy(flight->releases, self->releases, self->release_count * sizeof(uint32_t));
    flight->release_count = self->release_count;
    actor_outbox_push(outbox, (actor_peer_t){self->executor}, PROTO_KIND_PLAN, 0, &body);
    self->release_count = 0;
    self->step = self->base = flight->step;
    self->flight_count++;
    return true;
}

void
fcfs_plan(fcfs_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    size_t admit_bytes = 0;
    while (plan_one(self, now_ns, &admit_bytes, outbox)) {
    }
}
