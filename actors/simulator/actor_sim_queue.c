#include "actor_sim_queue.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { CAPACITY_START = 256 };

void
actor_sim_queue_fini(actor_sim_queue_t *self)
{
    free(self->items);
    memset(self, 0, sizeof *self);
}

static bool
before(const actor_sim_event_t *a, const actor_sim_event_t *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

void
actor_sim_queue_push(actor_sim_queue_t *self, actor_sim_event_t event)
{
    if (self->count == self->capacity) {
        size_t capacity = self->capacity > 0 ? 2 * self->capacity : CAPACITY_START;
        actor_sim_event_t *items = realloc(self->items, capacity * sizeof *items);
        require(items != NULL);
        self->items = items;
        self->capacity = capacity;
    }
    event.order = ++self->order;
    size_t at = self->count++;
    while (at > 0 && before(&event, &self->items[(at - 1) / 2])) {
        self->items[at] = self->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    self->items[at] = event;
}

bool
actor_sim_queue_pop(actor_sim_queue_t *self, actor_sim_event_t *out)
{
    if (self->count == 0) {
        return false;
    }
    *out = self->items[0];
    actor_sim_event_t last = self->items[--self->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= self->count) {
            break;
        }
        if (child + 1 < self->count && before(&self->items[child + 1], &self->items[child])) {
            child++;
        }
        if (!before(&self->items[child], &last)) {
            break;
        }
        self->items[at] = self->items[child];
        at = child;
    }
    if (self->count > 0) {
        self->items[at] = last;
    }
    return true;
}
