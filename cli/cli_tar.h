/* cli_tar.h - a tar file (POSIX ustar) of small files, for `onepath report`.
 *
 * Owns the file; readable for its owner alone.  Main thread. */
#ifndef CLI_TAR_H
#define CLI_TAR_H

#include <stddef.h>

#include "proto_status.h"

enum { CLI_TAR_NAME_LEN_MAX = 99 };

typedef struct cli_tar cli_tar_t;

/* Makes the file, which must not exist: STATUS_ERR_REFUSED then, STATUS_ERR_IO else.  The caller
 * owns *out_p. */
MUST_CHECK proto_status_t cli_tar_new(const char *path, cli_tar_t **out_p);

/* Adds a file from disk under this name.  STATUS_ERR_INVALID: the name is too long or no plain file
 * is there; STATUS_ERR_IO. */
MUST_CHECK proto_status_t cli_tar_add(cli_tar_t *self, const char *name, const char *path);

/* Writes the end and closes.  Without it the file is removed by destroy. */
MUST_CHECK proto_status_t cli_tar_finish(cli_tar_t *self);
void cli_tar_destroy(cli_tar_t **self_p);

#endif
