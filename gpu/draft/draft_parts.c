#include "draft_parts.h"

#include <stdlib.h>

#include "model_rope.h"
#include "proto_require.h"

static proto_status_t
load_ends(draft_model_t *self, const file_draft_t *draft)
{
    const file_config_t *c = &self->base.config;
    proto_status_t status = model_weights_matrix(draft->has_embed ? &self->weights : &self->lent,
                                                 FILE_ROLE_TOKEN_EMBED, 0, &self->ends.embed);
    if (status == STATUS_OK && !draft->has_embed && self->lent.file != NULL) {
        self->base.config.embed_scale = file_model_config(self->lent.file)->embed_scale;
    }
    if (status == STATUS_OK) {
        status = model_weights_matrix(draft->has_output ? &self->weights : &self->lent,
                                      FILE_ROLE_OUTPUT, 0, &self->ends.output);
    }
    if (status != STATUS_OK) {
        return status;
    }
    status = model_weights_vector(&self->weights, FILE_ROLE_OUTPUT_NORM, 0, c->hidden_size, 0.0f,
                                  &self->ends.output_norm);
    return status == STATUS_ERR_NOT_FOUND ? STATUS_OK : status; /* MTP: one for each depth */
}

proto_status_t
draft_model_load(draft_model_t *self, device_t *device, const file_model_t *file,
                 const file_draft_t *draft, const file_model_t *target)
{
    self->base.device = device;
    self->base.config = *file_model_config(file);
    const file_config_t *c = &self->base.config;
    self->layers = calloc(c->layer_count, sizeof *self->layers);
    if (self->layers == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = model_weights_init(&self->weights, device, file, NULL, NULL);
    if (status == STATUS_OK) {
        status = model_weights_init(&self->lent, device, target, NULL, NULL);
    }
    if (status == STATUS_OK) {
        status = load_ends(self, draft);
    }
    if (status == STATUS_OK) {
        status = model_rope_load(&self->weights, c, &self->frequencies);
    }
    for (uint32_t i = 0; status == STATUS_OK && i < c->layer_count; i++) {
        status = model_layer_load(&self->weights, c, i, &self->layers[i]);
    }
    self->base.weight_bytes = self->weights.weight_bytes + self->lent.weight_bytes;
    self->base.mapped_bytes = self->weights.mapped_bytes;
    return status;
}

void
draft_model_fini(draft_model_t *self)
{
    model_weights_fini(&self->weights);
    model_weights_fini(&self->lent);
    free(self->layers);
    self->layers = NULL;
}

float *
draft_arena_take(draft_arena_t *self, size_t rows, size_t cols)
{
    size_t size_bytes = rows * cols * sizeof(float);
    size_t at = self->used_bytes;
    self->used_bytes +=
        (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
    return self->memory == NULL ? NULL : (float *)(void *)(self->memory + at);
}

void
draft_launch_norm(const model_t *self, const model_context_t *context, const draft_norm_t *norm)
{
    kern_rms_norm_args_t args = {
        .input = (float *)(uintptr_t)norm->input, /* without a residual it is only read */
        .input_stride = norm->input_stride,
        .weight = norm->weight,
        .output = norm->output,
        .output_stride = norm->output_stride,
        .rows = norm->rows,
        .cols = self->config.hidden_size,
        .epsilon = self->config.rms_eps,
        .output_form = KERN_FORM_ROWS,
    };
    device_ops(self->device)->rms_norm(context->stream, &args);
}

void
draft_launch_product(const model_t *self, const model_context_t *context, const model_rows_t *rows,
                     const draft_product_t *product)
{
    kern_linear_args_t args = {
        .input = product->input,
        .input_stride = product->weight.cols,
        .rows = product->rows,
        .weight_count = 1,
        .weights = {product->weight},
        .outputs = {product->output},
        .output_strides = {product->output_stride},
        .accumulate = product->accumulates,
        .workspace = rows->linear_workspace,
        .workspace_size_bytes = rows->linear_workspace_bytes,
        .activations = self->activations,
    };
    device_ops(self->device)->linear(context->stream, &args);
}

void
draft_launch_gather(const model_t *self, const model_context_t *context, const float *input,
                    uint32_t input_rows, uint32_t cols, const int32_t *indices, uint32_t rows,
                    float *output)
{
    kern_gather_rows_args_t args = {
        .input = input,
        .input_stride = cols,
        .input_rows = input_rows,
        .indices = indices,
        .output = output,
        .output_stride = cols,
        .rows = rows,
        .cols = cols,
        .form = KERN_FORM_ROWS,
    };
    device_ops(self->device)->gather_rows(context->stream, &args);
}

void
draft_launch_add(const model_t *self, const model_context_t *context, const float *a,
                 const float *b, float *output)
{
    uint32_t hidden = self->config.hidden_size;
    kern_add_args_t args = {
        .a = a,
        .a_stride = hidden,
        .b = b,
        .b_stride = hidden,
        .output = output,
        .output_stride = hidden,
        .rows = context->rows,
        .cols = hidden,
    };
    device_ops(self->device)->add(context->stream, &args);
}
