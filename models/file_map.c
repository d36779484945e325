#include "file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_require.h"

/* Maps an open file and closes it: a mapping stays when its descriptor is gone. */
static proto_status_t
map_descriptor(int fd, const char *name, file_error_t error, file_map_t *out)
{
    file_printable_t shown = file_printable(name, strlen(name));
    struct stat info;
    proto_status_t status = STATUS_OK;
    if (fstat(fd, &info) != 0) {
        status = file_error_set(error, STATUS_ERR_IO, "%s: %s", shown.text, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = file_error_set(error, STATUS_ERR_MALFORMED, "%s: no regular file", shown.text);
    } else if (info.st_size <= 0) {
        status = file_error_set(error, STATUS_ERR_MALFORMED, "%s: empty file", shown.text);
    } else {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            status = file_error_set(error, STATUS_ERR_IO, "%s: cannot map: %s", shown.text,
                                    strerror(errno));
        } else {
            out->bytes = bytes;
            out->size_bytes = (uint64_t)info.st_size;
        }
    }
    (void)close(fd);
    return status;
}

proto_status_t
file_map_open(const char *path, file_error_t error, file_map_t *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return file_error_set(error, STATUS_ERR_IO, "%s: %s",
                              file_printable(path, strlen(path)).text, strerror(errno));
    }
    return map_descriptor(fd, path, error, out);
}

static bool
is_plain_name(const char *name)
{
    size_t size_bytes = strlen(name);
    if (size_bytes == 0 || size_bytes > 255 || name[0] == '.') {
        return false;
    }
    for (size_t i = 0; i < size_bytes; i++) {
        char c = name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '.' || c == '_' || c == '-';
        if (!plain) {
            return false;
        }
    }
    return true;
}

/* The cache layout keeps every file once, as blobs/HASH, and links to it from snapshots/REV. */
static int
open_cache_link(int folder_fd, const char *name)
{
    static const char BLOBS[] = "../../blobs/";
    char target[512];
    ssize_t size_bytes = readlinkat(folder_fd, name, target, sizeof target - 1);
    if (size_bytes <= 0) {
        return -1;
    }
    target[size_bytes] = '\0';
    if (strncmp(target, BLOBS, sizeof BLOBS - 1) != 0 ||
        !is_plain_name(target + sizeof BLOBS - 1)) {
        return -1;
    }
    return openat(folder_fd, target, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
}

proto_status_t
file_map_open_in(int folder_fd, const char *name, file_error_t error, file_map_t *out)
{
    file_printable_t shown = file_printable(name, strlen(name));
    if (!is_plain_name(name)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "file name '%s': only a plain name inside the folder is allowed",
                              shown.text);
    }
    int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ELOOP) {
        fd = open_cache_link(folder_fd, name);
        if (fd < 0) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "%s: a symbolic link that leaves the folder is not followed",
                                  shown.text);
        }
    }
    if (fd < 0) {
        proto_status_t status = errno == ENOENT ? STATUS_ERR_NOT_FOUND : STATUS_ERR_IO;
        return file_error_set(error, status, "%s: %s", shown.text, strerror(errno));
    }
    return map_descriptor(fd, name, error, out);
}

void
file_map_close(file_map_t *self)
{
    if (self->bytes != NULL) {
        int rc = munmap((void *)(uintptr_t)self->bytes, (size_t)self->size_bytes);
        require(rc == 0);
    }
    *self = (file_map_t){0};
}
