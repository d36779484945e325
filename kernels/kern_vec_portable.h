/* kern_vec_portable.h - inside kernels/: 16 lanes in the vectors that GCC and Clang have for any
 * machine.  (The same lanes in loops over plain arrays took minutes to compile.)
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
#define KV_TILE_ROWS 4   /* rows of one register tile (quantised weights) */
#define KV_FLOAT_ROWS 2  /* the same for float activations */
#define KV_LOOKUP 0      /* kvb_lookup_4() and kvb_lookup_5() are the fast way to a float */
#define KV_UNROLL_QUANTS /* before the loops over the quants of a block */
#define KV_DOT_ROWS 2    /* rows and columns of one register tile (float weights) */
#define KV_DOT_COLS 2
#define KV_Q8_ZERO 0     /* what kvb_load_i8 adds to signed bytes */
#define KV_GDN_VECTORS 1 /* vectors of a slice of a recurrent state */
#define KV_FOR for (int lane = 0; lane < 16; lane++)

typedef float kv_t __attribute__((vector_size(64)));
typedef uint8_t kvb_t __attribute__((vector_size(64)));
typedef int32_t kvi_t __attribute__((vector_size(64)));
typedef uint32_t kvu_t __attribute__((vector_size(64))); /* for shifts: unsigned ones lose no bit */

KV_INLINE kv_t
kv_set1(float v)
{
    return (kv_t){v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
}

KV_INLINE kvi_t
kvi_set1(int32_t v)
{
    return (kvi_t){v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
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
    kv_t out = kv_set1(0.0f);
    memcpy(&out, from, count * sizeof *from);
    return out;
}

KV_INLINE void
kv_store_part(float *to, kv_t a, uint32_t count)
{
    memcpy(to, &a, count * sizeof *to);
}

KV_INLINE kv_t
kv_add(kv_t a, kv_t b)
{
    return a + b;
}

KV_INLINE kv_t
kv_sub(kv_t a, kv_t b)
{
    return a - b;
}

KV_INLINE kv_t
kv_mul(kv_t a, kv_t b)
{
    return a * b;
}

KV_INLINE kv_t
kv_div(kv_t a, kv_t b)
{
    return a / b;
}

/* a where the mask's lane is all ones, b where it is 0. */
KV_INLINE kv_t
kv_choose(kvi_t mask, kv_t a, kv_t b)
{
    return (kv_t)((mask & (kvi_t)a) | (~mask & (kvi_t)b));
}

KV_INLINE kv_t
kv_max(kv_t a, kv_t b)
{
    return kv_choose((kvi_t)(a > b), a, b);
}

KV_INLINE kv_t
kv_min(kv_t a, kv_t b)
{
    return kv_choose((kvi_t)(a < b), a, b);
}

/* a * b + c */
KV_INLINE kv_t
kv_fma(kv_t a, kv_t b, kv_t c)
{
    return a * b + c;
}

KV_INLINE kv_t
kv_abs(kv_t a)
{
    return (kv_t)((kvi_t)a & kvi_set1(INT32_MAX));
}

KV_INLINE float
kv_sum(kv_t a)
{
    float v[16];
    memcpy(v, &a, sizeof v);
    for (int step = 8; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            v[i] = v[i] + v[i + step];
        }
    }
    return v[0];
}

KV_INLINE float
kv_max_lane(kv_t a)
{
    float most = a[0];
    for (int i = 1; i < 16; i++) {
        most = a[i] > most ? a[i] : most;
    }
    return most;
}

KV_INLINE kv_t
kv_load_half(const uint16_t *from)
{
    float out[16];
    KV_FOR
    {
        out[lane] = kern_half_to_float(from[lane]);
    }
    return kv_load(out);
}

KV_INLINE void
kv_store_half(uint16_t *to, kv_t a)
{
    float from[16];
    kv_store(from, a);
    KV_FOR
    {
        to[lane] = kern_float_to_half(from[lane]);
    }
}

KV_INLINE kv_t
kv_load_bf16(const uint16_t *from)
{
    uint16_t half __attribute__((vector_size(32)));
    memcpy(&half, from, sizeof half);
    return (kv_t)(__builtin_convertvector(half, kvu_t) << 16);
}

KV_INLINE kv_t
kv_from_int(kvi_t a)
{
    return __builtin_convertvector(a, kv_t);
}

KV_INLINE kv_t
kv_load_u8(const uint8_t *from)
{
    uint8_t bytes __attribute__((vector_size(16)));
    memcpy(&bytes, from, sizeof bytes);
    return kv_from_int(__builtin_convertvector(bytes, kvi_t));
}

KV_INLINE kv_t
kv_load_s8(const int8_t *from)
{
    int8_t bytes __attribute__((vector_size(16)));
    memcpy(&bytes, from, sizeof bytes);
    return kv_from_int(__builtin_convertvector(bytes, kvi_t));
}

/* To the nearest integer, ties to even; |a| < 2^22. */
KV_INLINE kv_t
kv_round(kv_t a)
{
    kv_t magic = kv_set1(12582912.0f);
    return (a + magic) - magic;
}

/* Stores integral values of -128..127 as bytes. */
KV_INLINE void
kv_store_s8(int8_t *to, kv_t a)
{
    typedef int8_t bytes_t __attribute__((vector_size(16)));
    bytes_t bytes = __builtin_convertvector(__builtin_convertvector(a, kvi_t), bytes_t);
    memcpy(to, &bytes, sizeof bytes);
}

/* a * 2^n for integral n in -126..127 */
KV_INLINE kv_t
kv_scale2(kv_t a, kv_t n)
{
    kvi_t exponent = __builtin_convertvector(n + kv_set1(127.0f), kvi_t);
    return a * (kv_t)((kvu_t)exponent << 23);
}

/* 0 where test < limit, else a */
KV_INLINE kv_t
kv_zero_below(kv_t a, kv_t test, kv_t limit)
{
    return (kv_t)(~(kvi_t)(test < limit) & (kvi_t)a);
}

/* Whether any lane is NaN. */
KV_INLINE int
kv_any_nan(kv_t a)
{
    kvi_t unordered = (kvi_t)(a != a);
    int any = 0;
    KV_FOR
    {
        any |= unordered[lane];
    }
    return any != 0;
}

/* Bit i is set where a's lane i >= b's. */
KV_INLINE uint32_t
kv_mask_ge(kv_t a, kv_t b)
{
    kvi_t reached = (kvi_t)(a >= b);
    uint32_t mask = 0;
    KV_FOR
    {
        mask |= ((uint32_t)reached[lane] & 1u) << lane;
    }
    return mask;
}

KV_INLINE void
kv_transpose(kv_t rows[16])
{
    float from[16][16];
    float to[16][16];
    for (int i = 0; i < 16; i++) {
        kv_store(from[i], rows[i]);
    }
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++) {
            to[i][j] = from[j][i];
        }
    }
    for (int i = 0; i < 16; i++) {
        rows[i] = kv_load(to[i]);
    }
}

