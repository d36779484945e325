/* proto_secret.h - comparing secrets without telling by the time it takes how much of them was
 * right.  Any thread. */
#ifndef PROTO_SECRET_H
#define PROTO_SECRET_H

#include <stdbool.h>

#include "proto_codec.h"

/* Keyed BLAKE2b-256 of some bytes; a fresh key in each process makes the hashes worthless
 * elsewhere. */
void proto_secret_hash(const uint8_t key[PROTO_HASH_SIZE_BYTES], proto_bytes_t bytes,
                       uint8_t out[PROTO_HASH_SIZE_BYTES]);

/* Whether two hashes are equal; takes the same time whatever they hold. */
bool proto_secret_equal(const uint8_t a[PROTO_HASH_SIZE_BYTES],
                        const uint8_t b[PROTO_HASH_SIZE_BYTES]);

/* Random bytes from the system. */
void proto_secret_random(uint8_t *out, size_t size_bytes);

#endif
