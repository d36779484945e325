/* kern_type.h - element and block types of weights and caches.  Pure functions, any thread.
 *
 * The numbers and the block layouts are those of GGUF files. */
#ifndef KERN_TYPE_H
#define KERN_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    KERN_TYPE_F32 = 0,
    KERN_TYPE_F16 = 1,
    KERN_TYPE_Q4_0 = 2,
    KERN_TYPE_Q4_1 = 3,
    KERN_TYPE_Q5_0 = 6,
    KERN_TYPE_Q8_0 = 8,
    KERN_TYPE_Q4_K = 12,
    KERN_TYPE_Q5_K = 13,
    KERN_TYPE_Q6_K = 14,
    KERN_TYPE_BF16 = 30,
} kern_type_t;

/* Whether the kernels compute with this type (a number read from a file may be anything). */
bool kern_type_known(uint32_t type);
const char *kern_type_name(kern_type_t type);

/* Elements in one block: 1, 32 or 256; a row's length must be a multiple of it. */
uint32_t kern_type_block_len(kern_type_t type);
size_t kern_type_block_size_bytes(kern_type_t type);

/* Bytes of `cols` elements; 0 if cols is not a multiple of the block length. */
size_t kern_type_row_size_bytes(kern_type_t type, uint32_t cols);

/* Writes `cols` floats; `row` is the start of a row of blocks. */
void kern_type_row_to_float(kern_type_t type, const void *row, uint32_t cols, float *out);

/* The 6-bit scale and min of sub-block `index` (0..7) of a Q4_K or Q5_K block. */
void kern_type_super_scale(const uint8_t *scales, uint32_t index, uint8_t *scale, uint8_t *min);

/* Element k (0..255) of a Q6_K block as 0..63; the value is (this - 32) * scale. */
uint8_t kern_type_q6_k_quant(const uint8_t *low, const uint8_t *high, uint32_t k);

/* A row of MXFP4 blocks (GGUF type 39): for each 32 values an exponent byte e and 16 bytes; byte i
 * holds value i in its low nibble and value i + 16 in its high one, as sign, two bits of exponent
 * and one of mantissa, times 2^(e - 127).  BF16 holds each exactly; e = 255 is NaN.  Kernels do not
 * compute with this type. */
void kern_mxfp4_row_to_bf16(const void *row, uint32_t cols, uint16_t *out);

/* IEEE half precision. */
float kern_half_to_float(uint16_t half);
uint16_t kern_float_to_half(float value); /* round to nearest even */

#endif
