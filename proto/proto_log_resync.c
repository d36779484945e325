/* proto_log_resync.c - a reader's way over damage: the next place where length, check and sequence
 * of a record hold. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto_log_reader_private.h"

/* How many records are missing between the last one and `next`, beyond what DROP records say. */
static uint64_t
lost_before(const proto_log_reader_t *self, const proto_log_record_t *next)
{
    uint64_t last = self->last_is_drop ? self->last_sequence - 1 : self->last_sequence;
    if (self->last_sequence == 0) {
        last = self->header.first_sequence > 0 ? self->header.first_sequence - 1 : UINT64_MAX;
    }
    uint64_t told = 0;
    if (next->kind == PROTO_LOG_DROP && next->part_count > 0 &&
        next->parts[0].size_bytes == sizeof told) {
        memcpy(&told, next->parts[0].data, sizeof told);
    }
    uint64_t gap = next->sequence > last ? next->sequence - last - 1 : 0;
    return gap > told ? gap - told : 0;
}

/* Whether a record that could be good begins with these bytes; cheap, for millions of offsets. */
static bool
is_plausible(const proto_log_reader_t *self, const uint8_t *bytes, uint64_t left)
{
    uint32_t rest;
    uint64_t sequence;
    memcpy(&rest, bytes, sizeof rest);
    if (rest < PROTO_LOG_RECORD_HEAD_SIZE_BYTES - PROTO_LOG_PREFIX_SIZE_BYTES ||
        rest % PROTO_LOG_ALIGN_BYTES != 0 || rest > left - PROTO_LOG_PREFIX_SIZE_BYTES ||
        bytes[8] == 0 || bytes[8] >= PROTO_LOG_KIND_COUNT ||
        bytes[PROTO_LOG_RECORD_HEAD_SIZE_BYTES - 1] > PROTO_LOG_PART_COUNT_MAX) {
        return false;
    }
    memcpy(&sequence, bytes + 12, sizeof sequence);
    return proto_log_reader_order_holds(self, sequence);
}

proto_status_t
proto_log_reader_resync(proto_log_reader_t *self, uint64_t *begin_offset, uint64_t *end_offset,
                        uint64_t *records_lost)
{
    uint64_t begin = self->offset;
    *begin_offset = begin;
    *records_lost = 0;
    if (!proto_log_reader_refresh_size(self)) {
        return STATUS_ERR_IO;
    }
    *end_offset = self->file_size_bytes > begin ? self->file_size_bytes : begin;
    /* A forged file could make every offset plausible and every check long: the work is bounded. */
    uint64_t left = *end_offset - begin;
    uint64_t budget_bytes = 4 * left + PROTO_LOG_RECORD_SIZE_MAX;
    static const size_t head_size = (PROTO_LOG_RECORD_HEAD_SIZE_BYTES + PROTO_LOG_ALIGN_BYTES - 1) /
                                    PROTO_LOG_ALIGN_BYTES * PROTO_LOG_ALIGN_BYTES;
    for (uint64_t at = (begin / PROTO_LOG_ALIGN_BYTES + 1) * PROTO_LOG_ALIGN_BYTES;
         at + head_size <= *end_offset; at += PROTO_LOG_ALIGN_BYTES) {
        self->offset = at;
        proto_bytes_t bytes = proto_log_reader_seen(self);
        if (bytes.size_bytes < head_size) {
            if (!proto_log_reader_load(self, head_size)) {
                self->offset = begin;
                return STATUS_ERR_NO_MEMORY;
            }
            bytes = proto_log_reader_seen(self);
            if (bytes.size_bytes < head_size) {
                break; /* it shrank */
            }
        }
        if (!is_plausible(self, bytes.data, *end_offset - at)) {
            continue;
        }
        uint32_t rest;
        memcpy(&rest, bytes.data, sizeof rest);
        if (rest > budget_bytes) {
            continue;
        }
        budget_bytes -= rest;
        proto_log_record_t record;
        size_t size_bytes = 0;
        proto_status_t status = proto_log_record_decode(bytes, true, &record, &size_bytes);
        if (status == STATUS_AGAIN) { /* longer than what is in the window */
            status = proto_log_reader_decode_here(self, &record, &size_bytes);
        }
        if (status == STATUS_OK) {
            *end_offset = at;
            *records_lost = lost_before(self, &record);
            return STATUS_OK;
        }
    }
    self->offset = begin;
    return STATUS_END;
}

/* Goes on behind the damage; the record tells of it. */
proto_status_t
proto_log_reader_step_over(proto_log_reader_t *self, proto_log_record_t *out)
{
    char why[PROTO_LOG_WHY_SIZE_BYTES];
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t lost = 0;
    memcpy(why, self->why, sizeof why);
    proto_status_t status = proto_log_reader_resync(self, &begin, &end, &lost);
    if (status == STATUS_END) {
        return STATUS_AGAIN; /* nothing good follows, yet: a torn tail */
    }
    if (status != STATUS_OK) {
        return status;
    }
    proto_log_record_t next;
    size_t size_bytes = 0;
    status = proto_log_reader_decode_here(self, &next, &size_bytes);
    if (status != STATUS_OK) {
        return status;
    }
    self->why[0] = '\0';
    self->made_lost = lost;
    (void)snprintf(self->made_why, sizeof self->made_why,
                   "damage, bytes %" PRIu64 " to %" PRIu64 ": %s", begin, end, why);
    memset(out, 0, sizeof *out);
    out->kind = PROTO_LOG_DROP;
    out->is_made = true;
    out->sequence = next.sequence;
    out->time_ns = next.time_ns;
    out->part_count = 2;
    out->parts[0] = (proto_bytes_t){(const uint8_t *)&self->made_lost, sizeof self->made_lost};
    out->parts[1] = (proto_bytes_t){(const uint8_t *)self->made_why, strlen(self->made_why)};
    return STATUS_OK;
}
