#include "draft_chain.h"

#include <stdlib.h>

#include "proto_require.h"

typedef struct {
    draft_t base; /* first */
    draft_frame_t frame;
    bool is_head;
    uint32_t own_vocabulary;
    int32_t *offsets; /* device; NULL = none */
} chain_t;

static void
chain_destroy(draft_t *base)
{
    chain_t *self = (chain_t *)base;
    device_t *device = self->frame.options.device;
    draft_frame_fini(&self->frame);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->offsets);
    free(self);
}

/* The proposal of each request's row: candidate `column`, and what the next step reads. */
static void
propose_column(chain_t *self, const float *logits, uint32_t bs, uint32_t column)
{
    draft_frame_t *frame = &self->frame;
    kern_draft_argmax_args_t args = {
        .logits = logits,
        .stride = self->own_vocabulary,
        .rows = bs,
        .vocabulary = self->own_vocabulary,
        .offsets = self->offsets,
        .ids = frame->buffers.candidates + column,
        .id_stride = frame->options.width - 1,
        .copies = frame->buffers.next,
        .copy_stride = 1,
    };
    device_ops(frame->options.device)->draft_argmax(frame->options.stream, &args);
}

/* Over the target's rows.  `bs` requests, padding included. */
static void
step_zero(chain_t *self, backend_mode_t mode, uint32_t rows, uint32_t bs, draft_room_t room)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    backend_accepted_prefix_t narrowing = {.backend = frame->backend,
                                           .frontier = b->frontier,
                                           .bs = bs};
    model_draft_io_t io = {
        .hidden = b->hidden,
        .hidden_stride = frame->shape.hidden_cols,
        .is_taps = true,
        .live_rows = b->live_rows,
        .live_count = bs,
        .narrowing = mode == BACKEND_MODE_DECODE ? &narrowing : NULL,
        .hidden_out = b->chained,
        .wants_logits = true,
    };
    model_context_t context = draft_frame_context(frame, mode, rows, room);
    context.draft = self->is_head ? &io : NULL;
    context.logit_rows = self->is_head ? bs : 0;
    const float *logits = model_forward(frame->model, &context);
    if (self->is_head) {
        propose_column(self, logits, bs, 0);
    }
}

/* Steps behind step 0: one row for each request. */
static void
steps(chain_t *self, uint32_t bs, draft_room_t room)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    uint32_t count = frame->options.width - 1;
    uint32_t first_column = self->is_head ? 1 : 0;
    for (uint32_t column = first_column; column < count; column++) {
        int32_t step = (int32_t)(self->is_head ? column : column + 1);
        draft_frame_lens(frame, b->frontier, step, b->step_lens, bs);
        draft_frame_lens(frame, b->frontier, step - 1, b->step_positions, bs);
        backend_advance_draft_forward_metadata(frame->backend, b->step_lens, bs);
        backend_publish_draft_step_locations(frame->backend, b->step_positions, 1, bs);
        model_draft_io_t io = {
            .hidden = b->chained,
            .hidden_stride = frame->shape.chained_cols,
            .hidden_out = b->chained,
            .wants_logits = true,
        };
        model_context_t context = draft_frame_context(frame, BACKEND_MODE_DECODE, bs, room);
        context.input_ids = b->next;
        context.positions = b->step_positions;
        context.logit_rows = bs;
        context.draft = self->is_head ? &io : NULL;
        propose_column(self, model_forward(frame->model, &context), bs, column);
    }
}

static void
decode_body(void *owner, uint32_t bs, draft_room_t room)
{
    chain_t *self = owner;
    step_zero(self, BACKEND_MODE_DECODE, bs * self->frame.options.width, bs, room);
    steps(self, bs, room);
}

