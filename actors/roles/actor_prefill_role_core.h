/* actor_prefill_role_core.h - the logic of a prefill node's role: it serves prefills to
 * decode-roles and holds what they have not fetched.
 *
 * It owns the state of each transfer that was offered to this node, its lease, and who its peers
 * are; never a block and never a byte of cache.  A pure core (actor_core.h).  The states and the
 * messages are in proto_messages_pd.h.  Every offer ends in PREFILLED or TRANSFER_FAILED, and every
 * TRANSFER_CLOSE in TRANSFER_CLOSED, whatever is lost, late or said twice. */
#ifndef ACTOR_PREFILL_ROLE_CORE_H
#define ACTOR_PREFILL_ROLE_CORE_H

#include "actor_core.h"

typedef struct actor_prefill_role_core actor_prefill_role_core_t; /* opaque */

/* A zero means the value in the comment. */
typedef struct {
    uint32_t transfer_count_max; /* open at once: 256 */
    uint64_t lease_ns;           /* without a LEASE_RENEW for so long it is dropped: 5 s */
} actor_prefill_role_options_t;

/* STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_prefill_role_core_new(const actor_prefill_role_options_t *options,
                                                      actor_prefill_role_core_t **out_p);
void actor_prefill_role_core_destroy(actor_prefill_role_core_t **self_p);

/* How a harness runs it; lent, lives as long as the core. */
const actor_core_ops_t *actor_prefill_role_core_ops(const actor_prefill_role_core_t *self);

/* Transfers that are open. */
uint32_t actor_prefill_role_core_count(const actor_prefill_role_core_t *self);

#endif
