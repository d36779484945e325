/* kern_pack.h - inside kernels/: packed tiles and quantised activations, as the microkernels read
 * them.  Pure functions, any thread.
 *
 * A packed tile holds 16 rows of a quantised weight (rows past the end are zero):
 *   quants   for each 32 columns: a vector of 64 bytes holds 4 columns ("quad" g = columns
 * 4g..4g+3) of 16 rows, byte 4 * row + column % 4.  4-bit types: 4 vectors, vector v = quad v in
 * the low nibbles and quad v + 4 in the high ones.  Q5: then 8 masks of 64 bits, the fifth bits of
 * quad g.  Q6_K: then 2 vectors, bits 2p and 2p + 1 of vector w = upper bits of quad 4w + p.  Q8_0:
 * 8 vectors. supers   K types, for each 256 columns: 16 halves d, 16 halves dmin (Q6_K: unused)
 *   scales   for each 32 columns: 16 halves d (Q4_0, Q5_0, Q8_0); 16 halves d, 16 halves m (Q4_1);
 *            16 bytes scale, 16 bytes min (Q4_K, Q5_K); 2 * 16 signed bytes (Q6_K, per 16 columns)
 *
 * A record holds one quantised row of activations: int8 quants, then float arrays with an entry for
 * each 32 columns: scale; scale * sum rounded to half as Q8_1 has it; scale * sum; and for each 16
 * columns: scale * sum. */
#ifndef KERN_PACK_H
#define KERN_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_type.h"

enum {
    KERN_PACK_ROWS = 16,
    KERN_PACK_COLS_MAX = 1 << 15, /* a tile must fit a thread's scratch */
};

/* What a record of a row of activations holds for a weight type. */
typedef enum {
    KERN_QUANT_NONE, /* float weights: there is none */
    KERN_QUANT_32,   /* a scale for each 32 values */
    KERN_QUANT_256,  /* one for each 256 (K types) */
    KERN_QUANT_SUMS, /* float activations: no quants, the sum of each 32 values as floats */
} kern_quant_t;

/* Never KERN_QUANT_SUMS. */
kern_quant_t kern_pack_quant(kern_type_t type);

/* value = step * quant + min: a product needs the sums of the activations. */
static inline bool
kern_pack_has_min(kern_type_t type)
{
    return type == KERN_TYPE_Q4_1 || type == KERN_TYPE_Q4_K || type == KERN_TYPE_Q5_K;
}

/* Byte offsets within a tile. */
typedef struct {
    size_t supers;
    size_t scales;
    size_t size_bytes;
} kern_pack_layout_t;

kern_pack_layout_t kern_pack_layout(kern_type_t type, uint32_t cols);
static inline size_t
kern_pack_quant_size_bytes(kern_type_t type) /* of 32 columns */
{
    return type == KERN_TYPE_Q8_0                             ? 512
           : type == KERN_TYPE_Q6_K                           ? 384
           : type == KERN_TYPE_Q5_0 || type == KERN_TYPE_Q5_K ? 320
                                                              : 256;
}

/* `rows`: the first row of the tile in its file layout; row_count 1..16. */
void kern_pack_tile(kern_type_t type, const uint8_t *rows, uint32_t row_count, uint32_t cols,
                    uint8_t *tile);

/* Row `row` (0..15) of a tile as floats. */
void kern_pack_row_to_float(kern_type_t type, const uint8_t *tile, uint32_t row, uint32_t cols,
                            float *out);

/* Offsets of the float arrays within a record, and its size. */
typedef struct {
    size_t scales; /* float[cols / 32] */
    size_t halves; /* float[cols / 32] */
    size_t sums;   /* float[cols / 32] */
    size_t sums16; /* float[cols / 16] */
    size_t size_bytes;
} kern_record_layout_t;

kern_record_layout_t kern_record_layout(uint32_t cols);

/* Of a record of KERN_QUANT_SUMS. */
static inline size_t
kern_record_sums_size_bytes(uint32_t cols)
{
    return ((cols / 32) * sizeof(float) + 63) / 64 * 64;
}

#endif
