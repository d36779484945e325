/* The kernels of the CUDA device against the host's, which are checked against references of their
 * own: random shapes, the same bits twice, and the same bits alone and in every batch.  Runs on a
 * GPU host; elsewhere every test says that it was left out. Long because every operation is
 * compared in one place. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda.h"
#include "device_host.h"
#include "device_ops.h"

static device_t *host;
static device_t *cuda;
static device_stream_t *host_stream;
static device_stream_t *cuda_stream;
static uint64_t seed;

static void
open_devices(void)
{
    char error[DEVICE_CUDA_ERROR_SIZE_BYTES];
    device_cuda_options_t options = {.debug = true, .error = error};
    device_host_options_t threads = {.thread_count = 4, .path = kern_path_best()};
    ck_assert_msg(device_cuda_new(&options, &cuda) == STATUS_OK, "%s", error);
    ck_assert_int_eq(device_host_new(&threads, &host), STATUS_OK);
    ck_assert_int_eq(device_stream_new(cuda, &cuda_stream), STATUS_OK);
    ck_assert_int_eq(device_stream_new(host, &host_stream), STATUS_OK);
}

static void
close_devices(void)
{
    device_stream_destroy(&host_stream);
    device_stream_destroy(&cuda_stream);
    device_destroy(&host);
    device_destroy(&cuda);
}

static uint32_t
random_u32(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33);
}

static uint32_t
random_below(uint32_t count)
{
    return random_u32() % count;
}

/* About normal, with variance 1. */
static float
random_float(void)
{
    float sum = -2.0f;
    for (int i = 0; i < 4; i++) {
        sum += (float)random_u32() * 0x1p-31f;
    }
    return sum * 1.7320508f;
}

/* Memory that both devices reach; given back at the end of the process. */
static void *
pinned(size_t size_bytes)
{
    void *memory = NULL;
    ck_assert_int_eq(device_alloc(cuda, DEVICE_MEMORY_PINNED, size_bytes + 64, &memory), STATUS_OK);
    return memory;
}

static void *
on_device(size_t size_bytes)
{
    void *memory = NULL;
    ck_assert_int_eq(device_alloc(cuda, DEVICE_MEMORY_DEVICE, size_bytes + 64, &memory), STATUS_OK);
    kern_fill_args_t poison = {.to = memory, .size_bytes = size_bytes, .value = 0x7f};
    device_ops(cuda)->fill(cuda_stream, &poison);
    return memory;
}

static float *
random_floats(size_t count, float scale)
{
    float *values = pinned(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = random_float() * scale;
    }
    return values;
}

static void
finish(void)
{
    ck_assert_int_eq(device_stream_synchronize(host_stream), STATUS_OK);
    ck_assert_msg(device_stream_synchronize(cuda_stream) == STATUS_OK, "%s", cuda->fault);
}

static double
distance(const float *got, const float *wanted, size_t count)
{
    double difference = 0.0;
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        ck_assert_msg(isfinite(got[i]), "value %zu is %g", i, (double)got[i]);
        difference += ((double)got[i] - (double)wanted[i]) * ((double)got[i] - (double)wanted[i]);
        sum += (double)wanted[i] * (double)wanted[i];
    }
    return sqrt(difference / (sum + 1e-30));
}

