/* The gated delta rule.  Work is shared by request and value head (and by slices of columns where
 * heads are few): columns of a state never meet. */
#include "kern_gdn.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kern_table.h"
#include "proto_require.h"

enum {
    BLOCK = 64,      /* rows whose q and k are prepared at a time */
    ITEMS_WORTH = 4, /* heads for each thread, below which slices are shared too */
};

/* A thread's scratch. */
typedef struct {
    _Alignas(64) float state[KERN_GDN_DIM_MAX * KERN_GDN_DIM_MAX]; /* slice after slice */
    _Alignas(64) float q[BLOCK * KERN_GDN_DIM_MAX];
    _Alignas(64) float k[BLOCK * KERN_GDN_DIM_MAX];
    float decay[BLOCK];
    float beta[BLOCK];
} gdn_scratch_t;

_Static_assert(sizeof(gdn_scratch_t) <= KERN_SCRATCH_SIZE_BYTES, "a head must fit the scratch");

/* Some columns of one head, for the rows of one request. */
typedef struct {
    const kern_gdn_t *gdn;
    const kern_table_t *table;
    gdn_scratch_t *scratch;
    uint32_t head;
    uint32_t first_slice;
    uint32_t slice_end;
    uint32_t row; /* the request's first */
    uint32_t rows;
    const float *from; /* the state of this head; NULL = zero */
    float *to;         /* states after rows to_first .. go to to, to + to_step, ...; or NULL */
    size_t to_step;
    uint32_t to_first;
    bool silent;        /* no outputs */
    const float *ahead; /* the first column of the thread's next item, to be fetched; or NULL */
} item_t;

static uint32_t
slices_of(const kern_gdn_t *gdn, const kern_table_t *table)
{
    return (gdn->v_dim + table->gdn_slice - 1) / table->gdn_slice;
}

/* log(1 + e^x), where e^x may overflow. */
static float
softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* q, k, decay and beta of rows first .. first + count - 1. */
static void
prepare_rows(const item_t *item, uint32_t first, uint32_t count)
{
    const kern_gdn_t *gdn = item->gdn;
    gdn_scratch_t *scratch = item->scratch;
    size_t k_head = item->head / (gdn->v_heads / gdn->k_heads);
    size_t k_width = (size_t)gdn->k_heads * gdn->k_dim;
    float scale = 1.0f / sqrtf((float)gdn->k_dim);
    for (uint32_t i = 0; i < count; i++) {
        size_t row = (size_t)item->row + first + i;
        const float *q = gdn->qkv + row * gdn->qkv_stride + k_head * gdn->k_dim;
        size_t at = (size_t)i * gdn->k_dim;
        item->table->unit_row(q, 1e-6f, scale, scratch->q + at, gdn->k_dim);
        item->table->unit_row(q + k_width, 1e-6f, 1.0f, scratch->k + at, gdn->k_dim);
        float a = gdn->a[row * gdn->a_stride + item->head] + gdn->dt_bias[item->head];
        float b = gdn->b[row * gdn->b_stride + item->head];
        scratch->decay[i] = expf(-gdn->rate[item->head] * softplus(a));
        scratch->beta[i] = 1.0f / (1.0f + expf(-b));
    }
}

/* The prepared rows through one slice. */
static void
run_slice(const item_t *item, uint32_t slice, uint32_t first, uint32_t count)
{
    const kern_gdn_t *gdn = item->gdn;
    uint32_t col = slice * item->table->gdn_slice;
    uint32_t rest = gdn->v_dim - col;
    size_t row = (size_t)item->row + first;
    size_t head_at = (size_t)item->head * gdn->v_dim + col;
    kern_gdn_slice_args_t args = {
        .rows = count,
        .k_dim = gdn->k_dim,
        .q = item->scratch->q,
        .k = item->scratch->k,
        .decay = item->scratch->decay,
        .beta = item->scratch->beta,
        .v = gdn->qkv + row * gdn->qkv_stride + 2 * (size_t)gdn->k_heads * gdn->k_dim + head_at,
        .v_stride = gdn->qkv_stride,
        .output_stride = gdn->output_stride,
        .cols = rest < item->table->gdn_slice ? rest : item->table->gdn_slice,
        .state = item->scratch->state + (size_t)col * gdn->k_dim,
        .to_step = item->to_step,
        .state_stride = gdn->v_dim,
        .to_first = item->to_first > first ? item->to_first - first : 0,
    };
    if (!item->silent) {
        args.output = gdn->output + row * gdn->output_stride + head_at;
    }
    if (item->ahead != NULL) {
        args.ahead = item->ahead + (size_t)(slice - item->first_slice) * item->table->gdn_slice;
    }
    if (item->to != NULL && item->to_first < first + count) {
        uint32_t skipped = first > item->to_first ? first - item->to_first : 0;
        args.to = item->to + skipped * item->to_step + col;
    }
    item->table->gdn_rows(&args);
}

