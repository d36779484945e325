/* actor_restart.h - when a child may be started again: at most so often in a period, after a wait
 * that doubles.  Pure: time is passed in. */
#ifndef ACTOR_RESTART_H
#define ACTOR_RESTART_H

#include <stdbool.h>
#include <stdint.h>

enum { ACTOR_RESTART_COUNT_MAX = 1000 };

typedef struct {
    uint32_t count_max; /* restarts in one period; at most ACTOR_RESTART_COUNT_MAX */
    uint64_t period_ns;
    uint64_t times_ns[ACTOR_RESTART_COUNT_MAX]; /* of the last restarts, oldest first */
    uint32_t count;                             /* of times_ns */
} actor_restart_t;

/* 0 takes the default: 3 restarts in 60 s. */
void actor_restart_init(actor_restart_t *self, uint32_t count_max, uint64_t period_ns);

/* Takes note of an end at `now_ns`.  True: start again after *wait_ns (100 ms, doubled for each
 * earlier restart in the period, at most 10 s).  False: it ended too often. */
bool actor_restart_allow(actor_restart_t *self, uint64_t now_ns, uint64_t *wait_ns);

#endif
