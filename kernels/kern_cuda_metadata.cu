/* The integer operations around a forward (kern_metadata.h) and of pool slots (kern_slot.h). */
#include "kern_cuda_common.cuh"

namespace {

constexpr uint32_t THREADS = 128;

__device__ __forceinline__ uint32_t
thread_index()
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

/* A row of blocks' threads for each request. */
__global__ void
table_expand_kernel(const __grid_constant__ kern_table_expand_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = blockIdx.y;
    uint32_t column = thread_index();
    if (column >= a.page_columns) {
        return;
    }
    int32_t page = 0;
    if (b < a.actual_bs && column / a.ratio < a.block_columns) {
        int32_t block = a.blocks[b * a.block_stride + column / a.ratio];
        if (block > 0 && (uint32_t)block < a.block_count) {
            page = block * (int32_t)a.stride + (int32_t)(column % a.ratio);
        }
    }
    a.pages[b * a.page_stride + column] = page;
}

__global__ void
table_copy_kernel(const __grid_constant__ kern_table_copy_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t column = thread_index();
    if (column < a.columns) {
        a.to[blockIdx.y * a.to_stride + column] = a.from[blockIdx.y * a.from_stride + column];
    }
}

/* The cache slot of a position; 0, in the null page, if the table does not reach it. */
__device__ __forceinline__ int32_t
location_of(const int32_t *pages, uint32_t page_columns, uint32_t page_size, int32_t position)
{
    if (position < 0) {
        return 0;
    }
    uint32_t column = (uint32_t)position / page_size;
    int32_t page = column < page_columns ? pages[column] : 0;
    return page <= 0 ? 0 : page * (int32_t)page_size + position % (int32_t)page_size;
}

__global__ void
decode_locations_kernel(const __grid_constant__ kern_decode_locations_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t row = thread_index();
    if (row >= a.bs * a.width) {
        return;
    }
    uint32_t b = row / a.width;
    int32_t location = 0;
    if (b < a.actual_bs) {
        int32_t position = a.seq_lens[b] - (int32_t)a.width + (int32_t)(row % a.width);
        location = location_of(a.pages + b * a.page_stride, a.page_columns, a.page_size, position);
    }
    a.locations[row] = location;
}

/* Rows of the requests before this one; never more than `limit`. */
__device__ __forceinline__ uint32_t
rows_before(const int32_t *lens, uint32_t request, uint32_t limit)
{
    uint32_t at = 0;
    for (uint32_t b = 0; b < request; b++) {
        uint32_t length = lens[b] > 0 ? (uint32_t)lens[b] : 0;
        at = length < limit - at ? at + length : limit;
    }
    return at;
}

__global__ void
extend_locations_kernel(const __grid_constant__ kern_extend_locations_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = blockIdx.y;
    uint32_t at = rows_before(a.extend_lens, b, a.location_count_max);
    uint32_t length = a.extend_lens[b] > 0 ? (uint32_t)a.extend_lens[b] : 0;
    for (uint32_t i = thread_index(); i < length && i < a.location_count_max - at;
         i += gridDim.x * blockDim.x) {
        a.locations[at + i] = location_of(a.pages + b * a.page_stride, a.page_columns, a.page_size,
                                          a.prefix_lens[b] + (int32_t)i);
    }
}

__global__ void
seq_lens_kernel(const __grid_constant__ kern_seq_lens_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = thread_index();
    if (b < a.bs) {
        int32_t length = b < a.actual_bs ? a.from[b] : a.floor;
        a.to[b] = length < a.floor ? a.floor : length;
    }
}

__global__ void
decode_fill_kernel(const __grid_constant__ kern_decode_fill_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = thread_index();
    if (b >= a.bs) {
        return;
    }
    bool is_live = b < a.actual_bs;
    int32_t slot = is_live ? a.staged_slots[b] : 0;
    int32_t valid = is_live ? a.valid_lengths[slot] : 0;
    a.slots[b] = slot;
    a.write_slots[b] = is_live ? slot : a.sink;
    a.seq_lens[b] = is_live ? valid + (int32_t)a.width : 1;
    for (uint32_t t = 0; t < a.width; t++) {
        size_t row = (size_t)b * a.width + t;
        int32_t id = is_live ? a.future_inputs[(size_t)slot * a.stride + t] : -1;
        bool is_token = id >= 0 && (uint32_t)id < a.vocabulary;
        a.positions[row] = is_live ? valid + (int32_t)t : 0;
        a.input_ids[row] = is_token ? id : t == 0 ? 0 : -1;
    }
}

__global__ void
extend_fill_kernel(const __grid_constant__ kern_extend_fill_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = blockIdx.y;
    uint32_t at = rows_before(a.extend_lens, b, a.token_count_max);
    uint32_t length = a.extend_lens[b] > 0 ? (uint32_t)a.extend_lens[b] : 0;
    if (thread_index() == 0) {
        int32_t slot = a.staged_slots[b];
        a.slots[b] = slot;
        a.write_slots[b] = slot;
        a.seq_lens[b] = a.prefix_lens[b] + a.extend_lens[b];
        a.valid_lengths[slot] = a.prefix_lens[b];
    }
    for (uint32_t i = thread_index(); i < length && i < a.token_count_max - at;
         i += gridDim.x * blockDim.x) {
        a.positions[at + i] = a.prefix_lens[b] + (int32_t)i;
    }
}

/* The next input of a slot, and nothing after it. */
__device__ __forceinline__ void
set_next_input(int32_t *window, uint32_t width, int32_t token)
{
    window[0] = token;
    for (uint32_t t = 1; t < width; t++) {
        window[t] = -1;
    }
}

__global__ void
decode_commit_kernel(const __grid_constant__ kern_decode_commit_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = thread_index();
    if (b >= a.bs) {
        return;
    }
    int32_t slot = a.write_slots[b];
    int32_t accepted = a.accept_lengths[b];
    /* Padded requests share the sink, which counts for ever. */
    atomicAdd(reinterpret_cast<unsigned *>(a.valid_lengths + slot), (unsigned)accepted);
    if (accepted > 0 && (uint32_t)accepted <= a.width) {
        set_next_input(a.future_inputs + (size_t)slot * a.stride, a.stride,
                       a.tokens[(size_t)b * a.width + (uint32_t)accepted - 1]);
    }
}

__global__ void
extend_commit_kernel(const __grid_constant__ kern_extend_commit_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = thread_index();
    if (b >= a.request_count) {
        return;
    }
    int32_t slot = a.write_slots[b];
    a.valid_lengths[slot] = a.seq_lens[b];
    if (a.sample_indices[b] >= 0) {
        set_next_input(a.future_inputs + (size_t)slot * a.width, a.width,
                       a.tokens[a.sample_indices[b]]);
    }
}

/* A block for each listed block of the cache and field. */
__global__ void
page_zero_kernel(const __grid_constant__ kern_page_zero_args_t a)
{
    pdl_trigger();
    pdl_wait();
    const kern_page_field_t field = a.fields[blockIdx.y];
    for (uint32_t i = blockIdx.x; i < a.count; i += gridDim.x) {
        int32_t block = a.blocks[i];
        if ((uint32_t)a.groups[i] != field.group || block <= 0 ||
            (uint32_t)block >= field.page_count) {
            continue;
        }
        uint8_t *page = field.pages + (size_t)block * field.stride_bytes;
        for (size_t at = threadIdx.x * 16; at + 16 <= field.page_bytes; at += blockDim.x * 16) {
            *reinterpret_cast<uint4 *>(page + at) = uint4{0, 0, 0, 0};
        }
        for (size_t at = field.page_bytes / 16 * 16 + threadIdx.x; at < field.page_bytes;
             at += blockDim.x) {
            page[at] = 0;
        }
    }
}

__global__ void
slot_setup_kernel(const __grid_constant__ kern_slot_setup_args_t a)
{
    pdl_trigger();
    pdl_wait();
    const kern_slot_record_t *record = a.record;
    uint32_t slot = record->slot;
    if (slot >= a.slot_count) {
        return;
    }
    if (threadIdx.x == 0) {
        a.temperature[slot] = record->temperature;
        a.top_k[slot] = record->top_k;
        a.top_p[slot] = record->top_p;
        a.min_p[slot] = record->min_p;
        a.seed[slot] = record->seed;
        a.repetition_penalty[slot] = record->repetition_penalty;
        a.presence_penalty[slot] = record->presence_penalty;
        a.frequency_penalty[slot] = record->frequency_penalty;
        a.logprobs[slot] = record->logprobs;
        a.bias_counts[slot] = record->bias_count;
        a.stop_counts[slot] = record->stop_count;
        a.stop_from[slot] = record->stop_from;
    }
    for (uint32_t i = threadIdx.x; i < record->bias_count; i += blockDim.x) {
        a.bias_ids[(size_t)slot * KERN_SAMPLE_BIAS_MAX + i] = record->bias_ids[i];
        a.bias_values[(size_t)slot * KERN_SAMPLE_BIAS_MAX + i] = record->bias_values[i];
    }
    for (uint32_t i = threadIdx.x; i < record->stop_count; i += blockDim.x) {
        a.stop_ids[(size_t)slot * KERN_SAMPLE_BANNED_MAX + i] = record->stop_ids[i];
    }
}

__global__ void
stop_flags_kernel(const __grid_constant__ kern_stop_flags_args_t a)
{
    pdl_trigger();
    pdl_wait();
    uint32_t b = thread_index();
    if (b >= a.bs) {
        return;
    }
    uint32_t slot = (uint32_t)a.slots[b];
    int32_t accepted = a.accept_lengths[b];
    uint8_t flags = 0;
    for (uint32_t t = 0; t < a.width && (int32_t)t < accepted; t++) {
        if ((a.sample_flags[(size_t)b * a.width + t] & KERN_SAMPLE_FLAG_NAN) != 0) {
            flags |= a.nan_bit;
        }
    }
    if (accepted > 0 && (uint32_t)accepted <= a.width) {
        int32_t token = a.tokens[(size_t)b * a.width + (uint32_t)accepted - 1];
        int32_t position = a.seq_lens[b] - (int32_t)a.width + accepted;
        const int32_t *ids = a.stop_ids + slot * a.stop_stride;
        for (uint32_t i = 0; i < a.stop_counts[slot]; i++) {
            if (ids[i] == token && position >= a.stop_from[slot]) {
                flags |= a.stop_bit;
            }
        }
    }
    a.out[b] = flags;
}

__global__ void
mark_kernel(volatile uint32_t *word, uint32_t value)
{
    pdl_trigger();
    pdl_wait();
    *word = value;
}

template <typename Args>
int
run(void (*kernel)(Args), const Args *args, dim3 grid, const kern_cuda_where_t *where)
{
    if (grid.x == 0 || grid.y == 0) {
        return 0;
    }
    kern_cuda_launch_t how = {};
    how.grid = grid;
    how.threads = THREADS;
    how.pdl = where->pdl;
    how.stream = where->stream;
    return launch(kernel, how, *args);
}

uint32_t
blocks_of(uint32_t count)
{
    return (count + THREADS - 1) / THREADS;
}

} // namespace

