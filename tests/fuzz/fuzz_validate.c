/* What the validator lets through, an independent reader must be able to read to the end. */
#include <msgpack.h>
#include <stdlib.h>

#include "proto_codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    proto_error_t error = {""};
    proto_status_t status = proto_validate((proto_bytes_t){data, size_bytes}, &error);
    if (status != STATUS_OK) {
        if (status != STATUS_ERR_MALFORMED || error.detail[0] == '\0') {
            abort();
        }
        return 0;
    }
    msgpack_unpacked unpacked;
    size_t offset = 0;
    msgpack_unpacked_init(&unpacked);
    if (msgpack_unpack_next(&unpacked, (const char *)data, size_bytes, &offset) !=
            MSGPACK_UNPACK_SUCCESS ||
        offset != size_bytes) {
        abort();
    }
    msgpack_unpacked_destroy(&unpacked);
    return 0;
}
