/* The causal convolution.  Work is shared by program (a block of rows of one request) and tile of
 * channels.  The program that reads a request's first window also writes its last one, after its
 * outputs: then input and output block may be one, and no program waits for another. */
#include "kern_conv.h"

#include <string.h>

#include "kern_table.h"
#include "proto_require.h"

enum {
    TILE = 512, /* channels of a claim */
};

/* What a thread has in its scratch: where there is no history. */
typedef struct {
    _Alignas(64) float zeros[TILE];
} conv_scratch_t;

/* The rows of one request, some of its channels. */
typedef struct {
    const kern_conv_t *conv;
    const kern_table_t *table;
    const float *zeros;
    uint32_t channel; /* first of the tile */
    uint32_t cols;
    uint32_t row; /* first of the request */
    uint32_t rows;
    const float *window; /* before the first row, at the tile; NULL = zeros */
} conv_item_t;

static void
check_conv(const kern_conv_t *conv)
{
    require(conv->width >= 2 && conv->width <= KERN_CONV_WIDTH_MAX);
    require(conv->channels >= 1);
}

static uint32_t
tiles_of(const kern_conv_t *conv)
{
    return (conv->channels + TILE - 1) / TILE;
}

static conv_item_t
item_of_tile(const kern_conv_t *conv, uint32_t tile, kern_share_t *share)
{
    conv_scratch_t *scratch = share->scratch;
    memset(scratch->zeros, 0, sizeof scratch->zeros);
    uint32_t channel = tile * TILE;
    uint32_t rest = conv->channels - channel;
    return (conv_item_t){
        .conv = conv,
        .table = kern_table(share->path),
        .zeros = scratch->zeros,
        .channel = channel,
        .cols = rest < TILE ? rest : TILE,
    };
}

/* The input `at`, from -(W - 1) on, of the request. */
static const float *
input_at(const conv_item_t *item, int64_t at)
{
    const kern_conv_t *conv = item->conv;
    if (at >= 0) {
        return conv->input + (item->row + (size_t)at) * conv->input_stride + item->channel;
    }
    if (item->window == NULL) {
        return item->zeros;
    }
    size_t place = (size_t)(at + (int64_t)conv->width - 1);
    return item->window + place * conv->channels;
}

/* Outputs of rows first .. end - 1 of the request. */
static void
run_rows(const conv_item_t *item, uint32_t first, uint32_t end)
{
    const kern_conv_t *conv = item->conv;
    const float *inputs[KERN_CONV_WIDTH_MAX];
    kern_conv_row_args_t args = {
        .inputs = inputs,
        .weight = conv->weight + item->channel,
        .weight_stride = conv->channels,
        .bias = conv->bias != NULL ? conv->bias + item->channel : NULL,
        .width = conv->width,
        .silu = conv->silu,
        .cols = item->cols,
    };
    for (uint32_t t = first; t < end; t++) {
        for (uint32_t j = 0; j < conv->width; j++) {
            inputs[j] = input_at(item, (int64_t)t - (conv->width - 1) + j);
        }
        args.output = conv->output + ((size_t)item->row + t) * conv->output_stride + item->channel;
        item->table->conv_row(&args);
    }
}

static void
zero_rows(const conv_item_t *item, uint32_t first, uint32_t end)
{
    const kern_conv_t *conv = item->conv;
    for (size_t t = first; t < end; t++) {
        float *out = conv->output + (item->row + t) * conv->output_stride + item->channel;
        memset(out, 0, item->cols * sizeof *out);
    }
}

/* The window after `rows` rows.  Oldest first: in place no input is overwritten before it moved. */
static void
write_window(const conv_item_t *item, uint32_t rows, float *window)
{
    const kern_conv_t *conv = item->conv;
    for (uint32_t j = 0; j + 1 < conv->width; j++) {
        const float *from = input_at(item, (int64_t)rows - (conv->width - 1) + j);
        float *to = window + (size_t)j * conv->channels;
        if (to != from) {
            memcpy(to, from, item->cols * sizeof *to);
        }
    }
}

/* The tile of a block's window; NULL if there is no such block. */
static float *
window_of(const conv_item_t *item, const kern_conv_cache_t *cache, int32_t block)
{
    if (block <= 0 || (uint32_t)block >= cache->block_count) {
        return NULL;
    }
    return cache->windows + (size_t)block * cache->block_stride + item->channel;
}

/* Rows first .. end - 1; the part with row 0 writes the window after the last row of all. */
static void
run_part(conv_item_t *item, const kern_conv_cache_t *cache, int32_t in, int32_t out, uint32_t first,
         uint32_t end)
{
    if (in < 0 || (uint32_t)in >= cache->block_count) {
        zero_rows(item, first, end);
        return;
    }
    item->window = window_of(item, cache, in);
    run_rows(item, first, end);
    float *window = window_of(item, cache, out);
    if (first == 0 && window != NULL) {
        write_window(item, item->rows, window);
    }
}

