/* backend_hybrid.h - HybridLinearAttnBackend: layers with keys and values go to one child,
 * recurrent layers to the other.  It keeps nothing of its own: metadata, capture and binding fan
 * out. */
#ifndef BACKEND_HYBRID_H
#define BACKEND_HYBRID_H

#include "backend_base.h"

/* Takes both children on success: `paged` (a CacheGroupRouter) and `state`, not yet bound.  On an
 * error the caller still owns them.  STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t backend_hybrid_new(const backend_options_t *options, backend_t **paged_p,
                                             backend_t **state_p, backend_t **out_p);

#endif
