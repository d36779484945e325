/* kern_vec_avx512.h - inside kernels/: 16 lanes in one register (see kern_vec_portable.h for what
 * each name means). */
#ifndef KERN_VEC_H
#define KERN_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kern_table.h"

#define KV_INLINE static inline __attribute__((always_inline, unused))
#define KV_TABLE kern_table_avx512
#define KV_TILE_ROWS 8
#define KV_FLOAT_ROWS 8
#define KV_LOOKUP 1
#define KV_UNROLL_QUANTS KERN_UNROLL
#define KV_DOT_ROWS 4
#define KV_DOT_COLS 4
#define KV_Q8_ZERO 128
#define KV_GDN_VECTORS 2

typedef __m512 kv_t;
typedef __m512i kvb_t;
typedef __m512i kvi_t;

KV_INLINE kv_t
kv_set1(float value)
{
    return _mm512_set1_ps(value);
}

KV_INLINE kv_t
kv_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

KV_INLINE void
kv_store(float *to, kv_t a)
{
    _mm512_storeu_ps(to, a);
}

KV_INLINE __mmask16
kv_part(uint32_t count)
{
    return (__mmask16)((1u << count) - 1u);
}

KV_INLINE kv_t
kv_load_part(const float *from, uint32_t count)
{
    return _mm512_maskz_loadu_ps(kv_part(count), from);
}

KV_INLINE void
kv_store_part(float *to, kv_t a, uint32_t count)
{
    _mm512_mask_storeu_ps(to, kv_part(count), a);
}

KV_INLINE kv_t
kv_add(kv_t a, kv_t b)
{
    return _mm512_add_ps(a, b);
}

KV_INLINE kv_t
kv_sub(kv_t a, kv_t b)
{
    return _mm512_sub_ps(a, b);
}

KV_INLINE kv_t
kv_mul(kv_t a, kv_t b)
{
    return _mm512_mul_ps(a, b);
}

KV_INLINE kv_t
kv_div(kv_t a, kv_t b)
{
    return _mm512_div_ps(a, b);
}

KV_INLINE kv_t
kv_max(kv_t a, kv_t b)
{
    return _mm512_max_ps(a, b);
}

KV_INLINE kv_t
kv_min(kv_t a, kv_t b)
{
    return _mm512_min_ps(a, b);
}

KV_INLINE kv_t
kv_fma(kv_t a, kv_t b, kv_t c)
{
    return _mm512_fmadd_ps(a, b, c);
}

KV_INLINE kv_t
kv_abs(kv_t a)
{
    return _mm512_abs_ps(a);
}

KV_INLINE float
kv_sum(kv_t a)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 quad = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quad = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_add_ss(quad, _mm_movehdup_ps(quad)));
}

KV_INLINE float
kv_max_lane(kv_t a)
{
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 quad = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quad = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_max_ss(quad, _mm_movehdup_ps(quad)));
}

KV_INLINE kv_t
kv_load_half(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
}

KV_INLINE void
kv_store_half(uint16_t *to, kv_t a)
{
    _mm256_storeu_si256((void *)to,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

KV_INLINE kv_t
kv_load_bf16(const uint16_t *from)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

KV_INLINE kv_t
kv_load_u8(const uint8_t *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from)));
}

KV_INLINE kv_t
kv_load_s8(const int8_t *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
}

KV_INLINE kv_t
kv_round(kv_t a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

KV_INLINE void
kv_store_s8(int8_t *to, kv_t a)
{
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

KV_INLINE kv_t
kv_scale2(kv_t a, kv_t n)
{
    return _mm512_scalef_ps(a, n);
}

KV_INLINE kv_t
kv_zero_below(kv_t a, kv_t test, kv_t limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, limit, _CMP_NLT_UQ), a);
}

KV_INLINE int
kv_any_nan(kv_t a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}

KV_INLINE uint32_t
kv_mask_ge(kv_t a, kv_t b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

KV_INLINE void
kv_transpose(kv_t r[16])
{
    kv_t t[16];
    KERN_UNROLL
    for (int i = 0; i < 16; i += 4) {
        kv_t a = _mm512_unpacklo_ps(r[i], r[i + 1]);
        kv_t b = _mm512_unpackhi_ps(r[i], r[i + 1]);
        kv_t c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]);
        kv_t d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
    }
    KERN_UNROLL
    for (int i = 0; i < 4; i++) {
        kv_t a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        kv_t b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD);
        kv_t c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        kv_t d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xDD);
        r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
        r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
    }
}

