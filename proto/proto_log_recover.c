#include "proto_log_recover.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto_log_file.h"
#include "proto_require.h"

/* ---- verify ---------------------------------------------------------------------------------- */

/* How many records a DROP says are missing; 0 if it is none. */
static uint64_t
told_missing(const proto_log_record_t *record)
{
    uint64_t count = 0;
    if (record->kind == PROTO_LOG_DROP && record->part_count > 0 &&
        record->parts[0].size_bytes == sizeof count) {
        memcpy(&count, record->parts[0].data, sizeof count);
    }
    return count;
}

/* Counts a good record.  `last` is the number before it, UINT64_MAX if nobody knows. */
static void
count_record(proto_log_verdict_t *out, const proto_log_record_t *record, uint64_t last,
             bool after_damage)
{
    if (out->records++ == 0) {
        out->sequence_first = record->sequence;
        out->time_first_ns = record->time_ns;
    }
    out->sequence_last = record->sequence;
    out->time_last_ns = record->time_ns;
    uint32_t kind = (uint32_t)record->kind;
    out->kind_counts[kind < PROTO_LOG_KIND_COUNT ? kind : 0]++;
    out->redacted += (record->flags & PROTO_LOG_FLAG_REDACTED) != 0 ? 1 : 0;
    out->cut += (record->flags & PROTO_LOG_FLAG_CUT) != 0 ? 1 : 0;
    uint64_t told = told_missing(record);
    uint64_t gap = last != UINT64_MAX && record->sequence > last ? record->sequence - last - 1
                   : last == UINT64_MAX                          ? told
                                                                 : 0;
    out->dropped += told;
    if (gap > 0 && (!after_damage || told > 0)) {
        out->gaps++;
        out->missing += after_damage ? told : gap;
    }
}

static void
count_damage(proto_log_verdict_t *out, const proto_log_damage_t *damage)
{
    out->damage_bytes += damage->end_offset - damage->begin_offset;
    if (out->damage_count < PROTO_LOG_DAMAGE_COUNT_MAX) {
        out->damages[out->damage_count] = *damage;
    }
    out->damage_count++;
}

/* At a place where reading ended: steps over it.  STATUS_END if nothing good follows. */
static proto_status_t
pass_damage(proto_log_reader_t *reader, proto_status_t how, proto_log_verdict_t *out)
{
    proto_log_damage_t damage;
    memset(&damage, 0, sizeof damage);
    (void)snprintf(damage.why, sizeof damage.why, "%.63s", proto_log_reader_why(reader));
    proto_status_t status = proto_log_reader_resync(reader, &damage.begin_offset,
                                                    &damage.end_offset, &damage.records_lost);
    if (status == STATUS_END && how == STATUS_AGAIN) {
        out->torn_bytes = damage.end_offset - damage.begin_offset;
        return STATUS_END;
    }
    if (status == STATUS_OK) {
        proto_log_mark_t mark;
        proto_log_record_t next;
        proto_log_reader_mark(reader, &mark);
        if (proto_log_reader_next(reader, &next) == STATUS_OK) {
            damage.next_sequence = next.sequence;
        }
        proto_log_reader_rewind(reader, &mark);
    }
    if (status == STATUS_OK || status == STATUS_END) {
        count_damage(out, &damage);
    }
    return status;
}

proto_status_t
proto_log_verify(const char *path, proto_log_verdict_t *out, proto_error_t *error)
{
    require(path != NULL);
    require(out != NULL);
    proto_log_reader_t *reader = NULL;
    proto_log_record_t record;
    memset(out, 0, sizeof *out);
    proto_status_t status = proto_log_reader_open(path, &reader, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t last = UINT64_MAX;
    bool after_damage = false;
    while (status == STATUS_OK) {
        status = proto_log_reader_next(reader, &record);
        if (status == STATUS_OK) {
            count_record(out, &record, last, after_damage);
            last = proto_log_reader_last_sequence(reader);
            after_damage = false;
        } else if (status == STATUS_AGAIN || status == STATUS_ERR_MALFORMED) {
            status = pass_damage(reader, status, out);
            after_damage = true;
        }
    }
    out->size_bytes = proto_log_reader_size(reader);
    proto_log_reader_close(&reader);
    if (status != STATUS_END) {
        return status;
    }
    return proto_log_index_check(path, &out->index_state, error);
}

/* ---- recover --------------------------------------------------------------------------------- */

/* Cuts the file behind its last whole record. */
static proto_status_t
cut_tail(const char *path, uint64_t size_bytes, proto_error_t *error)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return proto_log_fail(error, path, "cannot be opened to cut its tail");
    }
    proto_status_t status = STATUS_OK;
    if (ftruncate(fd, (off_t)size_bytes) != 0 || fdatasync(fd) != 0) {
        status = proto_log_fail(error, path, "cannot be cut");
    }
    if (close(fd) != 0 && status == STATUS_OK) {
        status = proto_log_fail(error, path, "cannot be closed");
    }
    return status;
}

