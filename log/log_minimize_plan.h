/* log_minimize_plan.h - what is left of a log while it is minimised, and how that is written;
 * private to log/.  One thread. */
#ifndef LOG_MINIMIZE_PLAN_H
#define LOG_MINIMIZE_PLAN_H

#include "log_out.h"
#include "log_table.h"
#include "log_visit.h"

/* A field of one record that is cut. */
typedef struct {
    uint32_t record; /* its place in the set */
    uint32_t field;  /* index in the message's table */
    uint32_t count;  /* entries or bytes that stay; numbers become 0 */
} log_minimize_cut_t;

typedef struct {
    log_set_t *set; /* lent */
    uint32_t record_count;
    uint32_t *units;    /* of each record: its input's number + 1; 0 = always there; */
                        /*   UINT32_MAX = never */
    uint32_t *requests; /* of each record: ordinal + 1; 0 = none */
    uint8_t *is_input;  /* of each record */
    uint32_t unit_count;
    uint32_t *unit_requests; /* of each unit: that of its input */
    uint8_t *has_unit;       /* 1 = still there */
    log_table_t table;       /* request id -> ordinal */
    uint8_t *has_request;    /* 1 = still there */
    log_minimize_cut_t *cuts;
    uint32_t cut_count;
    uint32_t cut_capacity;
} log_minimize_plan_t; /* begin with zeros */

/* Reads the set once and plans to keep everything that can be kept. */
MUST_CHECK proto_status_t log_minimize_plan_init(log_minimize_plan_t *self, log_set_t *set);
void log_minimize_plan_fini(log_minimize_plan_t *self);

bool log_minimize_plan_keeps(const log_minimize_plan_t *self, uint32_t record);

/* Sets a cut, also over an older one of the same field.  STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t log_minimize_plan_cut(log_minimize_plan_t *self, log_minimize_cut_t cut);

/* Writes what is kept, numbered anew, and commits.  *records_p may be NULL. */
MUST_CHECK proto_status_t log_minimize_plan_write(const log_minimize_plan_t *self, const char *path,
                                                  uint64_t *records_p, proto_error_t *error);

/* Entries of a column, bytes of BIN, 1 for a number or text that is not empty: what there is to
 * cut. */
uint32_t log_minimize_field_size(const proto_field_t *field, const proto_body_t *body);

#endif
