/* A look inside, for tests. */
#include "run_inspect.h"

#include <stdlib.h>
#include <string.h>

#include "run_executor_private.h"
#include "run_idle.h"

proto_status_t
run_inspect_logits(run_executor_t *self, float *out, size_t count, uint32_t *row_count)
{
    proto_status_t status = device_stream_synchronize(self->stream);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t vocabulary = model_config(self->model)->vocab_size;
    size_t needed = (size_t)self->last_launched.logit_rows * vocabulary;
    if (needed > count) {
        return STATUS_ERR_TOO_LARGE;
    }
    *row_count = self->last_launched.logit_rows;
    if (needed == 0) {
        return STATUS_OK; /* nothing was launched since the start or a rebind */
    }
    run_buffers_copy(&self->buffers, out, self->last_logits, needed * sizeof *out);
    return device_stream_synchronize(self->stream);
}

uint32_t
run_inspect_graph_count(const run_executor_t *self)
{
    return run_forward_step_graph_count(self->runner);
}

uint32_t
run_inspect_padded_bs(const run_executor_t *self, uint32_t bs)
{
    return run_forward_step_padded_bs(self->runner, bs);
}

proto_status_t
run_inspect_plant_candidates(run_executor_t *self, uint32_t slot, const int32_t *candidates,
                             uint32_t count)
{
    uint32_t width = self->options.width;
    if (slot == 0 || slot > self->options.slot_count || count > width - 1) {
        return STATUS_ERR_INVALID;
    }
    int32_t window[RUN_WIDTH_MAX];
    for (uint32_t i = 0; i + 1 < width; i++) {
        window[i] = i < count ? candidates[i] : -1;
    }
    run_buffers_copy(&self->buffers, self->buffers.future_inputs + (size_t)slot * width + 1, window,
                     (width - 1) * sizeof *window);
    return device_stream_synchronize(self->stream);
}

proto_status_t
run_inspect_future(run_executor_t *self, uint32_t slot, int32_t *out, uint32_t count)
{
    uint32_t width = self->options.width;
    if (slot == 0 || slot > self->options.slot_count || count != width) {
        return STATUS_ERR_INVALID;
    }
    run_buffers_copy(&self->buffers, out, self->buffers.future_inputs + (size_t)slot * width,
                     width * sizeof *out);
    return device_stream_synchronize(self->stream);
}

proto_status_t
run_inspect_plant_rebind(run_executor_t *self)
{
    proto_status_t status = device_stream_synchronize(self->stream);
    if (status != STATUS_OK) {
        return status;
    }
    if (self->planted_backend != NULL) {
        return STATUS_ERR_INVALID;
    }
    self->planted_backend = self->backend;
    status = run_executor_make_backend(self, self->options.width, &self->backend);
    if (status != STATUS_OK) {
        self->backend = self->planted_backend;
        self->planted_backend = NULL;
        return status;
    }
    run_forward_step_set_backend(self->runner, self->backend);
    return STATUS_OK;
}

uint32_t
run_inspect_bucket_count(const run_executor_t *self)
{
    return run_prefill_graph_bucket_count(run_forward_step_prefill(self->runner));
}

uint32_t
run_inspect_bucket(const run_executor_t *self, uint32_t rows)
{
    const run_prefill_graph_t *prefill = run_forward_step_prefill(self->runner);
    return prefill == NULL ? 0 : run_prefill_graph_bucket(prefill, rows);
}

uint32_t
run_inspect_decoder_count(const run_executor_t *self)
{
    const run_prefill_graph_t *prefill = run_forward_step_prefill(self->runner);
    return prefill == NULL ? 0 : run_prefill_graph_decoder_count(prefill);
}

uint32_t
run_inspect_decoder_bucket(const run_executor_t *self, uint32_t rows)
{
    const run_prefill_graph_t *prefill = run_forward_step_prefill(self->runner);
    return prefill == NULL ? 0 : run_prefill_graph_decoder_bucket(prefill, rows);
}

proto_status_t
run_inspect_poison_pool(run_executor_t *self, bool is_prefill)
{
    const run_prefill_graph_t *prefill = run_forward_step_prefill(self->runner);
    device_pool_t *pool = run_forward_step_pool(self->runner);
    if (is_prefill) {
        pool = prefill == NULL ? NULL : run_prefill_graph_pool(prefill);
    }
    if (pool == NULL) {
        return STATUS_ERR_INVALID;
    }
    kern_fill_args_t args = {.value = 0xff};
    args.to = device_pool_memory(pool, &args.size_bytes);
    device_ops(self->device)->fill(self->stream, &args);
    return device_stream_synchronize(self->stream);
}

proto_status_t
run_inspect_plant_pool(run_executor_t *self)
{
    run_prefill_graph_t *prefill = run_forward_step_prefill(self->runner);
    return prefill == NULL ? STATUS_ERR_INVALID : run_prefill_graph_plant_move(prefill);
}

proto_status_t
run_inspect_rebind(run_executor_t *self, uint32_t parent_count)
{
    proto_status_t status = run_executor_reset(self);
    return status == STATUS_OK ? run_executor_rebind(self, parent_count) : status;
}

uint64_t
run_inspect_used_bytes(const run_executor_t *self)
{
    return device_memory_used_bytes(self->device);
}

proto_status_t
run_inspect_poison_cache(run_executor_t *self)
{
    kern_fill_args_t args = {
        .to = cache_arena_memory(self->arena),
        .size_bytes = cache_plan_arena_bytes(self->plan),
        .value = 0xff,
    };
    device_ops(self->device)->fill(self->stream, &args);
    return device_stream_synchronize(self->stream);
}

proto_status_t
run_inspect_idle(run_executor_t *self, uint32_t bs)
{
    proto_status_t status = run_idle_forward(run_forward_step_options(self->runner), bs);
    return status == STATUS_OK ? device_stream_synchronize(self->stream) : status;
}

proto_status_t
run_inspect_block_digest(run_executor_t *self, uint32_t group, uint32_t block, uint64_t *out)
{
    size_t size_bytes = 0;
    for (uint32_t i = 0; i < self->zero_field_count; i++) {
        size_bytes += self->zero_fields[i].group == group ? self->zero_fields[i].page_bytes : 0;
    }
    uint8_t *bytes = malloc(size_bytes + 1);
    if (bytes == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < self->zero_field_count; i++) {
        const kern_page_field_t *field = &self->zero_fields[i];
        if (field->group == group) {
            run_buffers_copy(&self->buffers, bytes + at,
                             field->pages + (size_t)block * field->stride_bytes, field->page_bytes);
            at += field->page_bytes;
        }
    }
    /* One wait for all fields: tests ask about every block. */
    proto_status_t status = device_stream_synchronize(self->stream);
    uint64_t digest = UINT64_C(14695981039346656037);
    for (size_t i = 0; status == STATUS_OK && i < size_bytes; i++) {
        digest = (digest ^ bytes[i]) * UINT64_C(1099511628211);
    }
    free(bytes);
    if (status == STATUS_OK) {
        *out = digest;
    }
    return status;
}
