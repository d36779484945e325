/* `onepath log`: the table of its sub-commands, and what they share.  A new sub-command is one line
 * here, a prototype in cli_log.h and a file of its own. */
#include "cli_log.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text; /* one line of the help */
} commands[] = {
    {"ls", cli_log_ls, "segments of a folder: actor, time, records, gaps, damage"},
    {"show", cli_log_show, "the records, as text, JSON or bytes"},
};

enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void
help(FILE *stream)
{
    fprintf(stream, "usage: onepath log COMMAND PATH... [OPTIONS]\n\n"
                    "Looks at recorded messages. PATH is a folder or a segment (*.alog).\n\n"
                    "examples:\n"
                    "  onepath log ls ./log\n"
                    "  onepath log show ./log --type PLAN --limit 5\n"
                    "  onepath log show ./log --format json | jq .body\n\n"
                    "commands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(stream, "  %-9s %s\n", commands[i].name, commands[i].text);
    }
    fprintf(stream, "\n%s\n\nonepath log COMMAND --help says more.\n", CLI_LOG_EXIT_CODES);
}

int
cli_log(int argc, char **argv)
{
    if (argc < CLI_LOG_FIRST_WORD) {
        help(stderr);
        return CLI_EXIT_CONFIG;
    }
    const char *name = argv[CLI_LOG_FIRST_WORD - 1];
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return commands[i].run(argc, argv);
        }
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help(stdout);
        return CLI_EXIT_OK;
    }
    fprintf(stderr, "onepath log: '%s' is not one of:", name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(stderr, "%s %s", i > 0 ? "," : "", commands[i].name);
    }
    fprintf(stderr, "\n");
    return CLI_EXIT_CONFIG;
}

int
cli_log_exit_code(proto_status_t status)
{
    switch ((int)status) {
    case STATUS_OK:
    case STATUS_END:
        return CLI_EXIT_OK;
    case STATUS_ERR_NO_MEMORY:
    case STATUS_FULL:
    case STATUS_AGAIN:
        return CLI_EXIT_TEMPORARY;
    case STATUS_ERR_INTERNAL:
        return CLI_EXIT_INTERNAL;
    default:
        return CLI_EXIT_CONFIG;
    }
}

log_set_t *
cli_log_open(const char *command, const cli_words_t *words, uint32_t first,
             const log_set_options_t *options, int *exit_code)
{
    log_set_t *set = NULL;
    proto_error_t error = {{0}};
    proto_status_t status =
        log_set_open(words->words + first, words->count - first, options, &set, &error);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath log %s: %s%s%s\n", command, error.detail,
                error.detail[0] != '\0' ? ": " : "", proto_status_text(status));
        *exit_code = cli_log_exit_code(status);
        return NULL;
    }
    return set;
}

int
cli_log_report_damage(const char *command, const log_set_t *set)
{
    uint32_t count = log_set_damage_count(set);
    for (uint32_t i = 0; i < count; i++) {
        const log_damage_t *damage = log_set_damage(set, i);
        fprintf(stderr, "onepath log %s: %s: %s\n", command, damage->path, damage->detail);
    }
    return count > 0 ? CLI_EXIT_FOUND : CLI_EXIT_OK;
}
