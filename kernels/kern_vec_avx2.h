/* kern_vec_avx2.h - inside kernels/: 16 lanes in two registers (see kern_vec_portable.h for what
 * each name means). */
#ifndef KERN_VEC_H
#define KERN_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kern_table.h"

#define KV_INLINE static inline __attribute__((always_inline, unused))
#define KV_TABLE kern_table_avx2
#define KV_TILE_ROWS 4
#define KV_FLOAT_ROWS 2
#define KV_LOOKUP 0
#define KV_UNROLL_QUANTS KERN_UNROLL
#define KV_DOT_ROWS 2
#define KV_DOT_COLS 2
#define KV_Q8_ZERO 0
#define KV_GDN_VECTORS 1

typedef struct {
    __m256 a; /* lanes 0..7 */
    __m256 b; /* lanes 8..15 */
} kv_t;
typedef struct {
    __m256i a;
    __m256i b;
} kvb_t;
typedef kvb_t kvi_t;

#define KV_BOTH(expression_a, expression_b)                                                        \
    (kv_t)                                                                                         \
    {                                                                                              \
        expression_a, expression_b                                                                 \
    }
#define KVB_BOTH(expression_a, expression_b)                                                       \
    (kvb_t)                                                                                        \
    {                                                                                              \
        expression_a, expression_b                                                                 \
    }

KV_INLINE kv_t
kv_set1(float value)
{
    return KV_BOTH(_mm256_set1_ps(value), _mm256_set1_ps(value));
}

KV_INLINE kv_t
kv_load(const float *from)
{
    return KV_BOTH(_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8));
}

KV_INLINE void
kv_store(float *to, kv_t x)
{
    _mm256_storeu_ps(to, x.a);
    _mm256_storeu_ps(to + 8, x.b);
}

KV_INLINE kv_t
kv_load_part(const float *from, uint32_t count)
{
    float whole[16] = {0};
    memcpy(whole, from, count * sizeof *from);
    return kv_load(whole);
}

KV_INLINE void
kv_store_part(float *to, kv_t x, uint32_t count)
{
    float whole[16];
    kv_store(whole, x);
    memcpy(to, whole, count * sizeof *to);
}

KV_INLINE kv_t
kv_add(kv_t x, kv_t y)
{
    return KV_BOTH(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}

KV_INLINE kv_t
kv_sub(kv_t x, kv_t y)
{
    return KV_BOTH(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}

KV_INLINE kv_t
kv_mul(kv_t x, kv_t y)
{
    return KV_BOTH(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}

KV_INLINE kv_t
kv_div(kv_t x, kv_t y)
{
    return KV_BOTH(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}

KV_INLINE kv_t
kv_max(kv_t x, kv_t y)
{
    return KV_BOTH(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}

KV_INLINE kv_t
kv_min(kv_t x, kv_t y)
{
    return KV_BOTH(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}

KV_INLINE kv_t
kv_fma(kv_t x, kv_t y, kv_t z)
{
    return KV_BOTH(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}

KV_INLINE kv_t
kv_abs(kv_t x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return KV_BOTH(_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b));
}

KV_INLINE float
kv_sum(kv_t x)
{
    __m256 half = _mm256_add_ps(x.a, x.b);
    __m128 quad = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quad = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_add_ss(quad, _mm_movehdup_ps(quad)));
}

KV_INLINE float
kv_max_lane(kv_t x)
{
    __m256 half = _mm256_max_ps(x.a, x.b);
    __m128 quad = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quad = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_max_ss(quad, _mm_movehdup_ps(quad)));
}

KV_INLINE kv_t
kv_load_half(const uint16_t *from)
{
    return KV_BOTH(_mm256_cvtph_ps(_mm_loadu_si128((const void *)from)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + 8))));
}

KV_INLINE void
kv_store_half(uint16_t *to, kv_t x)
{
    _mm_storeu_si128((void *)to, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(to + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

KV_INLINE __m256
kv_half_bf16(const uint16_t *from)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

KV_INLINE kv_t
kv_load_bf16(const uint16_t *from)
{
    return KV_BOTH(kv_half_bf16(from), kv_half_bf16(from + 8));
}

KV_INLINE kv_t
kv_load_u8(const uint8_t *from)
{
    __m128i bytes = _mm_loadu_si128((const void *)from);
    return KV_BOTH(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                   _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
}

KV_INLINE kv_t
kv_load_s8(const int8_t *from)
{
    __m128i bytes = _mm_loadu_si128((const void *)from);
    return KV_BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
}

KV_INLINE kv_t
kv_round(kv_t x)
{
    return KV_BOTH(_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                   _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

KV_INLINE void
kv_store_s8(int8_t *to, kv_t x)
{
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    words = _mm256_permute4x64_epi64(words, 0xD8);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((void *)to, bytes);
}

KV_INLINE __m256
kv_half_power(__m256 n)
{
    __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}

KV_INLINE kv_t
kv_scale2(kv_t x, kv_t n)
{
    return kv_mul(x, KV_BOTH(kv_half_power(n.a), kv_half_power(n.b)));
}

KV_INLINE kv_t
kv_zero_below(kv_t x, kv_t test, kv_t limit)
{
    return KV_BOTH(_mm256_and_ps(x.a, _mm256_cmp_ps(test.a, limit.a, _CMP_NLT_UQ)),
                   _mm256_and_ps(x.b, _mm256_cmp_ps(test.b, limit.b, _CMP_NLT_UQ)));
}

KV_INLINE int
kv_any_nan(kv_t x)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q),
                                           _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))) != 0;
}

KV_INLINE uint32_t
kv_mask_ge(kv_t x, kv_t y)
{
    uint32_t low = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ));
    uint32_t high = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ));
    return low | (high << 8);
}

