/* actor_outbox.c - one arena for the bytes of one step, one array for its messages. */
#include <stdlib.h>

#include "actor_core.h"
#include "proto_require.h"

enum {
    BODY_ALIGN = 8,
    /* What alignment can cost a message, and how far a bound can lie above the real size. */
    MESSAGE_SLACK_BYTES = PROTO_COLUMN_ALIGN + BODY_ALIGN,
    TAIL_SLACK_BYTES = 4096,
};

struct actor_outbox {
    uint8_t *arena;          /* 64-byte aligned */
    size_t capacity_bytes;   /* of the arena */
    size_t used_bytes;       /* of the arena, since the last clear */
    actor_emission_t *items; /* [count_max] */
    uint32_t count;          /* messages since the last clear */
    uint32_t count_max;      /* from the core's ops */
};

static size_t
align_up(size_t value, size_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

proto_status_t
actor_outbox_new(const actor_core_ops_t *ops, actor_outbox_t **out_p)
{
    require(ops != NULL);
    require(out_p != NULL);
    require(ops->outbox_count_max > 0);

    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_outbox_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    size_t slack = (size_t)ops->outbox_count_max * MESSAGE_SLACK_BYTES + TAIL_SLACK_BYTES;
    self->capacity_bytes = align_up(ops->outbox_size_bytes + slack, PROTO_COLUMN_ALIGN);
    self->count_max = ops->outbox_count_max;
    /* Not zeroed: a large outbox costs memory only as far as steps really fill it. */
    self->arena = aligned_alloc(PROTO_COLUMN_ALIGN, self->capacity_bytes);
    if (self->arena == NULL) {
        goto err_free_self;
    }
    self->items = calloc(self->count_max, sizeof *self->items);
    if (self->items == NULL) {
        goto err_free_arena;
    }
    *out_p = self;
    return STATUS_OK;

err_free_arena:
    free(self->arena);
err_free_self:
    free(self);
err:
    return status;
}

void
actor_outbox_destroy(actor_outbox_t **self_p)
{
    require(self_p != NULL);
    actor_outbox_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->items);
    free(self->arena);
    free(self);
    *self_p = NULL;
}

void
actor_outbox_clear(actor_outbox_t *self)
{
    self->used_bytes = 0;
    self->count = 0;
}

uint32_t
actor_outbox_count(const actor_outbox_t *self)
{
    return self->count;
}

const actor_emission_t *
actor_outbox_at(const actor_outbox_t *self, uint32_t index)
{
    require(index < self->count);
    return &self->items[index];
}

void
actor_outbox_push(actor_outbox_t *outbox, actor_peer_t to, proto_kind_t kind, uint64_t request,
                  const proto_body_t *body)
{
    require(outbox->count < outbox->count_max);
    require(to.index < ACTOR_PEER_COUNT_MAX);
    require(to.index == ACTOR_PEER_LOCAL || proto_kind_is_wire(kind));

    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_body_bound(kind, body, &body_bound, &blob_bound);
    /* The blob goes first: its size is exact, the body's only a bound, so that nothing but the
     * body's real bytes stays behind. */
    size_t blob_at = align_up(outbox->used_bytes, PROTO_COLUMN_ALIGN);
    require(blob_at <= outbox->capacity_bytes);
    require(blob_bound <= outbox->capacity_bytes - blob_at);
    size_t body_at = align_up(blob_at + blob_bound, BODY_ALIGN);
    require(body_at <= outbox->capacity_bytes);
    require(body_bound <= outbox->capacity_bytes - body_at);

    size_t body_size = 0;
    size_t blob_size = 0;
    proto_status_t status =
        proto_body_encode(kind, body, outbox->arena + body_at, outbox->capacity_bytes - body_at,
                          &body_size, outbox->arena + blob_at, blob_bound, &blob_size);
    require(status == STATUS_OK);
    require(blob_size <= blob_bound);

    actor_emission_t *item = &outbox->items[outbox->count++];
    item->to = to;
    item->kind = kind;
    item->request = request;
    item->body = (proto_bytes_t){outbox->arena + body_at, body_size};
    item->blob = (proto_bytes_t){blob_size > 0 ? outbox->arena + blob_at : NULL, blob_size};
    outbox->used_bytes = body_at + body_size;
}
