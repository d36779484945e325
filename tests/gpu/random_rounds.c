/* Random rounds. */
#include "random_rounds.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run_inspect.h"

static uint64_t random_state;

static uint32_t
random_below(uint32_t end)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % end);
}

/* A new seed for each run, unless ONEPATH_SEED has one. */
static uint32_t
seed_of(const char *test)
{
    const char *text = getenv("ONEPATH_SEED");
    uint32_t seed = text == NULL ? (uint32_t)time(NULL) : (uint32_t)strtoul(text, NULL, 10);
    (void)printf("%s: ONEPATH_SEED=%u\n", test, seed);
    (void)fflush(stdout);
    return seed;
}

/* A prompt of its own, or one that begins with whole blocks of a neighbour's and borrows them. */
static void
start_request(random_rounds_t *run, uint32_t slot)
{
    random_request_t *request = &run->requests[slot];
    request->length = 1 + random_below(RANDOM_LEN_MAX - 60);
    request->at = 0;
    request->drawn = 0;
    driver_random_tokens(run->round * 100 + slot, RANDOM_VOCABULARY, request->tokens,
                         request->length);
    uint32_t other = 1 + random_below(RANDOM_SLOTS);
    const random_request_t *neighbour = &run->requests[other];
    uint32_t shared = neighbour->at / run->drivers[0]->info.group_granularities.data[0];
    for (int i = 0; i < 2; i++) {
        driver_t *driver = run->drivers[i];
        for (uint32_t column = 0; column < driver->columns; column++) {
            driver->blocks[slot][column] = 1 + (slot - 1) * driver->columns + column;
        }
    }
    if (other != slot && shared > 0 && random_below(2) == 0) {
        shared = 1 + random_below(shared);
        request->at = shared * run->drivers[0]->info.group_granularities.data[0];
        request->length = request->at + 1 + random_below(40);
        memcpy(request->tokens, neighbour->tokens, request->at * sizeof *request->tokens);
        for (int i = 0; i < 2; i++) {
            memcpy(run->drivers[i]->blocks[slot], run->drivers[i]->blocks[other],
                   shared * sizeof(uint32_t));
        }
        run->prefix_hits++;
    }
    proto_sampling_t sampling = {.prompt_length = request->length,
                                 .temperature = slot % 2 == 0 ? 0.9 : 0.0,
                                 .top_p = 1.0,
                                 .repetition_penalty = 1.0,
                                 .seed = run->round,
                                 .ignore_eos = true};
    for (int i = 0; i < 2; i++) {
        driver_setup(run->drivers[i], slot, request->tokens, request->length, &sampling);
    }
}

/* One round of some extends and some decodes in both executors; every bit of them compared. */
void
random_rounds_step(random_rounds_t *run)
{
    run->round++;
    ck_assert_uint_lt(run->round, 5000);
    static float logits[2][RANDOM_SLOTS * RANDOM_VOCABULARY];
    driver_extend_t extends[RANDOM_SLOTS];
    uint32_t decodes[RANDOM_SLOTS];
    uint32_t extend_count = 0;
    uint32_t decode_count = 0;
    uint32_t rows = 0;
    uint32_t token_rows = 0;
    for (uint32_t slot = 1; slot <= RANDOM_SLOTS; slot++) {
        random_request_t *request = &run->requests[slot];
        if (request->length == 0 || request->drawn > 20 || random_below(40) == 0) {
            if (random_below(3) != 0) {
                continue;
            }
            start_request(run, slot);
        }
        if (request->at < request->length && random_below(3) == 0) {
            uint32_t left = request->length - request->at;
            uint32_t chunk = 1 + random_below(random_below(2) == 0 ? 8 : left);
            chunk = chunk > left ? left : chunk;
            if (chunk + RANDOM_SLOTS > RANDOM_STEP_TOKENS - rows) {
                continue;
            }
            extends[extend_count++] = (driver_extend_t){.slot = slot,
                                                        .begin = request->at,
                                                        .length = chunk,
                                                        .sample = chunk == left,
                                                        .tokens = request->tokens + request->at};
            token_rows += chunk == left;
            request->at += chunk;
            rows += chunk;
        } else if (request->at == request->length && random_below(4) != 0) {
            decodes[decode_count++] = slot;
            request->drawn++;
        }
    }
    rows += decode_count;
    token_rows += decode_count;
    if (extend_count == 0) {
        for (uint32_t i = 0; i < decode_count; i++) {
            run->requests[decodes[i]].drawn--;
        }
        return; /* pure decode is gpu.runner's */
    }
    driver_result_t results[2];
    for (int i = 0; i < 2; i++) {
        driver_step(run->drivers[i], extends, extend_count, decodes, decode_count, &results[i]);
        driver_logits(run->drivers[i], logits[i], RANDOM_SLOTS * RANDOM_VOCABULARY, token_rows);
    }
    bool is_mixed = decode_count > 0;
    bool is_graph = rows <= run->top;
    proto_step_mode_t eager = is_mixed ? PROTO_STEP_MIXED : PROTO_STEP_EXTEND;
    proto_step_mode_t graph = is_mixed ? PROTO_STEP_MIXED_GRAPH : PROTO_STEP_EXTEND_GRAPH;
    ck_assert_int_eq(results[0].mode, is_graph ? graph : eager);
    ck_assert_int_eq(results[1].mode, eager);
    for (uint32_t row = 0; row < extend_count + decode_count; row++) {
        ck_assert_uint_eq(results[0].flags[row], 0); /* no NaN */
        ck_assert_int_eq(results[0].tokens[row], results[1].tokens[row]);
    }
    ck_assert_mem_eq(logits[0], logits[1], (size_t)token_rows * RANDOM_VOCABULARY * sizeof(float));
    run->graph_rounds += is_graph;
    run->eager_rounds += !is_graph;
    run->mixed_rounds += is_mixed;
}

static void
compare_blocks(random_rounds_t *run)
{
    const proto_executor_info_t *info = &run->drivers[0]->info;
    for (uint32_t group = 0; group < info->group_kinds.count; group++) {
        uint32_t blocks = (info->parent_count - 1) * info->group_packings.data[group];
        for (uint32_t block = 1; block <= blocks; block++) {
            uint64_t digests[2];
            for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(run_inspect_block_digest(run->drivers[i]->executor, group, block,
                                                          &digests[i]),
                                 STATUS_OK);
            }
            ck_assert_uint_eq(digests[0], digests[1]);
        }
    }
}

void
random_rounds_begin(random_rounds_t *run, driver_t drivers[2], uint32_t top, const char *name)
{
    memset(run, 0, sizeof *run);
    run->drivers[0] = &drivers[0];
    run->drivers[1] = &drivers[1];
    run->top = top;
    run->name = name;
    random_state = seed_of(name);
}

void
random_rounds_end(random_rounds_t *run)
{
    (void)printf("%s: %u replayed, %u above the buckets, %u of them mixed, %u prefix hits\n",
                 run->name, run->graph_rounds, run->eager_rounds, run->mixed_rounds,
                 run->prefix_hits);
    compare_blocks(run);
}
