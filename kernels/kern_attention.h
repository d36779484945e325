/* kern_attention.h - softmax attention over a paged cache, with grouped query heads.
 *
 * One arithmetic for decode, verify and extend: keys are cut into splits of KERN_ATTENTION_SPLIT
 * positions counted from position 0, each split gives (max, sum, weighted values), and splits are
 * merged in order.  So a row's bits depend on its query and its keys only: not on the batch, the
 * chunking of a prompt, the threads, or which of the two operations computed it.
 *
 * Cache: [pages][page_size][kv_heads][head_dim] in float32 or half precision; key of position p of
 * a request lies in page page_table[request][p / page_size].  head_dim is a multiple of 16. */
#ifndef KERN_ATTENTION_H
#define KERN_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "kern_form.h"
#include "kern_rope.h"
#include "kern_share.h"
#include "kern_type.h"

enum {
    KERN_ATTENTION_SPLIT = 256, /* key positions */
};

/* What both operations have in common. */
typedef struct {
    const void *k_cache;
    const void *v_cache;
    kern_type_t cache_type;    /* KERN_TYPE_F32 or KERN_TYPE_F16 */
    uint32_t page_size;        /* positions of a page */
    uint32_t page_count;       /* pages in the cache; larger page numbers read page 0 */
    const int32_t *page_table; /* [bs][page_table_stride], read at execution */
    size_t page_table_stride;  /* pages of a row; positions beyond it are not attended */
    uint32_t q_heads;          /* a multiple of kv_heads */
    uint32_t kv_heads;
    uint32_t head_dim;   /* a multiple of 16, at most KERN_HEAD_DIM_MAX */
    float scale;         /* of the scores, usually 1 / sqrt(head_dim) */
    float logit_cap;     /* 0 = none, else cap * tanh(score / cap) */
    int32_t window_left; /* -1 = none; else a query at position p sees keys >= p - this */
    const float *sinks;  /* [q_heads]: a logit that takes part in the softmax's sum and has no
                            value; NULL = none.  Enters once, before the first split is merged */
} kern_attention_cache_t;

/* Row t of request b (N rows each) is at position seq_lens[b] - N + t and sees the keys up to
 * itself.  Rows at negative positions get zeros. */
typedef struct {
    kern_attention_cache_t cache;
    const float *q;          /* [bs * N][q_stride] */
    size_t q_stride;         /* floats */
    const int32_t *seq_lens; /* [bs], read at execution; with the N new tokens */
    uint32_t bs;
    uint32_t rows_per_request; /* N >= 1 */
    float *output;             /* [output_first + bs * N or more][output_stride] */
    size_t output_stride;
    kern_form_t output_form;     /* OPERAND: output_stride is not used */
    uint32_t output_first;       /* the row of `output` that gets the first result */
    uint32_t output_rows;        /* of the whole output; only OPERAND needs it */
    void *workspace;             /* 64-byte aligned; shared by the team */
    size_t workspace_size_bytes; /* kern_attention_decode_workspace_size_bytes() */
} kern_attention_decode_args_t;

void kern_attention_decode_host(const void *args, kern_share_t *share);

/* kv_len_max: the longest sequence, page_table_stride * page_size or less. */
size_t kern_attention_decode_workspace_size_bytes(uint32_t rows, uint32_t q_heads,
                                                  uint32_t head_dim, uint32_t kv_len_max);

/* Request b has rows cu_q[b] .. cu_q[b + 1] - 1; the last of them is at position seq_lens[b] - 1,
 * each sees the keys up to itself. */
typedef struct {
    kern_attention_cache_t cache;
    const float *q; /* [sum of lengths][q_stride] */
    size_t q_stride;
    const int32_t *cu_q;     /* [request_count + 1], read at execution */
    const int32_t *seq_lens; /* [request_count], prefix + extend; read at execution */
    uint32_t request_count;
    uint32_t row_count; /* the sum of lengths, or more: a bound for the launch */
    float *output;      /* [output_first + sum of lengths or more][output_stride] */
    size_t output_stride;
    kern_form_t output_form; /* these three as in decode */
    uint32_t output_first;
    uint32_t output_rows;
} kern_attention_extend_args_t;

void kern_attention_extend_host(const void *args, kern_share_t *share);

#endif
