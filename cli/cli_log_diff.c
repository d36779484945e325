/* `onepath log diff`: where two logs part. */
#include <stdlib.h>
#include <string.h>

#include "cli_log.h"
#include "log_diff.h"

typedef struct {
    const char *align;
    const char *actor;
    const char *tolerance;
    cli_list_t ignore;
    uint32_t context;
    bool exact;
    bool ignore_private;
    bool show_private;
    bool json;
} diff_options_t;

static const cli_option_t diff_cli_options[] = {
    {"align", CLI_OPTION_TEXT, offsetof(diff_options_t, align), 0, 0, "HOW",
     "request: compare each request's messages, however they are interleaved", false},
    {"ignore", CLI_OPTION_LIST, offsetof(diff_options_t, ignore), 0, 0, "FIELDS",
     "skip these too: cause,plan.width or header.request", false},
    {"exact", CLI_OPTION_FLAG, offsetof(diff_options_t, exact), 0, 0, NULL,
     "skip only what --ignore names, not durations and epochs", false},
    {"tolerance", CLI_OPTION_TEXT, offsetof(diff_options_t, tolerance), 0, 0, "NUMBER",
     "floats are the same within this share of the larger one, or of 1 (0)", false},
    {"ignore-private", CLI_OPTION_FLAG, offsetof(diff_options_t, ignore_private), 0, 0, NULL,
     "skip tokens and sampling: one side is redacted", false},
    {"private", CLI_OPTION_FLAG, offsetof(diff_options_t, show_private), 0, 0, NULL,
     "show tokens and sampling where they differ", false},
    {"context", CLI_OPTION_U32, offsetof(diff_options_t, context), 1, LOG_DIFF_CONTEXT_MAX, "COUNT",
     "messages shown before the difference (3)", false},
    {"actor", CLI_OPTION_TEXT, offsetof(diff_options_t, actor), 0, 0, "NAME",
     "only this actor, by name or role", false},
    {"json", CLI_OPTION_FLAG, offsetof(diff_options_t, json), 0, 0, NULL, "one object a line",
     false},
};

static const cli_command_t diff_command = {
    .name = "log diff",
    .usage = "log diff A B [OPTIONS]",
    .text =
        "Compares the messages of each actor of A with those of the same actor of B and prints "
        "the\n"
        "first one that differs: the field, both values, what came before. Requests are compared "
        "by\n"
        "the order in which they appear. Never compared: times of records, sequences of links; "
        "unless\n"
        "--exact: duration_ns, queue_ns, deadline_ns, step_age_ns, cpu_ns, busy_ns, epoch,\n"
        "resident_bytes, progress; with --align request also cause, slot, step, exchange.\n\n"
        "Exit codes: 0 the same; 1 they differ, or a segment is damaged; 70 internal error; 75 no\n"
        "memory; 78 wrong usage, or nothing that can be read.",
    .examples = "  onepath log diff ./before ./after --actor scheduler\n"
                "  onepath log diff ./run1 ./run2 --align request --ignore page_hashes",
    .options = diff_cli_options,
    .option_count = sizeof diff_cli_options / sizeof diff_cli_options[0],
    .word_count_min = 2,
    .word_count_max = 2,
};

typedef struct {
    char text[1024];
    const char *names[LOG_DIFF_IGNORED_MAX];
    uint32_t count;
} names_t;

/* "a,b" and --ignore given twice come to the same. */
static bool
split_names(const cli_list_t *list, names_t *out)
{
    size_t at = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const char *from = list->items[i];
        while (*from != '\0') {
            size_t length = strcspn(from, ",");
            if (length > 0) {
                /* Half of the room is kept for the defaults. */
                if (out->count == LOG_DIFF_IGNORED_MAX / 2 || at + length + 1 > sizeof out->text) {
                    fprintf(stderr, "onepath log diff: --ignore names more than %d fields\n",
                            LOG_DIFF_IGNORED_MAX / 2);
                    return false;
                }
                memcpy(out->text + at, from, length);
                out->names[out->count++] = out->text + at;
                out->text[at + length] = '\0';
                at += length + 1;
            }
            from += from[length] == ',' ? length + 1 : length;
        }
    }
    return true;
}

static bool
parse_tolerance(const char *text, double *out)
{
    char *end = NULL;
    *out = text != NULL ? strtod(text, &end) : 0;
    if (text != NULL && (end == text || *end != '\0' || !(*out >= 0) || *out > 1)) {
        fprintf(stderr, "onepath log diff: --tolerance is '%s'; it takes a number from 0 to 1\n",
                text);
        return false;
    }
    return true;
}

int
cli_log_diff(int argc, char **argv)
{
    diff_options_t options = {0};
    cli_words_t words;
    int exit_code;
    if (!cli_log_parse(&diff_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    if (options.align != NULL && strcmp(options.align, "request") != 0) {
        fprintf(stderr, "onepath log diff: --align is '%s'; it takes request\n", options.align);
        return CLI_EXIT_CONFIG;
    }
    static names_t names;
    log_diff_options_t what = {.no_defaults = options.exact,
                               .ignore_private = options.ignore_private,
                               .show_private = options.show_private,
                               .align_requests = options.align != NULL,
                               .context = options.context,
                               .actor = options.actor,
                               .json = options.json,
                               .ignored = names.names};
    if (!split_names(&options.ignore, &names) ||
        !parse_tolerance(options.tolerance, &what.tolerance)) {
        return CLI_EXIT_CONFIG;
    }
    what.ignored_count = names.count;
    if (what.tolerance > 0 && what.align_requests) {
        fprintf(stderr, "onepath log diff: --tolerance does not go with --align\n");
        return CLI_EXIT_CONFIG;
    }
    log_diff_side_t sides[2] = {{&words.words[0], 1}, {&words.words[1], 1}};
    log_diff_result_t result;
    proto_error_t error = {{0}};
    proto_status_t status = log_diff(&sides[0], &sides[1], &what, stdout, &result, &error);
    if (status != STATUS_OK) {
        exit_code = cli_log_fail("diff", status, error.detail);
        return status == STATUS_ERR_NO_MEMORY ? exit_code : CLI_EXIT_CONFIG;
    }
    if (result.damages > 0) {
        fprintf(stderr, "onepath log diff: %u segment%s damaged; `onepath log verify` says where\n",
                (unsigned)result.damages, result.damages == 1 ? " is" : "s are");
    }
    if (result.differences == 0 && !options.json) {
        printf("the same: %llu message%s\n", (unsigned long long)result.compared,
               cli_plural(result.compared));
    }
    return result.differences > 0 || result.damages > 0 ? CLI_EXIT_FOUND : CLI_EXIT_OK;
}
