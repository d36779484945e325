/* Rounds of a block drafter: context in, block out. */
#include "draft_block.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto_require.h"

typedef struct {
    draft_t base; /* first */
    draft_frame_t frame;
    bool is_markov;
    int32_t mask_id;
    uint32_t block_width;      /* rows of a block: N, or N - 1 with a Markov head */
    int32_t *locations;        /* device, [bs_max * width]: of a decode round's context */
    int32_t *block_ids;        /* [bs_max * block_width] */
    int32_t *block_positions;  /* [bs_max * block_width] */
    model_capture_sink_t sink; /* of target forwards of width N */
    float *projected;          /* device, [bs_max * width][hidden]: fc of the taps, tap by tap */
    void *projection_workspace;
    size_t projection_workspace_bytes;
    int32_t *logit_rows; /* [bs_max * (width - 1)]: rows of the block that propose */
} drafter_t;

static void
drafter_destroy(draft_t *base)
{
    drafter_t *self = (drafter_t *)base;
    device_t *device = self->frame.options.device;
    draft_frame_fini(&self->frame);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->projected);
    device_release(device, DEVICE_MEMORY_DEVICE, &self->projection_workspace);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->locations);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->block_ids);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->block_positions);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->logit_rows);
    free(self);
}

/* The gate of incremental projection: pure decode rounds of the drafter's own width.  Both sides
 * ask it, so that no round is armed on one of them and drained on the other. */
static bool
overlap_allowed(const drafter_t *self, backend_mode_t mode, uint32_t width)
{
    return mode == BACKEND_MODE_DECODE && width == self->frame.options.width;
}

/* A tap of the target's rows is there: its share of the projection. */
static void
on_target_capture(void *owner, const model_context_t *context, uint32_t tap, const float *rows,
                  size_t stride)
{
    drafter_t *self = owner;
    const draft_options_t *o = &self->frame.options;
    require(context->rows <= o->bs_max * o->width);
    kern_linear_args_t args = {
        .input = rows,
        .input_stride = stride,
        .rows = context->rows,
        .weight_count = 1,
        .weights = {draft_block_fc_part(self->frame.model, tap)},
        .outputs = {self->projected},
        .output_strides = {model_config(self->frame.model)->hidden_size},
        .accumulate = tap > 0,
        .workspace = self->projection_workspace,
        .workspace_size_bytes = self->projection_workspace_bytes,
    };
    device_ops(o->device)->linear(context->stream, &args);
}

static const model_capture_sink_t *
drafter_prepare(draft_t *base, backend_mode_t mode, uint32_t width)
{
    drafter_t *self = (drafter_t *)base;
    if (!overlap_allowed(self, mode, width)) {
        return NULL;
    }
    self->frame.is_armed = true;
    return &self->sink;
}

/* The taps of the round's rows, or what they were projected to, at the slots of their positions. */
static void
inject(drafter_t *self, backend_mode_t mode, uint32_t rows, const int32_t *locations,
       bool is_projected, draft_room_t room)
{
    draft_frame_t *frame = &self->frame;
    model_draft_io_t io = {
        .hidden = is_projected ? self->projected : frame->buffers.hidden,
        .hidden_stride =
            is_projected ? model_config(frame->model)->hidden_size : frame->shape.hidden_cols,
        .is_taps = true,
        .is_projected = is_projected,
        .locations = locations,
    };
    model_context_t context = draft_frame_context(frame, mode, rows, room);
    context.draft = &io;
    (void)model_forward(frame->model, &context);
}

static void
choose(drafter_t *self, const float *logits, uint32_t column, uint32_t bs, size_t stride)
{
    draft_frame_t *frame = &self->frame;
    uint32_t count = frame->options.width - 1;
    bool is_whole = !self->is_markov;
    kern_draft_argmax_args_t args = {
        .logits = logits,
        .stride = stride,
        .rows = is_whole ? bs * count : bs,
        .vocabulary = model_config(frame->model)->vocab_size,
        .ids = frame->buffers.candidates + column,
        .id_stride = is_whole ? 1 : count,
        .copies = is_whole ? NULL : frame->buffers.next,
        .copy_stride = 1,
    };
    device_ops(frame->options.device)->draft_argmax(frame->options.stream, &args);
}

