/* kern_linear_body.h - inside kernels/: matrix microkernels, written once for every instruction
 * set (included by kern_simd_*.c after its kern_vec_*.h). */
#ifndef KERN_LINEAR_BODY_H
#define KERN_LINEAR_BODY_H

#include "kern_block_body.h"
#include "kern_table.h"

/* ---- activations ----------------------------------------------------------------------------- */

/* Quantises 32 values with 1 / scale `inverse`; returns the sum of the first 16 and of all. */
KV_INLINE void
quantize_32(const float *input, float inverse, int8_t *quants, int32_t *sum_low, int32_t *sum)
{
    kv_t a = kv_round(kv_mul(kv_load(input), kv_set1(inverse)));
    kv_t b = kv_round(kv_mul(kv_load(input + 16), kv_set1(inverse)));
    /* 127 is an upper limit for the K types, whose scale is not rounded up. */
    a = kv_min(a, kv_set1(127.0f));
    b = kv_min(b, kv_set1(127.0f));
    kv_store_s8(quants, a);
    kv_store_s8(quants + 16, b);
    /* Sums of small integers: exact in float. */
    *sum_low = (int32_t)kv_sum(a);
    *sum = *sum_low + (int32_t)kv_sum(b);
}

static void
quantize_row(kern_quant_t quant, const float *input, uint32_t cols, uint8_t *record)
{
    kern_record_layout_t layout = kern_record_layout(cols);
    int8_t *quants = (int8_t *)record;
    float *scales = (float *)(void *)(record + layout.scales);
    float *halves = (float *)(void *)(record + layout.halves);
    float *sums = (float *)(void *)(record + layout.sums);
    float *sums16 = (float *)(void *)(record + layout.sums16);
    float scale = 0.0f;
    float exact = 0.0f;
    float inverse = 0.0f;
    for (uint32_t b = 0; b < cols / 32; b++) {
        const float *from = input + 32 * (size_t)b;
        if (quant == KERN_QUANT_32) {
            float top = kv_max_lane(kv_max(kv_abs(kv_load(from)), kv_abs(kv_load(from + 16))));
            exact = top / 127.0f;
            inverse = top > 0.0f ? 127.0f / top : 0.0f;
            scale = kern_half_to_float(kern_float_to_half(exact));
        } else if (b % 8 == 0) {
            kv_t high = kv_load(from);
            kv_t low = high;
            for (uint32_t i = 16; i < 256; i += 16) {
                high = kv_max(high, kv_load(from + i));
                low = kv_min(low, kv_load(from + i));
            }
            float top = kv_max_lane(high);
            float bottom = -kv_max_lane(kv_sub(kv_zero(), low));
            /* The value of the largest magnitude becomes -127. */
            float extreme = top >= -bottom ? top : bottom;
            inverse = extreme != 0.0f ? -127.0f / extreme : 0.0f;
            scale = extreme != 0.0f ? 1.0f / inverse : 0.0f;
            exact = scale;
        }
        int32_t sum_low;
        int32_t sum;
        quantize_32(from, inverse, quants + 32 * (size_t)b, &sum_low, &sum);
        scales[b] = scale;
        halves[b] = kern_half_to_float(kern_float_to_half(exact * (float)sum));
        sums[b] = scale * (float)sum;
        sums16[2 * b] = scale * (float)sum_low;
        sums16[2 * b + 1] = scale * (float)(sum - sum_low);
    }
}

/* ---- quantised weights ----------------------------------------------------------------------- */

/* The eight quads of 32 columns, each byte the unsigned quant (Q8_0: see kvb_load_i8). */
KV_INLINE void
unpack_block(kern_type_t type, const uint8_t *quants, kvb_t w[8])
{
    if (type == KERN_TYPE_Q8_0) {
        KERN_UNROLL
        for (int g = 0; g < 8; g++) {
            w[g] = kvb_load_i8(quants + 64 * g);
        }
        return;
    }
    KERN_UNROLL
    for (int v = 0; v < 4; v++) {
        kvb_t both = kvb_load(quants + 64 * v);
        w[v] = kvb_low_nibbles(both);
        w[v + 4] = kvb_high_nibbles(both);
    }
    if (bits_of(type) == 5) {
        KERN_UNROLL
        for (int g = 0; g < 8; g++) {
            w[g] = kvb_add_fifth_bit(w[g], quants + 256 + 8 * g);
        }
    } else if (bits_of(type) == 6) {
        KERN_UNROLL
        for (int g = 0; g < 8; g++) {
            w[g] = kvb_add_two_bits(w[g], kvb_load(quants + 256 + 64 * (g / 4)), g % 4);
        }
    }
}

