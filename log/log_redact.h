/* log_redact.h - records without what people wrote and what the model answered.
 *
 * Zeros of the same size take the place of PRIVATE fields and of the private part of snapshots;
 * lengths, page hashes and all else stay, so the scheduler, which never looks at that content,
 * replays exactly.  What cannot be judged (a message that does not decode or that has more fields
 * than this build knows, a kind of record that is not known) loses its parts and gets the flag CUT
 * too.  One thread. */
#ifndef LOG_REDACT_H
#define LOG_REDACT_H

#include "log_message.h"

typedef struct {
    log_decoder_t decoder;
    uint8_t *bytes; /* the changed parts */
    size_t capacity_bytes;
} log_redactor_t; /* begin with zeros */

void log_redactor_fini(log_redactor_t *self);

/* Gives the record as it may be shown to anybody; flag REDACTED if anything was, or would have
 * been, taken out.  *out lives as long as the record and until the next call.
 * STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t log_redactor_redact(log_redactor_t *self,
                                              const proto_log_record_t *record,
                                              proto_log_record_t *out);

#endif
