/* file_map.h - one regular file, mapped read-only.  Internal to models/.
 *
 * It owns the mapping.  It must never be written to, and never follows a path that leaves the
 * folder it was opened in. */
#ifndef FILE_MAP_H
#define FILE_MAP_H

#include "file_support.h"

typedef struct {
    const uint8_t *bytes; /* NULL when closed */
    uint64_t size_bytes;
} file_map_t;

/* Maps the file at `path`.  STATUS_ERR_IO (missing, unreadable), STATUS_ERR_MALFORMED (empty, or no
 * regular file). */
MUST_CHECK proto_status_t file_map_open(const char *path, file_error_t error, file_map_t *out);

/* Maps the file `name` of the folder `folder_fd`.  The name must be plain: letters, digits and
 * "._-", not "." or "..".  A symbolic link is refused, except into the blob folder of the Hugging
 * Face cache ("../../blobs/NAME").  STATUS_ERR_NOT_FOUND if there is no such file. */
MUST_CHECK proto_status_t file_map_open_in(int folder_fd, const char *name, file_error_t error,
                                           file_map_t *out);

void file_map_close(file_map_t *self);

#endif
