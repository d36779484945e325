/* run_inspect.h - a look inside an executor, for tests and debugging; never for the serving path.
 * The device thread; every call waits for the stream. */
#ifndef RUN_INSPECT_H
#define RUN_INSPECT_H

#include "backend_base.h"
#include "model_base.h"
#include "run_executor.h"

typedef proto_status_t (*run_model_new_fn)(device_t *device, const file_model_t *file,
                                           model_progress_fn progress, void *progress_context,
                                           model_t **out_p);

/* Test doubles, for run_executor_options_t.plants; NULL members plant nothing. */
typedef struct run_plants {
    run_model_new_fn make_model; /* instead of model_new() */
    void (*adjust_backend)(backend_t *root);
} run_plants_t;

/* Copies the logits of the last launch: [*row_count][vocab_size], sampled extends first, then
 * decodes.  STATUS_ERR_TOO_LARGE if they do not fit `count` floats. */
MUST_CHECK proto_status_t run_inspect_logits(run_executor_t *self, float *out, size_t count,
                                             uint32_t *row_count);

/* Captured decode graphs, and the padded size that a batch would run at (0 = eager). */
uint32_t run_inspect_graph_count(const run_executor_t *self);
uint32_t run_inspect_padded_bs(const run_executor_t *self, uint32_t bs);

/* Writes the candidates of a slot's next decode window, as a drafter would have left them; the rest
 * of the window is -1.  After the step that decides the slot's last token was launched.
 * STATUS_ERR_INVALID: more than width - 1 of them, or no such slot. */
MUST_CHECK proto_status_t run_inspect_plant_candidates(run_executor_t *self, uint32_t slot,
                                                       const int32_t *candidates, uint32_t count);

/* The next inputs of a slot: its last verified token, then what its drafter proposed; `count` is
 * the executor's width.  STATUS_ERR_INVALID: another count, or no such slot. */
MUST_CHECK proto_status_t run_inspect_future(run_executor_t *self, uint32_t slot, int32_t *out,
                                             uint32_t count);

/* Gives the runner a second backend tree behind the graphs' back: a planted fault for the pointer
 * guard.  Once for each executor. */
MUST_CHECK proto_status_t run_inspect_plant_rebind(run_executor_t *self);

/* Moves the executor to a cache of another size; for tests of the rebind.  Nothing may be in
 * flight; what the slots held is gone. */
MUST_CHECK proto_status_t run_inspect_rebind(run_executor_t *self, uint32_t parent_count);

/* Device memory that is allocated now. */
uint64_t run_inspect_used_bytes(const run_executor_t *self);

/* Fills the whole cache, the null page too, with NaN: nothing that was not written since may be
 * read by a live row. */
MUST_CHECK proto_status_t run_inspect_poison_cache(run_executor_t *self);

/* Token buckets of the prefill graph, and the one that a forward of `rows` would run in (0 =
 * eager). */
uint32_t run_inspect_bucket_count(const run_executor_t *self);
uint32_t run_inspect_bucket(const run_executor_t *self, uint32_t rows);
/* The same of the decoder of a model that narrows. */
uint32_t run_inspect_decoder_count(const run_executor_t *self);
uint32_t run_inspect_decoder_bucket(const run_executor_t *self, uint32_t rows);

/* Fills a pool of captured graphs with 0xff: the prefill graph's, or the decode graphs'.
 * STATUS_ERR_INVALID: there is none. */
MUST_CHECK proto_status_t run_inspect_poison_pool(run_executor_t *self, bool is_prefill);

/* Puts another pool behind the prefill graph's back; once for each executor. */
MUST_CHECK proto_status_t run_inspect_plant_pool(run_executor_t *self);

/* Runs the idle forward of `bs` requests to its end (run_idle.h). */
MUST_CHECK proto_status_t run_inspect_idle(run_executor_t *self, uint32_t bs);

/* Digest of all cache bytes of one block over all layers; null page: block 0. */
MUST_CHECK proto_status_t run_inspect_block_digest(run_executor_t *self, uint32_t group,
                                                   uint32_t block, uint64_t *out);

#endif
