#include "log_set.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto_require.h"

typedef struct {
    char *path; /* ours */
    dev_t device;
    ino_t inode; /* with the device: the same file under two names is read once */
    bool is_bad; /* noted as damage: never asked again */
    bool is_noted;
    proto_log_header_t header;
} segment_t;

typedef struct {
    segment_t **segments; /* in order of their index; ours */
    uint32_t segment_count;
    uint32_t at;                /* segment that is read */
    proto_log_reader_t *reader; /* NULL: not opened, or all was read */
    uint64_t record_count;      /* of the segment that is read */
    bool has_record;            /* `item` waits to be given */
    log_set_item_t item;
} stream_t;

/* Clock pair of one boot of one host: what makes times of several boots comparable. */
typedef struct {
    char boot[PROTO_LOG_HOST_SIZE_BYTES];
    uint64_t offset_ns; /* real minus monotonic, modulo 2^64 */
} boot_t;

struct log_set {
    char **roots; /* as given, to look again; ours */
    uint32_t root_count;
    char *actor; /* ours; NULL = all */
    uint64_t epoch;
    bool follow;
    bool skip_damage;
    segment_t **segments; /* all, in order of finding; ours */
    uint32_t segment_count;
    stream_t *streams; /* LOG_SET_STREAM_COUNT_MAX */
    uint32_t stream_count;
    boot_t *boots; /* one for each stream at most */
    uint32_t boot_count;
    log_damage_t *damages; /* one for each segment at most */
    uint32_t damage_count;
    int32_t current; /* stream whose item was given last; -1 = none */
};

enum {
    SUFFIX_LEN = 5, /* ".alog" */
    PATH_LEN_SHOWN = 70,
};

static proto_status_t
refuse(proto_error_t *error, proto_status_t status, const char *path, const char *why)
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
    return true;
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void
note_damage(log_set_t *self, segment_t *segment, proto_status_t status, uint64_t offset,
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

static stream_t *
find_stream(log_set_t *self, const proto_log_header_t *header)
{
    for (uint32_t i = 0; i < self->stream_count; i++) {
        const proto_log_header_t *other = &self->streams[i].segments[0]->header;
        if (other->epoch == header->epoch && strcmp(other->name, header->name) == 0) {
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
    boot_t *boot = &self->boots[self->boot_count++];
    memcpy(boot->boot, header->boot, sizeof boot->boot);
    boot->offset_ns = header->realtime_ns - header->time_ns;
    return STATUS_OK;
}

static uint64_t
realtime_of(const log_set_t *self, const proto_log_header_t *header, uint64_t time_ns)
{
    for (uint32_t i = 0; i < self->boot_count; i++) {
        if (strcmp(self->boots[i].boot, header->boot) == 0) {
            return time_ns + self->boots[i].offset_ns;
        }
    }
    return time_ns;
}

/* Puts the segment into its stream, in order of its index.  One that belongs before what was read
 * already (it came late) is still put there; only a rewind reaches it. */
static proto_status_t
add_to_stream(log_set_t *self, segment_t *segment, proto_error_t *error)
{
    stream_t *stream = find_stream(self, &segment->header);
    if (stream == NULL) {
        if (self->stream_count == LOG_SET_STREAM_COUNT_MAX) {
            return refuse(error, STATUS_ERR_TOO_LARGE, segment->path,
                          "more than 256 incarnations of actors; choose some with --actor");
        }
        stream = &self->streams[self->stream_count];
        memset(stream, 0, sizeof *stream);
    }
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
        return refuse(error, STATUS_ERR_TOO_LARGE, path, "more than 16384 segments");
    }
    if (!grow(&self->segments, self->segment_count, sizeof self->segments[0])) {
        return STATUS_ERR_NO_MEMORY;
    }
    segment_t *segment = calloc(1, sizeof *segment);
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
            note_damage(self, segment, status, 0, 0, why.detail);
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
        return refuse(error, STATUS_ERR_NOT_FOUND, path, "no such file or folder");
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
        return refuse(error, STATUS_ERR_IO, path, strerror(errno));
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
        return refuse(error, STATUS_ERR_NOT_FOUND, path, "holds no segment (*.alog)");
    }
    return status;
}

static proto_status_t
look(log_set_t *self, proto_error_t *error)
{
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; i < self->root_count && status == STATUS_OK; i++) {
        struct stat info;
        if (stat(self->roots[i], &info) != 0) {
            return refuse(error, STATUS_ERR_NOT_FOUND, self->roots[i], "no such file or folder");
        }
        status = S_ISDIR(info.st_mode) ? add_folder(self, self->roots[i], error)
                                       : add_file(self, self->roots[i], error);
    }
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

void
log_set_close(log_set_t **self_p)
{
    require(self_p != NULL);
    log_set_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < self->stream_count; i++) {
        proto_log_reader_close(&self->streams[i].reader);
        free(self->streams[i].segments);
    }
    for (uint32_t i = 0; i < self->segment_count; i++) {
        free(self->segments[i]->path);
        free(self->segments[i]);
    }
    for (uint32_t i = 0; i < self->root_count; i++) {
        free(self->roots[i]);
    }
    free(self->roots);
    free(self->actor);
    free(self->segments);
    free(self->streams);
    free(self->boots);
    free(self->damages);
    free(self);
    *self_p = NULL;
}

