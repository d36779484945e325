/* proto_log_index_build.c - the bytes of a sidecar, and the block that grows with the records.
 *   header: magic | u32 version | u32 size of a block | 16 bytes id of the segment | u32 span |
 *           zeros | u32 crc32c of all before
 *   block:  u64 offset, size, first and last sequence, first and last time | u32 records |
 *           u32 index of the block | 256 bytes bloom filter | u32 zero | u32 crc32c of the
 * segment's id and all before: a block copied from another sidecar does not fit */
#include <string.h>

#include "proto_log_file.h"
#include "proto_require.h"

enum {
    AT_VERSION = 8,
    AT_BLOCK_SIZE = 12,
    AT_SEGMENT_ID = 16,
    AT_SPAN = 32,
    AT_HEADER_CRC = PROTO_LOG_INDEX_HEADER_SIZE_BYTES - 4,

    AT_NUMBERS = 0,
    NUMBER_COUNT = 6,
    AT_RECORD_COUNT = 48,
    AT_BLOCK_INDEX = 52,
    AT_BLOOM = 56,
    AT_BLOCK_CRC = PROTO_LOG_INDEX_BLOCK_SIZE_BYTES - 4,

    BLOOM_BITS = PROTO_LOG_INDEX_BLOOM_SIZE_BYTES * 8,
    BLOOM_PROBES = 4,
};
_Static_assert(AT_BLOOM + PROTO_LOG_INDEX_BLOOM_SIZE_BYTES + 4 == AT_BLOCK_CRC, "layout");

static const uint8_t magic[8] = {'A', 'I', 'D', 'X', '\r', '\n', 0x1a, '\n'};

/* Four positions from one mixed number; request ids count up, so their low bits alone would do no
 * good. */
static uint32_t
bloom_position(uint64_t request, uint32_t probe)
{
    uint64_t mixed = request * UINT64_C(0x9e3779b97f4a7c15);
    mixed ^= mixed >> 29;
    mixed *= UINT64_C(0xbf58476d1ce4e5b9);
    mixed ^= mixed >> 32;
    return (uint32_t)(mixed >> (16 * probe)) % BLOOM_BITS;
}

static void
bloom_add(uint8_t bloom[PROTO_LOG_INDEX_BLOOM_SIZE_BYTES], uint64_t request)
{
    for (uint32_t probe = 0; probe < BLOOM_PROBES; probe++) {
        uint32_t position = bloom_position(request, probe);
        bloom[position / 8] = (uint8_t)(bloom[position / 8] | 1u << position % 8);
    }
}

bool
proto_log_index_may_hold(const proto_log_index_block_t *block, uint64_t request)
{
    bool holds = true;
    for (uint32_t probe = 0; probe < BLOOM_PROBES; probe++) {
        uint32_t position = bloom_position(request, probe);
        holds = holds && (block->bloom[position / 8] >> position % 8 & 1) != 0;
    }
    return holds;
}

void
proto_log_index_begin(proto_log_index_builder_t *self, const uint8_t segment_id[16],
                      uint8_t header_out[PROTO_LOG_INDEX_HEADER_SIZE_BYTES])
{
    const uint32_t version = PROTO_LOG_INDEX_VERSION;
    const uint32_t block_size = PROTO_LOG_INDEX_BLOCK_SIZE_BYTES;
    const uint32_t span = PROTO_LOG_INDEX_SPAN_BYTES;
    memset(self, 0, sizeof *self);
    memcpy(self->segment_id, segment_id, sizeof self->segment_id);
    memset(header_out, 0, PROTO_LOG_INDEX_HEADER_SIZE_BYTES);
    memcpy(header_out, magic, sizeof magic);
    memcpy(header_out + AT_VERSION, &version, sizeof version);
    memcpy(header_out + AT_BLOCK_SIZE, &block_size, sizeof block_size);
    memcpy(header_out + AT_SEGMENT_ID, segment_id, sizeof self->segment_id);
    memcpy(header_out + AT_SPAN, &span, sizeof span);
    uint32_t crc = proto_crc32c(0, header_out, AT_HEADER_CRC);
    memcpy(header_out + AT_HEADER_CRC, &crc, sizeof crc);
}

