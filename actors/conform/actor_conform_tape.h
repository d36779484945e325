/* actor_conform_tape.h - the record of one link of the tool: the shell's ring, emptied into a
 * segment as the recorder does it.  One thread. */
#ifndef ACTOR_CONFORM_TAPE_H
#define ACTOR_CONFORM_TAPE_H

#include "proto_log.h"
#include "proto_ring.h"

typedef struct conform_tape conform_tape_t;

/* STATUS_ERR_IO if the folder cannot be written to.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_conform_tape_open(const char *directory,
                                                  const proto_ring_owner_t *owner,
                                                  conform_tape_t **out_p);
/* Empties the ring a last time. */
void actor_conform_tape_close(conform_tape_t **self_p);
/* The descriptor for the shell. */
int actor_conform_tape_fd(const conform_tape_t *self);
void actor_conform_tape_service(conform_tape_t *self, uint64_t now_ns);

#endif
