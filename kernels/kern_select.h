/* kern_select.h - what filters keep of one row: the k largest, the smallest set of a mass.
 *
 * Helpers of kern_sample.c, one thread each: no argument struct, no share.  Sets are ids in
 * ascending order; among equal values the lowest ids stay. */
#ifndef KERN_SELECT_H
#define KERN_SELECT_H

#include <stddef.h>
#include <stdint.h>

#include "kern_table.h"

/* A thread's scratch, lent. */
typedef struct {
    const kern_table_t *table;
    uint32_t vocabulary;
    uint32_t *ids; /* [vocabulary]: the set */
    float *values; /* [vocabulary]: clobbered */
    float *maxima; /* [kern_select_maxima_count(vocabulary)] */
} kern_select_t;

size_t kern_select_maxima_count(uint32_t vocabulary);

/* Writes a superset of the k (at least 1) largest of values[vocabulary]; returns its size. */
uint32_t kern_select_likely_top(const kern_select_t *self, const float *values, uint32_t k);

/* Keeps of the set's `count` ids the k with the largest z[id]; returns how many are left. */
uint32_t kern_select_keep_top_k(const kern_select_t *self, const float *z, uint32_t count,
                                uint32_t k);

/* Keeps the smallest set, from the largest weight down, whose mass reaches `target`; weights[i]
 * belongs to ids[i], both are packed.  Returns how many are left, at least 1. */
uint32_t kern_select_keep_top_p(uint32_t *ids, float *weights, uint32_t count, double target);

#endif
