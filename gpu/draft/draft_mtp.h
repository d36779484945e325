/* draft_mtp.h - vanilla multi-depth MTP: depth d is a layer of its own, which proposes the token d
 * + 2 behind a row from the hidden that depth d - 1 had there and the token d + 1 behind it.
 *
 *   x      = eh_proj([norm(embedding) ; norm(hidden)])
 *   x      = x + attention(norm(x));  x = x + feed-forward(norm(x)), the next depth's hidden
 *   logits = head(norm(x))
 *
 * Every depth runs the same rows: of a decode request the window of N rows in front of the accepted
 * frontier, of a prompt its chunk.  What a round proposed stands in the last rows of the deeper
 * layers' caches until the next round computes them again with what was accepted.  Rows in front of
 * this round's come from a stash by slot; rows that are in neither (a prefix hit) keep what the
 * cache holds.  The device thread. */
#ifndef DRAFT_MTP_H
#define DRAFT_MTP_H

#include "draft_frame.h"
#include "draft_parts.h"

/* Forward code of one depth (model_draft_io_t.depth).  The caller owns *out_p. */
MUST_CHECK proto_status_t draft_mtp_model_new(device_t *device, const file_model_t *file,
                                              const file_draft_t *draft, const file_model_t *target,
                                              model_t **out_p);

/* STATUS_ERR_CONFIG: fewer depths than candidates.  Takes the model on success only. */
MUST_CHECK proto_status_t draft_mtp_new(const draft_options_t *options,
                                        const draft_target_t *target, model_t **model_p,
                                        draft_t **out_p);

#endif
