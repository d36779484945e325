#include "kern_sample.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kern_philox.h"
#include "kern_table.h"
#include "proto_require.h"

enum {
    MAX_BLOCK = 64, /* values that share one maximum, to find a bound of the k-th largest */
};

/* A thread's part of the workspace: everything for one row. */
typedef struct {
    float *changed;       /* [vocabulary] logits after bias and penalties */
    float *weights;       /* [vocabulary] exp((z - max) / temperature), at the candidate's place */
    uint32_t *candidates; /* [vocabulary] ids, ascending */
    float *maxima;        /* [vocabulary / MAX_BLOCK + 1] */
    float *sums;          /* [vocabulary / KERN_EXP_BLOCK + 1] */
} scratch_t;

/* One request of the batch, while its rows are sampled. */
typedef struct {
    const kern_sample_args_t *args;
    const kern_table_t *table;
    scratch_t scratch;
    uint32_t request;
    uint32_t slot;
    uint16_t *counts; /* the slot's row; NULL without penalties */
} request_t;

static size_t
round_up64(size_t value)
{
    return (value + 63) & ~(size_t)63;
}

static size_t
thread_size_bytes(uint32_t vocabulary)
{
    size_t row = round_up64((size_t)vocabulary * 4);
    return 3 * row + round_up64(((size_t)vocabulary / MAX_BLOCK + 1) * 4) +
           round_up64(((size_t)vocabulary / KERN_EXP_BLOCK + 1) * 4);
}

size_t
kern_sample_workspace_size_bytes(uint32_t vocabulary, uint32_t thread_count)
{
    return thread_size_bytes(vocabulary) * thread_count;
}

static scratch_t
scratch_of_thread(const kern_sample_args_t *args, uint32_t thread)
{
    uint8_t *at = (uint8_t *)args->workspace + thread * thread_size_bytes(args->vocabulary);
    size_t row = round_up64((size_t)args->vocabulary * 4);
    scratch_t scratch;
    scratch.changed = (float *)(void *)at;
    scratch.weights = (float *)(void *)(at + row);
    scratch.candidates = (uint32_t *)(void *)(at + 2 * row);
    scratch.maxima = (float *)(void *)(at + 3 * row);
    at += 3 * row + round_up64(((size_t)args->vocabulary / MAX_BLOCK + 1) * 4);
    scratch.sums = (float *)(void *)at;
    return scratch;
}

/* ---- selection ------------------------------------------------------------------------------- */

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

/* Ids of a superset of the k largest values, ascending; returns how many. */
static uint32_t
likely_top(const request_t *self, const float *values, uint32_t k)
{
    uint32_t vocabulary = self->args->vocabulary;
    const scratch_t *scratch = &self->scratch;
    uint32_t blocks = (vocabulary + MAX_BLOCK - 1) / MAX_BLOCK;
    float limit = -INFINITY;
    if (k <= blocks) {
        for (uint32_t b = 0; b < blocks; b++) {
            uint32_t rest = vocabulary - b * MAX_BLOCK;
            bool nan;
            scratch->maxima[b] = self->table->max_row(values + b * MAX_BLOCK,
                                                      rest < MAX_BLOCK ? rest : MAX_BLOCK, &nan);
        }
        /* k blocks have a value as large as this, so the k-th largest value is not below it. */
        limit = kth_largest(scratch->maxima, blocks, k);
    }
    return self->table->select_ge(values, vocabulary, limit, scratch->candidates, vocabulary);
}

