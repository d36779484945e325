/* `onepath log replay`: one actor's core alone, fed from its log. */
#include "cli_log_replay.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const cli_option_t replay_cli_options[] = {
    {"actor", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, actor), 0, 0, "NAME",
     "which actor of a folder: its name, or scheduler, gateway, executor, drafter", false},
    {"epoch", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, epoch), 0, 0, "HEX",
     "which incarnation of it, as in the file's name (the only one)", false},
    {"exec", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, program), 0, 0, "COMMAND",
     "a program as the core, such as 'python3 my_scheduler.py' (this build's core)", false},
    {"answer-timeout", CLI_OPTION_U32, offsetof(cli_replay_options_t, answer_timeout_s), 1, 86400,
     "SECONDS", "the core must answer an input within (30)", false},
    {"from", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, from), 0, 0, "SEQ",
     "begin with the last snapshot at or before this record (the first one)", false},
    {"until", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, until), 0, 0, "SEQ",
     "stop before the first input behind this record, from 1 (the end)", false},
    {"break", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, break_kind), 0, 0, "KIND",
     "stop before the first input of this kind, such as PLAN_REFUSED", false},
    {"speed", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, speed), 0, 0, "SPEED",
     "max, or 1x: as it was (max)", false},
    {"dump", CLI_OPTION_FLAG, offsetof(cli_replay_options_t, dump), 0, 0, NULL,
     "figures of the core's state where it stopped", false},
    {"digests", CLI_OPTION_FLAG, offsetof(cli_replay_options_t, digests), 0, 0, NULL,
     "print 'INPUT RECORD DIGEST' after each input, for diff and bisect --good", false},
    {"device", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, device), 0, 0, "MODEL",
     "executor: carry its steps out with this model too, and compare tokens", false},
    {"kernels", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, kernels), 0, 0, "NAME",
     "instruction set of that device: auto, avx512, avx2, portable (auto)", false},
    {"tolerance", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, tolerance), 0, 0, "X",
     "of log-probabilities from that device: |a - b| <= X * max(1, |a|, |b|) (0)", false},
    {"json", CLI_OPTION_FLAG, offsetof(cli_replay_options_t, json), 0, 0, NULL,
     "the report as one JSON object", false},
};

static const cli_command_t replay_command = {
    .name = "log replay",
    .usage = "log replay PATH... [OPTIONS]",
    .text = "Feeds the inputs that an actor recorded to its core alone, and compares each step's\n"
            "messages with the recorded ones (to whom, kind, request, every field), the digests "
            "of\n"
            "the state, snapshots, and when the core wanted its timer. Says where the first "
            "difference\n"
            "is, and the command that stops just before it. PATH: the segments of one actor, or a\n"
            "folder with --actor; a crash record is a segment like any other.\n\n"
            "Exit codes: 0 nothing differs; 1 diverged; 2 the core died (or did not answer, or "
            "broke\n"
            "the contract); 78 wrong usage, or a log that cannot be replayed.",
    .examples = "  onepath log replay ./log --actor scheduler\n"
                "  onepath log replay /tmp/onepath-crash-0/executor.000001a22b448298.000000.alog\n"
                "  onepath log replay ./log --actor scheduler --exec 'python3 my_scheduler.py'\n"
                "  onepath log replay ./log --actor executor --device model.gguf\n"
                "  onepath log replay ./log --actor scheduler --until 1249 --dump",
    .options = replay_cli_options,
    .option_count = sizeof replay_cli_options / sizeof replay_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static proto_status_t
fill_break(const cli_replay_options_t *options, actor_replay_options_t *out)
{
    if (options->break_kind == NULL) {
        return STATUS_OK;
    }
    const char *name = options->break_kind;
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(messages[i].name, name) == 0) {
            out->break_kind = messages[i].kind;
            return STATUS_OK;
        }
    }
    fprintf(stderr,
            "onepath log replay: --break is '%s', which is no message; the names are in "
            "docs/protocol.md, such as PLAN_REFUSED\n",
            name);
    return STATUS_ERR_CONFIG;
}

