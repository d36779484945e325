#include "proto_pack.h"

#include <string.h>

#include "proto_require.h"

void
proto_pack_raw(proto_pack_t *self, const void *data, size_t size_bytes)
{
    if (size_bytes == 0) {
        return;
    }
    if (self->size_bytes <= self->capacity_bytes &&
        size_bytes <= self->capacity_bytes - self->size_bytes) {
        memcpy(self->out + self->size_bytes, data, size_bytes);
    }
    require(size_bytes <= SIZE_MAX - self->size_bytes);
    self->size_bytes += size_bytes;
}

static void
pack_number(proto_pack_t *self, uint64_t value, size_t size_bytes)
{
    uint8_t bytes[8];
    for (size_t at = 0; at < size_bytes; at++) {
        bytes[at] = (uint8_t)(value >> (8 * at));
    }
    proto_pack_raw(self, bytes, size_bytes);
}

void
proto_pack_u8(proto_pack_t *self, uint8_t value)
{
    proto_pack_raw(self, &value, 1);
}

void
proto_pack_u32(proto_pack_t *self, uint32_t value)
{
    pack_number(self, value, 4);
}

void
proto_pack_u64(proto_pack_t *self, uint64_t value)
{
    pack_number(self, value, 8);
}

void
proto_pack_i64(proto_pack_t *self, int64_t value)
{
    pack_number(self, (uint64_t)value, 8);
}

void
proto_pack_bool(proto_pack_t *self, bool value)
{
    proto_pack_u8(self, value ? 1 : 0);
}

void
proto_pack_bytes(proto_pack_t *self, const void *data, size_t size_bytes)
{
    proto_pack_u64(self, size_bytes);
    proto_pack_raw(self, data, size_bytes);
}

void
proto_pack_u32_array(proto_pack_t *self, const uint32_t *values, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        proto_pack_u32(self, values[at]);
    }
}

void
proto_pack_u64_array(proto_pack_t *self, const uint64_t *values, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        proto_pack_u64(self, values[at]);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

void
proto_unpack_fail(proto_unpack_t *self)
{
    self->failed = true;
}

/* The next bytes; NULL if they are not there. */
static const uint8_t *
take(proto_unpack_t *self, size_t size_bytes)
{
    if (self->failed || size_bytes > self->bytes.size_bytes - self->at) {
        self->failed = true;
        return NULL;
    }
    const uint8_t *data = (const uint8_t *)self->bytes.data + self->at;
    self->at += size_bytes;
    return data;
}

static uint64_t
unpack_number(proto_unpack_t *self, size_t size_bytes)
{
    const uint8_t *data = take(self, size_bytes);
    uint64_t value = 0;
    for (size_t at = 0; data != NULL && at < size_bytes; at++) {
        value |= (uint64_t)data[at] << (8 * at);
    }
    return value;
}

uint8_t
proto_unpack_u8(proto_unpack_t *self)
{
    return (uint8_t)unpack_number(self, 1);
}

uint32_t
proto_unpack_u32(proto_unpack_t *self)
{
    return (uint32_t)unpack_number(self, 4);
}

uint64_t
proto_unpack_u64(proto_unpack_t *self)
{
    return unpack_number(self, 8);
}

int64_t
proto_unpack_i64(proto_unpack_t *self)
{
    return (int64_t)unpack_number(self, 8);
}

bool
proto_unpack_bool(proto_unpack_t *self)
{
    uint8_t value = proto_unpack_u8(self);
    if (value > 1) {
        proto_unpack_fail(self);
    }
    return value == 1;
}

uint64_t
proto_unpack_u64_max(proto_unpack_t *self, uint64_t max)
{
    uint64_t value = proto_unpack_u64(self);
    if (value > max) {
        proto_unpack_fail(self);
        return 0;
    }
    return value;
}

uint32_t
proto_unpack_u32_max(proto_unpack_t *self, uint32_t max)
{
    uint32_t value = proto_unpack_u32(self);
    if (value > max) {
        proto_unpack_fail(self);
        return 0;
    }
    return value;
}

void
proto_unpack_raw(proto_unpack_t *self, void *out, size_t size_bytes)
{
    if (size_bytes == 0) {
        return;
    }
    const uint8_t *data = take(self, size_bytes);
    if (data == NULL) {
        memset(out, 0, size_bytes);
    } else {
        memcpy(out, data, size_bytes);
    }
}

proto_bytes_t
proto_unpack_bytes(proto_unpack_t *self, size_t size_bytes_max)
{
    uint64_t size_bytes = proto_unpack_u64_max(self, size_bytes_max);
    proto_bytes_t bytes = {.data = take(self, (size_t)size_bytes)};
    bytes.size_bytes = bytes.data != NULL ? (size_t)size_bytes : 0;
    return bytes;
}

void
proto_unpack_u32_array(proto_unpack_t *self, uint32_t *values, size_t count, uint32_t max)
{
    for (size_t at = 0; at < count; at++) {
        values[at] = proto_unpack_u32_max(self, max);
    }
}

void
proto_unpack_u64_array(proto_unpack_t *self, uint64_t *values, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        values[at] = proto_unpack_u64(self);
    }
}

proto_status_t
proto_unpack_end(const proto_unpack_t *self)
{
    bool whole = !self->failed && self->at == self->bytes.size_bytes;
    return whole ? STATUS_OK : STATUS_ERR_MALFORMED;
}
