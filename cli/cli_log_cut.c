/* `onepath log slice`, `cut` and `redact`: logs made out of logs. */
#include <inttypes.h>
#include <string.h>

#include "cli_log.h"
#include "log_cut.h"
#include "log_slice.h"

typedef struct {
    const char *type, *from, *to, *actor, *request;
} cut_options_t;

#define OPTION_ACTOR                                                                               \
    {                                                                                              \
        "actor", CLI_OPTION_TEXT, offsetof(cut_options_t, actor), 0, 0, "NAME",                    \
            "only this actor, by name or role", false                                              \
    }

static const cli_option_t cut_cli_options[] = {
    {"from", CLI_OPTION_TEXT, offsetof(cut_options_t, from), 0, 0, "PLACE",
     "begin there: 1234 (sequence), 6369.64 (seconds) or a date in UTC", false},
    {"to", CLI_OPTION_TEXT, offsetof(cut_options_t, to), 0, 0, "PLACE", "end there, included",
     false},
    {"type", CLI_OPTION_TEXT, offsetof(cut_options_t, type), 0, 0, "NAME",
     "only messages or records of this name", false},
    {"request", CLI_OPTION_TEXT, offsetof(cut_options_t, request), 0, 0, "ID",
     "only messages that name this request", false},
    OPTION_ACTOR,
};

