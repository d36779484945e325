/* The causal convolution: against doubles, its program maps, and the same bits however a sequence
 * is cut. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kern_conv.h"
#include "kern_expect.h"
#include "kern_recurrent.h"
#include "kern_reference.h"
#include "kern_team.h"

enum {
    REQUESTS = 9,
    BLOCKS = RECURRENT_BLOCKS,
    PROGRAMS_MAX = 40,
    PROMPT = 210,
    WIDTH_MAX = 5,
    BATCH = 3,
};

/* Channels 1 .. 1093: one lane, odd tails, and more than a tile. */
static const recurrent_shape_t shapes[] = {
    {1, 1, 16, 16, 4}, {1, 3, 17, 33, 4}, {2, 2, 128, 290, 4},
    {1, 1, 3, 11, 2},  {1, 1, 7, 1, 8},   {2, 3, 131, 189, 3},
};

enum {
    SHAPES = sizeof shapes / sizeof *shapes,
};

static const int32_t lengths[REQUESTS] = {1, 63, 64, 0, 65, 130, 2, 200, 1};
static const int32_t ins[REQUESTS] = {0, 2, 0, 3, -1, 5, 6, 0, 10};
static const int32_t outs[REQUESTS] = {1, 2, 4, 3, 7, 8, 0, 9, 10}; /* 2, 10 in place */

static void
check_near(double value, double wanted, const char *what)
{
    expect_msg(fabs(value - wanted) <= 2e-6 * fabs(wanted) + 2e-6, "%s: %.9g, not %.9g", what,
               value, wanted);
}

static void
bounds_of(int32_t *cu_rows)
{
    cu_rows[0] = 0;
    for (uint32_t r = 0; r < REQUESTS; r++) {
        cu_rows[r + 1] = cu_rows[r] + lengths[r];
    }
}

static void
fill_inputs(const recurrent_cache_t *cache, reference_random_t *random)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        if (ins[r] > 0 && lengths[r] > 0) {
            recurrent_fill(cache, ins[r], random);
        }
    }
}

/* The maps name every block of rows once, in order; what is left over has no work. */
START_TEST(programs_cover_every_row_once)
{
    int32_t cu_rows[REQUESTS + 1];
    bounds_of(cu_rows);
    int32_t requests[PROGRAMS_MAX + 1];
    int32_t chunks[PROGRAMS_MAX + 1];
    requests[PROGRAMS_MAX] = 77;
    chunks[PROGRAMS_MAX] = 77;
    uint32_t most = kern_conv_program_count((uint32_t)cu_rows[REQUESTS], REQUESTS);
    expect(most <= PROGRAMS_MAX);
    expect(kern_conv_program_count(0, 0) == 0);
    expect(kern_conv_program_count(KERN_CONV_BLOCK_ROWS + 1, 1) == 2);
    kern_conv_programs_args_t args = {
        .cu_rows = cu_rows,
        .request_count = REQUESTS,
        .program_count = PROGRAMS_MAX,
        .requests = requests,
        .chunks = chunks,
    };
    kern_team_run(reference_team(KERN_PATH_PORTABLE, 2), kern_conv_programs_host, &args);
    uint32_t at = 0;
    for (int32_t r = 0; r < REQUESTS; r++) {
        for (int32_t row = 0; row < lengths[r]; row += KERN_CONV_BLOCK_ROWS) {
            expect(requests[at] == r && chunks[at] == row / KERN_CONV_BLOCK_ROWS);
            at++;
        }
    }
    expect(at <= most);
    for (; at < PROGRAMS_MAX; at++) {
        expect(requests[at] == KERN_CONV_PAD && chunks[at] == KERN_CONV_PAD);
    }
    expect(requests[PROGRAMS_MAX] == 77 && chunks[PROGRAMS_MAX] == 77);
}
END_TEST

/* Builds the maps for that batch, then runs it. */
static void
run_prefill(kern_conv_prefill_args_t *args, kern_team_t *team)
{
    int32_t requests[PROGRAMS_MAX];
    int32_t chunks[PROGRAMS_MAX];
    kern_conv_programs_args_t programs = {
        .cu_rows = args->cu_rows,
        .request_count = args->request_count,
        .program_count = PROGRAMS_MAX,
        .requests = requests,
        .chunks = chunks,
    };
    kern_team_run(team, kern_conv_programs_host, &programs);
    args->program_count = PROGRAMS_MAX;
    args->requests = requests;
    args->chunks = chunks;
    kern_team_run(team, kern_conv_prefill_host, args);
}

