#include "actor_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "actor_log.h"
#include "actor_secret.h"
#include "proto_require.h"

enum {
    PATH_SIZE_BYTES = 512,
    KEY_FILE_SIZE_BYTES = 4096,
    PEERS_FILE_SIZE_BYTES = 64 * 1024,
    KEY_SIZE_BYTES = 32,
    WORD_COUNT_MAX = 5, /* one more than a line has */
};

static const actor_keys_t *process_keys;
static bool process_insecure;

void
actor_keys_set_process(const actor_keys_t *keys, bool insecure_bind)
{
    process_keys = keys;
    process_insecure = insecure_bind;
}

const actor_keys_t *
actor_keys_process(void)
{
    return process_keys;
}

bool
actor_keys_insecure_bind(void)
{
    return process_insecure;
}

proto_role_t
actor_keys_role(const char *name)
{
    static const proto_role_t roles[] = {
#define KEYS_ROLE(role, value, text) PROTO_ROLE_##role,
        PROTO_ROLE_LIST(KEYS_ROLE)
#undef KEYS_ROLE
    };
    for (size_t index = 0; index < sizeof roles / sizeof roles[0]; index++) {
        if (strcmp(proto_role_name(roles[index]), name) == 0) {
            return roles[index];
        }
    }
    return PROTO_ROLE_NONE;
}

static bool
name_is_valid(const char *name)
{
    size_t size = strlen(name);
    return size > 0 && size < PROTO_NAME_SIZE_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == size;
}

static bool
key_is_valid(const char *text)
{
    uint8_t bytes[KEY_SIZE_BYTES];
    bool valid =
        strlen(text) == ACTOR_KEY_TEXT_SIZE_BYTES - 1 && zmq_z85_decode(bytes, text) != NULL;
    actor_secret_wipe(bytes, sizeof bytes);
    return valid;
}

/* ---- making ---------------------------------------------------------------------------------- */

static proto_status_t
fail(const char *path, const char *why)
{
    actor_log(ACTOR_LOG_ERROR, "keys.failed", 0, ACTOR_LOG_FIELDS(actor_log_str("file", path)),
              "'%s': %s", path, why);
    return STATUS_ERR_CONFIG;
}

static proto_status_t
add_peer(const char *folder, const char *public_text, proto_role_t role, const char *name)
{
    char path[PATH_SIZE_BYTES];
    char line[PATH_SIZE_BYTES];
    (void)snprintf(path, sizeof path, "%s/peers", folder);
    int size = snprintf(line, sizeof line, "%s %s %s\n", public_text, proto_role_name(role), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return fail(path, strerror(errno));
    }
    bool done = write(fd, line, (size_t)size) == size;
    done = close(fd) == 0 && done;
    return done ? STATUS_OK : fail(path, "cannot be written");
}

proto_status_t
actor_keys_make(const char *folder, proto_role_t role, const char *name)
{
    char path[PATH_SIZE_BYTES];
    char public_text[ACTOR_KEY_TEXT_SIZE_BYTES];
    char secret_text[ACTOR_KEY_TEXT_SIZE_BYTES];
    if (!name_is_valid(name) || role == PROTO_ROLE_NONE) {
        return fail(name, "is no name of an actor: 1 to 31 of a-z, 0-9 and '-'");
    }
    if (snprintf(path, sizeof path, "%s/%s.key", folder, name) >= (int)sizeof path) {
        return fail(folder, "is too long a path");
    }
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        return fail(folder, strerror(errno));
    }
    if (zmq_curve_keypair(public_text, secret_text) != 0) {
        return fail(path, "this libzmq has no CURVE");
    }
    char text[KEY_FILE_SIZE_BYTES];
    (void)snprintf(text, sizeof text,
                   "# The CURVE key of one Onepath actor.  SECRET: keep it with mode 0600.\n"
                   "public %s\nsecret %s\n",
                   public_text, secret_text);
    proto_status_t status = actor_secret_write(path, proto_text(text));
    actor_secret_wipe(text, sizeof text);
    actor_secret_wipe(secret_text, sizeof secret_text);
    return status == STATUS_OK ? add_peer(folder, public_text, role, name) : status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Cuts the next line into words, in place; returns their number, or -1 at the end of the text. */
static int
next_line(char **at, const char *words[WORD_COUNT_MAX], uint32_t *line)
{
    if (**at == '\0') {
        return -1;
    }
    char *begin = *at;
    char *end = strchr(begin, '\n');
    *at = end != NULL ? end + 1 : begin + strlen(begin);
    if (end != NULL) {
        *end = '\0';
    }
    ++*line;
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(begin, " \t\r", &rest); word != NULL && count < WORD_COUNT_MAX;
         word = strtok_r(NULL, " \t\r", &rest)) {
        words[count++] = word;
    }
    /* A key may hold a '#', but a line that begins with one word "#" is a remark. */
    return count > 0 && strcmp(words[0], "#") == 0 ? 0 : count;
}

static proto_status_t
fail_line(const char *path, uint32_t line, const char *why)
{
    actor_log(ACTOR_LOG_ERROR, "keys.line", 0,
              ACTOR_LOG_FIELDS(actor_log_str("file", path), actor_log_u64("line", line)),
              "%s:%u: %s", path, line, why);
    return STATUS_ERR_CONFIG;
}

