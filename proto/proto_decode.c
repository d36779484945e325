/* One loop over the field table decodes every message, after the validator has walked the bytes. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "proto_codec.h"
#include "proto_column.h"
#include "proto_cursor.h"
#include "proto_require.h"

__attribute__((format(printf, 2, 3), cold)) static void
explain(proto_error_t *error, const char *format, ...)
{
    if (error == NULL) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is one line above */
    (void)vsnprintf(error->detail, sizeof error->detail, format, arguments);
    va_end(arguments);
}

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
decode_column(decoder_t *decoder, const proto_field_t *field, proto_any_column_t *out)
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
    size_t size_bytes = (size_t)count.number * proto_column_entry_size(field->type);
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
    if (field->type == PROTO_FIELD_COL_F32 && !proto_column_is_finite(out->data, out->count)) {
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
