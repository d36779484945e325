/* Products with float activations for "avx2" (kern_path.h). */
#if defined(__x86_64__)
#include "kern_vec_avx2.h"

#include "kern_float_body.h"
#include "kern_table.h"

void
kern_tile_float_avx2(const kern_tile_args_t *args)
{
    tile_float(args);
}

void
kern_sum_row_avx2(const float *input, uint32_t cols, float *out)
{
    sum_row(input, cols, out);
}
#endif
