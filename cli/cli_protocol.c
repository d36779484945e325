/* `onepath protocol`: the messages, for people and for codecs in other languages.  Everything comes
 * from the tables that our own codec uses; a constant that is added to an enum and not here does
 * not compile. */
#include <inttypes.h>
#include <string.h>

#include "cli_node.h"
#include "proto_codec.h"
#include "proto_log.h"

typedef struct {
    bool json;
} protocol_options_t;

static const cli_option_t protocol_cli_options[] = {
    {"json", CLI_OPTION_FLAG, offsetof(protocol_options_t, json), 0, 0, NULL,
     "everything that a codec needs, as one JSON document", false},
};

static const cli_command_t protocol_command = {
    .name = "protocol",
    .usage = "protocol [MESSAGE] [--json]",
    .text = "Without options: the messages, or the fields of one.\n"
            "--json: messages, fields, types, limits and enums, for a codec in another language;\n"
            "examples/python/onepath_scheduler/protocol.json is a copy.\n"
            "Exit codes: 0; 78 if there is no such message.",
    .examples = "  onepath protocol\n"
                "  onepath protocol PLAN\n"
                "  onepath protocol --json >protocol.json",
    .options = protocol_cli_options,
    .option_count = sizeof protocol_cli_options / sizeof protocol_cli_options[0],
    .word_count_min = 0,
    .word_count_max = 1,
};

/* ---- names of what is a plain enum in the list of messages ----------------------------------- */

#define NAME_CASE(prefix, name)                                                                    \
    case prefix##name:                                                                             \
        return #name

static const char *
finish_name(int value)
{
    switch ((proto_finish_reason_t)value) {
        NAME_CASE(PROTO_FINISH_, NONE);
        NAME_CASE(PROTO_FINISH_, STOP);
        NAME_CASE(PROTO_FINISH_, LENGTH);
        NAME_CASE(PROTO_FINISH_, CANCELLED);
        NAME_CASE(PROTO_FINISH_, ERROR);
        NAME_CASE(PROTO_FINISH_, REFUSED);
    }
    return NULL;
}

static const char *
mode_name(int value)
{
    switch ((proto_step_mode_t)value) {
        NAME_CASE(PROTO_STEP_, NONE);
        NAME_CASE(PROTO_STEP_, DECODE_EAGER);
        NAME_CASE(PROTO_STEP_, DECODE_ABOVE);
        NAME_CASE(PROTO_STEP_, DECODE_GRAPH);
        NAME_CASE(PROTO_STEP_, EXTEND);
        NAME_CASE(PROTO_STEP_, MIXED);
        NAME_CASE(PROTO_STEP_, IDLE);
        NAME_CASE(PROTO_STEP_, EXTEND_GRAPH);
        NAME_CASE(PROTO_STEP_, MIXED_GRAPH);
    }
    return NULL;
}

static const char *
rule_name(int value)
{
    switch ((proto_plan_rule_t)value) {
        NAME_CASE(PROTO_RULE_, NONE);
        NAME_CASE(PROTO_RULE_, STALE);
        NAME_CASE(PROTO_RULE_, SLOT_RANGE);
        NAME_CASE(PROTO_RULE_, SLOT_EMPTY);
        NAME_CASE(PROTO_RULE_, SLOT_TWICE);
        NAME_CASE(PROTO_RULE_, GROUP_RANGE);
        NAME_CASE(PROTO_RULE_, COLUMN_RANGE);
        NAME_CASE(PROTO_RULE_, BLOCK_RANGE);
        NAME_CASE(PROTO_RULE_, COLUMN_MISSING);
        NAME_CASE(PROTO_RULE_, WRITE_SHARED);
        NAME_CASE(PROTO_RULE_, TOKEN_RANGE);
        NAME_CASE(PROTO_RULE_, LENGTH_LIMIT);
        NAME_CASE(PROTO_RULE_, BUDGET);
        NAME_CASE(PROTO_RULE_, SHAPE);
        NAME_CASE(PROTO_RULE_, WIDTH);
    }
    return NULL;
}

static const char *
complaint_name(int value)
{
    switch ((proto_complaint_reason_t)value) {
        NAME_CASE(PROTO_COMPLAINT_, NONE);
        NAME_CASE(PROTO_COMPLAINT_, LOST);
        NAME_CASE(PROTO_COMPLAINT_, BAD_PLANS);
        NAME_CASE(PROTO_COMPLAINT_, NO_ANSWER);
    }
    return NULL;
}

/* Bits of STEP_RESULT.row_flags. */
static const char *
flag_name(int value)
{
    switch (value) {
        NAME_CASE(PROTO_ROW_, STOP_TOKEN);
        NAME_CASE(PROTO_ROW_, NAN);
    default:
        return NULL;
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void
put_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else if (c < 0x20) {
            printf("\\u%04x", c);
        } else {
            putchar(c);
        }
    }
    putchar('"');
}

static const char *
type_name(proto_field_type_t type)
{
    static const char *const names[] = {
        [PROTO_FIELD_U32] = "u32",         [PROTO_FIELD_U64] = "u64",
        [PROTO_FIELD_I64] = "i64",         [PROTO_FIELD_F64] = "f64",
        [PROTO_FIELD_BOOL] = "bool",       [PROTO_FIELD_STR] = "str",
        [PROTO_FIELD_BIN] = "bin",         [PROTO_FIELD_COL_U8] = "col_u8",
        [PROTO_FIELD_COL_U32] = "col_u32", [PROTO_FIELD_COL_I32] = "col_i32",
        [PROTO_FIELD_COL_U64] = "col_u64", [PROTO_FIELD_COL_F32] = "col_f32",
    };
    return names[type];
}

