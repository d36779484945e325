/* kern_recurrent.h - a recurrent layer of random numbers, its references in double precision, and
 * poisoned state caches, for the tests of recurrent layers. */
#ifndef KERN_RECURRENT_H
#define KERN_RECURRENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern_conv.h"
#include "kern_gdn.h"
#include "kern_reference.h"

typedef struct {
    uint32_t k_heads;
    uint32_t v_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t width; /* of the convolution */
} recurrent_shape_t;

typedef struct {
    recurrent_shape_t shape;
    uint32_t rows;
    uint32_t channels; /* of the convolution: q, k and v heads */
    size_t stride;     /* of `input`: more than the channels */
    float *input;      /* [rows][stride] */
    float *gates;      /* [rows][2 * v_heads]: a, b */
    float *weight;     /* [width][channels] */
    float *bias;       /* [channels] */
    float *rate;       /* [v_heads]: some heads forget at once, some remember all */
    float *dt_bias;
} recurrent_t;

recurrent_t recurrent_new(const recurrent_shape_t *shape, uint32_t rows,
                          reference_random_t *random);
void recurrent_free(recurrent_t *self);

/* The layer's arguments for rows first_row ..; the outputs have the stride of all heads. */
kern_gdn_t recurrent_gdn(const recurrent_t *self, const float *qkv, size_t qkv_stride,
                         uint32_t first_row, float *output);
kern_conv_t recurrent_conv(const recurrent_t *self, uint32_t first_row, float *output);
size_t recurrent_state_len(const recurrent_t *self);  /* floats of a block */
size_t recurrent_window_len(const recurrent_t *self); /* floats of a block */
uint32_t recurrent_output_len(const recurrent_t *self);

/* ---- references ---- */
/* One row and head: `state` [k_dim][v_dim] moves on, out [v_dim] (may be NULL) is written. */
void reference_gdn_row(const kern_gdn_t *gdn, size_t row, uint32_t head, double *state,
                       double *out);
/* One channel of the row at place `at` of the request that begins at `first`; `window` (NULL =
 * zeros) is what came before it. */
double reference_conv(const kern_conv_t *conv, const float *window, size_t first, int64_t at,
                      uint32_t channel);

/* ---- caches ---- */
enum {
    RECURRENT_BLOCKS = 12,
};

typedef struct {
    reference_guarded_t memory;
    float *floats;
    size_t len;    /* floats of a block */
    size_t stride; /* floats from block to block: more */
} recurrent_cache_t;

/* Every float is NaN. */
recurrent_cache_t recurrent_cache_new(size_t len, uint32_t block_count);
void recurrent_cache_free(recurrent_cache_t *self);
float *recurrent_block(const recurrent_cache_t *self, int32_t block);
/* Fills a block with numbers. */
void recurrent_fill(const recurrent_cache_t *self, int32_t block, reference_random_t *random);
/* Whether a block has its NaNs still; what lies between blocks is checked as well. */
bool recurrent_untouched(const recurrent_cache_t *self, int32_t block);
bool recurrent_same(const recurrent_cache_t *a, int32_t block_a, const recurrent_cache_t *b,
                    int32_t block_b);
kern_gdn_cache_t recurrent_states(const recurrent_cache_t *self, uint32_t block_count);
kern_conv_cache_t recurrent_windows(const recurrent_cache_t *self, uint32_t block_count);

#endif
