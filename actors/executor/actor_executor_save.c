/* The executor's state as bytes: limits, links, what the device has, then each request with its
 * tables, and the steps in flight.  Tokens, sampling parameters, salts and the key of page hashes
 * are secret.  What follows from the rest (tokens in flight, digests, counters of blocks) is not
 * written. */
#include "actor_executor_state.h"

static void
save_info(const proto_executor_info_t *info, proto_pack_t *out)
{
    proto_pack_bytes(out, info->model_name.data, info->model_name.size_bytes);
    proto_pack_bytes(out, info->fingerprint.data, info->fingerprint.size_bytes);
    proto_pack_u32(out, info->vocab_size);
    proto_pack_u32(out, info->model_len_max);
    proto_pack_u32(out, info->slot_count);
    proto_pack_u32(out, info->step_tokens_max);
    proto_pack_u32(out, info->decode_width);
    proto_pack_u32(out, info->overlap_depth_max);
    proto_pack_u32(out, info->prefix_granularity);
    proto_pack_u32(out, info->parent_count);
    proto_pack_u32(out, info->hidden_size);
    proto_pack_u32(out, info->group_kinds.count);
    for (uint32_t g = 0; g < info->group_kinds.count; g++) {
        proto_pack_u32(out, info->group_kinds.data[g]);
        proto_pack_u32(out, info->group_granularities.data[g]);
        proto_pack_u32(out, info->group_windows.data[g]);
        proto_pack_u32(out, info->group_packings.data[g]);
    }
}

static void
save_slot(const actor_executor_core_t *self, uint32_t slot, proto_pack_t *state,
          proto_pack_t *secret)
{
    const executor_slot_t *s = &self->slots[slot];
    proto_pack_u32(state, slot);
    proto_pack_u64(state, s->request);
    proto_pack_u32(state, s->prompt_length);
    proto_pack_u32(state, s->length_max);
    proto_pack_u32(state, s->known);
    proto_pack_u32(state, s->computed);
    proto_pack_u32(state, s->done);
    proto_pack_u32(state, s->chain_pages);
    proto_pack_bool(state, s->is_set_up);
    proto_pack_bool(state, s->is_decodable);
    proto_pack_bool(state, s->is_hashed);
    proto_pack_u32(state, s->salt_size);
    proto_pack_u32(state, s->sampling_size);
    proto_pack_raw(state, s->chain, sizeof s->chain);
    actor_executor_tables_save(self->tables, slot, state);
    proto_pack_raw(secret, s->salt, s->salt_size);
    proto_pack_raw(secret, executor_sampling(self, slot), s->sampling_size);
    for (uint32_t i = 0; i < s->known; i++) {
        proto_pack_u32(secret, (uint32_t)executor_tokens(self, slot)[i]);
    }
}

static void
save_flight(const executor_flight_t *flight, proto_pack_t *out)
{
    proto_pack_u64(out, flight->step);
    proto_pack_u32(out, flight->width);
    proto_pack_u32(out, flight->token_count);
    proto_pack_u32(out, flight->prompt_token_count);
    proto_pack_u32(out, flight->row_count);
    for (uint32_t r = 0; r < flight->row_count; r++) {
        const executor_row_t *row = &flight->rows[r];
        proto_pack_u32(out, row->slot);
        proto_pack_u32(out, row->generation);
        proto_pack_u32(out, row->end);
        proto_pack_u32(out, row->token_max);
        proto_pack_u32(out, row->pending);
    }
}

static void
save_stores(const actor_executor_core_t *self, proto_pack_t *state, proto_pack_t *secret)
{
    save_info(&self->info, state);
    proto_pack_raw(secret, self->page_hash_key, PROTO_HASH_SIZE_BYTES);
    uint32_t count = 0;
    for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
        proto_pack_u32(state, self->slots[slot].generation);
        count += self->slots[slot].request != 0 ? 1 : 0;
    }
    proto_pack_u32(state, count);
    for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
        if (self->slots[slot].request != 0) {
            save_slot(self, slot, state, secret);
        }
    }
    proto_pack_u32(state, self->flight_count);
    for (uint32_t i = 0; i < self->flight_count; i++) {
        save_flight(&self->flights[(self->flight_first + i) % FLIGHTS_MAX], state);
    }
}

static void
save_drafter(const executor_drafter_t *drafter, proto_pack_t *out)
{
    proto_pack_bool(out, drafter->is_linked);
    proto_pack_bool(out, drafter->has_info);
    proto_pack_bool(out, drafter->is_used);
    proto_pack_u32(out, drafter->peer.index);
    proto_pack_u64(out, drafter->epoch);
    proto_pack_u32(out, drafter->asked_count);
    proto_pack_u32(out, drafter->ring_next);
    proto_pack_u32(out, drafter->vocab_size);
    proto_pack_u32(out, drafter->hidden_size);
    proto_pack_u32(out, drafter->width_max);
    proto_pack_u32(out, drafter->parent_count_max);
    proto_pack_bytes(out, drafter->name, drafter->name_size);
    proto_pack_bytes(out, drafter->target, drafter->target_size);
}

void
actor_executor_save(const void *core, proto_pack_t *state, proto_pack_t *secret)
{
    const actor_executor_core_t *self = core;
    const proto_stats_t *stats = &self->stats;
    proto_pack_u32(state, EXECUTOR_SAVE_VERSION);
    proto_pack_u32(state, self->limits.slot_count_max);
    proto_pack_u32(state, self->limits.model_len_max);
    proto_pack_u32(state, self->limits.step_tokens_max);
    proto_pack_u32(state, self->limits.bad_plans_max);
    proto_pack_bytes(state, self->draft_ring, strlen(self->draft_ring));
    proto_pack_u64(state, self->limits.draft_ring_id);
    proto_pack_u32(state, (uint32_t)self->phase);
    proto_pack_bool(state, self->is_linked);
    proto_pack_bool(state, self->is_info_sent);
    proto_pack_bool(state, self->is_device_pristine);
    proto_pack_bool(state, self->is_draining);
    proto_pack_bool(state, self->is_awaiting_full);
    proto_pack_u32(state, self->scheduler.index);
    proto_pack_u64(state, self->scheduler_epoch);
    proto_pack_u32(state, self->reset_count);
    proto_pack_u32(state, self->bad_plans);
    proto_pack_u64(state, self->applied_step);
    proto_pack_u64(state, stats->steps);
    proto_pack_u64(state, stats->prompt_tokens);
    proto_pack_u64(state, stats->generation_tokens);
    proto_pack_u64(state, stats->graph_steps);
    proto_pack_u64(state, stats->eager_steps);
    proto_pack_u64(state, stats->busy_ns);
    proto_pack_u64(state, stats->wide_steps);
    proto_pack_u64(state, stats->drafts_proposed);
    proto_pack_u64(state, stats->drafts_accepted);
    proto_pack_u64(state, stats->drafts_missing);
    proto_pack_u64(state, stats->drafts_ignored);
    proto_pack_u64(state, self->busy_since_ns);
    proto_pack_u64(state, self->step_ns);
    proto_pack_u64(state, self->token_ns);
    proto_pack_u64(state, self->oldest_begin_ns);
    save_drafter(&self->drafter, state);
    proto_pack_bool(state, self->has_stores);
    if (self->has_stores) {
        save_stores(self, state, secret);
    }
}
