#include "kern_pack.h"

#include <string.h>

#include "proto_require.h"

kern_quant_t
kern_pack_quant(kern_type_t type)
{
    uint32_t block_len = kern_type_block_len(type);
    return block_len == 1 ? KERN_QUANT_NONE : block_len == 32 ? KERN_QUANT_32 : KERN_QUANT_256;
}

static size_t
round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

kern_pack_layout_t
kern_pack_layout(kern_type_t type, uint32_t cols)
{
    size_t blocks = cols / 32;
    size_t scale_size_bytes = type == KERN_TYPE_Q4_1 ? 64 : 32;
    kern_pack_layout_t layout;
    layout.supers = blocks * kern_pack_quant_size_bytes(type);
    layout.scales = layout.supers;
    if (kern_pack_quant(type) == KERN_QUANT_256) {
        layout.scales += blocks / 8 * 64;
    }
    layout.size_bytes = round_up(layout.scales + blocks * scale_size_bytes, 64);
    return layout;
}

kern_record_layout_t
kern_record_layout(uint32_t cols)
{
    size_t array_size_bytes = (size_t)(cols / 32) * sizeof(float);
    kern_record_layout_t layout;
    layout.scales = round_up(cols, 64);
    layout.halves = layout.scales + array_size_bytes;
    layout.sums = layout.halves + array_size_bytes;
    layout.sums16 = layout.sums + array_size_bytes;
    layout.size_bytes = round_up(layout.sums16 + 2 * array_size_bytes, 64);
    return layout;
}

/* The quants of 32 columns within a block of 256. */
static void
quants_of_super(kern_type_t type, const uint8_t *super, uint32_t j, uint8_t out[32])
{
    if (type == KERN_TYPE_Q6_K) {
        /* As kern_type_q6_k_quant(), 32 at a time. */
        const uint8_t *low = super + j / 4 * 64 + (j & 1u) * 32;
        const uint8_t *high = super + 128 + j / 4 * 32;
        uint32_t low_shift = j % 4 < 2 ? 0 : 4;
        uint32_t high_shift = 2 * (j % 4);
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t bits = ((uint32_t)high[i] >> high_shift) & 3u;
            out[i] = (uint8_t)((((uint32_t)low[i] >> low_shift) & 0x0Fu) | (bits << 4));
        }
        return;
    }
    const uint8_t *low = super + (type == KERN_TYPE_Q5_K ? 48 : 16) + j / 2 * 32;
    uint32_t shift = (j & 1u) * 4;
    for (uint32_t i = 0; i < 32; i++) {
        out[i] = (uint8_t)(((uint32_t)low[i] >> shift) & 0x0Fu);
    }
    for (uint32_t i = 0; type == KERN_TYPE_Q5_K && i < 32; i++) {
        out[i] |= (uint8_t)((((uint32_t)super[16 + i] >> j) & 1u) << 4);
    }
}

/* The 32 unsigned (Q8_0: signed) quants of block `b` of a row, one byte each. */
static void
quants_of_block(kern_type_t type, const uint8_t *row, uint32_t b, uint8_t out[32])
{
    size_t size_bytes = kern_type_block_size_bytes(type);
    if (kern_pack_quant(type) == KERN_QUANT_256) {
        quants_of_super(type, row + (b / 8) * size_bytes, b % 8, out);
        return;
    }
    const uint8_t *block = row + b * size_bytes;
    if (type == KERN_TYPE_Q8_0) {
        memcpy(out, block + 2, 32);
        return;
    }
    const uint8_t *quants = block + size_bytes - 16;
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = quants[i] & 0x0F;
        out[i + 16] = quants[i] >> 4;
    }
    if (type == KERN_TYPE_Q5_0) {
        uint32_t high;
        memcpy(&high, block + 2, sizeof high);
        for (uint32_t i = 0; i < 32; i++) {
            out[i] |= (uint8_t)(((high >> i) & 1u) << 4);
        }
    }
}

/* ORs the 4 bytes of `quad` into the tile. */
static void
merge_quad(uint8_t *to, uint32_t quad)
{
    uint32_t bytes;
    memcpy(&bytes, to, sizeof bytes);
    bytes |= quad;
    memcpy(to, &bytes, sizeof bytes);
}

static void
pack_quants(kern_type_t type, const uint8_t quants[32], uint32_t row, uint8_t *out)
{
    for (uint32_t quad = 0; quad < 8; quad++) {
        uint32_t q;
        memcpy(&q, quants + 4 * quad, sizeof q);
        if (type == KERN_TYPE_Q8_0) {
            memcpy(out + 64 * quad + 4 * row, &q, sizeof q);
            continue;
        }
        merge_quad(out + 64 * (quad % 4) + 4 * row, (q & 0x0F0F0F0Fu) << (quad < 4 ? 0 : 4));
        uint32_t upper = (q >> 4) & 0x03030303u;
        if (type == KERN_TYPE_Q6_K) {
            merge_quad(out + 256 + 64 * (quad / 4) + 4 * row, upper << (2 * (quad % 4)));
        } else if (type == KERN_TYPE_Q5_0 || type == KERN_TYPE_Q5_K) {
            /* The product moves bits 0, 8, 16, 24 to 28, 29, 30, 31. */
            uint32_t bits = (upper * 0x10204080u) >> 28;
            out[256 + 8 * quad + row / 2] |= (uint8_t)(bits << (row % 2 * 4));
        }
    }
}

/* The common 4-bit types: the file's 16 bytes go over as four quads, without looking at them. */
static void
pack_nibbles(const uint8_t *quants, uint32_t row, uint8_t *out)
{
    for (uint32_t v = 0; v < 4; v++) {
        memcpy(out + 64 * v + 4 * row, quants + 4 * v, 4);
    }
}

