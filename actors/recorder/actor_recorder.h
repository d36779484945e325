/* actor_recorder.h - the recorder actor: drains the ring of every actor into log segments.
 *
 * It owns the log folder (0700, files 0600) and reads rings that other processes write.  It never
 * holds an actor up: what it is too slow for is counted in the ring and becomes a DROP record.  The
 * recorder's one thread. */
#ifndef ACTOR_RECORDER_H
#define ACTOR_RECORDER_H

#include <stdatomic.h>
#include <stdint.h>

#include "proto_status.h"

enum { ACTOR_RECORDER_RING_COUNT_MAX = 16 };

typedef struct {
    const char *actor_name; /* whose messages these are */
    int fd;                 /* the ring's memory, inherited */
} actor_recorder_ring_t;

typedef struct {
    const char *name; /* "recorder" */
    uint64_t epoch;
    const char *supervisor_endpoint; /* NULL: runs alone */
    const actor_recorder_ring_t *rings;
    uint32_t ring_count;
    const char *log_dir;    /* NULL: ring mode, rings stay in memory only */
    const char *build;      /* of this program, for the segments' headers; may be NULL */
    const atomic_int *stop; /* not 0: drain once more and end; may be NULL */
} actor_recorder_options_t;

/* Runs until the supervisor's STOP or *options->stop, after a last drain.  Returns the exit code
 * of the process: 0 asked shutdown, 70 internal failure, 78 if the folder cannot be used. */
int actor_recorder_run(const actor_recorder_options_t *options);

#endif
