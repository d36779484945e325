/* The core's state as bytes, and back.  Nothing in it is secret: no token, no cache content.  Free
 * places are not written. */
#include <string.h>

#include "actor_kv_state.h"

/* ---- writing ----------------------------------------------------------------------------------
 */

static void
save_text(const char *text, proto_pack_t *out)
{
    proto_pack_bytes(out, text, strlen(text));
}

static void
save_layout(const actor_kv_layout_t *layout, proto_pack_t *out)
{
    proto_pack_u64(out, layout->arena_bytes);
    proto_pack_u32(out, layout->layer_count);
    proto_pack_u32(out, layout->group_count);
    proto_pack_u32(out, layout->field_count);
    for (uint32_t g = 0; g < layout->group_count; g++) {
        proto_pack_u32(out, layout->groups[g].kind);
        proto_pack_u32(out, layout->groups[g].granularity);
        proto_pack_u32(out, layout->groups[g].window);
        proto_pack_u32(out, layout->groups[g].page_count);
    }
    for (uint32_t f = 0; f < layout->field_count; f++) {
        const actor_kv_field_t *field = &layout->fields[f];
        proto_pack_u32(out, field->layer);
        proto_pack_u32(out, field->name);
        proto_pack_u32(out, field->dtype);
        proto_pack_u32(out, field->group);
        proto_pack_u32(out, field->rows);
        proto_pack_u32(out, field->part_count);
        for (uint32_t p = 0; p < field->part_count; p++) {
            proto_pack_u32(out, field->parts[p].extent);
            proto_pack_u32(out, field->parts[p].begin);
            proto_pack_u32(out, field->parts[p].count);
            proto_pack_u32(out, field->parts[p].unit_bytes);
        }
        proto_pack_u64(out, field->page0_offset_bytes);
        proto_pack_u64(out, field->stride_bytes);
    }
}

static void
save_node(const kv_node_t *node, proto_pack_t *out)
{
    proto_pack_u32(out, node->peer);
    proto_pack_u64(out, node->epoch);
    save_text(node->name, out);
    proto_pack_u32(out, node->rank_count);
    proto_pack_u32(out, node->rank_mask);
    save_text(node->fingerprint, out);
    proto_pack_u64(out, node->layout_fingerprint);
    proto_pack_bool(out, node->is_compatible);
    for (uint32_t r = 0; r < node->rank_count; r++) {
        if ((node->rank_mask & 1u << r) != 0) {
            proto_pack_u32(out, node->owners[r]);
            proto_pack_u64(out, node->regions[r]);
            proto_pack_bytes(out, node->handles[r], node->handle_sizes[r]);
            save_layout(&node->layouts[r], out);
        }
    }
}

static void
save_columns(const kv_column_t *columns, uint32_t count, proto_pack_t *out)
{
    proto_pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        proto_pack_u32(out, columns[i].group);
        proto_pack_u32(out, columns[i].column);
        proto_pack_u32(out, columns[i].block);
        proto_pack_u32(out, columns[i].generation);
        proto_pack_u32(out, columns[i].part);
        proto_pack_u32(out, columns[i].layers);
    }
}

static void
save_transfer(const actor_kv_core_t *self, const kv_transfer_t *t, proto_pack_t *out)
{
    proto_pack_u32(out, (uint32_t)(t - self->transfers));
    proto_pack_u64(out, t->key);
    proto_pack_u32(out, (uint32_t)t->state);
    proto_pack_bool(out, t->is_source);
    proto_pack_bool(out, t->has_last);
    proto_pack_bool(out, t->is_last_sent);
    proto_pack_bool(out, t->has_fence);
    proto_pack_u32(out, t->role_peer);
    proto_pack_u32(out, t->fence_peer);
    proto_pack_u64(out, t->fence);
    proto_pack_u32(out, t->kv_peer);
    proto_pack_u64(out, t->kv_epoch);
    save_text(t->kv_name, out);
    proto_pack_u32(out, t->gate);
    proto_pack_u32(out, t->wanted);
    proto_pack_u32(out, t->missing);
    proto_pack_u32(out, t->next_part);
    proto_pack_u32(out, t->next_piece);
    proto_pack_u32(out, t->flying);
    proto_pack_u32(out, t->landed);
    proto_pack_u64(out, t->size_bytes);
    proto_pack_u64(out, t->begin_ns);
    proto_pack_u64(out, t->last_ns);
    save_columns(kv_columns_of(self, t), t->column_count, out);
    proto_pack_u32(out, t->parts_count);
    for (uint32_t i = 0; i < t->parts_count; i++) {
        const kv_part_t *part = kv_part_at(self, t, i);
        proto_pack_u32(out, part->number);
        proto_pack_u64(out, part->step);
        proto_pack_u32(out, part->layer);
        proto_pack_u32(out, part->cursor);
        proto_pack_u32(out, part->count);
        proto_pack_bool(out, part->is_last);
    }
}

