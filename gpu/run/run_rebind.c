/* The orchestrator of a rebind: an executor moves to a cache of another size.
 *
 * The written order: both graph owners give their captures back, because captures record what a
 * publish drops; the workspace that was frozen before the capture may grow again; the tree
 * validates and publishes; the executor's own references to the pool follow; decode buffers are
 * made anew; the workspace is frozen; the graphs are captured again.  A pool that the tree rejects
 * is rejected before anything of this, so it moves nothing. */
#include <stdio.h>

#include "proto_require.h"
#include "run_executor_private.h"

proto_status_t
run_executor_capture(run_executor_t *self)
{
    run_workspace_freeze(&self->workspace);
    proto_status_t status = run_forward_step_capture(self->runner);
    if (status == STATUS_OK && self->single != NULL) {
        status = run_forward_step_capture(self->single);
    }
    if (status == STATUS_OK && self->drafter.draft != NULL) {
        status = draft_capture(self->drafter.draft);
    }
    return status;
}

proto_status_t
run_executor_init_tree(backend_t *backend)
{
    size_t verify_bytes = 0;
    proto_status_t status = backend_init_cuda_graph_state(backend);
    return status == STATUS_OK ? backend_preallocate_verify_workspace(backend, &verify_bytes)
                               : status;
}

typedef struct {
    cache_plan_t *plan;
    cache_arena_t *arena;
    cache_pool_t pool;
    uint64_t used_bytes; /* of the device's memory */
} cache_t;

static void
cache_fini(cache_t *cache)
{
    cache_arena_destroy(&cache->arena);
    cache_plan_destroy(&cache->plan);
}

static proto_status_t
cache_init(const run_executor_t *self, uint32_t parent_count, cache_t *out)
{
    *out = (cache_t){.plan = NULL};
    proto_status_t status = run_executor_new_plan(self, &out->plan);
    if (status == STATUS_OK) {
        status = cache_plan_bind(out->plan, parent_count);
    }
    uint64_t before_bytes = device_memory_used_bytes(self->device);
    if (status == STATUS_OK) {
        status = run_executor_new_arena(self, out->plan, &out->arena);
        out->used_bytes = device_memory_used_bytes(self->device) - before_bytes;
    }
    if (status == STATUS_OK) {
        status = cache_pool_init(&out->pool, out->plan, out->arena, 0,
                                 model_config(self->model)->layer_count);
    }
    if (status == STATUS_OK) {
        status = backend_validate_cache_pool(self->backend, &out->pool);
    }
    if (status == STATUS_OK && self->single_backend != NULL) {
        status = backend_validate_cache_pool(self->single_backend, &out->pool);
    }
    if (status != STATUS_OK) {
        cache_fini(out);
    }
    return status;
}

/* What the runner and the trees allocate anew over the cache that is bound now, in order. */
static proto_status_t
build_anew(run_executor_t *self)
{
    proto_status_t status = run_executor_publish_cache(self);
    if (status == STATUS_OK) {
        status = run_executor_init_tree(self->backend);
    }
    if (status == STATUS_OK && self->single_backend != NULL) {
        status = run_executor_init_tree(self->single_backend);
    }
    if (status == STATUS_OK) {
        status = run_forward_step_reserve(self->runner);
    }
    if (status == STATUS_OK) {
        status = run_executor_capture(self);
    }
    if (status == STATUS_ERR_INTERNAL && self->workspace.fault[0] != '\0') {
        (void)snprintf(self->fault, sizeof self->fault, "%s", self->workspace.fault);
    }
    return status;
}

proto_status_t
run_executor_rebind(run_executor_t *self, uint32_t parent_count)
{
    require(self->launched_count == self->collected_count);
    if (self->planted_backend != NULL) {
        return STATUS_ERR_INVALID; /* a second tree would keep the old pool */
    }
    cache_t cache;
    proto_status_t status = cache_init(self, parent_count, &cache);
    if (status != STATUS_OK) {
        return status;
    }
    if (self->single != NULL) {
        run_forward_step_release(self->single);
    }
    run_forward_step_release(self->runner);
    self->last_logits = NULL; /* they lay in a graph's pool, or were computed over the old cache */
    self->last_launched = (run_launched_t){.logits = NULL};
    run_workspace_unfreeze(&self->workspace);
    status = backend_set_cache_pool(self->backend, &cache.pool);
    if (status == STATUS_OK && self->single_backend != NULL) {
        status = backend_set_cache_pool(self->single_backend, &cache.pool);
    }
    if (status != STATUS_OK) {
        cache_fini(&cache);
        return status;
    }
    cache_t old = {.plan = self->plan, .arena = self->arena};
    self->plan = cache.plan;
    self->arena = cache.arena;
    status = run_drafter_bind(self); /* before the old plan goes: geometries are compared */
    cache_fini(&old);
    if (status == STATUS_OK) {
        status = build_anew(self);
    }
    self->rebound_fixed_bytes =
        device_memory_used_bytes(self->device) - self->ledger.begin_bytes - cache.used_bytes;
    return status;
}
