#include "kern_moe.h"

#include <math.h>
#include <string.h>

#include "kern_table.h"
#include "proto_require.h"

enum {
    ROWS_OF_ROUTE = 16, /* rows of a claim */
    ROWS_OF_CHUNK = 32, /* pairs of an expert that one claim takes */
    OUTPUTS_OF_TILE = 16,
    TILES_OF_CHUNK = 4,
    COLS_OF_COMBINE = 512,
    RESULT_COUNT = ROWS_OF_CHUNK * OUTPUTS_OF_TILE,
};

/* A thread's scratch during one claim of a product. */
typedef struct {
    float gate[RESULT_COUNT];
    float up[RESULT_COUNT];
    float input[];
} scratch_t;

_Static_assert(sizeof(scratch_t) + KERN_MOE_COLS_MAX * sizeof(float) <= KERN_SCRATCH_SIZE_BYTES,
               "results and one row of input must fit the scratch");

/* ---- router ---------------------------------------------------------------------------------- */

/* Whether a logit goes before another one of a smaller index. */
static bool
goes_before(float logit, float other)
{
    return logit > other || (isnan(logit) && !isnan(other));
}

/* Keeps the best so far in order; a row has few choices, so inserting is fast.  keys[i] is what
 * choice i was made by.  Experts begin..end - 1 may be chosen; returns how many are. */
static uint32_t
choose_among(const float *scores, uint32_t begin, uint32_t end, uint32_t top_k, uint32_t count,
             int32_t *experts, float *keys)
{
    for (uint32_t expert = begin; expert < end; expert++) {
        float score = scores[expert];
        if (count == top_k && !goes_before(score, keys[count - 1])) {
            continue;
        }
        uint32_t at = count < top_k ? count++ : count - 1;
        for (; at > 0 && goes_before(score, keys[at - 1]); at--) {
            keys[at] = keys[at - 1];
            experts[at] = experts[at - 1];
        }
        keys[at] = score;
        experts[at] = (int32_t)expert;
    }
    return count;
}

static void
choose_softmax(const kern_moe_route_args_t *args, uint32_t row)
{
    const float *logits = args->logits + row * args->logit_stride;
    int32_t *experts = args->experts + (size_t)row * args->top_k;
    float *weights = args->weights + (size_t)row * args->top_k;
    (void)choose_among(logits, 0, args->expert_count, args->top_k, 0, experts, weights);
    float top = weights[0];
    float sum = 0.0f;
    for (uint32_t i = 0; i < args->top_k; i++) {
        weights[i] = expf(weights[i] - top);
        sum += weights[i];
    }
    for (uint32_t i = 0; i < args->top_k; i++) {
        weights[i] /= sum;
    }
}

/* The groups whose two best experts have the largest sums, and of those the best experts. */
static void
choose_in_groups(const kern_moe_route_args_t *args, const float *keys, int32_t *experts)
{
    float sums[KERN_MOE_EXPERTS_MAX];
    float best_sums[KERN_MOE_EXPERTS_MAX];
    int32_t groups[KERN_MOE_EXPERTS_MAX];
    float best_keys[KERN_MOE_TOP_K_MAX];
    uint32_t size = args->expert_count / args->group_count;
    bool is_used[KERN_MOE_EXPERTS_MAX] = {false};
    for (uint32_t group = 0; group < args->group_count; group++) {
        int32_t two[2];
        (void)choose_among(keys, group * size, (group + 1) * size, 2, 0, two, best_keys);
        sums[group] = best_keys[0] + best_keys[1];
    }
    (void)choose_among(sums, 0, args->group_count, args->group_used_count, 0, groups, best_sums);
    for (uint32_t i = 0; i < args->group_used_count; i++) {
        is_used[groups[i]] = true;
    }
    uint32_t count = 0;
    for (uint32_t group = 0; group < args->group_count; group++) {
        if (is_used[group]) { /* in order, so that the smaller index wins among equals */
            count = choose_among(keys, group * size, (group + 1) * size, args->top_k, count,
                                 experts, best_keys);
        }
    }
}

