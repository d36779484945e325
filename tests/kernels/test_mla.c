/* Latent attention: the write, the products for each head and the attention against doubles; one
 * arithmetic for decode, verify and extend. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_expect.h"
#include "kern_mla.h"
#include "kern_reference.h"
#include "kern_team.h"

typedef struct {
    uint32_t heads;
    uint32_t latent_dim;
    uint32_t rope_dim;
    uint32_t page_size;
    kern_type_t cache_type;
    uint32_t kv_len; /* over a split; fewer keys where each costs much */
} shape_t;

static const shape_t shapes[] = {
    {8, 64, 32, 16, KERN_TYPE_F32, 600},   {1, 16, 2, 7, KERN_TYPE_F32, 600},
    {16, 512, 64, 64, KERN_TYPE_F16, 270}, {19, 80, 6, 5, KERN_TYPE_F16, 270},
    {3, 48, 0, 1, KERN_TYPE_F32, 600},     {40, 32, 16, 32, KERN_TYPE_F32, 270},
};

enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    REQUESTS = 3,
    KV_LEN_MAX = 600,
};

/* Sequences that share one cache, with shuffled pages. */
typedef struct {
    kern_mla_cache_t cache;
    uint32_t kv_len_max;
    uint32_t page_count;
    void *memory;
    int32_t *table;
    float *q; /* [requests][kv_len_max][heads * key_dim]: a query for every position */
    size_t q_stride;
    size_t out_stride;
} world_t;

static float *
normals(size_t count, float scale, reference_random_t *random)
{
    float *out = malloc((count + 1) * sizeof *out);
    expect(out != NULL);
    for (size_t i = 0; i < count; i++) {
        out[i] = scale * reference_normal(random);
    }
    return out;
}

static world_t
world_new(const shape_t *shape, reference_random_t *random)
{
    uint32_t pages = (shape->kv_len + shape->page_size - 1) / shape->page_size;
    uint32_t key_dim = shape->latent_dim + shape->rope_dim;
    world_t world = {
        .kv_len_max = pages * shape->page_size,
        .page_count = REQUESTS * pages + 1,
        .q_stride = (size_t)shape->heads * key_dim,
        .out_stride = (size_t)shape->heads * shape->latent_dim,
    };
    size_t count = (size_t)world.page_count * shape->page_size * key_dim;
    float *values = normals(count, 1.0f, random);
    world.memory = values;
    if (shape->cache_type == KERN_TYPE_F16) {
        uint16_t *halves = malloc(count * sizeof *halves);
        expect(halves != NULL);
        for (size_t i = 0; i < count; i++) {
            halves[i] = kern_float_to_half(values[i]);
        }
        free(values);
        world.memory = halves;
    }
    world.table = malloc(REQUESTS * pages * sizeof *world.table);
    expect(world.table != NULL);
    for (uint32_t i = 0; i < REQUESTS * pages; i++) {
        uint32_t other = reference_u32(random) % (i + 1);
        world.table[i] = world.table[other];
        world.table[other] = (int32_t)i + 1;
    }
    world.q = normals((size_t)REQUESTS * world.kv_len_max * world.q_stride, 2.0f, random);
    world.cache = (kern_mla_cache_t){
        .cache = world.memory,
        .cache_type = shape->cache_type,
        .page_size = shape->page_size,
        .page_count = world.page_count,
        .page_table = world.table,
        .page_table_stride = pages,
        .heads = shape->heads,
        .latent_dim = shape->latent_dim,
        .rope_dim = shape->rope_dim,
        .scale = 1.0f / sqrtf((float)key_dim),
    };
    return world;
}

static void
world_free(world_t *world)
{
    free(world->memory);
    free(world->table);
    free(world->q);
}

static const float *
query(const world_t *world, uint32_t request, uint32_t position)
{
    return world->q + ((size_t)request * world->kv_len_max + position) * world->q_stride;
}

