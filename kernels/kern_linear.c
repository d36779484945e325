#include "kern_linear.h"

#include <string.h>

#include "kern_pack.h"
#include "kern_table.h"
#include "proto_require.h"

enum {
    ROWS_OF_CHUNK = 128,         /* rows of activations that stay in the second-level cache */
    CHUNK_SIZE_BYTES = 24 << 10, /* weight bytes worth a claim of their own */
    CHUNK_TILES_MAX = 8,
    PRIVATE_SIZE_BYTES = 32 << 10, /* activations that every thread quantises for itself */
    PRIVATE_ROWS_MAX = 4,
    QUANTS = 2, /* KERN_QUANT_32 and KERN_QUANT_256 can be needed at once */
    KINDS = KERN_QUANT_SUMS + 1,
};

_Static_assert(PRIVATE_SIZE_BYTES + 2 * ROWS_OF_CHUNK * KERN_PACK_ROWS * 4 +
                       KERN_PACK_ROWS * 34 / 32 * KERN_PACK_COLS_MAX + 64 <=
                   KERN_SCRATCH_SIZE_BYTES,
               "activations, gate, up and one tile must fit the scratch");

/* What one product is made of; the same for kern_linear and kern_gate_up. */
typedef struct {
    const kern_weight_t *weights;
    uint32_t weight_count;
    const float *input;
    size_t input_stride;
    uint32_t rows;
    kern_activations_t activations;
    uint8_t *records[KINDS]; /* by kern_quant_t; NULL = not needed */
    const kern_table_t *table;
    kern_share_t *share;
} product_t;

size_t
kern_linear_workspace_size_bytes(uint32_t rows, uint32_t cols)
{
    return (size_t)rows * kern_record_layout(cols).size_bytes * QUANTS;
}

/* What the product of a weight type needs to know of the activations. */
static kern_quant_t
record_kind(const product_t *self, kern_type_t type)
{
    kern_quant_t quant = kern_pack_quant(type);
    if (quant == KERN_QUANT_NONE || self->activations == KERN_ACTIVATIONS_INT8) {
        return quant;
    }
    return kern_pack_has_min(type) ? KERN_QUANT_SUMS : KERN_QUANT_NONE;
}

static size_t
record_size_bytes(kern_quant_t kind, uint32_t cols)
{
    return kind == KERN_QUANT_SUMS ? kern_record_sums_size_bytes(cols)
                                   : kern_record_layout(cols).size_bytes;
}

static void
make_records(const product_t *self, uint32_t first, uint32_t end)
{
    uint32_t cols = self->weights[0].cols;
    for (int kind = KERN_QUANT_32; kind < KINDS; kind++) {
        if (self->records[kind] == NULL) {
            continue;
        }
        size_t stride = record_size_bytes((kern_quant_t)kind, cols);
        for (uint32_t row = first; row < end; row++) {
            const float *input = self->input + row * self->input_stride;
            uint8_t *record = self->records[kind] + row * stride;
            if (kind == KERN_QUANT_SUMS) {
                self->table->sum_row(input, cols, (float *)(void *)record);
            } else {
                self->table->quantize_row((kern_quant_t)kind, input, cols, record);
            }
        }
    }
}

/* Prepares the input as the weights need it.  A row or two are faster done by every thread for
 * itself than shared: no thread has to wait for another, which matters where processors are few and
 * busy.  More rows are shared out, with a barrier at the end. */
