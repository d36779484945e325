/* proto_layers.h - memory that an executor writes and its kv-transfer reads: how many layers of a
 * step have their cache writes behind them.
 *
 * A step has the slot step % PROTO_LAYERS_SLOT_COUNT.  The executor's device thread opens it before
 * the step is launched; the device's stream writes the layers as they get done, so there is no
 * wait in it.  At most two steps are in flight, so a slot is long finished when it is opened again.
 * Fixed size, no pointers; both sides map it. */
#ifndef PROTO_LAYERS_H
#define PROTO_LAYERS_H

#include <stdatomic.h>
#include <stdint.h>

enum { PROTO_LAYERS_SLOT_COUNT = 16 };

#define PROTO_LAYERS_ALL UINT32_MAX /* every layer, and a drafter's behind them */

typedef struct {
    _Atomic uint64_t step;   /* 0 = none */
    _Atomic uint32_t layers; /* the first `layers` ones are done, or PROTO_LAYERS_ALL */
    uint32_t unused[13];
} proto_layers_slot_t;

typedef struct {
    proto_layers_slot_t slots[PROTO_LAYERS_SLOT_COUNT];
} proto_layers_t;

_Static_assert(sizeof(proto_layers_slot_t) == 64, "a slot is a cache line");

/* Opens the slot of a step; the device thread, before the launch.  Returns the word that the stream
 * writes. */
static inline _Atomic uint32_t *
proto_layers_open(proto_layers_t *self, uint64_t step)
{
    proto_layers_slot_t *slot = &self->slots[step % PROTO_LAYERS_SLOT_COUNT];
    atomic_store_explicit(&slot->step, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&slot->layers, 0, memory_order_release);
    atomic_store_explicit(&slot->step, step, memory_order_release);
    return &slot->layers;
}

/* Forgets every step: numbers begin anew. */
static inline void
proto_layers_clear(proto_layers_t *self)
{
    for (uint32_t i = 0; i < PROTO_LAYERS_SLOT_COUNT; i++) {
        atomic_store_explicit(&self->slots[i].step, 0, memory_order_release);
    }
}

/* Layers of a step that may be read: 0 if it was not launched, PROTO_LAYERS_ALL if it is over. */
static inline uint32_t
proto_layers_done(const proto_layers_t *self, uint64_t step)
{
    const proto_layers_slot_t *slot = &self->slots[step % PROTO_LAYERS_SLOT_COUNT];
    uint64_t before = atomic_load_explicit(&slot->step, memory_order_acquire);
    uint32_t layers = atomic_load_explicit(&slot->layers, memory_order_acquire);
    atomic_thread_fence(memory_order_acquire);
    uint64_t after = atomic_load_explicit(&slot->step, memory_order_relaxed);
    if (before != after) {
        return 0; /* it is being opened; ask again */
    }
    if (before > step) {
        return PROTO_LAYERS_ALL;
    }
    return before == step ? layers : 0;
}

#endif
