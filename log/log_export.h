/* log_export.h - a log in formats of others: JSON lines, MCAP.
 *
 * MCAP (https://mcap.dev) is written without chunks and without an index: readers that scan take it
 * as it comes, `mcap recover` adds the rest.  A channel is one actor, direction and kind, with the
 * topic /ACTOR/in/PLAN; messages are the JSON bodies, described by a JSON schema for each kind.
 * Memory does not grow with the log.  One thread. */
#ifndef LOG_EXPORT_H
#define LOG_EXPORT_H

#include <stdio.h>

#include "log_filter.h"

typedef enum { LOG_EXPORT_JSONL, LOG_EXPORT_MCAP } log_export_form_t;

typedef struct {
    log_export_form_t form;
    bool show_private;          /* else sizes stand for content */
    const log_filter_t *filter; /* NULL = everything */
} log_export_options_t;

typedef struct {
    uint64_t records;  /* written */
    uint64_t channels; /* MCAP */
} log_export_counts_t;

/* Writes what is between here and the set's end.  The caller looks at ferror(). */
MUST_CHECK proto_status_t log_export_write(log_set_t *set, const log_export_options_t *options,
                                           FILE *out, log_export_counts_t *counts);

#endif
