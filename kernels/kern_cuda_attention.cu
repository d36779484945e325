/* Decode attention over paged keys and values.
 *
 * A block has one row, eight query heads of one kv head, and splits of the keys, which begin at
 * multiples of KERN_ATTENTION_SPLIT whatever the batch is.  Its four warps take 16 keys in turn,
 * each with a running maximum of its own, and are merged in order at the end of each split; splits
 * are merged in order by a second kernel.  The query heads that share the kv head are the rows of
 * the matrix unit's first operand, so keys and values are read once. */
#include <math_constants.h>

#include "kern_cuda_paged.cuh"

namespace {

constexpr int WARPS = 4;
constexpr int KEYS = 16; /* of a warp in one turn */
constexpr int HEADS = 8; /* query heads of a block */
constexpr int SPLIT = KERN_ATTENTION_SPLIT;
constexpr int MERGERS = 4;               /* groups of threads that merge splits */
constexpr uint32_t HEADS_SPREAD = 1024;  /* up to so many, several groups for each head */
constexpr uint32_t BLOCKS_AT_ONCE = 264; /* that a large device runs */
constexpr uint32_t ACROSS_MIN = 4;       /* blocks over a row's splits, if there are so many */

template <int DIM> struct turn_t {
    static constexpr int STAGES = DIM > 128 ? 2 : 3; /* turns under way */
    static constexpr int ROW_BYTES = DIM * 2;        /* of a key or a value */
    static constexpr int BYTES = 2 * KEYS * ROW_BYTES;
    static constexpr size_t SHARED_BYTES = (size_t)WARPS * STAGES * BYTES;
    static_assert(WARPS * HEADS * (DIM + 2) * 4 <= SHARED_BYTES, "the parts fit");
};

/* The keys that one row sees. */
struct span_t {
    int begin;
    int end;
};

__device__ __forceinline__ span_t
span_of(const kern_attention_decode_args_t &a, uint32_t row)
{
    int width = (int)a.rows_per_request;
    int position = a.seq_lens[row / width] - width + (int)(row % width);
    int limit = (int)min((size_t)a.cache.page_table_stride * a.cache.page_size, (size_t)INT_MAX);
    span_t span = {0, max(min(position + 1, limit), 0)};
    if (a.cache.window_left >= 0) {
        span.begin = max(position - a.cache.window_left, 0);
    }
    return span;
}

/* Keys and values of positions first .. first + 15; those outside the span become zeros. */
template <int DIM>
__device__ __forceinline__ void
copy_turn(const paged_t &paged, uint32_t shared, int first, span_t span)
{
    constexpr int PIECES = DIM / 8;
    int lane = threadIdx.x % 32;
    /* Pages of whole turns take one look at the table. */
    bool is_one_page = paged.page_size % KEYS == 0;
    size_t base = is_one_page && first < span.end ? paged_offset(paged, first) : 0;
#pragma unroll
    for (int i = 0; i < KEYS * PIECES / 32; i++) {
        int row = (i * 32 + lane) / PIECES;
        int piece = (i * 32 + lane) % PIECES;
        int key = first + row;
        bool valid = key >= span.begin && key < span.end && piece * 8 < paged.head_dim;
        size_t offset = base + (size_t)row * paged.slot_stride;
        if (!is_one_page) {
            offset = valid ? paged_offset(paged, key) : 0;
        }
        offset = valid ? offset + piece * 8 : 0;
        uint32_t to = shared + piece_offset<DIM>(row, piece);
        copy_async(to, paged.k + offset, valid);
        copy_async(to + KEYS * DIM * 2, paged.v + offset, valid);
    }
}

template <int DIM> struct state_t {
    float max; /* of the scaled scores, base 2 */
    float sum;
    float out[DIM / 8][4]; /* [dims / 8]: dims of this lane; the upper two are of rows unused */
};

/* One turn of 16 keys: scores, softmax, values. */
template <int DIM>
__device__ __forceinline__ void
attend(state_t<DIM> &state, const uint32_t (&q)[DIM / 16][2], uint32_t shared, int first,
       span_t span, float cap)
{
    int lane = threadIdx.x % 32;
    float scores[2][4] = {};
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        uint32_t b[4];
        int row = (lane & 7) + ((lane & 16) >> 1);
        load_matrix(b, shared + piece_offset<DIM>(row, step * 2 + ((lane & 8) >> 3)));
        mma(scores[0], q[step][0], 0, q[step][1], 0, b[0], b[1]);
        mma(scores[1], q[step][0], 0, q[step][1], 0, b[2], b[3]);
    }
    float best = -CUDART_INF_F;
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int key = first + n * 8 + (lane % 4) * 2 + c;
            scores[n][c] = cap_score(scores[n][c], cap);
            if (key < span.begin || key >= span.end) {
                scores[n][c] = -CUDART_INF_F;
            }
            best = fmaxf(best, scores[n][c]);
        }
    }
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    float max = fmaxf(state.max, best);
    float base = max == -CUDART_INF_F ? 0.0f : max;
    float shrink = exp2f(state.max - base);
    float sum = 0.0f;
    uint32_t p[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float x = exp2f(scores[n][0] - base);
        float y = exp2f(scores[n][1] - base);
        p[n] = pack_half(x, y);
        sum += x + y;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    state.max = max;
    state.sum = state.sum * shrink + sum;
#pragma unroll
    for (int d = 0; d < DIM / 8; d++) {
        state.out[d][0] *= shrink;
        state.out[d][1] *= shrink;
    }
#pragma unroll
    for (int d = 0; d < DIM / 16; d++) {
        uint32_t b[4];
        int row = lane & 15;
        load_matrix_transposed(b, shared + KEYS * DIM * 2 +
                                      piece_offset<DIM>(row, d * 2 + (lane >> 4)));
        mma(state.out[d * 2], p[0], 0, p[1], 0, b[0], b[1]);
        mma(state.out[d * 2 + 1], p[0], 0, p[1], 0, b[2], b[3]);
    }
}