static void
put_message(const proto_message_t *message)
{
    printf("    {\"name\": \"%s\", \"kind\": %u, \"scope\": \"%s\", \"form\": \"%s\",\n     ",
           message->name, (unsigned)message->kind, message->is_wire ? "wire" : "local",
           message->is_map ? "map" : "array");
    printf("\"route\": ");
    put_text(message->route);
    printf(", \"text\": ");
    put_text(message->text);
    printf(",\n     \"fields\": [");
    for (uint32_t i = 0; i < message->field_count; i++) {
        const proto_field_t *field = &message->fields[i];
        printf("%s\n       {\"name\": \"%s\", \"type\": \"%s\", \"limit\": %" PRIu64
               ", \"private\": %s, \"text\": ",
               i > 0 ? "," : "", field->name, type_name(field->type), field->limit,
               field->is_private ? "true" : "false");
        put_text(field->text);
        putchar('}');
    }
    printf("]}");
}

static void
put_enum(const char *title, const char *(*name_of)(int value))
{
    printf("    \"%s\": {", title);
    bool first = true;
    for (int value = 0; value <= UINT8_MAX; value++) {
        const char *name = name_of(value);
        if (name != NULL) {
            printf("%s\"%s\": %d", first ? "" : ", ", name, value);
            first = false;
        }
    }
    printf("},\n");
}

static void
put_enums(void)
{
    printf("  \"enums\": {\n");
    put_enum("finish_reason", finish_name);
    put_enum("step_mode", mode_name);
    put_enum("row_flag", flag_name);
    put_enum("plan_rule", rule_name);
    put_enum("complaint_reason", complaint_name);
    const char *comma = "";
    printf("    \"role\": {");
#define PUT_ROLE(name, value, text) printf("%s\"%s\": %d", comma, (text), (value)), comma = ", ";
    PROTO_ROLE_LIST(PUT_ROLE)
#undef PUT_ROLE
    comma = "";
    printf("},\n    \"status\": {");
#define PUT_STATUS(name, value, text) printf("%s\"%s\": %d", comma, #name, (value)), comma = ", ";
    PROTO_STATUS_LIST(PUT_STATUS)
#undef PUT_STATUS
    comma = "";
    printf("},\n    \"log_kind\": {");
#define PUT_KIND(name, value, text) printf("%s\"%s\": %d", comma, #name, (value)), comma = ", ";
    PROTO_LOG_KIND_LIST(PUT_KIND)
#undef PUT_KIND
    printf("}\n  }\n");
}

static void
put_json(void)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    printf("{\n  \"schema_version\": %d,\n  \"schema_version_min\": %d,\n"
           "  \"schema_hash\": %" PRIu64 ",\n",
           PROTO_SCHEMA_VERSION, PROTO_SCHEMA_VERSION_MIN, proto_schema_hash());
    printf("  \"limits\": {\"column_align\": %d, \"header_size_max\": %d, \"body_size_max\": %d,\n"
           "    \"blob_size_max\": %d, \"part_count_max\": %d, \"name_size_max\": %d,\n"
           "    \"hash_size\": %d, \"log_version\": %d, \"log_header_size\": %d,\n"
           "    \"log_record_size_max\": %d},\n",
           PROTO_COLUMN_ALIGN, PROTO_HEADER_SIZE_MAX, PROTO_BODY_SIZE_MAX, PROTO_BLOB_SIZE_MAX,
           PROTO_PART_COUNT_MAX, PROTO_NAME_SIZE_BYTES - 1, PROTO_HASH_SIZE_BYTES,
           PROTO_LOG_VERSION, PROTO_LOG_HEADER_SIZE_BYTES, PROTO_LOG_RECORD_SIZE_MAX);
    printf("  \"header\": [\"version\", \"kind\", \"epoch\", \"sequence\", \"request\", "
           "\"cause\"],\n  \"messages\": [\n");
    for (uint32_t i = 0; i < count; i++) {
        put_message(&messages[i]);
        printf("%s\n", i + 1 < count ? "," : "");
    }
    printf("  ],\n");
    put_enums();
    printf("}\n");
}

/* ---- for people ------------------------------------------------------------------------------ */

static int
show_one(const char *name)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t i = 0; i < count; i++) {
        const proto_message_t *message = &messages[i];
        if (strcmp(message->name, name) != 0) {
            continue;
        }
        printf("%s (%u), %s: %s\n", message->name, (unsigned)message->kind, message->route,
               message->text);
        for (uint32_t at = 0; at < message->field_count; at++) {
            const proto_field_t *field = &message->fields[at];
            printf("  %2" PRIu32 "  %-8s %-20s %s\n", at, type_name(field->type), field->name,
                   field->text);
        }
        return CLI_EXIT_OK;
    }
    fprintf(stderr,
            "onepath protocol: there is no message '%s'; `onepath protocol` lists them, in "
            "capitals\n",
            name);
    return CLI_EXIT_CONFIG;
}

static void
show_all(void)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t i = 0; i < count; i++) {
        printf("%3u  %-14s %-28s %s\n", (unsigned)messages[i].kind, messages[i].name,
               messages[i].route, messages[i].text);
    }
}

int
cli_protocol(int argc, char **argv)
{
    protocol_options_t options = {false};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&protocol_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    if (options.json) {
        put_json();
        return CLI_EXIT_OK;
    }
    if (words.count > 0) {
        return show_one(words.words[0]);
    }
    show_all();
    return CLI_EXIT_OK;
}
