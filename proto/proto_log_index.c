#include "proto_log_index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_log_file.h"
#include "proto_require.h"

enum {
    RECORD_SIZE_MIN = (PROTO_LOG_RECORD_HEAD_SIZE_BYTES + 7) / 8 * 8,
};

struct proto_log_index {
    proto_log_index_block_t *blocks;
    uint32_t count;
    uint64_t end_offset;
};

const char *
proto_log_index_state_name(proto_log_index_state_t state)
{
    switch (state) {
    case PROTO_LOG_INDEX_GOOD:
        return "good";
    case PROTO_LOG_INDEX_PARTIAL:
        return "partial";
    case PROTO_LOG_INDEX_MISSING:
        return "missing";
    case PROTO_LOG_INDEX_WRONG:
        break;
    }
    return "wrong";
}

proto_status_t
proto_log_index_path(const char *path, char *out, size_t capacity_bytes)
{
    static const char ending[] = ".alog";
    size_t length = strlen(path);
    size_t ending_length = sizeof ending - 1;
    if (length < ending_length || strcmp(path + length - ending_length, ending) != 0 ||
        length >= capacity_bytes) {
        return STATUS_ERR_INVALID;
    }
    memcpy(out, path, length - ending_length);
    memcpy(out + length - ending_length, ".aidx", ending_length + 1);
    return STATUS_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

static bool
read_whole(int fd, uint8_t *out, size_t size_bytes)
{
    size_t at = 0;
    while (at < size_bytes) {
        ssize_t got = read(fd, out + at, size_bytes - at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += (size_t)got;
    }
    return true;
}

/* Whether a block can follow what is there; `is_last` = the sidecar ends behind it. */
static bool
follows(const proto_log_index_t *self, const proto_log_index_block_t *block, bool is_last,
        uint64_t segment_size_bytes)
{
    if (block->offset != self->end_offset || block->size_bytes % 8 != 0 ||
        block->size_bytes > segment_size_bytes - block->offset || block->record_count == 0 ||
        block->size_bytes / RECORD_SIZE_MIN < block->record_count ||
        block->sequence_last < block->sequence_first) {
        return false;
    }
    if (!is_last && block->size_bytes < PROTO_LOG_INDEX_SPAN_BYTES) {
        return false; /* this also bounds their number by the size of the segment */
    }
    return self->count == 0 || block->sequence_first >= self->blocks[self->count - 1].sequence_last;
}

static proto_log_index_state_t
load_blocks(proto_log_index_t *self, int fd, const proto_log_header_t *header, const char *path)
{
    uint8_t bytes[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES];
    uint8_t segment_id[16];
    struct stat info;
    struct stat segment_info;
    /* In this order: a segment that is being written is always ahead of its sidecar. */
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || stat(path, &segment_info) != 0 ||
        !read_whole(fd, bytes, PROTO_LOG_INDEX_HEADER_SIZE_BYTES) ||
        proto_log_index_header_decode(bytes, segment_id) != STATUS_OK ||
        memcmp(segment_id, header->segment_id, sizeof segment_id) != 0) {
        return PROTO_LOG_INDEX_WRONG;
    }
    uint64_t found = ((uint64_t)info.st_size - PROTO_LOG_INDEX_HEADER_SIZE_BYTES) /
                     PROTO_LOG_INDEX_BLOCK_SIZE_BYTES;
    uint64_t segment_size_bytes = (uint64_t)segment_info.st_size;
    uint64_t count_max = segment_size_bytes / PROTO_LOG_INDEX_SPAN_BYTES + 1;
    bool is_longer = found > count_max;
    found = is_longer ? count_max : found;
    self->blocks = calloc(found > 0 ? (size_t)found : 1, sizeof *self->blocks);
    if (self->blocks == NULL) {
        return PROTO_LOG_INDEX_WRONG;
    }
    for (uint32_t index = 0; index < found; index++) {
        proto_log_index_block_t block;
        if (!read_whole(fd, bytes, sizeof bytes)) {
            return PROTO_LOG_INDEX_PARTIAL; /* it shrank */
        }
        if (proto_log_index_decode(bytes, segment_id, index, &block) != STATUS_OK ||
            !follows(self, &block, index + 1 == found, segment_size_bytes)) {
            return PROTO_LOG_INDEX_WRONG;
        }
        self->blocks[self->count++] = block;
        self->end_offset = block.offset + block.size_bytes;
    }
    if (is_longer) {
        return PROTO_LOG_INDEX_WRONG;
    }
    return self->end_offset == segment_size_bytes ? PROTO_LOG_INDEX_GOOD : PROTO_LOG_INDEX_PARTIAL;
}

static proto_log_index_state_t
load(proto_log_index_t *self, const char *path, const proto_log_reader_t *reader)
{
    char index_path[PATH_MAX];
    if (proto_log_index_path(path, index_path, sizeof index_path) != STATUS_OK) {
        return PROTO_LOG_INDEX_MISSING;
    }
    int fd = open(index_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return PROTO_LOG_INDEX_MISSING;
    }
    proto_log_index_state_t state = load_blocks(self, fd, proto_log_reader_header(reader), path);
    (void)close(fd);
    return state;
}

proto_status_t
proto_log_index_open(const char *path, proto_log_index_t **out_p, proto_log_index_state_t *state,
                     proto_error_t *error)
{
    require(path != NULL);
    require(out_p != NULL);
    proto_log_reader_t *reader = NULL;
    proto_status_t status = proto_log_reader_open(path, &reader, error);
    if (status != STATUS_OK) {
        return status;
    }
    proto_log_index_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        proto_log_reader_close(&reader);
        return STATUS_ERR_NO_MEMORY;
    }
    self->end_offset = PROTO_LOG_HEADER_SIZE_BYTES;
    proto_log_index_state_t found = load(self, path, reader);
    if (state != NULL) {
        *state = found;
    }
    proto_log_reader_close(&reader);
    *out_p = self;
    return STATUS_OK;
}

