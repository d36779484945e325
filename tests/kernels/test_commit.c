/* Rounds of speculation through a recurrent layer: verify, then commit by scratch or by replay. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
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
    BATCH = 3,
    TOKENS = 27, /* of a request */
    PROMPT = 3,
    GRAIN = 4,
    COLUMNS = (TOKENS + 8) / GRAIN + 1,
    BLOCKS = 1 + BATCH * COLUMNS,
    WIDTH_MAX = 5,
    WHOLE_BLOCK = 1, /* in the caches of the whole prefill: request i's is 1 + i */
};

static const recurrent_shape_t shape = {1, 2, 24, 40, 4};

/* A layer in the middle of generating. */
typedef struct {
    kern_team_t *team;
    recurrent_t all;    /* request i's token p is row i * TOKENS + p */
    recurrent_t window; /* [BATCH * width] rows of this round */
    recurrent_cache_t states;
    recurrent_cache_t windows;
    recurrent_cache_t state_scratch;
    recurrent_cache_t window_scratch;
    float *qkv;
    float *output;
    int32_t table[BATCH * COLUMNS];
    kern_state_group_t group;
    uint32_t width;
    int32_t committed[BATCH];
    int32_t in[BATCH];
} round_t;

static void
round_new(round_t *self, kern_team_t *team, uint32_t width, reference_random_t *random)
{
    *self = (round_t){.team = team, .width = width};
    self->all = recurrent_new(&shape, BATCH * TOKENS, random);
    self->window = recurrent_new(&shape, BATCH * WIDTH_MAX, random);
    memcpy(self->window.weight, self->all.weight, shape.width * self->all.channels * sizeof(float));
    memcpy(self->window.bias, self->all.bias, self->all.channels * sizeof(float));
    memcpy(self->window.rate, self->all.rate, shape.v_heads * sizeof(float));
    memcpy(self->window.dt_bias, self->all.dt_bias, shape.v_heads * sizeof(float));
    self->states = recurrent_cache_new(recurrent_state_len(&self->all), BLOCKS);
    self->windows = recurrent_cache_new(recurrent_window_len(&self->all), BLOCKS);
    self->state_scratch = recurrent_cache_new(self->states.len, BATCH * (width + 1));
    self->window_scratch = recurrent_cache_new(self->windows.len, BATCH * (width + 1));
    self->qkv = malloc(BATCH * TOKENS * self->all.channels * sizeof(float));
    self->output = malloc(BATCH * TOKENS * recurrent_output_len(&self->all) * sizeof(float));
    expect(self->qkv != NULL && self->output != NULL);
    for (int32_t i = 0; i < BATCH * COLUMNS; i++) {
        self->table[i] = 1 + (i * 5) % (BLOCKS - 1);
    }
    self->group = (kern_state_group_t){self->table, COLUMNS, COLUMNS, BLOCKS, GRAIN};
}

static void
round_free(round_t *self)
{
    recurrent_free(&self->all);
    recurrent_free(&self->window);
    recurrent_cache_free(&self->states);
    recurrent_cache_free(&self->windows);
    recurrent_cache_free(&self->state_scratch);
    recurrent_cache_free(&self->window_scratch);
    free(self->qkv);
    free(self->output);
}

