/* The launches shared by the families.
 *
 * Long because what a forward is made of stands in one place. */
#include "model_launch.h"

#include <math.h>

#include "proto_require.h"

static size_t
take(size_t *at, size_t size_bytes)
{
    size_t offset = *at;
    *at += (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
    return offset;
}

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* One array of the workspace. */
typedef struct {
    float **pointer_p;
    kern_form_t form;
    size_t rows;
    size_t cols;
} part_t;

static size_t
part_size_bytes(const model_t *self, const part_t *part)
{
    if (part->form == KERN_FORM_ROWS || part->rows == 0) {
        return part->rows * part->cols * sizeof(float);
    }
    return device_form_size_bytes(self->device, part->form, (uint32_t)part->rows,
                                  (uint32_t)part->cols);
}

/* Tokens of a rank's share of the head; the last rank may have fewer. */
static uint32_t
vocabulary_share(const model_t *self)
{
    uint32_t begin = 0;
    uint32_t end = 0;
    if (self->comm != NULL) {
        file_slice_vocabulary(self->config.vocab_size, 0, self->comm->rank_count, &begin, &end);
    }
    return end;
}

/* Of the feed-forwards that a layer may have: one, or experts with a shared one. */
static part_t
hidden_part(const model_t *self, float **pointer_p, uint32_t rows)
{
    const file_config_t *c = &self->config;
    size_t pairs = (size_t)rows * c->expert_used_count;
    const part_t parts[] = {
        {pointer_p, KERN_FORM_OPERAND, rows, c->ffn_size},
        {pointer_p, KERN_FORM_OPERAND, c->shared_ffn_size > 0 ? rows : 0, c->shared_ffn_size},
        {pointer_p, KERN_FORM_OPERAND, pairs, c->expert_ffn_size},
    };
    uint32_t best = 0;
    for (uint32_t i = 1; i < sizeof parts / sizeof *parts; i++) {
        best = part_size_bytes(self, &parts[i]) > part_size_bytes(self, &parts[best]) ? i : best;
    }
    return parts[best];
}

model_rows_t
model_rows_lay_out(const model_t *self, uint8_t *memory, uint32_t rows, uint32_t logit_rows)
{
    const file_config_t *c = &self->config;
    model_rows_t w = {0};
    size_t at = 0;
    size_t q_size = (size_t)c->head_count * c->head_dim;
    size_t kv_size = (size_t)c->kv_head_count * c->head_dim;
    size_t key_size = c->latent_dim > 0 ? c->latent_dim + c->rope_dim : kv_size;
    size_t value_size = c->latent_dim > 0 ? 0 : kv_size;
    size_t attn_size = c->latent_dim > 0 ? (size_t)c->head_count * c->v_head_dim : q_size;
    size_t query_size = c->latent_dim > 0 ? c->head_count * key_size : 0;
    size_t latent_size = (size_t)c->head_count * c->latent_dim;
    size_t pairs = (size_t)rows * c->expert_used_count; /* 0 without experts */
    size_t offsets = c->expert_count > 0 ? c->expert_count + 1 : 0;
    size_t sliding_rows = c->sliding_window > 0 ? rows : 0;
    size_t gate_rows = c->has_attn_gate ? rows : 0;
    size_t weighed_rows = c->has_shared_scale ? rows : 0;
    float *integers[3] = {NULL};
    const part_t parts[] = {
        {&w.logits, KERN_FORM_ROWS, logit_rows, c->vocab_size},
        {&w.gathered, KERN_FORM_OPERAND, logit_rows, c->hidden_size},
        {&w.logit_share, KERN_FORM_ROWS, logit_rows, vocabulary_share(self)},
        {&w.x, KERN_FORM_ROWS, rows, c->hidden_size},
        {&w.normed, KERN_FORM_OPERAND, rows, c->hidden_size},
        {&w.delta, KERN_FORM_ROWS, rows, c->hidden_size},
        {&w.q, KERN_FORM_ROWS, rows, q_size},
        {&w.q_gate, KERN_FORM_ROWS, gate_rows, 2 * q_size},
        {&w.attn_rows, KERN_FORM_ROWS, gate_rows, q_size},
        {&w.attn, KERN_FORM_OPERAND, rows, attn_size},
        {&w.k, KERN_FORM_ROWS, rows, key_size},
        {&w.v, KERN_FORM_ROWS, rows, value_size},
        {&w.q_latent, KERN_FORM_ROWS, rows, c->q_latent_dim},
        {&w.q_normed, KERN_FORM_OPERAND, c->q_latent_dim > 0 ? rows : 0, c->q_latent_dim},
        {&w.query, KERN_FORM_ROWS, rows, query_size},
        {&w.latents, KERN_FORM_ROWS, rows, latent_size},
        hidden_part(self, &w.hidden, rows),
        {&w.angles[0], KERN_FORM_ROWS, rows, c->rope_dim},
        {&w.angles[1], KERN_FORM_ROWS, sliding_rows, c->rope_dim},
        {&w.router_logits, KERN_FORM_ROWS, rows, c->expert_count},
        {&w.pair_results, KERN_FORM_ROWS, pairs, c->hidden_size},
        {&w.shared, KERN_FORM_ROWS, weighed_rows, c->hidden_size},
        {&w.weighed, KERN_FORM_ROWS, weighed_rows, c->hidden_size},
        {&w.pair_weights, KERN_FORM_ROWS, pairs, 1},
        {&integers[0], KERN_FORM_ROWS, pairs, 1},
        {&integers[1], KERN_FORM_ROWS, pairs, 1},
        {&integers[2], KERN_FORM_ROWS, offsets, 1},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t offset = take(&at, part_size_bytes(self, &parts[i]));
        *parts[i].pointer_p = memory == NULL ? NULL : (float *)(void *)(memory + offset);
    }
    _Static_assert(sizeof(int32_t) == sizeof(float), "counted alike");
    w.pair_experts = (int32_t *)(void *)integers[0];
    w.pair_order = (int32_t *)(void *)integers[1];
    w.expert_offsets = (int32_t *)(void *)integers[2];
    size_t cols_max = larger(larger(attn_size, c->hidden_size), c->q_latent_dim);
    cols_max = larger(cols_max, larger(c->ffn_size, c->shared_ffn_size));
    w.linear_workspace_bytes = kern_linear_workspace_size_bytes(rows, (uint32_t)cols_max);
    size_t offset = take(&at, w.linear_workspace_bytes);
    w.linear_workspace = memory == NULL ? NULL : memory + offset;
    w.total_bytes = at;
    return w;
}

/* ---- loading --------------------------------------------------------------------------------- */

typedef struct {
    file_role_t role;
    bool is_wanted;
    bool is_norm;
    uint32_t length;
    const float **out;
} vector_wanted_t;

static proto_status_t
load_vector(model_weights_t *weights, const file_config_t *config, const vector_wanted_t *wanted,
            uint32_t index)
{
    if (!wanted->is_wanted) {
        return STATUS_OK;
    }
    float offset = wanted->is_norm && config->has_offset_norms ? 1.0f : 0.0f;
    return model_weights_vector(weights, wanted->role, index, wanted->length, offset, wanted->out);
}

proto_status_t
model_layer_load(model_weights_t *weights, const file_config_t *c, uint32_t index,
                 model_layer_t *layer)
{
    uint32_t q_size = c->head_count * c->head_dim;
    uint32_t kv_size = c->kv_head_count * c->head_dim;
    uint32_t hidden = c->hidden_size;
    bool is_linear = c->layer_kinds[index] == FILE_LAYER_LINEAR; /* model_linear.h has the rest */
    bool has_qk_norm = c->has_qk_norm && !is_linear;
    const vector_wanted_t vectors[] = {
        {FILE_ROLE_ATTN_NORM, true, true, hidden, &layer->attn_norm},
        {FILE_ROLE_ATTN_POST_NORM, c->has_post_norms, true, hidden, &layer->attn_post_norm},
        {FILE_ROLE_FFN_NORM, true, true, hidden, &layer->ffn_norm},
        {FILE_ROLE_FFN_POST_NORM, c->has_post_norms, true, hidden, &layer->ffn_post_norm},
        {FILE_ROLE_ATTN_Q_NORM, has_qk_norm, true, c->head_dim, &layer->q_norm},
        {FILE_ROLE_ATTN_K_NORM, has_qk_norm, true, c->head_dim, &layer->k_norm},
        {FILE_ROLE_ATTN_Q_BIAS, c->has_qkv_bias, false, q_size, &layer->q_bias},
        {FILE_ROLE_ATTN_K_BIAS, c->has_qkv_bias, false, kv_size, &layer->k_bias},
        {FILE_ROLE_ATTN_V_BIAS, c->has_qkv_bias, false, kv_size, &layer->v_bias},
        {FILE_ROLE_ATTN_O_BIAS, c->has_o_bias, false, hidden, &layer->o_bias},
        {FILE_ROLE_ATTN_SINKS, c->has_sinks, false, c->head_count, &layer->sinks},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        proto_status_t status = load_vector(weights, c, &vectors[i], index);
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
    size_t matrix_count = c->expert_count > 0 ? 4 : sizeof matrices / sizeof *matrices;
    for (size_t i = is_linear ? 4 : 0; i < matrix_count; i++) {
        proto_status_t status =
            model_weights_matrix(weights, matrices[i].role, index, matrices[i].out);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

proto_status_t
model_ends_load(model_weights_t *weights, const file_config_t *config, model_ends_t *out)
{
    proto_status_t status = model_weights_matrix(weights, FILE_ROLE_TOKEN_EMBED, 0, &out->embed);
    if (status != STATUS_OK) {
        return status;
    }
    out->output = out->embed;
    if (!config->tied_embeddings) {
        status = model_weights_matrix(weights, FILE_ROLE_OUTPUT, 0, &out->output);
        if (status != STATUS_OK) {
            return status;
        }
    }
    const vector_wanted_t norm = {FILE_ROLE_OUTPUT_NORM, true, true, config->hidden_size,
                                  &out->output_norm};
    return load_vector(weights, config, &norm, 0);
}

/* ---- launches -------------------------------------------------------------------------------- */

typedef struct {
    kern_weight_t table;
    float *x;
} embed_args_t;

static void
run_embed(const model_t *self, const model_context_t *context, const void *args)
{
    const embed_args_t *a = args;
    const file_config_t *c = &self->config;
    kern_embed_args_t embed = {
        .table = a->table,
        .tokens = context->input_ids,
        .rows = context->rows,
        .scale = c->embed_scale > 0 ? (float)c->embed_scale : 1.0f,
        .output = a->x,
        .output_stride = c->hidden_size,
    };
    device_ops(self->device)->embed(context->stream, &embed);
}

void
model_launch_embed(const model_t *self, const model_context_t *context, const model_ends_t *ends,
                   const model_rows_t *rows)
{
    embed_args_t args = {.table = ends->embed, .x = rows->x};
    model_break_t part = {
        .run = run_embed,
        .args = &args,
        .args_size_bytes = sizeof args,
        .output = rows->x,
        .output_stride = self->config.hidden_size,
    };
    model_break(self, context, &part);
}

typedef struct {
    const float *frequencies;
    float *angles;
} angles_args_t;

static void
run_angles(const model_t *self, const model_context_t *context, const void *args)
{
    const angles_args_t *a = args;
    double factor = self->config.rope_attention_factor;
    kern_rope_angles_args_t angles = {
        .positions = context->positions,
        .positions_int64 = false,
        .rows = context->rows,
        .frequencies = a->frequencies,
        .rope_dim = self->config.rope_dim,
        .scale = factor > 0 ? (float)factor : 1.0f,
        .angles = a->angles,
    };
    device_ops(self->device)->rope_angles(context->stream, &angles);
}

void
model_launch_angles(const model_t *self, const model_context_t *context, const float *frequencies,
                    float *angles)
{
    angles_args_t args = {.frequencies = frequencies, .angles = angles};
    model_break_t part = {.run = run_angles, .args = &args, .args_size_bytes = sizeof args};
    model_break(self, context, &part);
}

void
model_launch_norm(const model_t *self, const model_context_t *context, float *x,
                  const float *residual, const float *weight, float *output)
{
    const file_config_t *c = &self->config;
    kern_rms_norm_args_t args = {
        .input = x,
        .input_stride = c->hidden_size,
        .residual = residual,
        .residual_stride = c->hidden_size,
        .weight = weight,
        .output = output,
        .output_stride = c->hidden_size,
        .rows = context->rows,
        .cols = c->hidden_size,
        .epsilon = c->rms_eps,
        .output_form = output == x ? KERN_FORM_ROWS : KERN_FORM_OPERAND,
    };
    device_ops(self->device)->rms_norm(context->stream, &args);
}

void
model_launch_project(const model_t *self, const model_context_t *context, const model_rows_t *rows,
                     const model_projection_t *projection)
{
    kern_linear_args_t args = {
        .input = projection->input,
        .input_stride = projection->weights[0].cols,
        .rows = projection->rows,
        .weight_count = projection->count,
        .accumulate = projection->accumulates,
        .workspace = rows->linear_workspace,
        .workspace_size_bytes = rows->linear_workspace_bytes,
        .activations = self->activations,
    };
    require(projection->count <= KERN_LINEAR_WEIGHTS_MAX);
    for (uint32_t i = 0; i < projection->count; i++) {
        args.weights[i] = projection->weights[i];
        args.biases[i] = projection->biases[i];
        args.outputs[i] = projection->outputs[i];
        args.output_strides[i] = projection->weights[i].rows;
    }
    device_ops(self->device)->linear(context->stream, &args);
}

void
model_launch_reduce(const model_t *self, const model_context_t *context, const model_rows_t *rows)
{
    if (self->comm != NULL) {
        size_t count = (size_t)context->rows * self->config.hidden_size;
        device_comm_all_reduce(self->comm, context->stream, rows->delta, count);
    }
}

static void
launch_qkv(const model_t *self, const model_context_t *context, const model_layer_t *layer,
           const model_rows_t *rows)
{
    bool has_gate = self->config.has_attn_gate;
    model_projection_t projection = {
        .input = rows->normed,
        .rows = context->rows,
        .count = 3,
        .weights = {layer->q, layer->k, layer->v},
        .biases = {layer->q_bias, layer->k_bias, layer->v_bias},
        .outputs = {has_gate ? rows->q_gate : rows->q, rows->k, rows->v},
    };
    model_launch_project(self, context, rows, &projection);
}

static size_t
q_stride(const file_config_t *c)
{
    return (size_t)c->head_count * c->head_dim;
}

/* Takes the queries out of where gates lie between them. */
static void
launch_queries(const model_t *self, const model_context_t *context, const model_rows_t *rows)
{
    const file_config_t *c = &self->config;
    kern_heads_copy_args_t args = {
        .input = rows->q_gate,
        .input_stride = 2 * q_stride(c),
        .input_head_stride = 2 * (size_t)c->head_dim,
        .output = rows->q,
        .output_stride = q_stride(c),
        .output_head_stride = c->head_dim,
        .rows = context->rows,
        .heads = c->head_count,
        .head_dim = c->head_dim,
    };
    device_ops(self->device)->heads_copy(context->stream, &args);
}

static void
launch_gate(const model_t *self, const model_context_t *context, const model_rows_t *rows)
{
    const file_config_t *c = &self->config;
    kern_sigmoid_mul_args_t args = {
        .input = rows->attn_rows,
        .input_stride = q_stride(c),
        .gate = rows->q_gate + c->head_dim,
        .gate_stride = 2 * q_stride(c),
        .gate_head_stride = 2 * (size_t)c->head_dim,
        .output = rows->attn,
        .output_stride = q_stride(c),
        .output_form = KERN_FORM_OPERAND,
        .rows = context->rows,
        .heads = c->head_count,
        .head_dim = c->head_dim,
    };
    device_ops(self->device)->sigmoid_mul(context->stream, &args);
}

typedef struct {
    const model_layer_t *layer;
    float *q;
    float *k;
    float *v;
    float *attn;
    const float *angles;
    uint32_t index;
    uint32_t output_rows;
} attention_args_t;

/* Rotates queries and keys and writes keys and values where the backend says. */
static void
launch_rope_write(const model_t *self, const model_context_t *context, const attention_args_t *a)
{
    const file_config_t *c = &self->config;
    const model_layer_t *layer = a->layer;
    cache_field_view_t k;
    cache_field_view_t v;
    proto_status_t status = cache_pool_field(&context->backend->pool, a->index, CACHE_FIELD_K, &k);
    require(status == STATUS_OK);
    status = cache_pool_field(&context->backend->pool, a->index, CACHE_FIELD_V, &v);
    require(status == STATUS_OK);
    kern_rope_kv_write_args_t args = {
        .q = a->q,
        .q_stride = q_stride(c),
        .k = a->k,
        .k_stride = layer->k.rows,
        .v = a->v,
        .v_stride = layer->v.rows,
        .rows = context->rows,
        .q_heads = c->head_count,
        .kv_heads = c->kv_head_count,
        .head_dim = c->head_dim,
        .rope_dim = c->rope_dim,
        .interleaved = c->rope_style == FILE_ROPE_INTERLEAVED,
        .angles = a->angles,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .epsilon = c->rms_eps,
        .write_locations = backend_write_locations(context->backend, a->index, context->mode),
        .k_cache = k.pages,
        .v_cache = v.pages,
        .cache_type = k.dtype == CACHE_DTYPE_F32 ? KERN_TYPE_F32 : KERN_TYPE_F16,
        .slot_count = cache_pool_slot_count(&context->backend->pool, &k),
    };
    device_ops(self->device)->rope_kv_write(context->stream, &args);
}

static void
launch_attend(const model_t *self, const model_context_t *context, const attention_args_t *a)
{
    const file_config_t *c = &self->config;
    double scale = c->query_scale > 0 ? c->query_scale : 1.0 / sqrt((double)c->head_dim);
    backend_forward_t attention = {
        .layer = a->index,
        .mode = context->mode,
        .q = a->q,
        .q_stride = q_stride(c),
        .rows = context->rows,
        .output = a->attn,
        .output_stride = q_stride(c),
        .output_form = c->has_attn_gate ? KERN_FORM_ROWS : KERN_FORM_OPERAND,
        .output_rows = a->output_rows,
        .scale = (float)scale,
        .sinks = a->layer->sinks,
    };
    backend_forward(context->backend, &attention);
}

static void
run_attention(const model_t *self, const model_context_t *context, const void *args)
{
    launch_rope_write(self, context, args);
    launch_attend(self, context, args);
}

void
model_launch_rope_write(const model_t *self, const model_context_t *context,
                        const model_layer_t *layer, const model_rows_t *rows, uint32_t index,
                        const float *angles)
{
    attention_args_t args = {
        .layer = layer,
        .q = rows->q,
        .k = rows->k,
        .v = rows->v,
        .angles = angles,
        .index = index,
    };
    launch_rope_write(self, context, &args);
}

void
model_launch_attend(const model_t *self, const model_context_t *context, const model_layer_t *layer,
                    const float *q, float *attn, uint32_t index)
{
    attention_args_t args = {
        .layer = layer,
        .q = (float *)(uintptr_t)q,
        .attn = attn,
        .index = index,
        .output_rows = context->rows,
    };
    launch_attend(self, context, &args);
}

void
model_launch_tap(const model_t *self, const model_context_t *context, const model_rows_t *rows,
                 uint32_t layer, const float *final_norm)
{
    const model_capture_t *capture = context->capture;
    uint32_t tap = 0;
    while (tap < self->taps.count && self->taps.layers[tap] != layer) {
        tap++;
    }
    if (capture == NULL || tap == self->taps.count) {
        return;
    }
    uint32_t hidden = self->config.hidden_size;
    require(capture->stride >= (size_t)self->taps.count * hidden);
    float *output = capture->taps + (size_t)tap * hidden;
    kern_add_args_t add = {
        .a = rows->x,
        .a_stride = hidden,
        .b = rows->delta,
        .b_stride = hidden,
        .output = output,
        .output_stride = capture->stride,
        .rows = context->rows,
        .cols = hidden,
    };
    device_ops(self->device)->add(context->stream, &add);
    if (final_norm != NULL) {
        kern_rms_norm_args_t norm = {
            .input = output,
            .input_stride = capture->stride,
            .weight = final_norm,
            .output = output,
            .output_stride = capture->stride,
            .rows = context->rows,
            .cols = hidden,
            .epsilon = self->config.rms_eps,
            .output_form = KERN_FORM_ROWS,
        };
        device_ops(self->device)->rms_norm(context->stream, &norm);
    }
    if (capture->sink != NULL) {
        capture->sink->on_target_capture(capture->sink->owner, context, tap, output,
                                         capture->stride);
    }
}

void
model_launch_attention(const model_t *self, const model_context_t *context,
                       const model_layer_t *layer, const model_rows_t *rows, uint32_t index,
                       const float *angles)
{
    const file_config_t *c = &self->config;
    float *attn = c->has_attn_gate ? rows->attn_rows : rows->attn;
    launch_qkv(self, context, layer, rows);
    if (c->has_attn_gate) {
        launch_queries(self, context, rows);
    }
    attention_args_t args = {
        .layer = layer,
        .q = rows->q,
        .k = rows->k,
        .v = rows->v,
        .attn = attn,
        .angles = angles,
        .index = index,
        .output_rows = context->rows,
    };
    model_break_t part = {
        .run = run_attention,
        .args = &args,
        .args_size_bytes = sizeof args,
        .output = attn,
        .output_stride = q_stride(c),
        .output_form = c->has_attn_gate ? KERN_FORM_ROWS : KERN_FORM_OPERAND,
    };
    model_break(self, context, &part);
    if (c->has_attn_gate) {
        launch_gate(self, context, rows);
    }
    model_projection_t output = {
        .input = rows->attn,
        .rows = context->rows,
        .count = 1,
        .weights = {layer->o},
        .biases = {layer->o_bias},
        .outputs = {rows->delta},
    };
    model_launch_project(self, context, rows, &output);
    model_launch_reduce(self, context, rows);
}

void
model_launch_gated(const model_t *self, const model_context_t *context, const model_ffn_t *ffn,
                   const model_rows_t *rows)
{
    const file_config_t *c = &self->config;
    bool is_gelu = c->activation == FILE_ACTIVATION_GELU_TANH;
    kern_gate_up_args_t gate_up = {
        .input = rows->normed,
        .input_stride = c->hidden_size,
        .rows = context->rows,
        .gate = ffn->gate,
        .up = ffn->up,
        .output = rows->hidden,
        .output_stride = ffn->gate.rows,
        .workspace = rows->linear_workspace,
        .workspace_size_bytes = rows->linear_workspace_bytes,
        .activations = self->activations,
        .bend = is_gelu ? KERN_GATE_GELU_TANH : KERN_GATE_SILU,
    };
    device_ops(self->device)->gate_up(context->stream, &gate_up);
    model_projection_t down = {
        .input = rows->hidden,
        .rows = context->rows,
        .count = 1,
        .weights = {ffn->down},
        .outputs = {rows->delta},
        .accumulates = ffn->accumulates,
    };
    model_launch_project(self, context, rows, &down);
}

void
model_launch_ffn(const model_t *self, const model_context_t *context, const model_layer_t *layer,
                 const model_rows_t *rows)
{
    model_ffn_t ffn = {.gate = layer->gate, .up = layer->up, .down = layer->down};
    model_launch_gated(self, context, &ffn, rows);
    model_launch_reduce(self, context, rows);
}

typedef struct {
    const model_ends_t *ends;
    const float *residual;
    model_rows_t rows;
} logits_args_t;

static void
run_logits(const model_t *self, const model_context_t *context, const void *args)
{
    const logits_args_t *a = args;
    const model_rows_t *rows = &a->rows;
    const file_config_t *c = &self->config;
    if (context->logit_rows == 0) {
        return;
    }
    model_launch_norm(self, context, rows->x, a->residual, a->ends->output_norm, rows->normed);
    const float *input = rows->normed;
    if (context->gather_rows != NULL) {
        kern_gather_rows_args_t gather = {
            .input = rows->normed,
            .input_stride = c->hidden_size,
            .input_rows = context->rows,
            .indices = context->gather_rows,
            .output = rows->gathered,
            .output_stride = c->hidden_size,
            .rows = context->logit_rows,
            .cols = c->hidden_size,
            .form = KERN_FORM_OPERAND,
        };
        device_ops(self->device)->gather_rows(context->stream, &gather);
        input = rows->gathered;
    }
    model_projection_t head = {
        .input = input,
        .rows = context->logit_rows,
        .count = 1,
        .weights = {a->ends->output},
        .outputs = {self->comm == NULL ? rows->logits : rows->logit_share},
    };
    model_launch_project(self, context, rows, &head);
    if (self->comm != NULL) {
        device_gather_t gather = {.part = rows->logit_share,
                                  .whole = rows->logits,
                                  .rows = context->logit_rows,
                                  .cols = c->vocab_size,
                                  .share = vocabulary_share(self)};
        device_comm_all_gather(self->comm, context->stream, &gather);
    }
}

void
model_launch_logits(const model_t *self, const model_context_t *context, const model_ends_t *ends,
                    const model_rows_t *rows, const float *residual)
{
    logits_args_t args = {.ends = ends, .residual = residual, .rows = *rows};
    model_break_t part = {.run = run_logits, .args = &args, .args_size_bytes = sizeof args};
    model_break(self, context, &part);
}

void
model_launch_mark(const model_t *self, const model_context_t *context, uint32_t layer)
{
    if (context->progress != NULL) {
        kern_mark_args_t mark = {.word = context->progress, .value = layer};
        device_ops(self->device)->mark(context->stream, &mark);
    }
}
