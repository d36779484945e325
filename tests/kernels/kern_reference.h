/* kern_reference.h - plain double-precision references and helpers of the kernel tests.
 *
 * Nothing here is shared with kernels/ but the layouts of kern_type.h, which
 * test_type.c checks against numbers of another implementation. */
#ifndef KERN_REFERENCE_H
#define KERN_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_attention.h"
#include "kern_linear.h"
#include "kern_path.h"
#include "kern_team.h"

/* ---- random numbers, seeded; the seed is printed by reference_seed() ---- */
typedef struct {
    uint64_t state;
} reference_random_t;

/* The seed of this run: KERN_TEST_SEED, or a fixed one. */
reference_random_t reference_seed(const char *test);
uint32_t reference_u32(reference_random_t *random);
double reference_uniform(reference_random_t *random); /* [0, 1) */
float reference_normal(reference_random_t *random);

/* ---- guarded memory: writes outside [0, size) are found ---- */
typedef struct {
    uint8_t *base;
    size_t size_bytes;
    void *data; /* 64-byte aligned */
} reference_guarded_t;

reference_guarded_t reference_guarded_new(size_t size_bytes);
/* Aborts the test if a guard zone was changed. */
void reference_guarded_check(const reference_guarded_t *self);
void reference_guarded_free(reference_guarded_t *self);

/* ---- teams ---- */
/* A team of so many threads on that path, made on first use, kept for the process. */
kern_team_t *reference_team(kern_path_t path, uint32_t thread_count);

/* Steps to the next path that this processor has, from -1 on; false after the last. */
bool reference_next_path(int *path);

/* ---- weights ---- */
/* A random weight of that type with sensible scales; the caller frees data. */
kern_weight_t reference_weight_new(kern_type_t type, uint32_t rows, uint32_t cols,
                                   reference_random_t *random);
/* Row `row` of an unpacked weight as doubles. */
void reference_weight_row(const kern_weight_t *weight, uint32_t row, double *out);

/* The activations as a weight of this type sees them (quantised and expanded again), and `sums`:
 * for Q4_1 the rounded scale * sum of each 32, which multiplies the weight's min. */
void reference_activations(kern_type_t type, const float *input, uint32_t cols, double *out,
                           double *sums);

/* input . weight row with that quantisation; *magnitude = sum of |products|. */
double reference_product(const kern_weight_t *weight, uint32_t row, const double *activations,
                         const double *sums, double *magnitude);

/* ---- attention ---- */
/* One row and head: keys begin..end - 1 of the request. */
void reference_attention(const kern_attention_cache_t *cache, const int32_t *pages, const float *q,
                         uint32_t head, int64_t position, double *out);

#endif
