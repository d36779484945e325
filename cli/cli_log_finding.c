/* What replay and bisect found, in words, as JSON, and as the command to look closer. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_log_replay.h"
#include "proto_clock.h"

enum { MESSAGE_SIZE_BYTES = 4096 };

/* ---- options --------------------------------------------------------------------------------- */

proto_status_t
cli_replay_number(const char *command, const char *name, const char *text, uint64_t *out)
{
    if (text == NULL) {
        return STATUS_OK;
    }
    errno = 0;
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 0);
    if (errno != 0 || !isdigit((unsigned char)text[0]) || *end != '\0') {
        fprintf(stderr, "onepath log %s: --%s is '%s'; it takes a number\n", command, name, text);
        return STATUS_ERR_CONFIG;
    }
    *out = value;
    return STATUS_OK;
}

static proto_status_t
fill_epoch(const char *command, const char *text, uint64_t *out)
{
    if (text == NULL) {
        return STATUS_OK;
    }
    errno = 0;
    char *end = NULL;
    *out = strtoull(text, &end, 16);
    if (errno != 0 || !isxdigit((unsigned char)text[0]) || *end != '\0') {
        fprintf(stderr,
                "onepath log %s: --epoch is '%s'; it takes the hexadecimal number of the file's "
                "name\n",
                command, text);
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

static proto_status_t
fill_tolerance(const char *command, const char *text, double *out)
{
    if (text == NULL) {
        return STATUS_OK;
    }
    char *end = NULL;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !(*out >= 0 && *out <= 1)) {
        fprintf(stderr, "onepath log %s: --tolerance is '%s'; it takes a number from 0 to 1\n",
                command, text);
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

/* A role that exists on paper only is told from a typing error. */
static proto_status_t
check_actor(const char *command, const char *actor)
{
    static const char *const later[] = {"role", "prefill-role", "decode-role"};
    for (size_t i = 0; actor != NULL && i < sizeof later / sizeof later[0]; i++) {
        if (strcmp(actor, later[i]) == 0) {
            fprintf(stderr,
                    "onepath log %s: --actor is '%s': this build has no core of that role yet; it "
                    "has: %s\n",
                    command, actor, actor_replay_role_names());
            return STATUS_ERR_CONFIG;
        }
    }
    return STATUS_OK;
}

proto_status_t
cli_replay_fill(const char *command, const cli_replay_options_t *options, const cli_words_t *words,
                actor_replay_options_t *out)
{
    out->paths = words->words;
    out->path_count = words->count;
    out->actor = options->actor;
    out->program = options->program;
    out->device_model = options->device;
    out->device_kernels = options->kernels;
    out->answer_timeout_ns = options->answer_timeout_s * UINT64_C(1000000000);
    proto_status_t status = check_actor(command, options->actor);
    if (status == STATUS_OK) {
        status = fill_epoch(command, options->epoch, &out->epoch);
    }
    if (status == STATUS_OK) {
        status = cli_replay_number(command, "from", options->from, &out->from_sequence);
    }
    if (status == STATUS_OK) {
        status = cli_replay_number(command, "until", options->until, &out->until_sequence);
    }
    if (status == STATUS_OK && options->until != NULL && out->until_sequence == 0) {
        fprintf(stderr,
                "onepath log %s: --until is '%s'; it takes the sequence number of a record, from 1 "
                "(leave it out to replay everything)\n",
                command, options->until);
        status = STATUS_ERR_CONFIG;
    }
    if (status == STATUS_OK) {
        status = fill_tolerance(command, options->tolerance, &out->tolerance);
    }
    if (status == STATUS_OK && options->program != NULL && options->device != NULL) {
        fprintf(stderr, "onepath log %s: --device belongs to this build's core, not to --exec\n",
                command);
        status = STATUS_ERR_CONFIG;
    }
    return status;
}

/* ---- words ----------------------------------------------------------------------------------- */

int
cli_replay_exit_code(actor_replay_outcome_t outcome)
{
    switch (outcome) {
    case ACTOR_REPLAY_SAME:
        return CLI_EXIT_OK;
    case ACTOR_REPLAY_DIVERGED:
        return CLI_EXIT_FOUND;
    case ACTOR_REPLAY_DIED:
        return CLI_EXIT_DIED;
    case ACTOR_REPLAY_REFUSED:
        return CLI_EXIT_CONFIG;
    }
    return CLI_EXIT_INTERNAL;
}

void
cli_replay_print_input(const actor_replay_options_t *options, uint64_t sequence)
{
    static char text[MESSAGE_SIZE_BYTES];
    if (actor_replay_describe(options, sequence, text, sizeof text) == STATUS_OK) {
        printf("  %s\n", text);
    }
}

/* The same log and core again, up to just before an input. */
static void
print_command(const actor_replay_options_t *options, const actor_replay_report_t *report)
{
    printf("stop just before it:\n  onepath log replay");
    for (uint32_t i = 0; i < options->path_count; i++) {
        printf(" ");
        cli_print_quoted(stdout, options->paths[i]);
    }
    if (options->actor != NULL) {
        printf(" --actor %s", options->actor);
    }
    if (options->epoch != 0) {
        printf(" --epoch %" PRIx64, options->epoch);
    }
    if (options->program != NULL) {
        printf(" --exec ");
        cli_print_quoted(stdout, options->program);
    } else if (report->begin_sequence != 0 && options->from_sequence != 0) {
        printf(" --from %" PRIu64, report->begin_sequence);
    }
    if (options->device_model != NULL) {
        printf(" --device ");
        cli_print_quoted(stdout, options->device_model);
        printf("%s%s", options->device_kernels != NULL ? " --kernels " : "",
               options->device_kernels != NULL ? options->device_kernels : "");
    }
    if (options->tolerance > 0) {
        printf(" --tolerance %g", options->tolerance);
    }
    if (report->input.sequence > 1) { /* before the first record there is nothing to stop at */
        printf(" --until %" PRIu64, report->input.sequence - 1);
    }
    printf(" --dump\n");
}

static void
print_died(const actor_replay_report_t *report)
{
    printf("DIED: %s\n", report->detail);
    if (report->words[0] != '\0') {
        printf("its last words:\n");
        for (const char *line = report->words; *line != '\0';) {
            size_t length = strcspn(line, "\n");
            printf("  %.*s\n", (int)length, line);
            line += length + (line[length] == '\n' ? 1 : 0);
        }
    }
}

static void
print_diverged(const actor_replay_report_t *report)
{
    const actor_replay_finding_t *finding = &report->finding;
    if (report->input.sequence != 0) {
        printf("DIVERGED at input %" PRIu64 " (record %" PRIu64 ", %s): %s\n", report->input.number,
               report->input.sequence, proto_kind_name(report->input.kind),
               actor_replay_find_text(finding->what));
    } else {
        printf("DIVERGED before the first input: %s\n", actor_replay_find_text(finding->what));
    }
    if (finding->kind != PROTO_KIND_NONE) {
        printf("  message:  %s to peer %" PRIu32 ", number %" PRIu32 " of this step",
               proto_kind_name(finding->kind), finding->to, finding->output_index + 1);
    } else {
        printf("  compared:");
    }
    if (finding->sequence != 0) {
        printf("%s record %" PRIu64, finding->kind != PROTO_KIND_NONE ? "," : " ",
               finding->sequence);
    }
    printf("\n  field:    %s\n  recorded: %s\n  replayed: %s\n", finding->path, finding->recorded,
           finding->replayed);
    if (finding->more_count > 0) {
        printf("  and %" PRIu32 " further fields of it\n", finding->more_count);
    }
}

void
cli_replay_print_finding(const actor_replay_options_t *options, const actor_replay_report_t *report)
{
    if (report->outcome == ACTOR_REPLAY_DIED) {
        print_died(report);
    } else {
        print_diverged(report);
    }
    if (report->input.sequence != 0) {
        printf("the input:\n");
        cli_replay_print_input(options, report->input.sequence);
    }
    if (report->digest_sequence != 0) {
        printf("last digest that agreed: %016" PRIx64 " at record %" PRIu64 ", after input %" PRIu64
               "\n",
               report->digest, report->digest_sequence, report->digest_input);
    }
    if (report->input.sequence != 0) {
        print_command(options, report);
    }
}

void
cli_replay_print_gaps(const char *command, const actor_replay_report_t *report)
{
    uint32_t told = report->gap_count < ACTOR_REPLAY_GAP_COUNT_MAX ? report->gap_count
                                                                   : ACTOR_REPLAY_GAP_COUNT_MAX;
    for (uint32_t i = 0; i < told; i++) {
        const actor_replay_gap_t *gap = &report->gaps[i];
        fprintf(stderr, "onepath log %s: after record %" PRIu64 ": %s", command,
                gap->after_sequence, gap->why);
        if (gap->missing > 0) {
            fprintf(stderr, " (%" PRIu64 ")", gap->missing);
        }
        if (gap->resume_sequence != 0) {
            fprintf(stderr, "; went on from the snapshot at record %" PRIu64 "\n",
                    gap->resume_sequence);
        } else {
            fprintf(stderr, "; no snapshot follows to go on from\n");
        }
    }
    if (report->gap_count > told) {
        fprintf(stderr, "onepath log %s: and %" PRIu32 " further gap%s\n", command,
                report->gap_count - told, cli_plural(report->gap_count - told));
    }
    if (report->outcome == ACTOR_REPLAY_SAME &&
        (report->end == ACTOR_REPLAY_END_TORN || report->end == ACTOR_REPLAY_END_DAMAGE)) {
        fprintf(stderr, "onepath log %s: %s; what is before it was replayed\n", command,
                report->detail);
    }
    if (report->is_other_schema) {
        fprintf(stderr,
                "onepath log %s: recorded by a build with other message tables; a difference may "
                "be a field that one side does not have\n",
                command);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *
number(uint64_t value)
{
    /* Exact up to 2^63, as everybody's parsers are. */
    return json_integer((json_int_t)(value & INT64_MAX));
}

static json_t *
hex(uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static json_t *
text_or_replacement(const char *text)
{
    json_t *value = json_string(text);
    return value != NULL ? value : json_string("(not UTF-8)");
}

static json_t *
input_json(const actor_replay_input_t *input)
{
    return json_pack("{s:o, s:o, s:o, s:s, s:i, s:o}", "number", number(input->number), "record",
                     number(input->sequence), "t_ns", number(input->time_ns), "kind",
                     proto_kind_name(input->kind), "peer", (int)input->from, "request",
                     number(input->request));
}

static json_t *
finding_json(const actor_replay_options_t *options, const actor_replay_report_t *report)
{
    static char text[MESSAGE_SIZE_BYTES];
    const actor_replay_finding_t *finding = &report->finding;
    if (actor_replay_describe(options, report->input.sequence, text, sizeof text) != STATUS_OK) {
        text[0] = '\0';
    }
    return json_pack("{s:s, s:o, s:s, s:i, s:i, s:o, s:o, s:o, s:i, s:o}", "what",
                     actor_replay_find_text(finding->what), "record", number(finding->sequence),
                     "kind", finding->kind != PROTO_KIND_NONE ? proto_kind_name(finding->kind) : "",
                     "to", (int)finding->to, "output", (int)finding->output_index, "path",
                     text_or_replacement(finding->path), "recorded",
                     text_or_replacement(finding->recorded), "replayed",
                     text_or_replacement(finding->replayed), "more_fields",
                     (int)finding->more_count, "input", text_or_replacement(text));
}

static json_t *
gaps_json(const actor_replay_report_t *report)
{
    json_t *gaps = json_array();
    for (uint32_t i = 0; i < report->gap_count && i < ACTOR_REPLAY_GAP_COUNT_MAX; i++) {
        const actor_replay_gap_t *gap = &report->gaps[i];
        (void)json_array_append_new(gaps, json_pack("{s:o, s:o, s:o, s:s}", "after",
                                                    number(gap->after_sequence), "missing",
                                                    number(gap->missing), "resumed",
                                                    number(gap->resume_sequence), "why", gap->why));
    }
    return gaps;
}

void
cli_replay_print_json(const actor_replay_options_t *options, const actor_replay_report_t *report)
{
    static const char *const outcomes[] = {"same", "diverged", "died", "refused"};
    static const char *const ends[] = {"end", "torn", "damaged", "until", "break", "probe", "gap"};
    json_t *root = json_pack(
        "{s:s, s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o}",
        "outcome", outcomes[report->outcome], "end", ends[report->end], "detail",
        text_or_replacement(report->detail), "actor", report->actor, "epoch", hex(report->epoch),
        "inputs", number(report->input_count), "messages", number(report->output_count), "digests",
        number(report->digest_count), "snapshots", number(report->snapshot_count), "timers",
        number(report->timer_count), "device_steps", number(report->device_step_count),
        "begin_record", number(report->begin_sequence), "last_input", input_json(&report->input),
        "tail_messages", number(report->tail_count), "log_ns",
        number(report->last_ns - report->first_ns), "wall_ns", number(report->wall_ns),
        "last_agreed_digest", hex(report->digest), "last_agreed_record",
        number(report->digest_sequence), "gaps", gaps_json(report));
    if (root == NULL) {
        return;
    }
    if (report->outcome == ACTOR_REPLAY_DIVERGED) {
        (void)json_object_set_new(root, "finding", finding_json(options, report));
    }
    if (report->outcome == ACTOR_REPLAY_DIED) {
        (void)json_object_set_new(root, "last_words", text_or_replacement(report->words));
    }
    if (report->figures[0] != '\0') {
        (void)json_object_set_new(root, "figures", text_or_replacement(report->figures));
    }
    (void)json_dumpf(root, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(root);
}

/* ---- progress -------------------------------------------------------------------------------- */

void
cli_replay_progress(void *context, const actor_replay_report_t *report)
{
    (void)context;
    static uint64_t told_ns;
    bool is_terminal = isatty(STDERR_FILENO) != 0;
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    uint64_t pause_ns = is_terminal ? UINT64_C(200000000) : UINT64_C(10000000000);
    if (told_ns == 0) {
        told_ns = now_ns;
    }
    if (now_ns - told_ns < pause_ns) {
        return;
    }
    told_ns = now_ns;
    fprintf(stderr, "%s%" PRIu64 " record%s, %" PRIu64 " input%s, %.1f s of log%s",
            is_terminal ? "\r" : "onepath log: ", report->beat, cli_plural(report->beat),
            report->input_count, cli_plural(report->input_count),
            (double)(report->last_ns - report->first_ns) / 1e9, is_terminal ? "\033[K\r" : "\n");
}
