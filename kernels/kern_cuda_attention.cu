/* Decode attention over paged keys and values.
 *
 * A block has one request, one kv head and one split of the keys, which begins at a multiple of
 * KERN_CUDA_ATTENTION_SPLIT whatever the batch is.  Its four warps take 16 keys in turn, each with
 * a running maximum of its own, and are merged in order at the end; splits are merged in order by
 * a second kernel.  The query heads that share the kv head are the rows of the matrix unit's first
 * operand, so keys and values are read once. */
#include <math_constants.h>

#include "kern_cuda_common.cuh"

namespace {

constexpr int DIM = KERN_CUDA_HEAD_DIM;
constexpr int WARPS = 4;
constexpr int KEYS = 16;           /* of a warp in one turn */
constexpr int STAGES = 3;          /* turns under way */
constexpr int ROW_BYTES = DIM * 2; /* of a key or a value */
constexpr int TURN_BYTES = 2 * KEYS * ROW_BYTES;
constexpr int SPLIT = KERN_CUDA_ATTENTION_SPLIT;
constexpr int MERGERS = 4; /* groups of threads that merge splits */

/* 16-byte piece of a row, so placed that eight rows' pieces of one column lie in eight banks. */
__device__ __forceinline__ uint32_t
piece_offset(int row, int piece)
{
    return (uint32_t)(row * ROW_BYTES + ((piece ^ (row & 7)) * 16));
}

__device__ __forceinline__ void
load_matrix(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void
load_matrix_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* Keys and values of positions first .. first + 15; those from `end` on become zeros. */
__device__ __forceinline__ void
copy_turn(const kern_cuda_attention_t &a, uint32_t shared, uint32_t request, uint32_t kv_head,
          int first, int end)
{
    int lane = threadIdx.x % 32;
    uint32_t column = (uint32_t)first / a.page_size;
    int32_t page = first < end ? a.page_table[(size_t)request * a.page_table_stride + column] : 0;
    size_t slot = (size_t)page * a.page_size + (uint32_t)first % a.page_size;
    const kern_bf16_t *k = a.k_cache + (slot * a.kv_heads + kv_head) * DIM;
    const kern_bf16_t *v = a.v_cache + (slot * a.kv_heads + kv_head) * DIM;
#pragma unroll
    for (int i = 0; i < KEYS * (DIM / 8) / 32; i++) {
        int row = (i * 32 + lane) / (DIM / 8);
        int piece = lane % (DIM / 8);
        bool valid = first + row < end;
        size_t offset = valid ? (size_t)row * a.kv_heads * DIM + piece * 8 : 0;
        copy_async(shared + piece_offset(row, piece), k + offset, valid);
        copy_async(shared + KEYS * ROW_BYTES + piece_offset(row, piece), v + offset, valid);
    }
}

struct state_t {
    float max; /* of the scaled scores, base 2 */
    float sum;
    float out[DIM / 8][4]; /* [dims / 8]: dims of this lane; the upper two are of rows unused */
};

/* One turn of 16 keys: scores, softmax, values. */
__device__ __forceinline__ void
attend(state_t &state, const uint32_t (&q)[DIM / 16][2], uint32_t shared, int first, int end)
{
    int lane = threadIdx.x % 32;
    float scores[2][4] = {};
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        uint32_t b[4];
        int row = (lane & 7) + ((lane & 16) >> 1);
        load_matrix(b, shared + piece_offset(row, step * 2 + ((lane & 8) >> 3)));
        mma(scores[0], q[step][0], 0, q[step][1], 0, b[0], b[1]);
        mma(scores[1], q[step][0], 0, q[step][1], 0, b[2], b[3]);
    }
    float best = -CUDART_INF_F;
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int key = first + n * 8 + (lane % 4) * 2 + c;
            scores[n][c] = key < end ? scores[n][c] : -CUDART_INF_F;
            best = fmaxf(best, scores[n][c]);
        }
    }
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    float max = fmaxf(state.max, best);
    float shrink = exp2f(state.max - max);
    float sum = 0.0f;
    uint32_t p[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float x = exp2f(scores[n][0] - max);
        float y = exp2f(scores[n][1] - max);
        p[n] = pack_bf16(x, y);
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
        load_matrix_transposed(b,
                               shared + KEYS * ROW_BYTES + piece_offset(row, d * 2 + (lane >> 4)));
        mma(state.out[d * 2], p[0], 0, p[1], 0, b[0], b[1]);
        mma(state.out[d * 2 + 1], p[0], 0, p[1], 0, b[2], b[3]);
    }
}

