/* actor_executor_group.h - the other ranks of a tensor parallel executor: rank 0, which is the
 * actor, starts a process for each, tells them what its device was told, and ends with them.
 *
 * A rank is no actor: it has no socket and no plan of its own.  It applies the commands of rank 0
 * in their order; what it was told is compared before each step (run_executor.h).  Whoever is lost
 * ends the group (device_group.h), and whoever watches rank 0 starts the group again. */
#ifndef ACTOR_EXECUTOR_GROUP_H
#define ACTOR_EXECUTOR_GROUP_H

#include "actor_core.h"
#include "actor_executor.h"
#include "device_group.h"

typedef struct actor_executor_group actor_executor_group_t;

typedef struct {
    uint32_t rank_count;
    const char *const *argv; /* of a rank, without what says which: program first, NULL last */
    void (*on_failed)(void *context); /* only wakes somebody; any thread */
    void *context;
} actor_executor_group_options_t;

/* Starts the processes of ranks 1 ... and joins them.  The main thread.  STATUS_ERR_IO,
 * STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_executor_group_new(const actor_executor_group_options_t *options,
                                                   actor_executor_group_t **out_p);

/* For run_executor_options_t.group; lives as long as the group. */
device_group_t *actor_executor_group_ranks(actor_executor_group_t *self);

/* Tells the others a command that rank 0's own device took.  The device thread.  STATUS_ERR_DEVICE:
 * the group has failed. */
MUST_CHECK proto_status_t actor_executor_group_forward(actor_executor_group_t *self,
                                                       proto_kind_t kind, bool has_graphs_off,
                                                       proto_bytes_t body, proto_bytes_t blob);

/* Asks the ranks to end, waits for them, at most 2 s, and kills who is left. */
void actor_executor_group_destroy(actor_executor_group_t **self_p);

/* A rank's whole life: joins the group of that descriptor, loads its share, does what rank 0 says
 * until it says to end.  Returns the exit code of the process.  `options` has the device. */
int actor_executor_rank_run(const actor_executor_options_t *options, uint32_t rank, int group_fd);

#endif
