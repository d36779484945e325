/* The router with sigmoid scores: a selection bias, groups, weights made to sum to one and scaled;
 * and the experts' plain gate.  Against doubles. */
#include <check.h>
#include <math.h>
#include <stdint.h>
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
    uint32_t groups;
    uint32_t used_groups;
    bool has_bias;
    bool is_normalised;
} shape_t;

static const shape_t shapes[] = {
    {1, 1, 1, 1, 1, false, true},   {3, 8, 2, 2, 1, true, true},    {40, 256, 8, 8, 4, true, true},
    {17, 12, 4, 3, 2, true, false}, {70, 384, 8, 1, 1, true, true}, {33, 30, 6, 5, 3, false, true},
    {5, 6, 6, 3, 3, true, false},   {9, 64, 1, 0, 0, true, true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct {
    int32_t *experts;
    float *weights;
    int32_t *order;
    int32_t *offsets;
} choice_t;

static choice_t
choice_new(const shape_t *s)
{
    size_t pairs = (size_t)s->rows * s->top_k;
    choice_t self = {
        .experts = calloc(pairs, sizeof(int32_t)),
        .weights = calloc(pairs, sizeof(float)),
        .order = calloc(pairs, sizeof(int32_t)),
        .offsets = calloc(s->experts + 1, sizeof(int32_t)),
    };
    expect(self.experts != NULL && self.weights != NULL);
    expect(self.order != NULL && self.offsets != NULL);
    return self;
}

static void
choice_free(choice_t *self)
{
    free(self->experts);
    free(self->weights);
    free(self->order);
    free(self->offsets);
}

static void
route(kern_team_t *team, const shape_t *s, const float *logits, const float *bias, uint32_t rows,
      const choice_t *out)
{
    kern_moe_route_args_t args = {
        .logits = logits,
        .logit_stride = s->experts,
        .rows = rows,
        .expert_count = s->experts,
        .top_k = s->top_k,
        .scoring = KERN_MOE_SIGMOID,
        .select_bias = s->has_bias ? bias : NULL,
        .group_count = s->groups,
        .group_used_count = s->used_groups,
        .is_normalised = s->is_normalised,
        .weight_scale = 2.5f,
        .experts = out->experts,
        .weights = out->weights,
        .order = out->order,
        .offsets = out->offsets,
    };
    kern_team_run(team, kern_moe_route_host, &args);
}

static double
key_of(const shape_t *s, const float *logits, const float *bias, uint32_t expert)
{
    double score = 1.0 / (1.0 + exp(-(double)logits[expert]));
    return s->has_bias ? score + (double)bias[expert] : score;
}

/* The sum of the two best of each group; -1 once used. */
static void
group_sums(const shape_t *s, const float *logits, const float *bias, double *sums)
{
    uint32_t size = s->experts / s->groups;
    for (uint32_t g = 0; g < s->groups; g++) {
        double best = -INFINITY;
        double second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            double key = key_of(s, logits, bias, e);
            if (key > best) {
                second = best;
                best = key;
            } else if (key > second) {
                second = key;
            }
        }
        sums[g] = best + second;
    }
}

/* By looking again and again for what is best among what is left. */
static void
check_row(const shape_t *s, const float *logits, const float *bias, const int32_t *experts,
          const float *weights)
{
    bool may[KERN_MOE_EXPERTS_MAX];
    double sums[KERN_MOE_EXPERTS_MAX];
    for (uint32_t e = 0; e < s->experts; e++) {
        may[e] = s->groups <= 1;
    }
    if (s->groups > 1) {
        group_sums(s, logits, bias, sums);
    }
    for (uint32_t i = 0; s->groups > 1 && i < s->used_groups; i++) {
        uint32_t best = 0;
        for (uint32_t g = 1; g < s->groups; g++) {
            best = sums[g] > sums[best] ? g : best;
        }
        sums[best] = -INFINITY;
        uint32_t size = s->experts / s->groups;
        for (uint32_t e = best * size; e < (best + 1) * size; e++) {
            may[e] = true;
        }
    }
    double total = 0.0;
    for (uint32_t choice = 0; choice < s->top_k; choice++) {
        int32_t best = -1;
        for (uint32_t e = 0; e < s->experts; e++) {
            if (may[e] && (best < 0 ||
                           key_of(s, logits, bias, e) > key_of(s, logits, bias, (uint32_t)best))) {
                best = (int32_t)e;
            }
        }
        expect_msg(experts[choice] == best, "choice %u: %d, not %d", choice, experts[choice], best);
        may[best] = false;
        total += 1.0 / (1.0 + exp(-(double)logits[best]));
    }
    for (uint32_t choice = 0; choice < s->top_k; choice++) {
        double score = 1.0 / (1.0 + exp(-(double)logits[experts[choice]]));
        double wanted = 2.5 * (s->is_normalised ? score / (total + 1e-20) : score);
        expect(fabs((double)weights[choice] - wanted) <= 2e-6);
    }
}

/* Also: a row's choice does not depend on its neighbours, the path or the threads. */
START_TEST(choices_agree_with_doubles)
{
    reference_random_t random = reference_seed("choices_agree_with_doubles");
    const shape_t *s = &shapes[_i];
    float *logits = malloc((size_t)s->rows * s->experts * sizeof *logits);
    float *bias = malloc(s->experts * sizeof *bias);
    expect(logits != NULL && bias != NULL);
    for (size_t i = 0; i < (size_t)s->rows * s->experts; i++) {
        logits[i] = 2.0f * reference_normal(&random);
    }
    for (uint32_t i = 0; i < s->experts; i++) {
        bias[i] = 0.3f * reference_normal(&random);
    }
    choice_t first = choice_new(s);
    choice_t other = choice_new(s);
    route(reference_team(KERN_PATH_PORTABLE, 1), s, logits, bias, s->rows, &first);
    for (uint32_t row = 0; row < s->rows; row++) {
        check_row(s, logits + (size_t)row * s->experts, bias,
                  first.experts + (size_t)row * s->top_k, first.weights + (size_t)row * s->top_k);
    }
    for (int path = -1; reference_next_path(&path);) {
        size_t pairs = (size_t)s->rows * s->top_k;
        route(reference_team((kern_path_t)path, 3), s, logits, bias, s->rows, &other);
        expect(memcmp(first.experts, other.experts, pairs * sizeof *first.experts) == 0);
        expect(memcmp(first.order, other.order, pairs * sizeof *first.order) == 0);
        float *together = malloc(pairs * sizeof *together);
        expect(together != NULL);
        memcpy(together, other.weights, pairs * sizeof *together);
        for (uint32_t row = 0; row < s->rows; row += 7) {
            route(reference_team((kern_path_t)path, 1), s, logits + (size_t)row * s->experts, bias,
                  1, &other);
            expect(memcmp(other.weights, together + (size_t)row * s->top_k,
                          s->top_k * sizeof *together) == 0);
        }
        free(together);
    }
    choice_free(&first);
    choice_free(&other);
    free(logits);
    free(bias);
}
END_TEST

/* The bias moves the choice and leaves the weight alone; the smaller index wins among equals. */
START_TEST(a_bias_chooses_and_does_not_weigh)
{
    static const shape_t s = {1, 4, 2, 2, 1, true, false};
    static const float logits[] = {0.0f, 0.0f, 0.0f, 0.0f};
    static const float none[] = {0.0f, 0.0f, 0.0f, 0.0f};
    static const float last[] = {0.0f, 0.0f, 0.1f, 0.2f};
    kern_team_t *team = reference_team(kern_path_best(), 1);
    choice_t out = choice_new(&s);
    route(team, &s, logits, none, 1, &out);
    expect(out.experts[0] == 0 && out.experts[1] == 1);
    route(team, &s, logits, last, 1, &out);
    expect(out.experts[0] == 3 && out.experts[1] == 2);
    expect(out.weights[0] == 1.25f && out.weights[1] == 1.25f);
    choice_free(&out);
}
END_TEST

/* A group of one good expert loses against one of two fair ones: sums of two decide. */
START_TEST(a_group_is_as_good_as_its_two_best)
{
    static const shape_t s = {1, 6, 2, 2, 1, false, true};
    static const float logits[] = {2.0f, -9.0f, -9.0f, 1.0f, 1.0f, -9.0f};
    choice_t out = choice_new(&s);
    route(reference_team(kern_path_best(), 1), &s, logits, NULL, 1, &out);
    expect(out.experts[0] == 3 && out.experts[1] == 4);
    choice_free(&out);
}
END_TEST

START_TEST(nan_is_not_hidden)
{
    static const shape_t s = {1, 8, 2, 4, 2, false, true};
    float logits[8] = {0};
    logits[6] = NAN;
    choice_t out = choice_new(&s);
    for (int path = -1; reference_next_path(&path);) {
        route(reference_team((kern_path_t)path, 1), &s, logits, NULL, 1, &out);
        expect(out.experts[0] == 6);
        expect(isnan(out.weights[0]) && isnan(out.weights[1]));
    }
    choice_free(&out);
}
END_TEST

/* g * sigmoid(g) * u, whatever alpha and limit are. */
START_TEST(experts_may_have_a_plain_gate)
{
    reference_random_t random = reference_seed("experts_may_have_a_plain_gate");
    enum { EXPERTS = 3, INNER = 37, HIDDEN = 50, ROWS = 5 };
    kern_weight_t gate = reference_weight_new(KERN_TYPE_BF16, EXPERTS * INNER, HIDDEN, &random);
    kern_weight_t up = reference_weight_new(KERN_TYPE_BF16, EXPERTS * INNER, HIDDEN, &random);
    float input[ROWS * HIDDEN];
    float output[ROWS * INNER];
    double values[HIDDEN];
    static const int32_t order[ROWS] = {1, 4, 0, 2, 3};
    static const int32_t offsets[EXPERTS + 1] = {0, 2, 2, ROWS};
    for (size_t i = 0; i < ROWS * HIDDEN; i++) {
        input[i] = reference_normal(&random);
    }
    kern_expert_weight_t first = {
        .data = gate.data,
        .type = KERN_TYPE_BF16,
        .rows = INNER,
        .cols = HIDDEN,
        .expert_stride_bytes = INNER * kern_type_row_size_bytes(KERN_TYPE_BF16, HIDDEN),
    };
    kern_expert_weight_t second = first;
    second.data = up.data;
    kern_expert_gate_up_args_t args = {
        .pairs = {order, offsets, EXPERTS, ROWS},
        .input = input,
        .input_stride = HIDDEN,
        .input_divisor = 1,
        .gate = first,
        .up = second,
        .bend = KERN_EXPERT_SILU,
        .output = output,
        .output_stride = INNER,
    };
    for (int path = -1; reference_next_path(&path);) {
        kern_team_run(reference_team((kern_path_t)path, 2), kern_expert_gate_up_host, &args);
        for (uint32_t i = 0; i < ROWS; i++) {
            uint32_t pair = (uint32_t)order[i];
            uint32_t expert = i < 2 ? 0 : 2;
            for (uint32_t n = 0; n < INNER; n++) {
                double sums[2] = {0.0, 0.0};
                for (int m = 0; m < 2; m++) {
                    reference_weight_row(m == 0 ? &gate : &up, expert * INNER + n, values);
                    for (uint32_t k = 0; k < HIDDEN; k++) {
                        sums[m] += values[k] * (double)input[pair * HIDDEN + k];
                    }
                }
                double wanted = sums[0] / (1.0 + exp(-sums[0])) * sums[1];
                expect(fabs((double)output[pair * INNER + n] - wanted) <=
                       1e-5 * (1.0 + fabs(wanted)));
            }
        }
    }
    free((void *)(uintptr_t)gate.data);
    free((void *)(uintptr_t)up.data);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.route");
    TCase *tests = tcase_create("route");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, choices_agree_with_doubles, 0, SHAPES);
    tcase_add_test(tests, a_bias_chooses_and_does_not_weigh);
    tcase_add_test(tests, a_group_is_as_good_as_its_two_best);
    tcase_add_test(tests, nan_is_not_hidden);
    tcase_add_test(tests, experts_may_have_a_plain_gate);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