static void
prepare_input(product_t *self, void *workspace, size_t workspace_size_bytes)
{
    uint32_t cols = self->weights[0].cols;
    bool needed[KINDS] = {false};
    for (uint32_t i = 0; i < self->weight_count; i++) {
        kern_type_t type = self->weights[i].type;
        require(self->weights[i].cols == cols);
        require(cols % kern_type_block_len(type) == 0);
        require(kern_pack_quant(type) == KERN_QUANT_NONE || cols <= KERN_PACK_COLS_MAX);
        needed[record_kind(self, type)] = true;
    }
    size_t all_size_bytes = 0;
    for (int kind = KERN_QUANT_32; kind < KINDS; kind++) {
        size_t size_bytes = self->rows * record_size_bytes((kern_quant_t)kind, cols);
        all_size_bytes += needed[kind] ? size_bytes : 0;
    }
    if (all_size_bytes == 0) {
        return;
    }
    bool private = all_size_bytes <= PRIVATE_SIZE_BYTES && self->rows <= PRIVATE_ROWS_MAX;
    uint8_t *at = private ? self->share->scratch : workspace;
    require(at != NULL);
    require((uintptr_t)at % 64 == 0);
    require(private || all_size_bytes <= workspace_size_bytes);
    for (int kind = KERN_QUANT_32; kind < KINDS; kind++) {
        if (needed[kind]) {
            self->records[kind] = at;
            at += self->rows * record_size_bytes((kern_quant_t)kind, cols);
        }
    }
    if (private) {
        make_records(self, 0, self->rows);
        return;
    }
    /* A few rows for each claim, so that the counter is not the work. */
    uint32_t step = cols >= 2048 ? 1 : 4;
    for (uint32_t first = kern_share_claim(self->share) * step; first < self->rows;
         first = kern_share_claim(self->share) * step) {
        make_records(self, first, first + step < self->rows ? first + step : self->rows);
    }
    kern_share_sync(self->share);
}

/* Where a tile's results go. */
typedef struct {
    float *out; /* of the first row and the tile's first output */
    size_t out_stride;
    const float *bias; /* at the tile, or NULL */
    bool accumulate;
} target_t;

/* 16 outputs from `tile` on for rows first..first + count - 1; packs the tile first if the weight
 * is not packed. */
static void
run_tile(const product_t *self, const kern_weight_t *weight, uint32_t tile, const uint8_t *packed,
         uint32_t first, uint32_t count, const target_t *target)
{
    uint32_t column = tile * KERN_PACK_ROWS;
    uint32_t rest = weight->rows - column;
    uint32_t out_count = rest < KERN_PACK_ROWS ? rest : KERN_PACK_ROWS;
    if (kern_pack_quant(weight->type) == KERN_QUANT_NONE) {
        size_t stride = kern_type_row_size_bytes(weight->type, weight->cols);
        kern_dot_args_t args = {
            .type = weight->type,
            .weights = (const uint8_t *)weight->data + column * stride,
            .weight_stride = stride,
            .cols = weight->cols,
            .input = self->input + first * self->input_stride,
            .input_stride = self->input_stride,
            .rows = count,
            .out_count = out_count,
            .out = target->out,
            .out_stride = target->out_stride,
            .bias = target->bias,
            .accumulate = target->accumulate,
        };
        self->table->dot(&args);
        return;
    }
    kern_quant_t kind = record_kind(self, weight->type);
    size_t record_stride = record_size_bytes(kind, weight->cols);
    kern_tile_args_t args = {
        .type = weight->type,
        .tile = packed,
        .cols = weight->cols,
        .records = self->records[kind] == NULL ? NULL : self->records[kind] + first * record_stride,
        .record_stride = self->records[kind] == NULL ? 0 : record_stride,
        .input = self->input + first * self->input_stride,
        .input_stride = self->input_stride,
        .rows = count,
        .out_count = out_count,
        .out = target->out,
        .out_stride = target->out_stride,
        .bias = target->bias,
        .accumulate = target->accumulate,
    };
    if (self->activations == KERN_ACTIVATIONS_INT8) {
        self->table->tile(&args);
    } else {
        self->table->tile_float(&args);
    }
}

