/* Products of every weight type: against doubles, and the same bits whatever stands beside. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_embed.h"
#include "kern_expect.h"
#include "kern_linear.h"
#include "kern_reference.h"
#include "kern_team.h"

static const kern_type_t types[] = {
    KERN_TYPE_F32,  KERN_TYPE_F16,  KERN_TYPE_BF16, KERN_TYPE_Q8_0, KERN_TYPE_Q4_0,
    KERN_TYPE_Q4_1, KERN_TYPE_Q5_0, KERN_TYPE_Q4_K, KERN_TYPE_Q5_K, KERN_TYPE_Q6_K,
};

/* Of the test that runs: loop tests go through the types with each kind in turn. */
static kern_activations_t activations;

enum {
    TYPES = sizeof types / sizeof *types,
    CASES = 2 * TYPES,
    ROWS_MAX = 64,
};

static kern_type_t
choose_case(int index)
{
    activations = index < TYPES ? KERN_ACTIVATIONS_FLOAT : KERN_ACTIVATIONS_INT8;
    return types[index % TYPES];
}

static float *
random_rows(size_t count, reference_random_t *random)
{
    float *rows = malloc(count * sizeof *rows);
    expect(rows != NULL);
    for (size_t i = 0; i < count; i++) {
        rows[i] = reference_normal(random);
    }
    return rows;
}

/* One product into guarded memory; the caller frees. */
static float *
linear(kern_team_t *team, const kern_weight_t *weight, const float *input, size_t stride,
       uint32_t rows, const float *bias, const float *previous)
{
    size_t size_bytes = (size_t)rows * weight->rows * sizeof(float);
    reference_guarded_t out = reference_guarded_new(size_bytes);
    reference_guarded_t work =
        reference_guarded_new(kern_linear_workspace_size_bytes(rows, weight->cols));
    if (previous != NULL) {
        memcpy(out.data, previous, size_bytes);
    }
    kern_linear_args_t args = {
        .input = input,
        .input_stride = stride,
        .rows = rows,
        .weight_count = 1,
        .weights = {*weight},
        .biases = {bias},
        .outputs = {out.data},
        .output_strides = {weight->rows},
        .accumulate = previous != NULL,
        .workspace = work.data,
        .workspace_size_bytes = work.size_bytes,
        .activations = activations,
    };
    kern_team_run(team, kern_linear_host, &args);
    reference_guarded_check(&out);
    reference_guarded_check(&work);
    float *result = malloc(size_bytes);
    expect(result != NULL);
    memcpy(result, out.data, size_bytes);
    reference_guarded_free(&out);
    reference_guarded_free(&work);
    return result;
}

static uint32_t
cols_of(kern_type_t type, uint32_t wish)
{
    uint32_t block_len = kern_type_block_len(type);
    uint32_t cols = wish / block_len * block_len;
    return cols > 0 ? cols : block_len;
}

static void
compare(const kern_weight_t *weight, const float *input, size_t stride, uint32_t rows,
        const float *bias, const float *previous, const float *got)
{
    double *seen = malloc(weight->cols * sizeof *seen);
    double *exact = malloc(weight->cols * sizeof *exact);
    double *sums = malloc((weight->cols / 32 + 1) * sizeof *sums);
    double *exact_sums = malloc((weight->cols / 32 + 1) * sizeof *exact_sums);
    for (uint32_t r = 0; r < rows; r++) {
        const float *x = input + r * stride;
        reference_activations(weight->type, x, weight->cols, seen, sums);
        for (uint32_t b = 0; b < weight->cols / 32; b++) {
            exact_sums[b] = 0.0;
            for (uint32_t i = 0; i < 32; i++) {
                exact_sums[b] += (double)x[32 * b + i];
            }
        }
        for (uint32_t k = 0; k < weight->cols; k++) {
            exact[k] = (double)x[k];
        }
        for (uint32_t n = 0; n < weight->rows; n++) {
            double magnitude;
            double unquantised = reference_product(weight, n, exact, exact_sums, &magnitude);
            double wanted = reference_product(weight, n, seen, sums, &magnitude);
            double rest = bias != NULL ? (double)bias[n] : 0.0;
            rest += previous != NULL ? (double)previous[r * weight->rows + n] : 0.0;
            double value = (double)got[r * weight->rows + n];
            if (activations == KERN_ACTIVATIONS_FLOAT) {
                expect_msg(fabs(value - unquantised - rest) <= 1e-6 * (magnitude + 1.0),
                           "%s row %u output %u: %.9g, not %.9g", kern_type_name(weight->type), r,
                           n, value, unquantised + rest);
                continue;
            }
            expect_msg(fabs(value - wanted - rest) <= 4e-6 * (magnitude + 1.0),
                       "%s row %u output %u: %.9g, not %.9g", kern_type_name(weight->type), r, n,
                       value, wanted + rest);
            /* Int8 activations: some 0.4 % of the largest value of a block, rounding at random. */
            expect(fabs(value - unquantised - rest) <= 0.02 * magnitude + 1e-5);
        }
    }
    free(seen);
    free(exact);
    free(sums);
    free(exact_sums);
}

