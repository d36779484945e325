/* `onepath log`: the table of its sub-commands, and what they share.  A new sub-command is one line
 * here, a prototype in cli_log.h and a file of its own. */
#include "cli_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_commands.h"

const cli_entry_t cli_log_commands[] = {
    {"ls", cli_log_ls, "segments of a folder: actor, time, records, gaps, damage"},
    {"show", cli_log_show, "the records, as text, JSON or bytes; follow them"},
    {"stats", cli_log_stats, "counts, bytes, latencies, what each request went through"},
    {"timeline", cli_log_timeline, "actors, steps and requests for Perfetto or chrome://tracing"},
    {"diff", cli_log_diff, "the first message in which two logs differ"},
    {"slice", cli_log_slice, "everything that concerns one request, as a log"},
    {"cut", cli_log_cut, "a part of a log, as a log"},
    {"merge", cli_log_cut, "several logs in one: `cut` without a limit"},
    {"redact", cli_log_redact, "the log without prompts, tokens and sampling"},
    {"minimize", cli_log_minimize, "a smaller log on which a command still fails"},
    {"replay", cli_log_replay, "feeds an actor's core what it was given, and compares"},
    {"bisect", cli_log_bisect, "the first input after which something is wrong"},
    {"export", cli_log_export, "JSON lines or MCAP"},
    {"verify", cli_log_verify, "is every byte whole? names what is not"},
    {"recover", cli_log_recover, "cuts torn tails, saves what is good around damage"},
    {"reindex", cli_log_reindex, "makes the sidecars (*.aidx) anew"},
};

enum { COMMAND_COUNT = sizeof cli_log_commands / sizeof cli_log_commands[0] };
const uint32_t cli_log_command_count = COMMAND_COUNT;

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
        fprintf(stream, "  %-9s %s\n", cli_log_commands[i].name, cli_log_commands[i].text);
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
        if (strcmp(name, cli_log_commands[i].name) == 0) {
            return cli_log_commands[i].run(argc, argv);
        }
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help(stdout);
        return CLI_EXIT_OK;
    }
    fprintf(stderr, "onepath log: '%s' is not one of:", name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(stderr, "%s %s", i > 0 ? "," : "", cli_log_commands[i].name);
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
    case STATUS_ERR_IO:
        return CLI_EXIT_TEMPORARY;
    case STATUS_ERR_INTERNAL:
        return CLI_EXIT_INTERNAL;
    default:
        return CLI_EXIT_CONFIG;
    }
}

int
cli_log_fail(const char *command, proto_status_t status, const char *why)
{
    bool has_reason = why != NULL && why[0] != '\0';
    fprintf(stderr, "onepath log %s: %s\n", command, has_reason ? why : proto_status_text(status));
    return cli_log_exit_code(status);
}

int
cli_log_fail_path(const char *command, proto_status_t status, const char *path)
{
    fprintf(stderr, "onepath log %s: %s: %s\n", command, path, proto_status_text(status));
    return cli_log_exit_code(status);
}

bool
cli_log_parse(const cli_command_t *command, int argc, char **argv, void *values, cli_words_t *words,
              int *exit_code)
{
    proto_status_t status =
        cli_options_parse(command, argc, argv, CLI_LOG_FIRST_WORD, values, words);
    *exit_code = status == STATUS_OK || status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    return status == STATUS_OK;
}

log_set_t *
cli_log_open(const char *command, const cli_words_t *words, uint32_t begin, uint32_t end,
             const log_set_options_t *options, int *exit_code)
{
    log_set_t *set = NULL;
    proto_error_t error = {{0}};
    proto_status_t status = log_set_open(words->words + begin, end - begin, options, &set, &error);
    if (status != STATUS_OK) {
        *exit_code = cli_log_fail(command, status, error.detail);
        if (status != STATUS_ERR_NO_MEMORY) {
            *exit_code = CLI_EXIT_CONFIG; /* what cannot be read today cannot be read tomorrow */
        }
        return NULL;
    }
    return set;
}

bool
cli_log_parse_request(const char *command, const char *text, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = text != NULL ? strtoull(text, &end, 10) : 0;
    bool is_number = text != NULL && text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
    if (text != NULL && (!is_number || *out == 0)) {
        fprintf(stderr,
                "onepath log %s: --request is '%s'; it takes the id of a request, as `onepath log "
                "stats --requests` lists them\n",
                command, text);
        return false;
    }
    return true;
}

static bool
parse_bound(const char *command, const char *name, const char *text, log_bound_t *out)
{
    if (text == NULL || log_bound_parse(text, out) == STATUS_OK) {
        return true;
    }
    fprintf(stderr,
            "onepath log %s: --%s is '%s'; it takes a sequence number (1234), seconds of the "
            "monotonic clock (6369.64) or a date (2026-11-30T07:03:59Z)\n",
            command, name, text);
    return false;
}

bool
cli_log_parse_filter(const char *command, const char *type, const char *from, const char *to,
                     const char *request, log_filter_t *out)
{
    if (type != NULL && log_filter_set_type(out, type) != STATUS_OK) {
        fprintf(stderr,
                "onepath log %s: --type is '%s', which is neither a message (PLAN, SUBMIT, ...; "
                "docs/protocol.md) nor a kind of record (SNAPSHOT, NOTE, ...)\n",
                command, type);
        return false;
    }
    return parse_bound(command, "from", from, &out->from) &&
           parse_bound(command, "to", to, &out->to) &&
           cli_log_parse_request(command, request, &out->request);
}

FILE *
cli_log_open_output(const char *command, const char *path, int *exit_code)
{
    if (strcmp(path, "-") == 0) {
        return stdout;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (file == NULL) {
        fprintf(stderr, "onepath log %s: %s: cannot be made: %s%s\n", command, path,
                strerror(errno), errno == EEXIST ? "; name another file" : "");
        if (fd >= 0) {
            (void)close(fd);
        }
        *exit_code = CLI_EXIT_CONFIG;
    }
    return file;
}

int
cli_log_close_output(const char *command, const char *path, FILE *file, int exit_code)
{
    bool is_bad = fflush(file) != 0 || ferror(file);
    if (file != stdout && fclose(file) != 0) {
        is_bad = true;
    }
    if (is_bad && exit_code <= CLI_EXIT_FOUND) {
        exit_code = cli_log_fail_path(command, STATUS_ERR_IO, path);
    }
    if (exit_code > CLI_EXIT_FOUND && file != stdout) {
        (void)unlink(path); /* half a file would pass for a whole one */
    }
    return exit_code;
}

bool
cli_log_make_scratch(const char *command, char out[CLI_LOG_SCRATCH_SIZE_BYTES])
{
    const char *base = getenv("TMPDIR");
    base = base != NULL && base[0] != '\0' ? base : "/tmp";
    int size = snprintf(out, CLI_LOG_SCRATCH_SIZE_BYTES, "%s/onepath-%s-XXXXXX", base, command);
    bool is_long = size < 0 || size >= CLI_LOG_SCRATCH_SIZE_BYTES;
    /* Commands for the shell get it in single quotes. */
    if (is_long || strchr(base, '\'') != NULL) {
        fprintf(stderr, "onepath log %s: the folder '%s' of TMPDIR is %s\n", command, base,
                is_long ? "too long" : "named with a quote; name another one");
        return false;
    }
    if (mkdtemp(out) == NULL) {
        fprintf(stderr, "onepath log %s: %s: cannot be made: %s\n", command, out, strerror(errno));
        return false;
    }
    return true;
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
