/* actor_executor_core.h - the executor's logic: every plan is checked before the device sees it.
 *
 * It owns the mirror of all block tables, the tokens of each request, the page-hash chains and the
 * bookkeeping of steps in flight.  It must never touch a device, a socket or a clock.  One thread
 * at a time (the shell's).
 *
 * Everything is allocated at the start: the fixed part by actor_executor_core_new(), what depends
 * on the model when DEVICE_READY tells its sizes (once; large parts are touched as they fill).
 *
 * Local messages beyond the list's own meaning:
 *   DEVICE_READY again   the device carried out a DEVICE_RESET; what was posted before it is old
 *   DEVICE_FAILED to the shell   the actor cannot go on: log it and end
 *   NAK to the shell     an input was dropped; log it (a peer gets an answer of its own)
 *   COMPLAINT to the shell   the scheduler breaks rules again and again; the supervisor's to judge,
 *                        told once until a good plan or another scheduler comes */
#ifndef ACTOR_EXECUTOR_CORE_H
#define ACTOR_EXECUTOR_CORE_H

#include "actor_core.h"

typedef struct actor_executor_core actor_executor_core_t;

/* Upper bounds, known before the model is; DEVICE_READY beyond one of them is a failure that says
 * so.  A zero means the value in the comment. */
typedef struct {
    uint32_t slot_count_max;  /* 32 */
    uint32_t model_len_max;   /* 131072 */
    uint32_t step_tokens_max; /* 512 */
    uint32_t bad_plans_max;   /* plans refused in a row before it complains: 8 */
    const char *draft_ring;   /* the file through which a drafter is spoken to; none, copied */
    uint64_t draft_ring_id;
} actor_executor_core_options_t;

/* STATUS_ERR_CONFIG if a bound is beyond the protocol's.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_executor_core_new(const actor_executor_core_options_t *options,
                                                  actor_executor_core_t **out_p);
void actor_executor_core_destroy(actor_executor_core_t **self_p);

/* Makes a core out of what the `save` operation packed; it goes on exactly as the saved one.  The
 * bytes may be hostile: STATUS_ERR_MALFORMED with a sentence in *error (may be NULL),
 * STATUS_ERR_VERSION for a layout of another version, STATUS_ERR_NO_MEMORY.  `secret` may be zeros
 * of the same size: the same checks of plans, but rows carry tokens 0 and page hashes differ.  The
 * caller owns *out_p. */
MUST_CHECK proto_status_t actor_executor_core_restore(proto_bytes_t state, proto_bytes_t secret,
                                                      actor_executor_core_t **out_p,
                                                      proto_error_t *error);

/* The operations to run it with; lent, lives as long as the core. */
const actor_core_ops_t *actor_executor_core_ops(const actor_executor_core_t *self);

#endif
