/* Operations on rows: embedding, norm, rotation with the write of keys and values, gather, bytes.
 */
#include "kern_cuda_common.cuh"

namespace {

constexpr int NORM_THREADS = 512;
constexpr int NORM_VECTORS = KERN_CUDA_COLS_MAX / NORM_THREADS / 4; /* of a thread at most */
constexpr int NORM_AHEAD = 2; /* vectors of the weight that are loaded before the wait */
constexpr int ROPE_WARPS = 4;
constexpr size_t COPY_BY_KERNEL_MAX = 256 << 10; /* above, the copy engine */

/* The sum over the block, the same in every thread: a fixed tree. */
__device__ __forceinline__ float
block_sum(float value, float *scratch)
{
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < NORM_THREADS / 32 ? scratch[threadIdx.x % 32] : 0.0f);
}

__device__ __forceinline__ void
write_four(const kern_rms_norm_args_t &a, uint32_t row, uint32_t col, float4 v)
{
    if (a.output_form == KERN_FORM_ROWS) {
        *reinterpret_cast<float4 *>(a.output + row * a.output_stride + col) = v;
        return;
    }
    size_t to = kern_cuda_packed_index(row, col, kern_cuda_batch_padded(a.rows));
    uint2 out = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
    *reinterpret_cast<uint2 *>(reinterpret_cast<kern_bf16_t *>(a.output) + to) = out;
}

__device__ __forceinline__ float4
weight_at(const kern_rms_norm_args_t &a, uint32_t col)
{
    return a.weight != nullptr && col < a.cols ? *reinterpret_cast<const float4 *>(a.weight + col)
                                               : float4{1.0f, 1.0f, 1.0f, 1.0f};
}

__global__ void
__launch_bounds__(NORM_THREADS) rms_norm_kernel(const __grid_constant__ kern_rms_norm_args_t a)
{
    __shared__ float scratch[NORM_THREADS / 32];
    uint32_t row = blockIdx.x;
    float *input = a.input + row * a.input_stride;
    const float *residual = a.residual != nullptr ? a.residual + row * a.residual_stride : nullptr;
    pdl_trigger();
    float4 weights[NORM_AHEAD]; /* nobody writes them */
#pragma unroll
    for (int i = 0; i < NORM_AHEAD; i++) {
        weights[i] = weight_at(a, (i * NORM_THREADS + threadIdx.x) * 4);
    }
    pdl_wait();
    float4 values[NORM_VECTORS];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        uint32_t col = (i * NORM_THREADS + threadIdx.x) * 4;
        if (col >= a.cols) {
            break;
        }
        float4 x = *reinterpret_cast<const float4 *>(input + col);
        if (residual != nullptr) {
            float4 more = *reinterpret_cast<const float4 *>(residual + col);
            x = float4{x.x + more.x, x.y + more.y, x.z + more.z, x.w + more.w};
            *reinterpret_cast<float4 *>(input + col) = x;
        }
        values[i] = x;
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    float scale = rsqrtf(block_sum(squares, scratch) / (float)a.cols + a.epsilon);
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        uint32_t col = (i * NORM_THREADS + threadIdx.x) * 4;
        if (col >= a.cols) {
            break;
        }
        float4 w = i < NORM_AHEAD ? weights[i] : weight_at(a, col);
        float4 x = values[i];
        write_four(a, row, col,
                   float4{x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z,
                          x.w * scale * w.w});
    }
    uint32_t pad = a.cols + threadIdx.x * 4;
    if (a.output_form == KERN_FORM_OPERAND && pad < kern_cuda_padded(a.cols, KERN_CUDA_TILE_COLS)) {
        write_four(a, row, pad, float4{0, 0, 0, 0});
    }
}

__global__ void
rope_angles_kernel(const __grid_constant__ kern_rope_angles_args_t a)
{
    uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t half = a.rope_dim / 2;
    pdl_trigger();
    pdl_wait();
    if (at >= a.rows * half) {
        return;
    }
    uint32_t row = at / half;
    uint32_t i = at % half;
    float position = a.positions_int64 ? (float)static_cast<const int64_t *>(a.positions)[row]
                                       : (float)static_cast<const int32_t *>(a.positions)[row];
    float sine;
    float cosine;
    sincosf(__fmul_rn(position, a.frequencies[i]), &sine, &cosine);
    float *out = a.angles + (size_t)row * a.rope_dim + 2 * i;
    out[0] = cosine * a.scale;
    out[1] = sine * a.scale;
}

/* One warp for each head of q, then of k, then of v.  Long because norm, rotation and write share
 * what a lane holds. */
