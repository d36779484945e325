#include "kern_sample.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kern_philox.h"
#include "kern_select.h"
#include "proto_require.h"

/* A thread's part of the workspace: everything for one row. */
typedef struct {
    float *changed;       /* [vocabulary] logits after bias and penalties */
    float *weights;       /* [vocabulary] exp((z - max) / temperature), at the candidate's place */
    uint32_t *candidates; /* [vocabulary] ids, ascending */
    float *maxima;        /* [kern_select_maxima_count()] */
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
    return 3 * row + round_up64(kern_select_maxima_count(vocabulary) * 4) +
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
    at += 3 * row + round_up64(kern_select_maxima_count(args->vocabulary) * 4);
    scratch.sums = (float *)(void *)at;
    return scratch;
}

static kern_select_t
selection(const request_t *self)
{
    kern_select_t select = {
        .table = self->table,
        .vocabulary = self->args->vocabulary,
        .ids = self->scratch.candidates,
        .values = self->scratch.weights,
        .maxima = self->scratch.maxima,
    };
    return select;
}

/* ---- bias, bans, penalties ------------------------------------------------------------------- */

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

/* ---- the target's distribution --------------------------------------------------------------- */

/* What the filters left of a row, in the scratch: weights over the whole vocabulary, or over
 * `count` candidates. */
typedef struct {
    bool is_whole;
    uint32_t count;
    double total; /* sum of the weights */
} kept_t;

static double
sum_of(const float *weights, uint32_t count)
{
    double total = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += (double)weights[i];
    }
    return total;
}

/* The first of the largest, alone. */
static kept_t
keep_first(const request_t *self, const float *z, float top)
{
    kept_t kept = {.count = 1, .total = 1.0};
    self->scratch.candidates[0] = self->table->find(z, self->args->vocabulary, top);
    self->scratch.weights[0] = 1.0f;
    return kept;
}

static uint32_t
keep_min_p(const scratch_t *scratch, uint32_t count, float min_p)
{
    /* The largest weight is 1. */
    float limit = min_p < 1.0f ? min_p : 1.0f;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (scratch->weights[i] >= limit) {
            scratch->candidates[kept] = scratch->candidates[i];
            scratch->weights[kept++] = scratch->weights[i];
        }
    }
    return kept;
}

/* Temperature, top_k, top_p, min_p. */
static kept_t
filter(const request_t *self, const float *z, float top)
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
    kept_t kept = {0};
    double total;
    /* The set of one needs no search; infinite logits leave nothing to divide by. */
    if (top_k == 1 || !(pool->temperature[self->slot] >= 1e-6f) || isinf(top)) {
        return keep_first(self, z, top);
    }
    if (top_k > 0 && (uint32_t)top_k < vocabulary) {
        kern_select_t select = selection(self);
        kept.count = kern_select_likely_top(&select, z, (uint32_t)top_k);
        kept.count = kern_select_keep_top_k(&select, z, kept.count, (uint32_t)top_k);
        for (uint32_t i = 0; i < kept.count; i++) {
            scratch->weights[i] = z[scratch->candidates[i]];
        }
        total = self->table->exp_row(scratch->weights, kept.count, scale, shift, scratch->weights,
                                     NULL);
    } else {
        total = self->table->exp_row(z, vocabulary, scale, shift, scratch->weights, scratch->sums);
        if (!use_top_p && !(min_p > 0.0f)) {
            kept.is_whole = true;
            kept.total = total;
            return kept;
        }
        /* Weights below (1 - p) * total / n together miss less than 1 - p, so the smallest set of
         * mass p lies above; a little less, for rounding. */
        float limit = 0.0f;
        if (use_top_p) {
            limit = (float)((1.0 - top_p) * total / (double)vocabulary * 0.999);
        }
        limit = !use_top_p && min_p > limit ? (min_p < 1.0f ? min_p : 1.0f) : limit;
        kept.count = self->table->select_ge(scratch->weights, vocabulary, limit,
                                            scratch->candidates, vocabulary);
        for (uint32_t i = 0; i < kept.count; i++) {
            scratch->weights[i] = scratch->weights[scratch->candidates[i]];
        }
    }
    if (use_top_p) {
        kept.count = kern_select_keep_top_p(scratch->candidates, scratch->weights, kept.count,
                                            top_p * total);
    }
    if (min_p > 0.0f) {
        kept.count = keep_min_p(scratch, kept.count, min_p);
    }
    kept.total = sum_of(scratch->weights, kept.count);
    return kept;
}