/* The last `width` positions of each request. */
static float *
decode(kern_team_t *team, const world_t *world, uint32_t bs, const int32_t *seq_lens,
       uint32_t width)
{
    size_t rows = (size_t)bs * width;
    reference_guarded_t out = reference_guarded_new(rows * world->out_stride * sizeof(float));
    size_t workspace_size_bytes =
        kern_mla_decode_workspace_size_bytes((uint32_t)rows, world->cache.heads,
                                             world->cache.latent_dim, world->kv_len_max);
    reference_guarded_t work = reference_guarded_new(workspace_size_bytes);
    float *q = calloc(rows, world->q_stride * sizeof *q);
    expect(q != NULL);
    for (uint32_t row = 0; row < rows; row++) {
        int32_t position = seq_lens[row / width] - (int32_t)width + (int32_t)(row % width);
        if (position >= 0) {
            memcpy(q + row * world->q_stride, query(world, row / width, (uint32_t)position),
                   world->q_stride * sizeof *q);
        }
    }
    kern_mla_decode_args_t args = {
        .cache = world->cache,
        .q = q,
        .q_stride = world->q_stride,
        .seq_lens = seq_lens,
        .bs = bs,
        .rows_per_request = width,
        .output = out.data,
        .output_stride = world->out_stride,
        .workspace = work.data,
        .workspace_size_bytes = workspace_size_bytes,
    };
    kern_team_run(team, kern_mla_decode_host, &args);
    reference_guarded_check(&out);
    reference_guarded_check(&work);
    float *result = malloc(rows * world->out_stride * sizeof *result);
    expect(result != NULL);
    memcpy(result, out.data, rows * world->out_stride * sizeof *result);
    reference_guarded_free(&out);
    reference_guarded_free(&work);
    free(q);
    return result;
}

/* The last lengths[b] positions before seq_lens[b] of each request. */
static float *
extend(kern_team_t *team, const world_t *world, uint32_t count, const int32_t *seq_lens,
       const int32_t *lengths)
{
    int32_t cu_q[REQUESTS + 1] = {0};
    for (uint32_t b = 0; b < count; b++) {
        cu_q[b + 1] = cu_q[b] + lengths[b];
    }
    size_t rows = (size_t)cu_q[count];
    reference_guarded_t out = reference_guarded_new(rows * world->out_stride * sizeof(float));
    float *q = malloc(rows * world->q_stride * sizeof *q + 1);
    expect(q != NULL);
    for (uint32_t b = 0; b < count; b++) {
        memcpy(q + (size_t)cu_q[b] * world->q_stride,
               query(world, b, (uint32_t)(seq_lens[b] - lengths[b])),
               (size_t)lengths[b] * world->q_stride * sizeof *q);
    }
    kern_mla_extend_args_t args = {
        .cache = world->cache,
        .q = q,
        .q_stride = world->q_stride,
        .cu_q = cu_q,
        .seq_lens = seq_lens,
        .request_count = count,
        .output = out.data,
        .output_stride = world->out_stride,
    };
    kern_team_run(team, kern_mla_extend_host, &args);
    reference_guarded_check(&out);
    float *result = malloc(rows * world->out_stride * sizeof *result + 1);
    expect(result != NULL);
    memcpy(result, out.data, rows * world->out_stride * sizeof *result);
    reference_guarded_free(&out);
    free(q);
    return result;
}

/* ---- references ------------------------------------------------------------------------------ */

static double
cache_value(const world_t *world, uint32_t request, int64_t position, uint32_t dim)
{
    const kern_mla_cache_t *c = &world->cache;
    int32_t page = world->table[request * c->page_table_stride + (size_t)position / c->page_size];
    size_t slot = (size_t)page * c->page_size + (size_t)position % c->page_size;
    size_t at = slot * (c->latent_dim + c->rope_dim) + dim;
    return c->cache_type == KERN_TYPE_F32
               ? (double)((const float *)world->memory)[at]
               : (double)kern_half_to_float(((const uint16_t *)world->memory)[at]);
}

