/* Products with BF16 weights, made to stream the weights at memory speed for a few rows.
 *
 * The weight is the matrix unit's first operand (64 rows a warpgroup), the batch its second, so the
 * same instructions in the same order make a row's sums whether it is alone or one of thousands.
 * Both operands lie in memory as the unit reads them (kern_cuda_pack), so that one bulk copy fills
 * a stage; the copies of the first stages of weights are under way before the predecessor's end is
 * waited for.  A small weight is cut along k over the blocks of a cluster, which add up their sums
 * in order through each other's shared memory. */
#include "kern_cuda_wgmma.cuh"

namespace {

constexpr int COLS = KERN_CUDA_TILE_COLS; /* k in a chunk */
constexpr int ROWS = KERN_CUDA_TILE_ROWS; /* of a block: two warpgroups of 64 */
constexpr int CONSUMERS = 256;            /* threads of the two warpgroups */
constexpr int THREADS = CONSUMERS + 32;   /* and the warp that copies */
constexpr uint32_t WEIGHT_BYTES = ROWS * COLS * 2;
constexpr int SUMS_STRIDE = ROWS + 4; /* floats: no two lanes of a store in one bank */
constexpr int HALF_STRIDE = ROWS / 2 + 4;
constexpr uint32_t SPLITS_MAX = 8; /* blocks of a cluster */

/* Stages fill what shared memory two blocks of a multiprocessor leave. */
template <int N> struct stages_t {
    static constexpr uint32_t INPUT_BYTES = N * COLS * 2;
    static constexpr uint32_t BYTES = WEIGHT_BYTES + INPUT_BYTES;
    static constexpr int COUNT = (int)(106 * 1024 / BYTES);
    static constexpr size_t SHARED_BYTES = COUNT * BYTES + 1024 + 2 * COUNT * 8;
    static_assert(N * SUMS_STRIDE * 4 <= COUNT * BYTES, "sums fit the stages");
    static_assert(2 * N * HALF_STRIDE * 4 <= COUNT * BYTES, "both halves fit the stages");
};

/* What a block multiplies: chunks of one tile of the weight, and of one tile of the batch. */
struct work_t {
    const kern_bf16_t *weight[2]; /* the first chunk's upper and lower 64 rows */
    const kern_bf16_t *input;     /* the first chunk's first row of this tile */
    size_t input_stride;          /* values from chunk to chunk */
    int count;                    /* of chunks */
};

template <int N> struct ring_t {
    uint32_t stages;
    uint32_t full; /* barriers, 8 bytes each */
    uint32_t empty;
    float *memory; /* the stages again */

    __device__ uint32_t
    weight(int at) const
    {
        return stages + at % stages_t<N>::COUNT * stages_t<N>::BYTES;
    }
    __device__ uint32_t
    full_at(int at) const
    {
        return full + at % stages_t<N>::COUNT * 8;
    }
    __device__ uint32_t
    empty_at(int at) const
    {
        return empty + at % stages_t<N>::COUNT * 8;
    }
    /* The parity of the phase in which that chunk fills its stage. */
    static __device__ uint32_t
    parity(int at)
    {
        return (uint32_t)(at / stages_t<N>::COUNT) & 1;
    }
};

template <int N>
__device__ __forceinline__ ring_t<N>
make_ring()
{
    extern __shared__ uint8_t shared[];
    uint32_t start = shared_address(shared);
    uint32_t base = (start + 1023) & ~1023u;
    uint32_t barriers = base + stages_t<N>::COUNT * stages_t<N>::BYTES;
    ring_t<N> ring = {base, barriers, barriers + stages_t<N>::COUNT * 8,
                      reinterpret_cast<float *>(shared + (base - start))};
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages_t<N>::COUNT; i++) {
            barrier_init(ring.full_at(i), 1);
            barrier_init(ring.empty_at(i), CONSUMERS / 128);
        }
        barrier_publish();
    }
    __syncthreads();
    return ring;
}

