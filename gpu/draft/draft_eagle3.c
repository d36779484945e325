#include "draft_eagle3.h"

#include <stdlib.h>

#include "proto_require.h"

typedef struct {
    draft_model_t draft; /* first */
    kern_weight_t fc;
    const float *hidden_norm;
} eagle3_t;

/* Beside what every model has. */
typedef struct {
    model_rows_t w;
    float *hidden; /* [rows][hidden]: the residual stream */
    float *pair;   /* [rows][2 hidden]: token and hidden, normalised */
    float *live_q; /* [rows][q_size] */
    float *live_x; /* [rows][hidden] */
    size_t total_bytes;
} parts_t;

static parts_t
lay_out(const eagle3_t *self, uint8_t *memory, uint32_t rows, uint32_t logit_rows)
{
    const model_t *base = &self->draft.base;
    const file_config_t *c = &base->config;
    parts_t p = {.w = model_rows_lay_out(base, memory, rows, logit_rows)};
    draft_arena_t arena = {memory, p.w.total_bytes};
    uint32_t q_size = c->head_count * c->head_dim;
    p.hidden = draft_arena_take(&arena, rows, c->hidden_size);
    p.pair = draft_arena_take(&arena, rows, 2 * (size_t)c->hidden_size);
    p.live_q = draft_arena_take(&arena, rows, q_size);
    p.live_x = draft_arena_take(&arena, rows, c->hidden_size);
    uint32_t cols = self->fc.cols > 2 * c->hidden_size ? self->fc.cols : 2 * c->hidden_size;
    size_t bytes = kern_linear_workspace_size_bytes(rows, cols);
    if (bytes > p.w.linear_workspace_bytes) {
        p.w.linear_workspace = draft_arena_take(&arena, 1, bytes / sizeof(float) + 1);
        p.w.linear_workspace_bytes = bytes;
    }
    p.total_bytes = arena.used_bytes;
    return p;
}

static size_t
eagle3_workspace_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return lay_out((const eagle3_t *)base, NULL, rows, logit_rows).total_bytes;
}

/* The residual stream and the two halves that attention reads. */
static void
launch_inputs(const eagle3_t *self, const model_context_t *context, const parts_t *p)
{
    const model_t *base = &self->draft.base;
    const model_draft_io_t *io = context->draft;
    uint32_t hidden = base->config.hidden_size;
    if (io->is_taps) {
        require(io->hidden_stride == self->fc.cols);
        draft_product_t fuse = {.input = io->hidden,
                                .rows = context->rows,
                                .weight = self->fc,
                                .output = p->hidden,
                                .output_stride = hidden};
        draft_launch_product(base, context, &p->w, &fuse);
    } else {
        require(io->hidden_stride == hidden);
        kern_copy_args_t copy = {.from = io->hidden,
                                 .to = p->hidden,
                                 .size_bytes = (size_t)context->rows * hidden * sizeof(float)};
        device_ops(base->device)->copy(context->stream, &copy);
    }
    model_launch_embed(base, context, &self->draft.ends, &p->w);
    const draft_norm_t norms[] = {
        {p->w.x, hidden, self->draft.layers[0].attn_norm, p->pair, 2 * (size_t)hidden,
         context->rows},
        {p->hidden, hidden, self->hidden_norm, p->pair + hidden, 2 * (size_t)hidden, context->rows},
    };
    draft_launch_norm(base, context, &norms[0]);
    draft_launch_norm(base, context, &norms[1]);
}

