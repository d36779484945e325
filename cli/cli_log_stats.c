/* `onepath log stats` and `timeline` and `export`: a log as figures, as a picture, as other files.
 */
#include <string.h>

#include "cli_log.h"
#include "log_export.h"
#include "log_stats.h"
#include "log_trace.h"

/* ---- stats ----------------------------------------------------------------------------------- */

typedef struct {
    const char *actor;
    bool json;
    bool requests;
} stats_options_t;

static const cli_option_t stats_cli_options[] = {
    {"requests", CLI_OPTION_FLAG, offsetof(stats_options_t, requests), 0, 0, NULL,
     "a line for each request too: when it was admitted, began to answer, ended", false},
    {"json", CLI_OPTION_FLAG, offsetof(stats_options_t, json), 0, 0, NULL,
     "one object, with every request", false},
    {"actor", CLI_OPTION_TEXT, offsetof(stats_options_t, actor), 0, 0, "NAME",
     "only this actor, by name or role", false},
};

static const cli_command_t stats_command = {
    .name = "log stats",
    .usage = "log stats PATH... [OPTIONS]",
    .text =
        "Counts messages and bytes of each kind, and measures from SUBMIT to ADMIT, to the first\n"
        "TOKENS and to FINISHED: as the gateway saw it if the log has it, else the scheduler.\n"
        "Follows at most 1,048,576 requests (96 bytes each).\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log stats ./log --requests\n"
                "  onepath log stats ./log --json | jq .latency_ms.submit_to_first_tokens",
    .options = stats_cli_options,
    .option_count = sizeof stats_cli_options / sizeof stats_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

int
cli_log_stats(int argc, char **argv)
{
    stats_options_t options = {0};
    cli_words_t words;
    int exit_code;
    if (!cli_log_parse(&stats_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    log_set_options_t chosen = {.actor = options.actor};
    log_set_t *set = cli_log_open("stats", &words, 0, words.count, &chosen, &exit_code);
    if (set == NULL) {
        return exit_code;
    }
    log_stats_options_t print = {.json = options.json, .list_requests = options.requests};
    proto_status_t status = log_stats_print(set, &print, stdout);
    exit_code = status == STATUS_OK ? cli_log_report_damage("stats", set)
                                    : cli_log_fail("stats", status, NULL);
    log_set_close(&set);
    return exit_code;
}

/* ---- timeline -------------------------------------------------------------------------------- */

typedef struct {
    const char *perfetto;
    const char *chrome;
    const char *actor;
} timeline_options_t;

static const cli_option_t timeline_cli_options[] = {
    {"perfetto", CLI_OPTION_TEXT, offsetof(timeline_options_t, perfetto), 0, 0, "FILE",
     "for ui.perfetto.dev: TrackEvent protobuf", false},
    {"chrome", CLI_OPTION_TEXT, offsetof(timeline_options_t, chrome), 0, 0, "FILE",
     "the JSON form, one event a line; greppable", false},
    {"actor", CLI_OPTION_TEXT, offsetof(timeline_options_t, actor), 0, 0, "NAME",
     "only this actor, by name or role", false},
};

static const cli_command_t timeline_command = {
    .name = "log timeline",
    .usage = "log timeline PATH... --perfetto FILE | --chrome FILE",
    .text =
        "Draws a log: a track of messages for each actor, the device's steps and each request "
        "with\n"
        "its phases as slices, batch size and cache use as counters, and flows along requests,\n"
        "steps, messages and causes. FILE is - for stdout.\n\n" CLI_LOG_EXIT_CODES,
    .examples =
        "  onepath log timeline ./log --perfetto run.pftrace   (open it in ui.perfetto.dev)\n"
        "  onepath log timeline ./log --chrome - | grep '\"step 17\"'",
    .options = timeline_cli_options,
    .option_count = sizeof timeline_cli_options / sizeof timeline_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static int
draw(log_set_t *set, log_trace_form_t form, const char *path)
{
    int exit_code = CLI_EXIT_OK;
    FILE *file = cli_log_open_output("timeline", path, &exit_code);
    if (file == NULL) {
        return exit_code;
    }
    log_trace_counts_t counts = {0};
    proto_status_t status = log_set_rewind(set);
    if (status == STATUS_OK) {
        status = log_trace_write(set, form, file, &counts);
    }
    if (status != STATUS_OK) {
        exit_code = cli_log_fail_path("timeline", status, path);
    }
    exit_code = cli_log_close_output("timeline", path, file, exit_code);
    if (exit_code == CLI_EXIT_OK) {
        fprintf(stderr,
                "%s: %llu event%s, %llu value%s of counters, %llu request%s on %llu track%s\n",
                path, (unsigned long long)counts.events, cli_plural(counts.events),
                (unsigned long long)counts.counters, cli_plural(counts.counters),
                (unsigned long long)counts.requests, cli_plural(counts.requests),
                (unsigned long long)counts.tracks, cli_plural(counts.tracks));
        if (counts.left_out > 0) {
            fprintf(stderr, "%s: %llu request%s not drawn: more than 4096 were open at once\n",
                    path, (unsigned long long)counts.left_out,
                    counts.left_out == 1 ? " is" : "s are");
        }
    }
    return exit_code;
}

int
cli_log_timeline(int argc, char **argv)
{
    timeline_options_t options = {0};
    cli_words_t words;
    int exit_code;
    if (!cli_log_parse(&timeline_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    if (options.perfetto == NULL && options.chrome == NULL) {
        fprintf(stderr, "onepath log timeline: name a file with --perfetto or --chrome\n");
        return CLI_EXIT_CONFIG;
    }
    log_set_options_t chosen = {.actor = options.actor};
    log_set_t *set = cli_log_open("timeline", &words, 0, words.count, &chosen, &exit_code);
    if (set == NULL) {
        return exit_code;
    }
    if (options.perfetto != NULL) {
        exit_code = draw(set, LOG_TRACE_PERFETTO, options.perfetto);
    }
    if (options.chrome != NULL && exit_code == CLI_EXIT_OK) {
        exit_code = draw(set, LOG_TRACE_CHROME, options.chrome);
    }
    if (exit_code == CLI_EXIT_OK) {
        exit_code = cli_log_report_damage("timeline", set);
    }
    log_set_close(&set);
    return exit_code;
}

/* ---- export ---------------------------------------------------------------------------------- */

typedef struct {
    const char *jsonl;
    const char *mcap;
    const char *type, *from, *to, *actor, *request;
    bool show_private;
} export_options_t;

static const cli_option_t export_cli_options[] = {
    {"jsonl", CLI_OPTION_TEXT, offsetof(export_options_t, jsonl), 0, 0, "FILE",
     "one object a line, columns in full", false},
    {"mcap", CLI_OPTION_TEXT, offsetof(export_options_t, mcap), 0, 0, "FILE",
     "for Foxglove and the mcap tools", false},
    {"private", CLI_OPTION_FLAG, offsetof(export_options_t, show_private), 0, 0, NULL,
     "tokens and sampling too, not only their sizes", false},
    {"type", CLI_OPTION_TEXT, offsetof(export_options_t, type), 0, 0, "NAME",
     "only messages or records of this name", false},
    {"request", CLI_OPTION_TEXT, offsetof(export_options_t, request), 0, 0, "ID",
     "only messages that name this request", false},
    {"from", CLI_OPTION_TEXT, offsetof(export_options_t, from), 0, 0, "PLACE",
     "begin there: 1234 (sequence), 6369.64 (seconds) or a date in UTC", false},
    {"to", CLI_OPTION_TEXT, offsetof(export_options_t, to), 0, 0, "PLACE", "end there, included",
     false},
    {"actor", CLI_OPTION_TEXT, offsetof(export_options_t, actor), 0, 0, "NAME",
     "only this actor, by name or role", false},
};

static const cli_command_t export_command = {
    .name = "log export",
    .usage = "log export PATH... --jsonl FILE | --mcap FILE",
    .text = "Writes a log in a format of others. MCAP is written without chunks and index; a "
            "channel is\n"
            "/ACTOR/in|out/KIND, a message is the JSON line. FILE is - for "
            "stdout.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log export ./log --jsonl - | jq 'select(.kind==\"PLAN\")'\n"
                "  onepath log export ./log --mcap run.mcap",
    .options = export_cli_options,
    .option_count = sizeof export_cli_options / sizeof export_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

int
cli_log_export(int argc, char **argv)
{
    export_options_t options = {0};
    cli_words_t words;
    int exit_code;
    if (!cli_log_parse(&export_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    log_filter_t filter = {0};
    if (!cli_log_parse_filter("export", options.type, options.from, options.to, options.request,
                              &filter)) {
        return CLI_EXIT_CONFIG;
    }
    if ((options.jsonl == NULL) == (options.mcap == NULL)) {
        fprintf(stderr, "onepath log export: name one file, with --jsonl or with --mcap\n");
        return CLI_EXIT_CONFIG;
    }
    log_set_options_t chosen = {.actor = options.actor};
    log_set_t *set = cli_log_open("export", &words, 0, words.count, &chosen, &exit_code);
    if (set == NULL) {
        return exit_code;
    }
    const char *path = options.jsonl != NULL ? options.jsonl : options.mcap;
    FILE *file = cli_log_open_output("export", path, &exit_code);
    if (file != NULL) {
        log_export_options_t what = {.form =
                                         options.jsonl != NULL ? LOG_EXPORT_JSONL : LOG_EXPORT_MCAP,
                                     .show_private = options.show_private,
                                     .filter = &filter};
        log_export_counts_t counts;
        proto_status_t status = log_export_write(set, &what, file, &counts);
        exit_code = status == STATUS_OK ? cli_log_report_damage("export", set)
                                        : cli_log_fail_path("export", status, path);
        exit_code = cli_log_close_output("export", path, file, exit_code);
    }
    log_set_close(&set);
    return exit_code;
}
