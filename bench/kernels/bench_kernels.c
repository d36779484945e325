/* bench_kernels - every operation at the sizes of SmolLM2-135M, against measured ceilings.
 *
 *   bench_kernels [threads] [path] [float|int8] [forward]
 *
 * Each line is the best of several repetitions.  One layer's weights are used in turn with those of
 * 29 others, so that decode reads from memory as a model does. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_ceilings.h"
#include "kern_attention.h"
#include "kern_elementwise.h"
#include "kern_embed.h"
#include "kern_linear.h"
#include "kern_norm.h"
#include "kern_rope.h"
#include "kern_sample.h"
#include "kern_team.h"

enum {
    LAYERS = 30,
    HIDDEN = 576,
    HEADS = 9,
    KV_HEADS = 3,
    HEAD_DIM = 64,
    FFN = 1536,
    VOCABULARY = 49152,
    ROWS_MAX = 512,
    CONTEXT = 2048,
    PAGE_SIZE = 64,
};

static kern_team_t *team;
static kern_activations_t activations;
static double read_ceiling;  /* GB/s */
static double int8_ceiling;  /* Gop/s */
static double float_ceiling; /* Gop/s */

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
        fprintf(stderr, "bench_kernels: out of memory\n");
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

/* Best seconds of a list of commands, over some 0.3 s. */
static double
measure(const kern_command_t *commands, uint32_t count)
{
    double best = 1e9;
    double end = now_s() + 0.3;
    kern_team_run_list(team, commands, count);
    for (int i = 0; i < 3 || now_s() < end; i++) {
        double start = now_s();
        kern_team_run_list(team, commands, count);
        double took = now_s() - start;
        best = took < best ? took : best;
    }
    return best;
}

static void
report(const char *name, double seconds, double bytes, double int8_operations,
       double float_operations)
{
    printf("%-40s %10.1f us", name, seconds * 1e6);
    if (bytes > 0) {
        double rate = bytes / seconds * 1e-9;
        printf("  %7.1f GB/s (%3.0f%%)", rate, 100 * rate / read_ceiling);
    }
    if (int8_operations > 0) {
        double rate = int8_operations / seconds * 1e-9;
        printf("  %7.1f Gop/s (%3.0f%% int8)", rate, 100 * rate / int8_ceiling);
    }
    if (float_operations > 0) {
        double rate = float_operations / seconds * 1e-9;
        printf("  %7.1f Gflop/s (%3.0f%%)", rate, 100 * rate / float_ceiling);
    }
    printf("\n");
}

static void
measure_ceilings(uint32_t threads)
{
    double *sums = allocate(threads * sizeof *sums);
    size_t size_bytes = (size_t)256 << 20;
    bench_read_args_t read = {.from = allocate(size_bytes), .size_bytes = size_bytes, .sums = sums};
    kern_command_t command = {bench_read_host, &read};
    read_ceiling = (double)size_bytes / measure(&command, 1) * 1e-9;
    free((void *)(uintptr_t)read.from);
    bench_peak_args_t peak = {.rounds = 1000000, .sums = sums};
    kern_command_t int8 = {bench_peak_int8_host, &peak};
    int8_ceiling = bench_peak_int8_operations(kern_team_path(team)) * (double)peak.rounds *
                   threads / measure(&int8, 1) * 1e-9;
    kern_command_t floats = {bench_peak_float_host, &peak};
    float_ceiling = bench_peak_float_operations(kern_team_path(team)) * (double)peak.rounds *
                    threads / measure(&floats, 1) * 1e-9;
    printf("ceilings: read %.1f GB/s, int8 %.0f Gop/s, float %.0f Gflop/s\n", read_ceiling,
           int8_ceiling, float_ceiling);
    free(sums);
}

static kern_weight_t
random_weight(kern_type_t type, uint32_t rows, uint32_t cols, bool packed)
{
    size_t size_bytes = rows * kern_type_row_size_bytes(type, cols);
    uint8_t *data = allocate(size_bytes);
    uint32_t state = 7;
    for (size_t i = 0; i < size_bytes; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (uint8_t)((state >> 24) & 0x2F); /* any finite scale */
    }
    kern_weight_t weight = {.data = data, .type = type, .rows = rows, .cols = cols};
    if (packed && kern_weight_packed_size_bytes(&weight) > 0) {
        void *out = allocate(kern_weight_packed_size_bytes(&weight));
        weight = kern_weight_pack(&weight, out);
        free(data);
    }
    return weight;
}

