#include "cli_tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_require.h"

enum { BLOCK_SIZE_BYTES = 512 };

struct cli_tar {
    FILE *file;
    char *path; /* owned; NULL: finished, the file stays */
};

/* The header of one file; numbers are octal text. */
typedef struct {
    char name[100];
    char mode[8], owner[8], group[8];
    char size[12], time[12];
    char checksum[8];
    char kind;
    char link[100];
    char magic[6], version[2];
    char rest[247];
} header_t;

_Static_assert(sizeof(header_t) == BLOCK_SIZE_BYTES, "a header is one block");

proto_status_t
cli_tar_new(const char *path, cli_tar_t **out_p)
{
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    cli_tar_t *self = calloc(1, sizeof *self);
    char *copy = strdup(path);
    if (self == NULL || copy == NULL) {
        goto err;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        status = errno == EEXIST ? STATUS_ERR_REFUSED : STATUS_ERR_IO;
        goto err;
    }
    self->file = fdopen(fd, "wb");
    if (self->file == NULL) {
        (void)close(fd);
        (void)unlink(path);
        goto err;
    }
    self->path = copy;
    *out_p = self;
    return STATUS_OK;

err:
    free(copy);
    free(self);
    return status;
}

static proto_status_t
put_header(cli_tar_t *self, const char *name, const struct stat *info)
{
    header_t header;
    memset(&header, 0, sizeof header);
    memcpy(header.name, name, strlen(name));
    (void)snprintf(header.mode, sizeof header.mode, "%07o", 0600U);
    (void)snprintf(header.owner, sizeof header.owner, "%07o", 0U);
    (void)snprintf(header.group, sizeof header.group, "%07o", 0U);
    (void)snprintf(header.size, sizeof header.size, "%011llo", (unsigned long long)info->st_size);
    (void)snprintf(header.time, sizeof header.time, "%011llo",
                   (unsigned long long)info->st_mtim.tv_sec & 077777777777ULL);
    header.kind = '0';
    memcpy(header.magic, "ustar", 6);
    memcpy(header.version, "00", 2);
    memset(header.checksum, ' ', sizeof header.checksum);
    unsigned sum = 0;
    const unsigned char *bytes = (const unsigned char *)&header;
    for (size_t i = 0; i < sizeof header; i++) {
        sum += bytes[i];
    }
    (void)snprintf(header.checksum, sizeof header.checksum, "%06o", sum & 0777777U);
    return fwrite(&header, sizeof header, 1, self->file) == 1 ? STATUS_OK : STATUS_ERR_IO;
}

proto_status_t
cli_tar_add(cli_tar_t *self, const char *name, const char *path)
{
    require(self->path != NULL);
    proto_status_t status = STATUS_ERR_INVALID;
    struct stat info;
    char block[BLOCK_SIZE_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || name[0] == '\0' ||
        strlen(name) > CLI_TAR_NAME_LEN_MAX || info.st_size >= (INT64_C(1) << 33)) {
        goto end;
    }
    status = put_header(self, name, &info);
    /* As many bytes as the header says, whatever happens to the file meanwhile. */
    for (off_t left = info.st_size; left > 0 && status == STATUS_OK; left -= BLOCK_SIZE_BYTES) {
        size_t wanted = left < BLOCK_SIZE_BYTES ? (size_t)left : BLOCK_SIZE_BYTES;
        memset(block, 0, sizeof block);
        bool ok = read(fd, block, wanted) == (ssize_t)wanted &&
                  fwrite(block, sizeof block, 1, self->file) == 1;
        status = ok ? STATUS_OK : STATUS_ERR_IO;
    }

end:
    if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}

proto_status_t
cli_tar_finish(cli_tar_t *self)
{
    static const char zeros[2 * BLOCK_SIZE_BYTES];
    bool ok = fwrite(zeros, sizeof zeros, 1, self->file) == 1;
    ok = fclose(self->file) == 0 && ok;
    self->file = NULL;
    if (ok) {
        free(self->path);
        self->path = NULL;
    }
    return ok ? STATUS_OK : STATUS_ERR_IO;
}

void
cli_tar_destroy(cli_tar_t **self_p)
{
    cli_tar_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->file != NULL) {
        (void)fclose(self->file);
    }
    if (self->path != NULL) {
        (void)unlink(self->path);
    }
    free(self->path);
    free(self);
    *self_p = NULL;
}