/* What splits leave: [row][q_head][split] of max, sum and the unscaled values. */
struct parts_t {
    float *values; /* [...][head_dim] */
    float *maxima;
    float *sums;
    uint32_t splits;
};

__device__ __forceinline__ size_t
part_index(const kern_attention_decode_args_t &a, const parts_t &parts, uint32_t row, uint32_t head,
           uint32_t split)
{
    return ((size_t)row * a.cache.q_heads + head) * parts.splits + split;
}

/* Leaves the block's part of the softmax: [warp][head][dim] in shared memory, then the merge in the
 * order of the warps. */
template <int DIM>
__device__ __forceinline__ void
leave_part(const kern_attention_decode_args_t &a, const parts_t &parts, const state_t<DIM> &state,
           uint8_t *shared, size_t first_part, uint32_t heads)
{
    int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    uint32_t head_dim = a.cache.head_dim;
    uint32_t mine = lane / 4;
    float *merged = reinterpret_cast<float *>(shared);
    float *limits = merged + WARPS * HEADS * DIM;
    if (mine < heads) {
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            float *to = merged + (warp * HEADS + mine) * DIM + d * 8 + (lane % 4) * 2;
            to[0] = state.out[d][0];
            to[1] = state.out[d][1];
        }
        if (lane % 4 == 0) {
            limits[(warp * HEADS + mine) * 2] = state.max;
            limits[(warp * HEADS + mine) * 2 + 1] = state.sum;
        }
    }
    __syncthreads();
    for (uint32_t head = 0; head < heads; head++) {
        float max = -CUDART_INF_F;
        for (int w = 0; w < WARPS; w++) {
            max = fmaxf(max, limits[(w * HEADS + head) * 2]);
        }
        float base = max == -CUDART_INF_F ? 0.0f : max;
        size_t part = first_part + (size_t)head * parts.splits;
        for (uint32_t dim = threadIdx.x; dim < head_dim; dim += WARPS * 32) {
            float sum = 0.0f;
            float value = 0.0f;
            for (int w = 0; w < WARPS; w++) {
                const float *limit = limits + (w * HEADS + head) * 2;
                float weight = exp2f(limit[0] - base);
                sum += limit[1] * weight;
                value += merged[(w * HEADS + head) * DIM + dim] * weight;
            }
            parts.values[part * head_dim + dim] = value;
            if (dim == 0) {
                parts.maxima[part] = max;
                parts.sums[part] = sum;
            }
        }
    }
    __syncthreads();
}

/* The query heads of a block as the matrix unit's rows; the scale is folded in. */
template <int DIM>
__device__ __forceinline__ void
load_queries(const kern_attention_decode_args_t &a, uint32_t row, uint32_t head, uint32_t heads,
             uint32_t (&q)[DIM / 16][2])
{
    int lane = threadIdx.x % 32;
    uint32_t mine = lane / 4;
    float factor = query_factor(a.cache);
    const float *from =
        a.q + (size_t)row * a.q_stride + (size_t)(head + mine) * a.cache.head_dim + (lane % 4) * 2;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        bool valid = mine < heads && step * 16 < (int)a.cache.head_dim;
        float2 low = valid ? *reinterpret_cast<const float2 *>(from + step * 16) : float2{0, 0};
        float2 high =
            valid ? *reinterpret_cast<const float2 *>(from + step * 16 + 8) : float2{0, 0};
        q[step][0] = pack_half(low.x * factor, low.y * factor);
        q[step][1] = pack_half(high.x * factor, high.y * factor);
    }
}

