/* Loading weights.
 *
 * A packed matrix is a copy, so its pages of the mapping are dropped right away: the process never
 * holds the checkpoint twice. */
#include "model_weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto_require.h"

enum { SLAB_SIZE_BYTES = 32 << 20 }; /* what is not used of it stays untouched */

static const kern_type_t types[FILE_DTYPE_COUNT] = {
    [FILE_DTYPE_F32] = KERN_TYPE_F32,   [FILE_DTYPE_F16] = KERN_TYPE_F16,
    [FILE_DTYPE_BF16] = KERN_TYPE_BF16, [FILE_DTYPE_Q8_0] = KERN_TYPE_Q8_0,
    [FILE_DTYPE_Q4_0] = KERN_TYPE_Q4_0, [FILE_DTYPE_Q4_1] = KERN_TYPE_Q4_1,
    [FILE_DTYPE_Q5_0] = KERN_TYPE_Q5_0, [FILE_DTYPE_Q4_K] = KERN_TYPE_Q4_K,
    [FILE_DTYPE_Q5_K] = KERN_TYPE_Q5_K, [FILE_DTYPE_Q6_K] = KERN_TYPE_Q6_K,
};

proto_status_t
model_weights_init(model_weights_t *self, device_t *device, const file_model_t *file,
                   model_progress_fn progress, void *progress_context)
{
    memset(self, 0, sizeof *self);
    self->device = device;
    self->file = file;
    self->progress = progress;
    self->progress_context = progress_context;
    self->total_bytes = file_model_config(file)->weight_size_bytes;
    self->memory_capacity = MODEL_MEMORY_COUNT_MAX;
    self->memories = calloc(self->memory_capacity, sizeof *self->memories);
    return self->memories == NULL ? STATUS_ERR_NO_MEMORY : STATUS_OK;
}

void
model_weights_fini(model_weights_t *self)
{
    for (uint32_t i = 0; i < self->memory_count; i++) {
        device_release(self->device, DEVICE_MEMORY_WEIGHTS, &self->memories[i]);
    }
    free(self->memories);
    self->memories = NULL;
    self->memory_count = 0;
    self->slab = NULL;
}

static proto_status_t
alloc_own(model_weights_t *self, size_t size_bytes, void **out_p)
{
    if (self->memory_count == self->memory_capacity) {
        return STATUS_ERR_TOO_LARGE;
    }
    proto_status_t status = device_alloc(self->device, DEVICE_MEMORY_WEIGHTS, size_bytes, out_p);
    if (status == STATUS_OK) {
        self->memories[self->memory_count++] = *out_p;
    }
    return status;
}

/* Matrices of small models are smaller than a large page, so they share slabs. */
proto_status_t
model_weights_alloc(model_weights_t *self, size_t size_bytes, void **out_p)
{
    if (size_bytes > SLAB_SIZE_BYTES / 4) {
        return alloc_own(self, size_bytes, out_p);
    }
    size_t rounded = (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN;
    rounded *= DEVICE_MEMORY_ALIGN;
    if (self->slab == NULL || rounded > SLAB_SIZE_BYTES - self->slab_used_bytes) {
        void *slab = NULL;
        proto_status_t status = alloc_own(self, SLAB_SIZE_BYTES, &slab);
        if (status != STATUS_OK) {
            return status;
        }
        self->slab = slab;
        self->slab_used_bytes = 0;
    }
    *out_p = self->slab + self->slab_used_bytes;
    self->slab_used_bytes += rounded;
    return STATUS_OK;
}

static void
note_progress(model_weights_t *self, uint64_t size_bytes)
{
    self->done_bytes += size_bytes;
    if (self->done_bytes > self->total_bytes) {
        self->done_bytes = self->total_bytes;
    }
    if (self->progress != NULL) {
        self->progress(self->progress_context, self->done_bytes, self->total_bytes);
    }
}

/* Whole pages inside [data, data + size): a later read would fetch them from the file again. */
static void
drop_mapped(const void *data, size_t size_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)data + size_bytes) / page * page;
    if (end > first) {
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
    }
}

