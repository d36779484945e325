/* bench_ceilings.h - what this machine can do at most, measured: the kernels are judged by it. */
#ifndef BENCH_CEILINGS_H
#define BENCH_CEILINGS_H

#include "kern_share.h"

/* Reads `size_bytes` at `from`; an operation for a team. */
typedef struct {
    const void *from;
    size_t size_bytes;
    double *sums; /* [threads], so that nothing is optimised away */
} bench_read_args_t;

void bench_read_host(const void *args, kern_share_t *share);

/* Multiplies int8 (with AVX512-VNNI or AVX2) or float32 in registers; each thread runs `rounds`. */
typedef struct {
    uint64_t rounds;
    double *sums; /* [threads] */
} bench_peak_args_t;

void bench_peak_int8_host(const void *args, kern_share_t *share);
void bench_peak_float_host(const void *args, kern_share_t *share);

/* Operations (multiplications and additions) of one round of each. */
double bench_peak_int8_operations(kern_path_t path);
double bench_peak_float_operations(kern_path_t path);

#endif