/* Odd shapes of every type, with bias and accumulation, on every path. */
START_TEST(products_agree_with_doubles)
{
    reference_random_t random = reference_seed("products_agree_with_doubles");
    static const uint32_t outputs[] = {1, 15, 16, 33, 70};
    static const uint32_t widths[] = {1, 31, 96, 288, 576, 769};
    for (int path = 0; path < KERN_PATH_COUNT; path++) {
        if (!kern_path_available((kern_path_t)path)) {
            continue;
        }
        kern_team_t *team = reference_team((kern_path_t)path, 2);
        for (int i = 0; i < 6; i++) {
            kern_type_t type = choose_case(_i);
            uint32_t cols = cols_of(type, widths[i]);
            uint32_t out = outputs[i % 5];
            uint32_t rows = 1 + reference_u32(&random) % 11;
            size_t stride = cols + reference_u32(&random) % 3;
            kern_weight_t weight = reference_weight_new(type, out, cols, &random);
            float *input = random_rows(rows * stride, &random);
            float *bias = i % 2 == 0 ? random_rows(out, &random) : NULL;
            float *previous = i % 3 == 0 ? random_rows((size_t)rows * out, &random) : NULL;
            float *got = linear(team, &weight, input, stride, rows, bias, previous);
            compare(&weight, input, stride, rows, bias, previous, got);
            free((void *)(uintptr_t)weight.data);
            free(input);
            free(bias);
            free(previous);
            free(got);
        }
    }
}
END_TEST

/* The law: a row alone, and the same row among 2..64 others, on 1, 2 and 3 threads, packed or not.
 */
START_TEST(a_row_has_the_same_bits_in_every_company)
{
    reference_random_t random = reference_seed("a_row_has_the_same_bits_in_every_company");
    kern_type_t type = choose_case(_i);
    uint32_t cols = cols_of(type, 800);
    kern_weight_t weight = reference_weight_new(type, 53, cols, &random);
    kern_weight_t packed = weight;
    void *packed_bytes = NULL;
    if (kern_weight_packed_size_bytes(&weight) > 0) {
        packed_bytes = aligned_alloc(64, kern_weight_packed_size_bytes(&weight));
        packed = kern_weight_pack(&weight, packed_bytes);
    }
    float *input = random_rows((size_t)ROWS_MAX * cols, &random);
    static const uint32_t row_counts[] = {2, 3, 4, 5, 7, 8, 9, 16, 31, 64};
    for (int path = 0; path < KERN_PATH_COUNT; path++) {
        if (!kern_path_available((kern_path_t)path)) {
            continue;
        }
        float *alone = malloc((size_t)ROWS_MAX * weight.rows * sizeof *alone);
        expect(alone != NULL);
        for (uint32_t r = 0; r < ROWS_MAX; r++) {
            float *one = linear(reference_team((kern_path_t)path, 1), &weight,
                                input + (size_t)r * cols, cols, 1, NULL, NULL);
            memcpy(alone + (size_t)r * weight.rows, one, weight.rows * sizeof *one);
            free(one);
        }
        for (int i = 0; i < 10; i++) {
            uint32_t rows = row_counts[i];
            uint32_t first = reference_u32(&random) % (ROWS_MAX - rows + 1);
            for (uint32_t threads = 1; threads <= 3; threads++) {
                float *many = linear(reference_team((kern_path_t)path, threads),
                                     threads == 2 ? &packed : &weight, input + (size_t)first * cols,
                                     cols, rows, NULL, NULL);
                ck_assert_msg(memcmp(many, alone + (size_t)first * weight.rows,
                                     (size_t)rows * weight.rows * sizeof *many) == 0,
                              "%s on %s, %u rows, %u threads", kern_type_name(type),
                              kern_path_name((kern_path_t)path), rows, threads);
                free(many);
            }
        }
        free(alone);
    }
    free(packed_bytes);
    free(input);
    free((void *)(uintptr_t)weight.data);
}
END_TEST

