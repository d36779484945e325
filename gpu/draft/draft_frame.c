#include "draft_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_codec.h"
#include "proto_require.h"
#include "router_cache_group.h"

static proto_status_t
alloc(const draft_frame_t *self, size_t count, void **out_p)
{
    _Static_assert(sizeof(int32_t) == sizeof(float), "counted alike");
    return count == 0 ? STATUS_OK
                      : device_alloc(self->options.device, DEVICE_MEMORY_DEVICE,
                                     count * sizeof(int32_t), out_p);
}

/* Every array and its length. */
typedef struct {
    void **memory_p;
    size_t count;
} part_t;

enum { PART_COUNT = 14 };

static void
list_parts(draft_frame_t *self, part_t out[PART_COUNT])
{
    const draft_options_t *o = &self->options;
    draft_buffers_t *b = &self->buffers;
    const part_t parts[PART_COUNT] = {
        {(void **)&b->ids, o->rows_max},
        {(void **)&b->positions, o->rows_max},
        {(void **)&b->slots, o->bs_max},
        {(void **)&b->lens, o->bs_max},
        {(void **)&b->live_rows, o->bs_max},
        {(void **)&b->live_positions, o->bs_max},
        {(void **)&b->frontier, o->bs_max},
        {(void **)&b->next, o->bs_max},
        {(void **)&b->has_next, o->bs_max},
        {(void **)&b->step_lens, o->bs_max},
        {(void **)&b->step_positions, o->bs_max},
        {(void **)&b->candidates, (size_t)o->bs_max * (o->width - 1)},
        {(void **)&b->hidden, (size_t)o->rows_max * self->shape.hidden_cols},
        {(void **)&b->chained, (size_t)o->bs_max * self->shape.chained_cols},
    };
    memcpy(out, parts, sizeof parts);
}

static proto_status_t
make_backend(draft_frame_t *self)
{
    const draft_options_t *o = &self->options;
    const file_config_t *c = model_config(self->model);
    router_cache_group_options_t options = {
        .backend =
            {
                .device = o->device,
                .stream = o->stream,
                .bs_max = o->bs_max,
                .width = o->width,
                .step_tokens_max = self->shape.rows > o->rows_max ? self->shape.rows : o->rows_max,
                .model_len_max = o->model_len_max,
                .q_heads = c->head_count,
                .kv_heads = c->kv_head_count,
                .head_dim = c->head_dim,
                .is_draft = true,
                .block_width = self->shape.block_width,
            },
        .page_size = o->page_size,
    };
    return router_cache_group_new(&options, &self->backend);
}

proto_status_t
draft_frame_init(draft_frame_t *self, const draft_options_t *options,
                 const draft_frame_shape_t *shape, model_t **model_p)
{
    *self = (draft_frame_t){.options = *options, .shape = *shape, .model = *model_p};
    self->options.path = NULL;
    self->options.target = NULL;
    self->options.error = NULL;
    self->options.capture_sizes = NULL;
    require(options->capture_size_count <= DRAFT_CAPTURE_COUNT_MAX);
    if (options->capture_size_count > 0) {
        memcpy(self->capture_sizes, options->capture_sizes,
               options->capture_size_count * sizeof *self->capture_sizes);
    }
    proto_status_t status = make_backend(self);
    part_t parts[PART_COUNT];
    list_parts(self, parts);
    for (uint32_t i = 0; status == STATUS_OK && i < PART_COUNT; i++) {
        status = alloc(self, parts[i].count, parts[i].memory_p);
    }
    self->room.size_bytes = model_workspace_bytes(self->model, shape->rows, shape->logit_rows);
    if (status == STATUS_OK) {
        status = alloc(self, self->room.size_bytes / sizeof(float) + 1, &self->room.memory);
    }
    if (status != STATUS_OK) {
        self->model = NULL; /* the caller's still */
        return status;
    }
    *model_p = NULL;
    return STATUS_OK;
}

void
draft_frame_fill_base(const draft_frame_t *self, const draft_target_t *target, draft_t *out)
{
    const draft_options_t *o = &self->options;
    const file_config_t *c = model_config(self->model);
    draft_info_t *info = &out->info;
    (void)snprintf(info->kind, sizeof info->kind, "%s", target->kind);
    info->width = o->width;
    info->vocabulary = target->vocabulary;
    info->tap_count = target->taps;
    info->hidden_size = target->tap_size;
    for (uint32_t i = 0; i < target->taps; i++) {
        info->tap_layers[i] = target->tap_layers[i];
    }
    info->cache_layers = c->layer_count;
    info->cache_kv_heads = c->kv_head_count;
    info->cache_head_dim = c->head_dim;
    info->cache_lookahead = o->width;
    out->backend = self->backend;
    out->slot_count = o->slot_count;
    out->bs_max = o->bs_max;
    out->rows_max = o->rows_max;
}

