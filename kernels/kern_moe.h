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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_linear.h"
#include "kern_share.h"

enum {
    KERN_MOE_EXPERTS_MAX = 1024,
    KERN_MOE_TOP_K_MAX = 64,
    KERN_MOE_COLS_MAX = 1 << 16, /* some rows of an expert's input must fit a thread's scratch */
};

/* What an expert's logit becomes. */
typedef enum {
    KERN_MOE_SOFTMAX = 0, /* weights are the softmax over the chosen logits */
    KERN_MOE_SIGMOID = 1, /* scores 1 / (1 + e^-logit); weights are the chosen scores */
} kern_moe_scoring_t;

/* Each row chooses its top_k largest logits, the smaller index first among equals.  A NaN counts as
 * larger than everything and makes weights NaN.
 *
 * KERN_MOE_SIGMOID (DeepSeek-V3, 2024): the choice, not the weight, goes by score + select_bias.
 * With groups the experts, in order, form group_count groups of one size; only those of the
 * group_used_count groups whose two best sums are largest can be chosen.  Weights are divided by
 * their sum + 1e-20 if wanted, then multiplied by weight_scale. */
typedef struct {
    const float *logits; /* [rows][logit_stride] */
    size_t logit_stride;
    uint32_t rows;
    uint32_t expert_count;      /* 1..KERN_MOE_EXPERTS_MAX */
    uint32_t top_k;             /* 1..KERN_MOE_TOP_K_MAX, at most expert_count */
    kern_moe_scoring_t scoring; /* the fields below down to weight_scale: KERN_MOE_SIGMOID only */
    const float *select_bias;   /* [expert_count], or NULL */
    uint32_t group_count;       /* divides expert_count, 2 experts or more each; 0 or 1 = none */
    uint32_t group_used_count;  /* 1..group_count, of top_k experts or more together */
    bool is_normalised;
    float weight_scale;
    int32_t *experts; /* [rows][top_k]: of each pair, the best first */
    float *weights;   /* [rows][top_k] */
    int32_t *order;   /* [rows * top_k]: pairs by expert, then ascending */
    int32_t *offsets; /* [expert_count + 1]: expert e has order[offsets[e]..offsets[e + 1]) */
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

/* What joins g and u. */
typedef enum {
    /* min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + 1) */
    KERN_EXPERT_SWIGLU_OAI = 0,
    KERN_EXPERT_SILU = 1, /* g * sigmoid(g) * u; alpha and limit do not matter */
} kern_expert_bend_t;

/* h[pair] = bend(x . gate + its bias, x . up + its bias) of the pair's expert, where x is the
 * pair's row. */
typedef struct {
    kern_expert_rows_t pairs;
    const float *input; /* [pair_count / input_divisor][input_stride] */
    size_t input_stride;
    uint32_t input_divisor;    /* pair p reads row p / this: top_k */
    kern_expert_weight_t gate; /* gate and up: same type, rows and cols */
    kern_expert_weight_t up;
    kern_expert_bend_t bend;
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
