/* `onepath log verify`, `recover` and `reindex`: the bytes of segments. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "cli_log.h"
#include "proto_log_recover.h"

typedef struct {
    const char *actor;
    bool in_place;
    bool json;
} repair_options_t;

/* ---- verify ---------------------------------------------------------------------------------- */

static const cli_command_t verify_command = {
    .name = "log verify",
    .usage = "log verify PATH...",
    .text =
        "Reads every byte of every segment: sizes, checks (CRC), order of sequences, and whether "
        "the\n"
        "sidecar fits. Names each damaged place by byte and record; at most 32 of a segment in\n"
        "detail. Gaps (records that were never written) are named, but are no damage.\n\n"
        "Exit codes: 0 whole; 1 something is damaged or torn, or a sidecar is wrong; 70 internal\n"
        "error; 75 no memory; 78 wrong usage, or nothing that can be read.",
    .examples = "  onepath log verify ./log && echo whole",
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static void
print_damages(const char *path, const proto_log_verdict_t *verdict)
{
    uint64_t shown = verdict->damage_count < PROTO_LOG_DAMAGE_COUNT_MAX
                         ? verdict->damage_count
                         : PROTO_LOG_DAMAGE_COUNT_MAX;
    for (uint64_t i = 0; i < shown; i++) {
        const proto_log_damage_t *damage = &verdict->damages[i];
        printf("%s: DAMAGED at byte %" PRIu64 " to %" PRIu64 ": %s; ", path, damage->begin_offset,
               damage->end_offset, damage->why);
        if (damage->next_sequence != 0) {
            printf("%" PRIu64 " record%s lost before record %" PRIu64 "\n", damage->records_lost,
                   damage->records_lost == 1 ? " is" : "s are", damage->next_sequence);
        } else {
            printf("no good record follows\n");
        }
    }
    if (verdict->torn_bytes > 0) {
        printf("%s: torn at byte %" PRIu64 ", after record %" PRIu64 ": the last %" PRIu64
               " bytes are no whole record\n",
               path, verdict->size_bytes - verdict->torn_bytes, verdict->sequence_last,
               verdict->torn_bytes);
    }
}

/* True if the segment is whole. */
static bool
print_verdict(const char *path, const proto_log_verdict_t *verdict)
{
    print_damages(path, verdict);
    bool is_whole = verdict->damage_count == 0 && verdict->torn_bytes == 0;
    printf("%s: %s, %" PRIu64 " good record%s, sequences %" PRIu64 " to %" PRIu64 ", index %s",
           path,
           is_whole                     ? "whole"
           : verdict->damage_count == 0 ? "torn"
                                        : "DAMAGED",
           verdict->records, cli_plural(verdict->records), verdict->sequence_first,
           verdict->sequence_last, proto_log_index_state_name(verdict->index_state));
    if (verdict->gaps > 0) {
        printf(", %" PRIu64 " gap%s with %" PRIu64 " record%s missing", verdict->gaps,
               cli_plural(verdict->gaps), verdict->missing, cli_plural(verdict->missing));
    }
    printf("\n");
    if (verdict->index_state == PROTO_LOG_INDEX_WRONG) {
        fprintf(stderr, "onepath log verify: %s: `onepath log reindex` makes a right sidecar\n",
                path);
    }
    return is_whole && verdict->index_state != PROTO_LOG_INDEX_WRONG;
}

/* What one command does with each segment.  STATUS_OK goes on; *found says that something is
 * wrong. */
typedef proto_status_t segment_fn(void *context, const char *path, bool *found,
                                  proto_error_t *error);

static proto_status_t
verify_segment(void *context, const char *path, bool *found, proto_error_t *error)
{
    (void)context;
    static proto_log_verdict_t verdict;
    proto_status_t status = proto_log_verify(path, &verdict, error);
    if (status == STATUS_OK) {
        *found = !print_verdict(path, &verdict);
    }
    return status;
}

/* Every segment of the set; those whose header is damaged are reported and counted as found. */
static int
each_segment(const char *command, const cli_words_t *words, uint32_t end, segment_fn *segment,
             void *context)
{
    int exit_code = CLI_EXIT_OK;
    log_set_t *set = cli_log_open(command, words, 0, end, NULL, &exit_code);
    if (set == NULL) {
        return exit_code;
    }
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; i < log_set_stream_count(set) && status == STATUS_OK; i++) {
        uint32_t count = log_set_stream(set, i).segment_count;
        for (uint32_t at = 0; at < count && status == STATUS_OK; at++) {
            const char *path = log_set_segment_path(set, i, at);
            proto_error_t error = {{0}};
            bool found = false;
            status = segment(context, path, &found, &error);
            if (status != STATUS_OK) {
                exit_code = cli_log_fail(command, status, error.detail);
            } else if (found) {
                exit_code = CLI_EXIT_FOUND;
            }
        }
    }
    if (exit_code <= CLI_EXIT_FOUND && cli_log_report_damage(command, set) != CLI_EXIT_OK) {
        exit_code = CLI_EXIT_FOUND;
    }
    log_set_close(&set);
    return exit_code;
}

