/* The core as canonical bytes; sched_restore.c reads them in the same order.  What follows from
 * other figures (places in lists, what is planned and in flight, when a page is complete) is not
 * written, so it cannot be wrong. */
#include <string.h>

#include "sched_save.h"

static void
save_options(const sched_core_options_t *options, proto_pack_t *out)
{
    proto_pack_u32(out, options->slot_count_max);
    proto_pack_u32(out, options->queue_len_max);
    proto_pack_u32(out, options->overlap_depth_max);
    proto_pack_bool(out, options->separate_batches);
    proto_pack_bool(out, options->no_prefix_cache);
    proto_pack_bool(out, options->full_plans);
    proto_pack_bool(out, options->clear_blocks);
    proto_pack_u32(out, options->skip_count_max);
    proto_pack_u32(out, options->refusal_count_max);
    proto_pack_u32(out, options->stall_ticks_max);
    proto_pack_u64(out, options->queue_timeout_ns);
    proto_pack_u32(out, options->loan_count_max);
}

static void
save_figures(const sched_core_t *self, proto_pack_t *out)
{
    const sched_figures_t *figures = &self->figures;
    const uint64_t values[SCHED_SAVED_FIGURES] = {
        figures->prefix_queries,      figures->prefix_hits,
        figures->retractions,         figures->steps,
        figures->recomputed_tokens,   figures->full_plans,
        figures->plans_refused,       figures->stalls,
        figures->zombie_rows,         figures->late_events,
        figures->swapped_blocks,      figures->graph_steps,
        figures->eager_steps,         figures->prompt_tokens,
        figures->generation_tokens,   figures->above_ladder_steps,
        figures->prefill_graph_steps, figures->prefill_eager_steps,
        figures->wide_steps,          figures->drafts_proposed,
        figures->drafts_accepted,     figures->drafts_missing,
        figures->drafts_ignored,
    };
    proto_pack_u64_array(out, values, SCHED_SAVED_FIGURES);
    proto_pack_u64(out, self->arrival_count);
    proto_pack_u64(out, self->step_last);
    proto_pack_u64(out, self->end_count);
    proto_pack_u64(out, self->extend_token_ns);
    proto_pack_u64(out, self->decode_step_ns);
    proto_pack_u64(out, self->digest);
    proto_pack_u32(out, self->retraction_run);
    proto_pack_u32(out, self->decode_cursor);
    proto_pack_bool(out, self->draining);
    proto_pack_bool(out, self->attached);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void
save_entry(const sched_entry_t *entry, proto_pack_t *out)
{
    proto_pack_u64(out, entry->request);
    proto_pack_u64(out, entry->tag);
    proto_pack_u64(out, entry->arrival);
    proto_pack_u64(out, entry->submit_ns);
    proto_pack_u64(out, entry->deadline_ns);
    proto_pack_u64(out, entry->queue_ns);
    proto_pack_u32(out, entry->suspects);
    proto_pack_u64(out, entry->transfer);
    proto_pack_bool(out, entry->is_activated);
    proto_pack_u64(out, entry->tried_version);
    proto_pack_u64(out, entry->needed);
    proto_pack_u64(out, entry->limit);
    proto_pack_i64(out, entry->priority);
    proto_pack_u32(out, entry->owner);
    proto_pack_u32(out, entry->prompt_length);
    proto_pack_u32(out, entry->generation_max);
    proto_pack_u32(out, entry->emitted);
    proto_pack_u32(out, entry->page_count);
    proto_pack_u32(out, entry->slot);
    proto_pack_u32(out, entry->cached_count);
    proto_pack_u32(out, entry->generated_count);
    proto_pack_u32(out, entry->passed_count);
    proto_pack_u32(out, entry->refusal_count);
    proto_pack_u32(out, entry->retry_after_ms);
    proto_pack_i64(out, entry->status);
    proto_pack_bytes(out, entry->code, strlen(entry->code));
    proto_pack_u8(out, entry->reason);
    proto_pack_u8(out, entry->state);
    proto_pack_bool(out, entry->admitted);
}

/* Entries from `at` on that follow each other by number in a list. */
static uint32_t
entry_run(const sched_core_t *self, uint32_t at)
{
    uint32_t count = 1;
    while (self->entries[at].next == at + 1) {
        at++;
        count++;
    }
    return count;
}

/* A list of entries as runs: the free one is long, and mostly in order. */
static void
save_entry_list(const sched_core_t *self, uint32_t head, proto_pack_t *out)
{
    uint32_t runs = 0;
    for (uint32_t at = head; at != SCHED_NONE; runs++) {
        at = self->entries[at + entry_run(self, at) - 1].next;
    }
    proto_pack_u32(out, runs);
    for (uint32_t at = head; at != SCHED_NONE;) {
        uint32_t count = entry_run(self, at);
        proto_pack_u32(out, at);
        proto_pack_u32(out, count);
        at = self->entries[at + count - 1].next;
    }
}

static void
save_entries(const sched_core_t *self, proto_pack_t *out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->entry_count; i++) {
        count += self->entries[i].in_use ? 1 : 0;
    }
    proto_pack_u32(out, count);
    for (uint32_t i = 0; i < self->entry_count; i++) {
        if (self->entries[i].in_use) {
            proto_pack_u32(out, i);
            save_entry(&self->entries[i], out);
        }
    }
    save_entry_list(self, self->entry_free, out);
    save_entry_list(self, self->finished_head, out);
    sched_ids_save(&self->ids, out);
}

