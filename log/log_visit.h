/* log_visit.h - every record of a set with its message, in order: the loop of most tools.
 *
 * One thread. */
#ifndef LOG_VISIT_H
#define LOG_VISIT_H

#include "log_message.h"
#include "log_set.h"

/* `message` NULL: the record holds none that can be named.  STATUS_OK goes on, STATUS_END ends the
 * loop well, everything else ends it as a failure. */
typedef proto_status_t log_visit_fn(void *context, const log_set_item_t *item,
                                    const log_message_t *message);

/* From where the set stands to its end.  STATUS_OK, or what failed. */
MUST_CHECK proto_status_t log_set_visit(log_set_t *set, log_visit_fn *visit, void *context);

/* Counts the inputs of a stream as the shell did: `cause` of what the core emitted.  Begin with
 * zeros, pass each record of the stream in order. */
typedef struct {
    bool is_known;  /* the log begins with the actor's first record, or held a SNAPSHOT */
    uint64_t count; /* inputs so far: the number of the last one */
} log_inputs_t;
void log_inputs_pass(log_inputs_t *self, const proto_log_record_t *record);

#endif
