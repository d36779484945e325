/* Blocks of state groups: which are read and written, staging, and the commit after a verify. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kern_conv.h"
#include "kern_expect.h"
#include "kern_gdn.h"
#include "kern_recurrent.h"
#include "kern_reference.h"
#include "kern_state.h"
#include "kern_team.h"

enum {
    GROUPS = 2,
    BS = 6,
    COLUMNS = 4,
    BLOCKS = 40,
    LAYERS = 3,
    WIDTH_MAX = 5,
};

/* [BS][COLUMNS] of two groups; ids differ so that a mix-up shows. */
static int32_t tables[GROUPS][BS * COLUMNS];

static void
make_groups(kern_state_group_t *groups, uint32_t granularity)
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (int32_t i = 0; i < BS * COLUMNS; i++) {
            tables[g][i] = g == 0 ? 1 + i : 39 - i;
        }
        groups[g] = (kern_state_group_t){tables[g], COLUMNS, COLUMNS, BLOCKS, granularity};
    }
}

static kern_team_t *
team(void)
{
    return reference_team(kern_path_best(), 2);
}

/* The column of the last token before, and of the last token after. */
START_TEST(blocks_come_from_the_columns_of_the_last_tokens)
{
    kern_state_group_t groups[GROUPS];
    make_groups(groups, 4);
    groups[1].granularity = 8;
    /* fresh; inside a column; onto a boundary; over it; a hole before; a hole after */
    int32_t seq_lens[BS] = {3, 7, 8, 9, 12, 13};
    int32_t extend_lens[BS] = {3, 1, 2, 2, 2, 2};
    tables[0][4 * COLUMNS + 2] = 0;
    tables[1][4 * COLUMNS + 1] = -1;
    tables[0][5 * COLUMNS + 3] = BLOCKS; /* outside the pool */
    tables[1][5 * COLUMNS + 1] = 0;
    int32_t in[GROUPS * (BS + 1)];
    int32_t out[GROUPS * (BS + 1)];
    kern_state_blocks_args_t args = {
        .groups = groups,
        .group_count = GROUPS,
        .seq_lens = seq_lens,
        .extend_lens = extend_lens,
        .bs = BS + 1,
        .actual_bs = BS,
        .in_blocks = in,
        .out_blocks = out,
    };
    kern_team_run(team(), kern_state_blocks_host, &args);
    static const int32_t wanted_in[] = {0, 6, 10, 14, -1, 23, -1, 0, 35, 31, 27, -1, -1, -1};
    static const int32_t wanted_out[] = {1, 6, 10, 15, -1, -1, -1, 39, 35, 31, 26, -1, -1, -1};
    for (int i = 0; i < GROUPS * (BS + 1); i++) {
        expect_msg(in[i] == wanted_in[i] && out[i] == wanted_out[i], "%d: %d %d", i, in[i], out[i]);
    }
    args.extend_lens = NULL;
    args.width = 3;
    kern_team_run(team(), kern_state_blocks_host, &args);
    expect(in[0] == 0 && out[0] == 1);   /* 0 -> 3 */
    expect(in[1] == 5 && out[1] == 6);   /* 4 -> 7 */
    expect(in[2] == 10 && out[2] == 10); /* 5 -> 8 */
    seq_lens[0] = 2;                     /* shorter than the width */
    seq_lens[1] = 40;
    kern_team_run(team(), kern_state_blocks_host, &args);
    expect(in[0] == -1 && out[0] == -1 && in[1] == -1 && out[1] == -1);
}
END_TEST

/* Kept within 1..N; a page for each group; no row and no page where there is none. */
START_TEST(commit_rows_point_at_the_accepted_state)
{
    for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
        kern_state_group_t groups[GROUPS];
        make_groups(groups, 4);
        tables[0][2 * COLUMNS + 1] = 0;
        tables[1][3 * COLUMNS] = -1;
        int32_t committed[BS] = {1, 2, 3, 0, 5, 14};
        int32_t accepts[BS] = {0, 1, 2, 3, 4, 9};
        int32_t accepted[BS];
        int32_t pages[GROUPS * BS];
        kern_commit_state_pages_args_t commit = {
            .groups = groups,
            .group_count = GROUPS,
            .committed_lens = committed,
            .accept_lengths = accepts,
            .width = width,
            .bs = BS,
            .accepted = accepted,
            .pages = pages,
        };
        kern_team_run(team(), kern_commit_state_pages_host, &commit);
        /* The history of request 1 is a hole: its scratch is nobody's. */
        static const uint32_t layer_groups[LAYERS] = {0, 1, 0};
        int32_t seeds[BS];
        for (int32_t i = 0; i < BS; i++) {
            seeds[i] = i == 1 ? -1 : i * ((int32_t)width + 1);
        }
        int32_t from[LAYERS * BS];
        int32_t to[LAYERS * BS];
        kern_state_verify_commit_rows_args_t rows = {
            .pages = pages,
            .accepted = accepted,
            .seeds = seeds,
            .layer_groups = layer_groups,
            .layer_count = LAYERS,
            .bs = BS,
            .from_rows = from,
            .to_rows = to,
        };
        kern_team_run(team(), kern_state_verify_commit_rows_host, &rows);
        for (int32_t i = 0; i < BS; i++) {
            int32_t most = (int32_t)width;
            int32_t kept = accepts[i] < 1 ? 1 : accepts[i] > most ? most : accepts[i];
            expect(accepted[i] == kept);
            for (uint32_t l = 0; l < LAYERS; l++) {
                uint32_t g = layer_groups[l];
                int32_t column = (committed[i] + kept - 1) / 4;
                int32_t page = column < COLUMNS ? tables[g][i * COLUMNS + column] : 0;
                page = page > 0 ? page : 0;
                expect(pages[g * BS + (uint32_t)i] == page);
                bool live = page > 0 && i != 1;
                int32_t row = live ? i * (most + 1) + kept : -1;
                expect(from[l * BS + (uint32_t)i] == row);
                expect(to[l * BS + (uint32_t)i] == (live ? page : -1));
            }
        }
    }
}
END_TEST