template <int DIM>
__global__ void __launch_bounds__(32 * WARPS)
    decode_kernel(const __grid_constant__ kern_attention_decode_args_t a, parts_t parts)
{
    using turn = turn_t<DIM>;
    extern __shared__ __align__(128) uint8_t shared[];
    int warp = threadIdx.x / 32;
    uint32_t row = blockIdx.z;
    uint32_t group = a.cache.q_heads / a.cache.kv_heads;
    uint32_t tiles = (group + HEADS - 1) / HEADS;
    uint32_t kv_head = blockIdx.y / tiles;
    uint32_t first_head = blockIdx.y % tiles * HEADS;
    uint32_t heads = min(group - first_head, (uint32_t)HEADS);
    pdl_trigger();
    pdl_wait();
    span_t span = span_of(a, row);
    if (span.begin / SPLIT + (int)blockIdx.x >= (span.end + SPLIT - 1) / SPLIT) {
        return;
    }
    paged_t paged = paged_of(a.cache, row / a.rows_per_request, kv_head);
    uint32_t mine = shared_address(shared) + warp * turn::STAGES * turn::BYTES;
    uint32_t head = kv_head * group + first_head;
    uint32_t q[DIM / 16][2];
    bool has_queries = false;
    for (int split = span.begin / SPLIT + (int)blockIdx.x; split * SPLIT < span.end;
         split += gridDim.x) {
        int begin = split * SPLIT;
        int end = min(span.end, begin + SPLIT);
        int from = max(span.begin - begin, 0) / (WARPS * KEYS);
        int turns = (end - begin + WARPS * KEYS - 1) / (WARPS * KEYS);
#pragma unroll
        for (int i = 0; i < turn::STAGES - 1; i++) {
            if (from + i < turns) {
                copy_turn<DIM>(paged, mine + i * turn::BYTES,
                               begin + ((from + i) * WARPS + warp) * KEYS, span);
            }
            copy_commit();
        }
        if (!has_queries) { /* while the first keys are under way */
            load_queries<DIM>(a, row, head, heads, q);
            has_queries = true;
        }
        state_t<DIM> state = {-CUDART_INF_F, 0.0f, {}};
        for (int at = from; at < turns; at++) {
            int ahead = at + turn::STAGES - 1;
            if (ahead < turns) {
                copy_turn<DIM>(paged, mine + (ahead - from) % turn::STAGES * turn::BYTES,
                               begin + (ahead * WARPS + warp) * KEYS, span);
            }
            copy_commit();
            copy_wait<turn::STAGES - 1>();
            __syncwarp();
            int first = begin + (at * WARPS + warp) * KEYS;
            if (first < end) {
                attend<DIM>(state, q, mine + (at - from) % turn::STAGES * turn::BYTES, first, span,
                            a.cache.logit_cap);
            }
            __syncwarp();
        }
        copy_wait<0>();
        __syncthreads();
        leave_part<DIM>(a, parts, state, shared, part_index(a, parts, row, head, split), heads);
    }
}

/* Splits begin .. end - 1 of a head, counted from the part `first`: one value of the head. */
struct merged_t {
    float max;
    float sum;
    float value;
};

__device__ __forceinline__ merged_t
merge_splits(const parts_t &parts, size_t first, int begin, int end, uint32_t head_dim,
             uint32_t dim)
{
    merged_t m = {-CUDART_INF_F, 0.0f, 0.0f};
    for (int s = begin; s < end; s++) {
        m.max = fmaxf(m.max, parts.maxima[first + s]);
    }
    float base = m.max == -CUDART_INF_F ? 0.0f : m.max;
#pragma unroll 4
    for (int s = begin; s < end; s++) {
        float weight = exp2f(parts.maxima[first + s] - base);
        m.sum = __fmaf_rn(parts.sums[first + s], weight, m.sum);
        m.value = __fmaf_rn(parts.values[(first + s) * head_dim + dim], weight, m.value);
    }
    return m;
}

/* A quarter of the splits for each head_dim threads, then the quarters in order; or, with many
 * heads to merge, all quarters for the same head_dim threads, to the same bits. */
