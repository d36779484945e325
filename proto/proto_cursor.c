#include "proto_cursor.h"

/* Bytes of the number or length that follows each head from 0xc0 on; 255 marks what we refuse:
 * 0xc1 is not msgpack, and ext types would let a peer name types of its own. */
static const uint8_t wide_sizes[64] = {
    [0xc0 - 0xc0] = 0,   [0xc1 - 0xc0] = 255, [0xc2 - 0xc0] = 0,   [0xc3 - 0xc0] = 0,
    [0xc4 - 0xc0] = 1,   [0xc5 - 0xc0] = 2,   [0xc6 - 0xc0] = 4,   [0xc7 - 0xc0] = 255,
    [0xc8 - 0xc0] = 255, [0xc9 - 0xc0] = 255, [0xca - 0xc0] = 4,   [0xcb - 0xc0] = 8,
    [0xcc - 0xc0] = 1,   [0xcd - 0xc0] = 2,   [0xce - 0xc0] = 4,   [0xcf - 0xc0] = 8,
    [0xd0 - 0xc0] = 1,   [0xd1 - 0xc0] = 2,   [0xd2 - 0xc0] = 4,   [0xd3 - 0xc0] = 8,
    [0xd4 - 0xc0] = 255, [0xd5 - 0xc0] = 255, [0xd6 - 0xc0] = 255, [0xd7 - 0xc0] = 255,
    [0xd8 - 0xc0] = 255, [0xd9 - 0xc0] = 1,   [0xda - 0xc0] = 2,   [0xdb - 0xc0] = 4,
    [0xdc - 0xc0] = 2,   [0xdd - 0xc0] = 4,   [0xde - 0xc0] = 2,   [0xdf - 0xc0] = 4,
};

static void
signed_token(proto_token_t *token, uint64_t raw, size_t size_bytes)
{
    int64_t value;
    switch (size_bytes) {
    case 1:
        /* NOLINTNEXTLINE(bugprone-signed-char-misuse,cert-str34-c): a number, its sign is meant */
        value = (int8_t)raw;
        break;
    case 2:
        value = (int16_t)raw;
        break;
    case 4:
        value = (int32_t)raw;
        break;
    default:
        value = (int64_t)raw;
        break;
    }
    token->type = value < 0 ? PROTO_TOKEN_INT : PROTO_TOKEN_UINT;
    token->number = (uint64_t)value;
}

static void
real_token(proto_token_t *token, uint64_t raw, size_t size_bytes)
{
    token->type = PROTO_TOKEN_FLOAT;
    token->number = raw;
    if (size_bytes == 4) {
        uint32_t bits = (uint32_t)raw;
        float single;
        memcpy(&single, &bits, sizeof single);
        double value = (double)single;
        memcpy(&token->number, &value, sizeof value);
    }
}

proto_token_t
proto_token_next_wide(proto_cursor_t *cursor, uint8_t head)
{
    proto_token_t token = {PROTO_TOKEN_BAD, 0};
    size_t size_bytes = head >= 0xc0 ? wide_sizes[head - 0xc0] : 255;
    uint64_t raw = 0;
    if (size_bytes == 255 || size_bytes > (size_t)(cursor->end - cursor->at)) {
        return token;
    }
    if (size_bytes > 0) {
        raw = proto_load_be(cursor->at, size_bytes);
        cursor->at += size_bytes;
    }
    size_t left = (size_t)(cursor->end - cursor->at);
    if (head == 0xc0) {
        token.type = PROTO_TOKEN_NIL;
    } else if (head <= 0xc3) {
        token.type = PROTO_TOKEN_BOOL;
        token.number = head & 1u;
    } else if (head <= 0xc6) {
        token.type = raw <= left ? PROTO_TOKEN_BIN : PROTO_TOKEN_BAD;
        token.number = raw;
    } else if (head <= 0xcb) {
        real_token(&token, raw, size_bytes);
    } else if (head <= 0xcf) {
        token.type = PROTO_TOKEN_UINT;
        token.number = raw;
    } else if (head <= 0xd3) {
        signed_token(&token, raw, size_bytes);
    } else if (head <= 0xdb) {
        token.type = raw <= left ? PROTO_TOKEN_STR : PROTO_TOKEN_BAD;
        token.number = raw;
    } else if (head <= 0xdd) {
        token.type = raw <= left ? PROTO_TOKEN_ARRAY : PROTO_TOKEN_BAD;
        token.number = raw;
    } else {
        token.type = raw <= left / 2 ? PROTO_TOKEN_MAP : PROTO_TOKEN_BAD;
        token.number = raw;
    }
    return token;
}

