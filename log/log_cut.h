/* log_cut.h - parts of a log as a log of their own: what a filter lets through, redacted or not.
 *
 * One thread. */
#ifndef LOG_CUT_H
#define LOG_CUT_H

#include "log_filter.h"
#include "log_out.h"

typedef struct {
    const log_filter_t *filter; /* NULL = everything */
    bool redact;                /* log_redact.h */
} log_cut_options_t;

typedef struct {
    uint64_t read;
    uint64_t kept;
    uint64_t redacted; /* of these, changed */
} log_cut_counts_t;

/* Copies what matches from where the set stands to its end, in the order of the set.  Definitions
 * of channels, settings and clock pairs come along whatever the filter says: they give the rest its
 * meaning.  STATUS_OK; what failed else. */
MUST_CHECK proto_status_t log_cut(log_set_t *set, const log_cut_options_t *options, log_out_t *out,
                                  log_cut_counts_t *counts);

/* True for CHANNEL_DEF, ENV and CLOCK. */
bool log_cut_is_frame(const proto_log_record_t *record);

#endif
