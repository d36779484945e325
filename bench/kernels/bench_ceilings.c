#include "bench_ceilings.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    CHUNK_SIZE_BYTES = 64 << 10,
    CHAINS = 12, /* independent sums, more than the latency of an addition */
};

#if defined(__x86_64__)
__attribute__((target("avx2"))) static double
read_chunk(const uint8_t *from, size_t size_bytes)
{
    __m256i sum[4];
    for (int i = 0; i < 4; i++) {
        sum[i] = _mm256_setzero_si256();
    }
    for (size_t at = 0; at + 128 <= size_bytes; at += 128) {
        for (int i = 0; i < 4; i++) {
            __m256i value = _mm256_loadu_si256((const void *)(from + at + 32 * (size_t)i));
            sum[i] = _mm256_xor_si256(sum[i], value);
        }
    }
    __m256i all =
        _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
    return (double)_mm256_extract_epi32(all, 0);
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double
int8_avx512(uint64_t rounds)
{
    __m512i sum[CHAINS];
    __m512i a = _mm512_set1_epi8(3);
    __m512i b = _mm512_set1_epi8(1);
    for (int i = 0; i < CHAINS; i++) {
        sum[i] = _mm512_setzero_si512();
    }
    for (uint64_t round = 0; round < rounds; round++) {
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    }
    return (double)_mm512_reduce_add_epi32(sum[0]);
}

__attribute__((target("avx2"))) static double
int8_avx2(uint64_t rounds)
{
    __m256i sum[CHAINS];
    __m256i a = _mm256_set1_epi8(3);
    __m256i b = _mm256_set1_epi8(1);
    for (int i = 0; i < CHAINS; i++) {
        sum[i] = _mm256_setzero_si256();
    }
    for (uint64_t round = 0; round < rounds; round++) {
        for (int i = 0; i < CHAINS; i++) {
            __m256i changing = _mm256_add_epi8(b, sum[i]);
            sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(a, changing));
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    }
    return (double)_mm256_extract_epi32(sum[0], 0);
}

__attribute__((target("avx512f"))) static double
float_avx512(uint64_t rounds)
{
    __m512 sum[CHAINS];
    __m512 a = _mm512_set1_ps(1.0001f);
    __m512 b = _mm512_set1_ps(0.9999f);
    for (int i = 0; i < CHAINS; i++) {
        sum[i] = _mm512_setzero_ps();
    }
    for (uint64_t round = 0; round < rounds; round++) {
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    }
    return (double)_mm512_reduce_add_ps(sum[0]);
}

__attribute__((target("avx2,fma"))) static double
float_avx2(uint64_t rounds)
{
    __m256 sum[CHAINS];
    __m256 a = _mm256_set1_ps(1.0001f);
    __m256 b = _mm256_set1_ps(0.9999f);
    for (int i = 0; i < CHAINS; i++) {
        sum[i] = _mm256_setzero_ps();
    }
    for (uint64_t round = 0; round < rounds; round++) {
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    }
    return (double)_mm256_cvtss_f32(sum[0]);
}
#else
static double
read_chunk(const uint8_t *from, size_t size_bytes)
{
    uint64_t sum = 0;
    for (size_t at = 0; at + 8 <= size_bytes; at += 8) {
        uint64_t value;
        memcpy(&value, from + at, sizeof value);
        sum ^= value;
    }
    return (double)sum;
}
#endif

void
bench_read_host(const void *args_void, kern_share_t *share)
{
    const bench_read_args_t *args = args_void;
    double sum = 0.0;
    for (size_t at = kern_share_claim(share) * (size_t)CHUNK_SIZE_BYTES; at < args->size_bytes;
         at = kern_share_claim(share) * (size_t)CHUNK_SIZE_BYTES) {
        size_t rest = args->size_bytes - at;
        sum += read_chunk((const uint8_t *)args->from + at,
                          rest < CHUNK_SIZE_BYTES ? rest : CHUNK_SIZE_BYTES);
    }
    args->sums[share->thread_index] = sum;
}

static double
plain(uint64_t rounds)
{
    volatile float sum = 0.0f;
    for (uint64_t round = 0; round < rounds; round++) {
        sum = sum + 1.0001f * 0.9999f;
    }
    return (double)sum;
}

void
bench_peak_int8_host(const void *args_void, kern_share_t *share)
{
    const bench_peak_args_t *args = args_void;
    double sum = 0.0;
#if defined(__x86_64__)
    sum = share->path == KERN_PATH_AVX512 ? int8_avx512(args->rounds)
          : share->path == KERN_PATH_AVX2 ? int8_avx2(args->rounds)
                                          : plain(args->rounds);
#else
    sum = plain(args->rounds);
#endif
    args->sums[share->thread_index] = sum;
}

void
bench_peak_float_host(const void *args_void, kern_share_t *share)
{
    const bench_peak_args_t *args = args_void;
    double sum = 0.0;
#if defined(__x86_64__)
    sum = share->path == KERN_PATH_AVX512 ? float_avx512(args->rounds)
          : share->path == KERN_PATH_AVX2 ? float_avx2(args->rounds)
                                          : plain(args->rounds);
#else
    sum = plain(args->rounds);
#endif
    args->sums[share->thread_index] = sum;
}

double
bench_peak_int8_operations(kern_path_t path)
{
    return path == KERN_PATH_AVX512 ? 128.0 * CHAINS : path == KERN_PATH_AVX2 ? 64.0 * CHAINS : 2.0;
}

double
bench_peak_float_operations(kern_path_t path)
{
    return path == KERN_PATH_AVX512 ? 32.0 * CHAINS : path == KERN_PATH_AVX2 ? 16.0 * CHAINS : 2.0;
}
