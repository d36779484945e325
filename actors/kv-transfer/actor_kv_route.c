#include "actor_kv_route.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

struct actor_kv_route {
    uint32_t rank_count;                                       /* of the destination */
    const actor_kv_layout_t *layouts[ACTOR_KV_RANK_COUNT_MAX]; /* of the destination */
    const actor_kv_layout_t *sources[ACTOR_KV_RANK_COUNT_MAX];
    actor_kv_fragment_t *fragments[ACTOR_KV_RANK_COUNT_MAX];
    uint32_t counts[ACTOR_KV_RANK_COUNT_MAX];
};

static proto_status_t
plan_rank(actor_kv_route_t *self, const actor_kv_side_t *from, uint32_t rank,
          actor_kv_fragment_t *room)
{
    uint32_t count = 0;
    proto_status_t status = actor_kv_plan_make(from->layouts, from->rank_count, self->layouts[rank],
                                               room, ACTOR_KV_FRAGMENT_COUNT_MAX, &count);
    if (status != STATUS_OK) {
        return status;
    }
    self->fragments[rank] = calloc(count + 1, sizeof **self->fragments);
    if (self->fragments[rank] == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    memcpy(self->fragments[rank], room, count * sizeof *room);
    self->counts[rank] = count;
    return STATUS_OK;
}

proto_status_t
actor_kv_route_new(const actor_kv_side_t *from, const actor_kv_side_t *to, actor_kv_route_t **out_p)
{
    require(from->rank_count > 0);
    require(to->rank_count > 0);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_kv_fragment_t *room = calloc(ACTOR_KV_FRAGMENT_COUNT_MAX, sizeof *room);
    actor_kv_route_t *self = calloc(1, sizeof *self);
    if (room == NULL || self == NULL) {
        goto done;
    }
    self->rank_count = to->rank_count;
    memcpy(self->layouts, to->layouts, sizeof self->layouts);
    memcpy(self->sources, from->layouts, sizeof self->sources);
    status = STATUS_OK;
    for (uint32_t r = 0; status == STATUS_OK && r < to->rank_count; r++) {
        status = plan_rank(self, from, r, room);
    }
    if (status == STATUS_OK) {
        *out_p = self;
        self = NULL;
    }
done:
    actor_kv_route_destroy(&self);
    free(room);
    return status;
}

void
actor_kv_route_destroy(actor_kv_route_t **self_p)
{
    require(self_p != NULL);
    if (*self_p == NULL) {
        return;
    }
    for (uint32_t r = 0; r < ACTOR_KV_RANK_COUNT_MAX; r++) {
        free((*self_p)->fragments[r]);
    }
    free(*self_p);
    *self_p = NULL;
}

uint64_t
actor_kv_route_bytes(const actor_kv_route_t *self, const actor_kv_piece_t *piece)
{
    uint64_t per_group[ACTOR_KV_GROUP_COUNT_MAX] = {0};
    for (uint32_t i = 0; i < piece->count; i++) {
        per_group[piece->groups[i]]++;
    }
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < self->rank_count; r++) {
        for (uint32_t i = 0; i < self->counts[r]; i++) {
            const actor_kv_fragment_t *fragment = &self->fragments[r][i];
            const actor_kv_field_t *field = &self->layouts[r]->fields[fragment->field];
            if (field->layer >= piece->layer_begin && field->layer < piece->layer_end) {
                bytes += per_group[field->group] * fragment->rows * fragment->bytes;
            }
        }
    }
    return bytes;
}

typedef struct {
    const actor_kv_fragment_t *fragment;
    const uint8_t *from; /* arena */
    uint8_t *to;
    const actor_kv_field_t *from_field;
    const actor_kv_field_t *to_field;
} way_t;

static bool
walk_block(const way_t *way, const actor_kv_piece_t *piece, uint32_t index, actor_kv_run_fn visit,
           void *context)
{
    const actor_kv_fragment_t *f = way->fragment;
    const uint8_t *from = NULL;
    uint8_t *to = NULL;
    if (way->from != NULL && piece->from_blocks != NULL) {
        from = way->from + way->from_field->page0_offset_bytes +
               piece->from_blocks[index] * way->from_field->stride_bytes + f->from_offset_bytes;
    }
    if (way->to != NULL && piece->to_blocks != NULL) {
        to = way->to + way->to_field->page0_offset_bytes +
             piece->to_blocks[index] * way->to_field->stride_bytes + f->to_offset_bytes;
    }
    for (uint32_t row = 0; row < f->rows; row++) {
        if (!visit(context, index, from, to, f->bytes)) {
            return false;
        }
        from = from == NULL ? NULL : from + f->from_stride_bytes;
        to = to == NULL ? NULL : to + f->to_stride_bytes;
    }
    return true;
}

bool
actor_kv_route_walk(const actor_kv_route_t *self, const actor_kv_piece_t *piece,
                    const actor_kv_side_t *from, const actor_kv_side_t *to, actor_kv_run_fn visit,
                    void *context)
{
    for (uint32_t r = 0; r < self->rank_count; r++) {
        for (uint32_t i = 0; i < self->counts[r]; i++) {
            const actor_kv_fragment_t *fragment = &self->fragments[r][i];
            const actor_kv_field_t *field = &self->layouts[r]->fields[fragment->field];
            if (field->layer < piece->layer_begin || field->layer >= piece->layer_end) {
                continue;
            }
            const way_t way = {
                .fragment = fragment,
                .from = from == NULL ? NULL : from->arenas[fragment->source],
                .to = to == NULL ? NULL : to->arenas[r],
                .from_field = &self->sources[fragment->source]->fields[fragment->field],
                .to_field = field,
            };
            for (uint32_t b = 0; b < piece->count; b++) {
                if (piece->groups[b] == field->group &&
                    !walk_block(&way, piece, b, visit, context)) {
                    return false;
                }
            }
        }
    }
    return true;
}
