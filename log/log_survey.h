/* log_survey.h - what one segment holds: the figures of `onepath log ls`.
 *
 * Reads the segment once, from begin to end.  One thread. */
#ifndef LOG_SURVEY_H
#define LOG_SURVEY_H

#include "log_message.h"

enum { LOG_MESSAGE_NUMBER_MAX = 127 }; /* numbers above are counted as 0, "unknown" */

typedef struct {
    proto_log_header_t header;
    uint64_t size_bytes;
    uint64_t record_count;
    uint64_t kind_counts[PROTO_LOG_KIND_COUNT]; /* records; [0] = kinds not known */
    uint64_t message_counts[LOG_MESSAGE_NUMBER_MAX + 1];
    uint64_t gap_count;     /* places where records are missing, said by a DROP or not */
    uint64_t missing_count; /* records that are missing there */
    uint64_t redacted_count;
    uint64_t first_sequence, last_sequence; /* 0 = no record */
    uint64_t first_time_ns, last_time_ns;
    proto_status_t status;  /* END: whole; AGAIN: ends within a record; ERR_*: damaged */
    uint64_t damage_offset; /* bytes of the valid prefix */
} log_survey_t;

/* STATUS_OK whenever the header can be read: `status` says more.  Else what
 * proto_log_reader_open() says.  *error (may be NULL) on failure. */
MUST_CHECK proto_status_t log_survey_segment(const char *path, log_survey_t *out,
                                             proto_error_t *error);

/* Counts gaps: call it with each record of a stream; begin with zeros. */
typedef struct {
    uint64_t expected; /* sequence; 0 = any */
    uint64_t gap_count;
    uint64_t missing_count;
} log_gaps_t;
void log_gaps_pass(log_gaps_t *self, const proto_log_record_t *record);

#endif
