/* The shared memory of a group of ranks.
 *
 * Everybody waits on one word, the pulse, which moves whenever anything does: a wait looks at what
 * it waits for, and sleeps for at most a look's time if the pulse stands still. */
#include "device_group.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto_require.h"

#define GROUP_MAGIC UINT64_C(0x31505552474b4e52)

enum {
    LINE_BYTES = 64,
    SPIN_COUNT = 400, /* looks before a wait sleeps: ranks may be more than processors */
    RECORD_ALIGN = 16,
    TEXT_WAIT_MS = 500,
};

#define WRAP_KIND UINT32_MAX /* the rest of the queue is not used */

typedef struct {
    _Alignas(LINE_BYTES) _Atomic uint64_t exchanged; /* the last exchange it said its part of */
    _Atomic uint64_t agreed;                         /* the last agreement */
    _Atomic uint64_t received;                       /* bytes of the queue that it is done with */
    _Atomic uint64_t values[2];                      /* of agreements, by parity */
    _Atomic uint32_t has_joined;
    _Atomic uint32_t has_left;
} member_t;

typedef struct {
    uint64_t magic;
    device_group_sizes_t sizes;
    _Alignas(LINE_BYTES) _Atomic uint32_t pulse;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t failing; /* somebody writes the text */
    _Atomic uint32_t failed;  /* it stands there */
    char text[DEVICE_GROUP_TEXT_SIZE_BYTES];
    _Alignas(LINE_BYTES) _Atomic uint64_t sent; /* bytes of the queue that are written */
    member_t members[DEVICE_GROUP_RANKS_MAX];
} shared_t;

typedef struct {
    uint32_t kind;
    uint32_t flags;
    uint64_t body_size_bytes;
    uint64_t blob_size_bytes;
    uint64_t total_bytes; /* with this, and with what aligns the next */
} record_t;

struct device_group {
    device_group_options_t options;
    shared_t *shared;
    size_t mapped_bytes;
    uint8_t *slots;
    uint8_t *queue;
    int fd; /* holds the lock */
    uint64_t agreement;
    uint64_t held_bytes; /* of the message that is lent */
    pthread_t thread;
    pthread_mutex_t lock; /* covers is_leaving */
    pthread_cond_t leaving;
    bool is_leaving;
};

static size_t
round_up(size_t size_bytes, size_t to)
{
    return (size_bytes + to - 1) / to * to;
}

static size_t
shared_size_bytes(const device_group_sizes_t *sizes)
{
    return round_up(sizeof(shared_t), LINE_BYTES) +
           (size_t)sizes->rank_count * 2 * sizes->slot_size_bytes + sizes->queue_size_bytes;
}

/* ---- waiting ----------------------------------------------------------------------------------
 */