/* The window after a request's rows: its last inputs, before them what was there. */
static void
check_window(const kern_conv_t *conv, const float *before, const float *after, int32_t first,
             int32_t rows)
{
    for (uint32_t j = 0; j + 1 < conv->width; j++) {
        int64_t at = (int64_t)rows - (conv->width - 1) + j;
        for (uint32_t c = 0; c < conv->channels; c++) {
            float wanted = 0.0f;
            if (at >= 0) {
                wanted = conv->input[(size_t)(first + at) * conv->input_stride + c];
            } else if (before != NULL) {
                wanted = before[(size_t)(at + conv->width - 1) * conv->channels + c];
            }
            expect(after[(size_t)j * conv->channels + c] == wanted);
        }
    }
}

START_TEST(prefill_agrees_with_doubles)
{
    reference_random_t random = reference_seed("conv prefill_agrees_with_doubles");
    int32_t cu_rows[REQUESTS + 1];
    bounds_of(cu_rows);
    recurrent_t layer = recurrent_new(&shapes[_i], (uint32_t)cu_rows[REQUESTS], &random);
    recurrent_cache_t original = recurrent_cache_new(recurrent_window_len(&layer), BLOCKS);
    fill_inputs(&original, &random);
    for (int path = -1; reference_next_path(&path);) {
        recurrent_cache_t cache = recurrent_cache_new(original.len, BLOCKS);
        memcpy(cache.floats, original.floats, BLOCKS * cache.stride * sizeof(float));
        reference_guarded_t out =
            reference_guarded_new((size_t)layer.rows * layer.channels * sizeof(float));
        kern_conv_prefill_args_t args = {
            .conv = recurrent_conv(&layer, 0, out.data),
            .cache = recurrent_windows(&cache, BLOCKS),
            .cu_rows = cu_rows,
            .in_blocks = ins,
            .out_blocks = outs,
            .request_count = REQUESTS,
        };
        args.conv.silu = path != KERN_PATH_PORTABLE;
        args.conv.bias = path == KERN_PATH_PORTABLE ? NULL : layer.bias;
        run_prefill(&args, reference_team((kern_path_t)path, 2));
        reference_guarded_check(&out);
        for (uint32_t r = 0; r < REQUESTS; r++) {
            const float *before = ins[r] > 0 ? recurrent_block(&original, ins[r]) : NULL;
            size_t first = (size_t)cu_rows[r];
            for (int32_t t = 0; t < lengths[r]; t++) {
                const float *got = args.conv.output + (first + (size_t)t) * layer.channels;
                for (uint32_t c = 0; c < layer.channels; c++) {
                    double wanted =
                        ins[r] < 0 ? 0.0 : reference_conv(&args.conv, before, first, t, c);
                    check_near((double)got[c], wanted, "conv");
                }
            }
            if (ins[r] >= 0 && outs[r] > 0 && lengths[r] > 0) {
                const float *after = recurrent_block(&cache, outs[r]);
                check_window(&args.conv, before, after, cu_rows[r], lengths[r]);
            }
        }
        static const int32_t untouched[] = {0, 3, 7, 11};
        for (size_t i = 0; i < sizeof untouched / sizeof *untouched; i++) {
            expect(recurrent_untouched(&cache, untouched[i]));
        }
        recurrent_cache_free(&cache);
        reference_guarded_free(&out);
    }
    recurrent_cache_free(&original);
    recurrent_free(&layer);
}
END_TEST

