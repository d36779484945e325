/* draft_eagle3.h - forward code of an EAGLE3 head: one layer whose attention reads the token and
 * the hidden side by side.
 *
 *   hidden = fc(three taps of the target), or what the step before chained on
 *   x      = hidden + attention([norm(embedding) ; norm(hidden)])
 *   x      = x + feed-forward(norm(x)), chained on as it is
 *   logits = head(norm(x)), over the head's own vocabulary
 *
 * Step 0 writes keys and values of all its rows and goes on with the live ones: in a decode round
 * it publishes the accepted prefix right before its attention, in others it attends with all of
 * them and narrows behind it.  The device thread. */
#ifndef DRAFT_EAGLE3_H
#define DRAFT_EAGLE3_H

#include "draft_parts.h"

/* The caller owns *out_p. */
MUST_CHECK proto_status_t draft_eagle3_new(device_t *device, const file_model_t *file,
                                           const file_draft_t *draft, const file_model_t *target,
                                           model_t **out_p);

#endif
