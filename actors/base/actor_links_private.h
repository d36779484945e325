/* actor_links_private.h - what actor_links*.c and actor_handshake.c share; for these alone. */
#ifndef ACTOR_LINKS_PRIVATE_H
#define ACTOR_LINKS_PRIVATE_H

#include "actor_links.h"

_Static_assert(ACTOR_PEER_COUNT_MAX <= 64, "peers are bits of a mask");
_Static_assert(ACTOR_LINK_COUNT_MAX < 32, "links are bits of a mask");

/* Takes the lowest index out of a mask, which is not 0. */
static inline uint32_t
actor_mask_take(uint64_t *mask)
{
    uint32_t index = (uint32_t)__builtin_ctzll(*mask);
    *mask &= *mask - 1;
    return index;
}

/* Every change of a peer's state comes through here. */
static inline void
actor_links_set_state(actor_links_t *self, uint32_t peer, actor_remote_state_t state)
{
    uint64_t bit = UINT64_C(1) << peer;
    self->remotes[peer].state = state;
    self->peer_mask = state != ACTOR_REMOTE_FREE ? self->peer_mask | bit : self->peer_mask & ~bit;
    self->failed_mask =
        state == ACTOR_REMOTE_FAILED ? self->failed_mask | bit : self->failed_mask & ~bit;
}

/* Receives at most `message_count_max` messages of one link. */
void actor_links_receive(actor_links_t *self, uint32_t link_index, uint32_t message_count_max);
/* Takes what the socket's monitor says: connections that began or ended. */
void actor_links_take_events(actor_links_t *self, uint32_t link_index);

/* Marks a peer as failed, with the reason; reported at the next safe point. */
void actor_links_fail(actor_links_t *self, uint32_t peer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sends a body to a routing id without a sequence number. */
void actor_links_send_raw(actor_links_t *self, actor_link_t *link, proto_bytes_t routing_id,
                          proto_kind_t kind, const proto_body_t *body);
/* The peer with this routing id on this link, or ACTOR_PEER_NONE. */
uint32_t actor_links_find(const actor_links_t *self, uint32_t link_index, proto_bytes_t routing_id);
uint64_t actor_links_epoch_min(const actor_links_t *self, const char *name);
void actor_links_set_epoch_min(actor_links_t *self, const char *name, uint64_t epoch_min);
/* Handles HELLO, INIT, READY and REFUSE. */
void actor_handshake_receive(actor_links_t *self, uint32_t link_index, proto_bytes_t routing_id,
                             const proto_header_t *header, const proto_body_t *body);
/* Sends HELLO if it is due; lowers *wait_ns. */
void actor_handshake_service(actor_links_t *self, actor_link_t *link, uint64_t now_ns,
                             uint64_t *wait_ns);

#endif
