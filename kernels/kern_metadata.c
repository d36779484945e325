/* The metadata operations.  Each loop is short; what matters is that every index is checked, since
 * tables and lengths come from other threads of execution. */
#include "kern_metadata.h"

#include <string.h>

/* A row of blocks that are a kernel page each: no inner loop, so the compiler takes several columns
 * at once.  Returns the columns written. */
static uint32_t
expand_single(const kern_table_expand_args_t *a, const int32_t *blocks, int32_t *row)
{
    uint32_t count = a->block_columns < a->page_columns ? a->block_columns : a->page_columns;
    uint32_t limit = a->block_count;
    uint32_t stride = a->stride;
    uint32_t column = 0;
    for (; column + 8 <= count; column += 8) {
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t block = (uint32_t)blocks[column + j]; /* a hole below 0 is beyond the limit */
            uint32_t mask = (uint32_t)0 - (uint32_t)(block < limit);
            row[column + j] = (int32_t)(block * stride & mask);
        }
    }
    for (; column < count; column++) {
        uint32_t block = (uint32_t)blocks[column];
        row[column] = block < limit ? (int32_t)(block * stride) : 0;
    }
    return count;
}

static uint32_t
expand_several(const kern_table_expand_args_t *a, const int32_t *blocks, int32_t *row)
{
    uint32_t column = 0;
    for (uint32_t i = 0; i < a->block_columns; i++) {
        int32_t block = blocks[i];
        int32_t is_live = block > 0 && (uint32_t)block < a->block_count;
        for (uint32_t j = 0; j < a->ratio && column < a->page_columns; j++) {
            row[column++] = is_live ? block * (int32_t)a->stride + (int32_t)j : 0;
        }
    }
    return column;
}

void
kern_table_expand_host(const void *args, kern_share_t *share)
{
    const kern_table_expand_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        int32_t *row = a->pages + b * a->page_stride;
        uint32_t column = 0;
        if (b < a->actual_bs) {
            const int32_t *blocks = a->blocks + b * a->block_stride;
            column = a->ratio == 1 ? expand_single(a, blocks, row) : expand_several(a, blocks, row);
        }
        if (column < a->page_columns) {
            memset(row + column, 0, (a->page_columns - column) * sizeof *row);
        }
    }
}

void
kern_table_copy_host(const void *args, kern_share_t *share)
{
    const kern_table_copy_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->rows; b++) {
        memcpy(a->to + b * a->to_stride, a->from + b * a->from_stride, a->columns * sizeof *a->to);
    }
}

/* The cache slot of a position; 0, in the null page, if the table does not reach it. */
static int32_t
location_of(const int32_t *pages, uint32_t page_columns, uint32_t page_size, int32_t position)
{
    if (position < 0) {
        return 0;
    }
    uint32_t column = (uint32_t)position / page_size;
    int32_t page = column < page_columns ? pages[column] : 0;
    return page <= 0 ? 0 : page * (int32_t)page_size + position % (int32_t)page_size;
}

void
kern_decode_locations_host(const void *args, kern_share_t *share)
{
    const kern_decode_locations_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        for (uint32_t t = 0; t < a->width; t++) {
            int32_t location = 0;
            if (b < a->actual_bs) {
                int32_t position = a->seq_lens[b] - (int32_t)a->width + (int32_t)t;
                location = location_of(a->pages + b * a->page_stride, a->page_columns, a->page_size,
                                       position);
            }
            a->locations[(size_t)b * a->width + t] = location;
        }
    }
}

void
kern_extend_locations_host(const void *args, kern_share_t *share)
{
    const kern_extend_locations_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    uint32_t at = 0;
    for (uint32_t b = 0; b < a->request_count; b++) {
        const int32_t *pages = a->pages + b * a->page_stride;
        for (int32_t i = 0; i < a->extend_lens[b] && at < a->location_count_max; i++) {
            a->locations[at++] =
                location_of(pages, a->page_columns, a->page_size, a->prefix_lens[b] + i);
        }
    }
}

void
kern_seq_lens_host(const void *args, kern_share_t *share)
{
    const kern_seq_lens_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        int32_t length = b < a->actual_bs ? a->from[b] : a->floor;
        a->to[b] = length < a->floor ? a->floor : length;
    }
}

