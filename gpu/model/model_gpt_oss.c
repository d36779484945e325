/* Forward code of gpt-oss.
 *
 * Sliding and full layers rotate alike; every query head has a sink; the feed-forward is a mixture
 * of experts. */
#include "model_gpt_oss.h"

#include <stdlib.h>

#include "model_experts.h"
#include "model_launch.h"
#include "model_rope.h"
#include "model_weights.h"
#include "proto_require.h"

typedef struct {
    model_t base; /* first */
    model_weights_t weights;
    model_ends_t ends;
    model_layer_t *layers;    /* [layer_count] */
    model_experts_t *experts; /* [layer_count] */
    const float *frequencies; /* device, [rope_dim / 2] */
} gpt_oss_t;

static size_t
gpt_oss_workspace_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return model_rows_lay_out(base, NULL, rows, logit_rows).total_bytes;
}

static float *
gpt_oss_forward(model_t *base, const model_context_t *context)
{
    const gpt_oss_t *self = (const gpt_oss_t *)base;
    const file_config_t *c = &base->config;
    require(context->gather_rows != NULL || context->logit_rows == context->rows ||
            context->logit_rows == 0);
    model_rows_t w =
        model_rows_lay_out(base, context->workspace, context->rows, context->logit_rows);
    model_launch_embed(base, context, &self->ends, &w);
    model_launch_angles(base, context, self->frequencies, w.angles[FILE_LAYER_FULL]);
    for (uint32_t i = 0; i < c->layer_count; i++) {
        const model_layer_t *layer = &self->layers[i];
        model_launch_mark(base, context, i + 1);
        model_launch_norm(base, context, w.x, i == 0 ? NULL : w.delta, layer->attn_norm, w.normed);
        model_launch_attention(base, context, layer, &w, i, w.angles[FILE_LAYER_FULL]);
        model_launch_norm(base, context, w.x, w.delta, layer->ffn_norm, w.normed);
        model_launch_experts(base, context, &self->experts[i], &w);
        model_launch_tap(base, context, &w, i, NULL);
    }
    model_launch_tap(base, context, &w, MODEL_TAP_FINAL, self->ends.output_norm);
    model_launch_logits(base, context, &self->ends, &w, w.delta);
    model_launch_mark(base, context, 0);
    return w.logits;
}

static void
gpt_oss_destroy(model_t *base)
{
    gpt_oss_t *self = (gpt_oss_t *)base;
    model_weights_fini(&self->weights);
    free(self->experts);
    free(self->layers);
    free(self);
}

static proto_status_t
load_all(gpt_oss_t *self)
{
    const file_config_t *c = &self->base.config;
    proto_status_t status = model_ends_load(&self->weights, c, &self->ends);
    if (status == STATUS_OK) {
        status = model_rope_load(&self->weights, c, &self->frequencies);
    }
    for (uint32_t i = 0; status == STATUS_OK && i < c->layer_count; i++) {
        status = model_layer_load(&self->weights, c, i, &self->layers[i]);
        if (status == STATUS_OK) {
            status = model_experts_load(&self->weights, c, i, &self->experts[i]);
        }
    }
    return status;
}

static const model_vtable_t gpt_oss_vtable = {
    .destroy = gpt_oss_destroy,
    .workspace_bytes = gpt_oss_workspace_bytes,
    .forward = gpt_oss_forward,
    .gives_taps = true,
};

proto_status_t
model_gpt_oss_new(device_t *device, const file_model_t *file, model_progress_fn progress,
                  void *progress_context, model_t **out_p)
{
    const file_config_t *config = file_model_config(file);
    if (config->head_dim > KERN_HEAD_DIM_MAX || config->head_dim % 16 != 0 ||
        config->rope_scaling == FILE_ROPE_SCALING_TABLE) {
        return STATUS_ERR_UNSUPPORTED;
    }
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    gpt_oss_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->base.vtable = &gpt_oss_vtable;
    self->base.device = device;
    self->base.config = *config;
    self->layers = calloc(config->layer_count, sizeof *self->layers);
    self->experts = calloc(config->layer_count, sizeof *self->experts);
    if (self->layers == NULL || self->experts == NULL) {
        goto err_free_layers;
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
    free(self->experts);
    free(self->layers);
    free(self);
err:
    return status;
}
