/* The file and its words.
 *
 * Long because writer and reader of one layout stand side by side. */
#include "draft_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto_clock.h"
#include "proto_require.h"

enum {
    RING_VERSION = 1,
    LINE = 64, /* bytes; columns begin on one */
    WIDTH_MAX = 16,
    COLUMN_COUNT = 17,
};

static const uint64_t RING_MAGIC = UINT64_C(0x31474e495254464f);
static const uint64_t SIZE_MAX_BYTES = UINT64_C(16) << 30;

typedef struct {
    uint64_t magic;
    uint32_t version;
    draft_ring_options_t options;
    uint64_t size_bytes;
    _Alignas(LINE) _Atomic uint64_t epoch; /* admitted; 0 = nobody */
} ring_header_t;

typedef struct {
    _Alignas(LINE) _Atomic uint32_t posted;
    _Alignas(LINE) _Atomic uint32_t answered;
    _Atomic uint64_t answer_step;
    _Atomic uint64_t answer_epoch;
    draft_ring_head_t head;
} ring_control_t;

/* An entry of the token store; odd generations are being written. */
typedef struct {
    _Alignas(LINE) _Atomic uint32_t generation;
    _Atomic uint32_t count;
} ring_entry_t;

struct draft_ring {
    draft_ring_options_t options;
    bool is_owner;
    char path[256];
    uint8_t *memory;
    size_t size_bytes;
    size_t slot_bytes;            /* of a ring slot */
    size_t slots_at;              /* offset of the first */
    size_t entries_at;            /* of the store's entries */
    size_t tokens_at;             /* of its tokens */
    size_t tokens_bytes;          /* of one entry's */
    size_t columns[COLUMN_COUNT]; /* offsets within a ring slot */
};

/* ---- layout ---------------------------------------------------------------------------------- */

static size_t
align(size_t size_bytes)
{
    return (size_bytes + LINE - 1) / LINE * LINE;
}

static bool
sizes_are_sound(const draft_ring_options_t *o)
{
    return o->slot_count >= 1 && o->slot_count <= 4096 && o->width >= 2 && o->width <= WIDTH_MAX &&
           o->vocabulary >= 1 && o->vocabulary <= 1 << 24 && o->model_len_max >= 1 &&
           o->model_len_max <= 1 << 20 && o->rows_max >= o->slot_count && o->rows_max <= 1 << 20 &&
           o->hidden_stride <= 1 << 20;
}

/* The sizes of all columns, as draft_ring_view_t names them. */
static void
lay_out(draft_ring_t *self)
{
    const draft_ring_options_t *o = &self->options;
    size_t bs = o->slot_count;
    size_t rows = o->hidden_stride > 0 ? o->rows_max : 0;
    size_t width = o->width;
    const size_t sizes[COLUMN_COUNT] = {
        bs * 4,
        bs * 4,
        bs * 4,
        bs * 4,
        bs * 4,
        bs * 4,
        bs * 4,
        (bs + 1) * 4,
        bs * 4,
        bs * 4,
        bs * width * 4,
        rows * 4,
        rows * 4,
        rows * o->hidden_stride * sizeof(float),
        bs,
        bs * 4,
        bs * (width - 1) * 4,
    };
    size_t at = align(sizeof(ring_control_t));
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        self->columns[i] = at;
        at += align(sizes[i]);
    }
    self->slot_bytes = at;
    self->slots_at = align(sizeof(ring_header_t));
    self->entries_at = self->slots_at + DRAFT_RING_SLOT_COUNT * self->slot_bytes;
    self->tokens_at = self->entries_at + (bs + 1) * sizeof(ring_entry_t);
    self->tokens_bytes = align((size_t)o->model_len_max * 4);
    self->size_bytes = self->tokens_at + (bs + 1) * self->tokens_bytes;
}

static ring_header_t *
header_of(const draft_ring_t *self)
{
    return (ring_header_t *)(void *)self->memory;
}

