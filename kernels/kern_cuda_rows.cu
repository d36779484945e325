/* Row operations of a decode step: embedding, add and norm, rotation and cache write, argmax.
 *
 * Sums run in a fixed tree over a fixed number of threads, whatever the batch is. */
#include <math_constants.h>

#include "kern_cuda_common.cuh"

namespace {

constexpr int NORM_THREADS = 512;
constexpr int NORM_VALUES_MAX = 32; /* of a thread: cols at most 16384 */
constexpr int ROPE_WARPS = 4;
constexpr int ARGMAX_THREADS = 1024;

/* The sum over a block of up to 32 warps, the same in every thread. */
__device__ float
block_sum(float value, float *scratch)
{
    int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    float mine = warp_sum(value);
    if (lane == 0) {
        scratch[warp] = mine;
    }
    __syncthreads();
    float all = lane < (int)(blockDim.x / 32) ? scratch[lane] : 0.0f;
    return warp_sum(all);
}

__global__ void
__launch_bounds__(NORM_THREADS) add_norm_kernel(kern_cuda_add_norm_t a)
{
    __shared__ float scratch[32];
    uint32_t b = blockIdx.x;
    size_t row = (size_t)b * a.cols;
    pdl_wait();
    pdl_trigger();
    float4 values[NORM_VALUES_MAX / 4];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_VALUES_MAX / 4; i++) {
        uint32_t col = (i * NORM_THREADS + threadIdx.x) * 4;
        if (col >= a.cols) {
            break;
        }
        float4 x = *reinterpret_cast<const float4 *>(a.x + row + col);
        for (uint32_t s = 0; s < a.split_count; s++) {
            float4 part = *reinterpret_cast<const float4 *>(
                a.parts + ((size_t)s * a.batch + b) * a.cols + col);
            x.x += part.x;
            x.y += part.y;
            x.z += part.z;
            x.w += part.w;
        }
        if (a.split_count > 0) {
            *reinterpret_cast<float4 *>(a.x + row + col) = x;
        }
        values[i] = x;
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    float scale = rsqrtf(block_sum(squares, scratch) / (float)a.cols + a.epsilon);
#pragma unroll
    for (int i = 0; i < NORM_VALUES_MAX / 4; i++) {
        uint32_t col = (i * NORM_THREADS + threadIdx.x) * 4;
        if (col >= a.cols) {
            break;
        }
        uint2 w = *reinterpret_cast<const uint2 *>(a.weight + col);
        float4 x = values[i];
        uint2 out = {pack_bf16(x.x * scale * bf16_to_float((kern_bf16_t)w.x),
                               x.y * scale * bf16_to_float((kern_bf16_t)(w.x >> 16))),
                     pack_bf16(x.z * scale * bf16_to_float((kern_bf16_t)w.y),
                               x.w * scale * bf16_to_float((kern_bf16_t)(w.y >> 16)))};
        size_t to = kern_cuda_packed_index(b, col, kern_cuda_batch_padded(a.batch));
        *reinterpret_cast<uint2 *>(a.output + to) = out;
    }
}

/* One warp for each head of q, then of k, then of v; a lane has values i and i + 64 of i = lane and
 * lane + 32, which are two pairs. */
__global__ void __launch_bounds__(32 * ROPE_WARPS) rope_write_kernel(kern_cuda_rope_write_t a)
{
    constexpr int DIM = KERN_CUDA_HEAD_DIM;
    uint32_t heads = a.q_heads + 2 * a.kv_heads;
    uint32_t head = blockIdx.x * ROPE_WARPS + threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
    uint32_t b = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (head >= heads) {
        return;
    }
    float v[4] = {};
    for (uint32_t s = 0; s < a.split_count; s++) {
        const float *part = a.parts + (((size_t)s * a.batch + b) * heads + head) * DIM;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] += part[lane + 32 * i];
        }
    }
    bool is_q = head < a.q_heads;
    bool is_k = !is_q && head < a.q_heads + a.kv_heads;
    const kern_bf16_t *norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
    if (norm != nullptr) {
        float squares = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
        float scale = rsqrtf(warp_sum(squares) / DIM + a.epsilon);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] *= scale * bf16_to_float(norm[lane + 32 * i]);
        }
    }
    if (is_q || is_k) {
        float position = (float)a.positions[b];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sine;
            float cosine;
            sincosf(position * a.frequencies[lane + 32 * i], &sine, &cosine);
            float low = v[i];
            float high = v[i + 2];
            v[i] = low * cosine - high * sine;
            v[i + 2] = high * cosine + low * sine;
        }
    }
    kern_bf16_t *to;
    if (is_q) {
        to = a.q + ((size_t)b * a.q_heads + head) * DIM;
    } else {
        int32_t slot = a.write_locations[b];
        if (slot < 0) {
            return;
        }
        uint32_t kv_head = (head - a.q_heads) % a.kv_heads;
        to = (is_k ? a.k_cache : a.v_cache) + ((size_t)slot * a.kv_heads + kv_head) * DIM;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[lane + 32 * i] = float_to_bf16(v[i]);
    }
}

