#include "proto_codec.h"
#include "proto_cursor.h"
#include "proto_require.h"

enum { FIELD_COUNT = 6 };

size_t
proto_header_encode(const proto_header_t *header, uint8_t *out)
{
    require(header != NULL);
    require(out != NULL);
    proto_writer_t writer = {out, out, out + PROTO_HEADER_SIZE_MAX, false};
    proto_write_array(&writer, FIELD_COUNT);
    proto_write_uint(&writer, header->version);
    proto_write_uint(&writer, (uint32_t)header->kind);
    proto_write_uint(&writer, header->epoch);
    proto_write_uint(&writer, header->sequence);
    proto_write_uint(&writer, header->request);
    proto_write_uint(&writer, header->cause);
    require(!writer.overflow);
    return (size_t)(writer.at - writer.begin);
}

proto_status_t
proto_header_decode(proto_bytes_t bytes, proto_header_t *out)
{
    require(out != NULL);
    if (bytes.size_bytes > PROTO_HEADER_SIZE_MAX || proto_validate(bytes, NULL) != STATUS_OK) {
        return STATUS_ERR_MALFORMED;
    }
    proto_cursor_t cursor = {bytes.data, bytes.data + bytes.size_bytes};
    proto_token_t head = proto_token_next(&cursor);
    if (head.type != PROTO_TOKEN_ARRAY || head.number < FIELD_COUNT) {
        return STATUS_ERR_MALFORMED;
    }
    uint64_t numbers[FIELD_COUNT];
    for (uint32_t index = 0; index < FIELD_COUNT; index++) {
        proto_token_t token = proto_token_next(&cursor);
        if (token.type != PROTO_TOKEN_UINT) {
            return STATUS_ERR_MALFORMED;
        }
        numbers[index] = token.number;
    }
    if (numbers[0] > UINT32_MAX || numbers[1] > UINT16_MAX) {
        return STATUS_ERR_MALFORMED;
    }
    out->version = (uint32_t)numbers[0];
    out->kind = (proto_kind_t)numbers[1];
    out->epoch = numbers[2];
    out->sequence = numbers[3];
    out->request = numbers[4];
    out->cause = numbers[5];
    return STATUS_OK;
}
