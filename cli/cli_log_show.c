/* `onepath log show`: the records of a log, one after the other. */
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "cli_log.h"
#include "log_filter.h"
#include "log_print.h"

typedef struct {
    const char *format;
    const char *type;
    const char *from, *to;
    const char *actor;
    const char *request;
    uint32_t limit;
    uint32_t columns;
    bool show_private;
    bool follow;
} show_options_t;

static const cli_option_t show_cli_options[] = {
    {"format", CLI_OPTION_TEXT, offsetof(show_options_t, format), 0, 0, "FORM",
     "text, json (one object a line) or hex (text)", false},
    {"from", CLI_OPTION_TEXT, offsetof(show_options_t, from), 0, 0, "PLACE",
     "begin there: 1234 (sequence), 6369.64 (seconds) or a date in UTC", false},
    {"to", CLI_OPTION_TEXT, offsetof(show_options_t, to), 0, 0, "PLACE", "end there, included",
     false},
    {"type", CLI_OPTION_TEXT, offsetof(show_options_t, type), 0, 0, "NAME",
     "only messages (PLAN) or records (SNAPSHOT) of this name", false},
    {"request", CLI_OPTION_TEXT, offsetof(show_options_t, request), 0, 0, "ID",
     "only messages that name this request (`slice` finds all that concern it)", false},
    {"actor", CLI_OPTION_TEXT, offsetof(show_options_t, actor), 0, 0, "NAME",
     "only this actor, by name or role", false},
    {"limit", CLI_OPTION_U32, offsetof(show_options_t, limit), 1, UINT32_MAX, "COUNT",
     "stop after so many records", false},
    {"columns", CLI_OPTION_U32, offsetof(show_options_t, columns), 1, UINT32_MAX, "COUNT",
     "entries shown of a column (16)", false},
    {"private", CLI_OPTION_FLAG, offsetof(show_options_t, show_private), 0, 0, NULL,
     "tokens and sampling too, not only their sizes", false},
    {"follow", CLI_OPTION_FLAG, offsetof(show_options_t, follow), 0, 0, NULL,
     "(also -f) wait for more records and segments until Ctrl-C", false},
};

static const cli_command_t show_command = {
    .name = "log show",
    .usage = "log show PATH... [OPTIONS]",
    .text =
        "Prints the records of segments, or of whole folders: several actors in order of time.\n"
        "A damaged segment is shown up to the damage.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log show ./log --type PLAN --limit 5\n"
                "  onepath log show ./log --request 7 --format json | jq .body\n"
                "  onepath log show ./log --actor scheduler --from 1200 --to 1250\n"
                "  onepath log show ./log -f --type FINISHED",
    .options = show_cli_options,
    .option_count = sizeof show_cli_options / sizeof show_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

enum { FOLLOW_POLL_MS = 100 };

static volatile sig_atomic_t interrupted;

static void
on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static bool
parse_form(const char *format, log_print_form_t *out)
{
    static const char *const names[] = {
        [LOG_PRINT_TEXT] = "text", [LOG_PRINT_JSON] = "json", [LOG_PRINT_HEX] = "hex"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(format, names[i]) == 0) {
            *out = (log_print_form_t)i;
            return true;
        }
    }
    fprintf(stderr, "onepath log show: --format is '%s'; it takes text, json or hex\n", format);
    return false;
}

/* Waits for more; false when it is time to end. */
static bool
wait_for_more(log_set_t *set)
{
    (void)fflush(stdout);
    (void)poll(NULL, 0, FOLLOW_POLL_MS);
    return !interrupted && !ferror(stdout) && log_set_refresh(set) == STATUS_OK;
}

/* Nothing on stdout can mean a mistyped filter; a damaged log is told apart from it later. */
static void
tell_nothing(const show_options_t *options)
{
    if (options->request != NULL) {
        fprintf(stderr,
                "onepath log show: nothing here names request %s%s; `onepath log stats --requests` "
                "lists the requests\n",
                options->request,
                options->type != NULL || options->from != NULL || options->to != NULL ||
                        options->actor != NULL
                    ? " and passes the other filters"
                    : "");
    } else if (options->type != NULL || options->from != NULL || options->to != NULL ||
               options->actor != NULL) {
        fprintf(stderr, "onepath log show: no record passes the filters\n");
    } else {
        fprintf(stderr, "onepath log show: there is no record\n");
    }
}

static proto_status_t
show_all(log_set_t *set, log_printer_t *printer, const log_filter_t *filter,
         const show_options_t *options)
{
    log_decoder_t decoder = {0};
    uint32_t shown = 0;
    proto_status_t status;
    for (;;) {
        log_set_item_t item;
        status = log_set_next(set, &item);
        if (status == STATUS_END && options->follow && wait_for_more(set)) {
            continue;
        }
        if (status != STATUS_OK || interrupted || ferror(stdout)) {
            break;
        }
        log_message_t message;
        proto_status_t decoded = log_decoder_decode(&decoder, &item.record, &message);
        if (decoded == STATUS_ERR_NO_MEMORY) {
            status = decoded;
            break;
        }
        const log_message_t *found = decoded == STATUS_OK ? &message : NULL;
        if (log_filter_match(filter, &item, found)) {
            log_printer_print(printer, stdout, &item, found);
            if (++shown == options->limit) {
                break;
            }
        }
    }
    log_decoder_fini(&decoder);
    if (shown == 0 && status == STATUS_END && !interrupted && !ferror(stdout)) {
        tell_nothing(options);
    }
    return status;
}

int
cli_log_show(int argc, char **argv)
{
    show_options_t options = {.format = "text"};
    for (int i = CLI_LOG_FIRST_WORD; i < argc; i++) {
        if (strcmp(argv[i], "-f") == 0) {
            static char follow[] = "--follow";
            argv[i] = follow;
        }
    }
    cli_words_t words;
    int exit_code;
    if (!cli_log_parse(&show_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    log_filter_t filter = {0};
    log_print_options_t print = {.show_private = options.show_private,
                                 .column_len_max = options.columns};
    if (!cli_log_parse_filter("show", options.type, options.from, options.to, options.request,
                              &filter) ||
        !parse_form(options.format, &print.form)) {
        return CLI_EXIT_CONFIG;
    }
    log_set_options_t chosen = {
        .actor = options.actor,
        .follow = options.follow,
        .from_sequence = filter.from.form == LOG_BOUND_SEQUENCE ? filter.from.value : 0,
        .from_time_ns = filter.from.form == LOG_BOUND_MONOTONIC ? filter.from.value : 0};
    log_set_t *set = cli_log_open("show", &words, 0, words.count, &chosen, &exit_code);
    if (set == NULL) {
        return exit_code;
    }
    if (options.follow) {
        struct sigaction action = {.sa_handler = on_interrupt};
        (void)sigaction(SIGINT, &action, NULL);
        (void)sigaction(SIGTERM, &action, NULL);
    }
    log_printer_t *printer = NULL;
    proto_status_t status = log_printer_new(&print, &printer);
    if (status == STATUS_OK) {
        status = show_all(set, printer, &filter, &options);
    }
    (void)fflush(stdout);
    exit_code = status == STATUS_OK || status == STATUS_END ? cli_log_report_damage("show", set)
                                                            : cli_log_fail("show", status, NULL);
    log_printer_destroy(&printer);
    log_set_close(&set);
    return exit_code;
}
