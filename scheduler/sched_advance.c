/* Advance: what results, refusals, owners and the time change. */
#include <string.h>

#include "sched_internal.h"

/* ---- results --------------------------------------------------------------------------------- */

static bool
is_live(const sched_core_t *self, const sched_row_t *row)
{
    return self->slots[row->slot].serial == row->serial;
}

/* True if the result's shape is the plan's. */
static bool
fits_step(const sched_core_t *self, const sched_step_t *step, const proto_step_result_t *result)
{
    if (result->token_counts.count != step->row_count ||
        result->row_flags.count != step->row_count ||
        result->hash_pages.count != result->hash_rows.count ||
        result->hash_bytes.count / PROTO_HASH_SIZE_BYTES != result->hash_rows.count ||
        result->hash_bytes.count % PROTO_HASH_SIZE_BYTES != 0) {
        return false;
    }
    for (uint32_t r = 0; r < step->row_count; r++) {
        const sched_row_t *row = &step->rows[r];
        uint32_t most = row->samples == 0 ? 0 : r < step->extend_count ? 1 : row->length;
        uint32_t count = result->token_counts.data[r];
        bool is_nan = (result->row_flags.data[r] & PROTO_ROW_NAN) != 0;
        bool starves = row->samples != 0 && count == 0 && !is_nan && is_live(self, row);
        if (count > most || starves) {
            return false;
        }
    }
    for (uint32_t h = 0; h < result->hash_rows.count; h++) {
        if (result->hash_rows.data[h] >= step->row_count) {
            return false;
        }
    }
    return sched_width_fits(self, step, result);
}

/* Hashes of generated pages; a request's pages come in order, repeats are ignored. */
static void
learn_hashes(sched_core_t *self, const sched_step_t *step, const proto_step_result_t *result)
{
    for (uint32_t h = 0; h < result->hash_rows.count; h++) {
        const sched_row_t *row = &step->rows[result->hash_rows.data[h]];
        sched_span_t *span = &self->spans[row->slot];
        uint32_t page = result->hash_pages.data[h];
        if (!is_live(self, row) || page != span->page_known || page >= self->pages_max) {
            continue;
        }
        memcpy(sched_hash(self, row->slot, page),
               result->hash_bytes.data + (size_t)h * PROTO_HASH_SIZE_BYTES, PROTO_HASH_SIZE_BYTES);
        span->page_known++;
        if (self->slots[row->slot].publish_at == UINT32_MAX) {
            sched_set_publish_at(self, row->slot);
        }
    }
}

/* What the forward wrote is not to be read by anybody: not by a hit, not by the next owner. */
static void
poison(sched_core_t *self, uint32_t slot)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_extent_t *extent = sched_extent(self, slot, g);
        const uint32_t *table = sched_table(self, slot, g);
        for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
            sched_block_t block = sched_block(self, g, table[c]);
            if (table[c] != 0 && sched_pool_holder_count(self->pool, block) == 1) {
                sched_pool_unpublish(self->pool, block);
                sched_pool_mark_dirty(self->pool, block);
            }
        }
    }
}

