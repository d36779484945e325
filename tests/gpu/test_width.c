/* Decode rows of width N: whatever is proposed, and whatever of it is accepted, the tokens, their
 * log probabilities and the cache are those of width 1, bit for bit. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_width.h"
#include "run_inspect.h"

enum { WIDTH_MAX = 5 };

/* ---- random candidates ----------------------------------------------------------------------- */

static uint64_t random_state;

static uint32_t
random_below(uint32_t end)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % end;
}

static void
seed_random(const char *test)
{
    const char *given = getenv("ONEPATH_TEST_SEED");
    random_state = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    printf("%s: ONEPATH_TEST_SEED=%llu\n", test, (unsigned long long)random_state);
    (void)fflush(stdout);
}

static bool
is_mixed(proto_step_mode_t mode)
{
    return mode == PROTO_STEP_MIXED || mode == PROTO_STEP_MIXED_GRAPH;
}

/* How far each slot's answer is. */
static uint32_t done[SLOTS + 1];

/* Candidates of which the first so many are right, then a wrong one or none at all, then anything;
 * returns how many tokens the step must give. */
static uint32_t
propose(uint32_t slot, uint32_t width, int32_t *candidates)
{
    const answer_t *answer = &width_answers[slot];
    uint32_t right = random_below(width);
    for (uint32_t i = 0; i + 1 < width; i++) {
        int32_t next = answer->tokens[answer->prompt_length + done[slot] + i];
        candidates[i] = next;
        if (i == right) {
            candidates[i] = random_below(3) == 0 ? -1 : (next + 1) % VOCABULARY;
        } else if (i > right && random_below(2) == 0) {
            candidates[i] = (int32_t)random_below(VOCABULARY + 1) - 1;
        }
    }
    return right + 1;
}

/* ---- two executors in lockstep: with graphs, and without --------------------------------------
 */

typedef struct {
    driver_t drivers[2];
    uint32_t width;
    driver_extend_t extends[SLOTS];
    uint32_t extend_count;
    uint32_t decodes[SLOTS];
    uint32_t wanted[SLOTS]; /* tokens of each decode */
    uint32_t decode_count;
} pair_t;

static void
pair_open(pair_t *self, const width_fixture_t *fixture, uint32_t width, bool by_rejection)
{
    run_executor_options_t options = width_options(fixture, width);
    memset(self, 0, sizeof *self);
    options.verify_by_rejection = by_rejection;
    self->width = width;
    driver_open(&self->drivers[0], &options);
    options.enforce_eager = true;
    driver_open(&self->drivers[1], &options);
    ck_assert_uint_eq(self->drivers[0].info.decode_width, width);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run_inspect_poison_cache(self->drivers[i].executor), STATUS_OK);
    }
}

static void
pair_close(pair_t *self)
{
    driver_close(&self->drivers[0]);
    driver_close(&self->drivers[1]);
}

/* The slot takes its request up again with the first `from` tokens of the answer. */
static void
add_extend(pair_t *self, uint32_t slot, uint32_t from)
{
    const answer_t *answer = &width_answers[slot];
    done[slot] = from;
    for (int i = 0; i < 2; i++) {
        driver_setup(&self->drivers[i], slot, answer->tokens, answer->prompt_length + from,
                     &answer->sampling);
    }
    self->extends[self->extend_count++] = (driver_extend_t){.slot = slot,
                                                            .length = answer->prompt_length + from,
                                                            .sample = true,
                                                            .tokens = answer->tokens};
}

static void
add_decode(pair_t *self, uint32_t slot)
{
    int32_t candidates[RUN_WIDTH_MAX];
    uint32_t wanted = propose(slot, self->width, candidates);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run_inspect_plant_candidates(self->drivers[i].executor, slot, candidates,
                                                      self->width - 1),
                         STATUS_OK);
    }
    self->decodes[self->decode_count] = slot;
    self->wanted[self->decode_count++] = wanted;
}

/* The tokens of one row, and their log probabilities, against those of width 1. */
static uint32_t
check_row(const driver_result_t *result, uint32_t row, uint32_t slot, uint32_t entry)
{
    const answer_t *answer = &width_answers[slot];
    const int32_t *tokens = answer->tokens + answer->prompt_length + done[slot];
    uint32_t count = result->counts[row];
    ck_assert_mem_eq(result->windows[row], tokens, count * sizeof *tokens);
    ck_assert_uint_eq(result->flags[row], 0);
    ck_assert_uint_eq(result->logprob_widths[row], answer->sampling.logprobs);
    for (uint32_t i = 0; i < count && answer->sampling.logprobs > 0; i++) {
        ck_assert_mem_eq(result->logprob_ids + entry, answer->logprob_ids[done[slot] + i],
                         LOGPROBS * sizeof(int32_t));
        ck_assert_mem_eq(result->logprob_values + entry, answer->logprob_values[done[slot] + i],
                         LOGPROBS * sizeof(float));
        entry += LOGPROBS;
    }
    return entry;
}

