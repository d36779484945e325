/* A segment and its sidecar of any content, through everything that tries to make the best of them:
 * the reader that skips damage, the look-ups, verify, recover.
 *
 * Input: one byte of flags, u16 size of the sidecar's bytes, those, then the segment's records (a
 * good header stands before them).  Flags: 1 = put the checks of records right, 2 = put the checks
 * of the sidecar's blocks right, 4 = the sidecar gets a good header, 8 = rebuild the sidecar.
 * What must hold: numbers rise, every made-up DROP tells of bytes, a look-up finds what a scan
 * finds, and what recover wrote is whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_log_file.h"
#include "proto_log_recover.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

enum { SIZE_MAX_BYTES = 1 << 20 };

static uint8_t file[PROTO_LOG_HEADER_SIZE_BYTES + SIZE_MAX_BYTES];
static char folder[64];
static char segment[96];
static char sidecar[96];
static char fixed[96];

static void
must(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void
remove_folder(void)
{
    (void)unlink(segment);
    (void)unlink(sidecar);
    (void)rmdir(folder);
}

static void
make_folder(void)
{
    (void)snprintf(folder, sizeof folder, "/dev/shm/onepath-fuzz-%ld", (long)getpid());
    if (mkdir(folder, 0700) != 0) {
        (void)snprintf(folder, sizeof folder, "/tmp/onepath-fuzz-%ld", (long)getpid());
        (void)mkdir(folder, 0700);
    }
    (void)snprintf(segment, sizeof segment, "%s/a.alog", folder);
    (void)snprintf(sidecar, sizeof sidecar, "%s/a.aidx", folder);
    (void)snprintf(fixed, sizeof fixed, "%s/fixed", folder); /* no .alog: no sidecar */
    must(atexit(remove_folder) == 0);
}

static void
write_file(const char *path, const uint8_t *data, size_t size_bytes)
{
    FILE *out = fopen(path, "wb");
    must(out != NULL);
    must(size_bytes == 0 || fwrite(data, size_bytes, 1, out) == 1);
    must(fclose(out) == 0);
}

static void
repair_records(uint8_t *at, size_t left)
{
    uint32_t rest;
    while (left >= 8) {
        memcpy(&rest, at, sizeof rest);
        if (rest > left - 8) {
            return;
        }
        uint32_t crc = proto_crc32c(0, at + 8, rest);
        memcpy(at + 4, &crc, sizeof crc);
        at += 8 + (size_t)rest;
        left -= 8 + (size_t)rest;
    }
}

static void
write_sidecar(const uint8_t *data, size_t size_bytes, const uint8_t segment_id[16], uint8_t flags)
{
    static uint8_t bytes[PROTO_LOG_INDEX_HEADER_SIZE_BYTES + UINT16_MAX];
    size_t begin = 0;
    if ((flags & 4) != 0) {
        proto_log_index_builder_t builder;
        proto_log_index_begin(&builder, segment_id, bytes);
        begin = PROTO_LOG_INDEX_HEADER_SIZE_BYTES;
    }
    if (size_bytes > 0) {
        memcpy(bytes + begin, data, size_bytes);
    }
    size_t end = begin + size_bytes;
    if ((flags & 2) != 0) {
        size_t at = PROTO_LOG_INDEX_HEADER_SIZE_BYTES;
        for (; at + PROTO_LOG_INDEX_BLOCK_SIZE_BYTES <= end;
             at += PROTO_LOG_INDEX_BLOCK_SIZE_BYTES) {
            size_t checked = PROTO_LOG_INDEX_BLOCK_SIZE_BYTES - 4;
            uint32_t crc = proto_crc32c(proto_crc32c(0, segment_id, 16), bytes + at, checked);
            memcpy(bytes + at + checked, &crc, sizeof crc);
        }
    }
    write_file(sidecar, bytes, end);
}

