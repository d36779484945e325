/* What an executor does that is one of several ranks: a share of the checkpoint, a cache as large
 * as the smallest of the others, and a look at whether all were told the same. */
#include <inttypes.h>
#include <string.h>

#include "run_executor_private.h"

#define DIGEST_BEGIN UINT64_C(14695981039346656037)

uint32_t
run_ranks_count(const run_executor_t *self)
{
    return self->options.group == NULL ? 1 : device_group_rank_count(self->options.group);
}

/* ---- start ------------------------------------------------------------------------------------
 */

proto_status_t
run_ranks_open(run_executor_t *self)
{
    if (self->options.group == NULL) {
        return STATUS_OK;
    }
    if (self->is_cuda) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "%" PRIu32 " ranks: the CUDA device has no collectives yet "
                                 "(--device cpu has)",
                                 run_ranks_count(self));
    }
    if (self->options.share_cache) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "%" PRIu32 " ranks: a cache that others map is for one executor "
                                 "that has all of the model",
                                 run_ranks_count(self));
    }
    return device_host_comm_new(self->device, self->options.group, &self->comm);
}

proto_status_t
run_ranks_slice(run_executor_t *self)
{
    char error[FILE_ERROR_SIZE_BYTES] = "";
    if (self->comm == NULL) {
        return STATUS_OK;
    }
    proto_status_t status =
        file_model_slice(self->file, self->comm->rank, self->comm->rank_count, error, sizeof error);
    return status == STATUS_OK ? status : run_executor_fail(self, status, "%s", error);
}

static proto_status_t
group_failed(run_executor_t *self)
{
    const char *fault = device_group_fault(self->options.group);
    return run_executor_fail(self, STATUS_ERR_DEVICE, "%s",
                             fault != NULL ? fault : "the group of ranks has failed");
}

proto_status_t
run_ranks_agree_blocks(run_executor_t *self, uint32_t *parent_count)
{
    uint64_t least = 0;
    if (self->comm == NULL) {
        return STATUS_OK;
    }
    if (device_group_agree_min(self->options.group, *parent_count, &least) != STATUS_OK) {
        return group_failed(self);
    }
    *parent_count = (uint32_t)least;
    return STATUS_OK;
}

static uint64_t
digest_add(uint64_t digest, const void *bytes, size_t size_bytes)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size_bytes; i++) {
        digest = (digest ^ at[i]) * UINT64_C(1099511628211);
    }
    return digest;
}

proto_status_t
run_ranks_meet(run_executor_t *self)
{
    if (self->comm == NULL) {
        return STATUS_OK;
    }
    uint32_t len = 0;
    const uint32_t *ladder = run_forward_step_ladder(self->runner, &len);
    const uint32_t numbers[] = {
        cache_plan_parent_count(self->plan),
        run_forward_step_graph_count(self->runner),
        run_prefill_graph_bucket_count(run_forward_step_prefill(self->runner)),
        self->options.slot_count,
        self->options.step_tokens_max,
        self->options.model_len_max,
        self->options.width,
        self->options.block_granularity,
        (uint32_t)self->cache_dtype,
        self->options.int8_activations ? 1 : 0,
        self->options.verify_by_rejection ? 1 : 0,
    };
    /* Not the fingerprint: only rank 0 knows of a drafter. */
    uint64_t digest = digest_add(DIGEST_BEGIN, numbers, sizeof numbers);
    digest = digest_add(digest, ladder, len * sizeof *ladder);
    digest = digest_add(digest, model_config(self->model)->digest, FILE_DIGEST_SIZE_BYTES);
    if (device_group_agree_same(self->options.group, digest, "what it loaded and captured") !=
        STATUS_OK) {
        return group_failed(self);
    }
    run_executor_add_summary(self, "ranks: this is %" PRIu32 " of %" PRIu32 "\n", self->comm->rank,
                             self->comm->rank_count);
    return STATUS_OK;
}

void
run_ranks_look(run_executor_t *self)
{
    const char *fault = self->comm == NULL ? NULL : device_group_fault(self->options.group);
    if (fault != NULL) {
        self->device->fault = fault;
    }
}

/* ---- mirrors ----------------------------------------------------------------------------------
 */

static void
note(run_executor_t *self, const void *bytes, size_t size_bytes)
{
    self->mirror = digest_add(digest_add(self->mirror, &size_bytes, sizeof size_bytes), bytes,
                              bytes == NULL ? 0 : size_bytes);
}

void
run_ranks_note_setup(run_executor_t *self, const proto_slot_setup_t *setup)
{
    if (self->comm == NULL) {
        return;
    }
    note(self, &setup->slot, sizeof setup->slot);
    note(self, setup->tokens.data, setup->tokens.count * sizeof *setup->tokens.data);
    note(self, setup->sampling.data, setup->sampling.count);
}

void
run_ranks_note_launch(run_executor_t *self, const proto_step_launch_t *launch)
{
    if (self->comm == NULL) {
        return;
    }
    const uint64_t numbers[] = {launch->step, launch->width, self->graphs_off ? 1 : 0};
    const struct {
        const void *data;
        size_t size_bytes;
    } columns[] = {
        {launch->extend_slots.data, launch->extend_slots.count * sizeof(uint32_t)},
        {launch->extend_begins.data, launch->extend_begins.count * sizeof(uint32_t)},
        {launch->extend_lengths.data, launch->extend_lengths.count * sizeof(uint32_t)},
        {launch->extend_samples.data, launch->extend_samples.count},
        {launch->extend_tokens.data, launch->extend_tokens.count * sizeof(int32_t)},
        {launch->decode_slots.data, launch->decode_slots.count * sizeof(uint32_t)},
        {launch->patch_slots.data, launch->patch_slots.count * sizeof(uint32_t)},
        {launch->patch_groups.data, launch->patch_groups.count},
        {launch->patch_columns.data, launch->patch_columns.count * sizeof(uint32_t)},
        {launch->patch_counts.data, launch->patch_counts.count * sizeof(uint32_t)},
        {launch->patch_blocks.data, launch->patch_blocks.count * sizeof(uint32_t)},
        {launch->clear_groups.data, launch->clear_groups.count},
        {launch->clear_blocks.data, launch->clear_blocks.count * sizeof(uint32_t)},
    };
    note(self, numbers, sizeof numbers);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        note(self, columns[i].data, columns[i].size_bytes);
    }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

void
run_ranks_launch_begin(run_executor_t *self, run_stage_t *stage)
{
    if (self->comm == NULL) {
        return;
    }
    stage->mirror = self->mirror;
    device_comm_agree(self->comm, self->stream, &stage->mirror, sizeof stage->mirror,
                      "what it was told up to this step");
}

void
run_ranks_share_candidates(run_executor_t *self)
{
    const run_buffers_options_t *sizes = &self->buffers.options;
    if (self->comm != NULL && sizes->width > 1) {
        device_comm_broadcast(self->comm, self->stream, self->buffers.future_inputs,
                              (size_t)(sizes->slot_count + 2) * sizes->width * sizeof(int32_t));
    }
}

void
run_ranks_launch_end(run_executor_t *self, const run_stage_t *stage, const run_launched_t *launched)
{
    if (self->comm == NULL) {
        return;
    }
    /* They lie first in the region: a row of each sampled extend, a window of each decode. */
    device_comm_agree(self->comm, self->stream, stage->outputs,
                      launched->logit_rows * sizeof(int32_t), "the tokens of a step");
}
