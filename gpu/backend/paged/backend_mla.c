/* The MLA leaf: absorbed latent attention over one cached row for each position.
 *
 * A width of N is N rows of one request at the window's positions: the kernel takes them as such,
 * so nothing is expanded.  Mixed batches run as two calls, the extends and then the decodes behind
 * them. */
#include <stdlib.h>

#include "backend_leaf.h"
#include "backend_slots.h"
#include "proto_require.h"

typedef struct {
    backend_leaf_t base; /* first */
    cache_pool_t pool;
    backend_slots_t slots;
} mla_t;

static const cache_field_name_t names[] = {CACHE_FIELD_LATENT};

static void
mla_destroy(backend_leaf_t *base)
{
    mla_t *self = (mla_t *)base;
    backend_slots_fini(&self->slots, base);
    free(self);
}

static proto_status_t
mla_validate(const backend_leaf_t *base, const cache_pool_t *pool)
{
    const backend_options_t *options = &base->options;
    if (cache_plan_group(pool->plan, base->group)->kind != CACHE_KIND_FULL ||
        backend_leaf_page_stride(base, pool, names, 1) * base->page_size < base->granularity) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        cache_field_view_t view;
        if (cache_pool_field(pool, layer, CACHE_FIELD_LATENT, &view) != STATUS_OK ||
            view.group != base->group) {
            continue;
        }
        if (view.rows != base->granularity || view.heads != 1 ||
            view.head_dim != options->latent_dim + options->rope_dim) {
            return STATUS_ERR_INVALID;
        }
    }
    return STATUS_OK;
}

static void
mla_bind(backend_leaf_t *base, const cache_pool_t *pool)
{
    mla_t *self = (mla_t *)base;
    backend_slots_fini(&self->slots, base);
    self->pool = *pool;
    base->page_stride = backend_leaf_page_stride(base, pool, names, 1);
}

static proto_status_t
mla_init_graph_state(backend_leaf_t *base)
{
    mla_t *self = (mla_t *)base;
    const backend_options_t *options = &base->options;
    size_t workspace_bytes =
        kern_mla_decode_workspace_size_bytes(options->bs_max * options->width, options->q_heads,
                                             options->latent_dim,
                                             base->page_count_max * base->page_size);
    return backend_slots_init(&self->slots, base, workspace_bytes);
}

static void
mla_refresh(backend_leaf_t *base, const backend_leaf_refresh_t *refresh)
{
    backend_slots_refresh(&((mla_t *)base)->slots, base, refresh);
}

static void
mla_init_forward(backend_leaf_t *base, const backend_leaf_extend_t *extend)
{
    backend_slots_init_forward(&((mla_t *)base)->slots, base, extend);
}

static kern_mla_cache_t
cache_of(const mla_t *self, const backend_forward_t *forward, const int32_t *page_table)
{
    cache_field_view_t latent;
    proto_status_t status =
        cache_pool_field(&self->pool, forward->layer, CACHE_FIELD_LATENT, &latent);
    require(status == STATUS_OK);
    require(forward->sinks == NULL);
    return (kern_mla_cache_t){
        .cache = latent.pages,
        .cache_type = latent.dtype == CACHE_DTYPE_F32 ? KERN_TYPE_F32 : KERN_TYPE_F16,
        .page_size = self->base.page_size,
        .page_count =
            cache_plan_page_count(self->pool.plan, self->base.group) * self->base.page_stride,
        .page_table = page_table,
        .page_table_stride = self->base.page_count_max,
        .heads = self->base.options.q_heads,
        .latent_dim = self->base.options.latent_dim,
        .rope_dim = self->base.options.rope_dim,
        .scale = forward->scale,
    };
}

