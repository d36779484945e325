/* actor_sim_model.h - the hash that stands for a model: what the device computes from its cells and
 * the clients from the tokens alone.  Pure functions; any thread. */
#ifndef ACTOR_SIM_MODEL_H
#define ACTOR_SIM_MODEL_H

#include "actor_sim_device.h"

/* The kinds of groups, as in EXECUTOR_INFO. */
enum { ACTOR_SIM_FULL = 0, ACTOR_SIM_SLIDING = 1, ACTOR_SIM_STATE = 2 };

#define ACTOR_SIM_CHAIN_START UINT64_C(0x6f6e6570617468)

static inline uint32_t
actor_sim_width(const actor_sim_model_t *model)
{
    return model->width > 0 ? model->width : 1;
}

static inline uint64_t
actor_sim_chain_next(uint64_t before, int32_t token)
{
    uint64_t value = (before ^ (uint32_t)token) * 0x9e3779b97f4a7c15u;
    return value ^ (value >> 29);
}

/* What a layer of group `g` keeps of a position. */
static inline uint64_t
actor_sim_cell(uint64_t chain, uint32_t g)
{
    return chain + g * 0xd1b54a32d192ed03u;
}

/* What a read cell adds to a layer's output. */
static inline uint64_t
actor_sim_weight(uint64_t cell, uint32_t position)
{
    uint64_t value = (cell ^ ((uint64_t)position << 40)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static inline int32_t
actor_sim_token(const uint64_t *sums, const actor_sim_model_t *model)
{
    uint64_t hash = 0;
    for (uint32_t g = 0; g < model->group_count; g++) {
        hash = actor_sim_mix(hash + sums[g]);
    }
    return (int32_t)((hash >> 20) % model->vocab_size);
}

/* The state of no token, and of one more. */
static inline uint64_t
actor_sim_state_start(uint32_t g)
{
    return ACTOR_SIM_CHAIN_START * (2 * g + 3);
}

static inline uint64_t
actor_sim_state_next(uint64_t before, int32_t token)
{
    uint64_t value = (before + (uint32_t)token + 1) * 0xd6e8feb86659fd93u;
    return value ^ (value >> 32);
}

static inline uint32_t
actor_sim_accepted(uint64_t chain, const actor_sim_model_t *model)
{
    return 1 + (uint32_t)(actor_sim_mix(chain) % actor_sim_width(model));
}

static inline uint32_t
actor_sim_first_read(const actor_sim_model_t *model, uint32_t g, uint32_t position)
{
    bool slides = model->kinds[g] == ACTOR_SIM_SLIDING && position + 1 > model->windows[g];
    return slides ? position + 1 - model->windows[g] : 0;
}

#endif
