/* model_base.h - forward code: the interface of a model, written once against the launch table.
 *
 * A model owns its weights' device copies and borrows the rest from the checkpoint's mapping, which
 * must outlive it.  It computes no write location and no metadata: those are the backend's.  The
 * device thread. */
#ifndef MODEL_BASE_H
#define MODEL_BASE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "backend_base.h"
#include "device_ops.h"
#include "file_model.h"
#include "proto_status.h"

typedef struct model model_t;

/* One forward over rows of tokens. */
typedef struct {
    device_stream_t *stream;
    backend_t *backend;
    backend_mode_t mode;
    uint32_t rows;            /* tokens */
    const int32_t *input_ids; /* [rows] device */
    const int32_t *positions; /* [rows] device */
    uint32_t logit_rows;
    const int32_t *gather_rows; /* [logit_rows] device: rows that get logits; NULL = all of them */
    void *workspace;            /* DEVICE_MEMORY_ALIGN aligned device memory, of at least */
    size_t workspace_bytes;     /*   model_workspace_bytes(rows, logit_rows) */
    _Atomic uint32_t *progress; /* gets the layer in work, from 1; NULL = not wanted */
} model_context_t;

typedef struct {
    void (*destroy)(model_t *self);
    size_t (*workspace_bytes)(const model_t *self, uint32_t rows, uint32_t logit_rows);
    float *(*forward)(model_t *self, const model_context_t *context);
} model_vtable_t;

/* First member of every model. */
struct model {
    const model_vtable_t *vtable;
    device_t *device;               /* lent */
    file_config_t config;           /* a copy */
    size_t weight_bytes;            /* device copies made */
    size_t mapped_bytes;            /* of the weights still used in the mapping */
    kern_activations_t activations; /* float unless set otherwise */
};

typedef void (*model_progress_fn)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* Loads the weights for the checkpoint's architecture.  STATUS_ERR_UNSUPPORTED: an architecture or
 * a shape that no forward code here runs; STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t model_new(device_t *device, const file_model_t *file,
                                    model_progress_fn progress, void *progress_context,
                                    model_t **out_p);
void model_destroy(model_t **self_p);

/* What quantised weights are multiplied with; before the first forward. */
void model_set_activations(model_t *self, kern_activations_t activations);

const file_config_t *model_config(const model_t *self);

/* Bytes of device memory that a forward needs; grows with both arguments. */
size_t model_workspace_bytes(const model_t *self, uint32_t rows, uint32_t logit_rows);

/* Launches the forward.  The result is [logit_rows][vocab_size] in the workspace, valid until the
 * workspace is used again. */
float *model_forward(model_t *self, const model_context_t *context);

#endif
