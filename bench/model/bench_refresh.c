/* bench_refresh [threads] [tokens] [json file] - the decode metadata of 256 requests in 3 cache
 * groups: what a step pays before its forward.  Tables of every group are expanded, write slots
 * computed, lengths and pages copied to each leaf.  Prints the median and the fastest of many
 * rounds, each from the call to the end of its last launch, and the host's share (the call alone).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_host.h"
#include "router_cache_group.h"

enum { BS = 256, GROUPS = 3, GRANULARITY = 64, ROUNDS = 2000, COLUMNS_MAX = 4096 };

static int32_t blocks[GROUPS][BS * COLUMNS_MAX];
static int32_t slots[BS];
static int32_t seq_lens[BS];
static double whole_us[ROUNDS];
static double call_us[ROUNDS];

static double
now_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void
stop_if(proto_status_t status, const char *what)
{
    if (status != STATUS_OK) {
        (void)fprintf(stderr, "bench_refresh: %s: %s\n", what, proto_status_text(status));
        exit(1);
    }
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A layer in each group; the blocks are many, their contents are not touched. */
static backend_t *
open_tree(device_t *device, device_stream_t *stream, uint32_t tokens, cache_plan_t **plan_p,
          cache_arena_t **arena_p)
{
    cache_group_t groups[GROUPS] = {
        {.id = "full", .kind = CACHE_KIND_FULL, .granularity = GRANULARITY, .packing = 1},
        {.id = "sliding",
         .kind = CACHE_KIND_SLIDING,
         .granularity = GRANULARITY,
         .window = 1024,
         .packing = 1},
        {.id = "full too", .kind = CACHE_KIND_FULL, .granularity = GRANULARITY, .packing = 1}};
    cache_field_t fields[2 * GROUPS];
    for (uint32_t i = 0; i < 2 * GROUPS; i++) {
        fields[i] = (cache_field_t){.layer = i / 2,
                                    .name = i % 2 == 0 ? CACHE_FIELD_K : CACHE_FIELD_V,
                                    .group = i / 2,
                                    .plane = i % 2,
                                    .rows = GRANULARITY,
                                    .heads = 1,
                                    .head_dim = 16,
                                    .dtype = CACHE_DTYPE_F16};
    }
    cache_plan_options_t options = {groups, GROUPS, fields, 2 * GROUPS, GRANULARITY};
    stop_if(cache_plan_new(&options, plan_p), "plan");
    stop_if(cache_plan_bind(*plan_p, BS * (tokens / GRANULARITY + 1)), "bind");
    stop_if(cache_arena_new(device, *plan_p, arena_p), "arena");
    router_cache_group_options_t router = {.backend = {.device = device,
                                                       .stream = stream,
                                                       .bs_max = BS,
                                                       .width = 1,
                                                       .step_tokens_max = 512,
                                                       .model_len_max = tokens,
                                                       .q_heads = 1,
                                                       .kv_heads = 1,
                                                       .head_dim = 16}};
    backend_t *tree = NULL;
    cache_pool_t pool;
    stop_if(router_cache_group_new(&router, &tree), "router");
    stop_if(cache_pool_init(&pool, *plan_p, *arena_p, 0, GROUPS), "pool");
    stop_if(backend_set_cache_pool(tree, &pool), "set pool");
    stop_if(backend_init_cuda_graph_state(tree), "graph state");
    return tree;
}

static void
fill_inputs(uint32_t tokens, uint32_t columns, backend_tables_t *tables)
{
    uint32_t block = 1;
    for (uint32_t b = 0; b < BS; b++) {
        slots[b] = (int32_t)b + 1;
        seq_lens[b] = (int32_t)(tokens / 4 + (b * 2654435761u >> 8) % (tokens / 4 * 3));
        for (uint32_t c = 0; c < columns; c++) {
            for (uint32_t g = 0; g < GROUPS; g++) {
                blocks[g][b * columns + c] = (int32_t)block;
            }
            block++;
        }
    }
    tables->group_count = GROUPS;
    for (uint32_t g = 0; g < GROUPS; g++) {
        tables->groups[g] = (backend_table_t){blocks[g], columns, columns};
    }
}

static void
measure(backend_t *tree, device_stream_t *stream, const backend_tables_t *tables)
{
    for (int i = -200; i < ROUNDS; i++) {
        backend_refresh_t refresh = {.bs = BS,
                                     .actual_bs = BS,
                                     .request_slots = slots,
                                     .seq_lens = seq_lens,
                                     .mode = BACKEND_MODE_DECODE,
                                     .tables = tables,
                                     .for_graph_replay = true};
        double begin = now_us();
        stop_if(backend_refresh_decode_metadata(tree, &refresh), "refresh");
        double called = now_us();
        stop_if(device_stream_synchronize(stream), "synchronize");
        if (i >= 0) {
            whole_us[i] = now_us() - begin;
            call_us[i] = called - begin;
        }
    }
    qsort(whole_us, ROUNDS, sizeof *whole_us, by_value);
    qsort(call_us, ROUNDS, sizeof *call_us, by_value);
}

static void
report(FILE *out, uint32_t threads, uint32_t tokens)
{
    (void)fprintf(out,
                  "{\"bench\": \"refresh\", \"requests\": %d, \"groups\": %d, \"threads\": %" PRIu32
                  ", \"tokens_max\": %" PRIu32
                  ", \"median_us\": %.1f, \"fastest_us\": %.1f, \"call_median_us\": %.1f, "
                  "\"call_fastest_us\": %.1f}\n",
                  BS, GROUPS, threads, tokens, whole_us[ROUNDS / 2], whole_us[0],
                  call_us[ROUNDS / 2], call_us[0]);
}

int
main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    uint32_t tokens = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 4096;
    uint32_t columns = tokens / GRANULARITY;
    if (threads == 0 || tokens < GRANULARITY || columns > COLUMNS_MAX) {
        (void)fprintf(stderr, "usage: bench_refresh [threads] [tokens] [json file]\n");
        return 1;
    }
    device_host_options_t options = {.thread_count = threads, .path = kern_path_best()};
    device_t *device = NULL;
    device_stream_t *stream = NULL;
    stop_if(device_host_new(&options, &device), "device");
    stop_if(device_stream_new(device, &stream), "stream");
    cache_plan_t *plan = NULL;
    cache_arena_t *arena = NULL;
    backend_t *tree = open_tree(device, stream, tokens, &plan, &arena);
    backend_tables_t tables = {.group_count = 0};
    fill_inputs(tokens, columns, &tables);
    measure(tree, stream, &tables);
    report(stdout, threads, tokens);
    FILE *file = argc > 3 ? fopen(argv[3], "ae") : NULL;
    if (file != NULL) {
        report(file, threads, tokens);
        (void)fclose(file);
    }
    backend_destroy(&tree);
    cache_arena_destroy(&arena);
    cache_plan_destroy(&plan);
    device_stream_destroy(&stream);
    device_destroy(&device);
    return 0;
}
