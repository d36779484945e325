#include "proto_frame.h"

#include <string.h>

#include "proto_require.h"

enum {
    FRAME_MARK = 0xc1,
    FRAME_VERSION = 1,
};

static size_t
blob_offset(size_t header_size, size_t body_size)
{
    size_t end = PROTO_FRAME_TABLE_SIZE_BYTES + header_size + body_size;
    return (end + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN * PROTO_COLUMN_ALIGN;
}

size_t
proto_frame_size(const proto_parts_t *parts)
{
    require(parts->header.size_bytes <= PROTO_HEADER_SIZE_MAX);
    require(parts->body.size_bytes <= PROTO_BODY_SIZE_MAX);
    require(parts->blob.size_bytes <= PROTO_BLOB_SIZE_MAX);
    if (parts->blob.size_bytes == 0) {
        return PROTO_FRAME_TABLE_SIZE_BYTES + parts->header.size_bytes + parts->body.size_bytes;
    }
    return blob_offset(parts->header.size_bytes, parts->body.size_bytes) + parts->blob.size_bytes;
}

static void
put_u32(uint8_t *out, size_t value)
{
    for (int index = 0; index < 4; index++) {
        out[index] = (uint8_t)(value >> (8 * index));
    }
}

static size_t
get_u32(const uint8_t *bytes)
{
    return (size_t)bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 |
           (size_t)bytes[3] << 24;
}

static uint8_t *
put_bytes(uint8_t *out, proto_bytes_t bytes)
{
    if (bytes.size_bytes > 0) {
        memcpy(out, bytes.data, bytes.size_bytes);
    }
    return out + bytes.size_bytes;
}

void
proto_frame_pack(const proto_parts_t *parts, uint8_t *out)
{
    out[0] = FRAME_MARK;
    out[1] = FRAME_VERSION;
    out[2] = 0;
    out[3] = 0;
    put_u32(out + 4, parts->header.size_bytes);
    put_u32(out + 8, parts->body.size_bytes);
    put_u32(out + 12, parts->blob.size_bytes);
    uint8_t *at = put_bytes(out + PROTO_FRAME_TABLE_SIZE_BYTES, parts->header);
    at = put_bytes(at, parts->body);
    if (parts->blob.size_bytes > 0) {
        uint8_t *blob = out + blob_offset(parts->header.size_bytes, parts->body.size_bytes);
        memset(at, 0, (size_t)(blob - at));
        (void)put_bytes(blob, parts->blob);
    }
}

bool
proto_frame_is(proto_bytes_t bytes)
{
    return bytes.size_bytes > 0 && bytes.data[0] == FRAME_MARK;
}

proto_status_t
proto_frame_unpack(proto_bytes_t bytes, proto_parts_t *out)
{
    if (bytes.size_bytes < PROTO_FRAME_TABLE_SIZE_BYTES || bytes.data[0] != FRAME_MARK ||
        bytes.data[1] != FRAME_VERSION || bytes.data[2] != 0 || bytes.data[3] != 0) {
        return STATUS_ERR_MALFORMED;
    }
    size_t header_size = get_u32(bytes.data + 4);
    size_t body_size = get_u32(bytes.data + 8);
    size_t blob_size = get_u32(bytes.data + 12);
    if (header_size > PROTO_HEADER_SIZE_MAX || body_size > PROTO_BODY_SIZE_MAX ||
        blob_size > PROTO_BLOB_SIZE_MAX) {
        return STATUS_ERR_MALFORMED;
    }
    /* Three numbers within their limits cannot overflow a sum. */
    size_t end = PROTO_FRAME_TABLE_SIZE_BYTES + header_size + body_size;
    size_t blob_at = blob_size > 0 ? blob_offset(header_size, body_size) : end;
    if (bytes.size_bytes != blob_at + blob_size) {
        return STATUS_ERR_MALFORMED;
    }
    for (size_t at = end; at < blob_at; at++) {
        if (bytes.data[at] != 0) {
            return STATUS_ERR_MALFORMED;
        }
    }
    const uint8_t *header = bytes.data + PROTO_FRAME_TABLE_SIZE_BYTES;
    out->header = (proto_bytes_t){header_size > 0 ? header : NULL, header_size};
    out->body = (proto_bytes_t){body_size > 0 ? header + header_size : NULL, body_size};
    out->blob = (proto_bytes_t){blob_size > 0 ? bytes.data + blob_at : NULL, blob_size};
    return STATUS_OK;
}
