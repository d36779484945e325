/* backend_slots.h - the metadata slots that every softmax leaf has: persistent tables and lengths
 * for decode and for prefill, one view for each bs, the decode kernel's workspace.
 *
 * Decode and prefill have storage of their own, so that neither clobbers the other.  Owned by the
 * leaf.  The device thread. */
#ifndef BACKEND_SLOTS_H
#define BACKEND_SLOTS_H

#include "backend_leaf.h"

typedef struct {
    const int32_t *page_table;
    const int32_t *seq_lens;
    uint32_t bs; /* 0 = not built yet */
} backend_decode_view_t;

typedef struct {
    const int32_t *page_table; /* NULL = no prefill was prepared */
    const int32_t *seq_lens;
    const int32_t *extend_cu_lens;
    uint32_t bs;
    uint32_t num_extends;
    uint32_t extend_tokens;
} backend_prefill_t;

/* With a block_width each request has that many entries in the decode slot, one for each row of its
 * block, side by side. */
typedef struct {
    int32_t *page_table_buf;         /* [bs_max * entries][page_count_max] */
    int32_t *seq_lens_buf;           /* [bs_max * entries] */
    int32_t *prefill_page_table_buf; /* [bs_max][page_count_max] */
    int32_t *prefill_seq_lens_buf;   /* [bs_max] */
    void *workspace;                 /* of the decode kernel */
    size_t workspace_bytes;
    backend_decode_view_t *decode_views_by_bs; /* [bs_max + 1] */
    const backend_decode_view_t *forward_decode_metadata;
    backend_prefill_t forward_prefill_metadata;
} backend_slots_t;

/* STATUS_ERR_NO_MEMORY leaves nothing. */
MUST_CHECK proto_status_t backend_slots_init(backend_slots_t *self, const backend_leaf_t *leaf,
                                             size_t workspace_bytes);
void backend_slots_fini(backend_slots_t *self, const backend_leaf_t *leaf);

/* The leaf's refresh_decode_metadata and init_forward_metadata. */
void backend_slots_refresh(backend_slots_t *self, const backend_leaf_t *leaf,
                           const backend_leaf_refresh_t *refresh);
void backend_slots_init_forward(backend_slots_t *self, const backend_leaf_t *leaf,
                                const backend_leaf_extend_t *extend);

/* The leaf's set_draft_seq_lens. */
void backend_slots_set_draft_seq_lens(backend_slots_t *self, const backend_leaf_t *leaf,
                                      const int32_t *seq_lens, int32_t add, uint32_t bs);

/* Entries of a request in the decode slot. */
uint32_t backend_slots_entries(const backend_leaf_t *leaf);

/* The leaf's visit_decode_slot and visit_step_spans. */
void backend_slots_visit(const backend_slots_t *self, const backend_leaf_t *leaf, uint32_t bs,
                         backend_visit_fn visit, void *context);
void backend_slots_visit_step(const backend_slots_t *self, const backend_leaf_t *leaf, uint32_t bs,
                              backend_visit_fn visit, void *context);

/* Kernel pages from block to block; 0 if the blocks of the group's fields of these names do not lie
 * on one grid of kernel pages, or have more slots than an int32 counts. */
uint32_t backend_leaf_page_stride(const backend_leaf_t *leaf, const cache_pool_t *pool,
                                  const cache_field_name_t *names, size_t name_count);

/* Longest sequence whose columns must exist: two steps may be ahead of the last length known. */
uint32_t backend_leaf_page_count_max(const backend_options_t *options, uint32_t page_size);

#endif
