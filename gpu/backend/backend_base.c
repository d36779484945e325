/* What all nodes share: lifecycle order, refusals, inherited capture. */
#include "backend_base.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#include "proto_layers.h"
#include "proto_require.h"

void
backend_destroy(backend_t **self_p)
{
    require(self_p != NULL);
    backend_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < self->child_count; i++) {
        backend_destroy(&self->children[i]);
    }
    self->vtable->destroy(self);
    *self_p = NULL;
}

proto_status_t
backend_validate_cache_pool(const backend_t *self, const cache_pool_t *pool)
{
    for (uint32_t i = 0; i < self->child_count; i++) {
        proto_status_t status = backend_validate_cache_pool(self->children[i], pool);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return self->vtable->validate_cache_pool(self, pool);
}

static proto_status_t
publish_tree(backend_t *self, const cache_pool_t *pool)
{
    for (uint32_t i = 0; i < self->child_count; i++) {
        proto_status_t status = publish_tree(self->children[i], pool);
        if (status != STATUS_OK) {
            return status;
        }
    }
    proto_status_t status = self->vtable->publish_cache_pool(self, pool);
    if (status != STATUS_OK) {
        return status;
    }
    self->pool = *pool;
    self->is_bound = true;
    self->has_graph_state = self->has_graph_state && self->keeps_graph_state;
    return STATUS_OK;
}

proto_status_t
backend_set_cache_pool(backend_t *self, const cache_pool_t *pool)
{
    require(self != NULL);
    require(pool != NULL);
    proto_status_t status = backend_validate_cache_pool(self, pool);
    if (status != STATUS_OK) {
        return status;
    }
    return publish_tree(self, pool);
}

proto_status_t
backend_init_cuda_graph_state(backend_t *self)
{
    require(self->is_bound);
    for (uint32_t i = 0; i < self->child_count; i++) {
        proto_status_t status = backend_init_cuda_graph_state(self->children[i]);
        if (status != STATUS_OK) {
            return status;
        }
    }
    proto_status_t status = self->vtable->init_cuda_graph_state(self);
    self->has_graph_state = status == STATUS_OK;
    return status;
}

proto_status_t
backend_init_forward_metadata(backend_t *self, const backend_extend_t *extend)
{
    require(self->has_graph_state);
    bool is_complete =
        extend->tables != NULL && extend->extend_seq_lens != NULL &&
        extend->extend_prefix_lens != NULL && extend->extend_cu_lens != NULL &&
        extend->extend_seq_lens_host != NULL && extend->extend_prefix_lens_host != NULL &&
        extend->extend_replay_lens_host != NULL && extend->extend_prompt_lens_host != NULL &&
        extend->request_slots != NULL && extend->seq_lens != NULL;
    if (extend->mode == BACKEND_MODE_DECODE || !is_complete || extend->bs > self->options.bs_max ||
        extend->num_extends > extend->bs) {
        return STATUS_ERR_INVALID;
    }
    return self->vtable->init_forward_metadata(self, extend);
}

proto_status_t
backend_refresh_decode_metadata(backend_t *self, const backend_refresh_t *refresh)
{
    require(self->has_graph_state);
    if (refresh->mode != BACKEND_MODE_DECODE || refresh->tables == NULL ||
        refresh->request_slots == NULL || refresh->seq_lens == NULL || refresh->bs == 0 ||
        refresh->bs > self->options.bs_max || refresh->actual_bs > refresh->bs) {
        return STATUS_ERR_INVALID;
    }
    return self->vtable->refresh_decode_metadata(self, refresh);
}

proto_status_t
backend_capture_forward_metadata(backend_t *self, uint32_t bs, const int32_t *request_slots,
                                 const int32_t *seq_lens, const backend_tables_t *placeholder)
{
    backend_refresh_t refresh = {
        .bs = bs,
        .actual_bs = 0,
        .request_slots = request_slots,
        .seq_lens = seq_lens,
        .mode = BACKEND_MODE_DECODE,
        .tables = placeholder,
        .num_extends = 0,
        .for_graph_replay = true,
    };
    return backend_capture_child(self, &refresh);
}

proto_status_t
backend_capture_child(backend_t *child, const backend_refresh_t *refresh)
{
    if (child->vtable->capture_forward_metadata != NULL) {
        return child->vtable->capture_forward_metadata(child, refresh);
    }
    return backend_refresh_decode_metadata(child, refresh);
}

/* A composite's children have no word: a layer is recorded once, by the root. */
static void
record_layer_cache_ready(backend_t *self, backend_mode_t mode, uint32_t layers)
{
    if (self->layers_ready == NULL || mode == BACKEND_MODE_DECODE) {
        return; /* a captured decode graph would keep the word of one step for ever */
    }
    kern_mark_args_t mark = {.word = self->layers_ready, .value = layers};
    device_ops(self->options.device)->mark(self->options.stream, &mark);
}

void
backend_record_pd_cache_step(backend_t *self)
{
    record_layer_cache_ready(self, BACKEND_MODE_EXTEND, PROTO_LAYERS_ALL);
}

void
backend_forward(backend_t *self, const backend_forward_t *forward)
{
    require(forward->layer < self->pool.layer_count);
    require(forward->output_rows == 0 || forward->output_rows >= forward->rows);
    self->vtable->forward(self, forward);
    record_layer_cache_ready(self, forward->mode, forward->layer + 1);
}

void
backend_forward_recurrent(backend_t *self, const backend_recurrent_t *forward)
{
    require(forward->layer < self->pool.layer_count);
    require(self->vtable->forward_recurrent != NULL);
    self->vtable->forward_recurrent(self, forward);
    record_layer_cache_ready(self, forward->mode, forward->layer + 1);
}

proto_status_t
backend_preallocate_verify_workspace(backend_t *self, size_t *size_bytes_p)
{
    require(self->has_graph_state);
    for (uint32_t i = 0; i < self->child_count; i++) {
        proto_status_t status =
            backend_preallocate_verify_workspace(self->children[i], size_bytes_p);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (self->options.width == 1 || self->vtable->preallocate_verify_workspace == NULL) {
        return STATUS_OK;
    }
    return self->vtable->preallocate_verify_workspace(self, size_bytes_p);
}

void
backend_commit_speculative_state_after_verify(backend_t *self, const int32_t *accept_lengths,
                                              uint32_t bs, uint32_t num_extends)
{
    require(bs + num_extends <= self->options.bs_max);
    for (uint32_t i = 0; i < self->child_count; i++) {
        backend_commit_speculative_state_after_verify(self->children[i], accept_lengths, bs,
                                                      num_extends);
    }
    if (bs > 0 && self->vtable->commit_speculative_state != NULL) {
        self->vtable->commit_speculative_state(self, accept_lengths, bs, num_extends);
    }
}

const int32_t *
backend_write_locations(const backend_t *self, uint32_t layer, backend_mode_t mode)
{
    require(layer < self->pool.layer_count);
    return self->vtable->write_locations(self, layer, mode);
}

void
backend_visit_in_scope(void *context, const char *path, const void *address, size_t size_bytes)
{
    const backend_visit_scope_t *scope = context;
    char full[BACKEND_PATH_SIZE_BYTES];
    (void)snprintf(full, sizeof full, "%s/%s", scope->prefix, path);
    scope->visit(scope->context, full, address, size_bytes);
}

static backend_visit_scope_t
scope_of_child(const backend_t *self, uint32_t child, backend_visit_fn visit, void *context)
{
    backend_visit_scope_t scope = {.visit = visit, .context = context};
    (void)snprintf(scope.prefix, sizeof scope.prefix, "%" PRIu32 " %.24s", child,
                   self->children[child]->name);
    return scope;
}

void
backend_visit_decode_slot(const backend_t *self, uint32_t bs, backend_visit_fn visit, void *context)
{
    for (uint32_t i = 0; i < self->child_count; i++) {
        backend_visit_scope_t scope = scope_of_child(self, i, visit, context);
        backend_visit_decode_slot(self->children[i], bs, backend_visit_in_scope, &scope);
    }
    self->vtable->visit_decode_slot(self, bs, visit, context);
}

void
backend_visit_step_spans(const backend_t *self, uint32_t bs, backend_visit_fn visit, void *context)
{
    for (uint32_t i = 0; i < self->child_count; i++) {
        backend_visit_scope_t scope = scope_of_child(self, i, visit, context);
        backend_visit_step_spans(self->children[i], bs, backend_visit_in_scope, &scope);
    }
    if (self->vtable->visit_step_spans != NULL) {
        self->vtable->visit_step_spans(self, bs, visit, context);
    }
}

proto_status_t
backend_reject_bounded_replay(const backend_extend_t *extend)
{
    for (uint32_t i = 0; i < extend->num_extends; i++) {
        if (extend->extend_replay_lens_host[i] != 0) {
            return STATUS_ERR_INVALID;
        }
    }
    return STATUS_OK;
}
