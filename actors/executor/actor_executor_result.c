#include "actor_executor_state.h"

/* Hashes the pages that became complete: their tokens are known and in the cache. */
static void
hash_pages(actor_executor_core_t *self, uint32_t slot, uint32_t row)
{
    executor_slot_t *s = &self->slots[slot];
    executor_hash_room_t *room = &self->hashes;
    uint32_t page_tokens = self->info.prefix_granularity;
    while (s->is_hashed && s->done >= (s->chain_pages + 1) * page_tokens &&
           room->count < room->count_max) {
        const int32_t *tokens = executor_tokens(self, slot) + s->chain_pages * page_tokens;
        proto_page_hash(self->page_hash_key, s->chain_pages > 0 ? s->chain : NULL,
                        (proto_bytes_t){s->salt, s->salt_size}, tokens, page_tokens, s->chain);
        room->rows[room->count] = row;
        room->pages[room->count] = s->chain_pages;
        memcpy(room->bytes + (size_t)room->count * PROTO_HASH_SIZE_BYTES, s->chain,
               PROTO_HASH_SIZE_BYTES);
        room->count++;
        s->chain_pages++;
    }
}

/* Takes in the outputs of one row; the slot may have been left meanwhile. */
static void
commit_row(actor_executor_core_t *self, const executor_row_t *row, uint32_t index,
           const int32_t *tokens, uint32_t count, uint8_t flags)
{
    executor_slot_t *s = &self->slots[row->slot];
    if (s->request == 0 || s->generation != row->generation) {
        return;
    }
    require(s->pending >= row->pending);
    s->pending -= row->pending;
    s->pending_rows -= row->pending > 0 ? 1 : 0;
    uint32_t room = s->length_max - s->known;
    actor_executor_slot_append(self, row->slot, tokens, count < room ? count : room);
    if ((flags & PROTO_ROW_NAN) != 0) {
        s->is_hashed = false; /* what it wrote is not worth sharing */
    }
    if (row->end > 0) {
        s->done = row->end;
    } else if (count > 0) {
        s->done = s->known - 1;
    }
    hash_pages(self, row->slot, index);
    actor_executor_slot_touch(self, row->slot);
}

/* What the device says must fit what it was asked; if it does not, the device is broken. */
static const char *
outputs_refusal(const actor_executor_core_t *self, const executor_flight_t *flight,
                const proto_step_done_t *done)
{
    if (done->step != flight->step) {
        return "the device ended another step than the one that runs";
    }
    if (done->token_counts.count != flight->row_count ||
        done->row_flags.count != flight->row_count) {
        return "the device gave another number of rows than it was asked for";
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < flight->row_count; i++) {
        if (done->token_counts.data[i] > flight->rows[i].token_max) {
            return "the device gave more tokens than a row may have";
        }
        total += done->token_counts.data[i];
    }
    if (total != done->tokens.count) {
        return "the device's token counts and tokens differ";
    }
    uint32_t drafted = done->drafted.count;
    if ((drafted != 0 && drafted != flight->row_count) || done->draft_hits.count != drafted) {
        return "the device told of candidates for another number of rows";
    }
    for (uint32_t i = 0; i < done->tokens.count; i++) {
        if ((uint32_t)done->tokens.data[i] >= self->info.vocab_size) {
            return "the device gave a token outside the vocabulary";
        }
    }
    return NULL;
}

/* Candidates in windows; what was only compared at width 1 is no candidate of a window. */
static void
count_drafts(proto_stats_t *stats, const executor_flight_t *flight, const proto_step_done_t *done)
{
    stats->drafts_ignored += done->draft_ignored;
    if (flight->width < 2) {
        return;
    }
    bool is_wide = false;
    for (uint32_t i = 0; i < done->drafted.count; i++) {
        if (flight->rows[i].end == 0) {
            is_wide = true;
            stats->drafts_proposed += done->drafted.data[i];
            stats->drafts_accepted += done->draft_hits.data[i];
            stats->drafts_missing += done->drafted.data[i] == 0 ? 1 : 0;
        }
    }
    stats->wide_steps += is_wide ? 1 : 0;
}

static void
count_step(actor_executor_core_t *self, const executor_flight_t *flight,
           const proto_step_done_t *done, uint64_t now_ns)
{
    proto_stats_t *stats = &self->stats;
    stats->steps++;
    stats->prompt_tokens += flight->prompt_token_count;
    stats->generation_tokens += done->tokens.count;
    count_drafts(stats, flight, done);
    stats->graph_steps += done->mode == PROTO_STEP_DECODE_GRAPH;
    stats->eager_steps +=
        done->mode == PROTO_STEP_DECODE_EAGER || done->mode == PROTO_STEP_DECODE_ABOVE;
    stats->busy_ns += now_ns > self->busy_since_ns ? now_ns - self->busy_since_ns : 0;
    self->busy_since_ns = now_ns;
    self->oldest_begin_ns = now_ns;
    if (flight->prompt_token_count > 0) {
        self->token_ns = (3 * self->token_ns + done->duration_ns / flight->token_count) / 4;
    } else if (flight->token_count > 0) {
        self->step_ns = (3 * self->step_ns + done->duration_ns) / 4;
    }
}

static void
send_result(actor_executor_core_t *self, const executor_flight_t *flight,
            const proto_step_done_t *done, actor_outbox_t *outbox)
{
    const executor_hash_room_t *room = &self->hashes;
    proto_body_t body = {
        .step_result = {.step = done->step,
                        .mode = done->mode,
                        .duration_ns = done->duration_ns,
                        .computed_tokens = flight->token_count,
                        .token_counts = done->token_counts,
                        .row_flags = done->row_flags,
                        .hash_rows = {room->rows, room->count},
                        .hash_pages = {room->pages, room->count},
                        .hash_bytes = {room->bytes, room->count * PROTO_HASH_SIZE_BYTES},
                        .tokens = done->tokens,
                        .logprob_widths = done->logprob_widths,
                        .logprob_ids = done->logprob_ids,
                        .logprob_values = done->logprob_values,
                        .drafted = done->drafted,
                        .draft_hits = done->draft_hits,
                        .draft_ignored = done->draft_ignored}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_STEP_RESULT, 0, &body);
}

void
actor_executor_step_done(actor_executor_core_t *self, const actor_input_t *input,
                         actor_outbox_t *outbox)
{
    const proto_step_done_t *done = &input->body->step_done;
    if (self->phase != EXECUTOR_READY || self->reset_count > 0) {
        return; /* of before a reset that the device had not seen yet */
    }
    if (self->flight_count == 0) {
        actor_executor_fail(self, STATUS_ERR_DEVICE,
                            "the device ended a step that nobody asked for", outbox);
        return;
    }
    const executor_flight_t *flight = &self->flights[self->flight_first];
    const char *refusal = outputs_refusal(self, flight, done);
    if (refusal != NULL) {
        actor_executor_fail(self, STATUS_ERR_DEVICE, refusal, outbox);
        return;
    }
    self->hashes.count = 0;
    const int32_t *tokens = done->tokens.data;
    for (uint32_t i = 0; i < flight->row_count; i++) {
        uint32_t count = done->token_counts.data[i];
        commit_row(self, &flight->rows[i], i, tokens, count, done->row_flags.data[i]);
        tokens += count;
    }
    count_step(self, flight, done, input->now_ns);
    self->flight_first = (self->flight_first + 1) % FLIGHTS_MAX;
    self->flight_count--;
    if (self->is_info_sent) {
        send_result(self, flight, done, outbox);
    }
}
