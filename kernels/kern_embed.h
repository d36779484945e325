/* kern_embed.h - rows of an embedding table, dequantised. */
#ifndef KERN_EMBED_H
#define KERN_EMBED_H

#include <stddef.h>
#include <stdint.h>

#include "kern_linear.h"
#include "kern_share.h"

typedef struct {
    kern_weight_t table;   /* rows = vocabulary; packed or not */
    const int32_t *tokens; /* [rows], read at execution; outside the vocabulary = a row of zeros */
    uint32_t rows;
    float scale;   /* each value is multiplied by it; 1 = none */
    float *output; /* [rows][output_stride] */
    size_t output_stride;
} kern_embed_args_t;

void kern_embed_host(const void *args, kern_share_t *share);

#endif
