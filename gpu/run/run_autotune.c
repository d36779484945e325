/* Autotuning. */
#include "run_autotune.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "proto_require.h"
#include "run_executor_private.h"
#include "run_text.h"

enum {
    WARM_TOKENS = 32,      /* of the dummy extend */
    RUNS = 2,              /* of each size; the fastest counts */
    PADDING_PERCENT = 110, /* a top rung that costs more than this, beside the edge below it, is
                            * not worth padding to */
};

static const uint64_t budget_ns = 200000000; /* a model too slow for it keeps the default */

run_dummy_batch_t
run_dummy_batch(uint32_t num_tokens, uint32_t context_len, uint32_t request_count_max)
{
    require(num_tokens > 0);
    require(context_len > 0);
    require(request_count_max > 0);
    uint64_t room = (uint64_t)context_len * request_count_max;
    uint32_t tokens = num_tokens < room ? num_tokens : (uint32_t)room;
    return (run_dummy_batch_t){
        .token_count = tokens,
        .request_count = (uint32_t)(((uint64_t)tokens + context_len - 1) / context_len),
    };
}

uint32_t
run_dummy_batch_length(const run_dummy_batch_t *self, uint32_t request)
{
    require(request < self->request_count);
    uint32_t rest = self->token_count % self->request_count;
    return self->token_count / self->request_count + (request < rest ? 1 : 0);
}

uint32_t
run_autotune_refine(const uint32_t *ladder, uint32_t len, const bool *is_dense, uint32_t *out,
                    uint32_t capacity)
{
    require(len <= capacity);
    uint32_t count = 0;
    for (uint32_t i = 0; i < len; i++) {
        uint32_t first = i > 0 && is_dense[i] ? ladder[i - 1] + 1 : ladder[i];
        if (ladder[i] - first > capacity - count - (len - i)) {
            first = ladder[i];
        }
        for (uint32_t bs = first; bs <= ladder[i]; bs++) {
            out[count++] = bs;
        }
    }
    return count;
}

/* ---- the measuring --------------------------------------------------------------------------- */

static uint64_t
now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Room for the columns of one dummy launch. */
typedef struct {
    uint32_t *slots; /* [slot_count] 1, 2, ... */
    uint32_t *begins;
    uint32_t *lengths;
    uint8_t *samples;
    int32_t *tokens; /* [WARM_TOKENS] */
} columns_t;

static void
columns_fini(columns_t *columns)
{
    free(columns->slots);
    free(columns->begins);
    free(columns->lengths);
    free(columns->samples);
    free(columns->tokens);
}

static proto_status_t
columns_init(columns_t *columns, uint32_t slot_count)
{
    columns->slots = calloc(slot_count, sizeof *columns->slots);
    columns->begins = calloc(slot_count, sizeof *columns->begins);
    columns->lengths = calloc(slot_count, sizeof *columns->lengths);
    columns->samples = calloc(slot_count, sizeof *columns->samples);
    columns->tokens = calloc(WARM_TOKENS, sizeof *columns->tokens);
    if (columns->slots == NULL || columns->begins == NULL || columns->lengths == NULL ||
        columns->samples == NULL || columns->tokens == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        columns->slots[i] = i + 1;
    }
    return STATUS_OK;
}

/* Runs a launch to its end on empty tables: every write goes to the null page. */
static proto_status_t
time_launch(run_executor_t *self, const proto_step_launch_t *launch, uint64_t *best_ns)
{
    run_stage_t *stage = &self->buffers.stages[0];
    uint32_t rows = launch->extend_slots.count + launch->decode_slots.count;
    uint64_t begin_ns = now_ns();
    proto_status_t status = run_forward_step_stage(self->runner, launch, stage);
    if (status != STATUS_OK) {
        return status;
    }
    run_batch_t batch = {.stage = stage, .launch = launch};
    batch.tables = run_buffers_upload_tables(&self->buffers, stage, self->tables, rows);
    run_launched_t launched;
    status = run_forward_step_launch(self->runner, &batch, &launched);
    if (status == STATUS_OK) {
        status = device_stream_synchronize(self->stream);
    }
    uint64_t took_ns = now_ns() - begin_ns;
    *best_ns = took_ns < *best_ns ? took_ns : *best_ns;
    return status;
}

