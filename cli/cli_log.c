/* `onepath log`: look at recorded messages.  A log file is hostile input; every view is bounded. */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli_node.h"
#include "proto_log.h"

typedef struct {
    const char *type;   /* message name; NULL = all */
    const char *format; /* "text" or "json" */
    int64_t request;    /* 0 = all */
    uint32_t limit;     /* records to print; 0 = all */
    bool show_private;
} log_options_t;

static const cli_option_t log_cli_options[] = {
    {"type", CLI_OPTION_TEXT, offsetof(log_options_t, type), 0, 0, "NAME",
     "show: only messages of this name, such as PLAN", false},
    {"request", CLI_OPTION_I64, offsetof(log_options_t, request), 0, 0, "ID",
     "show: only messages that name this request", false},
    {"format", CLI_OPTION_TEXT, offsetof(log_options_t, format), 0, 0, "FORM",
     "show: text or json (text)", false},
    {"limit", CLI_OPTION_U32, offsetof(log_options_t, limit), 1, UINT32_MAX, "COUNT",
     "show: stop after so many records", false},
    {"private", CLI_OPTION_FLAG, offsetof(log_options_t, show_private), 0, 0, NULL,
     "show: tokens and sampling too, not only their sizes", false},
};

static const cli_command_t log_command = {
    .name = "log",
    .usage = "log ls|show PATH [OPTIONS]",
    .text = "ls PATH     segments of a folder (or one file): actor, records, time, damage\n"
            "show PATH   the records of a segment, or of a whole folder in order of time within\n"
            "            each actor\n"
            "Exit codes: 0; 1 if a segment is damaged or torn; 78 if nothing can be read.",
    .examples = "  onepath log ls ./log\n"
                "  onepath log show ./log --type PLAN --limit 5\n"
                "  onepath log show ./log/scheduler.*.alog --format json | jq .body",
    .options = log_cli_options,
    .option_count = sizeof log_cli_options / sizeof log_cli_options[0],
    .word_count_min = 2,
    .word_count_max = 8,
};

enum {
    PATH_COUNT_MAX = 4096,
    JSON_SIZE_BYTES = 1 << 20,
    COLUMN_LEN_SHOWN = 16,
    TEXT_LEN_SHOWN = 256
};

typedef struct {
    char *items[PATH_COUNT_MAX];
    uint32_t count;
} paths_t;

static int
by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void
add_path(paths_t *paths, const char *directory, const char *name)
{
    if (paths->count == PATH_COUNT_MAX) {
        return;
    }
    char path[4096];
    int length = directory != NULL ? snprintf(path, sizeof path, "%s/%s", directory, name)
                                   : snprintf(path, sizeof path, "%s", name);
    if (length > 0 && (size_t)length < sizeof path) {
        char *copy = strdup(path);
        if (copy != NULL) {
            paths->items[paths->count++] = copy;
        }
    }
}

static proto_status_t
collect_paths(paths_t *paths, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        fprintf(stderr, "onepath log: %s: no such file or folder\n", path);
        return STATUS_ERR_NOT_FOUND;
    }
    if (!S_ISDIR(info.st_mode)) {
        add_path(paths, NULL, path);
        return STATUS_OK;
    }
    DIR *directory = opendir(path);
    if (directory == NULL) {
        fprintf(stderr, "onepath log: %s: cannot be opened\n", path);
        return STATUS_ERR_IO;
    }
    uint32_t first = paths->count;
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        size_t length = strlen(entry->d_name);
        if (length > 5 && strcmp(entry->d_name + length - 5, ".alog") == 0) {
            add_path(paths, path, entry->d_name);
        }
    }
    closedir(directory);
    qsort(paths->items + first, paths->count - first, sizeof paths->items[0], by_name);
    if (paths->count == first) {
        fprintf(stderr, "onepath log: %s holds no segment (*.alog)\n", path);
        return STATUS_ERR_NOT_FOUND;
    }
    return STATUS_OK;
}

/* ---- ls ----------------------------------------------------------------------------------------
 */