/* Attention of all rows, or of the live ones: p->w.attn and *x_p are of as many rows as go on. */
static uint32_t
launch_attention(const eagle3_t *self, const model_context_t *context, const parts_t *p,
                 float **x_p)
{
    const model_t *base = &self->draft.base;
    const model_draft_io_t *io = context->draft;
    const model_layer_t *layer = &self->draft.layers[0];
    uint32_t q_size = layer->q.rows;
    uint32_t hidden = base->config.hidden_size;
    model_launch_rope_write(base, context, layer, &p->w, 0, p->w.angles[0]);
    *x_p = p->hidden;
    if (io->live_rows == NULL) {
        model_launch_attend(base, context, layer, p->w.q, p->w.attn, 0);
        return context->rows;
    }
    if (io->narrowing != NULL) {
        model_context_t live = *context;
        live.rows = io->live_count;
        draft_launch_gather(base, context, p->w.q, context->rows, q_size, io->live_rows,
                            io->live_count, p->live_q);
        backend_publish_accepted_prefix(io->narrowing);
        model_launch_attend(base, &live, layer, p->live_q, p->w.attn, 0);
    } else {
        model_launch_attend(base, context, layer, p->w.q, p->live_q, 0);
        draft_launch_gather(base, context, p->live_q, context->rows, q_size, io->live_rows,
                            io->live_count, p->w.attn);
    }
    draft_launch_gather(base, context, p->hidden, context->rows, hidden, io->live_rows,
                        io->live_count, p->live_x);
    *x_p = p->live_x;
    return io->live_count;
}

static float *
eagle3_forward(model_t *base, const model_context_t *context)
{
    const eagle3_t *self = (const eagle3_t *)base;
    const model_draft_io_t *io = context->draft;
    const model_layer_t *layer = &self->draft.layers[0];
    uint32_t hidden = base->config.hidden_size;
    require(io != NULL);
    parts_t p = lay_out(self, context->workspace, context->rows, context->logit_rows);
    launch_inputs(self, context, &p);
    model_launch_angles(base, context, self->draft.frequencies, p.w.angles[0]);
    model_projection_t qkv = {
        .input = p.pair,
        .rows = context->rows,
        .count = 3,
        .weights = {layer->q, layer->k, layer->v},
        .biases = {layer->q_bias, layer->k_bias, layer->v_bias},
        .outputs = {p.w.q, p.w.k, p.w.v},
    };
    model_launch_project(base, context, &p.w, &qkv);
    float *x = NULL;
    model_context_t live = *context;
    live.rows = launch_attention(self, context, &p, &x);
    draft_product_t output = {.input = p.w.attn,
                              .rows = live.rows,
                              .weight = layer->o,
                              .output = p.w.delta,
                              .output_stride = hidden};
    draft_launch_product(base, &live, &p.w, &output);
    model_launch_norm(base, &live, x, p.w.delta, layer->ffn_norm, p.w.normed);
    model_launch_ffn(base, &live, layer, &p.w);
    draft_launch_add(base, &live, x, p.w.delta, io->hidden_out);
    if (!io->wants_logits) {
        return NULL;
    }
    require(context->logit_rows == live.rows);
    draft_norm_t last = {io->hidden_out, hidden, self->draft.ends.output_norm,
                         p.w.normed,     hidden, live.rows};
    draft_launch_norm(base, &live, &last);
    draft_product_t head = {.input = p.w.normed,
                            .rows = live.rows,
                            .weight = self->draft.ends.output,
                            .output = p.w.logits,
                            .output_stride = base->config.vocab_size};
    draft_launch_product(base, &live, &p.w, &head);
    return p.w.logits;
}

static void
eagle3_destroy(model_t *base)
{
    eagle3_t *self = (eagle3_t *)base;
    draft_model_fini(&self->draft);
    free(self);
}

static const model_vtable_t eagle3_vtable = {
    .destroy = eagle3_destroy,
    .workspace_bytes = eagle3_workspace_bytes,
    .forward = eagle3_forward,
};

proto_status_t
draft_eagle3_new(device_t *device, const file_model_t *file, const file_draft_t *draft,
                 const file_model_t *target, model_t **out_p)
{
    eagle3_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->draft.base.vtable = &eagle3_vtable;
    proto_status_t status = draft_model_load(&self->draft, device, file, draft, target);
    if (status == STATUS_OK) {
        status = model_weights_matrix(&self->draft.weights, FILE_ROLE_DRAFT_FC, 0, &self->fc);
    }
    if (status == STATUS_OK) {
        status =
            model_weights_vector(&self->draft.weights, FILE_ROLE_DRAFT_HIDDEN_NORM, 0,
                                 self->draft.base.config.hidden_size, 0.0f, &self->hidden_norm);
    }
    if (status != STATUS_OK) {
        eagle3_destroy(&self->draft.base);
        return status;
    }
    *out_p = &self->draft.base;
    return STATUS_OK;
}