#define expect_close(got, wanted, count, bound)                                                    \
    do {                                                                                           \
        double far = distance(got, wanted, count);                                                 \
        ck_assert_msg(far <= (bound), "%s: %.2e", #got, far);                                      \
    } while (0)

/* Rows as an operand on the GPU: a norm without weight makes one of rows whose norm it keeps. */
static void *
operand_of(float *rows, uint32_t count, uint32_t cols)
{
    void *operand = on_device(device_form_size_bytes(cuda, KERN_FORM_OPERAND, count, cols));
    for (uint32_t r = 0; r < count; r++) {
        double squares = 0.0;
        for (uint32_t i = 0; i < cols; i++) {
            squares += (double)rows[(size_t)r * cols + i] * (double)rows[(size_t)r * cols + i];
        }
        float scale = (float)(1.0 / sqrt(squares / cols));
        for (uint32_t i = 0; i < cols; i++) {
            rows[(size_t)r * cols + i] *= scale;
        }
    }
    kern_rms_norm_args_t args = {.input = rows,
                                 .input_stride = cols,
                                 .output = operand,
                                 .rows = count,
                                 .cols = cols,
                                 .epsilon = 0.0f,
                                 .output_form = KERN_FORM_OPERAND};
    device_ops(cuda)->rms_norm(cuda_stream, &args);
    return operand;
}

static kern_weight_t
random_weight(uint32_t rows, uint32_t cols, kern_weight_t *packed)
{
    kern_weight_t weight = {
        .data = random_floats((size_t)rows * cols, 1.0f / sqrtf((float)cols)),
        .type = KERN_TYPE_F32,
        .rows = rows,
        .cols = cols,
    };
    void *memory = NULL;
    ck_assert_int_eq(device_alloc(cuda, DEVICE_MEMORY_WEIGHTS,
                                  device_weight_size_bytes(cuda, &weight), &memory),
                     STATUS_OK);
    *packed = device_weight_load(cuda, &weight, memory);
    return weight;
}

static const uint32_t batches[] = {1, 2, 3, 7, 8, 9, 17, 33, 64, 100, 129, 300};
enum { BATCH_COUNT = sizeof batches / sizeof *batches, BATCH_MAX = 300 };

static const struct {
    uint32_t rows[3];
    uint32_t cols;
} products[] = {{{576, 192, 192}, 576}, {{48, 16, 16}, 80},   {{4096, 0, 0}, 12288},
                {{1000, 0, 0}, 64},     {{6144, 0, 0}, 4096}, {{576, 0, 0}, 1536},
                {{64, 32, 32}, 64},     {{30000, 0, 0}, 576}};

START_TEST(products_match)
{
    const uint32_t *rows = products[_i].rows;
    uint32_t cols = products[_i].cols;
    uint32_t count = rows[1] == 0 ? 1 : 3;
    float *input = random_floats((size_t)BATCH_MAX * cols, 1.0f);
    (void)operand_of(input, BATCH_MAX, cols);
    finish();
    kern_linear_args_t on_host = {.input = input, .input_stride = cols, .weight_count = count};
    kern_linear_args_t on_cuda = {.weight_count = count};
    float *alone[3];
    for (uint32_t i = 0; i < count; i++) {
        kern_weight_t packed;
        on_host.weights[i] = random_weight(rows[i], cols, &packed);
        on_cuda.weights[i] = packed;
        on_host.biases[i] = on_cuda.biases[i] = i == 0 ? random_floats(rows[0], 1.0f) : NULL;
        on_host.outputs[i] = pinned((size_t)BATCH_MAX * rows[i] * sizeof(float));
        on_cuda.outputs[i] = pinned((size_t)BATCH_MAX * rows[i] * sizeof(float));
        on_host.output_strides[i] = on_cuda.output_strides[i] = rows[i];
        alone[i] = pinned(rows[i] * sizeof(float));
    }
    on_host.workspace_size_bytes = kern_linear_workspace_size_bytes(BATCH_MAX, cols);
    on_host.workspace = pinned(on_host.workspace_size_bytes);
    on_host.rows = rows[0] * (size_t)cols > 4000000 ? 9 : BATCH_MAX;
    device_ops(host)->linear(host_stream, &on_host);
    for (uint32_t b = 0; b < BATCH_COUNT; b++) {
        on_cuda.rows = batches[b];
        on_cuda.input = operand_of(input, batches[b], cols);
        device_ops(cuda)->linear(cuda_stream, &on_cuda);
        finish();
        uint32_t checked = batches[b] < on_host.rows ? batches[b] : on_host.rows;
        for (uint32_t i = 0; i < count; i++) {
            expect_close(on_cuda.outputs[i], on_host.outputs[i], (size_t)checked * rows[i], 6e-3);
            if (b == 0) {
                memcpy(alone[i], on_cuda.outputs[i], rows[i] * sizeof(float));
            }
            ck_assert_mem_eq(alone[i], on_cuda.outputs[i], rows[i] * sizeof(float));
            memset(on_cuda.outputs[i], 0x7f, (size_t)BATCH_MAX * rows[i] * sizeof(float));
        }
    }
}
END_TEST

static const struct {
    uint32_t ffn;
    uint32_t cols;
    uint32_t hidden;
    kern_gate_t bend;
} gates[] = {{1536, 576, 576, KERN_GATE_SILU},
             {96, 64, 48, KERN_GATE_GELU_TANH},
             {2048, 640, 640, KERN_GATE_GELU_TANH},
             {200, 128, 64, KERN_GATE_SILU}};

/* The output is an operand: the product that reads it shows what it holds. */
START_TEST(gated_products_match)
{
    uint32_t ffn = gates[_i].ffn;
    uint32_t cols = gates[_i].cols;
    uint32_t hidden = gates[_i].hidden;
    float *input = random_floats((size_t)BATCH_MAX * cols, 1.0f);
    (void)operand_of(input, BATCH_MAX, cols);
    finish();
    kern_gate_up_args_t up = {.input = input,
                              .input_stride = cols,
                              .rows = BATCH_MAX,
                              .output_stride = ffn,
                              .bend = gates[_i].bend};
    kern_gate_up_args_t cuda_up = {.bend = gates[_i].bend};
    up.gate = random_weight(ffn, cols, &cuda_up.gate);
    up.up = random_weight(ffn, cols, &cuda_up.up);
    up.output = pinned((size_t)BATCH_MAX * ffn * sizeof(float));
    up.workspace_size_bytes = kern_linear_workspace_size_bytes(BATCH_MAX, cols + ffn);
    up.workspace = pinned(up.workspace_size_bytes);
    kern_linear_args_t down = {.input = up.output,
                               .input_stride = ffn,
                               .rows = BATCH_MAX,
                               .weight_count = 1,
                               .output_strides = {hidden},
                               .workspace = up.workspace,
                               .workspace_size_bytes = up.workspace_size_bytes};
    kern_linear_args_t cuda_down = {.weight_count = 1, .output_strides = {hidden}};
    down.weights[0] = random_weight(hidden, ffn, &cuda_down.weights[0]);
    down.outputs[0] = pinned((size_t)BATCH_MAX * hidden * sizeof(float));
    cuda_down.outputs[0] = pinned((size_t)BATCH_MAX * hidden * sizeof(float));
    device_ops(host)->gate_up(host_stream, &up);
    device_ops(host)->linear(host_stream, &down);
    for (uint32_t b = 0; b < BATCH_COUNT; b++) {
        cuda_up.rows = cuda_down.rows = batches[b];
        cuda_up.input = operand_of(input, batches[b], cols);
        cuda_up.output =
            on_device(device_form_size_bytes(cuda, KERN_FORM_OPERAND, batches[b], ffn));
        cuda_down.input = cuda_up.output;
        device_ops(cuda)->gate_up(cuda_stream, &cuda_up);
        device_ops(cuda)->linear(cuda_stream, &cuda_down);
        finish();
        expect_close(cuda_down.outputs[0], down.outputs[0], (size_t)batches[b] * hidden, 1e-2);
    }
}
END_TEST

START_TEST(norms_match)
{
    static const uint32_t widths[] = {64, 576, 640, 4096, 16384};
    uint32_t cols = widths[_i];
    enum { ROWS = 5 };
    float *x = random_floats((size_t)ROWS * cols, 1.0f);
    float *x2 = pinned((size_t)ROWS * cols * sizeof(float));
    memcpy(x2, x, (size_t)ROWS * cols * sizeof(float));
    kern_rms_norm_args_t args = {.input = x,
                                 .input_stride = cols,
                                 .residual = random_floats((size_t)ROWS * cols, 1.0f),
                                 .residual_stride = cols,
                                 .weight = random_floats(cols, 1.0f),
                                 .output = pinned((size_t)ROWS * cols * sizeof(float)),
                                 .output_stride = cols,
                                 .rows = ROWS,
                                 .cols = cols,
                                 .epsilon = 1e-5f};
    kern_rms_norm_args_t args2 = args;
    args2.input = x2;
    args2.output = pinned((size_t)ROWS * cols * sizeof(float));
    device_ops(host)->rms_norm(host_stream, &args);
    device_ops(cuda)->rms_norm(cuda_stream, &args2);
    finish();
    ck_assert_mem_eq(x, x2, (size_t)ROWS * cols * sizeof(float));
    expect_close(args2.output, args.output, (size_t)ROWS * cols, 1e-6);
}
END_TEST

/* ---- rotation, cache, attention ----------------------------------------------------------------
 */

typedef struct {
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t rope_dim;
    bool interleaved;
    bool norms;
    bool sinks;
    int32_t window;
    uint32_t page_size;
} shape_t;

static const shape_t shapes[] = {
    {9, 3, 64, 64, true, false, false, -1, 64},    {32, 8, 128, 128, false, true, false, -1, 64},
    {4, 1, 256, 256, false, true, false, 511, 64}, {4, 2, 16, 16, false, false, true, 20, 16},
    {8, 8, 32, 24, false, false, false, -1, 4},    {16, 1, 96, 64, true, false, true, 100, 32},
    {2, 2, 48, 0, false, false, false, -1, 16},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof *shapes, REQUESTS = 5, WIDTH_MAX = 3 };

static const uint32_t lengths[REQUESTS] = {1, 37, 256, 700, 1500};

/* A cache whose keys and values were written by both devices; what lies behind is poisoned. */
typedef struct {
    const shape_t *shape;
    kern_attention_cache_t cache;
    int32_t *locations[REQUESTS];
    int32_t *seq_lens;
} world_t;

static void
fill_cache(world_t *world, float *q, float *k, float *v, uint32_t request)
{
    const shape_t *s = world->shape;
    uint32_t rows = lengths[request];
    float frequencies[128];
    for (uint32_t i = 0; i < s->rope_dim / 2; i++) {
        frequencies[i] = powf(10000.0f, -2.0f * (float)i / (float)s->rope_dim);
    }
    int32_t *positions = pinned(rows * sizeof *positions);
    for (uint32_t i = 0; i < rows; i++) {
        positions[i] = (int32_t)i;
    }
    float *table = pinned(sizeof frequencies);
    memcpy(table, frequencies, sizeof frequencies);
    float *angles[2];
    float *queries[2];
    void *caches[2][2];
    size_t slots = (size_t)world->cache.page_count * s->page_size;
    size_t cache_bytes = slots * s->kv_heads * s->head_dim * 2;
    const float *q_norm = s->norms ? random_floats(s->head_dim, 1.0f) : NULL;
    const float *k_norm = s->norms ? random_floats(s->head_dim, 1.0f) : NULL;
    for (int i = 0; i < 2; i++) {
        device_t *device = i == 0 ? host : cuda;
        device_stream_t *stream = i == 0 ? host_stream : cuda_stream;
        angles[i] = pinned((size_t)rows * s->rope_dim * sizeof(float));
        queries[i] = pinned((size_t)rows * s->q_heads * s->head_dim * sizeof(float));
        memcpy(queries[i], q, (size_t)rows * s->q_heads * s->head_dim * sizeof(float));
        caches[i][0] = i == 0 ? (void *)(uintptr_t)world->cache.k_cache : pinned(cache_bytes);
        caches[i][1] = i == 0 ? (void *)(uintptr_t)world->cache.v_cache : pinned(cache_bytes);
        if (i == 1) {
            memcpy(caches[1][0], caches[0][0], cache_bytes);
            memcpy(caches[1][1], caches[0][1], cache_bytes);
        }
        kern_rope_angles_args_t turn = {.positions = positions,
                                        .rows = rows,
                                        .frequencies = table,
                                        .rope_dim = s->rope_dim,
                                        .scale = 1.0f,
                                        .angles = angles[i]};
        device_ops(device)->rope_angles(stream, &turn);
        kern_rope_kv_write_args_t write = {.q = queries[i],
                                           .q_stride = (size_t)s->q_heads * s->head_dim,
                                           .k = k,
                                           .k_stride = (size_t)s->kv_heads * s->head_dim,
                                           .v = v,
                                           .v_stride = (size_t)s->kv_heads * s->head_dim,
                                           .rows = rows,
                                           .q_heads = s->q_heads,
                                           .kv_heads = s->kv_heads,
                                           .head_dim = s->head_dim,
                                           .rope_dim = s->rope_dim,
                                           .interleaved = s->interleaved,
                                           .angles = angles[i],
                                           .q_norm = q_norm,
                                           .k_norm = k_norm,
                                           .epsilon = 1e-6f,
                                           .write_locations = world->locations[request],
                                           .k_cache = caches[i][0],
                                           .v_cache = caches[i][1],
                                           .cache_type = KERN_TYPE_F16,
                                           .slot_count = (uint32_t)slots};
        device_ops(device)->rope_kv_write(stream, &write);
        finish();
    }
    expect_close(angles[1], angles[0], (size_t)rows * s->rope_dim, 1e-6);
    expect_close(queries[1], queries[0], (size_t)rows * s->q_heads * s->head_dim, 1e-6);
    const uint16_t *a = caches[0][0];
    const uint16_t *b = caches[1][0];
    for (uint32_t i = 0; i < rows; i++) {
        size_t at = (size_t)world->locations[request][i] * s->kv_heads * s->head_dim;
        for (uint32_t j = 0; j < s->kv_heads * s->head_dim; j++) {
            float x = kern_half_to_float(a[at + j]);
            ck_assert(fabsf(x - kern_half_to_float(b[at + j])) <= 2e-3f * (1.0f + fabsf(x)));
        }
        const uint16_t *va = caches[0][1];
        const uint16_t *vb = caches[1][1];
        ck_assert_mem_eq(va + at, vb + at, (size_t)s->kv_heads * s->head_dim * 2);
    }
}

static void
make_world(world_t *world, const shape_t *s)
{
    memset(world, 0, sizeof *world);
    world->shape = s;
    uint32_t columns = (1500 + s->page_size - 1) / s->page_size + 1;
    uint32_t pages = 1 + REQUESTS * columns;
    size_t values = (size_t)pages * s->page_size * s->kv_heads * s->head_dim;
    uint16_t *k = pinned(values * 2);
    uint16_t *v = pinned(values * 2);
    memset(k, 0xff, values * 2); /* NaN */
    memset(v, 0xff, values * 2);
    int32_t *table = pinned((size_t)REQUESTS * columns * sizeof *table);
    world->seq_lens = pinned(REQUESTS * sizeof(int32_t));
    for (uint32_t r = 0; r < REQUESTS; r++) {
        world->seq_lens[r] = (int32_t)lengths[r];
        for (uint32_t c = 0; c < columns; c++) {
            table[r * columns + c] = (int32_t)(1 + c * REQUESTS + (r * 3 + c) % REQUESTS);
        }
        world->locations[r] = pinned(lengths[r] * sizeof(int32_t));
        for (uint32_t i = 0; i < lengths[r]; i++) {
            world->locations[r][i] = table[r * columns + i / s->page_size] * (int32_t)s->page_size +
                                     (int32_t)(i % s->page_size);
        }
    }
    world->cache = (kern_attention_cache_t){
        .k_cache = k,
        .v_cache = v,
        .cache_type = KERN_TYPE_F16,
        .page_size = s->page_size,
        .page_count = pages,
        .page_table = table,
        .page_table_stride = columns,
        .q_heads = s->q_heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .window_left = s->window,
        .sinks = s->sinks ? random_floats(s->q_heads, 1.0f) : NULL,
    };
    for (uint32_t r = 0; r < REQUESTS; r++) {
        size_t heads = s->kv_heads;
        fill_cache(world, random_floats((size_t)lengths[r] * s->q_heads * s->head_dim, 1.0f),
                   random_floats(lengths[r] * heads * s->head_dim, 1.0f),
                   random_floats(lengths[r] * heads * s->head_dim, 1.0f), r);
    }
}

START_TEST(decode_attention_matches)
{
    world_t world;
    const shape_t *s = &shapes[_i];
    make_world(&world, s);
    size_t stride = (size_t)s->q_heads * s->head_dim;
    for (uint32_t width = 1; width <= WIDTH_MAX; width += 2) {
        uint32_t rows = REQUESTS * width;
        kern_attention_decode_args_t args = {
            .cache = world.cache,
            .q = random_floats(rows * stride, 1.0f),
            .q_stride = stride,
            .seq_lens = world.seq_lens,
            .bs = REQUESTS,
            .rows_per_request = width,
            .output = pinned(rows * stride * sizeof(float)),
            .output_stride = stride,
            .output_rows = rows,
            .workspace_size_bytes =
                kern_attention_decode_workspace_size_bytes(rows, s->q_heads, s->head_dim,
                                                           (uint32_t)world.cache.page_table_stride *
                                                               s->page_size),
        };
        args.workspace = pinned(args.workspace_size_bytes);
        kern_attention_decode_args_t other = args;
        other.output = pinned(rows * stride * sizeof(float));
        other.workspace = on_device(args.workspace_size_bytes);
        device_ops(host)->attention_decode(host_stream, &args);
        device_ops(cuda)->attention_decode(cuda_stream, &other);
        finish();
        expect_close(other.output, args.output, rows * stride, 2e-3);
        /* The last request alone, under a batch of one. */
        kern_attention_decode_args_t one = other;
        one.cache.page_table += (REQUESTS - 1) * world.cache.page_table_stride;
        one.q += (rows - width) * stride;
        one.seq_lens += REQUESTS - 1;
        one.bs = 1;
        one.output = pinned(width * stride * sizeof(float));
        device_ops(cuda)->attention_decode(cuda_stream, &one);
        finish();
        ck_assert_mem_eq(one.output, other.output + (rows - width) * stride,
                         width * stride * sizeof(float));
    }
}
END_TEST

START_TEST(extend_attention_matches)
{
    world_t world;
    const shape_t *s = &shapes[_i];
    make_world(&world, s);
    size_t stride = (size_t)s->q_heads * s->head_dim;
    const int32_t counts[REQUESTS] = {1, 37, 100, 3, 333};
    int32_t *cu_q = pinned((REQUESTS + 1) * sizeof *cu_q);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        cu_q[r + 1] = cu_q[r] + counts[r];
    }
    uint32_t rows = (uint32_t)cu_q[REQUESTS];
    kern_attention_extend_args_t args = {
        .cache = world.cache,
        .q = random_floats(rows * stride, 1.0f),
        .q_stride = stride,
        .cu_q = cu_q,
        .seq_lens = world.seq_lens,
        .request_count = REQUESTS,
        .row_count = rows,
        .output = pinned(rows * stride * sizeof(float)),
        .output_stride = stride,
        .output_rows = rows,
    };
    kern_attention_extend_args_t other = args;
    other.output = pinned(rows * stride * sizeof(float));
    device_ops(host)->attention_extend(host_stream, &args);
    device_ops(cuda)->attention_extend(cuda_stream, &other);
    finish();
    expect_close(other.output, args.output, rows * stride, 2e-3);
    /* The last 200 rows of the last request alone: another chunk, the same bits. */
    kern_attention_extend_args_t one = other;
    int32_t *alone = pinned(2 * sizeof *alone);
    alone[1] = 200;
    one.cache.page_table += (REQUESTS - 1) * world.cache.page_table_stride;
    one.q += (size_t)(rows - 200) * stride;
    one.cu_q = alone;
    one.seq_lens += REQUESTS - 1;
    one.request_count = 1;
    one.row_count = 200;
    one.output = pinned(200 * stride * sizeof(float));
    device_ops(cuda)->attention_extend(cuda_stream, &one);
    finish();
    ck_assert_mem_eq(one.output, other.output + (size_t)(rows - 200) * stride,
                     200 * stride * sizeof(float));
}
END_TEST