/* What a split leaves: [request][q_head][split] of max, sum and the unscaled values. */
__device__ __forceinline__ size_t
part_index(const kern_cuda_attention_t &a, uint32_t request, uint32_t head, uint32_t split,
           uint32_t splits)
{
    return ((size_t)request * a.q_heads + head) * splits + split;
}

/* Leaves the block's part of the softmax: [warp][row][dim] in shared memory, then the merge in the
 * order of the warps. */
__device__ __forceinline__ void
leave_part(const kern_cuda_attention_t &a, const state_t &state, uint8_t *shared, float *maxima,
           float *sums, float *values)
{
    int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    uint32_t row = lane / 4;
    uint32_t group = a.q_heads / a.kv_heads;
    float *merged = reinterpret_cast<float *>(shared);
    float *limits = merged + WARPS * KERN_CUDA_HEADS_PER_KV_MAX * DIM;
    if (row < group) {
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            float *to =
                merged + (warp * KERN_CUDA_HEADS_PER_KV_MAX + row) * DIM + d * 8 + (lane % 4) * 2;
            to[0] = state.out[d][0];
            to[1] = state.out[d][1];
        }
        if (lane % 4 == 0) {
            limits[(warp * KERN_CUDA_HEADS_PER_KV_MAX + row) * 2] = state.max;
            limits[(warp * KERN_CUDA_HEADS_PER_KV_MAX + row) * 2 + 1] = state.sum;
        }
    }
    __syncthreads();
    uint32_t splits = gridDim.x;
    for (uint32_t head = 0; head < group; head++) {
        float max = -CUDART_INF_F;
        for (int w = 0; w < WARPS; w++) {
            max = fmaxf(max, limits[(w * KERN_CUDA_HEADS_PER_KV_MAX + head) * 2]);
        }
        float sum = 0.0f;
        float value = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            const float *limit = limits + (w * KERN_CUDA_HEADS_PER_KV_MAX + head) * 2;
            float weight = exp2f(limit[0] - max);
            sum += limit[1] * weight;
            value += merged[(w * KERN_CUDA_HEADS_PER_KV_MAX + head) * DIM + threadIdx.x] * weight;
        }
        size_t part = part_index(a, blockIdx.z, blockIdx.y * group + head, blockIdx.x, splits);
        values[part * DIM + threadIdx.x] = value;
        if (threadIdx.x == 0) {
            maxima[part] = max;
            sums[part] = sum;
        }
    }
}

__global__ void __launch_bounds__(32 * WARPS)
    attention_kernel(kern_cuda_attention_t a, float *maxima, float *sums, float *values)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    uint32_t split = blockIdx.x;
    uint32_t kv_head = blockIdx.y;
    uint32_t request = blockIdx.z;
    uint32_t group = a.q_heads / a.kv_heads;
    pdl_wait();
    pdl_trigger();
    int end = min(a.seq_lens[request], (int)a.seq_len_max);
    int begin = (int)split * SPLIT;
    if (begin >= end) {
        return;
    }
    end = min(end, begin + SPLIT);
    uint32_t mine = shared_address(shared) + warp * STAGES * TURN_BYTES;
    int turns = (end - begin + WARPS * KEYS - 1) / (WARPS * KEYS);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        int first = begin + (i * WARPS + warp) * KEYS;
        if (i < turns) {
            copy_turn(a, mine + i * TURN_BYTES, request, kv_head, first, end);
        }
        copy_commit();
    }
    uint32_t q[DIM / 16][2];
    uint32_t row = lane / 4;
    const kern_bf16_t *from =
        a.q + ((size_t)request * a.q_heads + kv_head * group + row) * DIM + (lane % 4) * 2;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        q[step][0] = row < group ? *reinterpret_cast<const uint32_t *>(from + step * 16) : 0;
        q[step][1] = row < group ? *reinterpret_cast<const uint32_t *>(from + step * 16 + 8) : 0;
        /* Scores in base 2; the scale is folded in once, in float32, and rounded like q itself. */
        __nv_bfloat162 low = *reinterpret_cast<__nv_bfloat162 *>(&q[step][0]);
        __nv_bfloat162 high = *reinterpret_cast<__nv_bfloat162 *>(&q[step][1]);
        float factor = a.scale * 1.44269504f;
        q[step][0] = pack_bf16(__low2float(low) * factor, __high2float(low) * factor);
        q[step][1] = pack_bf16(__low2float(high) * factor, __high2float(high) * factor);
    }
    state_t state = {-CUDART_INF_F, 0.0f, {}};
    for (int turn = 0; turn < turns; turn++) {
        int ahead = turn + STAGES - 1;
        if (ahead < turns) {
            int first = begin + (ahead * WARPS + warp) * KEYS;
            copy_turn(a, mine + ahead % STAGES * TURN_BYTES, request, kv_head, first, end);
        }
        copy_commit();
        copy_wait<STAGES - 1>();
        __syncwarp();
        int first = begin + (turn * WARPS + warp) * KEYS;
        if (first < end) {
            attend(state, q, mine + turn % STAGES * TURN_BYTES, first, end);
        }
        __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();
    leave_part(a, state, shared, maxima, sums, values);
}

