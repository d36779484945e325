/* kern_row_body.h - inside kernels/: row microkernels, written once for every instruction set
 * (included by kern_simd_*.c after its kern_vec_*.h). */
#ifndef KERN_ROW_BODY_H
#define KERN_ROW_BODY_H

#include "kern_table.h"

static void
add_row(const float *a, const float *b, float *output, uint32_t cols)
{
    uint32_t i = 0;
    for (; i + 16 <= cols; i += 16) {
        kv_store(output + i, kv_add(kv_load(a + i), kv_load(b + i)));
    }
    for (; i < cols; i++) {
        output[i] = a[i] + b[i];
    }
}

static void
scale_row(const float *input, float scale, float *output, uint32_t cols)
{
    uint32_t i = 0;
    for (; i + 16 <= cols; i += 16) {
        kv_store(output + i, kv_mul(kv_load(input + i), kv_set1(scale)));
    }
    for (; i < cols; i++) {
        output[i] = input[i] * scale;
    }
}

static void
rms_norm_row(float *input, const float *residual, const float *weight, float *output, uint32_t cols,
             float epsilon)
{
    if (residual != NULL) {
        add_row(input, residual, input, cols);
    }
    uint32_t whole = cols & ~15u;
    kv_t acc = kv_zero();
    for (uint32_t i = 0; i < whole; i += 16) {
        kv_t x = kv_load(input + i);
        acc = kv_fma(x, x, acc);
    }
    if (whole < cols) {
        kv_t x = kv_load_part(input + whole, cols - whole);
        acc = kv_fma(x, x, acc);
    }
    float scale = 1.0f / sqrtf(kv_sum(acc) / (float)cols + epsilon);
    scale_row(input, scale, output, cols);
    if (weight == NULL) {
        return;
    }
    uint32_t i = 0;
    for (; i < whole; i += 16) {
        kv_store(output + i, kv_mul(kv_load(output + i), kv_load(weight + i)));
    }
    for (; i < cols; i++) {
        output[i] *= weight[i];
    }
}

static void
silu_mul_row(const float *gate, const float *up, float *output, uint32_t cols)
{
    uint32_t i = 0;
    for (; i + 16 <= cols; i += 16) {
        kv_store(output + i, kv_mul(kv_silu(kv_load(gate + i)), kv_load(up + i)));
    }
    if (i < cols) {
        kv_t value =
            kv_mul(kv_silu(kv_load_part(gate + i, cols - i)), kv_load_part(up + i, cols - i));
        kv_store_part(output + i, value, cols - i);
    }
}

static void
gelu_mul_row(const float *gate, const float *up, float *output, uint32_t cols)
{
    uint32_t i = 0;
    for (; i + 16 <= cols; i += 16) {
        kv_store(output + i, kv_mul(kv_gelu_tanh(kv_load(gate + i)), kv_load(up + i)));
    }
    if (i < cols) {
        kv_t value =
            kv_mul(kv_gelu_tanh(kv_load_part(gate + i, cols - i)), kv_load_part(up + i, cols - i));
        kv_store_part(output + i, value, cols - i);
    }
}

static void
swiglu_oai_row(const float *gate, const float *up, float alpha, float limit, float *output,
               uint32_t cols)
{
    kv_t high = kv_set1(limit);
    kv_t low = kv_set1(-limit);
    kv_t one = kv_set1(1.0f);
    for (uint32_t i = 0; i < cols; i += 16) {
        uint32_t count = cols - i < 16 ? cols - i : 16;
        kv_t g = kv_min(high, kv_load_part(gate + i, count)); /* this order keeps NaN */
        kv_t u = kv_min(high, kv_max(low, kv_load_part(up + i, count)));
        kv_t e = kv_exp(kv_mul(g, kv_set1(-alpha)));
        kv_t glu = kv_div(g, kv_add(one, e));
        kv_store_part(output + i, kv_mul(kv_add(u, one), glu), count);
    }
}

static void
weigh_rows(const float *input, size_t input_stride, const float *weights, uint32_t count,
           float *output, uint32_t cols)
{
    for (uint32_t at = 0; at < cols; at += 16) {
        uint32_t width = cols - at < 16 ? cols - at : 16;
        kv_t acc = kv_zero();
        for (uint32_t i = 0; i < count; i++) {
            kv_t row = kv_load_part(input + i * input_stride + at, width);
            acc = kv_fma(kv_set1(weights[i]), row, acc);
        }
        kv_store_part(output + at, acc, width);
    }
}

