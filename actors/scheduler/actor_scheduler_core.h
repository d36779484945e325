/* actor_scheduler_core.h - the scheduler's logic: messages to the planning library and back.
 *
 * It owns the library's core, the opaque bytes of waiting requests and who its peers are.  A pure
 * core (actor_core.h): no clock, socket or thread.  Everything is allocated at the start, except
 * what an executor's sizes decide, when it attaches.  It never looks at a token.
 *
 * One executor is in charge at a time; gateways may be several.  Each SUBMIT gets exactly one
 * FINISHED, unless its gateway is gone. */
#ifndef ACTOR_SCHEDULER_CORE_H
#define ACTOR_SCHEDULER_CORE_H

#include <stdbool.h>

#include "actor_core.h"
#include "sched_core.h"

typedef struct actor_scheduler_core actor_scheduler_core_t; /* opaque */

/* A zero means the value in the comment. */
typedef struct {
    uint32_t slot_count_max;   /* requests with a slot, whatever the executor offers: 1024 */
    uint32_t queue_len_max;    /* requests that may wait: 1024 */
    size_t store_size_bytes;   /* prompts of waiting requests: 64 MiB */
    uint64_t load_interval_ns; /* between two LOADs: 250 ms */
    uint64_t queue_timeout_ns; /* wait for a slot, unless SUBMIT says otherwise: 600 s */
    bool no_overlap;           /* a step's result comes before the next plan */
    bool no_prefix_cache;
    bool full_plans;         /* every plan is a full one: for benches */
    uint32_t loan_count_max; /* transfers to and from other nodes at once; none */
} actor_scheduler_core_options_t;

/* STATUS_ERR_CONFIG if an option is beyond its limit.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_scheduler_core_new(const actor_scheduler_core_options_t *options,
                                                   actor_scheduler_core_t **out_p);
void actor_scheduler_core_destroy(actor_scheduler_core_t **self_p);

/* Makes a core out of what the `save` operation packed; it goes on exactly as the saved one.  The
 * bytes may be hostile: STATUS_ERR_MALFORMED with a sentence in *error (may be NULL),
 * STATUS_ERR_VERSION for a layout of another version, STATUS_ERR_NO_MEMORY.  `secret` may be zeros
 * of the same size: the same plans, but the prompts of waiting requests are gone.  The caller owns
 * *out_p. */
MUST_CHECK proto_status_t actor_scheduler_core_restore(proto_bytes_t state, proto_bytes_t secret,
                                                       actor_scheduler_core_t **out_p,
                                                       proto_error_t *error);

/* How a harness runs it; lent, lives as long as the core. */
const actor_core_ops_t *actor_scheduler_core_ops(const actor_scheduler_core_t *self);

/* The library underneath, for questions (sched_core_why, sched_core_figures). */
const sched_core_t *actor_scheduler_core_library(const actor_scheduler_core_t *self);

#endif
