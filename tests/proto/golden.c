/* Writes golden bytes for every message to standard output: proto_golden > golden/vN.txt
 *
 * For a new schema version, or a new message: make a new file and keep the old ones as they are,
 * so that the test proves that what was sent once still decodes.  With --corpus DIR it writes the
 * same messages as seeds for the fuzz targets instead. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message_maker.h"

enum { SEED = 20, CONTENT_MAX = 9, VARIANTS = 2 };

static encoded_t encoded;

static void
print_hex(const char *label, const uint8_t *data, size_t size_bytes)
{
    printf("%s ", label);
    for (size_t at = 0; at < size_bytes; at++) {
        printf("%02x", data[at]);
    }
    printf("%s\n", size_bytes == 0 ? "-" : "");
}

static void
print_message(const proto_message_t *message, const proto_body_t *body)
{
    static char json[1 << 16];
    size_t length = proto_body_to_json(message->kind, body, true, 1000, json, sizeof json);
    if (length >= sizeof json) {
        abort();
    }
    printf("message %s %" PRIu32 "\n", message->name, (uint32_t)message->kind);
    print_hex("body", encoded.body, encoded.body_size_bytes);
    print_hex("blob", encoded.blob, encoded.blob_size_bytes);
    printf("json %s\n", json);
}

/* A seed of fuzz_body: the kind, the size of the body (u16 little endian), body, blob. */
static void
write_seed(const char *directory, const proto_message_t *message, int variant)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s-%d", directory, message->name, variant);
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    const uint8_t head[3] = {(uint8_t)message->kind, (uint8_t)encoded.body_size_bytes,
                             (uint8_t)(encoded.body_size_bytes >> 8)};
    (void)fwrite(head, 1, sizeof head, file);
    (void)fwrite(encoded.body, 1, encoded.body_size_bytes, file);
    (void)fwrite(encoded.blob, 1, encoded.blob_size_bytes, file);
    (void)fclose(file);
}

int
main(int argument_count, char **arguments)
{
    const char *corpus =
        argument_count == 3 && strcmp(arguments[1], "--corpus") == 0 ? arguments[2] : NULL;
    maker_t *maker = maker_new(SEED, CONTENT_MAX);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    if (corpus == NULL) {
        printf("# Golden bytes of schema version %d; never edited (tests/proto/golden.c).\n",
               PROTO_SCHEMA_VERSION);
    }
    for (uint32_t index = 0; index < count; index++) {
        for (int variant = 0; variant < VARIANTS; variant++) {
            proto_body_t body;
            maker_fill(maker, &messages[index], &body);
            maker_encode(&messages[index], &body, &encoded);
            if (corpus != NULL) {
                write_seed(corpus, &messages[index], variant);
            } else {
                print_message(&messages[index], &body);
            }
        }
    }
    free(maker);
    return 0;
}
