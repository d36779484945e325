/* actor_drafter_round.h - one round: from a ring slot through the drafter and back into it.
 *
 * What lies in the ring was written by another process: it is copied once, checked as a whole, and
 * only the copy is used.  The device thread. */
#ifndef ACTOR_DRAFTER_ROUND_H
#define ACTOR_DRAFTER_ROUND_H

#include "draft_base.h"
#include "draft_ring.h"
#include "proto_codec.h"

typedef struct actor_drafter_rounds actor_drafter_rounds_t;

/* Ring and drafter are lent.  STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_drafter_rounds_new(draft_ring_t *ring, draft_t *draft,
                                                   uint64_t epoch, actor_drafter_rounds_t **out_p);
void actor_drafter_rounds_destroy(actor_drafter_rounds_t **self_p);

/* Drafts for the round in ring slot `index` and puts the candidates there; the answer's word is the
 * caller's to write.  Fills *done, whose views live until the next call.  STATUS_ERR_MALFORMED: the
 * round does not hold together; STATUS_ERR_STALE: another one took its place meanwhile. */
MUST_CHECK proto_status_t actor_drafter_round_run(actor_drafter_rounds_t *self, uint32_t index,
                                                  uint64_t step, proto_draft_done_t *done);

#endif
