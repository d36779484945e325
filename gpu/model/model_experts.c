/* Experts: loading and launching. */
#include "model_experts.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

/* ---- loading --------------------------------------------------------------------------------- */

/* A matrix of every expert as the file has it, and a part of it as the kernels want it. */
typedef struct {
    file_tensor_t stored;
    uint32_t expert_count;
    uint32_t rows;  /* outputs of one expert */
    uint32_t cols;  /* inputs */
    uint32_t first; /* where outputs lie side by side: the first one's column, */
    uint32_t step;  /*   and how far the next is */
} stack_t;

/* Stored [experts][inputs][columns]: outputs become rows. */
static void
turn_over(const stack_t *stack, uint32_t expert, size_t element_size_bytes, uint8_t *out)
{
    const uint8_t *data = stack->stored.data;
    size_t row_size_bytes = stack->stored.cols * element_size_bytes;
    const uint8_t *from = data + (size_t)expert * stack->cols * row_size_bytes;
    for (uint32_t n = 0; n < stack->rows; n++) {
        size_t column = stack->first + (size_t)n * stack->step;
        for (uint32_t k = 0; k < stack->cols; k++) {
            memcpy(out, from + k * row_size_bytes + column * element_size_bytes,
                   element_size_bytes);
            out += element_size_bytes;
        }
    }
}

static void
widen_mxfp4(const stack_t *stack, uint32_t expert, uint16_t *out)
{
    size_t stride = file_dtype_row_size_bytes(stack->stored.dtype, stack->stored.cols);
    const uint8_t *from =
        (const uint8_t *)stack->stored.data + (size_t)expert * stack->rows * stride;
    for (uint32_t row = 0; row < stack->rows; row++) {
        kern_mxfp4_row_to_bf16(from + row * stride, stack->cols, out + (size_t)row * stack->cols);
    }
}

/* Changes one expert after the other on the host, and brings each to the device. */
static proto_status_t
upload_changed(model_weights_t *weights, const stack_t *stack, kern_type_t type, uint8_t *memory)
{
    size_t size_bytes = stack->rows * kern_type_row_size_bytes(type, stack->cols);
    void *changed = malloc(size_bytes);
    proto_status_t status = changed == NULL ? STATUS_ERR_NO_MEMORY : STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < stack->expert_count; i++) {
        if (stack->stored.dtype == FILE_DTYPE_MXFP4) {
            widen_mxfp4(stack, i, changed);
        } else {
            turn_over(stack, i, kern_type_block_size_bytes(type), changed);
        }
        status = device_upload(weights->device, memory + i * size_bytes, changed, size_bytes);
    }
    free(changed);
    return status;
}

static kern_expert_weight_t
describe(const stack_t *stack, const void *data, kern_type_t type)
{
    return (kern_expert_weight_t){
        .data = data,
        .type = type,
        .rows = stack->rows,
        .cols = stack->cols,
        .expert_stride_bytes = stack->rows * kern_type_row_size_bytes(type, stack->cols),
        .bias = NULL,
    };
}

/* Used in place, unless the device has memory of its own. */
static proto_status_t
take_stored(model_weights_t *weights, const stack_t *stack, kern_type_t type,
            kern_expert_weight_t *out)
{
    const file_tensor_t *stored = &stack->stored;
    const void *data = stored->data;
    uint64_t free_bytes = 0;
    bool is_copied =
        device_memory_free_bytes(weights->device, &free_bytes) != STATUS_ERR_UNSUPPORTED;
    if (is_copied) {
        proto_status_t status = model_weights_copy(weights, data, stored->size_bytes, &data);
        if (status != STATUS_OK) {
            return status;
        }
    }
    *out = describe(stack, data, type);
    model_weights_note(weights, stored, is_copied ? stored->size_bytes : 0, is_copied);
    return STATUS_OK;
}

