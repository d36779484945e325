/* The CacheGroupRouter. */
#include "router_cache_group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto_require.h"
#include "router_draft.h"
#include "router_stacks.h"

typedef struct {
    const int32_t *decode_write_locations[CACHE_GROUP_COUNT_MAX]; /* by consumed group */
    uint32_t bs;                                                  /* 0 = not built yet */
} decode_view_t;

enum { NO_LEAF = CACHE_GROUP_COUNT_MAX };

typedef struct {
    backend_t base; /* first */
    uint32_t page_size;
    backend_leaf_t *leaves[CACHE_GROUP_COUNT_MAX]; /* by consumed group */
    uint32_t leaf_count;
    uint32_t *leaf_of_layer; /* [layer_count]; index of consumed group, or NO_LEAF */
    router_stacks_t stacks;
    decode_view_t *decode_views_by_bs; /* [bs_max + 1] */
    const decode_view_t *forward_decode_metadata;
    bool has_prefill_metadata;
} router_t;

static void
drop_graph_state(router_t *self)
{
    router_stacks_fini(&self->stacks);
    free(self->decode_views_by_bs);
    self->decode_views_by_bs = NULL;
    self->forward_decode_metadata = NULL;
    self->has_prefill_metadata = false;
}

static void
drop_leaves(router_t *self)
{
    while (self->leaf_count > 0) {
        backend_leaf_t *leaf = self->leaves[--self->leaf_count];
        leaf->vtable->destroy(leaf);
    }
}

static void
router_destroy(backend_t *base)
{
    router_t *self = (router_t *)base;
    drop_graph_state(self);
    drop_leaves(self);
    free(self->leaf_of_layer);
    free(self);
}

static bool
is_consumed(const cache_group_t *group)
{
    return group->kind == CACHE_KIND_FULL || group->kind == CACHE_KIND_SLIDING;
}

static uint32_t
page_size_for(const router_t *self, uint32_t granularity)
{
    if (self->page_size != 0) {
        return self->page_size;
    }
    return granularity < CACHE_GRANULARITY_DEFAULT ? granularity : CACHE_GRANULARITY_DEFAULT;
}

static proto_status_t
router_validate(const backend_t *base, const cache_pool_t *pool)
{
    const router_t *self = (const router_t *)base;
    if (base->is_bound) {
        if (!cache_pool_same_geometry(&base->pool, pool)) {
            return STATUS_ERR_INVALID;
        }
        for (uint32_t i = 0; i < self->leaf_count; i++) {
            proto_status_t status = self->leaves[i]->vtable->validate(self->leaves[i], pool);
            if (status != STATUS_OK) {
                return status;
            }
        }
        return STATUS_OK;
    }
    uint32_t consumed = 0;
    for (uint32_t g = 0; g < cache_plan_group_count(pool->plan); g++) {
        const cache_group_t *group = cache_plan_group(pool->plan, g);
        if (is_consumed(group)) {
            consumed++;
            if (group->granularity % page_size_for(self, group->granularity) != 0) {
                return STATUS_ERR_INVALID;
            }
        }
    }
    return consumed > 0 ? STATUS_OK : STATUS_ERR_INVALID;
}

/* What a layer's fields say about the kernel that reads them; false: another node's layer. */
static bool
softmax_field(const cache_pool_t *pool, uint32_t layer, cache_field_name_t *name,
              cache_field_view_t *view)
{
    static const cache_field_name_t names[] = {CACHE_FIELD_K, CACHE_FIELD_LATENT};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (cache_pool_field(pool, layer, names[i], view) == STATUS_OK) {
            *name = names[i];
            return true;
        }
    }
    return false;
}

static proto_status_t
make_leaf(const router_t *self, const cache_pool_t *pool, uint32_t group, backend_leaf_t **out_p)
{
    uint32_t granularity = cache_plan_group(pool->plan, group)->granularity;
    uint32_t page_size = page_size_for(self, granularity);
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        cache_field_name_t name;
        cache_field_view_t view;
        if (softmax_field(pool, layer, &name, &view) && view.group == group &&
            name == CACHE_FIELD_LATENT) {
            return backend_mla_new(&self->base.options, group, granularity, page_size, out_p);
        }
    }
    return backend_mha_new(&self->base.options, group, granularity, page_size, out_p);
}

