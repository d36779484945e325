/* bench_recurrent - the operations of recurrent layers at the sizes of Qwen3.5's (16 key and 32
 * value heads of 128), against measured ceilings.
 *
 *   bench_recurrent [threads] [path]
 *
 * Each line is the best of several repetitions. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_ceilings.h"
#include "kern_conv.h"
#include "kern_gdn.h"
#include "kern_norm.h"
#include "kern_state.h"
#include "kern_team.h"

enum {
    K_HEADS = 16,
    V_HEADS = 32,
    DIM = 128,
    WIDTH = 4,
    CHANNELS = 2 * K_HEADS * DIM + V_HEADS * DIM,
    VALUES = V_HEADS * DIM,
    STATE_LEN = V_HEADS * DIM * DIM,
    ROWS_MAX = 2048,
    BLOCKS = 130,
};

static kern_team_t *team;
static double float_ceiling; /* Gop/s */
static double read_ceiling;  /* GB/s */

/* The layer, its rows and its caches. */
static float *input;
static float *qkv;
static float *gates;
static float *weight;
static float *heads; /* rate and dt_bias */
static float *output;
static float *states;
static float *windows;

/* With one thread its processor time, so that a busy machine disturbs less. */
static double
now_s(void)
{
    struct timespec time;
    bool alone = kern_team_thread_count(team) == 1;
    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static float *
random_floats(size_t count)
{
    float *values = aligned_alloc(64, (count * sizeof *values + 63) & ~(size_t)63);
    if (values == NULL) {
        fprintf(stderr, "bench_recurrent: out of memory\n");
        exit(EXIT_FAILURE);
    }
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) * 0x1.0p-23f - 1.0f;
    }
    return values;
}

/* Best seconds of a command, over some 0.3 s. */
static double
measure(kern_host_fn function, const void *args)
{
    double best = 1e9;
    kern_team_run(team, function, args);
    double end = now_s() + 0.3;
    for (int i = 0; i < 3 || now_s() < end; i++) {
        double start = now_s();
        kern_team_run(team, function, args);
        double took = now_s() - start;
        best = took < best ? took : best;
    }
    return best;
}

/* `operations` and `bytes` may be 0: then they say nothing. */
static void
report(const char *name, uint32_t rows, double seconds, double operations, double bytes)
{
    printf("%-34s %9.1f us %9.0f rows/s", name, seconds * 1e6, rows / seconds);
    if (operations > 0) {
        double rate = operations / seconds * 1e-9;
        printf("  %6.1f Gflop/s (%3.0f%%)", rate, 100 * rate / float_ceiling);
    }
    if (bytes > 0) {
        double rate = bytes / seconds * 1e-9;
        printf("  %6.1f GB/s (%3.0f%%)", rate, 100 * rate / read_ceiling);
    }
    printf("\n");
}

static void
measure_ceilings(uint32_t threads)
{
    double *sums = calloc(threads, sizeof *sums);
    bench_read_args_t read = {.from = states,
                              .size_bytes = (size_t)BLOCKS * STATE_LEN * sizeof(float),
                              .sums = sums};
    read_ceiling = (double)read.size_bytes / measure(bench_read_host, &read) * 1e-9;
    bench_peak_args_t peak = {.rounds = 1000000, .sums = sums};
    float_ceiling = bench_peak_float_operations(kern_team_path(team)) * (double)peak.rounds *
                    threads / measure(bench_peak_float_host, &peak) * 1e-9;
    printf("ceilings: read %.1f GB/s, float %.0f Gflop/s\n", read_ceiling, float_ceiling);
    free(sums);
}

static kern_gdn_t
layer(void)
{
    return (kern_gdn_t){
        .qkv = qkv,
        .qkv_stride = CHANNELS,
        .a = gates,
        .a_stride = 2 * V_HEADS,
        .b = gates + V_HEADS,
        .b_stride = 2 * V_HEADS,
        .rate = heads,
        .dt_bias = heads + V_HEADS,
        .k_heads = K_HEADS,
        .v_heads = V_HEADS,
        .k_dim = DIM,
        .v_dim = DIM,
        .output = output,
        .output_stride = VALUES,
    };
}