/* A candidate that cannot be a token is none; the last verified token must be one. */
static int32_t
window_id(int32_t id, uint32_t column, uint32_t vocabulary)
{
    if (id >= 0 && (uint32_t)id < vocabulary) {
        return id;
    }
    return column == 0 ? 0 : -1;
}

void
kern_decode_fill_host(const void *args, kern_share_t *share)
{
    const kern_decode_fill_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        int is_live = b < a->actual_bs;
        int32_t slot = is_live ? a->staged_slots[b] : 0;
        int32_t valid = is_live ? a->valid_lengths[slot] : 0;
        a->slots[b] = slot;
        a->write_slots[b] = is_live ? slot : a->sink;
        a->seq_lens[b] = is_live ? valid + (int32_t)a->width : 1;
        for (uint32_t t = 0; t < a->width; t++) {
            size_t row = (size_t)b * a->width + t;
            int32_t id = is_live ? a->future_inputs[(size_t)slot * a->stride + t] : -1;
            a->positions[row] = is_live ? valid + (int32_t)t : 0;
            a->input_ids[row] = window_id(id, t, a->vocabulary);
        }
    }
}

void
kern_extend_fill_host(const void *args, kern_share_t *share)
{
    const kern_extend_fill_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    uint32_t at = 0;
    for (uint32_t b = 0; b < a->request_count; b++) {
        int32_t slot = a->staged_slots[b];
        a->slots[b] = slot;
        a->write_slots[b] = slot;
        a->seq_lens[b] = a->prefix_lens[b] + a->extend_lens[b];
        a->valid_lengths[slot] = a->prefix_lens[b];
        for (int32_t i = 0; i < a->extend_lens[b] && at < a->token_count_max; i++) {
            a->positions[at++] = a->prefix_lens[b] + i;
        }
    }
}

/* The next input of a slot, and nothing after it. */
static void
set_next_input(int32_t *window, uint32_t width, int32_t token)
{
    window[0] = token;
    for (uint32_t t = 1; t < width; t++) {
        window[t] = -1;
    }
}

void
kern_decode_commit_host(const void *args, kern_share_t *share)
{
    const kern_decode_commit_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        int32_t slot = a->write_slots[b];
        int32_t accepted = a->accept_lengths[b];
        /* The sink slot counts for ever: let it wrap. */
        a->valid_lengths[slot] = (int32_t)((uint32_t)a->valid_lengths[slot] + (uint32_t)accepted);
        if (accepted > 0 && (uint32_t)accepted <= a->width) {
            set_next_input(a->future_inputs + (size_t)slot * a->stride, a->stride,
                           a->tokens[(size_t)b * a->width + (uint32_t)accepted - 1]);
        }
    }
}

void
kern_extend_commit_host(const void *args, kern_share_t *share)
{
    const kern_extend_commit_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->request_count; b++) {
        int32_t slot = a->write_slots[b];
        a->valid_lengths[slot] = a->seq_lens[b];
        if (a->sample_indices[b] >= 0) {
            set_next_input(a->future_inputs + (size_t)slot * a->width, a->width,
                           a->tokens[a->sample_indices[b]]);
        }
    }
}

void
kern_page_zero_host(const void *args, kern_share_t *share)
{
    const kern_page_zero_args_t *a = args;
    for (;;) {
        uint32_t index = kern_share_claim(share);
        if (index >= a->field_count) {
            return;
        }
        const kern_page_field_t *field = &a->fields[index];
        for (uint32_t i = 0; i < a->count; i++) {
            int32_t block = a->blocks[i];
            if ((uint32_t)a->groups[i] == field->group && block > 0 &&
                (uint32_t)block < field->page_count) {
                memset(field->pages + (size_t)block * field->stride_bytes, 0, field->page_bytes);
            }
        }
    }
}

void
kern_mark_host(const void *args, kern_share_t *share)
{
    const kern_mark_args_t *a = args;
    if (share->thread_index == 0) {
        /* Whoever sees the value sees what the stream wrote before, other threads' work too. */
        atomic_store_explicit(a->word, a->value, memory_order_release);
    }
}