static ring_control_t *
control_of(const draft_ring_t *self, uint32_t index)
{
    require(index < DRAFT_RING_SLOT_COUNT);
    return (ring_control_t *)(void *)(self->memory + self->slots_at + index * self->slot_bytes);
}

static ring_entry_t *
entry_of(const draft_ring_t *self, uint32_t slot)
{
    require(slot <= self->options.slot_count);
    return (ring_entry_t *)(void *)(self->memory + self->entries_at + slot * sizeof(ring_entry_t));
}

static int32_t *
tokens_of(const draft_ring_t *self, uint32_t slot)
{
    return (int32_t *)(void *)(self->memory + self->tokens_at + slot * self->tokens_bytes);
}

draft_ring_view_t
draft_ring_view(const draft_ring_t *self, uint32_t index)
{
    ring_control_t *control = control_of(self, index);
    uint8_t *base = (uint8_t *)control;
    void *at[COLUMN_COUNT];
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        at[i] = base + self->columns[i];
    }
    return (draft_ring_view_t){
        .head = &control->head,
        .slots = at[0],
        .generations = at[1],
        .lengths = at[2],
        .prefix_lens = at[3],
        .extend_lens = at[4],
        .next_ids = at[5],
        .token_rows = at[6],
        .cu_lens = at[7],
        .seq_lens = at[8],
        .accept_lengths = at[9],
        .tokens = at[10],
        .input_ids = at[11],
        .positions = at[12],
        .hidden = self->options.hidden_stride > 0 ? at[13] : NULL,
        .samples = at[14],
        .counts = at[15],
        .candidates = at[16],
    };
}

/* ---- the file -------------------------------------------------------------------------------- */

static proto_status_t
ring_alloc(const char *path, const draft_ring_options_t *options, draft_ring_t **out_p)
{
    if (!sizes_are_sound(options) || strlen(path) >= sizeof((draft_ring_t *)0)->path) {
        return STATUS_ERR_CONFIG;
    }
    draft_ring_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    memcpy(self->path, path, strlen(path) + 1);
    lay_out(self);
    if (self->size_bytes > SIZE_MAX_BYTES) {
        free(self);
        return STATUS_ERR_CONFIG;
    }
    *out_p = self;
    return STATUS_OK;
}

static proto_status_t
ring_map(draft_ring_t *self, int fd)
{
    void *memory = mmap(NULL, self->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return STATUS_ERR_IO;
    }
    self->memory = memory;
    return STATUS_OK;
}

proto_status_t
draft_ring_create(const char *path, const draft_ring_options_t *options, draft_ring_t **out_p)
{
    require(path != NULL);
    require(options != NULL);
    draft_ring_t *self = NULL;
    proto_status_t status = ring_alloc(path, options, &self);
    if (status != STATUS_OK) {
        return status;
    }
    (void)unlink(path); /* who still maps the old one keeps it, and is told of this one */
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    status = STATUS_ERR_IO;
    if (fd < 0) {
        goto err;
    }
    self->is_owner = true;
    /* Blocks are taken now: a full disk is an error here, and no SIGBUS later. */
    int result = posix_fallocate(fd, 0, (off_t)self->size_bytes);
    if (result != 0) {
        errno = result;
        goto err_close;
    }
    status = ring_map(self, fd);
    if (status != STATUS_OK) {
        goto err_close;
    }
    close(fd);
    ring_header_t *header = header_of(self);
    header->version = RING_VERSION;
    header->options = *options;
    header->size_bytes = self->size_bytes;
    header->magic = RING_MAGIC;
    *out_p = self;
    return STATUS_OK;

err_close:
    close(fd);
err:
    draft_ring_destroy(&self);
    return status;
}

