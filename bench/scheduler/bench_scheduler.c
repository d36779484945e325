/* What the planning core costs by itself: NextPlan and Advance for each decoding request and step,
 * and a submit with its first chunk.
 *
 * The results that it is fed are made beforehand; page hashes of the answers come with them, so
 * pages are published and, when the pool is full, evicted.  Aligned: all requests need a block in
 * the same step.  Staggered: their positions are spread over a block.  mean* leaves out steps of
 * more than 0.5 ms, which other work on the machine interrupted.  A second table has a full, a
 * sliding and a state group, and rows of 1 and of 4 tokens, of which 1 to 4 are accepted.
 *   bench_scheduler [REQUESTS [STEPS]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_clock.h"
#include "proto_require.h"
#include "sched_core.h"

enum {
    PAGE = 64,
    REQUESTS_MAX = 1024,
    LENGTH_MAX = 16384,
    CACHED_BLOCKS = 100000,
    SUBMITS = 200,
    WINDOW = 512,
    GROUPS = 3,
    DISTURBED_NS = 500 * 1000, /* a step that took longer was interrupted by other work */
};

typedef struct {
    uint32_t request_count;
    uint32_t step_count;
    uint32_t block_count;
    uint32_t prompt_length;
    uint32_t page_tokens;
    uint32_t overlap;
    uint32_t group_count; /* 1, or a full, a sliding and a state group */
    uint32_t width;
    bool staggered;
    bool fills_cache; /* every block of the pool is used or cached before the measurement */
} shape_t;

typedef struct {
    sched_core_t *core;
    shape_t shape;
    uint64_t next_hash;
    uint32_t lengths[REQUESTS_MAX + 1]; /* by slot: tokens in the cache after the planned steps */
    uint32_t flight[2][REQUESTS_MAX];   /* slots of the decode rows of steps in flight */
    uint32_t flight_extends[2];
    uint8_t flight_samples[2][REQUESTS_MAX]; /* of the extend rows */
    uint32_t flight_rows[2];
    uint64_t flight_steps[2];
    uint32_t flight_count;
    uint8_t *hashes;
} bench_t;

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static void
make_hash(bench_t *bench, uint8_t *out)
{
    uint64_t x = ++bench->next_hash * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 4; i++) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        memcpy(out + 8 * i, &x, 8);
    }
}

static void
attach(bench_t *bench)
{
    static const uint32_t kinds[GROUPS] = {0, 1, 2};
    static const uint32_t windows[GROUPS] = {0, WINDOW, 0};
    static const uint32_t packings[GROUPS] = {1, 1, 1};
    uint32_t page = bench->shape.page_tokens;
    uint32_t groups = bench->shape.group_count;
    const uint32_t granularities[GROUPS] = {page, page, page};
    sched_core_options_t options = {.slot_count_max = REQUESTS_MAX, .overlap_depth_max = 1};
    require(sched_core_new(&options, &bench->core) == STATUS_OK);
    proto_executor_info_t info = {
        .model_name = proto_text("bench"),
        .vocab_size = 50000,
        .model_len_max = LENGTH_MAX,
        .slot_count = REQUESTS_MAX,
        .step_tokens_max = 8192,
        .decode_width = bench->shape.width,
        .overlap_depth_max = bench->shape.overlap,
        .prefix_granularity = page,
        .parent_count = bench->shape.block_count + 1,
        .group_kinds = {kinds, groups},
        .group_granularities = {granularities, groups},
        .group_windows = {windows, groups},
        .group_packings = {packings, groups},
    };
    proto_error_t error;
    require(sched_core_attach(bench->core, &info, &error) == STATUS_OK);
}

static void
submit(bench_t *bench, uint64_t id, uint32_t prompt, uint32_t generation)
{
    sched_submit_t request = {
        .request = id,
        .owner = 1,
        .prompt_length = prompt,
        .generation_max = generation,
        .page_hashes = {bench->hashes,
                        (size_t)(prompt / bench->shape.page_tokens) * PROTO_HASH_SIZE_BYTES},
    };
    sched_refusal_t refusal;
    require(sched_core_submit(bench->core, 1, &request, &refusal) == STATUS_OK);
}

