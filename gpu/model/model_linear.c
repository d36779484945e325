/* Recurrent layers: loading and launching. */
#include "model_linear.h"

#include <math.h>
#include <stdlib.h>

#include "proto_require.h"

enum { LINEAR_HEADS_MAX = 256 };

static size_t
value_size(const file_config_t *c)
{
    return (size_t)c->linear_value_head_count * c->linear_value_head_dim;
}

model_linear_rows_t
model_linear_rows_lay_out(const model_t *self, uint8_t *memory, uint32_t rows)
{
    const file_config_t *c = &self->config;
    model_linear_rows_t w = {0};
    bool has_linear = false;
    for (uint32_t i = 0; i < c->layer_count; i++) {
        has_linear = has_linear || c->layer_kinds[i] == FILE_LAYER_LINEAR;
    }
    if (!has_linear) {
        return w;
    }
    size_t channels = file_config_linear_channels(c);
    size_t values = value_size(c);
    size_t normed_bytes =
        device_form_size_bytes(self->device, KERN_FORM_OPERAND, rows, (uint32_t)values);
    struct {
        float **pointer_p;
        size_t size_bytes;
    } parts[] = {
        {&w.qkv, rows * channels * sizeof(float)},
        {&w.mixed, rows * channels * sizeof(float)},
        {&w.z, rows * values * sizeof(float)},
        {&w.core, rows * values * sizeof(float)},
        {&w.normed, normed_bytes},
        {&w.a, (size_t)rows * c->linear_value_head_count * sizeof(float)},
        {&w.b, (size_t)rows * c->linear_value_head_count * sizeof(float)},
    };
    size_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t size_bytes = parts[i].size_bytes + DEVICE_MEMORY_ALIGN - 1;
        *parts[i].pointer_p = memory == NULL ? NULL : (float *)(void *)(memory + at);
        at += size_bytes / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
    }
    size_t cols_max = values > c->hidden_size ? values : c->hidden_size;
    w.workspace = memory == NULL ? NULL : memory + at;
    w.workspace_bytes = kern_linear_workspace_size_bytes(rows, (uint32_t)cols_max);
    w.total_bytes = at + w.workspace_bytes;
    return w;
}

/* ---- loading ----------------------------------------------------------------------------------
 */

/* Stored [channels][taps]; the kernels read a tap of all channels at once. */
static proto_status_t
load_taps(model_weights_t *weights, const file_config_t *c, uint32_t layer, const float **out)
{
    file_tensor_t stored;
    proto_status_t status = file_model_tensor(weights->file, FILE_ROLE_LINEAR_CONV, layer, &stored);
    if (status != STATUS_OK) {
        return status;
    }
    kern_type_t type = model_weights_type(stored.dtype);
    size_t stride = kern_type_row_size_bytes(type, stored.cols);
    uint32_t count = stored.rows * stored.cols;
    float *values = malloc(count * sizeof *values);
    if (values == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    float taps[KERN_CONV_WIDTH_MAX];
    require(c->linear_conv_width <= KERN_CONV_WIDTH_MAX);
    for (uint32_t channel = 0; channel < stored.rows; channel++) {
        kern_type_row_to_float(type, (const uint8_t *)stored.data + channel * stride, stored.cols,
                               taps);
        for (uint32_t tap = 0; tap < stored.cols; tap++) {
            values[(size_t)tap * stored.rows + channel] = taps[tap];
        }
    }
    status = model_weights_floats(weights, values, count, out);
    free(values);
    if (status == STATUS_OK) {
        model_weights_note(weights, &stored, count * sizeof *values, true);
    }
    return status;
}

/* exp(A_log), once and for all. */
static proto_status_t
load_rate(model_weights_t *weights, const file_config_t *c, uint32_t layer, const float **out)
{
    float rates[LINEAR_HEADS_MAX];
    uint32_t heads = c->linear_value_head_count;
    if (heads > LINEAR_HEADS_MAX) {
        return STATUS_ERR_UNSUPPORTED;
    }
    proto_status_t status =
        model_weights_values(weights, FILE_ROLE_LINEAR_A_LOG, layer, heads, rates);
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < heads; i++) {
        rates[i] = expf(rates[i]);
    }
    return model_weights_floats(weights, rates, heads, out);
}

