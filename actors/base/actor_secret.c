#include "actor_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actor_log.h"
#include "proto_require.h"

enum { MODE_OF_OTHERS = 037 }; /* the group may read, nobody else may do anything */

static proto_status_t
refuse(const char *path, const char *why, const char *remedy)
{
    actor_log(ACTOR_LOG_ERROR, "secret.refused", 0,
              ACTOR_LOG_FIELDS(actor_log_str("file", path), actor_log_str("why", why)),
              "the file of secrets '%s' %s: %s", path, why, remedy);
    return STATUS_ERR_CONFIG;
}

/* Reads until the end; false if it is longer than there is room for, or cannot be read. */
static bool
read_all(int fd, char *out, size_t capacity_bytes, size_t *size_bytes)
{
    *size_bytes = 0;
    while (*size_bytes < capacity_bytes) {
        ssize_t got = read(fd, out + *size_bytes, capacity_bytes - *size_bytes);
        if (got == 0) {
            return true;
        }
        if (got < 0 && errno != EINTR) {
            return false;
        }
        *size_bytes += got > 0 ? (size_t)got : 0;
    }
    return false;
}

proto_status_t
actor_secret_read(const char *path, char *out, size_t capacity_bytes, size_t *size_bytes)
{
    require(capacity_bytes > 1);

    /* Not blocking: the name of a pipe must not hold the start for ever. */
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return refuse(path, errno == ELOOP ? "is a symbolic link" : strerror(errno),
                      "name the file itself, one that this user can read");
    }
    struct stat info;
    proto_status_t status = STATUS_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = refuse(path, "is no regular file", "name the file itself");
    } else if (info.st_uid != geteuid() && info.st_uid != 0) {
        status = refuse(path, "belongs to another user", "chown it to the user of this process");
    } else if ((info.st_mode & MODE_OF_OTHERS) != 0) {
        status =
            refuse(path, "can be read or changed by others", "chmod 600 it, and make new keys");
    } else if (!read_all(fd, out, capacity_bytes - 1, size_bytes)) {
        status = refuse(path, "is too large or cannot be read", "check what it holds");
    } else {
        out[*size_bytes] = '\0';
    }
    (void)close(fd);
    if (status != STATUS_OK) {
        actor_secret_wipe(out, capacity_bytes);
    }
    return status;
}

proto_status_t
actor_secret_write(const char *path, proto_text_t text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return refuse(path, errno == EEXIST ? "is there already" : strerror(errno),
                      "nothing is overwritten; remove it first or choose another folder");
    }
    size_t done = 0;
    while (done < text.size_bytes) {
        ssize_t put = write(fd, text.data + done, text.size_bytes - done);
        if (put < 0 && errno != EINTR) {
            break;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    bool whole = done == text.size_bytes && fsync(fd) == 0;
    whole = close(fd) == 0 && whole;
    if (!whole) {
        (void)unlink(path);
        return refuse(path, strerror(errno), "is there room on the disk?");
    }
    return STATUS_OK;
}

void
actor_secret_wipe(void *memory, size_t size_bytes)
{
    explicit_bzero(memory, size_bytes);
}
