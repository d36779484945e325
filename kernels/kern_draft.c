#include "kern_draft.h"

#include <math.h>
#include <string.h>

void
kern_draft_commit_host(const void *args, kern_share_t *share)
{
    const kern_draft_commit_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        const int32_t *from = a->candidates + b * a->stride;
        int32_t *to = a->future_inputs + (size_t)a->write_slots[b] * a->width + 1;
        uint32_t kept = 0;
        while (kept < a->count && kept + 1 < a->width && from[kept] >= 0 &&
               (uint32_t)from[kept] < a->vocabulary) {
            to[kept] = from[kept];
            kept++;
        }
        if (kept < a->count && kept + 1 < a->width && from[kept] != -1 && a->dropped != NULL) {
            *a->dropped += 1;
        }
        for (; kept + 1 < a->width; kept++) {
            to[kept] = -1;
        }
    }
}

void
kern_draft_lens_host(const void *args, kern_share_t *share)
{
    const kern_draft_lens_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        int32_t length = a->from[b] + a->add;
        for (uint32_t t = 0; t < a->repeat; t++) {
            a->to[b * a->repeat + t] = length < a->floor ? a->floor : length;
        }
    }
}

static int32_t
readable_id(int32_t id)
{
    return id < 0 ? 0 : id;
}

/* Of an extend: the sampled token, or -1. */
static int32_t
sampled_token(const kern_draft_begin_args_t *a, uint32_t request)
{
    int32_t row = a->extend_token_rows[request];
    return row < 0 ? -1 : a->tokens[row];
}

static void
begin_extend(const kern_draft_begin_args_t *a, uint32_t b)
{
    uint32_t first = (uint32_t)a->extend_cu_lens[b];
    uint32_t end = (uint32_t)a->extend_cu_lens[b + 1];
    int32_t sampled = sampled_token(a, b);
    for (uint32_t row = first; row < end; row++) {
        int32_t id = a->input_ids[row];
        if (a->shifts) {
            int32_t behind = a->extend_next_ids[b] >= 0 ? a->extend_next_ids[b] : sampled;
            id = row + 1 < end ? a->input_ids[row + 1] : behind;
        }
        a->ids[row] = readable_id(id);
        a->row_positions[row] = a->positions[row];
    }
    a->live_rows[b] = (int32_t)end - 1;
    a->live_positions[b] = a->positions[end - 1];
    a->frontier[b] = a->seq_lens[b];
    a->next[b] = readable_id(sampled);
    a->has_next[b] = sampled >= 0;
}

static void
begin_decode(const kern_draft_begin_args_t *a, uint32_t b, uint32_t first)
{
    uint32_t index = b - a->num_extends;
    const int32_t *tokens = a->tokens + a->sampled_extends + (size_t)index * a->width;
    int32_t accepted = a->accept_lengths[index];
    accepted = accepted < 1 ? 1 : accepted;
    accepted = accepted > (int32_t)a->width ? (int32_t)a->width : accepted;
    for (uint32_t t = 0; t < a->width; t++) {
        a->ids[first + t] = readable_id(a->shifts ? tokens[t] : a->input_ids[first + t]);
        a->row_positions[first + t] = a->positions[first + t];
    }
    uint32_t live = first + (uint32_t)accepted - 1;
    a->live_rows[b] = (int32_t)live;
    a->live_positions[b] = a->positions[live];
    a->frontier[b] = a->seq_lens[b] - (int32_t)a->width + accepted;
    a->next[b] = readable_id(tokens[accepted - 1]);
    a->has_next[b] = tokens[accepted - 1] >= 0;
}

