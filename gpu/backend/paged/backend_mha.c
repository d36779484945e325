/* The MHA leaf: paged softmax attention with grouped query heads.
 *
 * Decode slot: page_table_buf and seq_lens_buf, with one view for each bs.  Prefill slot: a table
 * and lengths of its own, so that neither clobbers the other. */
#include <stdlib.h>

#include "backend_leaf.h"
#include "proto_require.h"

typedef struct {
    const int32_t *page_table;
    const int32_t *seq_lens;
    uint32_t bs; /* 0 = not built yet */
} decode_view_t;

typedef struct {
    const int32_t *page_table;
    const int32_t *seq_lens;
    const int32_t *extend_cu_lens;
    uint32_t bs;
    uint32_t num_extends;
    uint32_t extend_tokens;
} prefill_metadata_t;

typedef struct {
    backend_leaf_t base; /* first */
    cache_pool_t pool;
    int32_t *page_table_buf;         /* [bs_max][page_count_max] */
    int32_t *seq_lens_buf;           /* [bs_max] */
    int32_t *prefill_page_table_buf; /* [bs_max][page_count_max] */
    int32_t *prefill_seq_lens_buf;   /* [bs_max] */
    void *workspace;                 /* of the decode kernel */
    size_t workspace_bytes;
    decode_view_t *decode_views_by_bs; /* [bs_max + 1] */
    const decode_view_t *forward_decode_metadata;
    prefill_metadata_t forward_prefill_metadata;
} mha_t;

static void
drop_graph_state(mha_t *self)
{
    device_t *device = self->base.options.device;
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->page_table_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->seq_lens_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->prefill_page_table_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->prefill_seq_lens_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, &self->workspace);
    free(self->decode_views_by_bs);
    self->decode_views_by_bs = NULL;
    self->forward_decode_metadata = NULL;
    self->forward_prefill_metadata = (prefill_metadata_t){0};
}

static void
mha_destroy(backend_leaf_t *base)
{
    mha_t *self = (mha_t *)base;
    drop_graph_state(self);
    free(self);
}

/* Kernel pages from block to block; 0 if the blocks of the group's fields do not lie on one grid of
 * kernel pages, or have more slots than an int32 counts. */
static uint32_t
page_stride_of(const backend_leaf_t *base, const cache_pool_t *pool)
{
    static const cache_field_name_t names[] = {CACHE_FIELD_K, CACHE_FIELD_V};
    uint32_t stride = 0;
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            cache_field_view_t view;
            if (cache_pool_field(pool, layer, names[i], &view) != STATUS_OK ||
                view.group != base->group) {
                continue;
            }
            size_t row = (size_t)view.heads * view.head_dim * cache_dtype_size_bytes(view.dtype);
            size_t page = base->page_size * row;
            size_t pages = view.stride_bytes / page;
            if (view.stride_bytes % page != 0 || (stride != 0 && pages != stride) ||
                pages > INT32_MAX) {
                return 0;
            }
            stride = (uint32_t)pages;
        }
    }
    uint64_t slots = (uint64_t)cache_plan_page_count(pool->plan, base->group) * stride;
    return slots * base->page_size <= INT32_MAX ? stride : 0;
}

static proto_status_t
mha_validate(const backend_leaf_t *base, const cache_pool_t *pool)
{
    static const cache_field_name_t names[] = {CACHE_FIELD_K, CACHE_FIELD_V};
    if (page_stride_of(base, pool) * base->page_size < base->granularity) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
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
    drop_graph_state(self);
    self->pool = *pool;
    base->page_stride = page_stride_of(base, pool);
}

static proto_status_t
mha_init_graph_state(backend_leaf_t *base)
{
    mha_t *self = (mha_t *)base;
    const backend_options_t *options = &base->options;
    drop_graph_state(self);
    size_t table_bytes = (size_t)options->bs_max * base->page_count_max * sizeof(int32_t);
    size_t lens_bytes = options->bs_max * sizeof(int32_t);
    self->workspace_bytes =
        kern_attention_decode_workspace_size_bytes(options->bs_max * options->width,
                                                   options->q_heads, options->head_dim,
                                                   base->page_count_max * base->page_size);
    struct {
        size_t size_bytes;
        void **memory_p;
    } wanted[] = {
        {table_bytes, (void **)&self->page_table_buf},
        {lens_bytes, (void **)&self->seq_lens_buf},
        {table_bytes, (void **)&self->prefill_page_table_buf},
        {lens_bytes, (void **)&self->prefill_seq_lens_buf},
        {self->workspace_bytes + DEVICE_MEMORY_ALIGN, &self->workspace},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        proto_status_t status = device_alloc(options->device, DEVICE_MEMORY_DEVICE,
                                             wanted[i].size_bytes, wanted[i].memory_p);
        if (status != STATUS_OK) {
            drop_graph_state(self);
            return status;
        }
    }
    self->decode_views_by_bs = calloc((size_t)options->bs_max + 1, sizeof(decode_view_t));
    if (self->decode_views_by_bs == NULL) {
        drop_graph_state(self);
        return STATUS_ERR_NO_MEMORY;
    }
    return STATUS_OK;
}

/* The one builder of decode views, for captured and for eager batch sizes. */
static const decode_view_t *
decode_view(mha_t *self, uint32_t bs)
{
    decode_view_t *view = &self->decode_views_by_bs[bs];
    if (view->bs == 0) {
        view->page_table = self->page_table_buf;
        view->seq_lens = self->seq_lens_buf;
        view->bs = bs;
    }
    return view;
}