__global__ void __launch_bounds__(32 * ROPE_WARPS)
    rope_write_kernel(const __grid_constant__ kern_rope_kv_write_args_t a)
{
    __shared__ float scratch[ROPE_WARPS][KERN_HEAD_DIM_MAX];
    constexpr int VALUES = KERN_HEAD_DIM_MAX / 32;
    uint32_t head = blockIdx.x * ROPE_WARPS + threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
    uint32_t row = blockIdx.y;
    pdl_trigger();
    if (head >= a.q_heads + 2 * a.kv_heads) {
        return;
    }
    bool is_q = head < a.q_heads;
    bool is_v = head >= a.q_heads + a.kv_heads;
    uint32_t own = is_q ? head : (head - a.q_heads) % a.kv_heads;
    const float *norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
    float weights[VALUES]; /* nobody writes them */
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        uint32_t d = lane + 32 * i;
        weights[i] = norm != nullptr && d < a.head_dim ? norm[d] : 1.0f;
    }
    pdl_wait();
    const float *from = is_q   ? a.q + row * a.q_stride
                        : is_v ? a.v + row * a.v_stride
                               : a.k + row * a.k_stride;
    from += own * a.head_dim;
    int32_t slot = is_q ? 0 : a.write_locations[row];
    float *values = scratch[threadIdx.x / 32];
    float held[VALUES];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        held[i] = lane + 32 * i < a.head_dim ? from[lane + 32 * i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        squares += held[i] * held[i];
    }
    float scale =
        norm != nullptr ? rsqrtf(warp_sum(squares) / (float)a.head_dim + a.epsilon) : 1.0f;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        held[i] = held[i] * scale * weights[i];
        if (lane + 32 * i < a.head_dim) {
            values[lane + 32 * i] = held[i];
        }
    }
    __syncwarp();
    float turned[VALUES];
    uint32_t rotated = is_v ? 0 : a.rope_dim;
    uint32_t half = rotated / 2;
    const float *angles = a.angles + (size_t)row * a.rope_dim;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        uint32_t d = lane + 32 * i;
        turned[i] = held[i];
        if (d < rotated) {
            bool is_low = a.interleaved ? d % 2 == 0 : d < half;
            uint32_t pair = a.interleaved ? d / 2 : d % half;
            uint32_t other = a.interleaved ? d ^ 1 : is_low ? d + half : d - half;
            float cosine = angles[2 * pair];
            float sine = angles[2 * pair + 1];
            turned[i] = turned[i] * cosine + (is_low ? -values[other] : values[other]) * sine;
        }
    }
    if (is_q) {
        float *to = a.q + row * a.q_stride + (size_t)own * a.head_dim;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            if (lane + 32 * i < a.head_dim) {
                to[lane + 32 * i] = turned[i];
            }
        }
        return;
    }
    if (slot < 0 || (uint32_t)slot >= a.slot_count) {
        return;
    }
    __half *to = static_cast<__half *>(is_v ? a.v_cache : a.k_cache) +
                 ((size_t)slot * a.kv_heads + own) * a.head_dim;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (lane + 32 * i < a.head_dim) {
            to[lane + 32 * i] = __float2half_rn(turned[i]);
        }
    }
}

/* The table is a packed weight. */
__global__ void
embed_kernel(const __grid_constant__ kern_embed_args_t a)
{
    uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t row = blockIdx.y;
    pdl_trigger();
    pdl_wait();
    if (col >= a.table.cols) {
        return;
    }
    int32_t token = a.tokens[row];
    float value = 0.0f;
    if (token >= 0 && (uint32_t)token < a.table.rows) {
        uint32_t tile = (uint32_t)token / KERN_CUDA_TILE_ROWS;
        size_t first = (size_t)tile * KERN_CUDA_TILE_ROWS *
                       kern_cuda_padded(a.table.cols, KERN_CUDA_TILE_COLS);
        size_t at =
            kern_cuda_packed_index((uint32_t)token % KERN_CUDA_TILE_ROWS, col, KERN_CUDA_TILE_ROWS);
        value = bf16_to_float(static_cast<const kern_bf16_t *>(a.table.data)[first + at]);
    }
    a.output[row * a.output_stride + col] = value * a.scale;
}

/* A thread for eight values. */
__global__ void
gather_rows_kernel(const __grid_constant__ kern_gather_rows_args_t a)
{
    uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    uint32_t row = blockIdx.y;
    pdl_trigger();
    pdl_wait();
    int32_t index = a.indices[row];
    bool valid = index >= 0 && (uint32_t)index < a.input_rows;
    if (a.form == KERN_FORM_ROWS) {
        for (uint32_t i = col; i < col + 8 && i < a.cols; i++) {
            a.output[row * a.output_stride + i] =
                valid ? a.input[(uint32_t)index * a.input_stride + i] : 0.0f;
        }
        return;
    }
    if (col >= kern_cuda_padded(a.cols, KERN_CUDA_TILE_COLS)) {
        return;
    }
    uint4 piece = {0, 0, 0, 0};
    if (valid) {
        size_t from =
            kern_cuda_packed_index((uint32_t)index, col, kern_cuda_batch_padded(a.input_rows));
        piece =
            *reinterpret_cast<const uint4 *>(reinterpret_cast<const kern_bf16_t *>(a.input) + from);
    }
    size_t to = kern_cuda_packed_index(row, col, kern_cuda_batch_padded(a.rows));
    *reinterpret_cast<uint4 *>(reinterpret_cast<kern_bf16_t *>(a.output) + to) = piece;
}

