/* proto_pack.h - canonical bytes of a core's state: fixed-width little-endian numbers in a fixed
 * order, for SNAPSHOT records (docs/debugging.md, Snapshots).
 *
 * The packer writes into the caller's room and goes on counting when it is full, so one pass tells
 * the size.  The unpacker treats its bytes as hostile: after the first read beyond the end or
 * beyond a limit everything reads as zero and proto_unpack_end() fails; so a loader checks once,
 * at the end, and uses no value as an index or a size before it compared it with a limit.
 * Allocates nothing.  One thread at a time. */
#ifndef PROTO_PACK_H
#define PROTO_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_status.h"

typedef struct {
    uint8_t *out;          /* may be NULL with capacity 0: only counts */
    size_t capacity_bytes; /* of out */
    size_t size_bytes;     /* needed so far; complete only while it is <= capacity_bytes */
} proto_pack_t;

static inline bool
proto_pack_is_complete(const proto_pack_t *self)
{
    return self->size_bytes <= self->capacity_bytes;
}

void proto_pack_u8(proto_pack_t *self, uint8_t value);
void proto_pack_u32(proto_pack_t *self, uint32_t value);
void proto_pack_u64(proto_pack_t *self, uint64_t value);
void proto_pack_i64(proto_pack_t *self, int64_t value);
void proto_pack_bool(proto_pack_t *self, bool value);
/* The bytes alone, without their number. */
void proto_pack_raw(proto_pack_t *self, const void *data, size_t size_bytes);
/* The number (u64), then the bytes; `data` may be NULL if there are none. */
void proto_pack_bytes(proto_pack_t *self, const void *data, size_t size_bytes);
/* `count` numbers, without their count. */
void proto_pack_u32_array(proto_pack_t *self, const uint32_t *values, size_t count);
void proto_pack_u64_array(proto_pack_t *self, const uint64_t *values, size_t count);

typedef struct {
    proto_bytes_t bytes;
    size_t at;
    bool failed; /* something was wrong: all later reads give zero */
} proto_unpack_t;

uint8_t proto_unpack_u8(proto_unpack_t *self);
uint32_t proto_unpack_u32(proto_unpack_t *self);
uint64_t proto_unpack_u64(proto_unpack_t *self);
int64_t proto_unpack_i64(proto_unpack_t *self);
/* Fails on anything but 0 and 1. */
bool proto_unpack_bool(proto_unpack_t *self);
/* The same with the largest value that is allowed. */
uint32_t proto_unpack_u32_max(proto_unpack_t *self, uint32_t max);
uint64_t proto_unpack_u64_max(proto_unpack_t *self, uint64_t max);
/* Copies exactly `size_bytes`; out is zeroed if they are not there. */
void proto_unpack_raw(proto_unpack_t *self, void *out, size_t size_bytes);
/* A view of what proto_pack_bytes() wrote; empty if it is longer than `size_bytes_max`. */
proto_bytes_t proto_unpack_bytes(proto_unpack_t *self, size_t size_bytes_max);
/* Each value must be at most `max`; zeroed if they are not there. */
void proto_unpack_u32_array(proto_unpack_t *self, uint32_t *values, size_t count, uint32_t max);
void proto_unpack_u64_array(proto_unpack_t *self, uint64_t *values, size_t count);

/* Marks a value as wrong that only the caller can judge. */
void proto_unpack_fail(proto_unpack_t *self);

/* STATUS_OK if nothing failed and every byte was read, else STATUS_ERR_MALFORMED. */
MUST_CHECK proto_status_t proto_unpack_end(const proto_unpack_t *self);

#endif