/* `step` 0: stored as the kernels want it. */
static proto_status_t
load_stack(model_weights_t *weights, file_role_t role, uint32_t layer, stack_t *stack,
           kern_expert_weight_t *out)
{
    proto_status_t status = file_model_tensor(weights->file, role, layer, &stack->stored);
    if (status != STATUS_OK) {
        return status;
    }
    const file_tensor_t *stored = &stack->stored;
    bool is_mxfp4 = stored->dtype == FILE_DTYPE_MXFP4;
    kern_type_t type = is_mxfp4 ? KERN_TYPE_BF16 : model_weights_type(stored->dtype);
    if (stack->step == 0 && !is_mxfp4) {
        return take_stored(weights, stack, type, out);
    }
    if (is_mxfp4 && stack->step != 0) {
        return STATUS_ERR_UNSUPPORTED;
    }
    size_t row_size_bytes = kern_type_row_size_bytes(type, stack->cols);
    size_t rows = (size_t)stack->expert_count * stack->rows;
    void *memory = NULL;
    status = model_weights_alloc(weights, rows * row_size_bytes, &memory);
    if (status != STATUS_OK) {
        return status;
    }
    status = upload_changed(weights, stack, type, memory);
    if (status != STATUS_OK) {
        return status;
    }
    *out = describe(stack, memory, type);
    model_weights_note(weights, stored, rows * row_size_bytes, true);
    return STATUS_OK;
}

/* The biases of every expert; of each row every `step`th from `first` on. */
static proto_status_t
load_biases(model_weights_t *weights, file_role_t role, uint32_t layer, uint32_t first,
            uint32_t step, const float **out)
{
    file_tensor_t stored;
    proto_status_t status = file_model_tensor(weights->file, role, layer, &stored);
    if (status != STATUS_OK) {
        return status;
    }
    kern_type_t type = model_weights_type(stored.dtype);
    size_t stride = kern_type_row_size_bytes(type, stored.cols);
    uint32_t count = stored.cols / step;
    float *values = malloc((size_t)stored.rows * stored.cols * sizeof *values);
    if (values == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t row = 0; row < stored.rows; row++) {
        /* The end of the memory is the scratch of the row: it lies behind what is kept of it. */
        float *whole = values + (size_t)row * count;
        kern_type_row_to_float(type, (const uint8_t *)stored.data + row * stride, stored.cols,
                               whole);
        for (uint32_t i = 0; i < count; i++) {
            whole[i] = whole[first + (size_t)i * step];
        }
    }
    const void *copy = NULL;
    size_t size_bytes = (size_t)stored.rows * count * sizeof *values;
    status = model_weights_copy(weights, values, size_bytes, &copy);
    if (status == STATUS_OK) {
        model_weights_note(weights, &stored, size_bytes, true);
        *out = copy;
    }
    free(values);
    return status;
}

