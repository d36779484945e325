#include "kern_recurrent.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    STRIDE_EXTRA = 5,    /* floats after the channels of a row */
    BLOCK_EXTRA = 3,     /* floats after a block */
    POISON = 0x7fc0dead, /* a NaN that no arithmetic makes */
};

static float *
numbers(size_t count, float scale, reference_random_t *random)
{
    float *out = malloc(count * sizeof *out);
    require(out != NULL);
    for (size_t i = 0; i < count; i++) {
        out[i] = scale * reference_normal(random);
    }
    return out;
}

recurrent_t
recurrent_new(const recurrent_shape_t *shape, uint32_t rows, reference_random_t *random)
{
    recurrent_t self = {.shape = *shape, .rows = rows};
    self.channels = 2 * shape->k_heads * shape->k_dim + shape->v_heads * shape->v_dim;
    self.stride = self.channels + STRIDE_EXTRA;
    self.input = numbers(rows * self.stride, 1.0f, random);
    self.gates = numbers((size_t)rows * 2 * shape->v_heads, 1.5f, random);
    self.weight = numbers((size_t)shape->width * self.channels, 0.6f, random);
    self.bias = numbers(self.channels, 0.2f, random);
    self.rate = numbers(shape->v_heads, 1.0f, random);
    self.dt_bias = numbers(shape->v_heads, 1.0f, random);
    static const float rates[] = {0.02f, 1.0f, 0.0005f, 16.0f};
    for (uint32_t h = 0; h < shape->v_heads; h++) {
        self.rate[h] = rates[h % 4] * expf(0.2f * self.rate[h]);
    }
    return self;
}

void
recurrent_free(recurrent_t *self)
{
    free(self->input);
    free(self->gates);
    free(self->weight);
    free(self->bias);
    free(self->rate);
    free(self->dt_bias);
    *self = (recurrent_t){0};
}

kern_gdn_t
recurrent_gdn(const recurrent_t *self, const float *qkv, size_t qkv_stride, uint32_t first_row,
              float *output)
{
    size_t gates_stride = 2 * (size_t)self->shape.v_heads;
    return (kern_gdn_t){
        .qkv = qkv + first_row * qkv_stride,
        .qkv_stride = qkv_stride,
        .a = self->gates + first_row * gates_stride,
        .a_stride = gates_stride,
        .b = self->gates + first_row * gates_stride + self->shape.v_heads,
        .b_stride = gates_stride,
        .rate = self->rate,
        .dt_bias = self->dt_bias,
        .k_heads = self->shape.k_heads,
        .v_heads = self->shape.v_heads,
        .k_dim = self->shape.k_dim,
        .v_dim = self->shape.v_dim,
        .output = output + (size_t)first_row * recurrent_output_len(self),
        .output_stride = recurrent_output_len(self),
    };
}

kern_conv_t
recurrent_conv(const recurrent_t *self, uint32_t first_row, float *output)
{
    return (kern_conv_t){
        .weight = self->weight,
        .bias = self->bias,
        .width = self->shape.width,
        .channels = self->channels,
        .silu = true,
        .input = self->input + first_row * self->stride,
        .input_stride = self->stride,
        .output = output + (size_t)first_row * self->channels,
        .output_stride = self->channels,
    };
}

size_t
recurrent_state_len(const recurrent_t *self)
{
    return (size_t)self->shape.v_heads * self->shape.k_dim * self->shape.v_dim;
}

size_t
recurrent_window_len(const recurrent_t *self)
{
    return (size_t)(self->shape.width - 1) * self->channels;
}

uint32_t
recurrent_output_len(const recurrent_t *self)
{
    return self->shape.v_heads * self->shape.v_dim;
}

/* 1 / sqrt(sum of squares + 1e-6) */
static double
inverse_norm(const float *input, uint32_t cols)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < cols; i++) {
        sum += (double)input[i] * (double)input[i];
    }
    return 1.0 / sqrt(sum + 1e-6);
}

