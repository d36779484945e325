/* The gated delta rule: against doubles, and the same bits however a sequence is cut. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_expect.h"
#include "kern_gdn.h"
#include "kern_recurrent.h"
#include "kern_reference.h"
#include "kern_team.h"

enum {
    REQUESTS = 8,
    BLOCKS = RECURRENT_BLOCKS,
};

static const recurrent_shape_t shapes[] = {
    {1, 1, 16, 16, 4},   {2, 4, 64, 64, 4}, {1, 3, 17, 33, 4}, {2, 2, 128, 128, 4},
    {1, 1, 256, 256, 4}, {2, 6, 40, 24, 3}, {1, 2, 1, 1, 2},   {1, 1, 100, 47, 4},
};

enum {
    SHAPES = sizeof shapes / sizeof *shapes,
};

/* Requests of a ragged batch: every kind of start and length. */
static const int32_t lengths[REQUESTS] = {1, 63, 64, 0, 65, 130, 5, 300};
static const int32_t ins[REQUESTS] = {0, 2, 0, 3, -1, 5, 6, 0};
static const int32_t outs[REQUESTS] = {1, 2, 4, 3, 7, 8, 0, 9}; /* 2 in place, 6 writes none */
static const int32_t prefixes[REQUESTS] = {0, 64, 0, 64, 0, 128, 3, 0};

static double worst;

static void
check_near(double value, double wanted, const char *what)
{
    double error = fabs(value - wanted) / (1.0 + fabs(wanted));
    worst = error > worst ? error : worst;
    expect_msg(error <= 4e-6, "%s: %.9g, not %.9g", what, value, wanted);
}

static void
bounds_of(int32_t *cu_rows)
{
    cu_rows[0] = 0;
    for (uint32_t r = 0; r < REQUESTS; r++) {
        cu_rows[r + 1] = cu_rows[r] + lengths[r];
    }
}

/* The states that the batch starts from; all else stays NaN. */
static void
fill_inputs(const recurrent_cache_t *cache, reference_random_t *random)
{
    recurrent_fill(cache, 2, random);
    recurrent_fill(cache, 5, random);
    recurrent_fill(cache, 6, random);
}

/* One request's rows and its final state against doubles. */
static void
check_request(const kern_gdn_t *gdn, const float *before, const float *after, int32_t first,
              int32_t rows)
{
    size_t head_len = (size_t)gdn->k_dim * gdn->v_dim;
    double *state = malloc(head_len * sizeof *state);
    double *out = malloc(gdn->v_dim * sizeof *out);
    expect(state != NULL && out != NULL);
    for (uint32_t head = 0; head < gdn->v_heads; head++) {
        for (size_t i = 0; i < head_len; i++) {
            state[i] = before != NULL ? (double)before[head * head_len + i] : 0.0;
        }
        for (int32_t t = 0; t < rows; t++) {
            size_t row = (size_t)(first + t);
            reference_gdn_row(gdn, row, head, state, out);
            const float *got = gdn->output + row * gdn->output_stride + head * gdn->v_dim;
            for (uint32_t c = 0; c < gdn->v_dim; c++) {
                check_near((double)got[c], out[c], "output");
            }
        }
        for (size_t i = 0; after != NULL && i < head_len; i++) {
            check_near((double)after[head * head_len + i], state[i], "state");
        }
    }
    free(state);
    free(out);
}

/* A ragged batch of fresh, resumed, padded, empty and read-only requests.  Blocks that nobody names
 * stay as they are, and what is fresh never reads one: they are NaN. */