static void
compare_row(const world_t *world, uint32_t request, int64_t position, const float *got)
{
    const kern_mla_cache_t *c = &world->cache;
    uint32_t key_dim = c->latent_dim + c->rope_dim;
    double scores[KV_LEN_MAX + 64];
    double wanted[KERN_MLA_DIM_MAX];
    /* Of many heads some: the first and the last of each group among them. */
    for (uint32_t head = 0; head < c->heads; head += head % 16 == 0 && c->heads > 8 ? 15 : 1) {
        const float *q = query(world, request, (uint32_t)position) + (size_t)head * key_dim;
        double max = -INFINITY;
        for (int64_t p = 0; p <= position; p++) {
            double score = 0.0;
            for (uint32_t d = 0; d < key_dim; d++) {
                score += (double)q[d] * cache_value(world, request, p, d);
            }
            scores[p] = score * (double)c->scale;
            max = fmax(max, scores[p]);
        }
        double sum = 0.0;
        memset(wanted, 0, sizeof wanted);
        for (int64_t p = 0; p <= position; p++) {
            double weight = exp(scores[p] - max);
            sum += weight;
            for (uint32_t d = 0; d < c->latent_dim; d++) {
                wanted[d] += weight * cache_value(world, request, p, d);
            }
        }
        for (uint32_t d = 0; d < c->latent_dim; d++) {
            double value = (double)got[head * c->latent_dim + d];
            expect_msg(fabs(value - wanted[d] / sum) <= 1e-5,
                       "request %u position %lld head %u dim %u: %.9g, not %.9g", request,
                       (long long)position, head, d, value, wanted[d] / sum);
        }
    }
}

/* Decode and verify agree with doubles at lengths around pages, blocks and splits. */
START_TEST(decode_agrees_with_doubles)
{
    reference_random_t random = reference_seed("decode_agrees_with_doubles");
    world_t world = world_new(&shapes[_i], &random);
    static const int32_t lengths[][REQUESTS] = {
        {1, 2, 15}, {16, 17, 63}, {64, 65, 255}, {256, 257, 500}, {511, 512, 600}};
    for (int path = -1; reference_next_path(&path);) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            uint32_t width = 1 + 2 * (uint32_t)(i % 3);
            int32_t lens[REQUESTS];
            for (uint32_t b = 0; b < REQUESTS; b++) {
                int32_t most = (int32_t)shapes[_i].kv_len;
                lens[b] = lengths[i][b] < most ? lengths[i][b] : most;
            }
            float *got =
                decode(reference_team((kern_path_t)path, 2), &world, REQUESTS, lens, width);
            for (uint32_t row = 0; row < REQUESTS * width; row++) {
                int64_t position = lens[row / width] - (int64_t)width + row % width;
                const float *out = got + row * world.out_stride;
                if (position >= 0) {
                    compare_row(&world, row / width, position, out);
                }
                for (uint32_t d = 0; position < 0 && d < world.out_stride; d++) {
                    expect(out[d] == 0.0f);
                }
            }
            free(got);
        }
    }
    world_free(&world);
}
END_TEST

static void
check_decode(const world_t *world, const float *rows, const float *whole, const size_t *offsets,
             const int32_t *ends, uint32_t count, uint32_t width)
{
    for (uint32_t row = 0; row < count * width; row++) {
        uint32_t b = row / width;
        int32_t position = ends[b] - (int32_t)width + (int32_t)(row % width);
        if (position >= 0) {
            const float *wanted = whole + (offsets[b] + (size_t)position) * world->out_stride;
            expect_msg(memcmp(rows + row * world->out_stride, wanted,
                              world->out_stride * sizeof *rows) == 0,
                       "decode %d of %d, width %u", position, ends[b], width);
        }
    }
}

/* A position's bits are the same decoded alone, verified in a window, in any batch, and extended in
 * chunks of any size, on 1, 2 and 3 threads: so that a chunked prompt equals a whole one. */
