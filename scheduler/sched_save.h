/* sched_save.h - what sched_save.c and sched_restore*.c have to agree on.  The
 * scheduler's thread. */
#ifndef SCHED_SAVE_H
#define SCHED_SAVE_H

#include "sched_internal.h"

enum {
    SCHED_SAVE_VERSION = 7,   /* of the layout; another one is refused */
    SCHED_SAVED_FIGURES = 23, /* those that are counted, not derived */
};

/* False, and the bytes count as wrong, unless the condition holds. */
static inline bool
sched_expect(proto_unpack_t *in, bool condition)
{
    if (!condition) {
        proto_unpack_fail(in);
    }
    return !in->failed;
}

/* Reads the part of an attached executor that save_slots() wrote; the pool is loaded. */
void sched_load_slots(sched_core_t *self, proto_unpack_t *in);

#endif
