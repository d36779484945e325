/* log_tools.h - every tool of log/ on one log, for tests that only ask whether they survive it. */
#ifndef LOG_TOOLS_H
#define LOG_TOOLS_H

#include <stdbool.h>
#include <stdio.h>

#include "proto_status.h"

/* Runs them all on the segments at `path`; what they print goes to `sink`, what they write below
 * `scratch` (an empty folder).  Without `writers`, only those that write no log: files take time.
 * Aborts if one fails in a way that is no clear refusal. */
void log_tools_run_all(const char *path, const char *scratch, bool writers, FILE *sink);

#endif
