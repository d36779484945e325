/* run_autotune.h - start-up autotuning: what is measured once, before the first capture, on a dummy
 * batch.  Only choices that change no bit of any result are tuned.
 *
 * Tuned today: between which rungs of the capture ladder padding pays.  A padded replay computes
 * the padded rows; where a step is bound by arithmetic (the host, larger batches) that costs more
 * than a graph for each size, which is captured then.  The device thread, at start. */
#ifndef RUN_AUTOTUNE_H
#define RUN_AUTOTUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_status.h"

struct run_executor;

/* A batch of made-up requests: num_tokens tokens, over at least ceil(num_tokens / context_len)
 * requests, clipped to what request_count_max requests of that length hold. */
typedef struct {
    uint32_t token_count;
    uint32_t request_count; /* at least 1 */
} run_dummy_batch_t;

/* All arguments at least 1. */
run_dummy_batch_t run_dummy_batch(uint32_t num_tokens, uint32_t context_len,
                                  uint32_t request_count_max);
/* Tokens of a request of it; they differ by 1 at most. */
uint32_t run_dummy_batch_length(const run_dummy_batch_t *self, uint32_t request);

/* A ladder with every size between ladder[i - 1] and ladder[i] where is_dense[i]; returns its
 * length, at most `capacity`: intervals that do not fit stay as they are. */
uint32_t run_autotune_refine(const uint32_t *ladder, uint32_t len, const bool *is_dense,
                             uint32_t *out, uint32_t capacity);

/* Measures, gives the runner its ladder and adds two lines to the summary; does nothing unless
 * options.autotune is set and the ladder is the default one.  Leaves no trace in slots or cache. */
MUST_CHECK proto_status_t run_autotune(struct run_executor *self);

#endif