/* ---- sampling ----------------------------------------------------------------------------------
 */

enum { SLOTS = 12, VOCABULARY = 5003 };

static void
make_pool(kern_sample_pool_t *pool)
{
    float *temperature = pinned(SLOTS * 4);
    int32_t *top_k = pinned(SLOTS * 4);
    float *top_p = pinned(SLOTS * 4);
    float *min_p = pinned(SLOTS * 4);
    uint64_t *seeds = pinned(SLOTS * 8);
    float *repetition = pinned(SLOTS * 4);
    float *presence = pinned(SLOTS * 4);
    float *frequency = pinned(SLOTS * 4);
    uint32_t *logprobs = pinned(SLOTS * 4);
    uint32_t *biases = pinned(SLOTS * 4);
    int32_t *bias_ids = pinned((size_t)SLOTS * KERN_SAMPLE_BIAS_MAX * 4);
    float *bias_values = pinned((size_t)SLOTS * KERN_SAMPLE_BIAS_MAX * 4);
    uint32_t *banned = pinned(SLOTS * 4);
    int32_t *banned_ids = pinned((size_t)SLOTS * KERN_SAMPLE_BANNED_MAX * 4);
    int32_t *until = pinned(SLOTS * 4);
    for (uint32_t s = 0; s < SLOTS; s++) {
        temperature[s] = s == 0 ? 1.0f : 0.5f + 0.1f * (float)s;
        top_k[s] = s % 3 == 0 ? 1 : s % 3 == 1 ? 40 : 0;
        top_p[s] = s % 2 == 0 ? 1.0f : 0.9f;
        min_p[s] = s % 5 == 4 ? 0.05f : 0.0f;
        seeds[s] = 1000 + s;
        repetition[s] = s == 7 || s == 10 ? 1.2f : 1.0f;
        presence[s] = s == 10 ? 0.5f : 0.0f;
        logprobs[s] = s % 4 == 2 ? 6 : 0;
        biases[s] = s == 5 ? 2 : 0;
        bias_ids[s * KERN_SAMPLE_BIAS_MAX] = 77;
        bias_values[s * KERN_SAMPLE_BIAS_MAX] = 9.0f;
        bias_ids[s * KERN_SAMPLE_BIAS_MAX + 1] = 78;
        bias_values[s * KERN_SAMPLE_BIAS_MAX + 1] = -4.0f;
        banned[s] = s == 3 ? 3 : 0;
        until[s] = s == 3 ? 1 << 30 : 0;
        for (int32_t i = 0; i < 3; i++) {
            banned_ids[s * KERN_SAMPLE_BANNED_MAX + (uint32_t)i] = i * 100;
        }
    }
    *pool = (kern_sample_pool_t){temperature, top_k,      top_p, min_p,    seeds,    repetition,
                                 presence,    frequency,  NULL,  biases,   bias_ids, bias_values,
                                 banned,      banned_ids, until, logprobs, SLOTS};
}

