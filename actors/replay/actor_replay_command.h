/* actor_replay_command.h - shell commands that judge a log.
 *
 * Private to actors/replay/.  Owns the child process for the time of a call, which blocks until the
 * command ends or its time is over.  One thread. */
#ifndef ACTOR_REPLAY_COMMAND_H
#define ACTOR_REPLAY_COMMAND_H

#include <stdint.h>

#include "proto_status.h"

#define ACTOR_REPLAY_COMMAND_TIMEOUT_NS UINT64_C(600000000000)

enum { ACTOR_REPLAY_PATH_SIZE_BYTES = 4096 };

/* Runs a shell command in which {log} stands for `paths`; its stdout goes to the file `output`, or
 * to our stderr if that is NULL.  *exit_code is 128 + N after signal N, 124 if it took too long.
 * STATUS_ERR_IO if there is no process; STATUS_ERR_TOO_LARGE if the command gets too long. */
MUST_CHECK proto_status_t actor_replay_command_run(const char *command, const char *const *paths,
                                                   uint32_t path_count, const char *output,
                                                   uint64_t timeout_ns, int *exit_code);

#endif
