/* log_minimize.h - a smaller log that still makes a command fail the same way: delta debugging.
 *
 * First whole requests are taken out, then inputs with all that they caused, then single fields are
 * set to zero or columns cut, for as long as the command, run on the result, ends with the same
 * exit code as on the whole log.  Records are numbered anew and causes with them, so that what
 * comes out replays: it begins as the log did (snapshot, channels, settings).  Digests, remarks and
 * later snapshots are left out: they would be those of another run.
 * Owns no process: the caller runs the command.  Memory: 12 bytes for each record.  One thread. */
#ifndef LOG_MINIMIZE_H
#define LOG_MINIMIZE_H

#include <stdio.h>

#include "log_set.h"

/* Runs the command on the log at `path`; returns its exit code, or a negative number if it could
 * not be run at all (that ends the search with STATUS_ERR_IO). */
typedef int log_minimize_run_fn(void *context, const char *path);

typedef struct {
    log_minimize_run_fn *run;
    void *context;
    const char *scratch; /* an empty folder of the caller for what is tried */
    uint32_t run_max;    /* runs of the command, the first included; at least 1 */
    FILE *progress;      /* one line now and then; NULL = none */
} log_minimize_options_t;

typedef struct {
    int exit_code; /* of the command on the whole log */
    uint32_t runs;
    uint64_t records_before, records_after;
    uint32_t requests_before, requests_after;
    uint32_t inputs_before, inputs_after;
    uint32_t fields_cut;
    bool is_exhausted; /* run_max ended it: less might be possible */
} log_minimize_result_t;

/* Minimises and writes the result to `out_path` (log_out.h).  STATUS_ERR_INVALID if the command
 * ends with 0 on a copy of the log that lacks only digests, remarks and later snapshots: then there
 * is no failure to keep and nothing is written.  *error (may be NULL) on failure. */
MUST_CHECK proto_status_t log_minimize(log_set_t *set, const log_minimize_options_t *options,
                                       const char *out_path, log_minimize_result_t *result,
                                       proto_error_t *error);

#endif
