/* Windows, chunks and depths. */
#include "draft_mtp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "draft_frame.h"
#include "proto_codec.h"
#include "proto_require.h"

/* Where a slot's stash ends, as far as the host knows: prompts alone, since it does not know what a
 * decode round accepted. */
typedef struct {
    uint32_t end;
    uint32_t valid;
} mirror_t;

typedef struct {
    draft_t base; /* first */
    draft_frame_t frame;
    kern_draft_stash_t stash; /* device arrays */
    mirror_t *mirrors;        /* [slot_count + 1] */
    int32_t *window_ids;      /* device, [bs_max * width] */
    int32_t *window_positions;
    int32_t *window_counts;  /* [bs_max] */
    int32_t *window_last;    /* [bs_max]: the last row of each window, b * width + width - 1 */
    float *window_rows;      /* [bs_max * width][hidden] */
    int32_t *lead_ids;       /* [lead_rows_max] */
    int32_t *lead_positions; /* [lead_rows_max] */
    float *lead_rows;        /* [lead_rows_max][hidden] */
    int32_t *lead_cu_lens;   /* [bs_max + 1] */
    int32_t *lead_prefix_lens;
    int32_t *lead_lens;
    int32_t *lead_last;
    int32_t host_prefix_lens[PROTO_ROWS_MAX];
    int32_t host_lens[PROTO_ROWS_MAX];
} mtp_t;

typedef struct {
    void **memory_p;
    size_t count;
} part_t;

enum { PART_COUNT = 16 };

#define MIRROR_UNKNOWN UINT32_MAX

static uint32_t
lead_rows_max(const draft_options_t *o)
{
    return o->rows_max + o->bs_max * (o->width - 1);
}

static void
list_parts(mtp_t *self, part_t out[PART_COUNT])
{
    const draft_options_t *o = &self->frame.options;
    size_t hidden = self->frame.shape.hidden_cols;
    size_t slots = (size_t)o->slot_count + 2;
    size_t window = (size_t)o->bs_max * o->width;
    const part_t parts[PART_COUNT] = {
        {(void **)&self->stash.valid, slots},
        {(void **)&self->stash.end, slots},
        {(void **)&self->stash.tokens, slots * o->width},
        {(void **)&self->stash.hidden, slots * o->width * hidden},
        {(void **)&self->window_ids, window},
        {(void **)&self->window_positions, window},
        {(void **)&self->window_counts, o->bs_max},
        {(void **)&self->window_last, o->bs_max},
        {(void **)&self->window_rows, window * hidden},
        {(void **)&self->lead_ids, lead_rows_max(o)},
        {(void **)&self->lead_positions, lead_rows_max(o)},
        {(void **)&self->lead_rows, lead_rows_max(o) * hidden},
        {(void **)&self->lead_cu_lens, (size_t)o->bs_max + 1},
        {(void **)&self->lead_prefix_lens, o->bs_max},
        {(void **)&self->lead_lens, o->bs_max},
        {(void **)&self->lead_last, o->bs_max},
    };
    for (uint32_t i = 0; i < PART_COUNT; i++) {
        out[i] = parts[i];
    }
}

static void
mtp_destroy(draft_t *base)
{
    mtp_t *self = (mtp_t *)base;
    device_t *device = self->frame.options.device;
    part_t parts[PART_COUNT];
    list_parts(self, parts);
    draft_frame_fini(&self->frame);
    for (uint32_t i = 0; i < PART_COUNT; i++) {
        device_release(device, DEVICE_MEMORY_DEVICE, parts[i].memory_p);
    }
    free(self->mirrors);
    free(self);
}

/* The rows that every depth runs over, and where each request's proposal stands. */
typedef struct {
    backend_mode_t mode;
    uint32_t rows;
    uint32_t bs;
    const int32_t *cu_lens; /* NULL = windows */
    int32_t *ids;
    const int32_t *positions;
    const int32_t *last_rows;
    float *hidden;
    int32_t *candidates; /* [bs][width - 1] */
} pass_t;

