/* Products of a few rows with BF16 weights, made to stream the weights at memory speed.
 *
 * The weight is the matrix unit's first operand (64 rows a warpgroup), the batch its second, so the
 * same instructions in the same order make a row's sums whether it is alone or one of 128.  Both
 * operands lie in memory as the unit reads them (kern_cuda_pack), so that one bulk copy fills a
 * stage; the copies of the first stages of weights are under way before the predecessor's end is
 * waited for. */
#include "kern_cuda_wgmma.cuh"

namespace {

constexpr int COLS = KERN_CUDA_TILE_COLS; /* k in a chunk */
constexpr int ROWS = KERN_CUDA_TILE_ROWS; /* of a block: two warpgroups of 64 */
constexpr int CONSUMERS = 256;            /* threads of the two warpgroups */
constexpr int THREADS = CONSUMERS + 32;   /* and the warp that copies */
constexpr uint32_t WEIGHT_BYTES = ROWS * COLS * 2;

/* Stages fill what shared memory two blocks of a multiprocessor leave. */
template <int N> struct stages_t {
    static constexpr uint32_t INPUT_BYTES = N * COLS * 2;
    static constexpr uint32_t BYTES = WEIGHT_BYTES + INPUT_BYTES;
    static constexpr int COUNT = (int)(106 * 1024 / BYTES);
    static constexpr size_t SHARED_BYTES = COUNT * BYTES + 1024 + 2 * COUNT * 8;
};

/* What a block multiplies: chunks of one tile of the weight, and of one tile of the batch. */
struct work_t {
    const kern_bf16_t *weight; /* the first chunk */
    const kern_bf16_t *input;  /* the first chunk's first row of this tile */
    size_t input_stride;       /* values from chunk to chunk */
    int count;                 /* of chunks */
};

template <int N> struct ring_t {
    uint32_t stages;
    uint32_t full; /* barriers, 8 bytes each */
    uint32_t empty;

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
    uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    uint32_t barriers = base + stages_t<N>::COUNT * stages_t<N>::BYTES;
    ring_t<N> ring = {base, barriers, barriers + stages_t<N>::COUNT * 8};
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

/* One thread: keeps the ring full. */
template <int N>
__device__ __forceinline__ void
produce(const ring_t<N> &ring, const work_t &work)
{
    constexpr int COUNT = stages_t<N>::COUNT;
    int first = work.count < COUNT ? work.count : COUNT;
    /* Weights do not depend on the predecessor. */
    for (int at = 0; at < first; at++) {
        barrier_expect(ring.full_at(at), stages_t<N>::BYTES);
        copy_bulk(ring.weight(at), work.weight + (size_t)at * (ROWS * COLS), WEIGHT_BYTES,
                  ring.full_at(at));
    }
    pdl_wait();
    for (int at = 0; at < first; at++) {
        copy_bulk(ring.weight(at) + WEIGHT_BYTES, work.input + at * work.input_stride,
                  stages_t<N>::INPUT_BYTES, ring.full_at(at));
    }
    for (int at = first; at < work.count; at++) {
        barrier_wait(ring.empty_at(at), ring_t<N>::parity(at - COUNT));
        barrier_expect(ring.full_at(at), stages_t<N>::BYTES);
        copy_bulk(ring.weight(at), work.weight + (size_t)at * (ROWS * COLS), WEIGHT_BYTES,
                  ring.full_at(at));
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

template <int N>
__global__ void
__launch_bounds__(THREADS)
    linear_kernel(const kern_bf16_t *weight, const kern_bf16_t *input, float *parts, uint32_t rows,
                  uint32_t cols, uint32_t batch, uint32_t batch_padded, uint32_t chunks)
{
    ring_t<N> ring = make_ring<N>();
    uint32_t chunk = blockIdx.y * chunks;
    pdl_trigger();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) {
            size_t block = (size_t)blockIdx.x * (cols / COLS) + chunk;
            work_t work = {weight + block * (ROWS * COLS),
                           input + ((size_t)chunk * batch_padded + blockIdx.z * N) * COLS,
                           (size_t)batch_padded * COLS, (int)chunks};
            produce<N>(ring, work);
        }
        return;
    }
    float sums[N / 2] = {};
    consume<N>(ring, (int)chunks, sums);
    uint32_t lane = threadIdx.x % 32;
    uint32_t row = blockIdx.x * ROWS + threadIdx.x / 32 * 16 + lane / 4;
    float *out = parts + (size_t)blockIdx.y * batch * rows + row;
    pdl_wait(); /* the parts may still be read by who came before */
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t b = blockIdx.z * N + n * 8 + lane % 4 * 2 + c;
            if (b < batch) {
                out[(size_t)b * rows] = sums[n * 4 + c];
                out[(size_t)b * rows + 8] = sums[n * 4 + 2 + c];
            }
        }
    }
}

__device__ __forceinline__ float
silu_times(float gate, float up)
{
    return gate / (1.0f + __expf(-gate)) * up;
}

/* Of 16 packed rows eight are of the gate and eight of the same rows of the up projection, so one
 * thread has both. */
