/* device_base.h - what a device can do: memory, streams, events, capture and replay.
 *
 * Everything above gpu/device/ is written against this header and the launch table of
 * device_ops.h, and never learns which device it has.  It owns no model or cache knowledge.
 *
 * Rules that hold on every device:
 * - A launch returns at once; work of one stream runs in the order of its launches.
 * - A launch does not fail by itself.  A device that failed stays failed: device_stream_check().
 * - Between capture_begin and capture_end launches are recorded, not run.  All arguments, scalars
 *   included, are frozen as they are at the launch; no host code runs again at replay.
 * - Inside a capture of any stream of the device, allocation, freeing, synchronisation, event
 *   record, query and wait, and host calls are STATUS_ERR_CAPTURE, and the capture is spoilt:
 *   capture_end answers STATUS_ERR_CAPTURE and gives no graph.
 * - Graphs captured with one pool share its memory: what a graph leaves there is lost as soon as
 *   another graph of the pool runs (a debug device poisons it then).
 *
 * All calls for one device come from one thread; device_event_query() may come from any. */
#ifndef DEVICE_BASE_H
#define DEVICE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct device device_t;
typedef struct device_stream device_stream_t;
typedef struct device_event device_event_t;
typedef struct device_graph device_graph_t;
typedef struct device_pool device_pool_t; /* memory that captured graphs share */
typedef struct device_ops device_ops_t;   /* the launch table, device_ops.h */

typedef enum {
    DEVICE_MEMORY_DEVICE = 0,  /* only launches touch it */
    DEVICE_MEMORY_PINNED = 1,  /* host memory that asynchronous copies may use */
    DEVICE_MEMORY_WEIGHTS = 2, /* as DEVICE; read through by every step, so in large pages if any */
    DEVICE_MEMORY_SHARED = 3,  /* as DEVICE; other processes may map it: device_share() */
} device_memory_t;

enum { DEVICE_MEMORY_ALIGN = 64 }; /* bytes, of every allocation */

/* How another process finds memory of kind DEVICE_MEMORY_SHARED: by a handle, never an address. */
typedef struct {
    int fd;                /* of a sealed memory file; the memory's owner keeps it open */
    uint64_t inode;        /* of that file: what was opened is what was meant */
    uint64_t offset_bytes; /* of the memory in the file */
    uint64_t size_bytes;   /* of the memory, as it was asked for */
} device_share_t;

typedef struct {
    void (*destroy)(device_t *self);
    proto_status_t (*alloc)(device_t *self, device_memory_t kind, size_t size_bytes, void **out_p);
    proto_status_t (*release)(device_t *self, device_memory_t kind, void *memory);
    proto_status_t (*upload)(device_t *self, void *to, const void *from, size_t size_bytes);
    proto_status_t (*stream_new)(device_t *self, device_stream_t **out_p);
    void (*stream_destroy)(device_stream_t *stream);
    proto_status_t (*stream_synchronize)(device_stream_t *stream);
    proto_status_t (*stream_check)(const device_stream_t *stream);
    proto_status_t (*stream_wait)(device_stream_t *stream, device_event_t *event);
    proto_status_t (*stream_call)(device_stream_t *stream, void (*function)(void *), void *context);
    proto_status_t (*event_new)(device_t *self, device_event_t **out_p);
    void (*event_destroy)(device_event_t *event);
    proto_status_t (*event_record)(device_event_t *event, device_stream_t *stream);
    proto_status_t (*event_query)(const device_event_t *event);
    proto_status_t (*event_synchronize)(device_event_t *event);
    uint64_t (*event_time_ns)(const device_event_t *event);
    proto_status_t (*pool_new)(device_t *self, size_t size_bytes, device_pool_t **out_p);
    void (*pool_destroy)(device_pool_t *pool);
    void *(*pool_memory)(const device_pool_t *pool, size_t *size_bytes);
    void (*pool_keep)(device_pool_t *pool); /* NULL = nothing to do: memory is never poisoned */
    proto_status_t (*capture_begin)(device_stream_t *stream, device_pool_t *pool);
    proto_status_t (*capture_end)(device_stream_t *stream, device_graph_t **out_p);
    proto_status_t (*graph_replay)(device_graph_t *graph, device_stream_t *stream);
    void (*graph_destroy)(device_graph_t *graph);
    uint32_t (*graph_launch_count)(const device_graph_t *graph);
    const struct device_weight_vtable *weights; /* device_ops.h */
    /* NULL: the device does not say. */
    uint64_t (*memory_used_bytes)(const device_t *self);
    /* NULL: its memory is the machine's. */
    proto_status_t (*memory_free_bytes)(device_t *self, uint64_t *out);
    /* NULL: no memory of this device can be shared. */
    proto_status_t (*share)(device_t *self, const void *memory, device_share_t *out);
} device_vtable_t;

/* First member of every stream, event, pool and graph of every device. */
typedef struct {
    device_t *device; /* lent: whose it is */
} device_part_t;

