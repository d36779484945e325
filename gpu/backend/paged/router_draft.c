/* The router's part of the draft contract: lengths go to the leaves, windows to the stacks. */
#include "router_draft.h"

#include "proto_require.h"

static void
set_seq_lens(const backend_t *self, const int32_t *seq_lens, int32_t add, uint32_t bs)
{
    router_draft_view_t view = router_draft_view(self);
    for (uint32_t i = 0; i < view.leaf_count; i++) {
        backend_leaf_t *leaf = view.leaves[i];
        require(leaf->vtable->set_draft_seq_lens != NULL);
        leaf->vtable->set_draft_seq_lens(leaf, seq_lens, add, bs);
    }
}

static void
advance(backend_t *self, const int32_t *seq_lens, uint32_t bs)
{
    set_seq_lens(self, seq_lens, 0, bs);
}

static void
fill_block(backend_t *self, const int32_t *prefix_lens, uint32_t bs)
{
    set_seq_lens(self, prefix_lens, (int32_t)self->options.block_width, bs);
}

static void
publish_step(backend_t *self, const int32_t *cache_start, uint32_t n, uint32_t bs)
{
    router_draft_view_t view = router_draft_view(self);
    for (uint32_t i = 0; i < view.leaf_count; i++) {
        router_stacks_window(view.stacks, i, cache_start, n, bs,
                             router_stacks_decode_locations(view.stacks, i));
    }
}

static void
limit_step(backend_t *self, const int32_t *counts, uint32_t n, uint32_t bs)
{
    router_draft_view_t view = router_draft_view(self);
    for (uint32_t i = 0; i < view.leaf_count; i++) {
        kern_draft_limit_args_t args = {
            .counts = counts,
            .n = n,
            .bs = bs,
            .locations = router_stacks_decode_locations(view.stacks, i),
        };
        device_ops(self->options.device)->draft_limit(self->options.stream, &args);
    }
}

/* The group that keeps every token; a draft's layers and what reads across trees are in it. */
static uint32_t
full_history(const backend_t *self, const router_draft_view_t *view)
{
    for (uint32_t i = 0; i < view->leaf_count; i++) {
        if (cache_plan_group(self->pool.plan, view->leaves[i]->group)->kind == CACHE_KIND_FULL) {
            return i;
        }
    }
    require(false); /* a router has a group that keeps every token */
    return 0;
}

static void
uniform(backend_t *self, int32_t *out, const int32_t *start, uint32_t n, uint32_t bs)
{
    router_draft_view_t view = router_draft_view(self);
    router_stacks_window(view.stacks, full_history(self, &view), start, n, bs, out);
}

static const int32_t *
decode_window(const backend_t *self)
{
    router_draft_view_t view = router_draft_view(self);
    return router_stacks_decode_locations(view.stacks, full_history(self, &view));
}

static const int32_t *
extend_span(const backend_t *self)
{
    router_draft_view_t view = router_draft_view(self);
    return router_stacks_extend_locations(view.stacks, full_history(self, &view));
}

const backend_draft_vtable_t router_draft_vtable = {
    .advance_forward_metadata = advance,
    .update_forward_metadata = advance,
    .fill_block_seq_lens = fill_block,
    .publish_step_locations = publish_step,
    .limit_step_locations = limit_step,
    .write_locations_uniform = uniform,
    .decode_window_locations = decode_window,
    .extend_span_locations = extend_span,
};
