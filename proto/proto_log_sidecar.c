/* proto_log_sidecar.c - the sidecar of a segment while a writer makes both. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "proto_log_file.h"
#include "proto_require.h"

/* Nothing depends on it: when it cannot be written, the segment simply has none from there on. */
static void
put(proto_log_sidecar_t *self, const uint8_t *bytes, size_t size_bytes)
{
    if (self->fd < 0) {
        return;
    }
    ssize_t written = pwrite(self->fd, bytes, size_bytes, (off_t)self->size_bytes);
    if (written == (ssize_t)size_bytes) {
        self->size_bytes += size_bytes;
        return;
    }
    (void)!ftruncate(self->fd, (off_t)self->size_bytes);
    (void)close(self->fd);
    self->fd = -1;
}

static void
put_block(proto_log_sidecar_t *self)
{
    uint8_t block[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES];
    proto_log_index_encode(&self->builder, block);
    put(self, block, sizeof block);
}

void
proto_log_sidecar_open(proto_log_sidecar_t *self, int directory_fd, const char *segment_name,
                       const uint8_t segment_id[16])
{
    char name[PROTO_NAME_SIZE_BYTES + 40];
    uint8_t header[PROTO_LOG_INDEX_HEADER_SIZE_BYTES];
    self->fd = -1;
    if (proto_log_index_path(segment_name, name, sizeof name) != STATUS_OK) {
        return;
    }
    self->size_bytes = 0;
    self->fd =
        openat(directory_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    proto_log_index_begin(&self->builder, segment_id, header);
    put(self, header, sizeof header);
}

void
proto_log_sidecar_add(proto_log_sidecar_t *self, const uint8_t *data, size_t size_bytes,
                      uint64_t offset)
{
    size_t at = 0;
    while (self->fd >= 0 && at < size_bytes) {
        proto_log_record_t record;
        size_t record_size = 0;
        proto_bytes_t rest = {data + at, size_bytes - at};
        proto_status_t status = proto_log_record_decode(rest, false, &record, &record_size);
        require(status == STATUS_OK); /* the writer encoded it */
        if (proto_log_index_add(&self->builder, &record, offset + at, record_size)) {
            put_block(self);
        }
        at += record_size;
    }
}

void
proto_log_sidecar_close(proto_log_sidecar_t *self)
{
    if (self->fd >= 0 && self->builder.block.record_count > 0) {
        put_block(self);
    }
    if (self->fd >= 0) {
        (void)close(self->fd);
        self->fd = -1;
    }
}