static void
new_prompt(bench_t *bench, uint32_t prompt)
{
    for (uint32_t p = 0; p < prompt / bench->shape.page_tokens; p++) {
        make_hash(bench, bench->hashes + p * PROTO_HASH_SIZE_BYTES);
    }
}

/* Plans one step; false if nothing was planned.  Adds the time of the call. */
static bool
plan(bench_t *bench, uint64_t *spent_ns)
{
    proto_plan_t out;
    uint64_t begin = now();
    proto_status_t status = sched_core_next_plan(bench->core, 1, &out);
    *spent_ns += now() - begin;
    if (status != STATUS_OK) {
        return false;
    }
    sched_admission_t admission;
    while (sched_core_take_admission(bench->core, &admission)) {
    }
    uint32_t at = bench->flight_count++;
    bench->flight_extends[at] = out.extend_slots.count;
    bench->flight_rows[at] = out.decode_slots.count;
    bench->flight_steps[at] = out.step;
    memcpy(bench->flight[at], out.decode_slots.data, out.decode_slots.count * sizeof(uint32_t));
    for (uint32_t i = 0; i < out.extend_slots.count; i++) {
        bench->lengths[out.extend_slots.data[i]] =
            out.extend_begins.data[i] + out.extend_lengths.data[i];
    }
    memcpy(bench->flight_samples[at], out.extend_samples.data, out.extend_slots.count);
    return true;
}

/* The result of the oldest step. */
static void
advance(bench_t *bench, uint64_t *spent_ns)
{
    static uint8_t counts[REQUESTS_MAX];
    static uint8_t flags[REQUESTS_MAX];
    static uint32_t hash_rows[REQUESTS_MAX];
    static uint32_t hash_pages[REQUESTS_MAX];
    static uint8_t hash_bytes[REQUESTS_MAX * PROTO_HASH_SIZE_BYTES];
    uint32_t extends = bench->flight_extends[0];
    uint32_t rows = extends + bench->flight_rows[0];
    memset(counts, 1, rows);
    memcpy(counts, bench->flight_samples[0], extends);
    uint32_t hashes = 0;
    for (uint32_t r = 0; r < bench->flight_rows[0]; r++) {
        uint32_t slot = bench->flight[0][r];
        uint32_t page = bench->lengths[slot] / bench->shape.page_tokens;
        uint32_t mix = slot * 7 + (uint32_t)bench->flight_steps[0] * 5;
        counts[extends + r] = (uint8_t)(1 + mix % bench->shape.width);
        bench->lengths[slot] += counts[extends + r];
        if (bench->lengths[slot] / bench->shape.page_tokens > page) {
            hash_rows[hashes] = extends + r;
            hash_pages[hashes] = page;
            make_hash(bench, hash_bytes + hashes * PROTO_HASH_SIZE_BYTES);
            hashes++;
        }
    }
    proto_step_result_t result = {
        .step = bench->flight_steps[0],
        .mode = PROTO_STEP_DECODE_GRAPH,
        .duration_ns = 1000000,
        .token_counts = {counts, rows},
        .row_flags = {flags, rows},
        .hash_rows = {hash_rows, hashes},
        .hash_pages = {hash_pages, hashes},
        .hash_bytes = {hash_bytes, hashes * PROTO_HASH_SIZE_BYTES},
    };
    sched_event_t event = {.kind = SCHED_EVENT_RESULT, .result = &result};
    sched_rows_t out;
    uint64_t begin = now();
    proto_status_t status = sched_core_advance(bench->core, 1, &event, &out);
    *spent_ns += now() - begin;
    require(status == STATUS_OK);
    require(out.count == rows);
    bench->flight_count--;
    bench->flight_extends[0] = bench->flight_extends[1];
    bench->flight_rows[0] = bench->flight_rows[1];
    bench->flight_steps[0] = bench->flight_steps[1];
    memcpy(bench->flight[0], bench->flight[1], sizeof bench->flight[0]);
    memcpy(bench->flight_samples[0], bench->flight_samples[1], sizeof bench->flight_samples[0]);
    sched_finished_t finished;
    while (sched_core_take_finished(bench->core, &finished)) {
    }
}