static void
save_parked(const actor_kv_core_t *self, uint32_t index, proto_pack_t *out)
{
    const kv_parked_t *p = &self->parked[index];
    proto_pack_u32(out, index);
    proto_pack_u64(out, p->key);
    proto_pack_u32(out, (uint32_t)p->kind);
    proto_pack_u32(out, p->from);
    proto_pack_u64(out, p->until_ns);
    proto_pack_u64(out, p->order);
    proto_pack_u64(out, p->step);
    proto_pack_u32(out, p->number);
    proto_pack_u32(out, p->layer_begin);
    proto_pack_u32(out, p->layer_end);
    proto_pack_u32(out, p->gate);
    proto_pack_u32(out, p->wanted);
    proto_pack_bool(out, p->is_last);
    save_columns(self->parked_columns + (size_t)index * self->options.column_count_max,
                 p->column_count, out);
}

static void
save_figures(const actor_kv_figures_t *figures, proto_pack_t *out)
{
    proto_pack_u64(out, figures->served_count);
    proto_pack_u64(out, figures->landed_count);
    proto_pack_u64(out, figures->failed_count);
    proto_pack_u64(out, figures->piece_count);
    proto_pack_u64(out, figures->size_bytes);
    proto_pack_u64(out, figures->refused_count);
    proto_pack_u64(out, figures->stale_count);
    proto_pack_u64(out, figures->duplicate_count);
}

void
actor_kv_save(const void *core, proto_pack_t *state, proto_pack_t *secret)
{
    const actor_kv_core_t *self = core;
    const actor_kv_core_options_t *o = &self->options;
    (void)secret;
    proto_pack_u32(state, KV_SAVE_VERSION);
    proto_pack_u32(state, o->transfer_count_max);
    proto_pack_u32(state, o->column_count_max);
    proto_pack_u32(state, o->piece_size_bytes);
    proto_pack_u32(state, o->flying_max);
    proto_pack_u64(state, o->stall_ns);
    proto_pack_u64(state, o->park_ns);
    proto_pack_bool(state, o->checksums);
    proto_pack_u64(state, self->digest);
    proto_pack_bool(state, self->is_draining);
    save_figures(&self->figures, state);
    proto_pack_u64(state, self->cache_owners);
    for (uint32_t i = 0; i < KV_NODE_MAX; i++) {
        save_node(&self->nodes[i], state);
    }
    save_text(self->data_endpoint, state);
    proto_pack_bytes(state, self->book_handle, self->book_handle_size);
    for (uint32_t i = 0; i < KV_STEPS; i++) {
        proto_pack_u64(state, self->ready[i].step);
        proto_pack_u32_array(state, self->ready[i].layers, ACTOR_KV_RANK_COUNT_MAX);
    }
    proto_pack_u32(state, self->watched_count);
    proto_pack_u64_array(state, self->watched, self->watched_count);
    proto_pack_u32(state, self->figures.open_count);
    for (uint32_t i = 0; i < o->transfer_count_max; i++) {
        if (self->transfers[i].state != KV_TRANSFER_FREE) {
            save_transfer(self, &self->transfers[i], state);
        }
    }
    proto_pack_u64(state, self->parked_order);
    proto_pack_u32(state, self->figures.parked_count);
    for (uint32_t i = 0; i < KV_PARKED_MAX; i++) {
        if (self->parked[i].key != 0) {
            save_parked(self, i, state);
        }
    }
    proto_pack_u64(state, self->ended_count);
    uint64_t count = self->ended_count < KV_ENDED_MAX ? self->ended_count : KV_ENDED_MAX;
    for (uint64_t i = 0; i < count; i++) {
        const kv_ended_t *ended = &self->ended[i];
        proto_pack_u64(state, ended->key);
        proto_pack_i64(state, ended->status);
        proto_pack_bool(state, ended->is_source);
        proto_pack_u32(state, ended->part_count);
        proto_pack_u64(state, ended->size_bytes);
    }
}
