/* Invariants of the whole core, and the answer to "why is it waiting?". */
#include <string.h>

#include "sched_internal.h"

/* ---- invariants ------------------------------------------------------------------------------ */

static void
audit_column(sched_core_t *self, uint32_t slot, uint32_t g, uint32_t column, sched_audit_t *audit)
{
    const sched_group_t *group = &self->groups[g];
    uint32_t child = sched_table(self, slot, g)[column];
    uint64_t end = (uint64_t)(column + 1) * group->granularity;
    if (child == 0 && group->kind == SCHED_GROUP_STATE) {
        return; /* between two ends of chunks */
    }
    if (!sched_holds(audit, child != 0 && child <= sched_pool_capacity(self->pool, g))) {
        return;
    }
    sched_block_t block = sched_block(self, g, child);
    self->check_holders[block.index]++;
    /* What may still be written, and what is still to be published, is this request's alone. */
    if (end > self->slots[slot].computed ||
        column / group->page_blocks >= self->spans[slot].page_published) {
        sched_holds(audit, sched_pool_state(self->pool, block) == SCHED_BLOCK_OWNED);
    }
}

/* The state before the next row is there, and so is each column that a planned row may leave one
 * in; more than the window and what the steps in flight need is not held. */
static void
audit_states(const sched_core_t *self, uint32_t slot, uint32_t g, sched_audit_t *audit)
{
    const sched_slot_t *row = &self->slots[slot];
    const sched_group_t *group = &self->groups[g];
    const sched_extent_t *extent = sched_extent(self, slot, g);
    const uint32_t *table = sched_table(self, slot, g);
    uint32_t held = 0;
    for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
        held += table[c] != 0 ? 1 : 0;
    }
    sched_holds(audit, held <= sched_columns_needed(self, g, self->spans[slot].cover_max));
    uint32_t planned = row->planned < row->covered ? row->planned : row->covered;
    if (row->state == SCHED_STATE_RETRACTED || row->computed == 0 || planned < row->computed) {
        return;
    }
    uint32_t before = (row->computed - 1) / group->granularity;
    sched_holds(audit, before < extent->column_count && table[before] != 0);
    if (planned == row->computed) {
        return;
    }
    /* Decoding rows may end in any of their columns, chunks only where they end. */
    uint32_t end = (planned - 1) / group->granularity;
    uint32_t begin =
        row->state == SCHED_STATE_DECODING && row->computed >= self->spans[slot].prefill_end
            ? row->computed / group->granularity
            : end;
    for (uint32_t c = begin; c <= end; c++) {
        sched_holds(audit, c < extent->column_count && table[c] != 0);
    }
}

static void
audit_table(sched_core_t *self, uint32_t slot, sched_audit_t *audit)
{
    const sched_slot_t *row = &self->slots[slot];
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_group_t *group = &self->groups[g];
        const sched_extent_t *extent = sched_extent(self, slot, g);
        bool bounded = extent->column_count <= group->columns_max &&
                       extent->executor_count <= group->columns_max &&
                       extent->expired_count <= extent->column_count;
        if (!sched_holds(audit, bounded)) {
            continue;
        }
        sched_holds(audit, row->entry != SCHED_NONE || extent->column_count == 0);
        sched_holds(audit, group->kind != SCHED_GROUP_FULL || extent->expired_count == 0);
        for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
            audit_column(self, slot, g, c, audit);
        }
        if (row->entry != SCHED_NONE) {
            sched_holds(audit, (uint64_t)extent->column_count * group->granularity >= row->covered);
        }
        if (row->entry != SCHED_NONE && group->kind == SCHED_GROUP_STATE) {
            audit_states(self, slot, g, audit);
        }
    }
}

static bool
is_listed(const sched_list_t *list, const sched_slot_t *row, uint32_t slot)
{
    return row->place < list->count && list->items[row->place] == slot;
}

/* What the state of a running request says about its figures and its list. */
static void
audit_state(const sched_core_t *self, uint32_t slot, sched_audit_t *audit)
{
    const sched_slot_t *row = &self->slots[slot];
    const sched_span_t *span = &self->spans[slot];
    uint32_t coming = row->generated + row->samples_in_flight;
    switch ((sched_state_t)row->state) {
    case SCHED_STATE_RETRACTED:
        sched_holds(audit, row->computed == 0 && row->covered == 0 && row->rows_in_flight == 0);
        sched_holds(audit, is_listed(&self->retracted, row, slot));
        break;
    case SCHED_STATE_PREFILLING:
        sched_holds(audit, row->planned < span->prefill_end);
        sched_holds(audit, row->samples_in_flight == 0);
        sched_holds(audit, is_listed(&self->prefilling, row, slot));
        break;
    case SCHED_STATE_PREFILL_DONE:
    case SCHED_STATE_DECODING:
        sched_holds(audit, row->planned >= span->prefill_end);
        sched_holds(audit, row->place == SCHED_NONE || is_listed(&self->decoding, row, slot));
        sched_holds(audit, self->width > 1 ||
                               (row->place == SCHED_NONE) == (coming == row->generation_max));
        sched_holds(audit, self->width > 1 || row->planned == span->prompt_length + coming - 1);
        break;
    case SCHED_STATE_SUBMITTED:
    case SCHED_STATE_FINISHED:
    case SCHED_STATE_COUNT:
        sched_holds(audit, row->state == SCHED_STATE_DECODING); /* or one of the others above */
        break;
    }
}

