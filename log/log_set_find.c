/* Which segments belong to a set, and to which stream each. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "log_set_private.h"

enum {
    SUFFIX_LEN = 5, /* ".alog" */
    PATH_LEN_SHOWN = 70,
};

proto_status_t
log_set_refuse(proto_error_t *error, proto_status_t status, const char *path, const char *why)
{
    if (error != NULL) {
        size_t length = strlen(path);
        bool is_long = length > PATH_LEN_SHOWN; /* the end of a path says more than its begin */
        (void)snprintf(error->detail, sizeof error->detail, "%s%.70s: %.80s", is_long ? "..." : "",
                       is_long ? path + length - PATH_LEN_SHOWN : path, why);
    }
    return status;
}

/* Room for one more entry of an array of `size_bytes` entries that grows by doubling. */
static bool
grow(void *array_p, uint32_t count, size_t size_bytes)
{
    void *array;
    if (count != 0 && (count & (count - 1)) != 0) {
        return true;
    }
    memcpy(&array, array_p, sizeof array);
    size_t capacity = count == 0 ? 1 : (size_t)count * 2;
    void *larger = realloc(array, capacity * size_bytes);
    if (larger == NULL) {
        return false;
    }
    memcpy(array_p, &larger, sizeof larger);
    /* cppcheck-suppress memleak ; the caller's pointer was just set to it */
    return true;
}

/* ---- damage ---------------------------------------------------------------------------------- */

void
log_set_note_damage(log_set_t *self, log_segment_t *segment, proto_status_t status, uint64_t offset,
                    uint64_t record_count, const char *detail)
{
    if (segment->is_noted || !grow(&self->damages, self->damage_count, sizeof self->damages[0])) {
        return;
    }
    segment->is_noted = true;
    log_damage_t *damage = &self->damages[self->damage_count++];
    *damage = (log_damage_t){.path = segment->path,
                             .status = status,
                             .offset = offset,
                             .record_count = record_count};
    (void)snprintf(damage->detail, sizeof damage->detail, "%s", detail);
}

/* ---- finding segments ------------------------------------------------------------------------ */

static bool
is_wanted(const log_set_t *self, const proto_log_header_t *header)
{
    return (self->epoch == 0 || header->epoch == self->epoch) &&
           (self->actor == NULL || strcmp(self->actor, header->name) == 0 ||
            strcmp(self->actor, proto_role_name(header->role)) == 0);
}

static bool
has_index(const log_stream_t *stream, uint32_t index)
{
    for (uint32_t i = 0; i < stream->segment_count; i++) {
        if (stream->segments[i]->header.segment_index == index) {
            return true;
        }
    }
    return false;
}

/* The stream of the segment's incarnation that has none of its index, or NULL.  *lead_p: the first
 * stream of the incarnation, or the number of streams. */
static log_stream_t *
find_stream(log_set_t *self, const proto_log_header_t *header, uint32_t *lead_p)
{
    *lead_p = self->stream_count;
    for (uint32_t i = 0; i < self->stream_count; i++) {
        const proto_log_header_t *other = &self->streams[i].segments[0]->header;
        if (other->epoch != header->epoch || strcmp(other->name, header->name) != 0) {
            continue;
        }
        *lead_p = self->streams[i].lead;
        if (!has_index(&self->streams[i], header->segment_index)) {
            return &self->streams[i];
        }
    }
    return NULL;
}

static proto_status_t
note_boot(log_set_t *self, const proto_log_header_t *header)
{
    for (uint32_t i = 0; i < self->boot_count; i++) {
        if (strcmp(self->boots[i].boot, header->boot) == 0) {
            return STATUS_OK;
        }
    }
    if (!grow(&self->boots, self->boot_count, sizeof self->boots[0])) {
        return STATUS_ERR_NO_MEMORY;
    }
    log_boot_t *boot = &self->boots[self->boot_count++];
    memcpy(boot->boot, header->boot, sizeof boot->boot);
    boot->offset_ns = header->realtime_ns - header->time_ns;
    return STATUS_OK;
}

/* Puts the segment into its stream, in order of its index.  One that belongs before what was read
 * already (it came late) is still put there; only a rewind reaches it. */
static proto_status_t
add_to_stream(log_set_t *self, log_segment_t *segment, proto_error_t *error)
{
    uint32_t lead;
    log_stream_t *stream = find_stream(self, &segment->header, &lead);
    if (stream == NULL) {
        if (self->stream_count == LOG_SET_STREAM_COUNT_MAX) {
            return log_set_refuse(error, STATUS_ERR_TOO_LARGE, segment->path,
                                  "more than 256 incarnations of actors; choose some with --actor");
        }
        stream = &self->streams[self->stream_count];
        memset(stream, 0, sizeof *stream);
        stream->lead = lead;
    }
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    if (!grow(&stream->segments, stream->segment_count, sizeof stream->segments[0])) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = note_boot(self, &segment->header);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t place = stream->segment_count;
    while (place > 0 &&
           stream->segments[place - 1]->header.segment_index > segment->header.segment_index) {
        stream->segments[place] = stream->segments[place - 1];
        place--;
    }
    stream->segments[place] = segment;
    if (stream->segment_count > 0 && place <= stream->at && stream->reader != NULL) {
        stream->at++; /* what is read stays what is read */
    }
    if (stream->segment_count++ == 0) {
        self->streams[lead].has_lanes = lead != self->stream_count;
        self->stream_count++;
    }
    return STATUS_OK;
}

