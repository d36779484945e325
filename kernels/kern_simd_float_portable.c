/* Products with float activations for "portable" (kern_path.h). */
#include "kern_vec_portable.h"

#include "kern_float_body.h"
#include "kern_table.h"

void
kern_tile_float_portable(const kern_tile_args_t *args)
{
    tile_float(args);
}

void
kern_sum_row_portable(const float *input, uint32_t cols, float *out)
{
    sum_row(input, cols, out);
}