int
cli_log_verify(int argc, char **argv)
{
    cli_words_t words;
    int exit_code;
    repair_options_t options = {0};
    if (!cli_log_parse(&verify_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    return each_segment("verify", &words, words.count, verify_segment, NULL);
}

/* ---- recover --------------------------------------------------------------------------------- */

static const cli_option_t recover_cli_options[] = {
    {"in-place", CLI_OPTION_FLAG, offsetof(repair_options_t, in_place), 0, 0, NULL,
     "repair the files themselves; one with damage inside is kept as PATH.damaged", false},
};

static const cli_command_t recover_command = {
    .name = "log recover",
    .usage = "log recover PATH... OUT | log recover PATH... --in-place",
    .text =
        "Saves what is good: cuts a torn tail off, and writes a DROP record with the number of "
        "lost\n"
        "records in the place of damage. OUT is a folder, or for one segment a name in *.alog.\n"
        "Sidecars are made anew.\n\n"
        "Exit codes: 0 nothing was wrong; 1 something was, and all that is good is saved; 70\n"
        "internal error; 75 no memory, a full disk; 78 wrong usage, or nothing can be saved.",
    .examples = "  onepath log recover ./log ./saved\n"
                "  onepath log recover ./log --in-place",
    .options = recover_cli_options,
    .option_count = sizeof recover_cli_options / sizeof recover_cli_options[0],
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

typedef struct {
    const char *out; /* NULL = in place */
    bool is_file;
} recover_t;

/* OUT itself for a segment, else the source's name within OUT. */
static proto_status_t
output_path(const recover_t *self, const char *path, char *out, size_t capacity,
            proto_error_t *error)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    int length = self->is_file ? snprintf(out, capacity, "%s", self->out)
                               : snprintf(out, capacity, "%s/%s", self->out, name);
    struct stat info;
    if (length < 0 || (size_t)length >= capacity || lstat(out, &info) == 0) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "%.90s exists already; name another place", out);
        return STATUS_ERR_REFUSED;
    }
    return STATUS_OK;
}

static proto_status_t
recover_segment(void *context, const char *path, bool *found, proto_error_t *error)
{
    const recover_t *self = context;
    static proto_log_verdict_t verdict;
    char out[4096];
    if (self->out != NULL) {
        proto_status_t status = output_path(self, path, out, sizeof out, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    proto_status_t status =
        proto_log_recover(path, self->out != NULL ? out : NULL, &verdict, error);
    if (status != STATUS_OK) {
        return status;
    }
    *found = verdict.damage_count > 0 || verdict.torn_bytes > 0;
    printf("%s: %" PRIu64 " record%s saved", path, verdict.records, cli_plural(verdict.records));
    if (verdict.damage_count > 0) {
        printf(", %" PRIu64 " damaged place%s with %" PRIu64 " byte%s passed over",
               verdict.damage_count, cli_plural(verdict.damage_count), verdict.damage_bytes,
               cli_plural(verdict.damage_bytes));
    }
    if (verdict.torn_bytes > 0) {
        printf(", a torn tail of %" PRIu64 " byte%s cut off", verdict.torn_bytes,
               cli_plural(verdict.torn_bytes));
    }
    printf("%s%s\n", self->out != NULL ? " to " : "", self->out != NULL ? out : "");
    return STATUS_OK;
}

int
cli_log_recover(int argc, char **argv)
{
    cli_words_t words;
    int exit_code;
    repair_options_t options = {0};
    if (!cli_log_parse(&recover_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    recover_t recover = {0};
    if (options.in_place) {
        return each_segment("recover", &words, words.count, recover_segment, &recover);
    }
    if (words.count < 2) {
        fprintf(stderr, "onepath log recover: name where to write (OUT), or say --in-place\n");
        return CLI_EXIT_CONFIG;
    }
    recover.out = words.words[words.count - 1];
    size_t length = strlen(recover.out);
    recover.is_file = length > 5 && strcmp(recover.out + length - 5, ".alog") == 0;
    if (!recover.is_file && mkdir(recover.out, 0700) != 0 && errno != EEXIST) {
        fprintf(stderr, "onepath log recover: %s: cannot be made: %s\n", recover.out,
                strerror(errno));
        return CLI_EXIT_CONFIG;
    }
    return each_segment("recover", &words, words.count - 1, recover_segment, &recover);
}

/* ---- reindex --------------------------------------------------------------------------------- */

static const cli_command_t reindex_command = {
    .name = "log reindex",
    .usage = "log reindex PATH...",
    .text =
        "Makes the sidecar (*.aidx) of each segment anew. It holds nothing that the segment does\n"
        "not: it only makes finding a place faster.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log reindex ./log",
    .word_count_min = 1,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

static proto_status_t
reindex_segment(void *context, const char *path, bool *found, proto_error_t *error)
{
    (void)context;
    *found = false;
    char index_path[4096];
    if (proto_log_index_path(path, index_path, sizeof index_path) != STATUS_OK) {
        fprintf(stderr, "onepath log reindex: %s: has no sidecar: its name does not end in .alog\n",
                path);
        return STATUS_OK;
    }
    proto_status_t status = proto_log_index_rebuild(path, error);
    if (status == STATUS_OK) {
        printf("%s\n", index_path);
    }
    return status;
}

int
cli_log_reindex(int argc, char **argv)
{
    cli_words_t words;
    int exit_code;
    repair_options_t options = {0};
    if (!cli_log_parse(&reindex_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    return each_segment("reindex", &words, words.count, reindex_segment, NULL);
}
