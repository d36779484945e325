/* Forward code of the llama family.
 *
 * One residual stream `x`; each block's output `delta` is added by the norm that follows it, so
 * that the add costs no pass of its own. */
#include "model_llama.h"

#include <math.h>
#include <stdlib.h>

#include "model_rope.h"
#include "model_weights.h"
#include "proto_require.h"

typedef struct {
    const float *attn_norm;
    const float *ffn_norm;
    const float *q_norm; /* NULL = none */
    const float *k_norm;
    const float *q_bias;
    const float *k_bias;
    const float *v_bias;
    const float *o_bias;
    kern_weight_t q;
    kern_weight_t k;
    kern_weight_t v;
    kern_weight_t o;
    kern_weight_t gate;
    kern_weight_t up;
    kern_weight_t down;
} layer_t;

typedef struct {
    model_t base; /* first */
    model_weights_t weights;
    layer_t *layers; /* [layer_count] */
    kern_weight_t embed;
    kern_weight_t output;
    const float *output_norm;
    float *frequencies; /* device, [rope_dim / 2] */
} llama_t;

/* Rows of intermediate results within a workspace. */
typedef struct {
    float *x;
    float *normed;
    float *q;
    float *k;
    float *v;
    float *attn;
    float *delta;
    float *hidden; /* of the feed-forward */
    float *angles;
    float *gathered;
    float *logits;
    void *linear_workspace;
    size_t linear_workspace_bytes;
    size_t total_bytes;
} workspace_t;

static size_t
take(size_t *at, size_t size_bytes)
{
    size_t offset = *at;
    *at += (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
    return offset;
}

/* The logits come first, so that they stay where they are whatever the row count. */
static workspace_t
lay_out(const file_config_t *c, uint8_t *memory, uint32_t rows, uint32_t logit_rows)
{
    workspace_t w = {0};
    size_t at = 0;
    size_t q_size = (size_t)c->head_count * c->head_dim;
    size_t kv_size = (size_t)c->kv_head_count * c->head_dim;
    struct {
        float **pointer_p;
        size_t count;
    } parts[] = {
        {&w.logits, (size_t)logit_rows * c->vocab_size},
        {&w.gathered, (size_t)logit_rows * c->hidden_size},
        {&w.x, (size_t)rows * c->hidden_size},
        {&w.normed, (size_t)rows * c->hidden_size},
        {&w.delta, (size_t)rows * c->hidden_size},
        {&w.q, rows * q_size},
        {&w.attn, rows * q_size},
        {&w.k, rows * kv_size},
        {&w.v, rows * kv_size},
        {&w.hidden, (size_t)rows * c->ffn_size},
        {&w.angles, (size_t)rows * c->rope_dim},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t offset = take(&at, parts[i].count * sizeof(float));
        *parts[i].pointer_p = memory == NULL ? NULL : (float *)(void *)(memory + offset);
    }
    size_t cols_max = q_size > c->ffn_size ? q_size : c->ffn_size;
    cols_max = c->hidden_size > cols_max ? c->hidden_size : cols_max;
    w.linear_workspace_bytes = kern_linear_workspace_size_bytes(rows, (uint32_t)cols_max);
    size_t offset = take(&at, w.linear_workspace_bytes);
    w.linear_workspace = memory == NULL ? NULL : memory + offset;
    w.total_bytes = at;
    return w;
}

static size_t
llama_workspace_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return lay_out(&base->config, NULL, rows, logit_rows).total_bytes;
}

static void
launch_norm(const llama_t *self, const model_context_t *context, float *x, const float *residual,
            const float *weight, float *output, uint32_t rows)
{
    const file_config_t *c = &self->base.config;
    kern_rms_norm_args_t args = {
        .input = x,
        .input_stride = c->hidden_size,
        .residual = residual,
        .residual_stride = c->hidden_size,
        .weight = weight,
        .output = output,
        .output_stride = c->hidden_size,
        .rows = rows,
        .cols = c->hidden_size,
        .epsilon = c->rms_eps,
    };
    device_ops(self->base.device)->rms_norm(context->stream, &args);
}