void
kern_draft_begin_host(const void *args, kern_share_t *share)
{
    const kern_draft_begin_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    uint32_t rows = a->num_extends > 0 ? (uint32_t)a->extend_cu_lens[a->num_extends] : 0;
    for (uint32_t b = 0; b < a->bs; b++) {
        a->lens[b] = a->seq_lens[b];
        if (b < a->num_extends) {
            begin_extend(a, b);
        } else {
            begin_decode(a, b, rows);
            rows += a->width;
        }
    }
    for (uint32_t b = a->bs; b < a->padded_bs; b++) {
        a->lens[b] = (int32_t)a->width;
        a->live_rows[b] = (int32_t)rows;
        a->live_positions[b] = 0;
        a->frontier[b] = 1;
        a->next[b] = 0;
        a->has_next[b] = 0;
    }
    for (; rows < a->padded_rows; rows++) {
        a->ids[rows] = 0;
        a->row_positions[rows] = 0;
    }
}

static int32_t
largest(const float *logits, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (isnan(logits[i])) {
            return 0;
        }
        best = logits[i] > logits[best] ? i : best;
    }
    return (int32_t)best;
}

void
kern_draft_argmax_host(const void *args, kern_share_t *share)
{
    const kern_draft_argmax_args_t *a = args;
    for (uint32_t row = kern_share_claim(share); row < a->rows; row = kern_share_claim(share)) {
        int32_t id = largest(a->logits + row * a->stride, a->vocabulary);
        id += a->offsets == NULL ? 0 : a->offsets[id];
        a->ids[row * a->id_stride] = id;
        if (a->copies != NULL) {
            a->copies[row * a->copy_stride] = id;
        }
    }
}

void
kern_draft_mask_host(const void *args, kern_share_t *share)
{
    const kern_draft_mask_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        for (uint32_t i = 0; a->has_next[b] == 0 && i < a->count; i++) {
            a->candidates[(size_t)b * a->count + i] = -1;
        }
    }
}

void
kern_draft_limit_host(const void *args, kern_share_t *share)
{
    const kern_draft_limit_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        for (uint32_t t = 0; t < a->n; t++) {
            if ((int32_t)(a->n - t) > a->counts[b]) {
                a->locations[b * a->n + t] = 0;
            }
        }
    }
}

static int32_t *
stash_tokens(const kern_draft_stash_t *stash, int32_t slot)
{
    return stash->tokens + (size_t)slot * stash->width;
}

static float *
stash_rows(const kern_draft_stash_t *stash, int32_t slot)
{
    return stash->hidden + (size_t)slot * stash->width * stash->cols;
}

/* `count` rows behind those that are there; the oldest go. */
static void
stash_push(const kern_draft_stash_t *stash, int32_t slot, const int32_t *ids, const float *rows,
           uint32_t count)
{
    uint32_t width = stash->width;
    uint32_t skipped = count > width ? count - width : 0;
    uint32_t added = count - skipped;
    size_t row_bytes = stash->cols * sizeof(float);
    int32_t *tokens = stash_tokens(stash, slot);
    float *hidden = stash_rows(stash, slot);
    memmove(tokens, tokens + added, (width - added) * sizeof *tokens);
    memmove(hidden, hidden + (size_t)added * stash->cols, (width - added) * row_bytes);
    memcpy(tokens + (width - added), ids + skipped, added * sizeof *tokens);
    memcpy(hidden + (size_t)(width - added) * stash->cols, rows + (size_t)skipped * stash->cols,
           added * row_bytes);
    uint32_t valid = (uint32_t)stash->valid[slot] + added;
    stash->valid[slot] = (int32_t)(valid > width ? width : valid);
}

/* Of another frontier: nothing of it is of use. */
static void
stash_expect(const kern_draft_stash_t *stash, int32_t slot, int32_t end)
{
    if (stash->end[slot] != end) {
        stash->valid[slot] = 0;
    }
}

