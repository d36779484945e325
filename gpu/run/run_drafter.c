#include "run_drafter.h"

#include <inttypes.h>
#include <stdlib.h>

#include "draft_open.h"
#include "proto_require.h"
#include "run_backend.h"
#include "run_executor_private.h"

enum { CAPTURE_BS_DEFAULT = 32 };

/* 1, 2, 4, 8, then steps of 8: the batches that are captured. */
static uint32_t
fill_ladder(const run_executor_options_t *o, uint32_t out[DRAFT_CAPTURE_COUNT_MAX])
{
    uint32_t top = o->capture_bs_max == 0 ? CAPTURE_BS_DEFAULT : o->capture_bs_max;
    top = top < o->slot_count ? top : o->slot_count;
    uint32_t count = 0;
    if (o->enforce_eager) {
        return 0;
    }
    for (uint32_t bs = 1; bs < top && count + 1 < DRAFT_CAPTURE_COUNT_MAX; bs += bs < 8 ? bs : 8) {
        out[count++] = bs;
    }
    out[count++] = top;
    return count;
}

static proto_status_t
configure_target(run_executor_t *self)
{
    const draft_info_t *info = draft_info(self->drafter.draft);
    if (info->tap_count == 0) {
        return STATUS_OK;
    }
    model_taps_t taps = {.count = info->tap_count};
    for (uint32_t i = 0; i < info->tap_count; i++) {
        taps.layers[i] = info->tap_layers[i];
    }
    proto_status_t status = model_configure_capture(self->model, &taps);
    if (status != STATUS_OK) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "the target's forward code does not give the hidden rows that the "
                                 "draft reads: %s",
                                 proto_status_text(status));
    }
    run_drafter_t *own = &self->drafter;
    own->capture.stride = (size_t)info->tap_count * info->hidden_size;
    status = device_alloc(self->device, DEVICE_MEMORY_DEVICE,
                          self->options.step_tokens_max * own->capture.stride * sizeof(float),
                          (void **)&own->capture.taps);
    own->decode_capture = own->capture;
    own->decode_capture.sink =
        draft_prepare_target_forward(own->draft, BACKEND_MODE_DECODE, self->options.width);
    return status;
}

static size_t
future_bytes(const run_executor_t *self)
{
    return ((size_t)self->options.slot_count + 2) * self->options.width * sizeof(int32_t);
}

