/* Reads with pread, never through a mapping: a file that shrinks while it is read gives an error,
 * not a signal. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_log.h"
#include "proto_log_reader_private.h"
#include "proto_require.h"

enum {
    WINDOW_SIZE = 256 * 1024, /* bytes read at once; grows for a larger record */
};

/* Reads up to size_bytes; fewer only at the end of the file or on an error. */
static size_t
read_at(int fd, uint8_t *out, size_t size_bytes, uint64_t offset)
{
    size_t at = 0;
    while (at < size_bytes) {
        ssize_t got = pread(fd, out + at, size_bytes - at, (off_t)(offset + at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        at += (size_t)got;
    }
    return at;
}

bool
proto_log_reader_refresh_size(proto_log_reader_t *self)
{
    struct stat stat;
    if (fstat(self->fd, &stat) != 0 || !S_ISREG(stat.st_mode) || stat.st_size < 0) {
        return false;
    }
    self->file_size_bytes = (uint64_t)stat.st_size;
    return true;
}

proto_status_t
proto_log_reader_open(const char *path, proto_log_reader_t **out_p, proto_error_t *error)
{
    require(path != NULL);
    require(out_p != NULL);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    uint8_t page[PROTO_LOG_HEADER_SIZE_BYTES];
    proto_log_reader_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->window = malloc(WINDOW_SIZE);
    if (self->window == NULL) {
        goto err_free;
    }
    self->window_capacity_bytes = WINDOW_SIZE;
    self->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (self->fd < 0) {
        status = proto_log_fail(error, path, "cannot be opened");
        goto err_free;
    }
    if (!proto_log_reader_refresh_size(self)) {
        status = STATUS_ERR_IO; /* errno says nothing here */
        if (error != NULL) {
            (void)snprintf(error->detail, sizeof error->detail, "%.90s: is no regular file", path);
        }
        goto err_close;
    }
    if (read_at(self->fd, page, sizeof page, 0) != sizeof page) {
        status = STATUS_ERR_MALFORMED;
        if (error != NULL) {
            (void)snprintf(error->detail, sizeof error->detail,
                           "log segment: shorter than its header of %d bytes",
                           PROTO_LOG_HEADER_SIZE_BYTES);
        }
        goto err_close;
    }
    status = proto_log_header_decode(page, &self->header, error);
    if (status != STATUS_OK) {
        goto err_close;
    }
    self->offset = PROTO_LOG_HEADER_SIZE_BYTES;
    *out_p = self;
    return STATUS_OK;

err_close:
    (void)close(self->fd);
err_free:
    free(self->window);
    free(self);
err:
    return status;
}

void
proto_log_reader_close(proto_log_reader_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        (void)close((*self_p)->fd);
        free((*self_p)->window);
        free(*self_p);
        *self_p = NULL;
    }
}

const proto_log_header_t *
proto_log_reader_header(const proto_log_reader_t *self)
{
    return &self->header;
}

uint64_t
proto_log_reader_offset(const proto_log_reader_t *self)
{
    return self->offset;
}

uint64_t
proto_log_reader_size(const proto_log_reader_t *self)
{
    return self->file_size_bytes;
}

/* What the window holds from the next record on. */
proto_bytes_t
proto_log_reader_seen(const proto_log_reader_t *self)
{
    proto_bytes_t bytes = {NULL, 0};
    if (self->offset >= self->window_offset &&
        self->offset - self->window_offset < self->window_bytes) {
        size_t skip = (size_t)(self->offset - self->window_offset);
        bytes = (proto_bytes_t){self->window + skip, self->window_bytes - skip};
    }
    return bytes;
}

/* Moves the window to the next record, with at least `size_bytes` of room; false without memory. */
bool
proto_log_reader_load(proto_log_reader_t *self, size_t size_bytes)
{
    if (size_bytes > self->window_capacity_bytes) {
        /* Never more than the file has: the caller compared. */
        uint8_t *room = realloc(self->window, size_bytes);
        if (room == NULL) {
            return false;
        }
        self->window = room;
        self->window_capacity_bytes = size_bytes;
    }
    self->window_offset = self->offset;
    self->window_bytes = read_at(self->fd, self->window, self->window_capacity_bytes, self->offset);
    return true;
}

/* Decodes the record at the offset, with the window moved and widened as needed. */
proto_status_t
proto_log_reader_decode_here(proto_log_reader_t *self, proto_log_record_t *out, size_t *size_bytes)
{
    proto_status_t status =
        proto_log_record_decode(proto_log_reader_seen(self), true, out, size_bytes);
    if (status == STATUS_OK) {
        return status;
    }
    /* The window ends within the record, or is older than what was written meanwhile: begin it
     * here, then widen it to the record. */
    if (!proto_log_reader_refresh_size(self)) {
        return STATUS_ERR_IO;
    }
    if (self->offset >= self->file_size_bytes) {
        return STATUS_END;
    }
    if (!proto_log_reader_load(self, PROTO_LOG_PREFIX_SIZE_BYTES)) {
        return STATUS_ERR_NO_MEMORY;
    }
    status = proto_log_record_decode(proto_log_reader_seen(self), true, out, size_bytes);
    uint32_t rest = 0;
    if (status == STATUS_AGAIN && self->window_bytes >= PROTO_LOG_PREFIX_SIZE_BYTES) {
        memcpy(&rest, self->window, sizeof rest);
    }
    uint64_t wanted = (uint64_t)rest + PROTO_LOG_PREFIX_SIZE_BYTES;
    if (rest > 0 && wanted > self->window_bytes && wanted <= self->file_size_bytes - self->offset) {
        if (!proto_log_reader_load(self, (size_t)wanted)) {
            return STATUS_ERR_NO_MEMORY;
        }
        status = proto_log_record_decode(proto_log_reader_seen(self), true, out, size_bytes);
    }
    return status;
}

/* Numbers rise; records without a number (0) are not judged. */
bool
proto_log_reader_order_holds(const proto_log_reader_t *self, uint64_t sequence)
{
    return sequence == 0 || sequence > self->last_sequence ||
           (sequence == self->last_sequence && self->last_is_drop);
}

static void
explain(proto_log_reader_t *self, proto_status_t status)
{
    proto_bytes_t bytes = proto_log_reader_seen(self);
    uint32_t rest = 0;
    if (bytes.size_bytes >= sizeof rest) {
        memcpy(&rest, bytes.data, sizeof rest);
    }
    if (status == STATUS_AGAIN) {
        (void)snprintf(self->why, sizeof self->why, "ends within a record");
    } else if (proto_log_record_decode(bytes, false, &(proto_log_record_t){0}, &(size_t){0}) ==
               STATUS_OK) {
        (void)snprintf(self->why, sizeof self->why, "the check (CRC) of a record is wrong");
    } else {
        (void)snprintf(self->why, sizeof self->why, "no record begins here (size %" PRIu32 ")",
                       rest);
    }
}

static proto_status_t
next_here(proto_log_reader_t *self, proto_log_record_t *out)
{
    size_t size_bytes = 0;
    proto_log_record_t record;
    self->why[0] = '\0';
    proto_status_t status = proto_log_reader_decode_here(self, &record, &size_bytes);
    if (status == STATUS_AGAIN || status == STATUS_ERR_MALFORMED) {
        explain(self, status);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (!proto_log_reader_order_holds(self, record.sequence)) {
        (void)snprintf(self->why, sizeof self->why, "sequence %" PRIu64 " after %" PRIu64,
                       record.sequence, self->last_sequence);
        return STATUS_ERR_MALFORMED;
    }
    if (record.sequence != 0) {
        self->last_sequence = record.sequence;
        self->last_is_drop = record.kind == PROTO_LOG_DROP;
    }
    self->offset += size_bytes;
    *out = record;
    return STATUS_OK;
}

proto_status_t
proto_log_reader_next(proto_log_reader_t *self, proto_log_record_t *out)
{
    proto_status_t status = next_here(self, out);
    if (self->skip && (status == STATUS_AGAIN || status == STATUS_ERR_MALFORMED)) {
        status = proto_log_reader_step_over(self, out);
    }
    return status;
}

void
proto_log_reader_set_skip(proto_log_reader_t *self, bool skip)
{
    self->skip = skip;
}

const char *
proto_log_reader_why(const proto_log_reader_t *self)
{
    return self->why;
}

void
proto_log_reader_seek(proto_log_reader_t *self, uint64_t offset)
{
    self->offset = offset;
    self->last_sequence = 0;
    self->last_is_drop = false;
}

uint64_t
proto_log_reader_last_sequence(const proto_log_reader_t *self)
{
    return self->last_is_drop ? self->last_sequence - 1 : self->last_sequence;
}

void
proto_log_reader_mark(const proto_log_reader_t *self, proto_log_mark_t *out)
{
    *out = (proto_log_mark_t){.offset = self->offset,
                              .last_sequence = self->last_sequence,
                              .last_is_drop = self->last_is_drop};
}

void
proto_log_reader_rewind(proto_log_reader_t *self, const proto_log_mark_t *mark)
{
    self->offset = mark->offset;
    self->last_sequence = mark->last_sequence;
    self->last_is_drop = mark->last_is_drop;
}