static void
apply_row(sched_core_t *self, const sched_step_t *step, uint32_t r, uint32_t count, uint32_t flags)
{
    const sched_row_t *row = &step->rows[r];
    sched_slot_t *slot = &self->slots[row->slot];
    slot->rows_in_flight--;
    if (r < step->extend_count) {
        slot->computed += row->length;
        self->figures.prompt_tokens += row->length;
    } else {
        slot->computed += count;
        slot->planned -= row->length - count;
    }
    slot->samples_in_flight -= row->samples;
    uint32_t kept = slot->generation_max - slot->generated;
    kept = count < kept ? count : kept;
    self->row_requests[r] = slot->request;
    self->row_owners[r] = slot->owner;
    self->row_indices[r] = self->entries[slot->entry].emitted + slot->generated;
    self->row_counts[r] = (uint8_t)kept;
    slot->generated += kept;
    self->figures.generation_tokens += kept;
    if ((flags & PROTO_ROW_NAN) != 0) {
        self->row_counts[r] = 0;
        slot->generated -= kept;
        self->figures.generation_tokens -= kept;
        poison(self, row->slot);
        sched_end(self, slot->entry, PROTO_FINISH_ERROR, STATUS_ERR_INTERNAL, "nan_logits");
        return;
    }
    if (slot->computed >= slot->publish_at) {
        sched_publish(self, row->slot);
    }
    if (slot->computed >= slot->expire_at) {
        sched_expire(self, row->slot);
    }
    if ((slot->flags & SLOT_REFUSED) != 0) {
        slot->flags &= (uint8_t)~SLOT_REFUSED;
        self->entries[slot->entry].refusal_count = 0;
    }
    bool stops = (flags & PROTO_ROW_STOP_TOKEN) != 0 && kept == count && count > 0;
    if (stops) {
        sched_end(self, slot->entry, PROTO_FINISH_STOP, STATUS_OK, "");
    } else if (slot->generated >= slot->generation_max) {
        sched_end(self, slot->entry, PROTO_FINISH_LENGTH, STATUS_OK, "");
    } else if ((slot->flags & SLOT_RETRACT) != 0 && slot->rows_in_flight == 0) {
        sched_retract(self, row->slot);
    }
}

static void
learn_cost(sched_core_t *self, const sched_step_t *step, const proto_step_result_t *result)
{
    uint64_t extend_tokens = 0;
    for (uint32_t r = 0; r < step->extend_count; r++) {
        extend_tokens += step->rows[r].length;
    }
    uint64_t *cost = &self->decode_step_ns;
    uint64_t sample = result->duration_ns;
    if (extend_tokens > 0) {
        cost = &self->extend_token_ns;
        sample /= extend_tokens;
    }
    if (step->row_count > 0) {
        *cost = *cost == 0 ? sample : *cost - *cost / 8 + sample / 8;
    }
    self->figures.graph_steps += result->mode == PROTO_STEP_DECODE_GRAPH ? 1 : 0;
    bool is_above = result->mode == PROTO_STEP_DECODE_ABOVE;
    self->figures.eager_steps += result->mode == PROTO_STEP_DECODE_EAGER || is_above ? 1 : 0;
    self->figures.above_ladder_steps += is_above ? 1 : 0;
    bool is_prefill_graph =
        result->mode == PROTO_STEP_EXTEND_GRAPH || result->mode == PROTO_STEP_MIXED_GRAPH;
    bool is_prefill_eager = result->mode == PROTO_STEP_EXTEND || result->mode == PROTO_STEP_MIXED;
    self->figures.prefill_graph_steps += is_prefill_graph ? 1 : 0;
    self->figures.prefill_eager_steps += is_prefill_eager ? 1 : 0;
}

static proto_status_t
on_result(sched_core_t *self, const proto_step_result_t *result, sched_rows_t *rows)
{
    if (self->step_in_flight == 0 || result->step < self->steps[self->step_first].step) {
        self->figures.late_events++;
        return STATUS_ERR_STALE;
    }
    sched_step_t *step = &self->steps[self->step_first];
    if (result->step != step->step || !fits_step(self, step, result)) {
        return STATUS_ERR_MALFORMED;
    }
    self->step_first = (self->step_first + 1) % SCHED_STEPS_MAX;
    self->step_in_flight--;
    self->refusal_run = 0;
    for (uint32_t i = 0; i < step->release_count; i++) {
        sched_list_add(self, &self->free_slots, step->releases[i]);
    }
    uint64_t generated = self->figures.generation_tokens;
    learn_hashes(self, step, result);
    learn_cost(self, step, result);
    sched_width_learn(self, step, result);
    for (uint32_t r = 0; r < step->row_count; r++) {
        if (is_live(self, &step->rows[r])) {
            apply_row(self, step, r, result->token_counts.data[r], result->row_flags.data[r]);
#if ONEPATH_MUTANT == 2
            if (is_live(self, &step->rows[r])) {
                apply_row(self, step, r, result->token_counts.data[r], 0);
            }
#endif
        } else {
            self->row_requests[r] = 0;
            self->row_counts[r] = 0;
            self->figures.zombie_rows++;
        }
    }
    self->retraction_run = generated == self->figures.generation_tokens ? self->retraction_run : 0;
    sched_fold(self, result->step);
    sched_fold(self, self->figures.generation_tokens);
    *rows = (sched_rows_t){
        .count = step->row_count,
        .requests = self->row_requests,
        .owners = self->row_owners,
        .token_indices = self->row_indices,
        .token_counts = self->row_counts,
    };
    return STATUS_OK;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static bool
has_slot(const sched_core_t *self, const sched_step_t *step, uint32_t slot)
{
    for (uint32_t r = 0; r < step->row_count; r++) {
        if (step->rows[r].slot == slot && is_live(self, &step->rows[r])) {
            return true;
        }
    }
    return false;
}

/* A plan that was not applied cleared nothing.  Which of the slot's blocks it was to clear is not
 * kept: the next owner of any of them clears it. */
static void
clear_again(sched_core_t *self, uint32_t slot)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_extent_t *extent = sched_extent(self, slot, g);
        const uint32_t *table = sched_table(self, slot, g);
        for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
            sched_block_t block = sched_block(self, g, table[c]);
            if (table[c] != 0 && sched_pool_holder_count(self->pool, block) == 1) {
                sched_pool_mark_dirty(self->pool, block);
            }
        }
    }
}

