/* run_backend.h - which backend tree serves a model: a CacheGroupRouter alone, or with recurrent
 * layers a hybrid of a router and a state backend.  The device thread. */
#ifndef RUN_BACKEND_H
#define RUN_BACKEND_H

#include "backend_base.h"
#include "file_model.h"

typedef struct {
    backend_options_t backend;
    uint32_t page_size; /* kernel page of the paged leaves, tokens; 0 = min(granularity, 64) */
    const file_config_t *config;
    bool keeps_states; /* backend_gdn.h: how a verification remembers */
} run_backend_options_t;

/* Not yet bound to a pool.  STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_backend_new(const run_backend_options_t *options, backend_t **out_p);

/* True if some layers keep states in place of keys and values. */
bool run_backend_has_states(const file_config_t *config);

#endif
