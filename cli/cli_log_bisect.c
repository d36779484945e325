/* `onepath log bisect`: which input was the first after which something is wrong. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_replay_bisect.h"
#include "cli_log_replay.h"

static const cli_option_t bisect_cli_options[] = {
    {"actor", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, actor), 0, 0, "NAME",
     "which actor of a folder: its name, or scheduler, gateway, executor, drafter", false},
    {"epoch", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, epoch), 0, 0, "HEX",
     "which incarnation of it, as in the file's name (the only one)", false},
    {"from", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, from), 0, 0, "SEQ",
     "begin with the last snapshot at or before this record (the first one)", false},
    {"good", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, good), 0, 0, "COMMAND",
     "prints the digests of a build that is right: 'old/onepath log replay {log} --digests'",
     false},
    {"cmd", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, command), 0, 0, "COMMAND",
     "a test that fails (exit code not 0) with the first so many inputs: './test {log}'", false},
    {"exec", CLI_OPTION_TEXT, offsetof(cli_replay_options_t, program), 0, 0, "COMMAND",
     "a program as the core: the first input that it answers in another way", false},
    {"answer-timeout", CLI_OPTION_U32, offsetof(cli_replay_options_t, answer_timeout_s), 1, 86400,
     "SECONDS", "the core must answer an input (30), or --cmd end (600), within", false},
};

static const cli_command_t bisect_command = {
    .name = "log bisect",
    .usage = "log bisect PATH... [--good COMMAND | --cmd COMMAND] [OPTIONS]",
    .text = "Finds the first input after which the state of this build's core is not the recorded "
            "one:\n"
            "a binary search over the recorded digests, from one snapshot that is known to be good "
            "to\n"
            "the next, then input by input between two digests, by the messages that came. "
            "Between\n"
            "them only another build knows the digests: --good compares with it and is exact.\n"
            "With --cmd the judge is a command, and {log} in it a file with the first inputs.\n\n"
            "Exit codes: 0 nothing is wrong; 1 found; 2 found, and the core dies there; 78 wrong\n"
            "usage, or a log that cannot be replayed.",
    .examples = "  onepath log bisect ./log --actor scheduler\n"
                "  onepath log bisect ./log --actor scheduler \\\n"
                "      --good '/usr/bin/onepath log replay {log} --actor scheduler --digests'\n"
                "  onepath log bisect s.alog --cmd '! onepath log replay {log} --json | grep -q x'",
    .options = bisect_cli_options,
    .option_count = sizeof bisect_cli_options / sizeof bisect_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static void
print_by_command(const actor_replay_options_t *options, const actor_replay_bisect_t *bisect)
{
    printf("%" PRIu64 " input%s, %" PRIu32 " run%s of the command\n", bisect->input_count,
           cli_plural(bisect->input_count), bisect->probe_count, cli_plural(bisect->probe_count));
    if (bisect->outcome == ACTOR_REPLAY_SAME) {
        printf("the command does not fail with the whole log\n");
        return;
    }
    printf("it fails from input %" PRIu64 " of the log on (record %" PRIu64 "):\n",
           bisect->input.number, bisect->input.sequence);
    cli_replay_print_input(options, bisect->input.sequence);
}

static void
print_by_digest(const actor_replay_options_t *options, const actor_replay_bisect_t *bisect)
{
    printf("the first input after which the state is another one: %" PRIu64 " (record %" PRIu64
           ")\n",
           bisect->input.number, bisect->input.sequence);
    cli_replay_print_input(options, bisect->input.sequence);
    printf("digest after it: %016" PRIx64 " in the good build, %016" PRIx64 " in this one\n",
           bisect->good_digest, bisect->bad_digest);
}

static void
print_interval(const actor_replay_bisect_t *bisect)
{
    printf("%" PRIu64 " input%s, %" PRIu32 " recorded digest%s (%" PRIu32
           " of them snapshots), %" PRIu32 " probe%s\n",
           bisect->input_count, cli_plural(bisect->input_count), bisect->digest_count,
           cli_plural(bisect->digest_count), bisect->snapshot_count, bisect->probe_count,
           cli_plural(bisect->probe_count));
    if (bisect->bad_sequence != 0) {
        printf("the state agrees up to record %" PRIu64 " (input %" PRIu64
               "), and no more at record %" PRIu64 " (input %" PRIu64 ")\n",
               bisect->good_sequence, bisect->good_input, bisect->bad_sequence, bisect->bad_input);
    } else {
        printf("the state agrees with all recorded digests\n");
    }
}

static void
print(const actor_replay_options_t *options, const actor_replay_bisect_t *bisect)
{
    const actor_replay_report_t *last = &bisect->last;
    print_interval(bisect);
    if (bisect->is_by_digest) {
        print_by_digest(options, bisect);
        return;
    }
    if (bisect->outcome == ACTOR_REPLAY_SAME) {
        printf("nothing differs\n");
        return;
    }
    bool is_silent = bisect->outcome == ACTOR_REPLAY_DIVERGED &&
                     (last->finding.what == ACTOR_REPLAY_FIND_DIGEST ||
                      last->finding.what == ACTOR_REPLAY_FIND_STATE);
    if (is_silent) {
        printf("all messages in between agree: it is one of the inputs %" PRIu64 " to %" PRIu64
               "; --good says which\n",
               bisect->good_input + 1, last->input.number);
    } else if (bisect->outcome == ACTOR_REPLAY_DIVERGED) {
        printf("the first input that is answered in another way:\n");
    }
    cli_replay_print_finding(options, last);
    if (bisect->early.outcome == ACTOR_REPLAY_DIVERGED) {
        printf("\nbefore that, with the same digests, a message is another one already:\n");
        cli_replay_print_finding(options, &bisect->early);
    }
}

static proto_status_t
search(const cli_replay_options_t *options, const actor_replay_options_t *replay,
       const char *folder, actor_replay_bisect_t *out)
{
    return options->command != NULL
               ? actor_replay_bisect_command(replay, options->command, folder, out)
               : actor_replay_bisect(replay, options->good, folder, out);
}

/* A program has no snapshots: its first other answer is what there is to find. */
static int
bisect_program(const actor_replay_options_t *replay)
{
    static actor_replay_report_t report;
    if (actor_replay_run(replay, &report) != STATUS_OK) {
        return CLI_EXIT_TEMPORARY;
    }
    cli_replay_print_gaps("bisect", &report);
    if (report.outcome == ACTOR_REPLAY_REFUSED) {
        fprintf(stderr, "onepath log bisect: %s\n", report.detail);
    } else if (report.outcome == ACTOR_REPLAY_SAME) {
        printf("nothing differs in %" PRIu64 " input%s\n", report.input_count,
               cli_plural(report.input_count));
    } else {
        cli_replay_print_finding(replay, &report);
    }
    return cli_replay_exit_code(report.outcome);
}

