/* draft_chain.h - drafters that propose one token after the other: EAGLE3 heads, and whole models.
 *
 * Step 0 runs over the rows that the target ran, writes their keys and values, and goes on with one
 * live row for each request.  Step s then reads what step s - 1 proposed, at position frontier + s
 * -
 * 1.  An EAGLE3 head reads each token one position before its own, beside the target's hidden of
 * that position, so its step 0 proposes already; a model reads the target's own rows, so that its
 * first proposal comes from step 1, which reads the token verified last (the bonus token).
 *
 * Rows of candidates that were rejected leave keys and values behind the frontier, which nobody
 * attends to before the next round's step 0 has written them anew.  The device thread. */
#ifndef DRAFT_CHAIN_H
#define DRAFT_CHAIN_H

#include "draft_frame.h"

typedef struct {
    draft_target_t target;
    bool is_head;           /* reads hidden rows and shifted ids */
    const int32_t *offsets; /* [its own vocabulary] host: d2t; NULL = none; lent for the call */
} draft_chain_options_t;

/* Takes the model on success only.  The caller owns *out_p. */
MUST_CHECK proto_status_t draft_chain_new(const draft_options_t *options,
                                          const draft_chain_options_t *chain, model_t **model_p,
                                          draft_t **out_p);

#endif
