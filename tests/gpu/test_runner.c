/* The executor on tiny models: one decode path, independence of the batch, chunks, overlap,
 * restarts, and no allocation once it runs. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_driver.h"
#include "run_inspect.h"

enum { VOCABULARY = 320, GENERATED = 24, SLOTS = 12 };

static const char *const fixtures[] = {"tiny-llama", "tiny-qwen3", "tiny-gemma3", "tiny-gpt-oss",
                                       "tiny-deepseek"};

/* A GPU has no kernels yet of what follows the first three. */
static int
fixture_count(void)
{
    return driver_device_is_cuda() ? 3 : (int)(sizeof fixtures / sizeof *fixtures);
}
static char model_path[600];

static run_executor_options_t
tiny_options(const char *fixture)
{
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture(fixture));
    run_executor_options_t options = {
        .model_path = model_path,
        .slot_count = SLOTS,
        .model_len_max = 256,
        .step_tokens_max = 128,
        .block_granularity = 16,
        .capture_bs_max = 8,
        .graph_debug = true,
    };
    if (strcmp(fixture, "tiny-gemma3") == 0 || strcmp(fixture, "tiny-gpt-oss") == 0) {
        /* The driver keeps whole tables in sliding groups too, which need more than a window. */
        options.cache_size_bytes = 64 << 20;
    }
    return options;
}

static proto_sampling_t
seeded(uint64_t seed)
{
    proto_sampling_t sampling = {.temperature = 0.9,
                                 .top_p = 0.95,
                                 .top_k = 40,
                                 .repetition_penalty = 1.1,
                                 .presence_penalty = 0.2,
                                 .frequency_penalty = 0.1,
                                 .seed = seed,
                                 .ignore_eos = true};
    return sampling;
}

static proto_sampling_t
greedy(void)
{
    proto_sampling_t sampling = {.ignore_eos = true};
    return sampling;
}

/* The tokens of one request alone in the executor. */
static void
generate_alone(driver_t *driver, uint32_t slot, const int32_t *prompt, uint32_t length,
               proto_sampling_t sampling, uint32_t chunk, int32_t *out, uint32_t count)
{
    sampling.prompt_length = length;
    driver_setup(driver, slot, prompt, length, &sampling);
    out[0] = driver_prefill(driver, slot, prompt, length, chunk);
    for (uint32_t i = 1; i < count; i++) {
        out[i] = driver_decode_one(driver, slot);
    }
}

START_TEST(the_ladder_is_a_subset_of_the_sizes)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_open(&driver, &options);
    ck_assert_uint_eq(run_inspect_graph_count(driver.executor), 4); /* 1 2 4 8 */
    static const uint32_t padded[] = {0, 1, 2, 4, 4, 8, 8, 8, 8, 0, 0, 0, 0};
    for (uint32_t bs = 1; bs <= SLOTS; bs++) {
        ck_assert_uint_eq(run_inspect_padded_bs(driver.executor, bs), padded[bs]);
    }
    driver_close(&driver);
    options.enforce_eager = true;
    driver_open(&driver, &options);
    ck_assert_uint_eq(run_inspect_graph_count(driver.executor), 0);
    driver_close(&driver);
}
END_TEST

/* For every batch size, on the ladder, between its rungs and above it: the same logits, the same
 * tokens, the same cache, byte for byte. */