KV_INLINE kvb_t
kvb_load(const uint8_t *from)
{
    return _mm512_loadu_si512(from);
}

KV_INLINE kvb_t
kvb_load_i8(const uint8_t *from)
{
    return _mm512_xor_si512(kvb_load(from), _mm512_set1_epi8((char)0x80));
}

KV_INLINE kvb_t
kvb_low_nibbles(kvb_t a)
{
    return _mm512_and_si512(a, _mm512_set1_epi8(0x0F));
}

KV_INLINE kvb_t
kvb_high_nibbles(kvb_t a)
{
    return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(0x0F));
}

KV_INLINE kvb_t
kvb_add_fifth_bit(kvb_t a, const uint8_t *mask)
{
    uint64_t bits;
    memcpy(&bits, mask, sizeof bits);
    return _mm512_mask_add_epi8(a, (__mmask64)bits, a, _mm512_set1_epi8(16));
}

KV_INLINE kvb_t
kvb_add_two_bits(kvb_t a, kvb_t high, int place)
{
    __m512i mask = _mm512_set1_epi8(0x30);
    __m512i moved = place == 0   ? _mm512_slli_epi16(high, 4)
                    : place == 1 ? _mm512_slli_epi16(high, 2)
                    : place == 2 ? high
                                 : _mm512_srli_epi16(high, 2);
    return _mm512_or_si512(a, _mm512_and_si512(moved, mask));
}

KV_INLINE kvb_t
kvb_sub(kvb_t a, int value)
{
    return _mm512_sub_epi8(a, _mm512_set1_epi8((char)value));
}

/* A shift by a constant once the loop around it is unrolled. */
KV_INLINE __m512i
kv_shifted(__m512i a, int shift)
{
    switch (shift) {
    case 0:
        return a;
    case 4:
        return _mm512_srli_epi32(a, 4);
    case 8:
        return _mm512_srli_epi32(a, 8);
    case 12:
        return _mm512_srli_epi32(a, 12);
    case 16:
        return _mm512_srli_epi32(a, 16);
    case 20:
        return _mm512_srli_epi32(a, 20);
    case 24:
        return _mm512_srli_epi32(a, 24);
    default:
        return _mm512_srli_epi32(a, 28);
    }
}

KV_INLINE kv_t
kvb_signed_at(kvb_t a, int c)
{
    __m512i top = c == 0   ? _mm512_slli_epi32(a, 24)
                  : c == 1 ? _mm512_slli_epi32(a, 16)
                  : c == 2 ? _mm512_slli_epi32(a, 8)
                           : a;
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
}

/* 0..15 less `zero`, which is a constant. */
KV_INLINE kv_t
kv_table_from(int first)
{
    __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(first)));
}

/* The permutations look at the low 4 (5) bits of each lane only. */
KV_INLINE kv_t
kvb_lookup_4(kvb_t a, int shift, int zero)
{
    return _mm512_permutexvar_ps(kv_shifted(a, shift), kv_table_from(-zero));
}

KV_INLINE kv_t
kvb_lookup_5(kvb_t a, int shift, int zero)
{
    return _mm512_permutex2var_ps(kv_table_from(-zero), kv_shifted(a, shift),
                                  kv_table_from(16 - zero));
}

KV_INLINE kvi_t
kvi_dot(const kvb_t w[4], const int8_t *x, int bits)
{
    (void)bits;
    kvi_t sum = _mm512_setzero_si512();
    KERN_UNROLL
    for (int g = 0; g < 4; g++) {
        int32_t quad;
        memcpy(&quad, x + 4 * g, sizeof quad);
        sum = _mm512_dpbusd_epi32(sum, w[g], _mm512_set1_epi32(quad));
    }
    return sum;
}

KV_INLINE kvi_t
kvi_add(kvi_t a, kvi_t b)
{
    return _mm512_add_epi32(a, b);
}

KV_INLINE kv_t
kv_from_int(kvi_t a)
{
    return _mm512_cvtepi32_ps(a);
}

#include "kern_vec_common.h"

#endif
