/* The second half of a restore: slots, their lists and tables, the steps in flight. */
#include <string.h>

#include "sched_save.h"

/* ---- slots ----------------------------------------------------------------------------------- */

/* The block numbers of a table; what they must be, the invariants say. */
static void
load_table(sched_core_t *self, uint32_t slot, uint32_t g, proto_unpack_t *in)
{
    const sched_group_t *group = &self->groups[g];
    sched_extent_t *extent = sched_extent(self, slot, g);
    uint32_t *table = sched_table(self, slot, g);
    extent->executor_count = proto_unpack_u32_max(in, group->columns_max);
    extent->expired_count = proto_unpack_u32_max(in, group->columns_max);
    extent->column_count = proto_unpack_u32_max(in, group->columns_max);
    if (!sched_expect(in, extent->expired_count <= extent->column_count)) {
        extent->expired_count = 0;
        extent->column_count = 0;
        return;
    }
    memset(table, 0, extent->expired_count * sizeof *table);
    proto_unpack_u32_array(in, table + extent->expired_count,
                           extent->column_count - extent->expired_count,
                           sched_pool_capacity(self->pool, g));
}

static void
load_slot(sched_core_t *self, uint32_t slot, proto_unpack_t *in)
{
    sched_slot_t *row = &self->slots[slot];
    sched_span_t *span = &self->spans[slot];
    uint32_t index = proto_unpack_u32_max(in, self->entry_count - 1);
    const sched_entry_t *entry = &self->entries[index];
    if (!sched_expect(in, entry->in_use && entry->slot == slot)) {
        return;
    }
    row->entry = index;
    row->owner = entry->owner;
    row->request = entry->request;
    row->state = entry->state;
    row->generation_max = entry->generation_max;
    row->computed = proto_unpack_u32(in);
    row->generated = proto_unpack_u32(in);
    row->flags = proto_unpack_u8(in);
    row->planned = row->computed;
    span->prompt_length = entry->prompt_length;
    span->cover_max = sched_cover_max(self, entry->prompt_length, entry->generation_max);
    span->prefill_end = proto_unpack_u32(in);
    span->page_published = proto_unpack_u32(in);
    span->lost = proto_unpack_u32(in);
    span->draft_hit = proto_unpack_u32_max(in, 1024);
    span->part_count = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    span->part_end = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    span->body_end = self->has_state ? proto_unpack_u32(in) : span->prefill_end;
    span->promote_at = self->has_state ? proto_unpack_u32(in) : 0;
    proto_bytes_t hashes = proto_unpack_bytes(in, (size_t)self->pages_max * PROTO_HASH_SIZE_BYTES);
    span->page_known = (uint32_t)(hashes.size_bytes / PROTO_HASH_SIZE_BYTES);
    if (hashes.size_bytes > 0) {
        memcpy(sched_hash(self, slot, 0), hashes.data, hashes.size_bytes);
    }
    uint64_t length = (uint64_t)entry->prompt_length + entry->generation_max;
    sched_expect(in, hashes.size_bytes % PROTO_HASH_SIZE_BYTES == 0 &&
                         length <= self->model_len_max &&
                         (row->flags & ~(SLOT_RETRACT | SLOT_REFUSED)) == 0);
    for (uint32_t g = 0; g < self->group_count; g++) {
        load_table(self, slot, g, in);
    }
}

/* Slots by number; those that no request has stand as when one has just left them. */
static void
load_running(sched_core_t *self, proto_unpack_t *in)
{
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        self->slots[slot] = (sched_slot_t){.serial = proto_unpack_u32(in),
                                           .entry = SCHED_NONE,
                                           .place = SCHED_NONE,
                                           .publish_at = UINT32_MAX,
                                           .expire_at = UINT32_MAX};
    }
    uint32_t count = proto_unpack_u32_max(in, self->slot_count);
    sched_expect(in, count == self->running_count);
    for (uint32_t n = 0, least = 1; n < count && !in->failed; n++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        if (sched_expect(in, slot >= least)) {
            load_slot(self, slot, in);
        }
        least = slot + 1;
    }
}

