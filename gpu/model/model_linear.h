/* model_linear.h - one recurrent (Gated DeltaNet) layer: its weights on the device, its rows in a
 * forward's workspace, and its launches.
 *
 * Projections, the convolution with the delta rule (a break: which states are read and written is
 * the backend's), the gated norm, the projection back.  Nothing is owned here.  The device
 * thread. */
#ifndef MODEL_LINEAR_H
#define MODEL_LINEAR_H

#include "model_launch.h"

typedef struct {
    kern_weight_t qkv;
    kern_weight_t z;
    kern_weight_t a;
    kern_weight_t b;
    kern_weight_t out;
    const float *conv;    /* [taps][channels] */
    const float *rate;    /* [value heads]: exp(A_log) */
    const float *dt_bias; /* [value heads] */
    const float *norm;    /* [value head dim] */
} model_linear_t;

/* Rows of a recurrent layer; each as [rows][its width]. */
typedef struct {
    float *qkv;
    float *mixed;
    float *z;
    float *a;
    float *b;
    float *core;
    float *normed;   /* of the core, gated: what the product reads, KERN_FORM_OPERAND */
    void *workspace; /* of the products */
    size_t workspace_bytes;
    size_t total_bytes;
} model_linear_rows_t;

/* Lays out `memory` (NULL: only counts). */
model_linear_rows_t model_linear_rows_lay_out(const model_t *self, uint8_t *memory, uint32_t rows);

/* STATUS_ERR_UNSUPPORTED, STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t model_linear_load(model_weights_t *weights, const file_config_t *config,
                                            uint32_t layer, model_linear_t *out);

/* The layer `index`: rows->normed into rows->delta. */
void model_launch_linear(const model_t *self, const model_context_t *context,
                         const model_linear_t *layer, const model_rows_t *rows,
                         const model_linear_rows_t *own, uint32_t index);

#endif
