#include "actor_http_keys.h"

#include <stdlib.h>
#include <string.h>

#include "actor_log.h"
#include "actor_secret.h"
#include "proto_require.h"
#include "proto_secret.h"

enum { FILE_SIZE_BYTES = ACTOR_HTTP_KEY_COUNT_MAX * (ACTOR_HTTP_KEY_SIZE_MAX + 2) };

struct actor_http_keys {
    uint8_t key[PROTO_HASH_SIZE_BYTES]; /* of the hashes; of this process alone */
    uint8_t hashes[ACTOR_HTTP_KEY_COUNT_MAX][PROTO_HASH_SIZE_BYTES];
    size_t count;
};

static proto_status_t
fail(const char *path, uint32_t line, const char *why)
{
    actor_log(ACTOR_LOG_ERROR, "http.keys", 0,
              ACTOR_LOG_FIELDS(actor_log_str("file", path), actor_log_u64("line", line)),
              "%s:%u: %s", path, line, why);
    return STATUS_ERR_CONFIG;
}

static bool
is_printable(const char *text, size_t size)
{
    for (size_t at = 0; at < size; at++) {
        if (text[at] <= ' ' || text[at] > '~') {
            return false;
        }
    }
    return true;
}

static proto_status_t
add(actor_http_keys_t *self, const char *path, uint32_t line, const char *text, size_t size)
{
    if (size == 0 || text[0] == '#') {
        return STATUS_OK;
    }
    if (size < ACTOR_HTTP_KEY_SIZE_MIN || size > ACTOR_HTTP_KEY_SIZE_MAX ||
        !is_printable(text, size)) {
        return fail(path, line, "a key has 8 to 256 printable characters and no spaces");
    }
    if (self->count == ACTOR_HTTP_KEY_COUNT_MAX) {
        return fail(path, line, "more than 1024 keys");
    }
    proto_secret_hash(self->key, (proto_bytes_t){(const uint8_t *)text, size},
                      self->hashes[self->count++]);
    return STATUS_OK;
}

static proto_status_t
read_lines(actor_http_keys_t *self, const char *path, const char *text)
{
    proto_status_t status = STATUS_OK;
    uint32_t line = 0;
    while (*text != '\0' && status == STATUS_OK) {
        size_t size = strcspn(text, "\n");
        size_t kept = size > 0 && text[size - 1] == '\r' ? size - 1 : size;
        status = add(self, path, ++line, text, kept);
        text += size + (text[size] == '\n' ? 1 : 0);
    }
    if (status == STATUS_OK && self->count == 0) {
        status = fail(path, line, "no key is in it: nobody could ask anything");
    }
    return status;
}

proto_status_t
actor_http_keys_new(const char *path, actor_http_keys_t **out_p)
{
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    char *text = malloc(FILE_SIZE_BYTES);
    actor_http_keys_t *self = calloc(1, sizeof *self);
    if (text != NULL && self != NULL) {
        size_t size = 0;
        proto_secret_random(self->key, sizeof self->key);
        status = actor_secret_read(path, text, FILE_SIZE_BYTES, &size);
        if (status == STATUS_OK) {
            status = strlen(text) == size ? read_lines(self, path, text)
                                          : fail(path, 0, "a NUL is in it");
        }
        actor_secret_wipe(text, FILE_SIZE_BYTES);
    }
    free(text);
    if (status != STATUS_OK) {
        actor_http_keys_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_http_keys_destroy(actor_http_keys_t **self_p)
{
    if (*self_p != NULL) {
        actor_secret_wipe(*self_p, sizeof **self_p);
    }
    free(*self_p);
    *self_p = NULL;
}

bool
actor_http_keys_accept(const actor_http_keys_t *self, const char *key, size_t size_bytes)
{
    require(self->count > 0);
    uint8_t hash[PROTO_HASH_SIZE_BYTES];
    proto_secret_hash(self->key,
                      (proto_bytes_t){(const uint8_t *)key, key != NULL ? size_bytes : 0}, hash);
    bool found = false;
    for (size_t index = 0; index < self->count; index++) {
        bool equal = proto_secret_equal(hash, self->hashes[index]);
        found = found || equal;
    }
    return found && key != NULL;
}