static void
choose_sigmoid(const kern_moe_route_args_t *args, const kern_table_t *table, uint32_t row)
{
    float scores[KERN_MOE_EXPERTS_MAX];
    float keys[KERN_MOE_EXPERTS_MAX];
    float best_keys[KERN_MOE_TOP_K_MAX];
    int32_t *experts = args->experts + (size_t)row * args->top_k;
    float *weights = args->weights + (size_t)row * args->top_k;
    (void)table->exp_row(args->logits + row * args->logit_stride, args->expert_count, -1.0f, 0.0f,
                         scores, NULL);
    for (uint32_t i = 0; i < args->expert_count; i++) {
        scores[i] = 1.0f / (1.0f + scores[i]);
        keys[i] = args->select_bias != NULL ? scores[i] + args->select_bias[i] : scores[i];
    }
    if (args->group_count > 1) {
        choose_in_groups(args, keys, experts);
    } else {
        (void)choose_among(keys, 0, args->expert_count, args->top_k, 0, experts, best_keys);
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < args->top_k; i++) {
        weights[i] = scores[experts[i]];
        sum += weights[i];
    }
    float divisor = args->is_normalised ? sum + 1e-20f : 1.0f;
    for (uint32_t i = 0; i < args->top_k; i++) {
        weights[i] = weights[i] / divisor * args->weight_scale;
    }
}

/* A stable sort by counting. */
static void
sort_pairs(const kern_moe_route_args_t *args)
{
    uint32_t pair_count = args->rows * args->top_k;
    int32_t next[KERN_MOE_EXPERTS_MAX];
    memset(args->offsets, 0, (args->expert_count + 1) * sizeof *args->offsets);
    for (uint32_t pair = 0; pair < pair_count; pair++) {
        args->offsets[args->experts[pair] + 1]++;
    }
    for (uint32_t expert = 0; expert < args->expert_count; expert++) {
        next[expert] = args->offsets[expert];
        args->offsets[expert + 1] += args->offsets[expert];
    }
    for (uint32_t pair = 0; pair < pair_count; pair++) {
        args->order[next[args->experts[pair]]++] = (int32_t)pair;
    }
}

