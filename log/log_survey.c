#include "log_survey.h"

#include <string.h>

#include "log_set.h"
#include "proto_require.h"

static uint64_t
drop_count(const proto_log_record_t *record)
{
    uint64_t count = 0;
    if (record->part_count > 0 && record->parts[0].size_bytes >= sizeof count) {
        memcpy(&count, record->parts[0].data, sizeof count);
    }
    return count;
}

void
log_gaps_pass(log_gaps_t *self, const proto_log_record_t *record)
{
    if (record->kind == PROTO_LOG_DROP) {
        /* It has the sequence of the record that follows, and accounts for the jump. */
        self->gap_count++;
        self->missing_count += drop_count(record);
        self->expected = record->sequence;
        return;
    }
    if (self->expected != 0 && record->sequence > self->expected) {
        self->gap_count++;
        self->missing_count += record->sequence - self->expected;
    }
    self->expected = record->sequence + 1;
}

static void
count_record(log_survey_t *self, const proto_log_record_t *record)
{
    if (self->record_count++ == 0) {
        self->first_time_ns = record->time_ns;
        self->first_sequence = record->sequence;
    }
    self->last_time_ns = record->time_ns;
    self->last_sequence = record->sequence;
    uint32_t kind = (uint32_t)record->kind;
    self->kind_counts[kind < PROTO_LOG_KIND_COUNT ? kind : 0]++;
    self->redacted_count += (record->flags & PROTO_LOG_FLAG_REDACTED) != 0 ? 1U : 0U;
    proto_header_t header;
    if ((record->kind == PROTO_LOG_IN || record->kind == PROTO_LOG_OUT) && record->part_count > 0 &&
        proto_header_decode(record->parts[0], &header) == STATUS_OK) {
        uint32_t number = (uint32_t)header.kind;
        self->message_counts[proto_kind_known(header.kind) && number <= LOG_MESSAGE_NUMBER_MAX
                                 ? number
                                 : 0]++;
    }
}

proto_status_t
log_survey_segment(const char *path, log_survey_t *out, proto_error_t *error)
{
    require(out != NULL);
    proto_log_reader_t *reader = NULL;
    proto_status_t status = proto_log_reader_open(path, &reader, error);
    if (status != STATUS_OK) {
        return status;
    }
    memset(out, 0, sizeof *out);
    out->header = *proto_log_reader_header(reader);
    log_set_make_name_plain(out->header.name);
    log_gaps_t gaps = {0};
    proto_log_record_t record;
    while ((status = proto_log_reader_next(reader, &record)) == STATUS_OK) {
        count_record(out, &record);
        log_gaps_pass(&gaps, &record);
    }
    out->gap_count = gaps.gap_count;
    out->missing_count = gaps.missing_count;
    out->status = status;
    out->damage_offset = proto_log_reader_offset(reader);
    out->size_bytes = proto_log_reader_size(reader);
    proto_log_reader_close(&reader);
    return STATUS_OK;
}
