/* actor_http_guard.c - line by line over a complete head; byte by byte over chunk framing. */
#include "actor_http_guard.h"

#include <string.h>
#include <strings.h>

#include "proto_require.h"

/* ---- the end of the head --------------------------------------------------------------------- */

long
actor_http_guard_find_end(const char *bytes, size_t size_bytes, size_t *scanned)
{
    size_t at = *scanned;
    for (; at < size_bytes; at++) {
        if (bytes[at] == '\n' && (at == 0 || bytes[at - 1] != '\r')) {
            return -1;
        }
        if (bytes[at] != '\n' && at > 0 && bytes[at - 1] == '\r') {
            return -1;
        }
        if (bytes[at] == '\n' && at >= 3 && bytes[at - 2] == '\n') {
            *scanned = at;
            return (long)at + 1;
        }
    }
    *scanned = at;
    return 0;
}

/* ---- the head -------------------------------------------------------------------------------- */

typedef struct {
    const char *data;
    size_t size_bytes;
} slice_t;

static bool
is_token_byte(char byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
           (byte >= 'A' && byte <= 'Z') || (byte != '\0' && strchr("!#$%&'*+-.^_`|~", byte));
}

static bool
slice_is(slice_t slice, const char *word)
{
    return slice.size_bytes == strlen(word) && strncasecmp(slice.data, word, slice.size_bytes) == 0;
}

/* The next line without its CRLF; the caller knows that there is one. */
static slice_t
next_line(const char *bytes, size_t size_bytes, size_t *at)
{
    size_t begin = *at;
    const char *end = memchr(bytes + begin, '\n', size_bytes - begin);
    require(end != NULL);
    *at = (size_t)(end - bytes) + 1;
    size_t length = (size_t)(end - (bytes + begin));
    return (slice_t){bytes + begin, length > 0 ? length - 1 : 0};
}

static int
check_request_line(slice_t line, actor_http_head_t *out, const char **reason)
{
    size_t at = 0;
    while (at < line.size_bytes && is_token_byte(line.data[at])) {
        at++;
    }
    *reason = "the request line is malformed";
    if (at == 0 || at > 20 || at >= line.size_bytes || line.data[at] != ' ') {
        return 400;
    }
    out->method = line.data;
    out->method_size_bytes = at;
    size_t target = ++at;
    while (at < line.size_bytes && line.data[at] > ' ' && line.data[at] < 0x7f) {
        at++;
    }
    if (at >= line.size_bytes || line.data[at] != ' ') {
        return 400;
    }
    size_t target_size = at - target;
    if (target_size > ACTOR_HTTP_TARGET_SIZE_MAX) {
        *reason = "the request target is too long";
        return 414;
    }
    bool asterisk = target_size == 1 && line.data[target] == '*';
    if (target_size == 0 || (line.data[target] != '/' && !asterisk)) {
        *reason = "the request target must be a path";
        return 400;
    }
    const char *query = memchr(line.data + target, '?', target_size);
    out->target = line.data + target;
    out->target_size_bytes = query == NULL ? target_size : (size_t)(query - out->target);
    slice_t version = {line.data + at + 1, line.size_bytes - at - 1};
    if (version.size_bytes != 8 || memcmp(version.data, "HTTP/", 5) != 0) {
        return 400;
    }
    out->http10 = memcmp(version.data + 5, "1.0", 3) == 0;
    if (!out->http10 && memcmp(version.data + 5, "1.1", 3) != 0) {
        *reason = "only HTTP/1.0 and HTTP/1.1 are spoken here";
        return 505;
    }
    out->keep_alive = !out->http10;
    return 0;
}

typedef struct {
    actor_http_head_t *out;
    const char **reason;
    uint32_t host_count;
    uint32_t length_count;
    uint32_t encoding_count;
    uint32_t type_count;
    uint32_t authorization_count;
} fields_t;

static int
take_length(fields_t *fields, slice_t value)
{
    *fields->reason = "Content-Length is not one plain number";
    if (fields->length_count++ > 0 || value.size_bytes == 0 || value.size_bytes > 15) {
        return 400;
    }
    uint64_t length = 0;
    for (size_t at = 0; at < value.size_bytes; at++) {
        if (value.data[at] < '0' || value.data[at] > '9') {
            return 400;
        }
        length = length * 10 + (uint64_t)(value.data[at] - '0');
    }
    fields->out->has_length = true;
    fields->out->content_length = length;
    return 0;
}

