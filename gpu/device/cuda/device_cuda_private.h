/* device_cuda_private.h - what the files of the CUDA device share; nobody else includes it.
 *
 * The thread that opened the device makes all calls, except event_query (device_base.h). */
#ifndef DEVICE_CUDA_PRIVATE_H
#define DEVICE_CUDA_PRIVATE_H

#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "device_cuda.h"
#include "device_ops.h"
#include "kern_cuda.h"

enum { DEVICE_CUDA_FAULT_SIZE_BYTES = 256 };

typedef struct {
    const void *memory;
    size_t size_bytes;
} cuda_allocation_t;

typedef struct {
    device_t base; /* first */
    device_cuda_options_t options;
    device_ops_t ops; /* what `base.ops` points to */
    char name[96];
    _Atomic bool has_failed;
    _Atomic bool fault_is_claimed;            /* by the thread that writes `fault` */
    char fault[DEVICE_CUDA_FAULT_SIZE_BYTES]; /* written once, before has_failed */
    _Atomic uint32_t capture_count;           /* captures in progress */
    _Atomic bool capture_spoilt;              /* a forbidden call came meanwhile */
    cuda_allocation_t *book;                  /* [book_count]: device memory held */
    size_t book_count;
    size_t book_capacity;
    uint64_t used_bytes;
    int64_t clock_offset_ns; /* monotonic time minus the GPU's */
    void *staging;           /* pinned, for uploads and weights */
    void *staging_device;
} cuda_device_t;

struct device_event {
    device_part_t part; /* first */
    cudaEvent_t event;
    uint64_t *stamp; /* pinned: when the latest record ran, the GPU's time */
    bool is_recorded;
};

struct device_pool {
    device_part_t part; /* first */
    void *memory;
    size_t size_bytes;
    const device_graph_t *last; /* the graph that was replayed last */
    bool keeps;                 /* graphs hand results on */
};

struct device_graph {
    device_part_t part; /* first */
    device_pool_t *pool;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint32_t launch_count;
};

struct device_stream {
    device_part_t part; /* first */
    cudaStream_t stream;
    cudaStream_t calls;  /* where host functions run, so that later launches do not wait for them */
    cudaEvent_t reached; /* the calls wait for it */
    device_pool_t *capture_pool; /* of the capture in progress, or NULL */
    uint32_t launch_count;       /* of the capture */
};

/* True if a capture forbids the call; notes that the capture is spoilt. */
bool device_cuda_in_capture(device_t *device);

/* STATUS_OK; STATUS_ERR_NO_MEMORY; else the device has failed, and stays so: STATUS_ERR_DEVICE. */
proto_status_t device_cuda_check(device_t *device, cudaError_t error, const char *what);

/* The launch table: what has no kernel here fails the device, and says its name. */
void device_cuda_fill_ops(device_ops_t *ops);

proto_status_t device_cuda_stream_new(device_t *self, device_stream_t **out_p);
void device_cuda_stream_destroy(device_stream_t *stream);
proto_status_t device_cuda_stream_synchronize(device_stream_t *stream);
proto_status_t device_cuda_stream_check(const device_stream_t *stream);
proto_status_t device_cuda_stream_wait(device_stream_t *stream, device_event_t *event);
proto_status_t device_cuda_stream_call(device_stream_t *stream, void (*function)(void *),
                                       void *context);
proto_status_t device_cuda_event_new(device_t *self, device_event_t **out_p);
void device_cuda_event_destroy(device_event_t *event);
proto_status_t device_cuda_event_record(device_event_t *event, device_stream_t *stream);
proto_status_t device_cuda_event_query(const device_event_t *event);
proto_status_t device_cuda_event_synchronize(device_event_t *event);
uint64_t device_cuda_event_time_ns(const device_event_t *event);

proto_status_t device_cuda_upload(device_t *self, void *to, const void *from, size_t size_bytes);
extern const device_weight_vtable_t device_cuda_weights;

enum { DEVICE_CUDA_STAGING_SIZE_BYTES = 16 << 20 };

#endif
