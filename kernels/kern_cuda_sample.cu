/* Sampling (kern_sample.h): a block for each request, its rows in order.
 *
 * Probabilities are summed as whole numbers, so that no sum depends on the order in which threads
 * come: a weight exp((z - max) / temperature), at most 1, counts as weight * 2^44.  Filters choose
 * by the bits of the floats, ties go to the lowest ids.
 * Long because the whole chain of filters runs in one launch. */
#include <math_constants.h>

#include "kern_cuda_common.cuh"
#include "kern_philox.h"

namespace {

constexpr int THREADS = 1024;
constexpr int WARPS = THREADS / 32;
constexpr int PARTS = 32; /* of a row that is searched by many blocks: one for each lane */
constexpr int SEARCHERS = 256;
constexpr float UNIT = 17592186044416.0f; /* 2^44; a vocabulary is at most 2^18 */

typedef unsigned long long mass_t;

/* A value and where it stands; the larger value wins, of equal ones the smaller place. */
struct best_t {
    float value;
    uint32_t at;
};

struct shared_t {
    best_t best[WARPS];
    mass_t masses[256];
    uint32_t counts[256];
    mass_t scan[WARPS];
    double sums[WARPS];
    mass_t mass;
    uint32_t number;
    uint32_t found;
    float limit;
};

/* One request while its rows are sampled. */
struct request_t {
    const kern_sample_args_t &a;
    shared_t &s;
    float *changed;      /* [vocabulary] */
    float *weights;      /* [vocabulary] */
    const best_t *parts; /* [rows][PARTS], what search_kernel found; nullptr = it did not run */
    uint32_t request;
    uint32_t slot;
    uint16_t *counts; /* nullptr without penalties */
};

__device__ __forceinline__ best_t
better(best_t a, best_t b)
{
    bool second = b.value > a.value || (b.value == a.value && b.at < a.at);
    return second ? b : a;
}

__device__ __forceinline__ best_t
warp_best(best_t best)
{
    for (int step = 16; step > 0; step /= 2) {
        best_t other = {__shfl_xor_sync(0xffffffffu, best.value, step),
                        __shfl_xor_sync(0xffffffffu, best.at, step)};
        best = better(best, other);
    }
    return best;
}

__device__ best_t
block_best(best_t best, shared_t &s)
{
    best = warp_best(best);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        s.best[threadIdx.x / 32] = best;
    }
    __syncthreads();
    best = s.best[0];
    for (int w = 1; w < WARPS; w++) {
        best = better(best, s.best[w]);
    }
    return best;
}

/* The largest value and the first place of it; *nan if any is not a number.  Eight loads are under
 * way at once. */
__device__ best_t
find_best(const float *z, uint32_t count, shared_t &s, bool *nan)
{
    constexpr int AHEAD = 8;
    best_t best = {-CUDART_INF_F, 0xffffffffu};
    bool bad = false;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS * AHEAD) {
        float values[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            values[j] = i + j * THREADS < count ? z[i + j * THREADS] : -CUDART_INF_F;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            bad = bad || values[j] != values[j];
            if (values[j] > best.value) {
                best = best_t{values[j], i + j * THREADS};
            }
        }
    }
    /* All -inf: the first. */
    best.at = best.at == 0xffffffffu ? threadIdx.x : best.at;
    *nan = __syncthreads_or(bad) != 0;
    return block_best(best, s);
}

/* The best of a part of each row, so that a row does not wait for one multiprocessor; its value is
 * not a number if any of the part is not. */
