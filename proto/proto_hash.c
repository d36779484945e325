#include <sodium.h>
#include <stdatomic.h>

#include "proto_codec.h"
#include "proto_require.h"

_Static_assert(PROTO_HASH_SIZE_BYTES == crypto_generichash_blake2b_BYTES, "BLAKE2b-256");
_Static_assert(PROTO_HASH_SIZE_BYTES == crypto_generichash_blake2b_KEYBYTES, "keyed with 32 bytes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token ids are hashed in place");

/* Lets libsodium choose its fastest code; any thread may be the first. */
static void
start_once(void)
{
    static atomic_bool started;
    if (!atomic_load_explicit(&started, memory_order_acquire)) {
        int result = sodium_init();
        require(result >= 0);
        atomic_store_explicit(&started, true, memory_order_release);
    }
}

void
proto_page_hash(const uint8_t key[PROTO_HASH_SIZE_BYTES], const uint8_t *previous,
                proto_bytes_t salt, const int32_t *tokens, uint32_t token_count,
                uint8_t out[PROTO_HASH_SIZE_BYTES])
{
    static const uint8_t first_page[PROTO_HASH_SIZE_BYTES];
    require(key != NULL);
    require(out != NULL);
    require(token_count == 0 || tokens != NULL);
    start_once();
    crypto_generichash_blake2b_state state;
    int failed =
        crypto_generichash_blake2b_init(&state, key, PROTO_HASH_SIZE_BYTES, PROTO_HASH_SIZE_BYTES);
    failed |= crypto_generichash_blake2b_update(&state, previous != NULL ? previous : first_page,
                                                PROTO_HASH_SIZE_BYTES);
    failed |= crypto_generichash_blake2b_update(&state, salt.data, salt.size_bytes);
    failed |= crypto_generichash_blake2b_update(&state, (const uint8_t *)tokens,
                                                (size_t)token_count * sizeof *tokens);
    failed |= crypto_generichash_blake2b_final(&state, out, PROTO_HASH_SIZE_BYTES);
    require(failed == 0);
}
