#include "log_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log_set_private.h"
#include "proto_log_index.h"
#include "proto_require.h"

/* ---- opening --------------------------------------------------------------------------------- */

void
log_set_close(log_set_t **self_p)
{
    require(self_p != NULL);
    log_set_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < self->stream_count; i++) {
        proto_log_reader_close(&self->streams[i].reader);
        free(self->streams[i].segments);
    }
    for (uint32_t i = 0; i < self->segment_count; i++) {
        free(self->segments[i]->path);
        free(self->segments[i]);
    }
    for (uint32_t i = 0; i < self->root_count; i++) {
        free(self->roots[i]);
    }
    free(self->roots);
    free(self->actor);
    free(self->segments);
    free(self->streams);
    free(self->boots);
    free(self->damages);
    free(self);
    *self_p = NULL;
}

static proto_status_t
copy_options(log_set_t *self, const char *const *paths, uint32_t path_count,
             const log_set_options_t *options)
{
    self->current = -1;
    self->roots = calloc(path_count, sizeof self->roots[0]);
    self->streams = calloc(LOG_SET_STREAM_COUNT_MAX, sizeof self->streams[0]);
    if (self->roots == NULL || self->streams == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < path_count; i++) {
        self->roots[i] = strdup(paths[i]);
        if (self->roots[i] == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->root_count++;
    }
    if (options != NULL) {
        self->epoch = options->epoch;
        self->follow = options->follow;
        self->skip_damage = options->skip_damage;
        self->from_sequence = options->from_sequence;
        self->from_time_ns = options->from_time_ns;
        if (options->actor != NULL) {
            self->actor = strdup(options->actor);
            return self->actor != NULL ? STATUS_OK : STATUS_ERR_NO_MEMORY;
        }
    }
    return STATUS_OK;
}

/* What an empty set means: nothing readable, or nothing of that actor. */
static proto_status_t
refuse_empty(const log_set_t *self, proto_error_t *error)
{
    if (self->damage_count > 0) {
        return log_set_refuse(error, self->damages[0].status, self->damages[0].path,
                              self->damages[0].detail);
    }
    return log_set_refuse(error, STATUS_ERR_NOT_FOUND,
                          self->actor != NULL ? self->actor : self->roots[0],
                          self->actor != NULL ? "no segment is of this actor"
                                              : "no segment is chosen");
}

proto_status_t
log_set_open(const char *const *paths, uint32_t path_count, const log_set_options_t *options,
             log_set_t **out_p, proto_error_t *error)
{
    require(paths != NULL);
    require(path_count > 0);
    require(out_p != NULL);
    log_set_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = copy_options(self, paths, path_count, options);
    if (status == STATUS_OK) {
        status = log_set_look(self, error);
    }
    if (status == STATUS_OK && self->stream_count == 0 && !self->follow) {
        status = refuse_empty(self, error);
    }
    if (status != STATUS_OK) {
        log_set_close(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
log_set_refresh(log_set_t *self)
{
    return log_set_look(self, NULL);
}

/* ---- reading --------------------------------------------------------------------------------- */

static uint64_t
realtime_of(const log_set_t *self, const proto_log_header_t *header, uint64_t time_ns)
{
    for (uint32_t i = 0; i < self->boot_count; i++) {
        if (strcmp(self->boots[i].boot, header->boot) == 0) {
            return time_ns + self->boots[i].offset_ns;
        }
    }
    return time_ns;
}

/* True if all of the segment lies before what is wanted: the next one's header says so. */
static bool
is_passed_over(const log_set_t *self, const log_stream_t *stream)
{
    if (stream->at + 1 >= stream->segment_count || stream->segments[stream->at + 1]->is_bad) {
        return false;
    }
    const proto_log_header_t *next = &stream->segments[stream->at + 1]->header;
    return (self->from_sequence != 0 && next->first_sequence != 0 &&
            next->first_sequence <= self->from_sequence) ||
           (self->from_time_ns != 0 && next->time_ns < self->from_time_ns);
}

/* Goes to the begin of what is wanted, if the sidecar knows where that is.  Damage on the way is
 * met by the next read. */
static void
seek(const log_set_t *self, log_stream_t *stream, const log_segment_t *segment)
{
    proto_log_index_t *index = NULL;
    stream->is_sought = false;
    if ((self->from_sequence == 0 && self->from_time_ns == 0) ||
        proto_log_index_open(segment->path, &index, NULL, NULL) != STATUS_OK) {
        return;
    }
    if (proto_log_index_count(index) > 0) {
        stream->is_sought = true;
        (void)!(self->from_sequence != 0
                    ? proto_log_index_seek_sequence(index, stream->reader, self->from_sequence)
                    : proto_log_index_seek_time(index, stream->reader, self->from_time_ns));
    }
    proto_log_index_close(&index);
}

static proto_status_t
open_reader(log_set_t *self, log_stream_t *stream)
{
    log_segment_t *segment = stream->segments[stream->at];
    proto_error_t why = {{0}};
    proto_status_t status = proto_log_reader_open(segment->path, &stream->reader, &why);
    stream->record_count = 0;
    if (status != STATUS_OK && status != STATUS_ERR_NO_MEMORY) {
        segment->is_bad = true; /* it was good when its header was read */
        log_set_note_damage(self, segment, status, 0, 0, why.detail);
    }
    if (status == STATUS_OK) {
        proto_log_reader_set_skip(stream->reader, self->skip_damage);
        seek(self, stream, segment);
    }
    return status;
}

static void
note_end(log_set_t *self, log_stream_t *stream, proto_status_t status)
{
    uint64_t offset = proto_log_reader_offset(stream->reader);
    uint64_t size = proto_log_reader_size(stream->reader);
    char detail[160];
    (void)snprintf(detail, sizeof detail,
                   "%s at byte %llu of %llu, after %llu whole records: %.60s",
                   status == STATUS_AGAIN           ? "ends within a record"
                   : status == STATUS_ERR_MALFORMED ? "is damaged"
                                                    : "cannot be read",
                   (unsigned long long)offset, (unsigned long long)size,
                   (unsigned long long)stream->record_count, proto_log_reader_why(stream->reader));
    log_set_note_damage(self, stream->segments[stream->at], status, offset, stream->record_count,
                        detail);
}

/* The first damage of a segment that is read on behind it. */
static void
note_skipped(log_set_t *self, log_stream_t *stream, uint64_t offset)
{
    char detail[160];
    (void)snprintf(detail, sizeof detail,
                   "is damaged at byte %llu, after %llu whole records; read on behind it",
                   (unsigned long long)offset, (unsigned long long)stream->record_count - 1);
    log_set_note_damage(self, stream->segments[stream->at], STATUS_ERR_MALFORMED, offset,
                        stream->record_count - 1, detail);
}

/* Reads the stream's next record into its item.  STATUS_END: none, for now or for good. */
static proto_status_t
fill(log_set_t *self, log_stream_t *stream)
{
    while (stream->at < stream->segment_count) {
        log_segment_t *segment = stream->segments[stream->at];
        if (stream->reader == NULL && !segment->is_bad && !is_passed_over(self, stream)) {
            if (open_reader(self, stream) == STATUS_ERR_NO_MEMORY) {
                return STATUS_ERR_NO_MEMORY;
            }
        }
        if (stream->reader == NULL) {
            stream->at++;
            continue;
        }
        uint64_t offset = proto_log_reader_offset(stream->reader);
        proto_status_t status = proto_log_reader_next(stream->reader, &stream->item.record);
        if (status == STATUS_OK) {
            stream->record_count++;
            if (stream->item.record.is_made && !segment->is_noted) {
                note_skipped(self, stream, offset);
            }
            stream->item.header = &segment->header;
            stream->item.path = segment->path;
            stream->item.offset = offset;
            stream->item.realtime_ns =
                realtime_of(self, &segment->header, stream->item.record.time_ns);
            stream->item.stream = stream->lead;
            stream->has_record = true;
            return STATUS_OK;
        }
        if (status == STATUS_ERR_NO_MEMORY) {
            return status;
        }
        bool is_last = stream->at + 1 == stream->segment_count;
        if (self->follow && is_last && (status == STATUS_END || status == STATUS_AGAIN)) {
            return STATUS_END; /* it is being written */
        }
        if (status != STATUS_END) {
            note_end(self, stream, status);
        }
        proto_log_reader_close(&stream->reader);
        stream->at++;
    }
    return STATUS_END;
}

/* One boot: the monotonic clock alone decides, exactly.  Several: the headers' clock pairs do. */
static uint64_t
order_of(const log_set_t *self, const log_stream_t *stream)
{
    return self->boot_count > 1 ? stream->item.realtime_ns : stream->item.record.time_ns;
}

/* True if another lane has given the record already. */
static bool
is_copy(const log_set_t *self, const log_stream_t *stream)
{
    const log_stream_t *lead = &self->streams[stream->lead];
    const proto_log_record_t *record = &stream->item.record;
    if (!lead->has_lanes || record->sequence == 0 || record->sequence > lead->last_sequence) {
        return false;
    }
    /* A DROP has the sequence of the record behind it. */
    return record->sequence < lead->last_sequence || !lead->last_is_drop ||
           record->kind == PROTO_LOG_DROP;
}

/* Reads on to a record that was not given yet, if there is one. */
static proto_status_t
fill_new(log_set_t *self, log_stream_t *stream)
{
    while (!stream->has_record) {
        proto_status_t status = fill(self, stream);
        if (status != STATUS_OK) {
            return status;
        }
        stream->has_record = !is_copy(self, stream);
    }
    return STATUS_OK;
}

/* Lanes go by sequence: true if another one of the incarnation comes first. */
static bool
is_behind(const log_set_t *self, uint32_t index)
{
    const log_stream_t *stream = &self->streams[index];
    if (!self->streams[stream->lead].has_lanes) {
        return false;
    }
    for (uint32_t i = stream->lead; i < self->stream_count; i++) {
        const log_stream_t *other = &self->streams[i];
        uint64_t sequence = other->item.record.sequence;
        if (i != index && other->lead == stream->lead && other->has_record &&
            (sequence < stream->item.record.sequence ||
             (sequence == stream->item.record.sequence && i < index))) {
            return true;
        }
    }
    return false;
}

static void
note_given(log_set_t *self, const log_stream_t *stream)
{
    log_stream_t *lead = &self->streams[stream->lead];
    if (stream->item.record.sequence != 0) {
        lead->last_sequence = stream->item.record.sequence;
        lead->last_is_drop = stream->item.record.kind == PROTO_LOG_DROP;
    }
}

proto_status_t
log_set_next(log_set_t *self, log_set_item_t *out)
{
    require(out != NULL);
    if (self->current >= 0) {
        self->streams[self->current].has_record = false;
        self->current = -1;
    }
    int32_t best = -1;
    for (uint32_t i = 0; i < self->stream_count; i++) {
        log_stream_t *stream = &self->streams[i];
        stream->has_record = stream->has_record && !is_copy(self, stream);
        if (fill_new(self, stream) == STATUS_ERR_NO_MEMORY) {
            return STATUS_ERR_NO_MEMORY;
        }
    }
    for (uint32_t i = 0; i < self->stream_count; i++) {
        const log_stream_t *stream = &self->streams[i];
        if (stream->has_record && !is_behind(self, i) &&
            (best < 0 || order_of(self, stream) < order_of(self, &self->streams[best]))) {
            best = (int32_t)i;
        }
    }
    if (best < 0) {
        return STATUS_END;
    }
    self->current = best;
    note_given(self, &self->streams[best]);
    *out = self->streams[best].item;
    return STATUS_OK;
}

proto_status_t
log_set_rewind(log_set_t *self)
{
    self->current = -1;
    for (uint32_t i = 0; i < self->stream_count; i++) {
        log_stream_t *stream = &self->streams[i];
        proto_log_reader_close(&stream->reader);
        stream->at = 0;
        stream->record_count = 0;
        stream->has_record = false;
        stream->last_sequence = 0;
        stream->last_is_drop = false;
    }
    return STATUS_OK;
}

/* ---- what there is --------------------------------------------------------------------------- */

uint32_t
log_set_stream_count(const log_set_t *self)
{
    return self->stream_count;
}

log_set_stream_t
log_set_stream(const log_set_t *self, uint32_t index)
{
    require(index < self->stream_count);
    const log_stream_t *stream = &self->streams[index];
    return (log_set_stream_t){&stream->segments[0]->header, stream->segment_count};
}

const char *
log_set_segment_path(const log_set_t *self, uint32_t stream, uint32_t index)
{
    require(stream < self->stream_count);
    require(index < self->streams[stream].segment_count);
    return self->streams[stream].segments[index]->path;
}

const proto_log_header_t *
log_set_segment_header(const log_set_t *self, uint32_t stream, uint32_t index)
{
    require(stream < self->stream_count);
    require(index < self->streams[stream].segment_count);
    return &self->streams[stream].segments[index]->header;
}

uint32_t
log_set_damage_count(const log_set_t *self)
{
    return self->damage_count;
}

const log_damage_t *
log_set_damage(const log_set_t *self, uint32_t index)
{
    require(index < self->damage_count);
    return &self->damages[index];
}
