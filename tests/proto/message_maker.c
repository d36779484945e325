#include "message_maker.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_clock.h"
#include "proto_require.h"

typedef struct {
    const uint8_t *data;
    uint32_t count;
} column_t;

maker_t *
maker_new(uint64_t seed, uint32_t content_max)
{
    maker_t *maker = aligned_alloc(64, sizeof *maker);
    require(maker != NULL);
    maker->state = seed;
    maker->content_max = content_max;
    maker->used_bytes = 0;
    return maker;
}

uint64_t
maker_seed(const char *test)
{
    const char *text = getenv("ONEPATH_SEED");
    uint64_t seed =
        text != NULL ? strtoull(text, NULL, 0) : proto_clock_realtime_ns(proto_clock_system());
    printf("%s: ONEPATH_SEED=%" PRIu64 "\n", test, seed);
    (void)fflush(stdout);
    return seed;
}

uint64_t
maker_random(maker_t *maker)
{
    maker->state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t value = maker->state;
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

size_t
maker_entry_size(proto_field_type_t type)
{
    switch (type) {
    case PROTO_FIELD_COL_U8:
        return 1;
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_F32:
        return 4;
    case PROTO_FIELD_COL_U64:
        return 8;
    case PROTO_FIELD_U32:
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
    case PROTO_FIELD_F64:
    case PROTO_FIELD_BOOL:
    case PROTO_FIELD_STR:
    case PROTO_FIELD_BIN:
        return 0;
    }
    return 0;
}

static uint8_t *
take(maker_t *maker, size_t size_bytes)
{
    uint8_t *bytes = maker->arena + maker->used_bytes;
    maker->used_bytes += (size_bytes + 63) & ~(size_t)63;
    require(maker->used_bytes <= MAKER_ARENA_SIZE);
    return bytes;
}

/* A number of 0..64 bits within the limit: all lengths of msgpack's integers occur. */
static uint64_t
number_within(maker_t *maker, uint64_t limit)
{
    uint64_t shape = maker_random(maker) % 67;
    if (shape == 65) {
        return limit;
    }
    uint64_t value = shape == 0 ? 0 : maker_random(maker) >> (64 - (shape > 64 ? 64 : shape));
    return limit == UINT64_MAX ? value : value % (limit + 1);
}

static uint32_t
length_within(maker_t *maker, uint64_t limit)
{
    uint64_t most = limit < maker->content_max ? limit : maker->content_max;
    switch (maker_random(maker) % 4) {
    case 0:
        return 0;
    case 1:
        return (uint32_t)(maker_random(maker) % (most < 40 ? most + 1 : 41));
    default:
        return (uint32_t)(maker_random(maker) % (most + 1));
    }
}

/* Text with code points of one to four bytes. */
static proto_text_t
text_within(maker_t *maker, uint64_t limit)
{
    static const char *const points[] = {"a", "Z", "\"", "\\", "\n", "é", "ß", "€", "漢", "𝄞"};
    uint32_t length = length_within(maker, limit);
    uint8_t *bytes = take(maker, length);
    uint32_t at = 0;
    while (at < length) {
        const char *point = points[maker_random(maker) % (sizeof points / sizeof *points)];
        uint32_t size = (uint32_t)strlen(point);
        if (at + size > length) {
            point = "x";
            size = 1;
        }
        memcpy(bytes + at, point, size);
        at += size;
    }
    return (proto_text_t){length > 0 ? (const char *)bytes : NULL, length};
}

static uint8_t *
random_bytes(maker_t *maker, size_t size_bytes)
{
    uint8_t *bytes = take(maker, size_bytes);
    for (size_t at = 0; at < size_bytes; at++) {
        bytes[at] = (uint8_t)maker_random(maker);
    }
    return bytes;
}

static double
random_real(maker_t *maker)
{
    double value = (double)(int64_t)maker_random(maker) / 9223372036854775808.0;
    return ldexp(value, (int)(maker_random(maker) % 80) - 40);
}

static void
fill_column(maker_t *maker, const proto_field_t *field, column_t *column)
{
    column->count = length_within(maker, field->limit);
    uint8_t *bytes = random_bytes(maker, column->count * maker_entry_size(field->type));
    column->data = column->count > 0 ? bytes : NULL;
    if (field->type == PROTO_FIELD_COL_F32) {
        for (uint32_t index = 0; index < column->count; index++) {
            float value = (float)random_real(maker);
            memcpy(bytes + index * sizeof value, &value, sizeof value);
        }
    }
}

static void
fill_field(maker_t *maker, const proto_field_t *field, void *value)
{
    switch (field->type) {
    case PROTO_FIELD_U32:
        *(uint32_t *)value = (uint32_t)number_within(maker, field->limit);
        break;
    case PROTO_FIELD_U64:
        *(uint64_t *)value = number_within(maker, field->limit);
        break;
    case PROTO_FIELD_I64: {
        int64_t magnitude = (int64_t)number_within(maker, field->limit & INT64_MAX);
        *(int64_t *)value = maker_random(maker) % 2 == 0 ? magnitude : -magnitude;
        break;
    }
    case PROTO_FIELD_F64:
        *(double *)value = random_real(maker);
        break;
    case PROTO_FIELD_BOOL:
        *(bool *)value = maker_random(maker) % 2 == 0;
        break;
    case PROTO_FIELD_STR:
        *(proto_text_t *)value = text_within(maker, field->limit);
        break;
    case PROTO_FIELD_BIN: {
        uint32_t length = length_within(maker, field->limit);
        uint8_t *bytes = random_bytes(maker, length);
        *(proto_bytes_t *)value = (proto_bytes_t){length > 0 ? bytes : NULL, length};
        break;
    }
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        fill_column(maker, field, value);
        break;
    }
}

void
maker_fill(maker_t *maker, const proto_message_t *message, proto_body_t *body)
{
    maker->used_bytes = 0;
    memset(body, 0, sizeof *body);
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        fill_field(maker, field, (uint8_t *)body + field->offset_bytes);
    }
}

