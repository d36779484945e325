/* Collectives of the host device: put a piece into this rank's slot, exchange, take the slots of
 * all.  Three commands, with the team's barrier between them; the middle one is thread 0's. */
#include <stdlib.h>
#include <string.h>

#include "device_comm.h"
#include "device_host_private.h"
#include "proto_require.h"

enum { CHUNK_FLOATS = 2048 };

typedef struct {
    device_comm_t base; /* first */
    device_group_t *group;
    uint64_t number; /* of the exchange under way; the stream's thread alone writes it */
    bool is_broken;  /* the group failed: nothing is exchanged any more */
} host_comm_t;

/* A matrix in this rank's memory and in its slot, or a run of bytes. */
typedef struct {
    host_comm_t *comm;
    float *local;        /* of the piece */
    size_t local_stride; /* floats; GATHER: of the whole */
    uint32_t rows;
    uint32_t cols;  /* of a row: SUM, one row */
    uint32_t share; /* GATHER */
    const void *bytes;
    size_t size_bytes;
    const char *what;
} comm_args_t;

static float *
slot_of(const comm_args_t *a, uint32_t rank)
{
    return device_group_slot(a->comm->group, rank, (uint32_t)(a->comm->number % 2));
}

/* The slot of the exchange that comes next. */
static void *
next_slot(const comm_args_t *a)
{
    uint32_t parity = (uint32_t)((a->comm->number + 1) % 2);
    return device_group_slot(a->comm->group, a->comm->base.rank, parity);
}

/* Runs of at most CHUNK_FLOATS floats, claimed one by one. */
static bool
claim(kern_share_t *share, size_t count, size_t *begin, size_t *end)
{
    size_t at = (size_t)kern_share_claim(share) * CHUNK_FLOATS;
    *begin = at < count ? at : count;
    *end = count - *begin < CHUNK_FLOATS ? count : *begin + CHUNK_FLOATS;
    return *begin < *end;
}

static void
put_floats(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    size_t begin;
    size_t end;
    if (a->comm->is_broken) {
        return;
    }
    float *slot = next_slot(a);
    while (claim(share, (size_t)a->rows * a->cols, &begin, &end)) {
        memcpy(slot + begin, a->local + begin, (end - begin) * sizeof *slot);
    }
}

static void
exchange(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    host_comm_t *self = a->comm;
    if (share->thread_index != 0 || self->is_broken) {
        return;
    }
    self->number++;
    if (!device_group_exchange(self->group, self->number)) {
        self->is_broken = true;
        self->base.device->fault = device_group_fault(self->group);
    }
}

static void
sum(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    size_t begin;
    size_t end;
    if (a->comm->is_broken) {
        return;
    }
    while (claim(share, a->cols, &begin, &end)) {
        const float *first = slot_of(a, 0);
        const float *second = slot_of(a, 1);
        for (size_t i = begin; i < end; i++) {
            a->local[i] = first[i] + second[i];
        }
        for (uint32_t rank = 2; rank < a->comm->base.rank_count; rank++) {
            const float *next = slot_of(a, rank);
            for (size_t i = begin; i < end; i++) {
                a->local[i] += next[i];
            }
        }
    }
}

/* A chunk is a row of a rank. */
static void
gather(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    uint32_t ranks = a->comm->base.rank_count;
    uint32_t total = (uint32_t)a->local_stride;
    if (a->comm->is_broken) {
        return;
    }
    for (uint32_t at = kern_share_claim(share); at < a->rows * ranks;
         at = kern_share_claim(share)) {
        uint32_t rank = at % ranks;
        uint32_t row = at / ranks;
        uint32_t begin = rank * a->share < total ? rank * a->share : total;
        uint32_t cols = total - begin < a->share ? total - begin : a->share;
        memcpy(a->local + row * a->local_stride + begin, slot_of(a, rank) + (size_t)row * cols,
               cols * sizeof(float));
    }
}

static void
put_bytes(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    if (share->thread_index == 0 && !a->comm->is_broken && a->comm->base.rank == 0) {
        memcpy(next_slot(a), a->bytes, a->size_bytes);
    }
}

static void
take_bytes(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    if (share->thread_index == 0 && !a->comm->is_broken && a->comm->base.rank != 0) {
        memcpy(a->local, slot_of(a, 0), a->size_bytes);
    }
}