static proto_status_t
copy_options(log_set_t *self, const char *const *paths, uint32_t path_count,
             const log_set_options_t *options)
{
    self->current = -1;
    self->roots = calloc(path_count, sizeof self->roots[0]);
    self->streams = calloc(LOG_SET_STREAM_COUNT_MAX, sizeof self->streams[0]);
    if (self->roots == NULL || self->streams == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < path_count; i++) {
        self->roots[i] = strdup(paths[i]);
        if (self->roots[i] == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->root_count++;
    }
    if (options != NULL) {
        self->epoch = options->epoch;
        self->follow = options->follow;
        self->skip_damage = options->skip_damage;
        if (options->actor != NULL) {
            self->actor = strdup(options->actor);
            return self->actor != NULL ? STATUS_OK : STATUS_ERR_NO_MEMORY;
        }
    }
    return STATUS_OK;
}

/* What an empty set means: nothing readable, or nothing of that actor. */
static proto_status_t
refuse_empty(const log_set_t *self, proto_error_t *error)
{
    if (self->damage_count > 0) {
        return refuse(error, self->damages[0].status, self->damages[0].path,
                      self->damages[0].detail);
    }
    return refuse(error, STATUS_ERR_NOT_FOUND, self->actor != NULL ? self->actor : self->roots[0],
                  self->actor != NULL ? "no segment is of this actor" : "no segment is chosen");
}

proto_status_t
log_set_open(const char *const *paths, uint32_t path_count, const log_set_options_t *options,
             log_set_t **out_p, proto_error_t *error)
{
    require(paths != NULL);
    require(path_count > 0);
    require(out_p != NULL);
    log_set_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = copy_options(self, paths, path_count, options);
    if (status == STATUS_OK) {
        status = look(self, error);
    }
    if (status == STATUS_OK && self->stream_count == 0 && !self->follow) {
        status = refuse_empty(self, error);
    }
    if (status != STATUS_OK) {
        log_set_close(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
log_set_refresh(log_set_t *self)
{
    return look(self, NULL);
}

/* ---- reading --------------------------------------------------------------------------------- */

static proto_status_t
open_reader(log_set_t *self, stream_t *stream)
{
    segment_t *segment = stream->segments[stream->at];
    proto_error_t why = {{0}};
    proto_status_t status = proto_log_reader_open(segment->path, &stream->reader, &why);
    stream->record_count = 0;
    if (status != STATUS_OK && status != STATUS_ERR_NO_MEMORY) {
        segment->is_bad = true; /* it was good when its header was read */
        note_damage(self, segment, status, 0, 0, why.detail);
    }
    if (status == STATUS_OK) {
        proto_log_reader_set_skip(stream->reader, self->skip_damage);
    }
    return status;
}

static void
note_end(log_set_t *self, stream_t *stream, proto_status_t status)
{
    uint64_t offset = proto_log_reader_offset(stream->reader);
    uint64_t size = proto_log_reader_size(stream->reader);
    char detail[160];
    (void)snprintf(detail, sizeof detail,
                   "%s at byte %llu of %llu, after %llu whole records: %.60s",
                   status == STATUS_AGAIN           ? "ends within a record"
                   : status == STATUS_ERR_MALFORMED ? "is damaged"
                                                    : "cannot be read",
                   (unsigned long long)offset, (unsigned long long)size,
                   (unsigned long long)stream->record_count, proto_log_reader_why(stream->reader));
    note_damage(self, stream->segments[stream->at], status, offset, stream->record_count, detail);
}

/* The first damage of a segment that is read on behind it. */
static void
note_skipped(log_set_t *self, stream_t *stream, uint64_t offset)
{
    char detail[160];
    (void)snprintf(detail, sizeof detail,
                   "is damaged at byte %llu, after %llu whole records; read on behind it",
                   (unsigned long long)offset, (unsigned long long)stream->record_count - 1);
    note_damage(self, stream->segments[stream->at], STATUS_ERR_MALFORMED, offset,
                stream->record_count - 1, detail);
}

/* Reads the stream's next record into its item.  STATUS_END: none, for now or for good. */
static proto_status_t
fill(log_set_t *self, stream_t *stream)
{
    while (stream->at < stream->segment_count) {
        segment_t *segment = stream->segments[stream->at];
        if (stream->reader == NULL && !segment->is_bad) {
            if (open_reader(self, stream) == STATUS_ERR_NO_MEMORY) {
                return STATUS_ERR_NO_MEMORY;
            }
        }
        if (stream->reader == NULL) {
            stream->at++;
            continue;
        }
        uint64_t offset = proto_log_reader_offset(stream->reader);
        proto_status_t status = proto_log_reader_next(stream->reader, &stream->item.record);
        if (status == STATUS_OK) {
            stream->record_count++;
            if (stream->item.record.is_made && !segment->is_noted) {
                note_skipped(self, stream, offset);
            }
            stream->item.header = &segment->header;
            stream->item.path = segment->path;
            stream->item.offset = offset;
            stream->item.realtime_ns =
                realtime_of(self, &segment->header, stream->item.record.time_ns);
            stream->item.stream = (uint32_t)(stream - self->streams);
            stream->has_record = true;
            return STATUS_OK;
        }
        if (status == STATUS_ERR_NO_MEMORY) {
            return status;
        }
        bool is_last = stream->at + 1 == stream->segment_count;
        if (self->follow && is_last && (status == STATUS_END || status == STATUS_AGAIN)) {
            return STATUS_END; /* it is being written */
        }
        if (status != STATUS_END) {
            note_end(self, stream, status);
        }
        proto_log_reader_close(&stream->reader);
        stream->at++;
    }
    return STATUS_END;
}

/* One boot: the monotonic clock alone decides, exactly.  Several: the headers' clock pairs do. */
static uint64_t
order_of(const log_set_t *self, const stream_t *stream)
{
    return self->boot_count > 1 ? stream->item.realtime_ns : stream->item.record.time_ns;
}

proto_status_t
log_set_next(log_set_t *self, log_set_item_t *out)
{
    require(out != NULL);
    if (self->current >= 0) {
        self->streams[self->current].has_record = false;
        self->current = -1;
    }
    int32_t best = -1;
    for (uint32_t i = 0; i < self->stream_count; i++) {
        stream_t *stream = &self->streams[i];
        if (!stream->has_record && fill(self, stream) == STATUS_ERR_NO_MEMORY) {
            return STATUS_ERR_NO_MEMORY;
        }
        if (stream->has_record &&
            (best < 0 || order_of(self, stream) < order_of(self, &self->streams[best]))) {
            best = (int32_t)i;
        }
    }
    if (best < 0) {
        return STATUS_END;
    }
    self->current = best;
    *out = self->streams[best].item;
    return STATUS_OK;
}

proto_status_t
log_set_rewind(log_set_t *self)
{
    self->current = -1;
    for (uint32_t i = 0; i < self->stream_count; i++) {
        stream_t *stream = &self->streams[i];
        proto_log_reader_close(&stream->reader);
        stream->at = 0;
        stream->record_count = 0;
        stream->has_record = false;
    }
    return STATUS_OK;
}

/* ---- what there is --------------------------------------------------------------------------- */

uint32_t
log_set_stream_count(const log_set_t *self)
{
    return self->stream_count;
}

log_set_stream_t
log_set_stream(const log_set_t *self, uint32_t index)
{
    require(index < self->stream_count);
    const stream_t *stream = &self->streams[index];
    return (log_set_stream_t){&stream->segments[0]->header, stream->segment_count};
}

const char *
log_set_segment_path(const log_set_t *self, uint32_t stream, uint32_t index)
{
    require(stream < self->stream_count);
    require(index < self->streams[stream].segment_count);
    return self->streams[stream].segments[index]->path;
}

const proto_log_header_t *
log_set_segment_header(const log_set_t *self, uint32_t stream, uint32_t index)
{
    require(stream < self->stream_count);
    require(index < self->streams[stream].segment_count);
    return &self->streams[stream].segments[index]->header;
}

uint32_t
log_set_damage_count(const log_set_t *self)
{
    return self->damage_count;
}

const log_damage_t *
log_set_damage(const log_set_t *self, uint32_t index)
{
    require(index < self->damage_count);
    return &self->damages[index];
}
