/* proto_log_copy.c - a segment that a tool writes record by record. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "proto_log_file.h"
#include "proto_log_recover.h"
#include "proto_require.h"

struct proto_log_copy {
    FILE *file;
    uint8_t *room; /* for one record */
    size_t room_size_bytes;
    char path[PATH_MAX];
    char part_path[PATH_MAX + 8];
};

void
proto_log_new_segment_id(uint8_t out[16])
{
    if (getrandom(out, 16, 0) != 16) {
        memset(out, 0, 16);
    }
}

proto_status_t
proto_log_copy_open(const char *path, const proto_log_header_t *header, proto_log_copy_t **out_p,
                    proto_error_t *error)
{
    require(path != NULL);
    require(header != NULL);
    require(out_p != NULL);
    proto_log_copy_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    if (strlen(path) >= sizeof self->path) {
        free(self);
        errno = ENAMETOOLONG;
        return proto_log_fail(error, path, "cannot be made");
    }
    (void)snprintf(self->path, sizeof self->path, "%s", path);
    (void)snprintf(self->part_path, sizeof self->part_path, "%s.part", path);
    (void)unlink(self->part_path); /* of a tool that was killed */
    int fd = open(self->part_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    self->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (self->file == NULL) {
        proto_status_t status = proto_log_fail(error, self->part_path, "cannot be made");
        if (fd >= 0) {
            (void)close(fd);
        }
        free(self);
        return status;
    }
    uint8_t page[PROTO_LOG_HEADER_SIZE_BYTES];
    proto_log_header_encode(header, page);
    if (fwrite(page, sizeof page, 1, self->file) != 1) {
        proto_status_t status = proto_log_fail(error, self->part_path, "cannot be written");
        proto_log_copy_abort(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
proto_log_copy_append(proto_log_copy_t *self, const proto_log_record_t *record)
{
    size_t size_bytes = proto_log_record_size_bytes(record);
    if (size_bytes > PROTO_LOG_RECORD_SIZE_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    if (size_bytes > self->room_size_bytes) {
        uint8_t *room = realloc(self->room, size_bytes);
        if (room == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->room = room;
        self->room_size_bytes = size_bytes;
    }
    proto_log_record_encode(record, true, self->room);
    return fwrite(self->room, size_bytes, 1, self->file) == 1 ? STATUS_OK : STATUS_ERR_IO;
}

void
proto_log_copy_abort(proto_log_copy_t **self_p)
{
    require(self_p != NULL);
    proto_log_copy_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    (void)fclose(self->file);
    (void)unlink(self->part_path);
    free(self->room);
    free(self);
    *self_p = NULL;
}

proto_status_t
proto_log_copy_commit(proto_log_copy_t **self_p, proto_error_t *error)
{
    proto_log_copy_t *self = *self_p;
    char index_path[PATH_MAX];
    bool has_index = proto_log_index_path(self->path, index_path, sizeof index_path) == STATUS_OK;
    if (fflush(self->file) != 0 || fdatasync(fileno(self->file)) != 0) {
        proto_status_t status = proto_log_fail(error, self->part_path, "cannot be written");
        proto_log_copy_abort(self_p);
        return status;
    }
    if (has_index) {
        (void)unlink(index_path); /* of a file that had this name: wrong from now on */
    }
    if (rename(self->part_path, self->path) != 0) {
        proto_status_t status = proto_log_fail(error, self->path, "cannot be put into place");
        proto_log_copy_abort(self_p);
        return status;
    }
    proto_status_t status = STATUS_OK;
    if (has_index) {
        status = proto_log_index_rebuild(self->path, error);
    }
    (void)fclose(self->file);
    free(self->room);
    free(self);
    *self_p = NULL;
    return status;
}