static const cli_command_t cut_command = {
    .name = "log cut",
    .usage = "log cut PATH... OUT [OPTIONS]",
    .text =
        "Copies what the options let through into a log of its own; without options, several logs\n"
        "into one: what several of them hold is copied once. OUT is a folder, or a name in\n"
        "*.alog for one actor. Definitions of channels, settings and clocks come "
        "along.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log cut ./log ./minute --from 6369.0 --to 6429.0\n"
                "  onepath log cut ./host1 ./host2 ./both",
    .options = cut_cli_options,
    .option_count = sizeof cut_cli_options / sizeof cut_cli_options[0],
    .word_count_min = 2,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static const cli_option_t slice_cli_options[] = {
    {"request", CLI_OPTION_TEXT, offsetof(cut_options_t, request), 0, 0, "ID",
     "the request; `onepath log stats --requests` lists them", false},
    OPTION_ACTOR,
};

static const cli_command_t slice_command = {
    .name = "log slice",
    .usage = "log slice PATH... OUT --request ID",
    .text = "Copies everything that concerns one request into a log of its own: messages that name "
            "it,\n"
            "the plans, launches and results of steps that its slot was in, what the HTTP side "
            "said of its\n"
            "exchange, and for each message that was sent the input that caused it. Sequence "
            "numbers stay\n"
            "those of the log; snapshots and digests are left out. OUT is a folder, or a name in "
            "*.alog\n"
            "for one actor. Prints what was kept.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log slice ./log ./one --request 7\n"
                "  onepath log show ./one",
    .options = slice_cli_options,
    .option_count = sizeof slice_cli_options / sizeof slice_cli_options[0],
    .word_count_min = 2,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static const cli_option_t redact_cli_options[] = {OPTION_ACTOR};

static const cli_command_t redact_command = {
    .name = "log redact",
    .usage = "log redact PATH... OUT",
    .text =
        "Copies a log without what people wrote and the model answered: tokens, sampling, log\n"
        "probabilities and salts become zeros of the same size, and so does the private part of\n"
        "snapshots. Lengths and page hashes stay, so the scheduler's log still replays exactly.\n"
        "What cannot be judged (it does not decode, or is of a newer version) is left out.\n"
        "OUT is a folder, or a name in *.alog for one actor.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log redact ./log ./for-the-bug-report",
    .options = redact_cli_options,
    .option_count = sizeof redact_cli_options / sizeof redact_cli_options[0],
    .word_count_min = 2,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

/* What the commands have in common: a set in, a log out. */
typedef struct {
    const char *name;
    log_set_t *set;
    log_out_t *out;
    int exit_code;
} job_t;

static bool
open_job(job_t *job, const char *name, const cli_words_t *words, const char *actor)
{
    job->name = name;
    log_set_options_t chosen = {.actor = actor};
    job->set = cli_log_open(name, words, 0, words->count - 1, &chosen, &job->exit_code);
    if (job->set == NULL) {
        return false;
    }
    proto_error_t error = {{0}};
    proto_status_t status = log_out_open(words->words[words->count - 1], &job->out, &error);
    if (status != STATUS_OK) {
        job->exit_code = cli_log_fail(name, status, error.detail);
        log_set_close(&job->set);
        return false;
    }
    return true;
}

/* Gives the files their names if all went well. */
static int
close_job(job_t *job, proto_status_t status)
{
    if (status == STATUS_OK) {
        status = log_out_commit(job->out);
    }
    job->exit_code = status == STATUS_OK ? cli_log_report_damage(job->name, job->set)
                                         : cli_log_fail(job->name, status, log_out_error(job->out));
    log_out_close(&job->out);
    log_set_close(&job->set);
    return job->exit_code;
}

int
cli_log_cut(int argc, char **argv)
{
    cut_options_t options = {0};
    cli_words_t words;
    job_t job = {0};
    if (!cli_log_parse(&cut_command, argc, argv, &options, &words, &job.exit_code)) {
        return job.exit_code;
    }
    log_filter_t filter = {0};
    if (!cli_log_parse_filter("cut", options.type, options.from, options.to, options.request,
                              &filter)) {
        return CLI_EXIT_CONFIG;
    }
    if (!open_job(&job, "cut", &words, options.actor)) {
        return job.exit_code;
    }
    log_cut_options_t what = {.filter = &filter};
    log_cut_counts_t counts;
    proto_status_t status = log_cut(job.set, &what, job.out, &counts);
    if (status == STATUS_OK) {
        printf("kept %" PRIu64 " of %" PRIu64 " record%s\n", counts.kept, counts.read,
               cli_plural(counts.read));
    }
    return close_job(&job, status);
}

int
cli_log_redact(int argc, char **argv)
{
    cut_options_t options = {0};
    cli_words_t words;
    job_t job = {0};
    if (!cli_log_parse(&redact_command, argc, argv, &options, &words, &job.exit_code) ||
        !open_job(&job, "redact", &words, options.actor)) {
        return job.exit_code;
    }
    log_cut_options_t what = {.redact = true};
    log_cut_counts_t counts;
    proto_status_t status = log_cut(job.set, &what, job.out, &counts);
    if (status == STATUS_OK) {
        printf("%" PRIu64 " record%s, %" PRIu64 " of them with private content, now zeros\n",
               counts.kept, cli_plural(counts.kept), counts.redacted);
    }
    return close_job(&job, status);
}

static void
print_slice(const log_slice_counts_t *counts)
{
    printf("kept %" PRIu64 " of %" PRIu64 " records: %" PRIu64 " name the request, %" PRIu64
           " are of steps that its slot was in, %" PRIu64 " of its exchange, %" PRIu64
           " caused these, %" PRIu64 " give them meaning\n",
           counts->named + counts->steps + counts->exchange + counts->causes + counts->frames,
           counts->read, counts->named, counts->steps, counts->exchange, counts->causes,
           counts->frames);
    for (uint32_t i = 0; i < sizeof counts->message_counts / sizeof counts->message_counts[0];
         i++) {
        if (counts->message_counts[i] > 0) {
            printf("  %-14s %8" PRIu64 "\n", proto_kind_name((proto_kind_t)i),
                   counts->message_counts[i]);
        }
    }
}

int
cli_log_slice(int argc, char **argv)
{
    cut_options_t options = {0};
    cli_words_t words;
    job_t job = {0};
    if (!cli_log_parse(&slice_command, argc, argv, &options, &words, &job.exit_code)) {
        return job.exit_code;
    }
    uint64_t request = 0;
    if (options.request == NULL) {
        fprintf(stderr, "onepath log slice: say which request, with --request ID\n");
        return CLI_EXIT_CONFIG;
    }
    if (!cli_log_parse_request("slice", options.request, &request)) {
        return CLI_EXIT_CONFIG;
    }
    if (!open_job(&job, "slice", &words, options.actor)) {
        return job.exit_code;
    }
    static log_slice_counts_t counts;
    proto_status_t status = log_slice(job.set, request, job.out, &counts);
    if (status == STATUS_OK) {
        print_slice(&counts);
    }
    if (status != STATUS_ERR_NOT_FOUND) {
        return close_job(&job, status);
    }
    char why[80];
    (void)snprintf(why, sizeof why, "no message names request %" PRIu64, request);
    job.exit_code = cli_log_fail("slice", status, why);
    log_out_close(&job.out);
    log_set_close(&job.set);
    return job.exit_code;
}
