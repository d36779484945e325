/* cli_command.h - commands of an operator to a running node, for `scheduler` and `executor`. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include "proto_status.h"

/* Sends verb and argument to the supervisor of the node in `run_dir` (NULL: the one node of this
 * user) and prints its answer; `program` begins the lines of errors.  Returns the exit code: 0
 * done; 1 the answer is no; 75 worth another try (no answer in time, another command is in work,
 * who was asked ended); 78 never so (usage, no such node, unsupported there). */
int cli_command_send(const char *program, const char *run_dir, const char *verb,
                     const char *argument);

/* The folder of the node that is meant: `run_dir`, or where NULL the one node of this user; false,
 * with words on stderr, if there is none or more than one. */
bool cli_command_node(const char *program, const char *run_dir, char *out, size_t capacity_bytes);

/* The exit code that a status of a node's answer stands for. */
int cli_command_exit(proto_status_t status);

#endif