/* A quarter of the splits for each 128 threads, then the quarters in order. */
__global__ void
__launch_bounds__(MERGERS *DIM)
    merge_kernel(kern_cuda_attention_t a, const float *maxima, const float *sums,
                 const float *values, uint32_t splits)
{
    __shared__ float shared_values[MERGERS][DIM];
    __shared__ float limits[MERGERS][2];
    uint32_t head = blockIdx.x;
    uint32_t request = blockIdx.y;
    uint32_t quarter = threadIdx.x / DIM;
    uint32_t dim = threadIdx.x % DIM;
    pdl_trigger();
    pdl_wait();
    int length = min(a.seq_lens[request], (int)a.seq_len_max);
    uint32_t count = length <= 0 ? 0 : ((uint32_t)length + SPLIT - 1) / SPLIT;
    size_t first = part_index(a, request, head, 0, splits);
    uint32_t begin = count * quarter / MERGERS;
    uint32_t end = count * (quarter + 1) / MERGERS;
    float max = -CUDART_INF_F;
    for (uint32_t s = begin; s < end; s++) {
        max = fmaxf(max, maxima[first + s]);
    }
    float sum = 0.0f;
    float value = 0.0f;
#pragma unroll 4
    for (uint32_t s = begin; s < end; s++) {
        float weight = exp2f(maxima[first + s] - max);
        sum += sums[first + s] * weight;
        value += values[(first + s) * DIM + dim] * weight;
    }
    shared_values[quarter][dim] = value;
    if (dim == 0) {
        limits[quarter][0] = max;
        limits[quarter][1] = sum;
    }
    __syncthreads();
    if (quarter > 0) {
        return;
    }
    for (int q = 1; q < MERGERS; q++) {
        max = fmaxf(max, limits[q][0]);
    }
    float total = 0.0f;
    float merged = 0.0f;
    for (int q = 0; q < MERGERS; q++) {
        float weight = limits[q][0] == -CUDART_INF_F ? 0.0f : exp2f(limits[q][0] - max);
        total += limits[q][1] * weight;
        merged += shared_values[q][dim] * weight;
    }
    size_t to = kern_cuda_packed_index(request, head * DIM + dim, kern_cuda_batch_padded(a.batch));
    a.output[to] = float_to_bf16(count == 0 ? 0.0f : merged / total);
}

uint32_t
split_count(uint32_t seq_len_max)
{
    return (seq_len_max + SPLIT - 1) / SPLIT;
}

} // namespace

size_t
kern_cuda_attention_workspace_floats(uint32_t batch, uint32_t q_heads, uint32_t seq_len_max)
{
    return (size_t)batch * q_heads * split_count(seq_len_max) * (DIM + 2);
}

int
kern_cuda_attention(const kern_cuda_attention_t *args, kern_cuda_stream_t stream)
{
    if (args->batch == 0) {
        return 0;
    }
    if (args->kv_heads == 0 || args->q_heads % args->kv_heads != 0 ||
        args->q_heads / args->kv_heads > KERN_CUDA_HEADS_PER_KV_MAX ||
        args->page_size % KEYS != 0 || args->seq_len_max == 0) {
        return (int)cudaErrorInvalidValue;
    }
    uint32_t splits = split_count(args->seq_len_max);
    size_t parts = (size_t)args->batch * args->q_heads * splits;
    float *values = args->workspace;
    float *maxima = values + parts * DIM;
    float *sums = maxima + parts;
    kern_cuda_launch_t how = {};
    how.grid = dim3(splits, args->kv_heads, args->batch);
    how.threads = 32 * WARPS;
    how.shared_bytes = (size_t)WARPS * STAGES * TURN_BYTES;
    how.pdl = args->pdl;
    how.stream = stream;
    int status = launch(attention_kernel, how, *args, maxima, sums, values);
    if (status != 0) {
        return status;
    }
    how.grid = dim3(args->q_heads, args->batch);
    how.threads = MERGERS * DIM;
    how.shared_bytes = 0;
    return launch(merge_kernel, how, *args, (const float *)maxima, (const float *)sums,
                  (const float *)values, splits);
}
