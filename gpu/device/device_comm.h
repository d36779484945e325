/* device_comm.h - collectives of the ranks of a group, launched into a stream like any operation
 * and recorded by captures.
 *
 * The order of a sum is that of the ranks, element by element, so every rank gets the same bits
 * whatever the timing.  All ranks launch the same collectives with the same sizes in the same
 * order; what follows if they do not is the same as if a rank was lost: the group fails, later
 * collectives leave their buffers as they are, and device_stream_check() answers STATUS_ERR_DEVICE
 * with the group's text as the device's fault.
 *
 * The device thread. */
#ifndef DEVICE_COMM_H
#define DEVICE_COMM_H

#include "device_base.h"
#include "device_group.h"

typedef struct device_comm device_comm_t;

/* Columns of a matrix that the ranks computed apart: rank r has those from r * share on, share of
 * them or what there is. */
typedef struct device_gather {
    const float *part; /* [rows][own columns] */
    float *whole;      /* [rows][cols] */
    uint32_t rows;
    uint32_t cols;
    uint32_t share;
} device_gather_t;

typedef struct {
    void (*destroy)(device_comm_t *self);
    void (*all_reduce)(device_comm_t *self, device_stream_t *stream, float *values, size_t count);
    void (*all_gather)(device_comm_t *self, device_stream_t *stream, const device_gather_t *gather);
    void (*broadcast)(device_comm_t *self, device_stream_t *stream, void *bytes, size_t size_bytes);
    void (*agree)(device_comm_t *self, device_stream_t *stream, const void *bytes,
                  size_t size_bytes, const char *what);
} device_comm_vtable_t;

/* First member of every device's own. */
struct device_comm {
    const device_comm_vtable_t *vtable;
    device_t *device; /* lent */
    uint32_t rank;
    uint32_t rank_count;
};

/* Of the host device: the group must outlive it.  The caller owns *out_p. */
MUST_CHECK proto_status_t device_host_comm_new(device_t *device, device_group_t *group,
                                               device_comm_t **out_p);
/* After the graphs that captured its collectives. */
void device_comm_destroy(device_comm_t **self_p);

/* values[i] = ((rank 0's + rank 1's) + rank 2's) + ... */
void device_comm_all_reduce(device_comm_t *self, device_stream_t *stream, float *values,
                            size_t count);
void device_comm_all_gather(device_comm_t *self, device_stream_t *stream,
                            const device_gather_t *gather);
/* Rank 0's bytes for all. */
void device_comm_broadcast(device_comm_t *self, device_stream_t *stream, void *bytes,
                           size_t size_bytes);
/* Fails the group, of `what` (static text), unless all ranks have the same bytes. */
void device_comm_agree(device_comm_t *self, device_stream_t *stream, const void *bytes,
                       size_t size_bytes, const char *what);

#endif