void
kern_draft_window_host(const void *args, kern_share_t *share)
{
    const kern_draft_window_args_t *a = args;
    const kern_draft_stash_t *stash = &a->stash;
    uint32_t width = stash->width;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        int32_t slot = a->slots[b];
        uint32_t first = a->first_row + b * a->round_width;
        uint32_t count = (uint32_t)a->live_rows[b] + 1 - first;
        stash_expect(stash, slot, a->frontier[b] - (int32_t)count);
        stash_push(stash, slot, a->row_ids + first, a->hidden + (size_t)first * stash->cols, count);
        stash->end[slot] = a->frontier[b];
        memcpy(a->ids + (size_t)b * width, stash_tokens(stash, slot), width * sizeof(int32_t));
        memcpy(a->rows + (size_t)b * width * stash->cols, stash_rows(stash, slot),
               (size_t)width * stash->cols * sizeof(float));
        a->counts[b] = stash->valid[slot];
        for (uint32_t t = 0; t < width; t++) {
            int32_t position = a->frontier[b] - (int32_t)width + (int32_t)t;
            a->positions[b * width + t] = position < 0 ? 0 : position;
        }
    }
    for (uint32_t b = a->bs; b < a->padded_bs; b++) {
        a->counts[b] = 0;
        memset(a->ids + (size_t)b * width, 0, width * sizeof(int32_t));
        memset(a->positions + (size_t)b * width, 0, width * sizeof(int32_t));
    }
}

void
kern_draft_lead_host(const void *args, kern_share_t *share)
{
    const kern_draft_lead_args_t *a = args;
    const kern_draft_stash_t *stash = &a->stash;
    if (share->thread_index != 0) {
        return;
    }
    size_t row_bytes = stash->cols * sizeof(float);
    uint32_t at = 0;
    a->lead_cu_lens[0] = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        int32_t slot = a->slots[i];
        uint32_t first = (uint32_t)a->cu_lens[i];
        uint32_t length = (uint32_t)a->cu_lens[i + 1] - first;
        stash_expect(stash, slot, a->prefix_lens[i]);
        uint32_t lead = (uint32_t)stash->valid[slot];
        lead = lead < stash->width ? lead : stash->width - 1;
        uint32_t from = stash->width - lead;
        memcpy(a->ids + at, stash_tokens(stash, slot) + from, lead * sizeof(int32_t));
        memcpy(a->rows + (size_t)at * stash->cols,
               stash_rows(stash, slot) + (size_t)from * stash->cols, lead * row_bytes);
        memcpy(a->ids + at + lead, a->row_ids + first, length * sizeof(int32_t));
        memcpy(a->rows + (size_t)(at + lead) * stash->cols, a->hidden + (size_t)first * stash->cols,
               length * row_bytes);
        a->lead_prefix_lens[i] = a->prefix_lens[i] - (int32_t)lead;
        a->lead_lens[i] = (int32_t)(length + lead);
        for (uint32_t row = 0; row < length + lead; row++) {
            a->positions[at + row] = a->lead_prefix_lens[i] + (int32_t)row;
        }
        at += length + lead;
        a->lead_cu_lens[i + 1] = (int32_t)at;
        a->last_rows[i] = (int32_t)at - 1;
        stash_push(stash, slot, a->row_ids + first, a->hidden + (size_t)first * stash->cols,
                   length);
        stash->end[slot] = a->prefix_lens[i] + (int32_t)length;
    }
}

void
kern_draft_roll_host(const void *args, kern_share_t *share)
{
    const kern_draft_roll_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        uint32_t first = a->cu_lens == NULL ? b * a->width : (uint32_t)a->cu_lens[b];
        uint32_t end = a->cu_lens == NULL ? first + a->width : (uint32_t)a->cu_lens[b + 1];
        memmove(a->ids + first, a->ids + first + 1, (end - first - 1) * sizeof *a->ids);
        a->ids[end - 1] = a->next[b];
    }
}

void
kern_draft_block_host(const void *args, kern_share_t *share)
{
    const kern_draft_block_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        for (uint32_t t = 0; t < a->width; t++) {
            a->ids[b * a->width + t] = t == 0 ? a->next[b] : a->mask_id;
            a->positions[b * a->width + t] = a->frontier[b] + (int32_t)t;
        }
    }
}
