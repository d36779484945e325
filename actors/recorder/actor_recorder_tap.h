/* actor_recorder_tap.h - the recording of an actor that runs alone: it makes its own ring, and a
 * thread of its process does what the recorder does in a node.
 *
 * Owns the ring's memory and the thread.  A kill of the process costs what the thread had not
 * written yet, about 10 ms. */
#ifndef ACTOR_RECORDER_TAP_H
#define ACTOR_RECORDER_TAP_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_ids.h"
#include "proto_status.h"

typedef struct actor_recorder_tap actor_recorder_tap_t;

typedef struct {
    const char *name; /* of the actor; lent */
    proto_role_t role;
    uint64_t epoch;
    const char *log_dir;      /* made if it is missing; lent */
    const char *build;        /* of this program, for the segments' headers; may be NULL */
    bool is_strict;           /* see proto_ring.h */
    uint64_t ring_size_bytes; /* a power of two; 0 = 64 MiB */
} actor_recorder_tap_options_t;

/* Starts the thread.  STATUS_ERR_CONFIG (the folder), STATUS_ERR_IO; logged.  The caller owns
 * *out_p. */
MUST_CHECK proto_status_t actor_recorder_tap_open(const actor_recorder_tap_options_t *options,
                                                  actor_recorder_tap_t **out_p);

/* For the shell; lent. */
int actor_recorder_tap_ring_fd(const actor_recorder_tap_t *self);

/* Writes what is left, ends the thread.  After the shell was destroyed.  Nulls *self_p. */
void actor_recorder_tap_close(actor_recorder_tap_t **self_p);

#endif
