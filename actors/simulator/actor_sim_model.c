#include "actor_sim_model.h"

#include "proto_require.h"

void
actor_sim_model_info(const actor_sim_model_t *self, proto_executor_info_t *out)
{
    *out = (proto_executor_info_t){
        .model_name = proto_text("simulated"),
        .fingerprint = proto_text("model=simulated"),
        .vocab_size = self->vocab_size,
        .model_len_max = self->model_len_max,
        .slot_count = self->slot_count,
        .step_tokens_max = self->step_tokens_max,
        .decode_width = actor_sim_width(self),
        .overlap_depth_max = self->overlap,
        .prefix_granularity = self->page_tokens,
        .parent_count = self->parent_count,
        .group_kinds = {self->kinds, self->group_count},
        .group_granularities = {self->granularities, self->group_count},
        .group_windows = {self->windows, self->group_count},
        .group_packings = {self->packings, self->group_count},
        .page_hash_key = {self->page_hash_key, PROTO_HASH_SIZE_BYTES},
    };
}

void
actor_sim_sequence_append(actor_sim_sequence_t *self, const actor_sim_model_t *model, int32_t token)
{
    require(self->length < ACTOR_SIM_LEN_MAX);
    uint32_t at = self->length++;
    self->chain[at] =
        actor_sim_chain_next(at > 0 ? self->chain[at - 1] : ACTOR_SIM_CHAIN_START, token);
    for (uint32_t g = 0; g < model->group_count; g++) {
        if (model->kinds[g] == ACTOR_SIM_STATE) {
            self->sums[g] =
                actor_sim_state_next(at == 0 ? actor_sim_state_start(g) : self->sums[g], token);
            continue;
        }
        if (at == 0) {
            self->sums[g] = 0;
        }
        self->sums[g] += actor_sim_weight(actor_sim_cell(self->chain[at], g), at);
        uint32_t first = actor_sim_first_read(model, g, at);
        if (first > 0) { /* one position has slid out */
            self->sums[g] -= actor_sim_weight(actor_sim_cell(self->chain[first - 1], g), first - 1);
        }
    }
}

int32_t
actor_sim_sequence_next(const actor_sim_sequence_t *self, const actor_sim_model_t *model)
{
    return actor_sim_token(self->sums, model);
}

uint32_t
actor_sim_sequence_accepted(const actor_sim_sequence_t *self, const actor_sim_model_t *model)
{
    require(self->length > 0);
    return actor_sim_accepted(self->chain[self->length - 1], model);
}
