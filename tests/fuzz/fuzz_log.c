/* A log segment of any content.  The reader wants a file, so the input goes to a memfd.  An input
 * that does not begin as a segment is taken as the records behind a good header, or nearly every
 * input would end at the header's CRC; and the CRCs of records are put right, for the same reason,
 * if the first byte is odd. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto_log.h"
#include "proto_log_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static uint8_t file[PROTO_LOG_HEADER_SIZE_BYTES + (1 << 20)];

static void
repair_checks(uint8_t *at, size_t left)
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
read_all(const char *path)
{
    proto_log_reader_t *reader = NULL;
    proto_log_record_t record;
    proto_error_t error = {""};
    if (proto_log_reader_open(path, &reader, &error) != STATUS_OK) {
        if (error.detail[0] == '\0') {
            abort();
        }
        return;
    }
    volatile uint8_t sink = 0;
    uint64_t before = proto_log_reader_offset(reader);
    while (proto_log_reader_next(reader, &record) == STATUS_OK) {
        for (uint32_t part = 0; part < record.part_count; part++) {
            for (size_t at = 0; at < record.parts[part].size_bytes; at++) {
                sink = (uint8_t)(sink ^ record.parts[part].data[at]);
            }
        }
        if (proto_log_reader_offset(reader) <= before) {
            abort();
        }
        before = proto_log_reader_offset(reader);
    }
    if (before > proto_log_reader_size(reader)) {
        abort();
    }
    proto_log_reader_close(&reader);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (size_bytes == 0 || size_bytes > (1 << 20)) {
        return 0;
    }
    size_t file_size = size_bytes;
    if (size_bytes >= 4 && memcmp(data, "ALOG", 4) == 0) {
        memcpy(file, data, size_bytes);
    } else {
        proto_log_header_t header;
        memset(&header, 0, sizeof header);
        header.version = PROTO_LOG_VERSION;
        proto_log_header_encode(&header, file);
        memcpy(file + PROTO_LOG_HEADER_SIZE_BYTES, data + 1, size_bytes - 1);
        if ((data[0] & 1) != 0) {
            repair_checks(file + PROTO_LOG_HEADER_SIZE_BYTES, size_bytes - 1);
        }
        file_size = PROTO_LOG_HEADER_SIZE_BYTES + size_bytes - 1;
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, file, file_size, 0) != (ssize_t)file_size) {
        abort();
    }
    read_all(path);
    return 0;
}