START_TEST(eager_and_replayed_decode_are_identical)
{
    enum { WIDE = 36 }; /* the default ladder ends at 32 */
    run_executor_options_t options = tiny_options(fixtures[_i]);
    options.slot_count = WIDE;
    options.capture_bs_max = 32;
    driver_t graph;
    driver_t eager;
    driver_open(&graph, &options);
    options.enforce_eager = true;
    driver_open(&eager, &options);
    static int32_t prompts[WIDE + 1][64];
    driver_t *both[] = {&graph, &eager};
    for (uint32_t slot = 1; slot <= WIDE; slot++) {
        uint32_t length = 3 + slot;
        proto_sampling_t sampling = slot % 2 == 0 ? seeded(slot) : greedy();
        sampling.prompt_length = length;
        driver_random_tokens(slot, VOCABULARY, prompts[slot], length);
        for (int i = 0; i < 2; i++) {
            driver_setup(both[i], slot, prompts[slot], length, &sampling);
            (void)driver_prefill(both[i], slot, prompts[slot], length, 100);
        }
    }
    static float logits[2][WIDE * VOCABULARY];
    for (uint32_t round = 0; round < 2 * WIDE; round++) {
        uint32_t bs = 1 + round % WIDE;
        uint32_t slots[WIDE];
        for (uint32_t i = 0; i < bs; i++) {
            slots[i] = 1 + (round + i * 5) % WIDE; /* 5 and 36 have no common factor */
        }
        driver_result_t results[2];
        for (int i = 0; i < 2; i++) {
            driver_step(both[i], NULL, 0, slots, bs, &results[i]);
            driver_logits(both[i], logits[i], WIDE * VOCABULARY, bs);
        }
        ck_assert_int_eq(results[0].mode,
                         bs <= 32 ? PROTO_STEP_DECODE_GRAPH : PROTO_STEP_DECODE_ABOVE);
        ck_assert_int_eq(results[1].mode, PROTO_STEP_DECODE_EAGER);
        ck_assert_mem_eq(results[0].tokens, results[1].tokens, bs * sizeof(int32_t));
        ck_assert_mem_eq(logits[0], logits[1], (size_t)bs * VOCABULARY * sizeof(float));
    }
    for (uint32_t block = 1; block < graph.info.parent_count; block++) {
        uint64_t digests[2];
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(run_inspect_block_digest(both[i]->executor, 0, block, &digests[i]),
                             STATUS_OK);
        }
        ck_assert_uint_eq(digests[0], digests[1]);
    }
    driver_close(&graph);
    driver_close(&eager);
}
END_TEST

/* A request among neighbours that come and go, in padded, mixed and above-ladder steps. */
static void
generate_in_company(driver_t *driver, uint32_t slot, const int32_t *prompt, uint32_t length,
                    proto_sampling_t sampling, int32_t *out, uint32_t count)
{
    static int32_t others[SLOTS + 1][128];
    static uint32_t lengths[SLOTS + 1];
    bool is_live[SLOTS + 1] = {false};
    sampling.prompt_length = length;
    driver_setup(driver, slot, prompt, length, &sampling);
    uint32_t done = 0;
    uint32_t at = 0;
    for (uint32_t round = 0; done < count; round++) {
        driver_extend_t extends[3];
        uint32_t decodes[SLOTS];
        uint32_t extend_count = 0;
        uint32_t decode_count = 0;
        int32_t row = -1;
        /* A newcomer in every round but some; its neighbours leave now and then. */
        uint32_t fresh = 1 + round % SLOTS;
        if (fresh != slot && round % 7 != 3) {
            lengths[fresh] = 1 + (round * 13) % 40;
            driver_random_tokens(1000 + round, VOCABULARY, others[fresh], lengths[fresh]);
            proto_sampling_t theirs = round % 2 == 0 ? seeded(round) : greedy();
            driver_setup(driver, fresh, others[fresh], lengths[fresh], &theirs);
            extends[extend_count++] = (driver_extend_t){.slot = fresh,
                                                        .length = lengths[fresh],
                                                        .sample = true,
                                                        .tokens = others[fresh]};
            is_live[fresh] = false;
        }
        if (at < length) {
            uint32_t chunk = length - at < 7 ? length - at : 7;
            row = (int32_t)extend_count;
            extends[extend_count++] = (driver_extend_t){.slot = slot,
                                                        .begin = at,
                                                        .length = chunk,
                                                        .sample = at + chunk == length,
                                                        .tokens = prompt + at};
            at += chunk;
        } else {
            is_live[slot] = true;
        }
        for (uint32_t s = SLOTS; s >= 1; s--) {
            if (s == slot && is_live[s]) {
                row = (int32_t)(extend_count + decode_count);
            }
            if (is_live[s] && (s == slot || (round + s) % 3 != 0)) {
                decodes[decode_count++] = s;
            }
        }
        driver_result_t result;
        driver_step(driver, extends, extend_count, decodes, decode_count, &result);
        if (result.counts[row] > 0) {
            out[done++] = result.tokens[row];
        }
        if (fresh != slot && round % 7 != 3) {
            is_live[fresh] = true;
        }
    }
}