/* Keeps of the candidates the k with the largest z; the lowest ids among equals. */
static uint32_t
keep_top_k(const request_t *self, const float *z, uint32_t count, uint32_t k)
{
    uint32_t *ids = self->scratch.candidates;
    float *values = self->scratch.weights;
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

/* Keeps the smallest set, from the largest weight down, whose mass reaches `target`. */
static uint32_t
keep_top_p(uint32_t *ids, float *weights, uint32_t count, double target)
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

/* ---- one row --------------------------------------------------------------------------------- */

static bool
has_penalty(const kern_sample_pool_t *pool, uint32_t slot)
{
    float repetition = pool->repetition_penalty[slot];
    return pool->counts != NULL &&
           ((repetition > 0.0f && repetition != 1.0f) || pool->presence_penalty[slot] != 0.0f ||
            pool->frequency_penalty[slot] != 0.0f);
}

static void
apply_penalties(const request_t *self, float *z)
{
    const kern_sample_pool_t *pool = &self->args->pool;
    float repetition = pool->repetition_penalty[self->slot];
    float presence = pool->presence_penalty[self->slot];
    float frequency = pool->frequency_penalty[self->slot];
    repetition = repetition > 0.0f ? repetition : 1.0f;
    for (uint32_t id = 0; id < self->args->vocabulary; id++) {
        uint16_t count = self->counts[id];
        if (count == 0) {
            continue;
        }
        z[id] = z[id] > 0.0f ? z[id] / repetition : z[id] * repetition;
        uint32_t generated = count & KERN_SAMPLE_COUNT_GENERATED;
        if (generated > 0) {
            z[id] -= presence + frequency * (float)generated;
        }
    }
}

/* The logits to draw from: the raw ones, or a changed copy. */
static const float *
changed_logits(const request_t *self, const float *logits, int64_t position)
{
    const kern_sample_pool_t *pool = &self->args->pool;
    uint32_t slot = self->slot;
    uint32_t vocabulary = self->args->vocabulary;
    uint32_t bias_count = pool->bias_counts != NULL ? pool->bias_counts[slot] : 0;
    uint32_t banned_count = 0;
    if (pool->banned_counts != NULL && position < pool->banned_until[slot]) {
        banned_count = pool->banned_counts[slot];
    }
    if (bias_count == 0 && banned_count == 0 && self->counts == NULL) {
        return logits;
    }
    require(bias_count <= KERN_SAMPLE_BIAS_MAX);
    require(banned_count <= KERN_SAMPLE_BANNED_MAX);
    float *z = self->scratch.changed;
    memcpy(z, logits, vocabulary * sizeof *z);
    for (uint32_t i = 0; i < bias_count; i++) {
        int32_t id = pool->bias_ids[slot * KERN_SAMPLE_BIAS_MAX + i];
        if (id >= 0 && (uint32_t)id < vocabulary) {
            z[id] += pool->bias_values[slot * KERN_SAMPLE_BIAS_MAX + i];
        }
    }
    for (uint32_t i = 0; i < banned_count; i++) {
        int32_t id = pool->banned_ids[slot * KERN_SAMPLE_BANNED_MAX + i];
        if (id >= 0 && (uint32_t)id < vocabulary) {
            z[id] = -INFINITY;
        }
    }
    if (self->counts != NULL) {
        apply_penalties(self, z);
    }
    return z;
}

/* The id at `coin` of the cumulative weights of the candidates. */
static uint32_t
draw_candidate(const uint32_t *ids, const float *weights, uint32_t count, double coin)
{
    double total = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += (double)weights[i];
    }
    double left = coin * total;
    uint32_t last = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (weights[i] > 0.0f) {
            last = i;
            left -= (double)weights[i];
            if (left < 0.0) {
                break;
            }
        }
    }
    return ids[last];
}

/* The same over the whole vocabulary, by the sums of blocks. */
static uint32_t
draw_any(const scratch_t *scratch, uint32_t vocabulary, double total, double coin)
{
    double left = coin * total;
    uint32_t blocks = (vocabulary + KERN_EXP_BLOCK - 1) / KERN_EXP_BLOCK;
    uint32_t block = 0;
    while (block + 1 < blocks && left >= (double)scratch->sums[block]) {
        left -= (double)scratch->sums[block];
        block++;
    }
    /* Rounding may lead past the last weight: then the last token with one before that place. */
    uint32_t end = (block + 1) * KERN_EXP_BLOCK;
    end = end < vocabulary ? end : vocabulary;
    uint32_t id = block * KERN_EXP_BLOCK;
    for (; id < end; id++) {
        left -= (double)scratch->weights[id];
        if (left < 0.0 && scratch->weights[id] > 0.0f) {
            return id;
        }
    }
    while (id > 1 && !(scratch->weights[id - 1] > 0.0f)) {
        id--;
    }
    return id - 1;
}

