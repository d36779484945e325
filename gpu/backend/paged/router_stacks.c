/* GroupTableStacks: one launch for each group, with plain scalar arguments. */
#include "router_stacks.h"

#include "proto_require.h"

proto_status_t
router_stacks_init(router_stacks_t *self)
{
    const backend_options_t *options = &self->options;
    require(self->group_count > 0);
    self->page_columns = 0;
    for (uint32_t i = 0; i < self->group_count; i++) {
        uint32_t columns = self->groups[i].page_columns;
        self->page_columns = columns > self->page_columns ? columns : self->page_columns;
    }
    struct {
        size_t count;
        int32_t **memory_p;
    } wanted[] = {
        {(size_t)options->bs_max * self->page_columns, &self->tables},
        {(size_t)options->bs_max * options->width, &self->decode_locations},
        {options->step_tokens_max, &self->extend_locations},
        {options->bs_max, &self->window_ends},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        proto_status_t status = device_alloc(options->device, DEVICE_MEMORY_DEVICE,
                                             self->group_count * wanted[i].count * sizeof(int32_t),
                                             (void **)wanted[i].memory_p);
        if (status != STATUS_OK) {
            router_stacks_fini(self);
            return status;
        }
    }
    return STATUS_OK;
}

void
router_stacks_fini(router_stacks_t *self)
{
    if (self->options.device == NULL) {
        return;
    }
    device_release(self->options.device, DEVICE_MEMORY_DEVICE, (void **)&self->tables);
    device_release(self->options.device, DEVICE_MEMORY_DEVICE, (void **)&self->decode_locations);
    device_release(self->options.device, DEVICE_MEMORY_DEVICE, (void **)&self->extend_locations);
    device_release(self->options.device, DEVICE_MEMORY_DEVICE, (void **)&self->window_ends);
}

int32_t *
router_stacks_table(const router_stacks_t *self, uint32_t index)
{
    require(index < self->group_count);
    return self->tables + (size_t)index * self->options.bs_max * self->page_columns;
}

int32_t *
router_stacks_decode_locations(const router_stacks_t *self, uint32_t index)
{
    require(index < self->group_count);
    return self->decode_locations + (size_t)index * self->options.bs_max * self->options.width;
}

int32_t *
router_stacks_extend_locations(const router_stacks_t *self, uint32_t index)
{
    require(index < self->group_count);
    return self->extend_locations + (size_t)index * self->options.step_tokens_max;
}

void
router_stacks_fill(router_stacks_t *self, const backend_tables_t *tables, uint32_t bs,
                   uint32_t actual_bs)
{
    for (uint32_t i = 0; i < self->group_count; i++) {
        const router_stack_group_t *group = &self->groups[i];
        const backend_table_t *table = &tables->groups[group->group];
        kern_table_expand_args_t args = {
            .blocks = table->blocks,
            .block_stride = table->stride,
            .block_columns = table->columns,
            .block_count = group->block_count,
            .ratio = group->ratio,
            .stride = group->stride,
            .bs = bs,
            .actual_bs = actual_bs,
            .pages = router_stacks_table(self, i),
            .page_stride = self->page_columns,
            .page_columns = self->page_columns,
        };
        device_ops(self->options.device)->table_expand(self->options.stream, &args);
    }
}

void
router_stacks_decode(router_stacks_t *self, const int32_t *seq_lens, uint32_t bs,
                     uint32_t actual_bs)
{
    for (uint32_t i = 0; i < self->group_count; i++) {
        kern_decode_locations_args_t args = {
            .pages = router_stacks_table(self, i),
            .page_stride = self->page_columns,
            .page_columns = self->groups[i].page_columns,
            .page_size = self->groups[i].page_size,
            .seq_lens = seq_lens,
            .bs = bs,
            .actual_bs = actual_bs,
            .width = self->options.width,
            .locations = router_stacks_decode_locations(self, i),
        };
        device_ops(self->options.device)->decode_locations(self->options.stream, &args);
    }
}

void
router_stacks_window(router_stacks_t *self, uint32_t index, const int32_t *start, uint32_t n,
                     uint32_t bs, int32_t *out)
{
    require(index < self->group_count);
    kern_draft_lens_args_t ends = {
        .from = start,
        .bs = bs,
        .add = (int32_t)n,
        .repeat = 1,
        .floor = 0,
        .to = self->window_ends,
    };
    device_ops(self->options.device)->draft_lens(self->options.stream, &ends);
    kern_decode_locations_args_t args = {
        .pages = router_stacks_table(self, index),
        .page_stride = self->page_columns,
        .page_columns = self->groups[index].page_columns,
        .page_size = self->groups[index].page_size,
        .seq_lens = self->window_ends,
        .bs = bs,
        .actual_bs = bs, /* padded requests have the null page in their tables */
        .width = n,
        .locations = out,
    };
    device_ops(self->options.device)->decode_locations(self->options.stream, &args);
}

void
router_stacks_extend(router_stacks_t *self, const backend_extend_t *extend, uint32_t extend_tokens)
{
    uint32_t decodes = extend->bs - extend->num_extends;
    require(extend_tokens + decodes * self->options.width <= self->options.step_tokens_max);
    for (uint32_t i = 0; i < self->group_count; i++) {
        int32_t *locations = router_stacks_extend_locations(self, i);
        kern_extend_locations_args_t span = {
            .pages = router_stacks_table(self, i),
            .page_stride = self->page_columns,
            .page_columns = self->groups[i].page_columns,
            .page_size = self->groups[i].page_size,
            .prefix_lens = extend->extend_prefix_lens,
            .extend_lens = extend->extend_seq_lens,
            .request_count = extend->num_extends,
            .location_count_max = extend_tokens,
            .locations = locations,
        };
        device_ops(self->options.device)->extend_locations(self->options.stream, &span);
        if (decodes == 0) {
            continue;
        }
        kern_decode_locations_args_t window = {
            .pages = span.pages + (size_t)extend->num_extends * self->page_columns,
            .page_stride = self->page_columns,
            .page_columns = self->groups[i].page_columns,
            .page_size = self->groups[i].page_size,
            .seq_lens = extend->seq_lens + extend->num_extends,
            .bs = decodes,
            .actual_bs = decodes,
            .width = self->options.width,
            .locations = locations + extend_tokens,
        };
        device_ops(self->options.device)->decode_locations(self->options.stream, &window);
    }
}