/* value = step * quant + offset; with `low` and `high` halves for Q6_K, else high is unused. */
typedef struct {
    kv_t step;
    kv_t offset;
    kv_t step_high;
    kv_t offset_high;
} block_scales_t;

KV_INLINE block_scales_t
block_scales(kern_type_t type, const uint8_t *super, const uint8_t *scales)
{
    block_scales_t out;
    const uint16_t *halves = (const uint16_t *)(const void *)scales;
    const uint16_t *super_halves = (const uint16_t *)(const void *)super;
    if (type == KERN_TYPE_Q4_1) {
        out.step = kv_load_half(halves);
        out.offset = kv_load_half(halves + 16);
    } else if (type == KERN_TYPE_Q4_K || type == KERN_TYPE_Q5_K) {
        out.step = kv_mul(kv_load_half(super_halves), kv_load_u8(scales));
        kv_t offset = kv_mul(kv_load_half(super_halves + 16), kv_load_u8(scales + 16));
        out.offset = kv_sub(kv_zero(), offset);
    } else if (type == KERN_TYPE_Q6_K) {
        kv_t d = kv_load_half(super_halves);
        out.step = kv_mul(d, kv_load_s8((const int8_t *)scales));
        out.step_high = kv_mul(d, kv_load_s8((const int8_t *)scales + 16));
        out.offset = kv_mul(out.step, kv_set1(-32.0f));
        out.offset_high = kv_mul(out.step_high, kv_set1(-32.0f));
        return out;
    } else {
        float zero = type == KERN_TYPE_Q4_0   ? 8.0f
                     : type == KERN_TYPE_Q5_0 ? 16.0f
                                              : (float)KV_Q8_ZERO;
        out.step = kv_load_half(halves);
        out.offset = kv_mul(out.step, kv_set1(-zero));
    }
    out.step_high = out.step;
    out.offset_high = out.offset;
    return out;
}

/* One block of 32 columns of one row: the integer sums are exact, then at most two (Q6_K: four)
 * fused steps on the accumulator, always in this order. */
KV_INLINE kv_t
block_step(kern_type_t type, kv_t acc, const kvb_t w[8], const block_scales_t *scales,
           const uint8_t *record, const kern_record_layout_t *layout, uint32_t b)
{
    int bits = bits_of(type);
    const int8_t *x = (const int8_t *)record + 32 * (size_t)b;
    kv_t scale = kv_set1(float_at(record + layout->scales, b));
    kvi_t low = kvi_dot(w, x, bits);
    kvi_t high = kvi_dot(w + 4, x + 16, bits);
    if (type == KERN_TYPE_Q6_K) {
        acc = kv_fma(kv_from_int(low), kv_mul(scales->step, scale), acc);
        acc = kv_fma(scales->offset, kv_set1(float_at(record + layout->sums16, 2 * b)), acc);
        acc = kv_fma(kv_from_int(high), kv_mul(scales->step_high, scale), acc);
        return kv_fma(scales->offset_high, kv_set1(float_at(record + layout->sums16, 2 * b + 1)),
                      acc);
    }
    acc = kv_fma(kv_from_int(kvi_add(low, high)), kv_mul(scales->step, scale), acc);
    if (type == KERN_TYPE_Q8_0 && KV_Q8_ZERO == 0) {
        return acc;
    }
    size_t sums = type == KERN_TYPE_Q4_1 ? layout->halves : layout->sums;
    return kv_fma(scales->offset, kv_set1(float_at(record + sums, b)), acc);
}