template <int N>
__device__ __forceinline__ void
copy_weight(const ring_t<N> &ring, const work_t &work, int at)
{
    size_t offset = (size_t)at * (ROWS * COLS);
    barrier_expect(ring.full_at(at), stages_t<N>::BYTES);
    if (work.weight[1] == work.weight[0] + ROWS / 2 * COLS) {
        copy_bulk(ring.weight(at), work.weight[0] + offset, WEIGHT_BYTES, ring.full_at(at));
        return;
    }
    copy_bulk(ring.weight(at), work.weight[0] + offset, WEIGHT_BYTES / 2, ring.full_at(at));
    copy_bulk(ring.weight(at) + WEIGHT_BYTES / 2, work.weight[1] + offset, WEIGHT_BYTES / 2,
              ring.full_at(at));
}

/* One thread: keeps the ring full. */
template <int N>
__device__ __forceinline__ void
produce(const ring_t<N> &ring, const work_t &work)
{
    constexpr int COUNT = stages_t<N>::COUNT;
    int first = work.count < COUNT ? work.count : COUNT;
    /* Weights do not depend on the predecessor. */
    for (int at = 0; at < first; at++) {
        copy_weight<N>(ring, work, at);
    }
    pdl_wait();
    for (int at = 0; at < first; at++) {
        copy_bulk(ring.weight(at) + WEIGHT_BYTES, work.input + at * work.input_stride,
                  stages_t<N>::INPUT_BYTES, ring.full_at(at));
    }
    for (int at = first; at < work.count; at++) {
        barrier_wait(ring.empty_at(at), ring_t<N>::parity(at - COUNT));
        copy_weight<N>(ring, work, at);
        copy_bulk(ring.weight(at) + WEIGHT_BYTES, work.input + at * work.input_stride,
                  stages_t<N>::INPUT_BYTES, ring.full_at(at));
    }
}

/* A warpgroup: the sums of its 64 rows. */
template <int N>
__device__ __forceinline__ void
consume(const ring_t<N> &ring, int count, float (&sums)[N / 2])
{
    uint32_t offset = threadIdx.x / 128 * (64 * COLS * 2);
    for (int at = 0; at < count; at++) {
        barrier_wait(ring.full_at(at), ring_t<N>::parity(at));
        uint32_t weight = ring.weight(at) + offset;
        uint32_t input = ring.weight(at) + WEIGHT_BYTES;
        wgmma_fence();
#pragma unroll
        for (uint32_t k16 = 0; k16 < COLS / 16; k16++) {
            wgmma_t<N>::add(sums, operand(weight, k16), operand(input, k16));
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (at > 0 && threadIdx.x % 128 == 0) {
            barrier_arrive(ring.empty_at(at - 1));
        }
    }
    wgmma_wait<0>();
}

/* ---- linear ---------------------------------------------------------------------------------- */

struct matrix_t {
    const kern_bf16_t *weight;
    float *output;
    const float *bias;
    size_t output_stride;
    uint32_t rows;  /* real ones */
    uint32_t tiles; /* of all matrices up to this one */
};

struct linear_t {
    matrix_t matrices[KERN_LINEAR_WEIGHTS_MAX];
    const kern_bf16_t *input;
    uint32_t chunks;
    uint32_t splits;
    uint32_t batch;
    uint32_t batch_padded;
    bool accumulate;
};

/* The sum of one output, written where it belongs. */
__device__ __forceinline__ void
leave(const linear_t &a, const matrix_t &matrix, uint32_t row, uint32_t b, float sum)
{
    if (row < matrix.rows && b < a.batch) {
        float *out = matrix.output + (size_t)b * matrix.output_stride + row;
        sum += matrix.bias != nullptr ? matrix.bias[row] : 0.0f;
        *out = a.accumulate ? *out + sum : sum;
    }
}

/* The same for four rows, in one piece where they lie so. */
__device__ __forceinline__ void
leave_four(const linear_t &a, const matrix_t &matrix, uint32_t row, uint32_t b, float4 sum)
{
    float *out = matrix.output + (size_t)b * matrix.output_stride + row;
    if (matrix.bias != nullptr || row + 4 > matrix.rows || ((uintptr_t)out & 15) != 0) {
        leave(a, matrix, row, b, sum.x);
        leave(a, matrix, row + 1, b, sum.y);
        leave(a, matrix, row + 2, b, sum.z);
        leave(a, matrix, row + 3, b, sum.w);
        return;
    }
    if (a.accumulate) {
        float4 old = *reinterpret_cast<const float4 *>(out);
        sum = float4{old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w};
    }
    *reinterpret_cast<float4 *>(out) = sum;
}

/* The blocks of a cluster hold the parts of one tile: each adds up some rows of the batch. */
template <int N>
__device__ __forceinline__ void
add_parts(const linear_t &a, const matrix_t &matrix, uint32_t tile_row, const ring_t<N> &ring,
          const float (&sums)[N / 2])
{
    uint32_t lane = threadIdx.x % 32;
    uint32_t row = threadIdx.x / 32 * 16 + lane / 4;
    consumers_sync(); /* the stages are read */
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float *to = ring.memory + (n * 8 + lane % 4 * 2 + c) * SUMS_STRIDE + row;
            to[0] = sums[n * 4 + c];
            to[8] = sums[n * 4 + 2 + c];
        }
    }
    cluster_sync();
    uint32_t rank = cluster_rank();
    uint32_t first = rank * N / a.splits;
    uint32_t end = (rank + 1) * N / a.splits;
    uint32_t base = shared_address(ring.memory);
    for (uint32_t at = threadIdx.x; at < (end - first) * (ROWS / 4); at += CONSUMERS) {
        uint32_t b = first + at / (ROWS / 4);
        if (blockIdx.y * N + b >= a.batch) {
            break;
        }
        uint32_t address = base + (b * SUMS_STRIDE + at % (ROWS / 4) * 4) * 4;
        float4 parts[SPLITS_MAX]; /* all under way at once */
#pragma unroll
        for (uint32_t s = 0; s < SPLITS_MAX; s++) {
            if (s < a.splits) {
                parts[s] = load_cluster(address, s);
            }
        }
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (uint32_t s = 0; s < SPLITS_MAX; s++) {
            if (s < a.splits) {
                sum.x += parts[s].x;
                sum.y += parts[s].y;
                sum.z += parts[s].z;
                sum.w += parts[s].w;
            }
        }
        leave_four(a, matrix, tile_row + at % (ROWS / 4) * 4, blockIdx.y * N + b, sum);
    }
    cluster_sync(); /* nobody's memory goes while others read it */
}

