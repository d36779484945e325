#include "backend_slots.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto_require.h"

proto_status_t
backend_slots_init(backend_slots_t *self, const backend_leaf_t *leaf, size_t workspace_bytes)
{
    const backend_options_t *options = &leaf->options;
    backend_slots_fini(self, leaf);
    size_t table_bytes = (size_t)options->bs_max * leaf->page_count_max * sizeof(int32_t);
    size_t lens_bytes = options->bs_max * sizeof(int32_t);
    uint32_t entries = backend_slots_entries(leaf);
    self->workspace_bytes = workspace_bytes;
    struct {
        size_t size_bytes;
        void **memory_p;
    } wanted[] = {
        {entries * table_bytes, (void **)&self->page_table_buf},
        {entries * lens_bytes, (void **)&self->seq_lens_buf},
        {table_bytes, (void **)&self->prefill_page_table_buf},
        {lens_bytes, (void **)&self->prefill_seq_lens_buf},
        {workspace_bytes + DEVICE_MEMORY_ALIGN, &self->workspace},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        proto_status_t status = device_alloc(options->device, DEVICE_MEMORY_DEVICE,
                                             wanted[i].size_bytes, wanted[i].memory_p);
        if (status != STATUS_OK) {
            backend_slots_fini(self, leaf);
            return status;
        }
    }
    self->decode_views_by_bs = calloc((size_t)options->bs_max + 1, sizeof(backend_decode_view_t));
    if (self->decode_views_by_bs == NULL) {
        backend_slots_fini(self, leaf);
        return STATUS_ERR_NO_MEMORY;
    }
    return STATUS_OK;
}

void
backend_slots_fini(backend_slots_t *self, const backend_leaf_t *leaf)
{
    device_t *device = leaf->options.device;
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->page_table_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->seq_lens_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->prefill_page_table_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->prefill_seq_lens_buf);
    device_release(device, DEVICE_MEMORY_DEVICE, &self->workspace);
    free(self->decode_views_by_bs);
    *self = (backend_slots_t){0};
}

/* The one builder of decode views, for captured and for eager batch sizes. */
static const backend_decode_view_t *
decode_view(backend_slots_t *self, uint32_t bs)
{
    backend_decode_view_t *view = &self->decode_views_by_bs[bs];
    if (view->bs == 0) {
        view->page_table = self->page_table_buf;
        view->seq_lens = self->seq_lens_buf;
        view->bs = bs;
    }
    return view;
}

uint32_t
backend_slots_entries(const backend_leaf_t *leaf)
{
    return leaf->options.block_width > 0 ? leaf->options.block_width : 1;
}

/* Row b of `from` becomes row b * entries of `to`. */
static void
copy_table(const backend_leaf_t *leaf, const int32_t *from, size_t from_stride, int32_t *to,
           uint32_t entries, uint32_t bs)
{
    kern_table_copy_args_t args = {
        .from = from,
        .from_stride = from_stride,
        .to = to,
        .to_stride = (size_t)entries * leaf->page_count_max,
        .rows = bs,
        .columns = leaf->page_count_max,
    };
    device_ops(leaf->options.device)->table_copy(leaf->options.stream, &args);
}

void
backend_slots_refresh(backend_slots_t *self, const backend_leaf_t *leaf,
                      const backend_leaf_refresh_t *refresh)
{
    uint32_t entries = backend_slots_entries(leaf);
    for (uint32_t i = 0; i < entries; i++) {
        copy_table(leaf, refresh->page_table, refresh->page_table_stride,
                   self->page_table_buf + (size_t)i * leaf->page_count_max, entries, refresh->bs);
    }
    if (entries == 1) { /* a block's lengths are the drafter's: fill_block_decode_seq_lens */
        kern_seq_lens_args_t lens = {
            .from = refresh->seq_lens,
            .to = self->seq_lens_buf,
            .bs = refresh->bs,
            .actual_bs = refresh->actual_bs,
            .floor = leaf->options.is_draft ? 1 : (int32_t)leaf->options.width,
        };
        device_ops(leaf->options.device)->seq_lens(leaf->options.stream, &lens);
    } else if (!refresh->for_graph_replay || refresh->actual_bs == 0) {
        /* Inside a replay the recorded fill rewrites them. */
        backend_slots_set_draft_seq_lens(self, leaf, refresh->seq_lens, (int32_t)entries,
                                         refresh->bs);
    }
    self->forward_decode_metadata = decode_view(self, refresh->bs);
}