static void
launch_linear(const llama_t *self, const model_context_t *context, const workspace_t *w,
              const kern_weight_t *weight, const float *bias, const float *input, float *output,
              uint32_t rows)
{
    kern_linear_args_t args = {
        .input = input,
        .input_stride = weight->cols,
        .rows = rows,
        .weight_count = 1,
        .weights = {*weight},
        .biases = {bias},
        .outputs = {output},
        .output_strides = {weight->rows},
        .accumulate = false,
        .workspace = w->linear_workspace,
        .workspace_size_bytes = w->linear_workspace_bytes,
        .activations = self->base.activations,
    };
    device_ops(self->base.device)->linear(context->stream, &args);
}

static void
launch_qkv(const llama_t *self, const model_context_t *context, const workspace_t *w,
           const layer_t *layer)
{
    kern_linear_args_t args = {
        .input = w->normed,
        .input_stride = self->base.config.hidden_size,
        .rows = context->rows,
        .weight_count = 3,
        .weights = {layer->q, layer->k, layer->v},
        .biases = {layer->q_bias, layer->k_bias, layer->v_bias},
        .outputs = {w->q, w->k, w->v},
        .output_strides = {layer->q.rows, layer->k.rows, layer->v.rows},
        .accumulate = false,
        .workspace = w->linear_workspace,
        .workspace_size_bytes = w->linear_workspace_bytes,
        .activations = self->base.activations,
    };
    device_ops(self->base.device)->linear(context->stream, &args);
}

/* Rotates queries and keys and writes keys and values where the backend says. */
static void
launch_rope_write(const llama_t *self, const model_context_t *context, const workspace_t *w,
                  uint32_t index)
{
    const file_config_t *c = &self->base.config;
    const layer_t *layer = &self->layers[index];
    cache_field_view_t k;
    cache_field_view_t v;
    proto_status_t status = cache_pool_field(&context->backend->pool, index, CACHE_FIELD_K, &k);
    require(status == STATUS_OK);
    status = cache_pool_field(&context->backend->pool, index, CACHE_FIELD_V, &v);
    require(status == STATUS_OK);
    kern_rope_kv_write_args_t args = {
        .q = w->q,
        .q_stride = layer->q.rows,
        .k = w->k,
        .k_stride = layer->k.rows,
        .v = w->v,
        .v_stride = layer->v.rows,
        .rows = context->rows,
        .q_heads = c->head_count,
        .kv_heads = c->kv_head_count,
        .head_dim = c->head_dim,
        .rope_dim = c->rope_dim,
        .interleaved = c->rope_style == FILE_ROPE_INTERLEAVED,
        .angles = w->angles,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .epsilon = c->rms_eps,
        .write_locations = backend_write_locations(context->backend, index, context->mode),
        .k_cache = k.pages,
        .v_cache = v.pages,
        .cache_type = k.dtype == CACHE_DTYPE_F32 ? KERN_TYPE_F32 : KERN_TYPE_F16,
        .slot_count = cache_plan_page_count(context->backend->pool.plan, k.group) * k.rows,
    };
    device_ops(self->base.device)->rope_kv_write(context->stream, &args);
}

static void
launch_layer(const llama_t *self, const model_context_t *context, const workspace_t *w,
             uint32_t index)
{
    const file_config_t *c = &self->base.config;
    const layer_t *layer = &self->layers[index];
    const device_ops_t *ops = device_ops(self->base.device);
    if (context->progress != NULL) {
        kern_mark_args_t mark = {.word = context->progress, .value = index + 1};
        ops->mark(context->stream, &mark);
    }
    launch_norm(self, context, w->x, index == 0 ? NULL : w->delta, layer->attn_norm, w->normed,
                context->rows);
    launch_qkv(self, context, w, layer);
    launch_rope_write(self, context, w, index);
    backend_forward_t attention = {
        .layer = index,
        .mode = context->mode,
        .q = w->q,
        .q_stride = layer->q.rows,
        .rows = context->rows,
        .output = w->attn,
        .output_stride = layer->q.rows,
        .scale = (float)(1.0 / sqrt((double)c->head_dim)),
    };
    backend_forward(context->backend, &attention);
    launch_linear(self, context, w, &layer->o, layer->o_bias, w->attn, w->delta, context->rows);
    launch_norm(self, context, w->x, w->delta, layer->ffn_norm, w->normed, context->rows);
    kern_gate_up_args_t gate_up = {
        .input = w->normed,
        .input_stride = c->hidden_size,
        .rows = context->rows,
        .gate = layer->gate,
        .up = layer->up,
        .output = w->hidden,
        .output_stride = c->ffn_size,
        .workspace = w->linear_workspace,
        .workspace_size_bytes = w->linear_workspace_bytes,
        .activations = self->base.activations,
    };
    ops->gate_up(context->stream, &gate_up);
    launch_linear(self, context, w, &layer->down, NULL, w->hidden, w->delta, context->rows);
}

