/* Header and bodies.  One loop over the field table encodes, one decodes, for every message. */
#include "proto_codec.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "proto_cursor.h"
#include "proto_require.h"

/* Columns of all types have one shape, which lets one code path handle them. */
typedef struct {
    const void *data;
    uint32_t count;
} any_column_t;

_Static_assert(sizeof(any_column_t) == sizeof(proto_column_u8_t), "columns have one shape");
_Static_assert(sizeof(any_column_t) == sizeof(proto_column_u32_t), "columns have one shape");
_Static_assert(sizeof(any_column_t) == sizeof(proto_column_i32_t), "columns have one shape");
_Static_assert(sizeof(any_column_t) == sizeof(proto_column_u64_t), "columns have one shape");
_Static_assert(sizeof(any_column_t) == sizeof(proto_column_f32_t), "columns have one shape");
_Static_assert(offsetof(any_column_t, count) == offsetof(proto_column_f32_t, count),
               "columns have one shape");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "columns are read in place");
_Static_assert(PROTO_BLOB_SIZE_MAX < UINT32_MAX - PROTO_COLUMN_ALIGN, "offsets fit 32 bits");

enum {
    BODY_HEAD_MAX = 5,   /* bytes of an array or map head */
    FIELD_SIZE_MAX = 24, /* bytes of a number, or of a column's [offset, count], with slack */
    KEY_SIZE_MAX = 63,   /* bytes of a field's name; the tables' test checks it */
    HEADER_FIELD_COUNT = 6,
};

static const uint8_t element_sizes[] = {
    [PROTO_FIELD_COL_U8] = 1,  [PROTO_FIELD_COL_U32] = 4, [PROTO_FIELD_COL_I32] = 4,
    [PROTO_FIELD_COL_U64] = 8, [PROTO_FIELD_COL_F32] = 4,
};

__attribute__((format(printf, 2, 3), cold)) static void
explain(proto_error_t *error, const char *format, ...)
{
    if (error == NULL) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->detail, sizeof error->detail, format, arguments);
    va_end(arguments);
}

/* ---- header --------------------------------------------------------------------------------- */

