/* actor_sim_random.h - the simulator's numbers: splitmix64, one stream for each purpose, so that
 * other faults leave the load as it was. */
#ifndef ACTOR_SIM_RANDOM_H
#define ACTOR_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t state;
} actor_sim_random_t;

static inline uint64_t
actor_sim_mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9u;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static inline uint64_t
actor_sim_random_next(actor_sim_random_t *self)
{
    self->state += 0x9e3779b97f4a7c15u;
    return actor_sim_mix(self->state);
}

static inline void
actor_sim_random_init(actor_sim_random_t *self, uint64_t seed, uint64_t stream)
{
    self->state = actor_sim_mix(actor_sim_mix(seed + 0x9e3779b97f4a7c15u) ^ actor_sim_mix(~stream));
}

/* [min, max], both below 2^32. */
static inline uint32_t
actor_sim_random_between(actor_sim_random_t *self, uint32_t min, uint32_t max)
{
    uint64_t span = (uint64_t)max - min + 1;
    return min + (uint32_t)((actor_sim_random_next(self) >> 32) * span >> 32);
}

/* True `permille` times in a thousand. */
static inline bool
actor_sim_random_chance(actor_sim_random_t *self, uint32_t permille)
{
    return actor_sim_random_between(self, 0, 999) < permille;
}

/* [min, max] microseconds, to the nanosecond. */
static inline uint64_t
actor_sim_random_us(actor_sim_random_t *self, uint32_t min, uint32_t max)
{
    return (uint64_t)actor_sim_random_between(self, min, max) * 1000u +
           actor_sim_random_between(self, 0, 999);
}

#endif