/* The state before the first row. */
static void
load_state(const item_t *item)
{
    const kern_gdn_t *gdn = item->gdn;
    uint32_t slice = item->table->gdn_slice;
    uint32_t col = item->first_slice * slice;
    float *state = item->scratch->state + (size_t)col * gdn->k_dim;
    if (item->from == NULL) {
        uint32_t cols = (item->slice_end - item->first_slice) * slice;
        memset(state, 0, (size_t)gdn->k_dim * cols * sizeof *state);
        return;
    }
    uint32_t end = item->slice_end * slice;
    end = end < gdn->v_dim ? end : gdn->v_dim;
    item->table->gdn_load(item->from + col, gdn->v_dim, gdn->k_dim, end - col, state);
}

static void
run_item(const item_t *item)
{
    load_state(item);
    for (uint32_t first = 0; first < item->rows; first += BLOCK) {
        uint32_t count = item->rows - first < BLOCK ? item->rows - first : BLOCK;
        prepare_rows(item, first, count);
        for (uint32_t slice = item->first_slice; slice < item->slice_end; slice++) {
            run_slice(item, slice, first, count);
        }
    }
}

static void
zero_item(const item_t *item)
{
    const kern_gdn_t *gdn = item->gdn;
    uint32_t col = item->first_slice * item->table->gdn_slice;
    uint32_t end = item->slice_end * item->table->gdn_slice;
    end = end < gdn->v_dim ? end : gdn->v_dim;
    for (size_t row = item->row; row < item->row + item->rows; row++) {
        float *out = gdn->output + row * gdn->output_stride + (size_t)item->head * gdn->v_dim;
        memset(out + col, 0, (end - col) * sizeof *out);
    }
}

/* How an operation is cut: item = (request * v_heads + head) * parts + part. */
typedef struct {
    uint32_t parts;
    uint32_t slices_of_part;
    uint32_t slices;
    uint32_t item_count;
} cut_t;

static cut_t
cut_of(const kern_gdn_t *gdn, uint32_t request_count, const kern_share_t *share)
{
    uint32_t slices = slices_of(gdn, kern_table(share->path));
    uint32_t heads = request_count * gdn->v_heads;
    bool whole = share->thread_count == 1 || heads >= ITEMS_WORTH * share->thread_count;
    cut_t cut = {
        .parts = whole ? 1 : slices,
        .slices_of_part = whole ? slices : 1,
        .slices = slices,
    };
    cut.item_count = heads * cut.parts;
    return cut;
}

/* The item of that number; *request is whose it is. */
static item_t
item_at(const kern_gdn_t *gdn, const cut_t *cut, kern_share_t *share, uint32_t index,
        uint32_t *request)
{
    uint32_t part = index % cut->parts;
    uint32_t head = index / cut->parts;
    *request = head / gdn->v_heads;
    return (item_t){
        .gdn = gdn,
        .table = kern_table(share->path),
        .scratch = share->scratch,
        .head = head % gdn->v_heads,
        .first_slice = part * cut->slices_of_part,
        .slice_end = (part + 1) * cut->slices_of_part,
    };
}

static size_t
head_offset(const item_t *item)
{
    return (size_t)item->head * item->gdn->k_dim * item->gdn->v_dim;
}

/* What is to be done with an item. */
typedef enum {
    ITEM_RUN,
    ITEM_ZERO, /* of a padded request */
    ITEM_SKIP,
} duty_t;

/* Finds the rows and states of an item, whose head and slices are known. */
typedef duty_t (*find_fn)(const void *args, uint32_t request, item_t *item);

/* Input and output state by block ids. */
static duty_t
find_states(item_t *item, const kern_gdn_cache_t *cache, int32_t in, int32_t out)
{
    if (in < 0 || (uint32_t)in >= cache->block_count) {
        return ITEM_ZERO;
    }
    if (in > 0) {
        item->from = cache->states + (size_t)in * cache->block_stride + head_offset(item);
    }
    if (out > 0 && (uint32_t)out < cache->block_count) {
        item->to = cache->states + (size_t)out * cache->block_stride + head_offset(item);
        item->to_first = item->rows - 1;
    }
    return ITEM_RUN;
}

/* A state comes from memory and is used once: the next item is claimed before the current one
 * runs, so that it can be fetched meanwhile. */
