#include "actor_gateway_history.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { CHUNK_SIZE_BYTES = 1024 };

struct actor_gateway_history {
    uint8_t *memory; /* [chunk_count][CHUNK_SIZE_BYTES] */
    uint32_t *next;  /* [chunk_count] number + 1 of the chunk behind this one; 0 = none */
    uint32_t chunk_count;
    uint32_t fresh_at;   /* chunks from here on were never used: their memory is not touched */
    uint32_t first_free; /* number + 1 of a chunk that was given back; 0 = none */
    uint32_t used_count;
};

proto_status_t
actor_gateway_history_new(uint64_t size_bytes, actor_gateway_history_t **out_p)
{
    require(out_p != NULL);
    require(size_bytes <= ACTOR_GATEWAY_HISTORY_SIZE_MAX);

    actor_gateway_history_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    uint64_t count = (size_bytes + CHUNK_SIZE_BYTES - 1) / CHUNK_SIZE_BYTES;
    self->chunk_count = count > 0 ? (uint32_t)count : 1;
    /* Memory that is never touched costs nothing: calloc takes it from the system as it is. */
    self->memory = calloc(self->chunk_count, CHUNK_SIZE_BYTES);
    self->next = calloc(self->chunk_count, sizeof *self->next);
    if (self->memory == NULL || self->next == NULL) {
        actor_gateway_history_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_gateway_history_destroy(actor_gateway_history_t **self_p)
{
    require(self_p != NULL);
    actor_gateway_history_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->next);
    free(self->memory);
    free(self);
    *self_p = NULL;
}

static uint8_t *
chunk(const actor_gateway_history_t *self, uint32_t number)
{
    require(number >= 1);
    require(number <= self->chunk_count);
    return self->memory + (size_t)(number - 1) * CHUNK_SIZE_BYTES;
}

/* There must be one. */
static uint32_t
take_chunk(actor_gateway_history_t *self)
{
    uint32_t number = self->first_free;
    if (number != 0) {
        self->first_free = self->next[number - 1];
    } else {
        require(self->fresh_at < self->chunk_count);
        number = ++self->fresh_at;
    }
    self->next[number - 1] = 0;
    self->used_count++;
    return number;
}

proto_status_t
actor_gateway_history_append(actor_gateway_history_t *self, actor_gateway_record_t *record,
                             const void *data, size_t size_bytes)
{
    if (size_bytes == 0) {
        return STATUS_OK;
    }
    uint32_t filled = (uint32_t)(record->size_bytes % CHUNK_SIZE_BYTES);
    size_t room = filled > 0 ? CHUNK_SIZE_BYTES - filled : 0;
    size_t more = size_bytes > room ? size_bytes - room : 0;
    if ((more + CHUNK_SIZE_BYTES - 1) / CHUNK_SIZE_BYTES > self->chunk_count - self->used_count) {
        return STATUS_FULL;
    }
    const uint8_t *from = data;
    while (size_bytes > 0) {
        filled = (uint32_t)(record->size_bytes % CHUNK_SIZE_BYTES);
        if (filled == 0) {
            uint32_t number = take_chunk(self);
            if (record->last != 0) {
                self->next[record->last - 1] = number;
            } else {
                record->first = number;
            }
            record->last = number;
        }
        size_t part = CHUNK_SIZE_BYTES - filled;
        part = part < size_bytes ? part : size_bytes;
        memcpy(chunk(self, record->last) + filled, from, part);
        record->size_bytes += part;
        from += part;
        size_bytes -= part;
    }
    return STATUS_OK;
}

void
actor_gateway_history_read(const actor_gateway_history_t *self,
                           const actor_gateway_record_t *record, uint64_t begin_bytes, void *out,
                           size_t size_bytes)
{
    require(begin_bytes <= record->size_bytes);
    require(size_bytes <= record->size_bytes - begin_bytes);
    uint32_t number = record->first;
    uint64_t skip = begin_bytes;
    for (; skip >= CHUNK_SIZE_BYTES && size_bytes > 0; skip -= CHUNK_SIZE_BYTES) {
        number = self->next[number - 1];
    }
    uint8_t *to = out;
    while (size_bytes > 0) {
        size_t part = CHUNK_SIZE_BYTES - (size_t)skip;
        part = part < size_bytes ? part : size_bytes;
        memcpy(to, chunk(self, number) + skip, part);
        to += part;
        size_bytes -= part;
        skip = 0;
        number = self->next[number - 1];
    }
}

void
actor_gateway_history_drop(actor_gateway_history_t *self, actor_gateway_record_t *record)
{
    uint32_t number = record->first;
    while (number != 0) {
        uint32_t next = self->next[number - 1];
        self->next[number - 1] = self->first_free;
        self->first_free = number;
        require(self->used_count > 0);
        self->used_count--;
        number = next;
    }
    *record = (actor_gateway_record_t){0};
}

uint64_t
actor_gateway_history_size_bytes(const actor_gateway_history_t *self)
{
    return (uint64_t)self->chunk_count * CHUNK_SIZE_BYTES;
}

uint64_t
actor_gateway_history_used_bytes(const actor_gateway_history_t *self)
{
    return (uint64_t)self->used_count * CHUNK_SIZE_BYTES;
}

uint64_t
actor_gateway_history_check(const actor_gateway_history_t *self,
                            const actor_gateway_record_t *record)
{
    uint64_t count = (record->size_bytes + CHUNK_SIZE_BYTES - 1) / CHUNK_SIZE_BYTES;
    require((record->first == 0) == (count == 0));
    uint32_t number = record->first;
    for (uint64_t at = 1; at < count; at++) {
        require(number >= 1);
        require(number <= self->chunk_count);
        number = self->next[number - 1];
    }
    require(number == record->last);
    require(number == 0 || self->next[number - 1] == 0);
    return count * CHUNK_SIZE_BYTES;
}
