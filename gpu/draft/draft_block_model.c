/* The two forwards of a block drafter. */
#include <stdlib.h>
#include <string.h>

#include "draft_block.h"
#include "proto_require.h"

typedef struct {
    draft_model_t draft; /* first */
    kern_weight_t fc;
    const float *context_norm;
    kern_weight_t markov_in; /* DSPARK */
    kern_weight_t markov_out;
    uint32_t markov_rank;                             /* 0 = no Markov head */
    kern_weight_t fc_parts[FILE_DRAFT_TAP_COUNT_MAX]; /* by tap */
} block_t;

typedef struct {
    model_rows_t w;
    float *fused;  /* [rows][hidden] */
    float *normed; /* [rows][hidden]: the context */
    float *markov; /* [rows][rank] */
    size_t total_bytes;
} parts_t;

static parts_t
lay_out(const block_t *self, uint8_t *memory, uint32_t rows, uint32_t logit_rows)
{
    const model_t *base = &self->draft.base;
    size_t hidden = base->config.hidden_size;
    parts_t p = {.w = model_rows_lay_out(base, memory, rows, logit_rows)};
    draft_arena_t arena = {memory, p.w.total_bytes};
    p.fused = draft_arena_take(&arena, rows, hidden);
    p.normed = draft_arena_take(&arena, rows, hidden);
    p.markov = draft_arena_take(&arena, rows, self->markov_rank);
    uint32_t cols = self->fc.cols > self->markov_rank ? self->fc.cols : self->markov_rank;
    size_t bytes = kern_linear_workspace_size_bytes(rows, cols);
    if (bytes > p.w.linear_workspace_bytes) {
        p.w.linear_workspace = draft_arena_take(&arena, 1, bytes / sizeof(float) + 1);
        p.w.linear_workspace_bytes = bytes;
    }
    p.total_bytes = arena.used_bytes;
    return p;
}

static size_t
block_workspace_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return lay_out((const block_t *)base, NULL, rows, logit_rows).total_bytes;
}

/* Keys and values of a context where the round's rows are. */
static void
write_context(const block_t *self, const model_context_t *context, const parts_t *p, uint32_t index)
{
    const model_t *base = &self->draft.base;
    const file_config_t *c = &base->config;
    const model_layer_t *layer = &self->draft.layers[index];
    model_projection_t project = {
        .input = p->normed,
        .rows = context->rows,
        .count = 2,
        .weights = {layer->k, layer->v},
        .biases = {layer->k_bias, layer->v_bias},
        .outputs = {p->w.k, p->w.v},
    };
    model_launch_project(base, context, &p->w, &project);
    cache_field_view_t k;
    cache_field_view_t v;
    proto_status_t status = cache_pool_field(&context->backend->pool, index, CACHE_FIELD_K, &k);
    require(status == STATUS_OK);
    status = cache_pool_field(&context->backend->pool, index, CACHE_FIELD_V, &v);
    require(status == STATUS_OK);
    kern_rope_kv_write_args_t args = {
        .k = p->w.k,
        .k_stride = layer->k.rows,
        .v = p->w.v,
        .v_stride = layer->v.rows,
        .rows = context->rows,
        .q_heads = 0,
        .kv_heads = c->kv_head_count,
        .head_dim = c->head_dim,
        .rope_dim = c->rope_dim,
        .interleaved = c->rope_style == FILE_ROPE_INTERLEAVED,
        .angles = p->w.angles[0],
        .k_norm = layer->k_norm,
        .epsilon = c->rms_eps,
        .write_locations = context->draft->locations,
        .k_cache = k.pages,
        .v_cache = v.pages,
        .cache_type = k.dtype == CACHE_DTYPE_F32 ? KERN_TYPE_F32 : KERN_TYPE_F16,
        .slot_count = cache_pool_slot_count(&context->backend->pool, &k),
    };
    device_ops(base->device)->rope_kv_write(context->stream, &args);
}

static void
inject(const block_t *self, const model_context_t *context, const parts_t *p)
{
    const model_t *base = &self->draft.base;
    const model_draft_io_t *io = context->draft;
    uint32_t hidden = base->config.hidden_size;
    require(io->locations != NULL);
    require(io->hidden_stride == (io->is_projected ? hidden : self->fc.cols));
    const float *fused = io->hidden;
    if (!io->is_projected) {
        draft_product_t fuse = {.input = io->hidden,
                                .rows = context->rows,
                                .weight = self->fc,
                                .output = p->fused,
                                .output_stride = hidden};
        draft_launch_product(base, context, &p->w, &fuse);
        fused = p->fused;
    }
    draft_norm_t norm = {fused, hidden, self->context_norm, p->normed, hidden, context->rows};
    draft_launch_norm(base, context, &norm);
    model_launch_angles(base, context, self->draft.frequencies, p->w.angles[0]);
    for (uint32_t i = 0; i < base->config.layer_count; i++) {
        write_context(self, context, p, i);
    }
}

