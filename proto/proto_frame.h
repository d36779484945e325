/* proto_frame.h - all parts of a message in one part of the transport.
 *
 * libzmq can lose its count of parts when a connection ends while somebody reads a message of
 * several (it aborts: fq.cpp, !_more); of one part there is no middle.  Two ends that both say
 * `packs` when they shake hands send each other frames: a table of 16 bytes, then the parts.
 *
 *   0  u8   0xc1, which no header begins with (msgpack never uses it)
 *   1  u8   1, the version of this table
 *   2  u16  0
 *   4  u32  bytes of the header
 *   8  u32  bytes of the body
 *  12  u32  bytes of the blob
 *  16  header, body, zeros up to the next multiple of 64 and the blob (if there is one)
 *
 * Little endian.  Pure functions on bytes from a hostile peer; any thread. */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include "proto_codec.h"

enum {
    PROTO_FRAME_TABLE_SIZE_BYTES = 16,
    /* What a frame adds to its parts at most. */
    PROTO_FRAME_OVERHEAD_BYTES = PROTO_FRAME_TABLE_SIZE_BYTES + PROTO_COLUMN_ALIGN,
};

typedef struct {
    proto_bytes_t header;
    proto_bytes_t body;
    proto_bytes_t blob; /* empty: none */
} proto_parts_t;

/* Bytes that the parts take when they are packed; each is within its limit. */
size_t proto_frame_size(const proto_parts_t *parts);

/* Writes exactly proto_frame_size(parts) bytes. */
void proto_frame_pack(const proto_parts_t *parts, uint8_t *out);

/* True if the bytes begin as a frame does, and so as no header does. */
bool proto_frame_is(proto_bytes_t bytes);

/* The parts, as views.  STATUS_ERR_MALFORMED if the table does not describe exactly these bytes,
 * or the gap before the blob is not zero. */
MUST_CHECK proto_status_t proto_frame_unpack(proto_bytes_t bytes, proto_parts_t *out);

#endif