static void
run_to_end(bench_t *bench)
{
    uint64_t ignored = 0;
    while (plan(bench, &ignored) || bench->flight_count > 0) {
        advance(bench, &ignored);
    }
}

/* Fills the pool with cached pages of requests that ended. */
static void
fill_cache(bench_t *bench, uint32_t block_count, uint32_t prompt)
{
    sched_figures_t figures;
    for (uint64_t id = 1u << 20;; id++) {
        sched_core_figures(bench->core, &figures);
        uint32_t pages = prompt / bench->shape.page_tokens;
        bool is_full = figures.cached_count + pages > block_count || figures.free_count < pages + 1;
        if (is_full || figures.evicted_blocks > 0) { /* groups share the parents */
            return;
        }
        new_prompt(bench, prompt);
        submit(bench, id, prompt, 1);
        run_to_end(bench);
    }
}

static void
make(bench_t *bench, shape_t shape)
{
    *bench = (bench_t){.shape = shape};
    bench->hashes = calloc(LENGTH_MAX, PROTO_HASH_SIZE_BYTES);
    require(bench->hashes != NULL);
    attach(bench);
}

static void
drop(bench_t *bench)
{
    sched_core_destroy(&bench->core);
    free(bench->hashes);
}

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void
bench_decode(shape_t shape)
{
    static bench_t bench;
    make(&bench, shape);
    if (shape.fills_cache) {
        fill_cache(&bench, shape.block_count, 4096);
    }
    for (uint32_t i = 0; i < shape.request_count; i++) {
        uint32_t shift = shape.staggered ? i % PAGE : 0;
        uint32_t prompt = shape.prompt_length - shift;
        new_prompt(&bench, prompt);
        submit(&bench, i + 1, prompt, shape.width * (shape.step_count + 1000));
    }
    uint64_t ignored = 0;
    sched_figures_t figures;
    do {
        require(plan(&bench, &ignored));
        advance(&bench, &ignored);
        sched_core_figures(bench.core, &figures);
    } while (figures.waiting_count > 0 || bench.flight_extends[0] > 0);
    for (uint32_t i = 0; i < 2 * PAGE; i++) { /* warm, and all of them decoding */
        while (plan(&bench, &ignored)) {
        }
        advance(&bench, &ignored);
    }
    uint64_t total = 0;
    uint64_t undisturbed = 0;
    uint32_t disturbed_count = 0;
    static uint64_t times[4096];
    for (uint32_t step = 0; step < shape.step_count; step++) {
        uint64_t spent = 0;
        while (plan(&bench, &spent)) {
        }
        advance(&bench, &spent);
        times[step] = spent;
        total += spent;
        disturbed_count += spent > DISTURBED_NS ? 1 : 0;
        undisturbed += spent > DISTURBED_NS ? 0 : spent;
    }
    qsort(times, shape.step_count, sizeof times[0], compare);
    sched_core_figures(bench.core, &figures);
    require(figures.retractions == 0);
    double rows = shape.request_count;
    printf("%8u %7u %6u %5u  %-9s %-6s %9.1f %9.1f %9.1f %9.1f %9llu %9u\n", shape.block_count,
           shape.prompt_length, shape.request_count, shape.width,
           shape.staggered ? "staggered" : "aligned", shape.fills_cache ? "full" : "empty",
           (double)total / shape.step_count / rows,
           (double)undisturbed / (shape.step_count - disturbed_count) / rows,
           (double)times[shape.step_count / 2] / rows,
           (double)times[shape.step_count * 99 / 100] / rows,
           (unsigned long long)figures.evicted_blocks, disturbed_count);
    fflush(stdout);
    drop(&bench);
}

