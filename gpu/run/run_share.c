#include "run_share.h"

#include "model_base.h"
#include "proto_require.h"
#include "run_executor_private.h"

proto_status_t
run_share_open(run_executor_t *self)
{
    if (!self->options.share_cache) {
        return STATUS_OK;
    }
    void *memory = NULL;
    proto_status_t status =
        device_alloc(self->device, DEVICE_MEMORY_SHARED, sizeof *self->ready, &memory);
    if (status != STATUS_OK) {
        return status;
    }
    self->ready = memory;
    device_share_t share;
    status = device_share(self->device, memory, &share);
    if (status == STATUS_ERR_UNSUPPORTED) {
        return run_executor_fail(
            self, STATUS_ERR_CONFIG,
            "the cache of the device '%s' cannot be shared with a kv-transfer: "
            "handles of CUDA IPC are not made yet; use --device cpu",
            self->device->name);
    }
    return status;
}

void
run_share_close(run_executor_t *self)
{
    if (self->ready != NULL) {
        device_release(self->device, DEVICE_MEMORY_SHARED, (void **)&self->ready);
    }
}

void
run_share_begin_step(run_executor_t *self, uint64_t step)
{
    self->backend->layers_ready = self->ready == NULL ? NULL : proto_layers_open(self->ready, step);
}

/* The last one of a step: whatever the drafter wrote lies before it on the stream. */
void
run_share_end_step(run_executor_t *self, uint64_t step)
{
    (void)step;
    backend_record_pd_cache_step(self->backend);
    self->backend->layers_ready = NULL;
}

void
run_share_forget_steps(run_executor_t *self)
{
    if (self->ready != NULL) {
        proto_layers_clear(self->ready);
    }
}

/* ---- the layout ------------------------------------------------------------------------------ */

proto_status_t
run_share_describe(const run_executor_t *self, run_share_t *out)
{
    if (self->ready == NULL) {
        return STATUS_ERR_UNSUPPORTED;
    }
    uint32_t count = cache_plan_field_count(self->plan);
    *out = (run_share_t){
        .rank = 0,
        .rank_count = 1,
        .layer_count = cache_plan_field(self->plan, count - 1)->layer + 1,
        .field_count = count,
    };
    proto_status_t status = cache_arena_share(self->arena, &out->arena);
    return status == STATUS_OK ? device_share(self->device, self->ready, &out->ready) : status;
}

/* All units of a part are here. */
static run_share_part_t
whole(uint32_t units, size_t unit_bytes)
{
    return (run_share_part_t){.extent = units,
                              .begin = 0,
                              .count = units,
                              .unit_bytes = (uint32_t)unit_bytes};
}

/* Queries, keys and values go through one convolution; each is cut among ranks by its heads. */
static void
fill_conv(const file_config_t *config, run_share_field_t *out)
{
    size_t key_bytes = config->linear_key_head_dim * sizeof(float);
    size_t value_bytes = config->linear_value_head_dim * sizeof(float);
    out->part_count = 3;
    out->parts[0] = whole(config->linear_key_head_count, key_bytes);
    out->parts[1] = whole(config->linear_key_head_count, key_bytes);
    out->parts[2] = whole(config->linear_value_head_count, value_bytes);
}

void
run_share_field(const run_executor_t *self, uint32_t index, run_share_field_t *out)
{
    const cache_field_t *field = cache_plan_field(self->plan, index);
    cache_place_t place = cache_plan_place(self->plan, index);
    size_t value_bytes = cache_dtype_size_bytes(field->dtype);
    *out = (run_share_field_t){
        .layer = field->layer,
        .name = field->name,
        .dtype = field->dtype,
        .group = field->group,
        .rows = field->rows,
        .part_count = 1,
        .page0_offset_bytes = place.page0_offset_bytes,
        .stride_bytes = place.stride_bytes,
    };
    switch (field->name) {
    case CACHE_FIELD_K:
    case CACHE_FIELD_V:
        out->parts[0] = whole(field->heads, field->head_dim * value_bytes);
        return;
    case CACHE_FIELD_CONV:
        fill_conv(model_config(self->model), out);
        return;
    case CACHE_FIELD_STATE: /* a value head is a unit, not a row: ranks have some of them */
        out->rows = 1;
        out->parts[0] = whole(field->rows, (size_t)field->heads * field->head_dim * value_bytes);
        return;
    case CACHE_FIELD_LATENT: /* every rank has the whole of it */
        out->parts[0] = whole(1, (size_t)field->heads * field->head_dim * value_bytes);
        return;
    }
    require(false);
}