START_TEST(tokens_do_not_depend_on_the_batch)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[33];
    driver_random_tokens(77, VOCABULARY, prompt, 33);
    for (int way = 0; way < 2; way++) {
        proto_sampling_t sampling = way == 0 ? greedy() : seeded(4242);
        int32_t alone[GENERATED];
        int32_t company[GENERATED];
        generate_alone(&driver, 5, prompt, 33, sampling, 100, alone, GENERATED);
        generate_in_company(&driver, 5, prompt, 33, sampling, company, GENERATED);
        ck_assert_mem_eq(alone, company, sizeof alone);
        /* Another slot, with other blocks: the same tokens. */
        generate_alone(&driver, 2, prompt, 33, sampling, 9, company, GENERATED);
        ck_assert_mem_eq(alone, company, sizeof alone);
        if (way == 1) {
            generate_alone(&driver, 2, prompt, 33, seeded(4243), 9, company, GENERATED);
            ck_assert_mem_ne(alone, company, sizeof alone);
        }
    }
    driver_close(&driver);
}
END_TEST

/* Chunk by chunk or at once, on kernel pages of any size: the same bits. */
START_TEST(chunked_and_whole_prefill_are_identical)
{
    static const uint32_t chunks[] = {100, 1, 2, 7, 16, 33, 99};
    static const uint32_t page_sizes[] = {0, 4, 8};
    static float logits[2][VOCABULARY];
    int32_t prompt[100];
    driver_random_tokens(5, VOCABULARY, prompt, 100);
    for (size_t p = 0; p < 3; p++) {
        run_executor_options_t options = tiny_options(fixtures[_i]);
        options.page_size = page_sizes[p];
        driver_t driver;
        driver_open(&driver, &options);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            bool is_first = p == 0 && c == 0;
            driver_setup(&driver, 1, prompt, 100, NULL);
            (void)driver_prefill(&driver, 1, prompt, 100, chunks[c]);
            driver_logits(&driver, logits[is_first ? 0 : 1], VOCABULARY, 1);
            if (!is_first) {
                ck_assert_mem_eq(logits[0], logits[1], sizeof logits[0]);
            }
        }
        driver_close(&driver);
    }
}
END_TEST

/* Threads share work; they must not share it into the result. */
START_TEST(bits_do_not_depend_on_the_thread_count)
{
    static float logits[2][VOCABULARY];
    int32_t prompt[60];
    driver_random_tokens(6, VOCABULARY, prompt, 60);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        run_executor_options_t options = tiny_options(fixtures[_i]);
        options.thread_count = threads;
        driver_t driver;
        driver_open(&driver, &options);
        driver_setup(&driver, 3, prompt, 60, NULL);
        (void)driver_prefill(&driver, 3, prompt, 60, 60);
        (void)driver_decode_one(&driver, 3);
        driver_logits(&driver, logits[threads == 1 ? 0 : 1], VOCABULARY, 1);
        if (threads > 1) {
            ck_assert_mem_eq(logits[0], logits[1], sizeof logits[0]);
        }
        driver_close(&driver);
    }
}
END_TEST

