/* CRC-32C with the processor's instruction where there is one. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto_log.h"

#define POLYNOMIAL_REVERSED UINT32_C(0x82f63b78)

typedef uint32_t (*update_fn)(uint32_t state, const uint8_t *data, size_t size_bytes);

static uint32_t table[256];

static uint32_t
update_table(uint32_t state, const uint8_t *data, size_t size_bytes)
{
    for (size_t at = 0; at < size_bytes; at++) {
        state = table[(state ^ data[at]) & 0xff] ^ (state >> 8);
    }
    return state;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t
update_sse42(uint32_t state, const uint8_t *data, size_t size_bytes)
{
    uint64_t wide = state;
    while (size_bytes >= 8) {
        uint64_t eight;
        memcpy(&eight, data, sizeof eight);
        wide = _mm_crc32_u64(wide, eight);
        data += 8;
        size_bytes -= 8;
    }
    uint32_t narrow = (uint32_t)wide;
    while (size_bytes > 0) {
        narrow = _mm_crc32_u8(narrow, *data++);
        size_bytes--;
    }
    return narrow;
}
#endif

static update_fn update = update_table;

/* Before main: the choice is made once and no thread can see it half made. */
__attribute__((constructor)) static void
choose_update(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) {
            state = (state >> 1) ^ ((state & 1) != 0 ? POLYNOMIAL_REVERSED : 0);
        }
        table[byte] = state;
    }
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) {
        update = update_sse42;
    }
#endif
}

uint32_t
proto_crc32c(uint32_t crc, const void *data, size_t size_bytes)
{
    return size_bytes == 0 ? crc : ~update(~crc, data, size_bytes);
}

uint32_t
proto_crc32c_portable(uint32_t crc, const void *data, size_t size_bytes)
{
    return size_bytes == 0 ? crc : ~update_table(~crc, data, size_bytes);
}
