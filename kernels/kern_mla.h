/* kern_mla.h - multi-head latent attention (DeepSeek-V2, 2024): all heads share one cached row for
 * each position, a normalised latent and a rotated part.
 *
 * Absorbed form everywhere: with keys W_k c and values W_v c made of a latent c, a head's query
 * becomes W_k^T q, scores are products with the cached rows themselves, and W_v comes after the
 * weighted sum of latents.  Nothing is ever expanded for a cached position.
 *
 *   kern_mla_write -> kern_head_linear (W_k^T) -> kern_mla_decode | kern_mla_extend
 *                                                                 -> kern_head_linear (W_v)
 *
 * One arithmetic for decode, verify and extend, as in kern_attention.h: splits of
 * KERN_ATTENTION_SPLIT positions counted from position 0, merged in order.  A row's bits depend on
 * its query and its keys only.
 *
 * Cache: [pages][page_size][latent_dim + rope_dim] in float32 or half precision. */
#ifndef KERN_MLA_H
#define KERN_MLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_attention.h"
#include "kern_form.h"
#include "kern_share.h"
#include "kern_type.h"

enum {
    KERN_MLA_DIM_MAX = 1024, /* latent_dim + rope_dim */
};

/* For each row: the rotated parts of the heads of q go into the query's, the latent is normalised
 * and the shared rotated part appended to it in cache slot write_locations[row];
 * slot = page * page_size + place in page.  q and kv are not changed. */
typedef struct {
    const float *q; /* [rows][q_stride]: heads of nope_dim + rope_dim */
    size_t q_stride;
    float *query; /* [rows][query_stride]: heads of latent_dim + rope_dim; the ends are written */
    size_t query_stride;
    const float *kv; /* [rows][kv_stride]: latent_dim, then rope_dim */
    size_t kv_stride;
    uint32_t rows;
    uint32_t heads;
    uint32_t nope_dim;
    uint32_t latent_dim;
    uint32_t rope_dim;              /* even; 0 = none */
    bool interleaved;               /* as in kern_rope.h */
    const float *angles;            /* [rows][rope_dim] of kern_rope_angles; NULL = no rotation */
    const float *norm;              /* [latent_dim] */
    float epsilon;                  /* of the norm */
    const int32_t *write_locations; /* [rows], read at execution; negative = write nothing */
    void *cache;                    /* [slots][latent_dim + rope_dim] of cache_type */
    kern_type_t cache_type;         /* KERN_TYPE_F32 or KERN_TYPE_F16 */
    uint32_t slot_count;            /* larger locations write nothing */
} kern_mla_write_args_t;

void kern_mla_write_host(const void *args, kern_share_t *share);

/* A matrix for each head: output[r][h][n] = sum over k of weight[h][n][k] * input[r][h][k].  The
 * sum has one order, whatever the rows. */
typedef struct {
    const float *input; /* [rows][input_stride] */
    size_t input_stride;
    size_t input_head_stride; /* floats from head to head of a row */
    float *output;            /* [rows][output_stride]; must not overlap the input */
    size_t output_stride;
    size_t output_head_stride;
    kern_form_t output_form; /* OPERAND: of heads without a gap; output_stride is not used */
    uint32_t rows;
    uint32_t heads;
    const void *weight; /* [heads], each [outputs][inputs] */
    kern_type_t type;   /* KERN_TYPE_F32, _F16 or _BF16 */
    uint32_t outputs;
    uint32_t inputs;
    size_t head_stride_bytes; /* of the weight */
} kern_head_linear_args_t;

void kern_head_linear_host(const void *args, kern_share_t *share);

/* What both operations have in common. */
typedef struct {
    const void *cache;
    kern_type_t cache_type;    /* KERN_TYPE_F32 or KERN_TYPE_F16 */
    uint32_t page_size;        /* positions of a page */
    uint32_t page_count;       /* pages in the cache; larger page numbers read page 0 */
    const int32_t *page_table; /* [bs][page_table_stride], read at execution */
    size_t page_table_stride;  /* pages of a row; positions beyond it are not attended */
    uint32_t heads;
    uint32_t latent_dim; /* a multiple of 16 */
    uint32_t rope_dim;   /* latent_dim + rope_dim is at most KERN_MLA_DIM_MAX */
    float scale;         /* of the scores */
} kern_mla_cache_t;

/* Row t of request b (N rows each) is at position seq_lens[b] - N + t and sees the keys up to
 * itself.  Rows at negative positions get zeros. */
typedef struct {
    kern_mla_cache_t cache;
    const float *q; /* [bs * N][q_stride]: heads of latent_dim + rope_dim */
    size_t q_stride;
    const int32_t *seq_lens; /* [bs], read at execution; with the N new tokens */
    uint32_t bs;
    uint32_t rows_per_request; /* N >= 1 */
    float *output;             /* [bs * N][output_stride]: heads of latent_dim */
    size_t output_stride;
    void *workspace;             /* 64-byte aligned; shared by the team */
    size_t workspace_size_bytes; /* kern_mla_decode_workspace_size_bytes() */
} kern_mla_decode_args_t;

void kern_mla_decode_host(const void *args, kern_share_t *share);

/* rows * heads * splits of kv_len_max * (latent_dim values, max and sum).  kv_len_max: the longest
 * sequence, page_table_stride * page_size or less. */
size_t kern_mla_decode_workspace_size_bytes(uint32_t rows, uint32_t heads, uint32_t latent_dim,
                                            uint32_t kv_len_max);

/* Request b has rows cu_q[b] .. cu_q[b + 1] - 1; the last of them is at position seq_lens[b] - 1,
 * each sees the keys up to itself. */
typedef struct {
    kern_mla_cache_t cache;
    const float *q; /* [sum of lengths][q_stride] */
    size_t q_stride;
    const int32_t *cu_q;     /* [request_count + 1], read at execution */
    const int32_t *seq_lens; /* [request_count], prefix + extend; read at execution */
    uint32_t request_count;
    float *output; /* [sum of lengths][output_stride] */
    size_t output_stride;
} kern_mla_extend_args_t;

void kern_mla_extend_host(const void *args, kern_share_t *share);

#endif