static void
bench_linear(kern_type_t type, bool packed, uint32_t rows, uint32_t outputs, uint32_t cols)
{
    kern_linear_args_t args[LAYERS];
    kern_command_t commands[LAYERS];
    float *input = random_floats((size_t)rows * cols);
    float *output = allocate((size_t)rows * outputs * sizeof *output);
    size_t workspace_size_bytes = kern_linear_workspace_size_bytes(rows, cols);
    void *workspace = allocate(workspace_size_bytes);
    uint32_t layers = outputs > 8192 ? 2 : LAYERS;
    for (uint32_t i = 0; i < layers; i++) {
        args[i] = (kern_linear_args_t){
            .input = input,
            .input_stride = cols,
            .rows = rows,
            .weight_count = 1,
            .weights = {random_weight(type, outputs, cols, packed)},
            .outputs = {output},
            .output_strides = {outputs},
            .workspace = workspace,
            .workspace_size_bytes = workspace_size_bytes,
            .activations = activations,
        };
        commands[i] = (kern_command_t){kern_linear_host, &args[i]};
    }
    double seconds = measure(commands, layers) / layers;
    double operations = 2.0 * rows * outputs * cols;
    double bytes = (double)(outputs * kern_type_row_size_bytes(type, cols));
    char name[64];
    snprintf(name, sizeof name, "linear %s%s %ux%u rows %u", kern_type_name(type),
             packed ? " packed" : "", outputs, cols, rows);
    bool quantised = kern_type_block_len(type) > 1;
    bool int8 = quantised && activations == KERN_ACTIVATIONS_INT8;
    report(name, seconds, rows <= 16 ? bytes : 0, int8 ? operations : 0, int8 ? 0 : operations);
    for (uint32_t i = 0; i < layers; i++) {
        free((void *)(uintptr_t)args[i].weights[0].data);
    }
    free(input);
    free(output);
    free(workspace);
}

static void
bench_attention(kern_type_t cache_type, bool extend, uint32_t requests, uint32_t rows,
                uint32_t kv_len)
{
    uint32_t pages = (kv_len + PAGE_SIZE - 1) / PAGE_SIZE;
    size_t elements = (size_t)requests * pages * PAGE_SIZE * KV_HEADS * HEAD_DIM;
    void *k =
        cache_type == KERN_TYPE_F32 ? (void *)random_floats(elements) : allocate(elements * 2);
    void *v =
        cache_type == KERN_TYPE_F32 ? (void *)random_floats(elements) : allocate(elements * 2);
    int32_t *table = allocate(requests * pages * sizeof *table);
    int32_t *seq_lens = allocate(requests * sizeof *seq_lens);
    int32_t *cu_q = allocate((requests + 1) * sizeof *cu_q);
    for (uint32_t i = 0; i < requests * pages; i++) {
        table[i] = (int32_t)i;
    }
    for (uint32_t i = 0; i < requests; i++) {
        seq_lens[i] = (int32_t)kv_len;
        cu_q[i + 1] = (int32_t)((i + 1) * rows);
    }
    float *q = random_floats((size_t)requests * rows * HEADS * HEAD_DIM);
    float *output = allocate((size_t)requests * rows * HEADS * HEAD_DIM * sizeof *output);
    kern_attention_cache_t cache = {
        .k_cache = k,
        .v_cache = v,
        .cache_type = cache_type,
        .page_size = PAGE_SIZE,
        .page_count = requests * pages,
        .page_table = table,
        .page_table_stride = pages,
        .q_heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = HEAD_DIM,
        .scale = 0.125f,
        .window_left = -1,
    };
    size_t workspace_size_bytes =
        kern_attention_decode_workspace_size_bytes(requests * rows, HEADS, HEAD_DIM,
                                                   pages * PAGE_SIZE);
    kern_attention_decode_args_t decode = {
        .cache = cache,
        .q = q,
        .q_stride = HEADS * HEAD_DIM,
        .seq_lens = seq_lens,
        .bs = requests,
        .rows_per_request = rows,
        .output = output,
        .output_stride = HEADS * HEAD_DIM,
        .workspace = extend ? NULL : allocate(workspace_size_bytes),
        .workspace_size_bytes = workspace_size_bytes,
    };
    kern_attention_extend_args_t extend_args = {
        .cache = cache,
        .q = q,
        .q_stride = HEADS * HEAD_DIM,
        .cu_q = cu_q,
        .seq_lens = seq_lens,
        .request_count = requests,
        .output = output,
        .output_stride = HEADS * HEAD_DIM,
    };
    kern_command_t command = {extend ? kern_attention_extend_host : kern_attention_decode_host,
                              extend ? (const void *)&extend_args : (const void *)&decode};
    double seconds = measure(&command, 1);
    double keys = extend ? (double)kv_len - rows / 2.0 : (double)kv_len;
    double operations = 4.0 * requests * rows * HEADS * HEAD_DIM * keys;
    double bytes = 2.0 * (double)elements * (cache_type == KERN_TYPE_F32 ? 4 : 2);
    char name[64];
    snprintf(name, sizeof name, "attention %s %s %ux%u keys %u", extend ? "extend" : "decode",
             kern_type_name(cache_type), requests, rows, kv_len);
    report(name, seconds, extend ? 0 : bytes, 0, operations);
    free(decode.workspace);
    free(k);
    free(v);
    free(table);
    free(seq_lens);
    free(cu_q);
    free(q);
    free(output);
}