void
backend_slots_set_draft_seq_lens(backend_slots_t *self, const backend_leaf_t *leaf,
                                 const int32_t *seq_lens, int32_t add, uint32_t bs)
{
    kern_draft_lens_args_t args = {
        .from = seq_lens,
        .bs = bs,
        .add = add,
        .repeat = backend_slots_entries(leaf),
        .floor = 1,
        .to = self->seq_lens_buf,
    };
    device_ops(leaf->options.device)->draft_lens(leaf->options.stream, &args);
}

void
backend_slots_init_forward(backend_slots_t *self, const backend_leaf_t *leaf,
                           const backend_leaf_extend_t *extend)
{
    copy_table(leaf, extend->page_table, extend->page_table_stride, self->prefill_page_table_buf, 1,
               extend->bs);
    kern_seq_lens_args_t lens = {
        .from = extend->seq_lens,
        .to = self->prefill_seq_lens_buf,
        .bs = extend->bs,
        .actual_bs = extend->bs,
        .floor = 1,
    };
    device_ops(leaf->options.device)->seq_lens(leaf->options.stream, &lens);
    self->forward_prefill_metadata = (backend_prefill_t){
        .page_table = self->prefill_page_table_buf,
        .seq_lens = self->prefill_seq_lens_buf,
        .extend_cu_lens = extend->extend_cu_lens,
        .bs = extend->bs,
        .num_extends = extend->num_extends,
        .extend_tokens = extend->extend_tokens,
    };
}

static void
visit_part(const backend_leaf_t *leaf, const char *part, const void *address, size_t size_bytes,
           backend_visit_fn visit, void *context)
{
    char path[BACKEND_PATH_SIZE_BYTES];
    (void)snprintf(path, sizeof path, "%s.decode.%s", leaf->name, part);
    visit(context, path, address, size_bytes);
}

void
backend_slots_visit(const backend_slots_t *self, const backend_leaf_t *leaf, uint32_t bs,
                    backend_visit_fn visit, void *context)
{
    const backend_decode_view_t *view = &self->decode_views_by_bs[bs];
    if (view->bs == 0) {
        return;
    }
    size_t count = (size_t)bs * backend_slots_entries(leaf);
    size_t table_bytes = count * leaf->page_count_max * sizeof(int32_t);
    visit_part(leaf, "page_table", view->page_table, table_bytes, visit, context);
    visit_part(leaf, "seq_lens", view->seq_lens, count * sizeof(int32_t), visit, context);
    visit_part(leaf, "workspace", self->workspace, self->workspace_bytes, visit, context);
}

void
backend_slots_visit_step(const backend_slots_t *self, const backend_leaf_t *leaf, uint32_t bs,
                         backend_visit_fn visit, void *context)
{
    size_t count = (size_t)bs * backend_slots_entries(leaf);
    size_t table_bytes = count * leaf->page_count_max * sizeof(int32_t);
    visit_part(leaf, "page_table", self->page_table_buf, table_bytes, visit, context);
    visit_part(leaf, "seq_lens", self->seq_lens_buf, count * sizeof(int32_t), visit, context);
}

uint32_t
backend_leaf_page_stride(const backend_leaf_t *leaf, const cache_pool_t *pool,
                         const cache_field_name_t *names, size_t name_count)
{
    uint32_t stride = 0;
    for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
        for (size_t i = 0; i < name_count; i++) {
            cache_field_view_t view;
            if (cache_pool_field(pool, layer, names[i], &view) != STATUS_OK ||
                view.group != leaf->group) {
                continue;
            }
            size_t row = (size_t)view.heads * view.head_dim * cache_dtype_size_bytes(view.dtype);
            size_t page = leaf->page_size * row;
            size_t pages = view.stride_bytes / page;
            if (view.stride_bytes % page != 0 || (stride != 0 && pages != stride) ||
                pages > INT32_MAX) {
                return 0;
            }
            stride = (uint32_t)pages;
        }
    }
    uint64_t slots = (uint64_t)cache_plan_page_count(pool->plan, leaf->group) * stride;
    return slots * leaf->page_size <= INT32_MAX ? stride : 0;
}

uint32_t
backend_leaf_page_count_max(const backend_options_t *options, uint32_t page_size)
{
    require(page_size > 0);
    uint32_t len_max = options->model_len_max + 2 * options->width;
    return (len_max + page_size - 1) / page_size;
}
