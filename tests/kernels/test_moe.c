/* Mixture of experts: each operation against doubles over odd shapes, the same bits whatever rows
 * share an expert. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_expect.h"
#include "kern_moe.h"
#include "kern_reference.h"
#include "kern_team.h"

typedef struct {
    uint32_t rows;
    uint32_t experts;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t inner;
    kern_type_t type;
} shape_t;

static const shape_t shapes[] = {
    {1, 1, 1, 1, 1, KERN_TYPE_F32},       {1, 4, 2, 16, 16, KERN_TYPE_F32},
    {3, 6, 3, 17, 33, KERN_TYPE_F32},     {7, 32, 4, 64, 32, KERN_TYPE_BF16},
    {40, 5, 5, 48, 80, KERN_TYPE_F16},    {70, 3, 1, 130, 31, KERN_TYPE_F32},
    {129, 8, 2, 96, 100, KERN_TYPE_BF16}, {200, 2, 2, 40, 24, KERN_TYPE_F32},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The layer's inputs, and what the four operations made of them. */
typedef struct {
    shape_t shape;
    uint32_t pairs;
    float *logits;      /* [rows][experts] */
    float *input;       /* [rows][hidden] */
    kern_weight_t gate; /* [experts * inner][hidden] */
    kern_weight_t up;
    kern_weight_t down; /* [experts * hidden][inner] */
    float *biases[3];
    reference_guarded_t experts;
    reference_guarded_t weights;
    reference_guarded_t order;
    reference_guarded_t offsets;
    reference_guarded_t inner;  /* [pairs][inner] */
    reference_guarded_t parts;  /* [pairs][hidden] */
    reference_guarded_t output; /* [rows][hidden] */
} layer_t;

static const float alpha = 1.702f;
static const float limit = 1.5f;

static float *
normals(size_t count, reference_random_t *random)
{
    float *out = malloc((count + 1) * sizeof *out);
    expect(out != NULL);
    for (size_t i = 0; i < count; i++) {
        out[i] = reference_normal(random);
    }
    return out;
}

static layer_t
layer_new(const shape_t *shape, reference_random_t *random)
{
    uint32_t pairs = shape->rows * shape->top_k;
    layer_t self = {
        .shape = *shape,
        .pairs = pairs,
        .logits = normals((size_t)shape->rows * shape->experts, random),
        .input = normals((size_t)shape->rows * shape->hidden, random),
        .gate =
            reference_weight_new(shape->type, shape->experts * shape->inner, shape->hidden, random),
        .up =
            reference_weight_new(shape->type, shape->experts * shape->inner, shape->hidden, random),
        .down =
            reference_weight_new(shape->type, shape->experts * shape->hidden, shape->inner, random),
        .biases = {normals((size_t)shape->experts * shape->inner, random),
                   normals((size_t)shape->experts * shape->inner, random),
                   normals((size_t)shape->experts * shape->hidden, random)},
        .experts = reference_guarded_new(pairs * sizeof(int32_t)),
        .weights = reference_guarded_new(pairs * sizeof(float)),
        .order = reference_guarded_new(pairs * sizeof(int32_t)),
        .offsets = reference_guarded_new((shape->experts + 1) * sizeof(int32_t)),
        .inner = reference_guarded_new((size_t)pairs * shape->inner * sizeof(float)),
        .parts = reference_guarded_new((size_t)pairs * shape->hidden * sizeof(float)),
        .output = reference_guarded_new((size_t)shape->rows * shape->hidden * sizeof(float)),
    };
    return self;
}

static void
layer_free(layer_t *self)
{
    reference_guarded_t *guarded[] = {&self->experts, &self->weights, &self->order, &self->offsets,
                                      &self->inner,   &self->parts,   &self->output};
    for (size_t i = 0; i < sizeof guarded / sizeof *guarded; i++) {
        reference_guarded_check(guarded[i]);
        reference_guarded_free(guarded[i]);
    }
    free(self->logits);
    free(self->input);
    free((void *)(uintptr_t)self->gate.data);
    free((void *)(uintptr_t)self->up.data);
    free((void *)(uintptr_t)self->down.data);
    for (int i = 0; i < 3; i++) {
        free(self->biases[i]);
    }
}

static kern_expert_weight_t
expert_weight(const kern_weight_t *weight, uint32_t experts, const float *bias)
{
    uint32_t rows = weight->rows / experts;
    return (kern_expert_weight_t){
        .data = weight->data,
        .type = weight->type,
        .rows = rows,
        .cols = weight->cols,
        .expert_stride_bytes = rows * kern_type_row_size_bytes(weight->type, weight->cols),
        .bias = bias,
    };
}