__global__ void
__launch_bounds__(SEARCHERS)
    search_kernel(const __grid_constant__ kern_sample_args_t a, best_t *parts)
{
    constexpr int AHEAD = 10;
    __shared__ best_t found[SEARCHERS / 32];
    uint32_t each = (a.vocabulary + PARTS - 1) / PARTS;
    uint32_t begin = min(blockIdx.x * each, a.vocabulary);
    uint32_t end = min(begin + each, a.vocabulary);
    const float *z = a.logits + blockIdx.y * a.logits_stride;
    pdl_trigger();
    pdl_wait();
    best_t best = {-CUDART_INF_F, 0xffffffffu};
    bool bad = false;
    for (uint32_t i = begin + threadIdx.x; i < end; i += SEARCHERS * AHEAD) {
        float values[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            values[j] = i + j * SEARCHERS < end ? z[i + j * SEARCHERS] : -CUDART_INF_F;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            bad = bad || values[j] != values[j];
            if (values[j] > best.value) {
                best = best_t{values[j], i + j * SEARCHERS};
            }
        }
    }
    best = warp_best(best);
    if (threadIdx.x % 32 == 0) {
        found[threadIdx.x / 32] = best;
    }
    bad = __syncthreads_or(bad) != 0;
    if (threadIdx.x == 0) {
        for (int w = 1; w < SEARCHERS / 32; w++) {
            best = better(best, found[w]);
        }
        best.value = bad ? CUDART_NAN_F : best.value;
        parts[blockIdx.y * PARTS + blockIdx.x] = best;
    }
}

/* The same as find_best() of the row, from its parts. */
__device__ best_t
merge_parts(const best_t *parts, bool *nan)
{
    best_t best = parts[threadIdx.x % 32];
    *nan = __any_sync(0xffffffffu, best.value != best.value) != 0;
    best = warp_best(best);
    best.at = best.at == 0xffffffffu ? 0 : best.at; /* all -inf: the first */
    return best;
}

