/* kern_philox.h - Philox4x32-10: random numbers as a pure function of key and counter.
 *
 * Every draw is named by (request seed, absolute position, kind, index), so a retracted, migrated
 * or replayed request draws the same numbers; there is no generator state.  Any thread. */
#ifndef KERN_PHILOX_H
#define KERN_PHILOX_H

#include <stdint.h>

typedef enum {
    KERN_PHILOX_SAMPLE = 0,   /* the coin that picks the token */
    KERN_PHILOX_VERIFY = 1,   /* the coin that accepts a draft token */
    KERN_PHILOX_RESIDUAL = 2, /* the coin that picks after a rejection */
    KERN_PHILOX_DRAFT = 3,    /* the drafter's own coin */
} kern_philox_kind_t;

#ifdef __CUDACC__
#define KERN_PHILOX_BOTH __host__ __device__
#else
#define KERN_PHILOX_BOTH
#endif

/* The block function of the published algorithm (10 rounds). */
static inline KERN_PHILOX_BOTH void
kern_philox4x32_10(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)c[0] * 0xD2511F53u;
        uint64_t product1 = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t n0 = (uint32_t)(product1 >> 32) ^ c[1] ^ k0;
        uint32_t n2 = (uint32_t)(product0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)product1;
        c[3] = (uint32_t)product0;
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) {
        out[i] = c[i];
    }
}

/* A number in [0, 1) with 53 bits.  counter = (position low, position high, kind, index). */
static inline KERN_PHILOX_BOTH double
kern_philox_uniform(uint64_t seed, uint64_t position, kern_philox_kind_t kind, uint32_t index)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)kind, index};
    uint32_t out[4];
    kern_philox4x32_10(key, counter, out);
    uint64_t bits = ((uint64_t)out[0] << 32) | out[1];
    return (double)(bits >> 11) * 0x1.0p-53;
}

#endif
