/* kern_cuda.h - the operations of a decode step on a CUDA device (compute capability 9.0a).
 *
 * Launches only: nothing is allocated, nothing is waited for; everything may be captured into a
 * graph.  All pointers are device memory and 16-byte aligned.  Activations between operations are
 * BF16, sums and the residual stream float32.
 *
 * Batch-invariant: tiles, splits and the order of every sum follow from the weight's shape or from
 * positions in the sequence, never from the number of rows.  So a row's bits do not depend on the
 * batch.  Products that are cut along k leave their parts side by side, [splits][rows][cols]; the
 * operation that comes next adds them up in order.
 *
 * With programmatic dependent launch (`pdl`) an operation may start before its predecessor ended:
 * it loads weights, which nobody writes, and waits before it reads what others produce.
 *
 * Each function returns a cudaError_t as int: 0, or what the launch gave.  Any thread that owns
 * the stream. */
#ifndef KERN_CUDA_H
#define KERN_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *kern_cuda_stream_t; /* a cudaStream_t */
typedef uint16_t kern_bf16_t;                   /* its bits */

enum {
    KERN_CUDA_TILE_ROWS = 128,       /* a weight's rows must be a multiple */
    KERN_CUDA_TILE_COLS = 64,        /* and its cols of this */
    KERN_CUDA_HEAD_DIM = 128,        /* of attention */
    KERN_CUDA_HEADS_PER_KV_MAX = 8,  /* query heads that share a kv head */
    KERN_CUDA_ATTENTION_SPLIT = 256, /* key positions, counted from position 0 */
};

#ifdef __CUDACC__
#define KERN_CUDA_BOTH __host__ __device__
#else
#define KERN_CUDA_BOTH
#endif

/* Rows of the batch that one block takes: 8, 16, 32, 64 or 128. */
static inline KERN_CUDA_BOTH uint32_t
kern_cuda_batch_tile(uint32_t batch)
{
    uint32_t tile = 8;
    while (tile < 128 && tile < batch) {
        tile *= 2;
    }
    return tile;
}

/* Rows for which an operand has room. */
static inline KERN_CUDA_BOTH uint32_t
kern_cuda_batch_padded(uint32_t batch)
{
    uint32_t tile = kern_cuda_batch_tile(batch);
    return (batch + tile - 1) / tile * tile;
}

/* Operands of products are packed: [cols / 64][rows][64], and in each row of 64 the pieces of eight
 * values are exchanged, piece ^ (row & 7).  The index of a value; the rows of an activation are
 * kern_cuda_batch_padded(batch), those beyond the batch may hold anything. */
static inline KERN_CUDA_BOTH size_t
kern_cuda_packed_index(uint32_t row, uint32_t col, uint32_t row_count)
{
    uint32_t piece = col % 64 / 8 ^ (row & 7);
    return ((size_t)(col / 64) * row_count + row) * 64 + piece * 8 + col % 8;
}

/* Packs a weight [rows][cols] for kern_cuda_linear (`second` NULL), or gate and up of [rows /
 * 2][cols] each for kern_cuda_gate_up; `out` has rows * cols values and overlaps neither.  Tiles of
 * 128 rows lie one after the other. */
int kern_cuda_pack(const kern_bf16_t *first, const kern_bf16_t *second, uint32_t rows,
                   uint32_t cols, kern_bf16_t *out, kern_cuda_stream_t stream);

/* parts[s][b][n] = sum over the k of split s of input[b][k] * weight[n][k]. */
typedef struct {
    const kern_bf16_t *weight; /* packed */
    uint32_t rows;
    uint32_t cols;
    const kern_bf16_t *input; /* packed, [cols / 64][padded batch][64] */
    uint32_t batch;
    float *parts; /* [kern_cuda_split_count(rows, cols)][batch][rows] */
    bool pdl;
} kern_cuda_linear_t;

int kern_cuda_linear(const kern_cuda_linear_t *args, kern_cuda_stream_t stream);

/* Cuts along k; a function of the weight's shape alone. */
uint32_t kern_cuda_split_count(uint32_t rows, uint32_t cols);