/* Tokens 0 .. count[i] - 1 of every request, into these blocks. */
static void
prefill(round_t *self, const recurrent_cache_t *states, const recurrent_cache_t *windows,
        const int32_t *counts, const int32_t *out_blocks)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        int32_t bounds[2] = {0, counts[i]};
        int32_t zero = 0;
        int32_t requests[2];
        int32_t chunks[2];
        kern_conv_programs_args_t programs = {bounds, 1, 2, requests, chunks};
        kern_team_run(self->team, kern_conv_programs_host, &programs);
        kern_conv_prefill_args_t conv = {
            .conv = recurrent_conv(&self->all, i * TOKENS, self->qkv),
            .cache = recurrent_windows(windows, BLOCKS),
            .cu_rows = bounds,
            .in_blocks = &zero,
            .out_blocks = &out_blocks[i],
            .request_count = 1,
            .program_count = 2,
            .requests = requests,
            .chunks = chunks,
        };
        kern_team_run(self->team, kern_conv_prefill_host, &conv);
        kern_gdn_prefill_args_t gdn = {
            .gdn =
                recurrent_gdn(&self->all, self->qkv, self->all.channels, i * TOKENS, self->output),
            .cache = recurrent_states(states, BLOCKS),
            .cu_rows = bounds,
            .prefix_lens = &zero,
            .in_blocks = &zero,
            .out_blocks = &out_blocks[i],
            .request_count = 1,
        };
        kern_team_run(self->team, kern_gdn_prefill_host, &gdn);
    }
}

/* The rows of this round: what will be accepted is the text, what will not is NaN. */
static void
fill_window(round_t *self, const int32_t *accepts)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        for (uint32_t t = 0; t < self->width; t++) {
            size_t to = (size_t)i * self->width + t;
            size_t from = (size_t)i * TOKENS + (size_t)self->committed[i] + t;
            bool real = (int32_t)t < accepts[i];
            for (size_t c = 0; c < self->all.channels; c++) {
                self->window.input[to * self->all.stride + c] =
                    real ? self->all.input[from * self->all.stride + c] : NAN;
            }
            for (size_t c = 0; c < 2 * (size_t)shape.v_heads; c++) {
                self->window.gates[to * 2 * shape.v_heads + c] =
                    real ? self->all.gates[from * 2 * shape.v_heads + c] : NAN;
            }
        }
    }
}

static void
seed_scratch(round_t *self, const int32_t *seeds)
{
    kern_state_copy_field_t fields[2] = {
        {(const uint8_t *)self->states.floats, self->states.stride * sizeof(float),
         (uint8_t *)self->state_scratch.floats, self->state_scratch.stride * sizeof(float),
         self->states.len * sizeof(float), 0, 0},
        {(const uint8_t *)self->windows.floats, self->windows.stride * sizeof(float),
         (uint8_t *)self->window_scratch.floats, self->window_scratch.stride * sizeof(float),
         self->windows.len * sizeof(float), 0, 0},
    };
    kern_state_copy_args_t copy = {fields, 2, self->in, seeds, BATCH, 1};
    kern_team_run(self->team, kern_state_copy_host, &copy);
}

static void
verify_with_scratch(round_t *self, float *qkv)
{
    int32_t seeds[BATCH];
    for (int32_t i = 0; i < BATCH; i++) {
        seeds[i] = i * ((int32_t)self->width + 1);
    }
    seed_scratch(self, seeds);
    uint32_t rows = BATCH * (self->width + 1);
    kern_conv_verify_args_t conv = {
        .conv = recurrent_conv(&self->window, 0, qkv),
        .scratch = recurrent_windows(&self->window_scratch, rows),
        .seeds = seeds,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_conv_verify_host, &conv);
    kern_gdn_verify_args_t gdn = {
        .gdn = recurrent_gdn(&self->window, qkv, self->all.channels, 0, self->output),
        .scratch = recurrent_states(&self->state_scratch, rows),
        .seeds = seeds,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_gdn_verify_host, &gdn);
}