int
kern_table_expand_cuda(const kern_table_expand_args_t *args, const kern_cuda_where_t *where)
{
    return run(table_expand_kernel, args, dim3(blocks_of(args->page_columns), args->bs), where);
}

int
kern_table_copy_cuda(const kern_table_copy_args_t *args, const kern_cuda_where_t *where)
{
    return run(table_copy_kernel, args, dim3(blocks_of(args->columns), args->rows), where);
}

int
kern_decode_locations_cuda(const kern_decode_locations_args_t *args, const kern_cuda_where_t *where)
{
    return run(decode_locations_kernel, args, dim3(blocks_of(args->bs * args->width)), where);
}

int
kern_extend_locations_cuda(const kern_extend_locations_args_t *args, const kern_cuda_where_t *where)
{
    return run(extend_locations_kernel, args, dim3(8, args->request_count), where);
}

int
kern_seq_lens_cuda(const kern_seq_lens_args_t *args, const kern_cuda_where_t *where)
{
    return run(seq_lens_kernel, args, dim3(blocks_of(args->bs)), where);
}

int
kern_decode_fill_cuda(const kern_decode_fill_args_t *args, const kern_cuda_where_t *where)
{
    return run(decode_fill_kernel, args, dim3(blocks_of(args->bs)), where);
}

