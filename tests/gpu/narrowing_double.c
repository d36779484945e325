/* A model that narrows, for tests. */
#include "narrowing_double.h"

#include <math.h>
#include <stdlib.h>

#include "model_launch.h"
#include "model_narrowing.h"
#include "model_rope.h"
#include "model_weights.h"

typedef struct {
    model_t base; /* first */
    model_weights_t weights;
    model_ends_t ends;
    model_layer_t *layers; /* [layer_count] */
    const float *frequencies;
    uint32_t encoder_count; /* layers before the narrowing */
} narrowing_llama_t;

/* Written before a model is made, read while one lives. */
static model_narrowing_t narrowing;
static model_vtable_t vtable;

static uint32_t
hidden_cols(const model_t *base)
{
    return base->config.hidden_size;
}

static size_t
stage_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return model_rows_lay_out(base, NULL, rows, logit_rows).total_bytes;
}

static model_rows_t
lay_out(const model_t *base, const model_context_t *context, uint32_t logit_rows, float *x)
{
    model_rows_t w = model_rows_lay_out(base, context->workspace, context->rows, logit_rows);
    w.x = x;
    return w;
}

static void
encoder_forward(model_t *base, const model_context_t *context, float *encoded)
{
    const narrowing_llama_t *self = (const narrowing_llama_t *)base;
    model_rows_t w = lay_out(base, context, 0, encoded);
    model_launch_embed(base, context, &self->ends, &w);
    model_launch_angles(base, context, self->frequencies, w.angles[0]);
    for (uint32_t i = 0; i < self->encoder_count; i++) {
        const model_layer_t *layer = &self->layers[i];
        model_launch_norm(base, context, w.x, i == 0 ? NULL : w.delta, layer->attn_norm, w.normed);
        model_launch_attention(base, context, layer, &w, i, w.angles[0]);
        model_launch_norm(base, context, w.x, w.delta, layer->ffn_norm, w.normed);
        model_launch_ffn(base, context, layer, &w);
    }
    /* Adds the last block's output to the rows that go on. */
    model_launch_norm(base, context, w.x, w.delta, self->layers[0].attn_norm, w.normed);
}

static void
narrowing_forward(model_t *base, const model_context_t *context, const float *encoded, float *state)
{
    uint32_t cols = base->config.hidden_size;
    if (context->view == NULL) {
        kern_copy_args_t copy = {.from = encoded,
                                 .to = state,
                                 .size_bytes = (size_t)context->rows * cols * sizeof *state};
        device_ops(base->device)->copy(context->stream, &copy);
        return;
    }
    kern_gather_rows_args_t gather = {
        .input = encoded,
        .input_stride = cols,
        .input_rows = context->rows,
        .indices = context->view->source_rows,
        .output = state,
        .output_stride = cols,
        .rows = context->view->rows,
        .cols = cols,
    };
    device_ops(base->device)->gather_rows(context->stream, &gather);
}

typedef struct {
    const float *q;
    float *output;
    uint32_t output_rows;
} query_args_t;

static void
run_query(const model_t *base, const model_context_t *context, const void *args)
{
    const narrowing_llama_t *self = (const narrowing_llama_t *)base;
    const query_args_t *a = args;
    uint32_t cols = base->config.head_count * base->config.head_dim;
    backend_forward_t attention = {
        .layer = self->encoder_count - 1,
        .mode = context->mode,
        .q = a->q,
        .q_stride = cols,
        .rows = context->rows,
        .output = a->output,
        .output_stride = cols,
        .output_form = KERN_FORM_OPERAND,
        .output_rows = a->output_rows,
        .scale = (float)(1.0 / sqrt((double)base->config.head_dim)),
        .suffix_cu_lens = context->view == NULL ? NULL : context->view->cu_lens,
        .suffix_extend_rows = context->view == NULL ? 0 : context->view->extend_rows,
    };
    backend_forward(context->backend, &attention);
}