static void
audit_slot(const sched_core_t *self, uint32_t slot, sched_audit_t *audit)
{
    const sched_slot_t *row = &self->slots[slot];
    const sched_span_t *span = &self->spans[slot];
    if (!sched_holds(audit, row->entry < self->entry_count)) {
        return;
    }
    const sched_entry_t *entry = &self->entries[row->entry];
    sched_holds(audit, entry->in_use && entry->slot == slot);
    sched_holds(audit, entry->state == row->state);
    sched_holds(audit, entry->request == row->request);
    sched_holds(audit, entry->prompt_length == span->prompt_length);
    sched_holds(audit, row->generated < row->generation_max);
    sched_holds(audit,
                self->width > 1 || row->generated + row->samples_in_flight <= row->generation_max);
    /* Rows of a wide executor end with the longest request, wherever they were planned to end. */
    bool is_covered = row->planned <= row->covered || span->cover_max <= row->covered;
    sched_holds(audit, row->computed <= row->planned && is_covered);
    sched_holds(audit, row->rows_in_flight <= self->step_count_max);
    sched_holds(audit, span->page_published <= span->page_known);
    sched_holds(audit, span->page_known <= self->pages_max);
    sched_holds(audit, span->prefill_end <= self->model_len_max);
    sched_holds(audit, span->cover_max < self->model_len_max + self->width);
    sched_holds(audit,
                span->body_end <= span->prefill_end && span->promote_at <= span->prefill_end);
    if ((row->flags & SLOT_RETRACT) != 0) {
        sched_holds(audit, row->rows_in_flight > 0 && row->place == SCHED_NONE);
    } else {
        audit_state(self, slot, audit);
    }
}

static void
audit_entries(const sched_core_t *self, sched_audit_t *audit)
{
    uint32_t queued = 0;
    uint32_t running = 0;
    for (uint32_t i = 0; i < self->entry_count; i++) {
        const sched_entry_t *entry = &self->entries[i];
        bool waits = sched_heap_has(&self->waiting, i);
        sched_holds(audit, waits == sched_heap_has(&self->deadlines, i));
        if (!entry->in_use || entry->state == SCHED_STATE_FINISHED) {
            sched_holds(audit, !waits);
            continue;
        }
        sched_holds(audit, sched_ids_find(&self->ids, entry->owner, entry->request) == i);
        bool is_queued = entry->state == SCHED_STATE_SUBMITTED;
        sched_holds(audit, is_queued == (entry->slot == 0));
        sched_holds(audit, waits == is_queued);
        queued += is_queued ? 1 : 0;
        running += is_queued ? 0 : 1;
    }
    sched_holds(audit, queued == self->waiting.count);
    sched_holds(audit, running == self->running_count);
    sched_heap_check(&self->waiting);
    sched_heap_check(&self->deadlines);
}

void
sched_core_audit(sched_core_t *self, sched_audit_t *audit)
{
    audit_entries(self, audit);
    if (!self->attached) {
        sched_holds(audit, self->running_count == 0);
        return;
    }
    sched_pool_audit(self->pool, audit);
    memset(self->check_holders, 0, self->block_count * sizeof *self->check_holders);
    uint32_t used = 0;
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        audit_table(self, slot, audit);
        if (self->slots[slot].entry != SCHED_NONE) {
            audit_slot(self, slot, audit);
            used++;
        }
    }
    sched_holds(audit, used == self->running_count);
    sched_audit_loans(self, audit);
    for (uint32_t b = 0; b < self->block_count; b++) {
        uint32_t holders = sched_pool_holder_count(self->pool, (sched_block_t){b});
        sched_holds(audit, self->check_holders[b] == holders);
    }
    uint32_t parked = self->free_slots.count + self->releasing.count;
    for (uint32_t i = 0; i < self->step_in_flight; i++) {
        parked += sched_step_at(self, i)->release_count;
    }
    sched_holds(audit, parked + used == self->slot_count);
}

void
sched_core_check(const sched_core_t *core)
{
    sched_audit_t audit = {0};
    /* The only thing written is the room kept for counting. */
    sched_core_audit((sched_core_t *)(uintptr_t)core, &audit);
    sched_audit_require(&audit);
}

