/* What one of several ranks holds of a checkpoint: the config with its share of heads and widths,
 * and tensors cut to match, so that forward code and loaders see a smaller model.
 *
 * Rows of a matrix are cut in place; where a cut is not one piece of the file it is copied. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "file_model_internal.h"
#include "proto_require.h"

/* How a tensor is cut. */
typedef enum {
    CUT_WHOLE,           /* every rank has all of it */
    CUT_ROWS,            /* heads, or the width of a feed-forward */
    CUT_KV_ROWS,         /* key and value heads; with fewer heads than ranks some hold the same */
    CUT_VOCAB,           /* rows of the head */
    CUT_STACKED,         /* rows of each expert's matrix in one tensor */
    CUT_COLS,            /* the inputs of a product whose results are added up over the ranks */
    CUT_COLS_READ_TWICE, /* the same where a loader reads it more than once */
    CUT_KV_COLS,
    CUT_LINEAR, /* rows of queries, keys and values of recurrent layers, behind each other */
    CUT_FIRST,  /* what is added once: the first rank's, zeros elsewhere */
} cut_t;

static const uint8_t CUTS[FILE_ROLE_COUNT] = {
    [FILE_ROLE_OUTPUT] = CUT_VOCAB,
    [FILE_ROLE_ATTN_Q] = CUT_ROWS,
    [FILE_ROLE_ATTN_K] = CUT_KV_ROWS,
    [FILE_ROLE_ATTN_V] = CUT_KV_ROWS,
    [FILE_ROLE_ATTN_O] = CUT_COLS,
    [FILE_ROLE_ATTN_Q_BIAS] = CUT_COLS_READ_TWICE,
    [FILE_ROLE_ATTN_K_BIAS] = CUT_KV_COLS,
    [FILE_ROLE_ATTN_V_BIAS] = CUT_KV_COLS,
    [FILE_ROLE_ATTN_O_BIAS] = CUT_FIRST,
    [FILE_ROLE_FFN_GATE] = CUT_ROWS,
    [FILE_ROLE_FFN_UP] = CUT_ROWS,
    [FILE_ROLE_FFN_DOWN] = CUT_COLS,
    [FILE_ROLE_ATTN_SINKS] = CUT_COLS_READ_TWICE,
    [FILE_ROLE_EXPERT_GATE_UP] = CUT_COLS_READ_TWICE, /* stored [inputs][outputs] */
    [FILE_ROLE_EXPERT_GATE_UP_BIAS] = CUT_COLS_READ_TWICE,
    [FILE_ROLE_EXPERT_GATE] = CUT_STACKED,
    [FILE_ROLE_EXPERT_GATE_BIAS] = CUT_COLS_READ_TWICE,
    [FILE_ROLE_EXPERT_UP] = CUT_STACKED,
    [FILE_ROLE_EXPERT_UP_BIAS] = CUT_COLS_READ_TWICE,
    [FILE_ROLE_EXPERT_DOWN] = CUT_COLS, /* fused: stacked */
    [FILE_ROLE_EXPERT_DOWN_BIAS] = CUT_FIRST,
    [FILE_ROLE_LINEAR_QKV] = CUT_LINEAR,
    [FILE_ROLE_LINEAR_Z] = CUT_ROWS,
    [FILE_ROLE_LINEAR_A] = CUT_ROWS,
    [FILE_ROLE_LINEAR_B] = CUT_ROWS,
    [FILE_ROLE_LINEAR_CONV] = CUT_LINEAR,
    [FILE_ROLE_LINEAR_DT_BIAS] = CUT_COLS_READ_TWICE,
    [FILE_ROLE_LINEAR_A_LOG] = CUT_COLS_READ_TWICE,
    [FILE_ROLE_LINEAR_OUT] = CUT_COLS,
    [FILE_ROLE_SHARED_GATE] = CUT_ROWS,
    [FILE_ROLE_SHARED_UP] = CUT_ROWS,
    [FILE_ROLE_SHARED_DOWN] = CUT_COLS,
    [FILE_ROLE_ATTN_Q_B] = CUT_ROWS,
    [FILE_ROLE_ATTN_KV_B] = CUT_ROWS,
};

typedef struct {
    file_model_t *model;
    const file_config_t *whole; /* the config as it was read */
    uint32_t rank;
    uint32_t count;
    file_error_t error;
} slicing_t;

/* A piece of `of`: [begin, end). */
typedef struct {
    uint32_t begin;
    uint32_t end;
} piece_t;