static void
pair_step(pair_t *self, proto_step_mode_t *mode)
{
    static float logits[2][SLOTS * WIDTH_MAX * VOCABULARY];
    static driver_result_t results[2];
    uint32_t rows = self->extend_count + self->decode_count * self->width;
    for (int i = 0; i < 2; i++) {
        driver_step(&self->drivers[i], self->extends, self->extend_count, self->decodes,
                    self->decode_count, &results[i]);
        driver_logits(&self->drivers[i], logits[i], sizeof logits[i] / sizeof(float), rows);
    }
    ck_assert_mem_eq(logits[0], logits[1], (size_t)rows * VOCABULARY * sizeof(float));
    *mode = results[0].mode;
    for (int i = 0; i < 2; i++) {
        const driver_result_t *result = &results[i];
        uint32_t entry = 0;
        for (uint32_t row = 0; row < self->extend_count; row++) {
            ck_assert_uint_eq(result->counts[row], 1);
            entry = check_row(result, row, self->extends[row].slot, entry);
        }
        for (uint32_t at = 0; at < self->decode_count; at++) {
            uint32_t row = self->extend_count + at;
            ck_assert_uint_eq(result->counts[row], self->wanted[at]);
            entry = check_row(result, row, self->decodes[at], entry);
        }
    }
    for (uint32_t row = 0; row < self->extend_count; row++) {
        done[self->extends[row].slot]++;
    }
    for (uint32_t at = 0; at < self->decode_count; at++) {
        done[self->decodes[at]] += self->wanted[at];
    }
    self->extend_count = 0;
    self->decode_count = 0;
}

static bool
is_full(const pair_t *self, uint32_t slot)
{
    return done[slot] + self->width > GENERATED;
}

/* Replayed, padded and above the ladder: every batch size, every accepted length. */
START_TEST(any_window_gives_the_tokens_of_width_one)
{
    seed_random("any_window_gives_the_tokens_of_width_one");
    width_make_answers(&width_fixtures[_i]);
    for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
        static pair_t pair;
        pair_open(&pair, &width_fixtures[_i], width, false);
        proto_step_mode_t mode;
        for (uint32_t slot = 1; slot <= SLOTS; slot++) {
            add_extend(&pair, slot, 0);
            pair_step(&pair, &mode);
        }
        for (uint32_t round = 0; round < SLOTS - 1; round++) {
            uint32_t bs = 1 + round;
            for (uint32_t i = 0; i < bs; i++) {
                uint32_t slot = 1 + (round + i * 5) % SLOTS; /* no common factor */
                ck_assert(!is_full(&pair, slot));
                add_decode(&pair, slot);
            }
            pair_step(&pair, &mode);
            ck_assert_int_eq(mode, bs <= 16 ? PROTO_STEP_DECODE_GRAPH : PROTO_STEP_DECODE_ABOVE);
        }
        pair_close(&pair);
    }
}
END_TEST

/* Requests come, go on, are retracted and resume in one batch: extends first, decodes after them.
 */
START_TEST(mixed_rounds_and_retractions_change_nothing)
{
    seed_random("mixed_rounds_and_retractions_change_nothing");
    width_make_answers(&width_fixtures[_i]);
    for (uint32_t width = 2; width <= WIDTH_MAX; width += 2) {
        static pair_t pair;
        pair_open(&pair, &width_fixtures[_i], width, false);
        bool is_live[SLOTS + 1] = {false};
        uint32_t mixed_count = 0;
        for (uint32_t round = 0; round < 40; round++) {
            uint32_t room = pair.drivers[0].info.step_tokens_max;
            uint32_t first = random_below(SLOTS);
            bool decodes[SLOTS + 1] = {false};
            for (uint32_t i = 0; i < SLOTS; i++) {
                uint32_t slot = 1 + (first + i) % SLOTS;
                uint32_t choice = random_below(8);
                if (is_live[slot] && !is_full(&pair, slot) && choice > 1) {
                    decodes[slot] = choice > 3 && room >= width;
                    room -= decodes[slot] ? width : 0;
                    continue;
                }
                /* Begins, begins again, or resumes where it was retracted. */
                uint32_t from = is_full(&pair, slot) || random_below(2) == 0 ? 0 : done[slot];
                uint32_t length = width_answers[slot].prompt_length + from;
                if (choice <= 1 && room >= length) {
                    add_extend(&pair, slot, from);
                    is_live[slot] = true;
                    room -= length;
                }
            }
            for (uint32_t slot = SLOTS; slot >= 1; slot--) {
                if (decodes[slot]) {
                    add_decode(&pair, slot);
                }
            }
            proto_step_mode_t mode;
            pair_step(&pair, &mode);
            mixed_count += is_mixed(mode);
        }
        ck_assert_uint_gt(mixed_count, 10);
        pair_close(&pair);
    }
}
END_TEST