/* A request's outputs and window do not depend on the batch around it, or on the threads. */
START_TEST(a_batch_is_its_requests_alone)
{
    reference_random_t random = reference_seed("conv a_batch_is_its_requests_alone");
    int32_t cu_rows[REQUESTS + 1];
    bounds_of(cu_rows);
    recurrent_t layer = recurrent_new(&shapes[_i], (uint32_t)cu_rows[REQUESTS], &random);
    recurrent_cache_t original = recurrent_cache_new(recurrent_window_len(&layer), BLOCKS);
    fill_inputs(&original, &random);
    size_t len = (size_t)layer.rows * layer.channels;
    float *together = malloc(len * sizeof *together);
    float *alone = malloc(len * sizeof *alone);
    expect(together != NULL && alone != NULL);
    for (int path = -1; reference_next_path(&path);) {
        recurrent_cache_t caches[2];
        for (int i = 0; i < 2; i++) {
            caches[i] = recurrent_cache_new(original.len, BLOCKS);
            memcpy(caches[i].floats, original.floats, BLOCKS * original.stride * sizeof(float));
        }
        kern_conv_prefill_args_t args = {
            .conv = recurrent_conv(&layer, 0, together),
            .cache = recurrent_windows(&caches[0], BLOCKS),
            .cu_rows = cu_rows,
            .in_blocks = ins,
            .out_blocks = outs,
            .request_count = REQUESTS,
        };
        run_prefill(&args, reference_team((kern_path_t)path, 2));
        for (uint32_t r = 0; r < REQUESTS; r++) {
            int32_t bounds[2] = {0, lengths[r]};
            args.conv = recurrent_conv(&layer, (uint32_t)cu_rows[r], alone);
            args.cache = recurrent_windows(&caches[1], BLOCKS);
            args.cu_rows = bounds;
            args.in_blocks = &ins[r];
            args.out_blocks = &outs[r];
            args.request_count = 1;
            run_prefill(&args, reference_team((kern_path_t)path, 1 + r % 4));
        }
        expect(memcmp(together, alone, len * sizeof *alone) == 0);
        expect(memcmp(caches[0].floats, caches[1].floats,
                      BLOCKS * original.stride * sizeof(float)) == 0);
        recurrent_cache_free(&caches[0]);
        recurrent_cache_free(&caches[1]);
    }
    free(together);
    free(alone);
    recurrent_cache_free(&original);
    recurrent_free(&layer);
}
END_TEST

/* Rows from `where[0]` on, `where[1]` of them, from block where[2] to block where[3]. */
static void
run_rows(const recurrent_t *layer, const recurrent_cache_t *cache, kern_team_t *team,
         const int32_t where[4], float *output)
{
    int32_t bounds[2] = {0, where[1]};
    if (where[1] > WIDTH_MAX) {
        kern_conv_prefill_args_t args = {
            .conv = recurrent_conv(layer, (uint32_t)where[0], output),
            .cache = recurrent_windows(cache, BLOCKS),
            .cu_rows = bounds,
            .in_blocks = &where[2],
            .out_blocks = &where[3],
            .request_count = 1,
        };
        run_prefill(&args, team);
        return;
    }
    kern_conv_decode_args_t args = {
        .conv = recurrent_conv(layer, (uint32_t)where[0], output),
        .cache = recurrent_windows(cache, BLOCKS),
        .in_blocks = &where[2],
        .out_blocks = &where[3],
        .bs = 1,
        .rows_per_request = (uint32_t)where[1],
    };
    kern_team_run(team, kern_conv_decode_host, &args);
}