static void
run_all(const kern_gdn_t *gdn, uint32_t request_count, find_fn find, const void *args,
        kern_share_t *share)
{
    require(gdn->k_dim >= 1 && gdn->k_dim <= KERN_GDN_DIM_MAX);
    require(gdn->v_dim >= 1 && gdn->v_dim <= KERN_GDN_DIM_MAX);
    require(gdn->k_heads >= 1 && gdn->v_heads % gdn->k_heads == 0);
    cut_t cut = cut_of(gdn, request_count, share);
    item_t item = {0};
    duty_t duty = ITEM_SKIP;
    bool last = false;
    while (!last) {
        uint32_t index = kern_share_claim(share);
        item_t next = {0};
        duty_t next_duty = ITEM_SKIP;
        last = index >= cut.item_count;
        if (!last) {
            uint32_t request;
            next = item_at(gdn, &cut, share, index, &request);
            next_duty = find(args, request, &next);
        }
        if (next_duty == ITEM_RUN && next.from != NULL) {
            item.ahead = next.from + (size_t)next.first_slice * next.table->gdn_slice;
        }
        if (duty == ITEM_RUN) {
            run_item(&item);
        } else if (duty == ITEM_ZERO) {
            zero_item(&item);
        }
        item = next;
        duty = next_duty;
    }
}

static duty_t
find_prefill(const void *args_void, uint32_t request, item_t *item)
{
    const kern_gdn_prefill_args_t *args = args_void;
    int32_t first = args->cu_rows[request];
    int32_t end = args->cu_rows[request + 1];
    if (end <= first) {
        return ITEM_SKIP;
    }
    item->row = (uint32_t)first;
    item->rows = (uint32_t)(end - first);
    return find_states(item, &args->cache, args->in_blocks[request], args->out_blocks[request]);
}

static duty_t
find_decode(const void *args_void, uint32_t request, item_t *item)
{
    const kern_gdn_decode_args_t *args = args_void;
    item->row = request * args->rows_per_request;
    item->rows = args->rows_per_request;
    int32_t out = args->out_blocks != NULL ? args->out_blocks[request] : 0;
    return find_states(item, &args->cache, args->in_blocks[request], out);
}

static duty_t
find_verify(const void *args_void, uint32_t request, item_t *item)
{
    const kern_gdn_verify_args_t *args = args_void;
    const kern_gdn_cache_t *scratch = &args->scratch;
    item->row = request * args->rows_per_request;
    item->rows = args->rows_per_request;
    int32_t seed = args->seeds[request];
    if (seed < 0 || (uint64_t)seed + item->rows >= scratch->block_count) {
        return ITEM_ZERO;
    }
    float *state = scratch->states + (size_t)seed * scratch->block_stride + head_offset(item);
    item->from = state;
    item->to = state + scratch->block_stride;
    item->to_step = scratch->block_stride;
    return ITEM_RUN;
}

static duty_t
find_replay(const void *args_void, uint32_t request, item_t *item)
{
    const kern_gdn_replay_args_t *args = args_void;
    int32_t accepted = args->accept_lengths[request];
    uint32_t rows = accepted < 1 ? 1 : (uint32_t)accepted;
    item->row = request * args->rows_per_request;
    item->rows = rows < args->rows_per_request ? rows : args->rows_per_request;
    item->silent = true;
    int32_t in = args->in_blocks[request];
    duty_t duty = find_states(item, &args->cache, in, args->out_blocks[request]);
    return duty == ITEM_RUN && item->to != NULL ? ITEM_RUN : ITEM_SKIP;
}

void
kern_gdn_prefill_host(const void *args_void, kern_share_t *share)
{
    const kern_gdn_prefill_args_t *args = args_void;
    run_all(&args->gdn, args->request_count, find_prefill, args, share);
}

void
kern_gdn_decode_host(const void *args_void, kern_share_t *share)
{
    const kern_gdn_decode_args_t *args = args_void;
    require(args->rows_per_request >= 1);
    run_all(&args->gdn, args->bs, find_decode, args, share);
}

void
kern_gdn_verify_host(const void *args_void, kern_share_t *share)
{
    const kern_gdn_verify_args_t *args = args_void;
    require(args->rows_per_request >= 1);
    run_all(&args->gdn, args->bs, find_verify, args, share);
}

void
kern_gdn_replay_host(const void *args_void, kern_share_t *share)
{
    const kern_gdn_replay_args_t *args = args_void;
    require(args->rows_per_request >= 1);
    run_all(&args->gdn, args->bs, find_replay, args, share);
}
