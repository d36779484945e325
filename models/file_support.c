#include "file_support.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto_require.h"

file_error_t
file_error_init(char *text, size_t size_bytes)
{
    if (size_bytes == 0) {
        text = NULL;
    }
    if (text != NULL) {
        text[0] = '\0';
    }
    return (file_error_t){.text = text, .size_bytes = size_bytes};
}

proto_status_t
file_error_set(file_error_t error, proto_status_t status, const char *format, ...)
{
    if (error.text == NULL || error.text[0] != '\0') {
        return status;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error.text, error.size_bytes, format, arguments);
    va_end(arguments);
    for (char *at = error.text; *at != '\0'; at++) { /* parsers quote what they choked on */
        *at = (unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7f ? '?' : *at;
    }
    return status;
}

file_printable_t
file_printable(const void *bytes, size_t size_bytes)
{
    file_printable_t out;
    const unsigned char *from = bytes;
    size_t count = size_bytes;
    bool cut = false;
    if (count > sizeof out.text - 4) {
        count = sizeof out.text - 4;
        cut = true;
    }
    for (size_t i = 0; i < count; i++) {
        out.text[i] = from[i] >= 0x20 && from[i] < 0x7f ? (char)from[i] : '?';
    }
    memcpy(out.text + count, cut ? "..." : "", cut ? 4 : 1);
    return out;
}

int
file_view_compare(file_view_t a, file_view_t b)
{
    uint64_t size_bytes = a.size_bytes < b.size_bytes ? a.size_bytes : b.size_bytes;
    int order = size_bytes > 0 ? memcmp(a.bytes, b.bytes, size_bytes) : 0;
    if (order != 0) {
        return order;
    }
    return (a.size_bytes > b.size_bytes) - (a.size_bytes < b.size_bytes);
}

const uint8_t *
file_cursor_take(file_cursor_t *self, uint64_t size_bytes)
{
    require(self->at <= self->end);
    if (self->failed || size_bytes > (uint64_t)(self->end - self->at)) {
        self->failed = true;
        return NULL;
    }
    const uint8_t *bytes = self->at;
    self->at += size_bytes;
    return bytes;
}

static uint64_t
take_number(file_cursor_t *self, uint32_t size_bytes)
{
    const uint8_t *bytes = file_cursor_take(self, size_bytes);
    uint64_t value = 0;
    for (uint32_t i = 0; bytes != NULL && i < size_bytes; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

uint8_t
file_cursor_u8(file_cursor_t *self)
{
    return (uint8_t)take_number(self, 1);
}

uint16_t
file_cursor_u16(file_cursor_t *self)
{
    return (uint16_t)take_number(self, 2);
}

uint32_t
file_cursor_u32(file_cursor_t *self)
{
    return (uint32_t)take_number(self, 4);
}

uint64_t
file_cursor_u64(file_cursor_t *self)
{
    return take_number(self, 8);
}

int32_t
file_utf8_next(const uint8_t *text, size_t size_bytes, size_t *at)
{
    require(*at < size_bytes);
    const uint8_t *bytes = text + *at;
    size_t left = size_bytes - *at;
    uint8_t lead = bytes[0];
    if (lead < 0x80) {
        *at += 1;
        return lead;
    }
    uint32_t count = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1; /* bytes that follow */
    if (lead < 0xc2 || lead > 0xf4 || left <= count) {
        return -1;
    }
    uint32_t code = lead & (0x3fu >> count);
    for (uint32_t i = 1; i <= count; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return -1;
        }
        code = code << 6 | (bytes[i] & 0x3fu);
    }
    static const uint32_t LEAST[4] = {0, 0x80, 0x800, 0x10000};
    if (code < LEAST[count] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
        return -1;
    }
    *at += count + 1;
    return (int32_t)code;
}

bool
file_utf8_valid(const void *text, size_t size_bytes)
{
    for (size_t at = 0; at < size_bytes;) {
        if (file_utf8_next(text, size_bytes, &at) < 0) {
            return false;
        }
    }
    return true;
}

size_t
file_utf8_put(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t count = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t LEAD[4] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(LEAD[count] | code >> (6 * count));
    for (size_t i = 1; i <= count; i++) {
        out[i] = (char)(0x80 | (code >> (6 * (count - i)) & 0x3f));
    }
    return count + 1;
}

bool
file_is_space(int32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* Counts nesting and values outside strings, so that the parser never meets a bomb. */
static proto_status_t
check_json_size(const uint8_t *bytes, uint64_t size_bytes, const file_json_limits_t *limits,
                file_error_t error)
{
    uint32_t depth = 0;
    uint64_t value_count = 1;
    bool in_string = false;
    for (uint64_t i = 0; i < size_bytes; i++) {
        uint8_t byte = bytes[i];
        if (in_string) {
            i += byte == '\\';
            in_string = byte != '"';
        } else if (byte == '"') {
            in_string = true;
        } else if (byte == '{' || byte == '[') {
            depth++;
            value_count++;
        } else if (byte == '}' || byte == ']') {
            depth -= depth > 0;
        } else {
            value_count += byte == ',';
        }
        if (depth > limits->depth_max) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "%s: nested deeper than %" PRIu32 " at byte %" PRIu64,
                                  limits->what, limits->depth_max, i);
        }
        if (value_count > limits->value_count_max) {
            return file_error_set(error, STATUS_ERR_MALFORMED, "%s: more than %" PRIu64 " values",
                                  limits->what, limits->value_count_max);
        }
    }
    return STATUS_OK;
}

/* Jansson 2.14 overlooks it when its text buffer cannot grow, and reads behind the end of what it
 * has. So it must never see a failing allocation: this is the one place where memory that runs out
 * ends the process, in order, instead of an error.  Sizes are bounded before the parser starts. */
static void *
json_allocate(size_t size_bytes)
{
    void *bytes = malloc(size_bytes);
    require(bytes != NULL);
    return bytes;
}

static void
set_json_allocator(void)
{
    json_set_alloc_funcs(json_allocate, free);
}

proto_status_t
file_json_parse(const void *bytes, uint64_t size_bytes, const file_json_limits_t *limits,
                file_error_t error, json_t **out_p)
{
    if (size_bytes > limits->size_bytes_max) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "%s: %" PRIu64 " bytes; at most %" PRIu64 " are read", limits->what,
                              size_bytes, limits->size_bytes_max);
    }
    proto_status_t status = check_json_size(bytes, size_bytes, limits, error);
    if (status != STATUS_OK) {
        return status;
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, set_json_allocator);
    json_error_t why;
    json_t *root = json_loadb(bytes, size_bytes, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "%s: no valid JSON: %s (line %d, column %d)", limits->what, why.text,
                              why.line, why.column);
    }
    *out_p = root;
    return STATUS_OK;
}
