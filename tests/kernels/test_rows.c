/* Norms, rotary positions and cache writes, and the small row operations. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_elementwise.h"
#include "kern_expect.h"
#include "kern_norm.h"
#include "kern_reference.h"
#include "kern_rope.h"
#include "kern_team.h"

enum {
    ROWS = 23,
    STRIDE = 700,
};

static const uint32_t widths[] = {1, 15, 16, 33, 576, 697};

enum {
    WIDTHS = sizeof widths / sizeof *widths,
};

static float *
random_rows(size_t count, reference_random_t *random)
{
    float *rows = malloc(count * sizeof *rows);
    expect(rows != NULL);
    for (size_t i = 0; i < count; i++) {
        rows[i] = 2.0f * reference_normal(random);
    }
    return rows;
}

static void
check_near(double value, double wanted, const char *what)
{
    expect_msg(fabs(value - wanted) <= 2e-6 * fabs(wanted) + 1e-6, "%s: %.9g, not %.9g", what,
               value, wanted);
}

/* x += r; out = x / rms(x) * w, also without r and w; the same bits for one row as for many. */
START_TEST(rms_norm_agrees_with_doubles)
{
    reference_random_t random = reference_seed("rms_norm_agrees_with_doubles");
    uint32_t cols = widths[_i];
    float *original = random_rows(ROWS * STRIDE, &random);
    float *residual = random_rows(ROWS * STRIDE, &random);
    float *weight = random_rows(STRIDE, &random);
    for (int path = -1; reference_next_path(&path);) {
        for (int variant = 0; variant < 4; variant++) {
            bool add = (variant & 1) != 0;
            bool scale = (variant & 2) != 0;
            reference_guarded_t x = reference_guarded_new(ROWS * STRIDE * sizeof(float));
            reference_guarded_t out = reference_guarded_new((size_t)ROWS * cols * sizeof(float));
            memcpy(x.data, original, x.size_bytes);
            kern_rms_norm_args_t args = {
                .input = x.data,
                .input_stride = STRIDE,
                .residual = add ? residual : NULL,
                .residual_stride = STRIDE,
                .weight = scale ? weight : NULL,
                .output = out.data,
                .output_stride = cols,
                .rows = ROWS,
                .cols = cols,
                .epsilon = 1e-5f,
            };
            kern_team_run(reference_team((kern_path_t)path, 2), kern_rms_norm_host, &args);
            reference_guarded_check(&x);
            reference_guarded_check(&out);
            const float *sum = x.data;
            const float *got = out.data;
            for (uint32_t r = 0; r < ROWS; r++) {
                double square = 0.0;
                for (uint32_t i = 0; i < STRIDE; i++) {
                    float wanted = original[r * STRIDE + i];
                    wanted = add && i < cols ? wanted + residual[r * STRIDE + i] : wanted;
                    expect(sum[r * STRIDE + i] == wanted);
                    square += i < cols ? (double)wanted * (double)wanted : 0.0;
                }
                double inverse = 1.0 / sqrt(square / cols + 1e-5);
                for (uint32_t i = 0; i < cols; i++) {
                    double wanted = (double)sum[r * STRIDE + i] * inverse;
                    wanted *= scale ? (double)weight[i] : 1.0;
                    check_near((double)got[r * cols + i], wanted, "rms_norm");
                }
            }
            float *one = malloc(cols * sizeof *one);
            expect(one != NULL);
            args.input = (float *)x.data + 11 * STRIDE;
            memcpy(args.input, original + 11 * STRIDE, STRIDE * sizeof(float));
            args.residual = add ? residual + 11 * STRIDE : NULL;
            args.output = one;
            args.rows = 1;
            kern_team_run(reference_team((kern_path_t)path, 3), kern_rms_norm_host, &args);
            expect(memcmp(one, got + 11 * cols, cols * sizeof *one) == 0);
            free(one);
            reference_guarded_free(&x);
            reference_guarded_free(&out);
        }
    }
    free(original);
    free(residual);
    free(weight);
}
END_TEST

