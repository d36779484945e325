#include "log_minimize_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log_cut.h"
#include "proto_require.h"

enum { UNIT_ALWAYS = 0 };
#define UNIT_NEVER UINT32_MAX

/* ---- reading the set ------------------------------------------------------------------------- */

typedef struct {
    log_minimize_plan_t *plan;
    uint32_t capacity;
    uint32_t unit_capacity;
    uint32_t
        *stream_units;  /* the unit that each stream is in; UNIT_ALWAYS before its first input */
    bool *has_snapshot; /* of each stream */
} scan_t;

static bool
grow_records(scan_t *scan)
{
    log_minimize_plan_t *plan = scan->plan;
    if (plan->record_count < scan->capacity) {
        return true;
    }
    size_t capacity = scan->capacity == 0 ? 1024 : (size_t)scan->capacity * 2;
    uint32_t *units = realloc(plan->units, capacity * sizeof units[0]);
    if (units != NULL) {
        plan->units = units;
    }
    uint32_t *requests = realloc(plan->requests, capacity * sizeof requests[0]);
    if (requests != NULL) {
        plan->requests = requests;
    }
    uint8_t *is_input = realloc(plan->is_input, capacity);
    if (is_input != NULL) {
        plan->is_input = is_input;
    }
    scan->capacity = (uint32_t)capacity;
    return units != NULL && requests != NULL && is_input != NULL;
}

static bool
grow_units(scan_t *scan)
{
    log_minimize_plan_t *plan = scan->plan;
    if (plan->unit_count < scan->unit_capacity) {
        return true;
    }
    size_t capacity = scan->unit_capacity == 0 ? 1024 : (size_t)scan->unit_capacity * 2;
    uint32_t *requests = realloc(plan->unit_requests, capacity * sizeof requests[0]);
    if (requests == NULL) {
        return false;
    }
    plan->unit_requests = requests;
    scan->unit_capacity = (uint32_t)capacity;
    return true;
}

/* Which unit a record belongs to; an input begins one. */
static uint32_t
unit_of(scan_t *scan, const log_set_item_t *item, uint32_t request)
{
    log_minimize_plan_t *plan = scan->plan;
    switch ((int)item->record.kind) {
    case PROTO_LOG_IN:
    case PROTO_LOG_TIMER:
        plan->unit_requests[plan->unit_count++] = request;
        scan->stream_units[item->stream] = plan->unit_count;
        return plan->unit_count;
    case PROTO_LOG_OUT:
    case PROTO_LOG_RNG:
        return scan->stream_units[item->stream];
    case PROTO_LOG_SNAPSHOT: {
        bool is_first =
            !scan->has_snapshot[item->stream] && scan->stream_units[item->stream] == UNIT_ALWAYS;
        scan->has_snapshot[item->stream] = true;
        return is_first ? UNIT_ALWAYS : UNIT_NEVER;
    }
    default:
        return log_cut_is_frame(&item->record) ? UNIT_ALWAYS : UNIT_NEVER;
    }
}

static proto_status_t
scan_record(void *context, const log_set_item_t *item, const log_message_t *message)
{
    scan_t *scan = context;
    log_minimize_plan_t *plan = scan->plan;
    if (plan->record_count == UINT32_MAX - 1) {
        return STATUS_ERR_TOO_LARGE;
    }
    if (!grow_records(scan) || !grow_units(scan)) {
        return STATUS_ERR_NO_MEMORY;
    }
    uint32_t request = 0;
    if (message != NULL && message->header.request != 0) {
        int32_t ordinal = log_table_add(&plan->table, message->header.request);
        if (ordinal == LOG_TABLE_NONE) {
            return STATUS_ERR_NO_MEMORY;
        }
        request = (uint32_t)ordinal + 1;
    }
    uint32_t index = plan->record_count++;
    plan->requests[index] = request;
    plan->is_input[index] =
        item->record.kind == PROTO_LOG_IN || item->record.kind == PROTO_LOG_TIMER;
    plan->units[index] = unit_of(scan, item, request);
    return STATUS_OK;
}