proto_status_t
model_linear_load(model_weights_t *weights, const file_config_t *c, uint32_t layer,
                  model_linear_t *out)
{
    if (c->linear_key_head_dim > KERN_GDN_DIM_MAX || c->linear_value_head_dim > KERN_GDN_DIM_MAX ||
        c->linear_conv_width > KERN_CONV_WIDTH_MAX) {
        return STATUS_ERR_UNSUPPORTED;
    }
    const struct {
        file_role_t role;
        kern_weight_t *out;
    } matrices[] = {
        {FILE_ROLE_LINEAR_QKV, &out->qkv}, {FILE_ROLE_LINEAR_Z, &out->z},
        {FILE_ROLE_LINEAR_A, &out->a},     {FILE_ROLE_LINEAR_B, &out->b},
        {FILE_ROLE_LINEAR_OUT, &out->out},
    };
    proto_status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof matrices / sizeof *matrices; i++) {
        status = model_weights_matrix(weights, matrices[i].role, layer, matrices[i].out);
    }
    if (status == STATUS_OK) {
        status = load_taps(weights, c, layer, &out->conv);
    }
    if (status == STATUS_OK) {
        status = load_rate(weights, c, layer, &out->rate);
    }
    if (status == STATUS_OK) {
        status = model_weights_vector(weights, FILE_ROLE_LINEAR_DT_BIAS, layer,
                                      c->linear_value_head_count, 0.0f, &out->dt_bias);
    }
    if (status == STATUS_OK) {
        status = model_weights_vector(weights, FILE_ROLE_LINEAR_NORM, layer,
                                      c->linear_value_head_dim, 0.0f, &out->norm);
    }
    return status;
}

/* ---- launches ---------------------------------------------------------------------------------
 */

/* Up to two products of the same rows. */
static void
launch_products(const model_t *self, const model_context_t *context, const model_linear_rows_t *own,
                const float *input, const kern_weight_t *weights[2], float *outputs[2])
{
    kern_linear_args_t args = {
        .input = input,
        .input_stride = weights[0]->cols,
        .rows = context->rows,
        .workspace = own->workspace,
        .workspace_size_bytes = own->workspace_bytes,
        .activations = self->activations,
    };
    for (uint32_t i = 0; i < 2 && weights[i] != NULL; i++) {
        args.weights[i] = *weights[i];
        args.outputs[i] = outputs[i];
        args.output_strides[i] = weights[i]->rows;
        args.weight_count++;
    }
    device_ops(self->device)->linear(context->stream, &args);
}

typedef struct {
    const model_linear_t *layer;
    model_linear_rows_t own;
    uint32_t index;
} recurrent_args_t;

static void
run_recurrent(const model_t *self, const model_context_t *context, const void *args)
{
    const recurrent_args_t *a = args;
    const file_config_t *c = &self->config;
    size_t channels = file_config_linear_channels(c);
    backend_recurrent_t forward = {
        .layer = a->index,
        .mode = context->mode,
        .rows = context->rows,
        .qkv = a->own.qkv,
        .qkv_stride = channels,
        .mixed = a->own.mixed,
        .mixed_stride = channels,
        .a = a->own.a,
        .a_stride = c->linear_value_head_count,
        .b = a->own.b,
        .b_stride = c->linear_value_head_count,
        .conv_weight = a->layer->conv,
        .rate = a->layer->rate,
        .dt_bias = a->layer->dt_bias,
        .output = a->own.core,
        .output_stride = value_size(c),
    };
    backend_forward_recurrent(context->backend, &forward);
}

static void
launch_gated_norm(const model_t *self, const model_context_t *context, const model_linear_t *layer,
                  const model_linear_rows_t *own)
{
    const file_config_t *c = &self->config;
    kern_gated_norm_args_t args = {
        .input = own->core,
        .input_stride = value_size(c),
        .gate = own->z,
        .gate_stride = value_size(c),
        .weight = layer->norm,
        .output = own->normed,
        .output_stride = value_size(c),
        .output_form = KERN_FORM_OPERAND,
        .rows = context->rows,
        .heads = c->linear_value_head_count,
        .head_dim = c->linear_value_head_dim,
        .epsilon = c->rms_eps,
    };
    device_ops(self->device)->gated_norm(context->stream, &args);
}

void
model_launch_linear(const model_t *self, const model_context_t *context,
                    const model_linear_t *layer, const model_rows_t *rows,
                    const model_linear_rows_t *own, uint32_t index)
{
    const kern_weight_t *wide[2] = {&layer->qkv, &layer->z};
    float *wide_outputs[2] = {own->qkv, own->z};
    const kern_weight_t *narrow[2] = {&layer->a, &layer->b};
    float *narrow_outputs[2] = {own->a, own->b};
    const kern_weight_t *back[2] = {&layer->out, NULL};
    float *back_outputs[2] = {rows->delta, NULL};
    launch_products(self, context, own, rows->normed, wide, wide_outputs);
    launch_products(self, context, own, rows->normed, narrow, narrow_outputs);
    recurrent_args_t args = {.layer = layer, .own = *own, .index = index};
    model_break_t part = {
        .run = run_recurrent,
        .args = &args,
        .args_size_bytes = sizeof args,
        .output = own->core,
        .output_stride = value_size(&self->config),
    };
    model_break(self, context, &part);
    launch_gated_norm(self, context, layer, own);
    launch_products(self, context, own, own->normed, back, back_outputs);
    model_launch_reduce(self, context, rows);
}
