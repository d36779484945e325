/* The launch table of the CUDA device, and how weights get there. */
#include <stdio.h>
#include <string.h>

#include "device_cuda_private.h"
#include "kern_type.h"
#include "proto_require.h"

/* A shape that a kernel does not take is refused when the model is loaded; here it is a bug that
 * must not pass for a result. */
static void
note_launch(device_stream_t *stream, int error, const char *name)
{
    cuda_device_t *device = (cuda_device_t *)stream->part.device;
    stream->launch_count++;
    if (error != 0) {
        (void)device_cuda_check(&device->base, (cudaError_t)error, name);
    }
}

#define CUDA_LAUNCH(name)                                                                          \
    static void cuda_##name(device_stream_t *stream, const kern_##name##_args_t *args)             \
    {                                                                                              \
        const cuda_device_t *device = (const cuda_device_t *)stream->part.device;                  \
        kern_cuda_where_t where = {stream->stream, !device->options.no_pdl};                       \
        note_launch(stream, kern_##name##_cuda(args, &where), "launch " #name);                    \
    }
KERN_CUDA_OP_LIST(CUDA_LAUNCH)

/* How far a stream is shows only outside graphs: there it would cost a launch for each layer. */
static void
cuda_mark_outside(device_stream_t *stream, const kern_mark_args_t *args)
{
    if (stream->capture_pool == NULL) {
        cuda_mark(stream, args);
    }
}

#define CUDA_MISSING(name)                                                                         \
    static void missing_##name(device_stream_t *stream, const kern_##name##_args_t *args)          \
    {                                                                                              \
        (void)args;                                                                                \
        note_launch(stream, (int)cudaErrorNotSupported, "no CUDA kernel of " #name);               \
    }
DEVICE_OP_LIST(CUDA_MISSING)

void
device_cuda_fill_ops(device_ops_t *ops)
{
#define CUDA_NONE(name) ops->name = missing_##name;
#define CUDA_SOME(name) ops->name = cuda_##name;
    DEVICE_OP_LIST(CUDA_NONE)
    KERN_CUDA_OP_LIST(CUDA_SOME)
    ops->mark = cuda_mark_outside;
}

/* ---- weights --------------------------------------------------------------------------------- */

proto_status_t
device_cuda_upload(device_t *base, void *to, const void *from, size_t size_bytes)
{
    if (device_cuda_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    proto_status_t status =
        device_cuda_check(base, cudaMemcpy(to, from, size_bytes, cudaMemcpyHostToDevice), "upload");
    return status == STATUS_OK ? device_cuda_check(base, cudaDeviceSynchronize(), "upload")
                               : status;
}

static size_t
weight_size_bytes(const device_t *self, const kern_weight_t *weight)
{
    (void)self;
    return kern_cuda_weight_size_bytes(weight->rows, weight->cols);
}

/* To nearest, ties to even; NaN stays one. */
static kern_bf16_t
to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (kern_bf16_t)(bits >> 16 | 0x40u);
    }
    return (kern_bf16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void
row_to_bf16(const kern_weight_t *weight, const uint8_t *row, kern_bf16_t *out)
{
    enum { PIECE = 4096 };
    float values[PIECE];
    if (weight->type == KERN_TYPE_BF16) {
        memcpy(out, row, weight->cols * sizeof *out);
        return;
    }
    for (uint32_t at = 0; at < weight->cols; at += PIECE) {
        uint32_t count = weight->cols - at < PIECE ? weight->cols - at : PIECE;
        kern_type_row_to_float(weight->type, row + kern_type_row_size_bytes(weight->type, at),
                               count, values);
        for (uint32_t i = 0; i < count; i++) {
            out[at + i] = to_bf16(values[i]);
        }
    }
}

/* Rows are expanded in the staging, uploaded and packed, as many at a time as it holds. */
static kern_weight_t
weight_load(device_t *base, const kern_weight_t *weight, void *memory)
{
    cuda_device_t *device = (cuda_device_t *)base;
    size_t row_bytes = weight->cols * sizeof(kern_bf16_t);
    size_t stored_bytes = kern_type_row_size_bytes(weight->type, weight->cols);
    require(memory != NULL);
    require(row_bytes <= DEVICE_CUDA_STAGING_SIZE_BYTES);
    uint32_t rows_max = (uint32_t)(DEVICE_CUDA_STAGING_SIZE_BYTES / row_bytes);
    for (uint32_t first = 0; first < weight->rows; first += rows_max) {
        uint32_t count = weight->rows - first < rows_max ? weight->rows - first : rows_max;
        for (uint32_t i = 0; i < count; i++) {
            row_to_bf16(weight, (const uint8_t *)weight->data + (first + i) * stored_bytes,
                        (kern_bf16_t *)device->staging + (size_t)i * weight->cols);
        }
        (void)device_cuda_upload(base, device->staging_device, device->staging, count * row_bytes);
        (void)device_cuda_check(base,
                                (cudaError_t)kern_cuda_pack(device->staging_device, first, count,
                                                            weight->cols, memory, NULL),
                                "pack a weight");
        (void)device_cuda_check(base, cudaDeviceSynchronize(), "pack a weight");
    }
    return (kern_weight_t){
        .data = memory,
        .type = KERN_TYPE_BF16,
        .rows = weight->rows,
        .cols = weight->cols,
        .packed = true,
    };
}

static size_t
form_size_bytes(const device_t *self, kern_form_t form, uint32_t rows, uint32_t cols)
{
    (void)self;
    return form == KERN_FORM_OPERAND ? kern_cuda_operand_size_bytes(rows, cols)
                                     : (size_t)rows * cols * sizeof(float);
}

const device_weight_vtable_t device_cuda_weights = {
    .size_bytes = weight_size_bytes,
    .load = weight_load,
    .form_size_bytes = form_size_bytes,
};
