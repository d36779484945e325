/* Every body decoder.  Input: kind (u8), size of the body (u16 little endian), body, blob.
 *
 * What decodes must be in range, must survive a round trip, and must have a JSON view. */
#include <stdlib.h>
#include <string.h>

#include "message_maker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

enum { HEAD_SIZE = 3, ROOM = 1 << 20 };

static void
check(const proto_message_t *message, proto_bytes_t body, proto_bytes_t blob)
{
    static _Alignas(64) uint8_t body_out[ROOM];
    static _Alignas(64) uint8_t blob_out[ROOM];
    static char json[4096];
    proto_body_t decoded;
    proto_body_t again;
    proto_error_t error = {""};
    if (proto_body_decode(message->kind, body, blob, &decoded, &error) != STATUS_OK) {
        if (error.detail[0] == '\0') {
            abort();
        }
        return;
    }
    if (maker_out_of_range(message, &decoded, body, blob) != NULL) {
        abort();
    }
    size_t body_size = 0;
    size_t blob_size = 0;
    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_body_bound(message->kind, &decoded, &body_bound, &blob_bound);
    if (body_bound > ROOM || blob_bound > ROOM ||
        proto_body_encode(message->kind, &decoded, body_out, body_bound, &body_size, blob_out,
                          blob_bound, &blob_size) != STATUS_OK ||
        proto_body_decode(message->kind, (proto_bytes_t){body_out, body_size},
                          (proto_bytes_t){blob_out, blob_size}, &again, NULL) != STATUS_OK ||
        maker_difference(message, &decoded, &again) != NULL) {
        abort();
    }
    (void)proto_body_to_json(message->kind, &decoded, true, 16, json, sizeof json);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    if (size_bytes < HEAD_SIZE || size_bytes > ROOM / 2) {
        return 0;
    }
    const proto_message_t *message = proto_message_find((proto_kind_t)data[0]);
    size_t body_size = data[1] | (size_t)data[2] << 8;
    data += HEAD_SIZE;
    size_bytes -= HEAD_SIZE;
    body_size = body_size < size_bytes ? body_size : size_bytes;
    size_t blob_size = size_bytes - body_size;
    if (message == NULL) {
        return 0;
    }
    /* Each in memory of its own and of its exact size, so that a byte too many is seen. */
    uint8_t *body = malloc(body_size > 0 ? body_size : 1);
    uint8_t *blob = malloc(blob_size > 0 ? blob_size : 1);
    if (body == NULL || blob == NULL) {
        abort();
    }
    memcpy(body, data, body_size);
    memcpy(blob, data + body_size, blob_size);
    check(message, (proto_bytes_t){body, body_size}, (proto_bytes_t){blob, blob_size});
    free(blob);
    free(body);
    return 0;
}
