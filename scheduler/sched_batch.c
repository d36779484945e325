/* NextPlan: which rows run next, and the patch that takes the executor's tables there. */
#include <string.h>

#include "sched_internal.h"

enum { RETRACTION_RUN_MAX = 16 };

static bool
has_budget(const sched_core_t *self)
{
    return self->plan.token_count < self->step_tokens_max &&
           self->plan.extend_count + self->plan.decode_count < self->slot_count;
}

/* ---- decode rows ----------------------------------------------------------------------------- */

/* Adds decode rows up to `tokens_max` tokens of the batch.  A row that finds no block waits. */
static void
add_decodes(sched_core_t *self, uint32_t tokens_max)
{
    sched_builder_t *plan = &self->plan;
    const sched_list_t *list = &self->decoding;
    uint32_t width = plan->width;
    uint32_t leaving_count = 0;
    uint32_t taken = 0;
    /* When not all fit, everyone gets a turn. */
    bool rotates = (uint64_t)list->count * width > tokens_max;
    uint32_t at = rotates && self->decode_cursor < list->count ? self->decode_cursor : 0;
    for (uint32_t k = 0; k < list->count && plan->token_count + width <= tokens_max; k++) {
        uint32_t slot = list->items[at];
        at = at + 1 < list->count ? at + 1 : 0;
        sched_slot_t *row = &self->slots[slot];
        if (self->width > 1 && row->generated + row->samples_in_flight >= row->generation_max) {
            self->leaving[leaving_count++] = slot; /* a wide row gave more than one token */
            continue;
        }
        if (row->planned + width > row->covered) {
            uint32_t needed = row->planned + width;
            uint32_t most = self->spans[slot].cover_max;
            needed = needed < most ? needed : most;
            if (needed > row->covered && sched_grow(self, slot, needed) != STATUS_OK) {
                self->growth_failed = true;
                continue;
            }
        }
        if (row->state != SCHED_STATE_DECODING) {
            sched_move(self, row->entry, SCHED_MOVE_DECODE);
        }
        row->planned += width;
        row->rows_in_flight++;
        row->samples_in_flight++;
        plan->decode_slots[plan->decode_count++] = slot;
        plan->token_count += width;
        taken++;
        if (row->generated + row->samples_in_flight >= row->generation_max) {
            self->leaving[leaving_count++] = slot;
        }
    }
    self->decode_cursor = rotates ? at : 0;
    for (uint32_t i = 0; i < leaving_count; i++) {
        sched_list_swap_remove(self, &self->decoding, self->leaving[i]);
#if ONEPATH_MUTANT == 1
        sched_drop_blocks(self, self->leaving[i]);
#endif
    }
    sched_fold(self, (uint64_t)taken << 32 | leaving_count);
}

/* ---- extend rows ----------------------------------------------------------------------------- */

/* Adds the next chunk of a request.  False if it found no block.  *incomplete: more is left. */
static bool
add_chunk(sched_core_t *self, uint32_t slot, bool *incomplete)
{
    sched_builder_t *plan = &self->plan;
    sched_slot_t *row = &self->slots[slot];
    const sched_span_t *span = &self->spans[slot];
    uint32_t budget = self->step_tokens_max - plan->token_count;
#if ONEPATH_MUTANT == 9
    budget -= budget > 1 ? 1 : 0;
#endif
    uint32_t end = sched_chunk_end(self, span, row->planned, budget);
    /* Only groups with a window grow here; when they are short, a smaller chunk may do. */
    while (end > row->planned && end > row->covered &&
           sched_grow_chunk(self, slot, end) != STATUS_OK) {
        self->growth_failed = true;
        end = sched_chunk_end(self, span, row->planned, (end - row->planned) / 2);
    }
    if (end <= row->planned) {
        *incomplete = true;
        return false;
    }
    uint32_t length = end - row->planned;
    bool last = end == span->prefill_end;
    bool stops = end == span->body_end || end == span->promote_at; /* by itself, for a state */
    uint32_t at = plan->extend_count++;
    plan->extend_slots[at] = slot;
    plan->extend_begins[at] = row->planned;
    plan->extend_lengths[at] = length;
    plan->extend_samples[at] = last ? 1 : 0;
    plan->token_count += length;
    row->planned += length;
    row->rows_in_flight++;
    bool listed = row->place != SCHED_NONE; /* it was prefilling before this plan */
    if (last && listed) {
        sched_list_remove(self, &self->prefilling, slot);
    }
    sched_move(self, row->entry, last ? SCHED_MOVE_PREFILL_LAST : SCHED_MOVE_PREFILL);
    if (last) {
        row->samples_in_flight++;
        if (row->generated + row->samples_in_flight < row->generation_max) {
            sched_list_add(self, &self->decoding, slot);
        }
    } else if (!listed) {
        sched_list_add(self, &self->prefilling, slot);
    }
    *incomplete = !last && !stops;
    return true;
}