static void
run_depths(mtp_t *self, const pass_t *pass, draft_room_t room)
{
    draft_frame_t *frame = &self->frame;
    const device_ops_t *ops = device_ops(frame->options.device);
    uint32_t vocabulary = model_config(frame->model)->vocab_size;
    for (uint32_t depth = 0; depth + 1 < frame->options.width; depth++) {
        model_draft_io_t io = {
            .hidden = pass->hidden,
            .hidden_stride = frame->shape.hidden_cols,
            .live_rows = pass->last_rows,
            .live_count = pass->bs,
            .hidden_out = pass->hidden,
            .wants_logits = true,
            .depth = depth,
        };
        model_context_t context = draft_frame_context(frame, pass->mode, pass->rows, room);
        context.input_ids = pass->ids;
        context.positions = pass->positions;
        context.logit_rows = pass->bs;
        context.draft = &io;
        kern_draft_argmax_args_t choose = {
            .logits = model_forward(frame->model, &context),
            .stride = vocabulary,
            .rows = pass->bs,
            .vocabulary = vocabulary,
            .ids = pass->candidates + depth,
            .id_stride = frame->options.width - 1,
            .copies = frame->buffers.next,
            .copy_stride = 1,
        };
        ops->draft_argmax(frame->options.stream, &choose);
        kern_draft_roll_args_t roll = {
            .cu_lens = pass->cu_lens,
            .width = frame->options.width,
            .bs = pass->bs,
            .next = frame->buffers.next,
            .ids = pass->ids,
        };
        ops->draft_roll(frame->options.stream, &roll);
    }
}

/* Windows in front of the frontiers: recorded, or run.  `step_lens` holds the frontiers of this
 * pass. */
static void
window_pass(mtp_t *self, uint32_t bs, int32_t *candidates, draft_room_t room)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    uint32_t width = frame->options.width;
    backend_update_draft_forward_metadata(frame->backend, b->step_lens, bs);
    kern_draft_lens_args_t starts = {.from = b->step_lens,
                                     .bs = bs,
                                     .add = -(int32_t)width,
                                     .repeat = 1,
                                     .floor = INT32_MIN,
                                     .to = b->step_positions};
    device_ops(frame->options.device)->draft_lens(frame->options.stream, &starts);
    backend_publish_draft_step_locations(frame->backend, b->step_positions, width, bs);
    backend_limit_draft_step_locations(frame->backend, self->window_counts, width, bs);
    pass_t pass = {
        .mode = BACKEND_MODE_DECODE,
        .rows = bs * width,
        .bs = bs,
        .ids = self->window_ids,
        .positions = self->window_positions,
        .last_rows = self->window_last,
        .hidden = self->window_rows,
        .candidates = candidates,
    };
    run_depths(self, &pass, room);
}

static void
decode_body(void *owner, uint32_t bs, draft_room_t room)
{
    mtp_t *self = owner;
    window_pass(self, bs, self->frame.buffers.candidates, room);
}

/* The decode requests of a round into the stash and out of it as windows. */
static void
launch_windows(mtp_t *self, const draft_round_t *round, uint32_t padded_bs)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    uint32_t extends = round->num_extends;
    uint32_t bs = round->bs - extends;
    kern_draft_window_args_t window = {
        .stash = self->stash,
        .slots = b->slots + extends,
        .bs = bs,
        .padded_bs = padded_bs,
        .round_width = round->width,
        .row_ids = b->ids,
        .live_rows = b->live_rows + extends,
        .frontier = b->frontier + extends,
        .first_row = round->rows - bs * round->width,
        .hidden = b->hidden,
        .ids = self->window_ids,
        .positions = self->window_positions,
        .counts = self->window_counts,
        .rows = self->window_rows,
    };
    device_ops(frame->options.device)->draft_window(frame->options.stream, &window);
    draft_frame_lens(frame, b->frontier + extends, 0, b->step_lens, padded_bs);
    for (uint32_t i = extends; i < round->bs; i++) {
        self->mirrors[round->slots_host[i]] = (mirror_t){.end = MIRROR_UNKNOWN};
    }
}

static proto_status_t
refresh_windows(mtp_t *self, const draft_round_t *round, uint32_t bs, bool is_graph)
{
    draft_frame_t *frame = &self->frame;
    uint32_t extends = round->num_extends;
    backend_tables_t tables = *round->tables;
    for (uint32_t g = 0; g < tables.group_count; g++) {
        if (tables.groups[g].blocks != NULL) {
            tables.groups[g].blocks += (size_t)extends * tables.groups[g].stride;
        }
    }
    backend_refresh_t refresh = {
        .bs = bs,
        .actual_bs = round->bs - extends,
        .request_slots = frame->buffers.slots + extends,
        .seq_lens = frame->buffers.step_lens,
        .mode = BACKEND_MODE_DECODE,
        .tables = &tables,
        .num_extends = 0,
        .for_graph_replay = is_graph,
    };
    return backend_refresh_decode_metadata(frame->backend, &refresh);
}

