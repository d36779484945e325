#include "actor_restart.h"

#include <string.h>

#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum {
    COUNT_DEFAULT = 3,
    PERIOD_MS = 60000,
    WAIT_FIRST_MS = 100,
    WAIT_MAX_MS = 10000,
};

void
actor_restart_init(actor_restart_t *self, uint32_t count_max, uint64_t period_ns)
{
    *self = (actor_restart_t){.count_max = count_max != 0 ? count_max : COUNT_DEFAULT,
                              .period_ns = period_ns != 0 ? period_ns : PERIOD_MS * MS_NS};
    require(self->count_max <= ACTOR_RESTART_COUNT_MAX);
}

bool
actor_restart_allow(actor_restart_t *self, uint64_t now_ns, uint64_t *wait_ns)
{
    uint32_t old = 0;
    while (old < self->count && now_ns - self->times_ns[old] >= self->period_ns) {
        old++;
    }
    self->count -= old;
    memmove(self->times_ns, self->times_ns + old, self->count * sizeof self->times_ns[0]);
    if (self->count >= self->count_max) {
        return false;
    }
    uint64_t wait = WAIT_FIRST_MS * MS_NS;
    for (uint32_t index = 0; index < self->count && wait < WAIT_MAX_MS * MS_NS; index++) {
        wait *= 2;
    }
    *wait_ns = wait < WAIT_MAX_MS * MS_NS ? wait : WAIT_MAX_MS * MS_NS;
    self->times_ns[self->count++] = now_ns;
    return true;
}
