#include "log_export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log_mcap.h"
#include "log_print.h"
#include "log_table.h"
#include "log_visit.h"

enum {
    CHANNELS_MAX = UINT16_MAX,
    COLUMN_LEN_SHOWN = 1 << 20, /* as long as memory of the printer's limit allows */
    TOPIC_SIZE = 128,
};

typedef struct {
    const log_export_options_t *options;
    FILE *out;
    log_printer_t *printer;
    log_export_counts_t *counts;
    log_table_t channels; /* of MCAP: stream, direction and kind -> id - 1 */
    bool has_schema[PROTO_LOG_KIND_COUNT + 128];
} export_t;

/* What a field looks like in the JSON view. */
static const char *
json_type(const proto_field_t *field, bool show_private)
{
    if (field->is_private && !show_private) {
        return "object"; /* its size */
    }
    switch (field->type) {
    case PROTO_FIELD_U32:
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
        return "integer";
    case PROTO_FIELD_F64:
        return "number";
    case PROTO_FIELD_BOOL:
        return "boolean";
    case PROTO_FIELD_STR:
    case PROTO_FIELD_BIN:
        return "string";
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        return "array";
    }
    return "null";
}

/* The schema of a message's JSON line: its body is under "body". */
static proto_status_t
write_schema(export_t *self, uint16_t id, const log_message_t *message)
{
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&text, &size_bytes);
    if (out == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    fputs("{\"type\":\"object\",\"properties\":{\"actor\":{\"type\":\"string\"},"
          "\"seq\":{\"type\":\"integer\"},\"t_ns\":{\"type\":\"integer\"}",
          out);
    if (message != NULL && message->table != NULL) {
        fputs(",\"body\":{\"type\":\"object\",\"properties\":{", out);
        for (uint32_t i = 0; i < message->table->field_count; i++) {
            const proto_field_t *field = &message->table->fields[i];
            fprintf(out, "%s\"%s\":{\"type\":\"%s\"}", i > 0 ? "," : "", field->name,
                    json_type(field, self->options->show_private));
        }
        fputs("}}", out);
    }
    fputs("}}", out);
    bool is_good = fclose(out) == 0;
    if (is_good) {
        log_mcap_schema(self->out, id,
                        message != NULL ? proto_kind_name(message->header.kind) : "record",
                        (proto_bytes_t){(const uint8_t *)text, size_bytes});
    }
    free(text);
    return is_good ? STATUS_OK : STATUS_ERR_NO_MEMORY;
}

/* The channel's id, from 1; made when it is first needed. */
static proto_status_t
channel_of(export_t *self, const log_set_item_t *item, const log_message_t *message, uint16_t *out)
{
    uint64_t number = message != NULL && message->table != NULL ? (uint64_t)message->header.kind
                      : message != NULL                         ? 127
                                                                : 128 + (uint64_t)item->record.kind;
    uint64_t direction = (uint64_t)item->record.kind;
    uint32_t known = self->channels.count;
    if (known == CHANNELS_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    int32_t index =
        log_table_add(&self->channels, (uint64_t)item->stream << 32 | direction << 16 | number);
    if (index == LOG_TABLE_NONE) {
        return STATUS_ERR_NO_MEMORY;
    }
    *out = (uint16_t)(index + 1);
    if ((uint32_t)index < known) {
        return STATUS_OK;
    }
    uint16_t schema = (uint16_t)(message != NULL ? number : 128);
    if (!self->has_schema[schema]) {
        self->has_schema[schema] = true;
        proto_status_t status = write_schema(self, schema, message);
        if (status != STATUS_OK) {
            return status;
        }
    }
    char topic[TOPIC_SIZE];
    (void)snprintf(topic, sizeof topic, "/%s/%s/%s", item->header->name,
                   message == NULL                      ? "record"
                   : item->record.kind == PROTO_LOG_OUT ? "out"
                                                        : "in",
                   message == NULL ? proto_log_kind_name(item->record.kind)
                                   : proto_kind_name(message->header.kind));
    log_mcap_channel(self->out, *out, schema, topic);
    self->counts->channels++;
    return STATUS_OK;
}

static proto_status_t
write_mcap(export_t *self, const log_set_item_t *item, const log_message_t *message)
{
    uint16_t channel = 0;
    proto_status_t status = channel_of(self, item, message, &channel);
    if (status != STATUS_OK) {
        return status;
    }
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *line = open_memstream(&text, &size_bytes);
    if (line == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    log_printer_print(self->printer, line, item, message);
    bool is_good = fclose(line) == 0;
    if (is_good) {
        size_t length = size_bytes > 0 ? size_bytes - 1 : 0; /* without the end of line */
        log_mcap_message(self->out, channel, (uint32_t)item->record.sequence, item->realtime_ns,
                         (proto_bytes_t){(const uint8_t *)text, length});
    }
    free(text);
    return is_good ? STATUS_OK : STATUS_ERR_NO_MEMORY;
}

static proto_status_t
visit(void *context, const log_set_item_t *item, const log_message_t *message)
{
    export_t *self = context;
    if (self->options->filter != NULL && !log_filter_match(self->options->filter, item, message)) {
        return STATUS_OK;
    }
    self->counts->records++;
    proto_status_t status = STATUS_OK;
    if (self->options->form == LOG_EXPORT_MCAP) {
        status = write_mcap(self, item, message);
    } else {
        log_printer_print(self->printer, self->out, item, message);
    }
    return status == STATUS_OK && ferror(self->out) ? STATUS_ERR_IO : status;
}

proto_status_t
log_export_write(log_set_t *set, const log_export_options_t *options, FILE *out,
                 log_export_counts_t *counts)
{
    memset(counts, 0, sizeof *counts);
    export_t self = {.options = options, .out = out, .counts = counts};
    log_print_options_t print = {.form = LOG_PRINT_JSON,
                                 .show_private = options->show_private,
                                 .column_len_max = COLUMN_LEN_SHOWN};
    proto_status_t status = log_printer_new(&print, &self.printer);
    if (status != STATUS_OK) {
        return status;
    }
    if (options->form == LOG_EXPORT_MCAP) {
        log_mcap_begin(out);
    }
    status = log_set_visit(set, visit, &self);
    if (options->form == LOG_EXPORT_MCAP) {
        log_mcap_end(out);
    }
    log_table_fini(&self.channels);
    log_printer_destroy(&self.printer);
    return status;
}