/* output[b][n] = silu(input[b] . gate[n]) * (input[b] . up[n]) */
typedef struct {
    const kern_bf16_t *weight; /* gate and up, packed together */
    uint32_t rows;             /* of each; a multiple of KERN_CUDA_TILE_ROWS / 2 */
    uint32_t cols;
    const kern_bf16_t *input; /* packed */
    uint32_t batch;
    kern_bf16_t *output; /* packed, [rows / 64][padded batch][64] */
    bool pdl;
} kern_cuda_gate_up_t;

int kern_cuda_gate_up(const kern_cuda_gate_up_t *args, kern_cuda_stream_t stream);

/* x[b] += sum of parts; output[b] = x[b] / rms(x[b]) * weight. */
typedef struct {
    float *x;                  /* [batch][cols] */
    const float *parts;        /* [split_count][batch][cols]; may be NULL if split_count is 0 */
    uint32_t split_count;      /* 0 = nothing is added */
    const kern_bf16_t *weight; /* [cols] */
    kern_bf16_t *output;       /* packed, [cols / 64][padded batch][64] */
    uint32_t batch;
    uint32_t cols; /* a multiple of 64, at most 16384 */
    float epsilon;
    bool pdl;
} kern_cuda_add_norm_t;

int kern_cuda_add_norm(const kern_cuda_add_norm_t *args, kern_cuda_stream_t stream);

/* Adds up q, k and v, normalises q and k heads if weights are given, rotates pairs (i, i + 64),
 * stores q, and writes k and v to their cache slots. */
typedef struct {
    const float *parts; /* [split_count][batch][(q_heads + 2 * kv_heads) * 128] */
    uint32_t split_count;
    uint32_t batch;
    uint32_t q_heads;
    uint32_t kv_heads;
    const kern_bf16_t *q_norm; /* [128], or NULL */
    const kern_bf16_t *k_norm; /* [128], or NULL */
    float epsilon;
    const float *frequencies;       /* [64] */
    const int32_t *positions;       /* [batch] */
    const int32_t *write_locations; /* [batch]; negative = write nothing */
    kern_bf16_t *q;                 /* [batch][q_heads][128] */
    kern_bf16_t *k_cache;           /* [slots][kv_heads][128] */
    kern_bf16_t *v_cache;
    bool pdl;
} kern_cuda_rope_write_t;

int kern_cuda_rope_write(const kern_cuda_rope_write_t *args, kern_cuda_stream_t stream);

/* Softmax attention of one query row for each request over its paged keys and values. */
typedef struct {
    const kern_bf16_t *q; /* [batch][q_heads][128] */
    const kern_bf16_t *k_cache;
    const kern_bf16_t *v_cache;
    const int32_t *page_table; /* [batch][page_table_stride] */
    uint32_t page_table_stride;
    uint32_t page_size;      /* positions, a multiple of 16 */
    const int32_t *seq_lens; /* [batch], the new token included */
    uint32_t batch;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t seq_len_max; /* bounds the grid; longer requests are cut */
    float scale;
    float *workspace;    /* kern_cuda_attention_workspace_floats() */
    kern_bf16_t *output; /* packed, [q_heads * 2][padded batch][64] */
    bool pdl;
} kern_cuda_attention_t;

int kern_cuda_attention(const kern_cuda_attention_t *args, kern_cuda_stream_t stream);
size_t kern_cuda_attention_workspace_floats(uint32_t batch, uint32_t q_heads, uint32_t seq_len_max);

/* x[b] = table[tokens[b]]; a token outside the vocabulary gives zeros. */
typedef struct {
    const kern_bf16_t *table; /* [vocabulary][cols] */
    const int32_t *tokens;    /* [batch] */
    uint32_t vocabulary;
    float *x; /* [batch][cols] */
    uint32_t batch;
    uint32_t cols;
} kern_cuda_embed_t;

int kern_cuda_embed(const kern_cuda_embed_t *args, kern_cuda_stream_t stream);

/* tokens[b] = the smallest index of the largest logit. */
typedef struct {
    const float *logits; /* [batch][vocabulary] */
    uint32_t vocabulary;
    uint32_t batch;
    int32_t *tokens;
} kern_cuda_argmax_t;

int kern_cuda_argmax(const kern_cuda_argmax_t *args, kern_cuda_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif
