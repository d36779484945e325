/* Paged attention: against doubles, and one arithmetic for decode, verify and extend. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_attention.h"
#include "kern_expect.h"
#include "kern_reference.h"
#include "kern_team.h"

/* Sequences that share one cache, with shuffled pages. */
typedef struct {
    kern_attention_cache_t cache;
    uint32_t requests;
    uint32_t kv_len_max;
    int32_t *table;
    float *q; /* [requests][kv_len_max][q_heads * head_dim]: a query for every position */
    size_t q_stride;
} world_t;

typedef struct {
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_size;
    kern_type_t cache_type;
    float logit_cap;
    int32_t window_left;
    bool has_sinks;
} shape_t;

static const shape_t shapes[] = {
    {9, 3, 64, 64, KERN_TYPE_F32, 0.0f, -1, false},
    {4, 4, 16, 7, KERN_TYPE_F32, 0.0f, -1, false},
    {8, 2, 128, 32, KERN_TYPE_F16, 0.0f, -1, false},
    {6, 1, 80, 16, KERN_TYPE_F16, 30.0f, -1, false},
    {2, 2, 24, 5, KERN_TYPE_F32, 0.0f, 100, false},
    {4, 2, 64, 1, KERN_TYPE_F16, 0.0f, 0, false},
    {8, 2, 16, 16, KERN_TYPE_F32, 0.0f, -1, true},
    {6, 2, 32, 8, KERN_TYPE_F16, 0.0f, 127, true},
};

enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    REQUESTS = 3,
    KV_LEN_MAX = 700,
};

static world_t
world_new(const shape_t *shape, reference_random_t *random)
{
    uint32_t pages = (KV_LEN_MAX + shape->page_size - 1) / shape->page_size;
    uint32_t page_count = REQUESTS * pages + 1;
    size_t elements = (size_t)page_count * shape->page_size * shape->kv_heads * shape->head_dim;
    world_t world = {
        .requests = REQUESTS,
        .kv_len_max = pages * shape->page_size,
        .q_stride = (size_t)shape->q_heads * shape->head_dim,
    };
    void *caches[2];
    for (int i = 0; i < 2; i++) {
        bool half = shape->cache_type == KERN_TYPE_F16;
        caches[i] = malloc(elements * (half ? 2 : 4));
        expect(caches[i] != NULL);
        for (size_t j = 0; j < elements; j++) {
            float value = reference_normal(random);
            if (half) {
                ((uint16_t *)caches[i])[j] = kern_float_to_half(value);
            } else {
                ((float *)caches[i])[j] = value;
            }
        }
    }
    world.table = malloc(REQUESTS * pages * sizeof *world.table);
    expect(world.table != NULL);
    for (uint32_t i = 0; i < REQUESTS * pages; i++) {
        uint32_t other = reference_u32(random) % (i + 1);
        world.table[i] = world.table[other];
        world.table[other] = (int32_t)i + 1;
    }
    size_t q_count = (size_t)REQUESTS * world.kv_len_max * world.q_stride;
    world.q = malloc(q_count * sizeof *world.q);
    expect(world.q != NULL);
    for (size_t i = 0; i < q_count; i++) {
        world.q[i] = 2.0f * reference_normal(random);
    }
    float *sinks = NULL;
    if (shape->has_sinks) {
        /* Below, among and above the scores, and one that takes no part. */
        sinks = malloc(shape->q_heads * sizeof *sinks);
        expect(sinks != NULL);
        for (uint32_t i = 0; i < shape->q_heads; i++) {
            sinks[i] = 3.0f * reference_normal(random);
        }
        sinks[0] = 30.0f;
        sinks[1] = -INFINITY;
    }
    world.cache = (kern_attention_cache_t){
        .k_cache = caches[0],
        .v_cache = caches[1],
        .cache_type = shape->cache_type,
        .page_size = shape->page_size,
        .page_count = page_count,
        .page_table = world.table,
        .page_table_stride = pages,
        .q_heads = shape->q_heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .scale = 1.0f / sqrtf((float)shape->head_dim),
        .logit_cap = shape->logit_cap,
        .window_left = shape->window_left,
        .sinks = sinks,
    };
    return world;
}