void
proto_log_index_close(proto_log_index_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        free((*self_p)->blocks);
        free(*self_p);
        *self_p = NULL;
    }
}

uint32_t
proto_log_index_count(const proto_log_index_t *self)
{
    return self->count;
}

const proto_log_index_block_t *
proto_log_index_at(const proto_log_index_t *self, uint32_t index)
{
    require(index < self->count);
    return &self->blocks[index];
}

uint64_t
proto_log_index_end_offset(const proto_log_index_t *self)
{
    return self->end_offset;
}

/* ---- seeking --------------------------------------------------------------------------------- */

typedef enum { BY_SEQUENCE, BY_TIME } seek_by_t;

static uint64_t
key_of(seek_by_t by, uint64_t sequence, uint64_t time_ns)
{
    return by == BY_SEQUENCE ? sequence : time_ns;
}

/* The last block that begins before `wanted`; a DROP may share its number with the first record of
 * the next block, so a block that begins with it is one too far. */
static const proto_log_index_block_t *
find_block(const proto_log_index_t *self, seek_by_t by, uint64_t wanted)
{
    uint32_t low = 0;
    uint32_t high = self != NULL ? self->count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const proto_log_index_block_t *block = &self->blocks[middle];
        if (key_of(by, block->sequence_first, block->time_first_ns) < wanted) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? &self->blocks[low - 1] : NULL;
}

static proto_status_t
seek(const proto_log_index_t *self, proto_log_reader_t *reader, seek_by_t by, uint64_t wanted)
{
    const proto_log_index_block_t *block = find_block(self, by, wanted);
    proto_log_reader_seek(reader, block != NULL ? block->offset : PROTO_LOG_HEADER_SIZE_BYTES);
    proto_log_record_t record;
    proto_log_mark_t mark;
    proto_log_reader_mark(reader, &mark);
    proto_status_t status = proto_log_reader_next(reader, &record);
    if (block != NULL &&
        (status != STATUS_OK || record.is_made || record.sequence != block->sequence_first ||
         record.time_ns != block->time_first_ns)) {
        /* The sidecar says what is not so: nothing in it is worth looking at. */
        proto_log_reader_seek(reader, PROTO_LOG_HEADER_SIZE_BYTES);
        proto_log_reader_mark(reader, &mark);
        status = proto_log_reader_next(reader, &record);
    }
    while (status == STATUS_OK && key_of(by, record.sequence, record.time_ns) < wanted) {
        proto_log_reader_mark(reader, &mark);
        status = proto_log_reader_next(reader, &record);
    }
    if (status == STATUS_OK) {
        proto_log_reader_rewind(reader, &mark);
    }
    return status == STATUS_END ? STATUS_OK : status;
}

proto_status_t
proto_log_index_seek_sequence(const proto_log_index_t *self, proto_log_reader_t *reader,
                              uint64_t sequence)
{
    return seek(self, reader, BY_SEQUENCE, sequence);
}

proto_status_t
proto_log_index_seek_time(const proto_log_index_t *self, proto_log_reader_t *reader,
                          uint64_t time_ns)
{
    return seek(self, reader, BY_TIME, time_ns);
}

/* ---- making it anew -------------------------------------------------------------------------- */

