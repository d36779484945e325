#include "actor_executor_queue.h"

#include <string.h>
#include <sys/mman.h>

#include "proto_require.h"

enum { ALIGN = PROTO_COLUMN_ALIGN };

_Static_assert(sizeof(actor_executor_record_t) <= ALIGN, "the head takes one line");

static size_t
align_up(size_t size)
{
    return (size + ALIGN - 1) / ALIGN * ALIGN;
}

proto_status_t
actor_executor_queue_init(actor_executor_queue_t *self, size_t capacity_bytes)
{
    memset(self, 0, sizeof *self);
    capacity_bytes = align_up(capacity_bytes);
    void *memory = mmap(NULL, capacity_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->memory = memory;
    self->capacity_bytes = capacity_bytes;
    self->wrap = capacity_bytes;
    return STATUS_OK;
}

void
actor_executor_queue_fini(actor_executor_queue_t *self)
{
    if (self->memory != NULL) {
        (void)munmap(self->memory, self->capacity_bytes);
        self->memory = NULL;
    }
}

/* Finds room for a record; SIZE_MAX if there is none. */
static size_t
reserve(actor_executor_queue_t *self, size_t size_bytes)
{
    if (self->count == 0) {
        self->head = 0;
        self->tail = 0;
        self->wrap = self->capacity_bytes;
    }
    if (self->count == 0 || self->tail > self->head) {
        if (self->capacity_bytes - self->tail >= size_bytes) {
            return self->tail;
        }
        if (self->head < size_bytes) {
            return SIZE_MAX;
        }
        self->wrap = self->tail;
        return 0;
    }
    return self->head - self->tail >= size_bytes ? self->tail : SIZE_MAX;
}

bool
actor_executor_queue_push(actor_executor_queue_t *self, const actor_emission_t *command)
{
    size_t body_at = ALIGN + align_up(command->blob.size_bytes);
    size_t size_bytes = body_at + align_up(command->body.size_bytes);
    size_t at = reserve(self, size_bytes);
    if (at == SIZE_MAX) {
        return false;
    }
    uint8_t *memory = self->memory + at;
    actor_executor_record_t record = {.kind = command->kind,
                                      .body_size_bytes = command->body.size_bytes,
                                      .blob_size_bytes = command->blob.size_bytes,
                                      .size_bytes = size_bytes};
    memcpy(memory, &record, sizeof record);
    if (command->blob.size_bytes > 0) {
        memcpy(memory + ALIGN, command->blob.data, command->blob.size_bytes);
    }
    if (command->body.size_bytes > 0) {
        memcpy(memory + body_at, command->body.data, command->body.size_bytes);
    }
    self->tail = at + size_bytes;
    self->count++;
    return true;
}

const actor_executor_record_t *
actor_executor_queue_front(const actor_executor_queue_t *self)
{
    if (self->count == 0) {
        return NULL;
    }
    return (const actor_executor_record_t *)(const void *)(self->memory + self->head);
}

void
actor_executor_queue_pop(actor_executor_queue_t *self)
{
    const actor_executor_record_t *record = actor_executor_queue_front(self);
    require(record != NULL);
    self->head += record->size_bytes;
    self->count--;
    if (self->head == self->wrap && self->count > 0) {
        self->head = 0;
        self->wrap = self->capacity_bytes;
    }
}

proto_bytes_t
actor_executor_record_blob(const actor_executor_record_t *record)
{
    const uint8_t *memory = (const uint8_t *)record;
    return (proto_bytes_t){record->blob_size_bytes > 0 ? memory + ALIGN : NULL,
                           record->blob_size_bytes};
}

proto_bytes_t
actor_executor_record_body(const actor_executor_record_t *record)
{
    const uint8_t *memory = (const uint8_t *)record;
    return (proto_bytes_t){memory + ALIGN + align_up(record->blob_size_bytes),
                           record->body_size_bytes};
}