/* A list of slots that have a request, or of such that have none; each in one list at most. */
static void
load_list(sched_core_t *self, sched_list_t *list, bool in_use, proto_unpack_t *in)
{
    uint32_t count = proto_unpack_u32_max(in, self->slot_count);
    list->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        const sched_slot_t *row = &self->slots[slot];
        if (!sched_expect(in, slot != 0 && row->place == SCHED_NONE &&
                                  (row->entry != SCHED_NONE) == in_use)) {
            return;
        }
        sched_list_add(self, list, slot);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A row of a step in flight; a slot is in one of them at most.  One that still counts adds to what
 * its slot has planned. */
static bool
load_row(sched_core_t *self, bool is_extend, proto_unpack_t *in, sched_row_t *row)
{
    row->slot = proto_unpack_u32_max(in, self->slot_count);
    row->serial = proto_unpack_u32(in);
    row->length = proto_unpack_u32_max(in, self->step_tokens_max);
    row->samples = proto_unpack_u32_max(in, 1);
    bool is_width = row->length == self->width || row->length == 1;
    bool shaped = is_extend ? row->length > 0 : is_width && row->samples == 1;
    if (in->failed || row->slot == 0 || !shaped || self->leaving[row->slot] != 0) {
        return false;
    }
    self->leaving[row->slot] = 1; /* room that only a plan in work uses */
    sched_slot_t *slot = &self->slots[row->slot];
    if (slot->serial != row->serial) {
        /* Of an earlier life of the slot, never of a later one. */
        return (int32_t)(slot->serial - row->serial) > 0;
    }
    slot->planned += row->length;
    slot->rows_in_flight++;
    slot->samples_in_flight += row->samples;
    return slot->entry != SCHED_NONE;
}

static void
load_step(sched_core_t *self, uint64_t before, proto_unpack_t *in)
{
    sched_step_t *step = sched_step_at(self, self->step_in_flight++);
    step->step = proto_unpack_u64_max(in, self->step_last);
    step->planned_ns = proto_unpack_u64(in);
    step->release_count = proto_unpack_u32_max(in, self->slot_count);
    for (uint32_t i = 0; i < step->release_count; i++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        sched_slot_t *row = &self->slots[slot];
        if (!sched_expect(in, slot != 0 && row->entry == SCHED_NONE && row->place == SCHED_NONE)) {
            return;
        }
        step->releases[i] = slot;
        row->place = 0; /* it has its place: here */
    }
    step->extend_count = proto_unpack_u32_max(in, self->slot_count);
    step->row_count = proto_unpack_u32_max(in, self->slot_count);
    sched_expect(in, step->step > before && step->extend_count <= step->row_count);
    uint64_t tokens = 0;
    memset(self->leaving, 0, ((size_t)self->slot_count + 1) * sizeof *self->leaving);
    for (uint32_t r = 0; r < step->row_count && !in->failed; r++) {
        sched_row_t *row = &step->rows[r];
        sched_expect(in, load_row(self, r < step->extend_count, in, row));
        tokens += row->length;
    }
    sched_expect(in, tokens <= self->step_tokens_max);
    step->token_count = (uint32_t)tokens;
}

static void
load_steps(sched_core_t *self, proto_unpack_t *in)
{
    uint32_t count = proto_unpack_u32_max(in, self->step_count_max);
    uint64_t before = 0;
    for (uint32_t i = 0; i < count && !in->failed; i++) {
        load_step(self, before, in);
        before = sched_step_at(self, i)->step;
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* A slot whose request left is told of by its release, which empties the list. */
static void
load_holed(sched_core_t *self, proto_unpack_t *in)
{
    uint32_t count = proto_unpack_u32_max(in, self->slot_count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        sched_slot_t *row = &self->slots[slot];
        bool is_releasing =
            row->place < self->releasing.count && self->releasing.items[row->place] == slot;
        if (!sched_expect(in, slot != 0 && (row->flags & SLOT_HOLES) == 0 &&
                                  (row->entry != SCHED_NONE || is_releasing))) {
            return;
        }
        row->flags |= SLOT_HOLES;
        self->holed.items[self->holed.count++] = slot;
    }
    for (uint32_t i = 0; i < count; i++) {
        sched_slot_t *row = &self->slots[self->holed.items[i]];
        row->flags = row->entry != SCHED_NONE ? row->flags : 0;
    }
}

static void
load_dirty(sched_core_t *self, proto_unpack_t *in)
{
    self->dirty_count = proto_unpack_u32_max(in, self->dirty_max);
    for (uint32_t i = 0; i < self->dirty_count; i++) {
        sched_dirty_t *dirty = &self->dirty[i];
        dirty->slot = proto_unpack_u32_max(in, self->slot_count);
        dirty->serial = proto_unpack_u32(in);
        dirty->group = proto_unpack_u32_max(in, self->group_count - 1);
        dirty->column = proto_unpack_u32(in);
        const sched_slot_t *row = &self->slots[dirty->slot];
        bool is_live = dirty->serial == row->serial;
        uint32_t columns = is_live ? sched_extent(self, dirty->slot, dirty->group)->column_count
                                   : self->groups[dirty->group].columns_max;
        if (!sched_expect(in, dirty->slot != 0 && dirty->column < columns &&
                                  (is_live || (int32_t)(row->serial - dirty->serial) > 0))) {
            return;
        }
    }
}

/* What follows from what was read. */
static void
derive(sched_core_t *self)
{
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        sched_slot_t *row = &self->slots[slot];
        if (row->entry == SCHED_NONE) {
            continue;
        }
        sched_set_covered(self, slot);
        if (row->state != SCHED_STATE_RETRACTED) {
            sched_set_publish_at(self, slot);
            sched_set_expire_at(self, slot);
        }
    }
}

/* What the lists hold must be in the state of the list. */
static bool
lists_agree(const sched_core_t *self)
{
    const sched_list_t *lists[] = {&self->decoding, &self->prefilling, &self->retracted};
    for (uint32_t l = 0; l < 3; l++) {
        for (uint32_t i = 0; i < lists[l]->count; i++) {
            uint8_t state = self->slots[lists[l]->items[i]].state;
            bool decodes = state == SCHED_STATE_PREFILL_DONE || state == SCHED_STATE_DECODING;
            bool fits = l == 0   ? decodes
                        : l == 1 ? state == SCHED_STATE_PREFILLING
                                 : state == SCHED_STATE_RETRACTED;
            if (!fits) {
                return false;
            }
        }
    }
    return true;
}

void
sched_load_slots(sched_core_t *self, proto_unpack_t *in)
{
    self->free_slots.count = 0;
    load_running(self, in);
    load_list(self, &self->free_slots, false, in);
    load_list(self, &self->releasing, false, in);
    load_list(self, &self->decoding, true, in);
    load_list(self, &self->prefilling, true, in);
    load_list(self, &self->retracted, true, in);
    if (in->failed) {
        return;
    }
    load_steps(self, in);
    load_holed(self, in);
    load_dirty(self, in);
    sched_load_loans(self, in);
    derive(self);
    sched_expect(in, lists_agree(self));
}
