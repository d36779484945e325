/* kern_table.h - inside kernels/: the microkernels of one instruction set. */
#ifndef KERN_TABLE_H
#define KERN_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_attention.h"
#include "kern_pack.h"
#include "kern_path.h"
#include "kern_type.h"

/* Before a loop of a constant few rounds whose arrays are to live in registers.  Not under a
 * sanitizer, whose checks would make the unrolled bodies minutes of compilation. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KERN_UNROLL
#elif defined(__clang__)
#define KERN_UNROLL _Pragma("unroll")
#else
#define KERN_UNROLL _Pragma("GCC unroll 16")
#endif

/* `rows` rows of activations times one tile of 16 weight rows. */
typedef struct {
    kern_type_t type;
    const uint8_t *tile;
    uint32_t cols;
    const uint8_t *records; /* the first row's record; what it holds: kern_quant_t */
    size_t record_stride;   /* bytes */
    const float *input;     /* of the first row; for tile_float */
    size_t input_stride;    /* floats */
    uint32_t rows;
    uint32_t out_count; /* 1..16 weight rows that exist */
    float *out;         /* the first row's first output */
    size_t out_stride;  /* floats */
    const float *bias;  /* at this tile, or NULL */
    bool accumulate;
} kern_tile_args_t;

/* Rows of activations times `out_count` rows of float weights. */
typedef struct {
    kern_type_t type; /* F32, F16, BF16 */
    const uint8_t *weights;
    size_t weight_stride; /* bytes */
    uint32_t cols;
    const float *input;
    size_t input_stride; /* floats */
    uint32_t rows;
    uint32_t out_count;
    float *out;
    size_t out_stride;
    const float *bias;
    bool accumulate;
} kern_dot_args_t;

/* One query row and head, within one split of the keys. */
typedef struct {
    const float *q;
    float *scores; /* [KERN_ATTENTION_SPLIT], scratch */
    float *values; /* [padded value_dim]: sum of p * v */
    float max;     /* -infinity if there is no key */
    float sum;
    uint32_t begin; /* keys begin..end - 1 of the split are seen */
    uint32_t end;
} kern_split_query_t;

/* All queries of one key head and split. */
typedef struct {
    const kern_attention_cache_t *cache;
    uint32_t value_dim;   /* of a value, at most the head_dim that values lie apart */
    const int32_t *pages; /* the request's row of the page table */
    uint32_t kv_head;
    uint32_t position;  /* of the split's first key */
    uint32_t key_count; /* keys in the split, 1..KERN_ATTENTION_SPLIT */
    kern_split_query_t *queries;
    uint32_t query_count;
    float *block; /* scratch: [KERN_ATTENTION_BLOCK * padded head_dim] */
} kern_split_args_t;

/* Rows of one request and value head, one after the other, for one slice of the state's columns. */
typedef struct {
    uint32_t rows; /* at least 1 */
    uint32_t k_dim;
    const float *q; /* [rows][k_dim], normalised */
    const float *k;
    const float *decay; /* [rows] */
    const float *beta;
    const float *v; /* [rows][v_stride], at the slice's first column */
    size_t v_stride;
    float *output; /* [rows][output_stride], or NULL */
    size_t output_stride;
    uint32_t cols;      /* 1..gdn_slice columns that exist */
    float *state;       /* [k_dim][gdn_slice]: the state, before and after */
    const float *ahead; /* [k_dim][state_stride]: what will be wanted next, or NULL */
    float *to;          /* the states after rows to_first .. go to to, to + to_step, ...; or NULL */
    size_t to_step;     /* floats */
    size_t state_stride; /* of ahead and to: v_dim */
    uint32_t to_first;
} kern_gdn_slice_args_t;

typedef struct {
    uint32_t cols;
    float epsilon;
} kern_gated_norm_shape_t;

/* One row of a convolution, some of its channels. */
typedef struct {
    const float *const *inputs; /* [width]: the rows under the taps */
    const float *weight;        /* [width][weight_stride] */
    size_t weight_stride;
    const float *bias; /* or NULL */
    uint32_t width;
    bool silu;
    float *output;
    uint32_t cols;
} kern_conv_row_args_t;

enum {
    KERN_ATTENTION_BLOCK = 64, /* keys transposed at a time */
    KERN_EXP_BLOCK = 1024,     /* values summed in float before double takes over */
};

