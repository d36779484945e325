/* model_weights.h - a checkpoint's tensors on the device: matrices in the device's best form,
 * vectors as float32.  At start only; the loading thread. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "model_base.h"

enum { MODEL_MEMORY_COUNT_MAX = 16 * 1024 };

/* What was allocated, to give it back. */
typedef struct {
    device_t *device;
    const file_model_t *file;
    void **memories; /* [memory_count] */
    uint32_t memory_count;
    uint32_t memory_capacity;
    uint8_t *slab; /* the last slab: small allocations share one */
    size_t slab_used_bytes;
    size_t weight_bytes; /* device copies */
    size_t mapped_bytes; /* used in place */
    model_progress_fn progress;
    void *progress_context;
    uint64_t done_bytes;
    uint64_t total_bytes;
} model_weights_t;

MUST_CHECK proto_status_t model_weights_init(model_weights_t *self, device_t *device,
                                             const file_model_t *file, model_progress_fn progress,
                                             void *progress_context);
void model_weights_fini(model_weights_t *self);

/* A matrix.  The pages of a mapping that are no longer needed are given back to the system. */
MUST_CHECK proto_status_t model_weights_matrix(model_weights_t *self, file_role_t role,
                                               uint32_t layer, kern_weight_t *out);

/* A vector of `length` values, read into the host's memory.  STATUS_ERR_NOT_FOUND: the checkpoint
 * has none. */
MUST_CHECK proto_status_t model_weights_values(model_weights_t *self, file_role_t role,
                                               uint32_t layer, uint32_t length, float *out);

/* A vector of `length` values as float32, `offset` added to each.  STATUS_ERR_NOT_FOUND: the
 * checkpoint has none. */
MUST_CHECK proto_status_t model_weights_vector(model_weights_t *self, file_role_t role,
                                               uint32_t layer, uint32_t length, float offset,
                                               const float **out);

/* `count` (at least 1) values of the host's, copied to the device. */
MUST_CHECK proto_status_t model_weights_floats(model_weights_t *self, const float *values,
                                               uint32_t count, const float **out);

/* Bytes of the host's, copied to the device; not counted, see model_weights_note(). */
MUST_CHECK proto_status_t model_weights_copy(model_weights_t *self, const void *bytes,
                                             size_t size_bytes, const void **out);

/* How the kernels call a stored type; not for FILE_DTYPE_MXFP4, which they do not compute with. */
kern_type_t model_weights_type(file_dtype_t dtype);

/* Counts a tensor that the caller brought to the device itself: `copy_size_bytes` of it, or 0 for
 * one that is used in place.  `is_done`: its pages of the mapping are given back. */
void model_weights_note(model_weights_t *self, const file_tensor_t *tensor, size_t copy_size_bytes,
                        bool is_done);

/* Zeroed device memory that lives as long as the weights; device_upload() fills it. */
MUST_CHECK proto_status_t model_weights_alloc(model_weights_t *self, size_t size_bytes,
                                              void **out_p);

#endif