START_TEST(prefill_agrees_with_doubles)
{
    reference_random_t random = reference_seed("prefill_agrees_with_doubles");
    int32_t cu_rows[REQUESTS + 1];
    bounds_of(cu_rows);
    recurrent_t layer = recurrent_new(&shapes[_i], (uint32_t)cu_rows[REQUESTS], &random);
    recurrent_cache_t original = recurrent_cache_new(recurrent_state_len(&layer), BLOCKS);
    fill_inputs(&original, &random);
    size_t out_size_bytes = (size_t)layer.rows * recurrent_output_len(&layer) * sizeof(float);
    for (int path = -1; reference_next_path(&path);) {
        recurrent_cache_t cache = recurrent_cache_new(original.len, BLOCKS);
        memcpy(cache.floats, original.floats, BLOCKS * cache.stride * sizeof(float));
        reference_guarded_t out = reference_guarded_new(out_size_bytes);
        kern_gdn_prefill_args_t args = {
            .gdn = recurrent_gdn(&layer, layer.input, layer.stride, 0, out.data),
            .cache = recurrent_states(&cache, BLOCKS),
            .cu_rows = cu_rows,
            .prefix_lens = prefixes,
            .in_blocks = ins,
            .out_blocks = outs,
            .request_count = REQUESTS,
        };
        kern_team_run(reference_team((kern_path_t)path, 2), kern_gdn_prefill_host, &args);
        reference_guarded_check(&out);
        for (uint32_t r = 0; r < REQUESTS; r++) {
            const float *before = ins[r] > 0 ? recurrent_block(&original, ins[r]) : NULL;
            const float *after = outs[r] > 0 ? recurrent_block(&cache, outs[r]) : NULL;
            if (ins[r] >= 0 && lengths[r] > 0) {
                check_request(&args.gdn, before, after, cu_rows[r], lengths[r]);
            }
        }
        const float *padded = args.gdn.output + (size_t)cu_rows[4] * args.gdn.output_stride;
        for (size_t i = 0; i < (size_t)lengths[4] * args.gdn.output_stride; i++) {
            expect(padded[i] == 0.0f);
        }
        static const int32_t untouched[] = {0, 3, 7, 10, 11};
        for (size_t i = 0; i < sizeof untouched / sizeof *untouched; i++) {
            expect(recurrent_untouched(&cache, untouched[i]));
        }
        expect(recurrent_same(&cache, 5, &original, 5) && recurrent_same(&cache, 6, &original, 6));
        recurrent_cache_free(&cache);
        reference_guarded_free(&out);
    }
    printf("worst error %.3g\n", worst);
    recurrent_cache_free(&original);
    recurrent_free(&layer);
}
END_TEST

/* A request's outputs and state do not depend on the batch around it, or on the threads. */
START_TEST(a_batch_is_its_requests_alone)
{
    reference_random_t random = reference_seed("a_batch_is_its_requests_alone");
    int32_t cu_rows[REQUESTS + 1];
    bounds_of(cu_rows);
    recurrent_t layer = recurrent_new(&shapes[_i], (uint32_t)cu_rows[REQUESTS], &random);
    recurrent_cache_t original = recurrent_cache_new(recurrent_state_len(&layer), BLOCKS);
    fill_inputs(&original, &random);
    size_t len = (size_t)layer.rows * recurrent_output_len(&layer);
    float *together = malloc(len * sizeof *together);
    float *alone = malloc(len * sizeof *alone);
    expect(together != NULL && alone != NULL);
    static const uint32_t threads[REQUESTS] = {1, 2, 3, 5, 1, 2, 3, 8};
    for (int path = -1; reference_next_path(&path);) {
        recurrent_cache_t cache = recurrent_cache_new(original.len, BLOCKS);
        recurrent_cache_t other = recurrent_cache_new(original.len, BLOCKS);
        memcpy(cache.floats, original.floats, BLOCKS * cache.stride * sizeof(float));
        memcpy(other.floats, original.floats, BLOCKS * cache.stride * sizeof(float));
        kern_gdn_prefill_args_t args = {
            .gdn = recurrent_gdn(&layer, layer.input, layer.stride, 0, together),
            .cache = recurrent_states(&cache, BLOCKS),
            .cu_rows = cu_rows,
            .prefix_lens = prefixes,
            .in_blocks = ins,
            .out_blocks = outs,
            .request_count = REQUESTS,
        };
        kern_team_run(reference_team((kern_path_t)path, 2), kern_gdn_prefill_host, &args);
        for (uint32_t r = 0; r < REQUESTS; r++) {
            int32_t bounds[2] = {0, lengths[r]};
            args.gdn =
                recurrent_gdn(&layer, layer.input, layer.stride, (uint32_t)cu_rows[r], alone);
            args.cache = recurrent_states(&other, BLOCKS);
            args.cu_rows = bounds;
            args.in_blocks = &ins[r];
            args.out_blocks = &outs[r];
            args.request_count = 1;
            kern_team_run(reference_team((kern_path_t)path, threads[r]), kern_gdn_prefill_host,
                          &args);
        }
        expect(memcmp(together, alone, len * sizeof *alone) == 0);
        expect(memcmp(cache.floats, other.floats, BLOCKS * cache.stride * sizeof(float)) == 0);
        recurrent_cache_free(&cache);
        recurrent_cache_free(&other);
    }
    free(together);
    free(alone);
    recurrent_cache_free(&original);
    recurrent_free(&layer);
}
END_TEST