static void
commit_scratch(round_t *self, const int32_t *pages, const int32_t *accepted)
{
    int32_t seeds[BATCH];
    for (int32_t i = 0; i < BATCH; i++) {
        seeds[i] = i * ((int32_t)self->width + 1);
    }
    uint32_t layer_group = 0;
    int32_t from[BATCH];
    int32_t to[BATCH];
    kern_state_verify_commit_rows_args_t rows = {pages, accepted, seeds, &layer_group,
                                                 1,     BATCH,    from,  to};
    kern_team_run(self->team, kern_state_verify_commit_rows_host, &rows);
    kern_state_copy_field_t fields[2] = {
        {(const uint8_t *)self->state_scratch.floats, self->state_scratch.stride * sizeof(float),
         (uint8_t *)self->states.floats, self->states.stride * sizeof(float),
         self->states.len * sizeof(float), 0, 0},
        {(const uint8_t *)self->window_scratch.floats, self->window_scratch.stride * sizeof(float),
         (uint8_t *)self->windows.floats, self->windows.stride * sizeof(float),
         self->windows.len * sizeof(float), 0, 0},
    };
    kern_state_copy_args_t copy = {fields, 2, from, to, BATCH, 0};
    kern_team_run(self->team, kern_state_copy_host, &copy);
}

static void
verify_for_replay(round_t *self, float *qkv)
{
    kern_conv_decode_args_t conv = {
        .conv = recurrent_conv(&self->window, 0, qkv),
        .cache = recurrent_windows(&self->windows, BLOCKS),
        .in_blocks = self->in,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_conv_decode_host, &conv);
    kern_gdn_decode_args_t gdn = {
        .gdn = recurrent_gdn(&self->window, qkv, self->all.channels, 0, self->output),
        .cache = recurrent_states(&self->states, BLOCKS),
        .in_blocks = self->in,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_gdn_decode_host, &gdn);
}

static void
commit_replay(round_t *self, const int32_t *pages, const int32_t *accepted, float *qkv)
{
    kern_conv_replay_args_t conv = {
        .conv = recurrent_conv(&self->window, 0, qkv),
        .cache = recurrent_windows(&self->windows, BLOCKS),
        .in_blocks = self->in,
        .out_blocks = pages,
        .accept_lengths = accepted,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_conv_replay_host, &conv);
    kern_gdn_replay_args_t gdn = {
        .gdn = recurrent_gdn(&self->window, qkv, self->all.channels, 0, self->output),
        .cache = recurrent_states(&self->states, BLOCKS),
        .in_blocks = self->in,
        .out_blocks = pages,
        .accept_lengths = accepted,
        .bs = BATCH,
        .rows_per_request = self->width,
    };
    kern_team_run(self->team, kern_gdn_replay_host, &gdn);
}

/* One round; whether some request crossed a column. */
static bool
run_round(round_t *self, const int32_t *accepts, bool replay)
{
    int32_t seq_lens[BATCH];
    int32_t out[BATCH];
    for (uint32_t i = 0; i < BATCH; i++) {
        seq_lens[i] = self->committed[i] + (int32_t)self->width;
    }
    kern_state_blocks_args_t blocks = {
        .groups = &self->group,
        .group_count = 1,
        .seq_lens = seq_lens,
        .width = self->width,
        .bs = BATCH,
        .actual_bs = BATCH,
        .in_blocks = self->in,
        .out_blocks = out,
    };
    kern_team_run(self->team, kern_state_blocks_host, &blocks);
    fill_window(self, accepts);
    float *qkv = malloc(BATCH * self->width * self->all.channels * sizeof *qkv);
    float *before = malloc(BATCH * self->states.len * sizeof *before);
    expect(qkv != NULL && before != NULL);
    for (uint32_t i = 0; i < BATCH; i++) {
        memcpy(before + i * self->states.len, recurrent_block(&self->states, self->in[i]),
               self->states.len * sizeof *before);
    }
    if (replay) {
        verify_for_replay(self, qkv);
    } else {
        verify_with_scratch(self, qkv);
    }
    for (uint32_t i = 0; i < BATCH; i++) { /* a verify commits nothing */
        expect(memcmp(before + i * self->states.len, recurrent_block(&self->states, self->in[i]),
                      self->states.len * sizeof *before) == 0);
    }
    int32_t pages[BATCH];
    int32_t accepted[BATCH];
    kern_commit_state_pages_args_t commit = {&self->group, 1,     self->committed, accepts,
                                             self->width,  BATCH, accepted,        pages};
    kern_team_run(self->team, kern_commit_state_pages_host, &commit);
    if (replay) {
        commit_replay(self, pages, accepted, qkv);
    } else {
        commit_scratch(self, pages, accepted);
    }
    bool crossed = false;
    for (uint32_t i = 0; i < BATCH; i++) {
        if (pages[i] != self->in[i]) { /* the checkpoint before the boundary stays */
            crossed = true;
            expect(memcmp(before + i * self->states.len,
                          recurrent_block(&self->states, self->in[i]),
                          self->states.len * sizeof *before) == 0);
        }
        self->committed[i] += accepts[i];
    }
    free(qkv);
    free(before);
    return crossed;
}

