#include "log_out.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_log_recover.h"
#include "proto_require.h"

enum {
    STREAM_COUNT_MAX = 256, /* as many as a set has */
    PATH_SIZE = 3800,       /* leaves room for a segment's name */
    SUFFIX_LEN = 5,         /* ".alog" */
};

#define SEGMENT_SIZE_MAX (UINT64_C(256) * 1024 * 1024)

typedef struct {
    proto_log_header_t header; /* of its newest segment */
    uint64_t size_bytes;       /* of that segment */
    uint32_t segment;          /* its place in log_out.segments */
    uint64_t last_sequence;
    bool last_is_drop; /* it has the sequence of the record behind it */
} stream_t;

struct log_out {
    char path[PATH_SIZE];
    bool is_file;
    bool is_committed;
    bool made_folder;
    stream_t streams[STREAM_COUNT_MAX];
    uint32_t stream_count;
    proto_log_copy_t **segments; /* they get their names together */
    uint32_t segment_count;
    uint64_t record_count;
    char error[200];
};

__attribute__((format(printf, 3, 4))) static proto_status_t
fail(log_out_t *self, proto_status_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is one line above */
    (void)vsnprintf(self->error, sizeof self->error, format, arguments);
    va_end(arguments);
    return status;
}

/* The end of a path says more than its begin. */
static const char *
tail(const char *path)
{
    size_t length = strlen(path);
    return length > 90 ? path + length - 90 : path;
}

static bool
is_segment_name(const char *path)
{
    size_t length = strlen(path);
    return length > SUFFIX_LEN && strcmp(path + length - SUFFIX_LEN, ".alog") == 0;
}

static proto_status_t
prepare_folder(log_out_t *self)
{
    if (mkdir(self->path, 0700) == 0) {
        self->made_folder = true;
        return STATUS_OK;
    }
    if (errno != EEXIST) {
        return fail(self, STATUS_ERR_IO, "%s: cannot be made: %s", tail(self->path),
                    strerror(errno));
    }
    DIR *folder = opendir(self->path);
    if (folder == NULL) {
        return fail(self, STATUS_ERR_IO, "%s: %s", tail(self->path), strerror(errno));
    }
    bool is_taken = false;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        is_taken = is_taken || is_segment_name(entry->d_name);
    }
    (void)closedir(folder);
    return is_taken ? fail(self, STATUS_ERR_REFUSED,
                           "%s: holds segments already; name another folder", tail(self->path))
                    : STATUS_OK;
}