enum {
    PROMPT = 300,
};

/* Rows first .. first + count - 1 from block `in` to block `out`, as one chunk of a prompt or in
 * steps of `width` rows. */
static void
run_rows(const recurrent_t *layer, const recurrent_cache_t *cache, kern_team_t *team,
         const int32_t where[4], float *output)
{
    int32_t first = where[0];
    int32_t count = where[1];
    int32_t blocks[2] = {where[2], where[3]};
    kern_gdn_t gdn = recurrent_gdn(layer, layer->input, layer->stride, (uint32_t)first, output);
    if (count > 5) {
        int32_t bounds[2] = {0, count};
        kern_gdn_prefill_args_t args = {
            .gdn = gdn,
            .cache = recurrent_states(cache, BLOCKS),
            .cu_rows = bounds,
            .prefix_lens = &first,
            .in_blocks = &blocks[0],
            .out_blocks = &blocks[1],
            .request_count = 1,
        };
        kern_team_run(team, kern_gdn_prefill_host, &args);
    } else {
        kern_gdn_decode_args_t args = {
            .gdn = gdn,
            .cache = recurrent_states(cache, BLOCKS),
            .in_blocks = &blocks[0],
            .out_blocks = &blocks[1],
            .bs = 1,
            .rows_per_request = (uint32_t)count,
        };
        kern_team_run(team, kern_gdn_decode_host, &args);
    }
}

/* A prompt in chunks on the grid, in chunks anywhere, and row by row: one result, bit for bit.
 * Chunks alternate between working in place and moving to another block. */
START_TEST(however_a_prompt_is_cut_it_is_the_whole)
{
    reference_random_t random = reference_seed("however_a_prompt_is_cut_it_is_the_whole");
    recurrent_t layer = recurrent_new(&shapes[_i], PROMPT, &random);
    size_t len = (size_t)PROMPT * recurrent_output_len(&layer);
    float *whole = malloc(len * sizeof *whole);
    float *cut = malloc(len * sizeof *cut);
    expect(whole != NULL && cut != NULL);
    for (int path = -1; reference_next_path(&path);) {
        kern_team_t *team = reference_team((kern_path_t)path, 2);
        recurrent_cache_t cache = recurrent_cache_new(recurrent_state_len(&layer), BLOCKS);
        int32_t all[4] = {0, PROMPT, 0, 1};
        run_rows(&layer, &cache, team, all, whole);
        for (int variant = 0; variant < 4; variant++) {
            memset(cut, 0xff, len * sizeof *cut);
            int32_t block = 0;
            for (int32_t at = 0; at < PROMPT;) {
                int32_t step = (int32_t)(1 + reference_u32(&random) % 90);
                step = variant == 0 ? KERN_GDN_GRID : variant == 1 ? 2 * KERN_GDN_GRID : step;
                step = variant == 3 ? 1 + step % 5 : step;
                step = step < PROMPT - at ? step : PROMPT - at;
                bool stay = block != 0 && reference_u32(&random) % 2 == 0;
                int32_t next = stay ? block : block == 2 ? 3 : 2;
                int32_t where[4] = {at, step, block, next};
                run_rows(&layer, &cache, team, where, cut);
                block = next;
                at += step;
            }
            expect(memcmp(whole, cut, len * sizeof *cut) == 0);
            expect(recurrent_same(&cache, 1, &cache, block));
        }
        recurrent_cache_free(&cache);
    }
    free(whole);
    free(cut);
    recurrent_free(&layer);
}
END_TEST

enum {
    STEPS_BATCH = 9,
};