static uint32_t
draw_token(const request_t *self, const float *z, float top, double coin)
{
    const kern_sample_pool_t *pool = &self->args->pool;
    const scratch_t *scratch = &self->scratch;
    uint32_t vocabulary = self->args->vocabulary;
    float scale = 1.0f / pool->temperature[self->slot];
    float shift = top * scale;
    int32_t top_k = pool->top_k[self->slot];
    double top_p = (double)pool->top_p[self->slot];
    float min_p = pool->min_p[self->slot];
    bool use_top_p = top_p > 0.0 && top_p < 1.0;
    uint32_t count;
    double total;
    if (top_k > 0 && (uint32_t)top_k < vocabulary) {
        count = likely_top(self, z, (uint32_t)top_k);
        count = keep_top_k(self, z, count, (uint32_t)top_k);
        for (uint32_t i = 0; i < count; i++) {
            scratch->weights[i] = z[scratch->candidates[i]];
        }
        total = self->table->exp_row(scratch->weights, count, scale, shift, scratch->weights, NULL);
    } else {
        total = self->table->exp_row(z, vocabulary, scale, shift, scratch->weights, scratch->sums);
        if (!use_top_p && !(min_p > 0.0f)) {
            return draw_any(scratch, vocabulary, total, coin);
        }
        /* Weights below (1 - p) * total / n together miss less than 1 - p, so the smallest set of
         * mass p lies above; a little less, for rounding. */
        float limit = 0.0f;
        if (use_top_p) {
            limit = (float)((1.0 - top_p) * total / (double)vocabulary * 0.999);
        }
        limit = !use_top_p && min_p > limit ? (min_p < 1.0f ? min_p : 1.0f) : limit;
        count = self->table->select_ge(scratch->weights, vocabulary, limit, scratch->candidates,
                                       vocabulary);
        for (uint32_t i = 0; i < count; i++) {
            scratch->weights[i] = scratch->weights[scratch->candidates[i]];
        }
    }
    if (use_top_p) {
        count = keep_top_p(scratch->candidates, scratch->weights, count, top_p * total);
    }
    if (min_p > 0.0f) {
        /* The largest weight is 1. */
        float limit = min_p < 1.0f ? min_p : 1.0f;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (scratch->weights[i] >= limit) {
                scratch->candidates[kept] = scratch->candidates[i];
                scratch->weights[kept++] = scratch->weights[i];
            }
        }
        count = kept;
    }
    return draw_candidate(scratch->candidates, scratch->weights, count, coin);
}

/* Log softmax of the raw logits: the sampled token first, then the top, largest first. */
static void
write_logprobs(const request_t *self, const float *logits, float top, size_t row, uint32_t token)
{
    const kern_sample_args_t *args = self->args;
    uint32_t wanted = args->pool.logprobs != NULL ? args->pool.logprobs[self->slot] : 0;
    if (wanted == 0 || args->logprob_ids == NULL || args->logprob_values == NULL) {
        return;
    }
    wanted = wanted < KERN_SAMPLE_LOGPROBS_WIDTH ? wanted : KERN_SAMPLE_LOGPROBS_WIDTH;
    int32_t *ids = args->logprob_ids + row * KERN_SAMPLE_LOGPROBS_WIDTH;
    float *values = args->logprob_values + row * KERN_SAMPLE_LOGPROBS_WIDTH;
    double total = self->table->exp_row(logits, args->vocabulary, 1.0f, top, NULL, NULL);
    double normaliser = (double)top + log(total);
    ids[0] = (int32_t)token;
    values[0] = (float)((double)logits[token] - normaliser);
    uint32_t top_count = wanted - 1 < args->vocabulary ? wanted - 1 : args->vocabulary;
    if (top_count == 0) {
        return;
    }
    uint32_t count = likely_top(self, logits, top_count);
    count = keep_top_k(self, logits, count, top_count);
    uint32_t *candidates = self->scratch.candidates;
    for (uint32_t place = 0; place < top_count; place++) {
        uint32_t best = place;
        for (uint32_t i = place + 1; i < count; i++) {
            float a = logits[candidates[i]];
            float b = logits[candidates[best]];
            if (a > b || (a == b && candidates[i] < candidates[best])) {
                best = i;
            }
        }
        uint32_t id = candidates[best];
        candidates[best] = candidates[place];
        candidates[place] = id;
        ids[1 + place] = (int32_t)id;
        values[1 + place] = (float)((double)logits[id] - normaliser);
    }
}

