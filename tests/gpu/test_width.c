/* Decode rows of width N: whatever is proposed, and whatever of it is accepted, the tokens, their
 * log probabilities and the cache are those of width 1, bit for bit. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache_plan.h"
#include "gpu_driver.h"
#include "run_inspect.h"

enum { VOCABULARY = 320, WIDTH_MAX = 5, GENERATED = 90, SLOTS = 18, PROMPT_MAX = 40, LOGPROBS = 3 };

typedef struct {
    const char *name;
    uint32_t granularity;
    bool keeps_states; /* of recurrent layers: how a verification remembers */
} fixture_t;

static const fixture_t fixtures[] = {
    {"tiny-llama", 16, false},    {"tiny-gemma3", 16, false}, {"tiny-gpt-oss", 16, false},
    {"tiny-deepseek", 16, false}, {"tiny-qwen35", 64, false}, {"tiny-qwen35", 64, true},
};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };
static char model_path[600];

static run_executor_options_t
tiny_options(const fixture_t *fixture, uint32_t width)
{
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture(fixture->name));
    run_executor_options_t options = {
        .model_path = model_path,
        .slot_count = SLOTS,
        .model_len_max = 256,
        .step_tokens_max = 256,
        .block_granularity = fixture->granularity,
        .keeps_states = fixture->keeps_states,
        .cache_size_bytes = 64 << 20,
        .capture_bs_max = 16,
        .graph_debug = true,
        .width = width,
    };
    return options;
}

/* ---- what the requests are, and what width 1 makes of them ----------------------------------- */

/* A request and its answer, with the prompt in front. */
typedef struct {
    uint32_t prompt_length;
    proto_sampling_t sampling;
    int32_t tokens[PROMPT_MAX + GENERATED];
    int32_t logprob_ids[GENERATED][LOGPROBS];
    float logprob_values[GENERATED][LOGPROBS];
} answer_t;

static answer_t answers[SLOTS + 1];

/* Token `at` of slots first, first + 1, ..., which are the rows of the result. */
static void
note_tokens(uint32_t first, const driver_result_t *result, uint32_t at)
{
    uint32_t entry = 0;
    for (uint32_t row = 0; row < result->row_count; row++) {
        answer_t *answer = &answers[first + row];
        ck_assert_uint_eq(result->counts[row], 1);
        answer->tokens[answer->prompt_length + at] = result->tokens[row];
        if (answer->sampling.logprobs > 0) {
            memcpy(answer->logprob_ids[at], result->logprob_ids + entry,
                   sizeof answer->logprob_ids[at]);
            memcpy(answer->logprob_values[at], result->logprob_values + entry,
                   sizeof answer->logprob_values[at]);
            entry += LOGPROBS;
        }
    }
}

/* Every second request is greedy, the others draw with penalties; some want log probabilities. */
static void
make_answers(const fixture_t *fixture)
{
    run_executor_options_t options = tiny_options(fixture, 1);
    driver_t driver;
    driver_open(&driver, &options);
    driver_result_t result;
    uint32_t slots[SLOTS];
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        slots[slot - 1] = slot;
        answer_t *answer = &answers[slot];
        answer->prompt_length = 3 + slot * 2;
        answer->sampling = (proto_sampling_t){.prompt_length = answer->prompt_length,
                                              .logprobs = slot % 3 == 0 ? LOGPROBS : 0,
                                              .ignore_eos = true};
        if (slot % 2 == 0) {
            answer->sampling.temperature = 0.9;
            answer->sampling.top_p = 0.95;
            answer->sampling.top_k = 40;
            answer->sampling.repetition_penalty = 1.1;
            answer->sampling.frequency_penalty = 0.3;
            answer->sampling.presence_penalty = 0.2;
            answer->sampling.seed = 1000 + slot;
        }
        driver_random_tokens(slot, VOCABULARY, answer->tokens, answer->prompt_length);
        driver_setup(&driver, slot, answer->tokens, answer->prompt_length, &answer->sampling);
        driver_extend_t extend = {.slot = slot,
                                  .length = answer->prompt_length,
                                  .sample = true,
                                  .tokens = answer->tokens};
        driver_step(&driver, &extend, 1, NULL, 0, &result);
        note_tokens(slot, &result, 0);
    }
    for (uint32_t i = 1; i < GENERATED; i++) {
        driver_step(&driver, NULL, 0, slots, SLOTS, &result);
        note_tokens(1, &result, i);
    }
    driver_close(&driver);
}

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

/* How far each slot's answer is. */
static uint32_t done[SLOTS + 1];