/* ---- the executor ---------------------------------------------------------------------------- */

static void
save_shape(const sched_core_t *self, proto_pack_t *out)
{
    proto_pack_u32(out, self->slot_count);
    proto_pack_u32(out, self->step_tokens_max);
    proto_pack_u32(out, self->width);
    proto_pack_u32(out, self->step_count_max);
    proto_pack_u32(out, self->page_tokens);
    proto_pack_u32(out, self->model_len_max);
    proto_pack_u32(out, self->parent_count);
    proto_pack_u32(out, self->group_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_group_t *group = &self->groups[g];
        proto_pack_u32(out, group->kind);
        proto_pack_u32(out, group->granularity);
        proto_pack_u32(out, group->window);
        proto_pack_u32(out, group->packing);
    }
}

static void
save_list(const sched_list_t *list, proto_pack_t *out)
{
    proto_pack_u32(out, list->count);
    proto_pack_u32_array(out, list->items, list->count);
}

static void
save_step(const sched_step_t *step, proto_pack_t *out)
{
    proto_pack_u64(out, step->step);
    proto_pack_u64(out, step->planned_ns);
    proto_pack_u32(out, step->release_count);
    proto_pack_u32_array(out, step->releases, step->release_count);
    proto_pack_u32(out, step->extend_count);
    proto_pack_u32(out, step->row_count);
    for (uint32_t r = 0; r < step->row_count; r++) {
        const sched_row_t *row = &step->rows[r];
        proto_pack_u32(out, row->slot);
        proto_pack_u32(out, row->serial);
        proto_pack_u32(out, row->length);
        proto_pack_u32(out, row->samples);
    }
}

static void
save_slot(const sched_core_t *self, uint32_t slot, proto_pack_t *out)
{
    const sched_slot_t *row = &self->slots[slot];
    const sched_span_t *span = &self->spans[slot];
    proto_pack_u32(out, slot);
    proto_pack_u32(out, row->entry);
    proto_pack_u32(out, row->computed);
    proto_pack_u32(out, row->generated);
    proto_pack_u8(out, (uint8_t)(row->flags & (SLOT_RETRACT | SLOT_REFUSED)));
    proto_pack_u32(out, span->prefill_end);
    proto_pack_u32(out, span->page_published);
    proto_pack_u32(out, span->lost);
    proto_pack_u32(out, span->draft_hit);
    proto_pack_u32(out, span->part_count);
    proto_pack_u32(out, span->part_end);
    if (self->has_state) { /* else they follow from the rest: the end, and nowhere */
        proto_pack_u32(out, span->body_end);
        proto_pack_u32(out, span->promote_at);
    }
    proto_pack_bytes(out, sched_hash(self, slot, 0),
                     (size_t)span->page_known * PROTO_HASH_SIZE_BYTES);
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_extent_t *extent = sched_extent(self, slot, g);
        proto_pack_u32(out, extent->executor_count);
        proto_pack_u32(out, extent->expired_count);
        proto_pack_u32(out, extent->column_count);
        proto_pack_u32_array(out, sched_table(self, slot, g) + extent->expired_count,
                             extent->column_count - extent->expired_count);
    }
}

static void
save_slots(const sched_core_t *self, proto_pack_t *out)
{
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        proto_pack_u32(out, self->slots[slot].serial);
    }
    proto_pack_u32(out, self->running_count);
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        if (self->slots[slot].entry != SCHED_NONE) {
            save_slot(self, slot, out);
        }
    }
    save_list(&self->free_slots, out);
    save_list(&self->releasing, out);
    save_list(&self->decoding, out);
    save_list(&self->prefilling, out);
    save_list(&self->retracted, out);
    proto_pack_u32(out, self->step_in_flight);
    for (uint32_t i = 0; i < self->step_in_flight; i++) {
        save_step(sched_step_at(self, i), out);
    }
    save_list(&self->holed, out);
    proto_pack_u32(out, self->dirty_count);
    for (uint32_t i = 0; i < self->dirty_count; i++) {
        proto_pack_u32(out, self->dirty[i].slot);
        proto_pack_u32(out, self->dirty[i].serial);
        proto_pack_u32(out, self->dirty[i].group);
        proto_pack_u32(out, self->dirty[i].column);
    }
    sched_save_loans(self, out);
}

void
sched_core_save(const sched_core_t *self, proto_pack_t *out)
{
    require(self->admission_at == self->admission_count);
    proto_pack_u32(out, SCHED_SAVE_VERSION);
    save_options(&self->options, out);
    save_figures(self, out);
    save_entries(self, out);
    if (!self->attached) {
        return;
    }
    save_shape(self, out);
    proto_pack_u64(out, self->step_base);
    proto_pack_u64(out, self->tick_ns);
    proto_pack_u32(out, self->stall_ticks);
    proto_pack_u32(out, self->refusal_run);
    sched_width_save(self, out);
    sched_pool_save(self->pool, out);
    save_slots(self, out);
}
