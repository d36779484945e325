/* One record as bytes:
 *   u32 size of what follows the check | u32 crc32c of it | u8 kind | u8 flags | u16 channel |
 *   u64 sequence | u64 time | u64 link sequence | u8 parts | (u32 size, bytes)... | zeros to 8 */
#include <string.h>

#include "proto_log.h"
#include "proto_require.h"

enum {
    OFFSET_CRC = 4,
    OFFSET_KIND = 8,
    OFFSET_FLAGS = 9,
    OFFSET_CHANNEL = 10,
    OFFSET_SEQUENCE = 12,
    OFFSET_TIME = 20,
    OFFSET_LINK_SEQUENCE = 28,
    OFFSET_PART_COUNT = 36,
    PART_HEAD_SIZE = 4,
    PREFIX_SIZE = 8, /* size and check */
};
_Static_assert(OFFSET_PART_COUNT + 1 == PROTO_LOG_RECORD_HEAD_SIZE_BYTES, "layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are stored as they are");

const char *
proto_log_kind_name(proto_log_kind_t kind)
{
    switch (kind) {
#define PROTO_LOG_KIND_CASE(name, value, text)                                                     \
    case PROTO_LOG_##name:                                                                         \
        return #name;
        PROTO_LOG_KIND_LIST(PROTO_LOG_KIND_CASE)
#undef PROTO_LOG_KIND_CASE
    }
    return "UNKNOWN";
}

size_t
proto_log_record_size_bytes(const proto_log_record_t *record)
{
    require(record->part_count <= PROTO_LOG_PART_COUNT_MAX);
    size_t size_bytes = PROTO_LOG_RECORD_HEAD_SIZE_BYTES;
    for (uint32_t index = 0; index < record->part_count; index++) {
        if (record->parts[index].size_bytes > PROTO_LOG_RECORD_SIZE_MAX) {
            return PROTO_LOG_RECORD_SIZE_MAX + 8;
        }
        size_bytes += PART_HEAD_SIZE + record->parts[index].size_bytes;
    }
    if (size_bytes > PROTO_LOG_RECORD_SIZE_MAX) {
        return PROTO_LOG_RECORD_SIZE_MAX + 8;
    }
    return (size_bytes + 7) & ~(size_t)7;
}

void
proto_log_record_encode(const proto_log_record_t *record, bool crc, uint8_t *out)
{
    size_t size_bytes = proto_log_record_size_bytes(record);
    require(size_bytes <= PROTO_LOG_RECORD_SIZE_MAX);
    uint32_t rest = (uint32_t)(size_bytes - PREFIX_SIZE);
    uint32_t check = 0;
    memcpy(out, &rest, sizeof rest);
    memcpy(out + OFFSET_CRC, &check, sizeof check);
    out[OFFSET_KIND] = (uint8_t)record->kind;
    out[OFFSET_FLAGS] = record->flags;
    memcpy(out + OFFSET_CHANNEL, &record->channel, sizeof record->channel);
    memcpy(out + OFFSET_SEQUENCE, &record->sequence, sizeof record->sequence);
    memcpy(out + OFFSET_TIME, &record->time_ns, sizeof record->time_ns);
    memcpy(out + OFFSET_LINK_SEQUENCE, &record->link_sequence, sizeof record->link_sequence);
    out[OFFSET_PART_COUNT] = (uint8_t)record->part_count;
    uint8_t *at = out + PROTO_LOG_RECORD_HEAD_SIZE_BYTES;
    for (uint32_t index = 0; index < record->part_count; index++) {
        const proto_bytes_t *part = &record->parts[index];
        uint32_t part_size = (uint32_t)part->size_bytes;
        memcpy(at, &part_size, sizeof part_size);
        at += PART_HEAD_SIZE;
        if (part->size_bytes > 0) {
            memcpy(at, part->data, part->size_bytes);
            at += part->size_bytes;
        }
    }
    memset(at, 0, (size_t)(out + size_bytes - at));
    if (crc) {
        check = proto_crc32c(0, out + PREFIX_SIZE, rest);
        memcpy(out + OFFSET_CRC, &check, sizeof check);
    }
}

/* The parts between the head and the end of the record. */
static proto_status_t
decode_parts(const uint8_t *at, const uint8_t *end, proto_log_record_t *record)
{
    for (uint32_t index = 0; index < record->part_count; index++) {
        uint32_t part_size;
        if ((size_t)(end - at) < PART_HEAD_SIZE) {
            return STATUS_ERR_MALFORMED;
        }
        memcpy(&part_size, at, sizeof part_size);
        at += PART_HEAD_SIZE;
        if (part_size > (size_t)(end - at)) {
            return STATUS_ERR_MALFORMED;
        }
        record->parts[index] = (proto_bytes_t){part_size > 0 ? at : NULL, part_size};
        at += part_size;
    }
    return end - at < 8 ? STATUS_OK : STATUS_ERR_MALFORMED;
}

proto_status_t
proto_log_record_decode(proto_bytes_t bytes, bool crc, proto_log_record_t *out, size_t *size_bytes)
{
    uint32_t rest;
    if (bytes.size_bytes < PREFIX_SIZE) {
        return STATUS_AGAIN;
    }
    memcpy(&rest, bytes.data, sizeof rest);
    if (rest < PROTO_LOG_RECORD_HEAD_SIZE_BYTES - PREFIX_SIZE || rest % 8 != 0 ||
        rest > PROTO_LOG_RECORD_SIZE_MAX - PREFIX_SIZE) {
        return STATUS_ERR_MALFORMED;
    }
    if (rest > bytes.size_bytes - PREFIX_SIZE) {
        return STATUS_AGAIN;
    }
    if (crc) {
        uint32_t check;
        memcpy(&check, bytes.data + OFFSET_CRC, sizeof check);
        if (check != proto_crc32c(0, bytes.data + PREFIX_SIZE, rest)) {
            return STATUS_ERR_MALFORMED;
        }
    }
    proto_log_record_t record;
    memset(&record, 0, sizeof record);
    record.kind = (proto_log_kind_t)bytes.data[OFFSET_KIND];
    record.flags = bytes.data[OFFSET_FLAGS];
    memcpy(&record.channel, bytes.data + OFFSET_CHANNEL, sizeof record.channel);
    memcpy(&record.sequence, bytes.data + OFFSET_SEQUENCE, sizeof record.sequence);
    memcpy(&record.time_ns, bytes.data + OFFSET_TIME, sizeof record.time_ns);
    memcpy(&record.link_sequence, bytes.data + OFFSET_LINK_SEQUENCE, sizeof record.link_sequence);
    record.part_count = bytes.data[OFFSET_PART_COUNT];
    if (record.part_count > PROTO_LOG_PART_COUNT_MAX) {
        return STATUS_ERR_MALFORMED;
    }
    proto_status_t status = decode_parts(bytes.data + PROTO_LOG_RECORD_HEAD_SIZE_BYTES,
                                         bytes.data + PREFIX_SIZE + rest, &record);
    if (status == STATUS_OK) {
        *out = record;
        *size_bytes = PREFIX_SIZE + (size_t)rest;
    }
    return status;
}
