/* proto_ring_private.h - the memory that both sides of a ring map; for proto_ring.c (producer) and
 * proto_ring_reader.c (consumer). */
#ifndef PROTO_RING_PRIVATE_H
#define PROTO_RING_PRIVATE_H

#include <stdatomic.h>

#include "proto_ring.h"

enum { PROTO_RING_PAGE_SIZE_BYTES = 4096, PROTO_RING_LINE_SIZE_BYTES = 64 };

/* First page of the memfd; the records follow.  Positions count bytes for ever; a record lies at
 * its position modulo the capacity.  What the producer writes often has lines of its own. */
typedef struct {
    uint64_t magic;
    uint64_t capacity_bytes; /* a power of two */
    proto_ring_owner_t owner;

    _Alignas(PROTO_RING_LINE_SIZE_BYTES) _Atomic uint64_t head; /* end of the last whole record */
    _Atomic uint64_t record_count; /* sequence of the last whole record */
    _Atomic uint64_t cut_count;

    _Alignas(PROTO_RING_LINE_SIZE_BYTES) _Atomic uint64_t tail; /* begin of the oldest record */
    _Atomic uint64_t strict_count;

    _Alignas(PROTO_RING_LINE_SIZE_BYTES) _Atomic uint64_t
        kept; /* by the consumer: all before is in its file */
} proto_ring_page_t;

_Static_assert(sizeof(proto_ring_page_t) <= PROTO_RING_PAGE_SIZE_BYTES, "one page");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "shared between processes");

/* A mapping: the page, then the records twice in a row, so that none is ever split. */
typedef struct {
    uint8_t *base;
    proto_ring_page_t *page;
    uint8_t *records;
    uint64_t capacity_bytes;
} proto_ring_map_t;

/* Maps `fd` with the protection of mmap().  STATUS_ERR_IO, or STATUS_ERR_MALFORMED if it is none.
 */
MUST_CHECK proto_status_t proto_ring_map_open(int fd, int protection, proto_ring_map_t *map);
void proto_ring_map_close(proto_ring_map_t *map);

#endif
