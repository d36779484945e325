/* sched_heap.h - a heap of small integers by a 128-bit key, with removal from the middle.
 *
 * It owns its arrays, allocated once; every operation is O(log n).  An item is in the heap at most
 * once.  Scheduler's thread only. */
#ifndef SCHED_HEAP_H
#define SCHED_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct {
    int64_t major;  /* lower goes first */
    uint64_t minor; /* breaks ties; lower goes first */
} sched_key_t;

typedef struct {
    uint32_t *items;   /* heap order */
    uint32_t *places;  /* item -> index in items; UINT32_MAX = not in the heap */
    sched_key_t *keys; /* by item */
    uint32_t count;
    uint32_t capacity;
} sched_heap_t;

#define SCHED_HEAP_NONE UINT32_MAX /* no item */

/* Makes room for items 0..capacity-1. */
MUST_CHECK proto_status_t sched_heap_init(sched_heap_t *self, uint32_t capacity);
void sched_heap_fini(sched_heap_t *self);

/* Adds an item that is not in the heap. */
void sched_heap_push(sched_heap_t *self, uint32_t item, sched_key_t key);
/* Takes an item out; does nothing if it is not in. */
void sched_heap_remove(sched_heap_t *self, uint32_t item);
/* The first item, or SCHED_HEAP_NONE. */
uint32_t sched_heap_first(const sched_heap_t *self);
bool sched_heap_has(const sched_heap_t *self, uint32_t item);
/* Walks the whole heap and aborts at the first broken invariant. */
void sched_heap_check(const sched_heap_t *self);

#endif
