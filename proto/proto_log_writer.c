#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto_log.h"
#include "proto_log_file.h"
#include "proto_log_recover.h"
#include "proto_require.h"

enum {
    BUFFER_SIZE = 64 * 1024, /* bytes; a larger record goes to the file by itself */
    FLUSH_AGE_NS = 10 * 1000 * 1000,
    FILE_NAME_SIZE = PROTO_NAME_SIZE_BYTES + 40,
    SEGMENT_INDEX_MAX = 1000000, /* six digits of its name */
    DROP_SIZE_MAX = 192,         /* bytes of a DROP record */
};

#define SEGMENT_SIZE_DEFAULT (UINT64_C(256) * 1024 * 1024)
#define SEGMENT_AGE_DEFAULT_NS (UINT64_C(600) * 1000000000)

struct proto_log_writer {
    int directory_fd;
    int fd; /* of the segment; -1 = none */
    bool is_simulated;
    bool no_index;
    proto_log_sidecar_t sidecar;
    const proto_clock_t *clock;
    proto_log_header_t header; /* of the segment; fixed fields are filled at the start */
    uint64_t segment_size_max;
    uint64_t segment_age_max_ns;
    uint32_t segment_count_max;
    uint32_t next_segment_index;
    uint64_t segment_begin_ns; /* caller's time at its first record */
    uint64_t file_size_bytes;  /* whole records; what lies beyond is cut off */
    uint64_t synced_size_bytes;
    uint64_t last_sequence;    /* of what is in the file or waits; SEQUENCE_ANY = nothing yet */
    uint64_t filed_sequence;   /* of what is in the file */
    bool has_failed;           /* since the last DROP: it says so */
    uint64_t waiting_begin_ns; /* when the oldest waiting record came */
    uint64_t waiting_count;    /* DROP records are not counted */
    size_t waiting_bytes;
    proto_log_counts_t counts;
    uint8_t *buffer; /* BUFFER_SIZE */
    uint8_t *large;  /* for records that do not fit the buffer; made when first needed */
    size_t large_capacity_bytes;
};

static void
copy_text(char *out, size_t out_size_bytes, const char *text)
{
    (void)snprintf(out, out_size_bytes, "%s", text != NULL ? text : "");
}

