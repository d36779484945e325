/* kern_draft.h - the small integer operations between a drafter and the target.
 *
 * They do little work: thread 0 does it and the others pass by, except for kern_draft_argmax.
 * Arrays are read at execution; scalars are frozen by a capture. */
#ifndef KERN_DRAFT_H
#define KERN_DRAFT_H

#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"

/* Candidates into the next inputs, behind the last verified token: future_inputs[slot][1 + i] =
 * candidates[b][i].  One outside the vocabulary ends the row: it and those behind it become -1,
 * and *dropped counts rows in which something other than -1 ended it. */
typedef struct {
    const int32_t *write_slots; /* [bs] */
    const int32_t *candidates;  /* [bs][stride] */
    size_t stride;
    uint32_t count; /* candidates of a request; at most width - 1, the rest becomes -1 */
    uint32_t bs;
    uint32_t width; /* of future_inputs */
    uint32_t vocabulary;
    int32_t *future_inputs; /* [slots + 2][width] */
    uint32_t *dropped;      /* NULL = not wanted */
} kern_draft_commit_args_t;
void kern_draft_commit_host(const void *args, kern_share_t *share);

#endif
