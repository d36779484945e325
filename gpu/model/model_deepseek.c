/* Forward code of a DeepSeek-V3.
 *
 * Keys and values are never made: W_k of each head is turned over at load and takes the query to
 * the latent's space, W_v takes what attention gives back from there. */
#include "model_deepseek.h"

#include <stdlib.h>
#include <string.h>

#include "model_experts.h"
#include "model_launch.h"
#include "model_rope.h"
#include "model_weights.h"
#include "proto_require.h"

/* Of the norms within attention, whatever rms_norm_eps says: the reference fixes it. */
static const float latent_epsilon = 1e-6f;

/* A matrix for each head. */
typedef struct {
    const void *data;
    kern_type_t type;
    uint32_t rows; /* of one head */
    uint32_t cols;
} heads_t;

typedef struct {
    model_layer_t common; /* norms, the output projection, a dense layer's feed-forward */
    kern_weight_t q_a;    /* with a latent of queries; else only q_b, of the input */
    kern_weight_t q_b;
    kern_weight_t kv_a;
    const float *q_a_norm;
    const float *kv_a_norm;
    heads_t key;   /* [latent_dim][nope_dim]: W_k turned over */
    heads_t value; /* [v_head_dim][latent_dim] */
    model_experts_t experts;
} layer_t;

typedef struct {
    model_t base; /* first */
    model_weights_t weights;
    model_ends_t ends;
    layer_t *layers;          /* [layer_count] */
    const float *frequencies; /* device, [rope_dim / 2] */
} deepseek_t;

/* ---- forward --------------------------------------------------------------------------------- */

static size_t
deepseek_workspace_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return model_rows_lay_out(base, NULL, rows, logit_rows).total_bytes;
}

/* What the break of a layer needs. */
typedef struct {
    const float *q;
    float *query;
    const float *kv;
    float *latents;
    const float *norm;
    const float *angles;
    uint32_t index;
} attention_args_t;

static void
launch_write(const model_t *self, const model_context_t *context, const attention_args_t *a)
{
    const file_config_t *c = &self->config;
    const cache_pool_t *pool = &context->backend->pool;
    cache_field_view_t field;
    proto_status_t status = cache_pool_field(pool, a->index, CACHE_FIELD_LATENT, &field);
    require(status == STATUS_OK);
    kern_mla_write_args_t args = {
        .q = a->q,
        .q_stride = (size_t)c->head_count * c->head_dim,
        .query = a->query,
        .query_stride = (size_t)c->head_count * (c->latent_dim + c->rope_dim),
        .kv = a->kv,
        .kv_stride = c->latent_dim + c->rope_dim,
        .rows = context->rows,
        .heads = c->head_count,
        .nope_dim = c->nope_dim,
        .latent_dim = c->latent_dim,
        .rope_dim = c->rope_dim,
        .interleaved = c->rope_style == FILE_ROPE_INTERLEAVED,
        .angles = a->angles,
        .norm = a->norm,
        .epsilon = latent_epsilon,
        .write_locations = backend_write_locations(context->backend, a->index, context->mode),
        .cache = field.pages,
        .cache_type = field.dtype == CACHE_DTYPE_F32 ? KERN_TYPE_F32 : KERN_TYPE_F16,
        .slot_count = cache_pool_slot_count(pool, &field),
    };
    device_ops(self->device)->mla_write(context->stream, &args);
}

static void
run_attention(const model_t *self, const model_context_t *context, const void *args)
{
    const attention_args_t *a = args;
    const file_config_t *c = &self->config;
    launch_write(self, context, a);
    backend_forward_t attention = {
        .layer = a->index,
        .mode = context->mode,
        .q = a->query,
        .q_stride = (size_t)c->head_count * (c->latent_dim + c->rope_dim),
        .rows = context->rows,
        .output = a->latents,
        .output_stride = (size_t)c->head_count * c->latent_dim,
        .output_form = KERN_FORM_ROWS,
        .scale = (float)c->query_scale,
        .sinks = NULL,
    };
    backend_forward(context->backend, &attention);
}

