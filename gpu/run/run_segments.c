/* Breakable graphs. */
#include "run_segments.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

/* A segment, then a break; either may be missing. */
typedef struct {
    device_graph_t *graph;
    model_break_t part; /* args are a copy of ours */
    uint64_t digest;    /* of the args */
} piece_t;

struct run_segments {
    run_segments_options_t options;
    void *pool_memory; /* as the capture saw it */
    size_t pool_bytes;
    piece_t *pieces;
    uint32_t count;
    uint32_t capacity;
};

typedef struct {
    run_segments_t *self;
    device_stream_t *stream;
    proto_status_t status; /* the first failure */
} capture_t;

static uint64_t
digest_of(const void *args, size_t size_bytes)
{
    const uint8_t *bytes = args;
    uint64_t digest = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size_bytes; i++) {
        digest = (digest ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return digest;
}

static piece_t *
add_piece(run_segments_t *self)
{
    if (self->count == self->capacity) {
        uint32_t capacity = self->capacity == 0 ? 16 : self->capacity * 2;
        piece_t *pieces = realloc(self->pieces, capacity * sizeof *pieces);
        if (pieces == NULL) {
            return NULL;
        }
        self->pieces = pieces;
        self->capacity = capacity;
    }
    piece_t *piece = &self->pieces[self->count++];
    memset(piece, 0, sizeof *piece);
    return piece;
}

/* Ends the segment in work; `part` NULL: nothing follows. */
static proto_status_t
end_segment(capture_t *capture, const model_break_t *part)
{
    run_segments_t *self = capture->self;
    device_graph_t *graph = NULL;
    proto_status_t status = device_capture_end(capture->stream, &graph);
    if (status != STATUS_OK) {
        return status;
    }
    piece_t *piece = add_piece(self);
    if (piece == NULL) {
        device_graph_destroy(&graph);
        return STATUS_ERR_NO_MEMORY;
    }
    if (device_graph_launch_count(graph) == 0) {
        device_graph_destroy(&graph);
    }
    piece->graph = graph;
    if (part == NULL) {
        return STATUS_OK;
    }
    const uint8_t *end = (const uint8_t *)self->pool_memory + self->pool_bytes;
    const uint8_t *output = (const uint8_t *)part->output;
    size_t output_bytes = device_form_size_bytes(self->options.model->device, part->output_form,
                                                 self->options.rows, (uint32_t)part->output_stride);
    require(output == NULL || (output >= (const uint8_t *)self->pool_memory &&
                               output_bytes <= (size_t)(end - output)));
    void *args = malloc(part->args_size_bytes + 1);
    if (args == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    memcpy(args, part->args, part->args_size_bytes);
    piece->part = *part;
    piece->part.args = args;
    piece->digest = digest_of(args, part->args_size_bytes);
    return STATUS_OK;
}

/* After a failure the forward still launches to its end: into the pool, which nobody reads then. */
static void
on_break(void *owner, const model_break_t *part)
{
    capture_t *capture = owner;
    if (capture->status != STATUS_OK) {
        return;
    }
    capture->status = end_segment(capture, part);
    if (capture->status == STATUS_OK) {
        capture->status = device_capture_begin(capture->stream, capture->self->options.pool);
    }
}

proto_status_t
run_segments_capture(const run_segments_options_t *options, const model_context_t *context,
                     run_record_fn record, void *owner, run_segments_t **out_p)
{
    require(options->rows > 0);
    require(context->rows == options->rows);
    run_segments_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    self->pool_memory = device_pool_memory(options->pool, &self->pool_bytes);
    capture_t capture = {.self = self, .stream = context->stream};
    const model_breaker_t breaker = {.on_break = on_break, .owner = &capture};
    model_context_t recorded = *context;
    recorded.breaker = &breaker;
    capture.status = device_capture_begin(context->stream, options->pool);
    if (capture.status == STATUS_OK) {
        record(owner, &recorded);
    }
    if (capture.status == STATUS_OK) {
        capture.status = end_segment(&capture, NULL);
    }
    if (capture.status != STATUS_OK) {
        run_segments_destroy(&self);
        return capture.status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
run_segments_destroy(run_segments_t **self_p)
{
    require(self_p != NULL);
    run_segments_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < self->count; i++) {
        device_graph_destroy(&self->pieces[i].graph);
        free((void *)self->pieces[i].part.args);
    }
    free(self->pieces);
    free(self);
    *self_p = NULL;
}

static void
zero(const run_segments_t *self, device_stream_t *stream, void *to, size_t size_bytes)
{
    kern_fill_args_t args = {.to = to, .size_bytes = size_bytes, .value = 0};
    device_ops(self->options.model->device)->fill(stream, &args);
}

/* Rows past the live ones of what a break puts out: where one row lies after the other they are
 * zeroed alone, afterwards; in another form all of it is, before the break runs. */
static void
run_break(const run_segments_t *self, const model_break_t *part, const model_context_t *live)
{
    device_t *device = self->options.model->device;
    uint32_t rows = self->options.rows;
    bool is_padded = part->output != NULL && live->rows < rows;
    if (is_padded && part->output_form != KERN_FORM_ROWS) {
        zero(self, live->stream, part->output,
             device_form_size_bytes(device, part->output_form, rows,
                                    (uint32_t)part->output_stride));
    }
    part->run(self->options.model, live, part->args);
    if (is_padded && part->output_form == KERN_FORM_ROWS) {
        size_t row_bytes = part->output_stride * sizeof *part->output;
        zero(self, live->stream, part->output + live->rows * part->output_stride,
             (rows - live->rows) * row_bytes);
    }
}

proto_status_t
run_segments_replay(const run_segments_t *self, const model_context_t *live)
{
    require(live->rows <= self->options.rows);
    model_context_t context = *live;
    context.breaker = NULL;
    context.workspace = NULL;
    context.workspace_bytes = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const piece_t *piece = &self->pieces[i];
        if (piece->graph != NULL) {
            proto_status_t status = device_graph_replay(piece->graph, live->stream);
            if (status != STATUS_OK) {
                return status;
            }
        }
        if (piece->part.run != NULL) {
            run_break(self, &piece->part, &context);
        }
    }
    return STATUS_OK;
}

proto_status_t
run_segments_verify(const run_segments_t *self, const device_pool_t *pool, const char **path_p)
{
    size_t pool_bytes = 0;
    if (device_pool_memory(pool, &pool_bytes) != self->pool_memory ||
        pool_bytes != self->pool_bytes) {
        *path_p = self->options.pool_name;
        return STATUS_ERR_INTERNAL;
    }
    for (uint32_t i = 0; i < self->count; i++) {
        const model_break_t *part = &self->pieces[i].part;
        if (part->run != NULL &&
            digest_of(part->args, part->args_size_bytes) != self->pieces[i].digest) {
            *path_p = "prefill.break.args";
            return STATUS_ERR_INTERNAL;
        }
    }
    return STATUS_OK;
}

uint32_t
run_segments_rows(const run_segments_t *self)
{
    return self->options.rows;
}

uint32_t
run_segments_graph_count(const run_segments_t *self)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        count += self->pieces[i].graph != NULL;
    }
    return count;
}

uint32_t
run_segments_break_count(const run_segments_t *self)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        count += self->pieces[i].part.run != NULL;
    }
    return count;
}
