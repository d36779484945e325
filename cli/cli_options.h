/* cli_options.h - one table of options gives parsing, --help, and the environment variables.
 *
 * Precedence: command line, then the environment, then a file if there is one, then the default
 * that the caller left in the values.  An option of a node (serve, demo, actor) is ONEPATH_<OPTION>
 * there, one of any other command ONEPATH_<COMMAND>_<OPTION>: one --json or --seed must not set all
 * of them. Main thread only; values are lent (argv, environment). */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto_status.h"

typedef enum {
    CLI_OPTION_FLAG, /* bool: present or not; the environment takes 1 or 0 */
    CLI_OPTION_U32,  /* uint32_t within [min, max] */
    CLI_OPTION_I64,  /* int64_t within [min, max] as signed numbers */
    CLI_OPTION_SIZE, /* uint64_t bytes: 512M, 4G, 1073741824 */
    CLI_OPTION_TEXT, /* const char * */
    CLI_OPTION_LIST, /* cli_list_t: may be given several times */
} cli_option_type_t;

enum { CLI_LIST_LEN_MAX = 16, CLI_WORDS_LEN_MAX = 128, CLI_VARIABLE_SIZE_BYTES = 96 };

typedef struct {
    const char *items[CLI_LIST_LEN_MAX];
    uint32_t count;
} cli_list_t;

typedef struct {
    const char *name; /* without the dashes */
    cli_option_type_t type;
    size_t offset_bytes;  /* within the values */
    uint64_t min, max;    /* U32 and SIZE */
    const char *argument; /* shown in the help: "PORT"; NULL for flags */
    const char *text;     /* one line */
    bool hidden;          /* for our own processes; not in the help */
} cli_option_t;

typedef struct {
    const char *name;     /* "serve" */
    const char *usage;    /* "serve MODEL [OPTIONS]" */
    const char *text;     /* what it does, a few lines */
    const char *examples; /* shown first */
    const cli_option_t *options;
    uint32_t option_count;
    uint32_t word_count_min, word_count_max; /* words that are no options */
    const char *words;       /* what the first one may be, for completion: "attach show"; or NULL */
    bool is_node;            /* its options are those of a node, also in the environment */
    const char *node_option; /* or only this one is */
} cli_command_t;

typedef struct {
    const char *words[CLI_WORDS_LEN_MAX];
    uint32_t count;
} cli_words_t;

/* Reads the environment, then argv[first..argc).  STATUS_END after --help was printed;
 * STATUS_ERR_CONFIG after an error was printed that names the option, its value and its range. */
MUST_CHECK proto_status_t cli_options_parse(const cli_command_t *command, int argc, char **argv,
                                            int first, void *values, cli_words_t *words);

/* The environment variable of an option of this command. */
void cli_options_variable(const cli_command_t *command, const cli_option_t *option,
                          char out[CLI_VARIABLE_SIZE_BYTES]);

/* Values of a file, below the environment, for the commands of a node: the text of an option, NULL
 * if the file has none, and where it stands.  NULL ends that. */
enum { CLI_ORIGIN_SIZE_BYTES = 512 };
typedef const char *(*cli_options_file_t)(void *context, const char *option,
                                          char origin[CLI_ORIGIN_SIZE_BYTES]);
void cli_options_set_file(cli_options_file_t file, void *context);

/* Where the value of an option came from at the last parse, to stand behind it in a message:
 * " (from ONEPATH_PORT)", " (from cluster.yaml:3:9)", "" for the command line and defaults.  Lent.
 */
const char *cli_options_origin(const char *option);

/* While there is a visitor, cli_options_parse() hands it the command and returns STATUS_END, as
 * after --help; NULL ends that.  So completion and man pages see the very tables that parse. */
typedef void (*cli_options_visit_t)(void *context, const cli_command_t *command);
void cli_options_set_visitor(cli_options_visit_t visit, void *context);
bool cli_options_has_visitor(void);

/* Prints the help of a command. */
void cli_options_help(const cli_command_t *command, FILE *stream);

/* "" of one, "s" of any other number: "%u gap%s". */
const char *cli_plural(uint64_t count);

/* Prints an argument as a shell would take it: as it is, or in quotes where it must be. */
void cli_print_quoted(FILE *stream, const char *argument);

#endif