bool
proto_cursor_skip(proto_cursor_t *cursor)
{
    /* Each count is at most the bytes left, so the sum stays far below 2^64. */
    uint64_t pending = 1;
    while (pending > 0) {
        proto_token_t token = proto_token_next(cursor);
        pending--;
        switch (token.type) {
        case PROTO_TOKEN_BAD:
            return false;
        case PROTO_TOKEN_STR:
        case PROTO_TOKEN_BIN:
            cursor->at += token.number;
            break;
        case PROTO_TOKEN_ARRAY:
            pending += token.number;
            break;
        case PROTO_TOKEN_MAP:
            pending += 2 * token.number;
            break;
        case PROTO_TOKEN_NIL:
        case PROTO_TOKEN_BOOL:
        case PROTO_TOKEN_UINT:
        case PROTO_TOKEN_INT:
        case PROTO_TOKEN_FLOAT:
            break;
        }
    }
    return true;
}

/* ---- UTF-8 ---------------------------------------------------------------------------------- */

static bool
is_continuation(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

size_t
proto_utf8_step(const uint8_t *text, size_t left)
{
    if (left == 0) {
        return 0;
    }
    uint8_t first = text[0];
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xc2) {
        return 0; /* a continuation byte, or an overlong form */
    }
    if (first < 0xe0) {
        return left >= 2 && is_continuation(text[1]) ? 2 : 0;
    }
    if (first < 0xf0) {
        if (left < 3 || !is_continuation(text[1]) || !is_continuation(text[2])) {
            return 0;
        }
        bool overlong = first == 0xe0 && text[1] < 0xa0;
        bool surrogate = first == 0xed && text[1] >= 0xa0;
        return overlong || surrogate ? 0 : 3;
    }
    if (first > 0xf4 || left < 4 || !is_continuation(text[1]) || !is_continuation(text[2]) ||
        !is_continuation(text[3])) {
        return 0;
    }
    bool overlong = first == 0xf0 && text[1] < 0x90;
    bool beyond = first == 0xf4 && text[1] >= 0x90;
    return overlong || beyond ? 0 : 4;
}

size_t
proto_utf8_prefix(const uint8_t *text, size_t size_bytes)
{
    size_t at = 0;
    while (at < size_bytes) {
        uint64_t eight;
        if (size_bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t step = proto_utf8_step(text + at, size_bytes - at);
        if (step == 0) {
            break;
        }
        at += step;
    }
    return at;
}

/* ---- writing -------------------------------------------------------------------------------- */

void
proto_write_real(proto_writer_t *writer, double value)
{
    if (!proto_write_room(writer, PROTO_WRITE_HEAD_MAX)) {
        return;
    }
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    proto_write_head(writer, 0xcb, bits, 8);
}

void
proto_write_bool(proto_writer_t *writer, bool value)
{
    if (proto_write_room(writer, 1)) {
        *writer->at++ = value ? 0xc3 : 0xc2;
    }
}

static void
write_content(proto_writer_t *writer, const void *data, size_t size_bytes)
{
    if (size_bytes > 0) {
        memcpy(writer->at, data, size_bytes);
        writer->at += size_bytes;
    }
}

void
proto_write_str(proto_writer_t *writer, const char *data, size_t size_bytes)
{
    if (size_bytes > UINT32_MAX || !proto_write_room(writer, PROTO_WRITE_HEAD_MAX + size_bytes)) {
        writer->overflow = true;
        return;
    }
    if (size_bytes < 32) {
        *writer->at++ = (uint8_t)(0xa0 | size_bytes);
    } else if (size_bytes <= UINT8_MAX) {
        proto_write_head(writer, 0xd9, size_bytes, 1);
    } else if (size_bytes <= UINT16_MAX) {
        proto_write_head(writer, 0xda, size_bytes, 2);
    } else {
        proto_write_head(writer, 0xdb, size_bytes, 4);
    }
    write_content(writer, data, size_bytes);
}

void
proto_write_bin(proto_writer_t *writer, const uint8_t *data, size_t size_bytes)
{
    if (size_bytes > UINT32_MAX || !proto_write_room(writer, PROTO_WRITE_HEAD_MAX + size_bytes)) {
        writer->overflow = true;
        return;
    }
    if (size_bytes <= UINT8_MAX) {
        proto_write_head(writer, 0xc4, size_bytes, 1);
    } else if (size_bytes <= UINT16_MAX) {
        proto_write_head(writer, 0xc5, size_bytes, 2);
    } else {
        proto_write_head(writer, 0xc6, size_bytes, 4);
    }
    write_content(writer, data, size_bytes);
}

void
proto_write_array(proto_writer_t *writer, uint32_t count)
{
    if (!proto_write_room(writer, PROTO_WRITE_HEAD_MAX)) {
        return;
    }
    if (count < 16) {
        *writer->at++ = (uint8_t)(0x90 | count);
    } else if (count <= UINT16_MAX) {
        proto_write_head(writer, 0xdc, count, 2);
    } else {
        proto_write_head(writer, 0xdd, count, 4);
    }
}

void
proto_write_map(proto_writer_t *writer, uint32_t count)
{
    if (!proto_write_room(writer, PROTO_WRITE_HEAD_MAX)) {
        return;
    }
    if (count < 16) {
        *writer->at++ = (uint8_t)(0x80 | count);
    } else if (count <= UINT16_MAX) {
        proto_write_head(writer, 0xde, count, 2);
    } else {
        proto_write_head(writer, 0xdf, count, 4);
    }
}
