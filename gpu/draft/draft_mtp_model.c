/* One depth. */
#include <stdlib.h>

#include "draft_mtp.h"
#include "proto_require.h"

typedef struct {
    const float *embed_norm;
    const float *hidden_norm;
    const float *head_norm;
    kern_weight_t eh_proj;
} depth_t;

typedef struct {
    draft_model_t draft; /* first */
    depth_t *depths;     /* [layer_count] */
} mtp_t;

typedef struct {
    model_rows_t w;
    float *pair; /* [rows][2 hidden] */
    float *live; /* [logit_rows][hidden] */
    size_t total_bytes;
} parts_t;

static parts_t
lay_out(const model_t *base, uint8_t *memory, uint32_t rows, uint32_t logit_rows)
{
    size_t hidden = base->config.hidden_size;
    parts_t p = {.w = model_rows_lay_out(base, memory, rows, logit_rows)};
    draft_arena_t arena = {memory, p.w.total_bytes};
    p.pair = draft_arena_take(&arena, rows, 2 * hidden);
    p.live = draft_arena_take(&arena, logit_rows, hidden);
    size_t bytes = kern_linear_workspace_size_bytes(rows, 2 * (uint32_t)hidden);
    if (bytes > p.w.linear_workspace_bytes) {
        p.w.linear_workspace = draft_arena_take(&arena, 1, bytes / sizeof(float) + 1);
        p.w.linear_workspace_bytes = bytes;
    }
    p.total_bytes = arena.used_bytes;
    return p;
}

static size_t
mtp_workspace_bytes(const model_t *base, uint32_t rows, uint32_t logit_rows)
{
    return lay_out(base, NULL, rows, logit_rows).total_bytes;
}

static float *
mtp_forward(model_t *base, const model_context_t *context)
{
    const mtp_t *self = (const mtp_t *)base;
    const model_draft_io_t *io = context->draft;
    require(io != NULL);
    require(io->depth < base->config.layer_count);
    require(io->live_rows != NULL);
    require(io->live_count == context->logit_rows);
    const depth_t *depth = &self->depths[io->depth];
    const model_layer_t *layer = &self->draft.layers[io->depth];
    uint32_t hidden = base->config.hidden_size;
    parts_t p = lay_out(base, context->workspace, context->rows, context->logit_rows);
    model_launch_embed(base, context, &self->draft.ends, &p.w);
    model_launch_angles(base, context, self->draft.frequencies, p.w.angles[0]);
    const draft_norm_t norms[] = {
        {p.w.x, hidden, depth->embed_norm, p.pair, 2 * (size_t)hidden, context->rows},
        {io->hidden, io->hidden_stride, depth->hidden_norm, p.pair + hidden, 2 * (size_t)hidden,
         context->rows},
    };
    draft_launch_norm(base, context, &norms[0]);
    draft_launch_norm(base, context, &norms[1]);
    draft_product_t enter = {.input = p.pair,
                             .rows = context->rows,
                             .weight = depth->eh_proj,
                             .output = p.w.x,
                             .output_stride = hidden};
    draft_launch_product(base, context, &p.w, &enter);
    model_launch_norm(base, context, p.w.x, NULL, layer->attn_norm, p.w.normed);
    model_launch_attention(base, context, layer, &p.w, io->depth, p.w.angles[0]);
    model_launch_norm(base, context, p.w.x, p.w.delta, layer->ffn_norm, p.w.normed);
    model_launch_ffn(base, context, layer, &p.w);
    draft_launch_add(base, context, p.w.x, p.w.delta, io->hidden_out);
    draft_launch_gather(base, context, io->hidden_out, context->rows, hidden, io->live_rows,
                        io->live_count, p.live);
    draft_norm_t last = {p.live, hidden, depth->head_norm, p.w.gathered, hidden, io->live_count};
    draft_launch_norm(base, context, &last);
    draft_product_t head = {.input = p.w.gathered,
                            .rows = io->live_count,
                            .weight = self->draft.ends.output,
                            .output = p.w.logits,
                            .output_stride = base->config.vocab_size};
    draft_launch_product(base, context, &p.w, &head);
    return p.w.logits;
}

static void
mtp_destroy(model_t *base)
{
    mtp_t *self = (mtp_t *)base;
    draft_model_fini(&self->draft);
    free(self->depths);
    free(self);
}

static proto_status_t
load_depth(mtp_t *self, uint32_t index)
{
    model_weights_t *weights = &self->draft.weights;
    uint32_t hidden = self->draft.base.config.hidden_size;
    depth_t *depth = &self->depths[index];
    const struct {
        file_role_t role;
        const float **out;
    } norms[] = {
        {FILE_ROLE_DRAFT_EMBED_NORM, &depth->embed_norm},
        {FILE_ROLE_DRAFT_HIDDEN_NORM, &depth->hidden_norm},
        {FILE_ROLE_DRAFT_HEAD_NORM, &depth->head_norm},
    };
    proto_status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof norms / sizeof *norms; i++) {
        status = model_weights_vector(weights, norms[i].role, index, hidden, 0.0f, norms[i].out);
    }
    return status == STATUS_OK
               ? model_weights_matrix(weights, FILE_ROLE_DRAFT_EH_PROJ, index, &depth->eh_proj)
               : status;
}

static const model_vtable_t mtp_vtable = {
    .destroy = mtp_destroy,
    .workspace_bytes = mtp_workspace_bytes,
    .forward = mtp_forward,
};

proto_status_t
draft_mtp_model_new(device_t *device, const file_model_t *file, const file_draft_t *draft,
                    const file_model_t *target, model_t **out_p)
{
    uint32_t layers = file_model_config(file)->layer_count;
    mtp_t *self = calloc(1, sizeof *self);
    depth_t *depths = calloc(layers, sizeof *depths);
    if (self == NULL || depths == NULL) {
        free(self);
        free(depths);
        return STATUS_ERR_NO_MEMORY;
    }
    self->depths = depths;
    self->draft.base.vtable = &mtp_vtable;
    proto_status_t status = draft_model_load(&self->draft, device, file, draft, target);
    for (uint32_t i = 0; status == STATUS_OK && i < layers; i++) {
        status = load_depth(self, i);
    }
    if (status != STATUS_OK) {
        mtp_destroy(&self->draft.base);
        return status;
    }
    *out_p = &self->draft.base;
    return STATUS_OK;
}