int
cli_log_bisect(int argc, char **argv)
{
    static cli_replay_options_t options;
    static actor_replay_bisect_t bisect;
    actor_replay_options_t replay = {.progress = cli_replay_progress};
    cli_words_t words;
    proto_status_t status =
        cli_options_parse(&bisect_command, argc, argv, CLI_LOG_FIRST_WORD, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    if (cli_replay_fill("bisect", &options, &words, &replay) != STATUS_OK) {
        return CLI_EXIT_CONFIG;
    }
    if (options.command != NULL && (options.good != NULL || options.program != NULL)) {
        fprintf(stderr, "onepath log bisect: --cmd is a judge of its own; leave out --good and "
                        "--exec\n");
        return CLI_EXIT_CONFIG;
    }
    if (options.program != NULL) {
        return bisect_program(&replay);
    }
    char folder[CLI_LOG_SCRATCH_SIZE_BYTES];
    if (!cli_log_make_scratch("bisect", folder)) {
        return CLI_EXIT_TEMPORARY;
    }
    status = search(&options, &replay, folder, &bisect);
    (void)rmdir(folder);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath log bisect: %s\n", proto_status_text(status));
        return CLI_EXIT_TEMPORARY;
    }
    if (bisect.outcome == ACTOR_REPLAY_REFUSED) {
        fprintf(stderr, "onepath log bisect: %s\n", bisect.detail);
    } else if (options.command != NULL) {
        print_by_command(&replay, &bisect);
    } else {
        print(&replay, &bisect);
    }
    return cli_replay_exit_code(bisect.outcome);
}