__global__ void
embed_kernel(kern_cuda_embed_t a)
{
    uint32_t b = blockIdx.y;
    uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 2;
    if (col >= a.cols) {
        return;
    }
    int32_t token = a.tokens[b];
    uint32_t pair = 0;
    if (token >= 0 && (uint32_t)token < a.vocabulary) {
        pair = *reinterpret_cast<const uint32_t *>(a.table + (size_t)token * a.cols + col);
    }
    float2 value = {bf16_to_float((kern_bf16_t)pair), bf16_to_float((kern_bf16_t)(pair >> 16))};
    *reinterpret_cast<float2 *>(a.x + (size_t)b * a.cols + col) = value;
}

/* A value and where it stands; the larger value wins, of equal ones the smaller place. */
struct best_t {
    float value;
    uint32_t at;
};

__device__ __forceinline__ best_t
better(best_t a, best_t b)
{
    bool second = b.value > a.value || (b.value == a.value && b.at < a.at);
    return second ? b : a;
}

__device__ __forceinline__ best_t
warp_best(best_t best)
{
    for (int step = 16; step > 0; step /= 2) {
        best_t other = {__shfl_xor_sync(0xffffffffu, best.value, step),
                        __shfl_xor_sync(0xffffffffu, best.at, step)};
        best = better(best, other);
    }
    return best;
}

__global__ void
__launch_bounds__(ARGMAX_THREADS) argmax_kernel(kern_cuda_argmax_t a)
{
    __shared__ best_t scratch[ARGMAX_THREADS / 32];
    const float *row = a.logits + (size_t)blockIdx.x * a.vocabulary;
    pdl_wait();
    best_t best = {-CUDART_INF_F, 0};
    for (uint32_t i = threadIdx.x; i < a.vocabulary; i += ARGMAX_THREADS) {
        best = better(best, best_t{row[i], i});
    }
    best = warp_best(best);
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        best = warp_best(scratch[threadIdx.x]);
        if (threadIdx.x == 0) {
            a.tokens[blockIdx.x] = (int32_t)best.at;
        }
    }
}

} // namespace

int
kern_cuda_add_norm(const kern_cuda_add_norm_t *args, kern_cuda_stream_t stream)
{
    if (args->batch == 0) {
        return 0;
    }
    if (args->cols % 64 != 0 || args->cols > NORM_THREADS * NORM_VALUES_MAX) {
        return (int)cudaErrorInvalidValue;
    }
    kern_cuda_launch_t how = {};
    how.grid = dim3(args->batch);
    how.threads = NORM_THREADS;
    how.pdl = args->pdl;
    how.stream = stream;
    return launch(add_norm_kernel, how, *args);
}

int
kern_cuda_rope_write(const kern_cuda_rope_write_t *args, kern_cuda_stream_t stream)
{
    if (args->batch == 0) {
        return 0;
    }
    uint32_t heads = args->q_heads + 2 * args->kv_heads;
    kern_cuda_launch_t how = {};
    how.grid = dim3((heads + ROPE_WARPS - 1) / ROPE_WARPS, args->batch);
    how.threads = 32 * ROPE_WARPS;
    how.pdl = args->pdl;
    how.stream = stream;
    return launch(rope_write_kernel, how, *args);
}

int
kern_cuda_embed(const kern_cuda_embed_t *args, kern_cuda_stream_t stream)
{
    if (args->batch == 0) {
        return 0;
    }
    kern_cuda_launch_t how = {};
    how.grid = dim3((args->cols / 2 + 255) / 256, args->batch);
    how.threads = 256;
    how.stream = stream;
    return launch(embed_kernel, how, *args);
}

int
kern_cuda_argmax(const kern_cuda_argmax_t *args, kern_cuda_stream_t stream)
{
    if (args->batch == 0) {
        return 0;
    }
    kern_cuda_launch_t how = {};
    how.grid = dim3(args->batch);
    how.threads = ARGMAX_THREADS;
    how.stream = stream;
    return launch(argmax_kernel, how, *args);
}
