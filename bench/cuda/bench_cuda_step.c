/* bench_cuda_step MODEL [DEVICE] [BATCH:CONTEXT ...] - the time of whole steps through the
 * executor, as a node runs them: two in flight, greedy, replayed graphs.  Prints JSON.
 *
 * Contexts are real: every request is prefilled with random tokens.  A figure is the median of
 * ROUNDS rounds; `host_us` is what the host does for a step (launch and collect, waiting left out).
 */
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run_executor.h"

enum {
    ROUNDS = 7,
    STEPS = 24,
    GRANULARITY = 64,
    BATCH_MAX = 128,
    CHUNK = 8192,
    COLUMNS_MAX = 2048
};

static run_executor_t *executor;
static uint64_t step;
static sem_t completed;
static double host_s; /* spent in calls of the executor */

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
        (void)fprintf(stderr, "bench_cuda_step: %s: %s (%s)\n", what, proto_status_text(status),
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
launch(const proto_step_launch_t *what)
{
    double begin = now_s();
    stop_if(run_executor_launch(executor, what), "launch");
    host_s += now_s() - begin;
}

static void
collect(void)
{
    proto_step_done_t done;
    for (;;) {
        double begin = now_s();
        proto_status_t status = run_executor_collect(executor, &done);
        host_s += now_s() - begin;
        if (status != STATUS_AGAIN) {
            stop_if(status, "collect");
            return;
        }
        (void)sem_wait(&completed);
    }
}

/* Prefills one request; returns seconds. */
static double
prefill(uint32_t slot, uint32_t columns, uint32_t first_block, uint32_t count)
{
    static int32_t tokens[CHUNK];
    static uint32_t blocks[COLUMNS_MAX];
    proto_executor_info_t info;
    run_executor_info(executor, &info);
    uint8_t none = 0;
    proto_slot_setup_t setup = {.slot = slot, .tokens = {tokens, 1}, .sampling = {&none, 0}};
    stop_if(run_executor_slot_setup(executor, &setup), "setup");
    for (uint32_t i = 0; i < columns; i++) {
        blocks[i] = first_block + i;
    }
    double begin = now_s();
    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t length = count - at < CHUNK ? count - at : CHUNK;
        for (uint32_t i = 0; i < length; i++) {
            tokens[i] = (int32_t)(((slot * 977u + at + i) * 2654435761u >> 8) % info.vocab_size);
        }
        uint8_t sample = at + length == count;
        uint8_t group = 0;
        uint32_t column = 0;
        proto_step_launch_t what = {.step = ++step,
                                    .width = 1,
                                    .extend_slots = {&slot, 1},
                                    .extend_begins = {&at, 1},
                                    .extend_lengths = {&length, 1},
                                    .extend_samples = {&sample, 1},
                                    .extend_tokens = {tokens, length}};
        if (at == 0) {
            what.patch_slots = (proto_column_u32_t){&slot, 1};
            what.patch_groups = (proto_column_u8_t){&group, 1};
            what.patch_columns = (proto_column_u32_t){&column, 1};
            what.patch_counts = (proto_column_u32_t){&columns, 1};
            what.patch_blocks = (proto_column_u32_t){blocks, columns};
        }
        launch(&what);
        collect();
    }
    return now_s() - begin;
}

/* Seconds for each step, two in flight. */
static double
decode(const uint32_t *slots, uint32_t count, uint32_t steps)
{
    double begin = now_s();
    uint32_t launched = 0;
    for (uint32_t collected = 0; collected < steps; collected++) {
        while (launched < steps && launched - collected < 2) {
            proto_step_launch_t what = {.step = ++step, .width = 1, .decode_slots = {slots, count}};
            launch(&what);
            launched++;
        }
        collect();
    }
    return (now_s() - begin) / steps;
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double
median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static void
bench_decode(uint32_t batch, uint32_t context, const char *separator)
{
    uint32_t slots[BATCH_MAX];
    uint32_t columns = (context + (ROUNDS + 1) * STEPS + GRANULARITY) / GRANULARITY + 1;
    for (uint32_t i = 0; i < batch; i++) {
        slots[i] = i + 1;
        (void)prefill(i + 1, columns, 1 + i * columns, context);
    }
    double rounds[ROUNDS];
    double hosts[ROUNDS];
    (void)decode(slots, batch, STEPS);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        host_s = 0.0;
        rounds[i] = decode(slots, batch, STEPS) * 1e3;
        hosts[i] = host_s / STEPS * 1e6;
    }
    (void)printf("%s\n  {\"batch\": %" PRIu32 ", \"context\": %" PRIu32
                 ", \"step_ms\": %.3f, \"host_us\": %.1f}",
                 separator, batch, context, median(rounds, ROUNDS), median(hosts, ROUNDS));
    (void)fflush(stdout);
}

int
main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: bench_cuda_step MODEL [DEVICE] [BATCH:CONTEXT ...]\n");
        return 64;
    }
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* device_cuda.h */
    char error[1024] = "";
    run_executor_options_t options = {
        .model_path = argv[1],
        .device = argc > 2 ? argv[2] : "cuda",
        .slot_count = BATCH_MAX,
        .step_tokens_max = CHUNK,
        .block_granularity = GRANULARITY,
        .capture_bs_max = BATCH_MAX,
        .on_complete = on_complete,
        .error = error,
        .error_size_bytes = sizeof error,
    };
    (void)sem_init(&completed, 0, 0);
    double begin = now_s();
    if (run_executor_new(&options, &executor) != STATUS_OK) {
        (void)fprintf(stderr, "bench_cuda_step: %s\n", error);
        return 1;
    }
    (void)fprintf(stderr, "%sready after %.3f s\n", run_executor_summary(executor),
                  now_s() - begin);
    double times[5] = {0};
    proto_executor_info_t info;
    run_executor_info(executor, &info);
    for (uint32_t i = 0; info.model_len_max > CHUNK && i < 6; i++) {
        times[i % 5] = prefill(1, CHUNK / GRANULARITY + 1, 1, CHUNK) * 1e3; /* the first warms up */
    }
    (void)printf("{\"prefill_8192_ms\": %.1f, \"decode\": [", median(times, 5));
    for (int i = 3; i < argc; i++) {
        char *colon = NULL;
        uint32_t batch = (uint32_t)strtoul(argv[i], &colon, 10);
        uint32_t context = (uint32_t)strtoul(colon + 1, NULL, 10);
        if (*colon != ':' || batch == 0 || batch > BATCH_MAX || context == 0 || context > 40000) {
            (void)fprintf(stderr, "bench_cuda_step: '%s' is no BATCH:CONTEXT\n", argv[i]);
            return 64;
        }
        bench_decode(batch, context, i == 3 ? "" : ",");
    }
    (void)printf("]}\n");
    run_executor_destroy(&executor);
    return 0;
}