/* Candidates of which the first so many are right, then a wrong one or none at all, then anything;
 * returns how many tokens the step must give. */
static uint32_t
propose(uint32_t slot, uint32_t width, int32_t *candidates)
{
    const answer_t *answer = &answers[slot];
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
pair_open(pair_t *self, const fixture_t *fixture, uint32_t width, bool by_rejection)
{
    run_executor_options_t options = tiny_options(fixture, width);
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
    const answer_t *answer = &answers[slot];
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
    const answer_t *answer = &answers[slot];
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
    make_answers(&fixtures[_i]);
    for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
        static pair_t pair;
        pair_open(&pair, &fixtures[_i], width, false);
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
    make_answers(&fixtures[_i]);
    for (uint32_t width = 2; width <= WIDTH_MAX; width += 2) {
        static pair_t pair;
        pair_open(&pair, &fixtures[_i], width, false);
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
                uint32_t length = answers[slot].prompt_length + from;
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
            mixed_count += mode == PROTO_STEP_MIXED || mode == PROTO_STEP_MIXED_GRAPH;
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
    make_answers(&fixtures[_i]);
    for (uint32_t width = 1; width <= 4; width += 3) {
        static pair_t pair;
        pair_open(&pair, &fixtures[_i], width, true);
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

static uint64_t
block_digest_of(driver_t *driver, uint32_t slot, uint32_t column, uint32_t group)
{
    uint64_t digest;
    uint32_t block = driver->blocks[slot][column] + driver->offsets[group];
    ck_assert_uint_lt(column, driver->columns);
    ck_assert_int_eq(run_inspect_block_digest(driver->executor, group, block, &digest), STATUS_OK);
    return digest;
}

static bool
is_state(const driver_t *driver, uint32_t group)
{
    return driver->info.group_kinds.data[group] == CACHE_KIND_STATE;
}

/* The digest of a block of a slot, in every group that has it; states apart, since a block of them
 * is not what its tokens left there but one state. */
static uint64_t
block_digest(driver_t *driver, uint32_t slot, uint32_t column, bool of_states)
{
    uint64_t sum = 0;
    for (uint32_t group = 0; group < driver->group_count; group++) {
        if (is_state(driver, group) == of_states) {
            sum = sum * 31 + block_digest_of(driver, slot, column, group);
        }
    }
    return sum;
}

/* The state after what was accepted is that of width 1, in replayed and eager steps; the blocks of
 * requests that did not run, and those ahead, keep their bytes. */
static void
check_states(driver_t *wide, driver_t *narrow, uint32_t slot, uint32_t valid)
{
    uint32_t last = (valid - 1) / wide->info.group_granularities.data[0];
    ck_assert_uint_eq(block_digest(wide, slot, last, true), block_digest(narrow, slot, last, true));
}

/* What rejected rows wrote lies in blocks of their own request and is overwritten by what comes
 * there: full blocks have the bytes of width 1, blocks of others and those ahead are untouched. */
START_TEST(rejected_rows_leave_nothing_behind)
{
    enum { WIDTH = 5, ROUNDS = 14, COLUMNS_MAX = 8, WATCHED = 7, COUNT = 3 };
    const uint32_t block = fixtures[_i].granularity;
    seed_random("rejected_rows_leave_nothing_behind");
    make_answers(&fixtures[_i]);
    static pair_t wide;
    static pair_t narrow;
    pair_open(&wide, &fixtures[_i], WIDTH, false);
    pair_open(&narrow, &fixtures[_i], 1, false);
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
            before[0][slot][column] = block_digest(&wide.drivers[0], slot, column, false);
            before[1][slot][column] = block_digest(&wide.drivers[0], slot, column, true);
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
        uint32_t valid = slot <= COUNT ? answers[slot].prompt_length + reached[slot] - 1 : 0;
        for (uint32_t column = 0; column < columns; column++) {
            uint64_t digest = block_digest(&wide.drivers[0], slot, column, false);
            ck_assert_uint_eq(digest, block_digest(&wide.drivers[1], slot, column, false));
            if ((column + 1) * block <= valid) {
                ck_assert_uint_eq(digest, block_digest(&narrow.drivers[0], slot, column, false));
            } else if (column * block >= valid + WIDTH - 1) {
                ck_assert_uint_eq(digest, before[0][slot][column]);
                ck_assert_uint_eq(block_digest(&wide.drivers[0], slot, column, true),
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

/* A stop token inside a window is its last token and flagged; what comes after it is not given. */
START_TEST(a_stop_token_ends_the_row)
{
    enum { WIDTH = 4 };
    make_answers(&fixtures[_i]);
    run_executor_options_t options = tiny_options(&fixtures[_i], WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    const answer_t *answer = &answers[2];
    const int32_t *tokens = answer->tokens + answer->prompt_length;
    for (uint32_t at = 1; at < 1 + WIDTH; at++) {
        int32_t stop = tokens[at];
        uint32_t first = 1;
        while (tokens[first] != stop) {
            first++;
        }
        for (int way = 0; way < 2; way++) {
            proto_sampling_t sampling = answer->sampling;
            sampling.stop_ids = (proto_bytes_t){(const uint8_t *)&stop, sizeof stop};
            driver_setup(&driver, 1, answer->tokens, answer->prompt_length, &sampling);
            ck_assert_int_eq(driver_prefill(&driver, 1, answer->tokens, answer->prompt_length, 64),
                             tokens[0]);
            uint32_t slot = 1;
            driver_result_t result;
            int32_t nothing[WIDTH - 1] = {-1, -1, -1};
            ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, 1,
                                                          way == 0 ? tokens + 1 : nothing,
                                                          WIDTH - 1),
                             STATUS_OK);
            driver_step(&driver, NULL, 0, &slot, 1, &result);
            uint32_t wanted = way == 0 ? first : 1;
            ck_assert_uint_eq(result.counts[0], wanted);
            ck_assert_mem_eq(result.windows[0], tokens + 1, wanted * sizeof *tokens);
            ck_assert_uint_eq(result.flags[0], tokens[wanted] == stop ? PROTO_ROW_STOP_TOKEN : 0);
        }
    }
    driver_close(&driver);
}
END_TEST

/* Steps that run ahead know no candidates: one token each, the tokens of width 1. */
START_TEST(two_steps_in_flight_give_one_token_each)
{
    enum { WIDTH = 4, STEPS = 20 };
    make_answers(&fixtures[_i]);
    run_executor_options_t options = tiny_options(&fixtures[_i], WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    const answer_t *answer = &answers[4];
    driver_setup(&driver, 4, answer->tokens, answer->prompt_length, &answer->sampling);
    (void)driver_prefill(&driver, 4, answer->tokens, answer->prompt_length, 64);
    uint32_t slot = 4;
    driver_launch(&driver, NULL, 0, &slot, 1);
    for (uint32_t i = 1; i <= STEPS; i++) {
        driver_result_t result;
        driver_launch(&driver, NULL, 0, &slot, 1);
        driver_collect(&driver, &result);
        ck_assert_uint_eq(result.counts[0], 1);
        ck_assert_int_eq(result.tokens[0], answer->tokens[answer->prompt_length + i]);
    }
    driver_result_t result;
    driver_collect(&driver, &result);
    driver_close(&driver);
}
END_TEST

/* A width is the executor's; another one, or too much of it, is refused. */
START_TEST(widths_out_of_range_are_refused)
{
    char error[512];
    run_executor_options_t options = tiny_options(&fixtures[0], RUN_WIDTH_MAX + 1);
    options.error = error;
    options.error_size_bytes = sizeof error;
    run_executor_t *executor = NULL;
    ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "width of 17"));
    driver_t driver;
    options = tiny_options(&fixtures[0], RUN_WIDTH_MAX);
    driver_open(&driver, &options);
    /* Room for every slot to decode at once, whatever was asked for. */
    ck_assert_uint_eq(driver.info.step_tokens_max, SLOTS * RUN_WIDTH_MAX);
    ck_assert_ptr_nonnull(
        memmem(driver.info.fingerprint.data, driver.info.fingerprint.size_bytes, ";width=16;", 10));
    int32_t prompt[5] = {1, 2, 3, 4, 5};
    driver_setup(&driver, 1, prompt, 5, NULL);
    (void)driver_prefill(&driver, 1, prompt, 5, 5);
    driver.info.decode_width = 1;
    uint32_t slot = 1;
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_ERR_INVALID);
    driver.info.decode_width = RUN_WIDTH_MAX;
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_OK);
    driver_result_t result;
    driver_collect(&driver, &result);
    ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, 1, prompt, RUN_WIDTH_MAX),
                     STATUS_ERR_INVALID);
    ck_assert_int_eq(run_inspect_plant_candidates(driver.executor, SLOTS + 1, prompt, 1),
                     STATUS_ERR_INVALID);
    driver_close(&driver);
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
    tcase_add_loop_test(tests, a_stop_token_ends_the_row, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, two_steps_in_flight_give_one_token_each, 0, FIXTURE_COUNT);
    tcase_add_test(tests, widths_out_of_range_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
