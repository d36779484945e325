/* The MHA leaf: paged softmax attention with grouped query heads. */
#include <stdlib.h>

#include "backend_leaf.h"
#include "backend_slots.h"
#include "proto_require.h"

typedef struct {
    backend_leaf_t base; /* first */
    cache_pool_t pool;
    backend_slots_t slots;
} mha_t;

static const cache_field_name_t names[] = {CACHE_FIELD_K, CACHE_FIELD_V};
enum { NAME_COUNT = sizeof names / sizeof *names };

static void
mha_destroy(backend_leaf_t *base)
{
    mha_t *self = (mha_t *)base;
    backend_slots_fini(&self->slots, base);
    free(self);
}

static proto_status_t
mha_validate(const backend_leaf_t *base, const cache_pool_t *pool)
{
    if (backend_leaf_page_stride(base, pool, names, NAME_COUNT) * base->page_size <
        base->granularity) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        for (size_t i = 0; i < NAME_COUNT; i++) {
            cache_field_view_t view;
            if (cache_pool_field(pool, layer, names[i], &view) != STATUS_OK ||
                view.group != base->group) {
                continue;
            }
            if (view.rows != base->granularity || view.heads != base->options.kv_heads ||
                view.head_dim != base->options.head_dim) {
                return STATUS_ERR_INVALID;
            }
        }
    }
    return STATUS_OK;
}

static void
mha_bind(backend_leaf_t *base, const cache_pool_t *pool)
{
    mha_t *self = (mha_t *)base;
    backend_slots_fini(&self->slots, base);
    self->pool = *pool;
    base->page_stride = backend_leaf_page_stride(base, pool, names, NAME_COUNT);
}

static proto_status_t
mha_init_graph_state(backend_leaf_t *base)
{
    mha_t *self = (mha_t *)base;
    const backend_options_t *options = &base->options;
    size_t workspace_bytes =
        kern_attention_decode_workspace_size_bytes(options->bs_max * options->width,
                                                   options->q_heads, options->head_dim,
                                                   base->page_count_max * base->page_size);
    return backend_slots_init(&self->slots, base, workspace_bytes);
}

static void
mha_refresh(backend_leaf_t *base, const backend_leaf_refresh_t *refresh)
{
    backend_slots_refresh(&((mha_t *)base)->slots, base, refresh);
}

static void
mha_init_forward(backend_leaf_t *base, const backend_leaf_extend_t *extend)
{
    backend_slots_init_forward(&((mha_t *)base)->slots, base, extend);
}

static kern_attention_cache_t
cache_of(const mha_t *self, const backend_forward_t *forward, const int32_t *page_table)
{
    cache_field_view_t k;
    cache_field_view_t v;
    proto_status_t status = cache_pool_field(&self->pool, forward->layer, CACHE_FIELD_K, &k);
    require(status == STATUS_OK);
    status = cache_pool_field(&self->pool, forward->layer, CACHE_FIELD_V, &v);
    require(status == STATUS_OK);
    uint32_t window = cache_plan_group(self->pool.plan, self->base.group)->window;
    kern_attention_cache_t cache = {
        .k_cache = k.pages,
        .v_cache = v.pages,
        .cache_type = k.dtype == CACHE_DTYPE_F32 ? KERN_TYPE_F32 : KERN_TYPE_F16,
        .page_size = self->base.page_size,
        .page_count =
            cache_plan_page_count(self->pool.plan, self->base.group) * self->base.page_stride,
        .page_table = page_table,
        .page_table_stride = self->base.page_count_max,
        .q_heads = self->base.options.q_heads,
        .kv_heads = self->base.options.kv_heads,
        .head_dim = self->base.options.head_dim,
        .scale = forward->scale,
        .logit_cap = 0.0f,
        .window_left = window == 0 ? -1 : (int32_t)window - 1,
        .sinks = forward->sinks,
    };
    return cache;
}

/* The last rows of the forward are the decode requests'. */
static void
forward_decode(mha_t *self, const backend_forward_t *forward, const int32_t *page_table,
               const int32_t *seq_lens, uint32_t bs, uint32_t rows_per_request)
{
    uint32_t first = forward->rows - bs * rows_per_request;
    kern_attention_decode_args_t args = {
        .cache = cache_of(self, forward, page_table),
        .q = forward->q + first * forward->q_stride,
        .q_stride = forward->q_stride,
        .seq_lens = seq_lens,
        .bs = bs,
        .rows_per_request = rows_per_request,
        .output = forward->output,
        .output_stride = forward->output_stride,
        .output_form = forward->output_form,
        .output_first = first,
        .output_rows = forward->output_rows != 0 ? forward->output_rows : forward->rows,
        .workspace = self->slots.workspace,
        .workspace_size_bytes = self->slots.workspace_bytes,
    };
    device_ops(self->base.options.device)->attention_decode(self->base.options.stream, &args);
}

