/* Sampling, verification and commit: one rule for every batch. */
#include "run_verify.h"

void
run_verify_extends(const run_forward_step_options_t *o, const float *logits, uint32_t extends,
                   uint32_t sampled)
{
    run_buffers_t *buffers = o->buffers;
    sample_launch_t sample = {
        .logits = logits,
        .logits_stride = model_config(o->model)->vocab_size,
        .bs = sampled,
        .width = 1,
        .slots = buffers->header.sample_slots,
        .seq_lens = buffers->header.sample_lens,
        .candidates = NULL,
        .first_row = 0,
        .first_request = 0,
    };
    sample_pool_launch(o->sample, &sample);
    kern_extend_commit_args_t commit = {
        .write_slots = buffers->write_slots,
        .seq_lens = buffers->seq_lens,
        .sample_indices = buffers->header.sample_indices,
        .tokens = sample_pool_outputs(o->sample)->tokens,
        .request_count = extends,
        .width = buffers->options.width,
        .valid_lengths = buffers->valid_lengths,
        .future_inputs = buffers->future_inputs,
    };
    device_ops(o->device)->extend_commit(o->stream, &commit);
}

void
run_verify_decodes(const run_forward_step_options_t *o, const run_window_t *window)
{
    run_buffers_t *buffers = o->buffers;
    uint32_t width = o->width;
    if (window->bs == 0) {
        return;
    }
    sample_launch_t verify = {
        .logits = window->logits,
        .logits_stride = model_config(o->model)->vocab_size,
        .bs = window->bs,
        .width = width,
        .slots = buffers->request_slots + window->extends,
        .seq_lens = buffers->seq_lens + window->extends,
        .candidates = buffers->input_ids + window->extend_tokens,
        .first_row = window->sampled_extends,
        .first_request = window->sampled_extends,
    };
    sample_pool_launch(o->sample, &verify);
    const sample_outputs_t *outputs = sample_pool_outputs(o->sample);
    const int32_t *accept_lengths = outputs->accept_lengths + window->sampled_extends;
    kern_decode_commit_args_t commit = {
        .write_slots = buffers->write_slots + window->extends,
        .tokens = outputs->tokens + window->sampled_extends,
        .accept_lengths = accept_lengths,
        .bs = window->bs,
        .width = width,
        .stride = buffers->options.width,
        .valid_lengths = buffers->valid_lengths,
        .future_inputs = buffers->future_inputs,
    };
    device_ops(o->device)->decode_commit(o->stream, &commit);
}

void
run_verify_commit_states(const run_forward_step_options_t *o, uint32_t bs, uint32_t extends,
                         uint32_t sampled_extends)
{
    if (bs == 0 || o->width == 1) {
        return;
    }
    const int32_t *accept_lengths = sample_pool_outputs(o->sample)->accept_lengths;
    backend_commit_speculative_state_after_verify(o->backend, accept_lengths + sampled_extends, bs,
                                                  extends);
}
