/* The host device: memory, pools, capture. */
#include "device_host.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device_host_private.h"
#include "proto_require.h"

/* What stands in front of an allocation; one alignment unit. */
typedef struct {
    size_t mapped_bytes;
    size_t size_bytes; /* as asked for */
    size_t front;      /* bytes of the mapping before the memory */
    int fd;            /* of SHARED memory; -1 */
} allocation_t;

_Static_assert(sizeof(allocation_t) <= DEVICE_MEMORY_ALIGN, "it stands in one alignment unit");

/* A file in memory that nobody can shrink under those who map it; -1. */
static int
open_memory_file(size_t size_bytes)
{
    int fd = memfd_create("onepath-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return -1;
    }
    if (ftruncate(fd, (off_t)size_bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* The file takes the place of all but the first page, in which our own note of it stands: nobody
 * else can write that. */
static proto_status_t
alloc_shared(host_device_t *device, size_t size_bytes, void **out_p)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t file_bytes = (size_bytes + page - 1) / page * page;
    size_t mapped_bytes = file_bytes + page;
    int fd = open_memory_file(file_bytes);
    if (fd < 0) {
        return STATUS_ERR_NO_MEMORY;
    }
    uint8_t *mapped = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        (void)close(fd);
        return STATUS_ERR_NO_MEMORY;
    }
    if (mmap(mapped + page, file_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
        (void)munmap(mapped, mapped_bytes);
        (void)close(fd);
        return STATUS_ERR_NO_MEMORY;
    }
    allocation_t *allocation = (allocation_t *)(void *)(mapped + page - DEVICE_MEMORY_ALIGN);
    *allocation = (allocation_t){.mapped_bytes = mapped_bytes,
                                 .size_bytes = size_bytes,
                                 .front = page,
                                 .fd = fd};
    device->used_bytes += mapped_bytes;
    *out_p = mapped + page;
    return STATUS_OK;
}

bool
device_host_in_capture(device_t *base)
{
    host_device_t *device = (host_device_t *)base;
    if (atomic_load_explicit(&device->capture_count, memory_order_relaxed) == 0) {
        return false;
    }
    atomic_store(&device->capture_spoilt, true);
    return true;
}

/* Anonymous mappings are zeroed and become resident page by page: an arena that is sized for the
 * worst case costs only what is used. */
static proto_status_t
host_alloc(device_t *base, device_memory_t kind, size_t size_bytes, void **out_p)
{
    if (device_host_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    if (size_bytes > SIZE_MAX / 2) {
        return STATUS_ERR_NO_MEMORY;
    }
    if (kind == DEVICE_MEMORY_SHARED) {
        return alloc_shared((host_device_t *)base, size_bytes, out_p);
    }
    size_t mapped_bytes = size_bytes + DEVICE_MEMORY_ALIGN;
    void *mapped = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return STATUS_ERR_NO_MEMORY;
    }
    if (kind == DEVICE_MEMORY_WEIGHTS) {
        /* A step reads all of it: with small pages a tenth of the time goes to address look-ups.
         * Where there are no large pages nothing is lost. */
        (void)madvise(mapped, mapped_bytes, MADV_HUGEPAGE);
    }
    *(allocation_t *)mapped = (allocation_t){.mapped_bytes = mapped_bytes,
                                             .size_bytes = size_bytes,
                                             .front = DEVICE_MEMORY_ALIGN,
                                             .fd = -1};
    ((host_device_t *)base)->used_bytes += mapped_bytes;
    *out_p = (uint8_t *)mapped + DEVICE_MEMORY_ALIGN;
    return STATUS_OK;
}

static const allocation_t *
allocation_of(const void *memory)
{
    return (const allocation_t *)(const void *)((const uint8_t *)memory - DEVICE_MEMORY_ALIGN);
}

static proto_status_t
host_release(device_t *base, device_memory_t kind, void *memory)
{
    (void)kind;
    if (device_host_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    allocation_t allocation = *allocation_of(memory);
    ((host_device_t *)base)->used_bytes -= allocation.mapped_bytes;
    require(munmap((uint8_t *)memory - allocation.front, allocation.mapped_bytes) == 0);
    if (allocation.fd >= 0) {
        (void)close(allocation.fd);
    }
    return STATUS_OK;
}

static proto_status_t
host_share(device_t *base, const void *memory, device_share_t *out)
{
    (void)base;
    const allocation_t *allocation = allocation_of(memory);
    struct stat info;
    if (allocation->fd < 0) {
        return STATUS_ERR_INVALID;
    }
    if (fstat(allocation->fd, &info) != 0) {
        return STATUS_ERR_IO;
    }
    *out = (device_share_t){.fd = allocation->fd,
                            .inode = info.st_ino,
                            .offset_bytes = 0,
                            .size_bytes = allocation->size_bytes};
    return STATUS_OK;
}

static proto_status_t
host_upload(device_t *base, void *to, const void *from, size_t size_bytes)
{
    if (device_host_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    if (size_bytes > 0) {
        memcpy(to, from, size_bytes);
    }
    return STATUS_OK;
}

static proto_status_t
host_pool_new(device_t *base, size_t size_bytes, device_pool_t **out_p)
{
    if (device_host_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    device_pool_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->part.device = base;
    self->size_bytes = size_bytes;
    proto_status_t status = host_alloc(base, DEVICE_MEMORY_DEVICE, size_bytes, &self->memory);
    if (status != STATUS_OK) {
        free(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

static void
host_pool_destroy(device_pool_t *self)
{
    require(host_release(self->part.device, DEVICE_MEMORY_DEVICE, self->memory) == STATUS_OK);
    free(self);
}

static void *
host_pool_memory(const device_pool_t *self, size_t *size_bytes)
{
    *size_bytes = self->size_bytes;
    return self->memory;
}

static void
host_pool_keep(device_pool_t *self)
{
    self->is_kept = true;
}

static proto_status_t
host_capture_begin(device_stream_t *stream, device_pool_t *pool)
{
    host_device_t *device = (host_device_t *)stream->part.device;
    if (stream->capture != NULL) {
        atomic_store(&device->capture_spoilt, true);
        return STATUS_ERR_CAPTURE;
    }
    device_graph_t *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    graph->commands = aligned_alloc(64, 256 * sizeof *graph->commands);
    if (graph->commands == NULL) {
        free(graph);
        return STATUS_ERR_NO_MEMORY;
    }
    graph->capacity = 256;
    graph->part.device = &device->base;
    graph->pool = pool;
    stream->capture = graph;
    if (atomic_fetch_add(&device->capture_count, 1) == 0) {
        atomic_store(&device->capture_spoilt, false);
    }
    return STATUS_OK;
}

static void
host_graph_destroy(device_graph_t *self)
{
    if (self->pool->last == self) {
        self->pool->last = NULL;
    }
    free(self->list);
    free(self->commands);
    free(self);
}

/* A graph may be a segment of few launches, and there are many of them. */
static bool
shrink(device_graph_t *graph)
{
    command_t *commands = aligned_alloc(64, (graph->count + 1) * sizeof *commands);
    if (commands == NULL) {
        return false;
    }
    memcpy(commands, graph->commands, graph->count * sizeof *commands);
    free(graph->commands);
    graph->commands = commands;
    graph->capacity = graph->count + 1;
    return true;
}

static proto_status_t
host_capture_end(device_stream_t *stream, device_graph_t **out_p)
{
    host_device_t *device = (host_device_t *)stream->part.device;
    device_graph_t *graph = stream->capture;
    if (graph == NULL) {
        return STATUS_ERR_CAPTURE;
    }
    stream->capture = NULL;
    (void)atomic_fetch_sub(&device->capture_count, 1);
    if (atomic_load(&device->capture_spoilt)) {
        host_graph_destroy(graph);
        return STATUS_ERR_CAPTURE;
    }
    if (!shrink(graph)) {
        host_graph_destroy(graph);
        return STATUS_ERR_NO_MEMORY;
    }
    graph->list = calloc(graph->count + 1, sizeof *graph->list);
    if (graph->list == NULL) {
        host_graph_destroy(graph);
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < graph->count; i++) {
        graph->list[i].fn = graph->commands[i].function;
        graph->list[i].args = graph->commands[i].u.args;
    }
    *out_p = graph;
    return STATUS_OK;
}

static proto_status_t
host_graph_replay(device_graph_t *graph, device_stream_t *stream)
{
    if (device_host_in_capture(graph->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    command_t *command = device_host_push(stream);
    command->kind = COMMAND_GRAPH;
    command->u.graph = graph;
    device_host_commit(stream);
    return STATUS_OK;
}

static uint32_t
host_graph_launch_count(const device_graph_t *self)
{
    return self->count;
}

static void
host_destroy(device_t *base)
{
    free(base);
}

static uint64_t
host_memory_used_bytes(const device_t *self)
{
    return ((const host_device_t *)self)->used_bytes;
}

static const device_weight_vtable_t host_weights = {
    .size_bytes = device_host_weight_size_bytes,
    .load = device_host_weight_load,
    .form_size_bytes = device_host_form_size_bytes,
};

static const device_vtable_t host_vtable = {
    .destroy = host_destroy,
    .alloc = host_alloc,
    .release = host_release,
    .upload = host_upload,
    .stream_new = device_host_stream_new,
    .stream_destroy = device_host_stream_destroy,
    .stream_synchronize = device_host_stream_synchronize,
    .stream_check = device_host_stream_check,
    .stream_wait = device_host_stream_wait,
    .stream_call = device_host_stream_call,
    .event_new = device_host_event_new,
    .event_destroy = device_host_event_destroy,
    .event_record = device_host_event_record,
    .event_query = device_host_event_query,
    .event_synchronize = device_host_event_synchronize,
    .event_time_ns = device_host_event_time_ns,
    .pool_new = host_pool_new,
    .pool_destroy = host_pool_destroy,
    .pool_memory = host_pool_memory,
    .pool_keep = host_pool_keep,
    .capture_begin = host_capture_begin,
    .capture_end = host_capture_end,
    .graph_replay = host_graph_replay,
    .graph_destroy = host_graph_destroy,
    .graph_launch_count = host_graph_launch_count,
    .weights = &host_weights,
    .memory_used_bytes = host_memory_used_bytes,
    .share = host_share,
};

proto_status_t
device_host_new(const device_host_options_t *options, device_t **out_p)
{
    require(options->thread_count >= 1);
    require((options->queue_len_max & (options->queue_len_max - 1)) == 0);
    if (!kern_path_available(options->path) || options->thread_count > KERN_THREADS_MAX) {
        return STATUS_ERR_CONFIG;
    }
    host_device_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.vtable = &host_vtable;
    self->base.ops = &device_host_ops;
    self->base.name = "cpu";
    self->base.has_all_ops = true;
    self->base.has_decode_graph = true;
    self->base.has_prefill_graph = true;
    self->base.worker_count = options->thread_count;
    self->options = *options;
    if (options->queue_len_max == 0) {
        self->options.queue_len_max = DEVICE_QUEUE_LEN_DEFAULT;
    }
    *out_p = &self->base;
    return STATUS_OK;
}