/* The packed tile: in place, or made in `scratch`. */
static const uint8_t *
tile_bytes(const kern_weight_t *weight, uint32_t tile, uint8_t *scratch)
{
    if (kern_pack_quant(weight->type) == KERN_QUANT_NONE) {
        return NULL;
    }
    if (weight->packed) {
        return (const uint8_t *)weight->data +
               tile * kern_pack_layout(weight->type, weight->cols).size_bytes;
    }
    uint32_t row = tile * KERN_PACK_ROWS;
    uint32_t rest = weight->rows - row;
    const uint8_t *rows =
        (const uint8_t *)weight->data + row * kern_type_row_size_bytes(weight->type, weight->cols);
    kern_pack_tile(weight->type, rows, rest < KERN_PACK_ROWS ? rest : KERN_PACK_ROWS, weight->cols,
                   scratch);
    return scratch;
}

static uint32_t
tile_count(const kern_weight_t *weight)
{
    return (weight->rows + KERN_PACK_ROWS - 1) / KERN_PACK_ROWS;
}

/* Tiles of a claim: enough bytes to be worth it, yet many claims for long prompts. */
static uint32_t
tiles_of_chunk(const kern_weight_t *weight, uint32_t rows)
{
    if (rows >= 16) {
        return 2;
    }
    size_t tile_size_bytes = KERN_PACK_ROWS * kern_type_row_size_bytes(weight->type, weight->cols);
    size_t tiles = CHUNK_SIZE_BYTES / (tile_size_bytes > 0 ? tile_size_bytes : 1);
    return tiles < 1 ? 1 : tiles > CHUNK_TILES_MAX ? CHUNK_TILES_MAX : (uint32_t)tiles;
}

void
kern_linear_host(const void *args_void, kern_share_t *share)
{
    const kern_linear_args_t *args = args_void;
    if (args->rows == 0) {
        return;
    }
    require(args->weight_count >= 1 && args->weight_count <= KERN_LINEAR_WEIGHTS_MAX);
    product_t product = {
        .weights = args->weights,
        .weight_count = args->weight_count,
        .input = args->input,
        .input_stride = args->input_stride,
        .rows = args->rows,
        .activations = args->activations,
        .table = kern_table(share->path),
        .share = share,
    };
    prepare_input(&product, args->workspace, args->workspace_size_bytes);

    uint32_t chunk_counts[KERN_LINEAR_WEIGHTS_MAX] = {0};
    uint32_t per_block = 0; /* chunks for each block of rows */
    for (uint32_t i = 0; i < args->weight_count; i++) {
        uint32_t step = tiles_of_chunk(&args->weights[i], args->rows);
        chunk_counts[i] = (tile_count(&args->weights[i]) + step - 1) / step;
        per_block += chunk_counts[i];
    }
    uint32_t blocks = (args->rows + ROWS_OF_CHUNK - 1) / ROWS_OF_CHUNK;
    uint32_t total = blocks * per_block;
    for (uint32_t chunk = kern_share_claim(share); chunk < total; chunk = kern_share_claim(share)) {
        uint32_t first = chunk / per_block * ROWS_OF_CHUNK;
        uint32_t rest = args->rows - first;
        uint32_t at = chunk % per_block;
        uint32_t i = 0;
        while (i + 1 < args->weight_count && at >= chunk_counts[i]) {
            at -= chunk_counts[i];
            i++;
        }
        const kern_weight_t *weight = &args->weights[i];
        uint32_t step = tiles_of_chunk(weight, args->rows);
        for (uint32_t tile = at * step; tile < tile_count(weight) && tile < (at + 1) * step;
             tile++) {
            uint32_t column = tile * KERN_PACK_ROWS;
            target_t target = {
                .out = args->outputs[i] + first * args->output_strides[i] + column,
                .out_stride = args->output_strides[i],
                .bias = args->biases[i] != NULL ? args->biases[i] + column : NULL,
                .accumulate = args->accumulate,
            };
            run_tile(&product, weight, tile,
                     tile_bytes(weight, tile, (uint8_t *)share->scratch + PRIVATE_SIZE_BYTES),
                     first, rest < ROWS_OF_CHUNK ? rest : ROWS_OF_CHUNK, &target);
        }
    }
}

