#include "kern_attention.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kern_table.h"
#include "proto_require.h"

enum {
    QUERIES_MAX = 128, /* rows times heads of a group that share keys; bounded by the scratch */
    QUERIES_OF_TILE = 48,
    SPLIT = KERN_ATTENTION_SPLIT,
    PAIRS_OF_CHUNK = 8, /* rows and heads merged by one claim */
};

/* A thread's scratch during one split of keys. */
typedef struct {
    kern_split_query_t queries[QUERIES_MAX];
    float max[QUERIES_MAX]; /* running, over the splits so far (extend) */
    float sum[QUERIES_MAX];
    float scores[QUERIES_MAX][SPLIT];
    _Alignas(64) float block[KERN_ATTENTION_BLOCK * KERN_HEAD_DIM_MAX];
    float values[QUERIES_MAX][KERN_HEAD_DIM_MAX];
    float total[QUERIES_MAX][KERN_HEAD_DIM_MAX]; /* running */
} tile_scratch_t;

_Static_assert(sizeof(tile_scratch_t) <= KERN_SCRATCH_SIZE_BYTES, "the tile must fit the scratch");

/* Rows of one request that share keys. */
typedef struct {
    const kern_attention_cache_t *cache;
    const kern_table_t *table;
    tile_scratch_t *scratch;
    const int32_t *pages;
    uint32_t kv_head;
    const float *q; /* the first row */
    size_t q_stride;
    uint32_t rows;
    int64_t position;   /* of the first row; may be negative */
    uint32_t key_limit; /* positions that the page table covers */
} tile_t;

static void
check_cache(const kern_attention_cache_t *cache)
{
    require(cache->head_dim >= 1 && cache->head_dim <= KERN_HEAD_DIM_MAX);
    require(cache->kv_heads >= 1 && cache->q_heads % cache->kv_heads == 0);
    require(cache->q_heads / cache->kv_heads <= QUERIES_MAX);
    require(cache->page_size >= 1 && cache->page_count >= 1);
    require(cache->cache_type == KERN_TYPE_F32 || cache->cache_type == KERN_TYPE_F16);
}

static uint32_t
group_size(const kern_attention_cache_t *cache)
{
    return cache->q_heads / cache->kv_heads;
}

/* The positions that a row sees: *begin .. *end - 1. */
static void
keys_of_row(const tile_t *tile, uint32_t row, uint32_t *begin, uint32_t *end)
{
    int64_t position = tile->position + row;
    int64_t last = position < tile->key_limit ? position + 1 : tile->key_limit;
    int64_t first = 0;
    if (tile->cache->window_left >= 0) {
        first = position - tile->cache->window_left;
    }
    *end = last > 0 ? (uint32_t)last : 0;
    *begin = first > 0 ? (uint32_t)first : 0;
}

static uint32_t
within_split(uint32_t position, uint32_t split)
{
    uint32_t start = split * SPLIT;
    uint32_t offset = position > start ? position - start : 0;
    return offset < SPLIT ? offset : SPLIT;
}

/* Computes split number `split` for all rows of the tile and heads of its group: query
 * row * group + head of the scratch gets max, sum and values. */
static void
run_split(const tile_t *tile, uint32_t split)
{
    tile_scratch_t *scratch = tile->scratch;
    uint32_t group = group_size(tile->cache);
    uint32_t head_dim = tile->cache->head_dim;
    uint32_t key_count = 0;
    for (uint32_t row = 0; row < tile->rows; row++) {
        uint32_t begin;
        uint32_t end;
        keys_of_row(tile, row, &begin, &end);
        begin = within_split(begin, split);
        end = within_split(end, split);
        key_count = end > begin && end > key_count ? end : key_count;
        for (uint32_t head = 0; head < group; head++) {
            uint32_t index = row * group + head;
            kern_split_query_t *query = &scratch->queries[index];
            query->q =
                tile->q + row * tile->q_stride + (size_t)(tile->kv_head * group + head) * head_dim;
            query->scores = scratch->scores[index];
            query->values = scratch->values[index];
            query->begin = begin;
            query->end = end;
        }
    }
    kern_split_args_t args = {
        .cache = tile->cache,
        .value_dim = head_dim,
        .pages = tile->pages,
        .kv_head = tile->kv_head,
        .position = split * SPLIT,
        .key_count = key_count,
        .queries = scratch->queries,
        .query_count = tile->rows * group,
        .block = scratch->block,
    };
    tile->table->split(&args);
}

