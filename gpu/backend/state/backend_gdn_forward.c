/* The state backend: metadata of a forward, its layers, and the commit after verification. */
#include <string.h>

#include "backend_gdn_private.h"
#include "proto_require.h"

static device_stream_t *
stream_of(const gdn_t *self)
{
    return self->base.options.stream;
}

static const device_ops_t *
ops_of(const gdn_t *self)
{
    return device_ops(self->base.options.device);
}

/* ---- metadata ---------------------------------------------------------------------------------
 */

/* A descriptor of the group's table from a request of the batch on, good until
 * GDN_TABLES_IN_FLIGHT_MAX - 1 more were taken.  A live batch without the table is refused. */
static proto_status_t
take_table(gdn_t *self, const backend_tables_t *tables, uint32_t first, uint32_t actual_bs,
           const kern_state_group_t **out)
{
    uint32_t group = self->geometry.group;
    bool is_delivered = group < tables->group_count && tables->groups[group].blocks != NULL;
    if (actual_bs > 0 && !is_delivered) {
        return STATUS_ERR_INVALID;
    }
    kern_state_group_t *table = &self->tables[self->table_count++ % GDN_TABLES_IN_FLIGHT_MAX];
    *table = (kern_state_group_t){
        .block_count = cache_plan_page_count(self->base.pool.plan, group),
        .granularity = self->geometry.granularity,
    };
    if (is_delivered) {
        table->blocks = tables->groups[group].blocks + (size_t)first * tables->groups[group].stride;
        table->block_stride = tables->groups[group].stride;
        table->block_columns = tables->groups[group].columns;
    }
    *out = table;
    return STATUS_OK;
}

/* Reads the rows from `first` on: requests of one kind lie together in a batch. */
typedef struct {
    const kern_state_group_t *table;
    const gdn_index_t *index;
    const int32_t *seq_lens;    /* of the whole batch */
    const int32_t *extend_lens; /* NULL = decodes of the node's width */
    uint32_t first;
    uint32_t bs;
    uint32_t actual_bs;
} blocks_t;

static void
launch_blocks(const gdn_t *self, const blocks_t *blocks)
{
    const gdn_index_t *index = blocks->index;
    kern_state_blocks_args_t args = {
        .groups = blocks->table,
        .group_count = 1,
        .seq_lens = blocks->seq_lens + blocks->first,
        .extend_lens = blocks->extend_lens,
        .width = self->base.options.width,
        .bs = blocks->bs,
        .actual_bs = blocks->actual_bs,
        .in_blocks = index->in_blocks + blocks->first,
        .out_blocks = index->out_blocks + blocks->first,
        .began_lens = index->began_lens + blocks->first,
        .seeds = index->seeds + blocks->first,
    };
    ops_of(self)->state_blocks(stream_of(self), &args);
}

static bool
keeps_scratch(const gdn_t *self)
{
    return self->base.options.width > 1 && self->options.keeps_states;
}

/* Brings the states before a verification into its scratch, for all layers at once. */
static void
launch_seeds(const gdn_t *self, const gdn_index_t *index, uint32_t first, uint32_t bs)
{
    kern_state_copy_args_t args = {
        .fields = self->seed_fields,
        .field_count = 2 * self->geometry.layer_count,
        .from_rows = index->in_blocks + first,
        .to_rows = index->seeds + first,
        .count = bs,
        .zero_fresh = 1,
    };
    require(self->verify_layers != NULL);
    ops_of(self)->state_copy(stream_of(self), &args);
}

static const gdn_decode_view_t *
decode_view(gdn_t *self, uint32_t bs)
{
    gdn_decode_view_t *view = &self->decode_views_by_bs[bs];
    if (view->bs == 0) {
        view->index = self->decode;
        view->bs = bs;
    }
    return view;
}