/* The next step is launched before this one ended; lengths and ids stay on the device. */
START_TEST(two_steps_in_flight_give_the_same_tokens)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[20];
    int32_t one[GENERATED];
    int32_t two[GENERATED];
    driver_random_tokens(8, VOCABULARY, prompt, 20);
    proto_sampling_t sampling = seeded(9);
    generate_alone(&driver, 1, prompt, 20, sampling, 20, one, GENERATED);

    sampling.prompt_length = 20;
    driver_setup(&driver, 1, prompt, 20, &sampling);
    driver_extend_t extend = {.slot = 1, .length = 20, .sample = true, .tokens = prompt};
    uint32_t slot = 1;
    driver_launch(&driver, &extend, 1, NULL, 0);
    driver_launch(&driver, NULL, 0, &slot, 1);
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_FULL);
    driver_result_t result;
    for (uint32_t i = 0; i < GENERATED; i++) {
        driver_collect(&driver, &result);
        ck_assert_uint_eq(result.row_count, 1);
        two[i] = result.tokens[0];
        driver_launch(&driver, NULL, 0, &slot, 1);
    }
    ck_assert_mem_eq(one, two, sizeof one);
    driver_collect(&driver, &result);
    driver_collect(&driver, &result);
    proto_step_done_t none;
    ck_assert_int_eq(run_executor_collect(driver.executor, &none), STATUS_END);
    driver_close(&driver);
}
END_TEST

/* Retracted and prefilled again with what it had generated, a request draws on as if nothing had
 * happened; penalties count a generated token once. */
START_TEST(a_restart_continues_with_the_same_tokens)
{
    if (driver_device_is_cuda()) {
        return; /* its prefill and its decode agree to rounding, so a seeded draw may differ */
    }
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    enum { PROMPT = 21, BEFORE = 9 };
    int32_t tokens[PROMPT + GENERATED];
    driver_random_tokens(31, VOCABULARY, tokens, PROMPT);
    proto_sampling_t sampling = seeded(1234);
    sampling.frequency_penalty = 1.5;
    int32_t whole[GENERATED];
    generate_alone(&driver, 4, tokens, PROMPT, sampling, 100, whole, GENERATED);

    memcpy(tokens + PROMPT, whole, BEFORE * sizeof *tokens);
    sampling.prompt_length = PROMPT;
    driver_setup(&driver, 7, tokens, PROMPT + BEFORE, &sampling);
    int32_t next = driver_prefill(&driver, 7, tokens, PROMPT + BEFORE, 8);
    for (uint32_t i = BEFORE; i < GENERATED; i++) {
        ck_assert_int_eq(next, whole[i]);
        next = driver_decode_one(&driver, 7);
    }
    driver_close(&driver);
}
END_TEST

/* Blocks of another request serve as a prefix; only the tail is computed. */
START_TEST(a_shared_prefix_gives_the_same_tokens)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[50];
    int32_t alone[GENERATED];
    driver_random_tokens(99, VOCABULARY, prompt, 50);
    generate_alone(&driver, 1, prompt, 50, greedy(), 100, alone, GENERATED);
    memcpy(driver.blocks[2], driver.blocks[1], 3 * sizeof driver.blocks[2][0]);
    proto_sampling_t sampling = greedy();
    driver_setup(&driver, 2, prompt, 50, &sampling);
    driver_extend_t tail = {
        .slot = 2, .begin = 48, .length = 2, .sample = true, .tokens = prompt + 48};
    driver_result_t result;
    driver_step(&driver, &tail, 1, NULL, 0, &result);
    ck_assert_int_eq(result.tokens[0], alone[0]);
    for (uint32_t i = 1; i < GENERATED; i++) {
        ck_assert_int_eq(driver_decode_one(&driver, 2), alone[i]);
    }
    driver_close(&driver);
}
END_TEST

/* In planes full of NaN, the null page included, a request alone or among others gets the tokens
 * and the logits that it gets in planes full of zeros. */