/* Copies what is good, with DROP records for what is not. */
static proto_status_t
copy_good(const char *path, const char *out_path, proto_error_t *error)
{
    proto_log_reader_t *reader = NULL;
    proto_log_copy_t *copy = NULL;
    proto_status_t status = proto_log_reader_open(path, &reader, error);
    if (status != STATUS_OK) {
        return status;
    }
    proto_log_header_t header = *proto_log_reader_header(reader);
    proto_log_new_segment_id(header.segment_id);
    proto_log_reader_set_skip(reader, true);
    status = proto_log_copy_open(out_path, &header, &copy, error);
    while (status == STATUS_OK) {
        proto_log_record_t record;
        status = proto_log_reader_next(reader, &record);
        if (status == STATUS_OK) {
            record.is_made = false;
            status = proto_log_copy_append(copy, &record);
        }
    }
    proto_log_reader_close(&reader);
    if (status == STATUS_END || status == STATUS_AGAIN) { /* AGAIN: the tail is torn */
        return proto_log_copy_commit(&copy, error);
    }
    if (copy != NULL) {
        status =
            status == STATUS_ERR_IO ? proto_log_fail(error, out_path, "cannot be written") : status;
        proto_log_copy_abort(&copy);
    }
    return status;
}

proto_status_t
proto_log_recover(const char *path, const char *out_path, proto_log_verdict_t *out,
                  proto_error_t *error)
{
    proto_log_verdict_t verdict;
    proto_status_t status = proto_log_verify(path, &verdict, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (out != NULL) {
        *out = verdict;
    }
    if (out_path != NULL) {
        return copy_good(path, out_path, error);
    }
    if (verdict.damage_count > 0) {
        char kept_path[PATH_MAX];
        int length = snprintf(kept_path, sizeof kept_path, "%s.damaged", path);
        if (length < 0 || (size_t)length >= sizeof kept_path) {
            errno = ENAMETOOLONG;
            return proto_log_fail(error, path, "cannot be kept");
        }
        /* A link first: the name is never without a file. */
        if (link(path, kept_path) != 0) {
            return proto_log_fail(error, kept_path,
                                  "the damaged file cannot be kept under this name");
        }
        status = copy_good(path, path, error);
        if (status != STATUS_OK) {
            (void)unlink(kept_path);
        }
        return status;
    }
    if (verdict.torn_bytes > 0) {
        status = cut_tail(path, verdict.size_bytes - verdict.torn_bytes, error);
    }
    char index_path[PATH_MAX];
    bool has_index_name = proto_log_index_path(path, index_path, sizeof index_path) == STATUS_OK;
    if (status == STATUS_OK && has_index_name &&
        (verdict.torn_bytes > 0 || verdict.index_state != PROTO_LOG_INDEX_GOOD)) {
        status = proto_log_index_rebuild(path, error);
    }
    return status;
}

/* ---- going on after a killed writer ---------------------------------------------------------- */

/* The newest segment of NAME and epoch with an index below `below`; UINT32_MAX if there is none. */
static uint32_t
newest_segment(DIR *folder, const char *name, uint64_t epoch, uint32_t below)
{
    char start[PROTO_NAME_SIZE_BYTES + 24];
    uint32_t newest = UINT32_MAX;
    int start_length = snprintf(start, sizeof start, "%.31s.%016" PRIx64 ".", name, epoch);
    rewinddir(folder);
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (strncmp(entry->d_name, start, (size_t)start_length) != 0) {
            continue;
        }
        char *end = NULL;
        unsigned long index = strtoul(entry->d_name + start_length, &end, 10);
        if (strcmp(end, ".alog") == 0 && index < below &&
            (newest == UINT32_MAX || index > newest)) {
            newest = (uint32_t)index;
        }
    }
    return newest;
}

/* The last number in one segment, 0 if it holds none; its torn tail is cut off. */
static uint64_t
last_in_segment(const char *path)
{
    proto_log_reader_t *reader = NULL;
    proto_log_index_t *index = NULL;
    uint64_t last = 0;
    if (proto_log_reader_open(path, &reader, NULL) != STATUS_OK) {
        return 0;
    }
    if (proto_log_index_open(path, &index, NULL, NULL) != STATUS_OK) {
        index = NULL; /* it only makes this faster */
    }
    proto_log_reader_set_skip(reader, true);
    proto_status_t status = proto_log_index_seek_sequence(index, reader, UINT64_MAX);
    last = proto_log_reader_last_sequence(reader);
    if (status == STATUS_AGAIN) {
        (void)!cut_tail(path, proto_log_reader_offset(reader), NULL);
    }
    proto_log_index_close(&index);
    proto_log_reader_close(&reader);
    return last;
}

proto_status_t
proto_log_last_sequence(const char *directory, const char *name, uint64_t epoch, uint64_t *out)
{
    require(directory != NULL);
    require(name != NULL);
    DIR *folder = opendir(directory);
    if (folder == NULL) {
        return STATUS_ERR_IO;
    }
    uint64_t last = 0;
    uint32_t index = newest_segment(folder, name, epoch, UINT32_MAX);
    while (index != UINT32_MAX && last == 0) {
        char path[PATH_MAX];
        int length = snprintf(path, sizeof path, "%.3900s/%.31s.%016" PRIx64 ".%06" PRIu32 ".alog",
                              directory, name, epoch, index);
        if (length > 0 && (size_t)length < sizeof path) {
            last = last_in_segment(path);
        }
        index = newest_segment(folder, name, epoch, index);
    }
    (void)closedir(folder);
    *out = last;
    return STATUS_OK;
}
