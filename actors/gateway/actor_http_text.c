/* actor_http_text.c - see the header; escaping follows RFC 8259. */
#include "actor_http_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { CAPACITY_MIN = 256 };

void
actor_http_text_fini(actor_http_text_t *self)
{
    free(self->data);
    memset(self, 0, sizeof *self);
}

void
actor_http_text_clear(actor_http_text_t *self)
{
    self->size_bytes = 0;
    self->failed = false;
}

bool
actor_http_text_reserve(actor_http_text_t *self, size_t size_bytes)
{
    if (self->failed || size_bytes > SIZE_MAX / 4 - self->size_bytes) {
        self->failed = true;
        return false;
    }
    size_t need = self->size_bytes + size_bytes;
    if (need <= self->capacity_bytes) {
        return true;
    }
    size_t capacity = self->capacity_bytes < CAPACITY_MIN ? CAPACITY_MIN : self->capacity_bytes;
    while (capacity < need) {
        capacity *= 2;
    }
    char *data = realloc(self->data, capacity);
    if (data == NULL) {
        self->failed = true;
        return false;
    }
    self->data = data;
    self->capacity_bytes = capacity;
    return true;
}

void
actor_http_text_add(actor_http_text_t *self, const char *bytes, size_t size_bytes)
{
    if (size_bytes == 0 || !actor_http_text_reserve(self, size_bytes)) {
        return;
    }
    memcpy(self->data + self->size_bytes, bytes, size_bytes);
    self->size_bytes += size_bytes;
}

void
actor_http_text_puts(actor_http_text_t *self, const char *string)
{
    actor_http_text_add(self, string, strlen(string));
}

void
actor_http_text_printf(actor_http_text_t *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char line[512];
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is two lines up */
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    require(length >= 0);
    if ((size_t)length < sizeof line) {
        actor_http_text_add(self, line, (size_t)length);
        return;
    }
    if (!actor_http_text_reserve(self, (size_t)length + 1)) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(self->data + self->size_bytes, (size_t)length + 1, format, arguments);
    va_end(arguments);
    self->size_bytes += (size_t)length;
}

void
actor_http_text_drop_front(actor_http_text_t *self, size_t size_bytes)
{
    require(size_bytes <= self->size_bytes);
    if (size_bytes == 0) {
        return;
    }
    memmove(self->data, self->data + size_bytes, self->size_bytes - size_bytes);
    self->size_bytes -= size_bytes;
}

int
actor_http_utf8_length(const char *bytes, size_t size_bytes)
{
    if (size_bytes == 0) {
        return -1;
    }
    unsigned char first = (unsigned char)bytes[0];
    if (first < 0x80) {
        return 1;
    }
    int length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4) {
        return 0;
    }
    for (int at = 1; at < length; at++) {
        if ((size_t)at >= size_bytes) {
            return -1;
        }
        unsigned char next = (unsigned char)bytes[at];
        unsigned char low = 0x80;
        unsigned char high = 0xbf;
        if (at == 1) { /* overlong forms, surrogates, beyond U+10FFFF */
            low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
            high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        }
        if (next < low || next > high) {
            return 0;
        }
    }
    return length;
}

static void
add_escaped(actor_http_text_t *self, const char *bytes, int length)
{
    unsigned char byte = (unsigned char)bytes[0];
    if (length == 3 && byte == 0xe2 && (unsigned char)bytes[1] == 0x80 &&
        ((unsigned char)bytes[2] & 0xfe) == 0xa8) {
        actor_http_text_puts(self, (unsigned char)bytes[2] == 0xa8 ? "\\u2028" : "\\u2029");
        return;
    }
    if (length > 1) {
        actor_http_text_add(self, bytes, (size_t)length);
        return;
    }
    switch (byte) {
    case '"':
        actor_http_text_puts(self, "\\\"");
        break;
    case '\\':
        actor_http_text_puts(self, "\\\\");
        break;
    case '\n':
        actor_http_text_puts(self, "\\n");
        break;
    case '\r':
        actor_http_text_puts(self, "\\r");
        break;
    case '\t':
        actor_http_text_puts(self, "\\t");
        break;
    default:
        if (byte < 0x20 || byte == 0x7f) {
            actor_http_text_printf(self, "\\u%04x", byte);
        } else {
            actor_http_text_add(self, bytes, 1);
        }
        break;
    }
}

void
actor_http_text_json(actor_http_text_t *self, const char *bytes, size_t size_bytes)
{
    actor_http_text_add(self, "\"", 1);
    size_t at = 0;
    while (at < size_bytes) {
        /* The usual run of plain characters goes in one piece. */
        size_t run = at;
        while (run < size_bytes && (unsigned char)bytes[run] >= 0x20 &&
               (unsigned char)bytes[run] < 0x7f && bytes[run] != '"' && bytes[run] != '\\') {
            run++;
        }
        if (run > at) {
            actor_http_text_add(self, bytes + at, run - at);
            at = run;
            continue;
        }
        int length = actor_http_utf8_length(bytes + at, size_bytes - at);
        if (length <= 0) {
            actor_http_text_puts(self, "\xef\xbf\xbd");
            at++;
            continue;
        }
        add_escaped(self, bytes + at, length);
        at += (size_t)length;
    }
    actor_http_text_add(self, "\"", 1);
}

void
actor_http_text_number(actor_http_text_t *self, double value)
{
    if (!isfinite(value)) {
        actor_http_text_puts(self, "null");
        return;
    }
    char digits[40];
    for (int precision = 6; precision <= 17; precision++) {
        (void)snprintf(digits, sizeof digits, "%.*g", precision, value);
        if ((float)strtod(digits, NULL) == (float)value) {
            break;
        }
    }
    actor_http_text_puts(self, digits);
}