static float *
block_forward(model_t *base, const model_context_t *context)
{
    const block_t *self = (const block_t *)base;
    require(context->draft != NULL);
    parts_t p = lay_out(self, context->workspace, context->rows, context->logit_rows);
    if (context->draft->is_taps) {
        inject(self, context, &p);
        return NULL;
    }
    model_launch_embed(base, context, &self->draft.ends, &p.w);
    model_launch_angles(base, context, self->draft.frequencies, p.w.angles[0]);
    for (uint32_t i = 0; i < base->config.layer_count; i++) {
        const model_layer_t *layer = &self->draft.layers[i];
        model_launch_norm(base, context, p.w.x, i == 0 ? NULL : p.w.delta, layer->attn_norm,
                          p.w.normed);
        model_launch_attention(base, context, layer, &p.w, i, p.w.angles[0]);
        model_launch_norm(base, context, p.w.x, p.w.delta, layer->ffn_norm, p.w.normed);
        model_launch_ffn(base, context, layer, &p.w);
    }
    model_launch_logits(base, context, &self->draft.ends, &p.w, p.w.delta);
    return p.w.logits;
}

void
draft_block_launch_markov(const model_t *base, const model_context_t *context,
                          const int32_t *previous, float *logits, size_t stride)
{
    const block_t *self = (const block_t *)base;
    require(self->markov_rank > 0);
    /* The forward's own layout, so that the logits stay where they are. */
    parts_t p = lay_out(self, context->workspace, context->rows, context->logit_rows);
    uint32_t bs = context->draft->live_count;
    kern_embed_args_t embed = {
        .table = self->markov_in,
        .tokens = previous,
        .rows = bs,
        .scale = 1.0f,
        .output = p.markov,
        .output_stride = self->markov_rank,
    };
    device_ops(base->device)->embed(context->stream, &embed);
    draft_product_t out = {.input = p.markov,
                           .rows = bs,
                           .weight = self->markov_out,
                           .output = logits,
                           .output_stride = stride,
                           .accumulates = true};
    draft_launch_product(base, context, &p.w, &out);
}

kern_weight_t
draft_block_fc_part(const model_t *base, uint32_t tap)
{
    require(tap < FILE_DRAFT_TAP_COUNT_MAX);
    return ((const block_t *)base)->fc_parts[tap];
}

/* A copy of each tap's columns: products take whole rows of a weight. */
static proto_status_t
load_fc_parts(block_t *self, const file_draft_t *draft)
{
    model_weights_t *weights = &self->draft.weights;
    file_tensor_t tensor;
    proto_status_t status = file_model_tensor(weights->file, FILE_ROLE_DRAFT_FC, 0, &tensor);
    if (status != STATUS_OK) {
        return status;
    }
    kern_type_t type = model_weights_type(tensor.dtype);
    size_t element = kern_type_block_size_bytes(type);
    size_t part_bytes = draft->target_hidden_size * element;
    size_t row_bytes = tensor.cols * element;
    uint8_t *copy = malloc(tensor.rows * part_bytes);
    if (copy == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t tap = 0; status == STATUS_OK && tap < draft->tap_count; tap++) {
        for (uint32_t row = 0; row < tensor.rows; row++) {
            memcpy(copy + row * part_bytes,
                   (const uint8_t *)tensor.data + row * row_bytes + tap * part_bytes, part_bytes);
        }
        kern_weight_t *part = &self->fc_parts[tap];
        *part =
            (kern_weight_t){.type = type, .rows = tensor.rows, .cols = draft->target_hidden_size};
        status = model_weights_copy(weights, copy, tensor.rows * part_bytes, &part->data);
    }
    free(copy);
    return status;
}

static void
block_destroy(model_t *base)
{
    block_t *self = (block_t *)base;
    draft_model_fini(&self->draft);
    free(self);
}

static const model_vtable_t block_vtable = {
    .destroy = block_destroy,
    .workspace_bytes = block_workspace_bytes,
    .forward = block_forward,
};

proto_status_t
draft_block_model_new(device_t *device, const file_model_t *file, const file_draft_t *draft,
                      const file_model_t *target, model_t **out_p)
{
    block_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    model_weights_t *weights = &self->draft.weights;
    self->draft.base.vtable = &block_vtable;
    self->markov_rank = draft->kind == FILE_DRAFT_DSPARK ? draft->markov_rank : 0;
    proto_status_t status = draft_model_load(&self->draft, device, file, draft, target);
    if (status == STATUS_OK) {
        status = model_weights_matrix(weights, FILE_ROLE_DRAFT_FC, 0, &self->fc);
    }
    if (status == STATUS_OK) {
        status = load_fc_parts(self, draft);
    }
    if (status == STATUS_OK) {
        status =
            model_weights_vector(weights, FILE_ROLE_DRAFT_CONTEXT_NORM, 0,
                                 self->draft.base.config.hidden_size, 0.0f, &self->context_norm);
    }
    if (status == STATUS_OK && self->markov_rank > 0) {
        status = model_weights_matrix(weights, FILE_ROLE_DRAFT_MARKOV_IN, 0, &self->markov_in);
        if (status == STATUS_OK) {
            status =
                model_weights_matrix(weights, FILE_ROLE_DRAFT_MARKOV_OUT, 0, &self->markov_out);
        }
    }
    if (status != STATUS_OK) {
        block_destroy(&self->draft.base);
        return status;
    }
    *out_p = &self->draft.base;
    return STATUS_OK;
}
