/* kern_attention_body.h - inside kernels/: one split of keys against a set of queries, written once
 * for every instruction set (included by kern_simd_*.c after its kern_vec_*.h).
 *
 * The steps of one query are the same alone or beside others: a score is a chain over the
 * dimensions, a value a chain over the keys, and lanes of the sum of weights are keys % 16. */
#ifndef KERN_ATTENTION_BODY_H
#define KERN_ATTENTION_BODY_H

#include "kern_table.h"

enum {
    BLOCK = KERN_ATTENTION_BLOCK,
    DIMS = 64, /* dimensions whose sums stay in registers */
};

/* Addresses of `count` keys (or values) from `position` on, of one head. */
static void
key_addresses(const kern_split_args_t *args, const void *cache_base, uint32_t position,
              uint32_t count, const uint8_t *out[BLOCK])
{
    const kern_attention_cache_t *cache = args->cache;
    size_t element_size_bytes = cache->cache_type == KERN_TYPE_F32 ? 4 : 2;
    size_t head_size_bytes = (size_t)cache->head_dim * element_size_bytes;
    uint32_t page_index = position / cache->page_size;
    uint32_t in_page = position % cache->page_size;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = (uint32_t)args->pages[page_index];
        page = page < cache->page_count ? page : 0;
        size_t slot = (size_t)page * cache->page_size + in_page;
        out[i] = (const uint8_t *)cache_base +
                 (slot * cache->kv_heads + args->kv_head) * head_size_bytes;
        in_page++;
        if (in_page == cache->page_size) {
            in_page = 0;
            page_index++;
        }
    }
}

/* 16 dimensions from `at` on; zeros past the head. */
KV_INLINE kv_t
load_dims(kern_type_t type, const uint8_t *row, uint32_t at, uint32_t head_dim)
{
    if (at + 16 <= head_dim) {
        return type == KERN_TYPE_F32 ? kv_load((const float *)(const void *)row + at)
                                     : kv_load_half((const uint16_t *)(const void *)row + at);
    }
    uint32_t rest = head_dim - at;
    if (type == KERN_TYPE_F32) {
        return kv_load_part((const float *)(const void *)row + at, rest);
    }
    uint16_t whole[16] = {0};
    memcpy(whole, row + 2 * (size_t)at, 2 * (size_t)rest);
    return kv_load_half(whole);
}

/* block[d][i] = dimension d of key i; keys past `count` are zero up to a multiple of 16. */
static void
transpose_keys(const kern_attention_cache_t *cache, const uint8_t *const keys[BLOCK],
               uint32_t count, float *block)
{
    for (uint32_t group = 0; group < count; group += 16) {
        for (uint32_t at = 0; at < cache->head_dim; at += 16) {
            kv_t rows[16];
            KERN_UNROLL
            for (uint32_t i = 0; i < 16; i++) {
                rows[i] = group + i < count
                              ? load_dims(cache->cache_type, keys[group + i], at, cache->head_dim)
                              : kv_zero();
            }
            kv_transpose(rows);
            KERN_UNROLL
            for (uint32_t i = 0; i < 16; i++) {
                kv_store(block + (at + i) * BLOCK + group, rows[i]);
            }
        }
    }
}

/* Scores of `queries` (1 or 2) for `groups` (1 or 4) times 16 keys of the block. */
KV_INLINE void
score_group(const kern_split_query_t *query, uint32_t queries, uint32_t groups, uint32_t head_dim,
            const float *block, uint32_t at)
{
    kv_t acc[2][4];
    KERN_UNROLL
    for (uint32_t q = 0; q < queries; q++) {
        KERN_UNROLL
        for (uint32_t g = 0; g < groups; g++) {
            acc[q][g] = kv_zero();
        }
    }
    for (uint32_t d = 0; d < head_dim; d++) {
        kv_t keys[4];
        KERN_UNROLL
        for (uint32_t g = 0; g < groups; g++) {
            keys[g] = kv_load(block + d * BLOCK + 16 * g);
        }
        KERN_UNROLL
        for (uint32_t q = 0; q < queries; q++) {
            kv_t value = kv_set1(query[q].q[d]);
            KERN_UNROLL
            for (uint32_t g = 0; g < groups; g++) {
                acc[q][g] = kv_fma(value, keys[g], acc[q][g]);
            }
        }
    }
    KERN_UNROLL
    for (uint32_t q = 0; q < queries; q++) {
        KERN_UNROLL
        for (uint32_t g = 0; g < groups; g++) {
            kv_store(query[q].scores + at + 16 * g, acc[q][g]);
        }
    }
}