/* rows->normed into rows->q and rows->k, which holds the latent and its rotated part. */
static void
launch_projections(const model_t *self, const model_context_t *context, const layer_t *layer,
                   const model_rows_t *w)
{
    const file_config_t *c = &self->config;
    bool has_latent = c->q_latent_dim > 0;
    model_projection_t first = {
        .input = w->normed,
        .rows = context->rows,
        .count = 2,
        .weights = {has_latent ? layer->q_a : layer->q_b, layer->kv_a},
        .outputs = {has_latent ? w->q_latent : w->q, w->k},
    };
    model_launch_project(self, context, w, &first);
    if (!has_latent) {
        return;
    }
    kern_rms_norm_args_t norm = {
        .input = w->q_latent,
        .input_stride = c->q_latent_dim,
        .weight = layer->q_a_norm,
        .output = w->q_normed,
        .output_stride = c->q_latent_dim,
        .rows = context->rows,
        .cols = c->q_latent_dim,
        .epsilon = latent_epsilon,
        .output_form = KERN_FORM_OPERAND,
    };
    device_ops(self->device)->rms_norm(context->stream, &norm);
    model_projection_t second = {
        .input = w->q_normed,
        .rows = context->rows,
        .count = 1,
        .weights = {layer->q_b},
        .outputs = {w->q},
    };
    model_launch_project(self, context, w, &second);
}

typedef struct {
    const heads_t *weight;
    const float *input;
    uint32_t input_width; /* of a head's part of a row */
    float *output;
    uint32_t output_width;
    kern_form_t output_form;
} heads_product_t;

static void
launch_heads(const model_t *self, const model_context_t *context, const heads_product_t *product)
{
    uint32_t heads = self->config.head_count;
    const heads_t *weight = product->weight;
    kern_head_linear_args_t args = {
        .input = product->input,
        .input_stride = (size_t)heads * product->input_width,
        .input_head_stride = product->input_width,
        .output = product->output,
        .output_stride = (size_t)heads * product->output_width,
        .output_head_stride = product->output_width,
        .output_form = product->output_form,
        .rows = context->rows,
        .heads = heads,
        .weight = weight->data,
        .type = weight->type,
        .outputs = weight->rows,
        .inputs = weight->cols,
        .head_stride_bytes = weight->rows * kern_type_row_size_bytes(weight->type, weight->cols),
    };
    device_ops(self->device)->head_linear(context->stream, &args);
}

static void
launch_attention(const model_t *self, const model_context_t *context, const layer_t *layer,
                 const model_rows_t *w, uint32_t index)
{
    const file_config_t *c = &self->config;
    launch_projections(self, context, layer, w);
    heads_product_t keys = {
        .weight = &layer->key,
        .input = w->q,
        .input_width = c->head_dim,
        .output = w->query,
        .output_width = c->latent_dim + c->rope_dim,
        .output_form = KERN_FORM_ROWS,
    };
    launch_heads(self, context, &keys);
    attention_args_t args = {
        .q = w->q,
        .query = w->query,
        .kv = w->k,
        .latents = w->latents,
        .norm = layer->kv_a_norm,
        .angles = w->angles[FILE_LAYER_FULL],
        .index = index,
    };
    model_break_t part = {
        .run = run_attention,
        .args = &args,
        .args_size_bytes = sizeof args,
        .output = w->latents,
        .output_stride = (size_t)c->head_count * c->latent_dim,
    };
    model_break(self, context, &part);
    heads_product_t values = {
        .weight = &layer->value,
        .input = w->latents,
        .input_width = c->latent_dim,
        .output = w->attn,
        .output_width = c->v_head_dim,
        .output_form = KERN_FORM_OPERAND,
    };
    launch_heads(self, context, &values);
    model_projection_t output = {
        .input = w->attn,
        .rows = context->rows,
        .count = 1,
        .weights = {layer->common.o},
        .outputs = {w->delta},
    };
    model_launch_project(self, context, w, &output);
    model_launch_reduce(self, context, w);
}