/* What the header says, if it is one, with the reader's own values where they must agree. */
static proto_status_t
read_header(int fd, const draft_ring_options_t *wanted, draft_ring_options_t *out)
{
    ring_header_t header;
    struct stat info;
    if (fstat(fd, &info) != 0 || pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header) {
        return STATUS_ERR_MALFORMED;
    }
    const draft_ring_options_t *o = &header.options;
    if (header.magic != RING_MAGIC || header.version != RING_VERSION ||
        header.size_bytes != (uint64_t)info.st_size || o->ring_id != wanted->ring_id ||
        o->slot_count != wanted->slot_count || o->width != wanted->width ||
        o->vocabulary != wanted->vocabulary || o->model_len_max != wanted->model_len_max) {
        return STATUS_ERR_MALFORMED;
    }
    *out = *o;
    return sizes_are_sound(o) ? STATUS_OK : STATUS_ERR_MALFORMED;
}

proto_status_t
draft_ring_open(const char *path, const draft_ring_options_t *options, draft_ring_t **out_p)
{
    require(path != NULL);
    require(options != NULL);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return STATUS_ERR_IO;
    }
    draft_ring_options_t found;
    draft_ring_t *self = NULL;
    proto_status_t status = read_header(fd, options, &found);
    if (status == STATUS_OK) {
        status = ring_alloc(path, &found, &self);
    }
    struct stat info;
    if (status == STATUS_OK &&
        (fstat(fd, &info) != 0 || (uint64_t)info.st_size != self->size_bytes)) {
        status = STATUS_ERR_MALFORMED;
    }
    if (status == STATUS_OK) {
        status = ring_map(self, fd);
    }
    close(fd);
    if (status != STATUS_OK) {
        draft_ring_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
draft_ring_destroy(draft_ring_t **self_p)
{
    require(self_p != NULL);
    draft_ring_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->memory != NULL) {
        (void)munmap(self->memory, self->size_bytes);
    }
    if (self->is_owner) {
        (void)unlink(self->path);
    }
    free(self);
    *self_p = NULL;
}

const draft_ring_options_t *
draft_ring_options(const draft_ring_t *self)
{
    return &self->options;
}

size_t
draft_ring_size_bytes(const draft_ring_t *self)
{
    return self->size_bytes;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void
wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, (uint32_t *)(void *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps while the word is `seen`, until the deadline. */
static void
sleep_on(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                   .tv_nsec = (long)(deadline_ns % 1000000000u)};
    (void)syscall(SYS_futex, (uint32_t *)(void *)word, FUTEX_WAIT_BITSET, seen, &until, NULL,
                  FUTEX_BITSET_MATCH_ANY);
}

static bool
is_over(uint64_t deadline_ns)
{
    return deadline_ns == 0 || proto_clock_monotonic_ns(proto_clock_system()) >= deadline_ns;
}

void
draft_ring_admit(draft_ring_t *self, uint64_t epoch)
{
    atomic_store_explicit(&header_of(self)->epoch, epoch, memory_order_seq_cst);
    for (uint32_t i = 0; i < DRAFT_RING_SLOT_COUNT; i++) {
        ring_control_t *control = control_of(self, i);
        /* Another value, so that nobody falls asleep on the old one after the wake-up. */
        atomic_store_explicit(&control->answered, 0, memory_order_release);
        wake(&control->answered);
        wake(&control->posted);
    }
}

void
draft_ring_post(draft_ring_t *self, uint32_t index, uint64_t step)
{
    ring_control_t *control = control_of(self, index);
    atomic_store_explicit(&control->posted, (uint32_t)step, memory_order_release);
    wake(&control->posted);
}

proto_status_t
draft_ring_wait_answer(draft_ring_t *self, uint32_t index, uint64_t step, uint64_t deadline_ns)
{
    ring_control_t *control = control_of(self, index);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&control->answered, memory_order_acquire);
        uint64_t epoch = atomic_load_explicit(&header_of(self)->epoch, memory_order_seq_cst);
        if (epoch == 0) {
            return STATUS_ERR_CANCELLED;
        }
        if (seen == (uint32_t)step) {
            bool is_right = atomic_load(&control->answer_step) == step &&
                            atomic_load(&control->answer_epoch) == epoch;
            return is_right ? STATUS_OK : STATUS_ERR_STALE;
        }
        if (is_over(deadline_ns)) {
            return STATUS_AGAIN;
        }
        sleep_on(&control->answered, seen, deadline_ns);
    }
}