/* One row each of requests on any blocks, in one launch and one by one on other threads. */
START_TEST(a_step_is_its_requests_alone)
{
    reference_random_t random = reference_seed("a_step_is_its_requests_alone");
    recurrent_t layer = recurrent_new(&shapes[_i], STEPS_BATCH, &random);
    size_t width = recurrent_output_len(&layer);
    float *together = malloc(STEPS_BATCH * width * sizeof *together);
    float *alone = malloc(STEPS_BATCH * width * sizeof *alone);
    expect(together != NULL && alone != NULL);
    /* in place, moved, two from one block, fresh, padded */
    static const int32_t from[STEPS_BATCH] = {3, 1, 2, 2, 0, -1, 4, -1, 5};
    static const int32_t to[STEPS_BATCH] = {3, 6, 7, 8, 9, -1, 4, 0, 10};
    for (int path = -1; reference_next_path(&path);) {
        recurrent_cache_t caches[2];
        caches[0] = recurrent_cache_new(recurrent_state_len(&layer), BLOCKS);
        caches[1] = recurrent_cache_new(recurrent_state_len(&layer), BLOCKS);
        for (int32_t block = 1; block <= 5; block++) {
            recurrent_fill(&caches[0], block, &random);
            memcpy(recurrent_block(&caches[1], block), recurrent_block(&caches[0], block),
                   caches[0].len * sizeof(float));
        }
        kern_gdn_decode_args_t args = {
            .gdn = recurrent_gdn(&layer, layer.input, layer.stride, 0, together),
            .cache = recurrent_states(&caches[0], BLOCKS),
            .in_blocks = from,
            .out_blocks = to,
            .bs = STEPS_BATCH,
            .rows_per_request = 1,
        };
        kern_team_run(reference_team((kern_path_t)path, 2), kern_gdn_decode_host, &args);
        for (uint32_t r = 0; r < STEPS_BATCH; r++) {
            args.gdn = recurrent_gdn(&layer, layer.input, layer.stride, r, alone);
            args.cache = recurrent_states(&caches[1], BLOCKS);
            args.in_blocks = &from[r];
            args.out_blocks = &to[r];
            args.bs = 1;
            kern_team_run(reference_team((kern_path_t)path, 1 + r % 4), kern_gdn_decode_host,
                          &args);
        }
        expect(memcmp(together, alone, STEPS_BATCH * width * sizeof *alone) == 0);
        for (int32_t block = 1; block <= 10; block++) {
            expect(recurrent_same(&caches[0], block, &caches[1], block));
        }
        expect(recurrent_untouched(&caches[0], 0) && recurrent_untouched(&caches[1], 0));
        recurrent_cache_free(&caches[0]);
        recurrent_cache_free(&caches[1]);
    }
    free(together);
    free(alone);
    recurrent_free(&layer);
}
END_TEST

enum {
    WIDTH_MAX = 5,
    BATCH = 3,
    ROWS_OF_SCRATCH = BATCH * (WIDTH_MAX + 1),
};

/* A verify of BATCH requests, the middle one padded. */
typedef struct {
    const recurrent_t *layer;
    kern_team_t *team;
    recurrent_cache_t cache;
    recurrent_cache_t scratch;
    int32_t blocks[BATCH];
    int32_t seeds[BATCH];
    uint32_t width;
    float *outputs[3];
} verify_t;

static verify_t
verify_new(const recurrent_t *layer, kern_team_t *team, uint32_t width, reference_random_t *random)
{
    verify_t self = {
        .layer = layer,
        .team = team,
        .cache = recurrent_cache_new(recurrent_state_len(layer), BLOCKS),
        .scratch = recurrent_cache_new(recurrent_state_len(layer), ROWS_OF_SCRATCH),
        .blocks = {2, -1, 4},
        .seeds = {0, -1, 2 * ((int32_t)width + 1)},
        .width = width,
    };
    for (int i = 0; i < BATCH; i += 2) {
        recurrent_fill(&self.cache, self.blocks[i], random);
        memcpy(recurrent_block(&self.scratch, self.seeds[i]),
               recurrent_block(&self.cache, self.blocks[i]), self.cache.len * sizeof(float));
    }
    for (int i = 0; i < 3; i++) {
        self.outputs[i] = malloc(layer->rows * recurrent_output_len(layer) * sizeof(float));
        expect(self.outputs[i] != NULL);
    }
    return self;
}

static void
verify_free(verify_t *self)
{
    recurrent_cache_free(&self->cache);
    recurrent_cache_free(&self->scratch);
    for (int i = 0; i < 3; i++) {
        free(self->outputs[i]);
    }
}