static piece_t
piece_of(const slicing_t *s, uint32_t of)
{
    uint32_t each = of / s->count;
    return (piece_t){s->rank * each, (s->rank + 1) * each};
}

/* Of `of` rows or columns that belong to the key and value heads. */
static piece_t
kv_piece_of(const slicing_t *s, uint32_t of)
{
    uint32_t heads = s->whole->kv_head_count;
    if (heads % s->count == 0) {
        return piece_of(s, of);
    }
    uint32_t each = of / heads;
    uint32_t head = s->rank * heads / s->count;
    return (piece_t){head * each, (head + 1) * each};
}

void
file_slice_vocabulary(uint32_t vocab_size, uint32_t rank, uint32_t count, uint32_t *begin,
                      uint32_t *end)
{
    uint32_t each = (vocab_size + count - 1) / count;
    each = (each + FILE_SLICE_VOCAB_GRAIN - 1) / FILE_SLICE_VOCAB_GRAIN * FILE_SLICE_VOCAB_GRAIN;
    *begin = rank * each < vocab_size ? rank * each : vocab_size;
    *end = vocab_size - *begin < each ? vocab_size : *begin + each;
}

/* Memory for a copy, given back when the model is closed.  Its pages may be dropped by a loader
 * that is done with them, unless it is `shared`: then they stay. */
static uint8_t *
copy_alloc(slicing_t *s, size_t size_bytes, bool is_shared)
{
    file_model_t *model = s->model;
    require(model->copy_count < model->copy_capacity);
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                        (is_shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    model->copies[model->copy_count++] = (file_copy_t){memory, size_bytes};
    return memory;
}

static proto_status_t
no_memory(const slicing_t *s, size_t size_bytes)
{
    return file_error_set(s->error, STATUS_ERR_NO_MEMORY,
                          "out of memory for %zu bytes of a rank's share", size_bytes);
}

static proto_status_t
cut_rows(file_tensor_t *tensor, piece_t rows)
{
    uint64_t row_bytes = tensor->size_bytes / tensor->rows;
    tensor->data = (const uint8_t *)tensor->data + rows.begin * row_bytes;
    tensor->rows = rows.end - rows.begin;
    tensor->size_bytes = tensor->rows * row_bytes;
    return STATUS_OK;
}

/* Rows of each of `blocks` matrices that lie behind each other in a tensor. */
static proto_status_t
cut_blocks(slicing_t *s, file_tensor_t *tensor, const piece_t *pieces, uint32_t piece_count)
{
    uint64_t row_bytes = tensor->size_bytes / tensor->rows;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < piece_count; i++) {
        rows += pieces[i].end - pieces[i].begin;
    }
    uint8_t *memory = copy_alloc(s, rows * row_bytes, true);
    if (memory == NULL) {
        return no_memory(s, rows * row_bytes);
    }
    uint8_t *to = memory;
    for (uint32_t i = 0; i < piece_count; i++) {
        size_t size_bytes = (pieces[i].end - pieces[i].begin) * row_bytes;
        memcpy(to, (const uint8_t *)tensor->data + pieces[i].begin * row_bytes, size_bytes);
        to += size_bytes;
    }
    tensor->data = memory;
    tensor->rows = rows;
    tensor->size_bytes = rows * row_bytes;
    return STATUS_OK;
}

static proto_status_t
cut_stacked(slicing_t *s, file_tensor_t *tensor)
{
    uint32_t experts = s->whole->expert_count;
    uint32_t each = tensor->rows / experts;
    piece_t *pieces = calloc(experts, sizeof *pieces);
    if (pieces == NULL) {
        return no_memory(s, experts * sizeof *pieces);
    }
    piece_t inner = piece_of(s, each);
    for (uint32_t i = 0; i < experts; i++) {
        pieces[i] = (piece_t){i * each + inner.begin, i * each + inner.end};
    }
    proto_status_t status = cut_blocks(s, tensor, pieces, experts);
    free(pieces);
    return status;
}

/* Queries, keys, values. */
static proto_status_t
cut_linear(slicing_t *s, file_tensor_t *tensor)
{
    const file_config_t *c = s->whole;
    uint32_t keys = c->linear_key_head_count * c->linear_key_head_dim;
    uint32_t values = c->linear_value_head_count * c->linear_value_head_dim;
    piece_t key = piece_of(s, keys);
    piece_t value = piece_of(s, values);
    const piece_t pieces[3] = {
        {key.begin, key.end},
        {keys + key.begin, keys + key.end},
        {2 * keys + value.begin, 2 * keys + value.end},
    };
    return cut_blocks(s, tensor, pieces, 3);
}

