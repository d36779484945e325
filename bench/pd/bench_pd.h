/* bench_pd.h - what the parts of the bench of disaggregation share. */
#ifndef BENCH_PD_H
#define BENCH_PD_H

#include <stddef.h>
#include <stdint.h>

/* Monotonic ns. */
uint64_t bench_now_ns(void);

/* The middle of `count` values, which are sorted; and the value below which `percent` of them are.
 */
double bench_median(double *values, uint32_t count);
double bench_percentile(double *values, uint32_t count, double percent);

/* Floors, each measured once: seconds for `size_bytes`. */
/* One memcpy between two mapped memories. */
double bench_floor_memcpy(uint8_t *to, const uint8_t *from, size_t size_bytes);
/* A socket of the loopback: written by a process of its own, read straight into `to`. */
double bench_floor_tcp(uint8_t *to, const uint8_t *from, size_t size_bytes);

#endif