/* Gate and up of a folder lie in one matrix, by turns. */
static proto_status_t
load_fused(model_weights_t *weights, const file_config_t *c, uint32_t layer, model_experts_t *out)
{
    kern_expert_weight_t *halves[2] = {&out->gate, &out->up};
    for (uint32_t i = 0; i < 2; i++) {
        stack_t stack = {.expert_count = c->expert_count,
                         .rows = c->expert_ffn_size,
                         .cols = c->hidden_size,
                         .first = i,
                         .step = 2};
        proto_status_t status =
            load_stack(weights, FILE_ROLE_EXPERT_GATE_UP, layer, &stack, halves[i]);
        if (status == STATUS_OK) {
            status =
                load_biases(weights, FILE_ROLE_EXPERT_GATE_UP_BIAS, layer, i, 2, &halves[i]->bias);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
load_apart(model_weights_t *weights, const file_config_t *c, uint32_t layer, model_experts_t *out)
{
    const struct {
        file_role_t role;
        file_role_t bias;
        kern_expert_weight_t *out;
    } halves[2] = {{FILE_ROLE_EXPERT_GATE, FILE_ROLE_EXPERT_GATE_BIAS, &out->gate},
                   {FILE_ROLE_EXPERT_UP, FILE_ROLE_EXPERT_UP_BIAS, &out->up}};
    for (uint32_t i = 0; i < 2; i++) {
        stack_t stack = {.expert_count = c->expert_count,
                         .rows = c->expert_ffn_size,
                         .cols = c->hidden_size};
        proto_status_t status = load_stack(weights, halves[i].role, layer, &stack, halves[i].out);
        if (status == STATUS_OK) {
            status = load_biases(weights, halves[i].bias, layer, 0, 1, &halves[i].out->bias);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* One matrix of every expert, each of which is a tensor of its own. */
static proto_status_t
load_gathered(model_weights_t *weights, file_role_t role, uint32_t layer, stack_t *stack,
              kern_expert_weight_t *out)
{
    proto_status_t status = file_model_expert(weights->file, role, layer, 0, &stack->stored);
    if (status != STATUS_OK) {
        return status;
    }
    file_dtype_t dtype = stack->stored.dtype;
    size_t size_bytes = stack->stored.size_bytes;
    void *memory = NULL;
    if (file_dtype_block_length(dtype) != 1) {
        return STATUS_ERR_UNSUPPORTED;
    }
    status = model_weights_alloc(weights, stack->expert_count * size_bytes, &memory);
    for (uint32_t i = 0; status == STATUS_OK && i < stack->expert_count; i++) {
        status = file_model_expert(weights->file, role, layer, i, &stack->stored);
        if (status == STATUS_OK && stack->stored.dtype != dtype) {
            status = STATUS_ERR_UNSUPPORTED;
        }
        if (status == STATUS_OK) {
            status = device_upload(weights->device, (uint8_t *)memory + i * size_bytes,
                                   stack->stored.data, size_bytes);
        }
        if (status == STATUS_OK) {
            model_weights_note(weights, &stack->stored, size_bytes, true);
        }
    }
    if (status == STATUS_OK) {
        *out = describe(stack, memory, model_weights_type(dtype));
    }
    return status;
}

static proto_status_t
load_all_gathered(model_weights_t *weights, const file_config_t *c, uint32_t layer,
                  model_experts_t *out)
{
    const struct {
        file_role_t role;
        uint32_t rows;
        uint32_t cols;
        kern_expert_weight_t *out;
    } matrices[] = {
        {FILE_ROLE_EXPERT_GATE, c->expert_ffn_size, c->hidden_size, &out->gate},
        {FILE_ROLE_EXPERT_UP, c->expert_ffn_size, c->hidden_size, &out->up},
        {FILE_ROLE_EXPERT_DOWN, c->hidden_size, c->expert_ffn_size, &out->down},
    };
    proto_status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof matrices / sizeof *matrices; i++) {
        stack_t stack = {.expert_count = c->expert_count,
                         .rows = matrices[i].rows,
                         .cols = matrices[i].cols};
        status = load_gathered(weights, matrices[i].role, layer, &stack, matrices[i].out);
    }
    return status;
}

static proto_status_t
load_router(model_weights_t *weights, const file_config_t *c, uint32_t layer, model_experts_t *out)
{
    proto_status_t status = model_weights_matrix(weights, FILE_ROLE_ROUTER, layer, &out->router);
    if (status != STATUS_OK) {
        return status;
    }
    if (c->has_sigmoid_router) {
        return model_weights_vector(weights, FILE_ROLE_ROUTER_SELECT_BIAS, layer, c->expert_count,
                                    0.0f, &out->select_bias);
    }
    return c->has_router_bias ? model_weights_vector(weights, FILE_ROLE_ROUTER_BIAS, layer,
                                                     c->expert_count, 0.0f, &out->router_bias)
                              : STATUS_OK;
}

static proto_status_t
load_shared(model_weights_t *weights, const file_config_t *c, uint32_t layer, model_ffn_t *out)
{
    if (c->shared_ffn_size == 0) {
        return STATUS_OK;
    }
    out->accumulates = !c->has_shared_scale; /* else it is weighed first */
    proto_status_t status = model_weights_matrix(weights, FILE_ROLE_SHARED_GATE, layer, &out->gate);
    if (status == STATUS_OK) {
        status = model_weights_matrix(weights, FILE_ROLE_SHARED_UP, layer, &out->up);
    }
    return status == STATUS_OK
               ? model_weights_matrix(weights, FILE_ROLE_SHARED_DOWN, layer, &out->down)
               : status;
}

/* Stored as stacks: fused ones turned over. */
static proto_status_t
load_stacks(model_weights_t *weights, const file_config_t *c, uint32_t layer, model_experts_t *out)
{
    proto_status_t status = c->has_fused_experts ? load_fused(weights, c, layer, out)
                                                 : load_apart(weights, c, layer, out);
    if (status != STATUS_OK) {
        return status;
    }
    stack_t down = {.expert_count = c->expert_count,
                    .rows = c->hidden_size,
                    .cols = c->expert_ffn_size,
                    .step = c->has_fused_experts ? 1 : 0};
    status = load_stack(weights, FILE_ROLE_EXPERT_DOWN, layer, &down, &out->down);
    return status == STATUS_OK
               ? load_biases(weights, FILE_ROLE_EXPERT_DOWN_BIAS, layer, 0, 1, &out->down.bias)
               : status;
}

proto_status_t
model_experts_load(model_weights_t *weights, const file_config_t *c, uint32_t layer,
                   model_experts_t *out)
{
    if (c->hidden_size > KERN_MOE_COLS_MAX || c->expert_ffn_size > KERN_MOE_COLS_MAX ||
        c->expert_count > KERN_MOE_EXPERTS_MAX || c->expert_used_count > KERN_MOE_TOP_K_MAX) {
        return STATUS_ERR_UNSUPPORTED;
    }
    proto_status_t status = load_router(weights, c, layer, out);
    if (status == STATUS_OK) {
        status = c->has_apart_experts ? load_all_gathered(weights, c, layer, out)
                                      : load_stacks(weights, c, layer, out);
    }
    if (status == STATUS_OK) {
        status = load_shared(weights, c, layer, &out->shared);
    }
    if (status == STATUS_OK && c->has_shared_scale) {
        status = model_weights_matrix(weights, FILE_ROLE_SHARED_SCALE, layer, &out->shared_scale);
    }
    if (status == STATUS_OK && out->gate.type != out->up.type) {
        status = STATUS_ERR_UNSUPPORTED;
    }
    return status;
}

/* ---- launches -------------------------------------------------------------------------------- */

static void
launch_router(const model_t *self, const model_context_t *context, const model_experts_t *experts,
              const model_rows_t *rows)
{
    const file_config_t *c = &self->config;
    model_projection_t logits = {
        .input = rows->normed,
        .rows = context->rows,
        .count = 1,
        .weights = {experts->router},
        .biases = {experts->router_bias},
        .outputs = {rows->router_logits},
    };
    model_launch_project(self, context, rows, &logits);
    kern_moe_route_args_t route = {
        .logits = rows->router_logits,
        .logit_stride = c->expert_count,
        .rows = context->rows,
        .expert_count = c->expert_count,
        .top_k = c->expert_used_count,
        .scoring = c->has_sigmoid_router ? KERN_MOE_SIGMOID : KERN_MOE_SOFTMAX,
        .select_bias = experts->select_bias,
        .group_count = c->expert_group_count,
        .group_used_count = c->expert_group_used_count,
        .is_normalised = c->has_normed_weights,
        .weight_scale = (float)c->expert_scale,
        .experts = rows->pair_experts,
        .weights = rows->pair_weights,
        .order = rows->pair_order,
        .offsets = rows->expert_offsets,
    };
    device_ops(self->device)->moe_route(context->stream, &route);
}

/* delta += sigmoid(normed . scale) * shared(normed).  The sigmoid and the product are those of a
 * mixture of one expert. */
static void
launch_weighed(const model_t *self, const model_context_t *context, const model_experts_t *experts,
               const model_rows_t *rows)
{
    const file_config_t *c = &self->config;
    model_projection_t logits = {
        .input = rows->normed,
        .rows = context->rows,
        .count = 1,
        .weights = {experts->shared_scale},
        .outputs = {rows->router_logits},
    };
    model_launch_project(self, context, rows, &logits);
    kern_moe_route_args_t route = {
        .logits = rows->router_logits,
        .logit_stride = 1,
        .rows = context->rows,
        .expert_count = 1,
        .top_k = 1,
        .scoring = KERN_MOE_SIGMOID,
        .weight_scale = 1.0f,
        .experts = rows->pair_experts,
        .weights = rows->pair_weights,
        .order = rows->pair_order,
        .offsets = rows->expert_offsets,
    };
    device_ops(self->device)->moe_route(context->stream, &route);
    model_rows_t apart = *rows;
    apart.delta = rows->shared;
    model_launch_gated(self, context, &experts->shared, &apart);
    kern_moe_combine_args_t weigh = {
        .input = rows->shared,
        .input_stride = c->hidden_size,
        .weights = rows->pair_weights,
        .rows = context->rows,
        .top_k = 1,
        .cols = c->hidden_size,
        .output = rows->weighed,
        .output_stride = c->hidden_size,
    };
    device_ops(self->device)->moe_combine(context->stream, &weigh);
    kern_add_args_t add = {
        .a = rows->delta,
        .a_stride = c->hidden_size,
        .b = rows->weighed,
        .b_stride = c->hidden_size,
        .output = rows->delta,
        .output_stride = c->hidden_size,
        .rows = context->rows,
        .cols = c->hidden_size,
    };
    device_ops(self->device)->add(context->stream, &add);
}

void
model_launch_experts(const model_t *self, const model_context_t *context,
                     const model_experts_t *experts, const model_rows_t *rows)
{
    const file_config_t *c = &self->config;
    launch_router(self, context, experts, rows);
    kern_expert_rows_t pairs = {
        .order = rows->pair_order,
        .offsets = rows->expert_offsets,
        .expert_count = c->expert_count,
        .pair_count = context->rows * c->expert_used_count,
    };
    kern_expert_gate_up_args_t gate_up = {
        .pairs = pairs,
        .input = rows->normed,
        .input_stride = c->hidden_size,
        .input_divisor = c->expert_used_count,
        .gate = experts->gate,
        .up = experts->up,
        .bend =
            c->activation == FILE_ACTIVATION_SWIGLU_OAI ? KERN_EXPERT_SWIGLU_OAI : KERN_EXPERT_SILU,
        .alpha = (float)c->expert_alpha,
        .limit = (float)c->expert_limit,
        .output = rows->hidden,
        .output_stride = c->expert_ffn_size,
    };
    device_ops(self->device)->expert_gate_up(context->stream, &gate_up);
    kern_expert_linear_args_t down = {
        .pairs = pairs,
        .input = rows->hidden,
        .input_stride = c->expert_ffn_size,
        .input_divisor = 1,
        .weight = experts->down,
        .output = rows->pair_results,
        .output_stride = c->hidden_size,
    };
    device_ops(self->device)->expert_linear(context->stream, &down);
    kern_moe_combine_args_t combine = {
        .input = rows->pair_results,
        .input_stride = c->hidden_size,
        .weights = rows->pair_weights,
        .rows = context->rows,
        .top_k = c->expert_used_count,
        .cols = c->hidden_size,
        .output = rows->delta,
        .output_stride = c->hidden_size,
    };
    device_ops(self->device)->moe_combine(context->stream, &combine);
    if (c->has_shared_scale) {
        launch_weighed(self, context, experts, rows);
    } else if (c->shared_ffn_size > 0) {
        model_launch_gated(self, context, &experts->shared, rows);
    }
    model_launch_reduce(self, context, rows);
}