/* Draws fall on the same token unless a coin comes as near to an edge as rounding reaches. */
START_TEST(sampling_matches)
{
    enum { ROUNDS = 40, WIDTH = 2 };
    kern_sample_args_t args = {.vocabulary = VOCABULARY,
                               .bs = SLOTS,
                               .rows_per_request = WIDTH,
                               .logits_stride = VOCABULARY};
    make_pool(&args.pool);
    size_t counts_bytes = (size_t)SLOTS * VOCABULARY * 2;
    uint16_t *counts[2] = {pinned(counts_bytes), pinned(counts_bytes)};
    for (size_t i = 0; i < (size_t)SLOTS * VOCABULARY; i++) {
        counts[0][i] = counts[1][i] =
            random_below(20) == 0 ? (uint16_t)(0x8000 + random_below(3)) : 0;
    }
    int32_t *slots = pinned(SLOTS * 4);
    int32_t *seq_lens = pinned(SLOTS * 4);
    int32_t *candidates = pinned(SLOTS * WIDTH * 4);
    int32_t *tokens[2] = {pinned(SLOTS * WIDTH * 4), pinned(SLOTS * WIDTH * 4)};
    int32_t *accepts[2] = {pinned(SLOTS * 4), pinned(SLOTS * 4)};
    uint8_t *flags[2] = {pinned(SLOTS * WIDTH), pinned(SLOTS * WIDTH)};
    size_t entries = (size_t)SLOTS * WIDTH * KERN_SAMPLE_LOGPROBS_WIDTH;
    int32_t *ids[2] = {pinned(entries * 4), pinned(entries * 4)};
    float *values[2] = {pinned(entries * 4), pinned(entries * 4)};
    size_t work = kern_sample_workspace_size_bytes(VOCABULARY, 128);
    void *works[2] = {pinned(work), on_device(work)};
    uint32_t apart = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        float *logits = random_floats((size_t)SLOTS * WIDTH * VOCABULARY, 3.0f);
        for (uint32_t i = 0; i < SLOTS; i++) {
            slots[i] = (int32_t)((i + round) % SLOTS);
            seq_lens[i] = (int32_t)(10 + round + i);
            candidates[i * WIDTH] = 5;
            candidates[i * WIDTH + 1] = i % 2 == 0 ? -1 : 11;
        }
        logits[(size_t)3 * WIDTH * VOCABULARY + 17] = round % 7 == 3 ? NAN : 1.0f;
        args.logits = logits;
        args.slots = slots;
        args.seq_lens = seq_lens;
        args.candidates = candidates;
        args.workspace_size_bytes = work;
        for (int i = 0; i < 2; i++) {
            args.pool.counts = counts[i];
            args.tokens = tokens[i];
            args.accept_lengths = accepts[i];
            args.flags = flags[i];
            args.logprob_ids = ids[i];
            args.logprob_values = values[i];
            args.workspace = works[i];
            device_ops(i == 0 ? host : cuda)->sample(i == 0 ? host_stream : cuda_stream, &args);
        }
        finish();
        ck_assert_mem_eq(flags[0], flags[1], SLOTS * WIDTH);
        for (uint32_t row = 0; row < SLOTS * WIDTH; row++) {
            bool greedy = args.pool.top_k[slots[row / WIDTH]] == 1;
            apart += tokens[0][row] != tokens[1][row];
            ck_assert(!greedy || tokens[0][row] == tokens[1][row]);
        }
        expect_close(values[1], values[0], entries, 1e-5);
        memcpy(counts[1], counts[0], counts_bytes); /* a draw apart counts apart */
    }
    (void)printf("sampling: %u of %u draws apart\n", apart, ROUNDS * SLOTS * WIDTH);
    ck_assert_uint_le(apart, 2);
}
END_TEST

