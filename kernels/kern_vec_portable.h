/* kern_vec_portable.h - inside kernels/: 16 lanes in plain C.
 *
 * kern_vec_*.h give the same names for each instruction set; the bodies (kern_*_body.h) are written
 * once against them.  kv_t = 16 floats, kvb_t = 64 bytes, kvi_t = 16 int32.  Sums over lanes have
 * one fixed tree: i with i + 8, then + 4, + 2, + 1. */
#ifndef KERN_VEC_H
#define KERN_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kern_type.h"

#define KV_INLINE static inline __attribute__((always_inline, unused))
#define KV_TABLE kern_table_portable
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KV_TILE_ROWS 1 /* each further size is minutes of compilation with checks */
#else
#define KV_TILE_ROWS 4 /* rows of one register tile (quantised weights) */
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KV_FLOAT_ROWS 1
#else
#define KV_FLOAT_ROWS 2 /* the same for float activations */
#endif
#define KV_LOOKUP 0      /* kvb_lookup_4() and kvb_lookup_5() are the fast way to a float */
#define KV_UNROLL_QUANTS /* before the loops over the quants of a block */
#define KV_DOT_ROWS 2    /* rows and columns of one register tile (float weights) */
#define KV_DOT_COLS 2
#define KV_Q8_ZERO 0     /* what kvb_load_i8 adds to signed bytes */
#define KV_GDN_VECTORS 1 /* vectors of a slice of a recurrent state */
#define KV_FOR for (int lane = 0; lane < 16; lane++)

typedef struct {
    float v[16];
} kv_t;
typedef struct {
    uint8_t v[64];
} kvb_t;
typedef struct {
    int32_t v[16];
} kvi_t;

KV_INLINE kv_t
kv_set1(float value)
{
    kv_t out;
    KV_FOR
    {
        out.v[lane] = value;
    }
    return out;
}

KV_INLINE kv_t
kv_load(const float *from)
{
    kv_t out;
    memcpy(&out, from, sizeof out);
    return out;
}

KV_INLINE void
kv_store(float *to, kv_t a)
{
    memcpy(to, &a, sizeof a);
}

/* Lanes from `count` on are 0. */
KV_INLINE kv_t
kv_load_part(const float *from, uint32_t count)
{
    kv_t out;
    KV_FOR
    {
        out.v[lane] = (uint32_t)lane < count ? from[lane] : 0.0f;
    }
    return out;
}

KV_INLINE void
kv_store_part(float *to, kv_t a, uint32_t count)
{
    memcpy(to, &a, count * sizeof *to);
}

#define KV_BINARY(name, expression)                                                                \
    KV_INLINE kv_t name(kv_t a, kv_t b)                                                            \
    {                                                                                              \
        kv_t out;                                                                                  \
        KV_FOR                                                                                     \
        {                                                                                          \
            float x = a.v[lane];                                                                   \
            float y = b.v[lane];                                                                   \
            out.v[lane] = (expression);                                                            \
        }                                                                                          \
        return out;                                                                                \
    }
KV_BINARY(kv_add, x + y)
KV_BINARY(kv_sub, x - y)
KV_BINARY(kv_mul, x *y)
KV_BINARY(kv_div, x / y)
KV_BINARY(kv_max, x > y ? x : y)
KV_BINARY(kv_min, x < y ? x : y)
#undef KV_BINARY

/* a * b + c */
KV_INLINE kv_t
kv_fma(kv_t a, kv_t b, kv_t c)
{
    return kv_add(kv_mul(a, b), c);
}

KV_INLINE kv_t
kv_abs(kv_t a)
{
    KV_FOR
    {
        a.v[lane] = fabsf(a.v[lane]);
    }
    return a;
}

KV_INLINE float
kv_sum(kv_t a)
{
    for (int step = 8; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            a.v[i] = a.v[i] + a.v[i + step];
        }
    }
    return a.v[0];
}

KV_INLINE float
kv_max_lane(kv_t a)
{
    for (int i = 1; i < 16; i++) {
        a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
    }
    return a.v[0];
}

KV_INLINE kv_t
kv_load_half(const uint16_t *from)
{
    kv_t out;
    KV_FOR
    {
        out.v[lane] = kern_half_to_float(from[lane]);
    }
    return out;
}

KV_INLINE void
kv_store_half(uint16_t *to, kv_t a)
{
    KV_FOR
    {
        to[lane] = kern_float_to_half(a.v[lane]);
    }
}

KV_INLINE kv_t
kv_load_bf16(const uint16_t *from)
{
    kv_t out;
    KV_FOR
    {
        uint32_t bits = (uint32_t)from[lane] << 16;
        memcpy(&out.v[lane], &bits, sizeof bits);
    }
    return out;
}

KV_INLINE kv_t
kv_load_u8(const uint8_t *from)
{
    kv_t out;
    KV_FOR
    {
        out.v[lane] = (float)from[lane];
    }
    return out;
}

KV_INLINE kv_t
kv_load_s8(const int8_t *from)
{
    kv_t out;
    KV_FOR
    {
        out.v[lane] = (float)from[lane];
    }
    return out;
}

/* To the nearest integer, ties to even; |a| < 2^22. */
KV_INLINE kv_t
kv_round(kv_t a)
{
    KV_FOR
    {
        float magic = 12582912.0f;
        a.v[lane] = (a.v[lane] + magic) - magic;
    }
    return a;
}

/* Stores integral values of -128..127 as bytes. */
KV_INLINE void
kv_store_s8(int8_t *to, kv_t a)
{
    KV_FOR
    {
        to[lane] = (int8_t)(int)a.v[lane];
    }
}

