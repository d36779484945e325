/* cli_log.h - the sub-commands of `onepath log`: one function each, in the table of cli_log.c.
 *
 * A sub-command reads argv[3..argc) with its own option table, prints data on stdout and everything
 * else on stderr, and returns the exit code.  Engines are in log/ and actors/replay/: here are
 * options and words only.  Main thread. */
#ifndef CLI_LOG_H
#define CLI_LOG_H

#include "cli_node.h"
#include "log_filter.h"
#include "log_set.h"

/* What the help of every sub-command says about exit codes. */
#define CLI_LOG_EXIT_CODES                                                                         \
    "Exit codes: 0 fine; 1 found (damage, a difference); 70 internal error; 75 try again (no\n"    \
    "memory, a full disk); 78 wrong usage, or nothing that can be read."

enum {
    CLI_LOG_FIRST_WORD = 3, /* argv: program, "log", sub-command, ... */
    CLI_LOG_SCRATCH_SIZE_BYTES = 1024,
};

int cli_log_ls(int argc, char **argv);
int cli_log_show(int argc, char **argv);
int cli_log_stats(int argc, char **argv);
int cli_log_timeline(int argc, char **argv);
int cli_log_diff(int argc, char **argv);
int cli_log_verify(int argc, char **argv);
int cli_log_recover(int argc, char **argv);
int cli_log_reindex(int argc, char **argv);
int cli_log_slice(int argc, char **argv);
int cli_log_cut(int argc, char **argv);
int cli_log_redact(int argc, char **argv);
int cli_log_minimize(int argc, char **argv);
int cli_log_export(int argc, char **argv);
int cli_log_replay(int argc, char **argv);
int cli_log_bisect(int argc, char **argv);

/* Reads the options of a sub-command.  False if it ends here, with *exit_code: after --help, after
 * an error. */
bool cli_log_parse(const cli_command_t *command, int argc, char **argv, void *values,
                   cli_words_t *words, int *exit_code);

/* The exit code for a failure that ends a sub-command. */
int cli_log_exit_code(proto_status_t status);

/* Opens the segments of words[begin..end), all of them paths.  After a failure that is printed,
 * *exit_code is set and NULL returned. */
log_set_t *cli_log_open(const char *command, const cli_words_t *words, uint32_t begin, uint32_t end,
                        const log_set_options_t *options, int *exit_code);

/* Says on stderr what failed; the exit code for it.  `why` is a whole sentence; NULL or "": the
 * status speaks for itself. */
int cli_log_fail(const char *command, proto_status_t status, const char *why);
/* The same of a file. */
int cli_log_fail_path(const char *command, proto_status_t status, const char *path);

/* A request's id, which needs 64 bits without a sign.  False after an error was printed. */
bool cli_log_parse_request(const char *command, const char *text, uint64_t *out);

/* --type, --from, --to and --request in any combination (NULL = not given); false after an error
 * was printed. */
bool cli_log_parse_filter(const char *command, const char *type, const char *from, const char *to,
                          const char *request, log_filter_t *out);

/* Opens a file for data, "-" is stdout; NULL after an error was printed, with *exit_code.  It must
 * not exist. */
FILE *cli_log_open_output(const char *command, const char *path, int *exit_code);
/* Closes it; the exit code, also after a failed write.  A file that failed is removed. */
int cli_log_close_output(const char *command, const char *path, FILE *file, int exit_code);

/* Makes an empty folder for a tool's own files, in $TMPDIR or /tmp; false after an error was
 * printed.  The caller removes it. */
bool cli_log_make_scratch(const char *command, char out[CLI_LOG_SCRATCH_SIZE_BYTES]);

/* Prints what is damaged, one line each on stderr; CLI_EXIT_FOUND if there is any, else
 * CLI_EXIT_OK. */
int cli_log_report_damage(const char *command, const log_set_t *set);

#endif
