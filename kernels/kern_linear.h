/* kern_linear.h - matrix products with weights of any type, not expanded.
 *
 * y[r][n] (+)= sum over k of x[r][k] * W[n][k], + bias[n].  float32 in and out.
 * Weights are multiplied in float32; quantised ones are expanded in registers.  On request the
 * activations are rounded to 8 bits for quantised weights: quantised once for each row into the
 * workspace (int8 per 32 values with a half precision scale; per 256 values for the K types),
 * products are exact integers for each block.  Blocks are summed in float32 in the order of k.  A
 * row's result never depends on the other rows, their number, or the threads. */
#ifndef KERN_LINEAR_H
#define KERN_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"
#include "kern_type.h"

enum {
    KERN_LINEAR_WEIGHTS_MAX = 3,
};

/* A weight matrix: rows = outputs, cols = inputs, row after row.  The data is lent. */
typedef struct {
    const void *data;
    kern_type_t type;
    uint32_t rows;
    uint32_t cols;
    bool packed; /* data was written by kern_weight_pack() */
} kern_weight_t;

/* What quantised weights are multiplied with. */
typedef enum {
    KERN_ACTIVATIONS_FLOAT = 0, /* the input as it is */
    KERN_ACTIVATIONS_INT8 = 1,  /* the input rounded to 8 bits: faster for many rows, less exact */
} kern_activations_t;

typedef struct {
    const float *input;    /* [rows][input_stride] */
    size_t input_stride;   /* floats, at least the weights' cols */
    uint32_t rows;         /* 0 does nothing */
    uint32_t weight_count; /* 1..KERN_LINEAR_WEIGHTS_MAX, same cols */
    kern_weight_t weights[KERN_LINEAR_WEIGHTS_MAX];
    const float *biases[KERN_LINEAR_WEIGHTS_MAX]; /* [weight rows]; NULL = none */
    float *outputs[KERN_LINEAR_WEIGHTS_MAX];      /* [rows][output_stride] */
    size_t output_strides[KERN_LINEAR_WEIGHTS_MAX];
    bool accumulate;             /* y += ... instead of y = ... */
    void *workspace;             /* 64-byte aligned; shared by the team */
    size_t workspace_size_bytes; /* at least kern_linear_workspace_size_bytes() */
    kern_activations_t activations;
} kern_linear_args_t;

/* outputs must not overlap the input. */
void kern_linear_host(const void *args, kern_share_t *share);

/* What kern_linear and kern_gate_up need for so many rows of so many inputs, any weight type
 * and kind of activations. */
size_t kern_linear_workspace_size_bytes(uint32_t rows, uint32_t cols);

/* What bends the gate's values. */
typedef enum {
    KERN_GATE_SILU = 0,
    KERN_GATE_GELU_TANH = 1,
} kern_gate_t;

/* h[r][n] = bend(x . gate[n]) * (x . up[n]), with one preparation of x. */
typedef struct {
    const float *input; /* [rows][input_stride] */
    size_t input_stride;
    uint32_t rows;
    kern_weight_t gate; /* gate and up: same rows and cols */
    kern_weight_t up;
    float *output; /* [rows][output_stride]; must not overlap the input */
    size_t output_stride;
    void *workspace;
    size_t workspace_size_bytes; /* at least kern_linear_workspace_size_bytes() */
    kern_activations_t activations;
    kern_gate_t bend;
} kern_gate_up_args_t;

void kern_gate_up_host(const void *args, kern_share_t *share);

/* Packing is optional and done once, at load: 16 rows are interleaved, so that one-token steps
 * stream weights at memory speed.  Same results, bit for bit, as without.
 * 0 = this type is not packed (F32, F16, BF16): use the data as it is.  Otherwise at most 3 % more
 * than the original, plus padding to 16 rows. */
size_t kern_weight_packed_size_bytes(const kern_weight_t *weight);

/* Writes kern_weight_packed_size_bytes() bytes at `out` (64-byte aligned) and returns the weight
 * that stands for them.  `weight->data` is not needed afterwards. */
kern_weight_t kern_weight_pack(const kern_weight_t *weight, void *out);

#endif