static void
take_slot(sched_core_t *self, uint32_t index, uint32_t slot, uint64_t now_ns)
{
    sched_entry_t *entry = &self->entries[index];
    sched_slot_t *row = &self->slots[slot];
    self->free_slots.count--;
    self->running_count++;
    sched_leave_queue(self, index);
    entry->slot = slot;
    entry->admitted = true;
    entry->queue_ns = now_ns > entry->submit_ns ? now_ns - entry->submit_ns : 0;
    row->state = entry->state;
    row->entry = index;
    row->place = SCHED_NONE;
    row->owner = entry->owner;
    row->request = entry->request;
    row->generation_max = entry->generation_max;
    self->admissions[self->admission_count++] = (sched_admission_t){
        .request = entry->request,
        .owner = entry->owner,
        .tag = entry->tag,
        .slot = slot,
        .prompt_length = entry->prompt_length,
        .length_max = entry->prompt_length + entry->generation_max,
        .computed = entry->is_activated ? entry->prompt_length - 1 : 0,
    };
}

/* What was activated decodes at once: it has its blocks, and needs a slot and room in the plan. */
static void
add_activated(sched_core_t *self, uint64_t now_ns)
{
    while (self->free_slots.count > 0 && self->admission_count < SCHED_PLAN_ADMISSIONS_MAX) {
        uint32_t index = sched_heap_first(&self->waiting);
        if (index == SCHED_NONE || !self->entries[index].is_activated ||
            !sched_has_room(self, 2 * self->group_count, self->table_stride)) {
            return;
        }
        uint32_t slot = self->free_slots.items[self->free_slots.count - 1];
        sched_adopt(self, &self->entries[index], slot);
        take_slot(self, index, slot, now_ns);
        bool patched = sched_patch_table(self, slot);
        require(patched);
        sched_move(self, index, SCHED_MOVE_PREFILL_LAST);
        sched_list_add(self, &self->decoding, slot);
        if (self->slots[slot].computed >= self->slots[slot].publish_at) {
            sched_publish(self, slot);
        }
        if (self->slots[slot].computed >= self->slots[slot].expire_at) {
            sched_expire(self, slot);
        }
        sched_fold(self, (uint64_t)slot << 32 | self->slots[slot].computed);
    }
}

/* Retracted requests go first; false if one of them is still without blocks. */
static bool
add_retracted(sched_core_t *self, bool *incomplete)
{
    while (self->retracted.count > 0 && !*incomplete && has_budget(self)) {
        uint32_t slot = self->retracted.items[0];
        if (sched_admit(self, self->slots[slot].entry, slot) != STATUS_OK) {
            return false; /* or this plan has no tokens left for it */
        }
        sched_list_remove(self, &self->retracted, slot);
        bool added = add_chunk(self, slot, incomplete);
        require(added);
    }
    return self->retracted.count == 0;
}

/* Admits waiting requests.  A head that does not fit may be passed, but not for ever. */
static void
add_waiting(sched_core_t *self, uint64_t now_ns)
{
    uint32_t blocked[SCHED_SCAN_MAX];
    uint32_t blocked_count = 0;
    uint64_t prompt_tokens = 0;
    bool incomplete = false;
    while (!incomplete && has_budget(self) && self->free_slots.count > 0 &&
           self->admission_count < SCHED_PLAN_ADMISSIONS_MAX && blocked_count < SCHED_SCAN_MAX) {
        uint32_t index = sched_heap_first(&self->waiting);
        if (index == SCHED_NONE || self->entries[index].is_activated) {
            break; /* nothing passes what has its blocks and waits for room in a plan */
        }
        sched_entry_t *entry = &self->entries[index];
        prompt_tokens += entry->prompt_length;
        if (self->admission_count > 0 && prompt_tokens > SCHED_PLAN_ADMIT_TOKENS_MAX) {
            break;
        }
        uint32_t slot = self->free_slots.items[self->free_slots.count - 1];
        proto_status_t status = sched_admit(self, index, slot);
        if (status == STATUS_AGAIN) {
            break; /* it is its turn, in the next plan */
        }
        if (status != STATUS_OK) {
            if (entry->passed_count >= self->options.skip_count_max) {
                break; /* it has waited its share: nothing passes it any more */
            }
            sched_heap_remove(&self->waiting, index);
            blocked[blocked_count++] = index;
            continue;
        }
        take_slot(self, index, slot, now_ns);
        bool added = add_chunk(self, slot, &incomplete);
        require(added);
        for (uint32_t i = 0; i < blocked_count; i++) {
            self->entries[blocked[i]].passed_count++;
        }
    }
    for (uint32_t i = 0; i < blocked_count; i++) {
        const sched_entry_t *entry = &self->entries[blocked[i]];
        sched_heap_push(&self->waiting, blocked[i], sched_queue_key(entry));
    }
}

