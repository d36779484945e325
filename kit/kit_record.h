/* kit_record.h - a core around a core that writes a log: every input, and every message that it
 * led to, in the order in which the inner core saw them.
 *
 * Owns the log's writer.  Files are written from within the step, which the inner core does not
 * notice: it stays pure.  One thread. */
#ifndef KIT_RECORD_H
#define KIT_RECORD_H

#include "actor_core.h"

typedef struct kit_record kit_record_t;

typedef struct {
    const char *directory;       /* exists */
    const char *name;            /* of the actor */
    uint64_t epoch;              /* of this run */
    const actor_core_ops_t *ops; /* of the inner core */
    void *core;                  /* the inner core; lent */
} kit_record_options_t;

/* The caller owns *out_p.  STATUS_ERR_IO if the folder cannot be opened, STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t kit_record_new(const kit_record_options_t *options, kit_record_t **out_p);
/* Flushes and closes; sets *self_p to NULL. */
void kit_record_destroy(kit_record_t **self_p);

/* The ops of the outer core, whose core is the kit_record_t itself; lent, live as long as it. */
const actor_core_ops_t *kit_record_ops(const kit_record_t *self);

#endif
