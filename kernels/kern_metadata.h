/* kern_metadata.h - the small integer operations around a forward: filling the input buffers,
 * block tables to kernel pages, write slots, sequence lengths, the end of a step.
 *
 * They do little work: thread 0 does it and the others pass by, except for kern_page_zero.  Page 0
 * is the null page: holes, padded requests and positions beyond a table resolve to it, so that a
 * padded row never touches a live request's cache.  Arrays are read at execution; scalars are
 * frozen by a capture. */
#ifndef KERN_METADATA_H
#define KERN_METADATA_H

#ifndef __cplusplus
#include <stdatomic.h>
#endif
#include <stddef.h>
#include <stdint.h>

#include "kern_share.h"

/* pages[b][c] = the kernel page of column c of request b: block * stride + c % ratio.  Requests
 * from actual_bs on, columns beyond the blocks, holes and ids outside the pool become 0. */
typedef struct {
    const int32_t *blocks; /* [actual_bs][block_stride]; may be NULL if actual_bs is 0 */
    size_t block_stride;
    uint32_t block_columns; /* columns of `blocks` that are filled */
    uint32_t block_count;   /* ids are below it */
    uint32_t ratio;         /* kernel pages in a block, at least 1 */
    uint32_t stride;        /* kernel pages from block to block, at least ratio */
    uint32_t bs;
    uint32_t actual_bs;
    int32_t *pages; /* [bs][page_stride] */
    size_t page_stride;
    uint32_t page_columns; /* of `pages`, all are written */
} kern_table_expand_args_t;
void kern_table_expand_host(const void *args, kern_share_t *share);

/* Copies a table: to[b][c] = from[b][c]. */
typedef struct {
    const int32_t *from;
    size_t from_stride;
    int32_t *to;
    size_t to_stride;
    uint32_t rows;
    uint32_t columns;
} kern_table_copy_args_t;
void kern_table_copy_host(const void *args, kern_share_t *share);

/* locations[b * width + t] = the cache slot of position seq_lens[b] - width + t; 0 for requests
 * from actual_bs on and for positions outside the table. */
typedef struct {
    const int32_t *pages; /* [bs][page_stride] */
    size_t page_stride;
    uint32_t page_columns;
    uint32_t page_size;
    const int32_t *seq_lens; /* [bs] */
    uint32_t bs;
    uint32_t actual_bs;
    uint32_t width;
    int32_t *locations; /* [bs * width] */
} kern_decode_locations_args_t;
void kern_decode_locations_host(const void *args, kern_share_t *share);

/* locations: for each request the slots of positions prefix .. prefix + length - 1, one request
 * after the other. */
typedef struct {
    const int32_t *pages; /* [request_count][page_stride] */
    size_t page_stride;
    uint32_t page_columns;
    uint32_t page_size;
    const int32_t *prefix_lens; /* [request_count] */
    const int32_t *extend_lens; /* [request_count] */
    uint32_t request_count;
    uint32_t location_count_max; /* room in `locations` */
    int32_t *locations;
} kern_extend_locations_args_t;
void kern_extend_locations_host(const void *args, kern_share_t *share);

/* to[b] = max(from[b], floor) for live requests, floor for padded ones. */
typedef struct {
    const int32_t *from; /* [actual_bs] */
    int32_t *to;         /* [bs] */
    uint32_t bs;
    uint32_t actual_bs;
    int32_t floor; /* at least 1 */
} kern_seq_lens_args_t;
void kern_seq_lens_host(const void *args, kern_share_t *share);

/* Inputs of decode requests from the state on the device: for request b in slot s, with n = valid
 * tokens of s: positions n .. n + width - 1, length n + width, ids from the future input map.
 * Column 0 is the last verified token, clamped to the vocabulary; columns 1.. are candidates, and
 * one outside the vocabulary is none: it stays -1 in `input_ids`, which are the candidate window
 * [bs][width] too.  Padded requests: id 0, no candidates, position 0, length 1, slot 0, write slot
 * `sink`. */