__global__ void
copy_kernel(const uint8_t *from, uint8_t *to, size_t size_bytes)
{
    size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    pdl_trigger();
    pdl_wait();
    if (at + 16 <= size_bytes) {
        *reinterpret_cast<uint4 *>(to + at) = *reinterpret_cast<const uint4 *>(from + at);
        return;
    }
    for (; at < size_bytes; at++) {
        to[at] = from[at];
    }
}

kern_cuda_launch_t
launch_of(dim3 grid, uint32_t threads, const kern_cuda_where_t *where)
{
    kern_cuda_launch_t how = {};
    how.grid = grid;
    how.threads = threads;
    how.pdl = where->pdl;
    how.stream = where->stream;
    return how;
}

} // namespace

int
kern_rms_norm_cuda(const kern_rms_norm_args_t *args, const kern_cuda_where_t *where)
{
    if (args->rows == 0) {
        return 0;
    }
    if (args->cols % 4 != 0 || args->cols > KERN_CUDA_COLS_MAX || args->input_stride % 4 != 0 ||
        (args->residual != NULL && args->residual_stride % 4 != 0) ||
        (args->output_form == KERN_FORM_ROWS && args->output_stride % 4 != 0)) {
        return (int)cudaErrorInvalidValue;
    }
    return launch(rms_norm_kernel, launch_of(dim3(args->rows), NORM_THREADS, where), *args);
}

int
kern_rope_angles_cuda(const kern_rope_angles_args_t *args, const kern_cuda_where_t *where)
{
    uint32_t count = args->rows * (args->rope_dim / 2);
    if (count == 0) {
        return 0;
    }
    return launch(rope_angles_kernel, launch_of(dim3((count + 127) / 128), 128, where), *args);
}

int
kern_rope_kv_write_cuda(const kern_rope_kv_write_args_t *args, const kern_cuda_where_t *where)
{
    if (args->rows == 0) {
        return 0;
    }
    if (args->cache_type != KERN_TYPE_F16 || args->head_dim > KERN_HEAD_DIM_MAX ||
        args->rope_dim > args->head_dim || args->rope_dim % 2 != 0 || args->rows > 65535) {
        return (int)cudaErrorInvalidValue;
    }
    uint32_t heads = args->q_heads + 2 * args->kv_heads;
    dim3 grid((heads + ROPE_WARPS - 1) / ROPE_WARPS, args->rows);
    return launch(rope_write_kernel, launch_of(grid, 32 * ROPE_WARPS, where), *args);
}

int
kern_embed_cuda(const kern_embed_args_t *args, const kern_cuda_where_t *where)
{
    if (args->rows == 0) {
        return 0;
    }
    if (!args->table.packed || args->table.type != KERN_TYPE_BF16 || args->rows > 65535) {
        return (int)cudaErrorInvalidValue;
    }
    dim3 grid((args->table.cols + 255) / 256, args->rows);
    return launch(embed_kernel, launch_of(grid, 256, where), *args);
}

int
kern_gather_rows_cuda(const kern_gather_rows_args_t *args, const kern_cuda_where_t *where)
{
    if (args->rows == 0) {
        return 0;
    }
    uint32_t pieces = kern_cuda_padded(args->cols, KERN_CUDA_TILE_COLS) / 8;
    dim3 grid((pieces + 127) / 128, args->rows);
    return launch(gather_rows_kernel, launch_of(grid, 128, where), *args);
}

int
kern_copy_cuda(const kern_copy_args_t *args, const kern_cuda_where_t *where)
{
    if (args->size_bytes == 0) {
        return 0;
    }
    cudaPointerAttributes from;
    cudaPointerAttributes to;
    bool reaches = cudaPointerGetAttributes(&from, args->from) == cudaSuccess &&
                   cudaPointerGetAttributes(&to, args->to) == cudaSuccess &&
                   from.devicePointer != NULL && to.devicePointer != NULL;
    bool is_aligned = ((uintptr_t)args->from | (uintptr_t)args->to) % 16 == 0;
    if (!reaches || !is_aligned || args->size_bytes > COPY_BY_KERNEL_MAX) {
        return (int)cudaMemcpyAsync(args->to, args->from, args->size_bytes, cudaMemcpyDefault,
                                    where->stream);
    }
    uint32_t blocks = (uint32_t)((args->size_bytes + 16 * 128 - 1) / (16 * 128));
    return launch(copy_kernel, launch_of(dim3(blocks), 128, where), (const uint8_t *)args->from,
                  (uint8_t *)args->to, args->size_bytes);
}

int
kern_fill_cuda(const kern_fill_args_t *args, const kern_cuda_where_t *where)
{
    if (args->size_bytes == 0) {
        return 0;
    }
    return (int)cudaMemsetAsync(args->to, args->value, args->size_bytes, where->stream);
}
