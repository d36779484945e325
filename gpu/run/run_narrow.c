/* The row plan of narrowing models. */
#include "run_narrow.h"

#include <stdlib.h>

#include "proto_require.h"

struct run_narrow {
    run_buffers_options_t sizes;
    uint32_t rows_per_request_max;
    uint32_t rows_max;
    size_t count;    /* int32 of a part: sources, sums, gathers */
    int32_t *stages; /* pinned, [RUN_STAGE_COUNT][count] */
    int32_t *memory; /* device, [count] */
    uint64_t planned;
    model_view_t view;
};

static uint32_t
max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

proto_status_t
run_narrow_new(const run_buffers_options_t *sizes, uint32_t rows_per_request_max,
               run_narrow_t **out_p)
{
    require(rows_per_request_max > 0);
    run_narrow_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->sizes = *sizes;
    self->rows_per_request_max = rows_per_request_max;
    self->rows_max = sizes->bs_max * max_of(rows_per_request_max, sizes->width);
    self->count = (size_t)self->rows_max + sizes->bs_max + 1 + (size_t)sizes->bs_max * sizes->width;
    proto_status_t status =
        device_alloc(sizes->device, DEVICE_MEMORY_PINNED,
                     RUN_STAGE_COUNT * self->count * sizeof(int32_t), (void **)&self->stages);
    if (status == STATUS_OK) {
        status = device_alloc(sizes->device, DEVICE_MEMORY_DEVICE, self->count * sizeof(int32_t),
                              (void **)&self->memory);
    }
    if (status != STATUS_OK) {
        run_narrow_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
run_narrow_destroy(run_narrow_t **self_p)
{
    require(self_p != NULL);
    run_narrow_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    device_release(self->sizes.device, DEVICE_MEMORY_PINNED, (void **)&self->stages);
    device_release(self->sizes.device, DEVICE_MEMORY_DEVICE, (void **)&self->memory);
    free(self);
    *self_p = NULL;
}

const model_view_t *
run_narrow_plan(run_narrow_t *self, const proto_step_launch_t *launch)
{
    uint32_t extends = launch->extend_slots.count;
    uint32_t width = launch->width;
    int32_t *sources = self->stages + (self->planned++ % RUN_STAGE_COUNT) * self->count;
    int32_t *cu_lens = sources + self->rows_max;
    int32_t *gathers = cu_lens + self->sizes.bs_max + 1;
    uint32_t row = 0;
    uint32_t sampled = 0;
    uint32_t token = 0;
    cu_lens[0] = 0;
    for (uint32_t i = 0; i < extends; i++) {
        uint32_t length = launch->extend_lengths.data[i];
        bool is_complete = launch->extend_samples.data[i] != 0;
        uint32_t wanted = is_complete ? self->rows_per_request_max : 1;
        uint32_t kept = wanted < length ? wanted : length;
        token += length;
        for (uint32_t t = kept; t > 0; t--) {
            sources[row++] = (int32_t)(token - t);
        }
        cu_lens[i + 1] = (int32_t)row;
        if (is_complete) {
            gathers[sampled++] = (int32_t)row - 1;
        }
    }
    self->view.extend_rows = row;
    for (uint32_t i = 0; i < launch->decode_slots.count * width; i++) {
        gathers[sampled++] = (int32_t)row;
        sources[row++] = (int32_t)token++;
    }
    require(row <= self->rows_max);
    kern_copy_args_t copy = {.from = sources,
                             .to = self->memory,
                             .size_bytes = self->count * sizeof(int32_t)};
    device_ops(self->sizes.device)->copy(self->sizes.stream, &copy);
    self->view.rows = row;
    self->view.source_rows = self->memory;
    self->view.cu_lens = self->memory + (cu_lens - sources);
    self->view.gather_rows = self->memory + (gathers - sources);
    return &self->view;
}

uint32_t
run_narrow_rows_max(const run_narrow_t *self)
{
    return self->rows_max;
}