static proto_status_t
make_leaves(router_t *self, const cache_pool_t *pool)
{
    for (uint32_t g = 0; g < cache_plan_group_count(pool->plan); g++) {
        if (!is_consumed(cache_plan_group(pool->plan, g))) {
            continue;
        }
        backend_leaf_t *leaf = NULL;
        proto_status_t status = make_leaf(self, pool, g, &leaf);
        if (status != STATUS_OK) {
            return status;
        }
        self->leaves[self->leaf_count++] = leaf;
        status = leaf->vtable->validate(leaf, pool);
        if (status != STATUS_OK) {
            return status;
        }
        self->base.support.decode_graph =
            self->base.support.decode_graph && leaf->support.decode_graph;
        self->base.support.prefill_graph =
            self->base.support.prefill_graph && leaf->support.prefill_graph;
    }
    return STATUS_OK;
}

static proto_status_t
map_layers(router_t *self, const cache_pool_t *pool)
{
    free(self->leaf_of_layer);
    self->leaf_of_layer = calloc(pool->layer_count, sizeof *self->leaf_of_layer);
    if (self->leaf_of_layer == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        cache_field_name_t name;
        cache_field_view_t view;
        self->leaf_of_layer[layer] = NO_LEAF;
        if (!softmax_field(pool, layer, &name, &view)) {
            continue; /* another node's */
        }
        for (uint32_t i = 0; i < self->leaf_count; i++) {
            if (self->leaves[i]->group == view.group) {
                self->leaf_of_layer[layer] = i;
            }
        }
    }
    return STATUS_OK;
}

static proto_status_t
router_publish(backend_t *base, const cache_pool_t *pool)
{
    router_t *self = (router_t *)base;
    drop_graph_state(self);
    if (!base->is_bound) {
        drop_leaves(self); /* of a first bind that failed */
        proto_status_t status = make_leaves(self, pool);
        if (status != STATUS_OK) {
            return status;
        }
    }
    proto_status_t status = map_layers(self, pool);
    if (status != STATUS_OK) {
        return status;
    }
    self->stacks = (router_stacks_t){.options = base->options, .group_count = self->leaf_count};
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        const backend_leaf_t *leaf = self->leaves[i];
        leaf->vtable->bind(self->leaves[i], pool);
        self->stacks.groups[i] = (router_stack_group_t){
            .group = leaf->group,
            .block_count = cache_plan_page_count(pool->plan, leaf->group),
            .ratio = leaf->granularity / leaf->page_size,
            .stride = leaf->page_stride,
            .page_size = leaf->page_size,
            .page_columns = leaf->page_count_max,
        };
    }
    return STATUS_OK;
}

