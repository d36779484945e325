/* log_out.h - logs made from other logs: excerpts, redacted and recovered ones.
 *
 * Owns the files of one output.  A path that ends in .alog is one segment of one actor, any other
 * is a folder with NAME.EPOCH.NNNNNN.alog for each incarnation.  The headers are those of the
 * sources: actor, epoch, host, boot, clocks, model.  Files have the mode 0600 and get their names
 * only when all is written (log_out_commit); until then, and after a failure, nothing of them
 * stays.  Records keep what they are given, sequence numbers too, so that a place in an excerpt is
 * a place in its source.  Sidecars are written too.  Holds an open file for each segment (256 MiB).
 * One thread. */
#ifndef LOG_OUT_H
#define LOG_OUT_H

#include "proto_log.h"

typedef struct log_out log_out_t;

/* Makes the folder if it is not there.  A single file keeps the segment index of its source; in a
 * folder they count from 0.  STATUS_ERR_REFUSED if there are segments in it or the file
 * exists: nothing is written over.  STATUS_ERR_IO.  *error (may be NULL) on failure.  The caller
 * owns *out_p. */
MUST_CHECK proto_status_t log_out_open(const char *path, log_out_t **out_p, proto_error_t *error);

/* Adds a record of the actor that `source` is the header of.  STATUS_ERR_INVALID if a single file
 * would have to hold two actors; STATUS_ERR_REFUSED if its sequence is not behind the last one's;
 * STATUS_ERR_IO; STATUS_ERR_TOO_LARGE. */
MUST_CHECK proto_status_t log_out_append(log_out_t *self, const proto_log_header_t *source,
                                         const proto_log_record_t *record);

/* Gives the files their names.  STATUS_ERR_IO; what then exists stays. */
MUST_CHECK proto_status_t log_out_commit(log_out_t *self);

/* Without a commit before: removes what was written. */
void log_out_close(log_out_t **self_p);

uint64_t log_out_record_count(const log_out_t *self);
/* Why the last call failed; "" if it did not. */
const char *log_out_error(const log_out_t *self);

#endif