/* Rows that lead in front of a chunk, as the device counts them too. */
static uint32_t
host_lead(mtp_t *self, uint32_t slot, uint32_t prefix, uint32_t length)
{
    uint32_t width = self->frame.options.width;
    mirror_t *mirror = &self->mirrors[slot];
    uint32_t valid = mirror->end == prefix ? mirror->valid : 0;
    uint32_t lead = valid < width ? valid : width - 1;
    valid += length;
    *mirror = (mirror_t){.end = prefix + length, .valid = valid < width ? valid : width};
    return lead;
}

static proto_status_t
init_chunks(mtp_t *self, const draft_round_t *round, uint32_t *rows_p)
{
    static const int32_t no_facts[PROTO_ROWS_MAX];
    bool with_prefix = false;
    uint32_t count = round->num_extends;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = (uint32_t)round->extend_seq_lens_host[i];
        uint32_t prefix = (uint32_t)round->extend_prefix_lens_host[i];
        uint32_t lead = host_lead(self, round->slots_host[i], prefix, length);
        self->host_prefix_lens[i] = (int32_t)(prefix - lead);
        self->host_lens[i] = (int32_t)(length + lead);
        with_prefix = with_prefix || prefix > lead;
        rows += length + lead;
    }
    *rows_p = rows;
    backend_extend_t extend = {
        .bs = count,
        .num_extends = count,
        .request_slots = self->frame.buffers.slots,
        .seq_lens = round->seq_lens,
        .mode = BACKEND_MODE_EXTEND,
        .tables = round->tables,
        .extend_seq_lens = self->lead_lens,
        .extend_prefix_lens = self->lead_prefix_lens,
        .extend_cu_lens = self->lead_cu_lens,
        .extend_seq_lens_host = self->host_lens,
        .extend_prefix_lens_host = self->host_prefix_lens,
        .extend_replay_lens_host = no_facts,
        .extend_prompt_lens_host = no_facts,
        .extend_with_prefix = with_prefix,
    };
    return backend_init_forward_metadata(self->frame.backend, &extend);
}

static proto_status_t
chunk_pass(mtp_t *self, const draft_round_t *round)
{
    draft_frame_t *frame = &self->frame;
    draft_buffers_t *b = &frame->buffers;
    kern_draft_lead_args_t lead = {
        .stash = self->stash,
        .slots = b->slots,
        .prefix_lens = round->extend_prefix_lens,
        .cu_lens = round->extend_cu_lens,
        .count = round->num_extends,
        .row_ids = b->ids,
        .hidden = b->hidden,
        .lead_cu_lens = self->lead_cu_lens,
        .lead_prefix_lens = self->lead_prefix_lens,
        .lead_lens = self->lead_lens,
        .last_rows = self->lead_last,
        .ids = self->lead_ids,
        .positions = self->lead_positions,
        .rows = self->lead_rows,
    };
    device_ops(frame->options.device)->draft_lead(frame->options.stream, &lead);
    uint32_t rows = 0;
    proto_status_t status = init_chunks(self, round, &rows);
    if (status != STATUS_OK) {
        return status;
    }
    pass_t pass = {
        .mode = BACKEND_MODE_EXTEND,
        .rows = rows,
        .bs = round->num_extends,
        .cu_lens = self->lead_cu_lens,
        .ids = self->lead_ids,
        .positions = self->lead_positions,
        .last_rows = self->lead_last,
        .hidden = self->lead_rows,
        .candidates = b->candidates,
    };
    run_depths(self, &pass, frame->room);
    return STATUS_OK;
}

static void
forget(mtp_t *self, uint32_t slot)
{
    self->mirrors[slot] = (mirror_t){.end = 0};
    kern_fill_args_t args = {.to = self->stash.valid + slot, .size_bytes = sizeof(int32_t)};
    device_ops(self->frame.options.device)->fill(self->frame.options.stream, &args);
}