static void
add_extends(sched_core_t *self, uint64_t now_ns)
{
    bool incomplete = false;
    for (uint32_t i = 0; i < self->prefilling.count && has_budget(self);) {
        uint32_t count = self->prefilling.count;
        bool added = add_chunk(self, self->prefilling.items[i], &incomplete);
        if (added && incomplete) {
            return; /* one incomplete prefill in a batch */
        }
        i += self->prefilling.count == count ? 1 : 0;
    }
    if (self->growth_failed || self->only_running || incomplete) {
        return; /* what runs comes before what waits */
    }
    if (add_retracted(self, &incomplete) && !incomplete) {
        add_waiting(self, now_ns);
    }
}

static void
add_rows(sched_core_t *self, uint64_t now_ns)
{
    bool prefills = self->prefilling.count + self->retracted.count + self->waiting.count > 0;
    if (self->options.separate_batches || (prefills && sched_prefill_turn(self))) {
        add_extends(self, now_ns);
        if (self->plan.extend_count == 0) {
            add_decodes(self, self->step_tokens_max);
        }
        return;
    }
    /* Decoding goes first for latency, but leaves a share so that prefills never starve. */
    add_decodes(self, sched_decode_share(self, prefills));
    add_extends(self, now_ns);
}

/* ---- the plan's columns ---------------------------------------------------------------------- */

static void
put_zeros(sched_core_t *self, uint32_t slot, uint32_t group, uint32_t begin, uint32_t end)
{
    sched_builder_t *plan = &self->plan;
    uint32_t patch = plan->patch_count++;
    plan->patch_slots[patch] = slot;
    plan->patch_groups[patch] = (uint8_t)group;
    plan->patch_columns[patch] = begin;
    plan->patch_counts[patch] = end - begin;
    memset(plan->patch_blocks + plan->block_count, 0, (end - begin) * sizeof *plan->patch_blocks);
    plan->block_count += end - begin;
}

/* Columns of retracted tables that nothing took the place of.  False if they do not fit. */
static bool
put_holes(sched_core_t *self)
{
    sched_builder_t *plan = &self->plan;
    for (uint32_t i = 0; i < self->holed.count; i++) {
        uint32_t slot = self->holed.items[i];
        if (self->slots[slot].entry == SCHED_NONE) {
            continue; /* it ended: its release empties the table */
        }
        for (uint32_t g = 0; g < self->group_count; g++) {
            sched_extent_t *extent = sched_extent(self, slot, g);
            uint32_t begin = extent->column_count;
            uint32_t end = extent->executor_count;
            if (end <= begin) {
                continue;
            }
            if (plan->patch_count == plan->patch_max ||
                plan->block_max - plan->block_count < end - begin) {
                return false;
            }
            put_zeros(self, slot, g, begin, end);
            extent->executor_count = begin;
        }
    }
    return true;
}

/* Columns that results changed: canonical blocks, expired windows. */
static bool
put_dirty(sched_core_t *self)
{
    sched_builder_t *plan = &self->plan;
    for (uint32_t i = 0; i < self->dirty_count; i++) {
        const sched_dirty_t *dirty = &self->dirty[i];
        if (self->slots[dirty->slot].serial != dirty->serial) {
            continue;
        }
        if (plan->patch_count == plan->patch_max || plan->block_count == plan->block_max) {
            return false;
        }
        uint32_t patch = plan->patch_count++;
        plan->patch_slots[patch] = dirty->slot;
        plan->patch_groups[patch] = (uint8_t)dirty->group;
        plan->patch_columns[patch] = dirty->column;
        plan->patch_counts[patch] = 1;
        plan->patch_blocks[plan->block_count++] =
            sched_table(self, dirty->slot, dirty->group)[dirty->column];
    }
    return true;
}

