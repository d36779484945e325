/* The PrefillGraph. */
#include "run_prefill_graph.h"

#include <stdlib.h>
#include <string.h>

#include "model_narrowing.h"
#include "proto_require.h"
#include "run_segments.h"

struct run_prefill_graph {
    run_prefill_graph_options_t options;
    device_pool_t *pool;
    device_pool_t *planted; /* the pool that a planted fault put aside; else NULL */
    size_t pool_bytes;
    run_segments_t *buckets[RUN_PREFILL_LADDER_LEN_MAX]; /* ascending rows; of a narrowing model: */
    uint32_t bucket_count;                               /*   its encoder */
    run_segments_t *decoders[RUN_PREFILL_LADDER_LEN_MAX];
    uint32_t decoder_count;
    const model_narrowing_t *narrowing; /* NULL = the rows stay */
    float *encoded;                     /* in the pool, as all below: [top bucket][encoded_cols] */
    float *state;                       /* [state_rows][state_cols], where the narrowing lands */
    void *scratch;                      /* workspace of a stage, or of the whole forward */
    size_t scratch_bytes;
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
    self->narrowing = options->model->vtable->narrowing;
    require(self->narrowing == NULL || (options->bs_max > 0 && options->narrow_rows_max > 0));
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
    for (uint32_t i = 0; i < self->decoder_count; i++) {
        run_segments_destroy(&self->decoders[i]);
    }
    self->bucket_count = 0;
    self->decoder_count = 0;
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
    if (self->narrowing != NULL) {
        self->narrowing->encoder_forward(self->options.model, context, self->encoded);
    } else {
        self->logits = model_forward(self->options.model, context);
    }
}

static void
record_decoder(void *owner, const model_context_t *context)
{
    run_prefill_graph_t *self = owner;
    self->narrowing->decoder_forward(self->options.model, context, self->state);
}

static proto_status_t
capture_bucket(run_prefill_graph_t *self, const model_context_t *context, run_record_fn record,
               uint32_t rows, run_segments_t **out_p)
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
    recorded.workspace = self->scratch;
    recorded.workspace_bytes = self->scratch_bytes;
    return run_segments_capture(&options, &recorded, record, self, out_p);
}

/* The pool holds one forward: encoded rows, static state and scratch where the model narrows. */
static proto_status_t
make_pool(run_prefill_graph_t *self, uint32_t top)
{
    const run_prefill_graph_options_t *o = &self->options;
    size_t encoded_bytes = 0;
    size_t state_bytes = 0;
    self->scratch_bytes = model_workspace_bytes(o->model, top, logit_rows_of(self, top));
    if (self->narrowing != NULL) {
        uint32_t rows = top < o->narrow_rows_max ? top : o->narrow_rows_max;
        encoded_bytes = model_narrowing_rows_bytes(top, self->narrowing->encoded_cols(o->model));
        state_bytes = model_narrowing_rows_bytes(rows, self->narrowing->state_cols(o->model));
        size_t whole = self->narrowing->stage_bytes(o->model, top, 0);
        size_t narrowed = self->narrowing->stage_bytes(o->model, rows, logit_rows_of(self, rows));
        self->scratch_bytes = whole > narrowed ? whole : narrowed;
    }
    self->pool_bytes = encoded_bytes + state_bytes + self->scratch_bytes;
    proto_status_t status = device_pool_new(o->device, self->pool_bytes, &self->pool);
    if (status != STATUS_OK) {
        return status;
    }
    device_pool_keep(self->pool);
    size_t pool_bytes = 0;
    uint8_t *memory = device_pool_memory(self->pool, &pool_bytes);
    self->encoded = (float *)(void *)memory;
    self->state = (float *)(void *)(memory + encoded_bytes);
    self->scratch = memory + encoded_bytes + state_bytes;
    return STATUS_OK;
}

/* Largest first.  *bucket_p is the one in work. */
static proto_status_t
capture_ladder(run_prefill_graph_t *self, const model_context_t *context, run_record_fn record,
               uint32_t count, uint32_t *bucket_p)
{
    uint32_t ladder[RUN_PREFILL_LADDER_LEN_MAX] = {0};
    (void)run_prefill_graph_ladder(self->options.tokens_max, ladder);
    bool is_decoder = record == record_decoder;
    run_segments_t **captured = is_decoder ? self->decoders : self->buckets;
    for (uint32_t i = count; i > 0; i--) {
        *bucket_p = ladder[i - 1];
        proto_status_t status =
            capture_bucket(self, context, record, ladder[i - 1], &captured[i - 1]);
        if (status != STATUS_OK) {
            return status;
        }
        *(is_decoder ? &self->decoder_count : &self->bucket_count) = count;
    }
    return STATUS_OK;
}