template <int N>
__global__ void
__launch_bounds__(THREADS) linear_kernel(const __grid_constant__ linear_t a)
{
    ring_t<N> ring = make_ring<N>();
    uint32_t tile = blockIdx.x / a.splits;
    uint32_t split = blockIdx.x % a.splits;
    uint32_t which = 0;
    while (tile >= a.matrices[which].tiles) {
        which++;
    }
    const matrix_t &matrix = a.matrices[which];
    tile -= which > 0 ? a.matrices[which - 1].tiles : 0;
    uint32_t chunk = split * a.chunks / a.splits;
    int count = (int)((split + 1) * a.chunks / a.splits - chunk);
    pdl_trigger();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) {
            const kern_bf16_t *weight =
                matrix.weight + ((size_t)tile * a.chunks + chunk) * (ROWS * COLS);
            work_t work = {{weight, weight + ROWS / 2 * COLS},
                           a.input + ((size_t)chunk * a.batch_padded + blockIdx.y * N) * COLS,
                           (size_t)a.batch_padded * COLS,
                           count};
            produce<N>(ring, work);
        }
        return;
    }
    float sums[N / 2] = {};
    consume<N>(ring, count, sums);
    pdl_wait(); /* the output may still be read by who came before */
    if (a.splits > 1) {
        add_parts<N>(a, matrix, tile * ROWS, ring, sums);
        return;
    }
    uint32_t lane = threadIdx.x % 32;
    uint32_t row = tile * ROWS + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t b = blockIdx.y * N + n * 8 + lane % 4 * 2 + c;
            leave(a, matrix, row, b, sums[n * 4 + c]);
            leave(a, matrix, row + 8, b, sums[n * 4 + 2 + c]);
        }
    }
}

/* ---- gate and up ----------------------------------------------------------------------------- */

struct gate_up_t {
    const kern_bf16_t *gate;
    const kern_bf16_t *up;
    const kern_bf16_t *input;
    kern_bf16_t *output;
    uint32_t chunks;
    uint32_t batch;
    uint32_t batch_padded;
    kern_gate_t bend;
};

__device__ __forceinline__ float
bend(kern_gate_t how, float gate)
{
    if (how == KERN_GATE_SILU) {
        return gate / (1.0f + __expf(-gate));
    }
    float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1.0f + tanhf(inner));
}