static bool
put_block(FILE *file, proto_log_index_builder_t *builder)
{
    uint8_t bytes[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES];
    proto_log_index_encode(builder, bytes);
    return fwrite(bytes, sizeof bytes, 1, file) == 1;
}

/* Writes what a right sidecar of the segment holds. */
static bool
write_blocks(proto_log_reader_t *reader, FILE *file)
{
    uint8_t header[PROTO_LOG_INDEX_HEADER_SIZE_BYTES];
    proto_log_index_builder_t builder;
    proto_log_index_begin(&builder, proto_log_reader_header(reader)->segment_id, header);
    bool written = fwrite(header, sizeof header, 1, file) == 1;
    proto_log_record_t record;
    uint64_t offset = proto_log_reader_offset(reader);
    while (written && proto_log_reader_next(reader, &record) == STATUS_OK) {
        uint64_t end = proto_log_reader_offset(reader);
        if (proto_log_index_add(&builder, &record, offset, end - offset)) {
            written = put_block(file, &builder);
        }
        offset = end;
    }
    if (written && builder.block.record_count > 0) {
        written = put_block(file, &builder);
    }
    return written && fflush(file) == 0;
}

proto_status_t
proto_log_index_rebuild(const char *path, proto_error_t *error)
{
    char index_path[PATH_MAX];
    char part_path[PATH_MAX + 8];
    proto_log_reader_t *reader = NULL;
    if (proto_log_index_path(path, index_path, sizeof index_path) != STATUS_OK) {
        errno = EINVAL;
        return proto_log_fail(error, path, "its name does not end in .alog");
    }
    proto_status_t status = proto_log_reader_open(path, &reader, error);
    if (status != STATUS_OK) {
        return status;
    }
    (void)snprintf(part_path, sizeof part_path, "%s.part", index_path);
    (void)unlink(part_path); /* of a rebuild that was killed */
    int fd = open(part_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL) {
        status = proto_log_fail(error, part_path, "cannot be made");
        if (fd >= 0) {
            (void)close(fd);
        }
        goto end;
    }
    bool written = write_blocks(reader, file);
    written = fclose(file) == 0 && written;
    if (!written || rename(part_path, index_path) != 0) {
        status = proto_log_fail(error, index_path, "cannot be written");
        (void)unlink(part_path);
    }

end:
    proto_log_reader_close(&reader);
    return status;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool
is_same_block(const proto_log_index_block_t *a, const proto_log_index_block_t *b)
{
    return a->offset == b->offset && a->size_bytes == b->size_bytes &&
           a->sequence_first == b->sequence_first && a->sequence_last == b->sequence_last &&
           a->time_first_ns == b->time_first_ns && a->time_last_ns == b->time_last_ns &&
           a->record_count == b->record_count && memcmp(a->bloom, b->bloom, sizeof a->bloom) == 0;
}

static bool
agrees(const proto_log_index_t *self, proto_log_reader_t *reader)
{
    uint8_t unused[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES];
    proto_log_index_builder_t builder;
    proto_log_record_t record;
    proto_log_index_begin(&builder, proto_log_reader_header(reader)->segment_id, unused);
    uint64_t offset = proto_log_reader_offset(reader);
    for (uint32_t index = 0; index < self->count; index++) {
        const proto_log_index_block_t *block = &self->blocks[index];
        while (offset < block->offset + block->size_bytes) {
            if (proto_log_reader_next(reader, &record) != STATUS_OK) {
                return false;
            }
            uint64_t end = proto_log_reader_offset(reader);
            (void)proto_log_index_add(&builder, &record, offset, end - offset);
            offset = end;
        }
        if (!is_same_block(&builder.block, block)) {
            return false;
        }
        proto_log_index_encode(&builder, unused);
    }
    return true;
}

proto_status_t
proto_log_index_check(const char *path, proto_log_index_state_t *state, proto_error_t *error)
{
    proto_log_index_t *self = NULL;
    proto_log_reader_t *reader = NULL;
    proto_log_index_state_t found = PROTO_LOG_INDEX_WRONG;
    proto_status_t status = proto_log_index_open(path, &self, &found, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = proto_log_reader_open(path, &reader, error);
    if (status == STATUS_OK) {
        bool has_blocks = found == PROTO_LOG_INDEX_GOOD || found == PROTO_LOG_INDEX_PARTIAL;
        if (has_blocks && !agrees(self, reader)) {
            found = PROTO_LOG_INDEX_WRONG;
        }
        *state = found;
        proto_log_reader_close(&reader);
    }
    proto_log_index_close(&self);
    return status;
}