static proto_status_t
cut_cols(slicing_t *s, file_tensor_t *tensor, piece_t cols, bool is_shared)
{
    uint32_t block = file_dtype_block_length(tensor->dtype);
    if (cols.begin % block != 0 || cols.end % block != 0) {
        return file_error_set(s->error, STATUS_ERR_CONFIG,
                              "%" PRIu32 " ranks: a matrix of %" PRIu32
                              " columns is stored in %s, whose blocks of %" PRIu32
                              " values do not divide a share of %" PRIu32 " columns",
                              s->count, tensor->cols, file_dtype_name(tensor->dtype), block,
                              cols.end - cols.begin);
    }
    uint64_t row_bytes = file_dtype_row_size_bytes(tensor->dtype, tensor->cols);
    uint64_t from = file_dtype_row_size_bytes(tensor->dtype, cols.begin);
    uint64_t share_bytes = file_dtype_row_size_bytes(tensor->dtype, cols.end - cols.begin);
    uint8_t *memory = copy_alloc(s, tensor->rows * share_bytes, is_shared);
    if (memory == NULL) {
        return no_memory(s, tensor->rows * share_bytes);
    }
    for (uint64_t row = 0; row < tensor->rows; row++) {
        memcpy(memory + row * share_bytes, (const uint8_t *)tensor->data + row * row_bytes + from,
               share_bytes);
    }
    tensor->data = memory;
    tensor->cols = cols.end - cols.begin;
    tensor->size_bytes = tensor->rows * share_bytes;
    return STATUS_OK;
}

/* Zeros of F32, F16 and BF16 are zero bytes. */
static proto_status_t
cut_first(slicing_t *s, file_tensor_t *tensor)
{
    if (s->rank == 0) {
        return STATUS_OK;
    }
    uint8_t *memory = copy_alloc(s, tensor->size_bytes, true);
    if (memory == NULL) {
        return no_memory(s, tensor->size_bytes);
    }
    tensor->data = memory;
    return STATUS_OK;
}

static proto_status_t
cut_vocabulary(slicing_t *s, file_tensor_t *tensor)
{
    piece_t rows;
    file_slice_vocabulary(tensor->rows, s->rank, s->count, &rows.begin, &rows.end);
    return cut_rows(tensor, rows);
}

static proto_status_t
cut_tensor(slicing_t *s, file_role_t role, file_tensor_t *tensor)
{
    if (tensor->data == NULL) {
        return STATUS_OK; /* an optional one */
    }
    cut_t cut = (cut_t)CUTS[role];
    if (role == FILE_ROLE_EXPERT_DOWN && s->whole->has_fused_experts) {
        cut = CUT_STACKED; /* stored [inputs][outputs] */
    }
    switch (cut) {
    case CUT_WHOLE:
        return STATUS_OK;
    case CUT_ROWS:
        return cut_rows(tensor, piece_of(s, tensor->rows));
    case CUT_KV_ROWS:
        return cut_rows(tensor, kv_piece_of(s, tensor->rows));
    case CUT_VOCAB:
        return cut_vocabulary(s, tensor);
    case CUT_STACKED:
        return cut_stacked(s, tensor);
    case CUT_COLS:
        return cut_cols(s, tensor, piece_of(s, tensor->cols), false);
    case CUT_COLS_READ_TWICE:
        return cut_cols(s, tensor, piece_of(s, tensor->cols), true);
    case CUT_KV_COLS:
        return cut_cols(s, tensor, kv_piece_of(s, tensor->cols), true);
    case CUT_LINEAR:
        return cut_linear(s, tensor);
    case CUT_FIRST:
        return cut_first(s, tensor);
    }
    return STATUS_ERR_INTERNAL;
}

/* ---- what divides -----------------------------------------------------------------------------
 */