/* `rows` rows from row `first` on, into the start of its outputs. */
static void
layer_run(kern_team_t *team, layer_t *self, uint32_t first, uint32_t rows)
{
    const shape_t *s = &self->shape;
    kern_moe_route_args_t route = {
        .logits = self->logits + (size_t)first * s->experts,
        .logit_stride = s->experts,
        .rows = rows,
        .expert_count = s->experts,
        .top_k = s->top_k,
        .experts = self->experts.data,
        .weights = self->weights.data,
        .order = self->order.data,
        .offsets = self->offsets.data,
    };
    kern_team_run(team, kern_moe_route_host, &route);
    kern_expert_rows_t pairs = {
        .order = self->order.data,
        .offsets = self->offsets.data,
        .expert_count = s->experts,
        .pair_count = rows * s->top_k,
    };
    kern_expert_gate_up_args_t gate_up = {
        .pairs = pairs,
        .input = self->input + (size_t)first * s->hidden,
        .input_stride = s->hidden,
        .input_divisor = s->top_k,
        .gate = expert_weight(&self->gate, s->experts, self->biases[0]),
        .up = expert_weight(&self->up, s->experts, self->biases[1]),
        .alpha = alpha,
        .limit = limit,
        .output = self->inner.data,
        .output_stride = s->inner,
    };
    kern_team_run(team, kern_expert_gate_up_host, &gate_up);
    kern_expert_linear_args_t down = {
        .pairs = pairs,
        .input = self->inner.data,
        .input_stride = s->inner,
        .input_divisor = 1,
        .weight = expert_weight(&self->down, s->experts, self->biases[2]),
        .output = self->parts.data,
        .output_stride = s->hidden,
    };
    kern_team_run(team, kern_expert_linear_host, &down);
    kern_moe_combine_args_t combine = {
        .input = self->parts.data,
        .input_stride = s->hidden,
        .weights = self->weights.data,
        .rows = rows,
        .top_k = s->top_k,
        .cols = s->hidden,
        .output = self->output.data,
        .output_stride = s->hidden,
    };
    kern_team_run(team, kern_moe_combine_host, &combine);
}

/* ---- references ------------------------------------------------------------------------------ */

/* Row by row, choice by choice, by looking for the largest logit that is left. */
static void
check_route(const layer_t *self)
{
    const shape_t *s = &self->shape;
    const int32_t *experts = self->experts.data;
    const float *weights = self->weights.data;
    for (uint32_t row = 0; row < s->rows; row++) {
        const float *logits = self->logits + (size_t)row * s->experts;
        bool *taken = calloc(s->experts, sizeof *taken);
        expect(taken != NULL);
        double sum = 0.0;
        double top = 0.0;
        for (uint32_t choice = 0; choice < s->top_k; choice++) {
            int32_t best = -1;
            for (uint32_t e = 0; e < s->experts; e++) {
                if (!taken[e] && (best < 0 || logits[e] > logits[best])) {
                    best = (int32_t)e;
                }
            }
            taken[best] = true;
            top = choice == 0 ? (double)logits[best] : top;
            sum += exp((double)logits[best] - top);
            expect_msg(experts[row * s->top_k + choice] == best, "row %u choice %u: %d, not %d",
                       row, choice, experts[row * s->top_k + choice], best);
        }
        for (uint32_t choice = 0; choice < s->top_k; choice++) {
            uint32_t pair = row * s->top_k + choice;
            double wanted = exp((double)logits[experts[pair]] - top) / sum;
            expect(fabs((double)weights[pair] - wanted) <= 1e-6);
        }
        free(taken);
    }
}

/* Every pair once, by expert, ascending within one. */
static void
check_order(const layer_t *self)
{
    const shape_t *s = &self->shape;
    const int32_t *experts = self->experts.data;
    const int32_t *order = self->order.data;
    const int32_t *offsets = self->offsets.data;
    expect(offsets[0] == 0);
    expect(offsets[s->experts] == (int32_t)self->pairs);
    for (uint32_t e = 0; e < s->experts; e++) {
        expect(offsets[e] <= offsets[e + 1]);
        for (int32_t i = offsets[e]; i < offsets[e + 1]; i++) {
            expect(order[i] >= 0 && (uint32_t)order[i] < self->pairs);
            expect(experts[order[i]] == (int32_t)e);
            expect(i == offsets[e] || order[i - 1] < order[i]);
        }
    }
}