/* Three weights of two activation formats share one input, as Q, K and V do; the same bits as
 * alone. */
START_TEST(weights_that_share_an_input_do_not_mix)
{
    reference_random_t random = reference_seed("weights_that_share_an_input_do_not_mix");
    static const kern_type_t mixed[] = {KERN_TYPE_Q4_K, KERN_TYPE_Q8_0, KERN_TYPE_F16};
    static const uint32_t outputs[] = {40, 17, 5};
    activations = _i == 0 ? KERN_ACTIVATIONS_FLOAT : KERN_ACTIVATIONS_INT8;
    enum { COLS = 512, ROWS = 150 };
    float *input = random_rows((size_t)ROWS * COLS, &random);
    kern_team_t *team = reference_team(kern_path_best(), 2);
    reference_guarded_t work = reference_guarded_new(kern_linear_workspace_size_bytes(ROWS, COLS));
    reference_guarded_t out[3];
    kern_linear_args_t args = {
        .input = input,
        .input_stride = COLS,
        .rows = ROWS,
        .weight_count = 3,
        .workspace = work.data,
        .workspace_size_bytes = work.size_bytes,
        .activations = activations,
    };
    for (int i = 0; i < 3; i++) {
        args.weights[i] = reference_weight_new(mixed[i], outputs[i], COLS, &random);
        out[i] = reference_guarded_new((size_t)ROWS * outputs[i] * sizeof(float));
        args.outputs[i] = out[i].data;
        args.output_strides[i] = outputs[i];
    }
    kern_team_run(team, kern_linear_host, &args);
    reference_guarded_check(&work);
    for (int i = 0; i < 3; i++) {
        reference_guarded_check(&out[i]);
        float *one = linear(team, &args.weights[i], input, COLS, ROWS, NULL, NULL);
        expect(memcmp(one, out[i].data, out[i].size_bytes) == 0);
        free(one);
        free((void *)(uintptr_t)args.weights[i].data);
        reference_guarded_free(&out[i]);
    }
    reference_guarded_free(&work);
    free(input);
}
END_TEST

/* The gate's bend in doubles. */
static double
bend(kern_gate_t which, double x)
{
    if (which == KERN_GATE_GELU_TANH) {
        double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
        return 0.5 * x * (1.0 + tanh(u));
    }
    return x / (1.0 + exp(-x));
}

/* bend(gate) * up in one operation equals the two products and doubles. */
START_TEST(gate_and_up_are_fused)
{
    reference_random_t random = reference_seed("gate_and_up_are_fused");
    kern_type_t type = choose_case(_i);
    uint32_t cols = cols_of(type, 300);
    enum { ROWS = 131, OUT = 37 };
    kern_weight_t gate = reference_weight_new(type, OUT, cols, &random);
    kern_weight_t up = reference_weight_new(type, OUT, cols, &random);
    float *input = random_rows((size_t)ROWS * cols, &random);
    for (int at = 0; at < 2 * KERN_PATH_COUNT; at++) {
        int path = at / 2;
        kern_gate_t which = at % 2 == 0 ? KERN_GATE_SILU : KERN_GATE_GELU_TANH;
        if (!kern_path_available((kern_path_t)path)) {
            continue;
        }
        kern_team_t *team = reference_team((kern_path_t)path, 2);
        float *g = linear(team, &gate, input, cols, ROWS, NULL, NULL);
        float *u = linear(team, &up, input, cols, ROWS, NULL, NULL);
        float *first = NULL;
        for (uint32_t rows = ROWS; rows > 0; rows = rows == ROWS ? 3 : rows - 1) {
            reference_guarded_t out = reference_guarded_new(rows * OUT * sizeof(float));
            reference_guarded_t work =
                reference_guarded_new(kern_linear_workspace_size_bytes(rows, cols));
            kern_gate_up_args_t args = {
                .input = input,
                .input_stride = cols,
                .rows = rows,
                .gate = gate,
                .up = up,
                .output = out.data,
                .output_stride = OUT,
                .workspace = work.data,
                .workspace_size_bytes = work.size_bytes,
                .activations = activations,
                .bend = which,
            };
            kern_team_run(team, kern_gate_up_host, &args);
            reference_guarded_check(&out);
            reference_guarded_check(&work);
            const float *got = out.data;
            for (uint32_t i = 0; i < rows * OUT; i++) {
                double x = (double)g[i];
                double wanted = bend(which, x) * (double)u[i];
                ck_assert_double_le(fabs((double)got[i] - wanted), 1e-6 * fabs(wanted) + 1e-6);
                expect(first == NULL || first[i] == got[i]);
            }
            if (first == NULL) {
                first = malloc(out.size_bytes);
                expect(first != NULL);
                memcpy(first, out.data, out.size_bytes);
            }
            reference_guarded_free(&out);
            reference_guarded_free(&work);
        }
        free(first);
        free(g);
        free(u);
    }
    free(input);
    free((void *)(uintptr_t)gate.data);
    free((void *)(uintptr_t)up.data);
}
END_TEST

