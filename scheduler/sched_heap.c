#include "sched_heap.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

proto_status_t
sched_heap_init(sched_heap_t *self, uint32_t capacity)
{
    require(capacity > 0);
    memset(self, 0, sizeof *self);
    self->items = calloc(capacity, sizeof *self->items);
    self->places = malloc((size_t)capacity * sizeof *self->places);
    self->keys = calloc(capacity, sizeof *self->keys);
    if (self->items == NULL || self->places == NULL || self->keys == NULL) {
        sched_heap_fini(self);
        return STATUS_ERR_NO_MEMORY;
    }
    memset(self->places, 0xff, (size_t)capacity * sizeof *self->places);
    self->capacity = capacity;
    return STATUS_OK;
}

void
sched_heap_fini(sched_heap_t *self)
{
    free(self->items);
    free(self->places);
    free(self->keys);
    memset(self, 0, sizeof *self);
}

static bool
goes_before(const sched_heap_t *self, uint32_t a, uint32_t b)
{
    const sched_key_t *x = &self->keys[a];
    const sched_key_t *y = &self->keys[b];
    return x->major != y->major ? x->major < y->major : x->minor < y->minor;
}

static void
put(sched_heap_t *self, uint32_t place, uint32_t item)
{
    self->items[place] = item;
    self->places[item] = place;
}

static void
sift_up(sched_heap_t *self, uint32_t place, uint32_t item)
{
    while (place > 0) {
        uint32_t up = (place - 1) / 2;
        if (!goes_before(self, item, self->items[up])) {
            break;
        }
        put(self, place, self->items[up]);
        place = up;
    }
    put(self, place, item);
}

static void
sift_down(sched_heap_t *self, uint32_t place, uint32_t item)
{
    for (;;) {
        uint32_t down = 2 * place + 1;
        if (down >= self->count) {
            break;
        }
        if (down + 1 < self->count && goes_before(self, self->items[down + 1], self->items[down])) {
            down++;
        }
        if (!goes_before(self, self->items[down], item)) {
            break;
        }
        put(self, place, self->items[down]);
        place = down;
    }
    put(self, place, item);
}

void
sched_heap_push(sched_heap_t *self, uint32_t item, sched_key_t key)
{
    require(item < self->capacity);
    require(self->places[item] == SCHED_HEAP_NONE);
    self->keys[item] = key;
    self->count++;
    sift_up(self, self->count - 1, item);
}

void
sched_heap_remove(sched_heap_t *self, uint32_t item)
{
    require(item < self->capacity);
    uint32_t place = self->places[item];
    if (place == SCHED_HEAP_NONE) {
        return;
    }
    self->places[item] = SCHED_HEAP_NONE;
    self->count--;
    if (place == self->count) {
        return;
    }
    uint32_t moved = self->items[self->count];
    if (place > 0 && goes_before(self, moved, self->items[(place - 1) / 2])) {
        sift_up(self, place, moved);
    } else {
        sift_down(self, place, moved);
    }
}

uint32_t
sched_heap_first(const sched_heap_t *self)
{
    return self->count == 0 ? SCHED_HEAP_NONE : self->items[0];
}

bool
sched_heap_has(const sched_heap_t *self, uint32_t item)
{
    require(item < self->capacity);
    return self->places[item] != SCHED_HEAP_NONE;
}

void
sched_heap_check(const sched_heap_t *self)
{
    require(self->count <= self->capacity);
    for (uint32_t i = 0; i < self->count; i++) {
        require(self->places[self->items[i]] == i);
        require(i == 0 || !goes_before(self, self->items[i], self->items[(i - 1) / 2]));
    }
}