typedef struct {
    void (*quantize_row)(kern_quant_t quant, const float *input, uint32_t cols, uint8_t *record);
    void (*tile)(const kern_tile_args_t *args);       /* int8 activations */
    void (*tile_float)(const kern_tile_args_t *args); /* float activations */
    void (*sum_row)(const float *input, uint32_t cols, float *out);
    void (*dot)(const kern_dot_args_t *args);
    void (*split)(const kern_split_args_t *args);
    /* (max, sum, values) absorbs the next split. */
    void (*merge)(float *max, float *sum, float *values, float next_max, float next_sum,
                  const float *next_values, uint32_t head_dim);
    void (*rms_norm_row)(float *input, const float *residual, const float *weight, float *output,
                         uint32_t cols, float epsilon);
    void (*silu_mul_row)(const float *gate, const float *up, float *output, uint32_t cols);
    void (*gelu_mul_row)(const float *gate, const float *up, float *output, uint32_t cols);
    /* The activation of kern_expert_gate_up. */
    void (*swiglu_oai_row)(const float *gate, const float *up, float alpha, float limit,
                           float *output, uint32_t cols);
    /* output = sum over `count` rows, in order, of weights[i] * input row i */
    void (*weigh_rows)(const float *input, size_t input_stride, const float *weights,
                       uint32_t count, float *output, uint32_t cols);
    void (*add_row)(const float *a, const float *b, float *output, uint32_t cols);
    void (*scale_row)(const float *input, float scale, float *output, uint32_t cols);
    void (*rotate)(const float *input, const float *angles, uint32_t rope_dim, bool interleaved,
                   float *output);
    void (*half_row)(const float *input, uint16_t *output, uint32_t cols);
    /* Largest value, and whether there is a NaN. */
    float (*max_row)(const float *input, uint32_t count, bool *nan);
    /* The first index of that value. */
    uint32_t (*find)(const float *input, uint32_t count, float value);
    /* out[i] = exp(input[i] * scale - shift); sums[j] = the sum of KERN_EXP_BLOCK of them; returns
     * the sum of all, in a fixed order.  out and sums may be NULL. */
    double (*exp_row)(const float *input, uint32_t count, float scale, float shift, float *out,
                      float *sums);
    /* Indices of values >= limit, ascending; stops at out_max. */
    uint32_t (*select_ge)(const float *input, uint32_t count, float limit, uint32_t *out,
                          uint32_t out_max);
    uint32_t gdn_slice; /* columns of a slice: 16 or 32 */
    /* Columns 0 .. cols - 1 of a state [k_dim][state_stride] into slices, one after the other. */
    void (*gdn_load)(const float *from, size_t state_stride, uint32_t k_dim, uint32_t cols,
                     float *state);
    void (*gdn_rows)(const kern_gdn_slice_args_t *args);
    /* output = input / sqrt(sum of squares + epsilon) * scale */
    void (*unit_row)(const float *input, float epsilon, float scale, float *output, uint32_t cols);
    void (*gated_norm_row)(const float *input, const float *gate, const float *weight,
                           float *output, const kern_gated_norm_shape_t *shape);
    void (*sigmoid_mul_row)(const float *input, const float *gate, float *output, uint32_t cols);
    void (*conv_row)(const kern_conv_row_args_t *args);
} kern_table_t;

/* The part of a path that is compiled by itself (kern_simd_float_*.c), for its size. */
#define KERN_FLOAT_PATH(path)                                                                      \
    void kern_tile_float_##path(const kern_tile_args_t *args);                                     \
    void kern_sum_row_##path(const float *input, uint32_t cols, float *out);
KERN_FLOAT_PATH(portable)
#if defined(__x86_64__)
KERN_FLOAT_PATH(avx2)
KERN_FLOAT_PATH(avx512)
#endif
#undef KERN_FLOAT_PATH

extern const kern_table_t kern_table_portable;
#if defined(__x86_64__)
extern const kern_table_t kern_table_avx2;
extern const kern_table_t kern_table_avx512;
#endif

const kern_table_t *kern_table(kern_path_t path);

static inline uint32_t
kern_padded_dim(uint32_t head_dim)
{
    return (head_dim + 15u) & ~15u;
}

#endif
