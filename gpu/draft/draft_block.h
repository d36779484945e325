/* draft_block.h - drafters that propose a whole block at once: DFLASH, and DSpark with a Markov
 * head.
 *
 * The target's taps become a context of the draft: context = norm(fc(taps)), and every layer keeps
 * k = rope(norm(Wk context)) and v = Wv context at the target's own positions.  A query of a
 * context is never computed.  The proposal is one forward of a block [token verified last, mask,
 * mask, ...] at positions frontier, frontier + 1, ...; its rows see the whole context and each
 * other.
 *
 * DFLASH: N rows, candidate j is the best of row j.  DSpark: N - 1 rows that predict from the
 * anchor on, candidate j the best of head(row j) + W2 W1[candidate j - 1], one after the other.
 *
 * The block's own keys and values lie behind the frontier, where the next round's context is
 * written first.  The device thread. */
#ifndef DRAFT_BLOCK_H
#define DRAFT_BLOCK_H

#include "draft_frame.h"
#include "draft_parts.h"

/* Forward code: with model_draft_io_t.is_taps the injection of a context (no logits), else a block.
 * The caller owns *out_p. */
MUST_CHECK proto_status_t draft_block_model_new(device_t *device, const file_model_t *file,
                                                const file_draft_t *draft,
                                                const file_model_t *target, model_t **out_p);

/* The columns of fc that one tap meets: [hidden][the target's hidden]. */
kern_weight_t draft_block_fc_part(const model_t *self, uint32_t tap);

/* The Markov head of a DSpark model: logits [bs][stride] += W2 W1[previous]. */
void draft_block_launch_markov(const model_t *self, const model_context_t *context,
                               const int32_t *previous, float *logits, size_t stride);

/* STATUS_ERR_CONFIG: a wider window than blocks it was trained for.  Takes the model on success
 * only. */
MUST_CHECK proto_status_t draft_block_new(const draft_options_t *options,
                                          const draft_target_t *target, const file_draft_t *draft,
                                          model_t **model_p, draft_t **out_p);

#endif
