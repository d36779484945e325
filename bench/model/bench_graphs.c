/* bench_graphs MODEL [threads] - what a replay costs over the same launches without a graph.
 *
 * Two executors of one model, one with graphs and one without, take turns; the fastest of many
 * steps counts.  For prompts of a bucket's own length the difference is the overhead of the replay,
 * for others the padded rows come on top.  Prints a line for each size. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "run_executor.h"

enum {
    STEP_TOKENS = 256,
    GRANULARITY = 64,
    SLOTS = 16,
    COLUMNS = STEP_TOKENS / GRANULARITY + 1,
    RUNS = 101,
};

typedef struct {
    run_executor_t *executor;
    uint64_t step;
    uint32_t mode; /* of the last step */
} side_t;

static void
stop_if(proto_status_t status, const char *what)
{
    if (status != STATUS_OK) {
        (void)fprintf(stderr, "bench_graphs: %s: %s\n", what, proto_status_text(status));
        exit(1);
    }
}

/* Runs one step and returns the device's time for it. */
static uint64_t
run_step(side_t *side, proto_step_launch_t *launch)
{
    launch->step = ++side->step;
    launch->width = 1;
    stop_if(run_executor_launch(side->executor, launch), "launch");
    proto_step_done_t done;
    proto_status_t status;
    while ((status = run_executor_collect(side->executor, &done)) == STATUS_AGAIN) {
    }
    stop_if(status, "collect");
    side->mode = done.mode;
    return done.duration_ns;
}

static uint64_t
prefill(side_t *side, uint32_t slot, const int32_t *tokens, uint32_t length)
{
    uint8_t none = 0;
    proto_slot_setup_t setup = {.slot = slot, .tokens = {tokens, length}, .sampling = {&none, 0}};
    stop_if(run_executor_slot_setup(side->executor, &setup), "setup");
    uint32_t blocks[COLUMNS];
    for (uint32_t i = 0; i < COLUMNS; i++) {
        blocks[i] = 1 + (slot - 1) * COLUMNS + i;
    }
    uint32_t zero = 0;
    uint32_t columns = COLUMNS;
    uint8_t yes = 1;
    uint8_t group = 0;
    proto_step_launch_t launch = {
        .extend_slots = {&slot, 1},
        .extend_begins = {&zero, 1},
        .extend_lengths = {&length, 1},
        .extend_samples = {&yes, 1},
        .extend_tokens = {tokens, length},
        .patch_slots = {&slot, 1},
        .patch_groups = {&group, 1},
        .patch_columns = {&zero, 1},
        .patch_counts = {&columns, 1},
        .patch_blocks = {blocks, COLUMNS},
    };
    return run_step(side, &launch);
}

static uint64_t
decode(side_t *side, const uint32_t *slots, uint32_t count)
{
    proto_step_launch_t launch = {.decode_slots = {slots, count}};
    return run_step(side, &launch);
}

static void
print_line(const char *what, uint32_t size, const uint64_t best_ns[2], uint32_t mode)
{
    double graph = (double)best_ns[0];
    double eager = (double)best_ns[1];
    (void)printf("%s %4" PRIu32 ": replayed %9.3f ms, eager %9.3f ms, %+.1f %% (mode %" PRIu32
                 ")\n",
                 what, size, graph / 1e6, eager / 1e6, (graph / eager - 1.0) * 100.0, mode);
}

static void
open_side(side_t *side, const char *model, uint32_t threads, bool is_eager)
{
    char error[512] = "";
    run_executor_options_t options = {
        .model_path = model,
        .device = "cpu",
        .thread_count = threads,
        .slot_count = SLOTS,
        .model_len_max = STEP_TOKENS + 64,
        .step_tokens_max = STEP_TOKENS,
        .block_granularity = GRANULARITY,
        .capture_bs_max = SLOTS,
        .enforce_eager = is_eager,
        .error = error,
        .error_size_bytes = sizeof error,
    };
    if (run_executor_new(&options, &side->executor) != STATUS_OK) {
        (void)fprintf(stderr, "bench_graphs: %s\n", error);
        exit(1);
    }
}

int
main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: bench_graphs MODEL [threads]\n");
        return 64;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    uint32_t threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2;
    side_t sides[2] = {{0}};
    open_side(&sides[0], argv[1], threads, false);
    open_side(&sides[1], argv[1], threads, true);
    proto_executor_info_t info;
    run_executor_info(sides[0].executor, &info);
    static int32_t tokens[STEP_TOKENS];
    for (uint32_t i = 0; i < STEP_TOKENS; i++) {
        tokens[i] = (int32_t)((i * 2654435761u >> 8) % info.vocab_size);
    }
    static const uint32_t lengths[] = {16, 17, 64, 65, 128, 129};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint64_t best_ns[2] = {UINT64_MAX, UINT64_MAX};
        for (uint32_t run = 0; run < 2 * RUNS; run++) {
            uint64_t took_ns = prefill(&sides[run % 2], 1, tokens, lengths[i]);
            best_ns[run % 2] = took_ns < best_ns[run % 2] ? took_ns : best_ns[run % 2];
        }
        print_line("prefill", lengths[i], best_ns, sides[0].mode);
    }
    uint32_t slots[SLOTS];
    for (uint32_t i = 0; i < SLOTS; i++) {
        slots[i] = i + 1;
        (void)prefill(&sides[0], slots[i], tokens, 32);
        (void)prefill(&sides[1], slots[i], tokens, 32);
    }
    static const uint32_t batches[] = {1, 4, 16};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        uint64_t best_ns[2] = {UINT64_MAX, UINT64_MAX};
        for (uint32_t run = 0; run < 12 * RUNS; run++) {
            uint64_t took_ns = decode(&sides[run % 2], slots, batches[i]);
            best_ns[run % 2] = took_ns < best_ns[run % 2] ? took_ns : best_ns[run % 2];
        }
        print_line("decode", batches[i], best_ns, sides[0].mode);
    }
    run_executor_destroy(&sides[0].executor);
    run_executor_destroy(&sides[1].executor);
    return 0;
}
