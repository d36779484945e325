/* The bounded validator: one walk over the bytes, no recursion, no allocation.  Content of BIN is
 * passed over by its length, so a large page list costs nothing. */
#include <stdio.h>

#include "proto_codec.h"
#include "proto_cursor.h"

enum {
    DEPTH_MAX = 16,
    ELEMENT_COUNT_MAX = 64 * 1024,
    /* Keys of all maps that are open at once.  Duplicates are found by comparing with each earlier
     * key of the map, so this also bounds the work for a hostile map. */
    OPEN_KEY_COUNT_MAX = 256,
    KEY_SIZE_MAX = 255, /* bytes */
};

typedef struct {
    uint64_t pending;   /* values still to come; a pair is two */
    uint32_t key_begin; /* the map's first key in `keys` */
    bool is_map;
} frame_t;

typedef struct {
    proto_cursor_t cursor;
    const uint8_t *begin;
    const char *wrong; /* the broken rule */
    uint32_t element_count;
    uint32_t depth;
    uint32_t key_count;
    frame_t frames[DEPTH_MAX];
    proto_bytes_t keys[OPEN_KEY_COUNT_MAX];
} walk_t;

static bool
take_key(walk_t *walk, const frame_t *frame, proto_bytes_t key)
{
    if (key.size_bytes > KEY_SIZE_MAX) {
        walk->wrong = "a map key longer than 255 bytes";
        return false;
    }
    for (uint32_t index = frame->key_begin; index < walk->key_count; index++) {
        const proto_bytes_t *earlier = &walk->keys[index];
        if (earlier->size_bytes == key.size_bytes &&
            memcmp(earlier->data, key.data, key.size_bytes) == 0) {
            walk->wrong = "a map key twice";
            return false;
        }
    }
    if (walk->key_count == OPEN_KEY_COUNT_MAX) {
        walk->wrong = "more than 256 map keys";
        return false;
    }
    walk->keys[walk->key_count++] = key;
    return true;
}

static bool
open_frame(walk_t *walk, uint64_t value_count, bool is_map)
{
    if (walk->depth == DEPTH_MAX) {
        walk->wrong = "nested deeper than 16";
        return false;
    }
    walk->frames[walk->depth++] =
        (frame_t){.pending = value_count, .key_begin = walk->key_count, .is_map = is_map};
    return true;
}

static bool
take_text(walk_t *walk, const frame_t *frame, bool is_key, size_t size_bytes)
{
    proto_bytes_t text = {walk->cursor.at, size_bytes};
    if (proto_utf8_prefix(text.data, size_bytes) != size_bytes) {
        walk->wrong = "text that is not UTF-8";
        return false;
    }
    walk->cursor.at += size_bytes;
    return !is_key || take_key(walk, frame, text);
}

static bool
take_token(walk_t *walk, proto_token_t token)
{
    frame_t *frame = walk->depth > 0 ? &walk->frames[walk->depth - 1] : NULL;
    bool is_key = frame != NULL && frame->is_map && frame->pending % 2 == 0;
    if (frame != NULL) {
        frame->pending--;
    }
    if (is_key && token.type != PROTO_TOKEN_STR && token.type != PROTO_TOKEN_BAD) {
        walk->wrong = "a map key that is not text";
        return false;
    }
    switch (token.type) {
    case PROTO_TOKEN_BAD:
        walk->wrong = "truncated, a count beyond the bytes, an ext type or 0xc1";
        return false;
    case PROTO_TOKEN_STR:
        return take_text(walk, frame, is_key, (size_t)token.number);
    case PROTO_TOKEN_BIN:
        walk->cursor.at += token.number;
        return true;
    case PROTO_TOKEN_ARRAY:
        return open_frame(walk, token.number, false);
    case PROTO_TOKEN_MAP:
        return open_frame(walk, 2 * token.number, true);
    case PROTO_TOKEN_NIL:
    case PROTO_TOKEN_BOOL:
    case PROTO_TOKEN_UINT:
    case PROTO_TOKEN_INT:
    case PROTO_TOKEN_FLOAT:
        return true;
    }
    return true;
}

/* Unsigned numbers within an array, which most values are: nothing about them can be wrong but
 * that they are cut, and then take_token() says so. */
static void
pass_numbers(walk_t *walk)
{
    frame_t *frame = walk->depth > 0 ? &walk->frames[walk->depth - 1] : NULL;
    if (frame == NULL || frame->is_map) {
        return;
    }
    const uint8_t *at = walk->cursor.at;
    const uint8_t *end = walk->cursor.end;
    uint64_t pending = frame->pending;
    uint64_t most = ELEMENT_COUNT_MAX - walk->element_count;
    uint64_t count = 0;
    most = pending < most ? pending : most;
    while (count < most && at < end) {
        uint8_t head = *at;
        size_t size_bytes = 1;
        if (head >= 0x80) {
            if (head < 0xcc || head > 0xcf) {
                break;
            }
            size_bytes += (size_t)1 << (head - 0xcc);
        }
        if (size_bytes > (size_t)(end - at)) {
            break;
        }
        at += size_bytes;
        count++;
    }
    walk->cursor.at = at;
    walk->element_count += (uint32_t)count;
    frame->pending = pending - count;
}

/* One value, or the head of a container, and the numbers that follow it. */
static bool
take_value(walk_t *walk)
{
    if (++walk->element_count > ELEMENT_COUNT_MAX) {
        walk->wrong = "more than 65536 elements";
        return false;
    }
    if (!take_token(walk, proto_token_next(&walk->cursor))) {
        return false;
    }
    pass_numbers(walk);
    return true;
}

static void
close_finished_frames(walk_t *walk)
{
    while (walk->depth > 0 && walk->frames[walk->depth - 1].pending == 0) {
        walk->depth--;
        walk->key_count = walk->frames[walk->depth].key_begin;
    }
}

proto_status_t
proto_validate(proto_bytes_t bytes, proto_error_t *error)
{
    walk_t walk; /* the arrays stay as they are: only what the counts cover is read */
    walk.cursor = (proto_cursor_t){bytes.data, bytes.data};
    walk.begin = bytes.data;
    walk.wrong = NULL;
    walk.element_count = 0;
    walk.depth = 0;
    walk.key_count = 0;
    if (bytes.size_bytes == 0) {
        walk.wrong = "no bytes";
    } else {
        bool good;
        walk.cursor.end = bytes.data + bytes.size_bytes;
        do {
            good = take_value(&walk);
            close_finished_frames(&walk);
        } while (good && walk.depth > 0);
        if (good && walk.cursor.at != walk.cursor.end) {
            walk.wrong = "bytes after the value";
        }
    }
    if (walk.wrong == NULL) {
        return STATUS_OK;
    }
    if (error != NULL) {
        size_t offset = bytes.size_bytes == 0 ? 0 : (size_t)(walk.cursor.at - walk.begin);
        (void)snprintf(error->detail, sizeof error->detail, "msgpack: %s, at byte %zu of %zu",
                       walk.wrong, offset, bytes.size_bytes);
    }
    return STATUS_ERR_MALFORMED;
}