START_TEST(what_was_never_written_is_never_read)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    static float logits[2][VOCABULARY];
    int32_t prompt[37];
    int32_t clean[GENERATED];
    int32_t poisoned[GENERATED];
    driver_random_tokens(55, VOCABULARY, prompt, 37);
    generate_alone(&driver, 5, prompt, 37, seeded(5), 100, clean, GENERATED);
    driver_logits(&driver, logits[0], VOCABULARY, 1);
    ck_assert_int_eq(run_inspect_poison_cache(driver.executor), STATUS_OK);
    generate_alone(&driver, 5, prompt, 37, seeded(5), 10, poisoned, GENERATED);
    driver_logits(&driver, logits[1], VOCABULARY, 1);
    ck_assert_mem_eq(clean, poisoned, sizeof clean);
    ck_assert_mem_eq(logits[0], logits[1], sizeof logits[0]);
    ck_assert_int_eq(run_inspect_poison_cache(driver.executor), STATUS_OK);
    generate_in_company(&driver, 5, prompt, 37, seeded(5), poisoned, GENERATED);
    ck_assert_mem_eq(clean, poisoned, sizeof clean);
    driver_close(&driver);
}
END_TEST

/* Padded rows may write the null page and nothing else. */
START_TEST(padding_touches_no_live_block)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[17];
    driver_random_tokens(3, VOCABULARY, prompt, 17);
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        driver_setup(&driver, slot, prompt, 17, NULL);
        (void)driver_prefill(&driver, slot, prompt, 17, 17);
    }
    /* The blocks of group 0 that a slot may own; beyond them lie those of other groups. */
    static uint64_t before[4096];
    uint32_t end = 1 + SLOTS * driver.columns;
    ck_assert_uint_le(end, 4096);
    for (uint32_t block = 1; block < end; block++) {
        ck_assert_int_eq(run_inspect_block_digest(driver.executor, 0, block, &before[block]),
                         STATUS_OK);
    }
    uint32_t slots[] = {2, 9, 5, 11, 7}; /* padded to 8 */
    driver_result_t result;
    driver_step(&driver, NULL, 0, slots, 5, &result);
    ck_assert_int_eq(result.mode, PROTO_STEP_DECODE_GRAPH);
    for (uint32_t block = 1; block < end; block++) {
        uint64_t after;
        ck_assert_int_eq(run_inspect_block_digest(driver.executor, 0, block, &after), STATUS_OK);
        bool is_written = false;
        for (uint32_t i = 0; i < 5; i++) {
            is_written = is_written || driver.blocks[slots[i]][17 / 16] == block;
        }
        ck_assert_int_eq(after != before[block], is_written);
    }
    driver_close(&driver);
}
END_TEST

/* A captured graph holds addresses for ever: a refresh that moved one must be found before it
 * writes somewhere. */
START_TEST(a_planted_rebind_is_caught_by_the_guard)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[5];
    driver_random_tokens(3, VOCABULARY, prompt, 5);
    driver_setup(&driver, 1, prompt, 5, NULL);
    (void)driver_prefill(&driver, 1, prompt, 5, 5);
    (void)driver_decode_one(&driver, 1);
    ck_assert_int_eq(run_inspect_plant_rebind(driver.executor), STATUS_OK);
    uint32_t slot = 1;
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(run_executor_fault(driver.executor), "metadata moved: "));
    ck_assert_ptr_nonnull(strstr(run_executor_fault(driver.executor), "decode"));
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, &slot, 1), STATUS_ERR_INTERNAL);
    driver_close(&driver);
}
END_TEST

static _Atomic uint32_t wakes;
static void
count_wake(void *context)
{
    (void)context;
    wakes++;
}