/* The step never ran: its rows are taken back, its requests will be retracted, its releases are
 * said again. */
static void
undo_step(sched_core_t *self, const sched_step_t *step)
{
    for (uint32_t r = 0; r < step->row_count; r++) {
        const sched_row_t *row = &step->rows[r];
        sched_slot_t *slot = &self->slots[row->slot];
        if (!is_live(self, row)) {
            continue;
        }
        slot->rows_in_flight--;
        slot->samples_in_flight -= row->samples;
        slot->planned -= row->length;
        slot->flags |= SLOT_RETRACT;
        clear_again(self, row->slot);
        if (slot->place != SCHED_NONE && slot->state == SCHED_STATE_PREFILLING) {
            sched_list_remove(self, &self->prefilling, row->slot);
        } else if (slot->place != SCHED_NONE) {
            sched_list_swap_remove(self, &self->decoding, row->slot);
        }
    }
    for (uint32_t i = 0; i < step->release_count; i++) {
        sched_list_add(self, &self->releasing, step->releases[i]);
    }
}

/* Whoever is refused again and again ends; the slot that the executor names, or all of them. */
static void
blame(sched_core_t *self, const sched_step_t *step, uint32_t named, uint32_t rule)
{
    bool all = !has_slot(self, step, named);
    for (uint32_t r = 0; r < step->row_count; r++) {
        const sched_row_t *row = &step->rows[r];
        if (!is_live(self, row) || !(all || row->slot == named)) {
            continue;
        }
        uint32_t index = self->slots[row->slot].entry;
        self->slots[row->slot].flags |= SLOT_REFUSED;
        /* An executor that has no such request will not have it the next time either. */
        bool hopeless = !all && rule == PROTO_RULE_SLOT_EMPTY;
        uint32_t count = ++self->entries[index].refusal_count;
        if (hopeless || count >= self->options.refusal_count_max) {
            sched_end(self, index, PROTO_FINISH_ERROR, STATUS_ERR_REFUSED, "plan_refused");
        }
    }
}

static proto_status_t
on_refused(sched_core_t *self, const proto_plan_refused_t *refused)
{
    uint32_t at = 0;
    while (at < self->step_in_flight && sched_step_at(self, at)->step != refused->step) {
        at++;
    }
    if (at == self->step_in_flight) {
        self->figures.late_events++; /* of a plan that went with an earlier one */
        return STATUS_ERR_STALE;
    }
    if (++self->refusal_run > SCHED_REFUSAL_RUN_MAX) {
        return STATUS_ERR_MALFORMED;
    }
    self->figures.plans_refused++;
    uint32_t end = self->step_in_flight;
    self->step_in_flight = at;
    self->step_base = 0;
    for (uint32_t i = at; i < end; i++) {
        undo_step(self, sched_step_at(self, i));
    }
    sched_redo_reservations(self);
    blame(self, sched_step_at(self, at), refused->slot, refused->rule);
    for (uint32_t i = at; i < end; i++) {
        const sched_step_t *step = sched_step_at(self, i);
        for (uint32_t r = 0; r < step->row_count; r++) {
            const sched_slot_t *slot = &self->slots[step->rows[r].slot];
            bool now = is_live(self, &step->rows[r]) && (slot->flags & SLOT_RETRACT) != 0 &&
                       slot->rows_in_flight == 0;
            const sched_entry_t *entry = now ? &self->entries[slot->entry] : NULL;
            if (now && entry->transfer != 0 && !entry->is_activated) {
                /* A transfer may be reading its blocks: it ends, and they are kept for that. */
                sched_end(self, slot->entry, PROTO_FINISH_ERROR, STATUS_ERR_REFUSED,
                          "plan_refused");
            } else if (now) {
                sched_retract(self, step->rows[r].slot);
            }
        }
    }
    sched_fold(self, refused->step);
    return STATUS_OK;
}