/* A new prompt of 4096 tokens: submit, and the plan with its first chunk. */
static void
bench_submit(uint32_t page_tokens, uint32_t block_count, bool known)
{
    static bench_t bench;
    make(&bench, (shape_t){.block_count = block_count,
                           .page_tokens = page_tokens,
                           .group_count = 1,
                           .width = 1});
    fill_cache(&bench, CACHED_BLOCKS, 4096);
    new_prompt(&bench, 4096);
    submit(&bench, 1, 4096, 1);
    run_to_end(&bench);
    static uint64_t times[SUBMITS];
    for (uint32_t i = 0; i < SUBMITS; i++) {
        if (!known) {
            new_prompt(&bench, 4096);
        }
        uint64_t begin = now();
        submit(&bench, i + 2, 4096, 1);
        times[i] = now() - begin;
        require(plan(&bench, &times[i]));
        uint64_t ignored = 0;
        advance(&bench, &ignored);
        run_to_end(&bench);
    }
    sched_figures_t figures;
    sched_core_figures(bench.core, &figures);
    qsort(times, SUBMITS, sizeof times[0], compare);
    printf("%6u %8u %-8s %8u %8.1f %8.1f\n", page_tokens, block_count, known ? "cached" : "new",
           figures.cached_count, (double)times[SUBMITS / 2] / 1e3,
           (double)times[SUBMITS * 99 / 100] / 1e3);
    fflush(stdout);
    drop(&bench);
}

static void
print_heading(const char *groups)
{
    printf("NextPlan + Advance, %s, pages of %d tokens; ns a decoding request and step\n", groups,
           PAGE);
    printf("  blocks  prompt   rows width  positions cache       mean     mean*    median       "
           "p99   evicted disturbed\n");
}

/* A full, a sliding and a state group; the pool is full of cached pages. */
static void
bench_groups(uint32_t steps)
{
    const uint32_t requests[] = {64, 256, 1024};
    print_heading("full, sliding and state group");
    for (int r = 0; r < 3; r++) {
        for (uint32_t width = 1; width <= 4; width += 3) {
            for (int s = 0; s < 2; s++) {
                bench_decode((shape_t){
                    .request_count = requests[r],
                    .step_count = steps,
                    .block_count = requests[r] * 256,
                    .prompt_length = 2048,
                    .page_tokens = PAGE,
                    .overlap = 1,
                    .group_count = GROUPS,
                    .width = width,
                    .staggered = s == 1,
                    .fills_cache = true,
                });
            }
        }
    }
}

int
main(int argument_count, char **arguments)
{
    uint32_t requests = argument_count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : 256;
    uint32_t steps = argument_count > 2 ? (uint32_t)strtoul(arguments[2], NULL, 10) : 1024;
    if (requests == 0 || requests > REQUESTS_MAX || steps == 0 || steps > 4096) {
        fprintf(stderr, "bench_scheduler: 1..%d requests, 1..4096 steps\n", REQUESTS_MAX);
        return 64;
    }
    print_heading("one full group");
    const uint32_t pools[] = {8192, 65536, 262144};
    const uint32_t prompts[] = {512, 8192};
    for (int p = 0; p < 3; p++) {
        for (int l = 0; l < 2; l++) {
            for (int s = 0; s < 2; s++) {
                shape_t shape = {
                    .request_count = requests,
                    .step_count = steps,
                    .block_count = pools[p],
                    .prompt_length = prompts[l],
                    .page_tokens = PAGE,
                    .overlap = 1,
                    .group_count = 1,
                    .width = 1,
                    .staggered = s == 1,
                };
                uint64_t blocks = (uint64_t)requests * ((prompts[l] + steps + 256) / PAGE + 1);
                if (blocks <= pools[p]) {
                    bench_decode(shape);
                    shape.fills_cache = true;
                    bench_decode(shape);
                }
            }
        }
    }
    printf("\n");
    bench_groups(steps);
    printf("\nsubmit + first chunk of 4096 tokens, %d cached blocks; us\n", CACHED_BLOCKS);
    printf("  page   blocks prompt     cached   median      p99\n");
    bench_submit(64, CACHED_BLOCKS + 2000, false);
    bench_submit(64, CACHED_BLOCKS + 2000, true);
    bench_submit(64, 262144, false);
    bench_submit(16, CACHED_BLOCKS + 2000, false);
    bench_submit(16, CACHED_BLOCKS + 2000, true);
    return 0;
}
