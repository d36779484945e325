/* run_workspace.h - the grow-only scratch memory of eager forwards, shared by all who run on the
 * executor's stream.
 *
 * Owners say at start how much they need; the largest wish counts.  It is frozen before graphs are
 * captured, because what a capture saw must stay where it is, and unfrozen for a rebind of the
 * cache.  Asking for more while it is frozen is a bug of the caller, which is told by name.  The
 * device thread. */
#ifndef RUN_WORKSPACE_H
#define RUN_WORKSPACE_H

#include <stdbool.h>
#include <stddef.h>

#include "device_base.h"

typedef struct {
    device_t *device; /* lent */
    void *memory;     /* DEVICE_MEMORY_DEVICE; NULL until something was reserved */
    size_t size_bytes;
    bool is_frozen;
    char fault[128]; /* who asked for more while it was frozen; "" = nobody */
} run_workspace_t;

void run_workspace_init(run_workspace_t *self, device_t *device);
void run_workspace_fini(run_workspace_t *self);

/* Makes sure of size_bytes for `owner`; may move the memory and lose what is in it, so nothing may
 * be in flight.  STATUS_ERR_NO_MEMORY; STATUS_ERR_INTERNAL, with `fault` naming the owner, if it
 * would have to grow while frozen. */
MUST_CHECK proto_status_t run_workspace_reserve(run_workspace_t *self, const char *owner,
                                                size_t size_bytes);

/* Nobody may grow it from now on, or again. */
void run_workspace_freeze(run_workspace_t *self);
void run_workspace_unfreeze(run_workspace_t *self);

#endif