void
kern_moe_route_host(const void *args_void, kern_share_t *share)
{
    const kern_moe_route_args_t *args = args_void;
    require(args->expert_count >= 1 && args->expert_count <= KERN_MOE_EXPERTS_MAX);
    require(args->top_k >= 1 && args->top_k <= KERN_MOE_TOP_K_MAX);
    require(args->top_k <= args->expert_count);
    require(args->rows <= (uint32_t)INT32_MAX / args->top_k);
    bool is_softmax = args->scoring == KERN_MOE_SOFTMAX;
    if (!is_softmax && args->group_count > 1) {
        uint32_t size = args->expert_count / args->group_count;
        require(args->expert_count % args->group_count == 0);
        require(size >= 2);
        require(args->group_used_count >= 1 && args->group_used_count <= args->group_count);
        require(args->group_used_count * size >= args->top_k);
    }
    for (uint32_t first = kern_share_claim(share) * ROWS_OF_ROUTE; first < args->rows;
         first = kern_share_claim(share) * ROWS_OF_ROUTE) {
        for (uint32_t row = first; row < args->rows && row < first + ROWS_OF_ROUTE; row++) {
            if (is_softmax) {
                choose_softmax(args, row);
            } else {
                choose_sigmoid(args, kern_table(share->path), row);
            }
        }
    }
    kern_share_sync(share);
    if (share->thread_index == 0) {
        sort_pairs(args);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* What both products are made of; `second` NULL: one matrix. */
typedef struct {
    const kern_expert_rows_t *pairs;
    const float *input;
    size_t input_stride;
    uint32_t input_divisor;
    const kern_expert_weight_t *first;
    const kern_expert_weight_t *second;
    kern_expert_bend_t bend;
    float alpha;
    float limit;
    float *output;
    size_t output_stride;
    const kern_table_t *table;
} product_t;

static void
check_weight(const kern_expert_weight_t *weight)
{
    require(weight->type == KERN_TYPE_F32 || weight->type == KERN_TYPE_F16 ||
            weight->type == KERN_TYPE_BF16);
    require(weight->cols >= 1 && weight->cols <= KERN_MOE_COLS_MAX);
    require(weight->rows >= 1);
}

/* Rows of one claim: all must fit the scratch side by side. */
static uint32_t
rows_of_chunk(uint32_t cols)
{
    size_t fit = (KERN_SCRATCH_SIZE_BYTES - sizeof(scratch_t)) / (cols * sizeof(float));
    return fit < ROWS_OF_CHUNK ? (uint32_t)fit : ROWS_OF_CHUNK;
}

/* One matrix of one expert: 16 outputs from `column` on for `count` rows that lie at `input`. */
static void
run_tile(const product_t *self, const kern_expert_weight_t *weight, uint32_t expert,
         uint32_t column, const float *input, uint32_t count, float *out)
{
    size_t row_size_bytes = kern_type_row_size_bytes(weight->type, weight->cols);
    uint32_t rest = weight->rows - column;
    const float *bias = weight->bias;
    kern_dot_args_t args = {
        .type = weight->type,
        .weights = (const uint8_t *)weight->data + expert * weight->expert_stride_bytes +
                   column * row_size_bytes,
        .weight_stride = row_size_bytes,
        .cols = weight->cols,
        .input = input,
        .input_stride = weight->cols,
        .rows = count,
        .out_count = rest < OUTPUTS_OF_TILE ? rest : OUTPUTS_OF_TILE,
        .out = out,
        .out_stride = OUTPUTS_OF_TILE,
        .bias = bias == NULL ? NULL : bias + (size_t)expert * weight->rows + column,
        .accumulate = false,
    };
    self->table->dot(&args);
}

/* `tiles` tiles of outputs of one expert for `count` of its pairs. */
static void
run_chunk(const product_t *self, scratch_t *scratch, uint32_t expert, const int32_t *pairs,
          uint32_t count, uint32_t tile, uint32_t tiles)
{
    const kern_expert_weight_t *first = self->first;
    const float *input = scratch->input;
    for (uint32_t i = 0; i < count; i++) {
        const float *row =
            self->input + (uint32_t)pairs[i] / self->input_divisor * self->input_stride;
        if (count == 1) {
            input = row;
        } else {
            memcpy(scratch->input + (size_t)i * first->cols, row, first->cols * sizeof *row);
        }
    }
    for (uint32_t at = tile; at < tile + tiles; at++) {
        uint32_t column = at * OUTPUTS_OF_TILE;
        if (column >= first->rows) {
            return;
        }
        uint32_t rest = first->rows - column;
        uint32_t out_count = rest < OUTPUTS_OF_TILE ? rest : OUTPUTS_OF_TILE;
        run_tile(self, first, expert, column, input, count, scratch->gate);
        if (self->second != NULL) {
            run_tile(self, self->second, expert, column, input, count, scratch->up);
        }
        for (uint32_t i = 0; i < count; i++) {
            const float *result = scratch->gate + (size_t)i * OUTPUTS_OF_TILE;
            float *out = self->output + (uint32_t)pairs[i] * self->output_stride + column;
            if (self->second == NULL) {
                memcpy(out, result, out_count * sizeof *out);
                continue;
            }
            const float *up = scratch->up + (size_t)i * OUTPUTS_OF_TILE;
            if (self->bend == KERN_EXPERT_SILU) {
                self->table->silu_mul_row(result, up, out, out_count);
            } else {
                self->table->swiglu_oai_row(result, up, self->alpha, self->limit, out, out_count);
            }
        }
    }
}

/* Chunks are (expert, block of its pairs, some tiles of outputs); each thread walks the list of
 * experts once. */
static void
run_product(const product_t *self, kern_share_t *share)
{
    const kern_expert_rows_t *pairs = self->pairs;
    require(self->input_divisor >= 1);
    require(pairs->expert_count <= KERN_MOE_EXPERTS_MAX);
    check_weight(self->first);
    uint32_t tile_count = (self->first->rows + OUTPUTS_OF_TILE - 1) / OUTPUTS_OF_TILE;
    uint32_t per_block = (tile_count + TILES_OF_CHUNK - 1) / TILES_OF_CHUNK;
    uint32_t step = rows_of_chunk(self->first->cols);
    uint64_t passed = 0;
    uint32_t chunk = kern_share_claim(share);
    for (uint32_t expert = 0; expert < pairs->expert_count; expert++) {
        uint32_t begin = (uint32_t)pairs->offsets[expert];
        uint32_t count = (uint32_t)pairs->offsets[expert + 1] - begin;
        uint64_t chunks = (uint64_t)((count + step - 1) / step) * per_block;
        for (; chunk < passed + chunks; chunk = kern_share_claim(share)) {
            uint32_t at = (uint32_t)(chunk - passed);
            uint32_t block = at / per_block * step;
            uint32_t rest = count - block;
            run_chunk(self, share->scratch, expert, pairs->order + begin + block,
                      rest < step ? rest : step, at % per_block * TILES_OF_CHUNK, TILES_OF_CHUNK);
        }
        passed += chunks;
    }
}

void
kern_expert_gate_up_host(const void *args_void, kern_share_t *share)
{
    const kern_expert_gate_up_args_t *args = args_void;
    require(args->gate.rows == args->up.rows && args->gate.cols == args->up.cols);
    require(args->gate.type == args->up.type);
    product_t product = {
        .pairs = &args->pairs,
        .input = args->input,
        .input_stride = args->input_stride,
        .input_divisor = args->input_divisor,
        .first = &args->gate,
        .second = &args->up,
        .bend = args->bend,
        .alpha = args->alpha,
        .limit = args->limit,
        .output = args->output,
        .output_stride = args->output_stride,
        .table = kern_table(share->path),
    };
    run_product(&product, share);
}

void
kern_expert_linear_host(const void *args_void, kern_share_t *share)
{
    const kern_expert_linear_args_t *args = args_void;
    product_t product = {
        .pairs = &args->pairs,
        .input = args->input,
        .input_stride = args->input_stride,
        .input_divisor = args->input_divisor,
        .first = &args->weight,
        .second = NULL,
        .output = args->output,
        .output_stride = args->output_stride,
        .table = kern_table(share->path),
    };
    run_product(&product, share);
}

/* ---- sum ------------------------------------------------------------------------------------- */

void
kern_moe_combine_host(const void *args_void, kern_share_t *share)
{
    const kern_moe_combine_args_t *args = args_void;
    require(args->top_k >= 1);
    uint32_t pieces = (args->cols + COLS_OF_COMBINE - 1) / COLS_OF_COMBINE;
    uint64_t total = (uint64_t)args->rows * pieces;
    for (uint32_t chunk = kern_share_claim(share); chunk < total; chunk = kern_share_claim(share)) {
        uint32_t row = chunk / pieces;
        uint32_t column = chunk % pieces * COLS_OF_COMBINE;
        uint32_t rest = args->cols - column;
        uint32_t count = rest < COLS_OF_COMBINE ? rest : COLS_OF_COMBINE;
        const float *weights = args->weights + (size_t)row * args->top_k;
        const float *input = args->input + (size_t)row * args->top_k * args->input_stride + column;
        float *out = args->output + row * args->output_stride + column;
        kern_table(share->path)
            ->weigh_rows(input, args->input_stride, weights, args->top_k, out, count);
    }
}