static void
world_free(world_t *world)
{
    free((void *)(uintptr_t)world->cache.k_cache);
    free((void *)(uintptr_t)world->cache.v_cache);
    free((void *)(uintptr_t)world->cache.sinks);
    free(world->table);
    free(world->q);
}

static const float *
query(const world_t *world, uint32_t request, uint32_t position)
{
    return world->q + ((size_t)request * world->kv_len_max + position) * world->q_stride;
}

/* Rows position..position + width - 1 of each request by kern_attention_decode. */
static float *
decode(kern_team_t *team, const world_t *world, uint32_t bs, const int32_t *seq_lens,
       uint32_t width)
{
    size_t row_size_bytes = world->q_stride * sizeof(float);
    reference_guarded_t out = reference_guarded_new(bs * width * row_size_bytes);
    size_t workspace_size_bytes =
        kern_attention_decode_workspace_size_bytes(bs * width, world->cache.q_heads,
                                                   world->cache.head_dim,
                                                   (uint32_t)world->cache.page_table_stride *
                                                       world->cache.page_size);
    reference_guarded_t work = reference_guarded_new(workspace_size_bytes);
    float *q = calloc(bs * width, row_size_bytes);
    expect(q != NULL);
    for (uint32_t b = 0; b < bs; b++) {
        for (uint32_t t = 0; t < width; t++) {
            int32_t position = seq_lens[b] - (int32_t)width + (int32_t)t;
            if (position >= 0) {
                memcpy(q + (b * width + t) * world->q_stride, query(world, b, (uint32_t)position),
                       row_size_bytes);
            }
        }
    }
    kern_attention_decode_args_t args = {
        .cache = world->cache,
        .q = q,
        .q_stride = world->q_stride,
        .seq_lens = seq_lens,
        .bs = bs,
        .rows_per_request = width,
        .output = out.data,
        .output_stride = world->q_stride,
        .workspace = work.data,
        .workspace_size_bytes = workspace_size_bytes,
    };
    kern_team_run(team, kern_attention_decode_host, &args);
    reference_guarded_check(&out);
    reference_guarded_check(&work);
    float *result = malloc(bs * width * row_size_bytes);
    expect(result != NULL);
    memcpy(result, out.data, bs * width * row_size_bytes);
    reference_guarded_free(&out);
    reference_guarded_free(&work);
    free(q);
    return result;
}

/* The last lengths[b] positions before seq_lens[b] of each request by kern_attention_extend. */
static float *
extend(kern_team_t *team, const world_t *world, uint32_t count, const int32_t *seq_lens,
       const int32_t *lengths)
{
    size_t row_size_bytes = world->q_stride * sizeof(float);
    int32_t cu_q[REQUESTS + 1] = {0};
    for (uint32_t b = 0; b < count; b++) {
        cu_q[b + 1] = cu_q[b] + lengths[b];
    }
    size_t rows = (size_t)cu_q[count];
    reference_guarded_t out = reference_guarded_new(rows * row_size_bytes);
    float *q = malloc(rows * row_size_bytes + 1);
    expect(q != NULL);
    for (uint32_t b = 0; b < count; b++) {
        memcpy(q + (size_t)cu_q[b] * world->q_stride,
               query(world, b, (uint32_t)(seq_lens[b] - lengths[b])),
               (size_t)lengths[b] * row_size_bytes);
    }
    kern_attention_extend_args_t args = {
        .cache = world->cache,
        .q = q,
        .q_stride = world->q_stride,
        .cu_q = cu_q,
        .seq_lens = seq_lens,
        .request_count = count,
        .output = out.data,
        .output_stride = world->q_stride,
    };
    kern_team_run(team, kern_attention_extend_host, &args);
    reference_guarded_check(&out);
    float *result = malloc(rows * row_size_bytes + 1);
    expect(result != NULL);
    memcpy(result, out.data, rows * row_size_bytes);
    reference_guarded_free(&out);
    free(q);
    return result;
}

