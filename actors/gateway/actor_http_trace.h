/* actor_http_trace.h - spans of requests, sent to a collector as OTLP over HTTP, in JSON.
 *
 * Off unless an endpoint is given.  The loop's thread puts finished requests into a bounded queue,
 * which never waits: what finds no room is dropped and counted.  A thread of its own sends them;
 * it owns the socket, and a collector that is slow or gone costs nobody anything.  A span holds
 * lengths, times and ids, never a prompt or an answer.
 *
 * A request without `traceparent` begins a trace of its own; one with a valid `traceparent` goes on
 * with the caller's, and is sent only if the caller sampled it. */
#ifndef ACTOR_HTTP_TRACE_H
#define ACTOR_HTTP_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct actor_http_trace actor_http_trace_t; /* opaque */

enum {
    ACTOR_HTTP_TRACE_ID_BYTES = 16,
    ACTOR_HTTP_SPAN_ID_BYTES = 8,
    ACTOR_HTTP_TRACE_QUEUE_LEN_MAX = 1024, /* requests */
};

/* Where a request belongs. */
typedef struct {
    uint8_t trace[ACTOR_HTTP_TRACE_ID_BYTES];
    uint8_t parent[ACTOR_HTTP_SPAN_ID_BYTES]; /* zeros = a root */
    bool is_given;                            /* by the caller */
    bool is_sampled;
} actor_http_trace_context_t;

/* Reads a `traceparent` as W3C Trace Context says; false, and *out zeroed, if it is not valid. */
bool actor_http_trace_parse(const char *text, size_t size_bytes, actor_http_trace_context_t *out);

/* One finished request.  Times are of CLOCK_MONOTONIC, 0 = did not happen. */
typedef struct {
    actor_http_trace_context_t context;
    char request_id[65];
    const char *route; /* static */
    int status;
    char code[48]; /* of the error; "" = none */
    uint32_t choice_count;
    uint32_t prompt_tokens;
    uint32_t generated_tokens;
    bool stream;
    uint64_t arrived_ns;
    uint64_t submitted_ns;
    uint64_t planned_ns; /* first plan */
    uint64_t first_token_ns;
    uint64_t ended_ns;
} actor_http_trace_request_t;

typedef struct {
    const char *endpoint;   /* "http://HOST[:PORT][/PATH]"; 4318 and /v1/traces if not said */
    const char *service;    /* service.name */
    const char *model_name; /* lent; longer than the exporter lives */
    uint32_t timeout_ms;    /* of one send; 0 = 5 000 */
    uint32_t interval_ms;   /* what has come meanwhile goes together; 0 = 1 000 */
} actor_http_trace_options_t;

/* STATUS_ERR_CONFIG, logged, for an endpoint that is no http:// URL. */
MUST_CHECK proto_status_t actor_http_trace_new(const actor_http_trace_options_t *options,
                                               actor_http_trace_t **out_p);
/* Sends what is queued, for at most one timeout, then ends the thread. */
void actor_http_trace_destroy(actor_http_trace_t **self_p);

/* Queues a request if it is sampled; never waits.  NULL: does nothing. */
void actor_http_trace_push(actor_http_trace_t *self, const actor_http_trace_request_t *request);

/* Makes a fresh context for a request of this process. */
void actor_http_trace_begin(actor_http_trace_t *self, actor_http_trace_context_t *out);

typedef struct {
    uint64_t sent_count;    /* requests that a collector took */
    uint64_t dropped_count; /* found no room */
    uint64_t failed_count;  /* could not be sent, or were refused */
} actor_http_trace_counts_t;

actor_http_trace_counts_t actor_http_trace_counts(const actor_http_trace_t *self);

#endif