/* Rows of several fields, each by its own vectors; -1 skips, a fresh row is zeros. */
START_TEST(rows_are_copied_by_their_vectors)
{
    enum { COPIES = 4, TARGETS = 7, A = 33, B = 5000 };
    uint8_t *from = malloc(TARGETS * B);
    uint8_t *to = malloc(2 * TARGETS * B);
    expect(from != NULL && to != NULL);
    for (size_t i = 0; i < TARGETS * B; i++) {
        from[i] = (uint8_t)(i * 7 + i / 256 + 1);
    }
    static const int32_t from_rows[2 * COPIES] = {0, 3, -1, 5, 6, 0, 1, 2};
    static const int32_t to_rows[2 * COPIES] = {1, 2, 3, -1, 4, 0, 6, 5};
    kern_state_copy_field_t fields[2] = {
        {from, A + 2, to, A, A, 0, 1},
        {from, B, to + TARGETS * B, B, B - 1, 1, 0},
    };
    for (uint32_t fresh = 0; fresh < 2; fresh++) {
        memset(to, 0xEE, 2 * TARGETS * B);
        kern_state_copy_args_t args = {fields, 2, from_rows, to_rows, COPIES, (uint8_t)fresh};
        kern_team_run(team(), kern_state_copy_host, &args);
        for (uint32_t f = 0; f < 2; f++) {
            bool written[TARGETS] = {false};
            const uint8_t *base = fields[f].to;
            for (uint32_t i = 0; i < COPIES; i++) {
                int32_t source = from_rows[f * COPIES + i];
                int32_t target = to_rows[(1 - f) * COPIES + i];
                if (source < 0 || target < 0) {
                    continue;
                }
                written[target] = true;
                const uint8_t *got = base + (size_t)target * fields[f].to_stride_bytes;
                for (size_t k = 0; k < fields[f].row_bytes; k++) {
                    uint8_t byte = from[(size_t)source * fields[f].from_stride_bytes + k];
                    expect(got[k] == (fresh == 1 && source == 0 ? 0 : byte));
                }
            }
            for (size_t r = 0; r < TARGETS; r++) {
                expect(written[r] || base[r * fields[f].to_stride_bytes] == 0xEE);
            }
        }
    }
    free(from);
    free(to);
}
END_TEST

static const recurrent_shape_t shape = {1, 2, 24, 40, 4};

enum {
    COUNT = 5,
    ROWS = 70,
};

/* fresh; resumed from a shared block, twice; in place; padded */
static const int32_t ins[COUNT] = {0, 1, 1, 2, -1};
static const int32_t outs[COUNT] = {3, 4, 5, 2, -1};

/* A layer's caches; blocks 1 and 2 hold numbers. */
typedef struct {
    recurrent_cache_t states;
    recurrent_cache_t windows;
    float *output;
} caches_t;

static caches_t
caches_new(const recurrent_t *layer, const caches_t *like, reference_random_t *random)
{
    caches_t self = {
        .states = recurrent_cache_new(recurrent_state_len(layer), RECURRENT_BLOCKS),
        .windows = recurrent_cache_new(recurrent_window_len(layer), RECURRENT_BLOCKS),
        .output = malloc(layer->rows * recurrent_output_len(layer) * sizeof(float)),
    };
    expect(self.output != NULL);
    for (int32_t block = 1; block <= 2; block++) {
        if (like == NULL) {
            recurrent_fill(&self.states, block, random);
            recurrent_fill(&self.windows, block, random);
        } else {
            memcpy(recurrent_block(&self.states, block), recurrent_block(&like->states, block),
                   self.states.len * sizeof(float));
            memcpy(recurrent_block(&self.windows, block), recurrent_block(&like->windows, block),
                   self.windows.len * sizeof(float));
        }
    }
    return self;
}

static void
caches_free(caches_t *self)
{
    expect(recurrent_untouched(&self->states, 0) && recurrent_untouched(&self->windows, 0));
    recurrent_cache_free(&self->states);
    recurrent_cache_free(&self->windows);
    free(self->output);
}

