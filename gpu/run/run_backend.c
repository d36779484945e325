#include "run_backend.h"

#include "backend_gdn.h"
#include "backend_hybrid.h"
#include "router_cache_group.h"
#include "run_buffers.h"

_Static_assert((int)RUN_STEPS_IN_FLIGHT_MAX <= (int)BACKEND_GDN_STEPS_IN_FLIGHT_MAX,
               "tables of all steps in flight fit the ring");

bool
run_backend_has_states(const file_config_t *config)
{
    for (uint32_t i = 0; i < config->layer_count; i++) {
        if (config->layer_kinds[i] == FILE_LAYER_LINEAR) {
            return true;
        }
    }
    return false;
}

static backend_gdn_options_t
gdn_options(const run_backend_options_t *options)
{
    const file_config_t *c = options->config;
    return (backend_gdn_options_t){
        .backend = options->backend,
        .k_heads = c->linear_key_head_count,
        .v_heads = c->linear_value_head_count,
        .k_dim = c->linear_key_head_dim,
        .v_dim = c->linear_value_head_dim,
        .conv_width = c->linear_conv_width,
        .keeps_states = options->keeps_states,
    };
}

proto_status_t
run_backend_new(const run_backend_options_t *options, backend_t **out_p)
{
    backend_t *router = NULL;
    router_cache_group_options_t paged = {.backend = options->backend,
                                          .page_size = options->page_size};
    proto_status_t status = router_cache_group_new(&paged, &router);
    if (status != STATUS_OK) {
        return status;
    }
    if (!run_backend_has_states(options->config)) {
        *out_p = router;
        return STATUS_OK;
    }
    backend_t *state = NULL;
    backend_gdn_options_t gdn = gdn_options(options);
    status = backend_gdn_new(&gdn, &state);
    if (status == STATUS_OK) {
        status = backend_hybrid_new(&options->backend, &router, &state, out_p);
    }
    backend_destroy(&state);
    backend_destroy(&router);
    return status;
}