static void
launch_start(const llama_t *self, const model_context_t *context, const workspace_t *w)
{
    const file_config_t *c = &self->base.config;
    const device_ops_t *ops = device_ops(self->base.device);
    kern_embed_args_t embed = {
        .table = self->embed,
        .tokens = context->input_ids,
        .rows = context->rows,
        .scale = 1.0f,
        .output = w->x,
        .output_stride = c->hidden_size,
    };
    ops->embed(context->stream, &embed);
    if (c->rope_dim > 0) {
        kern_rope_angles_args_t angles = {
            .positions = context->positions,
            .positions_int64 = false,
            .rows = context->rows,
            .frequencies = self->frequencies,
            .rope_dim = c->rope_dim,
            .scale = 1.0f,
            .angles = w->angles,
        };
        ops->rope_angles(context->stream, &angles);
    }
}

/* The last add and norm run on all rows, since the add is in place; the head only on those asked
 * for. */
static void
launch_end(const llama_t *self, const model_context_t *context, const workspace_t *w)
{
    const file_config_t *c = &self->base.config;
    launch_norm(self, context, w->x, w->delta, self->output_norm, w->normed, context->rows);
    const float *rows = w->normed;
    if (context->gather_rows != NULL) {
        kern_gather_rows_args_t gather = {
            .input = w->normed,
            .input_stride = c->hidden_size,
            .input_rows = context->rows,
            .indices = context->gather_rows,
            .output = w->gathered,
            .output_stride = c->hidden_size,
            .rows = context->logit_rows,
            .cols = c->hidden_size,
        };
        device_ops(self->base.device)->gather_rows(context->stream, &gather);
        rows = w->gathered;
    }
    launch_linear(self, context, w, &self->output, NULL, rows, w->logits, context->logit_rows);
}

static float *
llama_forward(model_t *base, const model_context_t *context)
{
    llama_t *self = (llama_t *)base;
    require(context->gather_rows != NULL || context->logit_rows == context->rows ||
            context->logit_rows == 0);
    workspace_t w = lay_out(&base->config, context->workspace, context->rows, context->logit_rows);
    launch_start(self, context, &w);
    for (uint32_t i = 0; i < base->config.layer_count; i++) {
        launch_layer(self, context, &w, i);
    }
    if (context->logit_rows > 0) {
        launch_end(self, context, &w);
    }
    if (context->progress != NULL) {
        kern_mark_args_t mark = {.word = context->progress, .value = 0};
        device_ops(base->device)->mark(context->stream, &mark);
    }
    return w.logits;
}

static void
llama_destroy(model_t *base)
{
    llama_t *self = (llama_t *)base;
    model_weights_fini(&self->weights);
    free(self->layers);
    free(self);
}

typedef struct {
    file_role_t role;
    bool is_wanted;
    uint32_t length;
    const float **out;
} vector_wanted_t;