START_TEST(every_route_to_a_position_gives_the_same_bits)
{
    reference_random_t random = reference_seed("every_route_to_a_position_gives_the_same_bits");
    world_t world = world_new(&shapes[_i], &random);
    int32_t most = (int32_t)shapes[_i].kv_len;
    const int32_t seq_lens[REQUESTS] = {most, most / 2, 77};
    const size_t offsets[REQUESTS] = {0, (size_t)most, (size_t)most + (size_t)most / 2};
    for (int path = -1; reference_next_path(&path);) {
        float *whole =
            extend(reference_team((kern_path_t)path, 1), &world, REQUESTS, seq_lens, seq_lens);
        for (int64_t p = 0; p < 77; p += 19) {
            compare_row(&world, 2, p, whole + (offsets[2] + (size_t)p) * world.out_stride);
        }
        /* Plain C is slow, and its arithmetic is the same code. */
        int rounds = path == KERN_PATH_PORTABLE ? 3 : 10;
        for (int round = 0; round < rounds; round++) {
            kern_team_t *team = reference_team((kern_path_t)path, 1 + (uint32_t)round % 3);
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
                expect_msg(memcmp(part + at * world.out_stride, whole + first * world.out_stride,
                                  (size_t)lengths[b] * world.out_stride * sizeof *part) == 0,
                           "extend %d..%d", ends[b] - lengths[b], ends[b]);
                at += (size_t)lengths[b];
            }
            free(part);
            uint32_t width = 1 + reference_u32(&random) % 6;
            float *rows = decode(team, &world, count, ends, width);
            check_decode(&world, rows, whole, offsets, ends, count, width);
            free(rows);
        }
        free(whole);
    }
    world_free(&world);
}
END_TEST

/* Four rows of a verify are four steps of one row each. */
START_TEST(a_window_of_four_is_four_single_steps)
{
    reference_random_t random = reference_seed("a_window_of_four_is_four_single_steps");
    world_t world = world_new(&shapes[_i], &random);
    kern_team_t *team = reference_team(kern_path_best(), 2);
    const int32_t ends[REQUESTS] = {260, 4, 66}; /* over a split, from 0 on, over a page */
    float *window = decode(team, &world, REQUESTS, ends, 4);
    for (int32_t t = 0; t < 4; t++) {
        int32_t lens[REQUESTS];
        for (uint32_t b = 0; b < REQUESTS; b++) {
            lens[b] = ends[b] - 3 + t;
        }
        float *single = decode(team, &world, REQUESTS, lens, 1);
        for (uint32_t b = 0; b < REQUESTS; b++) {
            expect(memcmp(window + (b * 4 + (uint32_t)t) * world.out_stride,
                          single + b * world.out_stride, world.out_stride * sizeof *single) == 0);
        }
        free(single);
    }
    free(window);
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
    const kern_mla_cache_t *c = &world.cache;
    size_t key_dim = c->latent_dim + c->rope_dim;
    int32_t seq_lens[REQUESTS] = {70, 300, 1};
    float *before = decode(team, &world, REQUESTS, seq_lens, 1);
    bool *is_live = calloc((size_t)world.page_count * c->page_size, sizeof *is_live);
    expect(is_live != NULL);
    for (uint32_t b = 0; b < REQUESTS; b++) {
        for (size_t p = 0; p < (size_t)seq_lens[b]; p++) {
            size_t page = (size_t)world.table[b * c->page_table_stride + p / c->page_size];
            is_live[page * c->page_size + p % c->page_size] = true;
        }
    }
    for (size_t slot = 0; slot < (size_t)world.page_count * c->page_size; slot++) {
        for (size_t d = 0; !is_live[slot] && d < key_dim; d++) {
            ((float *)world.memory)[slot * key_dim + d] = NAN;
        }
    }
    float *after = decode(team, &world, REQUESTS, seq_lens, 1);
    expect(memcmp(before, after, REQUESTS * world.out_stride * sizeof *after) == 0);
    free(after);
    float *extended = extend(team, &world, REQUESTS, seq_lens, (const int32_t[]){1, 1, 1});
    expect(memcmp(before, extended, REQUESTS * world.out_stride * sizeof *extended) == 0);
    free(extended);
    free(before);
    free(is_live);
    for (size_t i = 0; i < REQUESTS * c->page_table_stride; i++) {
        world.table[i] = i % 2 == 0 ? -5 : INT32_MAX;
    }
    free(decode(team, &world, REQUESTS, seq_lens, 1));
    world_free(&world);
}
END_TEST

