/* cli_http.h - the demo's client: one streaming chat request to our own gateway on loopback.
 * Blocking, with a deadline; main thread or a thread of its own. */
#ifndef CLI_HTTP_H
#define CLI_HTTP_H

#include <stdint.h>
#include <stdio.h>

#include "proto_status.h"

typedef struct {
    uint32_t chunk_count;   /* pieces of text that arrived */
    uint64_t first_ns;      /* request sent to first text, ns */
    uint64_t total_ns;      /* request sent to end, ns */
    uint32_t prompt_tokens; /* from the usage chunk */
    uint32_t answer_tokens;
} cli_http_answer_t;

/* POSTs `question` to http://127.0.0.1:`port`/v1/chat/completions and prints the answer to `out`
 * while it streams.  STATUS_ERR_PEER_LOST if the stream broke off, STATUS_ERR_REFUSED with the
 * server's words on stderr if it answered an error, STATUS_ERR_DEADLINE after `timeout_ns`. */
MUST_CHECK proto_status_t cli_http_ask(uint16_t port, const char *question, uint32_t tokens_max,
                                       uint64_t timeout_ns, FILE *out, cli_http_answer_t *answer);

#endif