void
maker_encode(const proto_message_t *message, const proto_body_t *body, encoded_t *out)
{
    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_body_bound(message->kind, body, &body_bound, &blob_bound);
    require(body_bound <= sizeof out->body);
    require(blob_bound <= sizeof out->blob);
    proto_status_t status =
        proto_body_encode(message->kind, body, out->body, body_bound, &out->body_size_bytes,
                          out->blob, blob_bound, &out->blob_size_bytes);
    require(status == STATUS_OK);
    require(out->body_size_bytes <= body_bound);
    require(out->blob_size_bytes == blob_bound);
}

static bool
same_bytes(const void *a, const void *b, size_t size_bytes)
{
    return size_bytes == 0 || memcmp(a, b, size_bytes) == 0;
}

static bool
same_field(const proto_field_t *field, const void *a, const void *b)
{
    switch (field->type) {
    case PROTO_FIELD_U32:
        return *(const uint32_t *)a == *(const uint32_t *)b;
    case PROTO_FIELD_U64:
        return *(const uint64_t *)a == *(const uint64_t *)b;
    case PROTO_FIELD_I64:
        return *(const int64_t *)a == *(const int64_t *)b;
    case PROTO_FIELD_F64:
        return same_bytes(a, b, sizeof(double));
    case PROTO_FIELD_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case PROTO_FIELD_STR: {
        const proto_text_t *x = a;
        const proto_text_t *y = b;
        return x->size_bytes == y->size_bytes && same_bytes(x->data, y->data, x->size_bytes);
    }
    case PROTO_FIELD_BIN: {
        const proto_bytes_t *x = a;
        const proto_bytes_t *y = b;
        return x->size_bytes == y->size_bytes && same_bytes(x->data, y->data, x->size_bytes);
    }
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32: {
        const column_t *x = a;
        const column_t *y = b;
        return x->count == y->count &&
               same_bytes(x->data, y->data, x->count * maker_entry_size(field->type));
    }
    }
    return false;
}

const char *
maker_difference(const proto_message_t *message, const proto_body_t *a, const proto_body_t *b)
{
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        if (!same_field(field, (const uint8_t *)a + field->offset_bytes,
                        (const uint8_t *)b + field->offset_bytes)) {
            return field->name;
        }
    }
    return NULL;
}

static bool
inside(const void *data, size_t size_bytes, proto_bytes_t whole)
{
    if (size_bytes == 0) {
        return true;
    }
    uintptr_t begin = (uintptr_t)data;
    uintptr_t whole_begin = (uintptr_t)whole.data;
    return begin >= whole_begin && begin - whole_begin <= whole.size_bytes &&
           size_bytes <= whole.size_bytes - (begin - whole_begin);
}

static bool
column_in_range(const proto_field_t *field, const column_t *column, proto_bytes_t blob,
                uintptr_t *free_from)
{
    size_t size_bytes = column->count * maker_entry_size(field->type);
    if (column->count > field->limit || !inside(column->data, size_bytes, blob)) {
        return false;
    }
    if (column->count == 0) {
        return column->data == NULL;
    }
    if ((uintptr_t)column->data < *free_from) {
        return false;
    }
    *free_from = (uintptr_t)column->data + size_bytes;
    for (uint32_t index = 0; field->type == PROTO_FIELD_COL_F32 && index < column->count; index++) {
        float value;
        memcpy(&value, column->data + index * sizeof value, sizeof value);
        if (!isfinite(value)) {
            return false;
        }
    }
    return true;
}

static bool
field_in_range(const proto_field_t *field, const void *value, proto_bytes_t body,
               proto_bytes_t blob, uintptr_t *free_from)
{
    switch (field->type) {
    case PROTO_FIELD_U32:
        return *(const uint32_t *)value <= field->limit;
    case PROTO_FIELD_U64:
        return *(const uint64_t *)value <= field->limit;
    case PROTO_FIELD_I64: {
        int64_t number = *(const int64_t *)value;
        return number >= -(int64_t)field->limit && number <= (int64_t)field->limit;
    }
    case PROTO_FIELD_F64:
        return isfinite(*(const double *)value);
    case PROTO_FIELD_BOOL:
        return *(const uint8_t *)value <= 1;
    case PROTO_FIELD_STR: {
        const proto_text_t *text = value;
        return text->size_bytes <= field->limit && inside(text->data, text->size_bytes, body);
    }
    case PROTO_FIELD_BIN: {
        const proto_bytes_t *bytes = value;
        return bytes->size_bytes <= field->limit && inside(bytes->data, bytes->size_bytes, body);
    }
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        return column_in_range(field, value, blob, free_from);
    }
    return false;
}

const char *
maker_out_of_range(const proto_message_t *message, const proto_body_t *body,
                   proto_bytes_t body_bytes, proto_bytes_t blob)
{
    uintptr_t free_from = 0;
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        if (!field_in_range(field, (const uint8_t *)body + field->offset_bytes, body_bytes, blob,
                            &free_from)) {
            return field->name;
        }
    }
    return NULL;
}
