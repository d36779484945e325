/* The CUDA device: memory, pools, capture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_cuda_private.h"
#include "proto_require.h"

bool
device_cuda_in_capture(device_t *base)
{
    cuda_device_t *device = (cuda_device_t *)base;
    if (atomic_load_explicit(&device->capture_count, memory_order_relaxed) == 0) {
        return false;
    }
    atomic_store(&device->capture_spoilt, true);
    return true;
}

proto_status_t
device_cuda_check(device_t *base, cudaError_t error, const char *what)
{
    cuda_device_t *device = (cuda_device_t *)base;
    if (error == cudaSuccess) {
        return STATUS_OK;
    }
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* not sticky: forget it */
        return STATUS_ERR_NO_MEMORY;
    }
    if (!atomic_exchange(&device->fault_is_claimed, true)) {
        (void)snprintf(device->fault, sizeof device->fault, "%s: %s (%s)", what,
                       cudaGetErrorString(error), cudaGetErrorName(error));
        atomic_store_explicit(&device->base.fault, device->fault, memory_order_release);
        atomic_store_explicit(&device->has_failed, true, memory_order_release);
    }
    return STATUS_ERR_DEVICE;
}

/* Notes what an allocation holds. */
static proto_status_t
book_add(cuda_device_t *device, void *memory, size_t size_bytes)
{
    if (device->book_count == device->book_capacity) {
        size_t capacity = device->book_capacity == 0 ? 256 : 2 * device->book_capacity;
        cuda_allocation_t *book = realloc(device->book, capacity * sizeof *book);
        if (book == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        device->book = book;
        device->book_capacity = capacity;
    }
    device->book[device->book_count++] = (cuda_allocation_t){memory, size_bytes};
    device->used_bytes += size_bytes;
    return STATUS_OK;
}

static void
book_remove(cuda_device_t *device, const void *memory)
{
    for (size_t i = device->book_count; i-- > 0;) {
        if (device->book[i].memory == memory) {
            device->used_bytes -= device->book[i].size_bytes;
            device->book[i] = device->book[--device->book_count];
            return;
        }
    }
}

static uint64_t
cuda_memory_used_bytes(const device_t *base)
{
    return ((const cuda_device_t *)base)->used_bytes;
}

static proto_status_t
cuda_alloc(device_t *base, device_memory_t kind, size_t size_bytes, void **out_p)
{
    cuda_device_t *device = (cuda_device_t *)base;
    if (device_cuda_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    void *memory = NULL;
    if (kind == DEVICE_MEMORY_PINNED) {
        proto_status_t status =
            device_cuda_check(base, cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable),
                              "allocate pinned memory");
        if (status == STATUS_OK) {
            memset(memory, 0, size_bytes);
            *out_p = memory;
        }
        return status;
    }
    proto_status_t status =
        device_cuda_check(base, cudaMalloc(&memory, size_bytes), "allocate device memory");
    if (status == STATUS_OK) {
        status = device_cuda_check(base, cudaMemset(memory, 0, size_bytes), "clear device memory");
    }
    if (status == STATUS_OK) {
        status = device_cuda_check(base, cudaDeviceSynchronize(), "clear device memory");
    }
    if (status == STATUS_OK) {
        status = book_add(device, memory, size_bytes);
    }
    if (status != STATUS_OK) {
        (void)cudaFree(memory);
        return status;
    }
    *out_p = memory;
    return STATUS_OK;
}

static proto_status_t
cuda_release(device_t *base, device_memory_t kind, void *memory)
{
    cuda_device_t *device = (cuda_device_t *)base;
    if (device_cuda_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    book_remove(device, memory);
    cudaError_t error = kind == DEVICE_MEMORY_PINNED ? cudaFreeHost(memory) : cudaFree(memory);
    /* A device that has failed has nothing left to give back. */
    (void)device_cuda_check(base, error, "release memory");
    return STATUS_OK;
}

static proto_status_t
cuda_memory_free_bytes(device_t *base, uint64_t *out)
{
    size_t available = 0;
    size_t total = 0;
    proto_status_t status =
        device_cuda_check(base, cudaMemGetInfo(&available, &total), "read the free memory");
    *out = available;
    return status;
}

static proto_status_t
cuda_pool_new(device_t *base, size_t size_bytes, device_pool_t **out_p)
{
    if (device_cuda_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    device_pool_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->part.device = base;
    self->size_bytes = size_bytes;
    proto_status_t status = cuda_alloc(base, DEVICE_MEMORY_DEVICE, size_bytes, &self->memory);
    if (status != STATUS_OK) {
        free(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

static void
cuda_pool_destroy(device_pool_t *self)
{
    require(cuda_release(self->part.device, DEVICE_MEMORY_DEVICE, self->memory) == STATUS_OK);
    free(self);
}

static void *
cuda_pool_memory(const device_pool_t *self, size_t *size_bytes)
{
    *size_bytes = self->size_bytes;
    return self->memory;
}

static void
cuda_pool_keep(device_pool_t *self)
{
    self->keeps = true;
}

static proto_status_t
cuda_capture_begin(device_stream_t *stream, device_pool_t *pool)
{
    cuda_device_t *device = (cuda_device_t *)stream->part.device;
    if (stream->capture_pool != NULL) {
        atomic_store(&device->capture_spoilt, true);
        return STATUS_ERR_CAPTURE;
    }
    proto_status_t status =
        device_cuda_check(&device->base,
                          cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal),
                          "begin a capture");
    if (status != STATUS_OK) {
        return status;
    }
    stream->capture_pool = pool;
    stream->launch_count = 0;
    if (atomic_fetch_add(&device->capture_count, 1) == 0) {
        atomic_store(&device->capture_spoilt, false);
    }
    return STATUS_OK;
}

static void
cuda_graph_destroy(device_graph_t *self)
{
    if (self->pool->last == self) {
        self->pool->last = NULL;
    }
    if (self->exec != NULL) {
        (void)device_cuda_check(self->part.device, cudaGraphExecDestroy(self->exec),
                                "destroy a graph");
    }
    if (self->graph != NULL) {
        (void)cudaGraphDestroy(self->graph);
    }
    free(self);
}

static proto_status_t
cuda_capture_end(device_stream_t *stream, device_graph_t **out_p)
{
    cuda_device_t *device = (cuda_device_t *)stream->part.device;
    device_pool_t *pool = stream->capture_pool;
    if (pool == NULL) {
        return STATUS_ERR_CAPTURE;
    }
    stream->capture_pool = NULL;
    (void)atomic_fetch_sub(&device->capture_count, 1);
    cudaGraph_t captured = NULL;
    cudaError_t error = cudaStreamEndCapture(stream->stream, &captured);
    if (atomic_load(&device->capture_spoilt)) {
        if (captured != NULL) {
            (void)cudaGraphDestroy(captured);
        }
        (void)cudaGetLastError();
        return STATUS_ERR_CAPTURE;
    }
    proto_status_t status = device_cuda_check(&device->base, error, "end a capture");
    if (status != STATUS_OK) {
        return status;
    }
    device_graph_t *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        (void)cudaGraphDestroy(captured);
        return STATUS_ERR_NO_MEMORY;
    }
    graph->part.device = &device->base;
    graph->pool = pool;
    graph->graph = captured;
    graph->launch_count = stream->launch_count;
    status = device_cuda_check(&device->base, cudaGraphInstantiate(&graph->exec, captured, 0),
                               "instantiate a graph");
    if (status == STATUS_OK) {
        status = device_cuda_check(&device->base, cudaGraphUpload(graph->exec, stream->stream),
                                   "upload a graph");
    }
    if (status != STATUS_OK) {
        cuda_graph_destroy(graph);
        return status;
    }
    *out_p = graph;
    return STATUS_OK;
}

static proto_status_t
cuda_graph_replay(device_graph_t *graph, device_stream_t *stream)
{
    device_t *base = graph->part.device;
    device_pool_t *pool = graph->pool;
    if (device_cuda_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    proto_status_t status = STATUS_OK;
    if (((cuda_device_t *)base)->options.debug && !pool->keeps && pool->last != graph) {
        status =
            device_cuda_check(base,
                              cudaMemsetAsync(pool->memory, 0xff, pool->size_bytes, stream->stream),
                              "poison a pool");
    }
    pool->last = graph;
    if (status == STATUS_OK) {
        status =
            device_cuda_check(base, cudaGraphLaunch(graph->exec, stream->stream), "replay a graph");
    }
    return status;
}

static uint32_t
cuda_graph_launch_count(const device_graph_t *self)
{
    return self->launch_count;
}

static void
cuda_destroy(device_t *base)
{
    cuda_device_t *device = (cuda_device_t *)base;
    (void)cudaFreeHost(device->staging);
    (void)cudaFree(device->staging_device);
    free(device->book);
    free(device);
}

static const device_vtable_t cuda_vtable = {
    .destroy = cuda_destroy,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .memory_used_bytes = cuda_memory_used_bytes,
    .memory_free_bytes = cuda_memory_free_bytes,
    .upload = device_cuda_upload,
    .stream_new = device_cuda_stream_new,
    .stream_destroy = device_cuda_stream_destroy,
    .stream_synchronize = device_cuda_stream_synchronize,
    .stream_check = device_cuda_stream_check,
    .stream_wait = device_cuda_stream_wait,
    .stream_call = device_cuda_stream_call,
    .event_new = device_cuda_event_new,
    .event_destroy = device_cuda_event_destroy,
    .event_record = device_cuda_event_record,
    .event_query = device_cuda_event_query,
    .event_synchronize = device_cuda_event_synchronize,
    .event_time_ns = device_cuda_event_time_ns,
    .pool_new = cuda_pool_new,
    .pool_destroy = cuda_pool_destroy,
    .pool_memory = cuda_pool_memory,
    .pool_keep = cuda_pool_keep,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_replay = cuda_graph_replay,
    .graph_destroy = cuda_graph_destroy,
    .graph_launch_count = cuda_graph_launch_count,
    .weights = &device_cuda_weights,
};

static int64_t
monotonic_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The GPU's clock has an origin of its own. */
static proto_status_t
compare_clocks(cuda_device_t *self)
{
    uint64_t *stamp = self->staging;
    for (int i = 0; i < 2; i++) { /* the first time loads the kernel */
        int64_t before = monotonic_ns();
        proto_status_t status =
            device_cuda_check(&self->base, (cudaError_t)kern_cuda_stamp(stamp, NULL),
                              "read its clock");
        if (status == STATUS_OK) {
            status = device_cuda_check(&self->base, cudaStreamSynchronize(NULL), "read its clock");
        }
        if (status != STATUS_OK) {
            return status;
        }
        self->clock_offset_ns = (before + monotonic_ns()) / 2 - (int64_t)*stamp;
    }
    return STATUS_OK;
}

static proto_status_t
refuse(const device_cuda_options_t *options, proto_status_t status, const char *why,
       const char *detail)
{
    (void)snprintf(options->error, DEVICE_CUDA_ERROR_SIZE_BYTES, "%s%s", why, detail);
    return status;
}

static proto_status_t
choose_gpu(const device_cuda_options_t *options, struct cudaDeviceProp *properties)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        return refuse(options, STATUS_ERR_UNSUPPORTED,
                      "no CUDA driver or no GPU: ", cudaGetErrorString(error));
    }
    if (options->ordinal >= (uint32_t)count) {
        (void)snprintf(options->error, DEVICE_CUDA_ERROR_SIZE_BYTES,
                       "there is no GPU %u: the driver shows %d", options->ordinal, count);
        return STATUS_ERR_CONFIG;
    }
    error = cudaGetDeviceProperties(properties, (int)options->ordinal);
    if (error == cudaSuccess) {
        error = cudaSetDevice((int)options->ordinal);
    }
    if (error != cudaSuccess) {
        return refuse(options, STATUS_ERR_DEVICE,
                      "the GPU cannot be opened: ", cudaGetErrorString(error));
    }
    if (properties->major != 9) {
        (void)snprintf(options->error, DEVICE_CUDA_ERROR_SIZE_BYTES,
                       "%.200s has compute capability %d.%d; these kernels are made for 9.0",
                       properties->name, properties->major, properties->minor);
        return STATUS_ERR_UNSUPPORTED;
    }
    return STATUS_OK;
}

__attribute__((visibility("default"))) proto_status_t
device_cuda_open(size_t abi_bytes, const device_cuda_options_t *options, device_t **out_p);

proto_status_t
device_cuda_open(size_t abi_bytes, const device_cuda_options_t *options, device_t **out_p)
{
    if (abi_bytes != DEVICE_CUDA_ABI_BYTES) {
        return refuse(options, STATUS_ERR_VERSION, "libonepath_cuda.so is of another build", "");
    }
    struct cudaDeviceProp properties;
    proto_status_t status = choose_gpu(options, &properties);
    if (status != STATUS_OK) {
        return status;
    }
    cuda_device_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    self->base.vtable = &cuda_vtable;
    self->base.ops = &self->ops;
    self->base.name = "cuda";
    self->base.worker_count = KERN_CUDA_SAMPLERS;
    self->base.has_decode_graph = true;
    /* No prefill graph yet: an operand is laid out for the rows of its forward, and those of a
     * segment and of a break differ. */
    (void)snprintf(self->name, sizeof self->name, "cuda:%u, %.64s", options->ordinal,
                   properties.name);
    self->base.summary = self->name;
    device_cuda_fill_ops(&self->ops);
    status = device_cuda_check(&self->base,
                               cudaHostAlloc(&self->staging, DEVICE_CUDA_STAGING_SIZE_BYTES, 0),
                               "start");
    if (status == STATUS_OK) {
        status =
            device_cuda_check(&self->base,
                              cudaMalloc(&self->staging_device, DEVICE_CUDA_STAGING_SIZE_BYTES),
                              "start");
    }
    if (status == STATUS_OK) {
        status = compare_clocks(self);
    }
    if (status != STATUS_OK) {
        (void)refuse(options, status, "the GPU cannot be used: ", self->fault);
        cuda_destroy(&self->base);
        return status;
    }
    *out_p = &self->base;
    return STATUS_OK;
}