/* output may be input. */
static void
rotate(const float *input, const float *angles, uint32_t rope_dim, bool interleaved, float *output)
{
    uint32_t half = rope_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        uint32_t first = interleaved ? 2 * i : i;
        uint32_t second = interleaved ? 2 * i + 1 : i + half;
        float cosine = angles[2 * i];
        float sine = angles[2 * i + 1];
        float a = input[first];
        float b = input[second];
        output[first] = a * cosine - b * sine;
        output[second] = b * cosine + a * sine;
    }
}

static void
half_row(const float *input, uint16_t *output, uint32_t cols)
{
    uint32_t i = 0;
    for (; i + 16 <= cols; i += 16) {
        kv_store_half(output + i, kv_load(input + i));
    }
    for (; i < cols; i++) {
        output[i] = kern_float_to_half(input[i]);
    }
}

static float
max_row(const float *input, uint32_t count, bool *nan)
{
    kv_t top = kv_set1(-INFINITY);
    int found = 0;
    uint32_t i = 0;
    for (; i + 32 <= count; i += 32) {
        kv_t a = kv_load(input + i);
        kv_t b = kv_load(input + i + 16);
        /* a + b is NaN if one is, or for opposite infinities: then look again. */
        kv_t both = kv_add(a, b);
        if (__builtin_expect(kv_any_nan(both), 0)) {
            found |= kv_any_nan(a) | kv_any_nan(b);
        }
        top = kv_max(top, kv_max(a, b));
    }
    float best = kv_max_lane(top);
    for (; i < count; i++) {
        found |= input[i] != input[i];
        best = input[i] > best ? input[i] : best;
    }
    *nan = found != 0;
    return best;
}

static uint32_t
find(const float *input, uint32_t count, float value)
{
    uint32_t i = 0;
    kv_t wanted = kv_set1(value);
    for (; i + 16 <= count; i += 16) {
        uint32_t mask = kv_mask_ge(kv_load(input + i), wanted);
        if (mask != 0) {
            return i + (uint32_t)__builtin_ctz(mask);
        }
    }
    for (; i < count; i++) {
        if (input[i] >= value) {
            return i;
        }
    }
    return 0;
}

static double
exp_row(const float *input, uint32_t count, float scale, float shift, float *out, float *sums)
{
    double total = 0.0;
    kv_t scales = kv_set1(scale);
    kv_t shifts = kv_set1(shift);
    for (uint32_t at = 0; at < count; at += KERN_EXP_BLOCK) {
        uint32_t end = count - at < KERN_EXP_BLOCK ? count : at + KERN_EXP_BLOCK;
        kv_t acc = kv_zero();
        uint32_t i = at;
        for (; i + 16 <= end; i += 16) {
            kv_t e = kv_exp(kv_sub(kv_mul(kv_load(input + i), scales), shifts));
            acc = kv_add(acc, e);
            if (out != NULL) {
                kv_store(out + i, e);
            }
        }
        if (i < end) {
            float tail[16];
            kv_t x = kv_load_part(input + i, end - i);
            kv_store(tail, kv_exp(kv_sub(kv_mul(x, scales), shifts)));
            kv_t e = kv_load_part(tail, end - i);
            acc = kv_add(acc, e);
            if (out != NULL) {
                kv_store_part(out + i, e, end - i);
            }
        }
        float sum = kv_sum(acc);
        if (sums != NULL) {
            sums[at / KERN_EXP_BLOCK] = sum;
        }
        total += (double)sum;
    }
    return total;
}

static uint32_t
select_ge(const float *input, uint32_t count, float limit, uint32_t *out, uint32_t out_max)
{
    uint32_t found = 0;
    kv_t limits = kv_set1(limit);
    uint32_t i = 0;
    for (; i + 16 <= count && found < out_max; i += 16) {
        uint32_t mask = kv_mask_ge(kv_load(input + i), limits);
        while (mask != 0 && found < out_max) {
            out[found++] = i + (uint32_t)__builtin_ctz(mask);
            mask &= mask - 1;
        }
    }
    for (; i < count && found < out_max; i++) {
        if (input[i] >= limit) {
            out[found++] = i;
        }
    }
    return found;
}

#endif
