/* kern_gdn_body.h - inside kernels/: the microkernels of recurrent layers, written once for every
 * instruction set (included by kern_simd_*.c after its kern_vec_*.h).
 *
 * A lane is a column of the state: columns never meet, sums over the key dimension are one chain in
 * its order, so it does not matter how columns are grouped. */
#ifndef KERN_GDN_BODY_H
#define KERN_GDN_BODY_H

#include "kern_table.h"

#define GDN_VECTORS KV_GDN_VECTORS
#define GDN_SLICE (16 * KV_GDN_VECTORS)

/* What one pass over a slice of the state does for one row. */
typedef struct {
    float *state; /* [k_dim][GDN_SLICE] */
    uint32_t k_dim;
    const float *k;      /* of this row */
    const float *q;      /* of this row */
    const float *next_k; /* of the row after it */
    kv_t decay;
    kv_t delta[GDN_VECTORS];
    kv_t out[GDN_VECTORS];    /* q' S */
    kv_t memory[GDN_VECTORS]; /* next_k' S */
    float *to;                /* the new state goes here too */
    size_t to_stride;
    const float *ahead; /* is fetched with the last row */
    size_t ahead_stride;
} gdn_pass_t;

/* memory = k' S of the state as it is. */
KV_INLINE void
gdn_recall(gdn_pass_t *pass, const float *k)
{
    kv_t memory[GDN_VECTORS];
    KERN_UNROLL
    for (int c = 0; c < GDN_VECTORS; c++) {
        memory[c] = kv_zero();
    }
    for (uint32_t i = 0; i < pass->k_dim; i++) {
        kv_t key = kv_set1(k[i]);
        KERN_UNROLL
        for (int c = 0; c < GDN_VECTORS; c++) {
            kv_t s = kv_load(pass->state + (size_t)i * GDN_SLICE + 16 * c);
            memory[c] = kv_fma(key, s, memory[c]);
        }
    }
    KERN_UNROLL
    for (int c = 0; c < GDN_VECTORS; c++) {
        pass->memory[c] = memory[c];
    }
}

/* S = decay S + k delta'; out = q' S; memory = next_k' S.  `next` and `save` are constants. */
KV_INLINE void
gdn_update(gdn_pass_t *pass, bool next, bool save)
{
    kv_t memory[GDN_VECTORS];
    kv_t out[GDN_VECTORS];
    kv_t delta[GDN_VECTORS];
    KERN_UNROLL
    for (int c = 0; c < GDN_VECTORS; c++) {
        memory[c] = kv_zero();
        out[c] = kv_zero();
        delta[c] = pass->delta[c];
    }
    for (uint32_t i = 0; i < pass->k_dim; i++) {
        float *place = pass->state + (size_t)i * GDN_SLICE;
        kv_t key = kv_set1(pass->k[i]);
        kv_t query = kv_set1(pass->q[i]);
        kv_t after = kv_set1(next ? pass->next_k[i] : 0.0f);
        if (!next) {
            __builtin_prefetch(pass->ahead + i * pass->ahead_stride, 0, 2);
            __builtin_prefetch(pass->ahead + i * pass->ahead_stride + GDN_SLICE - 1, 0, 2);
        }
        KERN_UNROLL
        for (int c = 0; c < GDN_VECTORS; c++) {
            kv_t s = kv_mul(pass->decay, kv_load(place + 16 * c));
            s = kv_fma(key, delta[c], s);
            kv_store(place + 16 * c, s);
            if (save) {
                kv_store(pass->to + i * pass->to_stride + 16 * c, s);
            }
            out[c] = kv_fma(query, s, out[c]);
            if (next) {
                memory[c] = kv_fma(after, s, memory[c]);
            }
        }
    }
    KERN_UNROLL
    for (int c = 0; c < GDN_VECTORS; c++) {
        pass->out[c] = out[c];
        pass->memory[c] = memory[c];
    }
}

KV_INLINE kv_t
load_first(const float *from, uint32_t count)
{
    return count == 16 ? kv_load(from) : kv_load_part(from, count);
}

KV_INLINE void
store_first(float *to, kv_t a, uint32_t count)
{
    if (count == 16) {
        kv_store(to, a);
    } else {
        kv_store_part(to, a, count);
    }
}

/* Columns 16 c .. of a row, as far as there are any. */
KV_INLINE uint32_t
gdn_part(uint32_t cols, int c)
{
    uint32_t first = 16 * (uint32_t)c;
    return cols <= first ? 0 : cols - first < 16 ? cols - first : 16;
}

/* Row after row: memory is read in its order, whatever the slices. */
static void
gdn_load(const float *from, size_t state_stride, uint32_t k_dim, uint32_t cols, float *state)
{
    size_t slice_len = (size_t)k_dim * GDN_SLICE;
    for (uint32_t i = 0; i < k_dim; i++) {
        float *to = state + (size_t)i * GDN_SLICE;
        uint32_t at = 0;
        for (; at + GDN_SLICE <= cols; at += GDN_SLICE) {
            KERN_UNROLL
            for (int c = 0; c < GDN_VECTORS; c++) {
                kv_store(to + 16 * c, kv_load(from + i * state_stride + at + 16 * c));
            }
            to += slice_len;
        }
        if (at < cols) {
            memset(to, 0, GDN_SLICE * sizeof *to);
            memcpy(to, from + i * state_stride + at, (cols - at) * sizeof *to);
        }
    }
}

