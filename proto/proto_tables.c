/* The field tables, made from the one list at compile time. */
#include "proto_codec.h"

/* Positions within the list. */
enum {
#define PROTO_INDEX(NAME, name, number, scope, form, route, text) PROTO_INDEX_##name,
    PROTO_MESSAGE_LIST(PROTO_INDEX)
#undef PROTO_INDEX
        PROTO_MESSAGE_COUNT
};

enum { PROTO_NUMBER_LIMIT = 128 }; /* message numbers are below */

/* Position + 1 of each number; 0 = not in the list. */
static const uint8_t index_of_number[PROTO_NUMBER_LIMIT] = {
#define PROTO_NUMBER(NAME, name, number, scope, form, route, text)                                 \
    [number] = PROTO_INDEX_##name + 1,
    PROTO_MESSAGE_LIST(PROTO_NUMBER)
#undef PROTO_NUMBER
};
_Static_assert(PROTO_MESSAGE_COUNT < UINT8_MAX, "positions fit a byte");

#define PROTO_SCOPE_WIRE true
#define PROTO_SCOPE_LOCAL false
#define PROTO_FORM_MAP true
#define PROTO_FORM_ARRAY false
#define PROTO_PRIVACY_PRIVATE true
#define PROTO_PRIVACY_OPEN false

/* offsetof needs the struct's name, which a FIELD row does not have.  So each table opens a block
 * of its own in which `self_t` is that struct; all blocks are nested, and the innermost one sees
 * every table.  Nothing of this is left at run time. */
#define PROTO_FIELD_ROW(name, type, limit, privacy, text)                                          \
    {#name, PROTO_FIELD_##type, (limit), PROTO_PRIVACY_##privacy, offsetof(self_t, name), text},
#define PROTO_TABLE_OPEN(NAME, name, number, scope, form, route, text)                             \
    {                                                                                              \
        typedef proto_##name##_t self_t;                                                           \
        static const proto_field_t fields_##name[] = {PROTO_FIELDS_##name(PROTO_FIELD_ROW)};
#define PROTO_TABLE_ROW(NAME, name, number, scope, form, route, text)                              \
    {#NAME,                                                                                        \
     PROTO_KIND_##NAME,                                                                            \
     PROTO_SCOPE_##scope,                                                                          \
     PROTO_FORM_##form,                                                                            \
     route,                                                                                        \
     text,                                                                                         \
     fields_##name,                                                                                \
     sizeof fields_##name / sizeof fields_##name[0],                                               \
     sizeof(proto_##name##_t)},
#define PROTO_TABLE_CLOSE(NAME, name, number, scope, form, route, text) }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/* One statement for each message of the list. */
static const proto_message_t *
message_tables(void) /* NOLINT(readability-function-size) */
{
    // clang-format off
    PROTO_MESSAGE_LIST(PROTO_TABLE_OPEN)
    static const proto_message_t tables[PROTO_MESSAGE_COUNT] = {
        PROTO_MESSAGE_LIST(PROTO_TABLE_ROW)
    };
    return tables;
    PROTO_MESSAGE_LIST(PROTO_TABLE_CLOSE)
    // clang-format on
}

#pragma GCC diagnostic pop

const proto_message_t *
proto_message_find(proto_kind_t kind)
{
    uint32_t number = (uint32_t)kind;
    if (number >= PROTO_NUMBER_LIMIT || index_of_number[number] == 0) {
        return NULL;
    }
    return message_tables() + (index_of_number[number] - 1);
}

const proto_message_t *
proto_message_all(uint32_t *count_p)
{
    *count_p = PROTO_MESSAGE_COUNT;
    return message_tables();
}

const char *
proto_kind_name(proto_kind_t kind)
{
    const proto_message_t *message = proto_message_find(kind);
    return message != NULL ? message->name : "UNKNOWN";
}

bool
proto_kind_known(proto_kind_t kind)
{
    return proto_message_find(kind) != NULL;
}

bool
proto_kind_is_wire(proto_kind_t kind)
{
    const proto_message_t *message = proto_message_find(kind);
    return message != NULL && message->is_wire;
}
