/* The composition of a narrowing model's stages. */
#include "model_narrowing.h"

#include "proto_require.h"

size_t
model_narrowing_rows_bytes(uint32_t rows, uint32_t cols)
{
    size_t size_bytes = (size_t)rows * cols * sizeof(float);
    return (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
}

size_t
model_narrowing_workspace_bytes(const model_t *self, uint32_t rows, uint32_t logit_rows)
{
    const model_narrowing_t *narrowing = self->vtable->narrowing;
    return model_narrowing_rows_bytes(rows, narrowing->encoded_cols(self)) +
           model_narrowing_rows_bytes(rows, narrowing->state_cols(self)) +
           narrowing->stage_bytes(self, rows, logit_rows);
}

model_context_t
model_narrowing_context(const model_context_t *context)
{
    model_context_t narrowed = *context;
    if (context->view != NULL) {
        require(context->view->rows <= context->rows);
        narrowed.rows = context->view->rows;
        narrowed.gather_rows = context->view->gather_rows;
    }
    return narrowed;
}

float *
model_narrowing_forward(model_t *self, const model_context_t *context)
{
    const model_narrowing_t *narrowing = self->vtable->narrowing;
    require(context->view != NULL || context->mode == BACKEND_MODE_DECODE ||
            context->mode == BACKEND_MODE_IDLE);
    size_t encoded_bytes = model_narrowing_rows_bytes(context->rows, narrowing->encoded_cols(self));
    size_t state_bytes = model_narrowing_rows_bytes(context->rows, narrowing->state_cols(self));
    uint8_t *memory = context->workspace;
    float *encoded = (float *)(void *)memory;
    float *state = (float *)(void *)(memory + encoded_bytes);
    model_context_t whole = *context;
    whole.workspace = memory + encoded_bytes + state_bytes;
    whole.workspace_bytes = context->workspace_bytes - encoded_bytes - state_bytes;
    model_context_t narrowed = model_narrowing_context(&whole);
    narrowing->encoder_forward(self, &whole, encoded);
    narrowing->narrowing_forward(self, &whole, encoded, state);
    narrowing->decoder_forward(self, &narrowed, state);
    /* cppcheck-suppress returnDanglingLifetime ; the logits lie in the workspace */
    return narrowing->finish_forward(self, &narrowed, state);
}
