/* Latent attention: the split and the merge are those of kern_attention_body.h, with one key head
 * whose values are the first latent_dim entries of its keys. */
#include "kern_mla.h"

#include <math.h>
#include <string.h>

#include "kern_table.h"
#include "proto_require.h"

enum {
    SPLIT = KERN_ATTENTION_SPLIT,
    QUERIES_MAX = 64,    /* rows times heads that share a reading of the keys */
    HEADS_OF_GROUP = 16, /* heads of a claim: more would leave threads without work */
    PAIRS_OF_CHUNK = 8,  /* rows and heads merged by one claim */
    ROWS_OF_HEAD = 32,   /* rows of a claim of the product for each head */
    OUTPUTS_OF_TILE = 16,
    TILES_OF_CHUNK = 4,
    PARTIAL_TAIL = 16, /* floats behind a partial result: its max and sum */
};

/* A thread's scratch during one split of keys. */
typedef struct {
    kern_split_query_t queries[QUERIES_MAX];
    float max[QUERIES_MAX]; /* running, over the splits so far (extend) */
    float sum[QUERIES_MAX];
    float scores[QUERIES_MAX][SPLIT];
    _Alignas(64) float block[KERN_ATTENTION_BLOCK * KERN_MLA_DIM_MAX];
    float values[QUERIES_MAX][KERN_MLA_DIM_MAX];
    float total[QUERIES_MAX][KERN_MLA_DIM_MAX]; /* running */
} tile_scratch_t;

_Static_assert(sizeof(tile_scratch_t) <= KERN_SCRATCH_SIZE_BYTES, "the tile must fit the scratch");

/* Rows and heads of one request that share a reading of the keys. */
typedef struct {
    kern_attention_cache_t keys; /* the cache as the split sees it */
    uint32_t latent_dim;
    const kern_table_t *table;
    tile_scratch_t *scratch;
    const int32_t *pages;
    const float *q; /* the first row's first head of all */
    size_t q_stride;
    uint32_t rows;
    uint32_t head; /* the first of */
    uint32_t heads;
    int64_t position;   /* of the first row; may be negative */
    uint32_t key_limit; /* positions that the page table covers */
} tile_t;

/* ---- write ----------------------------------------------------------------------------------- */

static void
rotate_part(const kern_mla_write_args_t *args, const kern_table_t *table, const float *in,
            const float *angles, float *out)
{
    if (angles == NULL) {
        memcpy(out, in, args->rope_dim * sizeof *out);
    } else {
        table->rotate(in, angles, args->rope_dim, args->interleaved, out);
    }
}

static void
write_row(const kern_mla_write_args_t *args, const kern_table_t *table, uint32_t row)
{
    uint32_t key_dim = args->latent_dim + args->rope_dim;
    uint32_t head_dim = args->nope_dim + args->rope_dim;
    const float *angles = args->angles != NULL ? args->angles + (size_t)row * args->rope_dim : NULL;
    for (uint32_t head = 0; head < args->heads; head++) {
        const float *q = args->q + row * args->q_stride + (size_t)head * head_dim;
        float *query = args->query + row * args->query_stride + (size_t)head * key_dim;
        rotate_part(args, table, q + args->nope_dim, angles, query + args->latent_dim);
    }
    int32_t location = args->write_locations[row];
    if (location < 0 || (uint32_t)location >= args->slot_count) {
        return;
    }
    float values[KERN_MLA_DIM_MAX];
    float latent[KERN_MLA_DIM_MAX];
    const float *kv = args->kv + row * args->kv_stride;
    memcpy(latent, kv, args->latent_dim * sizeof *latent);
    table->rms_norm_row(latent, NULL, args->norm, values, args->latent_dim, args->epsilon);
    rotate_part(args, table, kv + args->latent_dim, angles, values + args->latent_dim);
    size_t at = (size_t)location * key_dim;
    if (args->cache_type == KERN_TYPE_F32) {
        memcpy((float *)args->cache + at, values, key_dim * sizeof *values);
    } else {
        table->half_row(values, (uint16_t *)args->cache + at, key_dim);
    }
}