/* Rounds that no graph has: extends, mixed ones, and decodes of width 1. */
static void
eager_body(chain_t *self, const draft_round_t *round)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    if (round->mode == BACKEND_MODE_DECODE && round->width != frame->options.width) {
        /* The refresh published the window of width N. */
        draft_frame_lens(frame, b->lens, -(int32_t)round->width, b->step_positions, round->bs);
        backend_publish_draft_step_locations(frame->backend, b->step_positions, round->width,
                                             round->bs);
    }
    step_zero(self, round->mode, round->rows, round->bs, frame->room);
    bool has_work = round->num_extends < round->bs;
    for (uint32_t i = 0; i < round->num_extends; i++) {
        has_work = has_work || round->extend_samples_host[i] != 0;
    }
    if (has_work) { /* a batch of chunks that end nowhere has nothing to propose */
        steps(self, round->bs, frame->room);
    }
}

static proto_status_t
chain_propose(draft_t *base, const draft_round_t *round, draft_proposal_t *out)
{
    chain_t *self = (chain_t *)base;
    if (round->mode == BACKEND_MODE_MIXED && round->width != self->frame.options.width) {
        return STATUS_ERR_INVALID; /* the prefill slot has windows of width N */
    }
    uint32_t bs = 0;
    bool is_graph = false;
    draft_frame_begin(&self->frame, round, self->is_head, &bs, &is_graph);
    proto_status_t status = draft_frame_refresh(&self->frame, round, bs, is_graph);
    if (status == STATUS_OK && is_graph) {
        status = draft_frame_replay(&self->frame, bs);
    } else if (status == STATUS_OK) {
        eager_body(self, round);
    }
    if (status == STATUS_OK) {
        draft_frame_finish(&self->frame, round->bs, out);
    }
    return status;
}

static proto_status_t
chain_set_cache_pool(draft_t *base, const cache_pool_t *pool)
{
    return draft_frame_set_cache_pool(&((chain_t *)base)->frame, pool);
}

static proto_status_t
chain_init_graph_state(draft_t *base)
{
    return draft_frame_init_graph_state(&((chain_t *)base)->frame);
}

static proto_status_t
chain_capture(draft_t *base)
{
    return draft_frame_capture(&((chain_t *)base)->frame);
}

static const draft_vtable_t chain_vtable = {
    .destroy = chain_destroy,
    .set_cache_pool = chain_set_cache_pool,
    .init_graph_state = chain_init_graph_state,
    .capture = chain_capture,
    .propose = chain_propose,
};

static proto_status_t
load_offsets(chain_t *self, const int32_t *offsets)
{
    if (offsets == NULL) {
        return STATUS_OK;
    }
    device_t *device = self->frame.options.device;
    size_t size_bytes = self->own_vocabulary * sizeof *offsets;
    proto_status_t status =
        device_alloc(device, DEVICE_MEMORY_DEVICE, size_bytes, (void **)&self->offsets);
    return status == STATUS_OK ? device_upload(device, self->offsets, offsets, size_bytes) : status;
}

proto_status_t
draft_chain_new(const draft_options_t *options, const draft_chain_options_t *chain,
                model_t **model_p, draft_t **out_p)
{
    chain_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    const file_config_t *c = model_config(*model_p);
    self->base.vtable = &chain_vtable;
    self->is_head = chain->is_head;
    self->own_vocabulary = c->vocab_size;
    draft_frame_shape_t shape = {
        .rows = options->rows_max,
        .logit_rows = options->bs_max,
        .hidden_cols = chain->target.taps * chain->target.tap_size,
        .chained_cols = chain->is_head ? c->hidden_size : 0,
        .decode_body = decode_body,
        .owner = self,
    };
    proto_status_t status = draft_frame_init(&self->frame, options, &shape, model_p);
    if (status == STATUS_OK) {
        draft_frame_fill_base(&self->frame, &chain->target, &self->base);
        status = load_offsets(self, chain->offsets);
    }
    if (status != STATUS_OK) {
        draft_t *base = &self->base;
        draft_destroy(&base);
        return status;
    }
    *out_p = &self->base;
    return STATUS_OK;
}