static void
pulse(shared_t *shared)
{
    (void)atomic_fetch_add(&shared->pulse, 1);
    if (atomic_load(&shared->sleepers) > 0) {
        (void)syscall(SYS_futex, &shared->pulse, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

static void
sleep_on_pulse(shared_t *shared, uint32_t seen)
{
    const struct timespec look = {.tv_nsec = DEVICE_GROUP_LOOK_MS * 1000000L};
    (void)atomic_fetch_add(&shared->sleepers, 1);
    (void)syscall(SYS_futex, &shared->pulse, FUTEX_WAIT, seen, &look, NULL, 0);
    (void)atomic_fetch_sub(&shared->sleepers, 1);
}

typedef bool (*ready_fn)(const device_group_t *self, uint64_t wanted);

static uint64_t
now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* STATUS_AGAIN after `wait_ms`; UINT32_MAX = only the group's failure ends it. */
static proto_status_t
wait_until(device_group_t *self, ready_fn is_ready, uint64_t wanted, uint32_t wait_ms)
{
    shared_t *shared = self->shared;
    for (uint32_t i = 0; i < SPIN_COUNT; i++) {
        if (is_ready(self, wanted)) {
            return STATUS_OK;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    uint64_t until_ms = wait_ms == UINT32_MAX ? UINT64_MAX : now_ms() + wait_ms;
    for (;;) {
        uint32_t seen = atomic_load(&shared->pulse);
        if (is_ready(self, wanted)) {
            return STATUS_OK;
        }
        if (atomic_load(&shared->failed) != 0) {
            return STATUS_ERR_DEVICE;
        }
        if (until_ms != UINT64_MAX && now_ms() >= until_ms) {
            return STATUS_AGAIN;
        }
        sleep_on_pulse(shared, seen);
    }
}

/* ---- life and death ---------------------------------------------------------------------------
 */

/* Another rank is about to say why; should it die while it does, there is no text. */
static void
await_text(shared_t *shared)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    for (uint32_t i = 0; i < TEXT_WAIT_MS && atomic_load(&shared->failed) == 0; i++) {
        (void)nanosleep(&moment, NULL);
    }
    atomic_store(&shared->failed, 1);
}

void
device_group_fail(device_group_t *self, const char *format, ...)
{
    shared_t *shared = self->shared;
    uint32_t nobody = 0;
    if (!atomic_compare_exchange_strong(&shared->failing, &nobody, 1)) {
        await_text(shared);
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(shared->text, sizeof shared->text, format, args);
    va_end(args);
    atomic_store(&shared->failed, 1);
    pulse(shared);
}

const char *
device_group_fault(const device_group_t *self)
{
    return atomic_load(&self->shared->failed) != 0 ? self->shared->text : NULL;
}

/* Whether the process of that rank still holds its lock. */
static bool
is_alive(const device_group_t *self, uint32_t rank)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(self->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void
look_at_others(device_group_t *self)
{
    char text[DEVICE_GROUP_TEXT_SIZE_BYTES];
    uint32_t count = self->shared->sizes.rank_count;
    if (self->options.is_lost != NULL &&
        self->options.is_lost(self->options.context, text, sizeof text)) {
        device_group_fail(self, "%s", text);
    }
    for (uint32_t rank = 0; rank < count; rank++) {
        member_t *member = &self->shared->members[rank];
        bool is_expected = rank != self->options.rank && atomic_load(&member->has_joined) != 0;
        /* In this order: who leaves says so while it still lives. */
        if (is_expected && !is_alive(self, rank) && atomic_load(&member->has_left) == 0) {
            device_group_fail(self, "rank %u of %u was lost", rank, count);
        }
    }
}

static void *
watch_main(void *context)
{
    device_group_t *self = context;
    bool is_told = false;
    (void)pthread_mutex_lock(&self->lock);
    while (!self->is_leaving) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += DEVICE_GROUP_LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&self->leaving, &self->lock, &until);
        if (self->is_leaving) {
            break;
        }
        (void)pthread_mutex_unlock(&self->lock);
        look_at_others(self);
        if (!is_told && device_group_fault(self) != NULL) {
            is_told = true;
            if (self->options.on_failed != NULL) {
                self->options.on_failed(self->options.context);
            }
        }
        (void)pthread_mutex_lock(&self->lock);
    }
    (void)pthread_mutex_unlock(&self->lock);
    return NULL;
}

proto_status_t
device_group_create(const device_group_sizes_t *sizes, int *fd_p)
{
    require(sizes->rank_count >= 2 && sizes->rank_count <= DEVICE_GROUP_RANKS_MAX);
    require(sizes->slot_size_bytes % LINE_BYTES == 0 && sizes->slot_size_bytes > 0);
    require(sizes->queue_size_bytes % LINE_BYTES == 0 && sizes->queue_size_bytes > 0);
    size_t size_bytes = shared_size_bytes(sizes);
    int fd = memfd_create("onepath-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return STATUS_ERR_IO;
    }
    shared_t head = {.magic = GROUP_MAGIC, .sizes = *sizes};
    if (ftruncate(fd, (off_t)size_bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        pwrite(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) {
        (void)close(fd);
        return STATUS_ERR_NO_MEMORY;
    }
    *fd_p = fd;
    return STATUS_OK;
}

/* A description of its own: locks belong to it, and end with the process. */
static proto_status_t
open_place(device_group_t *self)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", self->options.fd);
    self->fd = open(path, O_RDWR | O_CLOEXEC);
    if (self->fd < 0) {
        return STATUS_ERR_IO;
    }
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = self->options.rank,
                         .l_len = 1};
    if (fcntl(self->fd, F_OFD_SETLK, &lock) != 0) {
        return errno == EAGAIN || errno == EACCES ? STATUS_ERR_INVALID : STATUS_ERR_IO;
    }
    return STATUS_OK;
}

static proto_status_t
map_shared(device_group_t *self)
{
    struct stat info;
    shared_t head;
    if (fstat(self->fd, &info) != 0) {
        return STATUS_ERR_IO;
    }
    if (pread(self->fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        head.magic != GROUP_MAGIC || head.sizes.rank_count > DEVICE_GROUP_RANKS_MAX ||
        self->options.rank >= head.sizes.rank_count ||
        shared_size_bytes(&head.sizes) != (size_t)info.st_size) {
        return STATUS_ERR_INVALID;
    }
    self->mapped_bytes = (size_t)info.st_size;
    void *mapped = mmap(NULL, self->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, self->fd, 0);
    if (mapped == MAP_FAILED) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->shared = mapped;
    self->slots = (uint8_t *)mapped + round_up(sizeof(shared_t), LINE_BYTES);
    self->queue = self->slots + (size_t)head.sizes.rank_count * 2 * head.sizes.slot_size_bytes;
    return STATUS_OK;
}

static void
close_place(device_group_t *self)
{
    if (self->shared != NULL) {
        (void)munmap(self->shared, self->mapped_bytes);
    }
    if (self->fd >= 0) {
        (void)close(self->fd);
    }
    free(self);
}

proto_status_t
device_group_join(const device_group_options_t *options, device_group_t **out_p)
{
    device_group_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    proto_status_t status = open_place(self);
    if (status == STATUS_OK) {
        status = map_shared(self);
    }
    if (status != STATUS_OK) {
        close_place(self);
        return status;
    }
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->leaving, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (pthread_create(&self->thread, NULL, watch_main, self) != 0) {
        close_place(self);
        return STATUS_ERR_NO_MEMORY;
    }
    atomic_store(&self->shared->members[options->rank].has_joined, 1);
    pulse(self->shared);
    *out_p = self;
    return STATUS_OK;
}

void
device_group_leave(device_group_t **self_p)
{
    device_group_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&self->lock);
    self->is_leaving = true;
    (void)pthread_cond_signal(&self->leaving);
    (void)pthread_mutex_unlock(&self->lock);
    (void)pthread_join(self->thread, NULL);
    atomic_store(&self->shared->members[self->options.rank].has_left, 1);
    pulse(self->shared);
    (void)pthread_cond_destroy(&self->leaving);
    (void)pthread_mutex_destroy(&self->lock);
    close_place(self);
    *self_p = NULL;
}

uint32_t
device_group_rank(const device_group_t *self)
{
    return self->options.rank;
}

uint32_t
device_group_rank_count(const device_group_t *self)
{
    return self->shared->sizes.rank_count;
}

/* ---- agreements -------------------------------------------------------------------------------
 */

static bool
all_agreed(const device_group_t *self, uint64_t wanted)
{
    for (uint32_t rank = 0; rank < self->shared->sizes.rank_count; rank++) {
        if (atomic_load(&self->shared->members[rank].agreed) < wanted) {
            return false;
        }
    }
    return true;
}

/* Values of all ranks in `out`.  Two parities are enough: nobody gives a value of the agreement
 * after next before all have taken those of this one. */
static proto_status_t
agree(device_group_t *self, uint64_t value, uint64_t out[DEVICE_GROUP_RANKS_MAX])
{
    shared_t *shared = self->shared;
    uint64_t number = ++self->agreement;
    member_t *own = &shared->members[self->options.rank];
    atomic_store(&own->values[number % 2], value);
    atomic_store(&own->agreed, number);
    pulse(shared);
    proto_status_t status = wait_until(self, all_agreed, number, UINT32_MAX);
    for (uint32_t rank = 0; status == STATUS_OK && rank < shared->sizes.rank_count; rank++) {
        out[rank] = atomic_load(&shared->members[rank].values[number % 2]);
    }
    return status;
}

proto_status_t
device_group_agree_min(device_group_t *self, uint64_t value, uint64_t *out)
{
    uint64_t values[DEVICE_GROUP_RANKS_MAX] = {0};
    proto_status_t status = agree(self, value, values);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t least = value;
    for (uint32_t rank = 0; rank < self->shared->sizes.rank_count; rank++) {
        least = values[rank] < least ? values[rank] : least;
    }
    *out = least;
    return STATUS_OK;
}

proto_status_t
device_group_agree_same(device_group_t *self, uint64_t digest, const char *what)
{
    uint64_t values[DEVICE_GROUP_RANKS_MAX] = {0};
    proto_status_t status = agree(self, digest, values);
    for (uint32_t rank = 1; status == STATUS_OK && rank < self->shared->sizes.rank_count; rank++) {
        if (values[rank] != values[0]) {
            device_group_fail(self, "rank %u differs from rank 0 in %s", rank, what);
            status = STATUS_ERR_DEVICE;
        }
    }
    return status;
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static uint64_t
least_received(const device_group_t *self)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t rank = 1; rank < self->shared->sizes.rank_count; rank++) {
        uint64_t received = atomic_load(&self->shared->members[rank].received);
        least = received < least ? received : least;
    }
    return least;
}

static bool
has_room(const device_group_t *self, uint64_t end)
{
    return end - least_received(self) <= self->shared->sizes.queue_size_bytes;
}

proto_status_t
device_group_send(device_group_t *self, const device_group_message_t *message)
{
    shared_t *shared = self->shared;
    require(self->options.rank == 0);
    size_t size_bytes = shared->sizes.queue_size_bytes;
    size_t body_bytes = round_up(message->body_size_bytes, RECORD_ALIGN);
    size_t total = round_up(sizeof(record_t) + body_bytes + message->blob_size_bytes, LINE_BYTES);
    if (total > size_bytes / 2) {
        return STATUS_ERR_TOO_LARGE;
    }
    uint64_t at = atomic_load(&shared->sent);
    size_t rest = size_bytes - at % size_bytes;
    size_t skipped = rest < total ? rest : 0;
    proto_status_t status = wait_until(self, has_room, at + skipped + total, UINT32_MAX);
    if (status != STATUS_OK) {
        return status;
    }
    if (skipped > 0) {
        record_t wrap = {.kind = WRAP_KIND, .total_bytes = skipped};
        memcpy(self->queue + at % size_bytes, &wrap, sizeof wrap);
        at += skipped;
    }
    record_t record = {.kind = message->kind,
                       .flags = message->flags,
                       .body_size_bytes = message->body_size_bytes,
                       .blob_size_bytes = message->blob_size_bytes,
                       .total_bytes = total};
    uint8_t *to = self->queue + at % size_bytes;
    memcpy(to, &record, sizeof record);
    if (message->body_size_bytes > 0) {
        memcpy(to + sizeof record, message->body, message->body_size_bytes);
    }
    if (message->blob_size_bytes > 0) {
        memcpy(to + sizeof record + body_bytes, message->blob, message->blob_size_bytes);
    }
    atomic_store(&shared->sent, at + total);
    pulse(shared);
    return STATUS_OK;
}

static bool
has_message(const device_group_t *self, uint64_t at)
{
    return atomic_load(&self->shared->sent) > at;
}

proto_status_t
device_group_receive(device_group_t *self, uint32_t wait_ms, device_group_message_t *out)
{
    shared_t *shared = self->shared;
    require(self->options.rank > 0);
    _Atomic uint64_t *received = &shared->members[self->options.rank].received;
    size_t size_bytes = shared->sizes.queue_size_bytes;
    for (;;) {
        if (self->held_bytes > 0) {
            (void)atomic_fetch_add(received, self->held_bytes);
            self->held_bytes = 0;
            pulse(shared);
        }
        uint64_t at = atomic_load(received);
        proto_status_t status = wait_until(self, has_message, at, wait_ms);
        if (status != STATUS_OK) {
            return status;
        }
        const uint8_t *from = self->queue + at % size_bytes; /* LINE_BYTES aligned */
        const record_t *record = (const record_t *)(const void *)from;
        self->held_bytes = record->total_bytes;
        if (record->kind != WRAP_KIND) {
            size_t body_bytes = round_up(record->body_size_bytes, RECORD_ALIGN);
            *out = (device_group_message_t){
                .kind = record->kind,
                .flags = record->flags,
                .body = from + sizeof *record,
                .body_size_bytes = record->body_size_bytes,
                .blob = from + sizeof *record + body_bytes,
                .blob_size_bytes = record->blob_size_bytes,
            };
            return STATUS_OK;
        }
    }
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

void *
device_group_slot(const device_group_t *self, uint32_t rank, uint32_t parity)
{
    return self->slots + ((size_t)rank * 2 + parity) * self->shared->sizes.slot_size_bytes;
}

size_t
device_group_slot_size_bytes(const device_group_t *self)
{
    return self->shared->sizes.slot_size_bytes;
}

uint64_t
device_group_exchanged(const device_group_t *self)
{
    return atomic_load(&self->shared->members[self->options.rank].exchanged);
}

static bool
all_exchanged(const device_group_t *self, uint64_t wanted)
{
    for (uint32_t rank = 0; rank < self->shared->sizes.rank_count; rank++) {
        if (atomic_load(&self->shared->members[rank].exchanged) < wanted) {
            return false;
        }
    }
    return true;
}

bool
device_group_exchange(device_group_t *self, uint64_t number)
{
    atomic_store(&self->shared->members[self->options.rank].exchanged, number);
    pulse(self->shared);
    return wait_until(self, all_exchanged, number, UINT32_MAX) == STATUS_OK;
}
