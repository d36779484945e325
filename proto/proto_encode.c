/* One loop over the field table encodes every message. */
#include <math.h>

#include "proto_codec.h"
#include "proto_column.h"
#include "proto_cursor.h"
#include "proto_require.h"

enum {
    BODY_HEAD_MAX = 5,   /* bytes of an array or map head */
    FIELD_SIZE_MAX = 24, /* bytes of a number, or of a column's [offset, count], with slack */
    KEY_SIZE_MAX = 63,   /* bytes of a field's name; the tables' test checks it */
};

static size_t
align_up(size_t offset)
{
    return (offset + (PROTO_COLUMN_ALIGN - 1)) & ~(size_t)(PROTO_COLUMN_ALIGN - 1);
}

void
proto_body_bound(proto_kind_t kind, const proto_body_t *body, size_t *body_size_bytes,
                 size_t *blob_size_bytes)
{
    const proto_message_t *message = proto_message_find(kind);
    require(message != NULL);
    require(body != NULL);
    size_t body_size = BODY_HEAD_MAX + (size_t)message->field_count * FIELD_SIZE_MAX;
    size_t blob_size = 0;
    if (message->is_map) {
        body_size += (size_t)message->field_count * (KEY_SIZE_MAX + PROTO_WRITE_HEAD_MAX);
    }
    const uint8_t *base = (const uint8_t *)body;
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        if (field->type == PROTO_FIELD_STR) {
            body_size +=
                ((const proto_text_t *)(const void *)(base + field->offset_bytes))->size_bytes;
        } else if (field->type == PROTO_FIELD_BIN) {
            body_size +=
                ((const proto_bytes_t *)(const void *)(base + field->offset_bytes))->size_bytes;
        } else if (field->type >= PROTO_FIELD_COL_U8) {
            const proto_any_column_t *column = (const void *)(base + field->offset_bytes);
            if (column->count > 0) {
                blob_size = align_up(blob_size) +
                            (size_t)column->count * proto_column_entry_size(field->type);
            }
        }
    }
    *body_size_bytes = body_size;
    *blob_size_bytes = blob_size;
}

typedef struct {
    proto_writer_t body;
    uint8_t *blob;
    size_t blob_capacity_bytes;
    size_t blob_size_bytes;
} encoder_t;

