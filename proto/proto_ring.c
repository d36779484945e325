#include "proto_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_require.h"

enum { PAGE_SIZE_BYTES = 4096, LINE_SIZE_BYTES = 64, ATTEMPT_COUNT_MAX = 16 };

#define RING_MAGIC UINT64_C(0x31474e495250454f) /* "OEPRING1" */

/* First page of the memfd; the records follow.  Positions count bytes for ever; a record lies at
 * its position modulo the capacity.  What the producer writes often has lines of its own. */
typedef struct {
    uint64_t magic;
    uint64_t capacity_bytes; /* a power of two */
    proto_ring_owner_t owner;

    _Alignas(LINE_SIZE_BYTES) _Atomic uint64_t head; /* end of the last whole record */
    _Atomic uint64_t record_count;                   /* sequence of the last whole record */
    _Atomic uint64_t cut_count;

    _Alignas(LINE_SIZE_BYTES) _Atomic uint64_t tail; /* begin of the oldest record */
} ring_page_t;

_Static_assert(sizeof(ring_page_t) <= PAGE_SIZE_BYTES, "one page");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "shared between processes");

/* A mapping: the page, then the records twice in a row, so that none is ever split. */
typedef struct {
    uint8_t *base;
    ring_page_t *page;
    uint8_t *records;
    uint64_t capacity_bytes;
} ring_map_t;

struct proto_ring_writer {
    ring_map_t map;
    uint64_t head;
    uint64_t tail;
    uint64_t record_count;
};

struct proto_ring_reader {
    ring_map_t map;
    proto_ring_owner_t owner;
    uint64_t at;            /* position of the next record */
    uint64_t last_sequence; /* of the last record given out; 0 = none yet */
    uint64_t lost;
    bool damaged;
    uint8_t *copy; /* of one record; capacity / 2 bytes */
};

/* ---- mapping -------------------------------------------------------------------------------- */

static bool
is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static size_t
mapping_size_bytes(uint64_t capacity_bytes)
{
    return PAGE_SIZE_BYTES + 2 * (size_t)capacity_bytes;
}

/* Capacity by the size of the sealed file; never by what the page says. */
static proto_status_t
capacity_of(int fd, uint64_t *out)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0) {
        return STATUS_ERR_IO;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || stat.st_size <= PAGE_SIZE_BYTES) {
        return STATUS_ERR_MALFORMED; /* a file that can shrink would kill its reader */
    }
    uint64_t capacity_bytes = (uint64_t)stat.st_size - PAGE_SIZE_BYTES;
    if (!is_power_of_two(capacity_bytes) || capacity_bytes < PROTO_RING_SIZE_MIN ||
        capacity_bytes > PROTO_RING_SIZE_MAX) {
        return STATUS_ERR_MALFORMED;
    }
    *out = capacity_bytes;
    return STATUS_OK;
}

static proto_status_t
map_open(int fd, int protection, ring_map_t *map)
{
    uint64_t capacity_bytes = 0;
    proto_status_t status = capacity_of(fd, &capacity_bytes);
    if (status != STATUS_OK) {
        return status;
    }
    size_t whole = mapping_size_bytes(capacity_bytes);
    uint8_t *base = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return STATUS_ERR_IO;
    }
    uint8_t *records = base + PAGE_SIZE_BYTES;
    void *first = mmap(base, PAGE_SIZE_BYTES + (size_t)capacity_bytes, protection,
                       MAP_SHARED | MAP_FIXED, fd, 0);
    void *second = mmap(records + capacity_bytes, (size_t)capacity_bytes, protection,
                        MAP_SHARED | MAP_FIXED, fd, PAGE_SIZE_BYTES);
    if (first == MAP_FAILED || second == MAP_FAILED) {
        status = STATUS_ERR_IO;
        goto err_unmap;
    }
    map->base = base;
    map->page = (ring_page_t *)(void *)base;
    map->records = records;
    map->capacity_bytes = capacity_bytes;
    if (map->page->magic != RING_MAGIC || map->page->capacity_bytes != capacity_bytes) {
        status = STATUS_ERR_MALFORMED;
        goto err_unmap;
    }
    return STATUS_OK;

err_unmap:
    (void)munmap(base, whole);
    return status;
}

static void
map_close(ring_map_t *map)
{
    (void)munmap(map->base, mapping_size_bytes(map->capacity_bytes));
}

proto_status_t
proto_ring_create(const proto_ring_owner_t *owner, size_t size_bytes, int *fd_out)
{
    require(owner != NULL);
    require(fd_out != NULL);
    size_bytes = size_bytes == 0 ? PROTO_RING_SIZE_DEFAULT : size_bytes;
    require(is_power_of_two(size_bytes));
    require(size_bytes >= PROTO_RING_SIZE_MIN);
    require(size_bytes <= PROTO_RING_SIZE_MAX);
    ring_page_t page;
    memset(&page, 0, sizeof page);
    page.magic = RING_MAGIC;
    page.capacity_bytes = size_bytes;
    page.owner = *owner;
    page.owner.name[sizeof page.owner.name - 1] = '\0';

    int fd = memfd_create("onepath-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return STATUS_ERR_IO;
    }
    if (ftruncate(fd, (off_t)(PAGE_SIZE_BYTES + size_bytes)) != 0 ||
        pwrite(fd, &page, sizeof page, 0) != (ssize_t)sizeof page ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int error = errno;
        (void)close(fd);
        errno = error;
        return STATUS_ERR_IO;
    }
    *fd_out = fd;
    return STATUS_OK;
}

