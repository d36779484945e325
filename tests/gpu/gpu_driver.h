/* gpu_driver.h - what the tests of gpu/run share: an executor with a fixed block layout, steps
 * written down in a line, and a count of the allocations made by the project's own code.
 *
 * Slot s owns the blocks 1 + (s - 1) * columns ...; a test may point a slot at other blocks. */
#ifndef GPU_DRIVER_H
#define GPU_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "run_executor.h"

enum {
    DRIVER_SLOTS_MAX = 64,
    DRIVER_TOKENS_MAX = 1024,
    DRIVER_COLUMNS_MAX = 256,
    DRIVER_GROUPS_MAX = 2,
    DRIVER_PATCHES_MAX = 2 * DRIVER_SLOTS_MAX * DRIVER_GROUPS_MAX,
    DRIVER_LOGPROBS_MAX = 4 * DRIVER_SLOTS_MAX * 21,
};

typedef struct {
    run_executor_t *executor;
    proto_executor_info_t info;
    uint64_t step;
    uint32_t width;      /* of the next step: the executor's own, or 1 */
    uint32_t draft_slot; /* of the next step; 0 = none */
    uint32_t columns;    /* of a slot */
    uint32_t blocks[DRIVER_SLOTS_MAX + 1][DRIVER_COLUMNS_MAX]; /* wanted tables of group 0 */
    uint32_t group_count;
    uint32_t offsets[DRIVER_GROUPS_MAX]; /* from a block of group 0 to the same place in another */
    bool drop_expired;                   /* extends make holes of what slid out of a window */
    bool is_patched[DRIVER_SLOTS_MAX + 1];
} driver_t;

typedef struct {
    uint32_t slot;
    uint32_t begin;
    uint32_t length;
    bool sample;
    const int32_t *tokens; /* of the range */
    const int32_t *next;   /* the prompt's token behind the range, for drafters; NULL = none */
} driver_extend_t;

/* Patches of one launch. */
typedef struct {
    uint32_t slots[DRIVER_PATCHES_MAX];
    uint8_t groups[DRIVER_PATCHES_MAX];
    uint32_t columns[DRIVER_PATCHES_MAX];
    uint32_t counts[DRIVER_PATCHES_MAX];
    uint32_t blocks[DRIVER_PATCHES_MAX * DRIVER_COLUMNS_MAX];
    uint32_t count;
    uint32_t block_count;
} driver_patches_t;

typedef struct {
    uint64_t step;
    proto_step_mode_t mode;
    uint32_t row_count;
    uint8_t counts[DRIVER_SLOTS_MAX];
    uint8_t flags[DRIVER_SLOTS_MAX];
    int32_t tokens[DRIVER_SLOTS_MAX]; /* by row: the first of its tokens; -1 = none */
    int32_t windows[DRIVER_SLOTS_MAX][RUN_WIDTH_MAX]; /* by row: all of them */
    uint8_t drafted[DRIVER_SLOTS_MAX]; /* candidates that were tested, and those that were right */
    uint8_t hits[DRIVER_SLOTS_MAX];
    uint32_t draft_ignored;
    uint8_t logprob_widths[DRIVER_SLOTS_MAX];
    int32_t logprob_ids[DRIVER_LOGPROBS_MAX]; /* row by row, [count][width] */
    float logprob_values[DRIVER_LOGPROBS_MAX];
} driver_result_t;

/* Fails the test if the executor cannot be made. */
/* Whether the tests run on a GPU. */
bool driver_device_is_cuda(void);

/* ONEPATH_TEST_DEVICE names the device of all tests that do not choose one: "cuda" on a GPU host.
 */
void driver_open(driver_t *self, const run_executor_options_t *options);
void driver_close(driver_t *self);

/* A request takes a slot; NULL sampling = greedy. */
void driver_setup(driver_t *self, uint32_t slot, const int32_t *tokens, uint32_t token_count,
                  const proto_sampling_t *sampling);

/* Adds the whole tables of a slot, in every group. */
void driver_patch_slot(const driver_t *self, uint32_t slot, driver_patches_t *patches);
/* Puts them into a launch, which borrows them. */
void driver_patch_launch(const driver_patches_t *patches, proto_step_launch_t *launch);

/* Launches a step and returns its status. */
proto_status_t driver_try_launch(driver_t *self, const driver_extend_t *extends,
                                 uint32_t extend_count, const uint32_t *decodes,
                                 uint32_t decode_count);
void driver_launch(driver_t *self, const driver_extend_t *extends, uint32_t extend_count,
                   const uint32_t *decodes, uint32_t decode_count);
/* Waits for the oldest step, at most 60 s. */
void driver_collect(driver_t *self, driver_result_t *out);
/* Launch and collect. */
void driver_step(driver_t *self, const driver_extend_t *extends, uint32_t extend_count,
                 const uint32_t *decodes, uint32_t decode_count, driver_result_t *out);

/* Prefills a slot in chunks and returns the sampled token. */
int32_t driver_prefill(driver_t *self, uint32_t slot, const int32_t *tokens, uint32_t count,
                       uint32_t chunk);
/* One decode step of one slot; its first token. */
int32_t driver_decode_one(driver_t *self, uint32_t slot);

/* Logits of the last step. */
void driver_logits(driver_t *self, float *out, size_t count, uint32_t rows_expected);

/* Pseudo-random tokens below `vocabulary`, from a seed. */
void driver_random_tokens(uint32_t seed, uint32_t vocabulary, int32_t *out, uint32_t count);

/* The path of a fixture under tests/models/fixtures; lives until the next call. */
const char *driver_fixture(const char *name);

/* Allocations made by the project's own objects since the program began. */
uint64_t driver_allocation_count(void);

#endif