static double
product(const kern_weight_t *weight, uint32_t row, const float *bias, const float *input)
{
    double *values = malloc((weight->cols + 1) * sizeof *values);
    expect(values != NULL);
    reference_weight_row(weight, row, values);
    double sum = (double)bias[row];
    for (uint32_t i = 0; i < weight->cols; i++) {
        sum += values[i] * (double)input[i];
    }
    free(values);
    return sum;
}

static void
expect_near(double got, double wanted, double scale, const char *what, uint32_t pair, uint32_t n)
{
    expect_msg(fabs(got - wanted) <= 2e-5 * (scale + fabs(wanted)), "%s %u, %u: %.9g, not %.9g",
               what, pair, n, got, wanted);
}

static void
check_products(const layer_t *self)
{
    const shape_t *s = &self->shape;
    const int32_t *experts = self->experts.data;
    const float *inner = self->inner.data;
    const float *parts = self->parts.data;
    for (uint32_t pair = 0; pair < self->pairs; pair++) {
        const float *x = self->input + (size_t)(pair / s->top_k) * s->hidden;
        uint32_t expert = (uint32_t)experts[pair];
        for (uint32_t n = 0; n < s->inner; n++) {
            uint32_t at = expert * s->inner + n;
            double g = product(&self->gate, at, self->biases[0], x);
            double u = product(&self->up, at, self->biases[1], x);
            g = g < (double)limit ? g : (double)limit;
            u = u < (double)limit ? u : (double)limit;
            u = u > -(double)limit ? u : -(double)limit;
            double wanted = g / (1.0 + exp(-(double)alpha * g)) * (u + 1.0);
            expect_near((double)inner[(size_t)pair * s->inner + n], wanted, 1.0, "inner", pair, n);
        }
        const float *h = inner + (size_t)pair * s->inner;
        for (uint32_t n = 0; n < s->hidden; n++) {
            double wanted = product(&self->down, expert * s->hidden + n, self->biases[2], h);
            expect_near((double)parts[(size_t)pair * s->hidden + n], wanted, 1.0, "part", pair, n);
        }
    }
}