/* Rows of zeros and of huge values stay what they are: no division by zero, no lost sign. */
START_TEST(zero_rows_give_zero)
{
    reference_random_t random = reference_seed("zero_rows_give_zero");
    kern_type_t type = choose_case(_i);
    uint32_t cols = cols_of(type, 256);
    kern_weight_t weight = reference_weight_new(type, 16, cols, &random);
    float *input = calloc(cols, sizeof *input);
    expect(input != NULL);
    float *got = linear(reference_team(kern_path_best(), 1), &weight, input, cols, 1, NULL, NULL);
    for (int i = 0; i < 16; i++) {
        expect(got[i] == 0.0f);
    }
    free(got);
    free(input);
    free((void *)(uintptr_t)weight.data);
}
END_TEST

/* Embedding rows, from packed and unpacked tables, equal the type's own reading. */
START_TEST(embedding_rows_are_read)
{
    reference_random_t random = reference_seed("embedding_rows_are_read");
    kern_type_t type = types[_i];
    uint32_t cols = cols_of(type, 600);
    enum { VOCABULARY = 41, ROWS = 6 };
    const int32_t tokens[ROWS] = {0, 40, 17, -1, 41, 16};
    kern_weight_t weight = reference_weight_new(type, VOCABULARY, cols, &random);
    kern_weight_t packed = weight;
    void *packed_bytes = NULL;
    if (kern_weight_packed_size_bytes(&weight) > 0) {
        packed_bytes = aligned_alloc(64, kern_weight_packed_size_bytes(&weight));
        packed = kern_weight_pack(&weight, packed_bytes);
    }
    double *wanted = malloc(cols * sizeof *wanted);
    for (int variant = 0; variant < 4; variant++) {
        reference_guarded_t out = reference_guarded_new(ROWS * cols * sizeof(float));
        kern_embed_args_t args = {
            .table = variant & 1 ? packed : weight,
            .tokens = tokens,
            .rows = ROWS,
            .scale = variant & 2 ? 3.0f : 1.0f,
            .output = out.data,
            .output_stride = cols,
        };
        kern_team_run(reference_team(kern_path_best(), 2), kern_embed_host, &args);
        reference_guarded_check(&out);
        for (uint32_t r = 0; r < ROWS; r++) {
            bool inside = tokens[r] >= 0 && tokens[r] < VOCABULARY;
            if (inside) {
                reference_weight_row(&weight, (uint32_t)tokens[r], wanted);
            }
            for (uint32_t i = 0; i < cols; i++) {
                float value = inside ? (float)wanted[i] * args.scale : 0.0f;
                expect(((const float *)out.data)[r * cols + i] == value);
            }
        }
        reference_guarded_free(&out);
    }
    free(wanted);
    free(packed_bytes);
    free((void *)(uintptr_t)weight.data);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.linear");
    TCase *tests = tcase_create("linear");
    tcase_set_timeout(tests, 100);
    tcase_add_loop_test(tests, products_agree_with_doubles, 0, CASES);
    tcase_add_loop_test(tests, a_row_has_the_same_bits_in_every_company, 0, CASES);
    tcase_add_loop_test(tests, weights_that_share_an_input_do_not_mix, 0, 2);
    tcase_add_loop_test(tests, gate_and_up_are_fused, 0, CASES);
    tcase_add_loop_test(tests, zero_rows_give_zero, 0, CASES);
    tcase_add_loop_test(tests, embedding_rows_are_read, 0, TYPES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
