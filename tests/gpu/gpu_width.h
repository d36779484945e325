/* gpu_width.h - what the tests of decode rows of width N share: models, requests, and their answers
 * at width 1 as tokens and log probabilities. */
#ifndef GPU_WIDTH_H
#define GPU_WIDTH_H

#include "gpu_driver.h"

enum {
    VOCABULARY = 320,
    GENERATED = 90,
    SLOTS = 18,
    PROMPT_MAX = 40,
    LOGPROBS = 3,
    FIXTURE_COUNT = 6,
    ATTENTION_COUNT = 4, /* of them, the first: no recurrent layers, blocks of any size */
};

typedef struct {
    const char *name;
    uint32_t granularity;
    bool keeps_states; /* of recurrent layers: how a verification remembers */
} width_fixture_t;

/* A request and its answer, with the prompt in front. */
typedef struct {
    uint32_t prompt_length;
    proto_sampling_t sampling;
    int32_t tokens[PROMPT_MAX + GENERATED];
    int32_t logprob_ids[GENERATED][LOGPROBS];
    float logprob_values[GENERATED][LOGPROBS];
} answer_t;

extern const width_fixture_t width_fixtures[FIXTURE_COUNT];
extern answer_t width_answers[SLOTS + 1]; /* by slot, from 1 */

run_executor_options_t width_options(const width_fixture_t *fixture, uint32_t width);

/* Lets width 1 answer: every second request is greedy, the others draw with penalties; some want
 * log probabilities. */
void width_make_answers(const width_fixture_t *fixture);

/* The digest of a block of a slot, in every group that has it; states apart, since a block of them
 * is not what its tokens left there but one state. */
uint64_t width_block_digest(driver_t *driver, uint32_t slot, uint32_t column, bool of_states);

#endif
