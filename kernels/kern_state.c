/* Blocks of state groups, and moves of states.  Every index is checked, since tables and lengths
 * come from other threads of execution. */
#include "kern_state.h"

#include <stdbool.h>
#include <string.h>

/* The block that holds the state after `tokens` (at least 1); 0 if there is none. */
static int32_t
block_after(const kern_state_group_t *group, uint32_t request, int32_t tokens)
{
    uint32_t column = (uint32_t)(tokens - 1) / group->granularity;
    if (column >= group->block_columns) {
        return 0;
    }
    int32_t block = group->blocks[request * group->block_stride + column];
    return block > 0 && (uint32_t)block < group->block_count ? block : 0;
}

static void
blocks_of_request(const kern_state_blocks_args_t *a, uint32_t g, uint32_t request)
{
    size_t at = (size_t)g * a->bs + request;
    a->in_blocks[at] = -1;
    a->out_blocks[at] = -1;
    if (request >= a->actual_bs) {
        return;
    }
    const kern_state_group_t *group = &a->groups[g];
    int32_t after = a->seq_lens[request];
    int32_t length = a->extend_lens != NULL ? a->extend_lens[request] : (int32_t)a->width;
    int32_t before = after - length;
    if (before < 0 || after < 1) {
        return;
    }
    int32_t in = before > 0 ? block_after(group, request, before) : 0;
    if (before > 0 && in == 0) {
        return;
    }
    int32_t out = block_after(group, request, after);
    a->in_blocks[at] = in;
    a->out_blocks[at] = out > 0 ? out : -1;
}

void
kern_state_blocks_host(const void *args, kern_share_t *share)
{
    const kern_state_blocks_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t g = 0; g < a->group_count; g++) {
        for (uint32_t i = 0; i < a->bs; i++) {
            blocks_of_request(a, g, i);
        }
    }
    for (uint32_t i = 0; a->began_lens != NULL && i < a->bs; i++) {
        int32_t length = 0;
        if (i < a->actual_bs) {
            length = a->extend_lens != NULL ? a->extend_lens[i] : (int32_t)a->width;
        }
        a->began_lens[i] = i < a->actual_bs ? a->seq_lens[i] - length : 0;
    }
    for (uint32_t i = 0; a->seeds != NULL && i < a->bs; i++) {
        a->seeds[i] = a->in_blocks[i] < 0 ? -1 : (int32_t)(i * (a->width + 1));
    }
}

void
kern_commit_state_pages_host(const void *args, kern_share_t *share)
{
    const kern_commit_state_pages_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t i = 0; i < a->bs; i++) {
        int32_t accepted = a->accept_lengths[i] < 1 ? 1 : a->accept_lengths[i];
        accepted = accepted > (int32_t)a->width ? (int32_t)a->width : accepted;
        a->accepted[i] = accepted;
        int32_t committed = a->committed_lens[i] < 0 ? 0 : a->committed_lens[i];
        for (uint32_t g = 0; g < a->group_count; g++) {
            a->pages[(size_t)g * a->bs + i] = block_after(&a->groups[g], i, committed + accepted);
        }
    }
}

void
kern_state_verify_commit_rows_host(const void *args, kern_share_t *share)
{
    const kern_state_verify_commit_rows_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t l = 0; l < a->layer_count; l++) {
        const int32_t *pages = a->pages + (size_t)a->layer_groups[l] * a->bs;
        for (uint32_t i = 0; i < a->bs; i++) {
            bool live = pages[i] > 0;
            live = live && a->seeds[i] >= 0;
            a->from_rows[(size_t)l * a->bs + i] = live ? a->seeds[i] + a->accepted[i] : -1;
            a->to_rows[(size_t)l * a->bs + i] = live ? pages[i] : -1;
        }
    }
}

void
kern_state_copy_host(const void *args, kern_share_t *share)
{
    const kern_state_copy_args_t *a = args;
    uint32_t total = a->field_count * a->count;
    for (uint32_t item = kern_share_claim(share); item < total; item = kern_share_claim(share)) {
        const kern_state_copy_field_t *field = &a->fields[item / a->count];
        uint32_t i = item % a->count;
        int32_t from = a->from_rows[(size_t)field->from_index * a->count + i];
        int32_t to = a->to_rows[(size_t)field->to_index * a->count + i];
        if (from < 0 || to < 0) {
            continue;
        }
        uint8_t *target = field->to + (size_t)to * field->to_stride_bytes;
        if (from == 0 && a->zero_fresh != 0) {
            memset(target, 0, field->row_bytes);
            continue;
        }
        const uint8_t *source = field->from + (size_t)from * field->from_stride_bytes;
        if (source != target) {
            memcpy(target, source, field->row_bytes);
        }
    }
}

/* What staging makes of a request: see kern_state_stage_args_t.resumed. */
static int32_t
resumed_block(const kern_state_stage_args_t *a, uint32_t group, uint32_t i)
{
    int32_t in = a->in_blocks[(size_t)group * a->count + i];
    int32_t out = a->out_blocks[(size_t)group * a->count + i];
    if (in < 0 || (uint32_t)in >= a->block_count || out <= 0 || (uint32_t)out >= a->block_count) {
        return -1;
    }
    return in == 0 ? 0 : out;
}

static void
stage_request(const kern_state_stage_args_t *a, const kern_state_field_t *field, uint32_t i)
{
    int32_t resumed = resumed_block(a, field->group, i);
    if (resumed < 0) {
        return;
    }
    size_t in = (size_t)a->in_blocks[(size_t)field->group * a->count + i];
    size_t out = (size_t)a->out_blocks[(size_t)field->group * a->count + i];
    uint8_t *state = field->states + out * field->state_stride_bytes;
    if (resumed == 0) {
        memset(state, 0, field->state_bytes);
    } else if (in != out) {
        memcpy(state, field->states + in * field->state_stride_bytes, field->state_bytes);
        memcpy(field->windows + out * field->window_stride_bytes,
               field->windows + in * field->window_stride_bytes, field->window_bytes);
    }
}

void
kern_state_stage_host(const void *args, kern_share_t *share)
{
    const kern_state_stage_args_t *a = args;
    uint32_t total = a->field_count * a->count;
    for (uint32_t item = kern_share_claim(share); item < total; item = kern_share_claim(share)) {
        stage_request(a, &a->fields[item / a->count], item % a->count);
    }
    for (uint32_t g = 0; share->thread_index == 0 && g < a->group_count; g++) {
        for (uint32_t i = 0; i < a->count; i++) {
            a->resumed[(size_t)g * a->count + i] = resumed_block(a, g, i);
        }
    }
}