/* Every number that is shared out must divide; all that do not are named at once. */
static proto_status_t
check_divides(const slicing_t *s)
{
    const file_config_t *c = s->whole;
    bool is_latent = c->latent_dim > 0;
    bool kv_divides = c->kv_head_count % s->count == 0 || s->count % c->kv_head_count == 0;
    bool has_dense = c->expert_count == 0 || c->dense_layer_count > 0;
    const struct {
        const char *name;
        uint32_t number;
        bool divides;
    } shares[] = {
        {"query heads", c->head_count, c->head_count % s->count == 0},
        {"key and value heads", c->kv_head_count, is_latent || kv_divides},
        {"rows of the feed-forward", c->ffn_size, !has_dense || c->ffn_size % s->count == 0},
        {"rows of an expert", c->expert_ffn_size, c->expert_ffn_size % s->count == 0},
        {"rows of the shared expert", c->shared_ffn_size, c->shared_ffn_size % s->count == 0},
        {"recurrent key heads", c->linear_key_head_count, c->linear_key_head_count % s->count == 0},
        {"recurrent value heads", c->linear_value_head_count,
         c->linear_value_head_count % s->count == 0},
    };
    char text[256] = "";
    size_t at = 0;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        if (!shares[i].divides && at < sizeof text) {
            int wrote = snprintf(text + at, sizeof text - at, "%s%" PRIu32 " %s",
                                 at > 0 ? ", " : "", shares[i].number, shares[i].name);
            at += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    if (at > 0) {
        return file_error_set(s->error, STATUS_ERR_CONFIG,
                              "%s cannot be shared out over %" PRIu32 " ranks: it has %s", c->name,
                              s->count, text);
    }
    uint32_t begin;
    uint32_t end;
    file_slice_vocabulary(c->vocab_size, s->count - 1, s->count, &begin, &end);
    if (begin == end) {
        return file_error_set(s->error, STATUS_ERR_CONFIG,
                              "%s cannot be shared out over %" PRIu32 " ranks: %" PRIu32
                              " tokens of the vocabulary, in shares of at least %d",
                              c->name, s->count, c->vocab_size, (int)FILE_SLICE_VOCAB_GRAIN);
    }
    return STATUS_OK;
}

static void
divide(uint32_t *number, uint32_t count)
{
    *number /= count;
}

static void
divide_config(file_config_t *c, uint32_t count)
{
    divide(&c->head_count, count);
    if (c->latent_dim == 0) {
        c->kv_head_count = c->kv_head_count % count == 0 ? c->kv_head_count / count : 1;
    }
    divide(&c->ffn_size, count);
    divide(&c->expert_ffn_size, count);
    divide(&c->shared_ffn_size, count);
    divide(&c->linear_key_head_count, count);
    divide(&c->linear_value_head_count, count);
    c->weight_size_bytes /= count;
    c->tied_embeddings = false; /* the head is a share of what the embedding has whole */
}

proto_status_t
file_model_slice(file_model_t *self, uint32_t rank, uint32_t count, char *error,
                 size_t error_size_bytes)
{
    require(rank < count);
    file_error_t sink = file_error_init(error, error_size_bytes);
    if (count == 1) {
        return STATUS_OK;
    }
    file_config_t whole = self->config;
    slicing_t s = {self, &whole, rank, count, sink};
    proto_status_t status = check_divides(&s);
    if (status != STATUS_OK) {
        return status;
    }
    size_t role_count = FILE_ROLE_FIRST_OF_LAYER + (size_t)whole.layer_count * FILE_ROLES_PER_LAYER;
    require(self->copies == NULL);
    self->copy_capacity = role_count + self->expert_slot_count;
    self->copies = calloc(self->copy_capacity, sizeof *self->copies);
    if (self->copies == NULL) {
        return no_memory(&s, self->copy_capacity * sizeof *self->copies);
    }
    if (whole.tied_embeddings) {
        self->roles[FILE_ROLE_OUTPUT] = self->roles[FILE_ROLE_TOKEN_EMBED];
    }
    for (size_t i = 0; status == STATUS_OK && i < role_count; i++) {
        size_t role =
            i < FILE_ROLE_FIRST_OF_LAYER
                ? i
                : FILE_ROLE_FIRST_OF_LAYER + (i - FILE_ROLE_FIRST_OF_LAYER) % FILE_ROLES_PER_LAYER;
        status = cut_tensor(&s, (file_role_t)role, &self->roles[i]);
    }
    /* Gate, up, down, and again: file_experts.c. */
    for (size_t i = 0; status == STATUS_OK && i < self->expert_slot_count; i++) {
        file_tensor_t *tensor = &self->experts[i];
        if (tensor->data != NULL && file_expert_role(i) == FILE_ROLE_EXPERT_DOWN) {
            status = cut_cols(&s, tensor, piece_of(&s, tensor->cols), false);
        } else if (tensor->data != NULL) {
            status = cut_rows(tensor, piece_of(&s, tensor->rows));
        }
    }
    if (status == STATUS_OK) {
        divide_config(&self->config, count);
    }
    return status;
}