static kern_conv_t
convolution(void)
{
    return (kern_conv_t){
        .weight = weight,
        .width = WIDTH,
        .channels = CHANNELS,
        .silu = true,
        .input = input,
        .input_stride = CHANNELS,
        .output = qkv,
        .output_stride = CHANNELS,
    };
}

/* One request's prompt, as the scan and as the convolution. */
static void
bench_prefill(uint32_t rows)
{
    int32_t cu_rows[2] = {0, (int32_t)rows};
    int32_t in = 1;
    int32_t out = 2;
    int32_t prefix = KERN_GDN_GRID;
    int32_t requests[ROWS_MAX / KERN_CONV_BLOCK_ROWS + 1];
    int32_t chunks[ROWS_MAX / KERN_CONV_BLOCK_ROWS + 1];
    kern_conv_programs_args_t programs = {cu_rows, 1, kern_conv_program_count(rows, 1), requests,
                                          chunks};
    kern_conv_prefill_args_t conv = {
        .conv = convolution(),
        .cache = {windows, (WIDTH - 1) * CHANNELS, BLOCKS},
        .cu_rows = cu_rows,
        .in_blocks = &in,
        .out_blocks = &out,
        .request_count = 1,
        .program_count = programs.program_count,
        .requests = requests,
        .chunks = chunks,
    };
    kern_gdn_prefill_args_t gdn = {
        .gdn = layer(),
        .cache = {states, STATE_LEN, BLOCKS},
        .cu_rows = cu_rows,
        .prefix_lens = &prefix,
        .in_blocks = &in,
        .out_blocks = &out,
        .request_count = 1,
    };
    char name[64];
    snprintf(name, sizeof name, "conv_programs 1x%u", rows);
    report(name, rows, measure(kern_conv_programs_host, &programs), 0, 0);
    snprintf(name, sizeof name, "conv_prefill 1x%u", rows);
    report(name, rows, measure(kern_conv_prefill_host, &conv), 0, 8.0 * rows * CHANNELS);
    snprintf(name, sizeof name, "gdn_prefill 1x%u", rows);
    double operations = 7.0 * rows * STATE_LEN;
    report(name, rows, measure(kern_gdn_prefill_host, &gdn), operations, 0);
}

/* Steps of N rows: decode writes one state for each request, verify N, replay one. */
static void
bench_steps(uint32_t bs, uint32_t width)
{
    int32_t blocks[BLOCKS];
    int32_t seeds[BLOCKS];
    int32_t lens[BLOCKS];
    for (uint32_t i = 0; i < bs; i++) {
        blocks[i] = (int32_t)(1 + i);
        seeds[i] = (int32_t)(i * (width + 1));
        lens[i] = (int32_t)width;
    }
    kern_gdn_cache_t cache = {states, STATE_LEN, BLOCKS};
    kern_gdn_decode_args_t decode = {layer(), cache, blocks, blocks, bs, width};
    kern_gdn_verify_args_t verify = {layer(), cache, seeds, bs, width};
    kern_gdn_replay_args_t replay = {layer(), cache, blocks, blocks, lens, bs, width};
    kern_conv_cache_t conv_cache = {windows, (WIDTH - 1) * CHANNELS, BLOCKS};
    kern_conv_decode_args_t conv = {convolution(), conv_cache, blocks, blocks, bs, width};
    double state_bytes = sizeof(float) * (double)STATE_LEN * bs;
    uint32_t rows = bs * width;
    char name[64];
    snprintf(name, sizeof name, "conv_decode %ux%u", bs, width);
    report(name, rows, measure(kern_conv_decode_host, &conv), 0, 0);
    snprintf(name, sizeof name, "gdn_decode %ux%u", bs, width);
    report(name, rows, measure(kern_gdn_decode_host, &decode), 7.0 * rows * STATE_LEN,
           2 * state_bytes);
    if (bs * (width + 1) <= BLOCKS) {
        snprintf(name, sizeof name, "gdn_verify %ux%u", bs, width);
        report(name, rows, measure(kern_gdn_verify_host, &verify), 7.0 * rows * STATE_LEN,
               (1 + width) * state_bytes);
    }
    decode.out_blocks = NULL;
    snprintf(name, sizeof name, "gdn_decode %ux%u, read only", bs, width);
    report(name, rows, measure(kern_gdn_decode_host, &decode), 7.0 * rows * STATE_LEN, state_bytes);
    snprintf(name, sizeof name, "gdn_replay %ux%u", bs, width);
    report(name, rows, measure(kern_gdn_replay_host, &replay), 7.0 * rows * STATE_LEN,
           2 * state_bytes);
}

