/* Stored tensors by name: finding one, checking its shape and its type. */
#include <inttypes.h>
#include <stdio.h>

#include "file_dtype.h"
#include "file_model_internal.h"

typedef struct {
    uint32_t rows;
    uint32_t cols;
    uint32_t expert_count; /* of a stack: rows are those of all experts */
} shape_t;

static proto_status_t
check_shape(const file_stored_t *stored, const char *name, file_form_t form, const shape_t *shape,
            file_error_t error)
{
    uint64_t wanted[FILE_TENSOR_RANK_MAX] = {shape->cols};
    uint32_t rank = 1;
    if (form == FILE_FORM_STACK) {
        rank = 3;
        wanted[0] = shape->expert_count;
        wanted[1] = shape->rows / shape->expert_count;
        wanted[2] = shape->cols;
    } else if (form == FILE_FORM_TAPS) {
        rank = 3;
        wanted[0] = shape->rows;
        wanted[1] = 1;
        wanted[2] = shape->cols;
    } else if (form != FILE_FORM_VECTOR) {
        rank = 2;
        wanted[0] = shape->rows;
        wanted[1] = shape->cols;
    }
    if (stored->rank == rank && memcmp(stored->shape, wanted, rank * sizeof *wanted) == 0) {
        return STATUS_OK;
    }
    char needed[96];
    size_t used = 0;
    for (uint32_t i = 0; i < rank; i++) {
        used += (size_t)snprintf(needed + used, sizeof needed - used, "%s%" PRIu64,
                                 i > 0 ? ", " : "", wanted[i]);
    }
    char found[96];
    size_t at = 0;
    found[0] = '\0';
    for (uint32_t i = 0; i < stored->rank; i++) {
        at += (size_t)snprintf(found + at, sizeof found - at, "%s%" PRIu64, i > 0 ? ", " : "",
                               stored->shape[i]);
    }
    return file_error_set(error, STATUS_ERR_MALFORMED,
                          "tensor '%s': the config needs shape [%s], the file has [%s]", name,
                          needed, found);
}

static proto_status_t
check_type(const file_stored_t *stored, const char *name, file_form_t form, file_error_t error)
{
    if (!stored->is_known) {
        return file_error_set(
            error, STATUS_ERR_UNSUPPORTED,
            "tensor '%s': its type is not supported; supported are F32, F16, BF16", name);
    }
    uint32_t block_length = file_dtype_block_length(stored->dtype);
    bool is_expert = form == FILE_FORM_STACK || form == FILE_FORM_EXPERT;
    if (is_expert ? block_length > 1 && stored->dtype != FILE_DTYPE_MXFP4
                  : stored->dtype == FILE_DTYPE_MXFP4) {
        return file_error_set(
            error, STATUS_ERR_UNSUPPORTED,
            "tensor '%s': type %s is not supported here; MXFP4 is for experts, and "
            "experts are MXFP4, F32, F16 or BF16",
            name, file_dtype_name(stored->dtype));
    }
    if ((form == FILE_FORM_VECTOR || form == FILE_FORM_TAPS) && block_length > 1) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "tensor '%s': type %s is not supported for a vector", name,
                              file_dtype_name(stored->dtype));
    }
    uintptr_t element = (uintptr_t)file_dtype_row_size_bytes(stored->dtype, block_length);
    uintptr_t alignment = block_length > 1 ? 2 : element;
    if ((uintptr_t)stored->data % alignment != 0) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "tensor '%s': its bytes are not aligned to %s", name,
                              file_dtype_name(stored->dtype));
    }
    return STATUS_OK;
}

proto_status_t
file_model_bind(file_model_t *self, const char *name, file_form_t form, uint32_t rows,
                uint32_t cols, file_error_t error, file_tensor_t *out)
{
    file_stored_t *stored = file_tensors_find(&self->tensors, name);
    if (stored == NULL) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "tensor '%s' is missing", name);
    }
    const shape_t shape = {rows, cols, self->config.expert_count};
    proto_status_t status = check_shape(stored, name, form, &shape, error);
    if (status == STATUS_OK) {
        status = check_type(stored, name, form, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    stored->is_used = true;
    self->config.weight_size_bytes += stored->size_bytes;
    *out = (file_tensor_t){.dtype = stored->dtype,
                           .rows = rows,
                           .cols = cols,
                           .data = stored->data,
                           .size_bytes = stored->size_bytes};
    return STATUS_OK;
}

/* "Q4_1 (210), F32 (61)", the commonest first; and the type of most bytes in the layers. */
void
file_model_summarise_types(file_model_t *self)
{
    uint32_t counts[FILE_DTYPE_COUNT] = {0};
    uint64_t layer_sizes[FILE_DTYPE_COUNT] = {0};
    size_t slot_count =
        FILE_ROLE_FIRST_OF_LAYER + (size_t)self->config.layer_count * FILE_ROLES_PER_LAYER;
    for (size_t i = 0; i < slot_count; i++) {
        const file_tensor_t *tensor = &self->roles[i];
        bool is_alias = i == FILE_ROLE_OUTPUT && self->config.tied_embeddings;
        if (tensor->data == NULL || is_alias) {
            continue;
        }
        counts[tensor->dtype]++;
        layer_sizes[tensor->dtype] += i >= FILE_ROLE_FIRST_OF_LAYER ? tensor->size_bytes : 0;
    }
    for (size_t i = 0; i < self->expert_slot_count; i++) {
        if (self->experts[i].data != NULL) {
            counts[self->experts[i].dtype]++;
            layer_sizes[self->experts[i].dtype] += self->experts[i].size_bytes;
        }
    }
    size_t at = 0;
    for (uint32_t done = 0; done < FILE_DTYPE_COUNT; done++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < FILE_DTYPE_COUNT; i++) {
            best = counts[i] > counts[best] ? i : best;
            if (layer_sizes[i] > layer_sizes[self->config.linear_dtype]) {
                self->config.linear_dtype = (file_dtype_t)i;
            }
        }
        char part[32];
        int size_bytes = snprintf(part, sizeof part, "%s%s (%" PRIu32 ")", at > 0 ? ", " : "",
                                  file_dtype_name((file_dtype_t)best), counts[best]);
        if (counts[best] == 0 || at + (size_t)size_bytes >= sizeof self->config.dtype_summary) {
            break;
        }
        memcpy(self->config.dtype_summary + at, part, (size_t)size_bytes + 1);
        at += (size_t)size_bytes;
        counts[best] = 0;
    }
}