START_TEST(however_a_prompt_is_cut_it_is_the_whole)
{
    reference_random_t random = reference_seed("conv however_a_prompt_is_cut");
    recurrent_t layer = recurrent_new(&shapes[_i], PROMPT, &random);
    size_t len = (size_t)PROMPT * layer.channels;
    float *whole = malloc(len * sizeof *whole);
    float *cut = malloc(len * sizeof *cut);
    expect(whole != NULL && cut != NULL);
    for (int path = -1; reference_next_path(&path);) {
        recurrent_cache_t cache = recurrent_cache_new(recurrent_window_len(&layer), BLOCKS);
        int32_t all[4] = {0, PROMPT, 0, 1};
        run_rows(&layer, &cache, reference_team((kern_path_t)path, 3), all, whole);
        for (uint32_t variant = 0; variant < 4; variant++) {
            memset(cut, 0xff, len * sizeof *cut);
            int32_t block = 0;
            for (int32_t at = 0; at < PROMPT;) {
                int32_t step = 1 + (int32_t)(reference_u32(&random) % (variant < 2 ? 100 : 5));
                step = step < PROMPT - at ? step : PROMPT - at;
                bool stay = block != 0 && reference_u32(&random) % 2 == 0;
                int32_t next = stay ? block : block == 2 ? 3 : 2;
                int32_t where[4] = {at, step, block, next};
                run_rows(&layer, &cache, reference_team((kern_path_t)path, 1 + variant), where,
                         cut);
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

/* Replay of every accepted count gives the window that verify left in its scratch. */
static void
check_replay(const recurrent_t *layer, const recurrent_cache_t *cache,
             const recurrent_cache_t *scratch, kern_team_t *team,
             const kern_conv_verify_args_t *args, const int32_t *blocks)
{
    int32_t width = (int32_t)args->rows_per_request;
    for (int32_t accepted = -1; accepted <= width + 1; accepted++) {
        int32_t kept = accepted < 1 ? 1 : accepted > width ? width : accepted;
        int32_t lens[BATCH] = {accepted, accepted, accepted};
        int32_t targets[BATCH] = {7, 8, 9};
        kern_conv_replay_args_t replay = {
            .conv = recurrent_conv(layer, 0, args->conv.output),
            .cache = recurrent_windows(cache, BLOCKS),
            .in_blocks = blocks,
            .out_blocks = targets,
            .accept_lengths = lens,
            .bs = BATCH,
            .rows_per_request = args->rows_per_request,
        };
        kern_team_run(team, kern_conv_replay_host, &replay);
        expect(recurrent_same(cache, 7, scratch, args->seeds[0] + kept));
        expect(recurrent_same(cache, 9, scratch, args->seeds[2] + kept));
        expect(recurrent_untouched(cache, 8) && recurrent_untouched(cache, 0));
    }
}

START_TEST(verify_keeps_the_window_after_every_row)
{
    reference_random_t random = reference_seed("verify_keeps_the_window_after_every_row");
    recurrent_t layer = recurrent_new(&shapes[_i], BATCH * WIDTH_MAX, &random);
    size_t len = (size_t)layer.rows * layer.channels;
    float *verified = malloc(len * sizeof *verified);
    float *decoded = malloc(len * sizeof *decoded);
    expect(verified != NULL && decoded != NULL);
    for (int path = -1; reference_next_path(&path);) {
        for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
            kern_team_t *team = reference_team((kern_path_t)path, 1 + width % 3);
            size_t window_len = recurrent_window_len(&layer);
            recurrent_cache_t cache = recurrent_cache_new(window_len, BLOCKS);
            recurrent_cache_t scratch = recurrent_cache_new(window_len, BATCH * (WIDTH_MAX + 1));
            int32_t blocks[BATCH] = {2, -1, 4};
            int32_t seeds[BATCH] = {0, -1, 2 * ((int32_t)width + 1)};
            for (int i = 0; i < BATCH; i += 2) {
                recurrent_fill(&cache, blocks[i], &random);
                memcpy(recurrent_block(&scratch, seeds[i]), recurrent_block(&cache, blocks[i]),
                       window_len * sizeof(float));
            }
            kern_conv_verify_args_t verify = {
                .conv = recurrent_conv(&layer, 0, verified),
                .scratch = recurrent_windows(&scratch, BATCH * (width + 1)),
                .seeds = seeds,
                .bs = BATCH,
                .rows_per_request = width,
            };
            kern_team_run(team, kern_conv_verify_host, &verify);
            kern_conv_decode_args_t decode = {
                .conv = recurrent_conv(&layer, 0, decoded),
                .cache = recurrent_windows(&cache, BLOCKS),
                .in_blocks = blocks,
                .bs = BATCH,
                .rows_per_request = width,
            };
            kern_team_run(team, kern_conv_decode_host, &decode);
            expect(memcmp(verified, decoded, BATCH * width * layer.channels * sizeof(float)) == 0);
            for (uint32_t i = 0; i < BATCH; i += 2) {
                expect(recurrent_same(&scratch, seeds[i], &cache, blocks[i]));
                const float *before = recurrent_block(&cache, blocks[i]);
                for (uint32_t t = 1; t <= width; t++) {
                    const float *after = recurrent_block(&scratch, seeds[i] + (int32_t)t);
                    check_window(&verify.conv, before, after, (int32_t)(i * width), (int32_t)t);
                }
            }
            for (uint32_t r = 0; r <= width; r++) {
                expect(recurrent_untouched(&scratch, (int32_t)(width + 1 + r)));
            }
            check_replay(&layer, &cache, &scratch, team, &verify, blocks);
            recurrent_cache_free(&cache);
            recurrent_cache_free(&scratch);
        }
    }
    free(verified);
    free(decoded);
    recurrent_free(&layer);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.conv");
    TCase *tests = tcase_create("conv");
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, programs_cover_every_row_once);
    tcase_add_loop_test(tests, prefill_agrees_with_doubles, 0, SHAPES);
    tcase_add_loop_test(tests, a_batch_is_its_requests_alone, 0, SHAPES);
    tcase_add_loop_test(tests, however_a_prompt_is_cut_it_is_the_whole, 0, SHAPES);
    tcase_add_loop_test(tests, verify_keeps_the_window_after_every_row, 0, SHAPES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