static void
score_block(const kern_split_args_t *args, uint32_t at, uint32_t count)
{
    const uint8_t *keys[BLOCK];
    uint32_t head_dim = args->cache->head_dim;
    key_addresses(args, args->cache->k_cache, args->position + at, count, keys);
    transpose_keys(args->cache, keys, count, args->block);
    uint32_t q = 0;
    if (count > 48) { /* four groups of 16 */
        for (; q + 2 <= args->query_count; q += 2) {
            score_group(args->queries + q, 2, 4, head_dim, args->block, at);
        }
        for (; q < args->query_count; q++) {
            score_group(args->queries + q, 1, 4, head_dim, args->block, at);
        }
        return;
    }
    for (; q < args->query_count; q++) {
        for (uint32_t group = 0; group < count; group += 16) {
            score_group(args->queries + q, 1, 1, head_dim, args->block + group, at + group);
        }
    }
}

/* Scores become weights; fills max and sum. */
static void
weigh(const kern_attention_cache_t *cache, kern_split_query_t *query)
{
    uint32_t first = query->begin & ~15u;
    uint32_t last = (query->end + 15u) & ~15u;
    kv_t scale = kv_set1(cache->scale);
    for (uint32_t i = first; i < last; i += 16) {
        kv_t score = kv_mul(kv_load(query->scores + i), scale);
        if (cache->logit_cap > 0.0f) {
            kv_t cap = kv_set1(cache->logit_cap);
            score = kv_mul(kv_tanh(kv_div(score, cap)), cap);
        }
        kv_store(query->scores + i, score);
    }
    for (uint32_t i = first; i < query->begin; i++) {
        query->scores[i] = -INFINITY;
    }
    for (uint32_t i = query->end; i < last; i++) {
        query->scores[i] = -INFINITY;
    }
    kv_t top = kv_set1(-INFINITY);
    for (uint32_t i = first; i < last; i += 16) {
        top = kv_max(top, kv_load(query->scores + i));
    }
    query->max = kv_max_lane(top);
    kv_t max = kv_set1(query->max);
    kv_t sum = kv_zero();
    for (uint32_t i = first; i < last; i += 16) {
        kv_t weight = kv_exp(kv_sub(kv_load(query->scores + i), max));
        kv_store(query->scores + i, weight);
        sum = kv_add(sum, weight);
    }
    query->sum = kv_sum(sum);
}

/* values += weight * value row, for keys begin..end - 1 of the block and `width` * 16 dimensions.
 */
KV_INLINE void
value_group(const kern_split_query_t *query, uint32_t queries, uint32_t width, uint32_t dim,
            const float *const rows[BLOCK], uint32_t at, uint32_t begin, uint32_t end)
{
    kv_t acc[2][DIMS / 16];
    KERN_UNROLL
    for (uint32_t q = 0; q < queries; q++) {
        KERN_UNROLL
        for (uint32_t w = 0; w < width; w++) {
            acc[q][w] = kv_load(query[q].values + dim + 16 * w);
        }
    }
    for (uint32_t i = begin; i < end; i++) {
        const float *row = rows[i] + dim;
        KERN_UNROLL
        for (uint32_t q = 0; q < queries; q++) {
            kv_t weight = kv_set1(query[q].scores[at + i]);
            KERN_UNROLL
            for (uint32_t w = 0; w < width; w++) {
                acc[q][w] = kv_fma(weight, kv_load(row + 16 * w), acc[q][w]);
            }
        }
    }
    KERN_UNROLL
    for (uint32_t q = 0; q < queries; q++) {
        KERN_UNROLL
        for (uint32_t w = 0; w < width; w++) {
            kv_store(query[q].values + dim + 16 * w, acc[q][w]);
        }
    }
}