/* ---- metadata ----------------------------------------------------------------------------------
 */

START_TEST(integer_operations_match)
{
    enum { BS = 7, COLUMNS = 9, PAGES = 40, WIDTH = 3, SLOT_ROWS = 12 };
    int32_t *blocks = pinned(BS * COLUMNS * 4);
    int32_t *lens = pinned(BS * 4);
    int32_t *staged = pinned(BS * 4);
    for (uint32_t i = 0; i < BS * COLUMNS; i++) {
        blocks[i] = (int32_t)random_below(30) - 2;
    }
    for (uint32_t i = 0; i < BS; i++) {
        lens[i] = (int32_t)random_below(60);
        staged[i] = 1 + (int32_t)i;
    }
    int32_t *out[2][10];
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 10; j++) {
            out[i][j] = pinned(4096 * 4);
        }
        for (uint32_t s = 0; s < SLOT_ROWS; s++) {
            out[i][8][s] = 20 + (int32_t)s;
            for (uint32_t t = 0; t < WIDTH; t++) {
                out[i][9][s * WIDTH + t] = (int32_t)(s * 31 + t * 7) % 90 - 5;
            }
        }
        device_t *device = i == 0 ? host : cuda;
        device_stream_t *stream = i == 0 ? host_stream : cuda_stream;
        const device_ops_t *ops = device_ops(device);
        kern_table_expand_args_t expand = {blocks, COLUMNS, COLUMNS,   25,    4,    6,
                                           BS,     5,       out[i][0], PAGES, PAGES};
        ops->table_expand(stream, &expand);
        kern_table_copy_args_t copy = {out[i][0], PAGES, out[i][1], PAGES + 3, BS, PAGES};
        ops->table_copy(stream, &copy);
        kern_seq_lens_args_t seq = {lens, out[i][2], BS, 5, 3};
        ops->seq_lens(stream, &seq);
        kern_decode_locations_args_t decode = {out[i][0], PAGES, PAGES, 8,        out[i][2],
                                               BS,        5,     WIDTH, out[i][3]};
        ops->decode_locations(stream, &decode);
        kern_extend_locations_args_t extend = {out[i][0], PAGES, PAGES, 8,        lens,
                                               lens,      5,     100,   out[i][4]};
        ops->extend_locations(stream, &extend);
        kern_decode_fill_args_t fill = {.staged_slots = staged,
                                        .bs = BS,
                                        .actual_bs = 5,
                                        .width = WIDTH,
                                        .stride = WIDTH,
                                        .vocabulary = 50,
                                        .sink = SLOT_ROWS - 1,
                                        .valid_lengths = out[i][8],
                                        .future_inputs = out[i][9],
                                        .slots = out[i][5],
                                        .write_slots = out[i][5] + 100,
                                        .input_ids = out[i][5] + 200,
                                        .positions = out[i][5] + 300,
                                        .seq_lens = out[i][5] + 400};
        ops->decode_fill(stream, &fill);
        kern_extend_fill_args_t extend_fill = {.staged_slots = staged,
                                               .prefix_lens = lens,
                                               .extend_lens = lens,
                                               .request_count = 4,
                                               .token_count_max = 90,
                                               .valid_lengths = out[i][8],
                                               .slots = out[i][6],
                                               .write_slots = out[i][6] + 100,
                                               .positions = out[i][6] + 200,
                                               .seq_lens = out[i][6] + 400};
        ops->extend_fill(stream, &extend_fill);
        kern_decode_commit_args_t commit = {.write_slots = out[i][5] + 100,
                                            .tokens = out[i][5] + 300,
                                            .accept_lengths = staged,
                                            .bs = BS,
                                            .width = WIDTH,
                                            .stride = WIDTH,
                                            .valid_lengths = out[i][8],
                                            .future_inputs = out[i][9]};
        ops->decode_commit(stream, &commit);
        kern_extend_commit_args_t extend_commit = {.write_slots = out[i][6] + 100,
                                                   .seq_lens = out[i][6] + 400,
                                                   .sample_indices = blocks,
                                                   .tokens = out[i][5] + 300,
                                                   .request_count = 4,
                                                   .width = WIDTH,
                                                   .valid_lengths = out[i][8],
                                                   .future_inputs = out[i][9]};
        ops->extend_commit(stream, &extend_commit);
        finish();
    }
    for (int j = 0; j < 10; j++) {
        for (uint32_t k = 0; k < 4096; k++) {
            bool is_sink = j == 9 && k / WIDTH == SLOT_ROWS - 1;
            ck_assert_msg(is_sink || out[0][j][k] == out[1][j][k], "array %d, entry %u: %d, %d", j,
                          k, out[0][j][k], out[1][j][k]);
        }
    }
}
END_TEST

