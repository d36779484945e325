/* log_filter.h - which records of a log somebody wants to see.
 *
 * Pure.  Any thread. */
#ifndef LOG_FILTER_H
#define LOG_FILTER_H

#include "log_message.h"
#include "log_set.h"

typedef enum {
    LOG_BOUND_NONE,
    LOG_BOUND_SEQUENCE,  /* of records */
    LOG_BOUND_MONOTONIC, /* ns */
    LOG_BOUND_REALTIME,  /* ns since 1970 */
} log_bound_form_t;

typedef struct {
    log_bound_form_t form;
    uint64_t value;
} log_bound_t;

typedef struct {
    proto_kind_t kind;            /* only messages of this kind; NONE = all */
    proto_log_kind_t record_kind; /* only records of this kind; 0 = all */
    uint64_t request;             /* only messages that name this request; 0 = all */
    log_bound_t from, to;         /* both included */
} log_filter_t;                   /* zeros: everything */

/* "1234" is a sequence number; "6369.64" or "6369s" the monotonic clock in seconds;
 * "2026-11-30T07:03:59.5Z" a date in UTC.  STATUS_ERR_INVALID otherwise. */
MUST_CHECK proto_status_t log_bound_parse(const char *text, log_bound_t *out);

/* The name of a message (PLAN) or of a kind of record (SNAPSHOT), in any case.
 * STATUS_ERR_NOT_FOUND if it is neither. */
MUST_CHECK proto_status_t log_filter_set_type(log_filter_t *self, const char *name);

/* `message` NULL: the record holds none. */
bool log_filter_match(const log_filter_t *self, const log_set_item_t *item,
                      const log_message_t *message);

/* True if the header or a column `requests` of the message names the request. */
bool log_message_names(const log_message_t *message, uint64_t request);

/* True if no later record of this item's stream can match (it is behind `to`). */
bool log_filter_is_behind(const log_filter_t *self, const log_set_item_t *item);

#endif
