#include "log_redact.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

void
log_redactor_fini(log_redactor_t *self)
{
    log_decoder_fini(&self->decoder);
    free(self->bytes);
    memset(self, 0, sizeof *self);
}

/* Room for copies; what was there is lost. */
static bool
reserve(log_redactor_t *self, size_t size_bytes)
{
    if (size_bytes > self->capacity_bytes) {
        free(self->bytes);
        self->capacity_bytes = 0;
        self->bytes = malloc(size_bytes);
        if (self->bytes == NULL) {
            return false;
        }
        self->capacity_bytes = size_bytes;
    }
    return true;
}

/* Only the header stays: nobody can say what the rest holds. */
static void
cut(const proto_log_record_t *record, proto_log_record_t *out, uint32_t parts_kept)
{
    *out = *record;
    out->part_count = record->part_count < parts_kept ? record->part_count : parts_kept;
    out->flags |= PROTO_LOG_FLAG_REDACTED | PROTO_LOG_FLAG_CUT;
}

/* True if the body has as many fields as this build knows, or fewer. */
static bool
knows_all_fields(const log_message_t *message)
{
    const uint8_t *at = message->body_bytes.data;
    size_t left = message->body_bytes.size_bytes;
    uint32_t count = UINT32_MAX;
    if (message->table->is_map) {
        return true; /* handshakes hold nothing private, by rule */
    }
    if (left >= 1 && (at[0] & 0xf0) == 0x90) {
        count = at[0] & 0x0fU;
    } else if (left >= 3 && at[0] == 0xdc) {
        count = (uint32_t)at[1] << 8 | at[2];
    }
    return count <= message->table->field_count;
}

static size_t
entry_size(proto_field_type_t type)
{
    return type == PROTO_FIELD_COL_U8 ? 1 : type == PROTO_FIELD_COL_U64 ? 8 : 4;
}

/* Copies into `blob` (zeros) what lies in columns that are open; the gaps stay zero. */
static void
copy_open_columns(const log_message_t *message, const uint8_t *from, uint8_t *blob)
{
    for (uint32_t i = 0; i < message->table->field_count; i++) {
        const proto_field_t *field = &message->table->fields[i];
        if (field->type < PROTO_FIELD_COL_U8 || field->is_private) {
            continue;
        }
        const proto_column_u8_t *column =
            (const void *)((const uint8_t *)&message->body + field->offset_bytes);
        if (column->count > 0) {
            memcpy(blob + (column->data - from), column->data,
                   column->count * entry_size(field->type));
        }
    }
}

/* Zeros private text and bytes in a copy of the body. */
static void
zero_private_bytes(const log_message_t *message, uint8_t *body)
{
    for (uint32_t i = 0; i < message->table->field_count; i++) {
        const proto_field_t *field = &message->table->fields[i];
        const uint8_t *value = (const uint8_t *)&message->body + field->offset_bytes;
        if (!field->is_private) {
            continue;
        }
        proto_bytes_t bytes = {NULL, 0};
        if (field->type == PROTO_FIELD_BIN) {
            memcpy(&bytes, value, sizeof bytes);
        } else if (field->type == PROTO_FIELD_STR) {
            proto_text_t text;
            memcpy(&text, value, sizeof text);
            bytes = (proto_bytes_t){(const uint8_t *)text.data, text.size_bytes};
        } else {
            /* The list has no private numbers: the tables are compared with this by a test. */
            require(field->type >= PROTO_FIELD_COL_U8);
        }
        if (bytes.size_bytes > 0) {
            memset(body + (bytes.data - message->body_bytes.data), 0, bytes.size_bytes);
        }
    }
}

static bool
has_private(const proto_message_t *table)
{
    for (uint32_t i = 0; i < table->field_count; i++) {
        if (table->fields[i].is_private) {
            return true;
        }
    }
    return false;
}

static proto_status_t
redact_message(log_redactor_t *self, const proto_log_record_t *record, const log_message_t *message,
               proto_log_record_t *out)
{
    if (!message->has_body || !knows_all_fields(message)) {
        cut(record, out, 1);
        return STATUS_OK;
    }
    *out = *record;
    if (!has_private(message->table)) {
        return STATUS_OK;
    }
    size_t body_size = message->body_bytes.size_bytes;
    size_t blob_size = message->blob_bytes.size_bytes;
    if (!reserve(self, body_size + blob_size)) {
        return STATUS_ERR_NO_MEMORY;
    }
    memcpy(self->bytes, message->body_bytes.data, body_size);
    zero_private_bytes(message, self->bytes);
    out->flags |= PROTO_LOG_FLAG_REDACTED;
    out->part_count = record->part_count < 3 ? record->part_count : 3;
    out->parts[1] = (proto_bytes_t){self->bytes, body_size};
    if (blob_size > 0) {
        uint8_t *blob = self->bytes + body_size;
        memset(blob, 0, blob_size);
        copy_open_columns(message, message->blob_read, blob);
        out->parts[2] = (proto_bytes_t){blob, blob_size};
    }
    return STATUS_OK;
}

static proto_status_t
redact_snapshot(log_redactor_t *self, const proto_log_record_t *record, proto_log_record_t *out)
{
    *out = *record;
    out->flags |= PROTO_LOG_FLAG_REDACTED;
    out->part_count = record->part_count < 3 ? record->part_count : 3;
    if (record->part_count > 2 && record->parts[2].size_bytes > 0) {
        if (!reserve(self, record->parts[2].size_bytes)) {
            return STATUS_ERR_NO_MEMORY;
        }
        memset(self->bytes, 0, record->parts[2].size_bytes);
        out->parts[2].data = self->bytes;
    }
    return STATUS_OK;
}

proto_status_t
log_redactor_redact(log_redactor_t *self, const proto_log_record_t *record, proto_log_record_t *out)
{
    require(out != NULL);
    switch ((int)record->kind) {
    case PROTO_LOG_IN:
    case PROTO_LOG_OUT:
    case PROTO_LOG_TIMER: {
        log_message_t message;
        proto_status_t status = log_decoder_decode(&self->decoder, record, &message);
        if (status == STATUS_ERR_NO_MEMORY) {
            return status;
        }
        if (status != STATUS_OK) {
            cut(record, out, 0);
            return STATUS_OK;
        }
        if (record->kind == PROTO_LOG_TIMER) {
            *out = *record; /* a deadline; what else might be behind it is not kept */
            out->part_count = record->part_count < 1 ? record->part_count : 1;
            return STATUS_OK;
        }
        return redact_message(self, record, &message, out);
    }
    case PROTO_LOG_SNAPSHOT:
        return redact_snapshot(self, record, out);
    case PROTO_LOG_RNG:
    case PROTO_LOG_CLOCK:
    case PROTO_LOG_ENV:
    case PROTO_LOG_STATE_DIGEST:
    case PROTO_LOG_FAULT:
    case PROTO_LOG_NOTE:
    case PROTO_LOG_CHANNEL_DEF:
    case PROTO_LOG_DROP:
        *out = *record;
        return STATUS_OK;
    default:
        cut(record, out, 0);
        return STATUS_OK;
    }
}