template <bool IS_SPREAD>
__global__ void __launch_bounds__(1024)
    merge_kernel(const __grid_constant__ kern_attention_decode_args_t a, parts_t parts)
{
    __shared__ float shared_values[MERGERS][KERN_HEAD_DIM_MAX];
    __shared__ float limits[MERGERS][2];
    uint32_t head_dim = a.cache.head_dim;
    uint32_t head = blockIdx.x;
    uint32_t row = blockIdx.y;
    uint32_t quarter = threadIdx.x / head_dim;
    uint32_t dim = threadIdx.x % head_dim;
    pdl_trigger();
    pdl_wait();
    span_t span = span_of(a, row);
    int low = span.begin / SPLIT;
    int count = max((span.end + SPLIT - 1) / SPLIT - low, 0);
    size_t first = part_index(a, parts, row, head, low);
    merged_t merged[MERGERS];
    if (IS_SPREAD) {
        merged_t mine = merge_splits(parts, first, count * (int)quarter / MERGERS,
                                     count * ((int)quarter + 1) / MERGERS, head_dim, dim);
        shared_values[quarter][dim] = mine.value;
        if (dim == 0) {
            limits[quarter][0] = mine.max;
            limits[quarter][1] = mine.sum;
        }
        __syncthreads();
        if (quarter > 0) {
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < MERGERS; i++) {
        merged[i] = IS_SPREAD ? merged_t{limits[i][0], limits[i][1], shared_values[i][dim]}
                              : merge_splits(parts, first, count * i / MERGERS,
                                             count * (i + 1) / MERGERS, head_dim, dim);
    }
    float sink = sink_of(a.cache, head);
    float max = sink;
#pragma unroll
    for (int i = 0; i < MERGERS; i++) {
        max = fmaxf(max, merged[i].max);
    }
    float base = max == -CUDART_INF_F ? 0.0f : max;
    float total = exp2f(sink - base);
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < MERGERS; i++) {
        float weight = exp2f(merged[i].max - base);
        total = __fmaf_rn(merged[i].sum, weight, total);
        value = __fmaf_rn(merged[i].value, weight, value);
    }
    float result = total > 0.0f || total != total ? value / total : 0.0f;
    output_t output = {a.output, a.output_stride, a.output_form, a.output_rows};
    uint32_t to = a.output_first + row;
    write_value(output, to, head * head_dim + dim, result);
    if (head + 1 == a.cache.q_heads && dim == 0) {
        pad_row(output, to, a.cache.q_heads * head_dim);
    }
}

template <int DIM>
int
launch_decode(const kern_attention_decode_args_t *args, parts_t parts, dim3 grid,
              const kern_cuda_where_t *where)
{
    kern_cuda_launch_t how = {};
    how.grid = grid;
    how.threads = 32 * WARPS;
    how.shared_bytes = turn_t<DIM>::SHARED_BYTES;
    how.pdl = where->pdl;
    how.stream = where->stream;
    return launch(decode_kernel<DIM>, how, *args, parts);
}

} // namespace

int
kern_attention_decode_cuda(const kern_attention_decode_args_t *args, const kern_cuda_where_t *where)
{
    uint32_t rows = args->bs * args->rows_per_request;
    const kern_attention_cache_t *cache = &args->cache;
    if (rows == 0) {
        return 0;
    }
    if (!paged_is_valid(*cache) || rows > 65535) {
        return (int)cudaErrorInvalidValue;
    }
    size_t key_limit = cache->page_table_stride * cache->page_size;
    parts_t parts = {};
    parts.splits = (uint32_t)((key_limit + SPLIT - 1) / SPLIT);
    size_t count = (size_t)rows * cache->q_heads * parts.splits;
    if (count * (cache->head_dim + 2) * sizeof(float) > args->workspace_size_bytes) {
        return (int)cudaErrorInvalidValue;
    }
    parts.values = static_cast<float *>(args->workspace);
    parts.maxima = parts.values + count * cache->head_dim;
    parts.sums = parts.maxima + count;
    uint32_t group = cache->q_heads / cache->kv_heads;
    uint32_t tiles = cache->kv_heads * ((group + HEADS - 1) / HEADS);
    uint32_t across = BLOCKS_AT_ONCE / (tiles * rows);
    across = across < ACROSS_MIN ? ACROSS_MIN : across;
    across = across > parts.splits ? parts.splits : across;
    dim3 grid(across, tiles, rows);
    int status = cache->head_dim <= 64    ? launch_decode<64>(args, parts, grid, where)
                 : cache->head_dim <= 128 ? launch_decode<128>(args, parts, grid, where)
                                          : launch_decode<256>(args, parts, grid, where);
    if (status != 0) {
        return status;
    }
    kern_cuda_launch_t how = {};
    how.grid = dim3(cache->q_heads, rows);
    bool is_spread = cache->q_heads * rows <= HEADS_SPREAD;
    how.threads = (is_spread ? MERGERS : 1) * cache->head_dim;
    how.pdl = where->pdl;
    how.stream = where->stream;
    return launch(is_spread ? merge_kernel<true> : merge_kernel<false>, how, *args, parts);
}
