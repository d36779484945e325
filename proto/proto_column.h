/* proto_column.h - what encoder and decoder know of columns; private to proto/. */
#ifndef PROTO_COLUMN_H
#define PROTO_COLUMN_H

#include <stdbool.h>
#include <string.h>

#include "proto_codec.h"

/* Columns of all types have one shape, which lets one code path handle them. */
typedef struct {
    const void *data;
    uint32_t count;
} proto_any_column_t;

_Static_assert(sizeof(proto_any_column_t) == sizeof(proto_column_u8_t), "one shape");
_Static_assert(sizeof(proto_any_column_t) == sizeof(proto_column_u32_t), "one shape");
_Static_assert(sizeof(proto_any_column_t) == sizeof(proto_column_i32_t), "one shape");
_Static_assert(sizeof(proto_any_column_t) == sizeof(proto_column_u64_t), "one shape");
_Static_assert(sizeof(proto_any_column_t) == sizeof(proto_column_f32_t), "one shape");
_Static_assert(offsetof(proto_any_column_t, count) == offsetof(proto_column_f32_t, count),
               "one shape");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "columns are read in place");
_Static_assert(PROTO_BLOB_SIZE_MAX < UINT32_MAX - PROTO_COLUMN_ALIGN, "offsets fit 32 bits");

/* Bytes of an entry; 0 for fields that are no columns. */
static inline size_t
proto_column_entry_size(proto_field_type_t type)
{
    static const uint8_t sizes[] = {
        [PROTO_FIELD_COL_U8] = 1,  [PROTO_FIELD_COL_U32] = 4, [PROTO_FIELD_COL_I32] = 4,
        [PROTO_FIELD_COL_U64] = 8, [PROTO_FIELD_COL_F32] = 4,
    };
    return sizes[type];
}

static inline bool
proto_column_is_finite(const float *values, uint32_t count)
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

#endif