static bool
list_segment(const char *path)
{
    proto_log_reader_t *reader = NULL;
    proto_error_t error = {{0}};
    proto_status_t status = proto_log_reader_open(path, &reader, &error);
    if (status != STATUS_OK) {
        printf("%-44s %s: %s\n", path, proto_status_text(status), error.detail);
        return false;
    }
    const proto_log_header_t *header = proto_log_reader_header(reader);
    uint64_t records = 0, inputs = 0, outputs = 0, gaps = 0, first_ns = 0, last_ns = 0, next = 0;
    proto_log_record_t record;
    while ((status = proto_log_reader_next(reader, &record)) == STATUS_OK) {
        if (records++ == 0) {
            first_ns = record.time_ns;
        } else if (record.sequence != next) {
            gaps++;
        }
        next = record.sequence + 1;
        last_ns = record.time_ns;
        inputs += record.kind == PROTO_LOG_IN || record.kind == PROTO_LOG_TIMER ? 1U : 0U;
        outputs += record.kind == PROTO_LOG_OUT ? 1U : 0U;
    }
    char begin[32] = "-";
    time_t seconds = (time_t)(header->realtime_ns / 1000000000U);
    struct tm parts;
    if (gmtime_r(&seconds, &parts) != NULL) {
        (void)strftime(begin, sizeof begin, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
    const char *state = status == STATUS_END     ? "whole"
                        : status == STATUS_AGAIN ? "torn at the end"
                                                 : "DAMAGED";
    printf("%-44s %-10s %s %9.3f s %8" PRIu64 " records %8" PRIu64 " in %8" PRIu64 " out %4" PRIu64
           " gaps  %s",
           path, header->name, begin, (double)(last_ns - first_ns) / 1e9, records, inputs, outputs,
           gaps, state);
    if (status != STATUS_END) {
        printf(" (byte %" PRIu64 " of %" PRIu64 ")", proto_log_reader_offset(reader),
               proto_log_reader_size(reader));
    }
    printf("\n");
    proto_log_reader_close(&reader);
    return status == STATUS_END;
}

/* ---- show --------------------------------------------------------------------------------------
 */

typedef struct {
    const log_options_t *options;
    const char *actor;
    uint32_t shown;
    char json[JSON_SIZE_BYTES];
    uint8_t *blob; /* aligned copy where the file's bytes are not */
    size_t blob_capacity_bytes;
} show_t;

static proto_bytes_t
aligned_blob(show_t *show, proto_bytes_t blob)
{
    if (blob.size_bytes == 0 || proto_blob_is_aligned(blob)) {
        return blob;
    }
    if (blob.size_bytes > show->blob_capacity_bytes) {
        free(show->blob);
        show->blob_capacity_bytes = 0;
        size_t rounded = (blob.size_bytes + 63) / 64 * 64;
        show->blob = aligned_alloc(64, rounded);
        if (show->blob == NULL) {
            return (proto_bytes_t){NULL, 0};
        }
        show->blob_capacity_bytes = rounded;
    }
    memcpy(show->blob, blob.data, blob.size_bytes);
    return (proto_bytes_t){show->blob, blob.size_bytes};
}

/* Records that hold text, with whatever is not printable made harmless. */
static bool
holds_text(proto_log_kind_t kind)
{
    return kind == PROTO_LOG_CHANNEL_DEF || kind == PROTO_LOG_NOTE || kind == PROTO_LOG_ENV ||
           kind == PROTO_LOG_FAULT;
}

static void
print_text(const proto_log_record_t *record)
{
    for (uint32_t i = 0; i < record->part_count; i++) {
        putchar(' ');
        for (size_t at = 0; at < record->parts[i].size_bytes && at < TEXT_LEN_SHOWN; at++) {
            uint8_t byte = record->parts[i].data[at];
            putchar(byte >= 0x20 && byte < 0x7f ? byte : '.');
        }
    }
}

static void
print_plain(const show_t *show, const proto_log_record_t *record)
{
    if (show->options->type != NULL || show->options->request != 0) {
        return;
    }
    if (strcmp(show->options->format, "json") == 0) {
        printf("{\"actor\":\"%s\",\"seq\":%" PRIu64 ",\"t_ns\":%" PRIu64 ",\"record\":\"%s\"}\n",
               show->actor, record->sequence, record->time_ns, proto_log_kind_name(record->kind));
    } else {
        printf("%-10s %8" PRIu64 " %16.6f  %s", show->actor, record->sequence,
               (double)record->time_ns / 1e9, proto_log_kind_name(record->kind));
        if (holds_text(record->kind)) {
            print_text(record);
        }
        printf("\n");
    }
}

static void
print_message(show_t *show, const proto_log_record_t *record, const proto_header_t *header)
{
    const char *name = proto_kind_name(header->kind);
    const log_options_t *options = show->options;
    if ((options->type != NULL && strcmp(options->type, name) != 0) ||
        (options->request != 0 && header->request != (uint64_t)options->request)) {
        return;
    }
    proto_bytes_t body = record->part_count > 1 ? record->parts[1] : (proto_bytes_t){NULL, 0};
    proto_bytes_t blob = record->part_count > 2 ? record->parts[2] : (proto_bytes_t){NULL, 0};
    proto_body_t decoded;
    proto_error_t error = {{0}};
    proto_status_t status =
        proto_body_decode(header->kind, body, aligned_blob(show, blob), &decoded, &error);
    if (status == STATUS_OK) {
        (void)proto_body_to_json(header->kind, &decoded, options->show_private, COLUMN_LEN_SHOWN,
                                 show->json, sizeof show->json);
    } else {
        (void)snprintf(show->json, sizeof show->json, "{\"undecodable\":\"%s\"}",
                       proto_status_name(status));
    }
    show->shown++;
    const char *direction = record->kind == PROTO_LOG_OUT ? "out" : "in";
    if (strcmp(options->format, "json") == 0) {
        printf("{\"actor\":\"%s\",\"seq\":%" PRIu64 ",\"t_ns\":%" PRIu64
               ",\"dir\":\"%s\",\"peer\":%u,\"kind\":\"%s\",\"epoch\":%" PRIu64
               ",\"link_seq\":%" PRIu64 ",\"request\":%" PRIu64 ",\"cause\":%" PRIu64
               ",\"body\":%s}\n",
               show->actor, record->sequence, record->time_ns, direction, (unsigned)record->channel,
               name, header->epoch, header->sequence, header->request, header->cause, show->json);
    } else {
        printf("%-10s %8" PRIu64 " %16.6f  %-3s peer %-3u %-14s", show->actor, record->sequence,
               (double)record->time_ns / 1e9, direction, (unsigned)record->channel, name);
        if (header->request != 0) {
            printf(" request %" PRIu64, header->request);
        }
        printf(" %s\n", show->json);
    }
}

static bool
show_segment(show_t *show, const char *path)
{
    proto_log_reader_t *reader = NULL;
    proto_error_t error = {{0}};
    proto_status_t status = proto_log_reader_open(path, &reader, &error);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath log: %s: %s: %s\n", path, proto_status_text(status), error.detail);
        return false;
    }
    show->actor = proto_log_reader_header(reader)->name;
    proto_log_record_t record;
    while ((status = proto_log_reader_next(reader, &record)) == STATUS_OK) {
        if (show->options->limit != 0 && show->shown >= show->options->limit) {
            status = STATUS_END;
            break;
        }
        proto_header_t header;
        bool message = record.kind == PROTO_LOG_IN || record.kind == PROTO_LOG_OUT;
        if (message && record.part_count > 0 &&
            proto_header_decode(record.parts[0], &header) == STATUS_OK) {
            print_message(show, &record, &header);
        } else {
            print_plain(show, &record);
        }
    }
    if (status != STATUS_END) {
        fprintf(stderr, "onepath log: %s: %s at byte %" PRIu64 "; what is before it was shown\n",
                path, status == STATUS_AGAIN ? "ends within a record" : "is damaged",
                proto_log_reader_offset(reader));
    }
    proto_log_reader_close(&reader);
    return status == STATUS_END;
}

int
cli_log(int argc, char **argv)
{
    static log_options_t options;
    options.format = "text";
    cli_words_t words;
    proto_status_t status = cli_options_parse(&log_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    bool list = strcmp(words.words[0], "ls") == 0;
    if (!list && strcmp(words.words[0], "show") != 0) {
        fprintf(stderr, "onepath log: '%s' is not one of: ls, show\n", words.words[0]);
        return CLI_EXIT_CONFIG;
    }
    if (strcmp(options.format, "text") != 0 && strcmp(options.format, "json") != 0) {
        fprintf(stderr, "onepath log: --format is '%s'; it takes text or json\n", options.format);
        return CLI_EXIT_CONFIG;
    }
    static paths_t paths;
    for (uint32_t i = 1; i < words.count; i++) {
        if (collect_paths(&paths, words.words[i]) != STATUS_OK) {
            return CLI_EXIT_CONFIG;
        }
    }
    static show_t show;
    show.options = &options;
    bool whole = true;
    for (uint32_t i = 0; i < paths.count; i++) {
        whole =
            (list ? list_segment(paths.items[i]) : show_segment(&show, paths.items[i])) && whole;
        free(paths.items[i]);
    }
    free(show.blob);
    return whole ? CLI_EXIT_OK : CLI_EXIT_FOUND;
}
