#include "reference_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto_codec.h"
#include "proto_log.h"

static const char *
type_name(proto_field_type_t type)
{
    static const char *const names[] = {
        [PROTO_FIELD_U32] = "u32",
        [PROTO_FIELD_U64] = "u64",
        [PROTO_FIELD_I64] = "i64",
        [PROTO_FIELD_F64] = "f64",
        [PROTO_FIELD_BOOL] = "bool",
        [PROTO_FIELD_STR] = "str",
        [PROTO_FIELD_BIN] = "bin",
        [PROTO_FIELD_COL_U8] = "column u8",
        [PROTO_FIELD_COL_U32] = "column u32",
        [PROTO_FIELD_COL_I32] = "column i32",
        [PROTO_FIELD_COL_U64] = "column u64",
        [PROTO_FIELD_COL_F32] = "column f32",
    };
    return names[type];
}

static void
write_cell(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            (void)fputc('\\', out);
        }
        (void)fputc(*text, out);
    }
}

static void
write_limit(FILE *out, const proto_field_t *field)
{
    if (field->type == PROTO_FIELD_F64) {
        (void)fputs("finite", out);
    } else if (field->type == PROTO_FIELD_BOOL || field->limit == UINT64_MAX) {
        (void)fputs("-", out);
    } else if (field->type == PROTO_FIELD_I64) {
        (void)fprintf(out, "±%" PRIu64, field->limit);
    } else if (field->type == PROTO_FIELD_STR || field->type == PROTO_FIELD_BIN) {
        (void)fprintf(out, "%" PRIu64 " bytes", field->limit);
    } else if (field->type >= PROTO_FIELD_COL_U8) {
        (void)fprintf(out, "%" PRIu64 " entries", field->limit);
    } else {
        (void)fprintf(out, "%" PRIu64, field->limit);
    }
}

static void
write_message(FILE *out, const proto_message_t *message)
{
    (void)fprintf(out, "\n### %s (%u)\n\n", message->name, (unsigned)message->kind);
    (void)fprintf(out, "%s: %s. %s, %s.\n\n", message->route, message->text,
                  message->is_wire ? "On the wire" : "Within one process",
                  message->is_map ? "map" : "array");
    (void)fputs("| # | field | type | limit | meaning |\n", out);
    (void)fputs("| --- | --- | --- | --- | --- |\n", out);
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        (void)fprintf(out, "| %" PRIu32 " | `%s` | %s | ", index, field->name,
                      type_name(field->type));
        write_limit(out, field);
        (void)fputs(" | ", out);
        write_cell(out, field->text);
        (void)fputs(field->is_private ? " (private) |\n" : " |\n", out);
    }
}

static void
write_statuses(FILE *out)
{
    (void)fputs("\n### Status numbers\n\n| number | name | meaning |\n| --- | --- | --- |\n", out);
#define WRITE_STATUS(name, value, text)                                                            \
    (void)fprintf(out, "| %d | %s | %s |\n", (value), #name, (text));
    PROTO_STATUS_LIST(WRITE_STATUS)
#undef WRITE_STATUS
}

static void
write_roles(FILE *out)
{
    (void)fputs("\n### Roles\n\n| number | role |\n| --- | --- |\n", out);
#define WRITE_ROLE(name, value, text) (void)fprintf(out, "| %d | %s |\n", (value), (text));
    PROTO_ROLE_LIST(WRITE_ROLE)
#undef WRITE_ROLE
}

static void
write_record_kinds(FILE *out)
{
    (void)fputs("\n### Kinds of log records\n\n| number | name | holds |\n| --- | --- | --- |\n",
                out);
#define WRITE_KIND(name, value, text)                                                              \
    (void)fprintf(out, "| %d | %s | %s |\n", (value), #name, (text));
    PROTO_LOG_KIND_LIST(WRITE_KIND)
#undef WRITE_KIND
}

void
reference_write(FILE *out)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    (void)fprintf(out, "Schema version %d; %" PRIu32 " messages.\n", PROTO_SCHEMA_VERSION, count);
    for (uint32_t index = 0; index < count; index++) {
        write_message(out, &messages[index]);
    }
    write_statuses(out);
    write_roles(out);
    write_record_kinds(out);
}

char *
reference_read(const char *path)
{
    char *text = NULL;
    size_t capacity_bytes = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    /* To the first zero byte, which a text does not have: the whole. */
    if (getdelim(&text, &capacity_bytes, '\0', file) < 0) {
        free(text);
        text = NULL;
    }
    (void)fclose(file);
    return text;
}