/* A full plan carries every table as it is now. */
static void
put_tables(sched_core_t *self)
{
    sched_builder_t *plan = &self->plan;
    plan->patch_count = 0;
    plan->block_count = 0;
    plan->full = false; /* so that patches are written */
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        for (uint32_t g = 0; g < self->group_count; g++) {
            sched_extent_t *extent = sched_extent(self, slot, g);
            extent->executor_count = 0;
            if (extent->column_count > extent->expired_count) {
                bool patched =
                    sched_patch(self, slot, g, extent->expired_count, extent->column_count);
                require(patched);
            }
        }
    }
    plan->full = true;
}

static void
put_patches(sched_core_t *self)
{
    sched_builder_t *plan = &self->plan;
    if (!plan->full && (!put_dirty(self) || !put_holes(self))) {
        plan->full = true; /* it does not fit as a patch: send everything */
    }
    if (plan->full) {
        put_tables(self);
    }
    for (uint32_t i = 0; i < self->holed.count; i++) {
        self->slots[self->holed.items[i]].flags &= (uint8_t)~SLOT_HOLES;
    }
    self->holed.count = 0;
    self->dirty_count = 0;
}

static void
record_step(sched_core_t *self, uint64_t now_ns)
{
    const sched_builder_t *plan = &self->plan;
    sched_step_t *step = sched_step_at(self, self->step_in_flight);
    self->step_in_flight++;
    step->step = ++self->step_last;
    step->planned_ns = now_ns;
    step->extend_count = plan->extend_count;
    step->row_count = plan->extend_count + plan->decode_count;
    step->token_count = plan->token_count;
    step->release_count = self->releasing.count;
    sched_row_t *out = step->rows;
    for (uint32_t i = 0; i < plan->extend_count; i++) {
        uint32_t slot = plan->extend_slots[i];
        *out++ = (sched_row_t){.slot = slot,
                               .serial = self->slots[slot].serial,
                               .length = plan->extend_lengths[i],
                               .samples = plan->extend_samples[i]};
    }
    for (uint32_t i = 0; i < plan->decode_count; i++) {
        uint32_t slot = plan->decode_slots[i];
        *out++ = (sched_row_t){.slot = slot,
                               .serial = self->slots[slot].serial,
                               .length = self->plan.width,
                               .samples = 1};
    }
    memcpy(step->releases, self->releasing.items, self->releasing.count * sizeof *step->releases);
    memcpy(self->plan.release_slots, self->releasing.items,
           self->releasing.count * sizeof *step->releases);
    self->releasing.count = 0;
}

