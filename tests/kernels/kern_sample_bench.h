/* kern_sample_bench.h - what the tests of sampling share: a pool with everything one call needs,
 * and the distribution after the filters by a full sort in doubles. */
#ifndef KERN_SAMPLE_BENCH_H
#define KERN_SAMPLE_BENCH_H

#include <stdint.h>

#include "kern_path.h"
#include "kern_sample.h"

enum {
    SLOTS = 8,
    VOCABULARY_MAX = 5003,
    ROWS_MAX = 24,
};

/* A pool, and everything that one call needs. */
typedef struct {
    float temperature[SLOTS];
    int32_t top_k[SLOTS];
    float top_p[SLOTS];
    float min_p[SLOTS];
    uint64_t seed[SLOTS];
    float repetition[SLOTS];
    float presence[SLOTS];
    float frequency[SLOTS];
    uint16_t counts[SLOTS * VOCABULARY_MAX];
    uint32_t bias_counts[SLOTS];
    int32_t bias_ids[SLOTS * KERN_SAMPLE_BIAS_MAX];
    float bias_values[SLOTS * KERN_SAMPLE_BIAS_MAX];
    uint32_t banned_counts[SLOTS];
    int32_t banned_ids[SLOTS * KERN_SAMPLE_BANNED_MAX];
    int32_t banned_until[SLOTS];
    uint32_t logprobs[SLOTS];
    float logits[ROWS_MAX * VOCABULARY_MAX];
    int32_t slots[ROWS_MAX];
    int32_t seq_lens[ROWS_MAX];
    int32_t candidates[ROWS_MAX];
    int32_t tokens[ROWS_MAX];
    int32_t accept_lengths[ROWS_MAX];
    uint8_t flags[ROWS_MAX];
    int32_t logprob_ids[ROWS_MAX * KERN_SAMPLE_LOGPROBS_WIDTH];
    float logprob_values[ROWS_MAX * KERN_SAMPLE_LOGPROBS_WIDTH];
    kern_sample_args_t args;
} sample_bench_t;

/* One request in slot 1 that draws position 10, no filters; the caller frees it. */
sample_bench_t *sample_bench_new(uint32_t vocabulary);

/* Runs it with guarded scratch. */
void sample_bench_run(sample_bench_t *self, kern_path_t path, uint32_t threads);

typedef struct {
    uint32_t id;
    double z;
} sample_entry_t;

/* For qsort: largest first, the lowest id among equals. */
int sample_by_value(const void *a_void, const void *b_void);

/* Probabilities of the tokens that the filters of a slot keep of z[vocabulary]; they sum to 1. */
void sample_distribution(const float *z, uint32_t vocabulary, double temperature, int32_t top_k,
                         double top_p, double min_p, double *out);

/* The token at the coin, in the order of ids; *margin = how near the coin is to a boundary. */
uint32_t sample_draw(const double *probabilities, uint32_t vocabulary, double coin, double *margin);

/* How far counts of `total` draws are from the probabilities, in deviations of chi-square from its
 * mean; fails if a token came that cannot. */
double sample_chi_square(const uint32_t *counts, const double *probabilities, uint32_t vocabulary,
                         double total);

#endif
