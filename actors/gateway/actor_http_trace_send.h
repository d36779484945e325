/* actor_http_trace_send.h - one POST to a collector, on the exporter's own thread.  Blocks for at
 * most its timeout; keeps nothing. */
#ifndef ACTOR_HTTP_TRACE_SEND_H
#define ACTOR_HTTP_TRACE_SEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char host[256]; /* without brackets */
    char port[8];
    char path[512];
    char authority[272]; /* for the Host field */
} actor_http_trace_url_t;

/* "http://HOST[:PORT][/PATH]"; false if it is none. */
bool actor_http_trace_url(const char *text, actor_http_trace_url_t *out);

/* True if the collector answered with 2xx; else what went wrong in `error`. */
bool actor_http_trace_send(const actor_http_trace_url_t *url, const char *body, size_t size_bytes,
                           uint32_t timeout_ms, char *error, size_t error_size_bytes);

#endif
