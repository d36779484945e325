#include "log_mcap.h"

#include <string.h>

/* Opcodes of the specification, version 0. */
enum {
    HEADER = 0x01,
    FOOTER = 0x02,
    SCHEMA = 0x03,
    CHANNEL = 0x04,
    MESSAGE = 0x05,
    DATA_END = 0x0f
};

static const uint8_t magic[] = {0x89, 'M', 'C', 'A', 'P', '0', '\r', '\n'};

/* Little endian, whatever the machine. */
static void
put_number(FILE *out, uint64_t value, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++) {
        (void)fputc((int)(value >> (8 * i) & 0xffU), out);
    }
}

static void
put_text(FILE *out, const char *text)
{
    size_t length = strlen(text);
    put_number(out, length, 4);
    (void)fwrite(text, 1, length, out);
}

static void
put_head(FILE *out, uint8_t opcode, uint64_t size_bytes)
{
    put_number(out, opcode, 1);
    put_number(out, size_bytes, 8);
}

void
log_mcap_begin(FILE *out)
{
    static const char profile[] = "", library[] = "onepath";
    (void)fwrite(magic, 1, sizeof magic, out);
    put_head(out, HEADER, 4 + strlen(profile) + 4 + strlen(library));
    put_text(out, profile);
    put_text(out, library);
}

void
log_mcap_end(FILE *out)
{
    put_head(out, DATA_END, 4);
    put_number(out, 0, 4); /* no CRC of the data */
    put_head(out, FOOTER, 8 + 8 + 4);
    put_number(out, 0, 8); /* no summary */
    put_number(out, 0, 8);
    put_number(out, 0, 4);
    (void)fwrite(magic, 1, sizeof magic, out);
}

void
log_mcap_schema(FILE *out, uint16_t id, const char *name, proto_bytes_t text)
{
    static const char encoding[] = "jsonschema";
    put_head(out, SCHEMA, 2 + 4 + strlen(name) + 4 + strlen(encoding) + 4 + text.size_bytes);
    put_number(out, id, 2);
    put_text(out, name);
    put_text(out, encoding);
    put_number(out, text.size_bytes, 4);
    (void)fwrite(text.data, 1, text.size_bytes, out);
}

void
log_mcap_channel(FILE *out, uint16_t id, uint16_t schema, const char *topic)
{
    static const char encoding[] = "json";
    put_head(out, CHANNEL, 2 + 2 + 4 + strlen(topic) + 4 + strlen(encoding) + 4);
    put_number(out, id, 2);
    put_number(out, schema, 2);
    put_text(out, topic);
    put_text(out, encoding);
    put_number(out, 0, 4); /* no metadata */
}

void
log_mcap_message(FILE *out, uint16_t channel, uint32_t sequence, uint64_t log_time_ns,
                 proto_bytes_t json)
{
    put_head(out, MESSAGE, 2 + 4 + 8 + 8 + json.size_bytes);
    put_number(out, channel, 2);
    put_number(out, sequence, 4);
    put_number(out, log_time_ns, 8);
    put_number(out, log_time_ns, 8);
    (void)fwrite(json.data, 1, json.size_bytes, out);
}
