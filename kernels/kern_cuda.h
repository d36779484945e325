/* kern_cuda.h - the operations on a CUDA device (compute capability 9.0a).
 *
 * Each operation has the contract of its header (kern_linear.h and so on); `args` are that header's
 * and all their pointers are memory that the device reaches.  Launches only: nothing is allocated,
 * nothing is waited for, everything may be captured into a graph.  What differs from the host:
 *
 * - Weights are BF16, packed by kern_cuda_pack(); operands (KERN_FORM_OPERAND) are packed BF16 with
 *   a padded number of rows; sums, the residual stream and rows (KERN_FORM_ROWS) are float32.  The
 *   cache is in half precision.
 * - Batch-invariant: tiles, splits and the order of every sum follow from the weight's shape or
 *   from positions in the sequence, never from the number of rows.  So a row's bits do not depend
 *   on the batch, the padding, or the chunking of a prompt.  Decode and extend are two kernels:
 *   their results agree to rounding, not to the bit.
 * - With programmatic dependent launch (`pdl`) an operation may start before its predecessor ended:
 *   it loads weights, which nobody writes, and waits before it touches anything else.
 *
 * Each function returns a cudaError_t as int: 0, or what the launch gave; cudaErrorInvalidValue (1)
 * for a shape that it does not take.  Any thread that owns the stream. */
#ifndef KERN_CUDA_H
#define KERN_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kern_attention.h"
#include "kern_elementwise.h"
#include "kern_embed.h"
#include "kern_form.h"
#include "kern_linear.h"
#include "kern_metadata.h"
#include "kern_norm.h"
#include "kern_rope.h"
#include "kern_sample.h"
#include "kern_slot.h"

typedef struct CUstream_st *kern_cuda_stream_t; /* a cudaStream_t */
typedef uint16_t kern_bf16_t;                   /* its bits */

enum {
    KERN_CUDA_TILE_ROWS = 128,  /* a packed weight's rows are padded to a multiple, */
    KERN_CUDA_TILE_COLS = 64,   /* and its cols and those of operands to one of this */
    KERN_CUDA_COLS_MAX = 16384, /* of a norm */
    KERN_CUDA_SAMPLERS = 128,   /* rows that are sampled at once, each with a workspace */
};

/* Where an operation is launched. */
typedef struct {
    kern_cuda_stream_t stream;
    bool pdl;
} kern_cuda_where_t;

#ifdef __CUDACC__
#define KERN_CUDA_BOTH __host__ __device__
#else
#define KERN_CUDA_BOTH
#endif

/* Rows of the batch that one block takes: 8, 16, 32, 64 or 128. */
static inline KERN_CUDA_BOTH uint32_t
kern_cuda_batch_tile(uint32_t batch)
{
    uint32_t tile = 8;
    while (tile < 128 && tile < batch) {
        tile *= 2;
    }
    return tile;
}

/* Rows for which an operand has room. */
static inline KERN_CUDA_BOTH uint32_t
kern_cuda_batch_padded(uint32_t batch)
{
    uint32_t tile = kern_cuda_batch_tile(batch);
    return (batch + tile - 1) / tile * tile;
}

static inline KERN_CUDA_BOTH uint32_t
kern_cuda_padded(uint32_t value, uint32_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Operands of products are packed: [cols / 64][rows][64], and in each row of 64 the pieces of eight
 * values are exchanged, piece ^ (row & 7).  The index of a value; the rows of an activation are
 * kern_cuda_batch_padded(batch), those beyond the batch may hold anything; columns beyond the real
 * ones are zeros. */
static inline KERN_CUDA_BOTH size_t
kern_cuda_packed_index(uint32_t row, uint32_t col, uint32_t row_count)
{
    uint32_t piece = (col % 64 / 8) ^ (row & 7);
    return ((size_t)(col / 64) * row_count + row) * 64 + piece * 8 + col % 8;
}

/* Bytes of `rows` rows in operand form. */
size_t kern_cuda_operand_size_bytes(uint32_t rows, uint32_t cols);

/* Bytes of a packed weight: tiles of 128 rows, each packed as above, one after the other. */
size_t kern_cuda_weight_size_bytes(uint32_t rows, uint32_t cols);

/* Packs rows first .. first + count - 1, given as [count][cols], of a weight of `cols`.  Padding is
 * not written: `out` was zeroed. */
int kern_cuda_pack(const kern_bf16_t *from, uint32_t first, uint32_t count, uint32_t cols,
                   kern_bf16_t *out, kern_cuda_stream_t stream);

/* Writes the device's time in ns when all before has run. */
int kern_cuda_stamp(uint64_t *out, kern_cuda_stream_t stream);

#define KERN_CUDA_OP_LIST(OP)                                                                      \
    OP(embed)                                                                                      \
    OP(rms_norm)                                                                                   \
    OP(linear)                                                                                     \
    OP(gate_up)                                                                                    \
    OP(rope_angles)                                                                                \
    OP(rope_kv_write)                                                                              \
    OP(attention_decode)                                                                           \
    OP(attention_extend)                                                                           \
    OP(gather_rows)                                                                                \
    OP(copy)                                                                                       \
    OP(fill)                                                                                       \
    OP(sample)                                                                                     \
    OP(sample_counts)                                                                              \
    OP(table_expand)                                                                               \
    OP(table_copy)                                                                                 \
    OP(decode_locations)                                                                           \
    OP(extend_locations)                                                                           \
    OP(seq_lens)                                                                                   \
    OP(decode_fill)                                                                                \
    OP(extend_fill)                                                                                \
    OP(decode_commit)                                                                              \
    OP(extend_commit)                                                                              \
    OP(stop_flags)                                                                                 \
    OP(page_zero)                                                                                  \
    OP(slot_setup)                                                                                 \
    OP(mark)

#define KERN_CUDA_OP_PROTOTYPE(name)                                                               \
    int kern_##name##_cuda(const kern_##name##_args_t *args, const kern_cuda_where_t *where);
KERN_CUDA_OP_LIST(KERN_CUDA_OP_PROTOTYPE)
#undef KERN_CUDA_OP_PROTOTYPE

#ifdef __cplusplus
}
#endif

#endif