proto_status_t
draft_ring_wait_round(draft_ring_t *self, uint32_t index, uint64_t step, uint64_t epoch,
                      uint64_t deadline_ns)
{
    ring_control_t *control = control_of(self, index);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&control->posted, memory_order_acquire);
        if (atomic_load_explicit(&header_of(self)->epoch, memory_order_seq_cst) != epoch) {
            return STATUS_ERR_CANCELLED;
        }
        if (seen == (uint32_t)step) {
            return STATUS_OK;
        }
        if ((int32_t)(seen - (uint32_t)step) > 0) {
            return STATUS_ERR_STALE;
        }
        if (is_over(deadline_ns)) {
            return STATUS_AGAIN;
        }
        sleep_on(&control->posted, seen, deadline_ns);
    }
}

void
draft_ring_answer(draft_ring_t *self, uint32_t index, uint64_t step, uint64_t epoch)
{
    ring_control_t *control = control_of(self, index);
    atomic_store(&control->answer_step, step);
    atomic_store(&control->answer_epoch, epoch);
    atomic_store_explicit(&control->answered, (uint32_t)step, memory_order_release);
    wake(&control->answered);
}

/* ---- the token store ------------------------------------------------------------------------- */

uint32_t
draft_ring_store_begin(draft_ring_t *self, uint32_t slot, const int32_t *tokens, uint32_t count)
{
    ring_entry_t *entry = entry_of(self, slot);
    uint32_t generation = atomic_load_explicit(&entry->generation, memory_order_relaxed);
    atomic_store_explicit(&entry->generation, generation + 1, memory_order_seq_cst);
    count = count < self->options.model_len_max ? count : self->options.model_len_max;
    if (count > 0) {
        memcpy(tokens_of(self, slot), tokens, count * sizeof *tokens);
    }
    atomic_store_explicit(&entry->count, count, memory_order_relaxed);
    atomic_store_explicit(&entry->generation, generation + 2, memory_order_seq_cst);
    return generation + 2;
}

uint32_t
draft_ring_store_append(draft_ring_t *self, uint32_t slot, uint32_t known, const int32_t *tokens,
                        uint32_t count)
{
    /* The entry's own count can be written by the other side. */
    ring_entry_t *entry = entry_of(self, slot);
    known = known < self->options.model_len_max ? known : self->options.model_len_max;
    uint32_t room = self->options.model_len_max - known;
    count = count < room ? count : room;
    if (count > 0) {
        memcpy(tokens_of(self, slot) + known, tokens, count * sizeof *tokens);
    }
    atomic_store_explicit(&entry->count, known + count, memory_order_release);
    return known + count;
}

uint32_t
draft_ring_store_generation(const draft_ring_t *self, uint32_t slot)
{
    return atomic_load_explicit(&entry_of(self, slot)->generation, memory_order_relaxed);
}

bool
draft_ring_store_read(const draft_ring_t *self, uint32_t slot, uint32_t generation, int32_t *out,
                      uint32_t count)
{
    if (slot == 0 || slot > self->options.slot_count || count > self->options.model_len_max ||
        generation % 2 != 0) {
        return false;
    }
    const ring_entry_t *entry = entry_of(self, slot);
    if (atomic_load_explicit(&entry->generation, memory_order_seq_cst) != generation ||
        atomic_load_explicit(&entry->count, memory_order_acquire) < count) {
        return false;
    }
    if (count > 0) {
        memcpy(out, tokens_of(self, slot), count * sizeof *out);
    }
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&entry->generation, memory_order_seq_cst) != generation) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if ((uint32_t)out[i] >= self->options.vocabulary) {
            return false;
        }
    }
    return true;
}