static proto_status_t
mtp_propose(draft_t *base, const draft_round_t *round, draft_proposal_t *out)
{
    mtp_t *self = (mtp_t *)base;
    draft_frame_t *frame = &self->frame;
    uint32_t extends = round->num_extends;
    uint32_t bs = 0;
    bool is_graph = false;
    for (uint32_t i = 0; i < extends; i++) {
        if (self->mirrors[round->slots_host[i]].end == MIRROR_UNKNOWN) {
            forget(self, round->slots_host[i]); /* both sides must count the same rows */
        }
    }
    draft_frame_begin(frame, round, true, &bs, &is_graph);
    proto_status_t status = extends > 0 ? chunk_pass(self, round) : STATUS_OK;
    if (status == STATUS_OK && round->bs > extends) {
        uint32_t count = is_graph ? bs : round->bs - extends;
        launch_windows(self, round, count);
        status = refresh_windows(self, round, count, is_graph);
        if (status == STATUS_OK && is_graph) {
            status = draft_frame_replay(frame, count);
        } else if (status == STATUS_OK) {
            size_t first = (size_t)extends * (frame->options.width - 1);
            window_pass(self, count, frame->buffers.candidates + first, frame->room);
        }
    }
    if (status == STATUS_OK) {
        draft_frame_finish(frame, round->bs, out);
    }
    return status;
}

/* Nothing of an earlier request leads in front of this one's prompt. */
static void
mtp_begin(draft_t *base, uint32_t slot, const int32_t *tokens, uint32_t token_count)
{
    (void)tokens;
    (void)token_count;
    forget((mtp_t *)base, slot);
}

static proto_status_t
mtp_set_cache_pool(draft_t *base, const cache_pool_t *pool)
{
    return draft_frame_set_cache_pool(&((mtp_t *)base)->frame, pool);
}

static proto_status_t
mtp_init_graph_state(draft_t *base)
{
    return draft_frame_init_graph_state(&((mtp_t *)base)->frame);
}

static proto_status_t
mtp_capture(draft_t *base)
{
    return draft_frame_capture(&((mtp_t *)base)->frame);
}

static const draft_vtable_t mtp_vtable = {
    .destroy = mtp_destroy,
    .set_cache_pool = mtp_set_cache_pool,
    .init_graph_state = mtp_init_graph_state,
    .capture = mtp_capture,
    .begin = mtp_begin,
    .propose = mtp_propose,
};

static proto_status_t
alloc_parts(mtp_t *self)
{
    const draft_options_t *o = &self->frame.options;
    part_t parts[PART_COUNT];
    list_parts(self, parts);
    self->mirrors = calloc((size_t)o->slot_count + 1, sizeof *self->mirrors);
    int32_t *last = calloc(o->bs_max, sizeof *last);
    proto_status_t status =
        self->mirrors == NULL || last == NULL ? STATUS_ERR_NO_MEMORY : STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < PART_COUNT; i++) {
        status = device_alloc(o->device, DEVICE_MEMORY_DEVICE, parts[i].count * sizeof(int32_t),
                              parts[i].memory_p);
    }
    for (uint32_t b = 0; last != NULL && b < o->bs_max; b++) {
        last[b] = (int32_t)((b + 1) * o->width - 1);
    }
    if (status == STATUS_OK) {
        status = device_upload(o->device, self->window_last, last, o->bs_max * sizeof *last);
    }
    free(last);
    self->stash.width = o->width;
    self->stash.cols = self->frame.shape.hidden_cols;
    return status;
}

proto_status_t
draft_mtp_new(const draft_options_t *options, const draft_target_t *target, model_t **model_p,
              draft_t **out_p)
{
    const file_config_t *c = model_config(*model_p);
    if (c->layer_count + 1 < options->width) {
        if (options->error != NULL) {
            (void)snprintf(options->error, options->error_size_bytes,
                           "the draft has %" PRIu32 " depths, a width of %" PRIu32
                           " needs %" PRIu32,
                           c->layer_count, options->width, options->width - 1);
        }
        return STATUS_ERR_CONFIG;
    }
    mtp_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.vtable = &mtp_vtable;
    draft_frame_shape_t shape = {
        .rows = lead_rows_max(options),
        .logit_rows = options->bs_max,
        .hidden_cols = c->hidden_size,
        .decode_body = decode_body,
        .owner = self,
    };
    proto_status_t status = draft_frame_init(&self->frame, options, &shape, model_p);
    if (status == STATUS_OK) {
        status = alloc_parts(self);
    }
    if (status != STATUS_OK) {
        draft_t *base = &self->base;
        draft_destroy(&base);
        return status;
    }
    draft_frame_fill_base(&self->frame, target, &self->base);
    *out_p = &self->base;
    return STATUS_OK;
}
