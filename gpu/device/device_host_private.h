/* device_host_private.h - what the files of the host device share; nobody else includes it.
 *
 * Thread rules: `head` is written by the caller's thread, `tail` by the stream's thread; everything
 * in a command between tail and head belongs to the stream's thread, everything else to the
 * caller's. */
#ifndef DEVICE_HOST_PRIVATE_H
#define DEVICE_HOST_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "device_host.h"
#include "device_ops.h"
#include "kern_team.h"

enum {
    DEVICE_ARGS_SIZE_MAX = 368,      /* bytes of the largest argument struct of an operation */
    DEVICE_QUEUE_LEN_DEFAULT = 4096, /* about two long prefill steps of a 60-layer model */
    DEVICE_SPIN_COUNT = 2000,        /* looks at an empty queue before the thread sleeps */
    DEVICE_LIST_LEN_MAX = 64,        /* launches that the team takes over at once */
};

typedef enum {
    COMMAND_KERNEL,
    COMMAND_RECORD,
    COMMAND_WAIT,
    COMMAND_CALL,
    COMMAND_GRAPH,
    COMMAND_STOP,
} command_kind_t;

typedef struct {
    device_event_t *event;
    uint64_t number; /* which of its records */
} command_event_t;

typedef struct {
    void (*function)(void *);
    void *context;
} command_call_t;

typedef struct {
    command_kind_t kind;
    kern_host_fn function; /* COMMAND_KERNEL; the only kind that a graph holds */
    union {
        command_event_t event;
        command_call_t call;
        device_graph_t *graph;
        _Alignas(16) uint8_t args[DEVICE_ARGS_SIZE_MAX];
    } u;
} command_t;

typedef struct {
    device_t base; /* first */
    device_host_options_t options;
    _Atomic uint32_t capture_count; /* captures in progress */
    _Atomic bool capture_spoilt;    /* a forbidden call came meanwhile */
    uint64_t used_bytes;            /* of allocations that were not given back */
} host_device_t;

struct device_event {
    device_part_t part;        /* first */
    _Atomic uint64_t recorded; /* records asked for */
    _Atomic uint64_t done;     /* records that have run */
    _Atomic uint64_t time_ns;
    pthread_mutex_t lock;
    pthread_cond_t ran;
};

struct device_pool {
    device_part_t part; /* first */
    void *memory;
    size_t size_bytes;
    const device_graph_t *last; /* the graph that ran last; stream thread only */
    bool is_kept;               /* no poison; set before the first graph */
};

struct device_graph {
    device_part_t part; /* first */
    device_pool_t *pool;
    command_t *commands;
    kern_command_t *list; /* [count], made at the end of the capture */
    uint32_t count;
    uint32_t capacity;
};

struct device_stream {
    device_part_t part; /* first */
    kern_team_t *team;  /* led by the stream's thread */
    pthread_t thread;
    command_t *queue;   /* [queue_len] */
    uint64_t queue_len; /* a power of two */
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic bool is_sleeping; /* the stream's thread waits for `pushed` */
    _Atomic bool is_full_wait;             /* the caller waits for `popped` */
    pthread_mutex_t lock;
    pthread_cond_t pushed;
    pthread_cond_t popped;
    device_event_t *drained;
    device_graph_t *capture; /* the graph being captured, or NULL */
};

/* True if a capture forbids the call; notes that the capture is spoilt. */
bool device_host_in_capture(device_t *device);

/* The next command's place: in the graph being captured or in the queue.  Fill it, then commit. */
command_t *device_host_push(device_stream_t *stream);
void device_host_commit(device_stream_t *stream);

proto_status_t device_host_stream_new(device_t *self, device_stream_t **out_p);
void device_host_stream_destroy(device_stream_t *stream);
proto_status_t device_host_stream_synchronize(device_stream_t *stream);
proto_status_t device_host_stream_check(const device_stream_t *stream);
proto_status_t device_host_stream_wait(device_stream_t *stream, device_event_t *event);
proto_status_t device_host_stream_call(device_stream_t *stream, void (*function)(void *),
                                       void *context);
proto_status_t device_host_event_new(device_t *self, device_event_t **out_p);
void device_host_event_destroy(device_event_t *event);
proto_status_t device_host_event_record(device_event_t *event, device_stream_t *stream);
proto_status_t device_host_event_query(const device_event_t *event);
proto_status_t device_host_event_synchronize(device_event_t *event);
uint64_t device_host_event_time_ns(const device_event_t *event);

size_t device_host_weight_size_bytes(const device_t *self, const kern_weight_t *weight);
kern_weight_t device_host_weight_load(device_t *self, const kern_weight_t *weight, void *memory);
size_t device_host_form_size_bytes(const device_t *self, kern_form_t form, uint32_t rows,
                                   uint32_t cols);

extern const device_ops_t device_host_ops;

#endif
