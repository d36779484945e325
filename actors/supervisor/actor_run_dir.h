/* actor_run_dir.h - the folder with the sockets of one node: private, and gone afterwards. */
#ifndef ACTOR_RUN_DIR_H
#define ACTOR_RUN_DIR_H

#include <stdbool.h>

#include "proto_status.h"

/* Makes `path` with mode 0700, or checks that what is there belongs to us alone.
 * STATUS_ERR_CONFIG, logged with the remedy. */
MUST_CHECK proto_status_t actor_run_dir_make(const char *path, bool *made);

/* Removes the socket files in it, and the folder itself if `made`. */
void actor_run_dir_remove(const char *path, bool made);

#endif
