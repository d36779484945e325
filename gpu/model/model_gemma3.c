/* Forward code of Gemma 3.
 *
 * Norms stand on both sides of a block: its output is normed in place, then added by the norm that
 * follows.  Sliding layers rotate with a base of their own, never scaled. */
#include "model_gemma3.h"

#include <stdlib.h>

#include "model_launch.h"
#include "model_rope.h"
#include "model_weights.h"
#include "proto_require.h"

typedef struct {
    model_t base; /* first */
    model_weights_t weights;
    model_ends_t ends;
    model_layer_t *layers;       /* [layer_count] */
    const float *frequencies[2]; /* device, [rope_dim / 2]; by file_layer_kind_t */
} gemma3_t;

static size_t
gemma3_workspace_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return model_rows_lay_out(base, NULL, rows, logit_rows).total_bytes;
}

static float *
gemma3_forward(model_t *base, const model_context_t *context)
{
    const gemma3_t *self = (const gemma3_t *)base;
    const file_config_t *c = &base->config;
    require(context->gather_rows != NULL || context->logit_rows == context->rows ||
            context->logit_rows == 0);
    model_rows_t w =
        model_rows_lay_out(base, context->workspace, context->rows, context->logit_rows);
    model_launch_embed(base, context, &self->ends, &w);
    for (uint32_t kind = 0; kind < 2; kind++) {
        model_launch_angles(base, context, self->frequencies[kind], w.angles[kind]);
    }
    for (uint32_t i = 0; i < c->layer_count; i++) {
        const model_layer_t *layer = &self->layers[i];
        model_launch_mark(base, context, i + 1);
        model_launch_norm(base, context, w.x, i == 0 ? NULL : w.delta, layer->attn_norm, w.normed);
        model_launch_attention(base, context, layer, &w, i, w.angles[c->layer_kinds[i]]);
        model_launch_norm(base, context, w.delta, NULL, layer->attn_post_norm, w.delta);
        model_launch_norm(base, context, w.x, w.delta, layer->ffn_norm, w.normed);
        model_launch_ffn(base, context, layer, &w);
        model_launch_norm(base, context, w.delta, NULL, layer->ffn_post_norm, w.delta);
        model_launch_tap(base, context, &w, i, NULL);
    }
    model_launch_tap(base, context, &w, MODEL_TAP_FINAL, self->ends.output_norm);
    model_launch_logits(base, context, &self->ends, &w, w.delta);
    model_launch_mark(base, context, 0);
    return w.logits;
}

static void
gemma3_destroy(model_t *base)
{
    gemma3_t *self = (gemma3_t *)base;
    model_weights_fini(&self->weights);
    free(self->layers);
    free(self);
}

static proto_status_t
load_rope(gemma3_t *self)
{
    for (uint32_t kind = 0; kind < 2; kind++) {
        file_config_t config = self->base.config;
        if (kind == FILE_LAYER_SLIDING) {
            config.rope_theta = config.rope_theta_sliding;
            config.rope_scaling = FILE_ROPE_SCALING_NONE;
        }
        proto_status_t status = model_rope_load(&self->weights, &config, &self->frequencies[kind]);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
load_all(gemma3_t *self)
{
    const file_config_t *c = &self->base.config;
    proto_status_t status = model_ends_load(&self->weights, c, &self->ends);
    if (status == STATUS_OK) {
        status = load_rope(self);
    }
    for (uint32_t i = 0; status == STATUS_OK && i < c->layer_count; i++) {
        status = model_layer_load(&self->weights, c, i, &self->layers[i]);
    }
    return status;
}

static const model_vtable_t gemma3_vtable = {
    .destroy = gemma3_destroy,
    .workspace_bytes = gemma3_workspace_bytes,
    .forward = gemma3_forward,
    .gives_taps = true,
};

proto_status_t
model_gemma3_new(device_t *device, const file_model_t *file, model_progress_fn progress,
                 void *progress_context, model_t **out_p)
{
    const file_config_t *config = file_model_config(file);
    if (config->head_dim > KERN_HEAD_DIM_MAX || config->head_dim % 16 != 0 ||
        config->rope_scaling == FILE_ROPE_SCALING_TABLE) {
        return STATUS_ERR_UNSUPPORTED;
    }
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    gemma3_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->base.vtable = &gemma3_vtable;
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