static void
sample_row(const request_t *self, uint32_t column)
{
    const kern_sample_args_t *args = self->args;
    const kern_sample_pool_t *pool = &args->pool;
    size_t row = (size_t)self->request * args->rows_per_request + column;
    const float *logits = args->logits + row * args->logits_stride;
    int64_t position = (int64_t)args->seq_lens[self->request] - args->rows_per_request + column + 1;
    bool nan;
    float raw_top = self->table->max_row(logits, args->vocabulary, &nan);
    args->flags[row] = nan ? KERN_SAMPLE_FLAG_NAN : 0;
    if (nan) {
        args->tokens[row] = 0;
        return;
    }
    const float *z = changed_logits(self, logits, position);
    float top = raw_top;
    if (z != logits) {
        top = self->table->max_row(z, args->vocabulary, &nan);
    }
    /* Infinite logits leave nothing to divide by: the first of the largest. */
    bool greedy =
        pool->top_k[self->slot] == 1 || !(pool->temperature[self->slot] >= 1e-6f) || isinf(top);
    uint32_t token;
    if (greedy) {
        token = self->table->find(z, args->vocabulary, top);
    } else {
        double coin =
            kern_philox_uniform(pool->seed[self->slot], (uint64_t)position, KERN_PHILOX_SAMPLE, 0);
        token = draw_token(self, z, top, coin);
    }
    args->tokens[row] = (int32_t)token;
    write_logprobs(self, logits, raw_top, row, token);
}

/* ---- one request ----------------------------------------------------------------------------- */

static void
count_token(uint16_t *counts, uint32_t vocabulary, int32_t token)
{
    if (token < 0 || (uint32_t)token >= vocabulary) {
        return;
    }
    if ((counts[token] & KERN_SAMPLE_COUNT_GENERATED) != KERN_SAMPLE_COUNT_GENERATED) {
        counts[token]++;
    }
}

/* Samples the rows in order.  Row i counts only if candidates 1..i were accepted, and then they are
 * generated tokens: they enter the counts before row i is sampled.  Nothing is counted after the
 * first candidate that fails, and what those rows give is not used. */
static uint32_t
sample_request(const request_t *self)
{
    const kern_sample_args_t *args = self->args;
    uint32_t width = args->rows_per_request;
    const int32_t *candidates =
        args->candidates != NULL ? args->candidates + (size_t)self->request * width : NULL;
    const int32_t *tokens = args->tokens + (size_t)self->request * width;
    require(candidates != NULL || width == 1);
    uint32_t accepted = 1;
    for (uint32_t column = 0; column < width; column++) {
        if (column > 0) {
            if (accepted == column && candidates[column] == tokens[column - 1]) {
                accepted++;
            }
            if (self->counts != NULL && accepted == column + 1) {
                count_token(self->counts, args->vocabulary, candidates[column]);
            }
        }
        sample_row(self, column);
    }
    /* The accepted candidates are counted already; the last token of the request is not yet. */
    if (self->counts != NULL) {
        count_token(self->counts, args->vocabulary, tokens[accepted - 1]);
    }
    return accepted;
}

void
kern_sample_host(const void *args_void, kern_share_t *share)
{
    const kern_sample_args_t *args = args_void;
    require(args->vocabulary >= 1 && args->rows_per_request >= 1);
    require(args->workspace_size_bytes >=
            kern_sample_workspace_size_bytes(args->vocabulary, share->thread_count));
    request_t self = {
        .args = args,
        .table = kern_table(share->path),
        .scratch = scratch_of_thread(args, share->thread_index),
    };
    for (uint32_t request = kern_share_claim(share); request < args->bs;
         request = kern_share_claim(share)) {
        int32_t slot = args->slots[request];
        self.request = request;
        self.slot = slot >= 0 && (uint32_t)slot < args->pool.slot_count ? (uint32_t)slot : 0;
        self.counts = NULL;
        if (has_penalty(&args->pool, self.slot)) {
            self.counts = args->pool.counts + (size_t)self.slot * args->vocabulary;
        }
        args->accept_lengths[request] = (int32_t)sample_request(&self);
    }
}

void
kern_sample_counts_host(const void *args_void, kern_share_t *share)
{
    const kern_sample_counts_args_t *args = args_void;
    if (share->thread_index != 0) {
        return;
    }
    memset(args->counts, 0, args->vocabulary * sizeof *args->counts);
    for (uint32_t i = 0; i < args->token_count; i++) {
        int32_t token = args->tokens[i];
        if (token < 0 || (uint32_t)token >= args->vocabulary) {
            continue;
        }
        if (i < args->prompt_count) {
            args->counts[token] |= KERN_SAMPLE_COUNT_PROMPT;
        } else {
            count_token(args->counts, args->vocabulary, token);
        }
    }
}