/* Behind the refresh: one forward, one choice (or one for each candidate). */
static void
propose_block(drafter_t *self, uint32_t bs, draft_room_t room)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    uint32_t count = frame->options.width - 1;
    size_t vocabulary = model_config(frame->model)->vocab_size;
    backend_fill_block_decode_seq_lens(frame->backend, b->frontier, bs);
    backend_publish_draft_step_locations(frame->backend, b->frontier, self->block_width, bs);
    kern_draft_block_args_t block = {
        .next = b->next,
        .frontier = b->frontier,
        .bs = bs,
        .width = self->block_width,
        .mask_id = self->mask_id,
        .ids = self->block_ids,
        .positions = self->block_positions,
    };
    device_ops(frame->options.device)->draft_block(frame->options.stream, &block);
    model_draft_io_t io = {.live_count = bs, .wants_logits = true};
    model_context_t context =
        draft_frame_context(frame, BACKEND_MODE_DECODE, bs * self->block_width, room);
    context.input_ids = self->block_ids;
    context.positions = self->block_positions;
    context.logit_rows = bs * count;
    context.gather_rows = self->logit_rows;
    context.draft = &io;
    float *logits = model_forward(frame->model, &context);
    if (!self->is_markov) {
        choose(self, logits, 0, bs, vocabulary);
        return;
    }
    for (uint32_t column = 0; column < count; column++) {
        float *own = logits + column * vocabulary;
        draft_block_launch_markov(frame->model, &context, b->next, own, count * vocabulary);
        choose(self, own, column, bs, count * vocabulary);
    }
}

static void
decode_round(drafter_t *self, uint32_t bs, uint32_t width, bool is_projected, draft_room_t room)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    draft_frame_lens(frame, b->lens, -(int32_t)width, b->step_positions, bs);
    backend_draft_write_locations_uniform(frame->backend, self->locations, b->step_positions, width,
                                          bs);
    inject(self, BACKEND_MODE_DECODE, bs * width, self->locations, is_projected, room);
    propose_block(self, bs, room);
}

static void
decode_body(void *owner, uint32_t bs, draft_room_t room)
{
    drafter_t *self = owner;
    decode_round(self, bs, self->frame.options.width, self->frame.is_armed, room);
}

static bool
has_work(const draft_round_t *round)
{
    bool work = round->num_extends < round->bs;
    for (uint32_t i = 0; i < round->num_extends; i++) {
        work = work || round->extend_samples_host[i] != 0;
    }
    return work;
}

static proto_status_t
drafter_propose(draft_t *base, const draft_round_t *round, draft_proposal_t *out)
{
    drafter_t *self = (drafter_t *)base;
    draft_frame_t *frame = &self->frame;
    if (round->mode == BACKEND_MODE_MIXED && round->width != frame->options.width) {
        return STATUS_ERR_INVALID; /* the prefill slot has windows of width N */
    }
    if (round->is_projected && !overlap_allowed(self, round->mode, round->width)) {
        return STATUS_ERR_INVALID;
    }
    uint32_t bs = 0;
    bool is_graph = false;
    draft_frame_begin(frame, round, false, &bs, &is_graph);
    proto_status_t status = draft_frame_refresh(frame, round, bs, is_graph);
    if (status != STATUS_OK) {
        return status;
    }
    if (is_graph) {
        status = draft_frame_replay(frame, bs);
    } else if (round->mode == BACKEND_MODE_DECODE) {
        decode_round(self, bs, round->width, round->is_projected, frame->room);
    } else {
        inject(self, round->mode, round->rows, backend_extend_span_locations(frame->backend), false,
               frame->room);
        if (has_work(round)) {
            propose_block(self, bs, frame->room);
        }
    }
    if (status == STATUS_OK) {
        draft_frame_finish(frame, round->bs, out);
    }
    return status;
}

static proto_status_t
drafter_set_cache_pool(draft_t *base, const cache_pool_t *pool)
{
    return draft_frame_set_cache_pool(&((drafter_t *)base)->frame, pool);
}