START_TEST(silu_mul_and_add_agree_with_doubles)
{
    reference_random_t random = reference_seed("silu_mul_and_add_agree_with_doubles");
    uint32_t cols = widths[_i];
    float *a = random_rows(ROWS * STRIDE, &random);
    float *b = random_rows(ROWS * STRIDE, &random);
    a[0] = 100.0f;
    a[1] = -100.0f; /* silu is -0 here, never NaN */
    for (int path = -1; reference_next_path(&path);) {
        kern_team_t *team = reference_team((kern_path_t)path, 2);
        reference_guarded_t out = reference_guarded_new((size_t)ROWS * cols * sizeof(float));
        const float *got = out.data;
        kern_silu_mul_args_t silu = {a, STRIDE, b, STRIDE, out.data, cols, ROWS, cols};
        kern_team_run(team, kern_silu_mul_host, &silu);
        for (uint32_t i = 0; i < ROWS * cols; i++) {
            double x = (double)a[i / cols * STRIDE + i % cols];
            double y = (double)b[i / cols * STRIDE + i % cols];
            check_near((double)got[i], x / (1.0 + exp(-x)) * y, "silu_mul");
        }
        kern_add_args_t add = {a, STRIDE, b, STRIDE, out.data, cols, ROWS, cols};
        kern_team_run(team, kern_add_host, &add);
        for (uint32_t i = 0; i < ROWS * cols; i++) {
            size_t place = (size_t)(i / cols * STRIDE + i % cols);
            expect(got[i] == a[place] + b[place]);
        }
        reference_guarded_check(&out);
        reference_guarded_free(&out);
    }
    free(a);
    free(b);
}
END_TEST

START_TEST(rows_are_gathered_and_bytes_moved)
{
    reference_random_t random = reference_seed("rows_are_gathered_and_bytes_moved");
    uint32_t cols = widths[_i];
    float *input = random_rows(ROWS * STRIDE, &random);
    const int32_t indices[6] = {22, 0, 5, -1, 23, 5};
    kern_team_t *team = reference_team(kern_path_best(), 2);
    reference_guarded_t out = reference_guarded_new((size_t)6 * cols * sizeof(float));
    kern_gather_rows_args_t gather = {input, STRIDE, ROWS, indices,       out.data,
                                      cols,  6,      cols, KERN_FORM_ROWS};
    kern_team_run(team, kern_gather_rows_host, &gather);
    reference_guarded_check(&out);
    for (uint32_t i = 0; i < 6 * cols; i++) {
        int32_t index = indices[i / cols];
        bool inside = index >= 0 && index < ROWS;
        float wanted = inside ? input[(uint32_t)index * STRIDE + i % cols] : 0.0f;
        expect(((float *)out.data)[i] == wanted);
    }
    reference_guarded_free(&out);
    /* Sizes on both sides of a chunk. */
    static const size_t sizes[] = {0, 1, 262143, 262144, 262145, 600001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        reference_guarded_t from = reference_guarded_new(sizes[i]);
        reference_guarded_t to = reference_guarded_new(sizes[i]);
        for (size_t j = 0; j < sizes[i]; j++) {
            ((uint8_t *)from.data)[j] = (uint8_t)reference_u32(&random);
        }
        kern_copy_args_t copy = {from.data, to.data, sizes[i]};
        kern_team_run(team, kern_copy_host, &copy);
        reference_guarded_check(&to);
        expect(memcmp(from.data, to.data, sizes[i]) == 0);
        kern_fill_args_t fill = {to.data, sizes[i], 0x5C};
        kern_team_run(team, kern_fill_host, &fill);
        reference_guarded_check(&to);
        for (size_t j = 0; j < sizes[i]; j++) {
            expect(((uint8_t *)to.data)[j] == 0x5C);
        }
        reference_guarded_free(&from);
        reference_guarded_free(&to);
    }
    free(input);
}
END_TEST

typedef struct {
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t rope_dim;
    bool interleaved;
    bool norms;
    kern_type_t cache_type;
    bool positions_int64;
} rope_shape_t;

