#include "proto_log_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Where each field of the header lies; the rest of the page is zero and kept for later. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_HEADER_SIZE = 12,
    AT_SEGMENT_ID = 16,
    AT_TIME = 32,
    AT_REALTIME = 40,
    AT_EPOCH = 48,
    AT_SCHEMA_VERSION = 56,
    AT_SEGMENT_INDEX = 60,
    AT_SCHEMA_HASH = 64,
    AT_CONFIG_DIGEST = 72,
    AT_FIRST_SEQUENCE = 80,
    AT_ROLE = 88,
    AT_NAME = 96,
    AT_HOST = 128,
    AT_BOOT = 192,
    AT_BUILD = 256,
    AT_MODEL = 320,
    AT_END = AT_MODEL + PROTO_LOG_MODEL_SIZE_BYTES,
    AT_CRC = PROTO_LOG_HEADER_SIZE_BYTES - 4,
};
_Static_assert(AT_NAME + PROTO_NAME_SIZE_BYTES == AT_HOST, "layout");
_Static_assert(AT_HOST + PROTO_LOG_HOST_SIZE_BYTES == AT_BOOT, "layout");
_Static_assert(AT_BOOT + PROTO_LOG_HOST_SIZE_BYTES == AT_BUILD, "layout");
_Static_assert(AT_BUILD + PROTO_LOG_BUILD_SIZE_BYTES == AT_MODEL, "layout");
_Static_assert(AT_END <= AT_CRC, "layout");

static const uint8_t magic[8] = {'A', 'L', 'O', 'G', '\r', '\n', 0x1a, '\n'};

#define PUT(at, value) memcpy(out + (at), &(value), sizeof(value))
#define GET(at, value) memcpy(&(value), in + (at), sizeof(value))

void
proto_log_header_encode(const proto_log_header_t *header, uint8_t out[PROTO_LOG_HEADER_SIZE_BYTES])
{
    uint32_t header_size = PROTO_LOG_HEADER_SIZE_BYTES;
    uint32_t role = (uint32_t)header->role;
    memset(out, 0, PROTO_LOG_HEADER_SIZE_BYTES);
    memcpy(out + AT_MAGIC, magic, sizeof magic);
    PUT(AT_VERSION, header->version);
    PUT(AT_HEADER_SIZE, header_size);
    PUT(AT_SEGMENT_ID, header->segment_id);
    PUT(AT_TIME, header->time_ns);
    PUT(AT_REALTIME, header->realtime_ns);
    PUT(AT_EPOCH, header->epoch);
    PUT(AT_SCHEMA_VERSION, header->schema_version);
    PUT(AT_SEGMENT_INDEX, header->segment_index);
    PUT(AT_SCHEMA_HASH, header->schema_hash);
    PUT(AT_CONFIG_DIGEST, header->config_digest);
    PUT(AT_FIRST_SEQUENCE, header->first_sequence);
    PUT(AT_ROLE, role);
    PUT(AT_NAME, header->name);
    PUT(AT_HOST, header->host);
    PUT(AT_BOOT, header->boot);
    PUT(AT_BUILD, header->build);
    PUT(AT_MODEL, header->model);
    uint32_t crc = proto_crc32c(0, out, AT_CRC);
    PUT(AT_CRC, crc);
}

proto_status_t
proto_log_fail(proto_error_t *error, const char *path, const char *what)
{
    if (error != NULL) {
        (void)snprintf(error->detail, sizeof error->detail, "%.70s: %.44s: %.40s", path, what,
                       strerror(errno));
    }
    return STATUS_ERR_IO;
}

static proto_status_t
refuse(proto_error_t *error, proto_status_t status, const char *why)
{
    if (error != NULL) {
        (void)snprintf(error->detail, sizeof error->detail, "log segment: %s", why);
    }
    return status;
}

proto_status_t
proto_log_header_decode(const uint8_t in[PROTO_LOG_HEADER_SIZE_BYTES], proto_log_header_t *out,
                        proto_error_t *error)
{
    proto_log_header_t header;
    uint32_t header_size = 0;
    uint32_t role = 0;
    uint32_t crc = 0;
    memset(&header, 0, sizeof header);
    if (memcmp(in + AT_MAGIC, magic, sizeof magic) != 0) {
        return refuse(error, STATUS_ERR_MALFORMED, "the file does not begin with ALOG");
    }
    GET(AT_CRC, crc);
    if (crc != proto_crc32c(0, in, AT_CRC)) {
        return refuse(error, STATUS_ERR_MALFORMED, "the header is damaged (CRC)");
    }
    GET(AT_VERSION, header.version);
    GET(AT_HEADER_SIZE, header_size);
    if (header.version != PROTO_LOG_VERSION || header_size != PROTO_LOG_HEADER_SIZE_BYTES) {
        return refuse(error, STATUS_ERR_VERSION, "a format version that this build cannot read");
    }
    GET(AT_SEGMENT_ID, header.segment_id);
    GET(AT_TIME, header.time_ns);
    GET(AT_REALTIME, header.realtime_ns);
    GET(AT_EPOCH, header.epoch);
    GET(AT_SCHEMA_VERSION, header.schema_version);
    GET(AT_SEGMENT_INDEX, header.segment_index);
    GET(AT_SCHEMA_HASH, header.schema_hash);
    GET(AT_CONFIG_DIGEST, header.config_digest);
    GET(AT_FIRST_SEQUENCE, header.first_sequence);
    GET(AT_ROLE, role);
    GET(AT_NAME, header.name);
    GET(AT_HOST, header.host);
    GET(AT_BOOT, header.boot);
    GET(AT_BUILD, header.build);
    GET(AT_MODEL, header.model);
    header.role = (proto_role_t)(role <= UINT8_MAX ? role : 0);
    header.name[sizeof header.name - 1] = '\0';
    header.host[sizeof header.host - 1] = '\0';
    header.boot[sizeof header.boot - 1] = '\0';
    header.build[sizeof header.build - 1] = '\0';
    header.model[sizeof header.model - 1] = '\0';
    *out = header;
    return STATUS_OK;
}
