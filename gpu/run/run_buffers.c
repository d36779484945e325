/* Input buffers and staging. */
#include "run_buffers.h"

#include <string.h>

#include "proto_require.h"

enum { ALIGN_COUNT = DEVICE_MEMORY_ALIGN / sizeof(int32_t) };

typedef struct {
    int32_t **pointer_p;
    size_t count;
} part_t;

/* Hands out aligned parts of a run of int32; with NULL memory it only counts. */
static size_t
carve(int32_t *memory, const part_t *parts, size_t part_count)
{
    size_t at = 0;
    for (size_t i = 0; i < part_count; i++) {
        *parts[i].pointer_p = memory == NULL ? NULL : memory + at;
        at += (parts[i].count + ALIGN_COUNT - 1) / ALIGN_COUNT * ALIGN_COUNT;
    }
    return at;
}

static size_t
carve_header(run_header_t *header, int32_t *memory, const run_buffers_options_t *o)
{
    const part_t parts[] = {
        {&header->slots, o->bs_max},          {&header->prefix_lens, o->bs_max},
        {&header->extend_lens, o->bs_max},    {&header->cu_lens, (size_t)o->bs_max + 1},
        {&header->sample_indices, o->bs_max}, {&header->sample_slots, o->bs_max},
        {&header->sample_lens, o->bs_max},    {&header->gather_rows, (size_t)o->bs_max * o->width},
        {&header->next_ids, o->bs_max},
    };
    return carve(memory, parts, sizeof parts / sizeof *parts);
}

static size_t
carve_stage(const run_buffers_t *self, run_stage_t *stage, int32_t *memory)
{
    const run_buffers_options_t *o = &self->options;
    size_t at = carve_header(&stage->header, memory, o);
    const part_t parts[] = {
        {&stage->input_ids, o->step_tokens_max},
        {&stage->tables, self->table_count_max},
        {&stage->clear_groups, o->clear_count_max},
        {&stage->clear_blocks, o->clear_count_max},
    };
    return at + carve(memory == NULL ? NULL : memory + at, parts, sizeof parts / sizeof *parts);
}

static size_t
carve_device(run_buffers_t *self, int32_t *memory)
{
    const run_buffers_options_t *o = &self->options;
    size_t at = carve_header(&self->header, memory, o);
    const part_t parts[] = {
        {&self->input_ids, o->step_tokens_max},
        {&self->positions, o->step_tokens_max},
        {&self->seq_lens, o->bs_max},
        {&self->request_slots, o->bs_max},
        {&self->write_slots, o->bs_max},
        {&self->tables, self->table_count_max},
        {&self->placeholder, self->table_count_max},
        {&self->valid_lengths, (size_t)o->slot_count + 2},
        {&self->future_inputs, ((size_t)o->slot_count + 2) * o->width},
    };
    return at + carve(memory == NULL ? NULL : memory + at, parts, sizeof parts / sizeof *parts);
}

static proto_status_t
init_stage(run_buffers_t *self, run_stage_t *stage)
{
    const run_buffers_options_t *o = &self->options;
    size_t size_bytes = carve_stage(self, stage, NULL) * sizeof(int32_t);
    struct {
        size_t size_bytes;
        void **memory_p;
    } wanted[] = {
        {size_bytes, (void **)&stage->memory},
        {o->output_region_bytes, &stage->outputs},
        {o->logprob_count * sizeof(int32_t), (void **)&stage->logprob_ids},
        {o->logprob_count * sizeof(float), (void **)&stage->logprob_values},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        proto_status_t status =
            device_alloc(o->device, DEVICE_MEMORY_PINNED, wanted[i].size_bytes, wanted[i].memory_p);
        if (status != STATUS_OK) {
            return status;
        }
        self->size_bytes += wanted[i].size_bytes;
    }
    (void)carve_stage(self, stage, stage->memory);
    return STATUS_OK;
}

proto_status_t
run_buffers_init(run_buffers_t *self, const run_buffers_options_t *options)
{
    memset(self, 0, sizeof *self);
    self->options = *options;
    for (uint32_t g = 0; g < options->group_count; g++) {
        self->table_count_max += (size_t)options->bs_max * options->columns_max[g];
    }
    self->header_count = carve_header(&self->header, NULL, options);
    size_t size_bytes = carve_device(self, NULL) * sizeof(int32_t);
    proto_status_t status = device_alloc(options->device, DEVICE_MEMORY_DEVICE, size_bytes,
                                         (void **)&self->device_memory);
    if (status == STATUS_OK) {
        (void)carve_device(self, self->device_memory);
        self->size_bytes += size_bytes;
    }
    for (uint32_t i = 0; status == STATUS_OK && i < RUN_STAGE_COUNT; i++) {
        status = init_stage(self, &self->stages[i]);
    }
    if (status != STATUS_OK) {
        run_buffers_fini(self);
    }
    return status;
}