static const rope_shape_t rope_shapes[] = {
    {9, 3, 64, 64, false, false, KERN_TYPE_F32, false},
    {4, 2, 128, 128, false, true, KERN_TYPE_F16, true},
    {2, 1, 80, 32, true, false, KERN_TYPE_F32, true},
    {3, 3, 20, 20, true, true, KERN_TYPE_F16, false},
    {2, 2, 16, 0, false, true, KERN_TYPE_F32, false},
};

enum {
    ROPE_SHAPES = sizeof rope_shapes / sizeof *rope_shapes,
    SLOTS = 64,
};

static void
reference_head(const rope_shape_t *shape, const float *in, const float *norm, double position,
               const float *frequencies, double *out)
{
    double square = 0.0;
    for (uint32_t i = 0; i < shape->head_dim; i++) {
        square += (double)in[i] * (double)in[i];
    }
    double inverse = 1.0 / sqrt(square / shape->head_dim + 1e-6);
    for (uint32_t i = 0; i < shape->head_dim; i++) {
        out[i] = (double)in[i] * (norm != NULL ? inverse * (double)norm[i] : 1.0);
    }
    uint32_t half = shape->rope_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        /* The angle is a float product by contract. */
        double angle = (double)((float)position * frequencies[i]);
        uint32_t first = shape->interleaved ? 2 * i : i;
        uint32_t second = shape->interleaved ? 2 * i + 1 : i + half;
        double a = out[first];
        double b = out[second];
        out[first] = 1.5 * (a * cos(angle) - b * sin(angle));
        out[second] = 1.5 * (b * cos(angle) + a * sin(angle));
    }
}

