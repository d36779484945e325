/* actor_queue.c - entries of a head, a blob and a body; one that does not fit before the end of
 * the ring begins at its start, and a mark says so. */
#include "actor_queue.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    ENTRY_ALIGN = PROTO_COLUMN_ALIGN,
};

typedef struct {
    uint64_t size_bytes; /* of the entry; 0: the rest of the ring is empty, go to the start */
    uint64_t request;
    uint64_t body_size;
    uint64_t blob_size;
    uint32_t kind;
    uint32_t reserved[7];
} entry_t;

_Static_assert(sizeof(entry_t) == ENTRY_ALIGN, "the blob that follows must be aligned");

struct actor_queue {
    uint8_t *ring; /* 64-byte aligned */
    size_t size_bytes;
    size_t head; /* next byte to write */
    size_t tail; /* oldest entry */
    size_t used; /* bytes between, skipped ones included */
    uint32_t len;
};

static size_t
align_up(size_t value)
{
    return (value + ENTRY_ALIGN - 1) / ENTRY_ALIGN * ENTRY_ALIGN;
}

proto_status_t
actor_queue_new(size_t size_bytes, actor_queue_t **out_p)
{
    require(size_bytes > 0);

    actor_queue_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->size_bytes = align_up(size_bytes);
    self->ring = aligned_alloc(ENTRY_ALIGN, self->size_bytes);
    if (self->ring == NULL) {
        free(self);
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_queue_destroy(actor_queue_t **self_p)
{
    actor_queue_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->ring);
    free(self);
    *self_p = NULL;
}

uint32_t
actor_queue_len(const actor_queue_t *self)
{
    return self->len;
}

/* Finds `need` contiguous bytes; moves the head to the start if only there is room. */
static proto_status_t
make_room(actor_queue_t *self, size_t need)
{
    if (need > self->size_bytes) {
        return STATUS_ERR_TOO_LARGE;
    }
    if (self->len == 0) {
        self->head = 0;
        self->tail = 0;
        self->used = 0;
    }
    size_t free_bytes = self->size_bytes - self->used;
    size_t to_end = self->size_bytes - self->head;
    if (need > free_bytes) {
        return STATUS_FULL;
    }
    if (self->head < self->tail || need <= to_end) {
        return STATUS_OK;
    }
    if (need > free_bytes - to_end) {
        return STATUS_FULL;
    }
    if (to_end > 0) {
        memset(self->ring + self->head, 0, sizeof(entry_t));
    }
    self->used += to_end;
    self->head = 0;
    return STATUS_OK;
}

proto_status_t
actor_queue_push(actor_queue_t *self, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_body_bound(kind, body, &body_bound, &blob_bound);
    size_t blob_room = align_up(blob_bound);
    proto_status_t status = make_room(self, sizeof(entry_t) + blob_room + align_up(body_bound));
    if (status != STATUS_OK) {
        return status;
    }
    uint8_t *at = self->ring + self->head;
    entry_t entry = {.request = request, .kind = (uint32_t)kind};
    size_t body_size = 0;
    size_t blob_size = 0;
    status = proto_body_encode(kind, body, at + sizeof entry + blob_room, body_bound, &body_size,
                               at + sizeof entry, blob_room, &blob_size);
    if (status != STATUS_OK) {
        return status;
    }
    entry.body_size = body_size;
    entry.blob_size = blob_size;
    entry.size_bytes = sizeof entry + blob_room + align_up(body_size);
    memcpy(at, &entry, sizeof entry);
    self->head += (size_t)entry.size_bytes;
    self->used += (size_t)entry.size_bytes;
    self->len++;
    return STATUS_OK;
}

/* Where the oldest entry really is: at the start if it was wrapped. */
static size_t
front_at(const actor_queue_t *self, entry_t *entry)
{
    size_t at = self->tail;
    bool is_wrapped = at >= self->size_bytes;
    if (!is_wrapped) {
        memcpy(entry, self->ring + at, sizeof *entry);
        is_wrapped = entry->size_bytes == 0;
    }
    if (is_wrapped) {
        at = 0;
        memcpy(entry, self->ring, sizeof *entry);
    }
    return at;
}

proto_status_t
actor_queue_front(const actor_queue_t *self, actor_queued_t *out)
{
    if (self->len == 0) {
        return STATUS_AGAIN;
    }
    entry_t entry;
    const uint8_t *at = self->ring + front_at(self, &entry);
    const uint8_t *blob = at + sizeof entry;
    const uint8_t *body = at + entry.size_bytes - align_up((size_t)entry.body_size);
    out->kind = (proto_kind_t)entry.kind;
    out->request = entry.request;
    out->body = (proto_bytes_t){body, (size_t)entry.body_size};
    out->blob = (proto_bytes_t){entry.blob_size > 0 ? blob : NULL, (size_t)entry.blob_size};
    return STATUS_OK;
}

void
actor_queue_pop(actor_queue_t *self)
{
    require(self->len > 0);
    entry_t entry;
    size_t at = front_at(self, &entry);
    if (at != self->tail) {
        self->used -= self->size_bytes - self->tail;
    }
    self->used -= (size_t)entry.size_bytes;
    self->tail = at + (size_t)entry.size_bytes;
    self->len--;
}

proto_status_t
actor_queue_grow(actor_queue_t *self)
{
    actor_queue_t *larger = NULL;
    proto_status_t status = actor_queue_new(self->size_bytes * 2, &larger);
    if (status != STATUS_OK) {
        return status;
    }
    while (self->len > 0) {
        entry_t entry;
        size_t at = front_at(self, &entry);
        memcpy(larger->ring + larger->head, self->ring + at, (size_t)entry.size_bytes);
        larger->head += (size_t)entry.size_bytes;
        larger->used += (size_t)entry.size_bytes;
        larger->len++;
        actor_queue_pop(self);
    }
    uint8_t *old = self->ring;
    *self = *larger;
    free(old);
    free(larger);
    return STATUS_OK;
}