/* The id at `coin` of the cumulative weights of the candidates. */
static uint32_t
draw_candidate(const scratch_t *scratch, const kept_t *kept, double coin)
{
    double left = coin * kept->total;
    uint32_t last = 0;
    for (uint32_t i = 0; i < kept->count; i++) {
        if (scratch->weights[i] > 0.0f) {
            last = i;
            left -= (double)scratch->weights[i];
            if (left < 0.0) {
                break;
            }
        }
    }
    return scratch->candidates[last];
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
draw(const request_t *self, const kept_t *kept, double coin)
{
    if (kept->is_whole) {
        return draw_any(&self->scratch, self->args->vocabulary, kept->total, coin);
    }
    return draw_candidate(&self->scratch, kept, coin);
}

/* Where the token's weight lies; NULL if the filters dropped it. */
static float *
weight_of(const request_t *self, const kept_t *kept, uint32_t token)
{
    const scratch_t *scratch = &self->scratch;
    if (kept->is_whole) {
        return &scratch->weights[token];
    }
    for (uint32_t i = 0; i < kept->count; i++) {
        if (scratch->candidates[i] == token) {
            return &scratch->weights[i];
        }
    }
    return NULL;
}

/* Takes a token out of the distribution: what is left is the residual. */
static void
remove_token(const request_t *self, kept_t *kept, uint32_t token)
{
    const scratch_t *scratch = &self->scratch;
    float *weight = weight_of(self, kept, token);
    if (weight == NULL) {
        return;
    }
    *weight = 0.0f;
    if (!kept->is_whole) {
        kept->total = sum_of(scratch->weights, kept->count);
        return;
    }
    uint32_t vocabulary = self->args->vocabulary;
    uint32_t block = token / KERN_EXP_BLOCK;
    uint32_t begin = block * KERN_EXP_BLOCK;
    uint32_t count = vocabulary - begin < KERN_EXP_BLOCK ? vocabulary - begin : KERN_EXP_BLOCK;
    scratch->sums[block] = (float)sum_of(scratch->weights + begin, count);
    kept->total = sum_of(scratch->sums, (vocabulary + KERN_EXP_BLOCK - 1) / KERN_EXP_BLOCK);
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Target-only rejection: the candidate stands with the target's own probability of it; if it does
 * not, the token comes from what is left.  Together that is the target's distribution, whatever
 * proposed the candidate. */
static uint32_t
verify_by_rejection(const request_t *self, kept_t *kept, int64_t position, uint32_t candidate)
{
    uint64_t seed = self->args->pool.seed[self->slot];
    const float *weight = weight_of(self, kept, candidate);
    double probability = weight != NULL ? (double)*weight / kept->total : 0.0;
    if (kern_philox_uniform(seed, (uint64_t)position, KERN_PHILOX_VERIFY, 0) < probability) {
        return candidate;
    }
    remove_token(self, kept, candidate);
    return draw(self, kept, kern_philox_uniform(seed, (uint64_t)position, KERN_PHILOX_RESIDUAL, 0));
}

/* The token of one row.  Only rejection looks at the candidate. */
static uint32_t
choose_token(const request_t *self, const float *z, float top, int64_t position, int32_t candidate)
{
    const kern_sample_args_t *args = self->args;
    const kern_sample_pool_t *pool = &args->pool;
    kept_t kept = filter(self, z, top);
    if (args->verify == KERN_SAMPLE_VERIFY_REJECTION && candidate >= 0 &&
        (uint32_t)candidate < args->vocabulary) {
        return verify_by_rejection(self, &kept, position, (uint32_t)candidate);
    }
    return draw(self, &kept,
                kern_philox_uniform(pool->seed[self->slot], (uint64_t)position, KERN_PHILOX_SAMPLE,
                                    0));
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
    kern_select_t select = selection(self);
    uint32_t count = kern_select_likely_top(&select, logits, top_count);
    count = kern_select_keep_top_k(&select, logits, count, top_count);
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
count_token(uint16_t *counts, uint32_t vocabulary, int32_t token)
{
    if (token < 0 || (uint32_t)token >= vocabulary) {
        return;
    }
    if ((counts[token] & KERN_SAMPLE_COUNT_GENERATED) != KERN_SAMPLE_COUNT_GENERATED) {
        counts[token]++;
    }
}

/* Whether the token ends the request, and so the window. */
static bool
is_stop(const request_t *self, uint32_t token, int64_t position)
{
    const kern_sample_pool_t *pool = &self->args->pool;
    if (pool->banned_counts == NULL || position < pool->banned_until[self->slot]) {
        return false;
    }
    for (uint32_t i = 0; i < pool->banned_counts[self->slot]; i++) {
        if (pool->banned_ids[self->slot * KERN_SAMPLE_BANNED_MAX + i] == (int32_t)token) {
            return true;
        }
    }
    return false;
}

/* Samples one row; `candidate` is what was proposed for its token, -1 = nothing.  Returns whether
 * the next row counts: the candidate is the token, and the request goes on behind it. */
static bool
sample_row(const request_t *self, uint32_t column, int32_t candidate)
{
    const kern_sample_args_t *args = self->args;
    size_t row = (size_t)self->request * args->rows_per_request + column;
    const float *logits = args->logits + row * args->logits_stride;
    int64_t position = (int64_t)args->seq_lens[self->request] - args->rows_per_request + column + 1;
    bool nan;
    float raw_top = self->table->max_row(logits, args->vocabulary, &nan);
    args->flags[row] = nan ? KERN_SAMPLE_FLAG_NAN : 0;
    if (nan) {
        args->tokens[row] = 0;
        return false;
    }
    const float *z = changed_logits(self, logits, position);
    float top = raw_top;
    if (z != logits) {
        top = self->table->max_row(z, args->vocabulary, &nan);
    }
    uint32_t token = choose_token(self, z, top, position, candidate);
    args->tokens[row] = (int32_t)token;
    write_logprobs(self, logits, raw_top, row, token);
    if (self->counts != NULL) {
        count_token(self->counts, args->vocabulary, (int32_t)token);
    }
    return candidate == (int32_t)token && !is_stop(self, token, position);
}

/* ---- one request ----------------------------------------------------------------------------- */

/* Samples the rows in order, as long as they count: a row's token is generated when the next row is
 * sampled, so penalties see it.  Rows behind the last one are left alone. */
static uint32_t
sample_request(const request_t *self)
{
    const kern_sample_args_t *args = self->args;
    uint32_t width = args->rows_per_request;
    size_t first = (size_t)self->request * width;
    const int32_t *candidates = args->candidates != NULL ? args->candidates + first : NULL;
    require(candidates != NULL || width == 1);
    uint32_t accepted = 0;
    bool goes_on = true;
    while (goes_on) {
        int32_t candidate = accepted + 1 < width ? candidates[accepted + 1] : -1;
        goes_on = sample_row(self, accepted, candidate);
        accepted++;
    }
    for (uint32_t column = accepted; column < width; column++) {
        args->tokens[first + column] = -1;
        args->flags[first + column] = 0;
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