static void
bench_rows(uint32_t rows)
{
    size_t count = (size_t)rows * FFN;
    float *a = random_floats(count);
    float *b = random_floats(count);
    float *weight = random_floats(FFN);
    float *output = allocate(count * sizeof *output);
    kern_rms_norm_args_t norm = {a,      HIDDEN, b,      HIDDEN, weight,        output,
                                 HIDDEN, rows,   HIDDEN, 1e-5f,  KERN_FORM_ROWS};
    kern_silu_mul_args_t silu = {a, FFN, b, FFN, output, FFN, rows, FFN};
    kern_command_t commands[2] = {{kern_rms_norm_host, &norm}, {kern_silu_mul_host, &silu}};
    char name[64];
    snprintf(name, sizeof name, "add + rms_norm %u rows", rows);
    report(name, measure(commands, 1), (double)rows * HIDDEN * 16, 0, 0);
    snprintf(name, sizeof name, "silu_mul %u rows", rows);
    report(name, measure(commands + 1, 1), (double)rows * FFN * 12, 0, 0);

    kern_weight_t table = random_weight(KERN_TYPE_Q8_0, VOCABULARY, HIDDEN, true);
    int32_t *tokens = allocate(rows * sizeof *tokens);
    for (uint32_t i = 0; i < rows; i++) {
        tokens[i] = (int32_t)(i * 97 % VOCABULARY);
    }
    kern_embed_args_t embed = {table, tokens, rows, 1.0f, output, HIDDEN};
    kern_command_t command = {kern_embed_host, &embed};
    snprintf(name, sizeof name, "embed Q8_0 packed %u rows", rows);
    report(name, measure(&command, 1), (double)rows * HIDDEN * 4, 0, 0);

    float *angles = random_floats((size_t)rows * HEAD_DIM);
    float *frequencies = random_floats(HEAD_DIM / 2);
    int32_t *locations = allocate(rows * sizeof *locations);
    float *cache = allocate(2 * (size_t)rows * KV_HEADS * HEAD_DIM * sizeof *cache);
    for (uint32_t i = 0; i < rows; i++) {
        locations[i] = (int32_t)i;
    }
    kern_rope_angles_args_t angle_args = {locations, false, rows,  frequencies,
                                          HEAD_DIM,  1.0f,  angles};
    kern_rope_kv_write_args_t rope = {
        .q = a,
        .q_stride = HIDDEN,
        .k = b,
        .k_stride = KV_HEADS * HEAD_DIM,
        .v = b,
        .v_stride = KV_HEADS * HEAD_DIM,
        .rows = rows,
        .q_heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = HEAD_DIM,
        .rope_dim = HEAD_DIM,
        .angles = angles,
        .write_locations = locations,
        .k_cache = cache,
        .v_cache = cache + (size_t)rows * KV_HEADS * HEAD_DIM,
        .cache_type = KERN_TYPE_F32,
        .slot_count = rows,
    };
    kern_command_t ropes[2] = {{kern_rope_angles_host, &angle_args},
                               {kern_rope_kv_write_host, &rope}};
    snprintf(name, sizeof name, "rope_angles %u rows", rows);
    report(name, measure(ropes, 1), 0, 0, 0);
    snprintf(name, sizeof name, "rope + kv write %u rows", rows);
    report(name, measure(ropes + 1, 1), 0, 0, 0);
    free(a);
    free(b);
    free(weight);
    free(output);
    free((void *)(uintptr_t)table.data);
    free(tokens);
    free(angles);
    free(frequencies);
    free(locations);
    free(cache);
}