/* ---- producer ------------------------------------------------------------------------------- */

proto_status_t
proto_ring_writer_open(int fd, proto_ring_writer_t **out_p)
{
    proto_ring_writer_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = map_open(fd, PROT_READ | PROT_WRITE, &self->map);
    if (status != STATUS_OK) {
        goto err_free;
    }
    ring_page_t *page = self->map.page;
    self->head = atomic_load_explicit(&page->head, memory_order_acquire);
    self->tail = atomic_load_explicit(&page->tail, memory_order_acquire);
    if (self->tail > self->head || self->head - self->tail > self->map.capacity_bytes ||
        self->head % 8 != 0 || self->tail % 8 != 0) {
        status = STATUS_ERR_MALFORMED;
        goto err_close;
    }
    /* The last writer may have been killed between `head` and `record_count`: count again from
     * the last whole record, or a sequence would come twice. */
    self->record_count = atomic_load_explicit(&page->record_count, memory_order_relaxed);
    for (uint64_t at = self->tail; at < self->head;) {
        proto_log_record_t record;
        size_t size_bytes = 0;
        proto_bytes_t rest = {self->map.records + at % self->map.capacity_bytes,
                              (size_t)(self->head - at)};
        if (proto_log_record_decode(rest, false, &record, &size_bytes) != STATUS_OK) {
            status = STATUS_ERR_MALFORMED;
            goto err_close;
        }
        if (record.sequence > self->record_count) {
            self->record_count = record.sequence;
        }
        at += size_bytes;
    }
    *out_p = self;
    return STATUS_OK;

err_close:
    map_close(&self->map);
err_free:
    free(self);
    return status;
}

void
proto_ring_writer_close(proto_ring_writer_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        map_close(&(*self_p)->map);
        free(*self_p);
        *self_p = NULL;
    }
}

/* Gives up the oldest records until `size_bytes` more fit behind `head`. */
static void
make_room(proto_ring_writer_t *self, uint64_t size_bytes)
{
    uint64_t capacity_bytes = self->map.capacity_bytes;
    if (self->head + size_bytes - self->tail <= capacity_bytes) {
        return;
    }
    while (self->head + size_bytes - self->tail > capacity_bytes) {
        uint32_t rest;
        memcpy(&rest, self->map.records + self->tail % capacity_bytes, sizeof rest);
        self->tail += (uint64_t)rest + 8;
        if (self->tail > self->head || rest % 8 != 0) {
            /* Somebody wrote into the ring.  The log is lost, the actor goes on. */
            self->tail = self->head;
        }
    }
    atomic_store_explicit(&self->map.page->tail, self->tail, memory_order_relaxed);
    /* The reader must see the new tail before it can see bytes of the new record. */
    atomic_thread_fence(memory_order_release);
}

void
proto_ring_append(proto_ring_writer_t *self, const proto_log_record_t *record)
{
    ring_page_t *page = self->map.page;
    proto_log_record_t copy = *record;
    copy.sequence = self->record_count + 1;
    size_t size_bytes = proto_log_record_size_bytes(&copy);
    if (size_bytes > self->map.capacity_bytes / 2) {
        copy.flags |= PROTO_LOG_FLAG_CUT;
        while (size_bytes > self->map.capacity_bytes / 2) {
            require(copy.part_count > 0);
            copy.part_count--;
            size_bytes = proto_log_record_size_bytes(&copy);
        }
        uint64_t cut = atomic_load_explicit(&page->cut_count, memory_order_relaxed);
        atomic_store_explicit(&page->cut_count, cut + 1, memory_order_relaxed);
    }
    make_room(self, size_bytes);
    proto_log_record_encode(&copy, false,
                            self->map.records + self->head % self->map.capacity_bytes);
    self->head += size_bytes;
    self->record_count = copy.sequence;
    atomic_store_explicit(&page->head, self->head, memory_order_release); /* now it counts */
    atomic_store_explicit(&page->record_count, self->record_count, memory_order_relaxed);
}

uint64_t
proto_ring_cut_count(const proto_ring_writer_t *self)
{
    return atomic_load_explicit(&self->map.page->cut_count, memory_order_relaxed);
}

uint64_t
proto_ring_record_count(const proto_ring_writer_t *self)
{
    return self->record_count;
}

/* ---- consumer ------------------------------------------------------------------------------- */

proto_status_t
proto_ring_reader_open(int fd, proto_ring_reader_t **out_p)
{
    proto_ring_reader_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = map_open(fd, PROT_READ, &self->map);
    if (status != STATUS_OK) {
        goto err_free;
    }
    status = STATUS_ERR_NO_MEMORY;
    self->copy = malloc((size_t)self->map.capacity_bytes / 2);
    if (self->copy == NULL) {
        goto err_close;
    }
    self->owner = self->map.page->owner;
    self->owner.name[sizeof self->owner.name - 1] = '\0';
    self->at = atomic_load_explicit(&self->map.page->tail, memory_order_acquire);
    *out_p = self;
    return STATUS_OK;

err_close:
    map_close(&self->map);
err_free:
    free(self);
    return status;
}

void
proto_ring_reader_close(proto_ring_reader_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        map_close(&(*self_p)->map);
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
            record_size != size_bytes || record.sequence <= self->last_sequence) {
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