/* One line of a small file of the kernel; "" if there is none. */
static void
read_line(const char *path, char *out, size_t out_size_bytes)
{
    out[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t size = read(fd, out, out_size_bytes - 1);
    (void)close(fd);
    out[size > 0 ? size : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

static bool
name_is_valid(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length < PROTO_NAME_SIZE_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

proto_status_t
proto_log_writer_open(const proto_log_options_t *options, proto_log_writer_t **out_p)
{
    require(options != NULL);
    require(options->directory != NULL);
    require(options->name != NULL);
    require(out_p != NULL);
    if (!name_is_valid(options->name)) {
        return STATUS_ERR_INVALID; /* it becomes a part of file names */
    }
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    proto_log_writer_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->buffer = malloc(BUFFER_SIZE);
    if (self->buffer == NULL) {
        goto err_free;
    }
    self->fd = -1;
    self->sidecar.fd = -1;
    self->no_index = options->no_index;
    self->last_sequence = options->sequence_before;
    self->filed_sequence = options->sequence_before;
    self->directory_fd = open(options->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (self->directory_fd < 0) {
        status = STATUS_ERR_IO;
        goto err_free;
    }
    self->clock = options->clock != NULL ? options->clock : proto_clock_system();
    self->segment_size_max =
        options->segment_size_max != 0 ? options->segment_size_max : SEGMENT_SIZE_DEFAULT;
    self->segment_age_max_ns =
        options->segment_age_max_ns != 0 ? options->segment_age_max_ns : SEGMENT_AGE_DEFAULT_NS;
    self->segment_count_max = options->segment_count_max;
    self->header.version = PROTO_LOG_VERSION;
    self->header.epoch = options->epoch;
    self->header.role = options->role;
    self->header.schema_version = PROTO_SCHEMA_VERSION;
    self->header.schema_hash = proto_schema_hash();
    self->header.config_digest = options->config_digest;
    copy_text(self->header.name, sizeof self->header.name, options->name);
    copy_text(self->header.build, sizeof self->header.build, options->build);
    copy_text(self->header.model, sizeof self->header.model, options->model);
    self->is_simulated = options->is_simulated;
    if (!self->is_simulated) {
        read_line("/proc/sys/kernel/hostname", self->header.host, sizeof self->header.host);
        read_line("/proc/sys/kernel/random/boot_id", self->header.boot, sizeof self->header.boot);
    }
    *out_p = self;
    return STATUS_OK;

err_free:
    free(self->buffer);
    free(self);
    return status;
}

/* ---- segments -------------------------------------------------------------------------------- */

static void
close_segment(proto_log_writer_t *self)
{
    proto_log_sidecar_close(&self->sidecar);
    if (self->fd >= 0) {
        (void)fdatasync(self->fd); /* nobody comes back to it */
        (void)close(self->fd);
        self->fd = -1;
    }
}

void
proto_log_writer_close(proto_log_writer_t **self_p)
{
    require(self_p != NULL);
    proto_log_writer_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    (void)!proto_log_writer_flush(self);
    close_segment(self);
    (void)close(self->directory_fd);
    free(self->large);
    free(self->buffer);
    free(self);
    *self_p = NULL;
}

static proto_status_t
failed(proto_log_writer_t *self)
{
    self->counts.last_errno = errno;
    self->has_failed = true;
    return STATUS_ERR_IO;
}

/* Writes all or nothing: after a failure the file ends where it ended before. */
static proto_status_t
write_whole(proto_log_writer_t *self, const uint8_t *data, size_t size_bytes)
{
    size_t at = 0;
    while (at < size_bytes) {
        ssize_t written =
            pwrite(self->fd, data + at, size_bytes - at, (off_t)(self->file_size_bytes + at));
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            proto_status_t status = failed(self);
            (void)!ftruncate(self->fd, (off_t)self->file_size_bytes);
            return status;
        }
        at += (size_t)written;
    }
    self->file_size_bytes += size_bytes;
    self->counts.bytes += size_bytes;
    return STATUS_OK;
}

static void
segment_name(const proto_log_writer_t *self, uint32_t index, char out[FILE_NAME_SIZE])
{
    (void)snprintf(out, FILE_NAME_SIZE, "%s.%016" PRIx64 ".%06" PRIu32 ".alog", self->header.name,
                   self->header.epoch, index);
}

/* What the header of segment `index` says. */
static void
fill_header(proto_log_writer_t *self, uint32_t index, uint64_t first_sequence)
{
    self->header.segment_index = index;
    self->header.first_sequence = first_sequence;
    self->header.time_ns = proto_clock_monotonic_ns(self->clock);
    self->header.realtime_ns = proto_clock_realtime_ns(self->clock);
    if (self->is_simulated) { /* unique within its folder is enough */
        memcpy(self->header.segment_id, &self->header.epoch, sizeof self->header.epoch);
        memcpy(self->header.segment_id + 8, &self->header.segment_index,
               sizeof self->header.segment_index);
    } else {
        proto_log_new_segment_id(self->header.segment_id);
    }
}

/* Gives the file its name unless that is taken; errno as of rename(). */
static bool
give_name(const proto_log_writer_t *self, const char *part_name, const char *name)
{
    if (renameat2(self->directory_fd, part_name, self->directory_fd, name, RENAME_NOREPLACE) == 0) {
        return true;
    }
    /* A file system that cannot do both at once. */
    return errno == EINVAL && faccessat(self->directory_fd, name, F_OK, 0) != 0 &&
           renameat(self->directory_fd, part_name, self->directory_fd, name) == 0;
}

/* Makes a file with its header; a name that is taken (an earlier writer of this epoch) is passed
 * over.  It gets its name last, so that a kill leaves no segment without a header. */
static proto_status_t
make_segment(proto_log_writer_t *self, uint64_t first_sequence, char name[FILE_NAME_SIZE])
{
    char part_name[FILE_NAME_SIZE];
    uint8_t page[PROTO_LOG_HEADER_SIZE_BYTES];
    (void)snprintf(part_name, sizeof part_name, "%s.%016" PRIx64 ".part", self->header.name,
                   self->header.epoch);
    int fd = openat(self->directory_fd, part_name,
                    O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return failed(self);
    }
    close_segment(self);
    self->fd = fd;
    proto_status_t status = STATUS_OK;
    bool is_named = false;
    errno = EEXIST; /* what is wrong if all numbers are taken */
    for (uint32_t index = self->next_segment_index;
         status == STATUS_OK && !is_named && errno == EEXIST && index < SEGMENT_INDEX_MAX;
         index++) {
        segment_name(self, index, name);
        if (faccessat(self->directory_fd, name, F_OK, 0) == 0) {
            errno = EEXIST;
            continue;
        }
        fill_header(self, index, first_sequence);
        proto_log_header_encode(&self->header, page);
        self->file_size_bytes = 0;
        status = write_whole(self, page, sizeof page);
        is_named = status == STATUS_OK && give_name(self, part_name, name);
    }
    if (is_named) {
        self->next_segment_index = self->header.segment_index + 1;
        return STATUS_OK;
    }
    status = status == STATUS_OK ? failed(self) : status;
    (void)close(self->fd);
    (void)unlinkat(self->directory_fd, part_name, 0);
    self->fd = -1;
    return status;
}

/* Begins the next segment and forgets the oldest beyond the number to keep. */
static proto_status_t
open_segment(proto_log_writer_t *self, uint64_t first_sequence, uint64_t now_ns)
{
    char name[FILE_NAME_SIZE];
    proto_status_t status = make_segment(self, first_sequence, name);
    if (status != STATUS_OK) {
        return status;
    }
    self->segment_begin_ns = now_ns;
    self->synced_size_bytes = 0;
    self->counts.segments++;
    if (!self->no_index) {
        proto_log_sidecar_open(&self->sidecar, self->directory_fd, name, self->header.segment_id);
    }
    if (self->segment_count_max > 0 && self->next_segment_index > self->segment_count_max) {
        char index_name[FILE_NAME_SIZE];
        segment_name(self, self->next_segment_index - 1 - self->segment_count_max, name);
        (void)unlinkat(self->directory_fd, name, 0);
        if (proto_log_index_path(name, index_name, sizeof index_name) == STATUS_OK) {
            (void)unlinkat(self->directory_fd, index_name, 0);
        }
    }
    return STATUS_OK;
}

/* What is not in the file is lost; the next record's number tells how much. */
static void
forget_waiting(proto_log_writer_t *self)
{
    self->counts.dropped += self->waiting_count;
    self->counts.records -= self->waiting_count;
    self->last_sequence = self->filed_sequence;
}

proto_status_t
proto_log_writer_flush(proto_log_writer_t *self)
{
    if (self->waiting_bytes == 0) {
        return STATUS_OK;
    }
    require(self->fd >= 0);
    uint64_t offset = self->file_size_bytes;
    proto_status_t status = write_whole(self, self->buffer, self->waiting_bytes);
    if (status == STATUS_OK) {
        self->filed_sequence = self->last_sequence;
        proto_log_sidecar_add(&self->sidecar, self->buffer, self->waiting_bytes, offset);
    } else {
        forget_waiting(self);
    }
    self->waiting_bytes = 0;
    self->waiting_count = 0;
    return status;
}

/* Room for a record larger than the buffer. */
static uint8_t *
large_room(proto_log_writer_t *self, size_t size_bytes)
{
    if (size_bytes > self->large_capacity_bytes) {
        uint8_t *room = realloc(self->large, size_bytes);
        if (room == NULL) {
            return NULL;
        }
        self->large = room;
        self->large_capacity_bytes = size_bytes;
    }
    return self->large;
}

/* ---- records --------------------------------------------------------------------------------- */

static void
put_waiting(proto_log_writer_t *self, const proto_log_record_t *record, uint64_t now_ns)
{
    size_t size_bytes = proto_log_record_size_bytes(record);
    require(size_bytes <= BUFFER_SIZE - self->waiting_bytes);
    if (self->waiting_bytes == 0) {
        self->waiting_begin_ns = now_ns;
    }
    proto_log_record_encode(record, true, self->buffer + self->waiting_bytes);
    self->waiting_bytes += size_bytes;
}

/* How many records are missing before the one with this number; 0 numbers are not counted. */
static uint64_t
missing_before(const proto_log_writer_t *self, uint64_t sequence)
{
    bool knows = sequence != 0 && self->last_sequence != PROTO_LOG_SEQUENCE_ANY;
    return knows ? sequence - self->last_sequence - 1 : 0;
}

/* Tells readers of the file what is missing in this place.  There is room for it. */
static void
put_drop(proto_log_writer_t *self, const proto_log_record_t *next, uint64_t missing,
         uint64_t now_ns)
{
    char why[96];
    (void)snprintf(why, sizeof why, "%s%.60s",
                   self->has_failed ? "could not be written: "
                                    : "overwritten before they were written",
                   self->has_failed ? strerror(self->counts.last_errno) : "");
    proto_log_record_t drop = {
        .kind = PROTO_LOG_DROP,
        .sequence = next->sequence,
        .time_ns = next->time_ns,
        .part_count = 2,
        .parts = {{(const uint8_t *)&missing, sizeof missing}, {(const uint8_t *)why, strlen(why)}},
    };
    put_waiting(self, &drop, now_ns);
    self->last_sequence = next->sequence - 1;
    self->has_failed = false;
}

/* Begins another segment if this one is full, old or not there.  STATUS_OK too if it could not be
 * had but there is one to go on in. */
static proto_status_t
roll(proto_log_writer_t *self, const proto_log_record_t *record, size_t size_bytes, uint64_t now_ns)
{
    uint64_t size_after = self->file_size_bytes + self->waiting_bytes + size_bytes;
    bool due = self->fd < 0 || size_after > self->segment_size_max ||
               now_ns - self->segment_begin_ns > self->segment_age_max_ns;
    bool is_fresh = self->fd >= 0 && self->waiting_bytes == 0 &&
                    self->file_size_bytes == PROTO_LOG_HEADER_SIZE_BYTES;
    if (!due || is_fresh) {
        return STATUS_OK;
    }
    proto_status_t status = proto_log_writer_flush(self);
    return status == STATUS_OK ? open_segment(self, record->sequence, now_ns) : status;
}

static proto_status_t
append_large(proto_log_writer_t *self, const proto_log_record_t *record, size_t size_bytes)
{
    proto_status_t status = proto_log_writer_flush(self);
    uint8_t *room = large_room(self, size_bytes);
    if (room == NULL) {
        status = STATUS_ERR_NO_MEMORY;
    }
    uint64_t offset = self->file_size_bytes;
    if (status == STATUS_OK) {
        proto_log_record_encode(record, true, room);
        status = write_whole(self, room, size_bytes);
    }
    if (status != STATUS_OK) {
        self->counts.dropped++;
        return status;
    }
    if (record->sequence != 0) {
        self->last_sequence = record->sequence;
        self->filed_sequence = record->sequence;
    }
    proto_log_sidecar_add(&self->sidecar, room, size_bytes, offset);
    self->counts.records++;
    return STATUS_OK;
}

proto_status_t
proto_log_append(proto_log_writer_t *self, const proto_log_record_t *record, uint64_t now_ns)
{
    size_t size_bytes = proto_log_record_size_bytes(record);
    if (size_bytes > PROTO_LOG_RECORD_SIZE_MAX) {
        self->counts.dropped++;
        return STATUS_ERR_TOO_LARGE;
    }
    if (record->sequence != 0 && self->last_sequence != PROTO_LOG_SEQUENCE_ANY &&
        record->sequence <= self->last_sequence) {
        return STATUS_ERR_INVALID;
    }
    if (record->sequence != 0 && self->last_sequence == PROTO_LOG_SEQUENCE_ANY) {
        self->last_sequence = record->sequence - 1;
        self->filed_sequence = record->sequence - 1;
    }
    proto_status_t status = roll(self, record, size_bytes + DROP_SIZE_MAX, now_ns);
    if (self->fd < 0) {
        self->counts.dropped++;
        return status;
    }
    /* A flush may fail and make the gap larger, so it comes before the gap is counted. */
    bool is_large = size_bytes > BUFFER_SIZE - DROP_SIZE_MAX;
    if (is_large || self->waiting_bytes + size_bytes + DROP_SIZE_MAX > BUFFER_SIZE) {
        proto_status_t flushed = proto_log_writer_flush(self);
        status = status == STATUS_OK ? flushed : status;
    }
    uint64_t missing = missing_before(self, record->sequence);
    if (missing > 0) {
        put_drop(self, record, missing, now_ns);
    }
    if (is_large) {
        proto_status_t written = append_large(self, record, size_bytes);
        return status == STATUS_OK ? written : status;
    }
    put_waiting(self, record, now_ns);
    self->waiting_count++;
    self->counts.records++;
    self->last_sequence = record->sequence != 0 ? record->sequence : self->last_sequence;
    proto_status_t polled = proto_log_writer_poll(self, now_ns);
    return status == STATUS_OK ? polled : status;
}

proto_status_t
proto_log_writer_poll(proto_log_writer_t *self, uint64_t now_ns)
{
    bool due = self->waiting_bytes > 0 && now_ns - self->waiting_begin_ns >= FLUSH_AGE_NS;
    return due ? proto_log_writer_flush(self) : STATUS_OK;
}

proto_status_t
proto_log_writer_sync(proto_log_writer_t *self)
{
    proto_status_t status = proto_log_writer_flush(self);
    if (status != STATUS_OK || self->fd < 0 || self->synced_size_bytes == self->file_size_bytes) {
        return status;
    }
    bool is_new = self->synced_size_bytes == 0; /* then its name must be kept too */
    if (fdatasync(self->fd) != 0 || (is_new && fsync(self->directory_fd) != 0)) {
        return failed(self);
    }
    self->synced_size_bytes = self->file_size_bytes;
    return STATUS_OK;
}

void
proto_log_writer_counts(const proto_log_writer_t *self, proto_log_counts_t *out)
{
    *out = self->counts;
}