static void
drop_graphs(draft_frame_t *self)
{
    for (uint32_t i = 0; i < self->captured_count; i++) {
        device_graph_destroy(&self->captured[i].graph);
    }
    self->captured_count = 0;
    device_pool_destroy(&self->graph_pool);
}

void
draft_frame_fini(draft_frame_t *self)
{
    if (self->options.device == NULL) {
        return;
    }
    proto_status_t status = device_stream_synchronize(self->options.stream);
    require(status == STATUS_OK || status == STATUS_ERR_DEVICE);
    drop_graphs(self);
    part_t parts[PART_COUNT];
    list_parts(self, parts);
    for (uint32_t i = 0; i < PART_COUNT; i++) {
        device_release(self->options.device, DEVICE_MEMORY_DEVICE, parts[i].memory_p);
    }
    device_release(self->options.device, DEVICE_MEMORY_DEVICE, &self->room.memory);
    backend_destroy(&self->backend);
    model_destroy(&self->model);
}

proto_status_t
draft_frame_set_cache_pool(draft_frame_t *self, const cache_pool_t *pool)
{
    proto_status_t status = backend_validate_cache_pool(self->backend, pool);
    if (status != STATUS_OK) {
        return status;
    }
    drop_graphs(self); /* they record what a publish drops */
    self->pool = *pool;
    self->is_bound = true;
    return backend_set_cache_pool(self->backend, pool);
}

proto_status_t
draft_frame_init_graph_state(draft_frame_t *self)
{
    require(self->is_bound);
    return backend_init_cuda_graph_state(self->backend);
}

static proto_status_t
capture_one(draft_frame_t *self, uint32_t bs, device_graph_t **out_p)
{
    const draft_options_t *o = &self->options;
    backend_tables_t placeholder = {.group_count = cache_plan_group_count(self->pool.plan)};
    proto_status_t status = backend_capture_forward_metadata(self->backend, bs, self->buffers.slots,
                                                             self->buffers.lens, &placeholder);
    if (status != STATUS_OK) {
        return status;
    }
    draft_room_t room = {0};
    room.memory = device_pool_memory(self->graph_pool, &room.size_bytes);
    status = device_capture_begin(o->stream, self->graph_pool);
    if (status != STATUS_OK) {
        return status;
    }
    self->shape.decode_body(self->shape.owner, bs, room);
    return device_capture_end(o->stream, out_p);
}

proto_status_t
draft_frame_capture(draft_frame_t *self)
{
    const draft_options_t *o = &self->options;
    drop_graphs(self);
    if (o->capture_size_count == 0) {
        return STATUS_OK;
    }
    uint32_t top = self->capture_sizes[o->capture_size_count - 1];
    require(top <= o->bs_max);
    size_t size_bytes = model_workspace_bytes(self->model, top * o->width, top * o->width);
    proto_status_t status = device_pool_new(o->device, size_bytes, &self->graph_pool);
    draft_captured_t captured[DRAFT_CAPTURE_COUNT_MAX] = {0};
    uint32_t done = 0;
    for (uint32_t i = o->capture_size_count; status == STATUS_OK && i > 0; i--) {
        draft_captured_t *at = &captured[i - 1];
        at->bs = self->capture_sizes[i - 1];
        status = capture_one(self, at->bs, &at->graph);
        done += status == STATUS_OK;
    }
    memcpy(self->captured, captured + (o->capture_size_count - done), done * sizeof *captured);
    self->captured_count = done;
    return status;
}

static const draft_captured_t *
find_graph(const draft_frame_t *self, uint32_t bs)
{
    for (uint32_t i = 0; i < self->captured_count; i++) {
        if (self->captured[i].bs >= bs) {
            return &self->captured[i];
        }
    }
    return NULL;
}

static uint32_t
sampled_extends(const draft_round_t *round)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->num_extends; i++) {
        count += round->extend_samples_host[i] != 0;
    }
    return count;
}

static void
copy_hidden(draft_frame_t *self, const draft_round_t *round)
{
    kern_heads_copy_args_t copy = {
        .input = round->hidden,
        .input_stride = round->hidden_stride,
        .input_head_stride = self->shape.hidden_cols,
        .output = self->buffers.hidden,
        .output_stride = self->shape.hidden_cols,
        .output_head_stride = self->shape.hidden_cols,
        .rows = round->rows,
        .heads = 1,
        .head_dim = self->shape.hidden_cols,
    };
    device_ops(self->options.device)->heads_copy(self->options.stream, &copy);
}

