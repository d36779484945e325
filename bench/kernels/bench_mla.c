/* bench_mla - latent attention at the sizes of a DeepSeek-V3 layer (latent 512, rotated 64, heads
 * of 128) with 16 of its 128 heads, and what the same rows cost with keys and values expanded.
 *
 *   bench_mla [threads] [path]
 *
 * Each line is the best of several repetitions. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_ceilings.h"
#include "kern_attention.h"
#include "kern_linear.h"
#include "kern_mla.h"
#include "kern_moe.h"
#include "kern_team.h"

enum {
    HEADS = 16,
    NOPE = 128,
    ROPE = 64,
    VALUE = 128,
    LATENT = 512,
    KEY = LATENT + ROPE,
    HEAD = NOPE + ROPE,
    PAGE_SIZE = 64,
    CONTEXT_MAX = 2048,
    REQUESTS_MAX = 16,
    ROWS_MAX = 512,
    PAGES = REQUESTS_MAX * CONTEXT_MAX / PAGE_SIZE,
    EXPERTS = 256,
};

static kern_team_t *team;
static double float_ceiling; /* Gop/s */
static double read_ceiling;  /* GB/s */
static float *rows_in;       /* [ROWS_MAX][HEADS * KEY] */
static float *rows_out;      /* [ROWS_MAX][HEADS * KEY] */
static float *cache;         /* room for expanded keys and values of one request, too */
static uint16_t *weights;    /* BF16 */
static int32_t table[PAGES];

