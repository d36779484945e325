/* actor_executor_kv.h - what an executor registers at the kv-transfer of its node: its arena and
 * the words of its readiness by handle, and where the pages of each field lie.
 *
 * The shell's thread; reads what does not change once the model is loaded. */
#ifndef ACTOR_EXECUTOR_KV_H
#define ACTOR_EXECUTOR_KV_H

#include "proto_codec.h"
#include "run_executor.h"

typedef struct actor_executor_kv actor_executor_kv_t; /* room for the message's columns */

/* STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_executor_kv_new(actor_executor_kv_t **out_p);
void actor_executor_kv_destroy(actor_executor_kv_t **self_p);

/* Fills *out with views of the executor and of this room.  STATUS_ERR_UNSUPPORTED: the cache is not
 * shared; STATUS_ERR_TOO_LARGE: more fields than a registration has room for. */
MUST_CHECK proto_status_t actor_executor_kv_describe(actor_executor_kv_t *self,
                                                     const run_executor_t *run,
                                                     proto_kv_arena_t *out);

#endif
