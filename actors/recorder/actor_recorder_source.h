/* actor_recorder_source.h - one ring on its way into log segments.
 *
 * Owns the ring's reader and the segments' writer.  A source that is opened again on the same
 * folder goes on where the last one was killed: nothing is written twice, nothing that the ring
 * still holds is left out.  One thread. */
#ifndef ACTOR_RECORDER_SOURCE_H
#define ACTOR_RECORDER_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct actor_recorder_source actor_recorder_source_t;

typedef struct {
    int fd;                 /* the ring; stays the caller's */
    const char *actor_name; /* for messages; lent */
    const char *log_dir;    /* lent */
    const char *build;      /* for the segments' headers; may be NULL */
} actor_recorder_source_options_t;

typedef struct {
    uint64_t written; /* records in the file or waiting for it */
    uint64_t lost;    /* overwritten in the ring before they were read */
    uint64_t refused; /* read, but the disk did not take them */
} actor_recorder_counts_t;

/* Makes the folder (0700) if it is missing; STATUS_ERR_CONFIG, with the reason and the remedy in
 * the log, if it cannot be used or others may enter it: prompts are in the files. */
MUST_CHECK proto_status_t actor_recorder_open_folder(const char *path);

/* STATUS_ERR_MALFORMED if fd is no ring, STATUS_ERR_IO if the folder cannot be written; logged. The
 * caller owns *out_p. */
MUST_CHECK proto_status_t actor_recorder_source_open(const actor_recorder_source_options_t *options,
                                                     actor_recorder_source_t **out_p);
/* Flushes and closes. */
void actor_recorder_source_close(actor_recorder_source_t **self_p);

/* Copies what the ring holds, a bounded number of records; true if more may be there.  Never blocks
 * but for the disk. */
bool actor_recorder_source_drain(actor_recorder_source_t *self);

/* Asks the disk to keep what was written. */
void actor_recorder_source_sync(actor_recorder_source_t *self);

void actor_recorder_source_counts(const actor_recorder_source_t *self,
                                  actor_recorder_counts_t *out);

#endif
