#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto_clock.h"
#include "proto_require.h"
#include "proto_ring_private.h"

enum {
    STRICT_PAUSE_NS = 50 * 1000, /* between two looks of a producer that waits */
};

#define RING_MAGIC UINT64_C(0x31474e495250454f) /* "OEPRING1" */

struct proto_ring_writer {
    proto_ring_map_t map;
    uint64_t head;
    uint64_t tail;
    uint64_t record_count;
    bool is_strict;
    uint64_t waited_for; /* what `kept` was when waiting was in vain; UINT64_MAX = it was not */
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
    return PROTO_RING_PAGE_SIZE_BYTES + 2 * (size_t)capacity_bytes;
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
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || stat.st_size <= PROTO_RING_PAGE_SIZE_BYTES) {
        return STATUS_ERR_MALFORMED; /* a file that can shrink would kill its reader */
    }
    uint64_t capacity_bytes = (uint64_t)stat.st_size - PROTO_RING_PAGE_SIZE_BYTES;
    if (!is_power_of_two(capacity_bytes) || capacity_bytes < PROTO_RING_SIZE_MIN ||
        capacity_bytes > PROTO_RING_SIZE_MAX) {
        return STATUS_ERR_MALFORMED;
    }
    *out = capacity_bytes;
    return STATUS_OK;
}

proto_status_t
proto_ring_map_open(int fd, int protection, proto_ring_map_t *map)
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
    uint8_t *records = base + PROTO_RING_PAGE_SIZE_BYTES;
    void *first = mmap(base, PROTO_RING_PAGE_SIZE_BYTES + (size_t)capacity_bytes, protection,
                       MAP_SHARED | MAP_FIXED, fd, 0);
    void *second = mmap(records + capacity_bytes, (size_t)capacity_bytes, protection,
                        MAP_SHARED | MAP_FIXED, fd, PROTO_RING_PAGE_SIZE_BYTES);
    if (first == MAP_FAILED || second == MAP_FAILED) {
        status = STATUS_ERR_IO;
        goto err_unmap;
    }
    map->base = base;
    map->page = (proto_ring_page_t *)(void *)base;
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

void
proto_ring_map_close(proto_ring_map_t *map)
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
    proto_ring_page_t page;
    memset(&page, 0, sizeof page);
    page.magic = RING_MAGIC;
    page.capacity_bytes = size_bytes;
    page.owner = *owner;
    page.owner.name[sizeof page.owner.name - 1] = '\0';

    int fd = memfd_create("onepath-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return STATUS_ERR_IO;
    }
    if (ftruncate(fd, (off_t)(PROTO_RING_PAGE_SIZE_BYTES + size_bytes)) != 0 ||
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
    proto_status_t status = proto_ring_map_open(fd, PROT_READ | PROT_WRITE, &self->map);
    if (status != STATUS_OK) {
        goto err_free;
    }
    proto_ring_page_t *page = self->map.page;
    self->waited_for = UINT64_MAX;
    self->is_strict = page->owner.is_strict != 0;
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
    proto_ring_map_close(&self->map);
err_free:
    free(self);
    return status;
}

void
proto_ring_writer_close(proto_ring_writer_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        proto_ring_map_close(&(*self_p)->map);
        free(*self_p);
        *self_p = NULL;
    }
}

/* Waits until the consumer has kept everything before `until`, or until it is clear that it will
 * not. */
static void
wait_for_consumer(proto_ring_writer_t *self, uint64_t until)
{
    proto_ring_page_t *page = self->map.page;
    uint64_t kept = atomic_load_explicit(&page->kept, memory_order_acquire);
    if (kept >= until || kept == self->waited_for) {
        return;
    }
    self->waited_for = UINT64_MAX;
    const proto_clock_t *clock = proto_clock_system();
    uint64_t begin_ns = proto_clock_monotonic_ns(clock);
    const uint64_t limit_ns = UINT64_C(1000000) * PROTO_RING_STRICT_WAIT_MS;
    while (kept < until) {
        if (proto_clock_monotonic_ns(clock) - begin_ns >= limit_ns) {
            uint64_t count = atomic_load_explicit(&page->strict_count, memory_order_relaxed);
            atomic_store_explicit(&page->strict_count, count + 1, memory_order_relaxed);
            self->waited_for = kept;
            return;
        }
        struct timespec pause = {0, STRICT_PAUSE_NS};
        (void)nanosleep(&pause, NULL);
        kept = atomic_load_explicit(&page->kept, memory_order_acquire);
    }
}

/* Where `tail` must move so that `size_bytes` more fit behind `head`. */
static uint64_t
tail_after(const proto_ring_writer_t *self, uint64_t size_bytes)
{
    uint64_t capacity_bytes = self->map.capacity_bytes;
    uint64_t tail = self->tail;
    while (self->head + size_bytes - tail > capacity_bytes) {
        uint32_t rest;
        memcpy(&rest, self->map.records + tail % capacity_bytes, sizeof rest);
        tail += (uint64_t)rest + 8;
        if (tail > self->head || rest % 8 != 0) {
            /* Somebody wrote into the ring.  The log is lost, the actor goes on. */
            tail = self->head;
        }
    }
    return tail;
}

/* Gives up the oldest records until `size_bytes` more fit behind `head`. */
static void
make_room(proto_ring_writer_t *self, uint64_t size_bytes)
{
    uint64_t capacity_bytes = self->map.capacity_bytes;
    if (self->head + size_bytes - self->tail <= capacity_bytes) {
        return;
    }
    uint64_t tail = tail_after(self, size_bytes);
    if (self->is_strict) {
        wait_for_consumer(self, tail);
    }
    self->tail = tail;
    atomic_store_explicit(&self->map.page->tail, self->tail, memory_order_relaxed);
    /* The reader must see the new tail before it can see bytes of the new record. */
    atomic_thread_fence(memory_order_release);
}

void
proto_ring_append(proto_ring_writer_t *self, const proto_log_record_t *record)
{
    proto_ring_page_t *page = self->map.page;
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

uint64_t
proto_ring_strict_count(const proto_ring_writer_t *self)
{
    return atomic_load_explicit(&self->map.page->strict_count, memory_order_relaxed);
}

uint64_t
proto_ring_written_bytes(const proto_ring_writer_t *self)
{
    return self->head;
}

uint64_t
proto_ring_capacity_bytes(const proto_ring_writer_t *self)
{
    return self->map.capacity_bytes;
}
