/* sched_audit.h - the first invariant that does not hold, so that the same walk serves a check that
 * aborts (a bug of ours) and a restore that refuses (somebody's bytes).  Any thread. */
#ifndef SCHED_AUDIT_H
#define SCHED_AUDIT_H

#include <stdbool.h>
#include <stddef.h>

#include "proto_require.h"

typedef struct {
    const char *broken; /* the condition; NULL: all hold so far */
    const char *file;
    const char *function;
    int line;
} sched_audit_t;

/* Notes a condition that does not hold, and tells whether it does: what needs it may not go on. */
#define sched_holds(audit, condition)                                                              \
    sched_audit_note((audit), (condition),                                                         \
                     &(sched_audit_t){#condition, __FILE__, __func__, __LINE__})

static inline bool
sched_audit_note(sched_audit_t *self, bool holds, const sched_audit_t *place)
{
    if (!holds && self->broken == NULL) {
        *self = *place;
    }
    return holds;
}

/* Aborts if something did not hold. */
static inline void
sched_audit_require(const sched_audit_t *self)
{
    if (self->broken != NULL) {
        proto_require_failed(self->broken, self->file, self->line, self->function);
    }
}

#endif