/* Verify with a scratch and verify that only reads: the same outputs. */
static void
check_outputs(const verify_t *self)
{
    const recurrent_t *layer = self->layer;
    kern_gdn_verify_args_t verify = {
        .gdn = recurrent_gdn(layer, layer->input, layer->stride, 0, self->outputs[0]),
        .scratch = recurrent_states(&self->scratch, BATCH * (self->width + 1)),
        .seeds = self->seeds,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_gdn_verify_host, &verify);
    kern_gdn_decode_args_t decode = {
        .gdn = recurrent_gdn(layer, layer->input, layer->stride, 0, self->outputs[1]),
        .cache = recurrent_states(&self->cache, BLOCKS),
        .in_blocks = self->blocks,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_gdn_decode_host, &decode);
    size_t used_size_bytes =
        (size_t)BATCH * self->width * recurrent_output_len(layer) * sizeof(float);
    expect(memcmp(self->outputs[0], self->outputs[1], used_size_bytes) == 0);
    for (uint32_t i = 0; i < BATCH; i += 2) {
        expect(recurrent_same(&self->scratch, self->seeds[i], &self->cache, self->blocks[i]));
    }
    for (uint32_t r = 0; r <= self->width; r++) {
        expect(recurrent_untouched(&self->scratch, (int32_t)(self->width + 1 + r)));
    }
}

/* Replay of any accepted count leaves the state that the scratch has in that row. */
static void
check_replay(const verify_t *self, int32_t accepted)
{
    const recurrent_t *layer = self->layer;
    int32_t most = (int32_t)self->width;
    int32_t kept = accepted < 1 ? 1 : accepted > most ? most : accepted;
    int32_t lens[BATCH] = {accepted, accepted, accepted};
    int32_t targets[BATCH] = {7, 8, accepted % 2 == 0 ? 9 : -1};
    kern_gdn_replay_args_t replay = {
        .gdn = recurrent_gdn(layer, layer->input, layer->stride, 0, self->outputs[2]),
        .cache = recurrent_states(&self->cache, BLOCKS),
        .in_blocks = self->blocks,
        .out_blocks = targets,
        .accept_lengths = lens,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_gdn_replay_host, &replay);
    expect(recurrent_same(&self->cache, 7, &self->scratch, self->seeds[0] + kept));
    if (targets[2] > 0) {
        expect(recurrent_same(&self->cache, 9, &self->scratch, self->seeds[2] + kept));
    }
    expect(recurrent_untouched(&self->cache, 8) && recurrent_untouched(&self->cache, 0));
}

/* Verify writes the state after every row, which replay and single steps reproduce; a padded
 * request is left alone. */
START_TEST(verify_keeps_the_state_after_every_row)
{
    reference_random_t random = reference_seed("verify_keeps_the_state_after_every_row");
    recurrent_t layer = recurrent_new(&shapes[_i], BATCH * WIDTH_MAX, &random);
    for (int path = -1; reference_next_path(&path);) {
        for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
            kern_team_t *team = reference_team((kern_path_t)path, 1 + width % 3);
            verify_t verify = verify_new(&layer, team, width, &random);
            check_outputs(&verify);
            for (int32_t accepted = -1; accepted <= (int32_t)width + 1; accepted++) {
                check_replay(&verify, accepted);
            }
            for (uint32_t i = 0; i < BATCH; i += 2) {
                int32_t in = verify.blocks[i];
                for (uint32_t t = 0; t < width; t++) {
                    int32_t where[4] = {(int32_t)(i * width + t), 1, in, 10};
                    run_rows(&layer, &verify.cache, team, where, verify.outputs[2]);
                    expect(recurrent_same(&verify.cache, 10, &verify.scratch,
                                          verify.seeds[i] + 1 + (int32_t)t));
                    in = 10;
                }
            }
            verify_free(&verify);
        }
    }
    recurrent_free(&layer);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.gdn");
    TCase *tests = tcase_create("gdn");
    tcase_set_timeout(tests, 100);
    tcase_add_loop_test(tests, prefill_agrees_with_doubles, 0, SHAPES);
    tcase_add_loop_test(tests, a_batch_is_its_requests_alone, 0, SHAPES);
    tcase_add_loop_test(tests, however_a_prompt_is_cut_it_is_the_whole, 0, SHAPES);
    tcase_add_loop_test(tests, a_step_is_its_requests_alone, 0, SHAPES);
    tcase_add_loop_test(tests, verify_keeps_the_state_after_every_row, 0, SHAPES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
