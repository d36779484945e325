/* Attention of runs of rows (extend, ragged prefill) over paged keys and values.
 *
 * A block has 64 rows of one request and one query head, 16 rows for each of its four warps.  Keys
 * come in tiles that begin at multiples of the tile whatever the chunk is, from the first that any
 * of the rows sees.  Each row keeps a running maximum; a tile of which it sees nothing changes none
 * of its bits.  So a row's bits depend on its query and its keys only. */
#include "kern_cuda_paged.cuh"

namespace {

constexpr int WARPS = 4;
constexpr int ROWS = WARPS * 16; /* of a block */
constexpr int THREADS = WARPS * 32;

template <int DIM> struct tile_t {
    static constexpr int KEYS = DIM > 128 ? 32 : 64;
    static constexpr int BYTES = KEYS * DIM * 2; /* of keys, and of values */
    static constexpr int QUERY_BYTES = ROWS * DIM * 2;
    static constexpr size_t SHARED_BYTES = QUERY_BYTES + 2 * 2 * BYTES;
};

/* The rows of a block. */
struct rows_t {
    uint32_t request;
    int first;    /* row of q */
    int count;    /* 0 = none */
    int position; /* of the first */
};

/* Tiles are numbered through the requests, the last request's last rows first: they see most. */
__device__ __forceinline__ rows_t
rows_of(const kern_attention_extend_args_t &a, uint32_t tile)
{
    uint32_t passed = 0;
    for (uint32_t request = 0; request < a.request_count; request++) {
        int begin = a.cu_q[request];
        int length = a.cu_q[request + 1] - begin;
        uint32_t tiles = length > 0 ? (uint32_t)(length + ROWS - 1) / ROWS : 0;
        if (tile < passed + tiles) {
            int row = (int)(tiles - 1 - (tile - passed)) * ROWS;
            return rows_t{request, begin + row, min(length - row, ROWS),
                          a.seq_lens[request] - length + row};
        }
        passed += tiles;
    }
    return rows_t{0, 0, 0, 0};
}

/* Keys and values of the tile; those outside begin .. end - 1 become zeros. */
template <int DIM>
__device__ __forceinline__ void
copy_tile(const paged_t &paged, uint32_t shared, int first, int begin, int end)
{
    constexpr int PIECES = DIM / 8;
    /* Pages of whole tiles take one look at the table. */
    bool is_one_page = paged.page_size % tile_t<DIM>::KEYS == 0;
    size_t base = is_one_page && first < end ? paged_offset(paged, first) : 0;
#pragma unroll 4
    for (int i = 0; i < tile_t<DIM>::KEYS * PIECES / THREADS; i++) {
        int row = (i * THREADS + (int)threadIdx.x) / PIECES;
        int piece = (i * THREADS + (int)threadIdx.x) % PIECES;
        int key = first + row;
        bool valid = key >= begin && key < end && piece * 8 < paged.head_dim;
        size_t offset = base + (size_t)row * paged.slot_stride;
        if (!is_one_page) {
            offset = valid ? paged_offset(paged, key) : 0;
        }
        offset = valid ? offset + piece * 8 : 0;
        uint32_t to = shared + piece_offset<DIM>(row, piece);
        copy_async(to, paged.k + offset, valid);
        copy_async(to + tile_t<DIM>::BYTES, paged.v + offset, valid);
    }
}

template <int DIM>
__device__ __forceinline__ void
load_queries(const kern_attention_extend_args_t &a, const rows_t &rows, uint32_t head,
             uint32_t shared)
{
    float factor = query_factor(a.cache);
    for (int at = threadIdx.x; at < ROWS * (DIM / 8); at += THREADS) {
        int row = at / (DIM / 8);
        int piece = at % (DIM / 8);
        float4 low = {0, 0, 0, 0};
        float4 high = {0, 0, 0, 0};
        if (row < rows.count && piece * 8 < (int)a.cache.head_dim) {
            const float *from = a.q + (size_t)(rows.first + row) * a.q_stride +
                                (size_t)head * a.cache.head_dim + piece * 8;
            low = *reinterpret_cast<const float4 *>(from);
            high = *reinterpret_cast<const float4 *>(from + 4);
        }
        store_shared(shared + piece_offset<DIM>(row, piece),
                     uint4{pack_half(low.x * factor, low.y * factor),
                           pack_half(low.z * factor, low.w * factor),
                           pack_half(high.x * factor, high.y * factor),
                           pack_half(high.z * factor, high.w * factor)});
    }
}

/* Of a thread: rows lane / 4 and lane / 4 + 8 of its warp's 16. */
template <int DIM> struct state_t {
    float max[2]; /* of the scaled scores, base 2 */
    float sum[2];
    float out[DIM / 8][4];
};

/* The keys that the two rows of a thread see. */
struct spans_t {
    int begin[2];
    int end[2];
};

template <int DIM>
__device__ __forceinline__ void
scores_of(float (&scores)[tile_t<DIM>::KEYS / 8][4], uint32_t queries, uint32_t keys)
{
    int lane = threadIdx.x % 32;
    int mine = threadIdx.x / 32 * 16 + (lane & 15);
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        uint32_t q[4];
        load_matrix(q, queries + piece_offset<DIM>(mine, step * 2 + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < tile_t<DIM>::KEYS / 16; n++) {
            uint32_t b[4];
            int row = n * 16 + (lane & 7) + ((lane & 16) >> 1);
            load_matrix(b, keys + piece_offset<DIM>(row, step * 2 + ((lane & 8) >> 3)));
            mma(scores[n * 2], q[0], q[1], q[2], q[3], b[0], b[1]);
            mma(scores[n * 2 + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
        }
    }
}

template <int DIM>
__device__ __forceinline__ void
attend(state_t<DIM> &state, uint32_t queries, uint32_t shared, int first, const spans_t &spans,
       float cap)
{
    constexpr int PARTS = tile_t<DIM>::KEYS / 8;
    int lane = threadIdx.x % 32;
    float scores[PARTS][4] = {};
    scores_of<DIM>(scores, queries, shared);
    float best[2] = {-CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int key = first + n * 8 + (lane % 4) * 2 + c % 2;
            float score = cap_score(scores[n][c], cap);
            bool seen = key >= spans.begin[c / 2] && key < spans.end[c / 2];
            scores[n][c] = seen ? score : -CUDART_INF_F;
            best[c / 2] = fmaxf(best[c / 2], scores[n][c]);
        }
    }
    float base[2];
    float shrink[2];
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        best[r] = fmaxf(best[r], __shfl_xor_sync(0xffffffffu, best[r], 1));
        best[r] = fmaxf(best[r], __shfl_xor_sync(0xffffffffu, best[r], 2));
        float max = fmaxf(state.max[r], best[r]);
        base[r] = max == -CUDART_INF_F ? 0.0f : max;
        shrink[r] = exp2f(state.max[r] - base[r]);
        state.max[r] = max;
    }
    uint32_t p[PARTS][2];
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = exp2f(scores[n][r * 2] - base[r]);
            float y = exp2f(scores[n][r * 2 + 1] - base[r]);
            p[n][r] = pack_half(x, y);
            sum[r] += x + y;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        state.sum[r] = state.sum[r] * shrink[r] + sum[r];
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; d++) {
        state.out[d][0] *= shrink[0];
        state.out[d][1] *= shrink[0];
        state.out[d][2] *= shrink[1];
        state.out[d][3] *= shrink[1];
    }
#pragma unroll
    for (int n = 0; n < PARTS / 2; n++) {
#pragma unroll
        for (int d = 0; d < DIM / 16; d++) {
            uint32_t b[4];
            int row = n * 16 + (lane & 15);
            load_matrix_transposed(b, shared + tile_t<DIM>::BYTES +
                                          piece_offset<DIM>(row, d * 2 + (lane >> 4)));
            mma(state.out[d * 2], p[n * 2][0], p[n * 2][1], p[n * 2 + 1][0], p[n * 2 + 1][1], b[0],
                b[1]);
            mma(state.out[d * 2 + 1], p[n * 2][0], p[n * 2][1], p[n * 2 + 1][0], p[n * 2 + 1][1],
                b[2], b[3]);
        }
    }
}

