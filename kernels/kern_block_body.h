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

#endif