static void
forward_decode(mla_t *self, const backend_forward_t *forward, const int32_t *page_table,
               const int32_t *seq_lens, uint32_t bs)
{
    kern_mla_decode_args_t args = {
        .cache = cache_of(self, forward, page_table),
        .q = forward->q,
        .q_stride = forward->q_stride,
        .seq_lens = seq_lens,
        .bs = bs,
        .rows_per_request = self->base.options.width,
        .output = forward->output,
        .output_stride = forward->output_stride,
        .workspace = self->slots.workspace,
        .workspace_size_bytes = self->slots.workspace_bytes,
    };
    device_ops(self->base.options.device)->mla_decode(self->base.options.stream, &args);
}

static void
mla_forward(backend_leaf_t *base, const backend_forward_t *forward)
{
    mla_t *self = (mla_t *)base;
    /* No narrowed stage has latent attention, and its output goes on through W_v of each head,
     * which reads rows. */
    require(forward->suffix_cu_lens == NULL);
    require(forward->output_form == KERN_FORM_ROWS);
    if (forward->mode == BACKEND_MODE_DECODE) {
        const backend_decode_view_t *view = self->slots.forward_decode_metadata;
        require(view != NULL);
        require(forward->rows == view->bs * base->options.width);
        forward_decode(self, forward, view->page_table, view->seq_lens, view->bs);
        return;
    }
    const backend_prefill_t *meta = &self->slots.forward_prefill_metadata;
    require(meta->page_table != NULL);
    uint32_t decodes = meta->bs - meta->num_extends;
    require(forward->rows == meta->extend_tokens + decodes * base->options.width);
    if (meta->num_extends > 0) {
        kern_mla_extend_args_t args = {
            .cache = cache_of(self, forward, meta->page_table),
            .q = forward->q,
            .q_stride = forward->q_stride,
            .cu_q = meta->extend_cu_lens,
            .seq_lens = meta->seq_lens,
            .request_count = meta->num_extends,
            .output = forward->output,
            .output_stride = forward->output_stride,
        };
        device_ops(base->options.device)->mla_extend(base->options.stream, &args);
    }
    if (decodes > 0) {
        backend_forward_t rest = *forward;
        rest.q += meta->extend_tokens * forward->q_stride;
        rest.output += meta->extend_tokens * forward->output_stride;
        rest.rows -= meta->extend_tokens;
        forward_decode(self, &rest,
                       meta->page_table + (size_t)meta->num_extends * base->page_count_max,
                       meta->seq_lens + meta->num_extends, decodes);
    }
}

static void
mla_visit(const backend_leaf_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    backend_slots_visit(&((const mla_t *)base)->slots, base, bs, visit, context);
}

static void
mla_visit_step(const backend_leaf_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    backend_slots_visit_step(&((const mla_t *)base)->slots, base, bs, visit, context);
}

static const backend_leaf_vtable_t mla_vtable = {
    .destroy = mla_destroy,
    .validate = mla_validate,
    .bind = mla_bind,
    .init_graph_state = mla_init_graph_state,
    .init_forward_metadata = mla_init_forward,
    .refresh_decode_metadata = mla_refresh,
    .capture_forward_metadata = NULL,
    .set_request_slots = NULL,
    .forward = mla_forward,
    .visit_decode_slot = mla_visit,
    .visit_step_spans = mla_visit_step,
};

proto_status_t
backend_mla_new(const backend_options_t *options, uint32_t group, uint32_t granularity,
                uint32_t page_size, backend_leaf_t **out_p)
{
    require(page_size > 0);
    require(granularity % page_size == 0);
    require(options->width >= 1);
    if (options->latent_dim == 0 || options->latent_dim % 16 != 0 ||
        options->latent_dim > KERN_MLA_DIM_MAX ||
        options->rope_dim > KERN_MLA_DIM_MAX - options->latent_dim) {
        return STATUS_ERR_INVALID;
    }
    mla_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base = (backend_leaf_t){
        .vtable = &mla_vtable,
        .name = "mla",
        .support = {.decode_graph = true, .prefill_graph = true},
        .options = *options,
        .group = group,
        .granularity = granularity,
        .page_size = page_size,
        .page_count_max = backend_leaf_page_count_max(options, page_size),
    };
    *out_p = &self->base;
    return STATUS_OK;
}
