/* backend_leaf.h - the contract of a kernel-facing paged attention leaf.
 *
 * A leaf sees one page table (kernel pages, batch-ordered, padded), sequence lengths and nothing
 * else: no groups, no block tables, no write locations.  It owns its persistent decode buffers and
 * copies the router's table in on each refresh; it never aliases the router's storage.  Its router
 * owns it. */
#ifndef BACKEND_LEAF_H
#define BACKEND_LEAF_H

#include "backend_base.h"

typedef struct backend_leaf backend_leaf_t;

typedef struct {
    uint32_t bs;
    uint32_t actual_bs;
    const int32_t *page_table; /* [bs][page_table_stride] device, lent for the refresh */
    size_t page_table_stride;
    const int32_t *seq_lens; /* [bs] device */
    bool for_graph_replay;
} backend_leaf_refresh_t;

typedef struct {
    uint32_t bs;
    uint32_t num_extends;
    uint32_t extend_tokens; /* rows of the extends; decode rows follow */
    const int32_t *page_table;
    size_t page_table_stride;
    const int32_t *seq_lens;       /* [bs] device */
    const int32_t *extend_cu_lens; /* [num_extends + 1] device, lent for the forward */
} backend_leaf_extend_t;

typedef struct {
    void (*destroy)(backend_leaf_t *self);
    /* Takes the kernels' view of the cache; drops its graph state.  STATUS_ERR_INVALID: rows that
     * this leaf's kernels cannot read. */
    proto_status_t (*validate)(const backend_leaf_t *self, const cache_pool_t *pool);
    void (*bind)(backend_leaf_t *self, const cache_pool_t *pool);
    proto_status_t (*init_graph_state)(backend_leaf_t *self);
    void (*init_forward_metadata)(backend_leaf_t *self, const backend_leaf_extend_t *extend);
    void (*refresh_decode_metadata)(backend_leaf_t *self, const backend_leaf_refresh_t *refresh);
    /* NULL = inherited: the refresh with actual_bs 0. */
    void (*capture_forward_metadata)(backend_leaf_t *self, const backend_leaf_refresh_t *refresh);
    /* NULL = no-op; for leaves with state of their own for each pool slot. */
    void (*set_request_slots)(backend_leaf_t *self, const int32_t *request_slots, uint32_t bs);
    void (*forward)(backend_leaf_t *self, const backend_forward_t *forward);
    /* Of leaves that serve drafts, else NULL: the decode slot's lengths become max(seq_lens[b] +
     * `add`, 1), nothing else changes. */
    void (*set_draft_seq_lens)(backend_leaf_t *self, const int32_t *seq_lens, int32_t add,
                               uint32_t bs);
    void (*visit_decode_slot)(const backend_leaf_t *self, uint32_t bs, backend_visit_fn visit,
                              void *context);
    /* As of backend_base.h; NULL = there are none. */
    void (*visit_step_spans)(const backend_leaf_t *self, uint32_t bs, backend_visit_fn visit,
                             void *context);
} backend_leaf_vtable_t;

/* First member of every leaf. */
struct backend_leaf {
    const backend_leaf_vtable_t *vtable;
    const char *name;
    backend_support_t support;
    backend_options_t options;
    uint32_t group;          /* of the plan: whose layers it serves */
    uint32_t granularity;    /* raw tokens of a block of the group */
    uint32_t page_size;      /* tokens of a kernel page; divides granularity */
    uint32_t page_stride;    /* kernel pages from block to block; more than fill one where other
                                layers' pages lie between.  Set by bind */
    uint32_t page_count_max; /* kernel pages of one request */
};

/* A leaf for softmax attention with grouped heads, float32 or half precision cache.  Reads keys at
 * any position: `page_size` may be any divisor of the granularity.  The caller owns *out_p. */
MUST_CHECK proto_status_t backend_mha_new(const backend_options_t *options, uint32_t group,
                                          uint32_t granularity, uint32_t page_size,
                                          backend_leaf_t **out_p);

/* A leaf for latent attention (kern_mla.h): a group of full layers with one CACHE_FIELD_LATENT
 * each, q_heads heads, latent_dim and rope_dim of the options.  STATUS_ERR_INVALID: dimensions that
 * its kernels do not have.  The caller owns *out_p. */
MUST_CHECK proto_status_t backend_mla_new(const backend_options_t *options, uint32_t group,
                                          uint32_t granularity, uint32_t page_size,
                                          backend_leaf_t **out_p);

#endif