KV_INLINE void
value_queries(const kern_split_query_t *query, uint32_t queries, uint32_t padded,
              const float *const rows[BLOCK], uint32_t at, uint32_t begin, uint32_t end)
{
    uint32_t dim = 0;
    for (; dim + DIMS <= padded; dim += DIMS) {
        value_group(query, queries, DIMS / 16, dim, rows, at, begin, end);
    }
    for (; dim < padded; dim += 16) {
        value_group(query, queries, 1, dim, rows, at, begin, end);
    }
}

static bool
sees_all(const kern_split_query_t *query, uint32_t at, uint32_t count)
{
    return query->begin <= at && query->end >= at + count;
}

static void
value_block(const kern_split_args_t *args, uint32_t at, uint32_t count)
{
    const kern_attention_cache_t *cache = args->cache;
    const uint8_t *bytes[BLOCK];
    const float *rows[BLOCK];
    uint32_t padded = kern_padded_dim(args->value_dim);
    key_addresses(args, cache->v_cache, args->position + at, count, bytes);
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = (const float *)(const void *)bytes[i];
        if (cache->cache_type != KERN_TYPE_F32 || padded != args->value_dim) {
            float *copy = args->block + (size_t)i * padded;
            for (uint32_t d = 0; d < padded; d += 16) {
                kv_store(copy + d, load_dims(cache->cache_type, bytes[i], d, args->value_dim));
            }
            rows[i] = copy;
        }
    }
    for (uint32_t q = 0; q < args->query_count; q++) {
        const kern_split_query_t *query = &args->queries[q];
        if (q + 1 < args->query_count && sees_all(query, at, count) &&
            sees_all(query + 1, at, count)) {
            value_queries(query, 2, padded, rows, at, 0, count);
            q++;
            continue;
        }
        uint32_t begin = query->begin > at ? query->begin - at : 0;
        uint32_t end = query->end > at ? query->end - at : 0;
        end = end < count ? end : count;
        if (begin < end) {
            value_queries(query, 1, padded, rows, at, begin, end);
        }
    }
}

static void
split(const kern_split_args_t *args)
{
    uint32_t padded = kern_padded_dim(args->value_dim);
    for (uint32_t at = 0; at < args->key_count; at += BLOCK) {
        uint32_t rest = args->key_count - at;
        score_block(args, at, rest < BLOCK ? rest : BLOCK);
    }
    for (uint32_t q = 0; q < args->query_count; q++) {
        kern_split_query_t *query = &args->queries[q];
        memset(query->values, 0, padded * sizeof *query->values);
        if (query->begin >= query->end) {
            query->max = -INFINITY;
            query->sum = 0.0f;
            continue;
        }
        weigh(args->cache, query);
    }
    for (uint32_t at = 0; at < args->key_count; at += BLOCK) {
        uint32_t rest = args->key_count - at;
        value_block(args, at, rest < BLOCK ? rest : BLOCK);
    }
}

static void
merge(float *max, float *sum, float *values, float next_max, float next_sum,
      const float *next_values, uint32_t head_dim)
{
    if (next_max == -INFINITY && next_sum == 0.0f) {
        return;
    }
    float top = next_max > *max ? next_max : *max;
    float out[16];
    kv_store(out, kv_exp(kv_set1(*max - top)));
    float old_scale = out[0];
    kv_store(out, kv_exp(kv_set1(next_max - top)));
    float new_scale = out[0];
    *max = top;
    *sum = *sum * old_scale + next_sum * new_scale;
    kv_t olds = kv_set1(old_scale);
    kv_t news = kv_set1(new_scale);
    for (uint32_t d = 0; d < kern_padded_dim(head_dim); d += 16) {
        kv_t old = kv_mul(kv_load(values + d), olds);
        kv_store(values + d, kv_fma(kv_load(next_values + d), news, old));
    }
}

#endif