KV_INLINE void
kv_transpose8(__m256 r[8])
{
    __m256 t[8];
    KERN_UNROLL
    for (int i = 0; i < 8; i += 4) {
        __m256 a = _mm256_unpacklo_ps(r[i], r[i + 1]);
        __m256 b = _mm256_unpackhi_ps(r[i], r[i + 1]);
        __m256 c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
        __m256 d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xEE);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xEE);
    }
    KERN_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

KV_INLINE void
kv_transpose(kv_t r[16])
{
    __m256 q[4][8];
    KERN_UNROLL
    for (int i = 0; i < 8; i++) {
        q[0][i] = r[i].a;
        q[1][i] = r[i].b;
        q[2][i] = r[i + 8].a;
        q[3][i] = r[i + 8].b;
    }
    KERN_UNROLL
    for (int i = 0; i < 4; i++) {
        kv_transpose8(q[i]);
    }
    KERN_UNROLL
    for (int i = 0; i < 8; i++) {
        r[i].a = q[0][i];
        r[i].b = q[2][i];
        r[i + 8].a = q[1][i];
        r[i + 8].b = q[3][i];
    }
}

KV_INLINE kvb_t
kvb_load(const uint8_t *from)
{
    return KVB_BOTH(_mm256_loadu_si256((const void *)from),
                    _mm256_loadu_si256((const void *)(from + 32)));
}

KV_INLINE kvb_t
kvb_load_i8(const uint8_t *from)
{
    return kvb_load(from);
}

KV_INLINE kvb_t
kvb_low_nibbles(kvb_t x)
{
    __m256i mask = _mm256_set1_epi8(0x0F);
    return KVB_BOTH(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));
}

KV_INLINE kvb_t
kvb_high_nibbles(kvb_t x)
{
    __m256i mask = _mm256_set1_epi8(0x0F);
    return KVB_BOTH(_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask),
                    _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask));
}