proto_status_t
proto_log_index_header_decode(const uint8_t in[PROTO_LOG_INDEX_HEADER_SIZE_BYTES],
                              uint8_t segment_id_out[16])
{
    uint32_t crc;
    uint32_t version;
    uint32_t block_size;
    memcpy(&crc, in + AT_HEADER_CRC, sizeof crc);
    memcpy(&version, in + AT_VERSION, sizeof version);
    memcpy(&block_size, in + AT_BLOCK_SIZE, sizeof block_size);
    if (memcmp(in, magic, sizeof magic) != 0 || crc != proto_crc32c(0, in, AT_HEADER_CRC)) {
        return STATUS_ERR_MALFORMED;
    }
    if (version != PROTO_LOG_INDEX_VERSION || block_size != PROTO_LOG_INDEX_BLOCK_SIZE_BYTES) {
        return STATUS_ERR_VERSION;
    }
    memcpy(segment_id_out, in + AT_SEGMENT_ID, 16);
    return STATUS_OK;
}

bool
proto_log_index_add(proto_log_index_builder_t *self, const proto_log_record_t *record,
                    uint64_t offset, uint64_t size_bytes)
{
    proto_log_index_block_t *block = &self->block;
    if (block->record_count == 0) {
        block->offset = offset;
        block->sequence_first = record->sequence;
        block->time_first_ns = record->time_ns;
    }
    require(offset == block->offset + block->size_bytes);
    block->size_bytes += size_bytes;
    block->sequence_last = record->sequence;
    block->time_last_ns = record->time_ns;
    block->record_count++;
    bool is_message = record->kind == PROTO_LOG_IN || record->kind == PROTO_LOG_OUT;
    proto_header_t header;
    if (is_message && record->part_count > 0 &&
        proto_header_decode(record->parts[0], &header) == STATUS_OK && header.request != 0) {
        bloom_add(block->bloom, header.request);
    }
    return block->size_bytes >= PROTO_LOG_INDEX_SPAN_BYTES;
}

static uint32_t
block_crc(const uint8_t segment_id[16], const uint8_t *bytes)
{
    return proto_crc32c(proto_crc32c(0, segment_id, 16), bytes, AT_BLOCK_CRC);
}

void
proto_log_index_encode(proto_log_index_builder_t *self,
                       uint8_t out[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES])
{
    const proto_log_index_block_t *block = &self->block;
    require(block->record_count > 0);
    const uint64_t numbers[NUMBER_COUNT] = {block->offset,         block->size_bytes,
                                            block->sequence_first, block->sequence_last,
                                            block->time_first_ns,  block->time_last_ns};
    memset(out, 0, PROTO_LOG_INDEX_BLOCK_SIZE_BYTES);
    memcpy(out + AT_NUMBERS, numbers, sizeof numbers);
    memcpy(out + AT_RECORD_COUNT, &block->record_count, sizeof block->record_count);
    memcpy(out + AT_BLOCK_INDEX, &self->block_index, sizeof self->block_index);
    memcpy(out + AT_BLOOM, block->bloom, sizeof block->bloom);
    uint32_t crc = block_crc(self->segment_id, out);
    memcpy(out + AT_BLOCK_CRC, &crc, sizeof crc);
    self->block_index++;
    memset(&self->block, 0, sizeof self->block);
}

proto_status_t
proto_log_index_decode(const uint8_t in[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES],
                       const uint8_t segment_id[16], uint32_t block_index,
                       proto_log_index_block_t *out)
{
    uint32_t crc;
    uint32_t found_index;
    uint64_t numbers[NUMBER_COUNT];
    proto_log_index_block_t block;
    memcpy(&crc, in + AT_BLOCK_CRC, sizeof crc);
    memcpy(&found_index, in + AT_BLOCK_INDEX, sizeof found_index);
    if (crc != block_crc(segment_id, in) || found_index != block_index) {
        return STATUS_ERR_MALFORMED;
    }
    memcpy(numbers, in + AT_NUMBERS, sizeof numbers);
    block.offset = numbers[0];
    block.size_bytes = numbers[1];
    block.sequence_first = numbers[2];
    block.sequence_last = numbers[3];
    block.time_first_ns = numbers[4];
    block.time_last_ns = numbers[5];
    memcpy(&block.record_count, in + AT_RECORD_COUNT, sizeof block.record_count);
    memcpy(block.bloom, in + AT_BLOOM, sizeof block.bloom);
    *out = block;
    return STATUS_OK;
}