static proto_status_t
encode_column(encoder_t *encoder, const proto_field_t *field, const proto_any_column_t *column)
{
    if (column->count > field->limit) {
        return STATUS_ERR_INVALID;
    }
    if (!proto_write_room(&encoder->body, FIELD_SIZE_MAX)) {
        return STATUS_ERR_TOO_LARGE;
    }
    *encoder->body.at++ = 0x92; /* an array of two */
    if (column->count == 0) {
        *encoder->body.at++ = 0;
        *encoder->body.at++ = 0;
        return STATUS_OK;
    }
    require(column->data != NULL);
    if (field->type == PROTO_FIELD_COL_F32 &&
        !proto_column_is_finite(column->data, column->count)) {
        return STATUS_ERR_INVALID;
    }
    size_t offset = align_up(encoder->blob_size_bytes);
    size_t size_bytes = (size_t)column->count * proto_column_entry_size(field->type);
    if (offset > encoder->blob_capacity_bytes ||
        size_bytes > encoder->blob_capacity_bytes - offset ||
        offset + size_bytes > PROTO_BLOB_SIZE_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    if (encoder->blob != NULL) {
        memset(encoder->blob + encoder->blob_size_bytes, 0, offset - encoder->blob_size_bytes);
        memcpy(encoder->blob + offset, column->data, size_bytes);
    }
    encoder->blob_size_bytes = offset + size_bytes;
    proto_write_uint(&encoder->body, offset);
    proto_write_uint(&encoder->body, column->count);
    return STATUS_OK;
}

static proto_status_t
encode_text(encoder_t *encoder, const proto_field_t *field, const proto_text_t *text)
{
    if (text->size_bytes > field->limit) {
        return STATUS_ERR_INVALID;
    }
    if (text->size_bytes > 0) {
        require(text->data != NULL);
        if (proto_utf8_prefix((const uint8_t *)text->data, text->size_bytes) != text->size_bytes) {
            return STATUS_ERR_INVALID;
        }
    }
    proto_write_str(&encoder->body, text->data, text->size_bytes);
    return STATUS_OK;
}

static proto_status_t
encode_bytes(encoder_t *encoder, const proto_field_t *field, const proto_bytes_t *bytes)
{
    if (bytes->size_bytes > field->limit) {
        return STATUS_ERR_INVALID;
    }
    require(bytes->size_bytes == 0 || bytes->data != NULL);
    proto_write_bin(&encoder->body, bytes->data, bytes->size_bytes);
    return STATUS_OK;
}

static proto_status_t
encode_signed(encoder_t *encoder, const proto_field_t *field, int64_t value)
{
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (magnitude > field->limit) {
        return STATUS_ERR_INVALID;
    }
    proto_write_int(&encoder->body, value);
    return STATUS_OK;
}

static proto_status_t
encode_field(encoder_t *encoder, const proto_field_t *field, const void *value)
{
    switch (field->type) {
    case PROTO_FIELD_U32:
        if (*(const uint32_t *)value > field->limit) {
            return STATUS_ERR_INVALID;
        }
        proto_write_uint(&encoder->body, *(const uint32_t *)value);
        return STATUS_OK;
    case PROTO_FIELD_U64:
        if (*(const uint64_t *)value > field->limit) {
            return STATUS_ERR_INVALID;
        }
        proto_write_uint(&encoder->body, *(const uint64_t *)value);
        return STATUS_OK;
    case PROTO_FIELD_I64:
        return encode_signed(encoder, field, *(const int64_t *)value);
    case PROTO_FIELD_F64:
        if (!isfinite(*(const double *)value)) {
            return STATUS_ERR_INVALID;
        }
        proto_write_real(&encoder->body, *(const double *)value);
        return STATUS_OK;
    case PROTO_FIELD_BOOL:
        proto_write_bool(&encoder->body, *(const bool *)value);
        return STATUS_OK;
    case PROTO_FIELD_STR:
        return encode_text(encoder, field, value);
    case PROTO_FIELD_BIN:
        return encode_bytes(encoder, field, value);
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        return encode_column(encoder, field, value);
    }
    return STATUS_ERR_INTERNAL;
}

proto_status_t
proto_body_encode(proto_kind_t kind, const proto_body_t *body, uint8_t *body_out,
                  size_t body_capacity_bytes, size_t *body_size_bytes, uint8_t *blob_out,
                  size_t blob_capacity_bytes, size_t *blob_size_bytes)
{
    const proto_message_t *message = proto_message_find(kind);
    require(message != NULL);
    require(body != NULL);
    require(body_out != NULL);
    encoder_t encoder = {
        .body = {body_out, body_out, body_out + body_capacity_bytes, false},
        .blob = blob_out,
        .blob_capacity_bytes = blob_capacity_bytes,
        .blob_size_bytes = 0,
    };
    if (message->is_map) {
        proto_write_map(&encoder.body, message->field_count);
    } else {
        proto_write_array(&encoder.body, message->field_count);
    }
    const uint8_t *base = (const uint8_t *)body;
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        if (message->is_map) {
            proto_write_str(&encoder.body, field->name, strlen(field->name));
        }
        proto_status_t status = encode_field(&encoder, field, base + field->offset_bytes);
        if (status != STATUS_OK) {
            return status;
        }
    }
    size_t size_bytes = (size_t)(encoder.body.at - encoder.body.begin);
    if (encoder.body.overflow || size_bytes > PROTO_BODY_SIZE_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    *body_size_bytes = size_bytes;
    *blob_size_bytes = encoder.blob_size_bytes;
    return STATUS_OK;
}
