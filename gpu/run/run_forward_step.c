/* The ForwardStepRunner.
 *
 * A decode body - forward, sampling, commit - is written once.  What stays graph-only: padding to
 * the ladder, the lookup of the graph, the pointer guard.
 *
 * Long because the steps that replayed and eager forwards share stand in one place. */
#include "run_forward_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"
#include "run_guard.h"
#include "run_narrow.h"
#include "run_stage.h"
#include "run_verify.h"

enum { FAULT_SIZE_BYTES = 240 };

typedef struct {
    run_graph_key_t key;
    device_graph_t *graph;
    run_guard_t *guard;
    const float *logits;
} captured_t;

struct run_forward_step {
    run_forward_step_options_t options;
    captured_t captured[RUN_LADDER_LEN_MAX]; /* ascending bs */
    uint32_t captured_count;
    device_pool_t *pool;
    size_t pool_bytes;
    bool graphs_off;              /* captured, but not to be used now */
    run_prefill_graph_t *prefill; /* NULL = none */
    run_narrow_t *narrow;         /* NULL = the model's rows stay */
    uint32_t failed_bucket;
    uint32_t ladder[RUN_LADDER_LEN_MAX]; /* sizes to capture, ascending */
    uint32_t ladder_len;
    char fault[FAULT_SIZE_BYTES]; /* a sentence; "" = none */
};

/* Rows of a workspace, and where it is. */
typedef struct {
    void *memory;
    size_t size_bytes;
} room_t;

