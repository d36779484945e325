/* cli_command.h - commands of an operator to a running node, for `scheduler` and `executor`. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

/* Sends verb and argument to the supervisor of the node in `run_dir` (NULL: the one node of this
 * user) and prints its answer; `program` begins the lines of errors.  Returns the exit code: 0
 * done; 1 the answer is no; 75 worth another try (no answer in time, another command is in work,
 * who was asked ended); 78 never so (usage, no such node, unsupported there). */
int cli_command_send(const char *program, const char *run_dir, const char *verb,
                     const char *argument);

#endif
