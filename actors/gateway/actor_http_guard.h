/* actor_http_guard.h - the strict reading of a request's bytes, before any parser sees them.
 *
 * http_parser accepts several things that two servers in a row can understand differently (bare
 * LF, folded headers, chunk extensions, ...).  The guard refuses them all: what passes has one
 * meaning.  Pure functions over bytes; any thread. */
#ifndef ACTOR_HTTP_GUARD_H
#define ACTOR_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ACTOR_HTTP_HEAD_SIZE_MAX = 16 * 1024, /* request line and headers */
    ACTOR_HTTP_FIELD_COUNT_MAX = 100,
    ACTOR_HTTP_ID_SIZE_MAX = 64, /* x-request-id */
    ACTOR_HTTP_TARGET_SIZE_MAX = 2048,
};

/* What a head says; texts are lent from the head's bytes. */
typedef struct {
    const char *method;
    size_t method_size_bytes;
    const char *target; /* the path without its query */
    size_t target_size_bytes;
    bool http10;
    bool keep_alive; /* what the client wants */
    bool has_length;
    bool chunked;
    bool expect_continue;
    bool json_body; /* no Content-Type, or application/json */
    uint64_t content_length;
    const char *request_id; /* x-request-id if valid; else NULL */
    size_t request_id_size_bytes;
    const char *bearer; /* of "Authorization: Bearer KEY"; else NULL */
    size_t bearer_size_bytes;
    const char *traceparent; /* as it came, not checked; NULL: none, or more than one */
    size_t traceparent_size_bytes;
    bool has_traceparent;
} actor_http_head_t;

/* Looks for the end of the head in bytes[0, size): its size with the empty line, or 0 if it is not
 * there yet.  *scanned (0 at first) remembers how far earlier calls came.  -1 at the first bare LF
 * or CR, so that nobody waits for an end that cannot come. */
long actor_http_guard_find_end(const char *bytes, size_t size_bytes, size_t *scanned);

/* Checks a whole head and reads it.  Returns 0, or the HTTP status to refuse it with: 400, 413,
 * 414, 415, 417, 431, 505; *reason is a static sentence then. */
int actor_http_guard_head(const char *bytes, size_t size_bytes, actor_http_head_t *out,
                          const char **reason);

/* Strict chunk framing: hex size of at most 8 digits, CRLF, data, CRLF; no extensions, no
 * trailers.  Zeroed at the start of a body. */
typedef struct {
    uint64_t remaining; /* data bytes of this chunk still to come */
    uint8_t state;
    uint8_t digit_count;
} actor_http_chunks_t;

/* Checks bytes as they arrive.  Returns how many belong to the body (all of them until its end),
 * or -1 at the first that breaks the framing. *done is set when the last chunk has ended. */
long actor_http_guard_chunks(actor_http_chunks_t *self, const char *bytes, size_t size_bytes,
                             bool *done);

/* [A-Za-z0-9._-]{1,64} */
bool actor_http_guard_id_ok(const char *bytes, size_t size_bytes);

#endif