static int
take_connection(fields_t *fields, slice_t value)
{
    size_t at = 0;
    while (at < value.size_bytes) {
        size_t begin = at;
        while (at < value.size_bytes && value.data[at] != ',') {
            at++;
        }
        slice_t word = {value.data + begin, at - begin};
        while (word.size_bytes > 0 && (*word.data == ' ' || *word.data == '\t')) {
            word.data++;
            word.size_bytes--;
        }
        while (word.size_bytes > 0 &&
               (word.data[word.size_bytes - 1] == ' ' || word.data[word.size_bytes - 1] == '\t')) {
            word.size_bytes--;
        }
        if (slice_is(word, "close")) {
            fields->out->keep_alive = false;
        } else if (slice_is(word, "keep-alive") && fields->out->http10) {
            fields->out->keep_alive = true;
        }
        at++;
    }
    return 0;
}

static bool
is_json_type(slice_t value)
{
    const char *semicolon = memchr(value.data, ';', value.size_bytes);
    size_t size = semicolon == NULL ? value.size_bytes : (size_t)(semicolon - value.data);
    while (size > 0 && (value.data[size - 1] == ' ' || value.data[size - 1] == '\t')) {
        size--;
    }
    return slice_is((slice_t){value.data, size}, "application/json");
}

static int
take_field(fields_t *fields, slice_t name, slice_t value)
{
    actor_http_head_t *out = fields->out;
    if (slice_is(name, "host")) {
        fields->host_count++;
        if (memchr(value.data, ' ', value.size_bytes) != NULL ||
            memchr(value.data, ',', value.size_bytes) != NULL) {
            *fields->reason = "the Host header is malformed";
            return 400;
        }
    } else if (slice_is(name, "content-length")) {
        return take_length(fields, value);
    } else if (slice_is(name, "transfer-encoding")) {
        *fields->reason = "Transfer-Encoding must be exactly \"chunked\"";
        if (fields->encoding_count++ > 0 || !slice_is(value, "chunked") || out->http10) {
            return 400;
        }
        out->chunked = true;
    } else if (slice_is(name, "content-encoding")) {
        if (!slice_is(value, "identity")) {
            *fields->reason = "compressed bodies are not accepted";
            return 415;
        }
    } else if (slice_is(name, "content-type")) {
        *fields->reason = "Content-Type is given twice";
        if (fields->type_count++ > 0) {
            return 400;
        }
        out->json_body = is_json_type(value);
    } else if (slice_is(name, "expect")) {
        *fields->reason = "only Expect: 100-continue is understood";
        if (!slice_is(value, "100-continue")) {
            return 417;
        }
        out->expect_continue = !out->http10;
    } else if (slice_is(name, "connection")) {
        return take_connection(fields, value);
    } else if (slice_is(name, "traceparent")) {
        out->traceparent = out->has_traceparent ? NULL : value.data; /* two are none */
        out->traceparent_size_bytes = value.size_bytes;
        out->has_traceparent = true;
    } else if (slice_is(name, "x-request-id")) {
        bool ok = actor_http_guard_id_ok(value.data, value.size_bytes);
        out->request_id = ok ? value.data : NULL;
        out->request_id_size_bytes = ok ? value.size_bytes : 0;
    } else if (slice_is(name, "authorization")) {
        *fields->reason = "Authorization is given twice";
        if (fields->authorization_count++ > 0) {
            return 400;
        }
        static const char scheme[] = "bearer ";
        size_t size = sizeof scheme - 1;
        if (value.size_bytes > size && slice_is((slice_t){value.data, size}, scheme)) {
            out->bearer = value.data + size;
            out->bearer_size_bytes = value.size_bytes - size;
        }
    }
    return 0;
}

static int
check_field_line(fields_t *fields, slice_t line)
{
    if (line.data[0] == ' ' || line.data[0] == '\t') {
        *fields->reason = "a header line is folded";
        return 400;
    }
    size_t at = 0;
    while (at < line.size_bytes && is_token_byte(line.data[at])) {
        at++;
    }
    if (at == 0 || at >= line.size_bytes || line.data[at] != ':') {
        *fields->reason = "a header name is malformed or followed by a space";
        return 400;
    }
    slice_t name = {line.data, at};
    slice_t value = {line.data + at + 1, line.size_bytes - at - 1};
    for (size_t scan = 0; scan < value.size_bytes; scan++) {
        unsigned char byte = (unsigned char)value.data[scan];
        if ((byte < 0x20 && byte != '\t') || byte == 0x7f) {
            *fields->reason = "a header value holds a control character";
            return 400;
        }
    }
    while (value.size_bytes > 0 && (*value.data == ' ' || *value.data == '\t')) {
        value.data++;
        value.size_bytes--;
    }
    while (value.size_bytes > 0 &&
           (value.data[value.size_bytes - 1] == ' ' || value.data[value.size_bytes - 1] == '\t')) {
        value.size_bytes--;
    }
    return take_field(fields, name, value);
}

