/* kern_state.h - which block of a state group a forward reads and writes, and moving states.
 *
 * A state group's block is one checkpoint: with `granularity` bg, the state after n tokens is in
 * column (n - 1) / bg of the request's table.  kern_conv.h and kern_gdn.h take block ids: > 0 a
 * block, 0 = no history (logical zero), < 0 = padded.
 *
 * Index arithmetic is little work: thread 0 does it and the others pass by.  Copies are shared.
 * Arrays, and what `groups` and `fields` point to, are read at execution and must live as long as
 * the launch; scalars are frozen by a capture. */
#ifndef KERN_STATE_H
#define KERN_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"

/* The block table of one state group. */
typedef struct {
    const int32_t *blocks; /* [requests][block_stride]; 0 or less = a hole */
    size_t block_stride;
    uint32_t block_columns;
    uint32_t block_count; /* ids are below it */
    uint32_t granularity; /* tokens of a column */
} kern_state_group_t;

/* Blocks of all state groups of a forward that ends at seq_lens[i] tokens and began extend_lens[i]
 * (or `width`) tokens before: in[g][i] = the block after `began` tokens, 0 if that is none, out[g]
 * [i] = the block after seq_lens[i].  Padded requests, and a hole where history should be, are -1
 * in both; a hole at the end is -1 in `out` alone. */
typedef struct {
    const kern_state_group_t *groups; /* [group_count] */
    uint32_t group_count;
    const int32_t *seq_lens;    /* [actual_bs] */
    const int32_t *extend_lens; /* [actual_bs], or NULL = width for each */
    uint32_t width;
    uint32_t bs;
    uint32_t actual_bs;
    int32_t *in_blocks;  /* [group_count][bs] */
    int32_t *out_blocks; /* [group_count][bs] */
    int32_t *began_lens; /* [bs], or NULL: tokens before this forward; padded 0 */
    int32_t *seeds;      /* [bs], or NULL: i * (width + 1), a request's first row in the verify
                          * scratch; -1 if it is -1 in in_blocks of the first group */
} kern_state_blocks_args_t;
void kern_state_blocks_host(const void *args, kern_share_t *share);

/* After verification, for live requests only: accepted[i] = accept_lengths[i] kept within
 * 1..width, pages[g][i] = the block of group g after committed_lens[i] + accepted[i] tokens. */
typedef struct {
    const kern_state_group_t *groups; /* [group_count] */
    uint32_t group_count;
    const int32_t *committed_lens; /* [bs]: tokens before the verified rows */
    const int32_t *accept_lengths; /* [bs] */
    uint32_t width;                /* N */
    uint32_t bs;
    int32_t *accepted; /* [bs] */
    int32_t *pages;    /* [group_count][bs]; a hole or an id outside the pool is 0 */
} kern_commit_state_pages_args_t;
void kern_commit_state_pages_host(const void *args, kern_share_t *share);

/* Maps those pages to layers: to_rows[l][i] = pages[layer_groups[l]][i], from_rows[l][i] = the row
 * seeds[i] + accepted[i] of the verify scratch; both -1 if the page is not positive, or if the seed
 * is negative: what lies in that request's scratch then is an earlier request's. */
typedef struct {
    const int32_t *pages;         /* [groups][bs] */
    const int32_t *accepted;      /* [bs] */
    const int32_t *seeds;         /* [bs], of kern_state_blocks_args_t */
    const uint32_t *layer_groups; /* [layer_count] */
    uint32_t layer_count;
    uint32_t bs;
    int32_t *from_rows; /* [layer_count][bs] */
    int32_t *to_rows;   /* [layer_count][bs] */
} kern_state_verify_commit_rows_args_t;
void kern_state_verify_commit_rows_host(const void *args, kern_share_t *share);

/* One kind of rows to copy, e.g. the convolution windows of one layer. */
typedef struct {
    const uint8_t *from; /* row r at from + r * from_stride_bytes */
    size_t from_stride_bytes;
    uint8_t *to;
    size_t to_stride_bytes;
    size_t row_bytes;
    uint32_t from_index; /* which vector of from_rows */
    uint32_t to_index;   /* which vector of to_rows */
} kern_state_copy_field_t;

/* For each field and i: row from_rows[from_index][i] is copied to row to_rows[to_index][i].  A
 * negative row on either side skips.  No row is a target twice, none is source and target of
 * different copies; a row copied to itself stays.  Rows of both sides are checked by the caller. */
typedef struct {
    const kern_state_copy_field_t *fields; /* [field_count] */
    uint32_t field_count;
    const int32_t *from_rows; /* [vectors][count] */
    const int32_t *to_rows;   /* [vectors][count] */
    uint32_t count;
    uint8_t zero_fresh; /* 1: from row 0 is no row but a fresh request: zeros are written */
} kern_state_copy_args_t;
void kern_state_copy_host(const void *args, kern_share_t *share);

/* The state fields of one layer, in the cache. */
typedef struct {
    uint8_t *windows; /* of kern_conv.h; block i at windows + i * window_stride_bytes */
    size_t window_stride_bytes;
    size_t window_bytes;
    uint8_t *states; /* of kern_gdn.h */
    size_t state_stride_bytes;
    size_t state_bytes;
    uint32_t group;
} kern_state_field_t;

/* Fused state staging before a prefill, for all layers at once.  A request with history gets the
 * convolution window and the state of its input block copied to its output block (nothing if they
 * are one); a fresh one gets a zero state and its window is not touched.  Neither block 0 nor the
 * stale bytes of a fresh request's blocks are read.
 * resumed[g][i] is the history flag, in a form that kern_conv_prefill and kern_gdn_prefill take as
 * in_blocks to work in place on the output blocks: the output block with history, 0 without, -1 if
 * there is no output block (or the request is padded). */
typedef struct {
    const kern_state_field_t *fields; /* [field_count], a layer each */
    uint32_t field_count;
    const int32_t *in_blocks;  /* [group_count][count] */
    const int32_t *out_blocks; /* [group_count][count] */
    uint32_t group_count;
    uint32_t count;
    uint32_t block_count; /* ids are below it */
    int32_t *resumed;     /* [group_count][count] */
} kern_state_stage_args_t;
void kern_state_stage_host(const void *args, kern_share_t *share);

#endif