void
reference_gdn_row(const kern_gdn_t *gdn, size_t row, uint32_t head, double *state, double *out)
{
    uint32_t k_head = head / (gdn->v_heads / gdn->k_heads);
    const float *q = gdn->qkv + row * gdn->qkv_stride + (size_t)k_head * gdn->k_dim;
    const float *k = q + (size_t)gdn->k_heads * gdn->k_dim;
    const float *v = gdn->qkv + row * gdn->qkv_stride + 2 * (size_t)gdn->k_heads * gdn->k_dim +
                     (size_t)head * gdn->v_dim;
    double q_scale = inverse_norm(q, gdn->k_dim) / sqrt((double)gdn->k_dim);
    double k_scale = inverse_norm(k, gdn->k_dim);
    double a = (double)gdn->a[row * gdn->a_stride + head] + (double)gdn->dt_bias[head];
    double decay = exp(-(double)gdn->rate[head] * log1p(exp(a)));
    double beta = 1.0 / (1.0 + exp(-(double)gdn->b[row * gdn->b_stride + head]));
    for (uint32_t c = 0; c < gdn->v_dim; c++) {
        double known = 0.0;
        for (uint32_t i = 0; i < gdn->k_dim; i++) {
            state[i * gdn->v_dim + c] *= decay;
            known += state[i * gdn->v_dim + c] * (double)k[i] * k_scale;
        }
        double delta = beta * ((double)v[c] - known);
        double sum = 0.0;
        for (uint32_t i = 0; i < gdn->k_dim; i++) {
            state[i * gdn->v_dim + c] += (double)k[i] * k_scale * delta;
            sum += state[i * gdn->v_dim + c] * (double)q[i] * q_scale;
        }
        if (out != NULL) {
            out[c] = sum;
        }
    }
}

double
reference_conv(const kern_conv_t *conv, const float *window, size_t first, int64_t at,
               uint32_t channel)
{
    double sum = conv->bias != NULL ? (double)conv->bias[channel] : 0.0;
    for (uint32_t j = 0; j < conv->width; j++) {
        int64_t place = at - (int64_t)(conv->width - 1) + (int64_t)j;
        double x = 0.0;
        if (place >= 0) {
            x = (double)conv->input[(first + (size_t)place) * conv->input_stride + channel];
        } else if (window != NULL) {
            size_t row = (size_t)(place + (int64_t)conv->width - 1);
            x = (double)window[row * conv->channels + channel];
        }
        sum += (double)conv->weight[(size_t)j * conv->channels + channel] * x;
    }
    return conv->silu ? sum / (1.0 + exp(-sum)) : sum;
}

recurrent_cache_t
recurrent_cache_new(size_t len, uint32_t block_count)
{
    recurrent_cache_t self = {.len = len, .stride = len + BLOCK_EXTRA};
    self.memory = reference_guarded_new(block_count * self.stride * sizeof(float));
    self.floats = self.memory.data;
    uint32_t poison = POISON;
    for (size_t i = 0; i < block_count * self.stride; i++) {
        memcpy(self.floats + i, &poison, sizeof poison);
    }
    return self;
}

void
recurrent_cache_free(recurrent_cache_t *self)
{
    reference_guarded_check(&self->memory);
    reference_guarded_free(&self->memory);
}

float *
recurrent_block(const recurrent_cache_t *self, int32_t block)
{
    return self->floats + (size_t)block * self->stride;
}

void
recurrent_fill(const recurrent_cache_t *self, int32_t block, reference_random_t *random)
{
    for (size_t i = 0; i < self->len; i++) {
        recurrent_block(self, block)[i] = 0.3f * reference_normal(random);
    }
}

static bool
poisoned(const float *from, size_t count)
{
    uint32_t poison = POISON;
    for (size_t i = 0; i < count; i++) {
        if (memcmp(from + i, &poison, sizeof poison) != 0) {
            return false;
        }
    }
    return true;
}

bool
recurrent_untouched(const recurrent_cache_t *self, int32_t block)
{
    return poisoned(recurrent_block(self, block), self->stride);
}

bool
recurrent_same(const recurrent_cache_t *a, int32_t block_a, const recurrent_cache_t *b,
               int32_t block_b)
{
    require(a->len == b->len);
    require(poisoned(recurrent_block(a, block_a) + a->len, BLOCK_EXTRA));
    return memcmp(recurrent_block(a, block_a), recurrent_block(b, block_b),
                  a->len * sizeof(float)) == 0;
}

kern_gdn_cache_t
recurrent_states(const recurrent_cache_t *self, uint32_t block_count)
{
    return (kern_gdn_cache_t){self->floats, self->stride, block_count};
}

kern_conv_cache_t
recurrent_windows(const recurrent_cache_t *self, uint32_t block_count)
{
    return (kern_conv_cache_t){self->floats, self->stride, block_count};
}