int
actor_http_guard_head(const char *bytes, size_t size_bytes, actor_http_head_t *out,
                      const char **reason)
{
    require(size_bytes >= 4);
    require(memcmp(bytes + size_bytes - 4, "\r\n\r\n", 4) == 0);
    memset(out, 0, sizeof *out);
    out->json_body = true;
    size_t at = 0;
    int refused = check_request_line(next_line(bytes, size_bytes, &at), out, reason);
    if (refused != 0) {
        return refused;
    }
    fields_t fields = {.out = out, .reason = reason};
    uint32_t field_count = 0;
    while (at < size_bytes) {
        slice_t line = next_line(bytes, size_bytes, &at);
        if (line.size_bytes == 0) {
            break;
        }
        if (++field_count > ACTOR_HTTP_FIELD_COUNT_MAX) {
            *reason = "too many header fields";
            return 431;
        }
        refused = check_field_line(&fields, line);
        if (refused != 0) {
            return refused;
        }
    }
    *reason = "exactly one Host header is required";
    if (fields.host_count > 1 || (fields.host_count == 0 && !out->http10)) {
        return 400;
    }
    *reason = "Content-Length and Transfer-Encoding together";
    if (out->chunked && out->has_length) {
        return 400;
    }
    return 0;
}

bool
actor_http_guard_id_ok(const char *bytes, size_t size_bytes)
{
    if (size_bytes == 0 || size_bytes > ACTOR_HTTP_ID_SIZE_MAX) {
        return false;
    }
    for (size_t at = 0; at < size_bytes; at++) {
        char byte = bytes[at];
        bool ok = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                  (byte >= 'A' && byte <= 'Z') || byte == '.' || byte == '_' || byte == '-';
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

enum {
    CHUNK_SIZE = 0, /* hex digits */
    CHUNK_SIZE_LF,  /* after the CR of the size line */
    CHUNK_DATA,
    CHUNK_DATA_CR, /* after the last data byte */
    CHUNK_DATA_LF,
    CHUNK_END_CR, /* after "0\r\n": the empty trailer */
    CHUNK_END_LF,
    CHUNK_DONE,
};

static int
hex_digit(char byte)
{
    if (byte >= '0' && byte <= '9') {
        return byte - '0';
    }
    if (byte >= 'a' && byte <= 'f') {
        return byte - 'a' + 10;
    }
    return byte >= 'A' && byte <= 'F' ? byte - 'A' + 10 : -1;
}

static bool
chunk_size_byte(actor_http_chunks_t *self, char byte)
{
    if (byte == '\r') {
        self->state = CHUNK_SIZE_LF;
        return self->digit_count > 0;
    }
    int digit = hex_digit(byte);
    if (digit < 0 || self->digit_count == 8) {
        return false;
    }
    self->digit_count++;
    self->remaining = self->remaining * 16 + (uint64_t)digit;
    return true;
}

long
actor_http_guard_chunks(actor_http_chunks_t *self, const char *bytes, size_t size_bytes, bool *done)
{
    static const struct {
        char byte;
        uint8_t next;
    } fixed[] = {
        [CHUNK_SIZE_LF] = {'\n', CHUNK_DATA}, [CHUNK_DATA_CR] = {'\r', CHUNK_DATA_LF},
        [CHUNK_DATA_LF] = {'\n', CHUNK_SIZE}, [CHUNK_END_CR] = {'\r', CHUNK_END_LF},
        [CHUNK_END_LF] = {'\n', CHUNK_DONE},
    };
    size_t at = 0;
    while (at < size_bytes && self->state != CHUNK_DONE) {
        if (self->state == CHUNK_SIZE) {
            if (!chunk_size_byte(self, bytes[at++])) {
                return -1;
            }
        } else if (self->state == CHUNK_DATA) {
            size_t piece = size_bytes - at;
            piece = piece < self->remaining ? piece : (size_t)self->remaining;
            at += piece;
            self->remaining -= piece;
            if (self->remaining == 0) {
                self->state = CHUNK_DATA_CR;
            }
        } else {
            if (bytes[at++] != fixed[self->state].byte) {
                return -1;
            }
            bool was_size = self->state == CHUNK_SIZE_LF;
            self->state = fixed[self->state].next;
            if (was_size && self->remaining == 0) {
                self->state = CHUNK_END_CR;
            }
            self->digit_count = 0;
        }
    }
    *done = self->state == CHUNK_DONE;
    return (long)at;
}