proto_status_t
log_minimize_plan_init(log_minimize_plan_t *self, log_set_t *set)
{
    self->set = set;
    scan_t scan = {.plan = self};
    uint32_t stream_count = log_set_stream_count(set);
    scan.stream_units = calloc(stream_count, sizeof scan.stream_units[0]);
    scan.has_snapshot = calloc(stream_count, sizeof scan.has_snapshot[0]);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    if (scan.stream_units != NULL && scan.has_snapshot != NULL) {
        status = log_set_rewind(set);
    }
    if (status == STATUS_OK) {
        status = log_set_visit(set, scan_record, &scan);
    }
    free(scan.stream_units);
    free(scan.has_snapshot);
    if (status != STATUS_OK) {
        return status;
    }
    self->has_unit = malloc((size_t)self->unit_count + 1);
    self->has_request = malloc((size_t)self->table.count + 1);
    if (self->has_unit == NULL || self->has_request == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    memset(self->has_unit, 1, (size_t)self->unit_count + 1);
    memset(self->has_request, 1, (size_t)self->table.count + 1);
    return STATUS_OK;
}

void
log_minimize_plan_fini(log_minimize_plan_t *self)
{
    log_table_fini(&self->table);
    free(self->units);
    free(self->requests);
    free(self->is_input);
    free(self->unit_requests);
    free(self->has_unit);
    free(self->has_request);
    free(self->cuts);
    memset(self, 0, sizeof *self);
}

bool
log_minimize_plan_keeps(const log_minimize_plan_t *self, uint32_t record)
{
    uint32_t unit = self->units[record];
    if (unit == UNIT_ALWAYS || unit == UNIT_NEVER) {
        return unit == UNIT_ALWAYS;
    }
    uint32_t of_input = self->unit_requests[unit - 1];
    uint32_t own = self->requests[record];
    return self->has_unit[unit - 1] != 0 &&
           (of_input == 0 || self->has_request[of_input - 1] != 0) &&
           (own == 0 || self->has_request[own - 1] != 0);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

typedef struct {
    const void *data;
    uint32_t count;
} column_t;

uint32_t
log_minimize_field_size(const proto_field_t *field, const proto_body_t *body)
{
    const void *value = (const uint8_t *)body + field->offset_bytes;
    switch (field->type) {
    case PROTO_FIELD_U32:
        return *(const uint32_t *)value != 0;
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
        return *(const uint64_t *)value != 0;
    case PROTO_FIELD_F64:
        return *(const double *)value < 0 || *(const double *)value > 0;
    case PROTO_FIELD_BOOL:
        return *(const bool *)value;
    case PROTO_FIELD_STR:
        return ((const proto_text_t *)value)->size_bytes > 0; /* no character is cut through */
    case PROTO_FIELD_BIN:
        return (uint32_t)((const proto_bytes_t *)value)->size_bytes;
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        return ((const column_t *)value)->count;
    }
    return 0;
}

/* `count` entries stay; a number becomes 0 and text empty. */
static void
cut_field(const proto_field_t *field, uint32_t count, proto_body_t *body)
{
    void *value = (uint8_t *)body + field->offset_bytes;
    switch (field->type) {
    case PROTO_FIELD_U32:
        *(uint32_t *)value = 0;
        return;
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
        *(uint64_t *)value = 0;
        return;
    case PROTO_FIELD_F64:
        *(double *)value = 0;
        return;
    case PROTO_FIELD_BOOL:
        *(bool *)value = false;
        return;
    case PROTO_FIELD_STR:
        ((proto_text_t *)value)->size_bytes = 0;
        return;
    case PROTO_FIELD_BIN: {
        proto_bytes_t *bytes = value;
        bytes->size_bytes = count < bytes->size_bytes ? count : bytes->size_bytes;
        return;
    }
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32: {
        column_t *column = value;
        column->count = count < column->count ? count : column->count;
        return;
    }
    }
}

proto_status_t
log_minimize_plan_cut(log_minimize_plan_t *self, log_minimize_cut_t cut)
{
    for (uint32_t i = 0; i < self->cut_count; i++) {
        if (self->cuts[i].record == cut.record && self->cuts[i].field == cut.field) {
            self->cuts[i] = cut;
            return STATUS_OK;
        }
    }
    if (self->cut_count == self->cut_capacity) {
        uint32_t capacity = self->cut_capacity == 0 ? 64 : self->cut_capacity * 2;
        log_minimize_cut_t *larger = realloc(self->cuts, capacity * sizeof larger[0]);
        if (larger == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->cuts = larger;
        self->cut_capacity = capacity;
    }
    self->cuts[self->cut_count++] = cut;
    return STATUS_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct {
    uint64_t sequence;   /* of the last record written */
    log_inputs_t before; /* inputs as they were counted, */
    uint64_t inputs;     /*   and as they are now */
} numbers_t;

typedef struct {
    const log_minimize_plan_t *plan;
    log_out_t *out;
    uint32_t at;        /* record of the set */
    numbers_t *numbers; /* of each stream */
    uint8_t header[PROTO_HEADER_SIZE_MAX];
    uint8_t *bytes; /* an encoded body and blob */
    size_t capacity_bytes;
} writer_t;

/* Encodes the body with its cuts into writer->bytes.  False: it stays as it is. */
static proto_status_t
apply_cuts(writer_t *writer, const log_message_t *message, proto_log_record_t *record)
{
    bool is_changed = false;
    proto_body_t body = message->body;
    for (uint32_t i = 0; i < writer->plan->cut_count; i++) {
        const log_minimize_cut_t *cut = &writer->plan->cuts[i];
        if (cut->record == writer->at && message->has_body &&
            cut->field < message->table->field_count) {
            cut_field(&message->table->fields[cut->field], cut->count, &body);
            is_changed = true;
        }
    }
    if (!is_changed) {
        return STATUS_OK;
    }
    size_t body_size, blob_size;
    proto_body_bound(message->header.kind, &body, &body_size, &blob_size);
    if (body_size + blob_size > writer->capacity_bytes) {
        free(writer->bytes);
        writer->capacity_bytes = 0;
        size_t rounded = (body_size + blob_size + 63) / 64 * 64;
        writer->bytes = aligned_alloc(64, rounded);
        if (writer->bytes == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        writer->capacity_bytes = rounded;
    }
    uint8_t *at = writer->bytes + blob_size;
    size_t blob_bound = blob_size;
    proto_status_t status = proto_body_encode(message->header.kind, &body, at, body_size,
                                              &body_size, writer->bytes, blob_bound, &blob_size);
    if (status != STATUS_OK) {
        return STATUS_ERR_INTERNAL; /* it decoded, and is smaller now */
    }
    uint32_t first = record->kind == PROTO_LOG_TIMER ? 0 : 1;
    record->parts[first] = (proto_bytes_t){at, body_size};
    record->parts[first + 1] = (proto_bytes_t){writer->bytes, blob_size};
    record->part_count = blob_size > 0 ? first + 2 : first + 1;
    return STATUS_OK;
}

/* What an input caused names it by its new number. */
static void
renumber_cause(writer_t *writer, const numbers_t *numbers, const log_message_t *message,
               proto_log_record_t *record)
{
    if (record->kind != PROTO_LOG_OUT || message->header.cause == 0 || !numbers->before.is_known ||
        message->header.cause != numbers->before.count) {
        return;
    }
    proto_header_t header = message->header;
    header.cause = numbers->inputs;
    record->parts[0] =
        (proto_bytes_t){writer->header, proto_header_encode(&header, writer->header)};
}

static proto_status_t
write_record(void *context, const log_set_item_t *item, const log_message_t *message)
{
    writer_t *writer = context;
    numbers_t *numbers = &writer->numbers[item->stream];
    proto_log_record_t record = item->record;
    log_inputs_pass(&numbers->before, &record);
    bool is_kept = writer->at < writer->plan->record_count &&
                   log_minimize_plan_keeps(writer->plan, writer->at);
    proto_status_t status = STATUS_OK;
    if (is_kept) {
        if (writer->plan->is_input[writer->at] != 0) {
            numbers->inputs++;
        } else if (record.kind == PROTO_LOG_SNAPSHOT) {
            numbers->inputs = numbers->before.count;
        }
        record.sequence = ++numbers->sequence;
        if (message != NULL) {
            renumber_cause(writer, numbers, message, &record);
            status = apply_cuts(writer, message, &record);
        }
        if (status == STATUS_OK) {
            status = log_out_append(writer->out, item->header, &record);
        }
    }
    writer->at++;
    return status;
}

proto_status_t
log_minimize_plan_write(const log_minimize_plan_t *self, const char *path, uint64_t *records_p,
                        proto_error_t *error)
{
    writer_t writer = {.plan = self};
    proto_status_t status = log_out_open(path, &writer.out, error);
    if (status != STATUS_OK) {
        return status;
    }
    writer.numbers = calloc(log_set_stream_count(self->set), sizeof writer.numbers[0]);
    status = writer.numbers == NULL ? STATUS_ERR_NO_MEMORY : log_set_rewind(self->set);
    if (status == STATUS_OK) {
        status = log_set_visit(self->set, write_record, &writer);
    }
    if (status == STATUS_OK) {
        status = log_out_commit(writer.out);
    }
    if (status != STATUS_OK && error != NULL) {
        (void)snprintf(error->detail, sizeof error->detail, "%.159s", log_out_error(writer.out));
    }
    if (records_p != NULL) {
        *records_p = log_out_record_count(writer.out);
    }
    log_out_close(&writer.out);
    free(writer.numbers);
    free(writer.bytes);
    return status;
}