KV_INLINE kvb_t
kvb_set1(int value)
{
    kvb_t out;
    memset(&out, value, sizeof out);
    return out;
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
    return a & kvb_set1(0x0F);
}

KV_INLINE kvb_t
kvb_high_nibbles(kvb_t a)
{
    return a >> 4;
}

/* Adds 16 to the bytes whose bit is set in the 64 bits at `mask`. */
KV_INLINE kvb_t
kvb_add_fifth_bit(kvb_t a, const uint8_t *mask)
{
    uint8_t fifth[64];
    for (int i = 0; i < 64; i++) {
        fifth[i] = (uint8_t)(((mask[i / 8] >> (i % 8)) & 1) << 4);
    }
    return a | kvb_load(fifth);
}

/* Adds bits 2 * place and above of `high` as bits 4 and 5. */
KV_INLINE kvb_t
kvb_add_two_bits(kvb_t a, kvb_t high, int place)
{
    return a | (((high >> (2 * place)) & kvb_set1(3)) << 4);
}

KV_INLINE kvb_t
kvb_sub(kvb_t a, int value)
{
    return a - kvb_set1(value);
}

/* Signed byte c of each group of four, little endian. */
KV_INLINE kv_t
kvb_signed_at(kvb_t a, int c)
{
    return kv_from_int((kvi_t)((kvu_t)a << (24 - 8 * c)) >> 24);
}

/* The 4 (5) bits from bit `shift` on of each 32-bit lane, less `zero`. */
KV_INLINE kv_t
kvb_lookup(kvb_t a, int shift, int bits, int zero)
{
    kvi_t value = (kvi_t)((kvu_t)a >> shift) & kvi_set1((1 << bits) - 1);
    return kv_from_int(value - kvi_set1(zero));
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
    kvu_t sum = (kvu_t)kvi_set1(0); /* unsigned: the same bits, and no check on each lane */
    for (int g = 0; g < 4; g++) {
        for (int c = 0; c < 4; c++) {
            kvi_t lifted = (kvi_t)((kvu_t)w[g] << (24 - 8 * c));
            kvu_t value = bits == 8 ? (kvu_t)(lifted >> 24) : (kvu_t)lifted >> 24;
            sum += value * (kvu_t)kvi_set1(x[4 * g + c]);
        }
    }
    return (kvi_t)sum;
}

KV_INLINE kvi_t
kvi_add(kvi_t a, kvi_t b)
{
    return (kvi_t)((kvu_t)a + (kvu_t)b);
}

#include "kern_vec_common.h"

#endif