/* ---- why is it waiting? ---------------------------------------------------------------------- */

static uint64_t
request_of(const sched_core_t *self, uint32_t slot)
{
    return slot == 0 ? 0 : self->slots[slot].request;
}

/* The request that has been running longest. */
static uint64_t
oldest_running(const sched_core_t *self)
{
    uint32_t found = 0;
    uint64_t arrival = UINT64_MAX;
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        uint32_t index = self->slots[slot].entry;
        if (index != SCHED_NONE && self->entries[index].arrival < arrival) {
            arrival = self->entries[index].arrival;
            found = slot;
        }
    }
    return request_of(self, found);
}

/* The request with the most blocks. */
static uint64_t
largest_holder(const sched_core_t *self, uint32_t except)
{
    uint32_t found = 0;
    uint32_t most = 0;
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        uint32_t count = 0;
        for (uint32_t g = 0; g < self->group_count; g++) {
            const sched_extent_t *extent = sched_extent(self, slot, g);
            count += extent->column_count - extent->expired_count;
        }
        if (slot != except && count > most) {
            most = count;
            found = slot;
        }
    }
    return request_of(self, found);
}

static void
set_why(sched_why_t *out, sched_wait_t resource, uint64_t holder)
{
    out->resource = resource;
    out->holder = holder;
}

static void
why_running(const sched_core_t *self, const sched_entry_t *entry, sched_why_t *out)
{
    const sched_slot_t *row = &self->slots[entry->slot];
    if (row->state == SCHED_STATE_RETRACTED) {
        bool first = self->retracted.items[0] == entry->slot;
        set_why(out, first ? SCHED_WAIT_BLOCKS : SCHED_WAIT_RETRACTED,
                first ? largest_holder(self, entry->slot)
                      : request_of(self, self->retracted.items[0]));
        out->needed = entry->needed;
        out->available = sched_pool_available(self->pool, 0);
    } else if (row->rows_in_flight > 0) {
        set_why(out, SCHED_WAIT_NOTHING, self->steps[self->step_first].step);
    } else if (row->planned + 1 > row->covered && row->place != SCHED_NONE) {
        set_why(out, SCHED_WAIT_BLOCKS, largest_holder(self, entry->slot));
        out->needed = 1;
        out->available = sched_pool_available(self->pool, 0);
    } else if (self->step_in_flight > 0) {
        set_why(out, SCHED_WAIT_STEP, self->steps[self->step_first].step);
    } else {
        set_why(out, SCHED_WAIT_TURN, 0);
    }
}

static void
why_queued(const sched_core_t *self, uint32_t index, sched_why_t *out)
{
    const sched_entry_t *entry = &self->entries[index];
    uint32_t head = sched_heap_first(&self->waiting);
    if (self->retracted.count > 0) {
        set_why(out, SCHED_WAIT_RETRACTED, request_of(self, self->retracted.items[0]));
    } else if (self->free_slots.count == 0) {
        set_why(out, SCHED_WAIT_SLOT, oldest_running(self));
        out->needed = 1;
    } else if (entry->tried_version != UINT64_MAX) {
        set_why(out, SCHED_WAIT_BLOCKS, largest_holder(self, 0));
        out->needed = entry->needed;
        out->available = sched_pool_available(self->pool, 0);
    } else if (head != index && self->entries[head].passed_count >= self->options.skip_count_max) {
        set_why(out, SCHED_WAIT_HEAD, self->entries[head].request);
    } else if (head != index) {
        set_why(out, SCHED_WAIT_TURN, self->entries[head].request);
    } else if (self->step_in_flight > 0) {
        set_why(out, SCHED_WAIT_STEP, self->steps[self->step_first].step);
    } else {
        set_why(out, SCHED_WAIT_TURN, 0);
    }
}

proto_status_t
sched_core_why(const sched_core_t *self, uint64_t now_ns, uint32_t owner, uint64_t request,
               sched_why_t *out)
{
    uint32_t index = sched_ids_find(&self->ids, owner, request);
    if (index == SCHED_IDS_UNKNOWN || index == SCHED_IDS_ENDED) {
        return STATUS_ERR_NOT_FOUND;
    }
    const sched_entry_t *entry = &self->entries[index];
    *out = (sched_why_t){
        .state = (sched_state_t)entry->state,
        .waited_ns = now_ns > entry->submit_ns ? now_ns - entry->submit_ns : 0,
    };
    if (!self->attached) {
        set_why(out, SCHED_WAIT_EXECUTOR, 0);
    } else if (entry->slot != 0) {
        why_running(self, entry, out);
    } else {
        why_queued(self, index, out);
    }
    return STATUS_OK;
}