void
draft_frame_begin(draft_frame_t *self, const draft_round_t *round, bool shifts, uint32_t *bs_p,
                  bool *is_graph_p)
{
    bool fits = round->mode == BACKEND_MODE_DECODE && round->width == self->options.width &&
                round->is_projected == self->is_armed;
    const draft_captured_t *captured = fits ? find_graph(self, round->bs) : NULL;
    uint32_t bs = captured == NULL ? round->bs : captured->bs;
    draft_buffers_t *b = &self->buffers;
    kern_draft_begin_args_t begin = {
        .bs = round->bs,
        .padded_bs = bs,
        .num_extends = round->num_extends,
        .width = round->width,
        .padded_rows = captured == NULL ? 0 : bs * round->width,
        .shifts = shifts,
        .extend_cu_lens = round->extend_cu_lens,
        .extend_next_ids = round->extend_next_ids,
        .extend_token_rows = round->extend_token_rows,
        .input_ids = round->input_ids,
        .positions = round->positions,
        .seq_lens = round->seq_lens,
        .tokens = round->tokens,
        .accept_lengths = round->accept_lengths,
        .sampled_extends = sampled_extends(round),
        .ids = b->ids,
        .row_positions = b->positions,
        .lens = b->lens,
        .live_rows = b->live_rows,
        .live_positions = b->live_positions,
        .frontier = b->frontier,
        .next = b->next,
        .has_next = b->has_next,
    };
    device_ops(self->options.device)->draft_begin(self->options.stream, &begin);
    kern_draft_lens_args_t slots = {.from = round->slots,
                                    .bs = round->bs,
                                    .repeat = 1,
                                    .to = b->slots};
    device_ops(self->options.device)->draft_lens(self->options.stream, &slots);
    if (self->shape.hidden_cols > 0 && !round->is_projected) {
        copy_hidden(self, round);
    }
    *bs_p = bs;
    *is_graph_p = captured != NULL;
}

/* Bounded replay and prompt lengths: facts that no draft tree plans from. */
static const int32_t no_facts[PROTO_ROWS_MAX];

proto_status_t
draft_frame_refresh(draft_frame_t *self, const draft_round_t *round, uint32_t bs,
                    bool for_graph_replay)
{
    if (round->mode != BACKEND_MODE_DECODE) {
        bool with_prefix = false;
        for (uint32_t i = 0; i < round->num_extends; i++) {
            with_prefix = with_prefix || round->extend_prefix_lens_host[i] > 0;
        }
        backend_extend_t extend = {
            .bs = round->bs,
            .num_extends = round->num_extends,
            .request_slots = self->buffers.slots,
            .seq_lens = round->seq_lens,
            .mode = round->mode,
            .tables = round->tables,
            .extend_seq_lens = round->extend_seq_lens,
            .extend_prefix_lens = round->extend_prefix_lens,
            .extend_cu_lens = round->extend_cu_lens,
            .extend_seq_lens_host = round->extend_seq_lens_host,
            .extend_prefix_lens_host = round->extend_prefix_lens_host,
            .extend_replay_lens_host = no_facts,
            .extend_prompt_lens_host = no_facts,
            .extend_with_prefix = with_prefix,
        };
        proto_status_t status = backend_init_forward_metadata(self->backend, &extend);
        if (status != STATUS_OK) {
            return status;
        }
    }
    backend_refresh_t refresh = {
        .bs = bs,
        .actual_bs = round->bs,
        .request_slots = self->buffers.slots,
        .seq_lens = self->buffers.lens,
        .mode = BACKEND_MODE_DECODE,
        .tables = round->tables,
        .num_extends = round->num_extends,
        .for_graph_replay = for_graph_replay,
    };
    return backend_refresh_decode_metadata(self->backend, &refresh);
}

proto_status_t
draft_frame_replay(draft_frame_t *self, uint32_t bs)
{
    const draft_captured_t *captured = find_graph(self, bs);
    require(captured != NULL);
    return device_graph_replay(captured->graph, self->options.stream);
}

void
draft_frame_lens(draft_frame_t *self, const int32_t *from, int32_t add, int32_t *to, uint32_t bs)
{
    kern_draft_lens_args_t args = {.from = from, .bs = bs, .add = add, .repeat = 1, .to = to};
    device_ops(self->options.device)->draft_lens(self->options.stream, &args);
}

void
draft_frame_finish(draft_frame_t *self, uint32_t bs, draft_proposal_t *out)
{
    kern_draft_mask_args_t mask = {
        .has_next = self->buffers.has_next,
        .bs = bs,
        .count = self->options.width - 1,
        .candidates = self->buffers.candidates,
    };
    device_ops(self->options.device)->draft_mask(self->options.stream, &mask);
    *out = (draft_proposal_t){self->buffers.candidates, self->options.width - 1};
}

model_context_t
draft_frame_context(const draft_frame_t *self, backend_mode_t mode, uint32_t rows,
                    draft_room_t room)
{
    return (model_context_t){
        .stream = self->options.stream,
        .backend = self->backend,
        .mode = mode,
        .rows = rows,
        .input_ids = self->buffers.ids,
        .positions = self->buffers.positions,
        .workspace = room.memory,
        .workspace_bytes = room.size_bytes,
    };
}