proto_status_t
log_out_open(const char *path, log_out_t **out_p, proto_error_t *error)
{
    require(path != NULL);
    require(out_p != NULL);
    log_out_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = STATUS_OK;
    if (strlen(path) + 1 > sizeof self->path) {
        status = fail(self, STATUS_ERR_INVALID, "the output's path is too long");
    } else {
        (void)snprintf(self->path, sizeof self->path, "%s", path);
        self->is_file = is_segment_name(path);
        struct stat info;
        if (!self->is_file) {
            status = prepare_folder(self);
        } else if (lstat(path, &info) == 0) {
            status =
                fail(self, STATUS_ERR_REFUSED, "%s: exists already; name another file", tail(path));
        }
    }
    if (status != STATUS_OK) {
        if (error != NULL) {
            (void)snprintf(error->detail, sizeof error->detail, "%.159s", self->error);
        }
        free(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

/* ---- segments -------------------------------------------------------------------------------- */

static proto_status_t
begin_segment(log_out_t *self, stream_t *stream, const proto_log_header_t *source,
              uint64_t first_sequence, bool is_first)
{
    if ((self->segment_count & (self->segment_count - 1)) == 0) {
        size_t capacity = self->segment_count == 0 ? 1 : (size_t)self->segment_count * 2;
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
        proto_log_copy_t **larger = realloc(self->segments, capacity * sizeof larger[0]);
        if (larger == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->segments = larger;
    }
    uint32_t index =
        is_first ? (self->is_file ? source->segment_index : 0) : stream->header.segment_index + 1;
    stream->header = *source;
    stream->header.segment_index = index;
    stream->header.first_sequence = first_sequence;
    proto_log_new_segment_id(stream->header.segment_id);
    stream->size_bytes = PROTO_LOG_HEADER_SIZE_BYTES;
    char name[PATH_SIZE + 128];
    if (self->is_file) {
        (void)snprintf(name, sizeof name, "%s", self->path);
    } else {
        (void)snprintf(name, sizeof name, "%s/%s.%016" PRIx64 ".%06" PRIu32 ".alog", self->path,
                       stream->header.name, stream->header.epoch, index);
    }
    proto_error_t error = {{0}};
    proto_log_copy_t *segment = NULL;
    proto_status_t status = proto_log_copy_open(name, &stream->header, &segment, &error);
    if (status != STATUS_OK) {
        return fail(self, status, "%s", error.detail);
    }
    stream->segment = self->segment_count;
    self->segments[self->segment_count++] = segment;
    return STATUS_OK;
}

/* Names become file names: a hostile header must not lead out of the folder. */
static bool
name_is_safe(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

static proto_status_t
find_stream(log_out_t *self, const proto_log_header_t *source, uint64_t first_sequence,
            stream_t **out)
{
    for (uint32_t i = 0; i < self->stream_count; i++) {
        stream_t *stream = &self->streams[i];
        if (stream->header.epoch == source->epoch &&
            strcmp(stream->header.name, source->name) == 0) {
            *out = stream;
            return STATUS_OK;
        }
    }
    if (self->is_file && self->stream_count == 1) {
        return fail(self, STATUS_ERR_INVALID,
                    "%s: one segment holds one actor; name a folder, or choose with --actor",
                    tail(self->path));
    }
    if (self->stream_count == STREAM_COUNT_MAX || (!self->is_file && !name_is_safe(source->name))) {
        return fail(self, STATUS_ERR_INVALID, "too many actors, or a name that is none");
    }
    stream_t *stream = &self->streams[self->stream_count];
    proto_status_t status = begin_segment(self, stream, source, first_sequence, true);
    if (status == STATUS_OK) {
        self->stream_count++;
        *out = stream;
    }
    return status;
}

/* Two inputs may hold the same part of one log in a way that a set does not see. */
static proto_status_t
check_order(log_out_t *self, stream_t *stream, const proto_log_record_t *record)
{
    uint64_t last = stream->last_sequence;
    if (record->sequence == 0) {
        return STATUS_OK;
    }
    if (record->sequence < last || (record->sequence == last && !stream->last_is_drop)) {
        return fail(self, STATUS_ERR_REFUSED,
                    "record %" PRIu64 " of %s comes behind record %" PRIu64
                    ": two inputs hold the same part of its log; merge one of them alone",
                    record->sequence, stream->header.name, last);
    }
    stream->last_sequence = record->sequence;
    stream->last_is_drop = record->kind == PROTO_LOG_DROP;
    return STATUS_OK;
}

proto_status_t
log_out_append(log_out_t *self, const proto_log_header_t *source, const proto_log_record_t *record)
{
    size_t size_bytes = proto_log_record_size_bytes(record);
    if (size_bytes > PROTO_LOG_RECORD_SIZE_MAX) {
        return fail(self, STATUS_ERR_TOO_LARGE, "a record of more than 80 MiB");
    }
    stream_t *stream = NULL;
    proto_status_t status = find_stream(self, source, record->sequence, &stream);
    if (status != STATUS_OK) {
        return status;
    }
    require(stream != NULL);
    status = check_order(self, stream, record);
    if (status != STATUS_OK) {
        return status;
    }
    if (!self->is_file && stream->size_bytes + size_bytes > SEGMENT_SIZE_MAX &&
        stream->size_bytes > PROTO_LOG_HEADER_SIZE_BYTES) {
        status = begin_segment(self, stream, source, record->sequence, false);
        if (status != STATUS_OK) {
            return status;
        }
    }
    self->record_count++;
    stream->size_bytes += size_bytes;
    status = proto_log_copy_append(self->segments[stream->segment], record);
    return status == STATUS_OK ? status
                               : fail(self, status, "%s: cannot be written", tail(self->path));
}

proto_status_t
log_out_commit(log_out_t *self)
{
    for (uint32_t i = 0; i < self->segment_count; i++) {
        proto_error_t error = {{0}};
        proto_status_t status = proto_log_copy_commit(&self->segments[i], &error);
        if (status != STATUS_OK) {
            return fail(self, status, "%s", error.detail);
        }
    }
    self->is_committed = true;
    return STATUS_OK;
}

void
log_out_close(log_out_t **self_p)
{
    require(self_p != NULL);
    log_out_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < self->segment_count; i++) {
        proto_log_copy_abort(&self->segments[i]);
    }
    if (!self->is_committed && self->made_folder) {
        (void)rmdir(self->path);
    }
    free(self->segments);
    free(self);
    *self_p = NULL;
}

uint64_t
log_out_record_count(const log_out_t *self)
{
    return self->record_count;
}

const char *
log_out_error(const log_out_t *self)
{
    return self->error;
}