static void
compare_row(const world_t *world, uint32_t request, uint32_t position, const float *got)
{
    double wanted[KERN_HEAD_DIM_MAX];
    const int32_t *pages = world->table + request * world->cache.page_table_stride;
    uint32_t head_dim = world->cache.head_dim;
    for (uint32_t head = 0; head < world->cache.q_heads; head++) {
        reference_attention(&world->cache, pages, query(world, request, position) + head * head_dim,
                            head, position, wanted);
        for (uint32_t d = 0; d < head_dim; d++) {
            double value = (double)got[head * head_dim + d];
            expect_msg(fabs(value - wanted[d]) <= 5e-6, "position %u head %u: %.9g, not %.9g",
                       position, head, value, wanted[d]);
        }
    }
}

/* Decode and verify agree with doubles at lengths around pages, blocks and splits. */
START_TEST(decode_agrees_with_doubles)
{
    reference_random_t random = reference_seed("decode_agrees_with_doubles");
    world_t world = world_new(&shapes[_i], &random);
    static const int32_t lengths[][REQUESTS] = {
        {1, 2, 15}, {16, 17, 63}, {64, 65, 255}, {256, 257, 500}, {511, 512, 700}};
    for (int path = 0; path < KERN_PATH_COUNT; path++) {
        if (!kern_path_available((kern_path_t)path)) {
            continue;
        }
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            for (uint32_t width = 1; width <= 5; width += 2) {
                float *got = decode(reference_team((kern_path_t)path, 2), &world, REQUESTS,
                                    lengths[i], width);
                for (uint32_t row = 0; row < REQUESTS * width; row++) {
                    int32_t position =
                        lengths[i][row / width] - (int32_t)width + (int32_t)(row % width);
                    if (position >= 0) {
                        compare_row(&world, row / width, (uint32_t)position,
                                    got + row * world.q_stride);
                    }
                    for (uint32_t d = 0; position < 0 && d < world.q_stride; d++) {
                        expect(got[row * world.q_stride + d] == 0.0f);
                    }
                }
                free(got);
            }
        }
    }
    world_free(&world);
}
END_TEST

/* A position's bits are the same decoded alone, verified in a window, in any batch, and extended in
 * chunks of any size, on 1, 2 and 3 threads: so that a chunked prompt equals a whole one. */
START_TEST(every_route_to_a_position_gives_the_same_bits)
{
    reference_random_t random = reference_seed("every_route_to_a_position_gives_the_same_bits");
    world_t world = world_new(&shapes[_i], &random);
    size_t row_size_bytes = world.q_stride * sizeof(float);
    int32_t seq_lens[REQUESTS] = {KV_LEN_MAX, 300, 77};
    for (int path = 0; path < KERN_PATH_COUNT; path++) {
        if (!kern_path_available((kern_path_t)path)) {
            continue;
        }
        int32_t whole_lengths[REQUESTS] = {KV_LEN_MAX, 300, 77};
        float *whole =
            extend(reference_team((kern_path_t)path, 1), &world, REQUESTS, seq_lens, whole_lengths);
        size_t offsets[REQUESTS] = {0, KV_LEN_MAX, KV_LEN_MAX + 300};
        /* Plain C is slow, and its arithmetic is the same code. */
        int rounds = path == KERN_PATH_PORTABLE ? 4 : 12;
        for (int round = 0; round < rounds; round++) {
            uint32_t threads = 1 + (uint32_t)round % 3;
            kern_team_t *team = reference_team((kern_path_t)path, threads);
            int32_t ends[REQUESTS];
            int32_t lengths[REQUESTS];
            for (int b = 0; b < REQUESTS; b++) {
                ends[b] = 1 + (int32_t)(reference_u32(&random) % (uint32_t)seq_lens[b]);
                lengths[b] = 1 + (int32_t)(reference_u32(&random) % (uint32_t)ends[b]);
            }
            uint32_t count = 1 + reference_u32(&random) % REQUESTS;
            float *part = extend(team, &world, count, ends, lengths);
            size_t at = 0;
            for (uint32_t b = 0; b < count; b++) {
                size_t first = offsets[b] + (size_t)(ends[b] - lengths[b]);
                ck_assert_msg(memcmp(part + at * world.q_stride, whole + first * world.q_stride,
                                     (size_t)lengths[b] * row_size_bytes) == 0,
                              "extend %d..%d on %s", ends[b] - lengths[b], ends[b],
                              kern_path_name((kern_path_t)path));
                at += (size_t)lengths[b];
            }
            free(part);
            int32_t width = 1 + (int32_t)(reference_u32(&random) % 6);
            float *rows = decode(team, &world, count, ends, (uint32_t)width);
            for (uint32_t row = 0; row < count * (uint32_t)width; row++) {
                uint32_t b = row / (uint32_t)width;
                int32_t position = ends[b] - width + (int32_t)(row % (uint32_t)width);
                if (position >= 0) {
                    size_t place = offsets[b] + (size_t)position;
                    ck_assert_msg(memcmp(rows + row * world.q_stride,
                                         whole + place * world.q_stride, row_size_bytes) == 0,
                                  "decode %d of %d, width %d, on %s", position, ends[b], width,
                                  kern_path_name((kern_path_t)path));
                }
            }
            free(rows);
        }
        free(whole);
    }
    world_free(&world);
}
END_TEST