/* A NaN among the queries is seen in the result, so that it can be reported. */
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

/* ---- write ----------------------------------------------------------------------------------- */

typedef struct {
    uint32_t rows;
    uint32_t heads;
    uint32_t nope_dim;
    uint32_t latent_dim;
    uint32_t rope_dim;
    bool interleaved;
    kern_type_t cache_type;
} write_shape_t;

static const write_shape_t write_shapes[] = {
    {1, 1, 1, 16, 2, true, KERN_TYPE_F32},     {7, 8, 16, 64, 32, true, KERN_TYPE_F32},
    {40, 3, 24, 48, 10, false, KERN_TYPE_F16}, {5, 16, 128, 512, 64, true, KERN_TYPE_F16},
    {9, 2, 8, 32, 0, false, KERN_TYPE_F32},
};
enum { WRITE_SHAPES = sizeof write_shapes / sizeof *write_shapes };

/* Pair i of a rotation. */
static void
rotated(const float *in, const float *angles, const write_shape_t *s, uint32_t i, double out[2],
        uint32_t places[2])
{
    places[0] = s->interleaved ? 2 * i : i;
    places[1] = s->interleaved ? 2 * i + 1 : i + s->rope_dim / 2;
    double a = (double)in[places[0]];
    double b = (double)in[places[1]];
    double cosine = (double)angles[2 * i];
    double sine = (double)angles[2 * i + 1];
    out[0] = a * cosine - b * sine;
    out[1] = b * cosine + a * sine;
}

static void
check_written(const write_shape_t *s, const kern_mla_write_args_t *args, uint32_t row,
              const void *cache)
{
    uint32_t key_dim = s->latent_dim + s->rope_dim;
    double tolerance = s->cache_type == KERN_TYPE_F32 ? 1e-5 : 5e-3;
    const float *kv = args->kv + row * args->kv_stride;
    size_t at = (size_t)args->write_locations[row] * key_dim;
    double stored[KERN_MLA_DIM_MAX];
    for (uint32_t d = 0; d < key_dim; d++) {
        stored[d] = s->cache_type == KERN_TYPE_F32
                        ? (double)((const float *)cache)[at + d]
                        : (double)kern_half_to_float(((const uint16_t *)cache)[at + d]);
    }
    double sum = 0.0;
    for (uint32_t d = 0; d < s->latent_dim; d++) {
        sum += (double)kv[d] * (double)kv[d];
    }
    double scale = 1.0 / sqrt(sum / s->latent_dim + (double)args->epsilon);
    for (uint32_t d = 0; d < s->latent_dim; d++) {
        double wanted = (double)kv[d] * scale * (double)args->norm[d];
        expect(fabs(stored[d] - wanted) <= tolerance * (1.0 + fabs(wanted)));
    }
    const float *angles = args->angles + (size_t)row * s->rope_dim;
    for (uint32_t i = 0; i < s->rope_dim / 2; i++) {
        double pair[2];
        uint32_t places[2];
        rotated(kv + s->latent_dim, angles, s, i, pair, places);
        for (int k = 0; k < 2; k++) {
            expect(fabs(stored[s->latent_dim + places[k]] - pair[k]) <= tolerance * 8.0);
        }
        for (uint32_t head = 0; head < s->heads; head++) {
            const float *q = args->q + row * args->q_stride +
                             (size_t)head * (s->nope_dim + s->rope_dim) + s->nope_dim;
            const float *out = args->query + row * args->query_stride + (size_t)head * key_dim;
            rotated(q, angles, s, i, pair, places);
            for (int k = 0; k < 2; k++) {
                expect(fabs((double)out[s->latent_dim + places[k]] - pair[k]) <= 1e-5);
            }
        }
    }
}