/* First member of every device's own struct. */
struct device {
    const device_vtable_t *vtable;
    const device_ops_t *ops;   /* lent; the launch table */
    const char *name;          /* "cpu" */
    uint32_t worker_count;     /* threads of an operation, for workspace sizes */
    bool has_all_ops;          /* else some launches fail the device: of experts, latent and
                                * recurrent layers */
    bool has_decode_graph;     /* forwards of a model can be captured on it, whole ... */
    bool has_prefill_graph;    /* ... and in segments with other rows between them */
    const char *summary;       /* what it is, for people; NULL = nothing to add */
    const char *_Atomic fault; /* why it failed, for people; NULL = it has not, or does not say; any
                                * thread that an error came to sets it once */
    uint32_t stream_count;     /* alive; the device must outlive them */
};

void device_destroy(device_t **self_p);
const device_ops_t *device_ops(const device_t *self);

/* Zeroed memory, DEVICE_MEMORY_ALIGN aligned.  The pages of large allocations become resident when
 * they are first touched.  STATUS_ERR_NO_MEMORY, STATUS_ERR_CAPTURE. */
MUST_CHECK proto_status_t device_alloc(device_t *self, device_memory_t kind, size_t size_bytes,
                                       void **out_p);
/* Gives memory back and sets *memory_p to NULL; nothing if it is NULL already.  The caller made
 * sure that no launch uses it any more, and is not inside a capture (a bug otherwise). */
void device_release(device_t *self, device_memory_t kind, void **memory_p);

/* The handle of memory of kind DEVICE_MEMORY_SHARED, as device_alloc() gave it.
 * STATUS_ERR_UNSUPPORTED: this device cannot share memory (CUDA: its IPC handles come with the
 * transport between GPUs; device->fault is untouched). */
MUST_CHECK proto_status_t device_share(device_t *self, const void *memory, device_share_t *out);

/* Bytes that allocations of this device hold now, the memory of pools included; 0 if it does not
 * say. */
uint64_t device_memory_used_bytes(const device_t *self);
/* Bytes that new allocations may take; 0 = it is full.  STATUS_ERR_UNSUPPORTED: its memory is the
 * machine's, ask the system; STATUS_ERR_DEVICE. */
MUST_CHECK proto_status_t device_memory_free_bytes(device_t *self, uint64_t *out);

/* Brings bytes of the host into device memory that no launch uses yet.  Blocks; at start only.
 * STATUS_ERR_CAPTURE, STATUS_ERR_DEVICE. */
MUST_CHECK proto_status_t device_upload(device_t *self, void *to, const void *from,
                                        size_t size_bytes);

MUST_CHECK proto_status_t device_stream_new(device_t *self, device_stream_t **out_p);
/* Waits for the stream's work, then ends it. */
void device_stream_destroy(device_stream_t **self_p);
/* Blocks until all that was launched has run. */
MUST_CHECK proto_status_t device_stream_synchronize(device_stream_t *self);
/* STATUS_OK, or the sticky STATUS_ERR_DEVICE.  Allowed inside a capture. */
MUST_CHECK proto_status_t device_stream_check(const device_stream_t *self);
/* Later launches of the stream wait for the record of `event` that is latest now. */
MUST_CHECK proto_status_t device_stream_wait(device_stream_t *self, device_event_t *event);
/* Runs `function` on a device thread after what was launched before; it must not call the device
 * and must not block. */
MUST_CHECK proto_status_t device_stream_call(device_stream_t *self, void (*function)(void *),
                                             void *context);

MUST_CHECK proto_status_t device_event_new(device_t *self, device_event_t **out_p);
void device_event_destroy(device_event_t **self_p);
MUST_CHECK proto_status_t device_event_record(device_event_t *self, device_stream_t *stream);
/* STATUS_OK if the latest record has run (or none was made), STATUS_AGAIN if not. */
MUST_CHECK proto_status_t device_event_query(const device_event_t *self);
MUST_CHECK proto_status_t device_event_synchronize(device_event_t *self);
/* When the latest finished record ran, monotonic ns; 0 = never. */
uint64_t device_event_time_ns(const device_event_t *self);

/* Memory for the intermediate results of captured graphs. */
MUST_CHECK proto_status_t device_pool_new(device_t *self, size_t size_bytes, device_pool_t **out_p);
void device_pool_destroy(device_pool_t **self_p);
void *device_pool_memory(const device_pool_t *self, size_t *size_bytes);
/* Graphs of this pool hand results on to each other: segments of one forward, with launches between
 * them.  A debug device leaves the memory alone then; poisoning is the owner's. */
void device_pool_keep(device_pool_t *self);

MUST_CHECK proto_status_t device_capture_begin(device_stream_t *stream, device_pool_t *pool);
/* The caller owns *out_p. */
MUST_CHECK proto_status_t device_capture_end(device_stream_t *stream, device_graph_t **out_p);
/* Enqueues the graph; STATUS_ERR_CAPTURE inside a capture. */
MUST_CHECK proto_status_t device_graph_replay(device_graph_t *self, device_stream_t *stream);
void device_graph_destroy(device_graph_t **self_p);
/* Launches recorded in it. */
uint32_t device_graph_launch_count(const device_graph_t *self);

#endif