/* a * 2^n for integral n in -126..127 */
KV_INLINE kv_t
kv_scale2(kv_t a, kv_t n)
{
    KV_FOR
    {
        uint32_t bits = (uint32_t)((int)n.v[lane] + 127) << 23;
        float power;
        memcpy(&power, &bits, sizeof power);
        a.v[lane] *= power;
    }
    return a;
}

/* 0 where test < limit, else a */
KV_INLINE kv_t
kv_zero_below(kv_t a, kv_t test, kv_t limit)
{
    KV_FOR
    {
        a.v[lane] = test.v[lane] < limit.v[lane] ? 0.0f : a.v[lane];
    }
    return a;
}

/* Whether any lane is NaN. */
KV_INLINE int
kv_any_nan(kv_t a)
{
    int any = 0;
    KV_FOR
    {
        any |= a.v[lane] != a.v[lane];
    }
    return any;
}

/* Bit i is set where a's lane i >= b's. */
KV_INLINE uint32_t
kv_mask_ge(kv_t a, kv_t b)
{
    uint32_t mask = 0;
    KV_FOR
    {
        mask |= (uint32_t)(a.v[lane] >= b.v[lane]) << lane;
    }
    return mask;
}

KV_INLINE void
kv_transpose(kv_t rows[16])
{
    for (int i = 0; i < 16; i++) {
        for (int j = i + 1; j < 16; j++) {
            float swap = rows[i].v[j];
            rows[i].v[j] = rows[j].v[i];
            rows[j].v[i] = swap;
        }
    }
}

KV_INLINE kvb_t
kvb_load(const uint8_t *from)
{
    kvb_t out;
    memcpy(&out, from, sizeof out);
    return out;
}

/* Signed bytes, KV_Q8_ZERO added. */
KV_INLINE kvb_t
kvb_load_i8(const uint8_t *from)
{
    return kvb_load(from);
}

KV_INLINE kvb_t
kvb_low_nibbles(kvb_t a)
{
    for (int i = 0; i < 64; i++) {
        a.v[i] &= 0x0F;
    }
    return a;
}

KV_INLINE kvb_t
kvb_high_nibbles(kvb_t a)
{
    for (int i = 0; i < 64; i++) {
        a.v[i] >>= 4;
    }
    return a;
}

/* Adds 16 to the bytes whose bit is set in the 64 bits at `mask`. */
KV_INLINE kvb_t
kvb_add_fifth_bit(kvb_t a, const uint8_t *mask)
{
    for (int i = 0; i < 64; i++) {
        a.v[i] |= (uint8_t)(((mask[i / 8] >> (i % 8)) & 1) << 4);
    }
    return a;
}

/* Adds bits 2 * place and above of `high` as bits 4 and 5. */
KV_INLINE kvb_t
kvb_add_two_bits(kvb_t a, kvb_t high, int place)
{
    for (int i = 0; i < 64; i++) {
        a.v[i] |= (uint8_t)(((high.v[i] >> (2 * place)) & 3) << 4);
    }
    return a;
}

KV_INLINE kvb_t
kvb_sub(kvb_t a, int value)
{
    for (int i = 0; i < 64; i++) {
        a.v[i] = (uint8_t)(a.v[i] - value);
    }
    return a;
}

/* Signed byte c of each group of four. */
KV_INLINE kv_t
kvb_signed_at(kvb_t a, int c)
{
    kv_t out;
    KV_FOR
    {
        out.v[lane] = (float)(int8_t)a.v[4 * lane + c];
    }
    return out;
}

/* The 4 (5) bits from bit `shift` on of each 32-bit lane, less `zero`. */
KV_INLINE kv_t
kvb_lookup(kvb_t a, int shift, int bits, int zero)
{
    kv_t out;
    KV_FOR
    {
        uint32_t word;
        memcpy(&word, &a.v[4 * lane], sizeof word);
        out.v[lane] = (float)((int)((word >> shift) & ((1u << bits) - 1u)) - zero);
    }
    return out;
}

KV_INLINE kv_t
kvb_lookup_4(kvb_t a, int shift, int zero)
{
    return kvb_lookup(a, shift, 4, zero);
}

KV_INLINE kv_t
kvb_lookup_5(kvb_t a, int shift, int zero)
{
    return kvb_lookup(a, shift, 5, zero);
}

/* For each lane: sum over 4 vectors g and 4 bytes c of w[g][4 lane + c] * x[4 g + c].
 * `bits`: 4, 5, 6 = w is unsigned of so many bits; 8 = w is from kvb_load_i8. */
KV_INLINE kvi_t
kvi_dot(const kvb_t w[4], const int8_t *x, int bits)
{
    kvi_t out;
    KV_FOR
    {
        int32_t sum = 0;
        for (int g = 0; g < 4; g++) {
            for (int c = 0; c < 4; c++) {
                uint8_t byte = w[g].v[4 * lane + c];
                int32_t value = bits == 8 ? (int8_t)byte : byte;
                sum += value * x[4 * g + c];
            }
        }
        out.v[lane] = sum;
    }
    return out;
}

KV_INLINE kvi_t
kvi_add(kvi_t a, kvi_t b)
{
    KV_FOR
    {
        a.v[lane] += b.v[lane];
    }
    return a;
}

KV_INLINE kv_t
kv_from_int(kvi_t a)
{
    kv_t out;
    KV_FOR
    {
        out.v[lane] = (float)a.v[lane];
    }
    return out;
}

#include "kern_vec_common.h"

#endif