static void
project(const model_t *base, const model_context_t *context, const model_rows_t *w,
        const kern_weight_t *weight, const float *input, float *output)
{
    kern_linear_args_t args = {
        .input = input,
        .input_stride = weight->cols,
        .rows = context->rows,
        .weight_count = 1,
        .weights = {*weight},
        .outputs = {output},
        .output_strides = {weight->rows},
        .workspace = w->linear_workspace,
        .workspace_size_bytes = w->linear_workspace_bytes,
    };
    device_ops(base->device)->linear(context->stream, &args);
}

static void
decoder_forward(model_t *base, const model_context_t *context, float *state)
{
    const narrowing_llama_t *self = (const narrowing_llama_t *)base;
    model_rows_t w = lay_out(base, context, 0, state);
    for (uint32_t i = self->encoder_count; i < base->config.layer_count; i++) {
        const model_layer_t *layer = &self->layers[i];
        bool is_first = i == self->encoder_count;
        model_launch_norm(base, context, w.x, is_first ? NULL : w.delta, layer->attn_norm,
                          w.normed);
        project(base, context, &w, &layer->q, w.normed, w.q);
        query_args_t args = {.q = w.q, .output = w.attn, .output_rows = context->rows};
        model_break_t part = {.run = run_query,
                              .args = &args,
                              .args_size_bytes = sizeof args,
                              .output = w.attn,
                              .output_stride = layer->q.rows,
                              .output_form = KERN_FORM_OPERAND};
        model_break(base, context, &part);
        project(base, context, &w, &layer->o, w.attn, w.delta);
        model_launch_norm(base, context, w.x, w.delta, layer->ffn_norm, w.normed);
        model_launch_ffn(base, context, layer, &w);
    }
    model_launch_norm(base, context, w.x, w.delta, self->layers[0].attn_norm, w.normed);
}

static float *
finish_forward(model_t *base, const model_context_t *context, float *state)
{
    const narrowing_llama_t *self = (const narrowing_llama_t *)base;
    model_rows_t w = lay_out(base, context, context->logit_rows, state);
    model_launch_logits(base, context, &self->ends, &w, NULL);
    return w.logits;
}

static void
destroy(model_t *base)
{
    narrowing_llama_t *self = (narrowing_llama_t *)base;
    model_weights_fini(&self->weights);
    free(self->layers);
    free(self);
}

void
narrowing_double_set_window(uint32_t rows)
{
    narrowing = (model_narrowing_t){
        .decoder_rows_per_request_max = rows,
        .encoded_cols = hidden_cols,
        .state_cols = hidden_cols,
        .stage_bytes = stage_bytes,
        .encoder_forward = encoder_forward,
        .narrowing_forward = narrowing_forward,
        .decoder_forward = decoder_forward,
        .finish_forward = finish_forward,
    };
    vtable = (model_vtable_t){
        .destroy = destroy,
        .workspace_bytes = model_narrowing_workspace_bytes,
        .forward = model_narrowing_forward,
        .narrowing = &narrowing,
    };
}

proto_status_t
narrowing_double_new(device_t *device, const file_model_t *file, model_progress_fn progress,
                     void *progress_context, model_t **out_p)
{
    const file_config_t *config = file_model_config(file);
    narrowing_llama_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.vtable = &vtable;
    self->base.device = device;
    self->base.config = *config;
    self->encoder_count = config->layer_count > 2 ? config->layer_count - 2 : 1;
    self->layers = calloc(config->layer_count, sizeof *self->layers);
    proto_status_t status = self->layers == NULL ? STATUS_ERR_NO_MEMORY
                                                 : model_weights_init(&self->weights, device, file,
                                                                      progress, progress_context);
    if (status != STATUS_OK) {
        free(self->layers);
        free(self);
        return status;
    }
    status = model_ends_load(&self->weights, config, &self->ends);
    if (status == STATUS_OK) {
        status = model_rope_load(&self->weights, config, &self->frequencies);
    }
    for (uint32_t i = 0; status == STATUS_OK && i < config->layer_count; i++) {
        status = model_layer_load(&self->weights, config, i, &self->layers[i]);
    }
    if (status != STATUS_OK) {
        destroy(&self->base);
        return status;
    }
    *out_p = &self->base;
    return STATUS_OK;
}
