/* log_diff.h - the first message in which two logs differ.
 *
 * Actors are compared pair by pair, by name and by order of their incarnations.  Requests are
 * compared by the order in which they first appear, for every run mints other ids.  Times of
 * records and sequences of links are never compared.
 * In order, message by message; or aligned by request: then each request of A is compared with the
 * one of B that has the same prompt (the next one in order, if there is none), message by message,
 * however these are interleaved with others', and what names no request is left out.
 * Memory: 80 bytes for each request.  One thread. */
#ifndef LOG_DIFF_H
#define LOG_DIFF_H

#include <stdio.h>

#include "log_field.h"
#include "log_set.h"

enum { LOG_DIFF_IGNORED_MAX = 64, LOG_DIFF_CONTEXT_MAX = 64 };

typedef struct {
    const char *const *ignored; /* fields to skip besides the defaults; log_field_options_t */
    uint32_t ignored_count;
    bool no_defaults;    /* skip only what is given */
    bool ignore_private; /* one side is redacted */
    bool show_private;
    bool align_requests;
    double tolerance;  /* of floats; not with align_requests */
    uint32_t context;  /* messages shown before the difference; 0 = 3 */
    const char *actor; /* only this one; NULL = all */
    bool json;
} log_diff_options_t;

typedef struct {
    const char *const *paths;
    uint32_t path_count;
} log_diff_side_t;

typedef struct {
    uint64_t compared;    /* pairs of messages that are the same */
    uint32_t differences; /* actors that differ */
    uint32_t damages;     /* segments of either side that are damaged */
} log_diff_result_t;

/* Prints the first difference of each actor that has one.  Failures as in log_set_open(). */
MUST_CHECK proto_status_t log_diff(const log_diff_side_t *a, const log_diff_side_t *b,
                                   const log_diff_options_t *options, FILE *out,
                                   log_diff_result_t *result, proto_error_t *error);

#endif