KV_INLINE void
tile_rows(kern_type_t type, uint32_t rows, const kern_tile_args_t *args, uint32_t first)
{
    kern_pack_layout_t pack = kern_pack_layout(type, args->cols);
    kern_record_layout_t layout = kern_record_layout(args->cols);
    const uint8_t *quants = args->tile;
    const uint8_t *supers = args->tile + pack.supers;
    const uint8_t *scales = args->tile + pack.scales;
    const uint8_t *record = args->records + first * args->record_stride;
    size_t scale_size_bytes = type == KERN_TYPE_Q4_1 ? 64 : 32;
    kv_t acc[KV_TILE_ROWS];
    KERN_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        acc[r] = kv_zero();
    }
    for (uint32_t b = 0; b < args->cols / 32; b++) {
        if (rows <= 4) {
            prefetch_next(type, quants + pack.size_bytes, supers + pack.size_bytes,
                          scales + pack.size_bytes, b);
        }
        kvb_t w[8];
        unpack_block(type, quants + b * kern_pack_quant_size_bytes(type), w);
        block_scales_t step =
            block_scales(type, supers + (size_t)(b / 8) * 64, scales + b * scale_size_bytes);
        KERN_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            acc[r] =
                block_step(type, acc[r], w, &step, record + r * args->record_stride, &layout, b);
        }
    }
    KERN_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        finish(acc[r], args->bias, args->accumulate, args->out + (first + r) * args->out_stride,
               args->out_count);
    }
}

/* Every row takes the same steps whether it stands alone or in a group. */
#define KV_TILE(name, type)                                                                        \
    static void name(const kern_tile_args_t *args)                                                 \
    {                                                                                              \
        uint32_t at = 0;                                                                           \
        for (; at + KV_TILE_ROWS <= args->rows; at += KV_TILE_ROWS) {                              \
            tile_rows(type, KV_TILE_ROWS, args, at);                                               \
        }                                                                                          \
        for (; KV_TILE_ROWS >= 4 && at + 4 <= args->rows; at += 4) {                               \
            tile_rows(type, 4, args, at);                                                          \
        }                                                                                          \
        for (; KV_TILE_ROWS >= 2 && at + 2 <= args->rows; at += 2) {                               \
            tile_rows(type, 2, args, at);                                                          \
        }                                                                                          \
        for (; at < args->rows; at++) {                                                            \
            tile_rows(type, 1, args, at);                                                          \
        }                                                                                          \
    }
KV_TILE(tile_q4_0, KERN_TYPE_Q4_0)
KV_TILE(tile_q4_1, KERN_TYPE_Q4_1)
KV_TILE(tile_q5_0, KERN_TYPE_Q5_0)
KV_TILE(tile_q8_0, KERN_TYPE_Q8_0)
KV_TILE(tile_q4_k, KERN_TYPE_Q4_K)
KV_TILE(tile_q5_k, KERN_TYPE_Q5_K)
KV_TILE(tile_q6_k, KERN_TYPE_Q6_K)
#undef KV_TILE

static void
tile(const kern_tile_args_t *args)
{
    switch (args->type) {
    case KERN_TYPE_Q4_0:
        tile_q4_0(args);
        return;
    case KERN_TYPE_Q4_1:
        tile_q4_1(args);
        return;
    case KERN_TYPE_Q5_0:
        tile_q5_0(args);
        return;
    case KERN_TYPE_Q8_0:
        tile_q8_0(args);
        return;
    case KERN_TYPE_Q4_K:
        tile_q4_k(args);
        return;
    case KERN_TYPE_Q5_K:
        tile_q5_k(args);
        return;
    case KERN_TYPE_Q6_K:
        tile_q6_k(args);
        return;
    case KERN_TYPE_F32:
    case KERN_TYPE_F16:
    case KERN_TYPE_BF16:
    default:
        return;
    }
}

/* ---- float weights --------------------------------------------------------------------------- */

