#include "kern_elementwise.h"

#include <string.h>

#include "kern_table.h"

enum {
    CHUNK_LEN = 8192,             /* elements worth a claim */
    CHUNK_SIZE_BYTES = 256 << 10, /* bytes worth a claim */
};

static uint32_t
rows_of_chunk(uint32_t cols)
{
    return cols > 0 && cols < CHUNK_LEN ? CHUNK_LEN / cols : 1;
}

void
kern_silu_mul_host(const void *args_void, kern_share_t *share)
{
    const kern_silu_mul_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    uint32_t step = rows_of_chunk(args->cols);
    for (uint32_t first = kern_share_claim(share) * step; first < args->rows;
         first = kern_share_claim(share) * step) {
        for (uint32_t row = first; row < args->rows && row < first + step; row++) {
            table->silu_mul_row(args->gate + row * args->gate_stride,
                                args->up + row * args->up_stride,
                                args->output + row * args->output_stride, args->cols);
        }
    }
}

void
kern_sigmoid_mul_host(const void *args_void, kern_share_t *share)
{
    const kern_sigmoid_mul_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    uint32_t step = rows_of_chunk(args->heads * args->head_dim);
    for (uint32_t first = kern_share_claim(share) * step; first < args->rows;
         first = kern_share_claim(share) * step) {
        for (uint32_t row = first; row < args->rows && row < first + step; row++) {
            for (size_t h = 0; h < args->heads; h++) {
                size_t at = h * args->head_dim;
                table->sigmoid_mul_row(args->input + row * args->input_stride + at,
                                       args->gate + row * args->gate_stride +
                                           h * args->gate_head_stride,
                                       args->output + row * args->output_stride + at,
                                       args->head_dim);
            }
        }
    }
}

void
kern_heads_copy_host(const void *args_void, kern_share_t *share)
{
    const kern_heads_copy_args_t *args = args_void;
    uint32_t step = rows_of_chunk(args->heads * args->head_dim);
    for (uint32_t first = kern_share_claim(share) * step; first < args->rows;
         first = kern_share_claim(share) * step) {
        for (uint32_t row = first; row < args->rows && row < first + step; row++) {
            const float *from = args->input + row * args->input_stride;
            float *to = args->output + row * args->output_stride;
            for (size_t h = 0; h < args->heads; h++) {
                memcpy(to + h * args->output_head_stride, from + h * args->input_head_stride,
                       args->head_dim * sizeof *to);
            }
        }
    }
}

void
kern_add_host(const void *args_void, kern_share_t *share)
{
    const kern_add_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    uint32_t step = rows_of_chunk(args->cols);
    for (uint32_t first = kern_share_claim(share) * step; first < args->rows;
         first = kern_share_claim(share) * step) {
        for (uint32_t row = first; row < args->rows && row < first + step; row++) {
            table->add_row(args->a + row * args->a_stride, args->b + row * args->b_stride,
                           args->output + row * args->output_stride, args->cols);
        }
    }
}

void
kern_gather_rows_host(const void *args_void, kern_share_t *share)
{
    const kern_gather_rows_args_t *args = args_void;
    uint32_t step = rows_of_chunk(args->cols);
    for (uint32_t first = kern_share_claim(share) * step; first < args->rows;
         first = kern_share_claim(share) * step) {
        for (uint32_t row = first; row < args->rows && row < first + step; row++) {
            float *to = args->output + row * args->output_stride;
            int32_t index = args->indices[row];
            if (index < 0 || (uint32_t)index >= args->input_rows) {
                memset(to, 0, args->cols * sizeof *to);
                continue;
            }
            const float *from = args->input + (uint32_t)index * args->input_stride;
            memcpy(to, from, args->cols * sizeof *to);
        }
    }
}

void
kern_copy_host(const void *args_void, kern_share_t *share)
{
    const kern_copy_args_t *args = args_void;
    for (size_t at = kern_share_claim(share) * (size_t)CHUNK_SIZE_BYTES; at < args->size_bytes;
         at = kern_share_claim(share) * (size_t)CHUNK_SIZE_BYTES) {
        size_t rest = args->size_bytes - at;
        memcpy((uint8_t *)args->to + at, (const uint8_t *)args->from + at,
               rest < CHUNK_SIZE_BYTES ? rest : CHUNK_SIZE_BYTES);
    }
}

void
kern_fill_host(const void *args_void, kern_share_t *share)
{
    const kern_fill_args_t *args = args_void;
    for (size_t at = kern_share_claim(share) * (size_t)CHUNK_SIZE_BYTES; at < args->size_bytes;
         at = kern_share_claim(share) * (size_t)CHUNK_SIZE_BYTES) {
        size_t rest = args->size_bytes - at;
        memset((uint8_t *)args->to + at, args->value,
               rest < CHUNK_SIZE_BYTES ? rest : CHUNK_SIZE_BYTES);
    }
}
