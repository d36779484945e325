/* sample_pool.h - pool-indexed sampling: what each slot wants, and the persistent output buffers.
 *
 * It owns the per-slot arrays, the count rows of penalties, the staging of setups and the outputs,
 * all on the device.  It never sees a request, a plan or a model.  Slots are 0..slot_count + 1:
 * slot 0 is the dummy of padded rows, slot_count + 1 the sink; both stay greedy.
 *
 * Greedy is top_k 1, not a route of its own; without a drafter the candidate window has one column
 * and resolves to one token.  How a window is verified is one choice for the pool (kern_sample.h).
 * The device thread. */
#ifndef SAMPLE_POOL_H
#define SAMPLE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "device_ops.h"
#include "proto_codec.h"
#include "proto_status.h"

typedef struct sample_pool sample_pool_t; /* opaque */

typedef struct {
    device_t *device;
    device_stream_t *stream;
    uint32_t slot_count; /* requests; slots 1..slot_count */
    uint32_t bs_max;     /* requests in one launch */
    uint32_t width;      /* N */
    kern_sample_verify_t verify;
    uint32_t vocabulary;
    uint32_t setup_tokens_max; /* tokens of one setup, for the penalties */
    const int32_t *stop_ids;   /* the model's own; lent for the call */
    uint32_t stop_id_count;
} sample_pool_options_t;

/* One launch over `bs` requests of `width` rows each. */
typedef struct {
    const float *logits;
    size_t logits_stride;
    uint32_t bs;
    uint32_t width;
    const int32_t *slots;      /* [bs] device */
    const int32_t *seq_lens;   /* [bs] device */
    const int32_t *candidates; /* [bs][width] device; NULL only if width is 1 */
    uint32_t first_row;        /* where the results go in the outputs */
    uint32_t first_request;
} sample_launch_t;

/* Persistent outputs in device memory.  tokens, accept_lengths and row_flags lie in one region, so
 * that one copy brings them to the host. */
typedef struct {
    int32_t *tokens;         /* [bs_max * width]; -1 behind the accepted ones */
    int32_t *accept_lengths; /* [bs_max] */
    uint8_t *row_flags;      /* [bs_max] PROTO_ROW_* */
    void *region;
    size_t region_bytes;
    int32_t *logprob_ids;  /* [bs_max * width][KERN_SAMPLE_LOGPROBS_WIDTH] */
    float *logprob_values; /* the same */
} sample_outputs_t;

/* STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t sample_pool_new(const sample_pool_options_t *options,
                                          sample_pool_t **out_p);
void sample_pool_destroy(sample_pool_t **self_p);

/* A request takes a slot: launches the write of its record and, if it has penalties, of its counts
 * (prompt tokens marked, generated ones counted once).  Waits for the stream only when more setups
 * are pending than fit the staging.  STATUS_ERR_INVALID: slot out of range, too many tokens;
 * STATUS_ERR_MALFORMED: the sampling bytes do not decode. */
MUST_CHECK proto_status_t sample_pool_setup(sample_pool_t *self, const proto_slot_setup_t *setup);

/* Launches sampling and the stop flags of its rows. */
void sample_pool_launch(sample_pool_t *self, const sample_launch_t *launch);

const sample_outputs_t *sample_pool_outputs(const sample_pool_t *self);

/* Entries of a token's logprobs that the slot's latest setup asked for; 0 = none. */
uint32_t sample_pool_logprob_width(const sample_pool_t *self, uint32_t slot);

/* Reports one span of device memory; `path` lives for the call. */
typedef void (*sample_visit_fn)(void *context, const char *path, const void *address,
                                size_t size_bytes);

/* The requests of a decode step. */
typedef struct {
    const int32_t *slots; /* [bs] host memory */
    uint32_t bs;
    uint32_t width; /* of the step; at most the pool's */
} sample_step_t;

/* What the sampling of a decode step changes: the outputs and the count rows of its slots. */
void sample_pool_visit_step_spans(const sample_pool_t *self, const sample_step_t *step,
                                  sample_visit_fn visit, void *context);

/* Bytes of device memory held. */
size_t sample_pool_size_bytes(const sample_pool_t *self);

/* The record that a SAMPLING body stands for, normalised: a temperature below 1e-6 is top_k 1, what
 * is missing means "none".  Pure; for setup and for tests. */
void sample_record_make(const proto_sampling_t *sampling, const int32_t *model_stop_ids,
                        uint32_t model_stop_id_count, uint32_t token_count,
                        kern_slot_record_t *out);

#endif
