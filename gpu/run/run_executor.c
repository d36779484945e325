/* Driving an executor: setup, launch, collect, reset.
 *
 * A launch stages everything for its step and enqueues it; nothing is awaited and nothing
 * allocated. The next step may be launched while this one runs, because lengths and next ids stay
 * on the device. */
#include "run_executor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"
#include "run_executor_private.h"
#include "run_inspect.h"
#include "run_share.h"

static void
free_results(run_results_t *results)
{
    free(results->token_counts);
    free(results->row_flags);
    free(results->tokens);
    free(results->logprob_widths);
    free(results->logprob_ids);
    free(results->logprob_values);
    memset(results, 0, sizeof *results);
}

proto_status_t
run_executor_init_flights(run_executor_t *self)
{
    size_t rows = self->options.slot_count;
    size_t tokens = rows * self->options.width;
    size_t entries = tokens * KERN_SAMPLE_LOGPROBS_WIDTH;
    run_results_t *results = &self->results;
    results->token_counts = calloc(rows, 1);
    results->row_flags = calloc(rows, 1);
    results->tokens = calloc(tokens, sizeof *results->tokens);
    results->logprob_widths = calloc(rows, 1);
    results->logprob_ids = calloc(entries, sizeof *results->logprob_ids);
    results->logprob_values = calloc(entries, sizeof *results->logprob_values);
    if (results->token_counts == NULL || results->row_flags == NULL || results->tokens == NULL ||
        results->logprob_widths == NULL || results->logprob_ids == NULL ||
        results->logprob_values == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < RUN_STAGE_COUNT; i++) {
        run_flight_t *flight = &self->flights[i];
        flight->requests = calloc(rows, sizeof *flight->requests);
        flight->logprob_widths = calloc(rows, 1);
        if (flight->requests == NULL || flight->logprob_widths == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        proto_status_t status = device_event_new(self->device, &flight->started);
        if (status == STATUS_OK) {
            status = device_event_new(self->device, &flight->ended);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

void
run_executor_fini_flights(run_executor_t *self)
{
    for (uint32_t i = 0; i < RUN_STAGE_COUNT; i++) {
        run_flight_t *flight = &self->flights[i];
        free(flight->requests);
        free(flight->logprob_widths);
        device_event_destroy(&flight->started);
        device_event_destroy(&flight->ended);
    }
    free_results(&self->results);
}

void
run_executor_info(const run_executor_t *self, proto_executor_info_t *out)
{
    const file_config_t *config = model_config(self->model);
    uint32_t groups = cache_plan_group_count(self->plan);
    memset(out, 0, sizeof *out);
    out->model_name = proto_text(config->name);
    out->fingerprint = proto_text(self->fingerprint);
    out->vocab_size = config->vocab_size;
    out->model_len_max = self->options.model_len_max;
    out->slot_count = self->options.slot_count;
    out->step_tokens_max = self->options.step_tokens_max;
    out->decode_width = self->options.width;
    out->overlap_depth_max = RUN_STEPS_IN_FLIGHT_MAX - 1;
    out->prefix_granularity = cache_plan_prefix_granularity(self->plan);
    out->parent_count = cache_plan_parent_count(self->plan) + 1;
    out->group_kinds = (proto_column_u32_t){self->group_kinds, groups};
    out->group_granularities = (proto_column_u32_t){self->group_granularities, groups};
    out->group_windows = (proto_column_u32_t){self->group_windows, groups};
    out->group_packings = (proto_column_u32_t){self->group_packings, groups};
    out->page_hash_key = (proto_bytes_t){self->page_hash_key, sizeof self->page_hash_key};
    out->hidden_size = config->hidden_size;
}

/* The cache holds all tokens but the last, which came from another node: the slot's next row reads
 * that one and the candidates behind it.  No row of this slot is in flight. */
static proto_status_t
install_tokens(run_executor_t *self, const proto_slot_setup_t *setup)
{
    uint32_t width = self->buffers.options.width;
    uint32_t slot = setup->slot;
    if (setup->computed + 1 != setup->tokens.count || setup->computed > INT32_MAX - 1 ||
        slot > self->buffers.options.slot_count) {
        return STATUS_ERR_INVALID;
    }
    int32_t length = (int32_t)setup->computed;
    int32_t inputs[RUN_WIDTH_MAX];
    inputs[0] = setup->tokens.data[setup->computed];
    for (uint32_t i = 1; i < width; i++) {
        inputs[i] = i <= setup->candidates.count ? setup->candidates.data[i - 1] : -1;
    }
    proto_status_t status =
        device_upload(self->device, &self->buffers.valid_lengths[slot], &length, sizeof length);
    if (status == STATUS_OK) {
        status = device_upload(self->device, &self->buffers.future_inputs[(size_t)slot * width],
                               inputs, width * sizeof *inputs);
    }
    return status;
}

proto_status_t
run_executor_slot_setup(run_executor_t *self, const proto_slot_setup_t *setup)
{
    if (self->sticky != STATUS_OK) {
        return self->sticky;
    }
    proto_status_t status = sample_pool_setup(self->sample, setup);
    if (status == STATUS_OK) {
        run_tables_clear(self->tables, setup->slot);
        run_ranks_note_setup(self, setup);
        if (self->draft != NULL) {
            run_draft_begin(self->draft, setup->slot, setup->tokens.data, setup->tokens.count);
        }
    }
    if (status == STATUS_OK && self->drafter.draft != NULL) {
        draft_begin(self->drafter.draft, setup->slot, setup->tokens.data, setup->tokens.count);
    }
    if (status == STATUS_OK && setup->computed > 0) {
        status = install_tokens(self, setup);
    }
    return status;
}

static proto_status_t
apply_patches(run_executor_t *self, const proto_step_launch_t *launch)
{
    uint32_t patches = launch->patch_slots.count;
    if (launch->patch_groups.count != patches || launch->patch_columns.count != patches ||
        launch->patch_counts.count != patches) {
        return STATUS_ERR_INVALID;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < patches; i++) {
        uint32_t count = launch->patch_counts.data[i];
        if (count > launch->patch_blocks.count - at) {
            return STATUS_ERR_INVALID;
        }
        proto_status_t status =
            run_tables_patch(self->tables, launch->patch_slots.data[i],
                             launch->patch_groups.data[i], launch->patch_columns.data[i],
                             launch->patch_blocks.data + at, count);
        if (status != STATUS_OK) {
            return status;
        }
        at += count;
    }
    return at == launch->patch_blocks.count ? STATUS_OK : STATUS_ERR_INVALID;
}

static proto_status_t
check_clears(const run_executor_t *self, const proto_step_launch_t *launch)
{
    if (launch->clear_groups.count != launch->clear_blocks.count) {
        return STATUS_ERR_INVALID;
    }
    return launch->clear_blocks.count > self->buffers.options.clear_count_max ? STATUS_ERR_TOO_LARGE
                                                                              : STATUS_OK;
}

static void
launch_clears(run_executor_t *self, const proto_step_launch_t *launch, run_stage_t *stage)
{
    uint32_t count = launch->clear_blocks.count;
    if (count == 0) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        stage->clear_groups[i] = launch->clear_groups.data[i];
        stage->clear_blocks[i] = (int32_t)launch->clear_blocks.data[i];
    }
    kern_page_zero_args_t args = {
        .fields = self->zero_fields,
        .field_count = self->zero_field_count,
        .groups = stage->clear_groups,
        .blocks = stage->clear_blocks,
        .count = count,
    };
    device_ops(self->device)->page_zero(self->stream, &args);
}

/* Which output each row gets its token from, and how many logprobs it wants: both as they are now,
 * since a slot may belong to another request by the time the step is collected. */
static void
note_rows(run_executor_t *self, const proto_step_launch_t *launch, run_flight_t *flight)
{
    uint32_t extends = launch->extend_slots.count;
    uint32_t request = 0;
    flight->step = launch->step;
    flight->width = launch->width;
    flight->extend_count = extends;
    flight->row_count = extends + launch->decode_slots.count;
    flight->has_logprobs = false;
    for (uint32_t row = 0; row < flight->row_count; row++) {
        bool is_extend = row < extends;
        uint32_t slot =
            is_extend ? launch->extend_slots.data[row] : launch->decode_slots.data[row - extends];
        bool has_token = !is_extend || launch->extend_samples.data[row] != 0;
        flight->requests[row] = has_token ? (int32_t)request++ : -1;
        uint32_t width = has_token ? sample_pool_logprob_width(self->sample, slot) : 0;
        flight->logprob_widths[row] = (uint8_t)width;
        flight->has_logprobs = flight->has_logprobs || width > 0;
    }
}

/* Steps without decode rows have no width. */
static run_forward_step_t *
runner_of(const run_executor_t *self, const proto_step_launch_t *launch)
{
    return launch->decode_slots.count == 0 ? self->runner
                                           : run_executor_runner(self, launch->width);
}

static uint32_t
stage_index(const run_executor_t *self, const run_stage_t *stage)
{
    return (uint32_t)(stage - self->buffers.stages);
}

static proto_status_t
launch_outputs(run_executor_t *self, run_stage_t *stage, run_flight_t *flight)
{
    const sample_outputs_t *outputs = sample_pool_outputs(self->sample);
    if (flight->launched.request_count > 0) {
        run_buffers_copy(&self->buffers, stage->outputs, outputs->region, outputs->region_bytes);
    }
    if (flight->has_logprobs) {
        size_t entries = (size_t)flight->launched.logit_rows * KERN_SAMPLE_LOGPROBS_WIDTH;
        run_buffers_copy(&self->buffers, stage->logprob_ids, outputs->logprob_ids,
                         entries * sizeof(int32_t));
        run_buffers_copy(&self->buffers, stage->logprob_values, outputs->logprob_values,
                         entries * sizeof(float));
    }
    run_ranks_launch_end(self, stage, &flight->launched);
    proto_status_t status = STATUS_OK;
    if (self->draft != NULL) {
        status = run_draft_post(self->draft, stage_index(self, stage), flight->requests,
                                flight->launched.sampled_extends);
    }
    if (status == STATUS_OK) {
        status = device_event_record(flight->ended, self->stream);
    }
    if (status == STATUS_OK && self->options.on_complete != NULL) {
        status = device_stream_call(self->stream, self->options.on_complete,
                                    self->options.on_complete_context);
    }
    return status;
}

static proto_status_t
launch_step(run_executor_t *self, const proto_step_launch_t *launch, run_stage_t *stage,
            run_flight_t *flight)
{
    proto_status_t status = device_event_record(flight->started, self->stream);
    if (status != STATUS_OK) {
        return status;
    }
    run_ranks_launch_begin(self, stage);
    launch_clears(self, launch, stage);
    if (self->draft != NULL) {
        status = run_draft_take(self->draft, stage_index(self, stage), launch, stage);
        if (status != STATUS_OK) {
            return status;
        }
    }
    status = run_drafter_note(self, stage_index(self, stage), launch);
    if (status != STATUS_OK) {
        return status;
    }
    run_ranks_share_candidates(self);
    run_batch_t batch = {.stage = stage, .launch = launch};
    batch.tables =
        run_buffers_upload_tables(&self->buffers, stage, self->tables, flight->row_count);
    run_share_begin_step(self, launch->step);
    status = self->shadow.is_wanted
                 ? run_shadow_launch(self, &batch, &flight->launched)
                 : run_forward_step_launch(runner_of(self, launch), &batch, &flight->launched);
    run_share_end_step(self, launch->step);
    if (status != STATUS_OK) {
        return status;
    }
    self->last_logits = flight->launched.logits;
    self->last_launched = flight->launched;
    status = run_drafter_step(self, &batch, &flight->launched);
    if (status != STATUS_OK) {
        return status;
    }
    return launch_outputs(self, stage, flight);
}

static proto_status_t
note_failure(run_executor_t *self, proto_status_t status)
{
    if (status == STATUS_ERR_INTERNAL) {
        const char *fault = run_forward_step_fault(self->runner);
        if (fault[0] == '\0' && self->single != NULL) {
            fault = run_forward_step_fault(self->single);
        }
        (void)snprintf(self->fault, sizeof self->fault, "%s",
                       fault[0] != '\0' ? fault : proto_status_text(status));
    } else {
        const char *fault = self->device->fault;
        (void)snprintf(self->fault, sizeof self->fault, "the device failed: %s",
                       fault != NULL ? fault : proto_status_text(status));
    }
    self->sticky = status;
    return status;
}

proto_status_t
run_executor_launch(run_executor_t *self, const proto_step_launch_t *launch)
{
    if (self->sticky != STATUS_OK) {
        return self->sticky;
    }
    if (self->launched_count - self->collected_count == RUN_STEPS_IN_FLIGHT_MAX) {
        return STATUS_FULL;
    }
    uint32_t index = (uint32_t)(self->launched_count % RUN_STAGE_COUNT);
    run_stage_t *stage = &self->buffers.stages[index];
    run_flight_t *flight = &self->flights[index];
    if (launch->decode_slots.count > 0 && launch->width != 1 &&
        launch->width != self->options.width) {
        return STATUS_ERR_INVALID;
    }
    proto_status_t status = check_clears(self, launch);
    if (status == STATUS_OK) {
        status = run_forward_step_stage(self->runner, launch, stage);
    }
    if (status == STATUS_OK) {
        status = apply_patches(self, launch);
    }
    if (status != STATUS_OK) {
        return status;
    }
    note_rows(self, launch, flight);
    run_ranks_note_launch(self, launch);
    status = launch_step(self, launch, stage, flight);
    if (status == STATUS_OK) {
        status = device_stream_check(self->stream);
    }
    if (status == STATUS_ERR_INVALID || status == STATUS_ERR_TOO_LARGE) {
        return status;
    }
    if (status != STATUS_OK) {
        return note_failure(self, status);
    }
    self->launched_count++;
    return STATUS_OK;
}

/* What the one copy of the outputs brought. */
typedef struct {
    const int32_t *tokens; /* sampled extends have one row, decodes behind them `width` each */
    const int32_t *accept_lengths;
    const uint8_t *row_flags;
} outputs_view_t;

static outputs_view_t
view_outputs(const sample_outputs_t *outputs, const run_stage_t *stage)
{
    const uint8_t *region = outputs->region;
    const uint8_t *base = stage->outputs;
    size_t lengths_at = (size_t)((const uint8_t *)outputs->accept_lengths - region);
    outputs_view_t view = {
        .tokens = (const int32_t *)(const void *)base,
        .accept_lengths = (const int32_t *)(const void *)(base + lengths_at),
        .row_flags = base + (outputs->row_flags - region),
    };
    return view;
}

/* Tokens of one output that count: those before a NaN, else all that were accepted. */
static uint32_t
token_count_of(const outputs_view_t *view, uint32_t request)
{
    uint32_t accepted = (uint32_t)view->accept_lengths[request];
    require(accepted >= 1);
    return (view->row_flags[request] & PROTO_ROW_NAN) != 0 ? accepted - 1 : accepted;
}

/* From output order to row order. */
static uint32_t
gather_rows(run_executor_t *self, const run_flight_t *flight, const run_stage_t *stage,
            uint32_t *entry_count_p)
{
    outputs_view_t view = view_outputs(sample_pool_outputs(self->sample), stage);
    run_results_t *results = &self->results;
    uint32_t sampled = flight->launched.sampled_extends;
    uint32_t token_count = 0;
    uint32_t entries = 0;
    for (uint32_t row = 0; row < flight->row_count; row++) {
        int32_t request = flight->requests[row];
        uint32_t index = request < 0 ? 0 : (uint32_t)request;
        uint32_t count = request < 0 ? 0 : token_count_of(&view, index);
        uint32_t width = count > 0 ? flight->logprob_widths[row] : 0;
        results->row_flags[row] = request < 0 ? 0 : view.row_flags[index];
        results->token_counts[row] = (uint8_t)count;
        results->logprob_widths[row] = (uint8_t)width;
        size_t from = index < sampled ? index : sampled + (size_t)(index - sampled) * flight->width;
        for (uint32_t i = 0; i < count; i++, from++) {
            results->tokens[token_count++] = view.tokens[from];
            if (width > 0) {
                size_t at = from * KERN_SAMPLE_LOGPROBS_WIDTH;
                memcpy(results->logprob_ids + entries, stage->logprob_ids + at,
                       width * sizeof(int32_t));
                memcpy(results->logprob_values + entries, stage->logprob_values + at,
                       width * sizeof(float));
            }
            entries += width;
        }
    }
    *entry_count_p = entries;
    return token_count;
}

proto_status_t
run_executor_collect(run_executor_t *self, proto_step_done_t *out)
{
    run_ranks_look(self);
    if (self->sticky == STATUS_OK && device_stream_check(self->stream) != STATUS_OK) {
        return note_failure(self, STATUS_ERR_DEVICE);
    }
    if (self->launched_count == self->collected_count) {
        return self->sticky != STATUS_OK ? self->sticky : STATUS_END;
    }
    uint32_t index = (uint32_t)(self->collected_count % RUN_STAGE_COUNT);
    run_flight_t *flight = &self->flights[index];
    proto_status_t status = device_event_query(flight->ended);
    if (status != STATUS_OK) {
        return status < 0 ? note_failure(self, status) : status;
    }
    uint32_t entries = 0;
    uint32_t tokens = gather_rows(self, flight, &self->buffers.stages[index], &entries);
    const run_results_t *results = &self->results;
    memset(out, 0, sizeof *out);
    out->step = flight->step;
    out->mode = (uint32_t)flight->launched.mode;
    out->duration_ns = device_event_time_ns(flight->ended) - device_event_time_ns(flight->started);
    out->token_counts = (proto_column_u8_t){results->token_counts, flight->row_count};
    out->row_flags = (proto_column_u8_t){results->row_flags, flight->row_count};
    out->tokens = (proto_column_i32_t){results->tokens, tokens};
    out->logprob_widths = (proto_column_u8_t){results->logprob_widths, flight->row_count};
    out->logprob_ids = (proto_column_i32_t){results->logprob_ids, entries};
    out->logprob_values = (proto_column_f32_t){results->logprob_values, entries};
    run_drafter_collect(self, index, out);
    if (self->draft != NULL) {
        run_draft_collect(self->draft, index, out);
    }
    self->collected_count++;
    return STATUS_OK;
}

proto_status_t
run_executor_reset(run_executor_t *self)
{
    proto_status_t status = device_stream_synchronize(self->stream);
    if (status != STATUS_OK) {
        return status;
    }
    self->collected_count = self->launched_count;
    run_share_forget_steps(self);
    run_tables_clear_all(self->tables);
    self->mirror = 0;
    return self->sticky;
}

void
run_executor_draft_admit(run_executor_t *self, uint64_t epoch)
{
    if (self->draft != NULL) {
        run_draft_admit(self->draft, epoch);
    }
}

/* ---- what an operator may ask of a running executor ------------------------------------------ */

void
run_executor_set_graphs(run_executor_t *self, bool on)
{
    self->graphs_off = !on;
    run_forward_step_set_graphs(self->runner, on);
    if (self->single != NULL) {
        run_forward_step_set_graphs(self->single, on);
    }
}

bool
run_executor_has_graphs_off(const run_executor_t *self)
{
    return self->graphs_off;
}

void
run_executor_graphs_text(const run_executor_t *self, char *out, size_t out_size_bytes)
{
    uint32_t count = run_forward_step_graph_count(self->runner);
    uint32_t top = run_forward_step_ladder_top(self->runner);
    if (count == 0) {
        (void)snprintf(out, out_size_bytes, "no decode graphs: every step runs eagerly");
    } else if (self->graphs_off) {
        (void)snprintf(out, out_size_bytes,
                       "graphs are off: every decode step runs eagerly; %" PRIu32
                       " graphs are kept",
                       count);
    } else {
        (void)snprintf(out, out_size_bytes,
                       self->options.no_padding
                           ? "graphs are on: decode steps of exactly the size of one of %" PRIu32
                             " graphs replay it, the largest is of %" PRIu32
                             " requests; all others run eagerly"
                           : "graphs are on: decode steps replay the next larger one of %" PRIu32
                             " graphs, up to %" PRIu32 " requests",
                       count, top);
    }
}

proto_status_t
run_executor_want_check(run_executor_t *self, bool is_planted)
{
    if (self->comm != NULL || self->graphs_off || run_forward_step_graph_count(self->runner) == 0) {
        return STATUS_ERR_REFUSED;
    }
    self->shadow = (run_shadow_t){.is_wanted = true, .is_planted = is_planted};
    return STATUS_OK;
}

proto_status_t
run_executor_take_check(run_executor_t *self, proto_status_t *result, const char **text_p)
{
    if (!self->shadow.is_done) {
        return self->shadow.is_wanted ? STATUS_AGAIN : STATUS_END;
    }
    self->shadow.is_done = false;
    *result = self->shadow.status;
    *text_p = self->shadow.text;
    return STATUS_OK;
}

void
run_executor_drop_check(run_executor_t *self)
{
    self->shadow.is_wanted = false;
    self->shadow.is_done = false;
}

bool
run_executor_is_busy(const run_executor_t *self)
{
    return self->launched_count > self->collected_count;
}

const char *
run_executor_summary(const run_executor_t *self)
{
    return self->summary;
}

const char *
run_executor_fault(const run_executor_t *self)
{
    return self->fault;
}

uint32_t
run_executor_layer(const run_executor_t *self)
{
    return self->layer == NULL ? 0 : atomic_load_explicit(self->layer, memory_order_relaxed);
}
