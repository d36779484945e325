/* Which forward code runs which architecture. */
#include "model_base.h"

#include "model_deepseek.h"
#include "model_gemma3.h"
#include "model_gpt_oss.h"
#include "model_llama.h"
#include "model_qwen35.h"
#include "proto_require.h"

proto_status_t
model_new(device_t *device, const file_model_t *file, model_progress_fn progress,
          void *progress_context, model_t **out_p)
{
    require(device != NULL);
    require(out_p != NULL);
    switch (file_model_config(file)->arch) {
    case FILE_ARCH_LLAMA:
    case FILE_ARCH_QWEN3:
        return model_llama_new(device, file, progress, progress_context, out_p);
    case FILE_ARCH_GEMMA3:
        return model_gemma3_new(device, file, progress, progress_context, out_p);
    case FILE_ARCH_GPT_OSS:
        return model_gpt_oss_new(device, file, progress, progress_context, out_p);
    case FILE_ARCH_DEEPSEEK_V3:
        return model_deepseek_new(device, file, progress, progress_context, out_p);
    case FILE_ARCH_QWEN35:
        return model_qwen35_new(device, file, progress, progress_context, out_p);
    }
    return STATUS_ERR_UNSUPPORTED;
}

bool
model_runs_on(const device_t *device, const file_config_t *config)
{
    bool has_plain_layers = config->arch == FILE_ARCH_LLAMA || config->arch == FILE_ARCH_QWEN3 ||
                            config->arch == FILE_ARCH_GEMMA3;
    return device->has_all_ops || has_plain_layers;
}

void
model_destroy(model_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        (*self_p)->vtable->destroy(*self_p);
        *self_p = NULL;
    }
}

void
model_set_activations(model_t *self, kern_activations_t activations)
{
    require(self != NULL);
    self->activations = activations;
}

void
model_set_comm(model_t *self, device_comm_t *comm)
{
    self->comm = comm;
}

const file_config_t *
model_config(const model_t *self)
{
    return &self->config;
}

size_t
model_workspace_bytes(const model_t *self, uint32_t rows, uint32_t logit_rows)
{
    return self->vtable->workspace_bytes(self, rows, logit_rows);
}

float *
model_forward(model_t *self, const model_context_t *context)
{
    require(context->rows > 0);
    require(context->logit_rows <= context->rows);
    require(context->workspace_bytes >=
            model_workspace_bytes(self, context->rows, context->logit_rows));
    return self->vtable->forward(self, context);
}

void
model_break(const model_t *self, const model_context_t *context, const model_break_t *part)
{
    require(part->args_size_bytes <= MODEL_BREAK_ARGS_SIZE_MAX);
    if (context->breaker != NULL) {
        context->breaker->on_break(context->breaker->owner, part);
    } else {
        part->run(self, context, part->args);
    }
}

proto_status_t
model_configure_capture(model_t *self, const model_taps_t *taps)
{
    if (!self->vtable->gives_taps) {
        return STATUS_ERR_UNSUPPORTED;
    }
    if (self->taps.count > 0 || taps->count == 0 || taps->count > MODEL_TAP_COUNT_MAX) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t i = 0; i < taps->count; i++) {
        bool is_last_final = taps->layers[i] == MODEL_TAP_FINAL && i + 1 == taps->count;
        if ((taps->layers[i] >= self->config.layer_count && !is_last_final) ||
            (i > 0 && taps->layers[i] <= taps->layers[i - 1])) {
            return STATUS_ERR_INVALID;
        }
    }
    self->taps = *taps;
    return STATUS_OK;
}
