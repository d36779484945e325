/* actor_exit.h - what an actor's process ends with; the supervisor acts on these numbers.
 * The numbers of sysexits.h.  Any thread. */
#ifndef ACTOR_EXIT_H
#define ACTOR_EXIT_H

#include "proto_status.h"

enum {
    ACTOR_EXIT_OK = 0,         /* it was asked to end */
    ACTOR_EXIT_INTERNAL = 70,  /* a failure of our own: started again */
    ACTOR_EXIT_TEMPORARY = 75, /* no memory, no device, port busy: hopeless only at the start */
    ACTOR_EXIT_CONFIG = 78,    /* options, files, peers of another build: never started again */
};

/* The exit code for the status that an actor's run ended with. */
int actor_exit_code(proto_status_t status);

#endif
