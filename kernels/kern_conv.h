/* kern_conv.h - the causal convolution in front of a recurrent layer, over ragged rows.
 *
 * Depthwise, a few taps wide: output[t][c] = act(bias[c] + sum over j < W of weight[j][c] *
 * x[t - (W - 1) + j][c]), added in the order of j, where x goes on into the past: before a
 * request's first row stands its window, the last W - 1 inputs.  The sum of a row depends on those
 * W inputs only, so neither batch, chunking, threads nor the operation that computed it change its
 * bits.
 *
 * A window lies in a block of the state cache: [W - 1][channels] float32, the oldest input first.
 * Block ids say where it comes from and goes to, and are read at execution:
 *   as input   > 0 the block; 0 = a fresh request: zeros, and nothing is read; < 0 = a padded row,
 *              whose state is not touched and whose outputs are zeros;
 *   as output  > 0 the block; else no window is written.
 * Ids of block_count and above are treated as < 0.  The input block may be the output block, or one
 * that several requests read; an output block belongs to one request. */
#ifndef KERN_CONV_H
#define KERN_CONV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"

enum {
    KERN_CONV_WIDTH_MAX = 8,   /* taps */
    KERN_CONV_BLOCK_ROWS = 64, /* rows of a program of the prefill */
    KERN_CONV_PAD = -1,        /* in the program maps: no work */
};

/* The weights, and what they are applied to. */
typedef struct {
    const float *weight; /* [width][channels]: tap-major, the newest input's tap last */
    const float *bias;   /* [channels], or NULL */
    uint32_t width;      /* W, 2..KERN_CONV_WIDTH_MAX */
    uint32_t channels;
    bool silu;          /* act = x * sigmoid(x); else none */
    const float *input; /* [rows][input_stride] */
    size_t input_stride;
    float *output; /* [rows][output_stride]; not the input */
    size_t output_stride;
} kern_conv_t;

/* Where windows lie: window of block i at windows + i * block_stride. */
typedef struct {
    float *windows;
    size_t block_stride; /* floats */
    uint32_t block_count;
} kern_conv_cache_t;

/* CausalConv1dPrefillMetadata: built once in a forward, read by every layer.  Program i computes
 * rows chunk * KERN_CONV_BLOCK_ROWS .. of request `requests[i]`; both are KERN_CONV_PAD from the
 * last program on. */
typedef struct {
    const int32_t *cu_rows; /* [request_count + 1]: bounds of the requests' rows */
    uint32_t request_count;
    uint32_t program_count; /* room in the maps: kern_conv_program_count() */
    int32_t *requests;      /* [program_count] */
    int32_t *chunks;        /* [program_count] */
} kern_conv_programs_args_t;
void kern_conv_programs_host(const void *args, kern_share_t *share);

/* Programs that so many rows of so many requests need at most. */
static inline uint32_t
kern_conv_program_count(uint32_t row_count, uint32_t request_count)
{
    uint32_t full = (row_count + KERN_CONV_BLOCK_ROWS - 1) / KERN_CONV_BLOCK_ROWS;
    return request_count == 0 ? 0 : full + request_count - 1;
}

/* Request b has rows cu_rows[b] .. cu_rows[b + 1] - 1; without rows nothing of it is touched.
 * Rows of a padded request are zeros.  The window after the last row goes to the output block. */
typedef struct {
    kern_conv_t conv;
    kern_conv_cache_t cache;
    const int32_t *cu_rows;    /* [request_count + 1] */
    const int32_t *in_blocks;  /* [request_count] */
    const int32_t *out_blocks; /* [request_count] */
    uint32_t request_count;
    uint32_t program_count;
    const int32_t *requests; /* [program_count], of kern_conv_programs */
    const int32_t *chunks;   /* [program_count] */
} kern_conv_prefill_args_t;
void kern_conv_prefill_host(const void *args, kern_share_t *share);

/* Each request has `rows_per_request` rows; the window after the last goes to the output block. */
typedef struct {
    kern_conv_t conv;
    kern_conv_cache_t cache;
    const int32_t *in_blocks;  /* [bs] */
    const int32_t *out_blocks; /* [bs]; NULL = windows are only read (verify with replay) */
    uint32_t bs;
    uint32_t rows_per_request; /* N >= 1 */
} kern_conv_decode_args_t;
void kern_conv_decode_host(const void *args, kern_share_t *share);

/* The same rows while it is open how many of them count: `cache` is the verify scratch, request i's
 * first window is in row seeds[i] (i * (N + 1), copied there before; negative = padded; row 0 is a
 * row like any other), the window after row t goes to row seeds[i] + 1 + t. */
typedef struct {
    kern_conv_t conv;
    kern_conv_cache_t scratch; /* [bs * (N + 1)] rows */
    const int32_t *seeds;      /* [bs], read at execution */
    uint32_t bs;
    uint32_t rows_per_request;
} kern_conv_verify_args_t;
void kern_conv_verify_host(const void *args, kern_share_t *share);

/* Commit without a scratch (ReplaySSM): the window after the first accept_lengths[i] (kept within
 * 1..N) of a request's saved input rows.  conv.output, weight and bias are not used. */
typedef struct {
    kern_conv_t conv;
    kern_conv_cache_t cache;
    const int32_t *in_blocks;      /* [bs] */
    const int32_t *out_blocks;     /* [bs]; 0 or less = skip the request */
    const int32_t *accept_lengths; /* [bs] */
    uint32_t bs;
    uint32_t rows_per_request;
} kern_conv_replay_args_t;
void kern_conv_replay_host(const void *args, kern_share_t *share);

#endif