static void
bench_sample(const char *what, uint32_t vocabulary, float temperature, int32_t top_k, float top_p,
             float repetition, uint32_t logprobs)
{
    float *logits = random_floats(vocabulary);
    for (uint32_t i = 0; i < vocabulary; i++) {
        logits[i] = logits[i] * logits[i] * logits[i] * 12.0f;
    }
    float min_p = 0.0f;
    uint64_t seed = 1;
    float zero = 0.0f;
    uint32_t none = 0;
    int32_t until = 0;
    int32_t slot = 0;
    int32_t seq_len = 10;
    int32_t token;
    int32_t accepted;
    uint8_t flags;
    int32_t ids[KERN_SAMPLE_LOGPROBS_WIDTH];
    float values[KERN_SAMPLE_LOGPROBS_WIDTH];
    uint32_t threads = kern_team_thread_count(team);
    kern_sample_args_t args = {
        .pool = {.temperature = &temperature,
                 .top_k = &top_k,
                 .top_p = &top_p,
                 .min_p = &min_p,
                 .seed = &seed,
                 .repetition_penalty = &repetition,
                 .presence_penalty = &zero,
                 .frequency_penalty = &zero,
                 .counts = allocate(vocabulary * sizeof(uint16_t)),
                 .bias_counts = &none,
                 .banned_counts = &none,
                 .banned_until = &until,
                 .logprobs = &logprobs,
                 .slot_count = 1},
        .logits = logits,
        .logits_stride = vocabulary,
        .vocabulary = vocabulary,
        .bs = 1,
        .rows_per_request = 1,
        .slots = &slot,
        .seq_lens = &seq_len,
        .tokens = &token,
        .accept_lengths = &accepted,
        .flags = &flags,
        .logprob_ids = ids,
        .logprob_values = values,
        .workspace_size_bytes = kern_sample_workspace_size_bytes(vocabulary, threads),
    };
    args.workspace = allocate(args.workspace_size_bytes);
    kern_command_t command = {kern_sample_host, &args};
    char name[64];
    snprintf(name, sizeof name, "sample %s, vocabulary %u", what, vocabulary);
    report(name, measure(&command, 1), 0, 0, 0);
    free(args.pool.counts);
    free(args.workspace);
    free(logits);
}

static void
nothing_host(const void *args, kern_share_t *share)
{
    (void)args;
    (void)share;
}

static void
bench_team(void)
{
    enum { COUNT = 1000 };
    kern_command_t commands[COUNT];
    for (int i = 0; i < COUNT; i++) {
        commands[i] = (kern_command_t){nothing_host, NULL};
    }
    double start = now_s();
    for (int i = 0; i < COUNT; i++) {
        kern_team_run(team, nothing_host, NULL);
    }
    printf("%-40s %10.3f us\n", "team run, hot", (now_s() - start) / COUNT * 1e6);
    printf("%-40s %10.3f us\n", "step of a command list", measure(commands, COUNT) / COUNT * 1e6);
}

/* Everything that a forward pass of SmolLM2-135M runs, in its order, without a model: random Q4_1
 * weights, a Q8_0 head.  What a server reaches at most. */
typedef struct {
    kern_linear_args_t qkv;
    kern_rope_kv_write_args_t rope;
    kern_attention_decode_args_t decode;
    kern_attention_extend_args_t extend;
    kern_linear_args_t out;
    kern_rms_norm_args_t norm;
    kern_gate_up_args_t gate_up;
    kern_linear_args_t down;
    kern_rms_norm_args_t next_norm;
} layer_t;