/* q is rotated in place, k and v land in their slots, and nothing else changes. */
START_TEST(rope_rotates_and_writes_the_cache)
{
    reference_random_t random = reference_seed("rope_rotates_and_writes_the_cache");
    const rope_shape_t *shape = &rope_shapes[_i];
    size_t q_cols = (size_t)shape->q_heads * shape->head_dim;
    size_t kv_cols = (size_t)shape->kv_heads * shape->head_dim;
    float *q_original = random_rows(ROWS * q_cols, &random);
    float *k = random_rows(ROWS * kv_cols, &random);
    float *v = random_rows(ROWS * kv_cols, &random);
    float *q_norm = random_rows(shape->head_dim, &random);
    float *k_norm = random_rows(shape->head_dim, &random);
    float frequencies[KERN_HEAD_DIM_MAX / 2];
    int32_t locations[ROWS];
    int32_t positions32[ROWS];
    int64_t positions64[ROWS];
    for (uint32_t i = 0; i < shape->rope_dim / 2; i++) {
        frequencies[i] = powf(10000.0f, -2.0f * (float)i / (float)shape->rope_dim);
    }
    for (int i = 0; i < ROWS; i++) {
        positions32[i] = (int32_t)(reference_u32(&random) % 5000);
        positions64[i] = positions32[i];
        locations[i] = (i * 7) % SLOTS;
    }
    locations[3] = -1;
    locations[4] = SLOTS;
    size_t element_size_bytes = shape->cache_type == KERN_TYPE_F32 ? 4 : 2;
    for (int path = -1; reference_next_path(&path);) {
        kern_team_t *team = reference_team((kern_path_t)path, 2);
        reference_guarded_t q = reference_guarded_new(ROWS * q_cols * sizeof(float));
        reference_guarded_t caches[2];
        float *angles = calloc((size_t)ROWS * shape->rope_dim + 1, sizeof *angles);
        expect(angles != NULL);
        memcpy(q.data, q_original, q.size_bytes);
        for (int i = 0; i < 2; i++) {
            caches[i] = reference_guarded_new(SLOTS * kv_cols * element_size_bytes);
            memset(caches[i].data, 0x11, caches[i].size_bytes);
        }
        kern_rope_angles_args_t angle_args = {
            .positions = shape->positions_int64 ? (const void *)positions64 : positions32,
            .positions_int64 = shape->positions_int64,
            .rows = ROWS,
            .frequencies = frequencies,
            .rope_dim = shape->rope_dim,
            .scale = 1.5f,
            .angles = angles,
        };
        kern_team_run(team, kern_rope_angles_host, &angle_args);
        kern_rope_kv_write_args_t args = {
            .q = q.data,
            .q_stride = q_cols,
            .k = k,
            .k_stride = kv_cols,
            .v = v,
            .v_stride = kv_cols,
            .rows = ROWS,
            .q_heads = shape->q_heads,
            .kv_heads = shape->kv_heads,
            .head_dim = shape->head_dim,
            .rope_dim = shape->rope_dim,
            .interleaved = shape->interleaved,
            .angles = angles,
            .q_norm = shape->norms ? q_norm : NULL,
            .k_norm = shape->norms ? k_norm : NULL,
            .epsilon = 1e-6f,
            .write_locations = locations,
            .k_cache = caches[0].data,
            .v_cache = caches[1].data,
            .cache_type = shape->cache_type,
            .slot_count = SLOTS,
        };
        kern_team_run(team, kern_rope_kv_write_host, &args);
        reference_guarded_check(&q);
        bool written[SLOTS] = {false};
        double wanted[KERN_HEAD_DIM_MAX];
        double relative = shape->cache_type == KERN_TYPE_F32 ? 1e-6 : 5e-4;
        for (uint32_t r = 0; r < ROWS; r++) {
            for (uint32_t head = 0; head < shape->q_heads; head++) {
                size_t at = r * q_cols + (size_t)head * shape->head_dim;
                reference_head(shape, q_original + at, args.q_norm, positions32[r], frequencies,
                               wanted);
                for (uint32_t d = 0; d < shape->head_dim; d++) {
                    expect(fabs((double)((float *)q.data)[at + d] - wanted[d]) <= 1e-5);
                }
            }
            if (locations[r] < 0 || locations[r] >= SLOTS) {
                continue;
            }
            written[locations[r]] = true;
            for (uint32_t i = 0; i < kv_cols; i++) {
                uint32_t head = i / shape->head_dim;
                uint32_t d = i % shape->head_dim;
                size_t slot_at = (size_t)locations[r] * kv_cols + i;
                double got[2];
                for (int c = 0; c < 2; c++) {
                    got[c] =
                        element_size_bytes == 4
                            ? (double)((float *)caches[c].data)[slot_at]
                            : (double)kern_half_to_float(((uint16_t *)caches[c].data)[slot_at]);
                }
                reference_head(shape, k + r * kv_cols + (size_t)head * shape->head_dim, args.k_norm,
                               positions32[r], frequencies, wanted);
                expect(fabs(got[0] - wanted[d]) <= relative * fabs(wanted[d]) + 1e-5);
                expect(fabs(got[1] - (double)v[r * kv_cols + i]) <= relative * fabs(got[1]) + 1e-5);
            }
        }
        for (int c = 0; c < 2; c++) {
            reference_guarded_check(&caches[c]);
            for (size_t slot = 0; slot < SLOTS; slot++) {
                const uint8_t *bytes = (const uint8_t *)caches[c].data;
                size_t slot_size_bytes = kv_cols * element_size_bytes;
                for (size_t i = 0; !written[slot] && i < slot_size_bytes; i++) {
                    expect(bytes[slot * slot_size_bytes + i] == 0x11);
                }
            }
            reference_guarded_free(&caches[c]);
        }
        reference_guarded_free(&q);
        free(angles);
    }
    free(q_original);
    free(k);
    free(v);
    free(q_norm);
    free(k_norm);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.rows");
    TCase *tests = tcase_create("rows");
    tcase_set_timeout(tests, 100);
    tcase_add_loop_test(tests, rms_norm_agrees_with_doubles, 0, WIDTHS);
    tcase_add_loop_test(tests, silu_mul_and_add_agree_with_doubles, 0, WIDTHS);
    tcase_add_loop_test(tests, rows_are_gathered_and_bytes_moved, 0, WIDTHS);
    tcase_add_loop_test(tests, rope_rotates_and_writes_the_cache, 0, ROPE_SHAPES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