static void
copy_table(const mha_t *self, const int32_t *from, size_t from_stride, int32_t *to, uint32_t bs)
{
    kern_table_copy_args_t args = {
        .from = from,
        .from_stride = from_stride,
        .to = to,
        .to_stride = self->base.page_count_max,
        .rows = bs,
        .columns = self->base.page_count_max,
    };
    device_ops(self->base.options.device)->table_copy(self->base.options.stream, &args);
}

static void
mha_refresh(backend_leaf_t *base, const backend_leaf_refresh_t *refresh)
{
    mha_t *self = (mha_t *)base;
    copy_table(self, refresh->page_table, refresh->page_table_stride, self->page_table_buf,
               refresh->bs);
    kern_seq_lens_args_t lens = {
        .from = refresh->seq_lens,
        .to = self->seq_lens_buf,
        .bs = refresh->bs,
        .actual_bs = refresh->actual_bs,
        .floor = (int32_t)base->options.width,
    };
    device_ops(base->options.device)->seq_lens(base->options.stream, &lens);
    self->forward_decode_metadata = decode_view(self, refresh->bs);
}

static void
mha_init_forward(backend_leaf_t *base, const backend_leaf_extend_t *extend)
{
    mha_t *self = (mha_t *)base;
    copy_table(self, extend->page_table, extend->page_table_stride, self->prefill_page_table_buf,
               extend->bs);
    kern_seq_lens_args_t lens = {
        .from = extend->seq_lens,
        .to = self->prefill_seq_lens_buf,
        .bs = extend->bs,
        .actual_bs = extend->bs,
        .floor = 1,
    };
    device_ops(base->options.device)->seq_lens(base->options.stream, &lens);
    self->forward_prefill_metadata = (prefill_metadata_t){
        .page_table = self->prefill_page_table_buf,
        .seq_lens = self->prefill_seq_lens_buf,
        .extend_cu_lens = extend->extend_cu_lens,
        .bs = extend->bs,
        .num_extends = extend->num_extends,
        .extend_tokens = extend->extend_tokens,
    };
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
               const int32_t *seq_lens, uint32_t bs)
{
    uint32_t first = forward->rows - bs * self->base.options.width;
    kern_attention_decode_args_t args = {
        .cache = cache_of(self, forward, page_table),
        .q = forward->q + first * forward->q_stride,
        .q_stride = forward->q_stride,
        .seq_lens = seq_lens,
        .bs = bs,
        .rows_per_request = self->base.options.width,
        .output = forward->output,
        .output_stride = forward->output_stride,
        .output_form = forward->output_form,
        .output_first = first,
        .output_rows = forward->rows,
        .workspace = self->workspace,
        .workspace_size_bytes = self->workspace_bytes,
    };
    device_ops(self->base.options.device)->attention_decode(self->base.options.stream, &args);
}

static void
mha_forward(backend_leaf_t *base, const backend_forward_t *forward)
{
    mha_t *self = (mha_t *)base;
    if (forward->mode == BACKEND_MODE_DECODE) {
        const decode_view_t *view = self->forward_decode_metadata;
        require(view != NULL);
        require(forward->rows == view->bs * base->options.width);
        forward_decode(self, forward, view->page_table, view->seq_lens, view->bs);
        return;
    }
    const prefill_metadata_t *meta = &self->forward_prefill_metadata;
    require(meta->page_table != NULL);
    uint32_t decodes = meta->bs - meta->num_extends;
    require(forward->rows == meta->extend_tokens + decodes * base->options.width);
    if (meta->num_extends > 0) {
        kern_attention_extend_args_t args = {
            .cache = cache_of(self, forward, meta->page_table),
            .q = forward->q,
            .q_stride = forward->q_stride,
            .cu_q = meta->extend_cu_lens,
            .seq_lens = meta->seq_lens,
            .request_count = meta->num_extends,
            .row_count = meta->extend_tokens,
            .output = forward->output,
            .output_stride = forward->output_stride,
            .output_form = forward->output_form,
            .output_first = 0,
            .output_rows = forward->rows,
        };
        device_ops(base->options.device)->attention_extend(base->options.stream, &args);
    }
    if (decodes > 0) {
        forward_decode(self, forward,
                       meta->page_table + (size_t)meta->num_extends * base->page_count_max,
                       meta->seq_lens + meta->num_extends, decodes);
    }
}

static void
mha_visit(const backend_leaf_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    const mha_t *self = (const mha_t *)base;
    const decode_view_t *view = &self->decode_views_by_bs[bs];
    if (view->bs == 0) {
        return;
    }
    visit(context, "mha.decode.page_table", view->page_table,
          (size_t)bs * base->page_count_max * sizeof(int32_t));
    visit(context, "mha.decode.seq_lens", view->seq_lens, bs * sizeof(int32_t));
    visit(context, "mha.decode.workspace", self->workspace, self->workspace_bytes);
}

static void
mha_visit_step(const backend_leaf_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    const mha_t *self = (const mha_t *)base;
    visit(context, "mha.decode.page_table", self->page_table_buf,
          (size_t)bs * base->page_count_max * sizeof(int32_t));
    visit(context, "mha.decode.seq_lens", self->seq_lens_buf, bs * sizeof(int32_t));
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
    /* Two steps may be ahead of the last length known: their columns must exist. */
    uint32_t len_max = options->model_len_max + 2 * options->width;
    self->base = (backend_leaf_t){
        .vtable = &mha_vtable,
        .name = "mha",
        .support = {.decode_graph = true, .prefill_graph = true},
        .options = *options,
        .group = group,
        .granularity = granularity,
        .page_size = page_size,
        .page_count_max = (len_max + page_size - 1) / page_size,
    };
    *out_p = &self->base;
    return STATUS_OK;
}
