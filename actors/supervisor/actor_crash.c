#include "actor_crash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actor_log.h"
#include "proto_clock.h"
#include "proto_log.h"
#include "proto_ring.h"

enum {
    REPORT_SIZE_BYTES = 1024 * 1024, /* 50 lines, escaped */
};

proto_status_t
actor_crash_default_dir(char *out, size_t capacity_bytes)
{
    (void)snprintf(out, capacity_bytes, "/tmp/onepath-crash-%u", (unsigned)geteuid());
    if (mkdir(out, 0700) != 0 && errno != EEXIST) {
        return STATUS_ERR_IO;
    }
    /* Somebody else may have been there first, in a folder that everybody may write to. */
    struct stat info;
    bool ours = lstat(out, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
                (info.st_mode & 077) == 0;
    return ours ? STATUS_OK : STATUS_ERR_IO;
}

static int
is_record(const struct dirent *entry)
{
    static const char ending[] = ".alog";
    size_t name_len = strlen(entry->d_name);
    return name_len > strlen(ending) &&
           strcmp(entry->d_name + name_len - strlen(ending), ending) == 0;
}

typedef struct {
    struct timespec time;
    const struct dirent *entry;
} aged_t;

static int
by_age(const void *a, const void *b)
{
    const struct timespec *x = &((const aged_t *)a)->time;
    const struct timespec *y = &((const aged_t *)b)->time;
    if (x->tv_sec != y->tv_sec) {
        return x->tv_sec < y->tv_sec ? -1 : 1;
    }
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec ? 1 : 0;
}

static void
remove_record(int folder_fd, const char *name)
{
    char sidecar[sizeof((struct dirent *)NULL)->d_name];
    (void)snprintf(sidecar, sizeof sidecar, "%.*s.aidx", (int)(strlen(name) - strlen(".alog")),
                   name);
    (void)unlinkat(folder_fd, name, 0);
    (void)unlinkat(folder_fd, sidecar, 0);
}

void
actor_crash_prune(const char *directory, uint32_t kept_max)
{
    struct dirent **entries = NULL;
    int folder_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int count = folder_fd >= 0 ? scandir(directory, &entries, is_record, NULL) : -1;
    aged_t *aged = count > 0 ? calloc((size_t)count, sizeof *aged) : NULL;
    for (int i = 0; aged != NULL && i < count; i++) {
        struct stat info;
        aged[i].entry = entries[i];
        if (fstatat(folder_fd, entries[i]->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
            aged[i].time = info.st_mtim;
        }
    }
    if (aged != NULL) {
        qsort(aged, (size_t)count, sizeof *aged, by_age);
        for (int i = 0; i < count - (int)kept_max; i++) {
            remove_record(folder_fd, aged[i].entry->d_name);
        }
    }
    for (int i = 0; i < count; i++) {
        free(entries[i]);
    }
    free(entries);
    free(aged);
    if (folder_fd >= 0) {
        (void)close(folder_fd);
    }
}

proto_status_t
actor_crash_dump(int ring_fd, const char *directory, const char *name, proto_role_t role,
                 uint64_t epoch, char path_out[ACTOR_CRASH_PATH_SIZE_BYTES])
{
    proto_ring_reader_t *reader = NULL;
    proto_log_writer_t *writer = NULL;
    proto_log_options_t options = {.directory = directory,
                                   .name = name,
                                   .role = role,
                                   .epoch = epoch,
                                   .segment_size_max = UINT64_C(2) * PROTO_RING_SIZE_MAX,
                                   .sequence_before = PROTO_LOG_SEQUENCE_ANY};
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) {
        return STATUS_ERR_IO;
    }
    proto_status_t status = proto_ring_reader_open(ring_fd, &reader);
    if (status != STATUS_OK) {
        goto end;
    }
    status = proto_log_writer_open(&options, &writer);
    if (status != STATUS_OK) {
        goto end;
    }
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    uint64_t count = 0;
    proto_log_record_t record;
    while (proto_ring_reader_next(reader, &record) == STATUS_OK) {
        status = proto_log_append(writer, &record, now_ns);
        if (status != STATUS_OK && status != STATUS_ERR_TOO_LARGE) {
            goto end;
        }
        count++;
    }
    status = proto_log_writer_sync(writer);
    if (status == STATUS_OK && count == 0) {
        status = STATUS_END;
    }
    (void)snprintf(path_out, ACTOR_CRASH_PATH_SIZE_BYTES, "%s/%s.%016" PRIx64 ".000000.alog",
                   directory, name, epoch);

end:
    if (writer != NULL) {
        proto_log_writer_close(&writer);
    }
    if (reader != NULL) {
        proto_ring_reader_close(&reader);
    }
    return status;
}

void
actor_crash_report(const char *name, const actor_process_t *process, uint32_t restart_count,
                   const char *crash_path)
{
    char how[64];
    actor_process_describe(process, how, sizeof how);
    if (actor_log_is_human()) { /* the last lines are on the screen already */
        actor_log(ACTOR_LOG_ERROR, "supervisor.escalation", 0,
                  ACTOR_LOG_FIELDS(actor_log_u64("restarts", restart_count),
                                   actor_log_str("crash_record", crash_path)),
                  "%s ended with %s and is not started again", name, how);
        return;
    }
    char *text = malloc(REPORT_SIZE_BYTES);
    if (text == NULL) {
        return;
    }
    char path[2 * ACTOR_CRASH_PATH_SIZE_BYTES];
    (void)actor_log_escape((proto_text_t){crash_path, (uint32_t)strlen(crash_path)}, path,
                           sizeof path);
    struct timespec time;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &time);
    (void)gmtime_r(&time.tv_sec, &utc);
    size_t at = (size_t)snprintf(
        text, REPORT_SIZE_BYTES,
        "{\"ts\":\"%04d-%02d-%02dT%02d:%02d:%02d.%06ldZ\",\"level\":\"error\",\"actor\":"
        "\"supervisor\",\"event\":\"supervisor.escalation\",\"msg\":\"%s ended with %s and is not "
        "started again\",\"child\":\"%s\",\"exit_code\":%d,\"signal\":%d,\"restarts\":%u,"
        "\"crash_record\":\"%s\",\"last_lines\":[",
        utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
        time.tv_nsec / 1000, name, how, name, process->exit_code, process->exit_signal,
        restart_count, path);
    /* Two bytes close the object; a line that does not fit whole is left out. */
    for (uint32_t index = 0; index < process->line_count; index++) {
        const char *line = actor_process_line(process, index);
        size_t len = strlen(line);
        if (len * 6 + 8 > REPORT_SIZE_BYTES - at) {
            break;
        }
        at += (size_t)snprintf(text + at, REPORT_SIZE_BYTES - at, "%s\"", index > 0 ? "," : "");
        at += actor_log_escape((proto_text_t){line, (uint32_t)len}, text + at,
                               REPORT_SIZE_BYTES - at);
        text[at++] = '"';
    }
    at += (size_t)snprintf(text + at, REPORT_SIZE_BYTES - at, "]}\n");
    actor_log_forward(text, at);
    free(text);
}
