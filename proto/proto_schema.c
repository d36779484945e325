#include <string.h>
#include <xxhash.h>

#include "proto_codec.h"
#include "proto_log.h"

/* What decides the bytes of a message; names of ARRAY fields count too, for they reach the JSON
 * view and the scripts behind it. */
uint64_t
proto_schema_hash(void)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    uint64_t hash = PROTO_SCHEMA_VERSION;
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        uint64_t head[2] = {(uint64_t)message->kind, message->is_map};
        hash = XXH3_64bits_withSeed(head, sizeof head, hash);
        for (uint32_t at = 0; at < message->field_count; at++) {
            const proto_field_t *field = &message->fields[at];
            uint64_t shape[2] = {(uint64_t)field->type, field->limit};
            hash = XXH3_64bits_withSeed(field->name, strlen(field->name), hash);
            hash = XXH3_64bits_withSeed(shape, sizeof shape, hash);
        }
    }
    return hash;
}
