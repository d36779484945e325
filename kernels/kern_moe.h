/* kern_moe.h - mixture of experts: router, products of each expert with the rows that chose it, and
 * the weighted sum of what they give.
 *
 * A "pair" is a row and one of its choices: pair = row * top_k + choice.  Pairs are sorted by
 * expert so that an expert's weights are read once for all its rows; results go to the pair's own
 * place, so that order shows nowhere.  An output of a pair is one chain over the columns, the sum
 * over a row's choices goes in the order of the choices: a row's bits depend on nothing but the
 * row.
 *
 * kern_moe_route -> kern_expert_gate_up -> kern_expert_linear -> kern_moe_combine */
#ifndef KERN_MOE_H
#define KERN_MOE_H

#include <stddef.h>
#include <stdint.h>

#include "kern_linear.h"
#include "kern_share.h"

enum {
    KERN_MOE_EXPERTS_MAX = 1024,
    KERN_MOE_TOP_K_MAX = 64,
    KERN_MOE_COLS_MAX = 1 << 16, /* some rows of an expert's input must fit a thread's scratch */
};

/* Each row chooses its top_k largest logits, the smaller index first among equals; weights are the
 * softmax over the chosen ones.  A NaN counts as larger than everything and makes the row's weights
 * NaN. */
typedef struct {
    const float *logits; /* [rows][logit_stride] */
    size_t logit_stride;
    uint32_t rows;
    uint32_t expert_count; /* 1..KERN_MOE_EXPERTS_MAX */
    uint32_t top_k;        /* 1..KERN_MOE_TOP_K_MAX, at most expert_count */
    int32_t *experts;      /* [rows][top_k]: of each pair, the largest logit first */
    float *weights;        /* [rows][top_k] */
    int32_t *order;        /* [rows * top_k]: pairs by expert, then ascending */
    int32_t *offsets;      /* [expert_count + 1]: expert e has order[offsets[e]..offsets[e + 1]) */
} kern_moe_route_args_t;

void kern_moe_route_host(const void *args, kern_share_t *share);

/* The same matrix of every expert, one after the other. */
typedef struct {
    const void *data;
    kern_type_t type;           /* KERN_TYPE_F32, _F16 or _BF16 */
    uint32_t rows;              /* outputs of one expert */
    uint32_t cols;              /* inputs; at most KERN_MOE_COLS_MAX */
    size_t expert_stride_bytes; /* from expert to expert */
    const float *bias;          /* [experts][rows], or NULL */
} kern_expert_weight_t;

/* Which rows meet which expert, as kern_moe_route left it; read at execution. */
typedef struct {
    const int32_t *order;
    const int32_t *offsets;
    uint32_t expert_count;
    uint32_t pair_count;
} kern_expert_rows_t;

/* h[pair] = swiglu_oai(x . gate + its bias, x . up + its bias) of the pair's expert, where x is the
 * pair's row:  min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + 1). */
typedef struct {
    kern_expert_rows_t pairs;
    const float *input; /* [pair_count / input_divisor][input_stride] */
    size_t input_stride;
    uint32_t input_divisor;    /* pair p reads row p / this: top_k */
    kern_expert_weight_t gate; /* gate and up: same type, rows and cols */
    kern_expert_weight_t up;
    float alpha;
    float limit;
    float *output; /* [pair_count][output_stride]; must not overlap the input */
    size_t output_stride;
} kern_expert_gate_up_args_t;

void kern_expert_gate_up_host(const void *args, kern_share_t *share);

/* y[pair] = x . weight + bias of the pair's expert. */
typedef struct {
    kern_expert_rows_t pairs;
    const float *input; /* [pair_count / input_divisor][input_stride] */
    size_t input_stride;
    uint32_t input_divisor; /* pair p reads row p / this: 1 for results of kern_expert_gate_up */
    kern_expert_weight_t weight;
    float *output; /* [pair_count][output_stride]; must not overlap the input */
    size_t output_stride;
} kern_expert_linear_args_t;

void kern_expert_linear_host(const void *args, kern_share_t *share);

/* output[row] = sum over the choices, in order, of weight * input[pair]. */
typedef struct {
    const float *input; /* [rows * top_k][input_stride] */
    size_t input_stride;
    const float *weights; /* [rows][top_k] */
    uint32_t rows;
    uint32_t top_k;
    uint32_t cols;
    float *output; /* [rows][output_stride]; must not overlap the input */
    size_t output_stride;
} kern_moe_combine_args_t;

void kern_moe_combine_host(const void *args, kern_share_t *share);

#endif