static proto_status_t
alloc_steps(run_executor_t *self)
{
    size_t bs = self->options.slot_count;
    for (uint32_t i = 0; i < RUN_STAGE_COUNT; i++) {
        run_drafter_step_t *step = &self->drafter.steps[i];
        step->slots = calloc(bs, sizeof *step->slots);
        step->drafted = calloc(bs, 1);
        step->hits = calloc(bs, 1);
        if (step->slots == NULL || step->drafted == NULL || step->hits == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        proto_status_t status = device_alloc(self->device, DEVICE_MEMORY_PINNED, future_bytes(self),
                                             (void **)&step->future);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* A draft's layers are fields of the target's cache, in a group that keeps every token, and a tree
 * of theirs reads each group that there is. */
static proto_status_t
check_target(run_executor_t *self)
{
    const file_config_t *config = model_config(self->model);
    if (draft_info(self->drafter.draft)->cache_layers == 0) {
        return STATUS_OK;
    }
    if (run_backend_has_states(config)) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "a %s takes no draft model yet: the cache cannot be laid out, "
                                 "since a draft's layers do not go with recurrent layers",
                                 file_arch_name(config->arch));
    }
    for (uint32_t i = 0; i < config->layer_count; i++) {
        if (config->layer_kinds[i] == FILE_LAYER_SLIDING) {
            return run_executor_fail(self, STATUS_ERR_CONFIG,
                                     "a %s takes no draft model yet: layer %" PRIu32
                                     " of it has a sliding window, and a draft's layers need a "
                                     "target whose layers all keep every token",
                                     file_arch_name(config->arch), i);
        }
    }
    return STATUS_OK;
}

proto_status_t
run_drafter_open(run_executor_t *self)
{
    const run_executor_options_t *o = &self->options;
    if (o->draft_path == NULL) {
        return STATUS_OK;
    }
    uint32_t sizes[DRAFT_CAPTURE_COUNT_MAX];
    draft_options_t options = {
        .path = o->draft_path,
        .target = self->file,
        .device = self->device,
        .stream = self->stream,
        .width = o->width,
        .slot_count = o->slot_count,
        .bs_max = o->slot_count,
        .rows_max = o->step_tokens_max,
        .model_len_max = o->model_len_max,
        .page_size = o->page_size,
        .capture_sizes = sizes,
        .capture_size_count = fill_ladder(o, sizes),
        .activations = self->model->activations,
        .error = o->error,
        .error_size_bytes = o->error_size_bytes,
    };
    proto_status_t status = draft_open(&options, &self->drafter.draft);
    if (status == STATUS_OK) {
        status = check_target(self);
    }
    if (status == STATUS_OK) {
        status = device_alloc(self->device, DEVICE_MEMORY_DEVICE, sizeof *self->drafter.dropped,
                              (void **)&self->drafter.dropped);
    }
    if (status == STATUS_OK) {
        status = alloc_steps(self);
    }
    if (status == STATUS_OK) {
        status = configure_target(self);
    }
    if (status == STATUS_OK) {
        const draft_info_t *info = draft_info(self->drafter.draft);
        run_executor_add_summary(self, "draft: %s, %" PRIu32 " layers, width %" PRIu32 "\n",
                                 info->kind, info->cache_layers, info->width);
        self->drafter.is_on = true;
    }
    return status;
}

proto_status_t
run_drafter_bind(run_executor_t *self)
{
    draft_t *draft = self->drafter.draft;
    if (draft == NULL || draft_info(draft)->cache_layers == 0) {
        return STATUS_OK;
    }
    cache_pool_t pool;
    proto_status_t status =
        cache_pool_init(&pool, self->plan, self->arena, model_config(self->model)->layer_count,
                        draft_info(draft)->cache_layers);
    if (status == STATUS_OK) {
        status = draft_set_cache_pool(draft, &pool);
    }
    return status == STATUS_OK ? draft_init_graph_state(draft) : status;
}

void
run_drafter_close(run_executor_t *self)
{
    draft_destroy(&self->drafter.draft);
    device_release(self->device, DEVICE_MEMORY_DEVICE, (void **)&self->drafter.capture.taps);
    for (uint32_t i = 0; i < RUN_STAGE_COUNT; i++) {
        run_drafter_step_t *step = &self->drafter.steps[i];
        device_release(self->device, DEVICE_MEMORY_PINNED, (void **)&step->future);
        free(step->slots);
        free(step->drafted);
        free(step->hits);
    }
    device_release(self->device, DEVICE_MEMORY_DEVICE, (void **)&self->drafter.dropped);
}

const model_capture_t *
run_drafter_capture(const run_drafter_t *self)
{
    return self->capture.taps == NULL ? NULL : &self->capture;
}

const model_capture_t *
run_drafter_decode_capture(const run_drafter_t *self)
{
    return self->capture.taps == NULL ? NULL : &self->decode_capture;
}

void
run_drafter_fill_round(const run_executor_t *self, const run_batch_t *batch,
                       const run_launched_t *launched, uint32_t *slots_host, draft_round_t *out)
{
    const proto_step_launch_t *launch = batch->launch;
    const run_buffers_t *buffers = &self->buffers;
    const sample_outputs_t *outputs = sample_pool_outputs(self->sample);
    uint32_t extends = launch->extend_slots.count;
    uint32_t decodes = launch->decode_slots.count;
    uint32_t width = launch->width;
    for (uint32_t i = 0; i < extends + decodes; i++) {
        slots_host[i] =
            i < extends ? launch->extend_slots.data[i] : launch->decode_slots.data[i - extends];
    }
    backend_mode_t mode = extends == 0   ? BACKEND_MODE_DECODE
                          : decodes == 0 ? BACKEND_MODE_EXTEND
                                         : BACKEND_MODE_MIXED;
    *out = (draft_round_t){
        .mode = mode,
        .bs = extends + decodes,
        .num_extends = extends,
        .rows = launch->extend_tokens.count + decodes * width,
        .width = width,
        .slots_host = slots_host,
        .extend_prefix_lens_host = batch->stage->header.prefix_lens,
        .extend_seq_lens_host = batch->stage->header.extend_lens,
        .extend_samples_host = launch->extend_samples.data,
        .slots = buffers->header.slots,
        .extend_prefix_lens = buffers->header.prefix_lens,
        .extend_seq_lens = buffers->header.extend_lens,
        .extend_cu_lens = buffers->header.cu_lens,
        .extend_next_ids = buffers->header.next_ids,
        .extend_token_rows = buffers->header.sample_indices,
        .input_ids = buffers->input_ids,
        .positions = buffers->positions,
        .seq_lens = buffers->seq_lens,
        .tokens = outputs->tokens,
        .accept_lengths = outputs->accept_lengths + launched->sampled_extends,
        .hidden = self->drafter.capture.taps,
        .hidden_stride = self->drafter.capture.stride,
        .is_projected = mode == BACKEND_MODE_DECODE && width == self->options.width &&
                        self->drafter.decode_capture.sink != NULL,
        .tables = &batch->tables,
    };
}

proto_status_t
run_drafter_note(run_executor_t *self, uint32_t index, const proto_step_launch_t *launch)
{
    if (self->drafter.draft == NULL) {
        return STATUS_OK;
    }
    run_drafter_step_t *step = &self->drafter.steps[index];
    step->extends = launch->extend_slots.count;
    step->rows = step->extends + launch->decode_slots.count;
    step->width = launch->width;
    for (uint32_t i = 0; i < launch->decode_slots.count; i++) {
        step->slots[step->extends + i] = launch->decode_slots.data[i];
    }
    run_buffers_copy(&self->buffers, step->future, self->buffers.future_inputs, future_bytes(self));
    return device_stream_check(self->stream);
}

void
run_drafter_collect(run_executor_t *self, uint32_t index, proto_step_done_t *out)
{
    if (self->drafter.draft == NULL) {
        return;
    }
    run_drafter_step_t *step = &self->drafter.steps[index];
    uint32_t vocabulary = model_config(self->model)->vocab_size;
    uint32_t at = 0;
    for (uint32_t row = 0; row < step->rows; row++) {
        const int32_t *given = out->tokens.data + at;
        uint32_t count = out->token_counts.data[row];
        at += count;
        step->drafted[row] = 0;
        step->hits[row] = 0;
        if (row < step->extends || count == 0) {
            continue;
        }
        const int32_t *candidates =
            step->future + (size_t)step->slots[row] * self->options.width + 1;
        uint32_t used = 0;
        while (used + 1 < self->options.width && (uint32_t)candidates[used] < vocabulary) {
            used++;
        }
        if (step->width == 1) {
            step->drafted[row] = used > 0;
            step->hits[row] = used > 0 && candidates[0] == given[0];
        } else {
            step->drafted[row] = (uint8_t)used;
            step->hits[row] = (uint8_t)(count - 1 < used ? count - 1 : used);
        }
    }
    out->drafted = (proto_column_u8_t){step->drafted, step->rows};
    out->draft_hits = (proto_column_u8_t){step->hits, step->rows};
}

static proto_status_t
propose(run_executor_t *self, const draft_round_t *round, const int32_t *write_slots)
{
    run_drafter_t *own = &self->drafter;
    draft_proposal_t proposal;
    proto_status_t status = draft_propose(own->draft, round, &proposal);
    if (status != STATUS_OK || !own->is_on) {
        return status;
    }
    kern_draft_commit_args_t commit = {
        .write_slots = write_slots,
        .candidates = proposal.candidates,
        .stride = proposal.count,
        .count = proposal.count,
        .bs = round->bs,
        .width = self->options.width,
        .vocabulary = model_config(self->model)->vocab_size,
        .future_inputs = self->buffers.future_inputs,
        .dropped = own->dropped,
    };
    device_ops(self->device)->draft_commit(self->stream, &commit);
    return STATUS_OK;
}

/* A mixed round whose decode requests computed one token each: a draft tree's prefill slot has
 * windows of its own width, so that its extends and its decodes are two rounds. */
static proto_status_t
propose_apart(run_executor_t *self, const draft_round_t *whole, const int32_t *write_slots,
              uint32_t sampled)
{
    uint32_t extends = whole->num_extends;
    uint32_t decodes = whole->bs - extends;
    uint32_t first_row = whole->rows - decodes * whole->width;
    draft_round_t prompts = *whole;
    prompts.mode = BACKEND_MODE_EXTEND;
    prompts.bs = extends;
    prompts.rows = first_row;
    proto_status_t status = propose(self, &prompts, write_slots);
    if (status != STATUS_OK) {
        return status;
    }
    backend_tables_t tables = *whole->tables;
    for (uint32_t g = 0; g < tables.group_count; g++) {
        tables.groups[g].blocks += (size_t)extends * tables.groups[g].stride;
    }
    draft_round_t rest = *whole;
    rest.mode = BACKEND_MODE_DECODE;
    rest.bs = decodes;
    rest.num_extends = 0;
    rest.rows = decodes * whole->width;
    rest.slots_host += extends;
    rest.slots += extends;
    rest.input_ids += first_row;
    rest.positions += first_row;
    rest.seq_lens += extends;
    rest.tokens += sampled;
    rest.hidden += whole->hidden == NULL ? 0 : first_row * whole->hidden_stride;
    rest.tables = &tables;
    return propose(self, &rest, write_slots + extends);
}

proto_status_t
run_drafter_step(run_executor_t *self, const run_batch_t *batch, const run_launched_t *launched)
{
    run_drafter_t *own = &self->drafter;
    if (own->draft == NULL || launched->mode == PROTO_STEP_IDLE) {
        return STATUS_OK;
    }
    run_drafter_fill_round(self, batch, launched, own->slots_host, &own->round);
    if (own->round.mode == BACKEND_MODE_MIXED && own->round.width != self->options.width) {
        return propose_apart(self, &own->round, self->buffers.write_slots,
                             launched->sampled_extends);
    }
    return propose(self, &own->round, self->buffers.write_slots);
}
