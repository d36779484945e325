/* log_slice.h - everything that concerns one request: its causal cone.
 *
 * Kept are messages that name the request, the steps in whose rows its slot is (plans, launches,
 * results), what the HTTP side said of its exchange, and for each message that an actor sent of
 * these the input that made it send it; and what gives these their meaning: channels, settings,
 * clocks.  Snapshots and digests are left out: they are not those of the slice.  Record sequences
 * stay, so a place in the slice is a place in the log.
 * Holds one input for each actor, and the steps in flight.  One thread. */
#ifndef LOG_SLICE_H
#define LOG_SLICE_H

#include "log_out.h"
#include "log_set.h"

typedef struct {
    uint64_t read;
    uint64_t named;               /* messages that name the request */
    uint64_t steps;               /* messages of steps that its slot is in */
    uint64_t exchange;            /* of the HTTP side, by its exchange */
    uint64_t causes;              /* inputs that are here only because of what they caused */
    uint64_t frames;              /* channels, settings, clocks, remarks */
    uint64_t message_counts[128]; /* by number; what was kept */
} log_slice_counts_t;

/* Copies the cone of `request` from where the set stands to its end.  STATUS_ERR_NOT_FOUND if no
 * message names it: nothing should be made of `out` then. */
MUST_CHECK proto_status_t log_slice(log_set_t *set, uint64_t request, log_out_t *out,
                                    log_slice_counts_t *counts);

#endif
