/* kern_float_body.h - inside kernels/: products of quantised weights with float activations,
 * written once for every instruction set (included by kern_simd_float_*.c after its kern_vec_*.h).
 *
 * For each 32 columns: two sums of quant * x, one over the first 16 columns and one over the last,
 * each in the order of k; then one or two fused steps on the accumulator with the weights' scales.
 * Quants are small integers, so they are exact as floats; a scale costs one step for 32 columns. */
#ifndef KERN_FLOAT_BODY_H
#define KERN_FLOAT_BODY_H

#include "kern_block_body.h"
#include "kern_table.h"

/* Columns 4v..4v+3 and 16+4v..16+4v+3 of a block, 16 rows each, ready for quant_at(). */
typedef struct {
    kvb_t low;
    kvb_t high;
} quad_pair_t;

KV_INLINE int
zero_of(kern_type_t type)
{
    return type == KERN_TYPE_Q4_0   ? 8
           : type == KERN_TYPE_Q5_0 ? 16
           : type == KERN_TYPE_Q6_K ? 32
                                    : 0;
}

KV_INLINE quad_pair_t
load_quads(kern_type_t type, const uint8_t *quants, int v)
{
    quad_pair_t pair;
    kvb_t both = kvb_load(quants + 64 * v);
    if (type == KERN_TYPE_Q8_0) {
        return (quad_pair_t){both, kvb_load(quants + 64 * (v + 4))};
    }
    if (KV_LOOKUP && bits_of(type) == 4) {
        return (quad_pair_t){both, both};
    }
    pair.low = kvb_low_nibbles(both);
    pair.high = kvb_high_nibbles(both);
    if (bits_of(type) == 5) {
        pair.low = kvb_add_fifth_bit(pair.low, quants + 256 + 8 * v);
        pair.high = kvb_add_fifth_bit(pair.high, quants + 256 + 8 * (v + 4));
    } else if (bits_of(type) == 6) {
        pair.low = kvb_add_two_bits(pair.low, kvb_load(quants + 256), v);
        pair.high = kvb_add_two_bits(pair.high, kvb_load(quants + 320), v);
    }
    if (zero_of(type) != 0 && !(KV_LOOKUP && bits_of(type) == 5)) {
        pair.low = kvb_sub(pair.low, zero_of(type));
        pair.high = kvb_sub(pair.high, zero_of(type));
    }
    return pair;
}

/* Column c of a quad as floats, zero point taken off. */
KV_INLINE kv_t
quant_at(kern_type_t type, kvb_t quad, int c, int is_high)
{
    if (KV_LOOKUP && bits_of(type) == 4) {
        return kvb_lookup_4(quad, 8 * c + 4 * is_high, zero_of(type));
    }
    if (KV_LOOKUP && bits_of(type) == 5) {
        return kvb_lookup_5(quad, 8 * c, zero_of(type));
    }
    return kvb_signed_at(quad, c);
}

/* sums over the first and the last 16 columns of a block, for each row */
KV_INLINE void
block_sums(kern_type_t type, uint32_t rows, const uint8_t *quants, const float *const x[],
           kv_t low[], kv_t high[])
{
    KERN_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        low[r] = kv_zero();
        high[r] = kv_zero();
    }
    KV_UNROLL_QUANTS
    for (int v = 0; v < 4; v++) {
        quad_pair_t pair = load_quads(type, quants, v);
        KV_UNROLL_QUANTS
        for (int c = 0; c < 4; c++) {
            kv_t w = quant_at(type, pair.low, c, 0);
            KERN_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                low[r] = kv_fma(w, kv_set1(x[r][4 * v + c]), low[r]);
            }
            w = quant_at(type, pair.high, c, 1);
            KERN_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                high[r] = kv_fma(w, kv_set1(x[r][16 + 4 * v + c]), high[r]);
            }
        }
    }
}

/* value = step * quant + offset, with quants as quant_at() gives them. */
KV_INLINE kv_t
float_step(kern_type_t type, kv_t acc, kv_t low, kv_t high, const uint8_t *super,
           const uint8_t *scales, float sum)
{
    const uint16_t *halves = (const uint16_t *)(const void *)scales;
    const uint16_t *super_halves = (const uint16_t *)(const void *)super;
    if (type == KERN_TYPE_Q6_K) {
        kv_t d = kv_load_half(super_halves);
        acc = kv_fma(kv_mul(d, kv_load_s8((const int8_t *)scales)), low, acc);
        return kv_fma(kv_mul(d, kv_load_s8((const int8_t *)scales + 16)), high, acc);
    }
    kv_t both = kv_add(low, high);
    if (type == KERN_TYPE_Q4_K || type == KERN_TYPE_Q5_K) {
        kv_t min = kv_mul(kv_load_half(super_halves + 16), kv_load_u8(scales + 16));
        acc = kv_fma(kv_mul(kv_load_half(super_halves), kv_load_u8(scales)), both, acc);
        return kv_fma(min, kv_set1(-sum), acc);
    }
    acc = kv_fma(kv_load_half(halves), both, acc);
    return type == KERN_TYPE_Q4_1 ? kv_fma(kv_load_half(halves + 16), kv_set1(sum), acc) : acc;
}