static proto_status_t
time_extend(run_executor_t *self, columns_t *columns, uint64_t *took_ns)
{
    const run_executor_options_t *o = &self->options;
    uint32_t wanted = WARM_TOKENS < o->step_tokens_max ? WARM_TOKENS : o->step_tokens_max;
    run_dummy_batch_t dummy = run_dummy_batch(wanted, o->model_len_max, o->slot_count);
    for (uint32_t i = 0; i < dummy.request_count; i++) {
        columns->lengths[i] = run_dummy_batch_length(&dummy, i);
        columns->samples[i] = 1;
    }
    proto_step_launch_t launch = {
        .width = o->width,
        .extend_slots = {columns->slots, dummy.request_count},
        .extend_begins = {columns->begins, dummy.request_count},
        .extend_lengths = {columns->lengths, dummy.request_count},
        .extend_samples = {columns->samples, dummy.request_count},
        .extend_tokens = {columns->tokens, dummy.token_count},
    };
    *took_ns = UINT64_MAX;
    return time_launch(self, &launch, took_ns);
}

static proto_status_t
time_decode(run_executor_t *self, const columns_t *columns, uint32_t bs, uint64_t *best_ns)
{
    proto_step_launch_t launch = {.width = self->options.width,
                                  .decode_slots = {columns->slots, bs}};
    *best_ns = UINT64_MAX;
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < RUNS; i++) {
        status = time_launch(self, &launch, best_ns);
    }
    return status;
}

enum { LINE_SIZE_BYTES = 512 };

/* The verdict of each interval; those for which there is no time left follow the one below.  All of
 * it is one line of the summary, which has other lines to hold. */
static proto_status_t
measure(run_executor_t *self, columns_t *columns, const uint32_t *ladder, uint32_t len,
        bool *is_dense)
{
    uint64_t begin_ns = now_ns();
    uint64_t extend_ns = 0;
    bool verdict = false;
    char line[LINE_SIZE_BYTES] = "";
    proto_status_t status = time_extend(self, columns, &extend_ns);
    for (uint32_t i = 1; status == STATUS_OK && i < len; i++) {
        is_dense[i] = verdict;
        if (ladder[i] - ladder[i - 1] == 1 || now_ns() - begin_ns > budget_ns) {
            continue;
        }
        uint64_t edge_ns = 0;
        uint64_t top_ns = 0;
        status = time_decode(self, columns, ladder[i - 1] + 1, &edge_ns);
        if (status == STATUS_OK) {
            status = time_decode(self, columns, ladder[i], &top_ns);
        }
        verdict = top_ns > edge_ns / 100 * PADDING_PERCENT;
        is_dense[i] = verdict;
        run_text_add(line, sizeof line, " %" PRIu32 "..%" PRIu32 " %.2f..%.2f%s", ladder[i - 1] + 1,
                     ladder[i], (double)edge_ns / 1e6, (double)top_ns / 1e6, verdict ? "*" : "");
    }
    if (line[0] != '\0') {
        run_executor_add_summary(self, "autotune: requests and ms of each interval%s%s\n",
                                 " (* = a graph for each size, else padding pays):", line);
    }
    return status;
}

/* What the dummy requests left by slot. */
static proto_status_t
forget(run_executor_t *self)
{
    const run_buffers_t *buffers = &self->buffers;
    size_t slots = (size_t)buffers->options.slot_count + 2;
    kern_fill_args_t lengths = {.to = buffers->valid_lengths,
                                .size_bytes = slots * sizeof(int32_t)};
    kern_fill_args_t inputs = {.to = buffers->future_inputs,
                               .size_bytes = slots * buffers->options.width * sizeof(int32_t)};
    device_ops(self->device)->fill(self->stream, &lengths);
    device_ops(self->device)->fill(self->stream, &inputs);
    return device_stream_synchronize(self->stream);
}

proto_status_t
run_autotune(run_executor_t *self)
{
    uint32_t len = 0;
    const uint32_t *ladder = run_forward_step_ladder(self->runner, &len);
    const run_executor_options_t *o = &self->options;
    /* Ranks would measure different times, and capture different sizes. */
    if (!o->autotune || self->comm != NULL || o->capture_sizes != NULL || o->no_padding ||
        len == 0) {
        return STATUS_OK;
    }
    uint64_t begin_ns = now_ns();
    columns_t columns = {.slots = NULL};
    bool is_dense[RUN_LADDER_LEN_MAX] = {false};
    proto_status_t status = columns_init(&columns, o->slot_count);
    if (status == STATUS_OK) {
        status = measure(self, &columns, ladder, len, is_dense);
    }
    if (status == STATUS_OK) {
        status = forget(self);
    }
    columns_fini(&columns);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t refined[RUN_LADDER_LEN_MAX];
    uint32_t count = run_autotune_refine(ladder, len, is_dense, refined, RUN_LADDER_LEN_MAX);
    run_executor_add_summary(self,
                             "autotune: %" PRIu32 " capture sizes up to %" PRIu32
                             " (default %" PRIu32
                             "), in %.0f ms; --no-autotune keeps the default\n",
                             count, refined[count - 1], len, (double)(now_ns() - begin_ns) / 1e6);
    run_forward_step_set_ladder(self->runner, refined, count);
    return STATUS_OK;
}