void
run_buffers_fini(run_buffers_t *self)
{
    device_t *device = self->options.device;
    if (device == NULL) {
        return;
    }
    for (uint32_t i = 0; i < RUN_STAGE_COUNT; i++) {
        run_stage_t *stage = &self->stages[i];
        device_release(device, DEVICE_MEMORY_PINNED, (void **)&stage->memory);
        device_release(device, DEVICE_MEMORY_PINNED, &stage->outputs);
        device_release(device, DEVICE_MEMORY_PINNED, (void **)&stage->logprob_ids);
        device_release(device, DEVICE_MEMORY_PINNED, (void **)&stage->logprob_values);
    }
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->device_memory);
}

int32_t
run_buffers_sink(const run_buffers_t *self)
{
    return (int32_t)self->options.slot_count + 1;
}

backend_tables_t
run_buffers_placeholder_tables(const run_buffers_t *self)
{
    backend_tables_t tables = {.group_count = self->options.group_count};
    size_t at = 0;
    for (uint32_t g = 0; g < tables.group_count; g++) {
        tables.groups[g].blocks = self->placeholder + at;
        tables.groups[g].stride = self->options.columns_max[g];
        tables.groups[g].columns = self->options.columns_max[g];
        at += (size_t)self->options.bs_max * self->options.columns_max[g];
    }
    return tables;
}

void
run_buffers_copy(const run_buffers_t *self, void *to, const void *from, size_t size_bytes)
{
    if (size_bytes == 0) {
        return;
    }
    kern_copy_args_t args = {.from = from, .to = to, .size_bytes = size_bytes};
    device_ops(self->options.device)->copy(self->options.stream, &args);
}

/* One packed run for all groups and one upload; each group's rows are as wide as its widest row in
 * this batch. */
backend_tables_t
run_buffers_upload_tables(run_buffers_t *self, run_stage_t *stage, const run_tables_t *tables,
                          uint32_t bs)
{
    backend_tables_t out = {.group_count = self->options.group_count};
    size_t at = 0;
    for (uint32_t g = 0; g < out.group_count; g++) {
        uint32_t columns = run_tables_columns(tables, g, stage->header.slots, bs);
        run_tables_pack(tables, g, stage->header.slots, bs, columns, stage->tables + at);
        out.groups[g].blocks = self->tables + at;
        out.groups[g].stride = columns;
        out.groups[g].columns = columns;
        at += (size_t)bs * columns;
    }
    require(at <= self->table_count_max);
    run_buffers_copy(self, self->tables, stage->tables, at * sizeof(int32_t));
    return out;
}

void
run_buffers_upload(run_buffers_t *self, const run_stage_t *stage, uint32_t token_count)
{
    run_buffers_copy(self, self->header.slots, stage->header.slots,
                     self->header_count * sizeof(int32_t));
    run_buffers_copy(self, self->input_ids, stage->input_ids, token_count * sizeof(int32_t));
}

void
run_buffers_poison_tails(run_buffers_t *self, uint32_t bs, uint32_t width)
{
    const run_buffers_options_t *o = &self->options;
    size_t rows = (size_t)bs * width;
    struct {
        int32_t *memory;
        size_t first;
        size_t count;
    } tails[] = {
        {self->input_ids, rows, o->step_tokens_max},
        {self->positions, rows, o->step_tokens_max},
        {self->seq_lens, bs, o->bs_max},
        {self->request_slots, bs, o->bs_max},
        {self->write_slots, bs, o->bs_max},
    };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        if (tails[i].first < tails[i].count) {
            kern_fill_args_t args = {
                .to = tails[i].memory + tails[i].first,
                .size_bytes = (tails[i].count - tails[i].first) * sizeof(int32_t),
                .value = 0x7f,
            };
            device_ops(o->device)->fill(o->stream, &args);
        }
    }
}

void
run_buffers_fill_extend(run_buffers_t *self, uint32_t extends)
{
    kern_extend_fill_args_t args = {
        .staged_slots = self->header.slots,
        .prefix_lens = self->header.prefix_lens,
        .extend_lens = self->header.extend_lens,
        .request_count = extends,
        .token_count_max = self->options.step_tokens_max,
        .valid_lengths = self->valid_lengths,
        .slots = self->request_slots,
        .write_slots = self->write_slots,
        .positions = self->positions,
        .seq_lens = self->seq_lens,
    };
    device_ops(self->options.device)->extend_fill(self->options.stream, &args);
}

void
run_buffers_fill_decode(run_buffers_t *self, const run_decode_fill_t *fill)
{
    kern_decode_fill_args_t args = {
        .staged_slots = self->header.slots + fill->first,
        .bs = fill->bs,
        .actual_bs = fill->actual_bs,
        .width = fill->width,
        .stride = self->options.width,
        .vocabulary = fill->vocabulary,
        .sink = run_buffers_sink(self),
        .valid_lengths = self->valid_lengths,
        .future_inputs = self->future_inputs,
        .slots = self->request_slots + fill->first,
        .write_slots = self->write_slots + fill->first,
        .input_ids = self->input_ids + fill->first_row,
        .positions = self->positions + fill->first_row,
        .seq_lens = self->seq_lens + fill->first,
    };
    device_ops(self->options.device)->decode_fill(self->options.stream, &args);
}
