/* log_diff_side.h - one side of a comparison: the messages of one incarnation, one after the other,
 * with requests as numbers in order of their appearance; private to log/.  One thread. */
#ifndef LOG_DIFF_SIDE_H
#define LOG_DIFF_SIDE_H

#include "log_diff.h"
#include "log_message.h"
#include "log_table.h"

typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    uint32_t incarnation; /* of that name, from 0 in order of the epochs */
    uint64_t epoch;
} log_diff_stream_t;

/* The streams of a side, sorted by name and epoch; the caller frees *out_p. */
MUST_CHECK proto_status_t log_diff_streams(const log_diff_side_t *side, const char *actor,
                                           log_diff_stream_t **out_p, uint32_t *count_p,
                                           proto_error_t *error);

/* By name and incarnation; the epoch itself is another in every run. */
int log_diff_stream_order(const log_diff_stream_t *a, const log_diff_stream_t *b);

/* Where a message lies, to print it later. */
typedef struct {
    const char *path; /* lent by the set */
    uint64_t offset;
    const proto_log_header_t *header; /* lent by the set */
} log_diff_place_t;

/* Reads the record there; the reader is the caller's also on failure (may be NULL). */
MUST_CHECK proto_status_t log_diff_place_read(const log_diff_place_t *place,
                                              proto_log_reader_t **reader_p, log_set_item_t *out);

/* A request's messages in one number. */
typedef struct {
    uint64_t sum;
    uint64_t count;
    uint64_t first; /* of its first message alone, sampling left out: the prompt */
} log_diff_sum_t;

typedef struct {
    log_set_t *set;
    log_decoder_t decoder;
    log_table_t requests; /* id -> ordinal */
    log_diff_sum_t *sums; /* by ordinal */
    uint32_t sum_capacity;
    bool by_row;      /* TOKENS gives a message for each of its rows */
    bool has_message; /* false: the end */
    log_set_item_t item;
    log_message_t message; /* its requests are ordinals + 1 */
    log_message_t whole;   /* the TOKENS whose rows are given */
    uint32_t row, row_count;
    uint64_t row_token_at; /* of the next row */
    uint64_t row_request;  /* room for the one row's columns */
    uint64_t *ids;         /* ordinals of a TOKENS' requests; PROTO_ROWS_MAX */
    log_diff_place_t place;
    log_diff_place_t recent[LOG_DIFF_CONTEXT_MAX]; /* the last ones that were given, a ring */
    uint64_t given;
} log_diff_cursor_t; /* begin with zeros */

MUST_CHECK proto_status_t log_diff_cursor_open(log_diff_cursor_t *self, const log_diff_side_t *side,
                                               const log_diff_stream_t *stream,
                                               proto_error_t *error);
void log_diff_cursor_fini(log_diff_cursor_t *self);

/* The next message, of any request or of the one with this ordinal; has_message is false at the
 * end.  STATUS_OK or what failed. */
MUST_CHECK proto_status_t log_diff_cursor_next(log_diff_cursor_t *self, int32_t ordinal);

MUST_CHECK proto_status_t log_diff_cursor_rewind(log_diff_cursor_t *self);

/* Reads all and fills `sums` for each request. */
MUST_CHECK proto_status_t log_diff_cursor_sum(log_diff_cursor_t *self,
                                              const log_field_options_t *fields);

/* The message that was given `back` (from 1) before the current one; NULL if there is none. */
const log_diff_place_t *log_diff_cursor_recent(const log_diff_cursor_t *self, uint32_t back);

#endif