int
kern_extend_fill_cuda(const kern_extend_fill_args_t *args, const kern_cuda_where_t *where)
{
    return run(extend_fill_kernel, args, dim3(8, args->request_count), where);
}

int
kern_decode_commit_cuda(const kern_decode_commit_args_t *args, const kern_cuda_where_t *where)
{
    return run(decode_commit_kernel, args, dim3(blocks_of(args->bs)), where);
}

int
kern_extend_commit_cuda(const kern_extend_commit_args_t *args, const kern_cuda_where_t *where)
{
    return run(extend_commit_kernel, args, dim3(blocks_of(args->request_count)), where);
}

int
kern_page_zero_cuda(const kern_page_zero_args_t *args, const kern_cuda_where_t *where)
{
    uint32_t across = args->count < 1024 ? args->count : 1024;
    return run(page_zero_kernel, args, dim3(across, args->field_count), where);
}

int
kern_slot_setup_cuda(const kern_slot_setup_args_t *args, const kern_cuda_where_t *where)
{
    return run(slot_setup_kernel, args, dim3(1), where);
}

int
kern_stop_flags_cuda(const kern_stop_flags_args_t *args, const kern_cuda_where_t *where)
{
    return run(stop_flags_kernel, args, dim3(blocks_of(args->bs)), where);
}

int
kern_mark_cuda(const kern_mark_args_t *args, const kern_cuda_where_t *where)
{
    kern_cuda_launch_t how = {};
    how.grid = dim3(1);
    how.threads = 1;
    how.pdl = where->pdl;
    how.stream = where->stream;
    return launch(mark_kernel, how, args->word, args->value);
}