/* Reads to the end and gives the first number of at least `wanted` (0 = none), and the last. */
static uint64_t
scan(const char *path, bool skip, uint64_t wanted, uint64_t *last_out)
{
    proto_log_reader_t *reader = NULL;
    proto_log_record_t record;
    uint64_t last = 0;
    uint64_t found = 0;
    volatile uint8_t sink = 0;
    must(proto_log_reader_open(path, &reader, NULL) == STATUS_OK);
    proto_log_reader_set_skip(reader, skip);
    uint64_t before = proto_log_reader_offset(reader);
    proto_status_t status;
    while ((status = proto_log_reader_next(reader, &record)) == STATUS_OK) {
        must(record.sequence == 0 || record.sequence >= last);
        must(proto_log_reader_offset(reader) > before);
        before = proto_log_reader_offset(reader);
        last = record.sequence != 0 ? record.sequence : last;
        found = found == 0 && record.sequence >= wanted ? record.sequence : found;
        for (uint32_t part = 0; part < record.part_count; part++) {
            for (size_t at = 0; at < record.parts[part].size_bytes; at++) {
                sink = (uint8_t)(sink ^ record.parts[part].data[at]);
            }
        }
    }
    must(skip ? status == STATUS_END || status == STATUS_AGAIN : true);
    must(status == STATUS_END || proto_log_reader_why(reader)[0] != '\0' || skip);
    proto_log_reader_close(&reader);
    if (last_out != NULL) {
        *last_out = last;
    }
    return found;
}

static void
look_up(uint64_t wanted)
{
    proto_log_index_t *index = NULL;
    proto_log_reader_t *reader = NULL;
    proto_log_record_t record;
    must(proto_log_index_open(segment, &index, NULL, NULL) == STATUS_OK);
    must(proto_log_reader_open(segment, &reader, NULL) == STATUS_OK);
    uint64_t found = scan(segment, false, wanted, NULL);
    proto_status_t status = proto_log_index_seek_sequence(index, reader, wanted);
    if (status == STATUS_OK && proto_log_reader_next(reader, &record) == STATUS_OK && found != 0 &&
        record.sequence != 0) {
        must(record.sequence >= wanted);
    }
    (void)!proto_log_index_seek_time(index, reader, wanted);
    for (uint32_t at = 0; at < proto_log_index_count(index); at++) {
        (void)proto_log_index_may_hold(proto_log_index_at(index, at), wanted);
    }
    proto_log_reader_close(&reader);
    proto_log_index_close(&index);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    if (folder[0] == '\0') {
        make_folder();
    }
    uint16_t sidecar_size;
    if (size_bytes < 3 || size_bytes > SIZE_MAX_BYTES) {
        return 0;
    }
    uint8_t flags = data[0];
    memcpy(&sidecar_size, data + 1, sizeof sidecar_size);
    data += 3;
    size_bytes -= 3;
    size_t index_size = sidecar_size < size_bytes ? sidecar_size : size_bytes;
    proto_log_header_t header;
    memset(&header, 0, sizeof header);
    header.version = PROTO_LOG_VERSION;
    header.segment_id[3] = 7;
    proto_log_header_encode(&header, file);
    size_t records_size = size_bytes - index_size;
    if (records_size > 0) {
        memcpy(file + PROTO_LOG_HEADER_SIZE_BYTES, data + index_size, records_size);
    }
    if ((flags & 1) != 0) {
        repair_records(file + PROTO_LOG_HEADER_SIZE_BYTES, records_size);
    }
    write_file(segment, file, PROTO_LOG_HEADER_SIZE_BYTES + records_size);
    if ((flags & 8) != 0) {
        must(proto_log_index_rebuild(segment, NULL) == STATUS_OK);
        proto_log_index_state_t state = PROTO_LOG_INDEX_WRONG;
        must(proto_log_index_check(segment, &state, NULL) == STATUS_OK);
        must(state == PROTO_LOG_INDEX_GOOD || state == PROTO_LOG_INDEX_PARTIAL);
    } else {
        write_sidecar(data, index_size, header.segment_id, flags);
    }
    uint64_t last = 0;
    (void)scan(segment, true, 0, &last);
    look_up(last);
    look_up(last / 2 + 1);
    proto_log_verdict_t verdict;
    must(proto_log_verify(segment, &verdict, NULL) == STATUS_OK);
    must(proto_log_recover(segment, fixed, NULL, NULL) == STATUS_OK);
    proto_log_verdict_t after;
    must(proto_log_verify(fixed, &after, NULL) == STATUS_OK);
    must(after.damage_count == 0 && after.torn_bytes == 0);
    must(after.records >= verdict.records);
    (void)unlink(fixed);
    return 0;
}
