/* model_narrowing.h - the contract of a model whose row count drops once, at a fixed layer, by an
 * amount that the rows of the forward do not tell: its later layers run on the last rows of each
 * prompt only.
 *
 * Such a forward cannot be one token-shaped graph.  The model declares the split instead: encoder,
 * narrowing, decoder, finish; its forward is their composition, so eager and replayed prefill are
 * one path.  The prefill graph captures the encoder for each token bucket and the decoder for each
 * bucket of decoder rows, and runs narrowing and finish eagerly.
 *
 * What passes between the stages lies in buffers of the caller, at addresses of its choice.  Layers
 * read their row plan from the live context in a break, never from an arg that a capture would
 * freeze.  The device thread. */
#ifndef MODEL_NARROWING_H
#define MODEL_NARROWING_H

#include "model_base.h"

/* The rows that go on: of each extend a suffix of its rows, every decode row.  A forward of decode
 * requests, or an idle one, has no view: all rows go on. */
typedef struct model_view {
    uint32_t rows;
    uint32_t extend_rows;       /* of the extends; decode rows follow */
    const int32_t *source_rows; /* [rows] device: rows of the forward */
    const int32_t *cu_lens;     /* [num_extends + 1] device: running sums of the extends' rows */
    const int32_t *gather_rows; /* [logit_rows] device: rows of the view that get logits */
} model_view_t;

typedef struct model_narrowing {
    /* Rows of one extend that go on at most; of a prompt that this forward does not complete, one
     * does. */
    uint32_t decoder_rows_per_request_max;
    uint32_t (*encoded_cols)(const model_t *self); /* floats that the encoder puts out for a row */
    uint32_t (*state_cols)(const model_t *self);   /* and what the decoder takes and gives */
    /* Workspace of any stage over so many rows; grows with both. */
    size_t (*stage_bytes)(const model_t *self, uint32_t rows, uint32_t logit_rows);
    /* The token-shaped layers, on context->rows rows: encoded [rows][encoded_cols]. */
    void (*encoder_forward)(model_t *self, const model_context_t *context, float *encoded);
    /* All rows in, the view's rows out: state [view rows][state_cols]. */
    void (*narrowing_forward)(model_t *self, const model_context_t *context, const float *encoded,
                              float *state);
    /* The remaining layers, on whatever context->rows rows it is given, in place. */
    void (*decoder_forward)(model_t *self, const model_context_t *context, float *state);
    /* Logits of context->gather_rows (NULL = all) of the context->rows rows of state; they lie in
     * the workspace. */
    float *(*finish_forward)(model_t *self, const model_context_t *context, float *state);
} model_narrowing_t;

/* For the model's vtable: the composition, and the workspace that it needs. */
float *model_narrowing_forward(model_t *self, const model_context_t *context);
size_t model_narrowing_workspace_bytes(const model_t *self, uint32_t rows, uint32_t logit_rows);

/* The context of the narrowed stages of `context`: its rows and gathers are the view's. */
model_context_t model_narrowing_context(const model_context_t *context);

/* Bytes of `rows` rows of so many floats, rounded up to DEVICE_MEMORY_ALIGN. */
size_t model_narrowing_rows_bytes(uint32_t rows, uint32_t cols);

#endif