template <int N>
__global__ void
__launch_bounds__(THREADS)
    gate_up_kernel(const kern_bf16_t *weight, const kern_bf16_t *input, kern_bf16_t *output,
                   uint32_t cols, uint32_t batch, uint32_t batch_padded)
{
    ring_t<N> ring = make_ring<N>();
    uint32_t chunks = cols / COLS;
    pdl_trigger();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) {
            work_t work = {weight + (size_t)blockIdx.x * chunks * (ROWS * COLS),
                           input + (size_t)blockIdx.z * N * COLS, (size_t)batch_padded * COLS,
                           (int)chunks};
            produce<N>(ring, work);
        }
        return;
    }
    float sums[N / 2] = {};
    consume<N>(ring, (int)chunks, sums);
    uint32_t lane = threadIdx.x % 32;
    uint32_t row = blockIdx.x * (ROWS / 2) + threadIdx.x / 32 * 8 + lane / 4;
    pdl_wait();
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t b = blockIdx.z * N + n * 8 + lane % 4 * 2 + c;
            if (b < batch) {
                output[kern_cuda_packed_index(b, row, batch_padded)] =
                    float_to_bf16(silu_times(sums[n * 4 + c], sums[n * 4 + 2 + c]));
            }
        }
    }
}

/* One thread for each 16-byte piece of the packed weight. */
__global__ void
pack_kernel(const kern_bf16_t *first, const kern_bf16_t *second, uint32_t rows, uint32_t cols,
            kern_bf16_t *out)
{
    size_t pieces = (size_t)rows * cols / 8;
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= pieces) {
        return;
    }
    uint32_t piece = at % (COLS / 8);
    uint32_t row = at / (COLS / 8) % ROWS; /* of the tile */
    size_t block = at / (ROWS * COLS / 8);
    uint32_t chunk = block % (cols / COLS);
    uint32_t tile = block / (cols / COLS);
    uint32_t from = tile * ROWS + row;
    const kern_bf16_t *matrix = first;
    if (second != nullptr) {
        matrix = row / 8 % 2 == 0 ? first : second;
        from = tile * (ROWS / 2) + row / 16 * 8 + row % 8;
    }
    uint32_t k = chunk * COLS + (piece ^ (row & 7)) * 8;
    *reinterpret_cast<uint4 *>(out + at * 8) =
        *reinterpret_cast<const uint4 *>(matrix + (size_t)from * cols + k);
}

kern_cuda_launch_t
launch_of(uint32_t tiles, uint32_t splits, uint32_t batch, bool pdl, kern_cuda_stream_t stream)
{
    uint32_t wide = kern_cuda_batch_tile(batch);
    kern_cuda_launch_t how = {};
    how.grid = dim3(tiles, splits, (batch + wide - 1) / wide);
    how.threads = THREADS;
    how.shared_bytes = wide == 8    ? stages_t<8>::SHARED_BYTES
                       : wide == 16 ? stages_t<16>::SHARED_BYTES
                       : wide == 32 ? stages_t<32>::SHARED_BYTES
                       : wide == 64 ? stages_t<64>::SHARED_BYTES
                                    : stages_t<128>::SHARED_BYTES;
    how.pdl = pdl;
    how.stream = stream;
    return how;
}

} // namespace

uint32_t
kern_cuda_split_count(uint32_t rows, uint32_t cols)
{
    /* About two blocks for each multiprocessor of a large device, pieces of at least 512. */
    uint32_t tiles = rows / ROWS;
    uint32_t splits = 1;
    while (tiles * splits < 192 && cols % (2 * splits * COLS) == 0 && cols / (2 * splits) >= 512) {
        splits *= 2;
    }
    return splits;
}

int
kern_cuda_pack(const kern_bf16_t *first, const kern_bf16_t *second, uint32_t rows, uint32_t cols,
               kern_bf16_t *out, kern_cuda_stream_t stream)
{
    if (rows % ROWS != 0 || cols % COLS != 0) {
        return (int)cudaErrorInvalidValue;
    }
    size_t pieces = (size_t)rows * cols / 8;
    kern_cuda_launch_t how = {};
    how.grid = dim3((uint32_t)((pieces + 255) / 256));
    how.threads = 256;
    how.stream = stream;
    return launch(pack_kernel, how, first, second, rows, cols, out);
}

int
kern_cuda_linear(const kern_cuda_linear_t *args, kern_cuda_stream_t stream)
{
    if (args->batch == 0) {
        return 0;
    }
    uint32_t splits = kern_cuda_split_count(args->rows, args->cols);
    if (args->rows % ROWS != 0 || args->cols % (splits * COLS) != 0) {
        return (int)cudaErrorInvalidValue;
    }
    kern_cuda_launch_t how = launch_of(args->rows / ROWS, splits, args->batch, args->pdl, stream);
    uint32_t wide = kern_cuda_batch_tile(args->batch);
    auto kernel = wide == 8    ? linear_kernel<8>
                  : wide == 16 ? linear_kernel<16>
                  : wide == 32 ? linear_kernel<32>
                  : wide == 64 ? linear_kernel<64>
                               : linear_kernel<128>;
    return launch(kernel, how, args->weight, args->input, args->parts, args->rows, args->cols,
                  args->batch, kern_cuda_batch_padded(args->batch), args->cols / splits / COLS);
}

int
kern_cuda_gate_up(const kern_cuda_gate_up_t *args, kern_cuda_stream_t stream)
{
    if (args->batch == 0) {
        return 0;
    }
    if (args->rows % (ROWS / 2) != 0 || args->cols % COLS != 0) {
        return (int)cudaErrorInvalidValue;
    }
    kern_cuda_launch_t how = launch_of(args->rows / (ROWS / 2), 1, args->batch, args->pdl, stream);
    uint32_t wide = kern_cuda_batch_tile(args->batch);
    auto kernel = wide == 8    ? gate_up_kernel<8>
                  : wide == 16 ? gate_up_kernel<16>
                  : wide == 32 ? gate_up_kernel<32>
                  : wide == 64 ? gate_up_kernel<64>
                               : gate_up_kernel<128>;
    return launch(kernel, how, args->weight, args->input, args->output, args->cols, args->batch,
                  kern_cuda_batch_padded(args->batch));
}
