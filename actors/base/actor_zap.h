/* actor_zap.h - answers libzmq's question whether a key may connect (ZeroMQ RFC 27), for one
 * context.
 *
 * Owns the socket that the question comes to.  Asked before any message of the connection is read:
 * who is not listed says nothing to the actor.  A key that is listed becomes the User-Id of the
 * connection, which each of its messages carries.  One thread, the links'; never waits. */
#ifndef ACTOR_ZAP_H
#define ACTOR_ZAP_H

#include <stdint.h>

#include "actor_keys.h"
#include "proto_status.h"

typedef struct {
    void *handle; /* NULL = none */
    int fd;       /* readable: ask for service (edge, not level) */
    const actor_keys_t *keys;
    uint64_t granted_count;
    uint64_t denied_count;
} actor_zap_t;

/* The domain that sockets ask under. */
extern const char actor_zap_domain[];

/* STATUS_ERR_CONFIG if this context has one already.  `keys` is lent. */
MUST_CHECK proto_status_t actor_zap_open(void *context, const actor_keys_t *keys, actor_zap_t *out);
/* Before the context's end. */
void actor_zap_close(actor_zap_t *self);
/* Answers what was asked, at most 64 questions; returns how many it said no to. */
uint32_t actor_zap_service(actor_zap_t *self);

#endif
