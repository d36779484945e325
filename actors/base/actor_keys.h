/* actor_keys.h - who this process is to others over TCP (a CURVE key pair), and whom it lets in.
 *
 * A folder holds KEYFILEs (NAME.key, secret) and one `peers` file (public): a line
 * `PUBLIC ROLE NAME [ENDPOINT]` for each key that may take part.  Binders let in only keys that are
 * listed, each for its one role and name; connectors trust only the listed key of the role that
 * they connect to.  Filled in at start, then only read; any thread. */
#ifndef ACTOR_KEYS_H
#define ACTOR_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_ids.h"
#include "proto_status.h"

enum {
    ACTOR_KEY_TEXT_SIZE_BYTES = 41, /* Z85 of 32 bytes, and a zero */
    ACTOR_KEY_PEER_COUNT_MAX = 128,
    ACTOR_KEY_ENDPOINT_SIZE_BYTES = 128,
};

#define ACTOR_KEY_NONE UINT32_MAX /* an enumerator is an int */

typedef struct {
    char public_text[ACTOR_KEY_TEXT_SIZE_BYTES];
    proto_role_t role;
    char name[PROTO_NAME_SIZE_BYTES];             /* "*": any of that role */
    char endpoint[ACTOR_KEY_ENDPOINT_SIZE_BYTES]; /* where it binds; "": anywhere */
} actor_key_peer_t;

typedef struct {
    char public_text[ACTOR_KEY_TEXT_SIZE_BYTES];
    char secret_text[ACTOR_KEY_TEXT_SIZE_BYTES];
    actor_key_peer_t peers[ACTOR_KEY_PEER_COUNT_MAX];
    uint32_t peer_count;
} actor_keys_t;

/* Makes FOLDER/NAME.key (mode 0600) and adds its line to FOLDER/peers; makes the folder (0700) if
 * it is missing.  STATUS_ERR_CONFIG, logged, if a file is in the way. */
MUST_CHECK proto_status_t actor_keys_make(const char *folder, proto_role_t role, const char *name);

/* Reads FOLDER/NAME.key, or FOLDER/ROLE.key if there is none of that name, and FOLDER/peers.
 * STATUS_ERR_CONFIG, logged with file and line. */
MUST_CHECK proto_status_t actor_keys_load(const char *folder, proto_role_t role, const char *name,
                                          actor_keys_t *out);

/* The line of a public key; ACTOR_KEY_NONE if it is not listed. */
uint32_t actor_keys_find(const actor_keys_t *self, const char *public_text);
/* The line of the peer that binds `endpoint` with this role: the one that names the endpoint, or
 * the only one of the role that names none.  ACTOR_KEY_NONE if there is none, or it is not clear
 * which. */
uint32_t actor_keys_find_binder(const actor_keys_t *self, proto_role_t role, const char *endpoint);
/* Whether line `index` is for an actor of this role and name. */
bool actor_keys_fit(const actor_keys_t *self, uint32_t index, proto_role_t role, const char *name);

/* What links of this process do unless their options say otherwise; set once, before the first
 * one.  `keys` may be NULL and lives as long as the process; `insecure_bind`: endpoints that other
 * machines reach are allowed without keys. */
void actor_keys_set_process(const actor_keys_t *keys, bool insecure_bind);
const actor_keys_t *actor_keys_process(void);
bool actor_keys_insecure_bind(void);

/* The role of this name, PROTO_ROLE_NONE if there is none. */
proto_role_t actor_keys_role(const char *name);

#endif
