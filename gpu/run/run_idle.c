/* The idle forward. */
#include "run_idle.h"

/* The extend bundle of no extends: empty, never missing. */
static const int32_t nothing[1];

static proto_status_t
init_metadata(const run_forward_step_options_t *o, uint32_t bs)
{
    const run_buffers_t *buffers = o->buffers;
    backend_tables_t placeholder = run_buffers_placeholder_tables(buffers);
    backend_extend_t extend = {
        .bs = bs,
        .num_extends = 0,
        .request_slots = buffers->request_slots,
        .seq_lens = buffers->seq_lens,
        .mode = BACKEND_MODE_IDLE,
        .tables = &placeholder,
        .extend_seq_lens = buffers->header.extend_lens,
        .extend_prefix_lens = buffers->header.prefix_lens,
        .extend_cu_lens = buffers->header.cu_lens,
        .extend_seq_lens_host = nothing,
        .extend_prefix_lens_host = nothing,
        .extend_replay_lens_host = nothing,
        .extend_prompt_lens_host = nothing,
        .extend_with_prefix = false,
    };
    return backend_init_forward_metadata(o->backend, &extend);
}

proto_status_t
run_idle_forward(const run_forward_step_options_t *o, uint32_t bs)
{
    run_buffers_t *buffers = o->buffers;
    if (bs == 0 || bs > buffers->options.bs_max) {
        return STATUS_ERR_INVALID;
    }
    run_decode_fill_t fill = {.bs = bs,
                              .width = o->width,
                              .vocabulary = model_config(o->model)->vocab_size};
    run_buffers_fill_decode(buffers, &fill);
    proto_status_t status = init_metadata(o, bs);
    if (status != STATUS_OK) {
        return status;
    }
    model_context_t context = {
        .stream = o->stream,
        .backend = o->backend,
        .mode = BACKEND_MODE_IDLE,
        .rows = bs * o->width,
        .input_ids = buffers->input_ids,
        .positions = buffers->positions,
        .workspace = o->workspace->memory,
        .workspace_bytes = o->workspace->size_bytes,
        .progress = o->progress,
    };
    (void)model_forward(o->model, &context);
    return STATUS_OK;
}