/* Rows of an entry: the target's are the window, a draft's step has fewer, a row of a block stands
 * alone with the block's length. */
static uint32_t
decode_rows(const backend_leaf_t *base, const backend_forward_t *forward, uint32_t bs)
{
    uint32_t entries = bs * backend_slots_entries(base);
    uint32_t rows = forward->rows / entries;
    require(forward->rows == entries * rows);
    require(rows >= 1);
    require(base->options.is_draft ? rows <= base->options.width : rows == base->options.width);
    require(base->options.block_width == 0 || rows == 1);
    return rows;
}

static void
mha_forward(backend_leaf_t *base, const backend_forward_t *forward)
{
    mha_t *self = (mha_t *)base;
    if (forward->mode == BACKEND_MODE_DECODE) {
        const backend_decode_view_t *view = self->slots.forward_decode_metadata;
        require(view != NULL);
        forward_decode(self, forward, view->page_table, view->seq_lens,
                       view->bs * backend_slots_entries(base),
                       decode_rows(base, forward, view->bs));
        return;
    }
    const backend_prefill_t *meta = &self->slots.forward_prefill_metadata;
    require(meta->page_table != NULL);
    uint32_t decodes = meta->bs - meta->num_extends;
    bool is_suffix = forward->suffix_cu_lens != NULL;
    uint32_t extend_rows = is_suffix ? forward->suffix_extend_rows : meta->extend_tokens;
    require(forward->rows == extend_rows + decodes * base->options.width);
    if (meta->num_extends > 0) {
        kern_attention_extend_args_t args = {
            .cache = cache_of(self, forward, meta->page_table),
            .q = forward->q,
            .q_stride = forward->q_stride,
            .cu_q = is_suffix ? forward->suffix_cu_lens : meta->extend_cu_lens,
            .seq_lens = meta->seq_lens,
            .request_count = meta->num_extends,
            .row_count = extend_rows,
            .output = forward->output,
            .output_stride = forward->output_stride,
            .output_form = forward->output_form,
            .output_first = 0,
            .output_rows = forward->output_rows != 0 ? forward->output_rows : forward->rows,
        };
        device_ops(base->options.device)->attention_extend(base->options.stream, &args);
    }
    if (decodes > 0) {
        forward_decode(self, forward,
                       meta->page_table + (size_t)meta->num_extends * base->page_count_max,
                       meta->seq_lens + meta->num_extends, decodes, base->options.width);
    }
}

static void
mha_set_draft_seq_lens(backend_leaf_t *base, const int32_t *seq_lens, int32_t add, uint32_t bs)
{
    backend_slots_set_draft_seq_lens(&((mha_t *)base)->slots, base, seq_lens, add, bs);
}

static void
mha_visit(const backend_leaf_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    backend_slots_visit(&((const mha_t *)base)->slots, base, bs, visit, context);
}

static void
mha_visit_step(const backend_leaf_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    backend_slots_visit_step(&((const mha_t *)base)->slots, base, bs, visit, context);
}

static const backend_leaf_vtable_t mha_vtable = {
    .destroy = mha_destroy,
    .validate = mha_validate,
    .bind = mha_bind,
    .init_graph_state = mha_init_graph_state,
    .init_forward_metadata = mha_init_forward,
    .refresh_decode_metadata = mha_refresh,
    .capture_forward_metadata = NULL,
    .set_request_slots = NULL,
    .forward = mha_forward,
    .set_draft_seq_lens = mha_set_draft_seq_lens,
    .visit_decode_slot = mha_visit,
    .visit_step_spans = mha_visit_step,
};

proto_status_t
backend_mha_new(const backend_options_t *options, uint32_t group, uint32_t granularity,
                uint32_t page_size, backend_leaf_t **out_p)
{
    require(page_size > 0);
    require(granularity % page_size == 0);
    require(options->width >= 1);
    mha_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base = (backend_leaf_t){
        .vtable = &mha_vtable,
        .name = "mha",
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