/* The row plan of a model that narrows, and the prefill graph. */
static proto_status_t
make_prefill(run_forward_step_t *self)
{
    const run_forward_step_options_t *o = &self->options;
    const run_buffers_options_t *sizes = &o->buffers->options;
    const model_narrowing_t *narrowing = o->model->vtable->narrowing;
    if (narrowing != NULL) {
        proto_status_t status =
            run_narrow_new(sizes, narrowing->decoder_rows_per_request_max, &self->narrow);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (o->prefill != NULL) {
        self->prefill = o->prefill;
        return STATUS_OK;
    }
    if (o->prefill_tokens_max == 0) {
        return STATUS_OK;
    }
    run_prefill_graph_options_t prefill = {
        .device = o->device,
        .stream = o->stream,
        .model = o->model,
        .tokens_max = o->prefill_tokens_max,
        .logit_rows_max = sizes->bs_max * sizes->width,
        .bs_max = sizes->bs_max,
        .narrow_rows_max = self->narrow == NULL ? 0 : run_narrow_rows_max(self->narrow),
        .graph_debug = o->graph_debug,
    };
    return run_prefill_graph_new(&prefill, &self->prefill);
}

proto_status_t
run_forward_step_new(const run_forward_step_options_t *options, run_forward_step_t **out_p)
{
    require(options->capture_size_count <= RUN_LADDER_LEN_MAX);
    run_forward_step_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    const run_buffers_options_t *sizes = &options->buffers->options;
    self->ladder_len = options->capture_size_count;
    if (self->ladder_len > 0) {
        memcpy(self->ladder, options->capture_sizes, self->ladder_len * sizeof *self->ladder);
        require(self->ladder[self->ladder_len - 1] <= sizes->bs_max);
    }
    self->options.capture_sizes = NULL;
    proto_status_t status = run_forward_step_reserve(self);
    if (status == STATUS_OK) {
        status = make_prefill(self);
    }
    if (status != STATUS_OK) {
        run_narrow_destroy(&self->narrow);
        free(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
run_forward_step_reserve(run_forward_step_t *self)
{
    const run_buffers_options_t *sizes = &self->options.buffers->options;
    size_t size_bytes = model_workspace_bytes(self->options.model, sizes->step_tokens_max,
                                              sizes->bs_max * sizes->width);
    return run_workspace_reserve(self->options.workspace, "the eager forward", size_bytes);
}

const uint32_t *
run_forward_step_ladder(const run_forward_step_t *self, uint32_t *len_p)
{
    *len_p = self->ladder_len;
    return self->ladder;
}

void
run_forward_step_set_ladder(run_forward_step_t *self, const uint32_t *sizes, uint32_t count)
{
    require(self->captured_count == 0);
    require(count > 0);
    require(count <= RUN_LADDER_LEN_MAX);
    require(sizes[count - 1] == self->ladder[self->ladder_len - 1]);
    memcpy(self->ladder, sizes, count * sizeof *sizes);
    self->ladder_len = count;
}

static room_t
eager_room(const run_forward_step_t *self)
{
    const run_workspace_t *workspace = self->options.workspace;
    return (room_t){.memory = workspace->memory, .size_bytes = workspace->size_bytes};
}

void
run_forward_step_destroy(run_forward_step_t **self_p)
{
    require(self_p != NULL);
    run_forward_step_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    run_forward_step_release(self);
    if (self->options.prefill == NULL) {
        run_prefill_graph_destroy(&self->prefill);
    }
    run_narrow_destroy(&self->narrow);
    free(self);
    *self_p = NULL;
}

void
run_forward_step_release(run_forward_step_t *self)
{
    proto_status_t status = device_stream_synchronize(self->options.stream);
    require(status == STATUS_OK || status == STATUS_ERR_DEVICE);
    for (uint32_t i = 0; i < self->captured_count; i++) {
        device_graph_destroy(&self->captured[i].graph);
        run_guard_destroy(&self->captured[i].guard);
    }
    self->captured_count = 0;
    device_pool_destroy(&self->pool);
    self->pool_bytes = 0;
    if (self->prefill != NULL && self->options.prefill == NULL) {
        run_prefill_graph_release(self->prefill);
    }
}

void
run_forward_step_set_backend(run_forward_step_t *self, backend_t *backend)
{
    require(backend != NULL);
    self->options.backend = backend;
}

/* The forward of `bs` decode requests, their verification and the commit of what they accepted: the
 * same launches whether they are recorded or run. */
static const float *
decode_body(run_forward_step_t *self, uint32_t bs, room_t room)
{
    const run_forward_step_options_t *o = &self->options;
    run_buffers_t *buffers = o->buffers;
    uint32_t width = o->width;
    model_context_t context = {
        .stream = o->stream,
        .backend = o->backend,
        .mode = BACKEND_MODE_DECODE,
        .rows = bs * width,
        .input_ids = buffers->input_ids,
        .positions = buffers->positions,
        .logit_rows = bs * width,
        .gather_rows = NULL,
        .workspace = room.memory,
        .workspace_bytes = room.size_bytes,
        .progress = o->progress,
        .capture = o->decode_capture,
    };
    const float *logits = model_forward(o->model, &context);
    run_window_t window = {.logits = logits, .bs = bs};
    run_verify_decodes(o, &window);
    return logits;
}

/* One sampler variant serves every batch: what a slot wants (penalties, logprobs, bias) is read
 * from the pool when the operation runs, and a slot that wants none of it pays for none of it. */
static run_graph_key_t
key_of(const run_forward_step_t *self, uint32_t bs)
{
    return (run_graph_key_t){
        .sampler_variant = RUN_SAMPLER_POOL,
        .width = self->options.width,
        .bs = bs,
    };
}

static proto_status_t
capture_one(run_forward_step_t *self, uint32_t bs, captured_t *out)
{
    const run_forward_step_options_t *o = &self->options;
    backend_tables_t placeholder = run_buffers_placeholder_tables(o->buffers);
    proto_status_t status =
        backend_capture_forward_metadata(o->backend, bs, o->buffers->request_slots,
                                         o->buffers->seq_lens, &placeholder);
    if (status != STATUS_OK) {
        return status;
    }
    room_t room = {0};
    room.memory = device_pool_memory(self->pool, &room.size_bytes);
    status = device_capture_begin(o->stream, self->pool);
    if (status != STATUS_OK) {
        return status;
    }
    out->key = key_of(self, bs);
    out->logits = decode_body(self, bs, room);
    status = device_capture_end(o->stream, &out->graph);
    if (status != STATUS_OK) {
        return status;
    }
    status = run_guard_new(o->backend, bs, &out->guard);
    if (status != STATUS_OK) {
        device_graph_destroy(&out->graph);
    }
    return status;
}

static proto_status_t
capture_decode(run_forward_step_t *self)
{
    const run_forward_step_options_t *o = &self->options;
    const uint32_t *ladder = self->ladder;
    uint32_t count = self->ladder_len;
    require(self->captured_count == 0);
    if (count == 0) {
        return STATUS_OK;
    }
    uint32_t rows = ladder[count - 1] * o->width;
    self->pool_bytes = model_workspace_bytes(o->model, rows, rows);
    proto_status_t status = device_pool_new(o->device, self->pool_bytes, &self->pool);
    captured_t captured[RUN_LADDER_LEN_MAX] = {0};
    uint32_t done = 0;
    for (uint32_t i = count; status == STATUS_OK && i > 0; i--) {
        status = capture_one(self, ladder[i - 1], &captured[i - 1]);
        done += status == STATUS_OK;
    }
    memcpy(self->captured, captured + (count - done), done * sizeof *captured);
    self->captured_count = done;
    return status;
}

/* What a forward over rows of prompts is given, but for the rows. */
static model_context_t
extend_context(run_forward_step_t *self)
{
    const run_forward_step_options_t *o = &self->options;
    return (model_context_t){
        .stream = o->stream,
        .backend = o->backend,
        .mode = BACKEND_MODE_EXTEND,
        .input_ids = o->buffers->input_ids,
        .positions = o->buffers->positions,
        .gather_rows = o->buffers->header.gather_rows,
        .workspace = eager_room(self).memory,
        .workspace_bytes = eager_room(self).size_bytes,
        .progress = o->progress,
        .capture = o->capture,
    };
}

proto_status_t
run_forward_step_capture(run_forward_step_t *self)
{
    proto_status_t status = capture_decode(self);
    if (status == STATUS_OK && self->prefill != NULL && self->options.prefill == NULL) {
        model_context_t context = extend_context(self);
        status = run_prefill_graph_capture(self->prefill, &context, &self->failed_bucket);
    }
    if (status != STATUS_OK) {
        run_forward_step_release(self);
        return status;
    }
    self->failed_bucket = 0;
    return STATUS_OK;
}

static captured_t *
find_graph(run_forward_step_t *self, uint32_t bs)
{
    run_graph_key_t wanted = key_of(self, bs);
    for (uint32_t i = 0; !self->graphs_off && i < self->captured_count; i++) {
        const run_graph_key_t *key = &self->captured[i].key;
        if (key->sampler_variant == wanted.sampler_variant && key->width == wanted.width &&
            (key->bs == bs || (key->bs > bs && !self->options.no_padding))) {
            return &self->captured[i];
        }
    }
    return NULL;
}

uint32_t
run_forward_step_padded_bs(const run_forward_step_t *self, uint32_t bs)
{
    const captured_t *captured = find_graph((run_forward_step_t *)self, bs);
    return captured == NULL ? 0 : captured->key.bs;
}

proto_status_t
run_forward_step_stage(const run_forward_step_t *self, const proto_step_launch_t *launch,
                       run_stage_t *stage)
{
    return run_stage_fill(&self->options.buffers->options, launch, stage);
}

static void
fill_decode(run_forward_step_t *self, uint32_t first, uint32_t first_row, uint32_t bs,
            uint32_t actual_bs)
{
    run_decode_fill_t fill = {
        .first = first,
        .first_row = first_row,
        .bs = bs,
        .actual_bs = actual_bs,
        .width = self->options.width,
        .vocabulary = model_config(self->options.model)->vocab_size,
    };
    run_buffers_fill_decode(self->options.buffers, &fill);
}

static proto_status_t
note_moved(run_forward_step_t *self, const char *what, const char *path)
{
    if (path != NULL) {
        (void)snprintf(self->fault, sizeof self->fault,
                       "%s moved: %s is not where the capture saw it", what, path);
    }
    return STATUS_ERR_INTERNAL;
}

/* An eager step must not read what lies in the memory of the graphs' pool. */
static proto_status_t
check_leaks(run_forward_step_t *self, uint32_t bs)
{
    if (!self->options.graph_debug || self->pool == NULL) {
        return STATUS_OK;
    }
    char path[BACKEND_PATH_SIZE_BYTES];
    proto_status_t status = run_guard_check_eager(self->options.backend, bs, self->pool, path);
    if (status != STATUS_OK) {
        (void)snprintf(self->fault, sizeof self->fault,
                       "an eager step's metadata leaked from a capture: %s lies in the memory of "
                       "the graphs' pool",
                       path);
    }
    return status;
}

/* Replay and eager decode: the refresh, then the graph or the body it recorded. */
static proto_status_t
launch_decode(run_forward_step_t *self, const run_batch_t *batch, run_launched_t *out)
{
    const run_forward_step_options_t *o = &self->options;
    uint32_t actual_bs = batch->launch->decode_slots.count;
    captured_t *captured = find_graph(self, actual_bs);
    uint32_t bs = captured == NULL ? actual_bs : captured->key.bs;
    run_buffers_upload(o->buffers, batch->stage, 0);
    if (o->graph_debug) {
        run_buffers_poison_tails(o->buffers, bs, o->width);
    }
    fill_decode(self, 0, 0, bs, actual_bs);
    backend_refresh_t refresh = {
        .bs = bs,
        .actual_bs = actual_bs,
        .request_slots = o->buffers->request_slots,
        .seq_lens = o->buffers->seq_lens,
        .mode = BACKEND_MODE_DECODE,
        .tables = &batch->tables,
        .num_extends = 0,
        .for_graph_replay = captured != NULL,
    };
    proto_status_t status = backend_refresh_decode_metadata(o->backend, &refresh);
    if (status != STATUS_OK) {
        return status;
    }
    out->sampled_extends = 0;
    out->request_count = actual_bs;
    out->logit_rows = actual_bs * o->width;
    if (captured == NULL) {
        status = check_leaks(self, bs);
        if (status != STATUS_OK) {
            return status;
        }
        out->mode =
            bs > run_forward_step_ladder_top(self) && self->captured_count > 0 && !self->graphs_off
                ? PROTO_STEP_DECODE_ABOVE
                : PROTO_STEP_DECODE_EAGER;
        out->logits = decode_body(self, bs, eager_room(self));
        run_verify_commit_states(o, actual_bs, 0, 0);
        return STATUS_OK;
    }
    if (o->graph_debug) {
        const char *path = NULL;
        status = run_guard_verify(captured->guard, o->backend, &path);
        if (status != STATUS_OK) {
            return note_moved(self, "a captured graph's metadata", path);
        }
    }
    out->mode = PROTO_STEP_DECODE_GRAPH;
    out->logits = captured->logits;
    status = device_graph_replay(captured->graph, o->stream);
    if (status == STATUS_OK) {
        run_verify_commit_states(o, actual_bs, 0, 0);
    }
    return status;
}

/* Bounded replay and prompt lengths: facts that no node of this tree plans from yet.  A launch does
 * not carry the length of a prompt, so 0 says that it is not known. */
static const int32_t no_facts[PROTO_ROWS_MAX];

static proto_status_t
init_metadata(run_forward_step_t *self, const run_batch_t *batch, uint32_t bs, uint32_t extends)
{
    run_buffers_t *buffers = self->options.buffers;
    const run_header_t *staged = &batch->stage->header;
    bool with_prefix = false;
    for (uint32_t i = 0; i < extends; i++) {
        with_prefix = with_prefix || staged->prefix_lens[i] > 0;
    }
    backend_extend_t extend = {
        .bs = bs,
        .num_extends = extends,
        .request_slots = buffers->request_slots,
        .seq_lens = buffers->seq_lens,
        .mode = extends == bs ? BACKEND_MODE_EXTEND : BACKEND_MODE_MIXED,
        .tables = &batch->tables,
        .extend_seq_lens = buffers->header.extend_lens,
        .extend_prefix_lens = buffers->header.prefix_lens,
        .extend_cu_lens = buffers->header.cu_lens,
        .extend_seq_lens_host = staged->extend_lens,
        .extend_prefix_lens_host = staged->prefix_lens,
        .extend_replay_lens_host = no_facts,
        .extend_prompt_lens_host = no_facts,
        .extend_with_prefix = with_prefix,
    };
    return backend_init_forward_metadata(self->options.backend, &extend);
}

/* Prefill requests sample, decode requests verify; then both commit. */
static void
finish_extend(run_forward_step_t *self, const float *logits, uint32_t extends, uint32_t sampled,
              uint32_t decodes, uint32_t extend_tokens)
{
    const run_forward_step_options_t *o = &self->options;
    run_verify_extends(o, logits, extends, sampled);
    run_window_t window = {
        .logits = logits + (size_t)sampled * model_config(o->model)->vocab_size,
        .bs = decodes,
        .extends = extends,
        .sampled_extends = sampled,
        .extend_tokens = extend_tokens,
    };
    run_verify_decodes(o, &window);
}

/* From the bucket that holds the rows, or eagerly: the same launches. */
static proto_status_t
extend_forward(run_forward_step_t *self, const model_context_t *context, run_launched_t *out)
{
    bool is_mixed = context->mode == BACKEND_MODE_MIXED;
    if (self->prefill == NULL || self->graphs_off ||
        run_prefill_graph_bucket(self->prefill, context->rows) == 0) {
        out->mode = is_mixed ? PROTO_STEP_MIXED : PROTO_STEP_EXTEND;
        out->logits = model_forward(self->options.model, context);
        return STATUS_OK;
    }
    out->mode = is_mixed ? PROTO_STEP_MIXED_GRAPH : PROTO_STEP_EXTEND_GRAPH;
    proto_status_t status = run_prefill_graph_forward(self->prefill, context, &out->logits);
    if (status == STATUS_ERR_INTERNAL) {
        return note_moved(self, "a captured prefill graph's memory",
                          run_prefill_graph_fault(self->prefill));
    }
    return status;
}

static proto_status_t
launch_extend(run_forward_step_t *self, const run_batch_t *batch, run_launched_t *out)
{
    const run_forward_step_options_t *o = &self->options;
    run_buffers_t *buffers = o->buffers;
    uint32_t extends = batch->launch->extend_slots.count;
    uint32_t decodes = batch->launch->decode_slots.count;
    uint32_t tokens = batch->launch->extend_tokens.count;
    uint32_t width = o->width;
    uint32_t sampled = 0;
    for (uint32_t i = 0; i < extends; i++) {
        sampled += batch->launch->extend_samples.data[i] != 0;
    }
    run_buffers_upload(buffers, batch->stage, tokens);
    run_buffers_fill_extend(buffers, extends);
    if (decodes > 0) {
        fill_decode(self, extends, tokens, decodes, decodes);
    }
    proto_status_t status = init_metadata(self, batch, extends + decodes, extends);
    if (status != STATUS_OK) {
        return status;
    }
    model_context_t context = extend_context(self);
    context.mode = decodes == 0 ? BACKEND_MODE_EXTEND : BACKEND_MODE_MIXED;
    context.rows = tokens + decodes * width;
    context.logit_rows = sampled + decodes * width;
    context.view = self->narrow == NULL ? NULL : run_narrow_plan(self->narrow, batch->launch);
    status = extend_forward(self, &context, out);
    if (status != STATUS_OK) {
        return status;
    }
    finish_extend(self, out->logits, extends, sampled, decodes, tokens);
    run_verify_commit_states(o, decodes, extends, sampled);
    out->sampled_extends = sampled;
    out->request_count = sampled + decodes;
    out->logit_rows = sampled + decodes * width;
    return STATUS_OK;
}

proto_status_t
run_forward_step_launch(run_forward_step_t *self, const run_batch_t *batch, run_launched_t *out)
{
    if (batch->launch->extend_slots.count > 0) {
        return launch_extend(self, batch, out);
    }
    if (batch->launch->decode_slots.count > 0) {
        return launch_decode(self, batch, out);
    }
    *out = (run_launched_t){.mode = PROTO_STEP_IDLE};
    return STATUS_OK;
}

void
run_forward_step_set_graphs(run_forward_step_t *self, bool on)
{
    self->graphs_off = !on;
}

const char *
run_forward_step_fault(const run_forward_step_t *self)
{
    return self->fault;
}

uint32_t
run_forward_step_ladder_top(const run_forward_step_t *self)
{
    return self->captured_count == 0 ? 0 : self->captured[self->captured_count - 1].key.bs;
}

uint32_t
run_forward_step_graph_count(const run_forward_step_t *self)
{
    return self->captured_count;
}

size_t
run_forward_step_size_bytes(const run_forward_step_t *self)
{
    size_t prefill = self->prefill == NULL ? 0 : run_prefill_graph_size_bytes(self->prefill);
    return self->options.workspace->size_bytes + self->pool_bytes + prefill;
}

const run_forward_step_options_t *
run_forward_step_options(const run_forward_step_t *self)
{
    return &self->options;
}

device_pool_t *
run_forward_step_pool(const run_forward_step_t *self)
{
    return self->pool;
}

run_prefill_graph_t *
run_forward_step_prefill(const run_forward_step_t *self)
{
    return self->prefill;
}

uint32_t
run_forward_step_failed_bucket(const run_forward_step_t *self)
{
    return self->failed_bucket;
}