/* First and last split + 1 that any row of the tile sees. */
static void
splits_of_tile(const tile_t *tile, uint32_t *first, uint32_t *last)
{
    uint32_t begin;
    uint32_t end;
    uint32_t unused;
    keys_of_row(tile, 0, &begin, &unused);
    keys_of_row(tile, tile->rows - 1, &unused, &end);
    *first = begin / SPLIT;
    *last = (end + SPLIT - 1) / SPLIT;
}

static void
write_output(const float *values, float sum, uint32_t head_dim, float *out)
{
    for (uint32_t d = 0; d < head_dim; d++) {
        out[d] = sum > 0.0f || sum != sum ? values[d] / sum : 0.0f;
    }
}

static uint32_t
key_limit(const kern_attention_cache_t *cache)
{
    uint64_t limit = (uint64_t)cache->page_table_stride * cache->page_size;
    return limit < INT32_MAX ? (uint32_t)limit : INT32_MAX;
}

/* What the splits are merged into: nothing yet, or the head's sink, which has no value. */
static void
start_merge(const kern_attention_cache_t *cache, uint32_t head, float *max, float *sum)
{
    *max = cache->sinks != NULL ? cache->sinks[head] : -INFINITY;
    *sum = *max == -INFINITY ? 0.0f : 1.0f;
}

/* ---- extend ---------------------------------------------------------------------------------- */

