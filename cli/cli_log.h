/* cli_log.h - the sub-commands of `onepath log`: one function each, in the table of cli_log.c.
 *
 * A sub-command reads argv[3..argc) with its own option table, prints data on stdout and everything
 * else on stderr, and returns the exit code.  Engines are in log/ and actors/replay/: here are
 * options and words only.  Main thread. */
#ifndef CLI_LOG_H
#define CLI_LOG_H

#include "cli_node.h"
#include "log_set.h"

/* What the help of every sub-command says about exit codes. */
#define CLI_LOG_EXIT_CODES                                                                         \
    "Exit codes: 0 fine; 1 found (damage, a difference); 70 internal error; 75 try again (no\n"    \
    "memory, a full disk); 78 wrong usage, or nothing that can be read."

enum { CLI_LOG_FIRST_WORD = 3 }; /* argv: program, "log", sub-command, ... */

int cli_log_ls(int argc, char **argv);
int cli_log_show(int argc, char **argv);
int cli_log_replay(int argc, char **argv);
int cli_log_bisect(int argc, char **argv);

/* The exit code for a failure that ends a sub-command. */
int cli_log_exit_code(proto_status_t status);

/* Opens the segments of words[first..count), all of them paths.  After a failure that is printed,
 * *exit_code is set and NULL returned. */
log_set_t *cli_log_open(const char *command, const cli_words_t *words, uint32_t first,
                        const log_set_options_t *options, int *exit_code);

/* Prints what is damaged, one line each on stderr; CLI_EXIT_FOUND if there is any, else
 * CLI_EXIT_OK. */
int cli_log_report_damage(const char *command, const log_set_t *set);

#endif