size_t
proto_header_encode(const proto_header_t *header, uint8_t *out)
{
    require(header != NULL);
    require(out != NULL);
    proto_writer_t writer = {out, out, out + PROTO_HEADER_SIZE_MAX, false};
    proto_write_array(&writer, HEADER_FIELD_COUNT);
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
    if (head.type != PROTO_TOKEN_ARRAY || head.number < HEADER_FIELD_COUNT) {
        return STATUS_ERR_MALFORMED;
    }
    uint64_t numbers[HEADER_FIELD_COUNT];
    for (uint32_t index = 0; index < HEADER_FIELD_COUNT; index++) {
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

/* ---- encoding ------------------------------------------------------------------------------- */

static size_t
align_up(size_t offset)
{
    return (offset + (PROTO_COLUMN_ALIGN - 1)) & ~(size_t)(PROTO_COLUMN_ALIGN - 1);
}

static bool
column_is_finite(const float *values, uint32_t count)
{
    /* An exponent of all ones is an infinity or a NaN; the loop has no branch, so it vectorises. */
    uint32_t bad = 0;
    for (uint32_t index = 0; index < count; index++) {
        uint32_t bits;
        memcpy(&bits, &values[index], sizeof bits);
        bad |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return bad == 0;
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
            const any_column_t *column = (const void *)(base + field->offset_bytes);
            if (column->count > 0) {
                blob_size =
                    align_up(blob_size) + (size_t)column->count * element_sizes[field->type];
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
encode_column(encoder_t *encoder, const proto_field_t *field, const any_column_t *column)
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
    if (field->type == PROTO_FIELD_COL_F32 && !column_is_finite(column->data, column->count)) {
        return STATUS_ERR_INVALID;
    }
    size_t offset = align_up(encoder->blob_size_bytes);
    size_t size_bytes = (size_t)column->count * element_sizes[field->type];
    if (offset > encoder->blob_capacity_bytes ||
        size_bytes > encoder->blob_capacity_bytes - offset ||
        offset + size_bytes > PROTO_BLOB_SIZE_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    memset(encoder->blob + encoder->blob_size_bytes, 0, offset - encoder->blob_size_bytes);
    memcpy(encoder->blob + offset, column->data, size_bytes);
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

/* ---- decoding ------------------------------------------------------------------------------- */

typedef struct {
    const proto_message_t *message;
    proto_cursor_t cursor;
    proto_bytes_t blob;
    size_t blob_at; /* end of the last column: the next one begins at or after it */
    proto_error_t *error;
} decoder_t;

__attribute__((cold)) static proto_status_t
refuse_type(const decoder_t *decoder, const proto_field_t *field, const char *wanted)
{
    explain(decoder->error, "%s.%s: not %s", decoder->message->name, field->name, wanted);
    return STATUS_ERR_MALFORMED;
}

__attribute__((cold)) static proto_status_t
refuse_range(const decoder_t *decoder, const proto_field_t *field, uint64_t got)
{
    explain(decoder->error, "%s.%s: %" PRIu64 " is beyond the limit %" PRIu64,
            decoder->message->name, field->name, got, field->limit);
    return STATUS_ERR_MALFORMED;
}

static proto_status_t
decode_column(decoder_t *decoder, const proto_field_t *field, any_column_t *out)
{
    proto_token_t pair = proto_token_next(&decoder->cursor);
    if (pair.type != PROTO_TOKEN_ARRAY || pair.number != 2) {
        return refuse_type(decoder, field, "[offset, count]");
    }
    proto_token_t offset = proto_token_next(&decoder->cursor);
    proto_token_t count = proto_token_next(&decoder->cursor);
    if (offset.type != PROTO_TOKEN_UINT || count.type != PROTO_TOKEN_UINT) {
        return refuse_type(decoder, field, "[offset, count]");
    }
    if (count.number > field->limit || count.number > UINT32_MAX) {
        return refuse_range(decoder, field, count.number);
    }
    if (count.number == 0) {
        out->data = NULL;
        out->count = 0;
        return STATUS_OK;
    }
    size_t size_bytes = (size_t)count.number * element_sizes[field->type];
    if (offset.number % PROTO_COLUMN_ALIGN != 0 || offset.number < decoder->blob_at ||
        offset.number > decoder->blob.size_bytes ||
        size_bytes > decoder->blob.size_bytes - offset.number) {
        explain(decoder->error,
                "%s.%s: %zu bytes at offset %" PRIu64 " do not lie aligned and free in a blob "
                "of %zu",
                decoder->message->name, field->name, size_bytes, offset.number,
                decoder->blob.size_bytes);
        return STATUS_ERR_MALFORMED;
    }
    out->data = decoder->blob.data + offset.number;
    out->count = (uint32_t)count.number;
    decoder->blob_at = (size_t)offset.number + size_bytes;
    if (field->type == PROTO_FIELD_COL_F32 && !column_is_finite(out->data, out->count)) {
        return refuse_type(decoder, field, "finite");
    }
    return STATUS_OK;
}

static proto_status_t
decode_unsigned(decoder_t *decoder, const proto_field_t *field, uint64_t *out)
{
    proto_token_t token = proto_token_next(&decoder->cursor);
    if (token.type != PROTO_TOKEN_UINT) {
        return refuse_type(decoder, field, "an unsigned integer");
    }
    if (token.number > field->limit) {
        return refuse_range(decoder, field, token.number);
    }
    *out = token.number;
    return STATUS_OK;
}

static proto_status_t
decode_signed(decoder_t *decoder, const proto_field_t *field, int64_t *out)
{
    proto_token_t token = proto_token_next(&decoder->cursor);
    if (token.type != PROTO_TOKEN_UINT && token.type != PROTO_TOKEN_INT) {
        return refuse_type(decoder, field, "an integer");
    }
    bool negative = token.type == PROTO_TOKEN_INT;
    uint64_t magnitude = negative ? 0 - token.number : token.number;
    if (magnitude > field->limit || (!negative && magnitude > INT64_MAX)) {
        return refuse_range(decoder, field, magnitude);
    }
    *out = (int64_t)token.number;
    return STATUS_OK;
}

static proto_status_t
decode_real(decoder_t *decoder, const proto_field_t *field, double *out)
{
    /* Writers in other languages send 1 for 1.0, so integers that a double holds are taken. */
    proto_token_t token = proto_token_next(&decoder->cursor);
    const int64_t exact = INT64_C(1) << 53;
    if (token.type == PROTO_TOKEN_UINT && token.number <= (uint64_t)exact) {
        *out = (double)token.number;
        return STATUS_OK;
    }
    if (token.type == PROTO_TOKEN_INT && (int64_t)token.number >= -exact) {
        *out = (double)(int64_t)token.number;
        return STATUS_OK;
    }
    double value = proto_token_real(token);
    if (token.type != PROTO_TOKEN_FLOAT || !isfinite(value)) {
        return refuse_type(decoder, field, "a finite number");
    }
    *out = value;
    return STATUS_OK;
}

/* STR or BIN: a view of the content. */
static proto_status_t
decode_content(decoder_t *decoder, const proto_field_t *field, proto_token_type_t type,
               proto_bytes_t *out)
{
    proto_token_t token = proto_token_next(&decoder->cursor);
    if (token.type != type) {
        return refuse_type(decoder, field, type == PROTO_TOKEN_STR ? "text" : "bytes");
    }
    if (token.number > field->limit) {
        return refuse_range(decoder, field, token.number);
    }
    out->data = token.number > 0 ? decoder->cursor.at : NULL;
    out->size_bytes = (size_t)token.number;
    decoder->cursor.at += token.number;
    return STATUS_OK;
}

static proto_status_t
decode_field(decoder_t *decoder, const proto_field_t *field, void *value)
{
    proto_status_t status = STATUS_ERR_INTERNAL;
    uint64_t number = 0;
    proto_bytes_t content = {NULL, 0};
    proto_token_t token;
    switch (field->type) {
    case PROTO_FIELD_U32:
        status = decode_unsigned(decoder, field, &number);
        *(uint32_t *)value = (uint32_t)number;
        return status;
    case PROTO_FIELD_U64:
        return decode_unsigned(decoder, field, value);
    case PROTO_FIELD_I64:
        return decode_signed(decoder, field, value);
    case PROTO_FIELD_F64:
        return decode_real(decoder, field, value);
    case PROTO_FIELD_BOOL:
        token = proto_token_next(&decoder->cursor);
        if (token.type != PROTO_TOKEN_BOOL) {
            return refuse_type(decoder, field, "true or false");
        }
        *(bool *)value = token.number != 0;
        return STATUS_OK;
    case PROTO_FIELD_STR:
        status = decode_content(decoder, field, PROTO_TOKEN_STR, &content);
        *(proto_text_t *)value =
            (proto_text_t){(const char *)content.data, (uint32_t)content.size_bytes};
        return status;
    case PROTO_FIELD_BIN:
        return decode_content(decoder, field, PROTO_TOKEN_BIN, value);
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        return decode_column(decoder, field, value);
    }
    return status;
}

static proto_status_t
decode_array(decoder_t *decoder, uint8_t *base)
{
    const proto_message_t *message = decoder->message;
    proto_token_t head = proto_token_next(&decoder->cursor);
    if (head.type != PROTO_TOKEN_ARRAY) {
        explain(decoder->error, "%s: the body is not an array", message->name);
        return STATUS_ERR_MALFORMED;
    }
    /* Fewer fields: an older sender, the rest keeps its default.  More: a newer one, the
     * validator has walked what we do not look at. */
    uint64_t count = head.number < message->field_count ? head.number : message->field_count;
    for (uint32_t index = 0; index < count; index++) {
        const proto_field_t *field = &message->fields[index];
        proto_status_t status = decode_field(decoder, field, base + field->offset_bytes);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static const proto_field_t *
find_field(const proto_message_t *message, const uint8_t *name, size_t size_bytes)
{
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        if (strlen(field->name) == size_bytes && memcmp(field->name, name, size_bytes) == 0) {
            return field;
        }
    }
    return NULL;
}

static proto_status_t
decode_map(decoder_t *decoder, uint8_t *base)
{
    const proto_message_t *message = decoder->message;
    proto_token_t head = proto_token_next(&decoder->cursor);
    if (head.type != PROTO_TOKEN_MAP) {
        explain(decoder->error, "%s: the body is not a map", message->name);
        return STATUS_ERR_MALFORMED;
    }
    for (uint64_t index = 0; index < head.number; index++) {
        proto_token_t key = proto_token_next(&decoder->cursor);
        if (key.type != PROTO_TOKEN_STR) {
            return STATUS_ERR_MALFORMED; /* not reached: the validator has seen the keys */
        }
        const uint8_t *name = decoder->cursor.at;
        decoder->cursor.at += key.number;
        const proto_field_t *field = find_field(message, name, (size_t)key.number);
        if (field == NULL) {
            if (!proto_cursor_skip(&decoder->cursor)) {
                return STATUS_ERR_MALFORMED;
            }
            continue;
        }
        proto_status_t status = decode_field(decoder, field, base + field->offset_bytes);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* Decodes into `out`, of message->struct_size_bytes bytes, which is left as it is on failure. */
static proto_status_t
decode_struct(const proto_message_t *message, proto_bytes_t body, proto_bytes_t blob, void *out,
              proto_error_t *error)
{
    if (body.size_bytes > PROTO_BODY_SIZE_MAX || blob.size_bytes > PROTO_BLOB_SIZE_MAX) {
        explain(error, "%s: body of %zu bytes and blob of %zu, limits %d and %d", message->name,
                body.size_bytes, blob.size_bytes, PROTO_BODY_SIZE_MAX, PROTO_BLOB_SIZE_MAX);
        return STATUS_ERR_TOO_LARGE;
    }
    if (!proto_blob_is_aligned(blob)) {
        explain(error, "%s: the blob lies at an odd address; copy it first", message->name);
        return STATUS_ERR_INVALID;
    }
    proto_status_t status = proto_validate(body, error);
    if (status != STATUS_OK) {
        return status;
    }
    decoder_t decoder = {
        .message = message,
        .cursor = {body.data, body.data + body.size_bytes},
        .blob = blob,
        .blob_at = 0,
        .error = error,
    };
    proto_body_t decoded;
    memset(&decoded, 0, message->struct_size_bytes);
    status = message->is_map ? decode_map(&decoder, (uint8_t *)&decoded)
                             : decode_array(&decoder, (uint8_t *)&decoded);
    if (status == STATUS_OK) {
        memcpy(out, &decoded, message->struct_size_bytes);
    }
    return status;
}

proto_status_t
proto_body_decode(proto_kind_t kind, proto_bytes_t body, proto_bytes_t blob, proto_body_t *out,
                  proto_error_t *error)
{
    require(out != NULL);
    const proto_message_t *message = proto_message_find(kind);
    if (message == NULL) {
        explain(error, "message number %u is not known", (unsigned)kind);
        return STATUS_ERR_UNSUPPORTED;
    }
    return decode_struct(message, body, blob, out, error);
}

bool
proto_blob_is_aligned(proto_bytes_t blob)
{
    return blob.size_bytes == 0 || (uintptr_t)blob.data % _Alignof(uint64_t) == 0;
}

proto_status_t
proto_sampling_decode(proto_column_u8_t bytes, proto_sampling_t *out, proto_error_t *error)
{
    require(out != NULL);
    proto_bytes_t body = {bytes.data, bytes.count};
    proto_bytes_t no_blob = {NULL, 0};
    return decode_struct(proto_message_find(PROTO_KIND_SAMPLING), body, no_blob, out, error);
}

proto_text_t
proto_text(const char *string)
{
    /* What does not fit or is not UTF-8 is left away, so the text can always be sent. */
    require(string != NULL);
    size_t length = strnlen(string, PROTO_TEXT_LEN_MAX);
    length = proto_utf8_prefix((const uint8_t *)string, length);
    return (proto_text_t){string, (uint32_t)length};
}
