/* device_host.h - the host processor as a device: a stream is a queue run by a thread of its own,
 * which leads a team of compute threads.  Only gpu/run names this header, to choose the device. */
#ifndef DEVICE_HOST_H
#define DEVICE_HOST_H

#include "device_base.h"
#include "kern_path.h"

typedef struct {
    uint32_t thread_count;  /* compute threads of each stream, its own thread included; >= 1 */
    kern_path_t path;       /* instruction set; must be available here */
    uint32_t queue_len_max; /* launches waiting in a stream, a power of two; 0 = 4096.  A launch
                             * into a full queue waits until one has run */
    bool debug;             /* poison a pool's memory when another of its graphs runs */
} device_host_options_t;

/* The caller owns *out_p.  STATUS_ERR_NO_MEMORY, STATUS_ERR_CONFIG. */
MUST_CHECK proto_status_t device_host_new(const device_host_options_t *options, device_t **out_p);

#endif