static proto_status_t
load_layer(llama_t *self, uint32_t index)
{
    const file_config_t *c = &self->base.config;
    layer_t *layer = &self->layers[index];
    uint32_t q_size = c->head_count * c->head_dim;
    uint32_t kv_size = c->kv_head_count * c->head_dim;
    vector_wanted_t vectors[] = {
        {FILE_ROLE_ATTN_NORM, true, c->hidden_size, &layer->attn_norm},
        {FILE_ROLE_FFN_NORM, true, c->hidden_size, &layer->ffn_norm},
        {FILE_ROLE_ATTN_Q_NORM, c->has_qk_norm, c->head_dim, &layer->q_norm},
        {FILE_ROLE_ATTN_K_NORM, c->has_qk_norm, c->head_dim, &layer->k_norm},
        {FILE_ROLE_ATTN_Q_BIAS, c->has_qkv_bias, q_size, &layer->q_bias},
        {FILE_ROLE_ATTN_K_BIAS, c->has_qkv_bias, kv_size, &layer->k_bias},
        {FILE_ROLE_ATTN_V_BIAS, c->has_qkv_bias, kv_size, &layer->v_bias},
        {FILE_ROLE_ATTN_O_BIAS, c->has_o_bias, c->hidden_size, &layer->o_bias},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        if (!vectors[i].is_wanted) {
            continue;
        }
        proto_status_t status = model_weights_vector(&self->weights, vectors[i].role, index,
                                                     vectors[i].length, vectors[i].out);
        if (status != STATUS_OK) {
            return status;
        }
    }
    struct {
        file_role_t role;
        kern_weight_t *out;
    } matrices[] = {
        {FILE_ROLE_ATTN_Q, &layer->q},      {FILE_ROLE_ATTN_K, &layer->k},
        {FILE_ROLE_ATTN_V, &layer->v},      {FILE_ROLE_ATTN_O, &layer->o},
        {FILE_ROLE_FFN_GATE, &layer->gate}, {FILE_ROLE_FFN_UP, &layer->up},
        {FILE_ROLE_FFN_DOWN, &layer->down},
    };
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        proto_status_t status =
            model_weights_matrix(&self->weights, matrices[i].role, index, matrices[i].out);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
load_rope(llama_t *self)
{
    const file_config_t *c = &self->base.config;
    const float *factors = NULL;
    if (c->rope_scaling == FILE_ROPE_SCALING_TABLE) {
        proto_status_t status = model_weights_vector(&self->weights, FILE_ROLE_ROPE_FREQS, 0,
                                                     c->rope_dim / 2, &factors);
        if (status != STATUS_OK) {
            return status;
        }
    }
    void *memory = NULL;
    size_t size_bytes = (c->rope_dim / 2 + 1) * sizeof(float);
    proto_status_t status = model_weights_alloc(&self->weights, size_bytes, &memory);
    if (status == STATUS_OK) {
        self->frequencies = memory;
        model_rope_frequencies(c, factors, self->frequencies);
    }
    return status;
}

static proto_status_t
load_all(llama_t *self)
{
    const file_config_t *c = &self->base.config;
    proto_status_t status =
        model_weights_matrix(&self->weights, FILE_ROLE_TOKEN_EMBED, 0, &self->embed);
    if (status != STATUS_OK) {
        return status;
    }
    self->output = self->embed;
    if (!c->tied_embeddings) {
        status = model_weights_matrix(&self->weights, FILE_ROLE_OUTPUT, 0, &self->output);
        if (status != STATUS_OK) {
            return status;
        }
    }
    status = model_weights_vector(&self->weights, FILE_ROLE_OUTPUT_NORM, 0, c->hidden_size,
                                  &self->output_norm);
    if (status != STATUS_OK) {
        return status;
    }
    status = load_rope(self);
    for (uint32_t i = 0; status == STATUS_OK && i < c->layer_count; i++) {
        status = load_layer(self, i);
    }
    return status;
}

static const model_vtable_t llama_vtable = {
    .destroy = llama_destroy,
    .workspace_bytes = llama_workspace_bytes,
    .forward = llama_forward,
};

proto_status_t
model_llama_new(device_t *device, const file_model_t *file, model_progress_fn progress,
                void *progress_context, model_t **out_p)
{
    const file_config_t *config = file_model_config(file);
    if (config->head_dim > KERN_HEAD_DIM_MAX || config->head_dim % 16 != 0) {
        return STATUS_ERR_UNSUPPORTED;
    }
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    llama_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->base.vtable = &llama_vtable;
    self->base.device = device;
    self->base.config = *config;
    self->layers = calloc(config->layer_count, sizeof *self->layers);
    if (self->layers == NULL) {
        goto err_free_self;
    }
    status = model_weights_init(&self->weights, device, file, progress, progress_context);
    if (status != STATUS_OK) {
        goto err_free_layers;
    }
    status = load_all(self);
    if (status != STATUS_OK) {
        goto err_free_weights;
    }
    self->base.weight_bytes = self->weights.weight_bytes;
    self->base.mapped_bytes = self->weights.mapped_bytes;
    *out_p = &self->base;
    return STATUS_OK;

err_free_weights:
    model_weights_fini(&self->weights);
err_free_layers:
    free(self->layers);
err_free_self:
    free(self);
err:
    return status;
}