START_TEST(the_write_normalises_rotates_and_stores)
{
    reference_random_t random = reference_seed("the_write_normalises_rotates_and_stores");
    const write_shape_t *s = &write_shapes[_i];
    enum { SLOTS = 64 };
    uint32_t key_dim = s->latent_dim + s->rope_dim;
    uint32_t head_dim = s->nope_dim + s->rope_dim;
    size_t cache_size_bytes = (size_t)SLOTS * key_dim * (s->cache_type == KERN_TYPE_F32 ? 4 : 2);
    size_t query_count = (size_t)s->rows * s->heads * key_dim;
    float *q = normals((size_t)s->rows * s->heads * head_dim, 1.0f, &random);
    float *kv = normals((size_t)s->rows * key_dim, 2.0f, &random);
    float *norm = normals(s->latent_dim, 1.0f, &random);
    float *angles = normals((size_t)s->rows * s->rope_dim, 1.0f, &random);
    int32_t *locations = malloc((s->rows + 1) * sizeof *locations);
    expect(locations != NULL);
    for (uint32_t row = 0; row < s->rows; row++) {
        locations[row] = (int32_t)(1 + row); /* each its own; a few nowhere, or to slot 0 */
    }
    if (s->rows > 5) {
        locations[0] = -1;
        locations[3] = SLOTS;
        locations[s->rows - 1] = 0;
    }
    void *first = NULL;
    for (int path = -1; reference_next_path(&path);) {
        for (uint32_t threads = 1; threads <= 3; threads++) {
            reference_guarded_t cache = reference_guarded_new(cache_size_bytes);
            reference_guarded_t query = reference_guarded_new(query_count * sizeof(float));
            memset(cache.data, 0, cache_size_bytes);
            memset(query.data, 0, query_count * sizeof(float));
            kern_mla_write_args_t args = {
                .q = q,
                .q_stride = (size_t)s->heads * head_dim,
                .query = query.data,
                .query_stride = (size_t)s->heads * key_dim,
                .kv = kv,
                .kv_stride = key_dim,
                .rows = s->rows,
                .heads = s->heads,
                .nope_dim = s->nope_dim,
                .latent_dim = s->latent_dim,
                .rope_dim = s->rope_dim,
                .interleaved = s->interleaved,
                .angles = angles,
                .norm = norm,
                .epsilon = 1e-6f,
                .write_locations = locations,
                .cache = cache.data,
                .cache_type = s->cache_type,
                .slot_count = SLOTS,
            };
            kern_team_run(reference_team((kern_path_t)path, threads), kern_mla_write_host, &args);
            for (uint32_t row = 0; row < s->rows; row++) {
                if (locations[row] >= 0 && locations[row] < SLOTS) {
                    check_written(s, &args, row, cache.data);
                }
            }
            if (first == NULL) {
                first = malloc(cache_size_bytes);
                expect(first != NULL);
                memcpy(first, cache.data, cache_size_bytes);
            } else if (threads > 1) {
                expect(memcmp(first, cache.data, cache_size_bytes) == 0);
            } else {
                memcpy(first, cache.data, cache_size_bytes);
            }
            reference_guarded_check(&cache);
            reference_guarded_check(&query);
            reference_guarded_free(&cache);
            reference_guarded_free(&query);
        }
    }
    free(first);
    free(q);
    free(kv);
    free(norm);
    free(angles);
    free(locations);
}
END_TEST

/* ---- a matrix for each head ------------------------------------------------------------------ */

typedef struct {
    uint32_t rows;
    uint32_t heads;
    uint32_t outputs;
    uint32_t inputs;
    kern_type_t type;
} head_shape_t;

static const head_shape_t head_shapes[] = {
    {1, 1, 1, 1, KERN_TYPE_F32},     {3, 8, 64, 16, KERN_TYPE_F32},
    {40, 5, 24, 48, KERN_TYPE_BF16}, {2, 16, 512, 128, KERN_TYPE_BF16},
    {33, 2, 130, 31, KERN_TYPE_F16}, {70, 3, 17, 33, KERN_TYPE_F32},
};
enum { HEAD_SHAPES = sizeof head_shapes / sizeof *head_shapes };