static void
bench_forward(bool extend, uint32_t bs, uint32_t rows, uint32_t kv_len)
{
    enum { KV_COLS = KV_HEADS * HEAD_DIM, COMMANDS_OF_LAYER = 8 };
    uint32_t pages = (kv_len + PAGE_SIZE - 1) / PAGE_SIZE;
    uint32_t slots = bs * pages * PAGE_SIZE;
    float *x = random_floats((size_t)rows * HIDDEN);
    float *normed = random_floats((size_t)rows * HIDDEN);
    float *q = random_floats((size_t)rows * HIDDEN);
    float *k = random_floats((size_t)rows * KV_COLS);
    float *v = random_floats((size_t)rows * KV_COLS);
    float *h = random_floats((size_t)rows * FFN);
    float *logits = allocate((size_t)bs * VOCABULARY * sizeof *logits);
    float *weight = random_floats(HIDDEN);
    float *angles = random_floats((size_t)rows * HEAD_DIM);
    float *cache = allocate(2 * (size_t)LAYERS * slots * KV_COLS * sizeof *cache);
    int32_t *table = allocate(bs * pages * sizeof *table);
    int32_t *locations = allocate(rows * sizeof *locations);
    int32_t *seq_lens = allocate(bs * sizeof *seq_lens);
    int32_t *cu_q = allocate((bs + 1) * sizeof *cu_q);
    for (uint32_t i = 0; i < bs * pages; i++) {
        table[i] = (int32_t)i;
    }
    for (uint32_t i = 0; i < rows; i++) {
        locations[i] = (int32_t)((i / (rows / bs) + 1) * pages * PAGE_SIZE - 1 - i % (rows / bs));
    }
    for (uint32_t i = 0; i < bs; i++) {
        seq_lens[i] = (int32_t)kv_len;
        cu_q[i + 1] = (int32_t)((i + 1) * (rows / bs));
    }
    size_t work_size_bytes = kern_linear_workspace_size_bytes(rows, FFN);
    void *work = allocate(work_size_bytes);
    size_t attention_size_bytes =
        kern_attention_decode_workspace_size_bytes(rows, HEADS, HEAD_DIM, pages * PAGE_SIZE);
    void *attention_work = allocate(attention_size_bytes);
    layer_t *layers = allocate(LAYERS * sizeof *layers);
    kern_command_t commands[LAYERS * COMMANDS_OF_LAYER + 1];
    uint32_t count = 0;
    for (uint32_t i = 0; i < LAYERS; i++) {
        layer_t *layer = &layers[i];
        float *k_cache = cache + (size_t)2 * i * slots * KV_COLS;
        layer->qkv = (kern_linear_args_t){
            .input = normed,
            .input_stride = HIDDEN,
            .rows = rows,
            .weight_count = 3,
            .weights = {random_weight(KERN_TYPE_Q4_1, HIDDEN, HIDDEN, true),
                        random_weight(KERN_TYPE_Q4_1, KV_COLS, HIDDEN, true),
                        random_weight(KERN_TYPE_Q4_1, KV_COLS, HIDDEN, true)},
            .outputs = {q, k, v},
            .output_strides = {HIDDEN, KV_COLS, KV_COLS},
            .workspace = work,
            .workspace_size_bytes = work_size_bytes,
            .activations = activations,
        };
        layer->rope = (kern_rope_kv_write_args_t){
            .q = q,
            .q_stride = HIDDEN,
            .k = k,
            .k_stride = KV_COLS,
            .v = v,
            .v_stride = KV_COLS,
            .rows = rows,
            .q_heads = HEADS,
            .kv_heads = KV_HEADS,
            .head_dim = HEAD_DIM,
            .rope_dim = HEAD_DIM,
            .angles = angles,
            .write_locations = locations,
            .k_cache = k_cache,
            .v_cache = k_cache + (size_t)slots * KV_COLS,
            .cache_type = KERN_TYPE_F32,
            .slot_count = slots,
        };
        kern_attention_cache_t attention = {
            .k_cache = layer->rope.k_cache,
            .v_cache = layer->rope.v_cache,
            .cache_type = KERN_TYPE_F32,
            .page_size = PAGE_SIZE,
            .page_count = bs * pages,
            .page_table = table,
            .page_table_stride = pages,
            .q_heads = HEADS,
            .kv_heads = KV_HEADS,
            .head_dim = HEAD_DIM,
            .scale = 0.125f,
            .window_left = -1,
        };
        layer->decode = (kern_attention_decode_args_t){
            .cache = attention,
            .q = q,
            .q_stride = HIDDEN,
            .seq_lens = seq_lens,
            .bs = bs,
            .rows_per_request = rows / bs,
            .output = normed,
            .output_stride = HIDDEN,
            .workspace = attention_work,
            .workspace_size_bytes = attention_size_bytes,
        };
        layer->extend = (kern_attention_extend_args_t){
            .cache = attention,
            .q = q,
            .q_stride = HIDDEN,
            .cu_q = cu_q,
            .seq_lens = seq_lens,
            .request_count = bs,
            .row_count = rows,
            .output = normed,
            .output_stride = HIDDEN,
        };
        layer->out = layer->qkv;
        layer->out.weight_count = 1;
        layer->out.weights[0] = random_weight(KERN_TYPE_Q4_1, HIDDEN, HIDDEN, true);
        layer->out.outputs[0] = x;
        layer->out.accumulate = true;
        layer->norm = (kern_rms_norm_args_t){x,      HIDDEN, NULL,   0,     weight,        normed,
                                             HIDDEN, rows,   HIDDEN, 1e-5f, KERN_FORM_ROWS};
        layer->gate_up = (kern_gate_up_args_t){
            .input = normed,
            .input_stride = HIDDEN,
            .rows = rows,
            .gate = random_weight(KERN_TYPE_Q4_1, FFN, HIDDEN, true),
            .up = random_weight(KERN_TYPE_Q4_1, FFN, HIDDEN, true),
            .output = h,
            .output_stride = FFN,
            .workspace = work,
            .workspace_size_bytes = work_size_bytes,
            .activations = activations,
        };
        layer->down = layer->out;
        layer->down.input = h;
        layer->down.input_stride = FFN;
        layer->down.weights[0] = random_weight(KERN_TYPE_Q4_1, HIDDEN, FFN, true);
        commands[count++] = (kern_command_t){kern_linear_host, &layer->qkv};
        commands[count++] = (kern_command_t){kern_rope_kv_write_host, &layer->rope};
        commands[count++] =
            (kern_command_t){extend ? kern_attention_extend_host : kern_attention_decode_host,
                             extend ? (const void *)&layer->extend : (const void *)&layer->decode};
        commands[count++] = (kern_command_t){kern_linear_host, &layer->out};
        commands[count++] = (kern_command_t){kern_rms_norm_host, &layer->norm};
        commands[count++] = (kern_command_t){kern_gate_up_host, &layer->gate_up};
        commands[count++] = (kern_command_t){kern_linear_host, &layer->down};
        commands[count++] = (kern_command_t){kern_rms_norm_host, &layer->norm};
    }
    kern_linear_args_t head = layers[0].qkv;
    head.rows = bs;
    head.weight_count = 1;
    head.weights[0] = random_weight(KERN_TYPE_Q8_0, VOCABULARY, HIDDEN, true);
    head.outputs[0] = logits;
    head.output_strides[0] = VOCABULARY;
    commands[count++] = (kern_command_t){kern_linear_host, &head};
    double seconds = measure(commands, count);
    printf("forward %s, batch %u, keys %u: %.2f ms, %.0f tokens/s\n", extend ? "extend" : "decode",
           bs, kv_len, seconds * 1e3, rows / seconds);
    for (uint32_t i = 0; i < LAYERS; i++) {
        for (int j = 0; j < 3; j++) {
            free((void *)(uintptr_t)layers[i].qkv.weights[j].data);
        }
        free((void *)(uintptr_t)layers[i].out.weights[0].data);
        free((void *)(uintptr_t)layers[i].gate_up.gate.data);
        free((void *)(uintptr_t)layers[i].gate_up.up.data);
        free((void *)(uintptr_t)layers[i].down.weights[0].data);
    }
    free((void *)(uintptr_t)head.weights[0].data);
    void *all[] = {x,     normed, q,         k,        v,    h,    logits,         weight, angles,
                   cache, table,  locations, seq_lens, cu_q, work, attention_work, layers};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
}

