/* The hybrid composite. */
#include "backend_hybrid.h"

#include "backend_draft.h"

#include <stdlib.h>

#include "proto_require.h"

enum { CHILD_PAGED = 0, CHILD_STATE = 1, CHILD_COUNT = 2 };

typedef struct {
    backend_t base; /* first */
} hybrid_t;

static void
hybrid_destroy(backend_t *base)
{
    free((hybrid_t *)base);
}

/* A layer that neither child has would be computed by nobody. */
static proto_status_t
hybrid_validate(const backend_t *base, const cache_pool_t *pool)
{
    (void)base;
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        cache_field_view_t view;
        bool is_paged = cache_pool_field(pool, layer, CACHE_FIELD_K, &view) == STATUS_OK;
        bool is_state = cache_pool_field(pool, layer, CACHE_FIELD_STATE, &view) == STATUS_OK;
        if (is_paged == is_state) {
            return STATUS_ERR_INVALID;
        }
    }
    return STATUS_OK;
}

static proto_status_t
hybrid_publish(backend_t *base, const cache_pool_t *pool)
{
    (void)base;
    (void)pool;
    return STATUS_OK;
}

static proto_status_t
hybrid_init_graph_state(backend_t *base)
{
    (void)base;
    return STATUS_OK;
}

static proto_status_t
hybrid_init_forward(backend_t *base, const backend_extend_t *extend)
{
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < base->child_count; i++) {
        status = backend_init_forward_metadata(base->children[i], extend);
    }
    return status;
}

static proto_status_t
hybrid_refresh(backend_t *base, const backend_refresh_t *refresh)
{
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < base->child_count; i++) {
        status = backend_refresh_decode_metadata(base->children[i], refresh);
    }
    return status;
}

static proto_status_t
hybrid_capture(backend_t *base, const backend_refresh_t *refresh)
{
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < base->child_count; i++) {
        status = backend_capture_child(base->children[i], refresh);
    }
    return status;
}

static void
hybrid_forward(backend_t *base, const backend_forward_t *forward)
{
    backend_forward(base->children[CHILD_PAGED], forward);
}

static void
hybrid_forward_recurrent(backend_t *base, const backend_recurrent_t *forward)
{
    backend_forward_recurrent(base->children[CHILD_STATE], forward);
}

static const int32_t *
hybrid_write_locations(const backend_t *base, uint32_t layer, backend_mode_t mode)
{
    return backend_write_locations(base->children[CHILD_PAGED], layer, mode);
}

/* The children report their own. */
static void
hybrid_visit(const backend_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    (void)base;
    (void)bs;
    (void)visit;
    (void)context;
}

/* Cross-backend reads of a target; a draft's tree has no hybrid. */
static const int32_t *
hybrid_decode_window(const backend_t *base)
{
    return backend_decode_window_locations(base->children[CHILD_PAGED]);
}

static const int32_t *
hybrid_extend_span(const backend_t *base)
{
    return backend_extend_span_locations(base->children[CHILD_PAGED]);
}

static const backend_draft_vtable_t hybrid_draft_vtable = {
    .decode_window_locations = hybrid_decode_window,
    .extend_span_locations = hybrid_extend_span,
};

static const backend_vtable_t hybrid_vtable = {
    .destroy = hybrid_destroy,
    .validate_cache_pool = hybrid_validate,
    .publish_cache_pool = hybrid_publish,
    .init_cuda_graph_state = hybrid_init_graph_state,
    .init_forward_metadata = hybrid_init_forward,
    .refresh_decode_metadata = hybrid_refresh,
    .capture_forward_metadata = hybrid_capture,
    .forward = hybrid_forward,
    .write_locations = hybrid_write_locations,
    .visit_decode_slot = hybrid_visit,
    .forward_recurrent = hybrid_forward_recurrent,
    .draft = &hybrid_draft_vtable,
};

proto_status_t
backend_hybrid_new(const backend_options_t *options, backend_t **paged_p, backend_t **state_p,
                   backend_t **out_p)
{
    require(*paged_p != NULL);
    require(*state_p != NULL);
    hybrid_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.vtable = &hybrid_vtable;
    self->base.name = "hybrid of paged and recurrent layers";
    self->base.support = (backend_support_t){.decode_graph = true, .prefill_graph = true};
    self->base.options = *options;
    self->base.children[CHILD_PAGED] = *paged_p;
    self->base.children[CHILD_STATE] = *state_p;
    self->base.child_count = CHILD_COUNT;
    *paged_p = NULL;
    *state_p = NULL;
    *out_p = &self->base;
    return STATUS_OK;
}
