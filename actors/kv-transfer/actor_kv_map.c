#include "actor_kv_map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_require.h"

typedef struct {
    uint32_t pid;
    uint32_t fd;
    uint64_t inode;
    uint64_t offset_bytes;
} handle_t;

/* Digits and colons only. */
static bool
parse(proto_bytes_t bytes, handle_t *out)
{
    uint64_t values[4] = {0};
    uint32_t index = 0;
    bool has_digit = false;
    for (size_t i = 0; i < bytes.size_bytes; i++) {
        uint8_t c = bytes.data[i];
        if (c == ':' && has_digit && index < 3) {
            index++;
            has_digit = false;
        } else if (c >= '0' && c <= '9' && values[index] <= (UINT64_MAX - 9) / 10) {
            values[index] = values[index] * 10 + (c - '0');
            has_digit = true;
        } else {
            return false;
        }
    }
    if (index != 3 || !has_digit || values[0] == 0 || values[0] > INT32_MAX ||
        values[1] > INT32_MAX) {
        return false;
    }
    *out = (handle_t){(uint32_t)values[0], (uint32_t)values[1], values[2], values[3]};
    return true;
}

static proto_status_t
check_file(int fd, const handle_t *handle, size_t size_bytes, char *detail, size_t detail_size)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        (void)snprintf(detail, detail_size, "cannot examine shared memory: %s", strerror(errno));
        return STATUS_ERR_IO;
    }
    if (info.st_ino != handle->inode || !S_ISREG(info.st_mode)) {
        (void)snprintf(detail, detail_size,
                       "shared memory of process %" PRIu32 " is another file: %" PRIu64
                       " named, %" PRIu64 " found",
                       handle->pid, handle->inode, (uint64_t)info.st_ino);
        return STATUS_ERR_INVALID;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        (void)snprintf(detail, detail_size, "shared memory is not sealed against shrinking");
        return STATUS_ERR_INVALID;
    }
    uint64_t file_bytes = (uint64_t)info.st_size;
    if (handle->offset_bytes > file_bytes || size_bytes > file_bytes - handle->offset_bytes) {
        (void)snprintf(detail, detail_size,
                       "shared memory has %" PRIu64 " bytes, %zu from %" PRIu64 " on are named",
                       file_bytes, size_bytes, handle->offset_bytes);
        return STATUS_ERR_INVALID;
    }
    return STATUS_OK;
}

static proto_status_t
map_fd(int fd, uint64_t offset_bytes, size_t size_bytes, bool is_writable, actor_kv_map_t *out)
{
    size_t base_bytes = (size_t)offset_bytes + size_bytes;
    void *base = mmap(NULL, base_bytes, is_writable ? PROT_READ | PROT_WRITE : PROT_READ,
                      MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        return STATUS_ERR_NO_MEMORY;
    }
    *out = (actor_kv_map_t){.memory = (uint8_t *)base + offset_bytes,
                            .size_bytes = size_bytes,
                            .base = base,
                            .base_bytes = base_bytes};
    return STATUS_OK;
}

proto_status_t
actor_kv_map_open(proto_bytes_t bytes, size_t size_bytes, bool is_writable, actor_kv_map_t *out,
                  char *detail, size_t detail_size_bytes)
{
    require(size_bytes > 0);
    handle_t handle;
    if (!parse(bytes, &handle)) {
        (void)snprintf(detail, detail_size_bytes,
                       "a handle of shared memory is not PID:FD:INODE:OFFSET");
        return STATUS_ERR_INVALID;
    }
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/fd/%" PRIu32, handle.pid, handle.fd);
    int fd = open(path, (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        (void)snprintf(detail, detail_size_bytes,
                       "shared memory of process %" PRIu32 " cannot be reached: %s", handle.pid,
                       strerror(errno));
        return STATUS_ERR_NOT_FOUND;
    }
    proto_status_t status = check_file(fd, &handle, size_bytes, detail, detail_size_bytes);
    if (status == STATUS_OK) {
        status = map_fd(fd, handle.offset_bytes, size_bytes, is_writable, out);
        if (status != STATUS_OK) {
            (void)snprintf(detail, detail_size_bytes, "cannot map %zu bytes of shared memory",
                           size_bytes);
        }
    }
    (void)close(fd);
    return status;
}

void
actor_kv_map_close(actor_kv_map_t *self)
{
    if (self->base != NULL) {
        (void)munmap(self->base, self->base_bytes);
    }
    *self = (actor_kv_map_t){.memory = NULL};
}

proto_status_t
actor_kv_map_make(const char *name, size_t size_bytes, actor_kv_map_t *out, int *fd_p)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return STATUS_ERR_NO_MEMORY;
    }
    if (ftruncate(fd, (off_t)size_bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        map_fd(fd, 0, size_bytes, true, out) != STATUS_OK) {
        (void)close(fd);
        return STATUS_ERR_NO_MEMORY;
    }
    *fd_p = fd;
    return STATUS_OK;
}

size_t
actor_kv_handle_write(int fd, uint64_t offset_bytes, char out[ACTOR_KV_HANDLE_SIZE_BYTES])
{
    struct stat info = {0};
    int rc = fstat(fd, &info);
    require(rc == 0);
    int length = snprintf(out, ACTOR_KV_HANDLE_SIZE_BYTES, "%d:%d:%" PRIu64 ":%" PRIu64,
                          (int)getpid(), fd, (uint64_t)info.st_ino, offset_bytes);
    require(length > 0);
    require(length < ACTOR_KV_HANDLE_SIZE_BYTES);
    return (size_t)length;
}
