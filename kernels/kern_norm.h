/* kern_norm.h - RMS normalisation, with the residual add before it or a gate after it. */
#ifndef KERN_NORM_H
#define KERN_NORM_H

#include <stddef.h>
#include <stdint.h>

#include "kern_form.h"
#include "kern_share.h"

/* x = x + residual (if there is one; the sum is stored in x), then
 * output = x / sqrt(mean(x * x) + epsilon) * weight. */
typedef struct {
    float *input; /* [rows][input_stride]; written only if residual is not NULL */
    size_t input_stride;
    const float *residual; /* [rows][residual_stride], or NULL */
    size_t residual_stride;
    const float *weight; /* [cols], or NULL = ones */
    float *output;       /* [rows][output_stride]; may be input itself without residual */
    size_t output_stride;
    uint32_t rows;
    uint32_t cols;
    float epsilon;
    kern_form_t output_form; /* OPERAND: output_stride is not used */
} kern_rms_norm_args_t;

void kern_rms_norm_host(const void *args, kern_share_t *share);

/* For each head of a row: output = x / sqrt(mean(x * x) + epsilon) * weight * silu(gate), the norm
 * at the end of a gated recurrent layer.  Heads lie one after the other. */
typedef struct {
    const float *input; /* [rows][input_stride] */
    size_t input_stride;
    const float *gate; /* [rows][gate_stride] */
    size_t gate_stride;
    const float *weight; /* [head_dim], the same for all heads */
    float *output;       /* [rows][output_stride]; may be the input */
    size_t output_stride;
    kern_form_t output_form; /* OPERAND: output_stride is not used, and output is not the input */
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
    float epsilon;
} kern_gated_norm_args_t;

void kern_gated_norm_host(const void *args, kern_share_t *share);

#endif