kern_type_t
model_weights_type(file_dtype_t dtype)
{
    require(dtype < FILE_DTYPE_COUNT);
    require(dtype != FILE_DTYPE_MXFP4);
    return types[dtype];
}

void
model_weights_note(model_weights_t *self, const file_tensor_t *tensor, size_t copy_size_bytes,
                   bool is_done)
{
    self->weight_bytes += copy_size_bytes;
    self->mapped_bytes += copy_size_bytes == 0 ? tensor->size_bytes : 0;
    if (is_done) {
        drop_mapped(tensor->data, tensor->size_bytes);
    }
    note_progress(self, tensor->size_bytes);
}

proto_status_t
model_weights_matrix(model_weights_t *self, file_role_t role, uint32_t layer, kern_weight_t *out)
{
    file_tensor_t tensor;
    proto_status_t status = file_model_tensor(self->file, role, layer, &tensor);
    if (status != STATUS_OK) {
        return status;
    }
    kern_weight_t weight = {
        .data = tensor.data,
        .type = model_weights_type(tensor.dtype),
        .rows = tensor.rows,
        .cols = tensor.cols,
        .packed = false,
    };
    size_t size_bytes = device_weight_size_bytes(self->device, &weight);
    if (size_bytes == 0) {
        *out = device_weight_load(self->device, &weight, NULL);
        self->mapped_bytes += tensor.size_bytes;
        note_progress(self, tensor.size_bytes);
        return STATUS_OK;
    }
    void *memory = NULL;
    status = model_weights_alloc(self, size_bytes, &memory);
    if (status != STATUS_OK) {
        return status;
    }
    *out = device_weight_load(self->device, &weight, memory);
    self->weight_bytes += size_bytes;
    drop_mapped(tensor.data, tensor.size_bytes);
    note_progress(self, tensor.size_bytes);
    return STATUS_OK;
}

proto_status_t
model_weights_values(model_weights_t *self, file_role_t role, uint32_t layer, uint32_t length,
                     float *out)
{
    file_tensor_t tensor;
    proto_status_t status = file_model_tensor(self->file, role, layer, &tensor);
    if (status != STATUS_OK) {
        return status;
    }
    if (tensor.rows != 1 || tensor.cols != length) {
        return STATUS_ERR_UNSUPPORTED;
    }
    kern_type_row_to_float(model_weights_type(tensor.dtype), tensor.data, length, out);
    note_progress(self, tensor.size_bytes);
    return STATUS_OK;
}

proto_status_t
model_weights_vector(model_weights_t *self, file_role_t role, uint32_t layer, uint32_t length,
                     float offset, const float **out)
{
    float *values = malloc(length * sizeof *values);
    if (values == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = model_weights_values(self, role, layer, length, values);
    for (uint32_t i = 0; status == STATUS_OK && offset != 0.0f && i < length; i++) {
        values[i] += offset;
    }
    if (status == STATUS_OK) {
        status = model_weights_floats(self, values, length, out);
    }
    free(values);
    return status;
}

proto_status_t
model_weights_floats(model_weights_t *self, const float *values, uint32_t count, const float **out)
{
    const void *copy = NULL;
    size_t size_bytes = count * sizeof *values;
    proto_status_t status = model_weights_copy(self, values, size_bytes, &copy);
    if (status == STATUS_OK) {
        self->weight_bytes += size_bytes;
        *out = copy;
    }
    return status;
}

proto_status_t
model_weights_copy(model_weights_t *self, const void *bytes, size_t size_bytes, const void **out)
{
    void *memory = NULL;
    proto_status_t status = model_weights_alloc(self, size_bytes, &memory);
    if (status == STATUS_OK) {
        status = device_upload(self->device, memory, bytes, size_bytes);
    }
    if (status == STATUS_OK) {
        *out = memory;
    }
    return status;
}
