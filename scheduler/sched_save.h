/* sched_save.h - what sched_save.c and sched_restore.c have to agree on. */
#ifndef SCHED_SAVE_H
#define SCHED_SAVE_H

#include "sched_internal.h"

enum {
    SCHED_SAVE_VERSION = 1,   /* of the layout; another one is refused */
    SCHED_SAVED_FIGURES = 15, /* those that are counted, not derived */
};

#endif
