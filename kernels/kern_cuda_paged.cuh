/* kern_cuda_paged.cuh - inside kernels/: what decode and extend attention have in common. */
#ifndef KERN_CUDA_PAGED_CUH
#define KERN_CUDA_PAGED_CUH

#include <limits.h>
#include <math_constants.h>

#include "kern_cuda_common.cuh"

/* The keys and values of one kv head of one request. */
struct paged_t {
    const uint16_t *k;
    const uint16_t *v;
    const int32_t *pages;
    uint32_t page_size;
    uint32_t page_count;
    uint32_t slot_stride; /* values from slot to slot */
    int head_dim;
};

__device__ __forceinline__ paged_t
paged_of(const kern_attention_cache_t &cache, uint32_t request, uint32_t kv_head)
{
    paged_t paged = {static_cast<const uint16_t *>(cache.k_cache) + kv_head * cache.head_dim,
                     static_cast<const uint16_t *>(cache.v_cache) + kv_head * cache.head_dim,
                     cache.page_table + request * cache.page_table_stride,
                     cache.page_size,
                     cache.page_count,
                     cache.kv_heads * cache.head_dim,
                     (int)cache.head_dim};
    return paged;
}

/* Where a position's row begins; pages outside the cache read page 0. */
__device__ __forceinline__ size_t
paged_offset(const paged_t &paged, int position)
{
    uint32_t column = (uint32_t)position / paged.page_size;
    uint32_t page = (uint32_t)paged.pages[column];
    page = page < paged.page_count ? page : 0;
    size_t slot = (size_t)page * paged.page_size + ((uint32_t)position - column * paged.page_size);
    return slot * paged.slot_stride;
}

/* 16-byte piece of a row of DIM values, so placed that eight rows' pieces of one column lie in
 * eight banks. */
template <int DIM>
__device__ __forceinline__ uint32_t
piece_offset(int row, int piece)
{
    return (uint32_t)(row * DIM * 2 + ((piece ^ (row & 7)) * 16));
}

constexpr float LOG2_E = 1.44269504f;

/* Queries are multiplied by it; then scores are in base 2, unless they are capped first. */
__device__ __forceinline__ float
query_factor(const kern_attention_cache_t &cache)
{
    return cache.logit_cap > 0.0f ? cache.scale : cache.scale * LOG2_E;
}

__device__ __forceinline__ float
cap_score(float score, float cap)
{
    return cap > 0.0f ? cap * tanhf(score / cap) * LOG2_E : score;
}

__device__ __forceinline__ float
sink_of(const kern_attention_cache_t &cache, uint32_t head)
{
    return cache.sinks != nullptr ? cache.sinks[head] * LOG2_E : -CUDART_INF_F;
}

struct output_t {
    float *memory;
    size_t stride;
    kern_form_t form;
    uint32_t rows; /* of an operand */
};

__device__ __forceinline__ void
write_value(const output_t &output, uint32_t row, uint32_t col, float value)
{
    if (output.form == KERN_FORM_ROWS) {
        output.memory[row * output.stride + col] = value;
        return;
    }
    size_t at = kern_cuda_packed_index(row, col, kern_cuda_batch_padded(output.rows));
    reinterpret_cast<kern_bf16_t *>(output.memory)[at] = float_to_bf16(value);
}

/* The columns between the last one and the next multiple of 64. */
__device__ __forceinline__ void
pad_row(const output_t &output, uint32_t row, uint32_t cols)
{
    uint32_t end = kern_cuda_padded(cols, KERN_CUDA_TILE_COLS);
    for (uint32_t col = cols; output.form == KERN_FORM_OPERAND && col < end; col++) {
        write_value(output, row, col, 0.0f);
    }
}

static inline bool
paged_is_valid(const kern_attention_cache_t &cache)
{
    return cache.cache_type == KERN_TYPE_F16 && cache.head_dim % 16 == 0 && cache.head_dim > 0 &&
           cache.head_dim <= KERN_HEAD_DIM_MAX && cache.kv_heads > 0 &&
           cache.q_heads % cache.kv_heads == 0 && cache.page_size > 0;
}

#endif