static proto_status_t
router_init_graph_state(backend_t *base)
{
    router_t *self = (router_t *)base;
    drop_graph_state(self);
    proto_status_t status = router_stacks_init(&self->stacks);
    if (status != STATUS_OK) {
        return status;
    }
    self->decode_views_by_bs = calloc((size_t)base->options.bs_max + 1, sizeof(decode_view_t));
    if (self->decode_views_by_bs == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        status = self->leaves[i]->vtable->init_graph_state(self->leaves[i]);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* A live batch whose tables omit a consumed group would be served from stale pages. */
static proto_status_t
check_live_delivery(const router_t *self, const backend_tables_t *tables, uint32_t actual_bs)
{
    for (uint32_t i = 0; actual_bs > 0 && i < self->leaf_count; i++) {
        uint32_t group = self->leaves[i]->group;
        if (group >= tables->group_count || tables->groups[group].blocks == NULL) {
            return STATUS_ERR_INVALID;
        }
    }
    return STATUS_OK;
}

static const decode_view_t *
decode_view(router_t *self, uint32_t bs)
{
    decode_view_t *view = &self->decode_views_by_bs[bs];
    if (view->bs == 0) {
        for (uint32_t i = 0; i < self->leaf_count; i++) {
            view->decode_write_locations[i] = router_stacks_decode_locations(&self->stacks, i);
        }
        view->bs = bs;
    }
    return view;
}

static void
set_request_slots(router_t *self, const int32_t *request_slots, uint32_t bs)
{
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        if (self->leaves[i]->vtable->set_request_slots != NULL) {
            self->leaves[i]->vtable->set_request_slots(self->leaves[i], request_slots, bs);
        }
    }
}

/* Shared by refresh and capture; they differ in the leaf's hook only. */
static proto_status_t
prepare_decode(router_t *self, const backend_refresh_t *refresh, bool is_capture)
{
    proto_status_t status = check_live_delivery(self, refresh->tables, refresh->actual_bs);
    if (status != STATUS_OK) {
        return status;
    }
    router_stacks_fill(&self->stacks, refresh->tables, refresh->bs, refresh->actual_bs);
    router_stacks_decode(&self->stacks, refresh->seq_lens, refresh->bs, refresh->actual_bs);
    self->forward_decode_metadata = decode_view(self, refresh->bs);
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        backend_leaf_t *leaf = self->leaves[i];
        backend_leaf_refresh_t inner = {
            .bs = refresh->bs,
            .actual_bs = refresh->actual_bs,
            .page_table = router_stacks_table(&self->stacks, i),
            .page_table_stride = self->stacks.page_columns,
            .seq_lens = refresh->seq_lens,
            .for_graph_replay = refresh->for_graph_replay,
        };
        if (is_capture && leaf->vtable->capture_forward_metadata != NULL) {
            leaf->vtable->capture_forward_metadata(leaf, &inner);
        } else {
            leaf->vtable->refresh_decode_metadata(leaf, &inner);
        }
    }
    set_request_slots(self, refresh->request_slots, refresh->bs);
    return STATUS_OK;
}

static proto_status_t
router_refresh(backend_t *base, const backend_refresh_t *refresh)
{
    return prepare_decode((router_t *)base, refresh, false);
}

/* The idle refresh, with each leaf's own capture hook. */
static proto_status_t
router_capture(backend_t *base, const backend_refresh_t *refresh)
{
    return prepare_decode((router_t *)base, refresh, true);
}

static proto_status_t
router_init_forward(backend_t *base, const backend_extend_t *extend)
{
    router_t *self = (router_t *)base;
    proto_status_t status = backend_reject_bounded_replay(extend);
    if (status != STATUS_OK) {
        return status;
    }
    bool is_idle = extend->mode == BACKEND_MODE_IDLE;
    status = check_live_delivery(self, extend->tables, is_idle ? 0 : extend->bs);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t extend_tokens = 0;
    for (uint32_t i = 0; i < extend->num_extends; i++) {
        extend_tokens += (uint32_t)extend->extend_seq_lens_host[i];
    }
    uint64_t rows =
        extend_tokens + (uint64_t)(extend->bs - extend->num_extends) * base->options.width;
    if (rows > base->options.step_tokens_max) {
        return STATUS_ERR_INVALID;
    }
    router_stacks_fill(&self->stacks, extend->tables, extend->bs, is_idle ? 0 : extend->bs);
    router_stacks_extend(&self->stacks, extend, (uint32_t)extend_tokens);
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        backend_leaf_extend_t inner = {
            .bs = extend->bs,
            .num_extends = extend->num_extends,
            .extend_tokens = (uint32_t)extend_tokens,
            .page_table = router_stacks_table(&self->stacks, i),
            .page_table_stride = self->stacks.page_columns,
            .seq_lens = extend->seq_lens,
            .extend_cu_lens = extend->extend_cu_lens,
        };
        self->leaves[i]->vtable->init_forward_metadata(self->leaves[i], &inner);
    }
    self->has_prefill_metadata = true;
    set_request_slots(self, extend->request_slots, extend->bs);
    return STATUS_OK;
}

static void
router_forward(backend_t *base, const backend_forward_t *forward)
{
    router_t *self = (router_t *)base;
    require(self->leaf_of_layer[forward->layer] < self->leaf_count);
    backend_leaf_t *leaf = self->leaves[self->leaf_of_layer[forward->layer]];
    leaf->vtable->forward(leaf, forward);
}

