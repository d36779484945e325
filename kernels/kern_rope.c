#include "kern_rope.h"

#include <math.h>
#include <string.h>

#include "kern_table.h"
#include "proto_require.h"

void
kern_rope_angles_host(const void *args_void, kern_share_t *share)
{
    const kern_rope_angles_args_t *args = args_void;
    for (uint32_t row = kern_share_claim(share); row < args->rows; row = kern_share_claim(share)) {
        float position = args->positions_int64 ? (float)((const int64_t *)args->positions)[row]
                                               : (float)((const int32_t *)args->positions)[row];
        float *out = args->angles + (size_t)row * args->rope_dim;
        for (uint32_t i = 0; i < args->rope_dim / 2; i++) {
            float angle = position * args->frequencies[i];
            out[2 * i] = cosf(angle) * args->scale;
            out[2 * i + 1] = sinf(angle) * args->scale;
        }
    }
}

/* Normalised if asked, then rotated; `out` may be `in` only without a norm. */
static void
prepare_head(const kern_rope_kv_write_args_t *args, const kern_table_t *table, const float *in,
             const float *norm, const float *angles, float *out)
{
    if (norm != NULL) {
        float copy[KERN_HEAD_DIM_MAX];
        memcpy(copy, in, args->head_dim * sizeof *copy);
        table->rms_norm_row(copy, NULL, norm, out, args->head_dim, args->epsilon);
    } else if (out != in) {
        memcpy(out, in, args->head_dim * sizeof *out);
    }
    if (args->rope_dim > 0) {
        table->rotate(out, angles, args->rope_dim, args->interleaved, out);
    }
}

static void
write_head(const kern_rope_kv_write_args_t *args, const kern_table_t *table, void *cache,
           uint32_t slot, uint32_t head, const float *values)
{
    size_t at = ((size_t)slot * args->kv_heads + head) * args->head_dim;
    if (args->cache_type == KERN_TYPE_F32) {
        memcpy((float *)cache + at, values, args->head_dim * sizeof *values);
    } else {
        table->half_row(values, (uint16_t *)cache + at, args->head_dim);
    }
}

static void
write_row(const kern_rope_kv_write_args_t *args, const kern_table_t *table, uint32_t row)
{
    const float *angles = args->rope_dim > 0 ? args->angles + (size_t)row * args->rope_dim : NULL;
    for (uint32_t head = 0; head < args->q_heads; head++) {
        float *q = args->q + row * args->q_stride + (size_t)head * args->head_dim;
        prepare_head(args, table, q, args->q_norm, angles, q);
    }
    int32_t location = args->write_locations[row];
    if (location < 0 || (uint32_t)location >= args->slot_count) {
        return;
    }
    for (uint32_t head = 0; head < args->kv_heads; head++) {
        size_t at = (size_t)head * args->head_dim;
        float rotated[KERN_HEAD_DIM_MAX];
        prepare_head(args, table, args->k + row * args->k_stride + at, args->k_norm, angles,
                     rotated);
        write_head(args, table, args->k_cache, (uint32_t)location, head, rotated);
        write_head(args, table, args->v_cache, (uint32_t)location, head,
                   args->v + row * args->v_stride + at);
    }
}

void
kern_rope_kv_write_host(const void *args_void, kern_share_t *share)
{
    const kern_rope_kv_write_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    require(args->head_dim <= KERN_HEAD_DIM_MAX);
    require(args->rope_dim <= args->head_dim && args->rope_dim % 2 == 0);
    require(args->cache_type == KERN_TYPE_F32 || args->cache_type == KERN_TYPE_F16);
    /* Padded rows all write slot 0; one thread at a time must do so.  Rows of a live batch have
     * slots of their own, so only slot 0 can be shared: thread 0 takes those rows. */
    for (uint32_t row = 0; share->thread_index == 0 && row < args->rows; row++) {
        if (args->write_locations[row] == 0) {
            write_row(args, table, row);
        }
    }
    for (uint32_t row = kern_share_claim(share); row < args->rows; row = kern_share_claim(share)) {
        if (args->write_locations[row] != 0) {
            write_row(args, table, row);
        }
    }
}