template <int DIM>
__device__ __forceinline__ void
write_rows(const kern_attention_extend_args_t &a, const rows_t &rows, uint32_t head,
           const state_t<DIM> &state)
{
    int lane = threadIdx.x % 32;
    output_t output = {a.output, a.output_stride, a.output_form, a.output_rows};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = (int)threadIdx.x / 32 * 16 + lane / 4 + r * 8;
        if (row >= rows.count) {
            continue;
        }
        float total = state.sum[r];
        float factor = total > 0.0f || total != total ? 1.0f / total : 0.0f;
        uint32_t to = a.output_first + (uint32_t)(rows.first + row);
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            uint32_t dim = d * 8 + lane % 4 * 2;
            if (dim < a.cache.head_dim) {
                write_value(output, to, head * a.cache.head_dim + dim,
                            state.out[d][r * 2] * factor);
                write_value(output, to, head * a.cache.head_dim + dim + 1,
                            state.out[d][r * 2 + 1] * factor);
            }
        }
        if (head + 1 == a.cache.q_heads && lane % 4 == 0) {
            pad_row(output, to, a.cache.q_heads * a.cache.head_dim);
        }
    }
}

template <int DIM>
__global__ void
__launch_bounds__(THREADS) extend_kernel(const __grid_constant__ kern_attention_extend_args_t a)
{
    constexpr int KEYS = tile_t<DIM>::KEYS;
    constexpr int STAGE_BYTES = 2 * tile_t<DIM>::BYTES;
    extern __shared__ __align__(128) uint8_t memory[];
    pdl_trigger();
    pdl_wait();
    rows_t rows = rows_of(a, blockIdx.x);
    if (rows.count == 0) {
        return;
    }
    uint32_t head = blockIdx.y;
    uint32_t queries = shared_address(memory);
    uint32_t stages = queries + tile_t<DIM>::QUERY_BYTES;
    paged_t paged = paged_of(a.cache, rows.request, head / (a.cache.q_heads / a.cache.kv_heads));
    int limit = (int)min((size_t)a.cache.page_table_stride * a.cache.page_size, (size_t)INT_MAX);
    int window = a.cache.window_left >= 0 ? a.cache.window_left : INT_MAX;
    int begin = max(rows.position - window, 0);
    int end = min(rows.position + rows.count, limit);
    spans_t spans;
    state_t<DIM> state = {};
    float sink = sink_of(a.cache, head);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int position =
            rows.position + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + r * 8;
        spans.begin[r] = max(position - window, 0);
        spans.end[r] = min(position + 1, end);
        state.max[r] = sink;
        state.sum[r] = sink == -CUDART_INF_F ? 0.0f : 1.0f;
    }
    int tile = begin / KEYS;
    int tile_end = (end + KEYS - 1) / KEYS;
    if (tile < tile_end) {
        copy_tile<DIM>(paged, stages + tile % 2 * STAGE_BYTES, tile * KEYS, begin, end);
    }
    copy_commit();
    load_queries<DIM>(a, rows, head, queries);
    for (; tile < tile_end; tile++) {
        copy_wait<0>();
        __syncthreads(); /* the tile is here, and the one before it is read */
        if (tile + 1 < tile_end) {
            copy_tile<DIM>(paged, stages + (tile + 1) % 2 * STAGE_BYTES, (tile + 1) * KEYS, begin,
                           end);
        }
        copy_commit();
        attend<DIM>(state, queries, stages + tile % 2 * STAGE_BYTES, tile * KEYS, spans,
                    a.cache.logit_cap);
    }
    copy_wait<0>();
    write_rows<DIM>(a, rows, head, state);
}

template <int DIM>
int
launch_extend(const kern_attention_extend_args_t *args, dim3 grid, const kern_cuda_where_t *where)
{
    kern_cuda_launch_t how = {};
    how.grid = grid;
    how.threads = THREADS;
    how.shared_bytes = tile_t<DIM>::SHARED_BYTES;
    how.pdl = where->pdl;
    how.stream = where->stream;
    return launch(extend_kernel<DIM>, how, *args);
}

} // namespace

int
kern_attention_extend_cuda(const kern_attention_extend_args_t *args, const kern_cuda_where_t *where)
{
    if (args->request_count == 0 || args->row_count == 0) {
        return 0;
    }
    if (!paged_is_valid(args->cache) || args->q_stride % 4 != 0) {
        return (int)cudaErrorInvalidValue;
    }
    dim3 grid(args->row_count / ROWS + args->request_count, args->cache.q_heads);
    uint32_t head_dim = args->cache.head_dim;
    return head_dim <= 64    ? launch_extend<64>(args, grid, where)
           : head_dim <= 128 ? launch_extend<128>(args, grid, where)
                             : launch_extend<256>(args, grid, where);
}
