#include "log_print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "log_redact.h"
#include "proto_require.h"

enum {
    COLUMN_LEN_SHOWN = 16,
    TEXT_LEN_SHOWN = 256,
    JSON_SIZE_FIRST = 64 * 1024,
    JSON_SIZE_MAX = 256 * 1024 * 1024, /* a longer view is cut to short columns */
    HEX_BYTES_IN_LINE = 16,
};

struct log_printer {
    log_print_options_t options;
    char *json; /* grows to the longest view */
    size_t json_capacity_bytes;
    log_redactor_t redactor; /* of bytes that are shown as they are */
};

proto_status_t
log_printer_new(const log_print_options_t *options, log_printer_t **out_p)
{
    require(options != NULL);
    log_printer_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    if (self->options.column_len_max == 0) {
        self->options.column_len_max = COLUMN_LEN_SHOWN;
    }
    self->json = malloc(JSON_SIZE_FIRST);
    if (self->json == NULL) {
        free(self);
        return STATUS_ERR_NO_MEMORY;
    }
    self->json_capacity_bytes = JSON_SIZE_FIRST;
    *out_p = self;
    return STATUS_OK;
}

void
log_printer_destroy(log_printer_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        log_redactor_fini(&(*self_p)->redactor);
        free((*self_p)->json);
        free(*self_p);
        *self_p = NULL;
    }
}

void
log_print_date(uint64_t realtime_ns, char out[40])
{
    time_t seconds = (time_t)(realtime_ns / 1000000000U);
    struct tm parts;
    char date[32];
    if (gmtime_r(&seconds, &parts) == NULL ||
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts) == 0) {
        (void)snprintf(out, 40, "-");
        return;
    }
    (void)snprintf(out, 40, "%s.%06uZ", date, (unsigned)(realtime_ns % 1000000000U / 1000U));
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* The body as JSON in self->json, with columns as long as memory allows. */
static const char *
body_json(log_printer_t *self, const log_message_t *message)
{
    if (!message->has_body) {
        return NULL;
    }
    uint32_t column_len_max = self->options.column_len_max;
    for (;;) {
        size_t need =
            proto_body_to_json(message->header.kind, &message->body, self->options.show_private,
                               column_len_max, self->json, self->json_capacity_bytes);
        if (need < self->json_capacity_bytes) {
            return self->json;
        }
        char *larger = need < JSON_SIZE_MAX ? realloc(self->json, need + 1) : NULL;
        if (larger != NULL) {
            self->json = larger;
            self->json_capacity_bytes = need + 1;
        } else if (column_len_max > COLUMN_LEN_SHOWN) {
            column_len_max = COLUMN_LEN_SHOWN;
        } else {
            return NULL;
        }
    }
}

/* Bytes as text within quotes; safe for JSON and for terminals. */
static void
print_quoted(FILE *out, proto_bytes_t bytes, size_t len_max)
{
    fputc('"', out);
    for (size_t at = 0; at < bytes.size_bytes && at < len_max; at++) {
        uint8_t byte = bytes.data[at];
        if (byte == '"' || byte == '\\') {
            fputc('\\', out);
        }
        fputc(byte >= 0x20 && byte < 0x7f ? byte : '.', out);
    }
    fputc('"', out);
}

static bool
holds_text(proto_log_kind_t kind)
{
    return kind == PROTO_LOG_CHANNEL_DEF || kind == PROTO_LOG_NOTE || kind == PROTO_LOG_ENV ||
           kind == PROTO_LOG_FAULT;
}

static uint64_t
number_at(proto_bytes_t bytes, size_t offset)
{
    uint64_t value = 0;
    if (offset + sizeof value <= bytes.size_bytes) {
        memcpy(&value, bytes.data + offset, sizeof value);
    }
    return value;
}

