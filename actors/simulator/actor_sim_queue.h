/* actor_sim_queue.h - what is going to happen, in order of time; what was pushed first goes first
 * among equals.  A binary heap that grows.  One thread. */
#ifndef ACTOR_SIM_QUEUE_H
#define ACTOR_SIM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    ACTOR_SIM_EVENT_MESSAGE, /* `pointer` arrives */
    ACTOR_SIM_EVENT_TIMER,   /* an actor's deadline */
    ACTOR_SIM_EVENT_TICK,    /* an actor's heartbeats and silence */
    ACTOR_SIM_EVENT_CONNECT, /* an actor without its link tries again */
    ACTOR_SIM_EVENT_DOWN,    /* a peer that failed is reported */
    ACTOR_SIM_EVENT_DEVICE,  /* a device has something to say */
    ACTOR_SIM_EVENT_START,   /* the supervisor starts a member */
    ACTOR_SIM_EVENT_FENCE,   /* the supervisor's DOWN reaches an actor */
    ACTOR_SIM_EVENT_GRACE,   /* the grace of a drain is over */
    ACTOR_SIM_EVENT_REQUEST, /* a client comes */
    ACTOR_SIM_EVENT_LEAVE,   /* a client leaves */
    ACTOR_SIM_EVENT_FAULT,   /* the next fault strikes */

} actor_sim_event_kind_t;

typedef struct {
    uint64_t time_ns;
    uint64_t order;
    uint64_t stamp; /* of what it is for: an epoch, so that what is old means nothing */
    void *pointer;
    uint32_t index;
    actor_sim_event_kind_t kind;
} actor_sim_event_t;

typedef struct {
    actor_sim_event_t *items;
    size_t count;
    size_t capacity;
    uint64_t order;
} actor_sim_queue_t;

void actor_sim_queue_fini(actor_sim_queue_t *self);
/* Sets event.order.  Aborts without memory: a harness has nothing better to do. */
void actor_sim_queue_push(actor_sim_queue_t *self, actor_sim_event_t event);
/* False if it is empty. */
bool actor_sim_queue_pop(actor_sim_queue_t *self, actor_sim_event_t *out);

#endif
