/* file_support.h - what every reader of models/ shares: error texts, checked arithmetic, a byte
 * cursor, UTF-8 and strict JSON.  Internal to models/.  No state; any thread. */
#ifndef FILE_SUPPORT_H
#define FILE_SUPPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto_status.h"

/* Where a reader writes what went wrong.  The first text stays. */
typedef struct {
    char *text; /* may be NULL */
    size_t size_bytes;
} file_error_t;

/* Makes an error buffer and empties it. */
file_error_t file_error_init(char *text, size_t size_bytes);

/* Writes the text and returns `status`, so that a check is one line. */
proto_status_t file_error_set(file_error_t error, proto_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A bounded text for error messages: bytes that are not printable ASCII become '?'. */
typedef struct {
    char text[80];
} file_printable_t;
file_printable_t file_printable(const void *bytes, size_t size_bytes);

/* False if the result does not fit 64 bits; *out is then 0. */
static inline bool
file_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (__builtin_mul_overflow(a, b, out)) {
        *out = 0;
        return false;
    }
    return true;
}

static inline bool
file_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (__builtin_add_overflow(a, b, out)) {
        *out = 0;
        return false;
    }
    return true;
}

/* Bytes lent from a mapping or an arena. */
typedef struct {
    const uint8_t *bytes;
    uint64_t size_bytes;
} file_view_t;

static inline bool
file_view_equals(file_view_t view, const char *text)
{
    size_t size_bytes = strlen(text);
    return view.size_bytes == size_bytes && memcmp(view.bytes, text, size_bytes) == 0;
}

/* Orders views by bytes, shorter first when one begins the other. */
int file_view_compare(file_view_t a, file_view_t b);

/* Little-endian reader with a sticky failure: check `failed` once after a group of reads. */
typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
} file_cursor_t;

const uint8_t *file_cursor_take(file_cursor_t *self, uint64_t size_bytes); /* NULL at failure */
uint8_t file_cursor_u8(file_cursor_t *self);
uint16_t file_cursor_u16(file_cursor_t *self);
uint32_t file_cursor_u32(file_cursor_t *self);
uint64_t file_cursor_u64(file_cursor_t *self);

/* The next character of text[*at..size).  Returns its code point and moves *at, or -1 if the bytes
 * are not UTF-8 (overlong forms, surrogates and values over U+10FFFF are not). */
int32_t file_utf8_next(const uint8_t *text, size_t size_bytes, size_t *at);

bool file_utf8_valid(const void *text, size_t size_bytes);

/* Writes a code point (valid, not a surrogate): 1 to 4 bytes. */
size_t file_utf8_put(uint32_t code, char out[4]);

/* White space as Unicode defines it (and as str.strip() sees it, which adds U+001C..U+001F). */
bool file_is_space(int32_t code);

typedef struct {
    const char *what; /* names the text in errors */
    uint64_t size_bytes_max;
    uint32_t depth_max;
    uint64_t value_count_max;
} file_json_limits_t;

/* Strict JSON: duplicate keys, trailing bytes, bad UTF-8 and NaN are refused; depth and number of
 * values are counted before anything is allocated.  The caller owns *out_p (json_decref). */
MUST_CHECK proto_status_t file_json_parse(const void *bytes, uint64_t size_bytes,
                                          const file_json_limits_t *limits, file_error_t error,
                                          json_t **out_p);

#endif