void
kern_mla_write_host(const void *args_void, kern_share_t *share)
{
    const kern_mla_write_args_t *args = args_void;
    const kern_table_t *table = kern_table(share->path);
    require(args->latent_dim >= 1 && args->rope_dim % 2 == 0);
    require(args->latent_dim <= KERN_MLA_DIM_MAX);
    require(args->rope_dim <= KERN_MLA_DIM_MAX - args->latent_dim);
    require(args->cache_type == KERN_TYPE_F32 || args->cache_type == KERN_TYPE_F16);
    /* Padded rows all write slot 0: thread 0 takes them, one after the other. */
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

/* ---- a matrix for each head ------------------------------------------------------------------ */

static void
run_head(const kern_head_linear_args_t *args, const kern_table_t *table, uint32_t head,
         uint32_t row, uint32_t tile)
{
    size_t row_size_bytes = kern_type_row_size_bytes(args->type, args->inputs);
    uint32_t rest = args->rows - row;
    for (uint32_t at = tile; at < tile + TILES_OF_CHUNK; at++) {
        uint32_t column = at * OUTPUTS_OF_TILE;
        if (column >= args->outputs) {
            return;
        }
        uint32_t left = args->outputs - column;
        kern_dot_args_t dot = {
            .type = args->type,
            .weights = (const uint8_t *)args->weight + head * args->head_stride_bytes +
                       column * row_size_bytes,
            .weight_stride = row_size_bytes,
            .cols = args->inputs,
            .input = args->input + row * args->input_stride + head * args->input_head_stride,
            .input_stride = args->input_stride,
            .rows = rest < ROWS_OF_HEAD ? rest : ROWS_OF_HEAD,
            .out_count = left < OUTPUTS_OF_TILE ? left : OUTPUTS_OF_TILE,
            .out =
                args->output + row * args->output_stride + head * args->output_head_stride + column,
            .out_stride = args->output_stride,
            .bias = NULL,
            .accumulate = false,
        };
        table->dot(&dot);
    }
}

void
kern_head_linear_host(const void *args_void, kern_share_t *share)
{
    const kern_head_linear_args_t *args = args_void;
    require(args->type == KERN_TYPE_F32 || args->type == KERN_TYPE_F16 ||
            args->type == KERN_TYPE_BF16);
    require(args->inputs >= 1 && args->outputs >= 1);
    uint32_t tiles = (args->outputs + OUTPUTS_OF_TILE - 1) / OUTPUTS_OF_TILE;
    uint32_t pieces = (tiles + TILES_OF_CHUNK - 1) / TILES_OF_CHUNK;
    uint64_t of_head = (uint64_t)((args->rows + ROWS_OF_HEAD - 1) / ROWS_OF_HEAD) * pieces;
    uint64_t total = of_head * args->heads;
    for (uint32_t chunk = kern_share_claim(share); chunk < total; chunk = kern_share_claim(share)) {
        uint32_t at = (uint32_t)(chunk % of_head);
        run_head(args, kern_table(share->path), (uint32_t)(chunk / of_head),
                 at / pieces * ROWS_OF_HEAD, at % pieces * TILES_OF_CHUNK);
    }
}

/* ---- attention: what decode and extend share ------------------------------------------------- */

static tile_t
tile_of(const kern_mla_cache_t *cache, const float *q, size_t q_stride, kern_share_t *share)
{
    require(cache->latent_dim >= 16 && cache->latent_dim % 16 == 0);
    require(cache->latent_dim <= KERN_MLA_DIM_MAX);
    require(cache->rope_dim <= KERN_MLA_DIM_MAX - cache->latent_dim);
    require(cache->heads >= 1 && cache->page_size >= 1 && cache->page_count >= 1);
    require(cache->cache_type == KERN_TYPE_F32 || cache->cache_type == KERN_TYPE_F16);
    uint64_t limit = (uint64_t)cache->page_table_stride * cache->page_size;
    return (tile_t){
        .keys =
            {
                .k_cache = cache->cache,
                .v_cache = cache->cache,
                .cache_type = cache->cache_type,
                .page_size = cache->page_size,
                .page_count = cache->page_count,
                .page_table = cache->page_table,
                .page_table_stride = cache->page_table_stride,
                .q_heads = cache->heads,
                .kv_heads = 1,
                .head_dim = cache->latent_dim + cache->rope_dim,
                .scale = cache->scale,
                .window_left = -1,
            },
        .latent_dim = cache->latent_dim,
        .table = kern_table(share->path),
        .scratch = share->scratch,
        .q = q,
        .q_stride = q_stride,
        .key_limit = limit < INT32_MAX ? (uint32_t)limit : INT32_MAX,
    };
}

static uint32_t
heads_of_group(uint32_t heads)
{
    return heads < HEADS_OF_GROUP ? heads : HEADS_OF_GROUP;
}

/* A row sees the positions below this. */
static uint32_t
key_end(const tile_t *tile, uint32_t row)
{
    int64_t end = tile->position + row + 1;
    end = end < tile->key_limit ? end : tile->key_limit;
    return end > 0 ? (uint32_t)end : 0;
}

static uint32_t
split_count(uint32_t keys)
{
    return (uint32_t)(((uint64_t)keys + SPLIT - 1) / SPLIT);
}

/* Computes split number `split`: query row * heads + head of the scratch gets max, sum, values. */
static void
run_split(const tile_t *tile, uint32_t split)
{
    tile_scratch_t *scratch = tile->scratch;
    uint32_t start = split * SPLIT;
    uint32_t key_count = 0;
    for (uint32_t row = 0; row < tile->rows; row++) {
        uint32_t end = key_end(tile, row);
        end = end > start ? end - start : 0;
        end = end < SPLIT ? end : SPLIT;
        key_count = end > key_count ? end : key_count;
        for (uint32_t head = 0; head < tile->heads; head++) {
            uint32_t index = row * tile->heads + head;
            scratch->queries[index] = (kern_split_query_t){
                .q = tile->q + row * tile->q_stride +
                     (size_t)(tile->head + head) * tile->keys.head_dim,
                .scores = scratch->scores[index],
                .values = scratch->values[index],
                .begin = 0,
                .end = end,
            };
        }
    }
    kern_split_args_t args = {
        .cache = &tile->keys,
        .value_dim = tile->latent_dim,
        .pages = tile->pages,
        .kv_head = 0,
        .position = start,
        .key_count = key_count,
        .queries = scratch->queries,
        .query_count = tile->rows * tile->heads,
        .block = scratch->block,
    };
    tile->table->split(&args);
}

static void
write_output(const float *values, float sum, uint32_t latent_dim, float *out)
{
    for (uint32_t d = 0; d < latent_dim; d++) {
        out[d] = sum > 0.0f || sum != sum ? values[d] / sum : 0.0f;
    }
}

/* ---- extend ---------------------------------------------------------------------------------- */

static void
extend_tile(const tile_t *tile, float *output, size_t output_stride)
{
    tile_scratch_t *scratch = tile->scratch;
    uint32_t count = tile->rows * tile->heads;
    for (uint32_t i = 0; i < count; i++) {
        scratch->max[i] = -INFINITY;
        scratch->sum[i] = 0.0f;
        memset(scratch->total[i], 0, tile->latent_dim * sizeof(float));
    }
    uint32_t splits = split_count(key_end(tile, tile->rows - 1));
    for (uint32_t split = 0; split < splits; split++) {
        run_split(tile, split);
        for (uint32_t i = 0; i < count; i++) {
            const kern_split_query_t *query = &scratch->queries[i];
            tile->table->merge(&scratch->max[i], &scratch->sum[i], scratch->total[i], query->max,
                               query->sum, query->values, tile->latent_dim);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        float *out = output + i / tile->heads * output_stride +
                     (size_t)(tile->head + i % tile->heads) * tile->latent_dim;
        write_output(scratch->total[i], scratch->sum[i], tile->latent_dim, out);
    }
}

void
kern_mla_extend_host(const void *args_void, kern_share_t *share)
{
    const kern_mla_extend_args_t *args = args_void;
    uint32_t heads = args->cache.heads;
    tile_t tile = tile_of(&args->cache, args->q, args->q_stride, share);
    uint32_t group = heads_of_group(heads);
    uint32_t groups = (heads + group - 1) / group;
    uint32_t rows_of_tile = QUERIES_MAX / group;
    /* Chunks are (request, tile of rows, group of heads); each thread walks the list of requests
     * once. */
    uint64_t passed = 0;
    uint32_t chunk = kern_share_claim(share);
    for (uint32_t request = 0; request < args->request_count; request++) {
        int32_t begin = args->cu_q[request];
        int32_t length = args->cu_q[request + 1] - begin;
        if (length <= 0) {
            continue;
        }
        uint64_t chunks = (uint64_t)(((uint32_t)length + rows_of_tile - 1) / rows_of_tile) * groups;
        for (; chunk < passed + chunks; chunk = kern_share_claim(share)) {
            uint32_t at = (uint32_t)(chunk - passed);
            uint32_t row = at / groups * rows_of_tile;
            uint32_t rest = (uint32_t)length - row;
            size_t global = (size_t)begin + row;
            tile.head = at % groups * group;
            tile.heads = heads - tile.head < group ? heads - tile.head : group;
            tile.rows = rest < rows_of_tile ? rest : rows_of_tile;
            tile.pages = args->cache.page_table + request * args->cache.page_table_stride;
            tile.position = (int64_t)args->seq_lens[request] - length + row;
            tile.q = args->q + global * args->q_stride;
            extend_tile(&tile, args->output + global * args->output_stride, args->output_stride);
        }
        passed += chunks;
    }
}

/* ---- decode ---------------------------------------------------------------------------------- */

size_t
kern_mla_decode_workspace_size_bytes(uint32_t rows, uint32_t heads, uint32_t latent_dim,
                                     uint32_t kv_len_max)
{
    size_t partial = (size_t)latent_dim + PARTIAL_TAIL;
    return (size_t)rows * heads * split_count(kv_len_max) * partial * sizeof(float);
}

static void
set_request(const kern_mla_decode_args_t *args, uint32_t request, tile_t *tile)
{
    uint32_t width = args->rows_per_request;
    tile->pages = args->cache.page_table + request * args->cache.page_table_stride;
    tile->position = (int64_t)args->seq_lens[request] - width;
    tile->q = args->q + (size_t)request * width * args->q_stride;
    tile->rows = width;
}

/* Where the result of a split of a row and head waits for the merge. */
static float *
partial_of(const kern_mla_decode_args_t *args, const tile_t *tile, size_t row, uint32_t head,
           uint32_t split)
{
    size_t pair = row * args->cache.heads + head;
    return (float *)args->workspace + (pair * split_count(tile->key_limit) + split) *
                                          ((size_t)args->cache.latent_dim + PARTIAL_TAIL);
}

/* One split for a group of heads of one request; rows in tiles that fit the scratch. */
static void
decode_split(const kern_mla_decode_args_t *args, const tile_t *request_tile, uint32_t request,
             uint32_t split)
{
    uint32_t latent_dim = args->cache.latent_dim;
    uint32_t rows_of_tile = QUERIES_MAX / request_tile->heads;
    for (uint32_t row = 0; row < request_tile->rows; row += rows_of_tile) {
        tile_t tile = *request_tile;
        uint32_t rest = tile.rows - row;
        tile.rows = rest < rows_of_tile ? rest : rows_of_tile;
        tile.q += row * tile.q_stride;
        tile.position += row;
        run_split(&tile, split);
        for (uint32_t i = 0; i < tile.rows * tile.heads; i++) {
            const kern_split_query_t *query = &tile.scratch->queries[i];
            size_t global_row = (size_t)request * args->rows_per_request + row + i / tile.heads;
            float *partial = partial_of(args, &tile, global_row, tile.head + i % tile.heads, split);
            memcpy(partial, query->values, latent_dim * sizeof *partial);
            partial[latent_dim] = query->max;
            partial[latent_dim + 1] = query->sum;
        }
    }
}

static void
merge_pair(const kern_mla_decode_args_t *args, const tile_t *tile, uint32_t row, uint32_t head)
{
    uint32_t latent_dim = args->cache.latent_dim;
    float values[KERN_MLA_DIM_MAX] = {0};
    float max = -INFINITY;
    float sum = 0.0f;
    uint32_t splits = split_count(key_end(tile, row % args->rows_per_request));
    for (uint32_t split = 0; split < splits; split++) {
        const float *partial = partial_of(args, tile, row, head, split);
        tile->table->merge(&max, &sum, values, partial[latent_dim], partial[latent_dim + 1],
                           partial, latent_dim);
    }
    float *out = args->output + row * args->output_stride + (size_t)head * latent_dim;
    write_output(values, sum, latent_dim, out);
}

void
kern_mla_decode_host(const void *args_void, kern_share_t *share)
{
    const kern_mla_decode_args_t *args = args_void;
    uint32_t heads = args->cache.heads;
    require(args->rows_per_request >= 1);
    tile_t tile = tile_of(&args->cache, args->q, args->q_stride, share);
    uint32_t rows = args->bs * args->rows_per_request;
    require(
        args->workspace_size_bytes >=
        kern_mla_decode_workspace_size_bytes(rows, heads, args->cache.latent_dim, tile.key_limit));
    uint32_t group = heads_of_group(heads);
    uint32_t groups = (heads + group - 1) / group;
    /* Chunks are (request, split, group of heads) of the splits that exist; each thread walks the
     * list of requests once. */
    uint64_t passed = 0;
    uint32_t chunk = kern_share_claim(share);
    for (uint32_t request = 0; request < args->bs; request++) {
        set_request(args, request, &tile);
        uint64_t chunks = (uint64_t)split_count(key_end(&tile, tile.rows - 1)) * groups;
        for (; chunk < passed + chunks; chunk = kern_share_claim(share)) {
            uint32_t at = (uint32_t)(chunk - passed);
            tile.head = at % groups * group;
            tile.heads = heads - tile.head < group ? heads - tile.head : group;
            decode_split(args, &tile, request, at / groups);
        }
        passed += chunks;
    }
    kern_share_sync(share);

    uint32_t pairs = rows * heads;
    for (uint32_t pair = kern_share_claim(share) * PAIRS_OF_CHUNK; pair < pairs;
         pair = kern_share_claim(share) * PAIRS_OF_CHUNK) {
        for (uint32_t i = pair; i < pairs && i < pair + PAIRS_OF_CHUNK; i++) {
            uint32_t row = i / heads;
            set_request(args, row / args->rows_per_request, &tile);
            merge_pair(args, &tile, row, i % heads);
        }
    }
}