static proto_status_t
drafter_init_graph_state(draft_t *base)
{
    return draft_frame_init_graph_state(&((drafter_t *)base)->frame);
}

static proto_status_t
drafter_capture(draft_t *base)
{
    return draft_frame_capture(&((drafter_t *)base)->frame);
}

static const draft_vtable_t drafter_vtable = {
    .destroy = drafter_destroy,
    .set_cache_pool = drafter_set_cache_pool,
    .init_graph_state = drafter_init_graph_state,
    .capture = drafter_capture,
    .propose = drafter_propose,
    .prepare_target_forward = drafter_prepare,
};

/* Which rows of a block propose: behind the anchor, or from it on. */
static proto_status_t
fill_logit_rows(drafter_t *self)
{
    const draft_options_t *o = &self->frame.options;
    uint32_t count = o->width - 1;
    int32_t *rows = calloc((size_t)o->bs_max * count, sizeof *rows);
    if (rows == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < o->bs_max * count; i++) {
        uint32_t first = i / count * self->block_width + (self->is_markov ? 0 : 1);
        rows[i] = (int32_t)(first + i % count);
    }
    proto_status_t status =
        device_upload(o->device, self->logit_rows, rows, o->bs_max * count * sizeof *rows);
    free(rows);
    return status;
}

static proto_status_t
alloc_parts(drafter_t *self)
{
    const draft_options_t *o = &self->frame.options;
    size_t rows = (size_t)o->bs_max * o->width;
    int32_t **const parts[] = {&self->locations, &self->block_ids, &self->block_positions,
                               &self->logit_rows};
    proto_status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof parts / sizeof *parts; i++) {
        status = device_alloc(o->device, DEVICE_MEMORY_DEVICE, rows * sizeof(int32_t),
                              (void **)parts[i]);
    }
    uint32_t hidden = model_config(self->frame.model)->hidden_size;
    uint32_t tap_size = draft_block_fc_part(self->frame.model, 0).cols;
    self->sink = (model_capture_sink_t){.on_target_capture = on_target_capture, .owner = self};
    self->projection_workspace_bytes = kern_linear_workspace_size_bytes((uint32_t)rows, tap_size);
    if (status == STATUS_OK) {
        status = device_alloc(o->device, DEVICE_MEMORY_DEVICE, rows * hidden * sizeof(float),
                              (void **)&self->projected);
    }
    if (status == STATUS_OK) {
        status = device_alloc(o->device, DEVICE_MEMORY_DEVICE,
                              self->projection_workspace_bytes + DEVICE_MEMORY_ALIGN,
                              &self->projection_workspace);
    }
    return status == STATUS_OK ? fill_logit_rows(self) : status;
}

proto_status_t
draft_block_new(const draft_options_t *options, const draft_target_t *target,
                const file_draft_t *draft, model_t **model_p, draft_t **out_p)
{
    if (options->width > draft->block_size) {
        if (options->error != NULL) {
            (void)snprintf(options->error, options->error_size_bytes,
                           "the draft was trained for blocks of %" PRIu32 "; a width of %" PRIu32
                           " is more",
                           draft->block_size, options->width);
        }
        return STATUS_ERR_CONFIG;
    }
    drafter_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.vtable = &drafter_vtable;
    self->is_markov = draft->kind == FILE_DRAFT_DSPARK;
    self->mask_id = draft->mask_token_id;
    self->block_width = options->width - (self->is_markov ? 1 : 0);
    draft_frame_shape_t shape = {
        .rows = options->rows_max > options->bs_max * options->width
                    ? options->rows_max
                    : options->bs_max * options->width,
        .logit_rows = options->bs_max * (options->width - 1),
        .hidden_cols = target->taps * target->tap_size,
        .block_width = self->block_width,
        .decode_body = decode_body,
        .owner = self,
    };
    proto_status_t status = draft_frame_init(&self->frame, options, &shape, model_p);
    if (status == STATUS_OK) {
        status = alloc_parts(self);
    }
    if (status != STATUS_OK) {
        draft_t *base = &self->base;
        draft_destroy(&base);
        return status;
    }
    draft_frame_fill_base(&self->frame, target, &self->base);
    *out_p = &self->base;
    return STATUS_OK;
}