static void
bench_forwards(void)
{
    bench_forward(false, 1, 1, 64);
    bench_forward(false, 1, 1, 512);
    bench_forward(false, 16, 16, 256);
    bench_forward(true, 1, ROWS_MAX, ROWS_MAX);
}

static void
bench_all(void)
{
    static const uint32_t decode_rows[] = {1, 2, 4, 8, 16};
    static const kern_type_t types[] = {
        KERN_TYPE_F32,  KERN_TYPE_F16,  KERN_TYPE_BF16, KERN_TYPE_Q8_0, KERN_TYPE_Q4_0,
        KERN_TYPE_Q4_1, KERN_TYPE_Q5_0, KERN_TYPE_Q4_K, KERN_TYPE_Q5_K, KERN_TYPE_Q6_K,
    };
    bench_team();
    bench_forwards();
    for (int i = 0; i < 5; i++) {
        bench_linear(KERN_TYPE_Q4_1, true, decode_rows[i], 2 * FFN, HIDDEN);
    }
    bench_linear(KERN_TYPE_Q8_0, true, 1, VOCABULARY, HIDDEN);
    bench_linear(KERN_TYPE_Q4_1, true, 1, HIDDEN, FFN);
    bench_linear(KERN_TYPE_Q4_1, true, ROWS_MAX, 2 * FFN, HIDDEN);
    bench_linear(KERN_TYPE_Q4_1, true, ROWS_MAX, HIDDEN, FFN);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bench_linear(types[i], true, 1, FFN, 1536);
        bench_linear(types[i], false, 1, FFN, 1536);
        bench_linear(types[i], true, 128, FFN, 1536);
        bench_linear(types[i], false, 128, FFN, 1536);
    }
    bench_attention(KERN_TYPE_F32, false, 1, 1, CONTEXT);
    bench_attention(KERN_TYPE_F16, false, 1, 1, CONTEXT);
    bench_attention(KERN_TYPE_F32, false, 16, 1, 512);
    bench_attention(KERN_TYPE_F32, false, 1, 4, CONTEXT);
    bench_attention(KERN_TYPE_F32, true, 1, ROWS_MAX, ROWS_MAX);
    bench_attention(KERN_TYPE_F16, true, 1, ROWS_MAX, CONTEXT);
    bench_rows(1);
    bench_rows(ROWS_MAX);
    static const uint32_t vocabularies[] = {VOCABULARY, 151936};
    for (int i = 0; i < 2; i++) {
        uint32_t v = vocabularies[i];
        bench_sample("greedy", v, 0.0f, 1, 1.0f, 1.0f, 0);
        bench_sample("greedy, penalty", v, 0.0f, 1, 1.0f, 1.1f, 0);
        bench_sample("greedy, 5 logprobs", v, 0.0f, 1, 1.0f, 1.0f, 6);
        bench_sample("any", v, 0.8f, 0, 1.0f, 1.0f, 0);
        bench_sample("top_k 50", v, 0.8f, 50, 1.0f, 1.0f, 0);
        bench_sample("top_p 0.95", v, 0.8f, 0, 0.95f, 1.0f, 0);
        bench_sample("top_k 50, top_p 0.95", v, 0.8f, 50, 0.95f, 1.0f, 0);
    }
}

int
main(int argc, char **argv)
{
    kern_team_options_t options = {.thread_count = 0, .path = kern_path_best()};
    if (argc > 1) {
        options.thread_count = (uint32_t)strtoul(argv[1], NULL, 10);
    }
    if (argc > 2 && !kern_path_find(argv[2], &options.path)) {
        fprintf(stderr, "bench_kernels: no path '%s' on this machine\n", argv[2]);
        return EXIT_FAILURE;
    }
    activations =
        argc > 3 && strcmp(argv[3], "int8") == 0 ? KERN_ACTIVATIONS_INT8 : KERN_ACTIVATIONS_FLOAT;
    if (kern_team_new(&options, &team) != STATUS_OK) {
        fprintf(stderr, "bench_kernels: cannot make the team\n");
        return EXIT_FAILURE;
    }
    printf("bench_kernels: path %s, %u threads, %s activations\n", kern_path_name(options.path),
           kern_team_thread_count(team), activations == KERN_ACTIVATIONS_INT8 ? "int8" : "float");
    measure_ceilings(kern_team_thread_count(team));
    if (argc > 4) {
        bench_forwards();
    } else {
        bench_all();
    }
    kern_team_destroy(&team);
    return EXIT_SUCCESS;
}