/* The first warpgroup has 64 rows of the gate, the second the same rows of the up projection. */
template <int N>
__global__ void
__launch_bounds__(THREADS) gate_up_kernel(const __grid_constant__ gate_up_t a)
{
    ring_t<N> ring = make_ring<N>();
    pdl_trigger();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) {
            size_t offset = (size_t)(blockIdx.x / 2) * a.chunks * (ROWS * COLS) +
                            blockIdx.x % 2 * (ROWS / 2 * COLS);
            work_t work = {{a.gate + offset, a.up + offset},
                           a.input + (size_t)blockIdx.y * N * COLS,
                           (size_t)a.batch_padded * COLS,
                           (int)a.chunks};
            produce<N>(ring, work);
        }
        return;
    }
    float sums[N / 2] = {};
    consume<N>(ring, (int)a.chunks, sums);
    uint32_t lane = threadIdx.x % 32;
    float *mine = ring.memory + threadIdx.x / 128 * (N * HALF_STRIDE);
    uint32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    consumers_sync(); /* the stages are read */
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float *to = mine + (n * 8 + lane % 4 * 2 + c) * HALF_STRIDE + row;
            to[0] = sums[n * 4 + c];
            to[8] = sums[n * 4 + 2 + c];
        }
    }
    consumers_sync();
    pdl_wait();
    for (uint32_t at = threadIdx.x; at < N * 8; at += CONSUMERS) {
        uint32_t column = at / 8;
        uint32_t b = blockIdx.y * N + column;
        if (b >= a.batch) {
            break;
        }
        const float *gate = ring.memory + column * HALF_STRIDE + at % 8 * 8;
        const float *up = gate + N * HALF_STRIDE;
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            values[i] = bend(a.bend, gate[i]) * up[i];
        }
        uint4 out = {pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]),
                     pack_bf16(values[4], values[5]), pack_bf16(values[6], values[7])};
        size_t to = kern_cuda_packed_index(b, blockIdx.x * 64 + at % 8 * 8, a.batch_padded);
        *reinterpret_cast<uint4 *>(a.output + to) = out;
    }
}

/* ---- packing --------------------------------------------------------------------------------- */

__global__ void
pack_kernel(const kern_bf16_t *from, uint32_t first, uint32_t count, uint32_t cols,
            kern_bf16_t *out)
{
    uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t chunks = (cols + COLS - 1) / COLS;
    for (uint32_t i = blockIdx.y; col < cols && i < count; i += gridDim.y) {
        uint32_t row = first + i;
        size_t tile = (size_t)(row / ROWS) * chunks * (ROWS * COLS);
        out[tile + kern_cuda_packed_index(row % ROWS, col, ROWS)] = from[(size_t)i * cols + col];
    }
}

__global__ void
stamp_kernel(uint64_t *out)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    *out = now;
}

/* Cuts along k: about two blocks for each multiprocessor of a large device, pieces of at least 512;
 * a function of the shapes alone. */
uint32_t
split_count(uint32_t tiles, uint32_t chunks)
{
    uint32_t splits = 1;
    while (splits < SPLITS_MAX && tiles * splits < 192 && chunks >= 2 * splits * (512 / COLS)) {
        splits *= 2;
    }
    return splits;
}

size_t
shared_bytes_of(uint32_t wide)
{
    return wide == 8    ? stages_t<8>::SHARED_BYTES
           : wide == 16 ? stages_t<16>::SHARED_BYTES
           : wide == 32 ? stages_t<32>::SHARED_BYTES
           : wide == 64 ? stages_t<64>::SHARED_BYTES
                        : stages_t<128>::SHARED_BYTES;
}

} // namespace

size_t
kern_cuda_operand_size_bytes(uint32_t rows, uint32_t cols)
{
    return (size_t)kern_cuda_batch_padded(rows) * kern_cuda_padded(cols, COLS) * 2;
}

size_t
kern_cuda_weight_size_bytes(uint32_t rows, uint32_t cols)
{
    return (size_t)kern_cuda_padded(rows, ROWS) * kern_cuda_padded(cols, COLS) * 2;
}