proto_status_t
backend_gdn_refresh(backend_t *base, const backend_refresh_t *refresh)
{
    gdn_t *self = (gdn_t *)base;
    const kern_state_group_t *table;
    proto_status_t status = take_table(self, refresh->tables, 0, refresh->actual_bs, &table);
    if (status != STATUS_OK) {
        return status;
    }
    self->decode_table = table;
    self->forward_decode_metadata = decode_view(self, refresh->bs);
    blocks_t blocks = {
        .table = table,
        .index = &self->forward_decode_metadata->index,
        .seq_lens = refresh->seq_lens,
        .bs = refresh->bs,
        .actual_bs = refresh->actual_bs,
    };
    launch_blocks(self, &blocks);
    if (keeps_scratch(self)) {
        launch_seeds(self, blocks.index, 0, refresh->bs);
    }
    return STATUS_OK;
}

/* What the extends go on from, brought to the blocks where they work; and the programs of the
 * convolution, which every layer reads. */
static void
stage_extends(gdn_t *self, const gdn_prefill_metadata_t *metadata)
{
    kern_state_stage_args_t stage = {
        .fields = self->stage_fields,
        .field_count = self->geometry.layer_count,
        .in_blocks = self->prefill.in_blocks,
        .out_blocks = self->prefill.out_blocks,
        .group_count = 1,
        .count = metadata->num_extends,
        .block_count = metadata->table->block_count,
        .resumed = self->resumed,
    };
    ops_of(self)->state_stage(stream_of(self), &stage);
    kern_conv_programs_args_t programs = {
        .cu_rows = metadata->cu_rows,
        .request_count = metadata->num_extends,
        .program_count = metadata->program_count,
        .requests = self->requests,
        .chunks = self->chunks,
    };
    ops_of(self)->conv_programs(stream_of(self), &programs);
}