/* Unsigned keys in the order of the floats (no NaN); -0 and 0 share one. */
__device__ __forceinline__ uint32_t
key_of(float value)
{
    uint32_t bits = __float_as_uint(value + 0.0f);
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float
value_of(uint32_t key)
{
    return __uint_as_float((key & 0x80000000u) ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ mass_t
mass_of(float weight)
{
    return (mass_t)__float2ull_rn(weight * UNIT);
}

__device__ mass_t
block_sum(mass_t value, shared_t &s)
{
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        s.scan[threadIdx.x / 32] = value;
    }
    __syncthreads();
    mass_t sum = 0;
    for (int w = 0; w < WARPS; w++) {
        sum += s.scan[w];
    }
    return sum;
}

/* The sum of the values of lower threads. */
__device__ mass_t
block_before(mass_t value, shared_t &s)
{
    mass_t sum = value;
    for (int step = 1; step < 32; step *= 2) {
        mass_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += threadIdx.x % 32 >= step ? other : 0;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31) {
        s.scan[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    mass_t before = 0;
    for (uint32_t w = 0; w < threadIdx.x / 32; w++) {
        before += s.scan[w];
    }
    return before + sum - value;
}

/* A run of ids for each thread, in order. */
__device__ __forceinline__ void
run_of(uint32_t vocabulary, uint32_t *begin, uint32_t *end)
{
    uint32_t each = (vocabulary + THREADS - 1) / THREADS;
    *begin = min(threadIdx.x * each, vocabulary);
    *end = min(*begin + each, vocabulary);
}

/* The id of the `wanted`-th (from 1) value that equals `limit`, by id; the last one if there are
 * fewer. */
__device__ uint32_t
find_equal(const float *values, uint32_t vocabulary, float limit, uint32_t wanted, shared_t &s)
{
    uint32_t begin;
    uint32_t end;
    run_of(vocabulary, &begin, &end);
    uint32_t mine = 0;
    for (uint32_t i = begin; i < end; i++) {
        mine += values[i] == limit;
    }
    uint32_t before = (uint32_t)block_before(mine, s);
    if (threadIdx.x == 0) {
        s.found = vocabulary;
    }
    __syncthreads();
    if (before < wanted && wanted <= before + mine) {
        uint32_t at = before;
        for (uint32_t i = begin; i < end; i++) {
            at += values[i] == limit;
            if (at == wanted) {
                s.found = i;
                break;
            }
        }
    }
    __syncthreads();
    return s.found;
}

/* The k-th largest value, eight bits of the key at a time; *equals = how many of its equals are
 * among the first k. */
__device__ float
kth_largest(const float *values, uint32_t vocabulary, uint32_t k, shared_t &s, uint32_t *equals)
{
    uint32_t prefix = 0;
    uint32_t mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) {
            s.counts[threadIdx.x] = 0;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < vocabulary; i += THREADS) {
            uint32_t key = key_of(values[i]);
            if ((key & mask) == prefix) {
                atomicAdd(&s.counts[(key >> shift) & 255u], 1u);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t bin = 255;
            while (bin > 0 && s.counts[bin] < k) {
                k -= s.counts[bin];
                bin--;
            }
            s.found = bin;
            s.number = k;
        }
        __syncthreads();
        prefix |= s.found << shift;
        mask |= 255u << shift;
        k = s.number;
        __syncthreads();
    }
    *equals = k;
    return value_of(prefix);
}

/* The weight at which the weights, from the largest down, reach the mass `target`; *above is the
 * mass of the larger ones. */
__device__ float
mass_limit(const float *weights, uint32_t vocabulary, mass_t target, shared_t &s, mass_t *above)
{
    uint32_t prefix = 0;
    uint32_t mask = 0;
    mass_t passed = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) {
            s.masses[threadIdx.x] = 0;
            s.counts[threadIdx.x] = 0;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < vocabulary; i += THREADS) {
            uint32_t key = key_of(weights[i]);
            if (weights[i] >= 0.0f && (key & mask) == prefix) {
                atomicAdd(&s.masses[(key >> shift) & 255u], mass_of(weights[i]));
                atomicAdd(&s.counts[(key >> shift) & 255u], 1u);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            mass_t sum = passed;
            for (uint32_t bin = 256; bin-- > 0;) {
                if (s.counts[bin] == 0) {
                    continue;
                }
                s.found = bin;
                s.mass = sum;
                if (sum + s.masses[bin] >= target) {
                    break;
                }
                sum += s.masses[bin];
            }
        }
        __syncthreads();
        passed = s.mass;
        prefix |= s.found << shift;
        mask |= 255u << shift;
        __syncthreads();
    }
    *above = passed;
    return value_of(prefix);
}

/* ---- one row --------------------------------------------------------------------------------- */

__device__ void
apply_penalties(const request_t &self)
{
    const kern_sample_pool_t &pool = self.a.pool;
    float repetition = pool.repetition_penalty[self.slot];
    float presence = pool.presence_penalty[self.slot];
    float frequency = pool.frequency_penalty[self.slot];
    repetition = repetition > 0.0f ? repetition : 1.0f;
    for (uint32_t id = threadIdx.x; id < self.a.vocabulary; id += THREADS) {
        uint16_t count = self.counts[id];
        if (count == 0) {
            continue;
        }
        float z = self.changed[id];
        z = z > 0.0f ? z / repetition : z * repetition;
        uint32_t generated = count & KERN_SAMPLE_COUNT_GENERATED;
        if (generated > 0) {
            z -= presence + frequency * (float)generated;
        }
        self.changed[id] = z;
    }
}

/* The logits to draw from: the raw ones, or a changed copy. */
__device__ const float *
changed_logits(const request_t &self, const float *logits, int64_t position)
{
    const kern_sample_pool_t &pool = self.a.pool;
    uint32_t vocabulary = self.a.vocabulary;
    uint32_t biases = pool.bias_counts != nullptr ? pool.bias_counts[self.slot] : 0;
    uint32_t banned = 0;
    if (pool.banned_counts != nullptr && position < pool.banned_until[self.slot]) {
        banned = pool.banned_counts[self.slot];
    }
    biases = min(biases, (uint32_t)KERN_SAMPLE_BIAS_MAX);
    banned = min(banned, (uint32_t)KERN_SAMPLE_BANNED_MAX);
    if (biases == 0 && banned == 0 && self.counts == nullptr) {
        return logits;
    }
    for (uint32_t i = threadIdx.x; i < vocabulary; i += THREADS) {
        self.changed[i] = logits[i];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < biases; i += THREADS) {
        int32_t id = pool.bias_ids[self.slot * KERN_SAMPLE_BIAS_MAX + i];
        if (id >= 0 && (uint32_t)id < vocabulary) {
            atomicAdd(&self.changed[id], pool.bias_values[self.slot * KERN_SAMPLE_BIAS_MAX + i]);
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < banned; i += THREADS) {
        int32_t id = pool.banned_ids[self.slot * KERN_SAMPLE_BANNED_MAX + i];
        if (id >= 0 && (uint32_t)id < vocabulary) {
            self.changed[id] = -CUDART_INF_F;
        }
    }
    __syncthreads();
    if (self.counts != nullptr) {
        apply_penalties(self);
        __syncthreads();
    }
    return self.changed;
}

/* Sets to -1 the weights that a filter drops: those below `limit`, and those equal to it with an id
 * above `last`. */
__device__ void
drop_below(const request_t &self, const float *values, float limit, uint32_t last)
{
    for (uint32_t i = threadIdx.x; i < self.a.vocabulary; i += THREADS) {
        if (values[i] < limit || (values[i] == limit && i > last)) {
            self.weights[i] = -1.0f;
        }
    }
    __syncthreads();
}

__device__ mass_t
mass_of_all(const request_t &self)
{
    mass_t mine = 0;
    for (uint32_t i = threadIdx.x; i < self.a.vocabulary; i += THREADS) {
        mine += self.weights[i] > 0.0f ? mass_of(self.weights[i]) : 0;
    }
    return block_sum(mine, self.s);
}

/* The id at `coin` of the masses in the order of ids. */
__device__ uint32_t
draw(const request_t &self, mass_t total, double coin)
{
    shared_t &s = self.s;
    mass_t target = (mass_t)(coin * (double)total);
    uint32_t begin;
    uint32_t end;
    run_of(self.a.vocabulary, &begin, &end);
    mass_t mine = 0;
    for (uint32_t i = begin; i < end; i++) {
        mine += self.weights[i] > 0.0f ? mass_of(self.weights[i]) : 0;
    }
    mass_t before = block_before(mine, s);
    if (threadIdx.x == 0) {
        s.found = 0;
    }
    __syncthreads();
    if (before <= target && target < before + mine) {
        for (uint32_t i = begin; i < end; i++) {
            before += self.weights[i] > 0.0f ? mass_of(self.weights[i]) : 0;
            if (target < before) {
                s.found = i;
                break;
            }
        }
    }
    __syncthreads();
    return s.found;
}

__device__ uint32_t
draw_token(const request_t &self, const float *z, float top, double coin)
{
    const kern_sample_pool_t &pool = self.a.pool;
    uint32_t vocabulary = self.a.vocabulary;
    float scale = 1.0f / pool.temperature[self.slot];
    float shift = __fmul_rn(top, scale);
    for (uint32_t i = threadIdx.x; i < vocabulary; i += THREADS) {
        self.weights[i] = expf(__fsub_rn(__fmul_rn(z[i], scale), shift));
    }
    __syncthreads();
    int32_t top_k = pool.top_k[self.slot];
    if (top_k > 0 && (uint32_t)top_k < vocabulary) {
        uint32_t equals;
        float limit = kth_largest(z, vocabulary, (uint32_t)top_k, self.s, &equals);
        drop_below(self, z, limit, find_equal(z, vocabulary, limit, equals, self.s));
    }
    mass_t total = mass_of_all(self);
    double top_p = (double)pool.top_p[self.slot];
    if (top_p > 0.0 && top_p < 1.0) {
        mass_t target = (mass_t)(top_p * (double)total);
        target = target > 0 ? target : 1;
        mass_t above;
        float limit = mass_limit(self.weights, vocabulary, target, self.s, &above);
        mass_t each = mass_of(limit);
        mass_t equals = above < target && each > 0 ? (target - above + each - 1) / each : 1;
        equals = equals < vocabulary ? equals : vocabulary;
        drop_below(self, self.weights, limit,
                   find_equal(self.weights, vocabulary, limit, (uint32_t)equals, self.s));
        total = mass_of_all(self);
    }
    float min_p = pool.min_p[self.slot];
    if (min_p > 0.0f) {
        drop_below(self, self.weights, fminf(min_p, 1.0f), vocabulary);
        total = mass_of_all(self);
    }
    return draw(self, total, coin);
}

/* Log softmax of the raw logits: the sampled token first, then the top, largest first. */
__device__ void
write_logprobs(const request_t &self, const float *logits, float top, size_t row, uint32_t token)
{
    const kern_sample_args_t &a = self.a;
    uint32_t wanted = a.pool.logprobs != nullptr ? a.pool.logprobs[self.slot] : 0;
    if (wanted == 0 || a.logprob_ids == nullptr || a.logprob_values == nullptr) {
        return;
    }
    wanted = min(wanted, (uint32_t)KERN_SAMPLE_LOGPROBS_WIDTH);
    double sum = 0.0;
    for (uint32_t i = threadIdx.x; i < a.vocabulary; i += THREADS) {
        sum += (double)expf(logits[i] - top);
    }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (threadIdx.x % 32 == 0) {
        self.s.sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    double total = 0.0;
    for (int w = 0; w < WARPS; w++) {
        total += self.s.sums[w];
    }
    double normaliser = (double)top + log(total);
    int32_t *ids = a.logprob_ids + row * KERN_SAMPLE_LOGPROBS_WIDTH;
    float *values = a.logprob_values + row * KERN_SAMPLE_LOGPROBS_WIDTH;
    if (threadIdx.x == 0) {
        ids[0] = (int32_t)token;
        values[0] = (float)((double)logits[token] - normaliser);
    }
    best_t last = {CUDART_INF_F, 0};
    uint32_t count = min(wanted - 1, a.vocabulary);
    for (uint32_t place = 1; place <= count; place++) {
        best_t best = {-CUDART_INF_F, 0xffffffffu};
        for (uint32_t i = threadIdx.x; i < a.vocabulary; i += THREADS) {
            float value = logits[i];
            bool is_after =
                place == 1 || value < last.value || (value == last.value && i > last.at);
            best = is_after ? better(best, best_t{value, i}) : best;
        }
        last = block_best(best, self.s);
        if (threadIdx.x == 0 && last.at < a.vocabulary) {
            ids[place] = (int32_t)last.at;
            values[place] = (float)((double)last.value - normaliser);
        }
    }
}

__device__ void
count_token(const request_t &self, int32_t token)
{
    if (self.counts != nullptr && token >= 0 && (uint32_t)token < self.a.vocabulary &&
        (self.counts[token] & KERN_SAMPLE_COUNT_GENERATED) != KERN_SAMPLE_COUNT_GENERATED) {
        self.counts[token]++;
    }
}

/* Whether the next row counts: it computed the candidate, the row drew that token, and no end of
 * the request or of its numbers stands between. */
__device__ bool
goes_on(const request_t &self, int64_t position, int32_t candidate, uint32_t token)
{
    const kern_sample_pool_t &pool = self.a.pool;
    bool is_stop = false;
    if (pool.banned_counts != nullptr && position >= pool.banned_until[self.slot]) {
        for (uint32_t i = 0; i < pool.banned_counts[self.slot]; i++) {
            int32_t id = pool.banned_ids[self.slot * KERN_SAMPLE_BANNED_MAX + i];
            is_stop = is_stop || id == (int32_t)token;
        }
    }
    return candidate >= 0 && (uint32_t)candidate == token && !is_stop;
}

/* Gives a row its token; whether the next row counts. */
__device__ bool
sample_row(const request_t &self, uint32_t column, int32_t candidate)
{
    const kern_sample_args_t &a = self.a;
    const kern_sample_pool_t &pool = a.pool;
    size_t row = (size_t)self.request * a.rows_per_request + column;
    const float *logits = a.logits + row * a.logits_stride;
    int64_t position = (int64_t)a.seq_lens[self.request] - a.rows_per_request + (int64_t)column + 1;
    bool nan;
    best_t raw = self.parts != nullptr ? merge_parts(self.parts + row * PARTS, &nan)
                                       : find_best(logits, a.vocabulary, self.s, &nan);
    if (threadIdx.x == 0) {
        a.flags[row] = nan ? KERN_SAMPLE_FLAG_NAN : 0;
    }
    if (nan) {
        if (threadIdx.x == 0) {
            a.tokens[row] = 0;
        }
        return false;
    }
    const float *z = changed_logits(self, logits, position);
    best_t top = raw;
    if (z != logits) {
        top = find_best(z, a.vocabulary, self.s, &nan);
    }
    /* Infinite logits leave nothing to divide by: the first of the largest. */
    bool greedy =
        pool.top_k[self.slot] == 1 || !(pool.temperature[self.slot] >= 1e-6f) || isinf(top.value);
    uint32_t token = top.at < a.vocabulary ? top.at : 0;
    if (!greedy) {
        double coin =
            kern_philox_uniform(pool.seed[self.slot], (uint64_t)position, KERN_PHILOX_SAMPLE, 0);
        token = draw_token(self, z, top.value, coin);
    }
    if (threadIdx.x == 0) {
        a.tokens[row] = (int32_t)token;
    }
    write_logprobs(self, logits, raw.value, row, token);
    if (threadIdx.x == 0) {
        count_token(self, (int32_t)token);
    }
    return goes_on(self, position, candidate, token);
}

/* Samples the rows in order, as long as they count. */
__device__ void
sample_request(const request_t &self)
{
    const kern_sample_args_t &a = self.a;
    uint32_t width = a.rows_per_request;
    size_t first = (size_t)self.request * width;
    uint32_t accepted = 0;
    bool counts = true;
    while (counts) {
        int32_t candidate = accepted + 1 < width ? a.candidates[first + accepted + 1] : -1;
        counts = sample_row(self, accepted, candidate);
        accepted++;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        for (uint32_t column = accepted; column < width; column++) {
            a.tokens[first + column] = -1;
            a.flags[first + column] = 0;
        }
        a.accept_lengths[self.request] = (int32_t)accepted;
    }
}

__global__ void
__launch_bounds__(THREADS)
    sample_kernel(const __grid_constant__ kern_sample_args_t a, const best_t *parts)
{
    __shared__ shared_t shared;
    size_t stride = ((size_t)a.vocabulary + 15) / 16 * 16;
    float *scratch = static_cast<float *>(a.workspace) + blockIdx.x * 2 * stride;
    pdl_trigger();
    pdl_wait();
    for (uint32_t request = blockIdx.x; request < a.bs; request += gridDim.x) {
        int32_t slot = a.slots[request];
        uint32_t own = slot >= 0 && (uint32_t)slot < a.pool.slot_count ? (uint32_t)slot : 0;
        float repetition = a.pool.repetition_penalty[own];
        bool has_penalty = a.pool.counts != nullptr && ((repetition > 0.0f && repetition != 1.0f) ||
                                                        a.pool.presence_penalty[own] != 0.0f ||
                                                        a.pool.frequency_penalty[own] != 0.0f);
        request_t self = {
            a,       shared,
            scratch, scratch + stride,
            parts,   request,
            own,     has_penalty ? a.pool.counts + (size_t)own * a.vocabulary : nullptr};
        sample_request(self);
    }
}

__global__ void
count_clear_kernel(const __grid_constant__ kern_sample_counts_args_t a)
{
    uint32_t id = blockIdx.x * blockDim.x + threadIdx.x;
    pdl_trigger();
    pdl_wait();
    if (id < a.vocabulary) {
        a.counts[id] = 0;
    }
}

__global__ void
count_kernel(const __grid_constant__ kern_sample_counts_args_t a)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    pdl_trigger();
    pdl_wait();
    if (i >= a.token_count) {
        return;
    }
    int32_t token = a.tokens[i];
    if (token < 0 || (uint32_t)token >= a.vocabulary) {
        return;
    }
    unsigned short *count = reinterpret_cast<unsigned short *>(a.counts + token);
    unsigned short old = *reinterpret_cast<volatile unsigned short *>(count);
    for (;;) {
        unsigned short next = old;
        if (i < a.prompt_count) {
            next |= KERN_SAMPLE_COUNT_PROMPT;
        } else if ((old & KERN_SAMPLE_COUNT_GENERATED) != KERN_SAMPLE_COUNT_GENERATED) {
            next++;
        }
        unsigned short seen = atomicCAS(count, old, next);
        if (seen == old) {
            return;
        }
        old = seen;
    }
}

} // namespace

int
kern_sample_cuda(const kern_sample_args_t *args, const kern_cuda_where_t *where)
{
    if (args->bs == 0) {
        return 0;
    }
    size_t each = ((size_t)args->vocabulary + 15) / 16 * 16 * 2 * sizeof(float);
    size_t samplers = args->workspace_size_bytes / each;
    samplers = samplers < args->bs ? samplers : args->bs;
    if (samplers == 0 || args->vocabulary > 1u << 18 ||
        (args->candidates == NULL && args->rows_per_request > 1)) {
        return (int)cudaErrorInvalidValue;
    }
    if (args->rows_per_request > 1 && args->verify != KERN_SAMPLE_VERIFY_CHAIN) {
        return (int)cudaErrorNotSupported;
    }
    kern_cuda_launch_t how = {};
    how.threads = SEARCHERS;
    how.pdl = where->pdl;
    how.stream = where->stream;
    /* The parts lie at the end of the workspace, behind what the samplers have. */
    uint32_t rows = args->bs * args->rows_per_request;
    size_t parts_bytes = ((size_t)rows * PARTS * sizeof(best_t) + 63) / 64 * 64;
    best_t *parts = nullptr;
    if (samplers * each + parts_bytes + 64 <= args->workspace_size_bytes && rows <= 65535) {
        size_t at = (args->workspace_size_bytes - parts_bytes) / 64 * 64;
        parts = reinterpret_cast<best_t *>(static_cast<uint8_t *>(args->workspace) + at);
        how.grid = dim3(PARTS, rows);
        int status = launch(search_kernel, how, *args, parts);
        if (status != 0) {
            return status;
        }
    }
    how.grid = dim3((uint32_t)samplers);
    how.threads = THREADS;
    return launch(sample_kernel, how, *args, (const best_t *)parts);
}

int
kern_sample_counts_cuda(const kern_sample_counts_args_t *args, const kern_cuda_where_t *where)
{
    kern_cuda_launch_t how = {};
    how.grid = dim3((args->vocabulary + 255) / 256);
    how.threads = 256;
    how.pdl = where->pdl;
    how.stream = where->stream;
    int status = launch(count_clear_kernel, how, *args);
    if (status != 0 || args->token_count == 0) {
        return status;
    }
    how.grid = dim3((args->token_count + 255) / 256);
    return launch(count_kernel, how, *args);
}