/* ---- owners and time ------------------------------------------------------------------------- */

static proto_status_t
on_finish(sched_core_t *self, const sched_finish_t *finish)
{
    uint32_t index = sched_ids_find(&self->ids, finish->owner, finish->request);
    if (index == SCHED_IDS_UNKNOWN || index == SCHED_IDS_ENDED) {
        self->figures.late_events++;
        return STATUS_ERR_STALE;
    }
    const sched_entry_t *entry = &self->entries[index];
    if (entry->slot != 0) {
        sched_slot_t *slot = &self->slots[entry->slot];
        uint32_t kept =
            finish->token_index > entry->emitted ? finish->token_index - entry->emitted : 0;
        slot->generated = slot->generated < kept ? slot->generated : kept;
    }
    bool known = finish->reason == PROTO_FINISH_STOP || finish->reason == PROTO_FINISH_LENGTH;
    sched_end(self, index, known ? finish->reason : PROTO_FINISH_CANCELLED,
              known ? STATUS_OK : STATUS_ERR_CANCELLED, known ? "" : "cancelled");
    return STATUS_OK;
}

static void
on_owner_gone(sched_core_t *self, uint32_t owner)
{
    for (uint32_t i = 0; i < self->entry_count; i++) {
        const sched_entry_t *entry = &self->entries[i];
        if (entry->in_use && entry->owner == owner && entry->state != SCHED_STATE_FINISHED) {
            sched_end(self, i, PROTO_FINISH_CANCELLED, STATUS_ERR_PEER_LOST, "owner_gone");
        }
    }
    sched_ids_forget(&self->ids, owner);
}

static void
on_time(sched_core_t *self, uint64_t now_ns)
{
    for (;;) {
        uint32_t index = sched_heap_first(&self->deadlines);
        if (index == SCHED_NONE || self->entries[index].deadline_ns > now_ns) {
            return;
        }
        sched_entry_t *entry = &self->entries[index];
        entry->queue_ns = now_ns - entry->submit_ns;
        entry->retry_after_ms = 1000;
        sched_end(self, index, PROTO_FINISH_REFUSED, STATUS_ERR_DEADLINE, "queue_timeout");
    }
}

proto_status_t
sched_core_advance(sched_core_t *self, uint64_t now_ns, const sched_event_t *event,
                   sched_rows_t *rows)
{
    require(event != NULL);
    sched_rows_t none = {0};
    sched_rows_t *out = rows != NULL ? rows : &none;
    *out = none;
    switch (event->kind) {
    case SCHED_EVENT_RESULT:
        require(event->result != NULL);
        return self->attached ? on_result(self, event->result, out) : STATUS_ERR_STALE;
    case SCHED_EVENT_REFUSED:
        require(event->refused != NULL);
        return self->attached ? on_refused(self, event->refused) : STATUS_ERR_STALE;
    case SCHED_EVENT_FINISH:
        return on_finish(self, &event->finish);
    case SCHED_EVENT_OWNER_GONE:
        on_owner_gone(self, event->owner);
        return STATUS_OK;
    case SCHED_EVENT_TIME:
        on_time(self, now_ns);
        return STATUS_OK;
    case SCHED_EVENT_DRAIN:
        self->draining = true;
        return STATUS_OK;
    }
    return STATUS_ERR_INVALID;
}
