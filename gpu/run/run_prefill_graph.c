/* The PrefillGraph. */
#include "run_prefill_graph.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"
#include "run_segments.h"

struct run_prefill_graph {
    run_prefill_graph_options_t options;
    device_pool_t *pool;
    device_pool_t *planted; /* the pool that a planted fault put aside; else NULL */
    size_t pool_bytes;
    run_segments_t *buckets[RUN_PREFILL_LADDER_LEN_MAX]; /* ascending rows */
    uint32_t bucket_count;
    const float *logits;
    const char *fault;
};

static uint32_t
step_after(uint32_t size)
{
    uint32_t step = RUN_PREFILL_BUCKET_MIN;
    while (step < 512 && step * 2 <= size / 8) {
        step *= 2;
    }
    return step;
}

uint32_t
run_prefill_graph_ladder(uint32_t tokens_max, uint32_t *out)
{
    uint32_t count = 0;
    for (uint32_t size = RUN_PREFILL_BUCKET_MIN;
         size <= tokens_max && count < RUN_PREFILL_LADDER_LEN_MAX - 1; size += step_after(size)) {
        out[count++] = size;
    }
    if (tokens_max > 0 && (count == 0 || out[count - 1] != tokens_max)) {
        out[count++] = tokens_max;
    }
    return count;
}

proto_status_t
run_prefill_graph_new(const run_prefill_graph_options_t *options, run_prefill_graph_t **out_p)
{
    require(options->tokens_max > 0);
    require(options->logit_rows_max > 0);
    run_prefill_graph_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    *out_p = self;
    return STATUS_OK;
}

void
run_prefill_graph_destroy(run_prefill_graph_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        run_prefill_graph_release(*self_p);
        free(*self_p);
        *self_p = NULL;
    }
}

void
run_prefill_graph_release(run_prefill_graph_t *self)
{
    proto_status_t status = device_stream_synchronize(self->options.stream);
    require(status == STATUS_OK || status == STATUS_ERR_DEVICE);
    for (uint32_t i = 0; i < self->bucket_count; i++) {
        run_segments_destroy(&self->buckets[i]);
    }
    self->bucket_count = 0;
    device_pool_destroy(&self->planted);
    device_pool_destroy(&self->pool);
    self->pool_bytes = 0;
    self->logits = NULL;
}

static uint32_t
logit_rows_of(const run_prefill_graph_t *self, uint32_t rows)
{
    return rows < self->options.logit_rows_max ? rows : self->options.logit_rows_max;
}

static void
record_forward(void *owner, const model_context_t *context)
{
    run_prefill_graph_t *self = owner;
    self->logits = model_forward(self->options.model, context);
}

static proto_status_t
capture_bucket(run_prefill_graph_t *self, const model_context_t *context, uint32_t rows,
               run_segments_t **out_p)
{
    run_segments_options_t options = {
        .model = self->options.model,
        .pool = self->pool,
        .rows = rows,
        .pool_name = "prefill.pool",
    };
    model_context_t recorded = *context;
    recorded.mode = BACKEND_MODE_EXTEND;
    recorded.rows = rows;
    recorded.logit_rows = logit_rows_of(self, rows);
    recorded.workspace = device_pool_memory(self->pool, &recorded.workspace_bytes);
    return run_segments_capture(&options, &recorded, record_forward, self, out_p);
}

proto_status_t
run_prefill_graph_capture(run_prefill_graph_t *self, const model_context_t *context,
                          uint32_t *bucket_p)
{
    require(self->bucket_count == 0);
    uint32_t ladder[RUN_PREFILL_LADDER_LEN_MAX];
    uint32_t count = run_prefill_graph_ladder(self->options.tokens_max, ladder);
    uint32_t top = ladder[count - 1];
    *bucket_p = top;
    self->pool_bytes = model_workspace_bytes(self->options.model, top, logit_rows_of(self, top));
    proto_status_t status = device_pool_new(self->options.device, self->pool_bytes, &self->pool);
    if (status != STATUS_OK) {
        return status;
    }
    device_pool_keep(self->pool);
    run_segments_t *captured[RUN_PREFILL_LADDER_LEN_MAX] = {NULL};
    uint32_t done = 0;
    for (uint32_t i = count; status == STATUS_OK && i > 0; i--) {
        *bucket_p = ladder[i - 1];
        status = capture_bucket(self, context, ladder[i - 1], &captured[i - 1]);
        done += status == STATUS_OK;
    }
    memcpy(self->buckets, captured + (count - done), done * sizeof *captured);
    self->bucket_count = done;
    if (status != STATUS_OK) {
        run_prefill_graph_release(self);
    }
    return status;
}

static const run_segments_t *
find_bucket(const run_prefill_graph_t *self, uint32_t rows)
{
    for (uint32_t i = 0; i < self->bucket_count; i++) {
        if (run_segments_rows(self->buckets[i]) >= rows) {
            return self->buckets[i];
        }
    }
    return NULL;
}

uint32_t
run_prefill_graph_bucket(const run_prefill_graph_t *self, uint32_t rows)
{
    const run_segments_t *bucket = find_bucket(self, rows);
    return bucket == NULL ? 0 : run_segments_rows(bucket);
}

/* NaN as float, huge as an index: what a replay reads without having written it shows. */
static void
poison(run_prefill_graph_t *self, device_stream_t *stream)
{
    kern_fill_args_t args = {.value = 0xff};
    args.to = device_pool_memory(self->pool, &args.size_bytes);
    device_ops(self->options.device)->fill(stream, &args);
}

proto_status_t
run_prefill_graph_forward(run_prefill_graph_t *self, const model_context_t *live,
                          const float **logits_p)
{
    const run_segments_t *bucket = find_bucket(self, live->rows);
    require(bucket != NULL);
    require(live->logit_rows <= self->options.logit_rows_max);
    if (self->options.graph_debug) {
        proto_status_t status = run_segments_verify(bucket, self->pool, &self->fault);
        if (status != STATUS_OK) {
            return status;
        }
        poison(self, live->stream);
    }
    *logits_p = self->logits;
    return run_segments_replay(bucket, live);
}

const char *
run_prefill_graph_fault(const run_prefill_graph_t *self)
{
    return self->fault;
}

uint32_t
run_prefill_graph_bucket_count(const run_prefill_graph_t *self)
{
    return self == NULL ? 0 : self->bucket_count;
}

size_t
run_prefill_graph_size_bytes(const run_prefill_graph_t *self)
{
    return self->pool_bytes;
}

device_pool_t *
run_prefill_graph_pool(const run_prefill_graph_t *self)
{
    return self->pool;
}

proto_status_t
run_prefill_graph_plant_move(run_prefill_graph_t *self)
{
    require(self->planted == NULL);
    self->planted = self->pool;
    return device_pool_new(self->options.device, self->pool_bytes, &self->pool);
}