void
kern_conv_programs_host(const void *args_void, kern_share_t *share)
{
    const kern_conv_programs_args_t *args = args_void;
    if (share->thread_index != 0) {
        return;
    }
    uint32_t at = 0;
    for (uint32_t r = 0; r < args->request_count; r++) {
        int32_t rows = args->cu_rows[r + 1] - args->cu_rows[r];
        int32_t chunks = rows <= 0 ? 0 : (rows - 1) / KERN_CONV_BLOCK_ROWS + 1;
        for (int32_t chunk = 0; chunk < chunks && at < args->program_count; chunk++) {
            args->requests[at] = (int32_t)r;
            args->chunks[at++] = chunk;
        }
    }
    for (; at < args->program_count; at++) {
        args->requests[at] = KERN_CONV_PAD;
        args->chunks[at] = KERN_CONV_PAD;
    }
}

void
kern_conv_prefill_host(const void *args_void, kern_share_t *share)
{
    const kern_conv_prefill_args_t *args = args_void;
    check_conv(&args->conv);
    uint32_t tiles = tiles_of(&args->conv);
    uint32_t item_count = args->program_count * tiles;
    for (uint32_t i = kern_share_claim(share); i < item_count; i = kern_share_claim(share)) {
        int32_t request = args->requests[i / tiles];
        int32_t chunk = args->chunks[i / tiles];
        if (request < 0 || (uint32_t)request >= args->request_count || chunk < 0) {
            continue;
        }
        conv_item_t item = item_of_tile(&args->conv, i % tiles, share);
        int32_t rows = args->cu_rows[request + 1] - args->cu_rows[request];
        uint32_t first = (uint32_t)chunk * KERN_CONV_BLOCK_ROWS;
        if (rows <= 0 || first >= (uint32_t)rows) {
            continue;
        }
        item.row = (uint32_t)args->cu_rows[request];
        item.rows = (uint32_t)rows;
        uint32_t rest = item.rows - first;
        uint32_t end = rest < KERN_CONV_BLOCK_ROWS ? item.rows : first + KERN_CONV_BLOCK_ROWS;
        run_part(&item, &args->cache, args->in_blocks[request], args->out_blocks[request], first,
                 end);
    }
}

void
kern_conv_decode_host(const void *args_void, kern_share_t *share)
{
    const kern_conv_decode_args_t *args = args_void;
    check_conv(&args->conv);
    require(args->rows_per_request >= 1);
    uint32_t tiles = tiles_of(&args->conv);
    uint32_t item_count = args->bs * tiles;
    for (uint32_t i = kern_share_claim(share); i < item_count; i = kern_share_claim(share)) {
        conv_item_t item = item_of_tile(&args->conv, i % tiles, share);
        uint32_t request = i / tiles;
        item.row = request * args->rows_per_request;
        item.rows = args->rows_per_request;
        int32_t out = args->out_blocks != NULL ? args->out_blocks[request] : 0;
        run_part(&item, &args->cache, args->in_blocks[request], out, 0, item.rows);
    }
}

void
kern_conv_verify_host(const void *args_void, kern_share_t *share)
{
    const kern_conv_verify_args_t *args = args_void;
    const kern_conv_cache_t *scratch = &args->scratch;
    check_conv(&args->conv);
    require(args->rows_per_request >= 1);
    uint32_t tiles = tiles_of(&args->conv);
    uint32_t item_count = args->bs * tiles;
    for (uint32_t i = kern_share_claim(share); i < item_count; i = kern_share_claim(share)) {
        conv_item_t item = item_of_tile(&args->conv, i % tiles, share);
        uint32_t request = i / tiles;
        int32_t seed = args->seeds[request];
        item.row = request * args->rows_per_request;
        item.rows = args->rows_per_request;
        if (seed < 0 || (uint64_t)seed + item.rows >= scratch->block_count) {
            zero_rows(&item, 0, item.rows);
            continue;
        }
        float *window = scratch->windows + (size_t)seed * scratch->block_stride + item.channel;
        item.window = window;
        run_rows(&item, 0, item.rows);
        for (uint32_t t = 1; t <= item.rows; t++) {
            write_window(&item, t, window + t * scratch->block_stride);
        }
    }
}

void
kern_conv_replay_host(const void *args_void, kern_share_t *share)
{
    const kern_conv_replay_args_t *args = args_void;
    check_conv(&args->conv);
    require(args->rows_per_request >= 1);
    uint32_t tiles = tiles_of(&args->conv);
    uint32_t item_count = args->bs * tiles;
    for (uint32_t i = kern_share_claim(share); i < item_count; i = kern_share_claim(share)) {
        conv_item_t item = item_of_tile(&args->conv, i % tiles, share);
        uint32_t request = i / tiles;
        int32_t accepted = args->accept_lengths[request];
        uint32_t rows = accepted < 1 ? 1 : (uint32_t)accepted;
        rows = rows < args->rows_per_request ? rows : args->rows_per_request;
        item.row = request * args->rows_per_request;
        item.rows = rows;
        int32_t in = args->in_blocks[request];
        float *window = window_of(&item, &args->cache, args->out_blocks[request]);
        if (in < 0 || (uint32_t)in >= args->cache.block_count || window == NULL) {
            continue;
        }
        item.window = window_of(&item, &args->cache, in);
        write_window(&item, rows, window);
    }
}