static float *
deepseek_forward(model_t *base, const model_context_t *context)
{
    const deepseek_t *self = (const deepseek_t *)base;
    const file_config_t *c = &base->config;
    require(context->gather_rows != NULL || context->logit_rows == context->rows ||
            context->logit_rows == 0);
    model_rows_t w =
        model_rows_lay_out(base, context->workspace, context->rows, context->logit_rows);
    model_launch_embed(base, context, &self->ends, &w);
    model_launch_angles(base, context, self->frequencies, w.angles[FILE_LAYER_FULL]);
    for (uint32_t i = 0; i < c->layer_count; i++) {
        const layer_t *layer = &self->layers[i];
        model_launch_mark(base, context, i + 1);
        model_launch_norm(base, context, w.x, i == 0 ? NULL : w.delta, layer->common.attn_norm,
                          w.normed);
        launch_attention(base, context, layer, &w, i);
        model_launch_norm(base, context, w.x, w.delta, layer->common.ffn_norm, w.normed);
        if (file_config_has_experts(c, i)) {
            model_launch_experts(base, context, &layer->experts, &w);
        } else {
            model_launch_ffn(base, context, &layer->common, &w);
        }
        model_launch_tap(base, context, &w, i, NULL);
    }
    model_launch_tap(base, context, &w, MODEL_TAP_FINAL, self->ends.output_norm);
    model_launch_logits(base, context, &self->ends, &w, w.delta);
    model_launch_mark(base, context, 0);
    return w.logits;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void
deepseek_destroy(model_t *base)
{
    deepseek_t *self = (deepseek_t *)base;
    model_weights_fini(&self->weights);
    free(self->layers);
    free(self);
}

/* One head's rows [rows][cols] become [cols][rows]. */
static void
turn_over(const uint8_t *from, uint32_t rows, uint32_t cols, size_t element_size_bytes,
          uint8_t *out)
{
    for (uint32_t k = 0; k < cols; k++) {
        for (uint32_t n = 0; n < rows; n++) {
            memcpy(out, from + ((size_t)n * cols + k) * element_size_bytes, element_size_bytes);
            out += element_size_bytes;
        }
    }
}

/* Takes the matrix of keys and values apart. */
static proto_status_t
load_key_value(model_weights_t *weights, const file_config_t *c, uint32_t index, layer_t *out)
{
    file_tensor_t stored;
    proto_status_t status = file_model_tensor(weights->file, FILE_ROLE_ATTN_KV_B, index, &stored);
    if (status != STATUS_OK) {
        return status;
    }
    if (file_dtype_block_length(stored.dtype) != 1) {
        return STATUS_ERR_UNSUPPORTED;
    }
    kern_type_t type = model_weights_type(stored.dtype);
    size_t element_size_bytes = kern_type_block_size_bytes(type);
    size_t row_size_bytes = c->latent_dim * element_size_bytes;
    size_t key_size_bytes = c->nope_dim * row_size_bytes; /* of a head */
    size_t value_size_bytes = c->v_head_dim * row_size_bytes;
    uint8_t *keys = malloc(c->head_count * (key_size_bytes + value_size_bytes));
    if (keys == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    uint8_t *values = keys + c->head_count * key_size_bytes;
    for (uint32_t head = 0; head < c->head_count; head++) {
        const uint8_t *from =
            (const uint8_t *)stored.data + head * (key_size_bytes + value_size_bytes);
        turn_over(from, c->nope_dim, c->latent_dim, element_size_bytes,
                  keys + head * key_size_bytes);
        memcpy(values + head * value_size_bytes, from + key_size_bytes, value_size_bytes);
    }
    out->key = (heads_t){NULL, type, c->latent_dim, c->nope_dim};
    out->value = (heads_t){NULL, type, c->v_head_dim, c->latent_dim};
    status = model_weights_copy(weights, keys, c->head_count * key_size_bytes, &out->key.data);
    if (status == STATUS_OK) {
        status =
            model_weights_copy(weights, values, c->head_count * value_size_bytes, &out->value.data);
    }
    if (status == STATUS_OK) {
        model_weights_note(weights, &stored, c->head_count * (key_size_bytes + value_size_bytes),
                           true);
    }
    free(keys);
    return status;
}

static proto_status_t
load_attention(model_weights_t *weights, const file_config_t *c, uint32_t index, layer_t *out)
{
    bool has_latent = c->q_latent_dim > 0;
    const struct {
        file_role_t role;
        bool is_wanted;
        kern_weight_t *out;
    } matrices[] = {
        {FILE_ROLE_ATTN_Q_A, has_latent, &out->q_a},
        {has_latent ? FILE_ROLE_ATTN_Q_B : FILE_ROLE_ATTN_Q, true, &out->q_b},
        {FILE_ROLE_ATTN_KV_A, true, &out->kv_a},
        {FILE_ROLE_ATTN_O, true, &out->common.o},
    };
    proto_status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof matrices / sizeof *matrices; i++) {
        if (matrices[i].is_wanted) {
            status = model_weights_matrix(weights, matrices[i].role, index, matrices[i].out);
        }
    }
    const struct {
        file_role_t role;
        uint32_t length;
        const float **out;
    } norms[] = {
        {FILE_ROLE_ATTN_NORM, c->hidden_size, &out->common.attn_norm},
        {FILE_ROLE_FFN_NORM, c->hidden_size, &out->common.ffn_norm},
        {FILE_ROLE_ATTN_KV_A_NORM, c->latent_dim, &out->kv_a_norm},
        {FILE_ROLE_ATTN_Q_A_NORM, c->q_latent_dim, &out->q_a_norm},
    };
    size_t norm_count = sizeof norms / sizeof *norms - (has_latent ? 0 : 1);
    for (size_t i = 0; status == STATUS_OK && i < norm_count; i++) {
        status = model_weights_vector(weights, norms[i].role, index, norms[i].length, 0.0f,
                                      norms[i].out);
    }
    return status == STATUS_OK ? load_key_value(weights, c, index, out) : status;
}

static proto_status_t
load_ffn(model_weights_t *weights, uint32_t index, model_layer_t *out)
{
    proto_status_t status = model_weights_matrix(weights, FILE_ROLE_FFN_GATE, index, &out->gate);
    if (status == STATUS_OK) {
        status = model_weights_matrix(weights, FILE_ROLE_FFN_UP, index, &out->up);
    }
    return status == STATUS_OK
               ? model_weights_matrix(weights, FILE_ROLE_FFN_DOWN, index, &out->down)
               : status;
}

static proto_status_t
load_all(deepseek_t *self)
{
    const file_config_t *c = &self->base.config;
    proto_status_t status = model_ends_load(&self->weights, c, &self->ends);
    if (status == STATUS_OK) {
        status = model_rope_load(&self->weights, c, &self->frequencies);
    }
    for (uint32_t i = 0; status == STATUS_OK && i < c->layer_count; i++) {
        layer_t *layer = &self->layers[i];
        status = load_attention(&self->weights, c, i, layer);
        if (status == STATUS_OK) {
            status = file_config_has_experts(c, i)
                         ? model_experts_load(&self->weights, c, i, &layer->experts)
                         : load_ffn(&self->weights, i, &layer->common);
        }
    }
    return status;
}

static const model_vtable_t deepseek_vtable = {
    .destroy = deepseek_destroy,
    .workspace_bytes = deepseek_workspace_bytes,
    .forward = deepseek_forward,
    .gives_taps = true,
};

proto_status_t
model_deepseek_new(device_t *device, const file_model_t *file, model_progress_fn progress,
                   void *progress_context, model_t **out_p)
{
    const file_config_t *config = file_model_config(file);
    if (config->latent_dim % 16 != 0 || config->latent_dim + config->rope_dim > KERN_MLA_DIM_MAX ||
        config->rope_scaling == FILE_ROPE_SCALING_TABLE) {
        return STATUS_ERR_UNSUPPORTED;
    }
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    deepseek_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->base.vtable = &deepseek_vtable;
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