/* What lies after a request's end in its last page, NaN included, does not reach it; a page number
 * outside the cache reads page 0. */
START_TEST(rows_read_only_their_keys)
{
    reference_random_t random = reference_seed("rows_read_only_their_keys");
    world_t world = world_new(&shapes[0], &random);
    kern_team_t *team = reference_team(kern_path_best(), 2);
    int32_t seq_lens[REQUESTS] = {70, 300, 1};
    float *before = decode(team, &world, REQUESTS, seq_lens, 1);
    float *k = (float *)(uintptr_t)world.cache.k_cache;
    float *v = (float *)(uintptr_t)world.cache.v_cache;
    for (uint32_t b = 0; b < REQUESTS; b++) {
        for (uint32_t position = (uint32_t)seq_lens[b]; position < world.kv_len_max; position++) {
            size_t page =
                (size_t)world
                    .table[b * world.cache.page_table_stride + position / world.cache.page_size];
            size_t slot = page * world.cache.page_size + position % world.cache.page_size;
            size_t length = (size_t)world.cache.kv_heads * world.cache.head_dim;
            for (size_t i = slot * length; i < (slot + 1) * length; i++) {
                k[i] = NAN;
                v[i] = NAN;
            }
        }
    }
    float *after = decode(team, &world, REQUESTS, seq_lens, 1);
    expect(memcmp(before, after, REQUESTS * world.q_stride * sizeof *after) == 0);
    free(before);
    free(after);
    for (size_t i = 0; i < REQUESTS * world.cache.page_table_stride; i++) {
        world.table[i] = i % 2 == 0 ? -5 : INT32_MAX;
    }
    after = decode(team, &world, REQUESTS, seq_lens, 1);
    free(after);
    world_free(&world);
}
END_TEST

/* A NaN among the keys is seen in the result, so that it can be reported. */
START_TEST(nan_is_not_hidden)
{
    reference_random_t random = reference_seed("nan_is_not_hidden");
    world_t world = world_new(&shapes[0], &random);
    world.q[69 * world.q_stride] = NAN;
    int32_t seq_lens[1] = {70};
    float *got = decode(reference_team(kern_path_best(), 1), &world, 1, seq_lens, 1);
    expect(isnan(got[0]));
    free(got);
    world_free(&world);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.attention");
    TCase *tests = tcase_create("attention");
    tcase_set_timeout(tests, 200);
    tcase_add_loop_test(tests, decode_agrees_with_doubles, 0, SHAPES);
    tcase_add_loop_test(tests, every_route_to_a_position_gives_the_same_bits, 0, SHAPES);
    tcase_add_test(tests, rows_read_only_their_keys);
    tcase_add_test(tests, nan_is_not_hidden);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