/* A last slice that is not full is saved after its pass. */
static void
gdn_save_part(const kern_gdn_slice_args_t *args, float *to)
{
    for (uint32_t i = 0; i < args->k_dim; i++) {
        memcpy(to + i * args->state_stride, args->state + (size_t)i * GDN_SLICE,
               args->cols * sizeof *to);
    }
}

KV_INLINE void
gdn_row(const kern_gdn_slice_args_t *args, gdn_pass_t *pass, uint32_t row)
{
    bool next = row + 1 < args->rows;
    pass->k = args->k + (size_t)row * args->k_dim;
    pass->q = args->q + (size_t)row * args->k_dim;
    pass->next_k = pass->k + args->k_dim;
    pass->decay = kv_set1(args->decay[row]);
    kv_t beta = kv_set1(args->beta[row]);
    for (int c = 0; c < GDN_VECTORS; c++) {
        kv_t v = load_first(args->v + row * args->v_stride + 16 * c, gdn_part(args->cols, c));
        kv_t known = kv_mul(pass->decay, pass->memory[c]);
        pass->delta[c] = kv_mul(beta, kv_sub(v, known));
    }
    float *to = NULL;
    if (args->to != NULL && row >= args->to_first) {
        to = args->to + (row - args->to_first) * args->to_step;
    }
    pass->to = to;
    bool save = to != NULL && args->cols == GDN_SLICE;
    if (next && save) {
        gdn_update(pass, true, true);
    } else if (next) {
        gdn_update(pass, true, false);
    } else if (save) {
        gdn_update(pass, false, true);
    } else {
        gdn_update(pass, false, false);
    }
    if (to != NULL && !save) {
        gdn_save_part(args, to);
    }
    if (args->output == NULL) {
        return;
    }
    for (int c = 0; c < GDN_VECTORS; c++) {
        store_first(args->output + row * args->output_stride + 16 * c, pass->out[c],
                    gdn_part(args->cols, c));
    }
}

static void
gdn_rows(const kern_gdn_slice_args_t *args)
{
    gdn_pass_t pass = {.state = args->state, .k_dim = args->k_dim, .to_stride = args->state_stride};
    pass.ahead = args->ahead != NULL ? args->ahead : args->state;
    pass.ahead_stride = args->ahead != NULL ? args->state_stride : GDN_SLICE;
    gdn_recall(&pass, args->k);
    for (uint32_t row = 0; row < args->rows; row++) {
        gdn_row(args, &pass, row);
    }
}

static void
unit_row(const float *input, float epsilon, float scale, float *output, uint32_t cols)
{
    uint32_t whole = cols & ~15u;
    kv_t acc = kv_zero();
    for (uint32_t i = 0; i < whole; i += 16) {
        kv_t x = kv_load(input + i);
        acc = kv_fma(x, x, acc);
    }
    if (whole < cols) {
        kv_t x = load_first(input + whole, cols - whole);
        acc = kv_fma(x, x, acc);
    }
    scale_row(input, scale / sqrtf(kv_sum(acc) + epsilon), output, cols);
}

static void
gated_norm_row(const float *input, const float *gate, const float *weight, float *output,
               const kern_gated_norm_shape_t *shape)
{
    uint32_t cols = shape->cols;
    kv_t acc = kv_zero();
    for (uint32_t i = 0; i < cols; i += 16) {
        kv_t x = load_first(input + i, cols - i < 16 ? cols - i : 16);
        acc = kv_fma(x, x, acc);
    }
    kv_t scale = kv_set1(1.0f / sqrtf(kv_sum(acc) / (float)cols + shape->epsilon));
    for (uint32_t i = 0; i < cols; i += 16) {
        uint32_t count = cols - i < 16 ? cols - i : 16;
        kv_t x = kv_mul(load_first(input + i, count), scale);
        x = kv_mul(x, load_first(weight + i, count));
        store_first(output + i, kv_mul(x, kv_silu(load_first(gate + i, count))), count);
    }
}

static void
sigmoid_mul_row(const float *input, const float *gate, float *output, uint32_t cols)
{
    for (uint32_t i = 0; i < cols; i += 16) {
        uint32_t count = cols - i < 16 ? cols - i : 16;
        kv_t e = kv_exp(kv_sub(kv_zero(), load_first(gate + i, count)));
        kv_t x = kv_div(load_first(input + i, count), kv_add(kv_set1(1.0f), e));
        store_first(output + i, x, count);
    }
}

static void
conv_row(const kern_conv_row_args_t *args)
{
    for (uint32_t i = 0; i < args->cols; i += 16) {
        uint32_t count = args->cols - i < 16 ? args->cols - i : 16;
        kv_t acc = args->bias != NULL ? load_first(args->bias + i, count) : kv_zero();
        for (uint32_t j = 0; j < args->width; j++) {
            kv_t weight = load_first(args->weight + j * args->weight_stride + i, count);
            acc = kv_fma(weight, load_first(args->inputs[j] + i, count), acc);
        }
        store_first(args->output + i, args->silu ? kv_silu(acc) : acc, count);
    }
}

#endif
