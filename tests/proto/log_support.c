#include "log_support.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[LOG_PATH_SIZE / 2];
static uint8_t content[1 << 20];
static uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];

void
log_folder_make(void)
{
    /* In memory where that is possible: these tests sync thousands of files. */
    (void)snprintf(folder, sizeof folder, "/dev/shm/onepath-log-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        (void)snprintf(folder, sizeof folder, "/tmp/onepath-log-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(folder));
    }
}

void
log_folder_remove(void)
{
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    if (listing != NULL) {
        (void)closedir(listing);
    }
    (void)rmdir(folder);
}

const char *
log_folder(void)
{
    return folder;
}

const char *
log_path(const char *name)
{
    static char paths[8][LOG_PATH_SIZE];
    static uint32_t next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, LOG_PATH_SIZE, "%s/%s", folder, name);
    return path;
}

const char *
log_segment_path(uint32_t index)
{
    char name[64];
    (void)snprintf(name, sizeof name, "scheduler.0000000000000007.%06u.alog", index);
    return log_path(name);
}

void
log_record_make(uint64_t sequence, size_t size_max, proto_log_record_t *out)
{
    uint64_t mixed = sequence * UINT64_C(0x9e3779b97f4a7c15);
    ck_assert_uint_le(size_max, sizeof content);
    size_t size_bytes = (size_t)(mixed >> 40) % (size_max + 1);
    for (size_t at = 0; at < size_bytes; at++) {
        content[at] = (uint8_t)(mixed >> 32 ^ at * 197);
    }
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = PROTO_KIND_PLAN,
                             .epoch = 7,
                             .sequence = sequence * 3,
                             .request = 1 + sequence / 10};
    memset(out, 0, sizeof *out);
    out->kind = sequence % 2 == 0 ? PROTO_LOG_IN : PROTO_LOG_OUT;
    out->flags = sequence % 7 == 0 ? PROTO_LOG_FLAG_REDACTED : 0;
    out->channel = (uint16_t)(sequence % 5);
    out->sequence = sequence;
    out->time_ns = 1000000 + sequence / 3 * 1000;
    out->link_sequence = sequence * 3;
    out->part_count = 2;
    out->parts[0] = (proto_bytes_t){header_bytes, proto_header_encode(&header, header_bytes)};
    out->parts[1] = (proto_bytes_t){content, size_bytes};
}

void
log_record_check(const proto_log_record_t *got, size_t size_max)
{
    proto_log_record_t wanted;
    ck_assert(!got->is_made);
    log_record_make(got->sequence, size_max, &wanted);
    ck_assert_int_eq(got->kind, wanted.kind);
    ck_assert_uint_eq(got->flags, wanted.flags);
    ck_assert_uint_eq(got->channel, wanted.channel);
    ck_assert_uint_eq(got->time_ns, wanted.time_ns);
    ck_assert_uint_eq(got->link_sequence, wanted.link_sequence);
    ck_assert_uint_eq(got->part_count, wanted.part_count);
    for (uint32_t index = 0; index < got->part_count; index++) {
        ck_assert_uint_eq(got->parts[index].size_bytes, wanted.parts[index].size_bytes);
        if (got->parts[index].size_bytes > 0) {
            ck_assert_mem_eq(got->parts[index].data, wanted.parts[index].data,
                             got->parts[index].size_bytes);
        }
    }
}

proto_log_writer_t *
log_writer_open(uint64_t segment_size_max, uint64_t sequence_before)
{
    proto_log_options_t options = {.directory = folder,
                                   .name = "scheduler",
                                   .role = PROTO_ROLE_SCHEDULER,
                                   .epoch = 7,
                                   .segment_size_max = segment_size_max,
                                   .sequence_before = sequence_before};
    proto_log_writer_t *writer = NULL;
    ck_assert_int_eq(proto_log_writer_open(&options, &writer), STATUS_OK);
    return writer;
}

void
log_write(proto_log_writer_t *writer, uint64_t first, uint64_t last, size_t size_max)
{
    for (uint64_t sequence = first; sequence <= last; sequence++) {
        proto_log_record_t record;
        log_record_make(sequence, size_max, &record);
        ck_assert_int_eq(proto_log_append(writer, &record, sequence), STATUS_OK);
    }
}

void
log_make(uint64_t count, size_t size_max)
{
    proto_log_writer_t *writer = log_writer_open(0, 0);
    log_write(writer, 1, count, size_max);
    proto_log_writer_close(&writer);
}

size_t
log_file_read(const char *path, uint8_t *out)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    size_t size_bytes = fread(out, 1, LOG_FILE_SIZE_MAX, file);
    ck_assert_uint_lt(size_bytes, LOG_FILE_SIZE_MAX);
    (void)fclose(file);
    return size_bytes;
}

void
log_file_write(const char *path, const uint8_t *data, size_t size_bytes)
{
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_uint_eq(fwrite(data, 1, size_bytes, file), size_bytes);
    (void)fclose(file);
}

bool
log_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

proto_log_reader_t *
log_reader_open(const char *path)
{
    proto_log_reader_t *reader = NULL;
    proto_error_t error = {""};
    ck_assert_msg(proto_log_reader_open(path, &reader, &error) == STATUS_OK, "%s", error.detail);
    return reader;
}

uint64_t
log_drop_count(const proto_log_record_t *record)
{
    uint64_t count = 0;
    ck_assert_int_eq(record->kind, PROTO_LOG_DROP);
    ck_assert_uint_ge(record->part_count, 1);
    ck_assert_uint_eq(record->parts[0].size_bytes, sizeof count);
    memcpy(&count, record->parts[0].data, sizeof count);
    return count;
}
