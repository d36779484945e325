#include "kern_embed.h"

#include <string.h>

#include "kern_pack.h"
#include "kern_table.h"
#include "proto_require.h"

static void
embed_row(const kern_embed_args_t *args, uint32_t row, const kern_table_t *table)
{
    const kern_weight_t *weight = &args->table;
    float *out = args->output + row * args->output_stride;
    int32_t token = args->tokens[row];
    if (token < 0 || (uint32_t)token >= weight->rows) {
        memset(out, 0, weight->cols * sizeof *out);
        return;
    }
    uint32_t index = (uint32_t)token;
    const uint8_t *data = weight->data;
    if (weight->packed) {
        size_t tile_size_bytes = kern_pack_layout(weight->type, weight->cols).size_bytes;
        kern_pack_row_to_float(weight->type, data + index / KERN_PACK_ROWS * tile_size_bytes,
                               index % KERN_PACK_ROWS, weight->cols, out);
    } else {
        data += index * kern_type_row_size_bytes(weight->type, weight->cols);
        kern_type_row_to_float(weight->type, data, weight->cols, out);
    }
    if (args->scale != 1.0f) {
        table->scale_row(out, args->scale, out, weight->cols);
    }
}

void
kern_embed_host(const void *args_void, kern_share_t *share)
{
    const kern_embed_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    require(args->table.cols % kern_type_block_len(args->table.type) == 0);
    for (uint32_t row = kern_share_claim(share); row < args->rows; row = kern_share_claim(share)) {
        embed_row(args, row, table);
    }
}