KV_INLINE kv_t
load_weight(kern_type_t type, const uint8_t *row, uint32_t k)
{
    if (type == KERN_TYPE_F32) {
        return kv_load((const float *)(const void *)row + k);
    }
    const uint16_t *halves = (const uint16_t *)(const void *)row + k;
    return type == KERN_TYPE_F16 ? kv_load_half(halves) : kv_load_bf16(halves);
}

/* The last cols % 16 weights, zeros after them. */
KV_INLINE kv_t
load_weight_part(kern_type_t type, const uint8_t *row, uint32_t k, uint32_t count)
{
    if (type == KERN_TYPE_F32) {
        return kv_load_part((const float *)(const void *)row + k, count);
    }
    uint16_t whole[16] = {0};
    memcpy(whole, row + 2 * (size_t)k, 2 * (size_t)count);
    return type == KERN_TYPE_F16 ? kv_load_half(whole) : kv_load_bf16(whole);
}

/* Lane i of a pair's accumulator sums the columns k with k % 16 == i in order; lanes are then
 * summed by the fixed tree.  The size of the register tile does not enter. */
KV_INLINE void
dot_tile(kern_type_t type, uint32_t rows, uint32_t columns, const kern_dot_args_t *args,
         uint32_t row, uint32_t column)
{
    kv_t acc[KV_DOT_ROWS][KV_DOT_COLS];
    const float *x = args->input + row * args->input_stride;
    const uint8_t *weights = args->weights + column * args->weight_stride;
    KERN_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        KERN_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            acc[r][c] = kv_zero();
        }
    }
    uint32_t whole = args->cols & ~15u;
    for (uint32_t k = 0; k < whole; k += 16) {
        kv_t w[KV_DOT_COLS];
        KERN_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            w[c] = load_weight(type, weights + c * args->weight_stride, k);
        }
        KERN_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            kv_t a = kv_load(x + r * args->input_stride + k);
            KERN_UNROLL
            for (uint32_t c = 0; c < columns; c++) {
                acc[r][c] = kv_fma(a, w[c], acc[r][c]);
            }
        }
    }
    uint32_t rest = args->cols - whole;
    KERN_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        KERN_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            if (rest > 0) {
                kv_t a = kv_load_part(x + r * args->input_stride + whole, rest);
                kv_t w = load_weight_part(type, weights + c * args->weight_stride, whole, rest);
                acc[r][c] = kv_fma(a, w, acc[r][c]);
            }
            float value = kv_sum(acc[r][c]);
            value = args->bias != NULL ? value + args->bias[column + c] : value;
            float *out = args->out + (row + r) * args->out_stride + column + c;
            *out = args->accumulate ? *out + value : value;
        }
    }
}

#define KV_DOT(name, type)                                                                         \
    static void name(const kern_dot_args_t *args)                                                  \
    {                                                                                              \
        uint32_t c = 0;                                                                            \
        for (; c + KV_DOT_COLS <= args->out_count; c += KV_DOT_COLS) {                             \
            uint32_t r = 0;                                                                        \
            for (; r + KV_DOT_ROWS <= args->rows; r += KV_DOT_ROWS) {                              \
                dot_tile(type, KV_DOT_ROWS, KV_DOT_COLS, args, r, c);                              \
            }                                                                                      \
            for (; r < args->rows; r++) {                                                          \
                dot_tile(type, 1, KV_DOT_COLS, args, r, c);                                        \
            }                                                                                      \
        }                                                                                          \
        for (; c < args->out_count; c++) {                                                         \
            for (uint32_t r = 0; r < args->rows; r++) {                                            \
                dot_tile(type, 1, 1, args, r, c);                                                  \
            }                                                                                      \
        }                                                                                          \
    }
KV_DOT(dot_f32, KERN_TYPE_F32)
KV_DOT(dot_f16, KERN_TYPE_F16)
KV_DOT(dot_bf16, KERN_TYPE_BF16)
#undef KV_DOT

static void
dot(const kern_dot_args_t *args)
{
    if (args->type == KERN_TYPE_F32) {
        dot_f32(args);
    } else if (args->type == KERN_TYPE_F16) {
        dot_f16(args);
    } else {
        dot_bf16(args);
    }
}

#endif