KV_INLINE void
float_rows(kern_type_t type, uint32_t rows, const kern_tile_args_t *args, uint32_t first)
{
    kern_pack_layout_t pack = kern_pack_layout(type, args->cols);
    const uint8_t *quants = args->tile;
    const uint8_t *supers = args->tile + pack.supers;
    const uint8_t *scales = args->tile + pack.scales;
    size_t quant_size_bytes = kern_pack_quant_size_bytes(type);
    size_t scale_size_bytes = type == KERN_TYPE_Q4_1 ? 64 : 32;
    const uint8_t *record = args->records + first * args->record_stride;
    const float *x[KV_FLOAT_ROWS];
    kv_t acc[KV_FLOAT_ROWS];
    KERN_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        x[r] = args->input + (first + r) * args->input_stride;
        acc[r] = kv_zero();
    }
    for (uint32_t b = 0; b < args->cols / 32; b++) {
        kv_t low[KV_FLOAT_ROWS];
        kv_t high[KV_FLOAT_ROWS];
        if (first == 0) {
            prefetch_next(type, quants + pack.size_bytes, supers + pack.size_bytes,
                          scales + pack.size_bytes, b);
        }
        block_sums(type, rows, quants + b * quant_size_bytes, x, low, high);
        KERN_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            float sum =
                kern_pack_has_min(type) ? float_at(record + r * args->record_stride, b) : 0.0f;
            acc[r] = float_step(type, acc[r], low[r], high[r], supers + (size_t)(b / 8) * 64,
                                scales + b * scale_size_bytes, sum);
            x[r] += 32;
        }
    }
    KERN_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        finish(acc[r], args->bias, args->accumulate, args->out + (first + r) * args->out_stride,
               args->out_count);
    }
}

/* Every row takes the same steps whether it stands alone or in a group. */
#define KV_FLOAT_TILE(name, type)                                                                  \
    static void name(const kern_tile_args_t *args)                                                 \
    {                                                                                              \
        uint32_t at = 0;                                                                           \
        for (; at + KV_FLOAT_ROWS <= args->rows; at += KV_FLOAT_ROWS) {                            \
            float_rows(type, KV_FLOAT_ROWS, args, at);                                             \
        }                                                                                          \
        for (; KV_FLOAT_ROWS > 4 && at + 4 <= args->rows; at += 4) {                               \
            float_rows(type, 4, args, at);                                                         \
        }                                                                                          \
        for (; KV_FLOAT_ROWS > 2 && at + 2 <= args->rows; at += 2) {                               \
            float_rows(type, 2, args, at);                                                         \
        }                                                                                          \
        for (; at < args->rows; at++) {                                                            \
            float_rows(type, 1, args, at);                                                         \
        }                                                                                          \
    }
KV_FLOAT_TILE(float_q4_0, KERN_TYPE_Q4_0)
KV_FLOAT_TILE(float_q4_1, KERN_TYPE_Q4_1)
KV_FLOAT_TILE(float_q5_0, KERN_TYPE_Q5_0)
KV_FLOAT_TILE(float_q8_0, KERN_TYPE_Q8_0)
KV_FLOAT_TILE(float_q4_k, KERN_TYPE_Q4_K)
KV_FLOAT_TILE(float_q5_k, KERN_TYPE_Q5_K)
KV_FLOAT_TILE(float_q6_k, KERN_TYPE_Q6_K)
#undef KV_FLOAT_TILE

static void
tile_float(const kern_tile_args_t *args)
{
    switch (args->type) {
    case KERN_TYPE_Q4_0:
        float_q4_0(args);
        return;
    case KERN_TYPE_Q4_1:
        float_q4_1(args);
        return;
    case KERN_TYPE_Q5_0:
        float_q5_0(args);
        return;
    case KERN_TYPE_Q8_0:
        float_q8_0(args);
        return;
    case KERN_TYPE_Q4_K:
        float_q4_k(args);
        return;
    case KERN_TYPE_Q5_K:
        float_q5_k(args);
        return;
    case KERN_TYPE_Q6_K:
        float_q6_k(args);
        return;
    case KERN_TYPE_F32:
    case KERN_TYPE_F16:
    case KERN_TYPE_BF16:
    default:
        return;
    }
}

/* out[b] = the sum of columns 32b..32b+31 */
static void
sum_row(const float *input, uint32_t cols, float *out)
{
    for (uint32_t b = 0; b < cols / 32; b++) {
        const float *from = input + 32 * (size_t)b;
        out[b] = kv_sum(kv_add(kv_load(from), kv_load(from + 16)));
    }
}

#endif
