/* proto_cursor.h - msgpack, read and written byte by byte; private to proto/.
 *
 * Reading: a cursor over hostile bytes that never passes the end.  It gives one token at a time
 * (the head of a value), allocates nothing and never trusts a count: a length is refused if fewer
 * bytes are left.  Writing: a writer into caller memory with a sticky overflow flag.  Any thread.
 */
#ifndef PROTO_CURSOR_H
#define PROTO_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum {
    PROTO_TOKEN_BAD = 0, /* truncated, a count beyond the bytes, ext type or 0xc1 */
    PROTO_TOKEN_NIL,
    PROTO_TOKEN_BOOL,  /* number: 0 or 1 */
    PROTO_TOKEN_UINT,  /* number */
    PROTO_TOKEN_INT,   /* number: two's complement of a negative value */
    PROTO_TOKEN_FLOAT, /* number: bits of a double */
    PROTO_TOKEN_STR,   /* number: bytes that follow, all within the input */
    PROTO_TOKEN_BIN,   /* the same */
    PROTO_TOKEN_ARRAY, /* number: values that follow */
    PROTO_TOKEN_MAP,   /* number: pairs of values that follow */
} proto_token_type_t;

typedef struct {
    proto_token_type_t type;
    uint64_t number;
} proto_token_t; /* 16 bytes, so that it stays in registers */

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} proto_cursor_t;

static inline uint64_t
proto_load_be(const uint8_t *at, size_t size_bytes)
{
    switch (size_bytes) {
    case 1:
        return at[0];
    case 2: {
        uint16_t value;
        memcpy(&value, at, 2);
        return __builtin_bswap16(value);
    }
    case 4: {
        uint32_t value;
        memcpy(&value, at, 4);
        return __builtin_bswap32(value);
    }
    default: {
        uint64_t value;
        memcpy(&value, at, 8);
        return __builtin_bswap64(value);
    }
    }
}

/* The rare forms of proto_token_next(). */
proto_token_t proto_token_next_wide(proto_cursor_t *cursor, uint8_t head);

/* Reads the head of the next value.  The content of STR and BIN is not passed over; it is known
 * to be there.  Counts of ARRAY and MAP are at most the bytes that are left. */
static inline proto_token_t
proto_token_next(proto_cursor_t *cursor)
{
    proto_token_t token = {PROTO_TOKEN_BAD, 0};
    if (cursor->at == cursor->end) {
        return token;
    }
    uint8_t head = *cursor->at++;
    size_t left = (size_t)(cursor->end - cursor->at);
    if (head < 0x80) {
        token.type = PROTO_TOKEN_UINT;
        token.number = head;
    } else if (head >= 0xe0) {
        token.type = PROTO_TOKEN_INT;
        token.number = (uint64_t)(int64_t)(int8_t)head;
    } else if (head < 0x90) {
        token.number = head & 0x0fu;
        token.type = token.number * 2 <= left ? PROTO_TOKEN_MAP : PROTO_TOKEN_BAD;
    } else if (head < 0xa0) {
        token.number = head & 0x0fu;
        token.type = token.number <= left ? PROTO_TOKEN_ARRAY : PROTO_TOKEN_BAD;
    } else if (head < 0xc0) {
        token.number = head & 0x1fu;
        token.type = token.number <= left ? PROTO_TOKEN_STR : PROTO_TOKEN_BAD;
    } else {
        return proto_token_next_wide(cursor, head);
    }
    return token;
}

static inline double
proto_token_real(proto_token_t token)
{
    double value;
    memcpy(&value, &token.number, sizeof value);
    return value;
}

/* Passes over one value of validated bytes; false if they end too early. */
bool proto_cursor_skip(proto_cursor_t *cursor);

/* Length of the valid UTF-8 sequence at text[0..left), 1 to 4; 0 if it is not valid. */
size_t proto_utf8_step(const uint8_t *text, size_t left);

/* How many leading bytes are whole, valid UTF-8; size_bytes if all are. */
size_t proto_utf8_prefix(const uint8_t *text, size_t size_bytes);

/* ---- writing -------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *begin;
    uint8_t *at;
    uint8_t *end;
    bool overflow; /* sticky; nothing was written past `end` */
} proto_writer_t;

enum { PROTO_WRITE_HEAD_MAX = 9 }; /* bytes of the longest number or head */

static inline bool
proto_write_room(proto_writer_t *writer, size_t size_bytes)
{
    if (size_bytes > (size_t)(writer->end - writer->at)) {
        writer->overflow = true;
    }
    return !writer->overflow;
}

static inline void
proto_write_head(proto_writer_t *writer, uint8_t head, uint64_t number, size_t size_bytes)
{
    uint64_t big_endian = __builtin_bswap64(number << (8 * (8 - size_bytes)));
    writer->at[0] = head;
    memcpy(writer->at + 1, &big_endian, size_bytes);
    writer->at += 1 + size_bytes;
}

static inline void
proto_write_uint(proto_writer_t *writer, uint64_t value)
{
    if (!proto_write_room(writer, PROTO_WRITE_HEAD_MAX)) {
        return;
    }
    if (value < 0x80) {
        *writer->at++ = (uint8_t)value;
    } else if (value <= UINT8_MAX) {
        proto_write_head(writer, 0xcc, value, 1);
    } else if (value <= UINT16_MAX) {
        proto_write_head(writer, 0xcd, value, 2);
    } else if (value <= UINT32_MAX) {
        proto_write_head(writer, 0xce, value, 4);
    } else {
        proto_write_head(writer, 0xcf, value, 8);
    }
}

static inline void
proto_write_int(proto_writer_t *writer, int64_t value)
{
    if (value >= 0) {
        proto_write_uint(writer, (uint64_t)value);
        return;
    }
    if (!proto_write_room(writer, PROTO_WRITE_HEAD_MAX)) {
        return;
    }
    if (value >= -32) {
        *writer->at++ = (uint8_t)value;
    } else if (value >= INT8_MIN) {
        proto_write_head(writer, 0xd0, (uint8_t)value, 1);
    } else if (value >= INT16_MIN) {
        proto_write_head(writer, 0xd1, (uint16_t)value, 2);
    } else if (value >= INT32_MIN) {
        proto_write_head(writer, 0xd2, (uint32_t)value, 4);
    } else {
        proto_write_head(writer, 0xd3, (uint64_t)value, 8);
    }
}

void proto_write_real(proto_writer_t *writer, double value);
void proto_write_bool(proto_writer_t *writer, bool value);
void proto_write_str(proto_writer_t *writer, const char *data, size_t size_bytes);
void proto_write_bin(proto_writer_t *writer, const uint8_t *data, size_t size_bytes);
void proto_write_array(proto_writer_t *writer, uint32_t count);
void proto_write_map(proto_writer_t *writer, uint32_t count);

#endif
