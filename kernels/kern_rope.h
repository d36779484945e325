/* kern_rope.h - rotary positions and the write of keys and values into the paged cache.
 *
 * kern_rope_angles runs once in a step; kern_rope_kv_write in every layer reads its table. */
#ifndef KERN_ROPE_H
#define KERN_ROPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"
#include "kern_type.h"

/* angles[r][i] = (cos, sin) of positions[r] * frequencies[i], each times `scale`.  The product is
 * a float32 product, as the reference implementations have it. */
typedef struct {
    const void *positions; /* [rows], read at execution */
    bool positions_int64;  /* else int32 */
    uint32_t rows;
    const float *frequencies; /* [rope_dim / 2]: scaling variants are only another table */
    uint32_t rope_dim;        /* even */
    float scale;              /* 1 = none (the attention factor of YaRN) */
    float *angles;            /* [rows][rope_dim]: cos, sin, cos, sin, ... */
} kern_rope_angles_args_t;

void kern_rope_angles_host(const void *args, kern_share_t *share);

/* For each row: q and k heads are normalised if a norm weight is given (qwen3), their first
 * rope_dim elements are rotated, q is stored in place, k and v go to cache slot
 * write_locations[row]; slot = page * page_size + place in page.  k and v are not changed. */
typedef struct {
    float *q;        /* [rows][q_stride], heads one after the other */
    size_t q_stride; /* floats */
    const float *k;  /* [rows][k_stride] */
    size_t k_stride;
    const float *v; /* [rows][v_stride] */
    size_t v_stride;
    uint32_t rows;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;              /* at most KERN_HEAD_DIM_MAX */
    uint32_t rope_dim;              /* even, at most head_dim; 0 = no rotation */
    bool interleaved;               /* pairs (2i, 2i+1); else pairs (i, i + rope_dim / 2) */
    const float *angles;            /* [rows][rope_dim] of kern_rope_angles */
    const float *q_norm;            /* [head_dim], or NULL */
    const float *k_norm;            /* [head_dim], or NULL */
    float epsilon;                  /* of the norms */
    const int32_t *write_locations; /* [rows], read at execution; negative = write nothing */
    void *k_cache;                  /* [slots][kv_heads][head_dim] of cache_type */
    void *v_cache;                  /* [slots][kv_heads][head_dim] of cache_type */
    kern_type_t cache_type;         /* KERN_TYPE_F32 or KERN_TYPE_F16 */
    uint32_t slot_count;            /* slots in each cache; larger locations write nothing */
} kern_rope_kv_write_args_t;

enum {
    KERN_HEAD_DIM_MAX = 256,
};

void kern_rope_kv_write_host(const void *args, kern_share_t *share);

#endif