/* After start nothing is allocated: joins, restarts, mixed steps, sizes above the ladder. */
START_TEST(the_decode_loop_allocates_nothing)
{
    run_executor_options_t options = tiny_options(fixtures[_i]);
    options.graph_debug = false;
    options.on_complete = count_wake;
    driver_t driver;
    driver_open(&driver, &options);
    wakes = 0;
    int32_t prompt[33];
    int32_t tokens[GENERATED];
    driver_random_tokens(77, VOCABULARY, prompt, 33);
    ck_assert_uint_gt(driver_allocation_count(), 0);
    uint64_t before = driver_allocation_count();
    proto_sampling_t sampling = seeded(4);
    sampling.logprobs = 6;
    generate_in_company(&driver, 5, prompt, 33, sampling, tokens, GENERATED);
    ck_assert_int_eq(run_executor_reset(driver.executor), STATUS_OK);
    generate_alone(&driver, 5, prompt, 33, sampling, 10, tokens, GENERATED);
    uint32_t all[SLOTS];
    for (uint32_t i = 0; i < SLOTS; i++) {
        all[i] = i + 1;
        driver_setup(&driver, i + 1, prompt, 33, NULL);
        (void)driver_prefill(&driver, i + 1, prompt, 33, 33);
    }
    driver_result_t result;
    for (uint32_t i = 0; i < 20; i++) {
        driver_step(&driver, NULL, 0, all, SLOTS, &result);
        ck_assert_int_eq(result.mode, PROTO_STEP_DECODE_ABOVE);
    }
    ck_assert_uint_eq(driver_allocation_count(), before);
    ck_assert_int_eq(run_executor_reset(driver.executor), STATUS_OK); /* all calls have run */
    ck_assert_uint_eq(wakes, driver.step);
    driver_close(&driver);
}
END_TEST

/* A launch that does not fit is refused and changes nothing. */
START_TEST(launches_out_of_range_are_refused)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_open(&driver, &options);
    int32_t prompt[8];
    int32_t expected[GENERATED];
    driver_random_tokens(3, VOCABULARY, prompt, 8);
    generate_alone(&driver, 1, prompt, 8, greedy(), 8, expected, GENERATED);
    proto_sampling_t sampling = greedy();
    driver_setup(&driver, 1, prompt, 8, &sampling);
    ck_assert_int_eq(driver_prefill(&driver, 1, prompt, 8, 8), expected[0]);

    static int32_t long_prompt[DRIVER_TOKENS_MAX];
    driver_extend_t extend = {.slot = 1, .length = 129, .sample = true, .tokens = long_prompt};
    ck_assert_int_eq(driver_try_launch(&driver, &extend, 1, NULL, 0), STATUS_ERR_INVALID);
    extend.length = 0;
    ck_assert_int_eq(driver_try_launch(&driver, &extend, 1, NULL, 0), STATUS_ERR_INVALID);
    uint32_t slots[SLOTS + 1] = {0};
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, slots, 1), STATUS_ERR_INVALID);
    slots[0] = SLOTS + 1;
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, slots, 1), STATUS_ERR_INVALID);
    for (uint32_t i = 0; i <= SLOTS; i++) {
        slots[i] = 1;
    }
    ck_assert_int_eq(driver_try_launch(&driver, NULL, 0, slots, SLOTS + 1), STATUS_ERR_INVALID);
    proto_slot_setup_t setup = {.slot = SLOTS + 1};
    ck_assert_int_eq(run_executor_slot_setup(driver.executor, &setup), STATUS_ERR_INVALID);
    uint32_t slot = 1;
    uint8_t group = 0;
    uint32_t column = driver.columns;
    uint32_t one = 1;
    proto_step_launch_t patch = {.step = 1,
                                 .width = 1,
                                 .patch_slots = {&slot, 1},
                                 .patch_groups = {&group, 1},
                                 .patch_columns = {&column, 1},
                                 .patch_counts = {&one, 1},
                                 .patch_blocks = {&one, 1}};
    ck_assert_int_eq(run_executor_launch(driver.executor, &patch), STATUS_ERR_INVALID);
    for (uint32_t i = 1; i < GENERATED; i++) {
        ck_assert_int_eq(driver_decode_one(&driver, 1), expected[i]);
    }
    driver_close(&driver);
}
END_TEST