/* A device that has failed must never look as if it worked: the executor ends on it.  The last
 * test, since the process has no GPU afterwards. */
START_TEST(an_illegal_access_fails_the_device_for_good)
{
    device_event_t *event = NULL;
    ck_assert_int_eq(device_event_new(cuda, &event), STATUS_OK);
    int32_t *out = pinned(64);
    const int32_t *nobodys = (const int32_t *)(uintptr_t)4096;
    kern_seq_lens_args_t args = {nobodys, out, 1, 1, 1};
    device_ops(cuda)->seq_lens(cuda_stream, &args);
    ck_assert_int_eq(device_stream_synchronize(cuda_stream), STATUS_ERR_DEVICE);
    ck_assert_int_eq(device_stream_check(cuda_stream), STATUS_ERR_DEVICE);
    ck_assert_int_eq(device_event_record(event, cuda_stream), STATUS_ERR_DEVICE);
    ck_assert_int_eq(device_event_query(event), STATUS_ERR_DEVICE);
    ck_assert_int_eq(device_stream_synchronize(cuda_stream), STATUS_ERR_DEVICE);
    ck_assert_ptr_nonnull(cuda->fault);
    ck_assert_msg(strstr(cuda->fault, "llegal") != NULL, "%s", cuda->fault);
    (void)printf("the fault: %s\n", cuda->fault);
    device_event_destroy(&event);
}
END_TEST

