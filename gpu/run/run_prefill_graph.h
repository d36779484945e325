/* run_prefill_graph.h - the PrefillGraph: extend and mixed forwards replayed from breakable graphs,
 * one for each token bucket.
 *
 * It owns its captures and their pool, which is never the decode graphs' pool; it borrows model and
 * stream.  Attention with its cache write is the break: it runs eagerly with the live rows, so a
 * padded row writes nothing and reads nothing.  A forward of more tokens than the top bucket is the
 * eager one.
 *
 * Around a narrowing there are two ladders: the encoder for each token bucket, the decoder for each
 * of these buckets that is no larger than decoder_rows_per_request_max x bs_max.  A replay is
 * encoder graph, eager narrowing into the static state, decoder graph, eager finish; a view with
 * more rows than the largest decoder bucket runs that stage eagerly.  The device thread. */
#ifndef RUN_PREFILL_GRAPH_H
#define RUN_PREFILL_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model_base.h"

typedef struct run_prefill_graph run_prefill_graph_t; /* opaque */

enum {
    RUN_PREFILL_TOKENS_DEFAULT = 2048, /* top bucket unless asked, where steps are as large */
    RUN_PREFILL_BUCKET_MIN = 16,
    RUN_PREFILL_LADDER_LEN_MAX = 256,
};

typedef struct {
    device_t *device;
    device_stream_t *stream;
    model_t *model;
    uint32_t tokens_max;     /* the top bucket */
    uint32_t logit_rows_max; /* rows with logits of one forward */
    /* Of a model that narrows (model_narrowing.h), else 0. */
    uint32_t bs_max;          /* requests of a forward */
    uint32_t narrow_rows_max; /* rows of a view */
    bool graph_debug;         /* verify addresses and poison the pool before each replay */
} run_prefill_graph_options_t;

/* Writes the buckets: from 16 in steps of the largest power of two <= size / 8, clamped to
 * [16, 512], and tokens_max itself.  Returns their number; at most RUN_PREFILL_LADDER_LEN_MAX. */
uint32_t run_prefill_graph_ladder(uint32_t tokens_max, uint32_t *out);

/* Nothing is captured yet.  STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_prefill_graph_new(const run_prefill_graph_options_t *options,
                                                run_prefill_graph_t **out_p);
void run_prefill_graph_destroy(run_prefill_graph_t **self_p);

/* Captures every bucket, largest first, with the addresses of `context` (stream, backend, ids,
 * positions, gather rows).  A failure is fatal for who starts: a family that cannot be captured
 * declares it (backend_support.h).  *bucket_p is the bucket that failed. */
MUST_CHECK proto_status_t run_prefill_graph_capture(run_prefill_graph_t *self,
                                                    const model_context_t *context,
                                                    uint32_t *bucket_p);

/* Gives back every capture and the pool; capture may follow. */
void run_prefill_graph_release(run_prefill_graph_t *self);

/* The smallest captured bucket that holds `rows`; 0 = none: the forward is eager. */
uint32_t run_prefill_graph_bucket(const run_prefill_graph_t *self, uint32_t rows);

/* The forward of `live` from its bucket, of which there must be one.  *logits_p is where
 * model_forward() would say, valid until the next replay.  STATUS_ERR_INTERNAL: the pointer guard
 * found something moved (run_prefill_graph_fault() names it). */
MUST_CHECK proto_status_t run_prefill_graph_forward(run_prefill_graph_t *self,
                                                    const model_context_t *live,
                                                    const float **logits_p);

const char *run_prefill_graph_fault(const run_prefill_graph_t *self);
/* NULL: none. */
uint32_t run_prefill_graph_bucket_count(const run_prefill_graph_t *self);
size_t run_prefill_graph_size_bytes(const run_prefill_graph_t *self);

/* Buckets of the decoder of a model that narrows, and the one for a view of `rows` (0 = eager). */
uint32_t run_prefill_graph_decoder_count(const run_prefill_graph_t *self);
uint32_t run_prefill_graph_decoder_bucket(const run_prefill_graph_t *self, uint32_t rows);

/* The private pool; NULL while nothing is captured.  For tests that poison it. */
device_pool_t *run_prefill_graph_pool(const run_prefill_graph_t *self);

/* Puts another pool behind the captures: a planted fault for the guard.  STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t run_prefill_graph_plant_move(run_prefill_graph_t *self);

#endif