proto_status_t
backend_gdn_init_forward(backend_t *base, const backend_extend_t *extend)
{
    gdn_t *self = (gdn_t *)base;
    proto_status_t status = backend_reject_bounded_replay(extend);
    if (status != STATUS_OK) {
        return status;
    }
    bool is_idle = extend->mode == BACKEND_MODE_IDLE;
    uint32_t decodes = extend->bs - extend->num_extends;
    gdn_prefill_metadata_t metadata = {
        .cu_rows = extend->extend_cu_lens,
        .bs = extend->bs,
        .num_extends = extend->num_extends,
    };
    for (uint32_t i = 0; i < extend->num_extends; i++) {
        metadata.extend_tokens += (uint32_t)extend->extend_seq_lens_host[i];
    }
    if (metadata.extend_tokens > base->options.step_tokens_max) {
        return STATUS_ERR_INVALID;
    }
    uint32_t live = is_idle ? 0 : extend->bs;
    status = take_table(self, extend->tables, 0, live, &metadata.table);
    if (status == STATUS_OK) {
        status =
            take_table(self, extend->tables, extend->num_extends, live, &metadata.decode_table);
    }
    if (status != STATUS_OK) {
        return status;
    }
    metadata.program_count = kern_conv_program_count(metadata.extend_tokens, metadata.num_extends);
    blocks_t blocks = {
        .table = metadata.table,
        .index = &self->prefill,
        .seq_lens = extend->seq_lens,
        .extend_lens = extend->extend_seq_lens,
        .bs = extend->num_extends,
        .actual_bs = is_idle ? 0 : extend->num_extends,
    };
    if (extend->num_extends > 0) {
        launch_blocks(self, &blocks);
        stage_extends(self, &metadata);
    }
    if (decodes > 0) {
        blocks.table = metadata.decode_table;
        blocks.extend_lens = NULL;
        blocks.first = extend->num_extends;
        blocks.bs = decodes;
        blocks.actual_bs = is_idle ? 0 : decodes;
        launch_blocks(self, &blocks);
        if (keeps_scratch(self)) {
            launch_seeds(self, &self->prefill, extend->num_extends, decodes);
        }
    }
    self->forward_prefill_metadata = metadata;
    return STATUS_OK;
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Rows of one layer from `first_row` on: the arguments that all operations share. */
typedef struct {
    kern_conv_t conv;
    kern_gdn_t gdn;
} layer_rows_t;

static layer_rows_t
rows_from(const gdn_t *self, const backend_recurrent_t *forward, uint32_t first_row)
{
    const backend_gdn_options_t *o = &self->options;
    size_t row = first_row;
    layer_rows_t rows = {
        .conv =
            {
                .weight = forward->conv_weight,
                .bias = NULL,
                .width = o->conv_width,
                .channels = gdn_channels(o),
                .silu = true,
                .input = forward->qkv + row * forward->qkv_stride,
                .input_stride = forward->qkv_stride,
                .output = forward->mixed + row * forward->mixed_stride,
                .output_stride = forward->mixed_stride,
            },
        .gdn =
            {
                .qkv = forward->mixed + row * forward->mixed_stride,
                .qkv_stride = forward->mixed_stride,
                .a = forward->a + row * forward->a_stride,
                .a_stride = forward->a_stride,
                .b = forward->b + row * forward->b_stride,
                .b_stride = forward->b_stride,
                .rate = forward->rate,
                .dt_bias = forward->dt_bias,
                .k_heads = o->k_heads,
                .v_heads = o->v_heads,
                .k_dim = o->k_dim,
                .v_dim = o->v_dim,
                .output = forward->output + row * forward->output_stride,
                .output_stride = forward->output_stride,
            },
    };
    return rows;
}

static void
forward_extends(const gdn_t *self, const gdn_layer_t *layer, const layer_rows_t *rows)
{
    const gdn_prefill_metadata_t *metadata = &self->forward_prefill_metadata;
    kern_conv_prefill_args_t conv = {
        .conv = rows->conv,
        .cache = layer->windows,
        .cu_rows = metadata->cu_rows,
        .in_blocks = self->resumed,
        .out_blocks = self->prefill.out_blocks,
        .request_count = metadata->num_extends,
        .program_count = metadata->program_count,
        .requests = self->requests,
        .chunks = self->chunks,
    };
    ops_of(self)->conv_prefill(stream_of(self), &conv);
    kern_gdn_prefill_args_t gdn = {
        .gdn = rows->gdn,
        .cache = layer->states,
        .cu_rows = metadata->cu_rows,
        .prefix_lens = self->prefill.began_lens,
        .in_blocks = self->resumed,
        .out_blocks = self->prefill.out_blocks,
        .request_count = metadata->num_extends,
    };
    ops_of(self)->gdn_prefill(stream_of(self), &gdn);
}

/* N rows of each request; `out_blocks` NULL = states are only read. */
static void
forward_blocks(const gdn_t *self, const gdn_layer_t *layer, const layer_rows_t *rows,
               const gdn_index_t *index, uint32_t bs)
{
    uint32_t width = self->base.options.width;
    kern_conv_decode_args_t conv = {
        .conv = rows->conv,
        .cache = layer->windows,
        .in_blocks = index->in_blocks,
        .out_blocks = index->out_blocks,
        .bs = bs,
        .rows_per_request = width,
    };
    ops_of(self)->conv_decode(stream_of(self), &conv);
    kern_gdn_decode_args_t gdn = {
        .gdn = rows->gdn,
        .cache = layer->states,
        .in_blocks = index->in_blocks,
        .out_blocks = index->out_blocks,
        .bs = bs,
        .rows_per_request = width,
    };
    ops_of(self)->gdn_decode(stream_of(self), &gdn);
}

static void
forward_scratch(const gdn_t *self, const gdn_verify_layer_t *verify, const layer_rows_t *rows,
                const gdn_index_t *index, uint32_t bs)
{
    uint32_t width = self->base.options.width;
    uint32_t row_count = self->base.options.bs_max * (width + 1);
    kern_conv_verify_args_t conv = {
        .conv = rows->conv,
        .scratch = {.windows = verify->windows,
                    .block_stride = gdn_window_floats(&self->options),
                    .block_count = row_count},
        .seeds = index->seeds,
        .bs = bs,
        .rows_per_request = width,
    };
    ops_of(self)->conv_verify(stream_of(self), &conv);
    kern_gdn_verify_args_t gdn = {
        .gdn = rows->gdn,
        .scratch = {.states = verify->states,
                    .block_stride = gdn_state_floats(&self->options),
                    .block_count = row_count},
        .seeds = index->seeds,
        .bs = bs,
        .rows_per_request = width,
    };
    ops_of(self)->gdn_verify(stream_of(self), &gdn);
}

static void
save(const gdn_t *self, const float *from, size_t stride, float *to, uint32_t rows, uint32_t cols)
{
    kern_heads_copy_args_t args = {
        .input = from,
        .input_stride = stride,
        .input_head_stride = cols,
        .output = to,
        .output_stride = cols,
        .output_head_stride = cols,
        .rows = rows,
        .heads = 1,
        .head_dim = cols,
    };
    ops_of(self)->heads_copy(stream_of(self), &args);
}

/* States are only read, and the rows kept for the commit. */
static void
forward_kept_rows(const gdn_t *self, const gdn_layer_t *layer, layer_rows_t *rows,
                  const gdn_index_t *index, uint32_t bs)
{
    gdn_verify_layer_t *verify = &self->verify_layers[layer - self->layers];
    uint32_t count = bs * self->base.options.width;
    uint32_t channels = rows->conv.channels;
    gdn_index_t reading = *index;
    verify->rate = rows->gdn.rate;
    verify->dt_bias = rows->gdn.dt_bias;
    reading.out_blocks = NULL;
    save(self, rows->conv.input, rows->conv.input_stride, verify->inputs, count, channels);
    save(self, rows->gdn.a, rows->gdn.a_stride, verify->a, count, self->options.v_heads);
    save(self, rows->gdn.b, rows->gdn.b_stride, verify->b, count, self->options.v_heads);
    rows->conv.output = verify->mixed;
    rows->conv.output_stride = channels;
    rows->gdn.qkv = verify->mixed;
    rows->gdn.qkv_stride = channels;
    forward_blocks(self, layer, rows, &reading, bs);
}

static void
forward_decodes(const gdn_t *self, const gdn_layer_t *layer, layer_rows_t *rows,
                const gdn_index_t *index, uint32_t bs)
{
    if (self->base.options.width == 1) {
        forward_blocks(self, layer, rows, index, bs);
        return;
    }
    require(self->verify_layers != NULL);
    if (keeps_scratch(self)) {
        forward_scratch(self, &self->verify_layers[layer - self->layers], rows, index, bs);
    } else {
        forward_kept_rows(self, layer, rows, index, bs);
    }
}

void
backend_gdn_forward(backend_t *base, const backend_recurrent_t *forward)
{
    const gdn_t *self = (const gdn_t *)base;
    uint32_t state = self->state_of_layer[forward->layer];
    require(state < self->geometry.layer_count);
    const gdn_layer_t *layer = &self->layers[state];
    if (forward->mode == BACKEND_MODE_DECODE) {
        const gdn_decode_view_t *view = self->forward_decode_metadata;
        require(view != NULL);
        require(forward->rows == view->bs * base->options.width);
        layer_rows_t rows = rows_from(self, forward, 0);
        forward_decodes(self, layer, &rows, &view->index, view->bs);
        return;
    }
    const gdn_prefill_metadata_t *metadata = &self->forward_prefill_metadata;
    uint32_t decodes = metadata->bs - metadata->num_extends;
    require(forward->rows == metadata->extend_tokens + decodes * base->options.width);
    if (metadata->num_extends > 0) {
        layer_rows_t rows = rows_from(self, forward, 0);
        forward_extends(self, layer, &rows);
    }
    if (decodes > 0) {
        layer_rows_t rows = rows_from(self, forward, metadata->extend_tokens);
        gdn_index_t index = self->prefill;
        index.in_blocks += metadata->num_extends;
        index.out_blocks += metadata->num_extends;
        index.seeds += metadata->num_extends;
        forward_decodes(self, layer, &rows, &index, decodes);
    }
}

/* ---- commit -----------------------------------------------------------------------------------
 */

/* Runs the accepted rows again, from the block before them to the block of the accepted state. */
static void
replay_rows(const gdn_t *self, const int32_t *in_blocks, uint32_t bs)
{
    const backend_gdn_options_t *o = &self->options;
    uint32_t channels = gdn_channels(o);
    for (uint32_t i = 0; i < self->geometry.layer_count; i++) {
        const gdn_layer_t *layer = &self->layers[i];
        const gdn_verify_layer_t *verify = &self->verify_layers[i];
        kern_conv_replay_args_t conv = {
            .conv = {.width = o->conv_width,
                     .channels = channels,
                     .silu = true,
                     .input = verify->inputs,
                     .input_stride = channels},
            .cache = layer->windows,
            .in_blocks = in_blocks,
            .out_blocks = self->pages,
            .accept_lengths = self->accepted,
            .bs = bs,
            .rows_per_request = self->base.options.width,
        };
        ops_of(self)->conv_replay(stream_of(self), &conv);
        kern_gdn_replay_args_t gdn = {
            .gdn = {.qkv = verify->mixed,
                    .qkv_stride = channels,
                    .a = verify->a,
                    .a_stride = o->v_heads,
                    .b = verify->b,
                    .b_stride = o->v_heads,
                    .rate = verify->rate,
                    .dt_bias = verify->dt_bias,
                    .k_heads = o->k_heads,
                    .v_heads = o->v_heads,
                    .k_dim = o->k_dim,
                    .v_dim = o->v_dim},
            .cache = layer->states,
            .in_blocks = in_blocks,
            .out_blocks = self->pages,
            .accept_lengths = self->accepted,
            .bs = bs,
            .rows_per_request = self->base.options.width,
        };
        ops_of(self)->gdn_replay(stream_of(self), &gdn);
    }
}

static void
copy_rows(const gdn_t *self, const int32_t *seeds, uint32_t bs)
{
    kern_state_verify_commit_rows_args_t rows = {
        .pages = self->pages,
        .accepted = self->accepted,
        .seeds = seeds,
        .layer_groups = self->layer_groups,
        .layer_count = self->geometry.layer_count,
        .bs = bs,
        .from_rows = self->from_rows,
        .to_rows = self->to_rows,
    };
    ops_of(self)->state_verify_commit_rows(stream_of(self), &rows);
    kern_state_copy_args_t copy = {
        .fields = self->commit_fields,
        .field_count = 2 * self->geometry.layer_count,
        .from_rows = self->from_rows,
        .to_rows = self->to_rows,
        .count = bs,
        .zero_fresh = 0,
    };
    ops_of(self)->state_copy(stream_of(self), &copy);
}

void
backend_gdn_commit(backend_t *base, const int32_t *accept_lengths, uint32_t bs,
                   uint32_t num_extends)
{
    gdn_t *self = (gdn_t *)base;
    require(self->verify_layers != NULL);
    bool is_decode = num_extends == 0;
    const gdn_index_t *index = is_decode ? &self->decode : &self->prefill;
    kern_commit_state_pages_args_t pages = {
        .groups = is_decode ? self->decode_table : self->forward_prefill_metadata.decode_table,
        .group_count = 1,
        .committed_lens = index->began_lens + num_extends,
        .accept_lengths = accept_lengths,
        .width = base->options.width,
        .bs = bs,
        .accepted = self->accepted,
        .pages = self->pages,
    };
    require(pages.groups != NULL);
    ops_of(self)->commit_state_pages(stream_of(self), &pages);
    if (self->options.keeps_states) {
        copy_rows(self, index->seeds + num_extends, bs);
    } else {
        replay_rows(self, index->in_blocks + num_extends, bs);
    }
}
