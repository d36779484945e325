/* backend_draft.h - the draft metadata contract: what a drafter does to the tree of its own model
 * beyond the runner-facing contract of backend_base.h.
 *
 * The decode metadata of a draft tree comes from backend_refresh_decode_metadata() and nowhere
 * else, in the same two steps every round, without exception:
 * - decode round: the target's refresh, then the draft's over the drafter's own lengths;
 * - extend and mixed round: the draft's init_forward_metadata over the round's lengths, then the
 *   draft's refresh with one token for each request.
 * Init writes the prefill slot, refresh the decode slot, and neither touches the other's.
 *
 * The drafter then edits lengths explicitly, by the calls below: metadata never aliases a buffer
 * that it changes.  Edits of lengths leave the write window alone, and the window's publication
 * leaves the lengths alone: step 0 publishes its accepted prefix before its attention, while the
 * window of the whole round still has to be written.
 *
 * All calls launch only, so they are recorded in a capture; arrays are device memory, read when the
 * launch runs.  They are for trees with options.is_draft, except for the two reads at the end.  The
 * device thread. */
#ifndef BACKEND_DRAFT_H
#define BACKEND_DRAFT_H

#include "backend_base.h"

/* What a root node of a draft tree has; backend_vtable_t.draft. */
typedef struct backend_draft_vtable {
    void (*advance_forward_metadata)(backend_t *self, const int32_t *seq_lens, uint32_t bs);
    void (*update_forward_metadata)(backend_t *self, const int32_t *frontier, uint32_t bs);
    void (*fill_block_seq_lens)(backend_t *self, const int32_t *prefix_lens, uint32_t bs);
    void (*publish_step_locations)(backend_t *self, const int32_t *cache_start, uint32_t n,
                                   uint32_t bs);
    void (*limit_step_locations)(backend_t *self, const int32_t *counts, uint32_t n, uint32_t bs);
    void (*write_locations_uniform)(backend_t *self, int32_t *out, const int32_t *start, uint32_t n,
                                    uint32_t bs);
    const int32_t *(*decode_window_locations)(const backend_t *self);
    const int32_t *(*extend_span_locations)(const backend_t *self);
} backend_draft_vtable_t;

/* Step s of a chain: the lengths become seq_lens[bs]; a forward that follows has one row for each
 * request (or the window that was refreshed), the last one at position seq_len - 1. */
void backend_advance_draft_forward_metadata(backend_t *self, const int32_t *seq_lens, uint32_t bs);

/* Multi-depth MTP: the window is anchored anew, its last row at position frontier - 1. */
void backend_update_draft_forward_metadata(backend_t *self, const int32_t *frontier, uint32_t bs);

/* Block drafters: all options.block_width rows of a request see the keys up to its block's end,
 * prefix_lens[b] + block_width.  Only with a block_width. */
void backend_fill_block_decode_seq_lens(backend_t *self, const int32_t *prefix_lens, uint32_t bs);

/* From now on the DECODE write window is the slots of positions cache_start[b] .. + n - 1, request
 * by request, until the next refresh or publication; n is at most options.width. */
void backend_publish_draft_step_locations(backend_t *self, const int32_t *cache_start, uint32_t n,
                                          uint32_t bs);

/* Of that window only the last counts[b] rows of each request are written; what the others would
 * write goes to the null page.  For rows that a request does not have, or whose cached ones stand.
 */
void backend_limit_draft_step_locations(backend_t *self, const int32_t *counts, uint32_t n,
                                        uint32_t bs);

/* The slots of the same positions into out[bs * n], over the group that keeps every token, without
 * touching the published window.  For side writes: context injection. */
void backend_draft_write_locations_uniform(backend_t *self, int32_t *out, const int32_t *start,
                                           uint32_t n, uint32_t bs);

/* Cross-backend reads, of a target's tree too: the published windows of the group that keeps every
 * token.  Both trees see the same block ids; slots agree where block and page sizes do. */
const int32_t *backend_decode_window_locations(const backend_t *self);
const int32_t *backend_extend_span_locations(const backend_t *self);

/* AcceptedPrefixPublisher: step 0 of a chain runs over the target's whole verify window and goes on
 * with one live row for each request, whose context ends at the accepted frontier.  The drafter
 * knows the frontier and attaches this to the context; the model knows the moment: right before the
 * first kernel that reads the live rows.  That it is attached is what makes a forward a step 0. */
typedef struct backend_accepted_prefix {
    backend_t *backend;
    const int32_t *frontier; /* [bs]: tokens before the one verified last, plus what was accepted */
    uint32_t bs;
} backend_accepted_prefix_t;

/* Idempotent: a copy of fixed lengths. */
void backend_publish_accepted_prefix(const backend_accepted_prefix_t *self);

#endif
