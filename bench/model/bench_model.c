/* bench_model MODEL [threads] [streams] [kernel path] [int8] - decode and prefill speed through the
 * executor's own interface, for profiling.  Prints one line for each figure. */
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run_executor.h"

enum { PROMPT_LEN = 512, WARM_STEPS = 8, DECODE_STEPS = 96, GRANULARITY = 64, STREAMS_MAX = 64 };

static run_executor_t *executor;
static uint64_t step;
static sem_t completed; /* posted for each step that ends: waiting must not take a core */

static double
now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void
stop_if(proto_status_t status, const char *what)
{
    if (status != STATUS_OK) {
        (void)fprintf(stderr, "bench_model: %s: %s (%s)\n", what, proto_status_text(status),
                      run_executor_fault(executor));
        exit(1);
    }
}

static void
on_complete(void *context)
{
    (void)context;
    (void)sem_post(&completed);
}

static void
collect(proto_step_done_t *done)
{
    proto_status_t status;
    while ((status = run_executor_collect(executor, done)) == STATUS_AGAIN) {
        (void)sem_wait(&completed);
    }
    stop_if(status, "collect");
}

/* Every block of a stream is given at its first extend. */
static void
start_stream(uint32_t slot, const int32_t *tokens, uint32_t token_count, uint32_t chunk)
{
    uint8_t none = 0;
    proto_slot_setup_t setup = {
        .slot = slot,
        .tokens = {tokens, token_count},
        .sampling = {&none, 0},
    };
    stop_if(run_executor_slot_setup(executor, &setup), "setup");
    enum { COLUMNS = (PROMPT_LEN + WARM_STEPS + DECODE_STEPS + GRANULARITY) / GRANULARITY + 1 };
    uint32_t blocks[COLUMNS];
    for (uint32_t i = 0; i < COLUMNS; i++) {
        blocks[i] = 1 + (slot - 1) * COLUMNS + i;
    }
    for (uint32_t at = 0; at < token_count; at += chunk) {
        uint32_t length = token_count - at < chunk ? token_count - at : chunk;
        uint8_t sample = at + length == token_count;
        uint8_t group = 0;
        uint32_t column = 0;
        uint32_t count = COLUMNS;
        proto_step_launch_t launch = {
            .step = ++step,
            .width = 1,
            .extend_slots = {&slot, 1},
            .extend_begins = {&at, 1},
            .extend_lengths = {&length, 1},
            .extend_samples = {&sample, 1},
            .extend_tokens = {tokens + at, length},
        };
        if (at == 0) {
            launch.patch_slots = (proto_column_u32_t){&slot, 1};
            launch.patch_groups = (proto_column_u8_t){&group, 1};
            launch.patch_columns = (proto_column_u32_t){&column, 1};
            launch.patch_counts = (proto_column_u32_t){&count, 1};
            launch.patch_blocks = (proto_column_u32_t){blocks, COLUMNS};
        }
        stop_if(run_executor_launch(executor, &launch), "extend");
        proto_step_done_t done;
        collect(&done);
    }
}

/* Keeps two steps in flight; returns seconds. */
static double
decode(const uint32_t *slots, uint32_t count, uint32_t steps)
{
    double begin = now_s();
    uint32_t launched = 0;
    for (uint32_t collected = 0; collected < steps; collected++) {
        while (launched < steps && launched - collected < 2) {
            proto_step_launch_t launch = {.step = ++step,
                                          .width = 1,
                                          .decode_slots = {slots, count}};
            stop_if(run_executor_launch(executor, &launch), "decode");
            launched++;
        }
        proto_step_done_t done;
        collect(&done);
    }
    return now_s() - begin;
}

int
main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr,
                      "usage: bench_model MODEL [threads] [streams] [kernel path] [int8]\n");
        return 64;
    }
    uint32_t streams = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 16;
    streams = streams < 1 ? 1 : streams > STREAMS_MAX ? STREAMS_MAX : streams;
    char error[512] = "";
    run_executor_options_t options = {
        .model_path = argv[1],
        .device = "cpu",
        .thread_count = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2,
        .slot_count = streams,
        .model_len_max = 1024,
        .step_tokens_max = PROMPT_LEN,
        .block_granularity = GRANULARITY,
        .kernel_path = argc > 4 ? argv[4] : "auto",
        .int8_activations = argc > 5 && strcmp(argv[5], "int8") == 0,
        .on_complete = on_complete,
        .error = error,
        .error_size_bytes = sizeof error,
    };
    (void)sem_init(&completed, 0, 0);
    double begin = now_s();
    if (run_executor_new(&options, &executor) != STATUS_OK) {
        (void)fprintf(stderr, "bench_model: %s\n", error);
        return 1;
    }
    (void)printf("%sready after %.3f s\n", run_executor_summary(executor), now_s() - begin);

    proto_executor_info_t info;
    run_executor_info(executor, &info);
    static int32_t tokens[PROMPT_LEN];
    for (uint32_t i = 0; i < PROMPT_LEN; i++) {
        tokens[i] = (int32_t)((i * 2654435761u >> 8) % info.vocab_size);
    }
    uint32_t slots[STREAMS_MAX];
    for (uint32_t i = 0; i < streams; i++) {
        slots[i] = i + 1;
    }
    start_stream(1, tokens, PROMPT_LEN, PROMPT_LEN); /* warm */
    begin = now_s();
    start_stream(1, tokens, PROMPT_LEN, PROMPT_LEN);
    (void)printf("prefill_512_tokens_per_s %.1f\n", PROMPT_LEN / (now_s() - begin));

    start_stream(1, tokens, 16, 16);
    (void)decode(slots, 1, WARM_STEPS);
    double one = DECODE_STEPS / decode(slots, 1, DECODE_STEPS);
    (void)printf("decode_bs1_tokens_per_s %.1f\n", one);
    for (uint32_t i = 0; i < streams; i++) {
        start_stream(slots[i], tokens, 16, 16);
    }
    (void)decode(slots, streams, WARM_STEPS);
    double many = DECODE_STEPS * streams / decode(slots, streams, DECODE_STEPS);
    (void)printf("decode_bs%" PRIu32 "_tokens_per_s %.1f (%.2f x)\n", streams, many, many / one);
    run_executor_destroy(&executor);
    return 0;
}
