/* actor_secret.h - files that hold secrets: read only where nobody else can read or change them.
 *
 * Opens once and judges what it opened, so that nothing can be put in its place meanwhile.  No
 * state; any thread. */
#ifndef ACTOR_SECRET_H
#define ACTOR_SECRET_H

#include <stddef.h>

#include "proto_codec.h"
#include "proto_status.h"

/* Reads a whole file of at most `capacity_bytes` - 1 and ends it with a zero.  STATUS_ERR_CONFIG,
 * logged with the remedy, if it is no regular file (a symbolic link is none), belongs to another
 * user, can be read by everybody or changed by its group, is larger, or cannot be read. */
MUST_CHECK proto_status_t actor_secret_read(const char *path, char *out, size_t capacity_bytes,
                                            size_t *size_bytes);

/* Makes a new file with mode 0600 and this text.  STATUS_ERR_CONFIG, logged, if one of that name
 * is there already, also a symbolic link, or it cannot be written. */
MUST_CHECK proto_status_t actor_secret_write(const char *path, proto_text_t text);

/* Overwrites memory that held a secret, in a way that the compiler keeps. */
void actor_secret_wipe(void *memory, size_t size_bytes);

#endif
