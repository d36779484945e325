#include "kern_norm.h"

#include "kern_table.h"

enum {
    CHUNK_LEN = 4096, /* elements worth a claim */
};

void
kern_rms_norm_host(const void *args_void, kern_share_t *share)
{
    const kern_rms_norm_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    uint32_t step = args->cols < CHUNK_LEN && args->cols > 0 ? CHUNK_LEN / args->cols : 1;
    for (uint32_t first = kern_share_claim(share) * step; first < args->rows;
         first = kern_share_claim(share) * step) {
        for (uint32_t row = first; row < args->rows && row < first + step; row++) {
            const float *residual =
                args->residual != NULL ? args->residual + row * args->residual_stride : NULL;
            table->rms_norm_row(args->input + row * args->input_stride, residual, args->weight,
                                args->output + row * args->output_stride, args->cols,
                                args->epsilon);
        }
    }
}

void
kern_gated_norm_host(const void *args_void, kern_share_t *share)
{
    const kern_gated_norm_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    kern_gated_norm_shape_t shape = {.cols = args->head_dim, .epsilon = args->epsilon};
    uint32_t cols = args->heads * args->head_dim;
    uint32_t step = cols < CHUNK_LEN && cols > 0 ? CHUNK_LEN / cols : 1;
    for (uint32_t first = kern_share_claim(share) * step; first < args->rows;
         first = kern_share_claim(share) * step) {
        for (uint32_t row = first; row < args->rows && row < first + step; row++) {
            for (size_t at = 0; at < cols; at += args->head_dim) {
                table->gated_norm_row(args->input + row * args->input_stride + at,
                                      args->gate + row * args->gate_stride + at, args->weight,
                                      args->output + row * args->output_stride + at, &shape);
            }
        }
    }
}
