/* run_guard.h - the pointer guard: a captured graph holds the addresses that its metadata had, for
 * ever; this finds the refresh that moved one.
 *
 * A snapshot is taken when a graph was captured and compared before each replay when debugging.
 * Every address that the decode slot reaches is in it; there is no list of exceptions. */
#ifndef RUN_GUARD_H
#define RUN_GUARD_H

#include <stdint.h>

#include "backend_base.h"
#include "proto_status.h"

typedef struct run_guard run_guard_t; /* opaque */

/* Notes the addresses of bs's decode slot.  STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_guard_new(const backend_t *backend, uint32_t bs, run_guard_t **out_p);
void run_guard_destroy(run_guard_t **self_p);

/* STATUS_ERR_INTERNAL if an address is not where it was; *path_p names the first one and lives
 * until the next call. */
MUST_CHECK proto_status_t run_guard_verify(run_guard_t *self, const backend_t *backend,
                                           const char **path_p);

/* For eager steps: nothing that the decode slot of `bs` reaches may lie in the memory of a graph
 * pool, where another graph's replay overwrites it.  A helper that memoised during a capture what
 * it then hands to an eager caller is found here.  STATUS_ERR_INTERNAL with path[] filled. */
MUST_CHECK proto_status_t run_guard_check_eager(const backend_t *backend, uint32_t bs,
                                                const device_pool_t *pool,
                                                char path[BACKEND_PATH_SIZE_BYTES]);

#endif
