/* actor_http_reply.h - everything a client reads: heads, error objects, whole answers and stream
 * events, written into a text.  Shapes are those of the OpenAI API (docs/http-api.md).  No socket;
 * the HTTP loop's thread. */
#ifndef ACTOR_HTTP_REPLY_H
#define ACTOR_HTTP_REPLY_H

#include "actor_http_choice.h"
#include "actor_http_params.h"
#include "actor_http_text.h"

/* What all replies to one request have in common. */
typedef struct {
    const actor_http_params_t *params;
    const actor_gateway_text_t *tokenizer;
    const char *id;          /* "chatcmpl-..." */
    const char *model;       /* the served name */
    const char *fingerprint; /* "fp_..." */
    uint64_t created;        /* seconds since 1970 */
} actor_http_reply_t;

typedef struct {
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t completion_tokens;
} actor_http_usage_t;

typedef struct {
    int status;
    const char *request_id;   /* always sent */
    const char *content_type; /* NULL: no body follows, and none is announced with 204 */
    size_t content_length;    /* unless is_stream */
    bool is_stream;           /* SSE: chunked, or until the close for an HTTP/1.0 client */
    bool http10;
    bool close;             /* the connection ends after this reply */
    uint32_t retry_after_s; /* 0 = none */
    const char *allow;      /* NULL, or methods of a 405 or of OPTIONS */
    bool wants_key;         /* of a 401: says what kind of key */
} actor_http_reply_head_t;

/* The status line and the headers. */
void actor_http_reply_head(actor_http_text_t *out, const actor_http_reply_head_t *head);

/* {"error":{...}} */
void actor_http_reply_error(actor_http_text_t *out, const actor_http_error_t *error);

/* A whole answer.  `choices` are in index order, `reasons` their finish reasons ("stop"); `echoes`
 * the texts that go before (NULL: none). */
void actor_http_reply_answer(actor_http_text_t *out, const actor_http_reply_t *reply,
                             actor_http_choice_t *const *choices, const char *const *reasons,
                             uint32_t count, const actor_http_usage_t *usage);

/* Stream events, each "data: ...\n\n".  The first event of a chat choice names the role; text
 * events take what is visible; the last carries the finish reason with an empty delta. */
void actor_http_reply_role_event(actor_http_text_t *out, const actor_http_reply_t *reply,
                                 uint32_t index);
void actor_http_reply_text_event(actor_http_text_t *out, const actor_http_reply_t *reply,
                                 uint32_t index, const char *text, size_t size_bytes,
                                 const actor_http_choice_t *choice);
void actor_http_reply_finish_event(actor_http_text_t *out, const actor_http_reply_t *reply,
                                   uint32_t index, const char *reason);
void actor_http_reply_usage_event(actor_http_text_t *out, const actor_http_reply_t *reply,
                                  const actor_http_usage_t *usage);
void actor_http_reply_error_event(actor_http_text_t *out, const actor_http_error_t *error);

/* The reason phrase of an HTTP status. */
const char *actor_http_reply_phrase(int status);

#endif
