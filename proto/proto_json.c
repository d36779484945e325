/* The JSON view.  Output is cut at the capacity but always counted to its end, as snprintf does. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto_codec.h"
#include "proto_cursor.h"
#include "proto_require.h"

typedef struct {
    char *out;
    size_t capacity_bytes;
    size_t length; /* that was needed so far */
} text_t;

static void
put_bytes(text_t *text, const char *data, size_t size_bytes)
{
    if (text->length < text->capacity_bytes) {
        size_t room = text->capacity_bytes - text->length;
        memcpy(text->out + text->length, data, size_bytes < room ? size_bytes : room);
    }
    text->length += size_bytes;
}

static void
put(text_t *text, const char *string)
{
    put_bytes(text, string, strlen(string));
}

static void
put_unsigned(text_t *text, uint64_t value)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, value);
    put_bytes(text, digits, (size_t)length);
}

static void
put_signed(text_t *text, int64_t value)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value);
    put_bytes(text, digits, (size_t)length);
}

/* The shorter of two forms if it reads back as the same number.  No infinity or NaN gets here from
 * a decoded body; JSON has no form for them. */
static void
put_real(text_t *text, double value, bool is_single)
{
    char digits[40];
    if (!(value - value == 0)) {
        put(text, "null");
        return;
    }
    int digits_exact = is_single ? 9 : 17;
    int length = snprintf(digits, sizeof digits, "%.*g", digits_exact - 2, value);
    double back = is_single ? (double)strtof(digits, NULL) : strtod(digits, NULL);
    if (back < value || back > value) {
        length = snprintf(digits, sizeof digits, "%.*g", digits_exact, value);
    }
    put_bytes(text, digits, (size_t)length);
}

static void
put_escaped_code(text_t *text, unsigned code)
{
    char escape[8];
    int length = snprintf(escape, sizeof escape, "\\u%04x", code);
    put_bytes(text, escape, (size_t)length);
}

/* Text comes from peers and ends on terminals: every control character is escaped, C1 included,
 * and what is not UTF-8 becomes U+FFFD. */
static void
put_string(text_t *text, const char *data, size_t size_bytes)
{
    const uint8_t *bytes = (const uint8_t *)data;
    put(text, "\"");
    size_t at = 0;
    while (at < size_bytes) {
        size_t step = proto_utf8_step(bytes + at, size_bytes - at);
        uint8_t first = bytes[at];
        if (step == 0) {
            put(text, "\\ufffd");
            step = 1;
        } else if (first == '"' || first == '\\') {
            char escape[2] = {'\\', (char)first};
            put_bytes(text, escape, sizeof escape);
        } else if (first == '\n') {
            put(text, "\\n");
        } else if (first < 0x20 || first == 0x7f) {
            put_escaped_code(text, first);
        } else if (step == 2 && first == 0xc2 && bytes[at + 1] < 0xa0) {
            put_escaped_code(text, bytes[at + 1]);
        } else {
            put_bytes(text, data + at, step);
        }
        at += step;
    }
    put(text, "\"");
}

static void
put_hex(text_t *text, const uint8_t *data, size_t size_bytes)
{
    static const char digits[] = "0123456789abcdef";
    put(text, "\"");
    for (size_t at = 0; at < size_bytes; at++) {
        char pair[2] = {digits[data[at] >> 4], digits[data[at] & 15]};
        put_bytes(text, pair, sizeof pair);
    }
    put(text, "\"");
}

static void
put_bin(text_t *text, const proto_bytes_t *bytes, size_t size_max)
{
    if (bytes->size_bytes <= size_max) {
        put_hex(text, bytes->data, bytes->size_bytes);
        return;
    }
    put(text, "{\"size_bytes\":");
    put_unsigned(text, bytes->size_bytes);
    put(text, ",\"first\":");
    put_hex(text, bytes->data, size_max);
    put(text, "}");
}

