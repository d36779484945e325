/* Experts that a folder stores one by one: a tensor for each matrix of each expert. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "file_model_internal.h"
#include "proto_require.h"

enum { MATRIX_COUNT = 3, NAME_SIZE_BYTES = 96 };

static const struct {
    file_role_t role;
    const char *name;
} MATRICES[MATRIX_COUNT] = {
    {FILE_ROLE_EXPERT_GATE, "gate_proj"},
    {FILE_ROLE_EXPERT_UP, "up_proj"},
    {FILE_ROLE_EXPERT_DOWN, "down_proj"},
};

static file_tensor_t *
expert_slot(const file_model_t *self, uint32_t matrix, uint32_t layer, uint32_t expert)
{
    size_t at = ((size_t)layer * self->config.expert_count + expert) * MATRIX_COUNT + matrix;
    require(at < self->expert_slot_count);
    return &self->experts[at];
}

file_role_t
file_expert_role(size_t slot)
{
    return MATRICES[slot % MATRIX_COUNT].role;
}

proto_status_t
file_model_assign_experts(file_model_t *self, file_error_t error)
{
    const file_config_t *config = &self->config;
    if (!config->has_apart_experts) {
        return STATUS_OK;
    }
    self->expert_slot_count = (size_t)config->layer_count * config->expert_count * MATRIX_COUNT;
    self->experts = calloc(self->expert_slot_count, sizeof *self->experts);
    if (self->experts == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the experts");
    }
    for (uint32_t layer = config->dense_layer_count; layer < config->layer_count; layer++) {
        for (uint32_t expert = 0; expert < config->expert_count; expert++) {
            for (uint32_t i = 0; i < MATRIX_COUNT; i++) {
                bool is_down = MATRICES[i].role == FILE_ROLE_EXPERT_DOWN;
                char name[NAME_SIZE_BYTES];
                (void)snprintf(name, sizeof name,
                               "model.%slayers.%" PRIu32 ".mlp.experts.%" PRIu32 ".%s.weight",
                               config->is_nested ? "language_model." : "", layer, expert,
                               MATRICES[i].name);
                proto_status_t status =
                    file_model_bind(self, name, FILE_FORM_EXPERT,
                                    is_down ? config->hidden_size : config->expert_ffn_size,
                                    is_down ? config->expert_ffn_size : config->hidden_size, error,
                                    expert_slot(self, i, layer, expert));
                if (status != STATUS_OK) {
                    return status;
                }
            }
        }
    }
    return STATUS_OK;
}

proto_status_t
file_model_expert(const file_model_t *self, file_role_t role, uint32_t layer, uint32_t expert,
                  file_tensor_t *out)
{
    require(self->config.has_apart_experts);
    require(layer < self->config.layer_count && expert < self->config.expert_count);
    for (uint32_t i = 0; i < MATRIX_COUNT; i++) {
        if (MATRICES[i].role == role) {
            const file_tensor_t *slot = expert_slot(self, i, layer, expert);
            if (slot->data == NULL) {
                return STATUS_ERR_NOT_FOUND;
            }
            *out = *slot;
            return STATUS_OK;
        }
    }
    return STATUS_ERR_NOT_FOUND;
}
