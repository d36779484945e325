#include "kern_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_type.h"
#include "proto_require.h"

enum {
    GUARD_SIZE_BYTES = 256,
    GUARD_BYTE = 0xA5,
};

reference_random_t
reference_seed(const char *test)
{
    const char *text = getenv("KERN_TEST_SEED");
    reference_random_t random = {.state = text != NULL ? strtoull(text, NULL, 0) : 20261130};
    printf("%s: KERN_TEST_SEED=%llu\n", test, (unsigned long long)random.state);
    return random;
}

uint32_t
reference_u32(reference_random_t *random)
{
    random->state += 0x9E3779B97F4A7C15u;
    uint64_t z = random->state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

double
reference_uniform(reference_random_t *random)
{
    return (double)reference_u32(random) * 0x1.0p-32;
}

float
reference_normal(reference_random_t *random)
{
    double u = reference_uniform(random);
    double v = reference_uniform(random);
    return (float)(sqrt(-2.0 * log(u + 1e-12)) * cos(6.283185307179586 * v));
}

reference_guarded_t
reference_guarded_new(size_t size_bytes)
{
    reference_guarded_t self = {.size_bytes = size_bytes};
    size_t whole = (size_bytes + 2 * GUARD_SIZE_BYTES + 63) & ~(size_t)63;
    self.base = aligned_alloc(64, whole);
    require(self.base != NULL);
    memset(self.base, GUARD_BYTE, whole);
    self.data = self.base + GUARD_SIZE_BYTES;
    return self;
}

void
reference_guarded_check(const reference_guarded_t *self)
{
    for (size_t i = 0; i < GUARD_SIZE_BYTES; i++) {
        require(self->base[i] == GUARD_BYTE);
        require(self->base[GUARD_SIZE_BYTES + self->size_bytes + i] == GUARD_BYTE);
    }
}

void
reference_guarded_free(reference_guarded_t *self)
{
    free(self->base);
    self->base = NULL;
}

static kern_team_t *teams[KERN_PATH_COUNT][KERN_THREADS_MAX + 1];

static void
end_teams(void)
{
    for (int path = 0; path < KERN_PATH_COUNT; path++) {
        for (int count = 0; count <= KERN_THREADS_MAX; count++) {
            kern_team_destroy(&teams[path][count]);
        }
    }
}

kern_team_t *
reference_team(kern_path_t path, uint32_t thread_count)
{
    static bool registered;
    require(thread_count <= KERN_THREADS_MAX);
    if (teams[path][thread_count] == NULL) {
        kern_team_options_t options = {.thread_count = thread_count, .path = path};
        require(kern_team_new(&options, &teams[path][thread_count]) == STATUS_OK);
    }
    if (!registered) {
        registered = true;
        (void)atexit(end_teams);
    }
    return teams[path][thread_count];
}

bool
reference_next_path(int *path)
{
    do {
        (*path)++;
    } while (*path < KERN_PATH_COUNT && !kern_path_available((kern_path_t)*path));
    return *path < KERN_PATH_COUNT;
}

/* Random bytes, and scales that keep the values of the order of 1. */
static void
random_block(kern_type_t type, uint8_t *block, reference_random_t *random)
{
    size_t size_bytes = kern_type_block_size_bytes(type);
    for (size_t i = 0; i < size_bytes; i++) {
        block[i] = (uint8_t)reference_u32(random);
    }
    uint16_t scale = kern_float_to_half(0.02f * reference_normal(random));
    uint16_t min = kern_float_to_half(0.02f * reference_normal(random));
    switch (type) {
    case KERN_TYPE_F32: {
        float value = reference_normal(random);
        memcpy(block, &value, sizeof value);
        return;
    }
    case KERN_TYPE_F16: {
        uint16_t half = kern_float_to_half(reference_normal(random));
        memcpy(block, &half, sizeof half);
        return;
    }
    case KERN_TYPE_BF16: {
        float value = reference_normal(random);
        memcpy(block, (uint8_t *)&value + 2, 2);
        return;
    }
    case KERN_TYPE_Q6_K:
        memcpy(block + 208, &scale, 2);
        return;
    case KERN_TYPE_Q4_1:
    case KERN_TYPE_Q4_K:
    case KERN_TYPE_Q5_K:
        memcpy(block, &scale, 2);
        memcpy(block + 2, &min, 2);
        return;
    case KERN_TYPE_Q4_0:
    case KERN_TYPE_Q5_0:
    case KERN_TYPE_Q8_0:
    default:
        memcpy(block, &scale, 2);
        return;
    }
}

kern_weight_t
reference_weight_new(kern_type_t type, uint32_t rows, uint32_t cols, reference_random_t *random)
{
    size_t row_size_bytes = kern_type_row_size_bytes(type, cols);
    require(row_size_bytes > 0);
    uint8_t *data = malloc(rows * row_size_bytes);
    require(data != NULL);
    size_t block_size_bytes = kern_type_block_size_bytes(type);
    for (size_t at = 0; at < rows * row_size_bytes; at += block_size_bytes) {
        random_block(type, data + at, random);
    }
    return (kern_weight_t){.data = data, .type = type, .rows = rows, .cols = cols};
}

void
reference_weight_row(const kern_weight_t *weight, uint32_t row, double *out)
{
    float *floats = malloc(weight->cols * sizeof *floats);
    require(floats != NULL);
    size_t row_size_bytes = kern_type_row_size_bytes(weight->type, weight->cols);
    kern_type_row_to_float(weight->type, (const uint8_t *)weight->data + row * row_size_bytes,
                           weight->cols, floats);
    for (uint32_t i = 0; i < weight->cols; i++) {
        out[i] = (double)floats[i];
    }
    free(floats);
}

static float
rounded_to_half(float value)
{
    return kern_half_to_float(kern_float_to_half(value));
}

void
reference_activations(kern_type_t type, const float *input, uint32_t cols, double *out,
                      double *sums)
{
    uint32_t block_len = kern_type_block_len(type);
    for (uint32_t at = 0; at < cols; at += block_len) {
        if (block_len == 1) {
            out[at] = (double)input[at];
            continue;
        }
        float extreme = 0.0f;
        for (uint32_t i = 0; i < block_len; i++) {
            extreme = fabsf(input[at + i]) > fabsf(extreme) ? input[at + i] : extreme;
        }
        float exact = block_len == 32 ? fabsf(extreme) / 127.0f : 0.0f;
        float inverse = 0.0f;
        if (extreme != 0.0f) {
            inverse = block_len == 32 ? 127.0f / fabsf(extreme) : -127.0f / extreme;
        }
        if (block_len == 256 && extreme != 0.0f) {
            exact = 1.0f / inverse;
        }
        float scale = block_len == 32 ? rounded_to_half(exact) : exact;
        for (uint32_t i = 0; i < block_len; i += 32) {
            int sum = 0;
            for (uint32_t j = at + i; j < at + i + 32; j++) {
                int quant = (int)nearbyintf(input[j] * inverse);
                quant = quant > 127 ? 127 : quant;
                sum += quant;
                out[j] = (double)scale * quant;
            }
            sums[(at + i) / 32] = (double)rounded_to_half(exact * (float)sum);
        }
    }
}

double
reference_product(const kern_weight_t *weight, uint32_t row, const double *activations,
                  const double *sums, double *magnitude)
{
    double *values = malloc(weight->cols * sizeof *values);
    require(values != NULL);
    reference_weight_row(weight, row, values);
    double total = 0.0;
    *magnitude = 0.0;
    const uint8_t *blocks =
        (const uint8_t *)weight->data + row * kern_type_row_size_bytes(weight->type, weight->cols);
    for (uint32_t k = 0; k < weight->cols; k++) {
        double min = 0.0;
        if (weight->type == KERN_TYPE_Q4_1) {
            uint16_t half;
            memcpy(&half, blocks + (size_t)(k / 32) * 20 + 2, sizeof half);
            min = (double)kern_half_to_float(half);
            total += k % 32 == 0 ? min * sums[k / 32] : 0.0;
        }
        total += (values[k] - min) * activations[k];
        *magnitude += fabs(values[k] * activations[k]) + fabs(min * activations[k]);
    }
    free(values);
    return total;
}

static double
cache_value(const kern_attention_cache_t *cache, const void *base, uint32_t page, uint32_t place,
            uint32_t head, uint32_t dim)
{
    size_t slot = (size_t)page * cache->page_size + place;
    size_t index = (slot * cache->kv_heads + head) * cache->head_dim + dim;
    if (cache->cache_type == KERN_TYPE_F32) {
        return (double)((const float *)base)[index];
    }
    return (double)kern_half_to_float(((const uint16_t *)base)[index]);
}

void
reference_attention(const kern_attention_cache_t *cache, const int32_t *pages, const float *q,
                    uint32_t head, int64_t position, double *out)
{
    uint32_t kv_head = head / (cache->q_heads / cache->kv_heads);
    int64_t begin = 0;
    if (cache->window_left >= 0 && position - cache->window_left > 0) {
        begin = position - cache->window_left;
    }
    for (uint32_t d = 0; d < cache->head_dim; d++) {
        out[d] = 0.0;
    }
    if (position < 0) {
        return;
    }
    double *scores = malloc((size_t)(position + 1) * sizeof *scores);
    require(scores != NULL);
    double max = -INFINITY;
    for (int64_t p = begin; p <= position; p++) {
        uint32_t page = (uint32_t)pages[p / cache->page_size];
        uint32_t place = (uint32_t)(p % cache->page_size);
        double score = 0.0;
        for (uint32_t d = 0; d < cache->head_dim; d++) {
            score += (double)q[d] * cache_value(cache, cache->k_cache, page, place, kv_head, d);
        }
        score *= (double)cache->scale;
        if (cache->logit_cap > 0.0f) {
            score = (double)cache->logit_cap * tanh(score / (double)cache->logit_cap);
        }
        scores[p] = score;
        max = score > max ? score : max;
    }
    double sum = 0.0;
    if (cache->sinks != NULL) {
        double sink = (double)cache->sinks[head];
        max = sink > max ? sink : max;
        sum = exp(sink - max);
    }
    for (int64_t p = begin; p <= position; p++) {
        uint32_t page = (uint32_t)pages[p / cache->page_size];
        uint32_t place = (uint32_t)(p % cache->page_size);
        double weight = exp(scores[p] - max);
        sum += weight;
        for (uint32_t d = 0; d < cache->head_dim; d++) {
            out[d] += weight * cache_value(cache, cache->v_cache, page, place, kv_head, d);
        }
    }
    for (uint32_t d = 0; d < cache->head_dim; d++) {
        out[d] /= sum;
    }
    free(scores);
}