static void
put_element(text_t *text, proto_field_type_t type, const void *value, uint32_t index)
{
    switch (type) {
    case PROTO_FIELD_COL_U8:
        put_unsigned(text, ((const proto_column_u8_t *)value)->data[index]);
        break;
    case PROTO_FIELD_COL_U32:
        put_unsigned(text, ((const proto_column_u32_t *)value)->data[index]);
        break;
    case PROTO_FIELD_COL_I32:
        put_signed(text, ((const proto_column_i32_t *)value)->data[index]);
        break;
    case PROTO_FIELD_COL_U64:
        put_unsigned(text, ((const proto_column_u64_t *)value)->data[index]);
        break;
    case PROTO_FIELD_COL_F32:
        put_real(text, (double)((const proto_column_f32_t *)value)->data[index], true);
        break;
    case PROTO_FIELD_U32:
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
    case PROTO_FIELD_F64:
    case PROTO_FIELD_BOOL:
    case PROTO_FIELD_STR:
    case PROTO_FIELD_BIN:
        break; /* no columns */
    }
}

static void
put_column(text_t *text, proto_field_type_t type, const void *value, uint32_t len_max)
{
    uint32_t count = ((const proto_column_u8_t *)value)->count; /* the same place in all columns */
    uint32_t shown = count < len_max ? count : len_max;
    if (shown < count) {
        put(text, "{\"count\":");
        put_unsigned(text, count);
        put(text, ",\"first\":");
    }
    put(text, "[");
    for (uint32_t index = 0; index < shown; index++) {
        if (index > 0) {
            put(text, ",");
        }
        put_element(text, type, value, index);
    }
    put(text, "]");
    if (shown < count) {
        put(text, "}");
    }
}

/* What `log redact` keeps of a private field. */
static void
put_size(text_t *text, proto_field_type_t type, const void *value)
{
    if (type == PROTO_FIELD_STR) {
        put(text, "{\"size_bytes\":");
        put_unsigned(text, ((const proto_text_t *)value)->size_bytes);
    } else if (type == PROTO_FIELD_BIN) {
        put(text, "{\"size_bytes\":");
        put_unsigned(text, ((const proto_bytes_t *)value)->size_bytes);
    } else if (type >= PROTO_FIELD_COL_U8) {
        put(text, "{\"count\":");
        put_unsigned(text, ((const proto_column_u8_t *)value)->count);
    } else {
        put(text, "{\"hidden\":true");
    }
    put(text, "}");
}

static void
put_value(text_t *text, proto_field_type_t type, const void *value, uint32_t len_max)
{
    switch (type) {
    case PROTO_FIELD_U32:
        put_unsigned(text, *(const uint32_t *)value);
        break;
    case PROTO_FIELD_U64:
        put_unsigned(text, *(const uint64_t *)value);
        break;
    case PROTO_FIELD_I64:
        put_signed(text, *(const int64_t *)value);
        break;
    case PROTO_FIELD_F64:
        put_real(text, *(const double *)value, false);
        break;
    case PROTO_FIELD_BOOL:
        put(text, *(const bool *)value ? "true" : "false");
        break;
    case PROTO_FIELD_STR:
        put_string(text, ((const proto_text_t *)value)->data,
                   ((const proto_text_t *)value)->size_bytes);
        break;
    case PROTO_FIELD_BIN:
        put_bin(text, value, len_max);
        break;
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        put_column(text, type, value, len_max);
        break;
    }
}

size_t
proto_body_to_json(proto_kind_t kind, const proto_body_t *body, bool show_private,
                   uint32_t column_len_max, char *out, size_t capacity_bytes)
{
    const proto_message_t *message = proto_message_find(kind);
    require(message != NULL);
    require(body != NULL);
    require(out != NULL || capacity_bytes == 0);
    /* One byte is kept for the terminating zero. */
    text_t text = {out, capacity_bytes > 0 ? capacity_bytes - 1 : 0, 0};
    put(&text, "{");
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        const void *value = (const uint8_t *)body + field->offset_bytes;
        put(&text, index > 0 ? ",\"" : "\"");
        put(&text, field->name);
        put(&text, "\":");
        if (field->is_private && !show_private) {
            put_size(&text, field->type, value);
        } else {
            put_value(&text, field->type, value, column_len_max);
        }
    }
    put(&text, "}");
    if (capacity_bytes > 0) {
        out[text.length < capacity_bytes ? text.length : capacity_bytes - 1] = '\0';
    }
    return text.length;
}
