/* proto_ring_reader.c - the consumer's side: it believes nothing that it reads. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto_require.h"
#include "proto_ring_private.h"

enum {
    ATTEMPT_COUNT_MAX = 16,
};

struct proto_ring_reader {
    proto_ring_map_t map;
    proto_ring_page_t
        *shared; /* of a strict ring: the page again, writable, for `kept`; else NULL */
    proto_ring_owner_t owner;
    uint64_t at;            /* position of the next record */
    uint64_t last_sequence; /* of the last record given out; 0 = none yet */
    uint64_t resumed;       /* records up to this one were read by somebody before */
    uint64_t lost;
    bool damaged;
    uint8_t *copy; /* of one record; capacity / 2 bytes */
};

static void
unmap_shared(proto_ring_reader_t *self)
{
    if (self->shared != NULL) {
        (void)munmap(self->shared, PROTO_RING_PAGE_SIZE_BYTES);
    }
}

proto_status_t
proto_ring_reader_open(int fd, proto_ring_reader_t **out_p)
{
    proto_ring_reader_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = proto_ring_map_open(fd, PROT_READ, &self->map);
    if (status != STATUS_OK) {
        goto err_free;
    }
    self->owner = self->map.page->owner;
    self->owner.name[sizeof self->owner.name - 1] = '\0';
    if (self->owner.is_strict != 0) {
        void *shared =
            mmap(NULL, PROTO_RING_PAGE_SIZE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shared == MAP_FAILED) {
            status = STATUS_ERR_IO;
            goto err_close;
        }
        self->shared = shared;
    }
    status = STATUS_ERR_NO_MEMORY;
    self->copy = malloc((size_t)self->map.capacity_bytes / 2);
    if (self->copy == NULL) {
        goto err_unmap;
    }
    self->at = atomic_load_explicit(&self->map.page->tail, memory_order_acquire);
    *out_p = self;
    return STATUS_OK;

err_unmap:
    unmap_shared(self);
err_close:
    proto_ring_map_close(&self->map);
err_free:
    free(self);
    return status;
}

void
proto_ring_reader_close(proto_ring_reader_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        unmap_shared(*self_p);
        proto_ring_map_close(&(*self_p)->map);
        free((*self_p)->copy);
        free(*self_p);
        *self_p = NULL;
    }
}

const proto_ring_owner_t *
proto_ring_reader_owner(const proto_ring_reader_t *self)
{
    return &self->owner;
}

void
proto_ring_reader_resume(proto_ring_reader_t *self, uint64_t sequence)
{
    self->last_sequence = sequence;
    self->resumed = sequence;
}

void
proto_ring_reader_keep(proto_ring_reader_t *self)
{
    if (self->shared != NULL) {
        atomic_store_explicit(&self->shared->kept, self->at, memory_order_release);
    }
}

/* Copies the record at self->at; STATUS_STALE if the producer overwrote it meanwhile. */
static proto_status_t
copy_record(proto_ring_reader_t *self, uint64_t head, size_t *size_bytes)
{
    const uint8_t *from = self->map.records + self->at % self->map.capacity_bytes;
    uint64_t available = head - self->at;
    uint32_t rest;
    memcpy(&rest, from, sizeof rest);
    uint64_t size = (uint64_t)rest + 8;
    bool good = size <= available && size <= self->map.capacity_bytes / 2;
    if (good) {
        memcpy(self->copy, from, (size_t)size);
    }
    atomic_thread_fence(memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&self->map.page->tail, memory_order_relaxed);
    if (tail > self->at) {
        return STATUS_ERR_STALE;
    }
    if (!good) {
        return STATUS_ERR_MALFORMED;
    }
    *size_bytes = (size_t)size;
    return STATUS_OK;
}

proto_status_t
proto_ring_reader_next(proto_ring_reader_t *self, proto_log_record_t *out)
{
    if (self->damaged) {
        return STATUS_ERR_MALFORMED;
    }
    uint64_t passed = 0; /* a ring's worth at most: its producer may be hostile */
    for (int attempt = 0; attempt < ATTEMPT_COUNT_MAX; attempt++) {
        uint64_t head = atomic_load_explicit(&self->map.page->head, memory_order_acquire);
        uint64_t tail = atomic_load_explicit(&self->map.page->tail, memory_order_acquire);
        if (self->at < tail) {
            self->at = tail; /* overtaken: go on at the oldest; the sequence tells the loss */
        }
        if (self->at >= head) {
            /* `tail` may be newer than this `head`; a peer that sets them back gets no loop. */
            return STATUS_AGAIN;
        }
        size_t size_bytes = 0;
        proto_status_t status = STATUS_ERR_MALFORMED;
        if (head - self->at <= self->map.capacity_bytes && self->at % 8 == 0) {
            status = copy_record(self, head, &size_bytes);
        }
        if (status == STATUS_ERR_STALE) {
            continue;
        }
        proto_log_record_t record;
        size_t record_size = 0;
        proto_bytes_t bytes = {self->copy, size_bytes};
        if (status != STATUS_OK ||
            proto_log_record_decode(bytes, false, &record, &record_size) != STATUS_OK ||
            record_size != size_bytes) {
            self->damaged = true;
            return STATUS_ERR_MALFORMED;
        }
        if (record.sequence <= self->resumed && self->last_sequence == self->resumed) {
            self->at += size_bytes; /* in somebody's file already */
            if (++passed <= self->map.capacity_bytes / PROTO_LOG_RECORD_HEAD_SIZE_BYTES) {
                attempt = -1;
            }
            continue;
        }
        if (record.sequence <= self->last_sequence) {
            self->damaged = true;
            return STATUS_ERR_MALFORMED;
        }
        self->lost += record.sequence - self->last_sequence - 1;
        self->last_sequence = record.sequence;
        self->at += size_bytes;
        *out = record;
        return STATUS_OK;
    }
    return STATUS_AGAIN; /* overtaken again and again: the producer is as fast as we are */
}

uint64_t
proto_ring_reader_lost(const proto_ring_reader_t *self)
{
    return self->lost;
}

uint64_t
proto_ring_reader_backlog_bytes(const proto_ring_reader_t *self)
{
    uint64_t head = atomic_load_explicit(&self->map.page->head, memory_order_acquire);
    return head > self->at ? head - self->at : 0;
}
