/* A header that decodes is encoded to bytes that decode to the same. */
#include <stdlib.h>
#include <string.h>

#include "proto_codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    proto_header_t header;
    proto_header_t again;
    memset(&header, 0, sizeof header);
    memset(&again, 0, sizeof again);
    if (proto_header_decode((proto_bytes_t){data, size_bytes}, &header) != STATUS_OK) {
        return 0;
    }
    uint8_t out[PROTO_HEADER_SIZE_MAX];
    size_t out_size = proto_header_encode(&header, out);
    if (proto_header_decode((proto_bytes_t){out, out_size}, &again) != STATUS_OK ||
        memcmp(&header, &again, sizeof header) != 0) {
        abort();
    }
    (void)proto_kind_name(header.kind);
    return 0;
}