int
kern_cuda_pack(const kern_bf16_t *from, uint32_t first, uint32_t count, uint32_t cols,
               kern_bf16_t *out, kern_cuda_stream_t stream)
{
    kern_cuda_launch_t how = {};
    how.grid = dim3((cols + 255) / 256, count < 4096 ? count : 4096);
    how.threads = 256;
    how.stream = stream;
    return launch(pack_kernel, how, from, first, count, cols, out);
}

int
kern_cuda_stamp(uint64_t *out, kern_cuda_stream_t stream)
{
    kern_cuda_launch_t how = {};
    how.grid = dim3(1);
    how.threads = 1;
    how.stream = stream;
    return launch(stamp_kernel, how, out);
}

int
kern_linear_cuda(const kern_linear_args_t *args, const kern_cuda_where_t *where)
{
    if (args->rows == 0) {
        return 0;
    }
    linear_t a = {};
    uint32_t cols = args->weights[0].cols;
    uint32_t tiles = 0;
    for (uint32_t i = 0; i < args->weight_count; i++) {
        const kern_weight_t *weight = &args->weights[i];
        if (!weight->packed || weight->type != KERN_TYPE_BF16 || weight->cols != cols) {
            return (int)cudaErrorInvalidValue;
        }
        tiles += kern_cuda_padded(weight->rows, ROWS) / ROWS;
        a.matrices[i].weight = static_cast<const kern_bf16_t *>(weight->data);
        a.matrices[i].output = args->outputs[i];
        a.matrices[i].bias = args->biases[i];
        a.matrices[i].output_stride = args->output_strides[i];
        a.matrices[i].rows = weight->rows;
        a.matrices[i].tiles = tiles;
    }
    a.input = reinterpret_cast<const kern_bf16_t *>(args->input);
    a.chunks = kern_cuda_padded(cols, COLS) / COLS;
    a.splits = split_count(tiles, a.chunks);
    a.batch = args->rows;
    a.batch_padded = kern_cuda_batch_padded(args->rows);
    a.accumulate = args->accumulate;
    uint32_t wide = kern_cuda_batch_tile(args->rows);
    kern_cuda_launch_t how = {};
    how.grid = dim3(tiles * a.splits, a.batch_padded / wide);
    how.threads = THREADS;
    how.shared_bytes = shared_bytes_of(wide);
    how.cluster = a.splits;
    how.pdl = where->pdl;
    how.stream = where->stream;
    auto kernel = wide == 8    ? linear_kernel<8>
                  : wide == 16 ? linear_kernel<16>
                  : wide == 32 ? linear_kernel<32>
                  : wide == 64 ? linear_kernel<64>
                               : linear_kernel<128>;
    return launch(kernel, how, a);
}

int
kern_gate_up_cuda(const kern_gate_up_args_t *args, const kern_cuda_where_t *where)
{
    if (args->rows == 0) {
        return 0;
    }
    if (!args->gate.packed || !args->up.packed || args->gate.type != KERN_TYPE_BF16 ||
        args->up.type != KERN_TYPE_BF16) {
        return (int)cudaErrorInvalidValue;
    }
    gate_up_t a = {};
    a.gate = static_cast<const kern_bf16_t *>(args->gate.data);
    a.up = static_cast<const kern_bf16_t *>(args->up.data);
    a.input = reinterpret_cast<const kern_bf16_t *>(args->input);
    a.output = reinterpret_cast<kern_bf16_t *>(args->output);
    a.chunks = kern_cuda_padded(args->gate.cols, COLS) / COLS;
    a.batch = args->rows;
    a.batch_padded = kern_cuda_batch_padded(args->rows);
    a.bend = args->bend;
    uint32_t wide = kern_cuda_batch_tile(args->rows);
    kern_cuda_launch_t how = {};
    how.grid = dim3(kern_cuda_padded(args->gate.rows, 64) / 64, a.batch_padded / wide);
    how.threads = THREADS;
    how.shared_bytes = shared_bytes_of(wide);
    how.pdl = where->pdl;
    how.stream = where->stream;
    auto kernel = wide == 8    ? gate_up_kernel<8>
                  : wide == 16 ? gate_up_kernel<16>
                  : wide == 32 ? gate_up_kernel<32>
                  : wide == 64 ? gate_up_kernel<64>
                               : gate_up_kernel<128>;
    return launch(kernel, how, a);
}
