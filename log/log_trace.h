/* log_trace.h - a log as a timeline for Perfetto or chrome://tracing.
 *
 * Owns what is drawn: for each incarnation of an actor a process with a track of its messages; the
 * steps of the device as slices; each request as a slice of its phases in a lane of the process
 * "requests"; counters of batch size and cache use; flows along each request, each step, from each
 * message sent to its arrival, and from each input to what it caused.  Two sinks know the formats.
 * Memory: the requests that are open, 64 bytes each.  One thread. */
#ifndef LOG_TRACE_H
#define LOG_TRACE_H

#include <stdio.h>

#include "log_set.h"

typedef enum {
    LOG_TRACE_PERFETTO, /* TrackEvent protobuf */
    LOG_TRACE_CHROME,   /* the JSON form; greppable */
} log_trace_form_t;

typedef struct {
    uint64_t events;   /* slices and instants */
    uint64_t counters; /* values of counters */
    uint64_t tracks;
    uint64_t requests; /* drawn as slices */
    uint64_t left_out; /* requests beyond the limit of lanes */
} log_trace_counts_t;

/* Writes the timeline of what is between here and the set's end.  The caller looks at ferror(). */
MUST_CHECK proto_status_t log_trace_write(log_set_t *set, log_trace_form_t form, FILE *out,
                                          log_trace_counts_t *counts);

#endif
