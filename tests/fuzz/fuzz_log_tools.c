/* A segment of any content, read by every tool of `onepath log`: sets, views, figures, timelines,
 * exports, excerpts, redaction, minimisation, comparison, recovery.  As in fuzz_log.c an input that
 * does not begin as a segment is taken as the records behind a good header, with their checks put
 * right, so that what lies in records is reached. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log_maker.h"
#include "log_tools.h"
#include "proto_log_file.h"

enum { INPUT_MAX = 1 << 16, RECORD_PREFIX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static uint8_t file[PROTO_LOG_HEADER_SIZE_BYTES + INPUT_MAX];
static char folder[512], scratch[600], path[600];
static FILE *sink;

static void
clean_up(void)
{
    maker_remove(folder);
}

static void
repair_checks(uint8_t *at, size_t left)
{
    uint32_t rest;
    while (left >= RECORD_PREFIX) {
        memcpy(&rest, at, sizeof rest);
        if (rest > left - RECORD_PREFIX) {
            return;
        }
        uint32_t crc = proto_crc32c(0, at + RECORD_PREFIX, rest);
        memcpy(at + 4, &crc, sizeof crc);
        at += RECORD_PREFIX + (size_t)rest;
        left -= RECORD_PREFIX + (size_t)rest;
    }
}

static void
set_up(void)
{
    maker_folder(folder, sizeof folder);
    (void)snprintf(scratch, sizeof scratch, "%s/scratch", folder);
    (void)snprintf(path, sizeof path, "%s/fuzz.alog", folder);
    sink = fopen("/dev/null", "w");
    if (sink == NULL || atexit(clean_up) != 0) {
        abort();
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    if (sink == NULL) {
        set_up();
    }
    if (size_bytes == 0 || size_bytes > INPUT_MAX) {
        return 0;
    }
    size_t file_size = size_bytes;
    if (size_bytes >= 4 && memcmp(data, "ALOG", 4) == 0) {
        memcpy(file, data, size_bytes);
    } else {
        proto_log_header_t header = {.version = PROTO_LOG_VERSION,
                                     .epoch = 1,
                                     .role = (proto_role_t)(data[0] % 4),
                                     .name = "scheduler"};
        proto_log_header_encode(&header, file);
        memcpy(file + PROTO_LOG_HEADER_SIZE_BYTES, data + 1, size_bytes - 1);
        repair_checks(file + PROTO_LOG_HEADER_SIZE_BYTES, size_bytes - 1);
        file_size = PROTO_LOG_HEADER_SIZE_BYTES + size_bytes - 1;
    }
    maker_write(path, file, file_size);
    bool writers = data[size_bytes - 1] % 4 == 0; /* files take time */
    maker_remove(scratch);
    if (writers && mkdir(scratch, 0700) != 0) {
        abort();
    }
    log_tools_run_all(path, scratch, writers, sink);
    return 0;
}
