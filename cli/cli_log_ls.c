/* `onepath log ls`: one line for each segment, and what is in it. */
#include <inttypes.h>
#include <string.h>

#include "cli_log.h"
#include "log_print.h"
#include "log_survey.h"

typedef struct {
    const char *actor;
    bool json;
} ls_options_t;

static const cli_option_t ls_cli_options[] = {
    {"actor", CLI_OPTION_TEXT, offsetof(ls_options_t, actor), 0, 0, "NAME",
     "only this actor, by name or role", false},
    {"json", CLI_OPTION_FLAG, offsetof(ls_options_t, json), 0, 0, NULL, "one object a line", false},
};

static const cli_command_t ls_command = {
    .name = "log ls",
    .usage = "log ls PATH... [OPTIONS]",
    .text = "Lists segments: actor, begin, duration, records, inputs and outputs, gaps, damage, "
            "and how\n"
            "many there are of each kind. A gap is a place where records are missing: the recorder "
            "was\n"
            "too slow, or the file was cut out of a longer one.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log ls ./log\n"
                "  onepath log ls ./log --json | jq 'select(.state != \"whole\")'",
    .options = ls_cli_options,
    .option_count = sizeof ls_cli_options / sizeof ls_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static const char *
state_of(const log_survey_t *survey)
{
    return survey->status == STATUS_END     ? "whole"
           : survey->status == STATUS_AGAIN ? "torn"
                                            : "damaged";
}

static void
print_kind(bool json, bool *is_first, const char *name, uint64_t count)
{
    if (json) {
        printf("%s\"%s\":%" PRIu64, *is_first ? "" : ",", name, count);
    } else {
        printf("%s%s %" PRIu64, *is_first ? "" : ", ", name, count);
    }
    *is_first = false;
}

/* Kinds of records, then messages by name: what IN and OUT are made of. */
static void
print_kinds(const log_survey_t *survey, bool json)
{
    bool is_first = true;
    for (uint32_t kind = 0; kind < PROTO_LOG_KIND_COUNT; kind++) {
        bool is_message = kind == PROTO_LOG_IN || kind == PROTO_LOG_OUT;
        if (survey->kind_counts[kind] != 0 && (json || !is_message)) {
            print_kind(json, &is_first, proto_log_kind_name((proto_log_kind_t)kind),
                       survey->kind_counts[kind]);
        }
    }
    for (uint32_t number = 0; number <= LOG_MESSAGE_NUMBER_MAX; number++) {
        bool is_timer = number == PROTO_KIND_TIMER; /* a kind of record too */
        if (survey->message_counts[number] != 0 && !(json && is_timer)) {
            print_kind(json, &is_first, proto_kind_name((proto_kind_t)number),
                       survey->message_counts[number]);
        }
    }
}

static void
print_line(const char *path, const log_survey_t *survey)
{
    char begin[40];
    log_print_date(survey->header.realtime_ns + survey->first_time_ns - survey->header.time_ns,
                   begin);
    uint64_t inputs = survey->kind_counts[PROTO_LOG_IN] + survey->kind_counts[PROTO_LOG_TIMER];
    printf("%-44s %-10s %s %9.3f s %8" PRIu64 " records %8" PRIu64 " in %8" PRIu64 " out %4" PRIu64
           " gap%s %4" PRIu64 " snapshot%s  %s",
           path, survey->header.name, begin,
           (double)(survey->last_time_ns - survey->first_time_ns) / 1e9, survey->record_count,
           inputs, survey->kind_counts[PROTO_LOG_OUT], survey->gap_count,
           survey->gap_count == 1 ? " " : "s", survey->kind_counts[PROTO_LOG_SNAPSHOT],
           survey->kind_counts[PROTO_LOG_SNAPSHOT] == 1 ? " " : "s",
           survey->status == STATUS_END     ? "whole"
           : survey->status == STATUS_AGAIN ? "torn at the end"
                                            : "DAMAGED");
    if (survey->status != STATUS_END) {
        printf(" (byte %" PRIu64 " of %" PRIu64 ")", survey->damage_offset, survey->size_bytes);
    }
    if (survey->missing_count > 0) {
        printf(", %" PRIu64 " record%s missing", survey->missing_count,
               cli_plural(survey->missing_count));
    }
    if (survey->redacted_count > 0) {
        printf(", redacted");
    }
    printf("\n    ");
    print_kinds(survey, false);
    printf("\n");
}

static void
print_json(const char *path, const log_survey_t *survey)
{
    printf("{\"path\":\"");
    for (const char *at = path; *at != '\0'; at++) {
        if ((unsigned char)*at >= 0x20 && *at != '"' && *at != '\\') {
            putchar(*at);
        } else {
            printf("\\u%04x", (unsigned)(unsigned char)*at);
        }
    }
    printf("\",\"actor\":\"%s\",\"role\":\"%s\",\"epoch\":%" PRIu64 ",\"segment\":%" PRIu32
           ",\"first_seq\":%" PRIu64 ",\"last_seq\":%" PRIu64 ",\"first_ns\":%" PRIu64
           ",\"last_ns\":%" PRIu64 ",\"records\":%" PRIu64 ",\"gaps\":%" PRIu64
           ",\"missing\":%" PRIu64 ",\"redacted\":%" PRIu64
           ",\"state\":\"%s\",\"valid_bytes\":%" PRIu64 ",\"size_bytes\":%" PRIu64 ",\"kinds\":{",
           survey->header.name, proto_role_name(survey->header.role), survey->header.epoch,
           survey->header.segment_index, survey->first_sequence, survey->last_sequence,
           survey->first_time_ns, survey->last_time_ns, survey->record_count, survey->gap_count,
           survey->missing_count, survey->redacted_count, state_of(survey), survey->damage_offset,
           survey->size_bytes);
    print_kinds(survey, true);
    printf("}}\n");
}

static proto_status_t
list_stream(const log_set_t *set, uint32_t stream, bool json, int *exit_code)
{
    uint32_t count = log_set_stream(set, stream).segment_count;
    for (uint32_t i = 0; i < count; i++) {
        const char *path = log_set_segment_path(set, stream, i);
        static log_survey_t survey;
        proto_error_t error = {{0}};
        proto_status_t status = log_survey_segment(path, &survey, &error);
        if (status != STATUS_OK) {
            fprintf(stderr, "onepath log ls: %s: %s\n", path, error.detail);
            *exit_code = CLI_EXIT_FOUND;
            continue;
        }
        if (json) {
            print_json(path, &survey);
        } else {
            print_line(path, &survey);
        }
        if (survey.status == STATUS_ERR_NO_MEMORY) {
            return survey.status;
        }
        if (survey.status != STATUS_END) {
            *exit_code = CLI_EXIT_FOUND;
        }
    }
    return STATUS_OK;
}

int
cli_log_ls(int argc, char **argv)
{
    ls_options_t options = {0};
    cli_words_t words;
    int exit_code;
    if (!cli_log_parse(&ls_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    log_set_options_t chosen = {.actor = options.actor};
    log_set_t *set = cli_log_open("ls", &words, 0, words.count, &chosen, &exit_code);
    if (set == NULL) {
        return exit_code;
    }
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; i < log_set_stream_count(set) && status == STATUS_OK; i++) {
        status = list_stream(set, i, options.json, &exit_code);
    }
    if (status != STATUS_OK) {
        exit_code = cli_log_fail("ls", status, NULL);
    } else if (cli_log_report_damage("ls", set) != CLI_EXIT_OK) {
        exit_code = CLI_EXIT_FOUND;
    }
    log_set_close(&set);
    return exit_code;
}