static void
check_sums(const layer_t *self)
{
    const shape_t *s = &self->shape;
    const float *weights = self->weights.data;
    const float *parts = self->parts.data;
    const float *output = self->output.data;
    for (uint32_t row = 0; row < s->rows; row++) {
        for (uint32_t n = 0; n < s->hidden; n++) {
            double wanted = 0.0;
            for (uint32_t choice = 0; choice < s->top_k; choice++) {
                uint32_t pair = row * s->top_k + choice;
                wanted += (double)weights[pair] * (double)parts[(size_t)pair * s->hidden + n];
            }
            expect_near((double)output[(size_t)row * s->hidden + n], wanted, 1.0, "sum", row, n);
        }
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(a_layer_agrees_with_doubles)
{
    reference_random_t random = reference_seed("a_layer_agrees_with_doubles");
    layer_t layer = layer_new(&shapes[_i], &random);
    for (int path = -1; reference_next_path(&path);) {
        layer_run(reference_team((kern_path_t)path, 2), &layer, 0, shapes[_i].rows);
        check_route(&layer);
        check_order(&layer);
        check_products(&layer);
        check_sums(&layer);
    }
    layer_free(&layer);
}
END_TEST

/* A row's bits are the same alone, in any part of the batch, and on any number of threads: which
 * rows share an expert with it does not matter. */
START_TEST(rows_that_share_an_expert_do_not_matter)
{
    reference_random_t random = reference_seed("rows_that_share_an_expert_do_not_matter");
    const shape_t *s = &shapes[_i];
    size_t row_size_bytes = s->hidden * sizeof(float);
    layer_t layer = layer_new(s, &random);
    for (int path = -1; reference_next_path(&path);) {
        layer_run(reference_team((kern_path_t)path, 1), &layer, 0, s->rows);
        uint8_t *whole = malloc(s->rows * row_size_bytes);
        expect(whole != NULL);
        memcpy(whole, layer.output.data, s->rows * row_size_bytes);
        for (uint32_t round = 0; round < 12; round++) {
            uint32_t first = reference_u32(&random) % s->rows;
            uint32_t count = round % 3 == 0 ? 1 : 1 + reference_u32(&random) % (s->rows - first);
            layer_run(reference_team((kern_path_t)path, 1 + round % 3), &layer, first, count);
            expect_msg(memcmp(layer.output.data, whole + first * row_size_bytes,
                              count * row_size_bytes) == 0,
                       "rows %u to %u on %s", first, first + count,
                       kern_path_name((kern_path_t)path));
        }
        free(whole);
    }
    layer_free(&layer);
}
END_TEST

/* Equal logits: the smaller index first, also where the last place is shared. */
START_TEST(ties_go_to_the_smaller_index)
{
    const float logits[3][6] = {
        {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f},
        {0.0f, 2.0f, -1.0f, 2.0f, 0.0f, 0.0f},
        {-INFINITY, -3.0f, -3.0f, -0.0f, 0.0f, -3.0f},
    };
    const int32_t wanted[3][4] = {{0, 1, 2, 3}, {1, 3, 0, 4}, {3, 4, 1, 2}};
    int32_t experts[3][4];
    float weights[3][4];
    int32_t order[12];
    int32_t offsets[7];
    kern_moe_route_args_t args = {
        .logits = logits[0],
        .logit_stride = 6,
        .rows = 3,
        .expert_count = 6,
        .top_k = 4,
        .experts = experts[0],
        .weights = weights[0],
        .order = order,
        .offsets = offsets,
    };
    kern_team_run(reference_team(kern_path_best(), 2), kern_moe_route_host, &args);
    expect(memcmp(experts, wanted, sizeof wanted) == 0);
    for (int i = 0; i < 4; i++) {
        expect(weights[0][i] == 0.25f);
    }
    expect(weights[1][0] == weights[1][1] && weights[1][2] == weights[1][3]);
}
END_TEST

/* A NaN logit chooses existing experts, and is seen in the weights of its row alone. */
START_TEST(nan_is_not_hidden)
{
    const float logits[2][3] = {{1.0f, NAN, NAN}, {1.0f, 2.0f, 3.0f}};
    int32_t experts[2][2];
    float weights[2][2];
    int32_t order[4];
    int32_t offsets[4];
    kern_moe_route_args_t args = {
        .logits = logits[0],
        .logit_stride = 3,
        .rows = 2,
        .expert_count = 3,
        .top_k = 2,
        .experts = experts[0],
        .weights = weights[0],
        .order = order,
        .offsets = offsets,
    };
    kern_team_run(reference_team(kern_path_best(), 1), kern_moe_route_host, &args);
    expect(experts[0][0] == 1 && experts[0][1] == 2);
    expect(isnan(weights[0][0]) && isnan(weights[0][1]));
    expect(experts[1][0] == 2 && experts[1][1] == 1);
    expect(weights[1][0] > weights[1][1] && weights[1][1] > 0.0f);
}
END_TEST

/* The activation keeps a NaN of either input and is finite at the ends. */
START_TEST(the_activation_is_clamped)
{
    const float inputs[][2] = {{NAN, 1.0f},    {1.0f, NAN},   {1e30f, 1e30f},
                               {-1e30f, -9.f}, {0.5f, -9.0f}, {1.5f, 1.5f}};
    const kern_weight_t one = {.data = (const float[]){1.0f},
                               .type = KERN_TYPE_F32,
                               .rows = 1,
                               .cols = 1};
    const float zero = 0.0f;
    const int32_t order[] = {0};
    const int32_t offsets[] = {0, 1};
    for (int path = -1; reference_next_path(&path);) {
        float out[6];
        for (size_t i = 0; i < 6; i++) {
            /* x = 0, so that gate and up are their biases. */
            kern_expert_weight_t gate = expert_weight(&one, 1, &inputs[i][0]);
            kern_expert_weight_t up = expert_weight(&one, 1, &inputs[i][1]);
            kern_expert_gate_up_args_t args = {
                .pairs = {order, offsets, 1, 1},
                .input = &zero,
                .input_stride = 1,
                .input_divisor = 1,
                .gate = gate,
                .up = up,
                .alpha = alpha,
                .limit = limit,
                .output = &out[i],
                .output_stride = 1,
            };
            kern_team_run(reference_team((kern_path_t)path, 1), kern_expert_gate_up_host, &args);
        }
        double top = 1.5 / (1.0 + exp(-1.702 * 1.5)) * 2.5;
        expect(isnan(out[0]) && isnan(out[1]));
        expect(fabs((double)out[2] - top) < 1e-5);
        expect(fabsf(out[3]) < 1e-5f);
        expect(fabs((double)out[4] - 0.5 / (1.0 + exp(-1.702 * 0.5)) * -0.5) < 1e-6);
        expect(out[5] == out[2]);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.moe");
    TCase *tests = tcase_create("moe");
    tcase_set_timeout(tests, 100);
    tcase_add_loop_test(tests, a_layer_agrees_with_doubles, 0, SHAPES);
    tcase_add_loop_test(tests, rows_that_share_an_expert_do_not_matter, 0, SHAPES);
    tcase_add_test(tests, ties_go_to_the_smaller_index);
    tcase_add_test(tests, nan_is_not_hidden);
    tcase_add_test(tests, the_activation_is_clamped);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
