#include "kern_type.h"

#include <math.h>
#include <string.h>

#include "proto_require.h"

enum {
    BLOCK_LEN = 32,
    SUPER_LEN = 256,
    SUPER_SCALES_SIZE_BYTES = 12, /* 8 scales and 8 mins of 6 bits (Q4_K, Q5_K) */
};

bool
kern_type_known(uint32_t type)
{
    switch (type) {
    case KERN_TYPE_F32:
    case KERN_TYPE_F16:
    case KERN_TYPE_Q4_0:
    case KERN_TYPE_Q4_1:
    case KERN_TYPE_Q5_0:
    case KERN_TYPE_Q8_0:
    case KERN_TYPE_Q4_K:
    case KERN_TYPE_Q5_K:
    case KERN_TYPE_Q6_K:
    case KERN_TYPE_BF16:
        return true;
    default:
        return false;
    }
}

const char *
kern_type_name(kern_type_t type)
{
    switch (type) {
    case KERN_TYPE_F32:
        return "F32";
    case KERN_TYPE_F16:
        return "F16";
    case KERN_TYPE_Q4_0:
        return "Q4_0";
    case KERN_TYPE_Q4_1:
        return "Q4_1";
    case KERN_TYPE_Q5_0:
        return "Q5_0";
    case KERN_TYPE_Q8_0:
        return "Q8_0";
    case KERN_TYPE_Q4_K:
        return "Q4_K";
    case KERN_TYPE_Q5_K:
        return "Q5_K";
    case KERN_TYPE_Q6_K:
        return "Q6_K";
    case KERN_TYPE_BF16:
        return "BF16";
    default:
        return "unknown";
    }
}

uint32_t
kern_type_block_len(kern_type_t type)
{
    switch (type) {
    case KERN_TYPE_F32:
    case KERN_TYPE_F16:
    case KERN_TYPE_BF16:
        return 1;
    case KERN_TYPE_Q4_0:
    case KERN_TYPE_Q4_1:
    case KERN_TYPE_Q5_0:
    case KERN_TYPE_Q8_0:
        return BLOCK_LEN;
    case KERN_TYPE_Q4_K:
    case KERN_TYPE_Q5_K:
    case KERN_TYPE_Q6_K:
    default:
        return SUPER_LEN;
    }
}

size_t
kern_type_block_size_bytes(kern_type_t type)
{
    switch (type) {
    case KERN_TYPE_F32:
        return 4;
    case KERN_TYPE_F16:
    case KERN_TYPE_BF16:
        return 2;
    case KERN_TYPE_Q4_0:
        return 2 + 16;
    case KERN_TYPE_Q4_1:
        return 4 + 16;
    case KERN_TYPE_Q5_0:
        return 2 + 4 + 16;
    case KERN_TYPE_Q8_0:
        return 2 + 32;
    case KERN_TYPE_Q4_K:
        return 4 + SUPER_SCALES_SIZE_BYTES + 128;
    case KERN_TYPE_Q5_K:
        return 4 + SUPER_SCALES_SIZE_BYTES + 32 + 128;
    case KERN_TYPE_Q6_K:
        return 128 + 64 + 16 + 2;
    default:
        require(kern_type_known(type));
        return 0;
    }
}

size_t
kern_type_row_size_bytes(kern_type_t type, uint32_t cols)
{
    uint32_t block_len = kern_type_block_len(type);
    if (cols % block_len != 0) {
        return 0;
    }
    return (size_t)(cols / block_len) * kern_type_block_size_bytes(type);
}

float
kern_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1Fu;
    uint32_t fraction = half & 0x3FFu;
    uint32_t bits;
    if (exponent == 0x1F) {
        /* NaN stays quiet, as the processor's conversion makes it. */
        bits = sign | 0x7F800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112) << 23) | (fraction << 13);
    } else {
        /* Zero and subnormal numbers: an exact product. */
        float magnitude = (float)fraction * 0x1.0p-24f;
        memcpy(&bits, &magnitude, sizeof bits);
        bits |= sign;
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t
kern_float_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
        return (uint16_t)(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
    }
    if (magnitude >= 0x477FF000u) { /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7C00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: subnormal; the sum rounds to nearest even */
        float absolute;
        memcpy(&absolute, &magnitude, sizeof absolute);
        absolute += 0.5f;
        memcpy(&magnitude, &absolute, sizeof magnitude);
        return (uint16_t)(sign | (magnitude - 0x3F000000u));
    }
    uint32_t odd = (magnitude >> 13) & 1u;
    magnitude += 0xFFFu + odd;
    return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

static float
half_at(const uint8_t *bytes)
{
    return kern_half_to_float((uint16_t)(bytes[0] | (bytes[1] << 8)));
}

void
kern_type_super_scale(const uint8_t *scales, uint32_t index, uint8_t *scale, uint8_t *min)
{
    if (index < 4) {
        *scale = scales[index] & 63;
        *min = scales[index + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[index + 4] & 0x0F) | ((scales[index - 4] >> 6) << 4));
        *min = (uint8_t)((scales[index + 4] >> 4) | ((scales[index] >> 6) << 4));
    }
}

static void
block_q4(const uint8_t *quants, float scale, float offset, float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = (float)(quants[i] & 0x0F) * scale + offset;
        out[i + 16] = (float)(quants[i] >> 4) * scale + offset;
    }
}

