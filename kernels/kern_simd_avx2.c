/* The microkernels for "avx2" (kern_path.h). */
#if defined(__x86_64__)
#include "kern_vec_avx2.h"

#include <math.h>

#include "kern_attention_body.h"
#include "kern_linear_body.h"
#include "kern_row_body.h"
#include "kern_table.h"

#include "kern_gdn_body.h" /* after the rows, which it uses */

const kern_table_t KV_TABLE = {
    .quantize_row = quantize_row,
    .tile = tile,
    .tile_float = kern_tile_float_avx2,
    .sum_row = kern_sum_row_avx2,
    .dot = dot,
    .split = split,
    .merge = merge,
    .rms_norm_row = rms_norm_row,
    .silu_mul_row = silu_mul_row,
    .gelu_mul_row = gelu_mul_row,
    .swiglu_oai_row = swiglu_oai_row,
    .weigh_rows = weigh_rows,
    .add_row = add_row,
    .scale_row = scale_row,
    .rotate = rotate,
    .half_row = half_row,
    .max_row = max_row,
    .find = find,
    .exp_row = exp_row,
    .select_ge = select_ge,
    .gdn_slice = GDN_SLICE,
    .gdn_load = gdn_load,
    .gdn_rows = gdn_rows,
    .unit_row = unit_row,
    .gated_norm_row = gated_norm_row,
    .sigmoid_mul_row = sigmoid_mul_row,
    .conv_row = conv_row,
};
#endif