static void
fill(const sched_core_t *self, const sched_step_t *step, uint64_t base_step, proto_plan_t *out)
{
    const sched_builder_t *plan = &self->plan;
    uint32_t patches = plan->patch_count;
    uint32_t extends = plan->extend_count;
    *out = (proto_plan_t){
        .step = step->step,
        .base_step = base_step,
        .width = plan->width,
        .release_slots = {plan->release_slots, step->release_count},
        .patch_slots = {plan->patch_slots, patches},
        .patch_groups = {plan->patch_groups, patches},
        .patch_columns = {plan->patch_columns, patches},
        .patch_counts = {plan->patch_counts, patches},
        .patch_blocks = {plan->patch_blocks, plan->block_count},
        .clear_groups = {plan->clear_groups, plan->clear_count},
        .clear_blocks = {plan->clear_blocks, plan->clear_count},
        .extend_slots = {plan->extend_slots, extends},
        .extend_begins = {plan->extend_begins, extends},
        .extend_lengths = {plan->extend_lengths, extends},
        .extend_samples = {plan->extend_samples, extends},
        .decode_slots = {plan->decode_slots, plan->decode_count},
    };
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Keeps a full plan within its size: live tables are counted before anything is added. */
static void
begin(sched_core_t *self)
{
    sched_builder_t *plan = &self->plan;
    plan->patch_count = 0;
    plan->block_count = 0;
    plan->clear_count = 0;
    plan->extend_count = 0;
    plan->decode_count = 0;
    plan->token_count = 0;
    plan->width = sched_width_choose(self);
    plan->full = self->step_base == 0 || self->options.full_plans;
    self->growth_failed = false;
    self->admission_count = 0;
    self->admission_at = 0;
    self->part_at = 0;
    if (!plan->full) {
        return;
    }
    for (;;) {
        uint64_t blocks = 0;
        for (uint32_t i = self->group_count; i < (self->slot_count + 1) * self->group_count; i++) {
            blocks += self->extents[i].column_count;
        }
        if (blocks + self->table_stride <= plan->block_max) {
            plan->block_count = (uint32_t)blocks;
            return;
        }
        if (!sched_retract_victim(self)) {
            plan->block_count = plan->block_max; /* rows in flight hold it: wait for them */
            return;
        }
    }
}

/* Nothing runs, something waits, nothing can be planned: after a while that is a fault, and the
 * one in front gives way. */
static void
count_stall(sched_core_t *self, uint64_t now_ns)
{
    if (self->tick_ns != UINT64_MAX && now_ns < self->tick_ns) {
        return;
    }
    self->tick_ns = now_ns + SCHED_TICK_NS;
    self->stall_ticks++;
    if (self->stall_ticks < self->options.stall_ticks_max) {
        return;
    }
    self->stall_ticks = 0;
    self->figures.stalls++;
    uint32_t front = SCHED_NONE;
    if (self->retracted.count > 0) {
        front = self->slots[self->retracted.items[0]].entry;
    } else if (self->prefilling.count > 0) {
        front = self->slots[self->prefilling.items[0]].entry;
    } else if (self->decoding.count > 0) {
        front = self->slots[self->decoding.items[0]].entry;
    } else {
        front = sched_heap_first(&self->waiting);
    }
    if (front != SCHED_NONE) {
        sched_end(self, front, PROTO_FINISH_ERROR, STATUS_ERR_INTERNAL, "stalled");
    }
}

/* Takes the blocks of a victim.  Retractions that never lead to a token would go on for ever: then
 * the victim ends. */
static bool
make_room(sched_core_t *self)
{
    if (!sched_retract_victim(self)) {
        return false;
    }
    if (++self->retraction_run > 4 * self->slot_count + RETRACTION_RUN_MAX) {
        self->retraction_run = 0;
        self->figures.stalls++;
        uint32_t victim = self->retracted.items[self->retracted.count - 1];
        sched_end(self, self->slots[victim].entry, PROTO_FINISH_ERROR, STATUS_ERR_INTERNAL,
                  "stalled");
    }
    return true;
}

static bool
has_work(const sched_core_t *self)
{
    return self->decoding.count + self->prefilling.count + self->retracted.count +
               self->waiting.count >
           0;
}

proto_status_t
sched_core_next_plan(sched_core_t *self, uint64_t now_ns, proto_plan_t *out)
{
    require(out != NULL);
    if (!self->attached || self->step_in_flight >= self->step_count_max) {
        return STATUS_AGAIN;
    }
    require(self->admission_at == self->admission_count);
    begin(self);
    add_activated(self, now_ns);
    sched_serve_reservations(self);
    add_rows(self, now_ns);
    uint32_t row_count = self->plan.extend_count + self->plan.decode_count;
    while (row_count == 0 && self->step_in_flight == 0 && self->growth_failed) {
        if (!make_room(self)) {
            break;
        }
        self->growth_failed = false;
        self->only_running = self->decoding.count + self->prefilling.count > 0;
        add_rows(self, now_ns);
        self->only_running = false;
        row_count = self->plan.extend_count + self->plan.decode_count;
    }
    bool releases_only = row_count == 0 && self->releasing.count > 0 && self->step_in_flight == 0;
    bool carries = self->admission_count > 0 || self->plan.clear_count > 0; /* without rows */
    if (row_count == 0 && !releases_only && !carries) {
        sched_note_reservations(self);
        if (self->step_in_flight == 0 && has_work(self)) {
            count_stall(self, now_ns);
        } else {
            self->tick_ns = UINT64_MAX;
        }
        return STATUS_AGAIN;
    }
    self->stall_ticks = row_count > 0 ? 0 : self->stall_ticks;
    self->tick_ns = UINT64_MAX;
    put_patches(self);
    uint64_t base_step = self->plan.full ? 0 : self->step_base;
    self->figures.full_plans += self->plan.full ? 1 : 0;
    self->figures.steps++;
    record_step(self, now_ns);
    sched_note_reservations(self);
    const sched_step_t *step = sched_step_at(self, self->step_in_flight - 1);
    self->step_base = step->step;
    fill(self, step, base_step, out);
    sched_fold(self, step->step);
    sched_fold(self, step->row_count);
    sched_fold(self, (uint64_t)self->plan.token_count << 32 | self->plan.block_count);
    return STATUS_OK;
}