/* With one thread its processor time, so that a busy machine disturbs less. */
static double
now_s(void)
{
    struct timespec time;
    bool alone = kern_team_thread_count(team) == 1;
    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *
allocate(size_t size_bytes)
{
    void *memory = aligned_alloc(64, (size_bytes + 63) & ~(size_t)63);
    if (memory == NULL) {
        fprintf(stderr, "bench_mla: out of memory\n");
        exit(EXIT_FAILURE);
    }
    memset(memory, 0, size_bytes);
    return memory;
}

static float *
random_floats(size_t count)
{
    float *values = allocate(count * sizeof *values);
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
report(const char *name, double seconds, double operations, double bytes)
{
    printf("%-44s %10.1f us", name, seconds * 1e6);
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

static kern_mla_cache_t
latent_cache(kern_type_t type)
{
    return (kern_mla_cache_t){
        .cache = cache,
        .cache_type = type,
        .page_size = PAGE_SIZE,
        .page_count = PAGES,
        .page_table = table,
        .page_table_stride = CONTEXT_MAX / PAGE_SIZE,
        .heads = HEADS,
        .latent_dim = LATENT,
        .rope_dim = ROPE,
        .scale = 0.07f,
    };
}

static void
bench_decode(kern_type_t type, uint32_t bs, uint32_t width, uint32_t keys)
{
    int32_t lens[REQUESTS_MAX];
    for (uint32_t i = 0; i < bs; i++) {
        lens[i] = (int32_t)keys;
    }
    size_t work_bytes =
        kern_mla_decode_workspace_size_bytes(bs * width, HEADS, LATENT, CONTEXT_MAX);
    kern_mla_decode_args_t args = {
        .cache = latent_cache(type),
        .q = rows_in,
        .q_stride = (size_t)HEADS * KEY,
        .seq_lens = lens,
        .bs = bs,
        .rows_per_request = width,
        .output = rows_out,
        .output_stride = (size_t)HEADS * LATENT,
        .workspace = allocate(work_bytes),
        .workspace_size_bytes = work_bytes,
    };
    double seconds = measure(kern_mla_decode_host, &args);
    char name[64];
    snprintf(name, sizeof name, "mla decode %s %ux%u keys %u", kern_type_name(type), bs, width,
             keys);
    report(name, seconds, 2.0 * bs * width * HEADS * (KEY + LATENT) * keys,
           (double)bs * keys * KEY * (type == KERN_TYPE_F32 ? 4 : 2));
    free(args.workspace);
}

/* Returns the seconds. */
static double
bench_extend(uint32_t rows, uint32_t keys)
{
    int32_t cu_q[2] = {0, (int32_t)rows};
    int32_t lens[1] = {(int32_t)keys};
    kern_mla_extend_args_t args = {
        .cache = latent_cache(KERN_TYPE_F32),
        .q = rows_in,
        .q_stride = (size_t)HEADS * KEY,
        .cu_q = cu_q,
        .seq_lens = lens,
        .request_count = 1,
        .output = rows_out,
        .output_stride = (size_t)HEADS * LATENT,
    };
    double seconds = measure(kern_mla_extend_host, &args);
    char name[64];
    snprintf(name, sizeof name, "mla extend F32 %u rows keys %u", rows, keys);
    report(name, seconds, 2.0 * rows * HEADS * (KEY + LATENT) * (keys - rows / 2.0), 0);
    return seconds;
}

static double
bench_heads(const char *what, uint32_t rows, uint32_t outputs, uint32_t inputs)
{
    kern_head_linear_args_t args = {
        .input = rows_in,
        .input_stride = (size_t)HEADS * inputs,
        .input_head_stride = inputs,
        .output = rows_out,
        .output_stride = (size_t)HEADS * outputs,
        .output_head_stride = outputs,
        .rows = rows,
        .heads = HEADS,
        .weight = weights,
        .type = KERN_TYPE_BF16,
        .outputs = outputs,
        .inputs = inputs,
        .head_stride_bytes = (size_t)outputs * inputs * 2,
    };
    double seconds = measure(kern_head_linear_host, &args);
    char name[64];
    snprintf(name, sizeof name, "head linear BF16 %s rows %u", what, rows);
    report(name, seconds, 2.0 * rows * HEADS * outputs * inputs,
           rows <= 16 ? 2.0 * HEADS * outputs * inputs : 0);
    return seconds;
}

/* What the absorbed form saves or costs: keys and values of every position made anew, then ordinary
 * attention with heads of 192 (values padded to that). */
static double
bench_expanded(uint32_t rows, uint32_t keys)
{
    size_t work_bytes = kern_linear_workspace_size_bytes(keys, LATENT);
    kern_linear_args_t expand = {
        .input = rows_in,
        .input_stride = KEY,
        .rows = keys,
        .weight_count = 1,
        .weights = {{.data = weights,
                     .type = KERN_TYPE_BF16,
                     .rows = HEADS * (NOPE + VALUE),
                     .cols = LATENT}},
        .outputs = {cache},
        .output_strides = {HEADS * (NOPE + VALUE)},
        .workspace = allocate(work_bytes),
        .workspace_size_bytes = work_bytes,
    };
    double seconds = measure(kern_linear_host, &expand);
    free(expand.workspace);
    int32_t cu_q[2] = {0, (int32_t)rows};
    int32_t lens[1] = {(int32_t)keys};
    kern_attention_extend_args_t attend = {
        .cache = {.k_cache = cache,
                  .v_cache = cache,
                  .cache_type = KERN_TYPE_F32,
                  .page_size = PAGE_SIZE,
                  .page_count = CONTEXT_MAX / PAGE_SIZE,
                  .page_table = table,
                  .page_table_stride = CONTEXT_MAX / PAGE_SIZE,
                  .q_heads = HEADS,
                  .kv_heads = HEADS,
                  .head_dim = HEAD,
                  .scale = 0.07f,
                  .window_left = -1},
        .q = rows_in,
        .q_stride = (size_t)HEADS * HEAD,
        .cu_q = cu_q,
        .seq_lens = lens,
        .request_count = 1,
        .row_count = rows,
        .output = rows_out,
        .output_stride = (size_t)HEADS * HEAD,
    };
    double attention = measure(kern_attention_extend_host, &attend);
    char name[64];
    snprintf(name, sizeof name, "expanded: make %u keys and values", keys);
    report(name, seconds, 2.0 * keys * HEADS * (NOPE + VALUE) * LATENT, 0);
    snprintf(name, sizeof name, "expanded: extend F32 %u rows keys %u", rows, keys);
    report(name, attention, 4.0 * rows * HEADS * HEAD * (keys - rows / 2.0), 0);
    return seconds + attention;
}

static void
bench_prefill(uint32_t rows, uint32_t keys)
{
    double absorbed = bench_extend(rows, keys);
    absorbed += bench_heads("absorb", rows, LATENT, NOPE);
    absorbed += bench_heads("values", rows, VALUE, LATENT);
    double expanded = bench_expanded(rows, keys);
    printf("%u rows, %u keys: absorbed %.1f ms, expanded %.1f ms, ratio %.2f\n", rows, keys,
           absorbed * 1e3, expanded * 1e3, absorbed / expanded);
}

static void
bench_write(uint32_t rows)
{
    static int32_t locations[ROWS_MAX];
    for (uint32_t i = 0; i < rows; i++) {
        locations[i] = (int32_t)(i + 1);
    }
    kern_mla_write_args_t args = {
        .q = rows_in,
        .q_stride = (size_t)HEADS * HEAD,
        .query = rows_out,
        .query_stride = (size_t)HEADS * KEY,
        .kv = rows_in,
        .kv_stride = KEY,
        .rows = rows,
        .heads = HEADS,
        .nope_dim = NOPE,
        .latent_dim = LATENT,
        .rope_dim = ROPE,
        .interleaved = true,
        .angles = rows_in,
        .norm = rows_in,
        .epsilon = 1e-6f,
        .write_locations = locations,
        .cache = cache,
        .cache_type = KERN_TYPE_F16,
        .slot_count = PAGES * PAGE_SIZE,
    };
    char name[64];
    snprintf(name, sizeof name, "mla write F16 %u rows", rows);
    report(name, measure(kern_mla_write_host, &args), 0, 0);
}

/* The router of a DeepSeek-V3: 256 experts, 8 of them out of 4 of 8 groups. */
static void
bench_route(uint32_t rows)
{
    int32_t *integers = allocate((size_t)(2 * rows * 8 + EXPERTS + 1) * sizeof *integers);
    kern_moe_route_args_t args = {
        .logits = rows_in,
        .logit_stride = EXPERTS,
        .rows = rows,
        .expert_count = EXPERTS,
        .top_k = 8,
        .scoring = KERN_MOE_SIGMOID,
        .select_bias = rows_in,
        .group_count = 8,
        .group_used_count = 4,
        .is_normalised = true,
        .weight_scale = 2.5f,
        .experts = integers,
        .weights = rows_out,
        .order = integers + (size_t)rows * 8,
        .offsets = integers + (size_t)2 * rows * 8,
    };
    char name[64];
    snprintf(name, sizeof name, "route sigmoid 256 experts, rows %u", rows);
    report(name, measure(kern_moe_route_host, &args), 0, 0);
    free(integers);
}

static void
measure_ceilings(uint32_t threads)
{
    double *sums = allocate(threads * sizeof *sums);
    bench_read_args_t read = {.from = cache,
                              .size_bytes = (size_t)PAGES * PAGE_SIZE * KEY * sizeof(float),
                              .sums = sums};
    read_ceiling = (double)read.size_bytes / measure(bench_read_host, &read) * 1e-9;
    bench_peak_args_t peak = {.rounds = 1000000, .sums = sums};
    float_ceiling = bench_peak_float_operations(kern_team_path(team)) * (double)peak.rounds *
                    threads / measure(bench_peak_float_host, &peak) * 1e-9;
    printf("ceilings: read %.1f GB/s, float %.0f Gflop/s\n", read_ceiling, float_ceiling);
    free(sums);
}

int
main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    kern_team_options_t options = {.thread_count = threads, .path = kern_path_best()};
    if (argc > 2 && !kern_path_find(argv[2], &options.path)) {
        fprintf(stderr, "bench_mla: no path %s\n", argv[2]);
        return EXIT_FAILURE;
    }
    if (kern_team_new(&options, &team) != STATUS_OK) {
        fprintf(stderr, "bench_mla: no team\n");
        return EXIT_FAILURE;
    }
    for (int32_t i = 0; i < PAGES; i++) {
        table[i] = i;
    }
    cache = random_floats((size_t)PAGES * PAGE_SIZE * KEY);
    rows_in = random_floats((size_t)CONTEXT_MAX * HEADS * KEY);
    rows_out = random_floats((size_t)ROWS_MAX * HEADS * KEY);
    weights = allocate((size_t)HEADS * (NOPE + VALUE) * LATENT * sizeof *weights);
    measure_ceilings(threads);
    bench_decode(KERN_TYPE_F16, 1, 1, CONTEXT_MAX);
    bench_decode(KERN_TYPE_F16, REQUESTS_MAX, 1, 512);
    bench_decode(KERN_TYPE_F16, REQUESTS_MAX, 4, 512);
    bench_decode(KERN_TYPE_F32, REQUESTS_MAX, 1, 512);
    (void)bench_heads("absorb", 1, LATENT, NOPE);
    (void)bench_heads("values", 1, VALUE, LATENT);
    bench_write(1);
    bench_write(ROWS_MAX);
    bench_route(1);
    bench_route(ROWS_MAX);
    bench_prefill(ROWS_MAX, ROWS_MAX);
    bench_prefill(ROWS_MAX, CONTEXT_MAX);
    bench_prefill(64, CONTEXT_MAX);
    kern_team_destroy(&team);
    free(cache);
    free(rows_in);
    free(rows_out);
    free(weights);
    return EXIT_SUCCESS;
}