static void
extend_tile(const tile_t *tile, float *output, size_t output_stride)
{
    tile_scratch_t *scratch = tile->scratch;
    uint32_t group = group_size(tile->cache);
    uint32_t head_dim = tile->cache->head_dim;
    uint32_t count = tile->rows * group;
    for (uint32_t i = 0; i < count; i++) {
        start_merge(tile->cache, tile->kv_head * group + i % group, &scratch->max[i],
                    &scratch->sum[i]);
        memset(scratch->total[i], 0, kern_padded_dim(head_dim) * sizeof(float));
    }
    uint32_t first;
    uint32_t last;
    splits_of_tile(tile, &first, &last);
    for (uint32_t split = first; split < last; split++) {
        run_split(tile, split);
        for (uint32_t i = 0; i < count; i++) {
            const kern_split_query_t *query = &scratch->queries[i];
            tile->table->merge(&scratch->max[i], &scratch->sum[i], scratch->total[i], query->max,
                               query->sum, query->values, head_dim);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        float *out = output + i / group * output_stride +
                     (size_t)(tile->kv_head * group + i % group) * head_dim;
        write_output(scratch->total[i], scratch->sum[i], head_dim, out);
    }
}

void
kern_attention_extend_host(const void *args_void, kern_share_t *share)
{
    const kern_attention_extend_args_t *args = args_void;
    const kern_attention_cache_t *cache = &args->cache;
    check_cache(cache);
    uint32_t group = group_size(cache);
    uint32_t rows_of_tile = group < QUERIES_OF_TILE ? QUERIES_OF_TILE / group : 1;
    tile_t tile = {
        .cache = cache,
        .table = kern_table(share->path),
        .scratch = share->scratch,
        .q_stride = args->q_stride,
        .key_limit = key_limit(cache),
    };
    /* Chunks are (request, tile of rows, key head); each thread walks the list of requests once. */
    uint64_t passed = 0;
    uint32_t chunk = kern_share_claim(share);
    for (uint32_t request = 0; request < args->request_count; request++) {
        int32_t begin = args->cu_q[request];
        int32_t length = args->cu_q[request + 1] - begin;
        if (length <= 0) {
            continue;
        }
        uint32_t tiles = ((uint32_t)length + rows_of_tile - 1) / rows_of_tile;
        uint64_t chunks = (uint64_t)tiles * cache->kv_heads;
        for (; chunk < passed + chunks; chunk = kern_share_claim(share)) {
            uint32_t at = (uint32_t)(chunk - passed);
            uint32_t row = at / cache->kv_heads * rows_of_tile;
            uint32_t rest = (uint32_t)length - row;
            size_t global = (size_t)begin + row;
            tile.kv_head = at % cache->kv_heads;
            tile.rows = rest < rows_of_tile ? rest : rows_of_tile;
            tile.pages = args->cache.page_table + request * cache->page_table_stride;
            tile.position = (int64_t)args->seq_lens[request] - length + row;
            tile.q = args->q + global * args->q_stride;
            extend_tile(&tile, args->output + (args->output_first + global) * args->output_stride,
                        args->output_stride);
        }
        passed += chunks;
    }
}

/* ---- decode ---------------------------------------------------------------------------------- */

/* One partial result: values, then max and sum. */
static size_t
partial_len(uint32_t head_dim)
{
    return kern_padded_dim(head_dim) + 16;
}

static size_t
split_count_max(uint32_t kv_len_max)
{
    return ((size_t)kv_len_max + SPLIT - 1) / SPLIT;
}

size_t
kern_attention_decode_workspace_size_bytes(uint32_t rows, uint32_t q_heads, uint32_t head_dim,
                                           uint32_t kv_len_max)
{
    return (size_t)rows * q_heads * split_count_max(kv_len_max) * partial_len(head_dim) *
           sizeof(float);
}

static void
set_request(const kern_attention_decode_args_t *args, uint32_t request, tile_t *tile)
{
    uint32_t width = args->rows_per_request;
    tile->pages = args->cache.page_table + request * args->cache.page_table_stride;
    tile->position = (int64_t)args->seq_lens[request] - width;
    tile->q = args->q + (size_t)request * width * args->q_stride;
    tile->rows = width;
}

/* One split of one key head of one request; rows in groups that fit the scratch.  If it is the
 * request's only one the output is written at once. */
static void
decode_split(const kern_attention_decode_args_t *args, const tile_t *request_tile, uint32_t request,
             uint32_t split, bool only)
{
    uint32_t group = group_size(&args->cache);
    uint32_t rows_max = QUERIES_MAX / group;
    size_t length = partial_len(args->cache.head_dim);
    size_t splits = split_count_max(request_tile->key_limit);
    for (uint32_t row = 0; row < request_tile->rows; row += rows_max) {
        tile_t tile = *request_tile;
        uint32_t rest = tile.rows - row;
        tile.rows = rest < rows_max ? rest : rows_max;
        tile.q += row * tile.q_stride;
        tile.position += row;
        run_split(&tile, split);
        for (uint32_t i = 0; i < tile.rows * group; i++) {
            const kern_split_query_t *query = &tile.scratch->queries[i];
            size_t global_row = (size_t)request * args->rows_per_request + row + i / group;
            uint32_t head = tile.kv_head * group + i % group;
            size_t pair = global_row * args->cache.q_heads + head;
            if (only) {
                float max;
                float sum;
                start_merge(&args->cache, head, &max, &sum);
                float *total = tile.scratch->total[0];
                memset(total, 0, (length - 16) * sizeof *total);
                tile.table->merge(&max, &sum, total, query->max, query->sum, query->values,
                                  args->cache.head_dim);
                write_output(total, sum, args->cache.head_dim,
                             args->output +
                                 (args->output_first + global_row) * args->output_stride +
                                 (size_t)head * args->cache.head_dim);
                continue;
            }
            float *partial = (float *)args->workspace + (pair * splits + split) * length;
            memcpy(partial, query->values, (length - 16) * sizeof *partial);
            partial[length - 16] = query->max;
            partial[length - 15] = query->sum;
        }
    }
}

/* Whether some request has two splits, or none: then there is a second phase. */
static bool
needs_merge(const kern_attention_decode_args_t *args, tile_t *tile)
{
    for (uint32_t request = 0; request < args->bs; request++) {
        uint32_t first;
        uint32_t last;
        set_request(args, request, tile);
        splits_of_tile(tile, &first, &last);
        if (last != first + 1) {
            return true;
        }
    }
    return false;
}

static void
merge_pair(const kern_attention_decode_args_t *args, const tile_t *tile, uint32_t row,
           uint32_t head)
{
    uint32_t head_dim = args->cache.head_dim;
    size_t length = partial_len(head_dim);
    size_t splits = split_count_max(tile->key_limit);
    size_t pair = (size_t)row * args->cache.q_heads + head;
    float values[KERN_HEAD_DIM_MAX] = {0};
    float max;
    float sum;
    start_merge(&args->cache, head, &max, &sum);
    uint32_t first;
    uint32_t last;
    splits_of_tile(tile, &first, &last);
    for (uint32_t split = first; split < last; split++) {
        const float *partial = (const float *)args->workspace + (pair * splits + split) * length;
        tile->table->merge(&max, &sum, values, partial[length - 16], partial[length - 15], partial,
                           head_dim);
    }
    float *out = args->output + ((size_t)args->output_first + row) * args->output_stride +
                 (size_t)head * head_dim;
    write_output(values, sum, head_dim, out);
}

void
kern_attention_decode_host(const void *args_void, kern_share_t *share)
{
    const kern_attention_decode_args_t *args = args_void;
    const kern_attention_cache_t *cache = &args->cache;
    check_cache(cache);
    require(args->rows_per_request >= 1);
    tile_t tile = {
        .cache = cache,
        .table = kern_table(share->path),
        .scratch = share->scratch,
        .q_stride = args->q_stride,
        .key_limit = key_limit(cache),
    };
    uint32_t rows = args->bs * args->rows_per_request;
    require(args->workspace_size_bytes >=
            kern_attention_decode_workspace_size_bytes(rows, cache->q_heads, cache->head_dim,
                                                       tile.key_limit));
    /* Chunks are (request, split, key head) of the splits that exist; each thread walks the list of
     * requests once. */
    bool merge = needs_merge(args, &tile);
    uint64_t passed = 0;
    uint32_t chunk = kern_share_claim(share);
    for (uint32_t request = 0; request < args->bs; request++) {
        uint32_t first;
        uint32_t last;
        set_request(args, request, &tile);
        splits_of_tile(&tile, &first, &last);
        uint64_t chunks = last > first ? (uint64_t)(last - first) * cache->kv_heads : 0;
        for (; chunk < passed + chunks; chunk = kern_share_claim(share)) {
            uint32_t at = (uint32_t)(chunk - passed);
            tile.kv_head = at % cache->kv_heads;
            decode_split(args, &tile, request, first + at / cache->kv_heads, !merge);
        }
        passed += chunks;
    }
    if (!merge) {
        return;
    }
    kern_share_sync(share);

    uint32_t pairs = rows * cache->q_heads;
    for (uint32_t pair = kern_share_claim(share) * PAIRS_OF_CHUNK; pair < pairs;
         pair = kern_share_claim(share) * PAIRS_OF_CHUNK) {
        for (uint32_t i = pair; i < pairs && i < pair + PAIRS_OF_CHUNK; i++) {
            uint32_t row = i / cache->q_heads;
            set_request(args, row / args->rows_per_request, &tile);
            tile.position += row % args->rows_per_request;
            tile.rows = 1;
            merge_pair(args, &tile, row, i % cache->q_heads);
        }
    }
}
