/* actor_decode_role_core.h - the logic of a decode node's role: stands between gateways and its
 * scheduler, and has prompts computed elsewhere.
 *
 * To a gateway it is a scheduler, to its scheduler a gateway.  It owns the state of each request
 * that came in, of each transfer, the leases at prefill nodes, and who its peers are; never a block
 * and never a byte of cache.  A pure core (actor_core.h).  The states and the messages are in
 * proto_messages_pd.h.  Each SUBMIT gets exactly one FINISHED; a transfer that fails before its
 * request got a token is tried once more, elsewhere if there is an elsewhere. */
#ifndef ACTOR_DECODE_ROLE_CORE_H
#define ACTOR_DECODE_ROLE_CORE_H

#include <stdbool.h>

#include "actor_core.h"

typedef struct actor_decode_role_core actor_decode_role_core_t; /* opaque */

/* A zero means the value in the comment. */
typedef struct {
    uint64_t epoch;              /* of this actor: transfer keys are made of it */
    uint32_t request_count_max;  /* requests at once: 512 */
    size_t store_size_bytes;     /* their prompts: 64 MiB */
    uint64_t renew_ns;           /* between two LEASE_RENEWs: 1 s */
    uint64_t offer_timeout_ns;   /* for an answer to an offer, or to a word said again: 5 s */
    uint64_t queue_timeout_ns;   /* wait for blocks, unless SUBMIT says otherwise: 600 s */
    uint64_t landing_timeout_ns; /* from the first token to the last byte of the cache: 10 s */
    bool no_local_prefill; /* without a prefill node requests wait for none: they are refused */
} actor_decode_role_options_t;

/* STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_decode_role_core_new(const actor_decode_role_options_t *options,
                                                     actor_decode_role_core_t **out_p);
void actor_decode_role_core_destroy(actor_decode_role_core_t **self_p);

/* How a harness runs it; lent, lives as long as the core. */
const actor_core_ops_t *actor_decode_role_core_ops(const actor_decode_role_core_t *self);

/* Requests without an end, transfers that are open. */
uint32_t actor_decode_role_core_request_count(const actor_decode_role_core_t *self);
uint32_t actor_decode_role_core_transfer_count(const actor_decode_role_core_t *self);
/* Requests that this node prefilled itself, transfers that failed. */
uint64_t actor_decode_role_core_local_count(const actor_decode_role_core_t *self);
uint64_t actor_decode_role_core_failed_count(const actor_decode_role_core_t *self);

#endif