static void
bench_rest(uint32_t rows)
{
    kern_gated_norm_args_t norm = {.input = qkv,
                                   .input_stride = CHANNELS,
                                   .gate = qkv + VALUES,
                                   .gate_stride = CHANNELS,
                                   .weight = weight,
                                   .output = output,
                                   .output_stride = VALUES,
                                   .rows = rows,
                                   .heads = V_HEADS,
                                   .head_dim = DIM,
                                   .epsilon = 1e-6f};
    char name[64];
    snprintf(name, sizeof name, "gated_norm %u", rows);
    report(name, rows, measure(kern_gated_norm_host, &norm), 0, 12.0 * rows * VALUES);
    int32_t from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t to[8] = {11, 12, 13, 14, 15, 16, 17, 18};
    size_t row_bytes = STATE_LEN * sizeof(float);
    kern_state_copy_field_t field = {
        (uint8_t *)states, row_bytes, (uint8_t *)states, row_bytes, row_bytes, 0, 0};
    kern_state_copy_args_t copy = {&field, 1, from, to, 8, 0};
    report("state_copy 8", 8, measure(kern_state_copy_host, &copy), 0, 2.0 * 8 * (double)row_bytes);
}

int
main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    kern_team_options_t options = {.thread_count = threads, .path = kern_path_best()};
    if (argc > 2 && !kern_path_find(argv[2], &options.path)) {
        fprintf(stderr, "bench_recurrent: no path %s\n", argv[2]);
        return EXIT_FAILURE;
    }
    if (kern_team_new(&options, &team) != STATUS_OK) {
        fprintf(stderr, "bench_recurrent: no team\n");
        return EXIT_FAILURE;
    }
    input = random_floats((size_t)ROWS_MAX * CHANNELS);
    qkv = random_floats((size_t)ROWS_MAX * CHANNELS);
    gates = random_floats((size_t)ROWS_MAX * 2 * V_HEADS);
    weight = random_floats((size_t)WIDTH * CHANNELS);
    heads = random_floats(2 * V_HEADS);
    for (uint32_t h = 0; h < V_HEADS; h++) {
        heads[h] = 0.02f + 0.01f * (heads[h] + 1.0f);
    }
    output = random_floats((size_t)ROWS_MAX * VALUES);
    states = random_floats((size_t)BLOCKS * STATE_LEN);
    windows = random_floats((size_t)BLOCKS * (WIDTH - 1) * CHANNELS);
    measure_ceilings(threads);
    bench_prefill(64);
    bench_prefill(ROWS_MAX);
    bench_steps(1, 1);
    bench_steps(16, 1);
    bench_steps(16, 4);
    bench_rest(64);
    kern_team_destroy(&team);
    free(input);
    free(qkv);
    free(gates);
    free(weight);
    free(heads);
    free(output);
    free(states);
    free(windows);
    return EXIT_SUCCESS;
}
