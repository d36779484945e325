/* draft_parts.h - launches and loads that the forward codes of draft models have in common, beside
 * model_launch.h.  Internal to gpu/draft.  Activations are rows (KERN_FORM_ROWS): devices with
 * another operand form do not run drafts yet.  The device thread. */
#ifndef DRAFT_PARTS_H
#define DRAFT_PARTS_H

#include "file_draft.h"
#include "model_launch.h"

/* A draft model: its own weights, and what the target lends. */
typedef struct {
    model_t base; /* first */
    model_weights_t weights;
    model_weights_t lent; /* embedding and head of the target's file, where they are not its own */
    model_ends_t ends;
    model_layer_t *layers; /* [layer_count] */
    const float *frequencies;
} draft_model_t;

/* Loads ends, frequencies and layers; draft_model_fini() is due in either case. */
MUST_CHECK proto_status_t draft_model_load(draft_model_t *self, device_t *device,
                                           const file_model_t *file, const file_draft_t *draft,
                                           const file_model_t *target);
void draft_model_fini(draft_model_t *self);

/* Takes parts of a workspace; with NULL memory it only counts. */
typedef struct {
    uint8_t *memory;
    size_t used_bytes;
} draft_arena_t;
float *draft_arena_take(draft_arena_t *self, size_t rows, size_t cols);

/* output = norm(input) * weight, with strides; not in place. */
typedef struct {
    const float *input;
    size_t input_stride;
    const float *weight;
    float *output;
    size_t output_stride;
    uint32_t rows;
} draft_norm_t;
void draft_launch_norm(const model_t *self, const model_context_t *context,
                       const draft_norm_t *norm);

/* y = x W^T of dense rows [rows][weight.cols] to rows `output_stride` apart. */
typedef struct {
    const float *input;
    uint32_t rows;
    kern_weight_t weight;
    float *output;
    size_t output_stride;
    bool accumulates;
} draft_product_t;
void draft_launch_product(const model_t *self, const model_context_t *context,
                          const model_rows_t *rows, const draft_product_t *product);

/* output[i] = input[indices[i]], `cols` floats each. */
void draft_launch_gather(const model_t *self, const model_context_t *context, const float *input,
                         uint32_t input_rows, uint32_t cols, const int32_t *indices, uint32_t rows,
                         float *output);
/* output = a + b of the context's rows of hidden_size. */
void draft_launch_add(const model_t *self, const model_context_t *context, const float *a,
                      const float *b, float *output);

#endif
