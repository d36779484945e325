/* fcfs.h - a scheduler that serves who came first, in one page of policy.
 *
 * It takes one executor with one cache group without a window, whose blocks are whole parents:
 * llama and qwen3, not gemma3, whose windows are a second group.  A request is admitted when a slot
 * and all blocks that it can ever need are free, so nothing ever has to be taken back.  Prompts are
 * computed chunk by chunk, in order, next to the rows that decode.  There is no prefix cache.  One
 * thread. */
#ifndef FCFS_H
#define FCFS_H

#include "actor_core.h"

typedef struct fcfs fcfs_t; /* opaque */

/* NULL if there is no memory. */
fcfs_t *fcfs_new(uint32_t queue_len_max);
void fcfs_destroy(fcfs_t *self);
const actor_core_ops_t *fcfs_ops(void);

#endif