KV_INLINE __m256i
kv_half_fifth_bit(__m256i x, const uint8_t *mask)
{
    int32_t bits;
    memcpy(&bits, mask, sizeof bits);
    __m256i place = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202,
                                       0x0303030303030303);
    __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), place);
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    return _mm256_or_si256(x, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

KV_INLINE kvb_t
kvb_add_fifth_bit(kvb_t x, const uint8_t *mask)
{
    return KVB_BOTH(kv_half_fifth_bit(x.a, mask), kv_half_fifth_bit(x.b, mask + 4));
}

KV_INLINE __m256i
kv_half_two_bits(__m256i x, __m256i high, int place)
{
    __m256i moved = place == 0   ? _mm256_slli_epi16(high, 4)
                    : place == 1 ? _mm256_slli_epi16(high, 2)
                    : place == 2 ? high
                                 : _mm256_srli_epi16(high, 2);
    return _mm256_or_si256(x, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
}

KV_INLINE kvb_t
kvb_add_two_bits(kvb_t x, kvb_t high, int place)
{
    return KVB_BOTH(kv_half_two_bits(x.a, high.a, place), kv_half_two_bits(x.b, high.b, place));
}

KV_INLINE kvb_t
kvb_sub(kvb_t x, int value)
{
    __m256i all = _mm256_set1_epi8((char)value);
    return KVB_BOTH(_mm256_sub_epi8(x.a, all), _mm256_sub_epi8(x.b, all));
}

KV_INLINE __m256
kv_half_signed_at(__m256i x, int c)
{
    __m256i top = c == 0   ? _mm256_slli_epi32(x, 24)
                  : c == 1 ? _mm256_slli_epi32(x, 16)
                  : c == 2 ? _mm256_slli_epi32(x, 8)
                           : x;
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
}

KV_INLINE kv_t
kvb_signed_at(kvb_t x, int c)
{
    return KV_BOTH(kv_half_signed_at(x.a, c), kv_half_signed_at(x.b, c));
}

/* There is no lookup of 16 lanes (KV_LOOKUP is 0). */
KV_INLINE kv_t
kvb_lookup_4(kvb_t x, int shift, int zero)
{
    return kvb_signed_at(kvb_sub(kvb_low_nibbles(x), zero), shift / 8);
}

KV_INLINE kv_t
kvb_lookup_5(kvb_t x, int shift, int zero)
{
    return kvb_signed_at(kvb_sub(x, zero), shift / 8);
}

/* Pairs of products as 16-bit sums.  Signed weights: |w| * (x with w's sign); |w| <= 128 and
 * |x| <= 127 keep a pair below 2^15. */
KV_INLINE __m256i
kv_half_pairs(__m256i w, __m256i x, int bits)
{
    if (bits == 8) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    }
    return _mm256_maddubs_epi16(w, x);
}

KV_INLINE kvi_t
kvi_dot(const kvb_t w[4], const int8_t *x, int bits)
{
    __m256i one = _mm256_set1_epi16(1);
    kvi_t sum = KVB_BOTH(_mm256_setzero_si256(), _mm256_setzero_si256());
    __m256i pairs_a = _mm256_setzero_si256();
    __m256i pairs_b = _mm256_setzero_si256();
    /* 4 and 5 bits: four pairs fit 16 bits (4 * 2 * 31 * 127 = 31496); 6 bits: two (32004). */
    int steps = bits <= 5 ? 4 : bits == 6 ? 2 : 1;
    KERN_UNROLL
    for (int g = 0; g < 4; g++) {
        int32_t quad;
        memcpy(&quad, x + 4 * g, sizeof quad);
        __m256i four = _mm256_set1_epi32(quad);
        pairs_a = _mm256_add_epi16(pairs_a, kv_half_pairs(w[g].a, four, bits));
        pairs_b = _mm256_add_epi16(pairs_b, kv_half_pairs(w[g].b, four, bits));
        if ((g + 1) % steps == 0) {
            sum.a = _mm256_add_epi32(sum.a, _mm256_madd_epi16(pairs_a, one));
            sum.b = _mm256_add_epi32(sum.b, _mm256_madd_epi16(pairs_b, one));
            pairs_a = _mm256_setzero_si256();
            pairs_b = _mm256_setzero_si256();
        }
    }
    return sum;
}

KV_INLINE kvi_t
kvi_add(kvi_t x, kvi_t y)
{
    return KVB_BOTH(_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b));
}

KV_INLINE kv_t
kv_from_int(kvi_t x)
{
    return KV_BOTH(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b));
}

#include "kern_vec_common.h"

#endif
