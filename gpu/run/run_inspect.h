/* run_inspect.h - a look inside an executor, for tests and debugging; never for the serving path.
 * The device thread; every call waits for the stream. */
#ifndef RUN_INSPECT_H
#define RUN_INSPECT_H

#include "run_executor.h"

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

/* Digest of all cache bytes of one block over all layers; null page: block 0. */
MUST_CHECK proto_status_t run_inspect_block_digest(run_executor_t *self, uint32_t group,
                                                   uint32_t block, uint64_t *out);

#endif