static void
block_q5_0(const uint8_t *block, float *out)
{
    float scale = half_at(block);
    uint32_t high;
    memcpy(&high, block + 2, sizeof high);
    for (int i = 0; i < 16; i++) {
        int low0 = (block[6 + i] & 0x0F) | (int)(((high >> i) & 1u) << 4);
        int low1 = (block[6 + i] >> 4) | (int)(((high >> (i + 16)) & 1u) << 4);
        out[i] = (float)(low0 - 16) * scale;
        out[i + 16] = (float)(low1 - 16) * scale;
    }
}

/* Eight sub-blocks of 32; sub-blocks 2j and 2j+1 are the low and high nibbles of the same bytes. */
static void
block_q4_k_q5_k(const uint8_t *block, bool five_bits, float *out)
{
    float d = half_at(block);
    float dmin = half_at(block + 2);
    const uint8_t *scales = block + 4;
    const uint8_t *high = block + 4 + SUPER_SCALES_SIZE_BYTES;
    const uint8_t *quants = five_bits ? high + 32 : high;
    for (uint32_t j = 0; j < 8; j++) {
        uint8_t scale;
        uint8_t min;
        kern_type_super_scale(scales, j, &scale, &min);
        float step = d * (float)scale;
        float offset = dmin * (float)min;
        for (uint32_t i = 0; i < 32; i++) {
            uint8_t byte = quants[(j / 2) * 32 + i];
            int q = (j & 1u) ? byte >> 4 : byte & 0x0F;
            if (five_bits) {
                q |= ((high[i] >> j) & 1) << 4;
            }
            out[j * 32 + i] = step * (float)q - offset;
        }
    }
}

static void
block_q6_k(const uint8_t *block, float *out)
{
    const uint8_t *high = block + 128;
    const int8_t *scales = (const int8_t *)(block + 192);
    float d = half_at(block + 208);
    for (uint32_t k = 0; k < SUPER_LEN; k++) {
        int q = (int)kern_type_q6_k_quant(block, high, k) - 32;
        int8_t scale = scales[k / 16];
        out[k] = d * (float)scale * (float)q;
    }
}

void
kern_mxfp4_row_to_bf16(const void *row, uint32_t cols, uint16_t *out)
{
    static const float halves[8] = {0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 6.0f, 8.0f, 12.0f};
    const uint8_t *block = row;
    for (uint32_t at = 0; at + 32 <= cols; at += 32, block += 17) {
        float scale = block[0] == 255 ? NAN : ldexpf(1.0f, (int)block[0] - 128);
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t nibble = i < 16 ? block[1 + i] & 0x0Fu : (uint32_t)block[1 + i - 16] >> 4;
            float value = halves[nibble & 7u] * scale;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            out[at + i] = (uint16_t)(bits >> 16 | (nibble & 8u) << 12);
        }
    }
}

uint8_t
kern_type_q6_k_quant(const uint8_t *low, const uint8_t *high, uint32_t k)
{
    /* Two halves of 128; in each, four groups of 32 share 64 low bytes and 32 high bytes. */
    uint32_t half = k / 128;
    uint32_t group = (k / 32) % 4;
    uint32_t i = k % 32;
    uint8_t byte = low[half * 64 + (group & 1u) * 32 + i];
    uint32_t nibble = group < 2 ? byte & 0x0Fu : (uint32_t)byte >> 4;
    uint32_t bits = ((uint32_t)high[half * 32 + i] >> (2 * group)) & 3u;
    return (uint8_t)(nibble | (bits << 4));
}

static void
floats_of_row(kern_type_t type, const void *row, uint32_t cols, float *out)
{
    if (type == KERN_TYPE_F32) {
        memcpy(out, row, (size_t)cols * sizeof *out);
        return;
    }
    const uint8_t *bytes = row;
    for (uint32_t i = 0; i < cols; i++) {
        if (type == KERN_TYPE_F16) {
            out[i] = half_at(bytes + 2 * (size_t)i);
        } else {
            uint32_t bits = (uint32_t)bytes[2 * (size_t)i] << 16;
            bits |= (uint32_t)bytes[2 * (size_t)i + 1] << 24;
            memcpy(&out[i], &bits, sizeof bits);
        }
    }
}

void
kern_type_row_to_float(kern_type_t type, const void *row, uint32_t cols, float *out)
{
    uint32_t block_len = kern_type_block_len(type);
    require(cols % block_len == 0);
    if (block_len == 1) {
        floats_of_row(type, row, cols, out);
        return;
    }
    size_t block_size_bytes = kern_type_block_size_bytes(type);
    const uint8_t *block = row;
    for (uint32_t at = 0; at < cols; at += block_len, block += block_size_bytes) {
        float *to = out + at;
        if (type == KERN_TYPE_Q4_0) {
            float d = half_at(block);
            block_q4(block + 2, d, -8.0f * d, to);
        } else if (type == KERN_TYPE_Q4_1) {
            block_q4(block + 4, half_at(block), half_at(block + 2), to);
        } else if (type == KERN_TYPE_Q5_0) {
            block_q5_0(block, to);
        } else if (type == KERN_TYPE_Q8_0) {
            float d = half_at(block);
            for (int i = 0; i < 32; i++) {
                to[i] = (float)(int8_t)block[2 + i] * d;
            }
        } else if (type == KERN_TYPE_Q6_K) {
            block_q6_k(block, to);
        } else {
            block_q4_k_q5_k(block, type == KERN_TYPE_Q5_K, to);
        }
    }
}
