/* Dispatch of the draft contract. */
#include "backend_draft.h"

#include "proto_require.h"

static const backend_draft_vtable_t *
draft_of(const backend_t *self, uint32_t bs)
{
    require(self->options.is_draft);
    require(self->has_graph_state);
    require(self->vtable->draft != NULL);
    require(bs >= 1);
    require(bs <= self->options.bs_max);
    return self->vtable->draft;
}

void
backend_advance_draft_forward_metadata(backend_t *self, const int32_t *seq_lens, uint32_t bs)
{
    draft_of(self, bs)->advance_forward_metadata(self, seq_lens, bs);
}

void
backend_update_draft_forward_metadata(backend_t *self, const int32_t *frontier, uint32_t bs)
{
    draft_of(self, bs)->update_forward_metadata(self, frontier, bs);
}

void
backend_fill_block_decode_seq_lens(backend_t *self, const int32_t *prefix_lens, uint32_t bs)
{
    require(self->options.block_width > 0);
    draft_of(self, bs)->fill_block_seq_lens(self, prefix_lens, bs);
}

void
backend_publish_draft_step_locations(backend_t *self, const int32_t *cache_start, uint32_t n,
                                     uint32_t bs)
{
    require(n >= 1);
    require(n <= self->options.width);
    draft_of(self, bs)->publish_step_locations(self, cache_start, n, bs);
}

void
backend_limit_draft_step_locations(backend_t *self, const int32_t *counts, uint32_t n, uint32_t bs)
{
    require(n <= self->options.width);
    draft_of(self, bs)->limit_step_locations(self, counts, n, bs);
}

void
backend_draft_write_locations_uniform(backend_t *self, int32_t *out, const int32_t *start,
                                      uint32_t n, uint32_t bs)
{
    require(n >= 1);
    draft_of(self, bs)->write_locations_uniform(self, out, start, n, bs);
}

const int32_t *
backend_decode_window_locations(const backend_t *self)
{
    require(self->vtable->draft != NULL);
    return self->vtable->draft->decode_window_locations(self);
}

const int32_t *
backend_extend_span_locations(const backend_t *self)
{
    require(self->vtable->draft != NULL);
    return self->vtable->draft->extend_span_locations(self);
}

void
backend_publish_accepted_prefix(const backend_accepted_prefix_t *self)
{
    backend_advance_draft_forward_metadata(self->backend, self->frontier, self->bs);
}