static const int32_t *
router_write_locations(const backend_t *base, uint32_t layer, backend_mode_t mode)
{
    const router_t *self = (const router_t *)base;
    uint32_t index = self->leaf_of_layer[layer];
    require(index < self->leaf_count);
    if (mode == BACKEND_MODE_DECODE) {
        require(self->forward_decode_metadata != NULL);
        return self->forward_decode_metadata->decode_write_locations[index];
    }
    require(self->has_prefill_metadata);
    return router_stacks_extend_locations(&self->stacks, index);
}

static backend_visit_scope_t
scope_of_group(const router_t *self, uint32_t index, backend_visit_fn visit, void *context)
{
    backend_visit_scope_t scope = {.visit = visit, .context = context};
    (void)snprintf(scope.prefix, sizeof scope.prefix, "group %" PRIu32, self->leaves[index]->group);
    return scope;
}

static void
router_visit(const backend_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    const router_t *self = (const router_t *)base;
    const decode_view_t *view = &self->decode_views_by_bs[bs];
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        backend_visit_scope_t scope = scope_of_group(self, i, visit, context);
        if (view->bs != 0) {
            backend_visit_in_scope(&scope, "router.decode.write_locations",
                                   view->decode_write_locations[i],
                                   (size_t)bs * base->options.width * sizeof(int32_t));
        }
        self->leaves[i]->vtable->visit_decode_slot(self->leaves[i], bs, backend_visit_in_scope,
                                                   &scope);
    }
}

static void
router_visit_step(const backend_t *base, uint32_t bs, backend_visit_fn visit, void *context)
{
    const router_t *self = (const router_t *)base;
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        const backend_leaf_t *leaf = self->leaves[i];
        backend_visit_scope_t scope = scope_of_group(self, i, visit, context);
        backend_visit_in_scope(&scope, "router.decode.write_locations",
                               router_stacks_decode_locations(&self->stacks, i),
                               (size_t)bs * base->options.width * sizeof(int32_t));
        if (leaf->vtable->visit_step_spans != NULL) {
            leaf->vtable->visit_step_spans(leaf, bs, backend_visit_in_scope, &scope);
        }
    }
}

static const backend_vtable_t router_vtable = {
    .destroy = router_destroy,
    .validate_cache_pool = router_validate,
    .publish_cache_pool = router_publish,
    .init_cuda_graph_state = router_init_graph_state,
    .init_forward_metadata = router_init_forward,
    .refresh_decode_metadata = router_refresh,
    .capture_forward_metadata = router_capture,
    .forward = router_forward,
    .write_locations = router_write_locations,
    .visit_decode_slot = router_visit,
    .visit_step_spans = router_visit_step,
    .draft = &router_draft_vtable,
};

router_draft_view_t
router_draft_view(const backend_t *base)
{
    const router_t *self = (const router_t *)base;
    require(base->vtable == &router_vtable);
    return (router_draft_view_t){
        .leaves = self->leaves,
        .leaf_count = self->leaf_count,
        .stacks = (router_stacks_t *)&self->stacks,
    };
}

proto_status_t
router_cache_group_new(const router_cache_group_options_t *options, backend_t **out_p)
{
    require(options != NULL);
    require(options->backend.bs_max > 0);
    router_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.vtable = &router_vtable;
    self->base.name = "cache group router";
    self->base.support = (backend_support_t){.decode_graph = true, .prefill_graph = true};
    self->base.options = options->backend;
    self->page_size = options->page_size;
    *out_p = &self->base;
    return STATUS_OK;
}

const int32_t *
router_cache_group_table(const backend_t *base, uint32_t group, size_t *stride, uint32_t *page_size)
{
    const router_t *self = (const router_t *)base;
    require(base->vtable == &router_vtable);
    for (uint32_t i = 0; i < self->leaf_count; i++) {
        if (self->leaves[i]->group == group) {
            *stride = self->stacks.page_columns;
            *page_size = self->leaves[i]->page_size;
            return router_stacks_table(&self->stacks, i);
        }
    }
    return NULL;
}
