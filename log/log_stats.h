/* log_stats.h - counts, bytes and latencies of a log: `onepath log stats`.
 *
 * Reads the set once.  Memory: a counter for each actor, direction and kind, and log_requests.h.
 * One thread. */
#ifndef LOG_STATS_H
#define LOG_STATS_H

#include <stdio.h>

#include "log_set.h"

typedef struct {
    bool json;          /* one object instead of tables */
    bool list_requests; /* a line for each request too (always in JSON) */
} log_stats_options_t;

/* Reads from where the set stands to its end and prints.  STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t log_stats_print(log_set_t *set, const log_stats_options_t *options,
                                          FILE *out);

#endif