static void
add_tests(TCase *tests)
{
    tcase_add_test(tests, integer_operations_match);
    tcase_add_loop_test(tests, norms_match, 0, 5);
    if (getenv("ONEPATH_TEST_SMALL") != NULL) {
        /* For compute-sanitizer, under which everything takes a hundred times as long. */
        tcase_add_loop_test(tests, products_match, 1, 2);
        tcase_add_loop_test(tests, gated_products_match, 1, 2);
        tcase_add_loop_test(tests, decode_attention_matches, 3, 5);
        tcase_add_loop_test(tests, extend_attention_matches, 3, 5);
        return;
    }
    tcase_add_loop_test(tests, products_match, 0, (int)(sizeof products / sizeof *products));
    tcase_add_loop_test(tests, gated_products_match, 0, (int)(sizeof gates / sizeof *gates));
    tcase_add_loop_test(tests, decode_attention_matches, 0, SHAPE_COUNT);
    tcase_add_loop_test(tests, extend_attention_matches, 0, SHAPE_COUNT);
    tcase_add_test(tests, sampling_matches);
    tcase_add_test(tests, an_illegal_access_fails_the_device_for_good);
}

int
main(void)
{
    const char *name = getenv("ONEPATH_TEST_DEVICE");
    if (name == NULL || strncmp(name, "cuda", 4) != 0) {
        (void)printf(
            "left out: there is no GPU here (ONEPATH_TEST_DEVICE=cuda on a host with one)\n");
        return 77;
    }
    const char *given = getenv("ONEPATH_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : 20261130;
    (void)printf("seed %llu\n", (unsigned long long)seed);
    Suite *suite = suite_create("gpu.cuda_ops");
    TCase *tests = tcase_create("operations");
    tcase_add_unchecked_fixture(tests, open_devices, close_devices);
    tcase_set_timeout(tests, 200);
    add_tests(tests);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* CUDA and fork do not mix */
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