static void
pack_scales(kern_type_t type, const uint8_t *row_bytes, uint32_t b, uint32_t row, uint8_t *supers,
            uint8_t *scales)
{
    size_t size_bytes = kern_type_block_size_bytes(type);
    if (kern_pack_quant(type) == KERN_QUANT_32) {
        const uint8_t *block = row_bytes + b * size_bytes;
        uint8_t *to = scales + (size_t)b * (type == KERN_TYPE_Q4_1 ? 64 : 32);
        memcpy(to + 2 * row, block, 2);
        if (type == KERN_TYPE_Q4_1) {
            memcpy(to + 32 + 2 * row, block + 2, 2);
        }
        return;
    }
    const uint8_t *super = row_bytes + (b / 8) * size_bytes;
    uint8_t *to = scales + (size_t)b * 32;
    uint8_t *super_to = supers + (size_t)(b / 8) * 64;
    if (type == KERN_TYPE_Q6_K) {
        to[row] = super[192 + 2 * (b % 8)];
        to[16 + row] = super[193 + 2 * (b % 8)];
        memcpy(super_to + 2 * row, super + 208, 2);
        return;
    }
    kern_type_super_scale(super + 4, b % 8, &to[row], &to[16 + row]);
    memcpy(super_to + 2 * row, super, 2);
    memcpy(super_to + 32 + 2 * row, super + 2, 2);
}

void
kern_pack_tile(kern_type_t type, const uint8_t *rows, uint32_t row_count, uint32_t cols,
               uint8_t *tile)
{
    require(row_count >= 1 && row_count <= KERN_PACK_ROWS);
    kern_pack_layout_t layout = kern_pack_layout(type, cols);
    size_t row_size_bytes = kern_type_row_size_bytes(type, cols);
    size_t quant_size_bytes = kern_pack_quant_size_bytes(type);
    size_t block_size_bytes = kern_type_block_size_bytes(type);
    bool plain_nibbles = type == KERN_TYPE_Q4_0 || type == KERN_TYPE_Q4_1;
    memset(tile, 0, layout.size_bytes);
    for (uint32_t row = 0; row < row_count; row++) {
        const uint8_t *from = rows + row * row_size_bytes;
        for (uint32_t b = 0; b < cols / 32; b++) {
            uint8_t *to = tile + b * quant_size_bytes;
            if (plain_nibbles) {
                pack_nibbles(from + (b + 1) * block_size_bytes - 16, row, to);
            } else {
                uint8_t quants[32];
                quants_of_block(type, from, b, quants);
                pack_quants(type, quants, row, to);
            }
            pack_scales(type, from, b, row, tile + layout.supers, tile + layout.scales);
        }
    }
}

static float
half_of(const uint8_t *bytes, uint32_t index)
{
    uint16_t half;
    memcpy(&half, bytes + 2 * (size_t)index, sizeof half);
    return kern_half_to_float(half);
}

static int
quant_of(kern_type_t type, const uint8_t *quants, uint32_t row, uint32_t k)
{
    uint32_t quad = k / 4;
    uint32_t byte = 4 * row + k % 4;
    if (type == KERN_TYPE_Q8_0) {
        return (int8_t)quants[64 * quad + byte];
    }
    int q = (quants[64 * (quad % 4) + byte] >> (quad < 4 ? 0 : 4)) & 0x0F;
    if (type == KERN_TYPE_Q6_K) {
        q |= ((quants[256 + 64 * (quad / 4) + byte] >> (2 * (quad % 4))) & 3) << 4;
    } else if (type == KERN_TYPE_Q5_0 || type == KERN_TYPE_Q5_K) {
        q |= ((quants[256 + 8 * quad + byte / 8] >> (byte % 8)) & 1) << 4;
    }
    return q;
}

void
kern_pack_row_to_float(kern_type_t type, const uint8_t *tile, uint32_t row, uint32_t cols,
                       float *out)
{
    require(row < KERN_PACK_ROWS);
    kern_pack_layout_t layout = kern_pack_layout(type, cols);
    size_t quant_size_bytes = kern_pack_quant_size_bytes(type);
    for (uint32_t b = 0; b < cols / 32; b++) {
        const uint8_t *quants = tile + b * quant_size_bytes;
        const uint8_t *super = tile + layout.supers + (size_t)(b / 8) * 64;
        const uint8_t *scales = tile + layout.scales + (size_t)b * 32;
        for (uint32_t k = 0; k < 32; k++) {
            float q = (float)quant_of(type, quants, row, k);
            float value;
            if (type == KERN_TYPE_Q4_1) {
                const uint8_t *pair = tile + layout.scales + (size_t)b * 64;
                value = q * half_of(pair, row) + half_of(pair, 16 + row);
            } else if (type == KERN_TYPE_Q6_K) {
                float scale = (float)(int8_t)scales[16 * (k / 16) + row];
                value = half_of(super, row) * scale * (q - 32.0f);
            } else if (type == KERN_TYPE_Q4_K || type == KERN_TYPE_Q5_K) {
                float step = half_of(super, row) * (float)scales[row];
                value = step * q - half_of(super, 16 + row) * (float)scales[16 + row];
            } else {
                float zero = type == KERN_TYPE_Q4_0 ? 8.0f : type == KERN_TYPE_Q5_0 ? 16.0f : 0.0f;
                value = (q - zero) * half_of(scales, row);
            }
            out[32 * (size_t)b + k] = value;
        }
    }
}