static void
run_heads(kern_team_t *team, const head_shape_t *s, const kern_weight_t *weight, const float *input,
          uint32_t rows, float *output)
{
    kern_head_linear_args_t args = {
        .input = input,
        .input_stride = (size_t)s->heads * (s->inputs + 3),
        .input_head_stride = s->inputs + 3,
        .output = output,
        .output_stride = (size_t)s->heads * (s->outputs + 2),
        .output_head_stride = s->outputs + 2,
        .rows = rows,
        .heads = s->heads,
        .weight = weight->data,
        .type = s->type,
        .outputs = s->outputs,
        .inputs = s->inputs,
        .head_stride_bytes = s->outputs * kern_type_row_size_bytes(s->type, s->inputs),
    };
    kern_team_run(team, kern_head_linear_host, &args);
}

/* Against doubles; a row alone has the bits that it has beside others. */
START_TEST(heads_have_matrices_of_their_own)
{
    reference_random_t random = reference_seed("heads_have_matrices_of_their_own");
    const head_shape_t *s = &head_shapes[_i];
    kern_weight_t weight = reference_weight_new(s->type, s->heads * s->outputs, s->inputs, &random);
    size_t input_stride = (size_t)s->heads * (s->inputs + 3);
    size_t output_stride = (size_t)s->heads * (s->outputs + 2);
    float *input = normals(s->rows * input_stride, 1.0f, &random);
    double *values = malloc((s->inputs + 1) * sizeof *values);
    float *alone = malloc(output_stride * sizeof *alone);
    expect(values != NULL && alone != NULL);
    for (int path = -1; reference_next_path(&path);) {
        reference_guarded_t out = reference_guarded_new(s->rows * output_stride * sizeof(float));
        float *got = out.data;
        for (size_t i = 0; i < s->rows * output_stride; i++) {
            got[i] = 7.0f; /* what lies between the heads stays */
        }
        run_heads(reference_team((kern_path_t)path, 3), s, &weight, input, s->rows, got);
        reference_guarded_check(&out);
        for (uint32_t row = 0; row < s->rows; row++) {
            for (uint32_t head = 0; head < s->heads; head++) {
                const float *x = input + row * input_stride + (size_t)head * (s->inputs + 3);
                const float *y = got + row * output_stride + (size_t)head * (s->outputs + 2);
                for (uint32_t n = 0; n < s->outputs; n++) {
                    double wanted = 0.0;
                    double magnitude = 0.0;
                    reference_weight_row(&weight, head * s->outputs + n, values);
                    for (uint32_t k = 0; k < s->inputs; k++) {
                        wanted += values[k] * (double)x[k];
                        magnitude += fabs(values[k] * (double)x[k]);
                    }
                    expect(fabs((double)y[n] - wanted) <= 1e-6 * (1.0 + magnitude));
                }
                expect(y[s->outputs] == 7.0f && y[s->outputs + 1] == 7.0f);
            }
        }
        for (uint32_t row = 0; row < s->rows; row += 11) {
            memcpy(alone, got + row * output_stride, output_stride * sizeof *alone);
            run_heads(reference_team((kern_path_t)path, 1), s, &weight, input + row * input_stride,
                      1, alone);
            expect(memcmp(alone, got + row * output_stride, output_stride * sizeof *alone) == 0);
        }
        reference_guarded_free(&out);
    }
    free(alone);
    free(values);
    free(input);
    free((void *)(uintptr_t)weight.data);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.mla");
    TCase *tests = tcase_create("mla");
    tcase_set_timeout(tests, 200);
    tcase_add_loop_test(tests, decode_agrees_with_doubles, 0, SHAPES);
    tcase_add_loop_test(tests, every_route_to_a_position_gives_the_same_bits, 0, SHAPES);
    tcase_add_loop_test(tests, a_window_of_four_is_four_single_steps, 0, SHAPES);
    tcase_add_test(tests, rows_read_only_their_keys);
    tcase_add_test(tests, nan_is_not_hidden);
    tcase_add_loop_test(tests, the_write_normalises_rotates_and_stores, 0, WRITE_SHAPES);
    tcase_add_loop_test(tests, heads_have_matrices_of_their_own, 0, HEAD_SHAPES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
