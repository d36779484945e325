/* Selection: radix search over keys, eight bits at a time; no sort. */
#include "kern_select.h"

#include <math.h>
#include <string.h>

enum {
    MAX_BLOCK = 64, /* values that share one maximum, to find a bound of the k-th largest */
};

size_t
kern_select_maxima_count(uint32_t vocabulary)
{
    return (size_t)vocabulary / MAX_BLOCK + 1;
}

/* Unsigned keys in the order of the floats (no NaN). */
static uint32_t
key_of(float value)
{
    uint32_t bits;
    value += 0.0f; /* -0 and 0 are equal, so they must share a key */
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

static float
value_of(uint32_t key)
{
    uint32_t bits = (key & 0x80000000u) ? key & 0x7FFFFFFFu : ~key;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The k-th largest (k from 1) of `count` values, by eight bits of the key at a time. */
static float
kth_largest(const float *values, uint32_t count, uint32_t k)
{
    uint32_t prefix = 0;
    uint32_t mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t bins[256] = {0};
        for (uint32_t i = 0; i < count; i++) {
            uint32_t key = key_of(values[i]);
            if ((key & mask) == prefix) {
                bins[(key >> shift) & 255u]++;
            }
        }
        uint32_t bin = 255;
        while (bin > 0 && bins[bin] < k) {
            k -= bins[bin];
            bin--;
        }
        prefix |= bin << shift;
        mask |= 255u << shift;
    }
    return value_of(prefix);
}

uint32_t
kern_select_likely_top(const kern_select_t *self, const float *values, uint32_t k)
{
    uint32_t vocabulary = self->vocabulary;
    uint32_t blocks = (vocabulary + MAX_BLOCK - 1) / MAX_BLOCK;
    float limit = -INFINITY;
    if (k <= blocks) {
        for (uint32_t b = 0; b < blocks; b++) {
            uint32_t rest = vocabulary - b * MAX_BLOCK;
            bool nan;
            self->maxima[b] = self->table->max_row(values + b * MAX_BLOCK,
                                                   rest < MAX_BLOCK ? rest : MAX_BLOCK, &nan);
        }
        /* k blocks have a value as large as this, so the k-th largest value is not below it. */
        limit = kth_largest(self->maxima, blocks, k);
    }
    return self->table->select_ge(values, vocabulary, limit, self->ids, vocabulary);
}

uint32_t
kern_select_keep_top_k(const kern_select_t *self, const float *z, uint32_t count, uint32_t k)
{
    uint32_t *ids = self->ids;
    float *values = self->values;
    if (count <= k) {
        return count;
    }
    for (uint32_t i = 0; i < count; i++) {
        values[i] = z[ids[i]];
    }
    float limit = kth_largest(values, count, k);
    uint32_t above = 0;
    for (uint32_t i = 0; i < count; i++) {
        above += values[i] > limit;
    }
    uint32_t equals = k - above;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool keep = values[i] > limit;
        if (values[i] == limit && equals > 0) {
            keep = true;
            equals--;
        }
        if (keep) {
            ids[kept++] = ids[i];
        }
    }
    return kept;
}

/* The weight at which the candidates, from the largest down, reach the mass `target`; *above_out is
 * the mass of the larger ones. */
static float
mass_limit(const float *weights, uint32_t count, double target, double *above_out)
{
    uint32_t prefix = 0;
    uint32_t mask = 0;
    double above = 0.0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double bins[256] = {0};
        uint32_t counts[256] = {0};
        for (uint32_t i = 0; i < count; i++) {
            uint32_t key = key_of(weights[i]);
            if ((key & mask) == prefix) {
                bins[(key >> shift) & 255u] += (double)weights[i];
                counts[(key >> shift) & 255u]++;
            }
        }
        uint32_t chosen = 0;
        double passed = above;
        for (uint32_t bin = 256; bin-- > 0;) {
            if (counts[bin] == 0) {
                continue;
            }
            /* The lowest bin is chosen too if rounding keeps the sum below the target. */
            chosen = bin;
            above = passed;
            if (passed + bins[bin] >= target) {
                break;
            }
            passed += bins[bin];
        }
        prefix |= chosen << shift;
        mask |= 255u << shift;
    }
    *above_out = above;
    return value_of(prefix);
}

uint32_t
kern_select_keep_top_p(uint32_t *ids, float *weights, uint32_t count, double target)
{
    double mass;
    float limit = mass_limit(weights, count, target, &mass);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool keep = weights[i] > limit;
        if (weights[i] == limit && (mass < target || kept == 0)) {
            keep = true;
            mass += (double)weights[i];
        }
        if (keep) {
            ids[kept] = ids[i];
            weights[kept++] = weights[i];
        }
    }
    return kept;
}