/* The batch through convolution and scan. */
static void
prefill(const recurrent_t *layer, const caches_t *caches, const int32_t *in_blocks)
{
    float *qkv = malloc((size_t)layer->rows * layer->channels * sizeof *qkv);
    expect(qkv != NULL);
    int32_t cu_rows[COUNT + 1];
    int32_t prefixes[COUNT] = {0, 64, 64, 64, 0};
    int32_t requests[2 * COUNT];
    int32_t chunks[2 * COUNT];
    for (int i = 0; i <= COUNT; i++) {
        cu_rows[i] = i * ROWS;
    }
    kern_conv_programs_args_t programs = {cu_rows, COUNT, 2 * COUNT, requests, chunks};
    kern_team_run(team(), kern_conv_programs_host, &programs);
    kern_conv_prefill_args_t conv = {
        .conv = recurrent_conv(layer, 0, qkv),
        .cache = recurrent_windows(&caches->windows, RECURRENT_BLOCKS),
        .cu_rows = cu_rows,
        .in_blocks = in_blocks,
        .out_blocks = outs,
        .request_count = COUNT,
        .program_count = 2 * COUNT,
        .requests = requests,
        .chunks = chunks,
    };
    kern_team_run(team(), kern_conv_prefill_host, &conv);
    kern_gdn_prefill_args_t gdn = {
        .gdn = recurrent_gdn(layer, qkv, layer->channels, 0, caches->output),
        .cache = recurrent_states(&caches->states, RECURRENT_BLOCKS),
        .cu_rows = cu_rows,
        .prefix_lens = prefixes,
        .in_blocks = in_blocks,
        .out_blocks = outs,
        .request_count = COUNT,
    };
    kern_team_run(team(), kern_gdn_prefill_host, &gdn);
    free(qkv);
}

/* Stages the layer, whose group is the second of two; the first has nothing. */
static void
stage(const caches_t *caches, int32_t *resumed)
{
    int32_t both_ins[GROUPS * COUNT];
    int32_t both_outs[GROUPS * COUNT];
    for (int i = 0; i < COUNT; i++) {
        both_ins[i] = -1;
        both_outs[i] = -1;
        both_ins[COUNT + i] = ins[i];
        both_outs[COUNT + i] = outs[i];
    }
    kern_state_field_t field = {
        .windows = (uint8_t *)caches->windows.floats,
        .window_stride_bytes = caches->windows.stride * sizeof(float),
        .window_bytes = caches->windows.len * sizeof(float),
        .states = (uint8_t *)caches->states.floats,
        .state_stride_bytes = caches->states.stride * sizeof(float),
        .state_bytes = caches->states.len * sizeof(float),
        .group = 1,
    };
    kern_state_stage_args_t args = {
        .fields = &field,
        .field_count = 1,
        .in_blocks = both_ins,
        .out_blocks = both_outs,
        .group_count = GROUPS,
        .count = COUNT,
        .block_count = RECURRENT_BLOCKS,
        .resumed = resumed,
    };
    kern_team_run(team(), kern_state_stage_host, &args);
}

/* Staged and then worked on in place equals reading the input blocks directly.  Fresh requests
 * start on NaN blocks. */
START_TEST(staged_prefill_equals_direct_prefill)
{
    reference_random_t random = reference_seed("staged_prefill_equals_direct_prefill");
    recurrent_t layer = recurrent_new(&shape, COUNT * ROWS, &random);
    caches_t direct = caches_new(&layer, NULL, &random);
    caches_t staged = caches_new(&layer, &direct, &random);
    int32_t resumed[GROUPS * COUNT];
    stage(&staged, resumed);
    static const int32_t wanted[GROUPS * COUNT] = {-1, -1, -1, -1, -1, 0, 4, 5, 2, -1};
    expect(memcmp(resumed, wanted, sizeof wanted) == 0);
    expect(recurrent_untouched(&staged.windows, 3)); /* fresh: not zeroed */
    for (size_t i = 0; i < staged.states.len; i++) {
        expect(recurrent_block(&staged.states, 3)[i] == 0.0f);
    }
    expect(recurrent_same(&staged.states, 4, &direct.states, 1));
    expect(recurrent_same(&staged.windows, 5, &direct.windows, 1));
    prefill(&layer, &direct, ins);
    prefill(&layer, &staged, resumed + COUNT);
    size_t out_size_bytes = layer.rows * recurrent_output_len(&layer) * sizeof(float);
    expect(memcmp(direct.output, staged.output, out_size_bytes) == 0);
    for (int32_t block = 1; block <= 5; block++) {
        expect(recurrent_same(&direct.states, block, &staged.states, block));
        expect(recurrent_same(&direct.windows, block, &staged.windows, block));
    }
    caches_free(&direct);
    caches_free(&staged);
    recurrent_free(&layer);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.state");
    TCase *tests = tcase_create("state");
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, blocks_come_from_the_columns_of_the_last_tokens);
    tcase_add_test(tests, commit_rows_point_at_the_accepted_state);
    tcase_add_test(tests, rows_are_copied_by_their_vectors);
    tcase_add_test(tests, staged_prefill_equals_direct_prefill);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