/* Under rejection too greedy tokens are those of width 1; a draw without candidates as well. */
START_TEST(rejection_keeps_greedy_tokens)
{
    seed_random("rejection_keeps_greedy_tokens");
    width_make_answers(&width_fixtures[_i]);
    for (uint32_t width = 1; width <= 4; width += 3) {
        static pair_t pair;
        pair_open(&pair, &width_fixtures[_i], width, true);
        proto_step_mode_t mode;
        for (uint32_t round = 0; round < 12; round++) {
            for (uint32_t slot = 1; slot <= SLOTS; slot += width == 1 ? 1 : 2) {
                if (round == 0) {
                    add_extend(&pair, slot, 0);
                    pair_step(&pair, &mode);
                } else {
                    add_decode(&pair, slot);
                }
            }
            if (round > 0) {
                pair_step(&pair, &mode);
            }
        }
        pair_close(&pair);
    }
}
END_TEST

/* The state after what was accepted is that of width 1, in replayed and eager steps; the blocks of
 * requests that did not run, and those ahead, keep their bytes. */
static void
check_states(driver_t *wide, driver_t *narrow, uint32_t slot, uint32_t valid)
{
    uint32_t last = (valid - 1) / wide->info.group_granularities.data[0];
    ck_assert_uint_eq(width_block_digest(wide, slot, last, true),
                      width_block_digest(narrow, slot, last, true));
}

/* What rejected rows wrote lies in blocks of their own request and is overwritten by what comes
 * there: full blocks have the bytes of width 1, blocks of others and those ahead are untouched. */
START_TEST(rejected_rows_leave_nothing_behind)
{
    enum { WIDTH = 5, ROUNDS = 14, COLUMNS_MAX = 8, WATCHED = 7, COUNT = 3 };
    const uint32_t block = width_fixtures[_i].granularity;
    seed_random("rejected_rows_leave_nothing_behind");
    width_make_answers(&width_fixtures[_i]);
    static pair_t wide;
    static pair_t narrow;
    pair_open(&wide, &width_fixtures[_i], WIDTH, false);
    pair_open(&narrow, &width_fixtures[_i], 1, false);
    proto_step_mode_t mode;
    for (uint32_t slot = 1; slot <= WATCHED; slot++) {
        add_extend(&wide, slot, 0);
        pair_step(&wide, &mode);
    }
    uint32_t columns = wide.drivers[0].columns;
    columns = columns < COLUMNS_MAX ? columns : COLUMNS_MAX;
    uint64_t before[2][WATCHED + 1][COLUMNS_MAX];
    for (uint32_t slot = 1; slot <= WATCHED; slot++) {
        for (uint32_t column = 0; column < columns; column++) {
            before[0][slot][column] = width_block_digest(&wide.drivers[0], slot, column, false);
            before[1][slot][column] = width_block_digest(&wide.drivers[0], slot, column, true);
        }
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t slot = 1; slot <= COUNT; slot++) {
            add_decode(&wide, slot); /* three, padded to four */
        }
        pair_step(&wide, &mode);
        ck_assert_int_eq(mode, PROTO_STEP_DECODE_GRAPH);
    }
    uint32_t reached[COUNT + 1];
    for (uint32_t slot = 1; slot <= COUNT; slot++) {
        reached[slot] = done[slot];
        add_extend(&narrow, slot, 0);
        pair_step(&narrow, &mode);
        while (done[slot] < reached[slot]) {
            add_decode(&narrow, slot);
            pair_step(&narrow, &mode);
        }
    }
    for (uint32_t slot = 1; slot <= WATCHED; slot++) {
        /* The last token is not in the cache yet; rejected rows may reach WIDTH - 1 further. */
        uint32_t valid = slot <= COUNT ? width_answers[slot].prompt_length + reached[slot] - 1 : 0;
        for (uint32_t column = 0; column < columns; column++) {
            uint64_t digest = width_block_digest(&wide.drivers[0], slot, column, false);
            ck_assert_uint_eq(digest, width_block_digest(&wide.drivers[1], slot, column, false));
            if ((column + 1) * block <= valid) {
                ck_assert_uint_eq(digest,
                                  width_block_digest(&narrow.drivers[0], slot, column, false));
            } else if (column * block >= valid + WIDTH - 1) {
                ck_assert_uint_eq(digest, before[0][slot][column]);
                ck_assert_uint_eq(width_block_digest(&wide.drivers[0], slot, column, true),
                                  before[1][slot][column]);
            }
        }
        for (uint32_t i = 0; slot <= COUNT && i < 2; i++) {
            check_states(&wide.drivers[i], &narrow.drivers[0], slot, valid);
        }
    }
    pair_close(&wide);
    pair_close(&narrow);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.width");
    TCase *tests = tcase_create("width");
    tcase_set_timeout(tests, 200);
    tcase_add_loop_test(tests, any_window_gives_the_tokens_of_width_one, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, mixed_rounds_and_retractions_change_nothing, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, rejection_keeps_greedy_tokens, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, rejected_rows_leave_nothing_behind, 0, FIXTURE_COUNT);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