static proto_status_t
load_pair(const char *folder, proto_role_t role, const char *name, actor_keys_t *out)
{
    char path[PATH_SIZE_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s.key", folder, name);
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        (void)snprintf(path, sizeof path, "%s/%s.key", folder, proto_role_name(role));
    }
    char text[KEY_FILE_SIZE_BYTES];
    size_t size = 0;
    proto_status_t status = actor_secret_read(path, text, sizeof text, &size);
    char *at = text;
    uint32_t line = 0;
    const char *words[WORD_COUNT_MAX];
    for (int count = 0; status == STATUS_OK && (count = next_line(&at, words, &line)) >= 0;) {
        bool is_public = count == 2 && strcmp(words[0], "public") == 0;
        bool is_secret = count == 2 && strcmp(words[0], "secret") == 0;
        if (count == 0) {
            continue;
        }
        if ((!is_public && !is_secret) || !key_is_valid(words[1])) {
            status = fail_line(path, line, "not 'public KEY' or 'secret KEY' as keygen writes it");
            continue;
        }
        memcpy(is_public ? out->public_text : out->secret_text, words[1],
               ACTOR_KEY_TEXT_SIZE_BYTES);
    }
    actor_secret_wipe(text, sizeof text);
    char derived[ACTOR_KEY_TEXT_SIZE_BYTES] = "";
    if (status == STATUS_OK &&
        (out->secret_text[0] == '\0' || zmq_curve_public(derived, out->secret_text) != 0 ||
         strcmp(derived, out->public_text) != 0)) {
        status = fail(path, "does not hold a public key and the secret key that belongs to it");
    }
    return status;
}

static proto_status_t
load_peer(const char *path, uint32_t line, const char *const *words, int count, actor_keys_t *out)
{
    if (count < 3 || count > 4 || !key_is_valid(words[0])) {
        return fail_line(path, line, "not PUBLICKEY ROLE NAME [ENDPOINT]");
    }
    if (actor_keys_role(words[1]) == PROTO_ROLE_NONE) {
        return fail_line(path, line, "the second word is no role, such as gateway or executor");
    }
    if (strcmp(words[2], "*") != 0 && !name_is_valid(words[2])) {
        return fail_line(path, line, "the third word is no name of an actor, and not '*'");
    }
    if (count == 4 && strlen(words[3]) >= ACTOR_KEY_ENDPOINT_SIZE_BYTES) {
        return fail_line(path, line, "the endpoint is too long");
    }
    if (actor_keys_find(out, words[0]) != ACTOR_KEY_NONE) {
        return fail_line(path, line, "this key is listed twice: each has one role and one name");
    }
    if (out->peer_count == ACTOR_KEY_PEER_COUNT_MAX) {
        return fail_line(path, line, "too many peers");
    }
    actor_key_peer_t *peer = &out->peers[out->peer_count++];
    *peer = (actor_key_peer_t){.role = actor_keys_role(words[1])};
    memcpy(peer->public_text, words[0], ACTOR_KEY_TEXT_SIZE_BYTES);
    (void)snprintf(peer->name, sizeof peer->name, "%s", words[2]);
    (void)snprintf(peer->endpoint, sizeof peer->endpoint, "%s", count == 4 ? words[3] : "");
    return STATUS_OK;
}

proto_status_t
actor_keys_load(const char *folder, proto_role_t role, const char *name, actor_keys_t *out)
{
    *out = (actor_keys_t){.peer_count = 0};
    proto_status_t status = load_pair(folder, role, name, out);
    if (status != STATUS_OK) {
        return status;
    }
    char path[PATH_SIZE_BYTES];
    (void)snprintf(path, sizeof path, "%s/peers", folder);
    static char text[PEERS_FILE_SIZE_BYTES];
    size_t size = 0;
    /* Not secret, but whoever can change it can let himself in: the same rules. */
    status = actor_secret_read(path, text, sizeof text, &size);
    char *at = text;
    uint32_t line = 0;
    const char *words[WORD_COUNT_MAX];
    for (int count = 0; status == STATUS_OK && (count = next_line(&at, words, &line)) >= 0;) {
        status = count > 0 ? load_peer(path, line, words, count, out) : STATUS_OK;
    }
    if (status == STATUS_OK && out->peer_count == 0) {
        status = fail(path, "lists no peer: nobody could connect");
    }
    return status;
}

/* ---- looking up ------------------------------------------------------------------------------ */

uint32_t
actor_keys_find(const actor_keys_t *self, const char *public_text)
{
    for (uint32_t index = 0; index < self->peer_count; index++) {
        if (strcmp(self->peers[index].public_text, public_text) == 0) {
            return index;
        }
    }
    return ACTOR_KEY_NONE;
}

uint32_t
actor_keys_find_binder(const actor_keys_t *self, proto_role_t role, const char *endpoint)
{
    uint32_t found = ACTOR_KEY_NONE;
    uint32_t found_count = 0;
    for (uint32_t index = 0; index < self->peer_count; index++) {
        const actor_key_peer_t *peer = &self->peers[index];
        if (role != PROTO_ROLE_NONE && peer->role != role) {
            continue;
        }
        if (strcmp(peer->endpoint, endpoint) == 0) {
            return index;
        }
        if (peer->endpoint[0] == '\0') {
            found = index;
            found_count++;
        }
    }
    return found_count == 1 ? found : ACTOR_KEY_NONE;
}

bool
actor_keys_fit(const actor_keys_t *self, uint32_t index, proto_role_t role, const char *name)
{
    require(index < self->peer_count);
    const actor_key_peer_t *peer = &self->peers[index];
    return peer->role == role && (strcmp(peer->name, "*") == 0 || strcmp(peer->name, name) == 0);
}
