/* actor_http_keys.h - the API keys of clients: who may use the HTTP interface at all.
 *
 * Holds hashes, never keys.  Read once at start; then constant; the HTTP loop's thread. */
#ifndef ACTOR_HTTP_KEYS_H
#define ACTOR_HTTP_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto_status.h"

enum {
    ACTOR_HTTP_KEY_COUNT_MAX = 1024,
    ACTOR_HTTP_KEY_SIZE_MIN = 8,
    ACTOR_HTTP_KEY_SIZE_MAX = 256,
};

typedef struct actor_http_keys actor_http_keys_t;

/* Reads a file of secrets (actor_secret.h): a key a line, of 8 to 256 printable characters without
 * spaces; empty lines and those that begin with '#' are skipped.  STATUS_ERR_CONFIG, logged with
 * the line, never with the key. */
MUST_CHECK proto_status_t actor_http_keys_new(const char *path, actor_http_keys_t **out_p);
void actor_http_keys_destroy(actor_http_keys_t **self_p);

/* Whether this is one of the keys; compares with every one of them.  `key` may be NULL. */
bool actor_http_keys_accept(const actor_http_keys_t *self, const char *key, size_t size_bytes);

#endif
