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
#include "device_comm.h"
#include "device_ops.h"
#include "file_model.h"
#include "model_capture.h"
#include "proto_status.h"

typedef struct model model_t;
typedef struct model_context model_context_t;

/* ---- breaks ----------------------------------------------------------------------------------
 *
 * A prefill graph is breakable: [segment, break, segment, ...].  Segments are captured for a fixed
 * count of rows (the token bucket); a break runs eagerly in every forward, for the live rows.  What
 * depends on more than rows of tokens goes through model_break(), in every forward code:
 * - attention with its KV write (model_launch_attention() does it), a recurrent layer with its
 *   convolution and its state update;
 * - the embedding and the angles, which read ids and positions; the logits, for gathered rows
 *   (model_launch_embed(), _angles() and _logits() do it).
 * Projections, norms and feed-forwards stay outside.  Where no graph is being captured, and in a
 * decode capture, model_break() is a plain call.
 *
 * The rules of a break's function:
 * - Its args are a plain struct, copied at capture and used again in every replay: all buffers of
 *   the workspace that it reads or writes are addresses in it.  Of the context it may use stream,
 *   backend, mode, rows, input_ids, positions, logit_rows, gather_rows, view and progress, which
 *   are the live ones; never workspace.
 * - It touches rows [0, context->rows) only.  Rows of `output` past them are zeroed by the replay,
 *   so that what follows in the bucket computes on numbers.  Where a form needs the rows of the
 * whole output, they are context->rows as it was recorded: an arg.
 * - It may not break again. */

enum { MODEL_BREAK_ARGS_SIZE_MAX = 512 };

typedef void (*model_break_fn)(const model_t *self, const model_context_t *context,
                               const void *args);

typedef struct {
    model_break_fn run;
    const void *args; /* lent for the call */
    size_t args_size_bytes;
    float *output;        /* [rows][output_stride]: what a later segment reads; NULL = nothing */
    size_t output_stride; /* floats; whole rows are zeroed, so nobody else's data may lie between */
    kern_form_t output_form; /* OPERAND: of output_stride columns, as many rows as were recorded */
} model_break_t;

/* Who ends a segment at each break and begins the next one. */
typedef struct {
    void (*on_break)(void *owner, const model_break_t *part);
    void *owner;
} model_breaker_t;

/* One forward over rows of tokens. */
struct model_context {
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
    const model_breaker_t *breaker; /* of a prefill capture; NULL = breaks run in place */
    const struct model_view *view;  /* model_narrowing.h: of extends in a model that narrows */
    const model_capture_t *capture; /* of a target with taps; NULL = nobody drafts */
    const model_draft_io_t *draft;  /* of a draft model's forward, else NULL */
};

typedef struct {
    void (*destroy)(model_t *self);
    size_t (*workspace_bytes)(const model_t *self, uint32_t rows, uint32_t logit_rows);
    float *(*forward)(model_t *self, const model_context_t *context);
    const struct model_narrowing *narrowing; /* model_narrowing.h; NULL = rows stay */
    bool gives_taps;                         /* model_launch_tap() after each layer */
} model_vtable_t;

/* First member of every model. */
struct model {
    const model_vtable_t *vtable;
    device_t *device;               /* lent */
    file_config_t config;           /* a copy */
    size_t weight_bytes;            /* device copies made */
    size_t mapped_bytes;            /* of the weights still used in the mapping */
    kern_activations_t activations; /* float unless set otherwise */
    device_comm_t *comm;            /* lent: of the ranks that share the model; NULL = alone */
    model_taps_t taps;              /* model_configure_capture(); count 0 = none */
};

typedef void (*model_progress_fn)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* Loads the weights for the checkpoint's architecture.  STATUS_ERR_UNSUPPORTED: an architecture or
 * a shape that no forward code here runs; STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t model_new(device_t *device, const file_model_t *file,
                                    model_progress_fn progress, void *progress_context,
                                    model_t **out_p);
void model_destroy(model_t **self_p);

/* Whether the device has every operation of the architecture's forward code. */
bool model_runs_on(const device_t *device, const file_config_t *config);

/* What quantised weights are multiplied with; before the first forward. */
void model_set_activations(model_t *self, kern_activations_t activations);

/* The checkpoint is a slice (file_model_slice()): partial sums are added up over these ranks, and
 * their shares of the logits gathered; before the first forward. */
void model_set_comm(model_t *self, device_comm_t *comm);

const file_config_t *model_config(const model_t *self);

/* Bytes of device memory that a forward needs; grows with both arguments. */
size_t model_workspace_bytes(const model_t *self, uint32_t rows, uint32_t logit_rows);

/* Launches the forward.  The result is [logit_rows][vocab_size] in the workspace, valid until the
 * workspace is used again. */
float *model_forward(model_t *self, const model_context_t *context);

/* Runs the part in place, or hands it to the context's breaker. */
void model_break(const model_t *self, const model_context_t *context, const model_break_t *part);

#endif
