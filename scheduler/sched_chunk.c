/* Where a prompt is cut.  A state exists only where a chunk ended, and is published only after
 * whole pages; so with a state group chunks end on pages, and the last page has a chunk of its own.
 */
#include "sched_internal.h"

uint32_t
sched_chunk_end(const sched_core_t *self, const sched_span_t *span, uint32_t begin, uint32_t budget)
{
    uint32_t stop = begin < span->body_end ? span->body_end : span->prefill_end;
    if (begin < span->promote_at && span->promote_at < stop) {
        stop = span->promote_at;
    }
    if (stop - begin <= budget) {
        return stop;
    }
    if (!self->has_state) {
        return budget > 0 ? begin + budget : 0;
    }
    uint32_t end = (begin + budget) / self->page_tokens * self->page_tokens;
    return end > begin ? end : 0;
}

uint32_t
sched_decode_share(const sched_core_t *self, bool prefills)
{
    uint32_t most = self->step_tokens_max;
    uint32_t share = most >= 4 ? most / 4 : 1;
    if (self->has_state && share < self->page_tokens) {
        share = self->page_tokens; /* less would be no chunk */
    }
    return prefills && most - share >= self->width ? most - share : most;
}

bool
sched_prefill_turn(const sched_core_t *self)
{
    return self->has_state && self->step_tokens_max - self->page_tokens < self->width &&
           self->step_last % 2 == 1;
}