static bool
is_known(const log_set_t *self, const struct stat *info)
{
    for (uint32_t i = 0; i < self->segment_count; i++) {
        if (self->segments[i]->inode == info->st_ino && self->segments[i]->device == info->st_dev) {
            return true;
        }
    }
    return false;
}

void
log_set_make_name_plain(char name[PROTO_NAME_SIZE_BYTES])
{
    size_t at = 0;
    for (; at + 1 < PROTO_NAME_SIZE_BYTES && name[at] != '\0'; at++) {
        if (strchr("abcdefghijklmnopqrstuvwxyz0123456789-", name[at]) == NULL) {
            name[at] = '-';
        }
    }
    if (at == 0) {
        name[at++] = '-';
    }
    name[at] = '\0';
}

/* Reads the header of one file and keeps it if it is wanted. */
static proto_status_t
add_segment(log_set_t *self, const char *path, const struct stat *info, proto_error_t *error)
{
    if (self->segment_count == LOG_SET_SEGMENT_COUNT_MAX) {
        return log_set_refuse(error, STATUS_ERR_TOO_LARGE, path, "more than 16384 segments");
    }
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    if (!grow(&self->segments, self->segment_count, sizeof self->segments[0])) {
        return STATUS_ERR_NO_MEMORY;
    }
    log_segment_t *segment = calloc(1, sizeof *segment);
    if (segment == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    segment->path = strdup(path);
    if (segment->path == NULL) {
        free(segment);
        return STATUS_ERR_NO_MEMORY;
    }
    segment->device = info->st_dev;
    segment->inode = info->st_ino;
    self->segments[self->segment_count++] = segment;
    proto_log_reader_t *reader = NULL;
    proto_error_t why = {{0}};
    proto_status_t status = proto_log_reader_open(path, &reader, &why);
    if (status == STATUS_ERR_NO_MEMORY) {
        return status;
    }
    if (status != STATUS_OK) {
        segment->is_bad = true;
        bool is_being_made = self->follow && info->st_size < PROTO_LOG_HEADER_SIZE_BYTES;
        if (is_being_made) {
            self->segment_count--; /* the next look finds it whole */
            free(segment->path);
            free(segment);
        } else {
            log_set_note_damage(self, segment, status, 0, 0, why.detail);
        }
        return STATUS_OK;
    }
    segment->header = *proto_log_reader_header(reader);
    log_set_make_name_plain(segment->header.name);
    proto_log_reader_close(&reader);
    return is_wanted(self, &segment->header) ? add_to_stream(self, segment, error) : STATUS_OK;
}

static proto_status_t
add_file(log_set_t *self, const char *path, proto_error_t *error)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return log_set_refuse(error, STATUS_ERR_NOT_FOUND, path, "no such file or folder");
    }
    if (is_known(self, &info)) {
        return STATUS_OK;
    }
    return add_segment(self, path, &info, error);
}

static int
has_suffix(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > SUFFIX_LEN && strcmp(entry->d_name + length - SUFFIX_LEN, ".alog") == 0;
}

static proto_status_t
add_folder(log_set_t *self, const char *path, proto_error_t *error)
{
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, has_suffix, alphasort);
    if (count < 0) {
        return log_set_refuse(error, STATUS_ERR_IO, path, strerror(errno));
    }
    proto_status_t status = STATUS_OK;
    for (int i = 0; i < count; i++) {
        char name[4096];
        int length = snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (status == STATUS_OK && length > 0 && (size_t)length < sizeof name) {
            status = add_file(self, name, error);
            if (status == STATUS_ERR_NOT_FOUND) {
                status = STATUS_OK; /* deleted meanwhile, by its writer */
            }
        }
        free(entries[i]);
    }
    free(entries);
    if (status == STATUS_OK && count == 0 && !self->follow) {
        return log_set_refuse(error, STATUS_ERR_NOT_FOUND, path, "holds no segment (*.alog)");
    }
    return status;
}

proto_status_t
log_set_look(log_set_t *self, proto_error_t *error)
{
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; i < self->root_count && status == STATUS_OK; i++) {
        struct stat info;
        if (stat(self->roots[i], &info) != 0) {
            return log_set_refuse(error, STATUS_ERR_NOT_FOUND, self->roots[i],
                                  "no such file or folder");
        }
        status = S_ISDIR(info.st_mode) ? add_folder(self, self->roots[i], error)
                                       : add_file(self, self->roots[i], error);
    }
    return status;
}
