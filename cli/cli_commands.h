/* cli_commands.h - the commands of the program, once, for main(), completion and man pages.
 *
 * The options of a command stay in its own file: cli_commands_each() has every command hand over
 * the table that it would parse.  Main thread only. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli_options.h"

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv); /* the exit code */
    const char *text;                  /* one line of the help */
} cli_entry_t;

extern const cli_entry_t cli_commands[]; /* without `help` and `version` */
extern const uint32_t cli_command_count;

extern const cli_entry_t cli_log_commands[]; /* of `onepath log` */
extern const uint32_t cli_log_command_count;

typedef struct {
    char name[32];                /* "log merge"; command->name may be another's: "log cut" */
    const char *text;             /* its line of the help */
    const cli_command_t *command; /* lent for the call */
} cli_seen_t;

/* Calls `visit` for every command that has a table, in the order of the lists. */
typedef void (*cli_commands_visit_t)(void *context, const cli_seen_t *seen);
void cli_commands_each(cli_commands_visit_t visit, void *context);

/* The help of the program. */
void cli_commands_help(FILE *stream);

#endif