static uint64_t
digest_of(const uint8_t *bytes, size_t size_bytes)
{
    uint64_t digest = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size_bytes; i++) {
        digest = (digest ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return digest;
}

static void
put_digest(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    if (share->thread_index == 0 && !a->comm->is_broken) {
        uint64_t digest = digest_of(a->bytes, a->size_bytes);
        memcpy(next_slot(a), &digest, sizeof digest);
    }
}

static uint64_t
digest_in(const comm_args_t *a, uint32_t rank)
{
    uint64_t digest;
    memcpy(&digest, slot_of(a, rank), sizeof digest);
    return digest;
}

static void
compare_digests(const void *args, kern_share_t *share)
{
    const comm_args_t *a = args;
    host_comm_t *self = a->comm;
    if (share->thread_index != 0 || self->is_broken) {
        return;
    }
    for (uint32_t rank = 1; rank < self->base.rank_count; rank++) {
        if (digest_in(a, rank) != digest_in(a, 0)) {
            device_group_fail(self->group, "rank %u differs from rank 0 in %s", rank, a->what);
            self->is_broken = true;
            self->base.device->fault = device_group_fault(self->group);
            return;
        }
    }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

static void
launch(device_stream_t *stream, kern_host_fn function, const comm_args_t *args)
{
    _Static_assert(sizeof *args <= DEVICE_ARGS_SIZE_MAX, "arguments fit");
    command_t *command = device_host_push(stream);
    command->kind = COMMAND_KERNEL;
    command->function = function;
    memcpy(command->u.args, args, sizeof *args);
    device_host_commit(stream);
}

static size_t
slot_floats(const host_comm_t *self)
{
    return device_group_slot_size_bytes(self->group) / sizeof(float);
}

static void
host_all_reduce(device_comm_t *base, device_stream_t *stream, float *values, size_t count)
{
    host_comm_t *self = (host_comm_t *)base;
    size_t most = slot_floats(self);
    for (size_t at = 0; at < count; at += most) {
        size_t size = count - at < most ? count - at : most;
        comm_args_t args = {.comm = self, .local = values + at, .rows = 1, .cols = (uint32_t)size};
        launch(stream, put_floats, &args);
        launch(stream, exchange, &args);
        launch(stream, sum, &args);
    }
}

static void
host_all_gather(device_comm_t *base, device_stream_t *stream, const device_gather_t *g)
{
    host_comm_t *self = (host_comm_t *)base;
    require(g->share > 0);
    uint32_t begin = base->rank * g->share < g->cols ? base->rank * g->share : g->cols;
    uint32_t own = g->cols - begin < g->share ? g->cols - begin : g->share;
    uint32_t most = (uint32_t)(slot_floats(self) / g->share);
    require(most > 0);
    for (uint32_t at = 0; at < g->rows; at += most) {
        uint32_t rows = g->rows - at < most ? g->rows - at : most;
        comm_args_t put = {.comm = self, .rows = rows, .cols = own};
        put.local = (float *)g->part + (size_t)at * own; /* only read */
        comm_args_t take = {.comm = self,
                            .local = g->whole + (size_t)at * g->cols,
                            .local_stride = g->cols,
                            .rows = rows,
                            .share = g->share};
        launch(stream, put_floats, &put);
        launch(stream, exchange, &put);
        launch(stream, gather, &take);
    }
}

static void
host_broadcast(device_comm_t *base, device_stream_t *stream, void *bytes, size_t size_bytes)
{
    host_comm_t *self = (host_comm_t *)base;
    size_t most = device_group_slot_size_bytes(self->group);
    for (size_t at = 0; at < size_bytes; at += most) {
        comm_args_t args = {.comm = self,
                            .local = (float *)(void *)((uint8_t *)bytes + at),
                            .bytes = (uint8_t *)bytes + at,
                            .size_bytes = size_bytes - at < most ? size_bytes - at : most};
        launch(stream, put_bytes, &args);
        launch(stream, exchange, &args);
        launch(stream, take_bytes, &args);
    }
}

static void
host_agree(device_comm_t *base, device_stream_t *stream, const void *bytes, size_t size_bytes,
           const char *what)
{
    comm_args_t args = {.comm = (host_comm_t *)base,
                        .bytes = bytes,
                        .size_bytes = size_bytes,
                        .what = what};
    launch(stream, put_digest, &args);
    launch(stream, exchange, &args);
    launch(stream, compare_digests, &args);
}

static void
host_destroy(device_comm_t *base)
{
    free((host_comm_t *)base);
}

static const device_comm_vtable_t host_vtable = {
    .destroy = host_destroy,
    .all_reduce = host_all_reduce,
    .all_gather = host_all_gather,
    .broadcast = host_broadcast,
    .agree = host_agree,
};

proto_status_t
device_host_comm_new(device_t *device, device_group_t *group, device_comm_t **out_p)
{
    host_comm_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base = (device_comm_t){.vtable = &host_vtable,
                                 .device = device,
                                 .rank = device_group_rank(group),
                                 .rank_count = device_group_rank_count(group)};
    self->group = group;
    self->number = device_group_exchanged(group);
    *out_p = &self->base;
    return STATUS_OK;
}

/* ---- any device -------------------------------------------------------------------------------
 */

void
device_comm_destroy(device_comm_t **self_p)
{
    if (*self_p != NULL) {
        (*self_p)->vtable->destroy(*self_p);
        *self_p = NULL;
    }
}

void
device_comm_all_reduce(device_comm_t *self, device_stream_t *stream, float *values, size_t count)
{
    self->vtable->all_reduce(self, stream, values, count);
}

void
device_comm_all_gather(device_comm_t *self, device_stream_t *stream, const device_gather_t *gather)
{
    self->vtable->all_gather(self, stream, gather);
}

void
device_comm_broadcast(device_comm_t *self, device_stream_t *stream, void *bytes, size_t size_bytes)
{
    self->vtable->broadcast(self, stream, bytes, size_bytes);
}

void
device_comm_agree(device_comm_t *self, device_stream_t *stream, const void *bytes,
                  size_t size_bytes, const char *what)
{
    self->vtable->agree(self, stream, bytes, size_bytes, what);
}
