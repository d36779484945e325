/* run_segments.h - one breakable graph: [segment, break, segment, ...], for a fixed count of rows.
 *
 * It owns its graphs and copies of its breaks' args; the pool in which the segments' results lie is
 * its caller's, who keeps it (device_pool_keep) and poisons it.  The device thread. */
#ifndef RUN_SEGMENTS_H
#define RUN_SEGMENTS_H

#include <stdint.h>

#include "model_base.h"

typedef struct run_segments run_segments_t; /* opaque */

typedef struct {
    model_t *model;        /* lent, as the pool */
    device_pool_t *pool;   /* of this kind of graph alone */
    uint32_t rows;         /* what the segments compute */
    const char *pool_name; /* a literal: names the pool when the guard finds it moved */
} run_segments_options_t;

/* Launches what is to be captured; breaks go through context->breaker. */
typedef void (*run_record_fn)(void *owner, const model_context_t *context);

/* Captures what `record` launches with `context`, whose breaker is set here; its rows must be
 * options->rows.  STATUS_ERR_CAPTURE: a segment did what no capture allows; STATUS_ERR_NO_MEMORY.
 * The caller owns *out_p. */
MUST_CHECK proto_status_t run_segments_capture(const run_segments_options_t *options,
                                               const model_context_t *context, run_record_fn record,
                                               void *owner, run_segments_t **out_p);
void run_segments_destroy(run_segments_t **self_p);

/* Enqueues segments and breaks; breaks run with `live`, of at most options->rows rows, and what
 * they put out past the live rows is zeroed. */
MUST_CHECK proto_status_t run_segments_replay(const run_segments_t *self,
                                              const model_context_t *live);

/* The pointer guard: STATUS_ERR_INTERNAL if `pool`, the owner's, is not where the capture saw it or
 * the frozen args of a break are others; *path_p names which. */
MUST_CHECK proto_status_t run_segments_verify(const run_segments_t *self, const device_pool_t *pool,
                                              const char **path_p);

uint32_t run_segments_rows(const run_segments_t *self);
uint32_t run_segments_graph_count(const run_segments_t *self);
uint32_t run_segments_break_count(const run_segments_t *self);

#endif