/* What a record without a message says, as the members of a JSON object. */
static void
print_members(FILE *out, const proto_log_record_t *record)
{
    proto_bytes_t first = record->part_count > 0 ? record->parts[0] : (proto_bytes_t){NULL, 0};
    switch ((int)record->kind) {
    case PROTO_LOG_STATE_DIGEST:
        fprintf(out, ",\"digest\":\"%016" PRIx64 "\"", number_at(first, 0));
        return;
    case PROTO_LOG_CLOCK:
        fprintf(out, ",\"monotonic_ns\":%" PRIu64 ",\"realtime_ns\":%" PRIu64, number_at(first, 0),
                number_at(first, 8));
        return;
    case PROTO_LOG_DROP:
        fprintf(out, ",\"count\":%" PRIu64 ",\"why\":", number_at(first, 0));
        print_quoted(out, record->part_count > 1 ? record->parts[1] : (proto_bytes_t){NULL, 0},
                     TEXT_LEN_SHOWN);
        return;
    case PROTO_LOG_SNAPSHOT:
        fprintf(out,
                ",\"digest\":\"%016" PRIx64 "\",\"inputs\":%" PRIu64
                ",\"state_bytes\":%zu,\"private_bytes\":%zu",
                number_at(first, 8), number_at(first, 16),
                record->part_count > 1 ? record->parts[1].size_bytes : 0,
                record->part_count > 2 ? record->parts[2].size_bytes : 0);
        return;
    default:
        break;
    }
    if (!holds_text(record->kind)) {
        fprintf(out, ",\"parts\":%u", (unsigned)record->part_count);
        return;
    }
    fputs(",\"text\":[", out);
    for (uint32_t i = 0; i < record->part_count; i++) {
        fputs(i > 0 ? "," : "", out);
        print_quoted(out, record->parts[i], TEXT_LEN_SHOWN);
    }
    fputc(']', out);
}

static void
print_plain_text(FILE *out, const proto_log_record_t *record)
{
    proto_bytes_t first = record->part_count > 0 ? record->parts[0] : (proto_bytes_t){NULL, 0};
    switch ((int)record->kind) {
    case PROTO_LOG_STATE_DIGEST:
        fprintf(out, " %016" PRIx64, number_at(first, 0));
        return;
    case PROTO_LOG_DROP:
        fprintf(out, " %" PRIu64 " record%s missing here", number_at(first, 0),
                number_at(first, 0) == 1 ? " is" : "s are");
        break;
    case PROTO_LOG_SNAPSHOT:
        fprintf(out, " after %" PRIu64 " input%s, digest %016" PRIx64 ", %zu bytes, %zu private",
                number_at(first, 16), number_at(first, 16) == 1 ? "" : "s", number_at(first, 8),
                record->part_count > 1 ? record->parts[1].size_bytes : 0,
                record->part_count > 2 ? record->parts[2].size_bytes : 0);
        return;
    default:
        break;
    }
    uint32_t begin = record->kind == PROTO_LOG_DROP ? 1 : 0;
    for (uint32_t i = begin; i < record->part_count; i++) {
        if (!holds_text(record->kind) && begin == 0) {
            return;
        }
        fputc(' ', out);
        for (size_t at = 0; at < record->parts[i].size_bytes && at < TEXT_LEN_SHOWN; at++) {
            uint8_t byte = record->parts[i].data[at];
            fputc(byte >= 0x20 && byte < 0x7f ? byte : '.', out);
        }
    }
}

static const char *
direction_of(proto_log_kind_t kind)
{
    return kind == PROTO_LOG_OUT ? "out" : "in";
}

/* ---- forms ----------------------------------------------------------------------------------- */

static void
print_text(log_printer_t *self, FILE *out, const log_set_item_t *item, const log_message_t *message)
{
    const proto_log_record_t *record = &item->record;
    fprintf(out, "%-10s %8" PRIu64 " %16.6f  ", item->header->name, record->sequence,
            (double)record->time_ns / 1e9);
    if (message == NULL) {
        fputs(proto_log_kind_name(record->kind), out);
        print_plain_text(out, record);
        fputc('\n', out);
        return;
    }
    const char *json = body_json(self, message);
    fprintf(out, "%-3s peer %-3u %-14s", direction_of(record->kind), (unsigned)record->channel,
            proto_kind_name(message->header.kind));
    if (message->header.request != 0) {
        fprintf(out, " request %" PRIu64, message->header.request);
    }
    if ((record->flags & PROTO_LOG_FLAG_REDACTED) != 0) {
        fputs(" redacted", out);
    }
    if (json != NULL) {
        fprintf(out, " %s\n", json);
    } else {
        fputs(" undecodable: ", out);
        print_quoted(out,
                     (proto_bytes_t){(const uint8_t *)message->error.detail,
                                     strlen(message->error.detail)},
                     TEXT_LEN_SHOWN);
        fputc('\n', out);
    }
}