/* Blocks are zeroed before use, and only those that were named. */
START_TEST(clears_zero_the_named_blocks)
{
    run_executor_options_t options = tiny_options("tiny-llama");
    driver_t driver;
    driver_open(&driver, &options);
    uint64_t zero;
    ck_assert_int_eq(run_inspect_block_digest(driver.executor, 0, 1, &zero), STATUS_OK);
    int32_t prompt[33];
    driver_random_tokens(3, VOCABULARY, prompt, 33);
    driver_setup(&driver, 1, prompt, 33, NULL);
    (void)driver_prefill(&driver, 1, prompt, 33, 33);
    uint8_t groups[] = {0, 0};
    uint32_t blocks[] = {driver.blocks[1][0], driver.blocks[1][2]};
    proto_step_launch_t launch = {.step = ++driver.step,
                                  .width = 1,
                                  .clear_groups = {groups, 2},
                                  .clear_blocks = {blocks, 2}};
    ck_assert_int_eq(run_executor_launch(driver.executor, &launch), STATUS_OK);
    driver_result_t result;
    driver_collect(&driver, &result);
    ck_assert_int_eq(result.mode, PROTO_STEP_IDLE);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t digest;
        ck_assert_int_eq(run_inspect_block_digest(driver.executor, 0, driver.blocks[1][i], &digest),
                         STATUS_OK);
        ck_assert_int_eq(digest == zero, i != 1);
    }
    driver_close(&driver);
}
END_TEST

/* Configuration errors name what is wrong. */
START_TEST(wrong_options_are_clear_errors)
{
    char error[1024];
    run_executor_options_t options = tiny_options("tiny-llama");
    options.error = error;
    options.error_size_bytes = sizeof error;
    run_executor_t *executor = NULL;
    run_executor_options_t bad = options;
    bad.model_path = "/nonexistent/model.gguf";
    ck_assert_int_eq(run_executor_new(&bad, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "/nonexistent/model.gguf"));
    bad = options;
    bad.device = "abacus";
    ck_assert_int_eq(run_executor_new(&bad, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "abacus"));
    bad = options;
    bad.device = "cuda";
    bad.int8_activations = true; /* refused before there is a device, so on every machine */
    ck_assert_int_eq(run_executor_new(&bad, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "int8 activations"));
    bad = options;
    bad.kernel_path = "mmx";
    ck_assert_int_eq(run_executor_new(&bad, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "mmx"));
    bad = options;
    bad.model_len_max = 100000;
    ck_assert_int_eq(run_executor_new(&bad, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "100000"));
    bad = options;
    /* A limit that cannot do is the configuration's fault: starting again does not help. */
    bad.cache_size_bytes = 100;
    ck_assert_int_eq(run_executor_new(&bad, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "cache in 0.0 MiB as asked"));
    bad.cache_size_bytes = UINT64_C(1) << 60;
    ck_assert_int_eq(run_executor_new(&bad, &executor), STATUS_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error, "this machine has"));
    ck_assert_ptr_null(executor);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.runner");
    TCase *tests = tcase_create("runner");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, the_ladder_is_a_subset_of_the_sizes);
    tcase_add_loop_test(tests, eager_and_replayed_decode_are_identical, 0, fixture_count());
    tcase_add_loop_test(tests, tokens_do_not_depend_on_the_batch, 0, fixture_count());
    tcase_add_loop_test(tests, chunked_and_whole_prefill_are_identical, 0, fixture_count());
    tcase_add_loop_test(tests, bits_do_not_depend_on_the_thread_count, 0, fixture_count());
    tcase_add_loop_test(tests, two_steps_in_flight_give_the_same_tokens, 0, fixture_count());
    tcase_add_loop_test(tests, a_restart_continues_with_the_same_tokens, 0, fixture_count());
    tcase_add_loop_test(tests, a_shared_prefix_gives_the_same_tokens, 0, fixture_count());
    tcase_add_loop_test(tests, what_was_never_written_is_never_read, 0, fixture_count());
    tcase_add_loop_test(tests, padding_touches_no_live_block, 0, fixture_count());
    tcase_add_test(tests, a_planted_rebind_is_caught_by_the_guard);
    tcase_add_loop_test(tests, the_decode_loop_allocates_nothing, 0, fixture_count());
    tcase_add_test(tests, launches_out_of_range_are_refused);
    tcase_add_test(tests, clears_zero_the_named_blocks);
    tcase_add_test(tests, wrong_options_are_clear_errors);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
