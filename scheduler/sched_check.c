/* Invariants of the whole core, and the answer to "why is it waiting?". */
#include <string.h>

#include "sched_internal.h"

/* ---- invariants ------------------------------------------------------------------------------ */

static void
check_table(sched_core_t *self, uint32_t slot)
{
    const sched_slot_t *row = &self->slots[slot];
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_group_t *group = &self->groups[g];
        const sched_extent_t *extent = sched_extent(self, slot, g);
        const uint32_t *table = sched_table(self, slot, g);
        require(extent->column_count <= group->columns_max);
        require(extent->expired_count <= extent->column_count);
        require(row->entry != SCHED_NONE || extent->column_count == 0);
        require(group->kind == 1 || extent->expired_count == 0);
        for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
            require(table[c] != 0);
            sched_block_t block = sched_block(self, g, table[c]);
            self->check_holders[block.index]++;
            /* Everything that may still be written belongs to this request alone. */
            if ((c + 1) * group->granularity > row->computed) {
                require(sched_pool_state(self->pool, block) == SCHED_BLOCK_OWNED);
            }
        }
        if (row->entry != SCHED_NONE) {
            require((uint64_t)extent->column_count * group->granularity >= row->covered);
        }
    }
}

static void
check_slot(const sched_core_t *self, uint32_t slot)
{
    const sched_slot_t *row = &self->slots[slot];
    const sched_entry_t *entry = &self->entries[row->entry];
    require(entry->in_use && entry->slot == slot);
    require(entry->state == row->state);
    require(entry->request == row->request);
    require(row->generated < row->generation_max);
    require(self->width > 1 || row->generated + row->samples_in_flight <= row->generation_max);
    require(row->computed <= row->planned || (row->flags & SLOT_RETRACT) != 0);
    require(row->planned <= row->covered || (row->flags & SLOT_RETRACT) != 0);
    require(row->rows_in_flight <= self->step_count_max);
    if ((row->flags & SLOT_RETRACT) != 0) {
        require(row->rows_in_flight > 0);
        return;
    }
    require(row->state != SCHED_STATE_SUBMITTED);
    require(row->state < SCHED_STATE_FINISHED);
    switch ((sched_state_t)row->state) {
    case SCHED_STATE_RETRACTED:
        require(row->computed == 0 && row->covered == 0 && row->rows_in_flight == 0);
        require(self->retracted.items[row->place] == slot);
        break;
    case SCHED_STATE_PREFILLING:
        require(row->planned < self->spans[slot].prefill_end);
        require(self->prefilling.items[row->place] == slot);
        break;
    case SCHED_STATE_PREFILL_DONE:
    case SCHED_STATE_DECODING:
        require(row->planned >= self->spans[slot].prefill_end);
        require(row->place == SCHED_NONE || self->decoding.items[row->place] == slot);
        require(row->place != SCHED_NONE ||
                row->generated + row->samples_in_flight == row->generation_max);
        require(self->width > 1 ||
                row->planned == entry->prompt_length + row->generated + row->samples_in_flight - 1);
        break;
    case SCHED_STATE_SUBMITTED:
    case SCHED_STATE_FINISHED:
    case SCHED_STATE_COUNT:
        break;
    }
}

static void
check_entries(const sched_core_t *self)
{
    uint32_t queued = 0;
    uint32_t running = 0;
    for (uint32_t i = 0; i < self->entry_count; i++) {
        const sched_entry_t *entry = &self->entries[i];
        if (!entry->in_use || entry->state == SCHED_STATE_FINISHED) {
            require(!sched_heap_has(&self->waiting, i));
            require(!sched_heap_has(&self->deadlines, i));
            continue;
        }
        require(sched_ids_find(&self->ids, entry->owner, entry->request) == i);
        bool is_queued = entry->state == SCHED_STATE_SUBMITTED;
        require(is_queued == (entry->slot == 0));
        require(sched_heap_has(&self->waiting, i) == is_queued);
        require(sched_heap_has(&self->deadlines, i) == is_queued);
        queued += is_queued ? 1 : 0;
        running += is_queued ? 0 : 1;
    }
    require(queued == self->waiting.count);
    require(running == self->running_count);
    sched_heap_check(&self->waiting);
    sched_heap_check(&self->deadlines);
}

void
sched_core_check(const sched_core_t *core)
{
    /* The only thing written is the room kept for counting. */
    sched_core_t *self = (sched_core_t *)(uintptr_t)core;
    check_entries(self);
    if (!self->attached) {
        require(self->running_count == 0);
        return;
    }
    sched_pool_check(self->pool);
    memset(self->check_holders, 0, self->block_count * sizeof *self->check_holders);
    uint32_t used = 0;
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        check_table(self, slot);
        if (self->slots[slot].entry != SCHED_NONE) {
            check_slot(self, slot);
            used++;
        }
    }
    require(used == self->running_count);
    for (uint32_t b = 0; b < self->block_count; b++) {
        require(self->check_holders[b] == sched_pool_holder_count(self->pool, (sched_block_t){b}));
    }
    uint32_t parked = self->free_slots.count + self->releasing.count;
    for (uint32_t i = 0; i < self->step_in_flight; i++) {
        parked += sched_step_at(self, i)->release_count;
    }
    require(parked + used == self->slot_count);
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