static proto_status_t
fill(const cli_replay_options_t *options, const cli_words_t *words, actor_replay_options_t *out)
{
    proto_status_t status = cli_replay_fill("replay", options, words, out);
    if (status == STATUS_OK) {
        status = fill_break(options, out);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (options->speed != NULL && strcmp(options->speed, "max") != 0 &&
        strcmp(options->speed, "1x") != 0) {
        fprintf(stderr, "onepath log replay: --speed is '%s'; it takes max or 1x\n",
                options->speed);
        return STATUS_ERR_CONFIG;
    }
    out->realtime = options->speed != NULL && strcmp(options->speed, "1x") == 0;
    out->dump = options->dump;
    out->digests_path = options->digests ? "/dev/stdout" : NULL;
    return STATUS_OK;
}

/* What was compared, and how fast. */
static void
print_account(const actor_replay_report_t *report)
{
    printf("%s %016" PRIx64 "%s%s\n", report->actor, report->epoch,
           report->build[0] != '\0' ? ", recorded by " : "", report->build);
    if (report->input_count == 0) {
        printf("no input was replayed\n");
        return;
    }
    printf("replayed %" PRIu64 " input%s (%" PRIu64 " to %" PRIu64 ", records %" PRIu64
           " to %" PRIu64 "); compared %" PRIu64 " message%s, %" PRIu64 " digest%s, %" PRIu64
           " snapshot%s, %" PRIu64 " timer%s",
           report->input_count, cli_plural(report->input_count), report->begin_input + 1,
           report->input.number, report->begin_sequence, report->input.sequence,
           report->output_count, cli_plural(report->output_count), report->digest_count,
           cli_plural(report->digest_count), report->snapshot_count,
           cli_plural(report->snapshot_count), report->timer_count,
           cli_plural(report->timer_count));
    if (report->device_step_count > 0) {
        printf(", %" PRIu64 " step%s of the device", report->device_step_count,
               cli_plural(report->device_step_count));
    }
    double log_s = (double)(report->last_ns - report->first_ns) / 1e9;
    double wall_s = (double)report->wall_ns / 1e9;
    printf("\n%.3f s of log in %.3f s", log_s, wall_s);
    if (wall_s > 0) {
        printf(" (%.0f times as fast)", log_s / wall_s);
    }
    printf("\n");
}

static void
print_text(const actor_replay_options_t *options, const actor_replay_report_t *report)
{
    print_account(report);
    if (report->outcome == ACTOR_REPLAY_SAME) {
        printf("%s\n", report->gap_count > 0 ? "nothing differs in what could be replayed"
                                             : "nothing differs");
        if (report->end == ACTOR_REPLAY_END_UNTIL || report->end == ACTOR_REPLAY_END_BREAK) {
            printf("stopped before input %" PRIu64 ":\n", report->stop.number);
            cli_replay_print_input(options, report->stop.sequence);
        }
        if (report->tail_count > 0) {
            printf("the log ends with input %" PRIu64 " (record %" PRIu64 "): %" PRIu32
                   " of its messages were not written any more\n",
                   report->input.number, report->input.sequence, report->tail_count);
        }
    } else {
        cli_replay_print_finding(options, report);
    }
    if (report->figures[0] != '\0') {
        printf("the state there:\n");
        for (const char *line = report->figures; *line != '\0';) {
            size_t length = strcspn(line, "\n");
            printf("  %.*s\n", (int)length, line);
            line += length + (line[length] == '\n' ? 1 : 0);
        }
    }
}

int
cli_log_replay(int argc, char **argv)
{
    static cli_replay_options_t options;
    static actor_replay_report_t report;
    actor_replay_options_t replay = {.progress = cli_replay_progress};
    cli_words_t words;
    proto_status_t status =
        cli_options_parse(&replay_command, argc, argv, CLI_LOG_FIRST_WORD, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    if (fill(&options, &words, &replay) != STATUS_OK) {
        return CLI_EXIT_CONFIG;
    }
    status = actor_replay_run(&replay, &report);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath log replay: no process for it: %s\n", proto_status_text(status));
        return CLI_EXIT_TEMPORARY;
    }
    cli_replay_print_gaps("replay", &report);
    if (options.json) {
        cli_replay_print_json(&replay, &report);
    } else if (report.outcome == ACTOR_REPLAY_REFUSED) {
        fprintf(stderr, "onepath log replay: %s\n", report.detail);
    } else if (options.digests) {
        if (report.outcome != ACTOR_REPLAY_SAME) {
            fprintf(stderr, "onepath log replay: stopped at input %" PRIu64 ": %s\n",
                    report.input.number,
                    report.outcome == ACTOR_REPLAY_DIED
                        ? report.detail
                        : actor_replay_find_text(report.finding.what));
        }
    } else {
        print_text(&replay, &report);
    }
    return cli_replay_exit_code(report.outcome);
}
