/* kern_gdn.h - the gated delta rule (Gated DeltaNet): a recurrent state instead of keys and values.
 *
 * For each value head, with the key head h / (v_heads / k_heads) that it shares, row after row:
 *   q = query / sqrt(sum q^2 + 1e-6) / sqrt(k_dim),  k = key / sqrt(sum k^2 + 1e-6)
 *   S = exp(-rate * softplus(a + dt_bias)) * S
 *   S = S + k (sigmoid(b) * (v - k' S))'
 *   output = q' S
 * (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024; rate = exp(A_log).)  The state S is
 * [k_dim][v_dim] float32, so that a column of it stands by itself; a block of the cache holds
 * [v_heads][k_dim][v_dim] of one layer.
 *
 * Prefill, decode, verify and replay compute a row from the same state with the same operations in
 * the same order: neither batch, chunking, threads nor the operation change its bits.  (A device
 * whose prefill works on chunks must cut them by the grid of KERN_GDN_GRID positions counted from
 * the sequence's position 0, whatever the first row of this forward is.)
 *
 * Block ids are read at execution.  As input: > 0 the block; 0 = a fresh request: the state is
 * zero, and nothing is read; < 0 = a padded row, whose state is not touched and whose outputs are
 * zeros.  As output: > 0 the block, else no state is written.  Ids of block_count and above are
 * treated as < 0.  The input block may be the output block, or one that several requests read; an
 * output block belongs to one request. */
#ifndef KERN_GDN_H
#define KERN_GDN_H

#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"

enum {
    KERN_GDN_GRID = 64,     /* positions */
    KERN_GDN_DIM_MAX = 256, /* of a head */
};

/* The rows of one layer.  Pointers may point into one wide row: each has its own stride. */
typedef struct {
    const float *qkv; /* [rows][qkv_stride]: q heads, k heads, v heads, after the convolution */
    size_t qkv_stride;
    const float *a; /* [rows][a_stride]: v_heads values, before dt_bias */
    size_t a_stride;
    const float *b; /* [rows][b_stride]: v_heads values, before the sigmoid */
    size_t b_stride;
    const float *rate;    /* [v_heads]: exp(A_log) */
    const float *dt_bias; /* [v_heads] */
    uint32_t k_heads;
    uint32_t v_heads; /* a multiple of k_heads */
    uint32_t k_dim;   /* at most KERN_GDN_DIM_MAX */
    uint32_t v_dim;   /* at most KERN_GDN_DIM_MAX */
    float *output;    /* [rows][output_stride]: v_heads * v_dim values */
    size_t output_stride;
} kern_gdn_t;

/* Where states lie: the state of block i at states + i * block_stride. */
typedef struct {
    float *states;
    size_t block_stride; /* floats */
    uint32_t block_count;
} kern_gdn_cache_t;

/* Request r has rows cu_rows[r] .. cu_rows[r + 1] - 1, the first at position prefix_lens[r];
 * without rows nothing of it is touched. */
typedef struct {
    kern_gdn_t gdn;
    kern_gdn_cache_t cache;
    const int32_t *cu_rows;     /* [request_count + 1] */
    const int32_t *prefix_lens; /* [request_count]; reserved: for a device whose form
                                 * of this goes by chunks on the grid; the host reads it never */
    const int32_t *in_blocks;   /* [request_count] */
    const int32_t *out_blocks;  /* [request_count] */
    uint32_t request_count;
} kern_gdn_prefill_args_t;
void kern_gdn_prefill_host(const void *args, kern_share_t *share);

/* Each request has `rows_per_request` rows; the state after the last goes to the output block. */
typedef struct {
    kern_gdn_t gdn;
    kern_gdn_cache_t cache;
    const int32_t *in_blocks;  /* [bs] */
    const int32_t *out_blocks; /* [bs]; NULL = states are only read (verify with replay) */
    uint32_t bs;
    uint32_t rows_per_request; /* N >= 1 */
} kern_gdn_decode_args_t;
void kern_gdn_decode_host(const void *args, kern_share_t *share);

/* The same rows while it is open how many of them count: `scratch` is the verify scratch, request
 * i's first state is in row seeds[i] (i * (N + 1), copied there before; negative = padded; row 0 is
 * a row like any other), the state after row t goes to row seeds[i] + 1 + t. */
typedef struct {
    kern_gdn_t gdn;
    kern_gdn_cache_t scratch; /* [bs * (N + 1)] rows */
    const int32_t *seeds;     /* [bs], read at execution */
    uint32_t bs;
    uint32_t rows_per_request;
} kern_gdn_verify_args_t;
void kern_gdn_verify_host(const void *args, kern_share_t *share);

/* Commit without a scratch (ReplaySSM): runs the first accept_lengths[i] (kept within 1..N) of a
 * request's saved rows again from the input block and writes the state to the output block: the
 * bits that the verify scratch would have had.  gdn.qkv, a and b are the saved rows; gdn.output is
 * not used. */
typedef struct {
    kern_gdn_t gdn;
    kern_gdn_cache_t cache;
    const int32_t *in_blocks;      /* [bs] */
    const int32_t *out_blocks;     /* [bs]; 0 or less = skip the request */
    const int32_t *accept_lengths; /* [bs] */
    uint32_t bs;
    uint32_t rows_per_request;
} kern_gdn_replay_args_t;
void kern_gdn_replay_host(const void *args, kern_share_t *share);

#endif
