/* kern_block_body.h - inside kernels/: what the microkernels of quantised weights share (included
 * after a kern_vec_*.h). */
#ifndef KERN_BLOCK_BODY_H
#define KERN_BLOCK_BODY_H

#include "kern_table.h"

KV_INLINE int
bits_of(kern_type_t type)
{
    return type == KERN_TYPE_Q8_0                             ? 8
           : type == KERN_TYPE_Q6_K                           ? 6
           : type == KERN_TYPE_Q5_0 || type == KERN_TYPE_Q5_K ? 5
                                                              : 4;
}

KV_INLINE float
float_at(const uint8_t *bytes, size_t index)
{
    float value;
    memcpy(&value, bytes + index * sizeof value, sizeof value);
    return value;
}

KV_INLINE void
finish(kv_t acc, const float *bias, bool accumulate, float *out, uint32_t count)
{
    if (count == 16) {
        acc = bias != NULL ? kv_add(acc, kv_load(bias)) : acc;
        kv_store(out, accumulate ? kv_add(kv_load(out), acc) : acc);
        return;
    }
    acc = bias != NULL ? kv_add(acc, kv_load_part(bias, count)) : acc;
    kv_store_part(out, accumulate ? kv_add(kv_load_part(out, count), acc) : acc, count);
}

/* Weights that come from memory: ask for the next tile while computing this one, which beats asking
 * a fixed distance ahead.  An address past the last tile does no harm. */
KV_INLINE void
prefetch_next(kern_type_t type, const uint8_t *quants, const uint8_t *supers, const uint8_t *scales,
              uint32_t b)
{
    size_t size_bytes = kern_pack_quant_size_bytes(type);
    KERN_UNROLL
    for (size_t at = 0; at < size_bytes; at += 64) {
        __builtin_prefetch(quants + b * size_bytes + at);
    }
    if (type == KERN_TYPE_Q4_1) {
        __builtin_prefetch(scales + (size_t)b * 64);
    } else if (b % 2 == 0) {
        __builtin_prefetch(scales + (size_t)b * 32);
    }
    if ((type == KERN_TYPE_Q4_K || type == KERN_TYPE_Q5_K || type == KERN_TYPE_Q6_K) &&
        b % 8 == 0) {
        __builtin_prefetch(supers + (size_t)(b / 8) * 64);
    }
}

#endif
