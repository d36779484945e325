/* actor_kv_map.h - shared memory of other processes, by handle: "PID:FD:INODE:OFFSET", the
 * descriptor of a sealed memory file in the process that owns it.  What was opened must be the file
 * that was meant, of at least the size that was named, and sealed against shrinking: nobody can
 * make us read beyond its end.  Works among processes of one user and one PID namespace.  Any
 * thread. */
#ifndef ACTOR_KV_MAP_H
#define ACTOR_KV_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_status.h"

enum { ACTOR_KV_HANDLE_SIZE_BYTES = 96 };

typedef struct {
    uint8_t *memory; /* what the handle names; NULL = not mapped */
    size_t size_bytes;
    void *base; /* of the mapping */
    size_t base_bytes;
} actor_kv_map_t;

/* Maps it.  STATUS_ERR_NOT_FOUND: this process cannot reach it (another host, namespace or user);
 * STATUS_ERR_INVALID: it is not what was named.  `detail` gets a sentence. */
MUST_CHECK proto_status_t actor_kv_map_open(proto_bytes_t handle, size_t size_bytes,
                                            bool is_writable, actor_kv_map_t *out, char *detail,
                                            size_t detail_size_bytes);
void actor_kv_map_close(actor_kv_map_t *self);

/* Makes a memory file of our own, zeroed and sealed, and its handle.  The caller owns *fd_p.
 * STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t actor_kv_map_make(const char *name, size_t size_bytes,
                                            actor_kv_map_t *out, int *fd_p);
/* The handle of a descriptor of this process; returns its length. */
size_t actor_kv_handle_write(int fd, uint64_t offset_bytes, char out[ACTOR_KV_HANDLE_SIZE_BYTES]);

#endif