/* Generates all tokens in rounds of every accepted count.  What was rejected is NaN and leaves no
 * trace; windows lie across the columns of the table; at the end state and window are those of one
 * prefill over the text. */
START_TEST(rounds_commit_what_a_prefill_computes)
{
    reference_random_t random = reference_seed("rounds_commit_what_a_prefill_computes");
    uint32_t width = 1 + (uint32_t)_i % WIDTH_MAX;
    bool replay = _i >= WIDTH_MAX;
    for (int path = -1; reference_next_path(&path);) {
        round_t round;
        round_new(&round, reference_team((kern_path_t)path, 2), width, &random);
        int32_t counts[BATCH];
        int32_t first_blocks[BATCH];
        for (int32_t i = 0; i < BATCH; i++) {
            counts[i] = PROMPT + i;
            round.committed[i] = counts[i];
            first_blocks[i] = round.table[i * COLUMNS + (counts[i] - 1) / GRAIN];
        }
        prefill(&round, &round.states, &round.windows, counts, first_blocks);
        bool seen[WIDTH_MAX + 1] = {false};
        uint32_t crossings = 0;
        for (uint32_t turn = 0; round.committed[BATCH - 1] + WIDTH_MAX <= TOKENS; turn++) {
            int32_t accepts[BATCH];
            for (uint32_t i = 0; i < BATCH; i++) {
                int32_t rest = TOKENS - round.committed[i];
                int32_t count = 1 + (int32_t)((turn + i) % width);
                accepts[i] = count < rest ? count : rest;
                accepts[i] = accepts[i] < 1 ? 1 : accepts[i];
                seen[accepts[i]] = true;
            }
            if (round.committed[0] + 1 > TOKENS || round.committed[1] + 1 > TOKENS) {
                break;
            }
            crossings += run_round(&round, accepts, replay);
        }
        for (uint32_t k = 1; k <= width; k++) {
            expect(seen[k]);
        }
        expect(crossings >= 3);
        recurrent_cache_t states = recurrent_cache_new(round.states.len, BLOCKS);
        recurrent_cache_t windows = recurrent_cache_new(round.windows.len, BLOCKS);
        static const int32_t whole_blocks[BATCH] = {WHOLE_BLOCK, WHOLE_BLOCK + 1, WHOLE_BLOCK + 2};
        prefill(&round, &states, &windows, round.committed, whole_blocks);
        for (int32_t i = 0; i < BATCH; i++) {
            int32_t block = round.table[i * COLUMNS + (round.committed[i] - 1) / GRAIN];
            expect(recurrent_same(&round.states, block, &states, whole_blocks[i]));
            expect(recurrent_same(&round.windows, block, &windows, whole_blocks[i]));
        }
        expect(recurrent_untouched(&round.states, 0) && recurrent_untouched(&round.windows, 0));
        recurrent_cache_free(&states);
        recurrent_cache_free(&windows);
        round_free(&round);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.commit");
    TCase *tests = tcase_create("commit");
    tcase_set_timeout(tests, 100);
    tcase_add_loop_test(tests, rounds_commit_what_a_prefill_computes, 0, 2 * WIDTH_MAX);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
