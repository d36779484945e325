/* The gated norm, the sigmoid gate, and taking heads out of rows. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kern_elementwise.h"
#include "kern_expect.h"
#include "kern_norm.h"
#include "kern_reference.h"
#include "kern_team.h"

enum {
    ROWS = 19,
    HEADS = 3,
};

static const uint32_t dims[] = {1, 15, 16, 40, 128, 250, 4100};

enum {
    DIMS = sizeof dims / sizeof *dims,
};

static float *
numbers(size_t count, reference_random_t *random)
{
    float *out = malloc(count * sizeof *out);
    expect(out != NULL);
    for (size_t i = 0; i < count; i++) {
        out[i] = 2.0f * reference_normal(random);
    }
    out[0] = 100.0f; /* a gate of 1, and one of 0: never NaN */
    out[count - 1] = -100.0f;
    return out;
}

static void
check_near(double value, double wanted, const char *what)
{
    expect_msg(fabs(value - wanted) <= 2e-6 * fabs(wanted) + 1e-6, "%s: %.9g, not %.9g", what,
               value, wanted);
}

/* x / rms(x) * w * silu(z) for each head; one row alone has the bits that it has among others. */
START_TEST(gated_norm_agrees_with_doubles)
{
    reference_random_t random = reference_seed("gated_norm_agrees_with_doubles");
    uint32_t dim = dims[_i];
    uint32_t cols = HEADS * dim;
    size_t stride = cols + 7;
    float *x = numbers(ROWS * stride, &random);
    float *z = numbers(ROWS * stride, &random);
    float *weight = numbers(dim, &random);
    for (int path = -1; reference_next_path(&path);) {
        reference_guarded_t out = reference_guarded_new((size_t)ROWS * cols * sizeof(float));
        kern_gated_norm_args_t args = {.input = x,
                                       .input_stride = stride,
                                       .gate = z,
                                       .gate_stride = stride,
                                       .weight = weight,
                                       .output = out.data,
                                       .output_stride = cols,
                                       .rows = ROWS,
                                       .heads = HEADS,
                                       .head_dim = dim,
                                       .epsilon = 1e-6f};
        kern_team_run(reference_team((kern_path_t)path, 2), kern_gated_norm_host, &args);
        reference_guarded_check(&out);
        const float *got = out.data;
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t h = 0; h < HEADS; h++) {
                const float *from = x + r * stride + h * dim;
                const float *gate = z + r * stride + h * dim;
                double square = 0.0;
                for (uint32_t i = 0; i < dim; i++) {
                    square += (double)from[i] * (double)from[i];
                }
                double inverse = 1.0 / sqrt(square / dim + 1e-6);
                for (uint32_t i = 0; i < dim; i++) {
                    double silu = (double)gate[i] / (1.0 + exp(-(double)gate[i]));
                    double wanted = (double)from[i] * inverse * (double)weight[i] * silu;
                    check_near((double)got[r * cols + h * dim + i], wanted, "gated_norm");
                }
            }
        }
        float *one = malloc(cols * sizeof *one);
        expect(one != NULL);
        memcpy(one, x + 11 * stride, cols * sizeof *one);
        args.input = one; /* in place */
        args.gate = z + 11 * stride;
        args.output = one;
        args.rows = 1;
        kern_team_run(reference_team((kern_path_t)path, 3), kern_gated_norm_host, &args);
        expect(memcmp(one, got + (size_t)11 * cols, cols * sizeof *one) == 0);
        free(one);
        reference_guarded_free(&out);
    }
    free(x);
    free(z);
    free(weight);
}
END_TEST

/* A row of the projection is [q, gate] for each head: the query heads are taken out, the
 * attention's output is multiplied with the gates where they are. */
START_TEST(heads_and_their_gates_lie_in_one_row)
{
    reference_random_t random = reference_seed("heads_and_their_gates_lie_in_one_row");
    uint32_t dim = dims[_i];
    uint32_t cols = HEADS * dim;
    size_t stride = 2 * cols + 3;
    float *projected = numbers(ROWS * stride, &random);
    float *attention = numbers((size_t)ROWS * cols, &random);
    for (int path = -1; reference_next_path(&path);) {
        kern_team_t *team = reference_team((kern_path_t)path, 2);
        reference_guarded_t q = reference_guarded_new((size_t)ROWS * cols * sizeof(float));
        reference_guarded_t out = reference_guarded_new((size_t)ROWS * cols * sizeof(float));
        kern_heads_copy_args_t copy = {projected, stride, 2 * dim, q.data, cols,
                                       dim,       ROWS,   HEADS,   dim};
        kern_team_run(team, kern_heads_copy_host, &copy);
        kern_sigmoid_mul_args_t gate = {.input = attention,
                                        .input_stride = cols,
                                        .gate = projected + dim,
                                        .gate_stride = stride,
                                        .gate_head_stride = 2 * dim,
                                        .output = out.data,
                                        .output_stride = cols,
                                        .rows = ROWS,
                                        .heads = HEADS,
                                        .head_dim = dim};
        kern_team_run(team, kern_sigmoid_mul_host, &gate);
        reference_guarded_check(&q);
        reference_guarded_check(&out);
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t i = 0; i < cols; i++) {
                const float *head = projected + r * stride + i / dim * 2 * dim;
                size_t at = r * cols + i;
                expect(((const float *)q.data)[at] == head[i % dim]);
                double wanted = (double)attention[at] / (1.0 + exp(-(double)head[dim + i % dim]));
                check_near((double)((const float *)out.data)[at], wanted, "sigmoid_mul");
            }
        }
        float *one = malloc(cols * sizeof *one);
        expect(one != NULL);
        memcpy(one, attention + (size_t)7 * cols, cols * sizeof *one);
        gate.input = one; /* in place */
        gate.gate = projected + 7 * stride + dim;
        gate.output = one;
        gate.rows = 1;
        kern_team_run(team, kern_sigmoid_mul_host, &gate);
        expect(memcmp(one, (const float *)out.data + (size_t)7 * cols, cols * sizeof *one) == 0);
        free(one);
        reference_guarded_free(&q);
        reference_guarded_free(&out);
    }
    free(projected);
    free(attention);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.gates");
    TCase *tests = tcase_create("gates");
    tcase_set_timeout(tests, 100);
    tcase_add_loop_test(tests, gated_norm_agrees_with_doubles, 0, DIMS);
    tcase_add_loop_test(tests, heads_and_their_gates_lie_in_one_row, 0, DIMS);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
