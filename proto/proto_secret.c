#include "proto_secret.h"

#include <sodium.h>

void
proto_secret_hash(const uint8_t key[PROTO_HASH_SIZE_BYTES], proto_bytes_t bytes,
                  uint8_t out[PROTO_HASH_SIZE_BYTES])
{
    (void)crypto_generichash(out, PROTO_HASH_SIZE_BYTES, bytes.data, bytes.size_bytes, key,
                             PROTO_HASH_SIZE_BYTES);
}

bool
proto_secret_equal(const uint8_t a[PROTO_HASH_SIZE_BYTES], const uint8_t b[PROTO_HASH_SIZE_BYTES])
{
    return sodium_memcmp(a, b, PROTO_HASH_SIZE_BYTES) == 0;
}

void
proto_secret_random(uint8_t *out, size_t size_bytes)
{
    randombytes_buf(out, size_bytes);
}
