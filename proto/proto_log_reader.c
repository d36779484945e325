/* Reads with pread, never through a mapping: a file that shrinks while it is read gives an error,
 * not a signal. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_log.h"
#include "proto_log_file.h"
#include "proto_require.h"

enum {
    WINDOW_SIZE = 256 * 1024, /* bytes read at once; grows for a larger record */
    PREFIX_SIZE = 8,
};

struct proto_log_reader {
    int fd;
    proto_log_header_t header;
    uint64_t file_size_bytes;
    uint64_t offset; /* of the next record */
    uint8_t *window; /* bytes [window_offset, window_offset + window_bytes) of the file */
    uint64_t window_offset;
    size_t window_bytes;
    size_t window_capacity_bytes;
};

static proto_status_t
fail_open(proto_error_t *error, const char *path, const char *what)
{
    if (error != NULL) {
        (void)snprintf(error->detail, sizeof error->detail, "%.90s: %s: %.40s", path, what,
                       strerror(errno));
    }
    return STATUS_ERR_IO;
}

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

static bool
refresh_size(proto_log_reader_t *self)
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
        status = fail_open(error, path, "cannot be opened");
        goto err_free;
    }
    if (!refresh_size(self)) {
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
static proto_bytes_t
seen(const proto_log_reader_t *self)
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
static bool
load_window(proto_log_reader_t *self, size_t size_bytes)
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

proto_status_t
proto_log_reader_next(proto_log_reader_t *self, proto_log_record_t *out)
{
    size_t size_bytes = 0;
    proto_status_t status = proto_log_record_decode(seen(self), true, out, &size_bytes);
    if (status == STATUS_AGAIN) {
        /* The window ends within the record: begin it here, then widen it to the record. */
        if (!refresh_size(self)) {
            return STATUS_ERR_IO;
        }
        if (self->offset >= self->file_size_bytes) {
            return STATUS_END;
        }
        if (!load_window(self, PREFIX_SIZE)) {
            return STATUS_ERR_NO_MEMORY;
        }
        status = proto_log_record_decode(seen(self), true, out, &size_bytes);
        uint32_t rest = 0;
        if (status == STATUS_AGAIN && self->window_bytes >= PREFIX_SIZE) {
            memcpy(&rest, self->window, sizeof rest);
        }
        uint64_t wanted = (uint64_t)rest + PREFIX_SIZE;
        if (rest > 0 && wanted > self->window_bytes &&
            wanted <= self->file_size_bytes - self->offset) {
            if (!load_window(self, (size_t)wanted)) {
                return STATUS_ERR_NO_MEMORY;
            }
            status = proto_log_record_decode(seen(self), true, out, &size_bytes);
        }
    }
    if (status == STATUS_OK) {
        self->offset += size_bytes;
    }
    return status;
}