typedef struct {
    const int32_t *staged_slots; /* [actual_bs] */
    uint32_t bs;
    uint32_t actual_bs;
    uint32_t width;
    uint32_t stride; /* of future_inputs, at least width: a step may be narrower than the map */
    uint32_t vocabulary;
    int32_t sink;
    const int32_t *valid_lengths; /* [slots + 2] */
    const int32_t *future_inputs; /* [slots + 2][stride] */
    int32_t *slots;               /* [bs] */
    int32_t *write_slots;         /* [bs] */
    int32_t *input_ids;           /* [bs * width] */
    int32_t *positions;           /* [bs * width] */
    int32_t *seq_lens;            /* [bs] */
} kern_decode_fill_args_t;
void kern_decode_fill_host(const void *args, kern_share_t *share);

/* Inputs of extend requests: positions, lengths, slots; the valid length of the slot becomes the
 * prefix (an earlier life of the slot ends here).  Ids are copied by the caller. */
typedef struct {
    const int32_t *staged_slots; /* [request_count] */
    const int32_t *prefix_lens;  /* [request_count] */
    const int32_t *extend_lens;  /* [request_count] */
    uint32_t request_count;
    uint32_t token_count_max;
    int32_t *valid_lengths;
    int32_t *slots;
    int32_t *write_slots;
    int32_t *positions; /* [sum of extend_lens] */
    int32_t *seq_lens;
} kern_extend_fill_args_t;
void kern_extend_fill_host(const void *args, kern_share_t *share);

/* End of a step for decode requests: valid length += accepted, next input = last accepted token,
 * without candidates: a drafter writes them afterwards.  Lengths outside 1 .. width leave the next
 * inputs as they are. */
typedef struct {
    const int32_t *write_slots;    /* [bs] */
    const int32_t *tokens;         /* [bs * width] */
    const int32_t *accept_lengths; /* [bs] */
    uint32_t bs;
    uint32_t width;
    uint32_t stride; /* of future_inputs, at least width */
    int32_t *valid_lengths;
    int32_t *future_inputs; /* [slots + 2][stride] */
} kern_decode_commit_args_t;
void kern_decode_commit_host(const void *args, kern_share_t *share);

/* End of a step for extend requests: valid length = seq_lens, and for those that sampled the next
 * input, without candidates. */
typedef struct {
    const int32_t *write_slots;    /* [request_count] */
    const int32_t *seq_lens;       /* [request_count] */
    const int32_t *sample_indices; /* [request_count]: row in `tokens`; -1 = none */
    const int32_t *tokens;
    uint32_t request_count;
    uint32_t width; /* of future_inputs */
    int32_t *valid_lengths;
    int32_t *future_inputs;
} kern_extend_commit_args_t;
void kern_extend_commit_host(const void *args, kern_share_t *share);

/* A run of pages of one field. */
typedef struct {
    uint8_t *pages; /* page p at pages + p * stride_bytes */
    size_t stride_bytes;
    size_t page_bytes;
    uint32_t group;
    uint32_t page_count;
} kern_page_field_t;

/* Zeroes the listed blocks in every field of their group. */
typedef struct {
    const kern_page_field_t *fields; /* [field_count] */
    uint32_t field_count;
    const int32_t *groups; /* [count] */
    const int32_t *blocks; /* [count]; 0 and ids outside the pool are skipped */
    uint32_t count;
} kern_page_zero_args_t;
void kern_page_zero_host(const void *args, kern_share_t *share);

/* A word that other threads watch: how far the stream is. */
typedef struct {
#ifdef __cplusplus
    volatile uint32_t *word;
#else
    _Atomic uint32_t *word;
#endif
    uint32_t value;
} kern_mark_args_t;
void kern_mark_host(const void *args, kern_share_t *share);

#endif