/* Gate and up of one tile go to the thread's scratch, then their product to the output. */
static void
gate_up_tile(const product_t *product, const kern_gate_up_args_t *args, uint32_t tile,
             uint32_t first, uint32_t count)
{
    float *gate = (float *)product->share->scratch + PRIVATE_SIZE_BYTES / sizeof(float);
    float *up = gate + ROWS_OF_CHUNK * KERN_PACK_ROWS;
    uint8_t *packed = (uint8_t *)(up + ROWS_OF_CHUNK * KERN_PACK_ROWS);
    uint32_t column = tile * KERN_PACK_ROWS;
    uint32_t rest = args->gate.rows - column;
    uint32_t out_count = rest < KERN_PACK_ROWS ? rest : KERN_PACK_ROWS;
    target_t gate_target = {gate, KERN_PACK_ROWS, NULL, false};
    target_t up_target = {up, KERN_PACK_ROWS, NULL, false};
    run_tile(product, &args->gate, tile, tile_bytes(&args->gate, tile, packed), first, count,
             &gate_target);
    run_tile(product, &args->up, tile, tile_bytes(&args->up, tile, packed), first, count,
             &up_target);
    const kern_table_t *table = product->table;
    for (uint32_t row = 0; row < count; row++) {
        float *out = args->output + (first + row) * args->output_stride + column;
        (args->bend == KERN_GATE_GELU_TANH ? table->gelu_mul_row
                                           : table->silu_mul_row)(gate + row * KERN_PACK_ROWS,
                                                                  up + row * KERN_PACK_ROWS, out,
                                                                  out_count);
    }
}

void
kern_gate_up_host(const void *args_void, kern_share_t *share)
{
    const kern_gate_up_args_t *args = args_void;
    if (args->rows == 0) {
        return;
    }
    require(args->gate.rows == args->up.rows);
    kern_weight_t weights[2] = {args->gate, args->up};
    product_t product = {
        .weights = weights,
        .weight_count = 2,
        .input = args->input,
        .input_stride = args->input_stride,
        .rows = args->rows,
        .activations = args->activations,
        .table = kern_table(share->path),
        .share = share,
    };
    prepare_input(&product, args->workspace, args->workspace_size_bytes);

    uint32_t step = (tiles_of_chunk(&args->gate, args->rows) + 1) / 2;
    uint32_t tiles = tile_count(&args->gate);
    uint32_t per_block = (tiles + step - 1) / step;
    uint32_t total = (args->rows + ROWS_OF_CHUNK - 1) / ROWS_OF_CHUNK * per_block;
    for (uint32_t chunk = kern_share_claim(share); chunk < total; chunk = kern_share_claim(share)) {
        uint32_t first = chunk / per_block * ROWS_OF_CHUNK;
        uint32_t rest = args->rows - first;
        uint32_t at = chunk % per_block * step;
        for (uint32_t tile = at; tile < tiles && tile < at + step; tile++) {
            gate_up_tile(&product, args, tile, first, rest < ROWS_OF_CHUNK ? rest : ROWS_OF_CHUNK);
        }
    }
}

size_t
kern_weight_packed_size_bytes(const kern_weight_t *weight)
{
    require(weight != NULL);
    if (kern_pack_quant(weight->type) == KERN_QUANT_NONE) {
        return 0;
    }
    return tile_count(weight) * kern_pack_layout(weight->type, weight->cols).size_bytes;
}

kern_weight_t
kern_weight_pack(const kern_weight_t *weight, void *out)
{
    require(weight != NULL && !weight->packed);
    require(out != NULL);
    require(kern_pack_quant(weight->type) != KERN_QUANT_NONE);
    require(weight->cols % kern_type_block_len(weight->type) == 0);
    size_t tile_size_bytes = kern_pack_layout(weight->type, weight->cols).size_bytes;
    for (uint32_t tile = 0; tile < tile_count(weight); tile++) {
        (void)tile_bytes(weight, tile, (uint8_t *)out + tile * tile_size_bytes);
    }
    kern_weight_t packed = *weight;
    packed.data = out;
    packed.packed = true;
    return packed;
}
