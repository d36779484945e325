/* Models, requests, and their answers at width 1. */
#include "gpu_width.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "cache_plan.h"
#include "run_inspect.h"

const width_fixture_t width_fixtures[FIXTURE_COUNT] = {
    {"tiny-llama", 16, false},    {"tiny-gemma3", 16, false}, {"tiny-gpt-oss", 16, false},
    {"tiny-deepseek", 16, false}, {"tiny-qwen35", 64, false}, {"tiny-qwen35", 64, true},
};
answer_t width_answers[SLOTS + 1];
static char model_path[600];

run_executor_options_t
width_options(const width_fixture_t *fixture, uint32_t width)
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

/* Token `at` of slots first, first + 1, ..., which are the rows of the result. */
static void
note_tokens(uint32_t first, const driver_result_t *result, uint32_t at)
{
    uint32_t entry = 0;
    for (uint32_t row = 0; row < result->row_count; row++) {
        answer_t *answer = &width_answers[first + row];
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

void
width_make_answers(const width_fixture_t *fixture)
{
    run_executor_options_t options = width_options(fixture, 1);
    driver_t driver;
    driver_open(&driver, &options);
    driver_result_t result;
    uint32_t slots[SLOTS];
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        slots[slot - 1] = slot;
        answer_t *answer = &width_answers[slot];
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

uint64_t
width_block_digest(driver_t *driver, uint32_t slot, uint32_t column, bool of_states)
{
    uint64_t sum = 0;
    for (uint32_t group = 0; group < driver->group_count; group++) {
        if (is_state(driver, group) == of_states) {
            sum = sum * 31 + block_digest_of(driver, slot, column, group);
        }
    }
    return sum;
}