proto_status_t
run_prefill_graph_capture(run_prefill_graph_t *self, const model_context_t *context,
                          uint32_t *bucket_p)
{
    require(self->bucket_count == 0);
    uint32_t ladder[RUN_PREFILL_LADDER_LEN_MAX] = {0};
    uint32_t count = run_prefill_graph_ladder(self->options.tokens_max, ladder);
    *bucket_p = ladder[count - 1];
    proto_status_t status = make_pool(self, ladder[count - 1]);
    if (status == STATUS_OK) {
        status = capture_ladder(self, context, record_forward, count, bucket_p);
    }
    if (status == STATUS_OK && self->narrowing != NULL) {
        /* One ladder serves every token bucket: a decoder graph depends on its rows alone. */
        uint32_t limit = self->narrowing->decoder_rows_per_request_max * self->options.bs_max;
        while (count > 0 && ladder[count - 1] > limit) {
            count--;
        }
        status = capture_ladder(self, context, record_decoder, count, bucket_p);
    }
    if (status != STATUS_OK) {
        run_prefill_graph_release(self);
    }
    return status;
}

static const run_segments_t *
find_bucket(run_segments_t *const *buckets, uint32_t count, uint32_t rows)
{
    for (uint32_t i = 0; i < count; i++) {
        if (run_segments_rows(buckets[i]) >= rows) {
            return buckets[i];
        }
    }
    return NULL;
}

uint32_t
run_prefill_graph_bucket(const run_prefill_graph_t *self, uint32_t rows)
{
    const run_segments_t *bucket = find_bucket(self->buckets, self->bucket_count, rows);
    return bucket == NULL ? 0 : run_segments_rows(bucket);
}

uint32_t
run_prefill_graph_decoder_bucket(const run_prefill_graph_t *self, uint32_t rows)
{
    const run_segments_t *bucket = find_bucket(self->decoders, self->decoder_count, rows);
    return bucket == NULL ? 0 : run_segments_rows(bucket);
}

uint32_t
run_prefill_graph_decoder_count(const run_prefill_graph_t *self)
{
    return self->decoder_count;
}

/* NaN as float, huge as an index: what a replay reads without having written it shows. */
static void
poison(run_prefill_graph_t *self, device_stream_t *stream)
{
    kern_fill_args_t args = {.value = 0xff};
    args.to = device_pool_memory(self->pool, &args.size_bytes);
    device_ops(self->options.device)->fill(stream, &args);
}

/* Encoder graph, eager narrowing, decoder graph (eager above its ladder), eager finish. */
static proto_status_t
forward_narrowed(run_prefill_graph_t *self, const run_segments_t *encoder,
                 const model_context_t *live)
{
    model_t *model = self->options.model;
    model_context_t whole = *live;
    whole.workspace = self->scratch;
    whole.workspace_bytes = self->scratch_bytes;
    model_context_t narrowed = model_narrowing_context(&whole);
    const run_segments_t *decoder = find_bucket(self->decoders, self->decoder_count, narrowed.rows);
    proto_status_t status = run_segments_replay(encoder, live);
    if (status != STATUS_OK) {
        return status;
    }
    self->narrowing->narrowing_forward(model, &whole, self->encoded, self->state);
    if (decoder == NULL) {
        self->narrowing->decoder_forward(model, &narrowed, self->state);
    } else {
        size_t cols = self->narrowing->state_cols(model);
        kern_fill_args_t tail = {
            .to = self->state + narrowed.rows * cols,
            .size_bytes = (run_segments_rows(decoder) - narrowed.rows) * cols * sizeof *self->state,
            .value = 0,
        };
        if (tail.size_bytes > 0) {
            device_ops(self->options.device)->fill(live->stream, &tail);
        }
        status = run_segments_replay(decoder, &narrowed);
    }
    if (status == STATUS_OK) {
        self->logits = self->narrowing->finish_forward(model, &narrowed, self->state);
    }
    return status;
}

static proto_status_t
verify_all(run_prefill_graph_t *self, const run_segments_t *bucket)
{
    proto_status_t status = run_segments_verify(bucket, self->pool, &self->fault);
    for (uint32_t i = 0; status == STATUS_OK && i < self->decoder_count; i++) {
        status = run_segments_verify(self->decoders[i], self->pool, &self->fault);
    }
    return status;
}

proto_status_t
run_prefill_graph_forward(run_prefill_graph_t *self, const model_context_t *live,
                          const float **logits_p)
{
    const run_segments_t *bucket = find_bucket(self->buckets, self->bucket_count, live->rows);
    require(bucket != NULL);
    require(live->logit_rows <= self->options.logit_rows_max);
    if (self->options.graph_debug) {
        proto_status_t status = verify_all(self, bucket);
        if (status != STATUS_OK) {
            return status;
        }
        poison(self, live->stream);
    }
    proto_status_t status = self->narrowing != NULL ? forward_narrowed(self, bucket, live)
                                                    : run_segments_replay(bucket, live);
    *logits_p = self->logits;
    return status;
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