static void
print_json(log_printer_t *self, FILE *out, const log_set_item_t *item, const log_message_t *message)
{
    const proto_log_record_t *record = &item->record;
    /* Names are text of a file that nobody vouches for. */
    fputs("{\"actor\":", out);
    print_quoted(out,
                 (proto_bytes_t){(const uint8_t *)item->header->name, strlen(item->header->name)},
                 PROTO_NAME_SIZE_BYTES);
    fprintf(out, ",\"incarnation\":%" PRIu64 ",\"seq\":%" PRIu64 ",\"t_ns\":%" PRIu64,
            item->header->epoch, record->sequence, record->time_ns);
    if (record->flags != 0) {
        fprintf(out, ",\"flags\":%u", (unsigned)record->flags);
    }
    if (message == NULL) {
        fprintf(out, ",\"record\":\"%s\"", proto_log_kind_name(record->kind));
        print_members(out, record);
        fputs("}\n", out);
        return;
    }
    const proto_header_t *header = &message->header;
    fprintf(out,
            ",\"dir\":\"%s\",\"peer\":%u,\"kind\":\"%s\",\"epoch\":%" PRIu64
            ",\"link_seq\":%" PRIu64 ",\"request\":%" PRIu64 ",\"cause\":%" PRIu64 ",\"body\":",
            direction_of(record->kind), (unsigned)record->channel, proto_kind_name(header->kind),
            header->epoch, record->link_sequence, header->request, header->cause);
    const char *json = body_json(self, message);
    if (json != NULL) {
        fputs(json, out);
    } else {
        fputs("{\"undecodable\":", out);
        print_quoted(out,
                     (proto_bytes_t){(const uint8_t *)message->error.detail,
                                     strlen(message->error.detail)},
                     TEXT_LEN_SHOWN);
        fputc('}', out);
    }
    fputs("}\n", out);
}

static void
print_hex_part(FILE *out, proto_bytes_t part)
{
    for (size_t line = 0; line < part.size_bytes; line += HEX_BYTES_IN_LINE) {
        fprintf(out, "    %06zx ", line);
        for (size_t at = line; at < line + HEX_BYTES_IN_LINE; at++) {
            if (at < part.size_bytes) {
                fprintf(out, " %02x", part.data[at]);
            } else {
                fputs("   ", out);
            }
        }
        fputs("  |", out);
        for (size_t at = line; at < line + HEX_BYTES_IN_LINE && at < part.size_bytes; at++) {
            uint8_t byte = part.data[at];
            fputc(byte >= 0x20 && byte < 0x7f ? byte : '.', out);
        }
        fputs("|\n", out);
    }
}

static void
print_hex(log_printer_t *self, FILE *out, const log_set_item_t *item, const log_message_t *message)
{
    proto_log_record_t record = item->record;
    bool is_shown = self->options.show_private ||
                    log_redactor_redact(&self->redactor, &item->record, &record) == STATUS_OK;
    fprintf(out,
            "%s %" PRIu64 " at byte %" PRIu64 " of %s: %s%s%s, flags %u, channel %u, link %" PRIu64
            ", %u parts%s\n",
            item->header->name, record.sequence, item->offset, item->path,
            proto_log_kind_name(record.kind), message != NULL ? " " : "",
            message != NULL ? proto_kind_name(message->header.kind) : "", (unsigned)record.flags,
            (unsigned)record.channel, record.link_sequence, (unsigned)record.part_count,
            is_shown ? "" : ", left out: they may be private");
    for (uint32_t i = 0; i < record.part_count && is_shown; i++) {
        fprintf(out, "  part %u, %zu bytes\n", (unsigned)i, record.parts[i].size_bytes);
        print_hex_part(out, record.parts[i]);
    }
}

void
log_printer_print(log_printer_t *self, FILE *out, const log_set_item_t *item,
                  const log_message_t *message)
{
    switch (self->options.form) {
    case LOG_PRINT_TEXT:
        print_text(self, out, item, message);
        return;
    case LOG_PRINT_JSON:
        print_json(self, out, item, message);
        return;
    case LOG_PRINT_HEX:
        print_hex(self, out, item, message);
        return;
    }
}
